//! A whole conversion: index the input, compile it unit by unit, write the shards, and the manifest last.

pub(crate) mod choose;
mod cutter;
mod output;
mod provenance;
mod reader;
mod schedule;
pub(crate) mod split;
mod units;

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use indexmap::IndexMap;
use rayon::prelude::*;
use serde::Serialize;

use cutter::{Cut, Rows};
use output::{Encoded, ModuleEncoder, Output, Outputs};
use provenance::Provenance;
use reader::{Delivery, ReadTask, Reader};
use schedule::{Limits, Taker, Work};
use units::Unit;

use crate::batch::ModuleBatch;
use crate::column::DEFAULT_MODULE_ID;
use crate::connector::{Connector, Finding, ModuleUnit, Ordered, Repairs};
use crate::episode::EpisodeLayout;
use crate::error::{Error, Result};
use crate::job::{Compat, Job, check_supported};
use crate::manifest::{Counts, FORMAT_VERSION, InputFile, InputRecord, Manifest, ModuleRecord, Problem, RunRecord};
use crate::pipeline::{ModulePlan, Pipeline, Segment, Surveys, keeps_promise};
use crate::progress::{Progress, Totals};
use crate::sink::{ColumnData, OutputDir, combine};
use crate::source::blocks::Blocks;
use crate::source::index::{Entry, Index};
use crate::source::{self, IndexOptions, Noticed, Source, keys, recognise};

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
    /// Episodes read; chunks of one, and agents of one, are counted one by one.
    pub episodes_in: u64,
    /// Ids of episodes read.
    pub episode_ids: u64,
    /// Steps read.
    pub steps_in: u64,
    /// Episodes or chunks left out because they were recorded twice.
    pub duplicates_dropped: u64,
    /// Episodes or chunks that `input.where` left out.
    pub filtered_out: u64,
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
    convert_with(job, Vec::new(), options, progress)
}

/// The same with connector pieces of the caller's own, in front of the job's.
///
/// # Errors
/// See [`convert`].
pub fn convert_with(
    job: &Job,
    own: Vec<Box<dyn Connector>>,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report> {
    let started = Instant::now();
    if let Some(error) = check_supported(job).into_iter().next() {
        return Err(error);
    }
    let threads = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into)).max(1);
    let pipeline = Pipeline::with_own(&job.learner, own)?.with_obs_space(job.input.spaces.obs.clone());
    let source = recognise::open(job)?;
    // Before a terabyte is indexed: can the pipeline run on such columns at all?
    let peeked = source.peek()?;
    choose::check(job, &peeked)?;
    if !peeked.steps.is_empty() {
        pipeline.layout(&job.rl_module.module(DEFAULT_MODULE_ID), &peeked)?;
    }
    keep_input(&job.output_path(), source.rows().files())?;
    OutputDir::check(&job.output_path(), options.overwrite)?;

    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|e| Error::environment(format!("cannot start {threads} threads: {e}")))?;
    let input_bytes: u64 = source.rows().files().iter().map(|f| f.bytes).sum();
    progress.begin("looking for episodes", Totals { bytes: Some(input_bytes), ..Totals::default() });
    let index_options = IndexOptions {
        duplicates: job.input.duplicates,
        unfinished: job.input.unfinished,
        compat: job.learner.compat,
        look_back: look_back(job, &pipeline),
        agent_to_module: &job.multi_agent.agent_to_module,
    };
    let (index, digests) = pool.install(|| {
        rayon::join(
            || source.index(index_options, progress),
            || source.rows().files().par_iter().map(|f| f.digest()).collect::<Vec<_>>(),
        )
    });
    let mut index = index?;
    progress.end();

    let modules = plan_modules(job, &pipeline, &index)?;
    index.notes.extend(unused_modules(job, &index));
    let read_bytes = options
        .memory_limit
        .map_or(READ_BYTES, |limit| usize::try_from(limit / 4).unwrap_or(READ_BYTES).min(READ_BYTES));
    let limits = Limits { threads, read_bytes };
    let mut filtered_out = 0;
    if let Some(predicate) = &job.input.where_ {
        let returns = if choose::needs_returns(&index, predicate)? {
            Some(returns(&*source, &index, &pipeline, &modules, limits, progress)?)
        } else {
            None
        };
        filtered_out = choose::keep(&mut index, predicate, returns.as_deref())?;
    }
    if job.learner.compat == Compat::Rllib260
        && let Some(first) = modules.first()
    {
        let seq_len = |m: usize| modules[m].layout.seq_len();
        keys::order(&mut index.entries, Pipeline::keys(&first.layout, index.multi_agent), &seq_len)?;
    }

    let modules = match &job.output.split {
        Some(parts) => split::split(parts, &pipeline, &modules, &mut index)?,
        None => modules,
    };

    // As late as can be: whatever the first pass refuses leaves an older data set as it was.
    let dir = OutputDir::prepare(&job.output_path(), options.overwrite)?;
    let provenance = Provenance::of(&index);
    let mut streams = Vec::with_capacity(modules.len());
    for (stream, module) in modules.iter().enumerate() {
        let folder = dir.module_dir(module.part.as_deref(), &module.id)?;
        streams.push(Output::new(stream, folder, provenance.columns(), &module.layout.columns, &job.output)?);
    }

    let units = units_of(&index, &modules);
    let read = |work: &Conversion<'_>, taker: &mut dyn Taker<Done>, phase: &str| {
        let totals = Totals { episodes: Some(index.entries.len() as u64), steps: Some(index.steps()), bytes: None };
        progress.begin(phase, totals);
        let reader = Reader::new(source.rows().groups().to_vec(), threads);
        let result = schedule::run(work, reader, &units, taker, limits, progress);
        let result = result.map_err(|e| name_episode(e, &*source, &index));
        progress.end();
        result
    };

    // A pass of its own for each piece that must know the whole data set before it can start.
    let mut surveys = Surveys::default();
    for piece in 0..pipeline.len() {
        let Some(own) = pipeline.surveys(piece, &modules) else { continue };
        let survey = Survey { piece, own: &own };
        let work = Conversion::new(&*source, &index, &pipeline, &modules, &surveys, provenance, Pass::Survey(survey));
        let mut findings = Findings(Vec::new());
        read(&work, &mut findings, "surveying")?;
        let mut own = own;
        for (module, finding) in findings.0 {
            if let Some(survey) = &mut own[module] {
                survey.merge(finding)?;
            }
        }
        let results =
            own.into_iter().map(|s| s.map(crate::connector::Survey::finish).transpose()).collect::<Result<_>>()?;
        surveys.set(piece, results);
    }

    let work = Conversion::new(&*source, &index, &pipeline, &modules, &surveys, provenance, Pass::Convert);
    let mut written = Written { outputs: Outputs::new(streams), found: Found::default() };
    read(&work, &mut written, "converting")?;
    let Written { outputs, found } = written;

    let records: IndexMap<String, ModuleRecord> = modules.iter().map(ModulePlan::name).zip(outputs.finish()?).collect();
    let files = source.rows().files();
    let input_files = files
        .iter()
        .zip(digests)
        .map(|(f, digest)| Ok(InputFile { name: f.name.clone(), bytes: f.bytes, digest: digest?, rows: f.rows() }))
        .collect::<Result<Vec<_>>>()?;
    let mut manifest = manifest(job, &pipeline, &*source, &index, &found, records, input_files);
    manifest.counts.filtered_out = filtered_out;
    let seconds = started.elapsed().as_secs_f64();
    let report = Report { episode_ids: index.episode_ids, ..report(job, &manifest, input_bytes, seconds) };
    let per_second = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
    let run = RunRecord {
        gristmill: env!("CARGO_PKG_VERSION").to_owned(),
        wall_seconds: seconds,
        steps_per_second: per_second(manifest.counts.steps_out),
        bytes_per_second: per_second(input_bytes),
        input_bytes,
        output_bytes: report.modules.values().map(|m| m.bytes).sum(),
        threads,
        extra: IndexMap::new(),
    };
    dir.finish(&manifest, &run)?;
    Ok(report)
}

/// Refuses to write to where the input is: replacing a data set that is being read would lose both.
fn keep_input(output: &Path, files: &[Arc<source::file::InputFile>]) -> Result<()> {
    // What does not exist yet holds nothing.
    let Ok(output_dir) = std::fs::canonicalize(output) else { return Ok(()) };
    let inside = |f: &&Arc<source::file::InputFile>| f.path.canonicalize().is_ok_and(|p| p.starts_with(&output_dir));
    match files.iter().find(inside) {
        Some(file) => {
            Err(Error::usage(format!("found the input file inside the output directory {}", output.display()))
                .file(file.name.clone())
                .hint("choose an --output beside the input, or an input without it"))
        }
        None => Ok(()),
    }
}

/// Decoders know the row that they stumbled over; whose it is, the index knows.
fn name_episode(error: Error, source: &dyn Source, index: &Index) -> Error {
    let row = source.rows().row_of(&error);
    match row.and_then(|row| index.episode_of(row, source.rows_are_steps())) {
        Some((id, Some(t))) => error.episode(id.to_string()).t(t),
        Some((id, None)) => error.episode(id.to_string()),
        None => error,
    }
}

/// Units by what a step takes, in or out.
fn units_of(index: &Index, modules: &[ModulePlan]) -> Vec<Unit> {
    let step_bytes: usize = index.layout.steps.iter().map(|(_, ty)| ty.row_bytes()).sum();
    let step_bytes = modules.iter().map(|m| m.layout.step_bytes()).fold(step_bytes, usize::max);
    units::cut(index, step_bytes, UNIT_BYTES)
}

/// The sum of each entry's rewards: a pass over the data with no pieces.
fn returns(
    source: &dyn Source,
    index: &Index,
    pipeline: &Pipeline,
    modules: &[ModulePlan],
    limits: Limits,
    progress: &dyn Progress,
) -> Result<Vec<f64>> {
    let surveys = Surveys::default();
    let provenance = Provenance::of(index);
    let pass = Pass::Returns;
    let work = Conversion::new(source, index, pipeline, modules, &surveys, provenance, pass);
    let totals = Totals { episodes: Some(index.entries.len() as u64), steps: Some(index.steps()), bytes: None };
    progress.begin("choosing episodes", totals);
    let reader = Reader::new(source.rows().groups().to_vec(), limits.threads);
    let mut findings = Findings(Vec::new());
    schedule::run(&work, reader, &units_of(index, modules), &mut findings, limits, progress)?;
    progress.end();
    let place: HashMap<u32, usize> = index.entries.iter().enumerate().map(|(i, e)| (e.ordinal, i)).collect();
    let mut out = vec![0.0; index.entries.len()];
    for (_, finding) in findings.0 {
        let sums = finding.downcast::<Vec<(u32, f64)>>().map_err(|_| Error::internal("a finding of another pass"))?;
        for (ordinal, sum) in *sums {
            let at = place.get(&ordinal).ok_or_else(|| Error::internal("an episode that the index lacks"))?;
            out[*at] = sum;
        }
    }
    Ok(out)
}

/// Rows before a chunk's first step that any module's pieces look at.
fn look_back(job: &Job, pipeline: &Pipeline) -> usize {
    let of = |id: &str| pipeline.look_back(&job.rl_module.module(id));
    job.rl_module.modules.keys().map(|id| of(id)).chain([of(DEFAULT_MODULE_ID)]).max().unwrap_or(0)
}

/// What the job says of modules that no row goes to: a misspelt id would otherwise have no effect and no word.
fn unused_modules(job: &Job, index: &Index) -> Vec<String> {
    let there = index.modules.join(", ");
    let unknown = |id: &&String| !index.modules.contains(id);
    let settings = job.rl_module.modules.keys().filter(unknown).map(|id| format!("[rl_module.modules.{id}]"));
    let rules = job.multi_agent.agent_to_module.iter().filter(|(_, id)| unknown(id));
    let rules = rules.map(|(pattern, id)| format!("the rule {pattern:?} = {id:?}"));
    settings.chain(rules).map(|what| format!("{what} has no effect: the data go to {there}")).collect()
}

/// The modules that the episodes go to, and what will come out for each.
fn plan_modules(job: &Job, pipeline: &Pipeline, index: &Index) -> Result<Vec<ModulePlan>> {
    let plan = |(id, episodes): (&String, &EpisodeLayout)| {
        let settings = job.rl_module.module(id);
        let layout = pipeline.layout(&settings, episodes)?;
        Ok(ModulePlan { part: None, id: id.clone(), settings, layout })
    };
    index.modules.iter().zip(&index.layouts).map(plan).collect()
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

/// A survey that a pass over the data is for.
#[derive(Clone, Copy)]
struct Survey<'a> {
    piece: usize,
    own: &'a [Option<Box<dyn crate::connector::Survey>>],
}

/// What a pass over the data is for.
#[derive(Clone, Copy)]
enum Pass<'a> {
    /// The sums of rewards.
    Returns,
    /// What a piece must know beforehand.
    Survey(Survey<'a>),
    /// The batch.
    Convert,
}

/// One pass over the data of one job.
struct Conversion<'a> {
    source: &'a dyn Source,
    index: &'a Index,
    pipeline: &'a Pipeline,
    modules: &'a [ModulePlan],
    surveys: &'a Surveys,
    provenance: Provenance,
    pass: Pass<'a>,
    segments: Vec<Segment>,
}

/// A unit on its way.
struct State {
    unit: Vec<ModuleUnit>,
    found: Found,
}

/// What a unit brings in the end.
struct Done {
    rows: Vec<(usize, Rows)>,
    findings: Vec<(usize, Finding)>,
    found: Found,
}

impl<'a> Conversion<'a> {
    fn new(
        source: &'a dyn Source,
        index: &'a Index,
        pipeline: &'a Pipeline,
        modules: &'a [ModulePlan],
        surveys: &'a Surveys,
        provenance: Provenance,
        pass: Pass<'a>,
    ) -> Self {
        let segments = pipeline.segments(match pass {
            Pass::Returns => 0,
            Pass::Survey(survey) => survey.piece,
            Pass::Convert => pipeline.len(),
        });
        Self { source, index, pipeline, modules, surveys, provenance, pass, segments }
    }
}

impl Work for Conversion<'_> {
    type State = State;
    type Done = Done;

    fn read(&self, task: ReadTask) -> Delivery {
        let mut decoder = match task.decoder {
            Some(decoder) => decoder,
            None => self.source.read(task.group, &self.index.layout, BLOCK_BYTES)?,
        };
        let block = decoder.next().transpose()?;
        Ok((decoder, block))
    }

    fn begin(&self, unit: &Unit, blocks: &Blocks) -> Result<State> {
        let mut found = Found::default();
        let entries = &self.index.entries[unit.entries.clone()];
        let mut shares = Vec::new();
        for module in 0..self.modules.len() {
            let own: Vec<&Entry> = entries.iter().filter(|e| e.module as usize == module).collect();
            if own.is_empty() {
                continue;
            }
            let episodes = self.source.assemble(self.index, &own, blocks, &mut found.noticed)?;
            found.episodes_out += episodes.lengths().filter(|&len| len > 0).count() as u64;
            found.steps_out += episodes.steps_len() as u64;
            shares.push(ModuleUnit { module, episodes, batch: ModuleBatch::default() });
        }
        Ok(State { unit: shares, found })
    }

    fn segments(&self) -> &[Segment] {
        &self.segments
    }

    fn start_ordered(&self, piece: usize) -> Result<Box<dyn Ordered>> {
        self.pipeline.start_ordered(piece)
    }

    fn free(&self, pieces: Range<usize>, number: usize, state: &mut State) -> Result<()> {
        self.pipeline.apply(pieces, self.modules, self.surveys, number, &mut state.unit, &mut state.found.repairs)
    }

    fn ordered(&self, piece: usize, machine: &mut dyn Ordered, state: &mut State) -> Result<()> {
        self.pipeline.apply_ordered(piece, machine, &mut state.unit, &mut state.found.repairs)
    }

    fn end(&self, number: usize, state: State) -> Result<Done> {
        let State { unit, mut found } = state;
        let findings = match self.pass {
            Pass::Returns => unit.iter().map(sums_of_rewards).collect::<Result<Vec<_>>>()?,
            Pass::Survey(Survey { piece, own }) => self.pipeline.observe(piece, own, self.modules, number, &unit)?,
            Pass::Convert => Vec::new(),
        };
        if !matches!(self.pass, Pass::Convert) {
            return Ok(Done { rows: Vec::new(), findings, found });
        }
        let mut all = Vec::with_capacity(unit.len());
        for share in unit {
            let module = &self.modules[share.module];
            keeps_promise(&module.layout, &share.batch)?;
            found.pipeline_steps_out += share.episodes.steps_len() as u64;
            let windows = share.batch.windows().map(|w| &**w);
            let mut columns = self.provenance.values(&share.episodes, windows)?;
            columns.extend(share.batch.into_columns().into_iter().map(|(_, t)| ColumnData::Tensor(t)));
            let rows = columns.first().map_or(0, ColumnData::rows);
            all.push((share.module, Rows { rows, columns }));
        }
        Ok(Done { rows: all, findings: Vec::new(), found })
    }
}

/// The sum of each chunk's rewards, by the chunk's ordinal.
fn sums_of_rewards(share: &ModuleUnit) -> Result<(usize, Finding)> {
    let sums = share.episodes.returns()?;
    let by_ordinal: Vec<(u32, f64)> = share.episodes.chunks.iter().map(|c| c.ordinal).zip(sums).collect();
    Ok((share.module, Box::new(by_ordinal)))
}

/// Writes what units bring.
struct Written {
    outputs: Outputs,
    found: Found,
}

impl Taker<Done> for Written {
    fn take(&mut self, done: Done) -> Result<()> {
        self.found.merge(&done.found);
        for (stream, rows) in done.rows {
            self.outputs.push(stream, rows);
        }
        Ok(())
    }

    fn cut(&mut self, flush: bool) -> Option<Cut> {
        self.outputs.cut(flush)
    }

    fn encoder(&self, cut: &Cut) -> Arc<ModuleEncoder> {
        self.outputs.encoder(cut)
    }

    fn append(&mut self, encoded: Encoded) -> Result<()> {
        self.outputs.append(encoded)
    }
}

/// Collects what a survey found, in order.
struct Findings(Vec<(usize, Finding)>);

impl Taker<Done> for Findings {
    fn take(&mut self, done: Done) -> Result<()> {
        self.0.extend(done.findings);
        Ok(())
    }

    fn cut(&mut self, _: bool) -> Option<Cut> {
        None
    }

    fn encoder(&self, _: &Cut) -> Arc<ModuleEncoder> {
        unreachable!("a survey cuts nothing")
    }

    fn append(&mut self, _: Encoded) -> Result<()> {
        Ok(())
    }
}

fn manifest(
    job: &Job,
    pipeline: &Pipeline,
    source: &dyn Source,
    index: &Index,
    found: &Found,
    modules: IndexMap<String, ModuleRecord>,
    files: Vec<InputFile>,
) -> Manifest {
    let odd = &index.oddities;
    let mut problems = Vec::new();
    let mut problem = |count: u64, what: &str, first: Option<String>| {
        if count > 0 {
            problems.push(Problem { what: what.to_owned(), count, first });
        }
    };
    let place = |row: Option<u64>| row.map(|row| source.rows().describe(row));
    let either = |count: u64, one: &'static str, more: &'static str| if count == 1 { one } else { more };
    let (rows, episodes) = (odd.duplicate_rows, odd.duplicate_episodes);
    let steps = either(rows, "step recorded twice was dropped", "steps recorded twice were dropped");
    let of = either(episodes, "episode", "episodes");
    problem(rows, &format!("{steps}, of {episodes} {of}"), place(odd.first_duplicate));
    let seams = found.noticed.discontinuities;
    let what = either(seams, "step has", "steps have");
    let what = format!("{what} an `obs` that is not the `new_obs` of the step before");
    problem(seams, &what, place(found.noticed.first_discontinuity));
    let empty = odd.empty_episodes;
    problem(empty, either(empty, "episode without a step yields no row", "episodes without a step yield no row"), None);
    let open = odd.unfinished_episodes;
    let what = either(open, "episode ends", "episodes end");
    problem(open, &format!("{what} neither terminated nor truncated"), None);
    let dropped = odd.dropped_unfinished_episodes;
    problem(
        dropped,
        either(dropped, "of these was dropped, as the job says", "of these were dropped, as the job says"),
        None,
    );
    let mut notes = source.notes().to_vec();
    notes.extend(index.notes.iter().cloned());
    notes.extend(files.iter().zip(source.rows().files()).filter_map(|(_, f)| f.note.clone()));
    let counts = Counts {
        episodes_in: index.episodes_read,
        steps_in: index.steps_read,
        episodes_out: found.episodes_out,
        steps_out: found.steps_out,
        rows_out: modules.values().map(|m| m.rows).sum(),
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
        pipeline: pipeline.described(),
        input: InputRecord { layout: source.recognised().to_owned(), files },
        counts,
        repairs: found.repairs.sorted().into_iter().map(|(n, rows)| (n.to_owned(), rows)).collect(),
        problems,
        notes,
        content_digest: combine(modules.iter().map(|(id, m)| (id.as_str(), m.digest.as_str()))),
        modules,
    }
}

fn report(job: &Job, manifest: &Manifest, input_bytes: u64, seconds: f64) -> Report {
    let problem = |p: &Problem| match &p.first {
        Some(first) => format!("{} {} (first: {first})", p.count, p.what),
        None => format!("{} {}", p.count, p.what),
    };
    let type_name = |c: &crate::manifest::ColumnRecord| match c.shape.as_slice() {
        [] => c.dtype.clone(),
        shape => format!("{}{shape:?}", c.dtype),
    };
    let module = |record: &ModuleRecord| ModuleReport {
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
        episode_ids: manifest.counts.episodes_in,
        steps_in: manifest.counts.steps_in,
        duplicates_dropped: manifest.counts.duplicates_dropped,
        filtered_out: manifest.counts.filtered_out,
        discontinuities: manifest.counts.discontinuities,
        problems: manifest.problems.iter().map(problem).chain(manifest.notes.iter().cloned()).collect(),
        modules: manifest.modules.values().map(|m| (m.folder.clone(), module(m))).collect(),
        repairs: manifest.repairs.clone(),
        seconds,
        output: job.output_path().display().to_string(),
    }
}
