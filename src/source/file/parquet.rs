//! Parquet behind [`InputFile`](super::InputFile).

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};

use super::{Batches, DAMAGED, RowGroup, count, damaged};
use crate::error::{Error, Result};

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
        let leaves = (0..schema.num_columns()).filter(|&leaf| schema.get_column_root_idx(leaf) == column);
        leaves.map(|leaf| group.column(leaf).statistics()?.null_count_opt()).sum()
    }

    pub(super) fn read(&self, file: File, row_group: usize, columns: &[usize], batch_rows: usize) -> Result<Batches> {
        let mask = ProjectionMask::roots(self.0.parquet_schema(), columns.iter().copied());
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.0.clone())
            .with_row_groups(vec![row_group])
            .with_projection(mask)
            .with_batch_size(batch_rows)
            .build()
            .map_err(|e| damaged(&e))?;
        Ok(Box::new(reader.map(|batch| batch.map_err(|e| damaged(&e)))))
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
