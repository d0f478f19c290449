//! Layout `rllib-episodes`: one row a chunk, the whole chunk as msgpack.

mod infos;
mod order;
mod repeated;
mod tolerant;

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, AsArray, LargeBinaryArray, RecordBatch};
use arrow::datatypes::DataType;
use rayon::prelude::*;

use self::order::chunks_of;
use super::blocks::{Block, BlockData, BlockRows, Blocks};
use super::episode_state::infos::{InfoColumn, InfoTypes, Infos};
use super::episode_state::{self, ItemDecoder, ItemHeader, LeafTypes};
use super::faults::{self, Faults};
use super::file::InputFile;
use super::index::{Entry, Index};
use super::rows::{RowGroupRef, RowMap};
use super::{BlockIter, IndexOptions, Noticed, Source};
use crate::column::{ACTIONS, DEFAULT_MODULE_ID, INFOS, OBS, REWARDS, root};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::job::Compat;
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
            file.read_apart(group.row_group, std::slice::from_ref(&column), batch_rows).map_err(|e| place(&file, e))?;
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

    fn decode(&self, decoder: &mut ItemDecoder, blocks: &Blocks, row: u64, entry: &Entry) -> Result<ItemHeader> {
        let (block, at) = blocks.row(row)?;
        let BlockData::Items(items) = &block.data else { return Err(Error::internal("a block of steps among items")) };
        decoder.decode(items.value(at)).map_err(|e| self.rows.locate(row, e).episode(entry.id.to_string()))
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

/// Whether a batch's column could hold items.
#[must_use]
pub fn is_item_type(ty: &DataType) -> bool {
    matches!(ty, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}
