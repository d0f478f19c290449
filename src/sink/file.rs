//! Files on the way to the disk: hashed as they are written, synced at the end, errors with a name.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A file whose digest is taken of the bytes that go by.
///
/// Writing and hashing the same memory once is cheaper than reading back, and says what we meant to write, not what a
/// broken disk made of it.
#[derive(Debug)]
pub(super) struct HashingFile {
    file: File,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl HashingFile {
    /// Creates `path`, which must not exist, behind a buffer.
    pub(super) fn create(path: &Path) -> Result<BufWriter<Self>> {
        let file = File::options().write(true).create_new(true).open(path).map_err(|e| failed("create", path, &e))?;
        Ok(Self::over(file))
    }

    /// Hashes what is written to an open file.
    pub(super) fn over(file: File) -> BufWriter<Self> {
        BufWriter::with_capacity(1 << 20, Self { file, hasher: blake3::Hasher::new(), bytes: 0 })
    }

    /// Ends a buffered file: its length and digest, and what is left to do.
    pub(super) fn finish(buffered: BufWriter<Self>, path: &Path) -> Result<(u64, String, Unsynced)> {
        let this = buffered.into_inner().map_err(|e| failed("write", path, e.error()))?;
        let digest = format!("blake3:{}", this.hasher.finalize());
        Ok((this.bytes, digest, Unsynced::of(this.file, path)))
    }
}

/// A file that is written as a whole, and may not be on the disk yet.
#[must_use = "a file is not on the disk before it is synced"]
#[derive(Debug)]
pub struct Unsynced {
    file: File,
    path: PathBuf,
}

impl Unsynced {
    pub(super) fn of(file: File, path: &Path) -> Self {
        Self { file, path: path.to_owned() }
    }

    /// Waits until it is on the disk.
    ///
    /// # Errors
    /// If the disk refuses, which some do no earlier than now.
    pub fn sync(self) -> Result<()> {
        self.file.sync_all().map_err(|e| failed("write", &self.path, &e))
    }
}

impl Write for HashingFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.file.write(buf)?;
        self.hasher.update(&buf[..n]);
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The error of a failed write. Whatever the reason, it is the surroundings': the user's part was checked before.
pub(super) fn failed(doing: &str, path: &Path, source: &io::Error) -> Error {
    let e = Error::environment(format!("cannot {doing}: {source}")).file(path.display().to_string());
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            e.hint("free some space on that disk, or choose another --output")
        }
        ErrorKind::FileTooLarge => e.hint(
            "the file system, or a limit on file sizes (ulimit -f), allows no larger file: raise it, or set a smaller \
                    output.rows_per_shard",
        ),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            e.hint("choose an --output directory that you may write to")
        }
        ErrorKind::NotFound => e.hint("the directory was removed while it was being written"),
        _ => e,
    }
}

/// Makes renames and new files in `directory` durable.
pub(super) fn sync_directory(directory: &Path) -> Result<()> {
    // Only Unix can open a directory to sync it; elsewhere the file system sees to it.
    if cfg!(unix) {
        File::open(directory).and_then(|d| d.sync_all()).map_err(|e| failed("sync", directory, &e))?;
    }
    Ok(())
}
