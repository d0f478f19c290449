//! Tables on their way in: Arrow streams without a copy, NumPy columns, and RLlib's episodes as msgpack items.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BinaryArray, NullArray, RecordBatch, RecordBatchReader, StringArray, make_array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{Field, Schema};
use arrow::record_batch::RecordBatchOptions;
use arrow_pyarrow::FromPyArrow;
use bytes::Bytes;
use gristmill::error::{Error, Result};
use gristmill::tensor::{DType, Tensor, TensorType};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};

use crate::checked;
use crate::errors::raised;

/// Batches of one schema, ready to be compiled.
#[pyclass(frozen, module = "gristmill._gristmill")]
pub struct Table(pub Vec<RecordBatch>);

#[pymethods]
impl Table {
    /// The batches of anything with `__arrow_c_stream__`, without a copy. Looks whether they hold what their types promise.
    #[staticmethod]
    fn from_stream(py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<Self> {
        let reader = arrow::ffi_stream::RecordBatchStreamReader::from_pyarrow_bound(stream)?;
        let schema = reader.schema();
        // What makes the batches may be Python itself, on this thread or another.
        let batches = py.detach(|| {
            let batches = reader.collect::<std::result::Result<Vec<_>, _>>();
            let batches = batches.map_err(|e| Error::usage(format!("the table's stream failed: {e}")))?;
            checked::check(&batches).map(|()| batches)
        });
        let mut batches = batches.map_err(|e| raised(py, &e))?;
        if batches.is_empty() {
            batches.push(RecordBatch::new_empty(schema));
        }
        Ok(Self(batches))
    }

    /// Msgpack items, as RLlib records episodes.
    #[staticmethod]
    fn from_items(py: Python<'_>, items: Vec<PyBackedBytes>) -> PyResult<Self> {
        let items = BinaryArray::from_iter_values(items.iter());
        let batch = RecordBatch::try_from_iter([("item", Arc::new(items) as ArrayRef)]);
        batch.map(|b| Self(vec![b])).map_err(|e| raised(py, &Error::internal(format!("items: {e}"))))
    }

    /// Columns of one table: `(name, values)`, where values are [`Values`], or a list of text and `None`.
    #[staticmethod]
    fn from_columns(py: Python<'_>, columns: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<Self> {
        let (mut fields, mut arrays, mut rows) = (Vec::new(), Vec::new(), None);
        for (name, values) in columns {
            let (field, array) = if let Ok(values) = values.cast::<Values>() {
                values.get().to_arrow(&name).map_err(|e| raised(py, &e.column(&name)))?
            } else if let Ok(text) = values.extract::<Vec<Option<PyBackedStr>>>() {
                let array: ArrayRef = if text.iter().any(Option::is_some) {
                    Arc::new(text.iter().map(Option::as_deref).collect::<StringArray>())
                } else {
                    Arc::new(NullArray::new(text.len()))
                };
                (Field::new(&name, array.data_type().clone(), true), array)
            } else {
                return Err(PyTypeError::new_err(format!("column {name:?}: expected numbers or text")));
            };
            let expected = *rows.get_or_insert(array.len());
            if array.len() != expected {
                let what = format!("found {} rows, expected {expected} as in the columns before", array.len());
                return Err(raised(py, &Error::usage(what).column(name)));
            }
            fields.push(field);
            arrays.push(array);
        }
        let options = RecordBatchOptions::new().with_row_count(rows);
        let batch = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options);
        batch.map(|b| Self(vec![b])).map_err(|e| raised(py, &Error::internal(format!("columns: {e}"))))
    }
}

/// The values of a NumPy array in C order.
#[pyclass(frozen, module = "gristmill._gristmill")]
pub struct Values {
    tensor: Tensor,
    /// Which rows have a value; all if not given.
    valid: Option<Vec<bool>>,
}

#[pymethods]
impl Values {
    /// `array.tobytes()` of an array in C order and this machine's byte order, with NumPy's name of its dtype.
    #[new]
    #[pyo3(signature = (data, dtype, shape, valid = None))]
    fn new(data: PyBackedBytes, dtype: &str, shape: Vec<usize>, valid: Option<Vec<bool>>) -> PyResult<Self> {
        let Some(dtype) = DType::from_name(dtype) else {
            let known = DType::ALL.map(DType::name).join(", ");
            return Err(PyTypeError::new_err(format!("found dtype {dtype}, expected one of {known}")));
        };
        let Some((&rows, row)) = shape.split_first() else {
            return Err(PyTypeError::new_err("found an array without rows (0 dimensions)"));
        };
        let ty = TensorType::new(dtype, row);
        if rows.checked_mul(ty.row_bytes()) != Some(data.len()) {
            return Err(PyTypeError::new_err(format!("found {} bytes, expected {rows} rows of {ty}", data.len())));
        }
        if valid.as_ref().is_some_and(|valid| valid.len() != rows) {
            return Err(PyTypeError::new_err("a mask of another length than its column"));
        }
        Ok(Self { tensor: Tensor::new(ty, rows, Bytes::from_owner(data).into()), valid })
    }
}

impl Values {
    /// The values, all of them there.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    fn to_arrow(&self, name: &str) -> Result<(Field, ArrayRef)> {
        let shape = &self.tensor.ty().shape;
        let mut array = self.tensor.to_arrow()?;
        if let Some(valid) = &self.valid {
            let nulls = Some(NullBuffer::from(valid.clone()));
            let data = array.to_data().into_builder().nulls(nulls).build();
            array = make_array(data.map_err(|e| Error::internal(format!("nulls: {e}")))?);
        }
        let field = Field::new(name, array.data_type().clone(), true);
        if shape.is_empty() {
            return Ok((field, array));
        }
        let dims: Vec<String> = shape.iter().map(ToString::to_string).collect();
        let metadata = HashMap::from([
            ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
            ("ARROW:extension:metadata".to_owned(), format!("{{\"shape\":[{}]}}", dims.join(","))),
        ]);
        Ok((field.with_metadata(metadata), array))
    }
}
