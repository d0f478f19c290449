//! Items that are recorded a second time.

use std::collections::HashMap;

use rayon::prelude::*;

use super::{Headers, ItemsSource, SCAN_BYTES};
use crate::episode::EpisodeId;
use crate::error::{Error, Result};
use crate::job::{Compat, Duplicates};
use crate::source::IndexOptions;
use crate::source::episode_state;
use crate::source::faults::Faults;
use crate::source::rows::RowGroupRef;

impl ItemsSource {
    /// Which items repeat an earlier one, by position in `headers`.
    ///
    /// # Errors
    /// If two items of one episode and start differ (unless RLlib's behaviour is asked for, which takes both).
    pub(super) fn repeated(
        &self,
        headers: &Headers,
        options: IndexOptions<'_>,
        faults: &mut Faults,
    ) -> Result<Vec<bool>> {
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
}
