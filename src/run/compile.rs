//! A conversion without files: episodes in memory in, the train batch in memory out.

use std::collections::VecDeque;
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
use super::tables::{Storage, Table};
use crate::batch::ColumnLayout;
use crate::connector::Connector;
use crate::error::{Error, Result};
use crate::indexed::{self, INDEX, WindowIndex, Windowed};
use crate::job::Job;
use crate::manifest::{ColumnRecord, ModuleRecord};
use crate::pipeline::ModulePlan;
use crate::progress::Progress;
use crate::sink::{ColumnData, ColumnType, ShardSchema};
use crate::source::file::InputFile;
use crate::source::recognise;
use crate::tensor::Buffers;
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
    // Windows are laid out at the end, where they stay: laid out unit by unit they would be copied again.
    indexed.pipeline = indexed.pipeline.with_indexed_windows(true);
    let prepared = indexed.prepare(job, progress)?;
    let Prepared { modules, basis, provenance, .. } = &prepared;
    let schemas = prepared.schemas(job)?;
    let whole = |m: &ModulePlan| output::schema(provenance.columns(), &m.layout.columns, &job.output);
    let laid_out: Vec<ShardSchema> = modules.iter().map(whole).collect();
    laid_out.iter().try_for_each(ShardSchema::check)?;
    let passes = Passes::new(prepared.work(progress), prepared.budget, Sizes::default())?.sort()?;
    let mut rehearsed = IndexMap::new();
    let surveys = passes.survey(basis.as_ref(), &mut rehearsed)?;
    let fresh = || Ok(Collected { modules: modules.iter().map(|_| Vec::new()).collect(), found: Found::default() });
    let collected = passes.run(Pass::Convert(&[]), &surveys, &mut rehearsed, "converting", fresh)?;

    let (mut out, mut records) = (IndexMap::new(), IndexMap::new());
    let pool = threads::pool(passes.threads())?;
    for (i, (units, laid_out)) in collected.modules.into_iter().zip(laid_out).enumerate() {
        let (module, storage) = (&modules[i], &passes.storage[i]);
        let mut kept = Kept::of(&schemas[i], storage, provenance.columns().len(), units);
        let column = |(name, ty): &(String, ColumnType)| ColumnRecord {
            name: name.clone(),
            dtype: ty.dtype_name().to_owned(),
            shape: ty.shape().to_vec(),
            ..ColumnRecord::default()
        };
        let record = ModuleRecord {
            folder: module.name(),
            rows: kept.rows as u64,
            columns: laid_out.columns.iter().map(column).collect(),
            ..ModuleRecord::default()
        };
        records.insert(module.name(), record);
        let columns = pool.install(|| kept.laid_out(&module.layout.columns, &options.buffers))?;
        let names = laid_out.columns.into_iter().map(|(name, _)| name);
        out.insert(module.name(), ModuleColumns { rows: kept.rows, columns: names.zip(columns).collect() });
    }
    let manifest = manifest(job, &prepared, &collected.found, records, files);
    let report = report(job, &manifest, input_bytes, started.elapsed().as_secs_f64());
    let report = Report { output: String::new(), ..report };
    Ok(Compiled { modules: out, report })
}

/// What a unit brought to a module: its rows as they are stored, and the steps of its tables.
struct Unit {
    rows: Rows,
    tables: Vec<Rows>,
}

/// A column as units brought it, in order.
type Parts = Vec<ColumnData>;

/// A module's columns as they are stored. Offsets count from the first step of the unit.
struct Kept<'a> {
    schema: &'a ShardSchema,
    storage: &'a Storage,
    /// Columns in front that tell where a row came from.
    provenance: usize,
    rows: usize,
    columns: Vec<Parts>,
    /// By table.
    steps: Vec<Vec<Parts>>,
}

impl<'a> Kept<'a> {
    fn of(schema: &'a ShardSchema, storage: &'a Storage, provenance: usize, units: Vec<Unit>) -> Self {
        let rows = units.iter().map(|unit| unit.rows.rows).sum();
        let mut columns: Vec<Parts> = schema.columns.iter().map(|_| Vec::new()).collect();
        let mut steps: Vec<Vec<Parts>> =
            storage.tables.iter().map(|table| table.columns.iter().map(|_| Vec::new()).collect()).collect();
        let add = |to: &mut Vec<Parts>, from: Rows| {
            to.iter_mut().zip(from.columns).for_each(|(parts, data)| parts.push(data));
        };
        for unit in units {
            add(&mut columns, unit.rows);
            steps.iter_mut().zip(unit.tables).for_each(|(to, from)| add(to, from));
        }
        Self { schema, storage, provenance, rows, columns, steps }
    }

    /// All columns in one piece and with their windows laid out: where rows came from, then those of `layout`. Parts are
    /// freed once their column is there.
    fn laid_out(&mut self, layout: &[ColumnLayout], buffers: &Buffers) -> Result<Vec<ColumnData>> {
        let mut out: Vec<ColumnData> = (0..self.provenance).map(|at| self.joined(at)).collect::<Result<_>>()?;
        let indices: Vec<Vec<Arc<WindowIndex>>> =
            self.storage.tables.iter().map(|table| self.indices(table)).collect::<Result<_>>()?;
        // What is stored stands in the order of the layout, but for the three columns of each index.
        let index = |table: &Table| self.provenance + table.index..self.provenance + table.index + INDEX.len();
        let of_index = |at: &usize| self.storage.tables.iter().any(|table| index(table).contains(at));
        let mut of_rows: VecDeque<usize> = (self.provenance..self.columns.len()).filter(|at| !of_index(at)).collect();
        let mut of_table = vec![0; self.steps.len()];
        for column in layout {
            let missing = || Error::internal("a column that no unit brought").column(&column.name);
            let Some(stored) = &column.stored else {
                out.push(self.joined(of_rows.pop_front().ok_or_else(missing)?)?);
                continue;
            };
            let table = self.storage.tables.iter().position(|t| t.name == stored.table).ok_or_else(missing)?;
            let steps = self.steps[table].get_mut(of_table[table]).map(std::mem::take).ok_or_else(missing)?;
            of_table[table] += 1;
            let windows = indices[table].iter().zip(&steps).map(|(index, steps)| {
                let steps = steps.tensor().ok_or_else(|| Error::internal("steps that are no tensor"))?;
                Ok(Windowed::new(stored.clone(), Arc::clone(index), steps.clone()))
            });
            let windows = windows.collect::<Result<Vec<_>>>().map_err(|e| e.column(&column.name))?;
            out.push(ColumnData::Tensor(indexed::laid_out(&column.ty, &windows, buffers)));
        }
        Ok(out)
    }

    fn joined(&mut self, at: usize) -> Result<ColumnData> {
        ColumnData::concat(&self.schema.columns[at].1, &std::mem::take(&mut self.columns[at]))
    }

    /// The index of each unit's windows over `table`.
    fn indices(&self, table: &Table) -> Result<Vec<Arc<WindowIndex>>> {
        let wrong = || Error::internal(format!("rows without the index of `{}`", table.name));
        let at = self.provenance + table.index;
        let Some([offset, length, pad]) = self.columns.get(at..at + INDEX.len()) else { return Err(wrong()) };
        let tensor = |data: &ColumnData| data.tensor().cloned().ok_or_else(wrong);
        let unit = |((offset, length), pad)| {
            Ok(Arc::new(WindowIndex { offset: tensor(offset)?, length: tensor(length)?, pad: tensor(pad)? }))
        };
        offset.iter().zip(length).zip(pad).map(unit).collect()
    }
}

/// Keeps what units bring, by module.
struct Collected {
    modules: Vec<Vec<Unit>>,
    found: Found,
}

impl Taker<Done> for Collected {
    fn take(&mut self, done: Done) -> Result<()> {
        self.found.merge(&done.found);
        for (module, rows, tables) in done.rows {
            let Brought::Rows(rows) = rows else { return Err(Error::internal("shuffled rows in memory")) };
            self.modules[module].push(Unit { rows, tables });
        }
        Ok(())
    }
}
