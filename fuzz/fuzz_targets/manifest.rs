#![no_main]
//! Manifests of data sets, before `verify`, and before a run that replaces the data set: no file outside is touched.

use std::fs;

use gristmill::error::Kind;
use gristmill::progress::Silent;
use gristmill::sink::{Existing, OutputDir};
use gristmill_fuzz::{dataset, directory, hide, install_panic_hook, is_safe, written};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: install_panic_hook(), |text: &[u8]| {
    thread_local!(static DIRECTORY: tempfile::TempDir = directory());
    DIRECTORY.with(|directory| {
        let out = directory.path().join("out");
        hide(directory.path());
        let shard = out.join("default_policy/part-00000.parquet");
        fs::create_dir_all(out.join("default_policy")).expect("a folder");
        // A real Parquet file, if not of these columns.
        let source = dataset("cartpole-columns/input/run-000001-00001-00000.parquet");
        fs::copy(source, &shard).expect("a shard");
        let _ = written(&out, "manifest.json", text);
        match gristmill::verify::verify(&out, Some(1), &Silent) {
            Ok(_) => {}
            Err(e) => assert_ne!(e.kind(), Kind::Internal, "{e}"),
        }
        for existing in [Existing::Refuse, Existing::Replace, Existing::Resume] {
            let _ = OutputDir::check(&out, existing);
        }
        // Dropped unfinished: it takes back what it may.
        let _ = OutputDir::prepare(&out, Existing::Replace);
        assert!(is_safe(directory.path()));
        let _ = fs::remove_dir_all(&out);
        let _ = fs::remove_dir_all(directory.path().join(".out.gristmill-new"));
        let _ = fs::remove_dir_all(directory.path().join(".out.gristmill-old"));
    });
});
