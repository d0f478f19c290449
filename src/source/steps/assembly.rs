//! Episodes of one module from the blocks that hold their rows.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::StepsSource;
use super::shape::{Leaf, Shape};
use crate::column::{self, ACTIONS, INFOS, NEXT_OBS, OBS, REWARDS, rebase, root};
use crate::episode::{Columns, EpisodeBatch};
use crate::error::{Error, Result};
use crate::source::Noticed;
use crate::source::blocks::{Block, BlockData, Blocks, LeafNulls, Piece, nulls_of};
use crate::source::index::{Entry, Index, Span};
use crate::source::ingest::ONE_SHAPE_A_MODULE;
use crate::tensor::{DType, Tensor, TensorBuilder, TensorType};

/// Puts episodes of one module and unit together.
pub(super) struct Assembly<'a> {
    source: &'a StepsSource,
    index: &'a Index,
    blocks: &'a Blocks,
    /// The module's id.
    module: &'a str,
    /// The columns of the blocks.
    all: Vec<Leaf>,
    /// The module's step columns in order.
    columns: Vec<StepColumn>,
    /// Observations among `all` that the module has, and the recorded next observation of each.
    next_pairs: Vec<(usize, usize)>,
    /// Columns among `all` that the module does not have.
    others: Vec<usize>,
}

/// A step column of a module.
struct StepColumn {
    name: Arc<str>,
    /// Its place among the columns of the blocks.
    at: usize,
    /// Whether it tells where that one is not null.
    is_mask: bool,
}

/// The columns and nulls of a block of steps.
fn parts(block: &Block) -> Result<(&Columns, &[LeafNulls])> {
    match &block.data {
        BlockData::Steps { columns, nulls, .. } => Ok((columns, nulls)),
        BlockData::Items(_) => Err(Error::internal("a block of items among steps")),
    }
}

/// Refuses rows of a block that could not be read.
fn refuse_bad(piece: Piece<'_>) -> Result<()> {
    let BlockData::Steps { bad, .. } = &piece.block.data else { return Ok(()) };
    let first = bad.partition_point(|(row, _)| *row < piece.start);
    let end = piece.row(piece.len.saturating_sub(1)) + 1;
    let own = |row: usize| (row - piece.start).is_multiple_of(piece.step);
    match bad[first..].iter().take_while(|(row, _)| *row < end).find(|(row, _)| own(*row)) {
        Some((_, error)) => Err(error.clone()),
        None => Ok(()),
    }
}

/// The columns of blocks that are none of a module's, in any type. Infos may be there or not.
fn not_of(all: &[Leaf], columns: &[StepColumn]) -> Vec<usize> {
    let own: HashSet<&str> = columns.iter().map(|c| &*c.name).collect();
    let is_own = |name: &str| match root(name) {
        INFOS => true,
        NEXT_OBS => own.contains(rebase(name, OBS).as_str()),
        _ => own.contains(name),
    };
    (0..all.len()).filter(|&at| !is_own(&all[at].0)).collect()
}

/// Whether a block's column is null in a row.
fn is_null(nulls: &[LeafNulls], at: usize, row: usize) -> bool {
    nulls_of(nulls, at).is_some_and(|nulls| nulls.is_null(row))
}

/// What to do about a column that some rows of a module lack; who knows the agents says which.
pub(super) const ALL_ROWS_OR_NONE: &str =
    "a module has a column in all of its rows or in none: fill it in, or give the agents modules of their own";

impl<'a> Assembly<'a> {
    pub(super) fn new(
        source: &'a StepsSource,
        index: &'a Index,
        entries: &[&Entry],
        blocks: &'a Blocks,
    ) -> Result<Self> {
        let module = entries.first().map_or(0, |e| e.module as usize);
        let layout = index.layouts.get(module).unwrap_or(&index.layout);
        let all = source.shape.leaves(&index.layout);
        let places: HashMap<(&str, &TensorType), usize> =
            all.iter().enumerate().rev().map(|(i, (name, ty))| ((&**name, ty), i)).collect();
        let first: HashMap<&str, usize> = all.iter().enumerate().rev().map(|(i, (name, _))| (&**name, i)).collect();
        let place = |name: &str, ty: &TensorType| places.get(&(name, ty)).copied();
        let infos = source.scan.infos.iter().zip(&source.masks);
        let masks: HashMap<&str, usize> =
            infos.filter_map(|((_, info, _), mask)| Some((&**mask, *first.get(&*info.name)?))).collect();
        let column = |(name, ty): &Leaf| {
            let is_mask = root(name) == INFOS && !first.contains_key(&**name);
            let at = if is_mask { masks.get(&**name).copied() } else { place(name, ty) };
            let at = at.ok_or_else(|| Error::internal(format!("column `{name}` {ty} is in no block")))?;
            Ok(StepColumn { name: Arc::clone(name), at, is_mask })
        };
        let columns: Vec<StepColumn> = layout.steps.iter().map(column).collect::<Result<_>>()?;
        let obs = layout.steps.iter().filter(|(name, _)| root(name) == OBS);
        let pair = |(name, ty): &Leaf| Some((place(name, ty)?, place(&rebase(name, NEXT_OBS), ty)?));
        let next_pairs = obs.filter_map(pair).collect();
        let others = if source.shape.unified.several { not_of(&all, &columns) } else { Vec::new() };
        let module = index.modules.get(module).map_or(column::DEFAULT_MODULE_ID, String::as_str);
        Ok(Self { source, index, blocks, module, all, columns, next_pairs, others })
    }

    fn shape(&self) -> &'a Shape {
        &self.source.shape
    }

    /// The step columns that hold recorded values.
    fn recorded(&self) -> impl Iterator<Item = &StepColumn> {
        self.columns.iter().filter(|c| !c.is_mask)
    }

    /// The step columns over `spans`: slices where the rows lie in one block, else copies of whole spans. Masks are
    /// left for [`Self::add_masks`], but have their place.
    pub(super) fn gather(&self, spans: &[Span], steps: usize) -> Result<Columns> {
        let mut pieces: Vec<(&Columns, Piece<'_>)> = Vec::new();
        for &span in spans {
            self.blocks.pieces(span, |piece| {
                pieces.push((parts(piece.block)?.0, piece));
                Ok(())
            })?;
        }
        let column = |c: &StepColumn| {
            let (name, ty) = (Arc::clone(&c.name), &self.all[c.at].1);
            if c.is_mask {
                return (name, Tensor::from_bools([]));
            }
            if let [(columns, Piece { start, len, step: 1, .. })] = pieces.as_slice() {
                return (name, columns.at(c.at).slice(*start, *len));
            }
            let mut out = TensorBuilder::with_capacity(ty.clone(), steps);
            for (columns, piece) in &pieces {
                out.extend_strided(columns.at(c.at), piece.start, piece.len, piece.step);
            }
            (name, out.finish())
        };
        Ok(self.columns.iter().map(column).collect())
    }

    /// Fills in the masks of infos: true where one was recorded.
    pub(super) fn add_masks(&self, spans: &[Span], steps: &mut Columns) -> Result<()> {
        for column in self.columns.iter().filter(|c| c.is_mask) {
            let mut mask = Vec::new();
            for &span in spans {
                self.blocks.pieces(span, |piece| {
                    let nulls = nulls_of(parts(piece.block)?.1, column.at);
                    mask.extend(piece.rows().map(|row| nulls.is_none_or(|n| n.is_valid(row))));
                    Ok(())
                })?;
            }
            steps.set(Arc::clone(&column.name), Tensor::from_bools(mask));
        }
        Ok(())
    }

    /// Refuses nulls in an episode's steps and what its module does not have, and counts where its observations do not
    /// follow one another.
    pub(super) fn check(&self, entry: &Entry, noticed: &mut Noticed) -> Result<()> {
        let mut before: Option<(&Columns, usize)> = None;
        for &span in entry.spans(&self.index.spans) {
            self.blocks.pieces(span, |piece| {
                let (columns, nulls) = parts(piece.block)?;
                refuse_bad(piece)?;
                self.check_nulls(piece, nulls)?;
                self.check_others(piece, nulls)?;
                if self.shape().has_next_obs() {
                    self.compare_seam(before, piece, noticed)?;
                    self.compare_inside(piece, noticed)?;
                    let last = piece.row(piece.len - 1);
                    before = (!self.next_obs_is_null(nulls, last)).then_some((columns, last));
                }
                Ok(())
            })?;
        }
        // The seam to the next slice; that one does not know what was recorded here.
        if let (Some(row), true) = (behind(entry), before.is_some()) {
            let (block, start) = self.blocks.row(row)?;
            self.compare_seam(before, Piece { block, start, len: 1, step: 1 }, noticed)?;
        }
        if let Some(row) = entry.tail() {
            self.check_tail(row, before, noticed)?;
        }
        entry.hanging().iter().try_for_each(|&(_, row)| self.notice_unread(row, true, noticed))
    }

    /// Counts what the row behind the last step holds and nothing reads. `before` is the last step, where its next
    /// observation was recorded.
    fn check_tail(&self, row: u64, before: Option<(&Columns, usize)>, noticed: &mut Noticed) -> Result<()> {
        let (block, at) = self.blocks.row(row)?;
        let (columns, nulls) = parts(block)?;
        if !self.next_pairs.iter().any(|&(obs, _)| is_null(nulls, obs, at)) {
            self.compare_seam(before, Piece { block, start: at, len: 1, step: 1 }, noticed)?;
        }
        let rewards = self.recorded().filter(|c| root(&c.name) == REWARDS);
        if rewards.into_iter().any(|c| !is_null(nulls, c.at, at) && !columns.at(c.at).is_zero(at)) {
            noticed.trailing_rewards.add(row);
        }
        self.notice_unread(row, false, noticed)
    }

    /// Counts a row without an action that holds what nothing reads of such a row: a model output, a next observation, infos
    /// of an agent that waits. Zeros are what recorders fill columns with.
    fn notice_unread(&self, row: u64, waits: bool, noticed: &mut Noticed) -> Result<()> {
        let (block, at) = self.blocks.row(row)?;
        let (columns, nulls) = parts(block)?;
        let is_unread =
            |name: &str| if root(name) == INFOS { waits } else { !matches!(root(name), OBS | ACTIONS | REWARDS) };
        let mut any = false;
        for (c, (name, _)) in self.all.iter().enumerate().filter(|(_, (name, _))| is_unread(name)) {
            if !is_null(nulls, c, at) && !columns.at(c).is_zero(at) {
                any = true;
                if !noticed.unread_columns.contains(&**name) {
                    noticed.unread_columns.insert(name.to_string());
                }
            }
        }
        if any {
            noticed.unread.add(row);
        }
        Ok(())
    }

    /// Refuses nulls in the module's columns. Infos may have them.
    fn check_nulls(&self, piece: Piece<'_>, nulls: &[LeafNulls]) -> Result<()> {
        for column in self.recorded().filter(|c| root(&c.name) != INFOS) {
            let here = nulls_of(nulls, column.at).filter(|n| n.null_count() > 0);
            let Some(at) = here.and_then(|n| piece.rows().find(|&row| n.is_null(row))) else { continue };
            let mut others = (0..self.all.len()).filter(|&c| c != column.at && self.all[c].0 == column.name);
            let error = match others.find(|&c| !is_null(nulls, c, at)) {
                Some(other) => Error::data(format!(
                    "found {}, expected {} as in the first step of module {:?}",
                    self.all[other].1, self.all[column.at].1, self.module
                ))
                .hint(ONE_SHAPE_A_MODULE),
                None => Error::data("found null, expected a value in every row").hint(self.null_hint(&column.name)),
            };
            return Err(self.source.rows.locate(piece.block.rows.at(at), error.column(column.name.to_string())));
        }
        Ok(())
    }

    /// What to do about a null in a step.
    fn null_hint(&self, column: &str) -> String {
        let mut ways = vec!["fill it in".to_owned()];
        if let Some(way) = self.source.leave_out_hint(column) {
            ways.push(way);
            if self.source.scan.agent.is_some() {
                ways.push(
                    "give the agents that lack it a module of their own, in all of whose rows it may be null"
                        .to_owned(),
                );
            }
        }
        if !self.source.tolerant {
            ways.push("leave such episodes out by `input.on_bad_episode = \"skip\"`".to_owned());
        }
        ways.join("; or ")
    }

    /// Refuses values in columns that the module's first step did not have: they would be lost.
    fn check_others(&self, piece: Piece<'_>, nulls: &[LeafNulls]) -> Result<()> {
        for &at in &self.others {
            if let Some(row) = piece.rows().find(|&row| !is_null(nulls, at, row)) {
                let what = format!("found a value, expected null as in the first step of module {:?}", self.module);
                let error = Error::data(what).column(self.all[at].0.to_string()).hint(ALL_ROWS_OR_NONE);
                return Err(self.source.rows.locate(piece.block.rows.at(row), error));
            }
        }
        Ok(())
    }

    /// Whether a block's row lacks its recorded next observation.
    fn next_obs_is_null(&self, nulls: &[LeafNulls], row: usize) -> bool {
        self.next_pairs.iter().any(|&(_, next)| is_null(nulls, next, row))
    }

    /// Adds rewards that came while an agent did not act to the steps that they belong to. `hanging`: where an episode
    /// starts in `to`, the step in it, and the row that holds the reward; in the order of the steps.
    ///
    /// The sum has the dtype of the rewards: a wider one would be another column, for all rows, because of one of them.
    pub(super) fn add_hanging_rewards(
        &self,
        hanging: impl Iterator<Item = (usize, u64, u64)>,
        to: &mut Columns,
    ) -> Result<()> {
        let mut adds: Vec<(usize, &[u8])> = Vec::new();
        let mut rows: Vec<u64> = Vec::new();
        let Some(column) = self.recorded().find(|c| *c.name == *REWARDS).map(|c| c.at) else { return Ok(()) };
        for (start, step, row) in hanging {
            let (block, i) = self.blocks.row(row)?;
            refuse_bad(Piece { block, start: i, len: 1, step: 1 })?;
            let (columns, nulls) = parts(block)?;
            let step = usize::try_from(step).map_err(|_| Error::internal("an episode larger than memory"))?;
            if !is_null(nulls, column, i) {
                adds.push((start + step, columns.at(column).row(i)));
                rows.push(row);
            }
        }
        if let (false, Some(rewards)) = (adds.is_empty(), to.get(REWARDS)) {
            let sum = rewards.with_added_rows(&adds).map_err(|at| {
                let what = format!(
                    "the reward of an agent that waits is added to that of its last action, and {} does not hold the sum",
                    self.all[column].1.dtype
                );
                let error = Error::data(what).column(REWARDS);
                self.source.rows.locate(rows[at], error.hint("cast the rewards to a wider type before: float64, int64"))
            })?;
            to.set(REWARDS, sum);
        }
        Ok(())
    }

    /// Fills in the rows before slices. They are steps of slices that were checked before.
    pub(super) fn look_back(&self, entries: &[&Entry], batch: &mut EpisodeBatch) -> Result<()> {
        let (mut spans, mut hanging, mut rows) = (Vec::new(), Vec::new(), 0);
        batch.history_offsets.push(0);
        for entry in entries {
            if let Some(slice) = entry.slice() {
                hanging.extend(slice.look_back_hanging.iter().map(|&(step, row)| (rows, step, row)));
                spans.extend_from_slice(&slice.look_back);
                let own: u64 = slice.look_back.iter().map(|s| s.len()).sum();
                rows += usize::try_from(own).map_err(|_| Error::internal("a look-back larger than memory"))?;
            }
            batch.history_offsets.push(rows);
        }
        if rows > 0 {
            batch.history = self.gather(&spans, rows)?;
            self.add_masks(&spans, &mut batch.history)?;
            self.add_hanging_rewards(hanging.into_iter(), &mut batch.history)?;
        }
        Ok(())
    }

    fn compare_seam(&self, before: Option<(&Columns, usize)>, piece: Piece<'_>, noticed: &mut Noticed) -> Result<()> {
        let Some((last, at)) = before else { return Ok(()) };
        let (columns, _) = parts(piece.block)?;
        if self.next_pairs.iter().any(|&(obs, next)| last.at(next).row(at) != columns.at(obs).row(piece.start)) {
            noticed.discontinuities.add(piece.block.rows.at(piece.start));
        }
        Ok(())
    }

    fn compare_inside(&self, piece: Piece<'_>, noticed: &mut Noticed) -> Result<()> {
        let (columns, nulls) = parts(piece.block)?;
        let (start, len) = (piece.start, piece.len);
        let same = |&(obs, next): &(usize, usize)| {
            let (obs, next) = (columns.at(obs), columns.at(next));
            obs.slice(start + 1, len - 1).bytes() == next.slice(start, len - 1).bytes()
        };
        if piece.step == 1 && self.next_pairs.iter().all(same) {
            return Ok(());
        }
        for (row, after) in piece.rows().zip(piece.rows().skip(1)) {
            let differs = |&(obs, next): &(usize, usize)| columns.at(obs).row(after) != columns.at(next).row(row);
            if self.next_pairs.iter().any(differs) && !self.next_obs_is_null(nulls, row) {
                noticed.discontinuities.add(piece.block.rows.at(after));
            }
        }
        Ok(())
    }

    /// Fills in the chunks and what came after their last steps: the observation from `new_obs` of the last row, else
    /// observation and infos of the trailing row. What comes after a slice is the next one's first row.
    pub(super) fn last_obs(&self, entries: &[&Entry], batch: &mut EpisodeBatch) -> Result<()> {
        let after = |c: &&StepColumn| matches!(root(&c.name), OBS | INFOS);
        let columns: Vec<&StepColumn> = self.columns.iter().filter(after).collect();
        let next: HashMap<usize, usize> = self.next_pairs.iter().rev().copied().collect();
        let ty = |c: &StepColumn| if c.is_mask { TensorType::new(DType::Bool, []) } else { self.all[c.at].1.clone() };
        let mut builders: Vec<TensorBuilder> =
            columns.iter().map(|c| TensorBuilder::with_capacity(ty(c), entries.len())).collect();
        for (i, entry) in entries.iter().enumerate() {
            let behind = behind(entry);
            let last_row = entry.spans(&self.index.spans).last().map(|s| s.end() - 1).filter(|_| behind.is_none());
            let mut recorded = None;
            if let Some(row) = last_row.filter(|_| self.shape().has_next_obs()) {
                let (block, at) = self.blocks.row(row)?;
                let (columns, nulls) = parts(block)?;
                if !self.next_obs_is_null(nulls, at) {
                    recorded = Some((columns, at));
                }
            }
            let mut trailing = None;
            if let Some(row) = behind.or(entry.tail()) {
                let (block, at) = self.blocks.row(row)?;
                let piece = Piece { block, start: at, len: 1, step: 1 };
                refuse_bad(piece)?;
                let (columns, nulls) = parts(block)?;
                if behind.is_some() {
                    self.check_nulls(piece, nulls)?;
                }
                let missing = self.recorded().find(|c| root(&c.name) == OBS && is_null(nulls, c.at, at));
                if let (Some(missing), None) = (missing, recorded) {
                    let error = Error::data("found null in the row that holds the last observation");
                    let error = error.column(missing.name.to_string()).episode(entry.id.to_string());
                    return Err(self.source.rows.locate(row, error));
                }
                trailing = Some((columns, nulls, at));
            }
            for (builder, column) in builders.iter_mut().zip(&columns) {
                match (root(&column.name) == INFOS, recorded, trailing) {
                    (true, _, Some((_, nulls, at))) if column.is_mask => {
                        builder.extend_bytes(&[u8::from(!is_null(nulls, column.at, at))], 1);
                    }
                    (false, Some((columns, at)), _) => {
                        builder.extend(columns.at(next.get(&column.at).copied().unwrap_or(column.at)), at, 1);
                    }
                    (_, _, Some((columns, _, at))) => builder.extend(columns.at(column.at), at, 1),
                    // Infos of no other step than the last are known.
                    (true, ..) if !batch.rows(i).is_empty() => match batch.steps.get(&column.name) {
                        Some(steps) => builder.extend(steps, batch.offsets[i + 1] - 1, 1),
                        None => builder.extend_zeros(1),
                    },
                    _ => builder.extend_zeros(1),
                }
            }
            batch.chunks.push(entry.chunk(recorded.is_some() || trailing.is_some()));
        }
        batch.last_obs = columns.iter().zip(builders).map(|(c, b)| (Arc::clone(&c.name), b.finish())).collect();
        Ok(())
    }
}

/// The row of the step after a slice's last one.
fn behind(entry: &Entry) -> Option<u64> {
    entry.slice().and_then(|s| s.behind)
}
