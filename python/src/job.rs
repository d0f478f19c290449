//! Jobs: read, planned, run, compiled.

use std::path::PathBuf;
use std::sync::Arc;

use gristmill::connector::Connector;
use gristmill::error::Error;
use gristmill::job::{Job, Overrides, check_supported};
use gristmill::plan::plan;
use gristmill::run::{self, MEMORY, Options};
use gristmill::sink::Existing;
use gristmill::tensor::Buffers;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::Value;

use crate::column::to_python;
use crate::errors::{all_raised, raised};
use crate::piece::PyPiece;
use crate::table::Table;
use crate::watch::{Watch, watched};

/// A job, read and checked.
#[pyclass(frozen, module = "gristmill._gristmill")]
pub struct CoreJob {
    job: Job,
    /// Of what it compiled before, and nobody holds any more.
    buffers: Buffers,
}

impl From<Job> for CoreJob {
    fn from(job: Job) -> Self {
        Self { job, buffers: Buffers::default() }
    }
}

#[pymethods]
impl CoreJob {
    /// From a file; relative paths are relative to its folder.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        Job::load(&path).map(Self::from).map_err(|errors| all_raised(py, &errors))
    }

    /// From JSON. A job without input is one for tables in memory.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Self> {
        let mut tree: Value =
            serde_json::from_str(text).map_err(|e| raised(py, &Error::usage(format!("the job is no JSON: {e}"))))?;
        let paths = tree.pointer("/input/paths");
        let without = tree.is_object() && paths.is_none_or(|p| p.as_array().is_some_and(Vec::is_empty));
        if without {
            // Only what is missing is put there: all other mistakes are told as ever.
            match tree.get_mut("input") {
                Some(Value::Object(input)) => _ = input.insert("paths".to_owned(), Value::from(vec![MEMORY])),
                Some(_) => {}
                None => tree["input"] = serde_json::json!({ "paths": [MEMORY] }),
            }
        }
        let mut job = Job::from_json_str(&tree.to_string()).map_err(|errors| all_raised(py, &errors))?;
        if without {
            job.input.paths.clear();
        }
        Ok(job.into())
    }

    /// The job as resolved, all defaults filled in, as JSON.
    fn to_json(&self) -> String {
        self.job.to_json().to_string()
    }

    /// The directory that the job would write.
    fn output_path(&self) -> PathBuf {
        self.job.output_path()
    }

    /// What the job will do, as JSON.
    #[pyo3(signature = (inputs, output))]
    fn plan(&self, py: Python<'_>, inputs: Vec<String>, output: Option<String>) -> PyResult<String> {
        let job = self.with(py, inputs, output, None)?;
        let planned = py.detach(|| plan(&job)).map_err(|e| raised(py, &e))?;
        serde_json::to_string(&planned).map_err(|e| raised(py, &Error::internal(format!("plan: {e}"))))
    }

    /// Converts; returns the report as JSON.
    #[expect(clippy::too_many_arguments, reason = "the command line's flags, one by one")]
    #[pyo3(signature = (inputs, output, format, threads, memory_limit, scratch, existing, pieces, show))]
    fn run(
        &self,
        py: Python<'_>,
        inputs: Vec<String>,
        output: Option<String>,
        format: Option<String>,
        threads: Option<usize>,
        memory_limit: Option<u64>,
        scratch: Option<PathBuf>,
        existing: &str,
        pieces: Vec<Bound<'_, PyAny>>,
        show: Option<Bound<'_, PyAny>>,
    ) -> PyResult<String> {
        let job = self.with(py, inputs, output, format.as_deref())?;
        let existing = match existing {
            "replace" => Existing::Replace,
            "resume" => Existing::Resume,
            _ => Existing::Refuse,
        };
        let options = Options { threads, memory_limit, scratch, existing, ..Options::default() };
        let (own, watch) = own(&pieces)?;
        let report = watched(py, &watch, show.as_ref(), || run::convert_with(&job, own, &options, &*watch))?;
        serde_json::to_string(&report).map_err(|e| raised(py, &Error::internal(format!("report: {e}"))))
    }

    /// Compiles a table; returns `{module: {column: values}}` and the report as JSON.
    #[pyo3(signature = (table, threads, pieces, show))]
    fn compile<'py>(
        &self,
        py: Python<'py>,
        table: &Bound<'_, Table>,
        threads: Option<usize>,
        pieces: Vec<Bound<'_, PyAny>>,
        show: Option<Bound<'_, PyAny>>,
    ) -> PyResult<(Bound<'py, PyDict>, String)> {
        let options = Options { threads, buffers: self.buffers.clone(), ..Options::default() };
        let (own, watch) = own(&pieces)?;
        let batches = table.get().0.clone();
        let compiled =
            watched(py, &watch, show.as_ref(), || run::compile_with(&self.job, own, batches, &options, &*watch))?;
        let modules = PyDict::new(py);
        for (id, module) in &compiled.modules {
            let columns = PyDict::new(py);
            for (name, data) in &module.columns {
                columns.set_item(name, to_python(py, data)?)?;
            }
            modules.set_item(id, columns)?;
        }
        let report = serde_json::to_string(&compiled.report);
        Ok((modules, report.map_err(|e| raised(py, &Error::internal(format!("report: {e}"))))?))
    }
}

impl CoreJob {
    /// The job with the caller's word over it, as the command line has it over a file's.
    pub fn with(
        &self,
        py: Python<'_>,
        inputs: Vec<String>,
        output: Option<String>,
        format: Option<&str>,
    ) -> PyResult<Job> {
        let format = format.map(str::parse).transpose().map_err(|e: Error| raised(py, &e))?;
        let current_dir = std::env::current_dir()
            .map_err(|e| raised(py, &Error::io("find the current directory", std::path::Path::new("."), &e)))?;
        let mut job = self.job.clone();
        job.apply(&Overrides { inputs, output, format, current_dir });
        let mut errors = job.check();
        errors.extend(check_supported(&job));
        if errors.is_empty() { Ok(job) } else { Err(all_raised(py, &errors)) }
    }
}

pub type Pieces = Vec<Box<dyn Connector>>;

/// The pieces in Python, and what watches over the run that they belong to.
pub fn own(pieces: &[Bound<'_, PyAny>]) -> PyResult<(Pieces, Arc<Watch>)> {
    let watch = Arc::new(Watch::default());
    let mut own: Pieces = Vec::with_capacity(pieces.len());
    for piece in pieces {
        own.push(Box::new(PyPiece::new(piece, Arc::clone(&watch))?));
    }
    Ok((own, watch))
}
