//! From the order of the input to the order of the units, over a scratch file.
//!
//! A block must stay until the last unit that needs one of its rows was put together. Where episodes are spread over
//! long stretches of the input, that is more than memory holds. Then rows are sorted into buckets first, a bucket for
//! some consecutive units, and the units are put together bucket by bucket:
//!
//! ```text
//! input      |--block--|--block--|--block--|--block--|
//! units      |-- u0 --|-- u1 --|-- u2 --|-- u3 --|         rows of u0 lie in every block
//! buckets    |------- 0 -------|------- 1 -------|
//! scratch    0 1 | 0 1 | 0 1 | 0 1                         segments, as blocks are read: in order within a bucket
//! read back  0 0 0 0 ──▶ u0 u1      1 1 1 1 ──▶ u2 u3
//! ```
//!
//! Every row is written once (once a bucket that needs it) and read once, so the work is linear in the input.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;

use super::budget::Limits;
use super::units::Unit;
use crate::error::{Error, Result};
use crate::progress::{Progress, Step};
use crate::scratch::{Scratch, ScratchFile};
use crate::source::blocks::{Block, BlockData, BlockRows};
use crate::source::gathered::{Gathered, RowForm};
use crate::source::index::{Index, Span};
use crate::source::rows::RowGroupRef;
use crate::source::{BlockIter, Source};

/// Rows of a bucket that were written in one go.
#[derive(Debug, Clone, Copy)]
struct Segment {
    first_row: u64,
    at: u64,
    bytes: usize,
    rows: usize,
}

/// Rows of a span, and the bucket that needs them.
#[derive(Debug, Clone, Copy)]
struct Route {
    span: Span,
    bucket: u32,
}

/// What is sorted.
#[derive(Clone, Copy)]
pub(super) struct Input<'a> {
    pub source: &'a dyn Source,
    /// What is read of it.
    pub groups: &'a [RowGroupRef],
    pub index: &'a Index,
    pub progress: &'a dyn Progress,
}

/// The rows of the input by bucket.
#[derive(Debug)]
pub(super) struct Exchange {
    file: ScratchFile,
    form: RowForm,
    buckets: Vec<Vec<Segment>>,
    /// Rows that could not be read, and why; only where malformed episodes are left out.
    bad: BTreeMap<u64, Error>,
}

/// Which bucket each unit belongs to.
pub(super) fn buckets(units: &[Unit], row_bytes: usize, bucket_bytes: usize) -> Vec<u32> {
    let (mut bucket, mut bytes) = (0, 0_u64);
    let mut out = Vec::with_capacity(units.len());
    for unit in units {
        let own =
            unit.weight.max(unit.steps).saturating_add(unit.cut.entries.len() as u64).saturating_mul(row_bytes as u64);
        if bytes > 0 && bytes.saturating_add(own) > bucket_bytes as u64 {
            (bucket, bytes) = (bucket + 1, 0);
        }
        bytes = bytes.saturating_add(own);
        out.push(bucket);
    }
    out
}

/// The most bytes of rows that are alive at once if blocks stay until no unit needs them.
pub(super) fn window_bytes(units: &[Unit], row_bytes: usize) -> u64 {
    let needed = super::units::still_needed(units);
    let (mut reach, mut most) = (0, 0);
    for (unit, &from) in units.iter().zip(&needed) {
        reach = reach.max(unit.end);
        most = most.max(reach.saturating_sub(from));
    }
    most.saturating_mul(row_bytes as u64)
}

/// The rows of every unit, sorted by where they begin.
fn routes(index: &Index, units: &[Unit], buckets: &[u32]) -> Vec<Route> {
    let mut out: Vec<Route> = Vec::with_capacity(index.spans.len());
    for (unit, &bucket) in units.iter().zip(buckets) {
        out.extend(unit.rows(index).into_iter().map(|span| Route { span, bucket }));
    }
    out.sort_unstable_by_key(|r| (r.span.first(), r.bucket));
    out
}

/// Bytes that the routes of an index take.
pub(super) fn routes_bytes(index: &Index, units: &[Unit]) -> usize {
    // A slice begins and ends inside of a span, and needs rows on both sides of it.
    let seams = units.iter().filter(|unit| unit.cut.slice.is_some()).count();
    (index.spans.len() + 4 * seams) * size_of::<Route>()
}

/// The routes that have rows in a stretch, stretch by stretch.
struct Sweep {
    routes: std::vec::IntoIter<Route>,
    next: Option<Route>,
    active: Vec<Route>,
}

impl Sweep {
    fn new(routes: Vec<Route>) -> Self {
        let mut routes = routes.into_iter();
        Self { next: routes.next(), routes, active: Vec::new() }
    }

    /// The routes with rows in `rows`. Stretches come in order.
    fn advance(&mut self, rows: &Range<u64>) -> Vec<Route> {
        self.active.retain(|r| r.span.end() > rows.start);
        while let Some(route) = self.next.filter(|r| r.span.first() < rows.end) {
            self.active.push(route);
            self.next = self.routes.next();
        }
        self.active.clone()
    }
}

/// The positions in a block of the rows that each bucket needs, by bucket.
fn positions(routes: &[Route], rows: &Range<u64>) -> Result<BTreeMap<u32, Vec<usize>>> {
    let mut out: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for route in routes {
        let span = route.span.within(rows.clone());
        if span.is_empty() {
            continue;
        }
        let own = out.entry(route.bucket).or_default();
        for i in 0..span.len() {
            let at = usize::try_from(span.row(i) - rows.start);
            own.push(at.map_err(|_| Error::internal("a block larger than memory"))?);
        }
    }
    for own in out.values_mut() {
        own.sort_unstable();
        own.dedup(); // a row that two chunks of a bucket look at
    }
    Ok(out)
}

impl Exchange {
    /// Reads everything once and sorts it into the buckets of the units.
    ///
    /// # Errors
    /// If the input is damaged, or the scratch folder full. Of several errors, the first one in the order of the rows.
    pub fn fill(input: Input<'_>, units: &[Unit], of_unit: &[u32], scratch: &Scratch, limits: Limits) -> Result<Self> {
        let file = scratch.file()?;
        let count = of_unit.last().map_or(0, |last| *last as usize + 1);
        let filled = Filling {
            input,
            file: &file,
            block_bytes: limits.block_bytes,
            // What waits to be written, over all readers.
            buffer_bytes: (limits.read_bytes / 2 / limits.readers).max(1),
            form: Mutex::default(),
            bad: Mutex::default(),
        };
        let mut sweep = Sweep::new(routes(input.index, units, of_unit));
        let mut buckets: Vec<Vec<Segment>> = vec![Vec::new(); count];
        for groups in input.groups.chunks(limits.readers) {
            let work: Vec<(RowGroupRef, Vec<Route>)> =
                groups.iter().map(|g| (*g, sweep.advance(&(g.first_row..g.first_row + g.rows)))).collect();
            let parts: Vec<Result<Vec<(u32, Segment)>>> =
                work.into_par_iter().map(|(group, routes)| filled.group(group, routes)).collect();
            for part in parts {
                for (bucket, segment) in part? {
                    buckets[bucket as usize].push(segment);
                }
            }
        }
        let form = filled.form.into_inner().unwrap_or_else(PoisonError::into_inner).unwrap_or(RowForm::Items);
        debug_assert!(buckets.iter().all(|segments| segments.is_sorted_by_key(|s| s.first_row)));
        let bad = filled.bad.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Self { file, form, buckets, bad })
    }

    /// Number of buckets.
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Bytes of the largest bucket.
    pub fn largest(&self) -> usize {
        let bytes = |segments: &Vec<Segment>| segments.iter().map(|s| s.bytes).sum();
        self.buckets.iter().map(bytes).max().unwrap_or(0)
    }

    /// Bytes written.
    pub fn bytes(&self) -> u64 {
        self.file.len()
    }

    /// The rows of a bucket: one block, or none.
    pub fn read(self: &Arc<Self>, bucket: usize) -> BlockIter {
        let this = Arc::clone(self);
        let block = move |bucket: usize| {
            let segments = &this.buckets[bucket];
            let mut rows = Gathered::new(&this.form, segments.iter().map(|s| s.rows).sum());
            let mut bytes = Vec::new();
            for segment in segments {
                bytes.resize(segment.bytes, 0);
                this.file.read(segment.at, &mut bytes)?;
                rows.extend_from_bytes(segment.rows, &bytes)?;
            }
            let mut block = rows.into_block()?;
            if let (BlockRows::Some(rows), BlockData::Steps { bad, .. }) = (&block.rows, &mut block.data)
                && !this.bad.is_empty()
            {
                let why = |(i, row): (usize, &u64)| Some((i, this.bad.get(row)?.clone()));
                bad.extend(rows.iter().enumerate().filter_map(why));
            }
            Ok(block)
        };
        Box::new((!self.buckets[bucket].is_empty()).then_some(bucket).into_iter().map(block))
    }
}

/// What the tasks that fill the buckets share.
struct Filling<'a> {
    input: Input<'a>,
    file: &'a ScratchFile,
    block_bytes: usize,
    buffer_bytes: usize,
    form: Mutex<Option<RowForm>>,
    bad: Mutex<BTreeMap<u64, Error>>,
}

impl Filling<'_> {
    /// Sorts the rows of one row group.
    fn group(&self, group: RowGroupRef, routes: Vec<Route>) -> Result<Vec<(u32, Segment)>> {
        let mut out = Vec::new();
        let (mut waiting, mut waiting_bytes) = (BTreeMap::<u32, Gathered>::new(), 0);
        let mut sweep = Sweep::new(routes); // sorted, being a part of all routes
        for block in self.input.source.read(group, &self.input.index.layout, self.block_bytes)? {
            let block = block?;
            self.input.progress.advance(Step { bytes: block.bytes as u64, ..Step::default() });
            if block.rows.is_empty() {
                continue;
            }
            let rows = block.rows.at(0)..block.rows.end();
            let form = self.form(&block)?;
            if let BlockData::Steps { bad, .. } = &block.data
                && !bad.is_empty()
            {
                let mut all = self.bad.lock().unwrap_or_else(PoisonError::into_inner);
                all.extend(bad.iter().map(|(i, error)| (block.rows.at(*i), error.clone())));
            }
            for (bucket, positions) in positions(&sweep.advance(&rows), &rows)? {
                waiting.entry(bucket).or_insert_with(|| Gathered::new(&form, 0)).extend(&block, &positions)?;
            }
            waiting_bytes += block.bytes;
            drop(block);
            if waiting_bytes >= self.buffer_bytes {
                self.flush(&mut waiting, &mut out)?;
                waiting_bytes = 0;
            }
        }
        self.flush(&mut waiting, &mut out)?;
        Ok(out)
    }

    fn flush(&self, waiting: &mut BTreeMap<u32, Gathered>, out: &mut Vec<(u32, Segment)>) -> Result<()> {
        for (bucket, rows) in std::mem::take(waiting) {
            let (Some(first_row), n) = (rows.first_row(), rows.len()) else { continue };
            let bytes = rows.into_bytes();
            let at = self.file.append(&bytes)?;
            out.push((bucket, Segment { first_row, at, bytes: bytes.len(), rows: n }));
        }
        Ok(())
    }

    fn form(&self, block: &Block) -> Result<RowForm> {
        let mut form = self.form.lock().unwrap_or_else(PoisonError::into_inner);
        let own = RowForm::of(block);
        match &*form {
            Some(form) if *form != own => Err(Error::internal("blocks of two forms")),
            Some(_) => Ok(own),
            None => Ok(form.insert(own).clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::units::Cut;
    use super::*;

    fn strided(first: u64, stride: u64, len: u64) -> Span {
        (0..len).map(|i| Span::one(first + i * stride)).reduce(|a, b| a.joined(b).unwrap()).unwrap()
    }

    #[test]
    fn stretches_get_the_rows_that_lie_in_them() {
        let span = strided(5, 4, 4); // 5 9 13 17
        let rows = |range: Range<u64>| {
            let part = span.within(range);
            (0..part.len()).map(|i| part.row(i)).collect::<Vec<_>>()
        };
        assert_eq!(rows(0..100), [5, 9, 13, 17]);
        assert_eq!(rows(6..17), [9, 13]);
        assert_eq!(rows(9..10), [9]);
        assert_eq!(rows(10..13), [] as [u64; 0]);
        assert_eq!(rows(18..30), [] as [u64; 0]);
        assert_eq!(rows(0..5), [] as [u64; 0]);
    }

    #[test]
    fn every_bucket_gets_its_rows_once() {
        let route = |span, bucket| Route { span, bucket };
        let mut all = vec![
            route(strided(0, 3, 4), 0),
            route(strided(1, 3, 4), 1),
            route(Span::one(6), 1),
            route(Span::one(3), 0),
        ];
        all.sort_unstable_by_key(|r| (r.span.first(), r.bucket));
        let mut sweep = Sweep::new(all);
        let of = |routes: &[Route], rows: Range<u64>| positions(routes, &rows).unwrap().into_iter().collect::<Vec<_>>();
        let first = sweep.advance(&(0..5));
        assert_eq!(of(&first, 0..5), [(0, vec![0, 3]), (1, vec![1, 4])]);
        let second = sweep.advance(&(5..12));
        assert_eq!(of(&second, 5..12), [(0, vec![1, 4]), (1, vec![1, 2, 5])]);
    }

    #[test]
    fn buckets_hold_whole_units() {
        let unit = |i: usize, steps, begin, end| Unit {
            cut: Cut { entries: i..i + 1, slice: None },
            begins: 1,
            steps,
            weight: steps,
            begin,
            end,
        };
        let units = [unit(0, 4, 0, 40), unit(1, 4, 1, 30), unit(2, 20, 30, 60), unit(3, 1, 55, 61)];
        assert_eq!(buckets(&units, 1, 10), [0, 0, 1, 2]);
        assert_eq!(buckets(&units, 1, 1000), [0; 4]);
        // Rows 0..40 are alive until unit 0 was put together, 30..61 before the last unit.
        assert_eq!((window_bytes(&units, 1), window_bytes(&units, 10)), (40, 400));
    }
}
