//! The check pass: where malformed episodes are left out, every episode is put together once before anything is made of
//! it, so that no piece, survey or filter ever sees one that is not whole.

use std::collections::HashSet;

use super::budget::Budget;
use super::output::Sizes;
use super::pass::Check;
use super::passes::{Passes, Work, name_episode};
use crate::episode::EpisodeBatch;
use crate::error::{Error, Result};
use crate::pipeline::{ModulePlan, Pipeline};
use crate::progress::Progress;
use crate::scratch::Scratch;
use crate::source::faults::leave_out;
use crate::source::index::{Entry, Index, Span};
use crate::source::{Noticed, Source, Tally};

/// What a unit's check found.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// Chunks that cannot be put together, by ordinal.
    pub bad: Vec<(u32, Error)>,
    /// What was odd in the others.
    pub noticed: Noticed,
    /// The same of slices, by ordinal: others of the same chunk may be bad.
    pub of_slices: Vec<(u32, Noticed)>,
    /// The sum of rewards of each of the others, by ordinal, where that was asked for.
    pub returns: Vec<(u32, Summed)>,
    /// Rewards of those that are NaN or infinite.
    pub not_finite: Tally,
}

/// Rewards of a chunk, step by step in float64.
#[derive(Debug)]
pub(super) enum Summed {
    /// From its first step on.
    Started(f64),
    /// What comes behind: a slice. Sums of slices would be rounded in other places than the sum of the chunk.
    GoesOn(Vec<f64>),
}

impl Summed {
    /// Goes on with the sum of the chunk so far.
    pub fn add_to(self, sum: &mut f64) {
        match self {
            Self::Started(own) => *sum = own,
            Self::GoesOn(rewards) => rewards.into_iter().for_each(|r| *sum += r),
        }
    }

    /// Those of every chunk of a batch whose first one begins at `start`.
    ///
    /// # Errors
    /// If rewards are not one number a step.
    pub fn of(episodes: &EpisodeBatch, start: u64) -> Result<Vec<Self>> {
        if start > 0 {
            return Ok(vec![Self::GoesOn(episodes.rewards()?.values::<f64>().to_vec())]);
        }
        Ok(episodes.returns()?.into_iter().map(Self::Started).collect())
    }
}

/// Rewards of entries that are NaN or infinite; `sums` are the entries' own.
pub(super) fn not_finite(
    entries: &[&Entry],
    episodes: &EpisodeBatch,
    sums: &[Summed],
    spans: &[Span],
) -> Result<Tally> {
    let mut out = Tally::default();
    for (i, (entry, sum)) in entries.iter().zip(sums).enumerate() {
        // A sum of finite rewards may be infinite, but nothing else makes a sum that is finite.
        if matches!(sum, Summed::Started(sum) if sum.is_finite()) {
            continue;
        }
        let rewards = episodes.rewards()?;
        let own = &rewards.values::<f64>()[episodes.rows(i)];
        let odd = (0..).zip(own).filter(|(_, r)| !r.is_finite());
        odd.for_each(|(step, _)| out.merge(&Tally { count: 1, first: row_of(entry, spans, step) }));
    }
    Ok(out)
}

/// The row of an entry's step: where a row is a chunk, that of the chunk.
fn row_of(entry: &Entry, spans: &[Span], mut step: u64) -> Option<u64> {
    let own = entry.spans(spans);
    let found = own.iter().find_map(|span| {
        let row = (step < span.len()).then(|| span.row(step));
        step = step.saturating_sub(span.len());
        row
    });
    found.or(own.first().map(|span| span.first()))
}

/// What the check found in all episodes that are left.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// What was odd.
    pub noticed: Noticed,
    /// The sum of rewards of each entry, where that was asked for.
    pub returns: Vec<f64>,
    /// The same: rewards that are NaN or infinite.
    pub not_finite: Tally,
}

/// What the check needs beside the index, which it changes.
#[derive(Clone, Copy)]
pub(super) struct Checker<'a> {
    pub source: &'a dyn Source,
    pub pipeline: &'a Pipeline,
    pub modules: &'a [ModulePlan],
    pub scratch: &'a Scratch,
    pub progress: &'a dyn Progress,
}

impl Checker<'_> {
    /// Takes the episodes that cannot be put together out of the index.
    ///
    /// # Errors
    /// If reading fails for a reason that is not the data's.
    pub fn check(self, index: &mut Index, budget: Budget, check: Check) -> Result<Outcome> {
        let at = index.by_ordinal();
        let mut out = Outcome::default();
        let mut sums = vec![0.0; if check.returns { index.entries.len() } else { 0 }];
        let mut bad: Vec<(u32, Error)> = Vec::new();
        let Self { source, pipeline, modules, scratch, progress } = self;
        let work = Work { source, index, pipeline, modules, scratch, progress, cuts: None, pieces: check.pieces };
        let mut of_slices: Vec<(u32, Noticed)> = Vec::new();
        Passes::new(work, budget, Sizes::default())?.sort()?.check(check, |found| {
            bad.extend(found.bad);
            for (ordinal, sum) in found.returns {
                sum.add_to(&mut sums[at(ordinal)?]);
            }
            of_slices.extend(found.of_slices);
            out.noticed.merge(&found.noticed);
            out.not_finite.merge(&found.not_finite);
            Ok(())
        })?;
        let any = !bad.is_empty();
        let bad_ones: HashSet<u32> = bad.iter().map(|(ordinal, _)| *ordinal).collect();
        let good = of_slices.iter().filter(|(ordinal, _)| !bad_ones.contains(ordinal));
        good.for_each(|(_, noticed)| out.noticed.merge(noticed));
        for (ordinal, error) in bad {
            let id = index.entries[at(ordinal)?].id.clone();
            let error = name_episode(error, source, index);
            index.faults.episode(&id, error);
        }
        let kept = |i: &usize| !index.faults.has(&index.entries[*i].id);
        out.returns = (0..sums.len()).filter(kept).map(|i| sums[i]).collect();
        if any {
            leave_out(index)?;
        }
        Ok(out)
    }
}
