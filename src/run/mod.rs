//! A whole conversion: index the input, compile it unit by unit, write the shards, and the manifest last.

mod budget;
mod check;
pub(crate) mod choose;
mod cutter;
mod exchange;
mod output;
pub(crate) mod overview;
mod pass;
mod passes;
mod provenance;
mod quarantine;
mod reader;
mod record;
mod schedule;
mod shuffle;
mod split;
mod units;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use indexmap::IndexMap;
use rayon::prelude::*;

use budget::Budget;
pub use budget::SMALLEST as SMALLEST_MEMORY_LIMIT;
use output::{Output, Outputs, Sizes};
use pass::{Found, Pass, Written};
use passes::{Passes, Work};
use provenance::Provenance;
pub use record::{ModuleReport, Report};
use record::{manifest, report};
use shuffle::Shuffle;

use crate::column::{DEFAULT_MODULE_ID, REWARDS, root};
use crate::connector::Connector;
use crate::episode::EpisodeLayout;
use crate::error::{Error, Result};
use crate::job::{Compat, Job, OnBadEpisode, check_supported};
use crate::manifest::{InputFile, Manifest, ModuleRecord, RunRecord};
use crate::pipeline::{self, ModulePlan, Pipeline};
use crate::progress::{Progress, Totals};
use crate::scratch::Scratch;
use crate::sink::{Existing, Intent, IntentFile, OutputDir, ShardSchema};
use crate::source::index::Index;
use crate::source::{self, IndexOptions, keys, recognise};

/// What changes how a run goes, and not a byte of what it writes.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Worker threads; all cores when not set.
    pub threads: Option<usize>,
    /// Bytes of memory to stay under, at least [`SMALLEST_MEMORY_LIMIT`]; a quarter of the machine's (or of what its
    /// control group allows) when not set. What does not fit goes to `scratch`.
    pub memory_limit: Option<u64>,
    /// An existing folder for what does not fit into memory. When not set, the output directory, or the nearest folder
    /// above it that exists: where shards fit, and never a file system that is memory itself, as `/tmp` may be.
    pub scratch: Option<PathBuf>,
    /// What to do with what is in the output directory.
    pub existing: Existing,
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
    let budget = Budget::new(options.memory_limit, threads)?;
    let scratch = scratch(options, &job.output_path())?;
    let pipeline = Pipeline::with_own(&job.learner, own)?.with_obs_space(job.input.spaces.obs.clone());
    let source = recognise::open_with(job, pipeline.reads_infos())?;
    // Before a terabyte is indexed: can the pipeline run on such columns at all?
    let peeked = source.peek()?;
    choose::check(job, &peeked)?;
    if !peeked.steps.is_empty() {
        pipeline.layout(&job.rl_module.module(DEFAULT_MODULE_ID), &peeked)?;
    }
    keep_input(&job.output_path(), source.rows().files())?;
    OutputDir::check(&job.output_path(), options.existing)?;

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
        memory: budget.first_pass(),
        tolerant: job.input.on_bad_episode != OnBadEpisode::Fail,
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
    let files = source.rows().files();
    let input_files = files
        .iter()
        .zip(digests)
        .map(|(f, digest)| Ok(InputFile { name: f.name.clone(), bytes: f.bytes, digest: digest?, rows: f.rows() }))
        .collect::<Result<Vec<_>>>()?;
    if options.existing == Existing::Resume
        && let Some(report) = finished(job, &pipeline, &input_files, input_bytes, started)?
    {
        return Ok(report);
    }

    let modules = plan_modules(job, &pipeline, &index)?;
    index.notes.extend(unused_modules(job, &index));
    index.notes.extend(pipeline::without_effect(&job.learner));
    if index_options.tolerant {
        let checker =
            check::Checker { source: &*source, pipeline: &pipeline, modules: &modules, scratch: &scratch, progress };
        checker.check(&mut index, budget, false)?;
    }
    let (mut filtered_out, steps_before) = (0, index.steps());
    if let Some(predicate) = &job.input.where_ {
        let returns = if choose::needs_returns(&index, predicate)? {
            // Nothing but rewards is looked at. Items of msgpack are decoded as a whole in any case.
            let all = source.rows_are_steps().then(|| index.narrow(&|column| root(column) == REWARDS));
            let work = Work {
                source: &*source,
                index: &index,
                pipeline: &pipeline,
                modules: &modules,
                scratch: &scratch,
                progress,
            };
            let returns = returns(&Passes::new(work, budget, Sizes::default())?.sort()?)?;
            if let Some((layout, layouts)) = all {
                (index.layout, index.layouts) = (layout, layouts);
            }
            Some(returns)
        } else {
            None
        };
        filtered_out = choose::keep(&mut index, predicate, returns.as_deref())?;
    }
    let filtered_steps = steps_before - index.steps();
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

    let provenance = Provenance::of(&index);
    let schemas: Vec<ShardSchema> =
        modules.iter().map(|m| output::schema(provenance.columns(), &m.layout.columns, &job.output)).collect();
    schemas.iter().try_for_each(ShardSchema::check)?;
    let sizes = Sizes::of(&schemas, &job.output);
    let work =
        Work { source: &*source, index: &index, pipeline: &pipeline, modules: &modules, scratch: &scratch, progress };
    let passes = Passes::new(work, budget, sizes)?;

    let shuffles: Vec<Shuffle> = match &job.output.shuffle {
        Some(shuffle) => passes.shuffles(shuffle.seed, &schemas),
        None => Vec::new(),
    };

    let room = passes.room_of(modules.len());

    // As late as can be: whatever the first pass refuses leaves an older data set as it was.
    let mut dir = OutputDir::prepare(&job.output_path(), options.existing)?;
    let inputs =
        input_files.iter().map(|f| IntentFile { name: f.name.clone(), bytes: f.bytes, digest: f.digest.clone() });
    let intent = Intent::new(job.to_portable_json(), pipeline.described(), inputs.collect());
    let (journal, kept) = dir.journal(&intent)?;
    let journal = Arc::new(journal);
    let outputs = || {
        let mut streams = Vec::with_capacity(modules.len());
        for (stream, (module, schema)) in modules.iter().zip(&schemas).enumerate() {
            let folder = dir.module_dir(module.part.as_deref(), &module.id)?;
            let columns = &module.layout.columns;
            let journal = Arc::clone(&journal);
            let output = Output::new(stream, folder, schema.clone(), columns, &job.output, journal, &kept)?;
            streams.push(match shuffles.get(stream) {
                Some(shuffle) => output.shuffled(*shuffle, room.clone()),
                None => output,
            });
        }
        Ok::<_, Error>(Outputs::new(streams))
    };
    let passes = passes.sort()?;
    let mut rehearsed = IndexMap::new();
    let surveys = passes.survey(basis.as_ref(), &mut rehearsed)?;
    let fresh = || {
        // Shards of a start that did not come through.
        dir.clear(&kept)?;
        Ok(Written { outputs: outputs()?, found: Found::default() })
    };
    let Written { outputs, found } =
        passes.run(Pass::Convert(&shuffles), &surveys, &mut rehearsed, "converting", fresh)?;

    let records: IndexMap<String, ModuleRecord> = modules.iter().map(ModulePlan::name).zip(outputs.finish()?).collect();
    let quarantine = match job.input.on_bad_episode {
        OnBadEpisode::Quarantine => quarantine::write(&dir, source.rows(), &index.faults)?,
        OnBadEpisode::Skip | OnBadEpisode::Fail => Vec::new(),
    };
    let mut manifest = manifest(job, &pipeline, &*source, &index, &found, records, input_files);
    manifest.quarantine = quarantine;
    (manifest.counts.filtered_out, manifest.counts.filtered_steps) = (filtered_out, filtered_steps);
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
        extra: IndexMap::from([
            ("memory_limit".to_owned(), budget.limit().into()),
            ("scratch_bytes".to_owned(), passes.exchanged.into()),
            ("rehearsals".to_owned(), rehearsed.len().into()),
        ]),
    };
    dir.finish(&manifest, &run)?;
    Ok(report)
}

/// The report of a data set that is finished already: a run that was stopped behind its last byte has nothing to go on with.
///
/// # Errors
/// If the data set is another job's or another input's.
fn finished(
    job: &Job,
    pipeline: &Pipeline,
    inputs: &[InputFile],
    input_bytes: u64,
    started: Instant,
) -> Result<Option<Report>> {
    let path = job.output_path();
    if OutputDir::is_unfinished(&path)? || !path.join(crate::sink::MANIFEST).exists() {
        return Ok(None);
    }
    let manifest = Manifest::load(&path)?;
    let same = manifest.job == job.to_portable_json()
        && manifest.pipeline == pipeline.described()
        && manifest.input.files == inputs
        && manifest.gristmill == env!("CARGO_PKG_VERSION");
    if !same {
        return Err(Error::usage(
            "found a finished data set of another job, input or version, expected an unfinished one",
        )
        .file(path.display().to_string())
        .hint("--overwrite replaces it; or choose another --output"));
    }
    Ok(Some(report(job, &manifest, input_bytes, started.elapsed().as_secs_f64())))
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

/// The folder for what does not fit into memory.
fn scratch(options: &Options, output: &Path) -> Result<Scratch> {
    match &options.scratch {
        Some(dir) if !dir.is_dir() => Err(Error::usage("found no such folder, expected one for scratch files")
            .file(dir.display().to_string())
            .hint("create it, or choose another --scratch")),
        dir => Ok(Scratch::new(dir.as_deref().unwrap_or(output))),
    }
}

/// The sum of each entry's rewards.
fn returns(passes: &Passes<'_>) -> Result<Vec<f64>> {
    let entries = &passes.index.entries;
    let place: HashMap<u32, usize> = entries.iter().enumerate().map(|(i, e)| (e.ordinal, i)).collect();
    let mut out = vec![0.0; entries.len()];
    passes.returns(|ordinal, sum| {
        let at = place.get(&ordinal).ok_or_else(|| Error::internal("an episode that the index lacks"))?;
        out[*at] = sum;
        Ok(())
    })?;
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
