//! Windows that are not laid out: every step once, and where each window finds its own.
//!
//! ```text
//! frames of one episode   f0 f1 f2 f3           4 stacked frames a row, stored once
//!
//!   table     row: offset length pad            laid out
//!   0  f0     t=0       0      1   3             0  0  0 f0
//!   1  f1     t=1       0      2   2             0  0 f0 f1
//!   2  f2     t=2       0      3   1             0 f0 f1 f2
//!   3  f3     t=3       0      4   0            f0 f1 f2 f3
//! ```
//!
//! `offset` is the window's first real row of the table, `length` how many there are, `pad` the place where they start.
//! All other places are zeros, so a window of nothing (0, 0, 0) is padding. What is laid out is the same, byte for byte,
//! as what a piece makes that lays out at once.
//!
//! Windows over windows stay flat: a sequence of stacked frames has one triple a step, and an index of shape `[T]`.

use std::sync::{Arc, OnceLock};

use rayon::prelude::*;

use crate::tensor::{Buffers, DType, Tensor, TensorType};
use crate::window::Windows;

/// Steps of an episode that are laid side by side along the last axis: `FrameStacking` and its kin.
pub const FRAMES: &str = "frames";
/// Steps of sequences.
pub const STEPS: &str = "steps";
/// Steps of sequences whose rows stand in another order than those of [`STEPS`] (RLlib's unnumbered ids).
pub const BARE_STEPS: &str = "bare_steps";
/// The table of this name, if there is such a one.
#[must_use]
pub fn table_name(name: &str) -> Option<&'static str> {
    [FRAMES, STEPS, BARE_STEPS].into_iter().find(|known| *known == name)
}

/// The columns of an index, each behind the table's name: `frames_offset`.
pub const INDEX: [(&str, DType); 3] = [("offset", DType::Int64), ("length", DType::Int32), ("pad", DType::Int32)];

/// Bytes that a thread lays out at a time.
const PART: usize = 1 << 20;

/// The axis along which the steps of a window are laid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    /// A new one in front: `[...]` becomes `[places, ...]`.
    First,
    /// The last one, joined: `[84, 84, 1]` becomes `[84, 84, places]`, a scalar becomes `[places]`.
    Last,
}

/// How the windows of a column are laid out from the steps of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Which table of the module; columns of one table share an index.
    pub table: &'static str,
    /// Dtype and shape of a step.
    pub step: TensorType,
    /// Steps side by side.
    pub places: usize,
    /// Where they are laid.
    pub axis: Axis,
    /// Windows in a row: `[]` for one, `[T]` for one a place of a sequence.
    pub prefix: Vec<usize>,
}

impl Stored {
    /// Dtype and shape of one window, laid out.
    #[must_use]
    pub fn window(&self) -> TensorType {
        match self.axis {
            Axis::First => self.step.stacked(self.places),
            Axis::Last => {
                let mut shape = self.step.shape.clone();
                match shape.last_mut() {
                    Some(last) => *last *= self.places,
                    None => shape.push(self.places),
                }
                TensorType::new(self.step.dtype, shape)
            }
        }
    }

    /// Dtype and shape of a row, laid out.
    #[must_use]
    pub fn row(&self) -> TensorType {
        let window = self.window();
        TensorType::new(window.dtype, [self.prefix.as_slice(), &window.shape].concat())
    }

    /// The same with `length` windows side by side where there was one.
    #[must_use]
    pub fn in_sequence(&self, length: usize) -> Self {
        Self { prefix: [&[length], self.prefix.as_slice()].concat(), ..self.clone() }
    }

    /// Zeros in a window that `length` steps do not fill. One that they do fill is left as it is.
    pub fn pad(&self, window: &mut [u8], length: usize) {
        if length < self.places {
            window.fill(0);
        }
    }

    /// Lays `steps`, one or more on end, into `window` from place `at` on.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn lay(&self, window: &mut [u8], at: usize, steps: &[u8]) {
        let size = self.step.row_bytes();
        let channel = self.step.shape.last().copied().unwrap_or(1) * self.step.dtype.size();
        if self.axis == Axis::First || channel == size {
            window[at * size..at * size + steps.len()].copy_from_slice(steps);
            return;
        }
        let steps = steps.chunks_exact(size);
        match <[&[u8]; 4]>::try_from(steps.clone().collect::<Vec<_>>()) {
            Ok(all) if self.places == 4 => interleave_four(window, all, channel),
            _ => steps.enumerate().for_each(|(k, step)| interleave(window, step, channel, at + k, self.places)),
        }
    }
}

/// Interleaves four whole steps, the number that everybody stacks: slots are written one after the other, which vectors do.
pub fn interleave_four(window: &mut [u8], steps: [&[u8]; 4], channel_bytes: usize) {
    fn fixed<const N: usize>(window: &mut [u8], steps: [&[u8]; 4]) {
        let [a, b, c, d] = steps.map(|step| step.as_chunks::<N>().0);
        let (places, _) = window.as_chunks_mut::<N>();
        let (slots, _) = places.as_chunks_mut::<4>();
        for ((((slot, a), b), c), d) in slots.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *slot = [*a, *b, *c, *d];
        }
    }
    match channel_bytes {
        1 => fixed::<1>(window, steps),
        3 => fixed::<3>(window, steps),
        4 => fixed::<4>(window, steps),
        _ => steps.iter().enumerate().for_each(|(k, step)| interleave(window, step, channel_bytes, k, 4)),
    }
}

/// Copies the pixels of step `k` to their places among those of the other steps.
pub fn interleave(window: &mut [u8], step: &[u8], channel_bytes: usize, k: usize, places: usize) {
    fn fixed<const N: usize>(window: &mut [u8], step: &[u8], k: usize, places: usize) {
        let (slots, _) = window.as_chunks_mut::<N>();
        let (pixels, _) = step.as_chunks::<N>();
        for (slot, pixel) in slots.iter_mut().skip(k).step_by(places).zip(pixels) {
            *slot = *pixel;
        }
    }
    match channel_bytes {
        0 => {}
        1 => fixed::<1>(window, step, k, places),
        2 => fixed::<2>(window, step, k, places),
        3 => fixed::<3>(window, step, k, places),
        4 => fixed::<4>(window, step, k, places),
        8 => fixed::<8>(window, step, k, places),
        12 => fixed::<12>(window, step, k, places),
        n => {
            for (slot, pixel) in window.chunks_exact_mut(n).skip(k).step_by(places).zip(step.chunks_exact(n)) {
                slot.copy_from_slice(pixel);
            }
        }
    }
}

/// Where the windows of some rows find their steps.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowIndex {
    /// First real row of the table, int64.
    pub offset: Tensor,
    /// Real rows, int32.
    pub length: Tensor,
    /// The place of the first of them, int32.
    pub pad: Tensor,
}

impl WindowIndex {
    /// One window a row, over a table in which the first step of episode `e` is row `starts[e]`.
    #[must_use]
    pub fn of(windows: &Windows, starts: &[usize]) -> Self {
        let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        let offset: Vec<i64> =
            windows.iter().map(|w| starts[w.episode].cast_signed() as i64 + w.first as i64).collect();
        let length: Vec<i32> = windows.iter().map(|w| number(w.real.len())).collect();
        let pad: Vec<i32> = windows.iter().map(|w| number(w.real.start)).collect();
        Self {
            offset: Tensor::from_values::<i64>([], &offset),
            length: Tensor::from_values::<i32>([], &length),
            pad: Tensor::from_values::<i32>([], &pad),
        }
    }

    /// Its columns, in the order of [`INDEX`].
    #[must_use]
    pub fn columns(self) -> [Tensor; 3] {
        [self.offset, self.length, self.pad]
    }

    /// Rows of the index.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.offset.rows()
    }

    /// The same done to every column: rows moved, or laid side by side.
    #[must_use]
    pub fn map(&self, f: impl Fn(&Tensor) -> Tensor) -> Self {
        Self { offset: f(&self.offset), length: f(&self.length), pad: f(&self.pad) }
    }

    /// The windows, row by row: offset, length, pad.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (i64, i32, i32)> {
        self.from(0)
    }

    /// The same from row `row` on.
    fn from(&self, row: usize) -> impl ExactSizeIterator<Item = (i64, i32, i32)> {
        let first = row * self.offset.ty().row_elements();
        let (offsets, lengths, pads) = (
            &self.offset.values::<i64>()[first..],
            &self.length.values::<i32>()[first..],
            &self.pad.values::<i32>()[first..],
        );
        offsets.iter().zip(lengths).zip(pads).map(|((offset, length), pad)| (*offset, *length, *pad))
    }
}

/// `offset`, moved by what stands in the table before. Windows of nothing stay at 0.
#[must_use]
pub fn moved(offset: &Tensor, length: &Tensor, by: i64) -> Tensor {
    let all = offset.values::<i64>().iter().zip(length.values::<i32>());
    let all: Vec<i64> = all.map(|(offset, length)| if *length == 0 { 0 } else { offset + by }).collect();
    let out = Tensor::from_values::<i64>([], &all);
    out.reshaped(offset.ty().clone(), offset.rows())
}

/// A column of windows that are not laid out yet.
#[derive(Debug, Clone)]
pub struct Windowed {
    stored: Stored,
    ty: TensorType,
    index: Arc<WindowIndex>,
    steps: Tensor,
    whole: OnceLock<Tensor>,
}

impl Windowed {
    /// Windows of `index` over `steps`.
    #[must_use]
    pub fn new(stored: Stored, index: Arc<WindowIndex>, steps: Tensor) -> Self {
        Self { ty: stored.row(), stored, index, steps, whole: OnceLock::new() }
    }

    /// How it is stored.
    #[must_use]
    pub const fn stored(&self) -> &Stored {
        &self.stored
    }

    /// Dtype and shape of a row, laid out.
    #[must_use]
    pub const fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Where its windows are.
    #[must_use]
    pub const fn index(&self) -> &Arc<WindowIndex> {
        &self.index
    }

    /// The steps.
    #[must_use]
    pub const fn steps(&self) -> &Tensor {
        &self.steps
    }

    /// The same windows over other steps: `f` of each.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn with_steps<E>(&self, f: impl FnOnce(&Tensor) -> Result<Tensor, E>) -> Result<Self, E> {
        let steps = f(&self.steps)?;
        let stored = Stored { step: steps.ty().clone(), ..self.stored.clone() };
        Ok(Self::new(stored, Arc::clone(&self.index), steps))
    }

    /// The same steps in other windows: `f` of each column of the index.
    #[must_use]
    pub fn with_index(&self, f: impl Fn(&Tensor) -> Tensor) -> Self {
        let index = self.index.map(f);
        let stored = Stored { prefix: index.offset.ty().shape.clone(), ..self.stored.clone() };
        Self::new(stored, Arc::new(index), self.steps.clone())
    }

    /// All windows, laid out. Done once, when somebody asks.
    #[must_use]
    pub fn whole(&self) -> &Tensor {
        self.whole.get_or_init(|| {
            let mut out = vec![0; self.index.rows() * self.ty.row_bytes()];
            self.lay_rows(0, &mut out);
            Tensor::new(self.ty.clone(), self.index.rows(), out.into())
        })
    }

    /// Lays the rows from `first` on into `out`, which is as long as they are, and writes all of it.
    fn lay_rows(&self, first: usize, out: &mut [u8]) {
        let (size, window) = (self.stored.step.row_bytes(), self.stored.window().row_bytes());
        if window == 0 {
            return;
        }
        for (slot, (offset, length, pad)) in out.chunks_exact_mut(window).zip(self.index.from(first)) {
            // An index that a piece made: never negative, never outside.
            let number = |n: i64| usize::try_from(n).unwrap_or(0);
            let (offset, length, pad) = (number(offset), number(length.into()), number(pad.into()));
            self.stored.pad(slot, length);
            if length > 0 {
                self.stored.lay(slot, pad, &self.steps.bytes()[offset * size..(offset + length) * size]);
            }
        }
    }
}

/// The windows of all `parts` of a column, one part after the other, laid out on all threads of the pool that this is
/// called in, in memory of `buffers`. Rows are of type `ty`.
///
/// # Panics
/// If a part is of another type.
#[must_use]
pub fn laid_out(ty: &TensorType, parts: &[Windowed], buffers: &Buffers) -> Tensor {
    let bytes = ty.row_bytes();
    let rows = parts.iter().map(|part| part.index.rows()).sum();
    let mut out = buffers.take(rows * bytes);
    if let Some(at_a_time) = PART.checked_div(bytes) {
        let at_a_time = at_a_time.max(1);
        let mut rest = out.as_mut();
        let mut tasks = Vec::new();
        for part in parts {
            assert_eq!(part.ty, *ty, "parts of one column");
            let (own, behind) = rest.split_at_mut(part.index.rows() * bytes);
            rest = behind;
            let own = own.chunks_mut(at_a_time * bytes).enumerate();
            tasks.extend(own.map(|(i, rows)| (part, i * at_a_time, rows)));
        }
        tasks.into_par_iter().for_each(|(part, first, rows)| part.lay_rows(first, rows));
    }
    Tensor::new(ty.clone(), rows, out.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::{End, Pad, Span, Spec, Start};

    fn stored(step: TensorType, places: usize, axis: Axis) -> Stored {
        Stored { table: FRAMES, step, places, axis, prefix: Vec::new() }
    }

    /// The figure above.
    #[test]
    fn four_frames() {
        let spec = Spec { before: 3, after: 1, period: 1, start: Start::Before, end: End::Past, pad: Pad::InPlace };
        let windows = Windows::cut(spec, [Span { look_back: 0, len: 4 }]);
        let index = WindowIndex::of(&windows, &[0]);
        assert_eq!(index.iter().collect::<Vec<_>>(), [(0, 1, 3), (0, 2, 2), (0, 3, 1), (0, 4, 0)]);
        let frames = Tensor::from_values::<u8>([1, 2, 1], &[10, 11, 20, 21, 30, 31, 40, 41]);
        let column = Windowed::new(stored(frames.ty().clone(), 4, Axis::Last), Arc::new(index), frames);
        assert_eq!(column.ty(), &TensorType::new(DType::UInt8, [1, 2, 4]));
        assert_eq!(
            column.whole().values::<u8>(),
            [
                [0, 0, 0, 10, 0, 0, 0, 11],
                [0, 0, 10, 20, 0, 0, 11, 21],
                [0, 10, 20, 30, 0, 11, 21, 31],
                [10, 20, 30, 40, 11, 21, 31, 41]
            ]
            .concat()
        );
    }

    #[test]
    fn windows_side_by_side() {
        let steps = Tensor::from_values::<f32>([], &[1., 2., 3.]);
        let spec = Spec { before: 1, after: 1, period: 1, start: Start::Before, end: End::Past, pad: Pad::InPlace };
        let index = WindowIndex::of(&Windows::cut(spec, [Span { look_back: 0, len: 3 }]), &[0]);
        let pairs = Windowed::new(stored(steps.ty().clone(), 2, Axis::Last), Arc::new(index), steps);
        assert_eq!(pairs.whole().values::<f32>(), [0., 1., 1., 2., 2., 3.]);
        // Sequences of two, the last one padded.
        let cut = Windows::cut(Spec::sequences(2), [Span { look_back: 0, len: 3 }]);
        let cut_up = |steps: &Tensor| {
            let column = crate::window::Column { steps, offsets: &[0, 3], look_back: None };
            cut.gather(column, &crate::window::Fill::Zeros)
        };
        let sequences = pairs.with_index(cut_up);
        assert_eq!(sequences.stored().prefix, [2]);
        assert_eq!(sequences.ty().shape, [2, 2]);
        assert_eq!(sequences.whole(), &cut_up(pairs.whole()));
        // Parts, one after the other.
        let parts = [sequences.clone(), pairs.with_index(|steps| cut_up(steps).slice(1, 1)), sequences.clone()];
        let all = [sequences.whole().clone(), sequences.whole().slice(1, 1), sequences.whole().clone()];
        assert_eq!(laid_out(sequences.ty(), &parts, &Buffers::default()), Tensor::concat(sequences.ty(), &all));
        assert_eq!(laid_out(sequences.ty(), &[], &Buffers::default()).rows(), 0);
    }

    /// Memory that was used before holds what it held: all of it is written, padding too.
    #[test]
    fn in_memory_that_was_used_before() {
        let step = TensorType::new(DType::UInt8, [300, 300, 1]);
        let frames = Tensor::new(step.clone(), 5, vec![7_u8; 5 * step.row_bytes()].into());
        for (axis, prefix) in [(Axis::First, None), (Axis::Last, None), (Axis::Last, Some(2))] {
            let spec = Spec { before: 3, after: 1, period: 1, start: Start::Before, end: End::Past, pad: Pad::InPlace };
            let index = WindowIndex::of(&Windows::cut(spec, [Span { look_back: 0, len: 5 }]), &[0]);
            let mut windows = Windowed::new(stored(step.clone(), 4, axis), Arc::new(index), frames.clone());
            if let Some(length) = prefix {
                // Sequences of two, the last one with a window of nothing.
                let cut = Windows::cut(Spec::sequences(length), [Span { look_back: 0, len: 5 }]);
                windows = windows.with_index(|steps| {
                    let column = crate::window::Column { steps, offsets: &[0, 5], look_back: None };
                    cut.gather(column, &crate::window::Fill::Zeros)
                });
            }
            let (expected, buffers) = (windows.whole().clone(), Buffers::default());
            let mut dirty = buffers.take(expected.bytes().len());
            let place = dirty.as_ref().as_ptr();
            dirty.as_mut().fill(0xff);
            drop(dirty);
            let out = laid_out(windows.ty(), &[windows.clone()], &buffers);
            assert_eq!((out.bytes().as_ptr(), out == expected), (place, true), "{axis:?} {prefix:?}");
        }
    }

    #[test]
    fn only_what_is_there_moves() {
        let offset = Tensor::from_values::<i64>([2], &[0, 3, 0, 5]);
        let length = Tensor::from_values::<i32>([2], &[1, 2, 0, 1]);
        assert_eq!(moved(&offset, &length, 10).values::<i64>(), [10, 13, 0, 15]);
    }
}
