//! A new data set beside an older one, and the swap of the two; see the figure in [`super::directory`].

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::directory::{complete, remove_data_set};
use super::file::{failed, sync_directory};
use super::found::is_data_set;
use crate::error::{Error, Result};

/// The directories beside a data set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Paths {
    /// Where the new one is written.
    pub new: PathBuf,
    /// Where the old one waits to be removed.
    pub old: PathBuf,
    /// Where rows of parts wait that were made by other processes.
    pub between: PathBuf,
}

/// Names are fixed, so that a later run finds what an interrupted one left.
pub(super) fn paths(target: &Path) -> Result<Paths> {
    // `.` and links have no name of their own to stand beside.
    let full = match target.canonicalize() {
        Ok(full) => full,
        Err(_) => std::path::absolute(target).map_err(|e| Error::io("resolve the output directory", target, &e))?,
    };
    let (Some(parent), Some(name)) = (full.parent(), full.file_name()) else {
        return Err(Error::usage("found the root of a file system, expected a directory inside of it")
            .file(target.display().to_string()));
    };
    let beside = |what: &str| {
        let mut own = std::ffi::OsString::from(".");
        own.push(name);
        own.push(what);
        parent.join(own)
    };
    Ok(Paths { new: beside(".gristmill-new"), old: beside(".gristmill-old"), between: beside(".gristmill-between") })
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|e| {
        let error = failed(&format!("rename {} to", from.display()), to, &e);
        error.hint("the new data set is whole; it lies beside the old one")
    })
}

/// Puts the new data set in the place of the old one, and removes that.
pub(super) fn swap(target: &Path) -> Result<()> {
    let target = target.canonicalize().map_err(|e| Error::io("find the old data set", target, &e))?;
    let Paths { new, old, .. } = paths(&target)?;
    remove_data_set(&old)?;
    rename(&target, &old)?;
    rename(&new, &target)?;
    if let Some(parent) = target.parent() {
        sync_directory(parent)?;
    }
    remove_data_set(&old)
}

/// Completes what a crash broke off behind the last byte: marks of a run beside a manifest, and swaps.
pub(super) fn recover(target: &Path) -> Result<()> {
    // Nothing can have been swapped where there is no name.
    let Ok(Paths { new, old, .. }) = paths(target) else { return Ok(()) };
    for path in [target, new.as_path()] {
        if is_data_set(path) {
            complete(path)?;
        }
    }
    let missing = fs::symlink_metadata(target).is_err_and(|e| e.kind() == ErrorKind::NotFound);
    if is_data_set(&new) && is_data_set(target) {
        swap(target)?;
    } else if is_data_set(&new) && missing {
        rename(&new, target)?;
        if let Some(parent) = new.parent() {
            sync_directory(parent)?;
        }
    }
    if is_data_set(target) && old.is_dir() {
        remove_data_set(&old)?;
    }
    Ok(())
}
