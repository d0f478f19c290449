//! Files that differ, seen as one table.
//!
//! ```text
//! a.parquet   obs: list<double>[3]          rewards: float   agent_id: null          env_name: string
//! b.parquet   obs: fixed_size_list<float>[3]   rewards: double  agent_id: string    env_name: string
//!             ─────────────────────────────────────────────────────────────────────────────────────
//! unified     obs float64[3]                rewards float64  agent_id (ids)          (left out, and said so)
//! ```
//!
//! What loses nothing is unified: order of columns, nullability, kinds of lists, widths of numbers, columns that are
//! all null in one file. What would lose something is refused, and both files are named.

mod ignored;
mod look;
mod merge;
mod names;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields};
use indexmap::{IndexMap, IndexSet};

use self::ignored::Ignored;
use self::merge::{Merge, Rules};
use self::names::Named;
use crate::column;
use crate::error::{Error, Result, visible};
use crate::source::file::InputFile;
use crate::source::ingest::{LeafSpec, ONE_SHAPE, ONE_SHAPE_A_MODULE};
use crate::tensor::TensorType;

/// What a column is for, and so which function of [`ingest`](crate::source::ingest) reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Episode, agent and module ids: [`ids`](crate::source::ingest::ids).
    Id,
    /// Time steps: [`ints`](crate::source::ingest::ints).
    Int,
    /// Ends of episodes: [`flags`](crate::source::ingest::flags).
    Flag,
    /// Everything else: [`tensors`](crate::source::ingest::tensors).
    Tensor,
}

impl Role {
    /// The role of a canonical column.
    #[must_use]
    pub fn of(name: &str) -> Self {
        match name {
            column::EPS_ID | column::AGENT_ID | column::MODULE_ID => Self::Id,
            column::T | column::ENV_T => Self::Int,
            column::TERMINATEDS | column::TRUNCATEDS => Self::Flag,
            _ => Self::Tensor,
        }
    }
}

/// One column as all files have it.
#[derive(Debug, Clone, PartialEq)]
pub struct UnifiedColumn {
    /// Canonical name: a root (`obs`), or a leaf where the files have it as a column of its own (`obs/pos`).
    pub name: String,
    /// The user's name for it, which is its name in the files.
    pub source: String,
    /// What it is for.
    pub role: Role,
    /// Its leaves and the type that all files' values become; none unless it is a [`Role::Tensor`].
    pub leaves: Vec<(LeafSpec, TensorType)>,
    /// Names of the files that lack it, where it may be lacking: it counts as all null there.
    pub missing_in: Vec<String>,
}

/// All files as one table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Unified {
    /// The columns, in the order in which the files have them.
    pub columns: Vec<UnifiedColumn>,
    /// Columns that are there and are not read, each with the reason.
    pub left_out: Vec<(String, String)>,
    /// What was unified or left out, in words, for the report.
    pub notes: IndexSet<String>,
    /// Columns of ours that are not there, each with one that other tools call so.
    pub alike: IndexMap<&'static str, String>,
    /// Whether rows may belong to several modules, each of which has shapes and dtypes of its own.
    pub several: bool,
}

impl Unified {
    /// The column of this canonical name.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&UnifiedColumn> {
        self.columns.iter().find(|c| c.name == name)
    }

    /// The columns at and below a root: `obs`, or `obs/pos` and `obs/mode`.
    pub fn under<'a>(&'a self, root: &'a str) -> impl Iterator<Item = &'a UnifiedColumn> {
        self.columns.iter().filter(move |c| column::is_under(&c.name, root))
    }

    /// The user's names of all columns, to be read from a file that has them.
    #[must_use]
    pub fn sources(&self, file: &InputFile) -> Vec<String> {
        self.columns.iter().filter(|c| file.has(&c.source)).map(|c| c.source.clone()).collect()
    }
}

/// Columns without which there is no episode.
const NEEDED: [&str; 4] = [column::EPS_ID, column::OBS, column::ACTIONS, column::REWARDS];

/// Columns that a file may lack even if others have them.
/// (Not `t`: without it, rows of the same episode in several files could not be told from repetitions.)
const MAY_LACK: [&str; 4] = [column::AGENT_ID, column::MODULE_ID, column::ENV_T, column::INFOS];

/// Files whose top-level fields are equal.
struct Group {
    fields: Fields,
    files: Vec<usize>,
}

/// Unifies the columns of `files`. `rename` maps canonical names to the user's (`[input] columns`); `ignore` has those of the
/// user's that are left out (`[input] ignore`).
///
/// Shapes that only the data knows are read from the first rows of each file. Where agents or modules are recorded,
/// files may differ in shapes, dtypes and in the fields of structs: what the rows of one module have is told later
/// (see [`super::modules`]). `infos` asks for the leaves of infos, which are left out otherwise. `tolerant` says that
/// malformed rows are left out.
///
/// # Errors
/// If a needed column is missing or can hold no tensors, or the files differ in a way that would lose something.
pub fn unify(
    files: &[Arc<InputFile>],
    rename: &IndexMap<String, String>,
    ignore: &[String],
    infos: bool,
    tolerant: bool,
) -> Result<Unified> {
    let mut notes = IndexSet::new();
    // A file without rows has nothing to lose, and tools write odd types into such files.
    let filled: Vec<Arc<InputFile>> = files.iter().filter(|f| f.rows() > 0).map(Arc::clone).collect();
    for file in files {
        if let Some(note) = &file.note {
            names::note(&mut notes, format!("{}: {note}", file.name));
        }
        if file.rows() == 0 {
            names::note(&mut notes, format!("{} holds no rows", file.name));
        }
    }
    let files = if filled.is_empty() { files } else { filled.as_slice() };
    let ignored = Ignored::new(ignore)?;
    ignored.check(files.iter().map(|file| &**file), rename, &mut notes)?;
    let groups = group(files, &ignored);
    let named: Vec<Vec<Named>> = groups
        .iter()
        .map(|g| names::canonical(&g.fields, rename, &files[g.files[0]], &mut notes))
        .collect::<Result<_>>()?;
    for (group, named) in groups.iter().zip(&named) {
        names::check_needed(&NEEDED, named, rename, &group.fields, &files[group.files[0]])?;
    }
    match named.first() {
        Some(first) => names::suggest(first, rename, &mut notes),
        None => return Err(Error::usage("no input files")),
    }
    let alike = named.first().map(|first| names::alike(first)).unwrap_or_default();

    let names_someone = |n: &Named| {
        matches!(n.name.as_str(), column::AGENT_ID | column::MODULE_ID) && n.field.data_type() != &DataType::Null
    };
    let rules = Rules { several: named.iter().flatten().any(names_someone), infos };
    let mut columns: IndexMap<String, Merge> = IndexMap::new();
    for (group, named) in groups.iter().zip(&named) {
        for found in named {
            let merge = columns.entry(found.name.clone()).or_insert_with(|| Merge::new(found, rules));
            merge.add(&group.files, files, &found.field)?;
        }
    }
    look::look_at_data(&mut columns, files, tolerant).map_err(|e| match (e.hint_text(), agents_column(&alike)) {
        // A column of agents that the job does not name is not looked at by then.
        (Some(ONE_SHAPE | ONE_SHAPE_A_MODULE), Some(hint)) => {
            e.hint_instead(format!("{hint}; else pad the rows: a column has one shape"))
        }
        _ => e,
    })?;

    if infos && !columns.values().any(|m| column::is_under(&m.name, column::INFOS)) {
        names::note(&mut notes, "no infos are added: the recording has no column `infos`".to_owned());
    }
    let mut out = Unified { notes, alike, several: rules.several, ..Unified::default() };
    for (_, merge) in columns {
        merge.finish(files, &mut out)?;
    }
    Ok(out)
}

/// How to say that rows are of several agents, where a column looks like it.
pub(super) fn agents_column(alike: &IndexMap<&'static str, String>) -> Option<String> {
    let theirs = alike.get(column::AGENT_ID)?;
    Some(format!(
        "if `{}` says which agent's a row is, `[input] columns = {{ {} = {theirs:?} }}` tells agents apart",
        visible(theirs),
        column::AGENT_ID
    ))
}

fn group(files: &[Arc<InputFile>], ignored: &Ignored) -> Vec<Group> {
    let mut groups: IndexMap<Fields, Vec<usize>> = IndexMap::new();
    for (i, file) in files.iter().enumerate() {
        groups.entry(ignored.without(file.schema.fields())).or_default().push(i);
    }
    groups.into_iter().map(|(fields, files)| Group { fields, files }).collect()
}

/// The field of a file's column.
fn field_of<'a>(file: &'a InputFile, source: &str) -> Result<&'a Field> {
    let found = file.field(source).map(|(_, field)| field);
    found.ok_or_else(|| Error::internal(format!("column {source:?} vanished")).file(file.name.clone()))
}
