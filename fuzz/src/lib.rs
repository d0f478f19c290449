//! What the fuzz targets share.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Lets panics pass that gristmill catches: decoders of the parquet and arrow crates may panic on damaged bytes, and the
/// reader makes an error of it. Any other panic ends the process, as libFuzzer wants it.
pub fn install_panic_hook() {
    let abort = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !gristmill::source::file::in_guard() {
            abort(info);
        }
    }));
}

/// A directory in memory where there is one: a disk would be the slowest part of a run.
#[must_use]
pub fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    made.expect("a temporary directory")
}

/// The file `name` in `directory`, with these bytes.
#[must_use]
pub fn written(directory: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, bytes).expect("the file is written");
    path
}

/// The folder of a recording that comes with the repository.
#[must_use]
pub fn dataset(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../datasets").join(name)
}

/// Files that a target must not touch, whatever it is told to read: `secret` beside `out`, and its contents.
pub const SECRET: &[u8] = b"not gristmill's";

/// Puts the secret there.
pub fn hide(directory: &Path) {
    let _ = written(directory, "secret", SECRET);
}

/// Whether it is still there.
#[must_use]
pub fn is_safe(directory: &Path) -> bool {
    fs::read(directory.join("secret")).is_ok_and(|found| found == SECRET)
}
