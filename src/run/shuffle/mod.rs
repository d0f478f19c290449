//! A seeded permutation of all rows of a stream, out of core.
//!
//! Every row has a key: a hash of the seed, its chunk's place in the data set and its place in the chunk. Rows are written
//! in the order of their keys, so the permutation depends on the seed and the data alone. What does not fit into memory
//! is sorted in steps, by the first bits of the keys, then by more of them, and then bucket by bucket ([`Shuffler`]):
//!
//! ```text
//! units     |k: 7 2 5|k: 1 6 0|k: 3 4|          keys of rows, as units bring them
//! scattered |2|7 5|  |1 0|6|  |3|4|             by bucket, within each unit: by the units' tasks
//! buckets   0..4: 2 1 0 3    4..8: 7 5 6 4      on scratch when memory is full
//! output    0 1 2 3          4 5 6 7            a bucket at a time: read back, sorted, cut into row groups
//! ```
//!
//! How many buckets there are has no influence on the order: a bucket holds a range of keys. Two rows of one key keep the
//! order that they have in the data.

mod form;
mod shuffler;
#[cfg(test)]
mod tests;

use std::ops::Range;

use arrow::array::{Array, UInt64Array};
use serde::{Deserialize, Serialize};

use form::VIEW;
pub(super) use form::{read, write};
pub(super) use shuffler::Shuffler;

use super::cutter::Rows;
use crate::episode::EpisodeBatch;
use crate::error::Result;
use crate::sink::{ColumnData, ColumnType};
use crate::window::Windows;

/// The most buckets of an order.
const MOST_BUCKETS: u64 = 1 << 16;
/// The largest bucket, whatever the memory: the ids of one are an Arrow array of 32-bit offsets.
const LARGEST_BUCKET: u64 = 256 << 20;
/// Bytes of a bucket that is sorted in the processor's cache, more or less.
const CACHED_BUCKET: u64 = 4 << 20;
/// Bytes that a column of a unit's rows takes beside its values, more or less: its type, its buffer, where they are.
const COLUMN: usize = 256;
/// Bytes of a bucket that are written in one go, if there are many: less is more work for the disk than for anyone else.
const SEGMENT: usize = 8 << 10;
/// The most buckets that rows are sorted into in one step.
const MOST_AT_ONCE: usize = 1 << 12;

/// The order of a stream's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shuffle {
    seed: u64,
    /// The first bits of a key that all rows here share.
    shared: u32,
    /// The bits behind those, which name its bucket.
    bits: u32,
}

impl Shuffle {
    /// An order for about `bytes` bytes of rows, of which `room` may be in memory, with `most` buckets at most: each of them
    /// fits, unless these are too few.
    pub fn new(seed: u64, bytes: u64, room: usize, most: usize) -> Self {
        Self { seed, shared: 0, bits: bits(bytes, room).min(most.max(1).ilog2()) }
    }

    /// The same with no more buckets than `room` holds segments of: they may be too large for it.
    pub fn in_steps(seed: u64, bytes: u64, room: usize) -> Self {
        Self { seed, shared: 0, bits: bits_at_once(bits(bytes, room), bytes, room) }
    }

    /// The order of one bucket, of `bytes` bytes. Nothing if its rows share their keys.
    pub fn finer(self, bytes: u64, room: usize) -> Option<Self> {
        let shared = self.shared + self.bits;
        let bits = bits_at_once(bits(bytes, room).max(1), bytes, room).min(64_u32.saturating_sub(shared));
        (bits > 0).then_some(Self { shared, bits, ..self })
    }

    fn buckets(self) -> usize {
        1 << self.bits
    }

    /// The bucket of a key.
    pub fn bucket(self, key: u64) -> usize {
        let own = key.checked_shl(self.shared).unwrap_or(0);
        // The bucket's number has few bits.
        usize::try_from(own.checked_shr(64 - self.bits).unwrap_or(0)).unwrap_or(usize::MAX)
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
    pub fn scatter(self, rows: Rows, keys: Vec<u64>) -> Scattered {
        if self.bits == 0 || keys.is_empty() {
            let ends = if keys.is_empty() { Vec::new() } else { vec![(0, keys.len())] };
            return Scattered { keys, rows, ends };
        }
        let mut begins = vec![0; self.buckets() + 1];
        for &key in &keys {
            begins[self.bucket(key) + 1] += 1;
        }
        let ends = (0..self.buckets()).filter_map(|bucket| {
            let own = begins[bucket + 1];
            begins[bucket + 1] += begins[bucket];
            (own > 0).then_some((bucket, begins[bucket + 1]))
        });
        let ends = ends.collect();
        let mut order = vec![0; keys.len()];
        for (i, &key) in keys.iter().enumerate() {
            let place = &mut begins[self.bucket(key)];
            order[*place] = i;
            *place += 1;
        }
        Scattered { keys: order.iter().map(|&i| keys[i]).collect(), rows: taken(&rows, &order), ends }
    }
}

/// The bits that name a bucket, where none is to be larger than `room` has room for.
fn bits(bytes: u64, room: usize) -> u32 {
    // A bucket is in memory twice while it is sorted, beside what waits of it.
    let buckets = bytes.div_ceil((room as u64 / 4).clamp(1, LARGEST_BUCKET)).clamp(1, MOST_BUCKETS);
    buckets.next_power_of_two().ilog2()
}

/// Whether a bucket of `bytes` bytes cannot be sorted in memory, where it may have `most`.
pub(super) fn is_too_large(bytes: u64, most: usize) -> bool {
    bytes > (most as u64).min(2 * LARGEST_BUCKET)
}

/// Of `bits` those that one step sorts by, all steps being about as large. Where one step does, more of them than it must
/// have for `bytes` bytes of rows: to look rows up all over a large bucket takes longer than all else.
fn bits_at_once(bits: u32, bytes: u64, room: usize) -> u32 {
    let most = (room / 2 / SEGMENT).clamp(2, MOST_AT_ONCE).ilog2();
    if bits > most {
        return bits.div_ceil(bits.div_ceil(most));
    }
    let cached = bytes.div_ceil(CACHED_BUCKET).clamp(1, MOST_BUCKETS);
    cached.next_power_of_two().ilog2().clamp(bits, most)
}

/// A unit's rows by bucket; those of one bucket in the order of the data.
#[derive(Debug)]
pub(super) struct Scattered {
    keys: Vec<u64>,
    pub rows: Rows,
    /// The buckets that have rows, in order, and where these end.
    ends: Vec<(usize, usize)>,
}

/// Rows and their keys.
#[derive(Debug)]
pub(super) struct Part {
    pub keys: Vec<u64>,
    pub rows: Rows,
}

/// Where a unit's rows of a bucket are.
#[derive(Debug, Clone)]
struct Place {
    bucket: usize,
    unit: usize,
    rows: Range<usize>,
}

impl Scattered {
    /// Bytes that it takes, more or less.
    pub fn bytes(&self) -> usize {
        let values = self.rows.columns.iter().map(|c| bytes_of(c) + COLUMN).sum::<usize>();
        values + size_of::<Self>() + self.keys.len() * 8 + self.ends.len() * size_of::<(usize, usize)>()
    }

    /// The rows of a bucket, without a copy.
    fn part(&self, rows: &Range<usize>) -> Part {
        Part { keys: self.keys[rows.clone()].to_vec(), rows: self.rows.slice(rows.start, rows.len()) }
    }

    fn of_bucket(&self, bucket: usize) -> Option<Part> {
        let at = self.ends.binary_search_by_key(&bucket, |(bucket, _)| *bucket).ok()?;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before].1);
        Some(self.part(&(start..self.ends[at].1)))
    }
}

/// What units brought, bucket by bucket and in the order of the data.
fn by_bucket(units: &[Scattered], mut each: impl FnMut(usize, Vec<Part>) -> Result<()>) -> Result<()> {
    let mut places: Vec<Place> = Vec::with_capacity(units.iter().map(|u| u.ends.len()).sum());
    for (unit, scattered) in units.iter().enumerate() {
        let mut start = 0;
        for &(bucket, end) in &scattered.ends {
            places.push(Place { bucket, unit, rows: start..end });
            start = end;
        }
    }
    places.sort_unstable_by_key(|place| (place.bucket, place.unit));
    for own in places.chunk_by(|a, b| a.bucket == b.bucket) {
        each(own[0].bucket, own.iter().map(|place| units[place.unit].part(&place.rows)).collect())?;
    }
    Ok(())
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

/// All parts as one. Parts come in the order of the data.
pub(super) fn joined(schema: &[(String, ColumnType)], parts: Vec<Part>) -> Result<Part> {
    let keys = parts.iter().flat_map(|part| part.keys.iter().copied()).collect();
    let rows = Rows::joined(schema, parts.into_iter().map(|part| part.rows).collect())?;
    Ok(Part { keys, rows })
}

/// The rows of a bucket in their order, and their keys.
pub(super) fn sorted(part: &Part) -> Part {
    let Part { keys, rows } = part;
    // Keys beside the places: comparing them looks nowhere else. Rows of one key keep the order of the data.
    let mut order: Vec<(u64, usize)> = keys.iter().copied().zip(0..).collect();
    order.sort_unstable();
    let (keys, places): (Vec<u64>, Vec<usize>) = order.into_iter().unzip();
    Part { rows: taken(rows, &places), keys }
}

/// Bytes of a row's texts in memory, beside what its bytes on scratch tell.
pub(super) fn views(schema: &[(String, ColumnType)]) -> u64 {
    (schema.iter().filter(|(_, ty)| *ty == ColumnType::Utf8).count() * VIEW) as u64
}

fn bytes_of(column: &ColumnData) -> usize {
    match column {
        ColumnData::Tensor(tensor) => tensor.bytes().len(),
        ColumnData::Ids(ids) => ids.get_array_memory_size(),
    }
}
