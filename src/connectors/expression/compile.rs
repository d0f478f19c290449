//! Expressions against the columns that there are: which they read, what they give, and where it goes.

use std::sync::Arc;

use super::{Expression, Target};
use crate::column::{
    ACTIONS, AGENT_ID, ENV_T, EPS_ID, INFOS, LOSS_MASK, MODULE_ID, NEXT_OBS, NEXT_STATE_IN, OBS, REWARDS, SEQ_LENS, T,
    TERMINATEDS, TRUNCATEDS, is_inside, is_under, root,
};
use crate::episode::EpisodeLayout;
use crate::error::{Error, Result, closest};
use crate::sql::{self, Kind, Offer};
use crate::tensor::{DType, Tensor, TensorType};

pub(super) const EPISODE_LENGTH: &str = "episode_length";
pub(super) const EPISODE_RETURN: &str = "episode_return";

/// What becomes of an expression's values.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Goal {
    /// They are a column, replaced or added.
    Column(String),
    /// They are one element of a tensor.
    Element { leaf: String, index: usize },
}

impl Goal {
    /// The column that changes.
    pub(super) fn leaf(&self) -> &str {
        match self {
            Self::Column(leaf) | Self::Element { leaf, .. } => leaf,
        }
    }
}

/// An expression that fits its columns.
pub(super) struct Compiled {
    pub(super) goal: Goal,
    pub(super) expression: sql::Expression,
}

impl Compiled {
    /// The values in the dtype of the element that they become.
    pub(super) fn fitted(&self, values: Tensor, leaf: Option<&TensorType>) -> Result<Tensor> {
        match (&self.goal, leaf) {
            (Goal::Element { .. }, Some(ty)) => values.cast(ty.dtype),
            _ => Ok(values),
        }
    }
}

/// The columns that expressions over such episodes may name.
fn offer(steps: &[(Arc<str>, TensorType)]) -> Offer {
    let mut offer = Offer::default();
    for (name, ty) in steps {
        offer.push_tensor(name, ty);
    }
    offer.push(T, Kind::Number(DType::Int64));
    offer.push(TERMINATEDS, Kind::Number(DType::Bool));
    offer.push(TRUNCATEDS, Kind::Number(DType::Bool));
    offer.push(EPISODE_LENGTH, Kind::Number(DType::Int64));
    match steps.iter().find(|(n, _)| &**n == REWARDS) {
        Some((_, ty)) if ty.shape.is_empty() => offer.push(EPISODE_RETURN, Kind::Number(DType::Float64)),
        Some((_, ty)) => offer.refuse(EPISODE_RETURN, format!("the rewards are {ty}, and only scalars have one sum")),
        None => offer.refuse(EPISODE_RETURN, "there are no rewards"),
    }
    offer.push(EPS_ID, Kind::Text);
    offer.push(AGENT_ID, Kind::Text);
    offer
}

/// Whether a column has the same value in all rows of a chunk, or one that follows from the row's place.
pub(super) fn is_of_the_chunk(name: &str) -> bool {
    matches!(name, T | EPISODE_LENGTH | EPISODE_RETURN | EPS_ID | AGENT_ID)
}

impl Expression {
    pub(super) fn compile(&self, steps: &[(Arc<str>, TensorType)]) -> Result<Vec<Compiled>> {
        let offer = offer(steps);
        let mut all: Vec<Compiled> = Vec::with_capacity(self.columns.len());
        for (name, text) in &self.columns {
            let at = |e: Error| e.job_key(format!("columns.{name}"));
            let expression = sql::Expression::compile(text, &offer).map_err(at)?;
            let goal = match self.into {
                Target::Batch => Goal::Column(name.clone()),
                Target::Episodes => goal(name, steps).map_err(at)?,
            };
            if let Some(other) =
                all.iter().find(|o| o.goal.leaf() == goal.leaf() && (is_whole(&o.goal) || is_whole(&goal)))
            {
                let what = format!("`{}` is replaced as a whole and in parts", other.goal.leaf());
                return Err(at(Error::usage(what).hint("name either the tensor or its elements")));
            }
            all.push(Compiled { goal, expression });
        }
        Ok(all)
    }
}

fn is_whole(goal: &Goal) -> bool {
    matches!(goal, Goal::Column(_))
}

/// What an expression called `name` becomes in the episodes.
fn goal(name: &str, steps: &[(Arc<str>, TensorType)]) -> Result<Goal> {
    match root(name) {
        TERMINATEDS | TRUNCATEDS | NEXT_OBS | LOSS_MASK | SEQ_LENS | NEXT_STATE_IN | INFOS => {
            return Err(Error::usage(format!("`{name}` is no column of the episodes that could be replaced"))
                .hint("into = \"batch\" puts a column of this name into the batch"));
        }
        EPS_ID | AGENT_ID | MODULE_ID | T | ENV_T => return Err(names_a_row(name)),
        _ => {}
    }
    if steps.iter().any(|(n, _)| **n == *name) {
        return Ok(Goal::Column(name.to_owned()));
    }
    if let Some((leaf, index)) = sql::element(name)
        && let Some((_, ty)) = steps.iter().find(|(n, _)| **n == *leaf)
        && let [n] = ty.shape.as_slice()
    {
        if index < *n {
            return Ok(Goal::Element { leaf: leaf.to_owned(), index });
        }
        return Err(Error::usage(format!("`{leaf}` has {n} elements, found the name `{name}`")));
    }
    clash(name, steps.iter().map(|(n, _)| &**n))?;
    let near = closest(name, steps.iter().map(|(n, _)| &**n));
    if matches!(root(name), OBS | ACTIONS | REWARDS) && !steps.iter().any(|(n, _)| is_under(n, root(name))) {
        return Err(match near {
            Some(near) => Error::usage(format!("found no column `{name}`")).hint(format!("did you mean `{near}`?")),
            None => Error::usage(format!("found no column `{name}`")),
        });
    }
    Ok(Goal::Column(name.to_owned()))
}

pub(super) fn names_a_row(name: &str) -> Error {
    Error::usage(format!("`{name}` tells where a row comes from and cannot be computed"))
}

/// A name cannot be both a column and the root of others.
pub(super) fn clash<'a>(name: &str, mut others: impl Iterator<Item = &'a str>) -> Result<()> {
    match others.find(|other| is_inside(other, name) || is_inside(name, other)) {
        Some(other) => {
            Err(Error::usage(format!("`{name}` cannot stand beside `{other}`: one would be inside the other")))
        }
        None => Ok(()),
    }
}

/// What replaces an observation must have a value where there is no step.
pub(super) fn check_observation(compiled: &Compiled, layout: &EpisodeLayout) -> Result<()> {
    let e = &compiled.expression;
    let found = match e.names().iter().find(|n| !is_under(n, OBS) && !is_of_the_chunk(n)) {
        Some(name) => format!("reads `{name}`"),
        None if !e.by_row() => "looks at other rows".to_owned(),
        None => return Ok(()),
    };
    debug_assert!(layout.has(OBS), "a goal under obs has been found");
    Err(Error::usage(format!(
        "an observation also stands after the last step, where there is nothing else; its expression {found}"
    ))
    .hint(
        "read observations, t, eps_id, episode_length and episode_return, row by row; or give the column another name",
    ))
}
