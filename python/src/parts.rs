//! A run by many processes: the coordinator's side and that of its tasks. Bytes go between them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use gristmill::error::{Error, Result};
use gristmill::progress::Progress;
use gristmill::run::Options;
use gristmill::run::part::{self, Tasks};
use gristmill::sink::Existing;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::errors::raised;
use crate::job::{CoreJob, own};
use crate::watch::{Watch, watched};

/// The process that plans a run and writes its manifest.
#[pyclass(frozen, module = "gristmill._gristmill")]
pub struct Coordinator(Mutex<Option<part::Coordinator>>);

#[pymethods]
impl Coordinator {
    /// Plans `job` in `parts`, for tasks of `threads` threads and `memory_limit` bytes.
    #[expect(clippy::too_many_arguments, reason = "the command line's flags, one by one")]
    #[staticmethod]
    #[pyo3(signature = (job, inputs, output, format, scratch, overwrite, parts, threads, memory_limit, pieces, show))]
    fn plan(
        py: Python<'_>,
        job: &Bound<'_, CoreJob>,
        inputs: Vec<String>,
        output: Option<String>,
        format: Option<String>,
        scratch: Option<PathBuf>,
        overwrite: bool,
        parts: usize,
        threads: usize,
        memory_limit: u64,
        pieces: Vec<Bound<'_, PyAny>>,
        show: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let job = job.get().with(py, inputs, output, format.as_deref())?;
        let existing = if overwrite { Existing::Replace } else { Existing::Refuse };
        let options = Options { scratch, existing, ..Options::default() };
        let tasks = Tasks { parts, threads, memory_limit };
        let (own, watch) = own(&pieces)?;
        let planned =
            watched(py, &watch, show.as_ref(), || part::Coordinator::plan(&job, own, &options, tasks, &*watch))?;
        Ok(Self(Mutex::new(Some(planned))))
    }

    /// What every task needs.
    fn head<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let current = std::env::current_dir();
        let failed = |e: &std::io::Error| Error::io("find the current directory", std::path::Path::new("."), e);
        let current = current.map_err(|e| raised(py, &failed(&e)))?;
        self.bytes(py, |this| this.head(&current))
    }

    /// Steps of each part.
    fn steps(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        self.on(py, |this| Ok((0..this.parts()).map(|number| this.steps(number)).collect()))
    }

    /// Whether parts need what ordered pieces know of those before.
    fn ordered(&self, py: Python<'_>) -> PyResult<bool> {
        self.on(py, |this| Ok(this.ordered()))
    }

    /// What the tasks of a part need.
    fn part<'py>(&self, py: Python<'py>, number: usize) -> PyResult<Bound<'py, PyBytes>> {
        self.bytes(py, |this| this.part(number))
    }

    /// A task for each few shards, from what the parts' tasks brought.
    fn place<'py>(&self, py: Python<'py>, rows: Vec<PyBackedBytes>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let tasks = self.on(py, |this| this.place(&rows))?;
        Ok(tasks.iter().map(|task| PyBytes::new(py, task)).collect())
    }

    /// Takes in what a task has made of shards.
    fn keep(&self, py: Python<'_>, shards: PyBackedBytes) -> PyResult<()> {
        self.on(py, |this| this.keep(&shards))
    }

    /// Writes the manifest; returns the report as JSON.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        let report = self.take().map_or_else(|| Err(over()), |this| py.detach(|| this.finish()));
        let report = report.map_err(|e| raised(py, &e))?;
        serde_json::to_string(&report).map_err(|e| raised(py, &Error::internal(format!("report: {e}"))))
    }

    /// Takes back what was written, unless it is finished.
    fn close(&self, py: Python<'_>) {
        let this = self.take();
        py.detach(|| drop(this));
    }
}

fn over() -> Error {
    Error::usage("found a run that is over, expected one that goes on")
}

impl Coordinator {
    fn take(&self) -> Option<part::Coordinator> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn on<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut part::Coordinator) -> Result<T> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| {
            let mut this = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            work(this.as_mut().ok_or_else(over)?)
        });
        done.map_err(|e| raised(py, &e))
    }

    fn bytes<'py>(
        &self,
        py: Python<'py>,
        work: impl FnOnce(&mut part::Coordinator) -> Result<Vec<u8>> + Send,
    ) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.on(py, work)?))
    }
}

/// A process that does tasks of one run.
#[pyclass(frozen, module = "gristmill._gristmill")]
pub struct Worker {
    worker: part::Worker,
    watch: Arc<Watch>,
}

#[pymethods]
impl Worker {
    /// Opens the input as the coordinator has seen it.
    #[new]
    #[pyo3(signature = (head, threads, memory_limit, scratch, pieces))]
    fn new(
        py: Python<'_>,
        head: PyBackedBytes,
        threads: usize,
        memory_limit: u64,
        scratch: Option<PathBuf>,
        pieces: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let (own, watch) = own(&pieces)?;
        let options =
            Options { threads: Some(threads), memory_limit: Some(memory_limit), scratch, ..Options::default() };
        let worker = py.detach(|| part::Worker::open(&head, own, &options)).map_err(|e| raised(py, &e))?;
        Ok(Self { worker, watch })
    }

    /// What ordered pieces know behind a part.
    fn order<'py>(&self, py: Python<'py>, part: PyBackedBytes, states: PyBackedBytes) -> PyResult<Bound<'py, PyBytes>> {
        self.run(py, |progress| self.worker.order(&part, &states, progress))
    }

    /// Makes the rows of a part.
    fn rows<'py>(
        &self,
        py: Python<'py>,
        part: PyBackedBytes,
        states: PyBackedBytes,
        attempt: String,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.run(py, |progress| self.worker.rows(&part, &states, &attempt, progress))
    }

    /// Makes shards of rows.
    fn shards<'py>(&self, py: Python<'py>, task: PyBackedBytes, attempt: String) -> PyResult<Bound<'py, PyBytes>> {
        self.run(py, |progress| self.worker.shards(&task, &attempt, progress))
    }
}

impl Worker {
    fn run<'py>(
        &self,
        py: Python<'py>,
        work: impl FnOnce(&dyn Progress) -> Result<Vec<u8>> + Send,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let done = watched(py, &self.watch, None, || work(&*self.watch))?;
        Ok(PyBytes::new(py, &done))
    }
}
