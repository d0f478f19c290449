//! What is done once: the plan before the tasks, the manifest behind them.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use indexmap::IndexMap;

use super::super::budget::Budget;
use super::super::ending::Ending;
use super::super::output::{ModuleEncoder, Output, Sizes, record, with_tables};
use super::super::pass::Found;
use super::super::passes::{self, Passes, Work};
use super::super::prepare::{Indexed, Prepared, storage};
use super::super::provenance::Provenance;
use super::super::record::batch_columns;
use super::super::shuffle::Shuffle;
use super::super::tables::{self, Storage, Stream};
use super::super::units::{self, Cuts};
use super::super::{Options, Report, intent, keep_input};
use super::rows::Reader;
use super::wire::{Entries, Head, IndexHead, PartRows, PartTask, ShardTask, Shards, Step, decode, encode, seen};
use crate::connector::Connector;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::manifest::{InputFile, ModuleRecord, ShardRecord};
use crate::pipeline::Surveys;
use crate::progress::Progress;
use crate::sink::{Between, Existing, JoinedDigest, Journal, ModuleDir, OutputDir, ShardSchema};
use crate::source::{Source, recognise};
use crate::stats::ColumnStats;

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
    job: Job,
    prepared: Prepared,
    input_files: Vec<InputFile>,
    input_bytes: u64,
    started: Instant,
    threads: usize,
    schemas: Vec<ShardSchema>,
    surveys: Surveys,
    shuffles: Vec<Shuffle>,
    cuts: Cuts,
    /// Units of each part.
    parts: Vec<Range<usize>>,
    tasks: Tasks,
    between: Between,
    journal: Arc<Journal>,
    dir: OutputDir,
    found: Found,
    /// How many shards each stream has, once rows are counted.
    placed: Option<Vec<usize>>,
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
    /// The first thing that is wrong with the job or the data, as [`super::super::convert`] would tell it; and if the job
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
        let first_look = |source: &dyn Source| {
            keep_input(&output_path, source.rows().files())?;
            OutputDir::check(&output_path, options.existing)?;
            Ok(true)
        };
        let mut indexed = Indexed::new(job, own, recognise::open_with, first_look, &output_path, options, progress)?;
        let (threads, input_bytes) = (indexed.threads, indexed.input_bytes);
        let input_files = std::mem::take(&mut indexed.input_files);
        let prepared = indexed.prepare(job, progress)?;
        let schemas = prepared.schemas(job)?;
        let sizes = Sizes { shuffled: job.output.shuffle.is_some(), ..Sizes::default() };
        let (cuts, shuffles) = cut(job, &prepared, sizes, tasks)?;
        let parts = share(&cuts, &prepared, tasks.parts);
        let surveys = {
            let work = Work { cuts: Some(&cuts), ..prepared.work(progress) };
            let passes = Passes::new(work, prepared.budget, Sizes::default())?.sort()?;
            passes.survey(prepared.basis.as_ref(), &mut IndexMap::new())?
        };
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
            provenance: Provenance::of(&self.prepared.index),
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
        self.prepared.index.entries[self.entries(number)].iter().map(|entry| entry.steps).sum()
    }

    /// The entries of a part.
    fn entries(&self, number: usize) -> Range<usize> {
        let before = |unit: usize| self.cuts.entries[..unit].iter().sum::<usize>();
        before(self.parts[number].start)..before(self.parts[number].end)
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
            units: self.cuts.entries[units].to_vec(),
            index: Entries::of(&self.prepared.index, self.entries(number)),
        })
    }

    /// Which rows make which shards: a task for each few of them. `rows` are the results of all parts, in any order.
    ///
    /// # Errors
    /// If they are not one a part, or the rows cannot be read.
    pub fn place<B: AsRef<[u8]>>(&mut self, rows: &[B]) -> Result<Vec<Vec<u8>>> {
        let mut parts: Vec<PartRows> = rows.iter().map(|bytes| decode(bytes.as_ref())).collect::<Result<_>>()?;
        parts.sort_by_key(|part| part.number);
        if !parts.iter().map(|part| part.number).eq(0..self.parts.len()) {
            return Err(Error::usage(format!(
                "found rows of {} parts, expected one result of each of the {}",
                parts.len(),
                self.parts.len()
            )));
        }
        self.found = Found::default();
        parts.iter().for_each(|part| self.found.merge(&part.found));
        let storage = storage(&self.prepared.modules)?;
        let before = steps_before(&storage, &parts);
        let (mut out, mut placed) = (Vec::new(), Vec::new());
        for (stream, schema) in self.schemas.iter().enumerate() {
            let mut steps: Vec<(usize, Step)> = Vec::new();
            let mut buckets: std::collections::BTreeMap<usize, Step> = std::collections::BTreeMap::new();
            for part in &mut parts {
                for segment in std::mem::take(&mut part.streams[stream]) {
                    match segment.bucket {
                        Some(bucket) => buckets.entry(bucket).or_default().push((part.number, segment)),
                        None => steps.push((segment.rows, vec![(part.number, segment)])),
                    }
                }
            }
            steps.extend(buckets.into_values().map(|step| (step.iter().map(|(_, s)| s.rows).sum(), step)));
            let before = before.get(stream).map_or(&[][..], Vec::as_slice);
            let tasks = self.shard_tasks(stream, schema, &steps, before)?;
            placed.push(tasks.last().map_or(0, |task| task.shards.end));
            tasks.iter().try_for_each(|task| encode(task).map(|bytes| out.push(bytes)))?;
        }
        self.placed = Some(placed);
        Ok(out)
    }

    fn shard_tasks(
        &self,
        stream: usize,
        schema: &ShardSchema,
        steps: &[(usize, Step)],
        before_parts: &[Vec<i64>],
    ) -> Result<Vec<ShardTask>> {
        let rows: usize = steps.iter().map(|(rows, _)| rows).sum();
        let a_shard = self.job.output.rows_per_shard.max(1);
        let shards = rows.div_ceil(a_shard);
        let a_task = shards.div_ceil(self.tasks.parts.max(1)).max(1);
        let mut offsets: Vec<u64> = schema.columns.iter().map(|(name, ty)| JoinedDigest::new(name, ty).len()).collect();
        let mut reader = Reader::new(self.between.path(), &schema.columns);
        let (mut step, mut before) = (0, 0);
        let mut tasks = Vec::new();
        for first in (0..shards).step_by(a_task) {
            let last = (first + a_task).min(shards);
            let (begin, end) = (first * a_shard, (last * a_shard).min(rows));
            while before + steps[step].0 <= begin {
                for (at, (c, (_, ty))) in offsets.iter_mut().zip(schema.columns.iter().enumerate()) {
                    *at += steps[step].1.iter().map(|(_, segment)| segment.content_bytes(c, ty)).sum::<u64>();
                }
                before += steps[step].0;
                step += 1;
            }
            let skip = begin - before;
            let mut offsets = offsets.clone();
            if skip > 0 {
                let own = reader.content_bytes(&steps[step].1, skip)?;
                offsets.iter_mut().zip(own).for_each(|(at, own)| *at += own);
            }
            let mut reach = before;
            let own = steps[step..].iter().take_while(|(rows, _)| {
                let wanted = reach < end;
                reach += rows;
                wanted
            });
            let steps = own.map(|(_, step)| step.clone()).collect();
            tasks.push(ShardTask {
                stream,
                shards: first..last,
                rows: (end - begin) as u64,
                skip,
                steps,
                offsets,
                before: before_parts.to_vec(),
            });
        }
        Ok(tasks)
    }

    /// Takes in what a task of [`Self::place`] has made. From then on `convert --resume` would go on behind its shards.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn keep(&mut self, shards: &[u8]) -> Result<()> {
        let shards: Shards = decode(shards)?;
        shards.shards.iter().try_for_each(|shard| self.journal.finished(shard))?;
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
            let there: usize = made.iter().map(|shards| shards.shards.len()).sum();
            if there != placed[number] {
                let what = format!("found {there} shards of {}, expected {}", folder.relative, placed[number]);
                return Err(Error::usage(what).hint("the result of every task of `place` must be kept once"));
            }
            streams.push(if made.is_empty() {
                // One shard, which says what columns there would be.
                let journal = Arc::clone(&self.journal);
                Output::new(number, folder, schema, stream.columns, &self.job.output, journal, &[])?.finish()?
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

/// Where units and the buckets of a shuffled order are cut, so that tasks have room for them.
fn cut(job: &Job, prepared: &Prepared, sizes: Sizes, tasks: Tasks) -> Result<(Cuts, Vec<Shuffle>)> {
    let Prepared { source, pipeline, index, modules, .. } = prepared;
    let budget = Budget::new(Some(tasks.memory_limit), tasks.threads.max(1))?;
    let needs = passes::needs(&**source, index, pipeline, modules, sizes);
    let limits = budget.share(0, &needs)?;
    let step_bytes = needs.step_in.max(needs.step_out).max(1);
    let weight: u64 = index.entries.iter().map(|e| units::weight(e, needs.period)).sum();
    let all = usize::try_from(weight).unwrap_or(usize::MAX).saturating_mul(step_bytes);
    let unit_bytes = all.div_ceil(tasks.parts.max(1)).clamp(1, limits.unit_bytes);
    let units = units::cut(index, needs.period, step_bytes, unit_bytes);
    let cuts = Cuts { first: 0, entries: units.into_iter().map(|unit| unit.entries.len()).collect() };
    let room = limits.piece_bytes / modules.len().max(1);
    let order = |seed: u64| {
        passes::bytes_out(index, modules).into_iter().map(|bytes| Shuffle::new(seed, bytes, room)).collect()
    };
    Ok((cuts, job.output.shuffle.as_ref().map(|shuffle| order(shuffle.seed)).unwrap_or_default()))
}

/// Units as parts of about the same number of steps.
fn share(cuts: &Cuts, prepared: &Prepared, parts: usize) -> Vec<Range<usize>> {
    let entries = &prepared.index.entries;
    // Many empty episodes are work, too.
    let weight = |range: Range<usize>| entries[range].iter().map(|e| e.steps + 1).sum::<u64>();
    let a_part = weight(0..entries.len()).div_ceil(parts.max(1) as u64).max(1);
    let (mut out, mut start, mut behind, mut done): (Vec<Range<usize>>, _, _, _) = (Vec::new(), 0, 0, 0);
    for (unit, &n) in cuts.entries.iter().enumerate() {
        done += weight(behind..behind + n);
        behind += n;
        if done >= a_part * (out.len() as u64 + 1) || unit + 1 == cuts.entries.len() {
            out.push(start..unit + 1);
            start = unit + 1;
        }
    }
    out
}

/// Steps of each table in the parts before each part, by module; nothing for a module without tables.
fn steps_before(storage: &[Storage], parts: &[PartRows]) -> Vec<Vec<Vec<i64>>> {
    let mut stream = storage.len();
    let mut of_module = |s: &Storage| {
        let own = stream..stream + s.tables.len();
        stream = own.end;
        if own.is_empty() {
            return Vec::new();
        }
        let mut before = vec![0; own.len()];
        let of_part = |part: &PartRows| {
            let out = before.clone();
            for (n, stream) in before.iter_mut().zip(own.clone()) {
                *n += part.streams[stream].iter().map(|segment| segment.rows.cast_signed() as i64).sum::<i64>();
            }
            out
        };
        parts.iter().map(of_part).collect()
    };
    storage.iter().map(|s| of_module(s)).collect()
}

/// A module's record, from what tasks have made.
fn joined(
    folder: String,
    schema: &ShardSchema,
    mut stats: Vec<Option<ColumnStats>>,
    made: Vec<Shards>,
) -> Result<ModuleRecord> {
    let mut digests: Vec<JoinedDigest> = schema.columns.iter().map(|(name, ty)| JoinedDigest::new(name, ty)).collect();
    let (mut shards, mut rows): (Vec<ShardRecord>, u64) = (Vec::new(), 0);
    for made in made {
        if made.first != shards.len() {
            let what = format!("found shard {} of {folder}, expected {}", made.first, shards.len());
            return Err(Error::usage(what).hint("the result of every task of `place` must be kept once"));
        }
        for own in &made.stats {
            for (all, own) in stats.iter_mut().zip(own) {
                if let (Some(all), Some(own)) = (all, own) {
                    all.merge(own);
                }
            }
        }
        digests.iter_mut().zip(&made.digests).try_for_each(|(all, own)| all.push(own))?;
        for shard in made.shards {
            rows += shard.rows;
            shards.push(ShardRecord { file: shard.file, rows: shard.rows, bytes: shard.bytes, digest: shard.digest });
        }
    }
    let digests = digests.into_iter().map(|digest| digest.finish(rows)).collect();
    Ok(record(folder, schema, shards, digests, stats))
}
