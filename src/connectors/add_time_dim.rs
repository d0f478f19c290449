//! `AddTimeDimToBatchAndZeroPad`: sequences of `max_seq_len` for recurrent modules.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::{ModuleBatch, Rows};
use crate::column::{LOSS_MASK, SEQ_LENS};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, Slices, piece_boilerplate};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::Result;
use crate::job::ModuleSettings;
use crate::tensor::{DType, TensorType};
use crate::window::{Fill, Spec};

/// Cuts each episode's columns into sequences of `max_seq_len` and pads the last one with zeros; adds `seq_lens` and
/// `loss_mask`.
///
/// ```text
/// episodes of 5 and 2 steps, max_seq_len = 3 (T)     column         loss_mask   seq_lens
///   a0 a1 a2 a3 a4   b0 b1                           [a0 a1 a2]     [T T T]     3
///                                                    [a3 a4  0]     [T T F]     2
///                                                    [b0 b1  0]     [T T F]     2
/// ```
///
/// A column of shape `[...]` becomes `[T, ...]`; padding is the dtype's zero (`False`, 0, 0.0). Only for stateful
/// modules: for others this piece does nothing. A `loss_mask` that an earlier piece added is padded like any column.
/// As RLlib's `connectors/common/add_time_dim_to_batch_and_zero_pad.py` and `utils/postprocessing/zero_padding.py`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AddTimeDimToBatchAndZeroPad {
    /// Always true here: recorded data go through the learner pipeline.
    pub as_learner_connector: bool,
}

impl Default for AddTimeDimToBatchAndZeroPad {
    fn default() -> Self {
        Self { as_learner_connector: super::yes() }
    }
}

impl Piece for AddTimeDimToBatchAndZeroPad {
    const NAME: &'static str = "AddTimeDimToBatchAndZeroPad";

    fn check(&self) -> Result<()> {
        super::require_learner_connector(self.as_learner_connector)
    }
}

impl Connector for AddTimeDimToBatchAndZeroPad {
    piece_boilerplate!();

    fn reads(&self, _: &ModuleSettings, _: &str) -> bool {
        false
    }

    fn slices(&self, cx: Context<'_>, _: &EpisodeLayout) -> Option<Slices> {
        if cx.module.stateful { cx.module.seq_len().ok().map(Slices::every) } else { Some(Slices::ANYWHERE) }
    }

    fn layout(&self, cx: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        if !cx.module.stateful {
            return Ok(());
        }
        let seq_len = cx.module.seq_len()?;
        super::cutting::plan_cut(Spec::sequences(seq_len), plan, |_| Ok((Fill::Zeros, cx.indexed)))?;
        if !plan.batch.has(LOSS_MASK) {
            plan.batch.push(LOSS_MASK, TensorType::new(DType::Bool, [seq_len]), Rows::Sequences);
        }
        plan.batch.push(SEQ_LENS, TensorType::new(DType::Int64, []), Rows::Sequences);
        Ok(())
    }

    fn apply(
        &self,
        cx: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        _: &mut Repairs,
    ) -> Result<()> {
        if !cx.module.stateful {
            return Ok(());
        }
        let windows = super::cutting::cut(cx, Spec::sequences(cx.module.seq_len()?), episodes, batch);
        let mut cutting = super::cutting::Cutting::new(&windows, episodes);
        for (name, column) in batch.iter_mut() {
            *column = cutting.cut(name, column, &Fill::Zeros, cx.indexed);
        }
        if !batch.has(LOSS_MASK) {
            batch.push(LOSS_MASK, windows.mask(true));
        }
        batch.push(SEQ_LENS, windows.real_lengths());
        batch.set_windows(windows);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::testing::{apply_stateful, episodes};

    /// Lengths 0, 1, T - 1, T, T + 1 and 2T against the rule written out step by step.
    #[test]
    fn equals_the_rule_written_out() {
        let seq_len = 3;
        let lengths = [0, 1, 2, 3, 4, 6];
        let mut eps = episodes(&lengths);
        let mut batch = ModuleBatch::default();
        let obs: Vec<f32> = eps.steps.get("obs").unwrap().values().to_vec();
        batch.push("obs", eps.steps.get("obs").unwrap().clone());
        apply_stateful(&AddTimeDimToBatchAndZeroPad::default(), seq_len, &mut eps, &mut batch).unwrap();

        let (mut want, mut mask, mut lens, mut start) = (vec![], vec![], vec![], 0);
        for len in lengths {
            for from in (0..len).step_by(seq_len) {
                for place in from..from + seq_len {
                    want.push(if place < len { obs[start + place] } else { 0.0 });
                    mask.push(u8::from(place < len));
                }
                lens.push(i64::try_from((len - from).min(seq_len)).unwrap());
            }
            start += len;
        }
        let got = batch.get("obs").unwrap();
        assert_eq!(got.ty().shape, [3, 1]);
        assert_eq!(got.values::<f32>(), want);
        assert_eq!(batch.get(LOSS_MASK).unwrap().bytes(), mask);
        assert_eq!(batch.get(SEQ_LENS).unwrap().values::<i64>(), lens);
    }
}
