//! Episodes as columns: what connectors read and, sometimes, reshape.
//!
//! An [`EpisodeBatch`] holds whole episodes (or recorded chunks of episodes) of one module, back to back:
//!
//! ```text
//!               chunk 0 (L = 3)      chunk 1 (L = 2)      L = steps of the chunk
//! steps.obs     o0  o1  o2           p0  p1               observation *before* each action
//! steps.actions a0  a1  a2           b0  b1
//! offsets       0                    3            5       chunk i is rows offsets[i]..offsets[i + 1]
//! last_obs      o3                   p2                   observation after the chunk's last step, one row a chunk
//! history.obs   (none)               .. p-2 p-1           look-back: rows right before the chunk's first step
//! history_offsets  0   0             2
//! ```
//!
//! Observations stand once: `obs[1..=L]` is `steps.obs[1..]` followed by `last_obs`. A chunk that starts its episode
//! has `t_started == 0` and no history.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::column;
use crate::error::{Error, Result};
use crate::tensor::{DType, Tensor, TensorBuilder, TensorType};

/// An episode id as recorded.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EpisodeId {
    /// An integer column.
    Int(i64),
    /// A text column.
    Str(Arc<str>),
}

impl fmt::Display for EpisodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(i) => write!(f, "{i}"),
            Self::Str(s) => f.write_str(s),
        }
    }
}

/// One episode, or one recorded chunk of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Id of the episode.
    pub id: EpisodeId,
    /// Agent, in multi-agent data.
    pub agent_id: Option<Arc<str>>,
    /// Place in dataset order, counted over all modules. RLlib's batch keys may move rows; pieces that look at what
    /// came before go by this.
    pub ordinal: u32,
    /// Place in columns that RLlib keys by ids without the chunk's number; see [`crate::source::keys`].
    pub bare_rank: u32,
    /// Steps of the episode before this chunk.
    pub t_started: i64,
    /// The chunk's last step ended the episode.
    pub terminated: bool,
    /// The episode was cut short after the chunk's last step.
    pub truncated: bool,
    /// Whether the observation after the last step was recorded.
    pub has_last_obs: bool,
}

/// Columns by name, in the order they were added.
#[derive(Debug, Clone, Default)]
pub struct Columns {
    list: Vec<(Arc<str>, Tensor)>,
    /// Where each name stands first, once there are more than a few.
    places: HashMap<Arc<str>, usize>,
}

/// So many names are compared faster than hashed.
const FEW: usize = 32;

impl PartialEq for Columns {
    fn eq(&self, other: &Self) -> bool {
        self.list == other.list
    }
}

impl Columns {
    fn place(&self, name: &str) -> Option<usize> {
        if self.list.len() <= FEW {
            return self.list.iter().position(|(n, _)| &**n == name);
        }
        self.places.get(name).copied()
    }

    /// The column `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.place(name).map(|i| &self.list[i].1)
    }

    /// The column at position `i`.
    #[must_use]
    pub fn at(&self, i: usize) -> &Tensor {
        &self.list[i].1
    }

    /// Adds a column, or replaces the one of that name in its place.
    pub fn set(&mut self, name: impl Into<Arc<str>>, tensor: Tensor) {
        let name = name.into();
        match self.place(&name) {
            Some(i) => self.list[i].1 = tensor,
            None => self.push(name, tensor),
        }
    }

    fn push(&mut self, name: Arc<str>, tensor: Tensor) {
        self.list.push((name, tensor));
        let new = if self.list.len() == FEW + 1 { 0 } else { self.list.len() - 1 };
        if self.list.len() > FEW {
            for (i, (name, _)) in self.list.iter().enumerate().skip(new) {
                self.places.entry(Arc::clone(name)).or_insert(i);
            }
        }
    }

    /// All columns in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Tensor)> {
        self.list.iter().map(|(n, t)| (n, t))
    }

    /// The leaves of the column `root`.
    pub fn under<'a>(&'a self, root: &'a str) -> impl Iterator<Item = (&'a Arc<str>, &'a Tensor)> {
        self.iter().filter(move |(n, _)| column::is_under(n, root))
    }
}

impl FromIterator<(Arc<str>, Tensor)> for Columns {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Tensor)>>(iter: I) -> Self {
        let mut out = Self::default();
        for (name, tensor) in iter {
            out.push(name, tensor);
        }
        out
    }
}

/// Whole episodes or chunks of one module, back to back. See the module's figure.
#[derive(Debug, Clone, Default)]
pub struct EpisodeBatch {
    /// One per episode or chunk, in output order.
    pub chunks: Vec<Chunk>,
    /// Where each chunk's rows start in [`Self::steps`]; one more than there are chunks.
    pub offsets: Vec<usize>,
    /// One row a step: observations, actions, rewards, extra model outputs, and infos where a piece looks at them.
    pub steps: Columns,
    /// The observation after each chunk's last step (zeros where it was not recorded), one row a chunk. The infos that
    /// came with it, too, where infos are read (those of the last step where none were recorded).
    pub last_obs: Columns,
    /// Where each chunk's look-back rows start in [`Self::history`]; one more than there are chunks.
    pub history_offsets: Vec<usize>,
    /// The rows right before each chunk's first step, oldest first.
    pub history: Columns,
}

impl EpisodeBatch {
    /// Number of chunks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Whether there is no chunk.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Number of steps.
    #[must_use]
    pub fn steps_len(&self) -> usize {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// The lengths of the chunks.
    #[must_use]
    pub fn lengths(&self) -> impl ExactSizeIterator<Item = usize> {
        self.offsets.windows(2).map(|w| w[1] - w[0])
    }

    /// The rows of chunk `i` in [`Self::steps`].
    #[must_use]
    pub fn rows(&self, i: usize) -> std::ops::Range<usize> {
        self.offsets[i]..self.offsets[i + 1]
    }

    /// The rows of chunk `i` in [`Self::history`].
    #[must_use]
    pub fn history_rows(&self, i: usize) -> std::ops::Range<usize> {
        self.history_offsets[i]..self.history_offsets[i + 1]
    }

    /// `obs[1..=L]` of every chunk for one observation leaf: the steps' observations shifted by one.
    ///
    /// # Errors
    /// If the last observation of a chunk with steps was not recorded.
    pub fn next_obs(&self, leaf: &str) -> Result<Tensor> {
        let obs = self.steps.get(leaf).ok_or_else(|| Error::internal(format!("no observation leaf {leaf}")))?;
        let last = self.last_obs.get(leaf).ok_or_else(|| Error::internal(format!("no last observation {leaf}")))?;
        let mut out = TensorBuilder::with_capacity(obs.ty().clone(), obs.rows());
        for i in 0..self.len() {
            let rows = self.rows(i);
            if rows.is_empty() {
                continue;
            }
            self.require_last_obs(i)?;
            out.extend(obs, rows.start + 1, rows.len() - 1);
            out.extend(last, i, 1);
        }
        Ok(out.finish())
    }

    /// The reward of each step in float64.
    ///
    /// # Errors
    /// If rewards are not one number a step.
    pub fn rewards(&self) -> Result<Tensor> {
        let rewards = self.steps.get(column::REWARDS).filter(|r| r.ty().shape.is_empty());
        rewards.ok_or_else(|| Error::internal("a return needs one reward a step"))?.cast(DType::Float64)
    }

    /// The sum of each chunk's rewards in float64, step by step.
    ///
    /// # Errors
    /// If rewards are not one number a step.
    pub fn returns(&self) -> Result<Vec<f64>> {
        let rewards = self.rewards()?;
        let values = rewards.values::<f64>();
        Ok((0..self.len()).map(|i| values[self.rows(i)].iter().fold(0.0, |sum, r| sum + r)).collect())
    }

    /// The error for a chunk whose last observation is needed and was not recorded.
    pub fn require_last_obs(&self, i: usize) -> Result<()> {
        let chunk = &self.chunks[i];
        if chunk.has_last_obs {
            return Ok(());
        }
        Err(Error::data("the observation after the episode's last step is needed and was not recorded")
            .episode(chunk.id.to_string())
            .column(column::NEXT_OBS)
            .hint(RECORD_LAST_OBS))
    }
}

/// What to do about an episode without the observation after its last step.
pub(crate) const RECORD_LAST_OBS: &str = "record `new_obs`, or one more row with the last observation and a null action; \
    or use pieces that do not need next observations";

/// What to do about an input that has none at all.
pub(crate) const NAME_LAST_OBS: &str = "map a column to it (`[input] columns = { new_obs = \"...\" }`), or record one more \
    row an episode with the last observation and a null action";

/// Names and types of what an [`EpisodeBatch`] will hold, known before data is read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpisodeLayout {
    /// The step columns in order: observations, actions, rewards, extra model outputs.
    pub steps: Vec<(Arc<str>, TensorType)>,
    /// Whether chunks come with the observation after their last step, as far as schemas can tell.
    pub last_obs: bool,
}

impl EpisodeLayout {
    /// The type of the step column `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&TensorType> {
        self.steps.iter().find(|(n, _)| &**n == name).map(|(_, t)| t)
    }

    /// The types of all step columns by name, for whoever asks for more than a few.
    #[must_use]
    pub fn by_name(&self) -> HashMap<&str, &TensorType> {
        self.steps.iter().rev().map(|(name, ty)| (&**name, ty)).collect()
    }

    /// The leaves of the column `root`.
    pub fn under<'a>(&'a self, root: &'a str) -> impl Iterator<Item = (&'a Arc<str>, &'a TensorType)> {
        self.steps.iter().filter(move |(n, _)| column::is_under(n, root)).map(|(n, t)| (n, t))
    }

    /// Whether `root` has any leaf.
    #[must_use]
    pub fn has(&self, root: &str) -> bool {
        self.under(root).next().is_some()
    }

    /// The columns that are neither observation, action, reward nor info: the extra model outputs.
    pub fn extras(&self) -> impl Iterator<Item = (&Arc<str>, &TensorType)> {
        self.steps.iter().filter(|(n, _)| is_extra(n)).map(|(n, t)| (n, t))
    }
}

/// Whether a step column is an extra model output.
#[must_use]
pub fn is_extra(name: &str) -> bool {
    !matches!(column::root(name), column::OBS | column::ACTIONS | column::REWARDS | column::INFOS)
}
