//! One shard: a file with the columns that the manifest promises, read row group by row group.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::buffer::Buffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, SchemaRef};

use crate::error::{Error, Result};
use crate::regular;
use crate::sink::{ColumnData, ColumnType, RowGroupData, ShardSchema};
use crate::source::file::{FileFormat, InputFile, RowGroup};
use crate::source::ingest::by_name;
use crate::tensor::{DType, Tensor};

/// Raw bytes of a row group that a reader takes on: twice what [`crate::sink::row_group_rows`] aims at. A single row may
/// be larger.
const LARGEST_GROUP: usize = 64 << 20;

/// One shard, opened.
#[derive(Debug, Clone)]
pub struct Shard {
    file: Arc<InputFile>,
    schema: Arc<ShardSchema>,
    /// The whole file in memory, if rows are read out of that.
    map: Option<Buffer>,
}

/// Why a shard cannot be opened.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// Its columns are not those that the manifest promises, or contradict themselves.
    Columns(Error),
    /// It is missing, no regular file of the data set, damaged, or cannot be read.
    File(Error),
}

impl From<Error> for OpenError {
    fn from(error: Error) -> Self {
        Self::File(error)
    }
}

impl OpenError {
    /// The error, its kind aside.
    pub fn into_error(self) -> Error {
        match self {
            Self::Columns(e) | Self::File(e) => e,
        }
    }
}

impl Shard {
    /// Opens the file `name` of the data set in `root`.
    pub(super) fn open(root: &Path, name: &str, schema: &Arc<ShardSchema>) -> Result<Self, OpenError> {
        let path = name.split('/').fold(root.to_owned(), |path, part| path.join(part));
        let meta = std::fs::symlink_metadata(&path).map_err(|e| {
            let error = match e.kind() {
                std::io::ErrorKind::NotFound => Error::data("the file is missing"),
                _ => Error::environment(format!("cannot look at the file: {e}")),
            };
            error.file(name).io_kind_of(e.kind())
        })?;
        if !meta.is_file() {
            return Err(Error::data(format!("found {}, expected a shard", regular::kind(&meta))).file(name).into());
        }
        // A folder on the way may be a link out of the data set.
        let inside = root.canonicalize().and_then(|root| Ok(path.canonicalize()?.starts_with(root)));
        if !inside.is_ok_and(|inside| inside) {
            return Err(Error::data("the file lies outside the data set, behind a link").file(name).into());
        }
        let file = InputFile::open_in(&path, root).map_err(|e| match as_data(e, name) {
            e if e.place().column.is_some() => OpenError::Columns(e),
            e => OpenError::File(e),
        })?;
        let shard = Self { file: Arc::new(file), schema: Arc::clone(schema), map: None };
        shard.check_columns().map_err(OpenError::Columns)?;
        shard.check_groups()?;
        Ok(shard)
    }

    /// The shard with rows read out of `map`, the whole of its Arrow file in memory: uncompressed columns are not copied.
    #[must_use]
    pub fn mapped(self, map: Buffer) -> Self {
        Self { map: Some(map), ..self }
    }

    /// Whether a column lies in the file's map, and so takes no memory of its own.
    #[must_use]
    pub fn holds(&self, column: &Tensor) -> bool {
        self.map.as_ref().is_some_and(|map| map.as_slice().as_ptr_range().contains(&column.bytes().as_ptr()))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// How it is laid out.
    #[must_use]
    pub fn format(&self) -> FileFormat {
        self.file.format
    }

    /// Its columns as the file has them, of the names and types that the manifest promises.
    #[must_use]
    pub fn arrow_schema(&self) -> &SchemaRef {
        &self.file.schema
    }

    /// Its path in the manifest.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.file.name
    }

    /// Position of a column in the schema.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<usize> {
        self.schema.columns.iter().position(|(n, _)| n == name)
    }

    /// The name of column `i` of the schema.
    #[must_use]
    pub fn column_name(&self, i: usize) -> &str {
        &self.schema.columns[i].0
    }

    /// Its row groups, or record batches.
    #[must_use]
    pub fn row_groups(&self) -> &[RowGroup] {
        &self.file.row_groups
    }

    /// Its rows.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.file.rows()
    }

    /// Names, order and types as the manifest has them.
    fn check_columns(&self) -> Result<()> {
        let expected = self.schema.arrow();
        let wrong = |what: String| Err(Error::data(what).file(self.name()));
        let names = |fields: &arrow::datatypes::Fields| {
            let names: Vec<&str> = fields.iter().map(|f| f.name().as_str()).collect();
            crate::error::visible(&names.join(", "))
        };
        let (found, wanted) = (self.file.schema.fields(), expected.fields());
        if !found.iter().map(|f| f.name()).eq(wanted.iter().map(|f| f.name())) {
            return wrong(format!("found the columns {}, expected {}", names(found), names(wanted)));
        }
        for (found, wanted) in found.iter().zip(wanted) {
            // The shape and dtype of a tensor, whether it is stored as a list or as bytes.
            let shape = |f: &arrow::datatypes::Field| {
                let get = |key: &str| f.metadata().get(key).cloned();
                let told = [get("ARROW:extension:metadata"), get("shape"), get("dtype")];
                let told: Vec<String> = told.into_iter().flatten().collect();
                (!told.is_empty()).then(|| told.join(" "))
            };
            if !found.data_type().equals_datatype(wanted.data_type()) || shape(found) != shape(wanted) {
                let of = |f: &arrow::datatypes::Field| {
                    let shape = shape(f).map(|s| format!(" with {s}")).unwrap_or_default();
                    format!("{}{}", crate::source::ingest::type_name(f), crate::error::visible(&shape))
                };
                let error = Error::data(format!("found {}, expected {}", of(found), of(wanted)));
                return Err(error.file(self.name()).column(found.name().as_str()));
            }
        }
        Ok(())
    }

    /// Row groups that fit into memory, by the bytes that the schema says they have.
    fn check_groups(&self) -> Result<()> {
        let row_bytes = self.schema.row_bytes().max(1);
        for (i, group) in self.row_groups().iter().enumerate() {
            if group.rows > 1 && group.rows.saturating_mul(row_bytes) > LARGEST_GROUP {
                let most = (LARGEST_GROUP / row_bytes).max(1);
                let error = Error::data(format!("found a row group of {} rows, expected at most {most}", group.rows));
                return Err(error.file(self.name()).row_group(i));
            }
        }
        Ok(())
    }

    /// A whole row group; of each column in `columns` (positions in the schema) one, in that order. Bounded, as every shard
    /// is opened only if its row groups are.
    ///
    /// # Errors
    /// If there is no such row group, or it is damaged, or has a null or a boolean that is none: with file, row group, row
    /// and column.
    pub fn row_group(&self, group: usize, columns: &[usize]) -> Result<RowGroupData> {
        self.read(group, columns).map(|(_, data)| data)
    }

    /// The same as Arrow, as the file has it; columns come in the order of the schema.
    ///
    /// # Errors
    /// See [`Self::row_group`].
    pub fn record_batch(&self, group: usize, columns: &[usize]) -> Result<RecordBatch> {
        let (batch, _) = self.read(group, columns)?;
        self.file.as_recorded(&batch)
    }

    /// What the file has, and the values in it: that they can be decoded is what checks them.
    fn read(&self, group: usize, columns: &[usize]) -> Result<(RecordBatch, RowGroupData)> {
        let names: Vec<String> = columns.iter().map(|&c| self.column_name(c).to_owned()).collect();
        let batch = match &self.map {
            Some(map) => self.file.read_mapped(map, group, &names),
            None => self.read_file(group, &names),
        };
        let batch = batch.map_err(|e| as_data(e, self.name()))?;
        let first = self.row_groups().get(group).map_or(0, |g| g.first_row);
        let data = self.decode(&batch, columns, first).map_err(|e| e.file(self.name()).row_group(group))?;
        Ok((batch, data))
    }

    fn read_file(&self, group: usize, names: &[String]) -> Result<RecordBatch> {
        let rows = self.row_groups().get(group).map_or(0, |g| g.rows);
        let parts = self.file.read(group, names, rows.max(1))?.collect::<Result<Vec<_>>>()?;
        match <[RecordBatch; 1]>::try_from(parts) {
            Ok([whole]) => Ok(whole),
            Err(parts) => {
                let schema = parts.first().map_or_else(|| Arc::clone(&self.file.schema), RecordBatch::schema);
                arrow::compute::concat_batches(&schema, &parts)
                    .map_err(|e| Error::data(format!("the rows cannot be joined: {e}")).row_group(group))
            }
        }
    }

    fn decode(&self, batch: &RecordBatch, columns: &[usize], first_row: u64) -> Result<RowGroupData> {
        let arrays = by_name(batch);
        let read = |&column: &usize| {
            let (name, ty) = &self.schema.columns[column];
            let array = arrays
                .get(name.as_str())
                .ok_or_else(|| Error::internal("a column was not read").column(name.as_str()))?;
            decode(array, ty, first_row).map_err(|e| e.column(name.as_str()))
        };
        Ok(RowGroupData { rows: batch.num_rows(), columns: columns.iter().map(read).collect::<Result<_>>()? })
    }
}

/// One column of a batch. The file's types were checked.
fn decode(array: &ArrayRef, ty: &ColumnType, first_row: u64) -> Result<ColumnData> {
    no_nulls(array, 1, first_row)?;
    let rows = array.len();
    match ty {
        ColumnType::Tensor(ty) if ty.shape.is_empty() => {
            Ok(ColumnData::Tensor(Tensor::from_flat_arrow(array.as_ref(), [], rows)?))
        }
        ColumnType::Tensor(ty) if array.as_fixed_size_binary_opt().is_some() => {
            let bytes = array.as_fixed_size_binary().values().slice_with_length(0, rows * ty.row_bytes());
            if let (DType::Bool, Some(at)) = (ty.dtype, bytes.iter().position(|b| *b > 1)) {
                let row = first_row + (at / ty.row_bytes().max(1)) as u64;
                return Err(Error::data(format!("found the byte {}, expected a boolean: 0 or 1", bytes[at])).row(row));
            }
            Ok(ColumnData::Tensor(Tensor::new(ty.clone(), rows, bytes)))
        }
        ColumnType::Tensor(ty) => {
            let list = array.as_fixed_size_list_opt().ok_or_else(|| Error::data("found no fixed-size list"))?;
            let len = ty.row_elements();
            no_nulls(list.values(), len, first_row)?;
            Ok(ColumnData::Tensor(Tensor::from_flat_arrow(list.values().as_ref(), ty.shape.clone(), rows)?))
        }
        ColumnType::Int64 => Ok(ColumnData::Ids(Arc::clone(array))),
        // Without a copy of the text.
        ColumnType::Utf8 => cast(array, &DataType::Utf8View)
            .map(ColumnData::Ids)
            .map_err(|e| Error::data(format!("found unreadable text: {e}"))),
    }
}

fn no_nulls(array: &ArrayRef, elements: usize, first_row: u64) -> Result<()> {
    let Some(nulls) = array.logical_nulls().filter(|n| n.null_count() > 0) else { return Ok(()) };
    let at = (0..nulls.len()).find(|&i| nulls.is_null(i)).unwrap_or(0);
    Err(Error::data("found null, expected a value: no value of a shard is null")
        .row(first_row + (at / elements.max(1)) as u64))
}

/// What is wrong with a shard is the data set's fault, not the user's who looks at it.
fn as_data(error: Error, name: &str) -> Error {
    use crate::error::Kind;
    if error.kind() != Kind::Usage {
        return error.file(name);
    }
    let place = error.place();
    let mut out = Error::data(error.what().to_owned()).file(name);
    if let Some(group) = place.row_group {
        out = out.row_group(group);
    }
    if let Some(row) = place.row {
        out = out.row(row);
    }
    if let Some(column) = &place.column {
        out = out.column(column.clone());
    }
    if let Some(kind) = error.io_kind() {
        out = out.io_kind_of(kind);
    }
    out.hint("the shard is damaged: write the data set anew, or copy it again")
}
