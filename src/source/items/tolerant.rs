//! Items where malformed episodes are left out: what can be understood is, the rest is put aside with its reason.

use arrow::array::{Array, LargeBinaryArray};

use super::{Headers, ItemsSource, SCAN_BYTES, null_item, value_bytes};
use crate::episode::EpisodeId;
use crate::error::{Error, Result};
use crate::progress::{Progress, Step, go_on};
use crate::source::BlockIter;
use crate::source::blocks::{Block, BlockData, BlockRows};
use crate::source::episode_state::infos::{InfoTypes, Infos};
use crate::source::episode_state::{self, ItemHeader, LeafTypes};
use crate::source::faults::{Faults, is_of_data};
use crate::source::index::Span;
use crate::source::rows::RowGroupRef;

/// An item as it was scanned: its header, or its episode as far as that can be told, and what is wrong.
type ScannedItem = Result<(u64, ItemHeader), (u64, Option<String>, Error)>;

impl ItemsSource {
    /// [`Self::scan`] around items that cannot be understood or do not go with those before: each is a fault. A row group
    /// that cannot be read is one as a whole. What is left out leaves no types behind.
    pub(super) fn scan_what_can_be(
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
                faults.row_group(group, e).episodes = group.rows;
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

    /// The blocks of a row group; from where it cannot be read on, no items. The first pass has left out the whole group.
    pub(super) fn read_what_can_be(&self, group: RowGroupRef, block_bytes: usize) -> BlockIter {
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
}
