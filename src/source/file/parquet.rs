//! Parquet behind [`InputFile`](super::InputFile).

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::{Encoding, Type as PhysicalType};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};

use super::pages::form::columns_of;
use super::pages::{Paged, Shared};
use super::thrift::{Kind, Looked, look};
use super::{DAMAGED, RowGroup, count, damaged};
use crate::error::{Error, Result};

/// Bytes that are counted for a text that a page has as the difference from the one before: what it takes, only decoding it
/// tells, and a few bytes may stand for very many.
const FROM_BEFORE: u64 = 32 << 10;
/// Bytes of a row group's columns that may wait to be decompressed.
const WINDOWS: usize = 64 << 20;

/// The parsed footer, with the types that columns are read as; cloning it is cheap.
#[derive(Debug, Clone)]
pub(super) struct Footer(ArrowReaderMetadata);

pub(super) type Parsed = (SchemaRef, Vec<RowGroup>, Option<String>, super::Footer);

impl Footer {
    pub(super) fn parse(file: &File, bytes: u64) -> Result<Parsed> {
        check_tail(file, bytes)?;
        check_footer(file, bytes)?;
        let options = || ArrowReaderOptions::new();
        // A first parse of the Thrift footer alone; the Arrow schema inside it may be broken and is not needed then.
        let (loaded, note) = match ArrowReaderMetadata::load(file, options()) {
            Ok(loaded) => (loaded, None),
            Err(first) => match ArrowReaderMetadata::load(file, options().with_skip_arrow_metadata(true)) {
                Ok(loaded) => {
                    (loaded, Some(format!("the Arrow schema inside the file is unreadable and ignored ({first})")))
                }
                Err(_) => return Err(damaged(&first)),
            },
        };
        let row_groups = row_groups(loaded.metadata(), bytes)?;
        let schema = Arc::clone(loaded.schema());
        let read = with_views(&loaded).unwrap_or(loaded);
        Ok((schema, row_groups, note, super::Footer::Parquet(Self(read))))
    }

    /// Nulls of a top-level column in one row group, if the file says.
    pub(super) fn null_count(&self, row_group: usize, column: usize) -> Option<u64> {
        let schema = self.0.parquet_schema();
        let group = self.0.metadata().row_groups().get(row_group)?;
        columns_of(schema, column).map(|leaf| group.column(leaf).statistics()?.null_count_opt()).sum()
    }

    /// Bytes of a column's texts and binary values in a row group, their lengths included.
    pub(super) fn text_bytes(&self, row_group: usize, column: usize) -> u64 {
        let Some(group) = self.0.metadata().row_groups().get(row_group) else { return 0 };
        let chunks = columns_of(self.0.parquet_schema(), column).map(|leaf| group.column(leaf));
        let texts = chunks.filter(|chunk| chunk.column_type() == PhysicalType::BYTE_ARRAY);
        let bytes = |chunk: &ColumnChunkMetaData| {
            let bytes = u64::try_from(chunk.uncompressed_size()).unwrap_or(0);
            let values = u64::try_from(chunk.num_values()).unwrap_or(0);
            if chunk.encodings().any(|encoding| encoding == Encoding::DELTA_BYTE_ARRAY) {
                bytes.max(values.saturating_mul(FROM_BEFORE))
            } else {
                bytes
            }
        };
        texts.map(bytes).fold(0, u64::saturating_add)
    }

    /// Columns of tensors are read page by page, all others by the crate's reader.
    pub(super) fn read(
        &self,
        file: File,
        bytes: u64,
        row_group: usize,
        columns: &[usize],
        batch_rows: usize,
    ) -> Result<Reader> {
        let group = self.0.metadata().row_group(row_group);
        let file = Shared::new(file, bytes, group);
        let window = (WINDOWS / group.num_columns().max(1)).clamp(16 << 10, 512 << 10);
        let paged = |&root: &usize| {
            let field = self.0.schema().field(root);
            Paged::open(self.0.parquet_schema(), group, root, field, &file, window)
        };
        let paged: Vec<Option<Paged>> = columns.iter().map(paged).collect();
        let schema = Arc::new(self.0.schema().project(columns).map_err(|e| damaged(&e))?);
        let rows = count(group.num_rows(), "the number of rows of a row group")?;
        let mut reader = Reader {
            footer: self.clone(),
            file,
            row_group,
            batch_rows,
            roots: columns.to_vec(),
            columns: Vec::new(),
            schema,
            readers: Vec::new(),
            read: 0,
            rows,
        };
        let others: Vec<usize> = (0..paged.len()).filter(|&i| paged[i].is_none()).collect();
        reader.columns = paged.into_iter().map(|paged| paged.map_or(Column::Crate(0), Column::Paged)).collect();
        reader.hand_over(&others)?;
        Ok(reader)
    }

    /// The crate's reader of some columns, from row `skip` of the row group on.
    fn crate_reader(
        &self,
        file: &Shared,
        row_group: usize,
        roots: &[usize],
        batch_rows: usize,
        skip: usize,
    ) -> Result<ParquetRecordBatchReader> {
        let mask = ProjectionMask::roots(self.0.parquet_schema(), roots.iter().copied());
        ParquetRecordBatchReaderBuilder::new_with_metadata(file.clone(), self.0.clone())
            .with_row_groups(vec![row_group])
            .with_projection(mask)
            .with_batch_size(batch_rows)
            .with_offset(skip)
            .build()
            .map_err(|e| damaged(&e))
    }
}

/// The same footer, for texts that are read as views: rows with the same text of a dictionary share it, and others lie in
/// their pages, so that a text takes the memory that it takes in the file. `None` where no column is text.
fn with_views(loaded: &ArrowReaderMetadata) -> Option<ArrowReaderMetadata> {
    let is_text = |field: &FieldRef| matches!(field.data_type(), DataType::Utf8 | DataType::LargeUtf8);
    let fields = loaded.schema().fields();
    if !fields.iter().any(is_text) {
        return None;
    }
    let view = |field: &FieldRef| {
        if is_text(field) {
            Arc::new(Field::clone(field).with_data_type(DataType::Utf8View))
        } else {
            Arc::clone(field)
        }
    };
    let fields: Vec<FieldRef> = fields.iter().map(view).collect();
    let schema = Arc::new(Schema::new_with_metadata(fields, loaded.schema().metadata().clone()));
    ArrowReaderMetadata::try_new(Arc::clone(loaded.metadata()), ArrowReaderOptions::new().with_schema(schema)).ok()
}

/// How a column of a row group is read.
enum Column {
    Paged(Paged),
    /// By one of the crate's readers.
    Crate(usize),
}

/// The batches of a row group, put together from readers of its columns.
pub(super) struct Reader {
    footer: Footer,
    file: Shared,
    row_group: usize,
    batch_rows: usize,
    roots: Vec<usize>,
    columns: Vec<Column>,
    schema: SchemaRef,
    /// The crate's readers: of all columns that are its own from the start, and of all that it took over with one batch.
    /// Building one costs time for every column that the file has, so there is not one for each.
    readers: Vec<ParquetRecordBatchReader>,
    read: usize,
    rows: usize,
}

impl Reader {
    /// Which columns are read page by page so far.
    #[cfg(test)]
    pub fn paged(&self) -> Vec<bool> {
        self.columns.iter().map(|c| matches!(c, Column::Paged(_))).collect()
    }

    /// From here on the crate reads some columns (by position, rising).
    fn hand_over(&mut self, columns: &[usize]) -> Result<()> {
        if columns.is_empty() {
            return Ok(());
        }
        let roots: Vec<usize> = columns.iter().map(|&i| self.roots[i]).collect();
        let reader = self.footer.crate_reader(&self.file, self.row_group, &roots, self.batch_rows, self.read)?;
        for &i in columns {
            self.columns[i] = Column::Crate(self.readers.len());
        }
        self.readers.push(reader);
        Ok(())
    }

    fn batch(&mut self, rows: usize) -> Result<RecordBatch> {
        let next = |column: &mut Column| match column {
            Column::Paged(paged) => paged.next(rows),
            Column::Crate(_) => None,
        };
        let paged: Vec<Option<ArrayRef>> = self.columns.iter_mut().map(next).collect();
        let is_irregular = |&i: &usize| paged[i].is_none() && matches!(self.columns[i], Column::Paged(_));
        let irregular: Vec<usize> = (0..paged.len()).filter(is_irregular).collect();
        self.hand_over(&irregular)?;
        let others = self.readers.iter_mut().map(|reader| next_batch(reader, rows)).collect::<Result<Vec<_>>>()?;
        // A reader's columns come in the order of the file, as all do.
        let mut others: Vec<_> = others.iter().map(|batch| batch.columns().iter()).collect();
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(self.columns.len());
        for (column, paged) in self.columns.iter().zip(paged) {
            let array = match (paged, column) {
                (None, Column::Crate(reader)) => others[*reader].next().cloned(),
                (paged, _) => paged,
            };
            arrays.push(array.ok_or_else(|| Error::internal("a reader without its column"))?);
        }
        self.read += rows;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options).map_err(|e| damaged(&e))
    }
}

/// A reader's next batch, which must have `rows` rows: whatever batches have fewer is damage.
fn next_batch(reader: &mut ParquetRecordBatchReader, rows: usize) -> Result<RecordBatch> {
    match reader.next().transpose().map_err(|e| damaged(&e))? {
        Some(batch) if batch.num_rows() == rows => Ok(batch),
        other => {
            let found = other.map_or(0, |b| b.num_rows());
            let e = Error::usage(format!("the file is damaged: found {found} rows, expected {rows} more"));
            Err(e.hint(DAMAGED))
        }
    }
}

impl Iterator for Reader {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let rows = self.batch_rows.min(self.rows - self.read);
        (rows > 0).then(|| self.batch(rows))
    }
}

/// A Parquet file ends as it starts. The most frequent reason why not is a recorder that never closed it.
fn check_tail(mut file: &File, bytes: u64) -> Result<()> {
    let mut tail = [0; 4];
    if bytes >= 12 {
        file.seek(SeekFrom::End(-4)).and_then(|_| file.read_exact(&mut tail)).map_err(|e| damaged(&e))?;
    }
    if &tail == b"PARE" {
        return Err(Error::usage("found encrypted Parquet, which is not supported"));
    }
    if &tail != b"PAR1" {
        let e = Error::usage(format!("the Parquet file is cut off: its {bytes} bytes do not end in `PAR1`"));
        return Err(e.hint(
            "a recorder that was killed, or is still running, leaves such files, and so does a copy that broke off: \
             copy it again, or leave it out of the input",
        ));
    }
    Ok(())
}

/// Refuses a footer that the crate would take very long to read. What else is wrong with it, the crate says.
fn check_footer(mut file: &File, bytes: u64) -> Result<()> {
    let mut tail = [0; 8];
    file.seek(SeekFrom::End(-8)).and_then(|_| file.read_exact(&mut tail)).map_err(|e| damaged(&e))?;
    let len = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    let Some(start) = bytes.checked_sub(8 + len) else { return Ok(()) };
    let mut footer = Vec::new();
    file.seek(SeekFrom::Start(start)).and_then(|_| file.take(len).read_to_end(&mut footer)).map_err(|e| damaged(&e))?;
    if look(&footer, Kind::Any) == Looked::Refused {
        let e = Error::usage("the file is damaged: found a list of elements without bytes in its footer");
        return Err(e.hint(DAMAGED));
    }
    Ok(())
}

/// The row groups, each held to lie inside the file.
fn row_groups(metadata: &ParquetMetaData, bytes: u64) -> Result<Vec<RowGroup>> {
    let mut out = Vec::with_capacity(metadata.num_row_groups());
    let mut first_row = 0;
    for (i, group) in metadata.row_groups().iter().enumerate() {
        let rows = count(group.num_rows(), "the number of rows of a row group").map_err(|e| e.row_group(i))?;
        let inside = group.columns().iter().all(|chunk| chunk_end(chunk).is_some_and(|end| end <= bytes));
        if !inside {
            let e = Error::usage(format!("the file is damaged: a column chunk lies outside its {bytes} bytes"));
            return Err(e.hint(DAMAGED).row_group(i));
        }
        let size = u64::try_from(group.total_byte_size()).unwrap_or(0);
        out.push(RowGroup { rows, first_row, bytes: size });
        first_row = u64::saturating_add(first_row, rows as u64);
    }
    Ok(out)
}

/// Where a column chunk ends, if its numbers make sense.
fn chunk_end(chunk: &ColumnChunkMetaData) -> Option<u64> {
    let start = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
    u64::try_from(start).ok()?.checked_add(u64::try_from(chunk.compressed_size()).ok()?)
}
