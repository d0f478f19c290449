//! The train batch while the pipeline builds it.
//!
//! RLlib keeps, per column, a dict of lists that [`BatchIndividualItems`](crate::connectors) joins at the end. Here
//! a column is one tensor from the start: its rows are those of the episodes, in order, so joining is free.

use std::sync::Arc;

use crate::column;
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

/// The train batch of one module.
#[derive(Debug, Clone, Default)]
pub struct ModuleBatch {
    columns: Vec<(String, Tensor)>,
    windows: Option<Arc<Windows>>,
}

impl ModuleBatch {
    /// Whether the column `root`, or a leaf of it, is there.
    #[must_use]
    pub fn has(&self, root: &str) -> bool {
        self.columns.iter().any(|(n, _)| column::is_under(n, root))
    }

    /// The column `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.columns.iter().find(|(n, _)| n == name).map(|(_, t)| t)
    }

    /// Adds a column. The layout phase has made sure that there is none of that name.
    pub fn push(&mut self, name: impl Into<String>, data: Tensor) {
        self.columns.push((name.into(), data));
    }

    /// All columns in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.columns.iter().map(|(n, t)| (n.as_str(), t))
    }

    /// All columns, to be changed in place.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Tensor)> {
        self.columns.iter_mut().map(|(n, t)| (n.as_str(), t))
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

    /// The columns themselves.
    #[must_use]
    pub fn into_columns(self) -> Vec<(String, Tensor)> {
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
        self.columns.push(ColumnLayout { name: name.into(), ty, rows });
    }
}
