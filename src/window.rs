//! Windows over episodes: which steps stand together in one row, and the gathering of columns into such rows.
//!
//! One operator serves every piece that lays steps side by side: sequences for recurrent modules, overlapping ones with
//! burn-in, the contexts of a Decision Transformer, chunks of actions.
//!
//! ```text
//! one episode of 5 steps, before = 2, after = 2, period = 3       places 0 1 2 3, the anchor stands at place 2
//!
//!                      place:   0   1   2*  3
//!   anchor 0            ..     -2  -1   0*  1        real places 2..4: two steps before the start do not exist
//!   anchor 3            ..      1   2   3*  4        real places 0..4
//!
//! Start::Before   anchors 0, 3, ..: windows stick out in front      Start::Inside   anchors 2, 5, ..: they do not
//! End::Past       anchors up to the last step
//! End::Cover      no further window once one holds the last step
//! End::Inside     only windows that end at or before the last step
//!
//! Where a window sticks out, its real steps are pushed together:
//!
//!   Pad::InPlace    .  .  0* 1       nothing moves
//!   Pad::Right      0* 1  .  .       padding at the end (RLlib, packed sequences)
//!   Pad::Left       .  .  0* 1       padding in front (here the same as in place; not where a window runs past the end)
//! ```
//!
//! Windows never hold steps of two episodes. A chunk that continues an episode may bring look-back: steps right before
//! its first one, numbered -1, -2, ..., which windows take like any other.

use std::ops::Range;

use crate::tensor::{Tensor, TensorBuilder};

/// Where the first window of an episode stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Its anchor is the first step: places before it stick out.
    Before,
    /// Its first place is the first known step.
    Inside,
}

/// Where windows of an episode end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// At or before the last step.
    Inside,
    /// With the first window that holds the last step; it may stick out.
    Cover,
    /// With the last anchor in the episode; all windows may stick out.
    Past,
}

/// Which side of a window that sticks out is padded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pad {
    /// The front: the last place holds the last real step.
    Left,
    /// The back: the first place holds the first real step.
    Right,
    /// Both, as it comes: the anchor always stands at place `before`.
    InPlace,
}

/// Which windows to cut; see the module's figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    /// Places before the anchor.
    pub before: usize,
    /// Places from the anchor on, at least one.
    pub after: usize,
    /// Steps from one anchor to the next, at least one.
    pub period: usize,
    /// Where the first window stands.
    pub start: Start,
    /// Where the last window stands.
    pub end: End,
    /// Which side is padded.
    pub pad: Pad,
}

impl Spec {
    /// RLlib's sequences: one after the other, the last one padded at its end.
    #[must_use]
    pub const fn sequences(length: usize) -> Self {
        Self { before: 0, after: length, period: length, start: Start::Before, end: End::Cover, pad: Pad::Right }
    }

    /// Places of a window.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.before + self.after
    }

    /// Whether every step of every episode is in some window.
    #[must_use]
    pub fn covers_all(&self) -> bool {
        // Not `length()`: no later window reaches back to what lies behind the last one.
        self.start == Start::Before && self.end != End::Inside && self.period <= self.after
    }
}

/// What is known of one episode (or chunk of one).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Steps right before the first one.
    pub look_back: usize,
    /// Steps.
    pub len: usize,
}

/// One window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The episode.
    pub episode: usize,
    /// The first real step, counted from the episode's first one; negative in the look-back.
    pub first: isize,
    /// The places that hold real steps, at least one.
    pub real: Range<usize>,
    /// The place of the anchor, a real one.
    pub anchor: usize,
}

/// What stands in places without a real step.
#[derive(Debug, Clone, PartialEq)]
pub enum Fill {
    /// The dtype's zero.
    Zeros,
    /// This one row.
    Row(Tensor),
    /// The nearest real step of the window.
    Repeat,
}

/// One column of all episodes, one row a step.
#[derive(Debug, Clone, Copy)]
pub struct Column<'a> {
    /// The steps, episodes back to back.
    pub steps: &'a Tensor,
    /// Where each episode's steps start; one more than there are episodes.
    pub offsets: &'a [usize],
    /// The steps before each episode's first one, and where each episode's start; one more than there are episodes.
    pub look_back: Option<(&'a Tensor, &'a [usize])>,
}

/// All windows of some episodes, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    spec: Spec,
    list: Vec<Window>,
}

impl Windows {
    /// Cuts episodes into windows. An episode without steps has none.
    ///
    /// # Panics
    /// If `after` or `period` is zero.
    #[must_use]
    pub fn cut(spec: Spec, episodes: impl IntoIterator<Item = Span>) -> Self {
        assert!(spec.after > 0 && spec.period > 0, "windows without an anchor");
        let mut list = Vec::new();
        for (episode, span) in episodes.into_iter().enumerate() {
            let mut anchor = match spec.start {
                Start::Before => 0,
                Start::Inside => spec.before.saturating_sub(span.look_back),
            };
            while anchor < span.len {
                let end = anchor + spec.after;
                if spec.end == End::Inside && end > span.len {
                    break;
                }
                let back = spec.before.min(anchor + span.look_back);
                let steps = back + end.min(span.len) - anchor;
                let place = match spec.pad {
                    Pad::Left => spec.length() - steps,
                    Pad::Right => 0,
                    Pad::InPlace => spec.before - back,
                };
                let first = anchor.cast_signed() - back.cast_signed();
                list.push(Window { episode, first, real: place..place + steps, anchor: place + back });
                if spec.end == End::Cover && end >= span.len {
                    break;
                }
                anchor += spec.period;
            }
        }
        Self { spec, list }
    }

    /// What was asked for.
    #[must_use]
    pub const fn spec(&self) -> Spec {
        self.spec
    }

    /// Number of windows.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The windows in order.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Window> {
        self.list.iter()
    }

    /// One row a window: a column of `[...]` becomes one of `[length, ...]`.
    ///
    /// Steps are copied by spans; windows that follow one another without padding or overlap are one span.
    ///
    /// # Panics
    /// If the column belongs to other episodes, or a filling row is of another type.
    #[must_use]
    pub fn gather(&self, column: Column<'_>, fill: &Fill) -> Tensor {
        let length = self.spec.length();
        let ty = column.steps.ty();
        let filling = match fill {
            // As many as a window can need, so that each padding is one span.
            Fill::Row(row) => Tensor::concat(ty, &vec![row.clone(); length]),
            Fill::Zeros | Fill::Repeat => Tensor::zeros(ty.clone(), 0),
        };
        let mut out = Spans::new(TensorBuilder::with_capacity(ty.clone(), self.len() * length));
        for window in &self.list {
            let steps = window.real.len();
            let old = window.first.min(0).unsigned_abs().min(steps);
            // Rows of the parts before and from the episode's first step on.
            let before =
                column.look_back.map(|(rows, offsets)| (rows, offsets[window.episode + 1])).filter(|_| old > 0);
            assert!(old == 0 || before.is_some(), "a window reaches into look-back that the column lacks");
            let start = column.offsets[window.episode] + window.first.max(0).unsigned_abs();
            let old_start = before.map_or(0, |(_, end)| end - window.first.min(0).unsigned_abs());
            let nth = |n: usize| match before {
                Some((rows, _)) if n < old => (rows, old_start + n),
                _ => (column.steps, start + n - old),
            };
            let pad = |out: &mut Spans<'_>, places: usize, nearest: usize| match fill {
                _ if places == 0 => {}
                Fill::Zeros => out.settled().extend_zeros(places),
                Fill::Row(_) => out.settled().extend(&filling, 0, places),
                Fill::Repeat => {
                    let (rows, row) = nth(nearest);
                    (0..places).for_each(|_| out.settled().extend(rows, row, 1));
                }
            };
            pad(&mut out, window.real.start, 0);
            if let Some((rows, _)) = before {
                out.settled().extend(rows, old_start, old);
            }
            out.extend(column.steps, start, steps - old);
            pad(&mut out, length - window.real.end, steps - 1);
        }
        out.finish().reshaped(ty.stacked(length), self.len())
    }

    /// The opposite of [`Self::gather`]: the steps of a gathered column, each from the first window that holds it.
    /// `None` if a step is in no window.
    #[must_use]
    pub fn scatter(&self, column: &Tensor, lengths: impl IntoIterator<Item = usize>) -> Option<Tensor> {
        let length = self.spec.length();
        let ty = crate::tensor::TensorType::new(column.ty().dtype, &column.ty().shape[1..]);
        let places = column.reshaped(ty.clone(), column.rows() * length);
        let mut out = Spans::new(TensorBuilder::with_capacity(ty, places.rows()));
        let mut list = self.list.iter().enumerate().peekable();
        for (episode, len) in lengths.into_iter().enumerate() {
            let mut next = 0_usize;
            while let Some((i, window)) = list.next_if(|(_, w)| w.episode == episode) {
                let skip = usize::try_from(next.cast_signed() - window.first).ok()?;
                let fresh = window.real.len().saturating_sub(skip);
                out.extend(&places, i * length + window.real.start + skip.min(window.real.len()), fresh);
                next += fresh;
            }
            if next != len {
                return None;
            }
        }
        Some(out.finish())
    }

    /// `real` in places that hold a step, its opposite in padding.
    #[must_use]
    pub fn mask(&self, real: bool) -> Tensor {
        self.mask_of(real, |w| w.real.clone())
    }

    /// True in the real places from the anchor on.
    #[must_use]
    pub fn mask_from_anchor(&self) -> Tensor {
        self.mask_of(true, |w| w.anchor..w.real.end)
    }

    fn mask_of(&self, inside: bool, places: impl Fn(&Window) -> Range<usize>) -> Tensor {
        let length = self.spec.length();
        let mut out = vec![!inside; self.len() * length];
        for (row, window) in out.chunks_exact_mut(length).zip(&self.list) {
            row[places(window)].fill(inside);
        }
        let flat = Tensor::from_bools(out);
        flat.reshaped(flat.ty().stacked(length), self.len())
    }

    /// The number of real steps of each window.
    #[must_use]
    pub fn real_lengths(&self) -> Tensor {
        let lens = self.list.iter().map(|w| i64::try_from(w.real.len()).unwrap_or(i64::MAX)).collect::<Vec<_>>();
        Tensor::from_values::<i64>([], &lens)
    }
}

/// Copies spans of one column, joining those that touch.
struct Spans<'a> {
    out: TensorBuilder,
    waiting: Option<(&'a Tensor, Range<usize>)>,
}

impl<'a> Spans<'a> {
    const fn new(out: TensorBuilder) -> Self {
        Self { out, waiting: None }
    }

    fn extend(&mut self, from: &'a Tensor, start: usize, len: usize) {
        match &mut self.waiting {
            _ if len == 0 => {}
            Some((_, span)) if span.end == start => span.end += len,
            _ => {
                self.settled();
                self.waiting = Some((from, start..start + len));
            }
        }
    }

    /// The column, nothing waiting.
    fn settled(&mut self) -> &mut TensorBuilder {
        if let Some((from, span)) = self.waiting.take() {
            self.out.extend(from, span.start, span.len());
        }
        &mut self.out
    }

    fn finish(mut self) -> Tensor {
        self.settled();
        self.out.finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Step `t` of episode `e` is `100 (e + 1) + t`, also in the look-back.
    fn number(episode: usize, t: isize) -> i32 {
        i32::try_from(100 * (episode.cast_signed() + 1) + t).unwrap()
    }

    struct Data {
        steps: Tensor,
        offsets: Vec<usize>,
        old: Tensor,
        old_offsets: Vec<usize>,
    }

    impl Data {
        fn of(spans: &[Span]) -> Self {
            let numbers = |of: &dyn Fn(&Span) -> Range<isize>| {
                let all = spans.iter().enumerate().flat_map(|(e, s)| of(s).map(move |t| number(e, t)));
                Tensor::from_values::<i32>([], &all.collect::<Vec<_>>())
            };
            let ends = |of: &dyn Fn(&Span) -> usize| {
                let sums = spans.iter().scan(0, |sum, s| {
                    *sum += of(s);
                    Some(*sum)
                });
                std::iter::once(0).chain(sums).collect::<Vec<_>>()
            };
            Self {
                steps: numbers(&|s| 0..s.len.cast_signed()),
                offsets: ends(&|s| s.len),
                old: numbers(&|s| -s.look_back.cast_signed()..0),
                old_offsets: ends(&|s| s.look_back),
            }
        }

        fn column(&self) -> Column<'_> {
            Column { steps: &self.steps, offsets: &self.offsets, look_back: Some((&self.old, &self.old_offsets)) }
        }
    }

    /// The rule written out place by place: the step in each place, or what pads it, and whether it is one to learn.
    fn naive(spec: Spec, spans: &[Span], fill: Option<i32>) -> Vec<(Vec<i32>, Vec<bool>, Vec<bool>)> {
        let mut rows = Vec::new();
        for (e, span) in spans.iter().enumerate() {
            let (first, last) = (-span.look_back.cast_signed(), span.len.cast_signed() - 1);
            for anchor in 0..span.len.cast_signed() {
                let origin = match spec.start {
                    Start::Before => 0,
                    Start::Inside => (first + spec.before.cast_signed()).max(0),
                };
                if anchor < origin || (anchor - origin) % spec.period.cast_signed() != 0 {
                    continue;
                }
                let (from, to) = (anchor - spec.before.cast_signed(), anchor + spec.after.cast_signed() - 1);
                let earlier = anchor - spec.period.cast_signed();
                let reached = earlier >= origin && earlier + spec.after.cast_signed() > last;
                if (spec.end == End::Inside && to > last) || (spec.end == End::Cover && reached) {
                    continue;
                }
                let mut steps: Vec<Option<isize>> =
                    (from..=to).map(|t| (first..=last).contains(&t).then_some(t)).collect();
                match spec.pad {
                    Pad::Left => steps.sort_by_key(Option::is_some),
                    Pad::Right => steps.sort_by_key(Option::is_none),
                    Pad::InPlace => {}
                }
                let near = |place: usize| {
                    let real: Vec<usize> = (0..steps.len()).filter(|&p| steps[p].is_some()).collect();
                    steps[*real.iter().min_by_key(|p| p.abs_diff(place)).unwrap()].unwrap()
                };
                let value = |(place, step): (usize, &Option<isize>)| match (step, fill) {
                    (Some(t), _) => number(e, *t),
                    (None, Some(fill)) => fill,
                    (None, None) => number(e, near(place)),
                };
                rows.push((
                    steps.iter().enumerate().map(value).collect(),
                    steps.iter().map(Option::is_some).collect(),
                    steps.iter().map(|s| s.is_some_and(|t| t >= anchor)).collect(),
                ));
            }
        }
        rows
    }

    fn bools(tensor: &Tensor) -> Vec<bool> {
        tensor.bytes().iter().map(|&b| b != 0).collect()
    }

    /// The figure at the top of this file.
    #[test]
    fn the_figure_above() {
        let spec = Spec { before: 2, after: 2, period: 3, start: Start::Before, end: End::Past, pad: Pad::InPlace };
        let data = Data::of(&[Span { look_back: 0, len: 5 }]);
        let windows = Windows::cut(spec, [Span { look_back: 0, len: 5 }]);
        let got = windows.gather(data.column(), &Fill::Row(Tensor::from_values::<i32>([], &[-1])));
        assert_eq!(got.values::<i32>(), [-1, -1, 100, 101, 101, 102, 103, 104]);
        assert_eq!(windows.iter().map(|w| (w.first, w.real.clone())).collect::<Vec<_>>(), [(0, 2..4), (1, 0..4)]);
        let right = Windows::cut(Spec { pad: Pad::Right, ..spec }, [Span { look_back: 0, len: 5 }]);
        assert_eq!(right.gather(data.column(), &Fill::Zeros).values::<i32>()[..4], [100, 101, 0, 0]);
    }

    #[test]
    fn look_back_stands_in_for_what_sticks_out() {
        let span = Span { look_back: 1, len: 2 };
        let spec = Spec { before: 2, after: 1, period: 1, start: Start::Before, end: End::Past, pad: Pad::Left };
        let got = Windows::cut(spec, [span]).gather(Data::of(&[span]).column(), &Fill::Zeros);
        assert_eq!(got.values::<i32>(), [0, 99, 100, 99, 100, 101]);
    }

    proptest! {
        #[test]
        fn equals_the_rule_written_out(
            before in 0..4_usize,
            after in 1..5_usize,
            period in 1..6_usize,
            start in prop::sample::select(vec![Start::Before, Start::Inside]),
            end in prop::sample::select(vec![End::Inside, End::Cover, End::Past]),
            pad in prop::sample::select(vec![Pad::Left, Pad::Right, Pad::InPlace]),
            spans in prop::collection::vec((0..4_usize, 0..12_usize), 0..5),
        ) {
            let spans: Vec<Span> = spans.into_iter().map(|(look_back, len)| Span { look_back, len }).collect();
            let spec = Spec { before, after, period, start, end, pad };
            let (data, windows) = (Data::of(&spans), Windows::cut(spec, spans.iter().copied()));
            for (fill, value) in [
                (Fill::Zeros, Some(0)),
                (Fill::Row(Tensor::from_values::<i32>([], &[-7])), Some(-7)),
                (Fill::Repeat, None),
            ] {
                let want = naive(spec, &spans, value);
                let got = windows.gather(data.column(), &fill);
                prop_assert_eq!(&got.ty().shape, &[spec.length()]);
                prop_assert_eq!(got.rows(), want.len());
                prop_assert_eq!(got.values::<i32>(), want.iter().flat_map(|r| r.0.clone()).collect::<Vec<_>>());
                prop_assert_eq!(bools(&windows.mask(true)), want.iter().flat_map(|r| r.1.clone()).collect::<Vec<_>>());
                prop_assert_eq!(
                    bools(&windows.mask(false)),
                    want.iter().flat_map(|r| r.1.iter().map(|b| !b)).collect::<Vec<_>>()
                );
                prop_assert_eq!(
                    bools(&windows.mask_from_anchor()),
                    want.iter().flat_map(|r| r.2.clone()).collect::<Vec<_>>()
                );
                let real = |row: &(Vec<i32>, Vec<bool>, Vec<bool>)| row.1.iter().filter(|b| **b).count();
                let lens: Vec<i64> = want.iter().map(|row| i64::try_from(real(row)).unwrap()).collect();
                prop_assert_eq!(windows.real_lengths().values::<i64>().to_vec(), lens);
            }
        }

        #[test]
        fn scattering_undoes_gathering(
            before in 0..3_usize,
            after in 1..5_usize,
            period in 1..6_usize,
            end in prop::sample::select(vec![End::Cover, End::Past]),
            pad in prop::sample::select(vec![Pad::Left, Pad::Right, Pad::InPlace]),
            spans in prop::collection::vec((0..3_usize, 0..12_usize), 0..5),
        ) {
            let spans: Vec<Span> = spans.into_iter().map(|(look_back, len)| Span { look_back, len }).collect();
            let spec = Spec { before, after, period, start: Start::Before, end, pad };
            let (data, windows) = (Data::of(&spans), Windows::cut(spec, spans.iter().copied()));
            let back = windows.scatter(&windows.gather(data.column(), &Fill::Zeros), spans.iter().map(|s| s.len));
            if spec.covers_all() {
                prop_assert_eq!(back, Some(data.steps));
            } else if let Some(back) = back {
                prop_assert_eq!(back, data.steps);
            }
        }
    }
}
