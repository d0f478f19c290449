//! How a run tells its caller how far it is, and asks whether to go on. The library counts; the caller shows.

use crate::error::{Error, Result};

/// Listens to a run. Called from many threads, so counting must be cheap and not block.
pub trait Progress: Sync {
    /// A phase begins (`"reading"`, `"writing"`): what it will amount to, as far as it is known.
    fn begin(&self, phase: &str, totals: Totals);
    /// So much more is done.
    fn advance(&self, done: Step);
    /// The phase is over.
    fn end(&self);

    /// Whether the caller wants the run to stop. It is asked between tasks, and the run then ends with
    /// [`Kind::Interrupted`](crate::error::Kind::Interrupted).
    fn cancelled(&self) -> bool {
        false
    }
}

/// An error once the caller wants the run to stop.
pub(crate) fn go_on(progress: &dyn Progress) -> Result<()> {
    if progress.cancelled() { Err(Error::interrupted()) } else { Ok(()) }
}

/// What a phase will amount to, as far as it is known beforehand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Episodes.
    pub episodes: Option<u64>,
    /// Steps.
    pub steps: Option<u64>,
    /// Bytes of input.
    pub bytes: Option<u64>,
}

/// What was done since the last call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Step {
    /// Episodes.
    pub episodes: u64,
    /// Steps.
    pub steps: u64,
    /// Bytes of input.
    pub bytes: u64,
}

/// Shows nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _phase: &str, _totals: Totals) {}

    fn advance(&self, _done: Step) {}

    fn end(&self) {}
}
