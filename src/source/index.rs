//! What the first pass finds out: which rows make up which episode, in which order.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Tally;
use super::faults::Faults;
use super::slices::Sliced;
use crate::column::{NEXT_OBS, OBS, rebase, root};
use crate::episode::{Chunk, EpisodeId, EpisodeLayout};
use crate::error::{Error, Result};

/// Global rows at equal distances. An episode's rows stand side by side in most logs; where environments take turns,
/// they stand as far apart as there are environments:
///
/// ```text
/// row      0  1  2  3  4  5  6  7  8
/// episode  a  b  c  a  b  c  a  b  c        a: first 0, stride 3, len 3
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    first: u64,
    len: u32,
    stride: u32,
}

impl Span {
    /// `len` consecutive rows from `first` on; at most [`Self::LONGEST`] of them.
    ///
    /// # Panics
    /// If there are more.
    #[must_use]
    pub fn new(first: u64, len: u64) -> Self {
        Self { first, len: u32::try_from(len).expect("spans are cut at LONGEST"), stride: 1 }
    }

    /// One row.
    #[must_use]
    pub const fn one(row: u64) -> Self {
        Self { first: row, len: 1, stride: 1 }
    }

    /// The most rows that a span can have.
    pub const LONGEST: u64 = u32::MAX as u64;

    /// The first row.
    #[must_use]
    pub const fn first(self) -> u64 {
        self.first
    }

    /// Number of rows.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.len as u64
    }

    /// Whether there are no rows.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The distance from row to row.
    #[must_use]
    pub const fn stride(self) -> u64 {
        self.stride as u64
    }

    /// Row number `i`.
    #[must_use]
    pub const fn row(self, i: u64) -> u64 {
        self.first + i * self.stride as u64
    }

    /// One past the last row; the first one if there are no rows.
    #[must_use]
    pub const fn end(self) -> u64 {
        if self.len == 0 { self.first } else { self.row(self.len as u64 - 1) + 1 }
    }

    /// Which of its rows `row` is.
    #[must_use]
    pub fn position(self, row: u64) -> Option<u64> {
        let behind = row.checked_sub(self.first)?;
        (row < self.end() && behind.is_multiple_of(self.stride())).then(|| behind / self.stride())
    }

    /// The rows from number `start` on, at most `len` of them.
    #[must_use]
    pub fn slice(self, start: u64, len: u64) -> Self {
        let (start, len) = (start.min(self.len()), len.min(self.len().saturating_sub(start)));
        // Both fit, as they are at most `self.len`.
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        Self { first: self.row(start), len, stride: self.stride }.plain()
    }

    /// Those of its rows that lie in `rows`.
    #[must_use]
    pub fn within(self, rows: Range<u64>) -> Self {
        let skipped = rows.start.saturating_sub(self.first).div_ceil(self.stride());
        let rest = self.slice(skipped, u64::MAX);
        let left = rows.end.saturating_sub(rest.first).div_ceil(rest.stride());
        rest.slice(0, left)
    }

    /// One row alone has no stride that could tell it from another.
    const fn plain(self) -> Self {
        if self.len <= 1 { Self { stride: 1, ..self } } else { self }
    }

    /// Both as one, if `next` goes on at the same distance.
    #[must_use]
    pub fn joined(self, next: Self) -> Option<Self> {
        if self.is_empty() || next.is_empty() {
            return Some(if self.is_empty() { next } else { self });
        }
        let step = u32::try_from(next.first.checked_sub(self.end() - 1)?).ok().filter(|&step| step > 0)?;
        let fits = |span: Self| span.len == 1 || span.stride == step;
        let len = self.len.checked_add(next.len)?;
        (fits(self) && fits(next)).then_some(Self { first: self.first, len, stride: step })
    }

    /// Both as one, if `next` goes on with the next row.
    #[must_use]
    pub fn joined_consecutive(self, next: Self) -> Option<Self> {
        self.joined(next).filter(|joined| joined.stride == 1)
    }
}

/// One episode (or recorded chunk of one) and where its rows lie. There may be millions, so it is kept small.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    /// Its id.
    pub id: EpisodeId,
    /// Its rows in time order, as a range of [`Index::spans`]. A chunk recorded as one item is one row.
    pub spans: Range<usize>,
    /// Its steps.
    pub steps: u64,
    /// Steps of the episode before its first one.
    pub t_started: i64,
    /// Its place in dataset order, before RLlib's keys moved anything.
    pub ordinal: u32,
    /// Its place in columns that were added before any piece numbered RLlib's ids; see [`super::keys`].
    pub bare_rank: u32,
    /// Its module: an index of [`Index::modules`].
    pub module: u32,
    /// Whether its last step ended the episode.
    pub terminated: bool,
    /// Whether it was cut short after its last step.
    pub truncated: bool,
    /// What most episodes do not have.
    pub rare: Option<Box<Rare>>,
}

/// What most episodes do not have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rare {
    /// Its agent, in multi-agent data.
    pub agent_id: Option<Arc<str>>,
    /// A row that holds only the observation after the last step.
    pub tail: Option<u64>,
    /// Rewards that came while the agent did not act: the step they are added to, and the row that holds them; in the
    /// order of the steps.
    pub hanging: Vec<(u64, u64)>,
    /// Rows with the chunks before this one, latest first, for the state and the frames that this one lacks.
    pub history: Vec<u64>,
    /// Which part of a recorded chunk it is, if that was cut to fit into memory.
    pub slice: Option<Box<Sliced>>,
}

impl Rare {
    /// Itself, if there is anything in it.
    #[must_use]
    pub fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

impl Entry {
    /// What an episode batch says of it.
    #[must_use]
    pub fn chunk(&self, has_last_obs: bool) -> Chunk {
        Chunk {
            id: self.id.clone(),
            agent_id: self.agent_id().cloned(),
            ordinal: self.ordinal,
            bare_rank: self.bare_rank,
            t_started: self.t_started,
            terminated: self.terminated,
            truncated: self.truncated,
            has_last_obs,
        }
    }

    /// Its agent, in multi-agent data.
    #[must_use]
    pub fn agent_id(&self) -> Option<&Arc<str>> {
        self.rare.as_ref()?.agent_id.as_ref()
    }

    /// See [`Rare::tail`].
    #[must_use]
    pub fn tail(&self) -> Option<u64> {
        self.rare.as_ref()?.tail
    }

    /// See [`Rare::hanging`].
    #[must_use]
    pub fn hanging(&self) -> &[(u64, u64)] {
        self.rare.as_ref().map_or(&[], |r| &r.hanging)
    }

    /// See [`Rare::history`].
    #[must_use]
    pub fn history(&self) -> &[u64] {
        self.rare.as_ref().map_or(&[], |r| &r.history)
    }

    /// See [`Rare::slice`].
    #[must_use]
    pub fn slice(&self) -> Option<&Sliced> {
        self.rare.as_ref()?.slice.as_deref()
    }

    /// Steps of the recorded chunk before it: none, unless it is a slice.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.slice().map_or(0, |s| s.start)
    }

    /// Rows of steps that it has in front.
    #[must_use]
    pub fn look_back(&self) -> &[Span] {
        self.slice().map_or(&[], |s| &s.look_back)
    }

    /// Its rows in time order; `all` are the spans of its index.
    #[must_use]
    pub fn spans<'a>(&'a self, all: &'a [Span]) -> &'a [Span] {
        self.slice().map_or_else(|| &all[self.spans.clone()], |s| &s.spans)
    }

    /// Every global row that is needed to put the entry together.
    pub fn rows<'a>(&'a self, spans: &'a [Span]) -> impl Iterator<Item = Span> + 'a {
        let before = self.slice().map_or(&[][..], |s| &s.look_back_hanging);
        let hanging = self.hanging().iter().chain(before).map(|(_, row)| *row);
        let behind = self.slice().and_then(|s| s.behind);
        let extra = self.tail().into_iter().chain(behind).chain(self.history().iter().copied()).chain(hanging);
        self.look_back().iter().chain(self.spans(spans)).copied().chain(extra.map(Span::one))
    }
}

/// Numbers `entries` in their order.
///
/// # Errors
/// If there are more than 2^32.
pub fn number(entries: &mut [Entry]) -> Result<()> {
    for (i, entry) in entries.iter_mut().enumerate() {
        entry.ordinal = u32::try_from(i).map_err(|_| Error::usage("found more than 4294967296 episodes"))?;
        entry.bare_rank = entry.ordinal;
    }
    Ok(())
}

/// What was odd about the input, counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Oddities {
    /// Rows (or items) recorded a second time and dropped.
    pub duplicate_rows: u64,
    /// The first of them, as a global row.
    pub first_duplicate: Option<u64>,
    /// Episodes (or chunks) of which rows were dropped as duplicates.
    pub duplicate_episodes: u64,
    /// Episodes whose last row is neither terminated nor truncated and that no chunk continues.
    pub unfinished_episodes: u64,
    /// Episodes (items), counted in [`Index::episodes_read`], that repeat earlier ones as a whole and were dropped.
    pub duplicate_entries: u64,
    /// Parts of unfinished episodes, counted in [`Index::episodes_read`], that the job drops.
    pub dropped_unfinished_entries: u64,
    /// Unfinished episodes that the job drops.
    pub dropped_unfinished_episodes: u64,
    /// The steps of those.
    pub dropped_unfinished_steps: u64,
    /// Episodes without a step.
    pub empty_episodes: u64,
    /// Rows without an action that end chunks and hold a reward, which nothing reads.
    pub unread_rewards: Tally,
    /// The same with model outputs.
    pub unread_outputs: Tally,
}

/// The result of the first pass.
#[derive(Debug, Clone, Default)]
pub struct Index {
    /// Episodes and chunks in output order.
    pub entries: Vec<Entry>,
    /// Their rows; see [`Entry::spans`].
    pub spans: Vec<Span>,
    /// Ids of the modules, in order of first appearance; `default_policy` alone in single-agent data.
    pub modules: Vec<String>,
    /// Whether rows belong to agents.
    pub multi_agent: bool,
    /// Names and types of the episodes' columns. One that has several types, each in the rows of other modules, stands
    /// there once a type (`new_obs` as well from the second type on).
    pub layout: EpisodeLayout,
    /// The same for each module, in its types: columns that are null for all of a module's rows are none of its. Infos
    /// that are missing in some of its steps have a mask behind them.
    pub layouts: Vec<EpisodeLayout>,
    /// The columns of infos that say in which steps the column before them was recorded.
    pub masks: Vec<Arc<str>>,
    /// Rows before a chunk's first step that pieces look at.
    pub look_back: usize,
    /// What was odd.
    pub oddities: Oddities,
    /// Malformed episodes that are left out; see [`super::faults`].
    pub faults: Faults,
    /// Sentences for the report.
    pub notes: Vec<String>,
    /// Ids of episodes. Fewer than [`Self::episodes_read`] where an episode is recorded in chunks, or has several agents.
    pub episode_ids: u64,
    /// Episodes as recorded (chunks and agents one by one), before the job's rules dropped any.
    pub episodes_read: u64,
    /// Steps as recorded, before the job's rules dropped any.
    pub steps_read: u64,
}

impl Index {
    /// Leaves only those step columns in the layouts that `reads` asks for. The layouts as they were come back.
    ///
    /// Recorded next observations stand beside their observations, whose last one they may hold, and go with them.
    pub fn narrow(&mut self, reads: &dyn Fn(&str) -> bool) -> (EpisodeLayout, Vec<EpisodeLayout>) {
        let before = (self.layout.clone(), self.layouts.clone());
        let wanted = |name: &str| if root(name) == NEXT_OBS { reads(&rebase(name, OBS)) } else { reads(name) };
        for layout in self.layouts.iter_mut().chain([&mut self.layout]) {
            layout.steps.retain(|(name, _)| wanted(name));
        }
        before
    }

    /// The episode that a global row belongs to, and the row's step in it (none for rows that hold more or less than
    /// one step). Looks at every entry: for errors only.
    #[must_use]
    pub fn episode_of(&self, row: u64, rows_are_steps: bool) -> Option<(&EpisodeId, Option<i64>)> {
        let (entry, step) = self.place_of(row)?;
        let t = step.and_then(|step| entry.t_started.checked_add_unsigned(step));
        Some((&entry.id, t.filter(|_| rows_are_steps)))
    }

    /// The entry that a row belongs to.
    #[must_use]
    pub fn entry_of(&self, row: u64) -> Option<&Entry> {
        Some(self.place_of(row)?.0)
    }

    /// The entry that a row belongs to, and which of its steps that is.
    fn place_of(&self, row: u64) -> Option<(&Entry, Option<u64>)> {
        self.entries.iter().find_map(|entry| {
            let mut step = 0;
            for span in entry.spans(&self.spans) {
                if let Some(at) = span.position(row) {
                    return Some((entry, Some(step + at)));
                }
                step += span.len();
            }
            let beside = entry.tail() == Some(row) || entry.hanging().iter().any(|(_, own)| *own == row);
            beside.then_some((entry, None))
        })
    }

    /// The names of the agents. Entries share the text of one; where they do not, it is there once for each.
    pub fn agents(&self) -> impl Iterator<Item = &str> {
        let mut seen = HashSet::new();
        let names = self.entries.iter().filter_map(Entry::agent_id);
        names.filter(move |name| seen.insert(Arc::as_ptr(name).addr())).map(|name| &**name)
    }

    /// Where the entry of an ordinal stands. An error for one that there is not, which would be a fault of this crate.
    pub fn by_ordinal(&self) -> impl Fn(u32) -> Result<usize> + use<> {
        let places: HashMap<u32, usize> = self.entries.iter().enumerate().map(|(i, e)| (e.ordinal, i)).collect();
        move |ordinal| places.get(&ordinal).copied().ok_or_else(|| Error::internal("an episode that the index lacks"))
    }

    /// Steps of all entries.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.entries.iter().map(|e| e.steps).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_join_at_one_distance() {
        let rows = |span: Span| (0..span.len()).map(|i| span.row(i)).collect::<Vec<_>>();
        let all = |list: &[u64]| list.iter().map(|&r| Span::one(r)).reduce(|a, b| a.joined(b).unwrap()).unwrap();
        let strided = all(&[3, 7, 11]);
        assert_eq!((rows(strided), strided.end(), strided.stride()), (vec![3, 7, 11], 12, 4));
        assert_eq!((strided.position(7), strided.position(8), strided.position(15)), (Some(1), None, None));
        assert_eq!(rows(strided.slice(1, 9)), [7, 11]);
        assert_eq!(strided.slice(2, 1), Span::one(11), "a single row forgets the distance");
        assert_eq!(strided.joined(Span::one(14)), None);
        assert_eq!(rows(strided.joined(strided.slice(0, 0)).unwrap()), rows(strided));
        assert_eq!(rows(strided.joined(all(&[15, 19])).unwrap()), [3, 7, 11, 15, 19]);
        assert_eq!(Span::new(0, 5).joined(Span::new(5, 2)), Some(Span::new(0, 7)));
        assert_eq!(Span::new(0, 5).joined(Span::new(6, 2)), None);
        assert_eq!(Span::one(5).joined(Span::one(5)), None, "no row stands twice");
        assert_eq!(Span::one(5).joined(Span::one(4)), None, "and none before the last");
        assert_eq!(Span::one(0).joined(Span::one(u64::MAX - 1)), None, "a distance too wide");
        assert_eq!(Span::new(0, Span::LONGEST).joined(Span::one(Span::LONGEST)), None, "more rows than a span holds");
        assert_eq!(Span::one(0).joined_consecutive(Span::one(2)), None);
    }
}
