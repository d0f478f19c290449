//! The folder for what one process of a run writes and another reads.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::beside;
use super::file::failed;
use crate::error::Result;

/// A folder beside the output directory, on the same file system: `.shards.gristmill-between`. It goes with this value. One
/// that a killed run left is emptied by the next.
#[derive(Debug)]
pub struct Between(PathBuf);

impl Between {
    /// Makes the folder beside `target`.
    ///
    /// # Errors
    /// If it cannot be created, or a left one not be removed.
    pub fn create(target: &Path) -> Result<Self> {
        let path = beside::paths(target)?.between;
        match fs::remove_dir_all(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed("remove what a run left", &path, &e)),
            _ => {}
        }
        fs::create_dir(&path).map_err(|e| failed("create a folder beside the output directory", &path, &e))?;
        Ok(Self(path))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        // What stays behind, the next run removes.
        let _ = fs::remove_dir_all(&self.0);
    }
}
