//! The leaves of infos: what is a number becomes a column, whatever stands beside it.

use arrow::array::{Array, ArrayRef};
use arrow::buffer::NullBuffer;
use arrow::datatypes::Field;

use super::form::{Form, form, type_name};
use super::{LeafSpec, Places, locate, sorted};
use crate::error::Result;

/// The leaves that may hold numbers, and the others, each with what it is instead.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct InfoLeaves {
    pub(crate) leaves: Vec<LeafSpec>,
    pub(crate) left_out: Vec<(String, String)>,
}

/// The leaves of a column of infos, as far as its field tells. Never fails: what cannot be a column is left out.
pub(crate) fn describe_infos(field: &Field, name: &str) -> InfoLeaves {
    let mut out = InfoLeaves::default();
    if name.contains('/') || matches!(form(field), Ok(Form::Struct(_) | Form::Null)) {
        into(field, name, &mut Vec::new(), &mut out);
    } else {
        out.left_out.push((name.to_owned(), format!("found {}, expected a struct of infos", type_name(field))));
    }
    out
}

fn into(field: &Field, name: &str, path: &mut Vec<String>, out: &mut InfoLeaves) {
    let (dtype, shape) = match form(field) {
        Ok(Form::Struct(children)) => {
            for child in sorted(&children) {
                path.push(child.name().clone());
                into(child, &format!("{name}/{}", child.name()), path, out);
                path.pop();
            }
            return;
        }
        Ok(Form::Null) => (None, None),
        Ok(Form::Lists { lens, dtype }) => (Some(dtype), lens.iter().copied().collect()),
        Ok(Form::Variable { dtype }) => (Some(dtype), None),
        Ok(Form::Flat { dtype, shape, .. } | Form::Bytes { dtype, shape }) => (Some(dtype), Some(shape)),
        Ok(Form::Text) | Err(_) => {
            out.left_out.push((name.to_owned(), format!("found {}, expected numbers", type_name(field))));
            return;
        }
    };
    out.leaves.push(LeafSpec { name: name.to_owned(), path: path.clone(), dtype, shape, packed: false });
}

/// Which rows of a leaf are null (an unset bit), if any is. `places` are the field's.
///
/// # Errors
/// If the column has no such leaf.
pub(crate) fn leaf_nulls<'a>(
    field: &'a Field,
    array: &ArrayRef,
    path: &[String],
    places: &mut Places<'a>,
) -> Result<Option<NullBuffer>> {
    let leaf = locate(field, array, path, places)?;
    Ok(if leaf.array.data_type() == &arrow::datatypes::DataType::Null {
        Some(NullBuffer::new_null(leaf.array.len()))
    } else {
        leaf.nulls
    })
}
