//! What of a data set is near a directory that has no manifest.

use std::fs;
use std::path::{Path, PathBuf};

use super::found::{is_data_set, modules_in};
use super::names::is_shard_name;

/// Folders between a data set and its shards: `split/module`, or `tables/module/table`.
const DEPTH: usize = 3;

/// Data sets that are looked for below a directory; whoever has more of them needs no list.
const LISTED: usize = 4;

/// What is near a directory without a manifest.
#[derive(Debug, PartialEq, Eq)]
pub enum Near {
    /// It is a folder of a data set.
    Inside {
        /// Where the manifest is.
        root: PathBuf,
        /// The modules whose shards it holds.
        modules: Vec<String>,
    },
    /// Data sets are in folders of it.
    Holds(Vec<PathBuf>),
    /// A file that is called as shards are, and lies where they do, relative to it; no manifest knows it.
    Shard(String),
}

/// What of a data set is near `directory`, which has no manifest.
#[must_use]
pub fn near(directory: &Path) -> Option<Near> {
    let holds = data_sets(directory);
    inside(directory)
        .or_else(|| (!holds.is_empty()).then_some(Near::Holds(holds)))
        .or_else(|| first_shard(directory).map(Near::Shard))
}

/// The data set that `directory` is a folder of, if its manifest has shards there.
fn inside(directory: &Path) -> Option<Near> {
    let absolute = fs::canonicalize(directory).ok()?;
    let mut root = directory.to_owned();
    for ancestor in absolute.ancestors().skip(1).take(DEPTH) {
        // As it was written, as long as that has names to take away.
        root = match (root.file_name(), root.parent()) {
            (Some(_), Some(parent)) if parent.as_os_str().is_empty() => PathBuf::from("."),
            (Some(_), Some(parent)) => parent.to_owned(),
            _ => root.join(".."),
        };
        let names: Option<Vec<&str>> =
            absolute.strip_prefix(ancestor).ok()?.components().map(|c| c.as_os_str().to_str()).collect();
        // A link's parent is elsewhere than its target's.
        let is_it = fs::canonicalize(&root).is_ok_and(|found| found == ancestor);
        if let Some(modules) = names.and_then(|names| modules_in(ancestor, &names.join("/"))).filter(|m| !m.is_empty())
        {
            return Some(Near::Inside { root: if is_it { root } else { ancestor.to_owned() }, modules });
        }
    }
    None
}

/// The data sets in folders of `directory`, or in folders of these.
fn data_sets(directory: &Path) -> Vec<PathBuf> {
    fn search(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) {
        for (name, _) in entries(directory).into_iter().filter(|(_, kind)| kind.is_dir()) {
            let folder = directory.join(name);
            if found.len() == LISTED {
                return;
            } else if is_data_set(&folder) {
                found.push(folder);
            } else if depth < 1 {
                search(&folder, depth + 1, found);
            }
        }
    }
    let mut found = Vec::new();
    search(directory, 0, &mut found);
    found
}

/// The first file below `root` that is called as shards are, and lies where they do, `module/part` or `split/module/part`,
/// and not in a data set. Nothing else is looked at, so it may be anybody's.
pub(super) fn first_shard(root: &Path) -> Option<String> {
    fn search(directory: &Path, depth: usize) -> Option<String> {
        if depth > 0 && is_data_set(directory) {
            return None;
        }
        entries(directory).into_iter().find_map(|(name, kind)| {
            if kind.is_dir() && depth < 2 {
                return search(&directory.join(&name), depth + 1).map(|inner| format!("{name}/{inner}"));
            }
            (kind.is_file() && depth > 0 && is_shard_name(&name)).then_some(name)
        })
    }
    search(root, 0)
}

/// What is in a directory, by name. Links are not followed.
fn entries(directory: &Path) -> Vec<(String, fs::FileType)> {
    let found = fs::read_dir(directory).into_iter().flatten().flatten();
    let named = found.filter_map(|e| Some((e.file_name().into_string().ok()?, e.file_type().ok()?)));
    let mut entries: Vec<_> = named.collect();
    entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    entries
}
