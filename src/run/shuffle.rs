//! A seeded permutation of all rows of a stream, out of core.
//!
//! Every row has a key: a hash of the seed, its chunk's place in the data set and its place in the chunk. Rows are written
//! in the order of their keys, so the permutation depends on the seed and the data alone. What does not fit into memory
//! is sorted in two steps, by the first bits of the keys and then bucket by bucket:
//!
//! ```text
//! units     |k: 7 2 5|k: 1 6 0|k: 3 4|          keys of rows, as units bring them
//! buckets   0..4: 2 1 0 3    4..8: 7 5 6 4      scattered by the units' tasks; on scratch when memory is full
//! output    0 1 2 3          4 5 6 7            a bucket at a time: read back, sorted, cut into row groups
//! ```
//!
//! How many buckets there are has no influence on the order: a bucket holds a range of keys. Two rows of one key keep the
//! order that they have in the data.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray, UInt64Array};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::Int64Type;
use serde::{Deserialize, Serialize};

use super::cutter::Rows;
use crate::connector::Room;
use crate::episode::EpisodeBatch;
use crate::error::{Error, Result};
use crate::scratch::ScratchFile;
use crate::sink::{ColumnData, ColumnType, ShardSchema};
use crate::tensor::Tensor;
use crate::window::Windows;

/// The most buckets: each keeps a list of what it has on scratch.
const MOST_BUCKETS: u64 = 1 << 16;
/// The largest bucket, whatever the memory: the ids of one are an Arrow array of 32-bit offsets.
const LARGEST_BUCKET: u64 = 256 << 20;
/// Bytes that a column of a part takes beside its values, more or less: its type, its buffer, where they are.
const COLUMN: usize = 256;

/// The order of a stream's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shuffle {
    seed: u64,
    /// The first bits of a key that name its bucket.
    bits: u32,
}

impl Shuffle {
    /// An order for about `bytes` bytes of rows, of which `room` may be in memory.
    pub fn new(seed: u64, bytes: u64, room: usize) -> Self {
        // A bucket is in memory twice while it is sorted, beside what waits of it.
        let buckets = bytes.div_ceil((room as u64 / 4).clamp(1, LARGEST_BUCKET)).clamp(1, MOST_BUCKETS);
        Self { seed, bits: buckets.next_power_of_two().ilog2() }
    }

    fn buckets(self) -> usize {
        1 << self.bits
    }

    fn bucket(self, key: u64) -> usize {
        // The bucket's number has few bits.
        usize::try_from(key.checked_shr(64 - self.bits).unwrap_or(0)).unwrap_or(usize::MAX)
    }

    /// The key of row number `row` of the chunk that stands at `ordinal`: `SplitMix64`, as a counter, twice.
    fn key(self, ordinal: u32, row: u64) -> u64 {
        let mix = |state: u64, n: u64| {
            let mut z = state.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        mix(mix(self.seed, ordinal.into()), row)
    }

    /// The keys of a unit's rows: a row is one of `windows`, or else one step. `start` are the steps of the unit's only
    /// chunk that came in slices before it.
    pub fn keys(self, episodes: &EpisodeBatch, windows: Option<&Windows>, start: u64) -> Vec<u64> {
        let first = start / windows.map_or(1, |w| w.spec().period as u64);
        let mut counts = vec![0_u64; episodes.len()];
        match windows {
            Some(windows) => windows.iter().for_each(|w| counts[w.episode] += 1),
            None => counts.iter_mut().zip(episodes.lengths()).for_each(|(n, len)| *n = len as u64),
        }
        let chunks = episodes.chunks.iter().zip(counts);
        chunks.flat_map(|(chunk, n)| (first..first + n).map(move |row| self.key(chunk.ordinal, row))).collect()
    }

    /// A unit's rows by bucket. Pure: any thread.
    pub fn scatter(self, rows: Rows, keys: Vec<u64>) -> Vec<Part> {
        if self.bits == 0 {
            return vec![Part { bucket: 0, keys, rows }];
        }
        let mut places: Vec<Vec<usize>> = vec![Vec::new(); self.buckets()];
        for (i, &key) in keys.iter().enumerate() {
            places[self.bucket(key)].push(i);
        }
        let part = |(bucket, places): (usize, Vec<usize>)| Part {
            bucket,
            keys: places.iter().map(|&i| keys[i]).collect(),
            rows: taken(&rows, &places),
        };
        places.into_iter().enumerate().filter(|(_, places)| !places.is_empty()).map(part).collect()
    }
}

/// Rows of one bucket.
#[derive(Debug)]
pub(super) struct Part {
    pub bucket: usize,
    pub keys: Vec<u64>,
    pub rows: Rows,
}

/// The rows at `places`, in that order.
fn taken(rows: &Rows, places: &[usize]) -> Rows {
    let column = |column: &ColumnData| match column {
        ColumnData::Tensor(tensor) => ColumnData::Tensor(tensor.take(places)),
        ColumnData::Ids(ids) => {
            let places: UInt64Array = places.iter().map(|&i| i as u64).collect::<Vec<_>>().into();
            ColumnData::Ids(arrow::compute::take(ids, &places, None).expect("ids of this crate's own types"))
        }
    };
    Rows { rows: places.len(), columns: rows.columns.iter().map(column).collect() }
}

/// A part on scratch.
#[derive(Debug)]
struct Segment {
    at: u64,
    bytes: usize,
    rows: usize,
    /// Bytes of each column.
    columns: Vec<usize>,
}

/// Brings a stream's rows into their order.
#[derive(Debug)]
pub(super) struct Shuffler {
    schema: Vec<(String, ColumnType)>,
    waiting: Vec<Vec<Part>>,
    held: usize,
    room: Room,
    file: Option<ScratchFile>,
    segments: VecDeque<Vec<Segment>>,
    next: usize,
}

impl Shuffler {
    /// A shuffler of rows of `schema`.
    pub fn new(shuffle: Shuffle, schema: &ShardSchema, room: Room) -> Self {
        let n = shuffle.buckets();
        Self {
            schema: schema.columns.clone(),
            waiting: (0..n).map(|_| Vec::new()).collect(),
            held: 0,
            room,
            file: None,
            segments: (0..n).map(|_| Vec::new()).collect(),
            next: 0,
        }
    }

    /// Takes in the parts of the next unit.
    ///
    /// # Errors
    /// If scratch space fails.
    pub fn push(&mut self, parts: Vec<Part>) -> Result<()> {
        for part in parts {
            self.held += part_bytes(&part);
            self.waiting[part.bucket].push(part);
        }
        if self.held > self.room.bytes / 2 { self.flush() } else { Ok(()) }
    }

    /// Writes what waits to scratch.
    fn flush(&mut self) -> Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(self.room.scratch.file()?),
        };
        let mut bytes = Vec::new();
        // One segment a bucket, however many units brought something to it.
        for (waiting, segments) in self.waiting.iter_mut().zip(&mut self.segments) {
            if waiting.is_empty() {
                continue;
            }
            let part = joined(&self.schema, std::mem::take(waiting))?;
            bytes.clear();
            bytes.extend_from_slice(bytemuck::cast_slice(&part.keys));
            let mut columns = Vec::with_capacity(part.rows.columns.len());
            for column in &part.rows.columns {
                let before = bytes.len();
                write(column, &mut bytes)?;
                columns.push(bytes.len() - before);
            }
            let at = file.append(&bytes)?;
            segments.push(Segment { at, bytes: bytes.len(), rows: part.rows.rows, columns });
        }
        self.held = 0;
        Ok(())
    }

    /// The rows of the next bucket that has any, in their order; once all units were pushed.
    ///
    /// # Errors
    /// If scratch space fails.
    pub fn next(&mut self) -> Result<Option<Rows>> {
        while let Some(segments) = self.segments.pop_front() {
            let mut parts = Vec::with_capacity(segments.len() + 1);
            let mut bytes = Vec::new();
            for segment in segments {
                let file = self.file.as_ref().ok_or_else(|| Error::internal("a segment without a file"))?;
                bytes.resize(segment.bytes, 0);
                file.read(segment.at, &mut bytes)?;
                parts.push(self.read(&segment, &bytes)?);
            }
            parts.append(&mut self.waiting[self.next]);
            self.next += 1;
            if !parts.is_empty() {
                return sorted(&self.schema, parts).map(Some);
            }
        }
        Ok(None)
    }

    fn read(&self, segment: &Segment, bytes: &[u8]) -> Result<Part> {
        let (keys, mut rest) = bytes.split_at(segment.rows * 8);
        let keys = keys.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
        let mut columns = Vec::with_capacity(self.schema.len());
        for ((_, ty), &len) in self.schema.iter().zip(&segment.columns) {
            let (own, behind) = rest.split_at(len);
            columns.push(read(ty, segment.rows, own)?);
            rest = behind;
        }
        Ok(Part { bucket: self.next, keys, rows: Rows { rows: segment.rows, columns } })
    }
}

/// All parts as one. Parts come in the order of the data.
pub(super) fn joined(schema: &[(String, ColumnType)], parts: Vec<Part>) -> Result<Part> {
    let bucket = parts.first().map_or(0, |part| part.bucket);
    let keys = parts.iter().flat_map(|part| part.keys.iter().copied()).collect();
    let rows = Rows::joined(schema, parts.into_iter().map(|part| part.rows).collect())?;
    Ok(Part { bucket, keys, rows })
}

/// The rows of a bucket in their order.
pub(super) fn sorted(schema: &[(String, ColumnType)], parts: Vec<Part>) -> Result<Rows> {
    let Part { keys, rows, .. } = joined(schema, parts)?;
    let mut order: Vec<usize> = (0..keys.len()).collect();
    // Stable: rows of one key keep the order of the data.
    order.sort_by_key(|&i| keys[i]);
    Ok(taken(&rows, &order))
}

/// Bytes that a part takes, more or less.
pub(super) fn part_bytes(part: &Part) -> usize {
    let values = part.rows.columns.iter().map(|c| bytes_of(c) + COLUMN).sum::<usize>();
    values + size_of::<Part>() + part.keys.len() * 8
}

fn bytes_of(column: &ColumnData) -> usize {
    match column {
        ColumnData::Tensor(tensor) => tensor.bytes().len(),
        ColumnData::Ids(ids) => ids.get_array_memory_size(),
    }
}

/// Appends a column's bytes. Text is its offsets and then its characters.
pub(super) fn write(column: &ColumnData, out: &mut Vec<u8>) -> Result<()> {
    match column {
        ColumnData::Tensor(tensor) => out.extend_from_slice(tensor.bytes()),
        ColumnData::Ids(ids) => {
            if let Some(ids) = ids.as_primitive_opt::<Int64Type>() {
                out.extend_from_slice(bytemuck::cast_slice(ids.values()));
            } else if let Some(ids) = ids.as_string_opt::<i32>() {
                let first = ids.value_offsets().first().copied().unwrap_or(0);
                out.extend(ids.value_offsets().iter().flat_map(|offset| (offset - first).to_le_bytes()));
                let (start, end) = (first, ids.value_offsets().last().copied().unwrap_or(0));
                let text = |i: i32| usize::try_from(i).map_err(|_| Error::internal("a negative offset"));
                out.extend_from_slice(&ids.value_data()[text(start)?..text(end)?]);
            } else {
                return Err(Error::internal(format!("ids of {}", ids.data_type())));
            }
        }
    }
    Ok(())
}

/// The column that [`write`] wrote.
pub(super) fn read(ty: &ColumnType, rows: usize, bytes: &[u8]) -> Result<ColumnData> {
    Ok(match ty {
        ColumnType::Tensor(ty) => ColumnData::Tensor(Tensor::new(ty.clone(), rows, Buffer::from(bytes))),
        ColumnType::Int64 => {
            let values: Vec<i64> = bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
            ColumnData::Ids(Arc::new(Int64Array::from(values)) as ArrayRef)
        }
        ColumnType::Utf8 => {
            let (offsets, text) = bytes.split_at((rows + 1) * 4);
            let offsets: Vec<i32> = offsets.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
            let ids = StringArray::try_new(OffsetBuffer::new(ScalarBuffer::from(offsets)), Buffer::from(text), None);
            ColumnData::Ids(Arc::new(ids.map_err(|e| Error::internal(format!("ids out of a scratch file: {e}")))?))
        }
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::scratch::Scratch;
    use crate::tensor::{DType, TensorType};

    fn schema() -> ShardSchema {
        ShardSchema::new(vec![
            ("eps_id".to_owned(), ColumnType::Utf8),
            ("t".to_owned(), ColumnType::Int64),
            ("obs".to_owned(), ColumnType::Tensor(TensorType::new(DType::Float32, [2]))),
            ("none".to_owned(), ColumnType::Tensor(TensorType::new(DType::Int8, [0]))),
        ])
    }

    /// Rows `first..first + n` of chunk `ordinal`, and their keys.
    fn unit(shuffle: Shuffle, ordinal: u32, n: u64) -> (Rows, Vec<u64>) {
        let t: Vec<i64> = (0..i64::try_from(n).unwrap()).map(|t| i64::from(ordinal) * 1000 + t).collect();
        let obs: Vec<f32> = t.iter().flat_map(|&t| [t as f32, -(t as f32)]).collect();
        let ids: Vec<String> = t.iter().map(|t| format!("episode {}", t / 1000)).collect();
        let columns = vec![
            ColumnData::Ids(Arc::new(StringArray::from(ids))),
            ColumnData::Ids(Arc::new(Int64Array::from(t.clone()))),
            ColumnData::Tensor(Tensor::from_values::<f32>([2], &obs)),
            ColumnData::Tensor(Tensor::zeros(TensorType::new(DType::Int8, [0]), t.len())),
        ];
        (Rows { rows: t.len(), columns }, (0..n).map(|row| shuffle.key(ordinal, row)).collect())
    }

    /// The values of `t` in their order, with `room` bytes of memory and that many buckets at least.
    fn shuffled(seed: u64, room: usize, bytes: u64) -> Vec<i64> {
        let shuffle = Shuffle::new(seed, bytes, room);
        let room = Room { bytes: room, scratch: Scratch::new(Path::new(".")) };
        let mut shuffler = Shuffler::new(shuffle, &schema(), room);
        for (ordinal, n) in [(0, 40), (1, 0), (2, 7), (3, 100)] {
            let (rows, keys) = unit(shuffle, ordinal, n);
            shuffler.push(shuffle.scatter(rows, keys)).unwrap();
        }
        let mut out = Vec::new();
        while let Some(rows) = shuffler.next().unwrap() {
            let [ColumnData::Ids(ids), ColumnData::Ids(t), ColumnData::Tensor(obs), ColumnData::Tensor(_)] =
                rows.columns.as_slice()
            else {
                panic!("the schema's columns")
            };
            let t = t.as_primitive::<Int64Type>().values().to_vec();
            for (i, &t) in t.iter().enumerate() {
                assert_eq!(ids.as_string::<i32>().value(i), format!("episode {}", t / 1000), "a row stays whole");
                assert_eq!(obs.slice(i, 1).values::<f32>(), [t as f32, -(t as f32)]);
            }
            out.extend(t);
        }
        out
    }

    #[test]
    fn memory_has_no_influence_on_the_order() {
        let all = shuffled(7, 1 << 20, 1000);
        for (room, bytes) in [(1 << 20, 1 << 30), (4000, 20_000), (100, 20_000), (1, 1)] {
            assert_eq!(shuffled(7, room, bytes), all, "{room} bytes for {bytes}");
        }
        let mut sorted = all.clone();
        sorted.sort_unstable();
        assert_ne!(sorted, all);
        let expected: Vec<i64> = (0..40).chain(2000..2007).chain(3000..3100).collect();
        assert_eq!(sorted, expected, "every row once");
        assert_ne!(shuffled(8, 1 << 20, 1000), all);
    }

    #[test]
    fn keys_are_spread_over_buckets() {
        let shuffle = Shuffle::new(1, 1 << 20, 1 << 18);
        assert_eq!(shuffle.buckets(), 16);
        let mut counts = [0; 16];
        for row in 0..16_000 {
            counts[shuffle.bucket(shuffle.key(3, row))] += 1;
        }
        assert!(counts.iter().all(|n| (800..1200).contains(n)), "{counts:?}");
        assert_eq!(Shuffle::new(1, 0, 0).bucket(u64::MAX), 0);
    }
}
