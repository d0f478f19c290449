//! What `make bench` compares gristmill with, out of the parquet crate. One command a run:
//!
//! ```text
//! peers copy IN OUT THREADS       decode everything and encode it again, with settings tuned for such data
//! peers compile IN JOB THREADS N  gristmill itself: the job over IN's rows in memory, N steps a batch; prints steps a second
//! peers pages IN OUT.. -- COLUMNS the floor: decompress these columns' pages of IN and compress the pages of OUT..
//! ```
//!
//! `copy` prints nothing: its time is the process's. `pages` prints the seconds of both halves and their sum, because
//! it has to decompress OUT's pages first, which is not part of the floor.

#![expect(clippy::print_stdout, reason = "a program's output")]

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use gristmill::job::Job;
use gristmill::progress::Silent;
use gristmill::run::{self, Options};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::basic::{Compression, ZstdLevel};
use parquet::column::page::PageReader;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::serialized_reader::SerializedPageReader;
use rayon::prelude::*;

/// Times that `compile` goes over its rows.
const EPOCHS: usize = 10;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    // `cargo bench` adds an option of its own.
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["copy", input, output, threads] => copy(Path::new(input), Path::new(output), threads.parse()?),
        ["compile", input, job, threads, steps] => {
            compile(Path::new(input), Path::new(job), threads.parse()?, steps.parse()?)
        }
        ["pages", input, rest @ ..] => {
            let split = rest.iter().position(|a| *a == "--").unwrap_or(rest.len());
            pages(input, &rest[..split], rest.get(split + 1..).unwrap_or_default())
        }
        // `cargo test --benches` runs this without arguments.
        _ => Ok(()),
    }
}

/// The settings of SPEED: no dictionaries for floats, no statistics, zstd 1.
fn properties(schema: &parquet::schema::types::SchemaDescriptor) -> Result<WriterProperties> {
    let mut props = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        .set_statistics_enabled(EnabledStatistics::None);
    for column in schema.columns() {
        use parquet::basic::Type::{DOUBLE, FLOAT};
        let floats = matches!(column.physical_type(), FLOAT | DOUBLE);
        props = props.set_column_dictionary_enabled(column.path().clone(), !floats);
    }
    Ok(props.build())
}

fn copy(input: &Path, output: &Path, threads: usize) -> Result<()> {
    let file = File::open(input)?;
    let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new())?;
    let schema = Arc::clone(metadata.schema());
    let props = properties(metadata.parquet_schema())?;
    let writer = ArrowWriter::try_new(File::create(output)?, Arc::clone(&schema), Some(props))?;
    let (mut writer, factory) = writer.into_serialized_writer()?;
    let groups = metadata.metadata().num_row_groups();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    for first in (0..groups).step_by(threads) {
        let now = first..groups.min(first + threads);
        let encoded: Vec<Vec<ArrowColumnChunk>> = pool.install(|| {
            now.into_par_iter().map(|group| encode(input, &metadata, group, &factory)).collect::<Result<_>>()
        })?;
        for chunks in encoded {
            let mut group = writer.next_row_group()?;
            for chunk in chunks {
                chunk.append_to_row_group(&mut group)?;
            }
            group.close()?;
        }
    }
    writer.close()?;
    Ok(())
}

/// Reads the rows first: what is timed goes from Arrow in memory to the train batch in memory, batch after batch, each
/// dropped when the next one is there. The first batches, which take their memory from the system, are not timed.
fn compile(input: &Path, job: &Path, threads: usize, at_once: usize) -> Result<()> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(input)?)?.with_batch_size(at_once).build()?;
    let batches = reader.collect::<std::result::Result<Vec<_>, _>>()?;
    let job = Job::load(job).map_err(|errors| errors[0].to_string())?;
    let options = Options { threads: Some(threads), ..Options::default() };
    let mut held = None;
    let mut compile = |batch: &RecordBatch| {
        let compiled = run::compile(&job, vec![batch.clone()], &options, &Silent).map_err(|e| e.to_string())?;
        assert!(compiled.modules.values().map(|m| m.rows).sum::<usize>() > 0, "no rows");
        held = Some(compiled);
        Ok::<_, String>(batch.num_rows())
    };
    batches.iter().take(3).try_for_each(|batch| compile(batch).map(drop))?;
    let started = Instant::now();
    let often = std::iter::repeat_n(&batches, EPOCHS).flatten();
    let steps: usize = often.map(compile).sum::<std::result::Result<_, _>>()?;
    let seconds = started.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a speed")]
    {
        println!("{:.1}", steps as f64 / seconds);
    }
    Ok(())
}

/// One row group, decoded and encoded again.
fn encode(
    input: &Path,
    metadata: &ArrowReaderMetadata,
    group: usize,
    factory: &ArrowRowGroupWriterFactory,
) -> Result<Vec<ArrowColumnChunk>> {
    let mut writers = factory.create_column_writers(group)?;
    let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(File::open(input)?, metadata.clone())
        .with_row_groups(vec![group])
        .with_batch_size(8192)
        .build()?;
    for batch in reader {
        let batch = batch?;
        let mut writers = writers.iter_mut();
        for (field, array) in batch.schema().fields().iter().zip(batch.columns()) {
            for leaf in compute_leaves(field, array)? {
                writers.next().ok_or("fewer columns than leaves")?.write(&leaf)?;
            }
        }
    }
    Ok(writers
        .into_iter()
        .map(parquet::arrow::arrow_writer::ArrowColumnWriter::close)
        .collect::<std::result::Result<_, _>>()?)
}

/// Visits the decompressed pages of the columns whose top-level name is in `columns` (of all, if that is empty).
fn each_page(path: &str, columns: &[&str], mut visit: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let file = Arc::new(File::open(path)?);
    let reader = SerializedFileReader::new(File::open(path)?)?;
    for group in reader.metadata().row_groups() {
        let rows = usize::try_from(group.num_rows())?;
        for chunk in group.columns() {
            let name = &chunk.column_path().parts()[0];
            if columns.is_empty() || columns.contains(&name.as_str()) {
                let mut pages = SerializedPageReader::new(Arc::clone(&file), chunk, rows, None)?;
                while let Some(page) = pages.get_next_page()? {
                    visit(page.buffer())?;
                }
            }
        }
    }
    Ok(())
}

fn pages(input: &str, outputs: &[&str], columns: &[&str]) -> Result<()> {
    let started = Instant::now();
    each_page(input, columns, |_| Ok(()))?;
    let decompress = started.elapsed();
    let mut compress = Duration::ZERO;
    let mut context = zstd::bulk::Compressor::new(1)?;
    let mut packed = Vec::new();
    for output in outputs {
        each_page(output, &[], |page| {
            let started = Instant::now();
            packed.clear();
            packed.reserve(zstd::zstd_safe::compress_bound(page.len()));
            context.compress_to_buffer(page, &mut packed)?;
            compress += started.elapsed();
            Ok(())
        })?;
    }
    println!(
        "{:.4} {:.4} {:.4}",
        decompress.as_secs_f64(),
        compress.as_secs_f64(),
        (decompress + compress).as_secs_f64()
    );
    Ok(())
}
