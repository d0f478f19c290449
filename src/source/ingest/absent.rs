//! Which rows of a column hold no value, however that is written.
//!
//! ```text
//! null                            no value
//! {pos: null, pair: {0: null}}    no value: a struct all of whose leaves are null, as tables without nulls for structs have it
//! [null, null]                    no value: a list all of whose elements are null
//! {pos: null, mode: 3}            a value that lacks a part: for whoever reads it an error
//! []                              a value without elements
//! ```

use arrow::array::{Array, ArrayRef, AsArray, BooleanBufferBuilder, OffsetSizeTrait};
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;

/// The rows that hold no value (an unset bit), if there are any.
pub(crate) fn absent(array: &ArrayRef) -> Option<NullBuffer> {
    let own = array.logical_nulls();
    let inside = match array.data_type() {
        DataType::Struct(_) => array.as_struct_opt().and_then(|parts| {
            let columns = parts.columns().iter().map(absent);
            columns.reduce(|a, b| Some(NullBuffer::new(a?.inner() | b?.inner()))).flatten()
        }),
        DataType::List(_) => lists::<i32>(array),
        DataType::LargeList(_) => lists::<i64>(array),
        DataType::FixedSizeList(_, len) => array.as_fixed_size_list_opt().and_then(|lists| {
            let len = usize::try_from(*len).ok()?;
            all_null(lists.values(), (0..=lists.len()).map(|i| i * len))
        }),
        _ => None,
    };
    NullBuffer::union(own.as_ref(), inside.as_ref()).filter(|nulls| nulls.null_count() > 0)
}

fn lists<O: OffsetSizeTrait>(array: &ArrayRef) -> Option<NullBuffer> {
    let lists = array.as_list_opt::<O>()?;
    all_null(lists.values(), lists.offsets().iter().map(|offset| offset.as_usize()))
}

/// The lists between `offsets` that have elements, all of them null.
fn all_null(values: &ArrayRef, offsets: impl Iterator<Item = usize>) -> Option<NullBuffer> {
    // What recorders normally write: one look.
    if !values.is_nullable() && !values.data_type().is_nested() {
        return None;
    }
    let nulls = absent(values)?;
    let mut valid = BooleanBufferBuilder::new(0);
    let mut start = None;
    for end in offsets {
        if let Some(start) = start.replace(end) {
            valid.append(start == end || nulls.slice(start, end - start).null_count() < end - start);
        }
    }
    Some(NullBuffer::new(valid.finish()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{FixedSizeListArray, Float32Array, Int64Array, ListArray, StructArray};
    use arrow::datatypes::{Field, Float32Type};

    use super::*;

    fn rows(array: &ArrayRef) -> Vec<bool> {
        let nulls = absent(array);
        (0..array.len()).map(|i| nulls.as_ref().is_some_and(|n| n.is_null(i))).collect()
    }

    #[test]
    fn structs_of_nulls_at_any_depth() {
        let number = |values: [Option<i64>; 4]| Arc::new(Int64Array::from(values.to_vec())) as ArrayRef;
        let of = |names: [&str; 2], parts: [ArrayRef; 2], nulls: Option<NullBuffer>| -> ArrayRef {
            let fields = names.iter().zip(&parts).map(|(n, a)| Field::new(*n, a.data_type().clone(), true));
            Arc::new(StructArray::new(fields.collect(), parts.to_vec(), nulls))
        };
        let (a, b) = (number([Some(1), None, None, Some(4)]), number([Some(1), None, Some(3), Some(4)]));
        let inner = of(["0", "1"], [a, b], None);
        assert_eq!(rows(&inner), [false, true, false, false]);
        let c = number([None, None, None, None]);
        let outer = of(["pair", "pos"], [inner, c], Some(vec![true, true, true, false].into()));
        assert_eq!(rows(&outer), [false, true, false, true]);
        assert_eq!(rows(&outer.slice(1, 2)), [true, false]);
    }

    #[test]
    fn lists_of_nulls() {
        let list = ListArray::from_iter_primitive::<Float32Type, _, _>([
            Some(vec![Some(1.0), None]),
            Some(vec![None, None]),
            Some(vec![]),
            None,
        ]);
        let list: ArrayRef = Arc::new(list);
        assert_eq!(rows(&list), [false, true, false, true]);
        assert_eq!(rows(&list.slice(1, 3)), [true, false, true]);
        let values = Float32Array::from(vec![None, None, Some(1.0), None, None, None]);
        let item = Arc::new(Field::new("item", DataType::Float32, true));
        let fixed: ArrayRef = Arc::new(FixedSizeListArray::new(item, 2, Arc::new(values), None));
        assert_eq!(rows(&fixed), [true, false, true]);
        assert_eq!(rows(&fixed.slice(1, 2)), [false, true]);
        let full: ArrayRef = Arc::new(Float32Array::from(vec![1.0; 2]));
        assert_eq!(absent(&full), None);
    }
}
