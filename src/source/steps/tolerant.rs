//! Rows of steps where malformed episodes are left out: what can be read is read, the rest is put aside with its reason.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow::array::RecordBatch;

use super::StepsSource;
use super::reading::Reading;
use super::shape::Leaf;
use crate::episode::{Columns, EpisodeId, EpisodeLayout};
use crate::error::{Error, Result};
use crate::source::blocks::{Block, BlockData, BlockRows, LeafNulls, nulls_of};
use crate::source::faults::{bad_rows, is_of_data};
use crate::source::index::Index;
use crate::source::rows::RowGroupRef;
use crate::source::runs::Run;
use crate::source::scan::Scanned;
use crate::tensor::{DType, Tensor, TensorBuilder, TensorType};

/// Decoded bytes of a block. A constant: where a damaged row group breaks off must not depend on the memory that a run has.
const BLOCK_BYTES: usize = 4 << 20;

/// All runs of an id are left out, for a reason that all of them share.
pub(super) fn whole_id(index: &mut Index, id: &EpisodeId, runs: &[Run], error: Error) {
    let steps = runs.iter().filter(|r| !r.tail && !r.hanging).map(|r| r.span.len()).sum();
    index.faults.episode(id, error);
    index.faults.add(id, runs.iter().map(|r| r.span), 1, steps);
    index.episodes_read += 1;
    index.steps_read += steps;
}

/// What the scan found: rows without an owner, owners with a bad row, and row groups that are lost.
pub(super) fn from_scan(source: &StepsSource, scanned: &mut Scanned, offsets: &[usize], index: &mut Index) {
    let mut bad = std::mem::take(&mut scanned.bad);
    let lost = std::mem::take(&mut scanned.lost);
    bad.sort_by_key(|(_, rows, _)| rows.first());
    // Owners that have no other row are no episode of any run, and are counted here.
    let mut counted: HashSet<&EpisodeId> = scanned.runs.ids.iter().map(|who| &who.id).collect();
    for (who, rows, error) in &bad {
        let Some(who) = who else {
            index.faults.rows(*rows, error.clone());
            continue;
        };
        // Such rows are in no run: they count as steps of their episode.
        let episodes = u64::from(counted.insert(&who.id));
        index.faults.episode(&who.id, error.clone());
        index.faults.add(&who.id, [*rows], episodes, rows.len());
        index.episodes_read += episodes;
        index.steps_read += rows.len();
    }
    for (episode, who) in scanned.runs.ids.iter().enumerate() {
        if offsets[episode] == offsets[episode + 1] {
            index.faults.add(&who.id, [], 1, 0);
            index.episodes_read += 1;
        }
    }
    for (group, error) in lost {
        if !source.scan.timed() {
            around_a_hole(source, scanned, offsets, group, &error, index);
        }
        index.faults.row_group(group, error);
    }
}

/// Without `t` a lost row group leaves no gap that would show. Episodes that may have lost rows in it are left out: those
/// that were open in the file before it, and the one that the file goes on with behind it.
fn around_a_hole(
    source: &StepsSource,
    scanned: &Scanned,
    offsets: &[usize],
    hole: RowGroupRef,
    error: &Error,
    index: &mut Index,
) {
    let rows = source.rows.groups().iter().filter(|g| g.file == hole.file);
    let (begin, end) = (rows.clone().map(|g| g.first_row).min(), rows.map(|g| g.first_row + g.rows).max());
    let (begin, end) = (begin.unwrap_or(hole.first_row), end.unwrap_or(hole.first_row));
    let mut suspects: BTreeMap<u64, usize> = BTreeMap::new();
    let mut behind: Option<(u64, usize)> = None;
    for episode in 0..scanned.runs.ids.len() {
        let runs = &scanned.runs.runs[offsets[episode]..offsets[episode + 1]];
        let before = runs.iter().rfind(|r| (begin..hole.first_row).contains(&r.span.first()));
        if let Some(run) = before.filter(|r| !r.done.any() && !r.tail) {
            suspects.insert(run.span.first(), episode);
        }
        let after =
            runs.iter().map(|r| r.span.first()).filter(|row| (hole.first_row + hole.rows..end).contains(row)).min();
        if let Some(row) = after.filter(|row| behind.is_none_or(|(first, _)| *row < first)) {
            behind = Some((row, episode));
        }
    }
    suspects.extend(behind);
    for episode in suspects.into_values() {
        let what = format!("the episode may have lost rows in a row group that cannot be read: {}", error.what());
        let place = error.place().clone();
        index.faults.episode(&scanned.runs.ids[episode].id, Error::data(what).at(place));
    }
}

/// The blocks of a row group. Rows that cannot be read are zeros, and bad rows of their block.
pub(super) fn blocks(
    source: &StepsSource,
    group: RowGroupRef,
    layout: &EpisodeLayout,
    flags: bool,
) -> impl Iterator<Item = Result<Block>> + Send + use<> {
    let reading = Reading::new(source, group, layout, flags);
    let batch_rows = reading.batch_rows(BLOCK_BYTES);
    let mut batches = Some(reading.batches(batch_rows));
    let mut row = group.first_row;
    let mut broken: Option<Error> = None;
    std::iter::from_fn(move || {
        let left = group.first_row + group.rows - row;
        if left == 0 {
            return None;
        }
        let batch = match &mut batches {
            Some(Ok(iter)) => iter.next(),
            Some(Err(e)) => Some(Err(e.clone())),
            None => None,
        };
        let decoded = match batch {
            Some(Ok(batch)) => {
                what_can_be(&reading, &batch, reading.in_file(row)).map(|decoded| (batch.num_rows(), decoded))
            }
            Some(Err(e)) if !is_of_data(&e) => Err(e),
            other => {
                // Damaged from here on: zeros, block by block, all of them bad.
                batches = None;
                if let Some(Err(e)) = other {
                    broken.get_or_insert(reading.place(e));
                }
                let error =
                    broken.get_or_insert_with(|| reading.place(Error::internal("a row group ended early"))).clone();
                let rows = usize::try_from(left).unwrap_or(usize::MAX).min(batch_rows);
                let columns = columns_of(&reading).map(|(name, ty)| (name, Tensor::zeros(ty, rows))).collect();
                // The rows share the error.
                Ok((rows, (columns, Vec::new(), vec![error; rows].into_iter().enumerate().collect())))
            }
        };
        Some(decoded.map_err(|e| reading.place(e)).map(|(rows, (columns, nulls, bad))| {
            let bytes = columns.iter().map(|(_, t)| t.bytes().len()).sum();
            let end = row + rows as u64;
            let block = Block { rows: BlockRows::All(row..end), bytes, data: BlockData::Steps { columns, nulls, bad } };
            row = end;
            block
        }))
    })
}

type Decoded = (Columns, Vec<LeafNulls>, Vec<(usize, Error)>);

/// The columns of the blocks, flags behind the others.
fn columns_of(reading: &Reading) -> impl Iterator<Item = Leaf> {
    let flag = TensorType::new(DType::Bool, []);
    let flags = reading.flags.iter().map(move |(name, _)| (Arc::from(*name), flag.clone()));
    reading.leaves.iter().cloned().chain(flags)
}

/// A batch's columns. Rows that cannot be decoded are zeros.
fn what_can_be(reading: &Reading, batch: &RecordBatch, row_in_file: u64) -> Result<Decoded> {
    let rows = batch.num_rows();
    let decode = |start: usize, len: usize| reading.decode(&batch.slice(start, len), row_in_file + start as u64);
    let (mut good, bad) = bad_rows(rows, decode)?;
    let bad = bad.into_iter().map(|(i, e)| (i, reading.place(e.row(row_in_file + i as u64)))).collect();
    if let (1, Some((0, (columns, _)))) = (good.len(), good.first())
        && columns.iter().all(|(_, t)| t.rows() == rows)
        && let Some((_, (columns, nulls))) = good.pop()
    {
        return Ok((columns, nulls, bad));
    }
    // Put together around the bad rows, by position: a leaf may stand there in several types.
    let mut nulls: Vec<LeafNulls> = Vec::new();
    let columns = columns_of(reading).enumerate().map(|(at, (name, ty))| {
        let mut out = TensorBuilder::with_capacity(ty, rows);
        let mut valid = vec![true; rows];
        for (start, (part, part_nulls)) in &good {
            let tensor = part.at(at);
            out.extend_zeros(start - out.rows());
            out.extend(tensor, 0, tensor.rows());
            if let Some(nulls) = nulls_of(part_nulls, at) {
                (0..nulls.len()).filter(|i| nulls.is_null(*i)).for_each(|i| valid[start + i] = false);
            }
        }
        out.extend_zeros(rows - out.rows());
        if valid.contains(&false) {
            nulls.push((at, valid.into()));
        }
        (name, out.finish())
    });
    let columns: Columns = columns.collect();
    Ok((columns, nulls, bad))
}
