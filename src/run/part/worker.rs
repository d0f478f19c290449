//! What tasks do: pure functions of what they are given, so whoever runs one anew writes the same bytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::super::Options;
use super::super::budget::Budget;
use super::super::cutter::Cutter;
use super::super::output::{Encoded, ModuleEncoder};
use super::super::pass::{Pass, States};
use super::super::passes::{Passes, Work};
use super::super::prepare::{plan_modules, storage};
use super::super::split;
use super::super::tables::{self, Storage};
use super::super::units::Cuts;
use super::rows::{Moves, Reader, Steps, Writer, file};
use super::wire::{Head, PartRows, PartTask, ShardTask, Shards, decode, encode, seen, sizes};
use crate::connector::{Connector, Room};
use crate::error::{Error, Kind, Result};
use crate::job::{Job, WindowStorage};
use crate::pipeline::{ModulePlan, Pipeline, Surveys};
use crate::progress::Progress;
use crate::scratch::Scratch;
use crate::sink::{DigestPart, Finished, ShardSchema, ShardWriter, row_group_rows, shard_name};
use crate::source::{Source, recognise};
use crate::threads;

/// One part of so many of a task's memory is for a bucket that is sorted to make shards of its rows.
const SHUFFLED: usize = 4;

/// The remedy where this process finds another input than the coordinator did.
const SAME: &str = "the input must stay as it is, and be the same on all machines";

/// A process that does tasks of one run.
#[derive(Debug)]
pub struct Worker {
    head: Head,
    job: Job,
    source: Box<dyn Source>,
    pipeline: Pipeline,
    modules: Vec<ModulePlan>,
    storage: Vec<Storage>,
    schemas: Vec<ShardSchema>,
    surveys: Surveys,
    budget: Budget,
    threads: usize,
    scratch: Scratch,
}

impl Worker {
    /// Opens the input. `own` are the pieces that the coordinator was given; of `options`, threads, memory and scratch
    /// folder count.
    ///
    /// # Errors
    /// If this process sees another input than the coordinator, or is another version.
    pub fn open(head: &[u8], own: Vec<Box<dyn Connector>>, options: &Options) -> Result<Self> {
        let head: Head = decode(head)?;
        if head.gristmill != env!("CARGO_PKG_VERSION") {
            let found = format!("found gristmill {}, expected {}", env!("CARGO_PKG_VERSION"), head.gristmill);
            return Err(Error::environment(found).hint("all machines need the same version"));
        }
        let job: Job = serde_json::from_str(&head.job).map_err(|e| Error::internal(format!("a task's job: {e}")))?;
        let pipeline = Pipeline::with_own(&job.learner, own)?
            .with_obs_space(job.input.spaces.obs.clone())
            .with_indexed_windows(job.output.windows == WindowStorage::Indexed);
        // The coordinator has opened it, so that the job is right.
        let source = recognise::open_with(&job, pipeline.reads_infos()).map_err(|e| match e.kind() {
            Kind::Usage => Error::environment(e.what()).at(e.place().clone()).hint(SAME),
            _ => e,
        })?;
        let files: Vec<_> = source.rows().files().iter().map(|f| seen(f)).collect();
        if let Some((found, expected)) = files.iter().zip(&head.files).find(|(a, b)| a != b) {
            let what = |(_, bytes, rows): &(String, u64, u64)| format!("{bytes} bytes with {rows} rows");
            let error = Error::environment(format!("found {}, expected {}", what(found), what(expected)));
            return Err(error.file(found.0.clone()).hint(SAME));
        }
        if files.len() != head.files.len() {
            let found = format!("found {} input files, expected {}", files.len(), head.files.len());
            return Err(Error::environment(found).hint(SAME));
        }
        let mut modules = plan_modules(&job, &pipeline, &head.index.with(super::wire::Entries::default()))?;
        if let Some(parts) = &job.output.split {
            modules = split::of_parts(parts, &modules);
        }
        let storage = storage(&modules)?;
        let schemas = tables::schemas(&modules, &storage, head.provenance, &head.texts, &job.output)?;
        let surveys = pipeline.restore_surveys(&head.surveys)?;
        let threads = threads::count(options.threads);
        let budget = Budget::new(options.memory_limit, threads)?;
        let scratch = Scratch::new(options.scratch.as_deref().unwrap_or(&head.between));
        Ok(Self { head, job, source, pipeline, modules, storage, schemas, surveys, budget, threads, scratch })
    }

    /// One pass over a part, from the states that ordered pieces have before it.
    fn pass<R>(
        &self,
        part: PartTask,
        states: &[u8],
        progress: &dyn Progress,
        run: impl FnOnce(&Passes<'_>, &States) -> Result<R>,
    ) -> Result<(R, States)> {
        let before = if states.is_empty() { BTreeMap::default() } else { decode(states)? };
        let states = States { before, ..States::default() };
        let cuts = Cuts::of(part.first_unit, &part.units);
        let index = self.head.index.with(part.index);
        let work = Work {
            source: &*self.source,
            index: &index,
            pipeline: &self.pipeline,
            modules: &self.modules,
            scratch: &self.scratch,
            progress,
            cuts: Some(&cuts),
            pieces: self.pipeline.len(),
        };
        let passes = Passes::new(work, self.budget, sizes(&self.head))?.sort()?;
        let result = run(&passes, &states)?;
        Ok((result, states))
    }

    /// What ordered pieces know behind a part, given what they knew before it (nothing for the first part).
    ///
    /// # Errors
    /// The first thing that is wrong with the part's data.
    pub fn order(&self, part: &[u8], states: &[u8], progress: &dyn Progress) -> Result<Vec<u8>> {
        let ((), states) = self.pass(decode(part)?, states, progress, |passes, states| {
            let mut nothing = super::super::pass::Findings(|_| Ok(()));
            passes.part(Pass::Order, &self.surveys, states, &mut nothing, "ordering")
        })?;
        encode(&states.behind.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Makes the rows of a part, from the states that ordered pieces have before it. `attempt` is a name that no other
    /// try of any task has; what comes back tells where the rows are.
    ///
    /// # Errors
    /// The first thing that is wrong with the part's data, or if the rows cannot be written.
    pub fn rows(&self, part: &[u8], states: &[u8], attempt: &str, progress: &dyn Progress) -> Result<Vec<u8>> {
        let part: PartTask = decode(part)?;
        let number = part.number;
        let draft = self.draft(&format!("rows-{number:05}"), attempt);
        let ((streams, found), _) = self.pass(part, states, progress, |passes, states| {
            let provenance = self.head.provenance.columns().len();
            let mut writer = Writer::create(draft.clone(), &self.schemas, &self.storage, provenance)?;
            let shuffles = match &self.job.output.shuffle {
                Some(shuffle) => passes.shuffles(shuffle.seed),
                None => Vec::new(),
            };
            writer.shuffle(&self.head.shuffles, &shuffles, &passes.room_of(self.modules.len()));
            passes.part(Pass::Convert(&shuffles), &self.surveys, states, &mut writer, "converting")?;
            writer.finish()
        })?;
        place(&draft, &file(&self.head.between, number))?;
        encode(&PartRows { number, streams, found })
    }

    /// Makes shards of rows. `attempt` as for [`Self::rows`].
    ///
    /// # Errors
    /// If the rows cannot be read, or the shards not be written.
    pub fn shards(&self, task: &[u8], attempt: &str, progress: &dyn Progress) -> Result<Vec<u8>> {
        let task: ShardTask = decode(task)?;
        threads::pool(self.threads)?.install(|| self.make(&task, attempt, progress)).and_then(|made| encode(&made))
    }

    fn make(&self, task: &ShardTask, attempt: &str, progress: &dyn Progress) -> Result<Shards> {
        let schema = &self.schemas[task.stream];
        let out = &self.job.output;
        let (folder, relative) = &self.head.streams[task.stream];
        let stream = tables::streams(&self.storage)[task.stream];
        let encoder = ModuleEncoder::new(schema.clone(), stream.columns, out, 0)?;
        let group_rows = row_group_rows(schema, out.rows_per_shard);
        let mut cutter = Cutter::new(task.stream, out.rows_per_shard, group_rows).starting_at(task.shards.start);
        let mut reader = Reader::new(&self.head.between, &schema.columns);
        if !task.before.is_empty() {
            let (tables, provenance) = (&self.storage[stream.module].tables, self.head.provenance.columns().len());
            reader = reader.moving(Moves { tables, provenance, by: &task.before });
        }
        let digests = task.offsets.iter().map(|&at| DigestPart::at(at)).collect();
        let mut made =
            Shards { stream: task.stream, first: task.shards.start, files: Vec::new(), stats: Vec::new(), digests };
        let mut open: Option<(ShardWriter, PathBuf, u64)> = None;
        let (mut skip, mut left) = (task.skip, usize::try_from(task.rows).unwrap_or(usize::MAX));
        let room = Room { bytes: self.budget.limit() / SHUFFLED, scratch: self.scratch.clone() };
        let mut steps = Steps::new(&task.steps, reader, self.head.shuffles.get(task.stream).copied(), room);
        loop {
            crate::progress::go_on(progress)?;
            // What is behind the last row would be sorted for nothing.
            let rows = if left > 0 { steps.next()? } else { None };
            let ended = rows.is_none();
            if let Some(rows) = rows {
                let from = skip.min(rows.rows);
                let n = (rows.rows - from).min(left);
                cutter.push(rows.slice(from, n));
                (skip, left) = (skip - from, left - n);
            }
            while let Some(cut) = cutter.next(ended) {
                let group = Encoded::new(cut, &encoder)?;
                made.stats.push(group.stats);
                for (digest, column) in made.digests.iter_mut().zip(&group.data.columns) {
                    digest.update(column)?;
                }
                let name = shard_name(group.shard, out.format);
                let (mut writer, draft, rows) = if let Some(open) = open.take() {
                    open
                } else {
                    let draft = self.draft(&format!("{}-{name}", task.stream), attempt);
                    (ShardWriter::create(&draft, &encoder.encoder)?, draft, 0)
                };
                let rows = rows + group.data.rows as u64;
                writer.append(group.bytes.ok_or_else(|| Error::internal("a row group without bytes"))?)?;
                if group.ends_shard {
                    let info = writer.finish()?;
                    place(&draft, &folder.join(&name))?;
                    let file = format!("{relative}/{name}");
                    made.files.push(Finished { file, rows, bytes: info.bytes, digest: info.digest });
                } else {
                    open = Some((writer, draft, rows));
                }
            }
            if ended {
                break;
            }
        }
        if left > 0 || open.is_some() || made.files.len() != task.shards.len() {
            return Err(Error::internal(format!("{left} rows of shards {:?} are missing", task.shards)));
        }
        made.digests = made.digests.into_iter().map(DigestPart::finish).collect();
        Ok(made)
    }

    /// Where a file is written until it is whole.
    fn draft(&self, name: &str, attempt: &str) -> PathBuf {
        self.head.between.join(format!("{name}.{attempt}.draft"))
    }
}

/// A whole file takes its name. Another try may have been there before; then it is the same file.
fn place(draft: &Path, target: &Path) -> Result<()> {
    fs::rename(draft, target).map_err(|e| Error::io("rename a finished file to", target, &e))
}
