//! `OverlappingSequences`: sequences with burn-in that overlap, as R2D2 replays them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::{ModuleBatch, Rows};
use crate::column::{LOSS_MASK, SEQ_LENS};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, piece_boilerplate};
use crate::episode::EpisodeBatch;
use crate::error::{Error, Result};
use crate::job::ModuleSettings;
use crate::tensor::{DType, Tensor, TensorType};
use crate::window::{End, Fill, Pad, Spec, Start};

use super::cutting::{self, require_places};

/// Cuts each episode's columns into sequences of `burn_in + length` steps, one every `period` steps; adds `seq_lens`
/// and `loss_mask`.
///
/// ```text
/// an episode of 7 steps, burn_in = 2, length = 3, period = 2
///
///   column              loss_mask        seq_lens   state_in       t
///   [a0 a1 a2  0  0]    [T T T F F]      3          initial        0
///   [a0 a1 a2 a3 a4]    [F F T T T]      5          initial        0
///   [a2 a3 a4 a5 a6]    [F F T T T]      5          after step 1   2
/// ```
///
/// The network unrolls from `state_in` over the burn-in, without loss, and learns from the steps behind it; the steps
/// learnt start at 0, `period`, 2 `period`, .. Every column of `[...]` becomes `[burn_in + length, ...]`. A sequence
/// never holds steps of two episodes. Near an episode's start there are fewer steps to burn in than asked for, and none
/// at all for its first steps. Real steps always stand in front and padding (zeros) at the end, so that `state_in` is
/// the state right before place 0 and a recurrent network never runs over padding to get to real steps.
///
/// A chunk that continues an episode burns in on the steps before it, where these are in the data, a state is known
/// before them, and every column of the batch is a recorded one (or `new_obs`, `terminateds`, `truncateds`); their
/// values are those recorded. Else the burn-in starts with the chunk.
///
/// In front of the default pipeline it takes the place of `AddTimeDimToBatchAndZeroPad`; in a pipeline of one's own it
/// stands there, in front of `AddStatesFromEpisodesToBatch`. Unlike that piece it cuts the batches of all modules. The
/// defaults (no burn-in, sequences of `max_seq_len` one after the other) are RLlib's rule.
///
/// After Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning" (R2D2), ICLR 2019:
/// `burn_in = 40, length = 80, period = 40`. There, and in Acme's `SequenceAdder`, the first sequence starts with the
/// episode, so that its first `burn_in` steps are never learnt: `start = "inside"`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OverlappingSequences {
    /// Steps in front of those learnt that only bring the recurrent state up to date.
    pub burn_in: usize,
    /// Steps learnt in a sequence (R2D2's trace length); the module's `max_seq_len` when left out.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<usize>,
    /// Steps from one sequence to the next, at most `length`; `length` when left out.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<usize>,
    /// Where an episode's first sequence starts.
    pub start: FirstSequence,
    /// Where an episode's last sequence ends.
    pub end: LastSequence,
}

/// Where an episode's first sequence starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FirstSequence {
    /// It learns from the first step on; the burn-in before it does not exist.
    #[default]
    Before,
    /// It burns in from the first step on; the first `burn_in` steps are never learnt.
    Inside,
}

/// Where an episode's last sequence ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LastSequence {
    /// It is the first one that holds the last step, and is padded.
    #[default]
    Cover,
    /// At or before the last step: sequences that would run past it are left out.
    Inside,
}

impl OverlappingSequences {
    fn spec(&self, module: &ModuleSettings) -> Result<Spec> {
        let length = match self.length {
            Some(length) => length,
            None if module.max_seq_len.is_none() => {
                return Err(Error::usage("nothing says how long the sequences are").hint("give this piece a `length`"));
            }
            None => module.seq_len()?,
        };
        let period = self.period.unwrap_or(length);
        if period > length {
            return Err(Error::usage(format!(
                "found period = {period}, expected at most the length {length}: steps in between would never be learnt"
            )));
        }
        Ok(Spec {
            before: self.burn_in,
            after: length,
            period,
            start: match self.start {
                FirstSequence::Before => Start::Before,
                FirstSequence::Inside => Start::Inside,
            },
            end: match self.end {
                LastSequence::Cover => End::Cover,
                LastSequence::Inside => End::Inside,
            },
            pad: Pad::Right,
        })
    }
}

impl Piece for OverlappingSequences {
    const NAME: &'static str = "OverlappingSequences";

    fn check(&self) -> Result<()> {
        require_places("burn_in", self.burn_in, 0)?;
        self.length.map_or(Ok(()), |n| require_places("length", n, 1))?;
        self.period.map_or(Ok(()), |n| require_places("period", n, 1))?;
        if self.length.is_some() {
            self.spec(&ModuleSettings::default())?;
        }
        Ok(())
    }
}

impl Connector for OverlappingSequences {
    piece_boilerplate!();

    fn cuts_sequences(&self) -> bool {
        true
    }

    fn look_back(&self, module: &ModuleSettings) -> usize {
        // One more for the state before the burn-in.
        if self.burn_in == 0 { 0 } else { self.burn_in + usize::from(module.stateful) }
    }

    fn layout(&self, cx: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        let spec = self.spec(cx.module)?;
        // The mask is combined with that of the steps learnt, place by place.
        cutting::plan_cut(spec, plan, |column| Ok((Fill::Zeros, cx.indexed && column.name != LOSS_MASK)))?;
        if !plan.batch.has(LOSS_MASK) {
            plan.batch.push(LOSS_MASK, TensorType::new(DType::Bool, [spec.length()]), Rows::Sequences);
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
        let windows = cutting::cut(cx, self.spec(cx.module)?, episodes, batch);
        let learnt = windows.mask_from_anchor();
        let mut cutting = cutting::Cutting::new(&windows, episodes);
        for (name, column) in batch.iter_mut() {
            *column = cutting.cut(name, column, &Fill::Zeros, cx.indexed && name != LOSS_MASK);
            if name == LOSS_MASK {
                // A step that an earlier piece added stays masked.
                let both = column.tensor().bytes().iter().zip(learnt.bytes()).map(|(a, b)| *a != 0 && *b != 0);
                *column = Tensor::from_bools(both).reshaped(learnt.ty().clone(), learnt.rows()).into();
            }
        }
        if !batch.has(LOSS_MASK) {
            batch.push(LOSS_MASK, learnt);
        }
        batch.push(SEQ_LENS, windows.real_lengths());
        batch.set_windows(windows);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::connectors::testing::{apply_with, episodes, stateful};
    use crate::connectors::{AddStatesFromEpisodesToBatch, AddTimeDimToBatchAndZeroPad};
    use crate::job::Compat;

    /// The piece and then `AddStates`, over a column `obs` and states of one number, `100 + obs`.
    fn sequences(piece: &dyn Connector, module: &ModuleSettings, eps: &mut EpisodeBatch) -> ModuleBatch {
        for columns in [&mut eps.steps, &mut eps.history] {
            let Some(obs) = columns.get("obs") else { continue };
            let states: Vec<f32> = obs.values::<f32>().iter().map(|o| 100. + o).collect();
            columns.set("state_out", Tensor::from_values::<f32>([1], &states));
        }
        let mut batch = ModuleBatch::default();
        batch.push("obs", eps.steps.get("obs").unwrap().clone());
        let (cx, mut repairs) = (Context::new(module, Compat::Correct), Repairs::default());
        let batch = apply_with(piece, cx, eps, batch, &mut repairs).unwrap();
        apply_with(&AddStatesFromEpisodesToBatch::default(), cx, eps, batch, &mut repairs).unwrap()
    }

    fn floats(batch: &ModuleBatch, name: &str) -> Vec<f32> {
        batch.get(name).unwrap().values().to_vec()
    }

    fn r2d2(burn_in: usize, length: usize, period: usize) -> OverlappingSequences {
        OverlappingSequences { burn_in, length: Some(length), period: Some(period), ..Default::default() }
    }

    #[test]
    fn the_figure_above() {
        let batch = sequences(&r2d2(2, 3, 2), &stateful(20), &mut episodes(&[7]));
        assert_eq!(floats(&batch, "obs"), [0., 1., 2., 0., 0., 0., 1., 2., 3., 4., 2., 3., 4., 5., 6.]);
        assert_eq!(batch.get(LOSS_MASK).unwrap().bytes(), [1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1]);
        assert_eq!(batch.get(SEQ_LENS).unwrap().values::<i64>(), [3, 5, 5]);
        assert_eq!(floats(&batch, "state_in"), [0., 0., 101.]);
        assert_eq!(batch.windows().unwrap().iter().map(|w| w.first).collect::<Vec<_>>(), [0, 0, 2]);
    }

    /// C12 (ray 15556): a sequence that would hold two episodes is cut between them, and the second starts afresh.
    #[test]
    fn two_episodes_never_share_a_sequence() {
        let batch = sequences(&r2d2(0, 8, 8), &stateful(8), &mut episodes(&[3, 4]));
        assert_eq!(batch.get(SEQ_LENS).unwrap().values::<i64>(), [3, 4]);
        assert_eq!(floats(&batch, "state_in"), [0., 0.]);
        assert_eq!(floats(&batch, "obs")[8..12], [10., 11., 12., 13.]);
        assert_eq!(floats(&batch, "obs")[3..8], [0.; 5]);
    }

    #[test]
    fn a_chunk_burns_in_on_the_steps_before_it() {
        let continued = |known: usize| {
            let mut eps = episodes(&[2]);
            eps.chunks[0].t_started = 7;
            eps.history_offsets = vec![0, known];
            let before: Vec<f32> = (0..known).map(|i| -(i as f32) - 1.).rev().collect();
            eps.history.set("obs", Tensor::from_values::<f32>([1], &before));
            let batch = sequences(&r2d2(2, 2, 2), &stateful(2), &mut eps);
            let t = 7 + batch.windows().unwrap().iter().next().unwrap().first;
            (floats(&batch, "obs"), batch.get(LOSS_MASK).unwrap().bytes().to_vec(), floats(&batch, "state_in"), t)
        };
        // Three steps are known: two to burn in, and the state after the third.
        assert_eq!(continued(3), (vec![-2., -1., 0., 1.], vec![0, 0, 1, 1], vec![97.], 5));
        // One is known: the state after it is, and no step to burn in.
        assert_eq!(continued(1), (vec![0., 1., 0., 0.], vec![1, 1, 0, 0], vec![99.], 7));
        assert_eq!(continued(2), (vec![-1., 0., 1., 0.], vec![0, 1, 1, 0], vec![98.], 6));
    }

    #[test]
    fn a_column_that_is_not_known_before_the_chunk_stops_the_burn_in() {
        let mut eps = episodes(&[2]);
        eps.chunks[0].t_started = 7;
        eps.history_offsets = vec![0, 3];
        eps.history.set("obs", Tensor::from_values::<f32>([1], &[-3., -2., -1.]));
        let mut batch = ModuleBatch::default();
        batch.push("obs", eps.steps.get("obs").unwrap().clone());
        batch.push("mine", eps.steps.get("rewards").unwrap().clone());
        let module = stateful(2);
        let cx = Context::new(&module, Compat::Correct);
        let batch = apply_with(&r2d2(2, 2, 2), cx, &mut eps, batch, &mut Repairs::default()).unwrap();
        assert_eq!(batch.get(SEQ_LENS).unwrap().values::<i64>(), [2]);
    }

    #[test]
    fn next_observations_and_flags_are_known_before_a_chunk() {
        let mut eps = episodes(&[2]);
        (eps.chunks[0].t_started, eps.history_offsets) = (7, vec![0, 2]);
        eps.history.set("obs", Tensor::from_values::<f32>([1], &[-2., -1.]));
        let mut batch = ModuleBatch::default();
        batch.push("new_obs", eps.next_obs("obs").unwrap());
        batch.push("terminateds", Tensor::from_bools([false, true]));
        let module = ModuleSettings::default();
        let cx = Context::new(&module, Compat::Correct);
        let batch = apply_with(&r2d2(2, 2, 2), cx, &mut eps, batch, &mut Repairs::default()).unwrap();
        assert_eq!(floats(&batch, "new_obs"), [-1., 0., 1., 2.]);
        assert_eq!(batch.get("terminateds").unwrap().bytes(), [0, 0, 0, 1]);
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        assert!(r2d2(0, 0, 1).check().is_err());
        assert!(r2d2(0, 2, 0).check().is_err());
        assert!(r2d2(0, 2, 3).check().unwrap_err().what().contains("never be learnt"));
        assert!(r2d2(usize::MAX, 2, 2).check().is_err());
        assert!(r2d2(40, 80, 40).check().is_ok());
    }

    proptest! {
        /// Every step is learnt by the sequences that should, with the state before each one's first step.
        #[test]
        fn equals_the_rule_written_out(
            lengths in prop::collection::vec(0..9_usize, 0..5),
            burn_in in 0..4_usize,
            length in 1..5_usize,
            period in 1..5_usize,
        ) {
            let period = period.min(length);
            let batch = sequences(&r2d2(burn_in, length, period), &stateful(20), &mut episodes(&lengths));
            let (mut obs, mut mask, mut lens, mut states) = (vec![], vec![], vec![], vec![]);
            for (e, &len) in lengths.iter().enumerate() {
                let mut learnt_to = 0;
                for from in (0..len).step_by(period) {
                    if learnt_to >= len {
                        break;
                    }
                    learnt_to = from + length;
                    let first = from.saturating_sub(burn_in);
                    for place in first..first + burn_in + length {
                        let real = place < learnt_to && place < len;
                        obs.push(if real { (10 * e + place) as f32 } else { 0. });
                        mask.push(u8::from(real && place >= from));
                    }
                    lens.push(i64::try_from(learnt_to.min(len) - first).unwrap());
                    states.push(if first == 0 { 0. } else { (100 + 10 * e + first - 1) as f32 });
                }
            }
            prop_assert_eq!(floats(&batch, "obs"), obs);
            prop_assert_eq!(batch.get(LOSS_MASK).unwrap().bytes(), mask);
            prop_assert_eq!(batch.get(SEQ_LENS).unwrap().values::<i64>().to_vec(), lens);
            prop_assert_eq!(floats(&batch, "state_in"), states);
        }

        /// The defaults are RLlib's rule.
        #[test]
        fn the_defaults_are_rllibs(lengths in prop::collection::vec(0..9_usize, 0..5), seq_len in 1..5_usize) {
            let module = stateful(seq_len);
            let ours = sequences(&OverlappingSequences::default(), &module, &mut episodes(&lengths));
            let rllibs = sequences(&AddTimeDimToBatchAndZeroPad::default(), &module, &mut episodes(&lengths));
            prop_assert_eq!(ours.into_columns(), rllibs.into_columns());
        }
    }
}
