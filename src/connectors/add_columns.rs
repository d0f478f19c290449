//! `AddColumnsFromEpisodesToTrainBatch`: actions, rewards, flags and the extra model outputs.

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::ModuleBatch;
use crate::column::{ACTIONS, INFOS, OBS, REWARDS, STATE_IN, STATE_OUT, TERMINATEDS, TRUNCATEDS, root};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, Slices, piece_boilerplate};
use crate::episode::{Chunk, EpisodeBatch, EpisodeLayout};
use crate::error::Result;
use crate::job::ModuleSettings;
use crate::tensor::{DType, Tensor, TensorType};

/// Adds `actions`, `rewards`, `terminateds`, `truncateds` and every extra model output but `state_in`/`state_out`.
///
/// ```text
/// episode of 3 steps that terminated     terminateds = F F T      truncateds = F F F
/// chunk of 2 steps, cut and continued    terminateds = F F        truncateds = F F
/// ```
///
/// Where no episode has a step there is nothing to add, as in RLlib.
///
/// Each column that the batch already has is passed through, which is how a custom piece in front replaces one.
/// Infos are not added. As RLlib's `connectors/learner/add_columns_from_episodes_to_train_batch.py`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AddColumnsFromEpisodesToTrainBatch {}

impl Piece for AddColumnsFromEpisodesToTrainBatch {
    const NAME: &'static str = "AddColumnsFromEpisodesToTrainBatch";
}

/// The roots that are handled by other pieces.
fn is_state(name: &str) -> bool {
    matches!(root(name), STATE_IN | STATE_OUT)
}

/// `False` everywhere but on each chunk's last step, where it is the chunk's flag.
fn flags(episodes: &EpisodeBatch, flag: impl Fn(&Chunk) -> bool) -> Tensor {
    let mut out = vec![false; episodes.steps_len()];
    for (i, chunk) in episodes.chunks.iter().enumerate() {
        if let Some(last) = episodes.rows(i).last() {
            out[last] = flag(chunk);
        }
    }
    Tensor::from_bools(out)
}

impl Connector for AddColumnsFromEpisodesToTrainBatch {
    piece_boilerplate!();

    fn reads(&self, _: &ModuleSettings, column: &str) -> bool {
        !matches!(root(column), OBS | INFOS) && !is_state(column)
    }

    fn slices(&self, _: Context<'_>, _: &EpisodeLayout) -> Option<Slices> {
        Some(Slices::ANYWHERE)
    }

    fn layout(&self, _: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        let before: HashSet<String> = plan.batch.columns.iter().map(|c| root(&c.name).to_owned()).collect();
        let flag = TensorType::new(DType::Bool, []);
        let recorded =
            |r: &str| -> Vec<_> { plan.episodes.under(r).map(|(n, t)| (n.to_string(), t.clone())).collect() };
        let mut add = recorded(ACTIONS);
        add.extend(recorded(REWARDS));
        if !add.is_empty() {
            add.extend([TERMINATEDS, TRUNCATEDS].map(|n| (n.to_owned(), flag.clone())));
        }
        add.extend(plan.episodes.extras().filter(|(n, _)| !is_state(n)).map(|(n, t)| (n.to_string(), t.clone())));
        for (name, ty) in add.into_iter().filter(|(n, _)| !before.contains(root(n))) {
            plan.add_steps(&name, ty)?;
        }
        Ok(())
    }

    fn apply(
        &self,
        _: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        _: &mut Repairs,
    ) -> Result<()> {
        let mut add: Vec<(String, Tensor)> = Vec::new();
        for wanted in [ACTIONS, REWARDS] {
            add.extend(episodes.steps.under(wanted).map(|(n, t)| (n.to_string(), t.clone())));
        }
        if !add.is_empty() {
            add.push((TERMINATEDS.to_owned(), flags(episodes, |c| c.terminated)));
            add.push((TRUNCATEDS.to_owned(), flags(episodes, |c| c.truncated)));
        }
        let extras = episodes.steps.iter().filter(|(n, _)| crate::episode::is_extra(n) && !is_state(n));
        add.extend(extras.map(|(n, t)| (n.to_string(), t.clone())));
        let before: HashSet<&str> = batch.iter().map(|(name, _)| root(name)).collect();
        add.retain(|(name, _)| !before.contains(root(name)));
        for (name, tensor) in add {
            batch.push(name, tensor);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::testing::{apply, apply_to, episodes};

    #[test]
    fn flags_stand_on_last_steps_only() {
        let mut eps = episodes(&[3, 0, 2]);
        eps.chunks[0].terminated = true;
        eps.chunks[1].terminated = true; // an empty episode has no step to carry a flag
        eps.chunks[2].truncated = true;
        let out = apply(&AddColumnsFromEpisodesToTrainBatch {}, &mut eps).unwrap();
        assert_eq!(out.get(TERMINATEDS), Some(&Tensor::from_bools([false, false, true, false, false])));
        assert_eq!(out.get(TRUNCATEDS), Some(&Tensor::from_bools([false, false, false, false, true])));
    }

    #[test]
    fn episodes_without_steps_add_nothing() {
        let mut eps = episodes(&[0, 0]);
        let obs = eps.steps.iter().filter(|(n, _)| &***n == "obs").map(|(n, t)| (n.clone(), t.clone())).collect();
        eps.steps = obs; // a recording without any step shows no other column
        let out = apply(&AddColumnsFromEpisodesToTrainBatch {}, &mut eps).unwrap();
        assert_eq!(out.iter().count(), 0);
    }

    #[test]
    fn what_is_there_is_passed_through() {
        let mut eps = episodes(&[2]);
        let mine = Tensor::from_values::<f64>([], &[7., 8.]);
        let mut batch = ModuleBatch::default();
        batch.push(REWARDS, mine.clone());
        apply_to(&AddColumnsFromEpisodesToTrainBatch {}, &mut eps, &mut batch).unwrap();
        assert_eq!(batch.get(REWARDS), Some(&mine));
        assert!(batch.has(ACTIONS));
    }
}
