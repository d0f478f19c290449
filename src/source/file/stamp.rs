//! What tells that a file is not what it was.

use std::fs::Metadata;
use std::time::SystemTime;

use crate::error::{Error, Result};

/// Size, time of the last change, and identity of a file when it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) bytes: u64,
    modified: Option<SystemTime>,
    /// Device and number of the file, where the system has them: another file under the old name has others.
    identity: Option<(u64, u64)>,
}

impl Stamp {
    pub(super) fn of(meta: &Metadata) -> Self {
        Self { bytes: meta.len(), modified: meta.modified().ok(), identity: identity(meta) }
    }

    /// Refuses a file that changed since.
    pub(super) fn check(&self, now: &Metadata) -> Result<()> {
        let now = Self::of(now);
        if now == *self {
            return Ok(());
        }
        let what = if now.bytes != self.bytes {
            format!("the file changed while it was being read: found {} bytes, expected {}", now.bytes, self.bytes)
        } else if now.identity != self.identity {
            "the file changed while it was being read: another one has its name now".to_owned()
        } else {
            "the file changed while it was being read: it was written to".to_owned()
        };
        Err(Error::environment(what).hint(LEFT_ALONE))
    }
}

const LEFT_ALONE: &str = "convert recordings that nobody writes to any more; run it again";

/// The error for a file that was there and is gone.
pub(super) fn removed(found: &std::io::Error) -> Error {
    let what = format!("the file was removed or renamed while it was being read: {found}");
    Error::environment(what).hint(LEFT_ALONE).io_kind_of(found.kind())
}

#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "other systems have none")]
fn identity(meta: &Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    Some((meta.dev(), meta.ino()))
}

#[cfg(not(unix))]
fn identity(_: &Metadata) -> Option<(u64, u64)> {
    None
}
