//! Opening files, and nothing else that has a path. A FIFO that nobody writes to would block for ever, and a device may never
//! end.

use std::fs::{self, File, FileType, Metadata};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Opens a file, or what a link leads to.
///
/// # Errors
/// If it is missing, no regular file, or cannot be opened. `doing` is what is told then: "open the file".
pub fn open(doing: &str, path: &Path) -> Result<(File, Metadata)> {
    let io = |e: &std::io::Error| match (e.kind(), dangling(path)) {
        (ErrorKind::NotFound, Some((link, target))) => {
            let what = format!("cannot {doing}: {}", leads_nowhere(&link, &target));
            Error::usage(what).file(path.display().to_string()).io_kind_of(ErrorKind::NotFound)
        }
        _ => Error::io(doing, path, e),
    };
    let meta = fs::metadata(path).map_err(|e| io(&e))?;
    check(path, &meta)?;
    let file = File::open(path).map_err(|e| io(&e))?;
    Ok((file, meta))
}

/// Refuses what is no regular file.
fn check(path: &Path, meta: &Metadata) -> Result<()> {
    if meta.is_file() {
        return Ok(());
    }
    let what = format!("found {}, expected a file", kind(meta));
    Err(Error::usage(what).file(path.display().to_string()))
}

/// The bytes of a file that people write. Where a shell puts a command's output in the place of a file (`/dev/stdin`,
/// `/dev/fd/63`), it is a pipe.
///
/// # Errors
/// Those of [`open`]; also if there are more than `most` bytes.
pub fn read_small(doing: &str, path: &Path, most: u64) -> Result<Vec<u8>> {
    let of_shell = ["/dev/", "/proc/"].iter().any(|system| path.starts_with(system));
    let file = match fs::metadata(path) {
        Ok(meta) if of_shell && is_pipe(meta.file_type()) => {
            File::open(path).map_err(|e| Error::io(doing, path, &e))?
        }
        _ => open(doing, path)?.0,
    };
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| Error::io(doing, path, &e))?;
    if bytes.len() as u64 > most {
        let what = format!("cannot {doing}: found more than {} MiB", most >> 20);
        return Err(Error::usage(what).file(path.display().to_string()));
    }
    Ok(bytes)
}

/// The link on the way to `path` that leads to nothing, and what it says.
pub fn dangling(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let there = |p: &Path| p.symlink_metadata().ok();
    let last = path.ancestors().find_map(|p| there(p).map(|meta| (p, meta)))?;
    let target = fs::read_link(last.0).ok().filter(|_| last.1.is_symlink() && fs::metadata(last.0).is_err())?;
    Some((last.0.to_owned(), target))
}

/// What to tell of [`dangling`].
pub fn leads_nowhere(link: &Path, target: &Path) -> String {
    format!("{} is a link to {}, which is not there", link.display(), target.display())
}

/// What it is, in words.
pub fn kind(meta: &Metadata) -> &'static str {
    match meta.file_type() {
        ty if ty.is_file() => "a file",
        ty if ty.is_dir() => "a directory",
        ty if ty.is_symlink() => "a link",
        ty => special(ty),
    }
}

#[cfg(unix)]
fn special(ty: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt as _;
    match ty {
        _ if ty.is_fifo() => "a FIFO (a named pipe)",
        _ if ty.is_socket() => "a socket",
        _ if ty.is_block_device() || ty.is_char_device() => "a device",
        _ => "no regular file",
    }
}

#[cfg(not(unix))]
fn special(_: FileType) -> &'static str {
    "no regular file"
}

#[cfg(unix)]
fn is_pipe(ty: FileType) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&ty)
}

#[cfg(not(unix))]
fn is_pipe(_: FileType) -> bool {
    false
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn nothing_but_files_is_opened() {
        let dir = tempfile::TempDir::new().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "text").unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink("gone", at("dangling")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
        for path in ["file", "link"] {
            assert_eq!(open("open", &at(path)).unwrap().1.len(), 4);
            assert_eq!(read_small("open", &at(path), 4).unwrap(), b"text");
            assert!(read_small("open", &at(path), 3).unwrap_err().what().contains("more than"));
        }
        for (path, told) in [
            (at("fifo"), "found a FIFO (a named pipe), expected a file"),
            (at("socket"), "found a socket, expected a file"),
            (dir.path().to_owned(), "found a directory, expected a file"),
            (PathBuf::from("/dev/null"), "found a device, expected a file"),
            (at("dangling"), "dangling is a link to gone, which is not there"),
            (at("dangling/deeper"), "dangling is a link to gone, which is not there"),
            (at("missing"), "No such file"),
        ] {
            let error = open("open", &path).unwrap_err();
            assert!(error.what().contains(told), "{error}");
            assert_eq!(error.kind(), crate::error::Kind::Usage);
            assert!(read_small("open", &path, 9).unwrap_err().what().contains(told));
        }
    }
}
