//! Data sets that gristmill has written, among what may be recordings. Their shards are Parquet files with the columns of steps,
//! and what lies in them was recorded elsewhere already.

use std::collections::HashMap;
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::job::Format;
use crate::regular;

/// The data set's description. Written last.
pub const MANIFEST: &str = "manifest.json";
/// The folder of what was left out; see `input.on_bad_episode`.
pub const QUARANTINE: &str = "quarantine";
/// Stands in the directory of a run that has not finished.
pub const UNFINISHED: &str = ".gristmill-unfinished";

/// What of a manifest tells whose it is.
#[derive(Debug, Deserialize)]
struct Author {
    gristmill: String,
}

/// Whether a directory is a data set of gristmill's, or will be one once the run that writes it has finished.
#[must_use]
pub fn is_data_set(directory: &Path) -> bool {
    let author = || -> Option<Author> {
        let (file, _) = regular::open("read the manifest", &directory.join(MANIFEST)).ok()?;
        serde_json::from_reader(BufReader::new(file)).ok()
    };
    directory.join(UNFINISHED).exists() || author().is_some_and(|author| !author.gristmill.is_empty())
}

/// Whether `name` is one that [`crate::sink::shard_name`] gives.
pub(crate) fn is_shard_name(name: &str) -> bool {
    name.strip_prefix("part-").and_then(|rest| rest.split_once('.')).is_some_and(|(digits, extension)| {
        digits.len() >= 5
            && digits.bytes().all(|b| b.is_ascii_digit())
            && [Format::Parquet, Format::Arrow].iter().any(|f| f.name() == extension)
    })
}

/// What to do about shards without a manifest.
pub(crate) const NO_MANIFEST: &str = "if this is one, its manifest.json was removed, or left behind when it was copied: \
                                      bring it back, or convert again";

/// What stands in the place of a manifest of gristmill's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instead {
    /// Nothing.
    Nothing,
    /// Something that is no JSON: half of a manifest, for one.
    Unreadable,
}

/// The description that is not beside a file which is called as shards are, and lies as they do. Of a folder with somebody
/// else's description, nothing is told.
pub(super) fn no_manifest(path: &Path) -> Option<Instead> {
    let mut found = Instead::Nothing;
    // `module/part` or `split/module/part`.
    for directory in path.ancestors().skip(2).take(2) {
        let manifest = directory.join(MANIFEST);
        if fs::symlink_metadata(&manifest).is_err() {
            continue;
        }
        let file = regular::open("read the manifest", &manifest);
        let json = |(file, _)| serde_json::from_reader::<_, serde::de::IgnoredAny>(BufReader::new(file)).is_ok();
        if file.is_ok_and(json) {
            return None;
        }
        found = Instead::Unreadable;
    }
    Some(found)
}

/// Looks each directory up once.
#[derive(Debug, Default)]
pub(super) struct Known(HashMap<PathBuf, bool>);

impl Known {
    pub fn is_data_set(&mut self, directory: &Path) -> bool {
        if let Some(known) = self.0.get(directory) {
            return *known;
        }
        let found = is_data_set(directory);
        self.0.insert(directory.to_owned(), found);
        found
    }

    /// The outermost data set that a path lies in, of those below `root`.
    pub fn around<'a>(&mut self, path: &'a Path, root: &Path) -> Option<&'a Path> {
        let below = path.ancestors().skip(1).take_while(|dir| *dir != root && dir.starts_with(root));
        below.filter(|dir| self.is_data_set(dir)).last()
    }

    /// The data set that a link leads into. (What was left out of it, and may be repaired, is none of its shards.)
    pub fn linked(&mut self, path: &Path) -> Option<PathBuf> {
        let real = fs::canonicalize(path).ok()?;
        let set = if real.is_dir() && self.is_data_set(&real) { &real } else { self.around(&real, Path::new(""))? };
        (!real.starts_with(set.join(QUARANTINE))).then(|| set.to_owned())
    }
}
