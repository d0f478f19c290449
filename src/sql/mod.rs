//! SQL over columns: the one place that knows polars.
//!
//! An [`Expression`] is compiled against the columns that there are, before any data is read; what it reads, what it
//! gives and whether it looks at other rows is known from then on. Its text is Polars SQL
//! (<https://docs.pola.rs/api/python/stable/reference/sql/>), one expression, no statement.
//!
//! ```text
//! "rewards - avg(rewards)"  ──parse──▶  polars expression  ──types──▶  typed tree  ──▶  evaluated chunk by chunk
//!                                       unknown columns                exact arithmetic
//! ```
//!
//! * **Rows.** An expression whose value depends on its own row alone is evaluated over many chunks in one go. Any
//!   other is evaluated over each chunk by itself, so its result cannot depend on how work is cut.
//! * **Arithmetic** on floats is IEEE arithmetic, each operation rounded once, as in `NumPy`: `x / 10.0` divides.
//!   (Polars multiplies by `1 / 10.0`, which is another number for one value in four.) No operation is moved, merged
//!   or computed beforehand.
//! * **Threads.** Everything runs on the calling thread, apart from sorts and `OVER`, which polars may hand to a pool of
//!   its own without changing the result.
//! * **Speed.** A row by itself and plain aggregates cost little more than reading their columns; `OVER` costs some 75 us
//!   a chunk.
//!
//! Without the cargo feature `sql` the same names exist, and every expression is refused.

#[cfg_attr(not(feature = "sql"), path = "absent.rs")]
mod engine;
mod offer;
mod predicate;

use std::sync::Arc;

pub use engine::Expression;
pub use offer::{Kind, Offer, element};
pub use predicate::{EpisodeTable, choose, predicate};

use crate::error::Error;
use crate::tensor::Tensor;

/// The values of a column, one a row.
#[derive(Debug, Clone)]
pub enum Values {
    /// Scalars.
    Numbers(Tensor),
    /// Text.
    Text(Vec<Arc<str>>),
}

/// What an expression gave.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// One scalar a row; 0 where the expression gave null.
    pub values: Tensor,
    /// The rows where it gave null.
    pub nulls: Vec<usize>,
}

/// An evaluation that failed.
#[derive(Debug)]
pub struct Failed {
    /// The chunk in which it failed, where that is known.
    pub chunk: Option<usize>,
    /// Why.
    pub error: Error,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { chunk: None, error }
    }
}

#[cfg(all(test, feature = "sql"))]
mod tests;
