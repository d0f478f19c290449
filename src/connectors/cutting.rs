//! What the pieces share that cut a batch into windows.
//!
//! A column of the batch has rows for the steps of a unit alone. Where windows reach into a chunk's look-back, its rows
//! there come from the recording, as [`look_back`] finds them.

use std::borrow::Cow;
use std::sync::Arc;

use crate::batch::{self, ColumnLayout, ModuleBatch, Rows, Stage};
use crate::column::{LOSS_MASK, NEXT_OBS, OBS, STATE_OUT, TERMINATEDS, TRUNCATEDS, rebase, root};
use crate::connector::{Context, Plan};
use crate::episode::EpisodeBatch;
use crate::error::{Error, Result};
use crate::indexed::{Axis, STEPS, Stored, WindowIndex, Windowed};
use crate::tensor::{DType, Tensor, TensorBuilder, TensorType};
use crate::window::{Column, Fill, Span, Spec, Windows};

/// The most places that a window may have: enough for any episode, and few enough that sizes are numbers.
const MOST_PLACES: usize = 1 << 20;

/// An option that counts places of a window.
pub(super) fn require_places(name: &str, value: usize, least: usize) -> Result<()> {
    if (least..=MOST_PLACES).contains(&value) {
        return Ok(());
    }
    Err(Error::usage(format!("found {name} = {value}, expected a number from {least} to {MOST_PLACES}")))
}

/// How a column is stored once it is cut, if its windows are not laid out. Windows pad with zeros only, but a column that
/// is windows already can have any of these windows again.
fn stored_cut(indexed: bool, stored: Option<&Stored>, step: &TensorType, length: usize, fill: &Fill) -> Option<Stored> {
    match (stored, fill) {
        (Some(stored), Fill::Zeros | Fill::Repeat) => Some(stored.in_sequence(length)),
        (None, Fill::Zeros) if indexed => {
            Some(Stored { table: STEPS, step: step.clone(), places: length, axis: Axis::First, prefix: Vec::new() })
        }
        _ => None,
    }
}

/// Announces the cut: every column of `[...]` becomes one of `[length, ...]`. `fill` says what it is padded with, and
/// whether its windows may stay an index.
pub(super) fn plan_cut(
    spec: Spec,
    plan: &mut Plan<'_>,
    fill: impl Fn(&ColumnLayout) -> Result<(Fill, bool)>,
) -> Result<()> {
    if plan.batch.stage > Stage::Items {
        return Err(Error::usage("the batch is joined already, its episodes can no longer be told apart")
            .hint("put this piece before BatchIndividualItems"));
    }
    if let Some(column) = plan.batch.columns.iter().find(|c| c.rows == Rows::Sequences) {
        return Err(Error::usage(format!("`{}` has a time dimension already", column.name))
            .hint("name one piece that cuts episodes into sequences, and before AddStatesFromEpisodesToBatch"));
    }
    for column in &mut plan.batch.columns {
        let (fill, indexed) = fill(column)?;
        column.stored = stored_cut(indexed, column.stored.as_ref(), &column.ty, spec.length(), &fill);
        column.ty = column.ty.stacked(spec.length());
        column.rows = Rows::Sequences;
    }
    plan.batch.windows = Some(spec);
    Ok(())
}

/// The rows of a batch column right before each chunk's first step, where the recording tells.
///
/// A column of the recording has them in the recording, flags are false before a chunk, and next observations are the
/// observations moved by one. Anything else (a column that a piece made, or one whose shape a piece changed) is not
/// known there.
pub(super) fn look_back<'a>(name: &str, ty: &TensorType, episodes: &'a EpisodeBatch) -> Option<Cow<'a, Tensor>> {
    let rows = episodes.history_offsets.last().copied().unwrap_or(0);
    let flag = *ty == TensorType::new(DType::Bool, []);
    match root(name) {
        TERMINATEDS | TRUNCATEDS if flag => Some(Cow::Owned(Tensor::zeros(ty.clone(), rows))),
        LOSS_MASK if flag => Some(Cow::Owned(Tensor::from_bools(std::iter::repeat_n(true, rows)))),
        NEXT_OBS if episodes.steps.get(name).is_none() => {
            let name = rebase(name, OBS);
            let (steps, history) = (episodes.steps.get(&name)?, episodes.history.get(&name)?);
            if history.ty() != ty || steps.ty() != ty {
                return None;
            }
            let mut out = TensorBuilder::with_capacity(ty.clone(), rows);
            for i in (0..episodes.len()).filter(|&i| !episodes.history_rows(i).is_empty()) {
                let before = episodes.history_rows(i);
                out.extend(history, before.start + 1, before.len() - 1);
                match episodes.rows(i).next() {
                    Some(first) => out.extend(steps, first, 1),
                    None => out.extend_zeros(1), // no step, so no window looks here
                }
            }
            Some(Cow::Owned(out.finish()))
        }
        _ => episodes.history.get(name).filter(|t| t.ty() == ty).map(Cow::Borrowed),
    }
}

/// Cuts the episodes, with as much look-back as every one of the batch's columns is known for.
///
/// A stateful module must know the state before a window's first step, so where states were recorded the oldest step of
/// the look-back is left for it, unless that is the episode's first one.
pub(super) fn cut(cx: Context<'_>, spec: Spec, episodes: &EpisodeBatch, batch: &ModuleBatch) -> Windows {
    let known = spec.before > 0
        && episodes.history_offsets.last().is_some_and(|rows| *rows > 0)
        && batch.iter().all(|(name, column)| look_back(name, column.ty(), episodes).is_some());
    let states = cx.module.stateful && episodes.steps.under(STATE_OUT).next().is_some();
    let span = |(i, len): (usize, usize)| {
        let t_started = usize::try_from(episodes.chunks[i].t_started).unwrap_or(0);
        let rows = if known { episodes.history_rows(i).len() } else { 0 };
        let look_back = if t_started <= rows { t_started } else { rows - usize::from(states && rows > 0) };
        Span { look_back, len }
    };
    Windows::cut(spec, episodes.lengths().enumerate().map(span))
}

/// A unit's columns, one after the other, cut into the same windows.
pub(super) struct Cutting<'a> {
    windows: &'a Windows,
    episodes: &'a EpisodeBatch,
    /// Whether any window reaches into look-back.
    reaches_back: bool,
    /// Windows over a table of steps, once a column is stored so.
    index: Option<Arc<WindowIndex>>,
}

impl<'a> Cutting<'a> {
    pub fn new(windows: &'a Windows, episodes: &'a EpisodeBatch) -> Self {
        let reaches_back = windows.iter().any(|w| w.first < 0);
        Self { windows, episodes, reaches_back, index: None }
    }

    /// One column, cut; laid out unless it `may` stay an index.
    pub fn cut(&mut self, name: &str, column: &batch::Column, fill: &Fill, may: bool) -> batch::Column {
        let length = self.windows.spec().length();
        match (stored_cut(may, column.stored(), column.ty(), length, fill), column) {
            // Columns that pieces made, like windows, are unknown in look-back: no window reaches there.
            (Some(_), batch::Column::Windows(own)) => batch::Column::Windows(own.with_index(|t| {
                self.windows.gather(Column { steps: t, offsets: &self.episodes.offsets, look_back: None }, fill)
            })),
            (Some(stored), batch::Column::Whole(steps)) => {
                let table = self.table(name, steps);
                batch::Column::Windows(Windowed::new(stored, self.index(), table))
            }
            (None, _) => gather(self.windows, name, column.tensor(), self.episodes, fill).into(),
        }
    }

    fn index(&mut self) -> Arc<WindowIndex> {
        let offsets = &self.episodes.offsets;
        let make = || {
            let first =
                |i: usize| offsets[i] + if self.reaches_back { self.episodes.history_offsets[i + 1] } else { 0 };
            let starts: Vec<usize> = (0..self.episodes.len()).map(first).collect();
            Arc::new(WindowIndex::of(self.windows, &starts))
        };
        Arc::clone(self.index.get_or_insert_with(make))
    }

    /// The steps of all episodes, each behind its look-back if any window reaches there.
    fn table(&self, name: &str, steps: &Tensor) -> Tensor {
        let before = if self.reaches_back { look_back(name, steps.ty(), self.episodes) } else { None };
        let Some(before) = before else { return steps.clone() };
        let mut out = TensorBuilder::with_capacity(steps.ty().clone(), steps.rows() + before.rows());
        for i in 0..self.episodes.len() {
            let (old, own) = (self.episodes.history_rows(i), self.episodes.rows(i));
            out.extend(&before, old.start, old.len());
            out.extend(steps, own.start, own.len());
        }
        out.finish()
    }
}

/// One column, cut and laid out.
pub(super) fn gather(windows: &Windows, name: &str, column: &Tensor, episodes: &EpisodeBatch, fill: &Fill) -> Tensor {
    let before = look_back(name, column.ty(), episodes);
    let look_back = before.as_deref().map(|rows| (rows, episodes.history_offsets.as_slice()));
    windows.gather(Column { steps: column, offsets: &episodes.offsets, look_back }, fill)
}

/// One value a step in every place: `first_step + t`, 0 in padding or counted on.
pub(super) fn timesteps(windows: &Windows, episodes: &EpisodeBatch, first_step: i64, count_on: bool) -> Tensor {
    let length = windows.spec().length();
    let mut out = vec![0_i64; windows.len() * length];
    for (row, window) in out.chunks_exact_mut(length).zip(windows.iter()) {
        let first = episodes.chunks[window.episode].t_started + first_step + window.first as i64;
        let end = if count_on { length } else { window.real.end };
        for (slot, t) in row[window.real.start..end].iter_mut().zip(first..) {
            *slot = t;
        }
    }
    let flat = Tensor::from_values::<i64>([], &out);
    flat.reshaped(flat.ty().stacked(length), windows.len())
}
