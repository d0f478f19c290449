//! Record batches behind [`InputFile`](super::InputFile): a table that is in memory already.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::RecordBatch;

use super::{Batches, FileFormat, InputFile, RowGroup};
use crate::error::{Error, Result};

/// The batches, each a row group.
#[derive(Debug, Clone)]
pub(super) struct Footer(Arc<[RecordBatch]>);

impl InputFile {
    /// A table in memory, called `name` in messages. Each batch is a row group; reading gives slices of it, without a
    /// copy.
    ///
    /// # Errors
    /// If there is no batch, or one has another schema than the first.
    pub fn in_memory(name: &str, batches: Vec<RecordBatch>) -> Result<Self> {
        let Some(schema) = batches.first().map(RecordBatch::schema) else {
            return Err(Error::usage("found no record batch, expected at least one").file(name));
        };
        if let Some(at) = batches.iter().position(|batch| batch.schema() != schema) {
            return Err(Error::usage("found a record batch whose columns are not those of the first")
                .row_group(at)
                .file(name));
        }
        let (mut row_groups, mut first_row) = (Vec::with_capacity(batches.len()), 0);
        for batch in &batches {
            row_groups.push(RowGroup {
                rows: batch.num_rows(),
                first_row,
                bytes: batch.get_array_memory_size() as u64,
            });
            first_row += batch.num_rows() as u64;
        }
        Ok(Self {
            path: PathBuf::new(),
            name: name.to_owned(),
            bytes: row_groups.iter().map(|g| g.bytes).sum(),
            format: FileFormat::Memory,
            places: super::places(&schema),
            stamp: None,
            schema,
            row_groups,
            note: None,
            footer: super::Footer::Memory(Footer(batches.into())),
        })
    }
}

impl Footer {
    /// Nulls of a top-level column of a batch.
    pub(super) fn null_count(&self, row_group: usize, column: usize) -> Option<u64> {
        let column = self.0.get(row_group)?.columns().get(column)?;
        // A nested column's values may have nulls of their own, and finding those is reading them.
        let flat = column.to_data().child_data().is_empty();
        flat.then(|| column.logical_null_count() as u64)
    }

    pub(super) fn read(&self, row_group: usize, columns: &[usize], batch_rows: usize) -> Result<Batches> {
        let wrong = |e| Error::internal(format!("projecting a batch: {e}"));
        let batch = self.0[row_group].project(columns).map_err(wrong)?;
        let starts = (0..batch.num_rows()).step_by(batch_rows);
        Ok(Box::new(starts.map(move |start| Ok(batch.slice(start, batch_rows.min(batch.num_rows() - start))))))
    }
}
