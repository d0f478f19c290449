//! Columns of rows as bytes, on scratch and between processes, and back.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray};
use arrow::buffer::{Buffer, MutableBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::Int64Type;

use super::Part;
use crate::error::{Error, Result};
use crate::run::cutter::Rows;
use crate::sink::{ColumnData, ColumnType};
use crate::tensor::Tensor;

/// Appends a column's bytes. Text is its offsets and then its characters.
pub fn write(column: &ColumnData, out: &mut Vec<u8>) -> Result<()> {
    match column {
        ColumnData::Tensor(tensor) => out.extend_from_slice(tensor.bytes()),
        ColumnData::Ids(ids) => {
            if let Some(ids) = ids.as_primitive_opt::<Int64Type>() {
                out.extend_from_slice(bytemuck::cast_slice(ids.values()));
            } else if let Some(ids) = ids.as_string_opt::<i32>() {
                let first = ids.value_offsets().first().copied().unwrap_or(0);
                out.extend(ids.value_offsets().iter().flat_map(|offset| (offset - first).to_le_bytes()));
                let (start, end) = (first, ids.value_offsets().last().copied().unwrap_or(0));
                let text = |i: i32| usize::try_from(i).map_err(|_| Error::internal("a negative offset"));
                out.extend_from_slice(&ids.value_data()[text(start)?..text(end)?]);
            } else {
                return Err(Error::internal(format!("ids of {}", ids.data_type())));
            }
        }
    }
    Ok(())
}

/// The column that [`write`] wrote.
pub fn read(ty: &ColumnType, rows: usize, bytes: &[u8]) -> Result<ColumnData> {
    let mut column = Column::new(ty, rows);
    column.extend(rows, bytes)?;
    column.finish(rows)
}

/// A column that is being read, piece by piece: as large as what was read, and not twice.
enum Column<'a> {
    Fixed(&'a ColumnType, MutableBuffer),
    Text(Vec<i32>, Vec<u8>),
}

impl<'a> Column<'a> {
    /// No rows yet of a column that will have so many.
    fn new(ty: &'a ColumnType, rows: usize) -> Self {
        let fixed = |bytes: usize| Self::Fixed(ty, MutableBuffer::with_capacity(rows * bytes));
        match ty {
            ColumnType::Tensor(ty) => fixed(ty.row_bytes()),
            ColumnType::Int64 => fixed(size_of::<i64>()),
            ColumnType::Utf8 => {
                let mut offsets = Vec::with_capacity(rows + 1);
                offsets.push(0);
                Self::Text(offsets, Vec::new())
            }
        }
    }

    /// Adds `rows` rows that [`write`] wrote.
    fn extend(&mut self, rows: usize, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Fixed(_, values) => values.extend_from_slice(bytes),
            Self::Text(offsets, text) => {
                let short = || Error::internal("ids out of a scratch file are short");
                let (own, characters) = bytes.split_at_checked((rows + 1) * 4).ok_or_else(short)?;
                let before = i32::try_from(text.len()).map_err(|_| Error::internal("a bucket of 2 GiB of ids"))?;
                for offset in own.chunks_exact(4).skip(1).map(bytemuck::pod_read_unaligned::<i32>) {
                    let offset = before.checked_add(offset);
                    offsets.push(offset.ok_or_else(|| Error::internal("a bucket of 2 GiB of ids"))?);
                }
                text.extend_from_slice(characters);
            }
        }
        Ok(())
    }

    fn finish(self, rows: usize) -> Result<ColumnData> {
        Ok(match self {
            Self::Fixed(ColumnType::Tensor(ty), values) => {
                ColumnData::Tensor(Tensor::new(ty.clone(), rows, values.into()))
            }
            Self::Fixed(_, values) => {
                ColumnData::Ids(Arc::new(Int64Array::new(ScalarBuffer::new(values.into(), 0, rows), None)) as ArrayRef)
            }
            Self::Text(offsets, text) => {
                let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
                let ids = StringArray::try_new(offsets, Buffer::from_vec(text), None);
                ColumnData::Ids(Arc::new(ids.map_err(|e| Error::internal(format!("ids out of a scratch file: {e}")))?))
            }
        })
    }
}

/// Rows and their keys that are read segment by segment.
pub struct Gathering<'a> {
    keys: Vec<u64>,
    columns: Vec<Column<'a>>,
    bytes: usize,
}

impl<'a> Gathering<'a> {
    /// No rows yet of `schema`, of which there will be so many.
    pub fn new(schema: &'a [(String, ColumnType)], rows: usize) -> Self {
        let columns = schema.iter().map(|(_, ty)| Column::new(ty, rows)).collect();
        Self { keys: Vec::with_capacity(rows), columns, bytes: 0 }
    }

    /// Adds `rows` rows: their keys and then their columns, which are so long.
    ///
    /// # Errors
    /// If the bytes are others.
    pub fn extend(&mut self, rows: usize, columns: &[u64], bytes: &[u8]) -> Result<()> {
        let short = || Error::internal("a segment of a scratch file is short");
        let (keys, mut rest) = bytes.split_at_checked(rows * 8).ok_or_else(short)?;
        self.keys.extend(keys.chunks_exact(8).map(bytemuck::pod_read_unaligned::<u64>));
        for (column, &len) in self.columns.iter_mut().zip(columns) {
            let len = usize::try_from(len).map_err(|_| short())?;
            let (own, behind) = rest.split_at_checked(len).ok_or_else(short)?;
            column.extend(rows, own)?;
            rest = behind;
        }
        self.bytes += bytes.len();
        Ok(())
    }

    /// Bytes so far.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The rows.
    ///
    /// # Errors
    /// If they are not those of the schema.
    pub fn finish(self) -> Result<Part> {
        let rows = self.keys.len();
        let columns = self.columns.into_iter().map(|column| column.finish(rows)).collect::<Result<_>>()?;
        Ok(Part { keys: self.keys, rows: Rows { rows, columns } })
    }
}
