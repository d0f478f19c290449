//! `ClipRewards`: rewards within limits, or their signs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rewards::{lay_out_rewards, map_rewards};
use crate::batch::ModuleBatch;
use crate::column::{REWARDS, root};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, Slices, piece_boilerplate};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::job::ModuleSettings;

/// Clips rewards to `-limit ..= limit`, or replaces them by their sign.
///
/// ```text
/// rewards          -3.0  0.5  0.0  7.0
/// limit = 1.0      -1.0  0.5  0.0  1.0
/// sign = true      -1.0  1.0  0.0  1.0
/// ```
///
/// Written into the episodes, so that every later piece sees it. NaN stays NaN. Float rewards keep their dtype,
/// integers and booleans become float64. As RLlib's `connectors/agent/clip_reward.py` (same arguments) and its setting
/// `clip_rewards`, where `true` is `sign` and a number is `limit`; the sign is what DQN learns Atari games from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClipRewards {
    /// Whether rewards become -1, 0 or 1.
    pub sign: bool,
    /// The largest magnitude of a reward.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
}

impl Piece for ClipRewards {
    const NAME: &'static str = "ClipRewards";

    fn example() -> Self {
        Self { sign: false, limit: Some(1.0) }
    }

    fn check(&self) -> Result<()> {
        match (self.sign, self.limit) {
            (true, None) => Ok(()),
            (false, Some(limit)) if limit > 0.0 => Ok(()),
            (false, Some(limit)) => Err(Error::usage(format!("found limit = {limit}, expected a positive number"))),
            (true, Some(_)) => Err(Error::usage("found sign = true and a limit, expected one of them")),
            (false, None) => Err(Error::usage("found neither a limit nor sign = true, expected one of them")),
        }
    }
}

/// NumPy's `sign`: 0 for both zeros, NaN for NaN.
fn sign(x: f64) -> f64 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else if x.is_nan() {
        x
    } else {
        0.0
    }
}

impl Connector for ClipRewards {
    piece_boilerplate!();

    fn reads(&self, _: &ModuleSettings, column: &str) -> bool {
        root(column) == REWARDS
    }

    fn slices(&self, _: Context<'_>, _: &EpisodeLayout) -> Option<Slices> {
        Some(Slices::ANYWHERE)
    }

    fn layout(&self, _: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        lay_out_rewards(plan)
    }

    fn apply(
        &self,
        _: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        _: &mut Repairs,
    ) -> Result<()> {
        match self.limit {
            Some(limit) => map_rewards(episodes, batch, |r| r.clamp(-limit, limit)),
            None => map_rewards(episodes, batch, sign),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::REWARDS;
    use crate::connectors::testing::{apply, assert_promise, episodes, promised};
    use crate::tensor::Tensor;

    fn clipped(piece: &ClipRewards, rewards: Tensor, lengths: &[usize]) -> Tensor {
        let mut eps = episodes(lengths);
        eps.steps.set(REWARDS, rewards);
        let promise = promised(piece, &eps).unwrap();
        let batch = apply(piece, &mut eps).unwrap();
        assert_promise(&promise, &eps, &batch);
        eps.steps.get(REWARDS).unwrap().clone()
    }

    #[test]
    fn the_figure_above() {
        let rewards = Tensor::from_values::<f32>([], &[-3., 0.5, 0., 7.]);
        let limit = ClipRewards { limit: Some(1.0), ..ClipRewards::default() };
        assert_eq!(clipped(&limit, rewards.clone(), &[2, 0, 2]).values::<f32>(), [-1., 0.5, 0., 1.]);
        let signs = ClipRewards { sign: true, limit: None };
        assert_eq!(clipped(&signs, rewards, &[2, 0, 2]).values::<f32>(), [-1., 1., 0., 1.]);
        assert_eq!(clipped(&signs, Tensor::from_values::<i32>([], &[-9, 0]), &[2]).values::<f64>(), [-1., 0.]);
        assert_eq!(clipped(&limit, Tensor::from_values::<i32>([], &[]), &[]).rows(), 0);
    }

    #[test]
    fn odd_values_are_as_in_numpy() {
        let rewards = Tensor::from_values::<f64>([], &[f64::NAN, -0.0, f64::INFINITY]);
        let got = clipped(&ClipRewards { sign: true, limit: None }, rewards.clone(), &[3]);
        let got = got.values::<f64>();
        assert!(got[0].is_nan() && got[1].to_bits() == 0);
        assert_eq!(got[2].to_bits(), 1f64.to_bits());
        let got = clipped(&ClipRewards { sign: false, limit: Some(2.5) }, rewards, &[3]);
        assert!(got.values::<f64>()[0].is_nan());
        assert_eq!(got.values::<f64>()[2].to_bits(), 2.5f64.to_bits());
    }

    #[test]
    fn one_of_both_is_needed() {
        assert!(ClipRewards::default().check().is_err());
        assert!(ClipRewards { sign: true, limit: Some(1.0) }.check().is_err());
        assert!(ClipRewards { sign: false, limit: Some(0.0) }.check().is_err());
        assert!(ClipRewards { sign: false, limit: Some(f64::NAN) }.check().is_err());
        assert!(ClipRewards { sign: false, limit: Some(1.0) }.check().is_ok());
    }
}
