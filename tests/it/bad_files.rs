//! Files that are missing, cut off, damaged, or something else.

use std::fs;

use arrow::array::{Array, Int64Array, NullArray, StringArray};
use std::sync::Arc;

use crate::cli::{gristmill, stderr};
use crate::support::{Work, batch, contains, f64s, i64s, lists, steps, take, texts, with, without};

/// `in/a.parquet` after `change` to its bytes.
fn damaged(change: impl FnOnce(&mut Vec<u8>)) -> Work {
    let work = Work::of(steps());
    let path = work.input("a.parquet");
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(&path, bytes).unwrap();
    work
}

#[test]
fn a_missing_file_is_told_with_its_neighbours() {
    let work = Work::of(steps());
    let output = gristmill(&["convert", "--input", "in/b.parquet", "--output", "out"], work.path());
    let told = work.refused(2, &output);
    contains(
        &told,
        &["there is no file or directory in/b.parquet", "holds a.parquet", "hint: did you mean \"a.parquet\"?"],
    );
}

#[test]
fn an_empty_directory_and_a_glob_without_match() {
    let work = Work::new();
    work.refuses(2, &["found no data files in the directory in", "is empty"]);
    fs::write(work.input("notes.txt"), "hello").unwrap();
    work.refuses(2, &["looked for *.parquet", "holds notes.txt"]);
    let output = gristmill(&["convert", "--input", "in/*.parquet", "--output", "out"], work.path());
    contains(&work.refused(2, &output), &["the glob `in/*.parquet` matches nothing", "holds notes.txt"]);
    assert!(!work.path().join("out").exists(), "nothing is created for an input that is not there");
}

#[test]
fn cut_off_files() {
    damaged(|bytes| bytes.truncate(bytes.len() / 2))
        .refuses(2, &["the Parquet file is cut off", "do not end in `PAR1`", "at: file in/a.parquet", "hint: "]);
    damaged(Vec::clear).refuses(2, &["the file is empty (0 bytes)", "at: file in/a.parquet", "hint: a recorder"]);
    damaged(|bytes| bytes[..4].copy_from_slice(b"XXXX")).refuses(
        2,
        &["no `PAR1` and no `ARROW1` at its start", "expected Parquet or Arrow IPC", "at: file in/a.parquet", "hint: "],
    );
    // A footer that claims to be longer than the file.
    damaged(|bytes| {
        let at = bytes.len() - 8;
        bytes[at..at + 4].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    })
    .refuses(2, &["the file is damaged", "at: file in/a.parquet", "hint: "]);
    let work = Work::new();
    work.arrow("a.arrow", &[batch(steps())]);
    let bytes = fs::read(work.input("a.arrow")).unwrap();
    fs::write(work.input("a.arrow"), &bytes[..bytes.len() - 100]).unwrap();
    work.refuses(2, &["the Arrow file is cut off", "do not end in `ARROW1`", "at: file in/a.arrow", "hint: "]);
}

#[test]
fn a_flipped_byte_in_a_page_is_found_and_its_column_named() {
    let work = Work::new();
    let path = work.input("a.parquet");
    let whole = include_bytes!("data/checksums.parquet");
    fs::write(&path, whole).unwrap();
    work.manifest();
    // The rewards lie in the file as they are.
    let rewards: Vec<u8> = [1.0_f64, 2.0, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let at = whole.windows(rewards.len()).position(|w| w == rewards).expect("plain values");
    let mut bytes = whole.to_vec();
    bytes[at + 3] ^= 0x10;
    let work = Work::new();
    fs::write(work.input("a.parquet"), bytes).unwrap();
    let place = "at: file in/a.parquet, row group 0, column `rewards`";
    work.refuses(2, &["the file is damaged", "CRC", place, "hint: copy or record the file again"]);
}

#[test]
fn files_and_row_groups_without_rows() {
    let all = batch(steps());
    let work = Work::new();
    work.parquet("a.parquet", &[all.slice(0, 0)]);
    work.refuses(2, &["found no rows in 1 file(s)", "at: file in/a.parquet", "hint: "]);
    // Among others they are fine: an empty file, and an empty record batch between full ones.
    work.arrow("b.arrow", &[all.slice(0, 2), all.slice(0, 0), all.slice(2, 4)]);
    let manifest = work.manifest();
    assert_eq!((&manifest["counts"]["rows_out"], &manifest["counts"]["episodes_in"]), (&6.into(), &2.into()));
    assert!(manifest["notes"].to_string().contains("in/a.parquet holds no rows"), "{}", manifest["notes"]);
}

#[test]
fn other_peoples_files_are_told_what_they_are() {
    for (bytes, found) in [
        (&b"{\"obs\": 1}"[..], "found JSON"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "found a gzip archive"),
        (b"\x89HDF\r\n\x1a\n", "found HDF5"),
        (b"t,obs,reward\n", "found text"),
    ] {
        let work = Work::new();
        fs::write(work.input("a.parquet"), bytes).unwrap();
        work.refuses(2, &[found, "at: file in/a.parquet", "hint: "]);
    }
}

#[test]
fn missing_columns_list_what_is_there() {
    let mut columns = without(steps(), &["obs", "rewards"]);
    columns.push(("observation", with(steps(), "t", i64s(&[0; 6])).swap_remove(2).1));
    Work::of(columns).refuses(
        2,
        &[
            "missing columns obs, rewards: found the columns eps_id, t, actions, terminateds, truncateds, observation",
            "at: file in/a.parquet",
            "hint: say in the job, under [input], which column is which: `columns = { obs = \"observation\", rewards = \"...\" }`",
        ],
    );
}

#[test]
fn wrong_types_are_told() {
    let text = || texts(&["low", "low", "low", "high", "high", "high"]);
    Work::of(with(steps(), "rewards", text())).refuses(
        2,
        &[
            "found text, expected numbers",
            "at: file in/a.parquet",
            "column `rewards`",
            "hint: cast the column to numbers",
        ],
    );
    Work::of(with(steps(), "terminateds", text()))
        .refuses(2, &["found text, expected booleans", "column `terminateds`", "hint: "]);
    Work::of(with(steps(), "eps_id", f64s(&[0.0; 6])))
        .refuses(2, &["found float64, expected ids", "column `eps_id`", "hint: cast the column"]);
    Work::of(with(steps(), "t", text())).refuses(2, &["found text, expected integers", "column `t`", "hint: "]);
    Work::of(with(steps(), "obs", Arc::new(NullArray::new(6))))
        .refuses(2, &["the column is null in every row", "at: file in/a.parquet", "column `obs`"]);
    // A field inside an observation is named itself.
    let field = |name: &str, array: &arrow::array::ArrayRef| {
        Arc::new(arrow::datatypes::Field::new(name, array.data_type().clone(), true))
    };
    let (pos, mode) = (f64s(&[0.0; 6]), text());
    let dict = arrow::array::StructArray::from(vec![(field("pos", &pos), pos), (field("mode", &mode), mode)]);
    Work::of(with(steps(), "obs", Arc::new(dict))).refuses(2, &["found text, expected numbers", "column `obs/mode`"]);
}

#[test]
fn files_that_cannot_be_one_table_are_named() {
    let two = |name, array| {
        let work = Work::of(steps());
        work.parquet("b.parquet", &[batch(with(crate::support::episodes("c", "d"), name, array))]);
        work
    };
    let rewards: Int64Array = vec![1; 6].into();
    two("rewards", Arc::new(rewards)).refuses(
        2,
        &["found float64 in in/a.parquet and int64 in in/b.parquet", "column `rewards`", "hint: no type holds both"],
    );
    two("obs", lists(&[Some([0.0; 3].as_slice()); 6]))
        .refuses(2, &["found shape [2] in in/a.parquet and shape [3] in in/b.parquet", "column `obs`", "hint: "]);
    two("extra", f64s(&[0.0; 6]))
        .refuses(2, &["the column is in in/b.parquet and not in in/a.parquet", "column `extra`", "hint: "]);
    two("eps_id", i64s(&[1, 1, 1, 2, 2, 2])).refuses(2, &["found text in in/a.parquet and integers in in/b.parquet"]);
    // Without `t` a file's rows could not be told from repetitions of another's.
    let work = Work::of(steps());
    work.parquet("b.parquet", &[batch(without(crate::support::episodes("c", "d"), &["t"]))]);
    work.refuses(2, &["the column is in in/a.parquet and not in in/b.parquet", "column `t`", "hint: "]);
}

#[test]
fn agents_are_named_in_every_row_or_in_none() {
    let agents = StringArray::from(vec![Some("red"), None, Some("red"), Some("red"), Some("red"), Some("red")]);
    Work::of(with(steps(), "agent_id", Arc::new(agents)))
        .refuses(1, &["found null, expected an id", "row group 0, row 1, column `agent_id`"]);
    Work::of(with(steps(), "agent_id", Arc::new(NullArray::new(6)))).manifest();
}

#[test]
fn hostile_names_do_not_steer_the_terminal() {
    let work = Work::new();
    let columns = with(steps(), "eps_id", texts(&["\u{1b}[31m\n"; 6]));
    work.parquet("a.parquet", &[take(&batch(columns), &[0, 2])]);
    let told = stderr(&work.convert());
    assert!(!told.contains('\u{1b}') && told.contains("\\u{1b}[31m\\n"), "{told}");
    let long = "x".repeat(100_000);
    let work = Work::of(with(steps(), "eps_id", texts(&[long.as_str(); 6])));
    let told = work.refused(1, &work.convert());
    assert!(told.len() < 1000 && told.contains("... (100000 bytes)"), "{} bytes", told.len());
}

/// What is no file is told as what it is: a FIFO without a writer would be waited for.
#[cfg(unix)]
#[test]
fn only_files_are_opened() {
    let work = Work::of(steps());
    let fifo = |path: &std::path::Path| {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    fifo(&work.input("x.parquet"));
    work.refuses(2, &["found a FIFO (a named pipe), expected a file", "at: file in/x.parquet"]);
    let looked = crate::cli::stdout(&gristmill(&["inspect", "in"], work.path()));
    contains(&looked, &["found a FIFO (a named pipe), expected a file", "in/x.parquet"]);
    let skipped = work.convert_job("[input]\non_bad_episode = 'skip'\n", &["--overwrite"]);
    contains(&crate::cli::stdout(&skipped), &["found a FIFO"]);
    fs::remove_dir_all(work.path().join("out")).unwrap();
    fs::remove_file(work.input("x.parquet")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(work.input("x.parquet")).unwrap();
    work.refuses(2, &["found a socket, expected a file", "at: file in/x.parquet"]);
    fs::remove_file(work.input("x.parquet")).unwrap();
    let told = work.refused(2, &gristmill(&["plan", "--input", "/dev/zero"], work.path()));
    contains(&told, &["found a device, expected a file"]);
    // A folder is searched, whatever it is called.
    fs::create_dir(work.input("b.parquet")).unwrap();
    fs::rename(work.input("a.parquet"), work.input("b.parquet/a.parquet")).unwrap();
    assert_eq!(work.convert_with(&["--overwrite"]).status.code(), Some(0));

    // In the place of a manifest, of a job, of a data set.
    fs::remove_file(work.path().join("out/manifest.json")).unwrap();
    fifo(&work.path().join("out/manifest.json"));
    fifo(&work.path().join("fifo"));
    let (found, unread) = ("found a FIFO (a named pipe), expected ", "the manifest.json beside them cannot be read");
    for (args, told) in [
        (&["verify", "out"][..], found),
        (&["verify", "fifo"], found),
        (&["diff", "out", "out"], found),
        (&["diff", "fifo", "fifo"], found),
        (&["inspect", "fifo"], found),
        (&["inspect", "out"], unread),
        (&["convert", "--input", "out", "--output", "new"], unread),
        (&["convert", "fifo", "--output", "other"], found),
        (&["convert", "--input", "in", "--output", "fifo"], found),
        (&["plan", "fifo"], found),
    ] {
        let output = gristmill(args, work.path());
        contains(&(stderr(&output) + &crate::cli::stdout(&output)), &[told]);
    }
    let output = gristmill(&["convert", "/dev/zero", "--output", "other"], work.path());
    assert_eq!(output.status.code(), Some(2));
    contains(&stderr(&output), &["found a device, expected a file", "at: file /dev/zero"]);
    contains(&stderr(&work.convert()), &["found default_policy/part-00000.parquet and no manifest.json"]);
}

#[cfg(unix)]
#[test]
fn a_link_to_nothing_is_told_as_one() {
    let work = Work::of(steps());
    std::os::unix::fs::symlink("gone", work.path().join("lnk")).unwrap();
    for (input, told) in [
        ("lnk", "there is no file or directory lnk: "),
        ("lnk/deeper/*.parquet", "lnk"),
        ("lnk/a.parquet", "there is no file or directory lnk/a.parquet: "),
    ] {
        let output = gristmill(&["convert", "--input", input, "--output", "out"], work.path());
        let said = work.refused(2, &output);
        contains(&said, &[told]);
        assert!(!said.contains("did you mean"), "{said}");
        assert!(input.contains('*') || said.contains("lnk is a link to gone, which is not there"), "{said}");
    }
    std::os::unix::fs::symlink("gone.parquet", work.input("b.parquet")).unwrap();
    work.refuses(2, &["b.parquet is a link to gone.parquet, which is not there", "at: file in/b.parquet"]);
}
