use std::fs;

use ::parquet::arrow::ArrowWriter;
use ::parquet::basic::Compression;
use ::parquet::column::writer::ColumnCloseResult;
use ::parquet::file::metadata::ParquetMetaDataReader;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use arrow::array::{Array, ArrayRef, AsArray, DictionaryArray, Float32Array, Int64Array, ListArray};
use arrow::datatypes::{Field, Int32Type, Int64Type, Schema};
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use bytes::Bytes;
use tempfile::TempDir;

use super::*;

const ROWS: i64 = 10;

/// Ten rows: `t` 0..10, `obs` of two floats with an extension type, `who` as a dictionary.
fn batch() -> RecordBatch {
    let t: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
    let rows = (0..10u8).map(|i| Some([Some(f32::from(i)), Some(0.5)]));
    let obs: ArrayRef = Arc::new(ListArray::from_iter_primitive::<arrow::datatypes::Float32Type, _, _>(rows));
    let who: DictionaryArray<Int32Type> = (0..10).map(|i| if i % 2 == 0 { "even" } else { "odd" }).collect();
    let who: ArrayRef = Arc::new(who);
    let metadata = [("ARROW:extension:name", "ray.data.arrow_tensor"), ("ARROW:extension:metadata", "[2]")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()));
    let schema = Schema::new(vec![
        Field::new("t", t.data_type().clone(), false),
        Field::new("obs", obs.data_type().clone(), true).with_metadata(metadata),
        Field::new("who", who.data_type().clone(), true),
    ]);
    RecordBatch::try_new(Arc::new(schema), vec![t, obs, who]).unwrap()
}

fn parquet_bytes(batches: &[RecordBatch], group_rows: usize, compression: Compression) -> Vec<u8> {
    let properties =
        WriterProperties::builder().set_max_row_group_row_count(Some(group_rows)).set_compression(compression).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch().schema(), Some(properties)).unwrap();
    for batch in batches {
        writer.write(batch).unwrap();
    }
    writer.into_inner().unwrap()
}

fn written(name: &str, bytes: &[u8]) -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, bytes).unwrap();
    (dir, path)
}

fn open(name: &str, bytes: &[u8]) -> Result<(TempDir, Arc<InputFile>)> {
    let (dir, path) = written(name, bytes);
    InputFile::open_in(&path, dir.path()).map(|f| (dir, Arc::new(f)))
}

fn names(columns: &[&str]) -> Vec<String> {
    columns.iter().map(|&c| c.to_owned()).collect()
}

fn read_all(file: &Arc<InputFile>, columns: &[&str], batch_rows: usize) -> Result<Vec<RecordBatch>> {
    let mut out = Vec::new();
    for g in 0..file.row_groups.len() {
        for batch in file.read(g, &names(columns), batch_rows)? {
            out.push(batch?);
        }
    }
    Ok(out)
}

fn arrow_bytes(stream: bool) -> Vec<u8> {
    let (one, two) = (batch().slice(0, 4), batch().slice(4, 6));
    if stream {
        let mut writer = StreamWriter::try_new(Vec::new(), &batch().schema()).unwrap();
        writer.write(&one).unwrap();
        writer.write(&two).unwrap();
        writer.into_inner().unwrap()
    } else {
        let options =
            IpcWriteOptions::default().try_with_compression(Some(arrow::ipc::CompressionType::LZ4_FRAME)).unwrap();
        let mut writer = FileWriter::try_new_with_options(Vec::new(), &batch().schema(), options).unwrap();
        writer.write(&one).unwrap();
        writer.write(&two).unwrap();
        writer.into_inner().unwrap()
    }
}

#[test]
fn all_formats_have_one_face() {
    for (name, format, bytes) in [
        ("a.parquet", FileFormat::Parquet, parquet_bytes(&[batch()], 4, Compression::SNAPPY)),
        ("a.feather", FileFormat::ArrowFile, arrow_bytes(false)),
        ("a.arrows", FileFormat::ArrowStream, arrow_bytes(true)),
    ] {
        let (_dir, file) = open(name, &bytes).unwrap();
        assert_eq!((file.name.as_str(), file.format, file.rows(), &file.note), (name, format, 10, &None));
        let groups: Vec<(usize, u64)> = file.row_groups.iter().map(|g| (g.rows, g.first_row)).collect();
        match format {
            FileFormat::Parquet => assert_eq!(groups, [(4, 0), (4, 4), (2, 8)]),
            _ => assert_eq!(groups, [(4, 0), (6, 4)]),
        }
        assert!(file.row_groups.iter().all(|g| g.bytes > 0));
        let field = file.schema.field_with_name("obs").unwrap();
        assert_eq!(field.extension_type_name(), Some("ray.data.arrow_tensor"));
        assert_eq!(field.extension_type_metadata(), Some("[2]"));

        // Columns asked for in any order come in the file's, with their fields as they are in the file.
        let batches = read_all(&file, &["who", "obs", "obs"], 3).unwrap();
        assert!(batches.iter().all(|b| b.num_rows() <= 3 && b.num_columns() == 2));
        assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 10);
        assert_eq!(batches[0].schema().field(0), field);
        let last = batches.last().unwrap().column(0).as_list::<i32>();
        let values = last.value(last.len() - 1);
        assert_eq!(values.as_any().downcast_ref::<Float32Array>().unwrap().values(), &[9., 0.5]);

        let none = read_all(&file, &[], 100).unwrap();
        assert!(none.iter().all(|b| b.num_columns() == 0));
        assert_eq!(none.iter().map(RecordBatch::num_rows).sum::<usize>(), 10);

        assert!(file.read(9, &[], 1).is_err() && file.read(0, &names(&["nope"]), 1).is_err());
        assert_eq!(file.digest().unwrap(), format!("blake3:{}", blake3::hash(&bytes).to_hex()));
    }
}

#[test]
fn a_row_group_is_read_by_itself_and_from_any_thread() {
    let (_dir, file) = open("a.parquet", &parquet_bytes(&[batch()], 4, Compression::UNCOMPRESSED)).unwrap();
    let reader = file.read(1, &names(&["t"]), 100).unwrap();
    let batches: Vec<RecordBatch> = std::thread::spawn(move || reader.collect::<Result<_>>()).join().unwrap().unwrap();
    assert_eq!(batches[0].column(0).as_primitive::<Int64Type>().values(), &[4, 5, 6, 7]);
}

#[test]
fn files_without_rows_are_fine() {
    for bytes in
        [parquet_bytes(&[], 4, Compression::SNAPPY), parquet_bytes(&[batch().slice(0, 0)], 4, Compression::SNAPPY)]
    {
        let (_dir, file) = open("a.parquet", &bytes).unwrap();
        assert_eq!((file.rows(), read_all(&file, &["t"], 10).unwrap().len()), (0, 0));
    }
    let mut writer = FileWriter::try_new(Vec::new(), &batch().schema()).unwrap();
    writer.write(&batch().slice(0, 0)).unwrap();
    let (_dir, file) = open("a.arrow", &writer.into_inner().unwrap()).unwrap();
    assert_eq!((file.row_groups.len(), file.rows(), read_all(&file, &["t"], 10).unwrap().len()), (1, 0, 0));
}

fn error(name: &str, bytes: &[u8]) -> Error {
    let e = open(name, bytes).and_then(|(_dir, file)| read_all(&file, &["t", "obs", "who"], 4).map(drop)).unwrap_err();
    assert_eq!(e.place().file.as_deref(), Some(name), "{e}");
    assert_eq!(e.kind(), Kind::Usage, "{e}");
    e
}

#[test]
fn what_is_no_data_file_is_told() {
    let whole = parquet_bytes(&[batch()], 4, Compression::SNAPPY);
    assert!(error("a.parquet", b"").what().contains("empty (0 bytes)"));
    assert!(error("a.parquet", b"eps_id,obs\n").what().contains("found text"));
    assert!(error("a.parquet", b"{\"eps_id\": 1}").what().contains("found JSON"));
    assert!(error("a.parquet", &[0, 1, 2, 3]).what().contains("no `PAR1`"));
    assert!(error("a.feather", b"FEA1....").what().contains("Feather version 1"));
    let e = error("a.parquet", &whole[..whole.len() - 4]);
    assert!(e.what().contains("cut off") && e.hint_text().unwrap().contains("killed"), "{e}");
    assert!(error("a.parquet", b"PAR1").what().contains("cut off"));
    for cut in [10, 100] {
        let arrow = arrow_bytes(false);
        assert!(error("a.arrow", &arrow[..arrow.len() - cut]).what().contains("cut off"));
        let arrow = arrow_bytes(true);
        assert!(error("a.arrows", &arrow[..arrow.len() - cut]).what().contains("cut off"));
    }
    let dir = TempDir::new().unwrap();
    assert!(InputFile::open(dir.path()).unwrap_err().what().contains("directory"));
    assert!(InputFile::open(&dir.path().join("none.parquet")).is_err());
}

#[test]
fn bytes_missing_in_the_middle_are_noticed_when_opening() {
    // The footer is whole, the pages before it are not.
    let whole = parquet_bytes(&[batch()], 100, Compression::SNAPPY);
    let footer = u32::from_le_bytes(whole[whole.len() - 8..whole.len() - 4].try_into().unwrap()) as usize + 8;
    let torn = [&whole[..8], &whole[whole.len() - footer..]].concat();
    let e = error("a.parquet", &torn);
    assert!(e.what().contains("damaged"), "{e}");
}

#[test]
fn damage_anywhere_is_an_error_or_harmless_but_never_a_panic() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !in_guard() {
            quiet(info);
        }
    }));
    let files = [
        ("a.parquet", parquet_bytes(&[batch()], 4, Compression::ZSTD(::parquet::basic::ZstdLevel::default()))),
        ("b.parquet", parquet_bytes(&[batch()], 100, Compression::UNCOMPRESSED)),
        ("a.arrow", arrow_bytes(false)),
        ("a.arrows", arrow_bytes(true)),
    ];
    let dir = TempDir::new().unwrap();
    for (name, whole) in files {
        let path = dir.path().join(name);
        let mut noticed = 0;
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= [0xff, 0x80, 0x01][at % 3];
            fs::write(&path, &bytes).unwrap();
            let read = InputFile::open_in(&path, dir.path())
                .and_then(|file| read_all(&Arc::new(file), &["t", "obs", "who"], 4).map(drop));
            if let Err(e) = read {
                noticed += 1;
                assert_eq!(e.place().file.as_deref(), Some(name), "byte {at}: {e}");
            }
        }
        assert!(noticed > 0, "{name}");
    }
}

/// One column `t`, its only page with a checksum, which the crate reads and does not write.
fn with_checksum() -> Vec<u8> {
    fn varint(mut n: u32) -> Vec<u8> {
        let mut out = Vec::new();
        while n >= 0x80 {
            out.push(u8::try_from(n & 0x7f).unwrap() | 0x80);
            n >>= 7;
        }
        out.push(u8::try_from(n).unwrap());
        out
    }
    let t: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
    let batch = RecordBatch::try_from_iter([("t", t)]).unwrap();
    let properties = Arc::new(WriterProperties::builder().set_dictionary_enabled(false).build());
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some((*properties).clone())).unwrap();
    writer.write(&batch).unwrap();
    let plain = Bytes::from(writer.into_inner().unwrap());

    // Header (Thrift, compact): type, sizes uncompressed and compressed, [checksum,] data page header ..
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&plain).unwrap();
    let chunk = metadata.row_group(0).column(0);
    let (start, len) = chunk.byte_range();
    let (start, len) = (usize::try_from(start).unwrap(), usize::try_from(len).unwrap());
    let page = &plain[start..start + len];
    let mut at = 0;
    for _ in 0..3 {
        assert_eq!(page[at], 0x15, "the next field, an i32");
        at += 2 + page[at + 1..].iter().take_while(|b| **b >= 0x80).count();
    }
    assert_eq!(page[at], 0x2c, "the field after the next, a struct");
    let body = &page[page.len() - chunk_body(page)..];
    let mut crc = !0u32;
    for byte in body {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    let crc = (!crc).cast_signed();
    let zigzag = ((crc << 1) ^ (crc >> 31)).cast_unsigned();
    let page = [&page[..at], &[0x15], &varint(zigzag), &[0x1c], &page[at + 1..]].concat();

    let size = i64::try_from(page.len()).unwrap();
    let chunk = chunk.clone().into_builder().set_data_page_offset(0).set_total_compressed_size(size).build().unwrap();
    let schema = metadata.file_metadata().schema_descr().root_schema_ptr();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let close = ColumnCloseResult {
        bytes_written: page.len() as u64,
        rows_written: 10,
        metadata: chunk,
        bloom_filter: None,
        column_index: None,
        offset_index: None,
    };
    group.append_column(&Bytes::from(page), close).unwrap();
    group.close().unwrap();
    writer.into_inner().unwrap()
}

/// The size of a page without its header, out of the header.
fn chunk_body(page: &[u8]) -> usize {
    // type (one byte), then the size in zigzag, of which the page has less than 8192.
    let low = usize::from(page[3]);
    let zigzag = if low < 0x80 { low } else { (low & 0x7f) | usize::from(page[4]) << 7 };
    zigzag / 2
}

#[test]
fn a_flipped_byte_in_a_page_with_a_checksum_is_found() {
    let whole = with_checksum();
    let (_dir, file) = open("a.parquet", &whole).unwrap();
    assert_eq!(read_all(&file, &["t"], 100).unwrap()[0].num_rows(), 10);
    let mut other = whole;
    let at = other.windows(8).position(|w| w == 5i64.to_le_bytes()).unwrap();
    other[at] ^= 0x40;
    let (_dir, file) = open("a.parquet", &other).unwrap();
    let e = read_all(&file, &["t"], 100).unwrap_err();
    assert!(e.what().contains("checksum"), "{e}");
    assert_eq!((e.place().row_group, e.place().file.as_deref()), (Some(0), Some("a.parquet")));
}

#[test]
fn a_broken_arrow_schema_inside_parquet_is_ignored() {
    let mut bytes = parquet_bytes(&[batch()], 100, Compression::SNAPPY);
    let key = b"ARROW:schema";
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 4;
    bytes[at..at + 40].fill(b'!');
    let (_dir, file) = open("a.parquet", &bytes).unwrap();
    assert!(file.note.as_ref().is_some_and(|n| n.contains("Arrow schema")), "{:?}", file.note);
    assert_eq!(read_all(&file, &["t", "obs"], 100).unwrap()[0].num_rows(), 10);
}

#[test]
fn inputs_are_files_globs_and_directories() {
    let dir = TempDir::new().unwrap();
    let base = dir.path();
    for path in [
        "b.parquet",
        "a.parquet",
        "sub/c.arrow",
        "sub/_SUCCESS",
        "sub/notes.txt",
        ".hidden/d.parquet",
        "we[i]rd.parquet",
    ] {
        let path = base.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    let found = |patterns: &[&str]| -> Vec<String> {
        discover(&names(patterns), base)
            .unwrap()
            .files
            .iter()
            .map(|p| p.strip_prefix(base).unwrap().display().to_string())
            .collect()
    };
    assert_eq!(found(&["."]), ["a.parquet", "b.parquet", "sub/c.arrow", "we[i]rd.parquet"]);
    assert_eq!(found(&["*.parquet", "b.parquet", "./a.parquet"]), ["a.parquet", "b.parquet", "we[i]rd.parquet"]);
    assert_eq!(found(&["**/*.arrow"]), ["sub/c.arrow"]);
    assert_eq!(found(&["we[i]rd.parquet"]), ["we[i]rd.parquet"]);
    assert_eq!(found(&["sub/*.txt"]), ["sub/notes.txt"], "an extension spelled out is meant");
    assert_eq!(found(&["s*"]), ["sub/c.arrow"]);
    let absolute = base.join("a.parquet").display().to_string();
    assert_eq!(found(&[&absolute]), ["a.parquet"]);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(base.join("sub"), base.join("sub/circle")).unwrap();
        assert_eq!(found(&["sub"]), ["sub/c.arrow"]);
    }
}

#[test]
fn data_sets_are_no_recordings() {
    let dir = TempDir::new().unwrap();
    let base = dir.path();
    for (path, text) in [
        ("logs/a.parquet", ""),
        ("logs/shards/manifest.json", "{\"gristmill\": \"0.1.0\", \"modules\": {}}"),
        ("logs/shards/default_policy/part-00000.parquet", ""),
        ("logs/shards/quarantine/rows/part-00000.parquet", ""),
        ("logs/open/.gristmill-unfinished", ""),
        ("logs/open/default_policy/part-00000.parquet", ""),
        ("logs/theirs/manifest.json", "{\"version\": 3}"),
        ("logs/theirs/b.parquet", ""),
    ] {
        let path = base.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let of = |pattern: &str| discover(&names(&[pattern]), base).unwrap();
    let shown = |paths: &[PathBuf]| -> Vec<String> {
        paths.iter().map(|p| p.strip_prefix(base).unwrap().display().to_string()).collect()
    };
    for pattern in ["logs", "l*", "logs/**/*.parquet", "**/*.parquet", "logs/*"] {
        let found = of(pattern);
        assert_eq!(shown(&found.files), ["logs/a.parquet", "logs/theirs/b.parquet"], "{pattern}");
        assert_eq!(shown(&found.passed_over), ["logs/open", "logs/shards"], "{pattern}");
        assert!(found.named.is_empty() && found.spelled_out.is_empty(), "{pattern}");
    }
    for (pattern, set) in [("logs/shards", "logs/shards"), ("logs/open/*/*.parquet", "logs/open")] {
        assert_eq!(shown(&of(pattern).named), [set], "{pattern}");
    }
    let shards = "logs/shards/default_policy/part-00000.parquet";
    for pattern in [shards, "logs/shards/default_policy", "logs/shards/default_policy/*.parquet"] {
        let found = of(pattern);
        assert_eq!((shown(&found.files), shown(&found.spelled_out)), (vec![shards.into()], vec!["logs/shards".into()]));
    }
    let repaired = of("logs/shards/quarantine/rows");
    assert_eq!((repaired.files.len(), repaired.spelled_out.len()), (1, 0));
    fs::remove_file(base.join("logs/a.parquet")).unwrap();
    let error = discover(&names(&["logs/*/*/*.parquet"]), base).unwrap_err();
    assert!(error.what().contains("found no recording in logs/*/*/*.parquet"), "{error}");
}

#[test]
fn inputs_that_are_not_there_are_told_with_what_is() {
    let dir = TempDir::new().unwrap();
    let base = dir.path();
    fs::create_dir(base.join("empty")).unwrap();
    fs::write(base.join("runs.parquet"), "").unwrap();
    fs::write(base.join("empty.txt"), "").unwrap();
    let e = |pattern: &str| discover(&names(&[pattern]), base).unwrap_err();
    let missing = e("run.parquet");
    assert!(missing.what().contains("no file or directory run.parquet"), "{missing}");
    assert!(missing.what().contains("holds empty, empty.txt, runs.parquet"), "{missing}");
    assert!(missing.hint_text().unwrap().contains("runs.parquet"), "{missing}");
    assert!(e("empty").what().contains("no data files in the directory empty"));
    assert!(e("*.arrow").what().contains("glob `*.arrow` matches nothing"));
    assert!(e("e*.t?t").what().contains("matches nothing but files that are no data files"));
    assert!(e("s3://bucket/x.parquet").what().contains("`s3://` is not built yet"));
    assert!(e("[.parquet").what().contains("is no glob"));
    assert!(discover(&[], base).is_err());
}

/// A list of 2^31 - 1 booleans, to which the parquet crate gives no bytes: in the footer, and in a page header.
#[test]
fn lists_of_elements_without_bytes_are_not_counted_out() {
    let list = [0x09, 0xc8, 0x01, 0xf1, 0xff, 0xff, 0xff, 0xff, 7];
    let whole = parquet_bytes(&[batch()], 100, Compression::UNCOMPRESSED);
    let tail = whole.len() - 8;
    let footer = u32::from_le_bytes(*whole[tail..].first_chunk().unwrap());
    let mut bytes = whole[..tail - 1].to_vec();
    bytes.extend(list.repeat(1000));
    bytes.push(0);
    bytes.extend((footer + u32::try_from(list.len() * 1000).unwrap()).to_le_bytes());
    bytes.extend(b"PAR1");
    let e = error("a.parquet", &bytes);
    assert!(e.what().contains("a list of elements without bytes in its footer"), "{e}");

    let mut bytes = whole;
    bytes[4..4 + list.len()].copy_from_slice(&list);
    let (_dir, file) = open("a.parquet", &bytes).unwrap();
    let e = read_all(&file, &["t"], 100).unwrap_err();
    assert!(e.what().contains("a list of elements without bytes"), "{e}");
    assert_eq!(read_all(&file, &["obs"], 100).unwrap()[0].num_rows(), 10);
}

/// A few bytes of a page stand for any number of a text's, where texts are differences.
#[test]
fn texts_that_are_differences_count_for_more_than_their_bytes() {
    use ::parquet::basic::Encoding;

    let dir = TempDir::new().unwrap();
    let ids: ArrayRef = Arc::new(arrow::array::StringArray::from_iter_values(
        (0..2000).map(|i| format!("{}{}", "p".repeat(10_000), i / 100)),
    ));
    let batch = RecordBatch::try_from_iter([("eps_id", ids)]).unwrap();
    let columns = ["eps_id".to_owned()];
    for (encoding, least, most) in
        [(Encoding::DELTA_BYTE_ARRAY, 2000 * 10_000, u64::MAX), (Encoding::PLAIN, 2000 * 10_000, 2000 * 10_100)]
    {
        let props = WriterProperties::builder().set_dictionary_enabled(false).set_encoding(encoding).build();
        let path = dir.path().join("a.parquet");
        let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), Some(props)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let file = Arc::new(InputFile::open(&path).unwrap());
        let found = file.text_bytes(0, &columns);
        assert!((least..=most).contains(&found), "{encoding}: {found}");
        let read: Vec<RecordBatch> = file.read(0, &columns, 300).unwrap().map(Result::unwrap).collect();
        assert!(read[6].column(0).as_string_view().value(10).ends_with("p18"));
    }
}
