//! Rewards of agents that wait: rows that neither observe nor act.
//!
//! ```text
//! row      0    1     2     3    4          rewards of the steps
//! obs      o_0  null  null  o_1  o_2
//! reward   r_0  x     y     r_1  r_2        r_0 + x + y   r_1   r_2
//! ```

use super::{Resolved, RowError};
use crate::error::Error;
use crate::source::index::Span;
use crate::source::runs::Run;

/// Adds rewards that came while the agent did not act to the step whose action came before them, as RLlib's
/// `MultiAgentEpisode.add_env_step` does once the agent's next observation completes that step. What came before its first
/// action, which RLlib leaves out of the agent's episode, is added to the first step.
///
/// # Errors
/// If the order of rows does not tell which step that is, or steps follow an end.
pub(super) fn attach(hanging: &[Run], episodes: &mut [Resolved]) -> Result<(), RowError> {
    if let (Some(run), Some(found)) = (hanging.first(), unordered(episodes)) {
        let what = format!("found a reward of an agent that waits, in an episode whose rows are {found}");
        let error = Error::data(what).column(crate::column::REWARDS);
        let hint =
            "it belongs to the step before it, which the order of rows alone tells: sort the rows by time, each once";
        return Err(RowError { error: error.hint(hint), row: run.span.first() });
    }
    let Some(episode) = episodes.iter_mut().find(|e| !e.spans.is_empty()) else {
        let Some(run) = hanging.first() else { return Ok(()) };
        let error = Error::data("found a reward of an agent that never acts").column(crate::column::REWARDS);
        return Err(RowError { error, row: run.span.first() });
    };
    let spans = &episode.spans;
    // Of each span, the step that its first row is.
    let starts: Vec<u64> = spans.iter().scan(0, |sum, s| Some(std::mem::replace(sum, *sum + s.len()))).collect();
    let steps: u64 = spans.iter().map(|s| s.len()).sum();
    for run in hanging {
        let row = run.span.first();
        let next = spans.partition_point(|s| s.end() <= row + 1);
        let rows_up_to = |s: &Span| row.checked_sub(s.first()).map_or(0, |behind| behind / s.stride() + 1);
        let before = spans.get(next).map_or(steps, |s| starts[next] + rows_up_to(s));
        let step = before.saturating_sub(1);
        episode.hanging.push((step, row));
        // The flags of such a row are the agent's, too: it may die without having acted again.
        if run.done.any() {
            if before < steps {
                return Err(RowError { error: Error::data("found the end of an episode before its last step"), row });
            }
            episode.done = episode.done.and(run.done);
        }
    }
    // Rewards of one step are added in the order of their rows.
    episode.hanging.sort_by_key(|(step, _)| *step);
    Ok(())
}

/// What is wrong with the order of an id's rows, if anything is.
fn unordered(episodes: &[Resolved]) -> Option<&'static str> {
    let there = || episodes.iter().filter(|e| !e.spans.is_empty());
    if there().count() > 1 || there().any(|e| e.duplicates > 0) {
        return Some("recorded twice");
    }
    let in_order = |e: &Resolved| e.spans.windows(2).all(|pair| pair[0].end() <= pair[1].first());
    (!there().all(in_order)).then_some("out of order")
}

#[cfg(test)]
mod tests {
    use super::super::{RowPrint, Unread, resolve};
    use super::*;
    use crate::job::Duplicates;
    use crate::source::runs::Done;

    const DROP: Duplicates = Duplicates::Drop;

    fn run(row: u64, len: u64, t: i64, terminated: bool) -> Run {
        let done = Done { terminated, truncated: false };
        Run { episode: 0, span: Span::new(row, len), t, done, tail: false, hanging: false }
    }

    #[test]
    fn rewards_of_agents_that_do_not_act_go_to_the_step_before() {
        let hanging = |row| Run { hanging: true, ..run(row, 1, 0, false) };
        let runs = [hanging(0), run(1, 2, 0, false), hanging(3), hanging(4), run(5, 3, 0, false), hanging(8)];
        let print =
            |row: u64| Ok(RowPrint { content: row.into(), obs: row, next_obs: None, unread: Unread::default() });
        let out = resolve(&runs, false, DROP, &print).unwrap();
        assert_eq!(out[0].hanging, [(0, 0), (1, 3), (1, 4), (4, 8)]);
        let many: Vec<Run> =
            (0..200_000).map(|row| if row % 2 == 0 { run(row, 1, 0, false) } else { hanging(row) }).collect();
        assert_eq!(resolve(&many, false, DROP, &print).unwrap()[0].hanging.len(), 100_000);
    }

    #[test]
    fn an_agent_that_ends_twice_has_both_flags() {
        let done = |terminated, truncated| Done { terminated, truncated };
        let waiting = |row, done| Run { done, hanging: true, ..run(row, 1, 0, false) };
        let print =
            |row: u64| Ok(RowPrint { content: row.into(), obs: row, next_obs: None, unread: Unread::default() });
        // At its last step and while it waits for the others, in either order; and twice while it waits.
        for (first, second, third) in [
            (done(true, false), done(false, true), done(false, false)),
            (done(false, true), done(true, false), done(false, false)),
            (done(false, false), done(true, false), done(false, true)),
        ] {
            let runs = [Run { done: first, ..run(0, 2, 0, false) }, waiting(2, second), waiting(3, third)];
            let out = resolve(&runs, true, DROP, &print).unwrap();
            assert_eq!(out[0].done, done(true, true));
        }
    }

    #[test]
    fn rewards_whose_step_the_rows_do_not_tell_are_refused() {
        let hanging = |row, done| Run { hanging: true, ..run(row, 1, 0, done) };
        let told = |runs: &[Run], duplicates| {
            let print = |row: u64| {
                Ok(RowPrint { content: (row % 3).into(), obs: row % 3, next_obs: None, unread: Unread::default() })
            };
            let error = resolve(runs, true, duplicates, &print).unwrap_err();
            (error.error.what().to_owned(), error.row)
        };
        let waits = |found| format!("found a reward of an agent that waits, in an episode whose rows are {found}");
        let twice = [run(0, 2, 0, true), hanging(2, false), run(3, 2, 0, true)];
        assert_eq!(told(&twice, DROP), (waits("recorded twice"), 2));
        assert_eq!(told(&twice, Duplicates::Keep), (waits("recorded twice"), 2));
        let mixed = [run(0, 1, 1, false), hanging(1, false), run(2, 1, 0, false)];
        assert_eq!(told(&mixed, DROP), (waits("out of order"), 1));
        let ends = [run(0, 1, 0, false), hanging(1, true), run(2, 1, 1, false)];
        assert_eq!(told(&ends, DROP), ("found the end of an episode before its last step".to_owned(), 1));
    }
}
