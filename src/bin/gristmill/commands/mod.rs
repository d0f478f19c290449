//! One file a command.

pub mod connectors;
pub mod convert;
pub mod diff;
pub mod inspect;
pub mod plan;
pub mod schema;
pub mod verify;

use std::path::{Path, PathBuf};

use gristmill::error::{Error, Kind};
use gristmill::job::{Job, Overrides, check_supported};

use crate::args::JobArgs;

/// Why a command failed: one error or several.
#[derive(Debug)]
pub struct Failure {
    pub errors: Vec<Error>,
    /// The exit code if there is nothing more to tell.
    kind: Kind,
}

impl Failure {
    /// A failure that the user has been told already.
    pub const fn told(kind: Kind) -> Self {
        Self { errors: Vec::new(), kind }
    }

    /// The code of the gravest error.
    pub fn exit_code(&self) -> u8 {
        self.errors.iter().map(|e| e.kind().exit_code()).max().unwrap_or_else(|| self.kind.exit_code())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        vec![error].into()
    }
}

impl From<Vec<Error>> for Failure {
    fn from(errors: Vec<Error>) -> Self {
        Self { errors, kind: Kind::Internal }
    }
}

fn current_dir() -> Result<PathBuf, Failure> {
    std::env::current_dir().map_err(|e| Error::io("find the current directory", Path::new("."), &e).into())
}

/// The job that the arguments of `command` ask for, checked.
fn load(args: &JobArgs, command: &str) -> Result<Job, Failure> {
    let (path, inputs) = job_and_inputs(args);
    let format = args.format.as_deref().map(str::parse).transpose()?;
    let overrides = Overrides { inputs, output: args.output.clone(), format, current_dir: current_dir()? };
    let job = match &path {
        Some(path) => Job::load_with(path, &overrides)?,
        None if overrides.inputs.is_empty() => {
            return Err(Error::usage("found neither a job file nor --input")
                .hint(format!("gristmill {command} JOB, or gristmill {command} --input PATH --output DIR"))
                .into());
        }
        None => {
            let mut job = Job::for_inputs(Vec::new());
            job.apply(&overrides);
            let errors = job.check();
            if !errors.is_empty() {
                return Err(errors.into());
            }
            job
        }
    };
    let unsupported = check_supported(&job);
    if unsupported.is_empty() {
        return Ok(job);
    }
    let file = path.map(|path| path.display().to_string());
    let placed = |error: Error| match &file {
        Some(file) => error.file(file),
        None => error,
    };
    Err(unsupported.into_iter().map(placed).collect::<Vec<_>>().into())
}

/// `--input` takes all that follows it, so that the shell may expand `logs/*.parquet`. In `--input logs/ job.toml` the
/// last one is the job all the same.
fn job_and_inputs(args: &JobArgs) -> (Option<PathBuf>, Vec<String>) {
    let mut inputs = args.input.clone();
    let job = args.job.clone().or_else(|| {
        let last = inputs.pop_if(|last| Path::new(last).extension().is_some_and(|e| e.eq_ignore_ascii_case("toml")));
        last.map(PathBuf::from)
    });
    (job, inputs)
}
