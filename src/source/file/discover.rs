//! From what the user wrote to the list of files.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, closest};

/// What a data file's name ends in, when a folder is searched.
const EXTENSIONS: [&str; 7] = ["parquet", "pq", "parq", "arrow", "arrows", "feather", "ipc"];

/// The files meant by `paths`: files, globs and directories, relative to `base`.
///
/// Directories are searched recursively for files with a data file's extension; names that start with `.` or `_` are
/// bookkeeping (`_SUCCESS`, `_metadata`) and skipped. The result is absolute, sorted by its bytes, and names no file twice.
///
/// # Errors
/// If a file is missing, or a directory or glob yields none, or a path is a URL.
pub fn discover(paths: &[String], base: &Path) -> Result<Vec<PathBuf>> {
    if paths.is_empty() {
        return Err(Error::usage("no input: expected at least one file, glob or directory")
            .hint("set `[input] paths = [\"logs/*.parquet\"]` or give `--input`"));
    }
    let base = absolute(base)?;
    let mut found = Vec::new();
    for path in paths {
        let before = found.len();
        one(path, &base, &mut found)?;
        debug_assert!(found.len() > before, "each path yields files or an error");
    }
    found.sort_by(|a, b| a.as_os_str().as_encoded_bytes().cmp(b.as_os_str().as_encoded_bytes()));
    let mut seen = HashSet::new();
    // The same file may be named by two patterns, or through a link. Its first name stays.
    found.retain(|path| seen.insert(fs::canonicalize(path).unwrap_or_else(|_| path.clone())));
    Ok(found)
}

/// The path from the root, without looking at the disk.
pub(super) fn absolute(path: &Path) -> Result<PathBuf> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    std::path::absolute(path).map_err(|e| Error::io("resolve the path", path, &e))
}

fn one(written: &str, base: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let local = written.strip_prefix("file://").unwrap_or(written);
    if let Some((scheme, _)) = local.split_once("://") {
        return Err(Error::usage(format!("reading from `{scheme}://` is not built yet: {written}"))
            .hint("copy the files to this machine and give their path"));
    }
    let path = absolute(&base.join(local))?;
    match fs::metadata(&path) {
        Ok(meta) if meta.is_dir() => {
            let before = found.len();
            walk(&path, &mut HashSet::new(), found)?;
            if found.len() == before {
                return Err(Error::usage(format!(
                    "found no data files in the directory {written}: looked for *.{}; {}",
                    EXTENSIONS.join(", *."),
                    what_is_there(&path)
                )));
            }
            Ok(())
        }
        Ok(_) => {
            found.push(path);
            Ok(())
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound || e.kind() == std::io::ErrorKind::NotADirectory => {
            if local.contains(['*', '?', '[']) {
                glob(written, local, base, found)
            } else {
                Err(missing(written, &path))
            }
        }
        Err(e) => Err(Error::io("look at the path", Path::new(written), &e)),
    }
}

fn glob(written: &str, local: &str, base: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let base_text = base.to_str().ok_or_else(|| {
        Error::usage(format!("globs need a working directory whose name is UTF-8, found {}", base.display()))
    })?;
    let escaped = PathBuf::from(glob::Pattern::escape(base_text));
    let pattern = absolute(&escaped.join(local))?;
    let options =
        glob::MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };
    let matches = glob::glob_with(&pattern.to_string_lossy(), options)
        .map_err(|e| Error::usage(format!("`{written}` is no glob: {} at its character {}", e.msg, e.pos)))?;
    // A pattern that spells out an extension means it, whatever it is.
    let any_extension = Path::new(local).extension().is_some_and(|e| !e.to_string_lossy().contains(['*', '?', '[']));
    let underscore = Path::new(local).file_name().is_some_and(|n| n.to_string_lossy().starts_with('_'));
    let before = found.len();
    let mut passed_over = Vec::new();
    for path in matches {
        let path = path.map_err(|e| Error::io("search the directory", e.path(), e.error()))?;
        if path.is_dir() {
            walk(&path, &mut HashSet::new(), found)?;
        } else if (underscore || !is_hidden(&path)) && (any_extension || has_data_extension(&path)) {
            found.push(path);
        } else {
            passed_over.push(path);
        }
    }
    if found.len() > before {
        return Ok(());
    }
    // The deepest directory of the pattern that exists tells most.
    let literal = base.join(local);
    let there = literal.ancestors().skip(1).find(|p| p.is_dir()).unwrap_or(base);
    let passed = if passed_over.is_empty() { "" } else { " but files that are no data files" };
    Err(Error::usage(format!("the glob `{written}` matches nothing{passed}; {}", what_is_there(there))))
}

/// All data files below a directory. `seen` guards against links that lead in circles.
fn walk(dir: &Path, seen: &mut HashSet<PathBuf>, found: &mut Vec<PathBuf>) -> Result<()> {
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
        if path.is_dir() {
            walk(&path, seen, found)?;
        } else if has_data_extension(&path) {
            found.push(path);
        }
    }
    Ok(())
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_none_or(|n| n.to_string_lossy().starts_with(['.', '_']))
}

fn has_data_extension(path: &Path) -> bool {
    path.extension().and_then(OsStr::to_str).is_some_and(|e| EXTENSIONS.iter().any(|x| e.eq_ignore_ascii_case(x)))
}

fn missing(written: &str, path: &Path) -> Error {
    let parent = path.ancestors().skip(1).find(|p| p.is_dir());
    let gone = std::io::ErrorKind::NotFound;
    let what = format!("there is no file or directory {written}");
    let Some(parent) = parent else { return Error::usage(what).io_kind_of(gone) };
    let e = Error::usage(format!("{what}; {}", what_is_there(parent))).io_kind_of(gone);
    let names = names(parent);
    let wanted = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    match closest(&wanted, names.iter().map(String::as_str)) {
        Some(near) if path.parent() == Some(parent) => e.hint(format!("did you mean {near:?}?")),
        _ => e.hint("relative paths start at the job file's folder (at the working directory for `--input`)"),
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
