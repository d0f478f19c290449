//! Columns that tell whose row it is: integers or text.

use std::borrow::Cow;

use arrow::array::{AsArray, StringViewArray};

use crate::episode::EpisodeId;
use crate::error::{Error, Result};
use crate::sink::ColumnData;
use crate::tensor::DType;

/// A column of ids, as it is read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ids<'a> {
    /// Integers.
    Int(&'a [i64]),
    /// Text.
    Text(&'a StringViewArray),
}

impl<'a> Ids<'a> {
    /// The ids of a column. [`super::Dataset::open`] lets no other types through.
    pub fn of(data: &'a ColumnData) -> Result<Self> {
        if let Some(t) = data.tensor().filter(|t| t.ty().dtype == DType::Int64 && t.ty().shape.is_empty()) {
            return Ok(Self::Int(t.values()));
        }
        let text = data.ids().and_then(|a| a.as_string_view_opt()).map(Self::Text);
        text.ok_or_else(|| Error::internal("found neither text nor int64 in a column of ids"))
    }

    /// The id of a row as text: integers are the same ids as their digits.
    pub fn text(&self, row: usize) -> Cow<'a, str> {
        match self {
            Self::Int(ids) => Cow::Owned(ids[row].to_string()),
            Self::Text(ids) => Cow::Borrowed(ids.value(row)),
        }
    }

    /// The id of a row, to be kept.
    pub fn id(&self, row: usize) -> EpisodeId {
        match self {
            Self::Int(ids) => EpisodeId::Int(ids[row]),
            Self::Text(ids) => EpisodeId::Str(ids.value(row).into()),
        }
    }

    /// Whether a row has this id.
    pub fn is(&self, row: usize, id: &EpisodeId) -> bool {
        match (self, id) {
            (Self::Int(ids), EpisodeId::Int(id)) => ids[row] == *id,
            (Self::Text(ids), EpisodeId::Str(id)) => ids.value(row) == &**id,
            _ => false,
        }
    }

    /// Whether two rows have one id.
    pub fn same(&self, a: usize, b: usize) -> bool {
        match self {
            Self::Int(ids) => ids[a] == ids[b],
            Self::Text(ids) => ids.value(a) == ids.value(b),
        }
    }
}
