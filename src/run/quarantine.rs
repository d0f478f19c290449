//! What is left out, written aside: where each row came from and why, and the rows themselves as they were.
//!
//! ```text
//! quarantine/part-00000.parquet        file  row_group  row  eps_id  reason  kept_in  kept_row      one row an input row
//! quarantine/rows/part-00000.parquet   the columns of the first input file that has such rows, as recorded
//! ```
//!
//! The files under `rows/` have the schema of the recording, so what was repaired there can be converted like any input.
//! Rows of a damaged row group have no values to keep; files that cannot be opened are one line each.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use parquet::arrow::{ArrowSchemaConverter, ArrowWriter};
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use crate::error::{Error, Result};
use crate::manifest::ShardRecord;
use crate::sink::{OutputDir, file_digest};
use crate::source::faults::{Faults, is_of_data};
use crate::source::index::Span;
use crate::source::rows::{RowGroupRef, RowMap};

/// Rows of a batch.
const BATCH: usize = 8192;

/// One span of rows, and the fault that it is left out for.
type Reason = (Span, usize);

/// Writes what is left out. Nothing if nothing is.
pub(super) fn write(dir: &OutputDir, rows: &RowMap, faults: &Faults) -> Result<Vec<ShardRecord>> {
    if faults.is_empty() && rows.lost().is_empty() {
        return Ok(Vec::new());
    }
    let (folder, relative) = dir.quarantine_dir()?;
    let mut reasons: Vec<Reason> = Vec::new();
    for (i, fault) in faults.list().iter().enumerate() {
        reasons.extend(fault.rows.iter().map(|span| (*span, i)));
    }
    reasons.sort_by_key(|(span, i)| (span.first(), *i));
    let mut out = Vec::new();
    let mut list = List::create(&folder.join("part-00000.parquet"))?;
    // Reasons whose rows reach into the file at hand, and the first one behind it.
    let (mut here, mut next): (Vec<Reason>, usize) = (Vec::new(), 0);
    for own in rows.groups().chunk_by(|a, b| a.file == b.file) {
        let (begin, end) = (own[0].first_row, own[own.len() - 1].first_row + own[own.len() - 1].rows);
        here.retain(|(span, _)| span.end() > begin);
        let new = reasons[next..].iter().take_while(|(span, _)| span.first() < end);
        here.extend(new.copied().inspect(|_| next += 1));
        if here.is_empty() {
            continue;
        }
        let file = &rows.files()[own[0].file];
        let name = format!("rows/part-{:05}.parquet", out.len());
        let path = folder.join(&name);
        let kept_in = format!("{relative}/{name}");
        let storable = ArrowSchemaConverter::new().convert(&file.schema).is_ok();
        let mut kept: Option<ArrowWriter<File>> = None;
        let mut kept_rows = 0_u64;
        for &group in own {
            // One line for all of its rows: their number is what a damaged file says.
            if let Some(fault) = faults.lost(group) {
                list.push(&file.name, Some((group.row_group, None)), None, &told(&fault.error), None)?;
                continue;
            }
            let wanted = rows_of(&here, group);
            if wanted.is_empty() {
                continue;
            }
            // Rows of a damaged row group, and of types that Parquet has not, are told without their values.
            let values = match values(rows, group, &wanted) {
                Err(e) if !is_of_data(&e) => return Err(e),
                values => values.ok().filter(|_| storable),
            };
            if values.is_some() && kept.is_none() {
                kept = Some(writer(&path, &file.schema)?);
            }
            for (i, (row, fault)) in wanted.iter().enumerate() {
                let at = values.as_ref().map(|_| (kept_in.as_str(), kept_rows + i as u64));
                let fault = &faults.list()[*fault];
                let in_file = file.row_groups[group.row_group].first_row + (row - group.first_row);
                let id = fault.id.as_ref().map(ToString::to_string);
                list.push(&file.name, Some((group.row_group, Some(in_file))), id, &told(&fault.error), at)?;
            }
            if let (Some(batches), Some(kept)) = (values, &mut kept) {
                for batch in batches {
                    kept.write(&batch).map_err(|e| broken(&path, &e))?;
                }
                kept_rows += wanted.len() as u64;
            }
        }
        if let Some(kept) = kept {
            finish(kept, &path)?;
            let (bytes, digest) = file_digest(&path)?;
            out.push(ShardRecord { file: kept_in, rows: kept_rows, bytes, digest });
        }
    }
    for lost in rows.lost() {
        list.push(&lost.name, None, None, &told(&lost.error), None)?;
    }
    let path = folder.join("part-00000.parquet");
    let rows = list.finish(&path)?;
    let (bytes, digest) = file_digest(&path)?;
    out.insert(0, ShardRecord { file: format!("{relative}/part-00000.parquet"), rows, bytes, digest });
    Ok(out)
}

/// What is wrong, in one line.
fn told(error: &Error) -> String {
    match error.place().columns() {
        Some(column) => format!("{} ({column})", error.what()),
        None => error.what().to_owned(),
    }
}

/// The rows of a group that are left out, in order, each once, with the first fault that says why.
fn rows_of(reasons: &[Reason], group: RowGroupRef) -> Vec<(u64, usize)> {
    let end = group.first_row + group.rows;
    let mut out: Vec<(u64, usize)> = Vec::new();
    for (span, fault) in reasons {
        let own = span.within(group.first_row..end);
        out.extend((0..own.len()).map(|i| (own.row(i), *fault)));
    }
    out.sort_unstable();
    out.dedup_by_key(|(row, _)| *row);
    out
}

/// The rows as they were recorded.
fn values(rows: &RowMap, group: RowGroupRef, wanted: &[(u64, usize)]) -> Result<Vec<RecordBatch>> {
    let file = &rows.files()[group.file];
    let columns: Vec<String> = file.schema.fields().iter().map(|f| f.name().clone()).collect();
    let (mut out, mut row) = (Vec::new(), group.first_row);
    for batch in file.read(group.row_group, &columns, BATCH)? {
        let batch = batch?;
        let end = row + batch.num_rows() as u64;
        let mask: BooleanArray = (row..end).map(|r| Some(wanted.binary_search_by_key(&r, |w| w.0).is_ok())).collect();
        if mask.true_count() > 0 {
            let kept = filter_record_batch(&batch, &mask);
            out.push(file.as_recorded(&kept.map_err(|e| Error::data(format!("rows cannot be kept: {e}")))?)?);
        }
        row = end;
    }
    Ok(out)
}

fn writer(path: &Path, schema: &SchemaRef) -> Result<ArrowWriter<File>> {
    let zstd = ZstdLevel::try_new(1).map_err(|e| broken(path, &e))?;
    let properties = WriterProperties::builder()
        .set_created_by(concat!("gristmill ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(zstd))
        .build();
    let file = File::create(path)
        .map_err(|e| Error::environment(format!("cannot create: {e}")).file(path.display().to_string()))?;
    ArrowWriter::try_new(file, Arc::clone(schema), Some(properties)).map_err(|e| broken(path, &e))
}

fn finish(writer: ArrowWriter<File>, path: &Path) -> Result<()> {
    let file = writer.into_inner().map_err(|e| broken(path, &e))?;
    file.sync_all().map_err(|e| Error::environment(format!("cannot write: {e}")).file(path.display().to_string()))
}

fn broken(path: &Path, e: &parquet::errors::ParquetError) -> Error {
    Error::environment(format!("cannot write what is left out: {e}")).file(path.display().to_string())
}

/// The list of rows, a batch at a time.
struct List {
    writer: ArrowWriter<File>,
    schema: SchemaRef,
    path: std::path::PathBuf,
    file: Vec<String>,
    row_group: Vec<Option<i64>>,
    row: Vec<Option<i64>>,
    eps_id: Vec<Option<String>>,
    reason: Vec<String>,
    kept_in: Vec<Option<String>>,
    kept_row: Vec<Option<i64>>,
    rows: u64,
}

impl List {
    fn create(path: &Path) -> Result<Self> {
        let text = |name: &str, nullable| Field::new(name, DataType::Utf8, nullable);
        let number = |name: &str| Field::new(name, DataType::Int64, true);
        let schema = Arc::new(Schema::new(vec![
            text("file", false),
            number("row_group"),
            number("row"),
            text("eps_id", true),
            text("reason", false),
            text("kept_in", true),
            number("kept_row"),
        ]));
        let writer = writer(path, &schema)?;
        Ok(Self {
            writer,
            schema,
            path: path.to_owned(),
            file: Vec::new(),
            row_group: Vec::new(),
            row: Vec::new(),
            eps_id: Vec::new(),
            reason: Vec::new(),
            kept_in: Vec::new(),
            kept_row: Vec::new(),
            rows: 0,
        })
    }

    fn push(
        &mut self,
        file: &str,
        at: Option<(usize, Option<u64>)>,
        id: Option<String>,
        reason: &str,
        kept: Option<(&str, u64)>,
    ) -> Result<()> {
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.file.push(file.to_owned());
        self.row_group.push(at.map(|a| number(a.0 as u64)));
        self.row.push(at.and_then(|a| a.1).map(number));
        self.eps_id.push(id);
        self.reason.push(reason.to_owned());
        self.kept_in.push(kept.map(|k| k.0.to_owned()));
        self.kept_row.push(kept.map(|k| number(k.1)));
        self.rows += 1;
        if self.file.len() == BATCH { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from(std::mem::take(&mut self.file))),
            Arc::new(Int64Array::from(std::mem::take(&mut self.row_group))),
            Arc::new(Int64Array::from(std::mem::take(&mut self.row))),
            Arc::new(StringArray::from(std::mem::take(&mut self.eps_id))),
            Arc::new(StringArray::from(std::mem::take(&mut self.reason))),
            Arc::new(StringArray::from(std::mem::take(&mut self.kept_in))),
            Arc::new(Int64Array::from(std::mem::take(&mut self.kept_row))),
        ];
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)
            .map_err(|e| Error::internal(format!("the list of what is left out: {e}")))?;
        self.writer.write(&batch).map_err(|e| broken(&self.path, &e))
    }

    fn finish(mut self, path: &Path) -> Result<u64> {
        self.flush()?;
        finish(self.writer, path)?;
        Ok(self.rows)
    }
}
