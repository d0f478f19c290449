//! The infos of items, as columns.

use std::collections::HashSet;
use std::sync::Arc;

use super::ItemsSource;
use crate::column::INFOS;
use crate::episode::EpisodeBatch;
use crate::error::{Error, Result};
use crate::source::blocks::{BlockData, Blocks};
use crate::source::episode_state::infos::{self, InfoRow, InfoTypes, Infos, LeftOut};
use crate::source::index::{Entry, Index};
use crate::tensor::{TensorBuilder, TensorType};

/// The builders of a column of infos.
struct InfoBuilders {
    steps: TensorBuilder,
    last: TensorBuilder,
    history: TensorBuilder,
}

impl ItemsSource {
    /// What of the infos is no column, a sentence each.
    pub(super) fn notes_of(&self, infos: &InfoTypes) -> Vec<String> {
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
    pub(super) fn add_infos(
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
}
