//! The memory limit: what is refused, what goes to scratch, and what is left of it.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Int64Array, RecordBatch};
use serde_json::Value;

use crate::cli::{gristmill, stderr};
use crate::support::{Work, batch, bools, contains, f64s, i32s, i64s, lists};

/// One episode of `steps` steps with observations of `width` floats, all of them different.
fn one_episode(steps: usize, width: usize) -> RecordBatch {
    let obs: Vec<Vec<f32>> = (0..steps).map(|i| (0..width).map(|k| (i * 31 + k) as f32).collect()).collect();
    let t: Vec<i64> = (0..i64::try_from(steps).unwrap()).collect();
    batch(vec![
        ("eps_id", i64s(&vec![0; steps])),
        ("t", i64s(&t)),
        ("obs", lists(&obs.iter().map(|row| Some(row.as_slice())).collect::<Vec<_>>())),
        ("actions", i32s(&vec![Some(1); steps])),
        ("rewards", f64s(&vec![0.5; steps])),
        ("terminateds", bools(&t.iter().map(|t| *t + 1 == i64::try_from(steps).unwrap()).collect::<Vec<_>>())),
    ])
}

/// Cut into episodes of 100 steps and row groups of 10,000 rows.
fn many_episodes(steps: usize, width: usize) -> Vec<RecordBatch> {
    let all = one_episode(steps, width);
    let n = i64::try_from(steps).unwrap();
    let mut columns = all.columns().to_vec();
    columns[0] = i64s(&(0..n).map(|i| i / 100).collect::<Vec<_>>());
    columns[1] = i64s(&(0..n).map(|i| i % 100).collect::<Vec<_>>());
    columns[5] = bools(&(0..n).map(|i| i % 100 == 99).collect::<Vec<_>>());
    let all = RecordBatch::try_new(all.schema(), columns).unwrap();
    (0..steps).step_by(10_000).map(|at| all.slice(at, 10_000.min(steps - at))).collect()
}

#[test]
fn a_limit_too_small_to_work_with_is_refused() {
    let work = Work::of_batches(&[one_episode(10, 2)]);
    for limit in ["1", "63MiB"] {
        let told = work.refused(2, &work.convert_with(&["--memory-limit", limit]));
        contains(&told, &["expected at least 64 MiB", "hint: leave --memory-limit out"]);
    }
    let told = work.refused(2, &work.convert_with(&["--scratch", "nowhere"]));
    contains(&told, &["found no such folder", "at: file nowhere"]);
}

#[test]
fn an_episode_larger_than_the_limit_is_refused_where_a_piece_needs_all_of_it() {
    let work = Work::of_batches(&[one_episode(20_000, 500)]); // 38 MiB
    let small = ["--memory-limit", "64MiB"];
    let output = "[output]\nrows_per_shard = 1000\n";
    let piece = |options: &str| format!("[[learner.connectors]]\n{options}\n{output}");
    let returns = piece("type = 'ComputeReturnsToGo'\ngamma = 0.9");
    let told = work.refused(3, &work.convert_job(&returns, &small));
    contains(
        &told,
        &[
            "an episode of 20000 steps takes",
            "memory limit of 64 MiB",
            "episode \"0\"",
            "hint: --memory-limit",
            "MiB is enough; ComputeReturnsToGo needs an episode in memory as a whole",
        ],
    );
    assert!(!work.path().join("out").exists(), "nothing was begun");
    // What the hint says is enough.
    let enough = told.split("--memory-limit ").nth(1).unwrap().split(' ').next().unwrap();
    let written = work.convert_job(&returns, &["--memory-limit", enough]);
    assert_eq!(written.status.code(), Some(0), "{}", stderr(&written));
    std::fs::remove_dir_all(work.path().join("out")).unwrap();
    // Two pieces that allow it, and not in this order.
    let both = "type = 'CountBasedCuriosity'\n[[learner.connectors]]\ntype = 'PrevActionsPrevRewards'\n\
        input_action_space = { type = 'discrete', n = 2 }";
    let told = work.refused(3, &work.convert_job(&piece(both), &small));
    contains(&told, &["PrevActionsPrevRewards behind CountBasedCuriosity needs an episode in memory as a whole"]);
    // More in front of every step than there is room for.
    let told = work.refused(3, &work.convert_job(&piece("type = 'StackObservations'\nnum_frames = 3000"), &small));
    contains(&told, &["MiB is enough"]);
    // And one that needs no more of it than a few steps.
    let written = work.convert_job(output, &small);
    assert_eq!(written.status.code(), Some(0), "{}", stderr(&written));
}

/// Rows that are put aside take memory as well: those of one episode that follow one another as good as none.
#[test]
fn rows_that_are_put_aside_count() {
    let rows = 50_000;
    let recording = |id_of: fn(i64) -> i64| {
        let (all, n) = (one_episode(rows, 2), i64::try_from(rows).unwrap());
        batch(vec![
            ("eps_id", i64s(&(0..n).map(|i| if i < 10 { 9 } else { id_of(i) }).collect::<Vec<_>>())),
            ("t", Arc::new((0..n).map(|i| (i < 10).then_some(i)).collect::<Int64Array>())),
            ("obs", Arc::clone(all.column(2))),
            ("actions", Arc::clone(all.column(3))),
            ("rewards", Arc::clone(all.column(4))),
            ("terminateds", Arc::clone(all.column(5))),
        ])
    };
    let (job, small) = ("[input]\non_bad_episode = 'skip'\n", ["--memory-limit", "64MiB"]);
    let work = Work::of_batches(&[recording(|_| 0)]);
    let manifest = work.manifest_of(&work.convert_job(job, &small));
    let counts = &manifest["counts"];
    assert_eq!(
        (&counts["bad_episodes"], &counts["bad_steps"], &counts["steps_in"]),
        (&1.into(), &49_990.into(), &rows.into())
    );
    contains(&manifest["problems"].to_string(), &["row 10"]);
    let work = Work::of_batches(&[recording(|i| i % 2)]);
    let told = work.refused(3, &work.convert_job(job, &small));
    contains(&told, &["more than the memory limit leaves it", "rows that cannot be understood"]);
    let manifest = work.manifest_of(&work.convert_job(job, &["--memory-limit", "1GiB"]));
    assert_eq!(manifest["counts"]["bad_steps"], 49_990);
}

#[test]
fn counts_that_outgrow_memory_are_counted_on_scratch_to_the_same_bytes() {
    let work = Work::of_batches(&many_episodes(250_000, 3));
    let job = "[[learner.connectors]]\ntype = \"CountBasedCuriosity\"\n[output]\nrows_per_shard = 50000\n";
    let digest = |flags: &[&str]| {
        let manifest = work.manifest_of(&work.convert_job(job, &[&["--overwrite"], flags].concat()));
        let run: serde_json::Value =
            serde_json::from_slice(&fs::read(work.path().join("out/run.json")).unwrap()).unwrap();
        (manifest.to_string(), run["extra"]["rehearsals"].as_u64().unwrap())
    };
    let fits = digest(&["--memory-limit", "1GiB"]);
    let spilled = digest(&["--memory-limit", "64MiB", "--threads", "1"]);
    let threads = digest(&["--memory-limit", "64MiB", "--threads", "3"]);
    assert_eq!((fits.1, spilled.1, threads.1), (0, 1, 1), "250,000 keys outgrow their share of 64 MiB");
    assert!(fits.0 == spilled.0 && fits.0 == threads.0);
}

/// Interleaved rows of 1 KiB, 20 MB in all.
fn interleaved() -> Vec<RecordBatch> {
    let all = one_episode(20_000, 256);
    let mut columns = all.columns().to_vec();
    columns[0] = i64s(&(0..20_000).map(|i| i % 20).collect::<Vec<_>>());
    columns[1] = i64s(&(0..20_000).map(|i| i / 20).collect::<Vec<_>>());
    columns[5] = bools(&(0..20_000).map(|i| i >= 19_980).collect::<Vec<_>>());
    let all = RecordBatch::try_new(all.schema(), columns).unwrap();
    (0..20_000).step_by(2000).map(|at| all.slice(at, 2000)).collect()
}

/// A full scratch disk, as a limit on the size of files looks like one. Only the scratch file reaches it before a shard
/// is written.
#[cfg(unix)]
#[test]
fn a_full_scratch_folder_is_the_surroundings_fault_and_named() {
    let work = Work::of_batches(&interleaved());
    fs::create_dir(work.path().join("scratch")).unwrap();
    fs::write(work.path().join("job.toml"), "[output]\nrows_per_shard = 1000\n").unwrap();
    let script = format!(
        "trap '' XFSZ; ulimit -f 2000; exec '{}' convert job.toml --input in --output out --memory-limit 64MiB --scratch scratch",
        env!("CARGO_BIN_EXE_gristmill")
    );
    let output = Command::new("sh").args(["-c", &script]).current_dir(work.path()).output().unwrap();
    let told = work.refused(3, &output);
    contains(&told, &["cannot write a scratch file", "at: file scratch", "hint: --scratch names a folder"]);
    assert_eq!(fs::read_dir(work.path().join("scratch")).unwrap().count(), 0);
}

#[cfg(unix)]
#[test]
fn a_killed_run_leaves_nothing_in_scratch() {
    let work = Work::of_batches(&interleaved());
    fs::create_dir(work.path().join("scratch")).unwrap();
    fs::write(work.path().join("job.toml"), "[output]\nrows_per_shard = 1000\n").unwrap();
    let args =
        "convert job.toml --input in --output out --memory-limit 64MiB --scratch scratch --overwrite --threads 1";
    let args: Vec<&str> = args.split(' ').collect();
    let started = Instant::now();
    let output = gristmill(&args, work.path());
    let whole = started.elapsed();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let run: Value = serde_json::from_slice(&fs::read(work.path().join("out/run.json")).unwrap()).unwrap();
    assert!(run["extra"]["scratch_bytes"].as_u64().unwrap() > 0, "nothing went to scratch: {run}");
    // At several moments: somewhere among them rows are on scratch.
    let mut killed = 0;
    for tenths in [2, 4, 6, 8] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_gristmill"))
            .args(&args)
            .current_dir(work.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(whole * tenths / 10);
        child.kill().unwrap();
        killed += u32::from(child.wait().unwrap().code().is_none());
        assert_eq!(fs::read_dir(work.path().join("scratch")).unwrap().count(), 0, "after {tenths} tenths of {whole:?}");
    }
    assert!(killed > 0, "every run was over before it was killed");
}

/// Runs a conversion under 64 MiB; its output, and the most memory that it had, in MiB, without the pages of its program: a
/// test's is several times as large as a release.
#[cfg(target_os = "linux")]
fn peak_of(work: &Work, threads: &str) -> (std::process::Output, u64) {
    let args = ["convert", "job.toml", "--input", "in", "--output", "out", "--overwrite", "--memory-limit", "64MiB"];
    let mut child = Command::new(env!("CARGO_BIN_EXE_gristmill"))
        .args(args)
        .args(["--threads", threads])
        .current_dir(work.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let told = fs::read_to_string(&status).unwrap_or_default();
        let kib = told.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = kib.and_then(|kib| kib.trim().strip_suffix(" kB")).and_then(|kib| kib.parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or(0) >> 10);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    (child.wait_with_output().unwrap(), peak)
}

/// Three pieces that keep something share what is left of 64 MiB: each has little, and what rows in another order need
/// must not grow with them. These rows took 70 MiB once. A release's own pages take 16 MiB.
#[cfg(target_os = "linux")]
#[test]
fn a_shuffled_order_does_not_take_more_memory_for_more_rows() {
    let job = "[[learner.connectors]]\ntype = 'MeanStdFilter'\n[[learner.connectors]]\ntype = 'CountBasedCuriosity'\n\
        [output]\nrows_per_shard = 20000\nshuffle = { seed = 7 }\n";
    let work = Work::of_batches(&many_episodes(200_000, 64));
    let roomy = work.manifest_of(&work.convert_job(job, &["--memory-limit", "1GiB"]));
    for threads in ["1", "2"] {
        let (output, peak) = peak_of(&work, threads);
        assert!(work.manifest_of(&output) == roomy, "{threads} threads");
        assert!(peak > 5 && peak <= 48, "{threads} threads: found a peak of {peak} MiB, expected at most 48");
    }
}
