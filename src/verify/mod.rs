//! Does a written data set match its manifest, byte for byte and rule for rule?
//!
//! ```text
//! manifest   names, paths, digests of digests, sums of rows
//! files      each is there, regular, of this size and digest; nothing else lies there
//! shards     columns, dtypes, shapes, row groups; every value readable, none null
//! content    digest and statistics of each column, from the rows alone
//! rules      masks, padding, flags, time steps, states: what a learner relies on
//! counts     what went in came out, was left out, or was dropped
//! ```
//!
//! All kinds of faults are reported, each with its first places, so that one run tells whether a file was damaged on its
//! way or the data set was never right. A rule that cannot be held against a data set (rows of RLlib's own order, pieces
//! that gristmill does not know) is reported as skipped, with the reason.
//!
//! Shards are read row group by row group, a few at a time, on all threads; what must be seen in order (digests,
//! statistics, episodes) is joined in order.

mod counts;
mod files;
mod order;
mod padding;
mod rules;
mod tally;
mod windows;

use std::collections::BTreeSet;
use std::path::Path;

use rayon::prelude::*;
use serde::Serialize;

pub use tally::{Check, CheckName, Status};

use crate::dataset::{Dataset, Module, OpenError, Shard};
use crate::error::{Error, Kind, Result};
use crate::manifest::ModuleRecord;
use crate::progress::{Progress, Step, Totals};
use crate::sink::{ColumnData, ContentDigest, RowGroupData};
use crate::stats::{ColumnStats, Statistics};
use crate::threads;
use order::Walker;
use rules::Rules;
use tally::Tally;
use windows::Indexed;

/// What was found out about a data set.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Where it is.
    pub directory: String,
    /// Whether every check passed that could be made.
    pub passed: bool,
    /// The checks, in a fixed order.
    pub checks: Vec<Check>,
    /// Modules read.
    pub modules: u64,
    /// Shards read.
    pub shards: u64,
    /// Rows of the modules that were read.
    pub rows: u64,
    /// Rows of their tables that were read: frames or steps that stand once (`output.windows = "indexed"`).
    pub table_rows: u64,
    /// Bytes of the shards read.
    pub bytes: u64,
}

/// Checks the data set in `directory`, on `threads` threads (all cores when not set).
///
/// # Errors
/// Of kind `Usage` if there is no data set, of kind `Environment` if it cannot be read. What is wrong with a data set is
/// no error here but a failed check of the report.
pub fn verify(directory: &Path, threads: Option<usize>, progress: &dyn Progress) -> Result<Report> {
    let threads = threads::count(threads);
    let pool = threads::pool(threads)?;
    let mut tally = Tally::default();
    let mut report = Report {
        directory: directory.display().to_string(),
        passed: false,
        checks: Vec::new(),
        modules: 0,
        shards: 0,
        rows: 0,
        table_rows: 0,
        bytes: 0,
    };
    match Dataset::open(directory) {
        Ok(dataset) => pool.install(|| look(&dataset, threads, &mut tally, &mut report, progress))?,
        Err(e) if e.kind() == Kind::Data => {
            tally.fail(CheckName::Manifest, e);
            tally.skip_rest("the manifest cannot be trusted");
        }
        Err(e) => return Err(e),
    }
    report.checks = tally.finish();
    report.passed = report.checks.iter().all(|c| c.status != Status::Failed);
    Ok(report)
}

fn look(
    dataset: &Dataset,
    threads: usize,
    tally: &mut Tally,
    report: &mut Report,
    progress: &dyn Progress,
) -> Result<()> {
    counts::manifest(dataset.manifest(), tally);
    let bytes =
        dataset.manifest().modules.values().flat_map(ModuleRecord::files).map(|s| s.bytes).fold(0, u64::saturating_add);
    progress.begin("files", Totals { bytes: Some(bytes), ..Totals::default() });
    let files = files::check(dataset, tally, progress)?;
    progress.end();
    progress.begin("rows", Totals { bytes: Some(bytes), ..Totals::default() });
    let mut real_steps = Some(0_u64);
    let look = Look { files: &files, threads, progress };
    for module in dataset.modules() {
        let rules = Rules::of(dataset.manifest(), module, tally);
        let (rows, seen) = module_rows(module, &rules, &look, tally, report)?;
        report.rows += rows;
        real_steps = real_steps.zip(seen).map(|(all, own)| all + own);
        report.modules += 1;
        for table in module.tables() {
            report.table_rows += module_rows(&table.steps, &Rules::of_table(&table.steps), &look, tally, report)?.0;
        }
    }
    progress.end();
    counts::counts(dataset.manifest(), real_steps, tally);
    Ok(())
}

/// One row group, read and looked at by itself.
struct Looked {
    data: RowGroupData,
    stats: Vec<Option<ColumnStats>>,
    tally: Tally,
}

/// What looking at rows needs.
struct Look<'a> {
    /// The files that are there.
    files: &'a BTreeSet<String>,
    threads: usize,
    progress: &'a dyn Progress,
}

/// Reads a module, or a table of one. Its rows; its real steps, where rows are all and each step stands once.
fn module_rows(
    module: &Module,
    rules: &Rules,
    look: &Look<'_>,
    tally: &mut Tally,
    report: &mut Report,
) -> Result<(u64, Option<u64>)> {
    let Look { files, threads, progress } = *look;
    let tables = Indexed::all(module);
    let record = module.record();
    let columns = &module.schema().columns;
    let all: Vec<usize> = (0..columns.len()).collect();
    let mut digests: Vec<ContentDigest> = columns.iter().map(|(n, ty)| ContentDigest::new(n, ty)).collect();
    let mut stats: Vec<Option<ColumnStats>> = rules.masked.iter().map(|m| m.map(|_| ColumnStats::default())).collect();
    let mut walker = Walker::new(rules);
    let (mut rows, mut whole) = (0_u64, true);
    for (i, shard_record) in record.shards.iter().enumerate() {
        let shard = match module.open_shard(i) {
            Ok(shard) => shard,
            Err(e) => {
                let check = match e {
                    OpenError::Columns(_) => CheckName::Schema,
                    OpenError::File(_) => CheckName::Values,
                };
                let e = e.into_error();
                if e.kind() != Kind::Data {
                    return Err(e);
                }
                // What is missing or no regular file was told by the check of files.
                if files.contains(&shard_record.file) {
                    tally.fail(check, e);
                }
                whole = false;
                walker.forget();
                continue;
            }
        };
        report.shards += 1;
        report.bytes += shard_record.bytes;
        if shard.rows() != shard_record.rows {
            let what = format!("found {} rows, the manifest says {}", shard.rows(), shard_record.rows);
            tally.fail(CheckName::Rows, Error::data(what).file(shard.name()));
        }
        let groups: Vec<usize> = (0..shard.row_groups().len()).collect();
        for group_numbers in groups.chunks(threads) {
            let looked: Vec<Result<Looked>> =
                group_numbers.par_iter().map(|&g| look_at_group(&shard, g, &all, rules, &tables)).collect();
            for (&group, looked) in group_numbers.iter().zip(looked) {
                let looked = match looked {
                    Ok(looked) => looked,
                    Err(e) if e.kind() == Kind::Data => {
                        tally.fail(CheckName::Values, e);
                        whole = false;
                        walker.forget();
                        continue;
                    }
                    Err(e) => return Err(e),
                };
                tally.merge(looked.tally);
                digests.par_iter_mut().zip(&looked.data.columns).try_for_each(|(d, data)| d.update(data))?;
                for (all, own) in stats.iter_mut().zip(&looked.stats) {
                    if let (Some(all), Some(own)) = (all, own) {
                        all.merge(own);
                    }
                }
                rows += looked.data.rows as u64;
                let place = Place { shard: &shard, group };
                walker.walk(&looked.data, &place, tally)?;
            }
        }
        progress.advance(Step { bytes: shard_record.bytes, ..Step::default() });
    }
    if whole && rows != record.rows {
        let what = format!("found {rows} rows in all shards, the manifest says {}", record.rows);
        tally.fail(CheckName::Rows, in_module(Error::data(what), module));
    }
    if whole {
        content(module, digests, &stats, tally)?;
    } else {
        tally.skip(CheckName::Content, "some rows cannot be read");
        tally.skip(CheckName::Statistics, "some rows cannot be read");
    }
    Ok((rows, whole.then(|| walker.real_steps()).flatten()))
}

fn look_at_group(
    shard: &Shard,
    group: usize,
    columns: &[usize],
    rules: &Rules,
    tables: &[Indexed<'_>],
) -> Result<Looked> {
    let data = shard.row_group(group, columns)?;
    let mut tally = Tally::default();
    padding::check(&data, rules, &Place { shard, group }, &mut tally);
    windows::check(&data, tables, &Place { shard, group }, &mut tally);
    let mask = rules.loss_mask.and_then(|m| data.columns[m].tensor());
    let stats = rules
        .masked
        .iter()
        .zip(&data.columns)
        .map(|(masked, column)| match (masked, column) {
            (Some(masked), ColumnData::Tensor(t)) => ColumnStats::of(t, mask.filter(|_| *masked)).map(Some),
            _ => Ok(None),
        })
        .collect::<Result<_>>()?;
    Ok(Looked { data, stats, tally })
}

/// Digests and statistics of a module's columns against the manifest's.
fn content(
    module: &Module,
    digests: Vec<ContentDigest>,
    stats: &[Option<ColumnStats>],
    tally: &mut Tally,
) -> Result<()> {
    let record = module.record();
    let digests: Vec<String> = digests.into_iter().map(ContentDigest::finish).collect();
    for ((column, found), stats) in record.columns.iter().zip(&digests).zip(stats) {
        let place = |e: Error| in_module(e, module).column(&column.name);
        if *found != column.digest {
            let what = format!("the column's values have the digest {found}, the manifest says {}", column.digest);
            tally.fail(CheckName::Content, place(Error::data(what)));
        }
        let Some(expected) = &column.statistics else { continue };
        let Some(stats) = stats else {
            tally.fail(CheckName::Statistics, place(Error::data("found statistics of a column that has none")));
            continue;
        };
        // Through JSON, as the manifest's went.
        let found = stats.summary();
        let text = serde_json::to_string(&found).map_err(|e| Error::internal(format!("statistics: {e}")))?;
        let found: Statistics = serde_json::from_str(&text).map_err(|e| Error::internal(format!("statistics: {e}")))?;
        if found != *expected {
            let expected = serde_json::to_string(expected).unwrap_or_default();
            let what = format!("the column's values give {text}, the manifest says {expected}");
            tally.fail(CheckName::Statistics, place(Error::data(what)));
        }
    }
    let found = record.combined(record.columns.iter().zip(&digests).map(|(c, d)| (c.name.as_str(), d.as_str())));
    if found != record.digest {
        let what = format!("the module's rows have the digest {found}, the manifest says {}", record.digest);
        tally.fail(CheckName::Content, in_module(Error::data(what), module));
    }
    Ok(())
}

/// An error about a module as a whole.
fn in_module(error: Error, module: &Module) -> Error {
    error.file(module.record().folder.clone())
}

/// Where rows stand.
struct Place<'a> {
    shard: &'a Shard,
    group: usize,
}

impl Place<'_> {
    /// Adds file, row group and row to an error about row `row` of the group.
    fn at(&self, row: usize, error: Error) -> Error {
        let first = self.shard.row_groups().get(self.group).map_or(0, |g| g.first_row);
        error.file(self.shard.name()).row_group(self.group).row(first + row as u64)
    }
}
