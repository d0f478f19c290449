//! The columns that training ignores and a person needs: which episode a row came from, and from which step on.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, StringViewArray, UInt64Array};
use indexmap::IndexSet;
use serde::{Deserialize, Serialize};

use crate::column::{AGENT_ID, EPS_ID, T};
use crate::episode::{Chunk, EpisodeBatch, EpisodeId};
use crate::error::{Error, Result};
use crate::sink::{ColumnData, ColumnType, LongTexts};
use crate::source::index::{Entry, Index};
use crate::window::Windows;

/// Which provenance columns a data set has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Provenance {
    /// Integer ids stay integers.
    int_ids: bool,
    /// Multi-agent data say whose row it is.
    agents: bool,
}

impl Provenance {
    /// Those of an indexed input.
    pub fn of(index: &Index) -> Self {
        let int_ids = matches!(index.entries.first(), Some(e) if matches!(e.id, EpisodeId::Int(_)));
        Self { int_ids, agents: index.multi_agent }
    }

    /// How long their texts are, as far as they are longer than usual. Of each entry one row more than it has steps: the one
    /// that `AddOneTsToEpisodesAndTruncate` adds.
    pub fn texts(self, index: &Index) -> LongTexts {
        let id = |entry: &Entry| if let EpisodeId::Str(id) = &entry.id { id.len() } else { 0 };
        let agent = |entry: &Entry| entry.agent_id().filter(|_| self.agents).map_or(0, |agent| agent.len());
        let columns = self.columns().iter().filter(|(_, ty)| *ty == ColumnType::Utf8).count();
        let rows = index.entries.iter().map(|entry| (id(entry) + agent(entry), entry.steps.saturating_add(1)));
        let different = index.entries.iter().map(id).chain(index.agents().map(str::len));
        LongTexts::of(rows, columns, different)
    }

    /// Their names and types. They stand in front of the batch's columns.
    pub fn columns(self) -> Vec<(String, ColumnType)> {
        let id = if self.int_ids { ColumnType::Int64 } else { ColumnType::Utf8 };
        let mut out = vec![(EPS_ID.to_owned(), id)];
        if self.agents {
            out.push((AGENT_ID.to_owned(), ColumnType::Utf8));
        }
        out.push((T.to_owned(), ColumnType::Int64));
        out
    }

    /// Their values for every row, in the order of [`Self::columns`]: a row is one of `windows`, or else one step.
    ///
    /// `episodes` are those that the pipeline left behind: a piece that lengthens episodes makes more rows. Rows of one
    /// episode share its text.
    pub fn values(self, episodes: &EpisodeBatch, windows: Option<&Windows>) -> Result<Vec<ColumnData>> {
        let rows = windows.map_or_else(|| episodes.steps_len(), |windows| windows.iter().len());
        let (mut chunks, mut t) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
        let mut row = |chunk: usize, first: isize| {
            let started = episodes.chunks[chunk].t_started;
            t.push(started.saturating_add(i64::try_from(first).unwrap_or(i64::MAX)));
            chunks.push(chunk);
        };
        match windows {
            Some(windows) => windows.iter().for_each(|w| row(w.episode, w.first)),
            None => {
                for (i, len) in episodes.lengths().enumerate() {
                    (0..len.cast_signed()).for_each(|at| row(i, at));
                }
            }
        }
        let by_row = |of: &dyn Array, places: Vec<u64>| {
            let taken = arrow::compute::take(of, &UInt64Array::from(places), None);
            taken.map(ColumnData::Ids).map_err(|e| Error::internal(format!("ids by row: {e}")))
        };
        let mut agents = None;
        if self.agents {
            // Agents are few, and may have long names.
            let mut names: IndexSet<&str> = IndexSet::new();
            let agents_of = episodes.chunks.iter().map(|chunk| chunk.agent_id.as_deref().unwrap_or_default());
            let of_chunk: Vec<u64> = agents_of.map(|name| names.insert_full(name).0 as u64).collect();
            let of_row = chunks.iter().map(|&chunk| of_chunk[chunk]).collect();
            agents = Some(by_row(&StringViewArray::from_iter_values(names), of_row)?);
        }
        let chunks = chunks.into_iter().map(|chunk| chunk as u64).collect();
        let mut out = vec![by_row(&*self.ids(&episodes.chunks)?, chunks)?];
        out.extend(agents);
        out.push(ColumnData::Ids(Arc::new(Int64Array::from(t))));
        Ok(out)
    }

    /// The id of each chunk.
    fn ids(self, chunks: &[Chunk]) -> Result<ArrayRef> {
        let of_two_kinds = |chunk: &Chunk| Error::internal("episode ids of two kinds").episode(chunk.id.to_string());
        if self.int_ids {
            let ids = chunks.iter().map(|chunk| match chunk.id {
                EpisodeId::Int(id) => Ok(id),
                EpisodeId::Str(_) => Err(of_two_kinds(chunk)),
            });
            return Ok(Arc::new(Int64Array::from(ids.collect::<Result<Vec<_>>>()?)));
        }
        let ids = chunks.iter().map(|chunk| match &chunk.id {
            EpisodeId::Str(id) => Ok(&**id),
            EpisodeId::Int(_) => Err(of_two_kinds(chunk)),
        });
        Ok(Arc::new(StringViewArray::from_iter_values(ids.collect::<Result<Vec<_>>>()?)))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::datatypes::Int64Type;

    use super::*;
    use crate::window::{End, Pad, Span, Spec, Start};

    #[test]
    fn a_row_is_known_by_its_first_real_step() {
        let chunk = |id, t_started| Chunk {
            id: EpisodeId::Int(id),
            agent_id: None,
            ordinal: 0,
            bare_rank: 0,
            t_started,
            terminated: false,
            truncated: false,
            has_last_obs: true,
        };
        let episodes =
            EpisodeBatch { chunks: vec![chunk(7, 0), chunk(8, 5)], offsets: vec![0, 3, 5], ..EpisodeBatch::default() };
        let columns = |windows: Option<&Windows>| {
            let columns = Provenance { int_ids: true, agents: false }.values(&episodes, windows).unwrap();
            let numbers = |column: &ColumnData| match column {
                ColumnData::Ids(ids) => ids.as_primitive::<Int64Type>().clone(),
                ColumnData::Tensor(_) => unreachable!("ids"),
            };
            columns.iter().map(numbers).collect::<Vec<Int64Array>>()
        };
        assert_eq!(columns(None), [vec![7, 7, 7, 8, 8], vec![0, 1, 2, 5, 6]].map(Int64Array::from));

        // Windows that end with every second step; the second chunk brings one step of look-back.
        let spec = Spec { before: 1, after: 1, period: 2, start: Start::Before, end: End::Past, pad: Pad::Left };
        let windows = Windows::cut(spec, [Span { look_back: 0, len: 3 }, Span { look_back: 1, len: 2 }]);
        assert_eq!(columns(Some(&windows)), [vec![7, 7, 8], vec![0, 1, 4]].map(Int64Array::from));
    }
}
