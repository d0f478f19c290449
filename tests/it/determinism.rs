//! The bytes depend on the job and the input alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use arrow::array::RecordBatch;

use crate::cli::{gristmill, stderr};
use crate::support::{Work, batch, bools, f64s, i32s, i64s, lists};

/// 300 episodes of 1 to 400 steps, 60,150 rows in all.
pub fn recording() -> RecordBatch {
    let lengths: Vec<usize> = (1..=300).map(|i| (i * 7919) % 400 + 1).collect();
    let (mut ids, mut t, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for (id, &len) in lengths.iter().enumerate() {
        ids.extend(std::iter::repeat_n(i64::try_from(id).unwrap(), len));
        t.extend(0..i64::try_from(len).unwrap());
        ends.extend((0..len).map(|i| i + 1 == len));
    }
    let n = ids.len();
    // Some noise, so that nothing compresses to nothing.
    let noise: Vec<[f32; 3]> = (0..n).map(|i| [0, 1, 2].map(|k| ((i * 31 + k * 17) % 9973) as f32 / 7.0)).collect();
    batch(vec![
        ("eps_id", i64s(&ids)),
        ("t", i64s(&t)),
        ("obs", lists(&noise.iter().map(|row| Some(row.as_slice())).collect::<Vec<_>>())),
        ("actions", i32s(&(0..n).map(|i| Some(i32::try_from(i % 5).unwrap())).collect::<Vec<_>>())),
        ("rewards", f64s(&noise.iter().map(|row| f64::from(row[0])).collect::<Vec<_>>())),
        ("terminateds", bools(&ends)),
    ])
}

/// Pieces of `len` rows.
pub fn cut(all: &RecordBatch, len: usize) -> Vec<RecordBatch> {
    (0..all.num_rows()).step_by(len).map(|at| all.slice(at, len.min(all.num_rows() - at))).collect()
}

/// Every file of a data set but `run.json`, which tells the time.
pub fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut out = BTreeMap::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else if !path.ends_with("run.json") {
                out.insert(path.strip_prefix(dir).unwrap().display().to_string(), fs::read(&path).unwrap());
            }
        }
    }
    out
}

const JOB: &str = "[rl_module]\nstateful = true\nmax_seq_len = 16\ninitial_state = { h = { shape = [2] } }\n\
                   [output]\nrows_per_shard = 1000\n";

/// The data set with these flags.
fn written(work: &Work, job: &str, more: &[&str]) -> BTreeMap<String, Vec<u8>> {
    let output = work.convert_job(job, &[&["--overwrite"], more].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    files(&work.path().join("out"))
}

#[test]
fn threads_and_memory_change_no_byte() {
    let work = Work::of_batches(&cut(&recording(), 5000));
    for job in ["[output]\nrows_per_shard = 7000\n", JOB] {
        let one = written(&work, job, &["--threads", "1"]);
        assert!(one.len() > 4, "several shards: {:?}", one.keys());
        for flags in [
            &["--threads", "2"] as &[&str],
            &["--threads", "3"],
            &["--threads", "16"],
            &["--memory-limit", "64MiB"],
            &["--memory-limit", "80MiB", "--threads", "16"],
        ] {
            let other = written(&work, job, flags);
            assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>(), "{flags:?}");
            for (name, bytes) in &one {
                assert!(*bytes == other[name], "{name} differs with {flags:?}");
            }
        }
    }
}

/// Ids, times and one column of the data set's rows, as text.
fn rows(work: &Work) -> Vec<String> {
    let all = work.rows();
    let format = arrow::util::display::FormatOptions::default();
    let columns = ["eps_id", "t", "obs"]
        .map(|name| arrow::util::display::ArrayFormatter::try_new(all.column_by_name(name).unwrap(), &format).unwrap());
    (0..all.num_rows()).map(|i| columns.each_ref().map(|c| c.value(i).to_string()).join(" ")).collect()
}

#[test]
fn rows_are_shuffled_by_the_seed_alone() {
    let work = Work::of_batches(&cut(&recording(), 5000));
    let stateless = "[output]\nrows_per_shard = 7000\n";
    for job in [stateless, JOB] {
        let shuffled = |seed: u32| format!("{job}shuffle = {{ seed = {seed} }}\n");
        let plain = written(&work, job, &[]);
        let one = written(&work, &shuffled(7), &["--threads", "1"]);
        let (content, verified) = (rows(&work), gristmill(&["verify", "out"], work.path()));
        assert_eq!(verified.status.code(), Some(0), "{}", stderr(&verified));
        for flags in [&["--threads", "3"] as &[&str], &["--memory-limit", "64MiB"]] {
            assert!(written(&work, &shuffled(7), flags) == one, "{flags:?}");
        }
        assert!(written(&work, &shuffled(8), &[]) != one);
        assert!(plain != one);
        written(&work, job, &[]);
        let mut sorted = rows(&work);
        assert!(sorted != content);
        sorted.sort_unstable();
        let mut content = content;
        content.sort_unstable();
        assert!(sorted == content, "the same rows in another order");
    }
}

/// Environments that take turns, a row each; `shuffled`: in an order of no pattern. Rows of 1 KiB, 24 MiB in all, and
/// all episodes are alive from the first rows to the last.
fn interleaved(shuffled: bool) -> Vec<RecordBatch> {
    let (envs, steps) = (24, 1000);
    let mut order: Vec<(usize, usize)> = (0..steps).flat_map(|t| (0..envs).map(move |env| (env, t))).collect();
    if shuffled {
        order.sort_by_key(|&(env, t)| (t * 1000 + (env * 7919 + t * 104_729) % 9973, env));
    }
    let ids: Vec<i64> = order.iter().map(|(env, _)| i64::try_from(*env).unwrap()).collect();
    let t: Vec<i64> = order.iter().map(|(_, t)| i64::try_from(*t).unwrap()).collect();
    let obs: Vec<Vec<f32>> =
        order.iter().map(|(env, t)| (0..256).map(|k| ((env * 31 + t * 17 + k) % 997) as f32).collect()).collect();
    let all = batch(vec![
        ("eps_id", i64s(&ids)),
        ("t", i64s(&t)),
        ("obs", lists(&obs.iter().map(|row| Some(row.as_slice())).collect::<Vec<_>>())),
        ("actions", i32s(&t.iter().map(|t| Some(i32::try_from(*t % 5).unwrap())).collect::<Vec<_>>())),
        ("rewards", f64s(&t.iter().map(|t| *t as f64).collect::<Vec<_>>())),
        ("terminateds", bools(&t.iter().map(|t| *t == 999).collect::<Vec<_>>())),
    ]);
    cut(&all, 5000)
}

/// Bytes that went through scratch files.
fn scratched(work: &Work) -> u64 {
    let run: serde_json::Value = serde_json::from_slice(&fs::read(work.path().join("out/run.json")).unwrap()).unwrap();
    run["extra"]["scratch_bytes"].as_u64().unwrap()
}

#[test]
fn what_does_not_fit_is_sorted_over_scratch_and_changes_no_byte() {
    for shuffled in [false, true] {
        let work = Work::of_batches(&interleaved(shuffled));
        fs::create_dir(work.path().join("scratch")).unwrap();
        let sequences = JOB.replace("rows_per_shard = 1000", "rows_per_shard = 100");
        for job in ["[output]\nrows_per_shard = 2000\n", &sequences] {
            let fits = written(&work, job, &["--threads", "2", "--memory-limit", "1GiB"]);
            assert_eq!(scratched(&work), 0);
            for threads in ["1", "3"] {
                let spilled =
                    written(&work, job, &["--threads", threads, "--memory-limit", "80MiB", "--scratch", "scratch"]);
                assert!(scratched(&work) > 24_000_000, "every row went over scratch");
                assert!(fits == spilled, "shuffled: {shuffled}, {threads} threads");
            }
        }
        assert_eq!(fs::read_dir(work.path().join("scratch")).unwrap().count(), 0, "nothing is left");
    }
}

#[test]
fn errors_are_the_same_over_scratch() {
    let mut batches = interleaved(false);
    let mut columns: Vec<arrow::array::ArrayRef> = batches[3].columns().to_vec();
    let rewards = (0..5000).map(|i| (i != 123 && i != 3000).then_some(1.0));
    columns[4] = std::sync::Arc::new(rewards.collect::<arrow::array::Float64Array>());
    batches[3] = RecordBatch::try_new(batches[3].schema(), columns).unwrap();
    let work = Work::of_batches(&batches);
    let told = ["1GiB", "80MiB"].map(|limit| {
        let output = work.convert_job("[output]\nrows_per_shard = 2000\n", &["--overwrite", "--memory-limit", limit]);
        work.refused(1, &output)
    });
    // Episode by episode: row 15123 is environment 3's, and row 18000 environment 0's.
    assert!(told[0].contains("row group 3, row 18000, episode \"0\", t 750"), "{}", told[0]);
    assert_eq!(told[0], told[1]);
}

#[test]
fn how_the_input_is_cut_changes_no_shard() {
    let all = recording();
    let mut first: Option<BTreeMap<String, Vec<u8>>> = None;
    for (files, groups) in [(1, 100_000), (1, 777), (7, 3000), (40, 100_000)] {
        let work = Work::new();
        let per_file = all.num_rows().div_ceil(files);
        for (i, file) in cut(&all, per_file).iter().enumerate() {
            work.parquet(&format!("{i:03}.parquet"), &cut(file, groups));
        }
        let mut found = written(&work, JOB, &[]);
        let manifest: serde_json::Value = serde_json::from_slice(&found.remove("manifest.json").unwrap()).unwrap();
        found.insert("content digest".to_owned(), manifest["content_digest"].to_string().into_bytes());
        let first = first.get_or_insert_with(|| found.clone());
        assert!(*first == found, "{files} files of row groups of {groups}");
    }
}

#[test]
fn where_the_input_lies_changes_no_byte() {
    let one = Work::of_batches(&[recording().slice(0, 500)]);
    let other = Work::of_batches(&[recording().slice(0, 500)]);
    assert_ne!(one.path(), other.path());
    let (one, other) = (written(&one, "", &[]), written(&other, "", &[]));
    assert!(one == other);
}

#[test]
fn errors_are_the_same_with_any_threads() {
    // Two bad rows, far from one another: the first one is told, whichever is met first.
    let all = recording();
    let mut rewards: Vec<Option<f64>> = vec![Some(1.0); all.num_rows()];
    (rewards[40_000], rewards[55_000]) = (None, None);
    let mut columns: Vec<arrow::array::ArrayRef> = all.columns().to_vec();
    columns[4] = std::sync::Arc::new(arrow::array::Float64Array::from(rewards));
    let bad = RecordBatch::try_new(all.schema(), columns).unwrap();
    let work = Work::of_batches(&cut(&bad, 2500));
    for threads in ["1", "2", "8", "8", "8"] {
        let args = ["convert", "--input", "in", "--output", "out", "--overwrite", "--threads", threads];
        let told = work.refused(1, &gristmill(&args, work.path()));
        assert!(told.contains("row group 16, row 40000,"), "{told}");
    }
}
