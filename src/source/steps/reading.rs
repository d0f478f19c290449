//! What is read of a row group for a layout, and how a batch of it becomes columns.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::RecordBatch;

use super::StepsSource;
use super::shape::{Leaf, Shape};
use crate::column;
use crate::episode::{Columns, EpisodeLayout};
use crate::error::{Error, Result};
use crate::source::blocks::LeafNulls;
use crate::source::file::{Batches, FileFormat, InputFile};
use crate::source::ingest;
use crate::source::rows::RowGroupRef;
use crate::source::schema::UnifiedColumn;
use crate::tensor::Tensor;

/// Bytes of text that are read at once: few enough that they are in the processor's cache when they are unpacked, and that
/// the allocator keeps their memory.
const TEXT: u64 = 1 << 20;
/// How much larger a block of views may be than one that is decoded.
const VIEWS: usize = 16;

/// One row group, read for one layout.
pub(super) struct Reading {
    shape: Arc<Shape>,
    file: Arc<InputFile>,
    group: RowGroupRef,
    /// The recorded columns.
    wanted: Vec<String>,
    /// Bytes of a row.
    row_bytes: usize,
    /// The columns of the blocks, but for the flags.
    pub(super) leaves: Vec<Leaf>,
    /// The flags behind them, each with its recorded column. What the file lacks is none.
    pub(super) flags: Vec<(&'static str, String)>,
}

impl Reading {
    /// Where malformed episodes are left out, all columns are read, whichever are decoded: every pass must break off at the
    /// same row of a damaged row group.
    pub(super) fn new(source: &StepsSource, group: RowGroupRef, layout: &EpisodeLayout, flags: bool) -> Self {
        let file = Arc::clone(&source.rows.files()[group.file]);
        let shape = Arc::clone(&source.shape);
        let leaves = shape.leaves(layout);
        let recorded = [(column::TERMINATEDS, &source.scan.terminateds), (column::TRUNCATEDS, &source.scan.truncateds)];
        let recorded = recorded.into_iter().filter_map(|(name, column)| Some((name, column.clone()?)));
        let flags: Vec<_> = recorded.filter(|(_, column)| flags && file.has(column)).collect();

        let names: HashSet<&str> = leaves.iter().map(|(name, _)| &**name).collect();
        let is_read = |column: &&UnifiedColumn| {
            column.leaves.iter().any(|(leaf, _)| source.tolerant || names.contains(leaf.name.as_str()))
        };
        let sources: HashSet<&str> =
            shape.unified.columns.iter().filter(is_read).map(|column| column.source.as_str()).collect();
        let mut wanted = shape.unified.sources(&file);
        wanted.retain(|s| sources.contains(s.as_str()) || flags.iter().any(|(_, column)| column == s));

        let row_bytes = |leaves: &[Leaf]| leaves.iter().map(|(_, ty)| ty.row_bytes()).sum::<usize>();
        let row_bytes =
            if source.tolerant { row_bytes(&shape.steps) + row_bytes(&shape.next) } else { row_bytes(&leaves) };
        Self { shape, file, group, wanted, row_bytes, leaves, flags }
    }

    /// Rows of a block of about `block_bytes`. A table in memory is there already, so its blocks are views, mostly: large
    /// ones cost nothing, and what lies in one of them is not copied.
    pub(super) fn batch_rows(&self, block_bytes: usize) -> usize {
        let views = if self.file.format == FileFormat::Memory { VIEWS } else { 1 };
        let rows = (block_bytes.saturating_mul(views) / self.row_bytes.max(1)).clamp(1, 65_536);
        // Packed arrays are text on their way: many times what is in them.
        let text = self.file.text_bytes(self.group.row_group, &self.wanted) / self.group.rows.max(1);
        rows.min(usize::try_from(TEXT / text.max(1)).unwrap_or(rows)).max(1)
    }

    /// The recorded columns.
    pub(super) fn batches(&self, batch_rows: usize) -> Result<Batches> {
        self.file.read_apart(self.group.row_group, &self.wanted, batch_rows)
    }

    /// The row of the file that a row of the group is.
    pub(super) fn in_file(&self, row: u64) -> u64 {
        self.file.row_groups[self.group.row_group].first_row + (row - self.group.first_row)
    }

    /// An error with its file and row group.
    pub(super) fn place(&self, error: Error) -> Error {
        error.file(self.file.name.clone()).row_group(self.group.row_group)
    }

    /// The columns of a batch, flags (null is false) behind the others, and the nulls of the others.
    pub(super) fn decode(&self, batch: &RecordBatch, row_in_file: u64) -> Result<(Columns, Vec<LeafNulls>)> {
        let (mut columns, nulls) = self.shape.decode(&self.leaves, &self.file, batch, row_in_file)?;
        for (name, source) in &self.flags {
            let Some(array) = batch.column_by_name(source) else {
                return Err(Error::internal(format!("column {source:?} was not read")));
            };
            let values = ingest::flags(array, row_in_file).map_err(|e| e.column(*name))?;
            columns.set(*name, Tensor::from_bools(values.iter().map(|v| v.unwrap_or(false))));
        }
        Ok((columns, nulls))
    }
}
