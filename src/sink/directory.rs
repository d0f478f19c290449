//! The output directory: what may be written into, what may be removed, and when it is a data set.
//!
//! ```text
//!               prepare                 shards                 finish
//!  (nothing) ────────────▶ .gristmill-unfinished ────▶ run.json, manifest.json (by rename), mark removed
//!      ▲                            │
//!      └────── a run that fails ────┘
//! ```
//!
//! A directory with `manifest.json` is a data set; one with the mark and without a manifest is an unfinished run's. What
//! has neither, and is not empty, is somebody else's and is never touched.
//!
//! A data set that is replaced stays until the new one is whole: that is written beside it and takes its place by rename.
//!
//! ```text
//! shards/                     old      old           (none)       new        new
//! .shards.gristmill-new/      writing  whole         whole
//! .shards.gristmill-old/                             old          old
//!                                      rename        rename       removed
//! ```
//!
//! A crash between the renames leaves no `shards/`, and a whole new one beside it: whoever comes next completes the swap.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::Serialize;

use super::beside;
use super::file::{failed, sync_directory};
use super::found::Found;
use super::journal::{self, Finished, Intent, JOURNAL, JOURNAL_DRAFT, Journal};
use super::names::{MANIFEST, MANIFEST_DRAFT, ModuleDir, QUARANTINE, RUN, TABLES, UNFINISHED, folder_name};
use crate::column::outer_names;
use crate::error::{Error, Result};
use crate::regular;

/// The directory of one run.
#[derive(Debug)]
pub struct OutputDir {
    root: PathBuf,
    /// Directories that got new entries.
    touched: Mutex<BTreeSet<PathBuf>>,
    /// Whether the directory was not there before.
    created: bool,
    /// Whether what lies there is this run's, and not finished.
    open: bool,
    /// Where the data set goes in the end, if it is written beside an older one.
    target: Option<PathBuf>,
}

/// What to do with what is in the output directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Existing {
    /// Refuse to write.
    #[default]
    Refuse,
    /// Replace it, once the new data set is whole.
    Replace,
    /// Go on where an interrupted run stopped.
    Resume,
}

/// A run that fails takes back what it wrote, so that the next one starts where this one did. A run that is killed
/// cannot; its mark stays.
impl Drop for OutputDir {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        // An error here would hide the one that is on its way; what stays behind is marked as unfinished.
        let Ok(found) = Found::look(&self.root) else { return };
        if !found.has_mark || found.has_manifest {
            if self.created && found.is_empty() {
                let _ = fs::remove_dir(&self.root);
            }
            return;
        }
        if found.remove(&self.root).is_ok() && fs::remove_file(self.root.join(UNFINISHED)).is_ok() && self.created {
            let _ = fs::remove_dir(&self.root);
        }
    }
}

impl OutputDir {
    /// Whether [`Self::prepare`] would accept `path`. Touches nothing, but for a swap that a crash broke off: that is
    /// completed.
    pub fn check(path: &Path, existing: Existing) -> Result<()> {
        beside::recover(path)?;
        match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => {
                let found = Found::look(path)?;
                match existing {
                    _ if found.is_empty() => Ok(()),
                    Existing::Replace => found.check_removable(path),
                    Existing::Resume if found.has_mark || found.has_manifest => found.check_removable(path),
                    Existing::Refuse | Existing::Resume => Err(found.refusal(path)),
                }
            }
            // What else is wrong with it, `prepare` says.
            _ => Ok(()),
        }
    }

    /// Makes `path` ready for a run.
    ///
    /// | found | `Refuse` | `Replace` | `Resume` |
    /// |---|---|---|---|
    /// | nothing | created, with its parents | the same | the same |
    /// | an empty directory | used | the same | the same |
    /// | a data set of gristmill's | refused | kept until the new one is whole | the same, if one is being written beside it |
    /// | an unfinished one | refused | its files removed | gone on with |
    /// | these and foreign files | refused | refused, nothing removed | refused |
    /// | anything else | refused | refused | refused |
    pub fn prepare(path: &Path, existing: Existing) -> Result<Self> {
        let mut this = Self::at(path);
        match fs::metadata(path) {
            Ok(meta) if !meta.is_dir() => {
                let found = regular::kind(&meta);
                return Err(Error::usage(format!("found {found}, expected a directory to write the data set into"))
                    .file(path.display().to_string())
                    .hint("choose another --output"));
            }
            Ok(_) => {
                let found = Found::look(path)?;
                if !found.is_empty() {
                    if existing == Existing::Refuse {
                        return Err(found.refusal(path));
                    }
                    found.check_removable(path)?;
                    if found.has_manifest {
                        return Self::prepare_beside(path, existing);
                    }
                    if existing == Existing::Replace {
                        this.open = true;
                        found.remove(path)?;
                    }
                    // What goes on stays as it is until it is known to be the same run's.
                    return Ok(this);
                }
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {
                this.created = true;
                fs::create_dir_all(path).map_err(|e| match e.kind() {
                    ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
                        Error::usage("found a file on the way to the output directory, expected directories")
                            .file(path.display().to_string())
                            .hint("choose another --output")
                    }
                    _ => failed("create the output directory", path, &e),
                })?;
            }
            Err(e) if e.kind() == ErrorKind::NotADirectory => {
                return Err(Error::usage("found a file on the way to the output directory, expected directories")
                    .file(path.display().to_string())
                    .hint("choose another --output"));
            }
            Err(e) => return Err(failed("look into the output directory", path, &e)),
        }
        // Before the mark: where a full disk takes no more than its name, that is taken back, too.
        this.open = true;
        this.mark()?;
        Ok(this)
    }

    fn at(path: &Path) -> Self {
        Self { root: path.to_owned(), touched: Mutex::default(), created: false, open: false, target: None }
    }

    /// Makes the directory beside an older data set ready.
    fn prepare_beside(path: &Path, existing: Existing) -> Result<Self> {
        let new = beside::paths(path)?.new;
        let mut this = Self::at(&new);
        (this.created, this.target) = (true, Some(path.to_owned()));
        fs::create_dir_all(&new).map_err(|e| {
            let error = failed("create a directory for the new data set beside the old one", &new, &e);
            error.hint("remove the old data set yourself, or choose another --output")
        })?;
        let found = Found::look(&new)?;
        if !found.is_empty() {
            found.check_removable(&new)?;
            if existing == Existing::Resume {
                return Ok(this);
            }
            this.open = true;
            found.remove(&new)?;
            return Ok(this);
        }
        // Before the mark: where a full disk takes no more than its name, that is taken back, too.
        this.open = true;
        this.mark()?;
        Ok(this)
    }

    /// Whether a run that was interrupted left something at `path`, or beside it, to go on with.
    pub fn is_unfinished(path: &Path) -> Result<bool> {
        // The directory beside is ours by its name: a run may have been stopped before it put its mark there.
        Ok(beside::paths(path)?.new.is_dir() || (path.is_dir() && Found::look(path)?.has_mark))
    }

    /// Starts the journal. Where the directory has one of the same intent, its shards that are still whole are handed
    /// back, to be kept; all other files go.
    ///
    /// # Errors
    /// If it has one of another intent. Then nothing is touched.
    pub fn journal(&mut self, intent: &Intent) -> Result<(Journal, Vec<Finished>)> {
        let mut kept = Vec::new();
        if !self.open {
            if let Some((before, shards)) = Journal::read(&self.root)? {
                intent.check(&before, &self.root)?;
                let found = Found::look(&self.root)?;
                // A journal is only believed about files that a run would write.
                let there: BTreeSet<&str> = found.own.iter().map(String::as_str).collect();
                let own = shards.into_iter().filter(|s| there.contains(s.file.as_str())).collect();
                kept = journal::without_gaps(journal::intact(&self.root, own));
            }
            self.mark()?;
            self.open = true;
            let mut found = Found::look(&self.root)?;
            let files: BTreeSet<&str> = kept.iter().map(|k| k.file.as_str()).collect();
            let folders = outer_names(files.iter().copied());
            // The old journal goes by rename: until then it is the best there is.
            found.own.retain(|file| file != JOURNAL && !files.contains(file.as_str()));
            found.folders.retain(|folder| !folders.contains(folder.as_str()));
            found.remove(&self.root)?;
        }
        Ok((Journal::start(&self.root, intent, &kept)?, kept))
    }

    /// The directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Creates the folder of a module's shards: `default_policy`, or `train/default_policy` when the data is split.
    pub fn module_dir(&self, split: Option<&str>, module_id: &str) -> Result<ModuleDir> {
        let module = folder_name(module_id);
        let relative = split.map_or_else(|| module.clone(), |s| format!("{}/{module}", folder_name(s)));
        self.shard_dir(relative)
    }

    /// Creates the folder of a table of a module: `tables/default_policy/frames`.
    pub fn table_dir(&self, module: &ModuleDir, table: &str) -> Result<ModuleDir> {
        self.shard_dir(format!("{TABLES}/{}/{table}", module.relative))
    }

    /// Creates a folder for shards.
    fn shard_dir(&self, relative: String) -> Result<ModuleDir> {
        let path = relative.split('/').fold(self.root.clone(), |path, part| path.join(part));
        fs::create_dir_all(&path).map_err(|e| failed("create the folder", &path, &e))?;
        let inside = path.ancestors().take_while(|p| p.starts_with(&self.root)).map(Path::to_owned);
        self.touched.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(inside);
        Ok(ModuleDir { relative, path })
    }

    /// Removes the shards that this run has written, so that it can start anew. Those that an interrupted run had
    /// finished (`kept`) stay.
    pub fn clear(&self, kept: &[Finished]) -> Result<()> {
        let found = Found::look(&self.root)?;
        let kept: BTreeSet<&str> = kept.iter().map(|k| k.file.as_str()).collect();
        let shards = found.own.iter().filter(|file| file.contains('/') && !kept.contains(file.as_str()));
        shards
            .map(|file| self.root.join(file))
            .try_for_each(|path| fs::remove_file(&path).map_err(|e| failed("remove", &path, &e)))
    }

    /// Creates the folder of what was left out: where it is, and its name in the manifest.
    pub fn quarantine_dir(&self) -> Result<(PathBuf, String)> {
        let path = self.root.join(QUARANTINE);
        let rows = path.join("rows");
        fs::create_dir_all(&rows).map_err(|e| failed("create the folder of what was left out", &rows, &e))?;
        let mut touched = self.touched.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        touched.extend([self.root.clone(), path.clone(), rows]);
        Ok((path, QUARANTINE.to_owned()))
    }

    /// Completes the data set: `run.json`, then `manifest.json` by rename, then the unfinished mark goes.
    ///
    /// Everything is on the disk before the manifest is, so a data set that has one is whole even after a power cut.
    pub fn finish<M: Serialize, R: Serialize>(mut self, manifest: &M, run: &R) -> Result<()> {
        write_json(&self.root.join(RUN), run)?;
        let draft = self.root.join(MANIFEST_DRAFT);
        write_json(&draft, manifest)?;
        for directory in self.touched.lock().unwrap_or_else(std::sync::PoisonError::into_inner).iter().rev() {
            sync_directory(directory)?;
        }
        let target = self.root.join(MANIFEST);
        fs::rename(&draft, &target).map_err(|e| failed("rename the finished manifest to", &target, &e))?;
        self.open = false;
        sync_directory(&self.root)?;
        complete(&self.root)?;
        match &self.target {
            Some(target) => beside::swap(target),
            None => Ok(()),
        }
    }

    fn mark(&self) -> Result<()> {
        let path = self.root.join(UNFINISHED);
        let text = "gristmill is writing here, or was interrupted. `--overwrite` may remove what it wrote.\n";
        fs::write(&path, text).map_err(|e| failed("write into the output directory", &path, &e))
    }
}

/// Takes the marks of a run from a data set that has its manifest: that is written last.
pub(super) fn complete(root: &Path) -> Result<()> {
    let mut any = false;
    for name in [JOURNAL, JOURNAL_DRAFT, UNFINISHED] {
        let path = root.join(name);
        match fs::remove_file(&path) {
            Ok(()) => any = true,
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed("remove", &path, &e)),
            Err(_) => {}
        }
    }
    if any { sync_directory(root) } else { Ok(()) }
}

/// Removes a data set that another one has taken the place of. What is not gristmill's stays, and so does its directory.
pub(super) fn remove_data_set(path: &Path) -> Result<()> {
    if !path.is_dir() {
        return Ok(());
    }
    let found = Found::look(path)?;
    if found.has_manifest || found.has_mark {
        // The mark first: where this breaks off, the next one knows the rest for gristmill's.
        OutputDir::at(path).mark()?;
        Found::look(path)?.remove(path)?;
        let mark = path.join(UNFINISHED);
        fs::remove_file(&mark).map_err(|e| failed("remove", &mark, &e))?;
    }
    match fs::remove_dir(path) {
        Err(e) if e.kind() != ErrorKind::NotFound && e.kind() != ErrorKind::DirectoryNotEmpty => {
            Err(failed("remove", path, &e))
        }
        _ => Ok(()),
    }
}

fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|e| Error::internal(format!("JSON: {e}")).file(path.display().to_string()))?;
    text.push('\n');
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|e| failed("write", path, &e))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::found::list;
    use super::*;
    use crate::error::Kind;
    use crate::job::Format;

    fn write(root: &Path, files: &[&str]) {
        for file in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
    }

    fn tree(root: &Path) -> Vec<String> {
        let mut files = Vec::new();
        list(root, "", &mut files, &mut Found::default()).unwrap();
        files.sort();
        files
    }

    /// A finished data set with one shard.
    fn data_set(root: &Path) {
        let dir = OutputDir::prepare(root, Existing::Refuse).unwrap();
        let module = dir.module_dir(None, "default_policy").unwrap();
        let (path, file) = module.shard(0, Format::Parquet);
        fs::write(path, "x").unwrap();
        let manifest =
            json!({ "gristmill": "0.1.0", "modules": { "default_policy": { "shards": [{ "file": file }] } } });
        dir.finish(&manifest, &json!({})).unwrap();
    }

    #[test]
    fn a_new_directory_is_created_with_its_parents_and_marked_until_the_end() {
        let tmp = tempfile::tempdir().unwrap();
        let root = tmp.path().join("a/b");
        let dir = OutputDir::prepare(&root, Existing::Refuse).unwrap();
        assert_eq!(tree(&root), [UNFINISHED]);
        let module = dir.module_dir(Some("train"), "p/0").unwrap();
        assert_eq!(module.relative, "train/p%2F0");
        assert_eq!(module.shard(7, Format::Arrow).1, "train/p%2F0/part-00007.arrow");
        assert!(module.path.is_dir());
        dir.finish(&json!({}), &json!({})).unwrap();
        assert_eq!(tree(&root), [MANIFEST, RUN]);
    }

    #[test]
    fn an_empty_directory_is_fine_and_a_file_is_not() {
        let tmp = tempfile::tempdir().unwrap();
        OutputDir::prepare(tmp.path(), Existing::Refuse).unwrap();
        let tmp = tempfile::tempdir().unwrap();
        write(tmp.path(), &["file"]);
        for path in [tmp.path().join("file"), tmp.path().join("file/sub"), tmp.path().join("file/sub/sub")] {
            let e = OutputDir::prepare(&path, Existing::Replace).unwrap_err();
            assert_eq!(e.kind(), Kind::Usage, "{e}");
            assert!(e.what().starts_with("found a file"), "{e}");
        }
    }

    #[test]
    fn a_data_set_is_replaced_only_on_request() {
        let tmp = tempfile::tempdir().unwrap();
        data_set(tmp.path());
        let e = OutputDir::prepare(tmp.path(), Existing::Refuse).unwrap_err();
        assert_eq!(e.kind(), Kind::Usage);
        assert!(e.hint_text().unwrap().contains("--overwrite"));
        assert_eq!(tree(tmp.path()), ["default_policy/part-00000.parquet", MANIFEST, RUN]);
        let before = tree(tmp.path());
        let dir = OutputDir::prepare(tmp.path(), Existing::Replace).unwrap();
        let new = dir.root().to_owned();
        assert_eq!(tree(&new), [UNFINISHED]);
        assert_eq!(tree(tmp.path()), before, "the old one stays");
        drop(dir); // a run that fails
        assert!(!new.exists());
        assert_eq!(tree(tmp.path()), before);
        let dir = OutputDir::prepare(tmp.path(), Existing::Replace).unwrap();
        dir.finish(&json!({ "gristmill": "0.1.0", "modules": {} }), &json!({})).unwrap();
        assert_eq!(tree(tmp.path()), [MANIFEST, RUN]);
        assert!(!new.exists() && !beside::paths(tmp.path()).unwrap().old.exists());
    }

    #[test]
    fn a_swap_that_a_crash_broke_off_is_completed() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("shards");
        let beside::Paths { new, old, .. } = beside::paths(&path).unwrap();
        // Between the renames: the new one takes its place.
        data_set(&new);
        data_set(&old);
        OutputDir::check(&path, Existing::Replace).unwrap();
        assert!(path.join(MANIFEST).exists() && !new.exists() && !old.exists());
        // Behind the renames: what is left of the old one goes.
        data_set(&old);
        OutputDir::check(&path, Existing::Replace).unwrap();
        assert!(path.join(MANIFEST).exists() && !old.exists());
        // What is no data set stays.
        write(&old, &["notes.txt"]);
        OutputDir::check(&path, Existing::Replace).unwrap();
        assert!(old.join("notes.txt").exists());
    }

    #[test]
    fn foreign_files_stop_everything_before_anything_is_removed() {
        for foreign in
            ["notes.txt", "default_policy/part-00001.parquet", "default_policy/notes.txt", "x/part-00000.arrow"]
        {
            let tmp = tempfile::tempdir().unwrap();
            data_set(tmp.path());
            write(tmp.path(), &[foreign]);
            let before = tree(tmp.path());
            let e = OutputDir::prepare(tmp.path(), Existing::Replace).unwrap_err();
            assert!(e.what().contains(foreign), "{e}");
            assert_eq!(tree(tmp.path()), before);
        }
    }

    #[test]
    fn an_unfinished_run_is_recognised_and_replaced() {
        let tmp = tempfile::tempdir().unwrap();
        write(tmp.path(), &[UNFINISHED, RUN, MANIFEST_DRAFT, "p0/part-00000.parquet", "train/p1/part-00012.arrow"]);
        let e = OutputDir::prepare(tmp.path(), Existing::Refuse).unwrap_err();
        assert!(e.what().contains("unfinished"), "{e}");
        let dir = OutputDir::prepare(tmp.path(), Existing::Replace).unwrap();
        assert_eq!(tree(tmp.path()), [UNFINISHED]);
        drop(dir); // a run that fails
        assert!(tree(tmp.path()).is_empty());
    }

    #[test]
    fn nothing_of_gristmills_means_nothing_is_removed() {
        for files in [&["part-00000.parquet"][..], &["data/part-00000.parquet"], &[MANIFEST], &[RUN]] {
            let tmp = tempfile::tempdir().unwrap();
            write(tmp.path(), files);
            let before = tree(tmp.path());
            let e = OutputDir::prepare(tmp.path(), Existing::Replace).unwrap_err();
            assert_eq!(e.kind(), Kind::Usage);
            assert!(e.what().contains(files[0]), "{e}");
            assert_eq!(tree(tmp.path()), before);
        }
    }

    #[test]
    #[cfg(unix)]
    fn links_are_foreign() {
        let tmp = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        write(elsewhere.path(), &["part-00000.parquet"]);
        write(tmp.path(), &[UNFINISHED]);
        std::os::unix::fs::symlink(elsewhere.path(), tmp.path().join("p0")).unwrap();
        OutputDir::prepare(tmp.path(), Existing::Replace).unwrap_err();
        assert!(elsewhere.path().join("part-00000.parquet").exists());
    }
}
