//! What newcomers stumble over: names of columns, files that are no recording yet, jobs that leave nothing.

use std::fs;
use std::sync::Arc;

use arrow::array::{ArrayRef, ListArray, NullArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Float32Type};

use crate::cli::{gristmill, stderr, stdout};
use crate::support::{Columns, Work, bools, contains, i64s, lists, obs, steps, texts, with, without};

/// [`steps`] with columns under other names.
fn renamed(names: &[(&'static str, &'static str)]) -> Columns {
    let name = |ours| names.iter().find(|(n, _)| *n == ours).map_or(ours, |(_, theirs)| *theirs);
    steps().into_iter().map(|(ours, array)| (name(ours), array)).collect()
}

/// What `convert` says of a job with these lines under `[input]`, and that it exits with `code`.
fn refused(columns: Columns, input: &str, code: i32, told: &[&str]) -> String {
    let work = Work::of(columns);
    let text = work.refused(code, &work.convert_job(&format!("[input]\n{input}"), &[]));
    contains(&text, told);
    text
}

#[test]
fn all_names_that_are_not_there_are_told() {
    let theirs = || renamed(&[("eps_id", "ep"), ("t", "step"), ("obs", "state")]);
    refused(
        theirs(),
        "columns = { ep = 'eps_id', step = 't', state = 'obs' }",
        2,
        &[
            "maps ep to \"eps_id\", step to \"t\", state to \"obs\", which are not there: found the columns ep, step",
            "hint: gristmill's name stands on the left: `columns = { eps_id = \"ep\", t = \"step\", obs = \"state\" }`",
        ],
    );
    refused(
        theirs(),
        "columns = { ep = 'eps_id', t = 'stepp', obs = 'sttate' }",
        2,
        &["`columns = { eps_id = \"ep\" }`; did you mean t = \"step\", obs = \"state\"?"],
    );
    let told = refused(theirs(), "columns = { obs = 'stat' }", 2, &["which is not there", "did you mean \"state\"?"]);
    assert!(!told.contains("stands on the left"), "{told}");
}

#[test]
fn a_column_that_is_taken_is_told_as_taken() {
    let told = refused(
        without(steps(), &["actions"]),
        "columns = { actions = 'rewards' }",
        2,
        &["missing column rewards: found the columns", ", of which `[input] columns` takes rewards as actions"],
    );
    assert!(told.contains("needs this, too: rewards = \"...\""), "{told}");
}

#[test]
fn our_names_in_other_cases() {
    refused(
        renamed(&[("obs", "Obs"), ("actions", "Actions"), ("rewards", "REWARDS")]),
        "",
        2,
        &["`columns = { obs = \"Obs\", actions = \"Actions\", rewards = \"REWARDS\" }`"],
    );
}

/// One word for all ends is no word on which of them it is.
#[test]
fn a_proposal_that_may_be_wrong_says_so() {
    for done in ["done", "Done", "dones"] {
        let columns = with(without(steps(), &["terminateds", "truncateds", "obs"]), done, bools(&[false; 6]));
        let word =
            format!("terminateds = \"{done}\" only if that is what it is: `{done}` may mean terminated, truncated");
        refused(columns, "", 2, &[&format!("terminateds = \"{done}\" }}`; "), &word]);
    }
    let told =
        refused(without(renamed(&[("terminateds", "terminal")]), &["obs"]), "", 2, &["terminateds = \"terminal\""]);
    assert!(!told.contains("only if"), "{told}");
}

#[test]
fn agents_that_the_job_does_not_name() {
    let obs =
        ListArray::from_iter_primitive::<Float32Type, _, _>((0..6).map(|i| Some(vec![Some(0.0); 2 + 2 * (i / 3)])));
    let columns = with(steps(), "obs", Arc::new(obs));
    let columns = with(columns, "agent", texts(&["a", "a", "a", "b", "b", "b"]));
    let told =
        ["if `agent` says which agent's a row is, `[input] columns = { agent_id = \"agent\" }`", "; else pad the rows"];
    refused(columns.clone(), "", 1, &told);
    // Both are at one time step of one episode, as they are for whoever looks at no agents.
    let together = with(with(columns, "eps_id", texts(&["a"; 6])), "t", i64s(&[0, 1, 2, 0, 1, 2]));
    refused(together, "", 1, &told);
}

#[test]
fn columns_without_a_value() {
    // As polars and pandas write lists of which none has an element.
    let item = Arc::new(Field::new("item", DataType::Null, true));
    let empty = ListArray::new(item, OffsetBuffer::from_lengths([0; 6]), Arc::new(NullArray::new(0)), None);
    let other = "hint: if another column has them, name that: `[input] columns = { obs = \"...\" }`";
    let told = "the column holds only nulls and empty lists, expected values";
    refused(with(steps(), "obs", Arc::new(empty.clone())), "", 2, &[told, other]);
    let null: ArrayRef = Arc::new(NullArray::new(6));
    refused(with(steps(), "obs", null), "", 2, &["the column is null in every row, expected values", other]);
    let work = Work::of(with(steps(), "more", Arc::new(empty)));
    contains(&work.manifest()["notes"].to_string(), &["it holds only nulls and empty lists"]);
    let work = Work::of(with(steps(), "more", lists(&[None; 6])));
    contains(&work.manifest()["notes"].to_string(), &["column `more` is left out: it is null in every row"]);
}

#[test]
fn text_files_are_written_as_parquet_first() {
    let work = Work::new();
    for (text, reader) in
        [("{\"obs\": 1}\n", "pl.read_ndjson("), ("[{}]", "pl.read_json("), ("obs,t\n1,2\n", "pl.read_csv(")]
    {
        fs::write(work.path().join("x.txt"), text).unwrap();
        let told = stderr(&gristmill(&["convert", "--input", "x.txt", "--output", "out"], work.path()));
        contains(&told, &["expected Parquet or Arrow IPC", "write it as Parquet first", reader, ".write_parquet("]);
    }
}

/// Whatever leaves no episode is an error, `unfinished` as `where`.
#[test]
fn a_job_that_leaves_nothing() {
    let open = || with(with(steps(), "terminateds", bools(&[false; 6])), "truncateds", bools(&[false; 6]));
    refused(
        open(),
        "unfinished = 'drop'",
        1,
        &[
            "`unfinished = \"drop\"` leaves none of 2 episodes",
            "job key `input.unfinished`",
            "\"keep\" or \"truncate\"",
        ],
    );
    let work = Work::of(open());
    let output = work.convert_job("[input]\nunfinished = 'truncate'\n", &[]);
    contains(&stdout(&output), &["2 episodes end neither", "2 of these were marked truncated, as the job says"]);
}

#[test]
fn what_is_quarantined_is_kept_and_said_to_be() {
    let obs = lists(&[Some(&[0., 1.]), None, Some(&[1., 1.]), Some(&[0., 1.]), Some(&[0., 1.]), Some(&[0., 1.])]);
    let work = Work::of(with(steps(), "obs", obs));
    let told = |how: &str, output: &str| {
        fs::write(work.path().join("job.toml"), format!("[input]\non_bad_episode = '{how}'\n")).unwrap();
        stdout(&gristmill(&["convert", "job.toml", "--input", "in", "--output", output], work.path()))
    };
    contains(
        &told("quarantine", "q"),
        &["was left out, as the job says; what could be read of them is kept in quarantine/"],
    );
    assert!(work.path().join("q/quarantine").is_dir());
    assert!(!told("skip", "s").contains("quarantine"));
}

#[test]
fn jobs_that_are_nearly_toml() {
    let work = Work::of(with(steps(), "new_obs", obs(1, 7)));
    let told = |name: &str, text: &str| {
        fs::write(work.path().join(name), text).unwrap();
        stderr(&gristmill(&["plan", name, "--input", "in"], work.path()))
    };
    contains(
        &told("a.toml", "[learner.connectors]\ntype = 'FrameStacking'\n"),
        &["double brackets: [[learner.connectors]]"],
    );
    contains(&told("a.yaml", "version: 1\n"), &["YAML is not read"]);
    let marwil = told("m.toml", "[learner]\nalgorithm = 'MARWIL'\n");
    contains(&marwil, &["needs the column `vf_preds`", "`[input] columns = { vf_preds = \"...\" }`"]);
    // A connector is told by its number in the job, too: the pipeline has RLlib's own around it.
    let gae = "[[learner.connectors]]\ntype = 'GeneralAdvantageEstimation'\ngamma = 0.9\nlambda_ = 1.0\n";
    let own = format!("[[learner.connectors]]\ntype = 'AddColumnsFromEpisodesToTrainBatch'\n{gae}");
    contains(&told("g.toml", &own), &["job key `learner.connectors[1]`, connector 1 (GeneralAdvantageEstimation)"]);
}
