//! Episodes larger than a small memory limit's share come in slices, to the bytes that they give as a whole.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int32Array, StructArray};
use arrow::datatypes::{DataType, Field};
use gristmill::job::Job;
use gristmill::progress::Silent;
use gristmill::run::{self, Options};
use gristmill::sink::ColumnData;
use serde_json::Value;

use crate::determinism::{cut, files};
use crate::parts;
use crate::support::{Columns, Work, batch, bools, contains, f64s, i64s, lists, take, texts, with, without};

/// Steps of the long episode, with observations of [`WIDTH`] floats: 2.5 MB.
const STEPS: i64 = 1500;
const WIDTH: i64 = 400;

/// `width` floats that tell episode and step.
fn vector(id: i64, t: i64, width: i64) -> Vec<f32> {
    #[expect(clippy::cast_precision_loss, reason = "small whole numbers")]
    (0..width).map(|k| (id * 100_000 + t * 10 + k % 10) as f32 + k as f32 / 512.0).collect()
}

fn vectors(rows: &[(i64, i64)], width: i64) -> ArrayRef {
    let all: Vec<Vec<f32>> = rows.iter().map(|&(id, t)| vector(id, t, width)).collect();
    lists(&all.iter().map(|v| Some(v.as_slice())).collect::<Vec<_>>())
}

/// A row for each episode and step; an episode's last row terminates it.
fn log(rows: &[(i64, i64)]) -> Columns {
    let ids: Vec<i64> = rows.iter().map(|r| r.0).collect();
    let last = |id: i64| rows.iter().filter(|r| r.0 == id).map(|r| r.1).max();
    let ends: Vec<bool> = rows.iter().map(|&(id, t)| Some(t) == last(id)).collect();
    #[expect(clippy::cast_precision_loss, reason = "small whole numbers")]
    let numbers =
        |f: &dyn Fn(f64) -> f64| f64s(&rows.iter().map(|&(id, t)| f((id * 7919 + t) as f64)).collect::<Vec<_>>());
    vec![
        ("eps_id", i64s(&ids)),
        ("t", i64s(&rows.iter().map(|r| r.1).collect::<Vec<_>>())),
        ("obs", vectors(rows, WIDTH)),
        ("actions", numbers(&|x| (x * 0.7).sin())),
        ("rewards", numbers(&|x| (x * 0.1).cos() / 3.0)),
        ("terminateds", bools(&ends)),
        ("truncateds", bools(&vec![false; rows.len()])),
    ]
}

/// A short episode, the long one, and another short one.
fn three() -> Vec<(i64, i64)> {
    let episode = |id: i64, len: i64| (0..len).map(move |t| (id, t));
    episode(5, 30).chain(episode(6, STEPS)).chain(episode(7, 20)).collect()
}

/// Row groups of 200 rows.
fn work(columns: Columns) -> Work {
    Work::of_batches(&cut(&batch(columns), 200))
}

/// Converts with room for the whole episode, and with little: the same files.
fn same(work: &Work, job: &str) -> Value {
    let job = format!("{job}\n[output]\nrows_per_shard = 300\n");
    same_as_told(work, &job)
}

fn same_as_told(work: &Work, job: &str) -> Value {
    let out = work.path().join("out");
    let run = |flags: &[&str]| {
        let manifest = work.manifest_of(&work.convert_job(job, &[&["--overwrite"], flags].concat()));
        let run: Value = serde_json::from_slice(&std::fs::read(out.join("run.json")).unwrap()).unwrap();
        (manifest, run["extra"]["slices"].as_u64().unwrap(), run["threads"].as_u64().unwrap(), files(&out))
    };
    let (manifest, slices, _, whole) = run(&["--memory-limit", "8GiB", "--threads", "2"]);
    assert_eq!(slices, 0, "the episode of the comparison must be whole");
    for (limit, threads, working) in [("64MiB", "1", 1), ("64MiB", "2", 1), ("114MiB", "3", 2)] {
        let (_, slices, worked, found) = run(&["--memory-limit", limit, "--threads", threads]);
        assert!(slices > 2 && worked == working, "{slices} slices and {worked} threads with {limit}");
        assert_eq!(found.keys().collect::<Vec<_>>(), whole.keys().collect::<Vec<_>>());
        for (name, bytes) in &whole {
            assert!(found[name] == *bytes, "{limit}, {threads} threads: {name} differs\n{job}");
        }
    }
    manifest
}

const NEXT: &str = "[learner]\nalgorithm = 'CQL'\n";

#[test]
fn recorded_next_observations_win_behind_the_last_step_only() {
    let rows = three();
    // What was recorded as the next observation is another one in every 50th row, also where slices end.
    let next: Vec<(i64, i64)> = rows.iter().map(|&(id, t)| (id, if t % 50 == 49 { t + 5 } else { t + 1 })).collect();
    let manifest = same(&work(with(log(&rows), "new_obs", vectors(&next, WIDTH))), NEXT);
    assert_eq!(manifest["counts"]["discontinuities"], 29, "{}", manifest["problems"]);
    // In every row: each seam is counted, and once.
    let next: Vec<(i64, i64)> = rows.iter().map(|&(id, t)| (id, t + 3)).collect();
    let manifest = same(&work(with(log(&rows), "new_obs", vectors(&next, WIDTH))), NEXT);
    assert_eq!(manifest["counts"]["discontinuities"], 29 + (STEPS - 1) + 19);
    let counts = &manifest["counts"];
    assert_eq!((&counts["episodes_out"], &counts["empty_episodes"]), (&3.into(), &0.into()));
}

#[test]
fn trailing_rows_and_none() {
    same(&work(log(&three())), "");
    let mut rows = three();
    rows.push((6, STEPS));
    let actions: Vec<Option<f64>> = rows.iter().map(|r| (r.1 < STEPS).then_some(0.5)).collect();
    let trailing = with(log(&rows), "actions", Arc::new(Float64Array::from(actions)));
    let ends: Vec<bool> = rows.iter().map(|r| *r == (6, STEPS - 1)).collect();
    let job = "[input]\nwhere = 'episode_length > 100'\n[learner]\nalgorithm = 'CQL'\n";
    if cfg!(feature = "sql") {
        same(&work(with(trailing.clone(), "terminateds", bools(&ends))), job);
    }
    let only: Vec<usize> = (30..30 + usize::try_from(STEPS).unwrap()).chain([rows.len() - 1]).collect();
    let all = take(&batch(with(trailing, "terminateds", bools(&ends))), &only);
    same(&Work::of_batches(&cut(&all, 200)), NEXT);
}

#[test]
fn episodes_in_turns_backwards_and_in_rllibs_columns() {
    let in_turns: Vec<(i64, i64)> =
        (0..STEPS).flat_map(|t| [(1, t), (2, t)]).filter(|r| r.0 == 1 || r.1 < 900).collect();
    same(&work(log(&in_turns)), "");
    let backwards: Vec<(i64, i64)> = three().into_iter().rev().collect();
    same(&work(log(&backwards)), "");
    let columns = without(log(&three()), &["t"]);
    let manifest = same(&work(columns), "[input]\nlayout = 'rllib-columns'\n");
    assert!(manifest["input"]["layout"].as_str().unwrap().starts_with("rllib-columns"));
}

/// Two agents that act by turns; while one acts, the other gets a reward that belongs to its next step.
#[test]
fn rewards_that_hang() {
    let rows: Vec<(i64, i64)> = (0..2 * STEPS).map(|i| (1, i)).collect();
    let agents: Vec<&str> = (0..2 * STEPS).map(|i| if i % 2 == 0 { "a" } else { "b" }).collect();
    // Every fifth row of an agent has neither an observation nor an action.
    let acts: Vec<bool> = (0..2 * STEPS).map(|i| i / 2 % 5 != 3).collect();
    let vectors: Vec<Vec<f32>> = rows.iter().map(|&(id, t)| vector(id, t, WIDTH)).collect();
    let obs = lists(&vectors.iter().zip(&acts).map(|(v, acts)| acts.then_some(v.as_slice())).collect::<Vec<_>>());
    let actions: Vec<Option<i32>> = acts.iter().map(|acts| acts.then_some(1)).collect();
    let columns = with(without(log(&rows), &["t"]), "obs", obs);
    let columns = with(columns, "actions", Arc::new(Int32Array::from(actions)));
    let ends: Vec<bool> = (0..2 * STEPS).map(|i| i >= 2 * STEPS - 2).collect();
    let columns = with(with(columns, "agent_id", texts(&agents)), "terminateds", bools(&ends));
    let previous = "[[learner.connectors]]\ntype = 'PrevActionsPrevRewards'\nn_prev_rewards = 3\n\
        input_action_space = { type = 'discrete', n = 2 }\n";
    same(&work(columns.clone()), previous);
    let rllib = format!("[learner]\ncompat = 'rllib-2.60'\n{previous}");
    same(&work(columns), &rllib);
}

#[test]
fn states_sequences_and_frames() {
    let rows: Vec<(i64, i64)> = three().into_iter().map(|(id, t)| (id, if id == 6 { t + 4 } else { t })).collect();
    let columns = with(log(&rows), "state_out", vectors(&rows, 5));
    let columns = with(columns, "new_obs", vectors(&rows.iter().map(|r| (r.0, r.1 + 1)).collect::<Vec<_>>(), WIDTH));
    let stateful = "[rl_module]\nstateful = true\nmax_seq_len = 7\n";
    let manifest = same(&work(columns.clone()), &format!("{NEXT}{stateful}"));
    assert!(manifest["repairs"]["state_in_of_a_chunk_without_look_back"] == 1, "{}", manifest["repairs"]);
    same_as_told(
        &work(columns.clone()),
        &format!("{NEXT}{stateful}[output]\nrows_per_shard = 300\nwindows = 'indexed'\nshuffle = {{ seed = 3 }}\n"),
    );
    // RLlib's slip needs the end of a chunk that goes on: that stays whole, and one from the start does not.
    let rllib = format!("[learner]\ncompat = 'rllib-2.60'\n{stateful}[output]\nrows_per_shard = 300\n");
    let refused = work(columns.clone());
    let told = refused.refused(3, &refused.convert_job(&rllib, &["--memory-limit", "64MiB"]));
    contains(&told, &["episode \"6\"", "with compat = \"rllib-2.60\" a chunk that continues an episode"]);
    let from_start = with(columns, "t", i64s(&three().iter().map(|r| r.1).collect::<Vec<_>>()));
    same(&work(from_start), &format!("[learner]\ncompat = 'rllib-2.60'\n{stateful}"));

    let narrow = with(log(&rows), "obs", vectors(&rows, WIDTH / 2));
    let frames = "[[learner.connectors]]\ntype = 'StackObservations'\nnum_frames = 4\n\
        [[learner.connectors]]\ntype = 'CountBasedCuriosity'\n";
    let manifest = same(&work(narrow.clone()), frames);
    assert_eq!(manifest["repairs"]["frames_of_a_chunk_without_look_back"], 3);
    same_as_told(&work(narrow), &format!("{frames}[output]\nrows_per_shard = 300\nshuffle = {{ seed = 3 }}\n"));
}

#[test]
fn surveys_parts_and_infos() {
    let rows = three();
    let lives: ArrayRef =
        Arc::new(rows.iter().map(|r| (r.1 % 3 > 0).then_some(i32::try_from(r.1).unwrap())).collect::<Int32Array>());
    let infos = StructArray::from(vec![(Arc::new(Field::new("lives", DataType::Int32, true)), lives)]);
    let columns = with(log(&rows), "infos", Arc::new(infos));
    let job = "[[learner.connectors]]\ntype = 'MeanStdFilter'\n[[learner.connectors]]\ntype = 'AddInfosFromEpisodesToTrainBatch'\n\
        [[learner.connectors]]\ntype = 'ClipRewards'\nlimit = 0.2\n[[learner.connectors]]\ntype = 'PrevActionsPrevRewards'\nn_prev_actions = 9\n";
    same(&work(columns.clone()), job);
    let work = work(columns);
    parts::compare(parts::job(&work, job), work.path(), "a long episode");
    let shuffled = format!("{job}[output]\nshuffle = {{ seed = 1 }}\n");
    parts::compare(parts::job(&work, &shuffled), work.path(), "a long episode, shuffled");
}

/// One bad row takes the whole episode, and the seams of its good slices are not counted.
#[test]
fn a_bad_row_takes_all_slices() {
    let mut rows = three();
    rows.extend((0..STEPS).map(|t| (8, t)));
    let next: Vec<(i64, i64)> = rows.iter().map(|&(id, t)| (id, if t % 50 == 49 { t + 5 } else { t + 1 })).collect();
    let all = with(log(&rows), "new_obs", vectors(&next, WIDTH));
    let rewards: Vec<Option<f64>> = rows.iter().map(|r| (*r != (6, 1111)).then_some(0.1)).collect();
    let work = work(with(all, "rewards", Arc::new(Float64Array::from(rewards))));
    let manifest = same(&work, "[input]\non_bad_episode = 'skip'\n[learner]\nalgorithm = 'CQL'\n");
    let counts = &manifest["counts"];
    assert_eq!((&counts["bad_episodes"], &counts["bad_steps"]), (&1.into(), &STEPS.into()));
    assert_eq!((&counts["episodes_out"], &counts["discontinuities"]), (&3.into(), &29.into()));
    assert!(manifest["problems"].to_string().contains("row 1141"), "{}", manifest["problems"]);
    std::fs::remove_dir_all(work.path().join("out")).unwrap();
    let job = format!("{NEXT}[output]\nrows_per_shard = 300\n");
    let told = work.refused(1, &work.convert_job(&job, &["--memory-limit", "64MiB"]));
    contains(&told, &["found null, expected a value in every row", "episode \"6\"", "t 1111"]);
}

/// Sums of rewards are added up step by step, over all slices.
#[cfg(feature = "sql")]
#[test]
fn returns_are_those_of_the_episode() {
    let rows = three();
    let work = work(log(&rows));
    let rewards = log(&rows)[4].1.clone();
    let rewards = rewards.as_any().downcast_ref::<Float64Array>().unwrap();
    let long = rows.iter().zip(rewards.values()).filter(|(r, _)| r.0 == 6);
    let sum = long.fold(0.0, |sum, (_, r)| sum + r);
    for bad in ["", "on_bad_episode = 'skip'\n"] {
        let manifest = same(&work, &format!("[input]\n{bad}where = 'episode_return = {sum:?}'\n"));
        assert_eq!(manifest["counts"]["steps_out"], STEPS, "the last bit is another one");
    }
}

/// In memory, where windows stay an index until the end.
#[test]
fn compiled_in_memory() {
    let rows = three();
    let columns = with(log(&rows), "state_out", vectors(&rows, 5));
    for learner in
        ["[rl_module]\nstateful = true\nmax_seq_len = 7\n", "[[learner.connectors]]\ntype = 'MeanStdFilter'\n"]
    {
        let job = Job::from_toml_str(&format!("version = 1\n[input]\npaths = ['x']\n{learner}")).unwrap();
        let compiled = |limit: u64, threads: usize| {
            let options = Options { memory_limit: Some(limit << 20), threads: Some(threads), ..Options::default() };
            let mut out = run::compile(&job, vec![batch(columns.clone())], &options, &Silent).unwrap();
            let module = out.modules.swap_remove("default_policy").unwrap();
            let bytes = |(name, data): (String, ColumnData)| match data {
                ColumnData::Tensor(tensor) => (name, tensor.bytes().to_vec()),
                ColumnData::Ids(ids) => (name, format!("{ids:?}").into_bytes()),
            };
            (module.rows, module.columns.into_iter().map(bytes).collect::<Vec<_>>())
        };
        let whole = compiled(8 << 10, 2);
        assert!(compiled(64, 1) == whole && compiled(80, 3) == whole, "{learner}");
    }
}
