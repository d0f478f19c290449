//! A conversion without files: episodes in memory in, the train batch in memory out.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use indexmap::IndexMap;

use super::Options;
use super::cutter::Rows;
use super::output::{self, Brought, Sizes};
use super::pass::{Done, Found, Pass};
use super::passes::Passes;
use super::prepare::{Indexed, Prepared};
use super::record::{Report, manifest, report};
use super::schedule::Taker;
use super::tables::{Growing, Storage, Table};
use crate::batch::ColumnLayout;
use crate::connector::Connector;
use crate::error::{Error, Result};
use crate::indexed::{WindowIndex, Windowed};
use crate::job::Job;
use crate::manifest::{ColumnRecord, ModuleRecord};
use crate::pipeline::ModulePlan;
use crate::progress::Progress;
use crate::sink::{ColumnData, ColumnType, ShardSchema};
use crate::source::file::InputFile;
use crate::source::recognise;
use crate::threads;

/// What a table in memory is called in messages.
pub const MEMORY: &str = "<memory>";

/// The train batch of a job, in memory.
#[derive(Debug)]
pub struct Compiled {
    /// Its modules by name: the module's id, behind `part/` where the job splits.
    pub modules: IndexMap<String, ModuleColumns>,
    /// What the run did. There are no shards, so they are counted as none.
    pub report: Report,
}

/// The columns of one module.
#[derive(Debug)]
pub struct ModuleColumns {
    /// Rows of every column: steps, or sequences when the module is stateful.
    pub rows: usize,
    /// The columns that a shard would have, in the same order: first those that tell where a row came from.
    pub columns: Vec<(String, ColumnData)>,
}

/// Compiles tables in memory: the rows, columns and values that [`convert`](super::convert) would write had the batches
/// been one file.
///
/// The job's `input.paths` and `output` do not matter, but for `output.split`. The batches have one schema; their
/// layout is recognised, or named by the job, as that of files is.
///
/// # Errors
/// The first thing that went wrong, in the order of the data. The file that messages name is `<memory>`.
///
/// # Examples
/// ```
/// use std::sync::Arc;
///
/// use arrow::array::{ArrayRef, BooleanArray, Float32Array, Float64Array, Int32Array, RecordBatch, StringArray};
/// use gristmill::job::Job;
/// use gristmill::progress::Silent;
/// use gristmill::run::{self, Options};
/// use gristmill::sink::ColumnData;
///
/// let columns: [(&str, ArrayRef); 5] = [
///     ("eps_id", Arc::new(StringArray::from(vec!["a", "a", "b"]))),
///     ("obs", Arc::new(Float32Array::from(vec![0.0, 0.5, 7.0]))),
///     ("actions", Arc::new(Int32Array::from(vec![0, 1, 1]))),
///     ("rewards", Arc::new(Float64Array::from(vec![1.0, 2.0, 3.0]))),
///     ("terminateds", Arc::new(BooleanArray::from(vec![false, true, true]))),
/// ];
/// let batch = RecordBatch::try_from_iter(columns)?;
///
/// let compiled = run::compile(&Job::default(), vec![batch], &Options::default(), &Silent)?;
/// let module = &compiled.modules["default_policy"];
/// let rewards = module.columns.iter().find(|(name, _)| name == "rewards").map(|(_, data)| data);
/// let Some(ColumnData::Tensor(rewards)) = rewards else { panic!("rewards are tensors") };
/// assert_eq!((module.rows, rewards.values::<f32>()), (3, &[1.0, 2.0, 3.0][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn compile(job: &Job, batches: Vec<RecordBatch>, options: &Options, progress: &dyn Progress) -> Result<Compiled> {
    compile_with(job, Vec::new(), batches, options, progress)
}

/// The same with connector pieces of the caller's own, in front of the job's.
///
/// # Errors
/// See [`compile`].
pub fn compile_with(
    job: &Job,
    own: Vec<Box<dyn Connector>>,
    batches: Vec<RecordBatch>,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Compiled> {
    let started = Instant::now();
    let open =
        |job: &Job, infos| recognise::open_files(job, vec![Arc::new(InputFile::in_memory(MEMORY, batches)?)], infos);
    let mut indexed = Indexed::new(job, own, open, |_| Ok(false), Path::new("."), options, progress)?;
    let (files, input_bytes) = (std::mem::take(&mut indexed.input_files), indexed.input_bytes);
    // Windows are laid out once, at the end and where they stay: laid out unit by unit they would be copied again.
    indexed.pipeline = indexed.pipeline.with_indexed_windows(true);
    let workers = indexed.threads;
    let prepared = indexed.prepare(job, progress)?;
    let Prepared { modules, basis, provenance, .. } = &prepared;
    let schemas = prepared.schemas(job)?;
    let (rows, mut tables) = schemas.split_at(modules.len());
    let whole = |m: &ModulePlan| output::schema(provenance.columns(), &m.layout.columns, &job.output);
    let laid_out: Vec<ShardSchema> = modules.iter().map(whole).collect();
    laid_out.iter().try_for_each(ShardSchema::check)?;
    let passes = Passes::new(prepared.work(progress), prepared.budget, Sizes::default())?.sort()?;
    let mut rehearsed = IndexMap::new();
    let surveys = passes.survey(basis.as_ref(), &mut rehearsed)?;
    let fresh = || Ok(Collected::new(&passes.storage, provenance.columns().len()));
    let collected = passes.run(Pass::Convert(&[]), &surveys, &mut rehearsed, "converting", fresh)?;

    let (mut out, mut records) = (IndexMap::new(), IndexMap::new());
    let pool = threads::pool(workers)?;
    for (((module, schema), own), laid_out) in modules.iter().zip(rows).zip(collected.modules).zip(laid_out) {
        let (own_tables, others) = tables.split_at(own.tables.len());
        tables = others;
        let joined = Rows::joined(&schema.columns, own.rows)?;
        let steps = own.tables.into_iter().zip(own_tables).map(|(t, schema)| Rows::joined(&schema.columns, t.steps));
        let kept = Kept { names: &schema.columns, rows: joined, tables: steps.collect::<Result<_>>()? };
        let column = |(name, ty): &(String, ColumnType)| ColumnRecord {
            name: name.clone(),
            dtype: ty.dtype_name().to_owned(),
            shape: ty.shape().to_vec(),
            ..ColumnRecord::default()
        };
        let record = ModuleRecord {
            folder: module.name(),
            rows: kept.rows.rows as u64,
            columns: laid_out.columns.iter().map(column).collect(),
            ..ModuleRecord::default()
        };
        records.insert(module.name(), record);
        let storage = &passes.storage[out.len()];
        let columns = pool.install(|| kept.laid_out(&module.layout.columns, storage, provenance.columns().len()))?;
        let names = laid_out.columns.into_iter().map(|(name, _)| name);
        out.insert(module.name(), ModuleColumns { rows: kept.rows.rows, columns: names.zip(columns).collect() });
    }
    let manifest = manifest(job, &prepared, &collected.found, records, files);
    let report = report(job, &manifest, input_bytes, started.elapsed().as_secs_f64());
    let report = Report { output: String::new(), ..report };
    Ok(Compiled { modules: out, report })
}

/// A module's columns as they are stored.
struct Kept<'a> {
    names: &'a [(String, ColumnType)],
    rows: Rows,
    tables: Vec<Rows>,
}

impl Kept<'_> {
    /// All columns with their windows laid out: the `provenance` in front, then those of `layout`.
    fn laid_out(&self, layout: &[ColumnLayout], storage: &Storage, provenance: usize) -> Result<Vec<ColumnData>> {
        let mut out = self.rows.columns[..provenance].to_vec();
        let places: HashMap<&str, usize> = self.names.iter().enumerate().map(|(i, (n, _))| (n.as_str(), i)).collect();
        let mut indices: Vec<Option<Arc<WindowIndex>>> = vec![None; self.tables.len()];
        // Columns of a table stand there in the order of the layout.
        let mut next = vec![0; self.tables.len()];
        for column in layout {
            let Some(stored) = &column.stored else {
                let place = places.get(column.name.as_str());
                let place =
                    place.ok_or_else(|| Error::internal("a column that no unit brought").column(&column.name))?;
                out.push(self.rows.columns[*place].clone());
                continue;
            };
            let table = storage.tables.iter().position(|t| t.name == stored.table);
            let table = table.ok_or_else(|| Error::internal("a table that no unit brought").column(&column.name))?;
            let index = if let Some(index) = &indices[table] {
                Arc::clone(index)
            } else {
                let index = storage.tables[table].index_of(&self.rows, provenance)?;
                Arc::clone(indices[table].insert(Arc::new(index)))
            };
            let steps = self.tables[table].columns[next[table]].tensor();
            next[table] += 1;
            let steps = steps.ok_or_else(|| Error::internal("steps that are no tensor").column(&column.name))?;
            out.push(ColumnData::Tensor(Windowed::new(stored.clone(), index, steps.clone()).laid_out()));
        }
        Ok(out)
    }
}

/// Keeps what units bring, by module.
struct Collected {
    modules: Vec<OfModule>,
    provenance: usize,
    found: Found,
}

struct OfModule {
    rows: Vec<Rows>,
    tables: Vec<OfTable>,
}

struct OfTable {
    table: Growing,
    steps: Vec<Rows>,
}

impl Collected {
    fn new(storage: &[Storage], provenance: usize) -> Self {
        let table = |table: &Table| OfTable { table: Growing::new(table.clone()), steps: Vec::new() };
        let module = |s: &Storage| OfModule { rows: Vec::new(), tables: s.tables.iter().map(table).collect() };
        Self { modules: storage.iter().map(module).collect(), provenance, found: Found::default() }
    }
}

impl Taker<Done> for Collected {
    fn take(&mut self, done: Done) -> Result<()> {
        self.found.merge(&done.found);
        for (module, mut rows, steps) in done.rows {
            let own = &mut self.modules[module];
            for (table, steps) in own.tables.iter_mut().zip(steps) {
                table.table.take(&mut rows, self.provenance, steps.rows)?;
                table.steps.push(steps);
            }
            let Brought::Rows(rows) = rows else { return Err(Error::internal("shuffled rows in memory")) };
            own.rows.push(rows);
        }
        Ok(())
    }
}
