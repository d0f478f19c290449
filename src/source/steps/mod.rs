//! Layouts with one row a step: `steps` and `rllib-columns`.

mod advice;
mod assembly;
mod reading;
mod shape;
mod tolerant;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use self::assembly::Assembly;
use self::reading::Reading;
use self::shape::{Shape, check_next, split_leaves};
use super::agents;
use super::blocks::{Block, BlockData, BlockRows, Blocks};
use super::faults::{self, is_of_data};
use super::index::{self, Entry, Index, Rare, Span};
use super::modules::{self, Own, Sight};
use super::presence::Presence;
use super::prints::PrintTable;
use super::resolve::{self, Resolved};
use super::rows::{RowGroupRef, RowMap};
use super::runs::Who;
use super::scan::{self, ScanColumns, Scanned};
use super::schema::Unified;
use super::{BlockIter, IndexOptions, Noticed, Source};
use crate::column::{self, ACTIONS, INFOS, NEXT_OBS, OBS, REWARDS, root};
use crate::episode::{EpisodeBatch, EpisodeId, EpisodeLayout, is_extra};
use crate::error::{Error, Result};
use crate::job::{Duplicates, Unfinished};
use crate::progress::{Progress, Silent};
use crate::tensor::{DType, TensorType};

/// Rows whose agents a look at the first ones tells: of more, whole row groups.
const FIRST_ROWS: u64 = 100_000;

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
    tolerant: bool,
}

impl StepsSource {
    /// A source over files whose columns were unified.
    ///
    /// # Errors
    /// If recorded next observations do not fit the observations.
    pub fn new(recognised: String, rows: RowMap, unified: Unified) -> Result<Self> {
        let name_of = |name: &str| unified.column(name).map(|c| c.source.clone());
        let all_of = |root: &str| unified.under(root).map(|c| c.source.clone()).collect();
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
            obs: all_of(OBS),
            actions: all_of(ACTIONS),
            extras: unified.columns.iter().filter(extra).map(|c| c.source.clone()).collect(),
        };
        let (steps, next) = split_leaves(&unified)?;
        let shape = Shape { unified, steps, next };
        let notes = shape.unified.notes.iter().cloned().collect();
        let infos: Vec<&str> = scan.infos.iter().map(|(_, spec, _)| spec.name.as_str()).collect();
        let masks = column::masks_of(&infos).into_iter().map(Arc::from).collect();
        Ok(Self { recognised, notes, rows, shape: Arc::new(shape), scan, masks, tolerant: false })
    }

    /// The same; where `tolerant`, rows that cannot be read become bad rows of their block instead of an error.
    #[must_use]
    pub fn tolerant(self, tolerant: bool) -> Self {
        Self { tolerant, ..self }
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
        if self.tolerant {
            return Ok(Box::new(tolerant::blocks(self, group, layout, flags)));
        }
        let reading = Reading::new(self, group, layout, flags);
        let batches = reading.batches(reading.batch_rows(block_bytes)).map_err(|e| reading.place(e))?;
        let mut row = group.first_row;
        let iter = batches.map(move |batch| {
            let decoded = batch.and_then(|batch| Ok((batch.num_rows(), reading.decode(&batch, reading.in_file(row))?)));
            let (rows, (columns, nulls)) = decoded.map_err(|e| reading.place(e))?;
            let end = row + rows as u64;
            let bytes = columns.iter().map(|(_, t)| t.bytes().len()).sum();
            let data = BlockData::Steps { columns, nulls, bad: Vec::new() };
            let block = Block { rows: BlockRows::All(row..end), bytes, data };
            row = end;
            Ok(block)
        });
        Ok(Box::new(iter))
    }

    fn entries(&self, scanned: &mut Scanned, options: IndexOptions<'_>, index: &mut Index) -> Result<()> {
        let offsets = scanned.runs.sort_by_episode();
        tolerant::from_scan(self, scanned, &offsets, index);
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
        // An owner of bad rows alone has no run.
        let has_rows = |e: &usize| offsets[*e] < offsets[*e + 1];
        for (e, who) in whose.iter().enumerate().filter(|(e, _)| moves && has_rows(e)) {
            let row = of(e)[0].span.first();
            appearance.entry(&who.id).and_modify(|first| *first = row.min(*first)).or_insert(row);
        }
        index.episode_ids = if moves { appearance.len() } else { whose.len() } as u64;
        let mut places: Vec<(u64, u64)> = Vec::new();
        for (e, who) in whose.iter().enumerate().filter(|(e, _)| has_rows(e)) {
            let all = match resolve::resolve(of(e), timed, options.duplicates, &|row| prints.get(row)) {
                Ok(all) => all,
                Err(found) => {
                    let error =
                        self.rows.locate(found.row, self.advise_on_rows(found.error)).episode(who.id.to_string());
                    if !(options.tolerant && is_of_data(&error)) {
                        return Err(error);
                    }
                    tolerant::whole_id(index, &who.id, of(e), error);
                    continue;
                }
            };
            let first_row = of(e)[0].span.first();
            for (i, episode) in all.into_iter().enumerate() {
                let Some(mut entry) = self.entry(who, &episode, options, index)? else { continue };
                entry.module = modules[e];
                index.entries.push(entry);
                if moves {
                    let again = episode.spans.first().map_or(first_row, |s| s.first());
                    places.push(if i == 0 { (appearance[&who.id], first_row) } else { (again, again) });
                }
            }
        }
        if moves {
            let mut order: Vec<usize> = (0..places.len()).collect();
            order.sort_by_key(|&i| places[i]);
            index.entries = order.into_iter().map(|i| index.entries[i].clone()).collect();
        }
        if options.tolerant { faults::leave_out(index) } else { index::number(&mut index.entries) }
    }

    /// The module of each episode (of one agent), as an index of [`Index::modules`], which this fills in together
    /// with the modules' layouts.
    fn modules(&self, scanned: &Scanned, options: IndexOptions<'_>, index: &mut Index) -> Result<Vec<u32>> {
        let mut out = Vec::with_capacity(scanned.runs.ids.len());
        let mut own: HashMap<(&EpisodeId, Option<&str>), &Who> = HashMap::new();
        let mut presence: Vec<Presence> = Vec::new();
        let mut known: HashMap<String, usize> = HashMap::new();
        index.notes.extend(self.odd_infos(scanned, &mut index.layout));
        for (e, who) in scanned.runs.ids.iter().enumerate() {
            // Only where modules are recorded can one agent of an episode stand here twice.
            if who.module.is_some()
                && let Some(before) = own.insert((&who.id, who.agent.as_deref()), who)
            {
                let name = |w: &Who| w.module.as_deref().unwrap_or("none").to_owned();
                let what = format!("the rows of one agent name two modules, {:?} and {:?}", name(before), name(who));
                let error = Error::data(what)
                    .episode(who.id.to_string())
                    .column(column::MODULE_ID)
                    .hint("an agent's module must stay the same during an episode");
                if !options.tolerant {
                    return Err(error);
                }
                index.faults.episode(&who.id, error);
            }
            index.multi_agent |= who.agent.is_some();
            let module = agents::module_of(who, options.agent_to_module)?;
            let new = index.modules.len();
            let at = *known.entry(module.clone()).or_insert(new);
            if at == new {
                index.modules.push(module);
                presence.push(Presence::default());
            }
            if let Some(seen) = scanned.extras.get(e) {
                presence[at].extend(seen);
            }
            out.push(u32::try_from(at).map_err(|_| Error::usage("found more modules than there can be"))?);
        }
        index.notes.extend(self.unseen_infos(scanned, &presence));
        let own = self.own_types(scanned, &out, options, index)?;
        let base = index.layout.clone();
        for (seen, own) in presence.iter().zip(&own) {
            index.layouts.push(self.layout_of(seen, own.as_ref(), &base));
        }
        self.shape.add_variants(own.iter().flatten(), &mut index.layout);
        Ok(out)
    }

    /// What each module's rows look like, where rows may belong to several: its first step says it. Where malformed
    /// episodes are left out, it is that of the first episode whose first step is well-formed.
    fn own_types(
        &self,
        scanned: &Scanned,
        modules: &[u32],
        options: IndexOptions<'_>,
        index: &mut Index,
    ) -> Result<Vec<Option<Own>>> {
        if !self.shape.unified.several {
            return Ok(vec![None; index.modules.len()]);
        }
        let mut sights = vec![Sight::default(); index.modules.len()];
        let file_of = |row: u64| {
            let groups = self.rows.groups();
            groups.get(groups.partition_point(|g| g.first_row + g.rows <= row)).map(|g| g.file)
        };
        // The runs are sorted by episode, and those of an episode by row.
        for run in scanned.runs.runs.iter().filter(|run| !run.tail && !run.hanging) {
            let sight = &mut sights[modules[run.episode as usize] as usize];
            if sight.firsts.last().is_none_or(|(_, episode)| *episode != run.episode) {
                sight.firsts.push((run.span.first(), run.episode));
            }
            // A run may go on in the next file where `t` is recorded.
            let last = run.span.end() - 1;
            match (file_of(run.span.first()), file_of(last)) {
                (Some(from), Some(to)) if from == to || run.span.stride() == 1 => sight.files.extend(from..=to),
                // It may skip a file that lies between.
                _ => sight.files.extend((0..run.span.len()).filter_map(|i| file_of(run.span.row(i)))),
            }
        }
        let mut out = Vec::with_capacity(sights.len());
        for (module, mut sight) in sights.into_iter().enumerate() {
            sight.firsts.sort_unstable();
            let mut own = None;
            for &(row, episode) in &sight.firsts {
                let id = &scanned.runs.ids[episode as usize].id;
                if options.tolerant && index.faults.has(id) {
                    continue;
                }
                match self.own_of(&index.modules[module], row, &sight.files)? {
                    Ok(found) => {
                        own = Some(found);
                        break;
                    }
                    Err(e) if options.tolerant && is_of_data(&e) => {
                        index.faults.episode(id, e);
                    }
                    Err(e) => return Err(e),
                }
            }
            out.push(own);
        }
        Ok(out)
    }

    /// What a module's rows look like whose first step stands in `row`; else what is wrong with that step.
    ///
    /// # Errors
    /// If it is not the row that is wrong, but the files do not go together.
    fn own_of(&self, module: &str, row: u64, files: &BTreeSet<usize>) -> Result<Result<Own>> {
        let seen = match modules::look(row, &self.rows, &self.shape.unified) {
            Ok(seen) => seen,
            Err(e) => return Ok(Err(e)),
        };
        let own = modules::types_of(module, &seen, files, &self.rows)?;
        let mut needed = [OBS, ACTIONS, REWARDS].into_iter();
        if let Some(needed) = needed.find(|r| !own.keys().any(|n| root(n) == *r)) {
            let error = Error::data(format!("found null in the first step of module {module:?}, expected a value"));
            return Ok(Err(self.rows.locate(row, error.column(needed))));
        }
        if let Err(e) = check_next(&own) {
            let e = self.rows.locate(row, e);
            // Dtypes are those of the files, and no other row would have others.
            let shapes = own.into_iter().map(|(name, ty)| (name, TensorType::new(DType::Bool, ty.shape)));
            return if check_next(&shapes.collect()).is_ok() { Err(e) } else { Ok(Err(e)) };
        }
        Ok(Ok(own))
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

    /// Says which infos are in no module's layout: there, but null in every step.
    fn unseen_infos(&self, scanned: &Scanned, presence: &[Presence]) -> Vec<String> {
        let infos = self.scan.infos.iter().zip(self.scan.extras.len()..);
        let unseen = infos.filter(|(_, at)| {
            let null = presence.iter().any(|seen| seen.null.contains(*at));
            let valid = presence.iter().any(|seen| seen.valid.contains(*at));
            null && !valid && !scanned.odd_infos.contains_key(at)
        });
        let note = |name: &str| format!("`{name}` is left out of the infos: no step has it");
        unseen.map(|((_, spec, _), _)| note(&spec.name)).collect()
    }

    /// The columns of a module, in its types: without the extra outputs and infos that are null in all of its rows, and
    /// without what its first step lacks; with a mask for infos that some of its steps lack.
    fn layout_of(&self, seen: &Presence, own: Option<&Own>, all: &EpisodeLayout) -> EpisodeLayout {
        let extras: HashMap<&str, usize> = self.scan.extras.iter().enumerate().map(|(i, e)| (e.as_str(), i)).collect();
        let columns = self.shape.unified.columns.iter();
        let missing: HashSet<&str> = columns
            .filter(|c| extras.get(c.source.as_str()).is_some_and(|&at| seen.lacks(at)))
            .flat_map(|c| c.leaves.iter().map(|(leaf, _)| leaf.name.as_str()))
            .collect();
        let infos = self.scan.infos.iter().zip(self.scan.extras.len()..);
        let infos: HashMap<&str, usize> = infos.map(|((_, spec, _), at)| (spec.name.as_str(), at)).collect();
        let info = |name: &str| infos.get(name).copied();
        let mut steps = Vec::with_capacity(all.steps.len());
        for (name, ty) in &all.steps {
            match info(name) {
                Some(at) if seen.lacks(at) => {}
                Some(at) => {
                    steps.push((Arc::clone(name), ty.clone()));
                    if seen.null.contains(at) {
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
        let steps: u64 = episode.spans.iter().map(|s| s.len()).sum();
        index.episodes_read += 1;
        index.steps_read += steps + episode.duplicates;
        index.oddities.empty_episodes += u64::from(steps == 0);
        index.oddities.unread_rewards.merge(&episode.unread_rewards);
        index.oddities.unread_outputs.merge(&episode.unread_outputs);
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
                    index.oddities.dropped_unfinished_entries += 1;
                    index.oddities.dropped_unfinished_steps += steps;
                    return Ok(None);
                }
                Unfinished::Fail => {
                    let row = episode.spans.last().map_or(0, |s| s.end() - 1);
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
                ..Rare::default()
            }
            .boxed(),
        }))
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

    fn row_bytes(&self, layout: &EpisodeLayout) -> usize {
        self.shape.leaves(layout).iter().map(|(_, ty)| ty.row_bytes()).sum()
    }

    fn explain(&self, error: Error, index: Option<&Index>) -> Error {
        self.advise(error, index)
    }

    fn peek(&self) -> Result<EpisodeLayout> {
        // A trailing row can hold the last observation only where actions can be null at all.
        let may_trail = self
            .rows
            .groups()
            .iter()
            .any(|g| ScanColumns::nullable(&self.scan.actions, &self.rows.files()[g.file], *g).is_some());
        Ok(EpisodeLayout { steps: self.shape.steps.clone(), last_obs: self.shape.has_next_obs() || may_trail })
    }

    fn first_modules(&self, options: IndexOptions<'_>) -> Result<Option<(Index, u64)>> {
        if !self.shape.unified.several {
            return Ok(None);
        }
        let first = Self {
            recognised: String::new(),
            notes: Vec::new(),
            rows: self.rows.first(FIRST_ROWS),
            shape: Arc::clone(&self.shape),
            scan: self.scan.clone(),
            masks: self.masks.clone(),
            tolerant: true,
        };
        // Where rows are cut off, no episode needs an end.
        let options = IndexOptions { tolerant: true, unfinished: Unfinished::Keep, ..options };
        let index = first.index(options, &Silent)?;
        match index.faults.list().first() {
            Some(fault) if index.entries.is_empty() => Err(fault.error.clone()),
            _ => Ok(Some((index, first.rows.rows()))),
        }
    }

    fn index(&self, options: IndexOptions<'_>, progress: &dyn Progress) -> Result<Index> {
        let mut index = Index { layout: self.peek()?, ..Index::default() };
        let mut scanned = scan::scan(&self.rows, &self.scan, options.tolerant, options.memory, progress)?;
        // Rows of one step are compared on the way, and so are those of agents that the job does not name.
        self.entries(&mut scanned, options, &mut index).map_err(|e| self.advise(e, None))?;
        if index.steps_read == 0 && index.faults.is_empty() {
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
        let mut batch = EpisodeBatch { offsets: vec![0], ..EpisodeBatch::default() };
        let mut spans: Vec<Span> = Vec::new();
        let mut steps = 0;
        for entry in entries {
            assembly.check(entry, noticed)?;
            for &span in entry.spans(&index.spans) {
                match spans.last_mut() {
                    Some(last) if let Some(joined) = last.joined_consecutive(span) => *last = joined,
                    _ => spans.push(span),
                }
            }
            steps += usize::try_from(entry.steps).map_err(|_| Error::internal("an episode larger than memory"))?;
            batch.offsets.push(steps);
        }
        batch.steps = assembly.gather(&spans, steps)?;
        assembly.add_masks(&spans, &mut batch.steps)?;
        let starts = batch.offsets.iter().copied();
        let hanging = entries
            .iter()
            .zip(starts)
            .flat_map(|(entry, start)| entry.hanging().iter().map(move |&(step, row)| (start, step, row)));
        assembly.add_hanging_rewards(hanging, &mut batch.steps)?;
        assembly.look_back(entries, &mut batch)?;
        assembly.last_obs(entries, &mut batch)?;
        Ok(batch)
    }
}
