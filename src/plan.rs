//! What a job will do, from schemas, footers and the first rows alone.

use indexmap::IndexMap;
use serde::Serialize;

use crate::column::DEFAULT_MODULE_ID;
use crate::error::Result;
use crate::job::{Job, check_supported};
use crate::pipeline::Pipeline;
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
    /// What will come out, by folder: columns with dtype and shape of a row.
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
    let pipeline = Pipeline::new(&job.learner)?.with_obs_space(job.input.spaces.obs.clone());
    let source = recognise::open(job)?;
    let episodes = source.peek()?;
    crate::run::choose::check(job, &episodes)?;
    let layout = pipeline.layout(&job.rl_module.module(DEFAULT_MODULE_ID), &episodes)?;
    let column = |name: &str, ty: &TensorType| (name.to_owned(), ty.to_string());
    let columns = layout.columns.iter().map(|c| column(&c.name, &c.ty)).collect();
    Ok(Plan {
        input_layout: source.recognised().to_owned(),
        files: source.rows().files().len() as u64,
        input_bytes: source.rows().files().iter().map(|f| f.bytes).sum(),
        episodes: None,
        steps: source.rows_are_steps().then(|| source.rows().rows()),
        input_columns: episodes.steps.iter().map(|(n, t)| column(n, t)).collect(),
        connectors: pipeline.pieces().map(|p| p.name().to_owned()).collect(),
        modules: IndexMap::from([(crate::sink::folder_name(DEFAULT_MODULE_ID), columns)]),
        problems: source.notes().to_vec(),
        output: job.output_path().display().to_string(),
    })
}
