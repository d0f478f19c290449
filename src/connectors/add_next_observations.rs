//! `AddNextObservationsFromEpisodesToTrainBatch`: `new_obs = obs[1..=L]` of every episode.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rewards::require_last_obs;
use crate::batch::ModuleBatch;
use crate::column::{NEXT_OBS, OBS, rebase, root};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, Slices, piece_boilerplate};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::Result;
use crate::job::ModuleSettings;

/// Adds the observation after each action as column `new_obs`, the true last observation of the episode included.
///
/// ```text
/// episode o0 a0 o1 a1 o2      obs = o0 o1      new_obs = o1 o2
/// ```
///
/// It never repeats the last observation and never reads the next episode's: an episode whose last observation was
/// not recorded is an error. A batch that already has `new_obs` is passed through. As RLlib's
/// `connectors/learner/add_next_observations_from_episodes_to_train_batch.py`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AddNextObservationsFromEpisodesToTrainBatch {}

impl Piece for AddNextObservationsFromEpisodesToTrainBatch {
    const NAME: &'static str = "AddNextObservationsFromEpisodesToTrainBatch";
}

impl Connector for AddNextObservationsFromEpisodesToTrainBatch {
    piece_boilerplate!();

    fn reads(&self, _: &ModuleSettings, column: &str) -> bool {
        root(column) == OBS
    }

    fn slices(&self, _: Context<'_>, _: &EpisodeLayout) -> Option<Slices> {
        Some(Slices::ANYWHERE)
    }

    fn layout(&self, _: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        if plan.batch.has(NEXT_OBS) {
            return Ok(());
        }
        require_last_obs(plan)?;
        let leaves: Vec<_> = plan.episodes.under(OBS).map(|(n, t)| (rebase(n, NEXT_OBS), t.clone())).collect();
        leaves.into_iter().try_for_each(|(name, ty)| plan.add_steps(&name, ty))
    }

    fn apply(
        &self,
        _: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        _: &mut Repairs,
    ) -> Result<()> {
        if batch.has(NEXT_OBS) {
            return Ok(());
        }
        for (name, _) in episodes.steps.under(OBS) {
            batch.push(rebase(name, NEXT_OBS), episodes.next_obs(name)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::testing::{apply, episodes};
    use crate::tensor::Tensor;

    #[test]
    fn shifts_by_one_inside_each_episode() {
        let mut eps = episodes(&[2, 0, 1]);
        let out = apply(&AddNextObservationsFromEpisodesToTrainBatch {}, &mut eps).unwrap();
        // obs is 10 * episode + t, so the last observation of episode 0 is 2 and that of episode 2 is 21.
        assert_eq!(out.get(NEXT_OBS), Some(&Tensor::from_values::<f32>([1], &[1., 2., 21.])));
    }

    #[test]
    fn refuses_to_invent_the_last_observation() {
        let mut eps = episodes(&[2, 1]);
        eps.chunks[1].has_last_obs = false;
        let error = apply(&AddNextObservationsFromEpisodesToTrainBatch {}, &mut eps).unwrap_err();
        assert_eq!(error.place().episode.as_deref(), Some("e1"));
        assert!(error.hint_text().unwrap().contains("null action"));
    }

    #[test]
    fn an_empty_episode_needs_no_last_observation() {
        let mut eps = episodes(&[1, 0]);
        eps.chunks[1].has_last_obs = false;
        apply(&AddNextObservationsFromEpisodesToTrainBatch {}, &mut eps).unwrap();
    }
}
