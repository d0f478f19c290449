//! The job: everything that changes the bytes of the output, and nothing that does not.
//!
//! ```text
//! job.toml ──▶ tree of values ──▶ shape (schema) ──▶ Job ──▶ sense (check) ──▶ what is built (supported)
//!  load.rs       + line numbers      shape.rs         here      check.rs          supported.rs
//! ```
//!
//! The structs below *are* the file format: their doc comments are the descriptions in `schemas/job.schema.json`, and
//! that schema is the only list of keys, types and ranges that a job is checked against. How many threads run, how
//! much memory they take and what is shown meanwhile are arguments of a run.

mod check;
mod load;
mod rl_module;
mod schema;
mod shape;
mod space;
mod supported;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use load::Overrides;
pub use rl_module::{Fill, ModuleOverride, ModuleSettings, RlModule, StateLeaf, StateTree};
pub use schema::schema;
pub use shape::{check_shape, describe_shape};
pub use space::Space;
pub use supported::check_supported;

use crate::error::{Error, closest};

/// A gristmill job: which recordings to read, what the learner's module looks like, which pieces run, what to write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Job {
    /// Version of this format. This gristmill reads version 1.
    #[schemars(range(min = 1, max = 1))]
    pub version: u32,
    /// What to read.
    pub input: Input,
    /// What the learner's RLModule would say about itself. Omit it for a stateless module.
    pub rl_module: RlModule,
    /// Which module each agent's data goes to.
    pub multi_agent: MultiAgent,
    /// The learner connector pipeline.
    pub learner: Learner,
    /// What to write.
    pub output: Output,
    /// The directory that relative paths refer to: the job file's. Empty for the current directory.
    #[serde(skip)]
    pub base: PathBuf,
}

impl Default for Job {
    fn default() -> Self {
        Self {
            version: 1,
            input: Input::default(),
            rl_module: RlModule::default(),
            multi_agent: MultiAgent::default(),
            learner: Learner::default(),
            output: Output::default(),
            base: PathBuf::new(),
        }
    }
}

impl Job {
    /// A job of defaults over some input, as `gristmill convert --input X` runs it. Paths are relative to the current
    /// directory.
    #[must_use]
    pub fn for_inputs(paths: Vec<String>) -> Self {
        Self { input: Input { paths, ..Input::default() }, ..Self::default() }
    }

    /// The input paths and globs, in the job's order, made relative to the current directory. URLs are left alone.
    ///
    /// A directory with a glob's special characters in its name (`runs/[old]/job.toml`) is escaped where a glob stands
    /// behind it, and only there.
    #[must_use]
    pub fn input_patterns(&self) -> Vec<String> {
        self.input.paths.iter().map(|path| load::resolve(&self.base, path)).collect()
    }

    /// The output directory, made relative to the current directory.
    #[must_use]
    pub fn output_path(&self) -> PathBuf {
        self.base.join(&self.output.path)
    }

    /// The job as resolved, all defaults filled in.
    ///
    /// # Panics
    /// Never: a job is plain data.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut job = self.clone();
        job.output.compression = Some(self.output.compression());
        serde_json::to_value(job).expect("a job is plain data")
    }

    /// The job as resolved but for where its files lie (`input.paths`, `output.path`): equal for the same job on every
    /// machine.
    #[must_use]
    pub fn to_portable_json(&self) -> Value {
        let mut job = self.to_json();
        for (table, key) in [("input", "paths"), ("output", "path")] {
            if let Some(table) = job.get_mut(table).and_then(Value::as_object_mut) {
                table.shift_remove(key);
            }
        }
        job
    }
}

/// What to read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Input {
    /// Files, globs or directories, relative to the job file. Files are read in sorted order.
    pub paths: Vec<String>,
    /// How the recording is laid out. `auto` looks at the files and says what it saw.
    pub layout: Layout,
    /// Our column name to the recording's (as RLlib's `input_read_schema`): `{ obs = "observation" }`.
    #[schemars(example = json!({ "obs": "observation" }))]
    pub columns: IndexMap<String, String>,
    /// Columns of the recording, under its own names, that are left out as if they were not there; `*` stands for any
    /// characters: `["value", "debug_*"]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(example = json!(["value", "debug_*"]))]
    pub ignore: Vec<String>,
    /// What to do with an episode whose last row is neither terminated nor truncated.
    pub unfinished: Unfinished,
    /// What to do with an episode or chunk that was recorded twice (same id, same content).
    pub duplicates: Duplicates,
    /// What to do with a malformed episode: a gap in `t`, ragged values, a conflicting duplicate, unreadable bytes.
    pub on_bad_episode: OnBadEpisode,
    /// Gymnasium's spaces, where a recording does not carry them (one-hot, flattening, bounds).
    pub spaces: Spaces,
    /// A SQL predicate over the episode table, such as `episode_return > 100 and episode_length >= 20`: episodes for
    /// which it is true are kept.
    ///
    /// A row is a recorded episode (of one agent), its chunks added up. Columns: `eps_id` (int64 or text, as recorded),
    /// `agent_id` (multi-agent data only), `episode_return` (float64), `episode_length` (int64), `terminated`,
    /// `truncated`, `t_started` (int64). An aggregate is over the whole table:
    /// `episode_return >= quantile_cont(episode_return, 0.9)` keeps the best tenth. `episode_return` costs a pass over
    /// the data of its own.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    pub where_: Option<String>,
}

/// How a recording is laid out. The contract in words is `schemas/replay-log.md`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Recognise the layout from the files, and say what was seen.
    #[default]
    Auto,
    /// RLlib's `output_write_episodes=False`: one row a step.
    RllibColumns,
    /// RLlib's `output_write_episodes=True`: one msgpack cell an episode.
    RllibEpisodes,
    /// Anyone's table with one row a step.
    Steps,
}

/// What to do with an episode whose last row is neither terminated nor truncated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Unfinished {
    /// Keep it as it is: neither flag is set on any row.
    #[default]
    Keep,
    /// Keep it and set `truncateds` on its last row.
    Truncate,
    /// Leave it out.
    Drop,
    /// Stop with an error.
    Fail,
}

/// What to do with an episode or chunk that was recorded twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Duplicates {
    /// Keep the first, and count the others in the report.
    #[default]
    Drop,
    /// Keep all of them.
    Keep,
    /// Stop with an error.
    Fail,
}

/// What to do with a malformed episode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnBadEpisode {
    /// Stop with an error that names it.
    #[default]
    Fail,
    /// Leave it out, and count it in the report.
    Skip,
    /// Leave it out, and write it aside.
    Quarantine,
}

/// Gymnasium's spaces.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Spaces {
    /// The observation space.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub obs: Option<Space>,
    /// The action space.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actions: Option<Space>,
}

/// Which module each agent's data goes to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MultiAgent {
    /// Agent id, or a pattern with `*`, to module id. The first match wins; a recorded module id needs no rule.
    #[schemars(example = json!({ "agent_0": "p0", "agent_1": "p1" }))]
    pub agent_to_module: IndexMap<String, String>,
}

/// The learner connector pipeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Learner {
    /// Build the pipeline that this algorithm's `config.build_learner_connector()` builds in RLlib 2.60.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<Algorithm>,
    /// Discount factor that the algorithm hands to its pieces.
    #[schemars(range(min = 0.0, max = 1.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gamma: Option<f64>,
    /// GAE's lambda that the algorithm hands to its pieces.
    #[schemars(range(min = 0.0, max = 1.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lambda_: Option<f64>,
    /// Whether RLlib's known defects are repaired or reproduced.
    pub compat: Compat,
    /// Whether the default pieces follow the custom ones.
    pub add_default_connectors_to_learner_pipeline: bool,
    /// Custom pieces, prepended to the default pipeline in this order.
    pub connectors: Vec<ConnectorConfig>,
}

impl Default for Learner {
    fn default() -> Self {
        Self {
            algorithm: None,
            gamma: None,
            lambda_: None,
            compat: Compat::default(),
            add_default_connectors_to_learner_pipeline: true,
            connectors: Vec::new(),
        }
    }
}

/// RLlib's algorithms that gristmill knows the learner pipeline of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Algorithm {
    Ppo,
    Appo,
    Impala,
    Bc,
    Marwil,
    Cql,
    Iql,
    Sac,
    Dqn,
}

impl Algorithm {
    /// RLlib's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ppo => "PPO",
            Self::Appo => "APPO",
            Self::Impala => "IMPALA",
            Self::Bc => "BC",
            Self::Marwil => "MARWIL",
            Self::Cql => "CQL",
            Self::Iql => "IQL",
            Self::Sac => "SAC",
            Self::Dqn => "DQN",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether RLlib's known defects are repaired or reproduced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Compat {
    /// RLlib's results wherever they are right; known defects are repaired, and the repairs counted.
    #[default]
    #[serde(rename = "correct")]
    Correct,
    /// RLlib 2.60's results bit for bit, defects included.
    #[serde(rename = "rllib-2.60")]
    Rllib260,
}

impl Compat {
    /// The name in a job.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Correct => "correct",
            Self::Rllib260 => "rllib-2.60",
        }
    }
}

impl fmt::Display for Compat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A connector piece as the job writes it: a table with a `type` and the options of that piece.
///
/// Kept raw here; the list of connectors turns it into one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectorConfig(pub serde_json::Map<String, Value>);

impl ConnectorConfig {
    /// The name of the piece, or nothing if `type` is missing (a loaded job always has it).
    #[must_use]
    pub fn type_name(&self) -> &str {
        self.0.get("type").and_then(Value::as_str).unwrap_or_default()
    }

    /// The options alone.
    #[must_use]
    pub fn options(&self) -> Value {
        let options = self.0.iter().filter(|(key, _)| *key != "type");
        Value::Object(options.map(|(key, value)| (key.clone(), value.clone())).collect())
    }
}

/// What to write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Output {
    /// Directory to write, relative to the job file.
    pub path: String,
    /// File format of the shards.
    pub format: Format,
    /// Compression of the shards; `zstd:1` for Parquet and `none` for Arrow when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// How tensors with a shape lie in the shards.
    pub tensors: TensorStorage,
    /// Whether stacked frames and sequences lie in the shards as trainers see them, or as index columns over tables
    /// that hold every frame and every step once.
    pub windows: WindowStorage,
    /// Rows per shard: steps, or sequences when the module is stateful.
    #[schemars(range(min = 1))]
    pub rows_per_shard: usize,
    /// A seeded global permutation of rows (of sequences when the module is stateful).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shuffle: Option<Shuffle>,
    /// Parts and their fractions, which sum to 1: `{ train = 0.9, val = 0.1 }`. By episode, never through one.
    ///
    /// Pieces that go by statistics of the data set (`MeanStdFilter`) take those of the part `train`, or of the first one
    /// where none is called so, for all parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = json!({ "train": 0.9, "val": 0.1 }))]
    pub split: Option<IndexMap<String, f64>>,
}

impl Default for Output {
    fn default() -> Self {
        Self {
            path: "shards".to_owned(),
            format: Format::default(),
            compression: None,
            tensors: TensorStorage::default(),
            windows: WindowStorage::default(),
            rows_per_shard: 65_536,
            shuffle: None,
            split: None,
        }
    }
}

impl Output {
    /// The compression that the job asks for, or the one that suits the format: Parquet is for storage, Arrow for
    /// memory maps.
    #[must_use]
    pub fn compression(&self) -> Compression {
        self.compression.unwrap_or(match self.format {
            Format::Parquet => Compression::Zstd(1),
            Format::Arrow => Compression::None,
        })
    }
}

/// File format of the shards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// Parquet.
    #[default]
    Parquet,
    /// Arrow IPC files (Feather V2).
    Arrow,
}

impl Format {
    /// The name in a job, which is also the file extension.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Arrow => "arrow",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        [Self::Parquet, Self::Arrow].into_iter().find(|f| f.name() == name).ok_or_else(|| {
            let error = Error::usage(format!("found format {name:?}, expected \"parquet\" or \"arrow\""));
            match closest(name, ["parquet", "arrow"]) {
                Some(near) => error.hint(format!("did you mean \"{near}\"?")),
                None => error,
            }
        })
    }
}

/// Compression of the shards: `none`, `snappy`, `lz4`, or `zstd:1` to `zstd:22`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Compression {
    /// Not compressed.
    None,
    /// Snappy.
    Snappy,
    /// LZ4 (Parquet's `LZ4_RAW`, Arrow's LZ4 frame).
    Lz4,
    /// Zstandard at a level from 1 to 22.
    Zstd(i32),
}

impl Compression {
    /// What a job may say.
    const VALID: &str = "`none`, `snappy`, `lz4`, or `zstd:1` to `zstd:22`";

    /// Every value that a job may say.
    fn all() -> impl Iterator<Item = Self> {
        [Self::None, Self::Snappy, Self::Lz4].into_iter().chain((1..=22).map(Self::Zstd))
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Snappy => f.write_str("snappy"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

impl FromStr for Compression {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::all()
            .find(|c| c.to_string() == text)
            .ok_or_else(|| Error::usage(format!("found compression {text:?}, expected {}", Self::VALID)))
    }
}

impl From<Compression> for String {
    fn from(compression: Compression) -> Self {
        compression.to_string()
    }
}

impl TryFrom<String> for Compression {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

/// How tensors with a shape lie in the shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TensorStorage {
    /// Flat fixed-size lists with the metadata of Arrow's `arrow.fixed_shape_tensor`: pyarrow gives them as `NumPy`
    /// arrays of their shape, every other reader as lists of numbers.
    #[default]
    List,
    /// Fixed-size binary: a row's elements as they lie in memory, little-endian, C order (a boolean is one byte), with
    /// `shape` and `dtype` in the field's metadata. Parquet readers have no list levels to decode.
    Binary,
}

/// How windows (stacked frames, sequences) lie in the shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WindowStorage {
    /// Laid out: every row as a trainer sees it. Any Parquet reader reads it.
    #[default]
    Whole,
    /// Every frame and step once, in tables beside the rows, and of each row where its windows are: `frames_offset`,
    /// `frames_length`, `frames_pad`. gristmill's readers lay them out, to the same bytes.
    Indexed,
}

/// A seeded global permutation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = Self { seed: 7 })]
pub struct Shuffle {
    /// The permutation depends on this seed and on the data only.
    pub seed: u64,
}

#[cfg(test)]
mod tests {
    use super::Algorithm as A;
    use super::*;

    #[test]
    fn compression_survives_its_text() {
        for compression in Compression::all() {
            assert_eq!(compression.to_string().parse::<Compression>().unwrap(), compression);
        }
        for wrong in ["", "zstd", "zstd:0", "zstd:23", "zstd:01", "ZSTD:1", "lz5"] {
            assert!(wrong.parse::<Compression>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_those_of_serde() {
        for format in [Format::Parquet, Format::Arrow] {
            assert_eq!(serde_json::to_value(format).unwrap(), format.name());
            assert_eq!(format.name().parse::<Format>().unwrap(), format);
        }
        for compat in [Compat::Correct, Compat::Rllib260] {
            assert_eq!(serde_json::to_value(compat).unwrap(), compat.name());
        }
        for algorithm in [A::Ppo, A::Appo, A::Impala, A::Bc, A::Marwil, A::Cql, A::Iql, A::Sac, A::Dqn] {
            assert_eq!(serde_json::to_value(algorithm).unwrap(), algorithm.name());
        }
    }

    #[test]
    fn a_resolved_job_reads_back_as_itself() {
        let job = Job::for_inputs(vec!["logs/".to_owned()]);
        let back: Job = serde_json::from_value(job.to_json()).unwrap();
        assert_eq!(back.to_json(), job.to_json());
        assert_eq!(job.to_json()["output"]["compression"], "zstd:1");
        let arrow = Output { format: Format::Arrow, ..Output::default() };
        assert_eq!(arrow.compression(), Compression::None);
    }

    #[test]
    fn a_portable_job_does_not_say_where_it_lies() {
        let here = Job::for_inputs(vec!["here/".to_owned()]);
        let mut there = Job::for_inputs(vec!["/mnt/there/".to_owned()]);
        there.output.path = "/tmp/out".to_owned();
        assert_ne!(here.to_json(), there.to_json());
        assert_eq!(here.to_portable_json(), there.to_portable_json());
    }
}
