//! Columns that the job calls otherwise than the files do: an error about one of them has both names.
//!
//! ```text
//! [input.columns]             found null, expected a value in every row
//! obs = "observation"           at: file logs/a.parquet, row 7, column `obs/pos` (`observation/pos` in the file)
//! ```

use indexmap::IndexMap;

use super::blocks::{Block, Blocks};
use super::index::{Entry, Index};
use super::rows::{RowGroupRef, RowMap};
use super::{BlockIter, IndexOptions, Noticed, Source};
use crate::column::is_inside;
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::progress::Progress;

/// The names of the files' columns, by gristmill's (`input.columns`).
#[derive(Debug, Clone)]
pub(super) struct FileNames(IndexMap<String, String>);

impl FileNames {
    pub fn new(columns: &IndexMap<String, String>) -> Self {
        Self(columns.clone())
    }

    /// What the files call a column: `observation/pos` for `obs/pos`. The rule that says most of it counts.
    fn of(&self, column: &str) -> Option<String> {
        let rules = self.0.iter().filter(|(ours, _)| column == *ours || is_inside(column, ours));
        let (ours, theirs) = rules.max_by_key(|(ours, _)| ours.len())?;
        Some(format!("{theirs}{}", &column[ours.len()..])).filter(|name| name != column)
    }

    /// The error with both names of its column.
    pub fn add(&self, error: Error) -> Error {
        let place = error.place();
        match (&place.column, &place.file_column) {
            // A reader knows a file's own names alone.
            (Some(own), Some(theirs)) if own == theirs => match self.0.iter().find(|(_, name)| *name == theirs) {
                Some((ours, _)) => error.renamed_column(ours.clone()),
                None => error,
            },
            (Some(ours), None) => match self.of(ours) {
                Some(theirs) => error.file_column(theirs),
                None => error,
            },
            _ => error,
        }
    }
}

/// A source whose errors have both names.
#[derive(Debug)]
pub(super) struct Renamed {
    pub inner: Box<dyn Source>,
    pub names: FileNames,
}

impl Source for Renamed {
    fn recognised(&self) -> &str {
        self.inner.recognised()
    }

    fn notes(&self) -> &[String] {
        self.inner.notes()
    }

    fn rows(&self) -> &RowMap {
        self.inner.rows()
    }

    fn rows_are_steps(&self) -> bool {
        self.inner.rows_are_steps()
    }

    fn row_bytes(&self, layout: &EpisodeLayout) -> usize {
        self.inner.row_bytes(layout)
    }

    fn explain(&self, error: Error, index: Option<&Index>) -> Error {
        self.names.add(self.inner.explain(error, index))
    }

    fn peek(&self) -> Result<EpisodeLayout> {
        self.inner.peek().map_err(|e| self.names.add(e))
    }

    fn first_modules(&self, options: IndexOptions<'_>) -> Result<Option<(Index, u64)>> {
        self.inner.first_modules(options).map_err(|e| self.names.add(e))
    }

    fn index(&self, options: IndexOptions<'_>, progress: &dyn Progress) -> Result<Index> {
        let mut index = self.inner.index(options, progress).map_err(|e| self.names.add(e))?;
        index.faults.tell_better(&|e| self.names.add(e));
        Ok(index)
    }

    fn read(&self, group: RowGroupRef, layout: &EpisodeLayout, block_bytes: usize) -> Result<BlockIter> {
        let names = self.names.clone();
        let blocks = self.inner.read(group, layout, block_bytes).map_err(|e| self.names.add(e))?;
        Ok(Box::new(blocks.map(move |block: Result<Block>| block.map_err(|e| names.add(e)))))
    }

    fn assemble(
        &self,
        index: &Index,
        entries: &[&Entry],
        blocks: &Blocks,
        noticed: &mut Noticed,
    ) -> Result<EpisodeBatch> {
        self.inner.assemble(index, entries, blocks, noticed).map_err(|e| self.names.add(e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_both_names() {
        let names = [("obs", "observation"), ("obs/pos", "position"), ("t", "obs"), ("rewards", "rewards")];
        let names = FileNames(names.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect());
        let told = |column: &str| names.add(Error::data("x").column(column)).place().to_string();
        assert_eq!(told("obs"), "column `obs` (`observation` in the file)");
        assert_eq!(told("obs/vel/0"), "column `obs/vel/0` (`observation/vel/0` in the file)");
        assert_eq!(told("obs/pos"), "column `obs/pos` (`position` in the file)");
        assert_eq!(told("t"), "column `t` (`obs` in the file)");
        assert_eq!(
            (told("observations"), told("rewards")),
            ("column `observations`".into(), "column `rewards`".into())
        );
        let damaged = |column: &str| names.add(Error::data("x").own_column(column)).place().to_string();
        assert_eq!(damaged("obs"), "column `t` (`obs` in the file)");
        assert_eq!(damaged("vel"), "column `vel`");
        assert_eq!(names.add(Error::data("x")).place().to_string(), "");
    }
}
