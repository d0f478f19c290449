//! What the pieces share that add an intrinsic reward.

use crate::column::{OBS, REWARDS};
use crate::connector::{ModuleUnit, Plan};
use crate::episode::EpisodeBatch;
use crate::error::{Error, Result};
use crate::job::Compat;
use crate::tensor::{DType, Tensor, TensorType};

/// Integer rewards that became float64, so that a bonus below one is not lost.
pub(super) const FLOAT_REWARDS: &str = "integer_rewards_shaped_as_float64";

/// Refuses weights that make no number.
pub(super) fn require_finite(name: &str, value: f64) -> Result<()> {
    if value.is_finite() {
        return Ok(());
    }
    Err(Error::usage(format!("found {name} = {value}, expected a finite number")))
}

/// The rewards must be one number a step. With [`Compat::Correct`], integers become float64.
pub(super) fn rewards_layout(compat: Compat, plan: &mut Plan<'_>) -> Result<()> {
    let rewards = plan.episodes.steps.iter_mut().find(|(name, _)| &**name == REWARDS).map(|(_, ty)| ty);
    let rewards = rewards.ok_or_else(|| Error::usage("needs rewards as one column").column(REWARDS))?;
    if !rewards.shape.is_empty() {
        return Err(Error::usage(format!("found {rewards}, expected one number a step")).column(REWARDS));
    }
    if compat == Compat::Correct && !rewards.dtype.is_float() {
        rewards.dtype = DType::Float64;
    }
    Ok(())
}

/// The leaves of the observations, which must be there.
pub(super) fn obs_leaves(plan: &Plan<'_>) -> Result<Vec<(String, TensorType)>> {
    let leaves: Vec<_> = plan.episodes.under(OBS).map(|(n, ty)| (n.to_string(), ty.clone())).collect();
    if leaves.is_empty() {
        return Err(Error::usage("needs observations").column(OBS));
    }
    Ok(leaves)
}

/// Bonuses, and the dtype of the NumPy scalars that they are; `None` for Python floats.
///
/// The values stand as float64, which holds every value of the other types.
#[derive(Debug)]
pub(super) struct Bonuses {
    pub(super) values: Vec<f64>,
    pub(super) dtype: Option<DType>,
}

/// Writes `rewards + bonuses` to the episodes, added as NumPy adds scalars (NEP 50) and stored as NumPy stores into
/// the rewards' array; see [`rewards_layout`] for the dtype of that array.
///
/// RLlib's batch may have that array already, as its column `rewards`: with [`Compat::Rllib260`] the bonuses show there, too.
///
/// # Errors
/// Where RLlib raises one: if a sum is NaN, or does not fit an integer array.
pub(super) fn add(compat: Compat, share: &mut ModuleUnit, bonuses: &Bonuses) -> Result<()> {
    let ModuleUnit { episodes, batch, .. } = share;
    let viewed = compat == Compat::Rllib260 && batch.is_view(REWARDS, super::rewards(episodes)?);
    let mut rewards = super::rewards(episodes)?.clone();
    if compat == Compat::Correct && !rewards.ty().dtype.is_float() {
        rewards = rewards.cast(DType::Float64)?;
    }
    let stored = rewards.ty().dtype;
    let summed = match bonuses.dtype {
        None if stored.is_float() => stored,
        None => DType::Float64,
        Some(dtype) => stored.numpy_result_type(dtype),
    };
    let old = as_f64(&rewards);
    let sums: Vec<f64> = old.iter().zip(&bonuses.values).map(|(&reward, &bonus)| sum(summed, reward, bonus)).collect();
    if compat == Compat::Rllib260
        && let Some(row) = sums.iter().position(|s| s.is_nan())
    {
        return Err(refused(episodes, row, "the shaped reward is NaN; RLlib 2.60 raises an AssertionError here"));
    }
    let new = if stored.is_float() {
        from_f64(stored, &sums.into_iter().map(|s| round_to(stored, s)).collect::<Vec<_>>())
    } else {
        store_integers(stored, sums.into_iter()).map_err(|(row, value)| {
            let what =
                format!("the shaped reward {value} does not fit {stored}; RLlib 2.60 raises an OverflowError here");
            refused(episodes, row, what).hint("compat = \"correct\" adds intrinsic rewards in float64")
        })?
    };
    if viewed && let Some((_, column)) = batch.iter_mut().find(|(name, _)| *name == REWARDS) {
        *column = new.clone().into();
    }
    episodes.steps.set(REWARDS, new);
    Ok(())
}

/// The error for a reward that RLlib would not store.
fn refused(episodes: &EpisodeBatch, row: usize, what: impl Into<String>) -> Error {
    let chunk = episodes.offsets.partition_point(|&start| start <= row) - 1;
    let t = i64::try_from(row - episodes.offsets[chunk]).unwrap_or(i64::MAX);
    Error::data(what)
        .episode(episodes.chunks[chunk].id.to_string())
        .t(episodes.chunks[chunk].t_started.saturating_add(t))
        .column(REWARDS)
}

/// `reward + bonus` in `dtype`, both rounded to it first.
#[expect(clippy::cast_possible_truncation, reason = "NumPy rounds to float32 here")]
fn sum(dtype: DType, reward: f64, bonus: f64) -> f64 {
    match dtype {
        DType::Float32 => f64::from(reward as f32 + bonus as f32),
        // NumPy adds float16 in float32, which is exact enough to round once more.
        DType::Float16 => {
            let sum = round_to(dtype, reward) as f32 + round_to(dtype, bonus) as f32;
            round_to(dtype, f64::from(sum))
        }
        _ => reward + bonus,
    }
}

/// The nearest value of a floating-point type.
#[expect(clippy::cast_possible_truncation, reason = "rounding is what is asked for")]
pub(super) fn round_to(dtype: DType, value: f64) -> f64 {
    match dtype {
        // Not `from_f64`: with hardware support it rounds twice.
        DType::Float16 => half::f16::from_f64_const(value).to_f64(),
        DType::Float32 => f64::from(value as f32),
        _ => value,
    }
}

/// The elements as float64, as C casts them.
pub(super) fn as_f64(tensor: &Tensor) -> Vec<f64> {
    macro_rules! widened {
        ($t:ty) => {
            tensor.values::<$t>().iter().map(|&v| f64::from(v)).collect()
        };
    }
    match tensor.ty().dtype {
        DType::Bool => tensor.bytes().iter().map(|&b| f64::from(b)).collect(),
        DType::Int8 => widened!(i8),
        DType::Int16 => widened!(i16),
        DType::Int32 => widened!(i32),
        DType::Int64 => tensor.values::<i64>().iter().map(|&v| v as f64).collect(),
        DType::UInt8 => widened!(u8),
        DType::UInt16 => widened!(u16),
        DType::UInt32 => widened!(u32),
        DType::UInt64 => tensor.values::<u64>().iter().map(|&v| v as f64).collect(),
        DType::Float16 => widened!(half::f16),
        DType::Float32 => widened!(f32),
        DType::Float64 => tensor.values::<f64>().to_vec(),
    }
}

/// A scalar column of a floating-point type, from values that it holds exactly.
#[expect(clippy::cast_possible_truncation, reason = "the values are of that type already")]
fn from_f64(dtype: DType, values: &[f64]) -> Tensor {
    match dtype {
        DType::Float16 => {
            let values: Vec<half::f16> = values.iter().map(|&v| half::f16::from_f64_const(v)).collect();
            Tensor::from_values([], &values)
        }
        DType::Float32 => Tensor::from_values([], &values.iter().map(|&v| v as f32).collect::<Vec<_>>()),
        _ => Tensor::from_values([], values),
    }
}

/// A scalar column of an integer type: fractions are dropped. What does not fit a signed type is an error in NumPy;
/// for an unsigned one C casts to a signed register (to its smallest value what does not fit that) and takes the low
/// bytes. The error is the first value that cannot be stored.
fn store_integers(dtype: DType, values: impl Iterator<Item = f64>) -> Result<Tensor, (usize, f64)> {
    macro_rules! stored {
        ($t:ty, $wrapped:expr) => {{
            let fit = |v: i128| <$t>::try_from(v).ok().or_else(|| $wrapped(v));
            let one = |(row, value): (usize, f64)| whole(value).and_then(fit).ok_or((row, value));
            Ok(Tensor::from_values::<$t>([], &values.enumerate().map(one).collect::<Result<Vec<_>, _>>()?))
        }};
        ($t:ty as $register:ty) => {
            stored!($t, |v: i128| {
                let register = <$register>::try_from(v).unwrap_or(<$register>::MIN);
                register.to_le_bytes().first_chunk().map(|low| <$t>::from_le_bytes(*low))
            })
        };
    }
    match dtype {
        DType::Int8 => stored!(i8, |_| None),
        DType::Int16 => stored!(i16, |_| None),
        DType::Int32 => stored!(i32, |_| None),
        DType::Int64 => stored!(i64, |_| None),
        DType::UInt8 => stored!(u8 as i32),
        DType::UInt16 => stored!(u16 as i32),
        DType::UInt32 => stored!(u32 as i64),
        DType::UInt64 => stored!(u64 as i64),
        _ => Ok(Tensor::from_bools(values.map(|v| v != 0.0))),
    }
}

/// The number without its fraction.
#[expect(clippy::cast_possible_truncation, reason = "larger ones fit no 64-bit integer either way")]
fn whole(value: f64) -> Option<i128> {
    (!value.is_nan()).then_some(value as i128)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::ModuleBatch;
    use crate::connectors::testing::episodes;

    fn added(compat: Compat, rewards: &Tensor, values: &[f64], dtype: Option<DType>) -> Result<Tensor> {
        let mut unit = unit(rewards);
        add(compat, &mut unit, &Bonuses { values: values.to_vec(), dtype })?;
        Ok(unit.episodes.steps.get(REWARDS).unwrap().clone())
    }

    fn unit(rewards: &Tensor) -> ModuleUnit {
        let mut episodes = episodes(&[rewards.rows()]);
        episodes.steps.set(REWARDS, rewards.clone());
        ModuleUnit { module: 0, episodes, batch: ModuleBatch::default() }
    }

    /// `set_rewards` of a finalized episode writes in place, and the column that
    /// `AddColumnsFromEpisodesToTrainBatch` has added is a view of the same array until it is copied.
    #[test]
    fn a_column_of_rewards_that_is_there_already_is_a_view_in_rllib() {
        let rewards = Tensor::from_values::<f64>([], &[1.0, 2.0]);
        let column = |compat, change: &dyn Fn(&mut ModuleUnit)| {
            let mut unit = unit(&rewards);
            unit.batch.push(REWARDS, rewards.clone());
            change(&mut unit);
            for _ in 0..2 {
                add(compat, &mut unit, &Bonuses { values: vec![0.5, 0.25], dtype: None }).unwrap();
            }
            unit.batch.get(REWARDS).unwrap().values::<f64>().to_vec()
        };
        assert_eq!(column(Compat::Rllib260, &|_| ()), [2.0, 2.5]);
        assert_eq!(column(Compat::Correct, &|_| ()), [1.0, 2.0]);
        assert_eq!(column(Compat::Rllib260, &|unit| unit.batch.set_joined()), [1.0, 2.0]);
        let replaced = |unit: &mut ModuleUnit| {
            unit.batch = ModuleBatch::default();
            unit.batch.push(REWARDS, Tensor::from_values::<f64>([], &[7.0, 7.0]));
        };
        assert_eq!(column(Compat::Rllib260, &replaced), [7.0, 7.0]);
    }

    #[test]
    fn sums_are_those_of_numpy_scalars() {
        // np.float32(0.1) + 0.3 * (1 / 3), np.float32(0.1) + np.float64(0.1)
        let f32s = Tensor::from_values::<f32>([], &[0.1, 16_777_216.0]);
        let weak = added(Compat::Rllib260, &f32s, &[0.3 * (1.0 / 3.0), 1.0], None).unwrap();
        assert_eq!(weak.values::<f32>(), [0.1 + 0.1, 16_777_216.0]);
        let strong = added(Compat::Rllib260, &f32s, &[0.1, 1.000_001], Some(DType::Float64)).unwrap();
        assert_eq!(strong.values::<f32>(), [0.2, 16_777_218.0]);
        let f16s = Tensor::from_values([], &[half::f16::from_f32(1.0)]);
        let sum = added(Compat::Rllib260, &f16s, &[0.1], None).unwrap();
        assert_eq!(sum.values::<half::f16>(), [half::f16::from_f32(1.0996)]);
    }

    #[test]
    fn integers_are_truncated_by_rllib_and_widened_here() {
        let ints = Tensor::from_values::<i64>([], &[1, -1]);
        let old = added(Compat::Rllib260, &ints, &[0.5, 0.5], None).unwrap();
        assert_eq!(old.values::<i64>(), [1, 0]);
        let new = added(Compat::Correct, &ints, &[0.5, 0.5], None).unwrap();
        assert_eq!(new.values::<f64>(), [1.5, -0.5]);
        let small = Tensor::from_values::<i8>([], &[127, -128]);
        assert_eq!(added(Compat::Rllib260, &small, &[0.9, -0.9], None).unwrap().values::<i8>(), [127, -128]);
        let error = added(Compat::Rllib260, &small, &[0.0, -1.0], None).unwrap_err();
        assert_eq!((error.place().t, error.place().episode.as_deref()), (Some(1), Some("e0")));
        let flags = Tensor::from_bools([false, false]);
        assert_eq!(added(Compat::Rllib260, &flags, &[0.5, 0.0], None).unwrap().bytes(), [1, 0]);
        let unsigned = Tensor::from_values::<u64>([], &[0]);
        assert_eq!(added(Compat::Rllib260, &unsigned, &[-1.0], None).unwrap().values::<u64>(), [u64::MAX]);
        let bytes = Tensor::from_values::<u8>([], &[0; 5]);
        let wrapped = added(Compat::Rllib260, &bytes, &[-1.9, -0.5, 300.7, 7e4, 3e9 + 1.0], None).unwrap();
        assert_eq!(wrapped.values::<u8>(), [255, 0, 44, 112, 0]);
        let float = Tensor::from_values::<f64>([], &[0.0]);
        assert!(added(Compat::Rllib260, &float, &[f64::NAN], None).is_err());
        assert!(added(Compat::Correct, &float, &[f64::NAN], None).unwrap().values::<f64>()[0].is_nan());
    }
}
