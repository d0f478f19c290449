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
use super::modules::{self, Own, Sight};
use super::prints::PrintTable;
use super::resolve::{self, Resolved};
use super::rows::{RowGroupRef, RowMap};
use super::runs::Who;
use super::scan::{self, Presence, ScanColumns, Scanned};
use super::schema::Unified;
use super::{BlockIter, IndexOptions, Noticed, Source};
use crate::column::{self, ACTIONS, INFOS, NEXT_OBS, OBS, REWARDS, rebase, root};
use crate::episode::{Chunk, Columns, EpisodeBatch, EpisodeId, EpisodeLayout, is_extra};
use crate::error::{Error, Result};
use crate::job::{Duplicates, Unfinished};
use crate::progress::Progress;
use crate::tensor::{DType, Tensor, TensorBuilder, TensorType};

/// Recordings with one row a step.
#[derive(Debug)]
pub struct StepsSource {
    recognised: String,
    notes: Vec<String>,
    rows: RowMap,
    shape: Arc<Shape>,
    scan: ScanColumns,
    /// For each leaf of infos, the name of the column that tells where it was recorded.
    masks: Vec<Arc<str>>,
}

/// What the rows look like; shared with the tasks that decode them.
#[derive(Debug)]
struct Shape {
    unified: Unified,
    /// The step columns: observations, actions, rewards, extra outputs, infos.
    steps: Vec<Leaf>,
    /// The recorded next observations.
    next: Vec<Leaf>,
}

/// A leaf's name and type.
type Leaf = (Arc<str>, TensorType);

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
        let leaves = |c: &super::schema::UnifiedColumn| -> Vec<_> {
            c.leaves.iter().map(|(spec, ty)| (c.source.clone(), spec.clone(), ty.clone())).collect()
        };
        let scan = ScanColumns {
            infos: unified.under(INFOS).flat_map(leaves).collect(),
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
        let shape = Shape { unified, steps, next };
        let notes = shape.unified.notes.clone();
        let infos: Vec<&str> = scan.infos.iter().map(|(_, spec, _)| spec.name.as_str()).collect();
        let masks = column::masks_of(&infos).into_iter().map(Arc::from).collect();
        Ok(Self { recognised, notes, rows, shape: Arc::new(shape), scan, masks })
    }

    /// The name of an info's mask.
    fn mask_of(&self, info: &str) -> Option<&Arc<str>> {
        self.scan.infos.iter().zip(&self.masks).find(|((_, spec, _), _)| spec.name == *info).map(|(_, mask)| mask)
    }

    /// The numbering of all rows.
    pub(super) fn row_map(&self) -> &RowMap {
        &self.rows
    }

    /// The decoded blocks of a row group. With `flags` the flag columns are among the columns.
    pub(super) fn blocks(
        &self,
        group: RowGroupRef,
        layout: &EpisodeLayout,
        block_bytes: usize,
        flags: bool,
    ) -> Result<BlockIter> {
        let file = Arc::clone(&self.rows.files()[group.file]);
        let shape = Arc::clone(&self.shape);
        let place = move |file: &InputFile, e: Error| e.file(file.name.clone()).row_group(group.row_group);
        let leaves = shape.leaves(layout);
        let row_bytes: usize = leaves.iter().map(|(_, ty)| ty.row_bytes()).sum();
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
            let (mut columns, nulls) = shape.decode(&leaves, &file, &batch, in_file).map_err(|e| place(&file, e))?;
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
        let modules = self.modules(scanned, options, index)?;
        let prints =
            if to_print.is_empty() { PrintTable::default() } else { PrintTable::read(self, &index.layout, to_print)? };
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
        index.notes.extend(self.odd_infos(scanned, &mut index.layout));
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
        let own = self.own_types(scanned, &out, index)?;
        let base = index.layout.clone();
        for (seen, own) in presence.iter().zip(&own) {
            index.layouts.push(self.layout_of(seen, own.as_ref(), &base));
        }
        self.shape.add_variants(own.iter().flatten(), &mut index.layout);
        Ok(out)
    }

    /// What each module's rows look like, where rows may belong to several.
    fn own_types(&self, scanned: &Scanned, modules: &[u32], index: &Index) -> Result<Vec<Option<Own>>> {
        if !self.shape.unified.several {
            return Ok(vec![None; index.modules.len()]);
        }
        let mut sights = vec![Sight::default(); index.modules.len()];
        let file_of = |row: u64| {
            let groups = self.rows.groups();
            groups.get(groups.partition_point(|g| g.first_row + g.rows <= row)).map(|g| g.file)
        };
        for run in scanned.runs.runs.iter().filter(|run| !run.tail && !run.hanging) {
            let sight = &mut sights[modules[run.episode] as usize];
            sight.first = Some(sight.first.map_or(run.span.row, |first| first.min(run.span.row)));
            // A run may go on in the next file where `t` is recorded.
            let last = run.span.row + run.span.len - 1;
            if let (Some(from), Some(to)) = (file_of(run.span.row), file_of(last)) {
                sight.files.extend(from..=to);
            }
        }
        let types = |(sight, module): (&Sight, &String)| {
            let own = modules::types_of(module, sight, &self.rows, &self.shape.unified)?;
            if let (Some(own), Some(row)) = (&own, sight.first) {
                let mut needed = [OBS, ACTIONS, REWARDS].into_iter();
                if let Some(needed) = needed.find(|r| !own.keys().any(|n| root(n) == *r)) {
                    let error =
                        Error::data(format!("found null in the first step of module {module:?}, expected a value"));
                    return Err(self.rows.locate(row, error.column(needed)));
                }
                check_next(own).map_err(|e| self.rows.locate(row, e))?;
            }
            Ok(own)
        };
        sights.iter().zip(&index.modules).map(types).collect()
    }

    /// Takes infos that cannot be read out of `layout`, and says so.
    fn odd_infos(&self, scanned: &Scanned, layout: &mut EpisodeLayout) -> Vec<String> {
        let leaf = |at: &usize| at.checked_sub(self.scan.extras.len()).and_then(|i| self.scan.infos.get(i));
        let odd = scanned.odd_infos.iter().filter_map(|(at, (row, e))| Some((&leaf(at)?.1.name, row, e)));
        let mut notes = Vec::new();
        for (name, _, error) in odd {
            layout.steps.retain(|(n, _)| **n != **name);
            let place = error.place();
            let file = place.file.as_deref().unwrap_or_default();
            let row = place.row.map_or_else(String::new, |row| format!(", row {row}"));
            notes.push(format!("`{name}` is left out of the infos: {} in {file}{row}", error.what()));
        }
        notes
    }

    /// The columns of a module, in its types: without the extra outputs and infos that are null in all of its rows, and
    /// without what its first step lacks; with a mask for infos that some of its steps lack.
    fn layout_of(&self, seen: &Presence, own: Option<&Own>, all: &EpisodeLayout) -> EpisodeLayout {
        let lacks = |at: usize| seen.null.contains(&at) && !seen.valid.contains(&at);
        let extra = |source: &String| self.scan.extras.iter().position(|e| e == source);
        let columns = self.shape.unified.columns.iter();
        let missing: Vec<&str> = columns
            .filter(|c| extra(&c.source).is_some_and(lacks))
            .flat_map(|c| c.leaves.iter().map(|(leaf, _)| leaf.name.as_str()))
            .collect();
        let info = |name: &str| {
            let at = self.scan.infos.iter().position(|(_, spec, _)| spec.name == *name)?;
            Some(self.scan.extras.len() + at)
        };
        let mut steps = Vec::with_capacity(all.steps.len());
        for (name, ty) in &all.steps {
            match info(name) {
                Some(at) if lacks(at) => {}
                Some(at) => {
                    steps.push((Arc::clone(name), ty.clone()));
                    if seen.null.contains(&at) {
                        steps.push((
                            Arc::clone(&self.masks[at - self.scan.extras.len()]),
                            TensorType::new(DType::Bool, []),
                        ));
                    }
                }
                None if missing.contains(&&**name) => {}
                None => match own {
                    Some(own) => steps.extend(own.get(&**name).map(|ty| (Arc::clone(name), ty.clone()))),
                    None => steps.push((Arc::clone(name), ty.clone())),
                },
            }
        }
        EpisodeLayout { steps, last_obs: all.last_obs }
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
fn split_leaves(unified: &Unified) -> Result<(Vec<Leaf>, Vec<Leaf>)> {
    let leaves = |want: &dyn Fn(&str) -> bool| -> Vec<Leaf> {
        let columns = unified.columns.iter().filter(|c| want(root(&c.name)));
        columns.flat_map(|c| &c.leaves).map(|(leaf, ty)| (Arc::from(leaf.name.as_str()), ty.clone())).collect()
    };
    let mut steps = leaves(&|r| r == OBS);
    let obs = steps.clone();
    steps.extend(leaves(&|r| r == ACTIONS));
    steps.extend(leaves(&|r| r == REWARDS));
    steps.extend(leaves(&|r| !matches!(r, OBS | ACTIONS | REWARDS | NEXT_OBS)));
    let next = leaves(&|r| r == NEXT_OBS);
    let found = |name: &str| next.iter().find(|(n, _)| **n == *name).map(|(_, ty)| ty);
    for (name, ty) in &obs {
        // Where several modules have rows, each module's types are compared once they are known.
        check_pair(name, ty, found(&rebase(name, NEXT_OBS)), next.is_empty(), unified.several)?;
    }
    if next.len() > obs.len() {
        return Err(Error::usage("`new_obs` has leaves that `obs` has not").column(NEXT_OBS));
    }
    Ok((steps, next))
}

/// Refuses a recorded next observation that does not fit its observation.
fn check_pair(obs: &str, ty: &TensorType, next: Option<&TensorType>, none: bool, any_type: bool) -> Result<()> {
    let expected = rebase(obs, NEXT_OBS);
    match next {
        _ if none => Ok(()),
        Some(found) if found == ty || any_type => Ok(()),
        Some(found) => {
            let error = Error::usage(format!("`{expected}` is {found}, but `{obs}` is {ty}")).column(expected);
            Err(error.hint("cast one of them before, so that both have one type and shape"))
        }
        None => Err(Error::usage(format!("`{obs}` is recorded, but `{expected}` is not")).column(expected)),
    }
}

/// Refuses a module whose recorded next observations do not fit its observations.
fn check_next(own: &Own) -> Result<()> {
    let next = |name: &str| own.get(&rebase(name, NEXT_OBS));
    let none = !own.keys().any(|n| root(n) == NEXT_OBS);
    let mut obs = own.iter().filter(|(name, _)| root(name) == OBS);
    obs.try_for_each(|(name, ty)| check_pair(name, ty, next(name), none, false))
}

impl Shape {
    /// The columns of a block: the step columns, the recorded next observations, and then what `layout` has in further
    /// types.
    fn leaves(&self, layout: &EpisodeLayout) -> Vec<Leaf> {
        let read = |(name, _): &&Leaf| root(name) != INFOS || layout.get(name).is_some();
        let further = layout.steps.iter().enumerate().filter(|(i, (name, ty))| {
            let before = layout.steps[..*i].iter().any(|(n, _)| n == name);
            before || (root(name) == NEXT_OBS && self.next.iter().any(|(n, t)| n == name && t != ty))
        });
        let further = further.map(|(_, leaf)| leaf);
        self.steps.iter().filter(read).chain(&self.next).chain(further).cloned().collect()
    }

    /// Adds the types that modules have and the unified schema has not.
    fn add_variants<'a>(&self, modules: impl Iterator<Item = &'a Own>, layout: &mut EpisodeLayout) {
        for (name, ty) in modules.flatten() {
            let known = self.steps.iter().chain(&self.next).chain(&layout.steps).any(|(n, t)| **n == **name && t == ty);
            if !known {
                layout.steps.push((Arc::from(name.as_str()), ty.clone()));
            }
        }
    }

    /// The columns of a batch, as [`Self::leaves`] has them, and the rows that are null.
    fn decode(
        &self,
        leaves: &[Leaf],
        file: &InputFile,
        batch: &RecordBatch,
        row_in_file: u64,
    ) -> Result<(Columns, Vec<LeafNulls>)> {
        let rows = batch.num_rows();
        let mut found: Vec<Option<Tensor>> = vec![None; leaves.len()];
        let mut nulls = Vec::new();
        for column in self.unified.columns.iter().filter(|c| !c.leaves.is_empty()) {
            let at = |name: &str| -> Vec<usize> { (0..leaves.len()).filter(|&i| *leaves[i].0 == *name).collect() };
            let Some(array) = batch.column_by_name(&column.source) else {
                for i in column.leaves.iter().flat_map(|(leaf, _)| at(&leaf.name)) {
                    found[i] = Some(Tensor::zeros(leaves[i].1.clone(), rows));
                    nulls.push((i, NullBuffer::new_null(rows)));
                }
                continue;
            };
            let field = file
                .schema
                .field_with_name(&column.source)
                .map_err(|e| Error::internal(format!("column {:?}: {e}", column.source)))?;
            for (spec, _) in &column.leaves {
                let places = at(&spec.name);
                let types: Vec<TensorType> = places.iter().map(|&i| leaves[i].1.clone()).collect();
                let read = match types.as_slice() {
                    [] => continue,
                    [one] => ingest::tensors(field, array, &[(spec.clone(), one.clone())], row_in_file)?,
                    _ => ingest::variants(field, array, spec, &types, row_in_file)?,
                };
                for (i, ingested) in places.into_iter().zip(read) {
                    nulls.extend(ingested.nulls.map(|n| (i, n)));
                    found[i] = Some(ingested.tensor);
                }
            }
        }
        let columns = leaves.iter().zip(found).map(|((name, _), tensor)| {
            let tensor = tensor.ok_or_else(|| Error::internal(format!("column `{name}` was not read")))?;
            Ok((Arc::clone(name), tensor))
        });
        Ok((columns.collect::<Result<Columns>>()?, nulls))
    }

    fn has_next_obs(&self) -> bool {
        !self.next.is_empty()
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
        Ok(EpisodeLayout { steps: self.shape.steps.clone(), last_obs: self.shape.has_next_obs() || may_trail })
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

    fn read(&self, group: RowGroupRef, layout: &EpisodeLayout, block_bytes: usize) -> Result<BlockIter> {
        self.blocks(group, layout, block_bytes, false)
    }

    fn assemble(
        &self,
        index: &Index,
        entries: &[&Entry],
        blocks: &Blocks,
        noticed: &mut Noticed,
    ) -> Result<EpisodeBatch> {
        let assembly = Assembly::new(self, index, entries, blocks)?;
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
        assembly.add_masks(&spans, &mut batch.steps)?;
        assembly.add_hanging_rewards(entries, &mut batch)?;
        assembly.last_obs(entries, &mut batch)?;
        Ok(batch)
    }
}

/// Puts episodes of one module and unit together.
struct Assembly<'a> {
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
        BlockData::Steps { columns, nulls } => Ok((columns, nulls)),
        BlockData::Items(_) => Err(Error::internal("a block of items among steps")),
    }
}

/// The nulls of a block's column.
fn nulls_of(nulls: &[LeafNulls], at: usize) -> Option<&NullBuffer> {
    nulls.iter().find(|(n, _)| *n == at).map(|(_, nulls)| nulls)
}

/// Whether a block's column is null in a row.
fn is_null(nulls: &[LeafNulls], at: usize, row: usize) -> bool {
    nulls_of(nulls, at).is_some_and(|nulls| nulls.is_null(row))
}

impl<'a> Assembly<'a> {
    fn new(source: &'a StepsSource, index: &'a Index, entries: &[&Entry], blocks: &'a Blocks) -> Result<Self> {
        let module = entries.first().map_or(0, |e| e.module as usize);
        let layout = index.layouts.get(module).unwrap_or(&index.layout);
        let all = source.shape.leaves(&index.layout);
        let place = |name: &str, ty: &TensorType| all.iter().position(|(n, t)| **n == *name && t == ty);
        let infos = || all.iter().enumerate().filter(|(_, (n, _))| root(n) == INFOS);
        let column = |(name, ty): &Leaf| {
            let is_mask = root(name) == INFOS && all.iter().all(|(n, _)| n != name);
            let at = if is_mask {
                infos().find(|(_, (info, _))| source.mask_of(info) == Some(name)).map(|(at, _)| at)
            } else {
                place(name, ty)
            };
            let at = at.ok_or_else(|| Error::internal(format!("column `{name}` {ty} is in no block")))?;
            Ok(StepColumn { name: Arc::clone(name), at, is_mask })
        };
        let columns: Vec<StepColumn> = layout.steps.iter().map(column).collect::<Result<_>>()?;
        let obs = layout.steps.iter().filter(|(name, _)| root(name) == OBS);
        let pair = |(name, ty): &Leaf| Some((place(name, ty)?, place(&rebase(name, NEXT_OBS), ty)?));
        let next_pairs = obs.filter_map(pair).collect();
        let module = index.modules.get(module).map_or(column::DEFAULT_MODULE_ID, String::as_str);
        Ok(Self { source, index, blocks, module, all, columns, next_pairs })
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
    fn gather(&self, spans: &[Span], steps: usize) -> Result<Columns> {
        let mut pieces: Vec<(&Columns, usize, usize)> = Vec::new();
        for &span in spans {
            self.blocks.pieces(span, |piece| {
                pieces.push((parts(piece.block)?.0, piece.start, piece.len));
                Ok(())
            })?;
        }
        let column = |c: &StepColumn| {
            let (name, ty) = (Arc::clone(&c.name), &self.all[c.at].1);
            if c.is_mask {
                return (name, Tensor::from_bools([]));
            }
            if let [(columns, start, len)] = pieces.as_slice() {
                return (name, columns.at(c.at).slice(*start, *len));
            }
            let mut out = TensorBuilder::with_capacity(ty.clone(), steps);
            for (columns, start, len) in &pieces {
                out.extend(columns.at(c.at), *start, *len);
            }
            (name, out.finish())
        };
        Ok(self.columns.iter().map(column).collect())
    }

    /// Fills in the masks of infos: true where one was recorded.
    fn add_masks(&self, spans: &[Span], steps: &mut Columns) -> Result<()> {
        for column in self.columns.iter().filter(|c| c.is_mask) {
            let mut mask = Vec::new();
            for &span in spans {
                self.blocks.pieces(span, |piece| {
                    let nulls = nulls_of(parts(piece.block)?.1, column.at);
                    let rows = piece.start..piece.start + piece.len;
                    mask.extend(rows.map(|row| nulls.is_none_or(|n| n.is_valid(row))));
                    Ok(())
                })?;
            }
            steps.set(Arc::clone(&column.name), Tensor::from_bools(mask));
        }
        Ok(())
    }

    /// Refuses nulls in an episode's steps and what its module does not have, and counts where its observations do not
    /// follow one another.
    fn check(&self, entry: &Entry, noticed: &mut Noticed) -> Result<()> {
        let mut before: Option<(&Columns, usize)> = None;
        for &span in &self.index.spans[entry.spans.clone()] {
            self.blocks.pieces(span, |piece| {
                let (columns, nulls) = parts(piece.block)?;
                self.check_nulls(piece, nulls)?;
                self.check_others(piece, nulls)?;
                if self.shape().has_next_obs() {
                    self.compare_seam(before, piece, noticed)?;
                    self.compare_inside(piece, noticed)?;
                    let last = piece.start + piece.len - 1;
                    before = (!self.next_obs_is_null(nulls, last)).then_some((columns, last));
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Refuses nulls in the module's columns. Infos may have them.
    fn check_nulls(&self, piece: Piece<'_>, nulls: &[LeafNulls]) -> Result<()> {
        for column in self.recorded().filter(|c| root(&c.name) != INFOS) {
            let here = nulls_of(nulls, column.at).map(|n| n.slice(piece.start, piece.len));
            let Some(i) = here.filter(|n| n.null_count() > 0).and_then(|n| (0..piece.len).find(|&i| n.is_null(i)))
            else {
                continue;
            };
            let at = piece.start + i;
            let mut others = (0..self.all.len()).filter(|&c| c != column.at && self.all[c].0 == column.name);
            let error = match others.find(|&c| !is_null(nulls, c, at)) {
                Some(other) => Error::data(format!(
                    "found {}, expected {} as in the first step of module {:?}",
                    self.all[other].1, self.all[column.at].1, self.module
                ))
                .hint("rows of one module need one shape: pad them, or give the agents modules of their own"),
                None => Error::data("found null, expected a value in every row")
                    .hint("fill it in, or leave the episode out of the input"),
            };
            return Err(self
                .source
                .rows
                .locate(piece.block.first_row + at as u64, error.column(column.name.to_string())));
        }
        Ok(())
    }

    /// Refuses values in columns that the module's first step did not have: they would be lost.
    fn check_others(&self, piece: Piece<'_>, nulls: &[LeafNulls]) -> Result<()> {
        if !self.shape().unified.several {
            return Ok(());
        }
        for (at, (name, _)) in self.all.iter().enumerate() {
            let own = if root(name) == NEXT_OBS { rebase(name, OBS) } else { name.to_string() };
            if root(name) == INFOS || self.columns.iter().any(|c| *c.name == *own) {
                continue;
            }
            if let Some(row) = (piece.start..piece.start + piece.len).find(|&row| !is_null(nulls, at, row)) {
                let what = format!("found a value, expected null as in the first step of module {:?}", self.module);
                let error = Error::data(what)
                    .column(name.to_string())
                    .hint("a module has a column in all of its rows or in none: fill it in, or give the agents modules of their own");
                return Err(self.source.rows.locate(piece.block.first_row + row as u64, error));
            }
        }
        Ok(())
    }

    /// Whether a block's row lacks its recorded next observation.
    fn next_obs_is_null(&self, nulls: &[LeafNulls], row: usize) -> bool {
        self.next_pairs.iter().any(|&(_, next)| is_null(nulls, next, row))
    }

    /// Adds rewards that came while an agent did not act to the steps that they belong to.
    fn add_hanging_rewards(&self, entries: &[&Entry], batch: &mut EpisodeBatch) -> Result<()> {
        let mut adds: Vec<(usize, &[u8])> = Vec::new();
        let Some(at) = self.recorded().find(|c| *c.name == *REWARDS).map(|c| c.at) else { return Ok(()) };
        for (entry, &start) in entries.iter().zip(&batch.offsets) {
            for &(step, row) in entry.hanging() {
                let (block, i) = self.blocks.row(row)?;
                let (columns, nulls) = parts(block)?;
                let step = usize::try_from(step).map_err(|_| Error::internal("an episode larger than memory"))?;
                if !is_null(nulls, at, i) {
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

    fn compare_seam(&self, before: Option<(&Columns, usize)>, piece: Piece<'_>, noticed: &mut Noticed) -> Result<()> {
        let Some((last, at)) = before else { return Ok(()) };
        let (columns, _) = parts(piece.block)?;
        if self.next_pairs.iter().any(|&(obs, next)| last.at(next).row(at) != columns.at(obs).row(piece.start)) {
            notice(noticed, piece.block.first_row + piece.start as u64);
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
        if self.next_pairs.iter().all(same) {
            return Ok(());
        }
        for i in start..start + len - 1 {
            let differs = |&(obs, next): &(usize, usize)| columns.at(obs).row(i + 1) != columns.at(next).row(i);
            if !self.next_obs_is_null(nulls, i) && self.next_pairs.iter().any(differs) {
                notice(noticed, piece.block.first_row + i as u64 + 1);
            }
        }
        Ok(())
    }

    /// Fills in the chunks and what came after their last steps: the observation from `new_obs` of the last row, else
    /// observation and infos of the trailing row.
    fn last_obs(&self, entries: &[&Entry], batch: &mut EpisodeBatch) -> Result<()> {
        let after = |c: &&StepColumn| matches!(root(&c.name), OBS | INFOS);
        let columns: Vec<&StepColumn> = self.columns.iter().filter(after).collect();
        let ty = |c: &StepColumn| if c.is_mask { TensorType::new(DType::Bool, []) } else { self.all[c.at].1.clone() };
        let mut builders: Vec<TensorBuilder> =
            columns.iter().map(|c| TensorBuilder::with_capacity(ty(c), entries.len())).collect();
        for (i, entry) in entries.iter().enumerate() {
            let last_row = self.index.spans[entry.spans.clone()].last().map(|s| s.row + s.len - 1);
            let mut recorded = None;
            if let Some(row) = last_row.filter(|_| self.shape().has_next_obs()) {
                let (block, at) = self.blocks.row(row)?;
                let (columns, nulls) = parts(block)?;
                if !self.next_obs_is_null(nulls, at) {
                    recorded = Some((columns, at));
                }
            }
            let mut trailing = None;
            if let Some(row) = entry.tail() {
                let (block, at) = self.blocks.row(row)?;
                let (columns, nulls) = parts(block)?;
                let missing = self.recorded().find(|c| root(&c.name) == OBS && is_null(nulls, c.at, at));
                if let (Some(missing), None) = (missing, recorded) {
                    let error = Error::data("found null in the row that holds the last observation");
                    let error = error.column(missing.name.to_string()).episode(entry.id.to_string());
                    return Err(self.source.rows.locate(row, error));
                }
                trailing = Some((columns, nulls, at));
            }
            for (builder, column) in builders.iter_mut().zip(&columns) {
                let next = self.next_pairs.iter().find(|(obs, _)| *obs == column.at).map(|(_, next)| *next);
                match (root(&column.name) == INFOS, recorded, trailing) {
                    (true, _, Some((_, nulls, at))) if column.is_mask => {
                        builder.extend_bytes(&[u8::from(!is_null(nulls, column.at, at))], 1);
                    }
                    (false, Some((columns, at)), _) => builder.extend(columns.at(next.unwrap_or(column.at)), at, 1),
                    (_, _, Some((columns, _, at))) => builder.extend(columns.at(column.at), at, 1),
                    // Infos of no other step than the last are known.
                    (true, ..) if !batch.rows(i).is_empty() => match batch.steps.get(&column.name) {
                        Some(steps) => builder.extend(steps, batch.offsets[i + 1] - 1, 1),
                        None => builder.extend_zeros(1),
                    },
                    _ => builder.extend_zeros(1),
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
                has_last_obs: recorded.is_some() || trailing.is_some(),
            });
        }
        batch.last_obs = columns.iter().zip(builders).map(|(c, b)| (Arc::clone(&c.name), b.finish())).collect();
        Ok(())
    }
}

fn notice(noticed: &mut Noticed, row: u64) {
    noticed.discontinuities += 1;
    let first = noticed.first_discontinuity.get_or_insert(row);
    *first = row.min(*first);
}
