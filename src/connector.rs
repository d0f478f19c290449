//! What a connector piece is.
//!
//! A piece runs in two phases. [`Connector::layout`] sees only names, dtypes and shapes: it says what will come out,
//! or why nothing can. [`Connector::apply`] then does it, keeping that promise; the pipeline checks that it did. So a
//! wrong job fails before the first row is read.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::batch::{BatchLayout, ModuleBatch, Rows, Stage};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::job::{Compat, ModuleSettings};
use crate::tensor::TensorType;

/// What a piece may know of its surroundings.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The settings of the module whose batch is built.
    pub module: &'a ModuleSettings,
    /// RLlib's behaviour to the letter, or repaired.
    pub compat: Compat,
}

/// The layout phase: what comes in, changed in place into what goes out.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Names, dtypes and shapes of the episodes.
    pub episodes: &'a mut EpisodeLayout,
    /// Names, dtypes and shapes of the batch so far.
    pub batch: &'a mut BatchLayout,
}

impl Plan<'_> {
    /// Adds per-step column `name`, unless its root stood in the batch when the piece started.
    ///
    /// # Errors
    /// If items can no longer be added.
    pub fn add_steps(&mut self, name: &str, ty: TensorType) -> Result<()> {
        if self.batch.stage > Stage::Items {
            return Err(Error::usage(format!("adds `{name}` item by item, but the batch is already joined"))
                .hint("put this piece before BatchIndividualItems"));
        }
        self.batch.push(name, ty, Rows::Steps);
        Ok(())
    }
}

/// The rows that a repair of RLlib's behaviour touched, by the repair's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repairs(Vec<(&'static str, u64)>);

impl Repairs {
    /// Counts `rows` rows for `repair`.
    pub fn count(&mut self, repair: &'static str, rows: u64) {
        if rows == 0 {
            return;
        }
        match self.0.iter_mut().find(|(n, _)| *n == repair) {
            Some((_, n)) => *n += rows,
            None => self.0.push((repair, rows)),
        }
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        for &(name, rows) in &other.0 {
            self.count(name, rows);
        }
    }

    /// The counts, sorted by name.
    #[must_use]
    pub fn sorted(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.0.clone();
        all.sort_unstable();
        all
    }
}

/// One piece of the learner connector pipeline.
pub trait Connector: Debug + Send + Sync {
    /// The name in a job file: RLlib's class name where RLlib has the piece.
    fn name(&self) -> &'static str;

    /// The options with all defaults filled in, for the manifest.
    fn config(&self) -> serde_json::Value;

    /// What will come out, from what comes in.
    ///
    /// # Errors
    /// If this piece cannot run on such data, with the reason.
    fn layout(&self, cx: Context<'_>, plan: &mut Plan<'_>) -> Result<()>;

    /// Changes episodes and batch as [`Connector::layout`] foretold.
    ///
    /// # Errors
    /// If the data break a rule that only data can show.
    fn apply(
        &self,
        cx: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        repairs: &mut Repairs,
    ) -> Result<()>;
}

/// A connector whose fields are its options in a job file.
pub trait Piece: Connector + Serialize + DeserializeOwned + schemars::JsonSchema + Default + 'static {
    /// The name in a job file.
    const NAME: &'static str;

    /// Refuses option values that a type cannot exclude.
    ///
    /// # Errors
    /// With the option and what is allowed.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// The two methods of [`Connector`] that follow from [`Piece`].
macro_rules! piece_boilerplate {
    () => {
        fn name(&self) -> &'static str {
            <Self as $crate::connector::Piece>::NAME
        }
        fn config(&self) -> serde_json::Value {
            serde_json::to_value(self).expect("options are plain data")
        }
    };
}
pub(crate) use piece_boilerplate;
