//! How often each observation of a data set was seen before, exactly, whether the observations fit into memory or not.
//!
//! While they fit, a table counts them as they come. Where it outgrows its room, the data are passed over once before
//! they count ([`Spilling`]): keys go to scratch by partition of their hash, each partition is counted by itself, and its
//! counts, in order, are what the pass that counts takes from it:
//!
//! ```text
//! keys in order     a  b  a  c  b  a
//! partition 0       a     a        a      counted: 1 2 3
//! partition 1          b     c  b         counted: 1 1 2
//! taken by          0  1  0  1  1  0      1 1 2 1 2 3
//! ```

mod keys;
mod spilled;
mod tables;

pub(super) use spilled::Spilling;

use keys::Keys;
use spilled::{Replay, Spilled};
use tables::{Counter, Table};

use serde::{Deserialize, Serialize};

use crate::column::OBS;
use crate::connector::{ModuleUnit, Rehearsed, Room, in_order};
use crate::error::{Error, Result};
use crate::job::Compat;
use crate::tensor::{Tensor, TensorType};

/// The observations of a unit.
#[derive(Debug)]
pub(super) struct Observed {
    /// One a share of the unit.
    pub shares: Vec<ObservedShare>,
    /// The rows that are counted, in dataset order: share and row.
    rows: Vec<(usize, usize)>,
}

/// The observations of one module's share of a unit.
#[derive(Debug)]
pub(super) struct ObservedShare {
    /// The types of the leaves. Observations of other types are different.
    pub types: Vec<TensorType>,
    /// One a step.
    pub keys: Keys,
}

impl Observed {
    /// Those of `unit`.
    pub fn of(compat: Compat, unit: &[ModuleUnit]) -> Self {
        let of_share = |share: &ModuleUnit| {
            let leaves: Vec<&Tensor> = share.episodes.steps.under(OBS).map(|(_, t)| t).collect();
            let types: Vec<TensorType> = leaves.iter().map(|t| t.ty().clone()).collect();
            ObservedShare { types, keys: Keys::of(&leaves, share.episodes.steps_len()) }
        };
        let shares: Vec<ObservedShare> = unit.iter().map(of_share).collect();
        let mut rows = Vec::new();
        for (m, chunk) in in_order(unit) {
            // NaNs that equal nothing were never seen before: their count stays one.
            let counted = |row: &usize| compat == Compat::Correct || !shares[m].keys.nan[*row];
            rows.extend(unit[m].episodes.rows(chunk).filter(counted).map(|row| (m, row)));
        }
        Self { shares, rows }
    }

    /// The rows of the shares that `which` holds for.
    fn rows_of(&self, which: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
        self.rows.iter().copied().filter(|&(m, _)| which(m)).collect()
    }
}

/// The kinds of observations, in order of appearance.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Kinds(Vec<Vec<TensorType>>);

impl Kinds {
    /// The number of a kind, new or known.
    fn number(&mut self, compat: Compat, types: &[TensorType]) -> Result<usize> {
        if let Some(i) = self.0.iter().position(|t| t == types) {
            return Ok(i);
        }
        let same_width = |other: &&Vec<TensorType>| {
            other.len() == types.len() && other.iter().zip(types).all(|(a, b)| a.shape == b.shape)
        };
        if compat == Compat::Rllib260
            && let Some(other) = self.0.iter().find(same_width)
        {
            return Err(Error::usage(format!(
                "found modules with observations of {} and {}, which RLlib 2.60 compares by value, expected one dtype",
                other[0], types[0]
            ))
            .column(OBS)
            .hint("compat = \"correct\" counts them apart"));
        }
        self.0.push(types.to_vec());
        Ok(self.0.len() - 1)
    }
}

/// The counts so far.
#[derive(Debug, Default)]
pub(super) struct Counts {
    kinds: Kinds,
    counters: Vec<Counter>,
    /// Bytes that they may hold, where there is a bound.
    room: Option<usize>,
    replay: Option<Replay>,
}

impl Counts {
    /// None yet. What was counted before, in a pass of its own, is not counted again.
    ///
    /// # Errors
    /// If the rehearsal was another piece's.
    pub fn new(room: &Room, rehearsed: Option<Rehearsed>) -> Result<Self> {
        let replay = rehearsed
            .map(|rehearsed| rehearsed.downcast::<Spilled>().map_err(|_| Error::internal("another piece's rehearsal")))
            .transpose()?
            .map(|spilled| Replay::new(spilled, room.bytes));
        Ok(Self { room: Some(room.bytes), replay, ..Self::default() })
    }

    /// All of them, as bytes.
    ///
    /// # Errors
    /// If they come from a rehearsal.
    pub fn save(&self) -> Result<Vec<u8>> {
        if self.replay.is_some() {
            return Err(Error::internal("counts on scratch are no other process's"));
        }
        let tables: Vec<_> = self.counters.iter().map(Counter::tables).collect();
        rmp_serde::to_vec(&(&self.kinds, tables)).map_err(|e| Error::internal(format!("counts: {e}")))
    }

    /// Counts on from those that [`Self::save`] gave.
    ///
    /// # Errors
    /// If it did not.
    pub fn restore(&mut self, saved: &[u8]) -> Result<()> {
        let (kinds, tables): (Kinds, Vec<Vec<Table>>) =
            rmp_serde::from_slice(saved).map_err(|e| Error::internal(format!("counts: {e}")))?;
        let counters = kinds.0.iter().zip(tables).map(|(types, tables)| Counter::filled(types, tables));
        self.counters = counters.collect::<Result<_>>()?;
        self.kinds = kinds;
        Ok(())
    }

    /// Whether they hold more than they may.
    pub fn outgrown(&self) -> bool {
        self.room.is_some_and(|room| self.counters.iter().map(Counter::bytes).sum::<usize>() > room)
    }

    /// How often each observation came up so far, this time included; by share and row.
    ///
    /// # Errors
    /// If scratch space fails.
    pub fn count(&mut self, compat: Compat, observed: &Observed) -> Result<Vec<Vec<u64>>> {
        let mut kind_of = Vec::with_capacity(observed.shares.len());
        for share in &observed.shares {
            let kind = self.kinds.number(compat, &share.types)?;
            if kind == self.counters.len() {
                self.counters.push(Counter::new(&share.types));
            }
            kind_of.push(kind);
        }
        let keys: Vec<&Keys> = observed.shares.iter().map(|s| &s.keys).collect();
        let mut counts: Vec<Vec<u64>> = keys.iter().map(|k| vec![1; k.hashes.len()]).collect();
        for (kind, counter) in self.counters.iter_mut().enumerate() {
            let rows = observed.rows_of(|m| kind_of[m] == kind);
            match &mut self.replay {
                Some(replay) => replay.count(kind, &keys, &rows, &mut counts)?,
                None => counter.count(&keys, &rows, &mut counts)?,
            }
        }
        Ok(counts)
    }
}
