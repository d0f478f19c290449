//! `convert --resume`: killed at any moment and run again, the bytes are those of an undisturbed run. And `--overwrite`:
//! an older data set stays until the new one is whole.
//!
//! `make kill KILLS=100` kills more often.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cli::{gristmill, stderr};
use crate::determinism::{cut, files, recording};
use crate::support::{Work, batch, contains, episodes, f64s, steps, with};

const SHARDS: &str = "[output]\nrows_per_shard = 2000\n";
const STATEFUL: &str = "[rl_module]\nstateful = true\nmax_seq_len = 16\ninitial_state = { h = { shape = [2] } }\n\
                        [[learner.connectors]]\ntype = 'CountBasedCuriosity'\n[output]\nrows_per_shard = 300\n";
const QUARANTINE: &str = "[input]\non_bad_episode = 'quarantine'\n[output]\nrows_per_shard = 2000\nformat = 'arrow'\n";

type Files = BTreeMap<String, Vec<u8>>;

/// Times to kill each job.
fn kills() -> u64 {
    std::env::var("GRISTMILL_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(4)
}

fn out(work: &Work) -> std::path::PathBuf {
    work.path().join("out")
}

fn run(work: &Work, job: &str, more: &[&str]) -> Files {
    let output = work.convert_job(job, more);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    files(&out(work))
}

/// Starts a conversion and kills it after `moment`, unless it is faster. Whether it was killed.
fn kill(work: &Work, job: &str, more: &[&str], moment: Duration) -> bool {
    fs::write(work.path().join("job.toml"), job).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_gristmill"))
        .args(["convert", "job.toml", "--input", "in", "--output", "out", "--quiet"])
        .args(more)
        .current_dir(work.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(moment);
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap().code().is_none()
}

/// Moments from nothing to somewhat more than `whole`, the same in every run.
fn moments(whole: Duration, seed: u64) -> impl Iterator<Item = Duration> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        whole.mul_f64((state >> 11) as f64 / (1_u64 << 53) as f64 * 1.1)
    })
}

#[test]
fn killed_at_any_moment_and_resumed_the_bytes_are_the_same() {
    let work = Work::of_batches(&cut(&recording(), 5000));
    for (seed, job) in (1..).zip([SHARDS, STATEFUL, QUARANTINE]) {
        let started = Instant::now();
        let whole = run(&work, job, &["--overwrite"]);
        let time = started.elapsed();
        let (mut killed, mut moments) = (0, moments(time, seed));
        while killed < kills() {
            fs::remove_dir_all(out(&work)).unwrap();
            // Killed once, and every third time twice.
            let mut times = 0;
            while times < 1 + u64::from(killed % 3 == 2) && kill(&work, job, &["--resume"], moments.next().unwrap()) {
                times += 1;
                assert!(
                    !out(&work).join("manifest.json").exists() || verified(&out(&work)),
                    "a manifest is the last thing"
                );
            }
            let resumed = run(&work, job, &["--resume"]);
            assert!(resumed == whole, "{job}: another result after {times} kills");
            killed += times;
        }
    }
}

/// Whether a data set is what its manifest says. The marks may still stand there: the run was stopped behind its last byte.
fn verified(dir: &Path) -> bool {
    let output = gristmill(&["verify", &dir.display().to_string(), "--json"], dir.parent().unwrap());
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let is_mark = |error: &Value| error["place"]["file"].as_str().is_some_and(|file| file.starts_with(".gristmill-"));
    let failed = report["checks"].as_array().unwrap().iter().filter(|check| check["status"] == "failed");
    output.status.code() == Some(i32::from(failed.clone().count() > 0))
        && failed.into_iter().all(|c| c["name"] == "files" && c["first"].as_array().unwrap().iter().all(is_mark))
}

#[test]
fn an_older_data_set_stays_until_the_new_one_is_whole() {
    let work = Work::of_batches(&cut(&recording(), 5000));
    let old = run(&work, STATEFUL, &[]);
    let started = Instant::now();
    let new = run(&work, SHARDS, &["--overwrite"]);
    let time = started.elapsed();
    let (mut killed, mut moments) = (0, moments(time, 7));
    while killed < kills() {
        run(&work, STATEFUL, &["--overwrite"]);
        if !kill(&work, SHARDS, &["--overwrite"], moments.next().unwrap()) {
            continue;
        }
        killed += 1;
        let left = if out(&work).exists() { files(&out(&work)) } else { Files::new() };
        let swapping = left.is_empty() && work.path().join(".out.gristmill-new/manifest.json").exists();
        assert!(
            left == old || left == new || swapping || left.contains_key(".gristmill-unfinished"),
            "{:?}",
            left.keys()
        );
        // Killed before a byte of the new one was written, there is nothing to go on with.
        let begun = left != old || work.path().join(".out.gristmill-new").exists();
        assert!(run(&work, SHARDS, &[if begun && killed % 2 == 0 { "--resume" } else { "--overwrite" }]) == new);
        let beside: Vec<_> = fs::read_dir(work.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(beside.iter().all(|n| !n.to_string_lossy().contains("gristmill-")), "{beside:?}");
    }
    // A run that fails in its second pass leaves the old one alone.
    let bad = Work::of(steps());
    let before = run(&bad, "", &[]);
    let rewards = arrow::array::Float64Array::from(vec![Some(1.0), None, None, None, None, None]);
    bad.parquet("a.parquet", &[batch(with(steps(), "rewards", std::sync::Arc::new(rewards)))]);
    assert_eq!(bad.convert_with(&["--overwrite"]).status.code(), Some(1));
    assert!(files(&out(&bad)) == before);
    assert!(!bad.path().join(".out.gristmill-new").exists());
}

/// What a run that was killed behind some shards leaves: those shards, a torn one, mark and journal.
fn interrupted(work: &Work, job: &str, keep: usize) {
    let whole = run(work, job, &["--overwrite"]);
    let manifest: Value = serde_json::from_slice(&whole["manifest.json"]).unwrap();
    let mut journal = serde_json::json!({
        "journal": 1, "gristmill": manifest["gristmill"], "job": manifest["job"], "pipeline": manifest["pipeline"],
        "inputs": manifest["input"]["files"].as_array().unwrap().iter().map(|f| serde_json::json!({
            "name": f["name"], "bytes": f["bytes"], "digest": f["digest"] })).collect::<Vec<_>>(),
    })
    .to_string()
        + "\n";
    let shards = manifest["modules"]["default_policy"]["shards"].as_array().unwrap();
    for (i, shard) in shards.iter().enumerate() {
        let path = out(work).join(shard["file"].as_str().unwrap());
        match i {
            _ if i < keep => journal += &(shard.to_string() + "\n"),
            _ if i == keep => fs::write(&path, "PAR1 torn").unwrap(),
            _ => fs::remove_file(&path).unwrap(),
        }
    }
    for name in ["manifest.json", "run.json"] {
        fs::remove_file(out(work).join(name)).unwrap();
    }
    fs::write(out(work).join(".gristmill-unfinished"), "").unwrap();
    fs::write(out(work).join(".gristmill-journal"), journal + "{\"file\": \"to").unwrap();
}

#[test]
fn finished_shards_are_kept_and_damaged_ones_written_anew() {
    let work = Work::of_batches(&cut(&recording(), 5000));
    let whole = run(&work, SHARDS, &[]);
    interrupted(&work, SHARDS, 5);
    let part = |i: usize| out(&work).join(format!("default_policy/part-{i:05}.parquet"));
    let time = |i: usize| fs::metadata(part(i)).unwrap().modified().unwrap();
    let before: Vec<_> = (0..5).map(time).collect();
    let told = stderr(&work.convert_job(SHARDS, &[]));
    contains(&told, &["found an unfinished data set", "hint: --resume goes on with it"]);
    assert!(run(&work, SHARDS, &["--resume"]) == whole);
    assert_eq!((0..5).map(time).collect::<Vec<_>>(), before, "whole shards are not written again");

    // Shard 2 is not what the journal says any more: it and those behind it are written anew.
    interrupted(&work, SHARDS, 5);
    fs::write(part(2), "something else").unwrap();
    assert!(run(&work, SHARDS, &["--resume"]) == whole);
    // Without a journal, or with one that is none, everything is.
    for journal in [None, Some("nonsense\n")] {
        interrupted(&work, SHARDS, 5);
        let path = out(&work).join(".gristmill-journal");
        match journal {
            None => fs::remove_file(path).unwrap(),
            Some(text) => fs::write(path, text).unwrap(),
        }
        assert!(run(&work, SHARDS, &["--resume"]) == whole);
    }
}

/// The files are held to their digests, the numbers of their rows to what they come to.
#[test]
fn a_journal_that_was_written_to_is_refused() {
    let work = Work::of_batches(&cut(&recording(), 5000));
    interrupted(&work, SHARDS, 3);
    let path = out(&work).join(".gristmill-journal");
    let journal = fs::read_to_string(&path).unwrap();
    assert_eq!(journal.matches("\"rows\":2000,").count(), 3, "{journal}");
    fs::write(&path, journal.replacen("\"rows\":2000,", "\"rows\":2001,", 1)).unwrap();
    let told = work.refused(1, &work.convert_job(SHARDS, &["--resume"]));
    contains(&told, &["journal says 2001 rows, and they are 2000", "part-00000.parquet", "hint: --overwrite"]);
}

#[test]
fn a_changed_job_or_input_is_refused_and_nothing_touched() {
    let work = Work::of(steps());
    let job = "[output]\nrows_per_shard = 2\n";
    interrupted(&work, job, 1);
    let before = files(&out(&work));
    let refused = |job: &str, told: &[&str]| {
        let output = work.convert_job(job, &["--resume"]);
        contains(&work.refused(2, &output), &[&["cannot go on with the unfinished data set"], told].concat());
        assert!(files(&out(&work)) == before);
    };
    refused(
        "[output]\nrows_per_shard = 3\n",
        &["the job is another: output.rows_per_shard differs", "hint: --overwrite"],
    );
    work.parquet("a.parquet", &[batch(with(steps(), "rewards", f64s(&[9.0; 6])))]);
    refused(job, &["the input file in/a.parquet has changed"]);
    work.parquet("a.parquet", &[batch(steps())]);
    work.parquet("b.parquet", &[batch(episodes("c", "d"))]);
    refused(job, &["found 2 input files, expected 1"]);
    // Somebody else's files stop it, too.
    fs::remove_file(work.input("b.parquet")).unwrap();
    fs::write(out(&work).join("notes.txt"), "mine").unwrap();
    let told = work.refused(2, &work.convert_job(job, &["--resume"]));
    contains(&told, &["notes.txt"]);
}

#[test]
fn resuming_nothing_begins_and_resuming_what_is_finished_is_done() {
    let work = Work::of(steps());
    let whole = run(&work, "", &["--resume"]);
    assert!(run(&work, "", &["--resume"]) == whole);
    let told = work.convert_job("", &["--resume"]);
    contains(&String::from_utf8(told.stdout).unwrap(), &["found   out, complete already: nothing was left to write"]);
    // Stopped behind the manifest: only the marks are left to go.
    fs::write(out(&work).join(".gristmill-unfinished"), "").unwrap();
    fs::write(out(&work).join(".gristmill-journal"), "").unwrap();
    assert!(run(&work, "", &["--resume"]) == whole);
    let output = work.convert_job("[output]\nformat = 'arrow'\n", &["--resume"]);
    assert_eq!(output.status.code(), Some(2));
    contains(&stderr(&output), &["found a finished data set of another job", "hint: --overwrite replaces it"]);
    assert!(files(&out(&work)) == whole);
}

/// What a run tells of a data set that is there already is what the run told that made it.
#[test]
fn a_finished_data_set_is_told_alike() {
    // One episode of two agents.
    let agents = ["a", "a", "a", "b", "b", "b"];
    let mut columns = crate::support::episodes("one", "one");
    columns.push(("agent_id", crate::support::texts(&agents)));
    let work = Work::of(columns);
    let told = |more: &[&str]| {
        let output = work.convert_with(&[&["--json", "--resume"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let mut told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        told["seconds"].take();
        told
    };
    let first = told(&[]);
    assert!(first["episode_ids"].as_u64() < first["episodes_in"].as_u64(), "{first}");
    assert_eq!(told(&[]), first);
}
