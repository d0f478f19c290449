//! How many threads work, and starting them.

use std::thread::{Builder, JoinHandle};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Error, Result};

/// As many threads as are asked for, at least one; one a core when nothing is asked.
#[must_use]
pub fn count(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into)).max(1)
}

/// Starts `threads` threads. In a list of processes they are called `gristmill-0` and so on.
///
/// # Errors
/// Of kind `Environment` if the system refuses.
pub fn pool(threads: usize) -> Result<ThreadPool> {
    let builder = ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("gristmill-{i}"));
    builder.build().map_err(|e| Error::environment(format!("cannot start {threads} threads: {e}")))
}

/// Starts a thread beside the pool, for waiting: it must not compute.
///
/// # Errors
/// Of kind `Environment` if the system refuses.
pub fn beside<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    let started = Builder::new().name(name.to_owned()).spawn(work);
    started.map_err(|e| Error::environment(format!("cannot start a thread: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_started() {
        assert_eq!((count(Some(3)), count(Some(0))), (3, 1));
        assert!(count(None) >= 1);
        assert_eq!(pool(3).unwrap().current_num_threads(), 3);
        let name = beside("waits", || std::thread::current().name().map(str::to_owned)).unwrap();
        assert_eq!(name.join().unwrap().as_deref(), Some("waits"));
    }
}
