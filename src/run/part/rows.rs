//! Rows between the pipeline and the shards: a file a part, which whoever makes shards of them reads in pieces.
//!
//! ```text
//! rows-00002   | unit 0: eps_id t obs .. | unit 1: .. | ..                  in the order of the data, a segment a unit
//!              | bucket 0: keys eps_id t obs .. | bucket 1: .. | ..         shuffled: sorted, a segment or a few a bucket
//! ```
//!
//! Rows in a shuffled order are sorted before they are written, over scratch where memory ends. If each were written as
//! soon as memory is full, a terabyte's would come in segments of a few rows, and what is known of all segments would be as
//! large as the rows themselves.

mod steps;

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use arrow::array::AsArray;
use serde::{Deserialize, Serialize};

pub(super) use self::steps::Steps;
use super::super::cutter::Rows;
use super::super::output::{Brought, TableStream};
use super::super::pass::{Done, Found};
use super::super::schedule::Taker;
use super::super::shuffle::{self, Part, Shuffle, Shuffler};
use super::super::tables::{Growing, Storage, Table};
use super::wire::Step;
use crate::connector::Room;
use crate::error::{Error, Result};
use crate::sink::{ColumnData, ColumnType, ShardSchema};

/// Bytes of a bucket's rows that are put together before they are written.
const TOGETHER: usize = 4 << 20;

/// Rows that lie in one piece.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Segment {
    /// Their bucket, in a shuffled order.
    pub bucket: Option<usize>,
    /// Where they begin in the file.
    at: u64,
    /// How many they are.
    pub rows: usize,
    /// Bytes of each column.
    columns: Vec<u64>,
    /// Bytes of the rows' texts, for each column of text, wherever rows share them.
    texts: Vec<u64>,
}

impl Segment {
    /// Adds the bytes that the digest of each column is over.
    pub fn add_content_bytes(&self, schema: &[(String, ColumnType)], to: &mut [u64]) {
        let mut texts = self.texts.iter();
        for ((to, (_, ty)), stored) in to.iter_mut().zip(schema).zip(&self.columns) {
            *to += match ty {
                // Each text with its length.
                ColumnType::Utf8 => texts.next().copied().unwrap_or(0) + 8 * self.rows as u64,
                _ => *stored,
            };
        }
    }

    /// Bytes of one in memory, of so many columns of the batch: what it says, its lists, and a few columns in front.
    pub const fn bytes_known(columns: usize) -> usize {
        size_of::<(usize, Self)>() + (columns + 8) * size_of::<u64>()
    }

    /// Bytes of its rows.
    fn bytes(&self) -> u64 {
        self.keys() + self.columns.iter().sum::<u64>()
    }

    const fn keys(&self) -> u64 {
        if self.bucket.is_some() { self.rows as u64 * 8 } else { 0 }
    }
}

/// The file of part number `number`.
pub(super) fn file(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("rows-{number:05}"))
}

fn failed(doing: &str, path: &Path, e: &std::io::Error) -> Error {
    Error::io(doing, path, e).hint("every machine of the cluster must have the output directory at the same path")
}

/// Writes the rows of a part.
pub(super) struct Writer<'a> {
    path: PathBuf,
    file: BufWriter<File>,
    end: u64,
    schemas: &'a [ShardSchema],
    /// What sorts the rows of shuffled streams, and the order whose buckets they are cut into, by stream.
    shufflers: Vec<(Shuffler, Shuffle)>,
    /// Tables of windows, by module.
    tables: Vec<Vec<TableStream>>,
    /// Columns in front of the batch's.
    provenance: usize,
    pub streams: Vec<Vec<Segment>>,
    pub found: Found,
}

impl<'a> Writer<'a> {
    /// A new file at `path`.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create(path: PathBuf, schemas: &'a [ShardSchema], storage: &[Storage], provenance: usize) -> Result<Self> {
        let file = File::create(&path).map_err(|e| failed("create the file of a part's rows", &path, &e))?;
        let streams = schemas.iter().map(|_| Vec::new()).collect();
        let (file, found) = (BufWriter::with_capacity(1 << 20, file), Found::default());
        let mut stream = storage.len()..;
        let table =
            |table: &Table| TableStream { table: Growing::new(table.clone()), stream: stream.next().unwrap_or(0) };
        let mut table = table;
        let tables = storage.iter().map(|s| s.tables.iter().map(&mut table).collect()).collect();
        Ok(Self { path, file, end: 0, schemas, shufflers: Vec::new(), tables, provenance, streams, found })
    }

    /// Sorts the rows of modules, each in `room`: they come by the buckets of `own`, and go by those of `orders`.
    pub fn shuffle(&mut self, orders: &[Shuffle], own: &[Shuffle], room: &Room) {
        let shuffler = |((order, own), schema): ((&Shuffle, &Shuffle), &ShardSchema)| {
            (Shuffler::new(*own, &schema.columns, room.clone()), *order)
        };
        self.shufflers = orders.iter().zip(own).zip(self.schemas).map(shuffler).collect();
    }

    fn write(&mut self, stream: usize, bucket: Option<usize>, keys: &[u64], rows: &Rows) -> Result<()> {
        let (at, mut bytes, mut columns) = (self.end, Vec::new(), Vec::with_capacity(rows.columns.len()));
        let texts =
            rows.columns.iter().filter_map(|column| Some(lengths(column)?.map(u64::from).sum::<u64>())).collect();
        let mut put = |bytes: &[u8]| {
            self.end += bytes.len() as u64;
            self.file.write_all(bytes).map_err(|e| failed("write the file of a part's rows", &self.path, &e))
        };
        put(bytemuck::cast_slice(keys))?;
        for column in &rows.columns {
            bytes.clear();
            shuffle::write(column, &mut bytes)?;
            put(&bytes)?;
            columns.push(bytes.len() as u64);
        }
        self.streams[stream].push(Segment { bucket, at, rows: rows.rows, columns, texts });
        Ok(())
    }

    /// Writes what was sorted, bucket by bucket. The sorter's buckets may be many more: those of one bucket go together.
    fn write_sorted(&mut self) -> Result<()> {
        for (stream, (mut shuffler, order)) in std::mem::take(&mut self.shufflers).into_iter().enumerate() {
            let row_bytes = size_of::<u64>() + self.schemas[stream].row_bytes();
            let (mut bucket, mut waiting, mut held) = (0, Vec::new(), 0);
            while let Some(Part { keys, rows }) = shuffler.next_part()? {
                let mut start = 0;
                for own in keys.chunk_by(|a, b| order.bucket(*a) == order.bucket(*b)) {
                    let rows = rows.slice(start, own.len());
                    start += own.len();
                    if order.bucket(own[0]) != bucket || held > TOGETHER {
                        self.write_parts(stream, bucket, std::mem::take(&mut waiting))?;
                        (bucket, held) = (order.bucket(own[0]), 0);
                    }
                    held += own.len() * row_bytes;
                    waiting.push(Part { keys: own.to_vec(), rows });
                }
            }
            self.write_parts(stream, bucket, waiting)?;
        }
        Ok(())
    }

    fn write_parts(&mut self, stream: usize, bucket: usize, parts: Vec<Part>) -> Result<()> {
        if parts.is_empty() {
            return Ok(());
        }
        let Part { keys, rows } = shuffle::joined(&self.schemas[stream].columns, parts)?;
        self.write(stream, Some(bucket), &keys, &rows)
    }

    /// Everything is in the file.
    ///
    /// # Errors
    /// If the disk is full.
    pub fn finish(mut self) -> Result<(Vec<Vec<Segment>>, Found)> {
        self.write_sorted()?;
        self.file.flush().map_err(|e| failed("write the file of a part's rows", &self.path, &e))?;
        Ok((self.streams, self.found))
    }
}

impl Taker<Done> for Writer<'_> {
    fn take(&mut self, done: Done) -> Result<()> {
        self.found.merge(&done.found);
        for (stream, mut brought, steps) in done.rows {
            for (i, steps) in steps.into_iter().enumerate() {
                let (own, provenance) = (&mut self.tables[stream][i], self.provenance);
                own.table.take(&mut brought, provenance, steps.rows)?;
                if steps.rows > 0 {
                    let table = own.stream;
                    self.write(table, None, &[], &steps)?;
                }
            }
            match brought {
                Brought::Rows(rows) if rows.rows > 0 => self.write(stream, None, &[], &rows)?,
                Brought::Rows(_) => {}
                Brought::Scattered(rows) => {
                    let shuffler = self.shufflers.get_mut(stream);
                    shuffler.ok_or_else(|| Error::internal("rows in two orders"))?.0.push(rows)?;
                }
            }
        }
        Ok(())
    }
}

/// Reads rows of any part.
pub(super) struct Reader<'a> {
    folder: &'a Path,
    schema: &'a [(String, ColumnType)],
    /// The file that was read last.
    open: Option<(usize, BufReader<File>)>,
    moves: Option<Moves<'a>>,
}

/// Rows of a part number the steps of their windows from the part's first one on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moves<'a> {
    pub tables: &'a [Table],
    /// Columns in front of the batch's.
    pub provenance: usize,
    /// Steps of the parts before, by part and table.
    pub by: &'a [Vec<i64>],
}

impl<'a> Reader<'a> {
    pub fn new(folder: &'a Path, schema: &'a [(String, ColumnType)]) -> Self {
        Self { folder, schema, open: None, moves: None }
    }

    /// Lets windows count steps as the whole data set does.
    #[must_use]
    pub fn moving(self, moves: Moves<'a>) -> Self {
        Self { moves: Some(moves), ..self }
    }

    /// The rows of a step, in their order.
    ///
    /// # Errors
    /// If a file cannot be read.
    fn step(&mut self, step: &Step) -> Result<Rows> {
        let schema = self.schema;
        let parts = step.iter().map(|(number, segment)| self.segment(*number, segment, |_| true));
        let joined = shuffle::joined(schema, parts.collect::<Result<_>>()?)?;
        Ok(if is_shuffled(step) { shuffle::sorted(&joined).rows } else { joined.rows })
    }

    fn segment(&mut self, number: usize, segment: &Segment, wanted: impl Fn(&ColumnType) -> bool) -> Result<Part> {
        let path = file(self.folder, number);
        let what = "read the file of a part's rows";
        let mut file = match self.open.take() {
            Some((open, file)) if open == number => file,
            _ => BufReader::new(File::open(&path).map_err(|e| failed(what, &path, &e))?),
        };
        let mut at = segment.at;
        let mut get = |at: u64, len: u64| {
            let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
            let read = file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(&mut bytes));
            read.map(|()| bytes).map_err(|e| failed(what, &path, &e))
        };
        let keys = get(at, segment.keys())?.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
        at += segment.keys();
        let mut columns = Vec::with_capacity(self.schema.len());
        for ((_, ty), &len) in self.schema.iter().zip(&segment.columns) {
            if wanted(ty) {
                columns.push(shuffle::read(ty, segment.rows, &get(at, len)?)?);
            }
            at += len;
        }
        self.open = Some((number, file));
        let mut rows = Rows { rows: segment.rows, columns };
        if let Some(Moves { tables, provenance, by }) = self.moves {
            for (table, &by) in tables.iter().zip(&by[number]) {
                table.move_offsets(&mut rows, provenance, by);
            }
        }
        Ok(Part { keys, rows })
    }

    /// The bytes of each column's digest that the first `rows` rows of a step make.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn content_bytes(&mut self, step: &Step, rows: usize) -> Result<Vec<u64>> {
        let texts = self.schema.iter().filter(|(_, ty)| *ty == ColumnType::Utf8).count();
        // Of each row its key and its place, and of its texts the lengths: a bucket's rows may be more than memory holds.
        let (mut keys, mut of_texts): (Vec<(u64, u32)>, Vec<Vec<u32>>) = (Vec::new(), vec![Vec::new(); texts]);
        for (number, segment) in step.iter().filter(|_| texts > 0) {
            let part = self.segment(*number, segment, |ty| *ty == ColumnType::Utf8)?;
            let place = |i: usize| u32::try_from(i).map_err(|_| Error::internal("a bucket of 2^32 rows"));
            for i in 0..segment.rows {
                keys.push((part.keys.get(i).copied().unwrap_or(0), place(keys.len())?));
            }
            for (own, column) in of_texts.iter_mut().zip(&part.rows.columns) {
                own.extend(lengths(column).ok_or_else(|| Error::internal("text of another type"))?);
            }
        }
        if rows < keys.len() {
            keys.select_nth_unstable(rows);
        }
        let of = |lengths: Vec<u32>| keys.iter().take(rows).map(|&(_, i)| 8 + u64::from(lengths[i as usize])).sum();
        let text: Vec<u64> = of_texts.into_iter().map(of).collect();
        let mut text = text.into_iter();
        let of = |(_, ty): &(String, ColumnType)| match ty {
            ColumnType::Utf8 => text.next().unwrap_or(0),
            ColumnType::Int64 => rows as u64 * 8,
            ColumnType::Tensor(ty) => (rows * ty.row_bytes()) as u64,
        };
        Ok(self.schema.iter().map(of).collect())
    }
}

/// The length of each row's text, if the column is text: the first four bytes of its view.
fn lengths(column: &ColumnData) -> Option<impl Iterator<Item = u32> + use<'_>> {
    let texts = column.ids()?.as_string_view_opt()?;
    Some(texts.lengths())
}

fn is_shuffled(step: &Step) -> bool {
    step.iter().any(|(_, segment)| segment.bucket.is_some())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringViewArray};
    use arrow::datatypes::Int64Type;

    use super::*;
    use crate::scratch::Scratch;

    const ROWS: usize = 20_000;

    fn schema() -> ShardSchema {
        ShardSchema::new(vec![("eps_id".to_owned(), ColumnType::Utf8), ("t".to_owned(), ColumnType::Int64)])
    }

    fn key(t: i64) -> u64 {
        t.unsigned_abs().wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Two parts of rows that come in units of 50, and are written in `order`, sorted in `room` bytes.
    fn written(folder: &Path, order: Shuffle, room: usize) -> Vec<Vec<Segment>> {
        let (schemas, scratch) = ([schema()], Scratch::new(folder));
        let own = Shuffle::in_steps(0, 1 << 20, room);
        let part = |number: usize| {
            let mut writer = Writer::create(file(folder, number), &schemas, &[], 0).unwrap();
            writer.shuffle(&[order], &[own], &Room { bytes: room, scratch: scratch.clone() });
            let first = i64::try_from(number * ROWS / 2).unwrap();
            for start in (first..first + i64::try_from(ROWS / 2).unwrap()).step_by(50) {
                let t: Vec<i64> = (start..start + 50).collect();
                let ids: Vec<String> = t.iter().map(|t| format!("e{t}")).collect();
                let columns = vec![
                    ColumnData::Ids(Arc::new(StringViewArray::from(ids))),
                    ColumnData::Ids(Arc::new(Int64Array::from(t.clone()))),
                ];
                let scattered = own.scatter(Rows { rows: 50, columns }, t.into_iter().map(key).collect());
                let rows = vec![(0, Brought::Scattered(scattered), Vec::new())];
                writer.take(Done::of_rows(rows)).unwrap();
            }
            writer.finish().unwrap().0.remove(0)
        };
        (0..2).map(part).collect()
    }

    #[test]
    fn shuffled_rows_are_known_by_few_segments_and_come_in_order_whatever_the_room() {
        let dir = tempfile::tempdir().unwrap();
        let mut want: Vec<i64> = (0..i64::try_from(ROWS).unwrap()).collect();
        want.sort_unstable_by_key(|&t| key(t));
        // Buckets of 10,000 rows, and of a few.
        for (most, room) in [(2, 30_000), (2, 1 << 24), (1024, 30_000), (1, 2000)] {
            let order = Shuffle::new(0, 1 << 40, 1, most);
            let parts = written(dir.path(), order, room);
            let segments: usize = parts.iter().map(Vec::len).sum();
            // One a bucket and part, and one more wherever the sorting ends a piece: not one a bucket and filled memory.
            let pieces = 2 * (ROWS * 40 / room * 16 + 1);
            assert!(segments <= 2 * most + pieces, "{segments} segments in {most} buckets");
            let mut steps: std::collections::BTreeMap<Option<usize>, Step> = std::collections::BTreeMap::new();
            for (number, segments) in parts.into_iter().enumerate() {
                for segment in segments {
                    steps.entry(segment.bucket).or_default().push((number, segment));
                }
            }
            assert!(steps.len() <= most);
            let (steps, schema): (Vec<Step>, _) = (steps.into_values().collect(), schema());
            for bytes in [1000, 40_000, 1 << 24] {
                let reader = Reader::new(dir.path(), &schema.columns);
                let room = Room { bytes, scratch: Scratch::new(dir.path()) };
                let (mut steps, mut got) = (Steps::new(&steps, reader, Some(order), room), Vec::new());
                while let Some(rows) = steps.next().unwrap() {
                    let ColumnData::Ids(t) = &rows.columns[1] else { panic!("numbers") };
                    got.extend_from_slice(t.as_primitive::<Int64Type>().values());
                }
                assert!(got == want, "{most} buckets, read with {bytes} bytes");
            }
            // The first rows of the first step, as digests count them.
            let mut reader = Reader::new(dir.path(), &schema.columns);
            let all = reader.step(&steps[0]).unwrap();
            for rows in [0, 1, all.rows / 3, all.rows] {
                let texts: u64 = lengths(&all.slice(0, rows).columns[0]).unwrap().map(|len| 8 + u64::from(len)).sum();
                let expected = vec![texts, 8 * rows as u64];
                assert_eq!(reader.content_bytes(&steps[0], rows).unwrap(), expected);
            }
        }
    }
}
