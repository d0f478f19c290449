//! Waiting for the disk, beside the work.
//!
//! ```text
//! whoever appends   |- shard 0 -|- shard 1 -|- shard 2 -|                   writes into the system's memory
//! this thread                   |-- sync 0 --|-- sync 1 --|-- sync 2 --|    and then a line in the journal
//! ```
//!
//! A journal never names a shard that is not on the disk. What is synced is not waited for until the end, so encoding goes
//! on meanwhile.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::file::Unsynced;
use super::journal::{Finished, Journal};
use crate::error::{Error, Result};
use crate::threads;

/// Shards that may wait. Each is an open file, and memory of the system's that it cannot give to others.
const WAITING: usize = 4;

/// The way to a thread, and the thread.
type Beside = (SyncSender<(Unsynced, Finished)>, JoinHandle<Result<()>>);

/// Brings finished shards to the disk, in order, and into the journal.
#[derive(Debug)]
pub struct Durable {
    journal: Arc<Journal>,
    /// Whether whoever brings a shard waits for the disk.
    in_turn: bool,
    /// Whether one could not be brought there, so that none behind it may be named.
    ended: bool,
    /// The thread and the way to it, from the first shard on: one that starts before the threads that work takes over the
    /// memory that the allocator has kept of the last pass, which these need.
    beside: Option<Beside>,
}

impl Durable {
    /// Waits on a thread beside the work.
    #[must_use]
    pub const fn new(journal: Arc<Journal>) -> Self {
        Self { journal, in_turn: false, ended: false, beside: None }
    }

    /// Waits where the work is, without a thread: where memory is too scarce for what the allocator keeps of one.
    #[must_use]
    pub const fn in_turn(journal: Arc<Journal>) -> Self {
        Self { journal, in_turn: true, ended: false, beside: None }
    }

    fn start(&self) -> Result<Beside> {
        let (shards, waiting) = sync_channel::<(Unsynced, Finished)>(WAITING);
        let journal = Arc::clone(&self.journal);
        let thread = threads::beside("gristmill-disk", move || {
            waiting.into_iter().try_for_each(|(file, shard)| {
                file.sync()?;
                journal.finished(&shard)
            })
        })?;
        Ok((shards, thread))
    }

    /// Takes in a shard. Waits if too many are waiting.
    ///
    /// # Errors
    /// If it, or an earlier one, could not be brought to the disk, or the system refuses a thread.
    pub fn push(&mut self, file: Unsynced, shard: Finished) -> Result<()> {
        if self.ended {
            return Err(Error::internal("a shard behind the last one"));
        }
        if self.in_turn {
            let done = file.sync().and_then(|()| self.journal.finished(&shard));
            self.ended = done.is_err();
            return done;
        }
        let beside = match self.beside.take() {
            Some(beside) => beside,
            None => self.start().inspect_err(|_| self.ended = true)?,
        };
        let (shards, _) = self.beside.insert(beside);
        if shards.send((file, shard)).is_ok() {
            return Ok(());
        }
        self.end().and_then(|()| Err(Error::internal("a shard behind the last one")))
    }

    /// Waits until all shards are on the disk and in the journal.
    ///
    /// # Errors
    /// If one could not be brought there.
    pub fn finish(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.ended = true;
        let Some((shards, thread)) = self.beside.take() else { return Ok(()) };
        drop(shards);
        thread.join().unwrap_or_else(|_| Err(Error::internal("the thread that waits for the disk panicked")))
    }
}

/// Whoever fails takes back what was written: nothing may be written behind its back.
impl Drop for Durable {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::Path;

    use serde_json::Value;

    use super::super::journal::Intent;
    use super::*;

    fn shard(i: usize) -> Finished {
        Finished { file: format!("m/part-{i:05}.parquet"), rows: 1, bytes: 1, digest: String::new() }
    }

    fn journal(dir: &Path) -> Arc<Journal> {
        Arc::new(Journal::start(dir, &Intent::new(Value::Null, Vec::new(), Vec::new()), &[]).unwrap())
    }

    fn names(dir: &Path) -> Vec<String> {
        Journal::read(dir).unwrap().unwrap().1.into_iter().map(|shard| shard.file).collect()
    }

    #[test]
    fn all_shards_are_in_the_journal_in_order() {
        for way in [Durable::new, Durable::in_turn] {
            let tmp = tempfile::tempdir().unwrap();
            let mut durable = way(journal(tmp.path()));
            for i in 0..20 {
                let path = tmp.path().join(i.to_string());
                fs::write(&path, "x").unwrap();
                durable.push(Unsynced::of(File::open(&path).unwrap(), &path), shard(i)).unwrap();
            }
            durable.finish().unwrap();
            assert_eq!(names(tmp.path()), (0..20).map(|i| shard(i).file).collect::<Vec<_>>());
        }
    }

    /// What cannot be synced (a device, here) ends the run, and no later shard is named.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_disk_that_refuses_is_told() {
        let tmp = tempfile::tempdir().unwrap();
        let null = || Unsynced::of(File::open("/dev/null").unwrap(), Path::new("/dev/null"));
        let mut durable = Durable::new(journal(tmp.path()));
        durable.push(null(), shard(0)).unwrap();
        let told = (1..100).find_map(|i| durable.push(null(), shard(i)).err()).unwrap();
        assert_eq!((told.kind().exit_code(), told.place().file.as_deref()), (3, Some("/dev/null")));
        assert!(durable.push(null(), shard(0)).is_err(), "none behind one that is missing");
        assert!(durable.finish().is_ok(), "told once");
        let mut last = Durable::new(journal(tmp.path()));
        last.push(null(), shard(0)).unwrap();
        assert!(last.finish().is_err());
        let mut in_turn = Durable::in_turn(journal(tmp.path()));
        assert!(in_turn.push(null(), shard(0)).is_err() && in_turn.push(null(), shard(1)).is_err());
        assert_eq!(names(tmp.path()), Vec::<String>::new());
    }
}
