//! The whole default pipeline on random recordings, bit for bit against a reference that goes step by step.
//!
//! `GRISTMILL_CASES=2000 cargo test --test it pipeline` tries more of them.

mod recording;
mod reference;
mod values;

use std::collections::BTreeMap;
use std::fmt::Write;

use gristmill::job::Job;
use gristmill::progress::Silent;
use gristmill::run::{Options, convert};
use proptest::prelude::*;
use proptest::test_runner::Config;

use self::recording::{Next, Plan, Recording, plan};
use self::reference::{Batch, Settings};
use crate::support::{Work, read_shards};

/// The job that says what `settings` say.
fn job(work: &Work, recording: &Recording, settings: &Settings, rows_per_shard: usize) -> String {
    let path = |name: &str| work.path().join(name).display().to_string();
    let (input, output) = (path("in"), path("out"));
    let mut out =
        format!("[input]\npaths = [{input:?}]\n[output]\npath = {output:?}\nrows_per_shard = {rows_per_shard}\n");
    if settings.next_obs {
        out += "[learner]\nalgorithm = 'BC'\n";
    }
    if recording.needs_rules() {
        out += "[multi_agent]\nagent_to_module = { agent_1 = 'm1', 'agent_*' = 'm0' }\n";
    }
    for (module, length) in &settings.seq_lens {
        write!(out, "[rl_module.modules.{module}]\nstateful = true\nmax_seq_len = {length}\n").unwrap();
        for (name, ty) in recording.state.leaves("initial_state").into_iter().filter(|_| settings.initial.is_some()) {
            let (key, fill) = (name.replace('/', "."), settings.initial.unwrap_or_default());
            writeln!(out, "{key} = {{ shape = {:?}, fill = {fill:?} }}", ty.shape).unwrap();
        }
    }
    out
}

fn check(plan: &Plan, seq_lens: [usize; 2], initial: Option<f32>, bc: bool, rows_per_shard: usize, threads: usize) {
    let recording = Recording::new(plan);
    let settings = Settings {
        next_obs: bc && plan.next != Next::Nowhere,
        seq_lens: (0..2).filter(|&m| seq_lens[m] > 0).map(|m| (recording.module(m), seq_lens[m])).collect(),
        // What was not recorded, the job has to say.
        initial: initial.or((!plan.has_states).then_some(0.25)),
    };
    let work = Work::new();
    recording.write(plan, &work);
    let text = job(&work, &recording, &settings, rows_per_shard);
    let job = Job::from_toml_str(&text).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    let options = Options { threads: Some(threads), ..Options::default() };
    convert(&job, &options, &Silent).unwrap_or_else(|e| panic!("{e}\n{text}"));

    let expected: BTreeMap<String, Batch> = reference::run(&recording, &settings);
    for (module, expected) in &expected {
        let rows = read_shards(&work.path().join("out").join(module));
        let schema = rows.schema();
        let mut names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        names.sort_unstable();
        let ids: &[&str] = if recording.has_agents() { &["agent_id", "eps_id"] } else { &["eps_id"] };
        let mut wanted: Vec<&str> = expected.columns.keys().map(String::as_str).chain(ids.iter().copied()).collect();
        wanted.sort_unstable();
        assert_eq!(names, wanted, "the columns of {module}\n{text}");
        assert_eq!(values::texts(&rows, "eps_id"), expected.eps_id, "{module}\n{text}");
        if recording.has_agents() {
            assert_eq!(values::texts(&rows, "agent_id"), expected.agent_id, "{module}\n{text}");
        }
        for (name, (ty, bytes)) in &expected.columns {
            let found = values::read(&rows, name);
            assert_eq!(found.0, *ty, "{module} {name}\n{text}");
            assert!(found.1 == *bytes, "{module} {name}: found {:?}, expected {bytes:?}\n{text}", found.1);
        }
    }
    let folders = std::fs::read_dir(work.path().join("out")).unwrap().filter(|e| e.as_ref().unwrap().path().is_dir());
    assert_eq!(folders.count(), expected.len(), "modules\n{text}");
}

/// Recordings to try: a few seconds of them.
fn cases() -> u32 {
    std::env::var("GRISTMILL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(96)
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::with_cases(cases()) })]

    #[test]
    fn the_default_pipeline_step_by_step(
        plan in plan(),
        seq_lens in [0_usize..6, 0_usize..6],
        initial in prop::option::of(prop::sample::select(vec![0.0_f32, 0.5, -1.5])),
        bc in any::<bool>(),
        rows_per_shard in 1_usize..40,
        threads in 1_usize..3,
    ) {
        check(&plan, seq_lens, initial, bc, rows_per_shard, threads);
    }
}
