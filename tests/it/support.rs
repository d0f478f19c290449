//! Small recordings, built row by row, and what the binary makes of them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, FixedSizeListArray, Float32Array, Float64Array, Int32Array, Int64Array,
    ListArray, RecordBatch, StringArray,
};
use arrow::compute::concat_batches;
use arrow::datatypes::{Field, Float32Type, Schema};
use parquet::arrow::ArrowWriter;
use serde_json::Value;
use tempfile::TempDir;

use crate::cli::{gristmill, stderr, stdout};

/// Columns of one file, by name.
pub type Columns = Vec<(&'static str, ArrayRef)>;

pub fn f64s(values: &[f64]) -> ArrayRef {
    Arc::new(Float64Array::from(values.to_vec()))
}

pub fn f32s(values: &[f32]) -> ArrayRef {
    Arc::new(Float32Array::from(values.to_vec()))
}

pub fn i64s(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

/// `None` where the action is null.
pub fn i32s(values: &[Option<i32>]) -> ArrayRef {
    Arc::new(Int32Array::from(values.to_vec()))
}

pub fn bools(values: &[bool]) -> ArrayRef {
    Arc::new(BooleanArray::from(values.to_vec()))
}

pub fn texts(values: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

pub fn binaries(values: &[&[u8]]) -> ArrayRef {
    Arc::new(BinaryArray::from(values.to_vec()))
}

/// One list of floats a row, of any lengths; `None` where the row is null.
pub fn lists(rows: &[Option<&[f32]>]) -> ArrayRef {
    let rows = rows.iter().map(|row| row.map(|row| row.iter().map(|v| Some(*v)).collect::<Vec<_>>()));
    Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))
}

/// The same as fixed-size lists.
pub fn fixed(rows: &[[f32; 2]]) -> ArrayRef {
    let rows = rows.iter().map(|row| Some(row.iter().map(|v| Some(*v)).collect::<Vec<_>>()));
    Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(rows, 2))
}

/// The observations `[i, i + 0.5]` of rows `from..to`.
pub fn obs(from: u8, to: u8) -> ArrayRef {
    let rows: Vec<[f32; 2]> = (from..to).map(|i| [f32::from(i), f32::from(i) + 0.5]).collect();
    lists(&rows.iter().map(|r| Some(r.as_slice())).collect::<Vec<_>>())
}

/// Two episodes, `a` and `b`, of three steps each; both terminate.
pub fn steps() -> Columns {
    episodes("a", "b")
}

/// [`steps`] under other ids.
pub fn episodes(first: &str, second: &str) -> Columns {
    vec![
        ("eps_id", texts(&[first, first, first, second, second, second])),
        ("t", i64s(&[0, 1, 2, 0, 1, 2])),
        ("obs", obs(0, 6)),
        ("actions", i32s(&[0, 1, 2, 3, 4, 5].map(Some))),
        ("rewards", f64s(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])),
        ("terminateds", bools(&[false, false, true, false, false, true])),
        ("truncateds", bools(&[false; 6])),
    ]
}

/// `columns` with one replaced or added.
pub fn with(mut columns: Columns, name: &'static str, array: ArrayRef) -> Columns {
    match columns.iter_mut().find(|(n, _)| *n == name) {
        Some((_, old)) => *old = array,
        None => columns.push((name, array)),
    }
    columns
}

/// `columns` without some.
pub fn without(mut columns: Columns, names: &[&str]) -> Columns {
    columns.retain(|(n, _)| !names.contains(n));
    columns
}

pub fn batch<N: AsRef<str>>(columns: Vec<(N, ArrayRef)>) -> RecordBatch {
    let fields: Vec<Field> = columns.iter().map(|(n, a)| Field::new(n.as_ref(), a.data_type().clone(), true)).collect();
    let arrays = columns.into_iter().map(|(_, a)| a).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).expect("columns of one length")
}

/// Rows in another order or number: `rows` by position.
pub fn take(batch: &RecordBatch, rows: &[usize]) -> RecordBatch {
    let one_by_one: Vec<RecordBatch> = rows.iter().map(|&i| batch.slice(i, 1)).collect();
    concat_batches(&batch.schema(), &one_by_one).expect("rows of one schema")
}

/// A working directory with recordings in `in/`.
pub struct Work {
    dir: TempDir,
}

impl Work {
    pub fn new() -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        std::fs::create_dir(dir.path().join("in")).expect("a new directory");
        Self { dir }
    }

    /// One file `in/a.parquet`.
    pub fn of(columns: Columns) -> Self {
        let work = Self::new();
        work.parquet("a.parquet", &[batch(columns)]);
        work
    }

    /// One file `in/a.parquet` with a row group a batch.
    pub fn of_batches(row_groups: &[RecordBatch]) -> Self {
        let work = Self::new();
        work.parquet("a.parquet", row_groups);
        work
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn input(&self, name: &str) -> PathBuf {
        self.path().join("in").join(name)
    }

    /// A Parquet file with a row group a batch.
    pub fn parquet(&self, name: &str, row_groups: &[RecordBatch]) {
        let file = File::create(self.input(name)).expect("a new file");
        let mut writer = ArrowWriter::try_new(file, row_groups[0].schema(), None).expect("a Parquet writer");
        for rows in row_groups {
            writer.write(rows).expect("rows are written");
            writer.flush().expect("a row group ends");
        }
        writer.close().expect("the file ends");
    }

    /// An Arrow IPC file with a record batch a batch.
    pub fn arrow(&self, name: &str, batches: &[RecordBatch]) {
        let file = File::create(self.input(name)).expect("a new file");
        let mut writer = arrow::ipc::writer::FileWriter::try_new(file, &batches[0].schema()).expect("an IPC writer");
        for rows in batches {
            writer.write(rows).expect("rows are written");
        }
        writer.finish().expect("the file ends");
    }

    /// `convert` of all of `in/` into `out/`, with `job`'s lines (the tables `[input]` and what follows).
    pub fn convert_job(&self, job: &str, more: &[&str]) -> Output {
        std::fs::write(self.path().join("job.toml"), job).expect("the job is written");
        let mut args = vec!["convert", "job.toml", "--input", "in", "--output", "out"];
        args.extend(more);
        gristmill(&args, self.path())
    }

    /// `convert` without a job.
    pub fn convert(&self) -> Output {
        self.convert_with(&[])
    }

    pub fn convert_with(&self, more: &[&str]) -> Output {
        let mut args = vec!["convert", "--input", "in", "--output", "out"];
        args.extend(more);
        gristmill(&args, self.path())
    }

    /// What a conversion that must fail with `code` says. Nothing that looks finished may be left.
    pub fn refused(&self, code: i32, output: &Output) -> String {
        let text = stderr(output);
        assert_eq!(output.status.code(), Some(code), "{text}{}", stdout(output));
        assert!(stdout(output).is_empty(), "{}", stdout(output));
        assert!(text.starts_with("error: "), "{text}");
        for word in ["panicked", "RUST_BACKTRACE", "has a bug", "internal"] {
            assert!(!text.contains(word), "{text}");
        }
        assert!(!self.path().join("out/manifest.json").exists());
        text
    }

    /// [`Self::refused`] by `convert` without a job, with every one of `told` in the message.
    pub fn refuses(&self, code: i32, told: &[&str]) {
        contains(&self.refused(code, &self.convert()), told);
    }

    /// The manifest after a conversion that must succeed.
    pub fn manifest_of(&self, output: &Output) -> Value {
        assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
        let text = std::fs::read(self.path().join("out/manifest.json")).expect("a manifest");
        serde_json::from_slice(&text).expect("the manifest is JSON")
    }

    pub fn manifest(&self) -> Value {
        self.manifest_of(&self.convert())
    }

    /// The rows of the only module.
    pub fn rows(&self) -> RecordBatch {
        read_shards(&self.path().join("out/default_policy"))
    }
}

pub fn contains(text: &str, told: &[&str]) {
    for part in told {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

/// The digest that does not depend on how the data set is cut.
pub fn content(manifest: &Value) -> String {
    manifest["content_digest"].as_str().expect("a digest").to_owned()
}

/// All shards of a module as one batch, in the order of their names.
pub fn read_shards(dir: &Path) -> RecordBatch {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(dir).expect("a module").map(|e| e.expect("a file").path()).collect();
    paths.sort();
    let mut batches = Vec::new();
    for path in &paths {
        let file = File::open(path).expect("a shard");
        if path.extension().is_some_and(|e| e == "arrow") {
            batches
                .extend(arrow::ipc::reader::FileReader::try_new(file, None).expect("an IPC file").map(Result::unwrap));
        } else {
            let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file);
            batches.extend(reader.expect("a Parquet file").build().expect("a reader").map(Result::unwrap));
        }
    }
    concat_batches(&batches[0].schema(), &batches).expect("shards of one schema")
}

/// A column as text, for short comparisons: `[0.0, 0.5] [1.0, 1.5]`.
pub fn shown(rows: &RecordBatch, column: &str) -> String {
    let array = rows.column_by_name(column).unwrap_or_else(|| panic!("no column {column}"));
    let format = arrow::util::display::FormatOptions::default();
    let values = arrow::util::display::ArrayFormatter::try_new(array, &format).expect("a printable column");
    (0..array.len()).map(|i| values.value(i).to_string()).collect::<Vec<_>>().join(" ")
}
