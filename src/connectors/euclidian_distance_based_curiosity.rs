//! `EuclidianDistanceBasedCuriosity`: a bonus for observations far from those seen before.

use std::collections::VecDeque;

use half::f16;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::intrinsic::{self, Bonuses, round_to};
use crate::batch::ModuleBatch;
use crate::column::{OBS, REWARDS, root};
use crate::connector::{Connector, Context, ModuleUnit, Ordered, Piece, Plan, Repairs, in_order, piece_boilerplate};
use crate::episode::EpisodeBatch;
use crate::error::{Error, Result};
use crate::job::{Compat, ModuleSettings};
use crate::numpy::sum_of;
use crate::tensor::{DType, Tensor, TensorBuilder, TensorType};

/// Integer observations whose differences did not wrap around.
const FLOAT_DISTANCES: &str = "integer_observations_differenced_as_float64";

/// Adds an intrinsic reward for observations far from those seen before: `coeff` times the smallest Euclidian distance
/// to the observations in a buffer.
///
/// ```text
/// episode   buffer before   obs       smallest distance   goes into the buffer
/// 0         (empty)         1  4      0  0                1     the first one, as none is farther
/// 1         1               1  4  3   0  3  2             4     the first of the farthest
/// 2         1  4            6  0      2  1                6
/// ```
///
/// The buffer holds the last `max_buffer_size` such observations and changes at the end of each episode (or recorded
/// chunk). The shaped rewards are written to the episodes: later pieces see them, earlier ones do not. Distances have
/// the observations' dtype, `sqrt(sum((a - b) ** 2))` with NumPy's pairwise sum over all elements. As RLlib's
/// `examples/connectors/classes/euclidian_distance_based_curiosity.py` in its first call, where differences of
/// integers wrap around (`uint8`: 1 - 2 = 255) and sums are truncated where rewards are integers. With
/// `compat = "correct"` integer observations are subtracted and integer rewards added in float64, and modules with
/// different observation spaces have buffers of their own. As with `CountBasedCuriosity`, a column `rewards` that is
/// there before changes, too, with `compat = "rllib-2.60"`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EuclidianDistanceBasedCuriosity {
    /// Weight of the intrinsic reward.
    pub intrinsic_reward_coeff: f64,
    /// How many observations are remembered, at least 1: one an episode, the oldest one goes first.
    #[schemars(range(min = 1))]
    pub max_buffer_size: usize,
}

impl Default for EuclidianDistanceBasedCuriosity {
    fn default() -> Self {
        Self { intrinsic_reward_coeff: 1.0, max_buffer_size: 100 }
    }
}

impl Piece for EuclidianDistanceBasedCuriosity {
    const NAME: &'static str = "EuclidianDistanceBasedCuriosity";

    fn check(&self) -> Result<()> {
        if self.max_buffer_size == 0 {
            return Err(Error::usage("found max_buffer_size = 0, expected at least 1"));
        }
        intrinsic::require_finite("intrinsic_reward_coeff", self.intrinsic_reward_coeff)
    }
}

impl Connector for EuclidianDistanceBasedCuriosity {
    piece_boilerplate!();

    fn reads(&self, _: &ModuleSettings, column: &str) -> bool {
        matches!(root(column), OBS | REWARDS)
    }

    fn layout(&self, cx: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        let leaves = intrinsic::obs_leaves(plan)?;
        let [(name, ty)] = leaves.as_slice() else {
            return Err(nested());
        };
        if name != OBS {
            return Err(nested());
        }
        if cx.compat == Compat::Rllib260 {
            let what = match ty.dtype {
                DType::Bool => "RLlib 2.60 raises a TypeError (boolean subtract)",
                DType::Float32 | DType::Float64 if ty.shape.is_empty() => {
                    "RLlib 2.60 squares numbers without a dimension by the C library's `pow`, whose last bit differs between machines"
                }
                _ => return intrinsic::rewards_layout(cx.compat, plan),
            };
            return Err(Error::usage(format!("found {ty}, expected arrays of numbers: {what}"))
                .column(OBS)
                .hint("compat = \"correct\" takes any observation that is not nested"));
        }
        intrinsic::rewards_layout(cx.compat, plan)
    }

    fn ordered(&self) -> Option<Box<dyn Ordered>> {
        Some(Box::new(Remembering { piece: self.clone(), buffers: Vec::new() }))
    }

    fn apply(&self, _: Context<'_>, _: &mut EpisodeBatch, _: &mut ModuleBatch, _: &mut Repairs) -> Result<()> {
        Err(Error::internal("an ordered piece applied out of order"))
    }
}

fn nested() -> Error {
    Error::usage("found nested observations, expected one array: there is no distance between them (RLlib 2.60 raises a TypeError)")
        .column(OBS)
        .hint("CountBasedCuriosity takes nested observations with compat = \"correct\"")
}

/// The observations that are remembered.
#[derive(Debug)]
struct Remembering {
    piece: EuclidianDistanceBasedCuriosity,
    /// One a kind of observation, oldest first, each one row.
    buffers: Vec<(TensorType, VecDeque<Tensor>)>,
}

impl Remembering {
    fn buffer(&mut self, compat: Compat, ty: &TensorType) -> Result<&mut VecDeque<Tensor>> {
        let found = self.buffers.iter().position(|(t, _)| t == ty);
        let i = match (found, self.buffers.first()) {
            (Some(i), _) => i,
            (None, Some((other, _))) if compat == Compat::Rllib260 => {
                return Err(Error::usage(format!(
                    "found modules with observations of {other} and {ty}, expected the same in all: RLlib 2.60 keeps them in one buffer"
                ))
                .column(OBS)
                .hint("compat = \"correct\" keeps them apart"));
            }
            (None, _) => {
                self.buffers.push((ty.clone(), VecDeque::new()));
                self.buffers.len() - 1
            }
        };
        Ok(&mut self.buffers[i].1)
    }
}

impl Ordered for Remembering {
    fn apply(&mut self, compat: Compat, unit: &mut [ModuleUnit], repairs: &mut Repairs) -> Result<()> {
        let mut observations = Vec::with_capacity(unit.len());
        let mut distances = Vec::with_capacity(unit.len());
        for share in &*unit {
            let (obs, steps) = (share.episodes.steps.get(OBS), share.episodes.steps_len());
            let mut obs = obs.ok_or_else(|| Error::internal("episodes without observations"))?.clone();
            if compat == Compat::Correct {
                if !obs.ty().dtype.is_float() {
                    obs = obs.cast(DType::Float64)?;
                    repairs.count(FLOAT_DISTANCES, steps as u64);
                }
                if !super::rewards(&share.episodes)?.ty().dtype.is_float() {
                    repairs.count(intrinsic::FLOAT_REWARDS, steps as u64);
                }
            }
            observations.push(obs);
            distances.push(vec![0.0; steps]);
        }

        let size = self.piece.max_buffer_size;
        for (m, chunk) in in_order(unit) {
            let rows = unit[m].episodes.rows(chunk);
            let obs = &observations[m];
            let buffer = self.buffer(compat, obs.ty())?;
            let own = &mut distances[m][rows.clone()];
            if !buffer.is_empty() {
                own.par_iter_mut()
                    .zip(rows.clone())
                    .with_min_len(16)
                    .for_each(|(distance, row)| *distance = nearest(obs, row, buffer));
            }
            if let Some(farthest) = farthest(own) {
                if buffer.len() == size {
                    buffer.pop_front();
                }
                let mut copy = TensorBuilder::with_capacity(obs.ty().clone(), 1);
                copy.extend(obs, rows.start + farthest, 1);
                buffer.push_back(copy.finish());
            }
        }

        for ((share, obs), mut values) in unit.iter_mut().zip(&observations).zip(distances) {
            // A Python float times a NumPy scalar has the scalar's dtype.
            let dtype = if obs.ty().dtype.is_float() { obs.ty().dtype } else { DType::Float64 };
            let coeff = round_to(dtype, self.piece.intrinsic_reward_coeff);
            for value in &mut values {
                // Exact in float64 for the narrower types, so rounded once.
                *value = round_to(dtype, coeff * *value);
            }
            intrinsic::add(compat, share, &Bonuses { values, dtype: Some(dtype) })?;
        }
        Ok(())
    }

    fn save(&self) -> Result<Vec<u8>> {
        let rows = |buffer: &VecDeque<Tensor>| buffer.iter().map(|row| row.bytes().to_vec()).collect::<Vec<_>>();
        let buffers: Vec<(&TensorType, Vec<Vec<u8>>)> = self.buffers.iter().map(|(ty, b)| (ty, rows(b))).collect();
        rmp_serde::to_vec(&buffers).map_err(|e| Error::internal(format!("remembered observations: {e}")))
    }

    fn restore(&mut self, saved: &[u8]) -> Result<()> {
        let buffers: Vec<(TensorType, Vec<Vec<u8>>)> =
            rmp_serde::from_slice(saved).map_err(|e| Error::internal(format!("remembered observations: {e}")))?;
        if buffers.iter().any(|(ty, rows)| rows.iter().any(|row| row.len() != ty.row_bytes())) {
            return Err(Error::internal("remembered observations of another type"));
        }
        let tensors = |ty: &TensorType, rows: Vec<Vec<u8>>| {
            rows.into_iter().map(|row| Tensor::new(ty.clone(), 1, row.into())).collect::<VecDeque<_>>()
        };
        self.buffers = buffers.into_iter().map(|(ty, rows)| (ty.clone(), tensors(&ty, rows))).collect();
        Ok(())
    }
}

/// The place of the first largest number; `None` where there are only NaNs.
fn farthest(distances: &[f64]) -> Option<usize> {
    let (mut largest, mut place) = (f64::NEG_INFINITY, None);
    for (i, &distance) in distances.iter().enumerate() {
        if distance > largest {
            (largest, place) = (distance, Some(i));
        }
    }
    place
}

/// Python's `min`: a NaN stays if it comes first, and is passed over later.
fn minimum(values: impl Iterator<Item = f64>) -> f64 {
    values.reduce(|smallest, value| if value < smallest { value } else { smallest }).unwrap_or(0.0)
}

/// The smallest of `np.sqrt(np.sum((o - s) ** 2))` for all `s` in the buffer. NumPy sums integers as 64-bit ones.
fn nearest(obs: &Tensor, row: usize, buffer: &VecDeque<Tensor>) -> f64 {
    macro_rules! distances {
        ($t:ty, $square:expr, $root:expr) => {{
            let o: &[$t] = bytemuck::cast_slice(obs.row(row));
            let mut squares = Vec::with_capacity(o.len());
            minimum(buffer.iter().map(|s| {
                squares.clear();
                squares.extend(o.iter().zip(s.values::<$t>()).map($square));
                $root(squares.as_slice())
            }))
        }};
    }
    macro_rules! integers {
        ($t:ty, $sum:ty) => {
            distances!(
                $t,
                |(a, b): (&$t, &$t)| {
                    let difference = a.wrapping_sub(*b);
                    <$sum>::from(difference.wrapping_mul(difference))
                },
                |squares: &[$sum]| (squares.iter().fold(0, |sum: $sum, s| sum.wrapping_add(*s)) as f64).sqrt()
            )
        };
    }
    match obs.ty().dtype {
        DType::Float16 => distances!(
            f16,
            |(a, b): (&f16, &f16)| {
                let difference = f16::from_f32(a.to_f32() - b.to_f32()).to_f32();
                f16::from_f32(difference * difference).to_f32()
            },
            |squares: &[f32]| {
                let sum = f16::from_f32(sum_of(squares, &|s| *s)).to_f32();
                f16::from_f32(sum.sqrt()).to_f64()
            }
        ),
        DType::Float32 => distances!(f32, |(a, b): (&f32, &f32)| (a - b) * (a - b), |squares: &[f32]| {
            f64::from(sum_of(squares, &|s| *s).sqrt())
        }),
        DType::Float64 => {
            distances!(f64, |(a, b): (&f64, &f64)| (a - b) * (a - b), |squares: &[f64]| sum_of(squares, &|s| *s).sqrt())
        }
        DType::Int8 => integers!(i8, i64),
        DType::Int16 => integers!(i16, i64),
        DType::Int32 => integers!(i32, i64),
        DType::Int64 => integers!(i64, i64),
        DType::UInt8 | DType::Bool => integers!(u8, u64),
        DType::UInt16 => integers!(u16, u64),
        DType::UInt32 => integers!(u32, u64),
        DType::UInt64 => integers!(u64, u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::REWARDS;
    use crate::connectors::testing::episodes;

    fn run(
        piece: &EuclidianDistanceBasedCuriosity,
        compat: Compat,
        units: &[(&[usize], Tensor)],
        repairs: &mut Repairs,
    ) -> Vec<f64> {
        let mut state = piece.ordered().unwrap();
        let mut out = Vec::new();
        for (lengths, obs) in units {
            let mut eps = episodes(lengths);
            eps.steps.set(OBS, obs.clone());
            eps.steps.set(REWARDS, Tensor::from_values([], &vec![0f64; eps.steps_len()]));
            let mut unit = [ModuleUnit { module: 0, episodes: eps, batch: ModuleBatch::default() }];
            state.apply(compat, &mut unit, repairs).unwrap();
            out.extend_from_slice(unit[0].episodes.steps.get(REWARDS).unwrap().values::<f64>());
        }
        out
    }

    fn f32s(values: &[f32]) -> Tensor {
        Tensor::from_values([1], values)
    }

    #[test]
    fn the_figure_above() {
        let obs = [1., 4., 1., 4., 3., 6., 0.];
        let want = [0., 0., 0., 3., 2., 2., 1.];
        let (piece, none) = (EuclidianDistanceBasedCuriosity::default(), &mut Repairs::default());
        for compat in [Compat::Correct, Compat::Rllib260] {
            assert_eq!(run(&piece, compat, &[(&[2, 3, 2], f32s(&obs))], none), want);
            let units: [(&[usize], _); 4] =
                [(&[2], f32s(&obs[..2])), (&[], f32s(&[])), (&[0, 3], f32s(&obs[2..5])), (&[2], f32s(&obs[5..]))];
            assert_eq!(run(&piece, compat, &units, none), want);
        }
        let double = EuclidianDistanceBasedCuriosity { intrinsic_reward_coeff: 2.0, max_buffer_size: 1 };
        let got = run(&double, Compat::Correct, &[(&[2, 3, 2], f32s(&obs))], none);
        assert_eq!(got, [0., 0., 0., 6., 4., 4., 8.]);
        assert_eq!(*none, Repairs::default());
    }

    #[test]
    fn integers_wrap_around_in_rllib() {
        let obs = Tensor::from_values::<u8>([2], &[20, 1, 4, 1]);
        let (piece, mut repairs) = (EuclidianDistanceBasedCuriosity::default(), Repairs::default());
        // (4 - 20) mod 256 = 240, and 240 * 240 mod 256 = 0.
        assert_eq!(run(&piece, Compat::Rllib260, &[(&[1, 1], obs.clone())], &mut repairs), [0., 0.]);
        assert_eq!(run(&piece, Compat::Correct, &[(&[1, 1], obs)], &mut repairs), [0., 16.]);
        assert_eq!(repairs.sorted(), [(FLOAT_DISTANCES, 2)]);
    }

    #[test]
    fn nans_are_pythons() {
        assert!(minimum([f64::NAN, 1.0].into_iter()).is_nan());
        assert_eq!(minimum([1.0, f64::NAN, 0.5].into_iter()).to_bits(), 0.5f64.to_bits());
        assert_eq!(farthest(&[f64::NAN, 1.0, 1.0]), Some(1));
        assert_eq!(farthest(&[f64::NAN]), None);
    }

    #[test]
    fn options_are_checked() {
        assert!(EuclidianDistanceBasedCuriosity { max_buffer_size: 0, ..Default::default() }.check().is_err());
    }
}
