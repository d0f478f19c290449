//! What the first pass finds out: which rows make up which episode, in which order.

use std::ops::Range;
use std::sync::Arc;

use crate::column::{NEXT_OBS, OBS, rebase, root};
use crate::episode::{EpisodeId, EpisodeLayout};
use crate::error::{Error, Result};

/// A run of consecutive global rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First global row.
    pub row: u64,
    /// Number of rows.
    pub len: u64,
}

/// One episode (or recorded chunk of one) and where its rows lie. There may be millions, so it is kept small.
#[derive(Debug, Clone)]
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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rare {
    /// Its agent, in multi-agent data.
    pub agent_id: Option<Arc<str>>,
    /// A row that holds only the observation after the last step.
    pub tail: Option<u64>,
    /// Rewards that came while the agent did not act: the step they are added to, and the row that holds them.
    pub hanging: Vec<(u64, u64)>,
    /// Rows with the chunks before this one, latest first, for the state and the frames that this one lacks.
    pub history: Vec<u64>,
}

impl Rare {
    /// Itself, if there is anything in it.
    #[must_use]
    pub fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

impl Entry {
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

    /// Every global row that is needed to put the entry together.
    pub fn rows<'a>(&'a self, spans: &'a [Span]) -> impl Iterator<Item = Span> + 'a {
        let hanging = self.hanging().iter().map(|(_, row)| *row);
        let extra = self.tail().into_iter().chain(self.history().iter().copied()).chain(hanging);
        spans[self.spans.clone()].iter().copied().chain(extra.map(|row| Span { row, len: 1 }))
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
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Oddities {
    /// Rows (or items) recorded a second time and dropped.
    pub duplicate_rows: u64,
    /// The first of them, as a global row.
    pub first_duplicate: Option<u64>,
    /// Episodes (or chunks) of which rows were dropped as duplicates.
    pub duplicate_episodes: u64,
    /// Episodes whose last row is neither terminated nor truncated and that no chunk continues.
    pub unfinished_episodes: u64,
    /// Unfinished episodes that the job drops.
    pub dropped_unfinished_episodes: u64,
    /// The steps of those.
    pub dropped_unfinished_steps: u64,
    /// Episodes without a step.
    pub empty_episodes: u64,
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
    /// Recorded next observations stand beside their observations, whose last one they may hold.
    pub fn narrow(&mut self, reads: &dyn Fn(&str) -> bool) -> (EpisodeLayout, Vec<EpisodeLayout>) {
        let before = (self.layout.clone(), self.layouts.clone());
        let wanted = |name: &str| reads(name) || (root(name) == NEXT_OBS && reads(&rebase(name, OBS)));
        for layout in self.layouts.iter_mut().chain([&mut self.layout]) {
            layout.steps.retain(|(name, _)| wanted(name));
        }
        before
    }

    /// The episode that a global row belongs to, and the row's step in it (none for rows that hold more or less than
    /// one step). Looks at every entry: for errors only.
    #[must_use]
    pub fn episode_of(&self, row: u64, rows_are_steps: bool) -> Option<(&EpisodeId, Option<i64>)> {
        self.entries.iter().find_map(|entry| {
            let mut step = 0;
            for span in &self.spans[entry.spans.clone()] {
                if (span.row..span.row + span.len).contains(&row) {
                    let t = entry.t_started.checked_add_unsigned(step + (row - span.row));
                    return Some((&entry.id, t.filter(|_| rows_are_steps)));
                }
                step += span.len;
            }
            (entry.tail() == Some(row)).then_some((&entry.id, None))
        })
    }

    /// Steps of all entries.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.entries.iter().map(|e| e.steps).sum()
    }
}
