//! Columns on their way to NumPy, without a copy: NumPy reads `__array_interface__` and keeps the column alive.
//!
//! The buffer protocol would say the same, but stable for all Pythons it is only from 3.11 on.

use gristmill::error::{Error, Result};
use gristmill::sink::ColumnData;
use gristmill::tensor::{Buffers, DType, Tensor};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyDict, PyList, PyTuple};

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;

use crate::errors::raised;

/// Equally shaped rows of numbers in memory that Rust owns. `numpy.asarray(column)` is a view of them.
#[pyclass(frozen, module = "gristmill._gristmill")]
pub struct Column {
    tensor: Tensor,
    /// Whether the memory was made for Python alone. Else it may be a file's, or a table's that somebody else holds, and
    /// views of it are read-only.
    own: bool,
}

impl Column {
    /// A column that others may hold, too.
    pub fn shared(tensor: Tensor) -> Self {
        Self { tensor, own: false }
    }

    /// A column whose memory was made for Python alone.
    pub fn own(tensor: Tensor) -> Self {
        Self { tensor, own: true }
    }

    /// The rows.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

#[pymethods]
impl Column {
    /// NumPy's protocol, version 3.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let ty = self.tensor.ty();
        let out = PyDict::new(py);
        let shape: Vec<usize> = std::iter::once(self.tensor.rows()).chain(ty.shape.iter().copied()).collect();
        out.set_item("shape", PyTuple::new(py, shape)?)?;
        out.set_item("typestr", typestr(ty.dtype))?;
        out.set_item("data", (self.tensor.bytes().as_ptr() as usize, !self.own))?;
        out.set_item("strides", py.None())?;
        out.set_item("version", 3)?;
        Ok(out)
    }
}

/// NumPy's code of an element type, in this machine's byte order.
pub fn typestr(dtype: DType) -> String {
    let order = match (dtype.size(), cfg!(target_endian = "little")) {
        (1, _) => '|',
        (_, true) => '<',
        (_, false) => '>',
    };
    let kind = match dtype {
        DType::Bool => 'b',
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => 'i',
        DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64 => 'u',
        DType::Float16 | DType::Float32 | DType::Float64 => 'f',
    };
    format!("{order}{kind}{}", dtype.size())
}

/// Rows from several parts of each column, side by side: row `i` is row `rows[i]` of part `parts[i]`.
///
/// `parts` and `rows` are int64 as bytes. All parts of a column are of one type.
#[pyfunction]
pub fn gather(
    py: Python<'_>,
    columns: Vec<Vec<Bound<'_, Column>>>,
    parts: PyBackedBytes,
    rows: PyBackedBytes,
) -> PyResult<Vec<Column>> {
    let columns: Vec<Vec<Tensor>> =
        columns.iter().map(|parts| parts.iter().map(|c| c.get().tensor.clone()).collect()).collect();
    let gathered = py.detach(|| {
        let places: Vec<(usize, usize)> = numbers(&parts).zip(numbers(&rows)).collect();
        let column = |parts: &Vec<Tensor>| {
            let parts: Vec<_> = parts.iter().map(Some).collect();
            gather_column(&parts, places.iter().copied(), &Buffers::default())
        };
        columns.iter().map(column).collect::<Result<Vec<_>>>()
    });
    let gathered = gathered.map_err(|e| raised(py, &e))?;
    Ok(gathered.into_iter().map(Column::own).collect())
}

/// Numbers of rows or parts, int64 as bytes.
pub fn numbers(bytes: &[u8]) -> impl Iterator<Item = usize> {
    // What is negative becomes too large, and is refused as such.
    let number = |b: &[u8; 8]| usize::try_from(i64::from_ne_bytes(*b)).unwrap_or(usize::MAX);
    bytes.as_chunks::<8>().0.iter().map(number)
}

/// Rows of some parts of a column, side by side, each given as part and row, in memory of `buffers`. Parts that are not
/// there have no rows.
///
/// # Errors
/// If there is no such row, or parts are of several types.
pub fn gather_column(
    parts: &[Option<&Tensor>],
    places: impl ExactSizeIterator<Item = (usize, usize)>,
    buffers: &Buffers,
) -> Result<Tensor> {
    let Some(ty) = parts.iter().flatten().next().map(|part| part.ty()) else {
        return Err(Error::internal("a column without parts"));
    };
    if let Some(other) = parts.iter().flatten().find(|p| p.ty() != ty) {
        return Err(Error::internal(format!("parts of {ty} and {}", other.ty())));
    }
    let (rows, size) = (places.len(), ty.row_bytes());
    let parts: Vec<&[u8]> = parts.iter().map(|part| part.map_or(&[][..], Tensor::bytes)).collect();
    let mut filled = buffers.take(rows * size);
    let out = filled.as_mut();
    // Of the commonest sizes, so that a row is a load and a store and not a call.
    let gathered = match size {
        0 => Some(()),
        1 => scalars::<1>(&parts, places, out),
        4 => scalars::<4>(&parts, places, out),
        8 => scalars::<8>(&parts, places, out),
        _ => out.chunks_exact_mut(size).zip(places).try_for_each(|(to, (part, row))| {
            to.copy_from_slice(parts.get(part)?.get(row.checked_mul(size)?..)?.get(..size)?);
            Some(())
        }),
    };
    gathered.ok_or_else(|| Error::internal("a row that there is not"))?;
    Ok(Tensor::new(ty.clone(), rows, filled.into()))
}

fn scalars<const N: usize>(
    parts: &[&[u8]],
    places: impl Iterator<Item = (usize, usize)>,
    out: &mut [u8],
) -> Option<()> {
    let parts: Vec<&[[u8; N]]> = parts.iter().map(|part| part.as_chunks::<N>().0).collect();
    out.as_chunks_mut::<N>().0.iter_mut().zip(places).try_for_each(|(to, (part, row))| {
        *to = *parts.get(part)?.get(row)?;
        Some(())
    })
}

/// A column as Python gets it: a [`Column`], or a list of text.
pub fn to_python<'py>(py: Python<'py>, data: &ColumnData) -> PyResult<Bound<'py, PyAny>> {
    let column = |tensor: Tensor| Ok(Bound::new(py, Column::shared(tensor))?.into_any());
    match data {
        ColumnData::Tensor(tensor) => column(tensor.clone()),
        ColumnData::Ids(ids) => match (ids.as_primitive_opt::<Int64Type>(), ids.as_string_view_opt()) {
            (Some(numbers), _) => column(Tensor::from_values(Vec::new(), numbers.values())),
            (None, Some(text)) => Ok(PyList::new(py, text.iter().map(Option::unwrap_or_default))?.into_any()),
            _ => Err(raised(py, &Error::internal(format!("a column of {}", ids.data_type())))),
        },
    }
}
