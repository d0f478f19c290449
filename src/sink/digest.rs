//! Digests of content: what the rows say, however they are cut into row groups, files and compressed.
//!
//! ```text
//! column  = blake3( header(name, dtype, shape) ++ rows, little endian, in order ++ number of rows )
//! module  = combine( column name -> column digest )
//! dataset = combine( module id   -> module digest )
//! ```
//!
//! Two data sets with the same digest hold the same training data, bit for bit (NaN payloads and signed zeros included).

use std::fs::File;
use std::io::Read;
use std::path::Path;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;

use super::schema::{ColumnData, ColumnType};
use crate::error::{Error, Result};

/// The digest of one column. Rows are fed in order, in pieces of any size.
#[derive(Debug, Clone)]
pub struct ContentDigest {
    hasher: blake3::Hasher,
    rows: u64,
}

impl ContentDigest {
    /// The digest of a column without rows yet.
    #[must_use]
    pub fn new(name: &str, ty: &ColumnType) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&header(name, ty));
        Self { hasher, rows: 0 }
    }

    /// Appends rows.
    pub fn update(&mut self, data: &ColumnData) -> Result<()> {
        each_content(data, |bytes| {
            self.hasher.update(bytes);
        })?;
        self.rows += data.rows() as u64;
        Ok(())
    }

    /// `blake3:` and the digest.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.hasher.update(&self.rows.to_le_bytes());
        format!("blake3:{}", self.hasher.finalize())
    }
}

/// What stands before the rows: the column's name and type.
pub(super) fn header(name: &str, ty: &ColumnType) -> Vec<u8> {
    let mut out = b"gristmill column 1\0".to_vec();
    let number = |out: &mut Vec<u8>, n: usize| out.extend_from_slice(&(n as u64).to_le_bytes());
    for text in [name, ty.dtype_name()] {
        number(&mut out, text.len());
        out.extend_from_slice(text.as_bytes());
    }
    number(&mut out, ty.shape().len());
    ty.shape().iter().for_each(|&dim| number(&mut out, dim));
    out
}

/// Bytes of text that are hashed at once: blake3 is many times faster on long input, and rows that share a long text have
/// it in memory only once.
const TEXT: usize = 1 << 20;

/// Hands out the bytes that rows are hashed as, in large pieces.
pub(super) fn each_content(data: &ColumnData, mut each: impl FnMut(&[u8])) -> Result<()> {
    match data {
        ColumnData::Tensor(t) => each(t.bytes()),
        ColumnData::Ids(ids) => {
            if let Some(ids) = ids.as_primitive_opt::<Int64Type>() {
                each(bytemuck::cast_slice(ids.values()));
            } else if let Some(ids) = ids.as_string_view_opt() {
                let mut bytes = Vec::new();
                for id in ids.iter().flatten() {
                    if bytes.len() >= TEXT {
                        each(&bytes);
                        bytes.clear();
                    }
                    bytes.extend_from_slice(&(id.len() as u64).to_le_bytes());
                    bytes.extend_from_slice(id.as_bytes());
                }
                each(&bytes);
            } else {
                let found = ids.data_type();
                return Err(Error::internal(format!("found ids of {found}, expected Int64 or Utf8View")));
            }
        }
    }
    Ok(())
}

/// The digest of named digests: of a module's columns, of a data set's modules. Their order does not matter.
#[must_use]
pub fn combine<'a>(parts: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut parts: Vec<_> = parts.into_iter().collect();
    parts.sort_unstable();
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"gristmill digests 1\0");
    for (name, digest) in parts {
        text(&mut hasher, name);
        text(&mut hasher, digest);
    }
    format!("blake3:{}", hasher.finalize())
}

/// Size and digest of a file's bytes, as [`super::ShardWriter::finish`] tells of a shard.
pub fn file_digest(path: &Path) -> Result<(u64, String)> {
    let read = || {
        let mut file = File::open(path)?;
        let mut hasher = blake3::Hasher::new();
        let (mut buf, mut bytes) = (vec![0; 1 << 20], 0);
        loop {
            match file.read(&mut buf) {
                Ok(0) => return Ok((bytes, format!("blake3:{}", hasher.finalize()))),
                Ok(n) => {
                    hasher.update(&buf[..n]);
                    bytes += n as u64;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    };
    read().map_err(|e| Error::io("read", path, &e))
}

fn number(hasher: &mut blake3::Hasher, n: usize) {
    hasher.update(&(n as u64).to_le_bytes());
}

fn text(hasher: &mut blake3::Hasher, s: &str) {
    number(hasher, s.len());
    hasher.update(s.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringViewArray};

    use super::*;
    use crate::tensor::{DType, Tensor, TensorType};

    fn digest(ty: &ColumnType, parts: &[ColumnData]) -> String {
        let mut d = ContentDigest::new("obs", ty);
        for part in parts {
            d.update(part).unwrap();
        }
        d.finish()
    }

    #[test]
    fn cuts_do_not_matter_and_values_do() {
        let values: Vec<f32> = (0..40u8).map(f32::from).collect();
        let t = Tensor::from_values([4], &values);
        let ty = ColumnType::Tensor(t.ty().clone());
        let whole = digest(&ty, &[ColumnData::Tensor(t.clone())]);
        for cut in 0..=10 {
            let parts = [ColumnData::Tensor(t.slice(0, cut)), ColumnData::Tensor(t.slice(cut, 10 - cut))];
            assert_eq!(digest(&ty, &parts), whole);
        }
        let other = t.reshaped(TensorType::new(DType::Float32, [2, 2]), 10);
        assert_ne!(digest(&ColumnType::Tensor(other.ty().clone()), &[ColumnData::Tensor(other)]), whole);
        assert_ne!(digest(&ty, &[ColumnData::Tensor(t.slice(0, 9))]), whole);
    }

    #[test]
    fn ids_are_told_apart_where_their_joined_bytes_are_not() {
        let utf8 = |ids: &[&str]| ColumnData::Ids(Arc::new(StringViewArray::from(ids.to_vec())));
        let whole = digest(&ColumnType::Utf8, &[utf8(&["a", "bc"])]);
        assert_eq!(digest(&ColumnType::Utf8, &[utf8(&["a"]), utf8(&["bc"])]), whole);
        assert_ne!(digest(&ColumnType::Utf8, &[utf8(&["ab", "c"])]), whole);

        let ints = |ids: &[i64]| Arc::new(Int64Array::from(ids.to_vec()));
        let whole = digest(&ColumnType::Int64, &[ColumnData::Ids(ints(&[1, 2, 3]))]);
        assert_eq!(digest(&ColumnType::Int64, &[ColumnData::Ids(Arc::new(ints(&[0, 1, 2, 3]).slice(1, 3)))]), whole);
    }

    #[test]
    fn rows_without_bytes_count() {
        let ty = TensorType::new(DType::Float32, [0]);
        let of = |rows| digest(&ColumnType::Tensor(ty.clone()), &[ColumnData::Tensor(Tensor::zeros(ty.clone(), rows))]);
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn combining_ignores_order() {
        assert_eq!(combine([("a", "1"), ("b", "2")]), combine([("b", "2"), ("a", "1")]));
        assert_ne!(combine([("a", "1"), ("b", "2")]), combine([("a", "2"), ("b", "1")]));
    }
}
