//! The train batch while the pipeline builds it.
//!
//! RLlib keeps, per column, a dict of lists that [`BatchIndividualItems`](crate::connectors) joins at the end. Here
//! a column is one tensor from the start: its rows are those of the episodes, in order, so joining is free.

use std::sync::Arc;

use crate::column;
use crate::indexed::{Stored, Windowed};
use crate::tensor::{Tensor, TensorType};
use crate::window::{Spec, Windows};

/// What a row of a column stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// One step.
    Steps,
    /// One sequence of steps (or something per sequence, like `state_in`); see [`BatchLayout::windows`].
    Sequences,
}

/// How far the batch has come. A piece that adds per-step items must run while the batch still holds items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Stage {
    /// Lists of items per episode.
    #[default]
    Items,
    /// One array per column (after `BatchIndividualItems`).
    Batched,
    /// Tensors (after `NumpyToTensor`).
    Tensors,
}

/// One column of a batch.
#[derive(Debug, Clone)]
pub enum Column {
    /// Every row as it is.
    Whole(Tensor),
    /// Windows that are not laid out; see [`crate::indexed`].
    Windows(Windowed),
}

impl Column {
    /// Dtype and shape of a row, laid out.
    #[must_use]
    pub const fn ty(&self) -> &TensorType {
        match self {
            Self::Whole(t) => t.ty(),
            Self::Windows(w) => w.ty(),
        }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Self::Whole(t) => t.rows(),
            Self::Windows(w) => w.index().rows(),
        }
    }

    /// The rows, laid out.
    #[must_use]
    pub fn tensor(&self) -> &Tensor {
        match self {
            Self::Whole(t) => t,
            Self::Windows(w) => w.whole(),
        }
    }

    /// How it is stored, if not as it is.
    #[must_use]
    pub const fn stored(&self) -> Option<&Stored> {
        match self {
            Self::Whole(_) => None,
            Self::Windows(w) => Some(w.stored()),
        }
    }
}

/// Columns are equal if their rows are.
impl PartialEq for Column {
    fn eq(&self, other: &Self) -> bool {
        self.tensor() == other.tensor()
    }
}

impl From<Tensor> for Column {
    fn from(tensor: Tensor) -> Self {
        Self::Whole(tensor)
    }
}

/// The train batch of one module.
#[derive(Debug, Clone, Default)]
pub struct ModuleBatch {
    columns: Vec<(String, Column)>,
    windows: Option<Arc<Windows>>,
    joined: bool,
}

impl ModuleBatch {
    /// Whether the column `root`, or a leaf of it, is there.
    #[must_use]
    pub fn has(&self, root: &str) -> bool {
        self.columns.iter().any(|(n, _)| column::is_under(n, root))
    }

    /// The rows of column `name`, laid out.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.columns.iter().find(|(n, _)| n == name).map(|(_, column)| column.tensor())
    }

    /// Adds a column. The layout phase has made sure that there is none of that name.
    pub fn push(&mut self, name: impl Into<String>, data: impl Into<Column>) {
        self.columns.push((name.into(), data.into()));
    }

    /// All columns in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Column)> {
        self.columns.iter().map(|(n, column)| (n.as_str(), column))
    }

    /// All columns, to be changed in place.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Column)> {
        self.columns.iter_mut().map(|(n, column)| (n.as_str(), column))
    }

    /// The steps of each row, once rows are sequences.
    #[must_use]
    pub fn windows(&self) -> Option<&Arc<Windows>> {
        self.windows.as_ref()
    }

    /// Says that rows are sequences from now on, and which steps each of them holds.
    pub fn set_windows(&mut self, windows: Windows) {
        self.windows = Some(Arc::new(windows));
    }

    /// Says that the items of each column are joined from now on; see [`ModuleBatch::is_view`].
    pub const fn set_joined(&mut self) {
        self.joined = true;
    }

    /// Whether column `name` is, in RLlib, a view of the episodes' array `of`: added as it is, neither cut into sequences
    /// nor joined since. What is written into the episodes later shows in such a column.
    #[must_use]
    pub fn is_view(&self, name: &str, of: &Tensor) -> bool {
        !self.joined && self.windows.is_none() && self.get(name).is_some_and(|column| column.shares_memory(of))
    }

    /// The columns themselves.
    #[must_use]
    pub fn into_columns(self) -> Vec<(String, Column)> {
        self.columns
    }
}

/// One column that a batch will have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnLayout {
    /// Canonical name.
    pub name: String,
    /// Dtype and shape of a row.
    pub ty: TensorType,
    /// What a row stands for.
    pub rows: Rows,
    /// How it is stored, if its windows are not laid out.
    pub stored: Option<Stored>,
}

impl ColumnLayout {
    /// A column whose rows are stored as they are.
    #[must_use]
    pub fn new(name: impl Into<String>, ty: TensorType, rows: Rows) -> Self {
        Self { name: name.into(), ty, rows, stored: None }
    }
}

/// What a [`ModuleBatch`] will hold, known before data is read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BatchLayout {
    /// The columns in order.
    pub columns: Vec<ColumnLayout>,
    /// How far the batch has come.
    pub stage: Stage,
    /// How episodes are cut into sequences, once they are.
    pub windows: Option<Spec>,
}

impl BatchLayout {
    /// Whether the column `root`, or a leaf of it, is there.
    #[must_use]
    pub fn has(&self, root: &str) -> bool {
        self.columns.iter().any(|c| column::is_under(&c.name, root))
    }

    /// Adds a column.
    pub fn push(&mut self, name: impl Into<String>, ty: TensorType, rows: Rows) {
        self.columns.push(ColumnLayout::new(name, ty, rows));
    }
}
