//! A whole conversion: index the input, compile it unit by unit, write the shards, and the manifest last.

pub(crate) mod choose;
mod cutter;
mod output;
mod pass;
mod provenance;
mod reader;
mod record;
mod schedule;
mod split;
mod units;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use indexmap::IndexMap;
use rayon::prelude::*;

use output::{Output, Outputs};
use pass::{Conversion, Done, Findings, Found, Pass, Survey, Written};
use provenance::Provenance;
use reader::Reader;
pub use record::{ModuleReport, Report};
use record::{manifest, report};
use schedule::{Limits, Taker};
use units::Unit;

use crate::column::{DEFAULT_MODULE_ID, REWARDS, root};
use crate::connector::Connector;
use crate::episode::EpisodeLayout;
use crate::error::{Error, Result};
use crate::job::{Compat, Job, check_supported};
use crate::manifest::{InputFile, ModuleRecord, RunRecord};
use crate::pipeline::{self, ModulePlan, Pipeline, Surveys};
use crate::progress::{Progress, Totals};
use crate::sink::OutputDir;
use crate::source::index::Index;
use crate::source::{self, IndexOptions, Source, keys, recognise};

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
    let source = recognise::open_with(job, pipeline.reads_infos())?;
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
    index.notes.extend(pipeline::without_effect(&job.learner));
    let read_bytes = options
        .memory_limit
        .map_or(READ_BYTES, |limit| usize::try_from(limit / 4).unwrap_or(READ_BYTES).min(READ_BYTES));
    let limits = Limits { threads, read_bytes };
    let mut filtered_out = 0;
    if let Some(predicate) = &job.input.where_ {
        let returns = if choose::needs_returns(&index, predicate)? {
            // Nothing but rewards is looked at. Items of msgpack are decoded as a whole in any case.
            let all = source.rows_are_steps().then(|| index.narrow(&|column| root(column) == REWARDS));
            let returns = returns(&*source, &index, &pipeline, &modules, limits, progress)?;
            if let Some((layout, layouts)) = all {
                (index.layout, index.layouts) = (layout, layouts);
            }
            Some(returns)
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

    let (modules, basis) = match &job.output.split {
        Some(parts) => {
            let modules = split::split(parts, &modules, &mut index)?;
            index.notes.extend(split::empty_parts(parts, &index, &modules));
            let basis = split::Basis::new(parts, &pipeline, &index, &modules)?;
            (modules, Some(basis))
        }
        None => (modules, None),
    };

    if source.rows_are_steps() {
        index.narrow(&|column| modules.iter().any(|m| pipeline.reads(&m.settings, column)));
    }

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
        let Some(mut own) = pipeline.surveys(piece, &modules) else { continue };
        if let Some(basis) = &basis {
            basis.keep_its_own(&pipeline, piece, &mut own);
        }
        let survey = Survey { piece, own: &own };
        let work = Conversion::new(&*source, &index, &pipeline, &modules, &surveys, provenance, Pass::Survey(survey));
        let mut findings = Findings(Vec::new());
        read(&work, &mut findings, "surveying")?;
        let mut own = own;
        for (module, finding) in findings.0 {
            if let Some(survey) = &mut own[module] {
                survey.merge(finding).map_err(|e| pipeline.named(piece, e))?;
            }
        }
        let results = own.into_iter().map(|s| s.map(crate::connector::Survey::finish).transpose());
        surveys.set(piece, results.collect::<Result<_>>().map_err(|e| pipeline.named(piece, e))?);
        if let Some(basis) = &basis {
            basis.share(&pipeline, piece, &mut surveys);
        }
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
    manifest.connector_statistics = pipeline.statistics(&surveys, &modules);
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
