//! What files and folders of a data set are called.

use std::path::PathBuf;

use crate::job::Format;
pub use crate::source::file::{MANIFEST, QUARANTINE, UNFINISHED};

/// Time and speed of the run that wrote the data set.
pub const RUN: &str = "run.json";
/// The folder of steps that stand once; see `output.windows`. Beside the modules and not inside of them, because readers of
/// a folder of Parquet files look into folders inside of it, too.
pub const TABLES: &str = "tables";
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

/// Whether `name` is one that [`shard_name`] gives.
pub(super) fn is_shard_name(name: &str) -> bool {
    name.strip_prefix("part-").and_then(|rest| rest.split_once('.')).is_some_and(|(digits, extension)| {
        digits.len() >= 5
            && digits.bytes().all(|b| b.is_ascii_digit())
            && [Format::Parquet, Format::Arrow].iter().any(|f| f.name() == extension)
    })
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
}
