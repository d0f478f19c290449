//! Which module an agent's rows go to.

use indexmap::IndexMap;

use super::runs::Who;
use crate::column::DEFAULT_MODULE_ID;
use crate::error::{Error, Result};

/// The module of some rows: by the first rule whose pattern matches the agent, else as recorded, else the default.
///
/// # Errors
/// If there are rules and none matches an agent whose module was not recorded.
pub(super) fn module_of(who: &Who, rules: &IndexMap<String, String>) -> Result<String> {
    let Some(agent) = &who.agent else {
        return Ok(who.module.as_deref().unwrap_or(DEFAULT_MODULE_ID).to_owned());
    };
    for (pattern, module) in rules {
        let pattern = glob::Pattern::new(pattern).map_err(|e| {
            Error::usage(format!("{pattern:?} is no pattern: {e}")).job_key("multi_agent.agent_to_module")
        })?;
        if pattern.matches(agent) {
            return Ok(module.clone());
        }
    }
    match &who.module {
        Some(module) => Ok(module.to_string()),
        None if rules.is_empty() => Ok(DEFAULT_MODULE_ID.to_owned()),
        None => {
            let known: Vec<&str> = rules.keys().map(String::as_str).collect();
            Err(Error::usage(format!(
                "agent {agent:?} has no module: none was recorded, and no rule matches ({})",
                known.join(", ")
            ))
            .episode(who.id.to_string())
            .job_key("multi_agent.agent_to_module")
            .hint("add a rule for it, or \"*\" for all others"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::episode::EpisodeId;

    #[test]
    fn rules_come_first_then_what_was_recorded() {
        let rules =
            IndexMap::from([("walker_*".to_owned(), "p1".to_owned()), ("walker_9".to_owned(), "p9".to_owned())]);
        let who = |agent: Option<&str>, module: Option<&str>| Who {
            id: EpisodeId::Int(0),
            agent: agent.map(Into::into),
            module: module.map(Into::into),
        };
        assert_eq!(module_of(&who(Some("walker_9"), Some("x")), &rules).unwrap(), "p1");
        assert_eq!(module_of(&who(Some("scout"), Some("x")), &rules).unwrap(), "x");
        assert!(module_of(&who(Some("scout"), None), &rules).unwrap_err().what().contains("scout"));
        assert_eq!(module_of(&who(Some("scout"), None), &IndexMap::new()).unwrap(), DEFAULT_MODULE_ID);
        assert_eq!(module_of(&who(None, None), &rules).unwrap(), DEFAULT_MODULE_ID);
    }
}
