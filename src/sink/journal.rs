//! Which shards of an unfinished data set are whole, so that an interrupted run can go on.
//!
//! ```text
//! .gristmill-journal     {"journal":1,"gristmill":..,"job":..,"pipeline":..,"inputs":[..]}     what is being written
//!                        {"file":"default_policy/part-00000.parquet","rows":..,"digest":..}    a line a finished shard
//! ```
//!
//! A line is appended after its shard is on the disk, and synced. A line that a crash cut short is none. A run that goes on
//! holds job, pieces and input (by size and digest) to the first line, and every shard to its size and digest: what a disk
//! or a person did to it meanwhile is found, and written anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::digest::file_digest;
use super::file::{failed, sync_directory};
use crate::error::{Error, Result};

/// The journal's file name.
pub(super) const JOURNAL: &str = ".gristmill-journal";
/// The journal on its way.
pub(super) const JOURNAL_DRAFT: &str = ".gristmill-journal.draft";
const VERSION: u32 = 1;

/// What an unfinished data set is going to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Intent {
    /// Version of the journal's format.
    pub journal: u32,
    /// Version of gristmill that writes.
    pub gristmill: String,
    /// The job as resolved, without paths.
    pub job: Value,
    /// The pieces with their options.
    pub pipeline: Vec<Value>,
    /// The input files.
    pub inputs: Vec<IntentFile>,
}

/// An input file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentFile {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Its digest.
    pub digest: String,
}

/// A shard that is on the disk as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Its path in the data set, with `/`.
    pub file: String,
    /// Its rows.
    pub rows: u64,
    /// Its size.
    pub bytes: u64,
    /// Its digest.
    pub digest: String,
}

impl Intent {
    /// What this gristmill is going to write.
    #[must_use]
    pub fn new(job: Value, pipeline: Vec<Value>, inputs: Vec<IntentFile>) -> Self {
        Self { journal: VERSION, gristmill: env!("CARGO_PKG_VERSION").to_owned(), job, pipeline, inputs }
    }

    /// Refuses to go on with something else.
    pub(super) fn check(&self, before: &Self, root: &Path) -> Result<()> {
        let refuse = |what: String| {
            Err(Error::usage(format!("cannot go on with the unfinished data set: {what}"))
                .file(root.display().to_string())
                .hint("--overwrite starts anew; or bring job and input back to what they were"))
        };
        if before.gristmill != self.gristmill {
            return refuse(format!("gristmill {} began it, this is {}", before.gristmill, self.gristmill));
        }
        if before.job != self.job {
            let keys = differing(&before.job, &self.job, String::new());
            return refuse(format!("the job is another: {} differs", keys.unwrap_or_else(|| "something".to_owned())));
        }
        if before.pipeline != self.pipeline {
            return refuse("the pieces are others".to_owned());
        }
        for (old, new) in before.inputs.iter().zip(&self.inputs) {
            if old.name != new.name {
                return refuse(format!("found the input file {}, expected {}", new.name, old.name));
            }
            if old != new {
                return refuse(format!(
                    "the input file {} has changed: found {} bytes and {}, expected {} and {}",
                    new.name, new.bytes, new.digest, old.bytes, old.digest
                ));
            }
        }
        if before.inputs.len() != self.inputs.len() {
            return refuse(format!("found {} input files, expected {}", self.inputs.len(), before.inputs.len()));
        }
        Ok(())
    }
}

/// The path of the first key in which two documents differ.
fn differing(a: &Value, b: &Value, at: String) -> Option<String> {
    match (a, b) {
        _ if a == b => None,
        (Value::Object(x), Value::Object(y)) => {
            let mut keys = x.keys().chain(y.keys().filter(|k| !x.contains_key(*k)));
            keys.find_map(|k| {
                let at = if at.is_empty() { k.clone() } else { format!("{at}.{k}") };
                differing(x.get(k).unwrap_or(&Value::Null), y.get(k).unwrap_or(&Value::Null), at)
            })
        }
        _ => Some(at),
    }
}

/// The journal of a run.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: Mutex<File>,
}

impl Journal {
    /// Starts the journal in `root` with the shards that are there already. By rename: there is always a whole one.
    pub(super) fn start(root: &Path, intent: &Intent, finished: &[Finished]) -> Result<Self> {
        let (path, draft) = (root.join(JOURNAL), root.join(JOURNAL_DRAFT));
        let mut text = line(intent)?;
        for shard in finished {
            text += &line(shard)?;
        }
        let write = || {
            let mut file = File::create(&draft)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&draft, &path)?;
            File::options().append(true).open(&path)
        };
        let file = write().map_err(|e| failed("write the journal", &path, &e))?;
        sync_directory(root)?;
        Ok(Self { path, file: Mutex::new(file) })
    }

    /// A shard is finished and on the disk.
    pub fn finished(&self, shard: &Finished) -> Result<()> {
        let text = line(shard)?;
        let mut file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // One write: a line is whole or cut short, never mixed with another.
        let write = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
        write.map_err(|e| failed("write the journal", &self.path, &e))
    }

    /// Reads the journal in `root`; nothing if there is none, or not even its first line.
    pub(super) fn read(root: &Path) -> Result<Option<(Intent, Vec<Finished>)>> {
        let path = root.join(JOURNAL);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed("read the journal", &path, &e)),
        };
        let mut lines = bytes.split_inclusive(|b| *b == b'\n').filter(|l| l.ends_with(b"\n"));
        let Some(Ok(intent)) = lines.next().map(serde_json::from_slice::<Intent>) else { return Ok(None) };
        let shards = lines.map_while(|l| serde_json::from_slice(l).ok()).collect();
        Ok(Some((intent, shards)))
    }
}

fn line(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map(|text| text + "\n").map_err(|e| Error::internal(format!("journal: {e}")))
}

/// Those of the shards that are still what the journal says.
pub(super) fn intact(root: &Path, shards: Vec<Finished>) -> Vec<Finished> {
    let whole = |shard: &Finished| {
        let path = shard.file.split('/').fold(root.to_owned(), |path, part| path.join(part));
        file_digest(&path).is_ok_and(|(bytes, digest)| bytes == shard.bytes && digest == shard.digest)
    };
    let keep: Vec<bool> = shards.par_iter().map(whole).collect();
    shards.into_iter().zip(keep).filter_map(|(shard, keep)| keep.then_some(shard)).collect()
}

/// The shards of each folder that stand at its start without a gap: a run that goes on can count past those alone.
pub(super) fn without_gaps(shards: Vec<Finished>) -> Vec<Finished> {
    let there: BTreeSet<String> = shards.iter().map(|s| s.file.clone()).collect();
    let mut reach: BTreeMap<(String, String), usize> = BTreeMap::new();
    let place = |file: &str| {
        let (folder, name) = file.rsplit_once('/')?;
        let (digits, extension) = name.strip_prefix("part-")?.split_once('.')?;
        Some(((folder.to_owned(), extension.to_owned()), digits.parse::<usize>().ok()?))
    };
    let mut keep = |shard: &Finished| {
        let Some((folder, number)) = place(&shard.file) else { return false };
        let name = |i: usize| format!("{}/part-{i:05}.{}", folder.0, folder.1);
        let reach = reach
            .entry(folder.clone())
            .or_insert_with(|| (0..there.len()).take_while(|&i| there.contains(&name(i))).count());
        number < *reach
    };
    shards.into_iter().filter(|s| keep(s)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn intent(job: Value) -> Intent {
        let input = IntentFile { name: "a.parquet".into(), bytes: 3, digest: "blake3:00".into() };
        Intent::new(job, vec![], vec![input])
    }

    #[test]
    fn a_line_cut_short_is_none() {
        let tmp = tempfile::tempdir().unwrap();
        let shard = |i: u64| Finished { file: format!("p/part-{i:05}.parquet"), rows: i, bytes: 1, digest: "d".into() };
        let journal = Journal::start(tmp.path(), &intent(json!({})), &[shard(0)]).unwrap();
        journal.finished(&shard(1)).unwrap();
        journal.finished(&shard(2)).unwrap();
        let path = tmp.path().join(JOURNAL);
        let whole = fs::read(&path).unwrap();
        for len in 0..=whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            let lines = whole[..len].split_inclusive(|b| *b == b'\n').filter(|l| l.ends_with(b"\n")).count();
            let found = Journal::read(tmp.path()).unwrap();
            match lines {
                0 => assert!(found.is_none()),
                n => assert_eq!(found.unwrap().1, [0, 1, 2].map(shard)[..n - 1]),
            }
        }
    }

    #[test]
    fn what_changed_is_named() {
        let before = intent(json!({ "learner": { "gamma": 0.9 }, "version": 1 }));
        assert!(before.check(&before, Path::new("out")).is_ok());
        let told = |after: Intent| after.check(&before, Path::new("out")).unwrap_err().what().to_owned();
        let after = intent(json!({ "learner": { "gamma": 0.99 }, "version": 1 }));
        assert!(told(after).ends_with("the job is another: learner.gamma differs"));
        let mut after = before.clone();
        after.inputs[0].digest = "blake3:01".into();
        assert!(told(after).contains("the input file a.parquet has changed"));
    }
}
