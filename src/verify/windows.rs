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
    rows: i64,
    index: [usize; 3],
}

impl<'a> Indexed<'a> {
    /// The tables of a module.
    pub fn all(module: &'a Module) -> Vec<Self> {
        let of = |table: &'a Table| {
            let [offset, length, pad] = table.index_names().map(|name| module.column(&name));
            let rows = i64::try_from(table.steps.record().rows).unwrap_or(i64::MAX);
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
        let places = i64::try_from(table.places).unwrap_or(i64::MAX);
        let windows = WindowIndex { offset: offset.clone(), length: length.clone(), pad: pad.clone() };
        for (i, (offset, length, pad)) in windows.iter().enumerate() {
            let (length, pad) = (i64::from(length), i64::from(pad));
            let inside = offset >= 0
                && length >= 0
                && pad >= 0
                && offset.checked_add(length).is_some_and(|end| end <= *rows)
                && pad + length <= places;
            if !inside {
                let what = format!(
                    "found the window (offset {offset}, length {length}, pad {pad}), expected one of {places} places over \
                     the {rows} rows of the table `{}`",
                    table.name
                );
                tally.fail(Windows, place.at(i / each, Error::data(what)).column(&table.index_names()[0]));
            } else if length == 0 && (offset, pad) != (0, 0) {
                let what = format!("found a window of nothing at offset {offset}, pad {pad}, expected 0, 0");
                tally.fail(Windows, place.at(i / each, Error::data(what)).column(&table.index_names()[0]));
            }
        }
    }
}
