//! The canonical column names: RLlib's `Columns`, and what each one means.
//!
//! A nested value is one column per leaf, its path joined by `/`: the observation `{"pos": .., "pair": (a, b)}` is
//! the columns `obs/pos`, `obs/pair/0` and `obs/pair/1`. Everything before the first `/` is the column's *root*; the
//! rules of the pipeline ("already in the batch", "not a batch column") speak of roots.

use std::collections::HashSet;

/// Episode id. Provenance only: RLlib's train batch has no such column.
pub const EPS_ID: &str = "eps_id";
/// Agent id, in multi-agent data.
pub const AGENT_ID: &str = "agent_id";
/// Id of the `RLModule` that acted.
pub const MODULE_ID: &str = "module_id";
/// Time step inside the episode, counted from the episode's true start.
pub const T: &str = "t";
/// Time step of the environment, in multi-agent data.
pub const ENV_T: &str = "env_t";
/// Observation before the action.
pub const OBS: &str = "obs";
/// Observation after the action (RLlib's `Columns.NEXT_OBS` is spelled `new_obs`).
pub const NEXT_OBS: &str = "new_obs";
/// Action taken.
pub const ACTIONS: &str = "actions";
/// Reward received for the action.
pub const REWARDS: &str = "rewards";
/// True on the step that ended the episode by the rules of the environment.
pub const TERMINATEDS: &str = "terminateds";
/// True on the step after which the episode was cut short (time limit).
pub const TRUNCATEDS: &str = "truncateds";
/// The environment's info dicts: one column for each of their numbers.
pub const INFOS: &str = "infos";
/// Real steps of a sequence.
pub const SEQ_LENS: &str = "seq_lens";
/// True where a place of a padded sequence holds a real step.
pub const LOSS_MASK: &str = "loss_mask";
/// Recurrent state before the first step of a sequence.
pub const STATE_IN: &str = "state_in";
/// Recurrent state after a step, as the module put it out.
pub const STATE_OUT: &str = "state_out";
/// Recurrent state before the first step of the *next* observations (`state_out` of the sequence's first step).
pub const NEXT_STATE_IN: &str = "next_state_in";

/// The module that all single-agent data goes to.
pub const DEFAULT_MODULE_ID: &str = "default_policy";

/// The part of a column name before its first `/`.
#[must_use]
pub fn root(name: &str) -> &str {
    name.split_once('/').map_or(name, |(root, _)| root)
}

/// `name` with its root replaced: `rebase("obs/pos", "new_obs") == "new_obs/pos"`.
#[must_use]
pub fn rebase(name: &str, new_root: &str) -> String {
    name.split_once('/').map_or_else(|| new_root.to_owned(), |(_, rest)| format!("{new_root}/{rest}"))
}

/// For each info, the name of the boolean column that says in which steps it was recorded, as Gymnasium's vector
/// environments name it: `infos/episode/_r` for `infos/episode/r`. Where that is taken, it has one more `_`.
#[must_use]
pub fn masks_of(infos: &[&str]) -> Vec<String> {
    let behind =
        |name: &str| name.rsplit_once('/').map_or_else(|| format!("_{name}"), |(above, key)| format!("{above}/_{key}"));
    let mut taken: HashSet<String> = infos.iter().map(|&info| info.to_owned()).collect();
    infos
        .iter()
        .map(|info| {
            let mut mask = behind(info);
            while !taken.insert(mask.clone()) {
                mask = behind(&mask);
            }
            mask
        })
        .collect()
}

/// Whether `name` is the column `root` or one of its leaves.
#[must_use]
pub fn is_under(name: &str, root_name: &str) -> bool {
    root(name) == root_name
}

/// Whether `name` is a leaf of `outer`, at any depth.
#[must_use]
pub(crate) fn is_inside(name: &str, outer: &str) -> bool {
    name.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
}

/// All that the names are leaves of, at any depth.
#[must_use]
pub(crate) fn outer_names<'a>(names: impl IntoIterator<Item = &'a str>) -> HashSet<&'a str> {
    names.into_iter().flat_map(|name| name.match_indices('/').map(|(at, _)| &name[..at])).collect()
}

/// Two names of which one is the other, or a leaf of it, by position, if there are any. Of several such pairs it is the one
/// whose second name comes first.
///
/// Sorted with `/` before any other character, the leaves of a name directly follow it.
#[must_use]
pub(crate) fn nested(names: &[&str]) -> Option<(usize, usize)> {
    let key = |&i: &usize| (names[i].split('/'), i);
    let mut order: Vec<usize> = (0..names.len()).collect();
    order.sort_by(|a, b| {
        let ((a, i), (b, j)) = (key(a), key(b));
        a.cmp(b).then(i.cmp(&j))
    });
    let is_above = |a: &str, b: &str| a == b || is_inside(b, a);
    let pairs = order.windows(2).filter(|w| is_above(names[w[0]], names[w[1]]));
    pairs.map(|w| (w[0].min(w[1]), w[0].max(w[1]))).min_by_key(|&(first, second)| (second, first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_names_of_their_own() {
        assert_eq!(masks_of(&["infos/episode/r", "infos/lives"]), ["infos/episode/_r", "infos/_lives"]);
        assert_eq!(masks_of(&["infos/_a", "infos/a"]), ["infos/__a", "infos/___a"]);
    }

    #[test]
    fn names_inside_one_another() {
        assert_eq!(nested(&[]), None);
        assert_eq!(nested(&["obs/a", "obs-b", "obs0", "obs/b/c", "x"]), None);
        assert_eq!(nested(&["obs/a", "obs-b", "obs"]), Some((0, 2)));
        assert_eq!(nested(&["a", "b", "b/c", "a"]), Some((1, 2)));
        assert_eq!(nested(&["a/b/c", "a/b!", "z", "a/b"]), Some((0, 3)));
    }

    #[test]
    fn names_that_hold_others() {
        assert!(is_inside("obs/a/b", "obs") && is_inside("obs/a/b", "obs/a"));
        assert!(!is_inside("obs", "obs") && !is_inside("obs-b", "obs") && !is_inside("obs", "obs/a"));
        let mut outer: Vec<&str> = outer_names(["obs/a/b", "x", "obs/c"]).into_iter().collect();
        outer.sort_unstable();
        assert_eq!(outer, ["obs", "obs/a"]);
    }

    #[test]
    fn roots_and_leaves() {
        assert_eq!(root("obs/pair/0"), "obs");
        assert_eq!(root("obs"), "obs");
        assert_eq!(rebase("obs/pair/0", NEXT_OBS), "new_obs/pair/0");
        assert_eq!(rebase("obs", NEXT_OBS), "new_obs");
        assert!(is_under("obs/pos", OBS) && !is_under("observations", OBS));
    }
}
