//! `input.where` and the piece `Expression`, on the binary.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, FixedSizeListArray, Float32Array, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringArray,
};
use arrow::compute::{cast, concat};
use arrow::datatypes::{DataType, Field};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

use crate::cli::{gristmill, stderr, stdout};

/// Episodes `e0`, `e1`, ... with the given rewards; the observation is `[reward, step]`. Every other one terminates,
/// the rest are cut short.
fn record(path: &Path, rewards: &[&[f64]], id: impl Fn(usize) -> ArrayRef) {
    let all: Vec<f64> = rewards.concat();
    let lengths: Vec<usize> = rewards.iter().map(|r| r.len()).collect();
    let episodes: Vec<usize> = lengths.iter().enumerate().flat_map(|(e, n)| vec![e; *n]).collect();
    let t: Vec<i64> = lengths.iter().flat_map(|n| 0..i64::try_from(*n).unwrap()).collect();
    let last: Vec<bool> = lengths.iter().flat_map(|n| (0..*n).map(move |i| i + 1 == *n)).collect();
    let end = |odd: usize| {
        Arc::new(last.iter().zip(&episodes).map(|(l, e)| Some(*l && e % 2 == odd)).collect::<BooleanArray>())
    };
    #[expect(clippy::cast_possible_truncation, reason = "small numbers")]
    let obs: Vec<f32> = all.iter().zip(&t).flat_map(|(r, t)| [*r as f32, *t as f32]).collect();
    let field = Arc::new(Field::new_list_field(DataType::Float32, false));
    let obs = FixedSizeListArray::new(field, 2, Arc::new(Float32Array::from(obs)), None);
    let ids: Vec<ArrayRef> = episodes.iter().map(|e| id(*e)).collect();
    let ids = concat(&ids.iter().map(|a| &**a).collect::<Vec<_>>()).unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("eps_id", ids),
        ("t", Arc::new(Int64Array::from(t))),
        ("obs", Arc::new(obs)),
        ("actions", Arc::new(Int32Array::from(vec![1; all.len()]))),
        ("rewards", Arc::new(Float64Array::from(all))),
        ("terminateds", end(0)),
        ("truncateds", end(1)),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn text_id(e: usize) -> ArrayRef {
    Arc::new(StringArray::from(vec![format!("e{e}")]))
}

/// A directory with a recording and a job; `input` and `rest` are TOML.
fn job(input: &str, rest: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    record(&dir.path().join("log.parquet"), &[&[10., 20., 30.], &[1., 2.], &[4.; 4], &[100.]], text_id);
    std::fs::write(dir.path().join("job.toml"), format!("[input]\npaths = ['log.parquet']\n{input}\n{rest}\n"))
        .unwrap();
    dir
}

fn expression(columns: &str) -> String {
    format!("[[learner.connectors]]\ntype = 'Expression'\ncolumns = {columns}\n")
}

/// A column of the only shard.
fn column(dir: &Path, name: &str) -> Vec<f64> {
    let file = File::open(dir.join("shards/default_policy/part-00000.parquet")).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
    let mut out = Vec::new();
    for batch in reader {
        let batch = batch.unwrap();
        let found = batch.column_by_name(name).unwrap_or_else(|| panic!("no {name} in {:?}", batch.schema()));
        let flat = match found.as_any().downcast_ref::<FixedSizeListArray>() {
            Some(list) => Arc::clone(list.values()),
            None => Arc::clone(found),
        };
        let flat = cast(&flat, &DataType::Float64).unwrap();
        out.extend(flat.as_any().downcast_ref::<Float64Array>().unwrap().values().iter().copied());
    }
    out
}

fn manifest(dir: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(dir.join("shards/manifest.json")).unwrap()).unwrap()
}

fn convert(dir: &Path) {
    let output = gristmill(&["convert", "job.toml", "--quiet"], dir);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn rewards_are_shaped_before_later_pieces() {
    let columns = "{ rewards = 'rewards / 10.0', share = '\"obs/0\" / sum(\"obs/0\")' }";
    let rest = expression(columns) + "[[learner.connectors]]\ntype = 'ComputeReturnsToGo'\ngamma = 1.0\n";
    let dir = job("", &rest);
    convert(dir.path());
    let near = |a: Vec<f64>, b: &[f64]| {
        assert_eq!(a.len(), b.len());
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6), "{a:?} {b:?}");
    };
    near(column(dir.path(), "rewards"), &[1., 2., 3., 0.1, 0.2, 0.4, 0.4, 0.4, 0.4, 10.]);
    near(column(dir.path(), "returns_to_go"), &[6., 5., 3., 0.3, 0.2, 1.6, 1.2, 0.8, 0.4, 10.]);
    let third = 1.0 / 3.0;
    near(column(dir.path(), "share"), &[third / 2.0, third, 0.5, third, 2.0 * third, 0.25, 0.25, 0.25, 0.25, 1.]);
}

#[test]
fn where_keeps_the_episodes_it_is_true_for() {
    for (predicate, rewards) in [
        ("episode_return > 10 and episode_length >= 2", vec![10., 20., 30., 4., 4., 4., 4.]),
        ("episode_length = 1 or truncated", vec![1., 2., 100.]),
        ("eps_id in ('e1', 'e3')", vec![1., 2., 100.]),
        ("episode_return = max(episode_return)", vec![100.]),
        ("terminated and t_started = 0", vec![10., 20., 30., 4., 4., 4., 4.]),
    ] {
        let dir = job(&format!("where = \"{predicate}\""), "");
        convert(dir.path());
        assert_eq!(column(dir.path(), "rewards"), rewards, "{predicate}");
        let counts = &manifest(dir.path())["counts"];
        assert_eq!(counts["episodes_in"], 4);
        let kept = counts["episodes_out"].as_u64().unwrap();
        assert_eq!(counts["filtered_out"].as_u64().unwrap() + kept, 4, "{predicate}");
        assert_eq!(counts["learner_connector_sum_episodes_length_in"], rewards.len());
    }
}

#[test]
fn the_report_says_how_many_were_left_out() {
    let dir = job("where = \"episode_return > 50\"", "");
    let output = gristmill(&["convert", "job.toml", "--json"], dir.path());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["filtered_out"], 2, "{report}");
    let output = gristmill(&["convert", "job.toml", "--overwrite"], dir.path());
    assert!(stdout(&output).contains("2 episodes left out by `where`"), "{}", stdout(&output));
}

#[test]
fn integer_ids_are_integers() {
    let dir = job("where = \"eps_id >= 2\"", "");
    let id = |e: usize| Arc::new(Int64Array::from(vec![i64::try_from(e).unwrap()])) as ArrayRef;
    record(&dir.path().join("log.parquet"), &[&[1.], &[2.], &[3., 4.]], id);
    convert(dir.path());
    assert_eq!(column(dir.path(), "rewards"), [3., 4.]);
}

#[test]
fn threads_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let rewards: Vec<Vec<f64>> =
        (0..300_u32).map(|e| (0..=(e % 37)).map(|t| f64::from(t * e) * 0.37).collect()).collect();
    record(&dir.path().join("log.parquet"), &rewards.iter().map(Vec::as_slice).collect::<Vec<_>>(), text_id);
    let rest = expression("{ rewards = 'rewards - avg(rewards)', rank = 'sum(rewards) over (order by t)' }");
    let input = "[input]\npaths = ['log.parquet']\nwhere = 'episode_return > avg(episode_return) / 2'\n";
    std::fs::write(dir.path().join("job.toml"), format!("{input}{rest}")).unwrap();
    let digest = |threads: &str| {
        let output = gristmill(&["convert", "job.toml", "--overwrite", "--quiet", "--threads", threads], dir.path());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        manifest(dir.path())["content_digest"].as_str().unwrap().to_owned()
    };
    assert_eq!(digest("1"), digest("3"));
}

#[test]
fn mistakes_are_told_before_anything_is_read() {
    for (input, rest, message) in [
        (
            "",
            expression("{ rewards = 'reward / 10.0' }"),
            "error: found no column `reward`; there are \"obs/0\" to \"obs/1\", actions, rewards, t, terminateds, truncateds, \
             episode_length, episode_return, eps_id, agent_id (in `reward / 10.0`)\n  \
             at: job key `learner.connectors[0].columns.rewards`, connector 0 (Expression), column `reward`\n  hint: did you mean `rewards`?\n",
        ),
        ("", expression("{ rewards = 'rewards +' }"), "error: this is no SQL expression: "),
        (
            "",
            expression("{ rewards = 'eps_id' }"),
            "error: the expression gives text, expected a number or a truth value",
        ),
        ("", expression("{}"), "error: "),
        (
            "where = 'return > 1'",
            String::new(),
            "error: found no column `return`; there are eps_id, episode_return, episode_length, terminated, truncated, \
             t_started (in `return > 1`)\n  at: job key `input.where`, column `return`\n",
        ),
        ("where = 'episode_return'", String::new(), "error: the predicate `episode_return` gives float64"),
    ] {
        let dir = job(input, &rest);
        for command in ["plan", "convert"] {
            let output = gristmill(&[command, "job.toml"], dir.path());
            assert_eq!(output.status.code(), Some(2), "{command} {rest}{input}: {}", stderr(&output));
            assert!(stderr(&output).starts_with(message), "{command}: {}", stderr(&output));
            assert!(!dir.path().join("shards/manifest.json").exists());
        }
    }
}

#[test]
fn what_only_data_show_exits_with_1() {
    let dir = job("", &expression("{ rewards = 'nullif(rewards, 2.0)' }"));
    let output = gristmill(&["convert", "job.toml"], dir.path());
    assert_eq!(output.status.code(), Some(1));
    let message = "error: the expression gives null, expected a value\n  \
                   at: job key `learner.connectors[0]`, connector 0 (Expression), episode \"e1\", t 1, column `rewards`\n  \
                   hint: COALESCE(x, 0) puts a value in the place of null\n";
    assert!(stderr(&output).ends_with(message), "{}", stderr(&output));
    let dir = job("where = 'episode_length > 99'", "");
    let output = gristmill(&["convert", "job.toml"], dir.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("leaves none of 4 episodes"), "{}", stderr(&output));
    assert!(stderr(&output).contains("hint: of all episodes, episode_length is "), "{}", stderr(&output));
}
