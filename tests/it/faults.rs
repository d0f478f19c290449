//! The surroundings fail: no room, no directory, no permission, an input that changes, a signal. The exit code tells whose
//! turn it is, the message what happened where, nothing looks finished, and `--resume` makes what an undisturbed run makes.

#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::cli::stderr;
use crate::determinism::{cut, files, recording};
use crate::support::{Work, contains};

/// Many small shards, in order: enough time to disturb the run.
const JOB: &str = "[output]\nrows_per_shard = 400\n";
const SHARD: &str = "out/default_policy/part-00003.parquet";

const ARGS: [&str; 9] = ["convert", "job.toml", "--input", "in", "--output", "out", "--quiet", "--threads", "1"];

fn work() -> Work {
    let work = Work::of_batches(&cut(&recording(), 5000));
    fs::write(work.path().join("job.toml"), JOB).unwrap();
    work
}

fn start(work: &Work, more: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gristmill"));
    command.args(ARGS).args(more).current_dir(work.path()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Starts a conversion, stops it once the file `mark` is there, and lets `disturb` happen before it goes on.
fn disturbed(work: &Work, mark: &str, disturb: impl FnOnce(&Child)) -> Output {
    let child = start(work, &[]);
    let started = Instant::now();
    while !work.path().join(mark).exists() {
        assert!(started.elapsed() < Duration::from_mins(1), "the run never came to {mark}");
        std::thread::sleep(Duration::from_micros(200));
    }
    signal(&child, "STOP");
    assert!(!work.path().join("out/manifest.json").exists(), "the run was too fast to be disturbed");
    disturb(&child);
    signal(&child, "CONT");
    child.wait_with_output().unwrap()
}

/// An undisturbed run's files, which a run that goes on must make, too.
fn resumes_to_the_same(work: &Work) {
    let resumed = start(work, &["--resume"]).wait_with_output().unwrap();
    assert_eq!(resumed.status.code(), Some(0), "{}", stderr(&resumed));
    let resumed = files(&work.path().join("out"));
    fs::remove_dir_all(work.path().join("out")).unwrap();
    let whole = start(work, &[]).wait_with_output().unwrap();
    assert_eq!(whole.status.code(), Some(0), "{}", stderr(&whole));
    assert!(files(&work.path().join("out")) == resumed);
}

#[test]
fn signals_end_the_run_and_say_how_to_go_on() {
    for (name, number) in [("TERM", 15), ("INT", 2)] {
        let work = work();
        let output = disturbed(&work, SHARD, |child| signal(child, name));
        // A shell has 128 + its number as the exit code.
        assert_eq!(output.status.signal(), Some(number), "{}", stderr(&output));
        contains(&stderr(&output), &[&format!("error: interrupted by SIG{name}"), "hint: ", "--resume"]);
        assert!(!work.path().join("out/manifest.json").exists());
        assert!(work.path().join(SHARD).exists(), "finished shards stay");
        resumes_to_the_same(&work);
    }
}

/// `ulimit -f` stands for a disk without room: writing fails at some byte, wherever that is.
#[test]
fn writing_that_fails_is_told_and_taken_back() {
    for blocks in [0, 1, 2, 4, 60] {
        let work = work();
        fs::write(work.path().join("job.toml"), "[output]\ncompression = 'none'\n").unwrap();
        let limited = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
        let output = Command::new("sh")
            .args(["-c", &limited, "sh", env!("CARGO_BIN_EXE_gristmill")])
            .args(ARGS)
            .current_dir(work.path())
            .output()
            .unwrap();
        let told = work.refused(3, &output);
        contains(&told, &["File too large", "at: file out", "hint: ", "ulimit -f"]);
        assert!(!work.path().join("out").exists(), "{blocks}: {:?}", files(&work.path().join("out")).keys());
        resumes_to_the_same(&work);
    }
}

#[test]
fn an_output_directory_that_vanishes() {
    let work = work();
    let out = work.path().join("out");
    let output = disturbed(&work, SHARD, |_| fs::remove_dir_all(&out).unwrap());
    let told = work.refused(3, &output);
    contains(&told, &["cannot ", "No such file or directory", "at: file out", "hint: the directory was removed"]);
    assert!(!out.exists(), "it is not made again");
    resumes_to_the_same(&work);
}

#[test]
fn permission_that_is_lost() {
    let work = work();
    let folder = work.path().join("out/default_policy");
    let allow = |mode| fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
    let (probe, aside) = (folder.join("probe"), work.path().join("aside"));
    let mut is_root = false;
    let output = disturbed(&work, SHARD, |_| {
        allow(0o555);
        is_root = fs::write(&probe, "").is_ok();
        // Nobody takes a permission from root, who cannot write into a regular file's folder either.
        if is_root {
            fs::remove_file(&probe).unwrap();
            fs::rename(&folder, &aside).unwrap();
            fs::write(&folder, "").unwrap();
        }
    });
    let told = work.refused(3, &output);
    if is_root {
        contains(&told, &["cannot ", "Not a directory", "at: file out"]);
        // The file is somebody else's: it stays, and what the run wrote is gone with its folder.
        assert!(folder.is_file());
        fs::remove_file(&folder).unwrap();
    } else {
        contains(&told, &["cannot ", "Permission denied", "at: file out", "hint: choose an --output directory"]);
        allow(0o755);
    }
    resumes_to_the_same(&work);
}

/// What is done to a file, and what is said of it.
type Change<'a> = (&'a dyn Fn(&Path), &'a str);

#[test]
fn an_input_that_changes_while_it_is_read() {
    let truncate = |path: &Path| fs::File::options().write(true).open(path).unwrap().set_len(1000).unwrap();
    let touch = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        fs::write(path, bytes).unwrap();
    };
    let replace = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        fs::remove_file(path).unwrap();
        fs::write(path, bytes).unwrap();
    };
    let remove = |path: &Path| fs::remove_file(path).unwrap();
    let changes: [Change<'_>; 4] = [
        (&truncate, "the file changed while it was being read: found 1000 bytes"),
        (&touch, "the file changed while it was being read"),
        (&replace, "the file changed while it was being read"),
        (&remove, "the file was removed or renamed while it was being read: No such file or directory"),
    ];
    for mode in ["fail", "skip"] {
        for (change, told) in changes {
            let work = work();
            let job = format!("[input]\non_bad_episode = '{mode}'\n{JOB}");
            fs::write(work.path().join("job.toml"), job).unwrap();
            let path = work.input("a.parquet");
            let before = fs::read(&path).unwrap();
            let output = disturbed(&work, SHARD, |_| change(&path));
            // Never a lost row group that `skip` counts: the recording may be fine, it was just not left alone.
            let hint = "hint: convert recordings that nobody writes to any more; run it again";
            contains(&work.refused(3, &output), &[told, "at: file in/a.parquet", hint]);
            fs::write(&path, before).unwrap();
            if mode == "skip" && told.contains("removed") {
                resumes_to_the_same(&work);
            }
        }
    }
}

#[test]
fn names_that_try_to_leave_the_output_directory() {
    let ids = ["../../climb", "/root", "a/b", "..", ".", "", "ünï\u{202e}côdé", "C:\\x", "nul\u{0}", "manifest.json"];
    let steps = crate::support::steps();
    for id in ids {
        let work = Work::of(crate::support::with(
            crate::support::with(steps.clone(), "agent_id", crate::support::texts(&["x"; 6])),
            "module_id",
            crate::support::texts(&[id; 6]),
        ));
        let output = work.convert();
        assert_eq!(output.status.code(), Some(0), "{id:?}: {}", stderr(&output));
        let mut there: Vec<_> = fs::read_dir(work.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        there.sort();
        assert_eq!(there, ["in", "out"], "{id:?}");
        let folders = fs::read_dir(work.path().join("out")).unwrap().filter(|e| e.as_ref().unwrap().path().is_dir());
        assert_eq!(folders.count(), 1, "{id:?}");
        let verified = crate::cli::gristmill(&["verify", "out", "--quiet"], work.path());
        assert_eq!(verified.status.code(), Some(0), "{id:?}: {}", stderr(&verified));
    }
}

#[test]
fn links_in_the_output_directory_are_not_followed() {
    let work = Work::of(crate::support::steps());
    assert_eq!(work.convert().status.code(), Some(0));
    let (out, other) = (work.path().join("out"), work.path().join("other"));
    // The module's folder becomes a link to one with a file of the same name.
    fs::rename(out.join("default_policy"), &other).unwrap();
    std::os::unix::fs::symlink(&other, out.join("default_policy")).unwrap();
    let before = files(&other);
    for more in [&["--overwrite"] as &[&str], &["--resume"], &[]] {
        let output = work.convert_with(more);
        if output.status.code() == Some(0) {
            assert_eq!(more, ["--resume"], "a finished data set is left as it is");
        }
        assert!(files(&other) == before, "{more:?}");
    }
}
