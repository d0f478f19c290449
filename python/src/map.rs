//! Files mapped into memory. The only `unsafe` of gristmill.

use std::fs::File;
use std::path::Path;

use arrow::buffer::Buffer;
use bytes::Bytes;
use gristmill::error::{Error, Result};
use memmap2::Mmap;

/// A file as memory that is read when it is looked at, and shared between processes.
///
/// # Errors
/// If the file cannot be opened or mapped.
#[expect(unsafe_code, reason = "a mapped file is memory that others can change: see the comment")]
pub fn map(path: &Path) -> Result<Buffer> {
    let file = File::open(path).map_err(|e| Error::io("open the file", path, &e))?;
    // SAFETY: the map is read only, and gristmill never changes a shard once its manifest is there: `--overwrite`
    // removes the files and writes new ones, which leaves the memory of the old ones as it is. A program that cuts or
    // rewrites a shard in place while it is open breaks this promise; the documentation of `gristmill.open` says so.
    let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io("map the file into memory", path, &e))?;
    Ok(Bytes::from_owner(map).into())
}
