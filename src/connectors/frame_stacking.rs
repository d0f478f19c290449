//! `FrameStacking`: the last frames as channels of one image.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::stack_observations as stacking;
use crate::batch::ModuleBatch;
use crate::column::{OBS, root};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, Slices, piece_boilerplate};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::job::{Compat, ModuleSettings};

/// Adds `obs`: at each step the last `num_frames` images as channels of one, oldest first.
///
/// ```text
/// frames of 3 steps   f0 f1 f2, num_frames = 4        uint8[84, 84, 1] -> uint8[84, 84, 4]
///
///   channel           0   1   2   3
///   t = 0             0   0   0   f0          zeros before the episode's first step
///   t = 1             0   0   f0  f1
///   t = 2             0   f0  f1  f2
/// ```
///
/// The dtype is kept; next observations are not stacked. Images of C channels get `C * num_frames`, vectors are
/// joined, and every leaf of a nested observation is stacked by itself, as `StackObservations` does. Chunks that
/// continue an episode see the frames before them: those that were recorded with the chunk, and with
/// `compat = "correct"` also those of the chunk before, when it is in the data. Where they are nowhere, zeros are taken
/// and the row is counted as a repair. As RLlib's `connectors/common/frame_stacking.py`, which takes images of one
/// channel only: so does `compat = "rllib-2.60"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FrameStacking {
    /// How many frames make one observation, at least 1.
    #[schemars(range(min = 1, max = 65_536))]
    pub num_frames: usize,
    /// RLlib's argument; without effect, as recorded data say which agents there are.
    pub multi_agent: bool,
    /// Always true here: recorded data go through the learner pipeline.
    pub as_learner_connector: bool,
}

impl Default for FrameStacking {
    fn default() -> Self {
        Self { num_frames: 1, multi_agent: false, as_learner_connector: super::yes() }
    }
}

impl Piece for FrameStacking {
    const NAME: &'static str = "FrameStacking";

    fn check(&self) -> Result<()> {
        super::require_learner_connector(self.as_learner_connector)?;
        stacking::check_frames(self.num_frames)
    }
}

impl Connector for FrameStacking {
    piece_boilerplate!();

    fn reads(&self, _: &ModuleSettings, column: &str) -> bool {
        root(column) == OBS
    }

    fn look_back(&self, _: &ModuleSettings) -> usize {
        self.num_frames - 1
    }

    fn slices(&self, cx: Context<'_>, _: &EpisodeLayout) -> Option<Slices> {
        stacking::slices(self.num_frames, cx)
    }

    fn layout(&self, cx: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        if cx.compat == Compat::Rllib260
            && let Some((name, ty)) = plan.episodes.under(OBS).find(|(_, ty)| !matches!(ty.shape.as_slice(), [_, _, 1]))
        {
            return Err(Error::usage(format!(
                "found {ty}, expected images [height, width, 1]: RLlib 2.60 stacks nothing else"
            ))
            .column(&**name)
            .hint("compat = \"correct\" stacks observations of any shape, and so does StackObservations"));
        }
        stacking::layout(Self::NAME, cx, self.num_frames, plan)
    }

    fn apply(
        &self,
        cx: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        repairs: &mut Repairs,
    ) -> Result<()> {
        stacking::apply(self.num_frames, cx, episodes, batch, repairs);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::BatchLayout;
    use crate::connectors::testing::{apply, episodes};
    use crate::episode::EpisodeLayout;
    use crate::tensor::{DType, Tensor, TensorType};

    #[test]
    fn the_figure_above() {
        let mut eps = episodes(&[3]);
        eps.steps.set(OBS, Tensor::from_values::<u8>([1, 2, 1], &[1, 2, 11, 12, 21, 22]));
        let piece = FrameStacking { num_frames: 4, ..FrameStacking::default() };
        let out = apply(&piece, &mut eps).unwrap();
        let obs = out.get(OBS).unwrap();
        assert_eq!(obs.ty(), &TensorType::new(DType::UInt8, [1, 2, 4]));
        let want = [[0, 0, 0, 1, 0, 0, 0, 2], [0, 0, 1, 11, 0, 0, 2, 12], [0, 1, 11, 21, 0, 2, 12, 22]];
        assert_eq!(obs.values::<u8>(), want.concat());
    }

    #[test]
    fn layouts() {
        let module = ModuleSettings::default();
        let of = |compat, shape: &[usize]| {
            let steps = vec![("obs".into(), TensorType::new(DType::UInt8, shape))];
            let (mut episodes, mut batch) = (EpisodeLayout { steps, last_obs: true }, BatchLayout::default());
            let mut plan = Plan { episodes: &mut episodes, batch: &mut batch };
            let piece = FrameStacking { num_frames: 2, ..FrameStacking::default() };
            piece.layout(Context::new(&module, compat), &mut plan)?;
            Ok::<_, Error>(batch.columns[0].ty.to_string())
        };
        assert_eq!(of(Compat::Rllib260, &[4, 4, 1]).unwrap(), "uint8[4, 4, 2]");
        assert_eq!(of(Compat::Correct, &[4, 4, 3]).unwrap(), "uint8[4, 4, 6]");
        assert_eq!(of(Compat::Correct, &[4]).unwrap(), "uint8[8]");
        for shape in [&[4, 4, 3][..], &[4], &[4, 1], &[2, 4, 4, 1]] {
            assert!(of(Compat::Rllib260, shape).is_err(), "{shape:?}");
        }
        assert!(FrameStacking { num_frames: 0, ..FrameStacking::default() }.check().is_err());
        assert!(FrameStacking { as_learner_connector: false, ..FrameStacking::default() }.check().is_err());
    }
}
