//! `NormalizeRewardsByReturnRange`: rewards relative to the spread of the episodes' returns.

use std::any::Any;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rewards::{lay_out_rewards, map_rewards, real_steps};
use crate::batch::ModuleBatch;
use crate::column::{REWARDS, root};
use crate::connector::{Connector, Context, Finding, Piece, Plan, Portable, Repairs, Survey, piece_boilerplate};
use crate::episode::{EpisodeBatch, EpisodeId};
use crate::error::{Error, Result};
use crate::job::ModuleSettings;
use crate::tensor::DType;

/// Divides rewards by the range of the episodes' returns and multiplies them by `max_episode_steps`.
///
/// ```text
/// episode A, terminated    rewards 1 2      return 3        max - min = 3 - (-1) = 4
/// episode B, truncated     rewards -1       return -1       max_episode_steps = 1000
/// episode C, open          rewards 50                       not counted
///
/// rewards / 4 * 1000       A 250 500     B -250     C 12500
/// ```
///
/// The range is that of a module's whole data set, over all episodes that ended, each from its first to its last
/// recorded step; chunks of one episode that follow one another are joined. Open episodes are not counted, as their
/// return is not known, but their rewards are normalised, too; `AddOneTsToEpisodesAndTruncate` leaves none open. Written into the episodes, so that every later piece
/// sees it. Computed in float64 and rounded once: float rewards keep their dtype, integers and booleans become float64.
///
/// The manifest's `statistics` hold the number of episodes and the least and greatest return. With `output.split` they
/// are those of the part `train` (or of the first one), for all parts.
///
/// The convention of IQL for D4RL's locomotion tasks: `modify_reward` and `return_reward_range` in CORL. Those have
/// no time-outs and cut after `max_episode_steps` steps in place of them; here an episode ends where its flags say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NormalizeRewardsByReturnRange {
    /// The factor: the task's time limit.
    #[schemars(range(min = 1))]
    pub max_episode_steps: u64,
}

impl Default for NormalizeRewardsByReturnRange {
    fn default() -> Self {
        Self { max_episode_steps: 1000 }
    }
}

impl Piece for NormalizeRewardsByReturnRange {
    const NAME: &'static str = "NormalizeRewardsByReturnRange";

    fn check(&self) -> Result<()> {
        if self.max_episode_steps == 0 {
            return Err(Error::usage("found max_episode_steps = 0, expected at least 1"));
        }
        Ok(())
    }
}

/// What an episode's chunks add up to.
#[derive(Debug, Clone, PartialEq)]
struct Part {
    id: EpisodeId,
    agent_id: Option<Arc<str>>,
    /// Its steps: from the first one to behind the last one.
    begin: i64,
    end: i64,
    terminated: bool,
    truncated: bool,
    sum: f64,
}

/// The least and the greatest return.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ReturnRange {
    /// Episodes that ended.
    pub episodes: u64,
    /// The least return.
    pub min: f64,
    /// The greatest return.
    pub max: f64,
}

impl NormalizeRewardsByReturnRange {
    /// The range that a survey has found.
    #[must_use]
    pub fn range(survey: &(dyn Any + Send + Sync)) -> Option<ReturnRange> {
        survey.downcast_ref::<ReturnRange>().copied()
    }
}

#[derive(Default)]
struct Pass {
    parts: Vec<Part>,
}

impl Survey for Pass {
    fn observe(&self, _: Context<'_>, episodes: &EpisodeBatch, batch: &ModuleBatch) -> Result<Finding> {
        let rewards = super::rewards(episodes)?.cast(DType::Float64)?;
        let rewards = rewards.values::<f64>();
        let real = real_steps(batch);
        let mut parts = Vec::new();
        for (i, chunk) in episodes.chunks.iter().enumerate() {
            let mut rows = episodes.rows(i);
            if rows.clone().last().is_some_and(|last| real.is_some_and(|real| real[last] == 0)) {
                rows.end -= 1;
            }
            if rows.is_empty() {
                continue;
            }
            parts.push(Part {
                id: chunk.id.clone(),
                agent_id: chunk.agent_id.clone(),
                begin: chunk.t_started,
                end: chunk.t_started.saturating_add_unsigned(rows.len() as u64),
                terminated: chunk.terminated,
                truncated: chunk.truncated,
                sum: rewards[rows].iter().fold(0.0, |sum, r| sum + r),
            });
        }
        Ok(Box::new(parts))
    }

    fn merge(&mut self, finding: Finding) -> Result<()> {
        let parts: Box<Vec<Part>> = finding.downcast().map_err(|_| Error::internal("another piece's finding"))?;
        self.parts.extend(*parts);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn Any + Send + Sync>> {
        let any = !self.parts.is_empty();
        let mut range = ReturnRange { episodes: 0, min: f64::INFINITY, max: f64::NEG_INFINITY };
        for whole in joined(self.parts).into_iter().filter(|p| p.terminated || p.truncated) {
            if !whole.sum.is_finite() {
                return Err(Error::data(format!("found a return of {}, expected a finite number", whole.sum))
                    .episode(whole.id.to_string())
                    .column(REWARDS));
            }
            range.episodes += 1;
            range.min = range.min.min(whole.sum);
            range.max = range.max.max(whole.sum);
        }
        if any && range.episodes == 0 {
            return Err(Error::data("found no episode that ended, so there is no range of returns")
                .column(REWARDS)
                .hint("record `terminateds` and `truncateds`; or set `input.unfinished = \"truncate\"`"));
        }
        if any && range.max - range.min <= 0.0 {
            return Err(Error::data(format!(
                "found the return {} for all of {} episodes, expected a range to divide by",
                range.min, range.episodes
            ))
            .column(REWARDS)
            .hint("RewardScaling multiplies rewards by a number of your choice"));
        }
        Ok(Box::new(range))
    }
}

/// Episodes of their parts: a part continues the one of its episode that stops where it begins and did not terminate.
/// (It may look truncated: `AddOneTsToEpisodesAndTruncate` makes it so.)
fn joined(mut parts: Vec<Part>) -> Vec<Part> {
    let key = |p: &Part| {
        let (number, text) = match &p.id {
            EpisodeId::Int(n) => (Some(*n), None),
            EpisodeId::Str(s) => (None, Some(Arc::clone(s))),
        };
        (number, text, p.agent_id.clone())
    };
    parts.sort_by_cached_key(|p| (key(p), p.begin));
    let mut out: Vec<Part> = Vec::new();
    let mut own = 0; // where the parts of the present episode id start
    for part in parts {
        if out.last().is_some_and(|last| key(last) != key(&part)) {
            own = out.len();
        }
        match out[own..].iter_mut().find(|p| !p.terminated && p.end == part.begin) {
            Some(open) => {
                open.end = part.end;
                (open.terminated, open.truncated) = (part.terminated, part.truncated);
                open.sum += part.sum;
            }
            None => out.push(part),
        }
    }
    out
}

impl Connector for NormalizeRewardsByReturnRange {
    piece_boilerplate!();

    fn reads(&self, _: &ModuleSettings, column: &str) -> bool {
        root(column) == REWARDS
    }

    fn layout(&self, _: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        match plan.episodes.get(REWARDS) {
            Some(ty) if ty.shape.is_empty() => lay_out_rewards(plan),
            Some(ty) => Err(Error::usage(format!("found {ty}, expected one number a step")).column(REWARDS)),
            None => Err(Error::usage("needs rewards as one column").column(REWARDS)),
        }
    }

    fn survey(&self, _: Context<'_>) -> Option<Box<dyn Survey>> {
        Some(Box::<Pass>::default())
    }

    fn portable_survey(&self) -> Option<Portable> {
        Some(Portable::of::<ReturnRange>())
    }

    fn statistics(&self, survey: &(dyn Any + Send + Sync)) -> Option<serde_json::Value> {
        serde_json::to_value(Self::range(survey)?).ok()
    }

    fn apply(
        &self,
        cx: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        _: &mut Repairs,
    ) -> Result<()> {
        let found = cx.survey.and_then(Self::range).ok_or_else(|| Error::internal("no survey"))?;
        let range = found.max - found.min;
        map_rewards(episodes, batch, |r| r / range * self.max_episode_steps as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::testing::{apply_surveyed, assert_promise, episodes, promised, surveyed};
    use crate::tensor::Tensor;

    fn figure() -> EpisodeBatch {
        let mut eps = episodes(&[2, 1, 0, 1]);
        eps.steps.set(REWARDS, Tensor::from_values::<f64>([], &[1., 2., -1., 50.]));
        eps.chunks[0].terminated = true;
        eps.chunks[1].truncated = true;
        eps.chunks[2].terminated = true;
        eps
    }

    #[test]
    fn the_figure_above() {
        let piece = NormalizeRewardsByReturnRange::default();
        let mut eps = figure();
        let survey = surveyed(&piece, &eps, &[4]).unwrap();
        assert_eq!(
            NormalizeRewardsByReturnRange::range(&*survey),
            Some(ReturnRange { episodes: 2, min: -1., max: 3. })
        );
        let promise = promised(&piece, &eps).unwrap();
        let batch = apply_surveyed(&piece, &*survey, &mut eps).unwrap();
        assert_promise(&promise, &eps, &batch);
        assert_eq!(eps.steps.get(REWARDS).unwrap().values::<f64>(), [250., 500., -250., 12500.]);
    }

    #[test]
    fn cuts_do_not_matter_and_chunks_are_joined() {
        let piece = NormalizeRewardsByReturnRange { max_episode_steps: 10 };
        let mut eps = episodes(&[3, 2, 4, 1, 2]);
        // The fourth and fifth chunk continue the first one; another episode of that id stands between.
        for (i, (id, begin)) in [("a", 0), ("b", 0), ("a", 0), ("a", 3), ("a", 4)].into_iter().enumerate() {
            eps.chunks[i].id = EpisodeId::Str(id.into());
            eps.chunks[i].t_started = begin;
        }
        for i in [1, 2, 4] {
            eps.chunks[i].terminated = true;
        }
        let rewards: Vec<f64> = (0..12u8).map(|i| f64::from(i) * 0.1).collect();
        eps.steps.set(REWARDS, Tensor::from_values::<f64>([], &rewards));
        let range =
            |ends: &[usize]| NormalizeRewardsByReturnRange::range(&*surveyed(&piece, &eps, ends).unwrap()).unwrap();
        let whole = range(&[5]);
        assert_eq!(whole.episodes, 3);
        let close = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(close(whole.min, 0.7) && close(whole.max, 3.3), "{whole:?}");
        for ends in [vec![1, 2, 3, 4, 5], vec![3, 5], vec![0, 4, 4, 5]] {
            let other = range(&ends);
            assert_eq!((other.min.to_bits(), other.max.to_bits()), (whole.min.to_bits(), whole.max.to_bits()));
        }
    }

    #[test]
    fn a_range_is_needed() {
        let piece = NormalizeRewardsByReturnRange::default();
        let mut eps = figure();
        eps.chunks[1].truncated = false;
        assert!(surveyed(&piece, &eps, &[4]).err().unwrap().what().contains("the return 3"));
        eps.chunks[0].terminated = false;
        assert!(surveyed(&piece, &eps, &[4]).err().unwrap().hint_text().unwrap().contains("unfinished"));
        let empty = surveyed(&piece, &episodes(&[0]), &[1]).unwrap();
        apply_surveyed(&piece, &*empty, &mut episodes(&[0])).unwrap();
        let mut eps = figure();
        eps.steps.set(REWARDS, Tensor::from_values::<f64>([], &[1., f64::NAN, -1., 50.]));
        assert_eq!(surveyed(&piece, &eps, &[4]).err().unwrap().place().episode.as_deref(), Some("e0"));
        eps.steps.set(REWARDS, Tensor::from_values::<f64>([2], &[1.; 8]));
        assert!(promised(&piece, &eps).is_err());
        assert!(NormalizeRewardsByReturnRange { max_episode_steps: 0 }.check().is_err());
    }

    #[test]
    fn added_steps_do_not_part_chunks() {
        let piece = NormalizeRewardsByReturnRange::default();
        let mut eps = episodes(&[2, 1, 1]);
        for (i, begin) in [0, 2, 0].into_iter().enumerate() {
            eps.chunks[i].id = EpisodeId::Int(i64::from(i == 2));
            eps.chunks[i].t_started = begin;
        }
        let module = crate::job::ModuleSettings::default();
        let cx = Context::new(&module, crate::job::Compat::Correct);
        let batch = crate::connectors::testing::apply(&crate::connectors::AddOneTsToEpisodesAndTruncate {}, &mut eps);
        let mut survey = piece.survey(cx).unwrap();
        survey.merge(survey.observe(cx, &eps, &batch.unwrap()).unwrap()).unwrap();
        let found = survey.finish().unwrap();
        // 0 + 1 + 10, and 20
        let want = ReturnRange { episodes: 2, min: 11., max: 20. };
        assert_eq!(NormalizeRewardsByReturnRange::range(&*found), Some(want));
    }
}
