//! `gristmill verify`

use std::fmt::Write as _;
use std::num::NonZeroUsize;

use gristmill::error::Kind;
use gristmill::progress::{Progress, Silent};
use gristmill::verify::{CheckName, Report, Status, verify};

use super::Failure;
use crate::args::VerifyArgs;
use crate::progress;
use crate::report::{self, bytes, count};

pub fn run(args: &VerifyArgs) -> Result<(), Failure> {
    let bar = progress::Bar::on_terminal();
    let progress: &dyn Progress = match &bar {
        Some(bar) if !args.quiet && !args.look.json => bar,
        _ => &Silent,
    };
    let report = verify(&args.directory, args.look.threads.map(NonZeroUsize::get), progress);
    if let Some(bar) = &bar {
        bar.clear();
    }
    let report = report?;
    if args.look.json {
        report::print_json(&report)?;
    } else if !(args.quiet && report.passed) {
        report::print(&verified(&report, args.quiet))?;
    }
    if report.passed { Ok(()) } else { Err(Failure::told(Kind::Data)) }
}

/// What a check is about.
const fn about(name: CheckName) -> (&'static str, &'static str) {
    match name {
        CheckName::Manifest => ("manifest", "agrees with itself"),
        CheckName::Files => ("files", "all there, and no others"),
        CheckName::Bytes => ("bytes", "sizes and digests of the files"),
        CheckName::Schema => ("schema", "columns, dtypes and shapes"),
        CheckName::Rows => ("rows", "numbers of rows"),
        CheckName::Values => ("values", "readable, and none null"),
        CheckName::Content => ("content", "digests of the columns, from their values"),
        CheckName::Statistics => ("statistics", "of the columns, from their values"),
        CheckName::Mask => ("mask", "loss_mask against seq_lens"),
        CheckName::Padding => ("padding", "zeros in padded places"),
        CheckName::Flags => ("flags", "episodes end where they are flagged"),
        CheckName::Time => ("time", "t goes on inside an episode"),
        CheckName::Windows => ("windows", "those that are stored once lie inside their tables"),
        CheckName::State => ("state", "recurrent states have no time dimension"),
        CheckName::Counts => ("counts", "what was read was written or left out"),
    }
}

fn verified(report: &Report, only_failures: bool) -> String {
    let mut out = String::new();
    let tables = match report.table_rows {
        0 => String::new(),
        rows => format!(" (and {} of tables)", count(rows, "row")),
    };
    let read = format!(
        "{}, {} and {}{tables}",
        count(report.modules, "module"),
        count(report.shards, "shard"),
        count(report.rows, "row")
    );
    if !only_failures {
        let _ = writeln!(out, "checked {} ({read}, {})\n", report.directory, bytes(report.bytes));
    }
    for check in &report.checks {
        let (name, what) = about(check.name);
        let status = match check.status {
            Status::Passed => "ok",
            Status::Failed => "FAILED",
            Status::Skipped => "skipped",
        };
        if only_failures && check.status != Status::Failed {
            continue;
        }
        let _ = writeln!(out, "{status:<8}{name:<12}{what}");
        for error in &check.first {
            let _ = writeln!(out, "          {}", error.to_string().replace('\n', "\n          "));
        }
        let more = check.failures - (check.first.len() as u64).min(check.failures);
        if more > 0 {
            let _ = writeln!(out, "          and {} more", report::thousands(more));
        }
        for why in check.skipped.iter().filter(|_| check.status != Status::Passed) {
            let _ = writeln!(out, "          not everywhere: {why}");
        }
    }
    if !only_failures {
        let failed = report.checks.iter().filter(|c| c.status == Status::Failed).count() as u64;
        let verdict = if report.passed {
            "the data set is what its manifest says".to_owned()
        } else {
            format!("{} failed", count(failed, "check"))
        };
        let _ = writeln!(out, "\n{verdict}");
    }
    out
}
