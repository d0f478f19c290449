//! Reading a written data set: its manifest, its modules, the row groups of its shards.
//!
//! ```text
//! Dataset::open(dir)          manifest.json, and nothing in it that no gristmill writes
//!   modules()                 one a module (of a part, where the data set is split)
//!     shard(i)                one file, with the columns that the manifest promises
//!       row_group(group)      its rows, column by column
//! ```
//!
//! A manifest is input like any other: it may be damaged, or written to do harm. So its paths are held to lie inside the
//! data set, its shapes to what a file can hold, and files to the columns and the sizes of row groups that it promises,
//! before a row is read.

mod check;
mod ids;
mod read;
mod windows;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use check::{BadPath, check_path};
pub(crate) use ids::Ids;
pub(crate) use read::OpenError;
pub use read::Shard;
pub use windows::{LaidOut, Prepare, Steps};

use crate::column::{AGENT_ID, EPS_ID, T};
use crate::error::{Error, Result};
use crate::indexed::{Axis, table_name};
use crate::job::TensorStorage;
use crate::manifest::{Manifest, ModuleRecord, TableRecord};
use crate::regular;
use crate::sink::{ColumnType, MANIFEST, Near, ShardSchema, UNFINISHED, near};
use crate::source::file::NO_MANIFEST;
use crate::tensor::{DType, TensorType};

/// What to do about a directory that a run has begun to fill.
pub(crate) const NOT_FINISHED: &str =
    "the run that writes here has not finished: `gristmill convert JOB --resume` goes on";
/// A manifest larger than this is none: a shard takes about 200 bytes of it.
const LARGEST_MANIFEST: u64 = 1 << 30;

/// A written data set.
#[derive(Debug)]
pub struct Dataset {
    root: PathBuf,
    manifest: Manifest,
    modules: Vec<Module>,
}

/// The train batch of one module, or of one part of it.
#[derive(Debug, Clone)]
pub struct Module {
    name: String,
    root: PathBuf,
    record: ModuleRecord,
    schema: Arc<ShardSchema>,
    tables: Vec<Table>,
    /// Positions of the columns.
    places: HashMap<String, usize>,
}

/// Steps of a module that stand once, and how its windows lay them out; see [`crate::indexed`].
#[derive(Debug, Clone)]
pub struct Table {
    /// Its name in the manifest.
    pub name: &'static str,
    /// Places of a window.
    pub places: usize,
    /// The axis along which steps are laid.
    pub axis: Axis,
    /// Windows in a row.
    pub prefix: Vec<usize>,
    /// Its columns and shards: a row is a step.
    pub steps: Module,
}

impl Dataset {
    /// Opens the data set in `directory`.
    ///
    /// # Errors
    /// Of kind `Usage` if this is no data set, or one of another format version; of kind `Data` if its manifest says
    /// what no gristmill writes.
    pub fn open(directory: &Path) -> Result<Self> {
        let path = directory.join(MANIFEST);
        let meta = std::fs::symlink_metadata(directory).map_err(|e| Error::io("find the data set", directory, &e))?;
        if !meta.is_dir() && !directory.is_dir() {
            let found = std::fs::metadata(directory).map_or("a link to nothing", |meta| regular::kind(&meta));
            return Err(Error::usage(format!("found {found}, expected the directory of a data set"))
                .file(directory.display().to_string())
                .hint("`gristmill inspect` looks into single files"));
        }
        match std::fs::metadata(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let error = Error::usage("found no manifest.json").file(directory.display().to_string());
                let error = error.io_kind_of(e.kind());
                if directory.join(UNFINISHED).exists() {
                    return Err(error.hint(NOT_FINISHED));
                }
                return Err(error.hint(match near(directory) {
                    Some(near) => where_it_is(&near),
                    None => "a directory without manifest.json is no data set of gristmill's; `gristmill inspect` looks into \
                             recordings"
                        .to_owned(),
                }));
            }
            Ok(meta) if !meta.is_file() => {
                let error = Error::usage(format!("found {}, expected a manifest", regular::kind(&meta)));
                return Err(error.file(path.display().to_string()));
            }
            Ok(meta) if meta.len() > LARGEST_MANIFEST => {
                let error = Error::usage(format!("found {} bytes, expected a manifest of at most 1 GiB", meta.len()));
                return Err(error.file(path.display().to_string()));
            }
            _ => {}
        }
        let manifest = Manifest::load(directory)?;
        let place = |e: Error| e.file(path.display().to_string());
        check::check(&manifest).map_err(place)?;
        let tensors = match manifest.job.pointer("/output/tensors") {
            None => TensorStorage::default(),
            Some(found) => serde_json::from_value(found.clone())
                .map_err(|e| place(Error::data(format!("found {found}: {e}")).job_key("job.output.tensors")))?,
        };
        let mut modules = Vec::with_capacity(manifest.modules.len());
        for (name, record) in &manifest.modules {
            let module = Module::of(name, directory, record, tensors);
            modules.push(module.map_err(|e| place(under(e, &format!("modules.{name}"))))?);
        }
        Ok(Self { root: directory.to_owned(), manifest, modules })
    }

    /// Where it is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Its description.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Its modules, in the order of the manifest.
    #[must_use]
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// The module of this name (`train/default_policy` in a data set that is split).
    #[must_use]
    pub fn module(&self, name: &str) -> Option<&Module> {
        self.modules.get(self.manifest.modules.get_index_of(name)?)
    }
}

impl Module {
    fn of(name: &str, root: &Path, record: &ModuleRecord, tensors: TensorStorage) -> Result<Self> {
        let schema = Arc::new(schema_of(record, tensors)?);
        let mut tables = Vec::with_capacity(record.tables.len());
        for (table, record) in &record.tables {
            let inside = |e: Error| under(e, &format!("tables.{table}"));
            let known =
                table_name(table).ok_or_else(|| inside(Error::data("found a table that no gristmill writes")))?;
            let steps = Self::of(&format!("{name}/{table}"), root, &record.steps, tensors).map_err(inside)?;
            let TableRecord { places, axis, prefix, .. } = record.clone();
            tables.push(Table { name: known, places, axis, prefix, steps });
        }
        let places = schema.columns.iter().enumerate().map(|(i, (name, _))| (name.clone(), i)).collect();
        let (name, root, record) = (name.to_owned(), root.to_owned(), record.clone());
        let module = Self { name, root, record, schema, tables, places };
        check::windows(&module)?;
        Ok(module)
    }

    /// Its tables of steps that stand once, in the order of the manifest.
    #[must_use]
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// Its name in the manifest.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the manifest says of it.
    #[must_use]
    pub fn record(&self) -> &ModuleRecord {
        &self.record
    }

    /// Its columns. Integers that only tell where a row came from (`t`, ids) are tensors like all others here; text is
    /// [`ColumnType::Utf8`].
    #[must_use]
    pub fn schema(&self) -> &Arc<ShardSchema> {
        &self.schema
    }

    /// Position of a column.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    /// The module's shard number `i`.
    ///
    /// # Errors
    /// If the file is missing, no regular file inside the data set, damaged, or has other columns.
    pub fn shard(&self, i: usize) -> Result<Shard> {
        self.open_shard(i).map_err(OpenError::into_error)
    }

    /// [`Self::shard`], with what is wrong by its kind.
    pub(crate) fn open_shard(&self, i: usize) -> Result<Shard, OpenError> {
        let record = self.record.shards.get(i).ok_or_else(|| Error::internal(format!("there is no shard {i}")))?;
        Shard::open(&self.root, &record.file, &self.schema)
    }
}

/// Where the manifest is that a directory lacks.
fn where_it_is(near: &Near) -> String {
    match near {
        Near::Inside { root, modules } => {
            let more = if modules.len() > 1 { ", .." } else { "" };
            format!(
                "this is a folder of the data set {}: open that, module {:?}{more}",
                root.display(),
                modules.first().map_or("", String::as_str)
            )
        }
        Near::Holds(sets) => match sets.as_slice() {
            [only] => format!("the data set is in {}", only.display()),
            sets => {
                let names: Vec<String> = sets.iter().map(|set| set.display().to_string()).collect();
                format!("data sets are in {}: name one of them", names.join(", "))
            }
        },
        Near::Shard(shard) => format!("{shard} is called as a data set's shards are: {NO_MANIFEST}"),
    }
}

/// The error with `key` in front of its place in the manifest.
fn under(error: Error, key: &str) -> Error {
    if error.place().job_key.is_some() { error.under_job_key(key) } else { error.job_key(key) }
}

/// The columns that the manifest promises. Those that tell whose row it is have one value a row, of a type that can.
fn schema_of(record: &ModuleRecord, tensors: TensorStorage) -> Result<ShardSchema> {
    let mut columns = Vec::with_capacity(record.columns.len());
    for column in &record.columns {
        let ty = match (column.dtype.as_str(), DType::from_name(&column.dtype)) {
            ("utf8", _) if column.shape.is_empty() => ColumnType::Utf8,
            (_, Some(dtype)) => ColumnType::Tensor(TensorType::new(dtype, column.shape.clone())),
            _ => {
                let what = format!(
                    "found the dtype {:?} of shape {:?}, expected NumPy's name of one, or `utf8`",
                    column.dtype, column.shape
                );
                return Err(Error::data(what).column(&column.name));
            }
        };
        let int = ty == ColumnType::Tensor(DType::Int64.scalar());
        let expected = match column.name.as_str() {
            EPS_ID | AGENT_ID if ty != ColumnType::Utf8 && !int => Some("utf8 or int64"),
            T if !int => Some("int64"),
            _ => None,
        };
        if let Some(expected) = expected {
            return Err(Error::data(format!("found {ty}, expected {expected}")).column(&column.name));
        }
        columns.push((column.name.clone(), ty));
    }
    let schema = ShardSchema::new(columns).with_tensors(tensors);
    schema.check().map_err(|e| {
        let column = e.place().column.clone().unwrap_or_default();
        Error::data(e.what().to_owned()).column(column)
    })?;
    Ok(schema)
}
