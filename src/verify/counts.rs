//! Numbers that must add up.

use super::CheckName::{Counts, Manifest as ManifestCheck};
use super::tally::Tally;
use crate::error::Error;
use crate::manifest::{Manifest, ModuleRecord};
use crate::sink::combine;

/// The manifest against itself: rows of shards, digests of digests.
pub(super) fn manifest(manifest: &Manifest, tally: &mut Tally) {
    let mut fail = |what: String, column: Option<&str>| {
        let error = Error::data(what).file(crate::sink::MANIFEST);
        tally.fail(
            ManifestCheck,
            match column {
                Some(name) => error.column(name),
                None => error,
            },
        );
    };
    let mut all: Vec<(String, &ModuleRecord)> = Vec::new();
    for (name, module) in &manifest.modules {
        all.push((name.clone(), module));
        all.extend(module.tables.iter().map(|(table, t)| (format!("{name}/{table}"), &t.steps)));
    }
    for (name, module) in all {
        let rows = module.shards.iter().map(|s| s.rows).fold(0, u64::saturating_add);
        if rows != module.rows {
            fail(format!("module {name:?} has {} rows, its shards {rows}", module.rows), None);
        }
        let digest = module.combined(module.columns.iter().map(|c| (c.name.as_str(), c.digest.as_str())));
        if digest != module.digest {
            fail(format!("module {name:?} has the digest {}, its columns' give {digest}", module.digest), None);
        }
    }
    let digest = combine(manifest.modules.iter().map(|(id, m)| (id.as_str(), m.digest.as_str())));
    if digest != manifest.content_digest {
        fail(format!("found the content digest {}, the modules' give {digest}", manifest.content_digest), None);
    }
    let files: u64 = manifest.input.files.iter().map(|f| f.rows).fold(0, u64::saturating_add);
    if manifest.counts.steps_in > 0 && files == 0 {
        fail(format!("found {} steps in, and no rows in any input file", manifest.counts.steps_in), None);
    }
}

/// What was read was written, or it is said where it went.
pub(super) fn counts(manifest: &Manifest, real_steps: Option<u64>, tally: &mut Tally) {
    let c = &manifest.counts;
    let rows = manifest.modules.values().map(|m| m.rows).fold(0, u64::saturating_add);
    let sum = |parts: &[u64]| parts.iter().copied().fold(0, u64::saturating_add);
    let steps = sum(&[c.steps_out, c.duplicate_steps, c.unfinished_dropped_steps, c.filtered_steps, c.bad_steps]);
    let episodes = sum(&[
        c.episodes_out,
        c.empty_episodes,
        c.duplicate_episodes,
        c.unfinished_dropped,
        c.filtered_out,
        c.bad_episodes,
    ]);
    let mut equal = |what: &str, found: u64, expected: u64| {
        if found != expected {
            let what = format!("{what}: found {found}, expected {expected}");
            tally.fail(Counts, Error::data(what).file(crate::sink::MANIFEST));
        }
    };
    equal("rows_out against the rows of all modules", c.rows_out, rows);
    equal("steps written, dropped, filtered and left out against steps_in", steps, c.steps_in);
    equal("episodes written, empty, dropped, filtered and left out against episodes_in", episodes, c.episodes_in);
    equal("steps into the pipeline against steps_out", c.learner_connector_sum_episodes_length_in, c.steps_out);
    match real_steps {
        Some(real) => equal("real steps in the shards against steps_out", real, c.steps_out),
        None => tally.skip(Counts, "rows overlap or could not be read, so that real steps cannot be counted from them"),
    }
}
