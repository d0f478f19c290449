//! Stands in for the engine in a build without the cargo feature `sql`.

use super::{Failed, Offer, Outcome, Values};
use crate::error::{Error, Result};
use crate::tensor::DType;

/// An expression that nothing here can evaluate. There is none: [`Expression::compile`] always fails.
#[derive(Debug)]
pub enum Expression {}

impl Expression {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn compile(_: &str, _: &Offer) -> Result<Self> {
        Err(Error::usage("this gristmill was built without SQL")
            .hint("build it with the cargo feature `sql`, which is on by default"))
    }

    /// The columns that it reads.
    #[must_use]
    pub fn names(&self) -> &[String] {
        match *self {}
    }

    /// What it gives.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match *self {}
    }

    /// Whether a row's value depends on that row alone.
    #[must_use]
    pub fn by_row(&self) -> bool {
        match *self {}
    }

    /// The values.
    ///
    /// # Errors
    /// Never: there is no such expression.
    pub fn evaluate(&self, _: &mut dyn FnMut(&str) -> Result<Values>, _: &[usize]) -> Result<Outcome, Failed> {
        match *self {}
    }
}
