//! The check pass: where malformed episodes are left out, every episode is put together once before anything is made of
//! it, so that no piece, survey or filter ever sees one that is not whole.

use super::budget::Budget;
use super::output::Sizes;
use super::pass::Check;
use super::passes::{Passes, Work, name_episode};
use crate::error::{Error, Result};
use crate::pipeline::{ModulePlan, Pipeline};
use crate::progress::Progress;
use crate::scratch::Scratch;
use crate::source::faults::leave_out;
use crate::source::index::Index;
use crate::source::{Noticed, Source};

/// What a unit's check found.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// Chunks that cannot be put together, by ordinal.
    pub bad: Vec<(u32, Error)>,
    /// What was odd in the others.
    pub noticed: Noticed,
    /// The sum of rewards of each of the others, by ordinal, where that was asked for.
    pub returns: Vec<(u32, f64)>,
}

/// What the check found in all episodes that are left.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// What was odd.
    pub noticed: Noticed,
    /// The sum of rewards of each entry, where that was asked for.
    pub returns: Vec<f64>,
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
        let work = Work { source, index, pipeline, modules, scratch, progress, cuts: None };
        Passes::new(work, budget, Sizes::default())?.sort()?.check(check, |found| {
            bad.extend(found.bad);
            for (ordinal, sum) in found.returns {
                sums[at(ordinal)?] = sum;
            }
            out.noticed.merge(&found.noticed);
            Ok(())
        })?;
        let any = !bad.is_empty();
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
