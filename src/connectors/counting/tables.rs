//! How often each key was seen, in memory: one table a partition of the hashes, so that they count side by side.

use hashbrown::HashTable;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::keys::{Keys, hash_of, key_len};
use crate::error::{Error, Result};
use crate::tensor::TensorType;

const PARTITIONS: usize = 64;

/// The partition of a hash. The table uses its lowest and highest bits.
const fn partition_of(hash: u64) -> usize {
    (hash >> 40) as usize % PARTITIONS
}

/// How often each key of one length was seen.
#[derive(Debug)]
pub(super) struct Counter {
    key_len: usize,
    partitions: Vec<Partition>,
}

/// A partition's keys, back to back, and how often each was seen.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Table {
    keys: Vec<u8>,
    counts: Vec<u64>,
}

/// The keys whose hash falls into one partition.
#[derive(Debug, Default)]
pub(super) struct Partition {
    /// Numbers of keys.
    table: HashTable<u32>,
    /// The keys, back to back.
    keys: Vec<u8>,
    counts: Vec<u64>,
}

impl Counter {
    pub fn new(types: &[TensorType]) -> Self {
        let mut partitions = Vec::new();
        partitions.resize_with(PARTITIONS, Partition::default);
        Self { key_len: key_len(types), partitions }
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.partitions.iter().map(Partition::bytes).sum()
    }

    /// The keys and counts of every partition.
    pub fn tables(&self) -> Vec<Table> {
        self.partitions.iter().map(|p| Table { keys: p.keys.clone(), counts: p.counts.clone() }).collect()
    }

    /// A counter that has counted these.
    pub fn filled(types: &[TensorType], tables: Vec<Table>) -> Result<Self> {
        let mut this = Self::new(types);
        let key_len = this.key_len;
        if tables.len() != this.partitions.len()
            || tables.iter().any(|t| t.keys.len() != t.counts.len().saturating_mul(key_len))
        {
            return Err(Error::internal("counts of other observations"));
        }
        this.partitions.par_iter_mut().zip(tables).for_each(|(partition, Table { keys, counts })| {
            let key_of = |&number: &u32| &keys[number as usize * key_len..(number as usize + 1) * key_len];
            for number in (0..).take(counts.len()) {
                let hash = hash_of(key_of(&number));
                partition.table.insert_unique(hash, number, |number| hash_of(key_of(number)));
            }
            (partition.keys, partition.counts) = (keys, counts);
        });
        Ok(this)
    }

    /// Counts `rows`, one after the other, and writes each one's count.
    ///
    /// ```text
    /// rows in order     r0 r1 r2 r3 r4 r5
    /// by partition      r0 r3 | r2 | r1 r4 r5      equal keys fall into one partition, where order is kept
    /// ```
    pub fn count(&mut self, keys: &[&Keys], rows: &[(usize, usize)], counts: &mut [Vec<u64>]) -> Result<()> {
        let mut by_partition: Vec<Vec<(usize, usize)>> = vec![Vec::new(); PARTITIONS];
        for &(m, row) in rows {
            by_partition[partition_of(keys[m].hashes[row])].push((m, row));
        }
        let key_len = self.key_len;
        let counted: Vec<Vec<u64>> = self
            .partitions
            .par_iter_mut()
            .zip(&by_partition)
            .map(|(partition, rows)| {
                rows.iter()
                    .map(|&(m, row)| partition.count(key_len, keys[m].key(row), keys[m].hashes[row]))
                    .collect::<Result<_>>()
            })
            .collect::<Result<_>>()?;
        for (rows, counted) in by_partition.iter().zip(counted) {
            for (&(m, row), count) in rows.iter().zip(counted) {
                counts[m][row] = count;
            }
        }
        Ok(())
    }
}

impl Partition {
    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.table.allocation_size() + self.keys.capacity() + self.counts.capacity() * size_of::<u64>()
    }

    /// Bytes that a key takes, with the room that tables and lists keep to grow.
    pub const fn bytes_a_key(key_len: usize) -> usize {
        2 * (key_len + size_of::<u64>() + size_of::<u32>() + 1)
    }

    pub fn count(&mut self, key_len: usize, key: &[u8], hash: u64) -> Result<u64> {
        let Self { table, keys, counts } = self;
        let key_of = |&number: &u32| {
            let start = number as usize * key_len;
            &keys[start..start + key_len]
        };
        if let Some(&number) = table.find(hash, |number| key_of(number) == key) {
            let count = &mut counts[number as usize];
            *count += 1;
            return Ok(*count);
        }
        let number = u32::try_from(counts.len())
            .map_err(|_| Error::environment("found more than 2^38 different observations, expected fewer"))?;
        table.insert_unique(hash, number, |number| hash_of(key_of(number)));
        keys.extend_from_slice(key);
        counts.push(1);
        Ok(1)
    }
}
