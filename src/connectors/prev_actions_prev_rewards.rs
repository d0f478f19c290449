//! `PrevActionsPrevRewards`: what was done and received before, as part of the observation.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::flatten_observations::{depths, in_tree_order};
use super::rewards::require_unread;
use crate::batch::ModuleBatch;
use crate::column::{ACTIONS, OBS, REWARDS, is_under};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, Slices, piece_boilerplate};
use crate::episode::{Columns, EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::job::{ModuleSettings, Space};
use crate::tensor::{DType, Tensor, TensorBuilder, TensorType};

const ORIG_OBS: &str = "obs/_orig_obs";
const PREV_ACTIONS: &str = "obs/prev_n_actions";
const PREV_REWARDS: &str = "obs/prev_n_rewards";
/// Rows whose past was not in the data; see [`PrevActionsPrevRewards`].
const UNKNOWN_PAST: &str = "previous_steps_of_a_chunk_without_look_back";

/// Makes the observation a Dict of `_orig_obs`, `prev_n_actions` and `prev_n_rewards`.
///
/// ```text
/// Discrete(3), n_prev_actions = 2, n_prev_rewards = 1
///
/// t   action  reward      obs/prev_n_actions       obs/prev_n_rewards
/// 0   2       10.0        0 0 0   0 0 0            0.0           zeros before the first step
/// 1   1       20.0        0 0 0   0 0 1            10.0          oldest first
/// 2                       0 0 1   0 1 0            20.0          (after the last step, for `new_obs`)
/// ```
///
/// Discrete and multi-discrete actions become one-hot vectors, for which `input_action_space` is needed; others are
/// flattened. Nested actions stand one leaf after the other, in the order of their sorted keys, each with its
/// `n_prev_actions` values. Both columns are float32 vectors, as RLlib declares them. Written into the episodes, so
/// that every later piece sees it: put `FlattenObservations` behind it for one vector.
///
/// A chunk that continues an episode takes what came before from its look-back. Where it has none, zeros stand in and
/// the report counts the rows.
///
/// As RLlib's `connectors/env_to_module/prev_actions_prev_rewards.py`, followed by `WriteObservationsToEpisodes`.
/// RLlib's `prev_n_actions` have another shape than it declares, `(n, width)`, unless actions are nested; and it
/// ignores the `start` of a discrete space, so that some values are out of range.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PrevActionsPrevRewards {
    /// The space of the actions: which integers are discrete, and how many there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_action_space: Option<Space>,
    /// Accepted as RLlib's argument. Whether data are multi-agent is seen from the data.
    pub multi_agent: bool,
    /// Actions before each observation.
    pub n_prev_actions: usize,
    /// Rewards before each observation.
    pub n_prev_rewards: usize,
}

impl Default for PrevActionsPrevRewards {
    fn default() -> Self {
        Self { input_action_space: None, multi_agent: false, n_prev_actions: 1, n_prev_rewards: 1 }
    }
}

impl Piece for PrevActionsPrevRewards {
    const NAME: &'static str = "PrevActionsPrevRewards";

    fn check(&self) -> Result<()> {
        if self.n_prev_actions == 0 && self.n_prev_rewards == 0 {
            return Err(Error::usage("found n_prev_actions = 0 and n_prev_rewards = 0, expected one of them"));
        }
        Ok(())
    }
}

/// How an action leaf becomes numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    Numbers,
    OneHot { depths: Vec<usize>, start: i64 },
}

/// An action leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Leaf {
    column: String,
    form: Form,
    width: usize,
}

impl PrevActionsPrevRewards {
    /// The action leaves in order. `ty` gives the type of a column, `names` all action columns.
    fn leaves<'a>(&self, names: &[String], ty: &impl Fn(&str) -> Option<&'a TensorType>) -> Result<Vec<Leaf>> {
        let mut out = Vec::new();
        if let Some(space) = &self.input_action_space {
            walk(space, ACTIONS.to_owned(), ty, &mut out)?;
            let known: HashSet<&str> = out.iter().map(|l| l.column.as_str()).collect();
            if let Some(extra) = names.iter().find(|n| !known.contains(n.as_str())) {
                return Err(
                    Error::usage("found a part of the actions that input_action_space does not have").column(extra)
                );
            }
            return Ok(out);
        }
        for name in in_tree_order(names.iter().map(String::as_str)) {
            let Some(own) = ty(name) else { continue };
            if !own.dtype.is_float() {
                return Err(Error::usage(format!(
                    "found {own}, which may be discrete or not, and no space that says it"
                ))
                .column(name)
                .hint("give the piece an `input_action_space`, for instance { type = \"discrete\", n = 4 }"));
            }
            out.push(Leaf { column: name.to_owned(), form: Form::Numbers, width: own.row_elements() });
        }
        Ok(out)
    }

    /// The `n` values before `place`, counted from the chunk's first step: `steps` and `history` hold `width` numbers
    /// a row, of which the rows `own` and `before` are the chunk's.
    fn previous(
        n: usize,
        (steps, history): (&[f32], &[f32]),
        width: usize,
        (own, before): (&Range<usize>, &Range<usize>),
        place: isize,
        out: &mut Vec<f32>,
    ) {
        for back in (1..=n).rev() {
            let at = place - back.cast_signed();
            if let Ok(t) = usize::try_from(at) {
                out.extend_from_slice(&steps[(own.start + t) * width..][..width]);
            } else if let Some(row) = before.end.checked_add_signed(at).filter(|row| *row >= before.start) {
                out.extend_from_slice(&history[row * width..][..width]);
            } else {
                out.resize(out.len() + width, 0.0);
            }
        }
    }
}

/// The leaves of `space`: keys sorted, tuples in order.
fn walk<'a>(
    space: &Space,
    column: String,
    ty: &impl Fn(&str) -> Option<&'a TensorType>,
    out: &mut Vec<Leaf>,
) -> Result<()> {
    match space {
        Space::Dict(children) => {
            let mut sorted: Vec<_> = children.iter().collect();
            sorted.sort_unstable_by_key(|(key, _)| *key);
            return sorted.into_iter().try_for_each(|(key, s)| walk(s, format!("{column}/{key}"), ty, out));
        }
        Space::Tuple(children) => {
            let mut numbered = children.iter().enumerate();
            return numbered.try_for_each(|(i, s)| walk(s, format!("{column}/{i}"), ty, out));
        }
        _ => {}
    }
    let Some(own) = ty(&column) else {
        return Err(Error::usage("input_action_space has a part that the recorded actions do not have").column(column));
    };
    let (shape, form) = match space {
        Space::Box { shape, .. } => (shape.clone(), Form::Numbers),
        Space::MultiBinary { n } => (vec![*n], Form::Numbers),
        Space::Discrete { n, start } => (Vec::new(), Form::OneHot { depths: depths(&[*n])?, start: *start }),
        Space::MultiDiscrete { nvec } => (vec![nvec.len()], Form::OneHot { depths: depths(nvec)?, start: 0 }),
        Space::Tuple(_) | Space::Dict(_) => unreachable!("these have returned"),
    };
    if own.shape != shape {
        return Err(Error::usage(format!("found {own}, but the space has the shape {shape:?}")).column(column));
    }
    let width = match &form {
        Form::Numbers => own.row_elements(),
        Form::OneHot { .. } if own.dtype.is_float() => {
            return Err(Error::usage(format!("found {own}, expected integers for a discrete space")).column(column));
        }
        Form::OneHot { depths, .. } => depths.iter().sum(),
    };
    out.push(Leaf { column, form, width });
    Ok(())
}

/// The numbers of an action leaf, row by row; the error names the row.
fn encoded(leaf: &Leaf, column: &Tensor) -> Result<Vec<f32>, (usize, Error)> {
    let no_cast = |e| (0, e);
    match &leaf.form {
        Form::Numbers => Ok(column.cast(DType::Float32).map_err(no_cast)?.values::<f32>().to_vec()),
        Form::OneHot { depths, start } => {
            let numbers = if column.ty().dtype == DType::Bool {
                column.bytes().iter().map(|b| i64::from(*b)).collect()
            } else {
                column.cast(DType::Int64).map_err(no_cast)?.values::<i64>().to_vec()
            };
            let mut out = vec![0.0; column.rows() * leaf.width];
            let width = leaf.width.max(1);
            for (row, (slot, own)) in out.chunks_mut(width).zip(numbers.chunks(depths.len().max(1))).enumerate() {
                let mut first = 0;
                for (number, depth) in own.iter().zip(depths) {
                    let place = number.checked_sub(*start).and_then(|p| usize::try_from(p).ok());
                    let Some(place) = place.filter(|p| p < depth) else {
                        let error = Error::data(format!(
                            "found the action {number}, expected {start} to {}",
                            start.saturating_add_unsigned(*depth as u64 - 1)
                        ));
                        return Err((row, error.column(&leaf.column)));
                    };
                    slot[first + place] = 1.0;
                    first += depth;
                }
            }
            Ok(out)
        }
    }
}

/// The names of the columns under `actions`.
fn action_names<'a>(names: impl Iterator<Item = &'a Arc<str>>) -> Vec<String> {
    names.filter(|n| is_under(n, ACTIONS)).map(ToString::to_string).collect()
}

/// `obs/pos` becomes `obs/_orig_obs/pos`.
fn moved(name: &str) -> Arc<str> {
    name.strip_prefix(OBS).map_or_else(|| name.into(), |rest| format!("{ORIG_OBS}{rest}").into())
}

/// Columns whose observations have moved, with the new ones behind them.
fn rearranged<T>(
    columns: impl Iterator<Item = (Arc<str>, T)>,
    added: impl IntoIterator<Item = (&'static str, T)>,
) -> Vec<(Arc<str>, T)> {
    let (obs, rest): (Vec<_>, Vec<_>) = columns.partition(|(name, _)| is_under(name, OBS));
    let obs = obs.into_iter().map(|(name, t)| (moved(&name), t));
    obs.chain(added.into_iter().map(|(name, t)| (Arc::from(name), t))).chain(rest).collect()
}

impl Connector for PrevActionsPrevRewards {
    piece_boilerplate!();

    fn look_back(&self, _: &ModuleSettings) -> usize {
        self.n_prev_actions.max(self.n_prev_rewards)
    }

    fn slices(&self, _: Context<'_>, _: &EpisodeLayout) -> Option<Slices> {
        Some(Slices::ANYWHERE)
    }

    fn layout(&self, _: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        require_unread(plan, OBS)?;
        if plan.batch.has(crate::column::LOSS_MASK) {
            return Err(Error::usage("the episodes have one step more than was recorded")
                .hint("this piece does not work behind AddOneTsToEpisodesAndTruncate"));
        }
        if plan.episodes.under(OBS).any(|(name, _)| is_own(name)) {
            return Err(Error::usage("the observations have previous actions or rewards already").column(OBS));
        }
        let mut added = Vec::new();
        if self.n_prev_actions > 0 {
            let names = action_names(plan.episodes.steps.iter().map(|(n, _)| n));
            if names.is_empty() {
                return Err(Error::usage("needs actions, and the input has none").column(ACTIONS));
            }
            let recorded = plan.episodes.by_name();
            let width: usize = self.leaves(&names, &|n| recorded.get(n).copied())?.iter().map(|l| l.width).sum();
            added.push((PREV_ACTIONS, TensorType::new(DType::Float32, [self.n_prev_actions * width])));
        }
        if self.n_prev_rewards > 0 {
            match plan.episodes.get(REWARDS) {
                Some(ty) if ty.shape.is_empty() => {}
                Some(ty) => {
                    return Err(Error::usage(format!("found {ty}, expected one number a step")).column(REWARDS));
                }
                None => return Err(Error::usage("needs rewards as one column").column(REWARDS)),
            }
            added.push((PREV_REWARDS, TensorType::new(DType::Float32, [self.n_prev_rewards])));
        }
        plan.episodes.steps = rearranged(std::mem::take(&mut plan.episodes.steps).into_iter(), added);
        Ok(())
    }

    fn apply(
        &self,
        _: Context<'_>,
        episodes: &mut EpisodeBatch,
        _: &mut ModuleBatch,
        repairs: &mut Repairs,
    ) -> Result<()> {
        let names = action_names(episodes.steps.iter().map(|(n, _)| n));
        // Numbers of the previous steps: each source with its width and how many steps of it are asked for.
        let mut actions: Vec<(Vec<f32>, Vec<f32>, usize)> = Vec::new();
        if self.n_prev_actions > 0 {
            for leaf in self.leaves(&names, &|n| episodes.steps.get(n).map(Tensor::ty))? {
                let of = |columns: &Columns| columns.get(&leaf.column).map(|c| encoded(&leaf, c)).transpose();
                let steps = of(&episodes.steps).map_err(|(row, e)| at_row(episodes, &episodes.offsets, row, e))?;
                let history =
                    of(&episodes.history).map_err(|(row, e)| at_row(episodes, &episodes.history_offsets, row, e))?;
                actions.push((steps.unwrap_or_default(), history.unwrap_or_default(), leaf.width));
            }
        }
        let mut rewards = (Vec::new(), Vec::new());
        if self.n_prev_rewards > 0 {
            rewards.0 = super::rewards(episodes)?.cast(DType::Float32)?.values::<f32>().to_vec();
            if let Some(history) = episodes.history.get(REWARDS) {
                rewards.1 = history.cast(DType::Float32)?.values::<f32>().to_vec();
            }
        }

        // For the steps (places 0 .. L), the last observation (L), and the look-back (before 0).
        let places = |i: usize| {
            let (own, before) = (episodes.rows(i), episodes.history_rows(i));
            let (len, past) = (own.len().cast_signed(), before.len().cast_signed());
            [0..len, len..len + 1, -past..0]
        };
        let width: usize = actions.iter().map(|(_, _, w)| w).sum();
        let types = [self.n_prev_actions * width, self.n_prev_rewards].map(|n| TensorType::new(DType::Float32, [n]));
        let mut added: [Vec<(&'static str, Tensor)>; 3] = Default::default();
        for (target, added) in added.iter_mut().enumerate() {
            let new = |ty: &TensorType| TensorBuilder::with_capacity(ty.clone(), 0);
            let [mut prev_actions, mut prev_rewards] = [new(&types[0]), new(&types[1])];
            let mut row = Vec::new();
            for i in 0..episodes.len() {
                let (own, before) = (episodes.rows(i), episodes.history_rows(i));
                for place in places(i)[target].clone() {
                    row.clear();
                    for (steps, history, width) in &actions {
                        Self::previous(self.n_prev_actions, (steps, history), *width, (&own, &before), place, &mut row);
                    }
                    prev_actions.extend_bytes(bytemuck::cast_slice(&row), 1);
                    row.clear();
                    let values = (&*rewards.0, &*rewards.1);
                    Self::previous(self.n_prev_rewards, values, 1, (&own, &before), place, &mut row);
                    prev_rewards.extend_bytes(bytemuck::cast_slice(&row), 1);
                }
            }
            if self.n_prev_actions > 0 {
                added.push((PREV_ACTIONS, prev_actions.finish()));
            }
            if self.n_prev_rewards > 0 {
                added.push((PREV_REWARDS, prev_rewards.finish()));
            }
        }

        let n = self.n_prev_actions.max(self.n_prev_rewards);
        for (i, chunk) in episodes.chunks.iter().enumerate() {
            let past = usize::try_from(chunk.t_started).unwrap_or(0);
            let known = episodes.history_rows(i).len();
            if past > known {
                repairs.count(UNKNOWN_PAST, episodes.rows(i).len().min(n.saturating_sub(known)) as u64);
            }
        }
        let [steps, last, history] = added;
        for (columns, added) in
            [(&mut episodes.steps, steps), (&mut episodes.last_obs, last), (&mut episodes.history, history)]
        {
            if columns.iter().next().is_some() {
                let old = std::mem::take(columns);
                *columns = rearranged(old.iter().map(|(n, t)| (Arc::clone(n), t.clone())), added).into_iter().collect();
            }
        }
        Ok(())
    }
}

/// Whether a column is one that this piece makes.
fn is_own(name: &str) -> bool {
    [ORIG_OBS, PREV_ACTIONS, PREV_REWARDS].iter().any(|own| name == *own || name.starts_with(&format!("{own}/")))
}

/// Adds the episode of a row.
fn at_row(episodes: &EpisodeBatch, offsets: &[usize], row: usize, error: Error) -> Error {
    let i = offsets.partition_point(|o| *o <= row).saturating_sub(1);
    episodes.chunks.get(i).map_or_else(|| Error::internal("a row of no chunk"), |c| error.episode(c.id.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::testing::{apply, apply_with, assert_promise, episodes, promised};
    use crate::job::Compat;

    fn discrete(n: u64, start: i64) -> Space {
        Space::Discrete { n, start }
    }

    fn run(piece: &PrevActionsPrevRewards, eps: &EpisodeBatch) -> EpisodeBatch {
        let mut own = eps.clone();
        let promise = promised(piece, eps).unwrap();
        let batch = apply(piece, &mut own).unwrap();
        assert_promise(&promise, &own, &batch);
        own
    }

    fn floats<'a>(columns: &'a Columns, name: &str) -> &'a [f32] {
        columns.get(name).unwrap().values()
    }

    #[test]
    fn the_figure_above() {
        let mut eps = episodes(&[2]);
        eps.steps.set(ACTIONS, Tensor::from_values::<i64>([], &[2, 1]));
        eps.steps.set(REWARDS, Tensor::from_values::<f64>([], &[10., 20.]));
        let piece = PrevActionsPrevRewards {
            input_action_space: Some(discrete(3, 0)),
            n_prev_actions: 2,
            ..PrevActionsPrevRewards::default()
        };
        let out = run(&piece, &eps);
        assert_eq!(floats(&out.steps, PREV_ACTIONS), [0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 1.]);
        assert_eq!(floats(&out.last_obs, PREV_ACTIONS), [0., 0., 1., 0., 1., 0.]);
        assert_eq!(floats(&out.steps, PREV_REWARDS), [0., 10.]);
        assert_eq!(floats(&out.last_obs, PREV_REWARDS), [20.]);
        assert_eq!(floats(&out.steps, ORIG_OBS), [0., 1.]);
        assert_eq!(floats(&out.last_obs, ORIG_OBS), [2.]);
        let names: Vec<&str> = out.steps.iter().map(|(n, _)| &**n).collect();
        assert_eq!(names, [ORIG_OBS, PREV_ACTIONS, PREV_REWARDS, ACTIONS, REWARDS]);
    }

    /// Against a walk over each episode with its look-back, for several numbers of steps.
    #[test]
    fn naive_reference() {
        let mut eps = episodes(&[4, 0, 1, 3]);
        let actions: Vec<f32> = (0..16u8).map(f32::from).collect();
        eps.steps.set(ACTIONS, Tensor::from_values::<f32>([2], &actions));
        eps.chunks[3].t_started = 2;
        eps.history_offsets = vec![0, 0, 0, 0, 2];
        eps.history.set(OBS, Tensor::from_values::<f32>([1], &[-2., -1.]));
        eps.history.set(ACTIONS, Tensor::from_values::<f32>([2], &[-40., -41., -50., -51.]));
        eps.history.set(REWARDS, Tensor::from_values::<f64>([], &[-4., -5.]));
        let rewards: Vec<f64> = eps.steps.get(REWARDS).unwrap().values().to_vec();
        for (n_prev_actions, n_prev_rewards) in [(1, 1), (3, 2), (0, 5), (5, 0)] {
            let piece = PrevActionsPrevRewards { n_prev_actions, n_prev_rewards, ..PrevActionsPrevRewards::default() };
            let out = run(&piece, &eps);
            let (mut want_actions, mut want_rewards) = ([vec![], vec![], vec![]], [vec![], vec![], vec![]]);
            for i in 0..eps.len() {
                let mut past: Vec<([f32; 2], f32)> = vec![([0., 0.], 0.); 10];
                if i == 3 {
                    past.extend([([-40., -41.], -4.), ([-50., -51.], -5.)]);
                }
                #[expect(clippy::cast_possible_truncation, reason = "small whole numbers")]
                past.extend(eps.rows(i).map(|r| ([actions[2 * r], actions[2 * r + 1]], rewards[r] as f32)));
                let history = eps.history_rows(i).len();
                for end in 10..=past.len() {
                    let target = if end == past.len() {
                        1
                    } else if end - 10 < history {
                        2
                    } else {
                        0
                    };
                    want_actions[target].extend(past[end - n_prev_actions..end].iter().flat_map(|p| p.0));
                    want_rewards[target].extend(past[end - n_prev_rewards..end].iter().map(|p| p.1));
                }
            }
            for (columns, (a, r)) in
                [&out.steps, &out.last_obs, &out.history].into_iter().zip(want_actions.iter().zip(&want_rewards))
            {
                if n_prev_actions > 0 {
                    assert_eq!(floats(columns, PREV_ACTIONS), a);
                }
                if n_prev_rewards > 0 {
                    assert_eq!(floats(columns, PREV_REWARDS), r);
                }
            }
        }
        run(
            &PrevActionsPrevRewards { input_action_space: Some(discrete(3, 0)), ..PrevActionsPrevRewards::default() },
            &episodes(&[]),
        );
    }

    /// Printed by RLlib 2.60 for Dict(a=Box(2), b=Discrete(2)), n = 2: leaf by leaf, oldest first.
    #[test]
    fn nested_actions_stand_leaf_by_leaf() {
        let mut eps = episodes(&[2]);
        eps.steps = [
            ("obs/pos", Tensor::from_values::<f32>([1], &[0., 1.])),
            ("actions/b", Tensor::from_values::<i64>([], &[1, 1])),
            ("actions/a", Tensor::from_values::<f32>([2], &[0.5, 0.25, 0.5, 0.25])),
            (REWARDS, Tensor::from_values::<f64>([], &[10., 20.])),
        ]
        .into_iter()
        .map(|(n, t)| (Arc::from(n), t))
        .collect();
        eps.last_obs = std::iter::once((Arc::from("obs/pos"), Tensor::from_values::<f32>([1], &[2.]))).collect();
        let space = r#"{"b": {"type": "discrete", "n": 2}, "a": {"type": "box", "shape": [2]}}"#;
        let piece = PrevActionsPrevRewards {
            input_action_space: Some(serde_json::from_str(space).unwrap()),
            n_prev_actions: 2,
            n_prev_rewards: 2,
            ..PrevActionsPrevRewards::default()
        };
        let out = run(&piece, &eps);
        assert_eq!(floats(&out.last_obs, PREV_ACTIONS), [0.5, 0.25, 0.5, 0.25, 0., 1., 0., 1.]);
        assert_eq!(floats(&out.last_obs, PREV_REWARDS), [10., 20.]);
        assert_eq!(floats(&out.last_obs, "obs/_orig_obs/pos"), [2.]);
    }

    #[test]
    fn discrete_spaces_have_a_start_and_bounds() {
        let mut eps = episodes(&[1, 2]);
        eps.steps.set(ACTIONS, Tensor::from_values::<i32>([], &[1, 3, 4]));
        let piece =
            PrevActionsPrevRewards { input_action_space: Some(discrete(3, 1)), ..PrevActionsPrevRewards::default() };
        let error = apply(&piece, &mut eps.clone()).unwrap_err();
        assert_eq!(
            (error.what(), error.place().episode.as_deref()),
            ("found the action 4, expected 1 to 3", Some("e1"))
        );
        eps.steps.set(ACTIONS, Tensor::from_values::<i32>([], &[1, 3, 2]));
        assert_eq!(floats(&run(&piece, &eps).last_obs, PREV_ACTIONS), [1., 0., 0., 0., 1., 0.]);
        eps.steps.set(ACTIONS, Tensor::from_values::<i32>([2], &[1, 2, 0, 0, 0, 1]));
        let nvec = Space::MultiDiscrete { nvec: vec![2, 3] };
        let piece = PrevActionsPrevRewards { input_action_space: Some(nvec), ..PrevActionsPrevRewards::default() };
        assert_eq!(floats(&run(&piece, &eps).last_obs, PREV_ACTIONS), [0., 1., 0., 0., 1., 1., 0., 0., 1., 0.]);
    }

    #[test]
    fn what_cannot_be_known_is_told() {
        let eps = episodes(&[1]);
        let error = promised(&PrevActionsPrevRewards::default(), &eps).unwrap_err();
        assert!(error.hint_text().unwrap().contains("input_action_space"));
        let piece = PrevActionsPrevRewards {
            input_action_space: Some(discrete(20, 0)),
            n_prev_actions: 3,
            ..PrevActionsPrevRewards::default()
        };
        let mut eps = episodes(&[5, 5]);
        eps.steps.set(ACTIONS, Tensor::from_values::<i64>([], &[0; 10]));
        eps.chunks[1].t_started = 4;
        let mut repairs = Repairs::default();
        let module = ModuleSettings::default();
        let cx = Context::new(&module, Compat::Correct);
        apply_with(&piece, cx, &mut eps, ModuleBatch::default(), &mut repairs).unwrap();
        assert_eq!(repairs.sorted(), [(UNKNOWN_PAST, 3)]);
        let piece =
            PrevActionsPrevRewards { n_prev_actions: 0, n_prev_rewards: 0, ..PrevActionsPrevRewards::default() };
        assert!(piece.check().is_err());
    }
}
