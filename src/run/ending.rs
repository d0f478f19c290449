//! The end of a run whose shards are written: quarantine, manifest, report.

use std::time::Instant;

use indexmap::IndexMap;

use super::pass::Found;
use super::prepare::Prepared;
use super::quarantine;
use super::record::{Report, manifest, report};
use crate::error::Result;
use crate::job::{Job, OnBadEpisode};
use crate::manifest::{InputFile, ModuleRecord, RunRecord};
use crate::pipeline::Surveys;
use crate::sink::OutputDir;

/// What a run has come to.
pub(super) struct Ending<'a> {
    pub job: &'a Job,
    pub prepared: &'a Prepared,
    pub surveys: &'a Surveys,
    pub found: &'a Found,
    /// What was written, by module.
    pub records: IndexMap<String, ModuleRecord>,
    pub input_files: Vec<InputFile>,
    pub input_bytes: u64,
    pub started: Instant,
    pub threads: usize,
    /// Beside the memory limit.
    pub notes: Vec<(String, serde_json::Value)>,
}

impl Ending<'_> {
    /// Writes what is left to be written, the manifest last.
    ///
    /// # Errors
    /// If the output directory cannot be written to.
    pub fn write(self, dir: OutputDir) -> Result<Report> {
        let Self { job, prepared, surveys, found, records, input_files, input_bytes, started, threads, notes } = self;
        let quarantine = match job.input.on_bad_episode {
            OnBadEpisode::Quarantine => quarantine::write(&dir, prepared.source.rows(), &prepared.index.faults)?,
            OnBadEpisode::Skip | OnBadEpisode::Fail => Vec::new(),
        };
        let mut manifest = manifest(job, prepared, found, records, input_files);
        manifest.quarantine = quarantine;
        manifest.connector_statistics = prepared.pipeline.statistics(surveys, &prepared.modules);
        let seconds = started.elapsed().as_secs_f64();
        let report = report(job, &manifest, input_bytes, seconds);
        let per_second = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let limit = ("memory_limit".to_owned(), prepared.budget.limit().into());
        let run = RunRecord {
            gristmill: env!("CARGO_PKG_VERSION").to_owned(),
            wall_seconds: seconds,
            steps_per_second: per_second(manifest.counts.steps_out),
            bytes_per_second: per_second(input_bytes),
            input_bytes,
            output_bytes: report.modules.values().map(|m| m.bytes).sum(),
            threads,
            extra: [limit].into_iter().chain(notes).collect(),
        };
        dir.finish(&manifest, &run)?;
        Ok(report)
    }
}
