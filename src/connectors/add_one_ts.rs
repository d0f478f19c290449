//! `AddOneTsToEpisodesAndTruncate`: one more step for the bootstrap value.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rewards::require_last_obs;
use crate::batch::ModuleBatch;
use crate::column::{INFOS, LOSS_MASK, OBS, REWARDS, TERMINATEDS, TRUNCATEDS, root};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, piece_boilerplate};
use crate::episode::{Columns, EpisodeBatch};
use crate::error::{Error, Result};
use crate::job::ModuleSettings;
use crate::source::keys::Numbering;
use crate::tensor::{DType, Tensor, TensorBuilder, TensorType};

/// Lengthens every episode by one artificial step, so that a value function can be asked for the last observation.
///
/// ```text
///               recorded            lengthened
/// obs           o0 o1 | o2          o0 o1 o2 | o2      (after | : the observation after the last step)
/// actions       a0 a1               a0 a1 a1           extra model outputs likewise
/// infos         i0 i1 | i2          i0 i1 i2 | i2      where they are read; the last step's again where i2 is not there
/// rewards       r0 r1               r0 r1 0.0           (as float64, as 0.0 is)
/// terminateds   F  end              F  end F
/// truncateds    F  end              F  end F           `end` is True where the episode was not done
/// loss_mask                         T  T   F
/// ```
///
/// Adds `terminateds`, `truncateds` and `loss_mask` to the batch, which later pieces pass through. An episode without
/// steps stays empty (RLlib raises an `IndexError`). As RLlib's
/// `connectors/learner/add_one_ts_to_episodes_and_truncate.py` and `utils/postprocessing/episodes.py`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AddOneTsToEpisodesAndTruncate {}

impl Piece for AddOneTsToEpisodesAndTruncate {
    const NAME: &'static str = "AddOneTsToEpisodesAndTruncate";
}

/// Each chunk's rows of `column` and one more: `extra(builder, chunk, last row)` appends it.
fn lengthened(episodes: &EpisodeBatch, column: &Tensor, extra: impl Fn(&mut TensorBuilder, usize, usize)) -> Tensor {
    let mut out = TensorBuilder::with_capacity(column.ty().clone(), column.rows() + episodes.len());
    for i in 0..episodes.len() {
        let rows = episodes.rows(i);
        out.extend(column, rows.start, rows.len());
        if let Some(last) = rows.last() {
            extra(&mut out, i, last);
        }
    }
    out.finish()
}

impl Connector for AddOneTsToEpisodesAndTruncate {
    piece_boilerplate!();

    fn reads(&self, _: &ModuleSettings, _: &str) -> bool {
        false
    }

    fn numbering(&self) -> Numbering {
        Numbering::Always
    }

    fn layout(&self, _: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        require_last_obs(plan)?;
        if let Some(column) = plan.batch.columns.first() {
            return Err(Error::usage(format!(
                "`{}` is in the batch already, and has no row for the additional step",
                column.name
            ))
            .hint("name AddOneTsToEpisodesAndTruncate once, before every piece that adds columns"));
        }
        for name in [TERMINATEDS, TRUNCATEDS, LOSS_MASK] {
            plan.add_steps(name, TensorType::new(DType::Bool, []))?;
        }
        for (_, ty) in plan.episodes.steps.iter_mut().filter(|(name, _)| root(name) == REWARDS) {
            *ty = ty.with_dtype(DType::Float64);
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
        let filled: Vec<usize> = (0..episodes.len()).filter(|&i| !episodes.rows(i).is_empty()).collect();
        for &i in &filled {
            episodes.require_last_obs(i)?;
            let chunk = &mut episodes.chunks[i];
            chunk.truncated |= !chunk.terminated;
        }

        let rows = episodes.steps_len() + filled.len();
        let [mut terminateds, mut truncateds] = [vec![false; rows], vec![false; rows]];
        let mut mask = vec![true; rows];
        let mut offsets = vec![0];
        for (i, len) in episodes.lengths().enumerate() {
            let start = offsets[i];
            if len > 0 {
                terminateds[start + len - 1] = episodes.chunks[i].terminated;
                truncateds[start + len - 1] = episodes.chunks[i].truncated;
                mask[start + len] = false;
            }
            offsets.push(start + len + usize::from(len > 0));
        }

        let steps = episodes
            .steps
            .iter()
            .map(|(name, column)| {
                let longer = match root(name) {
                    OBS => {
                        let last_obs = episodes.last_obs.get(name);
                        lengthened(episodes, column, |out, i, _| match last_obs {
                            Some(last) => out.extend(last, i, 1),
                            None => out.extend_zeros(1),
                        })
                    }
                    REWARDS => lengthened(episodes, &column.cast(DType::Float64)?, |out, _, _| out.extend_zeros(1)),
                    INFOS => {
                        let last_infos = episodes.last_obs.get(name);
                        lengthened(episodes, column, |out, i, last| match last_infos {
                            Some(infos) => out.extend(infos, i, 1),
                            None => out.extend(column, last, 1),
                        })
                    }
                    _ => lengthened(episodes, column, |out, _, last| out.extend(column, last, 1)),
                };
                Ok((Arc::clone(name), longer))
            })
            .collect::<Result<Columns>>()?;
        episodes.steps = steps;
        // What stands before the steps stays of their kind.
        for name in episodes.history.under(REWARDS).map(|(name, _)| Arc::clone(name)).collect::<Vec<_>>() {
            if let Some(rewards) = episodes.history.get(&name) {
                episodes.history.set(name, rewards.cast(DType::Float64)?);
            }
        }
        episodes.offsets = offsets;

        batch.push(TERMINATEDS, Tensor::from_bools(terminateds));
        batch.push(TRUNCATEDS, Tensor::from_bools(truncateds));
        batch.push(LOSS_MASK, Tensor::from_bools(mask));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::testing::{apply, episodes};

    /// RLlib 2.60 appends a Python 0.0 to the array of rewards, which makes float64 of integers and of smaller floats.
    #[test]
    fn rewards_become_float64() {
        let mut eps = episodes(&[2]);
        eps.steps.set(REWARDS, Tensor::from_values::<i64>([], &[7, 8]));
        eps.history.set(REWARDS, Tensor::from_values::<i64>([], &[6]));
        apply(&AddOneTsToEpisodesAndTruncate {}, &mut eps).unwrap();
        assert_eq!(eps.steps.get(REWARDS).unwrap().values::<f64>(), [7., 8., 0.]);
        assert_eq!(eps.history.get(REWARDS).unwrap().values::<f64>(), [6.]);
    }

    #[test]
    fn the_figure_above() {
        let mut eps = episodes(&[2, 0, 1]);
        eps.chunks[2].terminated = true;
        let out = apply(&AddOneTsToEpisodesAndTruncate {}, &mut eps).unwrap();
        let bools = |name: &str| out.get(name).unwrap().bytes().to_vec();
        assert_eq!(eps.offsets, [0, 3, 3, 5]);
        assert_eq!(eps.steps.get(OBS).unwrap().values::<f32>(), [0., 1., 2., 20., 21.]);
        assert_eq!(eps.steps.get(REWARDS).unwrap().values::<f64>(), [0., 1., 0., 20., 0.]);
        assert_eq!(eps.steps.get("actions").unwrap().values::<i32>(), [0, 1, 1, 20, 20]);
        assert_eq!(bools(TERMINATEDS), [0, 0, 0, 1, 0]);
        assert_eq!(bools(TRUNCATEDS), [0, 1, 0, 0, 0]);
        assert_eq!(bools(LOSS_MASK), [1, 1, 0, 1, 0]);
    }
}
