//! Decoded stretches of input rows, and finding a row in them.

use std::sync::Arc;

use arrow::array::LargeBinaryArray;
use arrow::buffer::NullBuffer;

use super::index::Span;
use crate::episode::Columns;
use crate::error::{Error, Result};

/// A leaf's position among a block's columns, and its rows that are null (unset bits).
pub type LeafNulls = (usize, NullBuffer);

/// What a block holds.
#[derive(Debug, Clone)]
pub enum BlockData {
    /// One row a step: every leaf as a tensor (`new_obs/...` included, under its recorded name).
    Steps {
        /// The leaves. A leaf that modules have in several types is there once a type.
        columns: Columns,
        /// The rows that are null (unset bits), for each leaf that has any.
        nulls: Vec<LeafNulls>,
    },
    /// One row an item of msgpack.
    Items(LargeBinaryArray),
}

/// Consecutive rows, decoded.
#[derive(Debug, Clone)]
pub struct Block {
    /// Global number of the first row.
    pub first_row: u64,
    /// Number of rows.
    pub rows: u64,
    /// Bytes in memory, for the reader's budget.
    pub bytes: usize,
    /// The rows.
    pub data: BlockData,
}

/// The blocks that a unit of work needs, in row order.
#[derive(Debug, Clone, Default)]
pub struct Blocks(Vec<Arc<Block>>);

/// A piece of a span inside one block.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// The block.
    pub block: &'a Block,
    /// First row inside the block.
    pub start: usize,
    /// Number of rows.
    pub len: usize,
}

impl Blocks {
    /// Blocks in row order.
    #[must_use]
    pub fn new(blocks: Vec<Arc<Block>>) -> Self {
        debug_assert!(blocks.is_sorted_by_key(|b| b.first_row));
        Self(blocks)
    }

    /// The pieces of blocks that make up `span`, in order.
    ///
    /// # Errors
    /// If a row is in no block, which would be a fault of the scheduler.
    pub fn pieces<'a>(&'a self, span: Span, mut visit: impl FnMut(Piece<'a>) -> Result<()>) -> Result<()> {
        let (mut row, end) = (span.row, span.row + span.len);
        let mut i = self.0.partition_point(|b| b.first_row + b.rows <= row);
        while row < end {
            let block = self.0.get(i).filter(|b| b.first_row <= row);
            let block = block.ok_or_else(|| Error::internal(format!("row {row} was not read")))?;
            let start = row - block.first_row;
            let len = (end - row).min(block.rows - start);
            let to_usize = |n: u64| usize::try_from(n).map_err(|_| Error::internal("a block larger than memory"));
            visit(Piece { block, start: to_usize(start)?, len: to_usize(len)? })?;
            row += len;
            i += 1;
        }
        Ok(())
    }

    /// The block and position of one row.
    ///
    /// # Errors
    /// If the row is in no block.
    pub fn row(&self, row: u64) -> Result<(&Block, usize)> {
        let i = self.0.partition_point(|b| b.first_row + b.rows <= row);
        let block = self.0.get(i).filter(|b| b.first_row <= row);
        let block = block.ok_or_else(|| Error::internal(format!("row {row} was not read")))?;
        let at = usize::try_from(row - block.first_row).map_err(|_| Error::internal("a block larger than memory"))?;
        Ok((block, at))
    }
}
