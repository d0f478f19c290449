//! `AddStatesFromEpisodesToBatch`: the recurrent state before each sequence.

use std::collections::BTreeSet;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::{ModuleBatch, Rows, Stage};
use crate::column::{NEXT_OBS, NEXT_STATE_IN, STATE_IN, STATE_OUT, rebase, root};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, Slices, piece_boilerplate};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::job::{Compat, ModuleSettings};
use crate::tensor::{DType, Tensor, TensorBuilder, TensorType};
use crate::window::{Spec, Window};

/// The repair that this piece makes; see [`AddStatesFromEpisodesToBatch`].
const UNKNOWN_STATE: &str = "state_in_of_a_chunk_without_look_back";

/// Adds `state_in`, the recurrent state before the first step of each sequence, and with next observations in the
/// batch `next_state_in`, the state after that step.
///
/// ```text
/// state_out of 5 steps s0 s1 s2 s3 s4, max_seq_len = 2
///
///   look s0 s1 s2 s3          one to the right, the look-back state in front
///   look    s1    s3          every second one    = state_in
///   s0      s2    s4          every second one    = next_state_in
/// ```
///
/// The look-back state is the module's initial state when the chunk starts its episode or no states were recorded,
/// else the last state of the steps before the chunk. Where those steps are nowhere in the data, the initial state is
/// taken and the row is counted as a repair (RLlib fails on nested states and takes the chunk's *own last* state
/// otherwise; `compat = "rllib-2.60"` does the same). Sequences that overlap, or that start in the look-back, get the
/// state before their first real step all the same. Only for stateful modules; a batch that already has `state_in` is
/// passed through. As RLlib's `connectors/common/add_states_from_episodes_to_batch.py`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AddStatesFromEpisodesToBatch {
    /// Always true here: recorded data go through the learner pipeline.
    pub as_learner_connector: bool,
}

impl Default for AddStatesFromEpisodesToBatch {
    fn default() -> Self {
        Self { as_learner_connector: super::yes() }
    }
}

impl Piece for AddStatesFromEpisodesToBatch {
    const NAME: &'static str = "AddStatesFromEpisodesToBatch";

    fn check(&self) -> Result<()> {
        super::require_learner_connector(self.as_learner_connector)
    }
}

/// One leaf of the state: where it was recorded, and one row of its initial value.
#[derive(Debug)]
struct StateLeaf {
    /// `state_out`, `state_out/h`, ...
    recorded: String,
    /// The type of `state_in`: recorded and initial states joined as NumPy would.
    ty: TensorType,
    /// One row of `ty`.
    initial: Tensor,
}

/// The leaves of the module's state, from the job's `initial_state`, else from what was recorded.
fn state_leaves(
    module: &ModuleSettings,
    recorded: &dyn Fn(&str) -> Option<TensorType>,
    names: &[String],
) -> Result<Vec<StateLeaf>> {
    let declared = module.initial_state.leaves();
    let declared_names: BTreeSet<String> = declared.iter().map(|(n, _)| join(STATE_OUT, n)).collect();
    if declared.is_empty() && names.is_empty() {
        return Err(Error::usage("the module is stateful, but neither the job nor the data say what its state is")
            .job_key("rl_module.initial_state")
            .hint("give the state's shape, as the RLModule's get_initial_state() returns it: initial_state = { h = { shape = [64] }, c = { shape = [64] } }"));
    }
    if !declared.is_empty() && !names.is_empty() && !names.iter().all(|n| declared_names.contains(n)) {
        let found: Vec<&str> = names.iter().map(String::as_str).collect();
        let expected: Vec<&str> = declared_names.iter().map(String::as_str).collect();
        return Err(Error::usage(format!(
            "the recorded states are {}, but the job's initial_state describes {}",
            found.join(", "),
            expected.join(", ")
        ))
        .job_key("rl_module.initial_state")
        .hint("leave initial_state out to take zeros of the recorded shapes"));
    }
    if declared.is_empty() {
        let zeros = |n: &String| {
            let ty = recorded(n).ok_or_else(|| Error::internal(format!("no recorded state {n}")))?;
            // RLlib makes float32 of the module's float16 state; wider ones join to the recorded dtype.
            let dtype = if ty.dtype == DType::Float16 { DType::Float32 } else { ty.dtype };
            let ty = ty.with_dtype(dtype.numpy_result_type(of_a_module(&ty.with_dtype(dtype)).dtype));
            Ok(StateLeaf { recorded: n.clone(), initial: Tensor::zeros(ty.clone(), 1), ty })
        };
        return names.iter().map(zeros).collect();
    }
    let join_types = |(leaf, spec): &(String, &crate::job::StateLeaf)| {
        let name = join(STATE_OUT, leaf);
        let initial =
            spec.tensor().map_err(|e| e.job_key(format!("rl_module.initial_state.{}", leaf.replace('/', "."))))?;
        let own = of_a_module(initial.ty());
        let ty = match recorded(&name) {
            None => own,
            Some(ty) if ty.shape == own.shape => {
                let dtype = ty.dtype.numpy_result_type(own.dtype);
                ty.with_dtype(dtype)
            }
            Some(ty) => {
                return Err(Error::usage(format!(
                    "the recorded state is {ty}, the job's initial_state is {}",
                    initial.ty()
                ))
                .column(name)
                .job_key("rl_module.initial_state"));
            }
        };
        Ok(StateLeaf { recorded: name, initial: initial.cast(ty.dtype)?, ty })
    };
    declared.iter().map(join_types).collect()
}

/// The type of a module's initial state once RLlib has made NumPy's of it: a tensor without a dimension becomes a number
/// of Python, which NumPy joins with recorded states as float64 or int64.
fn of_a_module(ty: &TensorType) -> TensorType {
    let dtype = match ty.dtype {
        dtype if !ty.shape.is_empty() || dtype == DType::Bool => dtype,
        dtype if dtype.is_float() => DType::Float64,
        _ => DType::Int64,
    };
    ty.with_dtype(dtype)
}

/// `root/leaf`, or just `root` for a state that is not nested.
fn join(root: &str, leaf: &str) -> String {
    if leaf.is_empty() { root.to_owned() } else { format!("{root}/{leaf}") }
}

/// The recorded state leaves, sorted by name.
fn recorded_names(episodes: &EpisodeLayout) -> Vec<String> {
    let mut names: Vec<String> = episodes.under(STATE_OUT).map(|(n, _)| n.to_string()).collect();
    names.sort();
    names
}

/// The state before the first step of a row.
#[derive(Debug, Clone, Copy)]
enum Before {
    Initial,
    /// After this step.
    Step(usize),
    /// After this step of the look-back.
    LookBack(usize),
}

/// The state before the window's first step.
fn before(
    cx: Context<'_>,
    episodes: &EpisodeBatch,
    window: &Window,
    nested: bool,
    repairs: &mut Repairs,
) -> Result<Before> {
    let chunk = &episodes.chunks[window.episode];
    let rows = episodes.rows(window.episode);
    if window.first > 0 {
        return Ok(Before::Step(rows.start + window.first.unsigned_abs() - 1));
    }
    let back = window.first.unsigned_abs();
    if usize::try_from(chunk.t_started).is_ok_and(|t| t == back) {
        return Ok(Before::Initial);
    }
    let known = episodes.history_rows(window.episode);
    if known.len() > back {
        return Ok(Before::LookBack(known.end - back - 1));
    }
    match cx.compat {
        Compat::Correct => {
            repairs.count(UNKNOWN_STATE, 1);
            Ok(Before::Initial)
        }
        Compat::Rllib260 if nested => Err(Error::data("the chunk continues an episode but has no look-back; RLlib 2.60 raises an IndexError here")
            .episode(chunk.id.to_string())
            .t(chunk.t_started)
            .hint("compat = \"correct\" takes the state from the previous chunk when it is in the data, else the initial state")),
        // RLlib's slip: the chunk's own last state.
        Compat::Rllib260 => Ok(Before::Step(rows.end - 1)),
    }
}

impl Connector for AddStatesFromEpisodesToBatch {
    piece_boilerplate!();

    fn reads(&self, module: &ModuleSettings, column: &str) -> bool {
        module.stateful && matches!(root(column), STATE_IN | STATE_OUT)
    }

    fn look_back(&self, module: &ModuleSettings) -> usize {
        usize::from(module.stateful)
    }

    fn slices(&self, cx: Context<'_>, _: &EpisodeLayout) -> Option<Slices> {
        if !cx.module.stateful {
            return Some(Slices::ANYWHERE);
        }
        // RLlib's slip looks at the end of a chunk that continues an episode.
        let from_start = cx.compat == Compat::Rllib260;
        cx.module.seq_len().ok().map(|len| Slices { from_start, ..Slices::every(len) })
    }

    fn layout(&self, cx: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        if !cx.module.stateful || plan.batch.has(STATE_IN) {
            return Ok(());
        }
        if plan.batch.windows.is_none() {
            cx.module.seq_len()?;
        }
        if plan.batch.stage > Stage::Items {
            return Err(Error::usage("the batch is joined already").hint("put this piece before BatchIndividualItems"));
        }
        let next = plan.batch.has(NEXT_OBS);
        let recorded = plan.episodes.by_name();
        let leaves = state_leaves(cx.module, &|n| recorded.get(n).copied().cloned(), &recorded_names(plan.episodes))?;
        for leaf in &leaves {
            plan.batch.push(rebase(&leaf.recorded, STATE_IN), leaf.ty.clone(), Rows::Sequences);
        }
        for leaf in leaves.iter().filter(|_| next) {
            // Without recorded states every next state is the initial one, so the type is that of `initial` alone.
            let ty = recorded.get(leaf.recorded.as_str()).copied().unwrap_or(&leaf.ty).clone();
            plan.batch.push(rebase(&leaf.recorded, NEXT_STATE_IN), ty, Rows::Sequences);
        }
        Ok(())
    }

    fn apply(
        &self,
        cx: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        repairs: &mut Repairs,
    ) -> Result<()> {
        if !cx.module.stateful || batch.has(STATE_IN) {
            return Ok(());
        }
        let windows = match batch.windows() {
            Some(windows) => Arc::clone(windows),
            None => Arc::new(super::cutting::cut(cx, Spec::sequences(cx.module.seq_len()?), episodes, batch)),
        };
        let mut names: Vec<String> = episodes.steps.under(STATE_OUT).map(|(n, _)| n.to_string()).collect();
        names.sort();
        let leaves = state_leaves(cx.module, &|n| episodes.steps.get(n).map(|t| t.ty().clone()), &names)?;
        let next = batch.has(NEXT_OBS);

        let nested = names.iter().any(|n| n != STATE_OUT);
        let befores: Vec<Before> = windows
            .iter()
            .map(|w| if names.is_empty() { Ok(Before::Initial) } else { before(cx, episodes, w, nested, repairs) })
            .collect::<Result<_>>()?;

        let mut next_columns = Vec::new();
        for leaf in &leaves {
            let recorded = episodes.steps.get(&leaf.recorded);
            let history = episodes.history.get(&leaf.recorded);
            let states = recorded.map(|s| s.cast(leaf.ty.dtype)).transpose()?;
            let look_back = history.map(|s| s.cast(leaf.ty.dtype)).transpose()?;
            let mut state_in = TensorBuilder::with_capacity(leaf.ty.clone(), windows.len());
            for before in &befores {
                match (before, &states, &look_back) {
                    (Before::Step(row), Some(states), _) => state_in.extend(states, *row, 1),
                    (Before::LookBack(row), Some(_), Some(look_back)) => state_in.extend(look_back, *row, 1),
                    (Before::LookBack(_), Some(_), None) => return Err(Error::internal("look-back without states")),
                    (_, None, _) | (Before::Initial, ..) => state_in.extend(&leaf.initial, 0, 1),
                }
            }
            batch.push(rebase(&leaf.recorded, STATE_IN), state_in.finish());
            if next {
                let mut column =
                    TensorBuilder::with_capacity(recorded.unwrap_or(&leaf.initial).ty().clone(), windows.len());
                for w in windows.iter() {
                    let back = w.first.min(0).unsigned_abs();
                    match (recorded, history) {
                        (Some(states), _) if back == 0 => {
                            column.extend(states, episodes.rows(w.episode).start + w.first.unsigned_abs(), 1);
                        }
                        (Some(_), Some(history)) => {
                            column.extend(history, episodes.history_rows(w.episode).end - back, 1);
                        }
                        (Some(_), None) => return Err(Error::internal("look-back without states")),
                        (None, _) => column.extend(&leaf.initial, 0, 1),
                    }
                }
                next_columns.push((rebase(&leaf.recorded, NEXT_STATE_IN), column.finish()));
            }
        }
        for (name, column) in next_columns {
            batch.push(name, column);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::testing::{apply_with, episodes, stateful};
    use crate::tensor::DType;

    /// A state of one number: 100 + the step, look-back rows 1, 2, ...
    fn with_states(lengths: &[usize]) -> EpisodeBatch {
        let mut eps = episodes(lengths);
        let states: Vec<f32> = eps.steps.get("obs").unwrap().values::<f32>().iter().map(|o| 100. + o).collect();
        eps.steps.set("state_out", Tensor::from_values::<f32>([1], &states));
        eps
    }

    fn state_in(eps: &mut EpisodeBatch, compat: Compat, repairs: &mut Repairs) -> Result<Vec<f32>> {
        let settings = stateful(2);
        let piece = AddStatesFromEpisodesToBatch::default();
        let batch = apply_with(&piece, Context::new(&settings, compat), eps, ModuleBatch::default(), repairs)?;
        Ok(batch.get(STATE_IN).unwrap().values::<f32>().to_vec())
    }

    #[test]
    fn every_seq_len_th_state_with_the_initial_one_in_front() {
        let mut eps = with_states(&[5, 0, 2]);
        assert_eq!(state_in(&mut eps, Compat::Correct, &mut Repairs::default()).unwrap(), [0., 101., 103., 0.]);
    }

    #[test]
    fn a_chunk_continues_from_its_look_back() {
        let mut eps = with_states(&[3]);
        eps.chunks[0].t_started = 7;
        eps.history_offsets = vec![0, 2];
        eps.history.set("state_out", Tensor::from_values::<f32>([1], &[1., 2.]));
        assert_eq!(state_in(&mut eps, Compat::Rllib260, &mut Repairs::default()).unwrap(), [2., 101.]);
    }

    /// RLlib 2.60 (defect V2): chunk at t = 5 with states 105..108 and no look-back gives [108, ..].
    #[test]
    fn a_chunk_without_look_back_never_sees_its_own_end() {
        let (mut eps, mut repairs) = (with_states(&[4]), Repairs::default());
        eps.chunks[0].t_started = 5;
        assert_eq!(state_in(&mut eps.clone(), Compat::Rllib260, &mut repairs).unwrap(), [103., 101.]);
        assert_eq!(state_in(&mut eps, Compat::Correct, &mut repairs).unwrap(), [0., 101.]);
        assert_eq!(repairs.sorted(), [(UNKNOWN_STATE, 1)]);
    }

    #[test]
    fn states_of_float16_are_joined_with_the_initial_float32() {
        let mut eps = with_states(&[3]);
        let half = eps.steps.get(STATE_OUT).unwrap().cast(DType::Float16).unwrap();
        eps.steps.set(STATE_OUT, half);
        assert_eq!(state_in(&mut eps, Compat::Rllib260, &mut Repairs::default()).unwrap(), [0., 101.]);
    }

    /// `convert_to_numpy` calls `item()` on a tensor without a dimension, and NumPy takes a list of Python's floats for
    /// float64, of integers for int64.
    #[test]
    fn states_without_a_dimension_are_joined_with_a_number_of_python() {
        let of = |dtype: DType| {
            let mut eps = with_states(&[3]);
            let states = eps.steps.get(STATE_OUT).unwrap().values::<f32>().to_vec();
            eps.steps.set(STATE_OUT, Tensor::from_values::<f32>([], &states).cast(dtype).unwrap());
            let settings = stateful(2);
            let cx = Context::new(&settings, Compat::Rllib260);
            let piece = AddStatesFromEpisodesToBatch::default();
            let batch = apply_with(&piece, cx, &mut eps, ModuleBatch::default(), &mut Repairs::default()).unwrap();
            batch.get(STATE_IN).unwrap().clone()
        };
        assert_eq!(of(DType::Float16).values::<f64>(), [0., 101.]);
        assert_eq!(of(DType::Float32).values::<f64>(), [0., 101.]);
        assert_eq!(of(DType::Int32).values::<i64>(), [0, 101]);
        assert_eq!(of(DType::UInt64).values::<f64>(), [0., 101.]);
    }

    #[test]
    fn next_states_stand_one_step_later() {
        let mut eps = with_states(&[3]);
        let mut batch = ModuleBatch::default();
        batch.push(NEXT_OBS, Tensor::zeros(TensorType::new(DType::Float32, [1]), 3));
        let settings = stateful(2);
        let cx = Context::new(&settings, Compat::Correct);
        let piece = AddStatesFromEpisodesToBatch::default();
        let batch = apply_with(&piece, cx, &mut eps, batch, &mut Repairs::default()).unwrap();
        assert_eq!(batch.get(NEXT_STATE_IN).unwrap().values::<f32>(), [100., 102.]);
    }
}
