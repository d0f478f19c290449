//! Slices of an entry: consecutive steps of an episode that is larger than memory, put together as a chunk of its own.
//!
//! ```text
//! entry      spans [0, 4) [9, 12)      steps  0 1 2 3 4 5 6
//! slice 1    steps 3 4 5               spans [3, 4) [9, 11)     look-back of 2: [1, 3)     behind: row 11
//! ```
//!
//! A [`Slice`] is a few numbers; [`Slice::of`] makes the entry of it when its turn comes.

use super::index::{Entry, Rare, Span};

/// Consecutive steps of an entry, and where the first of them lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Steps of the entry before it.
    start: u64,
    steps: u64,
    /// The span that holds its first row, counted from the entry's first one.
    span: usize,
    /// Which row of that span it is.
    row: u64,
}

/// What the entry of a slice has that no recorded one has.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Sliced {
    /// Steps of the recorded chunk before it.
    pub start: u64,
    /// Its rows in time order.
    pub spans: Vec<Span>,
    /// The rows right before its first one, oldest first.
    pub look_back: Vec<Span>,
    /// Rewards that came while the agent did not act: the look-back's step they are added to, and the row that holds them.
    pub look_back_hanging: Vec<(u64, u64)>,
    /// The row of the step after its last one, if the chunk goes on.
    pub behind: Option<u64>,
}

/// Cuts an entry into slices of `steps` steps, the last one shorter.
pub fn cut<'a>(entry: &'a Entry, all: &'a [Span], steps: u64) -> impl Iterator<Item = Slice> + use<'a> {
    let own = entry.spans(all);
    let (steps, total) = (steps.max(1), entry.steps);
    let mut next = Slice { start: 0, steps: 0, span: 0, row: 0 };
    std::iter::from_fn(move || {
        if next.start >= total {
            return None;
        }
        let slice = Slice { steps: steps.min(total - next.start), ..next };
        next.start += slice.steps;
        let mut left = slice.steps;
        while let Some(span) = own.get(next.span)
            && left > 0
        {
            let taken = left.min(span.len() - next.row);
            (left, next.row) = (left - taken, next.row + taken);
            if next.row == span.len() {
                (next.span, next.row) = (next.span + 1, 0);
            }
        }
        Some(slice)
    })
}

impl Slice {
    /// Number of steps.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// The entry of this slice of `entry`, with up to `look_back` rows in front.
    #[must_use]
    pub fn of(&self, entry: &Entry, all: &[Span], look_back: u64) -> Entry {
        let own = entry.spans(all);
        let mut spans = Vec::new();
        let (mut at, mut row, mut left) = (self.span, self.row, self.steps);
        while let Some(span) = own.get(at)
            && (left > 0 || row == span.len())
        {
            let part = span.slice(row, left);
            (left, row) = (left - part.len(), row + part.len());
            if !part.is_empty() {
                spans.push(part);
            }
            if row == span.len() {
                (at, row) = (at + 1, 0);
            }
        }
        let behind = own.get(at).map(|span| span.row(row));

        let before = look_back.min(self.start);
        let mut look_back = Vec::new();
        let (mut at, mut row, mut left) = (self.span, self.row, before);
        while left > 0 {
            if row == 0 {
                let Some(earlier) = at.checked_sub(1) else { break };
                (at, row) = (earlier, own[earlier].len());
                continue;
            }
            let taken = left.min(row);
            (left, row) = (left - taken, row - taken);
            look_back.push(own[at].slice(row, taken));
        }
        look_back.reverse();

        // In the order of their steps.
        let hanging = |from: u64, steps: u64| -> Vec<(u64, u64)> {
            let all = entry.hanging();
            let start = all.partition_point(|(step, _)| *step < from);
            let own = all[start..].iter().take_while(|(step, _)| *step < from + steps);
            own.map(|(step, row)| (step - from, *row)).collect()
        };
        let ends = behind.is_none();
        let rare = Rare {
            agent_id: entry.agent_id().cloned(),
            tail: entry.tail().filter(|_| ends),
            hanging: hanging(self.start, self.steps),
            history: Vec::new(),
            slice: Some(Box::new(Sliced {
                start: self.start,
                spans,
                look_back,
                look_back_hanging: hanging(self.start - before, before),
                behind,
            })),
        };
        Entry {
            id: entry.id.clone(),
            spans: 0..0,
            steps: self.steps,
            t_started: entry.t_started.saturating_add_unsigned(self.start),
            terminated: entry.terminated && ends,
            truncated: entry.truncated && ends,
            rare: rare.boxed(),
            ..*entry
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::episode::EpisodeId;

    /// An episode of 9 steps: rows 0 to 3, 10, 13, 16, 19 and 4.
    fn entry() -> (Entry, Vec<Span>) {
        let strided = [10, 13, 16, 19].map(Span::one).into_iter().reduce(|a, b| a.joined(b).unwrap()).unwrap();
        let spans = vec![Span::new(50, 7), Span::new(0, 4), strided, Span::one(4)];
        let rare = Rare {
            agent_id: Some("a".into()),
            tail: Some(99),
            hanging: vec![(0, 30), (3, 31), (3, 32), (4, 33), (8, 34)],
            ..Rare::default()
        };
        let entry = Entry {
            id: EpisodeId::Int(7),
            spans: 1..4,
            steps: 9,
            t_started: 5,
            ordinal: 3,
            bare_rank: 4,
            module: 1,
            terminated: true,
            truncated: false,
            rare: rare.boxed(),
        };
        (entry, spans)
    }

    fn rows(spans: &[Span]) -> Vec<u64> {
        spans.iter().flat_map(|s| (0..s.len()).map(|i| s.row(i))).collect()
    }

    /// Against the list of all rows, for every length and look-back.
    #[test]
    fn every_row_stands_in_one_slice() {
        let (whole, spans) = entry();
        let all = rows(whole.spans(&spans));
        assert_eq!(all, [0, 1, 2, 3, 10, 13, 16, 19, 4]);
        for steps in 1..=10 {
            for look_back in 0..=10_usize {
                let mut start = 0;
                for slice in cut(&whole, &spans, steps) {
                    let own = slice.of(&whole, &spans, look_back as u64);
                    let end = (start + usize::try_from(steps).unwrap()).min(9);
                    let sliced = own.slice().unwrap();
                    assert_eq!((own.start(), own.steps), (start as u64, (end - start) as u64));
                    assert_eq!(rows(own.spans(&spans)), all[start..end]);
                    assert_eq!(rows(&sliced.look_back), all[start.saturating_sub(look_back)..start]);
                    assert_eq!(sliced.behind, all.get(end).copied());
                    assert_eq!(own.t_started, 5 + i64::try_from(start).unwrap());
                    assert_eq!((own.terminated, own.truncated, own.tail().is_some()), (end == 9, false, end == 9));
                    assert_eq!((own.ordinal, own.bare_rank, own.module), (3, 4, 1));
                    let hanging = |from: usize, to: usize| -> Vec<(u64, u64)> {
                        let inside = |h: &&(u64, u64)| (from as u64..to as u64).contains(&h.0);
                        whole.hanging().iter().filter(inside).map(|(s, r)| (s - from as u64, *r)).collect()
                    };
                    assert_eq!(own.hanging(), hanging(start, end));
                    assert_eq!(sliced.look_back_hanging, hanging(start.saturating_sub(look_back), start));
                    let mut needed = rows(&own.rows(&spans).collect::<Vec<_>>());
                    needed.sort_unstable();
                    let mut want = [&all[start.saturating_sub(look_back)..(end + 1).min(9)]].concat();
                    want.extend(own.hanging().iter().chain(&sliced.look_back_hanging).map(|(_, row)| *row));
                    want.extend(own.tail());
                    want.sort_unstable();
                    assert_eq!(needed, want);
                    start = end;
                }
                assert_eq!(start, 9);
            }
        }
    }
}
