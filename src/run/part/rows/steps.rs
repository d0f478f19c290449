//! The rows that shards are made of, in their order.

use super::{Reader, is_shuffled};
use crate::connector::Room;
use crate::error::Result;
use crate::run::cutter::Rows;
use crate::run::part::wire::Step;
use crate::run::shuffle::{self, Part, Shuffle, Shuffler};

/// The rows of steps one after the other, as many at once as there is room for.
pub(in super::super) struct Steps<'a> {
    left: std::slice::Iter<'a, Step>,
    reader: Reader<'a>,
    /// The order whose buckets they are.
    order: Option<Shuffle>,
    room: Room,
    /// What sorts a bucket that is too large.
    finer: Option<Shuffler>,
}

impl<'a> Steps<'a> {
    pub fn new(steps: &'a [Step], reader: Reader<'a>, order: Option<Shuffle>, room: Room) -> Self {
        Self { left: steps.iter(), reader, order, room, finer: None }
    }

    /// The next rows in their order.
    ///
    /// # Errors
    /// If a file cannot be read, or scratch space fails.
    pub fn next(&mut self) -> Result<Option<Rows>> {
        loop {
            if let Some(finer) = &mut self.finer {
                if let Some(rows) = finer.next()? {
                    return Ok(Some(rows));
                }
                self.finer = None;
            }
            let Some(step) = self.left.next() else { return Ok(None) };
            let views = shuffle::views(self.reader.schema);
            let bytes: u64 = step.iter().map(|(_, segment)| segment.bytes() + segment.rows as u64 * views).sum();
            // A bucket that is sorted is there twice.
            let finer =
                match self.order.filter(|_| is_shuffled(step) && shuffle::is_too_large(bytes, self.room.bytes / 2)) {
                    Some(order) => order.finer(bytes, self.room.bytes),
                    None => None,
                };
            let Some(finer) = finer else { return self.reader.step(step).map(Some) };
            let mut shuffler = Shuffler::new(finer, self.reader.schema, self.room.clone());
            for (number, segment) in step {
                let Part { keys, rows } = self.reader.segment(*number, segment, |_| true)?;
                shuffler.push(finer.scatter(rows, keys))?;
            }
            self.finer = Some(shuffler);
        }
    }
}
