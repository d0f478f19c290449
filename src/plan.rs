//! What a job will do, from schemas, footers and the first rows alone.

use indexmap::IndexMap;
use serde::Serialize;

use crate::batch::ColumnLayout;
use crate::column::DEFAULT_MODULE_ID;
use crate::episode::EpisodeLayout;
use crate::error::Result;
use crate::job::{Job, WindowStorage, check_supported};
use crate::pipeline::{self, ModulePlan, Pipeline};
use crate::sink::folder_name;
use crate::source::recognise;
use crate::tensor::TensorType;

/// What a job will do.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Plan {
    /// The layout that was recognised and why, a sentence.
    pub input_layout: String,
    /// Input files.
    pub files: u64,
    /// Bytes of the input files.
    pub input_bytes: u64,
    /// Episodes, where footers alone can tell.
    pub episodes: Option<u64>,
    /// Steps, where footers alone can tell.
    pub steps: Option<u64>,
    /// What the recording has: columns with dtype and shape of a step.
    pub input_columns: Vec<(String, String)>,
    /// The pieces in the order in which they run.
    pub connectors: Vec<String>,
    /// What will come out, by folder: columns with dtype and shape of a row, and which of them are windows over a table.
    /// Before them stand those that tell where a row came from: `eps_id`, `agent_id` where there are several, `t`.
    pub modules: IndexMap<String, Vec<(String, String)>>,
    /// What is odd already, a sentence each.
    pub problems: Vec<String>,
    /// The output directory.
    pub output: String,
}

/// Checks everything that schema, footers and the first rows can decide.
///
/// # Errors
/// The first thing that is wrong.
pub fn plan(job: &Job) -> Result<Plan> {
    if let Some(error) = check_supported(job).into_iter().next() {
        return Err(error);
    }
    let pipeline = Pipeline::new(&job.learner)?
        .with_obs_space(job.input.spaces.obs.clone())
        .with_indexed_windows(job.output.windows == WindowStorage::Indexed);
    let source = recognise::open_with(job, pipeline.reads_infos())?;
    let episodes = source.peek()?;
    crate::run::choose::check(job, &episodes)?;
    let modules = modules(job, &pipeline, &episodes)?;
    let mut problems = source.notes().to_vec();
    problems.extend(source.rows().notes().iter().cloned());
    if !job.multi_agent.agent_to_module.is_empty() {
        problems.push(
            "several agents: which modules get rows, which columns each has and of which shapes, the rows decide"
                .to_owned(),
        );
    }
    if job.multi_agent.agent_to_module.is_empty() {
        problems.extend(pipeline::unread_outputs(&modules, [&episodes]));
    }
    problems.extend(pipeline::without_effect(&job.learner));
    problems.extend(pipeline::without_windows(job.output.windows, &modules));
    if pipeline.reads_infos() {
        problems.push(
            "infos: which have a mask because steps lack them, and which are left out, the rows decide".to_owned(),
        );
    }
    let column = |name: &str, ty: &TensorType| (name.to_owned(), ty.to_string());
    let parts: Vec<Option<&String>> = match &job.output.split {
        Some(parts) => parts.keys().map(Some).collect(),
        None => vec![None],
    };
    let mut folders = IndexMap::new();
    for part in parts {
        for module in &modules {
            let folder = folder_name(&module.id);
            let folder = part.map_or_else(|| folder.clone(), |part| format!("{}/{folder}", folder_name(part)));
            let told = |c: &ColumnLayout| match &c.stored {
                Some(stored) => (c.name.clone(), format!("{}, windows over {}", c.ty, stored.table)),
                None => column(&c.name, &c.ty),
            };
            folders.insert(folder, module.layout.columns.iter().map(told).collect());
        }
    }
    Ok(Plan {
        input_layout: source.recognised().to_owned(),
        files: source.rows().files().len() as u64,
        input_bytes: source.rows().files().iter().map(|f| f.bytes).sum(),
        episodes: None,
        steps: source.rows_are_steps().then(|| source.rows().rows()),
        input_columns: episodes.steps.iter().map(|(n, t)| column(n, t)).collect(),
        connectors: pipeline.pieces().map(|p| p.name().to_owned()).collect(),
        modules: folders,
        problems,
        output: job.output_path().display().to_string(),
    })
}

/// The modules that the job names, or the only one. What each has, as far as schemas tell.
fn modules(job: &Job, pipeline: &Pipeline, episodes: &EpisodeLayout) -> Result<Vec<ModulePlan>> {
    let mut ids: Vec<&str> = job.multi_agent.agent_to_module.values().map(String::as_str).collect();
    if ids.is_empty() {
        ids.push(DEFAULT_MODULE_ID);
    }
    let mut out: Vec<ModulePlan> = Vec::new();
    for id in ids {
        if out.iter().all(|m| m.id != id) {
            let settings = job.rl_module.module(id);
            let layout = pipeline.layout(&settings, episodes)?;
            out.push(ModulePlan { id: id.to_owned(), part: None, settings, layout });
        }
    }
    Ok(out)
}
