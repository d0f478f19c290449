#![no_main]
//! Whole conversions of one damaged file: strict, and leaving malformed episodes out. Nothing that looks finished may be
//! left by a run that fails, and what a run has finished passes `verify`.

use gristmill::error::Kind;
use gristmill::job::Job;
use gristmill::progress::Silent;
use gristmill::run::{Options, convert};
use gristmill_fuzz::{directory, install_panic_hook, written};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: install_panic_hook(), |bytes: &[u8]| {
    thread_local!(static DIRECTORY: tempfile::TempDir = directory());
    DIRECTORY.with(|directory| {
        let input = written(directory.path(), "a.parquet", bytes);
        let out = directory.path().join("out");
        for mode in ["fail", "skip"] {
            let job = format!("[input]\npaths = [{input:?}]\non_bad_episode = '{mode}'\n[output]\npath = {out:?}\n");
            let job = Job::from_toml_str(&job).expect("a job");
            let options = Options { threads: Some(1), memory_limit: Some(64 << 20), ..Options::default() };
            match convert(&job, &options, &Silent) {
                Ok(_) => {
                    let report = gristmill::verify::verify(&out, Some(1), &Silent).expect("a data set");
                    assert!(report.passed, "{:?}", report.checks);
                    std::fs::remove_dir_all(&out).expect("the data set goes");
                }
                Err(e) => {
                    assert_ne!(e.kind(), Kind::Internal, "{e}");
                    assert!(!out.join("manifest.json").exists(), "{e}");
                }
            }
        }
    });
});
