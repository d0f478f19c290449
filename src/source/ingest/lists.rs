//! Taking list levels off an array.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::DataType;

use crate::error::{Error, Result};

/// One level of lists, all of one length: `values` are the items of all lists back to back.
pub(super) struct Level {
    pub(super) values: ArrayRef,
    pub(super) len: usize,
}

/// Why a level could not be taken off: at which list of the level, and what it is.
pub(super) enum Odd {
    Length { list: usize, found: usize, expected: usize },
    Null { list: usize },
    NoList,
}

/// Takes one level off. All lists must have `expected` items, or as many as the first when that is unknown.
pub(super) fn level(array: &dyn Array, expected: Option<usize>) -> Result<Level, Odd> {
    if let Some(nulls) = array.nulls().filter(|n| n.null_count() > 0) {
        let list = (0..nulls.len()).find(|&i| nulls.is_null(i)).unwrap_or(0);
        return Err(Odd::Null { list });
    }
    match array.data_type() {
        DataType::List(_) => {
            let lists = array.as_list::<i32>();
            variable(lists.offsets(), lists.values(), expected)
        }
        DataType::LargeList(_) => {
            let lists = array.as_list::<i64>();
            variable(lists.offsets(), lists.values(), expected)
        }
        DataType::FixedSizeList(..) => {
            let lists = array.as_fixed_size_list();
            let len = usize::try_from(lists.value_length()).unwrap_or(0);
            match expected {
                Some(expected) if expected != len && !lists.is_empty() => {
                    Err(Odd::Length { list: 0, found: len, expected })
                }
                // A sliced fixed-size list holds the slice of its values.
                _ => Ok(Level { values: Arc::clone(lists.values()), len }),
            }
        }
        _ => Err(Odd::NoList),
    }
}

fn variable<O: OffsetSizeTrait>(
    offsets: &OffsetBuffer<O>,
    values: &ArrayRef,
    expected: Option<usize>,
) -> Result<Level, Odd> {
    let (first, last) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
    let lists = offsets.len() - 1;
    let len = expected.or_else(|| (lists > 0).then(|| offsets[1].as_usize() - first)).unwrap_or(0);
    // One pass without a branch per list; the culprit is looked for only when there is one.
    let uniform = O::from_usize(len).is_some_and(|len| offsets.windows(2).filter(|w| w[1] - w[0] != len).count() == 0);
    if uniform {
        return Ok(Level { values: values.slice(first, last - first), len });
    }
    let odd = offsets.windows(2).map(|w| (w[1] - w[0]).as_usize()).enumerate().find(|(_, found)| *found != len);
    let (at, found) = odd.unwrap_or((0, 0));
    Err(Odd::Length { list: at, found, expected: len })
}

/// The shape of an array of one row.
pub(super) fn shape_of_row(row: &ArrayRef) -> Result<Vec<usize>> {
    let mut shape = Vec::new();
    let mut array = Arc::clone(row);
    while super::form::list_item(array.data_type()).is_some() {
        match level(array.as_ref(), None) {
            Ok(next) => {
                shape.push(next.len);
                array = next.values;
            }
            Err(Odd::Length { found, expected, .. }) => {
                return Err(Error::data(format!(
                    "found lists of {expected} and of {found} items in one row, expected a tensor"
                )));
            }
            Err(Odd::Null { .. } | Odd::NoList) => return Err(null_inside()),
        }
    }
    Ok(shape)
}

/// A null where only whole rows may be null.
pub(super) fn null_inside() -> Error {
    Error::data("found a null inside a tensor, expected values only (or the whole row null)")
}

/// `[2, 3]`.
pub(super) fn show(shape: &[usize]) -> String {
    format!("{shape:?}")
}
