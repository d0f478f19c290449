//! `gristmill verify`: a data set passes as it was written, and every kind of damage is told with its place.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Float32Type, Int64Type, Schema};
use parquet::arrow::ArrowWriter;
use serde_json::{Value, json};

use crate::cli::{gristmill, stderr, stdout};
use crate::support::{Work, batch, bools, contains, f64s, i64s, read_shards, steps, texts, with};

const STATEFUL: &str = "[rl_module]\nstateful = true\nmax_seq_len = 2\ninitial_state = { h = { shape = [2] } }\n\
                        [output]\nrows_per_shard = 3\n";

/// A data set of this job over [`steps`].
fn written(job: &str) -> Work {
    let work = Work::of(steps());
    let output = work.convert_job(job, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    work
}

fn report(work: &Work, code: i32) -> Value {
    let output = gristmill(&["verify", "out", "--json"], work.path());
    assert_eq!(output.status.code(), Some(code), "{}{}", stdout(&output), stderr(&output));
    assert!(output.stderr.is_empty(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

/// The failures of each failed check, by name.
fn failed(work: &Work) -> Vec<(String, Vec<Value>)> {
    let report = report(work, 1);
    let checks = report["checks"].as_array().unwrap();
    let of = |c: &&Value| c["status"] == "failed";
    let name = |c: &Value| c["name"].as_str().unwrap().to_owned();
    checks.iter().filter(of).map(|c| (name(c), c["first"].as_array().unwrap().clone())).collect()
}

fn names(failed: &[(String, Vec<Value>)]) -> Vec<&str> {
    failed.iter().map(|(name, _)| name.as_str()).collect()
}

fn first<'a>(failed: &'a [(String, Vec<Value>)], name: &str) -> &'a Value {
    &failed.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("{name} did not fail: {failed:?}")).1[0]
}

fn part(work: &Work, number: usize) -> PathBuf {
    work.path().join(format!("out/default_policy/part-{number:05}.parquet"))
}

/// Changes the manifest.
fn with_manifest(work: &Work, change: impl FnOnce(&mut Value)) {
    let path = work.path().join("out/manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut manifest);
    fs::write(&path, serde_json::to_vec(&manifest).unwrap()).unwrap();
}

/// Writes shard 0 anew with one column changed, as somebody's own program would.
fn tamper(work: &Work, column: &str, change: impl FnOnce(&ArrayRef) -> ArrayRef) {
    let path = part(work, 0);
    let rows = read_shards(&work.path().join("out/default_policy")).slice(0, 3.min(rows_of(&path)));
    let at = rows.schema().index_of(column).unwrap();
    let mut columns = rows.columns().to_vec();
    columns[at] = change(&columns[at]);
    let rows = RecordBatch::try_new(rows.schema(), columns).unwrap();
    write_part(work, &rows);
}

/// Writes shard 0 anew.
fn write_part(work: &Work, rows: &RecordBatch) {
    let mut writer = ArrowWriter::try_new(File::create(part(work, 0)).unwrap(), rows.schema(), None).unwrap();
    writer.write(rows).unwrap();
    writer.close().unwrap();
}

fn rows_of(path: &PathBuf) -> usize {
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    usize::try_from(reader.metadata().file_metadata().num_rows()).unwrap()
}

/// A list column with other values.
fn list_of(column: &ArrayRef, change: impl FnOnce(Vec<f32>) -> Vec<f32>) -> ArrayRef {
    let list = column.as_fixed_size_list();
    let DataType::FixedSizeList(field, len) = column.data_type() else { panic!("a list") };
    let values = change(list.values().as_primitive::<Float32Type>().values().to_vec());
    let values = arrow::array::Float32Array::from(values);
    Arc::new(FixedSizeListArray::new(Arc::clone(field), *len, Arc::new(values), None))
}

#[test]
fn a_data_set_passes_as_it_was_written() {
    for job in [
        "",
        STATEFUL,
        "[output]\nformat = 'arrow'\n",
        "[output]\ntensors = 'binary'\n",
        "[output]\nsplit = { train = 0.5, val = 0.5 }\n",
    ] {
        let work = written(job);
        let report = report(&work, 0);
        assert_eq!(report["passed"], true, "{report}");
        let skipped: Vec<&Value> =
            report["checks"].as_array().unwrap().iter().filter(|c| c["status"] != "passed").collect();
        assert!(skipped.is_empty(), "{job}: {skipped:?}");
        assert_eq!(report["checks"].as_array().unwrap().len(), 15);
    }
    let work = written("");
    let output = gristmill(&["verify", "out"], work.path());
    contains(
        &stdout(&output),
        &["checked out (1 module, 1 shard and 6 rows", "the data set is what its manifest says"],
    );
    assert!(stdout(&gristmill(&["verify", "out", "--quiet"], work.path())).is_empty());
}

#[test]
fn counts_add_up_whatever_was_left_out() {
    let work =
        Work::of(with(steps(), "terminateds", crate::support::bools(&[false, false, true, false, false, false])));
    work.parquet(
        "b.parquet",
        &[batch(with(steps(), "terminateds", crate::support::bools(&[false, false, true, false, false, false])))],
    );
    let output = work.convert_job("[input]\nunfinished = 'drop'\n", &[]);
    let manifest = work.manifest_of(&output);
    let counts = &manifest["counts"];
    assert_eq!((&counts["steps_in"], &counts["steps_out"]), (&json!(12), &json!(3)), "{counts}");
    assert_eq!((&counts["duplicate_steps"], &counts["unfinished_dropped_steps"]), (&json!(6), &json!(3)));
    report(&work, 0);
    with_manifest(&work, |m| m["counts"]["steps_in"] = json!(11));
    assert_eq!(names(&failed(&work)), ["counts"]);
}

#[test]
fn what_is_no_data_set_exits_with_2() {
    let work = written("");
    for (dir, told) in
        [("no-such", "cannot find the data set"), ("in", "found no manifest.json"), ("job.toml", "found a file")]
    {
        let output = gristmill(&["verify", dir], work.path());
        assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
        contains(&stderr(&output), &["error: ", told]);
    }
    for text in ["", "{", "[]", "{\"format_version\": 9}", "{\"format_version\": 1}"] {
        fs::write(work.path().join("out/manifest.json"), text).unwrap();
        let output = gristmill(&["verify", "out"], work.path());
        assert_eq!(output.status.code(), Some(2), "{text}");
        contains(&stderr(&output), &["at: file out/manifest.json"]);
    }
}

#[test]
fn files_that_are_missing_strange_or_links() {
    let work = written(STATEFUL);
    fs::remove_file(part(&work, 1)).unwrap();
    fs::write(work.path().join("out/default_policy/notes.txt"), "x").unwrap();
    let failed = failed(&work);
    assert_eq!(names(&failed), ["files"], "what cannot be read is not told twice");
    let files: Vec<&Value> = failed[0].1.iter().map(|e| &e["place"]["file"]).collect();
    assert_eq!(files, ["default_policy/notes.txt", "default_policy/part-00001.parquet"]);
    #[cfg(unix)]
    {
        let work = written("");
        let elsewhere = work.path().join("elsewhere.parquet");
        fs::rename(part(&work, 0), &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, part(&work, 0)).unwrap();
        contains(&first(&self::failed(&work), "files")["what"].to_string(), &["found a link"]);
    }
}

#[test]
fn a_schema_that_differs_is_told_whatever_its_columns_are_called() {
    let work = Work::of(with(steps(), "link", f64s(&[0.0; 6])));
    work.manifest();
    with_manifest(&work, |m| {
        let columns = m["modules"]["default_policy"]["columns"].as_array_mut().unwrap();
        columns.retain(|c| c["name"] != "rewards");
    });
    let failed = failed(&work);
    let schema = first(&failed, "schema");
    contains(&schema["what"].to_string(), &["found the columns", "link", "rewards"]);
    assert_eq!(schema["place"]["file"], "default_policy/part-00000.parquet");
}

#[test]
fn every_flipped_byte_is_found() {
    let work = written("");
    let whole = fs::read(part(&work, 0)).unwrap();
    for at in (0..whole.len()).step_by(whole.len() / 40) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x20;
        fs::write(part(&work, 0), &bytes).unwrap();
        let failed = failed(&work);
        assert!(names(&failed).contains(&"bytes"), "byte {at}: {failed:?}");
    }
    for len in [0, 3, 11, whole.len() / 2, whole.len() - 1] {
        fs::write(part(&work, 0), &whole[..len]).unwrap();
        let failed = failed(&work);
        assert!(names(&failed).contains(&"values"), "{len} bytes: {failed:?}");
    }
}

#[test]
fn rules_of_sequences_are_held_row_by_row() {
    // Episodes of three steps in sequences of two: rows 1 and 3 have one step of padding.
    let work = written(STATEFUL);
    tamper(&work, "obs", |c| {
        list_of(c, |mut v| {
            v[4 + 2] = 7.0;
            v
        })
    });
    let failed = failed(&work);
    assert_eq!(names(&failed), ["bytes", "content", "padding"]);
    let padding = first(&failed, "padding");
    assert_eq!(padding["what"], "place 1 of the sequence is padding, and not zero");
    let place = json!({ "file": "default_policy/part-00000.parquet", "row_group": 0, "row": 1, "column": "obs" });
    assert_eq!(padding["place"], place);

    let work = written(STATEFUL);
    tamper(&work, "seq_lens", |_| Arc::new(Int64Array::from(vec![1, 9, 2])));
    let mask = self::failed(&work);
    let mask = &mask.iter().find(|(n, _)| n == "mask").expect("the mask fails").1;
    contains(&mask[0]["what"].to_string(), &["the mask is TT, but seq_lens is 1"]);
    contains(&mask[1]["what"].to_string(), &["found 9 real steps, expected 1 to 2"]);

    let work = written(STATEFUL);
    tamper(&work, "t", |c| {
        let t = c.as_primitive::<Int64Type>().values();
        Arc::new(Int64Array::from(vec![t[0], t[1] - 1, t[2]]))
    });
    let time = self::failed(&work);
    contains(&first(&time, "time")["what"].to_string(), &["found t = 1 after a row with t = 0, expected 2 or more"]);
    assert_eq!(first(&time, "time")["place"]["episode"], "a");
}

#[test]
fn flags_stand_at_the_end_only() {
    let work = written("");
    tamper(&work, "terminateds", |_| Arc::new(BooleanArray::from(vec![true, false, true])));
    let failed = failed(&work);
    let flags = first(&failed, "flags");
    assert_eq!(
        (&flags["place"]["row"], &flags["place"]["t"], &flags["place"]["episode"]),
        (&json!(1), &json!(1), &json!("a"))
    );
}

#[test]
fn recorded_columns_named_as_those_of_sequences_are_columns_like_others() {
    let recorded = with(steps(), "seq_lens", i64s(&[7; 6]));
    let work = Work::of(with(with(recorded, "attention_mask", bools(&[false; 6])), "is_pad", bools(&[true; 6])));
    work.manifest();
    assert_eq!(report(&work, 0)["passed"], true);
}

#[test]
fn the_settings_of_a_module_are_found_by_its_whole_id() {
    let columns = with(steps(), "agent_id", texts(&["a", "a", "a", "b", "b", "b"]));
    let job = "[multi_agent]\nagent_to_module = { a = 'red', b = 'team/red' }\n\
               [rl_module]\nstateful = true\nmax_seq_len = 2\ninitial_state = { h = { shape = [2] } }\n\
               [rl_module.modules.red]\ninitial_state = { h = { shape = [2] } }\n\
               [rl_module.modules.'team/red']\ninitial_state = { h = { shape = [3] } }\n";
    for split in ["", "[output]\nsplit = { team = 1.0 }\n"] {
        let work = Work::of(columns.clone());
        let output = work.convert_job(&format!("{job}{split}"), &[]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let report = report(&work, 0);
        let state = report["checks"].as_array().unwrap().iter().find(|c| c["name"] == "state").unwrap();
        assert_eq!(state["status"], "passed", "{split}: {state}");
    }
}

#[test]
fn pieces_that_are_not_known_leave_rules_out() {
    let work = written(STATEFUL);
    with_manifest(&work, |m| m["pipeline"][0]["type"] = json!("OfAnotherVersion"));
    let report = report(&work, 0);
    let skipped: Vec<&Value> =
        report["checks"].as_array().unwrap().iter().filter(|c| c["status"] == "skipped").map(|c| &c["name"]).collect();
    assert_eq!(skipped, ["mask", "padding", "flags", "time", "counts"]);
}

#[test]
fn statistics_schema_nulls_and_rows() {
    let work = written("");
    with_manifest(&work, |m| {
        let columns = m["modules"]["default_policy"]["columns"].as_array_mut().unwrap();
        columns.iter_mut().find(|c| c["name"] == "rewards").unwrap()["statistics"]["mean"] = json!(2.25);
    });
    let found = failed(&work);
    assert_eq!(names(&found), ["statistics"]);
    assert_eq!(first(&found, "statistics")["place"]["column"], "rewards");

    let work = written("");
    with_manifest(&work, |m| m["modules"]["default_policy"]["columns"][2]["shape"] = json!([3]));
    assert!(names(&failed(&work)).contains(&"schema"));

    let work = written("");
    with_manifest(&work, |m| m["modules"]["default_policy"]["shards"][0]["rows"] = json!(5));
    let found = failed(&work);
    assert!(names(&found).contains(&"rows") && names(&found).contains(&"manifest"), "{found:?}");

    let work = written("");
    tamper(&work, "rewards", |c| c.slice(0, 3));
    assert!(names(&failed(&work)).contains(&"rows"), "rows are missing");
}

#[test]
fn hostile_manifests_are_refused_before_a_file_is_touched() {
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 10] = [
        (|m| m["modules"]["default_policy"]["shards"][0]["file"] = json!("../in/a.parquet"), "it climbs"),
        (|m| m["modules"]["default_policy"]["shards"][0]["file"] = json!("/etc/passwd"), "it is absolute"),
        (|m| m["modules"]["default_policy"]["folder"] = json!(".."), "it climbs"),
        (
            |m| m["modules"]["default_policy"]["columns"][2]["shape"] = json!([4_000_000_000_u64, 4_000_000_000_u64]),
            "at most 1920 MiB",
        ),
        (|m| m["modules"]["default_policy"]["columns"][2]["dtype"] = json!("object"), "found the dtype"),
        (|m| m["modules"]["default_policy"]["columns"][1]["shape"] = json!([0]), "found int64[0], expected int64"),
        (
            |m| {
                let ids = &mut m["modules"]["default_policy"]["columns"][0];
                (ids["dtype"], ids["shape"]) = (json!("int64"), json!([0]));
            },
            "found int64[0], expected utf8 or int64",
        ),
        (|m| m["modules"]["default_policy"]["columns"][1]["name"] = json!("eps_id"), "two output columns"),
        (
            |m| {
                let shards = m["modules"]["default_policy"]["shards"].as_array_mut().unwrap();
                let again = shards[0].clone();
                shards.push(again);
            },
            "stands in the manifest twice",
        ),
        (
            |m| m["modules"]["default_policy"]["shards"][0]["file"] = json!("x/part-00000.parquet"),
            "expected one in the folder",
        ),
    ];
    for (change, told) in changes {
        let work = written("");
        with_manifest(&work, change);
        let failed = failed(&work);
        assert_eq!(names(&failed), ["manifest"]);
        contains(&failed[0].1[0]["what"].to_string(), &[told]);
    }
    let work = written("");
    let deep = format!("{{\"format_version\": 1, \"job\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    fs::write(work.path().join("out/manifest.json"), deep).unwrap();
    assert_eq!(gristmill(&["verify", "out"], work.path()).status.code(), Some(2));
    // Numbers that no addition may overflow.
    let work = written("");
    with_manifest(&work, |m| {
        m["modules"]["default_policy"]["rows"] = json!(u64::MAX);
        m["modules"]["default_policy"]["shards"][0]["bytes"] = json!(u64::MAX);
        m["counts"]["steps_out"] = json!(u64::MAX);
        m["counts"]["bad_steps"] = json!(u64::MAX);
    });
    assert!(names(&failed(&work)).contains(&"counts"));
}

/// What a manifest says of tables, an attacker may have written.
#[test]
fn hostile_tables_are_refused() {
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 8] = [
        (|m| m["steps"]["shards"][0]["file"] = json!("../in/a.parquet"), "it climbs"),
        (|m| m["steps"]["folder"] = json!("/etc"), "it is absolute"),
        (|m| m["places"] = json!(0), "found windows of [] times 0 places"),
        (|m| m["places"] = json!(1_u64 << 40), "found windows of [] times 1099511627776 places"),
        (|m| m["places"] = json!(1_u64 << 28), "at most 1920 MiB"),
        (|m| m["prefix"] = json!([2]), "found int64, expected int64[2]"),
        (|m| m["places"] = json!(3), "found float32[6] in the shards, the batch says float32[4]"),
        (|m| m["steps"]["columns"][0]["name"] = json!("other"), "the batch says nothing of it"),
    ];
    let indexed = "[output]\nwindows = 'indexed'\n[[learner.connectors]]\ntype = 'StackObservations'\nnum_frames = 2\n";
    for (change, told) in changes {
        let work = written(indexed);
        report(&work, 0);
        with_manifest(&work, |m| change(&mut m["modules"]["default_policy"]["tables"]["frames"]));
        let failed = failed(&work);
        assert_eq!(names(&failed), ["manifest"], "{told}");
        contains(&failed[0].1[0]["what"].to_string(), &[told]);
    }
    // What a trainer sees is said in two places, which must agree.
    let lies: [Change; 5] = [
        |m| m["batch"] = json!([]),
        |m| m["batch"].as_array_mut().unwrap().truncate(1),
        |m| {
            let batch = m["batch"].as_array_mut().unwrap();
            batch.push(batch[0].clone());
        },
        |m| m["batch"][1]["table"] = json!("frames"),
        |m| m["batch"].as_array_mut().unwrap().push(json!({ "name": "ghost", "dtype": "int64", "shape": [] })),
    ];
    for lie in lies {
        let work = written(indexed);
        with_manifest(&work, |m| lie(&mut m["modules"]["default_policy"]));
        contains(&failed(&work)[0].1[0]["what"].to_string(), &["batch"]);
    }
    // Windows of three places, with shapes to match: the digests say that they are not what was written.
    let work = written(indexed);
    with_manifest(&work, |m| {
        let module = &mut m["modules"]["default_policy"];
        module["tables"]["frames"]["places"] = json!(3);
        module["batch"][0]["shape"] = json!([6]);
    });
    assert!(names(&failed(&work)).contains(&"manifest"));
    let work = written(indexed);
    with_manifest(&work, |m| {
        let tables = m["modules"]["default_policy"]["tables"].as_object_mut().unwrap();
        let frames = tables.remove("frames").unwrap();
        tables.insert("secrets".to_owned(), frames);
    });
    contains(&failed(&work)[0].1[0]["what"].to_string(), &["found a table that no gristmill writes"]);
}

/// Windows that point out of their table, in a file whose digests somebody has made fit.
#[test]
fn windows_outside_of_their_table_are_told() {
    let indexed = "[output]\nwindows = 'indexed'\n[[learner.connectors]]\ntype = 'StackObservations'\nnum_frames = 2\n";
    let work = written(indexed);
    let whole = report(&work, 0);
    assert_eq!((&whole["rows"], &whole["table_rows"]), (&json!(6), &json!(6)));
    let told = stdout(&gristmill(&["verify", "out"], work.path()));
    contains(&told, &["1 module, 2 shards and 6 rows (and 6 rows of tables)"]);
    with_manifest(&work, |m| m["modules"]["default_policy"]["tables"]["frames"]["steps"]["rows"] = json!(5));
    let failed = failed(&work);
    let windows = failed.iter().find(|(name, _)| name == "windows").expect("the check of windows failed");
    contains(
        &windows.1[0].to_string(),
        &["found the window (offset 4, length 2, pad 0)", "over the 5 rows of the table `frames`"],
    );
}

#[test]
fn masks_of_unlike_lengths_are_told() {
    let work = written("[[learner.connectors]]\ntype = 'DecisionTransformerWindows'\ncontext_len = 3\n");
    report(&work, 0);
    // Somebody adds a mask of four places to the windows of three, in the file and in the manifest.
    let rows = read_shards(&work.path().join("out/default_policy"));
    let item = Arc::new(Field::new("item", DataType::Boolean, true));
    let values = BooleanArray::from(vec![true; 4 * rows.num_rows()]);
    let mask = FixedSizeListArray::new(Arc::clone(&item), 4, Arc::new(values), None);
    let metadata = [("name", "arrow.fixed_shape_tensor"), ("metadata", "{\"shape\":[4]}")];
    let metadata = metadata.map(|(key, value)| (format!("ARROW:extension:{key}"), value.to_owned()));
    let field = Field::new("loss_mask", DataType::FixedSizeList(item, 4), false).with_metadata(metadata);
    let fields = rows.schema().fields().iter().cloned().chain([Arc::new(field)]).collect::<Vec<_>>();
    let columns = rows.columns().iter().cloned().chain([Arc::new(mask) as ArrayRef]).collect();
    write_part(&work, &RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap());
    with_manifest(&work, |m| {
        let columns = m["modules"]["default_policy"]["columns"].as_array_mut().unwrap();
        let mut column = columns.iter().find(|c| c["name"] == "attention_mask").unwrap().clone();
        (column["name"], column["shape"]) = (json!("loss_mask"), json!([4]));
        columns.push(column);
    });
    let failed = failed(&work);
    assert!(!names(&failed).contains(&"schema"), "{failed:?}");
    let mask = first(&failed, "mask");
    assert_eq!(mask["what"], "found a mask of shape [4], expected [3]");
    assert_eq!(mask["place"]["column"], "loss_mask");
}

#[test]
fn the_digest_of_other_values_is_another() {
    let (one, other) = (written(""), Work::of(with(steps(), "rewards", f64s(&[0.0, 1.0, 2.0, 3.0, 4.0, 6.0]))));
    other.manifest();
    fs::copy(part(&other, 0), part(&one, 0)).unwrap();
    let failed = failed(&one);
    assert_eq!(first(&failed, "content")["place"]["column"], "rewards");
    assert!(names(&failed).contains(&"statistics"));
}
