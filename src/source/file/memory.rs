//! Record batches behind [`InputFile`](super::InputFile): a table that is in memory already.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{ArrayData, RecordBatch};
use arrow::buffer::{Buffer, NullBuffer};

use super::ipc::Slices;
use super::{Batches, FileFormat, InputFile, RowGroup};
use crate::error::{Error, Result};

/// The batches, each a row group.
#[derive(Debug, Clone)]
pub(super) struct Footer(Arc<[RecordBatch]>);

impl InputFile {
    /// A table in memory, called `name` in messages. Each batch is a row group; reading gives slices of it, without a
    /// copy.
    ///
    /// # Errors
    /// If there is no batch, or one has another schema than the first.
    pub fn in_memory(name: &str, batches: Vec<RecordBatch>) -> Result<Self> {
        let Some(schema) = batches.first().map(RecordBatch::schema) else {
            return Err(Error::usage("found no record batch, expected at least one").file(name));
        };
        if let Some(at) = batches.iter().position(|batch| batch.schema() != schema) {
            return Err(Error::usage("found a record batch whose columns are not those of the first")
                .row_group(at)
                .file(name));
        }
        let (mut row_groups, mut first_row) = (Vec::with_capacity(batches.len()), 0);
        for (batch, bytes) in batches.iter().zip(sizes(&batches)) {
            row_groups.push(RowGroup { rows: batch.num_rows(), first_row, bytes });
            first_row += batch.num_rows() as u64;
        }
        Ok(Self {
            path: PathBuf::new(),
            name: name.to_owned(),
            bytes: row_groups.iter().map(|g| g.bytes).sum(),
            format: FileFormat::Memory,
            places: super::places(&schema),
            stamp: None,
            schema,
            row_groups,
            note: None,
            footer: super::Footer::Memory(Footer(batches.into())),
        })
    }
}

impl Footer {
    /// Nulls of a top-level column of a batch.
    pub(super) fn null_count(&self, row_group: usize, column: usize) -> Option<u64> {
        let column = self.0.get(row_group)?.columns().get(column)?;
        // A nested column's values may have nulls of their own, and finding those is reading them.
        let flat = column.to_data().child_data().is_empty();
        flat.then(|| column.logical_null_count() as u64)
    }

    pub(super) fn read(&self, row_group: usize, columns: &[usize], batch_rows: usize) -> Result<Batches> {
        let wrong = |e| Error::internal(format!("projecting a batch: {e}"));
        let batch = self.0[row_group].project(columns).map_err(wrong)?;
        Ok(Box::new(Slices::new(batch, batch_rows)))
    }
}

/// An allocation that batches hold.
#[derive(Debug, Default)]
struct Allocation {
    bytes: u64,
    /// Rows of all batches that hold it.
    rows: u64,
    /// Those of them that have their part.
    shared_out: u64,
}

/// The bytes of each batch. What several hold, as the batches of one table do after it was cut, is shared out by their
/// rows, so that the sum is what the table takes.
fn sizes(batches: &[RecordBatch]) -> Vec<u64> {
    let mut all: HashMap<usize, Allocation> = HashMap::new();
    let mut held = Vec::with_capacity(batches.len());
    // A batch without rows counts as well: nobody else may hold what it does.
    let rows = |batch: &RecordBatch| (batch.num_rows() as u64).max(1);
    for batch in batches {
        let mut own = BTreeSet::new();
        for column in batch.columns() {
            visit(&column.to_data(), &mut |buffer| {
                let start = buffer.data_ptr().as_ptr() as usize;
                let allocation = all.entry(start).or_default();
                // Behind another language's interface an allocation is as long as the batch says.
                allocation.bytes = allocation.bytes.max(buffer.capacity() as u64);
                if own.insert(start) {
                    allocation.rows += rows(batch);
                }
            });
        }
        held.push(own);
    }
    let part = |a: &Allocation, rows: u64| u128::from(a.bytes) * u128::from(rows) / u128::from(a.rows.max(1));
    let mut share = |start: &usize, rows: u64| {
        let Some(allocation) = all.get_mut(start) else { return 0 };
        let before = part(allocation, allocation.shared_out);
        allocation.shared_out += rows;
        u64::try_from(part(allocation, allocation.shared_out) - before).unwrap_or(u64::MAX)
    };
    batches.iter().zip(&held).map(|(batch, own)| own.iter().map(|start| share(start, rows(batch))).sum()).collect()
}

/// Calls `each` with the buffers of an array and of what is inside it.
fn visit(array: &ArrayData, each: &mut impl FnMut(&Buffer)) {
    array.buffers().iter().chain(array.nulls().map(NullBuffer::buffer)).for_each(&mut *each);
    array.child_data().iter().for_each(|inner| visit(inner, each));
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Float32Array, Int64Array, ListArray, StringArray};
    use arrow::datatypes::Float32Type;

    use super::*;

    #[test]
    fn a_table_is_as_large_in_one_batch_as_in_many() {
        let lists = (0..1000_i16).map(|i| Some((0..i % 3).map(|v| Some(f32::from(v))).collect::<Vec<_>>()));
        let columns: [(&str, ArrayRef); 4] = [
            ("t", Arc::new(Int64Array::from_iter_values(0..1000))),
            ("who", Arc::new((0..1000).map(|i| (i % 7 > 0).then(|| format!("agent {i}"))).collect::<StringArray>())),
            ("lists", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(lists))),
            ("again", Arc::new(Float32Array::from(vec![0.5; 1000]))),
        ];
        let table = RecordBatch::try_from_iter(columns).unwrap();
        let bytes = |batches: Vec<RecordBatch>| InputFile::in_memory("table", batches).unwrap();
        let whole = bytes(vec![table.clone()]);
        assert!((1000 * (8 + 4) + 10_000..100_000).contains(&whole.bytes), "{}", whole.bytes);
        for len in [10, 7, 999] {
            let starts = (0..1000).step_by(len);
            let cut = bytes(starts.map(|at| table.slice(at, len.min(1000 - at))).collect());
            assert_eq!(cut.bytes, whole.bytes, "batches of {len} rows");
            let most = cut.row_groups.iter().map(|g| g.bytes).max().unwrap_or(0);
            assert!(most <= whole.bytes * len as u64 / 1000 + 20, "{most} of {} in {len} rows", whole.bytes);
        }
        // A batch of its own adds its own.
        let other = bytes(vec![table.clone(), table.slice(0, 0)]);
        assert_eq!(other.bytes, whole.bytes);
        let copy = RecordBatch::try_from_iter([("t", Arc::new(Int64Array::from_iter_values(0..10)) as ArrayRef)]);
        let one = RecordBatch::try_from_iter([("t", Arc::clone(table.column(0)))]).unwrap();
        let two = bytes(vec![one.clone(), copy.unwrap(), one.clone()]);
        assert_eq!(two.row_groups[0].bytes, two.row_groups[2].bytes);
        assert_eq!(two.row_groups[0].bytes * 2, bytes(vec![one]).bytes);
        assert!((80..1000).contains(&two.row_groups[1].bytes));
    }
}
