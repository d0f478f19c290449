//! Columns that the job leaves out (`input.ignore`): as if the files did not have them.

use arrow::datatypes::{Field, FieldRef, Fields};
use indexmap::{IndexMap, IndexSet};

use super::{NEEDED, names};
use crate::column::root;
use crate::error::{Error, Result, closest, listed};
use crate::source::file::InputFile;

const KEY: &str = "input.ignore";

/// Names of columns, or patterns of them. One that names `debug` is about `debug/loss`, too.
pub(super) struct Ignored(Vec<(String, glob::Pattern)>);

impl Ignored {
    /// # Errors
    /// If one is no pattern.
    pub fn new(ignore: &[String]) -> Result<Self> {
        let one = |(i, text): (usize, &String)| {
            let pattern = glob::Pattern::new(text)
                .map_err(|e| Error::usage(format!("{text:?} is no pattern: {e}")).job_key(format!("{KEY}[{i}]")))?;
            Ok((text.clone(), pattern))
        };
        ignore.iter().enumerate().map(one).collect::<Result<_>>().map(Self)
    }

    fn covers(&self, column: &str) -> bool {
        self.0.iter().any(|(_, pattern)| is_meant(pattern, column))
    }

    /// The columns that are left.
    pub fn without(&self, fields: &Fields) -> Fields {
        if self.0.is_empty() {
            return fields.clone();
        }
        fields.iter().filter(|field| !self.covers(field.name())).cloned().collect::<Vec<FieldRef>>().into()
    }

    /// Notes what is left out, and refuses what cannot be meant.
    ///
    /// # Errors
    /// If a pattern is about no column, or about one that is needed or that `rename` maps.
    pub fn check<'a>(
        &self,
        files: impl Iterator<Item = &'a InputFile>,
        rename: &IndexMap<String, String>,
        notes: &mut IndexSet<String>,
    ) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let all: IndexSet<&str> = files
            .flat_map(|file| file.schema.fields().iter().map(|field: &'a FieldRef| Field::name(field).as_str()))
            .collect();
        for (i, (text, pattern)) in self.0.iter().enumerate() {
            let wrong = |what: String| Error::usage(what).job_key(format!("{KEY}[{i}]"));
            if !all.iter().any(|column| is_meant(pattern, column)) {
                let e = wrong(format!("found {text:?}, which no column of the files is called"));
                return Err(match closest(text, all.iter().copied()) {
                    Some(near) => e.hint(format!("did you mean {near:?}?")),
                    None => e.hint(format!("the files have {}", listed(&all))),
                });
            }
            if let Some((ours, theirs)) = rename.iter().find(|(_, theirs)| is_meant(pattern, theirs)) {
                let e = wrong(format!("found {text:?}, but `[input] columns` maps {ours} to {theirs:?}"));
                return Err(e.hint("take it out of one of them"));
            }
            if let Some(needed) = NEEDED.iter().find(|ours| !rename.contains_key(**ours) && is_meant(pattern, ours)) {
                return Err(wrong(format!("found {text:?}, but `{needed}` is needed")));
            }
        }
        let left_out: IndexSet<&str> = all.into_iter().filter(|column| self.covers(column)).collect();
        names::note(notes, format!("not read, as `[input] ignore` says: {}", listed(&left_out)));
        Ok(())
    }
}

fn is_meant(pattern: &glob::Pattern, column: &str) -> bool {
    pattern.matches(column) || pattern.matches(root(column))
}
