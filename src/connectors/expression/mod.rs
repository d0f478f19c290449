//! `Expression`: columns computed by SQL.

mod compile;
mod evaluate;
#[cfg(all(test, feature = "sql"))]
mod tests;

use std::sync::Arc;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::compile::{Compiled, EPISODE_LENGTH, EPISODE_RETURN, Goal, check_observation, clash, names_a_row};
use self::evaluate::{Place, evaluate, look_back, put, without};
use crate::batch::{ModuleBatch, Stage};
use crate::column::{AGENT_ID, EPS_ID, LOSS_MASK, OBS, T, TERMINATEDS, TRUNCATEDS, root};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, Slices, piece_boilerplate};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::tensor::DType;
/// Computes columns by SQL: reshapes rewards, actions or observations, or adds columns of one's own.
///
/// ```toml
/// [[learner.connectors]]
/// type = "Expression"
/// columns = { rewards = "rewards / 10.0 + 0.01 * (abs(\"obs/0\") < 0.5)", is_fast = "\"obs/1\" > 1.5" }
/// ```
///
/// ```text
/// rewards (float64)   10.0   20.0   30.0         rewards    1.01   2.0    3.01
/// obs (float32[2])    .1 1   .9 2   -.4 3   ──▶  is_fast    F      T      T
/// ```
///
/// Each text is one expression of Polars SQL (<https://docs.pola.rs/api/python/stable/reference/sql/>); all of a piece
/// read the columns as they were before the piece. With `into = "episodes"` the result takes the column's place in the
/// episodes, so that every later piece sees it, or becomes a further column like an extra model output. With
/// `into = "batch"` it goes into the batch as it is: the default piece passes on what is there already.
///
/// **Columns** are those of the episode. A scalar has its name (`rewards`, `actions`, `vf_preds`). A tensor of one axis
/// is one column an element, in double quotes: `"obs/0"`, `"obs/pos/2"`; without quotes `/` would divide. Tensors of
/// more axes cannot be named. There are also `t` (int64, from the episode's true start), `terminateds` and `truncateds`
/// (the flags of the step), `episode_length` (int64) and `episode_return` (float64, the rewards summed step by step)
/// of the recorded chunk, and `eps_id` and `agent_id` as text.
///
/// **Other rows.** Whatever looks at more than its own row (`SUM(x)`, `AVG(x)`, `LAG(x) OVER (ORDER BY t)`,
/// `SUM(x) OVER (ORDER BY t)`) sees the rows of its episode (its recorded chunk) and no others. Sub-selects are refused.
///
/// **Types** are those of SQL, by Polars' rules. A number in the text takes the width of the column beside it:
/// `rewards * 0.1` is float32 for float32 rewards (0.1 rounded to float32 first, as `NumPy` 2 does) and float64 for
/// float64. `/` on integers divides in floating point (`7 / 2` is 3.5, as in `NumPy`), `//` rounds down to int64. A
/// truth value counts as 0 or 1 beside a number; beside a literal such as `0.01` that is float64. `+ - * / %` on
/// floats give the bits that `NumPy` gives; `EXP`, `LN`, `SIN` and their like those of the platform. A column keeps its
/// name and takes the expression's type: bool, integer, float32 or float64. Half precision is read as float32.
/// `CAST(x AS REAL)` gives float32, `DOUBLE` float64, `BIGINT` int64, `INT` int32.
///
/// **Missing values.** Null is an error with episode and step; NaN is a value like others. `LAG` gives null on the first
/// step: `COALESCE(LAG(x) OVER (ORDER BY t), 0)`.
///
/// **Observations** also stand after the last step, and before the first step of a chunk. So what replaces one may
/// read observations, `t`, ids and the episode's length and return, row by row. `obs/0` names one element, which is
/// rounded to the dtype of its tensor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expression {
    /// Column name to SQL expression, at least one.
    #[schemars(extend("minProperties" = 1))]
    pub columns: IndexMap<String, String>,
    /// `episodes`: later pieces see the columns. `batch`: they go into the batch, and the episodes stay as they are.
    #[serde(default)]
    pub into: Target,
}

/// Where an expression's columns go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// Into the episodes, in place of the column of that name or as a further one.
    #[default]
    Episodes,
    /// Into the batch.
    Batch,
}

impl Piece for Expression {
    const NAME: &'static str = "Expression";

    fn example() -> Self {
        let columns = IndexMap::from([("rewards".to_owned(), "rewards / 10.0".to_owned())]);
        Self { columns, ..Self::default() }
    }

    fn check(&self) -> Result<()> {
        if self.columns.is_empty() {
            return Err(Error::usage(
                "found no column, expected at least one: columns = { rewards = \"rewards / 10.0\" }",
            ));
        }
        if self.columns.keys().any(|name| name.is_empty() || name.split('/').any(str::is_empty)) {
            return Err(Error::usage("found an empty name in `columns`, expected names such as rewards or \"obs/0\""));
        }
        Ok(())
    }
}

impl Connector for Expression {
    piece_boilerplate!();

    fn slices(&self, _: Context<'_>, episodes: &EpisodeLayout) -> Option<Slices> {
        // Whatever looks at other rows, or at the chunk as a whole; and flags, which are not known in the history.
        let compiled = self.compile(&episodes.steps).ok()?;
        let whole = |name: &String| matches!(name.as_str(), EPISODE_LENGTH | EPISODE_RETURN | TERMINATEDS | TRUNCATEDS);
        let by_row = |one: &Compiled| one.expression.by_row() && !one.expression.names().iter().any(whole);
        compiled.iter().all(by_row).then_some(Slices::ANYWHERE)
    }

    fn layout(&self, _: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        let compiled = self.compile(&plan.episodes.steps)?;
        for (one, name) in compiled.iter().zip(self.columns.keys()) {
            let at = |e: Error| e.job_key(format!("columns.{name}"));
            let dtype = one.expression.dtype();
            if self.into == Target::Batch {
                for_the_batch(name, dtype, plan).map_err(at)?;
                continue;
            }
            if root(name) == OBS {
                check_observation(one, plan.episodes).map_err(at)?;
            }
            match &one.goal {
                Goal::Element { leaf, .. } => {
                    let ty = plan.episodes.get(leaf).ok_or_else(|| Error::internal("an element of nothing"))?;
                    let fits = dtype == ty.dtype
                        || (dtype.is_float() && ty.dtype.is_float())
                        || dtype.lossless_union(ty.dtype) == Some(ty.dtype);
                    if !fits {
                        let what =
                            format!("the expression gives {dtype}, expected {} like the rest of `{leaf}`", ty.dtype);
                        return Err(at(
                            Error::usage(what).hint("CAST changes the type; another name makes a column of its own")
                        ));
                    }
                }
                Goal::Column(name) => match plan.episodes.steps.iter_mut().find(|(n, _)| **n == **name) {
                    Some((_, ty)) => *ty = dtype.scalar(),
                    None => plan.episodes.steps.push((name.as_str().into(), dtype.scalar())),
                },
            }
        }
        Ok(())
    }

    fn apply(
        &self,
        _: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        _: &mut Repairs,
    ) -> Result<()> {
        let types: Vec<_> = episodes.steps.iter().map(|(n, t)| (Arc::clone(n), t.ty().clone())).collect();
        let compiled = self.compile(&types)?;
        let mut steps = Vec::with_capacity(compiled.len());
        for one in &compiled {
            steps.push(evaluate(one, episodes, batch, Place::Steps)?);
        }
        if self.into == Target::Batch {
            for (name, values) in self.columns.keys().zip(steps) {
                batch.push(name.clone(), values);
            }
            return Ok(());
        }
        // Everything is evaluated before anything is replaced.
        let mut last_obs = Vec::new();
        let mut history = Vec::new();
        for one in &compiled {
            let after = root(one.goal.leaf()) == OBS && episodes.last_obs.under(OBS).next().is_some();
            last_obs.push(after.then(|| evaluate(one, episodes, batch, Place::Last)).transpose()?);
            history.push(look_back(one, episodes, batch)?);
        }
        for (((one, steps), last), history) in compiled.iter().zip(steps).zip(last_obs).zip(history) {
            put(&mut episodes.steps, one, &steps)?;
            if let Some(last) = last {
                put(&mut episodes.last_obs, one, &last)?;
            }
            match history {
                Some(values) => put(&mut episodes.history, one, &values)?,
                // Of no use to anybody, and not to be mistaken for the column's past.
                None => episodes.history = without(&episodes.history, one.goal.leaf()),
            }
        }
        Ok(())
    }
}

fn for_the_batch(name: &str, dtype: DType, plan: &mut Plan<'_>) -> Result<()> {
    if matches!(root(name), EPS_ID | AGENT_ID | T) {
        return Err(names_a_row(name));
    }
    if plan.batch.has(name) {
        return Err(Error::usage(format!("`{name}` is in the batch already"))
            .hint("put this piece in front of the one that adds the column"));
    }
    clash(name, plan.batch.columns.iter().map(|c| c.name.as_str()))?;
    if matches!(name, TERMINATEDS | TRUNCATEDS | LOSS_MASK) && dtype != DType::Bool {
        return Err(Error::usage(format!("the expression gives {dtype}, expected bool for `{name}`"))
            .hint("compare with a number: x > 0"));
    }
    if plan.batch.stage > Stage::Items {
        return Err(Error::usage("the batch is already joined").hint("put this piece before BatchIndividualItems"));
    }
    plan.add_steps(name, dtype.scalar())
}
