//! Where episodes come from: files, their layouts, and the way back from rows to episodes.
//!
//! A [`Source`] is read twice. The *first pass* ([`Source::index`]) reads ids, times and flags (for `rllib-episodes`
//! the headers of the items) and says which rows make up which episode. The *second pass* reads everything once, in
//! file order, as [`Block`]s; [`Source::assemble`] then puts the episodes of one unit of work together from them. It
//! is a pure function of the unit's rows, so units can be assembled by any thread in any order.

mod agents;
pub mod blocks;
pub mod elements;
pub mod episode_state;
pub mod faults;
pub mod file;
pub mod gathered;
pub mod index;
pub mod ingest;
pub mod items;
pub mod keys;
mod modules;
pub mod msgpack;
pub mod ndarray;
pub mod packed;
pub mod pickle;
mod presence;
mod prints;
pub mod recognise;
mod renamed;
pub mod resolve;
pub mod rows;
pub mod runs;
mod scan;
pub mod schema;
pub mod slices;
pub mod steps;

use std::collections::BTreeSet;
use std::fmt::Debug;

use blocks::{Block, Blocks};
use index::{Entry, Index};
use rows::{RowGroupRef, RowMap};
use serde::{Deserialize, Serialize};

use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::progress::Progress;

/// What the first pass needs to know of the job.
#[derive(Debug, Clone, Copy)]
pub struct IndexOptions<'a> {
    /// What to do with rows recorded twice.
    pub duplicates: crate::job::Duplicates,
    /// What to do with episodes that do not end.
    pub unfinished: crate::job::Unfinished,
    /// RLlib's behaviour to the letter, or repaired.
    pub compat: crate::job::Compat,
    /// Rows before a chunk's first step that pieces look at.
    pub look_back: usize,
    /// Bytes of memory that the pass may hold.
    pub memory: usize,
    /// Leave malformed episodes out, and tell, instead of failing at the first one.
    pub tolerant: bool,
    /// Which module an agent's rows go to: patterns (`*` stands for anything) and module ids; the first match wins.
    pub agent_to_module: &'a indexmap::IndexMap<String, String>,
}

/// Rows that have something in common: how many, and the first of them, as a global row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// How many.
    pub count: u64,
    /// The first of them.
    pub first: Option<u64>,
}

impl Tally {
    /// Adds a row.
    pub fn add(&mut self, row: u64) {
        self.merge(&Self { count: 1, first: Some(row) });
    }

    /// Adds the rows of another one.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.first = [self.first, other.first].into_iter().flatten().min();
    }
}

/// What to do about rewards in rows behind the last step: they are often those that came with the observation.
pub(crate) const MOVE_REWARDS: &str = "a reward belongs to the action in its row; if yours stand in the row after, beside \
    the observation that they came with, move them up by one row";

/// Counts of what [`Source::assemble`] noticed in the rows it read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noticed {
    /// Rows whose observation is not the recorded next observation of the row before.
    pub discontinuities: Tally,
    /// Rows without an action behind episodes' last steps that hold a reward other than zero: nothing reads it.
    pub trailing_rewards: Tally,
    /// Rows without an action that hold values other than zero in columns that nothing reads of such rows.
    pub unread: Tally,
    /// Those columns.
    pub unread_columns: BTreeSet<String>,
}

impl Noticed {
    /// Adds what was noticed elsewhere.
    pub fn merge(&mut self, other: &Self) {
        self.discontinuities.merge(&other.discontinuities);
        self.trailing_rewards.merge(&other.trailing_rewards);
        self.unread.merge(&other.unread);
        self.unread_columns.extend(other.unread_columns.iter().cloned());
    }

    /// What [`Self::unread`] is about, for the report. Columns are not known of rows in the middle of an episode.
    pub(crate) fn what_is_unread(&self) -> String {
        let columns: Vec<&str> = self.unread_columns.iter().map(String::as_str).collect();
        let of = if columns.is_empty() { "model outputs".to_owned() } else { columns.join(", ") };
        format!("values of {of}, which are not read of such a row")
    }
}

/// Recorded episodes in one of the input layouts.
pub trait Source: Debug + Send + Sync {
    /// The layout's name and why it was recognised, as a sentence for the report.
    fn recognised(&self) -> &str;

    /// What was unified or left out, in sentences for the report.
    fn notes(&self) -> &[String];

    /// The numbering of all rows.
    fn rows(&self) -> &RowMap;

    /// Whether an input row is a step (or, now and then, the row behind an episode's last one).
    fn rows_are_steps(&self) -> bool;

    /// Bytes that an input row takes when it is decoded, more or less. `layout` is what the index says.
    fn row_bytes(&self, layout: &EpisodeLayout) -> usize {
        layout.steps.iter().map(|(_, ty)| ty.row_bytes()).sum()
    }

    /// The error with what the source knows beside: what the files call its column, and which agents, modules and columns
    /// there are, where the remedy depends on them. `index` is what the first pass found, once it is done.
    fn explain(&self, error: Error, index: Option<&Index>) -> Error {
        let _ = index;
        error
    }

    /// Names and types as far as they can be told without reading everything.
    ///
    /// # Errors
    /// If a needed column is missing or cannot be understood.
    fn peek(&self) -> Result<EpisodeLayout>;

    /// What the first rows say of agents and modules, where rows name any: the first pass over no more than a few row
    /// groups, and how many rows these are. Malformed episodes are passed over.
    ///
    /// # Errors
    /// If there is no other, or a file cannot be read for a reason that is not the data's.
    fn first_modules(&self, options: IndexOptions<'_>) -> Result<Option<(Index, u64)>> {
        let _ = options;
        Ok(None)
    }

    /// The first pass.
    ///
    /// # Errors
    /// If episodes cannot be told apart or contradict themselves.
    fn index(&self, options: IndexOptions<'_>, progress: &dyn Progress) -> Result<Index>;

    /// The second pass over one row group: its blocks in order, each of about `block_bytes`.
    ///
    /// # Errors
    /// If the file cannot be read.
    fn read(&self, group: RowGroupRef, layout: &EpisodeLayout, block_bytes: usize) -> Result<BlockIter>;

    /// Puts entries together from the blocks that hold their rows.
    ///
    /// # Errors
    /// If their values break a rule (null, ragged, undecodable).
    fn assemble(
        &self,
        index: &Index,
        entries: &[&Entry],
        blocks: &Blocks,
        noticed: &mut Noticed,
    ) -> Result<EpisodeBatch>;
}

/// The blocks of a row group, in order.
pub type BlockIter = Box<dyn Iterator<Item = Result<Block>> + Send>;
