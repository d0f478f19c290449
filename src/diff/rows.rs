//! Rows of one side by their number in the module, from a few row groups at a time.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::column::{AGENT_ID, EPS_ID, T};
use crate::dataset::{Ids, LaidOut, Module, Shard};
use crate::error::{Error, Place, Result};
use crate::sink::{ColumnData, RowGroupData};
use crate::tensor::{DType, Tensor};

/// Rows that match one another: `len` from row `a` of the first side and from row `b` of the second on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub a: u64,
    pub b: u64,
    pub len: u64,
}

/// Row groups kept decoded.
const KEPT: usize = 3;

/// The shards of a module, opened.
pub(super) struct Side<'a> {
    pub module: &'a Module,
    /// Its rows as a trainer sees them.
    pub laid_out: LaidOut,
    shards: Vec<Shard>,
    /// Shard, row group, and the module's number of its first row; one more entry for the end.
    groups: Vec<(usize, usize, u64)>,
    rows: u64,
}

impl<'a> Side<'a> {
    pub fn open(module: &'a Module) -> Result<Self> {
        let shards = (0..module.record().shards.len()).map(|i| module.shard(i)).collect::<Result<Vec<_>>>()?;
        let (mut groups, mut rows) = (Vec::new(), 0);
        for (i, shard) in shards.iter().enumerate() {
            for (g, group) in shard.row_groups().iter().enumerate().filter(|(_, g)| g.rows > 0) {
                groups.push((i, g, rows));
                rows += group.rows as u64;
            }
        }
        if rows != module.record().rows {
            let what = format!("found {rows} rows, the manifest says {}", module.record().rows);
            return Err(Error::data(what).file(module.record().folder.clone()).hint("`gristmill verify` tells more"));
        }
        Ok(Self { module, laid_out: LaidOut::of(module)?, shards, groups, rows })
    }

    /// Numbers of its row groups.
    pub fn groups(&self) -> std::ops::Range<usize> {
        0..self.groups.len()
    }

    pub fn first_row(&self, group: usize) -> u64 {
        self.groups.get(group).map_or(self.rows, |g| g.2)
    }

    /// The key columns of a row group, or of some of its rows.
    pub fn keys(&self, group: usize) -> Result<Keys> {
        let (shard, number, _) = self.groups[group];
        let wanted: Vec<usize> = key_columns(self.module);
        Keys::of(&self.shards[shard].row_group(number, &wanted)?, self.module, &wanted)
    }

    /// The first row of each row group.
    pub fn first_rows(&self) -> Vec<u64> {
        self.groups.iter().map(|g| g.2).collect()
    }

    /// The row group of a row.
    pub fn group_of(&self, row: u64) -> Result<usize> {
        let after = self.groups.partition_point(|g| g.2 <= row);
        after.checked_sub(1).ok_or_else(|| Error::internal(format!("there is no row {row}")))
    }
}

fn key_columns(module: &Module) -> Vec<usize> {
    let mut out: Vec<usize> = [EPS_ID, AGENT_ID, T].iter().filter_map(|k| module.column(k)).collect();
    out.sort_unstable();
    out
}

/// Whose rows these are, and when.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    ids: Option<ColumnData>,
    agents: Option<ColumnData>,
    t: Option<Tensor>,
    pub rows: usize,
}

impl Keys {
    /// `columns` are the positions of the data's columns, rising.
    fn of(data: &RowGroupData, module: &Module, columns: &[usize]) -> Result<Self> {
        let get = |name: &str| {
            let at = columns.binary_search(&module.column(name)?).ok()?;
            data.columns.get(at).cloned()
        };
        let t = get(T).and_then(|t| t.tensor().cloned());
        if let Some(t) = t.as_ref().filter(|t| t.ty().dtype != DType::Int64 || !t.ty().shape.is_empty()) {
            return Err(Error::data(format!("found {}, expected int64", t.ty())).column(T));
        }
        Ok(Self { ids: get(EPS_ID), agents: get(AGENT_ID), t, rows: data.rows })
    }

    pub fn t(&self, row: usize) -> i64 {
        self.t.as_ref().map_or(0, |t| t.values::<i64>()[row])
    }

    /// `id`, or `id (agent)`: for people. What tells episodes apart is [`Self::hash`].
    pub fn episode(&self, row: usize) -> Result<String> {
        let text =
            |data: &Option<ColumnData>| data.as_ref().map(|d| Ok(Ids::of(d)?.text(row).into_owned())).transpose();
        let id = text(&self.ids)?.unwrap_or_default();
        Ok(match text(&self.agents)? {
            Some(agent) => format!("{id} ({agent})"),
            None => id,
        })
    }

    /// Episode and agent, wide enough that no two of a data set meet. Of their text, so that a data set with integer ids
    /// matches one with text.
    pub fn hash(&self, row: usize) -> Result<u128> {
        let mut hasher = blake3::Hasher::new();
        // The length says where the id ends: without it `ab` of agent `c` would be `a` of agent `bc`.
        for data in [&self.ids, &self.agents].into_iter().flatten() {
            let text = Ids::of(data)?.text(row);
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Ok(u128::from_le_bytes(bytes))
    }

    /// Whether two rows are of one episode and agent.
    pub fn same(&self, a: usize, b: usize) -> Result<bool> {
        for data in [&self.ids, &self.agents].into_iter().flatten() {
            if !Ids::of(data)?.same(a, b) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Reads columns of one side, group by group.
pub(super) struct RowReader<'a> {
    side: &'a Side<'a>,
    /// Positions in the side's schema, rising.
    columns: Vec<usize>,
    /// What is compared, of what a trainer sees.
    wanted: Vec<usize>,
    kept: VecDeque<Arc<Group>>,
}

struct Group {
    number: usize,
    data: RowGroupData,
    keys: Keys,
}

/// The rows from one on, to the end of its row group.
pub(super) struct Rows<'a> {
    reader: &'a RowReader<'a>,
    group: Arc<Group>,
    /// The row, inside the group.
    pub at: usize,
    /// Rows from it on.
    pub left: u64,
}

impl<'a> RowReader<'a> {
    /// Reads the columns `pairs[..][which]` of what a trainer sees, and the keys.
    pub fn new(side: &'a Side<'a>, pairs: &[[usize; 2]], which: usize) -> Self {
        let wanted: Vec<usize> = pairs.iter().map(|p| p[which]).collect();
        let mut columns: Vec<usize> = side.laid_out.needs(&wanted);
        columns.extend(key_columns(side.module));
        columns.sort_unstable();
        columns.dedup();
        Self { side, columns, wanted, kept: VecDeque::new() }
    }

    /// The rows from the module's row `row` on.
    pub fn rows(&mut self, row: u64) -> Result<Rows<'_>> {
        let number = self.side.group_of(row)?;
        let group = if let Some(group) = self.kept.iter().find(|g| g.number == number) {
            Arc::clone(group)
        } else {
            let (shard, group, _) = self.side.groups[number];
            let data = self.side.shards[shard].row_group(group, &self.columns)?;
            let keys = Keys::of(&data, self.side.module, &self.columns)?;
            let group = Arc::new(Group { number, data, keys });
            if self.kept.len() == KEPT {
                self.kept.pop_front();
            }
            self.kept.push_back(Arc::clone(&group));
            group
        };
        let first = self.side.first_row(number);
        let at = usize::try_from(row - first).map_err(|_| Error::internal("a row group larger than memory"))?;
        let left = (group.data.rows - at) as u64;
        Ok(Rows { reader: self, group, at, left })
    }
}

impl Rows<'_> {
    /// The wanted columns of the next `n` rows.
    pub fn columns(&self, n: usize) -> Result<Vec<Tensor>> {
        let (side, wanted) = (self.reader.side, &self.reader.wanted);
        let (shard, group, _) = side.groups[self.group.number];
        let shard = &side.shards[shard];
        let first = shard.row_groups()[group].first_row;
        let there = (&*self.reader.columns, &self.group.data);
        let laid = side.laid_out.rows(there, self.at..self.at + n, wanted, first);
        let laid =
            laid.map_err(|e| if e.place().file.is_some() { e } else { e.file(shard.name()).row_group(group) })?;
        let tensor = |column: ColumnData| match column {
            ColumnData::Tensor(tensor) => Ok(tensor),
            ColumnData::Ids(_) => Err(Error::internal("a column of text")),
        };
        laid.columns.into_iter().map(tensor).collect()
    }

    /// Bytes of the wanted columns of a row.
    pub fn row_bytes(&self) -> usize {
        let columns = self.reader.side.laid_out.columns();
        self.reader.wanted.iter().map(|&c| columns[c].1.row_bytes()).sum()
    }

    /// The keys of the whole group.
    pub fn keys(&self) -> &Keys {
        &self.group.keys
    }

    /// Where a row of the group stands.
    pub fn place(&self, row: usize, episode: Option<&str>, t: i64) -> Place {
        let (shard, group, _) = self.reader.side.groups[self.group.number];
        let shard = &self.reader.side.shards[shard];
        Place {
            file: Some(shard.name().to_owned()),
            row_group: Some(group),
            row: Some(shard.row_groups()[group].first_row + row as u64),
            episode: episode.map(ToOwned::to_owned),
            t: Some(t),
            ..Place::default()
        }
    }
}
