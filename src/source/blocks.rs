//! Decoded stretches of input rows, and finding a row in them.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::LargeBinaryArray;
use arrow::buffer::NullBuffer;

use super::index::Span;
use crate::episode::Columns;
use crate::error::{Error, Result};

/// A leaf's position among a block's columns, and its rows that are null (unset bits).
pub type LeafNulls = (usize, NullBuffer);

/// The nulls of a block's column, of all its [`LeafNulls`] in the order of their columns.
#[must_use]
pub fn nulls_of(nulls: &[LeafNulls], column: usize) -> Option<&NullBuffer> {
    let at = nulls.binary_search_by_key(&column, |(at, _)| *at).ok()?;
    Some(&nulls[at].1)
}

/// What a block holds.
#[derive(Debug, Clone)]
pub enum BlockData {
    /// One row a step: every leaf as a tensor (`new_obs/...` included, under its recorded name).
    Steps {
        /// The leaves. A leaf that modules have in several types is there once a type.
        columns: Columns,
        /// The rows that are null (unset bits), for each leaf that has any, in the order of the leaves.
        nulls: Vec<LeafNulls>,
        /// Rows of the block that cannot be read, each with why; only where malformed episodes are left out.
        bad: Vec<(usize, Error)>,
    },
    /// One row an item of msgpack.
    Items(LargeBinaryArray),
}

/// Which global rows a block holds, in ascending order.
#[derive(Debug, Clone)]
pub enum BlockRows {
    /// All of `first..end`.
    All(Range<u64>),
    /// These.
    Some(Vec<u64>),
}

impl BlockRows {
    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::All(rows) => rows.end - rows.start,
            Self::Some(rows) => rows.len() as u64,
        }
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One past the last row.
    #[must_use]
    pub fn end(&self) -> u64 {
        match self {
            Self::All(rows) => rows.end,
            Self::Some(rows) => rows.last().map_or(0, |row| row + 1),
        }
    }

    /// The global row at a position of the block.
    #[must_use]
    pub fn at(&self, i: usize) -> u64 {
        match self {
            Self::All(rows) => rows.start + i as u64,
            Self::Some(rows) => rows[i],
        }
    }

    /// Where `row` stands, and how many of the rows from there on follow one another without a gap.
    fn find(&self, row: u64) -> Option<(usize, u64)> {
        match self {
            Self::All(rows) => Some((usize::try_from(row.checked_sub(rows.start)?).ok()?, rows.end.checked_sub(row)?))
                .filter(|f| f.1 > 0),
            Self::Some(rows) => {
                let at = rows.binary_search(&row).ok()?;
                let gapless = (row..).zip(&rows[at..]).take_while(|(want, row)| want == *row).take(GAPLESS).count();
                Some((at, gapless as u64))
            }
        }
    }
}

/// Rows that are looked at in one go for a gap, so that finding many short spans in a long list stays cheap.
const GAPLESS: usize = 4096;

/// Rows in ascending order, decoded.
#[derive(Debug, Clone)]
pub struct Block {
    /// Which rows.
    pub rows: BlockRows,
    /// Bytes in memory, for the reader's budget.
    pub bytes: usize,
    /// The rows' values.
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
    /// The distance from one of its rows to the next.
    pub step: usize,
}

impl Piece<'_> {
    /// Row number `i` of the piece, inside the block.
    #[must_use]
    pub const fn row(&self, i: usize) -> usize {
        self.start + i * self.step
    }

    /// Its rows inside the block, in order.
    pub fn rows(&self) -> impl Iterator<Item = usize> + use<> {
        (self.start..).step_by(self.step).take(self.len)
    }
}

impl Blocks {
    /// Blocks in row order.
    #[must_use]
    pub fn new(blocks: Vec<Arc<Block>>) -> Self {
        debug_assert!(blocks.is_sorted_by_key(|b| b.rows.end()));
        Self(blocks)
    }

    /// The pieces of blocks that make up `span`, in order.
    ///
    /// # Errors
    /// If a row is in no block, which would be a fault of the scheduler.
    pub fn pieces<'a>(&'a self, span: Span, mut visit: impl FnMut(Piece<'a>) -> Result<()>) -> Result<()> {
        let mut done = 0;
        let mut i = self.0.partition_point(|b| b.rows.end() <= span.first());
        while done < span.len() {
            let row = span.row(done);
            i += self.0[i..].iter().take_while(|b| b.rows.end() <= row).count();
            let (block, start, gapless) = self.find(i, row)?;
            let size = |n: u64| usize::try_from(n).map_err(|_| Error::internal("a block larger than memory"));
            let (len, step) = match &block.rows {
                _ if span.stride() == 1 => (gapless.min(span.len() - done), 1),
                // Equal distances between rows are equal distances in a block without gaps.
                BlockRows::All(rows) => {
                    ((rows.end - row).div_ceil(span.stride()).min(span.len() - done), size(span.stride())?)
                }
                BlockRows::Some(_) => (1, 1),
            };
            visit(Piece { block, start, len: size(len)?, step })?;
            done += len;
        }
        Ok(())
    }

    /// The block and position of one row.
    ///
    /// # Errors
    /// If the row is in no block.
    pub fn row(&self, row: u64) -> Result<(&Block, usize)> {
        let i = self.0.partition_point(|b| b.rows.end() <= row);
        self.find(i, row).map(|(block, at, _)| (block, at))
    }

    fn find(&self, i: usize, row: u64) -> Result<(&Block, usize, u64)> {
        let found = self.0.get(i).and_then(|block| block.rows.find(row).map(|(at, gapless)| (&**block, at, gapless)));
        found.ok_or_else(|| Error::internal(format!("row {row} was not read")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;

    fn block(rows: BlockRows) -> Arc<Block> {
        let values: Vec<i64> =
            (0..rows.len()).map(|i| i64::try_from(rows.at(usize::try_from(i).unwrap())).unwrap()).collect();
        let columns = [(Arc::from("row"), Tensor::from_values::<i64>([], &values))].into_iter().collect();
        Arc::new(Block { rows, bytes: 0, data: BlockData::Steps { columns, nulls: Vec::new(), bad: Vec::new() } })
    }

    #[test]
    fn spans_are_found_whole_in_blocks_with_and_without_gaps() {
        let blocks = Blocks::new(vec![
            block(BlockRows::All(0..4)),
            block(BlockRows::All(4..10)),
            block(BlockRows::Some(vec![10, 12, 13, 14, 18, 22])),
            block(BlockRows::Some(vec![23, 26])),
        ]);
        let found = |span: Span| {
            let (mut rows, mut pieces) = (Vec::new(), 0);
            blocks
                .pieces(span, |piece| {
                    let BlockData::Steps { columns, .. } = &piece.block.data else { panic!("steps") };
                    rows.extend(piece.rows().map(|i| columns.at(0).values::<i64>()[i]));
                    pieces += 1;
                    Ok(())
                })
                .map(|()| (rows, pieces))
        };
        assert_eq!(found(Span::new(2, 5)).unwrap(), (vec![2, 3, 4, 5, 6], 2));
        assert_eq!(found(Span::new(12, 3)).unwrap(), (vec![12, 13, 14], 1));
        let strided =
            [2, 6, 10, 14, 18, 22, 26].map(Span::one).into_iter().reduce(|a, b| a.joined(b).unwrap()).unwrap();
        // 2; 6; and one by one where a block has gaps.
        assert_eq!(found(strided).unwrap(), (vec![2, 6, 10, 14, 18, 22, 26], 7));
        let in_turn = [0, 3, 6, 9].map(Span::one).into_iter().reduce(|a, b| a.joined(b).unwrap()).unwrap();
        assert_eq!(found(in_turn).unwrap(), (vec![0, 3, 6, 9], 2));
        assert!(found(Span::new(10, 2)).unwrap_err().what().contains("row 11"));
        assert!(found(Span::one(27)).is_err());
        assert_eq!(blocks.row(13).unwrap().1, 2);
        assert!(blocks.row(15).is_err());
    }
}
