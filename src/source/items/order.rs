//! The items of an episode as its chunks, in time order, and the entries of the index that they make.

use std::collections::HashMap;

use super::{Headers, ItemsSource};
use crate::episode::EpisodeId;
use crate::error::{Error, Result};
use crate::job::{Compat, Unfinished};
use crate::source::IndexOptions;
use crate::source::episode_state::ItemHeader;
use crate::source::faults::Faults;
use crate::source::index::{self, Entry, Index, Rare, Span};

/// The positions of each episode's items, by episode in order of first appearance.
pub(super) fn chunks_of(headers: &Headers) -> Vec<Vec<usize>> {
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
    /// Puts chunks that were recorded out of time order into it: they change places among themselves, so that
    /// everything else stays in file order.
    pub(super) fn in_time_order(
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

    pub(super) fn entries(
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
