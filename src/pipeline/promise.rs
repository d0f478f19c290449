//! What a pipeline will make of a module's episodes, and that it does.

use super::Pipeline;
use super::clash::{Recorded, unread};
use crate::batch::{BatchLayout, ColumnLayout, ModuleBatch, Rows, Stage};
use crate::column::OBS;
use crate::connector::{Piece, Plan};
use crate::connectors::AddColumnsFromEpisodesToTrainBatch;
use crate::episode::EpisodeLayout;
use crate::error::{Error, Result};
use crate::indexed::{BARE_STEPS, STEPS, Stored};
use crate::job::{Compat, ModuleSettings, WindowStorage};
use crate::source::keys::{Keys, Numbering};
use crate::window::Spec;

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
    pub(super) windows: Option<Spec>,
    /// What becomes of RLlib's ids.
    pub(super) numbering: Numbering,
    /// How many of the columns are there before that (they are the first ones).
    pub(super) bare_columns: usize,
    /// Recorded outputs that are left out, because a piece makes columns of their names.
    pub(super) replaced: Vec<String>,
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

impl Pipeline {
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
        let mut recorded = Recorded::new(module, &episodes)?;
        for (i, piece) in self.pieces.iter().enumerate() {
            if numbering == Numbering::None && !(piece.numbering() == Numbering::WithObservations && batch.has(OBS)) {
                numbering = piece.numbering();
                bare_columns = batch.columns.len();
            }
            let before = batch.columns.len();
            if piece.name() == AddColumnsFromEpisodesToTrainBatch::NAME {
                recorded.look_before(&batch);
            }
            let mut plan = Plan { episodes: &mut episodes, batch: &mut batch };
            let made = piece.layout(cx, &mut plan).and_then(|()| recorded.check_added(&batch, before));
            made.map_err(|e| self.named(i, e))?;
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
        Ok(PipelineLayout {
            columns: batch.columns,
            rows,
            windows: batch.windows,
            numbering,
            bare_columns,
            replaced: recorded.replaced,
        })
    }
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

/// Notes about recorded outputs that no column comes from. `episodes` are those of the modules.
#[must_use]
pub fn unread_outputs<'a>(
    modules: &[ModulePlan],
    episodes: impl IntoIterator<Item = &'a EpisodeLayout>,
) -> Vec<String> {
    let of = |(m, e): (&ModulePlan, &EpisodeLayout)| unread(&m.id, &m.settings, e, &m.layout.replaced);
    modules.iter().zip(episodes).flat_map(of).collect()
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
    use super::*;

    #[test]
    fn only_sequences_have_a_length() {
        let seq_len = |windows| {
            let rows = Rows::Steps;
            PipelineLayout {
                columns: Vec::new(),
                rows,
                windows,
                numbering: Numbering::None,
                bare_columns: 0,
                replaced: Vec::new(),
            }
            .seq_len()
        };
        assert_eq!(seq_len(None), None);
        assert_eq!(seq_len(Some(Spec::sequences(3))), Some(3));
        assert_eq!(seq_len(Some(Spec { before: 1, ..Spec::sequences(3) })), None);
    }
}
