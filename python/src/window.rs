//! Rows of a shuffle window, batch by batch.

use std::sync::{Mutex, PoisonError};

use gristmill::error::{Error, Result};
use gristmill::tensor::{Buffers, Tensor};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::column::{Column, gather_column, numbers};
use crate::errors::raised;

/// The row groups of a window and the order of its rows. A row group is put here when a row of it is asked for.
#[pyclass(frozen, module = "gristmill._gristmill")]
pub struct Window {
    /// Row group, and row in it.
    places: Vec<(u32, u32)>,
    groups: Mutex<Vec<Option<Vec<Tensor>>>>,
    /// Of batches that nobody holds any more.
    buffers: Buffers,
}

#[pymethods]
impl Window {
    /// A window of `groups` row groups, none of them here yet. Row `i` of its order is row `rows[i]` of row group
    /// `parts[i]`, int64 as bytes.
    #[new]
    fn new(py: Python<'_>, groups: usize, parts: PyBackedBytes, rows: PyBackedBytes) -> PyResult<Self> {
        let small = |n: usize| u32::try_from(n).map_err(|_| Error::internal("a row group too large for a window"));
        let place = |(part, row)| Ok((small(part)?, small(row)?));
        let places: Result<Vec<_>> = py.detach(|| numbers(&parts).zip(numbers(&rows)).map(place).collect());
        let places = places.map_err(|e| raised(py, &e))?;
        Ok(Self { places, groups: Mutex::new(vec![None; groups]), buffers: Buffers::default() })
    }

    /// The row groups that rows `start..stop` of the order need and that are not here.
    fn missing(&self, start: usize, stop: usize) -> Vec<usize> {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let mut missing: Vec<bool> = groups.iter().map(Option::is_none).collect();
        if !missing.contains(&true) {
            return Vec::new();
        }
        let mut out = Vec::new();
        for &(group, _) in self.places.get(start..stop).unwrap_or_default() {
            if std::mem::take(&mut missing[group as usize]) {
                out.push(group as usize);
            }
        }
        out
    }

    /// Puts the columns of a row group here.
    fn put(&self, group: usize, columns: Vec<Bound<'_, Column>>) {
        let columns = columns.iter().map(|c| c.get().tensor().clone()).collect();
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)[group] = Some(columns);
    }

    /// Rows `start..stop` of the order, as columns that are the caller's.
    fn rows(&self, py: Python<'_>, start: usize, stop: usize) -> PyResult<Vec<Column>> {
        let gather = || {
            let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let places = self.places.get(start..stop).ok_or_else(|| Error::internal("rows that there are not"))?;
            let columns = groups.iter().flatten().next().map_or(0, Vec::len);
            let column = |c: usize| {
                let parts: Vec<Option<&Tensor>> = groups.iter().map(|g| g.as_ref().map(|g| &g[c])).collect();
                gather_column(&parts, places.iter().map(|&(part, row)| (part as usize, row as usize)), &self.buffers)
            };
            (0..columns).map(column).collect::<Result<Vec<_>>>()
        };
        let gathered = py.detach(gather).map_err(|e| raised(py, &e))?;
        Ok(gathered.into_iter().map(Column::own).collect())
    }
}
