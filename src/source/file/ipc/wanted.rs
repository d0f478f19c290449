//! Some columns of a record batch, read without the others.
//!
//! A message names its buffers in the order of the columns, whatever they hold. So those of a column are found by walking
//! along the schema:
//!
//! ```text
//! message  | nodes: eps_id, t, obs, floats | buffers: 3 of eps_id, 2 of t, 1 of obs, 2 of floats |
//! body     |= eps_id ==================|= t ==|= obs ====================|
//! wanted: t and obs
//! message  | nodes: t, obs, floats         | buffers: 2 of t, 1 of obs, 2 of floats              |
//! body     |= t ==|= obs ====================|
//! ```

use std::fs::File;

use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::{DataType, Field, Schema, UnionMode};
use arrow::ipc::{
    Block, BodyCompressionBuilder, Buffer as Place, FieldNode, MessageBuilder, MessageHeader, MetadataVersion,
    RecordBatch, RecordBatchBuilder,
};
use flatbuffers::FlatBufferBuilder;

use super::{check_sizes, count, extent, garbled, head, message, read_at};
use crate::error::Result;

/// Where buffers begin, as Arrow recommends.
const ALIGNMENT: usize = 64;
/// What stands in front of a message: a marker, and its length.
const PREFIX: usize = 8;

/// A message of the columns `columns` (rising) of a record batch, and its body; and where they end, as for a file that begins
/// with them.
pub(super) fn read(file: &mut File, block: &Block, schema: &Schema, columns: &[usize]) -> Result<(Block, Buffer)> {
    let bytes = file.metadata().map_err(|e| super::damaged(&e))?.len();
    let (offset, metadata, body) = extent(block, bytes)?;
    let head = head(file, block, bytes)?;
    let message = message(&head)?;
    let batch = message.header_as_record_batch().ok_or_else(|| garbled(&"a record batch without content"))?;
    let mut walk = Walk::new(&batch, message.version());
    let upto = columns.last().map_or(0, |last| last + 1);
    for (i, field) in schema.fields().iter().enumerate().take(upto) {
        walk.keep = columns.binary_search(&i).is_ok();
        walk.field(field)?;
    }

    // Where each buffer is, and will be.
    let mut places = Vec::with_capacity(walk.buffers.len());
    let (mut end, mut all) = (0_usize, 0_u64);
    for buffer in &walk.buffers {
        let inside = u64::try_from(buffer.offset()).ok().zip(u64::try_from(buffer.length()).ok());
        let (at, len) = inside
            .filter(|(at, len)| at.checked_add(*len).is_some_and(|end| end <= body))
            .ok_or_else(|| garbled(&"a buffer lies outside its record batch"))?;
        all = all.saturating_add(len);
        let len = count(len, "the length of a buffer")?;
        places.push((at, end, len));
        end = (end + len).next_multiple_of(ALIGNMENT);
    }
    // What is read in pieces takes no more memory than the whole.
    if all > body {
        return Err(garbled(&"buffers of a record batch overlap"));
    }
    let head = walk.message(&batch, message.version(), &places, end)?;
    let mut buffer = MutableBuffer::from_len_zeroed(head.len() + end);
    buffer[..head.len()].copy_from_slice(&head);
    for (at, to, len) in places {
        read_at(file, offset + metadata as u64 + at, &mut buffer[head.len() + to..][..len])?;
    }
    check_sizes(&buffer, head.len())?;
    let [head, end] = [head.len(), end].map(i64::try_from);
    let beyond = |_| garbled(&"a record batch larger than memory");
    let metadata = i32::try_from(head.map_err(beyond)?).map_err(beyond)?;
    Ok((Block::new(0, metadata, end.map_err(beyond)?), buffer.into()))
}

/// Walks along the columns of a record batch.
struct Walk<'a> {
    of_nodes: Box<dyn Iterator<Item = &'a FieldNode> + 'a>,
    of_buffers: Box<dyn Iterator<Item = &'a Place> + 'a>,
    of_variadics: Box<dyn Iterator<Item = i64> + 'a>,
    version: MetadataVersion,
    /// Whether what comes next is wanted.
    keep: bool,
    nodes: Vec<FieldNode>,
    buffers: Vec<Place>,
    variadics: Vec<i64>,
}

impl<'a> Walk<'a> {
    fn new(batch: &RecordBatch<'a>, version: MetadataVersion) -> Self {
        Self {
            of_nodes: Box::new(batch.nodes().into_iter().flatten()),
            of_buffers: Box::new(batch.buffers().into_iter().flatten()),
            of_variadics: Box::new(batch.variadicBufferCounts().into_iter().flatten()),
            version,
            keep: false,
            nodes: Vec::new(),
            buffers: Vec::new(),
            variadics: Vec::new(),
        }
    }

    /// Takes what belongs to a field. Arrow's columnar format says how many buffers each type has.
    fn field(&mut self, field: &Field) -> Result<()> {
        use DataType as D;
        let node = self.of_nodes.next().ok_or_else(|| garbled(&"a record batch has fewer columns than its schema"))?;
        if self.keep {
            self.nodes.push(*node);
        }
        match field.data_type() {
            D::Null => Ok(()),
            D::Utf8 | D::LargeUtf8 | D::Binary | D::LargeBinary => self.buffers(3),
            D::Utf8View | D::BinaryView => {
                let n =
                    self.of_variadics.next().ok_or_else(|| garbled(&"views without the number of their buffers"))?;
                if self.keep {
                    self.variadics.push(n);
                }
                let n = count(n, "the number of buffers of a view")?;
                self.buffers(n.saturating_add(2))
            }
            D::List(child) | D::LargeList(child) | D::Map(child, _) => {
                self.buffers(2)?;
                self.field(child)
            }
            D::ListView(child) | D::LargeListView(child) => {
                self.buffers(3)?;
                self.field(child)
            }
            D::FixedSizeList(child, _) => {
                self.buffers(1)?;
                self.field(child)
            }
            D::Struct(fields) => {
                self.buffers(1)?;
                fields.iter().try_for_each(|field| self.field(field))
            }
            D::RunEndEncoded(ends, values) => {
                self.field(ends)?;
                self.field(values)
            }
            D::Union(fields, mode) => {
                self.buffers(
                    usize::from(self.version < MetadataVersion::V5) + 1 + usize::from(*mode == UnionMode::Dense),
                )?;
                fields.iter().try_for_each(|(_, field)| self.field(field))
            }
            // Of a dictionary's column the message has its keys.
            _ => self.buffers(2),
        }
    }

    fn buffers(&mut self, n: usize) -> Result<()> {
        for _ in 0..n {
            let buffer =
                self.of_buffers.next().ok_or_else(|| garbled(&"a record batch has fewer buffers than its columns"))?;
            if self.keep {
                self.buffers.push(*buffer);
            }
        }
        Ok(())
    }

    /// The message of what was kept, with its prefix.
    fn message(
        &self,
        batch: &RecordBatch<'_>,
        version: MetadataVersion,
        places: &[(u64, usize, usize)],
        body: usize,
    ) -> Result<Vec<u8>> {
        let signed = |n: usize| i64::try_from(n).map_err(|_| garbled(&"a record batch larger than memory"));
        let place = |&(_, at, len): &(u64, usize, usize)| Ok(Place::new(signed(at)?, signed(len)?));
        let places = places.iter().map(place).collect::<Result<Vec<_>>>()?;
        let mut builder = FlatBufferBuilder::new();
        let (nodes, buffers) = (builder.create_vector(&self.nodes), builder.create_vector(&places));
        let variadics = builder.create_vector(&self.variadics);
        let compression = batch.compression().map(|compression| {
            let mut own = BodyCompressionBuilder::new(&mut builder);
            own.add_codec(compression.codec());
            own.add_method(compression.method());
            own.finish()
        });
        let mut own = RecordBatchBuilder::new(&mut builder);
        own.add_length(batch.length());
        own.add_nodes(nodes);
        own.add_buffers(buffers);
        own.add_variadicBufferCounts(variadics);
        if let Some(compression) = compression {
            own.add_compression(compression);
        }
        let header = own.finish().as_union_value();
        let mut own = MessageBuilder::new(&mut builder);
        own.add_version(version);
        own.add_header_type(MessageHeader::RecordBatch);
        own.add_bodyLength(signed(body)?);
        own.add_header(header);
        let root = own.finish();
        builder.finish(root, None);
        let own = builder.finished_data();
        let len = (PREFIX + own.len()).next_multiple_of(ALIGNMENT);
        let mut out = Vec::with_capacity(len);
        out.extend_from_slice(&[0xff; 4]);
        let beyond = |_| garbled(&"a record batch with too many columns");
        out.extend_from_slice(&i32::try_from(len - PREFIX).map_err(beyond)?.to_le_bytes());
        out.extend_from_slice(own);
        out.resize(len, 0);
        Ok(out)
    }
}
