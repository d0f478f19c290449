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
pub mod resolve;
pub mod rows;
pub mod runs;
mod scan;
pub mod schema;
pub mod slices;
pub mod steps;

use std::fmt::Debug;

use blocks::{Block, Blocks};
use index::{Entry, Index};
use rows::{RowGroupRef, RowMap};
use serde::{Deserialize, Serialize};

use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::Result;
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

/// Counts of what [`Source::assemble`] noticed in the rows it read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noticed {
    /// Rows whose recorded next observation is not the next row's observation.
    pub discontinuities: u64,
    /// The first of them, as a global row.
    pub first_discontinuity: Option<u64>,
}

impl Noticed {
    /// Adds what was noticed elsewhere.
    pub fn merge(&mut self, other: &Self) {
        self.discontinuities += other.discontinuities;
        let firsts = [self.first_discontinuity, other.first_discontinuity];
        self.first_discontinuity = firsts.into_iter().flatten().min();
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

    /// Names and types as far as they can be told without reading everything.
    ///
    /// # Errors
    /// If a needed column is missing or cannot be understood.
    fn peek(&self) -> Result<EpisodeLayout>;

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
