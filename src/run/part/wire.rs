//! What goes from the coordinator to tasks and comes back, as bytes of MessagePack: exact, and read by the same version
//! only.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::PathBuf;

use super::super::output::Sizes;
use super::super::pass::Found;
use super::super::provenance::Provenance;
use super::super::shuffle::Shuffle;
use super::super::units::Cut;
use super::rows::Segment;
use crate::episode::EpisodeLayout;
use crate::error::{Error, Result};
use crate::sink::{DigestPart, Finished, LongTexts};
use crate::source::file::InputFile;
use crate::source::index::{Entry, Index, Span};
use crate::stats::ColumnStats;

/// What every task needs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Head {
    /// Version of gristmill that planned.
    pub gristmill: String,
    /// The job with absolute paths, as JSON.
    pub job: String,
    /// The input as the coordinator has seen it.
    pub files: Vec<(String, u64, u64)>,
    pub index: IndexHead,
    pub provenance: Provenance,
    pub texts: LongTexts,
    /// What surveys found out, by piece and module.
    pub surveys: Vec<Vec<Option<Vec<u8>>>>,
    /// The orders of shuffled streams; none otherwise.
    pub shuffles: Vec<Shuffle>,
    /// Where rows wait to become shards, and files of tasks that did not come through are left.
    pub between: PathBuf,
    /// The folder of each stream's shards, and its name in the data set.
    pub streams: Vec<(PathBuf, String)>,
}

/// An index without its entries.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct IndexHead {
    pub modules: Vec<String>,
    pub multi_agent: bool,
    pub layout: EpisodeLayout,
    pub layouts: Vec<EpisodeLayout>,
    pub masks: Vec<std::sync::Arc<str>>,
    pub look_back: usize,
}

impl IndexHead {
    pub fn of(index: &Index) -> Self {
        Self {
            modules: index.modules.clone(),
            multi_agent: index.multi_agent,
            layout: index.layout.clone(),
            layouts: index.layouts.clone(),
            masks: index.masks.clone(),
            look_back: index.look_back,
        }
    }

    /// The index of some entries.
    pub fn with(&self, part: Entries) -> Index {
        let Self { modules, multi_agent, layout, layouts, masks, look_back } = self.clone();
        let Entries { entries, spans } = part;
        Index { entries, spans, modules, multi_agent, layout, layouts, masks, look_back, ..Index::default() }
    }
}

/// Entries of an index and their spans.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Entries {
    pub entries: Vec<Entry>,
    pub spans: Vec<Span>,
}

impl Entries {
    /// The entries of some units; a slice becomes an entry of its own.
    pub fn of(index: &Index, units: &[Cut]) -> Self {
        let mut out = Self::default();
        for unit in units {
            for entry in unit.entries(index).iter() {
                let start = out.spans.len();
                out.spans.extend_from_slice(&index.spans[entry.spans.clone()]);
                out.entries.push(Entry { spans: start..out.spans.len(), ..entry.clone() });
            }
        }
        out
    }
}

/// Consecutive units of the data set.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PartTask {
    /// Number of the part.
    pub number: usize,
    /// Number of its first unit.
    pub first_unit: usize,
    /// Entries of each unit.
    pub units: Vec<usize>,
    pub index: Entries,
}

/// The rows that a part made.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PartRows {
    /// Number of the part.
    pub number: usize,
    /// What lies in its file, by stream.
    pub streams: Vec<Vec<Segment>>,
    pub found: Found,
}

/// Rows that belong together: of one unit, or of one bucket of a shuffled order. `(part, segment)` in the order of the data.
pub(super) type Step = Vec<(usize, Segment)>;

/// Consecutive shards of a stream.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ShardTask {
    pub stream: usize,
    pub shards: Range<usize>,
    /// Rows of all of them.
    pub rows: u64,
    /// Rows of the first step that belong to the shard before.
    pub skip: usize,
    pub steps: Vec<Step>,
    /// Steps of the tables of its windows in the parts before, by part and table.
    pub before: Vec<Vec<i64>>,
    /// Where the first row stands in the bytes of each column's digest.
    pub offsets: Vec<u64>,
}

/// Shards that were written.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Shards {
    pub stream: usize,
    pub first: usize,
    pub files: Vec<Finished>,
    /// By row group and column.
    pub stats: Vec<Vec<Option<ColumnStats>>>,
    /// By column.
    pub digests: Vec<DigestPart>,
}

/// As bytes.
///
/// # Errors
/// Never: it is plain data.
pub(super) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    rmp_serde::to_vec(value).map_err(|e| Error::internal(format!("what goes to a task cannot be written: {e}")))
}

/// From bytes.
///
/// # Errors
/// If they are not what [`encode`] gave.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    rmp_serde::from_slice(bytes).map_err(|e| {
        let error = Error::internal(format!("what a task was given cannot be read: {e}"));
        error.hint("all machines need the same version of gristmill")
    })
}

/// Name, bytes and rows of an input file. Its folder has a short name where it is seen from the folder above.
pub(super) fn seen(file: &InputFile) -> (String, u64, u64) {
    let name = file.path.file_name().map_or_else(|| file.name.clone(), |name| name.to_string_lossy().into_owned());
    (name, file.bytes, file.rows())
}

/// What a task holds beside its units: no row groups, and rows of shuffled streams.
pub(super) fn sizes(head: &Head) -> Sizes {
    Sizes { shuffled: !head.shuffles.is_empty(), ..Sizes::default() }
}
