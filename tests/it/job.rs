//! Jobs as a newcomer writes them, and their schema.

use std::path::{Path, PathBuf};

use gristmill::job::{Job, schema};

use crate::cli::{gristmill, stderr};

/// What the command line says about a job that does not pass.
fn told(file: &str, text: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(file), text).unwrap();
    let output = gristmill(&["plan", file], dir.path());
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(output.stdout.is_empty());
    stderr(&output)
}

#[test]
fn the_schema_in_the_repository_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas/job.schema.json");
    let current = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        std::fs::write(&path, &current).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == current, "schemas/job.schema.json is out of date: run `make schemas`");
}

#[test]
fn three_mistakes_get_three_messages() {
    let told = told(
        "job.toml",
        "version = 1

[input]
pahts = [\"logs/*.parquet\"]
layout = \"rllib-column\"

[rl_module]
stateful = true
",
    );
    assert_eq!(
        told,
        "\
error: found unknown key `pahts`, expected one of `paths`, `layout`, `columns`, `ignore`, `unfinished`, `duplicates`, `on_bad_episode`, `spaces`, `where`
  at: job key `input.pahts`, file job.toml:4
  hint: did you mean `paths`?
error: found the string \"rllib-column\", expected one of \"auto\", \"rllib-columns\", \"rllib-episodes\", \"steps\"
  at: job key `input.layout`, file job.toml:5
  hint: did you mean \"rllib-columns\"?
error: the module is stateful and has no `max_seq_len`: without it there is no telling how long the sequences are that it is trained on
  at: job key `rl_module.max_seq_len`, file job.toml:7
  hint: set `max_seq_len` under [rl_module] to the value of RLlib's `config.rl_module(model_config={'max_seq_len': ..})`; RLlib's default model config has 20
3 errors
"
    );
}

#[test]
fn a_json_job_is_read_as_json() {
    let told =
        told("job.json", r#"{ "version": 1, "input": { "paths": "logs/" }, "output": { "rows_per_shard": 0 } }"#);
    assert_eq!(
        told,
        "\
error: found the string \"logs/\", expected a list (a string each)
  at: job key `input.paths`, file job.json
  hint: write it as a list: [\"logs/\"]
error: found 0, expected an integer of at least 1
  at: job key `output.rows_per_shard`, file job.json
2 errors
"
    );
}

#[test]
fn syntax_errors_name_line_and_column() {
    let toml = told("job.toml", "version = 1\n[input]\npaths = [\"a\"\n[output]\n");
    assert!(toml.contains("not valid TOML (line "), "{toml}");
    assert!(toml.contains("at: file job.toml:"), "{toml}");
    let json = told("job.json", "{\n  \"version\" 1\n}");
    assert!(json.contains("not valid JSON (line 2, column 13)") && json.contains("at: file job.json:2:13"), "{json}");
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    let told = told("job.toml", "[input]\npaths = [\"x\"]\n[input.spaces]\nactions = { type = \"discrete\", n = 2 }\n");
    let actions = "error: using a declared action space is not built yet\n  at: job key `input.spaces.actions`";
    assert!(told.contains(actions), "{told}");
}

#[test]
fn a_job_without_input_is_told_how_to_name_one() {
    let told = told("job.toml", "version = 1\n");
    assert!(told.contains("at: job key `input.paths`") && told.contains("or --input on the command line"), "{told}");
}

#[test]
fn an_empty_input_on_the_command_line_is_refused() {
    let output = gristmill(&["plan", "--input", ""], Path::new("."));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).starts_with("error: found an empty path\n"), "{}", stderr(&output));
}

#[test]
fn relative_paths_refer_to_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("job.toml");
    std::fs::write(&path, "input = { paths = [\"in/*.parquet\"] }\noutput = { path = \"out\" }\n").unwrap();
    let job = Job::load(&path).unwrap();
    assert_eq!(job.input_patterns().iter().map(PathBuf::from).collect::<Vec<_>>(), [dir.path().join("in/*.parquet")]);
    assert_eq!(job.output_path(), dir.path().join("out"));
}

#[test]
fn no_text_makes_the_reader_panic() {
    // Cut a good job at every place: each piece is read or refused.
    let whole = "version = 1\n[input]\npaths = [\"ä/*.parquet\"]\nspaces.obs = [{ type = 'box', shape = [2], low = [-inf, 1_0] }]\n\
        [rl_module]\nstateful = true\nmax_seq_len = 0x14\ninitial_state.h = { shape = [1], fill = 1e3 }\n\
        [[learner.connectors]]\ntype = 'X'\n[output]\nsplit = { a = 0.5, b = 0.5 }\n";
    for (i, _) in whole.char_indices() {
        let _ = Job::from_toml_str(&whole[..i]);
        let _ = Job::from_toml_str(&whole[i..]);
    }
    let job = Job::from_toml_str(&whole.replace("[[learner.connectors]]\ntype = 'X'\n", "")).unwrap();
    let json = job.to_json().to_string();
    assert_eq!(Job::from_json_str(&json).unwrap().to_json(), job.to_json());
    for (i, _) in json.char_indices() {
        let _ = Job::from_json_str(&json[..i]);
    }
}
