//! Arrow IPC behind [`InputFile`](super::InputFile): the file format and the stream format alike.
//!
//! Both are a run of messages, each with its metadata and a body:
//!
//! ```text
//! file    ARROW1 | schema | dictionary .. | batch | batch | .. | footer: where each one lies | ARROW1
//! stream           schema | dictionary .. | batch | dictionary .. | batch | ..               (no footer)
//! ```
//!
//! A stream is walked once, from message to message without reading the bodies, which yields the same list of
//! places as a file's footer. From there on there is no difference.

mod wanted;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::ipc::convert::try_fb_to_schema;
use arrow::ipc::reader::FileDecoder;
use arrow::ipc::{
    Block, CompressionType, Message, MessageHeader, MetadataVersion, Schema, root_as_footer, root_as_message,
};

use super::parquet::Parsed;
use super::{Batches, DAMAGED, RowGroup, count, damaged};
use crate::error::{Error, Result};

/// Where the messages lie.
#[derive(Debug, Clone)]
pub(super) struct Footer {
    schema: SchemaRef,
    version: MetadataVersion,
    /// Dictionaries in order of appearance.
    dictionaries: Vec<Dictionary>,
    /// Record batches, each with the number of dictionaries that stand before it.
    batches: Vec<(Block, usize)>,
}

/// A dictionary's message.
#[derive(Debug, Clone, Copy)]
struct Dictionary {
    block: Block,
    id: i64,
    /// Whether it adds to what was there, and does not take its place.
    adds: bool,
}

impl Dictionary {
    fn new(block: Block, message: &Message<'_>) -> Result<Self> {
        let batch = message.header_as_dictionary_batch();
        let batch = batch.ok_or_else(|| garbled(&"something else in place of a dictionary"))?;
        Ok(Self { block, id: batch.id(), adds: batch.isDelta() })
    }
}

impl Footer {
    pub(super) fn parse_file(file: &mut File, bytes: u64) -> Result<Parsed> {
        let cut = || {
            Error::usage(format!("the Arrow file is cut off: its {bytes} bytes do not end in `ARROW1`")).hint(
                "a recorder that was killed, or is still running, leaves such files, and so does a copy that broke off",
            )
        };
        let mut tail = [0; 10];
        if bytes < 18 {
            return Err(cut());
        }
        read_at(file, bytes - 10, &mut tail)?;
        if &tail[4..] != b"ARROW1" {
            return Err(cut());
        }
        let len = count(i32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]), "the length of the footer")?;
        let start = (bytes - 10).checked_sub(len as u64).ok_or_else(|| outside(bytes))?;
        let mut data = vec![0; len];
        read_at(file, start, &mut data)?;
        let footer = root_as_footer(&data).map_err(|e| garbled(&e))?;
        let schema = schema(footer.schema())?;
        let mut dictionaries = Vec::new();
        for block in footer.dictionaries().iter().flatten() {
            dictionaries.push(Dictionary::new(*block, &message(&head(file, block, bytes)?)?)?);
        }
        let all = dictionaries.len();
        let batches: Vec<(Block, usize)> = footer.recordBatches().iter().flatten().map(|b| (*b, all)).collect();
        let mut row_groups = Vec::with_capacity(batches.len());
        let mut first_row = 0;
        for (block, _) in &batches {
            let (_, _, body_len) = extent(block, bytes)?;
            let rows = rows_of(&message(&head(file, block, bytes)?)?)?;
            row_groups.push(RowGroup { rows, first_row, bytes: body_len });
            first_row = first_row.saturating_add(rows as u64);
        }
        let footer = Self { schema: Arc::clone(&schema), version: footer.version(), dictionaries, batches };
        Ok((schema, row_groups, None, super::Footer::Ipc(footer)))
    }

    pub(super) fn parse_stream(file: &mut File, bytes: u64) -> Result<Parsed> {
        let mut found: Option<(SchemaRef, MetadataVersion)> = None;
        let (mut dictionaries, mut batches, mut row_groups) = (Vec::new(), Vec::new(), Vec::new());
        let (mut offset, mut first_row, mut note) = (0u64, 0u64, Some("the stream has no end mark".to_owned()));
        while offset + 8 <= bytes {
            let mut prefix = [0; 8];
            read_at(file, offset, &mut prefix)?;
            if prefix[..4] != [0xff; 4] {
                return Err(Error::usage("the file is damaged: expected a message of the Arrow stream").hint(DAMAGED));
            }
            let len = i32::from_le_bytes([prefix[4], prefix[5], prefix[6], prefix[7]]);
            if len == 0 {
                note = None;
                break;
            }
            let metadata_len = count(len, "the length of a message")?;
            let body = offset + 8 + metadata_len as u64;
            if body > bytes {
                return Err(outside(bytes));
            }
            let mut data = vec![0; metadata_len];
            read_at(file, offset + 8, &mut data)?;
            let message = root_as_message(&data).map_err(|e| garbled(&e))?;
            let body_len = message.bodyLength();
            let at = i64::try_from(offset).map_err(|_| outside(bytes))?;
            let block = Block::new(at, len.saturating_add(8), body_len);
            extent(&block, bytes)?;
            match message.header_type() {
                MessageHeader::Schema if found.is_none() => {
                    found = Some((schema(message.header_as_schema())?, message.version()));
                }
                MessageHeader::DictionaryBatch => dictionaries.push(Dictionary::new(block, &message)?),
                MessageHeader::RecordBatch => {
                    let rows = rows_of(&message)?;
                    batches.push((block, dictionaries.len()));
                    row_groups.push(RowGroup { rows, first_row, bytes: body_len.unsigned_abs() });
                    first_row = first_row.saturating_add(rows as u64);
                }
                other => {
                    return Err(Error::usage(format!("found {other:?} in the Arrow stream, expected record batches")));
                }
            }
            offset = body + body_len.unsigned_abs();
        }
        let (schema, version) =
            found.ok_or_else(|| Error::usage("the Arrow stream ends before its schema").hint(DAMAGED))?;
        let footer = Self { schema: Arc::clone(&schema), version, dictionaries, batches };
        Ok((schema, row_groups, note, super::Footer::Ipc(footer)))
    }

    pub(super) fn read(
        &self,
        mut file: File,
        row_group: usize,
        columns: &[usize],
        batch_rows: usize,
    ) -> Result<Batches> {
        let (block, _) = self.batches[row_group];
        let mut decoder = self.decoder(row_group, columns, |block| read_block(&mut file, block))?;
        let (block, data) = wanted::read(&mut file, &block, &self.schema, columns)?;
        let batch = decoded(&mut decoder, &block, &data)?;
        Ok(Box::new(Slices::new(batch, batch_rows)))
    }

    /// A record batch out of `map`, which holds the whole file: uncompressed columns stay where they are.
    pub(super) fn read_mapped(&self, map: &Buffer, row_group: usize, columns: Vec<usize>) -> Result<RecordBatch> {
        let block_of = |block: &Block| {
            let (offset, metadata, body) = extent(block, map.len() as u64)?;
            let (offset, body) = (count(offset, "a place in the file")?, count(body, "the length of a message")?);
            let message = map.slice_with_length(offset, metadata + body);
            check_sizes(&message, metadata)?;
            Ok(message)
        };
        let all: Vec<usize> = (0..self.schema.fields().len()).collect();
        let (block, _) = self.batches[row_group];
        let mut decoder = self.decoder(row_group, &all, block_of)?.with_projection(columns);
        decoded(&mut decoder, &block, &block_of(&block)?)
    }

    /// What decodes these columns of a record batch, with the dictionaries that they have there.
    fn decoder(
        &self,
        row_group: usize,
        columns: &[usize],
        mut block_of: impl FnMut(&Block) -> Result<Buffer>,
    ) -> Result<FileDecoder> {
        let schema = Arc::new(self.schema.project(columns).map_err(|e| damaged(&e))?);
        let dictionaries = dictionaries_of(&self.dictionaries[..self.batches[row_group].1], &schema);
        let mut decoder = FileDecoder::new(schema, self.version);
        for Dictionary { block, .. } in dictionaries {
            let data = block_of(&block)?;
            decoder.read_dictionary(&block, &data).map_err(|e| damaged(&e))?;
        }
        Ok(decoder)
    }
}

fn decoded(decoder: &mut FileDecoder, block: &Block, data: &Buffer) -> Result<RecordBatch> {
    decoder
        .read_record_batch(block, data)
        .map_err(|e| damaged(&e))?
        .ok_or_else(|| Error::usage("the file is damaged: a record batch without content").hint(DAMAGED))
}

/// Those of the dictionaries that columns of `schema` use, without what others have taken the place of: a stream may write
/// its dictionaries anew with every record batch.
fn dictionaries_of(all: &[Dictionary], schema: &arrow::datatypes::Schema) -> Vec<Dictionary> {
    #[expect(deprecated, reason = "the ids are what tells dictionaries of a file apart, and nothing else gives them")]
    let fields = |id: i64| schema.fields_with_dict_id(id);
    let used: BTreeMap<i64, bool> = all.iter().map(|d| (d.id, !fields(d.id).is_empty())).collect();
    let own: Vec<Dictionary> = all.iter().filter(|d| used[&d.id]).copied().collect();
    // What is inside of another dictionary is that which was there when that one was written.
    let nested = |id: i64| {
        fields(id).iter().any(|field| match field.data_type() {
            DataType::Dictionary(_, value) => value.is_nested(),
            _ => false,
        })
    };
    if used.iter().any(|(id, used)| *used && nested(*id)) {
        return own;
    }
    let first_of: HashMap<i64, usize> =
        own.iter().enumerate().filter(|(_, d)| !d.adds).map(|(i, d)| (d.id, i)).collect();
    let is_last = |(i, d): &(usize, Dictionary)| first_of.get(&d.id).is_none_or(|first| first <= i);
    own.into_iter().enumerate().filter(is_last).map(|(_, d)| d).collect()
}

/// A record batch in pieces, without a copy.
pub(super) struct Slices {
    batch: RecordBatch,
    at: usize,
    batch_rows: usize,
}

impl Slices {
    /// Of `batch_rows` rows each; the last piece has the rest.
    pub(super) const fn new(batch: RecordBatch, batch_rows: usize) -> Self {
        Self { batch, at: 0, batch_rows }
    }
}

impl Iterator for Slices {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let len = self.batch_rows.min(self.batch.num_rows() - self.at);
        let slice = (len > 0).then(|| Ok(self.batch.slice(self.at, len)));
        self.at += len;
        slice
    }
}

fn schema(ipc: Option<Schema<'_>>) -> Result<SchemaRef> {
    let ipc = ipc.ok_or_else(|| Error::usage("the Arrow file has no schema").hint(DAMAGED))?;
    if !ipc.endianness().equals_to_target_endianness() {
        return Err(Error::usage("the Arrow file has the byte order of another machine, which is not supported"));
    }
    try_fb_to_schema(ipc).map(Arc::new).map_err(|e| damaged(&e))
}

/// Offset, length of the metadata and length of the body, held to lie inside the file.
fn extent(block: &Block, bytes: u64) -> Result<(u64, usize, u64)> {
    let parts = (|| {
        let offset = u64::try_from(block.offset()).ok()?;
        let metadata = usize::try_from(block.metaDataLength()).ok()?;
        let body = u64::try_from(block.bodyLength()).ok()?;
        let end = offset.checked_add(metadata as u64)?.checked_add(body)?;
        (end <= bytes).then_some((offset, metadata, body))
    })();
    parts.ok_or_else(|| outside(bytes))
}

/// A block's message, without its body.
fn head(file: &mut File, block: &Block, bytes: u64) -> Result<Vec<u8>> {
    let (offset, metadata, _) = extent(block, bytes)?;
    let mut head = vec![0; metadata];
    read_at(file, offset, &mut head)?;
    Ok(head)
}

fn read_block(file: &mut File, block: &Block) -> Result<Buffer> {
    let bytes = file.metadata().map_err(|e| damaged(&e))?.len();
    let (offset, metadata, body) = extent(block, bytes)?;
    let len = count(body, "the length of a message")?.saturating_add(metadata);
    let mut buffer = MutableBuffer::from_len_zeroed(len);
    read_at(file, offset, &mut buffer)?;
    check_sizes(&buffer, metadata)?;
    Ok(buffer.into())
}

/// The message in a block. It stands behind its length, which newer writers put behind a marker.
fn message(block: &[u8]) -> Result<Message<'_>> {
    let prefix = if block.starts_with(&[0xff; 4]) { 8 } else { 4 };
    let message = block.get(prefix..).ok_or_else(|| garbled(&"a message without content"))?;
    root_as_message(message).map_err(|e| garbled(&e))
}

/// The rows of a record batch, if its first column has as many.
fn rows_of(message: &Message<'_>) -> Result<usize> {
    let Some(batch) = message.header_as_record_batch() else { return Ok(0) };
    let first = batch.nodes().filter(|n| !n.is_empty()).map(|n| n.get(0).length());
    if first.is_some_and(|n| n != batch.length()) {
        return Err(garbled(&"a record batch and its first column have different numbers of rows"));
    }
    count(batch.length(), "the number of rows of a record batch")
}

/// Refuses compressed buffers that claim a size which cannot be: they would end the process, not the read, because
/// the decoder allocates what they claim.
fn check_sizes(block: &[u8], metadata: usize) -> Result<()> {
    let message = message(block)?;
    let batch = match message.header_type() {
        MessageHeader::DictionaryBatch => message.header_as_dictionary_batch().and_then(|d| d.data()),
        _ => message.header_as_record_batch(),
    };
    let Some(batch) = batch else { return Ok(()) };
    let Some(codec) = batch.compression().map(|c| c.codec()) else { return Ok(()) };
    // An LZ4 byte stands for at most 255, a zstd block of 4 bytes for at most 128 KiB.
    let ratio = if codec == CompressionType::LZ4_FRAME { 255 } else { 32 << 10 };
    for buffer in batch.buffers().iter().flatten() {
        let at = usize::try_from(buffer.offset()).ok().and_then(|o| o.checked_add(metadata));
        let head = at.and_then(|at| block.get(at..)?.first_chunk::<8>());
        // Too short to hold a size: empty, or the decoder will say so.
        let Some(head) = head.filter(|_| buffer.length() >= 8) else { continue };
        // -1 says that this buffer is not compressed.
        let claimed = u64::try_from(i64::from_le_bytes(*head)).unwrap_or(0);
        let most = u64::try_from(buffer.length()).unwrap_or(0).saturating_mul(ratio);
        let fits = usize::try_from(claimed).is_ok_and(|n| Vec::<u8>::new().try_reserve_exact(n).is_ok());
        if claimed > most || !fits {
            let packed = buffer.length();
            return Err(garbled(&format!("{packed} compressed bytes claim to hold {claimed}")));
        }
    }
    Ok(())
}

fn read_at(file: &mut File, offset: u64, into: &mut [u8]) -> Result<()> {
    file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(into)).map_err(|e| damaged(&e))
}

fn outside(bytes: u64) -> Error {
    Error::usage(format!("the file is cut off: a message lies outside its {bytes} bytes"))
        .hint("a recorder that was killed, or is still running, leaves such files, and so does a copy that broke off")
}

fn garbled(e: &dyn std::fmt::Display) -> Error {
    Error::usage(format!("the file is damaged: {e}")).hint(DAMAGED)
}

#[cfg(test)]
mod tests;
