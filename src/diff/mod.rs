//! Do two data sets hold the same training data, and if not, what differs?
//!
//! ```text
//! content digests equal                  the same, without reading a row
//! key columns (eps_id, agent_id, t) of   equal: rows stand side by side, and only columns of another digest are read
//! a module by their digests              else:  episodes are matched by id and agent, their rows by t
//! ```
//!
//! Rows match by module, episode, agent, `t`, and (where these stand several times) by their turn. How a data set is cut
//! into files, its format and its compression are no difference; the order of its rows is one.
//!
//! Memory holds an entry of the index an episode, and a few row groups a thread. Where the two sides keep episodes in
//! unlike orders, row groups of the second are read again and again: slow, but no larger.

mod keys;
mod rows;
mod values;

use std::collections::BTreeSet;
use std::path::Path;

use hashbrown::HashMap;
use rayon::prelude::*;
use serde::Serialize;

use crate::column::{AGENT_ID, EPS_ID, T};
use crate::dataset::{Dataset, Module};
use crate::error::{Error, Result};
use crate::progress::{Progress, Step, Totals};
use crate::sink::ColumnType;
use crate::threads;
use keys::Matched;
use rows::{RowReader, Segment, Side};
use values::Difference;
pub use values::{ColumnDifference, Example};

/// Bytes of rows that a thread compares at once.
const LAID_OUT: usize = 16 << 20;
/// Ids shown of each kind; all are counted.
const SHOWN: usize = 10;

/// How to compare.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Values whose absolute or relative difference is not greater count as equal.
    pub tolerance: f64,
    /// Worker threads; all cores when not set.
    pub threads: Option<usize>,
}

/// What differs between two data sets.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// The first data set.
    pub a: String,
    /// The second data set.
    pub b: String,
    /// Whether nothing differs.
    pub same: bool,
    /// Whether the manifests' content digests were equal, so that no row was read.
    pub by_digest: bool,
    /// The modules in which something differs.
    pub modules: Vec<ModuleDifference>,
}

/// What differs in a module.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ModuleDifference {
    /// Its name.
    pub module: String,
    /// `a` or `b`, if only one has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_in: Option<&'static str>,
    /// Rows of both.
    pub rows: [u64; 2],
    /// Columns that only `a` has, with their types.
    pub columns_removed: Vec<(String, String)>,
    /// Columns that only `b` has.
    pub columns_added: Vec<(String, String)>,
    /// Columns of other types: name, type in `a`, type in `b`.
    pub columns_changed: Vec<(String, String, String)>,
    /// Episodes (of one agent) that only `a` has.
    pub episodes_removed: Counted,
    /// Episodes that only `b` has.
    pub episodes_added: Counted,
    /// Episodes that both have, with other rows or values.
    pub episodes_changed: Counted,
    /// Rows of episodes that both have, in `a` alone.
    pub rows_removed: u64,
    /// Rows of episodes that both have, in `b` alone.
    pub rows_added: u64,
    /// Whether rows that both have stand in another order.
    pub reordered: bool,
    /// Columns whose values differ in rows that both have.
    pub values: Vec<ColumnDifference>,
}

/// How many, and the first of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counted {
    /// How many.
    pub count: u64,
    /// The first.
    pub first: Vec<String>,
}

impl Counted {
    fn add(&mut self, name: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.len() < SHOWN {
            self.first.push(name());
        }
    }
}

impl ModuleDifference {
    /// Whether nothing differs. Differences within the tolerance are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let of_columns = [self.columns_removed.len(), self.columns_added.len(), self.columns_changed.len()];
        let of_episodes = [&self.episodes_removed, &self.episodes_added].map(|c| c.count);
        self.only_in.is_none()
            && of_columns == [0; 3]
            && of_episodes == [0; 2]
            && [self.rows_removed, self.rows_added] == [0; 2]
            && !self.reordered
            && self.values.iter().all(|v| v.values == 0)
    }
}

/// Compares the data sets in two directories.
///
/// # Errors
/// If one of them is none, or damaged.
pub fn diff(a: &Path, b: &Path, options: Options, progress: &dyn Progress) -> Result<Report> {
    if !(options.tolerance >= 0.0 && options.tolerance.is_finite()) {
        return Err(Error::usage(format!("found the tolerance {}, expected 0 or more", options.tolerance)));
    }
    let threads = threads::count(options.threads);
    let pool = threads::pool(threads)?;
    let (one, other) = (Dataset::open(a)?, Dataset::open(b)?);
    let mut report = Report { a: a.display().to_string(), b: b.display().to_string(), ..Report::default() };
    if one.manifest().content_digest == other.manifest().content_digest {
        (report.same, report.by_digest) = (true, true);
        return Ok(report);
    }
    pool.install(|| {
        for module in one.modules() {
            let found = match other.module(module.name()) {
                Some(second) if second.record().digest == module.record().digest => continue,
                Some(second) => modules(module, second, options, threads, progress)?,
                None => ModuleDifference {
                    module: module.name().to_owned(),
                    only_in: Some("a"),
                    rows: [module.record().rows, 0],
                    ..ModuleDifference::default()
                },
            };
            report.modules.push(found);
        }
        Ok::<_, Error>(())
    })?;
    for module in other.modules().iter().filter(|m| one.module(m.name()).is_none()) {
        report.modules.push(ModuleDifference {
            module: module.name().to_owned(),
            only_in: Some("b"),
            rows: [0, module.record().rows],
            ..ModuleDifference::default()
        });
    }
    report.same = report.modules.iter().all(ModuleDifference::is_empty);
    Ok(report)
}

fn is_key(name: &str) -> bool {
    matches!(name, EPS_ID | AGENT_ID | T)
}

/// Compares the rows of a module that both have.
fn modules(
    a: &Module,
    b: &Module,
    options: Options,
    threads: usize,
    progress: &dyn Progress,
) -> Result<ModuleDifference> {
    let mut out = ModuleDifference {
        module: a.name().to_owned(),
        rows: [a.record().rows, b.record().rows],
        ..ModuleDifference::default()
    };
    let mut common = Vec::new();
    let (side_a, side_b) = (Side::open(a)?, Side::open(b)?);
    let (columns_a, columns_b) = (side_a.laid_out.columns(), side_b.laid_out.columns());
    let in_b: HashMap<&str, usize> = columns_b.iter().enumerate().map(|(i, (name, _))| (name.as_str(), i)).collect();
    let in_a: BTreeSet<&str> = columns_a.iter().map(|(name, _)| name.as_str()).collect();
    for (at, (name, ty)) in columns_a.iter().enumerate() {
        match in_b.get(name.as_str()).map(|&i| (i, &columns_b[i].1)) {
            None => out.columns_removed.push((name.clone(), ty.to_string())),
            Some((_, other)) if other != ty => {
                out.columns_changed.push((name.clone(), ty.to_string(), other.to_string()));
            }
            Some((i, _)) if !is_key(name) && matches!(ty, ColumnType::Tensor(_)) => common.push([at, i]),
            Some(_) => {}
        }
    }
    let added = columns_b.iter().filter(|(name, _)| !in_a.contains(name.as_str()));
    out.columns_added = added.map(|(name, ty)| (name.clone(), ty.to_string())).collect();

    let digest = |m: &Module, name: &str| m.column(name).map(|i| m.record().columns[i].digest.clone());
    let aligned =
        a.record().rows == b.record().rows && [EPS_ID, AGENT_ID, T].iter().all(|k| digest(a, k) == digest(b, k));
    let mut matched = if aligned {
        // Windows that are stored once have no digest of their own.
        common.retain(|[i, _]| match (digest(a, &columns_a[*i].0), digest(b, &columns_a[*i].0)) {
            (Some(one), Some(other)) => one != other,
            _ => true,
        });
        Matched::side_by_side(a.record().rows)
    } else {
        progress.begin("matching", Totals::default());
        let matched = keys::matched(&side_a, &side_b, &mut out)?;
        progress.end();
        matched
    };
    let names: Vec<&str> = common.iter().map(|[i, _]| columns_a[*i].0.as_str()).collect();
    let tasks = matched.tasks(&side_a.first_rows());
    progress.begin("comparing", Totals { steps: Some(out.rows[0]), ..Totals::default() });
    let mut differences: Vec<Difference> = names.iter().map(|_| Difference::default()).collect();
    for some in tasks.chunks(threads * 4) {
        let compared: Vec<Result<Compared>> = some
            .par_iter()
            .map_init(
                || (RowReader::new(&side_a, &common, 0), RowReader::new(&side_b, &common, 1)),
                |(a, b), task| {
                    let out = compare(task, a, b, names.len(), options.tolerance);
                    progress.advance(Step { steps: task.iter().map(|s| s.len).sum(), ..Step::default() });
                    out
                },
            )
            .collect();
        for compared in compared {
            let compared = compared?;
            for (all, own) in differences.iter_mut().zip(compared.columns) {
                all.merge(own);
            }
            // An episode may go on in another task, and may lack rows as well: it is counted once.
            for (hash, name) in compared.episodes {
                if matched.changed.insert(hash) {
                    out.episodes_changed.add(|| name);
                }
            }
        }
    }
    progress.end();
    let columns = names.iter().zip(differences).filter_map(|(name, d)| d.finish(name));
    out.values = columns.collect();
    Ok(out)
}

/// What one task found.
struct Compared {
    columns: Vec<Difference>,
    /// Episodes with a row that differs, by hash and name, in the order of their rows.
    episodes: Vec<(u128, String)>,
}

/// Compares the rows of some segments.
fn compare(
    segments: &[Segment],
    a: &mut RowReader<'_>,
    b: &mut RowReader<'_>,
    columns: usize,
    tolerance: f64,
) -> Result<Compared> {
    let mut out = Compared { columns: vec![Difference::default(); columns], episodes: Vec::new() };
    let mut told = BTreeSet::new();
    for segment in segments {
        let mut done = 0;
        while done < segment.len {
            let (rows_a, rows_b) = (a.rows(segment.a + done)?, b.rows(segment.b + done)?);
            let len = (segment.len - done).min(rows_a.left).min(rows_b.left);
            let n = usize::try_from(len).map_err(|_| Error::internal("a row group larger than memory"))?;
            // Windows take many times the bytes that a row group has, laid out.
            let n = n.min((LAID_OUT / rows_a.row_bytes().max(1)).max(1));
            let keys = rows_a.keys();
            let places = |row: usize| {
                let (own, other) = (rows_a.at + row, rows_b.at + row);
                let (episode, t) = (keys.episode(own).ok(), keys.t(own));
                (rows_a.place(own, episode.as_deref(), t), rows_b.place(other, episode.as_deref(), t))
            };
            // Of all columns together, so that an episode that differs in several is one.
            let mut changed = vec![false; n];
            for (difference, (one, other)) in
                out.columns.iter_mut().zip(rows_a.columns(n)?.iter().zip(&rows_b.columns(n)?))
            {
                difference.rows_of(one, other, tolerance, &mut changed, places);
            }
            let mut before = None;
            for row in (rows_a.at..).zip(changed).filter_map(|(row, changed)| changed.then_some(row)) {
                if let Some(before) = before.replace(row)
                    && keys.same(before, row)?
                {
                    continue;
                }
                let hash = keys.hash(row)?;
                if told.insert(hash) {
                    out.episodes.push((hash, keys.episode(row)?));
                }
            }
            done += n as u64;
        }
    }
    Ok(out)
}
