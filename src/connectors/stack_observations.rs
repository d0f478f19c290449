//! `StackObservations`: the last observations side by side.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::{Column, ModuleBatch};
use crate::column::{OBS, root};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, Slices, piece_boilerplate};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::indexed::{Axis, FRAMES, Stored, WindowIndex, Windowed, interleave, interleave_four};
use crate::job::{Compat, ModuleSettings};
use crate::tensor::{Tensor, TensorBuilder, TensorType};
use crate::window::{End, Pad, Span, Spec, Start, Windows};

/// Rows that lack frames of their own episode.
const UNKNOWN_FRAMES: &str = "frames_of_a_chunk_without_look_back";
/// More frames than anybody stacks.
const MOST_FRAMES: usize = 65_536;

/// Adds `obs`: at each step the last `num_frames` observations, joined along the last axis, oldest first.
///
/// ```text
/// obs of 4 steps   o0 o1 o2 o3, num_frames = 3
///
///   t = 0          0  0  o0           zeros before the episode's first step
///   t = 1          0  o0 o1
///   t = 2          o0 o1 o2
///   t = 3          o1 o2 o3
///
/// shape of a step  float32[4] -> float32[12]     uint8[84, 84, 3] -> uint8[84, 84, 9]     int64 -> int64[3]
/// ```
///
/// Every leaf of a nested observation is stacked by itself; the dtype is kept. Chunks that continue an episode see the
/// observations before them: those that were recorded with the chunk, and with `compat = "correct"` also those of the
/// chunk before, when it is in the data. Where they are nowhere, zeros are taken and the row is counted as a repair.
/// Next observations are not stacked. RLlib describes such a piece in its documentation without shipping it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StackObservations {
    /// How many observations make one, at least 1.
    #[schemars(range(min = 1, max = 65_536))]
    pub num_frames: usize,
}

impl Default for StackObservations {
    fn default() -> Self {
        Self { num_frames: 1 }
    }
}

impl Piece for StackObservations {
    const NAME: &'static str = "StackObservations";

    fn check(&self) -> Result<()> {
        check_frames(self.num_frames)
    }
}

impl Connector for StackObservations {
    piece_boilerplate!();

    fn reads(&self, _: &ModuleSettings, column: &str) -> bool {
        root(column) == OBS
    }

    fn look_back(&self, _: &ModuleSettings) -> usize {
        self.num_frames - 1
    }

    fn slices(&self, cx: Context<'_>, _: &EpisodeLayout) -> Option<Slices> {
        slices(self.num_frames, cx)
    }

    fn layout(&self, cx: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        layout(Self::NAME, cx, self.num_frames, plan)
    }

    fn apply(
        &self,
        cx: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        repairs: &mut Repairs,
    ) -> Result<()> {
        apply(self.num_frames, cx, episodes, batch, repairs);
        Ok(())
    }
}

/// The range of `num_frames`.
pub(super) fn check_frames(num_frames: usize) -> Result<()> {
    if (1..=MOST_FRAMES).contains(&num_frames) {
        return Ok(());
    }
    Err(Error::usage(format!("found num_frames = {num_frames}, expected 1 to {MOST_FRAMES}")))
}

/// Where episodes may be cut. Frames that are stored once stand in a table in which no slice has rows of another.
pub(super) fn slices(num_frames: usize, cx: Context<'_>) -> Option<Slices> {
    (num_frames == 1 || !cx.indexed).then_some(Slices::ANYWHERE)
}

/// `num_frames` rows of `ty` joined along the last axis.
fn stacked(ty: &TensorType, num_frames: usize) -> Stored {
    Stored { table: FRAMES, step: ty.clone(), places: num_frames, axis: Axis::Last, prefix: Vec::new() }
}

/// The layout of every piece that stacks observations.
pub(super) fn layout(piece: &str, cx: Context<'_>, num_frames: usize, plan: &mut Plan<'_>) -> Result<()> {
    if plan.batch.has(OBS) {
        return Err(Error::usage("`obs` is in the batch already").column(OBS).hint(format!(
            "name {piece} once, before every piece that adds observations; it sees the recorded ones only"
        )));
    }
    let leaves = super::intrinsic::obs_leaves(plan)?;
    for (name, ty) in leaves {
        let stored = stacked(&ty, num_frames);
        plan.add_steps(&name, stored.window())?;
        if cx.indexed
            && num_frames > 1
            && let Some(column) = plan.batch.columns.last_mut()
        {
            column.stored = Some(stored);
        }
    }
    Ok(())
}

/// Adds the stacked observations to the batch.
pub(super) fn apply(
    num_frames: usize,
    cx: Context<'_>,
    episodes: &EpisodeBatch,
    batch: &mut ModuleBatch,
    repairs: &mut Repairs,
) {
    if cx.compat == Compat::Correct {
        for (i, len) in episodes.lengths().enumerate() {
            let known = episodes.history_rows(i).len();
            let before = usize::try_from(episodes.chunks[i].t_started).unwrap_or(0);
            // Step t lacks frames if it should see more of them than there are: min(n - 1, before + t) > known + t.
            let lacking = if before > known { (num_frames - 1).saturating_sub(known).min(len) } else { 0 };
            repairs.count(UNKNOWN_FRAMES, lacking as u64);
        }
    }
    let leaves = episodes.steps.under(OBS);
    if cx.indexed && num_frames > 1 {
        let frames = Frames::of(num_frames, episodes);
        for (name, obs) in leaves {
            let table = frames.table(episodes, obs, episodes.history.get(name));
            batch.push(&**name, Column::Windows(Windowed::new(stacked(obs.ty(), num_frames), frames.index(), table)));
        }
        return;
    }
    for (name, obs) in leaves {
        batch.push(&**name, stack(num_frames, episodes, obs, episodes.history.get(name)));
    }
}

/// The windows of stacked frames over a table of frames: of each chunk those before it that are looked at, and its own.
struct Frames {
    /// Rows before each chunk's first one.
    before: Vec<usize>,
    index: Arc<WindowIndex>,
}

impl Frames {
    fn of(num_frames: usize, episodes: &EpisodeBatch) -> Self {
        let before: Vec<usize> =
            (0..episodes.len()).map(|i| episodes.history_rows(i).len().min(num_frames - 1)).collect();
        let spec = Spec {
            before: num_frames - 1,
            after: 1,
            period: 1,
            start: Start::Before,
            end: End::Past,
            pad: Pad::InPlace,
        };
        let spans = episodes.lengths().zip(&before).map(|(len, &look_back)| Span { look_back, len });
        let windows = Windows::cut(spec, spans);
        let mut starts = Vec::with_capacity(before.len());
        let mut rows = 0;
        for (len, before) in episodes.lengths().zip(&before) {
            starts.push(rows + before);
            rows += before + len;
        }
        Self { index: Arc::new(WindowIndex::of(&windows, &starts)), before }
    }

    fn index(&self) -> Arc<WindowIndex> {
        Arc::clone(&self.index)
    }

    fn table(&self, episodes: &EpisodeBatch, obs: &Tensor, history: Option<&Tensor>) -> Tensor {
        if self.before.iter().all(|n| *n == 0) {
            return obs.clone();
        }
        let mut out = TensorBuilder::with_capacity(obs.ty().clone(), obs.rows() + self.before.iter().sum::<usize>());
        for (i, &before) in self.before.iter().enumerate() {
            match history {
                Some(history) => out.extend(history, episodes.history_rows(i).end - before, before),
                None => out.extend_zeros(before),
            }
            let rows = episodes.rows(i);
            out.extend(obs, rows.start, rows.len());
        }
        out.finish()
    }
}

/// One leaf, stacked.
///
/// ```text
/// frames of a chunk, num_frames = 3, one row of look-back:    0 h o0 o1 o2
///   vectors: a stacked row is three frames on end             [0 h o0] [h o0 o1] [o0 o1 o2]
///   images:  frame k goes to channels k * C .. (k + 1) * C of every pixel
/// ```
fn stack(num_frames: usize, episodes: &EpisodeBatch, obs: &Tensor, history: Option<&Tensor>) -> Tensor {
    let ty = stacked(obs.ty(), num_frames).window();
    let (frame_bytes, row_bytes) = (obs.ty().row_bytes(), ty.row_bytes());
    let channel_bytes = obs.ty().shape.last().copied().unwrap_or(1) * obs.ty().dtype.size();
    let mut out = vec![0; obs.rows() * row_bytes];
    if row_bytes > 0 {
        let mut rows = out.chunks_exact_mut(row_bytes);
        let mut frames = Vec::new();
        for i in 0..episodes.len() {
            let (steps, before) = (episodes.rows(i), episodes.history_rows(i));
            let known = history.map_or(0, |_| before.len().min(num_frames - 1));
            if channel_bytes == frame_bytes {
                frames.clear();
                frames.resize((num_frames - 1 - known) * frame_bytes, 0);
                if let Some(history) = history {
                    frames.extend_from_slice(
                        &history.bytes()[(before.end - known) * frame_bytes..before.end * frame_bytes],
                    );
                }
                frames.extend_from_slice(&obs.bytes()[steps.start * frame_bytes..steps.end * frame_bytes]);
                for (t, row) in rows.by_ref().take(steps.len()).enumerate() {
                    row.copy_from_slice(&frames[t * frame_bytes..t * frame_bytes + row_bytes]);
                }
                continue;
            }
            // The frame `back` steps before step t, if it is known.
            let frame = |t: usize, back: usize| match (t.checked_sub(back), history) {
                (Some(t), _) => Some(obs.row(steps.start + t)),
                (None, Some(history)) if back - t <= known => Some(history.row(before.end - (back - t))),
                (None, _) => None,
            };
            for (t, row) in rows.by_ref().take(steps.len()).enumerate() {
                if num_frames == 4
                    && let [Some(a), Some(b), Some(c), Some(d)] = [3, 2, 1, 0].map(|back| frame(t, back))
                {
                    interleave_four(row, [a, b, c, d], channel_bytes);
                    continue;
                }
                for (k, frame) in (0..num_frames).filter_map(|k| Some((k, frame(t, num_frames - 1 - k)?))) {
                    interleave(row, frame, channel_bytes, k, num_frames);
                }
            }
        }
    }
    Tensor::new(ty, obs.rows(), out.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::BatchLayout;
    use crate::connectors::testing::{apply as apply_to_empty, apply_with, episodes};
    use crate::episode::EpisodeLayout;
    use crate::tensor::DType;

    #[test]
    fn the_figure_above() {
        let mut eps = episodes(&[4, 0, 1]);
        let out = apply_to_empty(&StackObservations { num_frames: 3 }, &mut eps).unwrap();
        let obs = out.get(OBS).unwrap();
        assert_eq!(obs.ty(), &TensorType::new(DType::Float32, [3]));
        assert_eq!(obs.values::<f32>(), [0., 0., 0., 0., 0., 1., 0., 1., 2., 1., 2., 3., 0., 0., 20.]);
        let none = apply_to_empty(&StackObservations { num_frames: 3 }, &mut episodes(&[])).unwrap();
        assert_eq!(none.get(OBS).unwrap().rows(), 0);
        let one = apply_to_empty(&StackObservations { num_frames: 1 }, &mut eps).unwrap();
        assert_eq!(one.get(OBS).unwrap(), eps.steps.get(OBS).unwrap());
    }

    /// Element by element, against the definition, for every rank, with and without look-back.
    #[test]
    fn equals_its_definition() {
        for shape in [vec![], vec![1], vec![3], vec![2, 1], vec![2, 3], vec![2, 2, 1], vec![2, 1, 3], vec![2, 0]] {
            for num_frames in [1, 2, 4, 7] {
                for (lengths, history) in [(vec![5, 0, 1, 9], vec![0, 0, 2, 9]), (vec![3, 2], vec![1, 4])] {
                    let (known, mut eps) = (history.iter().sum::<usize>(), episodes(&lengths));
                    let ty = TensorType::new(DType::Int16, shape.clone());
                    let n = ty.row_elements();
                    let values = |from: usize, rows: usize| {
                        let all: Vec<i16> = (from..from + rows * n).map(|v| i16::try_from(v).unwrap()).collect();
                        Tensor::new(ty.clone(), rows, arrow::buffer::Buffer::from_vec(all))
                    };
                    eps.steps.set(OBS, values(1, eps.steps_len()));
                    eps.history.set(OBS, values(1000, known));
                    eps.history_offsets = std::iter::once(0)
                        .chain(history.iter().scan(0, |sum, len| {
                            *sum += len;
                            Some(*sum)
                        }))
                        .collect();
                    let out = apply_to_empty(&StackObservations { num_frames }, &mut eps).unwrap();
                    let obs = out.get(OBS).unwrap();
                    let (steps, look_back) = (eps.steps.get(OBS).unwrap(), eps.history.get(OBS).unwrap());

                    let channels = shape.last().copied().unwrap_or(1);
                    let mut want = Vec::new();
                    for i in 0..eps.len() {
                        for t in eps.rows(i) {
                            for at in 0..n * num_frames {
                                let (pixel, channel) = (at / (channels * num_frames), at % (channels * num_frames));
                                let (k, c) = (channel / channels, channel % channels);
                                let frame = (t + k + 1).cast_signed() - num_frames.cast_signed();
                                let first = eps.rows(i).start.cast_signed();
                                let source = if frame >= first {
                                    Some((steps, frame.cast_unsigned()))
                                } else {
                                    let row = eps.history_rows(i).end.cast_signed() + (frame - first);
                                    (row >= eps.history_rows(i).start.cast_signed())
                                        .then_some((look_back, row.cast_unsigned()))
                                };
                                want.push(
                                    source
                                        .map_or(0, |(from, row)| from.values::<i16>()[row * n + pixel * channels + c]),
                                );
                            }
                        }
                    }
                    assert_eq!(obs.values::<i16>(), want, "{ty} x {num_frames}");
                }
            }
        }
    }

    #[test]
    fn missing_look_back_is_counted() {
        let module = ModuleSettings::default();
        let count = |compat, t_started, known: usize, len: usize| {
            let (mut eps, mut repairs) = (episodes(&[len]), Repairs::default());
            eps.chunks[0].t_started = t_started;
            eps.history.set(OBS, Tensor::from_values([1], &vec![0f32; known]));
            eps.history_offsets = vec![0, known];
            let cx = Context::new(&module, compat);
            apply_with(&StackObservations { num_frames: 4 }, cx, &mut eps, ModuleBatch::default(), &mut repairs)
                .unwrap();
            repairs.sorted().first().map_or(0, |r| r.1)
        };
        let correct = [(0, 0, 9), (5, 3, 9), (5, 1, 9), (1, 0, 9), (1, 1, 9), (5, 0, 2), (5, 0, 0)]
            .map(|(t, known, len)| count(Compat::Correct, t, known, len));
        // Steps 0 and 1 lack frames with one row of look-back, 0 to 2 with none.
        assert_eq!(correct, [0, 0, 2, 3, 0, 2, 0]);
        assert_eq!(count(Compat::Rllib260, 5, 0, 9), 0);
    }

    #[test]
    fn layouts() {
        let module = ModuleSettings::default();
        let cx = Context::new(&module, Compat::Correct);
        let steps = vec![
            ("obs/a".into(), TensorType::new(DType::UInt8, [4, 4, 3])),
            ("obs/b".into(), TensorType::new(DType::Int64, [])),
        ];
        let mut episodes = EpisodeLayout { steps, last_obs: true };
        let mut batch = BatchLayout::default();
        let piece = StackObservations { num_frames: 2 };
        piece.layout(cx, &mut Plan { episodes: &mut episodes, batch: &mut batch }).unwrap();
        let types: Vec<String> = batch.columns.iter().map(|c| format!("{} {}", c.name, c.ty)).collect();
        assert_eq!(types, ["obs/a uint8[4, 4, 6]", "obs/b int64[2]"]);
        let error = piece.layout(cx, &mut Plan { episodes: &mut episodes, batch: &mut batch }).unwrap_err();
        assert_eq!(error.what(), "`obs` is in the batch already");
        assert!(StackObservations { num_frames: 0 }.check().is_err());
        assert_eq!(StackObservations { num_frames: 4 }.look_back(&module), 3);
    }
}
