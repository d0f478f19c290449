//! Pieces against what their definitions say, written out episode by episode and step by step.

use arrow::array::AsArray;
use arrow::datatypes::{Float32Type, Int64Type};

use crate::support::{Work, bools, f64s, i64s, read_shards, texts};

struct Episode {
    obs: Vec<f64>,
    rewards: Vec<f64>,
    values: Vec<f64>,
    terminated: bool,
}

/// Twelve episodes of 1 to 8 steps with numbers that hardly repeat.
fn episodes() -> Vec<Episode> {
    let mut state = 7_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 16) / 65_536.0 - 0.5
    };
    let lengths = [3, 1, 8, 2, 5, 1, 4, 7, 6, 2, 3, 8];
    let mut column = |len: usize| (0..len).map(|_| next()).collect::<Vec<_>>();
    let episode = |(i, len): (usize, &usize)| Episode {
        obs: column(len + 1),
        rewards: column(*len),
        values: column(*len),
        terminated: i % 3 != 1,
    };
    lengths.iter().enumerate().map(episode).collect()
}

fn recording(all: &[Episode]) -> Work {
    let ids: Vec<String> =
        all.iter().enumerate().flat_map(|(i, e)| std::iter::repeat_n(format!("e{i}"), e.rewards.len())).collect();
    let flat = |of: &dyn Fn(&Episode) -> Vec<f64>| f64s(&all.iter().flat_map(of).collect::<Vec<_>>());
    let t: Vec<i64> = all.iter().flat_map(|e| 0..i64::try_from(e.rewards.len()).unwrap()).collect();
    let last = |e: &Episode| (1..=e.rewards.len()).map(|n| n == e.rewards.len()).collect::<Vec<_>>();
    let ends = |terminated: bool| {
        all.iter().flat_map(|e| last(e).into_iter().map(|l| l && e.terminated == terminated)).collect::<Vec<_>>()
    };
    Work::of(vec![
        ("eps_id", texts(&ids.iter().map(String::as_str).collect::<Vec<_>>())),
        ("t", i64s(&t)),
        ("obs", flat(&|e| e.obs[..e.rewards.len()].to_vec())),
        ("new_obs", flat(&|e| e.obs[1..].to_vec())),
        ("actions", i64s(&vec![0; t.len()])),
        ("rewards", flat(&|e| e.rewards.clone())),
        ("vf_preds", flat(&|e| e.values.clone())),
        ("terminateds", bools(&ends(true))),
        ("truncateds", bools(&ends(false))),
    ])
}

/// A float32 column of the only module.
fn column(work: &Work, name: &str) -> Vec<f64> {
    let rows = read_shards(&work.path().join("out/default_policy"));
    let column = rows.column_by_name(name).unwrap_or_else(|| panic!("no {name}"));
    match column.as_primitive_opt::<Float32Type>() {
        Some(floats) => floats.values().iter().map(|v| f64::from(*v)).collect(),
        None => {
            column.as_primitive::<Int64Type>().values().iter().map(|v| f64::from(i32::try_from(*v).unwrap())).collect()
        }
    }
}

fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() < 2e-5, "row {i}: {a}, expected {b}");
    }
}

/// `A_t = sum of (gamma lambda)^k delta_(t+k)`, `delta_t = r_t + gamma v_(t+1) - v_t`, to the end of the episode; a
/// truncated one goes on with its last value, a terminated one with nothing. Returns are sums of the same steps.
#[test]
fn advantages_and_returns() {
    let all = episodes();
    let work = recording(&all);
    let (gamma, lambda) = (0.9_f64, 0.8_f64);
    let job = "[learner]\nalgorithm = \"MARWIL\"\ngamma = 0.9\nlambda_ = 0.8\n\
               [[learner.connectors]]\ntype = \"ComputeReturnsToGo\"\ngamma = 0.9\n";
    work.manifest_of(&work.convert_job(job, &[]));
    let (mut raw, mut targets, mut returns) = (Vec::new(), Vec::new(), Vec::new());
    for e in &all {
        let len = e.rewards.len();
        let value = |t: usize| {
            if t < len {
                e.values[t]
            } else if e.terminated {
                0.0
            } else {
                e.values[len - 1]
            }
        };
        let delta = |t: usize| e.rewards[t] + gamma * value(t + 1) - value(t);
        for t in 0..len {
            let power = |base: f64, k: usize| base.powi(i32::try_from(k - t).unwrap());
            let advantage: f64 = (t..len).map(|k| power(gamma * lambda, k) * delta(k)).sum();
            raw.push(advantage);
            targets.push(advantage + e.values[t]);
            returns.push((t..len).map(|k| power(gamma, k) * e.rewards[k]).sum());
        }
    }
    let count = raw.len() as f64;
    let mean = raw.iter().sum::<f64>() / count;
    let std = (raw.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / count).sqrt();
    let standardised: Vec<f64> = raw.iter().map(|a| (a - mean) / std).collect();

    let rows = read_shards(&work.path().join("out/default_policy"));
    let mask = rows.column_by_name("loss_mask").unwrap().as_boolean();
    let real = |name: &str| -> Vec<f64> {
        column(&work, name).into_iter().zip(mask.values().iter()).filter(|(_, real)| *real).map(|(v, _)| v).collect()
    };
    close(&real("advantages"), &standardised);
    close(&real("value_targets"), &targets);
    close(&real("returns_to_go"), &returns);
    assert_eq!(rows.num_rows(), raw.len() + all.len(), "one more step an episode");
}

/// The distance to the nearest remembered observation; of each episode, the farthest is remembered.
#[test]
fn distances_to_what_is_remembered() {
    let all = episodes();
    let work = recording(&all);
    let job = "[[learner.connectors]]\ntype = \"EuclidianDistanceBasedCuriosity\"\n\
               intrinsic_reward_coeff = 0.5\nmax_buffer_size = 3\n";
    work.manifest_of(&work.convert_job(job, &[]));
    let (mut memory, mut expected): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    for e in &all {
        let nearest = |o: &f64| memory.iter().map(|m| (o - m).abs()).reduce(f64::min).unwrap_or(0.0);
        let distances: Vec<f64> = e.obs[..e.rewards.len()].iter().map(nearest).collect();
        expected.extend(distances.iter().zip(&e.rewards).map(|(d, r)| r + 0.5 * d));
        let farthest = (1..distances.len()).fold(0, |best, i| if distances[i] > distances[best] { i } else { best });
        memory.push(e.obs[farthest]);
        if memory.len() > 3 {
            memory.remove(0);
        }
    }
    close(&column(&work, "rewards"), &expected);
}

/// Actions, rewards, flags and next observations stand beside the observation of their step.
#[test]
fn columns_and_next_observations() {
    let all = episodes();
    let work = recording(&all);
    work.manifest_of(&work.convert_job("[learner]\nalgorithm = \"BC\"\n", &[]));
    let flat = |of: &dyn Fn(&Episode) -> Vec<f64>| all.iter().flat_map(of).collect::<Vec<_>>();
    close(&column(&work, "obs"), &flat(&|e| e.obs[..e.rewards.len()].to_vec()));
    close(&column(&work, "new_obs"), &flat(&|e| e.obs[1..].to_vec()));
    close(&column(&work, "rewards"), &flat(&|e| e.rewards.clone()));
    close(&column(&work, "vf_preds"), &flat(&|e| e.values.clone()));
    let rows = read_shards(&work.path().join("out/default_policy"));
    for (name, ends) in [("terminateds", true), ("truncateds", false)] {
        let flags = rows.column_by_name(name).unwrap().as_boolean();
        let expected: Vec<bool> = all
            .iter()
            .flat_map(|e| (1..=e.rewards.len()).map(|n| n == e.rewards.len() && e.terminated == ends))
            .collect();
        assert_eq!((0..flags.len()).map(|i| flags.value(i)).collect::<Vec<_>>(), expected, "{name}");
    }
}

/// `min(max(r, -limit), limit)`, the sign of `r`, and `scale * r + shift`, each of the float64 that was recorded.
#[test]
fn rewards_clipped_and_scaled() {
    let all = episodes();
    let work = recording(&all);
    let of = |piece: &str, by: &dyn Fn(f64) -> f64| {
        work.manifest_of(&work.convert_job(&format!("[[learner.connectors]]\n{piece}\n"), &["--overwrite"]));
        let expected: Vec<f64> = all.iter().flat_map(|e| &e.rewards).map(|r| by(*r)).collect();
        close(&column(&work, "rewards"), &expected);
    };
    of("type = \"ClipRewards\"\nlimit = 0.2", &|r| r.clamp(-0.2, 0.2));
    of("type = \"ClipRewards\"\nsign = true", &f64::signum);
    of("type = \"RewardScaling\"\nscale = 4.0\nshift = -1.5", &|r| 4.0 * r - 1.5);
}

/// Row `t` holds the observations `t - 2`, `t - 1` and `t` of its own episode, zeros before its first one.
#[test]
fn stacked_observations() {
    let all = episodes();
    let work = recording(&all);
    let job = "[[learner.connectors]]\ntype = \"StackObservations\"\nnum_frames = 3\n";
    work.manifest_of(&work.convert_job(job, &[]));
    let rows = read_shards(&work.path().join("out/default_policy"));
    let stacked = rows.column_by_name("obs").unwrap().as_fixed_size_list().values().clone();
    let found: Vec<f64> = stacked.as_primitive::<Float32Type>().values().iter().map(|v| f64::from(*v)).collect();
    let mut expected = Vec::new();
    for e in &all {
        for t in 0..e.rewards.len() {
            expected.extend((0..3).map(|back| (t + back).checked_sub(2).map_or(0.0, |at| e.obs[at])));
        }
    }
    close(&found, &expected);
}

/// Whatever is drawn: a relabelled step's goal is one that its episode achieved with this step's action or a later one,
/// its reward says whether that action achieved it, and the other steps are as they were.
#[test]
fn relabelled_goals() {
    let all = episodes();
    let work = recording(&all);
    let recorded =
        crate::support::take(&read_input(&work), &(0..all.iter().map(|e| e.rewards.len()).sum()).collect::<Vec<_>>());
    let goal = |values: &arrow::array::ArrayRef| {
        let fields = ["achieved_goal", "desired_goal"]
            .map(|n| std::sync::Arc::new(arrow::datatypes::Field::new(n, arrow::datatypes::DataType::Float64, false)));
        let wanted = f64s(&vec![9.0; values.len()]);
        let goals = arrow::array::StructArray::new(fields.to_vec().into(), vec![values.clone(), wanted], None);
        std::sync::Arc::new(goals) as arrow::array::ArrayRef
    };
    let columns = recorded.schema().fields().iter().map(|f| f.name().clone()).collect::<Vec<_>>();
    let columns = columns.into_iter().map(|name| {
        let values = recorded.column_by_name(&name).unwrap();
        let values = if name.ends_with("obs") { goal(values) } else { values.clone() };
        (name, values, true)
    });
    let batch = arrow::array::RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let work = Work::of_batches(&[batch]);
    for strategy in ["future", "final", "episode"] {
        let job = format!(
            "[learner]\nalgorithm = \"DQN\"\n[[learner.connectors]]\ntype = \"HindsightGoalRelabelling\"\n\
             goal_selection_strategy = \"{strategy}\"\nn_sampled_goal = 2.0\nseed = 5\n"
        );
        work.manifest_of(&work.convert_job(&job, &["--overwrite"]));
        let (goals, next_goals) = (column(&work, "obs/desired_goal"), column(&work, "new_obs/desired_goal"));
        let rewards = column(&work, "rewards");
        let rows = read_shards(&work.path().join("out/default_policy"));
        let relabelled = rows.column_by_name("relabelled").unwrap().as_boolean().clone();
        assert_eq!(goals, next_goals, "one goal a step");
        let (mut row, mut count) = (0, 0);
        for e in &all {
            let len = e.rewards.len();
            for t in 0..len {
                if relabelled.value(row) {
                    count += 1;
                    let (from, to) = match strategy {
                        "future" => (t + 1, len + 1),
                        "final" => (len, len + 1),
                        _ => (1, len + 1),
                    };
                    let near = |at: usize| (e.obs[at] - goals[row]).abs() < 1e-6;
                    assert!((from..to).any(near), "{strategy}, row {row}: {} is no such goal", goals[row]);
                    let reached = (e.obs[t + 1] - goals[row]).abs() <= 0.05;
                    close(&rewards[row..=row], &[if reached { 0.0 } else { -1.0 }]);
                } else {
                    close(&[goals[row], rewards[row]], &[9.0, e.rewards[t]]);
                }
                row += 1;
            }
        }
        assert!((20..=45).contains(&count), "two of three of {row} steps: {count}");
    }
}

/// The rows of the recording, as they were written.
fn read_input(work: &Work) -> arrow::array::RecordBatch {
    read_shards(&work.path().join("in"))
}

/// The leaves in the order of their sorted names, numbers as they are and a discrete one as one-hot.
#[test]
fn flattened_observations() {
    let all = episodes();
    let work = recording(&all);
    let recorded = read_input(&work);
    let modes: Vec<i64> = (0..recorded.num_rows()).map(|i| i64::try_from(i % 3).unwrap()).collect();
    let fields = arrow::datatypes::Fields::from(vec![
        arrow::datatypes::Field::new("pos", arrow::datatypes::DataType::Float64, false),
        arrow::datatypes::Field::new("mode", arrow::datatypes::DataType::Int64, false),
    ]);
    let obs = recorded.column_by_name("obs").unwrap().clone();
    let both = arrow::array::StructArray::new(fields, vec![obs.clone(), i64s(&modes)], None);
    let schema = recorded.schema();
    let names = schema.fields().iter().map(|f| f.name().clone()).filter(|n| n != "new_obs");
    let columns = names.map(|name| {
        let own = recorded.column_by_name(&name).unwrap().clone();
        let values = if name == "obs" { std::sync::Arc::new(both.clone()) as arrow::array::ArrayRef } else { own };
        (name, values, true)
    });
    let work = Work::of_batches(&[
        arrow::array::RecordBatch::try_from_iter_with_nullable(columns.collect::<Vec<_>>()).unwrap()
    ]);
    let job = "[[learner.connectors]]\ntype = \"FlattenObservations\"\n[learner.connectors.input_observation_space]\n\
               pos = { type = \"box\", shape = [], dtype = \"float64\" }\nmode = { type = \"discrete\", n = 3 }\n";
    work.manifest_of(&work.convert_job(job, &[]));
    let rows = read_shards(&work.path().join("out/default_policy"));
    let flat = rows.column_by_name("obs").unwrap().as_fixed_size_list().values().clone();
    let found: Vec<f64> = flat.as_primitive::<Float32Type>().values().iter().map(|v| f64::from(*v)).collect();
    let numbers = obs.as_primitive::<arrow::datatypes::Float64Type>();
    let mut expected = Vec::new();
    for (pos, mode) in numbers.values().iter().zip(&modes) {
        expected.extend((0..3).map(|m| f64::from(u8::from(m == *mode))));
        expected.push(*pos);
    }
    close(&found, &expected);
}
