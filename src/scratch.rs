//! Files for what does not fit into memory.
//!
//! A scratch file has no name: the operating system gives its space back as soon as the process ends, however it ends
//! (`O_TMPFILE` on Linux, removed right after it was opened on other Unixes, deleted on close on Windows). So nothing is
//! left to be cleaned up, after a `kill -9` neither, and two runs cannot meet each other's files.

mod chain;
mod spool;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub use chain::Chain;
pub use spool::Spool;

use crate::error::{Error, Result};

/// The folder that scratch files go to.
#[derive(Debug, Clone)]
pub struct Scratch(Arc<PathBuf>);

impl Scratch {
    /// Scratch files in `dir`, or in the nearest folder above it that exists. Nothing is written before it must be.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        let here = |path: &&Path| !path.as_os_str().is_empty() && path.is_dir();
        Self(Arc::new(dir.ancestors().find(here).unwrap_or(Path::new(".")).to_owned()))
    }

    /// The folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// A new file, empty.
    ///
    /// # Errors
    /// If the folder cannot be written to.
    pub fn file(&self) -> Result<ScratchFile> {
        let file = tempfile::tempfile_in(self.dir()).map_err(|e| failed("create a scratch file", self.dir(), &e))?;
        Ok(ScratchFile { dir: self.clone(), inner: Mutex::new(Inner { file, end: 0 }) })
    }
}

/// Bytes that are written in pieces and read back by their places. Any thread.
#[derive(Debug)]
pub struct ScratchFile {
    dir: Scratch,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: File,
    end: u64,
}

impl ScratchFile {
    /// Writes `bytes` behind all others and says where they begin.
    ///
    /// # Errors
    /// If the disk is full, or fails.
    pub fn append(&self, bytes: &[u8]) -> Result<u64> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let at = inner.end;
        let write = |inner: &mut Inner| {
            inner.file.seek(SeekFrom::Start(at))?;
            inner.file.write_all(bytes)
        };
        write(&mut inner).map_err(|e| failed("write a scratch file", self.dir.dir(), &e))?;
        inner.end += bytes.len() as u64;
        Ok(at)
    }

    /// Writes `bytes` over what begins at `at`.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let write = |inner: &mut Inner| {
            inner.file.seek(SeekFrom::Start(at))?;
            inner.file.write_all(bytes)
        };
        write(&mut inner).map_err(|e| failed("write a scratch file", self.dir.dir(), &e))
    }

    /// Fills `bytes` from what begins at `at`.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let mut read = |inner: &mut Inner| {
            inner.file.seek(SeekFrom::Start(at))?;
            inner.file.read_exact(bytes)
        };
        read(&mut inner).map_err(|e| failed("read a scratch file", self.dir.dir(), &e))
    }

    /// Bytes written.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).end
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Whatever the reason, it is the surroundings'.
fn failed(doing: &str, dir: &Path, source: &io::Error) -> Error {
    let e = Error::environment(format!("cannot {doing}: {source}")).file(dir.display().to_string());
    e.hint("--scratch names a folder on a disk with room for what does not fit into memory; a larger --memory-limit needs less of it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_back_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let file = Scratch::new(&dir.path().join("not/there/yet")).file().unwrap();
        let places = [&b"abc"[..], b"", b"defgh"].map(|piece| file.append(piece).unwrap());
        assert_eq!((places, file.len()), ([0, 3, 3], 8));
        let mut piece = [0; 5];
        file.read(3, &mut piece).unwrap();
        assert_eq!(&piece, b"defgh");
        file.append(b"i").unwrap();
        file.write(4, b"-").unwrap();
        file.read(3, &mut piece).unwrap();
        assert_eq!((&piece, file.len()), (b"d-fgh", 9));
        assert!(file.read(6, &mut piece).is_err(), "there are three bytes only");
        // The file has no name while it is open, so whatever ends the process leaves nothing.
        if cfg!(unix) {
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_folder_that_vanished_is_the_surroundings_fault() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(dir.path());
        drop(dir);
        let error = scratch.file().unwrap_err();
        assert_eq!(error.kind(), crate::error::Kind::Environment);
        assert_eq!(error.place().file.as_deref(), Some(&*scratch.dir().display().to_string()));
    }
}
