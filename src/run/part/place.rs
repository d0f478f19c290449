//! Between the tasks that make rows and those that make shards: which rows make which shards.
//!
//! ```text
//! steps of the order   | unit 0: 90 rows | unit 1: 80 | unit 2: 130 |        or buckets, where rows are shuffled
//! shards of 100 rows   |------ 0 ---------|------ 1 --------|---- 2 ----|
//! tasks                |---------------- shards 0..2 -------|  2..3    |    the second one skips 30 rows of unit 2
//! ```

use std::collections::BTreeMap;

use super::super::pass::Found;
use super::super::prepare::storage;
use super::super::tables::Storage;
use super::coordinator::Coordinator;
use super::rows::Reader;
use super::wire::{PartRows, ShardTask, Step, decode, encode};
use crate::error::{Error, Result};
use crate::sink::{JoinedDigest, ShardSchema};

impl Coordinator {
    /// Which rows make which shards: a task for each few of them. `rows` are the results of all parts, in any order.
    ///
    /// # Errors
    /// If they are not one a part, or the rows cannot be read.
    pub fn place<B: AsRef<[u8]>>(&mut self, rows: &[B]) -> Result<Vec<Vec<u8>>> {
        let mut parts: Vec<PartRows> = rows.iter().map(|bytes| decode(bytes.as_ref())).collect::<Result<_>>()?;
        parts.sort_by_key(|part| part.number);
        if !parts.iter().map(|part| part.number).eq(0..self.parts.len()) {
            return Err(Error::usage(format!(
                "found rows of {} parts, expected one result of each of the {}",
                parts.len(),
                self.parts.len()
            )));
        }
        self.found = Found::default();
        for part in &parts {
            self.found.merge(&part.found);
        }
        let storage = storage(&self.prepared.modules)?;
        let before = steps_before(&storage, &parts);
        let (mut out, mut placed) = (Vec::new(), Vec::new());
        for (stream, schema) in self.schemas.iter().enumerate() {
            let mut steps: Vec<(usize, Step)> = Vec::new();
            let mut buckets: BTreeMap<usize, Step> = BTreeMap::new();
            for part in &mut parts {
                for segment in std::mem::take(&mut part.streams[stream]) {
                    match segment.bucket {
                        Some(bucket) => buckets.entry(bucket).or_default().push((part.number, segment)),
                        None => steps.push((segment.rows, vec![(part.number, segment)])),
                    }
                }
            }
            steps.extend(buckets.into_values().map(|step| (step.iter().map(|(_, s)| s.rows).sum(), step)));
            let before = before.get(stream).map_or(&[][..], Vec::as_slice);
            let tasks = self.shard_tasks(stream, schema, &steps, before)?;
            placed.push(tasks.last().map_or(0, |task| task.shards.end));
            tasks.iter().try_for_each(|task| encode(task).map(|bytes| out.push(bytes)))?;
        }
        self.placed = Some(placed);
        Ok(out)
    }

    fn shard_tasks(
        &self,
        stream: usize,
        schema: &ShardSchema,
        steps: &[(usize, Step)],
        before_parts: &[Vec<i64>],
    ) -> Result<Vec<ShardTask>> {
        let rows: usize = steps.iter().map(|(rows, _)| rows).sum();
        let a_shard = self.job.output.rows_per_shard.max(1);
        let shards = rows.div_ceil(a_shard);
        let a_task = shards.div_ceil(self.tasks.parts.max(1)).max(1);
        let mut offsets: Vec<u64> = schema.columns.iter().map(|(name, ty)| JoinedDigest::new(name, ty).end()).collect();
        let mut reader = Reader::new(self.between.path(), &schema.columns);
        let (mut step, mut before) = (0, 0);
        let mut tasks = Vec::new();
        for first in (0..shards).step_by(a_task) {
            let last = (first + a_task).min(shards);
            let (begin, end) = (first * a_shard, (last * a_shard).min(rows));
            while before + steps[step].0 <= begin {
                for (_, segment) in &steps[step].1 {
                    segment.add_content_bytes(&schema.columns, &mut offsets);
                }
                before += steps[step].0;
                step += 1;
            }
            let skip = begin - before;
            let mut offsets = offsets.clone();
            if skip > 0 {
                let own = reader.content_bytes(&steps[step].1, skip)?;
                offsets.iter_mut().zip(own).for_each(|(at, own)| *at += own);
            }
            let mut reach = before;
            let own = steps[step..].iter().take_while(|(rows, _)| {
                let wanted = reach < end;
                reach += rows;
                wanted
            });
            let steps = own.map(|(_, step)| step.clone()).collect();
            tasks.push(ShardTask {
                stream,
                shards: first..last,
                rows: (end - begin) as u64,
                skip,
                steps,
                offsets,
                before: before_parts.to_vec(),
            });
        }
        Ok(tasks)
    }
}

/// Steps of each table in the parts before each part, by module; nothing for a module without tables.
fn steps_before(storage: &[Storage], parts: &[PartRows]) -> Vec<Vec<Vec<i64>>> {
    let mut stream = storage.len();
    let of_module = |s: &Storage| {
        let own = stream..stream + s.tables.len();
        stream = own.end;
        if own.is_empty() {
            return Vec::new();
        }
        let mut before = vec![0; own.len()];
        let of_part = |part: &PartRows| {
            let out = before.clone();
            for (n, stream) in before.iter_mut().zip(own.clone()) {
                *n += part.streams[stream].iter().map(|segment| segment.rows.cast_signed() as i64).sum::<i64>();
            }
            out
        };
        parts.iter().map(of_part).collect()
    };
    storage.iter().map(of_module).collect()
}
