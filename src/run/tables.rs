//! What lies in files where windows are stored once: rows with index columns, and tables of the steps.
//!
//! ```text
//! a trainer sees     obs uint8[84, 84, 4]   actions   rewards
//!
//! rows               frames_offset frames_length frames_pad   actions   rewards
//! table `frames`     obs uint8[84, 84, 1]
//! ```
//!
//! Units number the rows of a table from 0. When they bring them, in order, offsets are moved by what the table has so
//! far, so every step stands once however rows are cut, shuffled or sharded.

use std::sync::Arc;

use super::cutter::Rows;
use super::output;
use super::output::Brought;
use super::provenance::Provenance;
use crate::batch::{Column, ColumnLayout};
use crate::error::{Error, Result};
use crate::indexed::{Axis, INDEX, Stored, WindowIndex, moved};
use crate::job::Output;
use crate::pipeline::ModulePlan;
use crate::sink::{ColumnData, LongTexts, ShardSchema};
use crate::tensor::TensorType;

/// The steps of a module that its windows are over.
#[derive(Debug, Clone)]
pub(super) struct Table {
    pub name: &'static str,
    pub places: usize,
    pub axis: Axis,
    pub prefix: Vec<usize>,
    /// Its columns: a row is a step.
    pub columns: Vec<ColumnLayout>,
    /// Where the index stands among the batch's stored columns: the first of three.
    pub index: usize,
}

/// A batch's columns as they are stored.
#[derive(Debug, Clone, Default)]
pub(super) struct Storage {
    /// Of the rows. Without tables these are the batch's.
    pub rows: Vec<ColumnLayout>,
    pub tables: Vec<Table>,
}

/// A stream of shards.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream<'a> {
    pub module: usize,
    /// None for the module's rows.
    pub table: Option<&'a Table>,
    /// What its rows hold, behind where they came from.
    pub columns: &'a [ColumnLayout],
}

/// The streams of some modules: the rows of each, and behind those the tables of each.
pub(super) fn streams(storage: &[Storage]) -> Vec<Stream<'_>> {
    let rows = storage.iter().enumerate().map(|(module, s)| Stream { module, table: None, columns: &s.rows });
    let tables = storage.iter().enumerate().flat_map(|(module, s)| {
        s.tables.iter().map(move |table| Stream { module, table: Some(table), columns: &table.columns })
    });
    rows.chain(tables).collect()
}

/// The columns of every stream's shards.
///
/// # Errors
/// If they are more than a file can hold.
pub(super) fn schemas(
    modules: &[ModulePlan],
    storage: &[Storage],
    provenance: Provenance,
    texts: &LongTexts,
    output: &Output,
) -> Result<Vec<ShardSchema>> {
    let schema = |stream: Stream<'_>| {
        if stream.table.is_some() {
            return output::schema(Vec::new(), stream.columns, output);
        }
        let windows = output::windows_bytes(&modules[stream.module].layout.columns);
        let rows = output::schema(provenance.columns(), stream.columns, output);
        rows.with_windows(windows).with_texts(texts.clone())
    };
    let schemas: Vec<ShardSchema> = streams(storage).into_iter().map(schema).collect();
    schemas.iter().try_for_each(ShardSchema::check)?;
    Ok(schemas)
}

/// What a unit brings to a module: rows, and steps by table.
#[derive(Debug)]
pub(super) struct Taken {
    pub rows: Vec<ColumnData>,
    pub tables: Vec<Rows>,
}

impl Storage {
    /// How a batch of these columns is stored.
    ///
    /// # Errors
    /// If columns of one table differ in how they are laid out, which is a fault of this crate.
    pub fn of(columns: &[ColumnLayout]) -> Result<Self> {
        let mut out = Self::default();
        for column in columns {
            let Some(stored) = &column.stored else {
                out.rows.push(column.clone());
                continue;
            };
            let known = out.tables.iter().position(|t| t.name == stored.table);
            let table = known.unwrap_or_else(|| {
                let Stored { table: name, places, axis, prefix, .. } = stored.clone();
                let index = out.rows.len();
                for (part, dtype) in INDEX {
                    let ty = TensorType::new(dtype, prefix.clone());
                    out.rows.push(ColumnLayout::new(format!("{name}_{part}"), ty, column.rows));
                }
                out.tables.push(Table { name, places, axis, prefix, columns: Vec::new(), index });
                out.tables.len() - 1
            });
            let table = &mut out.tables[table];
            if (table.places, table.axis, &table.prefix) != (stored.places, stored.axis, &stored.prefix) {
                return Err(Error::internal("columns of one table are laid out differently").column(&column.name));
            }
            table.columns.push(ColumnLayout::new(column.name.clone(), stored.step.clone(), column.rows));
        }
        Ok(out)
    }

    /// A unit's columns by where they go. Offsets count from the unit's first step.
    ///
    /// # Errors
    /// If columns of one table have different windows, which is a fault of this crate.
    pub fn take(&self, columns: Vec<(String, Column)>, layout: &[ColumnLayout]) -> Result<Taken> {
        let mut rows = Vec::with_capacity(self.rows.len());
        let mut tables: Vec<Rows> = self.tables.iter().map(|_| Rows { rows: 0, columns: Vec::new() }).collect();
        let mut seen: Vec<Option<Arc<WindowIndex>>> = vec![None; self.tables.len()];
        for ((_, column), promised) in columns.into_iter().zip(layout) {
            let windows = match (column, &promised.stored) {
                (Column::Whole(tensor), None) => {
                    rows.push(ColumnData::Tensor(tensor));
                    continue;
                }
                (Column::Windows(windows), Some(_)) => windows,
                _ => return Err(Error::internal("a column is not stored as promised").column(&promised.name)),
            };
            let name = promised.stored.as_ref().map(|s| s.table);
            let at = self.tables.iter().position(|t| Some(t.name) == name);
            let at = at.ok_or_else(|| Error::internal("a table that nobody planned").column(&promised.name))?;
            match &seen[at] {
                None => {
                    rows.extend((**windows.index()).clone().columns().map(ColumnData::Tensor));
                    seen[at] = Some(Arc::clone(windows.index()));
                }
                Some(index) if Arc::ptr_eq(index, windows.index()) || index == windows.index() => {}
                Some(_) => return Err(Error::internal("two indices for one table").column(&promised.name)),
            }
            tables[at].rows = windows.steps().rows();
            tables[at].columns.push(ColumnData::Tensor(windows.steps().clone()));
        }
        Ok(Taken { rows, tables })
    }
}

/// A table while units come, in order.
#[derive(Debug, Clone)]
pub(super) struct Growing {
    pub table: Table,
    /// Rows so far.
    rows: i64,
}

impl Growing {
    pub fn new(table: Table) -> Self {
        Self { table, rows: 0 }
    }

    /// Takes in that a unit brings `steps` more rows, and moves the offsets of what points to them.
    ///
    /// # Errors
    /// If rows are more than there are numbers.
    pub fn take(&mut self, brought: &mut Brought, provenance: usize, steps: usize) -> Result<()> {
        brought.each(|rows| self.table.move_offsets(rows, provenance, self.rows));
        self.rows += i64::try_from(steps).map_err(|_| Error::internal("more steps than there are numbers"))?;
        Ok(())
    }
}

impl Table {
    /// Moves the offsets of `rows`, whose stored columns stand behind `provenance` others, by `by` rows of the table.
    pub fn move_offsets(&self, rows: &mut Rows, provenance: usize, by: i64) {
        let at = provenance + self.index;
        if let [ColumnData::Tensor(offset), ColumnData::Tensor(length), ..] = &mut rows.columns[at..]
            && by != 0
        {
            *offset = moved(offset, length, by);
        }
    }
}
