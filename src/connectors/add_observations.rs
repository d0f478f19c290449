//! `AddObservationsFromEpisodesToBatch`: `obs = obs[0..L]` of every episode.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::recorded;
use crate::batch::ModuleBatch;
use crate::column::{OBS, root};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, Slices, piece_boilerplate};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::Result;
use crate::job::ModuleSettings;
use crate::source::keys::Numbering;

/// Adds the observation before each action as column `obs`; look-back observations and the last one are left out.
///
/// Nested observations give one column a leaf (`obs/pos`). A batch that already has `obs` is passed through.
/// As RLlib's `connectors/common/add_observations_from_episodes_to_batch.py`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AddObservationsFromEpisodesToBatch {
    /// Always true here: recorded data go through the learner pipeline.
    pub as_learner_connector: bool,
}

impl Default for AddObservationsFromEpisodesToBatch {
    fn default() -> Self {
        Self { as_learner_connector: super::yes() }
    }
}

impl Piece for AddObservationsFromEpisodesToBatch {
    const NAME: &'static str = "AddObservationsFromEpisodesToBatch";

    fn check(&self) -> Result<()> {
        super::require_learner_connector(self.as_learner_connector)
    }
}

impl Connector for AddObservationsFromEpisodesToBatch {
    piece_boilerplate!();

    fn reads(&self, _: &ModuleSettings, column: &str) -> bool {
        root(column) == OBS
    }

    fn numbering(&self) -> Numbering {
        Numbering::WithObservations
    }

    fn slices(&self, _: Context<'_>, _: &EpisodeLayout) -> Option<Slices> {
        Some(Slices::ANYWHERE)
    }

    fn layout(&self, _: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        recorded::promise(plan, OBS)
    }

    fn apply(
        &self,
        _: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        _: &mut Repairs,
    ) -> Result<()> {
        recorded::add(episodes, batch, OBS);
        Ok(())
    }
}
