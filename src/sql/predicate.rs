//! `input.where`: which episodes to keep.

use super::{Expression, Failed, Kind, Offer, Values};
use crate::error::{Error, Result};
use crate::tensor::DType;

/// One row an episode.
#[derive(Debug, Clone, Default)]
pub struct EpisodeTable {
    /// Columns by name, with as many rows as there are episodes.
    pub columns: Vec<(&'static str, Values)>,
    /// How many episodes there are.
    pub rows: usize,
}

/// Reads a predicate over the columns that there are, before there are any rows.
///
/// # Errors
/// If it is no SQL, names another column, or is not true or false.
pub fn predicate(sql: &str, offer: &Offer) -> Result<Expression> {
    let expression = Expression::compile(sql, offer)?;
    if expression.dtype() == DType::Bool {
        return Ok(expression);
    }
    let what = format!("the predicate `{sql}` gives {}, expected true or false for each episode", expression.dtype());
    Err(Error::usage(what).hint("compare with something: episode_return > 100"))
}

/// Which rows of the table a predicate holds for; null is no.
///
/// # Errors
/// If the predicate does not fit the table, or cannot be computed.
pub fn choose(table: &EpisodeTable, predicate: &str) -> Result<Vec<bool>> {
    let mut offer = Offer::default();
    for (name, values) in &table.columns {
        match values {
            Values::Numbers(tensor) => offer.push_tensor(name, tensor.ty()),
            Values::Text(_) => offer.push(name, Kind::Text),
        }
    }
    let expression = self::predicate(predicate, &offer)?;
    let mut column = |name: &str| {
        let found = table.columns.iter().find(|(n, _)| *n == name).map(|(_, values)| values.clone());
        found.ok_or_else(|| Error::internal(format!("no column {name} in the episode table")))
    };
    let outcome = expression.evaluate(&mut column, &[0, table.rows]).map_err(|Failed { error, .. }| error)?;
    // Where it is null, the value is 0.
    Ok(outcome.values.bytes().iter().map(|b| *b != 0).collect())
}
