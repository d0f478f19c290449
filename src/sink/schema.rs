//! What a shard holds: its columns, and the rows of one row group.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeBinaryArray, FixedSizeListArray, RecordBatch, RecordBatchOptions,
    new_empty_array,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};

use super::pages;
use super::texts::LongTexts;
use crate::error::{Error, Result};
use crate::job::TensorStorage;
use crate::tensor::{Tensor, TensorType};

/// Type of one column of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ColumnType {
    /// Tensors of one dtype and shape; what training reads.
    Tensor(TensorType),
    /// 64-bit integers that tell where a row came from (`t`, integer episode ids).
    Int64,
    /// Text that tells where a row came from (`eps_id`, `agent_id`).
    Utf8,
}

impl ColumnType {
    /// Dtype under its name in the manifest: `NumPy`'s, or `utf8`.
    #[must_use]
    pub const fn dtype_name(&self) -> &'static str {
        match self {
            Self::Tensor(ty) => ty.dtype.name(),
            Self::Int64 => "int64",
            Self::Utf8 => "utf8",
        }
    }

    /// Shape of one row; empty for scalars and text.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        match self {
            Self::Tensor(ty) => &ty.shape,
            Self::Int64 | Self::Utf8 => &[],
        }
    }

    /// Bytes per row in memory. For text an estimate: ids are hexadecimal digests of 32 to 36 characters as a rule. What is
    /// longer, [`LongTexts`] tells.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        match self {
            Self::Tensor(ty) => ty.row_bytes(),
            Self::Int64 => 8,
            Self::Utf8 => LongTexts::USUAL,
        }
    }

    fn arrow(&self, storage: TensorStorage) -> DataType {
        match self {
            Self::Tensor(ty) if ty.shape.is_empty() => ty.dtype.arrow(),
            Self::Tensor(ty) if is_binary(ty, storage) => {
                DataType::FixedSizeBinary(i32::try_from(ty.row_bytes()).unwrap_or(i32::MAX))
            }
            // Rows of more than 2^31 elements are refused by `ShardSchema::check`.
            Self::Tensor(ty) => {
                DataType::FixedSizeList(element(ty), i32::try_from(ty.row_elements()).unwrap_or(i32::MAX))
            }
            Self::Int64 => DataType::Int64,
            Self::Utf8 => DataType::Utf8,
        }
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor(ty) => ty.fmt(f),
            Self::Int64 | Self::Utf8 => f.write_str(self.dtype_name()),
        }
    }
}

/// Whether a tensor is stored as bytes. Rows without elements are lists in any case: Parquet knows no empty ones.
fn is_binary(ty: &TensorType, storage: TensorStorage) -> bool {
    storage == TensorStorage::Binary && !ty.shape.is_empty() && ty.row_elements() > 0
}

/// The element of the lists of a tensor column.
fn element(ty: &TensorType) -> FieldRef {
    Arc::new(Field::new_list_field(ty.dtype.arrow(), true))
}

/// The columns of a module's shards, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardSchema {
    /// Name and type of each column.
    pub columns: Vec<(String, ColumnType)>,
    /// How tensors with a shape are stored.
    pub tensors: TensorStorage,
    /// Bytes that a row takes with its windows laid out, beside those that are stored.
    pub windows: usize,
    /// What long texts take beside that.
    pub texts: LongTexts,
}

impl ShardSchema {
    /// A schema from its columns. Tensors are lists.
    #[must_use]
    pub fn new(columns: Vec<(String, ColumnType)>) -> Self {
        Self { columns, tensors: TensorStorage::List, windows: 0, texts: LongTexts::default() }
    }

    /// The same columns with tensors stored otherwise.
    #[must_use]
    pub fn with_tensors(self, tensors: TensorStorage) -> Self {
        Self { tensors, ..self }
    }

    /// The same columns, of rows that take so many bytes more with their windows laid out.
    #[must_use]
    pub fn with_windows(self, bytes: usize) -> Self {
        Self { windows: bytes, ..self }
    }

    /// The same columns, of rows with such texts.
    #[must_use]
    pub fn with_texts(self, texts: LongTexts) -> Self {
        Self { texts, ..self }
    }

    /// Checks what a file cannot hold: two columns of one name, rows too large for a list or a page.
    pub fn check(&self) -> Result<()> {
        let mut names: Vec<&str> = self.columns.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|w| w[0] == w[1]) {
            return Err(Error::usage("found two output columns of one name")
                .column(twice[0])
                .hint("rename the one in the input: a recorded column, or a field of a struct, is named as another"));
        }
        for (name, ty) in &self.columns {
            let ColumnType::Tensor(tensor) = ty else { continue };
            let bytes = pages::row_page_bytes(tensor, self.tensors);
            if bytes.is_none_or(|n| n > pages::LARGEST_ROW) {
                let most = pages::LARGEST_ROW >> 20;
                let takes = bytes.map_or(String::new(), |n| format!(", which take {} MiB each in a file", n >> 20));
                return Err(Error::usage(format!("found rows of {ty}{takes}, expected at most {most} MiB"))
                    .column(name)
                    .hint("lower max_seq_len; where a row is one step, the recorded values are too large for a file"));
            }
        }
        Ok(())
    }

    /// The schema in Arrow's terms. Tensors with a shape are flat fixed-size lists that carry the metadata of the
    /// canonical extension `arrow.fixed_shape_tensor`.
    ///
    /// No row and no value is ever null, but the values of lists are declared nullable: that is how the extension's
    /// storage is declared, and pyarrow takes a Parquet column of required values for a plain list.
    ///
    /// Stored as bytes, tensors have `shape` and `dtype` as plain metadata: `[4, 4]` and `float32`.
    ///
    /// The metadata is written by hand: arrow-schema 60.1's `FixedShapeTensor` adds `"dim_names":null`, which pyarrow
    /// refuses to read.
    #[must_use]
    pub fn arrow(&self) -> SchemaRef {
        let field = |(name, ty): &(String, ColumnType)| {
            let field = Field::new(name, ty.arrow(self.tensors), false);
            if ty.shape().is_empty() {
                return field;
            }
            let dims: Vec<String> = ty.shape().iter().map(ToString::to_string).collect();
            if let DataType::FixedSizeBinary(_) = field.data_type() {
                return field.with_metadata(HashMap::from([
                    ("shape".to_owned(), format!("[{}]", dims.join(","))),
                    ("dtype".to_owned(), ty.dtype_name().to_owned()),
                ]));
            }
            field.with_metadata(HashMap::from([
                ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
                ("ARROW:extension:metadata".to_owned(), format!("{{\"shape\":[{}]}}", dims.join(","))),
            ]))
        };
        Arc::new(Schema::new(self.columns.iter().map(field).collect::<Vec<_>>()))
    }

    /// Bytes of a row in memory.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.columns.iter().map(|(_, ty)| ty.row_bytes()).fold(0, usize::saturating_add)
    }
}

/// Rows per row group: a function of the schema, the job and the lengths of ids only, so that bytes depend on nothing else.
///
/// Row groups hold about 32 MiB of raw data: large enough for compression and few seeks, small enough that several
/// are in flight on any machine. A shard that needs more than one is cut into equal ones, without a small tail.
///
/// ```text
/// rows_per_shard = 65536, 1 KiB a row = 64 MiB   ->  2 row groups of 32768 rows
/// rows_per_shard = 65536, 100 B a row = 6.3 MiB  ->  1 row group  of 65536 rows
/// rows_per_shard = 65536, 40 MiB a row           ->  65536 row groups of one row
/// ```
#[must_use]
pub fn row_group_rows(schema: &ShardSchema, rows_per_shard: usize) -> usize {
    const TARGET: usize = 32 << 20;
    // Readers lay out whole row groups, too: rows whose windows are stored once are cut as if they were not, and texts that
    // rows share here are there once a row.
    let row = schema.row_bytes().saturating_add(schema.windows).max(1);
    let most = schema.texts.rows_within(TARGET, row).max(1);
    let rows_per_shard = rows_per_shard.max(1);
    let groups = rows_per_shard.div_ceil(most);
    rows_per_shard.div_ceil(groups)
}

/// The values of one column in one row group.
#[derive(Debug, Clone)]
pub enum ColumnData {
    /// Tensors.
    Tensor(Tensor),
    /// `Int64`, or text as `Utf8View`, of which rows of one episode share what they have; without nulls.
    Ids(ArrayRef),
}

impl ColumnData {
    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Self::Tensor(t) => t.rows(),
            Self::Ids(a) => a.len(),
        }
    }

    /// The tensors, if it holds such.
    #[must_use]
    pub const fn tensor(&self) -> Option<&Tensor> {
        match self {
            Self::Tensor(t) => Some(t),
            Self::Ids(_) => None,
        }
    }

    /// The ids, if it holds such.
    #[must_use]
    pub const fn ids(&self) -> Option<&ArrayRef> {
        match self {
            Self::Ids(ids) => Some(ids),
            Self::Tensor(_) => None,
        }
    }

    /// Rows `start..start + len`, without a copy.
    #[must_use]
    pub fn slice(&self, start: usize, len: usize) -> Self {
        match self {
            Self::Tensor(t) => Self::Tensor(t.slice(start, len)),
            Self::Ids(ids) => Self::Ids(ids.slice(start, len)),
        }
    }

    /// All rows of `parts`, which are of type `ty`, one after the other. One part is returned as it is.
    ///
    /// # Errors
    /// If a part is of another kind, which is a fault of this crate.
    pub fn concat(ty: &ColumnType, parts: &[Self]) -> Result<Self> {
        let wrong = || Error::internal(format!("a part of a column of {ty} is of another kind"));
        if let ColumnType::Tensor(ty) = ty {
            let tensors = parts.iter().map(|p| p.tensor().cloned().ok_or_else(wrong)).collect::<Result<Vec<_>>>()?;
            return Ok(Self::Tensor(Tensor::concat(ty, &tensors)));
        }
        let ids = parts.iter().map(|p| p.ids().map(|ids| &**ids).ok_or_else(wrong)).collect::<Result<Vec<_>>>()?;
        match ids.as_slice() {
            [] if *ty == ColumnType::Utf8 => Ok(Self::Ids(new_empty_array(&DataType::Utf8View))),
            [] => Ok(Self::Ids(new_empty_array(&ty.arrow(TensorStorage::List)))),
            [_] => Ok(parts[0].clone()),
            many => {
                let joined = arrow::compute::concat(many);
                joined.map(Self::Ids).map_err(|e| Error::internal(format!("joining ids: {e}")))
            }
        }
    }

    fn is_of(&self, ty: &ColumnType) -> bool {
        match (self, ty) {
            (Self::Tensor(t), ColumnType::Tensor(ty)) => t.ty() == ty,
            (Self::Ids(a), ColumnType::Int64) => *a.data_type() == DataType::Int64 && a.null_count() == 0,
            (Self::Ids(a), ColumnType::Utf8) => *a.data_type() == DataType::Utf8View && a.null_count() == 0,
            _ => false,
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Tensor(t) => t.ty().to_string(),
            Self::Ids(a) => format!("{} with {} nulls", a.data_type(), a.null_count()),
        }
    }

    /// The column as Arrow, of the type that [`ShardSchema::arrow`] gives it.
    pub(super) fn to_arrow(&self, storage: TensorStorage) -> Result<ArrayRef> {
        let tensor = match self {
            Self::Tensor(t) => t,
            Self::Ids(a) if *a.data_type() == DataType::Utf8View => {
                return cast(a, &DataType::Utf8).map_err(|e| Error::internal(format!("text of a row group: {e}")));
            }
            Self::Ids(a) => return Ok(Arc::clone(a)),
        };
        if is_binary(tensor.ty(), storage) {
            let size = i32::try_from(tensor.ty().row_bytes()).map_err(|_| Error::internal("rows beyond the check"))?;
            let array = FixedSizeBinaryArray::try_new_with_len(size, tensor.buffer(), None, tensor.rows());
            return array
                .map(|a| Arc::new(a) as ArrayRef)
                .map_err(|e| Error::internal(format!("fixed-size binary: {e}")));
        }
        let array = tensor.to_arrow()?;
        match array.as_fixed_size_list_opt() {
            None => Ok(array),
            Some(list) => {
                let values = Arc::clone(list.values());
                let list = FixedSizeListArray::try_new_with_length(
                    element(tensor.ty()),
                    list.value_length(),
                    values,
                    None,
                    list.len(),
                );
                list.map(|l| Arc::new(l) as ArrayRef).map_err(|e| Error::internal(format!("fixed-size list: {e}")))
            }
        }
    }
}

/// A complete row group: as many rows as the file's row group will have.
#[derive(Debug, Clone)]
pub struct RowGroupData {
    /// Number of rows of every column.
    pub rows: usize,
    /// The columns, in the schema's order.
    pub columns: Vec<ColumnData>,
}

impl RowGroupData {
    /// The rows as Arrow.
    ///
    /// # Errors
    /// If the columns are not those of `schema`.
    pub fn record_batch(&self, schema: &ShardSchema) -> Result<RecordBatch> {
        self.check(schema)?;
        let columns = self.columns.iter().map(|c| c.to_arrow(schema.tensors)).collect::<Result<Vec<_>>>()?;
        let rows = RecordBatchOptions::new().with_row_count(Some(self.rows));
        RecordBatch::try_new_with_options(schema.arrow(), columns, &rows)
            .map_err(|e| Error::internal(format!("record batch: {e}")))
    }

    /// Checks that the columns are those of `schema`. A mismatch is a fault of this crate, never the user's.
    pub fn check(&self, schema: &ShardSchema) -> Result<()> {
        if self.columns.len() != schema.columns.len() {
            return Err(Error::internal(format!(
                "a row group of {} columns for a schema of {}",
                self.columns.len(),
                schema.columns.len()
            )));
        }
        for ((name, ty), data) in schema.columns.iter().zip(&self.columns) {
            if !data.is_of(ty) || data.rows() != self.rows {
                return Err(Error::internal(format!(
                    "found {} rows of {}, expected {} rows of {ty}",
                    data.rows(),
                    data.describe(),
                    self.rows
                ))
                .column(name));
            }
        }
        Ok(())
    }
}

/// The elements of a fixed-size list column, for tests that read files back.
#[cfg(test)]
pub(super) fn tensor_of(column: &ArrayRef, ty: &TensorType) -> Tensor {
    if let Some(bytes) = column.as_fixed_size_binary_opt() {
        return Tensor::new(
            ty.clone(),
            column.len(),
            bytes.values().slice_with_length(0, column.len() * ty.row_bytes()),
        );
    }
    let flat: ArrayRef =
        if ty.shape.is_empty() { Arc::clone(column) } else { Arc::clone(column.as_fixed_size_list().values()) };
    Tensor::from_flat_arrow(flat.as_ref(), ty.shape.clone(), column.len()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    fn tensor(shape: &[usize]) -> ColumnType {
        ColumnType::Tensor(TensorType::new(DType::Float32, shape))
    }

    #[test]
    fn row_groups_are_equal_and_at_least_one_row() {
        let schema = |n| ShardSchema::new(vec![("obs".into(), tensor(&[n]))]);
        assert_eq!(row_group_rows(&schema(256), 65_536), 32_768);
        assert_eq!(row_group_rows(&schema(25), 65_536), 65_536);
        assert_eq!(row_group_rows(&schema(25).with_windows(924), 65_536), 32_768);
        assert_eq!(row_group_rows(&schema(10 << 20), 65_536), 1);
        assert_eq!(row_group_rows(&schema(4), 0), 1);
        assert_eq!(row_group_rows(&schema(0), 10), 10);
    }

    #[test]
    fn metadata_is_what_pyarrow_reads() {
        let schema =
            ShardSchema::new(vec![("obs/pos".into(), tensor(&[20, 4])), ("rewards".into(), tensor(&[]))]).arrow();
        assert_eq!(schema.field(0).metadata()["ARROW:extension:metadata"], r#"{"shape":[20,4]}"#);
        assert!(schema.field(1).metadata().is_empty());
    }

    #[test]
    fn bytes_tell_shape_and_dtype() {
        let columns =
            vec![("obs".into(), tensor(&[20, 4])), ("rewards".into(), tensor(&[])), ("none".into(), tensor(&[0]))];
        let schema = ShardSchema::new(columns).with_tensors(TensorStorage::Binary).arrow();
        assert_eq!(schema.field(0).data_type(), &DataType::FixedSizeBinary(320));
        assert_eq!(schema.field(0).metadata()["shape"], "[20,4]");
        assert_eq!(schema.field(0).metadata()["dtype"], "float32");
        assert_eq!(schema.field(1).data_type(), &DataType::Float32);
        assert!(matches!(schema.field(2).data_type(), DataType::FixedSizeList(_, 0)));
    }

    #[test]
    fn what_no_file_can_hold_is_refused() {
        let e = ShardSchema::new(vec![("obs".into(), tensor(&[1 << 20, 1 << 20]))]).check().unwrap_err();
        assert!(e.what().contains("at most 1920 MiB"), "{e}");
        let row = |dtype, n: usize| {
            let ty = ColumnType::Tensor(TensorType::new(dtype, [n]));
            ShardSchema::new(vec![("obs".into(), ty)]).check()
        };
        // A row of 1 GiB fits, but for integers that Parquet widens.
        for (dtype, fits) in
            [(DType::Float32, true), (DType::UInt8, true), (DType::Float16, true), (DType::Int16, false)]
        {
            let checked = row(dtype, (1 << 30) / dtype.size());
            assert_eq!(checked.is_ok(), fits, "{dtype}: {checked:?}");
        }
        let e = row(DType::Int16, 1 << 29).unwrap_err();
        assert_eq!(
            e.what(),
            "found rows of int16[536870912], which take 2112 MiB each in a file, expected at most 1920 MiB"
        );
        let e = ShardSchema::new(vec![("a".into(), tensor(&[])), ("a".into(), ColumnType::Utf8)]).check().unwrap_err();
        assert_eq!(e.place().column.as_deref(), Some("a"));
    }
}
