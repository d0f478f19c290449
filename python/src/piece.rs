//! Pieces in Python: a connector whose work a callable does, whole columns at a time.
//!
//! What it makes of the columns' names, dtypes and shapes is declared, so that a wrong job fails before the first row is
//! read and the pipeline holds the piece to its word as it does the others.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use gristmill::batch::ModuleBatch;
use gristmill::column::{self, root};
use gristmill::connector::{Connector, Context, Plan, Repairs};
use gristmill::episode::{Columns, EpisodeBatch, EpisodeId};
use gristmill::error::{Error, Result};
use gristmill::tensor::{DType, Tensor, TensorType};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::column::Column;
use crate::table::Values;
use crate::watch::Watch;

/// Names that say whose a row is; a piece that changed them would break the index.
const RESERVED: [&str; 9] = [
    column::EPS_ID,
    column::AGENT_ID,
    column::MODULE_ID,
    column::T,
    column::ENV_T,
    column::TERMINATEDS,
    column::TRUNCATEDS,
    column::NEXT_OBS,
    column::INFOS,
];

/// A piece in Python.
pub struct PyPiece {
    name: &'static str,
    config: serde_json::Value,
    /// Columns whose type the piece changes, or that it adds.
    columns: Vec<(String, TensorType)>,
    /// `gristmill.pieces.call`, with the callable.
    call: Py<PyAny>,
    watch: Arc<Watch>,
}

impl fmt::Debug for PyPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PyPiece").field("name", &self.name).field("columns", &self.columns).finish_non_exhaustive()
    }
}

/// A name for as long as the process lives: pieces are named by their types, and there are few.
fn kept(name: &str) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if let Some(name) = names.get(name) {
        return name;
    }
    let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
    names.insert(name);
    name
}

impl PyPiece {
    /// Reads `(name, config as JSON, [(column, dtype, shape)], call)`.
    pub fn new(piece: &Bound<'_, PyAny>, watch: Arc<Watch>) -> PyResult<Self> {
        let (name, config, columns, call) =
            piece.extract::<(String, String, Vec<(String, String, Vec<usize>)>, Py<PyAny>)>()?;
        let wrong = |what: String| pyo3::exceptions::PyValueError::new_err(format!("piece {name}: {what}"));
        let config = serde_json::from_str(&config).map_err(|e| wrong(format!("its config is no JSON: {e}")))?;
        let typed = |(column, dtype, shape): (String, String, Vec<usize>)| match DType::from_name(&dtype) {
            Some(dtype) => Ok((column, TensorType::new(dtype, shape))),
            None => Err(wrong(format!("column {column}: found dtype {dtype}, expected a NumPy number or bool"))),
        };
        let columns = columns.into_iter().map(typed).collect::<PyResult<Vec<_>>>()?;
        Ok(Self { name: kept(&name), config, columns, call, watch })
    }

    fn call(&self, py: Python<'_>, episodes: &EpisodeBatch) -> PyResult<Vec<(String, String, Tensor)>> {
        let chunks = &episodes.chunks;
        let view = PyDict::new(py);
        for (part, columns) in
            [("steps", &episodes.steps), ("last_obs", &episodes.last_obs), ("history", &episodes.history)]
        {
            let out = PyDict::new(py);
            for (name, tensor) in columns.iter() {
                out.set_item(&**name, Bound::new(py, Column::shared(tensor.clone()))?)?;
            }
            view.set_item(part, out)?;
        }
        view.set_item("offsets", &episodes.offsets)?;
        view.set_item("history_offsets", &episodes.history_offsets)?;
        let ids = PyList::empty(py);
        for chunk in chunks {
            match &chunk.id {
                EpisodeId::Int(id) => ids.append(id)?,
                EpisodeId::Str(id) => ids.append(&**id)?,
            }
        }
        view.set_item("ids", ids)?;
        view.set_item("agent_ids", chunks.iter().map(|c| c.agent_id.as_deref()).collect::<Vec<_>>())?;
        view.set_item("t_started", chunks.iter().map(|c| c.t_started).collect::<Vec<_>>())?;
        view.set_item("terminated", chunks.iter().map(|c| c.terminated).collect::<Vec<_>>())?;
        view.set_item("truncated", chunks.iter().map(|c| c.truncated).collect::<Vec<_>>())?;
        view.set_item("has_last_obs", chunks.iter().map(|c| c.has_last_obs).collect::<Vec<_>>())?;
        let declared = PyDict::new(py);
        for (name, ty) in &self.columns {
            declared.set_item(name, (ty.dtype.name(), &ty.shape))?;
        }
        let changed = self.call.bind(py).call1((view, declared))?;
        let changed = changed.extract::<Vec<(String, String, Bound<'_, Values>)>>()?;
        Ok(changed.into_iter().map(|(part, name, values)| (part, name, values.get().tensor().clone())).collect())
    }

    /// The error for an exception of the callable, which knows the episode where one alone raises it.
    fn failed(&self, py: Python<'_>, error: PyErr, episodes: &EpisodeBatch) -> Error {
        let value = error.value(py);
        let chunk = value.getattr("chunk").and_then(|c| c.extract::<Option<usize>>()).ok().flatten();
        let cause = error.cause(py).unwrap_or(error);
        let class = cause.get_type(py).name().map_or_else(|_| "an exception".to_owned(), |n| n.to_string());
        let error = Error::data(format!("the piece raised {class}: {}", cause.value(py)));
        self.watch.raised(cause);
        match (chunk, &*episodes.chunks) {
            (Some(i), chunks) if i < chunks.len() => error.episode(chunks[i].id.to_string()),
            (None, [only]) => error.episode(only.id.to_string()),
            (_, [first, .., last]) => error.episode(format!("{} to {}", first.id, last.id)),
            _ => error,
        }
    }
}

impl Connector for PyPiece {
    fn name(&self) -> &'static str {
        self.name
    }

    fn config(&self) -> serde_json::Value {
        self.config.clone()
    }

    fn layout(&self, _: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        for (name, ty) in &self.columns {
            if RESERVED.contains(&root(name)) {
                return Err(Error::usage("a piece in Python cannot make this column").column(name.as_str()));
            }
            match plan.episodes.steps.iter_mut().find(|(n, _)| **n == **name) {
                Some((_, old)) => *old = ty.clone(),
                None if matches!(root(name), column::OBS | column::ACTIONS | column::REWARDS) => {
                    let there = plan.episodes.steps.iter().map(|(n, _)| &**n).collect::<Vec<_>>().join(", ");
                    let e = Error::usage(format!("declared `{name}`, but the episodes have {there}"));
                    return Err(e.hint("a piece in Python changes columns that are there, and adds others beside them"));
                }
                None => plan.episodes.steps.push((name.as_str().into(), ty.clone())),
            }
        }
        Ok(())
    }

    fn apply(&self, _: Context<'_>, episodes: &mut EpisodeBatch, _: &mut ModuleBatch, _: &mut Repairs) -> Result<()> {
        let changed = Python::attach(|py| self.call(py, episodes).map_err(|e| self.failed(py, e, episodes)))?;
        let given = |part: &str, name: &str| changed.iter().any(|(p, n, _)| p == part && n == name);
        for (part, name, _) in &changed {
            if part != "steps" {
                continue;
            }
            let changes_after = root(name) == column::OBS && episodes.last_obs.get(name).is_some();
            if changes_after && !given("last_obs", name) {
                return Err(Error::data("the piece changed observations and not those after the last steps")
                    .column(name.as_str())
                    .hint("return the key `last_obs`, too: a dict of the same columns, one row an episode"));
            }
            // What the piece leaves unchanged there is not the column's past any more.
            if episodes.history.get(name).is_some() && !given("history", name) {
                let rows = episodes.history_offsets.last().copied().unwrap_or(0);
                if root(name) == column::STATE_OUT && rows > 0 {
                    let e = Error::data("the piece changed states and not those before the chunks' first steps");
                    return Err(e.column(name.as_str()).hint("return the key `history`, too"));
                }
                let kept = episodes.history.iter().filter(|(n, _)| &***n != name.as_str());
                episodes.history = kept.map(|(n, t)| (Arc::clone(n), t.clone())).collect::<Columns>();
            }
        }
        for (part, name, tensor) in changed {
            let columns = match part.as_str() {
                "steps" => &mut episodes.steps,
                "last_obs" => &mut episodes.last_obs,
                _ => &mut episodes.history,
            };
            columns.set(name, tensor);
        }
        // A column that was declared and not made is told by its name, not by a later piece that misses it.
        match self.columns.iter().find(|(name, ty)| episodes.steps.get(name).is_none_or(|t| t.ty() != ty)) {
            Some((name, ty)) => {
                Err(Error::data(format!("the piece declared {ty} and did not return it")).column(name.as_str()))
            }
            None => Ok(()),
        }
    }
}
