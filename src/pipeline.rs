//! Connector pieces in order.

mod clash;
mod presets;
mod promise;
mod slices;
mod surveys;

use std::ops::Range;

use crate::batch::{Column, ModuleBatch};
use crate::column::INFOS;
use crate::connector::{Connector, Context, Finding, ModuleUnit, Ordered, Piece, Rehearsal, Repairs, Room};
use crate::connectors::{self, BatchIndividualItems};
use crate::episode::EpisodeBatch;
use crate::error::{Error, Result};
use crate::job::{Compat, Learner, ModuleSettings, Space};
use crate::tensor::{Tensor, TensorBuilder};

use self::presets::default_pieces;
pub use self::presets::{resolved, without_effect};
pub use self::promise::{ModulePlan, PipelineLayout, keeps_promise, unread_outputs, without_windows};
pub use self::slices::{NeedsWhole, Slicing};
pub use self::surveys::{ConnectorStatistics, Surveys};

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

/// Connector pieces in order.
type Pieces = Vec<Box<dyn Connector>>;

/// Pieces that run one after the other without waiting for other units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// Pieces that know the unit alone.
    Free(Range<usize>),
    /// One piece that must see the units in order.
    Ordered(usize),
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

    /// An error of piece number `piece`, which names it.
    #[must_use]
    pub fn named(&self, piece: usize, error: Error) -> Error {
        let error = error.connector(piece, self.pieces[piece].name());
        match self.numbers[piece] {
            // Which one of the job's it is: `plan` counts the default ones, too.
            Some(number) => {
                let key = format!("learner.connectors[{number}]");
                if error.place().job_key.is_some() { error.under_job_key(&key) } else { error.job_key(key) }
            }
            None => error,
        }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
}
