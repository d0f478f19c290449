//! Rows between the pipeline and the shards: a file a part, which whoever makes shards of them reads in pieces.
//!
//! ```text
//! rows-00002   | unit 0: eps_id t obs .. | unit 1: .. | ..                  in the order of the data, a segment a unit
//!              | bucket 3: keys eps_id t obs .. | bucket 0: .. | ..         shuffled: a segment a bucket, several times
//! ```

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::super::cutter::Rows;
use super::super::output::{Brought, TableStream};
use super::super::pass::{Done, Found};
use super::super::schedule::Taker;
use super::super::shuffle::{self, Part, Scattered};
use super::super::tables::{Growing, Storage, Table};
use super::wire::Step;
use crate::error::{Error, Result};
use crate::sink::{ColumnData, ColumnType, ShardSchema};

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
}

impl Segment {
    /// The bytes of a column that its digest is over.
    pub fn content_bytes(&self, column: usize, ty: &ColumnType) -> u64 {
        let (stored, rows) = (self.columns[column], self.rows as u64);
        match ty {
            // Offsets of 4 bytes here, lengths of 8 bytes there.
            ColumnType::Utf8 => stored - 4 * (rows + 1) + 8 * rows,
            _ => stored,
        }
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
    /// Rows that wait for others of their bucket, by stream.
    waiting: Vec<Vec<Scattered>>,
    held: usize,
    room: usize,
    /// Tables of windows, by module.
    tables: Vec<Vec<TableStream>>,
    /// Columns in front of the batch's.
    provenance: usize,
    pub streams: Vec<Vec<Segment>>,
    pub found: Found,
}

impl<'a> Writer<'a> {
    /// A new file at `path`; shuffled rows wait in `room` bytes for others of their bucket.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create(
        path: PathBuf,
        schemas: &'a [ShardSchema],
        storage: &[Storage],
        provenance: usize,
        room: usize,
    ) -> Result<Self> {
        let file = File::create(&path).map_err(|e| failed("create the file of a part's rows", &path, &e))?;
        let streams = schemas.iter().map(|_| Vec::new()).collect();
        let waiting = schemas.iter().map(|_| Vec::new()).collect();
        let (file, found) = (BufWriter::with_capacity(1 << 20, file), Found::default());
        let mut stream = storage.len()..;
        let table =
            |table: &Table| TableStream { table: Growing::new(table.clone()), stream: stream.next().unwrap_or(0) };
        let mut table = table;
        let tables = storage.iter().map(|s| s.tables.iter().map(&mut table).collect()).collect();
        Ok(Self { path, file, end: 0, schemas, waiting, held: 0, room, tables, provenance, streams, found })
    }

    fn write(&mut self, stream: usize, bucket: Option<usize>, keys: &[u64], rows: &Rows) -> Result<()> {
        let (at, mut bytes, mut columns) = (self.end, Vec::new(), Vec::with_capacity(rows.columns.len()));
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
        self.streams[stream].push(Segment { bucket, at, rows: rows.rows, columns });
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        for stream in 0..self.waiting.len() {
            let waiting = std::mem::take(&mut self.waiting[stream]);
            shuffle::by_bucket(&waiting, |bucket, parts| {
                let part = shuffle::joined(&self.schemas[stream].columns, parts)?;
                self.write(stream, Some(bucket), &part.keys, &part.rows)
            })?;
        }
        self.held = 0;
        Ok(())
    }

    /// Everything is in the file.
    ///
    /// # Errors
    /// If the disk is full.
    pub fn finish(mut self) -> Result<(Vec<Vec<Segment>>, Found)> {
        self.flush()?;
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
                    self.held += rows.bytes();
                    self.waiting[stream].push(rows);
                }
            }
        }
        if self.held > self.room / 2 { self.flush() } else { Ok(()) }
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

    /// The rows of a step, in their order. Columns for which `wanted` is false are left out.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn step(&mut self, step: &Step, wanted: impl Fn(&ColumnType) -> bool) -> Result<Rows> {
        let schema: Vec<_> = self.schema.iter().filter(|(_, ty)| wanted(ty)).cloned().collect();
        let mut parts = Vec::with_capacity(step.len());
        for (number, segment) in step {
            parts.push(self.segment(*number, segment, &wanted)?);
        }
        if step.iter().any(|(_, segment)| segment.bucket.is_some()) {
            return Ok(shuffle::sorted(&shuffle::joined(&schema, parts)?));
        }
        Ok(shuffle::joined(&schema, parts)?.rows)
    }

    fn segment(&mut self, number: usize, segment: &Segment, wanted: &impl Fn(&ColumnType) -> bool) -> Result<Part> {
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
        let mut text = Vec::new();
        if self.schema.iter().any(|(_, ty)| *ty == ColumnType::Utf8) {
            let own = self.step(step, |ty| *ty == ColumnType::Utf8)?.slice(0, rows);
            let bytes = |column: &ColumnData| crate::sink::content_len(column);
            text = own.columns.iter().map(bytes).collect::<Result<_>>()?;
        }
        let mut text = text.into_iter();
        let of = |(_, ty): &(String, ColumnType)| match ty {
            ColumnType::Utf8 => text.next().unwrap_or(0),
            ColumnType::Int64 => rows as u64 * 8,
            ColumnType::Tensor(ty) => (rows * ty.row_bytes()) as u64,
        };
        Ok(self.schema.iter().map(of).collect())
    }
}
