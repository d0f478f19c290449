//! What is in an output directory, whose it is, and taking away what is gristmill's.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use serde::Deserialize;

use super::file::{failed, sync_directory};
use super::journal::{JOURNAL, JOURNAL_DRAFT};
use super::names::{MANIFEST, MANIFEST_DRAFT, RUN, UNFINISHED, is_shard_name};
use super::near::first_shard;
use crate::error::{Error, Result};
use crate::regular;

/// What of a manifest tells which files are the data set's. Read leniently: it may be another version's.
#[derive(Debug, Deserialize)]
struct ManifestFiles {
    gristmill: String,
    modules: indexmap::IndexMap<String, ModuleFiles>,
    #[serde(default)]
    quarantine: Vec<ShardFile>,
}

#[derive(Debug, Deserialize)]
struct ModuleFiles {
    shards: Vec<ShardFile>,
    #[serde(default)]
    tables: indexmap::IndexMap<String, TableFiles>,
}

#[derive(Debug, Deserialize)]
struct TableFiles {
    steps: StepFiles,
}

#[derive(Debug, Deserialize)]
struct StepFiles {
    shards: Vec<ShardFile>,
}

#[derive(Debug, Deserialize)]
struct ShardFile {
    file: String,
}

/// What is in a directory.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub has_manifest: bool,
    pub has_mark: bool,
    /// Files of gristmill's, relative with `/`.
    pub own: Vec<String>,
    /// Files, and whatever else, of others.
    pub foreign: Vec<String>,
    /// Folders, outer ones first.
    pub folders: Vec<String>,
}

impl Found {
    pub fn look(root: &Path) -> Result<Self> {
        let mut found = Self::default();
        let mut files = Vec::new();
        list(root, "", &mut files, &mut found)?;
        let at_root = |name: &str| files.iter().any(|f| f == name);
        found.has_mark = at_root(UNFINISHED);
        let listed = if at_root(MANIFEST) { manifest_files(root) } else { None };
        found.has_manifest = listed.is_some();
        let listed = listed.unwrap_or_default();
        let ours = found.has_manifest || found.has_mark;
        for file in files {
            let name = file.rsplit('/').next().unwrap_or(&file);
            let own = match file.as_str() {
                MANIFEST => found.has_manifest,
                RUN | MANIFEST_DRAFT | UNFINISHED | JOURNAL | JOURNAL_DRAFT => ours,
                // An unfinished run has no list. Its shards lie in folders: `module/part`, `tables/module/table/part`.
                path => listed.contains(path) || (found.has_mark && path.contains('/') && is_shard_name(name)),
            };
            if own { found.own.push(file) } else { found.foreign.push(file) }
        }
        found.foreign.sort_unstable();
        Ok(found)
    }

    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.foreign.is_empty() && self.folders.is_empty()
    }

    pub fn refusal(&self, root: &Path) -> Error {
        let what = if self.has_manifest {
            "a data set of gristmill's".to_owned()
        } else if self.has_mark {
            "an unfinished data set of gristmill's (a run was interrupted, or is still writing)".to_owned()
        } else {
            return self.foreign_refusal(root);
        };
        let e =
            Error::usage(format!("found {what}, expected an empty output directory")).file(root.display().to_string());
        e.hint(if self.has_mark && !self.has_manifest {
            "--resume goes on with it, --overwrite replaces it; or choose another --output"
        } else {
            "--overwrite replaces it; or choose another --output"
        })
    }

    fn foreign_refusal(&self, root: &Path) -> Error {
        let ours = self.has_manifest || self.has_mark;
        if let Some(shard) = first_shard(root).filter(|_| !ours) {
            return Error::usage(format!("found {shard} and no manifest.json, expected an empty output directory"))
                .file(root.display().to_string())
                .hint(
                    "without its manifest a data set's shards cannot be told from other files, and gristmill removes only \
                     what it wrote: choose another --output, or remove them yourself",
                );
        }
        let names = if self.foreign.is_empty() { &self.folders } else { &self.foreign };
        let shown: Vec<&str> = names.iter().take(3).map(String::as_str).collect();
        let more = names.len().saturating_sub(shown.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Error::usage(format!(
            "found files that are not gristmill's ({}{more}), expected an empty output directory",
            shown.join(", ")
        ))
        .file(root.display().to_string())
        .hint("choose another --output, or remove them yourself; gristmill removes only what it wrote")
    }

    pub fn check_removable(&self, root: &Path) -> Result<()> {
        let ours = self.has_manifest || self.has_mark;
        if ours && self.foreign.is_empty() { Ok(()) } else { Err(self.foreign_refusal(root)) }
    }

    /// Removes what is gristmill's. The manifest goes first: from then on the directory is no data set, whatever stops us.
    pub fn remove(&self, root: &Path) -> Result<()> {
        let remove = |name: &str| {
            let path = name.split('/').fold(root.to_owned(), |path, part| path.join(part));
            fs::remove_file(&path).map_err(|e| failed("remove", &path, &e))
        };
        if self.has_manifest {
            remove(MANIFEST)?;
            sync_directory(root)?;
        }
        for file in self.own.iter().filter(|f| ![MANIFEST, UNFINISHED].contains(&f.as_str())) {
            remove(file)?;
        }
        for folder in self.folders.iter().rev() {
            let path = folder.split('/').fold(root.to_owned(), |path, part| path.join(part));
            fs::remove_dir(&path).map_err(|e| failed("remove", &path, &e))?;
        }
        Ok(())
    }
}

/// Whether there is a manifest of gristmill's.
pub(super) fn is_data_set(root: &Path) -> bool {
    manifest_files(root).is_some()
}

fn manifest(root: &Path) -> Option<ManifestFiles> {
    let (mut file, _) = regular::open("read the manifest", &root.join(MANIFEST)).ok()?;
    let mut text = Vec::new();
    file.read_to_end(&mut text).ok()?;
    let manifest: ManifestFiles = serde_json::from_slice(&text).ok()?;
    (!manifest.gristmill.is_empty()).then_some(manifest)
}

/// The modules of the data set in `root` that have a shard in its folder `inside`; none if there is no data set.
pub(super) fn modules_in(root: &Path, inside: &str) -> Option<Vec<String>> {
    let within = |file: &str| file.strip_prefix(inside).is_some_and(|rest| rest.starts_with('/'));
    let modules = manifest(root)?.modules.into_iter();
    Some(modules.filter(|(_, m)| m.shards.iter().any(|s| within(&s.file))).map(|(name, _)| name).collect())
}

/// The shard files that the manifest names, if it is one of gristmill's.
fn manifest_files(root: &Path) -> Option<BTreeSet<String>> {
    let manifest = manifest(root)?;
    let of = |m: ModuleFiles| m.shards.into_iter().chain(m.tables.into_values().flat_map(|t| t.steps.shards));
    let shards = manifest.modules.into_values().flat_map(of);
    Some(shards.chain(manifest.quarantine).map(|s| s.file).collect())
}

/// Lists files below `root`. Links and other specials are foreign, and are not followed.
pub(super) fn list(root: &Path, inside: &str, files: &mut Vec<String>, found: &mut Found) -> Result<()> {
    let directory = if inside.is_empty() { root.to_owned() } else { root.join(inside) };
    let entries = fs::read_dir(&directory)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| failed("look into", &directory, &e))?;
    for entry in entries {
        let kind = entry.file_type().map_err(|e| failed("look at", &entry.path(), &e))?;
        let name = entry.file_name();
        let relative = |name: &str| if inside.is_empty() { name.to_owned() } else { format!("{inside}/{name}") };
        match name.to_str() {
            Some(name) if kind.is_dir() => {
                let folder = relative(name);
                found.folders.push(folder.clone());
                list(root, &folder, files, found)?;
            }
            Some(name) if kind.is_file() => files.push(relative(name)),
            _ => found.foreign.push(relative(&name.to_string_lossy())),
        }
    }
    Ok(())
}
