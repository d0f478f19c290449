//! How far values of one column differ.
//!
//! NaN equals NaN, and -0.0 equals 0.0. The relative difference of `a` and `b` is `|a - b| / max(|a|, |b|)`. A value that
//! is finite on one side alone differs without bound: it is counted, and has no largest difference.

use std::cmp::Ordering;

use half::f16;
use serde::{Serialize, Serializer};

use crate::error::Place;
use crate::tensor::{DType, Tensor};

/// The differences of one column.
#[derive(Debug, Clone, Serialize)]
pub struct ColumnDifference {
    /// Its name.
    pub column: String,
    /// Rows with a value that differs by more than the tolerance.
    pub rows: u64,
    /// Such values.
    pub values: u64,
    /// Values that are finite on one side alone (NaN or infinity on the other, or unlike infinities).
    pub not_finite: u64,
    /// The largest absolute difference of all values, the tolerance aside.
    pub largest_absolute: f64,
    /// The largest relative difference.
    pub largest_relative: f64,
    /// Where the first difference beyond the tolerance stands.
    pub first: Option<Example>,
}

/// One difference.
#[derive(Debug, Clone, Serialize)]
pub struct Example {
    /// Where it stands in the first data set.
    #[serde(serialize_with = "place")]
    pub a: Place,
    /// Where it stands in the second.
    #[serde(serialize_with = "place")]
    pub b: Place,
    /// Which element of the row, in C order.
    pub element: usize,
    /// The values, as text: JSON has no NaN.
    pub values: [String; 2],
}

fn place<S: Serializer>(place: &Place, out: S) -> Result<S::Ok, S::Error> {
    place.to_json().serialize(out)
}

/// Differences that grow.
#[derive(Debug, Clone, Default)]
pub(super) struct Difference {
    rows: u64,
    values: u64,
    not_finite: u64,
    any: bool,
    absolute: f64,
    relative: f64,
    first: Option<Example>,
}

impl Difference {
    /// Compares rows and marks in `changed` those that differ beyond the tolerance. `places` is asked for the places of
    /// the first of them alone.
    pub fn rows_of(
        &mut self,
        a: &Tensor,
        b: &Tensor,
        tolerance: f64,
        changed: &mut [bool],
        places: impl Fn(usize) -> (Place, Place),
    ) {
        if a.bytes() == b.bytes() || a.ty() != b.ty() {
            return;
        }
        for (row, changed) in changed.iter_mut().enumerate().take(a.rows()) {
            if a.row(row) == b.row(row) {
                continue;
            }
            let (one, other) = (a.slice(row, 1), b.slice(row, 1));
            let before = self.values;
            let first = self.row(&one, &other, tolerance);
            if self.values > before {
                self.rows += 1;
                *changed = true;
                if let (None, Some((element, values))) = (&self.first, first) {
                    let (a, b) = places(row);
                    self.first = Some(Example { a, b, element, values });
                }
            }
        }
    }

    fn row(&mut self, a: &Tensor, b: &Tensor, tolerance: f64) -> Option<(usize, [String; 2])> {
        macro_rules! compare {
            ($t:ty, $exact:expr) => {{
                let (a, b) = (a.values::<$t>(), b.values::<$t>());
                self.elements(a, b, tolerance, $exact)
            }};
        }
        macro_rules! integers {
            ($t:ty) => {
                compare!($t, |x: $t, y: $t| (x.abs_diff(y) as f64, x as f64, y as f64))
            };
        }
        macro_rules! floats {
            ($t:ty) => {
                compare!($t, |x: $t, y: $t| {
                    let (x, y) = (f64::from(x), f64::from(y));
                    // Equal infinities have no difference to compute, and NaN equals NaN.
                    let same = x.partial_cmp(&y) == Some(Ordering::Equal) || (x.is_nan() && y.is_nan());
                    (if same { 0.0 } else { (x - y).abs() }, x, y)
                })
            };
        }
        match a.ty().dtype {
            DType::Bool => {
                let (a, b) = (a.bytes(), b.bytes());
                self.elements(a, b, tolerance, |x: u8, y: u8| (f64::from(x.abs_diff(y)), f64::from(x), f64::from(y)))
            }
            DType::Int8 => compare!(i8, |x: i8, y: i8| (f64::from(x.abs_diff(y)), f64::from(x), f64::from(y))),
            DType::Int16 => compare!(i16, |x: i16, y: i16| (f64::from(x.abs_diff(y)), f64::from(x), f64::from(y))),
            DType::Int32 => compare!(i32, |x: i32, y: i32| (f64::from(x.abs_diff(y)), f64::from(x), f64::from(y))),
            DType::Int64 => integers!(i64),
            DType::UInt8 => compare!(u8, |x: u8, y: u8| (f64::from(x.abs_diff(y)), f64::from(x), f64::from(y))),
            DType::UInt16 => compare!(u16, |x: u16, y: u16| (f64::from(x.abs_diff(y)), f64::from(x), f64::from(y))),
            DType::UInt32 => compare!(u32, |x: u32, y: u32| (f64::from(x.abs_diff(y)), f64::from(x), f64::from(y))),
            DType::UInt64 => integers!(u64),
            DType::Float16 => floats!(f16),
            DType::Float32 => floats!(f32),
            DType::Float64 => floats!(f64),
        }
    }

    /// Compares the elements of a row; `exact` gives their distance and both as floats. Says where the first one is.
    fn elements<T: Copy + std::fmt::Display>(
        &mut self,
        a: &[T],
        b: &[T],
        tolerance: f64,
        exact: impl Fn(T, T) -> (f64, f64, f64),
    ) -> Option<(usize, [String; 2])> {
        let mut first = None;
        for (i, (&x, &y)) in a.iter().zip(b).enumerate() {
            let (distance, p, q) = exact(x, y);
            if distance == 0.0 {
                continue;
            }
            let relative = distance / p.abs().max(q.abs());
            let differs = if distance.is_finite() && p.is_finite() && q.is_finite() {
                self.any = true;
                self.absolute = self.absolute.max(distance);
                self.relative = self.relative.max(relative);
                distance > tolerance && relative > tolerance
            } else {
                // A distance beyond float64 of two finite values is one, too.
                self.not_finite += 1;
                true
            };
            if differs {
                self.values += 1;
                first.get_or_insert_with(|| (i, [x.to_string(), y.to_string()]));
            }
        }
        first
    }

    /// Adds what was found further on.
    pub fn merge(&mut self, next: Self) {
        self.rows += next.rows;
        self.values += next.values;
        self.not_finite += next.not_finite;
        self.any |= next.any;
        self.absolute = self.absolute.max(next.absolute);
        self.relative = self.relative.max(next.relative);
        self.first = self.first.take().or(next.first);
    }

    /// The column's differences, if there are any.
    pub fn finish(self, column: &str) -> Option<ColumnDifference> {
        (self.any || self.not_finite > 0).then(|| ColumnDifference {
            column: column.to_owned(),
            rows: self.rows,
            values: self.values,
            not_finite: self.not_finite,
            largest_absolute: self.absolute,
            largest_relative: self.relative,
            first: self.first,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(a: &[f32], b: &[f32], tolerance: f64) -> Difference {
        let mut out = Difference::default();
        let (a, b) = (Tensor::from_values([], a), Tensor::from_values([], b));
        let asked = std::cell::Cell::new(0);
        let places = |_| {
            asked.set(asked.get() + 1);
            (Place::default(), Place::default())
        };
        let mut changed = vec![false; a.rows()];
        out.rows_of(&a, &b, tolerance, &mut changed, places);
        assert_eq!(asked.get(), usize::from(out.rows > 0), "places are made once");
        assert_eq!(changed.iter().filter(|c| **c).count() as u64, out.rows);
        out
    }

    #[test]
    fn what_is_equal_and_what_is_not() {
        assert!(compared(&[f32::NAN, 0.0, 1.0], &[-f32::NAN, -0.0, 1.0], 0.0).finish("x").is_none());
        let found = compared(&[1.0, 2.0, f32::NAN, f32::INFINITY], &[1.5, 2.0, 0.0, f32::NEG_INFINITY], 0.0);
        assert_eq!((found.rows, found.values, found.not_finite), (3, 3, 2));
        assert_eq!((found.absolute, found.relative), (0.5, 1.0 / 3.0));
        assert_eq!(found.first.unwrap().values, ["1", "1.5"]);
        // Within the tolerance nothing differs, and yet the largest difference is told.
        let found = compared(&[1.0, 100.0], &[1.25, 100.5], 0.3).finish("x").unwrap();
        assert_eq!((found.values, found.largest_absolute), (0, 0.5));
    }

    #[test]
    fn wide_integers_are_compared_exactly() {
        let (a, b) = (Tensor::from_values([], &[i64::MAX]), Tensor::from_values([], &[i64::MAX - 1]));
        let mut found = Difference::default();
        found.rows_of(&a, &b, 0.0, &mut [false], |_| (Place::default(), Place::default()));
        assert_eq!((found.values, found.absolute), (1, 1.0));
    }
}
