//! Data sets on their way in: the library reads and checks them, Arrow files are mapped into memory.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchIterator};
use arrow::buffer::MutableBuffer;
use arrow::error::ArrowError;
use arrow::ffi_stream::FFI_ArrowArrayStream;
use gristmill::dataset::{self, LaidOut};
use gristmill::error::{Error, Kind, Result};
use gristmill::indexed::INDEX;
use gristmill::sink::{MANIFEST, RowGroupData, ShardSchema};
use gristmill::source::file::FileFormat;
use gristmill::tensor::{DType, Tensor, TensorType};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyCapsule, PyList};

use crate::column::{Column, to_python};
use crate::errors::raised;
use crate::map::map;

/// A written data set.
#[pyclass(frozen, module = "gristmill._gristmill")]
pub struct Dataset(dataset::Dataset);

#[pymethods]
impl Dataset {
    /// Opens a data set: its manifest is read and checked, no shard is.
    #[new]
    fn new(py: Python<'_>, directory: PathBuf) -> PyResult<Self> {
        let open = || {
            let dataset = dataset::Dataset::open(&directory)?;
            for module in dataset.modules() {
                let (record, place) = (module.record(), format!("modules.{}.rows", module.name()));
                let rows = record.shards.iter().fold(0u64, |sum, shard| sum.saturating_add(shard.rows));
                if rows != record.rows {
                    let what = format!("found {rows} rows in all shards, the manifest says {}", record.rows);
                    let file = directory.join(MANIFEST).display().to_string();
                    return Err(Error::data(what).file(file).job_key(place));
                }
            }
            Ok(dataset)
        };
        py.detach(open).map(Self).map_err(|e| raised(py, &of_caller(&e, None)))
    }

    /// Its manifest as JSON.
    fn manifest(&self, py: Python<'_>) -> PyResult<String> {
        self.0.manifest().to_json().map_err(|e| raised(py, &e))
    }

    /// Opens a shard of a module: its footer is read, no rows are.
    fn shard(&self, py: Python<'_>, module: &str, number: usize) -> PyResult<Shard> {
        let module = self.module(py, module)?;
        let record = module.record().shards.get(number);
        let path = record.map(|shard| self.0.root().join(&shard.file));
        let open = || {
            let shard = module.shard(number)?;
            let promised = record.map_or(0, |shard| shard.rows);
            if shard.rows() != promised {
                return Err(Error::data(format!("found {} rows, the manifest says {promised}", shard.rows())));
            }
            mapped(shard)
        };
        py.detach(open).map(Shard).map_err(|e| raised(py, &of_caller(&e, path.as_deref())))
    }

    /// The steps of a table of a module; no shard of it is opened before a step is asked for.
    fn steps(&self, py: Python<'_>, module: &str, table: &str, cache_bytes: usize) -> PyResult<Steps> {
        let module = self.module(py, module)?;
        let there = module.tables().iter().find(|t| t.name == table);
        let table = there.ok_or_else(|| raised(py, &Error::internal(format!("there is no table {table:?}"))))?;
        let rows = self.0.root().join(&module.record().folder);
        Ok(Steps { steps: dataset::Steps::new(table, cache_bytes, Arc::new(mapped)), rows })
    }

    /// The rows of a module as an Arrow stream in a capsule, read as the consumer asks for them. `shards` are all of its
    /// shards.
    fn stream<'py>(
        &self,
        py: Python<'py>,
        module: &str,
        shards: Vec<Bound<'_, Shard>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let module = self.module(py, module)?;
        let shards: Vec<dataset::Shard> = shards.iter().map(|shard| shard.get().0.clone()).collect();
        if !module.tables().is_empty() {
            return laid_out(module, shards)
                .map_err(|e| raised(py, &of_caller(&e, None)))
                .and_then(|stream| PyCapsule::new_with_value(py, stream, c"arrow_array_stream"));
        }
        let schema = shards.first().map_or_else(|| module.schema().arrow(), |first| Arc::clone(first.arrow_schema()));
        let columns: Vec<usize> = (0..module.schema().columns.len()).collect();
        let mut groups: VecDeque<(dataset::Shard, usize)> = VecDeque::new();
        for shard in shards {
            groups.extend((0..shard.row_groups().len()).map(|group| (shard.clone(), group)));
        }
        let to = Arc::clone(&schema);
        let batches = std::iter::from_fn(move || {
            let (shard, group) = groups.pop_front()?;
            let batch = shard.record_batch(group, &columns).map_err(|e| of_caller(&e, Some(shard.path())));
            Some(batch.map_err(|e| ArrowError::ExternalError(Box::new(e))).and_then(|b| b.with_schema(Arc::clone(&to))))
        });
        let reader = RecordBatchIterator::new(batches, schema);
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(reader)), c"arrow_array_stream")
    }
}

impl Dataset {
    fn module(&self, py: Python<'_>, name: &str) -> PyResult<&dataset::Module> {
        let there = self.0.module(name);
        there.ok_or_else(|| raised(py, &Error::internal(format!("there is no module {name:?}"))))
    }
}

/// Bytes of a batch of rows whose windows are laid out.
const BATCH: usize = 16 << 20;

/// The rows of a module with its windows laid out.
fn laid_out(module: &dataset::Module, shards: Vec<dataset::Shard>) -> Result<FFI_ArrowArrayStream> {
    let rows = LaidOut::with(module, &(Arc::new(mapped) as Arc<dataset::Prepare>))?;
    let schema = ShardSchema::new(rows.columns().to_vec()).with_tensors(module.schema().tensors);
    let all: Vec<usize> = (0..rows.columns().len()).collect();
    let there = rows.needs(&all);
    let batch_rows = (BATCH / schema.row_bytes().max(1)).max(1);
    let to = schema.arrow();
    let mut groups: VecDeque<(dataset::Shard, usize)> = VecDeque::new();
    for shard in shards {
        groups.extend((0..shard.row_groups().len()).map(|group| (shard.clone(), group)));
    }
    let mut open: Option<(dataset::Shard, usize, RowGroupData, usize)> = None;
    let next = move || -> Result<Option<RecordBatch>> {
        let (shard, group, data, done) = loop {
            match open.take() {
                Some(open) if open.3 < open.2.rows => break open,
                _ => {}
            }
            let Some((shard, group)) = groups.pop_front() else { return Ok(None) };
            let data = shard.row_group(group, &there).map_err(|e| of_caller(&e, Some(shard.path())))?;
            open = Some((shard, group, data, 0));
        };
        let end = data.rows.min(done + batch_rows);
        let first = shard.row_groups()[group].first_row;
        let laid = rows.rows((&there, &data), done..end, &all, first);
        let laid = laid.map_err(|e| {
            let file = e.place().file.is_none().then_some(shard.path());
            of_caller(&e, file)
        })?;
        open = Some((shard, group, data, end));
        laid.record_batch(&schema).map(Some)
    };
    let batches = std::iter::from_fn({
        let mut next = next;
        move || next().map_err(|e| ArrowError::ExternalError(Box::new(e))).transpose()
    });
    Ok(FFI_ArrowArrayStream::new(Box::new(RecordBatchIterator::new(batches, to))))
}

/// Arrow files are mapped into memory.
fn mapped(shard: dataset::Shard) -> Result<dataset::Shard> {
    match shard.format() {
        FileFormat::ArrowFile => {
            let map = map(shard.path())?;
            Ok(shard.mapped(map))
        }
        _ => Ok(shard),
    }
}

/// Steps that stand once, and windows over them laid out.
#[pyclass(frozen, module = "gristmill._gristmill")]
pub struct Steps {
    steps: dataset::Steps,
    /// Where the rows are that point into it.
    rows: PathBuf,
}

#[pymethods]
impl Steps {
    /// Columns of windows, laid out. `index` are the offsets (int64), lengths and pads (int32) of some rows, as bytes, and `rows` their numbers in the module
    /// (int64), where these are known.
    fn lay_out<'py>(
        &self,
        py: Python<'py>,
        columns: Vec<String>,
        index: [PyBackedBytes; 3],
        rows: PyBackedBytes,
    ) -> PyResult<Bound<'py, PyList>> {
        let lay = || {
            let steps = &self.steps.table().steps;
            let at = |name: &String| {
                steps.column(name).ok_or_else(|| Error::internal("there is no such column").column(name.as_str()))
            };
            let columns = columns.iter().map(at).collect::<Result<Vec<_>>>()?;
            let tensor = |(bytes, (_, dtype)): (&PyBackedBytes, (&str, DType))| {
                let ty = TensorType::new(dtype, self.steps.table().prefix.clone());
                let rows = bytes.len() / ty.row_bytes().max(1);
                if rows * ty.row_bytes() != bytes.len() {
                    return Err(Error::internal("an index of another shape"));
                }
                let mut buffer = MutableBuffer::with_capacity(bytes.len());
                buffer.extend_from_slice(bytes);
                Ok(Tensor::new(ty, rows, buffer.into()))
            };
            let index = index.iter().zip(INDEX).map(tensor).collect::<Result<Vec<_>>>()?;
            let row = |i: usize| rows.as_chunks::<8>().0.get(i).map(|bytes| u64::from_ne_bytes(*bytes));
            self.steps.lay_out(&columns, [&index[0], &index[1], &index[2]], row)
        };
        let laid = py.detach(lay).map_err(|e| {
            // A fault of the table names its file; one of the index is in the module's rows.
            let file = e.place().file.is_none().then_some(self.rows.as_path());
            raised(py, &of_caller(&e, file))
        })?;
        let columns = laid.into_iter().map(|tensor| Py::new(py, Column::own(tensor))).collect::<PyResult<Vec<_>>>()?;
        PyList::new(py, columns)
    }
}

/// One shard, open.
#[pyclass(frozen, module = "gristmill._gristmill")]
pub struct Shard(dataset::Shard);

#[pymethods]
impl Shard {
    /// Rows of each row group.
    fn row_groups(&self) -> Vec<usize> {
        self.0.row_groups().iter().map(|g| g.rows).collect()
    }

    /// Whether a column lies in the file's map, and so takes no memory of its own.
    fn holds(&self, column: &Bound<'_, Column>) -> bool {
        self.0.holds(column.get().tensor())
    }

    /// Columns of one row group, in the order of their names.
    fn read<'py>(&self, py: Python<'py>, row_group: usize, columns: Vec<String>) -> PyResult<Bound<'py, PyList>> {
        let read = || {
            let at = |name: &String| {
                self.0.column(name).ok_or_else(|| Error::internal("there is no such column").column(name.as_str()))
            };
            let columns = columns.iter().map(at).collect::<Result<Vec<_>>>()?;
            self.0.row_group(row_group, &columns)
        };
        let data = py.detach(read).map_err(|e| raised(py, &of_caller(&e, Some(self.0.path()))))?;
        let columns = data.columns.iter().map(|column| to_python(py, column)).collect::<PyResult<Vec<_>>>()?;
        PyList::new(py, columns)
    }
}

/// The error as one of the call that named the data set: what is wrong with a data set is wrong with what was to be read,
/// and a file is told by its whole path, since a program may have several data sets open.
fn of_caller(error: &Error, file: Option<&Path>) -> Error {
    let kind = if error.kind() == Kind::Data { Kind::Usage } else { error.kind() };
    let mut place = error.place().clone();
    place.file = file.map(|path| path.display().to_string()).or(place.file);
    let mut out = Error::new(kind, error.what()).at(place);
    if let Some(hint) = error.hint_text() {
        out = out.hint(hint);
    }
    if let Some(kind) = error.io_kind() {
        out = out.io_kind_of(kind);
    }
    out
}
