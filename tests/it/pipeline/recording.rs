//! Random recordings in the `steps` layout, and the files that hold them.

use std::collections::BTreeMap;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::DataType;
use proptest::prelude::*;

use super::values::{Lists, Tree, Ty, array, size};
use crate::support::{Work, batch, bools, i64s, texts};

/// Where the observation after an episode's last step is recorded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Next {
    Nowhere,
    Column,
    /// In a row of its own, whose action is null.
    Tail,
}

/// How the rows of episodes follow one another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Order {
    OneByOne,
    /// Rows of one agent in order, those of others between them.
    Interleaved,
    /// In any order. Rows say their `t`.
    Any,
}

/// The steps of one agent in an episode.
#[derive(Debug, Clone)]
pub struct Life {
    pub steps: usize,
    pub t_started: i64,
    pub terminated: bool,
    pub truncated: bool,
}

/// What a recording is made of.
#[derive(Debug, Clone)]
pub struct Plan {
    pub episodes: Vec<Vec<Life>>,
    pub obs: Tree,
    pub actions: Tree,
    pub rewards: DataType,
    pub extras: Vec<(&'static str, Tree)>,
    pub state: Tree,
    pub has_states: bool,
    pub next: Next,
    pub order: Order,
    pub timed: bool,
    pub agents: bool,
    /// Rows name their module.
    pub modules: bool,
    pub int_ids: bool,
    /// Leaves of observations are columns of their own.
    pub flat: bool,
    /// Rows of the files, over and over; and of their row groups.
    pub files: Vec<usize>,
    pub groups: Vec<usize>,
    pub seed: u64,
}

/// One row.
#[derive(Debug, Clone)]
pub struct Row {
    pub episode: usize,
    pub agent: usize,
    pub t: i64,
    pub is_tail: bool,
    pub terminated: bool,
    pub truncated: bool,
    /// Bytes by leaf; null where it is absent.
    pub values: BTreeMap<String, Vec<u8>>,
}

/// A recording: its rows in the order of the files.
#[derive(Debug)]
pub struct Recording {
    pub rows: Vec<Row>,
    pub obs: Tree,
    pub actions: Tree,
    pub rewards: Ty,
    pub extras: Vec<(&'static str, Tree)>,
    pub state: Tree,
    pub has_states: bool,
    pub next: Next,
    pub timed: bool,
    agents: bool,
    modules: bool,
    int_ids: bool,
    flat: bool,
}

/// Numbers that look random.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    /// Any bits: NaN, infinities and negative zeros among them.
    fn value(&mut self, ty: &Ty) -> Vec<u8> {
        if ty.dtype == DataType::Boolean {
            return (0..ty.bytes()).map(|_| u8::from(self.next() & 1 == 1)).collect();
        }
        (0..ty.bytes()).map(|_| self.next().to_le_bytes()[0]).collect()
    }

    fn values(&mut self, tree: &Tree, name: &str, out: &mut BTreeMap<String, Vec<u8>>) {
        for (leaf, ty) in tree.leaves(name) {
            let value = self.value(&ty);
            out.insert(leaf, value);
        }
    }
}

impl Recording {
    pub fn new(plan: &Plan) -> Self {
        let mut noise = Noise(plan.seed);
        let mut lives: Vec<Vec<Row>> = Vec::new();
        let mut seen_modules: Vec<usize> = Vec::new();
        let mut number = 0_i64;
        for (episode, agents) in plan.episodes.iter().enumerate() {
            for (agent, life) in agents.iter().enumerate().take(if plan.agents { 3 } else { 1 }) {
                // The first rows of a module say what its columns are; and without a row there is no episode.
                let is_new = !seen_modules.contains(&module_number(agent));
                seen_modules.push(module_number(agent));
                let least = usize::from(is_new || plan.next != Next::Tail);
                let mut rows = Vec::new();
                let steps = life.steps.max(least);
                for i in 0..steps + usize::from(plan.next == Next::Tail) {
                    let (is_tail, is_last) = (i == steps, i + 1 == steps);
                    let mut values = BTreeMap::new();
                    noise.values(&plan.obs, "obs", &mut values);
                    if !is_tail {
                        if plan.next == Next::Column {
                            noise.values(&plan.obs, "new_obs", &mut values);
                        }
                        noise.values(&plan.actions, "actions", &mut values);
                        // Without `t`, what repeats might be a repetition: no two rows are equal.
                        number += 1;
                        let mut reward = number.to_le_bytes().to_vec();
                        reward.resize(size(&plan.rewards), 0);
                        values.insert("rewards".to_owned(), reward);
                        for (name, tree) in &plan.extras {
                            noise.values(tree, name, &mut values);
                        }
                        if plan.has_states {
                            noise.values(&plan.state, "state_out", &mut values);
                        }
                    }
                    let t_started = if plan.timed { life.t_started } else { 0 };
                    rows.push(Row {
                        episode,
                        agent,
                        t: t_started + i64::try_from(i).unwrap(),
                        is_tail,
                        terminated: is_last && life.terminated,
                        truncated: is_last && life.truncated,
                        values,
                    });
                }
                lives.push(rows);
            }
        }
        let rows = ordered(lives, plan.order, &mut noise);
        Self {
            rows,
            obs: plan.obs.clone(),
            actions: plan.actions.clone(),
            rewards: Ty { dtype: plan.rewards.clone(), shape: vec![] },
            extras: plan.extras.clone(),
            state: plan.state.clone(),
            has_states: plan.has_states,
            next: plan.next,
            timed: plan.timed,
            agents: plan.agents,
            modules: plan.modules,
            int_ids: plan.int_ids,
            flat: plan.flat,
        }
    }

    pub fn eps_id(&self, episode: usize) -> String {
        if self.int_ids { (episode * 3).to_string() } else { format!("e_{episode}") }
    }

    pub fn agent_id(agent: usize) -> String {
        format!("agent_{agent}")
    }

    /// The module that plays an agent: as the rows say, or as the job does.
    pub fn module(&self, agent: usize) -> String {
        match (self.agents, self.modules) {
            (true, true) => format!("recorded_{}", module_number(agent)),
            (true, false) => format!("m{}", module_number(agent)),
            (false, _) => "default_policy".to_owned(),
        }
    }

    pub fn has_agents(&self) -> bool {
        self.agents
    }

    /// Whether the job says which module plays an agent. What it says would go before what rows say.
    pub fn needs_rules(&self) -> bool {
        self.agents && !self.modules
    }

    /// Some of the rows as columns.
    fn batch(&self, rows: &[Row], lists: Lists) -> RecordBatch {
        let value = |row: usize, leaf: &str| rows[row].values.get(leaf).map(Vec::as_slice);
        let column = |tree: &Tree, name: &str| array(tree, name, rows.len(), lists, &value);
        let mut out: Vec<(String, ArrayRef)> = Vec::new();
        let ids: Vec<String> = rows.iter().map(|r| self.eps_id(r.episode)).collect();
        out.push(if self.int_ids {
            ("eps_id".to_owned(), i64s(&ids.iter().map(|id| id.parse().unwrap()).collect::<Vec<_>>()))
        } else {
            ("eps_id".to_owned(), texts(&ids.iter().map(String::as_str).collect::<Vec<_>>()))
        });
        let named = |of: &dyn Fn(usize) -> String| {
            let all: Vec<String> = rows.iter().map(|r| of(r.agent)).collect();
            texts(&all.iter().map(String::as_str).collect::<Vec<_>>())
        };
        if self.agents {
            out.push(("agent_id".to_owned(), named(&Self::agent_id)));
            if self.modules {
                out.push(("module_id".to_owned(), named(&|agent| self.module(agent))));
            }
        }
        if self.timed {
            out.push(("t".to_owned(), i64s(&rows.iter().map(|r| r.t).collect::<Vec<_>>())));
        }
        let mut nested = vec![("obs", &self.obs), ("actions", &self.actions)];
        if self.next == Next::Column {
            nested.push(("new_obs", &self.obs));
        }
        for (name, tree) in nested {
            match tree {
                Tree::Dict(children) if self.flat => {
                    for (key, child) in children {
                        let name = format!("{name}/{key}");
                        out.push((name.clone(), column(child, &name)));
                    }
                }
                _ => out.push((name.to_owned(), column(tree, name))),
            }
        }
        out.push(("rewards".to_owned(), column(&Tree::Leaf(self.rewards.clone()), "rewards")));
        out.push(("terminateds".to_owned(), bools(&rows.iter().map(|r| r.terminated).collect::<Vec<_>>())));
        out.push(("truncateds".to_owned(), bools(&rows.iter().map(|r| r.truncated).collect::<Vec<_>>())));
        for (name, tree) in &self.extras {
            out.push(((*name).to_owned(), column(tree, name)));
        }
        if self.has_states {
            out.push(("state_out".to_owned(), column(&self.state, "state_out")));
        }
        batch(out)
    }

    /// The rows in files of `plan.files` rows, in row groups of `plan.groups`, each file with lists of its own kind.
    pub fn write(&self, plan: &Plan, work: &Work) {
        let mut noise = Noise(!plan.seed);
        let mut rows = self.rows.as_slice();
        let (mut files, mut groups) = (plan.files.iter().cycle(), plan.groups.iter().cycle());
        let mut number = 0;
        while !rows.is_empty() {
            let (mut of_file, rest) = rows.split_at((*files.next().unwrap()).min(rows.len()));
            rows = rest;
            let lists = [Lists::Fixed, Lists::Variable, Lists::Large][noise.below(3)];
            let mut batches = Vec::new();
            while !of_file.is_empty() {
                let (of_group, rest) = of_file.split_at((*groups.next().unwrap()).min(of_file.len()));
                batches.push(self.batch(of_group, lists));
                of_file = rest;
            }
            match noise.below(3) {
                0 => work.arrow(&format!("{number:03}.arrow"), &batches),
                _ => work.parquet(&format!("{number:03}.parquet"), &batches),
            }
            number += 1;
        }
    }
}

/// Two agents share a module.
fn module_number(agent: usize) -> usize {
    agent % 2
}

fn ordered(mut lives: Vec<Vec<Row>>, order: Order, noise: &mut Noise) -> Vec<Row> {
    if order == Order::OneByOne {
        return lives.concat();
    }
    let mut out: Vec<Row> = Vec::new();
    for life in &mut lives {
        life.reverse();
    }
    while !lives.is_empty() {
        let at = noise.below(lives.len());
        match lives[at].pop() {
            Some(row) => out.push(row),
            None => drop(lives.swap_remove(at)),
        }
    }
    if order == Order::Any {
        for i in (1..out.len()).rev() {
            out.swap(i, noise.below(i + 1));
        }
    }
    out
}

fn dtype() -> impl Strategy<Value = DataType> {
    use DataType::{Boolean, Float16, Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64};
    prop::sample::select(vec![
        Float32, Float64, Float16, Boolean, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64,
    ])
}

fn leaf() -> impl Strategy<Value = Tree> {
    (dtype(), prop::collection::vec(1_usize..4, 0..3)).prop_map(|(dtype, shape)| Tree::Leaf(Ty { dtype, shape }))
}

/// A value, or values by name or number, nested.
fn tree() -> impl Strategy<Value = Tree> {
    leaf().prop_recursive(2, 6, 3, |inner| {
        (prop::collection::vec(inner, 1..4), any::<bool>()).prop_map(|(children, tuple)| {
            let keys = if tuple { ["0", "1", "2"] } else { ["pos", "a-b", "mode"] };
            Tree::Dict(keys.into_iter().zip(children).collect())
        })
    })
}

fn state() -> impl Strategy<Value = Tree> {
    let leaf = (prop::sample::select(vec![DataType::Float32, DataType::Float64]), 1_usize..4)
        .prop_map(|(dtype, n)| Tree::Leaf(Ty { dtype, shape: vec![n] }));
    prop::collection::vec(leaf, 1..3).prop_map(|leaves| Tree::Dict(["c", "h"].into_iter().zip(leaves).collect()))
}

fn life() -> impl Strategy<Value = Life> {
    (0_usize..10, prop_oneof![3 => Just(0), 1 => 1_i64..9], any::<bool>(), any::<bool>())
        .prop_map(|(steps, t_started, terminated, truncated)| Life { steps, t_started, terminated, truncated })
}

/// Recordings that are well-formed.
pub fn plan() -> impl Strategy<Value = Plan> {
    let rewards = [DataType::Float64, DataType::Float32, DataType::Int64, DataType::Int32];
    let content = (
        prop::collection::vec(prop::collection::vec(life(), 3), 1..6),
        tree(),
        prop_oneof![2 => leaf(), 1 => tree()],
        prop::sample::select(rewards.to_vec()),
        prop::collection::vec(tree(), 0..3),
        state(),
    );
    let form = (
        prop::sample::select(vec![Next::Column, Next::Tail, Next::Nowhere]),
        prop::sample::select(vec![Order::OneByOne, Order::Interleaved, Order::Any]),
        any::<[bool; 6]>(),
        prop::collection::vec(1_usize..30, 1..4),
        prop::collection::vec(1_usize..9, 1..4),
        any::<u64>(),
    );
    (content, form).prop_map(|((episodes, obs, actions, rewards, extras, state), form)| {
        let (next, order, [has_states, timed, agents, modules, int_ids, flat], files, groups, seed) = form;
        let extras = ["action_logp", "vf_preds"].into_iter().zip(extras).collect();
        let timed = timed || order == Order::Any;
        Plan {
            episodes,
            obs,
            actions,
            rewards,
            extras,
            state,
            has_states,
            next,
            order,
            timed,
            agents,
            modules,
            int_ids,
            flat,
            files,
            groups,
            seed,
        }
    })
}
