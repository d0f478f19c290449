//! What a job will do, from schemas, footers and the first rows alone.
//!
//! Where rows name agents or modules, the first rows are those of the first row groups: what each module has, its rows say.

use indexmap::{IndexMap, IndexSet};
use serde::Serialize;

use crate::batch::ColumnLayout;
use crate::column::{DEFAULT_MODULE_ID, NEXT_OBS, root};
use crate::episode::EpisodeLayout;
use crate::error::{Result, listed};
use crate::job::{Job, WindowStorage, check_supported};
use crate::pipeline::{self, Pipeline};
use crate::run::plan_modules;
use crate::run::unused::unused;
use crate::sink::{check_folder, folder_name};
use crate::source::index::Index;
use crate::source::{IndexOptions, recognise};
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
    /// In multi-agent data, the agents whose rows go to each folder, as far as the first rows tell.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub agents: IndexMap<String, Vec<String>>,
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
    let options = IndexOptions {
        duplicates: job.input.duplicates,
        unfinished: job.input.unfinished,
        compat: job.learner.compat,
        look_back: 0,
        memory: usize::MAX,
        tolerant: true,
        agent_to_module: &job.multi_agent.agent_to_module,
    };
    let first = source.first_modules(options)?;
    // Where rows name no agents and no modules, all go to one.
    let only = || Index {
        modules: vec![DEFAULT_MODULE_ID.to_owned()],
        layouts: vec![episodes.clone()],
        layout: episodes.clone(),
        ..Index::default()
    };
    let all_rows = source.rows().rows();
    let (index, seen) = first.unwrap_or_else(|| (only(), all_rows));
    let modules = plan_modules(job, &pipeline, &index).map_err(|e| source.explain(e, Some(&index)))?;
    let mut problems = source.notes().to_vec();
    problems.extend(source.rows().notes().iter().cloned());
    problems.extend(index.notes.iter().cloned());
    if seen < all_rows {
        problems.push(format!(
            "agents, modules and the columns of each are told as the first {seen} rows have them: others may have more"
        ));
    } else {
        problems.extend(unused(job, &index));
    }
    let agents_of = agents_of(&index);
    if let Some(all) = agents_of.get(DEFAULT_MODULE_ID).filter(|all| all.len() > 1 && index.modules.len() == 1) {
        problems.push(format!(
            "the agents {} share one module; `[multi_agent] agent_to_module` gives agents modules of their own",
            listed(all)
        ));
    }
    problems.extend(pipeline::unread_outputs(&modules, &index.layouts));
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
    let (mut folders, mut agents) = (IndexMap::new(), IndexMap::new());
    for part in parts {
        for module in &modules {
            check_folder(part.map(String::as_str), &module.id)?;
            let folder = folder_name(&module.id);
            let folder = part.map_or_else(|| folder.clone(), |part| format!("{}/{folder}", folder_name(part)));
            let told = |c: &ColumnLayout| match &c.stored {
                Some(stored) => (c.name.clone(), format!("{}, windows over {}", c.ty, stored.table)),
                None => column(&c.name, &c.ty),
            };
            if let Some(own) = agents_of.get(module.id.as_str()) {
                agents.insert(folder.clone(), own.iter().map(ToString::to_string).collect());
            }
            folders.insert(folder, module.layout.columns.iter().map(told).collect());
        }
    }
    Ok(Plan {
        input_layout: source.recognised().to_owned(),
        files: source.rows().files().len() as u64,
        input_bytes: source.rows().files().iter().map(|f| f.bytes).sum(),
        episodes: None,
        steps: source.rows_are_steps().then(|| source.rows().rows()),
        input_columns: input_columns(&index.layout),
        connectors: pipeline.pieces().map(|p| p.name().to_owned()).collect(),
        modules: folders,
        agents,
        problems,
        output: job.output_path().display().to_string(),
    })
}

/// The agents whose rows go to each module, in order of their first rows.
fn agents_of(index: &Index) -> IndexMap<&str, IndexSet<&str>> {
    let mut out: IndexMap<&str, IndexSet<&str>> = IndexMap::new();
    for entry in &index.entries {
        if let (Some(agent), Some(module)) = (entry.agent_id(), index.modules.get(entry.module as usize)) {
            out.entry(module.as_str()).or_default().insert(agent);
        }
    }
    out
}

/// The columns of a step; one that modules have in several types has them all.
fn input_columns(layout: &EpisodeLayout) -> Vec<(String, String)> {
    let mut out: IndexMap<&str, IndexSet<String>> = IndexMap::new();
    for (name, ty) in layout.steps.iter().filter(|(name, _)| root(name) != NEXT_OBS) {
        out.entry(name).or_default().insert(ty.to_string());
    }
    let types = |types: IndexSet<String>| types.into_iter().collect::<Vec<_>>().join(" or ");
    out.into_iter().map(|(name, found)| (name.to_owned(), types(found))).collect()
}
