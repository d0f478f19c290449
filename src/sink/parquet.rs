//! Shards in Parquet.
//!
//! Tensor columns are laid down by [`super::pages`]; id columns go through the parquet crate's own writer, with a
//! dictionary for text, delta encoding for integers (`t` counts up) and chunk statistics, so that readers can skip row
//! groups by episode. The footer names no time and no machine.

use std::io::Write;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{Schema, SchemaRef};
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::arrow::{ArrowSchemaConverter, add_encoded_arrow_schema_to_metadata};
use parquet::basic::Encoding;
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, SchemaDescriptor};
use rayon::prelude::*;

use super::pages::{self, Chunk};
use super::schema::{ColumnData, ColumnType, RowGroupData, ShardSchema};
use crate::job::Compression;

/// Bytes of the largest dictionary of texts: as many as a row group may have, so that rows that share a long one have it once
/// in the file, too.
const DICTIONARY: usize = 64 << 20;

/// Encodes row groups as Parquet column chunks.
pub(super) struct ParquetEncoder {
    compression: Compression,
    descr: SchemaDescriptor,
    properties: WriterPropertiesPtr,
    /// For each column that holds ids, the writer of a file that holds nothing else.
    ids: Vec<Option<(SchemaRef, ArrowRowGroupWriterFactory)>>,
}

/// The column chunks of one row group.
pub(super) struct EncodedColumns(Vec<EncodedColumn>);

enum EncodedColumn {
    Tensor(Chunk),
    Ids(ArrowColumnChunk),
}

impl ParquetEncoder {
    pub(super) fn new(schema: &ShardSchema, compression: Compression) -> Result<Self> {
        let arrow = schema.arrow();
        // `coerce_types` names list elements `element`, as the format asks and pyarrow writes; the embedded Arrow schema
        // keeps Arrow's `item`.
        let convert = |schema: &Schema| ArrowSchemaConverter::new().with_coerce_types(true).convert(schema);
        let descr = convert(&arrow)?;
        let mut properties = WriterProperties::builder()
            .set_created_by(concat!("gristmill ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_compression(pages::codec(compression)?)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_offset_index_disabled(true);
        for (name, _) in schema.columns.iter().filter(|(_, ty)| *ty == ColumnType::Int64) {
            let path = || ColumnPath::new(vec![name.clone()]);
            properties = properties
                .set_column_dictionary_enabled(path(), false)
                .set_column_encoding(path(), Encoding::DELTA_BINARY_PACKED);
        }
        for (name, _) in schema.columns.iter().filter(|(_, ty)| *ty == ColumnType::Utf8) {
            let path = ColumnPath::new(vec![name.clone()]);
            properties = properties.set_column_dictionary_page_size_limit(path, DICTIONARY);
        }
        let mut properties = properties.build();
        add_encoded_arrow_schema_to_metadata(&arrow, &mut properties);
        let properties = Arc::new(properties);

        let ids = schema
            .columns
            .iter()
            .zip(arrow.fields())
            .map(|((_, ty), field)| {
                if matches!(ty, ColumnType::Tensor(_)) {
                    return Ok(None);
                }
                let alone = Arc::new(Schema::new(vec![Arc::clone(field)]));
                let root = convert(&alone)?.root_schema_ptr();
                let file = SerializedFileWriter::new(std::io::sink(), root, Arc::clone(&properties))?;
                Ok(Some((Arc::clone(&alone), ArrowRowGroupWriterFactory::new(&file, alone))))
            })
            .collect::<Result<_>>()?;
        Ok(Self { compression, descr, properties, ids })
    }

    /// Encodes the columns in parallel. The columns have been checked against the schema.
    pub(super) fn encode(&self, data: &RowGroupData) -> Result<EncodedColumns> {
        data.columns
            .par_iter()
            .enumerate()
            .map(|(i, column)| match (column, &self.ids[i]) {
                (ColumnData::Tensor(t), _) => {
                    // Scalars and flat lists have one leaf each, so leaf `i` is column `i`.
                    pages::encode(t, &self.descr.column(i), self.compression).map(EncodedColumn::Tensor)
                }
                (ColumnData::Ids(array), Some((schema, factory))) => {
                    encode_ids(schema, factory, array).map(EncodedColumn::Ids)
                }
                (ColumnData::Ids(_), None) => Err(ParquetError::General("ids in a tensor column".into())),
            })
            .collect::<Result<_>>()
            .map(EncodedColumns)
    }

    /// Starts a file.
    pub(super) fn start<W: Write + Send>(&self, sink: W) -> Result<SerializedFileWriter<W>> {
        SerializedFileWriter::new(sink, self.descr.root_schema_ptr(), Arc::clone(&self.properties))
    }
}

fn encode_ids(schema: &Schema, factory: &ArrowRowGroupWriterFactory, array: &ArrayRef) -> Result<ArrowColumnChunk> {
    let mut writers = factory.create_column_writers(0)?;
    let mut writer = writers.pop().ok_or_else(|| ParquetError::General("a column without a writer".into()))?;
    for leaf in compute_leaves(schema.field(0), array)? {
        writer.write(&leaf)?;
    }
    writer.close()
}

/// Appends one row group.
pub(super) fn append<W: Write + Send>(file: &mut SerializedFileWriter<W>, columns: EncodedColumns) -> Result<()> {
    let mut group = file.next_row_group()?;
    for column in columns.0 {
        match column {
            EncodedColumn::Tensor(chunk) => group.append_column(&chunk.bytes, chunk.close)?,
            EncodedColumn::Ids(chunk) => chunk.append_to_row_group(&mut group)?,
        }
    }
    group.close().map(|_| ())
}
