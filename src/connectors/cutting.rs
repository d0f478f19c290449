//! What the pieces share that cut a batch into windows.
//!
//! A column of the batch has rows for the steps of a unit alone. Where windows reach into a chunk's look-back, its rows
//! there come from the recording, as [`look_back`] finds them.

use std::borrow::Cow;

use crate::batch::{ModuleBatch, Rows, Stage};
use crate::column::{LOSS_MASK, NEXT_OBS, OBS, STATE_OUT, TERMINATEDS, TRUNCATEDS, rebase, root};
use crate::connector::{Context, Plan};
use crate::episode::EpisodeBatch;
use crate::error::{Error, Result};
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

/// Announces the cut: every column of `[...]` becomes one of `[length, ...]`.
pub(super) fn plan_cut(spec: Spec, plan: &mut Plan<'_>) -> Result<()> {
    if plan.batch.stage > Stage::Items {
        return Err(Error::usage("the batch is joined already, its episodes can no longer be told apart")
            .hint("put this piece before BatchIndividualItems"));
    }
    if let Some(column) = plan.batch.columns.iter().find(|c| c.rows == Rows::Sequences) {
        return Err(Error::usage(format!("`{}` has a time dimension already", column.name))
            .hint("name one piece that cuts episodes into sequences, and before AddStatesFromEpisodesToBatch"));
    }
    for column in &mut plan.batch.columns {
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

/// One column, cut.
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
