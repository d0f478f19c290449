//! Windows lie inside their tables.

use super::CheckName::Windows;
use super::Place;
use super::tally::Tally;
use crate::dataset::{Module, Table};
use crate::error::Error;
use crate::indexed::WindowIndex;
use crate::sink::RowGroupData;

/// A table, the number of its rows, and where its index stands among the columns of the rows.
pub(super) struct Indexed<'a> {
    table: &'a Table,
    rows: u64,
    index: [usize; 3],
}

impl<'a> Indexed<'a> {
    /// The tables of a module.
    pub fn all(module: &'a Module) -> Vec<Self> {
        let of = |table: &'a Table| {
            let [offset, length, pad] = table.index_names().map(|name| module.column(&name));
            let rows = table.steps.record().rows;
            Some(Self { table, rows, index: [offset?, length?, pad?] })
        };
        module.tables().iter().filter_map(of).collect()
    }
}

/// Holds the windows of a row group to the tables.
pub(super) fn check(data: &RowGroupData, tables: &[Indexed<'_>], place: &Place<'_>, tally: &mut Tally) {
    for Indexed { table, rows, index } in tables {
        let [Some(offset), Some(length), Some(pad)] = index.map(|at| data.columns[at].tensor()) else { continue };
        let each = offset.ty().row_elements().max(1);
        let windows = WindowIndex { offset: offset.clone(), length: length.clone(), pad: pad.clone() };
        for (i, (offset, length, pad)) in windows.iter().enumerate() {
            match table.window((offset, length, pad), *rows) {
                Err(e) => tally.fail(Windows, place.at(i / each, e)),
                Ok((_, 0, _)) if (offset, pad) != (0, 0) => {
                    let what = format!("found a window of nothing at offset {offset}, pad {pad}, expected 0, 0");
                    tally.fail(Windows, place.at(i / each, Error::data(what)).column(&table.index_names()[0]));
                }
                Ok(_) => {}
            }
        }
    }
}
