//! What is done once: the plan before the tasks, the manifest behind them.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use indexmap::IndexMap;

use super::super::ending::Ending;
use super::super::output::{ModuleEncoder, Output, Sizes, with_tables};
use super::super::pass::Found;
use super::super::passes::{Passes, Work};
use super::super::prepare::{Prepared, storage};
use super::super::record::batch_columns;
use super::super::shuffle::Shuffle;
use super::super::tables::{self, Stream};
use super::super::units::Cuts;
use super::super::{Options, Report, index, intent};
use super::cuts::{cut, share};
use super::joined::joined;
use super::wire::{Entries, Head, IndexHead, PartTask, Shards, decode, encode, seen};
use crate::connector::Connector;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::manifest::{InputFile, ModuleRecord};
use crate::pipeline::Surveys;
use crate::progress::Progress;
use crate::sink::{Between, Durable, Existing, Journal, ModuleDir, OutputDir, ShardSchema};

/// How the work is cut into tasks. None of it moves a byte of the output.
#[derive(Debug, Clone, Copy)]
pub struct Tasks {
    /// Parts, if there are episodes enough.
    pub parts: usize,
    /// Threads of a task.
    pub threads: usize,
    /// Bytes of memory that a task stays under.
    pub memory_limit: u64,
}

/// The one process that plans a run, and writes its manifest.
pub struct Coordinator {
    pub(super) job: Job,
    pub(super) prepared: Prepared,
    input_files: Vec<InputFile>,
    input_bytes: u64,
    started: Instant,
    threads: usize,
    pub(super) schemas: Vec<ShardSchema>,
    surveys: Surveys,
    shuffles: Vec<Shuffle>,
    cuts: Cuts,
    /// Units of each part.
    pub(super) parts: Vec<Range<usize>>,
    pub(super) tasks: Tasks,
    pub(super) between: Between,
    journal: Arc<Journal>,
    dir: OutputDir,
    pub(super) found: Found,
    /// How many shards each stream has, once rows are counted.
    pub(super) placed: Option<Vec<usize>>,
    /// By stream.
    made: Vec<Vec<Shards>>,
}

impl std::fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coordinator").field("dir", &self.dir).field("parts", &self.parts).finish_non_exhaustive()
    }
}

impl Coordinator {
    /// Passes over the input as often as the job needs to know all of it, and starts the output directory.
    ///
    /// Every task must see the job's files, and the output directory, under the same paths.
    ///
    /// # Errors
    /// The first thing that is wrong with the job or the data, as [`crate::run::convert`] would tell it; and if the job
    /// is one that cannot be done by parts.
    pub fn plan(
        job: &Job,
        own: Vec<Box<dyn Connector>>,
        options: &Options,
        tasks: Tasks,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let started = Instant::now();
        if options.existing == Existing::Resume {
            return Err(Error::usage("found resume, expected a new run: parts of one cannot be gone on with")
                .hint("`gristmill convert --resume` can go on with its finished shards"));
        }
        let output_path = job.output_path();
        let mut indexed = index(job, own, options, progress)?;
        let (threads, input_bytes) = (indexed.threads, indexed.input_bytes);
        let input_files = std::mem::take(&mut indexed.input_files);
        let prepared = indexed.prepare(job, progress)?;
        prepared.check_folders()?;
        let schemas = prepared.schemas(job)?;
        let sizes = Sizes { shuffled: job.output.shuffle.is_some(), ..Sizes::default() };
        let (cuts, shuffles) = cut(job, &prepared, sizes, tasks)?;
        let parts = share(&cuts, &prepared, tasks.parts);
        let surveys = {
            let work = Work { cuts: Some(&cuts), ..prepared.work(progress) };
            let passes = Passes::new(work, prepared.budget, Sizes::default())?.sort()?;
            passes.survey(prepared.basis.as_ref(), &mut IndexMap::new())?
        };
        // What cannot be sent to tasks is refused before the output directory is touched.
        prepared.pipeline.save_surveys(&surveys)?;

        let mut dir = OutputDir::prepare(&output_path, options.existing)?;
        let (journal, _) = dir.journal(&intent(job, &prepared.pipeline, &input_files))?;
        let between = Between::create(&output_path)?;
        Ok(Self {
            job: job.clone(),
            made: schemas.iter().map(|_| Vec::new()).collect(),
            prepared,
            input_files,
            input_bytes,
            started,
            threads,
            schemas,
            surveys,
            shuffles,
            cuts,
            parts,
            tasks,
            between,
            journal: Arc::new(journal),
            dir,
            found: Found::default(),
            placed: None,
        })
    }

    /// What every task needs. Relative paths of the job are seen from the directory `current`.
    ///
    /// # Errors
    /// If the folders of the shards cannot be created.
    pub fn head(&self, current: &Path) -> Result<Vec<u8>> {
        let storage = storage(&self.prepared.modules)?;
        let folder = |stream: Stream<'_>| {
            let dir = self.folder(stream)?;
            let path = std::path::absolute(&dir.path).map_err(|e| Error::io("resolve", &dir.path, &e))?;
            Ok((path, dir.relative))
        };
        let files = self.prepared.source.rows().files();
        let mut job = self.job.clone();
        job.make_absolute(current);
        encode(&Head {
            gristmill: env!("CARGO_PKG_VERSION").to_owned(),
            job: job.to_json().to_string(),
            files: files.iter().map(|f| seen(f)).collect(),
            index: IndexHead::of(&self.prepared.index),
            provenance: self.prepared.provenance,
            texts: self.prepared.provenance.texts(&self.prepared.index),
            surveys: self.prepared.pipeline.save_surveys(&self.surveys)?,
            shuffles: self.shuffles.clone(),
            between: self.between.path().to_owned(),
            streams: tables::streams(&storage).into_iter().map(folder).collect::<Result<_>>()?,
        })
    }

    /// Number of parts.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// The folder of a stream's shards.
    fn folder(&self, stream: Stream<'_>) -> Result<ModuleDir> {
        let module = &self.prepared.modules[stream.module];
        let rows = self.dir.module_dir(module.part.as_deref(), &module.id)?;
        stream.table.map_or(Ok(rows.clone()), |table| self.dir.table_dir(&rows, table.name))
    }

    /// Steps of a part's episodes.
    #[must_use]
    pub fn steps(&self, number: usize) -> u64 {
        self.cuts.units[self.parts[number].clone()].iter().map(|cut| cut.steps(&self.prepared.index)).sum()
    }

    /// Whether parts need what ordered pieces know of those before: the result of [`super::Worker::order`] of the part
    /// before.
    #[must_use]
    pub fn ordered(&self) -> bool {
        self.prepared.pipeline.ordered().next().is_some()
    }

    /// What the tasks of part number `number` need.
    ///
    /// # Errors
    /// Never: it is plain data.
    pub fn part(&self, number: usize) -> Result<Vec<u8>> {
        let units = self.parts[number].clone();
        encode(&PartTask {
            number,
            first_unit: units.start,
            units: self.cuts.units[units.clone()].iter().map(|cut| cut.entries.len()).collect(),
            index: Entries::of(&self.prepared.index, &self.cuts.units[units]),
        })
    }

    /// Takes in what a task of [`Self::place`] has made. From then on `convert --resume` would go on behind its shards.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn keep(&mut self, shards: &[u8]) -> Result<()> {
        let shards: Shards = decode(shards)?;
        shards.files.iter().try_for_each(|shard| self.journal.finished(shard))?;
        let made = self.made.get_mut(shards.stream).ok_or_else(|| Error::internal("shards of no module"))?;
        made.push(shards);
        Ok(())
    }

    /// Writes the manifest.
    ///
    /// # Errors
    /// If shards are missing, or the input has changed meanwhile.
    pub fn finish(mut self) -> Result<Report> {
        self.prepared.source.rows().files().iter().try_for_each(|file| file.check_unchanged())?;
        let Some(placed) = self.placed.take() else {
            return Err(Error::usage("found no shards, expected `place` before `finish`"));
        };
        let storage = storage(&self.prepared.modules)?;
        let mut streams = Vec::with_capacity(placed.len());
        for (number, stream) in tables::streams(&storage).into_iter().enumerate() {
            let (folder, schema) = (self.folder(stream)?, self.schemas[number].clone());
            let mut made = std::mem::take(&mut self.made[number]);
            made.sort_by_key(|shards| shards.first);
            let there: usize = made.iter().map(|shards| shards.files.len()).sum();
            if there != placed[number] {
                let what = format!("found {there} shards of {}, expected {}", folder.relative, placed[number]);
                return Err(Error::usage(what).hint("the result of every task of `place` must be kept once"));
            }
            streams.push(if made.is_empty() {
                // One shard, which says what columns there would be.
                let mut durable = Durable::new(Arc::clone(&self.journal));
                let output = Output::new(number, folder, schema, stream.columns, &self.job.output, &[])?;
                let record = output.finish(&mut durable)?;
                durable.finish()?;
                record
            } else {
                let encoder = ModuleEncoder::new(schema, stream.columns, &self.job.output, 0)?;
                joined(folder.relative, &self.schemas[number], encoder.no_stats(), made)?
            });
        }
        let modules = with_tables(streams, storage.into_iter().map(|s| s.tables).collect())?;
        let mut records: IndexMap<String, ModuleRecord> = IndexMap::new();
        for (module, record) in self.prepared.modules.iter().zip(modules) {
            let batch = batch_columns(&module.layout.columns);
            records.insert(module.name(), ModuleRecord { batch, ..record });
        }
        drop(self.between);
        Ending {
            job: &self.job,
            prepared: &self.prepared,
            surveys: &self.surveys,
            found: &self.found,
            records,
            input_files: self.input_files,
            input_bytes: self.input_bytes,
            started: self.started,
            threads: self.threads,
            notes: vec![("parts".to_owned(), self.parts.len().into())],
        }
        .write(self.dir)
    }
}
