//! First pass over step rows: runs of rows that are certainly one piece of one episode.
//!
//! ```text
//! row      0  1  2  3  4  5  6  7  8        a run ends where
//! eps_id   a  a  a  b  b  a  a  a  a          the episode changes        (2|3, 4|5)
//! t        0  1  2  0  1  3  4  6  7          t does not go on by one    (6|7)
//! done     .  .  .  .  x  .  .  .  .          the episode is over        (4|5)
//! run      0--------  1--- 2--- 3---          the action is null         (a run of its own)
//!                                             t is not recorded and the file ends
//! ```
//!
//! Where `t` is recorded, a run may skip rows of other episodes, always equally many: then a log whose environments
//! take turns has a run an episode, and not one a row. Without `t` rows are told from repetitions by their place, and
//! only neighbours make a run.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::quality::FixedState;
use hashbrown::HashTable;

use super::index::Span;
use crate::episode::EpisodeId;
use crate::error::{Error, Result};

/// Flags of a run's last row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Done {
    /// The episode terminated.
    pub terminated: bool,
    /// The episode was truncated.
    pub truncated: bool,
}

impl Done {
    /// Whether the episode is over.
    #[must_use]
    pub const fn any(self) -> bool {
        self.terminated || self.truncated
    }

    /// The flags of two rows at an episode's end: one may be set at the last step, the other behind it.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { terminated: self.terminated || other.terminated, truncated: self.truncated || other.truncated }
    }
}

/// Rows of one episode that follow one another in time; see the module's figure. There may be one a row, so it is
/// kept small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Which episode: an index of [`Runs::ids`].
    pub episode: u32,
    /// Its rows.
    pub span: Span,
    /// `t` of the first row; 0 where `t` is not recorded.
    pub t: i64,
    /// Flags of the last row.
    pub done: Done,
    /// The row has a null action: it holds only the observation after the last step.
    pub tail: bool,
    /// The row has neither observation nor action: it holds a reward that an agent got while it did not act.
    pub hanging: bool,
}

/// One row as the first pass sees it.
#[derive(Debug, Clone, Copy)]
pub struct ScanRow {
    /// Global row.
    pub row: u64,
    /// `t`, where recorded.
    pub t: Option<i64>,
    /// Flags.
    pub done: Done,
    /// Null action.
    pub tail: bool,
    /// Null action and null observation.
    pub hanging: bool,
}

/// Whose rows these are: an episode, and in multi-agent data one agent of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Who {
    /// The episode.
    pub id: EpisodeId,
    /// The agent.
    pub agent: Option<Arc<str>>,
    /// The module that acted, where recorded.
    pub module: Option<Arc<str>>,
}

/// The runs of a stretch of rows, with the ids of their episodes in order of first appearance.
#[derive(Debug, Default)]
pub struct Runs {
    /// Episodes (of one agent each) in order of first appearance.
    pub ids: Vec<Who>,
    numbers: HashTable<u32>,
    /// Names of agents and modules, which episodes share.
    names: HashTable<Arc<str>>,
    /// Bytes of all these texts.
    text_bytes: usize,
    /// The runs in the order of their first rows.
    pub runs: Vec<Run>,
    /// The last run of each episode: a position in `runs`.
    last: Vec<usize>,
}

/// Bytes of a text that is shared: itself, and what counts who has it.
fn text_bytes(text: &str) -> usize {
    text.len() + 2 * size_of::<usize>()
}

impl Runs {
    /// The number of an episode, new or known.
    ///
    /// # Errors
    /// If there are more than 2^32 episodes.
    pub fn number(&mut self, id: &Who) -> Result<u32> {
        if let Some(run) = self.runs.last()
            && self.ids[run.episode as usize] == *id
        {
            return Ok(run.episode);
        }
        let hash = |who: &Who| FixedState::default().hash_one(who);
        if let Some(&n) = self.numbers.find(hash(id), |&n| self.ids[n as usize] == *id) {
            return Ok(n);
        }
        let n = u32::try_from(self.ids.len()).map_err(|_| Error::usage("found more than 4294967296 episodes"))?;
        let (agent, module) = (self.name(id.agent.as_ref()), self.name(id.module.as_ref()));
        if let EpisodeId::Str(id) = &id.id {
            self.text_bytes += text_bytes(id);
        }
        self.ids.push(Who { id: id.id.clone(), agent, module });
        self.last.push(usize::MAX);
        let ids = &self.ids;
        self.numbers.insert_unique(hash(id), n, |&n| hash(&ids[n as usize]));
        Ok(n)
    }

    /// The one text that all episodes with this name share.
    fn name(&mut self, name: Option<&Arc<str>>) -> Option<Arc<str>> {
        let name = name?;
        let hash = |name: &Arc<str>| FixedState::default().hash_one(name);
        if let Some(known) = self.names.find(hash(name), |known| known == name) {
            return Some(Arc::clone(known));
        }
        self.text_bytes += text_bytes(name) + 2 * size_of::<Arc<str>>();
        self.names.insert_unique(hash(name), Arc::clone(name), hash);
        Some(Arc::clone(name))
    }

    /// Bytes in memory, or nearly.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.runs.capacity() * size_of::<Run>()
            + self.ids.capacity() * (size_of::<Who>() + size_of::<u32>() * 2 + size_of::<usize>())
            + self.text_bytes
    }

    /// Adds a row of episode number `episode`.
    pub fn push_row(&mut self, episode: u32, row: ScanRow) {
        let run = Run {
            episode,
            span: Span::one(row.row),
            t: row.t.unwrap_or(0),
            done: row.done,
            tail: row.tail && !row.hanging,
            hanging: row.hanging,
        };
        self.push(run, row.t.is_some());
    }

    /// Adds steps of episode number `episode` that follow one another; `t` is the first one's, where recorded.
    pub fn push_rows(&mut self, episode: u32, span: Span, t: Option<i64>) {
        let run = Run { episode, span, t: t.unwrap_or(0), done: Done::default(), tail: false, hanging: false };
        self.push(run, t.is_some());
    }

    /// Adds a run, joined to the episode's last one where it goes on.
    fn push(&mut self, run: Run, timed: bool) {
        let last_of_episode = &mut self.last[run.episode as usize];
        if let Some(last) = self.runs.get_mut(*last_of_episode) {
            let alone = last.done.any() || last.tail || last.hanging || run.tail || run.hanging;
            let joined = if timed {
                let in_time = last.t.checked_add_unsigned(last.span.len()) == Some(run.t);
                last.span.joined(run.span).filter(|_| in_time)
            } else {
                last.span.joined_consecutive(run.span)
            };
            if let Some(span) = joined.filter(|_| !alone) {
                last.span = span;
                last.done = run.done;
                return;
            }
        }
        *last_of_episode = self.runs.len();
        self.runs.push(run);
    }

    /// Appends the runs of the rows that follow. `seam` forbids joining across it (a new file without `t`).
    ///
    /// # Errors
    /// If there are more than 2^32 episodes.
    pub fn append(&mut self, other: &Self, timed: bool, seam: bool) -> Result<()> {
        let map: Vec<u32> = other.ids.iter().map(|id| self.number(id)).collect::<Result<_>>()?;
        for (i, run) in other.runs.iter().enumerate() {
            let run = Run { episode: map[run.episode as usize], ..*run };
            if seam && i == 0 {
                self.last[run.episode as usize] = usize::MAX;
            }
            self.push(run, timed);
        }
        Ok(())
    }

    /// Sorts the runs by episode, each episode's in row order, and says where each starts: episode `e` owns
    /// `runs[offsets[e]..offsets[e + 1]]`.
    pub fn sort_by_episode(&mut self) -> Vec<usize> {
        let mut offsets = vec![0; self.ids.len() + 1];
        for run in &self.runs {
            offsets[run.episode as usize + 1] += 1;
        }
        for i in 1..offsets.len() {
            offsets[i] += offsets[i - 1];
        }
        // Most logs hold one episode after the other: then nothing moves, and no room is needed to move it.
        if !self.runs.is_sorted_by_key(|r| r.episode) {
            self.runs.sort_by_key(|r| r.episode); // stable: row order is kept inside an episode
        }
        offsets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(s: &str) -> Who {
        Who { id: EpisodeId::Str(s.into()), agent: None, module: None }
    }

    fn scan(rows: &[(&str, i64, bool, bool)], timed: bool) -> Runs {
        let mut runs = Runs::default();
        for (row, &(eps, t, terminated, tail)) in (0..).zip(rows) {
            let n = runs.number(&id(eps)).unwrap();
            let done = Done { terminated, truncated: false };
            runs.push_row(n, ScanRow { row, t: timed.then_some(t), done, tail, hanging: false });
        }
        runs
    }

    #[test]
    fn the_figure() {
        let rows = [
            ("a", 0, false, false),
            ("a", 1, false, false),
            ("a", 2, false, false),
            ("b", 0, false, false),
            ("b", 1, true, false),
            ("a", 3, false, false),
            ("a", 4, false, false),
            ("a", 6, false, false),
            ("a", 7, false, false),
        ];
        let mut runs = scan(&rows, true);
        let spans: Vec<_> = runs.runs.iter().map(|r| (r.episode, r.span.first(), r.span.len(), r.t)).collect();
        assert_eq!(spans, [(0, 0, 3, 0), (1, 3, 2, 0), (0, 5, 2, 3), (0, 7, 2, 6)]);
        let offsets = runs.sort_by_episode();
        assert_eq!(offsets, [0, 3, 4]);
        assert_eq!(runs.runs[2].span.first(), 7);
    }

    #[test]
    fn texts_are_counted_as_they_are_and_names_once() {
        let mut runs = Runs::default();
        let name = |bytes: usize| Some(Arc::from("n".repeat(bytes)));
        for (i, bytes) in [3, 100_000, 7].into_iter().enumerate() {
            let id = EpisodeId::Str(format!("{i}{}", "x".repeat(bytes)).into());
            let before = runs.bytes();
            runs.number(&Who { id: id.clone(), agent: name(50_000), module: name(9) }).unwrap();
            let added = runs.bytes() - before;
            let names = if i == 0 { 50_009 } else { 0 };
            assert!((bytes + names..bytes + names + 1000).contains(&added), "{i}: {added}");
        }
        assert!(Arc::ptr_eq(runs.ids[0].agent.as_ref().unwrap(), runs.ids[2].agent.as_ref().unwrap()));
    }

    #[test]
    fn null_actions_and_file_ends_cut() {
        let a = scan(&[("a", 0, false, false), ("a", 0, false, true), ("a", 0, false, false)], false);
        assert_eq!(a.runs.iter().map(|r| r.tail).collect::<Vec<_>>(), [false, true, false]);
        let (mut one, mut two) = (scan(&[("a", 0, false, false)], false), scan(&[("a", 0, false, false)], false));
        let mut next = scan(&[("a", 0, false, false)], false);
        next.runs[0].span = Span::one(1);
        one.append(&next, false, true).unwrap();
        two.append(&next, false, false).unwrap();
        assert_eq!((one.runs.len(), two.runs.len()), (2, 1));
    }

    #[test]
    fn environments_that_take_turns_have_a_run_an_episode() {
        let turns: Vec<(String, i64)> = (0..40).map(|i| (format!("e{}-{}", i % 4, i / 4 / 5), i / 4 % 5)).collect();
        let rows: Vec<_> = turns.iter().map(|(id, t)| (id.as_str(), *t, *t == 4, false)).collect();
        let timed = scan(&rows, true);
        assert_eq!(timed.runs.len(), 8);
        assert_eq!(
            timed.runs[5].span,
            [21, 25, 29, 33, 37].map(Span::one).into_iter().reduce(|a, b| a.joined(b).unwrap()).unwrap()
        );
        assert_eq!(scan(&rows, false).runs.len(), 40, "without t only neighbours make a run");
        // In parts, as row groups come.
        let mut parts = Runs::default();
        for at in [0, 7, 25] {
            let end = if at == 0 {
                7
            } else if at == 7 {
                25
            } else {
                40
            };
            let mut part = scan(&rows[at..end], true);
            let shifted = |span: Span| (0..span.len()).map(move |i| Span::one(span.row(i) + at as u64));
            for run in &mut part.runs {
                run.span = shifted(run.span).reduce(|a, b| a.joined(b).unwrap()).unwrap();
            }
            parts.append(&part, true, false).unwrap();
        }
        assert_eq!(parts.runs, timed.runs);
        assert_eq!(size_of::<Run>(), 32);
    }
}
