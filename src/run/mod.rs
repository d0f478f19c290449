//! A whole conversion: index the input, compile it unit by unit, write the shards, and the manifest last.

mod cutter;
mod output;
mod provenance;
mod reader;
mod schedule;
mod units;

use std::time::Instant;

use indexmap::IndexMap;
use rayon::prelude::*;
use serde::Serialize;

use cutter::Rows;
use output::Output;
use reader::{Delivery, ReadTask, Reader};
use schedule::{Compiled, Limits, Work};
use units::Unit;

use crate::column::DEFAULT_MODULE_ID;
use crate::connector::Repairs;
use crate::error::{Error, Result};
use crate::job::{Compat, Job, ModuleSettings, check_supported};
use crate::manifest::{Counts, FORMAT_VERSION, InputFile, InputRecord, Manifest, ModuleRecord, Problem, RunRecord};
use crate::pipeline::{Pipeline, PipelineLayout};
use crate::progress::{Progress, Totals};
use crate::sink::{ColumnData, OutputDir, combine};
use crate::source::blocks::Blocks;
use crate::source::index::Index;
use crate::source::{IndexOptions, Noticed, Source, keys, recognise};

/// Bytes of decoded input per block, and of steps per unit. Large enough that a task outweighs its start, small
/// enough that a few of them are nothing to memory.
const BLOCK_BYTES: usize = 4 << 20;
const UNIT_BYTES: usize = 4 << 20;
/// Decoded input that may wait, without a memory limit.
const READ_BYTES: usize = 128 << 20;

/// What changes how a run goes, and not a byte of what it writes.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Worker threads; all cores when not set.
    pub threads: Option<usize>,
    /// Bytes of memory to stay under. Bounds what is read ahead.
    pub memory_limit: Option<u64>,
    /// Replace what is in the output directory.
    pub overwrite: bool,
}

/// What a run did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// The layout that was recognised and why, a sentence.
    pub input_layout: String,
    /// Input files.
    pub files: u64,
    /// Bytes of the input files.
    pub input_bytes: u64,
    /// Episodes (chunks) read.
    pub episodes_in: u64,
    /// Steps read.
    pub steps_in: u64,
    /// Episodes or chunks left out because they were recorded twice.
    pub duplicates_dropped: u64,
    /// Steps whose `new_obs` is not the next step's `obs`.
    pub discontinuities: u64,
    /// What else was odd, a sentence each.
    pub problems: Vec<String>,
    /// What was written, by folder.
    pub modules: IndexMap<String, ModuleReport>,
    /// Rows that each repair of `compat = "correct"` touched.
    pub repairs: IndexMap<String, u64>,
    /// Wall time.
    pub seconds: f64,
    /// The output directory.
    pub output: String,
}

/// What was written for one module.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ModuleReport {
    /// Columns with dtype and shape of a row: `("obs", "float32[4]")`.
    pub columns: Vec<(String, String)>,
    /// Rows: steps, or sequences when the module is stateful.
    pub rows: u64,
    /// Shard files.
    pub shards: u64,
    /// Bytes of the shard files.
    pub bytes: u64,
}

/// Converts what the job says to where it says.
///
/// # Errors
/// The first thing that went wrong, in the order of the data. Nothing that looks finished is left behind.
pub fn convert(job: &Job, options: &Options, progress: &dyn Progress) -> Result<Report> {
    let started = Instant::now();
    if let Some(error) = check_supported(job).into_iter().next() {
        return Err(error);
    }
    let threads = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into)).max(1);
    let pipeline = Pipeline::new(&job.learner)?;
    let module = job.rl_module.module(DEFAULT_MODULE_ID);
    let source = recognise::open(job)?;
    // Before a terabyte is indexed: can the pipeline run on such columns at all?
    let peeked = source.peek()?;
    if !peeked.steps.is_empty() {
        pipeline.layout(&module, &peeked)?;
    }
    let dir = OutputDir::prepare(&job.output_path(), options.overwrite)?;

    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|e| Error::environment(format!("cannot start {threads} threads: {e}")))?;
    let input_bytes: u64 = source.rows().files().iter().map(|f| f.bytes).sum();
    progress.begin("looking for episodes", Totals { bytes: Some(input_bytes), ..Totals::default() });
    let index_options =
        IndexOptions { duplicates: job.input.duplicates, unfinished: job.input.unfinished, compat: job.learner.compat };
    let (index, digests) = pool.install(|| {
        rayon::join(
            || source.index(index_options, progress),
            || source.rows().files().par_iter().map(|f| f.digest()).collect::<Vec<_>>(),
        )
    });
    let mut index = index?;
    progress.end();
    if job.learner.compat == Compat::Rllib260 {
        let seq_len = if module.stateful { Some(module.seq_len()?) } else { None };
        keys::order(&mut index.entries, pipeline.key_suffix(), seq_len)?;
    }
    let layout = pipeline.layout(&module, &index.layout)?;

    let int_ids = matches!(index.entries.first(), Some(e) if matches!(e.id, crate::episode::EpisodeId::Int(_)));
    let module_dir = dir.module_dir(None, DEFAULT_MODULE_ID)?;
    let mut output = Output::new(module_dir, provenance::columns(int_ids), &layout.columns, &job.output)?;

    let step_bytes: usize = index.layout.steps.iter().map(|(_, ty)| ty.row_bytes()).sum();
    let units = units::cut(&index, step_bytes, UNIT_BYTES);
    let totals = Totals { episodes: Some(index.entries.len() as u64), steps: Some(index.steps()), bytes: None };
    progress.begin("converting", totals);
    let work =
        Conversion { source: &*source, index: &index, pipeline: &pipeline, module: &module, layout: &layout, int_ids };
    let read_bytes = options
        .memory_limit
        .map_or(READ_BYTES, |limit| usize::try_from(limit / 4).unwrap_or(READ_BYTES).min(READ_BYTES));
    let mut found = Found::default();
    let reader = Reader::new(source.rows().groups().to_vec(), threads);
    schedule::run(&work, reader, &units, &mut output, Limits { threads, read_bytes }, progress, |unit: Found| {
        found.merge(&unit);
    })?;
    progress.end();

    let record = output.finish()?;
    let files = source.rows().files();
    let input_files = files
        .iter()
        .zip(digests)
        .map(|(f, digest)| Ok(InputFile { name: f.name.clone(), bytes: f.bytes, digest: digest?, rows: f.rows() }))
        .collect::<Result<Vec<_>>>()?;
    let manifest = manifest(job, &*source, &index, &found, &record, input_files);
    let seconds = started.elapsed().as_secs_f64();
    let report = report(job, &manifest, &record, input_bytes, seconds);
    let per_second = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
    let run = RunRecord {
        gristmill: env!("CARGO_PKG_VERSION").to_owned(),
        wall_seconds: seconds,
        steps_per_second: per_second(manifest.counts.steps_out),
        bytes_per_second: per_second(input_bytes),
        input_bytes,
        output_bytes: record.shards.iter().map(|s| s.bytes).sum(),
        threads,
        extra: IndexMap::new(),
    };
    dir.finish(&manifest, &run)?;
    Ok(report)
}

/// What units found out besides rows.
#[derive(Debug, Default)]
struct Found {
    repairs: Repairs,
    noticed: Noticed,
    episodes_out: u64,
    steps_out: u64,
    pipeline_steps_out: u64,
}

impl Found {
    fn merge(&mut self, unit: &Self) {
        self.repairs.merge(&unit.repairs);
        self.noticed.discontinuities += unit.noticed.discontinuities;
        self.noticed.first_discontinuity =
            [self.noticed.first_discontinuity, unit.noticed.first_discontinuity].into_iter().flatten().min();
        self.episodes_out += unit.episodes_out;
        self.steps_out += unit.steps_out;
        self.pipeline_steps_out += unit.pipeline_steps_out;
    }
}

/// The work of one job.
struct Conversion<'a> {
    source: &'a dyn Source,
    index: &'a Index,
    pipeline: &'a Pipeline,
    module: &'a ModuleSettings,
    layout: &'a PipelineLayout,
    int_ids: bool,
}

impl Work for Conversion<'_> {
    type Report = Found;

    fn read(&self, task: ReadTask) -> Delivery {
        let mut decoder = match task.decoder {
            Some(decoder) => decoder,
            None => self.source.read(task.group, &self.index.layout, BLOCK_BYTES)?,
        };
        let block = decoder.next().transpose()?;
        Ok((decoder, block))
    }

    fn compile(&self, unit: &Unit, blocks: &Blocks) -> Result<Compiled<Found>> {
        let mut found = Found::default();
        let entries = &self.index.entries[unit.entries.clone()];
        let mut episodes = self.source.assemble(self.index, entries, blocks, &mut found.noticed)?;
        found.episodes_out = episodes.lengths().filter(|&len| len > 0).count() as u64;
        found.steps_out = episodes.steps_len() as u64;
        let batch = self.pipeline.apply(self.module, self.layout, &mut episodes, &mut found.repairs)?;
        found.pipeline_steps_out = episodes.steps_len() as u64;
        let seq_len = self.module.max_seq_len.unwrap_or(1);
        let mut columns = provenance::values(&episodes, self.layout.rows, seq_len, self.int_ids)?;
        columns.extend(batch.into_columns().into_iter().map(|(_, t)| ColumnData::Tensor(t)));
        let rows = columns.first().map_or(0, ColumnData::rows);
        Ok(Compiled { rows: Rows { rows, columns }, report: found })
    }
}

fn manifest(
    job: &Job,
    source: &dyn Source,
    index: &Index,
    found: &Found,
    record: &ModuleRecord,
    files: Vec<InputFile>,
) -> Manifest {
    let odd = &index.oddities;
    let mut problems = Vec::new();
    let mut problem = |count: u64, what: &str, first: Option<String>| {
        if count > 0 {
            problems.push(Problem { what: what.to_owned(), count, first });
        }
    };
    problem(odd.duplicate_rows, "steps recorded twice were dropped", None);
    problem(
        found.noticed.discontinuities,
        "rows whose obs is not the new_obs of the row before",
        found.noticed.first_discontinuity.map(|row| source.rows().describe(row)),
    );
    problem(odd.empty_episodes, "episodes without a step yield no row", None);
    problem(odd.unfinished_episodes, "episodes end neither terminated nor truncated", None);
    problem(odd.dropped_unfinished_episodes, "of these were dropped, as the job says", None);
    let mut notes = source.notes().to_vec();
    notes.extend(index.notes.iter().cloned());
    notes.extend(files.iter().zip(source.rows().files()).filter_map(|(_, f)| f.note.clone()));
    let counts = Counts {
        episodes_in: index.episodes_read,
        steps_in: index.steps_read,
        episodes_out: found.episodes_out,
        steps_out: found.steps_out,
        rows_out: record.rows,
        duplicates_dropped: odd.duplicate_episodes,
        discontinuities: found.noticed.discontinuities,
        unfinished: odd.unfinished_episodes,
        learner_connector_sum_episodes_length_in: index.steps(),
        learner_connector_sum_episodes_length_out: found.pipeline_steps_out,
        ..Counts::default()
    };
    Manifest {
        format_version: FORMAT_VERSION,
        gristmill: env!("CARGO_PKG_VERSION").to_owned(),
        job: job.to_portable_json(),
        input: InputRecord { layout: source.recognised().to_owned(), files },
        counts,
        repairs: found.repairs.sorted().into_iter().map(|(n, rows)| (n.to_owned(), rows)).collect(),
        problems,
        notes,
        modules: IndexMap::from([(DEFAULT_MODULE_ID.to_owned(), record.clone())]),
        content_digest: combine([(DEFAULT_MODULE_ID, record.digest.as_str())]),
    }
}

fn report(job: &Job, manifest: &Manifest, record: &ModuleRecord, input_bytes: u64, seconds: f64) -> Report {
    let problem = |p: &Problem| match &p.first {
        Some(first) => format!("{} {} (first: {first})", p.count, p.what),
        None => format!("{} {}", p.count, p.what),
    };
    let type_name = |c: &crate::manifest::ColumnRecord| match c.shape.as_slice() {
        [] => c.dtype.clone(),
        shape => format!("{}{shape:?}", c.dtype),
    };
    let module = ModuleReport {
        columns: record.columns.iter().map(|c| (c.name.clone(), type_name(c))).collect(),
        rows: record.rows,
        shards: record.shards.len() as u64,
        bytes: record.shards.iter().map(|s| s.bytes).sum(),
    };
    Report {
        input_layout: manifest.input.layout.clone(),
        files: manifest.input.files.len() as u64,
        input_bytes,
        episodes_in: manifest.counts.episodes_in,
        steps_in: manifest.counts.steps_in,
        duplicates_dropped: manifest.counts.duplicates_dropped,
        discontinuities: manifest.counts.discontinuities,
        problems: manifest.problems.iter().map(problem).chain(manifest.notes.iter().cloned()).collect(),
        modules: IndexMap::from([(record.folder.clone(), module)]),
        repairs: manifest.repairs.clone(),
        seconds,
        output: job.output_path().display().to_string(),
    }
}
