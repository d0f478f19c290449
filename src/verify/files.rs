//! The files of a data set: all there, nothing else, and the bytes that the manifest names.

use std::collections::BTreeSet;
use std::fs;

use rayon::prelude::*;

use super::CheckName::{Bytes, Files};
use super::tally::Tally;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::manifest::{ModuleRecord, ShardRecord};
use crate::progress::{Progress, Step};
use crate::sink::{MANIFEST, RUN, UNFINISHED, file_digest};

/// Looks at every entry of the directory, and at every byte of the files that the manifest names. Gives those of them
/// that are there as regular files; what is wrong with the others is told.
pub(super) fn check(dataset: &Dataset, tally: &mut Tally, progress: &dyn Progress) -> Result<BTreeSet<String>> {
    let manifest = dataset.manifest();
    let records: Vec<&ShardRecord> =
        manifest.modules.values().flat_map(ModuleRecord::files).chain(&manifest.quarantine).collect();
    let known: BTreeSet<&str> = records.iter().map(|r| r.file.as_str()).collect();
    let (mut regular, mut links) = (BTreeSet::new(), BTreeSet::new());
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        let path = dataset.root().join(&folder);
        let failed = |e: std::io::Error| {
            Error::environment(format!("cannot look into the folder: {e}")).file(path.display().to_string())
        };
        let mut entries = fs::read_dir(&path).map_err(failed)?.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let kind = entry.file_type().map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let name = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            let wrong = |what: &str| Error::data(what.to_owned()).file(name.clone());
            match name.as_str() {
                _ if kind.is_dir() => folders.push(name),
                _ if !kind.is_file() => {
                    tally.fail(Files, wrong("found a link or a special file, expected regular files only"));
                    // Told once: as what it is, not as missing.
                    links.insert(name);
                }
                MANIFEST | RUN => {}
                UNFINISHED => {
                    let error = wrong("found the mark of a run that has not finished, beside a manifest");
                    tally.fail(Files, error.hint("a run was stopped at its very end; `--resume` completes it"));
                }
                file if known.contains(file) => {
                    regular.insert(name);
                }
                _ => tally.fail(Files, wrong("found a file that the manifest does not name")),
            }
        }
    }
    for file in known.iter().filter(|f| !regular.contains(**f) && !links.contains(**f)) {
        tally.fail(Files, Error::data("the file is missing").file(*file));
    }
    let digests: Vec<Option<Result<(u64, String)>>> = records
        .par_iter()
        .map(|record| {
            let path = dataset.root().join(&record.file);
            // Whoever put a link in its place meanwhile is not followed.
            let still = fs::symlink_metadata(&path).is_ok_and(|m| m.is_file());
            let digest = (still && regular.contains(&record.file)).then(|| file_digest(&path));
            progress.advance(Step { bytes: record.bytes, ..Step::default() });
            digest
        })
        .collect();
    for (record, found) in records.iter().zip(digests) {
        let Some(found) = found else { continue };
        let (bytes, digest) = found?;
        let fail = |what: String| Error::data(what).file(&record.file);
        if bytes != record.bytes {
            tally.fail(Bytes, fail(format!("found {bytes} bytes, the manifest says {}", record.bytes)));
        } else if digest != record.digest {
            tally.fail(Bytes, fail(format!("found the digest {digest}, the manifest says {}", record.digest)));
        }
    }
    Ok(regular)
}
