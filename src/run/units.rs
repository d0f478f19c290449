//! Units of work: consecutive episodes that are put together and compiled in one go.
//!
//! ```text
//! entries   e0 e1 e2 | e3 | e4 | e4 | e4 | e5 ...   cut where a unit has enough bytes, an episode only where it alone
//! rows      0 ..... 81 .. 97 ....................   has more than that, and the pieces take slices of it
//!                                                   a unit is ready once every row up to `end` was read
//! ```
//!
//! Units follow from the index alone and have no influence on the output's bytes: rows are re-cut into row groups
//! afterwards.

use std::borrow::Cow;
use std::ops::Range;

use crate::pipeline::{NeedsWhole, Slicing};
use crate::source::index::{Entry, Index, Span};
use crate::source::slices::{self, Slice};

/// Where a unit is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cut {
    /// The entries.
    pub entries: Range<usize>,
    /// Which part of its only entry it is, if not all of it; and how many rows that has in front, at most.
    pub slice: Option<Box<(Slice, u64)>>,
}

impl Cut {
    /// Its steps.
    pub fn steps(&self, index: &Index) -> u64 {
        match &self.slice {
            Some(slice) => slice.0.steps(),
            None => index.entries[self.entries.clone()].iter().map(|entry| entry.steps).sum(),
        }
    }

    /// Its entries, or the slice of the only one.
    pub fn entries<'a>(&self, index: &'a Index) -> Cow<'a, [Entry]> {
        let entries = &index.entries[self.entries.clone()];
        match (&self.slice, entries) {
            (Some(slice), [entry]) => Cow::Owned(vec![slice.0.of(entry, &index.spans, slice.1)]),
            _ => Cow::Borrowed(entries),
        }
    }
}

/// Where units were cut before: the same units must do the same work in another process.
#[derive(Debug, Clone, Default)]
pub(super) struct Cuts {
    /// Number of the first unit in the data set.
    pub first: usize,
    pub units: Vec<Cut>,
}

impl Cuts {
    /// Of an index whose units have so many entries each.
    pub fn of(first: usize, entries: &[usize]) -> Self {
        let mut end = 0;
        let cut = |n: &usize| {
            let start = end;
            end += n;
            Cut { entries: start..end, slice: None }
        };
        Self { first, units: entries.iter().map(cut).collect() }
    }
}

/// Consecutive entries of the index, or a slice of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unit {
    /// Which.
    pub cut: Cut,
    /// The entries that begin in it: a slice is counted with the first one of its entry.
    pub begins: usize,
    /// Their steps.
    pub steps: u64,
    /// The steps of their rows in the batch, padding included, as far as lengths tell; and what they have in front.
    pub weight: u64,
    /// The first row that any of them needs.
    pub begin: u64,
    /// One past the last row that any of them needs.
    pub end: u64,
}

/// The steps of an entry's rows where a row has `period` of them. Many empty episodes are work too, so an entry counts at
/// least one.
pub(super) fn weight(entry: &Entry, period: u64) -> u64 {
    let padded = entry.steps.max(1).checked_next_multiple_of(period.max(1)).unwrap_or(u64::MAX);
    padded.saturating_add(entry.look_back().iter().map(|s| s.len()).sum())
}

/// How an index is cut into units.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size<'a> {
    /// Steps of a row of the batch.
    pub period: u64,
    /// Steps of a unit, more or less.
    pub steps: u64,
    /// The most steps that there is room for.
    pub most: u64,
    /// Where each module's episodes may be cut.
    pub slicing: &'a [Result<Slicing, NeedsWhole>],
}

impl Size<'_> {
    /// Steps of an entry's slices and rows in front of them, if it must be cut and may be.
    fn slices(self, entry: &Entry) -> Option<(u64, u64)> {
        let weight = weight(entry, self.period);
        // An entry of less than two units goes well as it is, and one that is a slice already is none of ours to cut.
        if weight <= self.steps.saturating_mul(2).min(self.most) || entry.slice().is_some() {
            return None;
        }
        let slicing = self.slicing.get(entry.module as usize)?.ok()?;
        if slicing.from_start && entry.t_started != 0 {
            return None;
        }
        let (period, look_back) = (slicing.period as u64, slicing.look_back as u64);
        // What stands in front of a slice is work that was done before: no more of it than of what is new.
        let steps = self.steps.max(look_back).min(self.most.saturating_sub(look_back)).max(1);
        let steps = (steps / period).max(1).saturating_mul(period);
        (steps < entry.steps).then_some((steps, look_back))
    }
}

/// The units of an index, cut as they were before.
pub(super) fn along(index: &Index, period: u64, cuts: &Cuts) -> Vec<Unit> {
    let unit = |cut: &Cut| {
        let mut unit = Unit::new(cut.clone());
        cut.entries(index).iter().for_each(|entry| unit.add(entry, period, index));
        unit
    };
    cuts.units.iter().map(unit).collect()
}

impl Unit {
    /// One to which its entries have to be added.
    fn new(cut: Cut) -> Self {
        Self { cut, begins: 0, steps: 0, weight: 0, begin: u64::MAX, end: 0 }
    }

    fn add(&mut self, entry: &Entry, period: u64, index: &Index) {
        self.weight = self.weight.saturating_add(weight(entry, period));
        self.begins += usize::from(entry.start() == 0);
        self.steps += entry.steps;
        for span in entry.rows(&index.spans) {
            self.begin = self.begin.min(span.first());
            self.end = self.end.max(span.end());
        }
    }

    /// Every row that it needs.
    pub fn rows(&self, index: &Index) -> Vec<Span> {
        self.cut.entries(index).iter().flat_map(|entry| entry.rows(&index.spans)).collect()
    }
}

/// Cuts the index into units.
pub(super) fn cut(index: &Index, size: Size<'_>) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    let mut room = 0;
    // Where RLlib's keys move rows, a unit must hold all that change places: it may end only where the entries before
    // are the first ones in every order.
    let mut reach = 0;
    for (i, entry) in index.entries.iter().enumerate() {
        let may_end = reach <= i as u64;
        reach = reach.max(u64::from(entry.ordinal.max(entry.bare_rank)) + 1);
        // One that stands alone in every order may come in slices.
        let alone = may_end && reach <= i as u64 + 1;
        if let Some((steps, look_back)) = size.slices(entry).filter(|_| alone) {
            for slice in slices::cut(entry, &index.spans, steps) {
                let mut unit = Unit::new(Cut { entries: i..i + 1, slice: Some(Box::new((slice, look_back))) });
                unit.add(&slice.of(entry, &index.spans, look_back), size.period, index);
                units.push(unit);
            }
            room = 0;
            continue;
        }
        let weight = weight(entry, size.period);
        let fits = units.last().is_some_and(|unit| unit.weight.saturating_add(weight) <= size.most);
        if (room == 0 || !fits) && may_end {
            units.push(Unit::new(Cut { entries: i..i, slice: None }));
            room = size.steps;
        }
        let Some(unit) = units.last_mut() else { continue };
        room = room.saturating_sub(weight);
        unit.cut.entries.end = i + 1;
        unit.add(entry, size.period, index);
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

    /// Units of about `steps` steps, with room for as many as there are. Episodes stay whole.
    fn cut(index: &Index, period: u64, steps: u64) -> Vec<Unit> {
        let whole = [Err(NeedsWhole { piece: 0, behind: None })];
        super::cut(index, Size { period, steps, most: u64::MAX, slicing: &whole })
    }

    #[test]
    fn entries_that_change_places_stay_together() {
        let entry = |(i, ordinal): (u32, u32)| Entry { ordinal, bare_rank: i, ..entry(0..0, 9) };
        let entries = (0..).zip([0, 2, 3, 1, 4]).map(entry).collect();
        let units = cut(&Index { entries, ..Index::default() }, 1, 1);
        assert_eq!(units.iter().map(|u| u.cut.entries.clone()).collect::<Vec<_>>(), [0..1, 1..4, 4..5]);
    }

    #[test]
    fn blocks_are_kept_while_needed() {
        let spans = vec![
            Span::new(0, 2),
            Span::new(10, 2), // the second half of entry 0, behind entry 1
            Span::new(2, 8),
            Span::new(12, 1),
        ];
        let entries = vec![entry(0..2, 4), entry(2..3, 8), entry(3..4, 1)];
        let index = Index { entries, spans, ..Index::default() };
        let units = cut(&index, 1, 3);
        assert_eq!(
            units.iter().map(|u| (u.begin, u.end, u.steps)).collect::<Vec<_>>(),
            [(0, 12, 4), (2, 10, 8), (12, 13, 1)]
        );
        assert_eq!(still_needed(&units), [0, 2, 12, u64::MAX]);
        assert_eq!(cut(&index, 1, 1000).len(), 1);
        // Rows of five steps: padded, the episodes of 4, 8 and 1 have 5, 10 and 5.
        let padded = cut(&index, 5, 6);
        assert_eq!(
            padded.iter().map(|u| (u.cut.entries.clone(), u.weight)).collect::<Vec<_>>(),
            [(0..2, 15), (2..3, 5)]
        );
    }
    fn sliced(index: &Index, steps: u64, most: u64, slicing: Slicing) -> Vec<(Range<usize>, u64, u64, Range<u64>)> {
        let units = super::cut(index, Size { period: slicing.period as u64, steps, most, slicing: &[Ok(slicing)] });
        let again = Cuts { first: 0, units: units.iter().map(|u| u.cut.clone()).collect() };
        assert_eq!(along(index, slicing.period as u64, &again), units);
        assert_eq!(units.iter().map(|u| u.begins).sum::<usize>(), index.entries.len());
        units.iter().map(|u| (u.cut.entries.clone(), u.steps, u.weight, u.begin..u.end)).collect()
    }

    #[test]
    fn an_episode_larger_than_two_units_comes_in_slices() {
        let spans = vec![Span::new(0, 6), Span::new(6, 10), Span::new(20, 12), Span::new(32, 2)];
        let numbered =
            |(i, spans, steps): (u32, Range<usize>, u64)| Entry { ordinal: i, bare_rank: i, ..entry(spans, steps) };
        let entries: Vec<Entry> = [(0, 0..1, 6), (1, 1..3, 22), (2, 3..4, 2)].map(numbered).into();
        let index = Index { entries: entries.clone(), spans: spans.clone(), ..Index::default() };
        let anywhere = Slicing { period: 1, look_back: 2, from_start: false };
        let want = [
            (0..1, 6, 6, 0..6),
            (1..2, 8, 8, 6..15),   // and the row behind
            (1..2, 8, 10, 12..27), // and two in front
            (1..2, 6, 8, 24..32),
            (2..3, 2, 2, 32..34),
        ];
        assert_eq!(sliced(&index, 8, 1000, anywhere), want);
        let by_four = Slicing { period: 4, ..anywhere };
        let of =
            |all: &[(Range<usize>, u64, u64, Range<u64>)]| all.iter().map(|u| (u.0.start, u.1)).collect::<Vec<_>>();
        assert_eq!(
            of(&sliced(&index, 7, 1000, by_four)),
            [(0, 6), (1, 4), (1, 4), (1, 4), (1, 4), (1, 4), (1, 2), (2, 2)]
        );
        // One that goes on where another left off, where only the start of an episode may be cut; no room for what would
        // stand in front; and one that shares a key.
        let from_start = Slicing { from_start: true, ..anywhere };
        let mut later = index.clone();
        later.entries[1].t_started = 3;
        assert_eq!(of(&sliced(&index, 8, 1000, from_start)), of(&want));
        assert_eq!(of(&sliced(&later, 8, 1000, from_start)), [(0, 28), (2, 2)]);
        assert_eq!(of(&sliced(&index, 1, 3, Slicing { look_back: 9, ..anywhere }))[6..9], [(1, 1), (1, 1), (1, 1)]);
        let mut moved = index;
        (moved.entries[1].ordinal, moved.entries[2].ordinal) = (2, 1);
        assert_eq!(of(&sliced(&moved, 8, 1000, anywhere)), [(0, 30)]);
    }
}
