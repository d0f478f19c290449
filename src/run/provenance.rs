//! The columns that training ignores and a person needs: which episode a row came from, and from which step on.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Builder, StringBuilder};
use serde::{Deserialize, Serialize};

use crate::column::{AGENT_ID, EPS_ID, T};
use crate::episode::{EpisodeBatch, EpisodeId};
use crate::error::{Error, Result};
use crate::sink::{ColumnData, ColumnType};
use crate::source::index::Index;
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
    /// `episodes` are those that the pipeline left behind: a piece that lengthens episodes makes more rows.
    pub fn values(self, episodes: &EpisodeBatch, windows: Option<&Windows>) -> Result<Vec<ColumnData>> {
        let mut t = Int64Builder::new();
        let mut agents = StringBuilder::new();
        let mut ids = if self.int_ids { Ids::Int(Int64Builder::new()) } else { Ids::Text(StringBuilder::new()) };
        let mut row = |chunk: usize, first: isize| {
            let chunk = &episodes.chunks[chunk];
            t.append_value(chunk.t_started.saturating_add(i64::try_from(first).unwrap_or(i64::MAX)));
            match (&mut ids, &chunk.id) {
                (Ids::Int(ids), EpisodeId::Int(id)) => ids.append_value(*id),
                (Ids::Text(ids), EpisodeId::Str(id)) => ids.append_value(id),
                _ => return Err(Error::internal("episode ids of two kinds").episode(chunk.id.to_string())),
            }
            if self.agents {
                agents.append_value(chunk.agent_id.as_deref().unwrap_or_default());
            }
            Ok(())
        };
        match windows {
            Some(windows) => windows.iter().try_for_each(|w| row(w.episode, w.first))?,
            None => {
                for (i, len) in episodes.lengths().enumerate() {
                    (0..len.cast_signed()).try_for_each(|at| row(i, at))?;
                }
            }
        }
        let mut out = vec![ColumnData::Ids(ids.finish())];
        if self.agents {
            out.push(ColumnData::Ids(Arc::new(agents.finish())));
        }
        out.push(ColumnData::Ids(Arc::new(t.finish())));
        Ok(out)
    }
}

enum Ids {
    Int(Int64Builder),
    Text(StringBuilder),
}

impl Ids {
    fn finish(self) -> ArrayRef {
        match self {
            Self::Int(mut ids) => Arc::new(ids.finish()),
            Self::Text(mut ids) => Arc::new(ids.finish()),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::Int64Type;

    use super::*;
    use crate::episode::Chunk;
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
