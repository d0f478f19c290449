//! What is in these files? Everything that can be told, and every problem, instead of an error at the first one.
//!
//! A recording goes through the same first pass as in a conversion, and through its check of every episode; malformed
//! episodes are problems with a place. A written data set is told from its manifest alone: `verify` looks at the rest.

mod problems;

use std::path::Path;
use std::sync::Arc;

use indexmap::IndexMap;
use serde::Serialize;

pub use problems::Problem;

use crate::dataset::{Dataset, NOT_FINISHED};
use crate::error::{Error, Result};
use crate::job::{Job, OnBadEpisode};
use crate::progress::Progress;
use crate::run::overview::{Episode, Overview, overview};
use crate::sink::{MANIFEST, Near, UNFINISHED, near};
use crate::source::file::{InputFile, NO_MANIFEST, discover};
use crate::source::ingest::type_name;
use crate::source::{MOVE_REWARDS, recognise};
use problems::Problems;

/// Agents and modules that are listed one by one.
const LISTED: usize = 100;

/// What is there.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Report {
    /// A recording.
    Recording(Box<Recording>),
    /// A written data set.
    DataSet(Box<DataSet>),
}

/// A recording.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Recording {
    /// The layout and why it was recognised, where it was.
    pub layout: Option<String>,
    /// Its files.
    pub files: Vec<FileSummary>,
    /// Columns as they are recorded.
    pub columns: Vec<ColumnSummary>,
    /// What a step has once it is read: name, dtype and shape.
    pub step: Vec<(String, String)>,
    /// Its episodes, where these can be told.
    pub episodes: Option<EpisodeSummary>,
    /// What is wrong or odd.
    pub problems: Vec<Problem>,
}

/// One file.
#[derive(Debug, Clone, Default, Serialize)]
pub struct FileSummary {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Its format; none if it cannot be opened.
    pub format: Option<&'static str>,
    /// Row groups, or record batches.
    pub row_groups: usize,
    /// Rows.
    pub rows: u64,
}

/// One recorded column.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ColumnSummary {
    /// Its name.
    pub name: String,
    /// Its type in the first file that has it.
    pub r#type: String,
    /// Files that have it.
    pub files: usize,
}

/// The episodes of a recording.
#[derive(Debug, Clone, Default, Serialize)]
pub struct EpisodeSummary {
    /// Episodes that are well-formed: of one agent each, their chunks joined, copies dropped.
    pub count: u64,
    /// Their steps.
    pub steps: u64,
    /// Chunks (and agents) in which they are recorded.
    pub chunks: u64,
    /// Episodes (chunks and agents one by one) that are malformed.
    pub malformed: u64,
    /// Lengths.
    pub length: Spread,
    /// Sums of rewards, where these are numbers.
    pub returns: Option<Spread>,
    /// Episodes that ended by the rules of the environment.
    pub terminated: u64,
    /// Episodes that were cut short (and not terminated).
    pub truncated: u64,
    /// Episodes that just stop.
    pub open: u64,
    /// Modules and their episodes.
    pub modules: IndexMap<String, u64>,
    /// Agents and their episodes, in multi-agent data.
    pub agents: IndexMap<String, u64>,
}

/// The spread of a number over episodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The least.
    pub min: f64,
    /// The one in the middle, or the mean of the two there.
    pub median: f64,
    /// The greatest.
    pub max: f64,
}

/// A written data set, as its manifest tells.
#[derive(Debug, Clone, Default, Serialize)]
pub struct DataSet {
    /// Where it is.
    pub directory: String,
    /// Version of gristmill that wrote it.
    pub gristmill: String,
    /// Its content digest.
    pub content_digest: String,
    /// Episodes read and written.
    pub episodes: [u64; 2],
    /// Steps read and written.
    pub steps: [u64; 2],
    /// Input files.
    pub input_files: usize,
    /// The pieces that ran.
    pub pieces: Vec<String>,
    /// Its modules.
    pub modules: Vec<ModuleSummary>,
    /// What was odd about the input.
    pub problems: Vec<Problem>,
}

/// A module of a data set.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ModuleSummary {
    /// Its name.
    pub name: String,
    /// Rows.
    pub rows: u64,
    /// Shards.
    pub shards: usize,
    /// Bytes of the shards.
    pub bytes: u64,
    /// Columns with dtype and shape.
    pub columns: Vec<(String, String)>,
}

/// Looks at what the job's `input` names: a recording, or one directory of a written data set.
///
/// # Errors
/// If there is no such file, or none that is a data file. What is wrong with the files themselves is told in the report.
pub fn inspect(job: &Job, threads: Option<usize>, progress: &dyn Progress) -> Result<Report> {
    if let [only] = job.input_patterns().as_slice()
        && Path::new(only).join(MANIFEST).is_file()
    {
        return data_set(Path::new(only)).map(|d| Report::DataSet(Box::new(d)));
    }
    let threads = crate::threads::count(threads);
    let mut job = job.clone();
    // Everything is told; nothing stops the look.
    job.input.on_bad_episode = OnBadEpisode::Skip;
    job.input.where_ = None;
    let mut problems = Problems::default();
    if let [only] = job.input_patterns().as_slice()
        && Path::new(only).join(UNFINISHED).exists()
        && let Some(Near::Shard(shard)) = near(Path::new(only))
    {
        let what = "called as a data set's shards are, and there is no manifest.json beside them";
        problems.hinted(what, format!("file {shard}"), NOT_FINISHED);
    }
    let mut out = Recording::default();
    let files = files(&job, &mut out, &mut problems)?;
    columns(&files, &mut out, &mut problems);
    if !files.is_empty() {
        episodes(&job, files, threads, &mut out, &mut problems, progress)?;
    }
    out.problems = problems.finish();
    Ok(Report::Recording(Box::new(out)))
}

/// Opens every file.
fn files(job: &Job, out: &mut Recording, problems: &mut Problems) -> Result<Vec<Arc<InputFile>>> {
    let mut files = Vec::new();
    let discovered = discover(&job.input.paths, &job.base)?;
    for note in recognise::notes(&discovered, job)? {
        problems.note(&note, None);
    }
    if let Some((what, first)) = recognise::without_manifest(&discovered, job)? {
        problems.hinted(&what, first, NO_MANIFEST);
    }
    for path in discovered.files {
        match InputFile::open_in(&path, &job.base) {
            Ok(file) => {
                out.files.push(FileSummary {
                    name: file.name.clone(),
                    bytes: file.bytes,
                    format: Some(file.format.name()),
                    row_groups: file.row_groups.len(),
                    rows: file.rows(),
                });
                if let Some(note) = &file.note {
                    problems.note(note, Some(format!("file {}", file.name)));
                }
                files.push(Arc::new(file));
            }
            Err(e) if crate::source::faults::is_of_data(&e) => {
                let bytes = std::fs::metadata(&path).map_or(0, |m| m.len());
                let name = e.place().file.clone().unwrap_or_else(|| path.display().to_string());
                out.files.push(FileSummary { name, bytes, ..FileSummary::default() });
                problems.error(&e, 1);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(files)
}

/// The recorded columns, and files that have others.
fn columns(files: &[Arc<InputFile>], out: &mut Recording, problems: &mut Problems) {
    let mut all: IndexMap<String, ColumnSummary> = IndexMap::new();
    for file in files {
        for field in file.schema.fields() {
            let ty = type_name(field);
            let column = all.entry(field.name().clone()).or_insert_with(|| ColumnSummary {
                name: field.name().clone(),
                r#type: ty.clone(),
                files: 0,
            });
            if column.r#type != ty {
                let what = format!("column `{}` is {ty}, in other files {}", field.name(), column.r#type);
                problems.note(&what, Some(format!("file {}", file.name)));
            }
            column.files += 1;
        }
    }
    for column in all.values().filter(|c| c.files < files.len()) {
        let what = format!("column `{}` is in {} of {} files", column.name, column.files, files.len());
        let lacks = files.iter().find(|f| !f.has(&column.name)).map(|f| format!("not in file {}", f.name));
        problems.note(&what, lacks);
    }
    out.columns = all.into_values().collect();
}

/// The episodes, as far as they can be told.
fn episodes(
    job: &Job,
    files: Vec<Arc<InputFile>>,
    threads: usize,
    out: &mut Recording,
    problems: &mut Problems,
    progress: &dyn Progress,
) -> Result<()> {
    let told = |e: Error, problems: &mut Problems| {
        if !crate::source::faults::is_of_data(&e) {
            return Err(e);
        }
        problems.error(&e, 1);
        Ok(())
    };
    let source = match recognise::open_files(job, files, false) {
        Ok(source) => source,
        Err(e) => return told(e, problems),
    };
    out.layout = Some(source.recognised().to_owned());
    for note in source.notes() {
        problems.note(note, None);
    }
    let Overview { index, noticed, not_finite, episodes } = match overview(job, &*source, threads, progress) {
        Ok(overview) => overview,
        Err(e) => return told(e, problems),
    };
    out.step = index.layout.steps.iter().map(|(name, ty)| (name.to_string(), ty.to_string())).collect();
    for fault in index.faults.list() {
        problems.error(&fault.error, fault.episodes.max(1));
    }
    let place = |row: Option<u64>| row.map(|row| source.rows().describe(row));
    let odd = &index.oddities;
    problems.count("rows (or items) are recorded a second time", odd.duplicate_rows, place(odd.first_duplicate));
    let seams = "rows have an `obs` that is not the `new_obs` of the row before";
    problems.count(seams, noticed.discontinuities.count, place(noticed.discontinuities.first));
    let mut trailing = noticed.trailing_rewards.clone();
    trailing.merge(&odd.unread_rewards);
    let what = "rows without an action hold a reward, which is not read";
    problems.counted_with_hint(what, trailing.count, place(trailing.first), MOVE_REWARDS);
    let mut unread = noticed.unread.clone();
    unread.merge(&odd.unread_outputs);
    let what = format!("rows without an action hold {}", noticed.what_is_unread());
    problems.count(&what, unread.count, place(unread.first));
    problems.count("rewards are NaN or infinite", not_finite.count, place(not_finite.first));
    problems.count("episodes end neither terminated nor truncated", odd.unfinished_episodes, None);
    problems.count("episodes have no step", odd.empty_episodes, None);
    out.episodes = Some(summary(&index, &episodes));
    Ok(())
}

fn summary(index: &crate::source::index::Index, episodes: &[Episode]) -> EpisodeSummary {
    let mut out = EpisodeSummary {
        count: episodes.len() as u64,
        steps: index.steps(),
        chunks: index.entries.len() as u64,
        malformed: index.faults.sums().0,
        length: spread(episodes.iter().map(|e| e.length as f64).collect()).unwrap_or_default(),
        returns: spread(episodes.iter().filter_map(|e| e.total).collect()),
        ..EpisodeSummary::default()
    };
    for episode in episodes {
        let end = match (episode.terminated, episode.truncated) {
            (true, _) => &mut out.terminated,
            (false, true) => &mut out.truncated,
            _ => &mut out.open,
        };
        *end += 1;
    }
    for entry in &index.entries {
        let module = index.modules.get(entry.module as usize).cloned().unwrap_or_default();
        let agent = entry.agent_id().map(ToString::to_string);
        for (counts, name) in [(&mut out.modules, Some(module)), (&mut out.agents, agent)] {
            let Some(name) = name else { continue };
            if counts.len() < LISTED || counts.contains_key(&name) {
                *counts.entry(name).or_default() += 1;
            }
        }
    }
    out
}

/// The spread of some numbers; none of no numbers.
fn spread(mut values: Vec<f64>) -> Option<Spread> {
    values.sort_by(f64::total_cmp);
    let (first, last) = (*values.first()?, *values.last()?);
    let (below, above) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
    Some(Spread { min: first, median: below + (above - below) / 2.0, max: last })
}

/// What a manifest tells.
fn data_set(directory: &Path) -> Result<DataSet> {
    let dataset = Dataset::open(directory)?;
    let manifest = dataset.manifest();
    let counts = &manifest.counts;
    let mut problems = Problems::default();
    for problem in &manifest.problems {
        problems.count(&problem.what, problem.count, problem.first.clone());
    }
    Ok(DataSet {
        directory: directory.display().to_string(),
        gristmill: manifest.gristmill.clone(),
        content_digest: manifest.content_digest.clone(),
        episodes: [counts.episodes_in, counts.episodes_out],
        steps: [counts.steps_in, counts.steps_out],
        input_files: manifest.input.files.len(),
        pieces: manifest.pipeline.iter().filter_map(|p| p.get("type")?.as_str().map(str::to_owned)).collect(),
        modules: dataset
            .modules()
            .iter()
            .map(|m| ModuleSummary {
                name: m.name().to_owned(),
                rows: m.record().rows,
                shards: m.record().files().count(),
                bytes: m.record().files().map(|s| s.bytes).fold(0, u64::saturating_add),
                columns: m.record().described(),
            })
            .collect(),
        problems: problems.finish(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads() {
        assert_eq!(spread(vec![]), None);
        assert_eq!(spread(vec![3.0]), Some(Spread { min: 3.0, median: 3.0, max: 3.0 }));
        assert_eq!(spread(vec![4.0, 1.0, 2.0, 9.0]), Some(Spread { min: 1.0, median: 3.0, max: 9.0 }));
    }
}
