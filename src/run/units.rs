//! Units of work: consecutive episodes that are put together and compiled in one go.
//!
//! ```text
//! entries   e0 e1 e2 | e3 | e4 e5 ...      cut where a unit has enough bytes; an episode is never cut
//! rows      0 ..... 81 .. 97 ........      a unit is ready once every row up to `end` was read
//! ```
//!
//! Units follow from the index alone and have no influence on the output's bytes: rows are re-cut into row groups
//! afterwards.

use std::ops::Range;

use crate::source::index::{Entry, Index};

/// Consecutive entries of the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unit {
    /// The entries.
    pub entries: Range<usize>,
    /// Their steps.
    pub steps: u64,
    /// The steps of their rows in the batch, padding included, as far as lengths tell.
    pub weight: u64,
    /// The first row that any of them needs.
    pub begin: u64,
    /// One past the last row that any of them needs.
    pub end: u64,
}

/// The steps of an entry's rows where a row has `period` of them. Many empty episodes are work too, so an entry counts at
/// least one.
pub(super) fn weight(entry: &Entry, period: u64) -> u64 {
    entry.steps.max(1).checked_next_multiple_of(period.max(1)).unwrap_or(u64::MAX)
}

/// Where units were cut before: the same units must do the same work in another process.
#[derive(Debug, Clone, Default)]
pub(super) struct Cuts {
    /// Number of the first unit in the data set.
    pub first: usize,
    /// Entries of each unit.
    pub entries: Vec<usize>,
}

/// The units of an index, cut as they were before.
pub(super) fn along(index: &Index, period: u64, cuts: &Cuts) -> Vec<Unit> {
    let mut start = 0;
    let unit = |&n: &usize| {
        let entries = start..start + n;
        start += n;
        let mut unit = Unit { entries: entries.clone(), steps: 0, weight: 0, begin: u64::MAX, end: 0 };
        index.entries[entries].iter().for_each(|entry| unit.add(entry, period, index));
        unit
    };
    cuts.entries.iter().map(unit).collect()
}

impl Unit {
    fn add(&mut self, entry: &Entry, period: u64, index: &Index) {
        self.weight = self.weight.saturating_add(weight(entry, period));
        self.steps += entry.steps;
        for span in entry.rows(&index.spans) {
            self.begin = self.begin.min(span.first());
            self.end = self.end.max(span.end());
        }
    }
}

/// Cuts the index into units of about `unit_bytes`, at `step_bytes` a step and `period` steps a row.
pub(super) fn cut(index: &Index, period: u64, step_bytes: usize, unit_bytes: usize) -> Vec<Unit> {
    let unit_steps = (unit_bytes / step_bytes.max(1)).max(1) as u64;
    let mut units: Vec<Unit> = Vec::new();
    let mut room = 0;
    // Where RLlib's keys move rows, a unit must hold all that change places: it may end only where the entries before
    // are the first ones in every order.
    let mut reach = 0;
    for (i, entry) in index.entries.iter().enumerate() {
        if room == 0 && reach <= i as u64 {
            units.push(Unit { entries: i..i, steps: 0, weight: 0, begin: u64::MAX, end: 0 });
            room = unit_steps;
        }
        let Some(unit) = units.last_mut() else { continue };
        room = room.saturating_sub(weight(entry, period));
        reach = reach.max(u64::from(entry.ordinal.max(entry.bare_rank)) + 1);
        unit.entries.end = i + 1;
        unit.add(entry, period, index);
    }
    units
}

/// For each unit, the first row that it or any later unit needs; one more entry at the end, for none.
pub(super) fn still_needed(units: &[Unit]) -> Vec<u64> {
    let mut out = vec![u64::MAX; units.len() + 1];
    for (i, unit) in units.iter().enumerate().rev() {
        out[i] = out[i + 1].min(unit.begin);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::episode::EpisodeId;
    use crate::source::index::Span;

    fn entry(spans: Range<usize>, steps: u64) -> Entry {
        Entry {
            id: EpisodeId::Int(0),
            module: 0,
            ordinal: 0,
            bare_rank: 0,
            spans,
            steps,
            t_started: 0,
            terminated: true,
            truncated: false,
            rare: None,
        }
    }

    #[test]
    fn entries_that_change_places_stay_together() {
        let entry = |(i, ordinal): (u32, u32)| Entry { ordinal, bare_rank: i, ..entry(0..0, 9) };
        let entries = (0..).zip([0, 2, 3, 1, 4]).map(entry).collect();
        let units = cut(&Index { entries, ..Index::default() }, 1, 1, 1);
        assert_eq!(units.iter().map(|u| u.entries.clone()).collect::<Vec<_>>(), [0..1, 1..4, 4..5]);
    }

    #[test]
    fn episodes_are_never_cut_and_blocks_are_kept_while_needed() {
        let spans = vec![
            Span::new(0, 2),
            Span::new(10, 2), // the second half of entry 0, behind entry 1
            Span::new(2, 8),
            Span::new(12, 1),
        ];
        let entries = vec![entry(0..2, 4), entry(2..3, 8), entry(3..4, 1)];
        let index = Index { entries, spans, ..Index::default() };
        let units = cut(&index, 1, 1, 3);
        assert_eq!(
            units.iter().map(|u| (u.begin, u.end, u.steps)).collect::<Vec<_>>(),
            [(0, 12, 4), (2, 10, 8), (12, 13, 1)]
        );
        assert_eq!(still_needed(&units), [0, 2, 12, u64::MAX]);
        assert_eq!(cut(&index, 1, 1, 1000).len(), 1);
        // Rows of five steps: padded, the episodes of 4, 8 and 1 have 5, 10 and 5.
        let padded = cut(&index, 5, 1, 6);
        assert_eq!(padded.iter().map(|u| (u.entries.clone(), u.weight)).collect::<Vec<_>>(), [(0..2, 15), (2..3, 5)]);
    }
}
