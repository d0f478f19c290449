//! Observations as keys: bytes that are equal where the observations are.

use std::hash::{BuildHasher, Hasher};

use foldhash::quality::FixedState;
use rayon::prelude::*;

use crate::tensor::{DType, Tensor, TensorType};

/// Longer observations are told apart by their BLAKE3 digest. It is a cryptographic hash of 256 bits: nobody can make two
/// inputs with one digest, and among 2^64 observations the chance that any two share one is 2^-129, far less than that
/// of a fault of the machine. Shorter observations are compared themselves.
const LONGEST_KEY: usize = 64;
/// Rows that are hashed in one go.
const BLOCK: usize = 1024;

/// Each row's observation as bytes that are equal where the observations are, and their hash.
#[derive(Debug)]
pub struct Keys {
    pub len: usize,
    bytes: Vec<u8>,
    pub hashes: Vec<u64>,
    pub nan: Vec<bool>,
}

/// Bytes of a key for observations of these leaves.
pub(super) fn key_len(types: &[TensorType]) -> usize {
    let bytes: usize = types.iter().map(TensorType::row_bytes).sum();
    // Observations without a value are equal, too, and have a key.
    if bytes <= LONGEST_KEY { bytes.max(1) } else { blake3::OUT_LEN }
}

impl Keys {
    pub fn of(leaves: &[&Tensor], rows: usize) -> Self {
        let types: Vec<TensorType> = leaves.iter().map(|t| t.ty().clone()).collect();
        let row_bytes: usize = types.iter().map(TensorType::row_bytes).sum();
        let len = key_len(&types);
        let mut keys = Self { len, bytes: vec![0; rows * len], hashes: vec![0; rows], nan: vec![false; rows] };
        let blocks = keys
            .bytes
            .par_chunks_mut(BLOCK * len)
            .zip(keys.hashes.par_chunks_mut(BLOCK))
            .zip(keys.nan.par_chunks_mut(BLOCK))
            .enumerate();
        blocks.for_each(|(block, ((bytes, hashes), nan))| {
            let mut row = Vec::with_capacity(row_bytes);
            let own = bytes.chunks_exact_mut(len).zip(hashes).zip(nan);
            for (i, ((key, hash), nan)) in (block * BLOCK..).zip(own) {
                row.clear();
                for leaf in leaves {
                    *nan |= push_canonical(&mut row, leaf.ty().dtype, leaf.row(i));
                }
                if row_bytes <= LONGEST_KEY {
                    key[..row_bytes].copy_from_slice(&row);
                } else {
                    key.copy_from_slice(blake3::hash(&row).as_bytes());
                }
                *hash = hash_of(key);
            }
        });
        keys
    }

    /// Rows with a NaN.
    pub fn nans(&self) -> u64 {
        self.nan.iter().filter(|n| **n).count() as u64
    }

    pub fn key(&self, row: usize) -> &[u8] {
        &self.bytes[row * self.len..(row + 1) * self.len]
    }
}

pub(super) fn hash_of(key: &[u8]) -> u64 {
    let mut hasher = FixedState::with_seed(0).build_hasher();
    hasher.write(key);
    hasher.finish()
}

/// Appends the elements with one zero and one NaN. Whether there was a NaN.
fn push_canonical(out: &mut Vec<u8>, dtype: DType, row: &[u8]) -> bool {
    macro_rules! floats {
        ($t:ty) => {{
            let mut nan = false;
            for bytes in row.chunks_exact(size_of::<$t>()) {
                let value: $t = bytemuck::pod_read_unaligned(bytes);
                nan |= value.is_nan();
                // Adding zero leaves every number as it is but -0.0.
                let value = if value.is_nan() { <$t>::NAN } else { value + <$t>::from_bits(0) };
                out.extend_from_slice(&value.to_ne_bytes());
            }
            nan
        }};
    }
    match dtype {
        DType::Float16 => floats!(half::f16),
        DType::Float32 => floats!(f32),
        DType::Float64 => floats!(f64),
        _ => {
            out.extend_from_slice(row);
            false
        }
    }
}
