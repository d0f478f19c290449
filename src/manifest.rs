//! `manifest.json`: what a data set holds and how it came to be; and `run.json`: how long that took.
//!
//! The manifest is a function of the job and the input: no time, no machine, no order that a hash chose. So two runs of
//! a job give the same bytes, and `diff` of two manifests tells what differs.

use std::io::{ErrorKind, Read as _};
use std::path::Path;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::indexed::Axis;
use crate::pipeline::ConnectorStatistics;
use crate::regular;
use crate::sink::{MANIFEST, combine};
use crate::stats::Statistics;

/// Version of the manifest's and the shards' format. A change that an old reader would misread raises it.
pub const FORMAT_VERSION: u32 = 1;

/// A data set of train batches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Manifest {
    /// Version of this format.
    pub format_version: u32,
    /// Version of gristmill that wrote it.
    pub gristmill: String,
    /// The job as resolved, all defaults filled in.
    pub job: Value,
    /// The connector pieces in the order in which they ran, each with all its options.
    #[serde(default)]
    pub pipeline: Vec<Value>,
    /// What pieces that look at the whole data set learned of it, such as means and standard deviations, for who has to
    /// do the same to what is observed later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connector_statistics: Vec<ConnectorStatistics>,
    /// What was read.
    pub input: InputRecord,
    /// Episodes, steps and rows on their way.
    pub counts: Counts,
    /// Rows that each repair of a known RLlib defect touched, by the repair's name.
    #[serde(default)]
    pub repairs: IndexMap<String, u64>,
    /// What was wrong with the input and did not stop the run.
    #[serde(default)]
    pub problems: Vec<Problem>,
    /// What a reader of the report should know: how columns were unified, what the layout was recognised by.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What was written, by module id.
    pub modules: IndexMap<String, ModuleRecord>,
    /// Files that hold what was left out (`on_bad_episode = "quarantine"`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantine: Vec<ShardRecord>,
    /// Digest of all rows of all modules. It does not depend on how they are cut into files or compressed.
    pub content_digest: String,
}

/// What was read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InputRecord {
    /// The layout that was recognised, or that the job named.
    pub layout: String,
    /// The files, in the order in which they were read.
    pub files: Vec<InputFile>,
}

/// One input file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InputFile {
    /// Its path as the job has it, with `/`; never a path of the machine that ran it.
    pub name: String,
    /// Size.
    pub bytes: u64,
    /// Digest of its bytes.
    pub digest: String,
    /// Rows.
    pub rows: u64,
}

/// Episodes, steps and rows on their way from the input to the shards. They add up:
///
/// ```text
/// steps_in    = steps_out + duplicate_steps + unfinished_dropped_steps + filtered_steps + bad_steps
/// episodes_in = episodes_out + empty_episodes + duplicate_episodes + unfinished_dropped + filtered_out + bad_episodes
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Counts {
    /// Episodes found (of single agents: an episode of three agents counts three times).
    pub episodes_in: u64,
    /// Different episodes among them: an episode of three agents, or one that was recorded in chunks, counts once.
    #[serde(default)]
    pub episode_ids: u64,
    /// Steps found.
    pub steps_in: u64,
    /// Episodes that yielded rows.
    pub episodes_out: u64,
    /// Real steps in the shards; padding does not count.
    pub steps_out: u64,
    /// Rows of all shards: steps, or sequences of a stateful module.
    pub rows_out: u64,
    /// Episodes or chunks that were recorded twice and dropped.
    pub duplicates_dropped: u64,
    /// Rows whose `new_obs` is not the next row's `obs`.
    pub discontinuities: u64,
    /// Episodes whose last row is neither terminated nor truncated.
    pub unfinished: u64,
    /// Malformed episodes that were left out.
    pub bad_episodes: u64,
    /// Their steps.
    pub bad_steps: u64,
    /// Rows of the input that belong to no step counted above because they could not even be told apart.
    pub bad_rows: u64,
    /// Input files that could not be read and were left out.
    pub bad_files: u64,
    /// Episodes that the job's filter left out.
    pub filtered_out: u64,
    /// Their steps.
    pub filtered_steps: u64,
    /// Steps that were recorded twice and dropped.
    pub duplicate_steps: u64,
    /// Episodes, counted in `episodes_in`, of which nothing is left because all of it was recorded twice.
    pub duplicate_episodes: u64,
    /// Unfinished episodes that the job drops.
    pub unfinished_dropped: u64,
    /// Their steps.
    pub unfinished_dropped_steps: u64,
    /// Episodes without a step, which yield no row.
    pub empty_episodes: u64,
    /// RLlib's metric of this name: steps that went into the learner connector pipeline.
    pub learner_connector_sum_episodes_length_in: u64,
    /// RLlib's metric of this name: steps that came out of it, those that a connector added included.
    pub learner_connector_sum_episodes_length_out: u64,
}

/// Something wrong with the input that did not stop the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// What was found and expected.
    pub what: String,
    /// How often.
    pub count: u64,
    /// Where it was found first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
}

/// The train batch of one module.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModuleRecord {
    /// The folder of its shards, relative to the manifest. The module id, percent-encoded where it is no file name.
    pub folder: String,
    /// Rows of all its shards.
    pub rows: u64,
    /// Its columns, in the order of the files.
    pub columns: Vec<ColumnRecord>,
    /// Its shards, in the order of the rows.
    pub shards: Vec<ShardRecord>,
    /// Digest of all its rows, and of its tables.
    pub digest: String,
    /// What a trainer sees, in order, where some of it is stored as windows over tables; else the columns are it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub batch: Vec<BatchColumn>,
    /// Steps that stand once, by the name of the table (`output.windows = "indexed"`).
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub tables: IndexMap<String, TableRecord>,
}

impl ModuleRecord {
    /// What people are told of its columns, by name: those that are stored, then those that are laid out from a table.
    #[must_use]
    pub fn described(&self) -> Vec<(String, String)> {
        let ty = |dtype: &str, shape: &[usize]| match shape {
            [] => dtype.to_owned(),
            shape => format!("{dtype}{shape:?}"),
        };
        let stored = self.columns.iter().map(|c| (c.name.clone(), ty(&c.dtype, &c.shape)));
        let windows = self.batch.iter().filter_map(|c| {
            let table = c.table.as_ref()?;
            Some((c.name.clone(), format!("{}, windows over {table}", ty(&c.dtype, &c.shape))))
        });
        stored.chain(windows).collect()
    }

    /// Its shards: of its rows, then of its tables.
    pub fn files(&self) -> impl Iterator<Item = &ShardRecord> {
        self.shards.iter().chain(self.tables.values().flat_map(|t| &t.steps.shards))
    }

    /// The digest of its columns and tables, where `columns` are the columns' names and digests.
    #[must_use]
    pub fn combined<'a>(&self, columns: impl Iterator<Item = (&'a str, &'a str)>) -> String {
        // How windows are laid out is part of what a trainer sees.
        let table = |(name, t): (&String, &TableRecord)| format!("{name}: {} {:?} {:?}", t.places, t.axis, t.prefix);
        let tables: Vec<String> = self.tables.iter().map(table).collect();
        let digests = self.tables.values().map(|t| t.steps.digest.as_str());
        let mut parts: Vec<(&str, &str)> = columns.collect();
        parts.extend(tables.iter().map(String::as_str).zip(digests));
        combine(parts)
    }
}

/// One column as a trainer sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BatchColumn {
    /// Its name.
    pub name: String,
    /// `NumPy`'s name of its dtype.
    pub dtype: String,
    /// Shape of one row, laid out.
    pub shape: Vec<usize>,
    /// The table whose column of this name its windows are over; none if it is a column of the rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
}

/// Steps that stand once. The rows' columns `<table>_offset`, `<table>_length` and `<table>_pad` say which of them a
/// window holds and from which place on; all other places are zeros.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TableRecord {
    /// Places of a window.
    pub places: usize,
    /// The axis along which steps are laid.
    pub axis: Axis,
    /// Windows in a row: `[]` for one, `[T]` for one a step of a sequence.
    pub prefix: Vec<usize>,
    /// Columns and shards: a row is a step.
    pub steps: ModuleRecord,
}

/// One column of a module.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ColumnRecord {
    /// Its name.
    pub name: String,
    /// `NumPy`'s name of its dtype, or `utf8`.
    pub dtype: String,
    /// Shape of one row.
    pub shape: Vec<usize>,
    /// Digest of its rows.
    pub digest: String,
    /// Statistics over real steps. Columns that only tell where a row came from have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<Statistics>,
}

/// One shard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShardRecord {
    /// Its path, relative to the manifest, with `/`.
    pub file: String,
    /// Rows.
    pub rows: u64,
    /// Size.
    pub bytes: u64,
    /// Digest of its bytes.
    pub digest: String,
}

/// `run.json`: what differs from one run of a job to the next.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunRecord {
    /// Version of gristmill.
    pub gristmill: String,
    /// From the start to the manifest.
    pub wall_seconds: f64,
    /// Real steps written per second.
    pub steps_per_second: f64,
    /// Input bytes read per second.
    pub bytes_per_second: f64,
    /// Bytes of the input files.
    pub input_bytes: u64,
    /// Bytes of the shards.
    pub output_bytes: u64,
    /// Threads that worked.
    pub threads: usize,
    /// More, by name.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub extra: IndexMap<String, Value>,
}

impl Manifest {
    /// Reads the manifest of the data set in `directory`.
    pub fn load(directory: &Path) -> Result<Self> {
        let path = directory.join(MANIFEST);
        let (mut file, _) = regular::open("read the manifest", &path).map_err(|error| match error.io_kind() {
            Some(ErrorKind::NotFound) => {
                error.hint("a directory without manifest.json is no data set, or an unfinished one")
            }
            _ => error,
        })?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(|e| Error::io("read the manifest", &path, &e))?;
        Self::from_json(&text).map_err(|e| e.file(path.display().to_string()))
    }

    /// A manifest from JSON.
    pub fn from_json(text: &[u8]) -> Result<Self> {
        // The version alone first: a later format may differ in everything else.
        #[derive(Deserialize)]
        struct Version {
            format_version: u32,
        }
        let wrong = |e: serde_json::Error| Error::usage(format!("this is no manifest of gristmill's: {e}"));
        let Version { format_version } = serde_json::from_slice(text).map_err(wrong)?;
        if format_version != FORMAT_VERSION {
            return Err(Error::usage(format!("found format version {format_version}, expected {FORMAT_VERSION}"))
                .hint("read it with the version of gristmill that wrote it"));
        }
        serde_json::from_slice(text).map_err(wrong)
    }

    /// The manifest as the file has it: indented, in the order of declaration.
    pub fn to_json(&self) -> Result<String> {
        let text = serde_json::to_string_pretty(self).map_err(|e| Error::internal(format!("manifest: {e}")))?;
        Ok(text + "\n")
    }
}

/// The JSON Schema of `manifest.json`.
#[must_use]
pub fn schema() -> Value {
    schemars::schema_for!(Manifest).into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            format_version: FORMAT_VERSION,
            gristmill: "0.1.0".into(),
            job: json!({ "version": 1, "z": 0.1, "a": 1 }),
            pipeline: vec![json!({ "type": "BatchIndividualItems", "multi_agent": false })],
            connector_statistics: Vec::new(),
            input: InputRecord {
                layout: "steps".into(),
                files: vec![InputFile { name: "in/a.parquet".into(), bytes: 1, digest: "blake3:00".into(), rows: 2 }],
            },
            counts: Counts { episodes_in: 1, ..Counts::default() },
            repairs: IndexMap::from([("z".to_owned(), 1), ("a".to_owned(), 2)]),
            problems: vec![Problem { what: "odd".into(), count: 3, first: None }],
            notes: vec![],
            modules: IndexMap::from([(
                "p/0".to_owned(),
                ModuleRecord {
                    folder: "p%2F0".into(),
                    rows: 2,
                    columns: vec![ColumnRecord {
                        name: "obs".into(),
                        dtype: "float32".into(),
                        shape: vec![4],
                        digest: "blake3:01".into(),
                        statistics: Some(Statistics {
                            count: 8,
                            nan_count: 0,
                            inf_count: 0,
                            min: serde_json::Number::from_f64(-0.1),
                            max: serde_json::Number::from_i128(i128::from(u64::MAX)),
                            mean: Some(1e-300),
                            std: None,
                        }),
                    }],
                    shards: vec![ShardRecord {
                        file: "p%2F0/part-00000.parquet".into(),
                        rows: 2,
                        ..Default::default()
                    }],
                    digest: "blake3:02".into(),
                    ..ModuleRecord::default()
                },
            )]),
            quarantine: vec![],
            content_digest: "blake3:03".into(),
        }
    }

    #[test]
    fn round_trip_keeps_values_and_order() {
        let text = manifest().to_json().unwrap();
        let back = Manifest::from_json(text.as_bytes()).unwrap();
        assert_eq!(back, manifest());
        assert_eq!(back.to_json().unwrap(), text);
        assert!(text.find("\"z\": 1").unwrap() < text.find("\"a\": 2").unwrap(), "the order of repairs is kept");
        assert!(text.find("\"z\": 0.1").unwrap() < text.find("\"a\": 1").unwrap(), "the order of the job is kept");
    }

    #[test]
    fn another_version_is_named() {
        let e = Manifest::from_json(br#"{ "format_version": 9, "else": [] }"#).unwrap_err();
        assert_eq!(e.what(), "found format version 9, expected 1");
        assert!(Manifest::from_json(b"{}").unwrap_err().what().contains("format_version"));
        let e = Manifest::load(Path::new("no/such/directory")).unwrap_err();
        assert!(e.hint_text().unwrap().contains("unfinished"));
    }

    #[test]
    fn schema_file_is_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas/manifest.schema.json");
        let current = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
        if std::env::var_os("UPDATE_SCHEMAS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &current).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == current, "{} is out of date: run the tests with UPDATE_SCHEMAS=1", path.display());
    }
}
