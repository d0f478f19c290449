//! RLlib's default learner pipeline, written for clarity: one step after the other, one value after the other. It shares
//! nothing with the library.

use std::collections::BTreeMap;

use arrow::datatypes::DataType;

use super::recording::{Next, Recording, Row};
use super::values::Ty;

/// What the job says.
#[derive(Debug, Clone)]
pub struct Settings {
    /// BC's pipeline, which adds next observations.
    pub next_obs: bool,
    /// Steps per sequence of the modules that are stateful.
    pub seq_lens: BTreeMap<String, usize>,
    /// What the initial state is filled with, if the job says it.
    pub initial: Option<f32>,
}

/// The batch of a module.
#[derive(Debug, Default)]
pub struct Batch {
    pub columns: BTreeMap<String, (Ty, Vec<u8>)>,
    pub eps_id: Vec<String>,
    pub agent_id: Vec<String>,
}

/// The steps of one agent in one episode, in order.
struct Episode<'a> {
    eps_id: String,
    agent_id: String,
    module: String,
    steps: Vec<&'a Row>,
    /// The row behind them that holds the last observation.
    tail: Option<&'a Row>,
}

/// Episodes in the order of their first rows; in each, the agents in the order of theirs.
fn episodes(recording: &Recording) -> Vec<Episode<'_>> {
    let mut order: Vec<(usize, Vec<usize>)> = Vec::new();
    for row in &recording.rows {
        let at = order.iter().position(|(episode, _)| *episode == row.episode).unwrap_or_else(|| {
            order.push((row.episode, Vec::new()));
            order.len() - 1
        });
        if !order[at].1.contains(&row.agent) {
            order[at].1.push(row.agent);
        }
    }
    let mut out = Vec::new();
    for (episode, agents) in order {
        for agent in agents {
            let mut rows: Vec<&Row> =
                recording.rows.iter().filter(|r| r.episode == episode && r.agent == agent).collect();
            if recording.timed {
                rows.sort_by_key(|r| r.t);
            }
            let (tails, steps): (Vec<&Row>, Vec<&Row>) = rows.into_iter().partition(|r| r.is_tail);
            out.push(Episode {
                eps_id: recording.eps_id(episode),
                agent_id: Recording::agent_id(agent),
                module: recording.module(agent),
                steps,
                tail: tails.first().copied(),
            });
        }
    }
    out
}

/// The batches of all modules.
pub fn run(recording: &Recording, settings: &Settings) -> BTreeMap<String, Batch> {
    let mut out: BTreeMap<String, Batch> = BTreeMap::new();
    for episode in episodes(recording) {
        let batch = out.entry(episode.module.clone()).or_insert_with(|| {
            let length = settings.seq_lens.get(&episode.module).copied();
            Batch { columns: columns(recording, settings, length), ..Batch::default() }
        });
        match settings.seq_lens.get(&episode.module) {
            None => {
                for t in 0..episode.steps.len() {
                    batch.begin_row(&episode, t);
                    for (name, value) in step(recording, settings, &episode, t) {
                        batch.add(&name, &value);
                    }
                }
            }
            Some(&length) => {
                let mut first = 0;
                while first < episode.steps.len() {
                    batch.begin_row(&episode, first);
                    sequence(recording, settings, &episode, first, length, batch);
                    first += length;
                }
            }
        }
    }
    out
}

impl Batch {
    fn begin_row(&mut self, episode: &Episode<'_>, t: usize) {
        self.eps_id.push(episode.eps_id.clone());
        self.agent_id.push(episode.agent_id.clone());
        let started = episode.steps[0].t;
        self.add("t", &(started + i64::try_from(t).unwrap()).to_le_bytes());
    }

    fn add(&mut self, name: &str, value: &[u8]) {
        self.columns.get_mut(name).unwrap_or_else(|| panic!("no column {name}")).1.extend_from_slice(value);
    }
}

/// The columns of a batch, without a row.
fn columns(recording: &Recording, settings: &Settings, length: Option<usize>) -> BTreeMap<String, (Ty, Vec<u8>)> {
    let mut of_steps = vec![
        ("terminateds".to_owned(), Ty { dtype: DataType::Boolean, shape: vec![] }),
        ("truncateds".to_owned(), Ty { dtype: DataType::Boolean, shape: vec![] }),
    ];
    of_steps.extend(recording.obs.leaves("obs"));
    if settings.next_obs {
        of_steps.extend(recording.obs.leaves("new_obs"));
    }
    of_steps.extend(recording.actions.leaves("actions"));
    of_steps.push(("rewards".to_owned(), recording.rewards.clone()));
    for (name, tree) in &recording.extras {
        of_steps.extend(tree.leaves(name));
    }
    let mut out = BTreeMap::new();
    out.insert("t".to_owned(), (Ty { dtype: DataType::Int64, shape: vec![] }, Vec::new()));
    for (name, ty) in of_steps {
        let shape = length.into_iter().chain(ty.shape).collect();
        out.insert(name, (Ty { dtype: as_tensor(ty.dtype), shape }, Vec::new()));
    }
    if let Some(length) = length {
        out.insert("seq_lens".to_owned(), (Ty { dtype: DataType::Int64, shape: vec![] }, Vec::new()));
        out.insert("loss_mask".to_owned(), (Ty { dtype: DataType::Boolean, shape: vec![length] }, Vec::new()));
        for (name, ty) in recording.state.leaves("state_in") {
            let ty = Ty { dtype: as_tensor(ty.dtype), shape: ty.shape };
            out.insert(name.clone(), (ty.clone(), Vec::new()));
            if settings.next_obs {
                out.insert(name.replace("state_in", "next_state_in"), (ty, Vec::new()));
            }
        }
    }
    out
}

/// The values of one step.
fn step(recording: &Recording, settings: &Settings, episode: &Episode<'_>, t: usize) -> Vec<(String, Vec<u8>)> {
    let row = episode.steps[t];
    let is_last = t + 1 == episode.steps.len();
    let mut out = vec![
        ("terminateds".to_owned(), vec![u8::from(is_last && row.terminated)]),
        ("truncateds".to_owned(), vec![u8::from(is_last && row.truncated)]),
    ];
    for (name, ty) in recording.obs.leaves("obs") {
        out.push((name.clone(), tensor(&ty, &row.values[&name])));
        if settings.next_obs {
            let next = name.replacen("obs", "new_obs", 1);
            let value = match (is_last, recording.next) {
                (false, _) => &episode.steps[t + 1].values[&name],
                (true, Next::Column) => &row.values[&next],
                (true, _) => &episode.tail.expect("the last observation").values[&name],
            };
            out.push((next, tensor(&ty, value)));
        }
    }
    let mut same = recording.actions.leaves("actions");
    same.push(("rewards".to_owned(), recording.rewards.clone()));
    for (name, tree) in &recording.extras {
        same.extend(tree.leaves(name));
    }
    for (name, ty) in same {
        out.push((name.clone(), tensor(&ty, &row.values[&name])));
    }
    out
}

/// Steps from `first` on as one row: `length` of them, zeros behind the last one.
fn sequence(
    recording: &Recording,
    settings: &Settings,
    episode: &Episode<'_>,
    first: usize,
    length: usize,
    batch: &mut Batch,
) {
    let real = (episode.steps.len() - first).min(length);
    for place in 0..length {
        batch.add("loss_mask", &[u8::from(place < real)]);
        // The names are those of any step.
        for (name, value) in step(recording, settings, episode, if place < real { first + place } else { first }) {
            let value = if place < real { value } else { vec![0; value.len()] };
            batch.add(&name, &value);
        }
    }
    batch.add("seq_lens", &i64::try_from(real).unwrap().to_le_bytes());
    for (name, ty) in recording.state.leaves("state_in") {
        let recorded = name.replacen("state_in", "state_out", 1);
        // After the step before; an episode starts with the initial state, and one whose start is nowhere does, too.
        let state = |t: Option<usize>| {
            if let Some(t) = t.filter(|_| recording.has_states) {
                tensor(&ty, &episode.steps[t].values[&recorded])
            } else {
                let value = settings.initial.unwrap_or(0.0).to_le_bytes();
                value.repeat(ty.shape.iter().product())
            }
        };
        batch.add(&name, &state(first.checked_sub(1)));
        if settings.next_obs {
            batch.add(&name.replacen("state_in", "next_state_in", 1), &state(Some(first)));
        }
    }
}

/// What becomes of a dtype when arrays become tensors.
fn as_tensor(dtype: DataType) -> DataType {
    if dtype == DataType::Float64 { DataType::Float32 } else { dtype }
}

#[expect(clippy::cast_possible_truncation, reason = "tensors of floats are float32")]
fn tensor(ty: &Ty, value: &[u8]) -> Vec<u8> {
    if ty.dtype != DataType::Float64 {
        return value.to_vec();
    }
    let mut out = Vec::new();
    for element in value.chunks(8) {
        out.extend((f64::from_le_bytes(element.try_into().unwrap()) as f32).to_le_bytes());
    }
    out
}
