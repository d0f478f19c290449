//! The columns that training ignores and a person needs: which episode a row came from, and from which step on.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Builder, StringBuilder};

use crate::batch::Rows;
use crate::column::{EPS_ID, T};
use crate::episode::{EpisodeBatch, EpisodeId};
use crate::error::{Error, Result};
use crate::sink::{ColumnData, ColumnType};

/// The provenance columns of a data set, in front of those of the batch. Integer ids stay integers.
pub(super) fn columns(int_ids: bool) -> Vec<(String, ColumnType)> {
    let id = if int_ids { ColumnType::Int64 } else { ColumnType::Utf8 };
    vec![(EPS_ID.to_owned(), id), (T.to_owned(), ColumnType::Int64)]
}

/// Episode id and first step of every row, in the order of [`columns`].
///
/// `episodes` are those that the pipeline left behind: a piece that lengthens episodes makes more rows.
pub(super) fn values(episodes: &EpisodeBatch, rows: Rows, seq_len: usize, int_ids: bool) -> Result<Vec<ColumnData>> {
    let step = match rows {
        Rows::Steps => 1,
        Rows::Sequences => seq_len.max(1),
    };
    let mut t = Int64Builder::new();
    let mut ids = if int_ids { Ids::Int(Int64Builder::new()) } else { Ids::Text(StringBuilder::new()) };
    for (chunk, len) in episodes.chunks.iter().zip(episodes.lengths()) {
        for at in (0..len).step_by(step) {
            t.append_value(chunk.t_started.saturating_add(i64::try_from(at).unwrap_or(i64::MAX)));
            match (&mut ids, &chunk.id) {
                (Ids::Int(ids), EpisodeId::Int(id)) => ids.append_value(*id),
                (Ids::Text(ids), EpisodeId::Str(id)) => ids.append_value(id),
                _ => return Err(Error::internal("episode ids of two kinds").episode(chunk.id.to_string())),
            }
        }
    }
    Ok(vec![ColumnData::Ids(ids.finish()), ColumnData::Ids(Arc::new(t.finish()))])
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
