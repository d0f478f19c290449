//! `HindsightGoalRelabelling`: transitions as if what was achieved had been the goal.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rewards::{Transitions, from_f64, scaled_dtype};
use crate::batch::ModuleBatch;
use crate::column::{LOSS_MASK, NEXT_OBS, OBS, REWARDS, is_under, rebase};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, piece_boilerplate};
use crate::episode::{Chunk, EpisodeBatch, EpisodeId};
use crate::error::{Error, Result};
use crate::tensor::{DType, Tensor, TensorBuilder, TensorType};

/// The column that tells which steps have another goal than was recorded.
const RELABELLED: &str = "relabelled";

/// Which achieved goals of an episode may become the goal of one of its steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GoalSelectionStrategy {
    /// One that is achieved by this step's action or later.
    #[default]
    Future,
    /// The one achieved at the end.
    Final,
    /// Any that is achieved by an action of the episode.
    Episode,
}

/// Replaces the goal of some steps by a goal that was achieved in the same episode, and the reward with it.
///
/// ```text
/// achieved_goal   g0  g1  g2 | g3       desired_goal d, never reached: rewards -1 -1 -1
///
/// step 1 with strategy   future   one of g2 g3      final   g3      episode   one of g1 g2 g3
///
/// step 1 relabelled to g2:   obs/desired_goal, new_obs/desired_goal = g2       reward 0, as new_obs/achieved_goal = g2
/// ```
///
/// Of `n_sampled_goal + 1` steps, `n_sampled_goal` are relabelled on average; run it with several seeds for several
/// goals a step. The reward of a relabelled step is 0 where the distance (Euclidean) between the goal and what its
/// action achieved is not greater than `distance_threshold`, and -1 elsewhere. Other steps keep goal and reward, and
/// all keep their flags. `relabelled` tells them apart.
///
/// Adds `obs`, `new_obs` and `rewards` to the batch: the goal of a step's `new_obs` is the step's own, which the
/// episode, where each observation stands once, cannot say. Goals come from the recorded chunk itself. What is drawn for
/// a step follows from the seed, the episode's and the agent's id and the time step: neither from threads nor from what
/// else is in the data.
///
/// After M. Andrychowicz and others, "Hindsight Experience Replay", 2017; names, the share of relabelled steps and the
/// bounds of each strategy as in Stable-Baselines3's `HerReplayBuffer`; reward and threshold as in Gymnasium-Robotics'
/// Fetch tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HindsightGoalRelabelling {
    /// Which achieved goals may become the goal.
    pub goal_selection_strategy: GoalSelectionStrategy,
    /// Relabelled steps for each step that stays as it was.
    #[schemars(range(min = 0.0))]
    pub n_sampled_goal: f64,
    /// Seed of what is drawn.
    pub seed: u64,
    /// The observation leaf of what was achieved.
    pub achieved_goal: String,
    /// The observation leaf of what was wanted.
    pub desired_goal: String,
    /// The distance up to which a goal counts as reached.
    #[schemars(range(min = 0.0))]
    pub distance_threshold: f64,
}

impl Default for HindsightGoalRelabelling {
    fn default() -> Self {
        Self {
            goal_selection_strategy: GoalSelectionStrategy::Future,
            n_sampled_goal: 4.0,
            seed: 0,
            achieved_goal: "obs/achieved_goal".to_owned(),
            desired_goal: "obs/desired_goal".to_owned(),
            distance_threshold: 0.05,
        }
    }
}

impl Piece for HindsightGoalRelabelling {
    const NAME: &'static str = "HindsightGoalRelabelling";

    fn check(&self) -> Result<()> {
        for (name, value) in [("n_sampled_goal", self.n_sampled_goal), ("distance_threshold", self.distance_threshold)]
        {
            if !value.is_finite() || value < 0.0 {
                return Err(Error::usage(format!("found {name} = {value}, expected a finite number of at least 0")));
            }
        }
        if self.achieved_goal == self.desired_goal {
            return Err(Error::usage("found one column for achieved_goal and desired_goal, expected two"));
        }
        Ok(())
    }
}

/// Random numbers of one episode's steps.
struct Draws([u64; 2]);

impl Draws {
    fn of(seed: u64, chunk: &Chunk) -> Self {
        let mut hasher = blake3::Hasher::new();
        let mut text = |tag: u8, bytes: &[u8]| {
            hasher.update(&[tag]).update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
        };
        text(0, HindsightGoalRelabelling::NAME.as_bytes());
        text(1, &seed.to_le_bytes());
        match &chunk.id {
            EpisodeId::Int(id) => text(2, &id.to_le_bytes()),
            EpisodeId::Str(id) => text(3, id.as_bytes()),
        }
        if let Some(agent) = &chunk.agent_id {
            text(4, agent.as_bytes());
        }
        let hash = hasher.finalize();
        let word = |i: usize| hash.as_bytes()[i..i + 8].iter().rev().fold(0, |word, b| (word << 8) | u64::from(*b));
        Self([word(0), word(8)])
    }

    /// Number `which` (0 or 1) of step `t`: `SplitMix64`, as a counter.
    fn bits(&self, which: usize, t: i64) -> u64 {
        let mut z = self.0[which].wrapping_add(t.cast_unsigned().wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to 1, without 1.
    fn unit(&self, which: usize, t: i64) -> f64 {
        (self.bits(which, t) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From 0 to `n`, without `n`.
    #[expect(clippy::cast_possible_truncation, reason = "the product of two words, shifted by a word, is less than n")]
    fn below(&self, which: usize, t: i64, n: usize) -> usize {
        ((u128::from(self.bits(which, t)) * n as u128) >> 64) as usize
    }
}

impl HindsightGoalRelabelling {
    /// For each step, the step of its chunk whose action achieves the new goal; `None` where the goal stays.
    fn goals(&self, episodes: &EpisodeBatch) -> Vec<Option<usize>> {
        let share = 1.0 - 1.0 / (self.n_sampled_goal + 1.0);
        let mut out = Vec::with_capacity(episodes.steps_len());
        for (chunk, len) in episodes.chunks.iter().zip(episodes.lengths()) {
            let draws = Draws::of(self.seed, chunk);
            for (step, t) in (0..len).zip(chunk.t_started..) {
                out.push((draws.unit(0, t) < share).then(|| match self.goal_selection_strategy {
                    GoalSelectionStrategy::Future => step + draws.below(1, t, len - step),
                    GoalSelectionStrategy::Final => len - 1,
                    GoalSelectionStrategy::Episode => draws.below(1, t, len),
                }));
            }
        }
        out
    }

    /// The recorded goals, with those of relabelled steps replaced by what was achieved.
    fn relabelled(episodes: &EpisodeBatch, goals: &[Option<usize>], desired: &Tensor, achieved: &Tensor) -> Tensor {
        let mut out = TensorBuilder::with_capacity(desired.ty().clone(), desired.rows());
        for i in 0..episodes.len() {
            let rows = episodes.rows(i);
            for row in rows.clone() {
                match goals[row] {
                    Some(step) => out.extend(achieved, rows.start + step, 1),
                    None => out.extend(desired, row, 1),
                }
            }
        }
        out.finish()
    }
}

impl Connector for HindsightGoalRelabelling {
    piece_boilerplate!();

    fn layout(&self, cx: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        Transitions {
            piece: Self::NAME,
            stateless: ": its sequences would change their goal from step to step",
            makes: &[OBS, NEXT_OBS, REWARDS, LOSS_MASK, RELABELLED],
            own: RELABELLED,
            before: "observations, rewards or steps",
        }
        .require(cx, plan)?;
        let goal = |option: &str, name: &str| {
            let there: Vec<&str> = plan.episodes.under(OBS).map(|(n, _)| &**n).collect();
            let found = plan.episodes.get(name).filter(|_| is_under(name, OBS));
            found.cloned().ok_or_else(|| {
                Error::usage(format!("found no observation `{name}`, expected one of {}", there.join(", ")))
                    .column(name)
                    .hint(format!("`{option}` names the column"))
            })
        };
        let achieved = goal("achieved_goal", &self.achieved_goal)?;
        let desired = goal("desired_goal", &self.desired_goal)?;
        if achieved != desired {
            return Err(Error::usage(format!(
                "`{}` is {achieved}, but `{}` is {desired}",
                self.achieved_goal, self.desired_goal
            ))
            .hint("what was achieved can be a goal only if both have the same dtype and shape"));
        }
        let rewards = match plan.episodes.get(REWARDS) {
            Some(ty) if ty.shape.is_empty() => ty.with_dtype(scaled_dtype(ty.dtype)),
            Some(ty) => return Err(Error::usage(format!("found {ty}, expected one number a step")).column(REWARDS)),
            None => return Err(Error::usage("needs rewards as one column").column(REWARDS)),
        };
        let leaves: Vec<_> = plan.episodes.under(OBS).map(|(n, t)| (n.to_string(), t.clone())).collect();
        for (name, ty) in &leaves {
            plan.add_steps(name, ty.clone())?;
        }
        for (name, ty) in leaves {
            plan.add_steps(&rebase(&name, NEXT_OBS), ty)?;
        }
        plan.add_steps(REWARDS, rewards)?;
        plan.add_steps(RELABELLED, TensorType::new(DType::Bool, []))
    }

    fn apply(
        &self,
        _: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        _: &mut Repairs,
    ) -> Result<()> {
        let goals = self.goals(episodes);
        let desired = episodes.steps.get(&self.desired_goal).ok_or_else(|| Error::internal("no desired goal"))?;
        let achieved = episodes.next_obs(&self.achieved_goal)?;
        let wanted = Self::relabelled(episodes, &goals, desired, &achieved);
        let next_wanted = Self::relabelled(episodes, &goals, &episodes.next_obs(&self.desired_goal)?, &achieved);

        let recorded = super::rewards(episodes)?;
        let mut rewards = recorded.cast(DType::Float64)?.values::<f64>().to_vec();
        let (a, b) = (achieved.cast(DType::Float64)?, wanted.cast(DType::Float64)?);
        let width = a.ty().row_elements();
        for (row, reward) in rewards.iter_mut().enumerate().filter(|(row, _)| goals[*row].is_some()) {
            let own = row * width..(row + 1) * width;
            let pairs = a.values::<f64>()[own.clone()].iter().zip(&b.values::<f64>()[own]);
            let squares: f64 = pairs.map(|(x, y)| (x - y) * (x - y)).sum();
            *reward = if squares.sqrt() > self.distance_threshold { -1.0 } else { 0.0 };
        }
        let ty = recorded.ty().with_dtype(scaled_dtype(recorded.ty().dtype));
        let rewards = from_f64(&ty, recorded.rows(), rewards)?;

        let names: Vec<Arc<str>> = episodes.steps.under(OBS).map(|(n, _)| Arc::clone(n)).collect();
        for (name, obs) in episodes.steps.under(OBS) {
            batch.push(&**name, if **name == *self.desired_goal { wanted.clone() } else { obs.clone() });
        }
        for name in names {
            let next = if *name == *self.desired_goal {
                next_wanted.clone()
            } else if *name == *self.achieved_goal {
                achieved.clone()
            } else {
                episodes.next_obs(&name)?
            };
            batch.push(rebase(&name, NEXT_OBS), next);
        }
        batch.push(REWARDS, rewards);
        batch.push(RELABELLED, Tensor::from_bools(goals.iter().map(Option::is_some)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::testing::{apply, assert_promise, episodes, part, promised};

    /// Step `t` of episode `e` achieves `10 e + t + 1`; what was wanted is 999.
    fn goals(lengths: &[usize]) -> EpisodeBatch {
        let mut eps = episodes(lengths);
        let [steps, last] = [&eps.steps, &eps.last_obs].map(|c| c.get(OBS).unwrap().clone());
        let wanted = |n: usize| Tensor::from_values::<f32>([1], &vec![999.; n]);
        let named = |achieved: Tensor, n: usize| {
            [("obs/achieved_goal", achieved), ("obs/desired_goal", wanted(n))].map(|(k, t)| (Arc::from(k), t))
        };
        let rest = eps.steps.iter().filter(|(n, _)| &***n != OBS).map(|(n, t)| (Arc::clone(n), t.clone()));
        let rows = steps.rows();
        eps.steps = named(steps, rows).into_iter().chain(rest.collect::<Vec<_>>()).collect();
        eps.last_obs = named(last, lengths.len()).into_iter().collect();
        eps.steps.set(REWARDS, Tensor::from_values::<f32>([], &vec![-1.; rows]));
        eps
    }

    fn run(piece: &HindsightGoalRelabelling, eps: &EpisodeBatch) -> ModuleBatch {
        let mut own = eps.clone();
        let promise = promised(piece, eps).unwrap();
        let out = apply(piece, &mut own).unwrap();
        assert_promise(&promise, &own, &out);
        assert_eq!(own.steps, eps.steps);
        out
    }

    fn floats<'a>(batch: &'a ModuleBatch, name: &str) -> &'a [f32] {
        batch.get(name).unwrap().values()
    }

    /// All of a long run of seeds: goals are those of the figure, each of them appears, and rewards follow from them.
    #[test]
    fn the_figure_above() {
        let eps = goals(&[3]);
        for (strategy, allowed) in [
            (GoalSelectionStrategy::Future, vec![2., 3.]),
            (GoalSelectionStrategy::Final, vec![3.]),
            (GoalSelectionStrategy::Episode, vec![1., 2., 3.]),
        ] {
            let mut seen = Vec::new();
            let mut stayed = 0;
            for seed in 0..200 {
                let piece = HindsightGoalRelabelling { goal_selection_strategy: strategy, seed, ..Default::default() };
                let out = run(&piece, &eps);
                let (goal, next) = (floats(&out, "obs/desired_goal")[1], floats(&out, "new_obs/desired_goal")[1]);
                assert_eq!(goal.to_bits(), next.to_bits());
                let relabelled = out.get(RELABELLED).unwrap().bytes()[1] != 0;
                assert_eq!(relabelled, goal < 999.);
                let reward = floats(&out, REWARDS)[1];
                assert_eq!(reward.to_bits(), if (goal - 2.).abs() < 0.01 { 0f32.to_bits() } else { (-1f32).to_bits() });
                if relabelled { seen.push(goal) } else { stayed += 1 }
            }
            assert!(seen.iter().all(|g| allowed.contains(g)) && allowed.iter().all(|g| seen.contains(g)));
            // One of five stays: 40 of 200, give or take.
            assert!((20..=60).contains(&stayed), "{stayed}");
        }
    }

    #[test]
    fn goals_stay_in_their_episode_and_units_do_not_matter() {
        let lengths = [4, 0, 1, 7, 2];
        let eps = goals(&lengths);
        let piece = HindsightGoalRelabelling { n_sampled_goal: 20.0, seed: 7, ..Default::default() };
        let whole = run(&piece, &eps);
        let got = floats(&whole, "obs/desired_goal");
        for (i, len) in lengths.into_iter().enumerate() {
            for t in 0..len {
                let number = |n: usize| f32::from(u16::try_from(10 * i + n).unwrap());
                let goal = got[eps.offsets[i] + t];
                assert!(goal > 998. || (number(t + 1)..=number(len)).contains(&goal), "{i} {t} {goal}");
            }
        }
        for i in 0..5 {
            let rows = eps.rows(i);
            for (name, column) in run(&piece, &part(&eps, i..i + 1)).iter() {
                assert_eq!(*column.tensor(), whole.get(name).unwrap().slice(rows.start, rows.len()), "{name}");
            }
        }
    }

    #[test]
    fn without_new_goals_nothing_changes() {
        let eps = goals(&[3, 0]);
        let piece = HindsightGoalRelabelling { n_sampled_goal: 0.0, ..Default::default() };
        let out = run(&piece, &eps);
        assert_eq!(floats(&out, "obs/desired_goal"), [999.; 3]);
        assert_eq!(floats(&out, "new_obs/achieved_goal"), [1., 2., 3.]);
        assert_eq!(floats(&out, REWARDS), [-1.; 3]);
        assert_eq!(run(&piece, &goals(&[])).get(RELABELLED).unwrap().rows(), 0);
    }

    #[test]
    fn goals_must_be_comparable() {
        let mut eps = goals(&[2]);
        eps.steps.set("obs/desired_goal", Tensor::from_values::<f64>([1], &[0., 0.]));
        assert!(promised(&HindsightGoalRelabelling::default(), &eps).unwrap_err().what().contains("float64[1]"));
        let error = promised(&HindsightGoalRelabelling::default(), &episodes(&[1])).unwrap_err();
        assert!(error.hint_text().unwrap().contains("achieved_goal"));
        assert!(HindsightGoalRelabelling { n_sampled_goal: -1.0, ..Default::default() }.check().is_err());
        assert!(HindsightGoalRelabelling { distance_threshold: f64::NAN, ..Default::default() }.check().is_err());
        let same = HindsightGoalRelabelling { achieved_goal: "obs/desired_goal".to_owned(), ..Default::default() };
        assert!(same.check().is_err());
    }
}
