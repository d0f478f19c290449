//! Shards on their way in: Parquet decoded row group by row group, Arrow IPC mapped into memory.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch, RecordBatchIterator};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use arrow::ffi_stream::FFI_ArrowArrayStream;
use gristmill::error::{Error, Result};
use gristmill::sink::ColumnData;
use gristmill::source::file::{FileFormat, InputFile};
use gristmill::tensor::{DType, Tensor, TensorType};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::column::{Column, to_python};
use crate::errors::raised;
use crate::map::map;

/// One shard, open.
#[pyclass(frozen, module = "gristmill._gristmill")]
pub struct Shard {
    file: Arc<InputFile>,
    map: Option<Buffer>,
}

#[pymethods]
impl Shard {
    /// Opens a shard: its footer is read, no rows are.
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let open = || {
            let file = Arc::new(InputFile::open(&path)?);
            let map = if file.format == FileFormat::ArrowFile { Some(map(&path)?) } else { None };
            Ok(Self { file, map })
        };
        py.detach(open).map_err(|e: Error| raised(py, &e))
    }

    /// Rows of each row group.
    fn row_groups(&self) -> Vec<usize> {
        self.file.row_groups.iter().map(|g| g.rows).collect()
    }

    /// Whether a column lies in the file's map, and so takes no memory of its own.
    fn holds(&self, column: &Bound<'_, Column>) -> bool {
        let bytes = column.get().tensor().bytes();
        self.map.as_ref().is_some_and(|map| map.as_slice().as_ptr_range().contains(&bytes.as_ptr()))
    }

    /// The columns of one row group by name: `columns` gives name, dtype and shape of a row, as the manifest has them.
    fn read<'py>(
        &self,
        py: Python<'py>,
        row_group: usize,
        columns: Vec<(String, String, Vec<usize>)>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let data = py.detach(|| self.columns(row_group, &columns)).map_err(|e| raised(py, &e))?;
        let out = PyDict::new(py);
        for ((name, ..), data) in columns.iter().zip(&data) {
            out.set_item(name, to_python(py, data)?)?;
        }
        Ok(out)
    }
}

impl Shard {
    fn batch(&self, row_group: usize, names: &[String]) -> Result<RecordBatch> {
        if let Some(missing) = names.iter().find(|name| !self.file.has(name)) {
            let e = Error::usage("the manifest names a column that the shard does not have");
            return Err(e.column(missing.as_str()).file(self.file.name.clone()));
        }
        if let Some(map) = &self.map {
            return self.file.read_mapped(map, row_group, names);
        }
        let rows = self.file.row_groups.get(row_group).map_or(1, |g| g.rows);
        let batches = self.file.read(row_group, names, rows.max(1))?.collect::<Result<Vec<_>>>()?;
        match <[RecordBatch; 1]>::try_from(batches) {
            Ok([batch]) => Ok(batch),
            Err(several) => {
                let schema = several.first().map_or_else(|| Arc::clone(&self.file.schema), RecordBatch::schema);
                arrow::compute::concat_batches(&schema, &several)
                    .map_err(|e| Error::internal(format!("joining batches: {e}")))
            }
        }
    }

    fn columns(&self, row_group: usize, columns: &[(String, String, Vec<usize>)]) -> Result<Vec<ColumnData>> {
        let names: Vec<String> = columns.iter().map(|(name, ..)| name.clone()).collect();
        let batch = self.batch(row_group, &names)?;
        columns
            .iter()
            .map(|(name, dtype, shape)| {
                let array = batch.column_by_name(name).ok_or_else(|| Error::internal("a column was not read"))?;
                column(array, dtype, shape)
                    .map_err(|e| e.column(name.as_str()).row_group(row_group).file(self.file.name.clone()))
            })
            .collect()
    }
}

/// A column of a shard as its manifest describes it.
fn column(array: &dyn Array, dtype: &str, shape: &[usize]) -> Result<ColumnData> {
    if *array.data_type() == DataType::Utf8 && dtype == "utf8" {
        return Ok(ColumnData::Ids(arrow::array::make_array(array.to_data())));
    }
    let Some(dtype) = DType::from_name(dtype) else {
        return Err(Error::usage(format!("found {}, the manifest says {dtype}", array.data_type())));
    };
    let ty = TensorType::new(dtype, shape);
    let wrong = |what: String| Error::usage(format!("found {what}, the manifest says rows of {ty}"));
    if array.null_count() > 0 {
        return Err(wrong(format!("{} nulls", array.null_count())));
    }
    // `output.tensors = "binary"`: the bytes of a row, as they are.
    if let Some(bytes) = array.as_fixed_size_binary_opt() {
        let size = usize::try_from(bytes.value_length()).unwrap_or(usize::MAX);
        if size != ty.row_bytes() {
            return Err(wrong(format!("{size} bytes a row")));
        }
        let data = bytes.to_data();
        let data = data.buffers()[0].slice_with_length(data.offset() * size, data.len() * size);
        return Ok(ColumnData::Tensor(Tensor::new(ty, array.len(), data)));
    }
    let per_row = ty.row_elements();
    let list = array.as_fixed_size_list_opt();
    let found = list.map_or(Some(1), |l| usize::try_from(l.value_length()).ok());
    let values = list.map(|l| l.values().slice(l.offset() * per_row, l.len() * per_row));
    let flat: &dyn Array = values.as_ref().map_or(array, |v| v.as_ref());
    let fits = found == Some(per_row) && shape.is_empty() == list.is_none();
    if !fits || flat.null_count() > 0 || DType::from_arrow(flat.data_type()) != Some(dtype) {
        return Err(wrong(format!("{} with {} nulls inside", array.data_type(), flat.null_count())));
    }
    Tensor::from_flat_arrow(flat, shape, array.len()).map(ColumnData::Tensor)
}

/// The rows of shards as an Arrow stream in a capsule, read as the consumer asks for them.
#[pyfunction]
pub fn stream<'py>(
    py: Python<'py>,
    shards: Vec<Bound<'_, Shard>>,
    names: Vec<String>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let mut groups = VecDeque::new();
    let mut schema: Option<SchemaRef> = None;
    for shard in &shards {
        let shard = shard.get();
        let shard = Shard { file: Arc::clone(&shard.file), map: shard.map.clone() };
        if schema.is_none() {
            let keep = |f: &&Arc<arrow::datatypes::Field>| names.contains(f.name());
            let fields: Vec<_> = shard.file.schema.fields().iter().filter(keep).cloned().collect();
            schema = Some(Arc::new(arrow::datatypes::Schema::new(fields)));
        }
        let shard = Arc::new(shard);
        groups.extend((0..shard.file.row_groups.len()).map(|group| (Arc::clone(&shard), group)));
    }
    let schema = schema.ok_or_else(|| raised(py, &Error::internal("a stream of no shards")))?;
    let to = Arc::clone(&schema);
    let batches = std::iter::from_fn(move || {
        let (shard, group) = groups.pop_front()?;
        let batch = shard.batch(group, &names);
        Some(batch.map_err(|e| ArrowError::ExternalError(Box::new(e))).and_then(|b| b.with_schema(Arc::clone(&to))))
    });
    let reader = RecordBatchIterator::new(batches, schema);
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(reader)), c"arrow_array_stream")
}
