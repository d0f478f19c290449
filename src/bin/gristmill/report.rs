//! What a person reads: summaries, errors, numbers. Nothing here computes.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use gristmill::error::{Error, visible};
use gristmill::job::Job;
use gristmill::plan::Plan;
use gristmill::run::Report;
use serde::Serialize;
use serde_json::{Value, json};

use crate::commands::Failure;

// ---- where text goes ------------------------------------------------------------------------------------------------

/// Writes to stdout. A reader that has gone away (`gristmill connectors | head -1`) is no error.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Error::environment(format!("cannot write to stdout: {e}")).into())
        }
        _ => Ok(()),
    }
}

/// Writes one JSON document to stdout.
pub fn print_json(document: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(document).map_err(|e| Error::internal(format!("JSON: {e}")))?;
    print(&(text + "\n"))
}

/// Tells a failure: as text on stderr, or as one JSON document on stdout.
pub fn failure(failure: &Failure, json: bool) {
    if failure.errors.is_empty() {
        return;
    }
    // Where even this cannot be written, only the exit code is left to tell it.
    if json {
        let errors: Vec<Value> = failure.errors.iter().map(Error::to_json).collect();
        let _ = print_json(&json!({ "errors": errors }));
    } else {
        let _ = std::io::stderr().lock().write_all(errors_text(&failure.errors).as_bytes());
    }
}

/// A panic is a bug of gristmill: one plain line. The backtrace is there for who asks for it by `RUST_BACKTRACE=1`.
pub fn install_panic_hook() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    std::panic::set_hook(Box::new(|info| {
        // A decoder that gave up on a damaged file; the reader turns it into an error with the file's name.
        if gristmill::source::file::in_guard() {
            return;
        }
        // When one thread falls others follow; the first one is the cause.
        if TOLD.swap(true, Ordering::SeqCst) {
            return;
        }
        let message = info.payload_as_str().unwrap_or("a panic without a message").replace('\n', "; ");
        let place = info.location().map(|l| format!(" ({}:{})", l.file(), l.line())).unwrap_or_default();
        let mut stderr = std::io::stderr().lock();
        let _ = writeln!(
            stderr,
            "error: gristmill has a bug: {message}{place}; please report it with the command, the job and gristmill {}",
            env!("CARGO_PKG_VERSION")
        );
        let trace = std::backtrace::Backtrace::capture();
        if trace.status() == std::backtrace::BacktraceStatus::Captured {
            let _ = writeln!(stderr, "{trace}");
        }
    }));
}

// ---- errors ---------------------------------------------------------------------------------------------------------

fn errors_text(errors: &[Error]) -> String {
    let mut out = String::new();
    for error in errors {
        let _ = writeln!(out, "error: {error}");
    }
    if errors.len() > 1 {
        let _ = writeln!(out, "{} errors", errors.len());
    }
    out
}

// ---- summaries ------------------------------------------------------------------------------------------------------

/// The summary after `convert`. `complete` if the data set was there already, and whole.
pub fn converted(report: &Report, complete: bool) -> String {
    let mut out = String::new();
    // An episode may come in chunks or twice, and have several agents; then what is counted below are these.
    let episodes = if report.episode_ids < report.episodes_in {
        let parts = count(report.episodes_in, "part");
        format!("{} ({parts}: chunks, agents or copies)", count(report.episode_ids, "episode"))
    } else {
        count(report.episodes_in, "episode")
    };
    let _ = writeln!(
        out,
        "read    {episodes} and {} from {} ({})",
        count(report.steps_in, "step"),
        count(report.files, "file"),
        bytes(report.input_bytes)
    );
    let _ = writeln!(out, "layout  {}", report.input_layout);
    let _ = if complete {
        writeln!(out, "found   {}, complete already: nothing was left to write", report.output)
    } else {
        writeln!(out, "wrote   {}", report.output)
    };
    for (module, written) in &report.modules {
        let _ = writeln!(
            out,
            "\n  {module}: {} in {}, {}",
            count(written.rows, "row"),
            count(written.shards, "shard"),
            bytes(written.bytes)
        );
        out.push_str(&table(&pairs(&written.columns), "    "));
    }
    if report.modules.is_empty() {
        out.push_str("\n  no rows: the recording has no steps\n");
    }

    let mut odd = Vec::new();
    if report.filtered_out > 0 {
        odd.push(format!("{} left out by `where`", count(report.filtered_out, "episode")));
    }
    odd.extend(report.problems.iter().cloned());
    section(&mut out, "odd", &odd);

    let repairs: Vec<[String; 2]> =
        report.repairs.iter().filter(|(_, n)| **n > 0).map(|(what, n)| [count(*n, "row"), what.clone()]).collect();
    if !repairs.is_empty() {
        out.push_str(
            "\nrepaired, where RLlib 2.60 would have given something else (compat = \"rllib-2.60\" keeps it)\n",
        );
        out.push_str(&table(&repairs, "  "));
    }

    let seconds = report.seconds.max(1e-9);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rates are positive and far below 2^63"
    )]
    let rate = |n: u64| (n as f64 / seconds) as u64;
    let _ = writeln!(
        out,
        "\ntook    {}: {} steps/s, {}/s",
        duration(report.seconds),
        thousands(rate(report.steps_in)),
        bytes(rate(report.input_bytes))
    );
    out
}

/// Agents of a module that are named one by one.
const AGENTS: usize = 8;

/// What `plan` found out.
pub fn planned(job: &Job, plan: &Plan) -> String {
    let mut out = String::new();
    let _ = write!(out, "reads   {} ({})", count(plan.files, "file"), bytes(plan.input_bytes));
    for (n, what) in [(plan.episodes, "episode"), (plan.steps, "step")] {
        if let Some(n) = n {
            let _ = write!(out, ", {}", count(n, what));
        }
    }
    let _ = writeln!(out, "\nlayout  {}", plan.input_layout);
    out.push_str(&table(&pairs(&plan.input_columns), "    "));

    let _ = writeln!(
        out,
        "\nruns    {} (compat = \"{}\")",
        count(plan.connectors.len() as u64, "connector"),
        job.learner.compat
    );
    for (i, connector) in plan.connectors.iter().enumerate() {
        let _ = writeln!(out, "  {i:>2}  {connector}");
    }

    let what = format!(
        "{}, {}, {} a shard",
        job.output.format,
        job.output.compression(),
        count(job.output.rows_per_shard as u64, "row")
    );
    let _ = writeln!(out, "\nwrites  {} ({what})", plan.output);
    for (module, columns) in &plan.modules {
        let agents = plan.agents.get(module).map(|agents| {
            let shown: Vec<String> = agents.iter().take(AGENTS).map(|agent| visible(agent)).collect();
            let more = agents.len() - shown.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!(": {} {}{more}", if agents.len() == 1 { "agent" } else { "agents" }, shown.join(", "))
        });
        let _ = writeln!(out, "\n  {module}{}", agents.unwrap_or_default());
        out.push_str(&table(&pairs(columns), "    "));
    }
    section(&mut out, "odd", &plan.problems);
    out
}

fn section(out: &mut String, title: &str, lines: &[String]) {
    for (i, line) in lines.iter().enumerate() {
        let _ = if i == 0 { write!(out, "\n{title:<6}  {line}\n") } else { writeln!(out, "        {line}") };
    }
}

fn pairs(columns: &[(String, String)]) -> Vec<[String; 2]> {
    columns.iter().map(|(name, ty)| [visible(name), ty.clone()]).collect()
}

/// Lines of cells, padded so that columns align.
pub fn table<const N: usize, S: AsRef<str>>(rows: &[[S; N]], indent: &str) -> String {
    let width = |cell: &S| cell.as_ref().chars().count();
    let widths: [usize; N] = std::array::from_fn(|i| rows.iter().map(|row| width(&row[i])).max().unwrap_or(0));
    let mut out = String::new();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, n)| format!("{:<n$}", cell.as_ref())).collect();
        let _ = writeln!(out, "{indent}{}", cells.join("  ").trim_end());
    }
    out
}

/// `text` in lines of at most `width` characters, each behind `indent`; a longer word has a line of its own.
pub fn wrapped(text: &str, width: usize, indent: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(format!("{indent}{word}")),
        }
    }
    lines.join("\n") + "\n"
}

// ---- numbers --------------------------------------------------------------------------------------------------------

/// `1,234 rows`, `1 row`.
pub fn count(n: u64, what: &str) -> String {
    format!("{} {what}{}", thousands(n), if n == 1 { "" } else { "s" })
}

/// `1,234,567`
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `512 bytes`, `12.3 MB`
pub fn bytes(n: u64) -> String {
    if n < 1000 {
        return count(n, "byte");
    }
    let mut value = n as f64 / 1000.0;
    let mut units = ["kB", "MB", "GB", "TB", "PB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    while value >= 999.95 {
        let Some(next) = units.next() else { break };
        (value, unit) = (value / 1000.0, next);
    }
    format!("{value:.1} {unit}")
}

/// `420 ms`, `3.1 s`, `3 min 12 s`, `2 h 5 min`
pub fn duration(seconds: f64) -> String {
    if seconds < 0.9995 {
        return format!("{:.0} ms", seconds * 1000.0);
    }
    if seconds < 9.95 && seconds.fract() != 0.0 {
        return format!("{seconds:.1} s");
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time that somebody waits for")]
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use gristmill::run::ModuleReport;
    use indexmap::IndexMap;

    use super::*;

    #[test]
    fn numbers() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0, 1, 999, 1000, 999_949, 999_950, 12_345_678].map(bytes),
            ["0 bytes", "1 byte", "999 bytes", "1.0 kB", "999.9 kB", "1.0 MB", "12.3 MB"]
        );
        assert_eq!(bytes(u64::MAX), "18446.7 PB");
        assert_eq!(
            [0.0, 0.421, 1.0, 9.5, 12.3, 59.7, 192.0, 7500.0].map(duration),
            ["0 ms", "421 ms", "1 s", "9.5 s", "12 s", "1 min 0 s", "3 min 12 s", "2 h 5 min"]
        );
    }

    #[test]
    fn a_summary_that_a_person_understands() {
        let module = ModuleReport {
            columns: vec![("obs".to_owned(), "float32[4]".to_owned()), ("terminateds".to_owned(), "bool".to_owned())],
            rows: 12_000,
            shards: 1,
            bytes: 345_678,
        };
        let report = Report {
            input_layout: "rllib-columns, because the files have the columns `eps_id`, `obs` and `new_obs`".to_owned(),
            files: 3,
            input_bytes: 1_500_000,
            episodes_in: 120,
            episode_ids: 120,
            steps_in: 12_000,
            duplicates_dropped: 2,
            bad_episodes: 0,
            bad_steps: 0,
            bad_files: 0,
            filtered_out: 0,
            discontinuities: 1,
            problems: vec!["7 steps recorded twice were dropped".to_owned(), "5 episodes are unfinished".to_owned()],
            modules: IndexMap::from([("default_policy".to_owned(), module)]),
            repairs: IndexMap::from([("integer rewards".to_owned(), 7), ("nothing".to_owned(), 0)]),
            seconds: 0.5,
            output: "shards".to_owned(),
        };
        assert_eq!(
            converted(&report, false),
            "\
read    120 episodes and 12,000 steps from 3 files (1.5 MB)
layout  rllib-columns, because the files have the columns `eps_id`, `obs` and `new_obs`
wrote   shards

  default_policy: 12,000 rows in 1 shard, 345.7 kB
    obs          float32[4]
    terminateds  bool

odd     7 steps recorded twice were dropped
        5 episodes are unfinished

repaired, where RLlib 2.60 would have given something else (compat = \"rllib-2.60\" keeps it)
  7 rows  integer rewards

took    500 ms: 24,000 steps/s, 3.0 MB/s
"
        );
    }

    #[test]
    fn a_plan_shows_what_will_come_out() {
        let plan = Plan {
            input_layout: "steps".to_owned(),
            files: 1,
            input_bytes: 2048,
            steps: Some(100),
            input_columns: vec![("obs".to_owned(), "float32[4]".to_owned())],
            connectors: vec!["BatchIndividualItems".to_owned(), "NumpyToTensor".to_owned()],
            modules: IndexMap::from([("default_policy".to_owned(), vec![("obs".to_owned(), "float32[4]".to_owned())])]),
            output: "shards".to_owned(),
            ..Plan::default()
        };
        assert_eq!(
            planned(&Job::for_inputs(vec!["x".to_owned()]), &plan),
            "\
reads   1 file (2.0 kB), 100 steps
layout  steps
    obs  float32[4]

runs    2 connectors (compat = \"correct\")
   0  BatchIndividualItems
   1  NumpyToTensor

writes  shards (parquet, zstd:1, 65,536 rows a shard)

  default_policy
    obs  float32[4]
"
        );
    }

    #[test]
    fn errors_stand_one_after_the_other() {
        let errors = [Error::usage("a").job_key("x.y").hint("h"), Error::data("b").episode("e")];
        assert_eq!(
            errors_text(&errors),
            "error: a\n  at: job key `x.y`\n  hint: h\nerror: b\n  at: episode \"e\"\n2 errors\n"
        );
        assert_eq!(errors_text(&errors[..1]), "error: a\n  at: job key `x.y`\n  hint: h\n");
        assert_eq!(
            errors[0].to_json(),
            json!({ "kind": "usage", "what": "a", "place": { "job_key": "x.y" }, "hint": "h" })
        );
    }
}
