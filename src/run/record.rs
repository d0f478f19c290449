//! What a run tells: its report, and the manifest of what it wrote.

use indexmap::IndexMap;
use serde::Serialize;

use super::pass::Found;
use super::prepare::Prepared;
use crate::batch::ColumnLayout;
use crate::job::{Job, OnBadEpisode, Unfinished};
use crate::manifest::{BatchColumn, Counts, FORMAT_VERSION, InputFile, InputRecord, Manifest, ModuleRecord, Problem};
use crate::pipeline::resolved;
use crate::sink::{QUARANTINE, combine};
use crate::source::MOVE_REWARDS;

/// Malformed episodes named one by one in the notes; all are counted.
const NAMED: usize = 10;

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
    /// Malformed episodes or chunks that were left out.
    pub bad_episodes: u64,
    /// Their steps.
    pub bad_steps: u64,
    /// Input files that could not be read and were left out.
    pub bad_files: u64,
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

pub(super) fn manifest(
    job: &Job,
    prepared: &Prepared,
    found: &Found,
    modules: IndexMap<String, ModuleRecord>,
    files: Vec<InputFile>,
) -> Manifest {
    let Prepared { source, pipeline, index, .. } = prepared;
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
    let seams = found.noticed.discontinuities.count;
    let what = either(seams, "step has", "steps have");
    let what = format!("{what} an `obs` that is not the `new_obs` of the step before");
    problem(seams, &what, place(found.noticed.discontinuities.first));
    let mut trailing = found.noticed.trailing_rewards.clone();
    trailing.merge(&odd.unread_rewards);
    let what = either(trailing.count, "row without an action holds", "rows without an action hold");
    let what = format!("{what} a reward, which is not read: {MOVE_REWARDS}");
    problem(trailing.count, &what, place(trailing.first));
    let mut unread = found.noticed.unread.clone();
    unread.merge(&odd.unread_outputs);
    let what = either(unread.count, "row without an action holds", "rows without an action hold");
    problem(unread.count, &format!("{what} {}", found.noticed.what_is_unread()), place(unread.first));
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
    if job.input.unfinished == Unfinished::Truncate {
        let what = either(open, "of these was marked truncated", "of these were marked truncated");
        problem(open, &format!("{what}, as the job says"), None);
    }
    let kept = match job.input.on_bad_episode {
        OnBadEpisode::Quarantine => format!("; what could be read of them is kept in {QUARANTINE}/"),
        OnBadEpisode::Skip | OnBadEpisode::Fail => String::new(),
    };
    let (bad_episodes, bad_steps, bad_rows) = index.faults.sums();
    let first_fault = |strays: bool| {
        let fault = index.faults.list().iter().find(|f| f.id.is_none() == strays);
        fault.map(|f| format!("{}: {}", f.error.place(), f.error.what()))
    };
    let what = either(
        bad_episodes,
        "malformed episode was left out, as the job says",
        "malformed episodes were left out, as the job says",
    );
    problem(bad_episodes, &format!("{what}{kept}"), first_fault(false).or_else(|| first_fault(true)));
    let what =
        either(bad_rows, "row that belongs to no episode was left out", "rows that belong to no episode were left out");
    problem(bad_rows, &format!("{what}{kept}"), first_fault(true));
    let lost = source.rows().lost();
    let what =
        either(lost.len() as u64, "file cannot be read and was left out", "files cannot be read and were left out");
    problem(lost.len() as u64, what, lost.first().map(|l| format!("file {}: {}", l.name, l.error.what())));
    for (column, count) in not_finite(&modules) {
        problem(count, &format!("{} NaN or infinite in `{column}`", either(count, "value is", "values are")), None);
    }
    let mut notes = source.notes().to_vec();
    notes.extend(source.rows().notes().iter().cloned());
    notes.extend(
        index.faults.list().iter().take(NAMED).map(|f| format!("left out: {} ({})", f.error.what(), f.error.place())),
    );
    notes.extend(lost.iter().take(NAMED).map(|l| format!("left out: {}: {}", l.name, l.error.what())));
    notes.extend(index.notes.iter().cloned());
    notes.extend(files.iter().zip(source.rows().files()).filter_map(|(_, f)| f.note.clone()));
    let counts = Counts {
        episodes_in: index.episodes_read,
        steps_in: index.steps_read,
        episodes_out: found.episodes_out,
        steps_out: found.steps_out,
        rows_out: modules.values().map(|m| m.rows).sum(),
        duplicates_dropped: odd.duplicate_episodes,
        discontinuities: found.noticed.discontinuities.count,
        unfinished: odd.unfinished_episodes,
        bad_episodes,
        bad_steps,
        bad_rows,
        bad_files: lost.len() as u64,
        duplicate_steps: odd.duplicate_rows,
        duplicate_episodes: odd.duplicate_entries,
        unfinished_dropped: odd.dropped_unfinished_entries,
        unfinished_dropped_steps: odd.dropped_unfinished_steps,
        empty_episodes: index.entries.len() as u64 - found.episodes_out.min(index.entries.len() as u64),
        learner_connector_sum_episodes_length_in: index.steps(),
        learner_connector_sum_episodes_length_out: found.pipeline_steps_out,
        episode_ids: index.episode_ids,
        filtered_out: prepared.filtered_out,
        filtered_steps: prepared.filtered_steps,
    };
    Manifest {
        format_version: FORMAT_VERSION,
        gristmill: env!("CARGO_PKG_VERSION").to_owned(),
        job: Job { learner: resolved(&job.learner), ..job.clone() }.to_portable_json(),
        pipeline: pipeline.described(),
        connector_statistics: Vec::new(),
        input: InputRecord { layout: source.recognised().to_owned(), files },
        counts,
        repairs: found.repairs.sorted().into_iter().map(|(n, rows)| (n.to_owned(), rows)).collect(),
        problems,
        notes,
        content_digest: combine(modules.iter().map(|(id, m)| (id.as_str(), m.digest.as_str()))),
        modules,
        quarantine: Vec::new(),
    }
}

/// Values that are NaN or infinite, by column of all modules.
fn not_finite(modules: &IndexMap<String, ModuleRecord>) -> IndexMap<&str, u64> {
    let mut out = IndexMap::new();
    let columns = modules.values().flat_map(|m| {
        let tables = m.tables.values().flat_map(|t| &t.steps.columns);
        m.columns.iter().chain(tables)
    });
    for column in columns {
        if let Some(found) = column.statistics.as_ref().map(|s| s.nan_count + s.inf_count).filter(|n| *n > 0) {
            *out.entry(column.name.as_str()).or_default() += found;
        }
    }
    out
}

/// What a trainer sees of columns some of which are stored as windows; nothing if none is.
pub(super) fn batch_columns(columns: &[ColumnLayout]) -> Vec<BatchColumn> {
    if columns.iter().all(|c| c.stored.is_none()) {
        return Vec::new();
    }
    let column = |c: &ColumnLayout| BatchColumn {
        name: c.name.clone(),
        dtype: c.ty.dtype.name().to_owned(),
        shape: c.ty.shape.clone(),
        table: c.stored.as_ref().map(|s| s.table.to_owned()),
    };
    columns.iter().map(column).collect()
}

pub(super) fn report(job: &Job, manifest: &Manifest, input_bytes: u64, seconds: f64) -> Report {
    let problem = |p: &Problem| match &p.first {
        Some(first) => format!("{} {} (first: {first})", p.count, p.what),
        None => format!("{} {}", p.count, p.what),
    };
    let module = |record: &ModuleRecord| ModuleReport {
        columns: record.described(),
        rows: record.rows,
        shards: record.files().count() as u64,
        bytes: record.files().map(|s| s.bytes).sum(),
    };
    Report {
        input_layout: manifest.input.layout.clone(),
        files: manifest.input.files.len() as u64,
        input_bytes,
        episodes_in: manifest.counts.episodes_in,
        episode_ids: manifest.counts.episode_ids,
        steps_in: manifest.counts.steps_in,
        duplicates_dropped: manifest.counts.duplicates_dropped,
        bad_episodes: manifest.counts.bad_episodes,
        bad_steps: manifest.counts.bad_steps,
        bad_files: manifest.counts.bad_files,
        filtered_out: manifest.counts.filtered_out,
        discontinuities: manifest.counts.discontinuities,
        problems: manifest.problems.iter().map(problem).chain(manifest.notes.iter().cloned()).collect(),
        modules: manifest.modules.values().map(|m| (m.folder.clone(), module(m))).collect(),
        repairs: manifest.repairs.clone(),
        seconds,
        output: job.output_path().display().to_string(),
    }
}
