//! Reading column chunks with few open files and few calls to the operating system.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::{Buf, Bytes};
use parquet::basic::Compression;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, Length};

use super::super::thrift::{Looked, look_at_page};

/// Bytes that a page header needs at most. Statistics of long values may need more; such pages are the crate's.
const HEADER: u64 = 16 << 10;

/// One open file for all columns of a row group: a hundred thousand columns are not as many open files.
#[derive(Debug, Clone)]
pub(in super::super) struct Shared {
    file: Arc<Mutex<File>>,
    len: u64,
    /// Where chunks lie that are not compressed, in order: their first byte and one past their last.
    plain: Arc<[(u64, u64)]>,
}

impl Shared {
    /// Opens nothing: `file` has `len` bytes, and the chunks of `group` are what will be read.
    pub fn new(file: File, len: u64, group: &RowGroupMetaData) -> Self {
        let plain = group.columns().iter().filter(|chunk| is_plain(chunk)).map(ColumnChunkMetaData::byte_range);
        let mut plain: Vec<(u64, u64)> = plain.map(|(start, n)| (start, start.saturating_add(n))).collect();
        plain.sort_unstable();
        Self::over(file, len, plain)
    }

    fn over(file: File, len: u64, plain: Vec<(u64, u64)>) -> Self {
        Self { file: Arc::new(Mutex::new(file)), len, plain: plain.into() }
    }

    fn is_plain(&self, at: u64) -> bool {
        let behind = self.plain.partition_point(|(start, _)| *start <= at);
        behind.checked_sub(1).is_some_and(|i| at < self.plain[i].1)
    }

    /// Bytes from `start` on, `len` of them or what there is.
    fn read_at(&self, start: u64, len: u64) -> Result<Bytes> {
        let mut file = lock(&self.file)?;
        let mut out = Vec::with_capacity(usize::try_from(len.min(self.len.saturating_sub(start)))?);
        file.seek(SeekFrom::Start(start))?;
        file.by_ref().take(len).read_to_end(&mut out)?;
        Ok(out.into())
    }
}

/// Whether pages lie in the file as they are.
fn is_plain(chunk: &ColumnChunkMetaData) -> bool {
    matches!(chunk.compression(), Compression::UNCOMPRESSED)
}

fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
    mutex.lock().map_err(|_| ParquetError::General("a reader of this file panicked".to_owned()))
}

impl Length for Shared {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Shared {
    type T = BufReader<Cursor>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(BufReader::new(Cursor { file: self.clone(), at: start, is_new: true }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        exactly(&self.read_at(start, length as u64)?, start, length)
    }
}

/// A place in a [`Shared`] file. What the crate reads there, if anything, is a page header.
#[derive(Debug)]
pub(in super::super) struct Cursor {
    file: Shared,
    at: u64,
    is_new: bool,
}

impl Cursor {
    fn check_header(&self) -> Result<()> {
        let mut most = HEADER;
        loop {
            let bytes = self.file.read_at(self.at, most)?;
            match look_at_page(&bytes, self.file.is_plain(self.at)) {
                Looked::Refused => return Err(refused()),
                Looked::Cut if bytes.len() as u64 == most => most = most.saturating_mul(8),
                Looked::Cut => return Err(cut()),
                Looked::Whole => return Ok(()),
            }
        }
    }
}

impl Read for Cursor {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if std::mem::take(&mut self.is_new) {
            self.check_header().map_err(std::io::Error::other)?;
        }
        let mut file = lock(&self.file.file).map_err(std::io::Error::other)?;
        file.seek(SeekFrom::Start(self.at))?;
        let n = file.read(out)?;
        self.at += n as u64;
        Ok(n)
    }
}

fn refused() -> ParquetError {
    ParquetError::General(
        "found a field of another type than Parquet's, a list of elements without bytes, or a dictionary of more values \
         than bytes in a page header"
            .to_owned(),
    )
}

/// The crate skips numbers of 8 and 16 bytes behind the end as if they were there, as many as a list claims to have.
fn cut() -> ParquetError {
    ParquetError::EOF("the file ends inside a page header".to_owned())
}

fn exactly(bytes: &Bytes, start: u64, length: usize) -> Result<Bytes> {
    if bytes.len() < length {
        let found = bytes.len();
        return Err(ParquetError::EOF(format!("found {found} bytes at {start}, expected {length}")));
    }
    Ok(bytes.slice(..length))
}

/// A stretch of a file, of which a window is in memory. Page headers are a few bytes each and are asked for one by one;
/// without the window each would be a read of its own.
#[derive(Debug)]
pub(super) struct Window {
    file: Shared,
    end: u64,
    size: u64,
    held: Mutex<(u64, Bytes)>,
}

impl Window {
    /// Reads `file` up to `end`, `size` bytes at once.
    pub fn new(file: Shared, end: u64, size: u64) -> Self {
        Self { file, end, size, held: Mutex::new((0, Bytes::new())) }
    }

    /// At least `len` bytes from `start` on, if the stretch has that many; else what there is.
    fn at(&self, start: u64, len: u64) -> Result<Bytes> {
        let mut held = lock(&self.held)?;
        let (first, bytes) = &*held;
        let inside = |at: u64| usize::try_from(at.checked_sub(*first)?).ok().filter(|&at| at <= bytes.len());
        if let (Some(from), Some(_)) = (inside(start), inside(start.saturating_add(len))) {
            return Ok(bytes.slice(from..));
        }
        let size = len.max(self.size).min(self.end.saturating_sub(start));
        *held = (start, self.file.read_at(start, size)?);
        Ok(held.1.clone())
    }
}

impl Length for Window {
    fn len(&self) -> u64 {
        self.end
    }
}

impl ChunkReader for Window {
    type T = bytes::buf::Reader<Bytes>;

    /// What is read from there on is a page header. One that does not end in the window is left to whoever reads the file
    /// without one.
    fn get_read(&self, start: u64) -> Result<Self::T> {
        let bytes = self.at(start, HEADER.min(self.end.saturating_sub(start)))?;
        match look_at_page(&bytes, self.file.is_plain(start)) {
            Looked::Whole => Ok(bytes.reader()),
            Looked::Cut => Err(cut()),
            Looked::Refused => Err(refused()),
        }
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        exactly(&self.at(start, length as u64)?, start, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn every_stretch_is_what_the_file_has() {
        let mut file = tempfile::tempfile().unwrap();
        let mut bytes: Vec<u8> = (0..100_000_u32).map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[1]).collect();
        // An empty page header, for `get_read`.
        for start in [0, 10, 500, 3, 89_000, 40_000] {
            bytes[start] = 0;
        }
        file.write_all(&bytes).unwrap();
        let shared = Shared::over(file, 100_000, Vec::new());
        let window = Window::new(shared.clone(), 90_000, 1000);
        for (start, len) in [(0, 10), (10, 990), (500, 1500), (3, 3), (89_000, 1000), (40_000, 0)] {
            let expected = &bytes[start..start + len];
            assert_eq!(window.get_bytes(start as u64, len).unwrap(), expected, "{start} {len}");
            assert_eq!(shared.get_bytes(start as u64, len).unwrap(), expected, "{start} {len}");
            let mut read = vec![0; len];
            window.get_read(start as u64).unwrap().read_exact(&mut read).unwrap();
            assert_eq!(read, expected);
            shared.get_read(start as u64).unwrap().read_exact(&mut read).unwrap();
            assert_eq!(read, expected);
        }
        assert!(window.get_bytes(89_500, 1000).is_err(), "beyond the stretch");
        assert!(shared.get_bytes(99_999, 2).is_err(), "beyond the file");
    }

    /// {15: [2^31 - 1 doubles]}, and no bytes behind it: the parquet crate would count them all.
    #[test]
    fn a_header_that_the_file_ends_in_is_refused() {
        let header = [0xf9, 0xf7, 0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0];
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&header).unwrap();
        let shared = Shared::over(file, header.len() as u64, Vec::new());
        assert!(Window::new(shared.clone(), 10, 1000).get_read(0).is_err());
        let error = shared.get_read(0).unwrap().read(&mut [0]).unwrap_err();
        assert!(error.to_string().contains("ends inside a page header"), "{error}");
    }

    #[test]
    fn chunks_that_are_not_compressed_are_known_by_their_place() {
        let shared = Shared::over(tempfile::tempfile().unwrap(), 100, vec![(4, 10), (20, 30)]);
        let plain: Vec<u64> = (0..40).filter(|&at| shared.is_plain(at)).collect();
        assert_eq!(plain, (4..10).chain(20..30).collect::<Vec<_>>());
    }
}
