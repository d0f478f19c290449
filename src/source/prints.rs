//! Prints of rows, for telling repetitions from continuations; see [`super::resolve`].

use std::ops::Range;

use rayon::prelude::*;

use super::blocks::{Block, BlockData, nulls_of};
use super::index::Span;
use super::resolve::{RowPrint, Unread};
use super::rows::RowGroupRef;
use super::steps::StepsSource;
use crate::column::{ACTIONS, INFOS, NEXT_OBS, OBS, REWARDS, TERMINATEDS, TRUNCATEDS, is_under, rebase, root};
use crate::episode::EpisodeLayout;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Bytes per decoded block.
const BLOCK_BYTES: usize = 4 << 20;

/// Prints by global row.
#[derive(Debug, Default)]
pub(super) struct PrintTable(Vec<(u64, RowPrint)>);

impl PrintTable {
    /// Reads the rows of `spans` (in any order, possibly overlapping) and prints them.
    pub fn read(source: &StepsSource, layout: &EpisodeLayout, spans: Vec<Span>) -> Result<Self> {
        let ranges = disjoint(spans);
        let wanted = |g: &&RowGroupRef| {
            let after = ranges.partition_point(|r| r.start < g.first_row + g.rows);
            ranges[..after].last().is_some_and(|r| r.end > g.first_row)
        };
        let groups: Vec<RowGroupRef> = source.row_map().groups().iter().filter(wanted).copied().collect();
        let parts: Vec<Vec<(u64, RowPrint)>> =
            groups.par_iter().map(|g| group_prints(source, layout, *g, &ranges)).collect::<Result<_>>()?;
        Ok(Self(parts.into_iter().flatten().collect()))
    }

    /// The print of a row.
    pub fn get(&self, row: u64) -> Result<RowPrint> {
        let at = self.0.binary_search_by_key(&row, |p| p.0);
        at.map(|i| self.0[i].1).map_err(|_| Error::internal(format!("row {row} was not printed")))
    }
}

/// Row ranges that hold the rows of `spans` and neither overlap nor touch, in order. Spans that skip rows are rare
/// here (rows that may be repetitions stand side by side); what they skip is printed in vain.
fn disjoint(mut spans: Vec<Span>) -> Vec<Range<u64>> {
    spans.sort_unstable_by_key(|s| s.first());
    let mut out: Vec<Range<u64>> = Vec::new();
    for span in spans {
        match out.last_mut() {
            Some(last) if span.first() <= last.end => last.end = last.end.max(span.end()),
            _ => out.push(span.first()..span.end()),
        }
    }
    out
}

fn group_prints(
    source: &StepsSource,
    layout: &EpisodeLayout,
    group: RowGroupRef,
    ranges: &[Range<u64>],
) -> Result<Vec<(u64, RowPrint)>> {
    let mut out = Vec::new();
    let covered = |row: u64| {
        let after = ranges.partition_point(|r| r.start <= row);
        ranges[..after].last().is_some_and(|r| row < r.end)
    };
    for block in source.blocks(group, layout, BLOCK_BYTES, true)? {
        let block = block?;
        for i in 0..usize::try_from(block.rows.len()).unwrap_or(0) {
            let row = block.rows.at(i);
            if covered(row) {
                out.push((row, print(&block, i)));
            }
        }
    }
    Ok(out)
}

fn print(block: &Block, i: usize) -> RowPrint {
    let BlockData::Steps { columns, nulls, .. } = &block.data else {
        return RowPrint { content: 0, obs: 0, next_obs: None, unread: Unread::default() };
    };
    let is_null = |at: usize| nulls_of(nulls, at).is_some_and(|nulls| nulls.is_null(i));
    let mut content = blake3::Hasher::new();
    for (at, (_, tensor)) in columns.iter().enumerate() {
        content.update(&[u8::from(is_null(at))]);
        content.update(tensor.row(i));
    }
    let mut wide = [0; 16];
    wide.copy_from_slice(&content.finalize().as_bytes()[..16]);
    // Of a leaf in several types, the row has one; leaves of other modules it has not.
    let valid = |root| columns.iter().enumerate().filter(move |(at, (n, _))| is_under(n, root) && !is_null(*at));
    let mut next: Vec<(String, &Tensor)> = valid(NEXT_OBS).map(|(_, (n, t))| (rebase(n, OBS), t)).collect();
    let mut obs: Vec<(String, &Tensor)> = valid(OBS).map(|(_, (n, t))| (n.to_string(), t)).collect();
    next.sort_by(|a, b| a.0.cmp(&b.0));
    obs.sort_by(|a, b| a.0.cmp(&b.0));
    let holds = |at: usize, tensor: &Tensor| !is_null(at) && !tensor.is_zero(i);
    let is_output = |name: &str| !matches!(root(name), OBS | ACTIONS | REWARDS | INFOS | TERMINATEDS | TRUNCATEDS);
    let any = |is: &dyn Fn(&str) -> bool| columns.iter().enumerate().any(|(at, (n, t))| is(n) && holds(at, t));
    RowPrint {
        unread: Unread { reward: any(&|name| root(name) == REWARDS), output: any(&is_output) },
        content: u128::from_le_bytes(wide),
        obs: narrow(&obs, i),
        next_obs: (!next.is_empty()).then(|| narrow(&next, i)),
    }
}

/// A print of some columns of a row.
fn narrow(columns: &[(String, &Tensor)], i: usize) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for (_, tensor) in columns {
        hasher.update(tensor.row(i));
    }
    let mut out = [0; 8];
    out.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(out)
}
