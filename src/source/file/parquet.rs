//! Parquet behind [`InputFile`](super::InputFile).

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};

use super::pages::form::columns_of;
use super::pages::{Paged, Shared};
use super::{DAMAGED, RowGroup, count, damaged};
use crate::error::{Error, Result};

/// Bytes of a row group's columns that may wait to be decompressed.
const WINDOWS: usize = 64 << 20;

/// The parsed footer; cloning it is cheap.
#[derive(Debug, Clone)]
pub(super) struct Footer(ArrowReaderMetadata);

pub(super) type Parsed = (SchemaRef, Vec<RowGroup>, Option<String>, super::Footer);

impl Footer {
    pub(super) fn parse(file: &File, bytes: u64) -> Result<Parsed> {
        check_tail(file, bytes)?;
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
        Ok((Arc::clone(loaded.schema()), row_groups, note, super::Footer::Parquet(Self(loaded))))
    }

    /// Nulls of a top-level column in one row group, if the file says.
    pub(super) fn null_count(&self, row_group: usize, column: usize) -> Option<u64> {
        let schema = self.0.parquet_schema();
        let group = self.0.metadata().row_groups().get(row_group)?;
        columns_of(schema, column).map(|leaf| group.column(leaf).statistics()?.null_count_opt()).sum()
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
        let file = Shared::new(file, bytes);
        let window = (WINDOWS / group.num_columns().max(1)).clamp(16 << 10, 512 << 10);
        let paged = |&root: &usize| {
            let field = self.0.schema().field(root);
            Paged::open(self.0.parquet_schema(), group, root, field, &file, window).map_or(Column::Crate, Column::Paged)
        };
        let readers = columns.iter().map(paged).collect();
        let schema = Arc::new(self.0.schema().project(columns).map_err(|e| damaged(&e))?);
        let rows = count(group.num_rows(), "the number of rows of a row group")?;
        let mut reader = Reader {
            footer: self.clone(),
            file,
            row_group,
            batch_rows,
            roots: columns.to_vec(),
            columns: readers,
            schema,
            rest: None,
            read: 0,
            rows,
        };
        reader.open_rest()?;
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

/// How a column of a row group is read.
enum Column {
    Paged(Paged),
    /// With all others that the crate reads.
    Crate,
    /// By a reader of its own, which took over in the middle.
    Own(Box<ParquetRecordBatchReader>),
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
    /// The crate's reader of all columns that are its own from the start.
    rest: Option<ParquetRecordBatchReader>,
    read: usize,
    rows: usize,
}

impl Reader {
    /// Which columns are read page by page so far.
    #[cfg(test)]
    pub fn paged(&self) -> Vec<bool> {
        self.columns.iter().map(|c| matches!(c, Column::Paged(_))).collect()
    }

    fn open_rest(&mut self) -> Result<()> {
        let own = self.roots.iter().zip(&self.columns).filter(|(_, c)| matches!(c, Column::Crate));
        let roots: Vec<usize> = own.map(|(&root, _)| root).collect();
        if !roots.is_empty() {
            let reader = self.footer.crate_reader(&self.file, self.row_group, &roots, self.batch_rows, 0)?;
            self.rest = Some(reader);
        }
        Ok(())
    }

    fn batch(&mut self, rows: usize) -> Result<RecordBatch> {
        let rest = match &mut self.rest {
            Some(reader) => Some(next_batch(reader, rows)?),
            None => None,
        };
        let mut rest = rest.iter().flat_map(RecordBatch::columns).map(Arc::clone);
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(self.columns.len());
        for (column, &root) in self.columns.iter_mut().zip(&self.roots) {
            if let Column::Paged(paged) = column {
                if let Some(array) = paged.next(rows) {
                    arrays.push(array);
                    continue;
                }
                let own = self.footer.crate_reader(&self.file, self.row_group, &[root], self.batch_rows, self.read)?;
                *column = Column::Own(Box::new(own));
            }
            let array = match column {
                Column::Own(reader) => next_batch(reader, rows)?.columns().first().cloned(),
                _ => rest.next(),
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
