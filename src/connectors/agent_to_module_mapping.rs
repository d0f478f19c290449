//! `AgentToModuleMapping`: each agent's data to its module.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::{ModuleBatch, Stage};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, Slices, piece_boilerplate};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::job::ModuleSettings;

/// Sends each agent's data to the module that acts for it.
///
/// Which module that is stands in the job's `[multi_agent]` table or in the recording, so rows come apart by module
/// when episodes are put together, before the first piece runs. The piece is accepted where RLlib's pipelines name it
/// and changes nothing. As RLlib's `connectors/common/agent_to_module_mapping.py`, whose order of agents inside an
/// episode is that of a Python set; here it is that of their first rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgentToModuleMapping {
    /// Always true here: recorded data go through the learner pipeline.
    pub as_learner_connector: bool,
}

impl Default for AgentToModuleMapping {
    fn default() -> Self {
        Self { as_learner_connector: super::yes() }
    }
}

impl Piece for AgentToModuleMapping {
    const NAME: &'static str = "AgentToModuleMapping";

    fn check(&self) -> Result<()> {
        super::require_learner_connector(self.as_learner_connector)
    }
}

impl Connector for AgentToModuleMapping {
    piece_boilerplate!();

    fn reads(&self, _: &ModuleSettings, _: &str) -> bool {
        false
    }

    fn slices(&self, _: Context<'_>, _: &EpisodeLayout) -> Option<Slices> {
        Some(Slices::ANYWHERE)
    }

    fn layout(&self, _: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        if plan.batch.stage > Stage::Items {
            return Err(Error::usage("the batch is joined already").hint("put this piece before BatchIndividualItems"));
        }
        Ok(())
    }

    fn apply(&self, _: Context<'_>, _: &mut EpisodeBatch, _: &mut ModuleBatch, _: &mut Repairs) -> Result<()> {
        Ok(())
    }
}
