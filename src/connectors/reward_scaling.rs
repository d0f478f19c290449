//! `RewardScaling`: rewards times a factor, plus a constant.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rewards::{lay_out_rewards, map_rewards};
use crate::batch::ModuleBatch;
use crate::column::{REWARDS, root};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, Slices, piece_boilerplate};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::job::ModuleSettings;

/// Scales rewards, then shifts them: `rewards * scale + shift`.
///
/// ```text
/// rewards 0 1 0 1 (antmaze)      scale = 1, shift = -1       rewards -1 0 -1 0
/// ```
///
/// Written into the episodes, so that every later piece sees it. Computed in float64 and rounded once: float rewards
/// keep their dtype, integers and booleans become float64. Steps that `AddOneTsToEpisodesAndTruncate` has added keep
/// their reward of 0. The usual preparation of offline data sets: `reward_scale` and `reward_bias` in CORL,
/// `MultiplyRewardScaler` and `ConstantShiftRewardScaler` in d3rlpy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RewardScaling {
    /// Factor.
    pub scale: f64,
    /// Added after scaling.
    pub shift: f64,
}

impl Default for RewardScaling {
    fn default() -> Self {
        Self { scale: 1.0, shift: 0.0 }
    }
}

impl Piece for RewardScaling {
    const NAME: &'static str = "RewardScaling";

    fn check(&self) -> Result<()> {
        for (name, value) in [("scale", self.scale), ("shift", self.shift)] {
            if !value.is_finite() {
                return Err(Error::usage(format!("found {name} = {value}, expected a finite number")));
            }
        }
        Ok(())
    }
}

impl Connector for RewardScaling {
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
        map_rewards(episodes, batch, |r| r * self.scale + self.shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::{LOSS_MASK, REWARDS};
    use crate::connectors::testing::{apply, apply_to, assert_promise, episodes, promised};
    use crate::tensor::Tensor;

    fn scaled(piece: &RewardScaling, rewards: Tensor, lengths: &[usize]) -> EpisodeBatch {
        let mut eps = episodes(lengths);
        eps.steps.set(REWARDS, rewards);
        let promise = promised(piece, &eps).unwrap();
        let batch = apply(piece, &mut eps).unwrap();
        assert_promise(&promise, &eps, &batch);
        eps
    }

    #[test]
    fn the_figure_above() {
        let piece = RewardScaling { scale: 1.0, shift: -1.0 };
        let eps = scaled(&piece, Tensor::from_values::<i64>([], &[0, 1, 0, 1]), &[3, 0, 1]);
        assert_eq!(eps.steps.get(REWARDS).unwrap().values::<f64>(), [-1., 0., -1., 0.]);
    }

    #[test]
    fn floats_keep_their_dtype_and_are_rounded_once() {
        let piece = RewardScaling { scale: 0.1, shift: 0.25 };
        let raw = [0.3f32, 1e8, -7.];
        let eps = scaled(&piece, Tensor::from_values::<f32>([], &raw), &[1, 2]);
        let want: Vec<u64> = raw.map(|r| (f64::from(r) * 0.1 + 0.25).to_bits()).to_vec();
        let want = Tensor::from_values::<f64>([], &want.into_iter().map(f64::from_bits).collect::<Vec<_>>());
        assert_eq!(eps.steps.get(REWARDS), Some(&want.cast(crate::tensor::DType::Float32).unwrap()));
        let eps = scaled(&piece, Tensor::from_bools([true, false]), &[2]);
        assert_eq!(eps.steps.get(REWARDS).unwrap().values::<f64>(), [0.35, 0.25]);
        assert_eq!(scaled(&piece, Tensor::from_values::<f64>([], &[]), &[]).steps_len(), 0);
    }

    #[test]
    fn look_back_is_scaled_and_added_steps_are_not() {
        let mut eps = episodes(&[2, 1]);
        eps.history_offsets = vec![0, 0, 2];
        eps.history.set(REWARDS, Tensor::from_values::<f64>([], &[5., 6.]));
        let mut batch = ModuleBatch::default();
        batch.push(LOSS_MASK, Tensor::from_bools([true, false, true]));
        apply_to(&RewardScaling { scale: 2.0, shift: 1.0 }, &mut eps, &mut batch).unwrap();
        assert_eq!(eps.steps.get(REWARDS).unwrap().values::<f64>(), [1., 1., 21.]);
        assert_eq!(eps.history.get(REWARDS).unwrap().values::<f64>(), [11., 13.]);
    }

    #[test]
    fn every_component_is_scaled() {
        let piece = RewardScaling { scale: 2.0, shift: 0.0 };
        let eps = scaled(&piece, Tensor::from_values::<f64>([2], &[1., 2., 3., 4.]), &[2]);
        assert_eq!(eps.steps.get(REWARDS).unwrap().values::<f64>(), [2., 4., 6., 8.]);
    }

    #[test]
    fn factors_are_finite() {
        assert!(RewardScaling { scale: f64::NAN, shift: 0.0 }.check().is_err());
        assert!(RewardScaling { scale: 1.0, shift: f64::INFINITY }.check().is_err());
    }
}
