//! Jobs that do not fit.

use crate::support::{Work, contains, steps};

#[test]
fn an_unknown_key_is_named_and_nothing_is_written() {
    let work = Work::of(steps());
    let told = work.refused(2, &work.convert_job("[input]\nunfinshed = 'drop'\n", &[]));
    contains(
        &told,
        &["unknown key `unfinshed`", "job key `input.unfinshed`, file job.toml:2", "hint: did you mean `unfinished`?"],
    );
    assert!(!work.path().join("out").exists());
}

#[test]
fn a_stateful_module_needs_a_sequence_length() {
    let work = Work::of(steps());
    let told = work.refused(2, &work.convert_job("[rl_module]\nstateful = true\n", &[]));
    contains(&told, &["has no `max_seq_len`", "job key `rl_module.max_seq_len`, file job.toml:1"]);
    contains(
        &told,
        &[
            "hint: set `max_seq_len` under [rl_module] to the value of RLlib's `config.rl_module(model_config={'max_seq_len': ..})`",
        ],
    );
}

#[test]
fn a_stateful_module_needs_a_state() {
    let work = Work::of(steps());
    let told = work.refused(2, &work.convert_job("[rl_module]\nstateful = true\nmax_seq_len = 2\n", &[]));
    contains(
        &told,
        &[
            "connector 3 (AddStatesFromEpisodesToBatch)",
            "job key `rl_module.initial_state`",
            "hint: give the state's shape",
        ],
    );
}

#[test]
fn sizes_beyond_any_memory_are_refused() {
    let refused = |state: &str, len: &str, told: &[&str]| {
        let job = format!(
            "[rl_module]\nstateful = true\nmax_seq_len = {len}\ninitial_state = {{ h = {{ shape = {state} }} }}\n"
        );
        let work = Work::of(steps());
        contains(&work.refused(2, &work.convert_job(&job, &[])), told);
    };
    for state in ["[4000000000]", "[4000000000, 4000000000, 4000000000]"] {
        refused(state, "2", &["found a state of float32[4000000000", "job key `rl_module.initial_state.h`"]);
    }
    for len in ["2000000000", "9000000000000000000"] {
        refused("[2]", len, &["expected at most 1920 MiB", "hint: lower max_seq_len"]);
    }
}

#[test]
fn a_column_has_one_name() {
    let work = Work::of(steps());
    let columns = "{ terminateds = 'done', truncateds = 'done' }";
    let told = work.refused(2, &work.convert_job(&format!("[input]\ncolumns = {columns}\n"), &[]));
    contains(
        &told,
        &["found the column \"done\" as \"terminateds\" and as \"truncateds\"", "input.columns.truncateds"],
    );
}

#[test]
fn columns_that_are_mapped_and_not_there() {
    let work = Work::of(steps());
    let told = work.refused(2, &work.convert_job("[input]\ncolumns = { rewards = 'reward' }\n", &[]));
    contains(&told, &["maps rewards to \"reward\", which is not there", "found the columns eps_id, t, obs"]);
}

#[test]
fn layouts_that_the_files_have_not() {
    let work = Work::of(steps());
    let told = work.refused(2, &work.convert_job("[input]\nlayout = 'rllib-episodes'\n", &[]));
    contains(&told, &["needs a binary column `item`; the file has eps_id", "file in/a.parquet", "hint: "]);
    let told = work.refused(2, &work.convert_job("[input]\nlayout = 'minari'\n", &[]));
    contains(&told, &["found the string \"minari\"", "job key `input.layout`", "hint: Minari datasets are not read"]);
    let told =
        work.refused(2, &work.convert_job("[input]\npaths = ['s3://bucket/logs']\n", &["--input", "s3://bucket/logs"]));
    contains(&told, &["reading from `s3://` is not built yet", "hint: copy the files"]);
}
