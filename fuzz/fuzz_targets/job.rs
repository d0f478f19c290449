#![no_main]
//! Job files, in TOML and in JSON. A job that is read is written and read again: the same job.

use gristmill::job::{Job, check_supported};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let jobs = [Job::from_toml_str(text), Job::from_json_str(text)];
    for job in jobs.into_iter().flatten() {
        let _ = check_supported(&job);
        let _ = job.output_path();
        let written = serde_json::to_string(&job).expect("a job is JSON");
        let again = Job::from_json_str(&written).unwrap_or_else(|e| panic!("{written}: {}", e[0]));
        assert_eq!(job, again, "{written}");
    }
});
