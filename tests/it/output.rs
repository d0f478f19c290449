//! Where the data set goes, and what may be in its way.

use std::fs;

use crate::cli::{gristmill, stderr};
use crate::support::{Work, batch, contains, content, shown, steps};

#[test]
fn an_output_directory_that_holds_something() {
    let work = Work::of(steps());
    fs::create_dir(work.path().join("out")).unwrap();
    fs::write(work.path().join("out/mine.txt"), "mine").unwrap();
    for more in [&[] as &[&str], &["--overwrite"]] {
        let told = work.refused(2, &work.convert_with(more));
        contains(&told, &["files that are not gristmill's (mine.txt)", "file out", "hint: choose another --output"]);
    }
    assert_eq!(fs::read(work.path().join("out/mine.txt")).unwrap(), b"mine");
}

#[test]
fn a_data_set_is_replaced_only_when_asked() {
    let work = Work::of(steps());
    let first = work.manifest();
    let refused = work.convert();
    assert_eq!(refused.status.code(), Some(2));
    contains(&stderr(&refused), &["found a data set of gristmill's", "--overwrite replaces it"]);
    assert_eq!(work.manifest_of(&work.convert_with(&["--overwrite"])), first);
    // And by one of another shape.
    work.manifest_of(&work.convert_with(&["--overwrite", "--format", "arrow"]));
    let names: Vec<_> =
        fs::read_dir(work.path().join("out/default_policy")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["part-00000.arrow"]);
}

#[test]
fn what_a_failed_run_leaves_is_no_data_set() {
    let work = Work::of(crate::support::with(
        steps(),
        "rewards",
        std::sync::Arc::new(arrow::array::Float64Array::new_null(6)),
    ));
    work.refuses(1, &["found null", "column `rewards`"]);
    assert!(!work.path().join("out").exists(), "a run that fails takes back what it wrote");
    work.parquet("a.parquet", &[batch(steps())]);
    work.manifest_of(&work.convert());
}

#[test]
fn an_older_data_set_stays_when_the_input_is_refused() {
    let work = Work::of(steps());
    let first = work.manifest();
    let shards = || crate::support::read_shards(&work.path().join("out/default_policy"));
    let rows = shards();
    // Episode `a` lacks a step: the first pass finds it, before anything is removed.
    work.parquet("a.parquet", &[crate::support::take(&batch(steps()), &[0, 2, 3, 4, 5])]);
    let output = work.convert_with(&["--overwrite"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    contains(&stderr(&output), &["t jumps from 0 to 2"]);
    let kept: serde_json::Value =
        serde_json::from_slice(&fs::read(work.path().join("out/manifest.json")).unwrap()).unwrap();
    assert_eq!((kept, shards()), (first, rows));
}

#[test]
fn what_a_killed_run_leaves_is_no_data_set() {
    let work = Work::of(steps());
    fs::create_dir_all(work.path().join("out/default_policy")).unwrap();
    fs::write(work.path().join("out/.gristmill-unfinished"), "").unwrap();
    fs::write(work.path().join("out/default_policy/part-00000.parquet"), "half").unwrap();
    // Not used by accident, not taken back by a run that it refused, and replaced when asked.
    for _ in 0..2 {
        work.refuses(2, &["found an unfinished data set of gristmill's", "--overwrite replaces it"]);
    }
    assert!(work.path().join("out/default_policy/part-00000.parquet").exists());
    work.manifest_of(&work.convert_with(&["--overwrite"]));
    assert!(!work.path().join("out/.gristmill-unfinished").exists());
}

#[test]
fn outputs_that_cannot_be() {
    let work = Work::of(steps());
    fs::write(work.path().join("out"), "a file").unwrap();
    work.refuses(2, &["found a file, expected a directory", "file out", "hint: choose another --output"]);
    for below in ["out/below", "out/far/below"] {
        let output = gristmill(&["convert", "--input", "in", "--output", below], work.path());
        contains(&work.refused(2, &output), &["found a file on the way to the output directory", below, "hint: "]);
    }
    assert_eq!(fs::read(work.path().join("out")).unwrap(), b"a file");
}

#[cfg(target_os = "linux")]
#[test]
fn an_output_that_may_not_be_written() {
    use std::os::unix::fs::PermissionsExt as _;
    let work = Work::of(steps());
    let locked = work.path().join("locked");
    fs::create_dir(&locked).unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o555)).unwrap();
    // Permissions bind nobody who is root; the kernel's own directories take no files from root either.
    let is_root = fs::write(locked.join("probe"), "").is_ok();
    let to = if is_root { "/proc/self/out" } else { "locked/out" };
    let output = gristmill(&["convert", "--input", "in", "--output", to], work.path());
    contains(&work.refused(3, &output), &["cannot create the output directory", to]);
}

#[test]
fn the_input_is_never_overwritten() {
    let work = Work::of(steps());
    // A data set of gristmill's as the input of a run that would replace it.
    let output = gristmill(&["convert", "--input", "in", "--output", "in/out"], work.path());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let shards = "in/out/default_policy";
    let output = gristmill(&["convert", "--input", shards, "--output", "in/out", "--overwrite"], work.path());
    let told = work.refused(2, &output);
    contains(
        &told,
        &[
            "found the input file inside the output directory in/out",
            "file in/out/default_policy/part-00000.parquet",
            "hint: ",
        ],
    );
    assert!(work.path().join("in/out/manifest.json").exists(), "what was there is there");
}

#[test]
fn arrow_files() {
    let work = Work::of(steps());
    let parquet = work.manifest();
    let rows = work.rows();
    let arrow = work.manifest_of(&work.convert_with(&["--overwrite", "--format", "arrow"]));
    assert_eq!(content(&parquet), content(&arrow), "the content is the same in any format");
    for column in ["eps_id", "t", "obs", "actions", "rewards", "terminateds", "truncateds"] {
        assert_eq!(shown(&rows, column), shown(&work.rows(), column));
    }
}

#[test]
fn tensors_as_bytes_are_the_same_values_and_can_be_read_again() {
    let list = Work::of(steps()).manifest();
    for format in ["parquet", "arrow"] {
        let work = Work::of(steps());
        let job = format!("version = 1\n[output]\ntensors = \"binary\"\nformat = {format:?}\n");
        let binary = work.manifest_of(&work.convert_job(&job, &[]));
        assert_eq!(content(&binary), content(&list), "the content is the same, however it is stored");
        let obs = work.rows().column_by_name("obs").unwrap().data_type().clone();
        assert!(matches!(obs, arrow::datatypes::DataType::FixedSizeBinary(_)), "{obs}");
        // Shards are step logs, too.
        let args = ["convert", "--input", "out/default_policy", "--output", "again", "--quiet"];
        let again = gristmill(&args, work.path());
        assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));
        let again = fs::read(work.path().join("again/manifest.json")).unwrap();
        assert_eq!(content(&serde_json::from_slice(&again).unwrap()), content(&list));
    }
}
