//! Which rows of two sides match, where their keys are not the same row for row.
//!
//! ```text
//! side a   e0 e0 e0 | e1 e1 | e0 e0       runs of rows of one episode
//! index    e0 -> [0, 3) [5, 7)            one entry an episode (of one agent), by a hash of its id
//!          e1 -> [3, 5)
//! ```
//!
//! Episodes that both sides have are then read again, their `t` alone, and merged: equal `t` match in their turn.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use super::rows::{Keys, Segment, Side};
use super::{Counted, ModuleDifference};
use crate::error::{Error, Result};

/// Rows of one episode: from a row on, so many.
type Run = (u64, u64);

/// The episodes of one side, in order of first appearance.
#[derive(Default)]
struct Index {
    by_hash: HashMap<u128, usize>,
    /// Runs with the number of their episode; sorted by it in the end.
    runs: Vec<(usize, Run)>,
    /// Where each episode's runs start; one more entry for the end.
    offsets: Vec<usize>,
}

impl Index {
    fn of(side: &Side<'_>) -> Result<Self> {
        let mut out = Self::default();
        for group in side.groups() {
            let keys = side.keys(group)?;
            let first = side.first_row(group);
            let mut start = 0;
            for row in 1..=keys.rows {
                if row < keys.rows && keys.same(start, row)? {
                    continue;
                }
                out.push(keys.hash(start)?, (first + start as u64, (row - start) as u64));
                start = row;
            }
        }
        out.runs.sort_by_key(|(episode, _)| *episode);
        out.offsets = vec![0; out.by_hash.len() + 1];
        for (episode, _) in &out.runs {
            out.offsets[episode + 1] += 1;
        }
        for i in 1..out.offsets.len() {
            out.offsets[i] += out.offsets[i - 1];
        }
        Ok(out)
    }

    fn push(&mut self, hash: u128, run: Run) {
        let next = self.by_hash.len();
        let episode = *self.by_hash.entry(hash).or_insert(next);
        match self.runs.last_mut() {
            Some((last, (row, len))) if *last == episode && *row + *len == run.0 => *len += run.1,
            _ => self.runs.push((episode, run)),
        }
    }

    fn runs(&self, episode: usize) -> &[(usize, Run)] {
        &self.runs[self.offsets[episode]..self.offsets[episode + 1]]
    }

    /// The hashes in order of first appearance.
    fn in_order(&self) -> Vec<u128> {
        let mut out = vec![0; self.by_hash.len()];
        let mut pairs: Vec<(usize, u128)> = self.by_hash.iter().map(|(hash, at)| (*at, *hash)).collect();
        pairs.sort_unstable();
        for (at, hash) in pairs {
            out[at] = hash;
        }
        out
    }
}

/// The rows that match.
#[derive(Debug, Default)]
pub(super) struct Matched {
    segments: Vec<Segment>,
    /// The hashes of episodes that are known to have changed: they lack rows on one side.
    pub changed: BTreeSet<u128>,
}

impl Matched {
    /// Row `i` of one side is row `i` of the other.
    pub fn side_by_side(rows: u64) -> Self {
        Self { segments: vec![Segment { a: 0, b: 0, len: rows }], changed: BTreeSet::new() }
    }

    /// The segments in one list a row group of side a, so that each of them is decoded once. `first_rows` are those of
    /// the groups.
    pub fn tasks(&self, first_rows: &[u64]) -> Vec<Vec<Segment>> {
        let mut out: Vec<Vec<Segment>> = Vec::new();
        let mut before = None;
        for segment in &self.segments {
            let mut rest = *segment;
            while rest.len > 0 {
                let next = first_rows.partition_point(|first| *first <= rest.a);
                if before != Some(next) {
                    out.push(Vec::new());
                    before = Some(next);
                }
                let len = rest.len.min(first_rows.get(next).map_or(u64::MAX, |first| first - rest.a));
                if let Some(task) = out.last_mut() {
                    task.push(Segment { len, ..rest });
                }
                rest = Segment { a: rest.a + len, b: rest.b + len, len: rest.len - len };
            }
        }
        out
    }
}

/// Reads `t` of rows, keeping the last row group.
struct Times<'a> {
    side: &'a Side<'a>,
    kept: Option<(usize, Keys)>,
}

impl Times<'_> {
    fn keys(&mut self, row: u64) -> Result<(&Keys, usize)> {
        let group = self.side.group_of(row)?;
        if self.kept.as_ref().is_none_or(|(number, _)| *number != group) {
            self.kept = Some((group, self.side.keys(group)?));
        }
        let at = usize::try_from(row - self.side.first_row(group)).map_err(|_| Error::internal("a large row group"))?;
        let keys = self.kept.as_ref().map(|(_, keys)| keys).ok_or_else(|| Error::internal("no keys"))?;
        Ok((keys, at))
    }

    /// `(t, row)` of all rows of an episode, by `t`; equal ones in their order.
    fn of(&mut self, runs: &[(usize, Run)]) -> Result<Vec<(i64, u64)>> {
        let mut out = Vec::new();
        for &(_, (first, len)) in runs {
            let mut row = first;
            while row < first + len {
                let (keys, at) = self.keys(row)?;
                let here = (keys.rows - at).min(usize::try_from(first + len - row).unwrap_or(usize::MAX));
                out.extend((at..at + here).map(|i| keys.t(i)).zip(row..));
                row += here as u64;
            }
        }
        out.sort_by_key(|(t, _)| *t);
        Ok(out)
    }

    fn name(&mut self, runs: &[(usize, Run)]) -> Result<String> {
        let (keys, at) = self.keys(runs.first().map_or(0, |r| r.1.0))?;
        keys.episode(at)
    }
}

/// Merges the rows of an episode, both by `t`: equal ones match. How many stand on one side alone.
fn merge(rows_a: &[(i64, u64)], rows_b: &[(i64, u64)], segments: &mut Vec<Segment>) -> (u64, u64) {
    let (mut at_a, mut at_b) = (0, 0);
    let (mut removed, mut added) = (0, 0);
    while at_a < rows_a.len() || at_b < rows_b.len() {
        match (rows_a.get(at_a), rows_b.get(at_b)) {
            (Some((t, first)), Some((other, second))) if t == other => {
                match segments.last_mut() {
                    Some(s) if s.a + s.len == *first && s.b + s.len == *second => s.len += 1,
                    _ => segments.push(Segment { a: *first, b: *second, len: 1 }),
                }
                (at_a, at_b) = (at_a + 1, at_b + 1);
            }
            (Some((t, _)), Some((other, _))) if t > other => (at_b, added) = (at_b + 1, added + 1),
            (None, _) => (at_b, added) = (at_b + 1, added + 1),
            _ => (at_a, removed) = (at_a + 1, removed + 1),
        }
    }
    (removed, added)
}

/// Matches the rows of two sides and counts what only one of them has.
pub(super) fn matched(a: &Side<'_>, b: &Side<'_>, out: &mut ModuleDifference) -> Result<Matched> {
    let (index_a, index_b) = (Index::of(a)?, Index::of(b)?);
    let (mut times_a, mut times_b) = (Times { side: a, kept: None }, Times { side: b, kept: None });
    let mut matched = Matched::default();
    let only = |index: &Index, other: &Index, times: &mut Times<'_>, counted: &mut Counted| {
        for (episode, hash) in index.in_order().iter().enumerate() {
            if !other.by_hash.contains_key(hash) {
                let name =
                    if counted.first.len() < super::SHOWN { times.name(index.runs(episode))? } else { String::new() };
                counted.add(|| name);
            }
        }
        Ok::<_, Error>(())
    };
    only(&index_b, &index_a, &mut times_b, &mut out.episodes_added)?;
    only(&index_a, &index_b, &mut times_a, &mut out.episodes_removed)?;
    for (episode, hash) in index_a.in_order().iter().enumerate() {
        let Some(&second) = index_b.by_hash.get(hash) else { continue };
        let (rows_a, rows_b) = (times_a.of(index_a.runs(episode))?, times_b.of(index_b.runs(second))?);
        let (removed, added) = merge(&rows_a, &rows_b, &mut matched.segments);
        if removed + added > 0 {
            let shown = out.episodes_changed.first.len() < super::SHOWN;
            let name = if shown { times_a.name(index_a.runs(episode))? } else { String::new() };
            out.episodes_changed.add(|| name);
            matched.changed.insert(*hash);
        }
        out.rows_removed += removed;
        out.rows_added += added;
    }
    matched.segments.sort_by_key(|s| s.a);
    out.reordered = matched.segments.windows(2).any(|w| w[1].b < w[0].b + w[0].len);
    Ok(matched)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_group_is_the_task_of_one() {
        let segment = |a, b, len| Segment { a, b, len };
        let segments = vec![segment(0, 5, 2), segment(3, 0, 4), segment(9, 9, 1), segment(10, 12, 25)];
        let matched = Matched { segments, changed: BTreeSet::new() };
        let tasks = matched.tasks(&[0, 4, 10, 20]);
        let expected = [
            vec![segment(0, 5, 2), segment(3, 0, 1)],
            vec![segment(4, 1, 3), segment(9, 9, 1)],
            vec![segment(10, 12, 10)],
            vec![segment(20, 22, 15)],
        ];
        assert_eq!(tasks, expected);
        assert!(Matched::side_by_side(0).tasks(&[]).is_empty());
    }
}
