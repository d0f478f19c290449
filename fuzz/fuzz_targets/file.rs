#![no_main]
//! Parquet and Arrow IPC files through the reader: all row groups, all columns, and the digest.

use std::sync::Arc;

use gristmill::source::file::InputFile;
use gristmill_fuzz::{directory, install_panic_hook, written};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: install_panic_hook(), |bytes: &[u8]| {
    thread_local!(static DIRECTORY: tempfile::TempDir = directory());
    let path = DIRECTORY.with(|d| written(d.path(), "a.parquet", bytes));
    let Ok(file) = InputFile::open(&path).map(Arc::new) else { return };
    let columns: Vec<String> = file.schema.fields().iter().map(|f| f.name().clone()).collect();
    for (i, group) in file.row_groups.iter().enumerate() {
        let mut rows = 0;
        let Ok(batches) = file.read(i, &columns, 512) else { continue };
        let mut failed = false;
        for batch in batches {
            match batch {
                Ok(batch) => rows += batch.num_rows(),
                Err(_) => failed = true,
            }
        }
        assert!(failed || rows == group.rows, "{rows} rows of {}", group.rows);
    }
});
