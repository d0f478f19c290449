//! Rows picked out of blocks, on their way through a scratch file.
//!
//! ```text
//! blocks     rows 0 1 2 3 | 4 5 6 7          picked: 1 3 | 4 7
//! bytes      [1 3][column 0 of 1 3][column 1 ..][nulls]  [4 7][column 0 of 4 7][..]
//! block      rows 1 3 4 7
//! ```
//!
//! The bytes are read by the process that wrote them and by no other, so they have no header and no version.

use std::sync::Arc;

use arrow::array::LargeBinaryArray;
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer};

use super::blocks::{Block, BlockData, BlockRows, nulls_of};
use crate::episode::Columns;
use crate::error::{Error, Result};
use crate::tensor::{Tensor, TensorBuilder, TensorType};

/// What the rows of all blocks of a source are like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowForm {
    /// One row a step, with these leaves.
    Steps(Vec<(Arc<str>, TensorType)>),
    /// One row an item.
    Items,
}

impl RowForm {
    /// That of `block`.
    #[must_use]
    pub fn of(block: &Block) -> Self {
        match &block.data {
            BlockData::Steps { columns, .. } => {
                Self::Steps(columns.iter().map(|(n, t)| (Arc::clone(n), t.ty().clone())).collect())
            }
            BlockData::Items(_) => Self::Items,
        }
    }
}

/// Rows picked out of blocks, in ascending order.
#[derive(Debug)]
pub struct Gathered {
    rows: Vec<u64>,
    data: Data,
}

#[derive(Debug)]
enum Data {
    Steps(Vec<Leaf>),
    Items { ends: Vec<u64>, values: Vec<u8> },
}

#[derive(Debug)]
struct Leaf {
    name: Arc<str>,
    values: TensorBuilder,
    /// Whether each row is valid; empty while all are.
    valid: Vec<u8>,
}

impl Gathered {
    /// Nothing yet, with room for `rows` rows.
    #[must_use]
    pub fn new(form: &RowForm, rows: usize) -> Self {
        let data = match form {
            RowForm::Steps(leaves) => Data::Steps(
                leaves
                    .iter()
                    .map(|(name, ty)| Leaf {
                        name: Arc::clone(name),
                        values: TensorBuilder::with_capacity(ty.clone(), rows),
                        valid: Vec::new(),
                    })
                    .collect(),
            ),
            RowForm::Items => Data::Items { ends: Vec::with_capacity(rows), values: Vec::new() },
        };
        Self { rows: Vec::with_capacity(rows), data }
    }

    /// The first row.
    #[must_use]
    pub fn first_row(&self) -> Option<u64> {
        self.rows.first().copied()
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds the rows at `positions` of `block`, which are ascending.
    ///
    /// # Errors
    /// If the block is of another form.
    pub fn extend(&mut self, block: &Block, positions: &[usize]) -> Result<()> {
        let before = self.rows.len();
        self.rows.extend(positions.iter().map(|&i| block.rows.at(i)));
        match (&mut self.data, &block.data) {
            (Data::Steps(leaves), BlockData::Steps { columns, nulls, .. }) => {
                for (c, leaf) in leaves.iter_mut().enumerate() {
                    let column = columns.at(c);
                    for run in positions.chunk_by(|a, b| a + 1 == *b) {
                        leaf.values.extend(column, run[0], run.len());
                    }
                    let nulls = nulls_of(nulls, c).filter(|nulls| nulls.null_count() > 0);
                    if nulls.is_some() || !leaf.valid.is_empty() {
                        leaf.valid.resize(before, 1);
                        leaf.valid.extend(positions.iter().map(|&i| u8::from(nulls.is_none_or(|n| n.is_valid(i)))));
                    }
                }
                Ok(())
            }
            (Data::Items { ends, values }, BlockData::Items(items)) => {
                for &i in positions {
                    values.extend_from_slice(items.value(i));
                    ends.push(values.len() as u64);
                }
                Ok(())
            }
            _ => Err(Error::internal("blocks of two forms")),
        }
    }

    /// The rows as bytes.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(bytemuck::cast_slice(&self.rows));
        match self.data {
            Data::Steps(leaves) => {
                for leaf in leaves {
                    out.push(u8::from(!leaf.valid.is_empty()));
                    out.extend_from_slice(&leaf.valid);
                    out.extend_from_slice(leaf.values.finish().bytes());
                }
            }
            Data::Items { ends, values } => {
                out.extend_from_slice(bytemuck::cast_slice(&ends));
                out.extend_from_slice(&values);
            }
        }
        out
    }

    /// Adds `rows` rows that [`Self::into_bytes`] made.
    ///
    /// # Errors
    /// If the bytes are others.
    pub fn extend_from_bytes(&mut self, rows: usize, bytes: &[u8]) -> Result<()> {
        let mut left = bytes;
        let mut take = |n: usize| {
            let (head, tail) =
                left.split_at_checked(n).ok_or_else(|| Error::internal("a segment that is too short"))?;
            left = tail;
            Ok::<_, Error>(head)
        };
        let numbers = |bytes: &[u8]| bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned::<u64>).collect::<Vec<_>>();
        let before = self.rows.len();
        self.rows.extend(numbers(take(rows * 8)?));
        match &mut self.data {
            Data::Steps(leaves) => {
                for leaf in leaves {
                    if take(1)? == [1] {
                        leaf.valid.resize(before, 1);
                        leaf.valid.extend_from_slice(take(rows)?);
                    } else if !leaf.valid.is_empty() {
                        leaf.valid.resize(before + rows, 1);
                    }
                    let len = rows * leaf.values.ty().row_bytes();
                    leaf.values.extend_bytes(take(len)?, rows);
                }
            }
            Data::Items { ends, values } => {
                let start = values.len() as u64;
                let own = numbers(take(rows * 8)?);
                let len = own.last().copied().unwrap_or(0);
                ends.extend(own.iter().map(|end| start + end));
                let len = usize::try_from(len).map_err(|_| Error::internal("a segment larger than memory"))?;
                values.extend_from_slice(take(len)?);
            }
        }
        Ok(())
    }

    /// The rows as a block.
    ///
    /// # Errors
    /// If items do not fit an array.
    pub fn into_block(self) -> Result<Block> {
        let mut bytes = self.rows.len() * size_of::<u64>();
        let data = match self.data {
            Data::Steps(leaves) => {
                let mut nulls = Vec::new();
                let columns: Columns = leaves
                    .into_iter()
                    .enumerate()
                    .map(|(c, leaf)| {
                        if !leaf.valid.is_empty() {
                            let valid: BooleanBuffer = leaf.valid.iter().map(|v| *v != 0).collect();
                            nulls.push((c, NullBuffer::new(valid)));
                        }
                        let values: Tensor = leaf.values.finish();
                        bytes += values.bytes().len();
                        (leaf.name, values)
                    })
                    .collect();
                BlockData::Steps { columns, nulls, bad: Vec::new() }
            }
            Data::Items { ends, values } => {
                bytes += values.len();
                let ends: Vec<i64> = ends.iter().map(|end| i64::try_from(*end).unwrap_or(i64::MAX)).collect();
                let offsets = OffsetBuffer::new([0].into_iter().chain(ends).collect::<Vec<i64>>().into());
                let items = LargeBinaryArray::try_new(offsets, Buffer::from_vec(values), None);
                BlockData::Items(items.map_err(|e| Error::internal(format!("items out of a scratch file: {e}")))?)
            }
        };
        Ok(Block { rows: BlockRows::Some(self.rows), bytes, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(form: &RowForm, blocks: &[(&Block, &[usize])], flush: bool) -> Block {
        let mut out = Gathered::new(form, 0);
        let mut part = Gathered::new(form, 0);
        for (block, positions) in blocks {
            part.extend(block, positions).unwrap();
            if flush {
                let full = std::mem::replace(&mut part, Gathered::new(form, 0));
                out.extend_from_bytes(full.len(), &full.into_bytes()).unwrap();
            }
        }
        out.extend_from_bytes(part.len(), &part.into_bytes()).unwrap();
        out.into_block().unwrap()
    }

    #[test]
    fn steps_keep_values_and_nulls() {
        let block = |first: u64, nulls: Option<Vec<bool>>| {
            let values: Vec<f32> = (0..4_u8).map(|i| f32::from(i) + 10.0).collect();
            let columns = [
                (Arc::from("obs"), Tensor::from_values::<f32>([2], &[values.as_slice(), &values].concat())),
                (Arc::from("actions"), Tensor::from_values::<i64>([], &[1, 2, 3, 4])),
            ];
            let nulls = nulls.map(|n| (1, NullBuffer::from(n))).into_iter().collect();
            let data = BlockData::Steps { columns: columns.into_iter().collect(), nulls, bad: Vec::new() };
            Block { rows: BlockRows::All(first..first + 4), bytes: 0, data }
        };
        let (one, two, three) = (block(0, None), block(4, Some(vec![true, true, true, false])), block(8, None));
        for flush in [false, true] {
            let form = RowForm::of(&one);
            let got = through(&form, &[(&one, &[1, 2]), (&two, &[0, 3]), (&three, &[3])], flush);
            assert!(matches!(&got.rows, BlockRows::Some(rows) if *rows == [1, 2, 4, 7, 11]));
            let BlockData::Steps { columns, nulls, .. } = &got.data else { panic!("steps") };
            assert_eq!(columns.at(1).values::<i64>(), [2, 3, 1, 4, 4]);
            assert_eq!(columns.at(0).values::<f32>()[..4], [12.0, 13.0, 10.0, 11.0]);
            let valid: Vec<bool> = nulls[0].1.iter().collect();
            assert_eq!((nulls[0].0, valid), (1, vec![true, true, true, false, true]), "flush: {flush}");
        }
    }

    #[test]
    fn items_keep_their_bytes() {
        let items = LargeBinaryArray::from(vec![&b"ab"[..], b"", b"cde"]);
        let block = Block { rows: BlockRows::All(5..8), bytes: 0, data: BlockData::Items(items) };
        for flush in [false, true] {
            let got = through(&RowForm::Items, &[(&block, &[0, 1]), (&block, &[2])], flush);
            let BlockData::Items(items) = &got.data else { panic!("items") };
            assert_eq!(items.iter().map(Option::unwrap).collect::<Vec<_>>(), [&b"ab"[..], b"", b"cde"]);
        }
        let mut out = Gathered::new(&RowForm::Items, 0);
        assert!(out.extend_from_bytes(1, &[0; 12]).is_err(), "cut off");
    }
}
