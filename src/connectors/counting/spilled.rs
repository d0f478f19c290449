//! Counting by partitions on scratch, for more observations than fit into memory.

use std::sync::Arc;

use super::keys::{Keys, hash_of, key_len};
use super::tables::Partition;
use super::{Kinds, Observed};
use crate::connector::{Finding, ModuleUnit, Rehearsal, Rehearsed, Room};
use crate::error::{Error, Result};
use crate::job::Compat;
use crate::scratch::{Chain, ScratchFile};
use crate::tensor::TensorType;

/// Partitions of the hashes of one kind of observations. What is too large still is split again, see [`Stream`].
const PARTITIONS: usize = 256;
/// Counts that are read from a stream in one go, if there is room.
const READ: usize = 1024;

/// Bits of the hash that tables of up to 2^32 places do not use: these take the lowest ones for a key's place, and the
/// highest ones for its tag. Keys of one partition that shared those would stand in one heap.
const fn partition_of(hash: u64) -> usize {
    (hash >> 32) as usize % PARTITIONS
}

/// Which of `splits` parts of its partition a hash belongs to.
const fn split_of(hash: u64, splits: u64) -> usize {
    ((hash >> 40) % splits) as usize
}

/// A unit's keys by kind and partition, each list in dataset order.
struct Keyed {
    compat: Compat,
    kinds: Vec<(Vec<TensorType>, Vec<Vec<u8>>)>,
}

/// Keys on their way to scratch.
#[derive(Debug)]
pub(in super::super) struct Spilling {
    room: Room,
    file: Option<ScratchFile>,
    kinds: Kinds,
    /// By kind and partition.
    partitions: Vec<Vec<Keyring>>,
    waiting: usize,
}

/// The keys of a partition: those that wait in memory, behind those that were written.
#[derive(Debug, Default)]
struct Keyring {
    waiting: Vec<u8>,
    written: Chain,
}

impl Spilling {
    /// No keys yet.
    pub fn new(room: Room) -> Self {
        Self { room, file: None, kinds: Kinds::default(), partitions: Vec::new(), waiting: 0 }
    }

    /// Bytes that are kept in memory.
    #[cfg(test)]
    fn kept(&self) -> usize {
        let rings = self.partitions.iter().flatten();
        rings.map(|ring| ring.waiting.capacity() + size_of_val(ring)).sum()
    }

    fn flush(&mut self) -> Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(self.room.scratch.file()?),
        };
        let mut segment = Vec::new();
        for ring in self.partitions.iter_mut().flatten().filter(|r| !r.waiting.is_empty()) {
            segment.clear();
            segment.resize(Chain::HEAD, 0);
            segment.append(&mut std::mem::take(&mut ring.waiting));
            ring.written.push(file, &mut segment)?;
        }
        self.waiting = 0;
        Ok(())
    }
}

impl Rehearsal for Spilling {
    fn observe(&self, compat: Compat, unit: &[ModuleUnit]) -> Result<Finding> {
        let observed = Observed::of(compat, unit);
        let mut kinds: Vec<(Vec<TensorType>, Vec<Vec<u8>>)> = Vec::new();
        let mut kind_of = Vec::with_capacity(observed.shares.len());
        for share in &observed.shares {
            let known = kinds.iter().position(|(types, _)| *types == share.types);
            kind_of.push(known.unwrap_or(kinds.len()));
            if known.is_none() {
                kinds.push((share.types.clone(), vec![Vec::new(); PARTITIONS]));
            }
        }
        for (m, row) in observed.rows_of(|_| true) {
            let keys = &observed.shares[m].keys;
            kinds[kind_of[m]].1[partition_of(keys.hashes[row])].extend_from_slice(keys.key(row));
        }
        Ok(Box::new(Keyed { compat, kinds }))
    }

    fn merge(&mut self, finding: Finding) -> Result<()> {
        let Keyed { compat, kinds } = *finding.downcast().map_err(|_| Error::internal("another piece's finding"))?;
        for (types, partitions) in kinds {
            let kind = self.kinds.number(compat, &types)?;
            if kind == self.partitions.len() {
                self.partitions.push(Vec::new());
                self.partitions[kind].resize_with(PARTITIONS, Keyring::default);
            }
            for (ring, keys) in self.partitions[kind].iter_mut().zip(partitions) {
                self.waiting += keys.len();
                ring.waiting.extend_from_slice(&keys);
            }
        }
        // Lists keep room to grow, as much again, and what many small ones leave behind is not given back at once.
        if self.waiting > self.room.bytes / 4 { self.flush() } else { Ok(()) }
    }

    fn finish(mut self: Box<Self>) -> Result<Rehearsed> {
        self.flush()?;
        let counts = CountFile { file: self.room.scratch.file()?, waiting: Vec::new(), end: 0 };
        let mut out = Spilled { counts, kinds: Vec::new() };
        let mut kinds = Vec::new();
        for (types, rings) in self.kinds.0.iter().zip(&self.partitions) {
            let key_len = key_len(types);
            let mut partitions = Vec::with_capacity(PARTITIONS);
            for ring in rings {
                partitions.push(count_partition(ring, key_len, self.file.as_ref(), self.room.bytes, &mut out.counts)?);
            }
            kinds.push(partitions);
        }
        out.counts.flush()?;
        out.kinds = kinds;
        Ok(Arc::new(out))
    }
}

/// The counts of a partition's keys. If they might not fit into `room` bytes, its keys are read as many times as it takes
/// for a part of them each time.
fn count_partition(
    ring: &Keyring,
    key_len: usize,
    file: Option<&ScratchFile>,
    room: usize,
    out: &mut CountFile,
) -> Result<Vec<Stream>> {
    let keys = usize::try_from(ring.written.bytes()).unwrap_or(usize::MAX) / key_len;
    let most = keys.saturating_mul(Partition::bytes_a_key(key_len));
    let splits = (most / (room / 2).max(64 << 10)).max(1) as u64;
    let mut streams = Vec::new();
    for split in 0..splits {
        let mut table = Partition::default();
        let start = out.len();
        if let Some(file) = file {
            // A segment is no longer than what waited in memory once.
            ring.written.each(file, |keys| {
                for key in keys.chunks_exact(key_len) {
                    let hash = hash_of(key);
                    if split_of(hash, splits) as u64 == split {
                        out.push(table.count(key_len, key, hash)?)?;
                    }
                }
                Ok(())
            })?;
        }
        streams.push(Stream { start, len: out.len() - start });
    }
    Ok(streams)
}

/// Counts of the keys of a partition, or of a part of them, in order.
#[derive(Debug, Clone, Copy)]
struct Stream {
    start: u64,
    len: u64,
}

/// Counts, one after the other.
#[derive(Debug)]
struct CountFile {
    file: ScratchFile,
    waiting: Vec<u64>,
    end: u64,
}

impl CountFile {
    fn len(&self) -> u64 {
        self.end + self.waiting.len() as u64
    }

    fn push(&mut self, count: u64) -> Result<()> {
        self.waiting.push(count);
        if self.waiting.len() >= 64 * READ { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.file.append(bytemuck::cast_slice(&self.waiting))?;
        self.end += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }
}

/// What the rehearsal found out: the counts of all keys, by kind and partition.
#[derive(Debug)]
pub(super) struct Spilled {
    counts: CountFile,
    kinds: Vec<Vec<Vec<Stream>>>,
}

/// Takes counts from where each row's are.
#[derive(Debug)]
pub(super) struct Replay {
    spilled: Arc<Spilled>,
    /// Counts that are read from a stream in one go.
    read: usize,
    /// By kind, partition and split: how many were read, and those of them that were not taken yet.
    cursors: Vec<Vec<Vec<Cursor>>>,
}

#[derive(Debug, Default, Clone)]
struct Cursor {
    read: u64,
    ready: std::collections::VecDeque<u64>,
}

impl Replay {
    /// With `room` bytes for what is read ahead.
    pub fn new(spilled: Arc<Spilled>, room: usize) -> Self {
        let streams: usize = spilled.kinds.iter().flatten().map(Vec::len).sum();
        let read = (room / 2 / size_of::<u64>() / streams.max(1)).clamp(16, READ);
        let of_partition = |streams: &Vec<Stream>| vec![Cursor::default(); streams.len()];
        let cursors = spilled.kinds.iter().map(|kind| kind.iter().map(of_partition).collect()).collect();
        Self { spilled, read, cursors }
    }

    /// Writes the counts of `rows`, which are the next ones of their kind.
    pub fn count(
        &mut self,
        kind: usize,
        keys: &[&Keys],
        rows: &[(usize, usize)],
        counts: &mut [Vec<u64>],
    ) -> Result<()> {
        let missing = || Error::internal("more observations than were counted");
        let (Some(streams), Some(cursors)) = (self.spilled.kinds.get(kind), self.cursors.get_mut(kind)) else {
            return if rows.is_empty() { Ok(()) } else { Err(missing()) };
        };
        for &(m, row) in rows {
            let hash = keys[m].hashes[row];
            let partition = partition_of(hash);
            let split = split_of(hash, streams[partition].len() as u64);
            let (stream, cursor) = (streams[partition][split], &mut cursors[partition][split]);
            if cursor.ready.is_empty() {
                let n = usize::try_from(stream.len - cursor.read).unwrap_or(usize::MAX).min(self.read);
                let mut bytes = vec![0; n * size_of::<u64>()];
                self.spilled.counts.file.read((stream.start + cursor.read) * size_of::<u64>() as u64, &mut bytes)?;
                cursor.ready.extend(bytes.chunks_exact(size_of::<u64>()).map(bytemuck::pod_read_unaligned::<u64>));
                cursor.read += n as u64;
            }
            counts[m][row] = cursor.ready.pop_front().ok_or_else(missing)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use crate::tensor::DType;

    #[test]
    fn what_is_kept_does_not_grow_with_the_keys() {
        let dir = tempfile::tempdir().unwrap();
        let room = Room { bytes: 64 << 10, scratch: Scratch::new(dir.path()) };
        let mut all = Spilling::new(room.clone());
        let types = vec![TensorType::new(DType::Float64, [])];
        let len = key_len(&types);
        let unit = |n: u64| {
            let mut partitions = vec![Vec::new(); PARTITIONS];
            for i in 0..500 {
                let mut key = vec![0; len];
                key[..8].copy_from_slice(&(n * 500 + i).to_le_bytes());
                partitions[partition_of(hash_of(&key))].extend_from_slice(&key);
            }
            Keyed { compat: Compat::Correct, kinds: vec![(types.clone(), partitions)] }
        };
        let mut most = [0; 2];
        for n in 0..1000 {
            all.merge(Box::new(unit(n))).unwrap();
            let half = &mut most[usize::from(n >= 500)];
            *half = all.kept().max(*half);
        }
        // 122 flushes each.
        assert!(most[1] <= most[0] + room.bytes / 16, "bytes, in the first and in the second half: {most:?}");
        assert!(most[1] <= room.bytes + PARTITIONS * size_of::<Keyring>(), "{most:?}");
        // What is written is known by plain numbers: a list of segments could not be copied out of the ring.
        let Keyring { waiting: _, written } = &all.partitions[0][0];
        let plain: Chain = *written;
        assert!(plain.bytes() > 0);
    }
}
