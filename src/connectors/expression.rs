//! `Expression`: columns computed by SQL.

use std::sync::Arc;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::{ModuleBatch, Stage};
use crate::column::{
    ACTIONS, AGENT_ID, ENV_T, EPS_ID, INFOS, LOSS_MASK, MODULE_ID, NEXT_OBS, NEXT_STATE_IN, OBS, REWARDS, SEQ_LENS,
    STATE_OUT, T, TERMINATEDS, TRUNCATEDS, is_under, root,
};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, piece_boilerplate};
use crate::episode::{Columns, EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result, closest};
use crate::sql::{self, Failed, Kind, Offer, Values};
use crate::tensor::{DType, Tensor, TensorBuilder, TensorType};

const EPISODE_LENGTH: &str = "episode_length";
const EPISODE_RETURN: &str = "episode_return";

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

/// What becomes of an expression's values.
#[derive(Debug, Clone, PartialEq)]
enum Goal {
    /// They are a column, replaced or added.
    Column(String),
    /// They are one element of a tensor.
    Element { leaf: String, index: usize },
}

impl Goal {
    /// The column that changes.
    fn leaf(&self) -> &str {
        match self {
            Self::Column(leaf) | Self::Element { leaf, .. } => leaf,
        }
    }
}

/// An expression that fits its columns.
struct Compiled {
    goal: Goal,
    expression: sql::Expression,
}

impl Compiled {
    /// The values in the dtype of the element that they become.
    fn fitted(&self, values: Tensor, leaf: Option<&TensorType>) -> Result<Tensor> {
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
fn is_of_the_chunk(name: &str) -> bool {
    matches!(name, T | EPISODE_LENGTH | EPISODE_RETURN | EPS_ID | AGENT_ID)
}

impl Expression {
    fn compile(&self, steps: &[(Arc<str>, TensorType)]) -> Result<Vec<Compiled>> {
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

fn names_a_row(name: &str) -> Error {
    Error::usage(format!("`{name}` tells where a row comes from and cannot be computed"))
}

/// A name cannot be both a column and the root of others.
fn clash<'a>(name: &str, mut others: impl Iterator<Item = &'a str>) -> Result<()> {
    let inside = |outer: &str, inner: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'));
    match others.find(|other| inside(name, other) || inside(other, name)) {
        Some(other) => {
            Err(Error::usage(format!("`{name}` cannot stand beside `{other}`: one would be inside the other")))
        }
        None => Ok(()),
    }
}

/// What replaces an observation must have a value where there is no step.
fn check_observation(compiled: &Compiled, layout: &EpisodeLayout) -> Result<()> {
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

impl Connector for Expression {
    piece_boilerplate!();

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

/// Rows that an expression is evaluated on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The steps.
    Steps,
    /// The observations after the last steps.
    Last,
    /// The rows before the chunks.
    History,
}

/// The rows before the chunks: `None` where an expression has no value there.
fn look_back(one: &Compiled, episodes: &EpisodeBatch, batch: &ModuleBatch) -> Result<Option<Tensor>> {
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
fn evaluate(one: &Compiled, episodes: &EpisodeBatch, batch: &ModuleBatch, place: Place) -> Result<Tensor> {
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
fn put(columns: &mut Columns, one: &Compiled, values: &Tensor) -> Result<()> {
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

fn without(columns: &Columns, leaf: &str) -> Columns {
    columns.iter().filter(|(n, _)| ***n != *leaf).map(|(n, t)| (Arc::clone(n), t.clone())).collect()
}

#[cfg(all(test, feature = "sql"))]
mod tests {
    use super::*;
    use crate::batch::BatchLayout;
    use crate::connectors::testing::{apply, apply_to, episodes};
    use crate::error::Kind as ErrorKind;
    use crate::job::{Compat, ModuleSettings};

    fn piece(into: Target, columns: &[(&str, &str)]) -> Expression {
        Expression { columns: columns.iter().map(|(n, e)| ((*n).to_owned(), (*e).to_owned())).collect(), into }
    }

    fn layout_of(episodes: &EpisodeBatch) -> EpisodeLayout {
        let steps = episodes.steps.iter().map(|(n, t)| (Arc::clone(n), t.ty().clone())).collect();
        EpisodeLayout { steps, last_obs: true }
    }

    fn planned(piece: &Expression, episodes: &EpisodeBatch) -> Result<(EpisodeLayout, BatchLayout)> {
        let (mut layout, mut batch) = (layout_of(episodes), BatchLayout::default());
        let module = ModuleSettings::default();
        let mut plan = Plan { episodes: &mut layout, batch: &mut batch };
        piece.layout(Context::new(&module, Compat::Correct), &mut plan)?;
        Ok((layout, batch))
    }

    /// Plans and applies, and holds one against the other.
    fn run(columns: &[(&str, &str)], episodes: &mut EpisodeBatch) -> Result<()> {
        let piece = piece(Target::Episodes, columns);
        let promised = planned(&piece, episodes)?.0;
        apply(&piece, episodes)?;
        assert_eq!(promised.steps, layout_of(episodes).steps);
        Ok(())
    }

    fn doubles(episodes: &EpisodeBatch, name: &str) -> Vec<f64> {
        episodes.steps.get(name).unwrap().values::<f64>().to_vec()
    }

    #[test]
    fn the_example_in_the_docs() {
        let mut eps = episodes(&[3]);
        eps.steps.set(REWARDS, Tensor::from_values::<f64>([], &[10., 20., 30.]));
        eps.steps.set(OBS, Tensor::from_values::<f32>([2], &[0.1, 1., 0.9, 2., -0.4, 3.]));
        let columns = [("rewards", "rewards / 10.0 + 0.01 * (abs(\"obs/0\") < 0.5)"), ("is_fast", "\"obs/1\" > 1.5")];
        run(&columns, &mut eps).unwrap();
        assert_eq!(doubles(&eps, REWARDS), [1.01, 2.0, 3.01]);
        assert_eq!(eps.steps.get("is_fast").unwrap().bytes(), [0, 1, 1]);
    }

    #[test]
    fn all_expressions_read_what_was_there_before() {
        let mut eps = episodes(&[3]);
        run(&[("rewards", "rewards * 2"), ("before", "rewards"), ("actions", "actions + 1")], &mut eps).unwrap();
        assert_eq!(doubles(&eps, REWARDS), [0., 2., 4.]);
        assert_eq!(doubles(&eps, "before"), [0., 1., 2.]);
        assert_eq!(eps.steps.get(ACTIONS).unwrap().values::<i32>(), [1, 2, 3]);
    }

    #[test]
    fn what_is_true_of_the_episode() {
        let mut eps = episodes(&[3, 0, 2]);
        eps.chunks[2].terminated = true;
        eps.chunks[2].t_started = 5;
        let columns = [
            ("a", "t"),
            ("b", "episode_length"),
            ("c", "episode_return"),
            ("d", "terminateds"),
            ("e", "rewards - avg(rewards)"),
            ("f", "eps_id = 'e2'"),
        ];
        run(&columns, &mut eps).unwrap();
        assert_eq!(eps.steps.get("a").unwrap().values::<i64>(), [0, 1, 2, 5, 6]);
        assert_eq!(eps.steps.get("b").unwrap().values::<i64>(), [3, 3, 3, 2, 2]);
        assert_eq!(doubles(&eps, "c"), [3., 3., 3., 41., 41.]);
        assert_eq!(eps.steps.get("d").unwrap().bytes(), [0, 0, 0, 0, 1]);
        assert_eq!(doubles(&eps, "e"), [-1., 0., 1., -0.5, 0.5]);
        assert_eq!(eps.steps.get("f").unwrap().bytes(), [0, 0, 0, 1, 1]);
    }

    #[test]
    fn flags_follow_the_piece_that_set_them() {
        let mut eps = episodes(&[2]);
        let mut batch = ModuleBatch::default();
        eps.chunks[0].terminated = true;
        apply_to(&crate::connectors::AddOneTsToEpisodesAndTruncate {}, &mut eps, &mut batch).unwrap();
        apply_to(&piece(Target::Episodes, &[("end", "terminateds")]), &mut eps, &mut batch).unwrap();
        assert_eq!(eps.steps.get("end").unwrap().bytes(), [0, 1, 0]);
    }

    #[test]
    fn units_may_be_cut_anywhere() {
        let columns = [("rewards", "rewards / sum(rewards) + sum(rewards) over (order by t)"), ("x", "max(\"obs/0\")")];
        let mut whole = episodes(&[4, 1, 0, 3]);
        let parts: Vec<EpisodeBatch> = (0..4)
            .map(|i| {
                let rows = whole.rows(i);
                let cut =
                    |c: &Columns, start, len| c.iter().map(|(n, t)| (Arc::clone(n), t.slice(start, len))).collect();
                EpisodeBatch {
                    chunks: vec![whole.chunks[i].clone()],
                    offsets: vec![0, rows.len()],
                    steps: cut(&whole.steps, rows.start, rows.len()),
                    last_obs: cut(&whole.last_obs, i, 1),
                    history_offsets: vec![0, 0],
                    history: Columns::default(),
                }
            })
            .collect();
        run(&columns, &mut whole).unwrap();
        let mut joined = (Vec::new(), Vec::new());
        for mut part in parts {
            run(&columns, &mut part).unwrap();
            joined.0.extend(doubles(&part, REWARDS).iter().map(|v| v.to_bits()));
            joined.1.extend(part.steps.get("x").unwrap().values::<f32>().to_vec());
        }
        assert_eq!(doubles(&whole, REWARDS).iter().map(|v| v.to_bits()).collect::<Vec<_>>(), joined.0);
        assert_eq!(whole.steps.get("x").unwrap().values::<f32>(), joined.1);
    }

    #[test]
    fn observations_change_everywhere() {
        let mut eps = episodes(&[2, 1]);
        let past =
            [("obs", Tensor::from_values::<f32>([1], &[8., 9.])), (REWARDS, Tensor::from_values::<f64>([], &[6., 7.]))];
        eps.history = past.into_iter().map(|(n, t)| (Arc::from(n), t)).collect();
        eps.history_offsets = vec![0, 0, 2];
        eps.chunks[1].t_started = 2;
        run(&[("obs/0", "\"obs/0\" / 2.0 + t"), ("rewards", "rewards + t"), ("mean", "avg(rewards)")], &mut eps)
            .unwrap();
        assert_eq!(eps.steps.get(OBS).unwrap().values::<f32>(), [0., 1.5, 7.]);
        assert_eq!(eps.last_obs.get(OBS).unwrap().values::<f32>(), [3., 8.5]);
        assert_eq!(eps.history.get(OBS).unwrap().values::<f32>(), [4., 5.5]);
        assert_eq!(eps.history.get(REWARDS).unwrap().values::<f64>(), [6., 8.]);
        assert!(eps.history.get("mean").is_none());
        assert_eq!(*eps.steps.get(OBS).unwrap().ty(), TensorType::new(DType::Float32, [1]));
    }

    #[test]
    fn the_batch_gets_columns_of_its_own() {
        let piece = piece(Target::Batch, &[("rewards", "rewards * 0.1")]);
        let mut eps = episodes(&[3]);
        let (layout, batch) = planned(&piece, &eps).unwrap();
        assert_eq!(layout, layout_of(&eps));
        assert_eq!(batch.columns[0].ty, DType::Float64.scalar());
        let out = apply(&piece, &mut eps).unwrap();
        assert_eq!(out.get(REWARDS).unwrap().values::<f64>(), [0., 0.1, 0.2]);
        assert_eq!(doubles(&eps, REWARDS), [0., 1., 2.]);
    }

    #[test]
    fn null_is_an_error_with_its_place() {
        let mut eps = episodes(&[1, 2]);
        eps.chunks[1].t_started = 7;
        let error = apply(&piece(Target::Episodes, &[("x", "nullif(rewards, 11.0)")]), &mut eps).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
        assert_eq!((error.place().episode.as_deref(), error.place().t), (Some("e1"), Some(8)));
        apply(&piece(Target::Episodes, &[("x", "(rewards - rewards) / 0.0")]), &mut eps).unwrap();
        assert!(eps.steps.get("x").unwrap().values::<f64>().iter().all(|v| v.is_nan()));
    }

    #[test]
    fn what_cannot_be_is_said_before_there_are_data() {
        let eps = episodes(&[1]);
        for (into, columns, what) in [
            (
                Target::Episodes,
                [("rewards", "reward")],
                "found no column `reward`; there are \"obs/0\", actions, rewards, t",
            ),
            (Target::Episodes, [("obs/0", "actions * 1.0")], "an observation also stands after the last step"),
            (Target::Episodes, [("obs/0", "avg(\"obs/0\")")], "an observation also stands after the last step"),
            (Target::Episodes, [("obs/1", "t * 1.0")], "`obs` has 1 elements"),
            (Target::Episodes, [("obs/0", "eps_id = 'a'")], "the expression gives bool, expected float32"),
            (Target::Episodes, [("obs/pos", "t")], "`obs/pos` cannot stand beside `obs`"),
            (Target::Episodes, [("terminateds", "true")], "`terminateds` is no column of the episodes"),
            (Target::Episodes, [("t", "t + 1")], "`t` tells where a row comes from"),
            (Target::Batch, [("eps_id", "t")], "`eps_id` tells where a row comes from"),
            (Target::Batch, [("terminateds", "t")], "the expression gives int64, expected bool"),
            (Target::Episodes, [("x", "obs")], "`obs` is a tensor of 1 elements"),
        ] {
            let error = planned(&piece(into, &columns), &eps).unwrap_err();
            assert!(error.what().starts_with(what), "{columns:?}: {error}");
            assert_eq!(error.kind(), ErrorKind::Usage);
        }
        let both = piece(Target::Episodes, &[("obs", "t"), ("obs/0", "1.0")]);
        assert!(planned(&both, &eps).unwrap_err().what().contains("as a whole and in parts"));
        assert!(Expression::default().check().is_err());
    }

    #[test]
    fn no_steps_no_rows() {
        let mut eps = episodes(&[0, 0]);
        run(&[("rewards", "rewards - avg(rewards)"), ("obs/0", "\"obs/0\" * 2.0")], &mut eps).unwrap();
        assert_eq!(eps.steps.get(REWARDS).unwrap().rows(), 0);
        let mut none = episodes(&[]);
        run(&[("rewards", "rewards * 2")], &mut none).unwrap();
    }
}
