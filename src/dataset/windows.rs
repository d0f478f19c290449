//! Windows that are stored once, laid out: rows as a trainer sees them.
//!
//! ```text
//! shard      frames_offset 7   frames_length 3   frames_pad 1        the row
//! table      f7 f8 f9                                                 row groups that hold these steps, kept for a while
//! laid out   0 f7 f8 f9                                               what the piece would have made
//! ```
//!
//! Offsets come out of a file, so each is held to the table before a step is copied.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::read::Shard;
use super::{Module, Table};
use crate::error::{Error, Result};
use crate::indexed::{INDEX, Stored};
use crate::sink::{ColumnData, ColumnType, RowGroupData};
use crate::tensor::{Buffers, Tensor};

/// Bytes of decoded steps that [`LaidOut`] keeps, by table.
const KEPT: usize = 256 << 20;

/// Does something to a shard that was opened: maps it into memory, say.
pub type Prepare = dyn Fn(Shard) -> Result<Shard> + Send + Sync;

/// The steps of one table, in any order.
pub struct Steps {
    table: Table,
    prepare: Arc<Prepare>,
    /// The shards, opened when a step of theirs is asked for.
    shards: Vec<OnceLock<Shard>>,
    /// Row of the table that each shard starts at, and the number of all.
    starts: Vec<u64>,
    kept: Mutex<Kept>,
    /// What windows are laid out in.
    buffers: Buffers,
}

impl std::fmt::Debug for Steps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Steps").field("table", &self.table).finish_non_exhaustive()
    }
}

/// A column of a row group: shard, group, column.
type Key = (usize, usize, usize);

/// Decoded columns; those that nobody asked for longest go first.
#[derive(Debug, Default)]
struct Kept {
    columns: HashMap<Key, (Tensor, usize, u64)>,
    by_use: BTreeMap<u64, Key>,
    bytes: usize,
    /// The most that is kept, but for one column.
    most: usize,
    uses: u64,
}

impl Kept {
    fn get(&mut self, key: Key) -> Option<Tensor> {
        let (tensor, _, used) = self.columns.get_mut(&key)?;
        self.by_use.remove(used);
        self.uses += 1;
        *used = self.uses;
        self.by_use.insert(self.uses, key);
        Some(tensor.clone())
    }

    fn put(&mut self, key: Key, tensor: Tensor, bytes: usize) {
        self.uses += 1;
        if let Some((_, before, used)) = self.columns.insert(key, (tensor, bytes, self.uses)) {
            self.by_use.remove(&used);
            self.bytes -= before;
        }
        self.by_use.insert(self.uses, key);
        self.bytes += bytes;
        while self.bytes > self.most && self.columns.len() > 1 {
            let Some((_, key)) = self.by_use.pop_first() else { break };
            if let Some((_, bytes, _)) = self.columns.remove(&key) {
                self.bytes -= bytes;
            }
        }
    }
}

impl Steps {
    /// The steps of `table`, of which at most `kept` bytes stay decoded. `prepare` is done to each shard that is opened.
    #[must_use]
    pub fn new(table: &Table, kept: usize, prepare: Arc<Prepare>) -> Self {
        let shards = &table.steps.record().shards;
        let starts = std::iter::once(0).chain(shards.iter().scan(0_u64, |sum, shard| {
            *sum = sum.saturating_add(shard.rows);
            Some(*sum)
        }));
        Self {
            prepare,
            shards: shards.iter().map(|_| OnceLock::new()).collect(),
            starts: starts.collect(),
            kept: Mutex::new(Kept { most: kept, ..Kept::default() }),
            buffers: Buffers::default(),
            table: table.clone(),
        }
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Lays out windows of the columns at `columns` (places among the table's). `offset`, `length` and `pad` are the
    /// index columns of some rows; `row` gives the number of each, if known, for errors.
    ///
    /// # Errors
    /// If the index points out of the table, or the table cannot be read.
    pub fn lay_out(
        &self,
        columns: &[usize],
        index: [&Tensor; 3],
        row: impl Fn(usize) -> Option<u64>,
    ) -> Result<Vec<Tensor>> {
        let [offset, length, pad] = index;
        let windows = self.checked(offset, length, pad, row)?;
        let lay = |&column: &usize| self.lay_out_column(column, &windows, offset.rows());
        columns.iter().map(lay).collect()
    }

    /// The windows as numbers that are inside the table.
    fn checked(
        &self,
        offset: &Tensor,
        length: &Tensor,
        pad: &Tensor,
        row: impl Fn(usize) -> Option<u64>,
    ) -> Result<Vec<(u64, usize, usize)>> {
        let at = |error: Error, row: Option<u64>| match row {
            Some(row) => error.row(row),
            None => error,
        };
        let rows = *self.starts.last().unwrap_or(&0);
        let each = offset.ty().row_elements().max(1);
        let all = offset.values::<i64>().iter().zip(length.values::<i32>()).zip(pad.values::<i32>());
        let window = |(i, ((&offset, &length), &pad)): (usize, ((&i64, &i32), &i32))| {
            self.table.window((offset, length, pad), rows).map_err(|e| at(e, row(i / each)))
        };
        all.enumerate().map(window).collect()
    }

    fn lay_out_column(&self, column: usize, windows: &[(u64, usize, usize)], rows: usize) -> Result<Tensor> {
        let stored = self.table.stored(column)?;
        let (step, window) = (stored.step.row_bytes(), stored.window().row_bytes());
        let mut out = self.buffers.take(windows.len() * window);
        if step > 0 {
            // The row group that the last window ended in: the next one starts there, or nearby.
            let mut group: Option<Group> = None;
            for (slot, &(offset, length, pad)) in out.as_mut().chunks_exact_mut(window).zip(windows) {
                stored.pad(slot, length);
                let (mut at, end, mut place) = (offset, offset + length as u64, pad);
                while at < end {
                    let here = match group.take() {
                        Some(group) if group.rows.contains(&at) => group,
                        _ => self.group(column, at)?,
                    };
                    let first = usize::try_from(at - here.rows.start).unwrap_or(usize::MAX);
                    let until = usize::try_from(end.min(here.rows.end) - here.rows.start).unwrap_or(usize::MAX);
                    stored.lay(slot, place, &here.column.bytes()[first * step..until * step]);
                    place += until - first;
                    at += (until - first) as u64;
                    group = Some(here);
                }
            }
        }
        Ok(Tensor::new(stored.row(), rows, out.into()))
    }

    /// The row group that holds row `row` of the table.
    fn group(&self, column: usize, row: u64) -> Result<Group> {
        let number = self.starts.partition_point(|start| *start <= row) - 1;
        let shard = self.shard(number)?;
        let inside = row - self.starts[number];
        let groups = shard.row_groups();
        let at = groups.partition_point(|g| g.first_row <= inside) - 1;
        let begin = self.starts[number] + groups[at].first_row;
        let rows = begin..begin + groups[at].rows as u64;
        let key = (number, at, column);
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(column) = kept().get(key) {
            return Ok(Group { rows, column });
        }
        let data = shard.row_group(at, &[column])?;
        let column = data
            .columns
            .first()
            .and_then(ColumnData::tensor)
            .ok_or_else(|| Error::internal("steps that are no tensor"))?;
        let bytes = if shard.holds(column) { 0 } else { column.bytes().len() };
        kept().put(key, column.clone(), bytes);
        Ok(Group { rows, column: column.clone() })
    }

    fn shard(&self, number: usize) -> Result<&Shard> {
        if let Some(shard) = self.shards[number].get() {
            return Ok(shard);
        }
        let shard = self.table.steps.shard(number)?;
        let promised = self.starts[number + 1] - self.starts[number];
        if shard.rows() != promised {
            let what = format!("found {} rows, the manifest says {promised}", shard.rows());
            return Err(Error::data(what).file(shard.name()));
        }
        let shard = (self.prepare)(shard)?;
        Ok(self.shards[number].get_or_init(|| shard))
    }
}

/// A column of one row group of the table.
struct Group {
    rows: Range<u64>,
    column: Tensor,
}

/// Where a column that a trainer sees comes from.
#[derive(Debug, Clone)]
enum Origin {
    /// A column of the rows.
    Row(usize),
    /// Windows over a column of a table.
    Table { table: usize, column: usize },
}

/// A module's rows as a trainer sees them.
#[derive(Debug)]
pub struct LaidOut {
    columns: Vec<(String, ColumnType)>,
    origins: Vec<Origin>,
    tables: Vec<Steps>,
    /// By table, its index among the columns of the rows.
    indices: Vec<[usize; 3]>,
}

impl LaidOut {
    /// A reader of the rows of `module`. Where nothing is stored as windows, its columns are those of the shards.
    ///
    /// # Errors
    /// If the manifest contradicts itself.
    pub fn of(module: &Module) -> Result<Self> {
        Self::with(module, &(Arc::new(Ok) as Arc<Prepare>))
    }

    /// The same; `prepare` is done to each shard of a table that is opened.
    ///
    /// # Errors
    /// If the manifest contradicts itself.
    pub fn with(module: &Module, prepare: &Arc<Prepare>) -> Result<Self> {
        let tables: Vec<Steps> = module.tables().iter().map(|t| Steps::new(t, KEPT, Arc::clone(prepare))).collect();
        let indices = module.tables().iter().map(|t| module.index_of(t)).collect::<Result<_>>()?;
        let (mut columns, mut origins) = (Vec::new(), Vec::new());
        for (i, (name, ty)) in module.schema().columns.iter().enumerate() {
            if module.tables().iter().all(|t| !t.index_names().contains(name)) {
                columns.push((name.clone(), ty.clone()));
                origins.push(Origin::Row(i));
            }
            // Where the index stands, the columns of the table stood.
            for (t, table) in module.tables().iter().enumerate().filter(|(_, t)| t.index_names()[0] == *name) {
                for (c, (name, _)) in table.steps.schema().columns.iter().enumerate() {
                    columns.push((name.clone(), ColumnType::Tensor(table.stored(c)?.row())));
                    origins.push(Origin::Table { table: t, column: c });
                }
            }
        }
        // In the order in which the pipeline made them: those that tell where a row came from stand in front.
        let order: HashMap<&str, usize> =
            module.record().batch.iter().enumerate().map(|(i, c)| (c.name.as_str(), i + 1)).collect();
        let mut all: Vec<_> = columns.into_iter().zip(origins).collect();
        all.sort_by_key(|((name, _), _)| order.get(name.as_str()).copied().unwrap_or(0));
        let (columns, origins) = all.into_iter().unzip();
        Ok(Self { columns, origins, tables, indices })
    }

    /// The table that column `column` is laid out from, if it is.
    #[must_use]
    pub fn table(&self, column: usize) -> Option<&str> {
        match self.origins[column] {
            Origin::Row(_) => None,
            Origin::Table { table, .. } => Some(self.tables[table].table.name),
        }
    }

    /// Names and types.
    #[must_use]
    pub fn columns(&self) -> &[(String, ColumnType)] {
        &self.columns
    }

    /// The columns of a shard that must be read for those at `columns`, rising.
    #[must_use]
    pub fn needs(&self, columns: &[usize]) -> Vec<usize> {
        let of = |&column: &usize| match self.origins[column] {
            Origin::Row(at) => vec![at],
            Origin::Table { table, .. } => self.indices[table].to_vec(),
        };
        let mut all: Vec<usize> = columns.iter().flat_map(of).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Rows of `data`, laid out: the columns at `columns`. `data` has the shard's columns at the places that stand beside
    /// it, rising: those that [`Self::needs`] names, and maybe others. Its first row is the shard's row `first_row`.
    ///
    /// # Errors
    /// If an index points out of its table, or a table cannot be read.
    pub fn rows(
        &self,
        (there, data): (&[usize], &RowGroupData),
        rows: Range<usize>,
        columns: &[usize],
        first_row: u64,
    ) -> Result<RowGroupData> {
        let physical = |at: usize| {
            let place = there.binary_search(&at).map_err(|_| Error::internal("a column that was not read"))?;
            Ok::<_, Error>(data.columns[place].slice(rows.start, rows.len()))
        };
        let mut out: Vec<Option<ColumnData>> = vec![None; columns.len()];
        for (table, (steps, index)) in self.tables.iter().zip(&self.indices).enumerate() {
            let mut wanted = Vec::new();
            for (place, &column) in columns.iter().enumerate() {
                if let Origin::Table { table: own, column } = self.origins[column]
                    && own == table
                {
                    wanted.push((place, column));
                }
            }
            if wanted.is_empty() {
                continue;
            }
            let index = index.map(physical);
            let [Ok(ColumnData::Tensor(offset)), Ok(ColumnData::Tensor(length)), Ok(ColumnData::Tensor(pad))] = &index
            else {
                return Err(Error::internal("an index that was not read"));
            };
            let own: Vec<usize> = wanted.iter().map(|(_, column)| *column).collect();
            let laid = steps.lay_out(&own, [offset, length, pad], |i| Some(first_row + (rows.start + i) as u64))?;
            for ((place, _), tensor) in wanted.into_iter().zip(laid) {
                out[place] = Some(ColumnData::Tensor(tensor));
            }
        }
        let column = |(place, laid): (usize, Option<ColumnData>)| match (laid, &self.origins[columns[place]]) {
            (Some(laid), _) => Ok(laid),
            (None, Origin::Row(at)) => physical(*at),
            (None, Origin::Table { .. }) => Err(Error::internal("windows that were not laid out")),
        };
        let laid = out.into_iter().enumerate().map(column).collect::<Result<_>>()?;
        Ok(RowGroupData { rows: rows.len(), columns: laid })
    }
}

impl Table {
    /// The names of its index columns among the rows'.
    #[must_use]
    pub fn index_names(&self) -> [String; 3] {
        INDEX.map(|(part, _)| format!("{}_{part}", self.name))
    }

    /// Offset, length and pad of a window over the table's `rows` rows.
    ///
    /// # Errors
    /// If it does not lie inside them, or inside a window's places.
    pub(crate) fn window(&self, window: (i64, i32, i32), rows: u64) -> Result<(u64, usize, usize)> {
        let (offset, length, pad) = window;
        let inside = || {
            let (offset, length) = (u64::try_from(offset).ok()?, usize::try_from(length).ok()?);
            let pad = usize::try_from(pad).ok()?;
            let ends = offset.checked_add(length as u64)? <= rows && pad.checked_add(length)? <= self.places;
            ends.then_some((offset, length, pad))
        };
        inside().ok_or_else(|| {
            let what = format!(
                "found the window (offset {offset}, length {length}, pad {pad}), expected one of {} places over the {rows} \
                 rows of the table `{}`",
                self.places, self.name
            );
            Error::data(what).column(format!("{}_offset", self.name))
        })
    }

    /// How windows of its column `column` are laid out.
    ///
    /// # Errors
    /// If that is no tensor.
    pub fn stored(&self, column: usize) -> Result<Stored> {
        match self.steps.schema().columns.get(column) {
            Some((_, ColumnType::Tensor(step))) => Ok(Stored {
                table: self.name,
                step: step.clone(),
                places: self.places,
                axis: self.axis,
                prefix: self.prefix.clone(),
            }),
            _ => Err(Error::data(format!("found no tensor in the table `{}`", self.name))),
        }
    }
}

impl Module {
    /// Where the index of a table of its stands among its columns.
    fn index_of(&self, table: &Table) -> Result<[usize; 3]> {
        let at = |name: &String| {
            self.column(name)
                .ok_or_else(|| Error::data("found no such column, which a table needs").column(name.as_str()))
        };
        let [offset, length, pad] = table.index_names();
        Ok([at(&offset)?, at(&length)?, at(&pad)?])
    }
}
