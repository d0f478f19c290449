//! A whole conversion: index the input, compile it unit by unit, write the shards, and the manifest last.

mod budget;
mod check;
pub(crate) mod choose;
mod compile;
mod cutter;
mod ending;
mod exchange;
mod output;
pub(crate) mod overview;
pub mod part;
mod pass;
mod passes;
mod prepare;
mod provenance;
mod quarantine;
mod reader;
mod record;
mod schedule;
mod shuffle;
mod slicing;
mod split;
mod tables;
mod units;
pub(crate) mod unused;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use indexmap::IndexMap;

pub use budget::SMALLEST as SMALLEST_MEMORY_LIMIT;
pub use compile::{Compiled, MEMORY, ModuleColumns, compile, compile_with};
use ending::Ending;
use output::{Output, Outputs, Sizes, TableStream};
use pass::{Found, Pass, Written};
use passes::Passes;
use prepare::Indexed;
pub(crate) use prepare::plan_modules;
pub use record::{ModuleReport, Report};
use record::{batch_columns, report};
use shuffle::Shuffle;
use tables::Growing;

use crate::batch::ColumnLayout;
use crate::connector::Connector;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::manifest::{InputFile, Manifest, ModuleRecord};
use crate::pipeline::{ModulePlan, Pipeline};
use crate::progress::Progress;
use crate::sink::{Durable, Existing, Intent, IntentFile, OutputDir};
use crate::source::{self, Source, recognise};
use crate::tensor::Buffers;

/// What changes how a run goes, and not a byte of what it writes.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Worker threads at most; all cores when not set. A small memory limit leaves fewer.
    pub threads: Option<usize>,
    /// Bytes of memory to stay under, at least [`SMALLEST_MEMORY_LIMIT`]; a quarter of the machine's (or of what its
    /// control group allows) when not set. What does not fit goes to `scratch`.
    pub memory_limit: Option<u64>,
    /// An existing folder for what does not fit into memory. When not set, the output directory, or the nearest folder
    /// above it that exists: where shards fit, and never a file system that is memory itself, as `/tmp` may be.
    pub scratch: Option<PathBuf>,
    /// What to do with what is in the output directory.
    pub existing: Existing,
    /// Memory for windows that [`compile`] lays out. Whoever compiles again and again keeps a handle and hands it over
    /// each time: what is dropped of one batch is filled again for a later one.
    pub buffers: Buffers,
}

/// Converts what the job says to where it says.
///
/// # Errors
/// The first thing that went wrong, in the order of the data. Nothing that looks finished is left behind.
pub fn convert(job: &Job, options: &Options, progress: &dyn Progress) -> Result<Report> {
    convert_with(job, Vec::new(), options, progress)
}

/// The same with connector pieces of the caller's own, in front of the job's.
///
/// # Errors
/// See [`convert`].
pub fn convert_with(
    job: &Job,
    own: Vec<Box<dyn Connector>>,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report> {
    let started = Instant::now();
    let mut indexed = index(job, own, options, progress)?;
    let input_bytes = indexed.input_bytes;
    let input_files = std::mem::take(&mut indexed.input_files);
    if options.existing == Existing::Resume
        && let Some(report) = finished(job, &indexed.pipeline, &input_files, input_bytes, started)?
    {
        return Ok(report);
    }
    let prepared = indexed.prepare(job, progress)?;
    prepared.check_folders()?;
    let (source, pipeline, modules) = (&*prepared.source, &prepared.pipeline, &prepared.modules);

    let schemas = prepared.schemas(job)?;
    let sizes = Sizes::of(&schemas, &job.output);
    let passes = Passes::new(prepared.work(progress), prepared.budget, sizes)?;

    let shuffles: Vec<Shuffle> = match &job.output.shuffle {
        Some(shuffle) => passes.shuffles(shuffle.seed),
        None => Vec::new(),
    };

    let room = passes.room_of(modules.len());

    // As late as can be: whatever the first pass refuses leaves an older data set as it was.
    let mut dir = OutputDir::prepare(&job.output_path(), options.existing)?;
    let (journal, kept) = dir.journal(&intent(job, pipeline, &input_files))?;
    let journal = Arc::new(journal);
    let (storage, in_turn) = (passes.storage.clone(), passes.together());
    let outputs = || {
        let mut streams = Vec::with_capacity(schemas.len());
        let mut tables = Vec::with_capacity(modules.len());
        let mut steps = Vec::new();
        let output = |stream: usize, folder, columns: &[ColumnLayout]| {
            Output::new(stream, folder, schemas[stream].clone(), columns, &job.output, &kept)
        };
        for (i, (module, stored)) in modules.iter().zip(&storage).enumerate() {
            let folder = dir.module_dir(module.part.as_deref(), &module.id)?;
            let mut own = Vec::new();
            for table in &stored.tables {
                let stream = modules.len() + steps.len();
                steps.push(output(stream, dir.table_dir(&folder, table.name)?, &table.columns)?);
                own.push(TableStream { table: Growing::new(table.clone()), stream });
            }
            tables.push(own);
            let rows = output(i, folder, &stored.rows)?;
            streams.push(match shuffles.get(i) {
                Some(shuffle) => rows.shuffled(*shuffle, room.clone()),
                None => rows,
            });
        }
        streams.append(&mut steps);
        let durable = if in_turn { Durable::in_turn } else { Durable::new }(Arc::clone(&journal));
        Ok::<_, Error>(Outputs::new(streams, tables, prepared.provenance.columns().len(), durable))
    };
    let passes = passes.sort()?;
    let mut rehearsed = IndexMap::new();
    let surveys = passes.survey(prepared.basis.as_ref(), &mut rehearsed)?;
    let fresh = || {
        // Shards of a start that did not come through.
        dir.clear(&kept)?;
        Ok(Written { outputs: outputs()?, found: Found::default() })
    };
    let Written { outputs, found } =
        passes.run(Pass::Convert(&shuffles), &surveys, &mut rehearsed, "converting", fresh)?;

    // The digests in the manifest are those of what was read.
    source.rows().files().iter().try_for_each(|file| file.check_unchanged())?;

    let mut records: IndexMap<String, ModuleRecord> =
        modules.iter().map(ModulePlan::name).zip(outputs.finish()?).collect();
    for (record, module) in records.values_mut().zip(modules) {
        record.batch = batch_columns(&module.layout.columns);
    }
    Ending {
        job,
        prepared: &prepared,
        surveys: &surveys,
        found: &found,
        records,
        input_files,
        input_bytes,
        started,
        threads: passes.threads(),
        notes: vec![
            ("scratch_bytes".to_owned(), passes.exchanged.into()),
            ("rehearsals".to_owned(), rehearsed.len().into()),
            ("slices".to_owned(), passes.slices().into()),
        ],
    }
    .write(dir)
}

/// What a run is going to write, for its journal.
fn intent(job: &Job, pipeline: &Pipeline, inputs: &[InputFile]) -> Intent {
    let inputs = inputs.iter().map(|f| IntentFile { name: f.name.clone(), bytes: f.bytes, digest: f.digest.clone() });
    Intent::new(job.to_portable_json(), pipeline.described(), inputs.collect())
}

/// The first pass of a run that writes files, behind a look at where they go.
fn index(job: &Job, own: Vec<Box<dyn Connector>>, options: &Options, progress: &dyn Progress) -> Result<Indexed> {
    let output = job.output_path();
    let first_look = |source: &dyn Source| {
        keep_input(&output, source.rows().files())?;
        OutputDir::check(&output, options.existing)?;
        Ok(true)
    };
    Indexed::new(job, own, recognise::open_with, first_look, &output, options, progress)
}

/// The report of a data set that is finished already: a run that was stopped behind its last byte has nothing to go on with.
///
/// # Errors
/// If the data set is another job's or another input's.
fn finished(
    job: &Job,
    pipeline: &Pipeline,
    inputs: &[InputFile],
    input_bytes: u64,
    started: Instant,
) -> Result<Option<Report>> {
    let path = job.output_path();
    if OutputDir::is_unfinished(&path)? || !path.join(crate::sink::MANIFEST).exists() {
        return Ok(None);
    }
    let manifest = Manifest::load(&path)?;
    let same = manifest.job == job.to_portable_json()
        && manifest.pipeline == pipeline.described()
        && manifest.input.files == inputs
        && manifest.gristmill == env!("CARGO_PKG_VERSION");
    if !same {
        return Err(Error::usage(
            "found a finished data set of another job, input or version, expected an unfinished one",
        )
        .file(path.display().to_string())
        .hint("--overwrite replaces it; or choose another --output"));
    }
    Ok(Some(report(job, &manifest, input_bytes, started.elapsed().as_secs_f64())))
}

/// Refuses to write to where the input is: replacing a data set that is being read would lose both.
fn keep_input(output: &Path, files: &[Arc<source::file::InputFile>]) -> Result<()> {
    // What does not exist yet holds nothing.
    let Ok(output_dir) = std::fs::canonicalize(output) else { return Ok(()) };
    let inside = |f: &&Arc<source::file::InputFile>| f.path.canonicalize().is_ok_and(|p| p.starts_with(&output_dir));
    match files.iter().find(inside) {
        Some(file) => {
            Err(Error::usage(format!("found the input file inside the output directory {}", output.display()))
                .file(file.name.clone())
                .hint("choose an --output beside the input, or an input without it"))
        }
        None => Ok(()),
    }
}
