//! The loop that keeps all threads busy and everything in order.
//!
//! ```text
//! read ──blocks──▶ assemble ──▶ pieces ──rows──▶ cut ──▶ encode ──▶ append ──▶ shards
//! (a task a block)     (a task a unit)                (a task a row group)
//!      └────────── any thread, any order ──────────┘    └──── in order ────┘
//!
//! pieces: free ──▶ gate ──▶ ordered ──▶ gate opens for the next unit
//!                                  └──▶ free ──▶ ...
//! ```
//!
//! A piece that must see units in order has a gate: units wait there for their turn, one at a time passes, and the
//! pieces before and behind run on all threads meanwhile.
//!
//! Tasks run in a rayon pool and never wait for one another; the calling thread only receives their results, puts
//! them in order, and starts what may start next. Where memory is very scarce, the loop runs on the pool's only thread, in
//! turn with the tasks: a thread more is memory that the allocator keeps ([`Limits::together`]). What may start is bounded
//! by bytes (see [`super::budget`]), so memory does not grow with the input.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::{Receiver, unbounded};

use super::budget::Limits;
use super::cutter::Cut;
use super::output::{Encoded, ModuleEncoder};
use super::reader::{Delivery, Placed, ReadTask, Reader};
use super::units::{Unit, still_needed};
use crate::connector::Ordered;
use crate::error::{Error, Result};
use crate::pipeline::Segment;
use crate::progress::{Progress, Step, go_on};
use crate::source::blocks::Blocks;

/// The work itself; the loop knows only its order.
pub(super) trait Work: Sync {
    /// A unit on its way through the pipeline.
    type State: Send;
    /// What a unit brings in the end.
    type Done: Send;
    /// Opens or goes on with a row group.
    fn read(&self, task: ReadTask) -> Delivery;
    /// Puts a unit together.
    fn begin(&self, unit: &Unit, blocks: &Blocks) -> Result<Self::State>;
    /// The pieces, cut where units must come in order.
    fn segments(&self) -> &[Segment];
    /// Fresh states of the ordered pieces, by segment.
    fn start_ordered(&self, piece: usize) -> Result<Box<dyn Ordered>>;
    /// Takes back the state of an ordered piece that has seen every unit.
    ///
    /// # Errors
    /// If it is wanted and cannot be told.
    fn end_ordered(&self, _piece: usize, _machine: &dyn Ordered) -> Result<()> {
        Ok(())
    }
    /// Runs free pieces.
    fn free(&self, pieces: Range<usize>, number: usize, state: &mut Self::State) -> Result<()>;
    /// Runs an ordered piece on the unit whose turn it is.
    fn ordered(&self, piece: usize, machine: &mut dyn Ordered, state: &mut Self::State) -> Result<()>;
    /// What becomes of a unit behind the last piece.
    fn end(&self, number: usize, state: Self::State) -> Result<Self::Done>;
}

/// Where finished units go, in order.
pub(super) trait Taker<D>: Send {
    /// Takes in the next unit.
    fn take(&mut self, done: D) -> Result<()>;
    /// A row group to be encoded, if one is full; with `flush` also what is left.
    ///
    /// # Errors
    /// If scratch space fails.
    fn cut(&mut self, _flush: bool) -> Result<Option<Cut>> {
        Ok(None)
    }
    /// What encoding a cut needs; asked for nothing but cuts of its own.
    fn encoder(&self, _: &Cut) -> Arc<ModuleEncoder> {
        unreachable!("what cuts nothing encodes nothing")
    }
    /// Takes in the next encoded row group.
    fn append(&mut self, _: Encoded) -> Result<()> {
        Ok(())
    }
}

enum Event<W: Work> {
    Read(usize, Delivery),
    /// A unit waits for its turn at the ordered piece of a segment.
    Waits(usize, usize, W::State),
    /// The state of the ordered piece of a segment is free again; `None` if its piece failed.
    Free(usize, Box<dyn Ordered>),
    Done(usize, Result<W::Done>),
    Encoded(usize, Result<Encoded>),
}

/// An ordered piece: its state while no task has it, whose turn is next, and who waits.
struct Gate<S> {
    machine: Option<Box<dyn Ordered>>,
    next: usize,
    waiting: BTreeMap<usize, S>,
}

/// Runs a unit through the segments from `segment` on, until it is done or must wait.
fn advance<W: Work>(work: &W, number: usize, mut segment: usize, mut state: W::State) -> Event<W> {
    let result = guarded(|| {
        while let Some(next) = work.segments().get(segment) {
            match next {
                Segment::Free(pieces) => work.free(pieces.clone(), number, &mut state)?,
                Segment::Ordered(_) => return Ok(Err(state)),
            }
            segment += 1;
        }
        work.end(number, state).map(Ok)
    });
    match result {
        Ok(Ok(done)) => Event::Done(number, Ok(done)),
        Ok(Err(state)) => Event::Waits(number, segment, state),
        Err(e) => Event::Done(number, Err(e)),
    }
}

/// Runs `task`, turning a panic into an error: one broken task must not leave the loop waiting for ever.
fn guarded<T>(task: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(task)).unwrap_or_else(|panic| {
        let what = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::internal(format!("a task panicked: {}", what.unwrap_or("no message")))
            .hint("this is a bug in gristmill; please report it with the job and, if you can, the input"))
    })
}

/// Reads everything, runs every unit through the pieces, and hands the results on in order.
pub(super) fn run<W: Work>(
    work: &W,
    reader: Reader,
    units: &[Unit],
    taker: &mut dyn Taker<W::Done>,
    limits: Limits,
    progress: &dyn Progress,
) -> Result<()> {
    let mut gates: BTreeMap<usize, Gate<W::State>> = BTreeMap::new();
    for (i, segment) in work.segments().iter().enumerate() {
        if let Segment::Ordered(piece) = segment {
            let machine = Some(work.start_ordered(*piece)?);
            gates.insert(i, Gate { machine, next: 0, waiting: BTreeMap::new() });
        }
    }
    let pool = crate::threads::pool(limits.threads)?;
    let own = &mut gates;
    if limits.together {
        pool.install(|| rayon::scope(|scope| drive(scope, work, reader, units, taker, own, limits, progress)))?;
    } else {
        pool.in_place_scope(|scope| drive(scope, work, reader, units, taker, own, limits, progress))?;
    }
    for (segment, gate) in &gates {
        if let (Some(Segment::Ordered(piece)), Some(machine)) = (work.segments().get(*segment), &gate.machine) {
            work.end_ordered(*piece, &**machine)?;
        }
    }
    Ok(())
}

/// The next event. A loop that shares its only thread with the tasks runs one whenever there is nothing to be received.
fn next_event<E>(events: &Receiver<E>, together: bool) -> Result<E> {
    if together {
        loop {
            match events.try_recv() {
                Ok(event) => return Ok(event),
                Err(_) if rayon::yield_now() == Some(rayon::Yield::Executed) => {}
                Err(_) => break,
            }
        }
    }
    events.recv().map_err(|_| Error::internal("all tasks vanished"))
}

#[expect(
    clippy::too_many_arguments,
    reason = "the parts of the loop, named by `run`, which starts it in one of two ways"
)]
fn drive<'s, W: Work>(
    scope: &rayon::Scope<'s>,
    work: &'s W,
    mut reader: Reader,
    units: &'s [Unit],
    taker: &mut dyn Taker<W::Done>,
    gates: &mut BTreeMap<usize, Gate<W::State>>,
    limits: Limits,
    progress: &dyn Progress,
) -> Result<()> {
    let needed = still_needed(units);
    let (send, events) = unbounded::<Event<W>>();
    let mut live: VecDeque<Placed> = VecDeque::new();
    let (mut live_bytes, mut frontier) = (0_usize, 0_u64);
    let (mut reads, mut next_unit, mut finished) = (0_usize, 0_usize, 0_usize);
    // Of the units from `finished` to `next_unit`.
    let mut weight = 0_u64;
    let mut done: BTreeMap<usize, Result<W::Done>> = BTreeMap::new();
    let (mut cuts, mut appended) = (0_usize, 0_usize);
    let mut groups: BTreeMap<usize, Result<Encoded>> = BTreeMap::new();
    // The first error in the order of the data; what comes before it is still finished, so that the same error is
    // told whatever the threads did.
    let mut read_error: Option<Error> = None;

    loop {
        // Blocks whose turn has come.
        while read_error.is_none()
            && let Some(block) = reader.pop()
        {
            match block {
                Ok((place, block)) => {
                    frontier = place.end;
                    live_bytes += block.bytes;
                    live.push_back((place, block));
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

        // Row groups of what units brought, in order.
        while cuts - appended < limits.groups
            && let Some(cut) = taker.cut(finished == units.len())?
        {
            let (send, encoder, number) = (send.clone(), taker.encoder(&cut), cuts);
            scope.spawn(move |_| {
                let result = guarded(|| Encoded::new(cut, &encoder));
                let _ = send.send(Event::Encoded(number, result));
            });
            cuts += 1;
        }

        // Units whose rows are there, as long as what they make is taken.
        while next_unit < units.len()
            && units[next_unit].end <= frontier
            && next_unit - finished < limits.units
            && (next_unit == finished || weight + units[next_unit].weight <= limits.unit_steps)
            && cuts - appended < limits.groups
        {
            let unit = &units[next_unit];
            weight += unit.weight;
            let overlaps = |(place, _): &&Placed| place.start < unit.end && place.end > unit.begin;
            let blocks = Blocks::new(live.iter().filter(overlaps).map(|(_, b)| Arc::clone(b)).collect());
            let (send, number) = (send.clone(), next_unit);
            scope.spawn(move |_| {
                let begun = guarded(|| work.begin(unit, &blocks));
                drop(blocks);
                let event = match begun {
                    Ok(state) => advance(work, number, 0, state),
                    Err(e) => Event::Done(number, Err(e)),
                };
                let _ = send.send(event);
            });
            next_unit += 1;
        }
        while live.front().is_some_and(|(place, _)| place.end <= needed[next_unit]) {
            live_bytes -= live.pop_front().map_or(0, |(_, b)| b.bytes);
        }

        // Ordered pieces whose next unit has arrived.
        for (&segment, gate) in &mut *gates {
            let Some(Segment::Ordered(piece)) = work.segments().get(segment).cloned() else { continue };
            if gate.machine.is_none() || !gate.waiting.contains_key(&gate.next) {
                continue;
            }
            if let (Some(mut machine), Some(mut state)) = (gate.machine.take(), gate.waiting.remove(&gate.next)) {
                let (send, number) = (send.clone(), gate.next);
                gate.next += 1;
                scope.spawn(move |_| {
                    let result = guarded(|| work.ordered(piece, &mut *machine, &mut state));
                    let _ = send.send(Event::Free(segment, machine));
                    let event = match result {
                        Ok(()) => advance(work, number, segment + 1, state),
                        Err(e) => Event::Done(number, Err(e)),
                    };
                    let _ = send.send(event);
                });
            }
        }

        // More reading: ahead within the budget, and the next block always when nothing else could free memory.
        let in_flight = (next_unit - finished) + (cuts - appended);
        loop {
            let coming = (reads + 1) * limits.block_bytes;
            let fits = live_bytes + reader.queued_bytes() + coming <= limits.read_bytes;
            if read_error.is_some() || reads >= limits.readers || !(fits || (in_flight == 0 && reads == 0)) {
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

        if reads == 0 && next_unit == finished && cuts == appended {
            if let Some(e) = read_error {
                return Err(e);
            }
            if next_unit < units.len() {
                return Err(Error::internal(format!("unit {next_unit} waits for rows that no file has")));
            }
            break;
        }

        go_on(progress)?;
        match next_event(&events, limits.together)? {
            Event::Read(number, delivery) => {
                reads -= 1;
                if let Ok((_, Some(block))) = &delivery {
                    progress.advance(Step { bytes: block.bytes as u64, ..Step::default() });
                }
                if read_error.is_none() {
                    reader.deliver(number, delivery);
                }
            }
            Event::Waits(number, segment, state) => {
                if let Some(gate) = gates.get_mut(&segment) {
                    gate.waiting.insert(number, state);
                }
            }
            Event::Free(segment, machine) => {
                if let Some(gate) = gates.get_mut(&segment) {
                    gate.machine = Some(machine);
                }
            }
            Event::Done(number, result) => {
                done.insert(number, result);
                while let Some(result) = done.remove(&finished) {
                    let unit = &units[finished];
                    taker.take(result?)?;
                    progress.advance(Step { episodes: unit.begins as u64, steps: unit.steps, bytes: 0 });
                    finished += 1;
                    weight -= unit.weight;
                }
            }
            Event::Encoded(number, result) => {
                groups.insert(number, result);
                while let Some(result) = groups.remove(&appended) {
                    taker.append(result?)?;
                    appended += 1;
                }
            }
        }
    }
    Ok(())
}
