//! `ComputeReturnsToGo`: discounted sums of rewards to the end of the episode.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::ModuleBatch;
use crate::column::{REWARDS, root};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, piece_boilerplate};
use crate::episode::EpisodeBatch;
use crate::error::{Error, Result};
use crate::job::{Compat, ModuleSettings};
use crate::tensor::{DType, Tensor};

/// The column that this piece adds.
pub(super) const RETURNS_TO_GO: &str = "returns_to_go";

/// Adds `returns_to_go`: at each step the discounted sum of the rewards from there to the episode's end.
///
/// ```text
/// rewards 1 2 3 4, gamma = 1      returns_to_go 10 9 7 4
/// ```
///
/// Computed from the back, `acc = reward + gamma * acc`, in float64 whatever the rewards' dtype. It ends where the
/// recorded chunk ends, without a bootstrap. Rewards of several components are summed one by one. As RLlib's
/// `connectors/learner/compute_returns_to_go.py`, where the sum ends after one step if rows come from a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ComputeReturnsToGo {
    /// Discount a step, from 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gamma: f64,
}

impl Default for ComputeReturnsToGo {
    fn default() -> Self {
        Self { gamma: 0.99 }
    }
}

impl Piece for ComputeReturnsToGo {
    const NAME: &'static str = "ComputeReturnsToGo";

    fn check(&self) -> Result<()> {
        super::require_discount("gamma", self.gamma)
    }
}

impl Connector for ComputeReturnsToGo {
    piece_boilerplate!();

    fn reads(&self, _: &ModuleSettings, column: &str) -> bool {
        root(column) == REWARDS
    }

    fn layout(&self, _: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        let rewards = plan.episodes.get(REWARDS).cloned();
        let rewards = rewards.ok_or_else(|| Error::usage("needs rewards as one column").column(REWARDS))?;
        if plan.batch.has(RETURNS_TO_GO) {
            return Err(
                Error::usage(format!("`{RETURNS_TO_GO}` is in the batch already")).hint("name ComputeReturnsToGo once")
            );
        }
        plan.add_steps(RETURNS_TO_GO, rewards.with_dtype(DType::Float64))
    }

    fn apply(
        &self,
        cx: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        _: &mut Repairs,
    ) -> Result<()> {
        let rewards = super::rewards(episodes)?.cast(DType::Float64)?;
        let mut returns: Vec<f64> = rewards.values::<f64>().to_vec();
        let width = rewards.ty().row_elements();
        for i in 0..episodes.len() {
            let rows = episodes.rows(i);
            sum_from_the_back(&mut returns[rows.start * width..rows.end * width], width, self.gamma, cx.compat);
        }
        batch.push(RETURNS_TO_GO, Tensor::from_values::<f64>(rewards.ty().shape.as_slice(), &returns));
        Ok(())
    }
}

/// Turns the rewards of one episode, `width` components a step, into returns-to-go.
pub(super) fn sum_from_the_back(own: &mut [f64], width: usize, gamma: f64, compat: Compat) {
    // SciPy's lfilter also carries 0 * reward, which is NaN where the reward is infinite.
    let slip = |reward: f64| if compat == Compat::Rllib260 { 0.0 * reward } else { 0.0 };
    let mut carried = vec![0.0; width];
    for at in (0..own.len()).rev() {
        let (reward, carry) = (own[at], &mut carried[at % width]);
        own[at] += *carry;
        *carry = slip(reward) + gamma * own[at];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::testing::{apply, apply_with, episodes};
    use crate::job::ModuleSettings;

    fn returns(rewards: &Tensor, lengths: &[usize], gamma: f64) -> Vec<f64> {
        let mut eps = episodes(lengths);
        eps.steps.set(REWARDS, rewards.clone());
        let out = apply(&ComputeReturnsToGo { gamma }, &mut eps).unwrap();
        out.get(RETURNS_TO_GO).unwrap().values::<f64>().to_vec()
    }

    #[test]
    fn sums_end_with_their_episode() {
        let rewards = Tensor::from_values::<f64>([], &[1., 2., 3., 4., 5., 6.]);
        assert_eq!(returns(&rewards, &[4, 0, 2], 1.0), [10., 9., 7., 4., 11., 6.]);
    }

    /// pytorch/rl issue 2086, where the components were mixed up.
    #[test]
    fn components_are_summed_one_by_one() {
        let rewards = Tensor::from_values::<f64>([2], &[0., 0., 0., 0., 0., 0., 1., -1.]);
        let got = returns(&rewards, &[4], 0.9);
        let want = [0.729, -0.729, 0.81, -0.81, 0.9, -0.9, 1., -1.];
        assert!(got.iter().zip(want).all(|(a, b): (&f64, f64)| (a - b).abs() < 1e-12), "{got:?}");
    }

    #[test]
    fn integer_rewards_are_widened() {
        assert_eq!(returns(&Tensor::from_values::<i64>([], &[1, 1, 1]), &[3], 0.5), [1.75, 1.5, 1.]);
    }

    /// As SciPy's lfilter: an infinite reward spoils those before it, and a sum of negative zeros is zero.
    #[test]
    fn what_lfilter_does_at_the_edges() {
        let rewards = Tensor::from_values::<f64>([], &[1., f64::INFINITY, 2., -0.0]);
        assert_eq!(returns(&rewards, &[4], 0.5)[..2], [f64::INFINITY; 2]);
        let module = ModuleSettings::default();
        let cx = Context::new(&module, Compat::Rllib260);
        let mut eps = episodes(&[4]);
        eps.steps.set(REWARDS, rewards);
        let piece = ComputeReturnsToGo { gamma: 0.5 };
        let out = apply_with(&piece, cx, &mut eps, ModuleBatch::default(), &mut Repairs::default()).unwrap();
        let got = out.get(RETURNS_TO_GO).unwrap().values::<f64>().to_vec();
        assert!(got[0].is_nan());
        assert_eq!(got[1..3], [f64::INFINITY, 2.]);
        assert!(got[3].is_sign_positive());
    }
}
