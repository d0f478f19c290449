//! Parquet column chunks of tensors, laid down page by page.
//!
//! A writer for arbitrary lists computes and encodes two levels per *element*; rows of one shape need none of that.
//! The levels of a page depend on its number of rows alone, so their bytes are made once per column and copied into
//! each page, and the values follow as they lie in memory:
//!
//! ```text
//! page of 3 rows of float32[4], before compression (data page v1)
//!
//!   ┌ u32 length ┬ repetition levels ┬ u32 length ┬ definition levels ┬ values, PLAIN ─────────────┐
//!   │     3      │ 0111 0111 0111    │     2      │ 12 x 2            │ 48 bytes, as in the tensor │
//!   └────────────┴───────────────────┴────────────┴───────────────────┴────────────────────────────┘
//!     repetition: 0 starts a row, 1 continues it     definition: 2 = there is a value (0 = an empty list, 1 = a null)
//! ```
//!
//! Scalars have no levels. Rows without elements (a dimension of 0) have levels and no values. No page cuts a row.
//!
//! | dtype | stored as |
//! |---|---|
//! | `bool` | PLAIN bits |
//! | `int8`, `uint8` | Parquet knows no bytes, only `INT32`: a dictionary of all 256 values, and the bytes themselves as its 8-bit indices. A quarter of the memory traffic of PLAIN |
//! | `int16`, `uint16` | PLAIN, widened to `INT32` |
//! | `float16` | PLAIN, `FIXED_LEN_BYTE_ARRAY(2)` |
//! | others | PLAIN, as in memory |
//!
//! Stored as bytes (`output.tensors = "binary"`), a row of any dtype is one value of `FIXED_LEN_BYTE_ARRAY`, without
//! levels, PLAIN, as in memory.

use std::io::Read;

use bytes::Bytes;
use parquet::basic::{Compression as Codec, Encoding, Type as Physical};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;
use rayon::prelude::*;

use crate::job::{Compression, TensorStorage};
use crate::tensor::{DType, Tensor, TensorType};

// PLAIN is little endian, and so is the content digest; values are copied as they lie in memory.
const _: () = assert!(cfg!(target_endian = "little"), "shards are written on little-endian machines only");

/// Bytes of values per page: still in the cache between copy and compression, and enough for zstd to find a frame again
/// in the next row. Stacked 4 x 84 x 84 frames, against pages of 64 KiB: half the size, compressed 1.7 times as fast;
/// floats do not care between 32 KiB and 1 MiB.
const PAGE_BYTES: usize = 256 << 10;

/// Pages that one task compresses with one context. Fixed, so that no byte can depend on how work was split.
const PAGES_PER_TASK: usize = 4;

/// The most bytes of one row in a page. Parquet counts a page's bytes in 31 bits, before and after compression, which makes
/// noise a little larger; and there are definition levels and headers.
pub(super) const LARGEST_ROW: usize = 1920 << 20;

/// Bytes of a value in a page.
const fn stored_size(dtype: DType) -> usize {
    match dtype {
        DType::Int16 | DType::UInt16 => 4,
        other => other.size(),
    }
}

/// Bytes of one row in a page; in a list each element has a repetition level, which is a bit. `None` is more than can be
/// counted.
pub(super) fn row_page_bytes(ty: &TensorType, storage: TensorStorage) -> Option<usize> {
    let elements = ty.shape.iter().try_fold(1_usize, |n, &d| n.checked_mul(d))?;
    if storage == TensorStorage::Binary {
        return elements.checked_mul(ty.dtype.size());
    }
    elements.checked_mul(stored_size(ty.dtype))?.checked_add(elements.div_ceil(8))
}

/// An encoded column chunk, ready to be appended to a file.
#[derive(Debug)]
pub(super) struct Chunk {
    /// Page headers and pages, in order.
    pub bytes: Segments,
    /// What the footer says of them.
    pub close: ColumnCloseResult,
}

/// Encodes all rows of `tensor` as the column chunk of `descr`.
pub(super) fn encode(tensor: &Tensor, descr: &ColumnDescPtr, compression: Compression) -> Result<Chunk> {
    let layout = Layout::of(tensor, descr);
    let pages: Vec<(usize, usize)> = (0..tensor.rows())
        .step_by(layout.rows_per_page)
        .map(|start| (start, layout.rows_per_page.min(tensor.rows() - start)))
        .collect();
    let full = layout.levels(layout.rows_per_page.min(tensor.rows()))?;
    let last = layout.levels(pages.last().map_or(0, |p| p.1))?;

    let mut written = Vec::with_capacity(pages.len() / PAGES_PER_TASK + 2);
    if layout.dictionary {
        written.push(write_pages(compression, std::iter::once(Ok(byte_dictionary(tensor.ty().dtype))))?);
    }
    let dictionary_bytes = written.first().map(|w| w.bytes.len());
    let data: Vec<Written> = pages
        .par_chunks(PAGES_PER_TASK)
        .map(|pages| {
            let raw = pages.iter().map(|&(start, rows)| {
                let levels = if rows == layout.rows_per_page { &full } else { &last };
                layout.page(tensor, start, rows, levels)
            });
            write_pages(compression, raw)
        })
        .collect::<Result<_>>()?;
    written.extend(data);

    let uncompressed = written.iter().map(|w| w.uncompressed).sum::<usize>();
    let compressed = written.iter().map(|w| w.bytes.len()).sum::<usize>();
    let mut encodings = vec![Encoding::PLAIN, Encoding::RLE];
    if layout.dictionary {
        encodings.push(Encoding::RLE_DICTIONARY);
    }
    let metadata = ColumnChunkMetaData::builder(descr.clone())
        .set_encodings(encodings)
        .set_compression(codec(compression)?)
        .set_num_values(signed(tensor.rows() * layout.entries_per_row())?)
        .set_total_compressed_size(signed(compressed)?)
        .set_total_uncompressed_size(signed(uncompressed)?)
        .set_dictionary_page_offset(dictionary_bytes.map(|_| 0))
        .set_data_page_offset(signed(dictionary_bytes.unwrap_or(0))?)
        .build()?;
    Ok(Chunk {
        bytes: Segments(written.into_iter().map(|w| w.bytes).collect()),
        close: ColumnCloseResult {
            bytes_written: compressed as u64,
            rows_written: tensor.rows() as u64,
            metadata,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        },
    })
}

/// The parquet crate's name of a compression.
pub(super) fn codec(compression: Compression) -> Result<Codec> {
    Ok(match compression {
        Compression::None => Codec::UNCOMPRESSED,
        Compression::Zstd(level) => Codec::ZSTD(parquet::basic::ZstdLevel::try_new(level)?),
        Compression::Lz4 => Codec::LZ4_RAW,
        Compression::Snappy => Codec::SNAPPY,
    })
}

fn signed(n: usize) -> Result<i64> {
    i64::try_from(n).map_err(|_| ParquetError::General(format!("{n} does not fit a footer")))
}

fn unsigned(n: usize) -> Result<u32> {
    u32::try_from(n).map_err(|_| ParquetError::General(format!("a page of {n} values")))
}

/// How the rows of one column lie in pages.
struct Layout {
    is_list: bool,
    /// The definition level of a value.
    value_level: u8,
    row_elements: usize,
    rows_per_page: usize,
    dictionary: bool,
    /// A row is one value: its bytes as they lie in memory.
    binary: bool,
}

impl Layout {
    fn of(tensor: &Tensor, descr: &ColumnDescPtr) -> Self {
        let ty = tensor.ty();
        let binary = !ty.shape.is_empty()
            && descr.physical_type() == Physical::FIXED_LEN_BYTE_ARRAY
            && descr.max_rep_level() == 0;
        if binary {
            let rows_per_page = (PAGE_BYTES / ty.row_bytes().max(1)).max(1);
            let plain =
                Self { is_list: false, value_level: 0, row_elements: 1, rows_per_page, dictionary: false, binary };
            return plain;
        }
        let stored = stored_size(ty.dtype);
        let row_elements = ty.row_elements();
        // No row limit but the bytes', save for rows that have (nearly) none.
        let rows_per_page = (PAGE_BYTES / (row_elements * stored).max(1)).clamp(1, PAGE_BYTES);
        let dictionary = matches!(ty.dtype, DType::Int8 | DType::UInt8) && row_elements > 0;
        let value_level = descr.max_def_level().unsigned_abs().to_le_bytes()[0];
        Self { is_list: !ty.shape.is_empty(), value_level, row_elements, rows_per_page, dictionary, binary }
    }

    /// Values as Parquet counts them: an empty list counts as one.
    fn entries_per_row(&self) -> usize {
        self.row_elements.max(1)
    }

    /// The level bytes of a page of `rows` rows.
    fn levels(&self, rows: usize) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        if self.is_list {
            let entries = rows * self.entries_per_row();
            length_prefixed(&mut out, &repetition_levels(rows, self.entries_per_row()))?;
            length_prefixed(&mut out, &run(entries, if self.row_elements > 0 { self.value_level } else { 0 }))?;
        }
        Ok(out)
    }

    /// A data page, not yet compressed.
    fn page(&self, tensor: &Tensor, start: usize, rows: usize, levels: &[u8]) -> Result<Page> {
        let row_bytes = tensor.ty().row_bytes();
        let values = &tensor.bytes()[start * row_bytes..(start + rows) * row_bytes];
        let mut buf = Vec::with_capacity(levels.len() + values.len() * 2 + 16);
        buf.extend_from_slice(levels);
        match tensor.ty().dtype {
            _ if self.binary => buf.extend_from_slice(values),
            DType::Bool => {
                let pack = |values: &[u8]| values.iter().rev().fold(0, |bits, &b| bits << 1 | u8::from(b != 0));
                buf.extend(values.chunks(8).map(pack));
            }
            DType::Int8 | DType::UInt8 if self.dictionary => {
                // bit width 8, then one bit-packed run: 8 values are 8 bytes, the last group filled up
                let groups = values.len().div_ceil(8);
                buf.push(8);
                varint(&mut buf, groups << 1 | 1);
                buf.extend_from_slice(values);
                buf.resize(buf.len() + groups * 8 - values.len(), 0);
            }
            DType::Int16 => {
                let widened =
                    values.chunks_exact(2).flat_map(|b| i32::from(i16::from_le_bytes([b[0], b[1]])).to_le_bytes());
                buf.extend(widened);
            }
            DType::UInt16 => buf.extend(values.chunks_exact(2).flat_map(|b| [b[0], b[1], 0, 0])),
            _ => buf.extend_from_slice(values),
        }
        Ok(Page::DataPage {
            buf: buf.into(),
            num_values: unsigned(rows * self.entries_per_row())?,
            encoding: if self.dictionary { Encoding::RLE_DICTIONARY } else { Encoding::PLAIN },
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        })
    }
}

/// All values of an 8-bit type as `INT32`, each at the index that is its byte.
fn byte_dictionary(dtype: DType) -> Page {
    let value = |byte: u8| if dtype == DType::Int8 { i32::from(byte.cast_signed()) } else { i32::from(byte) };
    Page::DictionaryPage {
        buf: (0..=u8::MAX).flat_map(|b| value(b).to_le_bytes()).collect::<Vec<u8>>().into(),
        num_values: 256,
        encoding: Encoding::PLAIN,
        is_sorted: dtype == DType::UInt8,
    }
}

/// The levels 0 1 1 .. 1 of `rows` lists of `len` entries each, in the RLE / bit-packing hybrid of width 1.
fn repetition_levels(rows: usize, len: usize) -> Vec<u8> {
    if len == 1 {
        return run(rows, 0);
    }
    let mut out = Vec::new();
    if len > 32 {
        // A group of eight, bit-packed (0 1 1 1 1 1 1 1), and a run of the other ones: a few bytes a row.
        let ones = run(len - 8, 1);
        for _ in 0..rows {
            out.extend_from_slice(&[1 << 1 | 1, 0xfe]);
            out.extend_from_slice(&ones);
        }
        return out;
    }
    // One bit each, in one run.
    let entries = rows * len;
    let groups = entries.div_ceil(8);
    varint(&mut out, groups << 1 | 1);
    let first = out.len();
    out.resize(first + groups, 0xff);
    for start in (0..entries).step_by(len) {
        out[first + start / 8] &= !(1 << (start % 8));
    }
    out
}

/// `n` times the same level.
fn run(n: usize, level: u8) -> Vec<u8> {
    let mut out = Vec::new();
    varint(&mut out, n << 1);
    out.push(level);
    out
}

/// Unsigned LEB128.
fn varint(out: &mut Vec<u8>, mut n: usize) {
    while n > 0x7f {
        out.push(0x80 | n.to_le_bytes()[0]);
        n >>= 7;
    }
    out.push(n.to_le_bytes()[0]);
}

fn length_prefixed(out: &mut Vec<u8>, levels: &[u8]) -> Result<()> {
    out.extend_from_slice(&unsigned(levels.len())?.to_le_bytes());
    out.extend_from_slice(levels);
    Ok(())
}

/// Pages with their headers, compressed.
struct Written {
    bytes: Bytes,
    uncompressed: usize,
}

fn write_pages(compression: Compression, pages: impl Iterator<Item = Result<Page>>) -> Result<Written> {
    let mut compressor = Compressor::new(compression)?;
    let mut sink = TrackedWrite::new(Vec::new());
    let mut writer = SerializedPageWriter::new(&mut sink);
    let mut uncompressed = 0;
    for page in pages {
        let mut page = page?;
        let raw_size = page.buffer().len();
        let packed = compressor.compress(page.buffer())?;
        if let (Some(packed), Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. }) = (packed, &mut page) {
            *buf = packed.into();
        }
        uncompressed += writer.write_page(CompressedPage::new(page, raw_size))?.uncompressed_size;
    }
    writer.close()?;
    Ok(Written { bytes: sink.into_inner()?.into(), uncompressed })
}

/// Compresses whole pages. One context serves many pages.
enum Compressor {
    None,
    Zstd(zstd::bulk::Compressor<'static>),
    Lz4,
    Snappy(Box<snap::raw::Encoder>),
}

impl Compressor {
    fn new(compression: Compression) -> Result<Self> {
        Ok(match compression {
            Compression::None => Self::None,
            Compression::Zstd(level) => Self::Zstd(zstd::bulk::Compressor::new(level)?),
            Compression::Lz4 => Self::Lz4,
            Compression::Snappy => Self::Snappy(Box::new(snap::raw::Encoder::new())),
        })
    }

    /// The compressed page, or nothing if pages stay as they are.
    fn compress(&mut self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(match self {
            Self::None => None,
            Self::Zstd(context) => Some(context.compress(raw)?),
            Self::Lz4 => Some(lz4_flex::block::compress(raw)),
            Self::Snappy(encoder) => Some(encoder.compress_vec(raw).map_err(|e| ParquetError::External(e.into()))?),
        })
    }
}

/// Bytes in several pieces, read as one.
#[derive(Debug, Clone, Default)]
pub(super) struct Segments(Vec<Bytes>);

impl Length for Segments {
    fn len(&self) -> u64 {
        self.0.iter().map(|b| b.len() as u64).sum()
    }
}

impl ChunkReader for Segments {
    type T = SegmentReader;

    fn get_read(&self, start: u64) -> Result<SegmentReader> {
        let mut reader = SegmentReader(self.0.clone().into_iter().collect());
        let mut skip = usize::try_from(start).map_err(|e| ParquetError::External(e.into()))?;
        while let Some(first) = reader.0.front_mut() {
            if skip < first.len() {
                bytes::Buf::advance(first, skip);
                break;
            }
            skip -= first.len();
            reader.0.pop_front();
        }
        Ok(reader)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let mut out = Vec::with_capacity(length);
        self.get_read(start)?.take(length as u64).read_to_end(&mut out)?;
        Ok(out.into())
    }
}

/// Reads the pieces one after the other.
#[derive(Debug)]
pub(super) struct SegmentReader(std::collections::VecDeque<Bytes>);

impl Read for SegmentReader {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        while let Some(first) = self.0.front_mut() {
            let n = first.len().min(out.len());
            if n > 0 || out.is_empty() {
                out[..n].copy_from_slice(&first[..n]);
                bytes::Buf::advance(first, n);
                return Ok(n);
            }
            self.0.pop_front();
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The levels of a hybrid run of width 1, decoded by the letter of the format.
    fn decode(mut bytes: &[u8], n: usize) -> Vec<u8> {
        let mut out = Vec::new();
        while out.len() < n {
            let (mut header, mut shift) = (0usize, 0);
            loop {
                let b = bytes[0];
                bytes = &bytes[1..];
                header |= usize::from(b & 0x7f) << shift;
                shift += 7;
                if b & 0x80 == 0 {
                    break;
                }
            }
            if header & 1 == 1 {
                for _ in 0..header >> 1 {
                    out.extend((0..8).map(|i| bytes[0] >> i & 1));
                    bytes = &bytes[1..];
                }
            } else {
                out.resize(out.len() + (header >> 1), bytes[0]);
                bytes = &bytes[1..];
            }
        }
        assert!(bytes.is_empty(), "bytes left over");
        assert!(out.len() < n + 8);
        out.truncate(n);
        out
    }

    #[test]
    fn repetition_levels_start_each_row_with_zero() {
        for len in [1, 2, 3, 7, 8, 9, 20, 31, 32, 33, 40, 41, 200, 28_224] {
            for rows in [1, 2, 3, 8, 17] {
                let expected: Vec<u8> = (0..rows * len).map(|i| u8::from(i % len != 0)).collect();
                assert_eq!(decode(&repetition_levels(rows, len), rows * len), expected, "{rows} rows of {len}");
            }
        }
    }

    #[test]
    fn segments_read_as_one() {
        let s = Segments(vec![Bytes::from_static(b"ab"), Bytes::new(), Bytes::from_static(b"cde")]);
        assert_eq!(s.len(), 5);
        assert_eq!(s.get_bytes(0, 5).unwrap(), "abcde");
        assert_eq!(s.get_bytes(1, 3).unwrap(), "bcd");
        assert_eq!(s.get_bytes(2, 9).unwrap(), "cde");
        assert_eq!(s.get_bytes(7, 1).unwrap(), "");
    }
}
