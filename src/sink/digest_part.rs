//! The digest of a column from parts that were hashed apart, in other processes: BLAKE3 is a tree, and what stands where
//! is all that a part must know.
//!
//! ```text
//! bytes of the column   |--- chunk ---|--- chunk ---|--- chunk ---|--- chunk ---|- ...        1024 each
//! parts                 |------- a --------|------------------- b ----------------|
//! a knows               [ value       ][raw]
//! b knows                              [raw][ value  of both chunks          ][raw]
//! joined                [ value       ][ value      ][ value                 ]  ...
//! ```
//!
//! A part keeps the chaining values of whole subtrees (of up to 64 chunks: 32 bytes for 64 KiB) and the bytes at its ends
//! that are no whole chunk. Whoever joins the parts hashes what is left between them, and then the tree upwards.

use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use blake3::{CHUNK_LEN, Hasher};
use serde::{Deserialize, Serialize};

use super::digest::each_content;
use super::schema::{ColumnData, ColumnType};
use crate::error::{Error, Result};

const CHUNK: u64 = CHUNK_LEN as u64;
/// Bytes of the largest subtree that is hashed as one.
const TREE: u64 = 64 * CHUNK;

/// A subtree: its first chunk, how many chunks it has, its chaining value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Tree {
    chunk: u64,
    chunks: u64,
    value: [u8; 32],
}

/// What is known of consecutive bytes of a column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestPart {
    /// Where its bytes begin in the column.
    offset: u64,
    len: u64,
    /// The bytes before the first whole chunk.
    head: Vec<u8>,
    /// Whole chunks, without a gap.
    trees: Vec<Tree>,
    /// The bytes behind the last whole chunk; those that wait for more while the part is growing.
    tail: Vec<u8>,
}

impl DigestPart {
    /// No bytes yet; the first one will stand at `offset` of its column.
    #[must_use]
    pub fn at(offset: u64) -> Self {
        Self { offset, len: 0, head: Vec::new(), trees: Vec::new(), tail: Vec::new() }
    }

    /// Appends rows.
    ///
    /// # Errors
    /// If they are none of a shard's.
    pub fn update(&mut self, data: &ColumnData) -> Result<()> {
        each_content(data, |bytes| self.push(bytes))
    }

    fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let start = self.offset + self.len - self.tail.len() as u64;
            // Up to the next boundary at which a subtree of full size may begin.
            let wanted = (TREE - start % TREE) - self.tail.len() as u64;
            let n = usize::try_from(wanted).unwrap_or(usize::MAX).min(bytes.len());
            let (own, rest) = bytes.split_at(n);
            self.len += n as u64;
            bytes = rest;
            if (n as u64) < wanted || !self.tail.is_empty() {
                self.tail.extend_from_slice(own);
                if n as u64 == wanted {
                    let all = std::mem::take(&mut self.tail);
                    self.hash(start, &all);
                }
            } else {
                self.hash(start, own);
            }
        }
    }

    /// Hashes the whole chunks of `bytes`, which stand at `start`. What is behind them waits.
    fn hash(&mut self, start: u64, bytes: &[u8]) {
        let skipped = usize::try_from(start.next_multiple_of(CHUNK) - start).unwrap_or(0).min(bytes.len());
        let (head, rest) = bytes.split_at(skipped);
        self.head.extend_from_slice(head);
        let first = (start + skipped as u64) / CHUNK;
        let (whole, tail) = rest.split_at(rest.len() - rest.len() % CHUNK_LEN);
        if whole.len() as u64 == TREE && first.is_multiple_of(TREE / CHUNK) {
            self.trees.push(tree(first, whole));
        } else {
            self.trees.extend((first..).zip(whole.chunks_exact(CHUNK_LEN)).map(|(chunk, bytes)| tree(chunk, bytes)));
        }
        self.tail.extend_from_slice(tail);
    }

    /// The part as it is sent: all of its whole chunks hashed.
    #[must_use]
    pub fn finish(mut self) -> Self {
        let tail = std::mem::take(&mut self.tail);
        let start = self.offset + self.len - tail.len() as u64;
        self.hash(start, &tail);
        self
    }
}

fn tree(chunk: u64, bytes: &[u8]) -> Tree {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(chunk * CHUNK).update(bytes);
    Tree { chunk, chunks: bytes.len() as u64 / CHUNK, value: hasher.finalize_non_root() }
}

/// Joins the parts of a column, in order.
#[derive(Debug, Default)]
pub struct JoinedDigest {
    /// Bytes so far.
    len: u64,
    /// Bytes of a chunk that is not whole.
    open: Vec<u8>,
    /// Subtrees that wait for what stands behind them.
    stack: Vec<Tree>,
}

impl JoinedDigest {
    /// The digest of a column without rows yet.
    #[must_use]
    pub fn new(name: &str, ty: &ColumnType) -> Self {
        let mut this = Self::default();
        this.raw(&super::digest::header(name, ty));
        this
    }

    /// Where the next row begins: the offset of the next part.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.len
    }

    /// Appends a part.
    ///
    /// # Errors
    /// If it does not begin where the one before ended.
    pub fn push(&mut self, part: &DigestPart) -> Result<()> {
        if part.offset != self.len {
            return Err(Error::internal(format!("a part of a digest at {}, expected {}", part.offset, self.len)));
        }
        self.raw(&part.head);
        for tree in &part.trees {
            self.close();
            if !self.open.is_empty() || tree.chunk * CHUNK != self.len {
                return Err(Error::internal("parts of a digest with a gap between them"));
            }
            self.tree(*tree);
            self.len += tree.chunks * CHUNK;
        }
        self.raw(&part.tail);
        if self.len == part.offset + part.len {
            Ok(())
        } else {
            Err(Error::internal("a part of a digest that lacks bytes"))
        }
    }

    fn raw(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            self.close();
            let n = (CHUNK_LEN - self.open.len()).min(bytes.len());
            self.open.extend_from_slice(&bytes[..n]);
            self.len += n as u64;
            bytes = &bytes[n..];
        }
    }

    /// More bytes are to come: if the open chunk is whole, it is not the last one.
    fn close(&mut self) {
        if self.open.len() == CHUNK_LEN {
            let whole = std::mem::take(&mut self.open);
            self.tree(tree(self.len / CHUNK - 1, &whole));
        }
    }

    /// What stands before `next` is not the end, so neighbours of one size become their parent.
    fn tree(&mut self, next: Tree) {
        while let [.., left, right] = self.stack.as_slice() {
            if left.chunks != right.chunks || !left.chunk.is_multiple_of(2 * left.chunks) {
                break;
            }
            let value = merge_subtrees_non_root(&left.value, &right.value, Mode::Hash);
            let parent = Tree { chunk: left.chunk, chunks: 2 * left.chunks, value };
            self.stack.truncate(self.stack.len() - 2);
            self.stack.push(parent);
        }
        self.stack.push(next);
    }

    /// The digest, as [`super::ContentDigest::finish`] gives it.
    #[must_use]
    pub fn finish(mut self, rows: u64) -> String {
        self.raw(&rows.to_le_bytes());
        if self.stack.is_empty() {
            return format!("blake3:{}", blake3::hash(&self.open));
        }
        // The last chunk is open, whole or not.
        let last = tree((self.len - 1) / CHUNK, &self.open);
        self.tree(last);
        let mut right = last.value;
        self.stack.pop();
        while self.stack.len() > 1
            && let Some(left) = self.stack.pop()
        {
            right = merge_subtrees_non_root(&left.value, &right, Mode::Hash);
        }
        format!("blake3:{}", merge_subtrees_root(&self.stack[0].value, &right, Mode::Hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::ContentDigest;
    use crate::tensor::{DType, Tensor, TensorType};

    fn whole(ty: &TensorType, tensor: &Tensor) -> String {
        let mut digest = ContentDigest::new("obs", &ColumnType::Tensor(ty.clone()));
        digest.update(&ColumnData::Tensor(tensor.clone())).unwrap();
        digest.finish()
    }

    fn joined(ty: &TensorType, tensor: &Tensor, cuts: &[usize]) -> String {
        let mut all = JoinedDigest::new("obs", &ColumnType::Tensor(ty.clone()));
        for pair in cuts.windows(2) {
            let mut part = DigestPart::at(all.end());
            // In pieces of all sizes.
            let (mut at, mut step) = (pair[0], 1);
            while at < pair[1] {
                let n = step.min(pair[1] - at);
                part.update(&ColumnData::Tensor(tensor.slice(at, n))).unwrap();
                (at, step) = (at + n, (step * 7) % 5001 + 1);
            }
            all.push(&part.finish()).unwrap();
        }
        all.finish(tensor.rows() as u64)
    }

    /// Every length around a chunk's and a subtree's, in parts of every kind: shorter than a chunk, and longer than a tree.
    #[test]
    fn parts_make_the_digest_of_the_whole() {
        let ty = TensorType::new(DType::UInt8, [3]);
        let bytes: Vec<u8> = (0..900_000_u32).map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[2]).collect();
        let header = super::super::digest::header("obs", &ColumnType::Tensor(ty.clone())).len();
        for target in [0, 8, 1024, 2048, 3072, 65536, 131_072, 262_144, 800_000] {
            for near in -9..=9_i64 {
                let Some(len) = i64::checked_sub(target + near, i64::try_from(header + 8).unwrap()).filter(|n| *n >= 0)
                else {
                    continue;
                };
                let rows = usize::try_from(len).unwrap() / 3;
                let tensor = Tensor::from_values::<u8>([3], &bytes[..rows * 3]);
                let want = whole(&ty, &tensor);
                for cuts in [vec![0, rows], vec![0, rows / 3, rows], vec![0, rows / 2, rows / 2, rows - rows / 7, rows]]
                {
                    assert_eq!(joined(&ty, &tensor, &cuts), want, "{rows} rows cut at {cuts:?}");
                }
            }
        }
        let tensor = Tensor::from_values::<u8>([3], &bytes[..9000]);
        let small: Vec<usize> = (0..=3000).step_by(50).collect();
        assert_eq!(joined(&ty, &tensor, &small), whole(&ty, &tensor), "parts smaller than a chunk");
    }

    #[test]
    fn parts_out_of_place_are_refused() {
        let ty = ColumnType::Tensor(TensorType::new(DType::UInt8, []));
        let mut all = JoinedDigest::new("obs", &ty);
        assert!(all.push(&DigestPart::at(all.end() + 1)).is_err());
        let mut part = DigestPart::at(all.end());
        part.push(&[1; 5000]);
        let mut part = part.finish();
        part.trees.pop();
        assert!(all.push(&part).is_err());
    }
}
