//! Sorting the rows of a stream in the room that there is.
//!
//! Rows wait in memory until half of the room is full; then each bucket's are written to scratch, behind those that it
//! has there. A bucket on scratch is a [`Chain`] of segments, so what is known of it in memory does not grow.
//!
//! There are no more buckets than half of the room has segments of 8 KiB. What of them is too large to be sorted in
//! memory goes through a shuffler of its own, by the next bits of the keys. So a row is written once more
//! each time that the data are larger by a factor of the number of buckets, and memory does not grow with them.

use super::form::{Gathering, write};
use super::{Part, Scattered, Shuffle, by_bucket, is_too_large, joined, sorted, views};
use crate::connector::Room;
use crate::error::{Error, Result};
use crate::run::cutter::Rows;
use crate::scratch::{Chain, ScratchFile};
use crate::sink::{ColumnData, ColumnType};

/// A bucket on scratch.
#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    segments: Chain,
    rows: u64,
}

/// Brings a stream's rows into their order.
#[derive(Debug)]
pub(in super::super) struct Shuffler {
    schema: Vec<(String, ColumnType)>,
    shuffle: Shuffle,
    room: Room,
    /// What units brought and is not on scratch.
    waiting: Vec<Scattered>,
    held: usize,
    file: Option<ScratchFile>,
    /// By bucket, once there is a file.
    buckets: Vec<Bucket>,
    /// The bucket that is next.
    next: usize,
    /// What sorts a bucket that is too large.
    finer: Option<Box<Self>>,
}

impl Shuffler {
    /// A shuffler of rows of `schema`.
    pub fn new(shuffle: Shuffle, schema: &[(String, ColumnType)], room: Room) -> Self {
        Self {
            schema: schema.to_vec(),
            shuffle,
            room,
            waiting: Vec::new(),
            held: 0,
            file: None,
            buckets: Vec::new(),
            next: 0,
            finer: None,
        }
    }

    /// Takes in the rows of the next unit.
    ///
    /// # Errors
    /// If scratch space fails.
    pub fn push(&mut self, unit: Scattered) -> Result<()> {
        self.held += unit.bytes();
        self.waiting.push(unit);
        if self.held > self.room.bytes / 2 { self.flush() } else { Ok(()) }
    }

    /// Bytes of rows in memory, and buckets that something is known of.
    #[cfg(test)]
    pub fn kept(&self) -> (usize, usize) {
        (self.held, self.buckets.len())
    }

    /// Writes what waits to scratch.
    fn flush(&mut self) -> Result<()> {
        let Self { schema, shuffle, room, file, buckets, .. } = self;
        let file = match file {
            Some(file) => file,
            none => none.insert(room.scratch.file()?),
        };
        buckets.resize(shuffle.buckets(), Bucket::default());
        let mut bytes = Vec::new();
        by_bucket(&self.waiting, |bucket, parts| {
            segment(schema, &parts, &mut bytes)?;
            let bucket = &mut buckets[bucket];
            bucket.rows += parts.iter().map(|part| part.rows.rows as u64).sum::<u64>();
            bucket.segments.push(file, &mut bytes)
        })?;
        self.waiting.clear();
        self.held = 0;
        Ok(())
    }

    /// The rows of the next bucket that has any, in their order; once all units were pushed.
    ///
    /// # Errors
    /// If scratch space fails.
    pub fn next(&mut self) -> Result<Option<Rows>> {
        Ok(self.next_part()?.map(|part| part.rows))
    }

    /// The same with their keys.
    ///
    /// # Errors
    /// If scratch space fails.
    pub fn next_part(&mut self) -> Result<Option<Part>> {
        // What waits stays in memory, if every bucket fits beside it.
        if !self.waiting.is_empty() && self.buckets.iter().any(|bucket| self.is_too_large(bucket)) {
            self.flush()?;
        }
        loop {
            if let Some(finer) = &mut self.finer {
                if let Some(part) = finer.next_part()? {
                    return Ok(Some(part));
                }
                self.finer = None;
            }
            let number = self.next;
            if number == self.shuffle.buckets() {
                self.waiting = Vec::new();
                return Ok(None);
            }
            self.next += 1;
            let bucket = self.buckets.get(number).copied().unwrap_or_default();
            if self.is_too_large(&bucket)
                && let Some(finer) = self.shuffle.finer(bucket.segments.bytes(), self.room.bytes)
            {
                self.finer = Some(Box::new(self.sort_finer(finer, bucket)?));
                continue;
            }
            let mut parts = Vec::new();
            if bucket.rows > 0 {
                parts.push(self.read(bucket)?);
            }
            parts.extend(self.waiting.iter().filter_map(|unit| unit.of_bucket(number)));
            if !parts.is_empty() {
                return Ok(Some(sorted(&joined(&self.schema, parts)?)));
            }
        }
    }

    /// Whether a bucket cannot be sorted in memory, where it is twice then.
    fn is_too_large(&self, bucket: &Bucket) -> bool {
        let most = self.room.bytes / if self.waiting.is_empty() { 2 } else { 3 };
        bucket.rows > 1 && is_too_large(bucket.segments.bytes() + bucket.rows * views(&self.schema), most)
    }

    /// A bucket's rows, sorted by more bits of their keys.
    fn sort_finer(&self, shuffle: Shuffle, bucket: Bucket) -> Result<Self> {
        let mut finer = Self::new(shuffle, &self.schema, self.room.clone());
        let mut rows = Gathering::new(&self.schema, 0);
        let push = |finer: &mut Self, rows: Gathering<'_>| {
            let Part { keys, rows } = rows.finish()?;
            finer.push(shuffle.scatter(rows, keys))
        };
        self.segments(bucket, |n, columns, bytes| {
            rows.extend(n, columns, bytes)?;
            if rows.bytes() > self.room.bytes / 16 {
                push(&mut finer, std::mem::replace(&mut rows, Gathering::new(&self.schema, 0)))?;
            }
            Ok(())
        })?;
        push(&mut finer, rows)?;
        Ok(finer)
    }

    fn read(&self, bucket: Bucket) -> Result<Part> {
        let rows = usize::try_from(bucket.rows).map_err(|_| Error::internal("a bucket larger than memory"))?;
        let mut rows = Gathering::new(&self.schema, rows);
        self.segments(bucket, |n, columns, bytes| rows.extend(n, columns, bytes))?;
        rows.finish()
    }

    /// Every segment of a bucket: its rows, the bytes of each column, and all bytes.
    fn segments(&self, bucket: Bucket, mut each: impl FnMut(usize, &[u64], &[u8]) -> Result<()>) -> Result<()> {
        let short = || Error::internal("a segment of a scratch file is short");
        let file = self.file.as_ref().ok_or_else(|| Error::internal("a segment without a file"))?;
        bucket.segments.each(file, |bytes| {
            let (head, rest) = bytes.split_at_checked(head_bytes(&self.schema)).ok_or_else(short)?;
            let head: Vec<u64> = head.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
            each(usize::try_from(head[0]).map_err(|_| short())?, &head[1..], rest)
        })
    }
}

/// Bytes in front of a segment's keys: its rows, and the bytes of each column.
const fn head_bytes(schema: &[(String, ColumnType)]) -> usize {
    (1 + schema.len()) * size_of::<u64>()
}

/// A segment of a chain: some rows of one bucket.
fn segment(schema: &[(String, ColumnType)], parts: &[Part], out: &mut Vec<u8>) -> Result<()> {
    out.clear();
    out.resize(Chain::HEAD + head_bytes(schema), 0);
    let mut head = vec![parts.iter().map(|part| part.rows.rows as u64).sum()];
    for part in parts {
        out.extend_from_slice(bytemuck::cast_slice(&part.keys));
    }
    for (i, (_, ty)) in schema.iter().enumerate() {
        let before = out.len();
        if let ColumnType::Utf8 = ty {
            let own: Vec<ColumnData> = parts.iter().map(|part| part.rows.columns[i].clone()).collect();
            write(&ColumnData::concat(ty, &own)?, out)?;
        } else {
            parts.iter().try_for_each(|part| write(&part.rows.columns[i], out))?;
        }
        head.push((out.len() - before) as u64);
    }
    out[Chain::HEAD..][..head_bytes(schema)].copy_from_slice(bytemuck::cast_slice(&head));
    Ok(())
}
