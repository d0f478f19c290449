//! Columns that are no tensors: ids, flags and counters.

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, StringViewArray, StringViewBuilder,
};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};

use crate::error::{Error, Result};

/// Ids, as numbers or as text.
#[derive(Debug, Clone, PartialEq)]
pub enum Ids {
    /// Integers of any width up to `int64` and `uint32`.
    Int(Int64Array),
    /// Text; also `uint64` in decimal, and fixed-size binary (UUIDs) in hexadecimal. As views: an episode's rows share
    /// its id where the file has it once.
    Str(StringViewArray),
}

impl Ids {
    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Int(ids) => ids.len(),
            Self::Str(ids) => ids.len(),
        }
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What [`ids`] makes of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdKind {
    /// [`Ids::Int`].
    Int,
    /// [`Ids::Str`].
    Str,
}

/// What ids of an Arrow type become: `None` for a type that holds no ids.
#[must_use]
pub fn id_kind(ty: &DataType) -> Option<IdKind> {
    use DataType as D;
    match ty {
        D::Int8 | D::Int16 | D::Int32 | D::Int64 | D::UInt8 | D::UInt16 | D::UInt32 => Some(IdKind::Int),
        D::UInt64 | D::Utf8 | D::LargeUtf8 | D::Utf8View | D::Binary | D::LargeBinary | D::BinaryView => {
            Some(IdKind::Str)
        }
        D::FixedSizeBinary(_) => Some(IdKind::Str),
        D::Dictionary(_, value) => id_kind(value),
        _ => None,
    }
}

/// The ids of a column. `first_row` is the row of the file that the array starts at.
///
/// # Errors
/// If the type holds no ids (floats among them: they do not compare well), or an id is null.
pub fn ids(array: &ArrayRef, first_row: u64) -> Result<Ids> {
    let ty = array.data_type();
    if ty == &DataType::Null && !array.is_empty() {
        return Err(Error::data("found null, expected an id").row(first_row));
    }
    let kind = id_kind(ty).or_else(|| (ty == &DataType::Null).then_some(IdKind::Str));
    let kind = kind.ok_or_else(|| {
        let e = Error::data(format!("found {ty}, expected ids: integers or text"));
        if ty.is_floating() { e.hint("cast the ids to int64 or text before") } else { e }
    })?;
    if let Some(nulls) = array.logical_nulls().filter(|n| n.null_count() > 0) {
        let row = (0..nulls.len()).find(|&i| nulls.is_null(i)).unwrap_or(0);
        return Err(Error::data("found null, expected an id").row(first_row + row as u64));
    }
    if let Some(cells) = array.as_fixed_size_binary_opt() {
        return Ok(Ids::Str(hex(cells.iter().flatten(), cells.len())));
    }
    if let DataType::Dictionary(_, value) = ty
        && matches!(value.as_ref(), DataType::FixedSizeBinary(_))
    {
        let plain = cast(array, value).map_err(|e| Error::data(format!("found unreadable ids: {e}")))?;
        return ids(&plain, first_row);
    }
    let to = match kind {
        IdKind::Int => DataType::Int64,
        IdKind::Str => DataType::Utf8View,
    };
    let plain = cast(array, &to).map_err(|e| Error::data(format!("found unreadable ids: {e}")))?;
    // A cast to text leaves null what is not UTF-8.
    if let Some(nulls) = plain.logical_nulls().filter(|n| n.null_count() > 0) {
        let row = (0..nulls.len()).find(|&i| nulls.is_null(i)).unwrap_or(0);
        return Err(Error::data("found bytes that are not UTF-8, expected an id").row(first_row + row as u64));
    }
    Ok(match kind {
        IdKind::Int => Ids::Int(plain.as_primitive::<Int64Type>().clone()),
        IdKind::Str => Ids::Str(plain.as_string_view().clone()),
    })
}

/// [`ids`] of a column that may be unset: `None` when every row is null.
///
/// # Errors
/// As [`ids`]; also if some rows are null and others are not.
pub fn optional_ids(array: &ArrayRef, first_row: u64) -> Result<Option<Ids>> {
    if array.logical_null_count() == array.len() { Ok(None) } else { ids(array, first_row).map(Some) }
}

fn hex<'a>(cells: impl Iterator<Item = &'a [u8]>, n: usize) -> StringViewArray {
    use std::fmt::Write;
    let mut out = StringViewBuilder::with_capacity(n).with_deduplicate_strings();
    let mut text = String::new();
    for cell in cells {
        text.clear();
        for byte in cell {
            let _ = write!(text, "{byte:02x}");
        }
        out.append_value(&text);
    }
    out.finish()
}

/// The type behind a dictionary, if there is one.
fn plain(ty: &DataType) -> &DataType {
    if let DataType::Dictionary(_, value) = ty { value } else { ty }
}

/// Whether [`flags`] reads a type.
#[must_use]
pub fn is_flag(ty: &DataType) -> bool {
    let ty = plain(ty);
    matches!(ty, DataType::Boolean | DataType::Null) || ty.is_integer() || ty.is_floating()
}

/// Whether [`ints`] reads a type.
#[must_use]
pub fn is_int(ty: &DataType) -> bool {
    let ty = plain(ty);
    matches!(ty, DataType::Null) || ty.is_integer() || ty.is_floating()
}

/// A column of booleans, which some tools write as 0 and 1. Nulls stay null. `first_row` is the row of the file that
/// the array starts at.
///
/// # Errors
/// If the type is another one, or a number is neither 0 nor 1.
pub fn flags(array: &ArrayRef, first_row: u64) -> Result<BooleanArray> {
    let ty = array.data_type();
    if let Some(flags) = array.as_boolean_opt() {
        return Ok(flags.clone());
    }
    if !is_flag(ty) {
        return Err(Error::data(format!("found {ty}, expected booleans, or 0 and 1")));
    }
    let to = if plain(ty) == &DataType::Boolean { DataType::Boolean } else { DataType::Float64 };
    let numbers = cast(array, &to).map_err(|e| Error::data(format!("found unreadable flags: {e}")))?;
    if let Some(flags) = numbers.as_boolean_opt() {
        return Ok(flags.clone());
    }
    let numbers: &Float64Array = numbers.as_primitive::<Float64Type>();
    #[expect(clippy::float_cmp, reason = "exactly 0 and 1 are flags")]
    let odd = numbers.iter().position(|v| v.is_some_and(|v| v != 0.0 && v != 1.0));
    if let Some(row) = odd {
        let e = Error::data(format!("found {}, expected a boolean, or 0 or 1", numbers.value(row)));
        return Err(e.row(first_row + row as u64));
    }
    Ok(numbers.iter().map(|v| v.map(|v| v != 0.0)).collect())
}

/// A column of integers. Floats that hold whole numbers are read too: pandas makes them of integers with gaps. Nulls
/// stay null. `first_row` is the row of the file that the array starts at.
///
/// # Errors
/// If the type is another one, or a number is not whole or beyond `int64`.
pub fn ints(array: &ArrayRef, first_row: u64) -> Result<Int64Array> {
    let ty = array.data_type();
    if !is_int(ty) {
        return Err(Error::data(format!("found {ty}, expected integers")));
    }
    let before = array.logical_nulls();
    // Values that do not fit become null in the cast; NaN, pandas' gap, is one of them and a null indeed.
    let out = cast(array, &DataType::Int64).map_err(|e| Error::data(format!("found unreadable integers: {e}")))?;
    let out = out.as_primitive::<Int64Type>().clone();
    let wide = plain(ty).is_floating().then(|| cast(array, &DataType::Float64));
    let wide = wide.transpose().map_err(|e| Error::data(format!("found unreadable integers: {e}")))?;
    let odd = match &wide {
        Some(wide) => {
            let wide = wide.as_primitive::<Float64Type>();
            (0..wide.len()).find(|&i| {
                let v = wide.value(i);
                !wide.is_null(i) && !v.is_nan() && (out.is_null(i) || v.fract() != 0.0)
            })
        }
        None if out.null_count() == before.as_ref().map_or(0, NullBuffer::null_count) => None,
        None => (0..out.len()).find(|&i| out.is_null(i) && before.as_ref().is_none_or(|n| n.is_valid(i))),
    };
    match odd {
        Some(row) => Err(Error::data("found a number that is not whole or beyond int64, expected an integer")
            .row(first_row + row as u64)),
        None => Ok(out),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        DictionaryArray, FixedSizeBinaryArray, Float32Array, Int32Array, LargeStringArray, NullArray, StringArray,
        UInt16Array, UInt64Array,
    };
    use arrow::datatypes::Int32Type;

    use super::*;

    #[test]
    fn ids_of_all_types() {
        let dictionary: DictionaryArray<Int32Type> = vec!["a", "b", "a"].into_iter().collect();
        let text: [ArrayRef; 4] = [
            Arc::new(StringArray::from(vec!["a", "b", "a"])),
            Arc::new(LargeStringArray::from(vec!["a", "b", "a"])),
            Arc::new(StringViewArray::from(vec!["a", "b", "a"])),
            Arc::new(dictionary),
        ];
        for array in text {
            assert_eq!(ids(&array.slice(1, 2), 0).unwrap(), Ids::Str(StringViewArray::from(vec!["b", "a"])));
        }
        let small: ArrayRef = Arc::new(UInt16Array::from(vec![7, 8]));
        assert_eq!(ids(&small, 0).unwrap(), Ids::Int(Int64Array::from(vec![7, 8])));
        let large: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX]));
        assert_eq!(ids(&large, 0).unwrap(), Ids::Str(StringViewArray::from(vec!["18446744073709551615"])));
        let uuid: ArrayRef = Arc::new(FixedSizeBinaryArray::try_from_iter([[0xab_u8; 16], [1; 16]].iter()).unwrap());
        assert_eq!(ids(&uuid.slice(1, 1), 0).unwrap(), Ids::Str(StringViewArray::from(vec!["01".repeat(16)])));
    }

    #[test]
    fn ids_that_are_none() {
        let array: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None]));
        assert_eq!(ids(&array, 10).unwrap_err().place().row, Some(11));
        assert!(optional_ids(&array, 10).is_err());
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![1.0]));
        assert!(ids(&floats, 0).unwrap_err().what().contains("found Float64, expected ids"));
        let nothing: ArrayRef = Arc::new(NullArray::new(2));
        assert_eq!(optional_ids(&nothing, 0).unwrap(), None);
        assert_eq!(ids(&nothing, 5).unwrap_err().place().row, Some(5));
    }

    #[test]
    fn flags_and_counters_as_tools_write_them() {
        let expected = BooleanArray::from(vec![Some(true), None, Some(false)]);
        let arrays: [ArrayRef; 3] = [
            Arc::new(expected.clone()),
            Arc::new(Int64Array::from(vec![Some(1), None, Some(0)])),
            Arc::new(Float32Array::from(vec![Some(1.), None, Some(0.)])),
        ];
        for array in arrays {
            assert_eq!(flags(&array, 0).unwrap(), expected);
        }
        let odd: ArrayRef = Arc::new(Int32Array::from(vec![0, 2]));
        assert_eq!(flags(&odd, 10).unwrap_err().place().row, Some(11));
        let text: ArrayRef = Arc::new(StringArray::from(vec!["true"]));
        assert!(flags(&text, 0).is_err() && ints(&text, 0).is_err());

        let whole: ArrayRef = Arc::new(Float64Array::from(vec![Some(3.0), None, Some(f64::NAN)]));
        assert_eq!(ints(&whole, 0).unwrap(), Int64Array::from(vec![Some(3), None, None]));
        let half: ArrayRef = Arc::new(Float64Array::from(vec![3.0, 3.5]));
        assert_eq!(ints(&half, 10).unwrap_err().place().row, Some(11));
        let beyond: ArrayRef = Arc::new(UInt64Array::from(vec![1, u64::MAX]));
        assert_eq!(ints(&beyond, 0).unwrap_err().place().row, Some(1));
    }
}
