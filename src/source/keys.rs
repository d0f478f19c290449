//! RLlib's batch keys, for `compat = "rllib-2.60"`.
//!
//! RLlib collects each column in a dict whose key is the episode's id; `AddObservationsFromEpisodesToBatch` first
//! appends `_<number of the chunk>` to every id without an underscore. Chunks with equal keys share an entry, so the
//! rows of a later chunk move up behind those of the first. That happens where ids contain an underscore, where one
//! id plus its number spells another id, and everywhere when no piece appends the number.

use std::collections::HashMap;

use super::index::Entry;
use crate::error::{Error, Result};

/// To which ids the pipeline's pieces append the number of the chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suffix {
    /// To none: no piece does, or observations were in the batch before `AddObservationsFromEpisodesToBatch` ran.
    Never,
    /// To ids without an underscore (`AddObservationsFromEpisodesToBatch`).
    WithoutUnderscore,
    /// To all (`AddOneTsToEpisodesAndTruncate`).
    Always,
}

/// Puts `entries` into the order in which RLlib's keys make their rows come out.
///
/// # Errors
/// If chunks that share a key would share a padded sequence: RLlib then yields columns of different length.
pub fn order(entries: &mut Vec<Entry>, suffix: Suffix, seq_len: Option<usize>) -> Result<()> {
    let mut first_of: HashMap<String, usize> = HashMap::with_capacity(entries.len());
    let mut ranks: Vec<(usize, usize)> = Vec::with_capacity(entries.len());
    for (i, entry) in entries.iter().enumerate() {
        let id = entry.id.to_string();
        let numbered = match suffix {
            Suffix::Never => false,
            Suffix::WithoutUnderscore => !id.contains('_'),
            Suffix::Always => true,
        };
        let key = if numbered { format!("{id}_{i}") } else { id };
        ranks.push((*first_of.entry(key).or_insert(i), i));
    }
    ranks.sort_unstable();
    if let Some(seq_len) = seq_len {
        for pair in ranks.windows(2).filter(|p| p[0].0 == p[1].0) {
            let (before, after) = (&entries[pair[0].1], &entries[pair[1].1]);
            if !before.steps.is_multiple_of(seq_len as u64) && after.steps > 0 {
                return Err(Error::data(format!(
                    "chunks of {} and {} steps share RLlib's batch key: their padded rows run into each other and no longer match seq_lens and loss_mask",
                    before.steps, after.steps
                ))
                .episode(after.id.to_string())
                .t(after.t_started)
                .hint("RLlib 2.60 merges chunks whose ids contain an underscore; compat = \"correct\" keeps them apart"));
            }
        }
    }
    if ranks.iter().enumerate().any(|(to, &(_, from))| to != from) {
        *entries = ranks.iter().map(|&(_, from)| entries[from].clone()).collect();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::episode::EpisodeId;

    fn entries(list: &[(&str, u64)]) -> Vec<Entry> {
        let entry = |&(id, steps): &(&str, u64)| Entry {
            id: EpisodeId::Str(id.into()),
            spans: 0..0,
            steps,
            t_started: 0,
            terminated: false,
            truncated: false,
            tail: None,
            history: None,
        };
        list.iter().map(entry).collect()
    }

    fn steps(entries: &[Entry]) -> Vec<u64> {
        entries.iter().map(|e| e.steps).collect()
    }

    #[test]
    fn equal_keys_move_up() {
        let mut e = entries(&[("a_x", 1), ("b", 2), ("a_x", 3), ("b", 4)]);
        order(&mut e, Suffix::WithoutUnderscore, None).unwrap();
        assert_eq!(steps(&e), [1, 3, 2, 4], "b and b get numbers, a_x does not");
        let mut e = entries(&[("x", 1), ("y", 2), ("x_0", 3)]);
        order(&mut e, Suffix::WithoutUnderscore, None).unwrap();
        assert_eq!(steps(&e), [1, 3, 2], "x becomes x_0");
        let mut e = entries(&[("b", 1), ("a", 2), ("b", 3)]);
        order(&mut e, Suffix::Never, None).unwrap();
        assert_eq!(steps(&e), [1, 3, 2], "no numbers at all");
    }

    #[test]
    fn a_malformed_batch_is_refused() {
        let mut e = entries(&[("a_x", 4), ("a_x", 2)]);
        let error = order(&mut e, Suffix::WithoutUnderscore, Some(3)).unwrap_err();
        assert!(error.what().contains("no longer match seq_lens"), "{error}");
        order(&mut entries(&[("a_x", 6), ("a_x", 2)]), Suffix::WithoutUnderscore, Some(3)).unwrap();
    }
}
