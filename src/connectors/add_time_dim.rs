//! `AddTimeDimToBatchAndZeroPad`: sequences of `max_seq_len` for recurrent modules.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::{ModuleBatch, Rows, Stage};
use crate::column::{LOSS_MASK, SEQ_LENS};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, piece_boilerplate};
use crate::episode::EpisodeBatch;
use crate::error::{Error, Result};
use crate::tensor::{DType, Tensor, TensorBuilder, TensorType};

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

/// `column` cut per chunk into rows of `seq_len` places, the last one of each chunk zero-padded on the right.
pub(super) fn split_and_zero_pad(column: &Tensor, episodes: &EpisodeBatch, seq_len: usize) -> Tensor {
    let rows: usize = episodes.lengths().map(|len| len.div_ceil(seq_len)).sum();
    // Built place by place (`rows * seq_len` rows of the old type), then seen as sequences: the bytes are the same.
    let mut places = TensorBuilder::with_capacity(column.ty().clone(), rows * seq_len);
    let mut start = 0;
    for len in episodes.lengths() {
        places.extend(column, start, len);
        places.extend_zeros(len.next_multiple_of(seq_len) - len);
        start += len;
    }
    places.finish().reshaped(column.ty().stacked(seq_len), rows)
}

/// The real steps of each sequence: `seq_len` for all but the last one of a chunk.
fn seq_lens(lengths: impl Iterator<Item = usize>, seq_len: usize) -> Vec<i64> {
    let to_i64 = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    lengths.flat_map(|len| (0..len).step_by(seq_len).map(move |t| to_i64(seq_len.min(len - t)))).collect()
}

impl Connector for AddTimeDimToBatchAndZeroPad {
    piece_boilerplate!();

    fn layout(&self, cx: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        if !cx.module.stateful {
            return Ok(());
        }
        let seq_len = cx.module.seq_len()?;
        if plan.batch.stage > Stage::Items {
            return Err(Error::usage("the batch is joined already, its episodes can no longer be told apart")
                .hint("put this piece before BatchIndividualItems"));
        }
        for column in &mut plan.batch.columns {
            if column.rows == Rows::Sequences {
                return Err(Error::usage(format!("`{}` has a time dimension already", column.name))
                    .hint("name AddTimeDimToBatchAndZeroPad once, and before AddStatesFromEpisodesToBatch"));
            }
            column.ty = column.ty.stacked(seq_len);
            column.rows = Rows::Sequences;
        }
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
        let seq_len = cx.module.seq_len()?;
        for (_, column) in batch.iter_mut() {
            *column = split_and_zero_pad(column, episodes, seq_len);
        }
        if !batch.has(LOSS_MASK) {
            let ones = Tensor::from_bools(std::iter::repeat_n(true, episodes.steps_len()));
            batch.push(LOSS_MASK, split_and_zero_pad(&ones, episodes, seq_len));
        }
        batch.push(SEQ_LENS, Tensor::from_values::<i64>([], &seq_lens(episodes.lengths(), seq_len)));
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
