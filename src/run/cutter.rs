//! Re-cuts the rows that units bring into the row groups and shards of the output.
//!
//! ```text
//! units        |--- 0 ---|- 1 -|------- 2 -------|          any number of rows
//! row groups   |== 0 ==|== 1 ==|== 2 ==|= 3 =|              exactly `group_rows`, but for the last one of a shard
//! shards       |------- 0 -----|------- 1 ---|              exactly `shard_rows`, but for the last one
//! ```
//!
//! Where the cuts fall depends on the number of rows alone, so the output does not know how the input was cut.

use std::collections::VecDeque;

use crate::error::Result;
use crate::sink::{ColumnData, ColumnType, RowGroupData, ShardSchema};

/// Rows of one module in order, as columns of [`ColumnData`].
#[derive(Debug, Clone)]
pub(super) struct Rows {
    /// Number of rows.
    pub rows: usize,
    /// The columns, all of that length.
    pub columns: Vec<ColumnData>,
}

/// A row group to be encoded: pieces of units, to be joined column by column.
#[derive(Debug)]
pub(super) struct Cut {
    /// Which stream of shards it belongs to.
    pub stream: usize,
    /// Which shard of it.
    pub shard: usize,
    /// Whether the shard is complete with it.
    pub ends_shard: bool,
    /// Number of rows.
    pub rows: usize,
    pieces: Vec<(std::sync::Arc<Rows>, usize, usize)>,
}

impl Rows {
    /// All rows of `parts`, one after the other.
    pub fn joined(schema: &[(String, ColumnType)], parts: Vec<Self>) -> Result<Self> {
        let rows = parts.iter().map(|part| part.rows).sum();
        // By column, so that each column's parts are freed once it is joined.
        let mut by_column: Vec<Vec<ColumnData>> = schema.iter().map(|_| Vec::with_capacity(parts.len())).collect();
        for part in parts {
            for (column, data) in by_column.iter_mut().zip(part.columns) {
                column.push(data);
            }
        }
        let columns = schema.iter().zip(by_column).map(|((_, ty), parts)| ColumnData::concat(ty, &parts));
        Ok(Self { rows, columns: columns.collect::<Result<_>>()? })
    }

    /// `len` rows from `start` on.
    pub fn slice(&self, start: usize, len: usize) -> Self {
        Self { rows: len, columns: self.columns.iter().map(|c| c.slice(start, len)).collect() }
    }
}

impl Cut {
    /// The rows, each column in one piece.
    pub fn join(&self, schema: &ShardSchema) -> Result<RowGroupData> {
        let column = |(c, (_, ty)): (usize, &(String, ColumnType))| {
            let parts = self.pieces.iter().map(|(unit, start, len)| unit.columns[c].slice(*start, *len));
            ColumnData::concat(ty, &parts.collect::<Vec<_>>())
        };
        let columns = schema.columns.iter().enumerate().map(column).collect::<Result<_>>()?;
        Ok(RowGroupData { rows: self.rows, columns })
    }
}

/// Collects rows and gives out row groups.
#[derive(Debug)]
pub(super) struct Cutter {
    stream: usize,
    shard_rows: usize,
    group_rows: usize,
    shard: usize,
    in_shard: usize,
    waiting: VecDeque<(std::sync::Arc<Rows>, usize)>,
    waiting_rows: usize,
}

impl Cutter {
    pub fn new(stream: usize, shard_rows: usize, group_rows: usize) -> Self {
        let group_rows = group_rows.clamp(1, shard_rows.max(1));
        Self {
            stream,
            shard_rows: shard_rows.max(1),
            group_rows,
            shard: 0,
            in_shard: 0,
            waiting: VecDeque::new(),
            waiting_rows: 0,
        }
    }

    /// The same for rows that begin with shard number `shard`.
    #[must_use]
    pub fn starting_at(self, shard: usize) -> Self {
        Self { shard, ..self }
    }

    /// Adds the rows of the next unit.
    pub fn push(&mut self, rows: Rows) {
        if rows.rows > 0 {
            self.waiting_rows += rows.rows;
            self.waiting.push_back((std::sync::Arc::new(rows), 0));
        }
    }

    /// The next row group: a full one, or with `flush` whatever is left.
    pub fn next(&mut self, flush: bool) -> Option<Cut> {
        let want = self.group_rows.min(self.shard_rows - self.in_shard);
        if self.waiting_rows == 0 || (self.waiting_rows < want && !flush) {
            return None;
        }
        let rows = want.min(self.waiting_rows);
        let (mut pieces, mut left) = (Vec::new(), rows);
        while left > 0 {
            let (unit, start) = self.waiting.front_mut()?;
            let len = left.min(unit.rows - *start);
            pieces.push((std::sync::Arc::clone(unit), *start, len));
            *start += len;
            left -= len;
            if *start == unit.rows {
                self.waiting.pop_front();
            }
        }
        self.waiting_rows -= rows;
        self.in_shard += rows;
        let ends_shard = self.in_shard == self.shard_rows || (flush && self.waiting_rows == 0);
        let cut = Cut { stream: self.stream, shard: self.shard, ends_shard, rows, pieces };
        if ends_shard {
            self.shard += 1;
            self.in_shard = 0;
        }
        Some(cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DType, Tensor, TensorType};

    fn unit(values: &[i32]) -> Rows {
        Rows { rows: values.len(), columns: vec![ColumnData::Tensor(Tensor::from_values::<i32>([], values))] }
    }

    /// Shard, end of shard and values of every row group.
    fn cut(units: &[&[i32]], shard_rows: usize, group_rows: usize) -> Vec<(usize, bool, Vec<i32>)> {
        let (mut cutter, mut out) = (Cutter::new(0, shard_rows, group_rows), Vec::new());
        let schema = ShardSchema::new(vec![("x".to_owned(), ColumnType::Tensor(TensorType::new(DType::Int32, [])))]);
        let mut take = |cutter: &mut Cutter, flush| {
            while let Some(cut) = cutter.next(flush) {
                let data = cut.join(&schema).unwrap();
                let ColumnData::Tensor(t) = &data.columns[0] else { panic!("a tensor") };
                out.push((cut.shard, cut.ends_shard, t.values::<i32>().to_vec()));
            }
        };
        for values in units {
            cutter.push(unit(values));
            take(&mut cutter, false);
        }
        take(&mut cutter, true);
        out
    }

    #[test]
    fn cuts_do_not_depend_on_units() {
        let want = vec![(0, false, vec![0, 1]), (0, true, vec![2]), (1, false, vec![3, 4]), (1, true, vec![5])];
        assert_eq!(cut(&[&[0, 1, 2, 3, 4, 5]], 3, 2), want);
        assert_eq!(cut(&[&[0], &[], &[1, 2, 3], &[4], &[5]], 3, 2), want);
        assert_eq!(
            cut(&[&[0, 1, 2, 3], &[4]], 100, 2),
            [(0, false, vec![0, 1]), (0, false, vec![2, 3]), (0, true, vec![4])]
        );
        assert!(cut(&[&[]], 3, 2).is_empty());
    }
}
