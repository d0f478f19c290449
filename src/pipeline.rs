//! Connector pieces in order, and the pipelines that RLlib's algorithms build of them.

use crate::batch::{BatchLayout, ColumnLayout, ModuleBatch, Rows, Stage};
use crate::connector::{Connector, Context, Piece, Plan, Repairs};
use crate::connectors::{
    self, AddColumnsFromEpisodesToTrainBatch, AddNextObservationsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch, AddOneTsToEpisodesAndTruncate, AddStatesFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad, BatchIndividualItems, NumpyToTensor,
};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::job::{Algorithm, Compat, Learner, ModuleSettings};
use crate::source::keys::Suffix;

/// Pieces in order.
type Pieces = Vec<Box<dyn Connector>>;

/// The pieces of one job, ready to run on any module's episodes.
#[derive(Debug)]
pub struct Pipeline {
    pieces: Pieces,
    compat: Compat,
}

/// What a pipeline promises for one module.
#[derive(Debug, Clone)]
pub struct PipelineLayout {
    /// The columns of the finished batch.
    pub columns: Vec<ColumnLayout>,
    /// What a row of the finished batch is.
    pub rows: Rows,
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
fn default_pieces(algorithm: Option<Algorithm>) -> Result<(Pieces, Pieces)> {
    let next_obs =
        matches!(algorithm, Some(Algorithm::Bc | Algorithm::Cql | Algorithm::Iql | Algorithm::Sac | Algorithm::Dqn));
    let one_more = matches!(algorithm, Some(Algorithm::Impala | Algorithm::Appo));
    if algorithm == Some(Algorithm::Marwil) {
        return Err(Error::usage("MARWIL's pipeline ends in GeneralAdvantageEstimation, which is not built yet")
            .job_key("learner.algorithm")
            .hint("BC has the same columns but for advantages and value targets"));
    }
    let mut front: Pieces = Vec::new();
    if one_more {
        front.push(Box::new(AddOneTsToEpisodesAndTruncate {}));
    }
    let mut rest: Pieces = vec![Box::new(AddObservationsFromEpisodesToBatch::default())];
    if next_obs {
        rest.push(Box::new(AddNextObservationsFromEpisodesToTrainBatch {}));
    }
    rest.push(Box::new(AddColumnsFromEpisodesToTrainBatch {}));
    rest.push(Box::new(AddTimeDimToBatchAndZeroPad::default()));
    rest.push(Box::new(AddStatesFromEpisodesToBatch::default()));
    rest.push(Box::new(BatchIndividualItems::default()));
    rest.push(Box::new(NumpyToTensor::default()));
    Ok((front, rest))
}

impl Pipeline {
    /// The pipeline of a job: custom pieces in front of the algorithm's, or custom pieces alone.
    ///
    /// # Errors
    /// If a piece is unknown or its options are wrong.
    pub fn new(learner: &Learner) -> Result<Self> {
        let custom: Vec<_> =
            learner.connectors.iter().enumerate().map(|(i, c)| connectors::build(i, c)).collect::<Result<_>>()?;
        let pieces = if learner.add_default_connectors_to_learner_pipeline {
            let (mut pieces, rest) = default_pieces(learner.algorithm)?;
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
        Ok(Self { pieces, compat: learner.compat })
    }

    /// The pieces in order.
    pub fn pieces(&self) -> impl Iterator<Item = &dyn Connector> {
        self.pieces.iter().map(|p| &**p)
    }

    /// To which episode ids RLlib's pieces would append the chunk's number; see [`crate::source::keys`].
    #[must_use]
    pub fn key_suffix(&self) -> Suffix {
        let has = |name: &str| self.pieces.iter().any(|p| p.name() == name);
        if has(AddOneTsToEpisodesAndTruncate::NAME) {
            Suffix::Always
        } else if has(AddObservationsFromEpisodesToBatch::NAME) {
            Suffix::WithoutUnderscore
        } else {
            Suffix::Never
        }
    }

    /// What the batch of `module` will hold.
    ///
    /// # Errors
    /// If a piece cannot run on such episodes; the error names it.
    pub fn layout(&self, module: &ModuleSettings, episodes: &EpisodeLayout) -> Result<PipelineLayout> {
        let cx = Context { module, compat: self.compat };
        let (mut episodes, mut batch) = (episodes.clone(), BatchLayout::default());
        for (i, piece) in self.pieces.iter().enumerate() {
            piece
                .layout(cx, &mut Plan { episodes: &mut episodes, batch: &mut batch })
                .map_err(|e| e.connector(i, piece.name()))?;
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
        Ok(PipelineLayout { columns: batch.columns, rows })
    }

    /// The batch of `episodes`.
    ///
    /// # Errors
    /// If the data break a rule that only data can show; the error names the piece.
    pub fn apply(
        &self,
        module: &ModuleSettings,
        layout: &PipelineLayout,
        episodes: &mut EpisodeBatch,
        repairs: &mut Repairs,
    ) -> Result<ModuleBatch> {
        let cx = Context { module, compat: self.compat };
        let mut batch = ModuleBatch::default();
        for (i, piece) in self.pieces.iter().enumerate() {
            piece.apply(cx, episodes, &mut batch, repairs).map_err(|e| e.connector(i, piece.name()))?;
        }
        keeps_promise(layout, &batch)?;
        Ok(batch)
    }
}

const fn row_word(rows: Rows) -> &'static str {
    match rows {
        Rows::Steps => "step",
        Rows::Sequences => "sequence",
    }
}

/// Layout foretells apply. Checked on every batch: it costs a comparison of names.
fn keeps_promise(layout: &PipelineLayout, batch: &ModuleBatch) -> Result<()> {
    let rows = batch.iter().next().map_or(0, |(_, t)| t.rows());
    let mut want = layout.columns.iter();
    for (name, tensor) in batch.iter() {
        match want.next() {
            Some(c) if c.name == name && c.ty == *tensor.ty() && tensor.rows() == rows => {}
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
