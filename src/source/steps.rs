//! Layouts with one row a step: `steps` and `rllib-columns`.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::NullBuffer;

use super::agents;
use super::blocks::{Block, BlockData, Blocks, LeafNulls, Piece};
use super::file::InputFile;
use super::index::{self, Entry, Index, Rare, Span};
use super::ingest;
use super::prints::PrintTable;
use super::resolve::{self, Resolved};
use super::rows::{RowGroupRef, RowMap};
use super::runs::Who;
use super::scan::{self, Presence, ScanColumns, Scanned};
use super::schema::Unified;
use super::{BlockIter, IndexOptions, Noticed, Source};
use crate::column::{self, ACTIONS, NEXT_OBS, OBS, REWARDS, rebase, root};
use crate::episode::{Chunk, Columns, EpisodeBatch, EpisodeId, EpisodeLayout, is_extra};
use crate::error::{Error, Result};
use crate::job::{Duplicates, Unfinished};
use crate::progress::Progress;
use crate::tensor::{Tensor, TensorBuilder, TensorType};

/// Recordings with one row a step.
#[derive(Debug)]
pub struct StepsSource {
    recognised: String,
    notes: Vec<String>,
    rows: RowMap,
    shape: Arc<Shape>,
    scan: ScanColumns,
}

/// What the rows look like; shared with the tasks that decode them.
#[derive(Debug)]
struct Shape {
    unified: Unified,
    /// The step columns and then those of the recorded next observations, in the order of the blocks' columns.
    leaves: Vec<(Arc<str>, TensorType)>,
    /// How many of them are step columns.
    steps: usize,
}

impl StepsSource {
    /// A source over files whose columns were unified.
    ///
    /// # Errors
    /// If recorded next observations do not fit the observations.
    pub fn new(recognised: String, rows: RowMap, unified: Unified) -> Result<Self> {
        let name_of = |name: &str| unified.column(name).map(|c| c.source.clone());
        let first_of = |root: &str| unified.under(root).next().map(|c| c.source.clone()).unwrap_or_default();
        let extra =
            |c: &&super::schema::UnifiedColumn| !c.leaves.is_empty() && is_extra(&c.name) && root(&c.name) != NEXT_OBS;
        let scan = ScanColumns {
            eps_id: name_of(column::EPS_ID).ok_or_else(|| Error::internal("no episode ids"))?,
            agent: name_of(column::AGENT_ID),
            module: name_of(column::MODULE_ID),
            t: name_of(column::T),
            terminateds: name_of(column::TERMINATEDS),
            truncateds: name_of(column::TRUNCATEDS),
            obs: first_of(OBS),
            actions: first_of(ACTIONS),
            extras: unified.columns.iter().filter(extra).map(|c| c.source.clone()).collect(),
        };
        let (steps, next) = split_leaves(&unified)?;
        let shape = Shape { steps: steps.len(), leaves: steps.into_iter().chain(next).collect(), unified };
        let notes = shape.unified.notes.clone();
        Ok(Self { recognised, notes, rows, shape: Arc::new(shape), scan })
    }

    /// The numbering of all rows.
    pub(super) fn row_map(&self) -> &RowMap {
        &self.rows
    }

    /// The decoded blocks of a row group. With `flags` the flag columns are among the columns.
    pub(super) fn blocks(&self, group: RowGroupRef, block_bytes: usize, flags: bool) -> Result<BlockIter> {
        let file = Arc::clone(&self.rows.files()[group.file]);
        let shape = Arc::clone(&self.shape);
        let place = move |file: &InputFile, e: Error| e.file(file.name.clone()).row_group(group.row_group);
        let row_bytes: usize = shape.leaves.iter().map(|(_, ty)| ty.row_bytes()).sum();
        let batch_rows = (block_bytes / row_bytes.max(1)).clamp(1, 65_536);
        let mut wanted = shape.unified.sources(&file);
        let flag_names: Vec<(&str, String)> =
            [(column::TERMINATEDS, &self.scan.terminateds), (column::TRUNCATEDS, &self.scan.truncateds)]
                .into_iter()
                .filter_map(|(name, source)| Some((name, source.clone()?)))
                .collect();
        let tensor_source = |s: &String| shape.unified.columns.iter().any(|c| c.source == *s && !c.leaves.is_empty());
        wanted.retain(|s| tensor_source(s) || (flags && flag_names.iter().any(|(_, f)| f == s)));
        let batches = file.read(group.row_group, &wanted, batch_rows).map_err(|e| place(&file, e))?;
        let mut row = group.first_row;
        let first_in_file = file.row_groups[group.row_group].first_row;
        let iter = batches.map(move |batch| {
            let batch = batch.map_err(|e| place(&file, e))?;
            let in_file = first_in_file + (row - group.first_row);
            let (mut columns, nulls) = shape.decode(&file, &batch, in_file).map_err(|e| place(&file, e))?;
            if flags {
                for (name, source) in &flag_names {
                    if let Some(array) = batch.column_by_name(source) {
                        let values = ingest::flags(array, in_file).map_err(|e| place(&file, e.column(*name)))?;
                        columns.set(*name, Tensor::from_bools(values.iter().map(|v| v.unwrap_or(false))));
                    }
                }
            }
            let rows = batch.num_rows() as u64;
            let bytes = columns.iter().map(|(_, t)| t.bytes().len()).sum();
            let block = Block { first_row: row, rows, bytes, data: BlockData::Steps { columns, nulls } };
            row += rows;
            Ok(block)
        });
        Ok(Box::new(iter))
    }

    fn entries(&self, scanned: &mut Scanned, options: IndexOptions<'_>, index: &mut Index) -> Result<()> {
        let offsets = scanned.runs.sort_by_episode();
        let (whose, runs) = (&scanned.runs.ids, &scanned.runs.runs);
        let timed = self.scan.timed();
        let of = |e: usize| &runs[offsets[e]..offsets[e + 1]];
        let to_print: Vec<Span> =
            (0..whose.len()).flat_map(|e| resolve::rows_to_print(of(e), timed, options.duplicates)).collect();
        let prints = if to_print.is_empty() { PrintTable::default() } else { PrintTable::read(self, to_print)? };
        let modules = self.modules(scanned, options, index)?;
        // Episodes are numbered in order of first appearance, and that is their place. Only the agents of one episode
        // must be brought together, in the order in which they appear, and an episode that an id stands for a second
        // time (duplicates kept) goes to where its own rows start.
        let moves = index.multi_agent || options.duplicates == Duplicates::Keep;
        let mut appearance: HashMap<&EpisodeId, u64> = HashMap::new();
        for (e, who) in whose.iter().enumerate().filter(|_| moves) {
            let row = of(e)[0].span.row;
            appearance.entry(&who.id).and_modify(|first| *first = row.min(*first)).or_insert(row);
        }
        index.episode_ids = if moves { appearance.len() } else { whose.len() } as u64;
        let mut places: Vec<(u64, u64)> = Vec::new();
        for (e, who) in whose.iter().enumerate() {
            let all = resolve::resolve(of(e), timed, options.duplicates, &|row| prints.get(row))
                .map_err(|e| self.rows.locate(e.row, e.error).episode(who.id.to_string()))?;
            let first_row = of(e)[0].span.row;
            for (i, episode) in all.into_iter().enumerate() {
                let Some(mut entry) = self.entry(who, &episode, options, index)? else { continue };
                entry.module = modules[e];
                index.entries.push(entry);
                if moves {
                    let again = episode.spans.first().map_or(first_row, |s| s.row);
                    places.push(if i == 0 { (appearance[&who.id], first_row) } else { (again, again) });
                }
            }
        }
        if moves {
            let mut order: Vec<usize> = (0..places.len()).collect();
            order.sort_by_key(|&i| places[i]);
            index.entries = order.into_iter().map(|i| index.entries[i].clone()).collect();
        }
        index::number(&mut index.entries)
    }

    /// The module of each episode (of one agent), as an index of [`Index::modules`], which this fills in together
    /// with the modules' layouts.
    fn modules(&self, scanned: &Scanned, options: IndexOptions<'_>, index: &mut Index) -> Result<Vec<u32>> {
        let mut out = Vec::with_capacity(scanned.runs.ids.len());
        let mut own: HashMap<(&EpisodeId, Option<&str>), &Who> = HashMap::new();
        let mut presence: Vec<Presence> = Vec::new();
        for (e, who) in scanned.runs.ids.iter().enumerate() {
            // Only where modules are recorded can one agent of an episode stand here twice.
            if who.module.is_some()
                && let Some(before) = own.insert((&who.id, who.agent.as_deref()), who)
            {
                let name = |w: &Who| w.module.as_deref().unwrap_or("none").to_owned();
                let what = format!("the rows of one agent name two modules, {:?} and {:?}", name(before), name(who));
                return Err(Error::data(what)
                    .episode(who.id.to_string())
                    .column(column::MODULE_ID)
                    .hint("an agent's module must stay the same during an episode"));
            }
            index.multi_agent |= who.agent.is_some();
            let module = agents::module_of(who, options.agent_to_module)?;
            let known = index.modules.iter().position(|m| *m == module);
            let at = known.unwrap_or(index.modules.len());
            if known.is_none() {
                index.modules.push(module);
                presence.push(Presence::default());
            }
            if let Some(seen) = scanned.extras.get(e) {
                presence[at].null.extend(&seen.null);
                presence[at].valid.extend(&seen.valid);
            }
            out.push(u32::try_from(at).map_err(|_| Error::usage("found more modules than there can be"))?);
        }
        index.layouts = presence.iter().map(|seen| self.layout_of(seen, &index.layout)).collect();
        Ok(out)
    }

    /// The columns of a module: without the extra outputs that are null in all of its rows.
    fn layout_of(&self, seen: &Presence, all: &EpisodeLayout) -> EpisodeLayout {
        let lacks = |source: &String| {
            let at = self.scan.extras.iter().position(|e| e == source);
            at.is_some_and(|at| seen.null.contains(&at) && !seen.valid.contains(&at))
        };
        let missing: Vec<&str> = self
            .shape
            .unified
            .columns
            .iter()
            .filter(|c| lacks(&c.source))
            .flat_map(|c| c.leaves.iter().map(|(leaf, _)| leaf.name.as_str()))
            .collect();
        let mut own = all.clone();
        own.steps.retain(|(name, _)| !missing.contains(&&**name));
        own
    }

    /// The entry of one episode, unless the job drops it.
    fn entry(
        &self,
        who: &Who,
        episode: &Resolved,
        options: IndexOptions<'_>,
        index: &mut Index,
    ) -> Result<Option<Entry>> {
        let id = &who.id;
        let steps: u64 = episode.spans.iter().map(|s| s.len).sum();
        index.episodes_read += 1;
        index.steps_read += steps + episode.duplicates;
        index.oddities.empty_episodes += u64::from(steps == 0);
        if episode.duplicates > 0 {
            index.oddities.duplicate_rows += episode.duplicates;
            index.oddities.duplicate_episodes += 1;
            index.oddities.first_duplicate =
                [index.oddities.first_duplicate, episode.first_duplicate].into_iter().flatten().min();
            if options.duplicates == Duplicates::Fail {
                let what = match episode.duplicates {
                    1 => "1 row of the episode repeats an earlier one".to_owned(),
                    n => format!("{n} rows of the episode repeat earlier ones"),
                };
                let error = Error::data(what).episode(id.to_string());
                let error = error.hint("`input.duplicates = \"drop\"` keeps one of each");
                return Err(match episode.first_duplicate {
                    Some(row) => self.rows.locate(row, error),
                    None => error,
                });
            }
        }
        let mut done = episode.done;
        if !done.any() && steps > 0 {
            index.oddities.unfinished_episodes += 1;
            match options.unfinished {
                Unfinished::Keep => {}
                Unfinished::Truncate => done.truncated = true,
                Unfinished::Drop => {
                    index.oddities.dropped_unfinished_episodes += 1;
                    index.oddities.dropped_unfinished_steps += steps;
                    return Ok(None);
                }
                Unfinished::Fail => {
                    let row = episode.spans.last().map_or(0, |s| s.row + s.len - 1);
                    let error = Error::data("the episode's last row is neither terminated nor truncated")
                        .episode(id.to_string())
                        .hint("`input.unfinished` = \"keep\", \"truncate\" or \"drop\" says what to do with such episodes");
                    return Err(self.rows.locate(row, error));
                }
            }
        }
        let start = index.spans.len();
        index.spans.extend_from_slice(&episode.spans);
        Ok(Some(Entry {
            id: id.clone(),
            module: 0,
            ordinal: 0,
            bare_rank: 0,
            spans: start..index.spans.len(),
            steps,
            t_started: episode.t_started,
            terminated: done.terminated,
            truncated: done.truncated,
            rare: Rare {
                agent_id: who.agent.clone(),
                tail: episode.tail,
                hanging: episode.hanging.clone(),
                history: Vec::new(),
            }
            .boxed(),
        }))
    }
}

/// The leaves of the step columns (observations, actions, rewards, extra outputs, in this order) and those of the
/// recorded next observations.
#[expect(clippy::type_complexity, reason = "two lists of the same kind")]
fn split_leaves(unified: &Unified) -> Result<(Vec<(Arc<str>, TensorType)>, Vec<(Arc<str>, TensorType)>)> {
    let leaves = |want: &dyn Fn(&str) -> bool| -> Vec<(Arc<str>, TensorType)> {
        let columns = unified.columns.iter().filter(|c| want(root(&c.name)));
        columns.flat_map(|c| &c.leaves).map(|(leaf, ty)| (Arc::from(leaf.name.as_str()), ty.clone())).collect()
    };
    let mut steps = leaves(&|r| r == OBS);
    let obs = steps.clone();
    steps.extend(leaves(&|r| r == ACTIONS));
    steps.extend(leaves(&|r| r == REWARDS));
    steps.extend(leaves(&|r| !matches!(r, OBS | ACTIONS | REWARDS | NEXT_OBS)));
    let next = leaves(&|r| r == NEXT_OBS);
    for (name, ty) in &obs {
        let expected = rebase(name, NEXT_OBS);
        match next.iter().find(|(n, _)| **n == *expected) {
            _ if next.is_empty() => {}
            Some((_, found)) if found == ty => {}
            Some((_, found)) => {
                let error = Error::usage(format!("`{expected}` is {found}, but `{name}` is {ty}")).column(expected);
                return Err(error.hint("cast one of them before, so that both have one type and shape"));
            }
            None => return Err(Error::usage(format!("`{name}` is recorded, but `{expected}` is not")).column(expected)),
        }
    }
    if next.len() > obs.len() {
        return Err(Error::usage("`new_obs` has leaves that `obs` has not").column(NEXT_OBS));
    }
    Ok((steps, next))
}

impl Shape {
    /// The leaves of a batch in the order of [`Self::leaves`], and the rows that are null.
    fn decode(&self, file: &InputFile, batch: &RecordBatch, row_in_file: u64) -> Result<(Columns, Vec<LeafNulls>)> {
        let rows = batch.num_rows();
        let mut found: Vec<Option<Tensor>> = vec![None; self.leaves.len()];
        let mut nulls = Vec::new();
        for column in self.unified.columns.iter().filter(|c| !c.leaves.is_empty()) {
            let at = |name: &str| self.leaves.iter().position(|(n, _)| **n == *name);
            let Some(array) = batch.column_by_name(&column.source) else {
                for (leaf, ty) in &column.leaves {
                    if let Some(i) = at(&leaf.name) {
                        found[i] = Some(Tensor::zeros(ty.clone(), rows));
                        nulls.push((Arc::clone(&self.leaves[i].0), NullBuffer::new_null(rows)));
                    }
                }
                continue;
            };
            let field = file
                .schema
                .field_with_name(&column.source)
                .map_err(|e| Error::internal(format!("column {:?}: {e}", column.source)))?;
            let read = ingest::tensors(field, array, &column.leaves, row_in_file)?;
            for ((leaf, _), ingested) in column.leaves.iter().zip(read) {
                let Some(i) = at(&leaf.name) else { continue };
                if let Some(n) = ingested.nulls {
                    nulls.push((Arc::clone(&self.leaves[i].0), n));
                }
                found[i] = Some(ingested.tensor);
            }
        }
        let columns = self.leaves.iter().zip(found).map(|((name, _), tensor)| {
            let tensor = tensor.ok_or_else(|| Error::internal(format!("column `{name}` was not read")))?;
            Ok((Arc::clone(name), tensor))
        });
        Ok((columns.collect::<Result<Columns>>()?, nulls))
    }

    fn has_next_obs(&self) -> bool {
        self.leaves.len() > self.steps
    }
}

impl Source for StepsSource {
    fn recognised(&self) -> &str {
        &self.recognised
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn rows(&self) -> &RowMap {
        &self.rows
    }

    fn rows_are_steps(&self) -> bool {
        true
    }

    fn peek(&self) -> Result<EpisodeLayout> {
        // A trailing row can hold the last observation only where actions can be null at all.
        let may_trail = Some(&self.scan.actions).is_some_and(|name| {
            self.rows.groups().iter().any(|g| {
                let file = &self.rows.files()[g.file];
                file.null_count(g.row_group, name) != Some(0)
            })
        });
        Ok(EpisodeLayout {
            steps: self.shape.leaves[..self.shape.steps].to_vec(),
            last_obs: self.shape.has_next_obs() || may_trail,
        })
    }

    fn index(&self, options: IndexOptions<'_>, progress: &dyn Progress) -> Result<Index> {
        let mut index = Index { layout: self.peek()?, ..Index::default() };
        let mut scanned = scan::scan(&self.rows, &self.scan, progress)?;
        self.entries(&mut scanned, options, &mut index)?;
        if index.steps_read == 0 {
            let error = Error::usage("found null in every row, expected actions").column(ACTIONS);
            return Err(self
                .rows
                .locate(0, error)
                .hint("a row without an action is the one behind an episode's last step"));
        }
        Ok(index)
    }

    fn read(&self, group: RowGroupRef, _: &EpisodeLayout, block_bytes: usize) -> Result<BlockIter> {
        self.blocks(group, block_bytes, false)
    }

    fn assemble(
        &self,
        index: &Index,
        entries: &[&Entry],
        blocks: &Blocks,
        noticed: &mut Noticed,
    ) -> Result<EpisodeBatch> {
        let layout = entries.first().and_then(|e| index.layouts.get(e.module as usize)).unwrap_or(&index.layout);
        let has = |c: &usize| layout.get(&self.shape.leaves[*c].0).is_some();
        let leaves = (0..self.shape.steps).filter(has).collect();
        let assembly = Assembly { source: self, index, blocks, leaves };
        let mut batch =
            EpisodeBatch { offsets: vec![0], history_offsets: vec![0; entries.len() + 1], ..EpisodeBatch::default() };
        let mut spans: Vec<Span> = Vec::new();
        let mut steps = 0;
        for entry in entries {
            assembly.check(entry, noticed)?;
            for &span in &index.spans[entry.spans.clone()] {
                match spans.last_mut() {
                    Some(last) if last.row + last.len == span.row => last.len += span.len,
                    _ => spans.push(span),
                }
            }
            steps += usize::try_from(entry.steps).map_err(|_| Error::internal("an episode larger than memory"))?;
            batch.offsets.push(steps);
        }
        batch.steps = assembly.gather(&spans, steps)?;
        assembly.add_hanging_rewards(entries, &mut batch)?;
        assembly.last_obs(entries, &mut batch)?;
        Ok(batch)
    }
}

/// Puts episodes of one unit together.
struct Assembly<'a> {
    source: &'a StepsSource,
    index: &'a Index,
    blocks: &'a Blocks,
    /// The module's step columns, as positions in [`Shape::leaves`].
    leaves: Vec<usize>,
}

/// The columns and nulls of a block of steps.
fn parts(block: &Block) -> Result<(&Columns, &[LeafNulls])> {
    match &block.data {
        BlockData::Steps { columns, nulls } => Ok((columns, nulls)),
        BlockData::Items(_) => Err(Error::internal("a block of items among steps")),
    }
}

/// Whether a block's row lacks its recorded next observation.
fn next_obs_is_null(nulls: &[LeafNulls], row: usize) -> bool {
    nulls.iter().any(|(name, nulls)| root(name) == NEXT_OBS && nulls.is_null(row))
}

impl<'a> Assembly<'a> {
    fn shape(&self) -> &'a Shape {
        &self.source.shape
    }

    /// The step columns over `spans`: slices where the rows lie in one block, else copies of whole spans.
    fn gather(&self, spans: &[Span], steps: usize) -> Result<Columns> {
        let leaves = || self.leaves.iter().map(|&c| (c, &self.shape().leaves[c]));
        let mut pieces: Vec<(&Columns, usize, usize)> = Vec::new();
        for &span in spans {
            self.blocks.pieces(span, |piece| {
                pieces.push((parts(piece.block)?.0, piece.start, piece.len));
                Ok(())
            })?;
        }
        if let [(columns, start, len)] = pieces.as_slice() {
            return Ok(leaves().map(|(c, (n, _))| (Arc::clone(n), columns.at(c).slice(*start, *len))).collect());
        }
        let joined = leaves().map(|(c, (name, ty))| {
            let mut out = TensorBuilder::with_capacity(ty.clone(), steps);
            for (columns, start, len) in &pieces {
                out.extend(columns.at(c), *start, *len);
            }
            (Arc::clone(name), out.finish())
        });
        Ok(joined.collect())
    }

    /// Refuses nulls in an episode's steps, and counts where its observations do not follow one another.
    fn check(&self, entry: &Entry, noticed: &mut Noticed) -> Result<()> {
        let mut before: Option<(&Columns, usize)> = None;
        for &span in &self.index.spans[entry.spans.clone()] {
            self.blocks.pieces(span, |piece| {
                let (columns, nulls) = parts(piece.block)?;
                for (name, nulls) in nulls.iter().filter(|(n, _)| self.holds(n)) {
                    let here = nulls.slice(piece.start, piece.len);
                    if let Some(i) =
                        (here.null_count() > 0).then(|| (0..piece.len).find(|&i| here.is_null(i))).flatten()
                    {
                        let row = piece.block.first_row + (piece.start + i) as u64;
                        let error = Error::data("found null, expected a value in every row")
                            .column(name.to_string())
                            .hint("fill it in, or leave the episode out of the input");
                        return Err(self.source.rows.locate(row, error));
                    }
                }
                if self.shape().has_next_obs() {
                    self.compare_seam(before, piece, noticed)?;
                    self.compare_inside(piece, noticed)?;
                    let last = piece.start + piece.len - 1;
                    before = (!next_obs_is_null(nulls, last)).then_some((columns, last));
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Whether the module has the step column `name`.
    fn holds(&self, name: &str) -> bool {
        self.leaves.iter().any(|&c| *self.shape().leaves[c].0 == *name)
    }

    /// Adds rewards that came while an agent did not act to the steps that they belong to.
    fn add_hanging_rewards(&self, entries: &[&Entry], batch: &mut EpisodeBatch) -> Result<()> {
        let mut adds: Vec<(usize, &[u8])> = Vec::new();
        let Some(at) = self.leaves.iter().copied().find(|&c| *self.shape().leaves[c].0 == *REWARDS) else {
            return Ok(());
        };
        for (entry, &start) in entries.iter().zip(&batch.offsets) {
            for &(step, row) in entry.hanging() {
                let (block, i) = self.blocks.row(row)?;
                let (columns, nulls) = parts(block)?;
                let step = usize::try_from(step).map_err(|_| Error::internal("an episode larger than memory"))?;
                if !nulls.iter().any(|(n, nulls)| **n == *REWARDS && nulls.is_null(i)) {
                    adds.push((start + step, columns.at(at).row(i)));
                }
            }
        }
        if let (false, Some(rewards)) = (adds.is_empty(), batch.steps.get(REWARDS)) {
            let sum = rewards.with_added_rows(&adds);
            batch.steps.set(REWARDS, sum);
        }
        Ok(())
    }

    /// Pairs of an observation leaf's position and that of its recorded next observation.
    fn next_pairs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let shape = self.shape();
        (shape.steps..shape.leaves.len()).filter_map(move |next| {
            let obs = rebase(&shape.leaves[next].0, OBS);
            shape.leaves[..shape.steps].iter().position(|(n, _)| **n == *obs).map(|at| (at, next))
        })
    }

    fn compare_seam(&self, before: Option<(&Columns, usize)>, piece: Piece<'_>, noticed: &mut Noticed) -> Result<()> {
        let Some((last, at)) = before else { return Ok(()) };
        let (columns, _) = parts(piece.block)?;
        if self.next_pairs().any(|(obs, next)| last.at(next).row(at) != columns.at(obs).row(piece.start)) {
            notice(noticed, piece.block.first_row + piece.start as u64);
        }
        Ok(())
    }

    fn compare_inside(&self, piece: Piece<'_>, noticed: &mut Noticed) -> Result<()> {
        let (columns, nulls) = parts(piece.block)?;
        let (start, len) = (piece.start, piece.len);
        let same = |(obs, next): (usize, usize)| {
            let (obs, next) = (columns.at(obs), columns.at(next));
            obs.slice(start + 1, len - 1).bytes() == next.slice(start, len - 1).bytes()
        };
        if self.next_pairs().all(same) {
            return Ok(());
        }
        for i in start..start + len - 1 {
            let differs = |(obs, next): (usize, usize)| columns.at(obs).row(i + 1) != columns.at(next).row(i);
            if !next_obs_is_null(nulls, i) && self.next_pairs().any(differs) {
                notice(noticed, piece.block.first_row + i as u64 + 1);
            }
        }
        Ok(())
    }

    /// Fills in the chunks and their last observations: `new_obs` of the last row, else the trailing row's `obs`.
    fn last_obs(&self, entries: &[&Entry], batch: &mut EpisodeBatch) -> Result<()> {
        let shape = self.shape();
        let obs: Vec<usize> = (0..shape.steps).filter(|&i| root(&shape.leaves[i].0) == OBS).collect();
        let mut builders: Vec<TensorBuilder> =
            obs.iter().map(|&i| TensorBuilder::with_capacity(shape.leaves[i].1.clone(), entries.len())).collect();
        let next: Vec<Option<usize>> =
            obs.iter().map(|&i| self.next_pairs().find(|&(at, _)| at == i).map(|(_, next)| next)).collect();
        for entry in entries {
            let last_row = self.index.spans[entry.spans.clone()].last().map(|s| s.row + s.len - 1);
            let mut source = None;
            if let Some(row) = last_row.filter(|_| shape.has_next_obs()) {
                let (block, at) = self.blocks.row(row)?;
                let (columns, nulls) = parts(block)?;
                if !next_obs_is_null(nulls, at) {
                    source = Some((columns, at, true));
                }
            }
            if let (None, Some(row)) = (source, entry.tail()) {
                let (block, at) = self.blocks.row(row)?;
                let (columns, nulls) = parts(block)?;
                if let Some((name, _)) = nulls.iter().find(|(n, nulls)| root(n) == OBS && nulls.is_null(at)) {
                    let error =
                        Error::data("found null in the row that holds the last observation").column(name.to_string());
                    return Err(self.source.rows.locate(row, error).episode(entry.id.to_string()));
                }
                source = Some((columns, at, false));
            }
            for ((builder, &obs), next) in builders.iter_mut().zip(&obs).zip(&next) {
                match source {
                    Some((columns, at, true)) => builder.extend(columns.at(next.unwrap_or(obs)), at, 1),
                    Some((columns, at, false)) => builder.extend(columns.at(obs), at, 1),
                    None => builder.extend_zeros(1),
                }
            }
            batch.chunks.push(Chunk {
                id: entry.id.clone(),
                agent_id: entry.agent_id().cloned(),
                ordinal: entry.ordinal,
                bare_rank: entry.bare_rank,
                t_started: entry.t_started,
                terminated: entry.terminated,
                truncated: entry.truncated,
                has_last_obs: source.is_some(),
            });
        }
        batch.last_obs = obs.iter().zip(builders).map(|(&i, b)| (Arc::clone(&shape.leaves[i].0), b.finish())).collect();
        Ok(())
    }
}

fn notice(noticed: &mut Noticed, row: u64) {
    noticed.discontinuities += 1;
    let first = noticed.first_discontinuity.get_or_insert(row);
    *first = row.min(*first);
}
