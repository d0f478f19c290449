//! `NStepReturns`: transitions over several steps.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rewards::{Transitions, from_f64};
use crate::batch::ModuleBatch;
use crate::column::{NEXT_OBS, OBS, REWARDS, TERMINATEDS, TRUNCATEDS, rebase, root};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, piece_boilerplate};
use crate::episode::EpisodeBatch;
use crate::error::{Error, Result};
use crate::job::ModuleSettings;
use crate::tensor::{DType, Tensor, TensorBuilder, TensorType};

/// The number of steps in a step's window, under RLlib's name.
const N_STEP: &str = "n_step";

/// Adds the transition over up to `n_step` steps: `rewards`, `new_obs`, `terminateds`, `truncateds`, and `n_step`, the
/// number of steps in the window.
///
/// ```text
/// n_step = 3, gamma = 0.9        obs o0 o1 o2 o3 | o4        rewards 1 10 100 1000        terminated
///
/// t   window     rewards                  n_step   new_obs   terminateds   truncateds
/// 0   0 1 2      1 + .9 * 10 + .81 * 100 = 91  3   o3        F             F
/// 1     1 2 3    10 + 90 + 810          = 910  3   o4        T             F
/// 2       2 3    100 + 900             = 1000  2   o4        T             F
/// 3         3    1000                          1   o4        T             F
/// ```
///
/// The flags are those of the window's last step, and a window never crosses the end of the recorded episode. A learner's
/// target is `rewards + gamma ^ n_step * (1 - terminateds) * V(new_obs)`: a terminated end has no future, a truncated one
/// (flag `truncateds`) and an open one (no flag) go on from the last observation with the true number of steps. All
/// other columns (`obs`, `actions`, extra model outputs) are those of the window's first step.
///
/// Sums run from the back, `acc = reward + gamma * acc`, in float64. For stateless modules: the recurrent state before
/// `new_obs` would be `n_step` steps away. As `n_step` in RLlib's `utils/replay_buffers/episode_replay_buffer.py`, where
/// the last windows lose their `terminated` and say `n_step` whatever was summed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NStepReturns {
    /// Steps of a window that no end cuts short.
    #[schemars(range(min = 1))]
    pub n_step: usize,
    /// Discount a step, from 0 to 1: the algorithm's.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gamma: f64,
}

impl Default for NStepReturns {
    fn default() -> Self {
        Self { n_step: 1, gamma: 0.99 }
    }
}

impl Piece for NStepReturns {
    const NAME: &'static str = "NStepReturns";

    fn check(&self) -> Result<()> {
        if self.n_step == 0 {
            return Err(Error::usage("found n_step = 0, expected at least 1"));
        }
        super::require_discount("gamma", self.gamma)
    }
}

impl NStepReturns {
    /// One past the last step of the window that starts at `t`.
    fn end(&self, t: usize, len: usize) -> usize {
        t.saturating_add(self.n_step).min(len)
    }

    fn rewards(&self, episodes: &EpisodeBatch) -> Result<Tensor> {
        let rewards = super::rewards(episodes)?.cast(DType::Float64)?;
        let width = rewards.ty().row_elements();
        let values = rewards.values::<f64>();
        let mut sums = vec![0.0; values.len()];
        for i in 0..episodes.len() {
            let rows = episodes.rows(i);
            for t in 0..rows.len() {
                for step in (rows.start + t..rows.start + self.end(t, rows.len())).rev() {
                    let (first, own) = ((rows.start + t) * width, &values[step * width..][..width]);
                    for (sum, reward) in sums[first..][..width].iter_mut().zip(own) {
                        *sum = reward + self.gamma * *sum;
                    }
                }
            }
        }
        from_f64(rewards.ty(), rewards.rows(), sums)
    }

    fn next_obs(&self, episodes: &EpisodeBatch, leaf: &str) -> Result<Tensor> {
        let obs = episodes.steps.get(leaf).ok_or_else(|| Error::internal(format!("no observation leaf {leaf}")))?;
        let last = episodes.last_obs.get(leaf);
        let last = last.ok_or_else(|| Error::internal(format!("no last observation {leaf}")))?;
        let mut out = TensorBuilder::with_capacity(obs.ty().clone(), obs.rows());
        for i in 0..episodes.len() {
            let rows = episodes.rows(i);
            if rows.is_empty() {
                continue;
            }
            episodes.require_last_obs(i)?;
            let inside = rows.len().saturating_sub(self.n_step);
            if inside > 0 {
                out.extend(obs, rows.start + self.n_step, inside);
            }
            for _ in inside..rows.len() {
                out.extend(last, i, 1);
            }
        }
        Ok(out.finish())
    }
}

impl Connector for NStepReturns {
    piece_boilerplate!();

    fn reads(&self, _: &ModuleSettings, column: &str) -> bool {
        matches!(root(column), OBS | REWARDS)
    }

    fn layout(&self, cx: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        Transitions {
            piece: Self::NAME,
            stateless: "",
            makes: &[NEXT_OBS, REWARDS, TERMINATEDS, TRUNCATEDS, N_STEP],
            own: N_STEP,
            before: "rewards, flags and next observations",
        }
        .require(cx, plan)?;
        let rewards = plan.episodes.get(REWARDS).cloned();
        let rewards = rewards.ok_or_else(|| Error::usage("needs rewards as one column").column(REWARDS))?;
        let leaves: Vec<_> = plan.episodes.under(OBS).map(|(n, t)| (rebase(n, NEXT_OBS), t.clone())).collect();
        leaves.into_iter().try_for_each(|(name, ty)| plan.add_steps(&name, ty))?;
        plan.add_steps(REWARDS, rewards.with_dtype(DType::Float64))?;
        plan.add_steps(TERMINATEDS, TensorType::new(DType::Bool, []))?;
        plan.add_steps(TRUNCATEDS, TensorType::new(DType::Bool, []))?;
        plan.add_steps(N_STEP, TensorType::new(DType::Int64, []))
    }

    fn apply(
        &self,
        _: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        _: &mut Repairs,
    ) -> Result<()> {
        let steps = episodes.steps_len();
        let (mut terminateds, mut truncateds) = (vec![false; steps], vec![false; steps]);
        let mut counts = vec![0i64; steps];
        for (i, chunk) in episodes.chunks.iter().enumerate() {
            let rows = episodes.rows(i);
            for (t, row) in rows.clone().enumerate() {
                let end = self.end(t, rows.len());
                counts[row] = i64::try_from(end - t).map_err(|_| Error::internal("a window of 2^63 steps"))?;
                terminateds[row] = chunk.terminated && end == rows.len();
                truncateds[row] = chunk.truncated && end == rows.len();
            }
        }
        for (name, _) in episodes.steps.under(OBS) {
            batch.push(rebase(name, NEXT_OBS), self.next_obs(episodes, name)?);
        }
        batch.push(REWARDS, self.rewards(episodes)?);
        batch.push(TERMINATEDS, Tensor::from_bools(terminateds));
        batch.push(TRUNCATEDS, Tensor::from_bools(truncateds));
        batch.push(N_STEP, Tensor::from_values::<i64>([], &counts));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::testing::{apply, assert_promise, episodes, promised, stateful};

    fn run(piece: &NStepReturns, eps: &EpisodeBatch) -> ModuleBatch {
        let mut own = eps.clone();
        let promise = promised(piece, eps).unwrap();
        let out = apply(piece, &mut own).unwrap();
        assert_promise(&promise, &own, &out);
        assert_eq!(own.steps, eps.steps);
        out
    }

    /// RLlib 2.60 (defect V3) gives n = 3, 3, 3, 3 and terminated F T F F.
    #[test]
    fn the_figure_above() {
        let mut eps = episodes(&[4, 0]);
        eps.steps.set(REWARDS, Tensor::from_values::<f64>([], &[1., 10., 100., 1000.]));
        eps.chunks[0].terminated = true;
        eps.chunks[1].terminated = true;
        let out = run(&NStepReturns { n_step: 3, gamma: 0.9 }, &eps);
        let rewards = out.get(REWARDS).unwrap().values::<f64>();
        assert!(rewards.iter().zip([91., 910., 1000., 1000.]).all(|(a, b): (&f64, f64)| (a - b).abs() < 1e-12));
        assert_eq!(out.get(N_STEP).unwrap().values::<i64>(), [3, 3, 2, 1]);
        assert_eq!(out.get(NEXT_OBS).unwrap().values::<f32>(), [3., 4., 4., 4.]);
        assert_eq!(out.get(TERMINATEDS), Some(&Tensor::from_bools([false, true, true, true])));
        assert_eq!(out.get(TRUNCATEDS), Some(&Tensor::from_bools([false; 4])));
    }

    #[test]
    fn ends_are_told_apart() {
        let mut eps = episodes(&[1, 2, 1]);
        eps.chunks[0].terminated = true;
        eps.chunks[1].truncated = true;
        eps.chunks[2].t_started = 7;
        let out = run(&NStepReturns { n_step: 5, gamma: 1.0 }, &eps);
        assert_eq!(out.get(TERMINATEDS), Some(&Tensor::from_bools([true, false, false, false])));
        assert_eq!(out.get(TRUNCATEDS), Some(&Tensor::from_bools([false, true, true, false])));
        assert_eq!(out.get(N_STEP).unwrap().values::<i64>(), [1, 2, 1, 1]);
        assert_eq!(out.get(NEXT_OBS).unwrap().values::<f32>(), [1., 12., 12., 21.]);
        assert_eq!(out.get(REWARDS).unwrap().values::<f64>(), [0., 21., 11., 20.]);
        assert_eq!(run(&NStepReturns::default(), &episodes(&[])).get(N_STEP).unwrap().rows(), 0);
    }

    /// Against the definition, written down step by step.
    #[test]
    fn naive_reference() {
        let lengths = [6, 1, 0, 3];
        let mut eps = episodes(&lengths);
        let rewards: Vec<f64> = (0..20u16).map(|i| f64::from(i * 37 % 11) - 3.).collect();
        eps.steps.set(REWARDS, Tensor::from_values::<f64>([2], &rewards));
        eps.chunks[3].truncated = true;
        for n_step in 1..8 {
            let gamma = 0.5; // powers of two: sums are exact in any order
            let out = run(&NStepReturns { n_step, gamma }, &eps);
            let (got, next) = (out.get(REWARDS).unwrap(), out.get(NEXT_OBS).unwrap());
            for (i, len) in lengths.into_iter().enumerate() {
                for t in 0..len {
                    let row = eps.offsets[i] + t;
                    let steps = n_step.min(len - t);
                    let sum =
                        |c: usize| (0..steps).map(|k| rewards[(row + k) * 2 + c] / f64::from(1u32 << k)).sum::<f64>();
                    assert_eq!(&got.values::<f64>()[row * 2..row * 2 + 2], &[sum(0), sum(1)]);
                    let number = u16::try_from(10 * i + t + steps).unwrap();
                    assert_eq!(next.values::<f32>()[row].to_bits(), f32::from(number).to_bits());
                }
            }
        }
    }

    #[test]
    fn impossible_pipelines_are_refused() {
        let piece = NStepReturns { n_step: 2, gamma: 0.9 };
        let mut eps = episodes(&[2]);
        eps.chunks[0].has_last_obs = false;
        assert_eq!(apply(&piece, &mut eps).unwrap_err().place().episode.as_deref(), Some("e0"));
        let settings = stateful(4);
        let mut layout = crate::connectors::testing::layout_of(&eps);
        let mut batch = crate::batch::BatchLayout::default();
        let cx = Context::new(&settings, crate::job::Compat::Correct);
        let mut plan = Plan { episodes: &mut layout, batch: &mut batch };
        assert!(piece.layout(cx, &mut plan).unwrap_err().what().contains("stateless"));
        let settings = crate::job::ModuleSettings::default();
        let cx = Context::new(&settings, crate::job::Compat::Correct);
        plan.batch.push(REWARDS, TensorType::new(DType::Float64, []), crate::batch::Rows::Steps);
        assert!(piece.layout(cx, &mut plan).unwrap_err().what().contains("already"));
        assert!(NStepReturns { n_step: 0, gamma: 0.9 }.check().is_err());
        assert!(NStepReturns { n_step: 1, gamma: 1.5 }.check().is_err());
    }
}
