#![no_main]
//! Journals of interrupted runs: whatever one says, a run that goes on makes the same data set, or refuses; and it
//! touches nothing outside.

use std::fs;

use gristmill::error::Kind;
use gristmill::job::Job;
use gristmill::progress::Silent;
use gristmill::run::{Options, convert};
use gristmill::sink::Existing;
use gristmill_fuzz::{dataset, directory, hide, install_panic_hook, is_safe, written};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: install_panic_hook(), |shards: &[u8]| {
    struct Whole {
        directory: tempfile::TempDir,
        job: Job,
        manifest: Vec<u8>,
        first_line: String,
    }
    thread_local!(static WHOLE: Whole = {
        let directory = directory();
        let out = directory.path().join("out");
        let input = dataset("cartpole-columns/input/*.parquet");
        let job = format!("[input]\npaths = [{input:?}]\n[output]\npath = {out:?}\nrows_per_shard = 600\n");
        let job = Job::from_toml_str(&job).expect("a job");
        convert(&job, &Options::default(), &Silent).expect("a data set");
        let manifest = fs::read(out.join("manifest.json")).expect("a manifest");
        let told: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
        let files = told["input"]["files"].as_array().expect("files");
        let first_line = serde_json::json!({
            "journal": 1, "gristmill": told["gristmill"], "job": told["job"], "pipeline": told["pipeline"],
            "inputs": files.iter().map(|f| serde_json::json!({
                "name": f["name"], "bytes": f["bytes"], "digest": f["digest"] })).collect::<Vec<_>>(),
        });
        Whole { directory, job, manifest, first_line: format!("{first_line}\n") }
    });
    WHOLE.with(|whole| {
        let out = whole.directory.path().join("out");
        hide(whole.directory.path());
        let _ = fs::remove_file(out.join("manifest.json"));
        let _ = written(&out, ".gristmill-unfinished", b"");
        let text = [whole.first_line.as_bytes(), shards].concat();
        let _ = written(&out, ".gristmill-journal", &text);
        let options = Options { existing: Existing::Resume, threads: Some(1), ..Options::default() };
        match convert(&whole.job, &options, &Silent) {
            Ok(_) => assert!(fs::read(out.join("manifest.json")).expect("a manifest") == whole.manifest),
            Err(e) => assert_ne!(e.kind(), Kind::Internal, "{e}"),
        }
        assert!(is_safe(whole.directory.path()));
    });
});
