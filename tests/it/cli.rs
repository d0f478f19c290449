//! The command line: help, exit codes, where text goes.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub fn gristmill(args: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gristmill"));
    command.args(args).current_dir(dir).env_remove("RUST_BACKTRACE").env("COLUMNS", "100");
    command.output().expect("the binary runs")
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("stdout is text")
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("stderr is text")
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("stdout is exactly one JSON document")
}

#[test]
fn every_command_has_help_with_examples() {
    for args in [
        &["--help"] as &[&str],
        &["convert", "--help"],
        &["plan", "--help"],
        &["inspect", "--help"],
        &["verify", "--help"],
        &["diff", "--help"],
        &["connectors", "--help"],
        &["schema", "--help"],
    ] {
        let output = gristmill(args, here());
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(stdout(&output).contains("Examples:\n  gristmill "), "{args:?}: {}", stdout(&output));
        assert!(output.stderr.is_empty(), "{args:?}");
    }
    let help = stdout(&gristmill(&["--help"], here()));
    for command in ["convert", "plan", "inspect", "verify", "diff", "connectors", "schema"] {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
    }
}

#[test]
fn version_is_told() {
    let output = gristmill(&["--version"], here());
    assert_eq!(stdout(&output), concat!("gristmill ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn wrong_arguments_exit_with_2() {
    for args in [
        &[] as &[&str],
        &["mill"],
        &["convert"],
        &["convert", "--threads", "0", "job.toml"],
        &["convert", "--memory-limit", "4XB", "job.toml"],
        &["convert", "--format", "csv", "job.toml"],
        &["convert", "--resume", "--overwrite", "job.toml"],
        &["convert", "--resume", "job.toml"],
        &["convert", "no-such-job.toml"],
        &["convert", "src"],
        &["plan"],
        &["schema", "jobs"],
        &["inspect"],
        &["verify"],
        &["diff", "one"],
        &["connectors", "NoSuchPiece"],
    ] {
        let output = gristmill(args, here());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{args:?}: {}", stdout(&output));
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn no_threads_are_too_few() {
    let output = gristmill(&["convert", "--threads", "0", "job.toml"], here());
    assert!(stderr(&output).contains("found 0, expected a whole number of at least 1"), "{}", stderr(&output));
}

#[test]
fn a_directory_or_a_recording_is_no_job() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.parquet"), b"PAR1\xff\xfe\x00PAR1").unwrap();
    for job in [".", "a.parquet"] {
        let output = gristmill(&["convert", job], dir.path());
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("hint: to convert recordings without a job: gristmill convert --input PATH"));
    }
}

#[test]
fn errors_are_one_json_document() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("job.toml"), "[input]\npaths = ['x']\nlayot = 'steps'\n[output]\nformat = 1\n")
        .unwrap();
    for args in [["convert", "job.toml", "--json"], ["plan", "job.toml", "--json"]] {
        let output = gristmill(&args, dir.path());
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stderr.is_empty(), "{}", stderr(&output));
        let document = json(&output);
        let errors = document["errors"].as_array().unwrap();
        assert_eq!(errors.len(), 2);
        assert_eq!(errors[0]["kind"], "usage");
        assert_eq!(errors[0]["place"]["job_key"], "input.layot");
        assert_eq!(errors[0]["place"]["file"], "job.toml:3");
        assert_eq!(errors[0]["hint"], "did you mean `layout`?");
        assert!(errors[1]["what"].as_str().unwrap().starts_with("found 1, expected one of"));
    }
    // What clap refuses is told the same way.
    let output = gristmill(&["convert", "job.toml", "--json", "--no-such-flag"], dir.path());
    assert_eq!(output.status.code(), Some(2));
    assert!(json(&output)["errors"][0]["what"].as_str().unwrap().contains("--no-such-flag"));
}

#[test]
fn a_closed_stdout_is_no_panic() {
    for args in [&["schema", "job"] as &[&str], &["--help"], &["connectors"], &["convert", "--json"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_gristmill"))
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Nobody reads: the pipe is gone before the first byte, or soon after.
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 2)), "{args:?}: {:?} {stderr}", output.status);
        assert!(stderr.is_empty(), "{args:?}: {stderr}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_stdout_is_the_surroundings_fault() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_gristmill")).args(["schema", "job"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).starts_with("error: cannot write to stdout"));
}

#[test]
fn the_shell_may_expand_a_glob_after_input() {
    // Both forms must get as far as the job: a missing job file is what is found wrong, not an argument.
    for args in [
        &["plan", "--input", "a.parquet", "b.parquet", "no-such-job.toml"] as &[&str],
        &["plan", "no-such-job.toml", "--input", "a.parquet", "--input", "b.parquet"],
    ] {
        let output = gristmill(args, here());
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).starts_with("error: cannot read the job"), "{}", stderr(&output));
    }
}

#[test]
fn schemas_are_printed() {
    for document in ["job", "manifest"] {
        let output = gristmill(&["schema", document], here());
        assert_eq!(output.status.code(), Some(0));
        assert!(json(&output).is_object());
    }
}
