//! `gristmill inspect`: what is in files, and everything that is wrong with them.

use std::fs;
use std::sync::Arc;

use arrow::array::{Float64Array, Int64Array, StringArray};
use serde_json::{Value, json};

use crate::cli::{gristmill, stderr, stdout};
use crate::support::{Work, batch, contains, episodes, f64s, i64s, lists, steps, texts, with, without};

fn report(work: &Work, args: &[&str]) -> Value {
    let output = gristmill(&[&["inspect"], args, &["--json"]].concat(), work.path());
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

fn problem<'a>(report: &'a Value, what: &str) -> &'a Value {
    let problems = report["problems"].as_array().unwrap();
    let of = |p: &&Value| p["what"].as_str().unwrap().contains(what);
    problems.iter().find(of).unwrap_or_else(|| panic!("no problem {what:?} in {problems:#?}"))
}

#[test]
fn a_recording_without_problems() {
    let work =
        Work::of(with(steps(), "terminateds", crate::support::bools(&[false, false, true, false, false, false])));
    let found = report(&work, &["in"]);
    assert_eq!(found["kind"], "recording");
    assert_eq!(found["layout"], "steps (one row a step)");
    let file = &found["files"][0];
    assert_eq!((&file["name"], &file["rows"], &file["row_groups"]), (&json!("in/a.parquet"), &json!(6), &json!(1)));
    let expected = json!({
        "count": 2, "steps": 6, "chunks": 2, "malformed": 0,
        "length": { "min": 3.0, "median": 3.0, "max": 3.0 },
        "returns": { "min": 3.0, "median": 7.5, "max": 12.0 },
        "terminated": 1, "truncated": 0, "open": 1,
        "modules": { "default_policy": 2 }, "agents": {},
    });
    assert_eq!(found["episodes"], expected);
    assert!(found["step"].as_array().unwrap().contains(&json!(["obs", "float32[2]"])), "{found}");
    assert_eq!(problem(&found, "end neither terminated nor truncated")["count"], 1);
    let text = stdout(&gristmill(&["inspect", "in"], work.path()));
    contains(
        &text,
        &["lengths  3 to 3, median 3", "returns  3 to 12, median 7.5", "ends     1 terminated, 0 truncated, 1 open"],
    );
}

#[test]
fn all_problems_are_told_and_not_only_the_first() {
    let work = Work::of(with(steps(), "t", i64s(&[0, 1, 5, 0, 2, 3])));
    work.parquet(
        "b.parquet",
        &[batch(with(
            episodes("c", "d"),
            "rewards",
            Arc::new(Float64Array::from(vec![None, Some(0.0), Some(0.0), Some(1.0), Some(1.0), Some(1.0)])),
        ))],
    );
    work.parquet(
        "c.parquet",
        &[batch(with(
            episodes("e", "f"),
            "obs",
            lists(&[
                Some(&[0.0; 2]),
                Some(&[0.0; 3]),
                Some(&[0.0; 2]),
                Some(&[0.0; 2]),
                Some(&[0.0; 2]),
                Some(&[0.0; 2]),
            ]),
        ))],
    );
    let ids = StringArray::from(vec![Some("g"), None, Some("g"), Some("h"), Some("h"), Some("h")]);
    work.parquet("d.parquet", &[batch(with(episodes("g", "h"), "eps_id", Arc::new(ids)))]);
    let t = Int64Array::from(vec![Some(0), Some(1), Some(2), Some(0), None, Some(2)]);
    work.parquet("e.parquet", &[batch(with(episodes("i", "j"), "t", Arc::new(t)))]);
    fs::write(work.input("f.parquet"), "PAR1 and no more").unwrap();
    fs::write(work.input("g.parquet"), "").unwrap();
    // The episodes `c` and `d` once more.
    fs::copy(work.input("e.parquet"), work.input("h.parquet")).unwrap();
    let found = report(&work, &["in"]);
    for (what, count) in [
        ("t jumps from", 3), // a, b, and g without the row that has no id
        ("found null, expected a value in every row", 1),
        ("found shape [3]", 1),
        ("found null, expected an id", 1),
        ("found null, expected a time step", 1),
        ("is cut off", 1),
        ("the file is empty", 1),
        ("are recorded a second time", 3),
    ] {
        assert_eq!(problem(&found, what)["count"], count, "{what}: {:#}", found["problems"]);
    }
    contains(
        problem(&found, "found shape [3]")["first"].as_str().unwrap(),
        &["in/c.parquet", "row 1", "episode \"e\"", "column `obs`"],
    );
    contains(
        problem(&found, "t jumps from")["first"].as_str().unwrap(),
        &["in/a.parquet", "row group 0", "episode \"a\""],
    );
    assert_eq!(found["episodes"]["count"], 4, "d, f, h, i: {:#}", found["episodes"]);
    assert_eq!(found["files"][5]["format"], Value::Null);
}

#[test]
fn files_that_are_no_one_table() {
    let work = Work::of(steps());
    work.parquet("b.parquet", &[batch(with(episodes("c", "d"), "rewards", i64s(&[1; 6])))]);
    work.parquet("c.parquet", &[batch(without(episodes("c", "d"), &["truncateds"]))]);
    let found = report(&work, &["in"]);
    contains(
        &problem(&found, "column `rewards` is int64, in other files float64")["first"].to_string(),
        &["in/b.parquet"],
    );
    contains(&problem(&found, "column `truncateds` is in 2 of 3 files")["first"].to_string(), &["in/c.parquet"]);
    assert_eq!(found["episodes"], Value::Null);
    contains(&stdout(&gristmill(&["inspect", "in"], work.path())), &["episodes  cannot be told; see the problems"]);
    // Columns under other names: told, and read with a job.
    let mut columns = steps();
    columns[2].0 = "observation";
    let work = Work::of(columns);
    contains(&problem(&report(&work, &["in"]), "missing column obs")["hint"].to_string(), &["columns = { obs ="]);
    fs::write(work.path().join("job.toml"), "[input.columns]\nobs = 'observation'\n").unwrap();
    assert_eq!(report(&work, &["in", "--job", "job.toml"])["episodes"]["count"], 2);
}

#[test]
fn agents_and_discontinuities() {
    let agents = texts(&["red", "red", "red", "blue", "blue", "blue"]);
    let modules = "[multi_agent]\nagent_to_module = { red = 'r', '*' = 'b' }\n";
    let work = Work::of(with(steps(), "agent_id", agents));
    fs::write(work.path().join("job.toml"), modules).unwrap();
    let found = report(&work, &["in", "--job", "job.toml"]);
    assert_eq!(found["episodes"]["agents"], json!({ "red": 1, "blue": 1 }));
    assert_eq!(found["episodes"]["modules"], json!({ "r": 1, "b": 1 }));
    let work = Work::of(with(steps(), "new_obs", crate::support::obs(1, 7)));
    let rows = [[0.0_f32, 0.5], [1.0, 1.5], [9.0, 9.0], [3.0, 3.5], [4.0, 4.5], [5.0, 5.5]];
    let rows: Vec<Option<&[f32]>> = rows.iter().map(|r| Some(r.as_slice())).collect();
    work.parquet("a.parquet", &[batch(with(with(steps(), "new_obs", crate::support::obs(1, 7)), "obs", lists(&rows)))]);
    let found = report(&work, &["in"]);
    let seam = problem(&found, "an `obs` that is not the `new_obs` of the row before");
    assert_eq!(seam["count"], 1);
    contains(&seam["first"].to_string(), &["row 2"]);
}

#[test]
fn a_written_data_set_is_told_from_its_manifest() {
    let work = Work::of(with(steps(), "rewards", f64s(&[0.0; 6])));
    work.manifest();
    let found = report(&work, &["out"]);
    assert_eq!((&found["kind"], &found["modules"][0]["rows"]), (&json!("data_set"), &json!(6)));
    contains(
        &stdout(&gristmill(&["inspect", "out"], work.path())),
        &["data set  out", "default_policy: 6 rows in 1 shard"],
    );
}

#[test]
fn what_is_not_there_exits_with_2() {
    let work = Work::of(steps());
    for path in ["nowhere", "in/*.arrow"] {
        let output = gristmill(&["inspect", path], work.path());
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).starts_with("error: "), "{}", stderr(&output));
    }
}

/// Nothing that could be converted: what is wrong with each episode is told all the same.
#[test]
fn all_problems_are_told_where_no_episode_is_well_formed() {
    let work = Work::of(with(steps(), "t", i64s(&[0, 1, 5, 0, 2, 3])));
    let rewards = Float64Array::from(vec![None, Some(0.0), Some(0.0), None, Some(1.0), Some(1.0)]);
    work.parquet("b.parquet", &[batch(with(episodes("c", "d"), "rewards", Arc::new(rewards)))]);
    let told = ["t jumps from", "found null, expected a value in every row"];
    let counts = |found: &Value, told: &[&str]| {
        told.iter().map(|what| problem(found, what)["count"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let found = report(&work, &["in"]);
    assert_eq!(counts(&found, &told), [2, 2]);
    assert_eq!((&found["episodes"]["count"], &found["episodes"]["malformed"]), (&json!(0), &json!(4)));
    // Already the first pass leaves nothing, or the check pass does.
    for (name, counted) in [("in/a.parquet", [2, 0]), ("in/b.parquet", [0, 2])] {
        let found = report(&work, &[name]);
        for (what, count) in told.into_iter().zip(counted).filter(|(_, count)| *count > 0) {
            assert_eq!(problem(&found, what)["count"], count, "{name}");
        }
        assert_eq!((&found["episodes"]["count"], &found["episodes"]["malformed"]), (&json!(0), &json!(2)), "{name}");
    }
    contains(&stdout(&gristmill(&["inspect", "in"], work.path())), &["t jumps from", "expected a value in every row"]);
    // `convert` names the first and where to find the others.
    let refused = work.convert_job("[input]\non_bad_episode = 'skip'\n", &[]);
    contains(
        &work.refused(1, &refused),
        &["none of the episodes is well-formed (4 found)", "hint: `gristmill inspect`"],
    );
}

/// A data set whose manifest is gone is told from files of others.
#[test]
fn shards_without_their_manifest() {
    let work = Work::of(steps());
    work.manifest();
    fs::copy(work.path().join("out/default_policy/part-00000.parquet"), work.input("part-00000.parquet")).unwrap();
    fs::remove_file(work.path().join("out/manifest.json")).unwrap();
    let shard = "default_policy/part-00000.parquet";
    for args in [["verify", "out", ""], ["diff", "out", "out"]] {
        let args: Vec<&str> = args.into_iter().filter(|a| !a.is_empty()).collect();
        let told = stderr(&gristmill(&args, work.path()));
        contains(&told, &["found no manifest.json", shard, "its manifest.json was removed"]);
    }
    let found = report(&work, &["out"]);
    let told = problem(&found, "there is no manifest.json beside them");
    contains(&told.to_string(), &[shard, "bring it back"]);
    let told = stderr(&work.convert());
    contains(&told, &["found default_policy/part-00000.parquet and no manifest.json", "remove them yourself"]);
    // What a run has begun to write can be finished.
    fs::write(work.path().join("out/.gristmill-unfinished"), "").unwrap();
    let found = report(&work, &["out"]);
    let told = problem(&found, "there is no manifest.json beside them");
    contains(&told.to_string(), &["has not finished", "--resume"]);
    // A file that only looks like one says nothing.
    let told = report(&work, &["in/part-00000.parquet"])["problems"].to_string();
    assert!(!told.contains("manifest.json"), "{told}");
}

/// A data set that is in a folder of the one that is named, or around it, has its manifest: nobody is told that it is gone.
#[test]
fn a_data_set_is_near() {
    let work = Work::of(steps());
    let to = |job: &str, output: &str| {
        fs::write(work.path().join("job.toml"), job).unwrap();
        gristmill(&["convert", "job.toml", "--input", "in", "--output", output], work.path())
    };
    let job = "[output]\nsplit = { train = 0.5, val = 0.5 }\n";
    let output = to(job, "logs/shards");
    assert!(output.status.success(), "{}", stderr(&output));
    fs::copy(work.input("a.parquet"), work.path().join("logs/log.parquet")).unwrap();
    let found = report(&work, &["logs"]);
    assert!(!found["problems"].to_string().contains("no manifest.json"), "{found}");
    for (folder, hint) in [
        ("logs", "hint: the data set is in logs/shards\n"),
        (".", "hint: the data set is in ./logs/shards\n"),
        (
            "logs/shards/train",
            "hint: this is a folder of the data set logs/shards: open that, module \"train/default_policy\"",
        ),
        ("logs/shards/val/default_policy", "the data set logs/shards: open that, module \"val/default_policy\""),
    ] {
        contains(&stderr(&gristmill(&["verify", folder], work.path())), &["found no manifest.json", hint]);
    }
    // From inside.
    let inside = work.path().join("logs/shards/train");
    contains(&stderr(&gristmill(&["verify", "."], &inside)), &["this is a folder of the data set ./..: open that"]);
    // Nor is an output directory above it said to lack one.
    let told = stderr(&to("", "logs"));
    contains(&told, &["found files that are not gristmill's"]);
    // Two of them.
    let output = to("", "logs/again");
    assert!(output.status.success(), "{}", stderr(&output));
    let told = stderr(&gristmill(&["verify", "logs"], work.path()));
    contains(&told, &["hint: data sets are in logs/again, logs/shards: name one of them"]);
}
