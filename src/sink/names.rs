//! What files and folders of a data set are called.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::job::Format;
pub(super) use crate::source::file::is_shard_name;
pub use crate::source::file::{MANIFEST, QUARANTINE, UNFINISHED};

/// Time and speed of the run that wrote the data set.
pub const RUN: &str = "run.json";
/// The folder of steps that stand once; see `output.windows`. Beside the modules and not inside of them, because readers of
/// a folder of Parquet files look into folders inside of it, too.
pub const TABLES: &str = "tables";
/// Bytes of a file's or folder's name that every file system takes.
const LONGEST_NAME: usize = 255;
pub(super) const MANIFEST_DRAFT: &str = ".manifest.json.draft";

/// The folder of one module's shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleDir {
    /// Path inside the data set, with `/`, as the manifest has it.
    pub relative: String,
    /// Where it is.
    pub path: PathBuf,
}

impl ModuleDir {
    /// Path of shard `index`, and its name in the manifest.
    #[must_use]
    pub fn shard(&self, index: usize, format: Format) -> (PathBuf, String) {
        let name = shard_name(index, format);
        (self.path.join(&name), format!("{}/{name}", self.relative))
    }
}

/// File name of shard `index`: `part-00000.parquet`.
#[must_use]
pub fn shard_name(index: usize, format: Format) -> String {
    format!("part-{index:05}.{}", format.name())
}

/// The folder name of a module id: the id itself where that is a plain file name on every system, else its bytes
/// percent-encoded where they are not.
///
/// ```
/// # use gristmill::sink::folder_name;
/// assert_eq!(folder_name("default_policy"), "default_policy");
/// assert_eq!(folder_name("team/red"), "team%2Fred");
/// assert_eq!(folder_name("../etc"), "%2E.%2Fetc"); // a leading dot hides, or climbs
/// assert_eq!(folder_name("100%"), "100%25");
/// assert_eq!(folder_name(""), "%"); // no other id gives this name
/// assert_eq!(folder_name("manifest.json"), "%6Danifest.json"); // taken, as are `quarantine` and `tables`
/// ```
#[must_use]
pub fn folder_name(module_id: &str) -> String {
    use std::fmt::Write as _;
    if module_id.is_empty() {
        return "%".to_owned();
    }
    let taken = [MANIFEST, RUN, QUARANTINE, TABLES].contains(&module_id) || is_shard_name(module_id);
    let mut out = String::with_capacity(module_id.len());
    for (i, c) in module_id.char_indices() {
        if c.is_control() || "%/\\:*?\"<>|".contains(c) || (i == 0 && (c == '.' || taken)) {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                // Writing to a string cannot fail.
                let _ = write!(out, "%{byte:02X}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Refuses a module (or a part of `output.split`) that cannot have a folder: file systems take names of 255 bytes at most.
///
/// # Errors
/// Of kind `Usage`.
pub fn check_folder(part: Option<&str>, module_id: &str) -> Result<()> {
    let parts = part.map(|part| ("part", part, "name it shorter in `output.split`"));
    let module = ("module", module_id, "give its agents one with a shorter name: `[multi_agent] agent_to_module`");
    for (what, id, hint) in parts.into_iter().chain([module]) {
        let bytes = folder_name(id).len();
        if bytes > LONGEST_NAME {
            let start: String = id.chars().take(40).collect();
            let told = format!(
                "the {what} {start:?}.. needs a folder whose name has {bytes} bytes, expected at most {LONGEST_NAME}"
            );
            return Err(Error::usage(told).hint(hint));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn folder_names_are_plain_and_distinct() {
        let ids = [
            "p0",
            "",
            "%",
            "%25",
            ".",
            "..",
            "a/b",
            "a%2Fb",
            "a\\b",
            "\u{7}",
            "\u{85}",
            "manifest.json",
            "run.json",
            "quarantine",
            "é x",
        ];
        let names: BTreeSet<String> = ids.iter().map(|id| folder_name(id)).collect();
        assert_eq!(names.len(), ids.len());
        for name in names {
            assert!(!name.starts_with('.') && !name.contains('/') && !name.chars().any(char::is_control), "{name:?}");
        }
        assert_eq!(folder_name("é x"), "é x");
    }

    #[test]
    fn a_folder_s_name_has_255_bytes_at_most() {
        assert!(check_folder(None, &"m".repeat(255)).is_ok());
        assert!(check_folder(Some(&"p".repeat(255)), "m").is_ok());
        for (part, module, told) in [
            (None, "m".repeat(256), "the module \"mmmm"),
            // A slash takes three bytes, an accent two.
            (None, "/".repeat(86), "a folder whose name has 258 bytes"),
            (None, "é".repeat(128), "a folder whose name has 256 bytes"),
            (Some("p".repeat(256)), "m".to_owned(), "the part \"pppp"),
        ] {
            let error = check_folder(part.as_deref(), &module).unwrap_err().to_string();
            assert!(error.contains(told) && error.len() < 300, "{error}");
        }
    }
}
