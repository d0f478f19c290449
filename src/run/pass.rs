//! One pass over the data: assemble, run the pieces, and hand on what it is for.

use std::ops::Range;
use std::sync::Arc;

use super::BLOCK_BYTES;
use super::cutter::{Cut, Rows};
use super::output::{Encoded, ModuleEncoder, Outputs};
use super::provenance::Provenance;
use super::reader::{Delivery, ReadTask};
use super::schedule::{Taker, Work};
use super::units::Unit;
use crate::batch::ModuleBatch;
use crate::connector::{Finding, ModuleUnit, Ordered, Repairs};
use crate::error::Result;
use crate::pipeline::{ModulePlan, Pipeline, Segment, Surveys, keeps_promise};
use crate::sink::ColumnData;
use crate::source::blocks::Blocks;
use crate::source::index::{Entry, Index};
use crate::source::{Noticed, Source};

/// What units found out besides rows.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub repairs: Repairs,
    pub noticed: Noticed,
    pub episodes_out: u64,
    pub steps_out: u64,
    pub pipeline_steps_out: u64,
}

impl Found {
    fn merge(&mut self, unit: &Self) {
        self.repairs.merge(&unit.repairs);
        self.noticed.discontinuities += unit.noticed.discontinuities;
        self.noticed.first_discontinuity =
            [self.noticed.first_discontinuity, unit.noticed.first_discontinuity].into_iter().flatten().min();
        self.episodes_out += unit.episodes_out;
        self.steps_out += unit.steps_out;
        self.pipeline_steps_out += unit.pipeline_steps_out;
    }
}

/// A survey that a pass over the data is for.
#[derive(Clone, Copy)]
pub(super) struct Survey<'a> {
    pub piece: usize,
    pub own: &'a [Option<Box<dyn crate::connector::Survey>>],
}

/// What a pass over the data is for.
#[derive(Clone, Copy)]
pub(super) enum Pass<'a> {
    /// The sums of rewards.
    Returns,
    /// What a piece must know beforehand.
    Survey(Survey<'a>),
    /// The batch.
    Convert,
}

/// One pass over the data of one job.
pub(super) struct Conversion<'a> {
    source: &'a dyn Source,
    index: &'a Index,
    pipeline: &'a Pipeline,
    modules: &'a [ModulePlan],
    surveys: &'a Surveys,
    provenance: Provenance,
    pass: Pass<'a>,
    segments: Vec<Segment>,
}

/// A unit on its way.
pub(super) struct State {
    unit: Vec<ModuleUnit>,
    found: Found,
}

/// What a unit brings in the end.
pub(super) struct Done {
    rows: Vec<(usize, Rows)>,
    findings: Vec<(usize, Finding)>,
    found: Found,
}

impl<'a> Conversion<'a> {
    pub fn new(
        source: &'a dyn Source,
        index: &'a Index,
        pipeline: &'a Pipeline,
        modules: &'a [ModulePlan],
        surveys: &'a Surveys,
        provenance: Provenance,
        pass: Pass<'a>,
    ) -> Self {
        let segments = pipeline.segments(match pass {
            Pass::Returns => 0,
            Pass::Survey(survey) => survey.piece,
            Pass::Convert => pipeline.len(),
        });
        Self { source, index, pipeline, modules, surveys, provenance, pass, segments }
    }
}

impl Work for Conversion<'_> {
    type State = State;
    type Done = Done;

    fn read(&self, task: ReadTask) -> Delivery {
        let mut decoder = match task.decoder {
            Some(decoder) => decoder,
            None => self.source.read(task.group, &self.index.layout, BLOCK_BYTES)?,
        };
        let block = decoder.next().transpose()?;
        Ok((decoder, block))
    }

    fn begin(&self, unit: &Unit, blocks: &Blocks) -> Result<State> {
        let mut found = Found::default();
        let entries = &self.index.entries[unit.entries.clone()];
        let mut shares = Vec::new();
        for module in 0..self.modules.len() {
            let own: Vec<&Entry> = entries.iter().filter(|e| e.module as usize == module).collect();
            if own.is_empty() {
                continue;
            }
            let episodes = self.source.assemble(self.index, &own, blocks, &mut found.noticed)?;
            found.episodes_out += episodes.lengths().filter(|&len| len > 0).count() as u64;
            found.steps_out += episodes.steps_len() as u64;
            shares.push(ModuleUnit { module, episodes, batch: ModuleBatch::default() });
        }
        Ok(State { unit: shares, found })
    }

    fn segments(&self) -> &[Segment] {
        &self.segments
    }

    fn start_ordered(&self, piece: usize) -> Result<Box<dyn Ordered>> {
        self.pipeline.start_ordered(piece)
    }

    fn free(&self, pieces: Range<usize>, number: usize, state: &mut State) -> Result<()> {
        self.pipeline.apply(pieces, self.modules, self.surveys, number, &mut state.unit, &mut state.found.repairs)
    }

    fn ordered(&self, piece: usize, machine: &mut dyn Ordered, state: &mut State) -> Result<()> {
        self.pipeline.apply_ordered(piece, machine, &mut state.unit, &mut state.found.repairs)
    }

    fn end(&self, number: usize, state: State) -> Result<Done> {
        let State { unit, mut found } = state;
        let findings = match self.pass {
            Pass::Returns => unit.iter().map(sums_of_rewards).collect::<Result<Vec<_>>>()?,
            Pass::Survey(Survey { piece, own }) => self.pipeline.observe(piece, own, self.modules, number, &unit)?,
            Pass::Convert => Vec::new(),
        };
        if !matches!(self.pass, Pass::Convert) {
            return Ok(Done { rows: Vec::new(), findings, found });
        }
        let mut all = Vec::with_capacity(unit.len());
        for share in unit {
            let module = &self.modules[share.module];
            keeps_promise(&module.layout, &share.batch)?;
            found.pipeline_steps_out += share.episodes.steps_len() as u64;
            let windows = share.batch.windows().map(|w| &**w);
            let mut columns = self.provenance.values(&share.episodes, windows)?;
            columns.extend(share.batch.into_columns().into_iter().map(|(_, t)| ColumnData::Tensor(t)));
            let rows = columns.first().map_or(0, ColumnData::rows);
            all.push((share.module, Rows { rows, columns }));
        }
        Ok(Done { rows: all, findings: Vec::new(), found })
    }
}

/// The sum of each chunk's rewards, by the chunk's ordinal.
fn sums_of_rewards(share: &ModuleUnit) -> Result<(usize, Finding)> {
    let sums = share.episodes.returns()?;
    let by_ordinal: Vec<(u32, f64)> = share.episodes.chunks.iter().map(|c| c.ordinal).zip(sums).collect();
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
        for (stream, rows) in done.rows {
            self.outputs.push(stream, rows);
        }
        Ok(())
    }

    fn cut(&mut self, flush: bool) -> Option<Cut> {
        self.outputs.cut(flush)
    }

    fn encoder(&self, cut: &Cut) -> Arc<ModuleEncoder> {
        self.outputs.encoder(cut)
    }

    fn append(&mut self, encoded: Encoded) -> Result<()> {
        self.outputs.append(encoded)
    }
}

/// Collects what a survey found, in order.
pub(super) struct Findings(pub Vec<(usize, Finding)>);

impl Taker<Done> for Findings {
    fn take(&mut self, done: Done) -> Result<()> {
        self.0.extend(done.findings);
        Ok(())
    }

    fn cut(&mut self, _: bool) -> Option<Cut> {
        None
    }

    fn encoder(&self, _: &Cut) -> Arc<ModuleEncoder> {
        unreachable!("a survey cuts nothing")
    }

    fn append(&mut self, _: Encoded) -> Result<()> {
        Ok(())
    }
}
