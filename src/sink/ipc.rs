//! Shards as Arrow IPC files: one record batch per row group, buffers aligned to 64 bytes for memory maps.
//!
//! arrow's `FileWriter` encodes while it writes. Here batches are encoded anywhere and appended in order, so the frame
//! of the file (magic, schema, blocks, footer) is kept by hand; it is the same, byte for byte.

use std::io::Write;

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::convert::IpcSchemaEncoder;
use arrow::ipc::writer::{
    DictionaryTracker, EncodedData, IpcDataGenerator, IpcWriteContext, IpcWriteOptions, write_message,
};
use arrow::ipc::{Block, CompressionType, FooterBuilder, MetadataVersion};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use flatbuffers::FlatBufferBuilder;

use super::schema::{RowGroupData, ShardSchema};
use crate::error::{Error, Result};
use crate::job::{Compression, TensorStorage};

const MAGIC: &[u8] = b"ARROW1";
const ALIGNMENT: usize = 64;

/// Encodes row groups as record batches.
pub(super) struct IpcEncoder {
    schema: SchemaRef,
    tensors: TensorStorage,
    options: IpcWriteOptions,
}

impl IpcEncoder {
    pub(super) fn new(schema: &ShardSchema, compression: Compression) -> Result<Self> {
        let (compression, level) = match compression {
            Compression::None => (None, None),
            Compression::Zstd(level) => (Some(CompressionType::ZSTD), Some(level)),
            Compression::Lz4 => (Some(CompressionType::LZ4_FRAME), None),
            Compression::Snappy => {
                return Err(Error::usage(format!(
                    "found compression {compression} for format arrow, expected one of: {}",
                    "none, lz4, zstd:1 to zstd:22"
                ))
                .job_key("output.compression"));
            }
        };
        let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)
            .and_then(|o| o.try_with_compression(compression))
            .and_then(|o| o.try_with_compression_level(level))
            .map_err(|e| Error::internal(format!("Arrow IPC options: {e}")))?;
        Ok(Self { schema: schema.arrow(), tensors: schema.tensors, options })
    }

    /// Encodes one record batch. The columns have been checked against the schema.
    pub(super) fn encode(&self, data: &RowGroupData) -> Result<EncodedData> {
        let columns = data.columns.iter().map(|c| c.to_arrow(self.tensors)).collect::<Result<Vec<_>>>()?;
        let rows = RecordBatchOptions::new().with_row_count(Some(data.rows));
        let encode = || {
            let batch = RecordBatch::try_new_with_options(SchemaRef::clone(&self.schema), columns, &rows)?;
            let mut tracker = DictionaryTracker::new(true);
            let mut context = IpcWriteContext::default();
            IpcDataGenerator::default().encode(&batch, &mut tracker, &self.options, &mut context)
        };
        let (_, encoded) = encode().map_err(|e| Error::internal(format!("record batch: {e}")))?;
        Ok(encoded)
    }

    /// Starts a file.
    pub(super) fn start<W: Write>(&self, mut sink: W) -> Result<IpcFile<W>, ArrowError> {
        let mut head = MAGIC.to_vec();
        head.resize(ALIGNMENT, 0);
        sink.write_all(&head)?;
        let mut tracker = DictionaryTracker::new(true);
        let schema = IpcDataGenerator::default().schema_to_bytes_with_dictionary_tracker(
            &self.schema,
            &mut tracker,
            &self.options,
        );
        let (header, body) = write_message(&mut sink, schema, &self.options)?;
        Ok(IpcFile {
            sink,
            schema: SchemaRef::clone(&self.schema),
            options: self.options.clone(),
            offset: head.len() + header + body,
            blocks: Vec::new(),
        })
    }
}

/// An IPC file being written.
pub(super) struct IpcFile<W> {
    sink: W,
    schema: SchemaRef,
    options: IpcWriteOptions,
    offset: usize,
    blocks: Vec<Block>,
}

impl<W: Write> IpcFile<W> {
    /// Appends one record batch.
    pub(super) fn append(&mut self, encoded: EncodedData) -> Result<(), ArrowError> {
        let (header, body) = write_message(&mut self.sink, encoded, &self.options)?;
        self.blocks.push(Block::new(signed(self.offset)?, signed(header)?, signed(body)?));
        self.offset += header + body;
        Ok(())
    }

    /// Writes the footer.
    pub(super) fn finish(mut self) -> Result<W, ArrowError> {
        let mut builder = FlatBufferBuilder::new();
        let dictionaries = builder.create_vector::<Block>(&[]);
        let batches = builder.create_vector(&self.blocks);
        let mut tracker = DictionaryTracker::new(true);
        let schema = IpcSchemaEncoder::new()
            .with_dictionary_tracker(&mut tracker)
            .schema_to_fb_offset(&mut builder, &self.schema);
        let mut footer = FooterBuilder::new(&mut builder);
        footer.add_version(MetadataVersion::V5);
        footer.add_schema(schema);
        footer.add_dictionaries(dictionaries);
        footer.add_recordBatches(batches);
        let footer = footer.finish();
        builder.finish(footer, None);
        let footer = builder.finished_data();

        // End of stream: a continuation marker and an empty message.
        self.sink.write_all(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0])?;
        self.sink.write_all(footer)?;
        self.sink.write_all(&signed::<i32>(footer.len())?.to_le_bytes())?;
        self.sink.write_all(MAGIC)?;
        Ok(self.sink)
    }
}

fn signed<T: TryFrom<usize>>(n: usize) -> Result<T, ArrowError> {
    T::try_from(n).map_err(|_| ArrowError::IpcError(format!("{n} bytes do not fit an Arrow IPC block")))
}
