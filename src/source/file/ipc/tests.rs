use std::fs;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, BinaryArray, BooleanArray, Decimal128Array, DictionaryArray, FixedSizeBinaryArray,
    FixedSizeListArray, Float32Array, Int32Array, Int64Array, LargeListArray, LargeStringArray, ListArray,
    ListViewArray, MapBuilder, NullArray, RecordBatch, RunArray, StringArray, StringBuilder, StringViewArray,
    StructArray, UnionArray,
};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Int8Type, Int32Type, UnionFields};
use arrow::ipc::writer::{DictionaryHandling, FileWriter, IpcWriteOptions, StreamWriter};
use arrow::ipc::{CompressionType, MetadataVersion};

use super::super::InputFile;

const ROWS: usize = 200;

fn numbers(first: usize) -> Int32Array {
    (first..first + ROWS).map(|i| (i % 5 > 0).then(|| i32::try_from(i).unwrap())).collect()
}

fn words(first: usize) -> Vec<Option<String>> {
    (first..first + ROWS).map(|i| (i % 7 > 0).then(|| "w".repeat(i % 40) + &i.to_string())).collect()
}

fn union(first: usize, dense: bool) -> UnionArray {
    let fields =
        UnionFields::try_new([0, 1], [Field::new("a", DataType::Int32, true), Field::new("b", DataType::Utf8, true)]);
    let ids: ScalarBuffer<i8> = (0..ROWS).map(|i| i8::from(i % 3 == 0)).collect();
    let offsets: Option<ScalarBuffer<i32>> = dense.then(|| (0..i32::try_from(ROWS).unwrap()).collect());
    let children: Vec<ArrayRef> = vec![Arc::new(numbers(first)), Arc::new(StringArray::from(words(first)))];
    UnionArray::try_new(fields.unwrap(), ids, offsets, children).unwrap()
}

/// A column of every type, most of them with nulls.
fn batch(first: usize) -> RecordBatch {
    let words = words(first);
    let texts = || words.iter().map(|word| word.as_deref());
    let lists =
        || (first..first + ROWS).map(|i| (i % 11 > 0).then(move || (0..i % 4).map(move |k| i32::try_from(i + k).ok())));
    let item = Arc::new(Field::new_list_field(DataType::Int32, true));
    let fixed = FixedSizeListArray::new(
        Arc::new(Field::new_list_field(DataType::Float32, true)),
        4,
        Arc::new((0..ROWS * 4).map(|i| (first + i) as f32).collect::<Float32Array>()),
        Some((0..ROWS).map(|i| i % 13 > 0).collect::<NullBuffer>()),
    );
    let mut map = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    for word in &words {
        map.keys().append_value("key");
        map.values().append_option(word.as_deref());
        map.append(word.is_some()).unwrap();
    }
    let nested = StructArray::from(vec![
        (Arc::new(Field::new("text", DataType::Utf8, true)), Arc::new(texts().collect::<StringArray>()) as ArrayRef),
        (Arc::new(Field::new("n", DataType::Int32, true)), Arc::new(numbers(first)) as ArrayRef),
    ]);
    let view = ListViewArray::try_new(
        item,
        (0..i32::try_from(ROWS).unwrap()).collect(),
        vec![1; ROWS].into(),
        Arc::new(numbers(first)),
        None,
    );
    let runs: RunArray<Int32Type> = (0..ROWS).map(|i| ["left", "right"][i / 9 % 2]).collect();
    let dictionary: DictionaryArray<Int8Type> =
        (0..ROWS).map(|i| (i % 6 > 0).then(|| ["x", "y", "a longer word than views hold"][i % 3])).collect();
    let bytes: Vec<Option<&[u8]>> = texts().map(|t| t.map(str::as_bytes)).collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("null", Arc::new(NullArray::new(ROWS))),
        ("bool", Arc::new((0..ROWS).map(|i| (i % 4 > 0).then_some(i % 3 == 0)).collect::<BooleanArray>())),
        ("utf8", Arc::new(texts().collect::<StringArray>())),
        ("int", Arc::new(numbers(first))),
        ("decimal", Arc::new((0..i128::try_from(ROWS).unwrap()).map(Some).collect::<Decimal128Array>())),
        ("view", Arc::new(texts().collect::<StringViewArray>())),
        ("large", Arc::new(texts().collect::<LargeStringArray>())),
        ("binary", Arc::new(BinaryArray::from(bytes))),
        (
            "uuid",
            Arc::new(FixedSizeBinaryArray::try_from_iter((0..ROWS).map(|i| [u8::try_from(i).unwrap(); 16])).unwrap()),
        ),
        ("list", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists()))),
        ("large_list", Arc::new(LargeListArray::from_iter_primitive::<Int32Type, _, _>(lists()))),
        ("obs", Arc::new(fixed)),
        ("struct", Arc::new(nested)),
        ("map", Arc::new(map.finish())),
        ("list_view", Arc::new(view.unwrap())),
        ("runs", Arc::new(runs)),
        ("dense", Arc::new(union(first, true))),
        ("sparse", Arc::new(union(first, false))),
        ("dictionary", Arc::new(dictionary)),
        ("t", Arc::new((0..i64::try_from(ROWS).unwrap()).collect::<Int64Array>())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
}

#[test]
fn any_columns_are_those_of_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let batches = [batch(0), batch(1000)];
    let names: Vec<String> = batches[0].schema().fields().iter().map(|f| f.name().clone()).collect();
    let mut chosen: Vec<Vec<String>> = names.iter().map(|name| vec![name.clone()]).collect();
    chosen.extend([vec![], names.clone()]);
    chosen.extend((2..9).map(|step| names.iter().step_by(step).cloned().collect()));
    for (compression, stream) in [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)]
        .into_iter()
        .flat_map(|c| [(c, true), (c, false)])
    {
        let options = IpcWriteOptions::try_new(64, false, MetadataVersion::V5).unwrap();
        let options = options.try_with_compression(compression).unwrap();
        let mut bytes = Vec::new();
        if stream {
            let mut writer = StreamWriter::try_new_with_options(&mut bytes, &batches[0].schema(), options).unwrap();
            for batch in &batches {
                writer.write(batch).unwrap();
            }
            writer.finish().unwrap();
        } else {
            let mut writer = FileWriter::try_new_with_options(&mut bytes, &batches[0].schema(), options).unwrap();
            for batch in &batches {
                writer.write(batch).unwrap();
            }
            writer.finish().unwrap();
        }
        let path = dir.path().join("a.arrow");
        fs::write(&path, bytes).unwrap();
        let file = Arc::new(InputFile::open(&path).unwrap());
        for (columns, (group, all)) in chosen.iter().flat_map(|c| batches.iter().enumerate().map(move |b| (c, b))) {
            let read: Vec<RecordBatch> = file.read(group, columns, 64).unwrap().map(Result::unwrap).collect();
            let own = arrow::compute::concat_batches(&read[0].schema(), &read);
            // What has no way to be joined is compared piece by piece.
            let found = own.unwrap_or_else(|_| file.read(group, columns, ROWS).unwrap().next().unwrap().unwrap());
            assert_eq!(found.num_rows(), ROWS);
            assert_eq!(found.num_columns(), columns.len());
            for name in columns {
                let (found, expected) = (found.column_by_name(name).unwrap(), all.column_by_name(name).unwrap());
                assert_eq!(
                    found.as_ref(),
                    expected.as_ref(),
                    "{name} of {columns:?}, {compression:?}, stream: {stream}"
                );
            }
        }
    }
}

#[test]
fn a_stream_may_write_its_dictionaries_anew() {
    let dir = tempfile::tempdir().unwrap();
    let words = |from: usize, n: usize| -> DictionaryArray<Int32Type> {
        (0..n).map(|i| format!("word {}", from + i % 3)).collect::<Vec<_>>().iter().map(String::as_str).collect()
    };
    for handling in [DictionaryHandling::Resend, DictionaryHandling::Delta] {
        let options = IpcWriteOptions::default().with_dictionary_handling(handling);
        let batch = |i: usize| {
            let other: ArrayRef = Arc::new(words(1000 * i, 10));
            RecordBatch::try_from_iter([("a", Arc::new(words(i, 10)) as ArrayRef), ("b", other)]).unwrap()
        };
        let mut bytes = Vec::new();
        let mut writer = StreamWriter::try_new_with_options(&mut bytes, &batch(0).schema(), options).unwrap();
        for i in 0..20 {
            writer.write(&batch(i)).unwrap();
        }
        writer.finish().unwrap();
        drop(writer);
        let path = dir.path().join("a.arrows");
        fs::write(&path, bytes).unwrap();
        let file = Arc::new(InputFile::open(&path).unwrap());
        assert_eq!(file.row_groups.len(), 20);
        for i in [0, 7, 19] {
            for columns in [vec!["a"], vec!["b"], vec!["a", "b"]] {
                let columns: Vec<String> = columns.into_iter().map(str::to_owned).collect();
                let read = file.read(i, &columns, 100).unwrap().next().unwrap().unwrap();
                for name in &columns {
                    let plain = |batch: &RecordBatch| {
                        let column = batch.column_by_name(name).unwrap();
                        arrow::compute::cast(column, &DataType::Utf8).unwrap().as_string::<i32>().clone()
                    };
                    assert_eq!(plain(&read), plain(&batch(i)), "{name} of batch {i}");
                }
            }
        }
    }
}
