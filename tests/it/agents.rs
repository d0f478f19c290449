//! Several agents in one log.

use arrow::array::AsArray;
use arrow::datatypes::{Float32Type, Int64Type};

use crate::support::{Work, bools, content, f64s, i64s, read_shards, texts};

/// Fifty agents of which most die early, join late or skip turns, as rows of environment steps.
pub fn fifty_agents() -> Work {
    let (mut ids, mut agents, mut t, mut env_t, mut rewards, mut done) =
        (vec![], vec![], vec![], vec![], vec![], vec![]);
    for episode in 0..4 {
        let mut steps = [0; 50];
        for at in 0..60_i64 {
            for agent in 0..50_i64 {
                let (born, dies, every) = (agent % 7, 8 + agent * agent % 50, 1 + agent % 3);
                if at < born || at > dies || (at - born) % every != 0 {
                    continue;
                }
                ids.push(format!("ep{episode}"));
                agents.push(format!("agent_{agent}"));
                let own = &mut steps[usize::try_from(agent).unwrap()];
                t.push(*own);
                *own += 1;
                env_t.push(at);
                rewards.push(f64::from(i32::try_from(agent * 1000 + at).unwrap()));
                done.push(at + every > dies);
            }
        }
    }
    let text = |all: &[String]| texts(&all.iter().map(String::as_str).collect::<Vec<_>>());
    Work::of(vec![
        ("eps_id", text(&ids)),
        ("agent_id", text(&agents)),
        ("t", i64s(&t)),
        ("env_t", i64s(&env_t)),
        ("obs", f64s(&rewards)),
        ("actions", i64s(&vec![0; t.len()])),
        ("rewards", f64s(&rewards)),
        ("terminateds", bools(&done)),
    ])
}

const JOB: &str = "[multi_agent]\nagent_to_module = { 'agent_?' = 'few', '*' = 'many' }\n\
    [rl_module.modules.few]\nstateful = true\nmax_seq_len = 4\ninitial_state = { h = { shape = [2] } }\n";

#[test]
fn most_agents_die_early_and_threads_do_not_matter() {
    let work = fifty_agents();
    let manifests: Vec<_> = ["1", "2"]
        .iter()
        .map(|threads| work.manifest_of(&work.convert_job(JOB, &["--threads", threads, "--overwrite"])))
        .collect();
    assert_eq!(manifests[0], manifests[1]);
    assert_eq!(manifests[0]["counts"]["episodes_in"], 200, "an episode of fifty agents counts fifty times");
    // Every row of the input comes out once: as a step of `many`, or as a real place of a sequence of `few`.
    let many = read_shards(&work.path().join("out/many"));
    let few = read_shards(&work.path().join("out/few"));
    let lens = few.column_by_name("seq_lens").unwrap().as_primitive::<Int64Type>().clone();
    let real: i64 = lens.values().iter().sum();
    assert_eq!(manifests[0]["counts"]["steps_in"], real + i64::try_from(many.num_rows()).unwrap());
    assert!(few.column_by_name("loss_mask").is_some() && many.column_by_name("loss_mask").is_none());
    // Agents of an episode come in order of their first rows, each with its own steps in order.
    let ids = many.column_by_name("agent_id").unwrap().as_string::<i32>();
    let t = many.column_by_name("t").unwrap().as_primitive::<Int64Type>();
    for i in 1..many.num_rows() {
        let follows = ids.value(i) == ids.value(i - 1) && t.value(i) == t.value(i - 1) + 1;
        assert!(follows || t.value(i) == 0, "row {i}");
    }
    assert_eq!(content(&manifests[0]), content(&manifests[1]));
}

/// A reward that arrives while an agent has no observation is one for the action before, as in RLlib's
/// `MultiAgentEpisode.add_env_step`.
#[test]
fn rewards_that_hang_are_not_lost() {
    use arrow::array::{Float64Array, Int64Array};
    use std::sync::Arc;
    let obs = [Some(1.0), None, Some(2.0), None];
    let work = Work::of(vec![
        ("eps_id", i64s(&[0; 4])),
        ("agent_id", texts(&["a"; 4])),
        ("obs", Arc::new(Float64Array::from(obs.to_vec()))),
        ("actions", Arc::new(Int64Array::from(vec![Some(0), None, Some(0), None]))),
        ("rewards", f64s(&[1.0, 5.0, 2.0, 7.0])),
        ("terminateds", bools(&[false, false, false, true])),
    ]);
    work.manifest_of(&work.convert());
    let rows = read_shards(&work.path().join("out/default_policy"));
    let rewards = rows.column_by_name("rewards").unwrap().as_primitive::<Float32Type>();
    assert_eq!(rewards.values(), &[6.0, 9.0]);
    let ends = rows.column_by_name("terminateds").unwrap().as_boolean();
    assert_eq!((ends.len(), ends.value(0), ends.value(1)), (2, false, true));
}

#[test]
fn an_agent_without_a_module_is_told() {
    let work = fifty_agents();
    let job = "[multi_agent]\nagent_to_module = { 'agent_?' = 'few' }\n";
    let told = work.refused(2, &work.convert_job(job, &[]));
    crate::support::contains(&told, &["agent \"agent_14\" has no module", "multi_agent.agent_to_module", "hint: "]);
}
