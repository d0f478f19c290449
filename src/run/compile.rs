//! A conversion without files: episodes in memory in, the train batch in memory out.

use indexmap::IndexMap;

use arrow::array::RecordBatch;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::Options;
use super::cutter::Rows;
use super::output::{Brought, Sizes};
use super::pass::{Done, Found, Pass};
use super::passes::Passes;
use super::prepare::{Indexed, Prepared};
use super::record::{Report, manifest, report};
use super::schedule::Taker;
use crate::connector::Connector;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::manifest::{ColumnRecord, ModuleRecord};
use crate::progress::Progress;
use crate::sink::{ColumnData, ColumnType};
use crate::source::file::InputFile as Table;
use crate::source::recognise;

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
    let open = |job: &Job, infos| recognise::open_files(job, vec![Arc::new(Table::in_memory(MEMORY, batches)?)], infos);
    let mut indexed = Indexed::new(job, own, open, |_| Ok(false), Path::new("."), options, progress)?;
    let (files, input_bytes) = (std::mem::take(&mut indexed.input_files), indexed.input_bytes);
    // In memory rows are what a trainer sees.
    indexed.pipeline = indexed.pipeline.with_indexed_windows(false);
    let prepared = indexed.prepare(job, progress)?;
    let Prepared { modules, basis, .. } = &prepared;
    let schemas = prepared.schemas(job)?;
    let passes = Passes::new(prepared.work(progress), prepared.budget, Sizes::default())?.sort()?;
    let mut rehearsed = IndexMap::new();
    let surveys = passes.survey(basis.as_ref(), &mut rehearsed)?;
    let fresh = || Ok(Collected { modules: modules.iter().map(|_| Vec::new()).collect(), found: Found::default() });
    let collected = passes.run(Pass::Convert(&[]), &surveys, &mut rehearsed, "converting", fresh)?;

    let (mut out, mut records) = (IndexMap::new(), IndexMap::new());
    for ((module, schema), parts) in modules.iter().zip(schemas).zip(collected.modules) {
        let joined = Rows::joined(&schema.columns, parts)?;
        let column = |(name, ty): &(String, ColumnType)| ColumnRecord {
            name: name.clone(),
            dtype: ty.dtype_name().to_owned(),
            shape: ty.shape().to_vec(),
            ..ColumnRecord::default()
        };
        let record = ModuleRecord {
            folder: module.name(),
            rows: joined.rows as u64,
            columns: schema.columns.iter().map(column).collect(),
            ..ModuleRecord::default()
        };
        records.insert(module.name(), record);
        let names = schema.columns.into_iter().map(|(name, _)| name);
        let columns = names.zip(joined.columns).collect();
        out.insert(module.name(), ModuleColumns { rows: joined.rows, columns });
    }
    let manifest = manifest(job, &prepared, &collected.found, records, files);
    let report = report(job, &manifest, input_bytes, started.elapsed().as_secs_f64());
    let report = Report { output: String::new(), ..report };
    Ok(Compiled { modules: out, report })
}

/// Keeps what units bring, by module.
struct Collected {
    modules: Vec<Vec<Rows>>,
    found: Found,
}

impl Taker<Done> for Collected {
    fn take(&mut self, done: Done) -> Result<()> {
        self.found.merge(&done.found);
        for (module, rows, _) in done.rows {
            match rows {
                Brought::Rows(rows) => self.modules[module].push(rows),
                Brought::Parts(_) => return Err(Error::internal("shuffled rows in memory")),
            }
        }
        Ok(())
    }
}
