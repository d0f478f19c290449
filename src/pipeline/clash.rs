//! Recorded model outputs that are called like columns that the pipeline makes.
//!
//! | recorded | RLlib 2.60 | here |
//! |---|---|---|
//! | what a piece in front adds (`returns_to_go`) | the piece's stays | the same, with a note |
//! | `state_in`, and `state_out` | makes `state_in` from `state_out` | the same, with a note |
//! | `state_in` alone, module stateful | takes initial states everywhere | refused |
//! | `state_in`, `state_out`, module not stateful | leaves them out | the same, with a note |
//! | `loss_mask` | a mask of the loss; if the module is stateful, with twice as many rows as other columns | refused |
//! | `seq_lens`, module stateful | twice as many rows as other columns | refused |
//! | `next_state_in`, module stateful | an output; with next observations, twice as many rows | refused |
//! | what a piece makes of the finished batch (`advantages`) | overwrites it | refused |

use std::collections::HashSet;

use crate::batch::BatchLayout;
use crate::column::{LOSS_MASK, NEXT_STATE_IN, SEQ_LENS, STATE_IN, STATE_OUT, root};
use crate::episode::EpisodeLayout;
use crate::error::{Error, Result};
use crate::job::ModuleSettings;

/// The recorded model outputs of a module.
pub(super) struct Recorded {
    roots: HashSet<String>,
    /// One name of each that was left out in favour of a piece's, sorted.
    pub replaced: Vec<String>,
}

impl Recorded {
    /// Those of `episodes`.
    ///
    /// # Errors
    /// If one has a name that is taken.
    pub fn new(module: &ModuleSettings, episodes: &EpisodeLayout) -> Result<Self> {
        let has_states = episodes.has(STATE_OUT);
        for (name, _) in episodes.extras() {
            match root(name) {
                LOSS_MASK => {
                    let hint = "and let an Expression make `loss_mask` of it if it shall mask the loss";
                    return Err(clash(name, "tells real steps from padding", hint));
                }
                SEQ_LENS | NEXT_STATE_IN if module.stateful => {
                    return Err(clash(name, "goes with the sequences of a stateful module", ""));
                }
                STATE_IN if module.stateful && !has_states => {
                    let hint =
                        "or record `state_out`, the module's state after each step, which `state_in` is made from";
                    return Err(clash(name, "is made from recorded `state_out`, of which there is none", hint));
                }
                _ => {}
            }
        }
        let roots = episodes.extras().map(|(name, _)| root(name).to_owned()).collect();
        Ok(Self { roots, replaced: Vec::new() })
    }

    /// Looks at what the batch has before the piece that adds recorded outputs: it leaves those alone.
    pub fn look_before(&mut self, batch: &BatchLayout) {
        let there: HashSet<&str> = batch.columns.iter().map(|c| root(&c.name)).collect();
        self.replaced = self.roots.iter().filter(|name| there.contains(name.as_str())).cloned().collect();
        self.replaced.sort_unstable();
    }

    /// Refuses columns that a piece has added, behind the first `before`, where recorded ones are there.
    ///
    /// # Errors
    /// If there is one.
    pub fn check_added(&self, batch: &BatchLayout, before: usize) -> Result<()> {
        let Some((old, new)) = batch.columns.split_at_checked(before).filter(|(_, new)| !new.is_empty()) else {
            return Ok(());
        };
        let old: HashSet<&str> = old.iter().map(|c| root(&c.name)).filter(|name| self.roots.contains(*name)).collect();
        match new.iter().find(|c| old.contains(root(&c.name))) {
            Some(twice) => Err(clash(&twice.name, "is made by this piece", "")),
            None => Ok(()),
        }
    }
}

fn clash(name: &str, made: &str, more: &str) -> Error {
    let own = root(name);
    let what = format!("`{name}` is recorded, and `{own}` of a train batch {made}: one would take the other's place");
    let hint = format!("give the recorded column another name, as in `[input.columns]` with recorded_{own} = {name:?}");
    let more = if more.is_empty() { String::new() } else { format!("; {more}") };
    Error::usage(what).column(name).hint(hint + &more)
}

/// Notes about the recorded outputs of a module that are not read, though its rows have them.
pub(super) fn unread(id: &str, module: &ModuleSettings, episodes: &EpisodeLayout, replaced: &[String]) -> Vec<String> {
    let one_of = |replaced: &String| {
        format!("`{replaced}` is recorded, and a piece of module {id:?} makes a column of this name: that one is taken")
    };
    let mut out: Vec<String> = replaced.iter().map(one_of).collect();
    let names = |own: &str| episodes.under(own).map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>();
    let (before, after) = (names(STATE_IN), names(STATE_OUT));
    let left_out = |names: &[String], why: &str| {
        let are = if names.len() == 1 { "is" } else { "are" };
        format!("{} {are} recorded, and not read: {why}", names.join(", "))
    };
    match (module.stateful, before.is_empty(), after.is_empty()) {
        (true, false, _) => out.push(left_out(&before, "states come from `state_out`")),
        (false, false, _) | (false, _, false) => {
            out.push(left_out(&[before, after].concat(), &format!("module {id:?} is not stateful")));
        }
        _ => {}
    }
    out
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::Pipeline;
    use super::*;
    use crate::column::{ACTIONS, OBS, REWARDS};
    use crate::tensor::{DType, TensorType};

    fn stateful() -> ModuleSettings {
        ModuleSettings { stateful: true, max_seq_len: Some(2), ..ModuleSettings::default() }
    }

    fn episodes(extras: &[&str]) -> EpisodeLayout {
        let column = |name: &&str| (Arc::from(*name), TensorType::new(DType::Float32, []));
        EpisodeLayout { steps: [OBS, ACTIONS, REWARDS].iter().chain(extras).map(column).collect(), last_obs: true }
    }

    fn layout(
        learner: serde_json::Value,
        is_stateful: bool,
        extras: &[&str],
    ) -> Result<super::super::promise::PipelineLayout> {
        let pipeline = Pipeline::new(&serde_json::from_value(learner).unwrap()).unwrap();
        let settings = if is_stateful { stateful() } else { ModuleSettings::default() };
        pipeline.layout(&settings, &episodes(extras))
    }

    #[test]
    fn names_that_are_taken_are_refused() {
        for (learner, is_stateful, extras, taken) in [
            (json!({}), false, &["loss_mask"][..], "loss_mask"),
            (json!({}), true, &["loss_mask"], "loss_mask"),
            (json!({ "algorithm": "IMPALA" }), false, &["loss_mask"], "loss_mask"),
            (json!({}), true, &["seq_lens"], "seq_lens"),
            (json!({ "algorithm": "BC" }), true, &["next_state_in/h"], "next_state_in/h"),
            (json!({}), true, &["state_in/h"], "state_in/h"),
            (json!({ "algorithm": "MARWIL" }), false, &["vf_preds", "advantages"], "advantages"),
        ] {
            let error = layout(learner, is_stateful, extras).unwrap_err();
            assert_eq!(error.place().column.as_deref(), Some(taken), "{error}");
            assert!(error.what().starts_with(&format!("`{taken}` is recorded, and")), "{error}");
            assert!(error.hint_text().unwrap().contains("[input.columns]"), "{error}");
        }
    }

    #[test]
    fn what_rllib_keeps_or_replaces_goes_on() {
        let names = |found: &super::super::promise::PipelineLayout| -> Vec<String> {
            found.columns.iter().map(|c| c.name.clone()).filter(|n| !n.ends_with('s') && n != "eps_id").collect()
        };
        let kept = layout(json!({}), false, &["next_state_in"]).unwrap();
        assert_eq!((names(&kept), kept.replaced), (vec!["next_state_in".to_owned()], vec![]));
        let returns = json!({ "connectors": [{ "type": "ComputeReturnsToGo", "gamma": 0.9 }] });
        let replaced = layout(returns, false, &["returns_to_go"]).unwrap();
        assert_eq!(
            (names(&replaced), replaced.replaced),
            (vec!["returns_to_go".to_owned()], vec!["returns_to_go".to_owned()])
        );
        let both = episodes(&["state_in", "state_out"]);
        assert_eq!(
            unread("p0", &stateful(), &both, &[]),
            ["`state_in` is recorded, and not read: states come from `state_out`"]
        );
        assert_eq!(
            unread("p0", &ModuleSettings::default(), &both, &[]),
            ["`state_in`, `state_out` are recorded, and not read: module \"p0\" is not stateful"]
        );
        assert!(unread("p0", &stateful(), &episodes(&["state_out"]), &[]).is_empty());
    }
}
