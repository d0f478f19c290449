//! Where the data set is cut into parts.

use std::ops::Range;

use super::super::budget::Budget;
use super::super::output::Sizes;
use super::super::passes;
use super::super::prepare::Prepared;
use super::super::shuffle::Shuffle;
use super::super::units::{self, Cut, Cuts, Size};
use super::coordinator::Tasks;
use super::rows::Segment;
use crate::error::Result;
use crate::job::Job;
use crate::progress::Silent;

/// One part of so many of the coordinator's memory is for what it knows of rows in a shuffled order: it is there as tasks
/// told it, by bucket, and as other tasks are told.
const KNOWN: usize = 16;

/// Where units and the buckets of a shuffled order are cut, so that tasks have room for them.
pub(super) fn cut(job: &Job, prepared: &Prepared, sizes: Sizes, tasks: Tasks) -> Result<(Cuts, Vec<Shuffle>)> {
    let Prepared { source, pipeline, index, modules, .. } = prepared;
    let budget = Budget::new(Some(tasks.memory_limit), tasks.threads.max(1))?;
    let needs = passes::needs(&**source, index, pipeline, modules, sizes);
    let fits = |budget: Budget| budget.share(0, &needs).is_ok();
    let limits = budget.share(0, &needs).map_err(|e| budget.with_enough(e, fits))?;
    let step_bytes = needs.step_in.max(needs.step_out).max(1);
    let weight: u64 = index.entries.iter().map(|e| units::weight(e, needs.period)).sum();
    let all = usize::try_from(weight).unwrap_or(usize::MAX).saturating_mul(step_bytes);
    let unit_bytes = all.div_ceil(tasks.parts.max(1)).clamp(1, limits.unit_bytes);
    let steps = (unit_bytes / step_bytes).max(1) as u64;
    let slicing = prepared.work(&Silent).slicing();
    let units = units::cut(index, Size { period: needs.period, steps, most: limits.unit_steps, slicing: &slicing });
    let cuts = Cuts { first: 0, units: units.into_iter().map(|unit| unit.cut).collect() };
    let room = limits.piece_bytes / modules.len().max(1);
    // Of each bucket, the coordinator knows where each part has its rows.
    let columns = modules.iter().map(|m| m.layout.columns.len()).max().unwrap_or(0);
    let a_bucket = Segment::bytes_known(columns) * tasks.parts.max(1) * modules.len().max(1);
    // A task that makes shards sorts every bucket of which it has a row: there are as many as tasks at least.
    let most = (prepared.budget.limit() / KNOWN / a_bucket).max(tasks.parts.saturating_mul(2));
    let order = |seed: u64| {
        passes::bytes_out(index, modules).into_iter().map(|bytes| Shuffle::new(seed, bytes, room, most)).collect()
    };
    Ok((cuts, job.output.shuffle.as_ref().map(|shuffle| order(shuffle.seed)).unwrap_or_default()))
}

/// Units as parts of about the same number of steps.
pub(super) fn share(cuts: &Cuts, prepared: &Prepared, parts: usize) -> Vec<Range<usize>> {
    // Many empty episodes are work, too.
    let weight = |cut: &Cut| cut.steps(&prepared.index) + cut.entries.len() as u64;
    let a_part = cuts.units.iter().map(weight).sum::<u64>().div_ceil(parts.max(1) as u64).max(1);
    let (mut out, mut start, mut done): (Vec<Range<usize>>, _, _) = (Vec::new(), 0, 0);
    for (unit, cut) in cuts.units.iter().enumerate() {
        done += weight(cut);
        if done >= a_part * (out.len() as u64 + 1) || unit + 1 == cuts.units.len() {
            out.push(start..unit + 1);
            start = unit + 1;
        }
    }
    out
}
