//! A run by parts, in any order, with tasks that are done twice, writes the bytes of a run by one process.

use std::collections::BTreeMap;
use std::path::Path;

use arrow::array::RecordBatch;
use gristmill::error::Result;
use gristmill::job::Job;
use gristmill::progress::Silent;
use gristmill::run::part::{Coordinator, Tasks, Worker};
use gristmill::run::{self, Options, Report};
use gristmill::sink::Existing;

use crate::agents::fifty_agents;
use crate::determinism::{cut, files};
use crate::support::{Work, batch, bools, contains, f64s, i32s, i64s, lists, texts};

/// Runs a job by parts. Tasks are done from the last to the first; every other one is done twice.
fn by_parts(job: &Job, parts: usize, threads: usize) -> Result<Report> {
    let tasks = Tasks { parts, threads, memory_limit: 64 << 20 };
    let options = Options { threads: Some(threads), memory_limit: Some(64 << 20), ..Options::default() };
    let replace = Options { existing: Existing::Replace, ..options.clone() };
    let mut coordinator = Coordinator::plan(job, Vec::new(), &replace, tasks, &Silent)?;
    let head = coordinator.head(&std::env::current_dir().unwrap())?;
    let worker = || Worker::open(&head, Vec::new(), &options);
    let mut states = vec![Vec::new()];
    if coordinator.ordered() {
        for number in 0..coordinator.parts() {
            states.push(worker()?.order(&coordinator.part(number)?, &states[number], &Silent)?);
        }
    }
    let mut rows = Vec::new();
    for number in (0..coordinator.parts()).rev() {
        let (part, state) = (coordinator.part(number)?, states.get(number).map_or(&[][..], Vec::as_slice));
        for attempt in 0..=number % 2 {
            let again = worker()?.rows(&part, state, &attempt.to_string(), &Silent)?;
            if attempt == 0 { rows.push(again) } else { assert!(rows.last() == Some(&again), "another result") }
        }
    }
    let shards = coordinator.place(&rows)?;
    for (number, task) in shards.iter().enumerate().rev() {
        for attempt in 0..=number % 2 {
            let made = worker()?.shards(task, &attempt.to_string(), &Silent)?;
            if attempt == 0 {
                coordinator.keep(&made)?;
            }
        }
    }
    coordinator.finish()
}

/// The same bytes by one process and by parts of several numbers.
pub fn compare(mut job: Job, at: &Path, what: &str) -> BTreeMap<String, Vec<u8>> {
    let out = |name: &str| at.join(name).display().to_string();
    job.output.path = out("one");
    let options = Options { existing: Existing::Replace, ..Options::default() };
    let report = run::convert(&job, &options, &Silent).unwrap_or_else(|e| panic!("{what}: {e}"));
    let want = files(&at.join("one"));
    job.output.path = out("parts");
    for (parts, threads) in [(2, 2), (13, 1)] {
        let own = by_parts(&job, parts, threads).unwrap_or_else(|e| panic!("{what}, {parts} parts: {e}"));
        let found = files(&at.join("parts"));
        assert_eq!(found.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>(), "{what}, {parts} parts");
        for (name, bytes) in &want {
            assert!(found[name] == *bytes, "{what}, {parts} parts: {name} differs");
        }
        assert_eq!(
            (own.steps_in, own.problems, own.modules["default_policy"].rows),
            (report.steps_in, report.problems.clone(), report.modules["default_policy"].rows),
        );
        let left: Vec<_> = std::fs::read_dir(at).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().contains("between")), "{left:?}");
    }
    want
}

pub fn job(work: &Work, text: &str) -> Job {
    let path = work.path().join("job.toml");
    let input = "[input]\npaths = ['in']\n";
    let text = if text.contains("[input]\n") { text.replace("[input]\n", input) } else { format!("{input}{text}") };
    std::fs::write(&path, &text).unwrap();
    Job::load(&path).unwrap_or_else(|e| panic!("{text}: {e:?}"))
}

/// 60 episodes of 1 to 79 steps under names of many lengths, observations that come again, and value predictions.
fn recording() -> RecordBatch {
    let lengths: Vec<usize> = (0..60).map(|i| (i * 7919) % 79 + 1).collect();
    let ids: Vec<String> =
        lengths.iter().enumerate().flat_map(|(i, &n)| vec!["e".repeat(i % 13) + &i.to_string(); n]).collect();
    let ends: Vec<bool> = lengths.iter().flat_map(|&n| (0..n).map(move |t| t + 1 == n)).collect();
    let t: Vec<i64> = lengths.iter().flat_map(|&n| 0..i64::try_from(n).unwrap()).collect();
    let n = ids.len();
    let obs: Vec<[f32; 2]> = (0..n).map(|i| [(i * i % 11) as f32, (i % 3) as f32]).collect();
    batch(vec![
        ("eps_id", texts(&ids.iter().map(String::as_str).collect::<Vec<_>>())),
        ("t", i64s(&t)),
        ("obs", lists(&obs.iter().map(|row| Some(row.as_slice())).collect::<Vec<_>>())),
        ("new_obs", lists(&(1..=n).map(|i| Some(obs[i % n].as_slice())).collect::<Vec<_>>())),
        ("actions", i32s(&(0..n).map(|i| Some(i32::try_from(i % 5).unwrap())).collect::<Vec<_>>())),
        ("rewards", f64s(&(0..n).map(|i| (i % 17) as f64 / 3.0).collect::<Vec<_>>())),
        ("vf_preds", f64s(&(0..n).map(|i| (i * 31 % 101) as f64 / 7.0).collect::<Vec<_>>())),
        ("terminateds", bools(&ends)),
    ])
}

const SMALL: &str = "[output]\nrows_per_shard = 150\n";

#[test]
fn the_recordings() {
    for entry in std::fs::read_dir("datasets").unwrap() {
        let path = entry.unwrap().path().join("job.toml");
        if !path.exists() {
            continue;
        }
        let (mut job, out) = (Job::load(&path).unwrap(), tempfile::tempdir().unwrap());
        job.output.rows_per_shard = if job.rl_module.stateful { 7 } else { 100 };
        assert!(compare(job, out.path(), &path.display().to_string()).len() > 2);
    }
}

#[test]
fn what_must_see_the_whole_data_set_or_see_it_in_order() {
    let piece = |name: &str, options: &str| format!("[[learner.connectors]]\ntype = '{name}'\n{options}\n");
    let counted = piece("CountBasedCuriosity", "");
    let near = piece("EuclidianDistanceBasedCuriosity", "max_buffer_size = 5");
    let normal = piece("MeanStdFilter", "");
    let range = piece("NormalizeRewardsByReturnRange", "");
    let frames = piece("StackObservations", "num_frames = 3");
    let stateful = "[rl_module]\nstateful = true\nmax_seq_len = 8\ninitial_state = { h = { shape = [2] } }\n";
    let work = Work::of_batches(&cut(&recording(), 100));
    for (what, text) in [
        ("count", format!("{SMALL}{counted}")),
        ("two in order, as RLlib does", format!("{SMALL}[learner]\ncompat = 'rllib-2.60'\n{counted}{near}")),
        ("two in order, sequences", format!("{SMALL}{stateful}{near}{counted}")),
        ("mean and deviation, behind an order", format!("{SMALL}{counted}{normal}{range}")),
        ("advantages", format!("{SMALL}[learner]\nalgorithm = 'MARWIL'\n{counted}")),
        ("advantages as RLlib has them", format!("{SMALL}[learner]\nalgorithm = 'MARWIL'\ncompat = 'rllib-2.60'\n")),
        (
            "advantages of sequences",
            format!("{SMALL}{stateful}[learner]\nalgorithm = 'MARWIL'\ncompat = 'rllib-2.60'\n"),
        ),
        ("windows that are stored once", format!("{SMALL}windows = 'indexed'\n{frames}{counted}")),
        ("sequences of them", format!("{SMALL}windows = 'indexed'\n{stateful}{frames}")),
        ("shuffled ones", format!("{SMALL}windows = 'indexed'\nshuffle = {{ seed = 7 }}\n{stateful}{frames}")),
        ("shuffled", format!("{SMALL}shuffle = {{ seed = 7 }}\n{counted}")),
        ("shuffled sequences, arrow", format!("{SMALL}format = 'arrow'\nshuffle = {{ seed = 7 }}\n{stateful}")),
    ] {
        // A sequence is eight steps.
        let text = if text.contains(stateful) { text.replace("= 150", "= 20") } else { text };
        assert!(compare(job(&work, &text), work.path(), what).len() > 4, "{what}: several shards");
    }
}

/// Parts of a split, one of them without a row; and modules of several agents.
#[test]
fn many_streams() {
    let work = Work::of_batches(&cut(&recording(), 1000));
    let split = "split = { train = 0.7, val = 0.299999, none = 0.000001 }\n";
    for (i, shuffle) in ["", "shuffle = { seed = 3 }\n"].iter().enumerate() {
        let text = format!("{SMALL}{split}{shuffle}[[learner.connectors]]\ntype = 'MeanStdFilter'\n");
        same(&job(&work, &text), work.path(), &format!("split {i}"));
    }
    let agents = "[multi_agent]\nagent_to_module = { 'agent_?' = 'few', '*' = 'many' }\n\
        [rl_module.modules.few]\nstateful = true\nmax_seq_len = 4\ninitial_state = { h = { shape = [2] } }\n";
    let work = fifty_agents();
    for more in ["", "shuffle = { seed = 3 }\n"] {
        for pieces in ["", "[[learner.connectors]]\ntype = 'CountBasedCuriosity'\n"] {
            same(&job(&work, &format!("{SMALL}{more}{agents}{pieces}")), work.path(), "agents");
        }
    }
}

/// [`compare`] for data sets without a `default_policy` of their own.
fn same(job: &Job, at: &Path, what: &str) {
    let mut job = job.clone();
    job.output.path = at.join("one").display().to_string();
    let options = Options { existing: Existing::Replace, ..Options::default() };
    run::convert(&job, &options, &Silent).unwrap_or_else(|e| panic!("{what}: {e}"));
    job.output.path = at.join("parts").display().to_string();
    for parts in [1, 5] {
        by_parts(&job, parts, 1).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(files(&at.join("parts")) == files(&at.join("one")), "{what}, {parts} parts");
    }
}

/// Malformed episodes are left out by the coordinator; rows that lie anywhere, and chosen episodes.
#[test]
fn malformed_interleaved_and_chosen() {
    let all = recording();
    // The last rows first: every part needs rows of several row groups.
    let shuffled: Vec<usize> = (0..all.num_rows()).map(|i| i * 997 % all.num_rows()).collect();
    let mixed = crate::support::take(&all, &shuffled);
    let gaps: Vec<usize> = (0..all.num_rows()).filter(|i| i % 701 != 400).collect();
    let gaps = crate::support::take(&all, &gaps);
    for (what, rows, text) in [
        ("mixed", &mixed, SMALL.to_owned()),
        ("skipped", &gaps, format!("{SMALL}[input]\non_bad_episode = 'skip'\n")),
        ("quarantined", &gaps, format!("{SMALL}[input]\non_bad_episode = 'quarantine'\n")),
        #[cfg(feature = "sql")]
        ("chosen", &mixed, format!("{SMALL}[input]\nwhere = 'episode_return > 90'\n")),
    ] {
        let work = Work::of_batches(&cut(rows, 300));
        assert!(compare(job(&work, &text), work.path(), what).len() > 2);
    }
}

/// A coordinator that is killed leaves its journal: one process goes on behind the shards that are there.
#[test]
fn a_killed_coordinator_s_shards_are_gone_on_with() {
    let work = Work::of_batches(&cut(&recording(), 100));
    let mut job = job(&work, SMALL);
    job.output.path = work.path().join("one").display().to_string();
    run::convert(&job, &Options::default(), &Silent).unwrap();
    job.output.path = work.path().join("parts").display().to_string();
    let tasks = Tasks { parts: 8, threads: 1, memory_limit: 64 << 20 };
    let mut coordinator = Coordinator::plan(&job, Vec::new(), &Options::default(), tasks, &Silent).unwrap();
    let head = coordinator.head(&std::env::current_dir().unwrap()).unwrap();
    let worker = Worker::open(&head, Vec::new(), &Options::default()).unwrap();
    let rows = |i| worker.rows(&coordinator.part(i).unwrap(), &[], "a", &Silent).unwrap();
    let rows: Vec<_> = (0..coordinator.parts()).map(rows).collect();
    for task in &coordinator.place(&rows).unwrap()[..4] {
        coordinator.keep(&worker.shards(task, "a", &Silent).unwrap()).unwrap();
    }
    std::mem::forget(coordinator);
    let kept = work.path().join("parts/default_policy/part-00001.parquet");
    let before = std::fs::metadata(&kept).unwrap().modified().unwrap();
    run::convert(&job, &Options { existing: Existing::Resume, ..Options::default() }, &Silent).unwrap();
    assert!(files(&work.path().join("parts")) == files(&work.path().join("one")));
    assert_eq!(std::fs::metadata(&kept).unwrap().modified().unwrap(), before, "the shard was kept");
}

#[test]
fn what_cannot_be_done_by_parts_is_told() {
    let work = Work::of_batches(&cut(&recording(), 100));
    let job = job(&work, SMALL);
    let tasks = Tasks { parts: 3, threads: 1, memory_limit: 64 << 20 };
    let plan = |options: &Options| Coordinator::plan(&job, Vec::new(), options, tasks, &Silent);
    let resume = plan(&Options { existing: Existing::Resume, ..Options::default() }).unwrap_err();
    contains(&resume.to_string(), &["resume", "a new run"]);

    let mut coordinator = plan(&Options::default()).unwrap();
    let head = coordinator.head(&std::env::current_dir().unwrap()).unwrap();
    let worker = Worker::open(&head, Vec::new(), &Options::default()).unwrap();
    let rows: Vec<_> = (0..coordinator.parts())
        .map(|i| worker.rows(&coordinator.part(i).unwrap(), &[], "a", &Silent).unwrap())
        .collect();
    contains(&coordinator.place(&rows[1..]).unwrap_err().to_string(), &["rows of 2 parts", "3"]);
    let shards = coordinator.place(&rows).unwrap();
    coordinator.keep(&worker.shards(&shards[0], "a", &Silent).unwrap()).unwrap();
    // Whoever forgets a task has no data set, and nothing is left of it.
    contains(&coordinator.finish().unwrap_err().to_string(), &["shards of default_policy", "expected"]);
    assert!(!job.output_path().exists());
    assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 2, "in/ and job.toml");

    // Another input than the coordinator's.
    work.parquet("b.parquet", &[recording()]);
    let error = Worker::open(&head, Vec::new(), &Options::default()).unwrap_err();
    contains(&error.to_string(), &["2 input files", "expected 1"]);
}
