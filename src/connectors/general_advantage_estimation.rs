//! `GeneralAdvantageEstimation`: advantages and value targets from recorded value predictions.

use std::any::Any;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::{ModuleBatch, Rows, Stage};
use crate::column::{LOSS_MASK, REWARDS, TERMINATEDS, TRUNCATEDS};
use crate::connector::{Connector, Context, Finding, Piece, Plan, Repairs, Survey, piece_boilerplate};
use crate::episode::EpisodeBatch;
use crate::error::{Error, Result};
use crate::job::Compat;
use crate::numpy::mean_std;
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

/// Mean, standard deviation, and in RLlib's way also the advantages themselves.
#[derive(Debug)]
struct Result_ {
    mean: f32,
    std: f32,
    /// `A` of all steps of the module, and where each unit's steps start; empty when episodes stand for themselves.
    advantages: Vec<f32>,
    starts: BTreeMap<usize, usize>,
}

struct Pass {
    piece: GeneralAdvantageEstimation,
    across: bool,
    steps: Steps,
    starts: BTreeMap<usize, usize>,
    /// What is standardised, where episodes stand for themselves.
    unstandardised: Vec<f32>,
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

    fn merge(&mut self, finding: Finding) -> Result<()> {
        let Observed(unit, steps, real) =
            *finding.downcast().map_err(|_| Error::internal("another piece's finding"))?;
        self.starts.insert(unit, self.steps.rewards.len());
        self.steps.rewards.extend(steps.rewards);
        self.steps.values.extend(steps.values);
        self.steps.terminated.extend(steps.terminated);
        self.steps.truncated.extend(steps.truncated);
        self.unstandardised.extend(real);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn Any + Send + Sync>> {
        let mut advantages = vec![0.0; self.steps.rewards.len()];
        let values = if self.across {
            self.steps.advantages(&self.piece, 0..advantages.len(), None, &mut advantages);
            self.steps.unstandardised(&advantages)
        } else {
            self.unstandardised
        };
        let (mean, std) = if values.is_empty() { (0.0, 1.0) } else { mean_std(&values) };
        Ok(Box::new(Result_ { mean, std, advantages, starts: self.starts }))
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
                    .hint("value predictions must be recorded as an extra model output; `values` names their column"));
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
        Some(Box::new(Pass {
            piece: self.clone(),
            across: cx.compat == Compat::Rllib260,
            steps: Steps::default(),
            starts: BTreeMap::new(),
            unstandardised: Vec::new(),
        }))
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
            let start =
                result.starts.get(&cx.unit).copied().ok_or_else(|| Error::internal("a unit that no survey saw"))?;
            result.advantages[start..start + steps.rewards.len()].to_vec()
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
