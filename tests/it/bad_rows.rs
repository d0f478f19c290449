//! Rows that are no episode: gaps, contradictions, nulls, ragged values.

use std::sync::Arc;

use arrow::array::{BooleanArray, Float64Array, Int64Array, StringArray};

use crate::cli::stdout;
use crate::support::{
    Columns, Work, batch, contains, f64s, i32s, i64s, lists, obs, shown, steps, take, texts, with, without,
};

fn job(input: &str) -> String {
    format!("[input]\n{input}\n")
}

#[test]
fn a_gap_in_t() {
    Work::of(with(steps(), "t", i64s(&[0, 1, 2, 0, 1, 3]))).refuses(
        1,
        &[
            "t jumps from 1 to 3: 1 step is missing",
            "at: file in/a.parquet, row group 0, row 5, episode \"b\", t 3",
            "hint: an episode's t must go up by one a row",
        ],
    );
    // The ends of the number line are no place for a panic.
    Work::of(with(steps(), "t", i64s(&[i64::MIN, 1, i64::MAX, 0, 1, 2])))
        .refuses(1, &["steps are missing", "row 1, episode \"a\", t 1"]);
}

#[test]
fn t_may_start_anywhere_and_have_any_integer_type() {
    for start in [-7, 5, i64::MAX - 2] {
        let t: Vec<i64> = (0..6).map(|i| start + i % 3).collect();
        let work = Work::of(with(steps(), "t", i64s(&t)));
        work.manifest();
        assert!(shown(&work.rows(), "t").starts_with(&format!("{start} {}", start + 1)));
    }
    for ty in ["Int8", "UInt64", "Float64"].map(|ty| ty.parse().unwrap()) {
        let t = arrow::compute::cast(&i64s(&[0, 1, 2, 0, 1, 2]), &ty).unwrap();
        Work::of(with(steps(), "t", t)).manifest();
    }
    Work::of(with(steps(), "t", f64s(&[0.0, 0.5, 1.0, 0.0, 1.0, 2.0])))
        .refuses(1, &["not whole", "row group 0, row 1, column `t`"]);
}

#[test]
fn a_step_recorded_twice_is_dropped_and_counted() {
    let work = Work::new();
    work.parquet("a.parquet", &[take(&batch(steps()), &[0, 1, 1, 2, 3, 4, 5])]);
    let output = work.convert();
    let manifest = work.manifest_of(&output);
    assert_eq!(manifest["counts"]["rows_out"], 6);
    assert_eq!(manifest["counts"]["duplicates_dropped"], 1);
    let told = "1 step recorded twice was dropped, of 1 episode (first: file in/a.parquet, row group 0, row 2)";
    contains(&stdout(&output), &[told]);
    assert_eq!(manifest["problems"][0]["count"], 1);
    let fail = Work::new();
    fail.parquet("a.parquet", &[take(&batch(steps()), &[0, 1, 1, 2, 3, 4, 5])]);
    let told = fail.refused(1, &fail.convert_job(&job("duplicates = 'fail'"), &[]));
    contains(
        &told,
        &["1 row of the episode repeats an earlier one", "row 2, episode \"a\"", "hint: `input.duplicates"],
    );
}

#[test]
fn a_step_recorded_twice_and_differently_is_an_error() {
    let other = with(steps(), "rewards", f64s(&[0.0, 9.0, 2.0, 3.0, 4.0, 5.0]));
    let work = Work::of(steps());
    work.parquet("b.parquet", &[batch(other).slice(1, 1)]);
    work.refuses(
        1,
        &[
            "two rows of the same episode and t differ",
            "at: file in/b.parquet, row group 0, row 0, episode \"a\", t 1",
            "hint: ",
        ],
    );
}

#[test]
fn duplicates_of_untimed_rows() {
    let untimed = || without(steps(), &["t"]);
    let twice = || {
        let work = Work::of(untimed());
        work.parquet("b.parquet", &[batch(untimed())]);
        work
    };
    for (rule, rows, dropped) in [("drop", 6, 2), ("keep", 12, 0)] {
        let work = twice();
        let manifest = work.manifest_of(&work.convert_job(&job(&format!("duplicates = '{rule}'")), &[]));
        assert_eq!(manifest["counts"]["rows_out"], rows, "{rule}");
        assert_eq!(manifest["counts"]["duplicates_dropped"], dropped, "{rule}");
    }
    let work = twice();
    let told = work.refused(1, &work.convert_job(&job("duplicates = 'fail'"), &[]));
    contains(
        &told,
        &["3 rows of the episode repeat earlier ones", "file in/b.parquet, row group 0, row 0, episode \"a\""],
    );
}

#[test]
fn nulls_are_placed() {
    let place = |row: usize, rest: &str| format!("at: file in/a.parquet, row group 0, row {row}, {rest}");
    let rewards: Float64Array = vec![Some(0.0), Some(1.0), Some(2.0), Some(3.0), None, Some(5.0)].into();
    Work::of(with(steps(), "rewards", Arc::new(rewards)))
        .refuses(1, &["found null", &place(4, "episode \"b\", t 1, column `rewards`"), "hint: "]);
    let flags: BooleanArray = vec![Some(false), None, Some(true), Some(false), Some(false), Some(true)].into();
    Work::of(with(steps(), "terminateds", Arc::new(flags))).refuses(
        1,
        &["found null, expected true or false", &place(1, "episode \"a\", column `terminateds`"), "hint: "],
    );
    let ids: StringArray = vec![Some("a"), Some("a"), None, Some("b"), Some("b"), Some("b")].into();
    Work::of(with(steps(), "eps_id", Arc::new(ids))).refuses(1, &["found null", &place(2, "column `eps_id`")]);
    let t: Int64Array = vec![Some(0), Some(1), Some(2), Some(0), None, Some(2)].into();
    Work::of(with(steps(), "t", Arc::new(t))).refuses(1, &["found null", &place(4, "episode \"b\", column `t`")]);
    let rows =
        [Some(&[0.0, 1.0][..]), None, Some(&[0.0, 1.0]), Some(&[0.0, 1.0]), Some(&[0.0, 1.0]), Some(&[0.0, 1.0])];
    Work::of(with(steps(), "obs", lists(&rows)))
        .refuses(1, &["found null", &place(1, "episode \"a\", t 1, column `obs`")]);
}

#[test]
fn ragged_observations() {
    let mut rows = [Some(&[0.0, 1.0][..]); 6];
    rows[4] = Some(&[0.0]);
    Work::of(with(steps(), "obs", lists(&rows))).refuses(
        1,
        &[
            "found shape [1], expected [2]",
            "at: file in/a.parquet, row group 0, row 4, episode \"b\", t 1, column `obs`",
            "hint: rows of one column need one shape",
        ],
    );
}

#[test]
fn flags_must_be_flags() {
    let flags = arrow::compute::cast(&i64s(&[0, 0, 1, 0, 0, 1]), &arrow::datatypes::DataType::Int8).unwrap();
    Work::of(with(steps(), "terminateds", flags)).manifest();
    Work::of(with(steps(), "terminateds", f64s(&[0.0, 0.0, 1.0, 0.0, 0.0, 1.0]))).manifest();
    Work::of(with(steps(), "terminateds", i64s(&[0, 0, 2, 0, 0, 1])))
        .refuses(1, &["found 2, expected a boolean, or 0 or 1", "row group 0, row 2, column `terminateds`"]);
    Work::of(with(steps(), "terminateds", f64s(&[0.0, 0.0, f64::NAN, 0.0, 0.0, 1.0]))).refuses(1, &["found NaN"]);
}

#[test]
fn rows_after_the_end_of_an_episode() {
    let flags = crate::support::bools(&[false, true, false, false, false, true]);
    Work::of(with(steps(), "terminateds", flags)).refuses(
        1,
        &["the episode goes on after its end: terminateds is true on step 1", "row 2, episode \"a\", t 2", "hint: "],
    );
}

#[test]
fn an_episode_id_used_again() {
    let again = || with(steps(), "eps_id", texts(&["a"; 6]));
    Work::of(without(again(), &["t"])).refuses(
        1,
        &[
            "the episode goes on after its end",
            "row group 0, row 3, episode \"a\"",
            "hint: give every episode its own id",
        ],
    );
    Work::of(again()).refuses(1, &["two rows of the same episode and t differ", "row 3, episode \"a\", t 0", "hint: "]);
}

#[test]
fn unfinished_episodes() {
    let open = || with(steps(), "terminateds", crate::support::bools(&[false, false, false, false, false, true]));
    let truncated = "false false false false false false";
    for (rule, rows, truncateds) in [
        ("keep", 6, truncated),
        ("truncate", 6, "false false true false false false"),
        ("drop", 3, "false false false"),
    ] {
        let work = Work::of(open());
        let output = work.convert_job(&job(&format!("unfinished = '{rule}'")), &[]);
        let manifest = work.manifest_of(&output);
        assert_eq!((&manifest["counts"]["rows_out"], &manifest["counts"]["unfinished"]), (&rows.into(), &1.into()));
        assert_eq!(shown(&work.rows(), "truncateds"), truncateds, "{rule}");
        contains(&stdout(&output), &["1 episode ends neither terminated nor truncated"]);
    }
    let work = Work::of(open());
    let told = work.refused(1, &work.convert_job(&job("unfinished = 'fail'"), &[]));
    contains(
        &told,
        &["neither terminated nor truncated", "row group 0, row 2, episode \"a\"", "hint: `input.unfinished`"],
    );
}

/// Episode `a`: two steps and a third row that holds only the observation after them.
fn trailing(terminateds: [bool; 3]) -> Columns {
    vec![
        ("eps_id", texts(&["a"; 3])),
        ("obs", obs(0, 3)),
        ("actions", i32s(&[Some(1), Some(2), None])),
        ("rewards", f64s(&[1.0, 2.0, 0.0])),
        ("terminateds", crate::support::bools(&terminateds)),
    ]
}

#[test]
fn a_trailing_row_holds_the_last_observation() {
    let t = || i64s(&[0, 1, 2]);
    // RLDS and others set the flag on the row behind the last step.
    for columns in [
        trailing([false, true, false]),
        trailing([false, false, true]),
        with(trailing([false, true, false]), "t", t()),
        with(trailing([false, false, true]), "t", t()),
    ] {
        let work = Work::of(columns);
        work.manifest_of(&work.convert_job("[learner]\nalgorithm = 'BC'\n", &[]));
        let rows = work.rows();
        assert_eq!(shown(&rows, "new_obs"), "[1.0, 1.5] [2.0, 2.5]");
        assert_eq!(shown(&rows, "terminateds"), "false true");
        assert_eq!(shown(&rows, "actions"), "1 2");
    }
}

#[test]
fn null_actions_elsewhere_are_errors() {
    let inside = i32s(&[Some(0), None, Some(2), Some(3), Some(4), Some(5)]);
    for columns in [with(steps(), "actions", Arc::clone(&inside)), without(with(steps(), "actions", inside), &["t"])] {
        Work::of(columns).refuses(
            1,
            &[
                "found null, expected an action: the episode goes on after this row",
                "row group 0, row 1, episode \"a\"",
                "column `actions`",
                "hint: only the row behind an episode's last step",
            ],
        );
    }
    // In every row: nothing is dropped in silence.
    let none = || with(steps(), "actions", i32s(&[None; 6]));
    Work::of(none()).refuses(1, &["found null, expected an action", "row 0, episode \"a\", t 0"]);
    let work = Work::new();
    work.parquet("a.parquet", &[take(&batch(none()), &[0, 3])]);
    work.refuses(2, &["found null in every row, expected actions", "hint: "]);
}

#[test]
fn next_observations_that_are_not_recorded() {
    let work = Work::of(steps());
    let told = work.refused(2, &work.convert_job("[learner]\nalgorithm = 'BC'\n", &[]));
    contains(
        &told,
        &["connector 1 (AddNextObservationsFromEpisodesToTrainBatch)", "column `new_obs`", "hint: map a column to it"],
    );
    // One episode has its last observation, the other has not.
    let work = Work::of(with(trailing([false, true, false]), "t", i64s(&[0, 1, 2])));
    work.parquet("b.parquet", &[batch(without(steps(), &["truncateds"])).slice(3, 3)]);
    let told = work.refused(1, &work.convert_job("[learner]\nalgorithm = 'BC'\n", &[]));
    contains(&told, &["connector 1 (AddNext", "episode \"b\"", "column `new_obs`", "hint: record `new_obs`"]);
}

#[test]
fn next_observations_that_do_not_follow() {
    let new_obs = |third: f32| {
        let rows = [[1.0, 1.5], [third, 2.5], [9.0, 9.0], [4.0, 4.5], [5.0, 5.5], [9.0, 9.0]];
        lists(&rows.iter().map(|r| Some(r.as_slice())).collect::<Vec<_>>())
    };
    let work = Work::of(with(steps(), "new_obs", new_obs(2.0)));
    assert_eq!(work.manifest()["counts"]["discontinuities"], 0);
    let work = Work::of(with(steps(), "new_obs", new_obs(7.0)));
    let output = work.convert();
    assert_eq!(work.manifest_of(&output)["counts"]["discontinuities"], 1);
    let told = "1 step has an `obs` that is not the `new_obs` of the step before (first: file in/a.parquet, row group 0, row 2)";
    contains(&stdout(&output), &[told]);
}
