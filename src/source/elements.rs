//! Array elements on their way in: NumPy's names for dtypes, byte order, and changes of dtype.
//!
//! What changes of dtype exist follows from what RLlib does with rows of different dtypes
//! (`ray/rllib/utils/spaces/space_utils.py`, `batch`); see [`convert`] for what is done and what is refused.

use half::f16;

use crate::error::{Error, Result};
use crate::tensor::DType;

/// The dtype behind NumPy's array protocol string (`<f4`, `>i8`, `|b1`, `f4`), and whether its bytes are big-endian.
///
/// `None` for everything that is no fixed-width number or boolean: text, objects, dates, records, complex numbers.
#[must_use]
pub fn parse_descr(descr: &str) -> Option<(DType, bool)> {
    let (big_endian, code) = match descr.as_bytes().first()? {
        b'<' | b'|' | b'=' => (false, &descr[1..]),
        b'>' | b'!' => (true, &descr[1..]),
        _ => (false, descr),
    };
    let dtype = match code {
        "b1" | "?" => DType::Bool,
        "i1" => DType::Int8,
        "i2" => DType::Int16,
        "i4" => DType::Int32,
        "i8" => DType::Int64,
        "u1" => DType::UInt8,
        "u2" => DType::UInt16,
        "u4" => DType::UInt32,
        "u8" => DType::UInt64,
        "f2" => DType::Float16,
        "f4" => DType::Float32,
        "f8" => DType::Float64,
        _ => return None,
    };
    Some((dtype, big_endian))
}

/// Bytes of an array of this shape, or `None` if no memory could hold it.
///
/// The product of the non-zero dimensions must be in range even when one dimension is zero, so that every product
/// of a part of the shape is safe afterwards.
#[must_use]
pub fn array_bytes(shape: &[usize], dtype: DType) -> Option<usize> {
    let room = isize::MAX.unsigned_abs() / 8;
    let filled = shape.iter().filter(|&&d| d != 0).try_fold(1usize, |n, &d| n.checked_mul(d).filter(|&n| n <= room))?;
    Some(if shape.contains(&0) { 0 } else { filled * dtype.size() })
}

/// Makes raw array bytes native: byte order swapped if `big_endian`, booleans 0 or 1.
pub fn make_native(data: &mut [u8], dtype: DType, big_endian: bool) {
    if dtype == DType::Bool {
        for b in data {
            *b = u8::from(*b != 0);
        }
    } else if big_endian != cfg!(target_endian = "big") && dtype.size() > 1 {
        for element in data.chunks_exact_mut(dtype.size()) {
            element.reverse();
        }
    }
}

#[derive(Clone, Copy)]
enum Value {
    Int(i128),
    Float(f64),
}

/// Appends the elements of `src` to `out` as another dtype, as NumPy's assignment `out[i] = src` does, if nothing
/// is lost but the digits of a float.
///
/// | from → to        | done                                   | refused                                   |
/// |------------------|----------------------------------------|-------------------------------------------|
/// | float → float    | rounded to nearest even, may become inf |                                          |
/// | number → integer | if the value is one of the target's    | NumPy would wrap around or cut off digits  |
/// | integer → float64 | rounded to nearest even               |                                           |
/// | integer → float16/32 | if exact                           | NumPy would round an id or a count         |
/// | bool ↔ number    | 0 and 1                                | any other number as a boolean              |
pub fn convert(src: &[u8], from: DType, big_endian: bool, to: DType, out: &mut Vec<u8>) -> Result<()> {
    if from == to {
        let start = out.len();
        out.extend_from_slice(src);
        make_native(&mut out[start..], to, big_endian);
        return Ok(());
    }
    for element in src.chunks_exact(from.size()) {
        let value = read(element, from, big_endian);
        if !write(value, to, out) {
            let value = match value {
                Value::Int(v) => v.to_string(),
                Value::Float(v) => v.to_string(),
            };
            return Err(Error::data(format!("the {from} value {value} is none of {to}, the dtype of the rows before")));
        }
    }
    Ok(())
}

fn read(element: &[u8], dtype: DType, big_endian: bool) -> Value {
    let mut bytes = [0u8; 8];
    let n = dtype.size().min(element.len());
    bytes[..n].copy_from_slice(&element[..n]);
    if big_endian {
        bytes[..n].reverse();
    }
    let bits = u64::from_le_bytes(bytes);
    let low = bits.to_le_bytes();
    match dtype {
        DType::Bool => Value::Int(i128::from(bits != 0)),
        DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64 => Value::Int(i128::from(bits)),
        DType::Int8 => Value::Int(i128::from(i8::from_le_bytes([low[0]]))),
        DType::Int16 => Value::Int(i128::from(i16::from_le_bytes([low[0], low[1]]))),
        DType::Int32 => Value::Int(i128::from(i32::from_le_bytes([low[0], low[1], low[2], low[3]]))),
        DType::Int64 => Value::Int(i128::from(i64::from_le_bytes(low))),
        DType::Float16 => Value::Float(f16::from_le_bytes([low[0], low[1]]).to_f64()),
        DType::Float32 => Value::Float(f64::from(f32::from_le_bytes([low[0], low[1], low[2], low[3]]))),
        DType::Float64 => Value::Float(f64::from_le_bytes(low)),
    }
}

/// Whether the value could be written.
fn write(value: Value, dtype: DType, out: &mut Vec<u8>) -> bool {
    #[expect(clippy::cast_possible_truncation, reason = "rounding is what float to float means here")]
    fn float(value: Value, dtype: DType, out: &mut Vec<u8>) -> bool {
        let wide = match value {
            Value::Float(v) => v,
            // One rounding, straight from the integer.
            Value::Int(v) => v as f64,
        };
        let back = match dtype {
            DType::Float16 => {
                let v = f16::from_f64(wide);
                out.extend_from_slice(&v.to_ne_bytes());
                v.to_f64()
            }
            DType::Float32 => {
                let v = wide as f32;
                out.extend_from_slice(&v.to_ne_bytes());
                f64::from(v)
            }
            _ => {
                out.extend_from_slice(&wide.to_ne_bytes());
                return true;
            }
        };
        match value {
            Value::Float(_) => true,
            Value::Int(v) => back.is_finite() && back as i128 == v,
        }
    }
    let int = match value {
        Value::Int(v) => v,
        Value::Float(_) if dtype.is_float() => return float(value, dtype, out),
        #[expect(clippy::cast_possible_truncation, reason = "checked against the bounds of all integers first")]
        Value::Float(v) if v.fract() == 0.0 && v.abs() < 2.0f64.powi(65) => v as i128,
        Value::Float(_) => return false,
    };
    macro_rules! fits {
        ($t:ty) => {
            <$t>::try_from(int).map(|v| out.extend_from_slice(&v.to_ne_bytes())).is_ok()
        };
    }
    match dtype {
        DType::Bool if int == 0 || int == 1 => {
            out.push(u8::from(int == 1));
            true
        }
        DType::Bool => false,
        DType::Int8 => fits!(i8),
        DType::Int16 => fits!(i16),
        DType::Int32 => fits!(i32),
        DType::Int64 => fits!(i64),
        DType::UInt8 => fits!(u8),
        DType::UInt16 => fits!(u16),
        DType::UInt32 => fits!(u32),
        DType::UInt64 => fits!(u64),
        DType::Float16 | DType::Float32 | DType::Float64 => float(value, dtype, out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(src: &[u8], from: DType, to: DType) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        convert(src, from, false, to, &mut out).map(|()| out)
    }

    #[test]
    fn descriptions() {
        assert_eq!(parse_descr("<f4"), Some((DType::Float32, false)));
        assert_eq!(parse_descr(">i8"), Some((DType::Int64, true)));
        assert_eq!(parse_descr("|b1"), Some((DType::Bool, false)));
        for other in ["", "<", "|O8", "<U5", "<M8[s]", "<c8", "|S3", "|V12", "é"] {
            assert_eq!(parse_descr(other), None, "{other}");
        }
    }

    #[test]
    fn sizes_never_overflow() {
        assert_eq!(array_bytes(&[2, 3], DType::Float32), Some(24));
        assert_eq!(array_bytes(&[], DType::Float64), Some(8));
        assert_eq!(array_bytes(&[0, 5], DType::Float64), Some(0));
        assert_eq!(array_bytes(&[usize::MAX, 2], DType::Int8), None);
        assert_eq!(array_bytes(&[usize::MAX, usize::MAX, 0], DType::Int8), None);
    }

    /// Against `np.array((a, b)).dtype`, NumPy 2.4.
    #[test]
    fn promotion_is_numpys() {
        use DType as D;
        for (a, b, expected) in [
            (D::Bool, D::Int64, D::Int64),
            (D::Bool, D::Float32, D::Float32),
            (D::UInt8, D::Bool, D::UInt8),
            (D::Int64, D::Float64, D::Float64),
            (D::Int64, D::Float32, D::Float64),
            (D::Int32, D::Float32, D::Float64),
            (D::Int16, D::Float32, D::Float32),
            (D::Int8, D::Float16, D::Float16),
            (D::Int16, D::UInt16, D::Int32),
            (D::UInt64, D::Int8, D::Float64),
            (D::Float32, D::Float64, D::Float64),
        ] {
            assert_eq!(a.numpy_result_type(b), expected, "{a} {b}");
            assert_eq!(b.numpy_result_type(a), expected, "{b} {a}");
        }
    }

    #[test]
    fn conversions_lose_float_digits_only() {
        assert_eq!(one(&0.1f64.to_le_bytes(), DType::Float64, DType::Float32).unwrap(), 0.1f32.to_ne_bytes());
        assert_eq!(one(&1e300f64.to_le_bytes(), DType::Float64, DType::Float32).unwrap(), f32::INFINITY.to_ne_bytes());
        assert_eq!(one(&7i64.to_le_bytes(), DType::Int64, DType::Int32).unwrap(), 7i32.to_ne_bytes());
        assert_eq!(one(&2.0f64.to_le_bytes(), DType::Float64, DType::Int32).unwrap(), 2i32.to_ne_bytes());
        assert_eq!(one(&[1], DType::Bool, DType::Int64).unwrap(), 1i64.to_ne_bytes());
        let big = (1i64 << 53) + 1;
        assert_eq!(
            one(&big.to_le_bytes(), DType::Int64, DType::Float64).unwrap(),
            9_007_199_254_740_992.0f64.to_ne_bytes()
        );
        for (src, from, to) in [
            (&(1i64 << 40).to_le_bytes()[..], DType::Int64, DType::Int32),
            (&2.5f64.to_le_bytes(), DType::Float64, DType::Int32),
            (&f64::NAN.to_le_bytes(), DType::Float64, DType::Int32),
            (&f64::INFINITY.to_le_bytes(), DType::Float64, DType::Int64),
            (&16_777_217i32.to_le_bytes(), DType::Int32, DType::Float32),
            (&100_000i32.to_le_bytes(), DType::Int32, DType::Float16),
            (&(-1i64).to_le_bytes(), DType::Int64, DType::UInt8),
            (&2i64.to_le_bytes(), DType::Int64, DType::Bool),
        ] {
            let e = one(src, from, to).unwrap_err();
            assert!(e.what().contains("is none of"), "{e}");
        }
        assert_eq!(
            one(&2.5f64.to_le_bytes(), DType::Float64, DType::Int32).unwrap_err().what(),
            "the float64 value 2.5 is none of int32, the dtype of the rows before"
        );
    }

    #[test]
    fn byte_order() {
        let mut out = Vec::new();
        convert(&1.5f32.to_be_bytes(), DType::Float32, true, DType::Float32, &mut out).unwrap();
        convert(&1.5f32.to_be_bytes(), DType::Float32, true, DType::Float64, &mut out).unwrap();
        assert_eq!(out, [&1.5f32.to_ne_bytes()[..], &1.5f64.to_ne_bytes()].concat());
    }
}
