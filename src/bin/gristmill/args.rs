//! The arguments. Their doc comments are the help texts.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

/// Turns recorded RL episodes into the train batches of RLlib's learner connector pipeline, offline.
///
/// gristmill reads replay logs in Parquet or Arrow files, rebuilds the episodes, runs the learner connector pipeline over
/// them and writes what a learner's forward pass reads: one folder of shards (Parquet or Arrow files) per module, with a
/// manifest.
#[derive(Debug, Parser)]
#[command(name = "gristmill", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  gristmill inspect logs/                             what is in these files, what is wrong?
  gristmill plan --input logs/                        what would come out?
  gristmill convert --input logs/ --output shards/    convert, with all defaults
  gristmill convert job.toml                          convert, as a job file says
  gristmill verify shards/                            is the data set what its manifest says?
  gristmill connectors FrameStacking                  what a connector does, and its options

A job file says which columns are which, which connectors run, and what is written:
`gristmill convert --help` shows a small one.

Exit codes: 0 success; 1 the data failed a check; 2 the command, job or input is wrong;
3 the surroundings failed (disk full, permission, a memory limit that is too small, an input that
changes or is removed while it is read).")]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// What is in these files? Episodes, lengths, returns, columns, and every problem.
    ///
    /// Reads a recording as a conversion would, but tells all problems instead of stopping at the first one, and ends with
    /// exit code 0 however many there are. Of a written data set it shows what the manifest says.
    Inspect(InspectArgs),
    /// Check a job without running it, and show what will come out.
    ///
    /// Decides all that schemas, file footers and the first rows can decide, so that a wrong job fails in a second and not
    /// after a terabyte: the columns of each module with dtype and shape, and the agents that go to it. Nothing is written.
    Plan(PlanArgs),
    /// Convert recordings into train batches.
    ///
    /// Reads what the job says, runs its connectors, and writes shards and a manifest. The bytes written depend on the job
    /// and the input alone, not on threads or memory.
    Convert(ConvertArgs),
    /// Check a written data set against its manifest and the rules of train batches.
    ///
    /// Looks at every byte: files and digests, columns, statistics, and what a learner relies on (masks, padding, flags,
    /// time steps). Exit code 0 if all is well, 1 if a check failed, 2 if this is no data set.
    Verify(VerifyArgs),
    /// Compare two data sets: the same training data? If not, what differs, and by how much.
    ///
    /// Rows are matched by module, episode, agent and time step. How a data set is cut into files, its format and its
    /// compression are no difference. Exit code 0 if nothing differs, 1 if something does, 2 if one is no data set.
    Diff(DiffArgs),
    /// List the connectors, or show what one does and its options.
    ///
    /// Connectors are the pieces of the learner pipeline. A job names those that run in front of the algorithm's own:
    /// `[[learner.connectors]]`, then `type = "FrameStacking"` and its options, one a line.
    Connectors(ConnectorsArgs),
    /// Print the JSON Schema of a job or of a manifest.
    ///
    /// That of a job lists every key with its type, default and meaning; editors complete and check job files by it.
    Schema(SchemaArgs),
}

/// Which job, and what stands over it.
#[derive(Debug, clap::Args)]
pub struct JobArgs {
    /// Job file: TOML, or JSON if its name ends in `.json`. Its paths are relative to the file itself. Without one, --input
    /// and the defaults are the job.
    #[arg(value_name = "JOB")]
    pub job: Option<PathBuf>,

    /// Files, globs or directories to read, relative to the current directory, instead of the job's `input.paths`. May be
    /// repeated.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub input: Vec<String>,

    /// Directory to write, relative to the current directory, instead of the job's `output.path`. That is `shards` next to
    /// the job file if it says nothing else; without a job file, in the current directory.
    #[arg(long, value_name = "DIR")]
    pub output: Option<String>,

    /// File format of the shards instead of the job's `output.format`, which is parquet if it says nothing else.
    #[arg(long, value_name = "FORMAT", value_parser = ["parquet", "arrow"])]
    pub format: Option<String>,

    /// Print one JSON document on stdout instead of text; errors too.
    #[arg(long)]
    pub json: bool,
}

/// `gristmill convert`
#[derive(Debug, clap::Args)]
#[command(override_usage = "gristmill convert JOB [OPTIONS]\n       gristmill convert --input PATH... [OPTIONS]")]
#[command(after_help = "\
Examples:
  gristmill convert --input logs/ --output shards/
  gristmill convert job.toml
  gristmill convert job.toml --output /data/run7 --overwrite --threads 8
  gristmill convert job.toml --json > report.json

A small job, for logs whose columns have other names than gristmill's:
  version = 1
  [input]
  paths = [\"logs/*.parquet\"]
  columns = { eps_id = \"episode\", obs = \"observation\", terminateds = \"done\" }
  [learner]
  algorithm = \"PPO\"
  [output]
  path = \"shards\"
`gristmill schema job` prints all keys.")]
pub struct ConvertArgs {
    #[command(flatten)]
    pub job: JobArgs,

    /// Worker threads [default: all cores].
    #[arg(long, value_name = "N", value_parser = parse_threads)]
    pub threads: Option<NonZeroUsize>,

    /// Memory to stay under, such as 4GiB, 500MB or a number of bytes; at least 64MiB [default: a quarter of the machine's].
    /// What does not fit goes to scratch files. It changes no byte of the output.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory_limit: Option<u64>,

    /// Folder for scratch files [default: the output directory, or the folder it will be in]. They have no names, and are
    /// gone when the run ends, however it ends.
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,

    /// Go on where an interrupted run stopped: shards that it finished are kept, if job and input are the same.
    ///
    /// Where nothing was begun, it begins. The result is that of a run that nothing interrupted.
    #[arg(long, conflicts_with = "overwrite")]
    pub resume: bool,

    /// Replace the data set that is in the output directory, once the new one is whole.
    #[arg(long)]
    pub overwrite: bool,

    /// Show neither progress nor summary.
    #[arg(long, short)]
    pub quiet: bool,
}

/// `gristmill plan`
#[derive(Debug, clap::Args)]
#[command(override_usage = "gristmill plan JOB [OPTIONS]\n       gristmill plan --input PATH... [OPTIONS]")]
#[command(after_help = "\
Examples:
  gristmill plan job.toml
  gristmill plan --input logs/
  gristmill plan job.toml --json")]
pub struct PlanArgs {
    #[command(flatten)]
    pub job: JobArgs,
}

/// What commands that only look have in common.
#[derive(Debug, clap::Args)]
pub struct LookArgs {
    /// Worker threads [default: all cores].
    #[arg(long, value_name = "N", value_parser = parse_threads)]
    pub threads: Option<NonZeroUsize>,

    /// Print one JSON document on stdout instead of text; errors too.
    #[arg(long)]
    pub json: bool,
}

/// `gristmill inspect`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gristmill inspect logs/
  gristmill inspect logs/*.parquet --job job.toml      with its column names and layout
  gristmill inspect shards/                            a written data set, from its manifest
  gristmill inspect logs/ --json > logs.json")]
pub struct InspectArgs {
    /// Files, globs or directories of a recording; or the directory of a written data set.
    #[arg(value_name = "PATH", required = true, num_args = 1..)]
    pub paths: Vec<String>,

    /// Job file whose `[input]` says how the recording is laid out and which column is which. Its `paths` are not used.
    #[arg(long, value_name = "JOB")]
    pub job: Option<PathBuf>,

    #[command(flatten)]
    pub look: LookArgs,
}

/// `gristmill verify`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gristmill verify shards/
  gristmill verify shards/ --json > checks.json
  gristmill verify shards/ --quiet && train.py")]
pub struct VerifyArgs {
    /// Directory of the data set: the one with `manifest.json`.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,

    #[command(flatten)]
    pub look: LookArgs,

    /// Show nothing but failed checks.
    #[arg(long, short)]
    pub quiet: bool,
}

/// `gristmill diff`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gristmill diff old/ new/
  gristmill diff old/ new/ --tolerance 1e-6
  gristmill diff old/ new/ --json > differences.json")]
pub struct DiffArgs {
    /// Directory of the first data set.
    #[arg(value_name = "DIR_A")]
    pub a: PathBuf,

    /// Directory of the second data set.
    #[arg(value_name = "DIR_B")]
    pub b: PathBuf,

    /// Largest absolute or relative difference of two values that still counts as none.
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = parse_tolerance)]
    pub tolerance: f64,

    #[command(flatten)]
    pub look: LookArgs,

    /// Show nothing: the exit code tells.
    #[arg(long, short)]
    pub quiet: bool,
}

/// `gristmill connectors`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gristmill connectors                  all of them, a line each
  gristmill connectors FrameStacking    one, with a figure and its options")]
pub struct ConnectorsArgs {
    /// Name of a connector, as in the job's `type`.
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
}

/// `gristmill schema`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gristmill schema job > job.schema.json      for editors that complete and check TOML or JSON
  gristmill schema manifest")]
pub struct SchemaArgs {
    /// Of which document.
    #[arg(value_name = "DOCUMENT")]
    pub of: Document,
}

/// Documents that have a schema.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Document {
    /// The job file.
    Job,
    /// The manifest of a written data set.
    Manifest,
}

/// A number of threads.
fn parse_threads(text: &str) -> Result<NonZeroUsize, String> {
    text.trim().parse().map_err(|_| format!("found {text}, expected a whole number of at least 1"))
}

/// A difference that counts as none.
fn parse_tolerance(text: &str) -> Result<f64, String> {
    let number = text.trim().parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0);
    number.ok_or_else(|| format!("found {text}, expected a number of at least 0, such as 1e-6"))
}

/// Bytes from `4GiB`, `500MB`, `1.5G` or `1048576`. As for memory elsewhere, a bare K, M, G or T counts in 1024s.
fn parse_size(text: &str) -> Result<u64, String> {
    const EXPECTED: &str = "expected a size such as 4GiB, 500MB or a number of bytes";
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1_u64,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(format!("found the unit `{}`, {EXPECTED}", unit.trim())),
    };
    let bytes = if let Ok(whole) = number.parse::<u64>() {
        whole.checked_mul(factor)
    } else {
        let number: f64 = number.parse().map_err(|_| EXPECTED.to_owned())?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "digits and a point: not negative")]
        Some((number * factor as f64) as u64)
    };
    match bytes {
        Some(0) => Err(format!("found 0, {EXPECTED}")),
        Some(bytes) => Ok(bytes),
        None => Err(format!("found more bytes than there are, {EXPECTED}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads() {
        assert_eq!(parse_threads("3").map(NonZeroUsize::get), Ok(3));
        assert_eq!(parse_threads("0").unwrap_err(), "found 0, expected a whole number of at least 1");
        for wrong in ["", "-1", "two", "1.5"] {
            assert!(parse_threads(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_job_that_the_help_shows_is_one() {
        use clap::CommandFactory;
        let command = Args::command();
        let convert = command.find_subcommand("convert").expect("a command");
        let help = convert.get_after_help().expect("examples").to_string();
        let job =
            &help[help.find("  version = 1").expect("a job")..help.find("`gristmill schema job`").expect("an end")];
        let job = gristmill::job::Job::from_toml_str(job).expect("a job without mistakes");
        assert_eq!((job.input.columns.len(), job.output.path.as_str()), (3, "shards"));
    }

    #[test]
    fn tolerances() {
        assert_eq!((parse_tolerance("1e-6"), parse_tolerance("0")), (Ok(1e-6), Ok(0.0)));
        for wrong in ["", "x", "-1", "nan", "inf"] {
            assert!(parse_tolerance(wrong).unwrap_err().ends_with("such as 1e-6"), "{wrong}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("4GiB", 4 << 30), ("500MB", 500_000_000), ("1.5G", 3 << 29), ("1048576", 1 << 20), ("64 kib", 64 << 10)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "0", "GiB", "4XB", "-1", "1.2.3G", "99999999999T"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
