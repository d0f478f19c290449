//! Prints of rows, for telling repetitions from continuations; see [`super::resolve`].

use rayon::prelude::*;

use super::blocks::{Block, BlockData};
use super::index::Span;
use super::resolve::RowPrint;
use super::rows::RowGroupRef;
use super::steps::StepsSource;
use crate::column::{NEXT_OBS, OBS, is_under, rebase};
use crate::episode::Columns;
use crate::error::{Error, Result};

/// Bytes per decoded block.
const BLOCK_BYTES: usize = 4 << 20;

/// Prints by global row.
#[derive(Debug, Default)]
pub(super) struct PrintTable(Vec<(u64, RowPrint)>);

impl PrintTable {
    /// Reads the rows of `spans` (in any order, possibly overlapping) and prints them.
    pub fn read(source: &StepsSource, spans: Vec<Span>) -> Result<Self> {
        let spans = disjoint(spans);
        let wanted = |g: &&RowGroupRef| {
            let after = spans.partition_point(|s| s.row < g.first_row + g.rows);
            spans[..after].last().is_some_and(|s| s.row + s.len > g.first_row)
        };
        let groups: Vec<RowGroupRef> = source.row_map().groups().iter().filter(wanted).copied().collect();
        let parts: Vec<Vec<(u64, RowPrint)>> =
            groups.par_iter().map(|g| group_prints(source, *g, &spans)).collect::<Result<_>>()?;
        Ok(Self(parts.into_iter().flatten().collect()))
    }

    /// The print of a row.
    pub fn get(&self, row: u64) -> Result<RowPrint> {
        let at = self.0.binary_search_by_key(&row, |p| p.0);
        at.map(|i| self.0[i].1).map_err(|_| Error::internal(format!("row {row} was not printed")))
    }
}

/// The rows of `spans` as spans that neither overlap nor touch, in order.
fn disjoint(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable_by_key(|s| s.row);
    let mut out: Vec<Span> = Vec::new();
    for span in spans {
        match out.last_mut() {
            Some(last) if span.row <= last.row + last.len => last.len = last.len.max(span.row + span.len - last.row),
            _ => out.push(span),
        }
    }
    out
}

fn group_prints(source: &StepsSource, group: RowGroupRef, spans: &[Span]) -> Result<Vec<(u64, RowPrint)>> {
    let mut out = Vec::new();
    let covered = |row: u64| {
        let after = spans.partition_point(|s| s.row <= row);
        spans[..after].last().is_some_and(|s| row < s.row + s.len)
    };
    for block in source.blocks(group, BLOCK_BYTES, true)? {
        let block = block?;
        for i in 0..usize::try_from(block.rows).unwrap_or(0) {
            let row = block.first_row + i as u64;
            if covered(row) {
                out.push((row, print(&block, i)));
            }
        }
    }
    Ok(out)
}

fn print(block: &Block, i: usize) -> RowPrint {
    let BlockData::Steps { columns, nulls } = &block.data else {
        return RowPrint { content: 0, obs: 0, next_obs: None };
    };
    let is_null = |name: &str| nulls.iter().any(|(n, nulls)| &**n == name && nulls.is_null(i));
    let mut content = blake3::Hasher::new();
    for (name, tensor) in columns.iter() {
        content.update(&[u8::from(is_null(name))]);
        content.update(tensor.row(i));
    }
    let mut wide = [0; 16];
    wide.copy_from_slice(&content.finalize().as_bytes()[..16]);
    let leaves: Vec<String> = columns.under(OBS).map(|(n, _)| n.to_string()).collect();
    let next: Vec<String> = leaves.iter().map(|n| rebase(n, NEXT_OBS)).collect();
    let has_next = !next.is_empty() && next.iter().all(|n| columns.get(n).is_some() && !is_null(n));
    RowPrint {
        content: u128::from_le_bytes(wide),
        obs: narrow(columns, &leaves, i),
        next_obs: has_next.then(|| narrow(columns, &next, i)),
    }
}

/// A print of some columns of a row.
fn narrow(columns: &Columns, names: &[String], i: usize) -> u64 {
    debug_assert!(names.iter().all(|n| is_under(n, OBS) || is_under(n, NEXT_OBS)));
    let mut hasher = blake3::Hasher::new();
    for tensor in names.iter().filter_map(|n| columns.get(n)) {
        hasher.update(tensor.row(i));
    }
    let mut out = [0; 8];
    out.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(out)
}
