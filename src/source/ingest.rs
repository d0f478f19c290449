//! One Arrow column to tensor columns.
//!
//! Recordings hold tensors in many Arrow forms. [`describe`] says, from a field alone, which leaves a column has;
//! [`refine`] fills in what only the data knows; [`tensors`] reads a batch.
//!
//! ```text
//! field      obs: struct<pos: fixed_size_list<float>[3], mode: int64>
//! describe   [ obs/mode int64[]   obs/pos float32[3] ]                  leaves in the order of sorted keys
//! tensors    [ Tensor(rows x int64), Tensor(rows x float32[3]) ]        each with the rows that are null
//! ```
//!
//! Full, uniform lists are recognised by one look at their offsets, and their elements are used where they lie:
//! there is no work per row, and no copy, for what recorders normally write. Rows that are null (a whole action, not an
//! element of one) are zero-filled and reported. Everything else is an error that names the row.

mod absent;
mod form;
mod ids;
mod infos;
mod lists;
mod places;
mod rows;
#[cfg(test)]
mod tests;
mod variants;

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, NullArray, RecordBatch};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, FieldRef};

pub(crate) use self::absent::absent;
pub use self::form::type_name;
use self::form::{Form, form};
pub use self::ids::{IdKind, Ids, flags, id_kind, ids, ints, is_flag, is_int, optional_ids};
pub(crate) use self::infos::{InfoLeaves, describe_infos, leaf_nulls};
pub(crate) use self::places::Places;
pub(crate) use self::rows::ONE_SHAPE;
use self::rows::Rows;
pub(crate) use self::variants::{ONE_SHAPE_A_MODULE, first_shape, leaf_dtype, variants};
use crate::error::{Error, Result};
use crate::source::packed::{Unpacker, looks_packed};
use crate::tensor::{DType, Tensor, TensorBuilder, TensorType};

/// The columns of a batch, the first one of each name.
pub(crate) fn by_name(batch: &RecordBatch) -> HashMap<&str, &ArrayRef> {
    let mut out = HashMap::with_capacity(batch.num_columns());
    for (field, array) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        out.entry(field.name().as_str()).or_insert(array);
    }
    out
}

/// One leaf of a column: where it is inside, and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafSpec {
    /// Canonical name, `obs/pos`.
    pub name: String,
    /// Names of the struct fields that lead from the column to the leaf.
    pub path: Vec<String>,
    /// Element type. `None` while nothing but nulls was seen, or for packed text.
    pub dtype: Option<DType>,
    /// Shape of one row. `None` while only the data can tell (plain variable lists, packed text).
    pub shape: Option<Vec<usize>>,
    /// Text that holds packed `NumPy` arrays: base64 of an lz4 frame of a pickle.
    pub packed: bool,
}

impl LeafSpec {
    /// Whether dtype and shape are both known.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.dtype.is_some() && self.shape.is_some()
    }

    /// The tensor type, when it is known.
    #[must_use]
    pub fn ty(&self) -> Option<TensorType> {
        Some(TensorType::new(self.dtype?, self.shape.clone()?))
    }
}

/// One leaf of one batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Ingested {
    /// The values; rows that are null are zeros.
    pub tensor: Tensor,
    /// Which rows are null (an unset bit), if any is.
    pub nulls: Option<NullBuffer>,
}

/// What the data said about a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The leaf's dtype and shape are known now, or all rows were null.
    Tensor,
    /// Text that is no packed array.
    Text,
}

/// The leaves of a column, as far as its field tells. `name` is the column's canonical name.
///
/// # Errors
/// If the column's type can hold no tensor. The message says what was found, not where.
pub fn describe(field: &Field, name: &str) -> Result<Vec<LeafSpec>> {
    let mut out = Vec::new();
    describe_into(field, name, &mut Vec::new(), &mut out)?;
    Ok(out)
}

fn describe_into(field: &Field, name: &str, path: &mut Vec<String>, out: &mut Vec<LeafSpec>) -> Result<()> {
    let found = form(field).map_err(|e| e.column(name))?;
    let (dtype, shape) = match &found {
        Form::Struct(children) => {
            for child in sorted(children) {
                path.push(child.name().clone());
                describe_into(child, &format!("{name}/{}", child.name()), path, out)?;
                path.pop();
            }
            return Ok(());
        }
        Form::Null | Form::Text => (None, None),
        Form::Lists { lens, dtype } => (Some(*dtype), lens.iter().copied().collect()),
        Form::Variable { dtype } => (Some(*dtype), None),
        Form::Flat { dtype, shape, .. } | Form::Bytes { dtype, shape } => (Some(*dtype), Some(shape.clone())),
    };
    let packed = matches!(found, Form::Text);
    out.push(LeafSpec { name: name.to_owned(), path: path.clone(), dtype, shape, packed });
    Ok(())
}

/// Struct fields in the order in which RLlib flattens them: sorted by name, or by number if they are a tuple's.
fn sorted(children: &[FieldRef]) -> Vec<&FieldRef> {
    let mut out: Vec<&FieldRef> = children.iter().collect();
    out.sort_by(|a, b| a.name().cmp(b.name()));
    let number = |f: &FieldRef| f.name().parse::<usize>().ok().filter(|n| n.to_string() == *f.name());
    let mut numbers: Vec<usize> = out.iter().filter_map(|f| number(f)).collect();
    numbers.sort_unstable();
    if numbers.len() == out.len() && numbers.iter().enumerate().all(|(i, n)| i == *n) {
        out.sort_by_key(|f| number(f));
    }
    out
}

/// Fills in, from the first row that is not null, what [`describe`] could not know. Leaves that are known are left alone.
/// `first_row` is the row of the file that the array starts at.
///
/// # Errors
/// If that row holds no tensor.
pub fn refine(specs: &mut [LeafSpec], field: &Field, array: &ArrayRef, first_row: u64) -> Result<()> {
    let mut places = Places::default();
    for spec in specs.iter_mut().filter(|s| !s.is_known()) {
        if look(spec, field, array, first_row, &mut places)? == Seen::Text {
            return Err(text(field).column(&spec.name));
        }
    }
    Ok(())
}

/// [`refine`] for one leaf. `places` are the field's.
pub(crate) fn look<'a>(
    spec: &mut LeafSpec,
    field: &'a Field,
    array: &ArrayRef,
    first_row: u64,
    places: &mut Places<'a>,
) -> Result<Seen> {
    let place = |e: Error| e.column(&spec.name);
    let leaf = locate(field, array, &spec.path, places).map_err(place)?;
    let Some(row) = first_valid(leaf.nulls.as_ref(), leaf.array.len()) else { return Ok(Seen::Tensor) };
    let array = leaf.array.slice(row, 1);
    let first_row = first_row + row as u64;
    let place = |e: Error| e.row(first_row).column(&spec.name);
    match form(leaf.field).map_err(place)? {
        Form::Lists { dtype, .. } => {
            let shape = lists::shape_of_row(&array).map_err(place)?;
            (spec.dtype, spec.shape) = (Some(dtype), Some(shape));
        }
        Form::Variable { dtype } => {
            let shape = rows::variable_shape(&array).map_err(place)?;
            (spec.dtype, spec.shape) = (Some(dtype), Some(shape));
        }
        Form::Text => {
            let text = rows::text(&array).map_err(place)?;
            if !looks_packed(text.value(0)) {
                return Ok(Seen::Text);
            }
            let unpacked = Unpacker::default().ndarray(text.value(0)).map_err(place)?;
            (spec.dtype, spec.shape) = (Some(unpacked.ty.dtype), Some(unpacked.ty.shape));
        }
        Form::Flat { .. } | Form::Bytes { .. } | Form::Null | Form::Struct(_) => {}
    }
    Ok(Seen::Tensor)
}

/// The leaves of one batch of a column, each as the type asked for.
///
/// `first_row` is the row of the file that the array starts at, for messages.
///
/// # Errors
/// If a row has another shape, an element is null, or the values cannot become the type asked for without loss.
pub fn tensors(
    field: &Field,
    array: &ArrayRef,
    leaves: &[(LeafSpec, TensorType)],
    first_row: u64,
) -> Result<Vec<Ingested>> {
    let mut places = Places::default();
    leaves.iter().map(|(spec, ty)| tensor(field, array, spec, ty, first_row, &mut places)).collect()
}

/// [`tensors`] for one leaf. `places` are the field's.
pub(crate) fn tensor<'a>(
    field: &'a Field,
    array: &ArrayRef,
    spec: &LeafSpec,
    ty: &TensorType,
    first_row: u64,
    places: &mut Places<'a>,
) -> Result<Ingested> {
    let leaf = locate(field, array, &spec.path, places).map_err(|e| e.column(&spec.name))?;
    leaf.read(ty, first_row).map_err(|e| e.column(&spec.name))
}

/// A leaf of a batch, found.
struct Leaf<'a> {
    field: &'a Field,
    array: ArrayRef,
    nulls: Option<NullBuffer>,
}

/// Follows `path` into the structs of a column. A row of the leaf is null where any struct above it is, and where the
/// struct has no such field.
fn locate<'a>(field: &'a Field, array: &ArrayRef, path: &[String], places: &mut Places<'a>) -> Result<Leaf<'a>> {
    let (mut field, mut array, mut places) = (field, Arc::clone(array), places);
    let mut nulls = array.logical_nulls();
    for name in path {
        if array.data_type() == &DataType::Null {
            break;
        }
        let (DataType::Struct(fields), Some(parent)) = (field.data_type(), array.as_struct_opt()) else {
            let found = type_name(field);
            return Err(Error::data(format!("found {found}, expected a struct with a field {name:?}")));
        };
        // The schemas were unified: a struct that lacks a leaf of other files' has none of it.
        let Some((i, inside)) = places.find(fields, name) else {
            array = Arc::new(NullArray::new(array.len()));
            nulls = array.logical_nulls();
            break;
        };
        let inner = Arc::clone(parent.column(i));
        nulls = NullBuffer::union(nulls.as_ref(), inner.logical_nulls().as_ref());
        (field, array, places) = (&fields[i], inner, inside);
    }
    nulls = NullBuffer::union(nulls.as_ref(), absent(&array).as_ref());
    Ok(Leaf { field, array, nulls: nulls.filter(|n| n.null_count() > 0) })
}

impl Leaf<'_> {
    fn read(&self, ty: &TensorType, first_row: u64) -> Result<Ingested> {
        let rows = self.array.len();
        let Some(nulls) = &self.nulls else {
            let tensor = values(self.field, &self.array, ty, &Rows::new(first_row))?;
            return Ok(Ingested { tensor, nulls: None });
        };
        let mut out = TensorBuilder::with_capacity(ty.clone(), rows);
        // Null rows come alone (the padding row behind an episode) or all at once: read the runs between them.
        for (start, end) in nulls.valid_slices() {
            let run = self.array.slice(start, end - start);
            out.extend_zeros(start - out.rows());
            let run = values(self.field, &run, ty, &Rows::new(first_row + start as u64))?;
            out.extend(&run, 0, run.rows());
        }
        out.extend_zeros(rows - out.rows());
        Ok(Ingested { tensor: out.finish(), nulls: Some(nulls.clone()) })
    }
}

/// The tensors of an array no row of which is null.
fn values(field: &Field, array: &ArrayRef, ty: &TensorType, rows: &Rows) -> Result<Tensor> {
    let found = match form(field)? {
        Form::Lists { lens, .. } => rows::nested(array, lens.len(), &ty.shape, rows)?,
        Form::Flat { shape, permutation, .. } => rows::flat(array, &shape, permutation.as_deref(), &ty.shape, rows)?,
        Form::Variable { .. } => rows::variable(array, &ty.shape, rows)?,
        Form::Bytes { shape, dtype } => rows::bytes(array, &TensorType::new(dtype, shape), &ty.shape, rows)?,
        Form::Text => rows::packed(field, array, ty, rows)?,
        // Rows of the null type are null and do not come here; what does is lists that never had an element.
        Form::Null if array.is_empty() || ty.row_elements() == 0 => Tensor::zeros(ty.clone(), array.len()),
        Form::Null => return Err(Error::data(format!("found {}, expected {ty}", type_name(field)))),
        Form::Struct(_) => {
            return Err(Error::data(format!("found {}, expected {ty}", type_name(field))));
        }
    };
    widen(found, ty.dtype)
}

/// The same values in a type that holds all of them.
fn widen(tensor: Tensor, dtype: DType) -> Result<Tensor> {
    let found = tensor.ty().dtype;
    if found == dtype {
        return Ok(tensor);
    }
    if !found.embeds_in(dtype) {
        return Err(Error::data(format!("found {found}, expected {dtype}, which does not hold every {found}")));
    }
    tensor.cast(dtype)
}

/// Text where numbers should be.
fn text(field: &Field) -> Error {
    Error::data(format!("found text ({}), expected numbers", field.data_type()))
}

fn first_valid(nulls: Option<&NullBuffer>, len: usize) -> Option<usize> {
    match nulls {
        None => (len > 0).then_some(0),
        Some(nulls) => nulls.valid_indices().next(),
    }
}
