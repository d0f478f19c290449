//! Data sets that gristmill has written, among what may be recordings. Their shards are Parquet files with the columns of steps,
//! and what lies in them was recorded elsewhere already.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use serde::Deserialize;

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
        let file = File::open(directory.join(MANIFEST)).ok()?;
        serde_json::from_reader(BufReader::new(file)).ok()
    };
    directory.join(UNFINISHED).exists() || author().is_some_and(|author| !author.gristmill.is_empty())
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
}
