//! First pass over step rows: reads ids, times and flags, and nothing else.

mod batch;

use std::collections::BTreeMap;

use arrow::array::{Array, RecordBatch};
use rayon::prelude::*;

use self::batch::Batch;

use super::faults::{bad_rows, is_of_data};
use super::file::InputFile;
use super::index::{Entry, Span};
use super::ingest::LeafSpec;
use super::presence::Presence;
use super::rows::{RowGroupRef, RowMap};
use super::runs::{Runs, Who};
use crate::error::{Error, Result};
use crate::progress::{Progress, Step, go_on};
use crate::tensor::TensorType;

/// Rows per batch. Ids and flags are small, so batches can be large.
const BATCH_ROWS: usize = 65_536;

/// Bytes per batch, as the file has them: of values that are looked at as well, and of ids that are long.
const BATCH_BYTES: u64 = 8 << 20;

/// The recorded names of the columns that the first pass reads.
#[derive(Debug, Clone, Default)]
pub(super) struct ScanColumns {
    /// Episode id.
    pub eps_id: String,
    /// Agent id.
    pub agent: Option<String>,
    /// Module id.
    pub module: Option<String>,
    /// Time step.
    pub t: Option<String>,
    /// Flag.
    pub terminateds: Option<String>,
    /// Flag.
    pub truncateds: Option<String>,
    /// The columns of the observation: null in rows that hold only a reward.
    pub obs: Vec<String>,
    /// The columns of the action: null in rows that hold only the last observation.
    pub actions: Vec<String>,
    /// Extra outputs. In multi-agent data one may be null in all rows of a module, which then does not have it.
    pub extras: Vec<String>,
    /// Leaves of infos with the name of their column: one may be missing in some steps.
    pub infos: Vec<(String, LeafSpec, TensorType)>,
}

impl ScanColumns {
    /// Whether rows carry their time step.
    pub fn timed(&self) -> bool {
        self.t.is_some()
    }

    fn names(&self, file: &InputFile, group: RowGroupRef) -> Vec<String> {
        let optional = [&self.agent, &self.module, &self.t, &self.terminateds, &self.truncateds];
        let mut names: Vec<String> = optional.into_iter().flatten().chain([&self.eps_id]).cloned().collect();
        // Decoding a column only to find no null in it would cost as much as reading it.
        let may_be_null = |n: &&String| file.null_count(group.row_group, n) != Some(0);
        names.extend(Self::nullable(&self.actions, file, group).into_iter().flatten().cloned());
        if self.agent.is_some() {
            names.extend(Self::nullable(&self.obs, file, group).into_iter().flatten().cloned());
            names.extend(self.extras.iter().filter(may_be_null).cloned());
        }
        // Of infos, the values must be looked at as well: lists in them may have any length.
        names.extend(self.infos.iter().map(|(source, ..)| source.clone()));
        names.retain(|n| file.has(n));
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The columns of a value that may be null in a row group, because all of them may be.
    pub fn nullable<'a>(columns: &'a [String], file: &InputFile, group: RowGroupRef) -> Option<&'a [String]> {
        columns.iter().all(|name| file.null_count(group.row_group, name) != Some(0)).then_some(columns)
    }

    /// Rows of a batch: fewer where texts are long, or values are among what is read, and large.
    fn batch_rows(&self, file: &InputFile, group: RowGroupRef, names: &[String]) -> usize {
        let is_small = |n: &String| {
            let small = [&self.agent, &self.module, &self.t, &self.terminateds, &self.truncateds];
            *n == self.eps_id || small.into_iter().flatten().any(|s| s == n)
        };
        let bytes = if names.iter().all(is_small) {
            file.text_bytes(group.row_group, names)
        } else {
            // Of all columns: those that are read are a part of it, and may be nearly all.
            file.row_groups[group.row_group].bytes
        };
        let rows = BATCH_BYTES / (bytes / group.rows.max(1)).max(1);
        usize::try_from(rows).unwrap_or(BATCH_ROWS).clamp(1, BATCH_ROWS)
    }
}

/// What the first pass finds.
#[derive(Debug, Default)]
pub(super) struct Scanned {
    /// The runs.
    pub runs: Runs,
    /// For each of the runs' episodes, the extra outputs (by position) that are null in one of its rows, and those
    /// that are not null in one of its rows. The leaves of infos are numbered behind the extra outputs.
    pub extras: Vec<Presence>,
    /// Bytes behind those.
    presence_bytes: usize,
    /// Leaves of infos that cannot be read, by position: the first row, and why.
    pub odd_infos: BTreeMap<usize, (u64, Error)>,
    /// Where malformed episodes are left out: rows that cannot be understood, whose they are as far as that can be told.
    pub bad: Vec<(Option<Who>, Span, Error)>,
    /// The same: row groups that cannot be read.
    pub lost: Vec<(RowGroupRef, Error)>,
}

impl Scanned {
    fn append(&mut self, other: Self, timed: bool, seam: bool) -> Result<()> {
        for (who, rows, error) in other.bad {
            self.put_aside(who, rows, error);
        }
        self.lost.extend(other.lost);
        self.runs.append(&other.runs, timed, seam)?;
        for (leaf, odd) in other.odd_infos {
            self.odd_infos.entry(leaf).or_insert(odd);
        }
        for (who, presence) in other.runs.ids.iter().zip(other.extras) {
            let n = self.runs.number(who)?;
            self.presence_bytes += self.presence(n).extend(&presence);
        }
        Ok(())
    }

    /// Puts rows that cannot be understood aside. Of an episode, the first error is the one that is told: rows that follow
    /// one another need no more.
    fn put_aside(&mut self, who: Option<Who>, rows: Span, error: Error) {
        if let (Some(new), Some((Some(own), before, _))) = (&who, self.bad.last_mut())
            && new == own
            && let Some(joined) = before.joined_consecutive(rows)
        {
            *before = joined;
            return;
        }
        self.bad.push((who, rows, error));
    }

    /// Bytes in memory, now and as an index beside it.
    fn bytes(&self) -> usize {
        let presence = self.extras.len() * size_of::<Presence>() + self.presence_bytes;
        let index = self.runs.runs.len() * INDEXED + self.runs.ids.len() * size_of::<Entry>();
        self.runs.bytes() + presence + index + self.bad.len() * PUT_ASIDE
    }

    fn presence(&mut self, episode: u32) -> &mut Presence {
        let episode = episode as usize;
        if self.extras.len() <= episode {
            self.extras.resize(episode + 1, Presence::default());
        }
        &mut self.extras[episode]
    }
}

/// Bytes that a run still takes when it has become a part of the index.
const INDEXED: usize = size_of::<Span>();

/// Bytes of rows that are put aside, with the texts of their error, once here and once as a fault of the index.
const PUT_ASIDE: usize = 768;

/// The runs of all rows, row groups in parallel.
///
/// # Errors
/// If a row cannot be understood, or the index will not fit into `memory` bytes.
pub(super) fn scan(
    rows: &RowMap,
    columns: &ScanColumns,
    tolerant: bool,
    memory: usize,
    progress: &dyn Progress,
) -> Result<Scanned> {
    let mut all = Scanned::default();
    // A few row groups at a time, so that a long log's runs are joined (and shrink) as they come.
    for groups in rows.groups().chunks(rayon::current_num_threads() * 4) {
        let scanned: Vec<Result<Scanned>> =
            groups.par_iter().map(|g| scan_or_lose(rows, *g, columns, tolerant, progress)).collect();
        for (group, part) in groups.iter().zip(scanned) {
            let first_of_file = rows.files()[group.file].row_groups[group.row_group].first_row == 0;
            all.append(part?, columns.timed(), first_of_file && !columns.timed())?;
            let bytes = all.bytes();
            if bytes > memory {
                return Err(too_many(&all, bytes, group.first_row + group.rows, rows.rows()));
            }
        }
    }
    Ok(all)
}

/// The index outgrows its memory.
fn too_many(all: &Scanned, bytes: usize, read: u64, rows: u64) -> Error {
    let (runs, episodes) = (all.runs.runs.len(), all.runs.ids.len());
    let whole = bytes as f64 * (rows as f64 / read.max(1) as f64) * 1.25 / f64::from(1 << 20);
    let hint = if all.bad.len() * PUT_ASIDE > bytes / 2 {
        "most of it are rows that cannot be understood, each with its reason: mend them before"
    } else {
        "where episodes are mixed row by row, rows with `t` in turns that stay the same need the least"
    };
    Error::environment(format!(
        "the index of {read} of {rows} rows ({episodes} episodes in {runs} runs) takes {} MiB, more than the memory limit leaves it",
        bytes >> 20
    ))
    .hint(format!("the whole index may take {whole:.0} MiB, and --memory-limit must leave room for the data, too; {hint}"))
}

/// [`scan_group`]; a row group that cannot be read is lost as a whole, where that is allowed.
fn scan_or_lose(
    rows: &RowMap,
    group: RowGroupRef,
    columns: &ScanColumns,
    tolerant: bool,
    progress: &dyn Progress,
) -> Result<Scanned> {
    match scan_group(rows, group, columns, tolerant, progress) {
        Err(e) if tolerant && is_of_data(&e) => Ok(Scanned { lost: vec![(group, e)], ..Scanned::default() }),
        other => other,
    }
}

fn scan_group(
    rows: &RowMap,
    group: RowGroupRef,
    columns: &ScanColumns,
    tolerant: bool,
    progress: &dyn Progress,
) -> Result<Scanned> {
    let file = &rows.files()[group.file];
    let names = columns.names(file, group);
    let place = |e: Error| e.file(file.name.clone()).row_group(group.row_group);
    let mut out = Scanned::default();
    let mut row = group.first_row;
    let batch_rows = columns.batch_rows(file, group, &names);
    for batch in file.read(group.row_group, &names, batch_rows).map_err(place)? {
        let batch = batch.map_err(place)?;
        let row_in_file = file.row_groups[group.row_group].first_row + (row - group.first_row);
        if tolerant {
            scan_what_can_be(rows, file, &batch, row, row_in_file, columns, &mut out)?;
        } else {
            let mut scan = Batch::new(&batch, row_in_file, columns).map_err(place)?;
            scan.look_at_infos(file, &batch, row_in_file, columns, &mut |leaf, e| {
                out.odd_infos.entry(leaf).or_insert_with(|| (row, place(e)));
            });
            scan.rows(row, None, &mut out).map_err(|(at, e)| rows.locate(row + at as u64, e))?;
        }
        row += batch.num_rows() as u64;
        // Of a slice, its own rows.
        let bytes = batch.columns().iter().map(|c| c.to_data().get_slice_memory_size().unwrap_or(0)).sum::<usize>();
        progress.advance(Step { bytes: bytes as u64, ..Step::default() });
        go_on(progress)?;
    }
    Ok(out)
}

/// Looks at a batch around the rows that cannot be understood.
fn scan_what_can_be(
    map: &RowMap,
    file: &InputFile,
    batch: &RecordBatch,
    row: u64,
    row_in_file: u64,
    columns: &ScanColumns,
    out: &mut Scanned,
) -> Result<()> {
    let decode = |start: usize, len: usize| Batch::new(&batch.slice(start, len), row_in_file + start as u64, columns);
    let (good, bad) = bad_rows(batch.num_rows(), decode)?;
    for (at, error) in bad {
        // The rest of a row may be unreadable, and yet the row say whose it is.
        let only_ids = ScanColumns { eps_id: columns.eps_id.clone(), ..ScanColumns::default() };
        let who = Batch::new(&batch.slice(at, 1), row_in_file + at as u64, &only_ids).ok().map(|b| b.who(0));
        let global = row + at as u64;
        out.put_aside(who, Span::one(global), map.locate(global, error));
    }
    for (start, mut part) in good {
        let (slice, in_file) = (batch.slice(start, part.len), row_in_file + start as u64);
        part.look_at_infos(file, &slice, in_file, columns, &mut |leaf, e| {
            out.odd_infos.entry(leaf).or_insert_with(|| (row + start as u64, e.file(file.name.clone())));
        });
        part.rows(row + start as u64, Some(map), out).map_err(|(_, e)| e)?;
    }
    Ok(())
}
