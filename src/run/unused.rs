//! What a job says of agents and modules without effect: a misspelt name would otherwise go without a word.

use indexmap::IndexSet;

use crate::column::AGENT_ID;
use crate::error::{closest, listed};
use crate::job::Job;
use crate::source::index::Index;

/// Settings of modules and rules for agents that no row goes by, a sentence each.
pub(crate) fn unused(job: &Job, index: &Index) -> Vec<String> {
    let mut out = Vec::new();
    let modules = || index.modules.iter().map(String::as_str);
    for id in job.rl_module.modules.keys().filter(|id| !index.modules.contains(id)) {
        let there = format!("the data go to {}", index.modules.join(", "));
        out.push(without_effect(&format!("[rl_module.modules.{id}]"), &there, closest(id, modules())));
    }
    let rules = &job.multi_agent.agent_to_module;
    if rules.is_empty() {
        return out;
    }
    if !index.multi_agent {
        let there = format!("the recording names no agents (a column `{AGENT_ID}`)");
        out.push(without_effect("[multi_agent] agent_to_module", &there, None));
        return out;
    }
    let agents: IndexSet<&str> = index.entries.iter().filter_map(|e| e.agent_id()).map(|agent| &**agent).collect();
    let patterns: Vec<Option<glob::Pattern>> = rules.keys().map(|rule| glob::Pattern::new(rule).ok()).collect();
    let first_match = |agent: &&str| patterns.iter().position(|p| p.as_ref().is_some_and(|p| p.matches(agent)));
    let used: IndexSet<usize> = agents.iter().filter_map(first_match).collect();
    for (i, (rule, module)) in rules.iter().enumerate().filter(|(i, _)| !used.contains(i)) {
        let matches = |agent: &&str| patterns[i].as_ref().is_some_and(|p| p.matches(agent));
        let (there, near) = if agents.iter().any(matches) {
            ("a rule before it takes all agents that it matches".to_owned(), None)
        } else {
            (format!("it matches none of the agents {}", listed(&agents)), closest(rule, agents.iter().copied()))
        };
        out.push(without_effect(&format!("the rule {rule:?} = {module:?}"), &there, near));
    }
    out
}

fn without_effect(what: &str, why: &str, near: Option<&str>) -> String {
    let near = near.map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
    format!("{what} has no effect: {why}{near}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::episode::EpisodeId;
    use crate::source::index::{Entry, Rare};

    #[test]
    fn rules_and_settings_without_effect() {
        let job = |rules: &str| {
            let text = format!(
                "[input]\npaths = ['x']\n[multi_agent]\nagent_to_module = {{ {rules} }}\n[rl_module.modules.wlaker]\n"
            );
            Job::from_toml_str(&text).unwrap()
        };
        let entry = |agent: &str| Entry {
            id: EpisodeId::Int(0),
            module: 0,
            ordinal: 0,
            bare_rank: 0,
            spans: 0..0,
            steps: 1,
            t_started: 0,
            terminated: false,
            truncated: false,
            rare: Rare { agent_id: Some(agent.into()), ..Rare::default() }.boxed(),
        };
        let modules = vec!["walker".to_owned(), "scout".to_owned()];
        let entries = vec![entry("walker_1"), entry("walker_2"), entry("scout")];
        let index = Index { modules, multi_agent: true, entries, ..Index::default() };
        let told =
            unused(&job("'walker_*' = 'walker', 'walker_1' = 'first', 'scuot' = 'scout', '*' = 'scout'"), &index);
        assert_eq!(
            told,
            [
                "[rl_module.modules.wlaker] has no effect: the data go to walker, scout; did you mean \"walker\"?",
                "the rule \"walker_1\" = \"first\" has no effect: a rule before it takes all agents that it matches",
                "the rule \"scuot\" = \"scout\" has no effect: it matches none of the agents walker_1, walker_2, scout; \
                 did you mean \"scout\"?",
            ]
        );
        let none = Index { multi_agent: false, ..index };
        assert_eq!(
            unused(&job("'*' = 'walker'"), &none)[1],
            "[multi_agent] agent_to_module has no effect: the recording names no agents (a column `agent_id`)"
        );
    }
}
