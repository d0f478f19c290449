//! What a run knows once the first pass is done. The passes over the data that follow are [`Passes`]; where the rows go
//! (shards, memory) is the caller's.

use std::path::Path;

use rayon::prelude::*;

use super::Options;
use super::budget::Budget;
use super::check;
use super::choose;
use super::output::Sizes;
use super::pass::Check;
use super::passes::{Passes, Work};
use super::provenance::Provenance;
use super::split;
use super::tables::{self, Storage};
use super::unused::unused;
use crate::column::{DEFAULT_MODULE_ID, REWARDS, root};
use crate::connector::Connector;
use crate::episode::EpisodeLayout;
use crate::error::{Error, Result};
use crate::job::{Compat, Job, OnBadEpisode, WindowStorage, check_supported};
use crate::manifest::InputFile;
use crate::pipeline::{self, ModulePlan, Pipeline};
use crate::progress::{Progress, Totals, go_on};
use crate::scratch::Scratch;
use crate::sink::{ShardSchema, check_folder};
use crate::source::faults::require_some;
use crate::source::index::Index;
use crate::source::{IndexOptions, Source, keys};
use crate::threads;

/// Input whose rows have been sorted out: which of them make up which episode.
pub(super) struct Indexed {
    pub source: Box<dyn Source>,
    pub pipeline: Pipeline,
    pub index: Index,
    /// The input files; their digests are empty if nobody asked for them.
    pub input_files: Vec<InputFile>,
    pub input_bytes: u64,
    pub threads: usize,
    pub budget: Budget,
    pub scratch: Scratch,
}

/// A job that is ready for its passes over the data.
pub(super) struct Prepared {
    pub source: Box<dyn Source>,
    pub pipeline: Pipeline,
    pub index: Index,
    /// The modules that the episodes go to, parts of a split one by one.
    pub modules: Vec<ModulePlan>,
    /// Which part of a split data set surveys are about.
    pub basis: Option<split::Basis>,
    pub provenance: Provenance,
    /// Episodes that `input.where` left out.
    pub filtered_out: u64,
    /// Their steps.
    pub filtered_steps: u64,
    pub budget: Budget,
    pub scratch: Scratch,
}

impl Indexed {
    /// Opens the input, checks the job against it, and passes over it for the first time.
    ///
    /// `first_look` comes between: what it refuses costs no pass over the data. Digests of the input are made where it
    /// says so. What does not fit into memory goes to a folder of the options', or near `scratch_near`.
    pub fn new(
        job: &Job,
        own: Vec<Box<dyn Connector>>,
        open: impl FnOnce(&Job, bool) -> Result<Box<dyn Source>>,
        first_look: impl FnOnce(&dyn Source) -> Result<bool>,
        scratch_near: &Path,
        options: &Options,
        progress: &dyn Progress,
    ) -> Result<Self> {
        if let Some(error) = check_supported(job).into_iter().next() {
            return Err(error);
        }
        let threads = threads::count(options.threads);
        let budget = Budget::new(options.memory_limit, threads)?;
        let scratch = scratch(options, scratch_near)?;
        let pipeline = Pipeline::with_own(&job.learner, own)?
            .with_obs_space(job.input.spaces.obs.clone())
            .with_indexed_windows(job.output.windows == WindowStorage::Indexed);
        let source = open(job, pipeline.reads_infos())?;
        // Before a terabyte is indexed: can the pipeline run on such columns at all?
        let peeked = source.peek()?;
        choose::check(job, &peeked)?;
        if !peeked.steps.is_empty() {
            let settings = job.rl_module.module(DEFAULT_MODULE_ID);
            let layout = pipeline.layout(&settings, &peeked).map_err(|e| source.explain(e, None))?;
            // Rows that are too large are told before they are read; where modules differ, with those of each.
            if job.rl_module.modules.is_empty() {
                super::output::schema(Vec::new(), &layout.columns, &job.output).check()?;
            }
        }
        let digest = first_look(&*source)?;

        let pool = threads::pool(budget.first_threads())?;
        let files = source.rows().files();
        let input_bytes: u64 = files.iter().map(|f| f.bytes).sum();
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
                || {
                    files
                        .par_iter()
                        .map(|f| if digest { go_on(progress).and_then(|()| f.digest()) } else { Ok(String::new()) })
                        .collect::<Vec<_>>()
                },
            )
        });
        let index = index?;
        require_some(&index)?;
        let dropped = index.oddities.dropped_unfinished_episodes;
        if dropped > 0 && index.entries.is_empty() {
            let what = format!("`unfinished = \"drop\"` leaves none of {} episodes", index.episode_ids);
            return Err(Error::data(what).job_key("input.unfinished").hint(
                "none of them ends terminated or truncated: \"keep\" or \"truncate\" takes them; or name the columns \
                       that say so, `[input] columns = { terminateds = \"...\", truncateds = \"...\" }`",
            ));
        }
        progress.end();
        let input_files = files
            .iter()
            .zip(digests)
            .map(|(f, digest)| Ok(InputFile { name: f.name.clone(), bytes: f.bytes, digest: digest?, rows: f.rows() }))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { source, pipeline, index, input_files, input_bytes, threads, budget, scratch })
    }

    /// Chooses among the episodes, and says what will come out for each module.
    pub fn prepare(self, job: &Job, progress: &dyn Progress) -> Result<Prepared> {
        let Self { source, pipeline, mut index, budget, scratch, .. } = self;
        let modules = plan_modules(job, &pipeline, &index).map_err(|e| source.explain(e, Some(&index)))?;
        index.notes.extend(pipeline::unread_outputs(&modules, &index.layouts));
        let without_effect = unused(job, &index);
        index.notes.extend(without_effect);
        index.notes.extend(pipeline::without_effect(&job.learner));
        index.notes.extend(pipeline::without_windows(job.output.windows, &modules));
        let wants = match &job.input.where_ {
            Some(predicate) => choose::needs_returns(&index, predicate)?,
            None => false,
        };
        // Where every episode is put together once to be checked, its rewards are added up on the way.
        let mut returns = None;
        if job.input.on_bad_episode != OnBadEpisode::Fail {
            let (source, pipeline, modules, scratch) = (&*source, &pipeline, &*modules, &scratch);
            let checker = check::Checker { source, pipeline, modules, scratch, progress };
            let check = Check { returns: wants, pieces: pipeline.alone(modules) };
            returns = Some(checker.check(&mut index, budget, check)?.returns);
            require_some(&index)?;
        } else if wants {
            // Nothing but rewards is looked at. Items of msgpack are decoded as a whole in any case.
            let all = source.rows_are_steps().then(|| index.narrow(&|column| root(column) == REWARDS));
            let (source, pipeline, modules, scratch) = (&*source, &pipeline, &*modules, &scratch);
            let work = Work { source, index: &index, pipeline, modules, scratch, progress, cuts: None, pieces: 0 };
            returns = Some(sums_of_rewards(&Passes::new(work, budget, Sizes::default())?.sort()?)?);
            if let Some((layout, layouts)) = all {
                (index.layout, index.layouts) = (layout, layouts);
            }
        }
        let (mut filtered_out, steps_before) = (0, index.steps());
        if let Some(predicate) = &job.input.where_ {
            filtered_out = choose::keep(&mut index, predicate, returns.as_deref().filter(|_| wants))?;
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
        Ok(Prepared {
            source,
            pipeline,
            index,
            modules,
            basis,
            provenance,
            filtered_out,
            filtered_steps,
            budget,
            scratch,
        })
    }
}

impl Prepared {
    /// Whether every module can have a folder, before any is made.
    ///
    /// # Errors
    /// If not, with the module.
    pub fn check_folders(&self) -> Result<()> {
        self.modules.iter().try_for_each(|module| check_folder(module.part.as_deref(), &module.id))
    }

    /// The columns of every module's rows; and behind those the columns of every module's tables, in order.
    ///
    /// # Errors
    /// If they are more than a file can hold.
    pub fn schemas(&self, job: &Job) -> Result<Vec<ShardSchema>> {
        let texts = self.provenance.texts(&self.index);
        tables::schemas(&self.modules, &storage(&self.modules)?, self.provenance, &texts, &job.output)
    }

    /// What the passes over the data need.
    pub fn work<'a>(&'a self, progress: &'a dyn Progress) -> Work<'a> {
        Work {
            source: &*self.source,
            index: &self.index,
            pipeline: &self.pipeline,
            modules: &self.modules,
            scratch: &self.scratch,
            progress,
            cuts: None,
            pieces: self.pipeline.len(),
        }
    }
}

/// How each module's batch is stored.
///
/// # Errors
/// Those of [`Storage::of`].
pub(super) fn storage(modules: &[ModulePlan]) -> Result<Vec<Storage>> {
    modules.iter().map(|module| Storage::of(&module.layout.columns)).collect()
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
fn sums_of_rewards(passes: &Passes<'_>) -> Result<Vec<f64>> {
    let at = passes.index.by_ordinal();
    let mut out = vec![0.0; passes.index.entries.len()];
    passes.returns(|ordinal, sum| {
        sum.add_to(&mut out[at(ordinal)?]);
        Ok(())
    })?;
    Ok(out)
}

/// Rows before a chunk's first step that any module's pieces look at.
fn look_back(job: &Job, pipeline: &Pipeline) -> usize {
    let of = |id: &str| pipeline.look_back(&job.rl_module.module(id));
    job.rl_module.modules.keys().map(|id| of(id)).chain([of(DEFAULT_MODULE_ID)]).max().unwrap_or(0)
}

/// The modules that the episodes go to, and what will come out for each.
pub(crate) fn plan_modules(job: &Job, pipeline: &Pipeline, index: &Index) -> Result<Vec<ModulePlan>> {
    let plan = |(id, episodes): (&String, &EpisodeLayout)| {
        let settings = job.rl_module.module(id);
        let layout = pipeline.layout(&settings, episodes)?;
        Ok(ModulePlan { part: None, id: id.clone(), settings, layout })
    };
    index.modules.iter().zip(&index.layouts).map(plan).collect()
}
