//! From what the user wrote to the list of files.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::written::{Instead, Known, MANIFEST, QUARANTINE, is_shard_name, no_manifest};
use crate::error::{Error, Result, closest};
use crate::regular;

/// What a data file's name ends in, when a folder is searched.
const EXTENSIONS: [&str; 7] = ["parquet", "pq", "parq", "arrow", "arrows", "feather", "ipc"];

/// What paths lead to.
#[derive(Debug, Default)]
pub struct Discovered {
    /// The files: absolute, sorted by their bytes, none twice.
    pub files: Vec<PathBuf>,
    /// Data sets of gristmill's that the paths name themselves. Their shards are among the files.
    pub named: Vec<PathBuf>,
    /// Data sets that lie deeper, below a directory or in the reach of a glob. None of their files is among the files.
    pub passed_over: Vec<PathBuf>,
    /// Data sets whose shards the paths spell out, folder or file.
    pub spelled_out: Vec<PathBuf>,
    /// The first file that looks like a shard of a data set without its manifest, and how many do.
    pub without_manifest: Option<(PathBuf, Instead, usize)>,
}

/// The files meant by `paths`: files, globs and directories, relative to `base`.
///
/// Directories are searched recursively for files with a data file's extension; names that start with `.` or `_` are
/// bookkeeping (`_SUCCESS`, `_metadata`) and skipped, and so are data sets of gristmill's.
///
/// # Errors
/// If a file is missing, or a directory or glob yields none, or a path is a URL.
pub fn discover(paths: &[String], base: &Path) -> Result<Discovered> {
    if paths.is_empty() {
        return Err(Error::usage("no input: expected at least one file, glob or directory")
            .hint("set `[input] paths = [\"logs/*.parquet\"]` or give `--input`"));
    }
    let base = absolute(base)?;
    let mut search = Search::default();
    for path in paths {
        let before = search.found.files.len();
        search.one(path, &base)?;
        debug_assert!(search.found.files.len() > before, "each path yields files or an error");
    }
    let Search { mut found, mut known, roots } = search;
    found.files.sort_by(|a, b| a.as_os_str().as_encoded_bytes().cmp(b.as_os_str().as_encoded_bytes()));
    for path in &found.files {
        match known.around(path, Path::new("")).map(Path::to_owned) {
            // What was left out of a data set is a recording once it is repaired.
            Some(set) if path.starts_with(set.join(QUARANTINE)) => {}
            Some(set) if found.named.contains(&set) => {}
            Some(set) => found.spelled_out.push(set),
            None => match known.linked(path) {
                Some(set) => found.spelled_out.push(set),
                None if looks_like_a_shard(path, &roots) => {
                    let Some(instead) = no_manifest(path) else { continue };
                    found.without_manifest.get_or_insert_with(|| (path.clone(), instead, 0)).2 += 1;
                }
                None => {}
            },
        }
    }
    let mut seen = HashSet::new();
    // The same file may be named by two patterns, or through a link. Its first name stays.
    found.files.retain(|path| seen.insert(fs::canonicalize(path).unwrap_or_else(|_| path.clone())));
    for directories in [&mut found.named, &mut found.passed_over, &mut found.spelled_out] {
        directories.sort();
        directories.dedup();
    }
    Ok(found)
}

/// Calls a path by its place below `base`, where it lies there.
pub(crate) fn name_in(path: &Path, base: &Path) -> Result<String> {
    let (base, full) = (absolute(base)?, absolute(path)?);
    let Ok(name) = full.strip_prefix(&base) else { return Ok(full.display().to_string()) };
    Ok(name.components().map(|c| c.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/"))
}

/// The path from the root, without looking at the disk.
pub(super) fn absolute(path: &Path) -> Result<PathBuf> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    std::path::absolute(path).map_err(|e| Error::io("resolve the path", path, &e))
}

/// Files as they are found.
#[derive(Debug, Default)]
struct Search {
    found: Discovered,
    known: Known,
    /// Directories that were searched, as they were named.
    roots: Vec<PathBuf>,
}

impl Search {
    fn one(&mut self, written: &str, base: &Path) -> Result<()> {
        let local = written.strip_prefix("file://").unwrap_or(written);
        if let Some((scheme, _)) = local.split_once("://") {
            return Err(Error::usage(format!("reading from `{scheme}://` is not built yet: {written}"))
                .hint("copy the files to this machine and give their path"));
        }
        let path = absolute(&base.join(local))?;
        match fs::metadata(&path) {
            Ok(meta) if meta.is_dir() => {
                if self.known.is_data_set(&path) {
                    self.found.named.push(path.clone());
                }
                let (before, sets) = (self.found.files.len(), self.found.passed_over.len());
                self.roots.push(path.clone());
                self.walk(&path, &mut HashSet::new())?;
                if self.found.files.len() > before {
                    return Ok(());
                }
                if let Some(set) = self.found.passed_over.get(sets) {
                    return Err(nothing_else(written, set));
                }
                Err(Error::usage(format!(
                    "found no data files in the directory {written}: looked for *.{}; {}",
                    EXTENSIONS.join(", *."),
                    what_is_there(&path)
                )))
            }
            Ok(_) => {
                self.found.files.push(path);
                Ok(())
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound || e.kind() == std::io::ErrorKind::NotADirectory => {
                if local.contains(['*', '?', '[']) {
                    self.glob(written, local, base)
                } else {
                    Err(missing(written, &path))
                }
            }
            Err(e) => Err(Error::io("look at the path", Path::new(written), &e)),
        }
    }

    fn glob(&mut self, written: &str, local: &str, base: &Path) -> Result<()> {
        let base_text = base.to_str().ok_or_else(|| {
            Error::usage(format!("globs need a working directory whose name is UTF-8, found {}", base.display()))
        })?;
        let escaped = PathBuf::from(glob::Pattern::escape(base_text));
        let pattern = absolute(&escaped.join(local))?;
        let options = glob::MatchOptions {
            case_sensitive: true,
            require_literal_separator: true,
            require_literal_leading_dot: true,
        };
        let matches = glob::glob_with(&pattern.to_string_lossy(), options)
            .map_err(|e| Error::usage(format!("`{written}` is no glob: {} at its character {}", e.msg, e.pos)))?;
        // A pattern that spells out an extension means it, whatever it is.
        let any_extension =
            Path::new(local).extension().is_some_and(|e| !e.to_string_lossy().contains(['*', '?', '[']));
        let underscore = Path::new(local).file_name().is_some_and(|n| n.to_string_lossy().starts_with('_'));
        // The directory that the pattern spells out.
        let spelled_out: PathBuf = Path::new(local)
            .components()
            .take_while(|c| !c.as_os_str().to_string_lossy().contains(['*', '?', '[']))
            .collect();
        let root = absolute(&base.join(spelled_out))?;
        if self.known.is_data_set(&root) {
            self.found.named.push(root.clone());
        }
        let (before, sets) = (self.found.files.len(), self.found.passed_over.len());
        let mut passed_over = Vec::new();
        for path in matches {
            let path = path.map_err(|e| Error::io("search the directory", e.path(), e.error()))?;
            if path.is_dir() && self.known.is_data_set(&path) {
                self.found.passed_over.push(path);
            } else if let Some(set) = self.known.around(&path, &root) {
                self.found.passed_over.push(set.to_owned());
            } else if let Some(set) = self.led_into(&path, &root) {
                self.found.passed_over.push(set);
            } else if path.is_dir() {
                self.walk(&path, &mut HashSet::new())?;
            } else if (underscore || !is_hidden(&path)) && (any_extension || has_data_extension(&path)) {
                self.found.files.push(path);
            } else {
                passed_over.push(path);
            }
        }
        if self.found.files.len() > before {
            return Ok(());
        }
        if let Some(set) = self.found.passed_over.get(sets) {
            return Err(nothing_else(written, set));
        }
        // The deepest directory of the pattern that exists tells most.
        let literal = base.join(local);
        let there = literal.ancestors().skip(1).find(|p| p.is_dir()).unwrap_or(base);
        let passed = if passed_over.is_empty() { "" } else { " but files that are no data files" };
        Err(Error::usage(format!("the glob `{written}` matches nothing{passed}; {}", what_is_there(there))))
    }

    /// The data set that a link below `root` leads into, on the way to a path.
    fn led_into(&mut self, path: &Path, root: &Path) -> Option<PathBuf> {
        let below = path.ancestors().take_while(|p| *p != root && p.starts_with(root));
        let link = below.filter(|p| p.is_symlink()).last()?;
        self.known.linked(link).or_else(|| self.known.linked(path))
    }

    /// All data files below a directory. `seen` guards against links that lead in circles.
    fn walk(&mut self, dir: &Path, seen: &mut HashSet<PathBuf>) -> Result<()> {
        let io = |e: std::io::Error| Error::io("list the directory", dir, &e);
        if !seen.insert(fs::canonicalize(dir).map_err(io)?) {
            return Ok(());
        }
        let mut entries: Vec<PathBuf> =
            fs::read_dir(dir).map_err(io)?.map(|e| e.map(|e| e.path())).collect::<std::io::Result<_>>().map_err(io)?;
        entries.sort();
        for path in entries {
            if is_hidden(&path) {
                continue;
            }
            let is_dir = path.is_dir();
            if !is_dir && !has_data_extension(&path) {
                continue;
            }
            let set = if path.is_symlink() { self.known.linked(&path) } else { None };
            if is_dir && self.known.is_data_set(&path) {
                self.found.passed_over.push(path);
            } else if let Some(set) = set {
                self.found.passed_over.push(set);
            } else if is_dir {
                self.walk(&path, seen)?;
            } else {
                self.found.files.push(path);
            }
        }
        Ok(())
    }
}

/// A path that leads to a data set, and to nothing else.
fn nothing_else(written: &str, set: &Path) -> Error {
    let what = format!("found no recording in {written}: its data files are those of a data set that gristmill wrote");
    Error::usage(what).file(set.display().to_string()).hint(NO_RECORDING)
}

/// What to do with a data set in place of a recording.
pub(crate) const NO_RECORDING: &str = "give the recording that it was made of; `gristmill inspect` and `verify` look at a \
    data set, and to read shards as steps all the same, name them: DIR/MODULE/*.parquet";

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_none_or(|n| n.to_string_lossy().starts_with(['.', '_']))
}

fn has_data_extension(path: &Path) -> bool {
    path.extension().and_then(OsStr::to_str).is_some_and(|e| EXTENSIONS.iter().any(|x| e.eq_ignore_ascii_case(x)))
}

/// Whether a file is called as shards are, in a folder below a directory that was searched, or where a run has left its times.
fn looks_like_a_shard(path: &Path, roots: &[PathBuf]) -> bool {
    let named = path.file_name().and_then(OsStr::to_str).is_some_and(is_shard_name);
    let deep = |root: &PathBuf| path.strip_prefix(root).is_ok_and(|inside| inside.components().count() > 1);
    let times = |dir: &Path| ["run.json", MANIFEST].iter().any(|name| dir.join(name).symlink_metadata().is_ok());
    named
        && !path.components().any(|c| c.as_os_str() == QUARANTINE)
        && (roots.iter().any(deep) || path.ancestors().skip(2).take(2).any(times))
}

fn missing(written: &str, path: &Path) -> Error {
    if let Some((link, target)) = regular::dangling(path) {
        let what = format!("there is no file or directory {written}: {}", regular::leads_nowhere(&link, &target));
        return Error::usage(what).io_kind_of(std::io::ErrorKind::NotFound);
    }
    let relative = Path::new(written).is_relative();
    let parent = path.ancestors().skip(1).find(|p| p.is_dir());
    let gone = std::io::ErrorKind::NotFound;
    let what = format!("there is no file or directory {written}");
    let Some(parent) = parent else { return Error::usage(what).io_kind_of(gone) };
    let e = Error::usage(format!("{what}; {}", what_is_there(parent))).io_kind_of(gone);
    let names = names(parent);
    let wanted = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    match closest(&wanted, names.iter().map(String::as_str)) {
        Some(near) if path.parent() == Some(parent) => e.hint(format!("did you mean {near:?}?")),
        _ if relative => {
            e.hint("relative paths start at the job file's folder (at the working directory for `--input`)")
        }
        _ => e,
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .map(|entries| entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    names.sort();
    names
}

/// "the directory X holds a, b, c and 3 more".
fn what_is_there(dir: &Path) -> String {
    let names = names(dir);
    let shown = dir.display();
    match names.len() {
        0 => format!("the directory {shown} is empty"),
        n if n <= 6 => format!("the directory {shown} holds {}", names.join(", ")),
        n => format!("the directory {shown} holds {} and {} more", names[..5].join(", "), n - 5),
    }
}
