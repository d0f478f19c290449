//! The second pass's read side: row groups decoded ahead, blocks handed out in row order.
//!
//! Each row group is a sequential decoder. Several run at once, one task a block, so no thread ever waits inside
//! the pool. Blocks of later row groups queue until it is their turn; the budget bounds what queues and lives.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::Result;
use crate::source::BlockIter;
use crate::source::blocks::Block;
use crate::source::rows::RowGroupRef;

/// A row group being read.
struct Open {
    number: usize,
    group: RowGroupRef,
    /// The decoder, unless a task has it. `None` before the first task opened it, too.
    decoder: Option<BlockIter>,
    busy: bool,
    done: bool,
    queue: VecDeque<Result<Block>>,
}

/// What to do next.
pub(super) struct ReadTask {
    /// Which row group, for [`Reader::deliver`].
    pub number: usize,
    /// The row group itself.
    pub group: RowGroupRef,
    /// Its decoder, if it was opened before.
    pub decoder: Option<BlockIter>,
}

/// What a task brings back: the decoder and its next block (`None` at the end).
pub(super) type Delivery = Result<(BlockIter, Option<Block>)>;

/// Reads row groups ahead and hands out their blocks in order.
pub(super) struct Reader {
    groups: Vec<RowGroupRef>,
    next: usize,
    open: VecDeque<Open>,
    ahead: usize,
    queued_bytes: usize,
}

impl Reader {
    /// Reads `groups` in order, at most `ahead` of them at once.
    pub fn new(groups: Vec<RowGroupRef>, ahead: usize) -> Self {
        Self { groups, next: 0, open: VecDeque::new(), ahead: ahead.max(1), queued_bytes: 0 }
    }

    /// Bytes of decoded blocks that wait for their turn.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// A task to start now, if there is one. Without `may_run_ahead` only the row group whose turn it is.
    pub fn task(&mut self, may_run_ahead: bool) -> Option<ReadTask> {
        while self.open.len() < self.ahead && self.next < self.groups.len() {
            let (number, group) = (self.next, self.groups[self.next]);
            self.open.push_back(Open {
                number,
                group,
                decoder: None,
                busy: false,
                done: false,
                queue: VecDeque::new(),
            });
            self.next += 1;
        }
        let reach = if may_run_ahead { self.open.len() } else { 1.min(self.open.len()) };
        let open = self.open.iter_mut().take(reach).find(|o| !o.busy && !o.done)?;
        open.busy = true;
        Some(ReadTask { number: open.number, group: open.group, decoder: open.decoder.take() })
    }

    /// Takes back what a task brought.
    pub fn deliver(&mut self, number: usize, delivery: Delivery) {
        let Some(open) = self.open.iter_mut().find(|o| o.number == number) else { return };
        open.busy = false;
        match delivery {
            Ok((decoder, Some(block))) => {
                self.queued_bytes += block.bytes;
                open.decoder = Some(decoder);
                open.queue.push_back(Ok(block));
            }
            Ok((_, None)) => open.done = true,
            Err(e) => {
                open.done = true;
                open.queue.push_back(Err(e));
            }
        }
    }

    /// The next block in row order, once it is there.
    pub fn pop(&mut self) -> Option<Result<Arc<Block>>> {
        loop {
            let front = self.open.front_mut()?;
            if let Some(block) = front.queue.pop_front() {
                return Some(block.map(|b| {
                    self.queued_bytes -= b.bytes;
                    Arc::new(b)
                }));
            }
            if !front.done {
                return None;
            }
            self.open.pop_front();
        }
    }

    /// Whether every block was handed out.
    pub fn finished(&self) -> bool {
        self.open.is_empty() && self.next == self.groups.len()
    }

    /// Reads nothing more.
    pub fn stop(&mut self) {
        self.next = self.groups.len();
        self.open.clear();
        self.queued_bytes = 0;
    }
}
