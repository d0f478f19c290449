//! Statistics of a column: counts, extremes, mean and standard deviation of its real values.
//!
//! Every value written passes here, so one pass must do. Values come in blocks of 4096, counted from the start of the
//! row group; each block's moments are taken relative to its first value (float32 `[10000, 10001, 10002]` squared as
//! it is would leave nothing of a standard deviation of 0.8165), and blocks are joined by Chan's formula in order.
//! The result depends on the values and the cuts of the row groups, which depend on the job alone; never on threads.
//!
//! ```text
//! delta = mean_b - mean_a      n = n_a + n_b
//! mean  = mean_a + delta * n_b / n
//! M2    = M2_a + M2_b + delta^2 * n_a * n_b / n          std = sqrt(M2 / n)
//! ```
//!
//! After T. F. Chan and others, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.

use std::borrow::Cow;

use half::f16;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Number;

use crate::column::{NEXT_STATE_IN, SEQ_LENS, STATE_IN, root};
use crate::error::{Error, Result};
use crate::tensor::{DType, Tensor};

/// Values per block.
const BLOCK: usize = 4096;
/// Independent sums per block, so that the additions need not wait for one another. Part of the result's definition.
const LANES: usize = 8;

/// Statistics of a column as the manifest has them.
///
/// NaN and infinities are counted and left out of everything else. What there is no value for is left out (`min` of
/// nothing, `mean` beyond float64).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Statistics {
    /// Values looked at: places of real steps times elements per step.
    pub count: u64,
    /// NaN among them.
    #[serde(default)]
    pub nan_count: u64,
    /// Infinities among them.
    #[serde(default)]
    pub inf_count: u64,
    /// The least finite value. Integers exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Number>,
    /// The greatest finite value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Number>,
    /// Arithmetic mean of the finite values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<f64>,
    /// Standard deviation of the finite values (of the population: divided by n).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub std: Option<f64>,
}

/// Whether a column's statistics are over the real places of a `loss_mask` alone: those of columns with its time
/// dimension are. (A state has none, though its shape may begin alike.)
#[must_use]
pub fn is_masked(name: &str, shape: &[usize], mask_shape: Option<&[usize]>) -> bool {
    let timed = mask_shape.is_some_and(|mask| shape.starts_with(mask));
    timed && !matches!(root(name), STATE_IN | NEXT_STATE_IN) && name != SEQ_LENS
}

/// Statistics of a column that grow.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ColumnStats {
    nan: u64,
    infinite: u64,
    finite: Option<Moments>,
}

/// Count, mean, sum of squared deviations and extremes of at least one finite value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Moments {
    n: u64,
    mean: f64,
    m2: f64,
    min: Scalar,
    max: Scalar,
}

/// A value of any dtype, exactly.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Scalar {
    Int(i128),
    Float(f64),
}

impl ColumnStats {
    /// Statistics of a column.
    ///
    /// With `mask`, a boolean column of the same rows whose shape is how the shape of `tensor` starts (`[T]` and
    /// `[T, ..]`), only places where it is true count. Pass it for columns that have a time dimension, and only then: a
    /// state of `T` elements looks the same.
    pub fn of(tensor: &Tensor, mask: Option<&Tensor>) -> Result<Self> {
        let places = match mask {
            None => None,
            Some(mask) => {
                let fits = mask.ty().dtype == DType::Bool
                    && mask.rows() == tensor.rows()
                    && tensor.ty().shape.starts_with(&mask.ty().shape);
                if !fits {
                    return Err(Error::internal(format!("found a mask {mask:?} for statistics of {tensor:?}")));
                }
                let elements = tensor.ty().shape[mask.ty().shape.len()..].iter().product::<usize>();
                Some((mask.bytes(), elements))
            }
        };
        Ok(match tensor.ty().dtype {
            DType::Bool | DType::UInt8 => column::<u8>(tensor.bytes(), places),
            DType::Int8 => column::<i8>(tensor.values(), places),
            DType::Int16 => column::<i16>(tensor.values(), places),
            DType::Int32 => column::<i32>(tensor.values(), places),
            DType::Int64 => column::<i64>(tensor.values(), places),
            DType::UInt16 => column::<u16>(tensor.values(), places),
            DType::UInt32 => column::<u32>(tensor.values(), places),
            DType::UInt64 => column::<u64>(tensor.values(), places),
            DType::Float16 => column::<f16>(tensor.values(), places),
            DType::Float32 => column::<f32>(tensor.values(), places),
            DType::Float64 => column::<f64>(tensor.values(), places),
        })
    }

    /// Adds the statistics of the rows that follow.
    pub fn merge(&mut self, next: &Self) {
        self.nan += next.nan;
        self.infinite += next.infinite;
        self.finite = match (self.finite, next.finite) {
            (Some(a), Some(b)) => Some(a.join(b)),
            (a, b) => a.or(b),
        };
    }

    /// The statistics as the manifest has them.
    #[must_use]
    pub fn summary(&self) -> Statistics {
        let finite = |f: fn(&Moments) -> f64| self.finite.as_ref().map(f).filter(|v| v.is_finite());
        Statistics {
            count: self.nan + self.infinite + self.finite.map_or(0, |m| m.n),
            nan_count: self.nan,
            inf_count: self.infinite,
            min: self.finite.and_then(|m| m.min.number()),
            max: self.finite.and_then(|m| m.max.number()),
            mean: finite(|m| m.mean),
            std: finite(|m| (m.m2 / m.n as f64).sqrt()),
        }
    }
}

impl Moments {
    /// Chan's formula.
    fn join(self, b: Self) -> Self {
        let (n_a, n_b) = (self.n as f64, b.n as f64);
        let n = n_a + n_b;
        let delta = b.mean - self.mean;
        Self {
            n: self.n + b.n,
            mean: self.mean + delta * (n_b / n),
            m2: self.m2 + b.m2 + delta * delta * (n_a / n * n_b),
            min: if b.min.below(self.min) { b.min } else { self.min },
            max: if self.max.below(b.max) { b.max } else { self.max },
        }
    }
}

impl Scalar {
    fn below(self, other: Self) -> bool {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => a < b,
            (Self::Float(a), Self::Float(b)) => a < b,
            // A column has one dtype.
            _ => false,
        }
    }

    fn number(self) -> Option<Number> {
        match self {
            Self::Int(v) => Number::from_i128(v),
            Self::Float(v) => Number::from_f64(v),
        }
    }
}

/// Statistics of `values`, or of those at the true places of a mask with so many values each.
fn column<T: Value>(values: &[T], places: Option<(&[u8], usize)>) -> ColumnStats {
    let mut blocks = Blocks { stats: ColumnStats::default(), pending: Vec::new() };
    match places {
        None => blocks.push(values),
        Some((mask, elements)) => {
            // Runs of true places: the real steps of a sequence, as a rule.
            let mut at = 0;
            while at < mask.len() {
                let start = at + mask[at..].iter().take_while(|m| **m == 0).count();
                let end = start + mask[start..].iter().take_while(|m| **m != 0).count();
                blocks.push(&values[start * elements..end * elements]);
                at = end;
            }
        }
    }
    blocks.finish()
}

/// Cuts what is pushed into blocks of [`BLOCK`] values.
struct Blocks<T> {
    stats: ColumnStats,
    pending: Vec<T>,
}

impl<T: Value> Blocks<T> {
    fn push(&mut self, mut values: &[T]) {
        if !self.pending.is_empty() {
            let (head, rest) = values.split_at(values.len().min(BLOCK - self.pending.len()));
            self.pending.extend_from_slice(head);
            values = rest;
            if self.pending.len() < BLOCK {
                return;
            }
            T::block(&self.pending, &mut self.stats);
            self.pending.clear();
        }
        let mut whole = values.chunks_exact(BLOCK);
        for block in &mut whole {
            T::block(block, &mut self.stats);
        }
        self.pending.extend_from_slice(whole.remainder());
    }

    fn finish(mut self) -> ColumnStats {
        if !self.pending.is_empty() {
            T::block(&self.pending, &mut self.stats);
        }
        self.stats
    }
}

/// An element type, with the statistics of up to [`BLOCK`] values of it.
trait Value: Copy {
    /// Adds a block of at least one value.
    fn block(values: &[Self], stats: &mut ColumnStats);
}

/// Small integers: exact sums, in machine words wide enough for a block. `Σ(x - mean)² = (n Σx² - (Σx)²) / n`.
macro_rules! small_integers {
    ($($t:ty: $square:ty),*) => { $(impl Value for $t {
        fn block(values: &[Self], stats: &mut ColumnStats) {
            // One fold each: together they would not be vectorised.
            let sum: i32 = values.iter().map(|&x| i32::from(x)).sum();
            let squares: $square = values.iter().map(|&x| <$square>::from(x.abs_diff(0))).map(|x| x * x).sum();
            let min = values.iter().fold(values[0], |a, &b| a.min(b));
            let max = values.iter().fold(values[0], |a, &b| a.max(b));
            let n = values.len() as u64;
            let scatter = i128::from(n) * i128::from(squares) - i128::from(sum) * i128::from(sum);
            stats.add(Moments {
                n,
                mean: f64::from(sum) / n as f64,
                m2: scatter as f64 / n as f64,
                min: Scalar::Int(i128::from(min)),
                max: Scalar::Int(i128::from(max)),
            });
        }
    })* };
}
// 4096 * 255^2 < 2^32 and 4096 * 65535 < 2^31
small_integers! { u8: u32, i8: u32, u16: u64, i16: u64 }

/// Wide integers: differences from the first value, exact before they are rounded.
macro_rules! wide_integers {
    ($($t:ty),*) => { $(impl Value for $t {
        fn block(values: &[Self], stats: &mut ColumnStats) {
            let first = i128::from(values[0]);
            let (mut sum, mut squares) = (0f64, 0f64);
            let (mut min, mut max) = (values[0], values[0]);
            for &x in values {
                let d = (i128::from(x) - first) as f64;
                sum += d;
                squares += d * d;
                min = min.min(x);
                max = max.max(x);
            }
            let n = values.len() as f64;
            stats.add(Moments {
                n: values.len() as u64,
                mean: first as f64 + sum / n,
                m2: (squares - sum * (sum / n)).max(0.0),
                min: Scalar::Int(i128::from(min)),
                max: Scalar::Int(i128::from(max)),
            });
        }
    })* };
}
wide_integers! { i32, u32, i64, u64 }

macro_rules! floats {
    ($($t:ty),*) => { $(impl Value for $t {
        fn block(values: &[Self], stats: &mut ColumnStats) {
            let first = f64::from(values[0]);
            let (mut sum, mut squares) = ([0f64; LANES], [0f64; LANES]);
            let (mut min, mut max) = ([values[0]; LANES], [values[0]; LANES]);
            let mut lanes = values.chunks_exact(LANES);
            let mut step = |l: usize, x: $t| {
                let d = f64::from(x) - first;
                sum[l] += d;
                squares[l] += d * d;
                min[l] = if x < min[l] { x } else { min[l] };
                max[l] = if x > max[l] { x } else { max[l] };
            };
            for xs in &mut lanes {
                for (l, &x) in xs.iter().enumerate() {
                    step(l, x);
                }
            }
            for (l, &x) in lanes.remainder().iter().enumerate() {
                step(l, x);
            }
            let (sum, squares) = (sum.iter().sum::<f64>(), squares.iter().sum::<f64>());
            if !(sum.is_finite() && squares.is_finite()) {
                // NaN, an infinity, or values whose squares are beyond float64: rare, so looked at one by one.
                return odd_block(&values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>(), stats);
            }
            let n = values.len() as f64;
            stats.add(Moments {
                n: values.len() as u64,
                mean: first + sum / n,
                m2: (squares - sum * (sum / n)).max(0.0),
                min: Scalar::Float(f64::from(min.into_iter().fold(values[0], |a, b| if b < a { b } else { a }))),
                max: Scalar::Float(f64::from(max.into_iter().fold(values[0], |a, b| if b > a { b } else { a }))),
            });
        }
    })* };
}
floats! { f32, f64 }

impl Value for f16 {
    fn block(values: &[Self], stats: &mut ColumnStats) {
        let wide: Vec<f32> = values.iter().map(|x| x.to_f32()).collect();
        f32::block(&wide, stats);
    }
}

/// A block with values that are not finite, or too large to square.
fn odd_block(values: &[f64], stats: &mut ColumnStats) {
    let finite: Cow<[f64]> = if values.iter().all(|x| x.is_finite()) {
        Cow::Borrowed(values)
    } else {
        Cow::Owned(values.iter().copied().filter(|x| x.is_finite()).collect())
    };
    stats.nan += values.iter().filter(|x| x.is_nan()).count() as u64;
    stats.infinite += values.iter().filter(|x| x.is_infinite()).count() as u64;
    if finite.is_empty() {
        return;
    }
    if finite.len() < values.len() {
        return f64::block(&finite, stats);
    }
    let n = finite.len() as f64;
    let mean: f64 = finite.iter().map(|x| x / n).sum();
    let extreme = |least: fn(f64, f64) -> f64| Scalar::Float(finite.iter().copied().fold(finite[0], least));
    stats.add(Moments {
        n: finite.len() as u64,
        mean,
        m2: finite.iter().map(|x| (x - mean) * (x - mean)).sum(),
        min: extreme(f64::min),
        max: extreme(f64::max),
    });
}

impl ColumnStats {
    fn add(&mut self, block: Moments) {
        self.finite = Some(self.finite.map_or(block, |m| m.join(block)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::TensorType;

    fn of(tensor: &Tensor) -> Statistics {
        ColumnStats::of(tensor, None).unwrap().summary()
    }

    fn close(a: Option<f64>, b: f64) {
        let a = a.unwrap();
        assert!((a - b).abs() <= 1e-12 * b.abs().max(1.0), "{a} against {b}");
    }

    #[test]
    fn a_small_spread_about_a_large_mean_survives_float32() {
        let s = of(&Tensor::from_values::<f32>([], &[10_000.0, 10_001.0, 10_002.0]));
        close(s.mean, 10_001.0);
        close(s.std, (2.0f64 / 3.0).sqrt());
        assert_eq!((s.min.unwrap().as_f64(), s.max.unwrap().as_f64()), (Some(10_000.0), Some(10_002.0)));
    }

    #[test]
    fn every_dtype_gives_the_same_numbers() {
        let naive = |v: &[f64]| {
            let n = v.len() as f64;
            let mean = v.iter().sum::<f64>() / n;
            (mean, (v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt())
        };
        let values: Vec<u8> = (0..10_000u32).map(|i| (i * i % 101) as u8).collect();
        let (mean, std) = naive(&values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>());
        let u8s = Tensor::from_values([4], &values);
        for dtype in DType::ALL.into_iter().filter(|d| *d != DType::Bool && *d != DType::Int8) {
            let s = of(&u8s.cast(dtype).unwrap());
            close(s.mean, mean);
            close(s.std, std);
            assert_eq!(s.count, 10_000);
            assert_eq!(s.max.unwrap().as_f64(), Some(100.0));
        }
        let s = of(&Tensor::from_bools([true, false, false, false]));
        close(s.mean, 0.25);
        close(s.std, 0.1875f64.sqrt());
        let s = of(&Tensor::from_values::<i8>([], &[-128, 127]));
        close(s.mean, -0.5);
        assert_eq!(s.min.unwrap().as_i64(), Some(-128));
    }

    #[test]
    fn wide_integers_keep_their_extremes_and_their_spread() {
        let s = of(&Tensor::from_values::<u64>([], &[u64::MAX, u64::MAX - 2]));
        assert_eq!(s.max.unwrap().as_u64(), Some(u64::MAX));
        close(s.std, 1.0);
        let s = of(&Tensor::from_values::<i64>([], &[1_700_000_000_000_000_000, 1_700_000_000_000_000_006]));
        close(s.std, 3.0);
    }

    #[test]
    fn what_is_not_finite_is_counted_and_left_out() {
        let mut values = vec![1.0f32; 5000];
        values[7] = f32::NAN;
        values[4999] = f32::NEG_INFINITY;
        values[0] = f32::INFINITY;
        values[1] = 3.0;
        let s = of(&Tensor::from_values([], &values));
        assert_eq!((s.count, s.nan_count, s.inf_count), (5000, 1, 2));
        assert_eq!((s.min.unwrap().as_f64(), s.max.unwrap().as_f64()), (Some(1.0), Some(3.0)));
        close(s.mean, (4996.0 + 3.0) / 4997.0);
        let s = of(&Tensor::from_values([], &[f64::NAN, f64::NAN]));
        assert_eq!((s.count, s.nan_count, s.min, s.mean, s.std), (2, 2, None, None, None));
        let s = of(&Tensor::from_values([], &[f64::MAX, f64::MAX]));
        close(s.mean, f64::MAX);
        let s = of(&Tensor::from_values([], &[f64::MAX, f64::MIN]));
        assert_eq!((s.mean, s.std), (Some(0.0), None));
    }

    #[test]
    fn nothing_has_no_statistics() {
        let s = of(&Tensor::zeros(TensorType::new(DType::Float32, [3]), 0));
        assert_eq!(serde_json::to_string(&s).unwrap(), r#"{"count":0,"nan_count":0,"inf_count":0}"#);
        assert_eq!(of(&Tensor::zeros(TensorType::new(DType::UInt8, [0]), 3)).count, 0);
    }

    #[test]
    fn padded_places_do_not_count() {
        let t = Tensor::from_values::<f32>([3, 2], &[1., 2., 3., 4., 0., 0., 5., 6., 0., 0., 0., 0.]);
        let mask = Tensor::new(TensorType::new(DType::Bool, [3]), 2, vec![1u8, 1, 0, 1, 0, 0].into());
        let s = ColumnStats::of(&t, Some(&mask)).unwrap().summary();
        assert_eq!(s.count, 6);
        close(s.mean, 3.5);
        assert_eq!(s.min.unwrap().as_f64(), Some(1.0));
        let state = Tensor::from_values::<f32>([2], &[1., 2., 3., 4.]);
        assert!(ColumnStats::of(&state, Some(&mask)).is_err());
    }

    #[test]
    fn a_mask_is_the_same_as_leaving_out() {
        let values: Vec<f64> = (0..30_000).map(|i| f64::from(i % 977).sqrt()).collect();
        let keep: Vec<u8> = (0..30_000u32).map(|i| u8::from(i * 7919 % 5 > 1)).collect();
        let kept: Vec<f64> = values.iter().zip(&keep).filter(|(_, k)| **k != 0).map(|(v, _)| *v).collect();
        let mask = Tensor::new(TensorType::new(DType::Bool, []), keep.len(), keep.clone().into());
        let masked = ColumnStats::of(&Tensor::from_values([], &values), Some(&mask)).unwrap();
        assert_eq!(masked, ColumnStats::of(&Tensor::from_values([], &kept), None).unwrap());
    }

    #[test]
    fn merging_is_joining() {
        let values: Vec<f32> = (0..20_000u16).map(|i| f32::from(i % 313) - 100.0).collect();
        let t = Tensor::from_values([], &values);
        let whole = of(&t);
        for cut in [0, 1, 4096, 5000, 20_000] {
            let mut a = ColumnStats::of(&t.slice(0, cut), None).unwrap();
            a.merge(&ColumnStats::of(&t.slice(cut, 20_000 - cut), None).unwrap());
            let s = a.summary();
            assert_eq!((s.count, &s.min, &s.max), (whole.count, &whole.min, &whole.max));
            close(s.mean, whole.mean.unwrap());
            close(s.std, whole.std.unwrap());
        }
    }
}
