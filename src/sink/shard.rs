//! One shard: rows encoded anywhere, appended in order, hashed on the way.

use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use ::parquet::errors::ParquetError;
use ::parquet::file::writer::SerializedFileWriter;
use arrow::error::ArrowError;
use arrow::ipc::writer::EncodedData;

use super::file::{HashingFile, Unsynced, failed};
use super::ipc::{IpcEncoder, IpcFile};
use super::parquet::{self, EncodedColumns, ParquetEncoder};
use super::schema::{RowGroupData, ShardSchema};
use crate::error::{Error, Result};
use crate::job::{Compression, Format};

/// Turns row groups into bytes. Pure: callable from any number of threads at once.
pub struct Encoder {
    schema: ShardSchema,
    imp: Imp,
}

enum Imp {
    Parquet(Box<ParquetEncoder>),
    Ipc(IpcEncoder),
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Encoder {
    /// An encoder for shards of `schema`. Fails if the format cannot hold the columns or has no such compression.
    pub fn new(schema: ShardSchema, format: Format, compression: Compression) -> Result<Self> {
        schema.check()?;
        let imp = match format {
            Format::Parquet => {
                Imp::Parquet(Box::new(ParquetEncoder::new(&schema, compression).map_err(|e| broken(&e))?))
            }
            Format::Arrow => Imp::Ipc(IpcEncoder::new(&schema, compression)?),
        };
        Ok(Self { schema, imp })
    }

    /// The columns.
    #[must_use]
    pub fn schema(&self) -> &ShardSchema {
        &self.schema
    }

    /// Encodes one row group, its columns in parallel. The bytes are a function of the rows alone.
    pub fn encode(&self, data: &RowGroupData) -> Result<EncodedRowGroup> {
        data.check(&self.schema)?;
        let bytes = match &self.imp {
            Imp::Parquet(encoder) => Bytes::Parquet(encoder.encode(data).map_err(|e| broken(&e))?),
            Imp::Ipc(encoder) => Bytes::Ipc(encoder.encode(data)?),
        };
        Ok(EncodedRowGroup { rows: data.rows, bytes })
    }
}

/// A row group as bytes, ready to be appended to a shard of the encoder that made it.
pub struct EncodedRowGroup {
    rows: usize,
    bytes: Bytes,
}

enum Bytes {
    Parquet(EncodedColumns),
    Ipc(EncodedData),
}

impl EncodedRowGroup {
    /// Number of rows.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }
}

impl std::fmt::Debug for EncodedRowGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EncodedRowGroup").field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardInfo {
    /// Rows of the shard.
    pub rows: usize,
    /// Size of the file.
    pub bytes: u64,
    /// `blake3:` and the digest of the file's bytes.
    pub digest: String,
    /// Row groups, or record batches.
    pub row_groups: usize,
}

/// A shard being written.
///
/// A failed writer leaves its file behind, incomplete; the directory's unfinished mark tells.
pub struct ShardWriter {
    path: PathBuf,
    out: Out,
    rows: usize,
    row_groups: usize,
}

enum Out {
    Parquet(Box<SerializedFileWriter<BufWriter<HashingFile>>>),
    Ipc(Box<IpcFile<BufWriter<HashingFile>>>),
}

impl std::fmt::Debug for ShardWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardWriter").field("path", &self.path).field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl ShardWriter {
    /// Creates the file, which must not exist.
    pub fn create(path: &Path, encoder: &Encoder) -> Result<Self> {
        let file = HashingFile::create(path)?;
        let out = match &encoder.imp {
            Imp::Parquet(e) => Out::Parquet(Box::new(e.start(file).map_err(|e| parquet_failed(path, &e))?)),
            Imp::Ipc(e) => Out::Ipc(Box::new(e.start(file).map_err(|e| ipc_failed(path, &e))?)),
        };
        Ok(Self { path: path.to_owned(), out, rows: 0, row_groups: 0 })
    }

    /// Appends a row group. One without rows leaves no trace.
    pub fn append(&mut self, group: EncodedRowGroup) -> Result<()> {
        if group.rows == 0 {
            return Ok(());
        }
        match (&mut self.out, group.bytes) {
            (Out::Parquet(file), Bytes::Parquet(columns)) => {
                parquet::append(file, columns).map_err(|e| parquet_failed(&self.path, &e))?;
            }
            (Out::Ipc(file), Bytes::Ipc(encoded)) => {
                file.append(encoded).map_err(|e| ipc_failed(&self.path, &e))?;
            }
            _ => return Err(Error::internal("a row group of another format").file(self.path.display().to_string())),
        }
        self.rows += group.rows;
        self.row_groups += 1;
        Ok(())
    }

    /// Writes the footer and waits until the file is on the disk.
    pub fn finish(self) -> Result<ShardInfo> {
        let (info, file) = self.close()?;
        file.sync()?;
        Ok(info)
    }

    /// Writes the footer. Somebody must still wait for the disk.
    pub fn close(self) -> Result<(ShardInfo, Unsynced)> {
        let file = match self.out {
            Out::Parquet(file) => file.into_inner().map_err(|e| parquet_failed(&self.path, &e))?,
            Out::Ipc(file) => file.finish().map_err(|e| ipc_failed(&self.path, &e))?,
        };
        let (bytes, digest, file) = HashingFile::finish(file, &self.path)?;
        Ok((ShardInfo { rows: self.rows, bytes, digest, row_groups: self.row_groups }, file))
    }
}

/// Encoding in memory cannot fail but by our fault.
fn broken(e: &ParquetError) -> Error {
    Error::internal(format!("Parquet encoding: {e}"))
}

fn parquet_failed(path: &Path, e: &ParquetError) -> Error {
    match e {
        ParquetError::External(inner) => match inner.downcast_ref::<io::Error>() {
            Some(io) => failed("write", path, io),
            None => broken(e).file(path.display().to_string()),
        },
        _ => broken(e).file(path.display().to_string()),
    }
}

fn ipc_failed(path: &Path, e: &ArrowError) -> Error {
    match e {
        ArrowError::IoError(_, io) => failed("write", path, io),
        _ => Error::internal(format!("Arrow IPC encoding: {e}")).file(path.display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::sync::Arc;

    use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use ::parquet::file::reader::FileReader;
    use ::parquet::file::serialized_reader::SerializedFileReader;
    use arrow::array::{AsArray, Int64Array, RecordBatch, StringViewArray};
    use arrow::compute::concat_batches;
    use arrow::datatypes::Int64Type;

    use super::*;
    use crate::error::Kind;
    use crate::job::TensorStorage;
    use crate::sink::file_digest;
    use crate::sink::schema::{ColumnData, ColumnType, tensor_of};
    use crate::tensor::{DType, Tensor, TensorType};

    const SHAPES: [&[usize]; 8] = [&[], &[1], &[4], &[20, 4], &[3, 11], &[0], &[84, 84, 1], &[2, 0, 3]];

    /// One column of each dtype and shape, and ids, with bytes that no pattern explains.
    fn sample(rows: usize, seed: u32) -> (ShardSchema, RowGroupData) {
        let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state.to_be_bytes()[1]
        };
        let (mut columns, mut data) = (Vec::new(), Vec::new());
        for dtype in DType::ALL {
            for shape in SHAPES {
                let ty = TensorType::new(dtype, shape);
                let bytes: Vec<u8> = (0..rows * ty.row_bytes())
                    .map(|_| if dtype == DType::Bool { random() & 1 } else { random() })
                    .collect();
                data.push(ColumnData::Tensor(Tensor::new(ty.clone(), rows, bytes.into())));
                columns.push((format!("obs/{ty}"), ColumnType::Tensor(ty)));
            }
        }
        let ids: Vec<String> = (0..rows).map(|i| format!("episode {}", i / 3)).collect();
        data.push(ColumnData::Ids(Arc::new(StringViewArray::from(ids))));
        columns.push(("eps_id".into(), ColumnType::Utf8));
        let t: Vec<i64> = (0i64..).take(rows).collect();
        data.push(ColumnData::Ids(Arc::new(Int64Array::from(t))));
        columns.push(("t".into(), ColumnType::Int64));
        (ShardSchema::new(columns), RowGroupData { rows, columns: data })
    }

    fn read(path: &Path) -> (RecordBatch, usize) {
        let file = File::open(path).unwrap();
        let (schema, batches): (_, Vec<RecordBatch>) = if path.extension().unwrap() == "parquet" {
            let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
            (reader.schema().clone(), reader.build().unwrap().map(Result::unwrap).collect())
        } else {
            let reader = arrow::ipc::reader::FileReader::try_new(file, None).unwrap();
            (reader.schema(), reader.map(Result::unwrap).collect())
        };
        (concat_batches(&schema, &batches).unwrap(), batches.len())
    }

    fn write(path: &Path, encoder: &Encoder, groups: &[RowGroupData]) -> ShardInfo {
        let mut writer = ShardWriter::create(path, encoder).unwrap();
        for group in groups {
            writer.append(encoder.encode(group).unwrap()).unwrap();
        }
        writer.finish().unwrap()
    }

    /// The parquet crate reads the elements of lists under Parquet's name for them, `element`.
    fn assert_same_fields(batch: &RecordBatch, schema: &ShardSchema) {
        for (found, expected) in batch.schema().fields().iter().zip(schema.arrow().fields()) {
            assert_eq!((found.name(), found.metadata()), (expected.name(), expected.metadata()));
            assert!(found.data_type().equals_datatype(expected.data_type()), "{found} against {expected}");
            assert!(!found.is_nullable());
        }
        assert_eq!(batch.num_columns(), schema.columns.len());
    }

    #[test]
    fn every_dtype_and_shape_reads_back() {
        let tmp = tempfile::tempdir().unwrap();
        let files = [
            (Format::Parquet, Compression::Zstd(1)),
            (Format::Parquet, Compression::None),
            (Format::Parquet, Compression::Lz4),
            (Format::Parquet, Compression::Snappy),
            (Format::Arrow, Compression::None),
            (Format::Arrow, Compression::Zstd(1)),
            (Format::Arrow, Compression::Lz4),
        ];
        let storages = [TensorStorage::List, TensorStorage::Binary];
        for ((format, compression), tensors) in files.iter().flat_map(|&f| storages.map(|s| (f, s))) {
            let (schema, a) = sample(41, 1);
            let schema = schema.with_tensors(tensors);
            let (_, b) = sample(7, 2);
            let encoder = Encoder::new(schema.clone(), format, compression).unwrap();
            let path = tmp.path().join(format!("{}-{tensors:?}.{format}", compression.to_string().replace(':', "-")));
            let info = write(&path, &encoder, &[a.clone(), b.clone()]);
            assert_eq!((info.rows, info.row_groups), (48, 2));
            assert_eq!(file_digest(&path).unwrap(), (info.bytes, info.digest));

            let (batch, _) = read(&path);
            assert_same_fields(&batch, &schema);
            for (i, (name, ty)) in schema.columns.iter().enumerate() {
                match (&a.columns[i], &b.columns[i], ty) {
                    (ColumnData::Tensor(a), ColumnData::Tensor(b), ColumnType::Tensor(ty)) => {
                        let expected = Tensor::concat(ty, &[a.clone(), b.clone()]);
                        assert!(
                            tensor_of(batch.column(i), ty).bytes() == expected.bytes(),
                            "{format} {compression} {tensors:?} {name}"
                        );
                    }
                    (ColumnData::Ids(a), ColumnData::Ids(b), _) => {
                        let expected = ColumnData::Ids(arrow::compute::concat(&[a, b]).unwrap());
                        assert_eq!(batch.column(i), &expected.to_arrow(tensors).unwrap(), "{name}");
                    }
                    _ => unreachable!(),
                }
            }
        }
    }

    #[test]
    fn many_pages_read_back() {
        let tmp = tempfile::tempdir().unwrap();
        let rows = 70_001;
        let values: Vec<i64> = (0i64..).take(rows * 3).map(|i| i * 7919 % 100_003).collect();
        let wide = Tensor::from_values([3], &values);
        let columns: Vec<Tensor> = [DType::Int64, DType::Float32, DType::Float64]
            .into_iter()
            .map(|d| wide.cast(d).unwrap())
            .chain([
                Tensor::from_values::<u8>([3], &values.iter().map(|v| v.to_le_bytes()[0]).collect::<Vec<_>>()),
                Tensor::from_values::<i16>(
                    [1, 3],
                    &values.iter().map(|v| i16::from(v.to_le_bytes()[0]) - 99).collect::<Vec<_>>(),
                ),
                Tensor::from_bools(values[..rows].iter().map(|v| v % 3 == 0)),
                Tensor::zeros(TensorType::new(DType::Float32, [0]), rows),
            ])
            .collect();
        let schema = ShardSchema::new(
            columns.iter().enumerate().map(|(i, t)| (i.to_string(), ColumnType::Tensor(t.ty().clone()))).collect(),
        );
        let data = RowGroupData { rows, columns: columns.iter().cloned().map(ColumnData::Tensor).collect() };
        let encoder = Encoder::new(schema, Format::Parquet, Compression::Zstd(1)).unwrap();
        let path = tmp.path().join("a.parquet");
        write(&path, &encoder, &[data]);
        let (batch, _) = read(&path);
        for (i, t) in columns.iter().enumerate() {
            assert!(tensor_of(batch.column(i), t.ty()).bytes() == t.bytes(), "column {i}");
        }
    }

    #[test]
    fn bytes_do_not_depend_on_threads() {
        let tmp = tempfile::tempdir().unwrap();
        let (schema, data) = sample(100, 3);
        for format in [Format::Parquet, Format::Arrow] {
            let encoder = Encoder::new(schema.clone(), format, Compression::Zstd(1)).unwrap();
            let digests: Vec<String> = [1, 2, 7]
                .iter()
                .map(|&threads| {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                    let path = tmp.path().join(format!("{threads}.{format}"));
                    pool.install(|| write(&path, &encoder, &[data.clone(), data.clone()])).digest
                })
                .collect();
            assert!(digests.iter().all(|d| *d == digests[0]), "{digests:?}");
        }
    }

    #[test]
    fn a_shard_without_rows_carries_its_schema() {
        let tmp = tempfile::tempdir().unwrap();
        let (schema, none) = sample(0, 1);
        for format in [Format::Parquet, Format::Arrow] {
            let encoder = Encoder::new(schema.clone(), format, Compression::None).unwrap();
            let path = tmp.path().join(format!("a.{format}"));
            let info = write(&path, &encoder, std::slice::from_ref(&none));
            assert_eq!((info.rows, info.row_groups), (0, 0));
            let (batch, _) = read(&path);
            assert_eq!(batch.num_rows(), 0);
            assert_same_fields(&batch, &schema);
        }
    }

    #[test]
    fn the_footer_is_constant_and_ids_have_statistics() {
        let tmp = tempfile::tempdir().unwrap();
        let (schema, data) = sample(9, 1);
        let encoder = Encoder::new(schema, Format::Parquet, Compression::Zstd(1)).unwrap();
        let path = tmp.path().join("a.parquet");
        write(&path, &encoder, &[data]);
        let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
        let meta = reader.metadata();
        assert_eq!(meta.file_metadata().created_by(), Some(concat!("gristmill ", env!("CARGO_PKG_VERSION"))));
        let columns = meta.row_group(0).columns();
        let (tensors, ids) = columns.split_at(columns.len() - 2);
        assert!(tensors.iter().all(|c| c.statistics().is_none()));
        assert!(ids.iter().all(|c| c.statistics().is_some()));
    }

    #[test]
    fn ipc_files_are_those_of_arrow() {
        let tmp = tempfile::tempdir().unwrap();
        let (schema, data) = sample(10, 1);
        let encoder = Encoder::new(schema.clone(), Format::Arrow, Compression::None).unwrap();
        let path = tmp.path().join("a.arrow");
        write(&path, &encoder, &[data.clone(), data.clone()]);
        let columns = data.columns.iter().map(|c| c.to_arrow(schema.tensors).unwrap()).collect();
        let batch = RecordBatch::try_new(schema.arrow(), columns).unwrap();
        let mut theirs = arrow::ipc::writer::FileWriter::try_new(Vec::new(), &schema.arrow()).unwrap();
        theirs.write(&batch).unwrap();
        theirs.write(&batch).unwrap();
        assert!(fs::read(path).unwrap() == theirs.into_inner().unwrap());
    }

    #[test]
    fn what_a_format_cannot_compress_is_refused_with_what_it_can() {
        let (schema, _) = sample(0, 1);
        let e = Encoder::new(schema, Format::Arrow, Compression::Snappy).unwrap_err();
        assert_eq!(e.kind(), Kind::Usage);
        assert!(e.what().ends_with("none, lz4, zstd:1 to zstd:22"), "{e}");
    }

    #[test]
    fn other_columns_than_the_schemas_are_our_fault() {
        let (schema, mut data) = sample(3, 1);
        let encoder = Encoder::new(schema, Format::Parquet, Compression::None).unwrap();
        data.columns.swap(0, 1);
        let e = encoder.encode(&data).unwrap_err();
        assert_eq!((e.kind(), e.place().column.as_deref()), (Kind::Internal, Some("obs/bool")));
        data.columns.pop();
        assert_eq!(encoder.encode(&data).unwrap_err().kind(), Kind::Internal);
        let nulls: arrow::array::ArrayRef = Arc::new(Int64Array::from(vec![None, Some(1)]));
        assert_eq!(nulls.as_primitive::<Int64Type>().len(), 2);
        let encoder =
            Encoder::new(ShardSchema::new(vec![("t".into(), ColumnType::Int64)]), Format::Arrow, Compression::None)
                .unwrap();
        let data = RowGroupData { rows: 2, columns: vec![ColumnData::Ids(nulls)] };
        assert_eq!(encoder.encode(&data).unwrap_err().kind(), Kind::Internal);
    }

    #[test]
    fn failed_writes_name_the_file_and_are_the_surroundings() {
        let tmp = tempfile::tempdir().unwrap();
        let (schema, data) = sample(200, 1);
        for format in [Format::Parquet, Format::Arrow] {
            let encoder = Encoder::new(schema.clone(), format, Compression::None).unwrap();
            let e = ShardWriter::create(&tmp.path().join("gone/a"), &encoder).unwrap_err();
            assert_eq!(e.kind(), Kind::Environment);
            assert!(e.place().file.as_deref().unwrap().ends_with("gone/a"));
            // A full disk, as Linux plays it.
            let full = Path::new("/dev/full");
            if full.exists() {
                let file = HashingFile::over(File::options().write(true).open(full).unwrap());
                let out = match &encoder.imp {
                    Imp::Parquet(e) => Out::Parquet(Box::new(e.start(file).unwrap())),
                    Imp::Ipc(e) => Out::Ipc(Box::new(e.start(file).unwrap())),
                };
                let mut writer = ShardWriter { path: "a".into(), out, rows: 0, row_groups: 0 };
                let e = (0..9).try_for_each(|_| writer.append(encoder.encode(&data)?)).unwrap_err();
                assert_eq!((e.kind(), e.place().file.as_deref()), (Kind::Environment, Some("a")), "{e}");
                assert!(e.hint_text().unwrap().contains("free some space"), "{e}");
            }
        }
    }
}
