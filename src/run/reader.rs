//! The second pass's read side: row groups decoded ahead, blocks handed out in row order.
//!
//! What is read has parts: the row groups of the input, or the buckets of an [`Exchange`]. Each part is a sequential
//! decoder. Several run at once, one task a block, so no thread ever waits inside the pool. Blocks of later parts queue
//! until it is their turn; the budget bounds what queues and lives.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::exchange::Exchange;
use crate::error::Result;
use crate::source::BlockIter;
use crate::source::blocks::Block;
use crate::source::rows::RowGroupRef;

/// Where blocks come from.
#[derive(Clone)]
pub(super) enum Feed {
    /// The input, in its own order.
    Input(Arc<[RowGroupRef]>),
    /// The input, sorted into buckets.
    Exchange(Arc<Exchange>),
}

impl Feed {
    fn parts(&self) -> usize {
        match self {
            Self::Input(groups) => groups.len(),
            Self::Exchange(exchange) => exchange.len(),
        }
    }

    /// Where a block stands in what units wait for: its rows, or its bucket.
    fn place(&self, part: usize, block: &Block) -> Range<u64> {
        match self {
            Self::Input(_) if block.rows.is_empty() => 0..0,
            Self::Input(_) => block.rows.at(0)..block.rows.end(),
            Self::Exchange(_) => part as u64..part as u64 + 1,
        }
    }
}

/// A part being read.
struct Open {
    number: usize,
    /// The decoder, unless a task has it. `None` before the first task opened it, too.
    decoder: Option<BlockIter>,
    busy: bool,
    done: bool,
    queue: VecDeque<Result<Block>>,
}

/// What to do next.
pub(super) struct ReadTask {
    /// Which part.
    pub number: usize,
    /// Its decoder, if it was opened before.
    pub decoder: Option<BlockIter>,
}

/// What a task brings back: the decoder and its next block (`None` at the end).
pub(super) type Delivery = Result<(BlockIter, Option<Block>)>;

/// A block whose turn has come, and where it stands.
pub(super) type Placed = (Range<u64>, Arc<Block>);

/// Reads parts ahead and hands out their blocks in order.
pub(super) struct Reader {
    feed: Feed,
    parts: usize,
    next: usize,
    open: VecDeque<Open>,
    ahead: usize,
    queued_bytes: usize,
}

impl Reader {
    /// Reads the parts of `feed` in order, at most `ahead` of them at once.
    pub fn new(feed: Feed, ahead: usize) -> Self {
        let parts = feed.parts();
        Self { feed, parts, next: 0, open: VecDeque::new(), ahead: ahead.max(1), queued_bytes: 0 }
    }

    /// Bytes of decoded blocks that wait for their turn.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// A task to start now, if there is one. Without `may_run_ahead` only the part whose turn it is.
    pub fn task(&mut self, may_run_ahead: bool) -> Option<ReadTask> {
        while self.open.len() < self.ahead && self.next < self.parts {
            let queue = VecDeque::new();
            self.open.push_back(Open { number: self.next, decoder: None, busy: false, done: false, queue });
            self.next += 1;
        }
        let reach = if may_run_ahead { self.open.len() } else { 1.min(self.open.len()) };
        let open = self.open.iter_mut().take(reach).find(|o| !o.busy && !o.done)?;
        open.busy = true;
        Some(ReadTask { number: open.number, decoder: open.decoder.take() })
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

    /// The next block in order, once it is there.
    pub fn pop(&mut self) -> Option<Result<Placed>> {
        loop {
            let front = self.open.front_mut()?;
            if let Some(block) = front.queue.pop_front() {
                return Some(block.map(|b| {
                    self.queued_bytes -= b.bytes;
                    (self.feed.place(front.number, &b), Arc::new(b))
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
        self.open.is_empty() && self.next == self.parts
    }

    /// Reads nothing more.
    pub fn stop(&mut self) {
        self.next = self.parts;
        self.open.clear();
        self.queued_bytes = 0;
    }
}
