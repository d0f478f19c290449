//! Input files under one face: Parquet, Arrow IPC as file (Feather) or stream, and tables that are in memory already.
//!
//! A file is opened once: its footer is parsed, checked against the file's length and kept. Row groups (record batches,
//! in IPC) are then read one by one, from any thread, without parsing the footer again.
//!
//! ```text
//! InputFile  row_groups: [ {first_row: 0, rows: 3} {first_row: 3, rows: 2} ]
//!   read(0, ["obs"], 2) -> [rows 0 1] [row 2]          columns come in the order of the file
//! ```
//!
//! Whatever is wrong inside a file is the file's fault and said so, with its name and row group: the decoders below
//! return errors for most damage and panic on the rest, and both end as an [`Error`] (see [`guarded`]).

mod apart;
mod discover;
mod ipc;
mod memory;
mod pages;
mod parquet;
mod stamp;
mod thrift;
mod written;

use std::any::Any;
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::{Field, SchemaRef};

pub use discover::{Discovered, discover};
pub(crate) use discover::{NO_RECORDING, name_in};
use stamp::Stamp;
pub use written::{Instead, MANIFEST, QUARANTINE, UNFINISHED};
pub(crate) use written::{NO_MANIFEST, is_shard_name};

use crate::error::{Error, Kind, Result};
use crate::regular;

/// How a file is laid out, as told by its first bytes (not by its name).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// Apache Parquet.
    Parquet,
    /// Arrow IPC with a footer (`.arrow`, Feather version 2).
    ArrowFile,
    /// Arrow IPC as a stream of messages.
    ArrowStream,
    /// No file: record batches in memory.
    Memory,
}

impl FileFormat {
    /// The name used in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Parquet => "Parquet",
            Self::ArrowFile => "Arrow IPC file",
            Self::ArrowStream => "Arrow IPC stream",
            Self::Memory => "table in memory",
        }
    }
}

/// A part of a file that can be read by itself: a Parquet row group or an Arrow record batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowGroup {
    /// Rows in it; may be 0.
    pub rows: usize,
    /// The file's row that its first row is.
    pub first_row: u64,
    /// Its size in memory, roughly: uncompressed bytes as the file's metadata has them.
    pub bytes: u64,
}

/// Parsed metadata, by format.
#[derive(Debug)]
enum Footer {
    Parquet(parquet::Footer),
    Ipc(ipc::Footer),
    Memory(memory::Footer),
}

/// One file of recorded steps or episodes.
#[derive(Debug)]
pub struct InputFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it is called in messages and in the manifest.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// How it is laid out.
    pub format: FileFormat,
    /// Its columns. Extension types are kept as the metadata of their fields.
    pub schema: SchemaRef,
    /// Its parts, in order.
    pub row_groups: Vec<RowGroup>,
    /// Something odd about the file that does not stop it from being read, in words.
    pub note: Option<String>,
    /// Positions of the columns: a schema is searched name by name, which takes long where it has very many.
    places: HashMap<String, usize>,
    /// None for a table in memory.
    stamp: Option<Stamp>,
    footer: Footer,
}

/// The batches of one row group.
pub type Batches = Box<dyn Iterator<Item = Result<RecordBatch>> + Send>;

impl InputFile {
    /// Opens a file and reads its metadata. It is called by its whole path in messages.
    ///
    /// # Errors
    /// If it is missing, empty, no data file, cut off or damaged.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_named(path, path.display().to_string())
    }

    /// Opens a file that is called by its path relative to `base` where it lies below it.
    ///
    /// # Errors
    /// See [`InputFile::open`].
    pub fn open_in(path: &Path, base: &Path) -> Result<Self> {
        Self::open_named(path, discover::name_in(path, base)?)
    }

    fn open_named(path: &Path, name: String) -> Result<Self> {
        let parsed = (|| {
            let io = |e: &std::io::Error| Error::io("open the file", path, e);
            let (mut file, _) = regular::open("open the file", path)?;
            let meta = file.metadata().map_err(|e| io(&e))?;
            let bytes = meta.len();
            let format = recognise(&mut file, bytes)?;
            let (schema, row_groups, note, footer) = guarded(|| match format {
                FileFormat::Parquet => parquet::Footer::parse(&file, bytes),
                FileFormat::ArrowFile => ipc::Footer::parse_file(&mut file, bytes),
                FileFormat::ArrowStream => ipc::Footer::parse_stream(&mut file, bytes),
                FileFormat::Memory => Err(Error::internal("a file is recognised as no file")),
            })?;
            Ok((Stamp::of(&meta), format, schema, row_groups, note, footer))
        })();
        match parsed {
            Ok((stamp, format, schema, row_groups, note, footer)) => {
                let (path, bytes, places) = (path.to_owned(), stamp.bytes, places(&schema));
                let stamp = Some(stamp);
                Ok(Self { path, name, bytes, format, schema, row_groups, note, places, stamp, footer })
            }
            // `Error::io` has named the path already; the name is the shorter one.
            Err(e) => Err(rename_file(&e, name)),
        }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.row_groups.iter().map(|g| g.rows as u64).sum()
    }

    /// Whether there is a top-level column of this name.
    #[must_use]
    pub fn has(&self, column: &str) -> bool {
        self.places.contains_key(column)
    }

    /// Position and field of a top-level column, the first one of this name.
    #[must_use]
    pub fn field(&self, column: &str) -> Option<(usize, &Field)> {
        let at = *self.places.get(column)?;
        Some((at, self.schema.field(at)))
    }

    /// Nulls of a top-level column in one row group (those inside of it included), where the file's metadata tell.
    #[must_use]
    pub fn null_count(&self, row_group: usize, column: &str) -> Option<u64> {
        let (at, field) = self.field(column)?;
        match &self.footer {
            _ if !field.is_nullable() => Some(0),
            Footer::Parquet(footer) => footer.null_count(row_group, at),
            Footer::Ipc(_) => None,
            Footer::Memory(footer) => footer.null_count(row_group, at),
        }
    }

    /// Bytes of the texts and binary values of top-level columns in one row group, where the file's metadata tell; else 0.
    #[must_use]
    pub fn text_bytes(&self, row_group: usize, columns: &[String]) -> u64 {
        let Footer::Parquet(footer) = &self.footer else { return 0 };
        let places = columns.iter().filter_map(|column| self.places.get(column));
        places.map(|&at| footer.text_bytes(row_group, at)).fold(0, u64::saturating_add)
    }

    /// The rows of one row group, in batches of at most `batch_rows`. Of each top-level column in `columns` there is
    /// one in the batches, in the order of the *file*; with no `columns` the batches just have their number of rows. Text of
    /// a Parquet file comes as `Utf8View`, whatever the schema says.
    ///
    /// # Errors
    /// If the file has no such row group or column, or cannot be opened any more. Damage is found while iterating;
    /// the iterator ends after its first error.
    pub fn read(self: &Arc<Self>, row_group: usize, columns: &[String], batch_rows: usize) -> Result<Batches> {
        let place = |e: Error| e.row_group(row_group).file(self.name.clone());
        Ok(Box::new(self.guarded_batches(row_group, columns, batch_rows).map_err(place)?))
    }

    /// [`Self::read`] for who keeps the batches: they hold no memory but their own. A table in memory is there in any case.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub fn read_apart(self: &Arc<Self>, row_group: usize, columns: &[String], batch_rows: usize) -> Result<Batches> {
        let batches = self.read(row_group, columns, batch_rows)?;
        if !matches!(self.footer, Footer::Ipc(_)) {
            return Ok(batches);
        }
        let file = Arc::clone(self);
        let place = move |e: Error| e.row_group(row_group).file(file.name.clone());
        Ok(Box::new(batches.map(move |batch| batch.and_then(|batch| guarded(|| apart::apart(&batch)).map_err(&place)))))
    }

    /// The same rows with text of the types that the file's schema says.
    ///
    /// # Errors
    /// If they are none of this file's, or their text is more than such a column can hold.
    pub fn as_recorded(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        apart::as_in(batch, |name| self.field(name).map(|(_, field)| field.data_type()))
            .map_err(|e| e.file(self.name.clone()))
    }

    /// [`Self::read`], with errors that have no place.
    fn guarded_batches(self: &Arc<Self>, row_group: usize, columns: &[String], batch_rows: usize) -> Result<Guarded> {
        let (group, projection) = self.projection(row_group, columns)?;
        let batch_rows = batch_rows.max(1);
        let inner = guarded(|| match &self.footer {
            Footer::Parquet(footer) => {
                let reader = footer.read(self.reopen()?, self.bytes, row_group, &projection, batch_rows)?;
                Ok(Box::new(reader) as Batches)
            }
            Footer::Ipc(footer) => footer.read(self.reopen()?, row_group, &projection, batch_rows),
            Footer::Memory(footer) => footer.read(row_group, &projection, batch_rows),
        })?;
        let columns = columns.to_vec();
        Ok(Guarded { inner: Some(inner), file: Arc::clone(self), row_group, columns, left: group.rows })
    }

    /// The columns of one record batch out of `map`, the whole Arrow file in memory. Uncompressed columns are not copied:
    /// they lie where the file has them.
    ///
    /// # Errors
    /// If the file is no Arrow file, has no such record batch or column, or is damaged.
    pub fn read_mapped(&self, map: &Buffer, row_group: usize, columns: &[String]) -> Result<RecordBatch> {
        let place = |e: Error| e.row_group(row_group).file(self.name.clone());
        let (group, projection) = self.projection(row_group, columns).map_err(place)?;
        let batch = guarded(|| match &self.footer {
            Footer::Ipc(footer) if map.len() as u64 == self.bytes => footer.read_mapped(map, row_group, projection),
            _ => Err(Error::internal("not this file's memory map, or a file that has none")),
        });
        match batch.map_err(place)? {
            batch if batch.num_rows() == group.rows => Ok(batch),
            batch => {
                let (found, promised) = (batch.num_rows(), group.rows);
                let e = Error::usage(format!("the file is damaged: found {found} rows, it promises {promised}"));
                Err(place(e.hint(DAMAGED)))
            }
        }
    }

    /// A row group, and where the file has these columns.
    fn projection(&self, row_group: usize, columns: &[String]) -> Result<(RowGroup, Vec<usize>)> {
        let Some(group) = self.row_groups.get(row_group).copied() else {
            return Err(Error::internal(format!("the file has {} row groups", self.row_groups.len())));
        };
        let mut projection = Vec::with_capacity(columns.len());
        for name in columns {
            match self.field(name) {
                Some((i, _)) => projection.push(i),
                None => return Err(Error::internal("asked for a column that the file does not have").column(name)),
            }
        }
        projection.sort_unstable();
        projection.dedup();
        Ok((group, projection))
    }

    /// Opens the file again, if it is still the one that was opened first.
    fn reopen(&self) -> Result<File> {
        let io = |e: &std::io::Error| match e.kind() {
            // It was there before.
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => stamp::removed(e).file(&self.name),
            _ => rename_file(&Error::io("open the file", &self.path, e), self.name.clone()),
        };
        let file = File::open(&self.path).map_err(|e| io(&e))?;
        if let Some(stamp) = &self.stamp {
            stamp.check(&file.metadata().map_err(|e| io(&e))?).map_err(|e| e.file(self.name.clone()))?;
        }
        Ok(file)
    }

    /// Refuses a file that was written to, replaced or removed since it was opened: what was read of it before and after
    /// may not belong together.
    ///
    /// # Errors
    /// Of kind `Environment`. A change that keeps size and modification time is not seen.
    pub fn check_unchanged(&self) -> Result<()> {
        if self.stamp.is_some() { self.reopen().map(drop) } else { Ok(()) }
    }

    /// The first of `columns` that cannot be read, by trying one half of what is left after the other: decoders do not say.
    fn damaged_column<'a>(self: &Arc<Self>, row_group: usize, columns: &'a [String]) -> Option<&'a String> {
        let reads = |columns: &[String]| {
            // Without a place: that would ask here again.
            self.guarded_batches(row_group, columns, 8192).is_ok_and(|mut batches| batches.reads_to_the_end())
        };
        let mut left = columns;
        while left.len() > 1 {
            let (first, second) = left.split_at(left.len() / 2);
            left = if reads(first) { second } else { first };
        }
        left.first().filter(|_| columns.len() == 1 || !reads(left))
    }

    /// `blake3:<hex>` of the file's bytes.
    ///
    /// # Errors
    /// If the file cannot be read any more.
    pub fn digest(&self) -> Result<String> {
        let io = |e: std::io::Error| rename_file(&Error::io("read the file", &self.path, &e), self.name.clone());
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(self.reopen()?).map_err(io)?;
        self.check_unchanged()?;
        Ok(format!("blake3:{}", hasher.finalize().to_hex()))
    }
}

/// Positions of the columns by name; of several of one name, the first.
fn places(schema: &SchemaRef) -> HashMap<String, usize> {
    let mut out = HashMap::with_capacity(schema.fields().len());
    for (i, field) in schema.fields().iter().enumerate() {
        out.entry(field.name().clone()).or_insert(i);
    }
    out
}

/// The error with its file called `name`, whatever it was called before.
fn rename_file(e: &Error, name: String) -> Error {
    let named = Error::new(e.kind(), e.what()).file(name);
    let named = match e.io_kind() {
        Some(kind) => named.io_kind_of(kind),
        None => named,
    };
    match e.hint_text() {
        Some(hint) => named.hint(hint),
        None => named,
    }
}

/// The format by the file's first bytes, or what it is instead.
fn recognise(file: &mut File, bytes: u64) -> Result<FileFormat> {
    if bytes == 0 {
        return Err(Error::usage("the file is empty (0 bytes), expected Parquet or Arrow IPC")
            .hint("a recorder that was killed, or is still running, leaves such files; remove it or leave it out"));
    }
    let mut head = Vec::new();
    file.by_ref().take(8).read_to_end(&mut head).map_err(|e| damaged(&e))?;
    file.seek(SeekFrom::Start(0)).map_err(|e| damaged(&e))?;
    if head.starts_with(b"PAR1") {
        return Ok(FileFormat::Parquet);
    }
    if head.starts_with(b"ARROW1") {
        return Ok(FileFormat::ArrowFile);
    }
    if head.starts_with(&[0xff; 4]) {
        return Ok(FileFormat::ArrowStream);
    }
    let found = match head.as_slice() {
        [b'P', b'A', b'R', b'E', ..] => "encrypted Parquet",
        [b'F', b'E', b'A', b'1', ..] => "Feather version 1",
        [b'{' | b'[', ..] => "JSON",
        [0x1f, 0x8b, ..] => "a gzip archive",
        [b'P', b'K', 3, 4, ..] => "a zip archive",
        [0x89, b'H', b'D', b'F', ..] => "HDF5",
        _ if head.iter().all(|b| b.is_ascii_graphic() || b.is_ascii_whitespace()) => "text",
        _ => "something else (no `PAR1` and no `ARROW1` at its start)",
    };
    let reader = match head.as_slice() {
        [b'{', ..] => Some("read_ndjson"),
        [b'[', ..] => Some("read_json"),
        _ if found == "text" => Some("read_csv"),
        _ => None,
    };
    let own =
        "give only the recording's own files: a folder is searched for them, a glob can pick them (`logs/*.parquet`)";
    Err(Error::usage(format!("found {found}, expected Parquet or Arrow IPC")).hint(match reader {
        Some(reader) => format!(
            "if this is the recording, write it as Parquet first, with polars for example: \
             `pl.{reader}(\"FILE\").write_parquet(\"FILE.parquet\")`; else {own}"
        ),
        None => own.to_owned(),
    }))
}

/// An error out of a decoder, or of the operating system beneath it.
fn damaged(e: &(dyn std::error::Error + 'static)) -> Error {
    let mut source = Some(e);
    while let Some(inner) = source {
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            use std::io::ErrorKind as K;
            if !matches!(io.kind(), K::UnexpectedEof | K::InvalidData | K::InvalidInput | K::Other) {
                return Error::environment(format!("cannot read the file: {io}"));
            }
        }
        source = inner.source();
    }
    Error::usage(format!("the file is damaged: {e}")).hint(DAMAGED)
}

const DAMAGED: &str = "copy or record the file again, or leave it out of the input";

thread_local! {
    static IN_GUARD: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside [`guarded`], so that a panic hook can keep still: the panic becomes an [`Error`].
#[must_use]
pub fn in_guard() -> bool {
    IN_GUARD.get()
}

/// Runs `work` with the panic hook kept still: its panics are caught and become errors.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> T {
    let before = IN_GUARD.replace(true);
    let out = work();
    IN_GUARD.set(before);
    out
}

/// Runs a decoder that may panic on damaged bytes; a panic becomes an [`Error`].
///
/// The Parquet and Arrow crates check most of what they read, not all of it. Their state is dropped after a panic.
pub(crate) fn guarded<T>(decode: impl FnOnce() -> Result<T>) -> Result<T> {
    let out = quietly(|| catch_unwind(AssertUnwindSafe(decode)));
    out.unwrap_or_else(|panic| {
        Err(Error::usage(format!("the file is damaged: its decoder failed with {:?}", panic_text(panic.as_ref())))
            .hint(DAMAGED))
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("an unknown panic")
}

/// A row group's batches with every error placed, and its number of rows held to what the metadata promised.
struct Guarded {
    inner: Option<Batches>,
    file: Arc<InputFile>,
    row_group: usize,
    columns: Vec<String>,
    left: usize,
}

impl Guarded {
    fn step(&mut self) -> Result<Option<RecordBatch>> {
        let Some(inner) = &mut self.inner else { return Ok(None) };
        let batch = guarded(|| inner.next().transpose())?;
        let promised = self.file.row_groups[self.row_group].rows;
        match &batch {
            Some(batch) if batch.num_rows() <= self.left => self.left -= batch.num_rows(),
            None if self.left == 0 => {}
            _ => {
                let wrong = if batch.is_some() { "more" } else { "fewer" };
                let e =
                    Error::usage(format!("the file is damaged: found {wrong} rows than the {promised} it promises"));
                return Err(e.hint(DAMAGED));
            }
        }
        Ok(batch)
    }

    /// Whether all batches can be read.
    fn reads_to_the_end(&mut self) -> bool {
        loop {
            match self.step() {
                Ok(Some(_)) => {}
                end => return end.is_ok(),
            }
        }
    }
}

impl Iterator for Guarded {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if !matches!(step, Ok(Some(_))) {
            self.inner = None;
        }
        let place = |e: Error| {
            // A file that is cut or written anew while it is read looks damaged.
            if let Err(changed) = self.file.check_unchanged() {
                return changed;
            }
            let e = match self.file.damaged_column(self.row_group, &self.columns) {
                Some(column) if e.kind() == Kind::Usage => e.own_column(column.as_str()),
                _ => e,
            };
            e.row_group(self.row_group).file(self.file.name.clone())
        };
        step.map_err(place).transpose()
    }
}

/// `usize` of a count out of a file.
fn count<T: TryInto<usize> + Copy + std::fmt::Display>(n: T, what: &str) -> Result<usize> {
    n.try_into().map_err(|_| Error::new(Kind::Usage, format!("the file is damaged: {what} is {n}")).hint(DAMAGED))
}

#[cfg(test)]
mod tests;
