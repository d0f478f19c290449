//! What was recorded is read, or told: nothing goes without a word.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float32Array, Float64Array, Int8Array, ListArray, StructArray};
use arrow::datatypes::{Field, Float32Type};
use serde_json::Value;

use crate::cli::{gristmill, stderr, stdout};
use crate::support::{
    Columns, Work, batch, bools, contains, f64s, i32s, i64s, obs, shown, steps, texts, with, without,
};

/// What was told of a run besides its counts: problems with number, and notes.
fn told(manifest: &Value) -> Vec<String> {
    let problems = manifest["problems"].as_array().unwrap().iter();
    let problem = |p: &Value| format!("{} {} ({})", p["count"], p["what"].as_str().unwrap(), p["first"]);
    let notes = manifest["notes"].as_array().unwrap().iter().map(|n| n.as_str().unwrap().to_owned());
    problems.map(problem).chain(notes).collect()
}

/// `inspect`'s problems of `in/`.
fn inspected(work: &Work) -> Vec<String> {
    let output = gristmill(&["inspect", "in", "--json"], work.path());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    let problems = report["problems"].as_array().unwrap().iter();
    problems.map(|p| format!("{} {} ({})", p["count"], p["what"].as_str().unwrap(), p["first"])).collect()
}

/// Steps 0 to 4 in two chunks; the first ends with a row that has the observation of step 2, or another one.
fn chunks(same: bool) -> Columns {
    let rows: Vec<Option<[f32; 2]>> =
        [0.0, 1.0, if same { 2.0 } else { 9.0 }, 2.0, 3.0, 4.0].iter().map(|&x| Some([x, x + 0.5])).collect();
    let rows: Vec<Option<&[f32]>> = rows.iter().map(|r| r.as_ref().map(<[f32; 2]>::as_slice)).collect();
    vec![
        ("eps_id", texts(&["a"; 6])),
        ("t", i64s(&[0, 1, 2, 2, 3, 4])),
        ("obs", crate::support::lists(&rows)),
        ("actions", i32s(&[Some(0), Some(1), None, Some(2), Some(3), Some(4)])),
        ("rewards", f64s(&[1.0, 1.0, 0.0, 1.0, 1.0, 1.0])),
        ("terminateds", bools(&[false, false, false, false, false, true])),
    ]
}

#[test]
fn a_row_without_an_action_inside_an_episode() {
    // A chunk's trailing row: all it says stands in the row of the step, too.
    let work = Work::of(chunks(true));
    let manifest = work.manifest();
    assert_eq!((shown(&work.rows(), "actions"), told(&manifest)), ("0 1 2 3 4".into(), vec![]));
    // A step whose action is missing.
    let place = "at: file in/a.parquet, row group 0, row 2, episode \"a\", t 2, column `actions`";
    Work::of(chunks(false)).refuses(
        1,
        &[
            "found null, expected an action: the row holds another observation than the step in its place",
            place,
            "hint: ",
        ],
    );
    // As any malformed episode, it can be left out.
    let mut both = batch(steps());
    both = arrow::compute::concat_batches(
        &both.schema(),
        &[both.clone(), batch(with(with(chunks(false), "eps_id", texts(&["c"; 6])), "truncateds", bools(&[false; 6])))],
    )
    .unwrap();
    let work = Work::new();
    work.parquet("a.parquet", &[both]);
    let manifest = work.manifest_of(&work.convert_job("[input]\non_bad_episode = 'skip'\n", &[]));
    let counts = &manifest["counts"];
    assert_eq!(
        (&counts["bad_episodes"], &counts["bad_steps"], &counts["steps_out"]),
        (&1.into(), &5.into(), &6.into())
    );
    // Its flag ends nothing.
    Work::of(with(chunks(true), "terminateds", bools(&[false, false, true, false, false, true])))
        .refuses(1, &["terminateds is true on a row without an action", "row 2, episode \"a\", t 2", "hint: "]);
}

#[test]
fn last_observations_that_differ() {
    let twice = |last: f32| {
        let rows = [[0.0, 0.5], [1.0, 1.5], [2.0, 2.5], [last, 2.5]];
        vec![
            ("eps_id", texts(&["a"; 4])),
            ("obs", crate::support::fixed(&rows)),
            ("actions", i32s(&[Some(0), Some(1), None, None])),
            ("rewards", f64s(&[1.0; 4])),
        ]
    };
    for timed in [false, true] {
        let of = |columns| if timed { with(columns, "t", i64s(&[0, 1, 2, 2])) } else { columns };
        Work::of(of(twice(2.0))).manifest();
        Work::of(of(twice(7.0))).refuses(
            1,
            &["two rows hold the observation after the last step, and they differ", "row 3, episode \"a\"", "hint: "],
        );
    }
    // What `new_obs` says and what the trailing row says: one of them is taken, and that they differ is told.
    let columns = with(without(chunks(true), &["t"]), "new_obs", obs(1, 7));
    let columns = with(columns, "actions", i32s(&[Some(0), Some(1), Some(2), Some(3), Some(4), None]));
    let columns = with(columns, "obs", obs(0, 6));
    let work = Work::of(columns.clone());
    assert_eq!(work.manifest()["counts"]["discontinuities"], 0);
    let mut rows: Vec<[f32; 2]> = (1..7_u8).map(|i| [f32::from(i), f32::from(i) + 0.5]).collect();
    rows[4] = [50.0, 50.5];
    let work = Work::of(with(columns, "new_obs", crate::support::fixed(&rows)));
    let manifest = work.manifest();
    assert_eq!(manifest["counts"]["discontinuities"], 1);
    contains(&told(&manifest)[0], &["`obs` that is not the `new_obs` of the step before", "row 5"]);
}

#[test]
fn rewards_and_outputs_in_rows_without_an_action_are_told() {
    // Rewards beside the observation that they came with, as `env.step()` returns them.
    let shifted = || {
        let columns = vec![
            ("eps_id", texts(&["a", "a", "a", "b", "b"])),
            ("obs", obs(0, 5)),
            ("actions", i32s(&[Some(0), Some(1), None, Some(3), None])),
            ("rewards", f64s(&[0.0, 1.0, 2.0, 0.0, 4.0])),
            ("vf_preds", Arc::new(Float32Array::from(vec![0.1, 0.2, 0.3, 0.4, 0.0])) as ArrayRef),
        ];
        Work::of(columns)
    };
    let work = shifted();
    let output = work.convert();
    let found = told(&work.manifest_of(&output));
    let rewards = "2 rows without an action hold a reward, which is not read: a reward belongs to the action in its row; \
                   if yours stand in the row after";
    contains(&found[0], &[rewards, "row 2"]);
    contains(
        &found[1],
        &["1 row without an action holds values of vf_preds, which are not read of such a row", "row 2"],
    );
    contains(&stdout(&output), &["2 rows without an action hold a reward"]);
    contains(
        &inspected(&work).join("\n"),
        &["2 rows without an action hold a reward", "1 rows without an action hold values of vf_preds"],
    );
    // So is that of a row that ends a chunk.
    let work = Work::of(with(chunks(true), "rewards", f64s(&[1.0, 1.0, 3.0, 1.0, 1.0, 1.0])));
    contains(&told(&work.manifest())[0], &["1 row without an action holds a reward, which is not read", "row 2"]);
    let outputs = f64s(&[0.0, 0.0, 0.7, 0.0, 0.0, 0.0]);
    let work = Work::of(with(chunks(true), "vf_preds", outputs));
    contains(
        &told(&work.manifest())[0],
        &["1 row without an action holds values of model outputs, which are not read", "row 2"],
    );
}

/// An agent that acts, waits for two rows, acts, and waits again.
fn waiting(obs: ArrayRef, actions: ArrayRef) -> Columns {
    vec![
        ("eps_id", i64s(&[0; 5])),
        ("agent_id", texts(&["a"; 5])),
        ("obs", obs),
        ("actions", actions),
        ("rewards", f64s(&[1.0, 5.0, 6.0, 2.0, 7.0])),
        ("terminateds", bools(&[false, false, false, false, true])),
    ]
}

/// A struct with fields `x` and `pair`, which holds two numbers: null in all leaves where the value is `None`.
fn nested(values: &[Option<f32>]) -> ArrayRef {
    let number = |add: f32| Arc::new(values.iter().map(|v| v.map(|v| v + add)).collect::<Float32Array>()) as ArrayRef;
    let of = |parts: Vec<(&str, ArrayRef)>| -> ArrayRef {
        let parts = parts.into_iter().map(|(n, a)| (Arc::new(Field::new(n, a.data_type().clone(), true)), a));
        Arc::new(StructArray::from(parts.collect::<Vec<_>>()))
    };
    of(vec![("pair", of(vec![("0", number(1.0)), ("1", number(2.0))])), ("x", number(0.0))])
}

#[test]
fn values_whose_every_leaf_is_null_are_null() {
    let there = [Some(1.0), None, None, Some(2.0), None];
    let ints: Vec<Option<i32>> = there.iter().map(|v| v.map(|_| 0)).collect();
    let list = |values: &[Option<f32>]| -> ArrayRef {
        let rows = values.iter().map(|v| Some(vec![*v, *v]));
        Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))
    };
    for (obs, actions) in [
        (nested(&there), i32s(&ints)),
        (nested(&there), nested(&there)),
        (list(&there), list(&there)),
        (list(&there), i32s(&ints)),
    ] {
        let t = i64s(&[0, 0, 0, 1, 1]);
        for columns in [waiting(Arc::clone(&obs), Arc::clone(&actions)), with(waiting(obs, actions), "t", t)] {
            let work = Work::of(columns);
            let manifest = work.manifest();
            assert_eq!((shown(&work.rows(), "rewards"), told(&manifest)), ("12.0 9.0".into(), vec![]));
        }
    }
    // A trailing row's action may be written like that, too.
    let work = Work::of(with(
        without(steps(), &["truncateds"]),
        "actions",
        nested(&[Some(1.0), Some(2.0), None, Some(3.0), Some(4.0), None]),
    ));
    assert_eq!(work.manifest()["counts"]["steps_in"], 4);
    // One leaf that is there makes a value, which lacks the others.
    let partly = [Some(1.0), Some(1.5), None, Some(2.0), None];
    Work::of(waiting(nested(&partly), nested(&there))).refuses(1, &["the episode goes on after this row", "row 1"]);
}

#[test]
fn leaves_in_columns_of_their_own_are_one_value() {
    let of = |x: [Option<f32>; 5], y: [Option<f32>; 5]| -> Columns {
        let mut columns = without(waiting(i64s(&[0; 5]), i32s(&[Some(0), None, None, Some(1), None])), &["obs"]);
        for (name, values) in [("obs/x", x), ("obs/y", y)] {
            columns.push((name, Arc::new(Float32Array::from(values.to_vec()))));
        }
        columns
    };
    let there = [Some(1.0), None, None, Some(2.0), None];
    let work = Work::of(of(there, there));
    work.manifest();
    assert_eq!(shown(&work.rows(), "rewards"), "12.0 9.0");
    // The row at 1 observes: `y` was left out where `x` is null.
    let more = [Some(1.0), Some(3.0), None, Some(2.0), None];
    Work::of(of(there, more)).refuses(1, &["found null, expected an action", "row 1, episode \"0\""]);
    // Actions, too: one leaf that is there is no row without an action.
    let mut columns = without(steps(), &["actions"]);
    columns.push(("actions/x", i32s(&[Some(0), Some(1), None, Some(3), Some(4), None])));
    columns.push(("actions/y", i32s(&[0, 1, 2, 3, 4, 5].map(Some))));
    Work::of(columns).refuses(1, &["found null", "row 2, episode \"a\", t 2, column `actions/x`"]);
}

#[test]
fn sums_of_rewards_that_the_dtype_does_not_hold() {
    let there: ArrayRef = Arc::new(Float64Array::from(vec![Some(1.0), None, None, Some(2.0), None]));
    let of = |rewards: Vec<i8>| {
        let columns = waiting(Arc::clone(&there), i32s(&[Some(0), None, None, Some(1), None]));
        Work::of(with(columns, "rewards", Arc::new(Int8Array::from(rewards))))
    };
    let work = of(vec![100, 50, -60, 1, 2]);
    work.manifest();
    assert_eq!(shown(&work.rows(), "rewards"), "90 3");
    of(vec![100, 20, 8, 1, 2]).refuses(
        1,
        &[
            "the reward of an agent that waits is added to that of its last action, and int8 does not hold the sum",
            "row 2, episode \"0\", column `rewards`",
            "hint: cast the rewards to a wider type",
        ],
    );
}

#[test]
fn outputs_of_agents_that_wait_are_told() {
    let there: ArrayRef = Arc::new(Float64Array::from(vec![Some(1.0), None, None, Some(2.0), None]));
    let columns = waiting(there, i32s(&[Some(0), None, None, Some(1), None]));
    let work = Work::of(with(columns, "action_logp", Arc::new(Float32Array::from(vec![-0.5, -1.0, 0.0, -0.5, -2.0]))));
    let found = told(&work.manifest());
    contains(&found[0], &["2 rows without an action hold values of action_logp, which are not read", "row 1"]);
}

#[test]
fn rewards_that_are_not_finite_are_told() {
    let rewards = f64s(&[0.0, 1.0, f64::NAN, 3.0, f64::NEG_INFINITY, 1e300]);
    let work = Work::of(with(steps(), "rewards", rewards));
    let output = work.convert();
    // As a learner sees them: 1e300 is beyond float32.
    contains(&told(&work.manifest_of(&output))[0], &["3 values are NaN or infinite in `rewards`"]);
    contains(&stdout(&output), &["3 values are NaN or infinite in `rewards`"]);
    contains(&inspected(&work).join("\n"), &["2 rewards are NaN or infinite", "row group 0, row 2"]);
}

#[test]
fn data_sets_among_the_input_are_no_recordings() {
    let work = Work::of(steps());
    let convert = |args: &[&str]| gristmill(&[&["convert"], args].concat(), work.path());
    let first = work.manifest_of(&convert(&["--input", "in", "--output", "out"]));
    // An older data set beside the recording: told, and nothing else changes.
    std::fs::rename(work.path().join("out"), work.path().join("in/old")).unwrap();
    let second = work.manifest_of(&convert(&["--input", "in", "--output", "out"]));
    assert_eq!(second["content_digest"], first["content_digest"]);
    assert_eq!(told(&second), ["in/old is passed over: it is no recording, but a data set that gristmill wrote"]);
    contains(&inspected(&work).join("\n"), &["in/old is passed over"]);
    // The job's own, inside of its input: the same bytes whether it is there or not.
    let inside = || {
        let output = convert(&["--input", "in", "--output", "in/new", "--overwrite"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        std::fs::read(work.path().join("in/new/manifest.json")).unwrap()
    };
    assert_eq!(inside(), inside());
    std::fs::remove_dir_all(work.path().join("out")).unwrap();
    for named in ["in/old", "in/old/*/*.parquet", "in/old/**/*.parquet"] {
        let said = work.refused(2, &convert(&["--input", named, "--output", "out"]));
        contains(&said, &["found a data set that gristmill wrote, expected a recording", "file in/old", "hint: "]);
    }
    // Spelled out, shards are read, and that they are is told.
    let again = convert(&["--input", "in/old/default_policy", "--output", "out"]);
    let notes = told(&work.manifest_of(&again));
    assert_eq!(notes, ["shards of the data set in/old are read as if they were a recording, as the paths say"]);
    let looked = gristmill(&["inspect", "in/old"], work.path());
    contains(&stdout(&looked), &["data set  in/old"]);
}

/// A link in a folder that is searched may lead into a data set, by its folder or by one of its files.
#[cfg(unix)]
#[test]
fn links_that_lead_into_data_sets_are_no_recordings() {
    use std::os::unix::fs::symlink;
    let work = Work::of(steps());
    let convert = |args: &[&str]| gristmill(&[&["convert"], args].concat(), work.path());
    let first = work.manifest_of(&convert(&["--input", "in", "--output", "out"]));
    std::fs::rename(work.path().join("out"), work.path().join("ds")).unwrap();
    let (module, shard) = ("../ds/default_policy", "../ds/default_policy/part-00000.parquet");
    let note = ["ds is passed over: it is no recording, but a data set that gristmill wrote"];
    for (target, link, inputs) in [
        (module, "mod", ["in", "in/*", "in/**/*.parquet"]),
        (shard, "x.parquet", ["in", "in/*", "in/**/*.parquet"]),
        ("../ds", "all", ["in", "in/*", "in/**/*.parquet"]),
    ] {
        let link = work.input(link);
        symlink(target, &link).unwrap();
        for input in inputs {
            let found = work.manifest_of(&convert(&["--input", input, "--output", "out", "--overwrite"]));
            assert_eq!(found["content_digest"], first["content_digest"], "{target} {input}");
            let name = if target == "../ds" { "in/all" } else { "ds" };
            assert_eq!(told(&found), [note[0].replacen("ds", name, 1)], "{target} {input}");
        }
        std::fs::remove_file(link).unwrap();
    }
    // Links to recordings are recordings; and who names the link, means it.
    std::fs::create_dir(work.path().join("links")).unwrap();
    symlink("../in/a.parquet", work.path().join("links/a.parquet")).unwrap();
    let found = work.manifest_of(&convert(&["--input", "links", "--output", "out", "--overwrite"]));
    assert_eq!((&found["content_digest"], told(&found).len()), (&first["content_digest"], 0));
    symlink("ds/default_policy", work.path().join("named")).unwrap();
    let found = work.manifest_of(&convert(&["--input", "named", "--output", "out", "--overwrite"]));
    assert_eq!(told(&found), ["shards of the data set ds are read as if they were a recording, as the paths say"]);
}

#[test]
fn shards_without_a_manifest_are_told() {
    let work = Work::of(steps());
    let convert = |input: &str| {
        told(
            &work
                .manifest_of(&gristmill(&["convert", "--input", input, "--output", "out", "--overwrite"], work.path())),
        )
    };
    assert!(convert("in").is_empty());
    std::fs::rename(work.path().join("out"), work.path().join("copied")).unwrap();
    let manifest = work.path().join("copied/manifest.json");
    let whole = std::fs::read(&manifest).unwrap();
    for (left, beside) in [
        (Some(&whole[..whole.len() / 2]), "the manifest.json beside them cannot be read"),
        (None, "there is no manifest.json beside them"),
    ] {
        match left {
            Some(left) => std::fs::write(&manifest, left).unwrap(),
            None => std::fs::remove_file(&manifest).unwrap(),
        }
        for input in
            ["copied", "copied/default_policy", "copied/*/*.parquet", "copied/default_policy/part-00000.parquet"]
        {
            let said = convert(input).join("\n");
            contains(
                &said,
                &["file copied/default_policy/part-00000.parquet is called as a data set's shards are", beside],
            );
            contains(&said, &["bring it back, or convert again"]);
        }
    }
    // Somebody else's files may be called like that, in a folder that says so.
    std::fs::remove_file(work.path().join("copied/run.json")).unwrap();
    assert!(convert("copied/default_policy").is_empty());
    std::fs::write(&manifest, "{\"version\": 3}").unwrap();
    assert!(convert("copied").is_empty());
}

#[test]
fn recorded_columns_that_are_called_like_those_of_a_train_batch() {
    let mask = || Work::of(with(steps(), "loss_mask", bools(&[true, true, false, true, true, true])));
    let work = mask();
    let said = work.refused(2, &work.convert());
    contains(
        &said,
        &["`loss_mask` is recorded, and `loss_mask` of a train batch tells real steps from padding", "hint: "],
    );
    // The way out that the hint names.
    let job = "[input.columns]\nrecorded_loss_mask = 'loss_mask'\n";
    work.manifest_of(&work.convert_job(job, &[]));
    assert_eq!(shown(&work.rows(), "recorded_loss_mask"), "true true false true true true");

    let stateful = "[rl_module]\nstateful = true\nmax_seq_len = 2\ninitial_state = { h = { shape = [] } }\n";
    let work = Work::of(with(steps(), "state_in/h", f64s(&[1.0; 6])));
    let said = work.refused(2, &work.convert_job(stateful, &[]));
    contains(
        &said,
        &["`state_in/h` is recorded, and `state_in` of a train batch is made from recorded `state_out`", "hint: "],
    );
    // To a stateless module it is of no use, and that is told.
    let notes = told(&work.manifest());
    assert_eq!(notes, ["`state_in/h` is recorded, and not read: module \"default_policy\" is not stateful"]);
    let planned = gristmill(&["plan", "--input", "in"], work.path());
    contains(&stdout(&planned), &[&notes[0]]);

    let job = "[[learner.connectors]]\ntype = 'ComputeReturnsToGo'\ngamma = 0.0\n";
    let work = Work::of(with(steps(), "returns_to_go", f64s(&[9.0; 6])));
    let notes = told(&work.manifest_of(&work.convert_job(job, &[])));
    contains(
        &notes[0],
        &["`returns_to_go` is recorded, and a piece of module \"default_policy\" makes a column of this name"],
    );
    assert_eq!(shown(&work.rows(), "returns_to_go"), "0.0 1.0 2.0 3.0 4.0 5.0");
}
