//! One numbering of all rows of all input files.
//!
//! ```text
//! file 0                    file 1
//! row group 0 | 1           row group 0
//! 0 .. 99     | 100 .. 149  150 .. 199        global row
//! ```

use std::sync::Arc;

use super::faults::LostFile;
use super::file::InputFile;
use crate::error::Error;

/// A row group, by file and number inside the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowGroupRef {
    /// Index of the file in the source.
    pub file: usize,
    /// Number of the row group in the file.
    pub row_group: usize,
    /// Global number of its first row.
    pub first_row: u64,
    /// Its rows.
    pub rows: u64,
}

/// Every row group of every file, in dataset order.
#[derive(Debug, Clone)]
pub struct RowMap {
    files: Vec<Arc<InputFile>>,
    groups: Vec<RowGroupRef>,
    rows: u64,
    lost: Vec<LostFile>,
    notes: Vec<String>,
}

impl RowMap {
    /// Numbers the rows of `files` in their order.
    #[must_use]
    pub fn new(files: Vec<Arc<InputFile>>) -> Self {
        let (mut groups, mut rows) = (Vec::new(), 0);
        for (file, input) in files.iter().enumerate() {
            for (row_group, group) in input.row_groups.iter().enumerate() {
                let n = group.rows as u64;
                if n > 0 {
                    groups.push(RowGroupRef { file, row_group, first_row: rows, rows: n });
                }
                rows += n;
            }
        }
        Self { files, groups, rows, lost: Vec::new(), notes: Vec::new() }
    }

    /// The same, with files that are left out because they cannot be opened.
    #[must_use]
    pub fn with_lost(mut self, lost: Vec<LostFile>) -> Self {
        self.lost = lost;
        self
    }

    /// Files that are left out because they cannot be opened.
    #[must_use]
    pub fn lost(&self) -> &[LostFile] {
        &self.lost
    }

    /// The same, with sentences for the report about what else lies where the files do.
    #[must_use]
    pub fn with_notes(mut self, notes: Vec<String>) -> Self {
        self.notes = notes;
        self
    }

    /// Sentences for the report about what else lies where the files do.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The files.
    #[must_use]
    pub fn files(&self) -> &[Arc<InputFile>] {
        &self.files
    }

    /// The row groups that have rows.
    #[must_use]
    pub fn groups(&self) -> &[RowGroupRef] {
        &self.groups
    }

    /// Number of rows.
    #[must_use]
    pub const fn rows(&self) -> u64 {
        self.rows
    }

    /// The same with its first row groups alone: as few as have `rows` rows.
    #[must_use]
    pub fn first(&self, rows: u64) -> Self {
        let n = self.groups.partition_point(|g| g.first_row < rows);
        let groups = self.groups[..n].to_vec();
        let rows = groups.last().map_or(0, |g| g.first_row + g.rows);
        Self { files: self.files.clone(), groups, rows, lost: Vec::new(), notes: Vec::new() }
    }

    /// The row group of a global row.
    #[must_use]
    pub fn group_of(&self, row: u64) -> Option<&RowGroupRef> {
        let after = self.groups.partition_point(|g| g.first_row <= row);
        after.checked_sub(1).map(|i| &self.groups[i])
    }

    /// Adds file, row group and row inside the file to an error about a global row.
    #[must_use]
    pub fn locate(&self, row: u64, error: Error) -> Error {
        let Some(group) = self.group_of(row) else { return error };
        let file = &self.files[group.file];
        let in_file = file.row_groups[group.row_group].first_row + (row - group.first_row);
        error.file(file.name.clone()).row_group(group.row_group).row(in_file)
    }

    /// The global row that an error with a file and a row of it is about.
    #[must_use]
    pub fn row_of(&self, error: &Error) -> Option<u64> {
        let place = error.place();
        let (file, row) = (place.file.as_deref()?, place.row?);
        let at = self.files.iter().position(|f| f.name == file)?;
        let group = self.groups.iter().rfind(|g| {
            let first = self.files[g.file].row_groups[g.row_group].first_row;
            g.file == at && first <= row
        })?;
        let first = self.files[at].row_groups[group.row_group].first_row;
        (row - first < group.rows).then_some(group.first_row + (row - first))
    }

    /// "file, row n" of a global row, for reports.
    #[must_use]
    pub fn describe(&self, row: u64) -> String {
        self.locate(row, Error::data("")).place().to_string()
    }
}
