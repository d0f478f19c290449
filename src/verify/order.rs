//! What must hold from one row to the next: time goes on in an episode, and its flags stand at its end.

use super::CheckName::{Flags, Time};
use super::Place;
use super::rules::{Advance, Rules};
use super::tally::Tally;
use crate::column::T;
use crate::dataset::Ids;
use crate::episode::EpisodeId;
use crate::error::{Error, Result};
use crate::sink::RowGroupData;
use crate::tensor::Tensor;

/// The row before.
#[derive(Debug, Clone, PartialEq)]
struct Before {
    id: EpisodeId,
    agent: Option<EpisodeId>,
    t: i64,
    len: usize,
    /// A flag was true, and no step of another chunk came since.
    done: bool,
}

/// Goes over a module's rows in order.
pub(super) struct Walker<'a> {
    rules: &'a Rules,
    before: Option<Before>,
    steps: u64,
}

impl<'a> Walker<'a> {
    pub fn new(rules: &'a Rules) -> Self {
        Self { rules, before: None, steps: 0 }
    }

    /// Rows are missing here: what follows cannot be held against what came before.
    pub fn forget(&mut self) {
        self.before = None;
    }

    /// Real steps so far, where each stands in one place.
    pub fn real_steps(&self) -> Option<u64> {
        self.rules.countable.then_some(self.steps)
    }

    pub fn walk(&mut self, data: &RowGroupData, place: &Place<'_>, tally: &mut Tally) -> Result<()> {
        let rules = self.rules;
        let tensor = |at: Option<usize>| at.and_then(|at| data.columns[at].tensor());
        let (mask, lens, t) = (tensor(rules.loss_mask), tensor(rules.seq_lens), tensor(rules.t));
        let eps = rules.eps_id.map(|at| Ids::of(&data.columns[at])).transpose()?;
        let agents = rules.agent_id.map(|at| Ids::of(&data.columns[at])).transpose()?;
        let flags: Vec<&Tensor> = rules.flags.iter().filter_map(|&at| data.columns[at].tensor()).collect();
        for row in 0..data.rows {
            let len = lens.map_or(1, |l| usize::try_from(l.values::<i64>()[row]).unwrap_or(0).min(rules.places));
            self.steps += mask.map_or(len, |m| m.row(row).iter().filter(|b| **b != 0).count()) as u64;
            let (Some(t), Some(eps)) = (t.map(|t| t.values::<i64>()[row]), eps) else { continue };
            let of_agent = |b: &Before| agents.is_none_or(|a| b.agent.as_ref().is_some_and(|id| a.is(row, id)));
            let same = |b: &Before| eps.is(row, &b.id) && of_agent(b);
            let own = |e: Error| place.at(row, e).episode(eps.text(row).into_owned()).t(t);
            let mut done = false;
            let mut before = self.before.take();
            if let Some(before) = before.as_mut().filter(|b| same(b)) {
                let least = match rules.advance {
                    Advance::Rises => before.t,
                    Advance::Whole => before.t.saturating_add(i64::try_from(before.len).unwrap_or(i64::MAX)),
                };
                if t < least {
                    let what = format!("found t = {t} after a row with t = {}, expected {least} or more", before.t);
                    tally.fail(Time, own(Error::data(what)).column(T));
                } else {
                    done = before.done;
                }
                (before.t, before.len) = (t, len);
            } else {
                let agent = agents.map(|a| a.id(row));
                before = Some(Before { id: eps.id(row), agent, t, len, done: false });
            }
            let mut told = false;
            for p in 0..len {
                if mask.is_some_and(|m| m.row(row).get(p) == Some(&0)) {
                    // A step that a piece added stands at the end of a recorded chunk.
                    done = false;
                    continue;
                }
                if done && !told {
                    let what =
                        "found a step after one with terminateds or truncateds, expected the episode to end there";
                    tally.fail(Flags, own(Error::data(what)));
                    told = true;
                }
                done |= flags.iter().any(|f| f.row(row).get(p).is_some_and(|b| *b != 0));
            }
            // Padding has no flag: it is zero, which is checked as padding.
            if let Some(before) = &mut before {
                before.done = done;
            }
            self.before = before;
        }
        Ok(())
    }
}
