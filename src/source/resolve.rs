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
//!
//! A log whose environments take turns has a run a row, so everything here is linear in the runs, or nearly.

mod tails;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::HashMap;

use super::Tally;
use super::index::Span;
use super::runs::{Done, Run};
use crate::column::{ACTIONS, OBS, T, TERMINATEDS, TRUNCATEDS};
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
    /// What it holds that is read of a row with an action alone.
    pub unread: Unread,
}

/// What a row holds, other than zeros, that is read of a row with an action alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unread {
    /// A reward.
    pub reward: bool,
    /// A model output, or a next observation.
    pub output: bool,
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
    /// The first of them.
    pub first_duplicate: Option<u64>,
    /// Rewards that came while the agent did not act: the step they are added to, and the row that holds them.
    pub hanging: Vec<(u64, u64)>,
    /// Rows without an action that were dropped, because their observation stands elsewhere, and hold a reward.
    pub unread_rewards: Tally,
    /// The same with model outputs.
    pub unread_outputs: Tally,
}

/// An episode while its rows are put together.
#[derive(Debug, Default)]
struct Growing {
    episode: Resolved,
    /// Of each span, the step that its first row is.
    starts: Vec<u64>,
    steps: u64,
    /// Where the row behind the last step stands in time.
    tail_t: i64,
}

impl Growing {
    fn extend(&mut self, span: Span) {
        match self.episode.spans.last_mut() {
            _ if span.is_empty() => {}
            Some(last) if let Some(joined) = last.joined(span) => *last = joined,
            _ => {
                self.episode.spans.push(span);
                self.starts.push(self.steps);
            }
        }
        self.steps += span.len();
    }

    /// The global row of step `i`.
    fn row(&self, i: u64) -> Option<u64> {
        let at = self.starts.partition_point(|&start| start <= i).checked_sub(1)?;
        let row = self.episode.spans[at].row(i - self.starts[at]);
        (i < self.steps).then_some(row)
    }

    fn drop_rows(&mut self, row: u64, count: u64) {
        if count > 0 {
            self.episode.duplicates += count;
            let first = self.episode.first_duplicate.get_or_insert(row);
            *first = row.min(*first);
        }
    }

    /// Drops a row without an action whose observation stands in another row, too: `known`, or else the one behind the
    /// last step.
    fn drop_tail(
        &mut self,
        run: &Run,
        known: Option<u64>,
        t: Option<i64>,
        prints: &Prints<'_>,
    ) -> Result<(), RowError> {
        let row = run.span.first();
        let located = |error: Error| RowError { error: with_t(error, t), row };
        if known.is_some() && run.done.any() {
            let flag = flag_of(run.done);
            let what = format!("the episode goes on after its end: {flag} is true on a row without an action");
            let error = Error::data(what).column(flag);
            return Err(located(
                error.hint("only the row behind an episode's last step may carry the flag that ends it"),
            ));
        }
        let other = known.or(self.episode.tail).ok_or_else(|| located(Error::internal("no row to compare with")))?;
        let (own, other) = (prints(row).map_err(located)?, prints(other).map_err(located)?);
        if own.obs != other.obs {
            return Err(located(other_observation(known.is_some())));
        }
        if own.unread.reward {
            self.episode.unread_rewards.add(row);
        }
        if own.unread.output {
            self.episode.unread_outputs.add(row);
        }
        self.episode.done = self.episode.done.and(run.done);
        Ok(())
    }

    /// A row without an action: the observation after the last step, and the episode's end where it carries flags.
    fn end_with(&mut self, run: &Run) {
        self.episode.tail = Some(run.span.first());
        self.tail_t = run.t;
        self.episode.done = self.episode.done.and(run.done);
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
    let mut sorted: Vec<&Run> = runs.iter().filter(|r| !r.tail && !r.hanging).collect();
    let tails = runs.iter().filter(|r| r.tail).count();
    if !timed {
        // A lone run repeats nothing, and a lone trailing row behind it is compared with nothing.
        let (steps, tails) = (sorted.len() > 1, tails > 1 || (tails > 0 && sorted.len() > 1));
        return runs.iter().filter(|r| !r.hanging && if r.tail { tails } else { steps }).map(|r| r.span).collect();
    }
    let mut out = if tails > 0 { tails::to_print(runs, duplicates) } else { Vec::new() };
    if sorted.len() < 2 || duplicates == Duplicates::Keep {
        return out;
    }
    // Only where runs cover the same t. Sorted by t, those that overlap form groups without a gap between them.
    sorted.sort_by_key(|r| (r.t, r.span.first()));
    for group in sorted.chunk_by(overlapping()) {
        if group.len() > 1 {
            out.extend(group.iter().map(|r| r.span));
        }
    }
    out
}

/// Whether the next run (by `t`) starts before all that came before it in its group have ended.
fn overlapping() -> impl FnMut(&&Run, &&Run) -> bool {
    let mut end = i128::MIN;
    move |before, next| {
        end = end.max(end_t(before));
        let overlaps = i128::from(next.t) < end;
        if !overlaps {
            end = i128::MIN;
        }
        overlaps
    }
}

/// One past the run's last `t`.
fn end_t(run: &Run) -> i128 {
    i128::from(run.t) + i128::from(run.span.len())
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
        && !run.hanging
    {
        return Ok(vec![Resolved { spans: vec![run.span], t_started: run.t, done: run.done, ..Resolved::default() }]);
    }
    if runs.iter().any(|r| r.hanging) {
        let (hanging, steps): (Vec<Run>, Vec<Run>) = runs.iter().partition(|r| r.hanging);
        let mut out = resolve(&steps, timed, duplicates, prints)?;
        return waiting::attach(&hanging, &mut out).map(|()| out);
    }
    if timed { by_time(runs, duplicates, prints) } else { by_content(runs, duplicates, prints) }
}

fn by_time(runs: &[Run], duplicates: Duplicates, prints: &Prints<'_>) -> Result<Vec<Resolved>, RowError> {
    let mut pending: Vec<Run> = runs.to_vec();
    pending.sort_by_key(|r| (r.t, r.tail, r.span.first()));
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
    let t_started = runs[0].t;
    let mut out = Growing { episode: Resolved { t_started, ..Resolved::default() }, ..Growing::default() };
    // Where rows that are kept as a copy end: a trailing row there may be theirs.
    let mut copies: HashMap<i128, u64> = HashMap::new();
    for run in runs {
        // Counted from the first row, so that no `t` overflows.
        let step = run.t.abs_diff(t_started);
        if let Some(tail) = out.episode.tail
            && run.t > out.tail_t
        {
            return Err(null_inside(tail, Some(out.tail_t)));
        }
        if step > out.steps {
            return Err(gap(step - out.steps, run));
        }
        if run.tail {
            if out.episode.tail.is_none() && step == out.steps {
                out.end_with(run);
            } else if let Some(left) = copies.get_mut(&i128::from(run.t)).filter(|left| **left > 0) {
                *left -= 1;
                again.push(*run);
            } else {
                // Its observation stands there already, as a step's or in another such row.
                out.drop_tail(run, out.row(step), Some(run.t), prints)?;
            }
            continue;
        }
        let overlap = (out.steps - step).min(run.span.len());
        if overlap > 0 && duplicates == Duplicates::Keep {
            let copy = Run { span: run.span.slice(0, overlap), ..*run };
            *copies.entry(end_t(&copy)).or_default() += 1;
            again.push(copy);
        } else {
            for i in 0..overlap {
                let (t, row) = (run.t.saturating_add_unsigned(i), run.span.row(i));
                let located = |error: Error| RowError { error: error.t(t), row };
                let first = out.row(step + i);
                let first = first.ok_or_else(|| located(Error::internal("an overlap beyond the steps so far")))?;
                same(first, row, prints).map_err(located)?;
            }
            out.drop_rows(run.span.first(), overlap);
        }
        if overlap < run.span.len() {
            if out.episode.done.any() {
                return Err(after_the_end(&out, run.span.row(overlap), run.t.checked_add_unsigned(overlap)));
            }
            out.extend(run.span.slice(overlap, u64::MAX));
            out.episode.done = run.done;
        }
    }
    Ok(out.episode)
}

/// What to do about the errors below. Whoever knows job and files says more: see `steps/advice.rs`.
pub(super) const NOT_STEPS: &str =
    "an episode's t must go up by one a row; if the column does not count steps, give it another name";
pub(super) const TWO_ROWS: &str =
    "if episode ids repeat, give every episode its own id; identical rows would have been dropped as duplicates";
pub(super) const ONE_ID: &str = "give every episode its own id";
pub(super) const OUT_OF_ORDER: &str =
    "give every episode its own id; if the rows of an episode are out of order, map its time step to `t`";

fn gap(missing: u64, run: &Run) -> RowError {
    let before = run.t.saturating_sub_unsigned(missing).saturating_sub(1);
    let steps = if missing == 1 { "step is" } else { "steps are" };
    let error = Error::data(format!("t jumps from {before} to {}: {missing} {steps} missing", run.t))
        .t(run.t)
        .column(T)
        .hint(NOT_STEPS);
    RowError { error, row: run.span.first() }
}

/// A row without an action, and steps behind it.
fn null_inside(row: u64, t: Option<i64>) -> RowError {
    let error = Error::data("found null, expected an action: the episode goes on after this row")
        .column(ACTIONS)
        .hint("only the row behind an episode's last step, which holds the last observation, may have no action");
    RowError { error: with_t(error, t), row }
}

fn with_t(error: Error, t: Option<i64>) -> Error {
    match t {
        Some(t) => error.t(t),
        None => error,
    }
}

/// A row without an action that holds another observation than the row that stands in its place.
fn other_observation(inside: bool) -> Error {
    let (what, hint) = if inside {
        (
            "found null, expected an action: the row holds another observation than the step in its place",
            "a row without an action may end a chunk, and then repeats the observation of the next chunk's first row; \
             if this one was a step, its action is missing",
        )
    } else {
        (
            "two rows hold the observation after the last step, and they differ",
            "if episode ids repeat between files, give every episode its own id",
        )
    };
    Error::data(what).column(if inside { ACTIONS } else { OBS }).hint(hint)
}

fn same(first: u64, row: u64, prints: &Prints<'_>) -> Result<()> {
    if prints(first)?.content == prints(row)?.content {
        return Ok(());
    }
    Err(Error::data("two rows of the same episode and t differ").hint(TWO_ROWS))
}

fn after_the_end(so_far: &Growing, row: u64, t: Option<i64>) -> RowError {
    let flag = flag_of(so_far.episode.done);
    let error = Error::data(format!(
        "the episode goes on after its end: {flag} is true on step {}, and other rows follow",
        so_far.steps.max(1) - 1
    ))
    .hint(OUT_OF_ORDER);
    RowError { error: with_t(error, t), row }
}

/// The column of the flag that ended an episode.
fn flag_of(done: Done) -> &'static str {
    if done.terminated { TERMINATEDS } else { TRUNCATEDS }
}

fn by_content(runs: &[Run], duplicates: Duplicates, prints: &Prints<'_>) -> Result<Vec<Resolved>, RowError> {
    // One run repeats nothing, and its rows were not printed.
    let compare = runs.iter().filter(|r| !r.tail).count() > 1;
    let mut finished = Vec::new();
    let mut episode = Growing::default();
    let mut contents = Contents::default();
    // The row that stands behind those that the run before repeated, if that is a step.
    let mut behind: Option<u64> = None;
    for run in runs {
        if run.tail {
            match episode.episode.tail {
                Some(tail) if episode.steps == 0 => return Err(null_inside(tail, None)),
                None if behind.is_none() => episode.end_with(run),
                _ => episode.drop_tail(run, behind, None, prints)?,
            }
            continue;
        }
        behind = None;
        if !compare {
            if let Some(tail) = episode.episode.tail {
                return Err(null_inside(tail, None));
            }
            episode.extend(run.span);
            episode.episode.done = run.done;
            continue;
        }
        let located = |error: Error| RowError { error, row: run.span.first() };
        let rows = (0..run.span.len()).map(|i| prints(run.span.row(i))).collect::<Result<Vec<_>>>().map_err(located)?;
        let ended = episode.episode.done.any() || episode.episode.tail.is_some();
        let continues = match episode.episode.spans.last() {
            None => true,
            Some(last) => {
                let last = prints(last.end() - 1).map_err(located)?;
                !ended && last.next_obs.is_some_and(|o| o == rows[0].obs)
            }
        };
        let repeated = contents.repeated_by(&rows).filter(|&(at, n)| {
            let whole = at == 0 && n == contents.rows.len() && n >= 2;
            ended || whole || !continues
        });
        let dropped = match repeated {
            None if ended => return Err(beyond(&episode, run.span.first())),
            None => 0,
            Some(_) if duplicates == Duplicates::Keep => {
                finished.push(std::mem::take(&mut episode).episode);
                contents = Contents::default();
                0
            }
            Some((at, n)) => {
                behind = Some(at + n).filter(|_| n == rows.len()).and_then(|next| episode.row(next as u64));
                n
            }
        };
        if ended && dropped < rows.len() && dropped > 0 {
            return Err(beyond(&episode, run.span.row(dropped as u64)));
        }
        episode.drop_rows(run.span.first(), dropped as u64);
        if dropped < rows.len() {
            episode.extend(run.span.slice(dropped as u64, u64::MAX));
            episode.episode.done = run.done;
            contents.extend(&rows[dropped..]);
        }
    }
    finished.push(episode.episode);
    Ok(finished)
}

/// Rows that follow what ended the episode.
fn beyond(so_far: &Growing, row: u64) -> RowError {
    match so_far.episode.tail {
        Some(tail) if !so_far.episode.done.any() => null_inside(tail, None),
        _ => after_the_end(so_far, row, None),
    }
}

/// What the rows of an episode hold, and where each content stands first.
#[derive(Debug, Default)]
struct Contents {
    rows: Vec<u128>,
    places: HashMap<u128, Vec<usize>>,
}

impl Contents {
    fn extend(&mut self, rows: &[RowPrint]) {
        for row in rows {
            self.places.entry(row.content).or_default().push(self.rows.len());
            self.rows.push(row.content);
        }
    }

    /// Where `rows` repeats them: the place, and for how many rows until one of both ends.
    fn repeated_by(&self, rows: &[RowPrint]) -> Option<(usize, usize)> {
        let matches = |&&at: &&usize| self.rows[at..].iter().zip(rows).all(|(a, b)| *a == b.content);
        let at = *self.places.get(&rows.first()?.content)?.iter().find(matches)?;
        Some((at, rows.len().min(self.rows.len() - at)))
    }
}
