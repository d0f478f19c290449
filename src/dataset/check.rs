//! What a manifest may say at all.

use std::collections::{BTreeSet, HashMap};

use super::{LaidOut, Module};
use crate::column::{AGENT_ID, EPS_ID, T};
use crate::error::{Error, Result};
use crate::indexed::INDEX;
use crate::manifest::{BatchColumn, Manifest, ModuleRecord};
use crate::sink::{ColumnType, ShardSchema};
use crate::tensor::TensorType;

/// More steps than a piece lays side by side in a row.
const MOST_PLACES: usize = 1 << 30;

/// Why a path is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadPath {
    /// It is empty, or a part of it is.
    Empty,
    /// It starts at a root or a drive.
    Absolute,
    /// A part of it is `.` or `..`.
    Climbs,
    /// It has a character that no gristmill writes.
    Odd,
}

/// Whether a manifest's path names a file inside the data set, on any system.
///
/// # Errors
/// Why it does not.
///
/// ```
/// use gristmill::dataset::{BadPath, check_path};
///
/// assert_eq!(check_path("train/default_policy/part-00000.parquet"), Ok(()));
/// assert_eq!(check_path("../secrets"), Err(BadPath::Climbs));
/// assert_eq!(check_path("/etc/passwd"), Err(BadPath::Absolute));
/// assert_eq!(check_path("C:\\x"), Err(BadPath::Odd));
/// ```
pub fn check_path(path: &str) -> Result<(), BadPath> {
    if path.starts_with('/') {
        return Err(BadPath::Absolute);
    }
    if path.chars().any(|c| c.is_control() || "\\:*?\"<>|".contains(c)) {
        return Err(BadPath::Odd);
    }
    path.split('/').try_for_each(|part| match part {
        "" => Err(BadPath::Empty),
        "." | ".." => Err(BadPath::Climbs),
        _ => Ok(()),
    })
}

/// Refuses what no gristmill writes: paths out of the data set, a file that stands twice, columns that stand twice.
pub(super) fn check(manifest: &Manifest) -> Result<()> {
    let mut files: BTreeSet<&str> = BTreeSet::new();
    for (name, module) in &manifest.modules {
        let place = |e: Error| e.job_key(format!("modules.{name}"));
        paths(module, &mut files).map_err(place)?;
        for (table, record) in &module.tables {
            let place = |e: Error| e.job_key(format!("modules.{name}.tables.{table}"));
            if !record.steps.tables.is_empty() {
                return Err(place(Error::data("found a table inside a table")));
            }
            paths(&record.steps, &mut files).map_err(place)?;
        }
    }
    Ok(())
}

fn paths<'a>(module: &'a ModuleRecord, files: &mut BTreeSet<&'a str>) -> Result<()> {
    let paths = module.shards.iter().map(|s| &s.file).chain([&module.folder]);
    for path in paths {
        check_path(path).map_err(|bad| {
            let why = match bad {
                BadPath::Empty => "a part of it is empty",
                BadPath::Absolute => "it is absolute",
                BadPath::Climbs => "it climbs by `.` or `..`",
                BadPath::Odd => "it has a character that is no part of a file name on every system",
            };
            let what = format!("found the path {path:?}, expected one inside the data set: {why}");
            Error::data(what).hint("no gristmill writes such a manifest: do not trust this data set")
        })?;
    }
    for shard in &module.shards {
        if !files.insert(&shard.file) {
            return Err(Error::data(format!("the file {:?} stands in the manifest twice", shard.file)));
        }
        if !shard.file.starts_with(&format!("{}/", module.folder)) {
            let what = format!("found the file {:?}, expected one in the folder {:?}", shard.file, module.folder);
            return Err(Error::data(what));
        }
    }
    Ok(())
}

/// Holds what a trainer sees of a module to what is stored: its tables have their index, and windows the promised shape.
pub(super) fn windows(module: &Module) -> Result<()> {
    for table in module.tables() {
        let sizes = table.prefix.iter().chain([&table.places]).try_fold(1_usize, |n, &d| n.checked_mul(d));
        if sizes.is_none_or(|n| n == 0 || n > MOST_PLACES) {
            let what = format!(
                "found windows of {:?} times {} places, expected 1 to {MOST_PLACES}",
                table.prefix, table.places
            );
            return Err(Error::data(what).job_key(format!("tables.{}", table.name)));
        }
        for (name, (_, dtype)) in table.index_names().iter().zip(INDEX) {
            let expected = ColumnType::Tensor(TensorType::new(dtype, table.prefix.clone()));
            let found = module.column(name).map(|at| &module.schema().columns[at].1);
            if found != Some(&expected) {
                let found = found.map_or_else(|| "no such column".to_owned(), ToString::to_string);
                return Err(Error::data(format!("found {found}, expected {expected}")).column(name));
            }
        }
    }
    let laid_out = LaidOut::of(module)?;
    let rows = ShardSchema::new(laid_out.columns().to_vec());
    rows.check().map_err(|e| {
        let column = e.place().column.clone().unwrap_or_default();
        Error::data(e.what().to_owned()).column(column)
    })?;
    let batch = &module.record().batch;
    let mut told: HashMap<&str, &BatchColumn> = batch.iter().map(|c| (c.name.as_str(), c)).collect();
    if told.len() != batch.len() || batch.is_empty() != module.tables().is_empty() {
        let what = format!("found a batch of {} columns, {} of them different", batch.len(), told.len());
        return Err(Error::data(what).job_key("batch"));
    }
    for (at, (name, ty)) in laid_out.columns().iter().enumerate().filter(|_| !batch.is_empty()) {
        let said = told.remove(name.as_str());
        let provenance = matches!(name.as_str(), EPS_ID | AGENT_ID | T);
        let same = |c: &BatchColumn| {
            ty.dtype_name() == c.dtype && *ty.shape() == *c.shape && laid_out.table(at) == c.table.as_deref()
        };
        if !said.map_or(provenance, same) {
            let said = said.map_or_else(|| "nothing of it".to_owned(), |c| format!("{}{:?}", c.dtype, c.shape));
            return Err(Error::data(format!("found {ty} in the shards, the batch says {said}")).column(name));
        }
    }
    if let Some(ghost) = batch.iter().find(|c| told.contains_key(c.name.as_str())) {
        return Err(Error::data("found no such column in the shards, which the batch names").column(&ghost.name));
    }
    Ok(())
}
