//! `ActionChunking`: at each step the actions of the steps to come.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::{ModuleBatch, Stage};
use crate::column::{ACTIONS, LOSS_MASK};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, piece_boilerplate};
use crate::episode::EpisodeBatch;
use crate::error::{Error, Result};
use crate::job::ModuleSettings;
use crate::tensor::{DType, TensorType};
use crate::window::{End, Fill, Pad, Spec, Start};

use super::cutting::{self, require_places};

/// The column that tells padding from actions.
const ACTION_IS_PAD: &str = "action_is_pad";

/// Makes `actions` of each step the next `chunk_size` actions of its episode, and adds `action_is_pad`.
///
/// ```text
/// an episode of 3 steps, chunk_size = 3          fill = "repeat"     fill = "zero"     action_is_pad
///   step 0                                       [a0 a1 a2]          [a0 a1 a2]        [F F F]
///   step 1                                       [a1 a2 a2]          [a1 a2  0]        [F F T]
///   step 2                                       [a2 a2 a2]          [a2  0  0]        [F T T]
/// ```
///
/// Rows stay steps: `actions` of `[...]` become `[chunk_size, ...]`. A chunk never holds actions of another episode,
/// and where a recording is cut, none from behind the cut. `past` puts actions before the step in front (of the chunk's
/// `chunk_size`), from the look-back where a recorded chunk continues an episode. With a `loss_mask` in the batch there
/// are artificial steps, whose actions nobody took, so the piece refuses.
///
/// The convention of ACT (Zhao et al. 2023) and of LeRobot's `delta_timestamps = { "action": [0, 1/fps, ..] }`, which
/// repeats the nearest action and names the mask `action_is_pad`. Diffusion Policy's actions start `n_obs_steps - 1`
/// steps before the current one: `past`. ACT's own data loader pads with zeros.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ActionChunking {
    /// Actions a step.
    #[schemars(range(min = 1))]
    pub chunk_size: usize,
    /// How many of them lie before the step; fewer than `chunk_size`.
    pub past: usize,
    /// What stands where the episode has no action.
    pub fill: ActionFill,
}

/// What stands where an episode has no action.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ActionFill {
    /// The nearest action of the episode: its last one behind the end, its first one before the start.
    #[default]
    Repeat,
    /// Zeros.
    Zero,
}

impl Default for ActionChunking {
    /// ACT's chunks.
    fn default() -> Self {
        Self { chunk_size: 100, past: 0, fill: ActionFill::default() }
    }
}

impl ActionChunking {
    const fn spec(&self) -> Spec {
        Spec {
            before: self.past,
            after: self.chunk_size - self.past,
            period: 1,
            start: Start::Before,
            end: End::Past,
            pad: Pad::InPlace,
        }
    }
}

impl Piece for ActionChunking {
    const NAME: &'static str = "ActionChunking";

    fn check(&self) -> Result<()> {
        require_places("chunk_size", self.chunk_size, 1)?;
        if self.past < self.chunk_size {
            return Ok(());
        }
        Err(Error::usage(format!("found past = {}, expected less than chunk_size = {}", self.past, self.chunk_size)))
    }
}

impl Connector for ActionChunking {
    piece_boilerplate!();

    fn look_back(&self, _: &ModuleSettings) -> usize {
        self.past
    }

    fn layout(&self, _: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        if plan.batch.has(ACTION_IS_PAD) {
            return Err(
                Error::usage(format!("`{ACTION_IS_PAD}` is in the batch already")).hint("name ActionChunking once")
            );
        }
        if plan.batch.has(LOSS_MASK) {
            return Err(Error::usage(
                "the batch has a `loss_mask`: some of its steps are padding or were added, and have no actions",
            )
            .hint("put ActionChunking in front of the pieces that cut or lengthen episodes"));
        }
        if plan.batch.stage > Stage::Items {
            return Err(Error::usage("the batch is joined already, its episodes can no longer be told apart")
                .hint("put this piece before BatchIndividualItems"));
        }
        let chunked = |ty: &TensorType| ty.stacked(self.chunk_size);
        if plan.batch.has(ACTIONS) {
            for column in plan.batch.columns.iter_mut().filter(|c| crate::column::is_under(&c.name, ACTIONS)) {
                column.ty = chunked(&column.ty);
            }
        } else {
            let leaves: Vec<_> = plan.episodes.under(ACTIONS).map(|(n, t)| (n.clone(), chunked(t))).collect();
            if leaves.is_empty() {
                return Err(Error::usage("needs actions, and the recording has none").column(ACTIONS));
            }
            leaves.into_iter().try_for_each(|(name, ty)| plan.add_steps(&name, ty))?;
        }
        plan.add_steps(ACTION_IS_PAD, TensorType::new(DType::Bool, [self.chunk_size]))
    }

    fn apply(
        &self,
        cx: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        _: &mut Repairs,
    ) -> Result<()> {
        let fill = match self.fill {
            ActionFill::Repeat => Fill::Repeat,
            ActionFill::Zero => Fill::Zeros,
        };
        if !batch.has(ACTIONS) {
            for (name, actions) in episodes.steps.under(ACTIONS) {
                batch.push(&**name, actions.clone());
            }
        }
        let mut own = ModuleBatch::default();
        for (name, actions) in batch.iter().filter(|(n, _)| crate::column::is_under(n, ACTIONS)) {
            own.push(name, actions.clone());
        }
        // No state is asked for here, so the whole look-back will do.
        let stateless = ModuleSettings { stateful: false, ..cx.module.clone() };
        let windows = cutting::cut(Context { module: &stateless, ..cx }, self.spec(), episodes, &own);
        for (name, actions) in batch.iter_mut().filter(|(n, _)| crate::column::is_under(n, ACTIONS)) {
            *actions = cutting::gather(&windows, name, actions.tensor(), episodes, &fill).into();
        }
        batch.push(ACTION_IS_PAD, windows.mask(false));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::connectors::testing::{apply, apply_to, episodes};
    use crate::tensor::Tensor;

    fn chunks(piece: &ActionChunking, lengths: &[usize]) -> (Vec<i32>, Vec<u8>) {
        let out = apply(piece, &mut episodes(lengths)).unwrap();
        (out.get(ACTIONS).unwrap().values().to_vec(), out.get(ACTION_IS_PAD).unwrap().bytes().to_vec())
    }

    #[test]
    fn the_figure_above() {
        let piece = |fill| ActionChunking { chunk_size: 3, past: 0, fill };
        let mask = vec![0, 0, 0, 0, 0, 1, 0, 1, 1];
        // The second of two episodes: its actions are 10, 11, 12.
        let (actions, is_pad) = chunks(&piece(ActionFill::Repeat), &[0, 3]);
        assert_eq!((actions, is_pad), (vec![10, 11, 12, 11, 12, 12, 12, 12, 12], mask.clone()));
        let (actions, is_pad) = chunks(&piece(ActionFill::Zero), &[0, 3]);
        assert_eq!((actions, is_pad), (vec![10, 11, 12, 11, 12, 0, 12, 0, 0], mask));
    }

    /// C38 (lerobot 1783, 1701, 2610): the current step alone is never padding, whichever episodes are chosen.
    #[test]
    fn the_current_step_is_no_padding() {
        for (lengths, actions) in [(vec![0, 4], vec![10, 11, 12, 13]), (vec![3], vec![0, 1, 2])] {
            let piece = ActionChunking { chunk_size: 1, ..ActionChunking::default() };
            assert_eq!(chunks(&piece, &lengths), (actions.clone(), vec![0; actions.len()]));
        }
    }

    /// C39 (lerobot 4568): 2 episodes of 300 steps, 35 steps ahead: padding in the last 34 steps of each, nowhere else.
    #[test]
    fn padding_stands_at_both_ends_of_both_episodes() {
        let out =
            apply(&ActionChunking { chunk_size: 35, ..ActionChunking::default() }, &mut episodes(&[300, 300])).unwrap();
        let is_pad = out.get(ACTION_IS_PAD).unwrap();
        for row in 0..600 {
            let want: Vec<u8> = (0..35).map(|ahead| u8::from(row % 300 + ahead >= 300)).collect();
            assert_eq!(is_pad.row(row), want);
        }
    }

    #[test]
    fn actions_of_the_batch_are_chunked_in_their_place() {
        let mut batch = ModuleBatch::default();
        batch.push(ACTIONS, Tensor::from_values::<f32>([], &[7., 8.]));
        batch.push("rewards", Tensor::from_values::<f32>([], &[0., 0.]));
        let piece = ActionChunking { chunk_size: 2, ..ActionChunking::default() };
        apply_to(&piece, &mut episodes(&[2]), &mut batch).unwrap();
        assert_eq!(batch.iter().map(|(n, _)| n).collect::<Vec<_>>(), [ACTIONS, "rewards", ACTION_IS_PAD]);
        assert_eq!(batch.get(ACTIONS).unwrap().values::<f32>(), [7., 8., 8., 8.]);
    }

    #[test]
    fn past_actions_come_from_the_look_back() {
        let mut eps = episodes(&[2]);
        (eps.chunks[0].t_started, eps.history_offsets) = (5, vec![0, 1]);
        eps.history.set(ACTIONS, Tensor::from_values::<i32>([], &[-1]));
        let piece = ActionChunking { chunk_size: 3, past: 2, ..ActionChunking::default() };
        let out = apply(&piece, &mut eps).unwrap();
        assert_eq!(out.get(ACTIONS).unwrap().values::<i32>(), [-1, -1, 0, -1, 0, 1]);
        assert_eq!(out.get(ACTION_IS_PAD).unwrap().bytes(), [1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        assert!(ActionChunking { chunk_size: 0, ..ActionChunking::default() }.check().is_err());
        assert!(ActionChunking { chunk_size: 2, past: 2, ..ActionChunking::default() }.check().is_err());
    }

    proptest! {
        /// LeRobot's rule, index by index: clamp into the episode, and say where that was needed.
        #[test]
        fn equals_the_rule_written_out(
            lengths in prop::collection::vec(0..8_usize, 0..5),
            chunk_size in 1..6_usize,
            past in 0..6_usize,
        ) {
            let past = past.min(chunk_size - 1);
            let (mut actions, mut is_pad) = (vec![], vec![]);
            for (e, &len) in lengths.iter().enumerate() {
                let (len, e) = (i32::try_from(len).unwrap(), i32::try_from(e).unwrap());
                for t in 0..len {
                    for delta in 0..i32::try_from(chunk_size).unwrap() {
                        let at = t + delta - i32::try_from(past).unwrap();
                        actions.push(10 * e + at.clamp(0, len - 1));
                        is_pad.push(u8::from(at < 0 || at >= len));
                    }
                }
            }
            let piece = ActionChunking { chunk_size, past, fill: ActionFill::Repeat };
            prop_assert_eq!(chunks(&piece, &lengths), (actions, is_pad));
        }
    }
}
