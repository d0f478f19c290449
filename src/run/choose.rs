//! `input.where`: the table of episodes, and what it leaves of the index.
//!
//! ```text
//! entries (chunks)        a 0..3   b 0..2   a 3..5          in order of t: a chunk goes on where another stopped
//! table   eps_id          a        b
//!         episode_length  5        2
//!         episode_return  6.0      1.5      sums of the chunks, one after the other
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::column::{AGENT_ID, DEFAULT_MODULE_ID, EPS_ID, REWARDS};
use crate::episode::{EpisodeId, EpisodeLayout};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::source::index::{self, Entry, Index};
use crate::sql::{self, EpisodeTable, Kind, Offer, Values};
use crate::tensor::{DType, Tensor};

const RETURN: &str = "episode_return";
const LENGTH: &str = "episode_length";
const TERMINATED: &str = "terminated";
const TRUNCATED: &str = "truncated";
const T_STARTED: &str = "t_started";

/// The columns of the episode table.
fn offer(layout: &EpisodeLayout, int_ids: bool, agents: bool) -> Offer {
    let mut offer = Offer::default();
    offer.push(EPS_ID, if int_ids { Kind::Number(DType::Int64) } else { Kind::Text });
    if agents {
        offer.push(AGENT_ID, Kind::Text);
    } else {
        offer.refuse(AGENT_ID, "the recording has one agent, without a name");
    }
    match layout.get(REWARDS) {
        Some(ty) if ty.shape.is_empty() => offer.push(RETURN, Kind::Number(DType::Float64)),
        Some(ty) => offer.refuse(RETURN, format!("the rewards are {ty}, and only scalars have one sum")),
        None => offer.refuse(RETURN, "there are no rewards"),
    }
    offer.push(LENGTH, Kind::Number(DType::Int64));
    offer.push(TERMINATED, Kind::Number(DType::Bool));
    offer.push(TRUNCATED, Kind::Number(DType::Bool));
    offer.push(T_STARTED, Kind::Number(DType::Int64));
    offer
}

/// Checks the job's predicate as far as schemas can tell: whether ids are numbers and agents have names shows later.
///
/// # Errors
/// If no recording with such columns fits it.
pub(crate) fn check(job: &Job, layout: &EpisodeLayout) -> Result<()> {
    let Some(text) = &job.input.where_ else { return Ok(()) };
    let with = |int_ids, agents| sql::predicate(text, &offer(layout, int_ids, agents)).map(|_| ());
    // What is told is what holds for all recordings: that there are agents is the exception.
    let any = [(false, true), (true, true), (true, false)].into_iter();
    with(false, false)
        .or_else(|error| if any.clone().any(|(ids, agents)| with(ids, agents).is_ok()) { Ok(()) } else { Err(error) })
        .map_err(placed)
}

fn placed(error: Error) -> Error {
    error.job_key("input.where")
}

/// Whether the predicate asks for returns, which only the data can tell.
pub(super) fn needs_returns(index: &Index, text: &str) -> Result<bool> {
    let predicate = sql::predicate(text, &offer(&index.layout, int_ids(index), index.multi_agent)).map_err(placed)?;
    Ok(predicate.names().iter().any(|n| n == RETURN))
}

fn int_ids(index: &Index) -> bool {
    matches!(index.entries.first(), Some(Entry { id: EpisodeId::Int(_), .. }))
}

/// Drops the entries of the episodes that the predicate does not hold for. `returns` has the sum of rewards of each
/// entry, where it is needed. Says how many entries were dropped.
pub(super) fn keep(index: &mut Index, text: &str, returns: Option<&[f64]>) -> Result<u64> {
    let before = index.entries.len();
    let rows = rows(&index.entries);
    let count = rows.iter().map(|r| r + 1).max().unwrap_or(0);
    let table = table(index, &rows, count, returns);
    let chosen = sql::choose(&table, text).map_err(placed)?;
    if count > 0 && !chosen.contains(&true) {
        let error = Error::data(format!("the predicate `{text}` leaves none of {count} episodes"));
        return Err(placed(error).hint(summary(&table)));
    }
    let mut row = rows.iter();
    index.entries.retain(|_| row.next().is_some_and(|r| chosen[*r]));
    index::number(&mut index.entries)?;
    Ok((before - index.entries.len()) as u64)
}

/// What the numbers of the table are, for who asked for others.
fn summary(table: &EpisodeTable) -> String {
    let mut out = Vec::new();
    for (name, values) in &table.columns {
        let Values::Numbers(column) = values else { continue };
        if column.ty().dtype == DType::Bool {
            let yes = column.bytes().iter().filter(|b| **b != 0).count();
            out.push(format!("{name} is true for {yes} of {}", table.rows));
        } else if *name != EPS_ID
            && let Ok(numbers) = column.cast(DType::Float64)
        {
            let mut sorted = numbers.values::<f64>().to_vec();
            sorted.sort_by(f64::total_cmp);
            if let (Some(min), Some(max)) = (sorted.first(), sorted.last()) {
                let median = sorted[(sorted.len() - 1) / 2];
                out.push(format!("{name} is {min} to {max}, its median {median}"));
            }
        }
    }
    format!("of all episodes, {}", out.join("; "))
}

/// What chunks of one episode have in common: id, agent, module.
type Whose<'a> = (&'a EpisodeId, Option<&'a str>, u32);
/// Episodes by where they end so far.
type Ends = BTreeMap<i64, BTreeSet<usize>>;

/// One past the last step of a chunk.
fn end(entry: &Entry) -> i64 {
    entry.t_started.saturating_add_unsigned(entry.steps)
}

/// For each entry, its row of the table. Rows are numbered in order of first appearance.
pub(super) fn rows(entries: &[Entry]) -> Vec<usize> {
    let mut by_time: Vec<usize> = (0..entries.len()).collect();
    by_time.sort_by_key(|&i| (entries[i].t_started, i));
    // The members of each episode.
    let mut episodes: Vec<Vec<usize>> = Vec::new();
    // Of each id, the episodes by where they end so far.
    let mut open: HashMap<Whose<'_>, Ends> = HashMap::new();
    for i in by_time {
        let entry = &entries[i];
        let ends = open.entry((&entry.id, entry.agent_id().map(|a| &**a), entry.module)).or_default();
        // Where it goes on exactly; else the first that it may go on behind a gap. A chunk at t = 0 begins an episode.
        let exact = ends.get(&entry.t_started).and_then(BTreeSet::first);
        let behind_a_gap = || ends.range(..entry.t_started).filter_map(|(_, own)| own.first()).min();
        let goes_on = exact.or_else(behind_a_gap).copied().filter(|_| entry.t_started > 0);
        let episode = goes_on.unwrap_or(episodes.len());
        if let Some(last) = episodes.get(episode).and_then(|members| members.last()) {
            let before = end(&entries[*last]);
            if let Some(own) = ends.get_mut(&before) {
                own.remove(&episode);
                if own.is_empty() {
                    ends.remove(&before);
                }
            }
        } else {
            episodes.push(Vec::new());
        }
        episodes[episode].push(i);
        ends.entry(end(entry)).or_default().insert(episode);
    }
    episodes.sort_by_key(|members| members.iter().min().copied());
    let mut out = vec![0; entries.len()];
    for (row, members) in episodes.iter().enumerate() {
        for &i in members {
            out[i] = row;
        }
    }
    out
}

/// The table: chunks added up in order of time.
fn table(index: &Index, rows: &[usize], count: usize, returns: Option<&[f64]>) -> EpisodeTable {
    let entries = &index.entries;
    let mut by_time: Vec<usize> = (0..entries.len()).collect();
    by_time.sort_by_key(|&i| (entries[i].t_started, i));
    let mut sums = vec![0.0; count];
    let mut lengths = vec![0_i64; count];
    let mut starts = vec![None; count];
    let [mut terminated, mut truncated] = [vec![false; count], vec![false; count]];
    let mut first = vec![0; count];
    for &i in &by_time {
        let (entry, row) = (&entries[i], rows[i]);
        if let Some(returns) = returns {
            sums[row] = if starts[row].is_none() { returns[i] } else { sums[row] + returns[i] };
        }
        lengths[row] = lengths[row].saturating_add(i64::try_from(entry.steps).unwrap_or(i64::MAX));
        terminated[row] = entry.terminated;
        truncated[row] = entry.truncated;
        if starts[row].is_none() {
            starts[row] = Some(entry.t_started);
            first[row] = i;
        }
    }
    let starts: Vec<i64> = starts.into_iter().map(Option::unwrap_or_default).collect();
    let ids = if int_ids(index) {
        let id = |&i: &usize| if let EpisodeId::Int(id) = entries[i].id { id } else { 0 };
        Values::Numbers(Tensor::from_values::<i64>([], &first.iter().map(id).collect::<Vec<_>>()))
    } else {
        Values::Text(first.iter().map(|&i| Arc::from(entries[i].id.to_string())).collect())
    };
    let mut columns = vec![(EPS_ID, ids)];
    if index.multi_agent {
        let agent = |&i: &usize| entries[i].agent_id().cloned().unwrap_or_else(|| Arc::from(DEFAULT_MODULE_ID));
        columns.push((AGENT_ID, Values::Text(first.iter().map(agent).collect())));
    }
    if returns.is_some() {
        columns.push((RETURN, Values::Numbers(Tensor::from_values::<f64>([], &sums))));
    }
    columns.push((LENGTH, Values::Numbers(Tensor::from_values::<i64>([], &lengths))));
    columns.push((TERMINATED, Values::Numbers(Tensor::from_bools(terminated))));
    columns.push((TRUNCATED, Values::Numbers(Tensor::from_bools(truncated))));
    columns.push((T_STARTED, Values::Numbers(Tensor::from_values::<i64>([], &starts))));
    EpisodeTable { columns, rows: count }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(&(id, t_started, steps): &(&str, i64, u64)) -> Entry {
        Entry {
            id: EpisodeId::Str(id.into()),
            module: 0,
            ordinal: 0,
            bare_rank: 0,
            spans: 0..0,
            steps,
            t_started,
            terminated: t_started > 0,
            truncated: false,
            rare: None,
        }
    }

    fn rows_of(list: &[(&str, i64, u64)]) -> Vec<usize> {
        rows(&list.iter().map(entry).collect::<Vec<_>>())
    }

    #[test]
    fn chunks_of_an_episode_are_one_row() {
        assert_eq!(rows_of(&[("a", 0, 3), ("b", 0, 2), ("a", 3, 2)]), [0, 1, 0]);
        assert_eq!(rows_of(&[("a", 3, 2), ("b", 0, 2), ("a", 0, 3)]), [0, 1, 0], "in any order");
        assert_eq!(rows_of(&[("a", 0, 3), ("a", 7, 2)]), [0, 0], "with a gap");
    }

    #[test]
    fn an_episode_recorded_twice_is_two_rows() {
        assert_eq!(rows_of(&[("a", 0, 3), ("a", 0, 3), ("a", 3, 2), ("a", 3, 2)]), [0, 1, 0, 1]);
        assert_eq!(rows_of(&[("a", 0, 0), ("a", 0, 3)]), [0, 1]);
    }

    #[cfg(feature = "sql")]
    #[test]
    fn whole_episodes_are_kept_and_numbered_anew() {
        let list = [("b", 0, 2), ("a", 0, 3), ("a", 3, 2), ("c", 0, 1)];
        let index = || Index { entries: list.iter().map(entry).collect(), ..Index::default() };
        for (text, returns, kept) in [
            ("episode_length >= 5", None, vec![("a", 0), ("a", 3)]),
            ("terminated or episode_length = 1", None, vec![("a", 0), ("a", 3), ("c", 0)]),
            ("episode_return > 4", Some([9.0, 2.0, 2.5, 1.0]), vec![("b", 0), ("a", 0), ("a", 3)]),
            ("t_started = 0 and eps_id < 'b'", None, vec![("a", 0), ("a", 3)]),
        ] {
            let mut index = index();
            let dropped = keep(&mut index, text, returns.as_ref().map(|r| &r[..])).unwrap();
            let found: Vec<_> = index.entries.iter().map(|e| (e.id.to_string(), e.t_started)).collect();
            assert_eq!(found, kept.iter().map(|(id, t)| ((*id).to_owned(), *t)).collect::<Vec<_>>(), "{text}");
            assert_eq!(dropped, (list.len() - kept.len()) as u64);
            assert!(index.entries.iter().enumerate().all(|(i, e)| e.ordinal as usize == i && e.bare_rank == e.ordinal));
        }
        let error = keep(&mut index(), "episode_length > 9", None).unwrap_err();
        assert_eq!(error.place().job_key.as_deref(), Some("input.where"));
        let hint = "of all episodes, episode_length is 1 to 5, its median 2; terminated is true for 1 of 3; truncated is \
                    true for 0 of 3; t_started is 0 to 0, its median 0";
        assert_eq!(error.hint_text(), Some(hint));
        assert_eq!(keep(&mut Index::default(), "episode_length > 9", None).unwrap(), 0);
    }
}
