//! The passes over the data of one job: what they share, and which of them there must be.
//!
//! ```text
//! order     rows of the input sorted into buckets, where blocks would have to be kept for too long   (exchange)
//! survey    what a piece must know of the whole data set before it can do its work                   (a pass a piece)
//! rehearse  the same for an ordered piece that ran out of room; the pass that found out starts anew
//! convert   the batch
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use indexmap::IndexMap;

use super::budget::{self, Budget, Limits, Needs};
use super::check::{Checked, Summed};
use super::exchange::{self, Exchange};
use super::output::Sizes;
use super::pass::{Check, Conversion, Done, Findings, Merge, Pass, States};
use super::prepare::storage;
use super::provenance::Provenance;
use super::reader::{Feed, Reader};
use super::schedule::{self, Taker};
use super::shuffle::Shuffle;
use super::split::Basis;
use super::tables::Storage;
use super::units::{self, Cuts, Size, Unit};
use crate::connector::{Rehearsed, Room, Survey};
use crate::error::{Error, Result};
use crate::pipeline::{ModulePlan, Pipeline, Surveys};
use crate::progress::{Progress, Totals};
use crate::scratch::Scratch;
use crate::source::Source;
use crate::source::index::Index;
use crate::source::rows::RowGroupRef;

/// What all passes over one index share.
pub(super) struct Passes<'a> {
    pub source: &'a dyn Source,
    pub index: &'a Index,
    pub pipeline: &'a Pipeline,
    pub modules: &'a [ModulePlan],
    pub provenance: Provenance,
    /// How each module's batch is stored.
    pub storage: Vec<Storage>,
    pub scratch: &'a Scratch,
    pub progress: &'a dyn Progress,
    limits: Limits,
    units: Vec<Unit>,
    /// Number of the first unit in the data set.
    pub first_unit: usize,
    /// The row groups that are read.
    groups: Arc<[RowGroupRef]>,
    pub feed: Feed,
    row_bytes: usize,
    must_sort: bool,
    /// Bytes that went through a scratch file to bring the rows into order.
    pub exchanged: u64,
}

/// Bytes of a row that tell where it came from, more or less.
const PROVENANCE: usize = 64;
/// With less room for a stream's rows they would be brought into another order a few at a time.
const SMALLEST_ROOM: usize = 64 << 10;

/// What the data of a job need.
pub(super) fn needs(
    source: &dyn Source,
    index: &Index,
    pipeline: &Pipeline,
    modules: &[ModulePlan],
    sizes: Sizes,
) -> Needs {
    let period = modules.iter().map(|m| m.layout.period()).max().unwrap_or(1) as u64;
    let step_out = modules.iter().map(|m| m.layout.step_bytes()).max().unwrap_or(0);
    // A data set smaller than a row group fills none.
    let steps: u64 = index.entries.iter().map(|e| units::weight(e, period)).fold(0, u64::saturating_add);
    let steps = usize::try_from(steps).unwrap_or(usize::MAX);
    let texts = Provenance::of(index).texts(index).most(steps);
    let all = steps.saturating_mul(step_out + PROVENANCE).saturating_add(texts);
    Needs {
        row_bytes: source.row_bytes(&index.layout).max(1),
        step_in: index.layout.steps.iter().map(|(_, ty)| ty.row_bytes()).sum(),
        step_out,
        period,
        waiting_groups: sizes.groups.min(all),
        group: sizes.largest.min(all),
        keepers: pipeline.keepers(modules) + usize::from(sizes.shuffled),
        again: pipeline.ordered().next().is_some(),
    }
}

/// The data and the job.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub source: &'a dyn Source,
    pub index: &'a Index,
    pub pipeline: &'a Pipeline,
    pub modules: &'a [ModulePlan],
    pub scratch: &'a Scratch,
    pub progress: &'a dyn Progress,
    /// The units, if they are cut already; then row groups without a row of theirs are not read.
    pub cuts: Option<&'a Cuts>,
    /// So many leading pieces see the episodes.
    pub pieces: usize,
}

impl<'a> Passes<'a> {
    /// Shares the memory.
    ///
    /// # Errors
    /// If it is too small for what must be in it.
    pub fn new(work: Work<'a>, budget: Budget, sizes: Sizes) -> Result<Self> {
        let Work { source, index, pipeline, modules, scratch, progress, cuts, pieces: _ } = work;
        let slicing = work.slicing();
        let needs = needs(source, index, pipeline, modules, sizes);
        let step_bytes = needs.step_in.max(needs.step_out);
        let index_bytes = budget::index_bytes(index);
        let cut = |limits: Limits| {
            if let Some(cuts) = cuts {
                return units::along(index, needs.period, cuts);
            }
            let steps = (limits.unit_bytes / step_bytes.max(1)).max(1) as u64;
            units::cut(index, Size { period: needs.period, steps, most: limits.unit_steps, slicing: &slicing })
        };
        let share = |budget: Budget| {
            let mut limits = budget.share(index_bytes, &needs)?;
            let mut units = cut(limits);
            let window = exchange::window_bytes(&units, needs.row_bytes);
            // Beside the rows that are alive, there must be room to go on reading.
            let must_sort = window > (limits.read_bytes - limits.read_bytes / 4) as u64;
            if must_sort {
                limits = budget.share(index_bytes + exchange::routes_bytes(index, &units), &needs)?;
                units = cut(limits);
            } else {
                // What must be alive, and some to go on with; more is of no use.
                let window = usize::try_from(window).unwrap_or(usize::MAX);
                limits.read_bytes = limits.read_bytes.min(budget::READ_AHEAD.saturating_add(window));
            }
            Ok::<_, Error>((limits, units, must_sort))
        };
        let fit = |budget: Budget| {
            let (mut sharing, mut shared) = (budget, share(budget)?);
            // A long episode goes before more threads.
            while shared.1.iter().any(|unit| unit.weight > shared.0.unit_steps)
                && let Some(fewer) = sharing.of_fewer_threads()
            {
                (sharing, shared) = (fewer, share(fewer)?);
            }
            let (limits, units, must_sort) = shared;
            budget.check_units(&units, index, &needs, limits, &|entry| work.why_whole(&slicing, entry))?;
            Ok::<_, Error>((limits, units, must_sort))
        };
        let fitted = fit(budget).map_err(|e| budget.with_enough(e, |larger| fit(larger).is_ok()));
        let (limits, units, must_sort) = fitted?;
        let provenance = Provenance::of(index);
        let storage = storage(modules)?;
        let groups = match cuts {
            Some(_) => needed_groups(source.rows().groups(), index, &units),
            None => source.rows().groups().to_vec(),
        };
        // Nothing in a row group that cannot be read is any episode's.
        let groups: Arc<[RowGroupRef]> = groups.into_iter().filter(|g| index.faults.lost(*g).is_none()).collect();
        let feed = Feed::Input(Arc::clone(&groups));
        let row_bytes = needs.row_bytes;
        Ok(Self {
            source,
            index,
            pipeline,
            modules,
            provenance,
            storage,
            scratch,
            progress,
            limits,
            units,
            first_unit: cuts.map_or(0, |cuts| cuts.first),
            groups,
            feed,
            row_bytes,
            must_sort,
            exchanged: 0,
        })
    }

    /// Brings the rows into the order of the units, over a scratch file, where blocks would have to be kept for too long.
    ///
    /// # Errors
    /// If the rows cannot be read, or the scratch folder cannot be written.
    pub fn sort(mut self) -> Result<Self> {
        if !self.must_sort {
            return Ok(self);
        }
        let of_unit = exchange::buckets(&self.units, self.row_bytes, self.limits.read_bytes / 4);
        let rows = self.source.rows().rows();
        self.progress.begin("sorting rows by episode", Totals { steps: Some(rows), ..Totals::default() });
        let input =
            exchange::Input { source: self.source, groups: &self.groups, index: self.index, progress: self.progress };
        let pool = crate::threads::pool(self.limits.threads)?;
        let fill = || Exchange::fill(input, &self.units, &of_unit, self.scratch, self.limits);
        let filled = pool.install(fill);
        drop(pool);
        let filled = filled.map_err(|e| name_episode(e, self.source, self.index))?;
        self.progress.end();
        for (unit, bucket) in self.units.iter_mut().zip(of_unit) {
            (unit.begin, unit.end) = (u64::from(bucket), u64::from(bucket) + 1);
        }
        self.exchanged = filled.bytes();
        self.limits.block_bytes = filled.largest();
        self.feed = Feed::Exchange(Arc::new(filled));
        Ok(self)
    }

    /// Units that are slices of an episode.
    pub fn slices(&self) -> usize {
        self.units.iter().filter(|unit| unit.cut.slice.is_some()).count()
    }

    /// Threads that work: fewer than there may be, where memory is scarce.
    pub fn threads(&self) -> usize {
        self.limits.threads
    }

    /// Whether everything must happen on one thread, because memory is very scarce.
    pub fn together(&self) -> bool {
        self.limits.together
    }

    /// Bytes of decoded input per block.
    pub fn block_bytes(&self) -> usize {
        self.limits.block_bytes
    }

    /// Room for what a piece keeps, or what is brought into another order.
    pub fn room(&self) -> Room {
        Room { bytes: self.limits.piece_bytes, scratch: self.scratch.clone() }
    }

    /// The same for one of `n` that share it.
    pub fn room_of(&self, n: usize) -> Room {
        Room { bytes: (self.limits.piece_bytes / n.max(1)).max(SMALLEST_ROOM), ..self.room() }
    }

    /// The orders of shuffled streams.
    pub fn shuffles(&self, seed: u64) -> Vec<Shuffle> {
        let room = self.room_of(self.modules.len()).bytes;
        bytes_out(self.index, self.modules).into_iter().map(|bytes| Shuffle::in_steps(seed, bytes, room)).collect()
    }

    /// One pass. `rehearsed` holds what ordered pieces know from a rehearsal, by piece.
    fn once<T: Taker<Done>>(
        &self,
        pass: Pass<'_>,
        surveys: &Surveys,
        rehearsed: &IndexMap<usize, Rehearsed>,
        states: Option<&States>,
        taker: &mut T,
        phase: &str,
    ) -> Result<(), (Error, Option<usize>)> {
        let Self { source, index, pipeline, .. } = self;
        let totals = Totals { episodes: Some(index.entries.len() as u64), steps: Some(index.steps()), bytes: None };
        self.progress.begin(phase, totals);
        let full = AtomicUsize::new(usize::MAX);
        let segments = pipeline.segments(pass.end(pipeline));
        let work = Conversion { passes: self, surveys, pass, segments, rehearsed, states, full: &full };
        let reader = Reader::new(self.feed.clone(), self.limits.readers);
        let result = schedule::run(&work, reader, &self.units, taker, self.limits, self.progress);
        let full = full.load(Ordering::Relaxed);
        result.map_err(|e| (name_episode(e, *source, index), (full != usize::MAX).then_some(full)))?;
        self.progress.end();
        Ok(())
    }

    /// A pass that starts anew, with what `fresh` makes, whenever an ordered piece must rehearse first.
    ///
    /// # Errors
    /// The first thing that is wrong with the data, or with the scratch folder.
    pub fn run<T: Taker<Done>>(
        &self,
        pass: Pass<'_>,
        surveys: &Surveys,
        rehearsed: &mut IndexMap<usize, Rehearsed>,
        phase: &str,
        mut fresh: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        loop {
            let mut taker = fresh()?;
            match self.once(pass, surveys, rehearsed, None, &mut taker, phase) {
                Ok(()) => return Ok(taker),
                Err((_, Some(piece))) if !rehearsed.contains_key(&piece) => {
                    drop(taker);
                    let result = self.rehearse(piece, surveys, rehearsed)?;
                    rehearsed.insert(piece, result);
                }
                Err((error, _)) => return Err(error),
            }
        }
    }

    /// A pass over a part of the data, whose ordered pieces go on where those of the part before stopped.
    ///
    /// # Errors
    /// The first thing that is wrong. A part alone cannot rehearse.
    pub fn part<T: Taker<Done>>(
        &self,
        pass: Pass<'_>,
        surveys: &Surveys,
        states: &States,
        taker: &mut T,
        phase: &str,
    ) -> Result<()> {
        self.once(pass, surveys, &IndexMap::new(), Some(states), taker, phase).map_err(|(error, full)| match full {
            Some(_) => error.hint("give each task a larger memory limit, or run the job on one machine"),
            None => error,
        })
    }

    fn rehearse(&self, piece: usize, surveys: &Surveys, rehearsed: &IndexMap<usize, Rehearsed>) -> Result<Rehearsed> {
        let (observer, mut all) =
            (self.pipeline.rehearsal(piece, self.room())?, self.pipeline.rehearsal(piece, self.room())?);
        let named = |e| self.pipeline.named(piece, e);
        let mut taker = Findings(|(_, finding)| all.merge(finding).map_err(named));
        let pass = Pass::Rehearse { piece, own: &*observer };
        self.once(pass, surveys, rehearsed, None, &mut taker, "counting").map_err(|e| e.0)?;
        all.finish().map_err(named)
    }

    /// What every piece must know of the whole data set, found out in a pass each.
    ///
    /// # Errors
    /// See [`Self::run`].
    pub fn survey(&self, basis: Option<&Basis>, rehearsed: &mut IndexMap<usize, Rehearsed>) -> Result<Surveys> {
        let mut surveys = Surveys::default();
        for piece in 0..self.pipeline.len() {
            let made = || {
                let mut own = self.pipeline.surveys(piece, self.modules)?;
                if let Some(basis) = basis {
                    basis.keep_its_own(self.pipeline, piece, &mut own);
                }
                Some(own)
            };
            let Some(observers) = made() else { continue };
            // Made anew with each start of the pass.
            let own: Mutex<Vec<Option<Box<dyn Survey>>>> = Mutex::default();
            let all_own = || own.lock().unwrap_or_else(PoisonError::into_inner);
            let merge = |(module, finding): (usize, _)| match all_own().get_mut(module) {
                Some(Some(survey)) => Survey::merge(&mut **survey, finding).map_err(|e| self.pipeline.named(piece, e)),
                _ => Err(Error::internal("a finding of no survey")),
            };
            let fresh = || {
                // What a start that did not come through has kept.
                observers.iter().flatten().for_each(|survey| drop(survey.kept()));
                let mut all = made().unwrap_or_default();
                // One module at a time has more; to know which would take another pass.
                let bytes = self.limits.piece_bytes / all.iter().flatten().count().max(1);
                for survey in all.iter_mut().flatten() {
                    survey.enter(Room { bytes, ..self.room() });
                }
                *all_own() = all;
                Ok(Findings(merge))
            };
            self.run(Pass::Survey { piece, own: &observers }, &surveys, rehearsed, "surveying", fresh)?;
            for (module, survey) in observers.iter().enumerate() {
                survey.as_ref().and_then(|s| s.kept()).map_or(Ok(()), |kept| merge((module, kept)))?;
            }
            let finish = |s: Option<Box<dyn Survey>>| s.map(Survey::finish).transpose();
            let results =
                own.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().map(finish).collect::<Result<_>>();
            surveys.set(piece, results.map_err(|e| self.pipeline.named(piece, e))?);
            if let Some(basis) = basis {
                basis.share(self.pipeline, piece, &mut surveys);
            }
        }
        Ok(surveys)
    }

    /// Puts every episode together once, for what is wrong with it; in order and as it comes.
    ///
    /// # Errors
    /// If reading fails for a reason that is not the data's.
    pub fn check(&self, check: Check, mut take: impl FnMut(Checked) -> Result<()> + Send) -> Result<()> {
        let merge: &mut Merge<'_> = &mut |(_, finding)| {
            let found = finding.downcast::<Checked>().map_err(|_| Error::internal("a finding of another pass"))?;
            take(*found)
        };
        let (surveys, none) = (Surveys::default(), IndexMap::new());
        let pass = Pass::Check(check);
        self.once(pass, &surveys, &none, None, &mut Findings(merge), "checking episodes").map_err(|e| e.0)
    }

    /// The sum of each entry's rewards, by the entry's ordinal and as it comes: a pass with no pieces.
    ///
    /// # Errors
    /// If the rows cannot be read.
    pub fn returns(&self, mut take: impl FnMut(u32, Summed) -> Result<()> + Send) -> Result<()> {
        let merge: &mut Merge<'_> = &mut |(_, finding)| {
            let sums = finding.downcast::<Vec<(u32, Summed)>>();
            let sums = sums.map_err(|_| Error::internal("a finding of another pass"))?;
            sums.into_iter().try_for_each(|(ordinal, sum)| take(ordinal, sum))
        };
        let (surveys, none) = (Surveys::default(), IndexMap::new());
        self.once(Pass::Returns, &surveys, &none, None, &mut Findings(merge), "choosing episodes").map_err(|e| e.0)
    }
}

/// Bytes of the rows that each module's episodes make, at most: a step makes one row, and sequences are fewer and as much
/// larger.
pub(super) fn bytes_out(index: &Index, modules: &[ModulePlan]) -> Vec<u64> {
    let mut bytes = vec![0_u64; modules.len()];
    for entry in &index.entries {
        let module = entry.module as usize;
        let step = (modules[module].layout.step_bytes() + PROVENANCE) as u64;
        bytes[module] = bytes[module].saturating_add(entry.steps.saturating_mul(step));
    }
    bytes
}

/// The row groups that hold rows of the units.
fn needed_groups(groups: &[RowGroupRef], index: &Index, units: &[Unit]) -> Vec<RowGroupRef> {
    let mut needed = vec![false; groups.len()];
    for span in units.iter().flat_map(|unit| unit.rows(index)) {
        let first = groups.partition_point(|g| g.first_row + g.rows <= span.first());
        for (group, needed) in groups[first..].iter().zip(&mut needed[first..]) {
            if group.first_row >= span.end() {
                break;
            }
            *needed = *needed || !span.within(group.first_row..group.first_row + group.rows).is_empty();
        }
    }
    groups.iter().zip(needed).filter(|(_, needed)| *needed).map(|(group, _)| *group).collect()
}

/// Decoders know the row that they stumbled over; whose it is, the index knows.
pub(super) fn name_episode(error: Error, source: &dyn Source, index: &Index) -> Error {
    let row = source.rows().row_of(&error);
    let error = source.explain(error, Some(index));
    match row.and_then(|row| index.episode_of(row, source.rows_are_steps())) {
        Some((id, Some(t))) => error.episode(id.to_string()).t(t),
        Some((id, None)) => error.episode(id.to_string()),
        None => error,
    }
}
