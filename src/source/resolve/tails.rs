//! Rows without an action that may not be an episode's last: chunks end with them.
//!
//! ```text
//! t          0    1    2    2    3    4        the row at t = 2 without an action has the observation of the step
//! obs        o_0  o_1  o_2  o_2  o_3  o_4      that stands in its place: it is dropped, and nothing is lost. With
//! action     a_0  a_1  null a_2  a_3  null     another observation it is no such row, and the episode malformed.
//! ```

use super::{end_t, overlapping};
use crate::job::Duplicates;
use crate::source::index::Span;
use crate::source::runs::Run;

/// The rows whose observations will be compared: rows without an action, and those in whose place they stand.
pub(super) fn to_print(runs: &[Run], duplicates: Duplicates) -> Vec<Span> {
    let mut sorted: Vec<&Run> = runs.iter().filter(|r| !r.hanging).collect();
    sorted.sort_by_key(|r| (r.t, r.tail, r.span.first()));
    if duplicates == Duplicates::Keep && overlapping_steps(&sorted) {
        // Which copy a row goes with shows only when they are told apart.
        return sorted.iter().map(|r| r.span).collect();
    }
    let mut out = Vec::new();
    // From which `t` on a run's rows are the episode's.
    let mut owners: Vec<(i128, &Run)> = Vec::new();
    let mut end = i128::MIN;
    let mut last: Option<&Run> = None;
    for run in sorted {
        let t = i128::from(run.t);
        if !run.tail {
            if end_t(run) > end {
                owners.push((end.max(t), run));
                end = end_t(run);
            }
            continue;
        }
        let at = owners.partition_point(|(from, _)| *from <= t);
        let owner = at.checked_sub(1).map(|at| owners[at].1).filter(|owner| t < end_t(owner));
        if let Some(owner) = owner {
            out.extend([Span::one(owner.span.row(run.t.abs_diff(owner.t))), run.span]);
        } else if let Some(before) = last.replace(run).filter(|before| before.t == run.t) {
            out.extend([before.span, run.span]);
        }
    }
    out
}

/// Whether steps stand there twice. The runs are sorted by `t`.
fn overlapping_steps(sorted: &[&Run]) -> bool {
    let mut overlaps = overlapping();
    let steps: Vec<&Run> = sorted.iter().copied().filter(|r| !r.tail).collect();
    steps.windows(2).any(|pair| overlaps(&pair[0], &pair[1]))
}
