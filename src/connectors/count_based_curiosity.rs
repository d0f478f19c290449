//! `CountBasedCuriosity`: a bonus for observations that were seldom seen.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::counting::{self, Counts, Observed};
use super::intrinsic::{self, Bonuses};
use crate::batch::ModuleBatch;
use crate::column::{OBS, REWARDS, root};
use crate::connector::{
    Connector, Context, ModuleUnit, Ordered, Piece, Plan, Rehearsal, Rehearsed, Repairs, Room, Slices,
    piece_boilerplate,
};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::job::{Compat, ModuleSettings};

/// NaNs that were counted as equal.
const EQUAL_NANS: &str = "nan_observations_counted_by_value";
/// Observations that RLlib cannot count.
const ANY_RANK: &str = "observations_counted_of_any_rank";

/// Adds an intrinsic reward for observations that were seldom seen: `coeff / count`, where `count` is how often the
/// observation came up so far, in all of the data set, this time included.
///
/// ```text
/// obs        a    b    a    a        the next episode   b     c
/// count      1    1    2    3                           2     1
/// rewards    0    0    0    1                           0     0
///   + bonus  1.0  1.0  0.5  1.333..                     0.5   1.0     (intrinsic_reward_coeff = 1)
/// ```
///
/// The shaped rewards are written to the episodes: later pieces see them, earlier ones do not. Observations before the
/// chunk and the one after its last step are not counted. As RLlib's
/// `examples/connectors/classes/count_based_curiosity.py`, which counts 1-D observations only, never finds a NaN equal
/// to anything, and truncates the sum where rewards are integers. `compat = "correct"` counts observations of any rank
/// and dtype (the leaves of nested ones together) by value, where NaNs equal one another, and makes integer rewards
/// float64. Observations of modules with different observation spaces are different.
///
/// In RLlib a column `rewards` that `AddColumnsFromEpisodesToTrainBatch` has added before is a view of the episode's
/// rewards until the batch is cut into sequences or joined, so it changes with them: so it does with
/// `compat = "rllib-2.60"`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CountBasedCuriosity {
    /// Weight of the intrinsic reward.
    pub intrinsic_reward_coeff: f64,
}

impl Default for CountBasedCuriosity {
    fn default() -> Self {
        Self { intrinsic_reward_coeff: 1.0 }
    }
}

impl Piece for CountBasedCuriosity {
    const NAME: &'static str = "CountBasedCuriosity";

    fn check(&self) -> Result<()> {
        intrinsic::require_finite("intrinsic_reward_coeff", self.intrinsic_reward_coeff)
    }
}

impl Connector for CountBasedCuriosity {
    piece_boilerplate!();

    fn reads(&self, _: &ModuleSettings, column: &str) -> bool {
        matches!(root(column), OBS | REWARDS)
    }

    fn slices(&self, _: Context<'_>, _: &EpisodeLayout) -> Option<Slices> {
        Some(Slices { steps_only: &[REWARDS], ..Slices::ANYWHERE })
    }

    fn layout(&self, cx: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        let leaves = intrinsic::obs_leaves(plan)?;
        if cx.compat == Compat::Rllib260 {
            let what = match leaves.as_slice() {
                [(name, ty)] if name == OBS && ty.shape.len() == 1 => None,
                [(name, ty)] if name == OBS && ty.shape.is_empty() => Some(format!(
                    "found {ty}, expected vectors: RLlib 2.60 raises a TypeError (object is not iterable)"
                )),
                [(name, ty)] if name == OBS => {
                    Some(format!("found {ty}, expected vectors: RLlib 2.60 raises a TypeError (unhashable type)"))
                }
                _ => Some(
                    "found nested observations, expected vectors: RLlib 2.60 counts the names of the leaves".to_owned(),
                ),
            };
            if let Some(what) = what {
                return Err(Error::usage(what).column(OBS).hint("compat = \"correct\" counts any observation"));
            }
        }
        intrinsic::rewards_layout(cx.compat, plan)
    }

    fn ordered(&self) -> Option<Box<dyn Ordered>> {
        Some(Box::new(Counting { coeff: self.intrinsic_reward_coeff, counts: Counts::default(), full: false }))
    }

    fn rehearsal(&self, room: Room) -> Option<Box<dyn Rehearsal>> {
        Some(Box::new(counting::Spilling::new(room)))
    }

    fn apply(&self, _: Context<'_>, _: &mut EpisodeBatch, _: &mut ModuleBatch, _: &mut Repairs) -> Result<()> {
        Err(Error::internal("an ordered piece applied out of order"))
    }
}

/// The counts so far.
#[derive(Debug)]
struct Counting {
    coeff: f64,
    counts: Counts,
    /// The counts have outgrown their room.
    full: bool,
}

impl Ordered for Counting {
    fn enter(&mut self, room: Room, rehearsed: Option<Rehearsed>) -> Result<()> {
        self.counts = Counts::new(&room, rehearsed)?;
        Ok(())
    }

    fn wants_rehearsal(&self) -> bool {
        self.full
    }

    fn apply(&mut self, compat: Compat, unit: &mut [ModuleUnit], repairs: &mut Repairs) -> Result<()> {
        let observed = Observed::of(compat, unit);
        for (share, observed) in unit.iter().zip(&observed.shares) {
            let steps = share.episodes.steps_len() as u64;
            if compat == Compat::Correct {
                repairs.count(EQUAL_NANS, observed.keys.nans());
                if !matches!(observed.types.as_slice(), [only] if only.shape.len() == 1) {
                    repairs.count(ANY_RANK, steps);
                }
                if !super::rewards(&share.episodes)?.ty().dtype.is_float() {
                    repairs.count(intrinsic::FLOAT_REWARDS, steps);
                }
            }
        }
        let counts = self.counts.count(compat, &observed)?;
        if self.counts.outgrown() {
            self.full = true;
            return Err(Error::environment("the counts of observations do not fit into memory"));
        }
        for (share, counts) in unit.iter_mut().zip(counts) {
            let values = counts.into_iter().map(|n| self.coeff * (1.0 / n as f64)).collect();
            intrinsic::add(compat, share, &Bonuses { values, dtype: None })?;
        }
        Ok(())
    }

    fn save(&self) -> Result<Vec<u8>> {
        self.counts.save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<()> {
        self.counts.restore(saved)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::batch::BatchLayout;
    use crate::connectors::testing::episodes;
    use crate::episode::{Columns, EpisodeLayout};
    use crate::scratch::Scratch;
    use crate::tensor::{DType, Tensor, TensorType};

    fn share(module: usize, lengths: &[usize], obs: &[(&str, Tensor)], rewards: &Tensor) -> ModuleUnit {
        let mut eps = episodes(lengths);
        let columns = obs.iter().map(|(n, t)| (std::sync::Arc::from(*n), t.clone()));
        eps.steps = columns.chain([(REWARDS.into(), rewards.clone())]).collect::<Columns>();
        ModuleUnit { module, episodes: eps, batch: ModuleBatch::default() }
    }

    fn run(compat: Compat, units: &mut [Vec<ModuleUnit>]) -> (Vec<Vec<f64>>, Repairs) {
        let piece = CountBasedCuriosity { intrinsic_reward_coeff: 1.0 };
        let (mut state, mut repairs) = (piece.ordered().unwrap(), Repairs::default());
        let mut out = Vec::new();
        for unit in units {
            state.apply(compat, unit, &mut repairs).unwrap();
            out.extend(unit.iter().map(|s| intrinsic::as_f64(s.episodes.steps.get(REWARDS).unwrap())));
        }
        (out, repairs)
    }

    /// The same with room for next to nothing: the piece asks for a rehearsal, gets it, and starts anew.
    fn run_spilled(compat: Compat, units: &mut [Vec<ModuleUnit>], bytes: usize) -> Vec<Vec<f64>> {
        let piece = CountBasedCuriosity { intrinsic_reward_coeff: 1.0 };
        let dir = tempfile::tempdir().unwrap();
        let room = Room { bytes, scratch: Scratch::new(dir.path()) };
        let mut first = piece.ordered().unwrap();
        first.enter(room.clone(), None).unwrap();
        let copy = |unit: &Vec<ModuleUnit>| -> Vec<ModuleUnit> {
            unit.iter()
                .map(|s| ModuleUnit { module: s.module, episodes: s.episodes.clone(), batch: ModuleBatch::default() })
                .collect()
        };
        let full = units.iter().any(|unit| first.apply(compat, &mut copy(unit), &mut Repairs::default()).is_err());
        assert!(full && first.wants_rehearsal());
        let mut rehearsal = piece.rehearsal(room.clone()).unwrap();
        for unit in &*units {
            let finding = rehearsal.observe(compat, unit).unwrap();
            rehearsal.merge(finding).unwrap();
        }
        let rehearsed = rehearsal.finish().unwrap();
        let mut out = Vec::new();
        // What was found out serves more than one pass.
        for pass in 0..2 {
            let mut state = piece.ordered().unwrap();
            state.enter(room.clone(), Some(rehearsed.clone())).unwrap();
            out.clear();
            for unit in &*units {
                let mut unit = copy(unit);
                state.apply(compat, &mut unit, &mut Repairs::default()).unwrap_or_else(|e| panic!("pass {pass}: {e}"));
                out.extend(unit.iter().map(|s| intrinsic::as_f64(s.episodes.steps.get(REWARDS).unwrap())));
            }
        }
        out
    }

    fn f32s(values: &[f32]) -> Tensor {
        Tensor::from_values([1], values)
    }

    fn zeros(n: usize) -> Tensor {
        Tensor::from_values([], &vec![0f64; n])
    }

    #[test]
    fn the_figure_above() {
        let first = Tensor::from_values::<f64>([], &[0., 0., 0., 1.]);
        for compat in [Compat::Correct, Compat::Rllib260] {
            let mut units = [
                vec![share(0, &[4, 0], &[("obs", f32s(&[1., 2., 1., 1.]))], &first)],
                vec![share(0, &[], &[("obs", f32s(&[]))], &zeros(0))],
                vec![share(0, &[2], &[("obs", f32s(&[2., 3.]))], &zeros(2))],
            ];
            let (rewards, repairs) = run(compat, &mut units);
            assert_eq!(rewards, [vec![1., 1., 0.5, 1. + 1. / 3.], vec![], vec![0.5, 1.]]);
            assert_eq!(repairs, Repairs::default());
        }
    }

    #[test]
    fn nans_and_zeros() {
        let obs = f32s(&[f32::NAN, -f32::NAN, 0.0, -0.0]);
        let unit = vec![share(0, &[4], &[("obs", obs)], &Tensor::from_values::<i64>([], &[0; 4]))];
        let (rewards, repairs) = run(Compat::Correct, &mut [unit]);
        assert_eq!(rewards, [vec![1., 0.5, 1., 0.5]]);
        assert_eq!(repairs.sorted(), [(intrinsic::FLOAT_REWARDS, 4), (EQUAL_NANS, 2)]);
        let obs = f32s(&[f32::NAN, f32::NAN, 0.0, -0.0]);
        let unit = vec![share(0, &[4], &[("obs", obs)], &Tensor::from_values::<i64>([], &[0; 4]))];
        let mut units = [unit];
        assert_eq!(run_spilled(Compat::Rllib260, &mut units, 1), [vec![1., 1., 1., 0.]]);
        assert_eq!(run(Compat::Rllib260, &mut units).0, [vec![1., 1., 1., 0.]]);
    }

    #[test]
    fn dataset_order_goes_before_module_order() {
        let mut unit = vec![
            share(0, &[1, 1], &[("obs", f32s(&[7., 7.]))], &zeros(2)),
            share(1, &[1], &[("obs", f32s(&[7.]))], &zeros(1)),
        ];
        unit[0].episodes.chunks[1].ordinal = 0;
        unit[0].episodes.chunks[0].ordinal = 2;
        unit[1].episodes.chunks[0].ordinal = 1;
        let mut units = [unit];
        assert_eq!(run_spilled(Compat::Correct, &mut units, 1), [vec![1. / 3., 1.], vec![0.5]]);
        assert_eq!(run(Compat::Correct, &mut units).0, [vec![1. / 3., 1.], vec![0.5]]);
    }

    /// Against a map from rows to counts, for nested observations, short and long keys, and any cut into units.
    #[test]
    fn equals_a_naive_count() {
        for width in [1usize, 3, 40] {
            let n = 3000usize;
            let value = |i: usize, j: usize| u16::try_from((i * i * 31 + i / 7) % 97 / (1 + j)).unwrap();
            let a: Vec<f64> = (0..n).flat_map(|i| (0..width).map(move |j| f64::from(value(i, j)))).collect();
            let b: Vec<u8> = (0..n).map(|i| u8::try_from(i % 3).unwrap()).collect();
            let (mut seen, mut want) = (BTreeMap::new(), Vec::new());
            for i in 0..n {
                let key = (a[i * width..(i + 1) * width].iter().map(|v| v.to_bits()).collect::<Vec<_>>(), b[i]);
                let count = seen.entry(key).and_modify(|c| *c += 1).or_insert(1u32);
                want.push(1.0 / f64::from(*count));
            }
            let (a, b) = (Tensor::from_values([width], &a), Tensor::from_values([], &b));
            for cuts in [vec![n], vec![1, 1023, 0, n - 1024], vec![1024, n - 1024]] {
                let mut start = 0;
                let mut units = Vec::new();
                for len in cuts {
                    let obs = [("obs/a", a.slice(start, len)), ("obs/b", b.slice(start, len))];
                    units.push(vec![share(0, &[len / 2, 0, len - len / 2], &obs, &zeros(len))]);
                    start += len;
                }
                for bytes in [1, 4_000] {
                    assert!(
                        run_spilled(Compat::Correct, &mut units, bytes).concat() == want,
                        "width {width}, {bytes} bytes"
                    );
                }
                let (got, repairs) = run(Compat::Correct, &mut units);
                assert!(got.concat() == want, "width {width}");
                assert_eq!(repairs.sorted(), [(ANY_RANK, n as u64)]);
            }
        }
    }

    #[test]
    fn layouts() {
        let module = ModuleSettings::default();
        let of = |compat, obs: &str, ty: &TensorType, rewards: &TensorType| {
            let steps = vec![(obs.into(), ty.clone()), (REWARDS.into(), rewards.clone())];
            let mut episodes = EpisodeLayout { steps, last_obs: true };
            let mut plan = Plan { episodes: &mut episodes, batch: &mut BatchLayout::default() };
            CountBasedCuriosity::default().layout(Context::new(&module, compat), &mut plan)?;
            Ok::<_, Error>(episodes.get(REWARDS).unwrap().dtype)
        };
        let [vector, image] = [vec![4], vec![2, 2]].map(|s| TensorType::new(DType::UInt8, s));
        let ints = TensorType::new(DType::Int64, []);
        assert_eq!(of(Compat::Correct, "obs/a", &image, &ints).unwrap(), DType::Float64);
        assert_eq!(of(Compat::Rllib260, "obs", &vector, &ints).unwrap(), DType::Int64);
        for (name, ty) in [("obs", &image), ("obs", &ints), ("obs/a", &vector)] {
            assert!(of(Compat::Rllib260, name, ty, &ints).is_err(), "{name} {ty}");
        }
        assert!(of(Compat::Correct, "obs", &vector, &vector).is_err());
        assert!(CountBasedCuriosity { intrinsic_reward_coeff: f64::NAN }.check().is_err());
    }
}
