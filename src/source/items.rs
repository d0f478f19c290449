//! Layout `rllib-episodes`: one row a chunk, the whole chunk as msgpack.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, AsArray, LargeBinaryArray, RecordBatch};
use arrow::datatypes::DataType;
use rayon::prelude::*;

use super::blocks::{Block, BlockData, BlockRows, Blocks};
use super::episode_state::infos::{self, InfoColumn, InfoRow, InfoTypes, Infos, LeftOut};
use super::episode_state::{self, ItemDecoder, ItemHeader, LeafTypes};
use super::faults::{self, Faults, is_of_data};
use super::file::InputFile;
use super::index::{self, Entry, Index, Rare, Span};
use super::rows::{RowGroupRef, RowMap};
use super::{BlockIter, IndexOptions, Noticed, Source};
use crate::column::{ACTIONS, DEFAULT_MODULE_ID, INFOS, OBS, REWARDS, root};
use crate::episode::{EpisodeBatch, EpisodeId, EpisodeLayout};
use crate::error::{Error, Result};
use crate::job::{Compat, Duplicates, Unfinished};
use crate::progress::{Progress, Step, go_on};
use crate::tensor::{DType, TensorBuilder, TensorType};

/// Bytes of items per batch in the first pass.
const SCAN_BYTES: usize = 8 << 20;

/// Recordings of RLlib's `output_write_episodes = True`.
#[derive(Debug)]
pub struct ItemsSource {
    recognised: String,
    rows: RowMap,
    column: String,
    /// Whether infos are wanted.
    infos: bool,
    tolerant: bool,
}

/// An item's header and its global row.
type Headers = Vec<(u64, ItemHeader)>;

/// An item as it was scanned: its header, or its episode as far as that can be told, and what is wrong.
type ScannedItem = Result<(u64, ItemHeader), (u64, Option<String>, Error)>;

impl ItemsSource {
    /// A source over the items in `column` of all files, with their infos or without.
    #[must_use]
    pub fn new(recognised: String, rows: RowMap, column: String, infos: bool) -> Self {
        Self { recognised, rows, column, infos, tolerant: false }
    }

    /// The same; where `tolerant`, a row group that cannot be read is one without items instead of an error.
    #[must_use]
    pub fn tolerant(self, tolerant: bool) -> Self {
        Self { tolerant, ..self }
    }

    /// The items of a row group in batches of about `bytes`, each with the global number of its first row.
    fn items(
        &self,
        group: RowGroupRef,
        bytes: usize,
    ) -> Result<impl Iterator<Item = Result<(u64, LargeBinaryArray)>> + use<>> {
        let file = Arc::clone(&self.rows.files()[group.file]);
        let column = self.column.clone();
        let per_row = file.row_groups[group.row_group].bytes / group.rows.max(1);
        let batch_rows = (bytes / usize::try_from(per_row).unwrap_or(usize::MAX).max(1)).clamp(1, 65_536);
        let place = move |file: &InputFile, e: Error| e.file(file.name.clone()).row_group(group.row_group);
        let batches =
            file.read(group.row_group, std::slice::from_ref(&column), batch_rows).map_err(|e| place(&file, e))?;
        let mut row = group.first_row;
        Ok(batches.map(move |batch| {
            let items = batch.and_then(|b| binary(&b, &column)).map_err(|e| place(&file, e))?;
            let first = row;
            row += items.len() as u64;
            Ok((first, items))
        }))
    }

    /// Headers and leaf types of one row group.
    fn scan(&self, group: RowGroupRef, progress: &dyn Progress) -> Result<(LeafTypes, InfoTypes, Headers)> {
        let (mut types, mut infos, mut headers) = (LeafTypes::default(), InfoTypes::default(), Vec::new());
        for batch in self.items(group, SCAN_BYTES)? {
            let (first, items) = batch?;
            for (i, item) in items.iter().enumerate() {
                let row = first + i as u64;
                let item = item.ok_or_else(|| self.rows.locate(row, null_item(&self.column)))?;
                let header = episode_state::scan(item, &mut types).map_err(|e| self.locate_item(row, item, e))?;
                if self.infos {
                    Infos::read(item)
                        .and_then(|found| infos.add(row, header.len, &found))
                        .map_err(|e| self.rows.locate(row, e).episode(header.id.clone()))?;
                }
                headers.push((row, header));
            }
            progress.advance(Step { bytes: value_bytes(&items) as u64, ..Step::default() });
            go_on(progress)?;
        }
        Ok((types, infos, headers))
    }

    /// Places an error in an item. Without a step it is about the item as a whole.
    fn locate_item(&self, row: u64, item: &[u8], error: Error) -> Error {
        let whole = error.place().t.is_none();
        // An item may be whole and only not go with the others.
        let error = match episode_state::scan(item, &mut LeafTypes::default()) {
            Ok(header) => error.episode(header.id),
            Err(_) => error,
        };
        let error = self.rows.locate(row, error.column(self.column.as_str()));
        if whole { error.hint(BAD_ITEM) } else { error }
    }

    /// [`Self::scan`] around items that cannot be understood or do not go with those before: each is a fault. A row group
    /// that cannot be read is one as a whole. What is left out leaves no types behind.
    fn scan_what_can_be(
        &self,
        group: RowGroupRef,
        types: &mut LeafTypes,
        infos: &mut InfoTypes,
        faults: &mut Faults,
        progress: &dyn Progress,
    ) -> Result<Headers> {
        let before = (types.clone(), infos.clone());
        let found = match self.scan_items(group, types, infos, progress) {
            Ok(found) => found,
            Err(e) if is_of_data(&e) => {
                (*types, *infos) = before;
                faults.rows(Span::new(group.first_row, group.rows), e).episodes = group.rows;
                return Ok(Vec::new());
            }
            Err(e) => return Err(e),
        };
        let mut headers = Vec::new();
        for item in found {
            match item {
                Ok(header) => headers.push(header),
                Err((row, Some(id), error)) => {
                    let id = EpisodeId::Str(id.into());
                    faults.episode(&id, error);
                    faults.add(&id, [Span::one(row)], 1, 0);
                }
                Err((row, None, error)) => faults.rows(Span::one(row), error).episodes = 1,
            }
        }
        Ok(headers)
    }

    /// The items of a row group, each with what is wrong with it.
    ///
    /// # Errors
    /// If the row group cannot be read, or the run is to stop.
    fn scan_items(
        &self,
        group: RowGroupRef,
        types: &mut LeafTypes,
        infos: &mut InfoTypes,
        progress: &dyn Progress,
    ) -> Result<Vec<ScannedItem>> {
        let mut found = Vec::new();
        for batch in self.items(group, SCAN_BYTES)? {
            let (first, items) = batch?;
            for (i, item) in items.iter().enumerate() {
                let row = first + i as u64;
                let Some(item) = item else {
                    found.push(Err((row, None, self.rows.locate(row, null_item(&self.column)))));
                    continue;
                };
                found.push(match self.scan_item(row, item, types, infos) {
                    Ok(header) => Ok((row, header)),
                    Err(e) if is_of_data(&e) => {
                        let error = self.locate_item(row, item, e);
                        Err((row, error.place().episode.clone(), error))
                    }
                    Err(e) => return Err(e),
                });
            }
            progress.advance(Step { bytes: value_bytes(&items) as u64, ..Step::default() });
            go_on(progress)?;
        }
        Ok(found)
    }

    /// The header of one item, whose types are taken in. After an error they are as they were.
    fn scan_item(&self, row: u64, item: &[u8], types: &mut LeafTypes, infos: &mut InfoTypes) -> Result<ItemHeader> {
        if !self.infos {
            return episode_state::scan(item, types);
        }
        let found = match Infos::read(item) {
            Ok(found) => found,
            // What is wrong with the item as a whole comes first.
            Err(e) => {
                let header = episode_state::scan(item, &mut LeafTypes::default())?;
                return Err(e.episode(header.id));
            }
        };
        // Their number is nearly always known to be small enough.
        let before = (!infos.has_room_for(&found)).then(|| types.clone());
        let header = episode_state::scan(item, types)?;
        infos.add(row, header.len, &found).map_err(|e| {
            if let Some(before) = before {
                *types = before;
            }
            e.episode(header.id.clone())
        })?;
        Ok(header)
    }

    /// The content hashes of some rows, by row.
    fn hashes(&self, mut rows: Vec<u64>) -> Result<HashMap<u64, u128>> {
        rows.sort_unstable();
        rows.dedup();
        let wanted = |g: &&RowGroupRef| {
            let at = rows.partition_point(|&r| r < g.first_row);
            rows.get(at).is_some_and(|&r| r < g.first_row + g.rows)
        };
        let groups: Vec<RowGroupRef> = self.rows.groups().iter().filter(wanted).copied().collect();
        let parts: Vec<Vec<(u64, u128)>> = groups
            .par_iter()
            .map(|g| {
                let mut out = Vec::new();
                for batch in self.items(*g, SCAN_BYTES)? {
                    let (first, items) = batch?;
                    for (i, item) in items.iter().enumerate() {
                        let row = first + i as u64;
                        if let (Some(item), Ok(_)) = (item, rows.binary_search(&row)) {
                            out.push((row, episode_state::content_hash(item).map_err(|e| self.rows.locate(row, e))?));
                        }
                    }
                }
                Ok(out)
            })
            .collect::<Result<_>>()?;
        Ok(parts.into_iter().flatten().collect())
    }

    /// Which items repeat an earlier one, by position in `headers`.
    ///
    /// # Errors
    /// If two items of one episode and start differ (unless RLlib's behaviour is asked for, which takes both).
    fn repeated(&self, headers: &Headers, options: IndexOptions<'_>, faults: &mut Faults) -> Result<Vec<bool>> {
        let mut same_start: HashMap<(&str, i64), Vec<usize>> = HashMap::new();
        for (i, (_, header)) in headers.iter().enumerate() {
            same_start.entry((&header.id, header.t_started)).or_default().push(i);
        }
        // In the order of the items, not of the map.
        let group_of = |i: usize| &same_start[&(headers[i].1.id.as_str(), headers[i].1.t_started)];
        let suspects: Vec<u64> = (0..headers.len()).filter(|&i| group_of(i).len() > 1).map(|i| headers[i].0).collect();
        let mut out = vec![false; headers.len()];
        if suspects.is_empty() || options.duplicates == Duplicates::Keep {
            return Ok(out);
        }
        let hashes = self.hashes(suspects)?;
        for i in 0..headers.len() {
            let (row, header) = &headers[i];
            let earlier: Vec<usize> = group_of(i).iter().copied().filter(|&j| j < i && !out[j]).collect();
            if earlier.iter().any(|&j| hashes[&headers[j].0] == hashes[row]) {
                if options.duplicates == Duplicates::Fail {
                    let error = Error::data("the item repeats an earlier one")
                        .episode(header.id.clone())
                        .t(header.t_started)
                        .hint("`input.duplicates = \"drop\"` keeps one of each");
                    return Err(self.rows.locate(*row, error));
                }
                out[i] = true;
            } else if options.compat == Compat::Correct
                && header.len > 0
                && let Some(&j) = earlier.iter().find(|&&j| headers[j].1.len > 0)
            {
                let error = Error::data(format!(
                    "two items of the episode start at the same step and differ ({} and {} steps; the other: {})",
                    header.len,
                    headers[j].1.len,
                    self.rows.describe(headers[j].0)
                ))
                .episode(header.id.clone())
                .t(header.t_started)
                .hint("give every episode its own id; identical items would have been dropped as duplicates");
                let error = self.rows.locate(*row, error);
                if !options.tolerant {
                    return Err(error);
                }
                faults.episode(&EpisodeId::Str(header.id.as_str().into()), error);
            }
        }
        Ok(out)
    }
}

const BAD_ITEM: &str = "an item is one episode as RLlib packs it: msgpack of its `get_state()`; this one is cut off, damaged, or \
                        something else: record it again, or leave it out of the input";

fn null_item(column: &str) -> Error {
    Error::data("found null, expected a msgpack item").column(column)
}

/// A column of items, whichever binary type it has.
fn binary(batch: &RecordBatch, column: &str) -> Result<LargeBinaryArray> {
    let array = batch.column_by_name(column).ok_or_else(|| Error::usage("the column is missing").column(column))?;
    let cast = arrow::compute::cast(array, &DataType::LargeBinary)
        .map_err(|e| Error::usage(format!("found {}, expected binary: {e}", array.data_type())).column(column))?;
    cast.as_binary_opt::<i64>().cloned().ok_or_else(|| Error::internal("a cast to binary that is not"))
}

/// Bytes of the items of an array, which may be a slice of a larger one.
fn value_bytes(items: &LargeBinaryArray) -> usize {
    let offsets = items.value_offsets();
    offsets.last().zip(offsets.first()).and_then(|(end, start)| usize::try_from(end - start).ok()).unwrap_or(0)
}

/// The step columns in canonical order.
fn layout(types: &LeafTypes, infos: &InfoTypes) -> Result<EpisodeLayout> {
    let all: Vec<_> = types.iter().collect();
    if let Some((name, leaf)) = all.iter().find(|(n, leaf)| root(n) != OBS && leaf.in_items != types.items()) {
        let (count, items) = (leaf.in_items, types.items());
        return Err(Error::usage(format!("the column is recorded in {count} of {items} items that have steps"))
            .column(name.as_str())
            .hint("convert recordings with different columns one by one"));
    }
    let rank = |name: &str| match root(name) {
        OBS => 0,
        ACTIONS => 1,
        REWARDS => 2,
        _ => 3,
    };
    let mut steps: Vec<(Arc<str>, TensorType)> = all.into_iter().map(|(n, leaf)| (n.into(), leaf.ty)).collect();
    steps.sort_by_key(|(n, _)| rank(n)); // stable: inside a root the recorded order stays
    for InfoColumn { name, ty, mask } in infos.columns().0 {
        steps.push((name.into(), ty));
        steps.extend(mask.map(|mask| (mask.into(), TensorType::new(DType::Bool, []))));
    }
    Ok(EpisodeLayout { steps, last_obs: true })
}

impl Source for ItemsSource {
    fn recognised(&self) -> &str {
        &self.recognised
    }

    fn notes(&self) -> &[String] {
        &[]
    }

    fn rows(&self) -> &RowMap {
        &self.rows
    }

    fn rows_are_steps(&self) -> bool {
        false
    }

    fn row_bytes(&self, _: &EpisodeLayout) -> usize {
        let bytes: u64 =
            self.rows.groups().iter().map(|g| self.rows.files()[g.file].row_groups[g.row_group].bytes).sum();
        usize::try_from(bytes / self.rows.rows().max(1)).unwrap_or(usize::MAX)
    }

    fn peek(&self) -> Result<EpisodeLayout> {
        for group in self.rows.groups() {
            let (types, infos, headers) = if self.tolerant {
                let (mut types, mut infos) = (LeafTypes::default(), InfoTypes::default());
                let headers = self.scan_what_can_be(
                    *group,
                    &mut types,
                    &mut infos,
                    &mut Faults::default(),
                    &crate::progress::Silent,
                )?;
                (types, infos, headers)
            } else {
                self.scan(*group, &crate::progress::Silent)?
            };
            if headers.iter().any(|(_, h)| h.len > 0) {
                return layout(&types, &infos);
            }
        }
        Ok(EpisodeLayout { steps: Vec::new(), last_obs: true })
    }

    fn index(&self, options: IndexOptions<'_>, progress: &dyn Progress) -> Result<Index> {
        let (mut types, mut infos, mut headers) = (LeafTypes::default(), InfoTypes::default(), Vec::new());
        let mut faults = Faults::default();
        if options.tolerant {
            for group in self.rows.groups() {
                headers.extend(self.scan_what_can_be(*group, &mut types, &mut infos, &mut faults, progress)?);
            }
        }
        let groups = if options.tolerant { &[] } else { self.rows.groups() };
        let scanned: Vec<_> = groups.par_iter().map(|g| self.scan(*g, progress)).collect();
        for (group, part) in groups.iter().zip(scanned) {
            let (part_types, part_infos, part_headers) = part?;
            let merged = types.merge(&part_types).and_then(|()| infos.merge(&part_infos));
            merged.map_err(|e| self.rows.locate(group.first_row, e))?;
            headers.extend(part_headers);
        }
        let modules = vec![DEFAULT_MODULE_ID.to_owned()];
        let layout = layout(&types, &infos)?;
        let mut index = Index { layouts: vec![layout.clone()], layout, modules, ..Index::default() };
        if self.infos {
            index.notes.extend(self.notes_of(&infos));
            index.masks = infos.columns().0.into_iter().filter_map(|c| c.mask).map(Arc::from).collect();
        }
        index.episodes_read = headers.len() as u64 + faults.sums().0;
        index.steps_read = headers.iter().map(|(_, h)| h.len as u64).sum();
        index.oddities.empty_episodes = headers.iter().filter(|(_, h)| h.len == 0).count() as u64;

        self.refuse_agents(&headers)?;
        let repeated = self.repeated(&headers, options, &mut faults)?;
        let mut kept = Vec::with_capacity(headers.len());
        for ((row, header), repeated) in headers.into_iter().zip(repeated) {
            if repeated {
                index.oddities.duplicate_rows += header.len as u64;
                index.oddities.duplicate_episodes += 1;
                index.oddities.duplicate_entries += 1;
                index.oddities.first_duplicate.get_or_insert(row);
            } else {
                kept.push((row, header));
            }
        }
        let mut chunks = chunks_of(&kept);
        if options.compat == Compat::Correct {
            self.in_time_order(&mut kept, &mut chunks, options.tolerant, &mut faults)?;
        }
        index.episode_ids = chunks.len() as u64;
        index.faults = faults;
        self.entries(&kept, &chunks, options, &mut index)?;
        if options.tolerant {
            faults::leave_out(&mut index)?;
        }
        Ok(index)
    }

    fn read(&self, group: RowGroupRef, _: &EpisodeLayout, block_bytes: usize) -> Result<BlockIter> {
        if self.tolerant {
            return Ok(self.read_what_can_be(group, block_bytes));
        }
        Ok(Box::new(self.items(group, block_bytes)?.map(|batch| {
            let (first_row, items) = batch?;
            let bytes = value_bytes(&items);
            let rows = BlockRows::All(first_row..first_row + items.len() as u64);
            Ok(Block { rows, bytes, data: BlockData::Items(items) })
        })))
    }

    fn assemble(&self, index: &Index, entries: &[&Entry], blocks: &Blocks, _: &mut Noticed) -> Result<EpisodeBatch> {
        let recorded = index.layout.steps.iter().filter(|(n, _)| root(n) != INFOS);
        let leaves: Vec<(String, TensorType)> = recorded.map(|(n, t)| (n.to_string(), t.clone())).collect();
        let mut decoder = ItemDecoder::new(leaves.clone())?;
        let mut donors = ItemDecoder::new(leaves)?;
        let mut batch = EpisodeBatch { offsets: vec![0], history_offsets: vec![0], ..EpisodeBatch::default() };
        // For each chunk, the rows of `donors` that stand in for the look-back it lacks.
        let mut donor_rows: Vec<Range<usize>> = Vec::with_capacity(entries.len());
        // The donors themselves: their rows in the input, and their steps.
        let mut donors_of: Vec<Vec<(u64, usize)>> = Vec::with_capacity(entries.len());
        let (mut steps, mut donated) = (0, 0);
        for entry in entries {
            let row = index.spans[entry.spans.start].first();
            steps += self.decode(&mut decoder, blocks, row, entry)?.len;
            batch.offsets.push(steps);
            let begin = donated;
            let mut own = Vec::with_capacity(entry.history().len());
            for &row in entry.history().iter().rev() {
                let len = self.decode(&mut donors, blocks, row, entry)?.len;
                own.push((row, len));
                donated += len;
            }
            donor_rows.push(begin..donated);
            donors_of.push(own);
            batch.chunks.push(entry.chunk(true));
        }
        let (own, donors) = (decoder.finish(), donors.finish());
        // Buffers of one item may look back differently far; what all of them have is the chunk's look-back. Where
        // earlier chunks reach further back, theirs is taken: they hold the same rows.
        let own_look_back = |i: usize| own.iter().map(|(_, leaf)| leaf.items[i].history as usize).min().unwrap_or(0);
        for (i, rows) in donor_rows.iter_mut().enumerate() {
            let wanted = if rows.len() <= own_look_back(i) { 0 } else { rows.len().min(index.look_back) };
            rows.start = rows.end - wanted;
            if wanted == 0 {
                donors_of[i].clear();
            }
        }
        let look_backs: Vec<usize> = donor_rows
            .iter()
            .enumerate()
            .map(|(i, rows)| if rows.is_empty() { own_look_back(i) } else { rows.len() })
            .collect();
        for (i, len) in look_backs.iter().enumerate() {
            batch.history_offsets.push(batch.history_offsets[i] + len);
        }
        for ((name, own), (_, donor)) in own.into_iter().zip(donors) {
            let name: Arc<str> = name.into();
            let mut history = TensorBuilder::with_capacity(own.history.ty().clone(), look_backs.iter().sum());
            let mut end = 0;
            for ((counts, donated), &len) in own.items.iter().zip(&donor_rows).zip(&look_backs) {
                end += counts.history as usize;
                if donated.is_empty() {
                    history.extend(&own.history, end - len, len);
                } else {
                    history.extend(&donor.steps, donated.start, len);
                }
            }
            batch.history.set(Arc::clone(&name), history.finish());
            if root(&name) == OBS {
                batch.last_obs.set(Arc::clone(&name), own.last);
            }
            batch.steps.set(name, own.steps);
        }
        if index.layout.has(INFOS) {
            self.add_infos(index, entries, blocks, &donors_of, &mut batch)?;
        }
        Ok(batch)
    }
}

/// The builders of a column of infos.
struct InfoBuilders {
    steps: TensorBuilder,
    last: TensorBuilder,
    history: TensorBuilder,
}

/// The positions of each episode's items, by episode in order of first appearance.
fn chunks_of(headers: &Headers) -> Vec<Vec<usize>> {
    let mut number: HashMap<&str, usize> = HashMap::new();
    let mut out: Vec<Vec<usize>> = Vec::new();
    for (i, (_, header)) in headers.iter().enumerate() {
        let next = out.len();
        let n = *number.entry(&header.id).or_insert(next);
        if n == next {
            out.push(Vec::new());
        }
        out[n].push(i);
    }
    out
}

impl ItemsSource {
    /// The blocks of a row group; from where it cannot be read on, no items. The first pass has left out the whole group.
    fn read_what_can_be(&self, group: RowGroupRef, block_bytes: usize) -> BlockIter {
        let mut batches: Box<dyn Iterator<Item = Result<(u64, LargeBinaryArray)>> + Send> =
            match self.items(group, block_bytes) {
                Ok(batches) => Box::new(batches),
                Err(e) => Box::new(std::iter::once(Err(e))),
            };
        let (mut row, end) = (group.first_row, group.first_row + group.rows);
        Box::new(std::iter::from_fn(move || {
            if row == end {
                return None;
            }
            let items = match batches.next() {
                Some(Ok((_, items))) => items,
                Some(Err(e)) if !is_of_data(&e) => return Some(Err(e)),
                _ => LargeBinaryArray::new_null(usize::try_from(end - row).unwrap_or(usize::MAX)),
            };
            let rows = BlockRows::All(row..row + items.len() as u64);
            row = rows.end();
            let bytes = value_bytes(&items);
            Some(Ok(Block { rows, bytes, data: BlockData::Items(items) }))
        }))
    }

    fn decode(&self, decoder: &mut ItemDecoder, blocks: &Blocks, row: u64, entry: &Entry) -> Result<ItemHeader> {
        let (block, at) = blocks.row(row)?;
        let BlockData::Items(items) = &block.data else { return Err(Error::internal("a block of steps among items")) };
        decoder.decode(items.value(at)).map_err(|e| self.rows.locate(row, e).episode(entry.id.to_string()))
    }

    /// What of the infos is no column, a sentence each.
    fn notes_of(&self, infos: &InfoTypes) -> Vec<String> {
        let (columns, left_out) = infos.columns();
        let note = |(name, row, why): LeftOut<'_>| {
            let place = row.map_or_else(String::new, |row| format!(" ({})", self.rows.describe(row)));
            format!("`{name}` is left out of the infos: {why}{place}")
        };
        let mut notes: Vec<String> = left_out.into_iter().map(note).collect();
        if columns.is_empty() {
            notes.push("no infos are added: the recording's infos hold no numbers".to_owned());
        }
        notes
    }

    fn infos_of(&self, blocks: &Blocks, row: u64, entry: &Entry) -> Result<Infos> {
        let (block, at) = blocks.row(row)?;
        let BlockData::Items(items) = &block.data else { return Err(Error::internal("a block of steps among items")) };
        Infos::read(items.value(at)).map_err(|e| self.rows.locate(row, e).episode(entry.id.to_string()))
    }

    /// Adds the infos of a batch that is complete but for them. `donors_of` has, for each chunk whose look-back came from
    /// earlier chunks, their rows and steps.
    fn add_infos(
        &self,
        index: &Index,
        entries: &[&Entry],
        blocks: &Blocks,
        donors_of: &[Vec<(u64, usize)>],
        batch: &mut EpisodeBatch,
    ) -> Result<()> {
        let columns: Vec<_> = index.layout.under(INFOS).collect();
        let names: Vec<&str> = columns.iter().map(|(n, _)| &***n).collect();
        // A mask stands right behind the info that it is for.
        let masks: HashSet<&str> = index.masks.iter().map(|mask| &**mask).collect();
        let is_mask: Vec<bool> = names.iter().map(|name| masks.contains(name)).collect();
        let (steps, chunks, history) = (batch.steps_len(), entries.len(), batch.history_offsets[entries.len()]);
        let builder = |ty: &TensorType, rows| TensorBuilder::with_capacity(ty.clone(), rows);
        let mut out: Vec<InfoBuilders> = columns
            .iter()
            .map(|(_, ty)| InfoBuilders {
                steps: builder(ty, steps),
                last: builder(ty, chunks),
                history: builder(ty, history),
            })
            .collect();
        let put = |row: Option<&InfoRow>, at: usize, to: &mut TensorBuilder| {
            if is_mask[at] && at > 0 {
                to.extend_bytes(&[u8::from(row.is_some_and(|row| row.contains_key(names[at - 1])))], 1);
                return Ok(());
            }
            infos::append(row, names[at], columns[at].1, to)
        };
        for (i, entry) in entries.iter().enumerate() {
            let own = self.infos_of(blocks, index.spans[entry.spans.start].first(), entry)?;
            let len = batch.rows(i).len();
            let step = |t: usize| isize::try_from(t).map_err(|_| Error::internal("an episode larger than memory"));
            for (at, out) in out.iter_mut().enumerate() {
                (0..len).try_for_each(|t| put(own.at(step(t)?), at, &mut out.steps))?;
                // Where a recorder left the last one out, that of the last step is the last known.
                let last = own.at(step(len)?).or_else(|| own.at(step(len).ok()? - 1));
                put(last, at, &mut out.last)?;
            }
            let look_back = batch.history_rows(i).len();
            let before: Vec<(Infos, isize)> = donors_of[i]
                .iter()
                .map(|&(row, len)| Ok((self.infos_of(blocks, row, entry)?, step(len)?)))
                .collect::<Result<_>>()?;
            let all: Vec<Option<&InfoRow>> = if before.is_empty() {
                (1..=step(look_back)?).rev().map(|back| own.at(-back)).collect()
            } else {
                before.iter().flat_map(|(infos, len)| (0..*len).map(|t| infos.at(t))).collect()
            };
            for row in &all[all.len() - look_back.min(all.len())..] {
                for (at, out) in out.iter_mut().enumerate() {
                    put(*row, at, &mut out.history)?;
                }
            }
        }
        for ((name, _), out) in columns.iter().zip(out) {
            batch.steps.set(Arc::clone(name), out.steps.finish());
            batch.last_obs.set(Arc::clone(name), out.last.finish());
            batch.history.set(Arc::clone(name), out.history.finish());
        }
        Ok(())
    }

    /// Refuses episodes of one of several agents: their ids alone do not tell them apart.
    fn refuse_agents(&self, headers: &Headers) -> Result<()> {
        for (row, h) in headers {
            let found = [
                ("agent_id", &h.agent_id),
                ("module_id", &h.module_id),
                ("multi_agent_episode_id", &h.multi_agent_episode_id),
            ];
            if let Some((name, Some(value))) = found.into_iter().find(|(_, value)| value.is_some()) {
                let error = Error::usage(format!(
                    "found {name} {value:?}, expected none: several agents in this layout are not built yet"
                ));
                return Err(self.rows.locate(*row, error).episode(h.id.clone()));
            }
        }
        Ok(())
    }

    /// Puts chunks that were recorded out of time order into it: they change places among themselves, so that
    /// everything else stays in file order.
    fn in_time_order(
        &self,
        headers: &mut Headers,
        chunks: &mut [Vec<usize>],
        tolerant: bool,
        faults: &mut Faults,
    ) -> Result<()> {
        let mut refuse = |row: u64, id: &str, error: Error| {
            let error = self.rows.locate(row, error);
            if !tolerant {
                return Err(error);
            }
            faults.episode(&EpisodeId::Str(id.into()), error);
            Ok(())
        };
        for places in chunks.iter().filter(|p| p.len() > 1) {
            let mut sorted: Vec<(u64, ItemHeader)> = places.iter().map(|&i| headers[i].clone()).collect();
            sorted.sort_by_key(|(row, h)| (h.t_started, h.len, *row));
            for pair in sorted.windows(2) {
                let (before, after) = (&pair[0].1, &pair[1].1);
                let end = before.t_started.saturating_add(i64::try_from(before.len).unwrap_or(i64::MAX));
                if after.t_started < end && after.len > 0 && before.t_started != after.t_started {
                    let error = Error::data(format!(
                        "the item covers steps from {}, but another one of the episode goes on to step {} ({})",
                        after.t_started,
                        end - 1,
                        self.rows.describe(pair[0].0)
                    ))
                    .episode(after.id.clone())
                    .t(after.t_started)
                    .hint("chunks of an episode must follow one another");
                    refuse(pair[1].0, &after.id, error)?;
                }
                if (before.terminated || before.truncated) && before.len > 0 && after.t_started >= end && after.len > 0
                {
                    let flag = if before.terminated { "terminated" } else { "truncated" };
                    let error = Error::data(format!(
                        "the episode goes on after its end: another item of it ended {flag} before step {end} ({})",
                        self.rows.describe(pair[0].0)
                    ))
                    .episode(after.id.clone())
                    .t(after.t_started)
                    .hint("give every episode its own id");
                    refuse(pair[1].0, &after.id, error)?;
                }
            }
            for (&place, item) in places.iter().zip(sorted) {
                headers[place] = item;
            }
        }
        Ok(())
    }

    fn entries(
        &self,
        headers: &Headers,
        chunks: &[Vec<usize>],
        options: IndexOptions<'_>,
        index: &mut Index,
    ) -> Result<()> {
        let mut entries: Vec<Option<Entry>> = vec![None; headers.len()];
        for places in chunks {
            let last = places.iter().copied().max_by_key(|&i| (end_of(&headers[i].1), i)).unwrap_or(0);
            let (last_row, last_header) = &headers[last];
            let unfinished =
                !(last_header.terminated || last_header.truncated) && places.iter().any(|&i| headers[i].1.len > 0);
            index.oddities.unfinished_episodes += u64::from(unfinished);
            if unfinished && options.unfinished == Unfinished::Fail {
                let error = Error::data("the episode's last step is neither terminated nor truncated")
                    .episode(last_header.id.clone())
                    .hint("`input.unfinished` = \"keep\", \"truncate\" or \"drop\" says what to do with such episodes");
                return Err(self.rows.locate(*last_row, error));
            }
            if unfinished && options.unfinished == Unfinished::Drop {
                index.oddities.dropped_unfinished_episodes += 1;
                index.oddities.dropped_unfinished_entries += places.len() as u64;
                index.oddities.dropped_unfinished_steps += places.iter().map(|&i| headers[i].1.len as u64).sum::<u64>();
                continue;
            }
            for &i in places {
                let header = &headers[i].1;
                let history = match options.compat {
                    Compat::Correct => history_of(headers, places, i, options.look_back),
                    Compat::Rllib260 => Vec::new(),
                };
                entries[i] = Some(Entry {
                    id: EpisodeId::Str(header.id.as_str().into()),
                    module: 0,
                    ordinal: 0,
                    bare_rank: 0,
                    spans: i..i + 1, // of a list with one span an item; see below
                    steps: header.len as u64,
                    t_started: header.t_started,
                    terminated: header.terminated,
                    truncated: header.truncated
                        || (unfinished && i == last && options.unfinished == Unfinished::Truncate),
                    rare: Rare { history, ..Rare::default() }.boxed(),
                });
            }
        }
        index.spans = headers.iter().map(|(row, _)| Span::one(*row)).collect();
        index.entries = entries.into_iter().flatten().collect();
        index.look_back = options.look_back;
        index::number(&mut index.entries)
    }
}

/// The step after an item's last one.
fn end_of(header: &ItemHeader) -> i64 {
    header.t_started.saturating_add(i64::try_from(header.len).unwrap_or(i64::MAX))
}

/// The rows of the chunks right before chunk `i` of an episode, latest first, that together hold the `look_back` rows
/// before it. Empty if it brings them itself.
fn history_of(headers: &Headers, places: &[usize], i: usize, look_back: usize) -> Vec<u64> {
    let header = &headers[i].1;
    let mut out = Vec::new();
    if header.t_started <= 0 || header.lookback >= look_back {
        return out;
    }
    let (mut start, mut found) = (header.t_started, 0);
    while found < look_back
        && let Some((row, before)) = places.iter().map(|&j| &headers[j]).find(|(_, h)| h.len > 0 && end_of(h) == start)
    {
        out.push(*row);
        found += before.len;
        start = before.t_started;
    }
    out
}

/// Whether a batch's column could hold items.
#[must_use]
pub fn is_item_type(ty: &DataType) -> bool {
    matches!(ty, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}
