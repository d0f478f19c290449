//! Keys that a job may have and that this gristmill does not act on yet. Each is refused: a key that is read and
//! ignored would be a wrong result without a word. Building a feature means removing its line here.

use super::Job;
use crate::error::Error;

/// One error for each thing that the job asks for and that is not built yet.
#[must_use]
pub fn check_supported(job: &Job) -> Vec<Error> {
    [(
        job.input.spaces.actions.is_some(),
        "input.spaces.actions",
        "using a declared action space",
        "leave it out: no connector needs it yet",
    )]
    .into_iter()
    .filter(|(asked, ..)| *asked)
    .map(|(_, key, what, hint)| Error::usage(format!("{what} is not built yet")).job_key(key).hint(hint))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_built_is_refused() {
        assert!(check_supported(&Job::for_inputs(vec!["logs/".to_owned()])).is_empty());
        let job = Job::from_toml_str(
            r#"
            [input]
            paths = ["x"]
            spaces = { actions = { type = "discrete", n = 2 } }
            "#,
        )
        .unwrap();
        let keys: Vec<_> = check_supported(&job).iter().map(|e| e.place().job_key.clone().unwrap()).collect();
        assert_eq!(keys, ["input.spaces.actions"]);
    }
}
