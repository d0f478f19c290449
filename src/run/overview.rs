//! What a recording holds, episode by episode: for `inspect`. The first pass and the check pass, and no piece.

use std::path::Path;

use super::budget::Budget;
use super::check::Checker;
use super::choose;
use super::pass::Check;
use super::prepare::plan_modules;
use crate::column::REWARDS;
use crate::connector::Piece;
use crate::connectors::{AddObservationsFromEpisodesToBatch, BatchIndividualItems};
use crate::error::{Error, Result};
use crate::job::{Job, Learner, RlModule};
use crate::pipeline::Pipeline;
use crate::progress::{Progress, Totals};
use crate::scratch::Scratch;
use crate::source::index::Index;
use crate::source::{IndexOptions, Noticed, Source, Tally};

/// A recording, read once.
#[derive(Debug)]
pub(crate) struct Overview {
    /// Its episodes, without the malformed ones, which are the index's faults.
    pub index: Index,
    /// What was odd in their values.
    pub noticed: Noticed,
    /// Rewards that are NaN or infinite, where rewards are numbers.
    pub not_finite: Tally,
    /// Episodes with their chunks joined.
    pub episodes: Vec<Episode>,
}

/// One episode (of one agent), its chunks joined.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Episode {
    /// Steps.
    pub length: u64,
    /// Sum of rewards, where these are numbers.
    pub total: Option<f64>,
    /// How its last chunk ended.
    pub terminated: bool,
    /// How its last chunk ended.
    pub truncated: bool,
    last_t: i64,
}

/// Reads all of `source`, leaving malformed episodes out.
///
/// # Errors
/// If what the files hold cannot be told apart at all.
pub(crate) fn overview(job: &Job, source: &dyn Source, threads: usize, progress: &dyn Progress) -> Result<Overview> {
    // A pipeline has pieces; these are planned and never run.
    let piece = |name: &str| {
        serde_json::from_value(serde_json::json!({ "type": name }))
            .map_err(|e| Error::internal(format!("a piece without options: {e}")))
    };
    let connectors = vec![piece(AddObservationsFromEpisodesToBatch::NAME)?, piece(BatchIndividualItems::NAME)?];
    let learner = Learner { add_default_connectors_to_learner_pipeline: false, connectors, ..Learner::default() };
    let job = Job { learner, rl_module: RlModule::default(), ..job.clone() };
    let pipeline = Pipeline::new(&job.learner)?;
    let budget = Budget::new(None, threads)?;
    let options = IndexOptions {
        duplicates: job.input.duplicates,
        unfinished: job.input.unfinished,
        compat: job.learner.compat,
        look_back: 0,
        tolerant: true,
        memory: budget.first_pass(),
        agent_to_module: &job.multi_agent.agent_to_module,
    };
    let bytes = source.rows().files().iter().map(|f| f.bytes).sum();
    progress.begin("looking for episodes", Totals { bytes: Some(bytes), ..Totals::default() });
    let pool = crate::threads::pool(threads)?;
    let mut index = pool.install(|| source.index(options, progress))?;
    progress.end();
    if index.entries.is_empty() {
        let (noticed, not_finite) = Default::default();
        return Ok(Overview { index, noticed, not_finite, episodes: Vec::new() });
    }
    let modules = plan_modules(&job, &pipeline, &index)?;
    let with_returns = index.layout.get(REWARDS).is_some_and(|ty| ty.shape.is_empty());
    let scratch = Scratch::new(Path::new("."));
    let checker = Checker { source, pipeline: &pipeline, modules: &modules, scratch: &scratch, progress };
    let found = checker.check(&mut index, budget, Check { returns: with_returns, pieces: 0 })?;
    let rows = choose::rows(&index.entries);
    let mut episodes =
        vec![Episode { last_t: i64::MIN, ..Episode::default() }; rows.iter().map(|r| r + 1).max().unwrap_or(0)];
    for (i, (entry, &row)) in index.entries.iter().zip(&rows).enumerate() {
        let episode = &mut episodes[row];
        episode.length += entry.steps;
        if let Some(total) = found.returns.get(i).copied().filter(|_| with_returns) {
            episode.total = Some(episode.total.unwrap_or(0.0) + total);
        }
        if entry.t_started >= episode.last_t {
            (episode.last_t, episode.terminated, episode.truncated) =
                (entry.t_started, entry.terminated, entry.truncated);
        }
    }
    Ok(Overview { index, noticed: found.noticed, not_finite: found.not_finite, episodes })
}
