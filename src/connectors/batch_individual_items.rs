//! `BatchIndividualItems`: the lists of items become one array a column.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::{ModuleBatch, Stage};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, Slices, piece_boilerplate};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::job::ModuleSettings;

/// Joins the items of each column into one array with a leading batch dimension.
///
/// Columns are arrays here from the start, so this piece only marks the point after which nothing can be added step
/// by step. As RLlib's `connectors/common/batch_individual_items.py`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BatchIndividualItems {
    /// Accepted as RLlib's argument. Whether data are multi-agent is seen from the data.
    pub multi_agent: bool,
}

impl Piece for BatchIndividualItems {
    const NAME: &'static str = "BatchIndividualItems";
}

impl Connector for BatchIndividualItems {
    piece_boilerplate!();

    fn reads(&self, _: &ModuleSettings, _: &str) -> bool {
        false
    }

    fn slices(&self, _: Context<'_>, _: &EpisodeLayout) -> Option<Slices> {
        Some(Slices::ANYWHERE)
    }

    fn layout(&self, _: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        if plan.batch.stage >= Stage::Batched {
            return Err(Error::usage("the batch is joined already").hint("name BatchIndividualItems once"));
        }
        plan.batch.stage = Stage::Batched;
        Ok(())
    }

    fn apply(&self, _: Context<'_>, _: &mut EpisodeBatch, batch: &mut ModuleBatch, _: &mut Repairs) -> Result<()> {
        batch.set_joined();
        Ok(())
    }
}
