//! Leaves whose rows have several shapes: one tensor a shape.
//!
//! ```text
//! rows      agent 0: [1, 2]    agent 1: [3, 4, 5]    agent 0: [6, 7]
//! types     float32[2]         1 2   0 0   6 7       null where the row has another shape
//!           float32[3]         0 0 0   3 4 5   0 0 0
//! ```

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::datatypes::{DataType, Field};

use super::form::{Form, element, form, list_item};
use super::lists::{self, show};
use super::{Ingested, Leaf, LeafSpec, Places, first_valid, locate, rows};
use crate::error::{Error, Result};
use crate::source::packed::Unpacker;
use crate::tensor::{DType, Tensor, TensorType};

/// What to do about rows of a module in several shapes; who knows the agents says which.
pub(crate) const ONE_SHAPE_A_MODULE: &str =
    "rows of one module need one shape: pad them, or give the agents modules of their own";

/// The element type that a file's column has for a leaf, if its field tells. `places` are the field's.
pub(crate) fn leaf_dtype<'a>(field: &'a Field, path: &[String], places: &mut Places<'a>) -> Option<DType> {
    let (mut field, mut places) = (field, places);
    for name in path {
        let DataType::Struct(children) = field.data_type() else { return None };
        let (at, inside) = places.find(children, name)?;
        (field, places) = (&children[at], inside);
    }
    dtype_of(field)
}

/// The element type of a leaf's own field.
fn dtype_of(field: &Field) -> Option<DType> {
    match form(field).ok()? {
        Form::Lists { dtype, .. } | Form::Variable { dtype } | Form::Flat { dtype, .. } | Form::Bytes { dtype, .. } => {
            Some(dtype)
        }
        Form::Null | Form::Text | Form::Struct(_) => None,
    }
}

/// The shape of the first row, or `None` if it is null. `first_row` is its number in the file, `places` are the field's.
pub(crate) fn first_shape<'a>(
    field: &'a Field,
    array: &ArrayRef,
    spec: &LeafSpec,
    first_row: u64,
    places: &mut Places<'a>,
) -> Result<Option<Vec<usize>>> {
    let place = |e: Error| e.column(&spec.name).row(first_row);
    let leaf = locate(field, array, &spec.path, places).map_err(place)?;
    if first_valid(leaf.nulls.as_ref(), leaf.array.len()) != Some(0) {
        return Ok(None);
    }
    shape_at(&form(leaf.field).map_err(place)?, &leaf.array, 0).map_err(place)
}

/// The shape of a row that is not null.
fn shape_at(form: &Form, array: &ArrayRef, row: usize) -> Result<Option<Vec<usize>>> {
    let one = || array.slice(row, 1);
    Ok(match form {
        Form::Lists { lens, .. } => match lens.iter().copied().collect() {
            Some(fixed) => Some(fixed),
            None => Some(lists::shape_of_row(&one())?),
        },
        Form::Flat { shape, .. } | Form::Bytes { shape, .. } => Some(shape.clone()),
        Form::Variable { .. } => Some(rows::variable_shape(&one())?),
        Form::Text => Some(Unpacker::default().ndarray(rows::text(&one())?.value(0))?.ty.shape),
        Form::Null | Form::Struct(_) => None,
    })
}

/// The leaf in each of `types`: rows of that shape have their values, all others are null there. `places` are the field's.
///
/// # Errors
/// If a row has none of the shapes, or cannot be read.
pub(crate) fn variants<'a>(
    field: &'a Field,
    array: &ArrayRef,
    spec: &LeafSpec,
    types: &[TensorType],
    first_row: u64,
    places: &mut Places<'a>,
) -> Result<Vec<Ingested>> {
    let place = |e: Error| e.column(&spec.name);
    let leaf = locate(field, array, &spec.path, places).map_err(place)?;
    let found = form(leaf.field).map_err(place)?;
    let len = leaf.array.len();
    let null = |i: usize| leaf.nulls.as_ref().is_some_and(|n| n.is_null(i));
    let lengths = one_level(leaf.field, &leaf.array);
    let mut shapes: Vec<Option<Vec<usize>>> = Vec::with_capacity(len);
    for i in 0..len {
        let at = |e: Error| place(e).row(first_row + i as u64);
        let shape = match (&lengths, null(i)) {
            (_, true) => None,
            (Some(lengths), _) => Some(vec![lengths[i]]),
            (None, _) => shape_at(&found, &leaf.array, i).map_err(at)?,
        };
        if let Some(shape) = &shape
            && types.iter().all(|ty| ty.shape != *shape)
        {
            let known: Vec<String> = types.iter().map(|ty| show(&ty.shape)).collect();
            let what =
                format!("found shape {}, expected that of a module's first step: {}", show(shape), known.join(" or "));
            return Err(at(Error::data(what)).hint(ONE_SHAPE_A_MODULE));
        }
        shapes.push(shape);
    }
    let own = dtype_of(leaf.field);
    types
        .iter()
        .map(|ty| {
            let fits = own.is_none_or(|own| own == ty.dtype || own.embeds_in(ty.dtype));
            let valid: BooleanBuffer = shapes.iter().map(|s| fits && s.as_ref() == Some(&ty.shape)).collect();
            let nulls = NullBuffer::new(valid);
            if nulls.null_count() == len {
                return Ok(Ingested { tensor: Tensor::zeros(ty.clone(), len), nulls: Some(nulls) });
            }
            let nulls = (nulls.null_count() > 0).then_some(nulls);
            let leaf = Leaf { field: leaf.field, array: leaf.array.clone(), nulls };
            leaf.read(ty, first_row).map_err(place)
        })
        .collect()
}

/// The lengths of plain lists of numbers: what nearly all recordings hold, so without a look at each list.
fn one_level(field: &Field, array: &ArrayRef) -> Option<Vec<usize>> {
    let (item, None) = list_item(field.data_type())? else { return None };
    element(item.data_type())?;
    if !matches!(form(field), Ok(Form::Lists { .. })) {
        return None;
    }
    match array.data_type() {
        DataType::List(_) => Some(
            array.as_list::<i32>().offsets().windows(2).map(|w| usize::try_from(w[1] - w[0]).unwrap_or(0)).collect(),
        ),
        DataType::LargeList(_) => Some(
            array.as_list::<i64>().offsets().windows(2).map(|w| usize::try_from(w[1] - w[0]).unwrap_or(0)).collect(),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::ListArray;
    use arrow::datatypes::Float32Type;

    use super::*;

    fn rows_of(rows: &[Option<&[f32]>]) -> (Field, ArrayRef) {
        let rows = rows.iter().map(|r| r.map(|r| r.iter().map(|v| Some(*v)).collect::<Vec<_>>()));
        let array: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows));
        (Field::new("obs", array.data_type().clone(), true), array)
    }

    #[test]
    fn the_figure_above() {
        let (field, array) = rows_of(&[Some(&[1., 2.]), Some(&[3., 4., 5.]), None, Some(&[6., 7.])]);
        let spec = LeafSpec { name: "obs".into(), path: vec![], dtype: None, shape: None, packed: false };
        let types = [TensorType::new(DType::Float32, [2]), TensorType::new(DType::Float32, [3])];
        let mut places = Places::default();
        let out = variants(&field, &array, &spec, &types, 0, &mut places).unwrap();
        assert_eq!(out[0].tensor.values::<f32>(), [1., 2., 0., 0., 0., 0., 6., 7.]);
        assert_eq!(out[1].tensor.values::<f32>(), [0., 0., 0., 3., 4., 5., 0., 0., 0., 0., 0., 0.]);
        let valid = |i: usize| out[i].nulls.as_ref().unwrap().iter().collect::<Vec<_>>();
        assert_eq!((valid(0), valid(1)), (vec![true, false, false, true], vec![false, true, false, false]));
        let error = variants(&field, &array, &spec, &types[..1], 10, &mut places).unwrap_err();
        assert_eq!(error.place().row, Some(11));
        assert_eq!(first_shape(&field, &array, &spec, 0, &mut places).unwrap(), Some(vec![2]));
        assert_eq!(first_shape(&field, &array.slice(2, 2), &spec, 0, &mut places).unwrap(), None);
    }
}
