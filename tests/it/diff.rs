//! `gristmill diff`: what is the same, and what differs by how much.

use std::fs;

use serde_json::{Value, json};

use crate::cli::{gristmill, stderr, stdout};
use crate::support::{
    Columns, Work, batch, bools, contains, episodes, f32s, f64s, i32s, i64s, obs, steps, take, texts, with, without,
};

/// `a/` and `b/` in one working directory.
fn two(a: Columns, b: Columns, job_a: &str, job_b: &str) -> Work {
    let work = Work::new();
    for (name, columns, job) in [("a", a, job_a), ("b", b, job_b)] {
        work.parquet("x.parquet", &[batch(columns)]);
        let output = work.convert_job(job, &[]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        fs::rename(work.path().join("out"), work.path().join(name)).unwrap();
    }
    work
}

fn report(work: &Work, code: i32, more: &[&str]) -> Value {
    let output = gristmill(&[&["diff", "a", "b", "--json"], more].concat(), work.path());
    assert_eq!(output.status.code(), Some(code), "{}{}", stdout(&output), stderr(&output));
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

/// The only module in which something differs.
fn module(work: &Work, code: i32, more: &[&str]) -> Value {
    let report = report(work, code, more);
    assert_eq!(report["modules"].as_array().unwrap().len(), 1, "{report}");
    report["modules"][0].clone()
}

#[test]
fn cuts_format_and_compression_are_no_difference() {
    let other = "[output]\nformat = 'arrow'\nrows_per_shard = 2\ncompression = 'none'\n";
    let work = two(steps(), steps(), "", other);
    let report = report(&work, 0, &[]);
    assert_eq!((&report["same"], &report["by_digest"]), (&json!(true), &json!(true)));
    contains(
        &stdout(&gristmill(&["diff", "a", "b"], work.path())),
        &["the same training data, by their content digests"],
    );
    assert!(stdout(&gristmill(&["diff", "a", "b", "--quiet"], work.path())).is_empty());
}

#[test]
fn values_that_differ_are_told_with_their_place() {
    let changed = with(steps(), "rewards", f64s(&[0.0, 1.0, 2.0, 3.0, 4.5, f64::NAN]));
    let work = two(steps(), changed, "", "[output]\nrows_per_shard = 4\n");
    let module = module(&work, 1, &[]);
    let values = module["values"].as_array().unwrap();
    assert_eq!(values.len(), 1, "{module}");
    assert_eq!(values[0]["column"], "rewards");
    assert_eq!((&values[0]["rows"], &values[0]["values"], &values[0]["not_finite"]), (&json!(2), &json!(2), &json!(1)));
    assert_eq!(values[0]["largest_absolute"], 0.5);
    assert_eq!(values[0]["first"]["values"], json!(["4", "4.5"]));
    let place =
        json!({ "file": "default_policy/part-00001.parquet", "row_group": 0, "row": 0, "episode": "b", "t": 1 });
    assert_eq!(values[0]["first"]["b"], place);
    assert_eq!(values[0]["first"]["a"]["row"], 4);
    assert_eq!(module["episodes_changed"], json!({ "count": 1, "first": ["b"] }));
    let text = stdout(&gristmill(&["diff", "a", "b"], work.path()));
    contains(
        &text,
        &["episodes changed    1: b", "values   rewards: 2 values in 2 rows", "first: 4 -> 4.5", "they differ"],
    );
}

#[test]
fn an_episode_that_differs_in_several_columns_and_row_groups_is_counted_once() {
    let changed = with(steps(), "rewards", f64s(&[0.5, 1.0, 2.5, 3.0, 4.5, 5.0]));
    let changed = with(changed, "obs", obs(7, 13));
    let two_a_shard = "[output]\nrows_per_shard = 2\n";
    for job in ["", two_a_shard] {
        let work = two(steps(), changed.clone(), job, "");
        let found = module(&work, 1, &[]);
        assert_eq!(found["episodes_changed"], json!({ "count": 2, "first": ["a", "b"] }), "{job}");
        let rows: Vec<_> = found["values"].as_array().unwrap().iter().map(|c| (&c["column"], &c["rows"])).collect();
        assert_eq!(rows, [(&json!("obs"), &json!(6)), (&json!("rewards"), &json!(3))], "{job}");
    }
    // One that lacks a row as well is not counted again for its values.
    let work = Work::new();
    for (name, columns, rows) in [("a", steps(), &[0, 1, 2, 3, 4, 5][..]), ("b", changed, &[0, 1, 2, 3, 4])] {
        work.parquet("x.parquet", &[take(&batch(columns), rows)]);
        work.manifest();
        fs::rename(work.path().join("out"), work.path().join(name)).unwrap();
    }
    let found = module(&work, 1, &[]);
    assert_eq!(found["episodes_changed"], json!({ "count": 2, "first": ["b", "a"] }));
    assert_eq!((&found["rows_removed"], &found["rows_added"]), (&json!(1), &json!(0)));
}

#[test]
fn ids_that_read_alike_are_not_mixed_up() {
    let of = |id: &str, agent: &str| {
        with(with(steps(), "eps_id", texts(&[id; 6])), "agent_id", texts(&[agent; 6]))
            .into_iter()
            .map(|(name, column)| if name == "t" { (name, i64s(&[0, 1, 2, 3, 4, 5])) } else { (name, column) })
            .map(|(name, column)| if name == "terminateds" { (name, bools(&[false; 6])) } else { (name, column) })
            .collect()
    };
    let module_of = "[multi_agent]\nagent_to_module = { z = 'red', 'y) (z' = 'red' }\n";
    let work = two(of("x (y)", "z"), of("x", "y) (z"), module_of, module_of);
    let found = module(&work, 1, &[]);
    // Both are shown as `x (y) (z)`.
    let one = json!({ "count": 1, "first": ["x (y) (z)"] });
    assert_eq!((&found["episodes_removed"], &found["episodes_added"]), (&one, &one), "{found}");
}

#[test]
fn within_the_tolerance_nothing_differs() {
    let work = two(steps(), with(steps(), "rewards", f64s(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.001])), "", "");
    assert_eq!(report(&work, 0, &["--tolerance", "0.01"])["by_digest"], false);
    report(&work, 0, &["--tolerance", "0.0003"]); // relative
    let told = stdout(&gristmill(&["diff", "a", "b", "--tolerance", "0.01"], work.path()));
    contains(&told, &["the same training data, within the tolerance of 1e-2"]);
    report(&work, 1, &["--tolerance", "0.0001"]);
    let output = gristmill(&["diff", "a", "b", "--tolerance", "nan"], work.path());
    assert_eq!(output.status.code(), Some(2));
    // NaN equals NaN whatever its bits, and zeros are equal.
    let quiet = with(steps(), "rewards", f32s(&[0.0, f32::NAN, 2.0, 3.0, 4.0, 5.0]));
    let other = with(steps(), "rewards", f32s(&[-0.0, f32::from_bits(0xffc0_0001), 2.0, 3.0, 4.0, 5.0]));
    let work = two(quiet, other, "", "");
    report(&work, 0, &[]);
    contains(&stdout(&gristmill(&["diff", "a", "b"], work.path())), &["the same training data, value by value"]);
}

#[test]
fn episodes_come_and_go_and_rows_too() {
    // In b: episode a is gone, c is new, b lost its last step, and everything stands in another order.
    let mut columns = episodes("c", "b");
    columns = without(columns, &[]);
    let all = take(&batch(columns), &[0, 1, 2, 3, 4]);
    let work = Work::new();
    work.parquet("x.parquet", &[batch(episodes("a", "b"))]);
    work.manifest();
    fs::rename(work.path().join("out"), work.path().join("a")).unwrap();
    work.parquet("x.parquet", &[all]);
    work.manifest();
    fs::rename(work.path().join("out"), work.path().join("b")).unwrap();
    let module = module(&work, 1, &[]);
    assert_eq!(module["episodes_removed"], json!({ "count": 1, "first": ["a"] }));
    assert_eq!(module["episodes_added"], json!({ "count": 1, "first": ["c"] }));
    assert_eq!(module["episodes_changed"], json!({ "count": 1, "first": ["b"] }));
    assert_eq!((&module["rows_removed"], &module["rows_added"]), (&json!(1), &json!(0)));
    assert_eq!(module["values"], json!([]), "no flag stands on a row that both have");
    assert_eq!(module["reordered"], false);
}

#[test]
fn another_order_is_told_as_such() {
    let work = Work::new();
    for (name, order) in [("a", [0, 1, 2, 3, 4, 5]), ("b", [3, 4, 5, 0, 1, 2])] {
        work.parquet("x.parquet", &[take(&batch(steps()), &order)]);
        work.manifest();
        fs::rename(work.path().join("out"), work.path().join(name)).unwrap();
    }
    let module = module(&work, 1, &[]);
    assert_eq!((&module["reordered"], &module["values"]), (&json!(true), &json!([])));
    assert_eq!(module["episodes_changed"]["count"], 0);
}

#[test]
fn columns_and_modules() {
    let work =
        two(with(steps(), "extra", f64s(&[0.0; 6])), with(steps(), "actions", i64s(&[0, 1, 2, 3, 4, 5])), "", "");
    let module = module(&work, 1, &[]);
    assert_eq!(module["columns_removed"], json!([["extra", "float32"]]));
    assert_eq!(module["columns_changed"], json!([["actions", "int32", "int64"]]));
    let agents = |name: &str| with(steps(), "agent_id", texts(&[name; 6]));
    let modules = "[multi_agent]\nagent_to_module = { red = 'red', blue = 'blue' }\n";
    let work = two(agents("red"), agents("blue"), modules, modules);
    let report = report(&work, 1, &[]);
    let only: Vec<(&Value, &Value)> =
        report["modules"].as_array().unwrap().iter().map(|m| (&m["module"], &m["only_in"])).collect();
    assert_eq!(only, [(&json!("red"), &json!("a")), (&json!("blue"), &json!("b"))]);
}

#[test]
fn integer_ids_match_the_same_ids_as_text_and_steps_match_in_their_turn() {
    let ids = i64s(&[7, 7, 7, 8, 8, 8]);
    let work =
        two(with(steps(), "eps_id", ids), with(steps(), "eps_id", texts(&["7", "7", "7", "8", "8", "8"])), "", "");
    let found = module(&work, 1, &[]);
    assert_eq!(found["columns_changed"], json!([["eps_id", "int64", "utf8"]]));
    assert_eq!((&found["values"], &found["episodes_added"]["count"]), (&json!([]), &json!(0)));
    // An episode recorded twice and kept: the second copy's rows match the second copy's.
    let twice = |last: f64| {
        vec![
            ("eps_id", texts(&["a"; 4])),
            ("t", i64s(&[0, 1, 0, 1])),
            ("obs", obs(0, 4)),
            ("actions", i32s(&[Some(0); 4])),
            ("rewards", f64s(&[1.0, 1.0, 1.0, last])),
            ("terminateds", bools(&[false; 4])),
        ]
    };
    let keep = "[input]\nduplicates = 'keep'\n";
    let found = module(&two(twice(1.0), twice(2.0), keep, keep), 1, &[]);
    assert_eq!(found["values"][0]["first"]["a"]["row"], 3, "{found}");
}

#[test]
fn what_is_no_data_set_or_damaged() {
    let work = two(steps(), with(steps(), "rewards", f64s(&[9.0; 6])), "", "");
    assert_eq!(gristmill(&["diff", "a", "in"], work.path()).status.code(), Some(2));
    fs::write(work.path().join("b/default_policy/part-00000.parquet"), "PAR1").unwrap();
    let output = gristmill(&["diff", "a", "b"], work.path());
    assert_eq!(output.status.code(), Some(1));
    contains(&stderr(&output), &["error: ", "file default_policy/part-00000.parquet"]);
}
