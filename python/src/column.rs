//! Columns on their way to NumPy, without a copy: NumPy reads `__array_interface__` and keeps the column alive.
//!
//! The buffer protocol would say the same, but stable for all Pythons it is only from 3.11 on.

use gristmill::error::{Error, Result};
use gristmill::sink::ColumnData;
use gristmill::tensor::{DType, Tensor};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyDict, PyList, PyTuple};

use arrow::array::AsArray;
use arrow::buffer::MutableBuffer;
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
        columns.iter().map(|parts| gather_column(parts, &places)).collect::<Result<Vec<_>>>()
    });
    let gathered = gathered.map_err(|e| raised(py, &e))?;
    Ok(gathered.into_iter().map(Column::own).collect())
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = usize> {
    // What is negative becomes too large, and is refused as such.
    let number = |b: &[u8; 8]| usize::try_from(i64::from_ne_bytes(*b)).unwrap_or(usize::MAX);
    bytes.as_chunks::<8>().0.iter().map(number)
}

fn gather_column(parts: &[Tensor], places: &[(usize, usize)]) -> Result<Tensor> {
    let Some(ty) = parts.first().map(Tensor::ty) else { return Err(Error::internal("a column without parts")) };
    let size = ty.row_bytes();
    if let Some(other) = parts.iter().find(|p| p.ty() != ty) {
        return Err(Error::internal(format!("parts of {ty} and {}", other.ty())));
    }
    let mut out = MutableBuffer::with_capacity(places.len() * size);
    for &(part, row) in places {
        let bytes = parts.get(part).filter(|p| row < p.rows()).map(|p| &p.bytes()[row * size..(row + 1) * size]);
        out.extend_from_slice(bytes.ok_or_else(|| Error::internal("a row that there is not"))?);
    }
    Ok(Tensor::new(ty.clone(), places.len(), out.into()))
}

/// A column as Python gets it: a [`Column`], or a list of text.
pub fn to_python<'py>(py: Python<'py>, data: &ColumnData) -> PyResult<Bound<'py, PyAny>> {
    let column = |tensor: Tensor| Ok(Bound::new(py, Column::shared(tensor))?.into_any());
    match data {
        ColumnData::Tensor(tensor) => column(tensor.clone()),
        ColumnData::Ids(ids) => match (ids.as_primitive_opt::<Int64Type>(), ids.as_string_opt::<i32>()) {
            (Some(numbers), _) => column(Tensor::from_values(Vec::new(), numbers.values())),
            (None, Some(text)) => Ok(PyList::new(py, text.iter().map(Option::unwrap_or_default))?.into_any()),
            _ => Err(raised(py, &Error::internal(format!("a column of {}", ids.data_type())))),
        },
    }
}
