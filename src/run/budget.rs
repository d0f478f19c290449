//! What of the memory limit each part of a run may hold.
//!
//! ```text
//! limit   |-- base --|-- index --|-- threads --|-- pieces --|------- row groups -------|--- units ---|--- reading ---|
//!          program    entries,    what the      what ordered  cut, joined, encoded      in flight,     decoders, blocks
//!                     spans, ids  allocator     pieces know                             assembled      ahead and alive
//!                                 keeps of each
//! ```
//!
//! What cannot be made smaller (a row group of the output, the index, the largest episode) comes first; what is left is
//! shared by what can: fewer threads, fewer and smaller units, blocks and readers. None of it has an influence on a byte
//! of the output.

use super::units::Unit;
use crate::error::{Error, Kind, Result};
use crate::source::index::{Entry, Index, Span};

const MIB: usize = 1 << 20;

/// The smallest limit that is accepted. With less there is no room beside the program for a block, a unit and a row group
/// of ordinary size.
pub const SMALLEST: u64 = 64 << 20;

/// Bytes that are there before the first row is: the program's pages, stacks, what an allocator keeps.
const BASE: usize = 26 * MIB;
/// Beside its block a reader holds pages, packed and unpacked.
const READER: usize = 10 * MIB;
/// One part of so many of the limit is left to the allocator: what is freed is not given back at once. mimalloc keeps more
/// than the system's allocator of Linux (a peak of 182 MiB against 98 MiB; 5M steps of `make memory`'s log, 2 threads).
const SLACK: usize = 8;
/// What the allocator keeps of each thread but the first one, beside what is in use. Glibc's gives every thread an arena of
/// its own; what a task frees there is not given back while something behind it is in use, and no other thread takes it.
/// With 600,000 steps of 256 floats (`make memory`, `--keepers`) peaks were up to 16 MiB above what is shared here with two
/// threads, and up to 37 MiB with four, at limits from 64 to 128 MiB; 20 to 50 MiB less where each freed buffer was given
/// back at once (`GLIBC_TUNABLES=glibc.malloc.trim_threshold=131072`), which takes unsafe code to ask for from inside.
const ARENA: usize = 16 * MIB;
/// And so much of the limit more, once there are several: with more room more is in flight, and larger, up to where
/// units and blocks have their largest size.
const ARENAS: usize = 16;
/// Large enough that a task outweighs its start, small enough that a few of them are nothing to memory.
const LARGEST_PART: usize = 4 * MIB;
/// Below this, starting tasks is most of the work.
const SMALLEST_PART: usize = 128 << 10;
/// Limits above are not looked at: no machine has as much.
const MOST: usize = usize::MAX >> 8;
/// Decoded input that waits although there is more room: reading further ahead makes nothing faster.
pub(super) const READ_AHEAD: usize = 128 * MIB;

/// How much of what may be in memory at once, while the data are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Threads of the pool.
    pub threads: usize,
    /// Whether the loop that starts tasks and puts their results in order shares the one thread with them.
    pub together: bool,
    /// Row groups that are read at once.
    pub readers: usize,
    /// Bytes of decoded input per block.
    pub block_bytes: usize,
    /// Bytes of decoded input that may wait or be kept.
    pub read_bytes: usize,
    /// Units in flight.
    pub units: usize,
    /// Bytes of steps per unit.
    pub unit_bytes: usize,
    /// Steps of all units in flight, padding included.
    pub unit_steps: u64,
    /// Row groups of the output in flight.
    pub groups: usize,
    /// Bytes that a piece may keep for itself.
    pub piece_bytes: usize,
}

/// What a job's data need, as far as schemas tell.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Needs {
    /// Bytes of an input row, decoded.
    pub row_bytes: usize,
    /// Bytes of a step in the episodes.
    pub step_in: usize,
    /// Bytes of a step in the batch.
    pub step_out: usize,
    /// Steps of a row of the batch.
    pub period: u64,
    /// Bytes of a row group of every stream of shards, together.
    pub waiting_groups: usize,
    /// Bytes of the largest row group.
    pub group: usize,
    /// Pieces that keep something of what they saw.
    pub keepers: usize,
    /// Whether the pass may be given up and started anew, because a piece needs more room than there is.
    pub again: bool,
}

impl Needs {
    /// Bytes that a step of a unit in flight takes: as blocks hold it, put together, and twice as rows of the batch (a
    /// piece makes a new column from an old one; the cutter still holds what is being joined).
    fn step(&self) -> usize {
        (2 * self.step_in + 2 * self.step_out).max(1)
    }
}

/// The memory limit of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    limit: usize,
    threads: usize,
    /// Whether the limit was asked for: then it is told as it was.
    asked: bool,
}

impl Budget {
    /// The limit as asked for, or a quarter of the memory.
    ///
    /// # Errors
    /// If it is too small to work with.
    pub fn new(asked: Option<u64>, threads: usize) -> Result<Self> {
        let limit = asked.unwrap_or_else(|| (memory() / 4).max(SMALLEST));
        if limit < SMALLEST {
            return Err(Error::usage(format!(
                "found a memory limit of {}, expected at least {}",
                exactly(limit),
                exactly(SMALLEST)
            ))
            .hint("leave --memory-limit out for a quarter of the machine's memory"));
        }
        Ok(Self { limit: usize::try_from(limit).unwrap_or(usize::MAX), threads, asked: asked.is_some() })
    }

    /// The limit in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The same for fewer threads, which leaves more to the data; `None` if there is only one.
    pub fn of_fewer_threads(self) -> Option<Self> {
        (self.threads > 1).then_some(Self { threads: self.threads / 2, ..self })
    }

    /// How many threads work where `bytes` are left for them and for what they work on, and what the allocator keeps of
    /// them. The work gets half at least.
    fn threads(&self, bytes: usize) -> (usize, usize) {
        let shared = (self.limit / ARENAS).min(2 * ARENA);
        match self.threads.min(1 + (bytes / 2).saturating_sub(shared) / ARENA) {
            0 | 1 => (1, 0),
            threads => (threads, shared + (threads - 1) * ARENA),
        }
    }

    /// Threads of the first pass.
    pub fn first_threads(&self) -> usize {
        self.threads((self.limit - self.limit / SLACK).saturating_sub(BASE)).0
    }

    /// Bytes that the first pass may hold. While episodes are put together from runs, both are there.
    pub fn first_pass(&self) -> usize {
        (self.limit - BASE) / 3 * 2
    }

    /// How to share what the index leaves.
    ///
    /// # Errors
    /// If the least that the data need is more than there is.
    pub fn share(&self, index: usize, needs: &Needs) -> Result<Limits> {
        let usable = self.limit - self.limit / SLACK;
        let left = usable.saturating_sub(BASE + index);
        // A group in flight is there as pieces or joined, and encoded.
        let in_flight = |n: usize| needs.waiting_groups + n * 2 * needs.group;
        let least = in_flight(1) + READER + needs.step() + 6 * SMALLEST_PART;
        if least > left {
            let (index, groups) = (shown(index as u64), shown(in_flight(1) as u64));
            let what = format!("the index takes {index} and row groups of the output take {groups}");
            return Err(self.too_small(&what).hint("a smaller output.rows_per_shard makes smaller row groups"));
        }
        let (threads, mut kept) = self.threads(left - least);
        // A thread that only starts tasks and puts their results in order keeps no less than one that works.
        let alone = (left - least).checked_sub(3 * ARENA);
        let together = threads == 1 && alone.is_none();
        if let (1, Some(more)) = (threads, alone) {
            kept = more.min(2 * ARENA + (self.limit / ARENAS * 2).min(4 * ARENA));
        }
        if needs.again {
            // What the allocator keeps of a pass that was given up. With 600,000 steps of 256 floats, a filter and counts
            // (`make memory`, `--keepers`) the pass that follows peaked up to 50 MiB higher at 256 MiB, and not at 64.
            kept += (self.limit / 4).saturating_sub(16 * MIB).min(8 * ARENA).min((left - least - kept) / 3);
        }
        let left = left - kept;
        // What pieces keep moves from one table to a larger one, and both are there meanwhile.
        let pieces = if needs.keepers > 0 { (left - least) / 5 } else { 0 };
        let left = left - pieces;
        let groups = (2..=threads + 1).rev().find(|&n| in_flight(n) <= left / 2).unwrap_or(1);
        let left = left - in_flight(groups) - READER;

        let most_units = threads * 2 + 1;
        let for_units = left / 2;
        // How much more a unit takes than its steps.
        let width = needs.step().div_ceil(needs.step_in.max(needs.step_out).max(1));
        let unit_bytes = (for_units / width / most_units).clamp(SMALLEST_PART, LARGEST_PART);
        let units = (for_units / width / unit_bytes).clamp(1, most_units);

        let for_reading = left - for_units;
        let readers = (1 + for_reading / 2 / (READER + LARGEST_PART)).min(threads);
        let read_bytes = for_reading - (readers - 1) * READER;
        let block_bytes = (read_bytes / (4 * readers)).clamp(SMALLEST_PART, LARGEST_PART);
        Ok(Limits {
            threads,
            together,
            readers,
            block_bytes,
            read_bytes,
            units,
            unit_bytes,
            unit_steps: (for_units / needs.step()).max(1) as u64,
            groups,
            piece_bytes: pieces / needs.keepers.max(1),
        })
    }

    /// The error that there is too little memory, with a limit that is enough: one that `fits` says so of.
    pub fn with_enough(self, error: Error, fits: impl Fn(Self) -> bool) -> Error {
        if error.kind() != Kind::Environment {
            return error;
        }
        let of = |limit: usize| Self { limit, ..self };
        let mut small = self.limit;
        let doubled = std::iter::successors(small.checked_mul(2), |limit| limit.checked_mul(2));
        let Some(mut enough) = doubled.take_while(|&limit| limit < MOST).find(|&limit| {
            let enough = fits(of(limit));
            small = if enough { small } else { limit };
            enough
        }) else {
            return error;
        };
        // Some more than needed is no harm.
        let step = |limit: usize| (limit / 32).max(16 * MIB);
        while enough - small > step(enough) {
            let middle = (small + (enough - small) / 2).next_multiple_of(16 * MIB);
            if middle >= enough {
                break;
            }
            *if fits(of(middle)) { &mut enough } else { &mut small } = middle;
        }
        let more = error.hint_text().map_or_else(String::new, |hint| format!("; {hint}"));
        let (mib, beyond) = (enough.div_ceil(MIB), beyond(enough as u64, memory()));
        error.hint_instead(format!("--memory-limit {mib}MiB is enough{beyond}{more}"))
    }

    /// Refuses a unit that alone would take more than there is. `why` an entry is not cut.
    ///
    /// # Errors
    /// If there is such a unit, with its longest episode.
    pub fn check_units(
        &self,
        units: &[Unit],
        index: &Index,
        needs: &Needs,
        limits: Limits,
        why: &dyn Fn(&Entry) -> String,
    ) -> Result<()> {
        let most = limits.unit_steps;
        let too_large = units.iter().filter(|u| u.weight > most);
        let Some(unit) = too_large.max_by_key(|u| u.weight) else { return Ok(()) };
        let entries = unit.cut.entries(index);
        let Some(entry) = entries.iter().max_by_key(|e| e.steps) else { return Ok(()) };
        let needed = usize::try_from(unit.weight).unwrap_or(usize::MAX).saturating_mul(needs.step());
        let what = if entry.slice().is_some() {
            let steps = unit.weight;
            format!("{steps} steps of an episode that make a row or are looked back on take {}", shown(needed as u64))
        } else if entries.len() == 1 {
            format!("an episode of {} steps takes {}", entry.steps, shown(needed as u64))
        } else {
            let (n, steps) = (entries.len(), unit.steps);
            format!("{n} episodes that RLlib's batch keys mix, of {steps} steps, take {}", shown(needed as u64))
        };
        Err(self.too_small(&what).hint(why(entry)).episode(entry.id.to_string()))
    }

    fn too_small(&self, what: &str) -> Error {
        let limit = match self.limit as u64 {
            asked if self.asked => exactly(asked),
            limit => format!("{}, a quarter of the memory", shown(limit)),
        };
        Error::environment(format!("{what}, which does not fit into the memory limit of {limit}"))
    }
}

/// Bytes of an index in memory.
pub(super) fn index_bytes(index: &Index) -> usize {
    let text = |entry: &Entry| match &entry.id {
        crate::episode::EpisodeId::Str(id) => id.len() + 16,
        crate::episode::EpisodeId::Int(_) => 0,
    };
    let agents: usize = index.agents().map(|agent| agent.len() + 16).sum();
    let rare = |entry: &Entry| entry.rare.as_ref().map_or(0, |r| 96 + r.hanging.len() * 16 + r.history.len() * 8);
    let entries = index.entries.capacity() * size_of::<Entry>();
    let behind: usize = index.entries.iter().map(|e| text(e) + rare(e)).sum();
    entries + behind + agents + index.spans.capacity() * size_of::<Span>()
}

/// Bytes of memory that this process may use: the machine's, or less where its control group says so.
fn memory() -> u64 {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let group = system.cgroup_limits().map(|limits| limits.total_memory).filter(|&bytes| bytes > 0);
    group.unwrap_or(u64::MAX).min(system.total_memory())
}

/// Bytes in the largest unit of which they are a whole number: what somebody asked for as 10MB is not 9 MiB.
fn exactly(bytes: u64) -> String {
    const UNITS: [(u64, &str); 6] =
        [(1 << 30, "GiB"), (1_000_000_000, "GB"), (1 << 20, "MiB"), (1_000_000, "MB"), (1 << 10, "KiB"), (1000, "kB")];
    match UNITS.into_iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} {}", if bytes == 1 { "byte" } else { "bytes" }),
    }
}

/// A word on a limit that is larger than the memory there is.
fn beyond(limit: u64, there: u64) -> String {
    if limit > there { format!(", and this machine has {}", shown(there)) } else { String::new() }
}

/// Bytes as text, roughly.
pub(super) fn shown(bytes: u64) -> String {
    match bytes {
        0..0x400 => format!("{bytes} bytes"),
        0x400..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDS: Needs = Needs {
        row_bytes: 100,
        step_in: 100,
        step_out: 100,
        period: 1,
        waiting_groups: 6 << 20,
        group: 6 << 20,
        keepers: 1,
        again: false,
    };

    /// What the shares add up to.
    fn sum(limits: Limits, needs: &Needs, index: usize) -> usize {
        let units = usize::try_from(limits.unit_steps).unwrap() * needs.step();
        let groups = needs.waiting_groups + limits.groups * 2 * needs.group;
        let threads = (limits.threads - 1) * ARENA;
        let pieces = limits.piece_bytes * needs.keepers;
        BASE + index + threads + units + groups + pieces + limits.read_bytes + limits.readers * READER
    }

    #[test]
    fn shares_stay_below_the_limit_and_shrink_with_it() {
        for threads in [1, 2, 16, 128] {
            let mut before: Option<Limits> = None;
            for mib in [80, 96, 128, 256, 1024, 32 << 10] {
                let budget = Budget::new(Some(mib << 20), threads).unwrap();
                let limits = budget.share(3 << 20, &NEEDS).unwrap();
                assert!(sum(limits, &NEEDS, 3 << 20) <= usize::try_from(mib).unwrap() << 20, "{mib} MiB: {limits:?}");
                assert!(
                    limits.units * limits.unit_bytes * 2 <= usize::try_from(limits.unit_steps).unwrap() * NEEDS.step()
                );
                // More threads share what is more.
                if let Some(before) = before.filter(|before| before.threads == limits.threads) {
                    assert!(before.unit_bytes <= limits.unit_bytes && before.groups <= limits.groups, "{mib} MiB");
                }
                before = Some(limits);
            }
            let most = before.unwrap();
            assert_eq!((most.readers, most.units, most.groups), (threads, threads * 2 + 1, threads + 1));
            assert_eq!((most.unit_bytes, most.block_bytes), (LARGEST_PART, LARGEST_PART));
        }
    }

    #[test]
    fn the_work_gets_half_at_least() {
        for (mib, threads) in [64, 100, 256, 512, 4096].into_iter().flat_map(|mib| [1, 2, 7, 64].map(|t| (mib, t))) {
            let budget = Budget::new(Some(mib << 20), threads).unwrap();
            for left in (0..usize::try_from(mib).unwrap()).map(|left| left << 20) {
                let (own, kept) = budget.threads(left);
                assert!(
                    kept <= left / 2 && (1..=threads).contains(&own),
                    "{left} of {mib} MiB: {own} threads keep {kept}"
                );
            }
        }
    }

    #[test]
    fn threads_are_fewer_where_the_allocator_would_keep_what_they_need() {
        let threads = |mib: u64, threads| {
            let budget = Budget::new(Some(mib << 20), threads).unwrap();
            (budget.first_threads(), budget.share(0, &NEEDS).unwrap().threads)
        };
        assert_eq!((threads(64, 1), threads(64, 2), threads(64, 64)), ((1, 1), (1, 1), (1, 1)));
        assert_eq!((threads(96, 2), threads(128, 4), threads(256, 4)), ((2, 1), (3, 2), (4, 4)));
        assert_eq!(threads(16 << 10, 128), (128, 128));
        // What one thread can do with a limit, one of several that may work can, too.
        let small = Budget::new(Some(64 << 20), 8).unwrap().share(0, &NEEDS).unwrap();
        assert_eq!(small, Budget::new(Some(64 << 20), 1).unwrap().share(0, &NEEDS).unwrap());
    }

    #[test]
    fn what_cannot_be_shared_is_refused_with_what_is_enough() {
        let error = Budget::new(Some(1), 1).unwrap_err();
        assert_eq!(
            (error.kind().exit_code(), error.what()),
            (2, "found a memory limit of 1 byte, expected at least 64 MiB")
        );
        for (limit, index) in [(64, 100), (64, 63), (65, 1000), (300, 9000), (1 << 10, 700)] {
            let budget = Budget::new(Some(limit << 20), 1).unwrap();
            let fits = |budget: Budget| budget.share(index << 20, &NEEDS).is_ok();
            let Err(error) = budget.share(index << 20, &NEEDS) else {
                assert_eq!(limit, 1 << 10);
                continue;
            };
            let error = budget.with_enough(error, fits);
            assert_eq!(error.kind().exit_code(), 3);
            let hint = error.hint_text().unwrap();
            assert!(hint.ends_with("; a smaller output.rows_per_shard makes smaller row groups"), "{hint}");
            let enough: usize = hint.split(' ').nth(1).unwrap().trim_end_matches("MiB").parse().unwrap();
            let of = |mib: usize| Budget { limit: mib << 20, ..budget };
            assert!(fits(of(enough)) && !fits(of(enough * 9 / 10 - 17)), "{hint}");
        }
        // What no limit is enough for has no such hint.
        let error = Budget::new(Some(64 << 20), 1).unwrap();
        let error = error.with_enough(Error::environment("x"), |_| false);
        assert_eq!(error.hint_text(), None);
    }

    #[test]
    fn a_limit_is_told_as_it_was_asked_for() {
        let told = |bytes| Budget::new(Some(bytes), 1).unwrap_err().what().to_owned();
        for (bytes, text) in [
            (10_000_000, "10 MB"),
            (10 << 20, "10 MiB"),
            (9_999_999, "9999999 bytes"),
            (5_120, "5 KiB"),
            (0, "0 bytes"),
        ] {
            assert_eq!(told(bytes), format!("found a memory limit of {text}, expected at least 64 MiB"));
        }
        let too_small = |asked| {
            let budget = Budget { limit: 100_000_000, threads: 1, asked };
            budget.too_small("an index of 1 GiB").what().to_owned()
        };
        let told = "an index of 1 GiB, which does not fit into the memory limit of";
        assert_eq!(too_small(true), format!("{told} 100 MB"));
        assert_eq!(too_small(false), format!("{told} 95 MiB, a quarter of the memory"));
        assert_eq!((beyond(2 << 30, 1 << 30).as_str(), beyond(1, 1).as_str()), (", and this machine has 1.0 GiB", ""));
    }

    #[test]
    fn a_machine_has_memory() {
        assert!(memory() >= SMALLEST && memory() < u64::MAX);
        assert!(Budget::new(None, 4).is_ok());
    }
}
