//! Reading the rows of each form; none of the rows is null here.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringViewArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type};

use super::lists::{Level, Odd, level, null_inside, shape_of_row, show};
use crate::error::{Error, Result};
use crate::source::packed::{Unpacker, looks_packed};
use crate::tensor::{DType, Tensor, TensorBuilder, TensorType};

/// What to do about rows of several shapes; who knows of agents says more.
pub(crate) const ONE_SHAPE: &str = "rows of one column need one shape: pad them, or record them as separate columns";

/// Which rows of the file an array holds, for messages.
pub(super) struct Rows {
    first: u64,
}

impl Rows {
    pub(super) const fn new(first: u64) -> Self {
        Self { first }
    }

    fn at(&self, row: usize, e: Error) -> Error {
        e.row(self.first + row as u64)
    }

    fn ragged(&self, row: usize, found: &[usize], expected: &[usize]) -> Error {
        let e =
            Error::data(format!("found shape {}, expected {} as in the rows before it", show(found), show(expected)));
        self.at(row, e.hint(ONE_SHAPE))
    }
}

/// Lists in lists, `depth` of them.
pub(super) fn nested(array: &ArrayRef, depth: usize, shape: &[usize], rows: &Rows) -> Result<Tensor> {
    if depth != shape.len() {
        return Err(differs(&format!("{depth} nested lists"), shape));
    }
    let mut values = Arc::clone(array);
    let mut lists_per_row = 1usize;
    for &expected in shape {
        match level(values.as_ref(), Some(expected)) {
            Ok(Level { values: inner, len }) => {
                values = inner;
                lists_per_row *= len;
            }
            Err(odd) => return Err(explain(&odd, array, lists_per_row, shape, rows)),
        }
    }
    elements(&values, shape, array.len(), rows)
}

/// The error for an odd list, in terms of the row it is in.
fn explain(odd: &Odd, array: &ArrayRef, lists_per_row: usize, shape: &[usize], rows: &Rows) -> Error {
    match odd {
        Odd::Length { list, .. } => {
            let row = list / lists_per_row.max(1);
            match shape_of_row(&array.slice(row, 1)) {
                Ok(found) => rows.ragged(row, &found, shape),
                Err(e) => rows.at(row, e),
            }
        }
        Odd::Null { list } => rows.at(list / lists_per_row.max(1), null_inside()),
        Odd::NoList => differs(&array.data_type().to_string(), shape),
    }
}

fn differs(found: &str, shape: &[usize]) -> Error {
    Error::data(format!("found {found}, expected shape {}", show(shape)))
}

/// The innermost values as a tensor: dictionaries resolved, no nulls left.
fn elements(values: &ArrayRef, shape: &[usize], count: usize, rows: &Rows) -> Result<Tensor> {
    let resolved;
    let values = match values.data_type() {
        DataType::Dictionary(_, value) => {
            resolved = cast(values, value).map_err(|e| Error::data(format!("the dictionary is damaged: {e}")))?;
            &resolved
        }
        _ => values,
    };
    if let Some(nulls) = values.nulls().filter(|n| n.null_count() > 0) {
        let element = (0..nulls.len()).find(|&i| nulls.is_null(i)).unwrap_or(0);
        let per_row: usize = shape.iter().product();
        return Err(rows.at(element / per_row.max(1), null_inside()));
    }
    Tensor::from_flat_arrow(values.as_ref(), shape, count)
}

/// One list a row, of the shape in the field's metadata.
pub(super) fn flat(
    array: &ArrayRef,
    stated: &[usize],
    permutation: Option<&[usize]>,
    shape: &[usize],
    rows: &Rows,
) -> Result<Tensor> {
    if stated != shape {
        return Err(differs(&format!("shape {}", show(stated)), shape));
    }
    let per_row: usize = shape.iter().product();
    let values = match level(array.as_ref(), Some(per_row)) {
        Ok(level) => level.values,
        Err(Odd::Length { list, found, .. }) => {
            let e = Error::data(format!("found {found} elements, expected the {per_row} of shape {}", show(shape)));
            return Err(rows.at(list, e));
        }
        Err(odd) => return Err(explain(&odd, array, 1, shape, rows)),
    };
    let tensor = elements(&values, shape, array.len(), rows)?;
    Ok(match permutation {
        Some(permutation) => transpose(&tensor, permutation),
        None => tensor,
    })
}

/// From the stored order of dimensions to the logical one, row by row.
///
/// ```text
/// stored [2, 3] with permutation [1, 0]     logical [3, 2]
///   a b c                                     a d
///   d e f                                     b e
///                                             c f
/// ```
fn transpose(tensor: &Tensor, permutation: &[usize]) -> Tensor {
    let logical = &tensor.ty().shape;
    // Stride, in elements, of each stored dimension; stored[permutation[i]] == logical[i].
    let mut stored = vec![0; logical.len()];
    for (dim, &from) in permutation.iter().enumerate() {
        stored[from] = logical[dim];
    }
    let mut strides = vec![1; stored.len()];
    for dim in (1..stored.len()).rev() {
        strides[dim - 1] = strides[dim] * stored[dim];
    }
    // Where each logical element of a row lies in the stored row.
    let source: Vec<usize> = (0..tensor.ty().row_elements())
        .map(|mut i| {
            let mut at = 0;
            for (dim, &size) in logical.iter().enumerate().rev() {
                at += (i % size) * strides[permutation[dim]];
                i /= size;
            }
            at
        })
        .collect();
    let size = tensor.ty().dtype.size();
    let mut out = TensorBuilder::with_capacity(tensor.ty().clone(), tensor.rows());
    let mut row = vec![0; tensor.ty().row_bytes()];
    for i in 0..tensor.rows() {
        let from = tensor.row(i);
        for (to, &at) in row.chunks_exact_mut(size).zip(&source) {
            to.copy_from_slice(&from[at * size..(at + 1) * size]);
        }
        out.extend_bytes(&row, 1);
    }
    out.finish()
}

/// One list and one shape a row; all shapes must be the same.
pub(super) fn variable(array: &ArrayRef, shape: &[usize], rows: &Rows) -> Result<Tensor> {
    let (data, shapes) = variable_parts(array)?;
    match shapes_of(&shapes, Some(shape.len())) {
        Ok(dims) => {
            let expected: Vec<i64> = shape.iter().map(|&d| i64::try_from(d).unwrap_or(-1)).collect();
            let odd = if expected.is_empty() {
                None
            } else {
                dims.values().chunks_exact(expected.len()).position(|found| found != expected)
            };
            if let Some(row) = odd {
                let found: Vec<usize> = dims.values()[row * expected.len()..(row + 1) * expected.len()]
                    .iter()
                    .map(|&d| usize::try_from(d).unwrap_or(0))
                    .collect();
                return Err(rows.ragged(row, &found, shape));
            }
        }
        Err(Odd::Length { list, .. }) => {
            let found = variable_shape(&array.slice(list, 1)).map_err(|e| rows.at(list, e))?;
            return Err(rows.ragged(list, &found, shape));
        }
        Err(Odd::Null { list }) => return Err(rows.at(list, null_inside())),
        Err(Odd::NoList) => return Err(differs(&array.data_type().to_string(), shape)),
    }
    flat(&data, shape, None, shape, rows)
}

/// The shape of an array of one row.
pub(super) fn variable_shape(row: &ArrayRef) -> Result<Vec<usize>> {
    let (data, shapes) = variable_parts(row)?;
    let dims = shapes_of(&shapes, None).map_err(|_| null_inside())?;
    let shape = dims
        .values()
        .iter()
        .map(|&d| usize::try_from(d).map_err(|_| Error::data(format!("found a dimension of {d}"))))
        .collect::<Result<Vec<_>>>()?;
    // What the shape claims must be there.
    let elements = level(data.as_ref(), None).map_err(|_| null_inside())?.len;
    if shape.iter().try_fold(1, |n: usize, d| n.checked_mul(*d)) != Some(elements) {
        return Err(Error::data(format!("found {elements} elements, expected those of shape {}", show(&shape))));
    }
    Ok(shape)
}

fn variable_parts(array: &ArrayRef) -> Result<(ArrayRef, ArrayRef)> {
    let parts = array.as_struct_opt().and_then(|s| Some((s.column_by_name("data")?, s.column_by_name("shape")?)));
    let (data, shape) =
        parts.ok_or_else(|| Error::data("found no `data` and `shape` in the variable-shaped tensors"))?;
    Ok((Arc::clone(data), Arc::clone(shape)))
}

/// The dimensions of all rows back to back.
fn shapes_of(shapes: &ArrayRef, rank: Option<usize>) -> Result<Int64Array, Odd> {
    let dims = level(shapes.as_ref(), rank)?.values;
    let dims = cast(&dims, &DataType::Int64).map_err(|_| Odd::NoList)?;
    if dims.null_count() > 0 { Err(Odd::Null { list: 0 }) } else { Ok(dims.as_primitive::<Int64Type>().clone()) }
}

/// The bytes of a tensor a row.
pub(super) fn bytes(array: &ArrayRef, ty: &TensorType, shape: &[usize], rows: &Rows) -> Result<Tensor> {
    if ty.shape != shape {
        return Err(differs(&format!("shape {}", show(&ty.shape)), shape));
    }
    let cells = array.as_fixed_size_binary_opt().ok_or_else(|| differs(&array.data_type().to_string(), shape))?;
    if ty.dtype == DType::Bool
        && let Some(at) = cells.value_data().iter().position(|b| *b > 1)
    {
        let e = Error::data(format!("found the byte {}, expected 0 or 1 for a boolean", cells.value_data()[at]));
        return Err(rows.at(at / ty.row_bytes().max(1), e));
    }
    Ok(Tensor::new(ty.clone(), cells.len(), cells.values().clone()))
}

/// Text columns of any kind as one, without a copy of the text.
pub(super) fn text(array: &ArrayRef) -> Result<StringViewArray> {
    let plain = cast(array, &DataType::Utf8View).map_err(|e| Error::data(format!("found unreadable text: {e}")))?;
    Ok(plain.as_string_view().clone())
}

/// A packed `NumPy` array a row.
pub(super) fn packed(field: &Field, array: &ArrayRef, ty: &TensorType, rows: &Rows) -> Result<Tensor> {
    let text = text(array)?;
    let mut unpacker = Unpacker::default();
    let mut out = TensorBuilder::with_capacity(ty.clone(), text.len());
    for row in 0..text.len() {
        let cell = text.value(row);
        if !looks_packed(cell) {
            return Err(rows.at(row, super::text(field)));
        }
        let (found, data) = unpacker.unpack(cell).map_err(|e| rows.at(row, e))?;
        if found.shape != ty.shape {
            return Err(rows.ragged(row, &found.shape, &ty.shape));
        }
        if found.dtype == ty.dtype {
            out.extend_bytes(data, 1);
        } else {
            let one = Tensor::new(found.clone(), 1, data.to_vec().into());
            out.extend(&super::widen(one, ty.dtype).map_err(|e| rows.at(row, e))?, 0, 1);
        }
    }
    Ok(out.finish())
}
