//! Means and standard deviations from exact sums.
//!
//! A floating-point sum depends on the order of its terms. These sums do not: a value is an integer times a power of
//! two, so sums of values and of squares are kept as whole numbers of a few hundred bits and rounded once, at the end.
//! Whoever adds what, on which thread, in which order: the bits are the same.
//!
//! ```text
//! float32 x = ± m * 2^(s - 149)        m < 2^24, 0 <= s < 254
//!
//! digit       10 ...  k+1      k  ...  0       32 bits each, in 64-bit words: carries wait until 2^28 values
//! sum of x   |..|...|  ± m << s     |..|..|    s = 32 k + r
//! sum of x²  twice as long
//!
//! mean = S / n        std = sqrt((n Q - S²) / (n (n - ddof)))        S = Σx, Q = Σx²; the difference is exact
//! ```
//!
//! After U. Kulisch, "Computer Arithmetic and Validity", 2008 (the long accumulator).

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "digits are cut out of wider numbers"
)]

use half::f16;

use crate::error::{Error, Result};
use crate::tensor::{DType, Tensor};

/// Values that may be added between two carries. Each adds less than 2^33 to a digit.
const UNTIL_CARRY: usize = 1 << 28;
/// Elements whose sums are worked on together, so that they stay in the cache.
const TOGETHER: usize = 16;

/// Where a dtype's digits start, and how many hold 2^63 values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scale {
    /// The exponent of the last place of a sum.
    lowest: i32,
    sum: usize,
    square: usize,
}

impl Scale {
    const fn of(dtype: DType) -> Self {
        match dtype {
            DType::Float64 => Self { lowest: -1074, sum: 68, square: 135 },
            DType::Float16 | DType::Float32 => Self { lowest: -149, sum: 11, square: 21 },
            _ => Self { lowest: 0, sum: 4, square: 6 },
        }
    }
}

/// Sums over the rows of a column, for each element of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct ExactMoments {
    dtype: DType,
    elements: usize,
    counts: Vec<u64>,
    sums: Vec<i64>,
    squares: Vec<i64>,
    uncarried: usize,
}

/// What exact sums say of one element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moments {
    /// Finite values.
    pub count: u64,
    /// Their mean; 0 when there is none.
    pub mean: f64,
    /// Their standard deviation; 0 when there are not more than `ddof`.
    pub std: f64,
}

/// A value as an integer times a power of two.
struct Parts {
    negative: bool,
    mantissa: u64,
    shift: usize,
}

trait Exact: Copy {
    /// `None` for NaN and infinities.
    fn parts(self) -> Option<Parts>;
}

impl Exact for f64 {
    fn parts(self) -> Option<Parts> {
        let bits = self.to_bits();
        let (exponent, fraction) = ((bits >> 52) & 0x7ff, bits & ((1 << 52) - 1));
        let (mantissa, shift) = if exponent == 0 { (fraction, 0) } else { (fraction | (1 << 52), exponent - 1) };
        (exponent != 0x7ff).then_some(Parts { negative: bits >> 63 == 1, mantissa, shift: shift as usize })
    }
}

impl Exact for f32 {
    fn parts(self) -> Option<Parts> {
        let bits = self.to_bits();
        let (exponent, fraction) = ((bits >> 23) & 0xff, bits & ((1 << 23) - 1));
        let (mantissa, shift) = if exponent == 0 { (fraction, 0) } else { (fraction | (1 << 23), exponent - 1) };
        (exponent != 0xff).then_some(Parts {
            negative: bits >> 31 == 1,
            mantissa: u64::from(mantissa),
            shift: shift as usize,
        })
    }
}

impl Exact for f16 {
    fn parts(self) -> Option<Parts> {
        self.to_f32().parts()
    }
}

macro_rules! wide_integers {
    ($($t:ty),*) => { $(impl Exact for $t {
        #[allow(unused_comparisons, clippy::allow_attributes, reason = "one body for signed and unsigned")]
        fn parts(self) -> Option<Parts> {
            Some(Parts { negative: self < 0, mantissa: u64::from(self.abs_diff(0)), shift: 0 })
        }
    })* };
}
wide_integers! { i32, u32, i64, u64 }

/// Adds `± value << shift` to a number.
fn add_shifted(digits: &mut [i64], negative: bool, value: u64, shift: usize) {
    let mut rest = u128::from(value) << (shift % 32);
    let mut place = shift / 32;
    while rest != 0 {
        let digit = i64::from(rest as u32);
        digits[place] += if negative { -digit } else { digit };
        rest >>= 32;
        place += 1;
    }
}

/// Brings digits back to 32 bits; the last one keeps the sign.
fn carry(digits: &mut [i64]) {
    for place in 1..digits.len() {
        digits[place] += digits[place - 1] >> 32;
        digits[place - 1] &= 0xffff_ffff;
    }
}

impl ExactMoments {
    /// No values yet of a column whose rows have so many elements.
    #[must_use]
    pub fn new(dtype: DType, elements: usize) -> Self {
        let scale = Scale::of(dtype);
        Self {
            dtype,
            elements,
            counts: vec![0; elements],
            sums: vec![0; elements * scale.sum],
            squares: vec![0; elements * scale.square],
            uncarried: 0,
        }
    }

    /// Adds rows.
    ///
    /// # Errors
    /// If they are of another type, or booleans.
    pub fn add(&mut self, rows: &Tensor) -> Result<()> {
        if rows.ty().dtype != self.dtype || rows.ty().row_elements() != self.elements {
            return Err(Error::internal(format!("{rows:?} for sums of {} {}", self.elements, self.dtype)));
        }
        let mut start = 0;
        while start < rows.rows() {
            let len = (rows.rows() - start).min(UNTIL_CARRY - self.uncarried);
            let part = rows.slice(start, len);
            match self.dtype {
                DType::Bool => return Err(Error::internal("booleans have no mean")),
                DType::Int8 => self.add_small(part.values::<i8>()),
                DType::UInt8 => self.add_small(part.values::<u8>()),
                DType::Int16 => self.add_small(part.values::<i16>()),
                DType::UInt16 => self.add_small(part.values::<u16>()),
                DType::Int32 => self.add_values(part.values::<i32>()),
                DType::UInt32 => self.add_values(part.values::<u32>()),
                DType::Int64 => self.add_values(part.values::<i64>()),
                DType::UInt64 => self.add_values(part.values::<u64>()),
                DType::Float16 => self.add_values(part.values::<f16>()),
                DType::Float32 => self.add_values(part.values::<f32>()),
                DType::Float64 => self.add_values(part.values::<f64>()),
            }
            self.uncarried += len;
            if self.uncarried == UNTIL_CARRY {
                self.carry();
            }
            start += len;
        }
        Ok(())
    }

    fn add_values<T: Exact>(&mut self, values: &[T]) {
        let scale = Scale::of(self.dtype);
        for first in (0..self.elements).step_by(TOGETHER) {
            let last = (first + TOGETHER).min(self.elements);
            for row in values.chunks_exact(self.elements) {
                for (element, value) in (first..last).zip(&row[first..last]) {
                    let Some(Parts { negative, mantissa, shift }) = value.parts() else { continue };
                    self.counts[element] += 1;
                    add_shifted(&mut self.sums[element * scale.sum..][..scale.sum], negative, mantissa, shift);
                    let square = u128::from(mantissa) * u128::from(mantissa);
                    let own = &mut self.squares[element * scale.square..][..scale.square];
                    add_shifted(own, false, square as u64, 2 * shift);
                    add_shifted(own, false, (square >> 64) as u64, 2 * shift + 64);
                }
            }
        }
    }

    /// Integers of up to 16 bits: 2^28 of them, squared, fit a machine word.
    fn add_small<T: Copy + Into<i32>>(&mut self, values: &[T]) {
        let (mut sums, mut squares) = (vec![0i64; self.elements], vec![0u64; self.elements]);
        let mut rows = 0;
        if self.elements > 0 {
            for row in values.chunks_exact(self.elements) {
                for ((sum, square), &value) in sums.iter_mut().zip(&mut squares).zip(row) {
                    let value = i64::from(value.into());
                    *sum += value;
                    *square += (value * value).unsigned_abs();
                }
                rows += 1;
            }
        }
        let scale = Scale::of(self.dtype);
        for (element, (sum, square)) in sums.into_iter().zip(squares).enumerate() {
            self.counts[element] += rows;
            add_shifted(&mut self.sums[element * scale.sum..][..scale.sum], sum < 0, sum.unsigned_abs(), 0);
            add_shifted(&mut self.squares[element * scale.square..][..scale.square], false, square, 0);
        }
    }

    fn carry(&mut self) {
        let scale = Scale::of(self.dtype);
        self.sums.chunks_exact_mut(scale.sum).for_each(carry);
        self.squares.chunks_exact_mut(scale.square).for_each(carry);
        self.uncarried = 0;
    }

    /// Adds what another one has summed.
    ///
    /// # Errors
    /// If it sums another column.
    pub fn merge(&mut self, mut other: Self) -> Result<()> {
        if self.dtype != other.dtype || self.elements != other.elements {
            return Err(Error::internal("sums of two columns"));
        }
        self.carry();
        other.carry();
        self.counts.iter_mut().zip(other.counts).for_each(|(a, b)| *a += b);
        self.sums.iter_mut().zip(other.sums).for_each(|(a, b)| *a += b);
        self.squares.iter_mut().zip(other.squares).for_each(|(a, b)| *a += b);
        self.carry();
        Ok(())
    }

    /// Mean and standard deviation of each element; `ddof` is taken from the count as in NumPy's `std`.
    #[must_use]
    pub fn moments(&self, ddof: u64) -> Vec<Moments> {
        let mut own = self.clone();
        own.carry();
        let scale = Scale::of(self.dtype);
        (0..self.elements)
            .map(|element| {
                let count = own.counts[element];
                if count == 0 {
                    return Moments { count, mean: 0.0, std: 0.0 };
                }
                let (negative, sum) = magnitude(&own.sums[element * scale.sum..][..scale.sum]);
                let (_, squares) = magnitude(&own.squares[element * scale.square..][..scale.square]);
                let (m, exponent) = leading(&sum);
                let mean = times_power_of_two(m / count as f64, exponent + scale.lowest);
                let std = if count > ddof {
                    let scatter =
                        difference(&product(&[count as u32, (count >> 32) as u32], &squares), &product(&sum, &sum));
                    let (mut m, mut exponent) = leading(&scatter);
                    exponent += 2 * scale.lowest;
                    if exponent % 2 != 0 {
                        m *= 2.0;
                        exponent -= 1;
                    }
                    times_power_of_two((m / count as f64 / (count - ddof) as f64).sqrt(), exponent / 2)
                } else {
                    0.0
                };
                Moments { count, mean: if negative { -mean } else { mean }, std }
            })
            .collect()
    }
}

/// Sign and digits, least first, of a carried number.
fn magnitude(digits: &[i64]) -> (bool, Vec<u32>) {
    let negative = digits.last().is_some_and(|d| *d < 0);
    let mut own = digits.to_vec();
    if negative {
        for digit in &mut own {
            *digit = -*digit;
        }
        carry(&mut own);
    }
    (negative, own.into_iter().map(|d| d as u32).collect())
}

fn product(a: &[u32], b: &[u32]) -> Vec<u32> {
    let mut out = vec![0u32; a.len() + b.len()];
    for (i, &x) in a.iter().enumerate().filter(|(_, x)| **x != 0) {
        let mut carried = 0u64;
        for (slot, &y) in out[i..].iter_mut().zip(b.iter().chain(std::iter::once(&0))) {
            let sum = u64::from(*slot) + u64::from(x) * u64::from(y) + carried;
            *slot = sum as u32;
            carried = sum >> 32;
        }
    }
    out
}

/// `a - b`, which is not negative.
fn difference(a: &[u32], b: &[u32]) -> Vec<u32> {
    let digits = a.len().max(b.len());
    let at = |v: &[u32], i: usize| i64::from(v.get(i).copied().unwrap_or(0));
    let mut out: Vec<i64> = (0..digits).map(|i| at(a, i) - at(b, i)).collect();
    carry(&mut out);
    out.into_iter().map(|d| d as u32).collect()
}

/// A whole number as `m * 2^e`, `m` rounded to nearest even.
fn leading(digits: &[u32]) -> (f64, i32) {
    let Some(top) = digits.iter().rposition(|d| *d != 0) else { return (0.0, 0) };
    let at = |i: Option<usize>| u128::from(i.map_or(0, |i| digits[i]));
    let window = (at(Some(top)) << 64) | (at(top.checked_sub(1)) << 32) | at(top.checked_sub(2));
    let drop = 64 - window.leading_zeros(); // 1 to 32 bits
    let below = digits[..top.saturating_sub(2)].iter().any(|d| *d != 0) || window & ((1 << drop) - 1) != 0;
    let bits = (window >> drop) as u64 | u64::from(below);
    (bits as f64, 32 * (top as i32 - 2) + drop as i32)
}

fn times_power_of_two(mut x: f64, mut exponent: i32) -> f64 {
    let power = |e: i32| f64::from_bits(u64::from((1023 + e).unsigned_abs()) << 52);
    while exponent.abs() > 1000 {
        x *= power(1000 * exponent.signum());
        exponent -= 1000 * exponent.signum();
    }
    x * power(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tensor: &Tensor, ddof: u64) -> Moments {
        let mut sums = ExactMoments::new(tensor.ty().dtype, tensor.ty().row_elements());
        sums.add(tensor).unwrap();
        sums.moments(ddof)[0]
    }

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() <= 2e-15 * b.abs(), "{a} against {b}");
    }

    #[test]
    fn a_small_spread_about_a_large_mean_survives_float32() {
        let m = of(&Tensor::from_values::<f32>([], &[10_000., 10_001., 10_002.]), 0);
        assert_eq!((m.count, m.mean), (3, 10_001.));
        close(m.std, (2.0f64 / 3.0).sqrt());
        close(of(&Tensor::from_values::<f32>([], &[10_000., 10_001., 10_002.]), 1).std, 1.);
    }

    /// 1e16 + 1 is no float64, and one after the other the ones are lost.
    #[test]
    fn nothing_is_lost() {
        let values = [1e16, 1., -1e16, 1., 1e300, -1e300, 5e-324];
        let m = of(&Tensor::from_values::<f64>([], &values), 0);
        close(m.mean, 2. / 7.);
        let m = of(&Tensor::from_values::<f64>([], &[f64::MAX, f64::MAX, f64::MAX]), 0);
        assert_eq!((m.mean, m.std), (f64::MAX, 0.));
        let m = of(&Tensor::from_values::<f64>([], &[f64::MAX, -f64::MAX]), 0);
        assert_eq!((m.mean, m.std), (0., f64::MAX));
        let m = of(&Tensor::from_values::<f64>([], &[5e-324, 5e-324]), 0);
        assert_eq!((m.mean, m.std), (5e-324, 0.));
        let m = of(&Tensor::from_values::<f32>([], &[1e-45, 1e-45, f32::MAX, -f32::MAX]), 0);
        close(m.mean, f64::from(1e-45f32) / 2.);
        let m = of(&Tensor::from_values::<u64>([], &[u64::MAX, u64::MAX - 2]), 0);
        assert_eq!((m.mean, m.std), (u64::MAX as f64, 1.));
        let m = of(&Tensor::from_values::<i64>([], &[i64::MIN, i64::MIN]), 0);
        assert_eq!((m.mean, m.std), (i64::MIN as f64, 0.));
    }

    #[test]
    fn what_is_not_finite_is_left_out() {
        let m = of(&Tensor::from_values::<f32>([], &[f32::NAN, 1., f32::INFINITY, 3., f32::NEG_INFINITY]), 0);
        assert_eq!(m, Moments { count: 2, mean: 2., std: 1. });
        assert_eq!(of(&Tensor::from_values::<f32>([], &[f32::NAN]), 0), Moments { count: 0, mean: 0., std: 0. });
        assert_eq!(of(&Tensor::from_values::<f32>([], &[4.]), 1), Moments { count: 1, mean: 4., std: 0. });
    }

    #[test]
    fn every_dtype_gives_the_same_numbers() {
        let values: Vec<u8> = (0..999u32).map(|i| (i * i % 101) as u8).collect();
        let n = values.len() as f64;
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let std = (values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n).sqrt();
        for dtype in DType::ALL.into_iter().filter(|d| *d != DType::Bool) {
            let m = of(&Tensor::from_values([], &values).cast(dtype).unwrap(), 0);
            assert_eq!(m.mean.to_bits(), mean.to_bits(), "{dtype}");
            assert!((m.std - std).abs() < 1e-12, "{dtype}");
        }
        let m = of(&Tensor::from_values::<i16>([], &[-3, -4, 1]), 0);
        close(m.mean, -2.);
    }

    /// Values over many magnitudes, in rows of 20 elements: any cut and any order give the same bits.
    #[test]
    fn order_and_cuts_do_not_matter() {
        let value = |i: u32| {
            f64::from(i % 977)
                * 2f64.powi(i32::try_from(i % 300).unwrap() - 150)
                * f64::from(i.is_multiple_of(3)).mul_add(-2., 1.)
        };
        let values: Vec<f64> = (0..4000).map(value).collect();
        let all = Tensor::from_values([20], &values);
        let mut whole = ExactMoments::new(DType::Float64, 20);
        whole.add(&all).unwrap();
        for cut in [1, 7, 100] {
            let mut parts: Vec<ExactMoments> = Vec::new();
            for start in (0..all.rows()).step_by(cut) {
                let mut part = ExactMoments::new(DType::Float64, 20);
                part.add(&all.slice(start, cut.min(all.rows() - start))).unwrap();
                parts.push(part);
            }
            let mut joined = parts.pop().unwrap();
            parts.into_iter().rev().for_each(|p| joined.merge(p).unwrap());
            let bits = |m: Vec<Moments>| m.iter().map(|m| (m.mean.to_bits(), m.std.to_bits())).collect::<Vec<_>>();
            assert_eq!(bits(joined.moments(0)), bits(whole.moments(0)), "cut {cut}");
        }
    }

    #[test]
    fn rows_without_elements_have_no_moments() {
        let mut sums = ExactMoments::new(DType::Float32, 0);
        sums.add(&Tensor::zeros(crate::tensor::TensorType::new(DType::Float32, [0]), 3)).unwrap();
        assert!(sums.moments(0).is_empty());
    }
}
