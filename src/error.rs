//! What can go wrong, and how it is told.
//!
//! An [`Error`] states *what was found* and *what was expected*. Code that knows *where* adds it on the way up
//! ([`Error::file`], [`Error::episode`], ...), so a decoder need not know which file it decodes. A remedy stands
//! apart as a hint. The [`Kind`] decides the exit code of the command line.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use indexmap::IndexSet;
use serde_json::{Value, json};

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Who has to act on an error. Decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The data failed a check that the job asked for, or a malformed episode was found (exit code 1).
    Data,
    /// The command, the job or the input as a whole is wrong (exit code 2).
    Usage,
    /// The surroundings failed: disk full, permission, vanished directory (exit code 3).
    Environment,
    /// A promise of this crate was broken. Never the user's fault (exit code 3).
    Internal,
    /// The caller asked the run to stop (exit code 3).
    Interrupted,
}

impl Kind {
    /// The process exit code for an error of this kind.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Data => 1,
            Self::Usage => 2,
            Self::Environment | Self::Internal | Self::Interrupted => 3,
        }
    }
}

/// Where something went wrong. Every field is optional; whoever knows one fills it in.
///
/// The innermost knowledge wins: a field that is already set is not overwritten by callers further out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// Input or output file.
    pub file: Option<String>,
    /// Row group (Parquet) or record batch (Arrow IPC) inside the file, from 0.
    pub row_group: Option<usize>,
    /// Row inside the file, from 0.
    pub row: Option<u64>,
    /// Episode id as recorded.
    pub episode: Option<String>,
    /// Time step inside the episode.
    pub t: Option<i64>,
    /// Column, in gristmill's naming (`obs/pos`).
    pub column: Option<String>,
    /// The column's name in the input files, where it is known to be another (`observation/pos`), or is all that is known.
    pub file_column: Option<String>,
    /// Index and name of the connector piece.
    pub connector: Option<(usize, String)>,
    /// Key path inside the job (`learner.connectors[1].num_frames`).
    pub job_key: Option<String>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = Vec::new();
        if let Some(key) = &self.job_key {
            parts.push(format!("job key `{key}`"));
        }
        if let Some((i, name)) = &self.connector {
            parts.push(format!("connector {i} ({name})"));
        }
        if let Some(file) = &self.file {
            parts.push(format!("file {}", visible(file)));
        }
        if let Some(n) = self.row_group {
            parts.push(format!("row group {n}"));
        }
        if let Some(n) = self.row {
            parts.push(format!("row {n}"));
        }
        if let Some(id) = &self.episode {
            parts.push(format!("episode {}", quoted(id)));
        }
        if let Some(t) = self.t {
            parts.push(format!("t {t}"));
        }
        parts.extend(self.columns());
        f.write_str(&parts.join(", "))
    }
}

/// An id in quotes. Some are whole documents: their start tells them apart well enough.
fn quoted(id: &str) -> String {
    const SHOWN: usize = 100;
    match id.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}... ({} bytes)", &id[..end], id.len()),
        None => format!("{id:?}"),
    }
}

/// A name out of a file, without the characters that would steer the terminal.
#[must_use]
pub fn visible(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// The first of some names, for a message.
#[must_use]
pub fn listed(names: &IndexSet<&str>) -> String {
    const MOST: usize = 20;
    let shown: Vec<String> = names.iter().take(MOST).map(|name| visible(name)).collect();
    let more = names.len().saturating_sub(MOST);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

#[derive(Debug, Clone)]
struct Inner {
    kind: Kind,
    what: String,
    place: Place,
    hint: Option<String>,
    io_kind: Option<io::ErrorKind>,
}

/// An error: what was found and expected, where, and what to do about it.
///
/// A clone shares it, so that each of many rows can have the error of what broke them all.
#[derive(Debug, Clone)]
pub struct Error(Arc<Inner>);

impl Error {
    fn inner(&mut self) -> &mut Inner {
        Arc::make_mut(&mut self.0)
    }

    /// An error of the given kind. `what` is a sentence without a final stop: what was found, what was expected.
    #[must_use]
    pub fn new(kind: Kind, what: impl Into<String>) -> Self {
        Self(Arc::new(Inner { kind, what: what.into(), place: Place::default(), hint: None, io_kind: None }))
    }

    /// The data failed a check.
    #[must_use]
    pub fn data(what: impl Into<String>) -> Self {
        Self::new(Kind::Data, what)
    }

    /// The command, job or input is wrong.
    #[must_use]
    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(Kind::Usage, what)
    }

    /// The surroundings failed.
    #[must_use]
    pub fn environment(what: impl Into<String>) -> Self {
        Self::new(Kind::Environment, what)
    }

    /// A broken promise of this crate.
    #[must_use]
    pub fn internal(what: impl Into<String>) -> Self {
        Self::new(Kind::Internal, what)
    }

    /// An I/O error met while doing `doing` to `path`. "Not found" is the user's, the rest the machine's.
    #[must_use]
    pub fn io(doing: &str, path: &Path, source: &io::Error) -> Self {
        use io::ErrorKind as K;
        let kind = match source.kind() {
            K::NotFound | K::IsADirectory | K::NotADirectory | K::InvalidInput | K::InvalidFilename => Kind::Usage,
            _ => Kind::Environment,
        };
        Self::new(kind, format!("cannot {doing}: {source}")).file(path.display().to_string()).io_kind_of(source.kind())
    }

    /// The caller asked the run to stop.
    #[must_use]
    pub fn interrupted() -> Self {
        Self::new(Kind::Interrupted, "the run was interrupted")
    }

    /// Adds what the operating system said, for callers that have errors of such kinds themselves.
    #[must_use]
    pub fn io_kind_of(mut self, kind: io::ErrorKind) -> Self {
        self.inner().io_kind.get_or_insert(kind);
        self
    }

    /// Adds the remedy.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.inner().hint.get_or_insert_with(|| hint.into());
        self
    }

    /// Puts a remedy in the place of the one that there is: one that looks at the case.
    #[must_use]
    pub fn hint_instead(mut self, hint: impl Into<String>) -> Self {
        self.inner().hint = Some(hint.into());
        self
    }

    /// Adds a whole place; what is known already stays.
    #[must_use]
    pub fn at(mut self, place: Place) -> Self {
        let own = &mut self.inner().place;
        own.file = own.file.take().or(place.file);
        own.row_group = own.row_group.or(place.row_group);
        own.row = own.row.or(place.row);
        own.episode = own.episode.take().or(place.episode);
        own.t = own.t.or(place.t);
        if own.column.is_none() {
            (own.column, own.file_column) = (place.column, place.file_column);
        }
        own.connector = own.connector.take().or(place.connector);
        own.job_key = own.job_key.take().or(place.job_key);
        self
    }

    /// Adds the file.
    #[must_use]
    pub fn file(mut self, file: impl Into<String>) -> Self {
        self.inner().place.file.get_or_insert_with(|| file.into());
        self
    }

    /// Adds the row group.
    #[must_use]
    pub fn row_group(mut self, n: usize) -> Self {
        self.inner().place.row_group.get_or_insert(n);
        self
    }

    /// Adds the row inside the file.
    #[must_use]
    pub fn row(mut self, n: u64) -> Self {
        self.inner().place.row.get_or_insert(n);
        self
    }

    /// Adds the episode id.
    #[must_use]
    pub fn episode(mut self, id: impl Into<String>) -> Self {
        self.inner().place.episode.get_or_insert_with(|| id.into());
        self
    }

    /// Adds the time step.
    #[must_use]
    pub fn t(mut self, t: i64) -> Self {
        self.inner().place.t.get_or_insert(t);
        self
    }

    /// Adds the column.
    #[must_use]
    pub fn column(mut self, name: impl Into<String>) -> Self {
        self.inner().place.column.get_or_insert_with(|| name.into());
        self
    }

    /// Adds what the input files call the column.
    #[must_use]
    pub fn file_column(mut self, name: impl Into<String>) -> Self {
        self.inner().place.file_column.get_or_insert_with(|| name.into());
        self
    }

    /// Adds a column under the input file's name for it, of which whoever maps columns makes gristmill's
    /// ([`Self::renamed_column`]).
    #[must_use]
    pub fn own_column(self, name: impl Into<String>) -> Self {
        if self.place().column.is_some() {
            return self;
        }
        let name = name.into();
        self.column(name.clone()).file_column(name)
    }

    /// Gives the column another name in gristmill's naming; the file's stays.
    #[must_use]
    pub fn renamed_column(mut self, name: impl Into<String>) -> Self {
        self.inner().place.column = Some(name.into());
        self
    }

    /// Adds the connector's index in the pipeline and its name.
    #[must_use]
    pub fn connector(mut self, index: usize, name: impl Into<String>) -> Self {
        self.inner().place.connector.get_or_insert_with(|| (index, name.into()));
        self
    }

    /// Adds the key path inside the job.
    #[must_use]
    pub fn job_key(mut self, key: impl Into<String>) -> Self {
        self.inner().place.job_key.get_or_insert_with(|| key.into());
        self
    }

    /// Puts the key path that there is under `key`, if it does not start at the job's root.
    #[must_use]
    pub fn under_job_key(mut self, key: &str) -> Self {
        const ROOTS: [&str; 6] = ["version", "input", "rl_module", "multi_agent", "learner", "output"];
        if let Some(own) = &mut self.inner().place.job_key
            && !ROOTS.contains(&own.split(['.', '[']).next().unwrap_or_default())
        {
            *own = format!("{key}.{own}");
        }
        self
    }

    /// Who has to act.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// What the operating system said, if it was asked.
    #[must_use]
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        self.0.io_kind
    }

    /// What was found and expected, without place and hint.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// Where it happened.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.0.place
    }

    /// The remedy, if there is one.
    #[must_use]
    pub fn hint_text(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl Place {
    /// The column under both of its names, in words: "column `obs` (`observation` in the file)".
    #[must_use]
    pub fn columns(&self) -> Option<String> {
        let ours = self.column.as_deref().map(visible)?;
        Some(match self.file_column.as_deref().map(visible) {
            Some(theirs) if theirs != ours => format!("column `{ours}` (`{theirs}` in the file)"),
            _ => format!("column `{ours}`"),
        })
    }

    /// The fields that are known, as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let connector = self.connector.as_ref().map(|(index, name)| json!({ "index": index, "name": name }));
        let all = [
            ("job_key", json!(self.job_key)),
            ("connector", json!(connector)),
            ("file", json!(self.file)),
            ("row_group", json!(self.row_group)),
            ("row", json!(self.row)),
            ("episode", json!(self.episode)),
            ("t", json!(self.t)),
            ("column", json!(self.column)),
            ("file_column", json!(self.file_column)),
        ];
        let known = all.into_iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.to_owned(), value));
        Value::Object(known.collect())
    }
}

impl Error {
    /// Itself as JSON: `kind`, `what`, `place`, `hint`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let kind = match self.kind() {
            Kind::Data => "data",
            Kind::Usage => "usage",
            Kind::Environment => "environment",
            Kind::Internal => "internal",
            Kind::Interrupted => "interrupted",
        };
        json!({ "kind": kind, "what": self.what(), "place": self.place().to_json(), "hint": self.hint_text() })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.what)?;
        let place = self.0.place.to_string();
        if !place.is_empty() {
            write!(f, "\n  at: {place}")?;
        }
        if let Some(hint) = &self.0.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// The closest of `candidates` to a mistyped `word`, for "did you mean" hints: one that takes few changes, or else the only
/// one that goes on after the word (`clip_by_value` for `clip_by`).
#[must_use]
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let candidates: Vec<&str> = candidates.into_iter().collect();
    let near = candidates
        .iter()
        .map(|c| (strsim::normalized_damerau_levenshtein(&word, &c.to_lowercase()), *c))
        .filter(|(score, _)| *score >= 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, c)| c);
    near.or_else(|| {
        let mut longer = candidates.into_iter().filter(|c| word.len() >= 3 && c.to_lowercase().starts_with(&word));
        longer.next().filter(|_| longer.next().is_none())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_closest() {
        let names = ["rewards", "obs", "clip_by_value", "rllib-2.60"];
        let near = |word| closest(word, names);
        assert_eq!(
            (near("reward"), near("OBS"), near("clip_by")),
            (Some("rewards"), Some("obs"), Some("clip_by_value"))
        );
        assert_eq!((near("rllib"), near("cl"), near("xyz")), (Some("rllib-2.60"), None, None));
        assert_eq!((closest("add", ["add_rewards", "add_observations"]), closest("x", [])), (None, None));
    }
}
