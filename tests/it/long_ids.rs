//! Ids of any length: they cost what they are, and move no value.

use std::fs::File;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::cli::stderr;
use crate::determinism::{cut, files};
use crate::parts;
use crate::support::{Work, batch, bools, contains, content, f64s, i32s, i64s, lists, texts};

/// 40 episodes of 20 to 59 steps; most ids have 9 bytes, some 5,000, and one has 1,500,000. With agents, each row is of one
/// of two, whose names are long, too.
fn recording(agents: bool) -> RecordBatch {
    let long = |i: usize| match i {
        17 => "l".repeat(1_500_000),
        _ if i.is_multiple_of(3) => format!("{i:0>5000}"),
        _ => format!("episode{i:0>2}"),
    };
    let lengths: Vec<usize> = (0..40).map(|i| 20 + i * 7 % 40).collect();
    let names: Vec<String> = (0..40).map(long).collect();
    let ids: Vec<&str> = lengths.iter().zip(&names).flat_map(|(&n, id)| vec![id.as_str(); n]).collect();
    let t: Vec<i64> = lengths.iter().flat_map(|&n| 0..i64::try_from(n).unwrap()).collect();
    let ends: Vec<bool> = lengths.iter().flat_map(|&n| (0..n).map(move |t| t + 1 == n)).collect();
    let obs: Vec<[f32; 2]> = (0..ids.len()).map(|i| [i as f32, (i % 7) as f32]).collect();
    let mut columns = vec![
        ("eps_id", texts(&ids)),
        ("t", i64s(&t)),
        ("obs", lists(&obs.iter().map(|row| Some(row.as_slice())).collect::<Vec<_>>())),
        ("actions", i32s(&(0..ids.len()).map(|i| Some(i32::try_from(i % 5).unwrap())).collect::<Vec<_>>())),
        ("rewards", f64s(&(0..ids.len()).map(|i| i as f64).collect::<Vec<_>>())),
        ("terminateds", bools(&ends)),
    ];
    if agents {
        let names = ["left".repeat(10_000), "right".repeat(20_000)];
        // Whole episodes of one agent or the other, of the same id.
        let of_episode = |i: usize| names[i % 2].as_str();
        let agents: Vec<&str> = lengths.iter().enumerate().flat_map(|(i, &n)| vec![of_episode(i); n]).collect();
        columns.push(("agent_id", texts(&agents)));
    }
    batch(columns)
}

/// The same with text columns of another type.
fn with_texts_as(rows: &RecordBatch, ty: &DataType) -> RecordBatch {
    let column = |array: &ArrayRef| match array.data_type() {
        DataType::Utf8 => cast(array, ty).unwrap(),
        _ => ArrayRef::clone(array),
    };
    batch(rows.schema().fields().iter().map(|f| f.name().clone()).zip(rows.columns().iter().map(column)).collect())
}

fn dictionary() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
}

#[test]
fn however_they_are_written_the_rows_are_the_same() {
    for agents in [false, true] {
        let rows = recording(agents);
        let rules = if agents { "[multi_agent]\nagent_to_module = { '*' = 'all' }\n" } else { "" };
        let mut digest = None;
        let types = [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View, DataType::Binary, dictionary()];
        for (i, ty) in types.iter().enumerate() {
            let work = Work::new();
            let rows = cut(&with_texts_as(&rows, ty), 300);
            if i % 2 == 0 {
                work.parquet("a.parquet", &rows);
            } else {
                work.arrow("a.arrow", &rows);
            }
            let output = if i < 2 { "[output]\nformat = 'arrow'\n" } else { "" };
            let made = work.convert_job(&format!("{rules}{output}"), &["--memory-limit", "512MiB"]);
            let found = content(&work.manifest_of(&made));
            assert_eq!(*digest.get_or_insert_with(|| found.clone()), found, "{ty}");
        }
    }
}

#[test]
fn limit_and_threads_move_no_byte_and_row_groups_stay_small() {
    let work = Work::of_batches(&cut(&recording(false), 300));
    for (job, least) in [("", "96MiB"), ("shuffle = { seed = 3 }\n", "96MiB"), ("format = 'arrow'\n", "192MiB")] {
        let written = |more: &[&str]| {
            let output =
                work.convert_job(&format!("[output]\nrows_per_shard = 700\n{job}"), &[&["--overwrite"], more].concat());
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
            files(&work.path().join("out"))
        };
        let one = written(&["--threads", "1"]);
        for flags in [&["--threads", "4"] as &[&str], &["--threads", "1", "--memory-limit", least]] {
            assert!(written(flags) == one, "{job} {flags:?}");
        }
        if job.contains("arrow") {
            continue;
        }
        let first = one.keys().find(|name| name.ends_with(".parquet")).unwrap();
        let shard = SerializedFileReader::new(File::open(work.path().join("out").join(first)).unwrap()).unwrap();
        let groups = shard.metadata().row_groups();
        // The rows of the longest id would take more than a row group alone, if it were laid out for each of them.
        assert!(groups.iter().all(|g| g.num_rows() < 30), "{} row groups", groups.len());
        // And it is in each of them once.
        let ids = groups.iter().map(|group| group.column(0).uncompressed_size()).max().unwrap();
        assert!(ids < 3 << 20, "{ids}");
    }
    let rows = work.rows();
    let ids = rows.column_by_name("eps_id").unwrap().as_string::<i32>();
    assert_eq!((0..ids.len()).map(|i| ids.value(i).len()).max(), Some(1_500_000));
}

#[test]
fn what_does_not_fit_is_refused_with_what_is_enough() {
    let work = Work::of_batches(&[recording(false)]);
    let output = work.convert_job("[output]\nformat = 'arrow'\n", &["--memory-limit", "64MiB"]);
    let told = work.refused(3, &output);
    contains(&told, &["row groups of the output take", "--memory-limit"]);
    let enough = told.split("--memory-limit ").nth(1).unwrap().split(' ').next().unwrap();
    let output = work.convert_job("[output]\nformat = 'arrow'\n", &["--memory-limit", enough]);
    assert_eq!(output.status.code(), Some(0), "{enough}: {}", stderr(&output));
}

#[test]
fn by_parts_too() {
    let work = Work::of_batches(&cut(&recording(false), 300));
    for text in ["[output]\nrows_per_shard = 150\n", "[output]\nrows_per_shard = 150\nshuffle = { seed = 5 }\n"] {
        parts::compare(parts::job(&work, text), work.path(), text);
    }
}

#[test]
fn whoever_gets_rows_gets_the_types_of_the_file() {
    // Rows that are kept of malformed episodes, and the rows of a data set.
    let all = with_texts_as(&recording(false), &DataType::LargeUtf8);
    let with_a_gap = [all.slice(0, 10), all.slice(11, all.num_rows() - 11)];
    let work = Work::of_batches(&with_a_gap);
    let made = work.convert_job("[input]\non_bad_episode = 'quarantine'\n", &[]);
    assert_eq!(made.status.code(), Some(0), "{}", stderr(&made));
    let types = |at: &std::path::Path| crate::support::read_shards(at).schema().field(0).data_type().clone();
    assert_eq!(types(&work.path().join("out/quarantine/rows")), DataType::LargeUtf8);
    let set = gristmill::dataset::Dataset::open(&work.path().join("out")).unwrap();
    let shard = set.modules()[0].shard(0).unwrap();
    let rows = shard.record_batch(0, &[0]).unwrap();
    assert_eq!(rows.schema().field(0), shard.arrow_schema().field(0));
    assert_eq!(rows.column(0).data_type(), &DataType::Utf8);
}
