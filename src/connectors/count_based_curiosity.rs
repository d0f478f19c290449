//! `CountBasedCuriosity`: a bonus for observations that were seldom seen.

use std::hash::{BuildHasher, Hasher};

use foldhash::quality::FixedState;
use hashbrown::HashTable;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::intrinsic::{self, Bonuses};
use crate::batch::ModuleBatch;
use crate::column::{OBS, REWARDS, root};
use crate::connector::{Connector, Context, ModuleUnit, Ordered, Piece, Plan, Repairs, in_order, piece_boilerplate};
use crate::episode::EpisodeBatch;
use crate::error::{Error, Result};
use crate::job::{Compat, ModuleSettings};
use crate::tensor::{DType, Tensor, TensorType};

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
        Some(Box::new(Counting { coeff: self.intrinsic_reward_coeff, counters: Vec::new() }))
    }

    fn apply(&self, _: Context<'_>, _: &mut EpisodeBatch, _: &mut ModuleBatch, _: &mut Repairs) -> Result<()> {
        Err(Error::internal("an ordered piece applied out of order"))
    }
}

/// The counts so far.
#[derive(Debug)]
struct Counting {
    coeff: f64,
    /// One a kind of observation: the types of the leaves.
    counters: Vec<(Vec<TensorType>, Counter)>,
}

impl Counting {
    /// The counter of `types`.
    fn counter(&mut self, compat: Compat, types: &[TensorType]) -> Result<usize> {
        if let Some(i) = self.counters.iter().position(|(t, _)| t == types) {
            return Ok(i);
        }
        let same_width = |other: &[TensorType]| {
            other.len() == types.len() && other.iter().zip(types).all(|(a, b)| a.shape == b.shape)
        };
        if compat == Compat::Rllib260
            && let Some((other, _)) = self.counters.iter().find(|(t, _)| same_width(t))
        {
            return Err(Error::usage(format!(
                "found modules with observations of {} and {}, which RLlib 2.60 compares by value, expected one dtype",
                other[0], types[0]
            ))
            .column(OBS)
            .hint("compat = \"correct\" counts them apart"));
        }
        self.counters.push((types.to_vec(), Counter::new(types)));
        Ok(self.counters.len() - 1)
    }
}

impl Ordered for Counting {
    fn apply(&mut self, compat: Compat, unit: &mut [ModuleUnit], repairs: &mut Repairs) -> Result<()> {
        let mut keys: Vec<Keys> = Vec::with_capacity(unit.len());
        let mut counter_of = Vec::with_capacity(unit.len());
        for share in &*unit {
            let leaves: Vec<&Tensor> = share.episodes.steps.under(OBS).map(|(_, t)| t).collect();
            let types: Vec<TensorType> = leaves.iter().map(|t| t.ty().clone()).collect();
            counter_of.push(self.counter(compat, &types)?);
            let own = Keys::of(&leaves, share.episodes.steps_len());
            if compat == Compat::Correct {
                repairs.count(EQUAL_NANS, own.nan.iter().filter(|n| **n).count() as u64);
                if !matches!(types.as_slice(), [only] if only.shape.len() == 1) {
                    repairs.count(ANY_RANK, share.episodes.steps_len() as u64);
                }
                if !super::rewards(&share.episodes)?.ty().dtype.is_float() {
                    repairs.count(intrinsic::FLOAT_REWARDS, share.episodes.steps_len() as u64);
                }
            }
            keys.push(own);
        }

        let mut counts: Vec<Vec<u64>> = keys.iter().map(|k| vec![1; k.hashes.len()]).collect();
        let order = in_order(unit);
        for (number, (_, counter)) in self.counters.iter_mut().enumerate() {
            // NaNs that equal nothing were never seen before: their count stays one.
            let rows = order.iter().filter(|&&(m, _)| counter_of[m] == number).flat_map(|&(m, chunk)| {
                let keys = &keys[m];
                let counted = move |row: &usize| compat == Compat::Correct || !keys.nan[*row];
                unit[m].episodes.rows(chunk).filter(counted).map(move |row| (m, row))
            });
            counter.count(&keys, &rows.collect::<Vec<_>>(), &mut counts)?;
        }

        for (share, counts) in unit.iter_mut().zip(counts) {
            let values = counts.into_iter().map(|n| self.coeff * (1.0 / n as f64)).collect();
            intrinsic::add(compat, &mut share.episodes, &Bonuses { values, dtype: None })?;
        }
        Ok(())
    }
}

/// Rows of longer observations are told apart by their digest.
const LONGEST_KEY: usize = 64;
/// Rows that are hashed in one go.
const BLOCK: usize = 1024;

/// Each row's observation as bytes that are equal where the observations are, and their hash.
#[derive(Debug)]
struct Keys {
    len: usize,
    bytes: Vec<u8>,
    hashes: Vec<u64>,
    nan: Vec<bool>,
}

/// Bytes of a key for observations of these leaves.
fn key_len(types: &[TensorType]) -> usize {
    let bytes = types.iter().map(TensorType::row_bytes).sum();
    if bytes <= LONGEST_KEY { bytes } else { blake3::OUT_LEN }
}

impl Keys {
    fn of(leaves: &[&Tensor], rows: usize) -> Self {
        let types: Vec<TensorType> = leaves.iter().map(|t| t.ty().clone()).collect();
        let row_bytes: usize = types.iter().map(TensorType::row_bytes).sum();
        let len = key_len(&types);
        let mut keys = Self { len, bytes: vec![0; rows * len], hashes: vec![0; rows], nan: vec![false; rows] };
        let blocks = keys
            .bytes
            .par_chunks_mut((BLOCK * len).max(1))
            .zip(keys.hashes.par_chunks_mut(BLOCK))
            .zip(keys.nan.par_chunks_mut(BLOCK))
            .enumerate();
        blocks.for_each(|(block, ((bytes, hashes), nan))| {
            let mut row = Vec::with_capacity(row_bytes);
            let own = bytes.chunks_exact_mut(len).zip(hashes).zip(nan);
            for (i, ((key, hash), nan)) in (block * BLOCK..).zip(own) {
                row.clear();
                for leaf in leaves {
                    *nan |= push_canonical(&mut row, leaf.ty().dtype, leaf.row(i));
                }
                if row_bytes == len && len <= LONGEST_KEY {
                    key.copy_from_slice(&row);
                } else {
                    key.copy_from_slice(blake3::hash(&row).as_bytes());
                }
                *hash = hash_of(key);
            }
        });
        keys
    }

    fn key(&self, row: usize) -> &[u8] {
        &self.bytes[row * self.len..(row + 1) * self.len]
    }
}

fn hash_of(key: &[u8]) -> u64 {
    let mut hasher = FixedState::with_seed(0).build_hasher();
    hasher.write(key);
    hasher.finish()
}

/// Appends the elements with one zero and one NaN. Whether there was a NaN.
fn push_canonical(out: &mut Vec<u8>, dtype: DType, row: &[u8]) -> bool {
    macro_rules! floats {
        ($t:ty) => {{
            let mut nan = false;
            for bytes in row.chunks_exact(size_of::<$t>()) {
                let value: $t = bytemuck::pod_read_unaligned(bytes);
                nan |= value.is_nan();
                // Adding zero leaves every number as it is but -0.0.
                let value = if value.is_nan() { <$t>::NAN } else { value + <$t>::from_bits(0) };
                out.extend_from_slice(&value.to_ne_bytes());
            }
            nan
        }};
    }
    match dtype {
        DType::Float16 => floats!(half::f16),
        DType::Float32 => floats!(f32),
        DType::Float64 => floats!(f64),
        _ => {
            out.extend_from_slice(row);
            false
        }
    }
}

const PARTITIONS: usize = 64;

/// The partition of a hash. The table uses its lowest and highest bits.
const fn partition_of(hash: u64) -> usize {
    (hash >> 40) as usize % PARTITIONS
}

/// How often each key of one length was seen.
#[derive(Debug)]
struct Counter {
    key_len: usize,
    partitions: Vec<Partition>,
}

/// The keys whose hash falls into one partition.
#[derive(Debug, Default)]
struct Partition {
    /// Numbers of keys.
    table: HashTable<u32>,
    /// The keys, back to back.
    keys: Vec<u8>,
    counts: Vec<u64>,
}

impl Counter {
    fn new(types: &[TensorType]) -> Self {
        let mut partitions = Vec::new();
        partitions.resize_with(PARTITIONS, Partition::default);
        Self { key_len: key_len(types), partitions }
    }

    /// Counts `rows`, one after the other, and writes each one's count.
    ///
    /// ```text
    /// rows in order     r0 r1 r2 r3 r4 r5
    /// by partition      r0 r3 | r2 | r1 r4 r5      equal keys fall into one partition, where order is kept
    /// ```
    fn count(&mut self, keys: &[Keys], rows: &[(usize, usize)], counts: &mut [Vec<u64>]) -> Result<()> {
        let mut by_partition: Vec<Vec<(usize, usize)>> = vec![Vec::new(); PARTITIONS];
        for &(m, row) in rows {
            by_partition[partition_of(keys[m].hashes[row])].push((m, row));
        }
        let key_len = self.key_len;
        let counted: Vec<Vec<u64>> = self
            .partitions
            .par_iter_mut()
            .zip(&by_partition)
            .map(|(partition, rows)| {
                rows.iter()
                    .map(|&(m, row)| partition.count(key_len, keys[m].key(row), keys[m].hashes[row]))
                    .collect::<Result<_>>()
            })
            .collect::<Result<_>>()?;
        for (rows, counted) in by_partition.iter().zip(counted) {
            for (&(m, row), count) in rows.iter().zip(counted) {
                counts[m][row] = count;
            }
        }
        Ok(())
    }
}

impl Partition {
    fn count(&mut self, key_len: usize, key: &[u8], hash: u64) -> Result<u64> {
        let Self { table, keys, counts } = self;
        let key_of = |&number: &u32| {
            let start = number as usize * key_len;
            &keys[start..start + key_len]
        };
        if let Some(&number) = table.find(hash, |number| key_of(number) == key) {
            let count = &mut counts[number as usize];
            *count += 1;
            return Ok(*count);
        }
        let number = u32::try_from(counts.len())
            .map_err(|_| Error::environment("found more than 2^38 different observations, expected fewer"))?;
        table.insert_unique(hash, number, |number| hash_of(key_of(number)));
        keys.extend_from_slice(key);
        counts.push(1);
        Ok(1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::batch::BatchLayout;
    use crate::column::REWARDS;
    use crate::connectors::testing::episodes;
    use crate::episode::{Columns, EpisodeLayout};
    use crate::job::ModuleSettings;

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
        assert_eq!(run(Compat::Rllib260, &mut [unit]).0, [vec![1., 1., 1., 0.]]);
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
        assert_eq!(run(Compat::Correct, &mut [unit]).0, [vec![1. / 3., 1.], vec![0.5]]);
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
