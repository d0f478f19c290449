//! Where episodes that are larger than memory may be cut before they go through the pieces.

use super::Pipeline;
use crate::batch::BatchLayout;
use crate::column::root;
use crate::connector::Plan;
use crate::episode::EpisodeLayout;
use crate::job::ModuleSettings;

/// Where some leading pieces of a pipeline allow a module's episodes to be cut; see
/// [`Slices`](crate::connector::Slices).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slicing {
    /// Every slice but the last one has a multiple of so many steps.
    pub period: usize,
    /// Rows that a slice has in front.
    pub look_back: usize,
    /// Whether only chunks that start their episode may be cut.
    pub from_start: bool,
}

/// The piece that needs each episode as a whole, and because of which other one, if that alone would not be enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeedsWhole {
    /// Its place in the pipeline.
    pub piece: usize,
    /// The place of the one whose changes it would look back on.
    pub behind: Option<usize>,
}

impl Pipeline {
    /// Where the pieces `..end` allow a module's episodes to be cut.
    ///
    /// # Errors
    /// With the first piece that does not.
    pub fn slicing(
        &self,
        end: usize,
        module: &ModuleSettings,
        episodes: &EpisodeLayout,
    ) -> Result<Slicing, NeedsWhole> {
        let cx = self.context(module);
        let (mut episodes, mut batch) = (episodes.clone(), BatchLayout::default());
        let mut out = Slicing { period: 1, look_back: 0, from_start: false };
        let mut steps_only: Vec<(usize, &str)> = Vec::new();
        for (i, piece) in self.pieces[..end].iter().enumerate() {
            let whole = NeedsWhole { piece: i, behind: None };
            let slices = piece.slices(cx, &episodes).ok_or(whole)?;
            let look_back = piece.look_back(module);
            let sees = |root: &str| {
                let mut columns = episodes.steps.iter().map(|(name, _)| &**name);
                look_back > 0 && columns.any(|name| self::root(name) == root && piece.reads(module, name))
            };
            if let Some((behind, _)) = steps_only.iter().find(|(_, root)| sees(root)) {
                return Err(NeedsWhole { behind: Some(*behind), ..whole });
            }
            out.period = lcm(out.period, slices.period.max(1)).ok_or(whole)?;
            out.look_back = out.look_back.saturating_add(look_back);
            out.from_start |= slices.from_start;
            steps_only.extend(slices.steps_only.iter().map(|root| (i, *root)));
            piece.layout(cx, &mut Plan { episodes: &mut episodes, batch: &mut batch }).map_err(|_| whole)?;
        }
        Ok(out)
    }
}

/// The least common multiple, if it is a number.
fn lcm(a: usize, b: usize) -> Option<usize> {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a / x).checked_mul(b)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::tensor::{DType, TensorType};

    fn slicing(connectors: &Value, stateful: bool) -> Result<Slicing, NeedsWhole> {
        let learner = json!({ "connectors": connectors });
        let pipeline = Pipeline::new(&serde_json::from_value(learner).unwrap()).unwrap();
        let module = ModuleSettings { stateful, max_seq_len: Some(6), ..ModuleSettings::default() };
        let floats = |n: usize| TensorType::new(DType::Float32, [n]);
        let steps = [
            ("obs", floats(4)),
            ("actions", floats(2)),
            ("rewards", DType::Float64.scalar()),
            ("state_out", floats(3)),
        ];
        let steps = steps.into_iter().map(|(n, ty)| (n.into(), ty)).collect();
        pipeline.slicing(pipeline.len(), &module, &EpisodeLayout { steps, last_obs: true })
    }

    #[test]
    fn the_pieces_together() {
        let frames = json!({ "type": "FrameStacking", "num_frames": 4 });
        let previous = json!({ "type": "PrevActionsPrevRewards", "n_prev_actions": 2 });
        let curious = json!({ "type": "CountBasedCuriosity" });
        let of = |period, look_back| Ok(Slicing { period, look_back, from_start: false });
        assert_eq!(slicing(&json!([]), false), of(1, 0));
        assert_eq!(slicing(&json!([]), true), of(6, 1));
        assert_eq!(slicing(&json!([previous, { "type": "MeanStdFilter" }]), false), of(1, 2));
        assert_eq!(slicing(&json!([frames, curious]), true), of(6, 4), "states are not what curiosity changes");
        let whole = |piece, behind| Err(NeedsWhole { piece, behind });
        assert_eq!(slicing(&json!([curious, frames, previous]), false), whole(2, Some(0)));
        assert_eq!(
            slicing(&json!([frames, { "type": "ComputeReturnsToGo", "gamma": 0.9 }, curious]), false),
            whole(1, None)
        );
    }

    #[test]
    fn multiples() {
        assert_eq!([(4, 6), (1, 7), (5, 5)].map(|(a, b)| lcm(a, b)), [Some(12), Some(7), Some(5)]);
        assert_eq!(lcm(usize::MAX, usize::MAX - 1), None);
    }
}
