//! First pass over step rows: reads ids, times and flags, and nothing else.

use std::sync::Arc;

use arrow::array::{Array, BooleanArray, Int64Array, RecordBatch};
use rayon::prelude::*;

use super::file::InputFile;
use super::ingest::{self, Ids};
use super::rows::{RowGroupRef, RowMap};
use super::runs::{Done, Runs, ScanRow};
use crate::column;
use crate::episode::EpisodeId;
use crate::error::{Error, Result};
use crate::progress::{Progress, Step};

/// Rows per batch. Ids and flags are small, so batches can be large.
const BATCH_ROWS: usize = 65_536;

/// The recorded names of the columns that the first pass reads.
#[derive(Debug, Clone, Default)]
pub(super) struct ScanColumns {
    /// Episode id.
    pub eps_id: String,
    /// Time step.
    pub t: Option<String>,
    /// Flag.
    pub terminateds: Option<String>,
    /// Flag.
    pub truncateds: Option<String>,
    /// Columns of the action. A null in the first one marks a row that holds only the last observation.
    pub actions: Vec<String>,
    /// Columns that hold an agent's or a module's id.
    pub agents: Vec<String>,
}

impl ScanColumns {
    /// Whether rows carry their time step.
    pub fn timed(&self) -> bool {
        self.t.is_some()
    }

    fn names(&self, file: &InputFile, group: RowGroupRef) -> Vec<String> {
        let optional = [&self.t, &self.terminateds, &self.truncateds].into_iter().flatten();
        let mut names: Vec<String> = std::iter::once(&self.eps_id).chain(optional).cloned().collect();
        // Decoding actions only to find no null among them would cost as much as reading them.
        names.extend(self.actions.iter().filter(|a| file.null_count(group.row_group, a) != Some(0)).cloned());
        names.extend(self.agents.iter().cloned());
        names.retain(|n| file.schema.column_with_name(n).is_some());
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// The runs of all rows, row groups in parallel.
pub(super) fn scan(rows: &RowMap, columns: &ScanColumns, progress: &dyn Progress) -> Result<Runs> {
    let mut all = Runs::default();
    // Row groups in batches, so that a long log's runs are joined (and shrink) as they come.
    for groups in rows.groups().chunks(256) {
        let scanned: Vec<Result<Runs>> = groups.par_iter().map(|g| scan_group(rows, *g, columns, progress)).collect();
        for (group, runs) in groups.iter().zip(scanned) {
            let first_of_file = rows.files()[group.file].row_groups[group.row_group].first_row == 0;
            all.append(&runs?, columns.timed(), first_of_file && !columns.timed());
        }
    }
    Ok(all)
}

fn scan_group(rows: &RowMap, group: RowGroupRef, columns: &ScanColumns, progress: &dyn Progress) -> Result<Runs> {
    let file = &rows.files()[group.file];
    let names = columns.names(file, group);
    let place = |e: Error| e.file(file.name.clone()).row_group(group.row_group);
    let mut runs = Runs::default();
    let mut row = group.first_row;
    for batch in file.read(group.row_group, &names, BATCH_ROWS).map_err(place)? {
        let batch = batch.map_err(place)?;
        let row_in_file = file.row_groups[group.row_group].first_row + (row - group.first_row);
        scan_batch(&batch, row, row_in_file, columns, &mut runs).map_err(|(at, e)| rows.locate(row + at as u64, e))?;
        row += batch.num_rows() as u64;
        progress.advance(Step { bytes: batch.get_array_memory_size() as u64, ..Step::default() });
    }
    Ok(runs)
}

/// A batch's column as `read` makes it of it; `None` where the file does not have it.
fn optional<T>(
    batch: &RecordBatch,
    name: Option<&String>,
    canonical: &str,
    read: impl Fn(&Arc<dyn Array>) -> Result<T>,
) -> Result<Option<T>> {
    name.and_then(|n| batch.column_by_name(n)).map(|a| read(a).map_err(|e| e.column(canonical))).transpose()
}

fn scan_batch(
    batch: &RecordBatch,
    first_row: u64,
    row_in_file: u64,
    columns: &ScanColumns,
    runs: &mut Runs,
) -> Result<(), (usize, Error)> {
    let whole = |e: Error| (0, e);
    let ids = optional(batch, Some(&columns.eps_id), column::EPS_ID, |a| ingest::ids(a, row_in_file)).map_err(whole)?;
    let ids = ids.ok_or_else(|| (0, Error::usage("the column is missing").column(column::EPS_ID)))?;
    let t: Option<Int64Array> =
        optional(batch, columns.t.as_ref(), column::T, |a| ingest::ints(a, row_in_file)).map_err(whole)?;
    let flag = |name: &Option<String>, canonical| -> Result<Option<BooleanArray>, _> {
        optional(batch, name.as_ref(), canonical, |a| ingest::flags(a, row_in_file)).map_err(whole)
    };
    let terminateds = flag(&columns.terminateds, column::TERMINATEDS)?;
    let truncateds = flag(&columns.truncateds, column::TRUNCATEDS)?;
    let tails = columns.actions.first().and_then(|n| batch.column_by_name(n)).and_then(Array::logical_nulls);
    for agents in columns.agents.iter().filter_map(|n| batch.column_by_name(n)) {
        let nulls = agents.logical_nulls().map_or(0, |n| n.null_count());
        if nulls < agents.len() {
            let error = Error::usage("the rows name agents or modules; multi-agent data are not built yet")
                .hint("map the columns away if every row is the same agent's");
            return Err((0, error));
        }
    }

    // The number of the episode changes rarely; asking for it by id only then keeps strings out of the loop.
    let mut current: Option<(usize, usize)> = None; // (row whose id it is, number)
    for i in 0..batch.num_rows() {
        let episode = match current {
            Some((at, number)) if same_id(&ids, at, i) => number,
            _ => runs.number(&id_at(&ids, i)),
        };
        current = Some((i, episode));
        let tail = tails.as_ref().is_some_and(|n| n.is_null(i));
        let set = |flags: &Option<BooleanArray>, name: &str| match flags {
            Some(f) if f.is_null(i) && !tail => Err((
                i,
                Error::data("found null, expected true or false").column(name).episode(id_at(&ids, i).to_string()),
            )),
            Some(f) => Ok(!f.is_null(i) && f.value(i)),
            None => Ok(false),
        };
        let done = Done {
            terminated: set(&terminateds, column::TERMINATEDS)?,
            truncated: set(&truncateds, column::TRUNCATEDS)?,
        };
        let t = match &t {
            Some(t) if t.is_null(i) => {
                return Err((
                    i,
                    Error::data("found null, expected a time step")
                        .column(column::T)
                        .episode(id_at(&ids, i).to_string()),
                ));
            }
            Some(t) => Some(t.value(i)),
            None => None,
        };
        runs.push_row(episode, ScanRow { row: first_row + i as u64, t, done, tail });
    }
    Ok(())
}

fn id_at(ids: &Ids, i: usize) -> EpisodeId {
    match ids {
        Ids::Int(a) => EpisodeId::Int(a.value(i)),
        Ids::Str(a) => EpisodeId::Str(a.value(i).into()),
    }
}

fn same_id(ids: &Ids, a: usize, b: usize) -> bool {
    match ids {
        Ids::Int(ids) => ids.value(a) == ids.value(b),
        Ids::Str(ids) => ids.value(a) == ids.value(b),
    }
}
