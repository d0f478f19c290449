//! One pass over the data: assemble, run the pieces, and hand on what it is for.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::check::{self, Checked, Summed};
use super::cutter::{Cut, Rows};
use super::output::{Brought, Encoded, ModuleEncoder, Outputs};
use super::passes::Passes;
use super::reader::{Delivery, Feed, ReadTask};
use super::schedule::{Taker, Work};
use super::shuffle::Shuffle;
use super::units::Unit;
use crate::batch::ModuleBatch;
use crate::connector::{Finding, ModuleUnit, Ordered, Rehearsal, Rehearsed, Repairs};
use crate::error::Result;
use crate::pipeline::{Pipeline, Segment, Surveys, keeps_promise};
use crate::sink::ColumnData;
use crate::source::Noticed;
use crate::source::blocks::Blocks;
use crate::source::faults::is_of_data;
use crate::source::index::Entry;

/// What units found out besides rows.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Found {
    pub repairs: Repairs,
    pub noticed: Noticed,
    pub episodes_out: u64,
    pub steps_out: u64,
    pub pipeline_steps_out: u64,
    /// Of the check pass.
    #[serde(skip)]
    pub checked: Checked,
}

impl Found {
    pub fn merge(&mut self, unit: &Self) {
        self.repairs.merge(&unit.repairs);
        self.noticed.merge(&unit.noticed);
        self.episodes_out += unit.episodes_out;
        self.steps_out += unit.steps_out;
        self.pipeline_steps_out += unit.pipeline_steps_out;
    }
}

/// Surveys of a piece, one a module. Those that look at units are twins of those that findings are merged into: a lock
/// around both could be taken twice by a thread that waits inside the pool and helps out meanwhile.
pub(super) type Surveyors = [Option<Box<dyn crate::connector::Survey>>];

/// What is tried with every episode.
#[derive(Debug, Clone, Copy)]
pub(super) struct Check {
    /// Bring the sums of rewards, too.
    pub returns: bool,
    /// So many leading pieces; see [`Pipeline::alone`].
    pub pieces: usize,
}

/// What a pass over the data is for.
#[derive(Clone, Copy)]
pub(super) enum Pass<'a> {
    /// Which chunks cannot be put together; and, if asked for, the sums of rewards of the others.
    Check(Check),
    /// The sums of rewards.
    Returns,
    /// What a piece must know beforehand.
    Survey { piece: usize, own: &'a Surveyors },
    /// What an ordered piece must know beforehand.
    Rehearse { piece: usize, own: &'a dyn Rehearsal },
    /// What ordered pieces know behind the last unit.
    Order,
    /// The batch; its rows in these orders, by stream, or in that of the data if there are none.
    Convert(&'a [Shuffle]),
}

impl Pass<'_> {
    /// The pieces before this one run.
    pub fn end(self, pipeline: &Pipeline) -> usize {
        match self {
            Pass::Check(_) | Pass::Returns => 0,
            Pass::Survey { piece, .. } | Pass::Rehearse { piece, .. } => piece,
            Pass::Order => pipeline.ordered().last().map_or(0, |piece| piece + 1),
            Pass::Convert(_) => pipeline.len(),
        }
    }
}

/// One pass over the data of one job.
pub(super) struct Conversion<'a> {
    pub passes: &'a Passes<'a>,
    pub surveys: &'a Surveys,
    pub pass: Pass<'a>,
    pub segments: Vec<Segment>,
    pub rehearsed: &'a IndexMap<usize, Rehearsed>,
    /// What ordered pieces know from units before the first one, if these are not all.
    pub states: Option<&'a States>,
    /// The ordered piece that failed for want of room.
    pub full: &'a AtomicUsize,
}

/// What ordered pieces know, by piece: before the first unit of a pass, and behind the last one.
#[derive(Debug, Default)]
pub(super) struct States {
    /// Nothing for the first part of a data set.
    pub before: BTreeMap<usize, Vec<u8>>,
    pub behind: Mutex<BTreeMap<usize, Vec<u8>>>,
}

/// A unit on its way.
pub(super) struct State {
    unit: Vec<ModuleUnit>,
    /// Steps of its chunk before it, if it is a slice of one.
    start: u64,
    found: Found,
}

/// What a unit brings in the end.
pub(super) struct Done {
    /// Rows by module, and the steps of its tables.
    pub rows: Vec<(usize, Brought, Vec<Rows>)>,
    findings: Vec<(usize, Finding)>,
    pub found: Found,
}

#[cfg(test)]
impl Done {
    /// Nothing but rows.
    pub fn of_rows(rows: Vec<(usize, Brought, Vec<Rows>)>) -> Self {
        Self { rows, findings: Vec::new(), found: Found::default() }
    }
}

impl Conversion<'_> {
    /// Puts entries together, all at once or else one by one, and keeps what is wrong with those that cannot be.
    fn try_each(&self, entries: &[&Entry], blocks: &Blocks, check: Check, out: &mut Checked) -> Result<()> {
        let mut noticed = Noticed::default();
        let start = entries.first().map_or(0, |e| e.start());
        let tried =
            self.passes.source.assemble(self.passes.index, entries, blocks, &mut noticed).and_then(|episodes| {
                let sums = if check.returns { Summed::of(&episodes, start)? } else { Vec::new() };
                let not_finite = check::not_finite(entries, &episodes, &sums, &self.passes.index.spans)?;
                let module = entries.first().map_or(0, |e| e.module as usize);
                let mut unit = [ModuleUnit { module, episodes, batch: ModuleBatch::default() }];
                let mut repairs = Repairs::default();
                self.passes.pipeline.apply(
                    0..check.pieces,
                    self.passes.modules,
                    self.surveys,
                    0,
                    &mut unit,
                    &mut repairs,
                )?;
                Ok((sums, not_finite))
            });
        match tried {
            Ok((sums, not_finite)) => {
                out.not_finite.merge(&not_finite);
                match entries {
                    [slice] if slice.slice().is_some() => out.of_slices.push((slice.ordinal, noticed)),
                    _ => out.noticed.merge(&noticed),
                }
                out.returns.extend(entries.iter().map(|e| e.ordinal).zip(sums));
                Ok(())
            }
            Err(e) if !is_of_data(&e) => Err(e),
            Err(e) if entries.len() == 1 => {
                out.bad.push((entries[0].ordinal, e));
                Ok(())
            }
            Err(_) => entries.iter().try_for_each(|entry| self.try_each(&[entry], blocks, check, out)),
        }
    }
}

impl Work for Conversion<'_> {
    type State = State;
    type Done = Done;

    fn read(&self, task: ReadTask) -> Delivery {
        let mut decoder = match task.decoder {
            Some(decoder) => decoder,
            None => match &self.passes.feed {
                Feed::Input(groups) => self.passes.source.read(
                    groups[task.number],
                    &self.passes.index.layout,
                    self.passes.block_bytes(),
                )?,
                Feed::Exchange(exchange) => exchange.read(task.number),
            },
        };
        let block = decoder.next().transpose()?;
        Ok((decoder, block))
    }

    fn begin(&self, unit: &Unit, blocks: &Blocks) -> Result<State> {
        let mut found = Found::default();
        let entries = unit.cut.entries(self.passes.index);
        let start = entries.first().map_or(0, Entry::start);
        let mut shares = Vec::new();
        for module in 0..self.passes.modules.len() {
            let own: Vec<&Entry> = entries.iter().filter(|e| e.module as usize == module).collect();
            if own.is_empty() {
                continue;
            }
            if let Pass::Check(check) = self.pass {
                self.try_each(&own, blocks, check, &mut found.checked)?;
                continue;
            }
            let episodes = self.passes.source.assemble(self.passes.index, &own, blocks, &mut found.noticed)?;
            if start == 0 {
                found.episodes_out += episodes.lengths().filter(|&len| len > 0).count() as u64;
            }
            found.steps_out += episodes.steps_len() as u64;
            shares.push(ModuleUnit { module, episodes, batch: ModuleBatch::default() });
        }
        Ok(State { unit: shares, start, found })
    }

    fn segments(&self) -> &[Segment] {
        &self.segments
    }

    fn start_ordered(&self, piece: usize) -> Result<Box<dyn Ordered>> {
        let mut machine = self.passes.pipeline.start_ordered(piece)?;
        machine.enter(self.passes.room(), self.rehearsed.get(&piece).cloned())?;
        if let Some(saved) = self.states.and_then(|states| states.before.get(&piece)) {
            machine.restore(saved)?;
        }
        Ok(machine)
    }

    fn end_ordered(&self, piece: usize, machine: &dyn Ordered) -> Result<()> {
        if let (Pass::Order, Some(states)) = (self.pass, self.states) {
            states.behind.lock().unwrap_or_else(PoisonError::into_inner).insert(piece, machine.save()?);
        }
        Ok(())
    }

    fn free(&self, pieces: Range<usize>, number: usize, state: &mut State) -> Result<()> {
        self.passes.pipeline.apply(
            pieces,
            self.passes.modules,
            self.surveys,
            self.passes.first_unit + number,
            &mut state.unit,
            &mut state.found.repairs,
        )
    }

    fn ordered(&self, piece: usize, machine: &mut dyn Ordered, state: &mut State) -> Result<()> {
        let result = self.passes.pipeline.apply_ordered(piece, machine, &mut state.unit, &mut state.found.repairs);
        if result.is_err() && machine.wants_rehearsal() {
            self.full.store(piece, Ordering::Relaxed);
        }
        result
    }

    fn end(&self, number: usize, state: State) -> Result<Done> {
        let State { unit, start, mut found } = state;
        let findings = match self.pass {
            Pass::Check(_) => vec![(0, Box::new(std::mem::take(&mut found.checked)) as Finding)],
            Pass::Returns => unit.iter().map(|share| sums_of_rewards(share, start)).collect::<Result<Vec<_>>>()?,
            Pass::Survey { piece, own } => {
                self.passes.pipeline.observe(piece, own, self.passes.modules, self.passes.first_unit + number, &unit)?
            }
            Pass::Rehearse { piece, own } => vec![(0, self.passes.pipeline.rehearse(piece, own, &unit)?)],
            Pass::Order | Pass::Convert(_) => Vec::new(),
        };
        let Pass::Convert(shuffles) = self.pass else {
            return Ok(Done { rows: Vec::new(), findings, found });
        };
        let mut all = Vec::with_capacity(unit.len());
        for share in unit {
            let module = &self.passes.modules[share.module];
            keeps_promise(&module.layout, &share.batch)?;
            found.pipeline_steps_out += share.episodes.steps_len() as u64;
            let windows = share.batch.windows().map(|w| &**w);
            let shuffle = shuffles.get(share.module).map(|s| (*s, s.keys(&share.episodes, windows, start)));
            let mut columns = self.passes.provenance.values(&share.episodes, windows)?;
            let taken = self.passes.storage[share.module].take(share.batch.into_columns(), &module.layout.columns)?;
            columns.extend(taken.rows);
            let rows = columns.first().map_or(0, ColumnData::rows);
            let rows = Rows { rows, columns };
            let brought = match shuffle {
                Some((shuffle, keys)) => Brought::Scattered(shuffle.scatter(rows, keys)),
                None => Brought::Rows(rows),
            };
            all.push((share.module, brought, taken.tables));
        }
        Ok(Done { rows: all, findings: Vec::new(), found })
    }
}

/// The sum of each chunk's rewards, by the chunk's ordinal.
fn sums_of_rewards(share: &ModuleUnit, start: u64) -> Result<(usize, Finding)> {
    let sums = Summed::of(&share.episodes, start)?;
    let by_ordinal: Vec<(u32, Summed)> = share.episodes.chunks.iter().map(|c| c.ordinal).zip(sums).collect();
    Ok((share.module, Box::new(by_ordinal)))
}

/// Writes what units bring.
pub(super) struct Written {
    pub outputs: Outputs,
    pub found: Found,
}

impl Taker<Done> for Written {
    fn take(&mut self, done: Done) -> Result<()> {
        self.found.merge(&done.found);
        for (module, rows, steps) in done.rows {
            self.outputs.push(module, rows, steps)?;
        }
        Ok(())
    }

    fn cut(&mut self, flush: bool) -> Result<Option<Cut>> {
        self.outputs.cut(flush)
    }

    fn encoder(&self, cut: &Cut) -> Arc<ModuleEncoder> {
        self.outputs.encoder(cut)
    }

    fn append(&mut self, encoded: Encoded) -> Result<()> {
        self.outputs.append(encoded)
    }
}

/// Takes in a finding, and the number of its module.
pub(super) type Merge<'a> = dyn FnMut((usize, Finding)) -> Result<()> + Send + 'a;

/// Hands on what units found, in order and as it comes.
pub(super) struct Findings<F>(pub F);

impl<F: FnMut((usize, Finding)) -> Result<()> + Send> Taker<Done> for Findings<F> {
    fn take(&mut self, done: Done) -> Result<()> {
        done.findings.into_iter().try_for_each(&mut self.0)
    }
}
