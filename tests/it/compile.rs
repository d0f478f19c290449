//! Compiling in memory gives what a conversion writes; and a run that is told to stop leaves nothing finished.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arrow::array::RecordBatch;
use gristmill::error::Kind;
use gristmill::job::{Compat, Job};
use gristmill::manifest::Manifest;
use gristmill::progress::{Progress, Silent, Step, Totals};
use gristmill::run::{self, Options};
use gristmill::sink::{ColumnData, ColumnType, ContentDigest, Existing};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

const RECORDINGS: [&str; 7] = [
    "breakout-frames",
    "cartpole-columns",
    "cartpole-dict",
    "cartpole-duplicates",
    "cartpole-episodes",
    "cartpole-lstm",
    "pendulum-steps",
];

fn job(recording: &str) -> Job {
    Job::load(&Path::new("datasets").join(recording).join("job.toml")).unwrap()
}

/// The rows of a recording as record batches, file by file.
fn batches(job: &Job) -> Vec<RecordBatch> {
    let mut files: Vec<_> = std::fs::read_dir(job.base.join("input")).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    let read = |path| ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap().build().unwrap();
    files.into_iter().flat_map(read).map(Result::unwrap).collect()
}

fn digest(name: &str, data: &ColumnData) -> String {
    let ty = match data {
        ColumnData::Tensor(tensor) => ColumnType::Tensor(tensor.ty().clone()),
        ColumnData::Ids(ids) if *ids.data_type() == arrow::datatypes::DataType::Int64 => ColumnType::Int64,
        ColumnData::Ids(_) => ColumnType::Utf8,
    };
    let mut digest = ContentDigest::new(name, &ty);
    digest.update(data).unwrap();
    digest.finish()
}

#[test]
fn a_table_in_memory_gives_what_files_give() {
    for recording in RECORDINGS {
        for compat in [Compat::Correct, Compat::Rllib260] {
            let out = tempfile::tempdir().unwrap();
            let mut job = job(recording);
            job.learner.compat = compat;
            job.output.path = std::path::absolute(out.path().join("shards")).unwrap().display().to_string();
            let written = run::convert(&job, &Options::default(), &Silent).unwrap();
            let compiled = run::compile(&job, batches(&job), &Options::default(), &Silent).unwrap();

            let manifest = Manifest::load(&job.output_path()).unwrap();
            assert_eq!(compiled.modules.keys().collect::<Vec<_>>(), manifest.modules.keys().collect::<Vec<_>>());
            for (name, module) in &compiled.modules {
                let record = &manifest.modules[name];
                assert_eq!(module.rows as u64, record.rows, "{recording}");
                let found: Vec<_> = module.columns.iter().map(|(n, data)| (n.clone(), digest(n, data))).collect();
                let want: Vec<_> = record.columns.iter().map(|c| (c.name.clone(), c.digest.clone())).collect();
                assert_eq!(found, want, "{recording}");
            }
            let counts = |r: &run::Report| (r.episodes_in, r.steps_in, r.duplicates_dropped, r.repairs.clone());
            assert_eq!(counts(&compiled.report), counts(&written));
        }
    }
}

#[test]
fn a_split_job_compiles_to_its_parts() {
    let mut job = job("cartpole-columns");
    job.output.split = Some([("train".to_owned(), 0.5), ("val".to_owned(), 0.5)].into_iter().collect());
    let compiled = run::compile(&job, batches(&job), &Options::default(), &Silent).unwrap();
    assert_eq!(compiled.modules.keys().collect::<Vec<_>>(), ["train/default_policy", "val/default_policy"]);
    assert_eq!(compiled.modules.values().map(|m| m.rows).sum::<usize>(), 1664);
}

#[test]
fn mistakes_in_memory_have_a_place() {
    let job = Job::default();
    let none = run::compile(&job, Vec::new(), &Options::default(), &Silent).unwrap_err();
    assert_eq!(none.what(), "found no record batch, expected at least one");

    let whole = crate::support::batch(crate::support::steps());
    let empty = run::compile(&job, vec![whole.slice(0, 0)], &Options::default(), &Silent).unwrap_err();
    assert!(empty.to_string().contains("file <memory>"), "{empty}");

    let other = whole.project(&[0, 1, 2]).unwrap();
    let mixed = run::compile(&job, vec![whole.clone(), other], &Options::default(), &Silent).unwrap_err();
    assert!(mixed.to_string().contains("row group 1"), "{mixed}");

    let gap = crate::support::take(&whole, &[0, 2, 3, 4, 5]);
    let gap = run::compile(&job, vec![gap], &Options::default(), &Silent).unwrap_err();
    assert_eq!((gap.kind(), gap.place().episode.as_deref()), (Kind::Data, Some("a")), "{gap}");
}

/// Wants to stop once it has been told of so many steps of work.
struct StopAfter {
    left: AtomicUsize,
    stopped: AtomicBool,
}

impl Progress for StopAfter {
    fn begin(&self, _: &str, _: Totals) {}

    fn advance(&self, _: Step) {
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_err() {
            self.stopped.store(true, Ordering::Relaxed);
        }
    }

    fn end(&self) {}

    fn cancelled(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

#[test]
fn a_run_that_is_told_to_stop_leaves_nothing_finished() {
    let (mut interrupted, mut finished) = (0, 0);
    for after in 0..12 {
        let out = tempfile::tempdir().unwrap();
        let mut job = job("cartpole-columns");
        job.output.path = std::path::absolute(out.path().join("shards")).unwrap().display().to_string();
        let stop = StopAfter { left: AtomicUsize::new(after), stopped: AtomicBool::new(false) };
        let manifest = job.output_path().join("manifest.json");
        match run::convert(&job, &Options { threads: Some(2), ..Options::default() }, &stop) {
            Ok(_) => {
                finished += 1;
                assert!(manifest.exists());
            }
            Err(e) => {
                interrupted += 1;
                assert_eq!(e.kind(), Kind::Interrupted, "{e}");
                assert!(!manifest.exists());
                // And the directory is free for the next run.
                run::convert(&job, &Options { existing: Existing::Replace, ..Options::default() }, &Silent).unwrap();
            }
        }
    }
    assert!(interrupted >= 4 && finished >= 1, "{interrupted} interrupted, {finished} finished");
}
