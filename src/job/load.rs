//! From text to a [`Job`], with every mistake told at once and the line it stands on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::check::check;
use super::schema::schema;
use super::shape::{KeyPath, Mistake, Step, mistakes};
use super::{Format, Job};
use crate::error::{Error, Result};
use crate::regular;

/// A job larger than this is none.
const LARGEST_JOB: u64 = 64 << 20;

/// What the command line says over the job. Paths are relative to `current_dir`, not to the job file.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// Replaces `input.paths` unless empty.
    pub inputs: Vec<String>,
    /// Replaces `output.path`.
    pub output: Option<String>,
    /// Replaces `output.format`.
    pub format: Option<Format>,
    /// What the paths here are relative to.
    pub current_dir: PathBuf,
}

impl Job {
    /// Reads and checks a job file: JSON if its name ends in `.json`, else TOML.
    ///
    /// # Errors
    /// All mistakes that were found, in the order of their lines.
    pub fn load(path: &Path) -> Result<Self, Vec<Error>> {
        Self::load_with(path, &Overrides::default())
    }

    /// As [`Job::load`], with the command line's word over the file's.
    ///
    /// # Errors
    /// All mistakes that were found, in the order of their lines.
    pub fn load_with(path: &Path, overrides: &Overrides) -> Result<Self, Vec<Error>> {
        let unread = |e: Error| vec![e.hint("to convert recordings without a job: gristmill convert --input PATH")];
        let bytes = regular::read_small("read the job", path, LARGEST_JOB).map_err(|error| {
            let missing = error.io_kind() == Some(std::io::ErrorKind::NotFound);
            if missing { vec![error] } else { unread(error) }
        })?;
        let name = path.display().to_string();
        let text = String::from_utf8(bytes).map_err(|_| {
            unread(Error::usage("found bytes that are no text, expected a job in TOML or JSON").file(&name))
        })?;
        let is_json = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
        let is_yaml = path.extension().is_some_and(|e| ["yaml", "yml"].iter().any(|y| e.eq_ignore_ascii_case(y)));
        let source = if is_json { Source::json(&text, &name) } else { Source::toml(&text, &name) };
        let no_yaml = |e: Error| e.hint("a job is TOML, or JSON if its name ends in .json: YAML is not read");
        let source = source.map_err(|errors| if is_yaml { errors.into_iter().map(no_yaml).collect() } else { errors });
        source.and_then(|s| s.job(path.parent().unwrap_or_else(|| Path::new("")), overrides))
    }

    /// Reads and checks a job in TOML. Paths are relative to the current directory.
    ///
    /// # Errors
    /// All mistakes that were found, in the order of their lines.
    pub fn from_toml_str(text: &str) -> Result<Self, Vec<Error>> {
        Source::toml(text, "").and_then(|s| s.job(Path::new(""), &Overrides::default()))
    }

    /// Reads and checks a job in JSON. Paths are relative to the current directory.
    ///
    /// # Errors
    /// All mistakes that were found.
    pub fn from_json_str(text: &str) -> Result<Self, Vec<Error>> {
        Source::json(text, "").and_then(|s| s.job(Path::new(""), &Overrides::default()))
    }

    /// Lets the command line's word stand over the job's.
    pub fn apply(&mut self, overrides: &Overrides) {
        // A relative path stays relative (and short in messages) where both directories are the same.
        let here = |path: &str| {
            if self.base.as_os_str().is_empty() { path.to_owned() } else { resolve(&overrides.current_dir, path) }
        };
        if !overrides.inputs.is_empty() {
            self.input.paths = overrides.inputs.iter().map(|path| here(path)).collect();
        }
        if let Some(output) = &overrides.output {
            self.output.path = if self.base.as_os_str().is_empty() {
                output.clone()
            } else {
                overrides.current_dir.join(output).display().to_string()
            };
        }
        if let Some(format) = overrides.format {
            self.output.format = format;
        }
    }

    /// Makes all paths absolute, as seen from the directory `current`: for another process.
    pub fn make_absolute(&mut self, current: &Path) {
        let base = current.join(&self.base);
        for path in &mut self.input.paths {
            *path = resolve(&base, path);
        }
        self.output.path = base.join(&self.output.path).display().to_string();
        self.base = PathBuf::new();
    }

    /// The mistakes of a job that was not read from a file.
    #[must_use]
    pub fn check(&self) -> Vec<Error> {
        check(self)
    }
}

/// `path` (a file, a glob, a directory or a URL) relative to `base`.
pub(super) fn resolve(base: &Path, path: &str) -> String {
    if base.as_os_str().is_empty() || path.contains("://") || Path::new(path).is_absolute() {
        return path.to_owned();
    }
    if path.contains(['*', '?', '[']) {
        let base = glob::Pattern::escape(&base.display().to_string());
        return Path::new(&base).join(path).display().to_string();
    }
    base.join(path).display().to_string()
}

/// A job as it was written.
struct Source {
    /// File name for errors; empty if there is none.
    name: String,
    tree: Value,
    /// Line of each key, by its path. JSON has none.
    lines: BTreeMap<String, usize>,
}

impl Source {
    fn json(text: &str, name: &str) -> Result<Self, Vec<Error>> {
        let tree = serde_json::from_str(text).map_err(|e| {
            let message = e.to_string();
            let message = message.split(" at line ").next().unwrap_or_default();
            vec![syntax("JSON", message, name, Some((e.line(), e.column())))]
        })?;
        Ok(Self { name: name.to_owned(), tree, lines: BTreeMap::new() })
    }

    fn toml(text: &str, name: &str) -> Result<Self, Vec<Error>> {
        // Later syntax errors are often echoes of the first one, so only that is told.
        let table = DeTable::parse(text).map_err(|e| {
            let at = e.span().map(|span| position(text, span.start));
            vec![syntax("TOML", e.message(), name, at)]
        })?;
        let mut reader = TomlReader { line_starts: line_starts(text), lines: BTreeMap::new(), errors: Vec::new() };
        let tree = reader.table(table.get_ref(), &KeyPath::default());
        let source = Self { name: name.to_owned(), tree, lines: reader.lines };
        if reader.errors.is_empty() { Ok(source) } else { Err(source.placed(reader.errors)) }
    }

    fn job(&self, base: &Path, overrides: &Overrides) -> Result<Job, Vec<Error>> {
        if let Some(version) = self.tree.get("version").and_then(Value::as_i64)
            && version != 1
        {
            // Another version has other keys: what else would be wrong with it is not for us to say.
            let error = Error::usage(format!("found job version {version}, expected 1"))
                .job_key("version")
                .hint("this gristmill reads version 1; a newer one may read this job");
            return Err(self.placed(vec![error]));
        }
        let schema = schema();
        let found = mistakes(&schema, &self.tree);
        // What is left without the mistakes can still be checked for sense. A table may need the very key that was
        // taken out of it; then all around it goes too.
        let without = |depth: usize| {
            let mut tree = self.tree.clone();
            let dubious: Vec<String> = found.iter().flat_map(|m| prune(&mut tree, m, depth)).collect();
            serde_json::from_value::<Job>(tree).map(|job| (job, dubious))
        };
        let rest = without(usize::MAX).or_else(|_| without(2));
        let mut errors: Vec<Error> = found.into_iter().map(|m| self.worded(m)).collect();

        match rest {
            Ok((mut job, dubious)) => {
                job.base = base.to_path_buf();
                job.apply(overrides);
                let sense = check(&job).into_iter().chain(forgotten_stateful(&self.tree));
                errors.extend(sense.filter(|e| !dubious.iter().any(|path| touches(path, e))));
                if errors.is_empty() {
                    return Ok(job);
                }
            }
            // Without a mistake in the shape, the schema promised too much.
            Err(e) if errors.is_empty() => errors.push(Error::usage(format!("the job does not fit: {e}"))),
            Err(_) => {}
        }
        Err(self.placed(errors))
    }

    /// The mistake as an error, with a word on what the schema does not know.
    fn worded(&self, mistake: Mistake) -> Error {
        let path = mistake.path.to_string();
        let value = |pointer: &str| self.tree.pointer(pointer);
        let hint = match path.as_str() {
            "input.layout" if value("/input/layout").and_then(Value::as_str) == Some("minari") => {
                Some("Minari datasets are not read: a `steps` table says the same")
            }
            "learner.connectors" if value("/learner/connectors").is_some_and(Value::is_object) => {
                Some("in TOML each connector is a table in double brackets: [[learner.connectors]]")
            }
            _ => None,
        };
        let error = mistake.error.job_key(path);
        hint.map_or(error.clone(), |hint| error.hint_instead(hint))
    }

    /// Adds file and line, and puts the errors in the order of their lines.
    fn placed(&self, errors: Vec<Error>) -> Vec<Error> {
        let mut placed: Vec<(usize, Error)> = errors
            .into_iter()
            .map(|error| {
                let line = error.place().job_key.as_deref().and_then(|key| self.line(key));
                let error = match (self.name.as_str(), line) {
                    ("", _) => error,
                    (name, Some(line)) => error.file(format!("{name}:{line}")),
                    (name, None) => error.file(name),
                };
                (line.unwrap_or_default(), error)
            })
            .collect();
        placed.sort_by_key(|(line, _)| *line);
        placed.into_iter().map(|(_, error)| error).collect()
    }

    /// The line of a key, or of the nearest table around it.
    fn line(&self, key: &str) -> Option<usize> {
        let mut key = key;
        loop {
            if let Some(line) = self.lines.get(key) {
                return Some(*line);
            }
            key = &key[..key.rfind(['.', '['])?];
        }
    }
}

/// `max_seq_len` or `initial_state` without a word on `stateful`: surely meant, and silently without effect.
fn forgotten_stateful(tree: &Value) -> Option<Error> {
    let table = tree.get("rl_module")?.as_object()?;
    let modules = table.get("modules").and_then(Value::as_object);
    if table.contains_key("stateful") || modules.is_some_and(|m| !m.is_empty()) {
        return None;
    }
    let key = ["max_seq_len", "initial_state"].into_iter().find(|key| table.contains_key(*key))?;
    let error =
        Error::usage(format!("found `{key}` but not `stateful`: only stateful modules have sequences and states"));
    Some(
        error
            .job_key(format!("rl_module.{key}"))
            .hint("add stateful = true (or stateful = false to keep single steps)"),
    )
}

/// Whether an error is about `path`, something in it, or a table around it.
fn touches(path: &str, error: &Error) -> bool {
    let key = error.place().job_key.as_deref().unwrap_or_default();
    let inside = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    inside(key, path) || inside(path, key)
}

/// Takes a mistaken value out of the tree, or the table at `depth` that it stands in. Returns the paths that are now in
/// doubt. Inside a list the whole list goes, since the places of its other items would change.
fn prune(tree: &mut Value, mistake: &Mistake, depth: usize) -> Vec<String> {
    let steps = &mistake.path.0;
    let keys = steps.iter().position(|s| matches!(s, Step::Index(_))).unwrap_or(steps.len()).min(depth);
    let path = KeyPath(steps[..keys].to_vec());
    let meant = mistake.meant.as_ref().map(ToString::to_string);
    let Some((Step::Key(last), tables)) = path.0.split_last() else {
        return meant.into_iter().collect();
    };
    let table = tables.iter().try_fold(tree, |tree, step| match step {
        Step::Key(key) => tree.get_mut(key),
        Step::Index(i) => tree.get_mut(i),
    });
    if let Some(table) = table.and_then(Value::as_object_mut) {
        table.shift_remove(last);
    }
    std::iter::once(path.to_string()).chain(meant).collect()
}

fn syntax(language: &str, message: &str, name: &str, at: Option<(usize, usize)>) -> Error {
    let message = message.trim().replace('\n', ", ");
    let (place, at) = match at {
        Some((line, column)) => (format!(":{line}:{column}"), format!(" (line {line}, column {column})")),
        None => (String::new(), String::new()),
    };
    let error = Error::usage(format!("the job is not valid {language}{at}: {message}"));
    if name.is_empty() { error } else { error.file(format!("{name}{place}")) }
}

fn line_starts(text: &str) -> Vec<usize> {
    std::iter::once(0).chain(text.match_indices('\n').map(|(i, _)| i + 1)).collect()
}

/// Line and column (in characters) of a byte, both from 1.
fn position(text: &str, byte: usize) -> (usize, usize) {
    let starts = line_starts(text);
    let line = starts.partition_point(|start| *start <= byte);
    let column = text.get(starts[line - 1]..byte).map_or(1, |before| before.chars().count() + 1);
    (line, column)
}

/// TOML to the tree that JSON would give, keys in the order of the file.
struct TomlReader {
    line_starts: Vec<usize>,
    lines: BTreeMap<String, usize>,
    errors: Vec<Error>,
}

impl TomlReader {
    fn table(&mut self, table: &DeTable<'_>, path: &KeyPath) -> Value {
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let mut out = Map::new();
        for (key, value) in entries {
            let path = path.key(key.get_ref());
            self.note(&path, key.span().start);
            out.insert(key.get_ref().to_string(), self.value(value, &path));
        }
        Value::Object(out)
    }

    fn note(&mut self, path: &KeyPath, byte: usize) {
        let line = self.line_starts.partition_point(|start| *start <= byte);
        self.lines.insert(path.to_string(), line);
    }

    fn value(&mut self, value: &Spanned<DeValue<'_>>, path: &KeyPath) -> Value {
        match value.get_ref() {
            DeValue::String(text) => Value::String(text.to_string()),
            DeValue::Boolean(value) => Value::Bool(*value),
            DeValue::Integer(number) => {
                let digits = number.as_str().replace('_', "");
                let signed = i64::from_str_radix(&digits, number.radix()).map(Value::from);
                let any = signed.or_else(|_| u64::from_str_radix(&digits, number.radix()).map(Value::from));
                any.unwrap_or_else(|_| self.refuse(format!("found {digits}, which is too large for an integer"), path))
            }
            DeValue::Float(number) => {
                let digits = number.as_str().replace('_', "");
                let value: f64 = digits.parse().unwrap_or(f64::NAN);
                // JSON has no word for these; see `job::Fill`.
                serde_json::Number::from_f64(value).map_or_else(
                    || {
                        Value::String(
                            if value.is_nan() {
                                "nan"
                            } else if value > 0.0 {
                                "inf"
                            } else {
                                "-inf"
                            }
                            .to_owned(),
                        )
                    },
                    Value::Number,
                )
            }
            DeValue::Datetime(date) => self.refuse(format!("found the date {date}, which no key of a job takes"), path),
            DeValue::Array(items) => {
                let mut out = Vec::new();
                for (i, item) in items.iter().enumerate() {
                    let path = path.index(i);
                    self.note(&path, item.span().start);
                    out.push(self.value(item, &path));
                }
                Value::Array(out)
            }
            DeValue::Table(table) => self.table(table, path),
        }
    }

    fn refuse(&mut self, what: String, path: &KeyPath) -> Value {
        self.errors.push(Error::usage(what).job_key(path.to_string()).hint("write it in quotes if it is a text"));
        Value::Null
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(toml: &str) -> String {
        let errors = Job::from_toml_str(toml).expect_err("a job with mistakes");
        errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    const INPUT: &str = "input.paths = ['x']\n";

    #[test]
    fn the_contract_s_job_reads() {
        let job = Job::from_toml_str(
            r#"
version = 1
[input]
paths  = ["input/*.parquet"]
layout = "auto"
columns = { obs = "observation" }
unfinished = "keep"
duplicates = "drop"
on_bad_episode = "fail"
spaces = { obs = { pos = { type = "box", shape = [3], dtype = "float32", low = -inf, high = [1, 2.0, inf] }, mode = { type = "discrete", n = 4, start = 0 } }, actions = { type = "discrete", n = 2 } }
where = "episode_return > 100 and episode_length >= 20"
[rl_module]
stateful = true
max_seq_len = 20
initial_state = { h = { shape = [64], dtype = "float32", fill = 0.0 }, c = { shape = [64] } }
[rl_module.modules.p1]
stateful = false
[multi_agent]
agent_to_module = { "z_0" = "p0", "walker_*" = "p1", "a" = "p0" }
[learner]
algorithm = "PPO"
gamma = 0.99
lambda_ = 1
compat = "correct"
add_default_connectors_to_learner_pipeline = true
[output]
path = "shards"
format = "parquet"
compression = "zstd:1"
rows_per_shard = 65536
shuffle = { seed = 7 }
split = { train = 0.9, val = 0.1 }
"#,
        )
        .unwrap();
        assert_eq!(job.rl_module.initial_state.leaves().len(), 2);
        assert_eq!(
            job.multi_agent.agent_to_module.keys().collect::<Vec<_>>(),
            ["z_0", "walker_*", "a"],
            "first match wins"
        );
        assert_eq!(job.learner.lambda_, Some(1.0));
        let back: Job = serde_json::from_value(job.to_json()).unwrap();
        assert_eq!(back, job);
    }

    #[test]
    fn an_empty_job_has_no_input() {
        assert_eq!(Job::from_toml_str(INPUT).unwrap(), Job::for_inputs(vec!["x".to_owned()]));
        assert!(told("").contains("job key `input.paths`"));
        assert!(told("[input]\npaths = ['']").contains("job key `input.paths[0]`"));
    }

    #[test]
    fn mistakes_of_all_kinds_come_together() {
        let told = told(
            "version = 1\n[input]\npaths = ['x']\nlayot = 'steps'\n[rl_module]\nstateful = true\n\
             [output]\nrows_per_shard = 0\ncompression = 'zstd:99'\nsplit = { a = 0.7, b = 0.2 }\n",
        );
        assert_eq!(told.matches("  at: ").count(), 5, "{told}");
        assert!(told.contains("did you mean `layout`?"));
        assert!(told.contains("model_config={'max_seq_len': ..}"));
        assert!(told.contains("found 0, expected an integer of at least 1"));
        assert!(told.contains("expected `none`, `snappy`, `lz4`, or `zstd:1` to `zstd:22`"));
        assert!(told.contains("sum to 0.9, expected 1"));
    }

    #[test]
    fn one_mistake_is_told_once() {
        for toml in [
            "rl_module = { stateful = true, max_seq_length = 20 }",
            "rl_module = { stateful = true, max_seq_len = '20' }",
            "rl_module = { stateful = true, modules = { p1 = {} } }",
            "rl_module = { max_seq_len = 20 }",
            "rl_module = { stateful = true, max_seq_len = 2, initial_state = { h = { shap = [64] } } }",
            "rl_module = { stateful = true, max_seq_len = 2, initial_state = { shape = 64 } }",
            "rl_module = { stateful = true, max_seq_len = 2, initial_state = { shape = [2], fill = [1] } }",
            "rl_module = { stateful = true, max_seq_len = 2, initial_state = { h = {} } }",
            "input.spaces.obs = { typ = 'box', shape = [3] }",
            "input.spaces.obs = { n = 4 }",
            "input.spaces.obs = { type = 'box' }",
            "input.spaces.obs = { a = { type = 'boks', shape = [3] } }",
            "input.spaces.obs = [{ type = 'discrete', n = 0 }]",
            "input.spaces.obs = { type = 'box', shape = [3], low = 'x' }",
            "learner.connectors = [{ tpe = 'X' }]",
            "learner.gamma = 1.5",
            "learner.algorithm = 'ppo'",
            "output = { format = 'arrow', compression = 'snappy' }",
            "output.split = { 'a/b' = 1.0 }",
            "output.path = ''",
            "compat = 'correct'",
            "output.rows_per_shard = 99999999999999999999999",
            "output.path = 1979-05-27",
        ] {
            let errors = Job::from_toml_str(&format!("{INPUT}{toml}")).expect_err(toml);
            assert_eq!(errors.len(), 1, "{toml}: {errors:#?}");
            assert!(errors[0].place().job_key.is_some(), "{toml}");
        }
    }

    #[test]
    fn a_mistake_does_not_hide_others_elsewhere() {
        let told = told(
            "[input]\npaths = ['x']\nspaces = { obs = { pos = { typ = 'box', shape = [3] } } }\n\
             [output]\nsplit = { a = 0.5 }\n[rl_module]\nmax_seq_len = 20\n[[learner.connectors]]\nn = 1\n",
        );
        assert_eq!(told.matches("  at: ").count(), 4, "{told}");
        assert!(told.contains("sum to 0.5") && told.contains("not `stateful`"), "{told}");
    }

    #[test]
    fn a_key_in_the_wrong_table_is_shown_its_place() {
        assert!(told(&format!("{INPUT}compat = 'correct'")).contains("did you mean `learner.compat`?"));
        assert!(told(&format!("{INPUT}max_seq_len = 20")).contains("did you mean `rl_module.max_seq_len`?"));
    }

    #[test]
    fn another_version_is_the_only_thing_told() {
        let told = told("version = 2\nnew_key = 1");
        assert!(told.starts_with("found job version 2, expected 1"));
        assert!(!told.contains("new_key"));
    }

    #[test]
    fn syntax_errors_have_line_and_column() {
        assert!(told("version = 1\n[input\n").contains("line 2, column 7"), "{}", told("version = 1\n[input\n"));
        let errors = Job::from_json_str("{\n  \"version\": 1,,\n}").unwrap_err();
        assert!(errors[0].what().contains("line 2, column 16"), "{}", errors[0]);
    }

    #[test]
    fn paths_are_relative_to_the_job_and_overrides_to_the_caller() {
        assert_eq!(resolve(Path::new("a/b"), "in/*.parquet"), "a/b/in/*.parquet");
        assert_eq!(resolve(Path::new("a[1]"), "in/*.parquet"), "a[[]1[]]/in/*.parquet");
        assert_eq!(resolve(Path::new("a[1]"), "in.parquet"), "a[1]/in.parquet");
        assert_eq!(resolve(Path::new("a"), "/in"), "/in");
        assert_eq!(resolve(Path::new("a"), "https://x/in"), "https://x/in");
        assert_eq!(resolve(Path::new(""), "in"), "in");

        let mut job = Job::for_inputs(vec!["in".to_owned()]);
        job.base = "jobs".into();
        assert_eq!(job.input_patterns(), ["jobs/in"]);
        assert_eq!(job.output_path(), Path::new("jobs/shards"));
        let overrides = Overrides {
            inputs: vec!["other".to_owned()],
            output: Some("out".to_owned()),
            current_dir: "/here".into(),
            ..Overrides::default()
        };
        job.apply(&overrides);
        assert_eq!(job.input_patterns(), ["/here/other"]);
        assert_eq!(job.output_path(), Path::new("/here/out"));
        let mut job = Job::for_inputs(Vec::new());
        job.apply(&overrides);
        assert_eq!(job.input_patterns(), ["other"]);
    }
}
