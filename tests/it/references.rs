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
