//! RLlib's batch keys, for `compat = "rllib-2.60"`.
//!
//! RLlib collects each column in a dict whose key is the episode's id. `AddObservationsFromEpisodesToBatch` first
//! appends `_<number of the chunk>` to every id without an underscore, `AddOneTsToEpisodesAndTruncate` to every id.
//! Chunks with equal keys share an entry, so the rows of a later chunk move up behind those of the first. That happens
//!
//! * where ids contain an underscore, or one id plus its number spells another id;
//! * everywhere, when no piece appends the number;
//! * in columns that were added *before* a piece appended it, and only in them: RLlib's columns then disagree about
//!   the order of rows.
//!
//! ```text
//! chunks in dataset order    a  b  a'        (a' continues a)
//! numbered                   a_0 b_1 a_2     rows of a, b, a'
//! not numbered               a  b  a         rows of a, a', b
//! ```

use std::collections::HashMap;

use super::index::Entry;
use crate::connector::Numbering;
use crate::error::{Error, Result};

/// How a pipeline numbers RLlib's ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// What becomes of the ids in the end.
    pub numbering: Numbering,
    /// Whether a column is added before that.
    pub bare_columns: bool,
    /// Whether the data are multi-agent: keys then hold agent and module too, and ids are never numbered.
    pub multi_agent: bool,
}

/// For each entry, the first entry with the same key.
fn first_of_key(entries: &[Entry], numbering: Numbering, multi_agent: bool) -> Vec<usize> {
    let mut first: HashMap<(String, Option<&str>, usize), usize> = HashMap::with_capacity(entries.len());
    let key = |(i, entry): (usize, &Entry)| {
        let id = entry.id.to_string();
        match numbering {
            _ if multi_agent => id,
            Numbering::None => id,
            Numbering::WithObservations if id.contains('_') => id,
            Numbering::WithObservations | Numbering::Always => format!("{id}_{i}"),
        }
    };
    let keys: Vec<String> = entries.iter().enumerate().map(key).collect();
    entries
        .iter()
        .zip(keys)
        .enumerate()
        .map(|(i, (entry, key))| *first.entry((key, entry.agent_id.as_deref(), entry.module)).or_insert(i))
        .collect()
}

/// The entries' positions in the order in which their rows come out.
fn key_order(first: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..first.len()).collect();
    order.sort_by_key(|&i| (first[i], i));
    order
}

/// Refuses chunks that share a key and would share a padded sequence: RLlib's columns then differ in length, or agree
/// by chance and are masked in the wrong places.
fn check_sequences(entries: &[Entry], first: &[usize], seq_len: &dyn Fn(usize) -> Option<usize>) -> Result<()> {
    for pair in key_order(first).windows(2) {
        let (before, after) = (&entries[pair[0]], &entries[pair[1]]);
        let Some(seq_len) = seq_len(before.module) else { continue };
        if first[pair[0]] == first[pair[1]] && !before.steps.is_multiple_of(seq_len as u64) && after.steps > 0 {
            return Err(Error::data(format!(
                "chunks of {} and {} steps share RLlib's batch key: their padded rows run into each other and no longer match seq_lens and loss_mask",
                before.steps, after.steps
            ))
            .episode(after.id.to_string())
            .t(after.t_started)
            .hint("RLlib 2.60 merges chunks whose keys are equal; compat = \"correct\" keeps them apart"));
        }
    }
    Ok(())
}

/// Puts `entries` into the order in which RLlib's keys make their rows come out, and sets [`Entry::bare_rank`].
/// `seq_len` tells the length of a module's sequences, if it has any.
///
/// # Errors
/// If RLlib's columns would differ in length.
pub fn order(entries: &mut Vec<Entry>, keys: Keys, seq_len: &dyn Fn(usize) -> Option<usize>) -> Result<()> {
    let first = first_of_key(entries, keys.numbering, keys.multi_agent);
    check_sequences(entries, &first, seq_len)?;
    if keys.bare_columns {
        let bare = first_of_key(entries, Numbering::None, keys.multi_agent);
        check_sequences(entries, &bare, seq_len)?;
        for (rank, i) in key_order(&bare).into_iter().enumerate() {
            entries[i].bare_rank = rank as u64;
        }
    }
    let order = key_order(&first);
    if !order.is_sorted() {
        *entries = order.into_iter().map(|i| entries[i].clone()).collect();
    }
    if !keys.bare_columns {
        for (rank, entry) in entries.iter_mut().enumerate() {
            entry.bare_rank = rank as u64;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::episode::EpisodeId;

    fn entries(list: &[(&str, u64)]) -> Vec<Entry> {
        let entry = |(i, &(id, steps)): (usize, &(&str, u64))| Entry {
            id: EpisodeId::Str(id.into()),
            agent_id: None,
            module: 0,
            ordinal: i as u64,
            bare_rank: 0,
            spans: 0..0,
            steps,
            t_started: 0,
            terminated: false,
            truncated: false,
            tail: None,
            history: Vec::new(),
            hanging: Vec::new(),
        };
        list.iter().enumerate().map(entry).collect()
    }

    fn ordered(list: &[(&str, u64)], numbering: Numbering, bare_columns: bool) -> Vec<Entry> {
        let mut all = entries(list);
        order(&mut all, Keys { numbering, bare_columns, multi_agent: false }, &|_| None).unwrap();
        all
    }

    fn steps(entries: &[Entry]) -> Vec<u64> {
        entries.iter().map(|e| e.steps).collect()
    }

    #[test]
    fn equal_keys_move_up() {
        use Numbering as N;
        let all = ordered(&[("a_x", 1), ("b", 2), ("a_x", 3), ("b", 4)], N::WithObservations, false);
        assert_eq!(steps(&all), [1, 3, 2, 4], "b and b get numbers, a_x does not");
        assert_eq!(all.iter().map(|e| e.ordinal).collect::<Vec<_>>(), [0, 2, 1, 3]);
        assert_eq!(steps(&ordered(&[("x", 1), ("y", 2), ("x_0", 3)], N::WithObservations, false)), [1, 3, 2]);
        assert_eq!(steps(&ordered(&[("b", 1), ("a", 2), ("b", 3)], N::None, false)), [1, 3, 2]);
        assert_eq!(steps(&ordered(&[("b_", 1), ("a", 2), ("b_", 3)], N::Always, false)), [1, 2, 3]);
    }

    #[test]
    fn columns_added_early_have_an_order_of_their_own() {
        let all = ordered(&[("b", 1), ("a", 2), ("b", 3)], Numbering::WithObservations, true);
        assert_eq!(steps(&all), [1, 2, 3]);
        assert_eq!(all.iter().map(|e| e.bare_rank).collect::<Vec<_>>(), [0, 2, 1]);
    }

    #[test]
    fn a_malformed_batch_is_refused() {
        let keys = Keys { numbering: Numbering::WithObservations, bare_columns: false, multi_agent: false };
        let error = order(&mut entries(&[("a_x", 4), ("a_x", 2)]), keys, &|_| Some(3)).unwrap_err();
        assert!(error.what().contains("no longer match seq_lens"), "{error}");
        order(&mut entries(&[("a_x", 6), ("a_x", 2)]), keys, &|_| Some(3)).unwrap();
    }
}
