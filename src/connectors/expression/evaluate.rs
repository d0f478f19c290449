//! Expressions over the rows of a batch, and putting what they give where it belongs.

use std::sync::Arc;

use super::compile::{Compiled, EPISODE_LENGTH, EPISODE_RETURN, Goal, is_of_the_chunk};
use crate::batch::ModuleBatch;
use crate::column::{AGENT_ID, EPS_ID, STATE_OUT, T, TERMINATEDS, TRUNCATEDS, is_under};
use crate::episode::{Columns, EpisodeBatch};
use crate::error::{Error, Result};
use crate::sql::{self, Failed, Kind, Values};
use crate::tensor::{DType, Tensor, TensorBuilder};

/// Rows that an expression is evaluated on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The steps.
    Steps,
    /// The observations after the last steps.
    Last,
    /// The rows before the chunks.
    History,
}

/// The rows before the chunks: `None` where an expression has no value there.
pub(super) fn look_back(one: &Compiled, episodes: &EpisodeBatch, batch: &ModuleBatch) -> Result<Option<Tensor>> {
    let rows = episodes.history_offsets.last().copied().unwrap_or(0);
    let held = |name: &String| is_of_the_chunk(name) || find(&episodes.history, name).is_some() || is_flag(name);
    if rows == 0 {
        let empty = Tensor::zeros(one.expression.dtype().scalar(), 0);
        return Ok(episodes.history.get(one.goal.leaf()).map(|_| empty));
    }
    if one.expression.by_row() && one.expression.names().iter().all(held) {
        return evaluate(one, episodes, batch, Place::History).map(Some);
    }
    if is_under(one.goal.leaf(), STATE_OUT) {
        let what = "the state before a chunk is needed, and the expression looks at other rows";
        return Err(Error::data(what).column(one.goal.leaf()));
    }
    Ok(None)
}

fn is_flag(name: &str) -> bool {
    matches!(name, TERMINATEDS | TRUNCATEDS)
}

/// The tensor that a column's name stands for, and which element of its rows.
fn find<'a>(columns: &'a Columns, name: &str) -> Option<(&'a Tensor, usize)> {
    if let Some(scalar) = columns.get(name) {
        return Some((scalar, 0));
    }
    let (leaf, index) = sql::element(name)?;
    columns.get(leaf).map(|tensor| (tensor, index))
}

/// One expression over all chunks.
pub(super) fn evaluate(one: &Compiled, episodes: &EpisodeBatch, batch: &ModuleBatch, place: Place) -> Result<Tensor> {
    let last: Vec<usize>;
    let (columns, offsets): (&Columns, &[usize]) = match place {
        Place::Steps => (&episodes.steps, &episodes.offsets),
        Place::Last => {
            last = (0..=episodes.len()).collect();
            (&episodes.last_obs, &last)
        }
        Place::History => (&episodes.history, &episodes.history_offsets),
    };
    let rows = Frame { episodes, batch, columns, offsets, place };
    if offsets.last().is_none_or(|n| *n == 0) {
        return Ok(Tensor::zeros(one.expression.dtype().scalar(), 0));
    }
    let at = |error: Error, chunk: usize| error.episode(episodes.chunks[chunk].id.to_string());
    let outcome = one.expression.evaluate(&mut |name| rows.column(name), offsets).map_err(|failed| {
        let Failed { chunk, error } = failed;
        let error = error.column(one.goal.leaf());
        match chunk {
            Some(chunk) => at(error, chunk),
            None => error,
        }
    })?;
    for row in outcome.nulls {
        let chunk = offsets.partition_point(|start| *start <= row) - 1;
        if place == Place::Last && !episodes.chunks[chunk].has_last_obs {
            continue;
        }
        let error = Error::data("the expression gives null, expected a value").column(one.goal.leaf());
        let error = error.hint("COALESCE(x, 0) puts a value in the place of null");
        return Err(at(error, chunk).t(rows.t(chunk, row)));
    }
    Ok(outcome.values)
}

/// Where expressions find their columns.
struct Frame<'a> {
    episodes: &'a EpisodeBatch,
    batch: &'a ModuleBatch,
    columns: &'a Columns,
    offsets: &'a [usize],
    place: Place,
}

impl Frame<'_> {
    fn column(&self, name: &str) -> Result<Values> {
        if let Some((tensor, index)) = find(self.columns, name) {
            return Ok(Values::Numbers(element_of(tensor, index)?));
        }
        let chunks = &self.episodes.chunks;
        let numbers = |t| Ok(Values::Numbers(t));
        match name {
            T => {
                let of = |i: usize| (self.offsets[i]..self.offsets[i + 1]).map(move |row| self.t(i, row));
                let all: Vec<i64> = (0..chunks.len()).flat_map(of).collect();
                numbers(Tensor::from_values::<i64>([], &all))
            }
            TERMINATEDS | TRUNCATEDS => numbers(self.flags(name)),
            EPISODE_LENGTH => {
                let length = |i| i64::try_from(self.episodes.rows(i).len()).unwrap_or(i64::MAX);
                numbers(Tensor::from_values::<i64>([], &self.spread(length)))
            }
            EPISODE_RETURN => {
                let returns = self.episodes.returns()?;
                numbers(Tensor::from_values::<f64>([], &self.spread(|i| returns[i])))
            }
            EPS_ID => Ok(Values::Text(self.spread(|i| Arc::from(chunks[i].id.to_string())))),
            AGENT_ID => Ok(Values::Text(self.spread(|i| chunks[i].agent_id.clone().unwrap_or_default()))),
            _ => Err(Error::internal(format!("no column {name} for an expression"))),
        }
    }

    /// The chunk's value in each of its rows.
    fn spread<V: Clone>(&self, of: impl Fn(usize) -> V) -> Vec<V> {
        let rows = |i: usize| self.offsets[i + 1] - self.offsets[i];
        (0..self.episodes.len()).flat_map(|i| std::iter::repeat_n(of(i), rows(i))).collect()
    }

    /// The time step of a row.
    fn t(&self, chunk: usize, row: usize) -> i64 {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let start = self.episodes.chunks[chunk].t_started;
        match self.place {
            Place::Steps => start.saturating_add(number(row - self.offsets[chunk])),
            Place::Last => start.saturating_add(number(self.episodes.rows(chunk).len())),
            Place::History => start.saturating_sub(number(self.offsets[chunk + 1] - row)),
        }
    }

    /// The flags of the steps: those that a piece has put into the batch, else those of the chunks' ends.
    fn flags(&self, name: &str) -> Tensor {
        let rows = self.offsets.last().copied().unwrap_or(0);
        if self.place == Place::Steps
            && let Some(set) = self.batch.get(name)
            && *set.ty() == DType::Bool.scalar()
            && set.rows() == rows
        {
            return set.clone();
        }
        let mut flags = vec![false; rows];
        if self.place == Place::Steps {
            for (i, chunk) in self.episodes.chunks.iter().enumerate() {
                if let Some(last) = self.episodes.rows(i).last() {
                    flags[last] = if name == TERMINATEDS { chunk.terminated } else { chunk.truncated };
                }
            }
        }
        Tensor::from_bools(flags)
    }
}

/// Element `index` of every row, in a dtype that expressions know.
fn element_of(tensor: &Tensor, index: usize) -> Result<Tensor> {
    let dtype = tensor.ty().dtype;
    let one = if tensor.ty().shape.is_empty() {
        tensor.clone()
    } else {
        let size = dtype.size();
        let mut out = TensorBuilder::with_capacity(dtype.scalar(), tensor.rows());
        for i in 0..tensor.rows() {
            out.extend_bytes(&tensor.row(i)[index * size..(index + 1) * size], 1);
        }
        out.finish()
    };
    match Kind::of(dtype) {
        Kind::Number(seen) => one.cast(seen),
        Kind::Text => Ok(one),
    }
}

/// Puts values where they belong.
pub(super) fn put(columns: &mut Columns, one: &Compiled, values: &Tensor) -> Result<()> {
    let leaf = one.goal.leaf();
    let old = columns.get(leaf);
    let values = one.fitted(values.clone(), old.map(Tensor::ty))?;
    let new = match (&one.goal, old) {
        (Goal::Column(_), _) => values,
        (Goal::Element { .. }, None) => return Ok(()),
        (Goal::Element { index, .. }, Some(old)) => {
            let (row, size) = (old.ty().row_bytes(), old.ty().dtype.size());
            let mut bytes = old.bytes().to_vec();
            for i in 0..old.rows() {
                bytes[i * row + index * size..][..size].copy_from_slice(values.row(i));
            }
            let mut out = TensorBuilder::with_capacity(old.ty().clone(), old.rows());
            out.extend_bytes(&bytes, old.rows());
            out.finish()
        }
    };
    columns.set(leaf, new);
    Ok(())
}

pub(super) fn without(columns: &Columns, leaf: &str) -> Columns {
    columns.iter().filter(|(n, _)| ***n != *leaf).map(|(n, t)| (Arc::clone(n), t.clone())).collect()
}
