//! What those who are new to gristmill are told: hints look at the job and the files, and name what is there.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float64Array, Int64Array, StringArray, StructArray};
use arrow::datatypes::Field;
use serde_json::json;

use crate::cli::{gristmill, json, stderr, stdout};
use crate::support::{Columns, Work, batch, bools, contains, f32s, f64s, i64s, lists, steps, texts, with, without};

/// [`steps`] as others call their columns, and the job that says so.
fn foreign() -> Columns {
    let named = [("eps_id", "episode"), ("t", "step"), ("obs", "observation"), ("terminateds", "done")];
    let name = |ours| named.iter().find(|(n, _)| *n == ours).map_or(ours, |(_, theirs)| *theirs);
    without(steps(), &["truncateds"]).into_iter().map(|(ours, array)| (name(ours), array)).collect()
}

const FOREIGN: &str = "columns = { eps_id = 'episode', t = 'step', obs = 'observation', terminateds = 'done' }\n";

/// `told` for a job with these lines under `[input]`.
fn refused(columns: Columns, input: &str, code: i32, told: &[&str]) -> String {
    let work = Work::of(columns);
    let text = work.refused(code, &work.convert_job(&format!("[input]\n{input}"), &[]));
    contains(&text, told);
    text
}

fn plan(work: &Work, job: &str, more: &[&str]) -> std::process::Output {
    std::fs::write(work.path().join("job.toml"), job).unwrap();
    gristmill(&[&["plan", "job.toml", "--input", "in"], more].concat(), work.path())
}

fn structs(fields: Vec<(&str, ArrayRef)>) -> ArrayRef {
    let fields: Vec<_> =
        fields.into_iter().map(|(n, a)| (Arc::new(Field::new(n, a.data_type().clone(), true)), a)).collect();
    Arc::new(StructArray::from(fields))
}

#[test]
fn a_column_has_both_of_its_names() {
    let one_null: ArrayRef = lists(&[Some(&[0., 1.]), None, Some(&[1., 1.]), Some(&[0., 1.]), None, None]);
    let place = "row 1, episode \"a\", t 1, column `obs` (`observation` in the file)";
    refused(with(foreign(), "observation", one_null.clone()), FOREIGN, 1, &["found null", place]);
    let ragged = lists(&[Some(&[0., 1.]), Some(&[0.]), Some(&[1.]), Some(&[0.]), Some(&[0.]), Some(&[0.])]);
    refused(with(foreign(), "observation", ragged), FOREIGN, 1, &["found shape [1], expected [2]", place]);
    let pos: ArrayRef = Arc::new(Float64Array::from(vec![Some(0.), None, Some(0.), Some(0.), Some(0.), Some(0.)]));
    refused(
        with(foreign(), "observation", structs(vec![("pos", pos)])),
        FOREIGN,
        1,
        &["found null", "column `obs/pos` (`observation/pos` in the file)"],
    );
    refused(
        with(foreign(), "done", texts(&["no"; 6])),
        FOREIGN,
        2,
        &["found text, expected booleans", "column `terminateds` (`done` in the file)"],
    );
    // Where malformed episodes are left out, their list says it; and `inspect` and JSON do.
    let work = Work::of(with(foreign(), "observation", one_null));
    let output = work.convert_job(&format!("[input]\non_bad_episode = 'quarantine'\n{FOREIGN}"), &[]);
    contains(&work.refused(1, &output), &["none of the episodes is well-formed", "(`observation` in the file)"]);
    let output = gristmill(&["inspect", "in", "--job", "job.toml"], work.path());
    contains(&stdout(&output), &["column `obs` (`observation` in the file)"]);
    let output = work.convert_job(&format!("[input]\n{FOREIGN}"), &["--json"]);
    let place = &json(&output)["errors"][0]["place"];
    assert_eq!((&place["column"], &place["file_column"]), (&json!("obs"), &json!("observation")));
}

#[test]
fn nobody_is_told_to_say_what_the_job_says() {
    // A column that the job maps already.
    let told = refused(
        with(foreign(), "done", texts(&["no"; 6])),
        FOREIGN,
        2,
        &["hint: cast it before, or name another than \"done\" for terminateds in `[input] columns`"],
    );
    assert!(!told.contains("set `[input]"), "{told}");
    refused(
        with(steps(), "terminateds", texts(&["no"; 6])),
        "",
        2,
        &["hint: cast it before, or name another: `[input] columns = { terminateds = \"...\" }`"],
    );
    refused(
        with(foreign(), "observation", texts(&["x"; 6])),
        FOREIGN,
        2,
        &["hint: cast the column to numbers before, or name another than \"observation\" for obs"],
    );
    // A mapping that lacks a name.
    let hint = "hint: `[input] columns` needs this, too: obs = \"observation\"\n";
    refused(
        foreign(),
        "columns = { eps_id = 'episode', t = 'step', terminateds = 'done' }\n",
        2,
        &["missing column obs", hint],
    );
    // A time step that does not count steps.
    let t = i64s(&[0, 10, 20, 0, 10, 20]);
    refused(
        with(foreign(), "step", t.clone()),
        FOREIGN,
        1,
        &[
            "column `t` (`step` in the file)",
            "hint: an episode's t must go up by one a row; if `step` does not count steps, leave t = \"step\" out of \
         `[input] columns`",
        ],
    );
    refused(with(steps(), "t", t), "", 1, &["if the column does not count steps, give it another name"]);
    // Rows after an end: those with a time step cannot be out of order.
    let early = bools(&[true, false, true, false, false, true]);
    let told = refused(with(steps(), "terminateds", early.clone()), "", 1, &["hint: give every episode its own id\n"]);
    assert!(!told.contains("out of order"), "{told}");
    let untimed = "columns = { eps_id = 'episode', obs = 'observation', terminateds = 'done' }\n";
    refused(
        with(foreign(), "done", early),
        untimed,
        1,
        &[
            "hint: give every episode its own id; if its rows are out of order, `[input] columns = { t = \"step\" }` says",
        ],
    );
    // Where malformed episodes are left out already, that is no way out.
    let null: ArrayRef = Arc::new(Float64Array::from(vec![Some(0.), None, Some(0.), Some(0.), Some(0.), Some(0.)]));
    let skip = "`input.on_bad_episode = \"skip\"`";
    refused(with(steps(), "rewards", null.clone()), "", 1, &["hint: fill it in; or leave such episodes out by", skip]);
    // A path from the root starts nowhere else.
    let work = Work::of(steps());
    let told = stderr(&gristmill(&["convert", "--input", "/nowhere/at/all.parquet", "--output", "out"], work.path()));
    assert!(told.contains("there is no file") && !told.contains("relative paths"), "{told}");
}

#[test]
fn a_null_in_an_extra_column_has_ways_out_that_work() {
    let nulls: ArrayRef =
        Arc::new(Float64Array::from(vec![None, Some(0.5), Some(0.5), Some(0.5), Some(0.5), Some(0.5)]));
    let columns = with(steps(), "action_logp", nulls.clone());
    refused(
        columns.clone(),
        "",
        1,
        &[
            "found null, expected a value in every row",
            "column `action_logp`",
            "hint: fill it in; or leave it out by `[input] ignore = [\"action_logp\"]`, if no piece needs it; or leave such \
             episodes out by `input.on_bad_episode = \"skip\"`",
        ],
    );
    let rows = |work: &Work, job: &str| work.manifest_of(&work.convert_job(job, &[]))["counts"]["rows_out"].clone();
    assert_eq!(rows(&Work::of(with(columns.clone(), "action_logp", f64s(&[0.5; 6]))), ""), 6);
    assert_eq!(rows(&Work::of(without(columns.clone(), &["action_logp"])), ""), 6);
    assert_eq!(rows(&Work::of(columns), "[input]\non_bad_episode = 'skip'\n"), 3);
    // Of several agents, one may lack it, in a module of its own.
    let half: ArrayRef = Arc::new(Float64Array::from(vec![None, None, None, Some(0.5), Some(0.5), Some(0.5)]));
    let agents = with(with(steps(), "action_logp", half), "agent_id", texts(&["p", "p", "p", "q", "q", "q"]));
    let told =
        "hint: the agents p, q all go to module \"default_policy\", whose rows need the same columns: give those that";
    refused(agents.clone(), "", 1, &["found a value, expected null", "column `action_logp`", told]);
    let one = with(with(steps(), "action_logp", nulls), "agent_id", texts(&["p", "p", "p", "q", "q", "q"]));
    refused(one, "", 1, &["found a value, expected null"]);
    assert_eq!(rows(&Work::of(agents), "[multi_agent]\nagent_to_module = { p = 'p', q = 'q' }\n"), 6);
}

#[test]
fn text_inside_of_a_struct() {
    let part = |names: ArrayRef| structs(vec![("pos", f32s(&[0.; 6])), ("name", names)]);
    let name = || -> ArrayRef { Arc::new(StringArray::from(vec!["x"; 6])) };
    // As a text column, the field is left out with a word, and the rest is kept.
    let work = Work::of(with(steps(), "extra", part(name())));
    let output = work.convert();
    contains(&stdout(&output), &["extra/pos", "column `extra/name` is left out: found text, expected numbers"]);
    assert_eq!(work.manifest_of(&output)["counts"]["rows_out"], 6);
    let work = Work::of(with(steps(), "extra", structs(vec![("name", name())])));
    contains(&stdout(&work.convert()), &["column `extra/name` is left out"]);
    // What is needed is not left out.
    refused(
        with(steps(), "obs", part(name())),
        "",
        2,
        &[
            "found text, expected numbers",
            "column `obs/name`",
            "hint: write the struct without its field `name`, or with numbers in it",
        ],
    );
    // Two files are named where there are two.
    let work = Work::of(with(steps(), "extra", part(i64s(&[1; 6]))));
    work.parquet("b.parquet", &[batch(with(crate::support::episodes("c", "d"), "extra", part(name())))]);
    work.refuses(2, &["found int64 in in/a.parquet and text in in/b.parquet", "column `extra/name`"]);
}

#[test]
fn agents_without_rules() {
    let obs = || lists(&[Some(&[0., 1.]), Some(&[0., 1.]), Some(&[0., 1.]), Some(&[1.]), Some(&[1.]), Some(&[1.])]);
    let agents = || texts(&["scout", "scout", "scout", "walker", "walker", "walker"]);
    let told = "hint: the agents scout, walker all go to module \"default_policy\", whose rows need one shape: give those that \
                differ a module of their own, `[multi_agent] agent_to_module = { \"scout\" = \"scout\", \"walker\" = \"walker\" }`";
    refused(with(with(steps(), "obs", obs()), "agent_id", agents()), "", 1, &["found shape [1], expected [2]", told]);
    // One that is alone in its module can only be padded.
    let ragged = lists(&[Some(&[0.]), Some(&[0., 1.]), Some(&[0.]), Some(&[1.]), Some(&[1.]), Some(&[1.])]);
    let work = Work::of(with(with(steps(), "obs", ragged), "agent_id", agents()));
    let rules = "[multi_agent]\nagent_to_module = { scout = 'a', walker = 'b' }\n";
    contains(
        &work.refused(1, &work.convert_job(rules, &[])),
        &["hint: rows of one agent need one shape: pad the rows"],
    );
    // Where no column is `agent_id`, one that looks like it is named.
    let map = "`[input] columns = { agent_id = \"agent\" }` tells agents apart";
    refused(with(with(steps(), "obs", obs()), "agent", agents()), "", 1, &["found shape [1], expected [2]", map]);
    let turns = with(with(steps(), "agent", texts(&["p", "q", "p", "p", "q", "p"])), "t", i64s(&[0, 0, 1, 0, 0, 1]));
    refused(turns.clone(), "", 1, &["two rows of the same episode and t differ", map]);
    let ends = with(turns, "terminateds", bools(&[false, true, true, false, true, true]));
    refused(without(ends, &["t"]), "", 1, &["the episode goes on after its end", map]);
}

#[test]
fn a_plan_shows_each_module() {
    let obs = lists(&[Some(&[0., 1.]), Some(&[0., 1.]), Some(&[0., 1.]), Some(&[1.]), Some(&[1.]), Some(&[1.])]);
    let acts: ArrayRef = Arc::new(Int64Array::from(vec![0; 6]));
    let columns =
        with(with(with(steps(), "obs", obs), "actions", acts), "agent_id", texts(&["p", "p", "p", "q", "q", "q"]));
    let work = Work::of(columns.clone());
    let rules = "[multi_agent]\nagent_to_module = { p = 'one', 'q*' = 'two', r = 'three' }\n\
                 [rl_module.modules.tow]\nstateful = false\n";
    let output = plan(&work, rules, &[]);
    contains(
        &stdout(&output),
        &[
            "obs      float32[2] or float32[1]\n",
            "  one: agent p\n    obs          float32[2]\n",
            "  two: agent q\n    obs          float32[1]\n",
            "[rl_module.modules.tow] has no effect: the data go to one, two; did you mean \"two\"?",
            "the rule \"r\" = \"three\" has no effect: it matches none of the agents p, q",
        ],
    );
    let told = json(&plan(&work, rules, &["--json"]));
    assert_eq!(told["agents"], json!({ "one": ["p"], "two": ["q"] }));
    // It is what comes out, but for the columns that say where a row came from.
    let output = work.convert_job(rules, &[]);
    let manifest = work.manifest_of(&output);
    for module in ["one", "two"] {
        let columns = manifest["modules"][module]["columns"].as_array().unwrap();
        let written: Vec<&str> = columns.iter().map(|c| c["name"].as_str().unwrap()).collect();
        let planned: Vec<&str> =
            told["modules"][module].as_array().unwrap().iter().map(|c| c[0].as_str().unwrap()).collect();
        assert_eq!(written[3..], planned, "{module}");
    }
    contains(&stdout(&output), &["did you mean \"two\"?", "it matches none of the agents p, q"]);
    // Recorded modules need no rules; agents that share one are told what gives them their own.
    let output = plan(&Work::of(with(columns, "module_id", texts(&["m", "m", "m", "n", "n", "n"]))), "", &[]);
    contains(
        &stdout(&output),
        &["  m: agent p\n    obs          float32[2]\n", "  n: agent q\n    obs          float32[1]\n"],
    );
    let shared = Work::of(with(steps(), "agent_id", texts(&["p", "p", "p", "q", "q", "q"])));
    contains(
        &stdout(&plan(&shared, "", &[])),
        &[
            "  default_policy: agents p, q\n",
            "the agents p, q share one module; `[multi_agent] agent_to_module` gives agents modules of their own",
        ],
    );
    // Rules for a recording without agents.
    let output = plan(&Work::of(with(steps(), "agent", texts(&["p"; 6]))), rules, &[]);
    contains(
        &stdout(&output),
        &[
            "column `agent` is not read as agent_id; if that is what it is, `[input] columns = { agent_id = \"agent\" }` says so",
            "[multi_agent] agent_to_module has no effect: the recording names no agents (a column `agent_id`)",
        ],
    );
}

#[test]
fn the_observation_after_the_last_step() {
    let bc = |input: &str| format!("[input]\n{input}\n[learner]\nalgorithm = 'BC'\n");
    let work = Work::of(with(steps(), "next_observation", crate::support::obs(1, 7)));
    let hint = "hint: if `next_observation` is the observation after each step, `[input] columns = { new_obs = \
                \"next_observation\" }`; or record one more row";
    contains(&work.refused(2, &work.convert_job(&bc(""), &[])), &[hint]);
    contains(&stderr(&plan(&work, &bc(""), &[])), &[hint]);
    let map = "columns = { new_obs = 'next_observation' }";
    assert_eq!(work.manifest_of(&work.convert_job(&bc(map), &[]))["counts"]["rows_out"], 6);
    let nulls = lists(&[Some(&[0., 1.]), Some(&[0., 1.]), None, Some(&[1., 1.]), Some(&[1., 1.]), None]);
    let work = Work::of(with(steps(), "new_obs", nulls));
    contains(
        &work.refused(1, &work.convert_job(&bc(""), &[])),
        &["hint: `new_obs` is null in its last row: fill it in"],
    );
}

#[test]
fn names_in_the_job_that_are_nearly_ours() {
    let work =
        Work::of(with(without(steps(), &["terminateds"]), "fin", bools(&[false, false, true, false, false, true])));
    let output = work.convert_job("[input]\ncolumns = { terminated = 'fin' }\n", &[]);
    contains(
        &stdout(&output),
        &[
            "`[input] columns` makes \"fin\" a column terminated, which is none of gristmill's: did you mean terminateds?",
        ],
    );
    // A name of one's own is nobody's business.
    let output = work.convert_job("[input]\ncolumns = { finished = 'fin' }\n", &["--overwrite"]);
    assert!(!stdout(&output).contains("did you mean"), "{}", stdout(&output));
}

#[test]
fn words_of_a_job_that_are_nearly_right() {
    let work = Work::of(with(steps(), "vf_preds", f32s(&[0.; 6])));
    let gae = "[[learner.connectors]]\ntype = 'GeneralAdvantageEstimation'\ngamma = 0.9\nlambda_ = 1.0\n";
    for (job, told) in [
        ("[learner]\nconnectors = ['framestacking']\n", "hint: write it as a table: { type = \"FrameStacking\" }"),
        ("[learner]\ncompat = 'rllib'\n", "hint: did you mean \"rllib-2.60\"?"),
        ("[output]\ncompression = 'zstd'\n", "hint: did you mean \"zstd:1\"?"),
        ("[output]\nsplit = [0.9, 0.1]\n", "hint: write, for example, { train = 0.9, val = 0.1 }"),
        ("[input]\ncolumns = 'obs'\n", "hint: write, for example, { obs = \"observation\" }"),
        ("[multi_agent]\nagent_to_module = 'p0'\n", "hint: write, for example, { agent_0 = \"p0\", agent_1 = \"p1\" }"),
        ("[[learner.connectors]]\ntype = 'MeanStdFilter'\nclip_by = 3\n", "hint: did you mean `clip_by_value`?"),
        (
            &format!(
                "[learner]\nadd_default_connectors_to_learner_pipeline = false\n{FINISHED}{gae}values = 'vf_pred'\n"
            ),
            "hint: did you mean values = \"vf_preds\"?",
        ),
    ] {
        contains(&work.refused(2, &work.convert_job(job, &[])), &[told]);
    }
    // Each command names itself, and the right one for what it was given.
    for command in ["plan", "convert"] {
        let told = stderr(&gristmill(&[command], work.path()));
        contains(&told, &[&format!("hint: gristmill {command} JOB, or gristmill {command} --input PATH")]);
    }
    contains(&stderr(&gristmill(&["verify", "in"], work.path())), &["`gristmill inspect` looks into recordings"]);
    contains(
        &stderr(&gristmill(&["convert", "--input", "inn", "--output", "out"], work.path())),
        &["did you mean \"in\"?"],
    );
}

/// Pieces that make a finished batch.
const FINISHED: &str = "[[learner.connectors]]\ntype = 'AddObservationsFromEpisodesToBatch'\n\
    [[learner.connectors]]\ntype = 'AddColumnsFromEpisodesToTrainBatch'\n\
    [[learner.connectors]]\ntype = 'BatchIndividualItems'\n[[learner.connectors]]\ntype = 'NumpyToTensor'\n";

#[test]
fn a_plan_looks_at_the_first_rows_and_says_so() {
    // One row group is all that is looked at, and the second one has another agent.
    let rows = 100_000;
    let agent = |name: &'static str, width: usize, rows: usize| {
        let row = vec![0.0; width];
        batch(vec![
            ("eps_id", texts(&vec![name; rows])),
            ("agent_id", texts(&vec![name; rows])),
            ("obs", lists(&vec![Some(row.as_slice()); rows])),
            ("actions", i64s(&vec![0; rows])),
            ("rewards", f64s(&vec![0.0; rows])),
        ])
    };
    let work = Work::of_batches(&[agent("p", 2, rows), agent("q", 3, 2)]);
    let told = stdout(&plan(&work, "[multi_agent]\nagent_to_module = { p = 'one', q = 'two' }\n", &[]));
    contains(
        &told,
        &[
            "  one: agent p\n    obs          float32[2]\n",
            "agents, modules and the columns of each are told as the first 100000 rows have them: others may have more",
        ],
    );
    // What the rest has is not said to be without effect.
    assert!(!told.contains("no effect") && !told.contains("two"), "{told}");
}

#[test]
fn an_agent_that_waits_has_no_step_of_its_own() {
    // The environment's time step: the agent waits at 1, where another one acts.
    let work = Work::of(vec![
        ("eps_id", texts(&["e"; 3])),
        ("agent_id", texts(&["a"; 3])),
        ("t", i64s(&[0, 2, 3])),
        ("obs", lists(&[Some(&[0.0][..]), Some(&[2.0]), Some(&[3.0])])),
        ("actions", i64s(&[0; 3])),
        ("rewards", f64s(&[0.0; 3])),
    ]);
    let told = work.refused(1, &work.convert());
    contains(
        &told,
        &["t jumps from 0 to 2", "an agent's t counts its own steps", "`[input] columns = { env_t = \"t\" }`"],
    );
    let job = "[input]\ncolumns = { env_t = 't' }\n";
    let made = work.manifest_of(&work.convert_job(job, &[]));
    assert_eq!(made["counts"]["rows_out"], 3, "{made}");
}
