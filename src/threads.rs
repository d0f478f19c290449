//! How many threads work, and starting them.

use std::ops::Deref;
use std::thread::{Builder, JoinHandle};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Error, Result};

/// As many threads as are asked for, at least one; one a core when nothing is asked.
#[must_use]
pub fn count(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into)).max(1)
}

/// Threads that have ended once it is dropped. The system's allocator gives each thread memory of its own, and what is left
/// of it goes to the next thread that starts: one that starts before another has ended gets new memory instead, so runs of
/// several passes would hold what is left of each.
#[derive(Debug)]
pub struct Pool {
    pool: Option<ThreadPool>,
    threads: Vec<JoinHandle<()>>,
}

/// Starts `threads` threads. In a list of processes they are called `gristmill-0` and so on.
///
/// # Errors
/// Of kind `Environment` if the system refuses.
pub fn pool(threads: usize) -> Result<Pool> {
    let mut started = Vec::with_capacity(threads);
    let builder = ThreadPoolBuilder::new().num_threads(threads).spawn_handler(|thread| {
        let named = Builder::new().name(format!("gristmill-{}", thread.index()));
        started.push(named.spawn(|| thread.run())?);
        Ok(())
    });
    let pool = builder.build().map_err(|e| Error::environment(format!("cannot start {threads} threads: {e}")))?;
    Ok(Pool { pool: Some(pool), threads: started })
}

impl Deref for Pool {
    type Target = ThreadPool;

    fn deref(&self) -> &ThreadPool {
        self.pool.as_ref().expect("there until it is dropped")
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.pool = None;
        for thread in self.threads.drain(..) {
            // A task's panic is its caller's, and no thread is waited for by itself.
            if thread.thread().id() != std::thread::current().id() {
                drop(thread.join());
            }
        }
    }
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
    use std::cell::RefCell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn what_is_asked_for_is_started() {
        assert_eq!((count(Some(3)), count(Some(0))), (3, 1));
        assert!(count(None) >= 1);
        let pool = pool(3).unwrap();
        assert_eq!(pool.current_num_threads(), 3);
        assert_eq!(pool.install(|| std::thread::current().name().map(|n| n.starts_with("gristmill-"))), Some(true));
        let name = beside("waits", || std::thread::current().name().map(str::to_owned)).unwrap();
        assert_eq!(name.join().unwrap().as_deref(), Some("waits"));
    }

    #[test]
    fn threads_have_ended_with_their_pool() {
        struct Leaves(Arc<AtomicUsize>);
        impl Drop for Leaves {
            fn drop(&mut self) {
                std::thread::sleep(std::time::Duration::from_millis(20));
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        thread_local!(static LEFT: RefCell<Option<Leaves>> = const { RefCell::new(None) });
        let (left, pool) = (Arc::new(AtomicUsize::new(0)), pool(4).unwrap());
        pool.broadcast(|_| LEFT.set(Some(Leaves(Arc::clone(&left)))));
        assert_eq!(left.load(Ordering::SeqCst), 0);
        drop(pool);
        assert_eq!(left.load(Ordering::SeqCst), 4);
    }
}
