//! `AddInfosFromEpisodesToTrainBatch`: `infos[0..L]` of every episode.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::recorded;
use crate::batch::ModuleBatch;
use crate::column::{INFOS, root};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, Slices, piece_boilerplate};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::Result;
use crate::job::ModuleSettings;

/// Adds what the environment told beside each observation: a column for each number in the infos.
///
/// ```text
/// infos of an episode of 3 steps              the batch
/// {lives: 3}                                  infos/lives   infos/hit   infos/_hit
/// {lives: 3, hit: 0.5}                        3             0.0         F
/// {lives: 2}                                  3             0.5         T
/// {lives: 2}   (after the last step)          2             0.0         F
/// ```
///
/// RLlib's column is a list of dicts, one a step and never padded. Here each key whose values are numbers, or arrays of
/// one shape, becomes a column `infos/key`, and nested ones `infos/key/inner`. A key that is missing in some steps has
/// zeros there, and a boolean `_key` beside it tells where it was recorded, as in the infos of Gymnasium's vector
/// environments. Other keys (text, arrays of several shapes) are left out, each with a note in the report that names
/// the first such value. Where nothing is left there is no column.
///
/// Dtypes stay as recorded: RLlib makes no tensors of infos. In sequences of a stateful module infos are padded like
/// every other column; `infos/key[loss_mask]` is RLlib's flat list. A batch that already has infos is passed through.
/// As RLlib's `connectors/learner/add_infos_from_episodes_to_train_batch.py`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AddInfosFromEpisodesToTrainBatch {}

impl Piece for AddInfosFromEpisodesToTrainBatch {
    const NAME: &'static str = "AddInfosFromEpisodesToTrainBatch";
}

impl Connector for AddInfosFromEpisodesToTrainBatch {
    piece_boilerplate!();

    fn reads(&self, _: &ModuleSettings, column: &str) -> bool {
        root(column) == INFOS
    }

    fn slices(&self, _: Context<'_>, _: &EpisodeLayout) -> Option<Slices> {
        Some(Slices::ANYWHERE)
    }

    fn layout(&self, _: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        recorded::promise(plan, INFOS)
    }

    fn apply(
        &self,
        _: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        _: &mut Repairs,
    ) -> Result<()> {
        recorded::add(episodes, batch, INFOS);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::testing::{apply, apply_to, episodes, promised};
    use crate::connectors::{AddColumnsFromEpisodesToTrainBatch, NumpyToTensor};
    use crate::tensor::Tensor;

    #[test]
    fn the_figure_above() {
        let mut eps = episodes(&[3]);
        let lives = Tensor::from_values::<i64>([], &[3, 3, 2]);
        eps.steps.set("infos/lives", lives.clone());
        eps.steps.set("infos/hit", Tensor::from_values::<f64>([], &[0.0, 0.5, 0.0]));
        eps.steps.set("infos/_hit", Tensor::from_bools([false, true, false]));
        let names = ["infos/lives", "infos/hit", "infos/_hit"];
        let (_, layout) = promised(&AddInfosFromEpisodesToTrainBatch {}, &eps).unwrap();
        assert_eq!(layout.columns.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), names);
        let mut batch = apply(&AddInfosFromEpisodesToTrainBatch {}, &mut eps).unwrap();
        assert_eq!(batch.iter().map(|(n, _)| n.to_owned()).collect::<Vec<_>>(), names);
        assert_eq!(batch.get("infos/lives"), Some(&lives));
        apply_to(&NumpyToTensor::default(), &mut eps, &mut batch).unwrap();
        assert_eq!(batch.get("infos/hit").unwrap().values::<f64>(), [0.0, 0.5, 0.0], "no tensors are made of infos");
        let columns = apply(&AddColumnsFromEpisodesToTrainBatch {}, &mut eps).unwrap();
        assert!(!columns.has(INFOS), "infos are no model output");
    }

    #[test]
    fn what_is_there_is_passed_through() {
        let mut eps = episodes(&[1]);
        eps.steps.set("infos/lives", Tensor::from_values::<i64>([], &[3]));
        let mut batch = ModuleBatch::default();
        batch.push("infos/mine", Tensor::from_values::<i64>([], &[7]));
        apply_to(&AddInfosFromEpisodesToTrainBatch {}, &mut eps, &mut batch).unwrap();
        assert_eq!(batch.iter().map(|(n, _)| n).collect::<Vec<_>>(), ["infos/mine"]);
    }
}
