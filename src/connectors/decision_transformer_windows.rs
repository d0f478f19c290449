//! `DecisionTransformerWindows`: the contexts of a sequence model, with returns-to-go, time steps and a mask.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::{ModuleBatch, Rows};
use crate::column::{LOSS_MASK, REWARDS, root};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, piece_boilerplate};
use crate::episode::EpisodeBatch;
use crate::error::{Error, Result};
use crate::job::{Compat, ModuleSettings};
use crate::tensor::{DType, Tensor, TensorType};
use crate::window::{Column, End, Fill, Pad, Spec, Start, Windows};

use super::compute_returns_to_go::{RETURNS_TO_GO, sum_from_the_back};
use super::cutting::{self, require_places};

/// The column of time steps.
const TIMESTEPS: &str = "timesteps";

/// Cuts each episode's columns into windows of `context_len` steps, one for every step; adds `returns_to_go`,
/// `timesteps` and a mask.
///
/// ```text
/// an episode of 3 steps with rewards 1 2 3, context_len = 2, gamma = 1
///
///   anchor = "end", side = "left"     actions    returns_to_go   timesteps   attention_mask   t
///     window of step 0                [ 0 a0]    [0 6]           [0 0]       [F T]            0
///     window of step 1                [a0 a1]    [6 5]           [0 1]       [T T]            0
///     window of step 2                [a1 a2]    [5 3]           [1 2]       [T T]            1
///   anchor = "start", side = "right"
///     window of step 0                [a0 a1]    [6 5]           [0 1]       [T T]            0
///     window of step 1                [a1 a2]    [5 3]           [1 2]       [T T]            1
///     window of step 2                [a2  0]    [3 0]           [2 0]       [T F]            2
/// ```
///
/// A window never holds steps of two episodes. Those that end at a step reach into the look-back of a recorded chunk
/// that continues an episode, where every column of the batch is known there. Returns-to-go sum the rewards up to the
/// recorded chunk's end in float64, `(reward + gamma * ..) * scale`; time steps count from the episode's true start.
///
/// The conventions in use, and the options that give them (columns keep RLlib's names):
///
/// | | windows | padding | mask | returns, time steps |
/// |---|---|---|---|---|
/// | kzl/decision-transformer, `gym/experiment.py` | `anchor = "start"` | `side = "left"`, `fill = { actions = -10, terminateds = 2 }` | `attention_mask` | `scale = 0.001` (it divides by 1000, or 10), steps 0 in padding |
/// | CORL, `algorithms/offline/dt.py` | `anchor = "start"` | `side = "right"`, zeros | `attention_mask` | `scale = 0.001`, `timesteps_padding = "count"` |
/// | d3rlpy, `dataset/trajectory_slicers.py` | `anchor = "end"` | `side = "left"`, zeros | `attention_mask` | `first_timestep = 1` (0 means padding) |
/// | RLlib's former DT, `segmentation_buffer.py` | `anchor = "end"` | `side = "left"`, zeros | `attention_mask` | its returns have one more entry, that of the step after the window |
/// | RLlib's learner pipeline | `anchor = "start"`, `period = context_len` | `side = "right"`, zeros | `loss_mask` | |
/// | LeRobot, `delta_timestamps` of past steps | `anchor = "end"` | `side = "left"`, `fill = { obs = "repeat", .. }` | `is_pad` | |
///
/// The trainers of the first four draw windows at random; here each stands once. kzl normalises observations after
/// padding, so that its padding is `-mean / std` where this piece writes 0: masked, and so without effect. LeRobot's
/// windows of steps to come are `ActionChunking`'s. d3rlpy's `TransitionPicker` pairs a step
/// with the next one: that is `new_obs`, not a window.
///
/// In front of the default pipeline it takes the place of `AddTimeDimToBatchAndZeroPad`, behind the pieces that add
/// columns; in a pipeline of one's own it stands there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DecisionTransformerWindows {
    /// Steps of a window.
    #[schemars(range(min = 1))]
    pub context_len: usize,
    /// Steps from one window to the next.
    #[schemars(range(min = 1))]
    pub period: usize,
    /// Whether a step's window ends or starts with it.
    pub anchor: WindowAnchor,
    /// Which side of a window is padded that runs out of the episode.
    pub side: PaddedSide,
    /// Leave out windows that would need padding.
    pub whole_only: bool,
    /// What stands in padding, by column: a number, or "repeat" for the nearest step. Zero where nothing is said. A
    /// boolean column with another number than 0 and 1 becomes int64.
    pub fill: IndexMap<String, PaddingFill>,
    /// Name of the mask and what it says: `attention_mask` and `loss_mask` are true at real steps, `is_pad` in padding.
    pub mask: WindowMask,
    /// Discount of the returns-to-go, from 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gamma: f64,
    /// What returns-to-go are multiplied by.
    pub scale: f64,
    /// The time step of an episode's first step: 0 or 1.
    #[schemars(range(max = 1))]
    pub first_timestep: u8,
    /// What `timesteps` hold in padding.
    pub timesteps_padding: TimestepsPadding,
}

/// Where a window stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WindowAnchor {
    /// It ends with its step.
    #[default]
    End,
    /// It starts with its step.
    Start,
}

/// Which side is padded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PaddedSide {
    /// The front.
    #[default]
    Left,
    /// The back.
    Right,
}

/// What stands in padding.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PaddingFill {
    /// This number.
    Number(f64),
    /// The nearest real step of the window.
    Nearest(PaddingWord),
}

/// The word for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PaddingWord {
    /// The nearest real step of the window.
    Repeat,
}

/// The mask's name, which says how to read it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WindowMask {
    /// True at real steps.
    #[default]
    AttentionMask,
    /// True at real steps, under the name that RLlib's learners read.
    LossMask,
    /// True in padding.
    IsPad,
}

impl WindowMask {
    const fn name(self) -> &'static str {
        match self {
            Self::AttentionMask => "attention_mask",
            Self::LossMask => LOSS_MASK,
            Self::IsPad => "is_pad",
        }
    }
}

/// What time steps hold in padding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TimestepsPadding {
    /// 0.
    #[default]
    Zero,
    /// They count on behind the last real step (with `side = "right"` only).
    Count,
}

impl Default for DecisionTransformerWindows {
    /// The context length of all implementations in the table.
    fn default() -> Self {
        Self {
            context_len: 20,
            period: 1,
            anchor: WindowAnchor::default(),
            side: PaddedSide::default(),
            whole_only: false,
            fill: IndexMap::new(),
            mask: WindowMask::default(),
            gamma: 1.0,
            scale: 1.0,
            first_timestep: 0,
            timesteps_padding: TimestepsPadding::default(),
        }
    }
}

impl DecisionTransformerWindows {
    const fn spec(&self) -> Spec {
        let before = match self.anchor {
            WindowAnchor::End => self.context_len - 1,
            WindowAnchor::Start => 0,
        };
        let (start, end) = if self.whole_only { (Start::Inside, End::Inside) } else { (Start::Before, End::Past) };
        let pad = match self.side {
            PaddedSide::Left => Pad::Left,
            PaddedSide::Right => Pad::Right,
        };
        Spec { before, after: self.context_len - before, period: self.period, start, end, pad }
    }

    /// What the job says of column `name`: under its own name, or its root's.
    fn fill_of(&self, name: &str) -> PaddingFill {
        let said = self.fill.get(name).or_else(|| self.fill.get(root(name)));
        said.copied().unwrap_or(PaddingFill::Number(0.0))
    }

    /// The dtype that a column must have to hold its padding.
    fn padded_dtype(&self, name: &str, dtype: DType) -> DType {
        match self.fill_of(name) {
            PaddingFill::Number(n) if dtype == DType::Bool && ![0.0, 1.0].contains(&n) => DType::Int64,
            _ => dtype,
        }
    }

    /// The padding of a column of type `ty` (of [`Self::padded_dtype`] already).
    fn filling(&self, name: &str, ty: &TensorType) -> Result<Fill> {
        let number = match self.fill_of(name) {
            PaddingFill::Nearest(_) => return Ok(Fill::Repeat),
            PaddingFill::Number(0.0) => return Ok(Fill::Zeros),
            PaddingFill::Number(number) => number,
        };
        let elements = ty.row_elements();
        if ty.dtype == DType::Bool {
            let row = Tensor::from_bools(std::iter::repeat_n(true, elements));
            return Ok(Fill::Row(row.reshaped(ty.clone(), 1)));
        }
        let wide = Tensor::from_values::<f64>([], &vec![number; elements]);
        let row = wide.cast(ty.dtype).and_then(|row| Ok((row.cast(DType::Float64)?, row)));
        match row {
            Ok((back, row)) if ty.dtype.is_float() || back == wide => Ok(Fill::Row(row.reshaped(ty.clone(), 1))),
            _ => Err(Error::usage(format!("found {number} to pad `{name}`, which is no {}", ty.dtype))
                .column(name)
                .hint("give `fill` a number that the column's dtype holds, or leave it out for zeros")),
        }
    }

    /// The returns-to-go of the steps, and of the look-back before them, by which they go on.
    fn returns_to_go(&self, episodes: &EpisodeBatch) -> Result<(Tensor, Tensor)> {
        let steps = super::rewards(episodes)?;
        let before = match episodes.history.get(REWARDS) {
            Some(before) if before.ty() == steps.ty() => before.clone(),
            _ => Tensor::zeros(steps.ty().clone(), episodes.history_offsets.last().copied().unwrap_or(0)),
        };
        let (shape, width) = (steps.ty().shape.as_slice(), steps.ty().row_elements());
        let (steps, before) = (steps.cast(DType::Float64)?, before.cast(DType::Float64)?);
        let (mut of_steps, mut of_before) = (Vec::new(), Vec::new());
        for i in 0..episodes.len() {
            let (old, new) = (episodes.history_rows(i), episodes.rows(i));
            let mut own = before.values::<f64>()[old.start * width..old.end * width].to_vec();
            own.extend_from_slice(&steps.values::<f64>()[new.start * width..new.end * width]);
            sum_from_the_back(&mut own, width, self.gamma, Compat::Correct);
            for returns in &mut own {
                *returns *= self.scale;
            }
            let (old, new) = own.split_at(old.len() * width);
            of_before.extend_from_slice(old);
            of_steps.extend_from_slice(new);
        }
        Ok((Tensor::from_values::<f64>(shape, &of_steps), Tensor::from_values::<f64>(shape, &of_before)))
    }

    fn gathered_returns(&self, windows: &Windows, episodes: &EpisodeBatch) -> Result<Tensor> {
        let (steps, before) = self.returns_to_go(episodes)?;
        let look_back = Some((&before, episodes.history_offsets.as_slice()));
        let column = Column { steps: &steps, offsets: &episodes.offsets, look_back };
        Ok(windows.gather(column, &self.filling(RETURNS_TO_GO, steps.ty())?))
    }
}

/// A column whose dtype can hold its padding.
fn widened(column: &Tensor, dtype: DType) -> Result<Tensor> {
    if column.ty().dtype == DType::Bool && dtype == DType::Int64 {
        let ones: Vec<i64> = column.bytes().iter().map(|&b| i64::from(b)).collect();
        return Ok(Tensor::from_values::<i64>([], &ones).reshaped(column.ty().with_dtype(dtype), column.rows()));
    }
    column.cast(dtype)
}

impl Piece for DecisionTransformerWindows {
    const NAME: &'static str = "DecisionTransformerWindows";

    fn check(&self) -> Result<()> {
        require_places("context_len", self.context_len, 1)?;
        require_places("period", self.period, 1)?;
        super::require_discount("gamma", self.gamma)?;
        if !self.scale.is_finite() {
            return Err(Error::usage(format!("found scale = {}, expected a number", self.scale)));
        }
        if self.first_timestep > 1 {
            return Err(Error::usage(format!("found first_timestep = {}, expected 0 or 1", self.first_timestep)));
        }
        if self.timesteps_padding == TimestepsPadding::Count && self.side == PaddedSide::Left {
            return Err(Error::usage(
                "found timesteps_padding = \"count\" with side = \"left\", expected \"zero\": in front of an episode there \
                 are no time steps to count",
            ));
        }
        Ok(())
    }
}

impl Connector for DecisionTransformerWindows {
    piece_boilerplate!();

    fn cuts_sequences(&self) -> bool {
        true
    }

    fn look_back(&self, module: &ModuleSettings) -> usize {
        let before = self.spec().before;
        if before == 0 { 0 } else { before + usize::from(module.stateful) }
    }

    fn layout(&self, cx: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        let rewards = plan.episodes.get(REWARDS).cloned();
        let rewards = rewards.ok_or_else(|| Error::usage("needs rewards as one column").column(REWARDS))?;
        let mask = self.mask.name();
        for name in [RETURNS_TO_GO, TIMESTEPS, mask] {
            if plan.batch.has(name) && name != LOSS_MASK {
                return Err(Error::usage(format!("`{name}` is in the batch already"))
                    .hint("leave out the piece that adds it: DecisionTransformerWindows computes its own"));
            }
        }
        for column in &mut plan.batch.columns {
            let dtype = self.padded_dtype(&column.name, column.ty.dtype);
            if dtype != column.ty.dtype {
                (column.ty, column.stored) = (column.ty.with_dtype(dtype), None);
            }
        }
        let returns = rewards.with_dtype(DType::Float64);
        self.filling(RETURNS_TO_GO, &returns)?;
        let known = |key: &str| plan.batch.has(key) || plan.batch.columns.iter().any(|c| c.name == key);
        if let Some(key) = self.fill.keys().find(|key| !known(key) && *key != RETURNS_TO_GO) {
            let there: Vec<&str> = plan.batch.columns.iter().map(|c| c.name.as_str()).collect();
            return Err(Error::usage(format!(
                "`fill` names the column `{key}`, and the batch has {}, {RETURNS_TO_GO}",
                there.join(", ")
            )));
        }
        let spec = self.spec();
        cutting::plan_cut(spec, plan, |column| Ok((self.filling(&column.name, &column.ty)?, cx.indexed)))?;
        let length = spec.length();
        plan.batch.push(RETURNS_TO_GO, returns.stacked(length), Rows::Sequences);
        plan.batch.push(TIMESTEPS, TensorType::new(DType::Int64, [length]), Rows::Sequences);
        if !plan.batch.has(mask) {
            plan.batch.push(mask, TensorType::new(DType::Bool, [length]), Rows::Sequences);
        }
        Ok(())
    }

    fn apply(
        &self,
        cx: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        _: &mut Repairs,
    ) -> Result<()> {
        let windows = cutting::cut(cx, self.spec(), episodes, batch);
        let mut cutting = cutting::Cutting::new(&windows, episodes);
        for (name, column) in batch.iter_mut() {
            let dtype = self.padded_dtype(name, column.ty().dtype);
            let fill = self.filling(name, &column.ty().with_dtype(dtype))?;
            if dtype == column.ty().dtype {
                *column = cutting.cut(name, column, &fill, cx.indexed);
                continue;
            }
            let before = cutting::look_back(name, column.ty(), episodes);
            let before = before.map(|b| widened(&b, dtype)).transpose()?;
            let steps = widened(column.tensor(), dtype)?;
            let look_back = before.as_ref().map(|rows| (rows, episodes.history_offsets.as_slice()));
            *column = windows.gather(Column { steps: &steps, offsets: &episodes.offsets, look_back }, &fill).into();
        }
        batch.push(RETURNS_TO_GO, self.gathered_returns(&windows, episodes)?);
        let count_on = self.timesteps_padding == TimestepsPadding::Count;
        batch.push(TIMESTEPS, cutting::timesteps(&windows, episodes, i64::from(self.first_timestep), count_on));
        let mask = self.mask.name();
        if !batch.has(mask) {
            batch.push(mask, windows.mask(self.mask != WindowMask::IsPad));
        }
        batch.set_windows(windows);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::connectors::testing::{apply_to, episodes};

    fn piece(options: serde_json::Value) -> DecisionTransformerWindows {
        let piece: DecisionTransformerWindows = serde_json::from_value(options).unwrap();
        piece.check().unwrap();
        piece
    }

    /// The piece over `actions` (10 e + t), float64 `rewards` and `terminateds` (of the last step).
    fn cut(options: serde_json::Value, eps: &mut EpisodeBatch) -> ModuleBatch {
        let mut batch = ModuleBatch::default();
        batch.push("actions", eps.steps.get("actions").unwrap().clone());
        batch.push("rewards", eps.steps.get("rewards").unwrap().clone());
        let ends: Vec<usize> = eps.offsets[1..].to_vec();
        batch.push("terminateds", Tensor::from_bools((1..=eps.steps_len()).map(|i| ends.contains(&i))));
        apply_to(&piece(options), eps, &mut batch).unwrap();
        batch
    }

    fn one_two_three() -> EpisodeBatch {
        let mut eps = episodes(&[3]);
        eps.steps.set(REWARDS, Tensor::from_values::<f64>([], &[1., 2., 3.]));
        eps
    }

    fn returns(batch: &ModuleBatch) -> Vec<f64> {
        batch.get(RETURNS_TO_GO).unwrap().values().to_vec()
    }

    fn numbers(batch: &ModuleBatch, name: &str) -> Vec<i64> {
        batch.get(name).unwrap().cast(DType::Int64).unwrap().values().to_vec()
    }

    fn bools(batch: &ModuleBatch, name: &str) -> Vec<u8> {
        batch.get(name).unwrap().bytes().to_vec()
    }

    #[test]
    fn the_figure_above() {
        let batch = cut(json!({ "context_len": 2 }), &mut one_two_three());
        assert_eq!(numbers(&batch, "actions"), [0, 0, 0, 1, 1, 2]);
        assert_eq!(returns(&batch), [0., 6., 6., 5., 5., 3.]);
        assert_eq!(numbers(&batch, TIMESTEPS), [0, 0, 0, 1, 1, 2]);
        assert_eq!(bools(&batch, "attention_mask"), [0, 1, 1, 1, 1, 1]);
        assert_eq!(batch.windows().unwrap().iter().map(|w| w.first).collect::<Vec<_>>(), [0, 0, 1]);

        let batch = cut(json!({ "context_len": 2, "anchor": "start", "side": "right" }), &mut one_two_three());
        assert_eq!(numbers(&batch, "actions"), [0, 1, 1, 2, 2, 0]);
        assert_eq!(returns(&batch), [6., 5., 5., 3., 3., 0.]);
        assert_eq!(numbers(&batch, TIMESTEPS), [0, 1, 1, 2, 2, 0]);
        assert_eq!(bools(&batch, "attention_mask"), [1, 1, 1, 1, 1, 0]);
    }

    /// Worked by hand after the code that the table names: the last window of the episode above, four places long.
    #[test]
    fn the_conventions_of_the_table() {
        let numbers_of_last_row = |t: &Tensor| {
            let wide = widened(&t.slice(t.rows() - 1, 1), DType::Int64).unwrap();
            wide.values::<i64>().to_vec()
        };
        let last = |options: serde_json::Value| {
            let batch = cut(options, &mut one_two_three());
            let row = |name: &str| batch.get(name).map(numbers_of_last_row);
            let mask = ["attention_mask", "loss_mask", "is_pad"].into_iter().find_map(row).unwrap();
            let scaled = batch.get(RETURNS_TO_GO).unwrap();
            let scaled = scaled.slice(scaled.rows() - 1, 1).values::<f64>().to_vec();
            (row("actions").unwrap(), row("terminateds").unwrap(), row(TIMESTEPS).unwrap(), mask, scaled)
        };
        let kzl =
            json!({ "context_len": 4, "anchor": "start", "fill": { "actions": -10, "terminateds": 2 }, "scale": 0.5 });
        assert_eq!(
            last(kzl),
            (vec![-10, -10, -10, 2], vec![2, 2, 2, 1], vec![0, 0, 0, 2], vec![0, 0, 0, 1], vec![0., 0., 0., 1.5])
        );
        let corl =
            json!({ "context_len": 4, "anchor": "start", "side": "right", "timesteps_padding": "count", "scale": 0.5 });
        assert_eq!(
            last(corl),
            (vec![2, 0, 0, 0], vec![1, 0, 0, 0], vec![2, 3, 4, 5], vec![1, 0, 0, 0], vec![1.5, 0., 0., 0.])
        );
        let d3rlpy = json!({ "context_len": 4, "first_timestep": 1 });
        assert_eq!(
            last(d3rlpy),
            (vec![0, 0, 1, 2], vec![0, 0, 0, 1], vec![0, 1, 2, 3], vec![0, 1, 1, 1], vec![0., 6., 5., 3.])
        );
        let rllib = json!({ "context_len": 4, "anchor": "start", "period": 4, "side": "right", "mask": "loss_mask" });
        assert_eq!(
            last(rllib),
            (vec![0, 1, 2, 0], vec![0, 0, 1, 0], vec![0, 1, 2, 0], vec![1, 1, 1, 0], vec![6., 5., 3., 0.])
        );
        let lerobot =
            json!({ "context_len": 4, "mask": "is_pad", "fill": { "actions": "repeat", "returns_to_go": "repeat" } });
        assert_eq!(
            last(lerobot),
            (vec![0, 0, 1, 2], vec![0, 0, 0, 1], vec![0, 0, 1, 2], vec![1, 0, 0, 0], vec![6., 6., 5., 3.])
        );
    }

    /// C38: one step a window is never padding.
    #[test]
    fn a_context_of_one_has_no_padding() {
        let batch = cut(json!({ "context_len": 1, "mask": "is_pad" }), &mut episodes(&[0, 3, 2]));
        assert_eq!(bools(&batch, "is_pad"), [0; 5]);
        assert_eq!(numbers(&batch, "actions"), [10, 11, 12, 20, 21]);
    }

    #[test]
    fn whole_windows_have_no_padding() {
        let options = json!({ "context_len": 2, "whole_only": true });
        let batch = cut(options, &mut episodes(&[1, 3]));
        assert_eq!(numbers(&batch, "actions"), [10, 11, 11, 12]);
        assert_eq!(bools(&batch, "attention_mask"), [1; 4]);
    }

    #[test]
    fn windows_reach_into_the_look_back() {
        let mut eps = one_two_three();
        (eps.chunks[0].t_started, eps.history_offsets) = (5, vec![0, 1]);
        eps.history.set("actions", Tensor::from_values::<i32>([], &[-1]));
        eps.history.set("rewards", Tensor::from_values::<f64>([], &[10.]));
        let batch = cut(json!({ "context_len": 2, "gamma": 0.5 }), &mut eps);
        assert_eq!(numbers(&batch, "actions"), [-1, 0, 0, 1, 1, 2]);
        assert_eq!(returns(&batch), [11.375, 2.75, 2.75, 3.5, 3.5, 3.]);
        assert_eq!(numbers(&batch, TIMESTEPS), [4, 5, 5, 6, 6, 7]);
        assert_eq!(bools(&batch, "attention_mask"), [1; 6]);
    }

    #[test]
    fn padding_that_a_column_cannot_hold_is_refused() {
        let ty = TensorType::new(DType::UInt8, [2]);
        let error = piece(json!({ "fill": { "actions": -10 } })).filling("actions/arm", &ty).unwrap_err();
        assert_eq!(error.what(), "found -10 to pad `actions/arm`, which is no uint8");
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        for options in [
            json!({ "context_len": 0 }),
            json!({ "period": 0 }),
            json!({ "gamma": 1.5 }),
            json!({ "first_timestep": 2 }),
            json!({ "timesteps_padding": "count" }),
        ] {
            let piece: DecisionTransformerWindows = serde_json::from_value(options.clone()).unwrap();
            assert!(piece.check().is_err(), "{options}");
        }
        assert!(serde_json::from_value::<DecisionTransformerWindows>(json!({ "fill": { "obs": "rep" } })).is_err());
    }

    proptest! {
        #[test]
        fn equals_the_rule_written_out(
            lengths in prop::collection::vec(0..8_usize, 0..5),
            context in 1..5_usize,
            period in 1..4_usize,
            at_end: bool,
            left: bool,
        ) {
            let (anchor, side) = (if at_end { "end" } else { "start" }, if left { "left" } else { "right" });
            let options = json!({
                "context_len": context, "period": period, "anchor": anchor, "side": side,
                "fill": { "actions": -10 }, "gamma": 0.5, "scale": 2.0, "first_timestep": 1,
            });
            let batch = cut(options, &mut episodes(&lengths));
            let (mut actions, mut rtg, mut times, mut mask) = (vec![], vec![], vec![], vec![]);
            for (e, &len) in lengths.iter().enumerate() {
                for t in (0..len).step_by(period) {
                    let steps: Vec<usize> =
                        if at_end { ((t + 1).saturating_sub(context)..=t).collect() } else { (t..len.min(t + context)).collect() };
                    let padding = vec![None; context - steps.len()];
                    let real = steps.into_iter().map(Some);
                    let places: Vec<Option<usize>> =
                        if left { padding.into_iter().chain(real).collect() } else { real.chain(padding).collect() };
                    for place in places {
                        actions.push(place.map_or(-10, |t| i64::try_from(10 * e + t).unwrap()));
                        let sum = |t: usize| (t..len).rev().fold(0., |acc, k| (10 * e + k) as f64 + 0.5 * acc);
                        rtg.push(place.map_or(0., |t| 2. * sum(t)));
                        times.push(place.map_or(0, |t| i64::try_from(t).unwrap() + 1));
                        mask.push(u8::from(place.is_some()));
                    }
                }
            }
            prop_assert_eq!(numbers(&batch, "actions"), actions);
            prop_assert_eq!(returns(&batch), rtg);
            prop_assert_eq!(numbers(&batch, TIMESTEPS), times);
            prop_assert_eq!(bools(&batch, "attention_mask"), mask);
        }
    }
}
