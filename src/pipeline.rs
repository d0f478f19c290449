//! Connector pieces in order, and the pipelines that RLlib's algorithms build of them.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::{BatchLayout, Column, ColumnLayout, ModuleBatch, Rows, Stage};
use crate::column::{INFOS, OBS};
use crate::connector::{
    Connector, Context, Finding, ModuleUnit, Ordered, Piece, Plan, Rehearsal, Repairs, Room, Survey,
};
use crate::connectors::{
    self, AddColumnsFromEpisodesToTrainBatch, AddNextObservationsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch, AddOneTsToEpisodesAndTruncate, AddStatesFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad, BatchIndividualItems, GeneralAdvantageEstimation, NumpyToTensor,
};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::indexed::{BARE_STEPS, STEPS, Stored};
use crate::job::{Algorithm, Compat, Learner, ModuleSettings, Space, WindowStorage};
use crate::source::keys::{Keys, Numbering};
use crate::tensor::{Tensor, TensorBuilder};
use crate::window::Spec;

/// The pieces of one job, ready to run on any module's episodes.
#[derive(Debug)]
pub struct Pipeline {
    pieces: Pieces,
    /// For each piece, its place in the job's `learner.connectors`, if it stands there.
    numbers: Vec<Option<usize>>,
    compat: Compat,
    obs_space: Option<Space>,
    /// Whether windows are stored once, and not laid out.
    indexed: bool,
}

/// What the survey of a piece found out, for who has to do the same to data that come later.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConnectorStatistics {
    /// Place of the piece in the pipeline.
    pub index: usize,
    /// Its type.
    pub connector: String,
    /// The statistics by which each module's rows were changed. Their keys are described with the piece.
    pub modules: IndexMap<String, serde_json::Value>,
}

/// Connector pieces in order.
type Pieces = Vec<Box<dyn Connector>>;

/// One module, and what the pipeline promises for it.
#[derive(Debug, Clone)]
pub struct ModulePlan {
    /// Its id.
    pub id: String,
    /// The part of the data set whose episodes it gets, if that is split.
    pub part: Option<String>,
    /// Its settings.
    pub settings: ModuleSettings,
    /// What its batch will hold.
    pub layout: PipelineLayout,
}

impl ModulePlan {
    /// What the manifest calls it: the id, behind the part's name if there are parts.
    #[must_use]
    pub fn name(&self) -> String {
        self.part.as_ref().map_or_else(|| self.id.clone(), |part| format!("{part}/{}", self.id))
    }
}

/// What a pipeline promises for one module.
#[derive(Debug, Clone)]
pub struct PipelineLayout {
    /// The columns of the finished batch.
    pub columns: Vec<ColumnLayout>,
    /// What a row of the finished batch is.
    pub rows: Rows,
    /// How episodes are cut into sequences, if they are.
    windows: Option<Spec>,
    /// What becomes of RLlib's ids.
    numbering: Numbering,
    /// How many of the columns are there before that (they are the first ones).
    bare_columns: usize,
}

impl PipelineLayout {
    /// Steps per row, if rows are RLlib's sequences. A stateful module's pipeline may do without the piece that makes
    /// them, or have another one that cuts in a way of its own.
    #[must_use]
    pub fn seq_len(&self) -> Option<usize> {
        self.windows.map(|spec| spec.length()).filter(|&len| self.windows == Some(Spec::sequences(len)))
    }

    /// Steps from the start of a row to that of the next one.
    #[must_use]
    pub fn period(&self) -> usize {
        self.windows.map_or(1, |spec| spec.period)
    }

    /// Bytes that a step of an episode makes in the batch: more than it has itself where windows overlap.
    #[must_use]
    pub fn step_bytes(&self) -> usize {
        let stored = self.columns.iter().filter_map(|c| c.stored.as_ref());
        let laid_out = self.columns.iter().filter(|c| c.stored.is_none());
        let index = |s: &Stored| s.prefix.iter().product::<usize>().saturating_mul(16);
        let row: usize = laid_out.map(|c| c.ty.row_bytes()).chain(stored.clone().map(index)).sum();
        row.div_ceil(self.period()) + stored.map(|s| s.step.row_bytes()).sum::<usize>()
    }
}

/// Pieces that run one after the other without waiting for other units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// Pieces that know the unit alone.
    Free(Range<usize>),
    /// One piece that must see the units in order.
    Ordered(usize),
}

/// What the surveys found out, by piece and module.
#[derive(Debug, Default)]
pub struct Surveys(Vec<Vec<Option<Arc<dyn Any + Send + Sync>>>>);

impl Surveys {
    fn get(&self, piece: usize, module: usize) -> Option<&(dyn Any + Send + Sync)> {
        self.0.get(piece)?.get(module)?.as_deref()
    }

    /// Files the results of piece number `piece`, one a module.
    pub fn set(&mut self, piece: usize, results: Vec<Option<Box<dyn Any + Send + Sync>>>) {
        while self.0.len() <= piece {
            self.0.push(Vec::new());
        }
        self.0[piece] = results.into_iter().map(|r| r.map(Arc::from)).collect();
    }

    /// Lets module `to` go by the result that module `from` has.
    pub fn share(&mut self, piece: usize, from: usize, to: usize) {
        if let Some(results) = self.0.get_mut(piece)
            && let Some(result) = results.get(from).cloned()
            && let Some(slot) = results.get_mut(to)
        {
            *slot = result;
        }
    }
}

/// The pieces that the algorithm's `config.build_learner_connector()` appends in RLlib 2.60, split into those that
/// go in front of the custom pieces and those that follow them.
///
/// | algorithm | in front | after the custom pieces |
/// |---|---|---|
/// | none, PPO | | the default pipeline (`algorithm_config.py`) |
/// | BC, CQL, IQL, SAC, DQN | | the same with next observations (`bc.py`, `cql.py`, `iql.py`, `sac.py`, `dqn_learner.py`) |
/// | IMPALA, APPO | one more step an episode | the default pipeline (`impala.py`) |
/// | MARWIL | one more step an episode | with next observations, then advantages (`marwil.py`) |
///
/// `cutter` is a custom piece that stands for `AddTimeDimToBatchAndZeroPad`; see [`Connector::cuts_sequences`].
fn default_pieces(learner: &Learner, cutter: Option<Box<dyn Connector>>) -> (Pieces, Pieces) {
    use Algorithm as A;
    let algorithm = learner.algorithm;
    let next_obs = matches!(algorithm, Some(A::Bc | A::Marwil | A::Cql | A::Iql | A::Sac | A::Dqn));
    let one_more = matches!(algorithm, Some(A::Impala | A::Appo | A::Marwil));
    let mut front = Pieces::new();
    if one_more {
        front.push(Box::new(AddOneTsToEpisodesAndTruncate {}));
    }
    let mut rest: Pieces = vec![Box::new(AddObservationsFromEpisodesToBatch::default())];
    if next_obs {
        rest.push(Box::new(AddNextObservationsFromEpisodesToTrainBatch {}));
    }
    rest.push(Box::new(AddColumnsFromEpisodesToTrainBatch {}));
    rest.push(cutter.unwrap_or_else(|| Box::new(AddTimeDimToBatchAndZeroPad::default())));
    rest.push(Box::new(AddStatesFromEpisodesToBatch::default()));
    rest.push(Box::new(BatchIndividualItems::default()));
    rest.push(Box::new(NumpyToTensor::default()));
    if algorithm == Some(A::Marwil) {
        rest.push(Box::new(GeneralAdvantageEstimation::with(learner.gamma, learner.lambda_)));
    }
    (front, rest)
}

/// The learner's settings with what its algorithm assumes where the job says nothing.
#[must_use]
pub fn resolved(learner: &Learner) -> Learner {
    let mut out = learner.clone();
    if takes_discounts(learner) {
        let own = GeneralAdvantageEstimation::with(learner.gamma, learner.lambda_);
        (out.gamma, out.lambda_) = (Some(own.gamma), Some(own.lambda_));
    }
    out
}

/// What the job says of the learner and what has no effect, a sentence each.
#[must_use]
pub fn without_effect(learner: &Learner) -> Vec<String> {
    let set = [("gamma", learner.gamma.is_some()), ("lambda_", learner.lambda_.is_some())];
    let algorithm = learner.algorithm.map_or_else(|| "no algorithm".to_owned(), |a| a.to_string());
    let note = |name: &str| {
        format!("learner.{name} has no effect: the pipeline of {algorithm} has no piece that takes it, MARWIL's has")
    };
    set.iter().filter(|(_, set)| *set && !takes_discounts(learner)).map(|(name, _)| note(name)).collect()
}

/// A note where the job asks for windows to be stored once and no module has any.
#[must_use]
pub fn without_windows(windows: WindowStorage, modules: &[ModulePlan]) -> Option<String> {
    let any = modules.iter().flat_map(|m| &m.layout.columns).any(|c| c.stored.is_some());
    (windows == WindowStorage::Indexed && !any).then(|| {
        "output.windows = \"indexed\" has no effect: no column is a stack of frames or a sequence that is padded with zeros"
            .to_owned()
    })
}

/// Whether the algorithm hands `gamma` and `lambda_` to a piece.
fn takes_discounts(learner: &Learner) -> bool {
    learner.algorithm == Some(Algorithm::Marwil) && learner.add_default_connectors_to_learner_pipeline
}

impl Pipeline {
    /// The pipeline of a job: custom pieces in front of the algorithm's, or custom pieces alone.
    ///
    /// # Errors
    /// If a piece is unknown or its options are wrong.
    pub fn new(learner: &Learner) -> Result<Self> {
        Self::with_own(learner, Vec::new())
    }

    /// The same with pieces that no job can name, in front of the job's own.
    ///
    /// # Errors
    /// If a piece of the job is unknown or its options are wrong.
    pub fn with_own(learner: &Learner, own: Vec<Box<dyn Connector>>) -> Result<Self> {
        let of_job = own.len()..;
        let named = learner.connectors.iter().enumerate().map(|(i, c)| connectors::build(i, c));
        let custom: Vec<_> = own.into_iter().map(Ok).chain(named).collect::<Result<_>>()?;
        // Which of the job's pieces each one is. One that cuts changes its place, and there is one at most.
        let number = |i: usize| of_job.contains(&i).then(|| i - of_job.start);
        let cutting = custom.iter().position(|p| p.cuts_sequences());
        let mut numbers: Vec<Option<usize>> = (0..custom.len()).map(number).collect();
        let pieces = if learner.add_default_connectors_to_learner_pipeline {
            let (cutters, custom): (Vec<_>, Vec<_>) = custom.into_iter().partition(|p| p.cuts_sequences());
            let mut cutters = cutters.into_iter();
            let cutter = cutters.next();
            if let (Some(one), Some(two)) = (&cutter, cutters.next()) {
                return Err(Error::usage(format!(
                    "{} and {} both cut episodes into sequences, expected one piece that does",
                    one.name(),
                    two.name()
                ))
                .job_key("learner.connectors"));
            }
            let (mut pieces, rest) = default_pieces(learner, cutter);
            let cutter = cutting.and_then(|at| numbers.remove(at));
            numbers.splice(0..0, pieces.iter().map(|_| None));
            numbers.extend(rest.iter().map(|piece| cutter.filter(|_| piece.cuts_sequences())));
            pieces.extend(custom);
            pieces.extend(rest);
            pieces
        } else {
            custom
        };
        if pieces.is_empty() {
            return Err(Error::usage("the pipeline has no pieces, so its batch has no columns")
                .job_key("learner.connectors")
                .hint("leave add_default_connectors_to_learner_pipeline at its default, or name the pieces"));
        }
        Ok(Self { pieces, numbers, compat: learner.compat, obs_space: None, indexed: false })
    }

    /// Tells the pieces the space of the recorded observations.
    #[must_use]
    pub fn with_obs_space(mut self, space: Option<Space>) -> Self {
        self.obs_space = space;
        self
    }

    /// The same with windows that are stored once, or laid out.
    #[must_use]
    pub fn with_indexed_windows(mut self, indexed: bool) -> Self {
        self.indexed = indexed;
        self
    }

    /// What pieces may know of their surroundings.
    fn context<'a>(&'a self, module: &'a ModuleSettings) -> Context<'a> {
        Context { obs_space: self.obs_space.as_ref(), indexed: self.indexed, ..Context::new(module, self.compat) }
    }

    /// The pieces in order.
    pub fn pieces(&self) -> impl Iterator<Item = &dyn Connector> {
        self.pieces.iter().map(|p| &**p)
    }

    /// The pieces in order, each a table of its `type` and all its options, as a job would name it.
    #[must_use]
    pub fn described(&self) -> Vec<serde_json::Value> {
        let table = |piece: &dyn Connector| {
            let mut table = serde_json::Map::from_iter([("type".to_owned(), piece.name().into())]);
            table.extend(piece.config().as_object().cloned().unwrap_or_default());
            serde_json::Value::Object(table)
        };
        self.pieces().map(table).collect()
    }

    /// The pieces `..end`, cut where units must come in order.
    #[must_use]
    pub fn segments(&self, end: usize) -> Vec<Segment> {
        let (mut out, mut start) = (Vec::new(), 0);
        for (i, piece) in self.pieces[..end].iter().enumerate() {
            if piece.ordered().is_some() {
                out.push(Segment::Free(start..i));
                out.push(Segment::Ordered(i));
                start = i + 1;
            }
        }
        out.push(Segment::Free(start..end));
        out
    }

    /// The pieces that must see units in order.
    #[must_use]
    pub fn ordered(&self) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.pieces.len()).filter(|&i| self.pieces[i].ordered().is_some())
    }

    /// What the surveys found out, as bytes: by piece and module.
    ///
    /// # Errors
    /// If a piece has no form for it.
    pub fn save_surveys(&self, surveys: &Surveys) -> Result<Vec<Vec<Option<Vec<u8>>>>> {
        let of_piece = |(i, results): (usize, &Vec<Option<Arc<dyn Any + Send + Sync>>>)| {
            let save = |result: &Option<Arc<dyn Any + Send + Sync>>| {
                let Some(result) = result else { return Ok(None) };
                let what =
                    "needs to know the whole data set, and what it knows has no form that could be sent to workers";
                let portable = self.pieces[i].portable_survey().ok_or_else(|| Error::usage(what));
                portable.and_then(|p| p.save(&**result)).map(Some).map_err(|e| self.named(i, e))
            };
            results.iter().map(save).collect()
        };
        surveys.0.iter().enumerate().map(of_piece).collect()
    }

    /// The surveys that [`Self::save_surveys`] gave.
    ///
    /// # Errors
    /// If another pipeline did.
    pub fn restore_surveys(&self, saved: &[Vec<Option<Vec<u8>>>]) -> Result<Surveys> {
        let mut out = Surveys::default();
        for (i, results) in saved.iter().enumerate() {
            let restore = |saved: &Option<Vec<u8>>| {
                let Some(saved) = saved else { return Ok(None) };
                let portable = self.pieces.get(i).and_then(|p| p.portable_survey());
                portable.ok_or_else(|| Error::internal("a survey of another pipeline"))?.restore(saved).map(Some)
            };
            out.set(i, results.iter().map(restore).collect::<Result<_>>()?);
        }
        Ok(out)
    }

    /// See [`Connector::surveys_each_part`].
    #[must_use]
    pub fn surveys_each_part(&self, piece: usize) -> bool {
        self.pieces[piece].surveys_each_part()
    }

    /// An error of piece number `piece`, which names it.
    #[must_use]
    pub fn named(&self, piece: usize, error: Error) -> Error {
        let error = error.connector(piece, self.pieces[piece].name());
        match self.numbers[piece] {
            Some(number) => error.under_job_key(&format!("learner.connectors[{number}]")),
            None => error,
        }
    }

    /// What a piece's survey has found out, by the modules' names.
    #[must_use]
    pub fn statistics(&self, surveys: &Surveys, modules: &[ModulePlan]) -> Vec<ConnectorStatistics> {
        let of = |(i, piece): (usize, &dyn Connector)| {
            let all = modules
                .iter()
                .enumerate()
                .filter_map(|(m, module)| Some((module.name(), piece.statistics(surveys.get(i, m)?)?)));
            let modules: IndexMap<String, serde_json::Value> = all.collect();
            let connector = piece.name().to_owned();
            (!modules.is_empty()).then_some(ConnectorStatistics { index: i, connector, modules })
        };
        self.pieces().enumerate().filter_map(of).collect()
    }

    /// Rows before a chunk's first step that pieces look at.
    ///
    /// A piece that looks at what an earlier one made of the look-back needs that made of whole look-back itself:
    /// three stacked observations that hold the previous action need two rows, and the action before them.
    #[must_use]
    pub fn look_back(&self, module: &ModuleSettings) -> usize {
        self.pieces.iter().map(|p| p.look_back(module)).fold(0, usize::saturating_add)
    }

    /// Whether any piece looks at the recorded step column `column`, for a module.
    #[must_use]
    pub fn reads(&self, module: &ModuleSettings, column: &str) -> bool {
        self.pieces.iter().any(|p| p.reads(module, column))
    }

    /// Whether any piece looks at infos.
    #[must_use]
    pub fn reads_infos(&self) -> bool {
        self.reads(&ModuleSettings::default(), INFOS)
    }

    /// How RLlib would tell the chunks apart whose batch has this layout.
    #[must_use]
    pub fn keys(layout: &PipelineLayout, multi_agent: bool) -> Keys {
        Keys { numbering: layout.numbering, bare_columns: layout.bare_columns > 0, multi_agent }
    }

    /// What the batch of a module will hold.
    ///
    /// # Errors
    /// If a piece cannot run on such episodes; the error names it.
    pub fn layout(&self, module: &ModuleSettings, episodes: &EpisodeLayout) -> Result<PipelineLayout> {
        let cx = self.context(module);
        let (mut episodes, mut batch) = (episodes.clone(), BatchLayout::default());
        let (mut numbering, mut bare_columns) = (Numbering::None, 0);
        for (i, piece) in self.pieces.iter().enumerate() {
            if numbering == Numbering::None && !(piece.numbering() == Numbering::WithObservations && batch.has(OBS)) {
                numbering = piece.numbering();
                bare_columns = batch.columns.len();
            }
            piece.layout(cx, &mut Plan { episodes: &mut episodes, batch: &mut batch }).map_err(|e| self.named(i, e))?;
        }
        if numbering == Numbering::None {
            bare_columns = 0; // all columns agree
        }
        // Columns whose rows RLlib would move have an index of their own.
        let moved = if self.compat == Compat::Rllib260 { bare_columns } else { 0 };
        for stored in batch.columns.iter_mut().take(moved).filter_map(|c| c.stored.as_mut()) {
            if stored.table == STEPS {
                stored.table = BARE_STEPS;
            }
        }
        if batch.stage < Stage::Batched {
            return Err(Error::usage("the pipeline ends with lists of items, expected one array a column")
                .job_key("learner.connectors")
                .hint("add BatchIndividualItems (and NumpyToTensor) at the end"));
        }
        let Some(rows) = batch.columns.first().map(|c| c.rows) else {
            return Err(Error::usage("the pipeline makes no column").job_key("learner.connectors"));
        };
        if let Some(other) = batch.columns.iter().find(|c| c.rows != rows) {
            return Err(Error::usage(format!(
                "`{}` has one row a {}, `{}` one row a {}: they cannot stand in one table",
                batch.columns[0].name,
                row_word(rows),
                other.name,
                row_word(other.rows)
            ))
            .job_key("learner.connectors")
            .hint("put AddTimeDimToBatchAndZeroPad after the pieces that add columns step by step"));
        }
        Ok(PipelineLayout { columns: batch.columns, rows, windows: batch.windows, numbering, bare_columns })
    }

    /// How many leading pieces need nothing but the episodes.
    ///
    /// Pieces refuse episodes: one that lacks the observation after its last step, say. Those behind the first that must
    /// see units in order, or all of the data beforehand, cannot be tried with one episode.
    #[must_use]
    pub fn alone(&self, modules: &[ModulePlan]) -> usize {
        let alone = |i: &usize| self.pieces[*i].ordered().is_none() && self.surveys(*i, modules).is_none();
        (0..self.pieces.len()).take_while(alone).count()
    }

    /// Runs the pieces of a free segment on a unit.
    ///
    /// # Errors
    /// If the data break a rule that only data can show; the error names the piece.
    pub fn apply(
        &self,
        pieces: Range<usize>,
        modules: &[ModulePlan],
        surveys: &Surveys,
        number: usize,
        unit: &mut [ModuleUnit],
        repairs: &mut Repairs,
    ) -> Result<()> {
        for share in unit {
            let module = &modules[share.module];
            for i in pieces.clone() {
                let piece = &self.pieces[i];
                let survey = surveys.get(i, share.module);
                let cx = Context { survey, unit: number, ..self.context(&module.settings) };
                piece.apply(cx, &mut share.episodes, &mut share.batch, repairs).map_err(|e| self.named(i, e))?;
                if piece.name() == BatchIndividualItems::NAME && module.layout.bare_columns > 0 {
                    reorder_bare_columns(module, &share.episodes, &mut share.batch);
                }
            }
        }
        Ok(())
    }

    /// The state of the ordered piece number `piece`.
    ///
    /// # Errors
    /// If there is none.
    pub fn start_ordered(&self, piece: usize) -> Result<Box<dyn Ordered>> {
        self.pieces[piece].ordered().ok_or_else(|| Error::internal(format!("piece {piece} has no order")))
    }

    /// The pass over the data for ordered piece number `piece`, if it has one.
    ///
    /// # Errors
    /// If it has none.
    pub fn rehearsal(&self, piece: usize, room: Room) -> Result<Box<dyn Rehearsal>> {
        self.pieces[piece].rehearsal(room).ok_or_else(|| Error::internal(format!("piece {piece} has no rehearsal")))
    }

    /// What a rehearsal sees of a unit.
    ///
    /// # Errors
    /// If the data break a rule that only data can show; the error names the piece.
    pub fn rehearse(&self, piece: usize, rehearsal: &dyn Rehearsal, unit: &[ModuleUnit]) -> Result<Finding> {
        rehearsal.observe(self.compat, unit).map_err(|e| self.named(piece, e))
    }

    /// Pieces that keep something of what they saw.
    #[must_use]
    pub fn keepers(&self, modules: &[ModulePlan]) -> usize {
        let keeps = |i: &usize| self.pieces[*i].ordered().is_some() || self.surveys(*i, modules).is_some();
        (0..self.pieces.len()).filter(keeps).count()
    }

    /// Runs an ordered piece on the unit whose turn it is.
    ///
    /// # Errors
    /// If the data break a rule that only data can show; the error names the piece.
    pub fn apply_ordered(
        &self,
        piece: usize,
        state: &mut dyn Ordered,
        unit: &mut [ModuleUnit],
        repairs: &mut Repairs,
    ) -> Result<()> {
        state.apply(self.compat, unit, repairs).map_err(|e| self.named(piece, e))
    }

    /// The surveys of piece number `piece`, one a module; `None` if it needs no pass of its own.
    #[must_use]
    pub fn surveys(&self, piece: usize, modules: &[ModulePlan]) -> Option<Vec<Option<Box<dyn Survey>>>> {
        let of = |m: &ModulePlan| self.pieces[piece].survey(self.context(&m.settings));
        let all: Vec<_> = modules.iter().map(of).collect();
        all.iter().any(Option::is_some).then_some(all)
    }

    /// What a survey sees of a unit.
    ///
    /// # Errors
    /// If the data break a rule that only data can show; the error names the piece.
    pub fn observe(
        &self,
        piece: usize,
        surveys: &[Option<Box<dyn Survey>>],
        modules: &[ModulePlan],
        number: usize,
        unit: &[ModuleUnit],
    ) -> Result<Vec<(usize, Finding)>> {
        let mut out = Vec::new();
        for share in unit {
            let Some(survey) = &surveys[share.module] else { continue };
            let cx = Context { unit: number, ..self.context(&modules[share.module].settings) };
            let finding = survey.observe(cx, &share.episodes, &share.batch).map_err(|e| self.named(piece, e))?;
            out.push((share.module, finding));
        }
        Ok(out)
    }

    /// Number of pieces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}

/// Puts the columns that RLlib keyed by unnumbered ids into the order that it gives them; see [`crate::source::keys`].
fn reorder_bare_columns(module: &ModulePlan, episodes: &EpisodeBatch, batch: &mut ModuleBatch) {
    let mut order: Vec<usize> = (0..episodes.len()).collect();
    order.sort_by_key(|&i| episodes.chunks[i].bare_rank);
    if order.is_sorted() {
        return;
    }
    let mut starts = episodes.offsets.clone();
    if let Some(windows) = batch.windows() {
        starts = vec![0; episodes.len() + 1];
        windows.iter().for_each(|w| starts[w.episode + 1] += 1);
        for i in 0..episodes.len() {
            starts[i + 1] += starts[i];
        }
    }
    let permuted = |column: &Tensor| {
        let mut out = TensorBuilder::with_capacity(column.ty().clone(), column.rows());
        for &i in &order {
            out.extend(column, starts[i], starts[i + 1] - starts[i]);
        }
        out.finish()
    };
    for (_, column) in batch.iter_mut().take(module.layout.bare_columns) {
        *column = match column {
            Column::Whole(tensor) => permuted(tensor).into(),
            Column::Windows(windows) => Column::Windows(windows.with_index(permuted)),
        };
    }
}

const fn row_word(rows: Rows) -> &'static str {
    match rows {
        Rows::Steps => "step",
        Rows::Sequences => "sequence",
    }
}

/// Layout foretells apply. Checked on every batch: it costs a comparison of names.
///
/// # Errors
/// If a piece broke its promise.
pub fn keeps_promise(layout: &PipelineLayout, batch: &ModuleBatch) -> Result<()> {
    let rows = batch.iter().next().map_or(0, |(_, t)| t.rows());
    let mut want = layout.columns.iter();
    // The table's name may be another one: see `Pipeline::layout`.
    let same = |a: Option<&Stored>, b: Option<&Stored>| match (a, b) {
        (Some(a), Some(b)) => a.step == b.step && a.row() == b.row() && a.prefix == b.prefix && a.axis == b.axis,
        (a, b) => a.is_none() && b.is_none(),
    };
    for (name, tensor) in batch.iter() {
        match want.next() {
            Some(c)
                if c.name == name
                    && c.ty == *tensor.ty()
                    && tensor.rows() == rows
                    && same(c.stored.as_ref(), tensor.stored()) => {}
            other => {
                return Err(Error::internal(format!(
                    "the batch holds `{name}` {} x {}, the layout promised {rows} x {other:?}",
                    tensor.rows(),
                    tensor.ty()
                )));
            }
        }
    }
    match want.next() {
        None => Ok(()),
        Some(missing) => Err(Error::internal(format!("the batch lacks `{}`, which the layout promised", missing.name))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_sequences_have_a_length() {
        let seq_len = |windows| {
            let rows = Rows::Steps;
            PipelineLayout { columns: Vec::new(), rows, windows, numbering: Numbering::None, bare_columns: 0 }.seq_len()
        };
        assert_eq!(seq_len(None), None);
        assert_eq!(seq_len(Some(Spec::sequences(3))), Some(3));
        assert_eq!(seq_len(Some(Spec { before: 1, ..Spec::sequences(3) })), None);
    }

    #[test]
    fn discounts_are_told_and_filled_in() {
        let learner = |value| serde_json::from_value::<Learner>(value).unwrap();
        let marwil = learner(json!({ "algorithm": "MARWIL", "gamma": 0.9 }));
        let full = resolved(&marwil);
        assert_eq!((full.gamma, full.lambda_), (Some(0.9), Some(GeneralAdvantageEstimation::default().lambda_)));
        assert!(without_effect(&marwil).is_empty());
        let bc = learner(json!({ "algorithm": "BC", "gamma": 0.9, "lambda_": 1.0 }));
        assert_eq!(resolved(&bc), bc);
        assert_eq!(without_effect(&bc).len(), 2);
        assert!(
            without_effect(&learner(json!({ "lambda_": 1.0 })))[0]
                .starts_with("learner.lambda_ has no effect: the pipeline of no algorithm")
        );
    }

    /// An error of a piece names its place in the pipeline, and its key its place in the job.
    #[test]
    fn errors_say_which_piece_of_the_job() {
        let key = |learner: serde_json::Value, piece: usize| {
            let pipeline = Pipeline::new(&serde_json::from_value(learner).unwrap()).unwrap();
            let error = pipeline.named(piece, Error::usage("wrong").job_key("columns.rewards"));
            (error.place().connector.clone().unwrap().1, error.place().job_key.clone().unwrap())
        };
        let [cut, other] = ["OverlappingSequences", "ActionChunking"].map(|n| json!({ "type": n }));
        let learner = json!({ "algorithm": "MARWIL", "connectors": [cut, other] });
        let of = |name: &str, key: &str| (name.to_owned(), key.to_owned());
        assert_eq!(key(learner.clone(), 0), of("AddOneTsToEpisodesAndTruncate", "columns.rewards"));
        assert_eq!(key(learner.clone(), 1), of("ActionChunking", "learner.connectors[1].columns.rewards"));
        assert_eq!(key(learner.clone(), 5), of("OverlappingSequences", "learner.connectors[0].columns.rewards"));
        assert_eq!(key(learner, 6), of("AddStatesFromEpisodesToBatch", "columns.rewards"));
        let error = Error::usage("wrong").job_key("rl_module.initial_state").under_job_key("learner.connectors[0]");
        assert_eq!(error.place().job_key.as_deref(), Some("rl_module.initial_state"));
    }

    #[test]
    fn look_backs_add_up() {
        let look_back = |connectors: serde_json::Value| {
            let learner = json!({ "connectors": connectors });
            Pipeline::new(&serde_json::from_value(learner).unwrap()).unwrap().look_back(&ModuleSettings::default())
        };
        let previous = json!({ "type": "PrevActionsPrevRewards", "n_prev_actions": 2 });
        let frames = json!({ "type": "StackObservations", "num_frames": 4 });
        assert_eq!(look_back(json!([frames])), 3);
        assert_eq!(look_back(json!([previous, frames])), 5);
    }

    fn names(learner: serde_json::Value) -> Result<Vec<&'static str>> {
        let pipeline = Pipeline::new(&serde_json::from_value(learner).expect("a learner"))?;
        Ok(pipeline.pieces().map(Connector::name).collect())
    }

    #[test]
    fn a_piece_that_cuts_takes_the_place_of_the_default_cut() {
        let (cut, other) = (json!({ "type": "OverlappingSequences" }), json!({ "type": "ActionChunking" }));
        let got = names(json!({ "algorithm": "BC", "connectors": [cut, other] })).unwrap();
        let want = [
            "ActionChunking",
            "AddObservationsFromEpisodesToBatch",
            "AddNextObservationsFromEpisodesToTrainBatch",
            "AddColumnsFromEpisodesToTrainBatch",
            "OverlappingSequences",
            "AddStatesFromEpisodesToBatch",
            "BatchIndividualItems",
            "NumpyToTensor",
        ];
        assert_eq!(got, want);
        let two = json!({ "connectors": [cut, { "type": "DecisionTransformerWindows" }] });
        assert!(names(two).unwrap_err().what().ends_with("expected one piece that does"));
    }
}
