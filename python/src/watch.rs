//! Runs that Python can watch and stop.
//!
//! ```text
//! this thread      waits without the interpreter's lock; ten times a second looks for Ctrl-C, tells the progress
//! another thread   runs gristmill, counts
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gristmill::error::{Error, Result};
use gristmill::progress::{Progress, Step, Totals};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::raised;

/// How often Python hears of a run.
const BEAT: Duration = Duration::from_millis(100);
/// Stack of the thread that runs gristmill: the main thread's on most systems.
const STACK: usize = 8 << 20;

/// What a run counts, and whether it is to stop.
#[derive(Default)]
pub struct Watch {
    phase: Mutex<(String, Totals)>,
    episodes: AtomicU64,
    steps: AtomicU64,
    bytes: AtomicU64,
    stop: AtomicBool,
    /// The exception of a piece in Python, to be named as the cause.
    cause: Mutex<Option<PyErr>>,
}

impl Progress for Watch {
    fn begin(&self, phase: &str, totals: Totals) {
        for count in [&self.episodes, &self.steps, &self.bytes] {
            count.store(0, Relaxed);
        }
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = (phase.to_owned(), totals);
    }

    fn advance(&self, done: Step) {
        self.episodes.fetch_add(done.episodes, Relaxed);
        self.steps.fetch_add(done.steps, Relaxed);
        self.bytes.fetch_add(done.bytes, Relaxed);
    }

    fn end(&self) {}

    fn cancelled(&self) -> bool {
        self.stop.load(Relaxed)
    }
}

impl Watch {
    /// Keeps the exception that a piece raised. The first one stays.
    pub fn raised(&self, error: PyErr) {
        self.cause.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    /// `show(phase, {"episodes": (done, total), ..})`, totals `None` where they are not known.
    fn show(&self, py: Python<'_>, show: &Bound<'_, PyAny>) -> PyResult<()> {
        let (phase, totals) = self.phase.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let counts = PyDict::new(py);
        counts.set_item("episodes", (self.episodes.load(Relaxed), totals.episodes))?;
        counts.set_item("steps", (self.steps.load(Relaxed), totals.steps))?;
        counts.set_item("bytes", (self.bytes.load(Relaxed), totals.bytes))?;
        show.call1((phase, counts))?;
        Ok(())
    }
}

/// Runs `work` on a thread of its own, without the interpreter's lock. Ctrl-C, or an exception of `show`, stops it.
pub fn watched<T: Send>(
    py: Python<'_>,
    watch: &Watch,
    show: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    let (done, finished) = crossbeam_channel::bounded::<()>(0);
    let outcome = std::thread::scope(|scope| {
        let run = move || {
            let _closes_at_the_end = done;
            work()
        };
        let thread = std::thread::Builder::new().name("gristmill".to_owned()).stack_size(STACK);
        let thread = match thread.spawn_scoped(scope, run) {
            Ok(thread) => thread,
            Err(e) => return Err(raised(py, &Error::environment(format!("cannot start a thread: {e}")))),
        };
        let mut stopped = None;
        // Nothing is ever sent: the channel closes when the thread is done.
        while py.detach(|| finished.recv_timeout(BEAT)) == Err(crossbeam_channel::RecvTimeoutError::Timeout) {
            if stopped.is_none() {
                let seen = py.check_signals().and_then(|()| show.map_or(Ok(()), |show| watch.show(py, show)));
                if let Err(e) = seen {
                    watch.stop.store(true, Relaxed);
                    stopped = Some(e);
                }
            }
        }
        let outcome = py.detach(|| thread.join());
        match (stopped, outcome) {
            (Some(e), _) => Err(e),
            (None, Ok(outcome)) => Ok(outcome),
            (None, Err(_)) => Err(raised(py, &Error::internal("the run panicked"))),
        }
    })?;
    if let Some(show) = show {
        watch.show(py, show)?;
    }
    outcome.map_err(|e| {
        let error = raised(py, &e);
        let cause = watch.cause.lock().unwrap_or_else(PoisonError::into_inner).take();
        if cause.is_some() {
            error.set_cause(py, cause);
        }
        error
    })
}
