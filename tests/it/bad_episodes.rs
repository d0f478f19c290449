//! `input.on_bad_episode` = skip or quarantine: what is malformed goes, as a whole; the rest comes out as if it had never
//! been there; the numbers add up.

use std::fs;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Value, json};

use crate::cli::{gristmill, stderr, stdout};
use crate::support::{
    Columns, Work, batch, binaries, contains, content, i32s, lists, read_shards, texts, with, without,
};

const SKIP: &str = "[input]\non_bad_episode = 'skip'\n";
const QUARANTINE: &str = "[input]\non_bad_episode = 'quarantine'\n";
const PIECES: &str = "[rl_module]\nstateful = true\nmax_seq_len = 2\ninitial_state = { h = { shape = [1] } }\n\
                      [[learner.connectors]]\ntype = 'CountBasedCuriosity'\n\
                      [[learner.connectors]]\ntype = 'ClipRewards'\nlimit = 1.5\n";

/// A row of the recording: id, t, obs, reward, end.
#[derive(Clone)]
struct Row(Option<&'static str>, Option<i64>, Option<Vec<f32>>, Option<f64>, Option<bool>);

/// Three good rows of an episode.
fn good(id: &'static str) -> Vec<Row> {
    let obs = |t: i64| Some(vec![id.len() as f32, t as f32]);
    (0..3).map(|t| Row(Some(id), Some(t), obs(t), Some(t as f64), Some(t == 2))).collect()
}

fn columns(rows: &[Row]) -> Columns {
    let obs: Vec<Option<&[f32]>> = rows.iter().map(|r| r.2.as_deref()).collect();
    vec![
        ("eps_id", Arc::new(StringArray::from(rows.iter().map(|r| r.0).collect::<Vec<_>>()))),
        ("t", Arc::new(Int64Array::from(rows.iter().map(|r| r.1).collect::<Vec<_>>()))),
        ("obs", lists(&obs)),
        ("actions", i32s(&vec![Some(1); rows.len()])),
        ("rewards", Arc::new(Float64Array::from(rows.iter().map(|r| r.3).collect::<Vec<_>>()))),
        ("terminateds", Arc::new(BooleanArray::from(rows.iter().map(|r| r.4).collect::<Vec<_>>()))),
    ]
}

/// Every kind of malformed episode, by what is told of it.
fn bad() -> Vec<(&'static str, Vec<Row>)> {
    let change = |id, at: usize, change: fn(&mut Row)| {
        let mut rows = good(id);
        change(&mut rows[at]);
        rows
    };
    let mut again = good("conflict");
    again.extend(change("conflict", 1, |r| r.3 = Some(9.0)));
    let mut after = good("after");
    after.push(Row(Some("after"), Some(3), Some(vec![0.0, 0.0]), Some(0.0), Some(false)));
    vec![
        ("t jumps from 1 to 7", change("gap", 2, |r| r.1 = Some(7))),
        ("found null, expected a value in every row", change("null reward", 1, |r| r.3 = None)),
        ("found null, expected a value in every row", change("null obs", 0, |r| r.2 = None)),
        ("found shape [3]", change("ragged", 1, |r| r.2 = Some(vec![0.0; 3]))),
        ("found null, expected a time step", change("null t", 1, |r| r.1 = None)),
        ("found null, expected true or false", change("null flag", 2, |r| r.4 = None)),
        ("two rows of the same episode and t differ", again),
        ("the episode goes on after its end", after),
    ]
}

/// The manifest of a conversion that must succeed, checked by `verify`.
fn manifest(work: &Work, job: &str) -> Value {
    let output = work.convert_job(job, &["--overwrite"]);
    let manifest = work.manifest_of(&output);
    let verified = gristmill(&["verify", "out"], work.path());
    assert_eq!(verified.status.code(), Some(0), "{}", stdout(&verified));
    manifest
}

fn quarantined(work: &Work) -> RecordBatch {
    let file = File::open(work.path().join("out/quarantine/part-00000.parquet")).unwrap();
    let batches = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap().map(Result::unwrap);
    let batches: Vec<RecordBatch> = batches.collect();
    arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap()
}

fn column(rows: &RecordBatch, name: &str) -> Vec<String> {
    let array: &ArrayRef = rows.column_by_name(name).unwrap();
    let format = arrow::util::display::FormatOptions::default().with_null("-");
    let shown = arrow::util::display::ArrayFormatter::try_new(array, &format).unwrap();
    (0..array.len()).map(|i| shown.value(i).to_string()).collect()
}

#[test]
fn what_is_left_comes_out_as_if_the_rest_had_never_been_there() {
    let keep = [good("a"), good("bb"), good("ccc")].concat();
    for (told, rows) in bad() {
        let all = [good("a"), rows.clone(), good("bb"), good("ccc")].concat();
        for pieces in ["", PIECES] {
            let only_good = Work::of(columns(&keep));
            let expected = content(&manifest(&only_good, pieces));
            let work = Work::of(columns(&all));
            assert_eq!(work.convert_job(pieces, &[]).status.code(), Some(1), "{told}: fail is the default");
            let skipped = manifest(&work, &format!("{SKIP}{pieces}"));
            assert_eq!(content(&skipped), expected, "{told}");
            let counts = &skipped["counts"];
            assert_eq!((&counts["bad_episodes"], &counts["episodes_out"]), (&json!(1), &json!(3)), "{told}: {counts}");
            assert_eq!(counts["steps_in"].as_u64().unwrap(), 9 + counts["bad_steps"].as_u64().unwrap());
            assert_eq!(counts["bad_steps"], rows.len(), "{told}");
            contains(&skipped["problems"].to_string(), &["malformed episode was left out", told, "in/a.parquet"]);
            let aside = manifest(&work, &format!("{QUARANTINE}{pieces}"));
            assert_eq!(content(&aside), expected);
            let list = quarantined(&work);
            assert_eq!(list.num_rows(), rows.len(), "{told}");
            contains(&column(&list, "reason")[0], &[told]);
        }
    }
}

#[test]
fn all_kinds_at_once_with_any_threads_and_row_groups() {
    let mut rows = good("a");
    for (_, episode) in bad() {
        rows.extend(episode);
        rows.extend(
            good("bb")
                .into_iter()
                .map(|mut r| {
                    r.0 = None;
                    r
                })
                .take(1),
        );
    }
    rows.extend(good("bb"));
    let expected = content(&manifest(&Work::of(columns(&[good("a"), good("bb")].concat())), ""));
    let all = batch(columns(&rows));
    let mut manifests: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for (group, threads) in [(1000, "1"), (1000, "3"), (5, "2"), (1, "2")] {
        let groups: Vec<RecordBatch> =
            (0..all.num_rows()).step_by(group).map(|at| all.slice(at, group.min(all.num_rows() - at))).collect();
        let work = Work::of_batches(&groups);
        let output = work.convert_job(QUARANTINE, &["--threads", threads]);
        let manifest = work.manifest_of(&output);
        assert_eq!(content(&manifest), expected);
        assert_eq!((&manifest["counts"]["bad_episodes"], &manifest["counts"]["bad_rows"]), (&json!(8), &json!(8)));
        assert_eq!(gristmill(&["verify", "out"], work.path()).status.code(), Some(0));
        if group == 1000 {
            let read = |name: &str| fs::read(work.path().join("out").join(name)).unwrap();
            manifests.push((read("manifest.json"), read("quarantine/part-00000.parquet")));
        }
    }
    assert!(manifests[0] == manifests[1], "threads change no byte");
}

#[test]
fn rows_are_kept_as_they_were_and_can_be_repaired() {
    let mut gap = good("gap");
    gap[2].1 = Some(7);
    let work = Work::of(columns(&[good("a"), gap].concat()));
    let before = manifest(&work, QUARANTINE);
    let list = quarantined(&work);
    assert_eq!(column(&list, "eps_id"), ["gap"; 3]);
    assert_eq!(column(&list, "row"), ["3", "4", "5"]);
    assert_eq!(column(&list, "kept_in"), ["quarantine/rows/part-00000.parquet"; 3]);
    assert_eq!(column(&list, "kept_row"), ["0", "1", "2"]);
    let kept = read_shards(&work.path().join("out/quarantine/rows"));
    let t = kept.column_by_name("t").unwrap().as_primitive::<arrow::datatypes::Int64Type>().values().to_vec();
    assert_eq!(t, [0, 1, 7]);
    assert_eq!(before["quarantine"].as_array().unwrap().len(), 2);
    // Repaired, they are an input like any other.
    let repaired = Work::new();
    let columns: Vec<ArrayRef> = kept
        .columns()
        .iter()
        .zip(kept.schema().fields())
        .map(
            |(c, f)| {
                if f.name() == "t" { Arc::new(Int64Array::from(vec![0, 1, 2])) as ArrayRef } else { Arc::clone(c) }
            },
        )
        .collect();
    repaired.parquet("a.parquet", &[RecordBatch::try_new(kept.schema(), columns).unwrap()]);
    assert_eq!(repaired.manifest()["counts"]["rows_out"], 3);
    // What was left out is the data set's, too: it is replaced with it, and missed by verify.
    fs::remove_file(work.path().join("out/quarantine/rows/part-00000.parquet")).unwrap();
    assert_eq!(gristmill(&["verify", "out"], work.path()).status.code(), Some(1));
    manifest(&work, SKIP);
    assert!(!work.path().join("out/quarantine").exists());
}

#[test]
fn files_that_are_cut_off_and_row_groups_that_are_damaged() {
    let work = Work::of(columns(&good("a")));
    work.parquet("b.parquet", &[batch(columns(&good("bb")))]);
    let bytes = fs::read(work.input("b.parquet")).unwrap();
    fs::write(work.input("b.parquet"), &bytes[..bytes.len() - 20]).unwrap();
    assert_eq!(work.convert().status.code(), Some(2));
    let found = manifest(&work, QUARANTINE);
    assert_eq!((&found["counts"]["bad_files"], &found["counts"]["rows_out"]), (&json!(1), &json!(3)));
    contains(&found["problems"].to_string(), &["file cannot be read and was left out", "in/b.parquet", "cut off"]);
    assert_eq!(column(&quarantined(&work), "row"), ["-"]);
    // Nothing but bad files is an error.
    let bad = Work::new();
    fs::copy(work.input("b.parquet"), bad.input("b.parquet")).unwrap();
    contains(&bad.refused(2, &bad.convert_job(SKIP, &[])), &["cut off"]);

    // A damaged page: of a column that the first pass does not read.
    let whole = include_bytes!("data/checksums.parquet");
    let rewards: Vec<u8> = [1.0_f64, 2.0, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let at = whole.windows(rewards.len()).position(|w| w == rewards).expect("plain values");
    let mut bytes = whole.to_vec();
    bytes[at + 3] ^= 0x10;
    let work = Work::new();
    fs::write(work.input("a.parquet"), bytes).unwrap();
    let told = work.refused(1, &work.convert_job(SKIP, &[]));
    contains(&told, &["none of the episodes is well-formed", "CRC"]);
}

#[test]
fn without_t_an_episode_around_a_hole_is_left_out() {
    // Three row groups of one episode each way; the middle one is damaged so that ids cannot be read.
    let untimed = |rows: &[Row]| batch(without(columns(rows), &["t"]));
    let (a, b, c) = (good("a"), good("bb"), good("ccc"));
    let d = good("dddd");
    let groups = [
        untimed(&[a.clone(), b[..1].to_vec()].concat()),
        untimed(&[b[1..].to_vec(), c[..1].to_vec()].concat()),
        untimed(&[c[1..].to_vec(), d.clone()].concat()),
    ];
    let work = Work::of_batches(&groups);
    let path = work.input("a.parquet");
    let file = File::open(&path).unwrap();
    let metadata = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().metadata().clone();
    let chunk = metadata.row_group(1).column(0);
    let start = usize::try_from(chunk.dictionary_page_offset().unwrap()).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[start..start + usize::try_from(chunk.compressed_size()).unwrap()].fill(0xff);
    fs::write(&path, bytes).unwrap();
    let found = manifest(&work, SKIP);
    let rows = read_shards(&work.path().join("out/default_policy"));
    let ids: Vec<&str> = rows.column_by_name("eps_id").unwrap().as_string::<i32>().iter().flatten().collect();
    assert_eq!(ids, ["a", "a", "a", "dddd", "dddd", "dddd"], "neither half of bb, nor of ccc");
    assert_eq!(found["counts"]["bad_rows"], 3);
}

#[test]
fn an_episode_goes_with_all_its_agents_and_chunks() {
    let mut second = good("a");
    second[1].3 = None;
    let rows = [good("a"), second, good("bb"), good("bb")].concat();
    let agents = ["red", "red", "red", "blue", "blue", "blue"].repeat(2);
    let modules = "[multi_agent]\nagent_to_module = { '*' = 'p' }\n";
    let work = Work::of(with(columns(&rows), "agent_id", texts(&agents)));
    let output = work.convert_job(&format!("{SKIP}{modules}"), &[]);
    let manifest = work.manifest_of(&output);
    let counts = &manifest["counts"];
    assert_eq!((&counts["bad_episodes"], &counts["bad_steps"], &counts["rows_out"]), (&json!(2), &json!(6), &json!(6)));
}

/// The first step of a module says what it has. One of a malformed episode does not, nor does it end the run.
#[test]
fn a_malformed_first_step_says_nothing_of_its_module() {
    let of = |rows: &[Row]| {
        let agents: Vec<&str> = rows.iter().map(|r| if r.0 == Some("b") { "blue" } else { "red" }).collect();
        with(with(columns(rows), "agent_id", texts(&agents)), "module_id", texts(&agents))
    };
    let rest = [good("a"), good("b"), good("cc")].concat();
    let expected = content(&Work::of(of(&rest)).manifest());
    let change = |at: usize, change: fn(&mut Row)| {
        let mut rows = good("first");
        change(&mut rows[at]);
        rows
    };
    let mut untimed = change(0, |r| r.3 = None);
    untimed[1].1 = None;
    for (first, told) in [
        (change(0, |r| r.2 = None), "found null in the first step of module \\\"red\\\""),
        (change(0, |r| r.3 = None), "found null in the first step of module \\\"red\\\""),
        (untimed, "found null, expected a time step"),
    ] {
        let work = Work::of(of(&[first, rest.clone()].concat()));
        work.refused(1, &work.convert_job("", &[]));
        let found = manifest(&work, QUARANTINE);
        assert_eq!(content(&found), expected, "{told}");
        contains(&found["problems"].to_string(), &[told, "episode \\\"first\\\""]);
        let counts = &found["counts"];
        assert_eq!((&counts["bad_episodes"], &counts["bad_steps"]), (&json!(1), &json!(3)));
    }
    // A module of malformed episodes alone.
    let work = Work::of(of(&[change(0, |r| r.2 = None), good("b")].concat()));
    let found = manifest(&work, SKIP);
    assert_eq!((&found["counts"]["bad_episodes"], &found["counts"]["rows_out"]), (&json!(1), &json!(3)));
}

#[test]
fn items_that_cannot_be_decoded() {
    let read = |name: &str| {
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/source/testdata").join(name)).expect("an item")
    };
    let plain = read("plain.msgpack");
    let renamed = |to: &[u8]| {
        let mut bytes = plain.clone();
        let at = bytes.windows(6).position(|w| w == b"\xa5plain").unwrap();
        bytes[at + 1..at + 6].copy_from_slice(to);
        bytes
    };
    let other = renamed(b"other");
    for junk in [&b"hello"[..], b"", &[0xff; 100], &plain[..plain.len() / 2]] {
        let work = Work::of(vec![("item", binaries(&[&other, junk, &plain]))]);
        let found = manifest(&work, QUARANTINE);
        let counts = &found["counts"];
        assert_eq!(
            (&counts["episodes_out"], &counts["bad_episodes"], &counts["episodes_in"]),
            (&json!(2), &json!(1), &json!(3))
        );
        let expected = Work::of(vec![("item", binaries(&[&other, &plain]))]).manifest();
        assert_eq!(content(&found), content(&expected));
        assert_eq!(column(&quarantined(&work), "row"), ["1"]);
        assert_eq!(read_shards(&work.path().join("out/quarantine/rows")).num_rows(), 1);
    }
    let work = Work::of(vec![("item", binaries(&[b"hello"]))]);
    let output = work.convert_job(SKIP, &[]);
    assert!(matches!(output.status.code(), Some(1 | 2)), "{}", stderr(&output));
}

/// What an item that is left out holds is in nobody's way: neither one whose infos are bad, nor those of a row group that
/// turns out to be damaged behind them.
#[test]
fn items_that_are_left_out_have_no_types() {
    let read = |name: &str| {
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/source/testdata").join(name)).expect("an item")
    };
    let job = format!("{SKIP}[[learner.connectors]]\ntype = 'AddInfosFromEpisodesToTrainBatch'\n");
    let (first, second, nested) = (read("infos_0.msgpack"), read("infos_1.msgpack"), read("nested.msgpack"));
    let good = batch(vec![("item", binaries(&[&first, &second]))]);
    let expected = content(&manifest(&Work::of_batches(std::slice::from_ref(&good)), &job));

    let find = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).position(|w| w == part).expect("a part");
    let mut odd = nested.clone();
    let infos = find(&odd, b"\xa5infos\x84");
    let lookback = infos + find(&odd[infos..], b"\xa8lookback") + 9;
    odd[lookback] = 0xff; // -1
    let found = manifest(&Work::of(vec![("item", binaries(&[&odd, &first, &second]))]), &job);
    assert_eq!((&found["counts"]["bad_episodes"], content(&found)), (&json!(1), expected.clone()));
    contains(&found["problems"].to_string(), &["`lookback` is -1", "episode \\\"nested\\\""]);

    // More than the first pass reads at once.
    let id = find(&nested, b"\xa6nested") + 1;
    let many: Vec<Vec<u8>> = (0..4000)
        .map(|i| {
            let mut item = nested.clone();
            item[id..id + 6].copy_from_slice(format!("{i:06}").as_bytes());
            item
        })
        .collect();
    let many: Vec<&[u8]> = many.iter().map(Vec::as_slice).collect();
    let work = Work::of_batches(&[batch(vec![("item", binaries(&many))]), good]);
    let path = work.input("a.parquet");
    let file = File::open(&path).unwrap();
    let metadata = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().metadata().clone();
    let chunk = metadata.row_group(0).column(0);
    let start = usize::try_from(chunk.dictionary_page_offset().unwrap()).unwrap();
    let end = start + usize::try_from(chunk.compressed_size()).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[end - 7000..end].fill(0xff);
    fs::write(&path, bytes).unwrap();
    let found = manifest(&work, &job);
    assert_eq!((&found["counts"]["bad_episodes"], content(&found)), (&json!(4000), expected));
}

#[test]
fn what_a_piece_refuses_goes_too() {
    // Next observations are recorded, but for the last step of one episode.
    let all = [good("a"), good("bb"), good("ccc")].concat();
    let next: Vec<[f32; 2]> = vec![[1.0, 1.0]; 9];
    let next: Vec<Option<&[f32]>> = (0..9).map(|i| (i != 5).then_some(next[i].as_slice())).collect();
    let work = Work::of(with(columns(&all), "new_obs", lists(&next)));
    let bc = "[learner]\nalgorithm = 'BC'\n";
    let told = work.refused(1, &work.convert_job(bc, &[]));
    let found = manifest(&work, &format!("{SKIP}{bc}"));
    assert_eq!((&found["counts"]["bad_episodes"], &found["counts"]["rows_out"]), (&json!(1), &json!(6)), "{told}");
    contains(&found["problems"].to_string(), &["episode \\\"bb\\\""]);
}

#[test]
fn nothing_well_formed_is_an_error() {
    let mut gap = good("gap");
    gap[2].1 = Some(7);
    let work = Work::of(columns(&gap));
    contains(
        &work.refused(1, &work.convert_job(SKIP, &[])),
        &["none of the episodes is well-formed (1 found)", "t jumps from 1 to 7", "row 2", "hint: `gristmill inspect`"],
    );
}

/// Rows are there, and not even whose they are can be read: as bad as malformed episodes alone.
#[test]
fn rows_of_nobody_alone_are_an_error() {
    let nobody: Vec<Row> =
        good("a").into_iter().map(|Row(_, t, obs, reward, end)| Row(None, t, obs, reward, end)).collect();
    let work = Work::of(columns(&nobody));
    for job in [SKIP, QUARANTINE] {
        let told = work.refused(1, &work.convert_job(job, &[]));
        contains(&told, &["none of the rows belongs to a well-formed episode (3 found)", "found null, expected an id"]);
    }

    // A list's offsets that lead out of its values: how long observations are cannot be told from any row.
    let work = Work::new();
    let mut written = arrow::ipc::writer::FileWriter::try_new(
        File::create(work.input("a.arrow")).unwrap(),
        &batch(columns(&good("a"))).schema(),
    )
    .unwrap();
    written.write(&batch(columns(&good("a")))).unwrap();
    written.finish().unwrap();
    let mut bytes = fs::read(work.input("a.arrow")).unwrap();
    let offsets: Vec<u8> = [0_i32, 2, 4, 6].iter().flat_map(|v| v.to_le_bytes()).collect();
    let at = bytes.windows(offsets.len()).position(|w| w == offsets).expect("the offsets of `obs`");
    bytes[at + 4..at + 8].copy_from_slice(&100_000_000_i32.to_le_bytes());
    fs::write(work.input("a.arrow"), bytes).unwrap();
    contains(
        &work.refused(1, &work.convert_job(SKIP, &[])),
        &["none of the rows can be read", "damaged", "row group 0"],
    );
    contains(&work.refused(2, &work.convert_job("", &[])), &["the file is damaged", "row group 0"]);

    // A recording without rows is what it was.
    let work = Work::of(columns(&[]));
    contains(&work.refused(2, &work.convert_job(SKIP, &[])), &["found no rows in 1 file(s)"]);
}

/// A record batch of an Arrow file that claims more rows than any file has: nobody goes through them one by one.
#[test]
fn rows_that_a_damaged_file_claims_are_not_counted_out() {
    for rows in [1_i64 << 33, 1 << 50] {
        let work = Work::new();
        let many: Vec<Row> = good("b").into_iter().cycle().take(777).collect();
        work.arrow("a.arrow", &[batch(columns(&good("a"))), batch(columns(&many))]);
        let path = work.input("a.arrow");
        let mut bytes = fs::read(&path).unwrap();
        // The length of the batch, and of the columns in it.
        let lengths: Vec<usize> =
            (0..bytes.len() - 8).filter(|&at| bytes[at..at + 8] == 777_i64.to_le_bytes()).collect();
        assert!(lengths.len() > 6, "{lengths:?}");
        for at in lengths {
            bytes[at..at + 8].copy_from_slice(&rows.to_le_bytes());
        }
        fs::write(&path, bytes).unwrap();
        for job in [SKIP, QUARANTINE] {
            let manifest = work.manifest_of(&work.convert_job(job, &["--overwrite"]));
            assert_eq!(manifest["counts"]["episodes_out"], 1, "{rows}");
        }
        let list = quarantined(&work);
        assert_eq!((column(&list, "row_group"), column(&list, "row")), (vec!["1".to_owned()], vec!["-".to_owned()]));
        let found = gristmill(&["inspect", "in"], work.path());
        assert_eq!(found.status.code(), Some(0), "{}", stderr(&found));
    }
}
