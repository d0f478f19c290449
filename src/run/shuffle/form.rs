//! Columns of rows as bytes, on scratch and between processes, and back.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray, StringViewArray, UInt32Array};
use arrow::buffer::{Buffer, MutableBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::Int64Type;

use super::Part;
use crate::error::{Error, Result};
use crate::run::cutter::Rows;
use crate::sink::{ColumnData, ColumnType};
use crate::tensor::Tensor;

/// Bytes of a row's text in memory, where rows share it.
pub const VIEW: usize = size_of::<u128>();
/// Bytes in front of each text: how many rows in a row have it, and its length.
const RUN: usize = 2 * size_of::<u32>();

/// Appends a column's bytes. Of text, what consecutive rows share is there once:
///
/// ```text
/// runs | rows, bytes of text | rows, bytes of text | .. | text | text | ..        numbers of 4 bytes
/// ```
pub fn write(column: &ColumnData, out: &mut Vec<u8>) -> Result<()> {
    match column {
        ColumnData::Tensor(tensor) => out.extend_from_slice(tensor.bytes()),
        ColumnData::Ids(ids) => {
            if let Some(ids) = ids.as_primitive_opt::<Int64Type>() {
                out.extend_from_slice(bytemuck::cast_slice(ids.values()));
            } else if let Some(ids) = ids.as_string_view_opt() {
                write_text(ids, out)?;
            } else {
                return Err(Error::internal(format!("ids of {}", ids.data_type())));
            }
        }
    }
    Ok(())
}

fn write_text(ids: &StringViewArray, out: &mut Vec<u8>) -> Result<()> {
    let number = |n: usize| u32::try_from(n).map_err(|_| Error::internal("more rows at once than 2^32"));
    // Of one array, equal views are equal texts.
    let runs: Vec<usize> = ids.views().chunk_by(|a, b| a == b).map(<[u128]>::len).collect();
    out.extend_from_slice(&number(runs.len())?.to_le_bytes());
    let mut start = 0;
    for &rows in &runs {
        out.extend_from_slice(&number(rows)?.to_le_bytes());
        out.extend_from_slice(&number(ids.value(start).len())?.to_le_bytes());
        start += rows;
    }
    start = 0;
    for rows in runs {
        out.extend_from_slice(ids.value(start).as_bytes());
        start += rows;
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
    Text(Text),
}

/// Texts, and how many rows in a row have each.
struct Text {
    runs: Vec<u32>,
    offsets: Vec<i32>,
    characters: Vec<u8>,
}

impl<'a> Column<'a> {
    /// No rows yet of a column that will have so many.
    fn new(ty: &'a ColumnType, rows: usize) -> Self {
        let fixed = |bytes: usize| Self::Fixed(ty, MutableBuffer::with_capacity(rows * bytes));
        match ty {
            ColumnType::Tensor(ty) => fixed(ty.row_bytes()),
            ColumnType::Int64 => fixed(size_of::<i64>()),
            ColumnType::Utf8 => Self::Text(Text { runs: Vec::new(), offsets: vec![0], characters: Vec::new() }),
        }
    }

    /// Adds `rows` rows that [`write`] wrote.
    fn extend(&mut self, rows: usize, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Fixed(_, values) => values.extend_from_slice(bytes),
            Self::Text(text) => text.extend(rows, bytes)?,
        }
        Ok(())
    }

    fn finish(self, rows: usize) -> Result<ColumnData> {
        Ok(match self {
            Self::Fixed(ColumnType::Tensor(ty), values) => {
                ColumnData::Tensor(Tensor::new(ty.clone(), rows, values.into()))
            }
            Self::Fixed(_, values) => {
                ColumnData::Ids(Arc::new(Int64Array::new(ScalarBuffer::new(values.into(), 0, rows), None)))
            }
            Self::Text(text) => ColumnData::Ids(text.finish()?),
        })
    }
}

impl Text {
    fn extend(&mut self, rows: usize, bytes: &[u8]) -> Result<()> {
        let short = || Error::internal("ids out of a scratch file are short");
        let number = |bytes: &[u8]| bytemuck::pod_read_unaligned::<u32>(bytes);
        let (count, rest) = bytes.split_at_checked(size_of::<u32>()).ok_or_else(short)?;
        let (heads, text) = rest.split_at_checked(number(count) as usize * RUN).ok_or_else(short)?;
        let (mut end, mut all) = (self.characters.len(), 0);
        for head in heads.chunks_exact(RUN) {
            let (rows, len) = head.split_at(size_of::<u32>());
            self.runs.push(number(rows));
            all += number(rows) as usize;
            end += number(len) as usize;
            self.offsets.push(i32::try_from(end).map_err(|_| Error::internal("a bucket of 2 GiB of ids"))?);
        }
        self.characters.extend_from_slice(text);
        if all == rows && end == self.characters.len() { Ok(()) } else { Err(short()) }
    }

    /// A view a row.
    fn finish(self) -> Result<ArrayRef> {
        let failed = |e| Error::internal(format!("ids out of a scratch file: {e}"));
        let offsets = OffsetBuffer::new(ScalarBuffer::from(self.offsets));
        let texts = StringArray::try_new(offsets, Buffer::from_vec(self.characters), None).map_err(failed)?;
        let of_row: Vec<u32> =
            (0..).zip(&self.runs).flat_map(|(i, &rows)| std::iter::repeat_n(i, rows as usize)).collect();
        arrow::compute::take(&StringViewArray::from(&texts), &UInt32Array::from(of_row), None).map_err(failed)
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
