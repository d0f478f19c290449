//! What a manifest may say at all.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::manifest::Manifest;

/// Why a path is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadPath {
    /// It is empty, or a part of it is.
    Empty,
    /// It starts at a root or a drive.
    Absolute,
    /// A part of it is `.` or `..`.
    Climbs,
    /// It has a character that no gristmill writes.
    Odd,
}

/// Whether a manifest's path names a file inside the data set, on any system.
///
/// # Errors
/// Why it does not.
///
/// ```
/// use gristmill::dataset::{BadPath, check_path};
///
/// assert_eq!(check_path("train/default_policy/part-00000.parquet"), Ok(()));
/// assert_eq!(check_path("../secrets"), Err(BadPath::Climbs));
/// assert_eq!(check_path("/etc/passwd"), Err(BadPath::Absolute));
/// assert_eq!(check_path("C:\\x"), Err(BadPath::Odd));
/// ```
pub fn check_path(path: &str) -> Result<(), BadPath> {
    if path.starts_with('/') {
        return Err(BadPath::Absolute);
    }
    if path.chars().any(|c| c.is_control() || "\\:*?\"<>|".contains(c)) {
        return Err(BadPath::Odd);
    }
    path.split('/').try_for_each(|part| match part {
        "" => Err(BadPath::Empty),
        "." | ".." => Err(BadPath::Climbs),
        _ => Ok(()),
    })
}

/// Refuses what no gristmill writes: paths out of the data set, a file that stands twice, columns that stand twice.
pub(super) fn check(manifest: &Manifest) -> Result<()> {
    let mut files: BTreeSet<&str> = BTreeSet::new();
    for (name, module) in &manifest.modules {
        let place = |e: Error| e.job_key(format!("modules.{name}"));
        let paths = module.shards.iter().map(|s| &s.file).chain([&module.folder]);
        for path in paths {
            check_path(path).map_err(|bad| {
                let why = match bad {
                    BadPath::Empty => "a part of it is empty",
                    BadPath::Absolute => "it is absolute",
                    BadPath::Climbs => "it climbs by `.` or `..`",
                    BadPath::Odd => "it has a character that is no part of a file name on every system",
                };
                let what = format!("found the path {path:?}, expected one inside the data set: {why}");
                place(Error::data(what).hint("no gristmill writes such a manifest: do not trust this data set"))
            })?;
        }
        for shard in &module.shards {
            if !files.insert(&shard.file) {
                return Err(place(Error::data(format!("the file {:?} stands in the manifest twice", shard.file))));
            }
            if !shard.file.starts_with(&format!("{}/", module.folder)) {
                let what = format!("found the file {:?}, expected one in the folder {:?}", shard.file, module.folder);
                return Err(place(Error::data(what)));
            }
        }
    }
    Ok(())
}
