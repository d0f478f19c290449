//! `gristmill convert`

use std::num::NonZeroUsize;
use std::path::Path;

use gristmill::progress::{Progress, Silent};
use gristmill::run::{self, Options};
use gristmill::sink::{Existing, MANIFEST, OutputDir};

use super::{Failure, load};
use crate::args::ConvertArgs;
use crate::{progress, report};

pub fn run(args: &ConvertArgs) -> Result<(), Failure> {
    let job = load(&args.job, "convert")?;
    let options = Options {
        threads: args.threads.map(NonZeroUsize::get),
        memory_limit: args.memory_limit,
        scratch: args.scratch.clone(),
        existing: match (args.resume, args.overwrite) {
            (true, _) => Existing::Resume,
            (_, true) => Existing::Replace,
            _ => Existing::Refuse,
        },
        ..Options::default()
    };
    #[cfg(unix)]
    crate::interrupt::explain(job.output_path());
    // What `--resume` finds whole it leaves as it is.
    let complete = args.resume && is_complete(&job.output_path());
    let bar = progress::Bar::on_terminal();
    let progress: &dyn Progress = match &bar {
        Some(bar) if !args.quiet && !args.job.json => bar,
        _ => &Silent,
    };
    let done = run::convert(&job, &options, progress);
    if let Some(bar) = &bar {
        bar.clear();
    }
    let done = done?;
    if args.job.json {
        report::print_json(&done)
    } else if args.quiet {
        Ok(())
    } else {
        report::print(&report::converted(&done, complete))
    }
}

/// Whether there is a data set, and nothing unfinished in it or beside it.
fn is_complete(output: &Path) -> bool {
    output.join(MANIFEST).exists() && matches!(OutputDir::is_unfinished(output), Ok(false))
}
