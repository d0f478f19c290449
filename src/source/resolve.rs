//! From runs of rows to episodes: order in time, duplicates, gaps, conflicts.
//!
//! RLlib's recorder writes rows again: without `output_max_rows_per_file` every `sample()` call writes all earlier
//! rows once more (`offline_env_runner.py`), and its column format has no `t`. So a repetition is recognised by
//! content. With `t`, rows at the same `t` must be equal. Without it, a run is a repetition when its rows equal the
//! rows that stand at some place of the episode already, up to the end of either:
//!
//! ```text
//! so far   r0 r1 r2        run  r0 r1 r2 r3 r4      -> r0 r1 r2 are dropped, r3 r4 go on
//! so far   r0 r1 r2        run  r1 r2               -> dropped
//! so far   r0 r1 r2        run  r3 r4               -> goes on
//! so far   r0 r1 r2 done   run  q0 q1               -> error: the id was used again
//! ```
//!
//! An environment may truly do the same thing twice. A run that continues the last observation is therefore taken
//! for a continuation, unless it repeats the whole episode so far (two rows or more).

use std::ops::Range;

use super::index::Span;
use super::runs::{Done, Run};
use crate::error::{Error, Result};
use crate::job::Duplicates;

/// What two rows are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowPrint {
    /// Of everything recorded in the row.
    pub content: u128,
    /// Of its observation.
    pub obs: u64,
    /// Of the observation after it, where recorded.
    pub next_obs: Option<u64>,
}

/// Looks up the print of a global row.
pub type Prints<'a> = dyn Fn(u64) -> Result<RowPrint> + 'a;

/// One episode made of runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolved {
    /// Its rows in time order.
    pub spans: Vec<Span>,
    /// `t` of its first row.
    pub t_started: i64,
    /// Flags of its last row.
    pub done: Done,
    /// The row with the observation after the last step only.
    pub tail: Option<u64>,
    /// Rows that were dropped as duplicates.
    pub duplicates: u64,
}

impl Resolved {
    fn steps(&self) -> u64 {
        self.spans.iter().map(|s| s.len).sum()
    }

    fn extend(&mut self, span: Span) {
        match self.spans.last_mut() {
            Some(last) if last.row + last.len == span.row => last.len += span.len,
            _ if span.len > 0 => self.spans.push(span),
            _ => {}
        }
    }

    /// The global row of step `i`.
    fn row(&self, mut i: u64) -> u64 {
        for span in &self.spans {
            if i < span.len {
                return span.row + i;
            }
            i -= span.len;
        }
        unreachable!("callers stay below steps()")
    }
}

/// An error about rows, to be completed with file and row by the caller.
#[derive(Debug)]
pub struct RowError {
    /// What is wrong.
    pub error: Error,
    /// The global row it is about.
    pub row: u64,
}

/// The rows whose prints [`resolve`] will ask for.
#[must_use]
pub fn rows_to_print(runs: &[Run], timed: bool, duplicates: Duplicates) -> Vec<Span> {
    let tail_only = |r: &&Run| !r.tail;
    if runs.iter().filter(tail_only).count() < 2 {
        return Vec::new();
    }
    if !timed {
        return runs.iter().filter(tail_only).map(|r| r.span).collect();
    }
    if duplicates == Duplicates::Keep {
        return Vec::new();
    }
    // Only where two runs cover the same t. Sorted by t, a run overlaps what came before it up to `end`.
    let mut sorted: Vec<&Run> = runs.iter().filter(tail_only).collect();
    sorted.sort_by_key(|r| (r.t, r.span.row));
    let mut out = Vec::new();
    let mut end = i64::MIN;
    for (i, run) in sorted.iter().enumerate() {
        if run.t < end {
            out.push(run.span);
            // All earlier runs that reach into this one.
            out.extend(sorted[..i].iter().filter(|r| t_range(r).end > run.t).map(|r| r.span));
        }
        end = end.max(t_range(run).end);
    }
    out.sort_by_key(|s| (s.row, s.len));
    out.dedup();
    out
}

fn t_range(run: &Run) -> Range<i64> {
    run.t..run.t.saturating_add(i64::try_from(run.span.len).unwrap_or(i64::MAX))
}

/// The episodes that `runs` (all of one id, in row order) make up: one, or more where duplicates are kept.
///
/// # Errors
/// For a gap in `t`, rows after the end, or rows that contradict each other.
pub fn resolve(
    runs: &[Run],
    timed: bool,
    duplicates: Duplicates,
    prints: &Prints<'_>,
) -> Result<Vec<Resolved>, RowError> {
    if let [run] = runs
        && !run.tail
    {
        return Ok(vec![Resolved { spans: vec![run.span], t_started: run.t, done: run.done, ..Resolved::default() }]);
    }
    if timed { by_time(runs, duplicates, prints) } else { by_content(runs, duplicates, prints) }
}

fn by_time(runs: &[Run], duplicates: Duplicates, prints: &Prints<'_>) -> Result<Vec<Resolved>, RowError> {
    let mut pending: Vec<Run> = runs.to_vec();
    pending.sort_by_key(|r| (r.t, r.tail, r.span.row));
    let mut out = Vec::new();
    while !pending.is_empty() {
        let mut again = Vec::new();
        let episode = one_by_time(&pending, duplicates, prints, &mut again)?;
        // A lone repeated tail row is no episode of its own.
        if !episode.spans.is_empty() || out.is_empty() {
            out.push(episode);
        }
        pending = again;
    }
    Ok(out)
}

fn one_by_time(
    runs: &[Run],
    duplicates: Duplicates,
    prints: &Prints<'_>,
    again: &mut Vec<Run>,
) -> Result<Resolved, RowError> {
    let mut out = Resolved { t_started: runs[0].t, ..Resolved::default() };
    for run in runs {
        let end = out.t_started.saturating_add(i64::try_from(out.steps()).unwrap_or(i64::MAX));
        if run.tail {
            if out.tail.is_some() || run.t < end {
                out.duplicates += 1; // a second record of an observation that stands there already
            } else if run.t > end {
                return Err(gap(end, run));
            } else {
                out.tail = Some(run.span.row);
            }
            continue;
        }
        if run.t > end {
            return Err(gap(end, run));
        }
        let overlap = u64::try_from(end - run.t).unwrap_or(0).min(run.span.len);
        if overlap > 0 && duplicates == Duplicates::Keep {
            again.push(Run { span: Span { len: overlap, ..run.span }, ..*run });
        } else {
            for i in 0..overlap {
                let (t, row) = (run.t + i64::try_from(i).unwrap_or(i64::MAX), run.span.row + i);
                let first = out.row(u64::try_from(t - out.t_started).unwrap_or(0));
                same(first, row, prints).map_err(|e| RowError { error: e.t(t), row })?;
            }
            out.duplicates += overlap;
        }
        if overlap < run.span.len {
            if out.done.any() || out.tail.is_some() {
                return Err(after_the_end(&out, run.span.row + overlap, Some(end)));
            }
            out.extend(Span { row: run.span.row + overlap, len: run.span.len - overlap });
            out.done = run.done;
        }
    }
    Ok(out)
}

fn gap(end: i64, run: &Run) -> RowError {
    let missing = run.t - end;
    let error = Error::data(format!("t jumps from {} to {}: {missing} step(s) are missing", end - 1, run.t))
        .t(run.t)
        .hint("an episode's t must go up by one a row; leave `t` unmapped to take rows in file order");
    RowError { error, row: run.span.row }
}

fn same(first: u64, row: u64, prints: &Prints<'_>) -> Result<()> {
    if prints(first)?.content == prints(row)?.content {
        return Ok(());
    }
    Err(Error::data("two rows of the same episode and t differ")
        .hint("if episode ids repeat between files, give every episode its own id; identical rows would have been dropped as duplicates"))
}

fn after_the_end(so_far: &Resolved, row: u64, t: Option<i64>) -> RowError {
    let flag = match so_far.done {
        Done { terminated: true, .. } => "terminateds is true",
        Done { truncated: true, .. } => "truncateds is true",
        Done { .. } => "a row with a null action ended the episode",
    };
    let error = Error::data(format!(
        "the episode goes on after its end: {flag} on step {}, and other rows follow",
        so_far.steps().max(1) - 1
    ))
    .hint("give every episode its own id; if the rows of an episode are out of order, map its time step to `t`");
    RowError {
        error: match t {
            Some(t) => error.t(t),
            None => error,
        },
        row,
    }
}

fn by_content(runs: &[Run], duplicates: Duplicates, prints: &Prints<'_>) -> Result<Vec<Resolved>, RowError> {
    let mut finished = Vec::new();
    let mut episode = Resolved::default();
    let mut contents: Vec<u128> = Vec::new();
    for run in runs {
        if run.tail {
            if episode.tail.is_some() {
                episode.duplicates += 1;
            } else {
                episode.tail = Some(run.span.row);
            }
            continue;
        }
        let located = |error: Error| RowError { error, row: run.span.row };
        let rows =
            (run.span.row..run.span.row + run.span.len).map(prints).collect::<Result<Vec<_>>>().map_err(located)?;
        let ended = episode.done.any() || episode.tail.is_some();
        let continues = match episode.spans.last() {
            None => true,
            Some(last) => {
                let last = prints(last.row + last.len - 1).map_err(located)?;
                !ended && last.next_obs.is_some_and(|o| o == rows[0].obs)
            }
        };
        let repeated = repetition(&contents, &rows).filter(|&(at, n)| {
            let whole = at == 0 && n == contents.len() && n >= 2;
            ended || whole || !continues
        });
        let dropped = match repeated {
            None if ended => return Err(after_the_end(&episode, run.span.row, None)),
            None => 0,
            Some((_, n)) if duplicates == Duplicates::Keep => {
                let _ = n;
                finished.push(std::mem::take(&mut episode));
                contents.clear();
                0
            }
            Some((_, n)) => n,
        };
        if ended && dropped < rows.len() && dropped > 0 {
            return Err(after_the_end(&episode, run.span.row + dropped as u64, None));
        }
        episode.duplicates += dropped as u64;
        if dropped < rows.len() {
            episode.extend(Span { row: run.span.row + dropped as u64, len: run.span.len - dropped as u64 });
            episode.done = run.done;
            contents.extend(rows[dropped..].iter().map(|p| p.content));
        }
    }
    finished.push(episode);
    Ok(finished)
}

/// Where `rows` repeats `contents`: the place, and for how many rows until one of them ends.
fn repetition(contents: &[u128], rows: &[RowPrint]) -> Option<(usize, usize)> {
    let matches = |&at: &usize| contents[at..].iter().zip(rows).all(|(a, b)| *a == b.content);
    (0..contents.len()).find(matches).map(|at| (at, rows.len().min(contents.len() - at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(row: u64, len: u64, t: i64, terminated: bool) -> Run {
        Run { episode: 0, span: Span { row, len }, t, done: Done { terminated, truncated: false }, tail: false }
    }

    /// Rows with the given contents; `obs` of row i is `obs[i]`, its next observation `obs[i] + 1`.
    fn prints<'a>(contents: &'a [u128], obs: &'a [u64]) -> impl Fn(u64) -> Result<RowPrint> + 'a {
        move |row| {
            let i = usize::try_from(row).unwrap();
            Ok(RowPrint { content: contents[i], obs: obs[i], next_obs: Some(obs[i] + 1) })
        }
    }

    fn spans(resolved: &[Resolved]) -> Vec<Vec<(u64, u64)>> {
        resolved.iter().map(|r| r.spans.iter().map(|s| (s.row, s.len)).collect()).collect()
    }

    const DROP: Duplicates = Duplicates::Drop;

    #[test]
    fn rows_out_of_order_are_sorted_by_t() {
        let runs = [run(0, 2, 11, true), run(5, 3, 0, false), run(8, 8, 3, false)];
        let out = resolve(&runs, true, DROP, &prints(&[], &[])).unwrap();
        assert_eq!(spans(&out), [[(5, 11), (0, 2)]]);
        assert!(out[0].done.terminated);
    }

    #[test]
    fn a_gap_is_an_error() {
        let error = resolve(&[run(0, 2, 0, false), run(2, 1, 4, true)], true, DROP, &prints(&[], &[])).unwrap_err();
        assert_eq!(error.error.what(), "t jumps from 1 to 4: 2 step(s) are missing");
        assert_eq!(error.row, 2);
    }

    #[test]
    fn equal_rows_at_one_t_are_dropped_and_unequal_ones_refused() {
        let runs = [run(0, 3, 0, false), run(3, 3, 1, true)];
        let out = resolve(&runs, true, DROP, &prints(&[1, 2, 3, 2, 3, 4], &[0; 6])).unwrap();
        assert_eq!((spans(&out), out[0].duplicates), (vec![vec![(0, 3), (5, 1)]], 2));
        let error = resolve(&runs, true, DROP, &prints(&[1, 2, 3, 2, 9, 4], &[0; 6])).unwrap_err();
        assert_eq!((error.error.place().t, error.row), (Some(2), 4));
        let kept = resolve(&runs, true, Duplicates::Keep, &prints(&[], &[])).unwrap();
        assert_eq!(spans(&kept), [vec![(0, 3), (5, 1)], vec![(3, 2)]]);
    }

    #[test]
    fn the_recorders_prefixes_are_dropped() {
        // Three files: [a], [a b], [a b c]; the last one is terminated.
        let runs = [run(0, 2, 0, false), run(2, 4, 0, false), run(6, 6, 0, true)];
        let contents = [1, 2, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6];
        let obs = [0, 1, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5];
        let out = resolve(&runs, false, DROP, &prints(&contents, &obs)).unwrap();
        assert_eq!((spans(&out), out[0].duplicates), (vec![vec![(0, 2), (4, 2), (10, 2)]], 6));
        assert!(out[0].done.terminated);
        let kept = resolve(&runs, false, Duplicates::Keep, &prints(&contents, &obs)).unwrap();
        assert_eq!(spans(&kept), [vec![(0, 2)], vec![(2, 4)], vec![(6, 6)]]);
    }

    #[test]
    fn a_chunk_that_goes_on_is_no_duplicate() {
        // A corridor where the same thing happens at every step, recorded one row a file: obs 5 -> 6 is never equal
        // to the next row's 5, so rows that repeat are dropped; where the observation does continue, they stay.
        let runs = [run(0, 1, 0, false), run(1, 1, 0, false)];
        let still = |_: u64| Ok(RowPrint { content: 7, obs: 5, next_obs: Some(5) });
        assert_eq!(spans(&resolve(&runs, false, DROP, &still).unwrap()), [[(0, 2)]]);
        let out = resolve(&runs, false, DROP, &prints(&[7, 7], &[5, 5])).unwrap();
        assert_eq!((spans(&out), out[0].duplicates), (vec![vec![(0, 1)]], 1));
    }

    #[test]
    fn an_id_that_is_used_again_is_refused() {
        let runs = [run(0, 2, 0, true), run(2, 2, 0, true)];
        let error = resolve(&runs, false, DROP, &prints(&[1, 2, 3, 4], &[0, 1, 0, 1])).unwrap_err();
        assert!(error.error.what().contains("goes on after its end"), "{}", error.error);
        let out = resolve(&runs, false, DROP, &prints(&[1, 2, 1, 2], &[0, 1, 0, 1])).unwrap();
        assert_eq!((spans(&out), out[0].duplicates), (vec![vec![(0, 2)]], 2));
    }

    #[test]
    fn prints_are_asked_for_only_where_needed() {
        assert!(rows_to_print(&[run(0, 5, 0, true)], false, DROP).is_empty());
        assert!(rows_to_print(&[run(0, 5, 0, false), run(9, 5, 5, true)], true, DROP).is_empty());
        assert_eq!(rows_to_print(&[run(0, 5, 0, false), run(9, 5, 4, true)], true, DROP).len(), 2);
        assert_eq!(rows_to_print(&[run(0, 5, 0, false), run(9, 5, 0, true)], false, DROP).len(), 2);
    }
}
