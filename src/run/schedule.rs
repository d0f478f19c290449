//! The loop that keeps all threads busy and everything in order.
//!
//! ```text
//! read ──blocks──▶ assemble + pipeline ──rows──▶ cut ──▶ encode ──▶ append ──▶ shards
//! (a task a block)   (a task a unit)                   (a task a row group)
//!      └────────── any thread, any order ──────────┘     └──── in order ────┘
//! ```
//!
//! Tasks run in a rayon pool and never wait for one another; the calling thread only receives their results, puts
//! them in order, and starts what may start next. What may start is bounded by bytes, so memory does not grow with
//! the input.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::{Sender, unbounded};

use super::cutter::{Cut, Rows};
use super::output::{Encoded, Output};
use super::reader::{Delivery, ReadTask, Reader};
use super::units::{Unit, still_needed};
use crate::error::{Error, Result};
use crate::progress::{Progress, Step};
use crate::source::blocks::{Block, Blocks};

/// What a unit brings back.
#[derive(Debug)]
pub(super) struct Compiled<R> {
    /// Its rows.
    pub rows: Rows,
    /// What else its task found out, to be merged in order.
    pub report: R,
}

/// The work itself; the loop knows only its order.
pub(super) trait Work: Sync {
    /// What a unit's task finds out besides rows.
    type Report: Send;
    /// Opens or goes on with a row group.
    fn read(&self, task: ReadTask) -> Delivery;
    /// Puts a unit together and runs the pipeline on it.
    fn compile(&self, unit: &Unit, blocks: &Blocks) -> Result<Compiled<Self::Report>>;
}

/// Limits that have no influence on the result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Threads of the pool.
    pub threads: usize,
    /// Bytes of decoded input that may wait.
    pub read_bytes: usize,
}

enum Event<R> {
    Read(usize, Delivery),
    Compiled(usize, Result<Compiled<R>>),
    Encoded(usize, Result<Encoded>),
}

/// Runs `task`, turning a panic into an error: one broken task must not leave the loop waiting for ever.
fn guarded<T>(task: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(task)).unwrap_or_else(|panic| {
        let what = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::internal(format!("a task panicked: {}", what.unwrap_or("no message")))
            .hint("this is a bug in gristmill; please report it with the job and, if you can, the input"))
    })
}

/// Reads, compiles and writes everything. `merge` gets the units' reports in order.
pub(super) fn run<W: Work>(
    work: &W,
    mut reader: Reader,
    units: &[Unit],
    output: &mut Output,
    limits: Limits,
    progress: &dyn Progress,
    mut merge: impl FnMut(W::Report),
) -> Result<()> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(limits.threads)
        .thread_name(|i| format!("gristmill-{i}"))
        .build()
        .map_err(|e| Error::environment(format!("cannot start {} threads: {e}", limits.threads)))?;
    let needed = still_needed(units);
    let encoder = output.encoder();
    let max_units = limits.threads * 2 + 1;
    let max_groups = limits.threads + 1;

    pool.in_place_scope(|scope| {
        let (send, events) = unbounded::<Event<W::Report>>();
        let mut live: VecDeque<Arc<Block>> = VecDeque::new();
        let (mut live_bytes, mut frontier) = (0_usize, 0_u64);
        let (mut reads, mut next_unit, mut consumed) = (0_usize, 0_usize, 0_usize);
        let mut compiled: BTreeMap<usize, Result<Compiled<W::Report>>> = BTreeMap::new();
        let (mut cuts, mut appended) = (0_usize, 0_usize);
        let mut groups: BTreeMap<usize, Result<Encoded>> = BTreeMap::new();
        // The first error in the order of the data; what comes before it is still finished, so that the same error is
        // told whatever the threads did.
        let mut read_error: Option<Error> = None;

        let start_encode = |cut: Cut, number: usize, send: &Sender<_>| {
            let (send, encoder) = (send.clone(), Arc::clone(&encoder));
            scope.spawn(move |_| {
                let result = guarded(|| Encoded::new(&cut, &encoder));
                let _ = send.send(Event::Encoded(number, result));
            });
        };

        loop {
            // Blocks whose turn has come.
            while read_error.is_none()
                && let Some(block) = reader.pop()
            {
                match block {
                    Ok(block) => {
                        frontier = block.first_row + block.rows;
                        live_bytes += block.bytes;
                        live.push_back(block);
                    }
                    Err(e) => {
                        read_error = Some(e);
                        reader.stop();
                    }
                }
            }
            if reader.finished() && read_error.is_none() {
                frontier = u64::MAX;
            }

            // Units whose rows are there, as long as what they make is taken.
            while next_unit < units.len()
                && units[next_unit].end <= frontier
                && next_unit - consumed < max_units
                && cuts - appended < max_groups
            {
                let unit = &units[next_unit];
                let overlaps = |b: &&Arc<Block>| b.first_row < unit.end && b.first_row + b.rows > unit.begin;
                let blocks = Blocks::new(live.iter().filter(overlaps).cloned().collect());
                let (send, number) = (send.clone(), next_unit);
                scope.spawn(move |_| {
                    let result = guarded(|| work.compile(unit, &blocks));
                    drop(blocks);
                    let _ = send.send(Event::Compiled(number, result));
                });
                next_unit += 1;
            }
            while live.front().is_some_and(|b| b.first_row + b.rows <= needed[next_unit]) {
                live_bytes -= live.pop_front().map_or(0, |b| b.bytes);
            }

            // More reading: ahead within the budget, and the next block always when nothing else could free memory.
            let in_flight = (next_unit - consumed) + (cuts - appended);
            loop {
                let fits = live_bytes + reader.queued_bytes() < limits.read_bytes;
                if read_error.is_some() || reads >= limits.threads || !(fits || (in_flight == 0 && reads == 0)) {
                    break;
                }
                let Some(task) = reader.task(fits) else { break };
                let (send, number) = (send.clone(), task.number);
                scope.spawn(move |_| {
                    let result = guarded(|| work.read(task));
                    let _ = send.send(Event::Read(number, result));
                });
                reads += 1;
            }

            if reads == 0 && next_unit == consumed && cuts == appended {
                if let Some(e) = read_error {
                    return Err(e);
                }
                if next_unit < units.len() {
                    return Err(Error::internal(format!("unit {next_unit} waits for rows that no file has")));
                }
                break;
            }

            match events.recv().map_err(|_| Error::internal("all tasks vanished"))? {
                Event::Read(number, delivery) => {
                    reads -= 1;
                    if let Ok((_, Some(block))) = &delivery {
                        progress.advance(Step { bytes: block.bytes as u64, ..Step::default() });
                    }
                    if read_error.is_none() {
                        reader.deliver(number, delivery);
                    }
                }
                Event::Compiled(number, result) => {
                    compiled.insert(number, result);
                    while let Some(result) = compiled.remove(&consumed) {
                        let Compiled { rows, report } = result?;
                        let unit = &units[consumed];
                        progress.advance(Step { episodes: unit.entries.len() as u64, steps: unit.steps, bytes: 0 });
                        merge(report);
                        output.push(rows);
                        consumed += 1;
                        let last = consumed == units.len();
                        while let Some(cut) = output.cut(last) {
                            start_encode(cut, cuts, &send);
                            cuts += 1;
                        }
                    }
                }
                Event::Encoded(number, result) => {
                    groups.insert(number, result);
                    while let Some(result) = groups.remove(&appended) {
                        output.append(result?)?;
                        appended += 1;
                    }
                }
            }
        }
        Ok(())
    })
}
