//! The command line: reads arguments, calls the library, shows what it says.

mod args;
mod commands;
#[cfg(unix)]
mod interrupt;
mod progress;
mod report;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use gristmill::error::{Error, Kind};

use crate::args::{Args, Command};
use crate::commands::Failure;

fn main() -> ExitCode {
    report::install_panic_hook();
    // Looked for by hand, so that a mistake in the other arguments is told as JSON too.
    let json = std::env::args_os().any(|arg| arg == "--json");
    guarded(json, || run(json))
}

/// Runs `body`. A panic is a bug: the hook has told it, and it must not look like the user's mistake.
fn guarded(json: bool, body: impl FnOnce() -> Result<(), Failure>) -> ExitCode {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => {
            report::failure(&failure, json);
            ExitCode::from(failure.exit_code())
        }
        Err(_) => {
            if json {
                report::failure(&Error::internal("gristmill has a bug, told on stderr").into(), true);
            }
            ExitCode::from(Kind::Internal.exit_code())
        }
    }
}

fn run(json: bool) -> Result<(), Failure> {
    match Args::try_parse() {
        Ok(args) => match &args.command {
            Command::Convert(args) => commands::convert::run(args),
            Command::Plan(args) => commands::plan::run(args),
            Command::Inspect(args) => commands::inspect::run(args),
            Command::Verify(args) => commands::verify::run(args),
            Command::Diff(args) => commands::diff::run(args),
            Command::Connectors(args) => commands::connectors::run(args),
            Command::Schema(args) => commands::schema::run(args),
        },
        Err(message) => usage(&message, json),
    }
}

/// Help and version are data; the rest of what clap says is an error.
fn usage(message: &clap::Error, json: bool) -> Result<(), Failure> {
    match message.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Only a closed stdout is met here, and then nobody is listening.
            let _ = message.print();
            Ok(())
        }
        _ if json => {
            let text = message.render().to_string();
            let what = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            Err(Error::usage(what).hint("gristmill COMMAND --help lists the arguments").into())
        }
        _ => {
            let _ = message.print();
            Err(Failure::told(Kind::Usage))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_internal_error() {
        let code = guarded(false, || panic!("on purpose"));
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(3)));
    }

    #[test]
    fn the_arguments_are_well_formed() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }
}
