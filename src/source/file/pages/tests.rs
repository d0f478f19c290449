//! Every column that is read page by page against the crate's own reader.

use std::fs::File;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, FixedSizeBinaryArray, FixedSizeListArray, Float16Array, Float32Array, Float64Array,
    Int8Array, Int32Array, Int64Array, LargeListArray, ListArray, RecordBatch, StringArray, StructArray, UInt8Array,
    UInt16Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, Encoding, GzipLevel, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::schema::types::ColumnPath;

use super::super::InputFile;
use super::super::parquet::Footer;

const ROWS: usize = 1000;

fn item(ty: DataType) -> Arc<Field> {
    Arc::new(Field::new("item", ty, true))
}

fn floats(n: usize) -> Float32Array {
    // Few enough distinct ones for a dictionary, and NaN and -0.0 among them.
    (0..n)
        .map(|i| [0.5, -0.0, f32::NAN, 3.25e-7, -1e30][i * 7 % 5] + f32::from(u8::try_from(i % 40).unwrap()))
        .collect::<Vec<_>>()
        .into()
}

fn fixed(len: i32, values: ArrayRef) -> FixedSizeListArray {
    FixedSizeListArray::new(item(values.data_type().clone()), len, values, None)
}

/// Columns that pages hold regularly, by name.
fn regular() -> Vec<(&'static str, ArrayRef)> {
    let n = i64::try_from(ROWS).unwrap();
    let half = |i: usize| half::f16::from_f32(f32::from(u8::try_from(i % 100).unwrap()));
    let offsets = |len: usize, rows: usize| OffsetBuffer::from_lengths(std::iter::repeat_n(len, rows));
    let nested = ListArray::new(item(DataType::Float32), offsets(3, ROWS * 2), Arc::new(floats(ROWS * 6)), None);
    let nested = FixedSizeListArray::new(item(nested.data_type().clone()), 2, Arc::new(nested), None);
    let bytes: Vec<u8> = (0..ROWS * 5).map(|i| u8::try_from(i * i % 251).unwrap()).collect();
    let pixels: UInt8Array = (0..ROWS * 40).map(|i| u8::try_from(i * 31 % 256).unwrap()).collect::<Vec<_>>().into();
    vec![
        ("i64", Arc::new(Int64Array::from_iter_values((0..n).map(|i| i * i - 7)))),
        ("i32", Arc::new(Int32Array::from_iter_values((0..1000).map(|i| i % 3 - 1)))),
        ("i8", Arc::new(Int8Array::from_iter_values((0..ROWS).map(|i| i8::try_from(i % 200).unwrap_or(-5))))),
        ("u16", Arc::new(UInt16Array::from_iter_values((0..1000).map(|i| i * 65)))),
        ("f16", Arc::new(Float16Array::from_iter_values((0..ROWS).map(half)))),
        ("f64", Arc::new(Float64Array::from_iter_values((0..1000_i32).map(|i| f64::from(i).sin())))),
        ("bool", Arc::new((0..ROWS).map(|i| Some(i % 7 == 3)).collect::<BooleanArray>())),
        ("binary", Arc::new(FixedSizeBinaryArray::try_new(5, bytes.into(), None).unwrap())),
        ("vector", Arc::new(fixed(4, Arc::new(floats(ROWS * 4))))),
        ("one", Arc::new(fixed(1, Arc::new(floats(ROWS))))),
        ("frame", Arc::new(fixed(40, Arc::new(pixels)))),
        ("list", Arc::new(ListArray::new(item(DataType::Float32), offsets(3, ROWS), Arc::new(floats(ROWS * 3)), None))),
        (
            "large",
            Arc::new(LargeListArray::new(
                item(DataType::Int64),
                offsets64(2, ROWS),
                Arc::new(Int64Array::from_iter_values(0..2 * n)),
                None,
            )),
        ),
        ("nested", Arc::new(nested)),
        (
            "deep",
            Arc::new(StructArray::from(vec![
                (
                    Arc::new(Field::new("pos", DataType::FixedSizeList(item(DataType::Float32), 2), true)),
                    Arc::new(fixed(2, Arc::new(floats(ROWS * 2)))) as ArrayRef,
                ),
                (
                    Arc::new(Field::new("mode", DataType::Int64, false)),
                    Arc::new(Int64Array::from_iter_values(0..n)) as ArrayRef,
                ),
            ])),
        ),
    ]
}

fn offsets64(len: usize, rows: usize) -> OffsetBuffer<i64> {
    OffsetBuffer::from_lengths(std::iter::repeat_n(len, rows))
}

/// Columns with something that only the crate's reader can do, from some row on.
fn irregular() -> Vec<(&'static str, ArrayRef)> {
    let late = |i: usize| i < 700 || !i.is_multiple_of(9);
    let nulls = || Some((0..ROWS).map(late).collect::<NullBuffer>());
    let inner = (0..ROWS * 2).map(late).collect::<NullBuffer>();
    let with_null_element = Float32Array::new(floats(ROWS * 2).values().clone(), Some(inner));
    let ragged = OffsetBuffer::<i32>::from_lengths((0..ROWS).map(|i| if late(i) { 3 } else { i % 5 }));
    let total = ragged.last();
    vec![
        ("null scalars", Arc::new((0..1000_i64).map(|i| (i < 700 || i % 9 > 0).then_some(i)).collect::<Int64Array>())),
        (
            "null lists",
            Arc::new(FixedSizeListArray::new(item(DataType::Float32), 2, Arc::new(floats(ROWS * 2)), nulls())),
        ),
        ("null elements", Arc::new(fixed(2, Arc::new(with_null_element)))),
        (
            "ragged",
            Arc::new(ListArray::new(
                item(DataType::Float32),
                ragged,
                Arc::new(floats(usize::try_from(total).unwrap())),
                None,
            )),
        ),
        ("text", Arc::new(StringArray::from_iter_values((0..ROWS).map(|i| format!("row {}", i / 9))))),
    ]
}

fn write(batch: &RecordBatch, props: WriterProperties) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".parquet").tempfile().unwrap();
    let mut writer = ArrowWriter::try_new(file.reopen().unwrap(), batch.schema(), Some(props)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    file
}

/// All rows as both readers have them; which columns were still read page by page in the end.
fn compare(file: &tempfile::NamedTempFile, batch_rows: usize, what: &str) -> Vec<bool> {
    let bytes = file.as_file().metadata().unwrap().len();
    let input = InputFile::open(file.path()).unwrap();
    let (_, groups, _, super::super::Footer::Parquet(footer)) = Footer::parse(file.as_file(), bytes).unwrap() else {
        panic!("a Parquet file");
    };
    let columns: Vec<usize> = (0..input.schema.fields().len()).collect();
    let mut paged = Vec::new();
    for (group, promised) in groups.iter().enumerate() {
        let mut ours = footer.read(File::open(file.path()).unwrap(), bytes, group, &columns, batch_rows).unwrap();
        let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(file.path()).unwrap()).unwrap();
        let theirs = builder.with_row_groups(vec![group]).with_batch_size(batch_rows).build().unwrap();
        let mut rows = 0;
        for expected in theirs {
            let expected = expected.unwrap();
            let found = ours.next().unwrap().unwrap();
            assert_eq!(found.num_columns(), expected.num_columns(), "{what}");
            for (i, column) in expected.columns().iter().enumerate() {
                // Text is read as views, whose buffers are others.
                let own = match column.data_type() {
                    DataType::Utf8 => arrow::compute::cast(found.column(i), &DataType::Utf8).unwrap(),
                    _ => Arc::clone(found.column(i)),
                };
                let same = own.to_data() == column.to_data();
                assert!(same, "{what}: {} from row {rows}", input.schema.field(i));
            }
            rows += found.num_rows();
        }
        assert!(ours.next().is_none());
        assert_eq!(rows, promised.rows);
        paged = ours.paged();
    }
    paged
}

fn batch(columns: Vec<(&'static str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
}

fn codecs() -> Vec<Compression> {
    vec![
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::LZ4_RAW,
        Compression::ZSTD(ZstdLevel::try_new(1).unwrap()),
    ]
}

fn props(
    codec: Compression,
    version: WriterVersion,
    dictionary: bool,
) -> parquet::file::properties::WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_compression(codec)
        .set_writer_version(version)
        .set_dictionary_enabled(dictionary)
        .set_encoding(Encoding::PLAIN)
}

#[test]
fn regular_columns_are_read_by_page_and_are_what_the_crate_reads() {
    let batch = batch(regular());
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        for codec in codecs() {
            for dictionary in [true, false] {
                // Pages of a few rows, of many, and one page; row groups that pages do not divide.
                for (page_rows, group_rows, batch_rows) in
                    [(7, 333, 64), (128, 1000, 100), (100_000, 1000, 1000), (1, 10, 3)]
                {
                    let props = props(codec, version, dictionary)
                        .set_data_page_row_count_limit(page_rows)
                        .set_write_batch_size(page_rows.min(64))
                        .set_max_row_group_row_count(Some(group_rows));
                    let file = write(&batch, props.build());
                    let what = format!("{version:?} {codec:?} dictionary {dictionary} pages of {page_rows}");
                    let paged = compare(&file, batch_rows, &what);
                    assert_eq!(paged, vec![true; batch.num_columns()], "{what}");
                }
            }
        }
    }
}

#[test]
fn a_dictionary_that_grew_too_large_ends_in_the_middle() {
    let batch = batch(regular());
    let props = props(Compression::SNAPPY, WriterVersion::PARQUET_1_0, true)
        .set_dictionary_page_size_limit(400)
        .set_write_batch_size(50)
        .set_data_page_row_count_limit(50);
    let paged = compare(&write(&batch, props.build()), 77, "small dictionary");
    assert_eq!(paged, vec![true; batch.num_columns()]);
}

#[test]
fn what_is_irregular_goes_over_to_the_crate_in_the_middle() {
    let batch = batch(irregular());
    for dictionary in [true, false] {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            let props = props(Compression::SNAPPY, version, dictionary).set_data_page_row_count_limit(50);
            let file = write(&batch, props.set_write_batch_size(50).build());
            for batch_rows in [1000, 333, 64, 1] {
                let paged = compare(&file, batch_rows, "irregular");
                assert_eq!(paged, vec![false; batch.num_columns()]);
            }
        }
    }
}

/// Several with one batch, others with a later one, and regular ones between them.
#[test]
fn columns_go_over_to_the_crate_one_after_the_other() {
    let from =
        |first: i64| Arc::new((0..1000_i64).map(|i| (i < first || i % 3 > 0).then_some(i)).collect::<Int64Array>());
    let columns = [("a", 900), ("b", 1000), ("c", 300), ("d", 310), ("e", 0), ("f", 1000), ("g", 301), ("h", 600)];
    let batch = batch(columns.map(|(name, first)| (name, from(first) as ArrayRef)).to_vec());
    let props = props(Compression::SNAPPY, WriterVersion::PARQUET_2_0, false).set_data_page_row_count_limit(50);
    let file = write(&batch, props.set_write_batch_size(50).build());
    for batch_rows in [1000, 333, 64, 1] {
        assert_eq!(compare(&file, batch_rows, "one by one"), columns.map(|(_, first)| first == 1000));
    }
}

#[test]
fn other_encodings_are_the_crates() {
    let batch = batch(regular());
    let encodings =
        [("i64", Encoding::DELTA_BINARY_PACKED), ("f64", Encoding::BYTE_STREAM_SPLIT), ("bool", Encoding::RLE)];
    let mut props = props(Compression::SNAPPY, WriterVersion::PARQUET_2_0, false);
    for (name, encoding) in encodings {
        props = props.set_column_encoding(ColumnPath::from(name), encoding);
    }
    let paged = compare(&write(&batch, props.build()), 100, "encodings");
    let by_name = |name: &str| paged[batch.schema().index_of(name).unwrap()];
    assert!(encodings.iter().all(|(name, _)| !by_name(name)));
    assert!(by_name("vector") && by_name("deep"));
}

#[test]
fn no_rows_are_no_batches() {
    let none = batch(regular()).slice(0, 0);
    assert!(compare(&write(&none, WriterProperties::default()), 10, "empty").len() <= none.num_columns());
}
