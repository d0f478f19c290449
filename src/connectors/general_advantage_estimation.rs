//! `GeneralAdvantageEstimation`: advantages and value targets from recorded value predictions.

use std::any::Any;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::{ModuleBatch, Rows, Stage};
use crate::column::{LOSS_MASK, REWARDS, TERMINATEDS, TRUNCATEDS};
use crate::connector::{Connector, Context, Finding, Piece, Plan, Portable, Repairs, Room, Survey, piece_boilerplate};
use crate::episode::EpisodeBatch;
use crate::error::{Error, Result, closest};
use crate::job::Compat;
use crate::numpy::mean_std;
use crate::scratch::Spool;
use crate::tensor::{DType, Tensor, TensorType};
use crate::window::{Column, Fill};

const ADVANTAGES: &str = "advantages";
const VALUE_TARGETS: &str = "value_targets";
/// The repair that this piece makes; see [`GeneralAdvantageEstimation`].
const REAL_STEPS: &str = "advantages_standardised_over_real_steps";

/// Adds `advantages` (standardised) and `value_targets` from the recorded value predictions.
///
/// ```text
/// delta_t  = r_t + gamma * (1 - terminated_t) * V_{t+1} - V_t
/// A_t      = delta_t + gamma * lambda * (1 - terminated_t) * (1 - truncated_t) * A_{t+1}
/// value_targets = A + V      advantages = (value_targets - V - mean) / max(1e-4, std)
/// ```
///
/// RLlib asks the module for `V`; here it is the recorded column `vf_preds`, or the one that `values` names. It should
/// stand behind `AddOneTsToEpisodesAndTruncate`, whose extra step carries the bootstrap value, and behind
/// `NumpyToTensor`.
///
/// RLlib 2.60 takes mean and standard deviation over the extra steps, too, and lets their own (masked) values see the
/// next episode (issue 57989). `compat = "correct"` takes them over real steps only, and nothing crosses an episode's
/// end. As RLlib's `connectors/learner/general_advantage_estimation.py` and `utils/postprocessing/value_predictions.py`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GeneralAdvantageEstimation {
    /// Discount a step, from 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gamma: f64,
    /// Weight of longer estimates against the value predictions, from 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub lambda_: f64,
    /// The column of value predictions.
    #[serde(default = "vf_preds")]
    pub values: String,
}

fn vf_preds() -> String {
    "vf_preds".to_owned()
}

impl Default for GeneralAdvantageEstimation {
    /// The defaults of RLlib's `MARWILConfig`.
    fn default() -> Self {
        Self { gamma: 0.99, lambda_: 1.0, values: vf_preds() }
    }
}

impl GeneralAdvantageEstimation {
    /// With what an algorithm's configuration says, and RLlib's defaults where it says nothing.
    #[must_use]
    pub fn with(gamma: Option<f64>, lambda_: Option<f64>) -> Self {
        let default = Self::default();
        Self { gamma: gamma.unwrap_or(default.gamma), lambda_: lambda_.unwrap_or(default.lambda_), ..default }
    }

    /// What to do about a column that the batch lacks. An algorithm's pipeline takes `vf_preds` and no other name, so the
    /// job's columns must have it; whoever named another can name one again.
    fn missing(&self, name: &str, there: &[&str]) -> String {
        let is_named = self.values != vf_preds();
        match closest(name, there.iter().copied()) {
            _ if name != self.values => "a piece before it must add the column, as RLlib's default ones do".to_owned(),
            Some(near) if is_named => format!("did you mean values = {near:?}?"),
            Some(near) => format!("did you mean {near:?}? `[input] columns = {{ {name} = {near:?} }}` says so"),
            None => {
                let way = if is_named { "`values`, or " } else { "" };
                format!(
                    "value predictions must be recorded as an extra model output, and {way}`[input] columns = {{ {name} = \
                     \"...\" }}` names their column"
                )
            }
        }
    }
}

impl Piece for GeneralAdvantageEstimation {
    const NAME: &'static str = "GeneralAdvantageEstimation";

    fn check(&self) -> Result<()> {
        super::require_discount("gamma", self.gamma)?;
        super::require_discount("lambda_", self.lambda_)
    }
}

/// What the recursion reads, one value a step, padding removed.
#[derive(Debug, Default, Clone)]
struct Steps {
    rewards: Vec<f32>,
    values: Vec<f32>,
    terminated: Vec<bool>,
    truncated: Vec<bool>,
    /// Whether a step is real (not added by a piece).
    real: Vec<bool>,
}

impl Steps {
    fn of(piece: &GeneralAdvantageEstimation, episodes: &EpisodeBatch, batch: &ModuleBatch) -> Result<Self> {
        let column = |name: &str| {
            let column = batch.get(name).ok_or_else(|| Error::internal(format!("no column {name}")))?;
            let Some(windows) = batch.windows() else { return Ok(column.clone()) };
            windows.scatter(column, episodes.lengths()).ok_or_else(|| Error::internal("a step in no sequence"))
        };
        let floats = |name: &str| Ok::<_, Error>(column(name)?.cast(DType::Float32)?.values::<f32>().to_vec());
        let flags = |name: &str| Ok::<_, Error>(column(name)?.bytes().iter().map(|&b| b != 0).collect::<Vec<_>>());
        let rewards = floats(REWARDS)?;
        let real = if batch.has(LOSS_MASK) { flags(LOSS_MASK)? } else { vec![true; rewards.len()] };
        Ok(Self {
            values: floats(&piece.values)?,
            terminated: flags(TERMINATEDS)?,
            truncated: flags(TRUNCATEDS)?,
            rewards,
            real,
        })
    }

    /// `A_t` of `steps`, from the back; `next` is `(V, A)` of the step behind them, if there is one.
    fn advantages(
        &self,
        piece: &GeneralAdvantageEstimation,
        steps: std::ops::Range<usize>,
        mut next: Option<(f32, f64)>,
        out: &mut [f32],
    ) -> Option<(f32, f64)> {
        let decay = piece.gamma * piece.lambda_;
        for t in steps.rev() {
            let (next_value, running) = next.map_or((0.0, 0.0), |(v, a)| (f64::from(v), a));
            let goes_on = if self.terminated[t] { 0.0 } else { 1.0 };
            let propagates = if self.truncated[t] { 0.0 } else { goes_on };
            let delta = (f64::from(self.rewards[t]) + (piece.gamma * goes_on) * next_value) - f64::from(self.values[t]);
            let advantage = delta + (decay * propagates) * running;
            #[expect(clippy::cast_possible_truncation, reason = "NumPy stores the float64 into a float32 array")]
            {
                out[t] = advantage as f32;
            }
            next = Some((self.values[t], advantage));
        }
        next
    }

    /// `A_t` of every step, each episode by itself.
    fn by_episode(&self, piece: &GeneralAdvantageEstimation, episodes: &EpisodeBatch) -> Vec<f32> {
        let mut out = vec![0.0; self.rewards.len()];
        for i in 0..episodes.len() {
            self.advantages(piece, episodes.rows(i), None, &mut out);
        }
        out
    }

    /// `(A + V) - V` in float32: what RLlib standardises.
    fn unstandardised(&self, advantages: &[f32]) -> Vec<f32> {
        advantages.iter().zip(&self.values).map(|(a, v)| (a + v) - v).collect()
    }
}

/// Steps as rows of the batch. Burn-in before a chunk gets zeros: nothing is learnt there.
fn rows(steps: &Tensor, episodes: &EpisodeBatch, batch: &ModuleBatch) -> Tensor {
    let Some(windows) = batch.windows() else { return steps.clone() };
    let before = Tensor::zeros(steps.ty().clone(), episodes.history_offsets.last().copied().unwrap_or(0));
    let look_back = Some((&before, episodes.history_offsets.as_slice()));
    windows.gather(Column { steps, offsets: &episodes.offsets, look_back }, &Fill::Zeros)
}

/// What stands behind a step: its `V` and its `A`; nothing behind the last one.
type Behind = Option<(f32, f64)>;

/// Mean and standard deviation, and in RLlib's way also what stands behind each unit's last step.
#[derive(Debug, Serialize, Deserialize)]
struct Result_ {
    mean: f32,
    std: f32,
    /// By unit; empty when episodes stand for themselves.
    behind: BTreeMap<usize, Behind>,
}

/// Terminated and truncated, as bits.
const TERMINATED: u8 = 1;
const TRUNCATED: u8 = 2;

#[derive(Debug, Default)]
struct Pass {
    piece: GeneralAdvantageEstimation,
    across: bool,
    /// In RLlib's way, the steps of all units one after the other.
    rewards: Spool<f32>,
    values: Spool<f32>,
    flags: Spool<u8>,
    /// Each unit's number, and where its steps end.
    units: Vec<(usize, usize)>,
    /// What is standardised, where episodes stand for themselves.
    unstandardised: Spool<f32>,
}

impl Pass {
    /// The steps of one unit.
    fn steps(&self, i: usize) -> Result<Steps> {
        let start = i.checked_sub(1).map_or(0, |before| self.units[before].1);
        let range = start..self.units[i].1;
        let flags = self.flags.read(range.clone())?;
        Ok(Steps {
            rewards: self.rewards.read(range.clone())?,
            values: self.values.read(range)?,
            terminated: flags.iter().map(|f| f & TERMINATED != 0).collect(),
            truncated: flags.iter().map(|f| f & TRUNCATED != 0).collect(),
            real: Vec::new(),
        })
    }

    /// What stands behind each unit's last step: from the last unit to the first.
    fn behind(&self) -> Result<Vec<Behind>> {
        let mut out = vec![None; self.units.len()];
        let mut next = None;
        for i in (0..self.units.len()).rev() {
            out[i] = next;
            let steps = self.steps(i)?;
            let mut advantages = vec![0.0; steps.rewards.len()];
            next = steps.advantages(&self.piece, 0..advantages.len(), next, &mut advantages);
        }
        Ok(out)
    }
}

/// A unit's number and steps, and what is standardised of them.
struct Observed(usize, Steps, Vec<f32>);

impl Survey for Pass {
    fn observe(&self, cx: Context<'_>, episodes: &EpisodeBatch, batch: &ModuleBatch) -> Result<Finding> {
        let steps = Steps::of(&self.piece, episodes, batch)?;
        if self.across {
            return Ok(Box::new(Observed(cx.unit, steps, Vec::new())));
        }
        let advantages = steps.by_episode(&self.piece, episodes);
        let all = steps.unstandardised(&advantages);
        let real = all.into_iter().zip(&steps.real).filter(|(_, real)| **real).map(|(a, _)| a).collect();
        Ok(Box::new(Observed(cx.unit, Steps::default(), real)))
    }

    fn enter(&mut self, room: Room) {
        let part = |n: usize| room.bytes / 10 * n;
        self.rewards = Spool::new(part(4), room.scratch.clone());
        self.values = Spool::new(part(4), room.scratch.clone());
        self.flags = Spool::new(part(1), room.scratch.clone());
        self.unstandardised = Spool::new(part(9), room.scratch);
    }

    fn merge(&mut self, finding: Finding) -> Result<()> {
        let Observed(unit, steps, real) =
            *finding.downcast().map_err(|_| Error::internal("another piece's finding"))?;
        self.unstandardised.extend(&real)?;
        if self.across {
            let flag = |(terminated, truncated): (&bool, &bool)| {
                (u8::from(*terminated) * TERMINATED) | (u8::from(*truncated) * TRUNCATED)
            };
            self.rewards.extend(&steps.rewards)?;
            self.values.extend(&steps.values)?;
            self.flags.extend(&steps.terminated.iter().zip(&steps.truncated).map(flag).collect::<Vec<_>>())?;
            self.units.push((unit, self.rewards.len()));
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn Any + Send + Sync>> {
        let behind = self.behind()?;
        let unit = |i: usize| {
            let steps = self.steps(i)?;
            let mut advantages = vec![0.0; steps.rewards.len()];
            steps.advantages(&self.piece, 0..advantages.len(), behind[i], &mut advantages);
            Ok(steps.unstandardised(&advantages))
        };
        let n = if self.across { self.rewards.len() } else { self.unstandardised.len() };
        let (mean, std) = match (n, self.across) {
            (0, _) => (0.0, 1.0),
            (n, true) => mean_std(n, || (0..self.units.len()).map(unit))?,
            (n, false) => mean_std(n, || self.unstandardised.chunks())?,
        };
        let behind = self.units.iter().map(|(unit, _)| *unit).zip(behind).collect();
        Ok(Box::new(Result_ { mean, std, behind }))
    }
}

impl Connector for GeneralAdvantageEstimation {
    piece_boilerplate!();

    fn layout(&self, _: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        if plan.batch.stage < Stage::Tensors {
            return Err(
                Error::usage("needs the finished batch").hint("put GeneralAdvantageEstimation behind NumpyToTensor")
            );
        }
        let (rows, shape) = match plan.batch.windows {
            None => (Rows::Steps, Vec::new()),
            Some(spec) if spec.covers_all() => (Rows::Sequences, vec![spec.length()]),
            Some(_) => {
                return Err(Error::usage("needs every step of an episode, and these sequences leave some out")
                    .hint("let sequences start before the episode and cover its end, at most their length apart"));
            }
        };
        for name in [self.values.as_str(), REWARDS, TERMINATEDS, TRUNCATEDS] {
            let found = plan.batch.columns.iter().find(|c| c.name == name);
            match found {
                Some(c) if c.ty.shape == shape => {}
                Some(c) => {
                    return Err(Error::usage(format!("found {}, expected one number a step", c.ty)).column(name));
                }
                None => {
                    let there: Vec<&str> = plan.batch.columns.iter().map(|c| c.name.as_str()).collect();
                    return Err(Error::usage(format!(
                        "needs the column `{name}`, and the batch has {}",
                        there.join(", ")
                    ))
                    .column(name)
                    .hint(self.missing(name, &there)));
                }
            }
        }
        for name in [ADVANTAGES, VALUE_TARGETS] {
            plan.batch.push(name, TensorType::new(DType::Float32, shape.as_slice()), rows);
        }
        Ok(())
    }

    /// Advantages are standardised over a train batch, which is a part.
    fn surveys_each_part(&self) -> bool {
        true
    }

    fn survey(&self, cx: Context<'_>) -> Option<Box<dyn Survey>> {
        Some(Box::new(Pass { piece: self.clone(), across: cx.compat == Compat::Rllib260, ..Pass::default() }))
    }

    fn portable_survey(&self) -> Option<Portable> {
        Some(Portable::of::<Result_>())
    }

    fn apply(
        &self,
        cx: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        repairs: &mut Repairs,
    ) -> Result<()> {
        let result = cx.survey.and_then(<dyn Any + Send + Sync>::downcast_ref::<Result_>);
        let result = result.ok_or_else(|| Error::internal("no survey"))?;
        let steps = Steps::of(self, episodes, batch)?;
        let advantages = if cx.compat == Compat::Rllib260 {
            let behind = result.behind.get(&cx.unit).ok_or_else(|| Error::internal("a unit that no survey saw"))?;
            let mut advantages = vec![0.0; steps.rewards.len()];
            steps.advantages(self, 0..advantages.len(), *behind, &mut advantages);
            advantages
        } else {
            if steps.real.contains(&false) {
                repairs.count(REAL_STEPS, steps.real.iter().filter(|r| **r).count() as u64);
            }
            steps.by_episode(self, episodes)
        };
        let std = result.std.max(1e-4);
        let targets: Vec<f32> = advantages.iter().zip(&steps.values).map(|(a, v)| a + v).collect();
        let standardised: Vec<f32> =
            steps.unstandardised(&advantages).iter().map(|a| (a - result.mean) / std).collect();
        let [standardised, targets] =
            [standardised, targets].map(|values| rows(&Tensor::from_values::<f32>([], &values), episodes, batch));
        batch.push(ADVANTAGES, standardised);
        batch.push(VALUE_TARGETS, targets);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    /// Units of pseudo-random steps.
    fn units() -> Vec<Steps> {
        let value = |i: usize, k: usize| ((i * 7919 + k * 104_729) % 2003) as f32 / 37.0 - 20.0;
        let flag = |i: usize, k: usize| (i * 31 + k).is_multiple_of(17);
        let of = |range: std::ops::Range<usize>| Steps {
            rewards: range.clone().map(|i| value(i, 1)).collect(),
            values: range.clone().map(|i| value(i, 2)).collect(),
            terminated: range.clone().map(|i| flag(i, 3)).collect(),
            truncated: range.clone().map(|i| flag(i, 8)).collect(),
            real: vec![true; range.len()],
        };
        [0..700, 700..700, 700..701, 701..3000].map(of).to_vec()
    }

    fn surveyed(across: bool, room: Option<Room>) -> Result_ {
        let mut pass = Pass { piece: GeneralAdvantageEstimation::with(None, Some(0.9)), across, ..Pass::default() };
        if let Some(room) = room {
            pass.enter(room);
        }
        for (i, steps) in units().into_iter().enumerate() {
            let real = if across { Vec::new() } else { steps.rewards.clone() };
            let steps = if across { steps } else { Steps::default() };
            pass.merge(Box::new(Observed(i, steps, real))).unwrap();
        }
        *Box::new(pass).finish().unwrap().downcast::<Result_>().unwrap()
    }

    #[test]
    fn a_survey_on_scratch_finds_the_same() {
        let dir = tempfile::tempdir().unwrap();
        for across in [true, false] {
            let want = surveyed(across, None);
            for bytes in [0, 5_000] {
                let got = surveyed(across, Some(Room { bytes, scratch: Scratch::new(dir.path()) }));
                assert_eq!((got.mean.to_bits(), got.std.to_bits()), (want.mean.to_bits(), want.std.to_bits()));
                assert_eq!(got.behind, want.behind);
            }
        }
    }

    /// RLlib takes all steps of the module in one go; units take the step behind them from the survey.
    #[test]
    fn units_by_themselves_equal_all_steps_in_one_go() {
        let piece = GeneralAdvantageEstimation::with(None, Some(0.9));
        let mut all = Steps::default();
        for unit in units() {
            all.rewards.extend(unit.rewards);
            all.values.extend(unit.values);
            all.terminated.extend(unit.terminated);
            all.truncated.extend(unit.truncated);
        }
        let mut want = vec![0.0; all.rewards.len()];
        all.advantages(&piece, 0..want.len(), None, &mut want);
        let found = surveyed(true, None);
        let mut got = Vec::new();
        for (i, unit) in units().into_iter().enumerate() {
            let mut own = vec![0.0; unit.rewards.len()];
            unit.advantages(&piece, 0..own.len(), found.behind[&i], &mut own);
            got.extend(own);
        }
        assert_eq!(got, want);
        let values = all.unstandardised(&want);
        let (mean, std) = mean_std(values.len(), || std::iter::once(Ok::<_, Error>(values.clone()))).unwrap();
        assert_eq!((found.mean, found.std), (mean, std));
    }
}
