//! `gristmill diff`

use std::fmt::Write as _;
use std::num::NonZeroUsize;

use gristmill::diff::{Counted, ModuleDifference, Options, Report, diff};
use gristmill::error::Kind;
use gristmill::progress::{Progress, Silent};

use super::Failure;
use crate::args::DiffArgs;
use crate::progress;
use crate::report::{self, count, thousands};

pub fn run(args: &DiffArgs) -> Result<(), Failure> {
    let bar = progress::Bar::on_terminal();
    let progress: &dyn Progress = match &bar {
        Some(bar) if !args.quiet && !args.look.json => bar,
        _ => &Silent,
    };
    let options = Options { tolerance: args.tolerance, threads: args.look.threads.map(NonZeroUsize::get) };
    let report = diff(&args.a, &args.b, options, progress);
    if let Some(bar) = &bar {
        bar.clear();
    }
    let report = report?;
    if args.look.json {
        report::print_json(&report)?;
    } else if !args.quiet {
        report::print(&differences(&report, args.tolerance))?;
    }
    if report.same { Ok(()) } else { Err(Failure::told(Kind::Data)) }
}

fn differences(report: &Report, tolerance: f64) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "a  {}\nb  {}\n", report.a, report.b);
    for module in &report.modules {
        module_text(module, &mut out);
    }
    let _ = match (report.same, report.by_digest) {
        (true, true) => writeln!(out, "the same training data, by their content digests"),
        (true, false) if tolerance > 0.0 => {
            writeln!(out, "the same training data, within the tolerance of {tolerance:e}")
        }
        (true, false) => writeln!(out, "the same training data, value by value"),
        _ => writeln!(out, "they differ"),
    };
    out
}

fn module_text(module: &ModuleDifference, out: &mut String) {
    let [a, b] = module.rows.map(|n| count(n, "row"));
    if let Some(side) = module.only_in {
        let rows = if side == "a" { a } else { b };
        let _ = writeln!(out, "{}: only in {side} ({rows})\n", module.module);
        return;
    }
    let _ = writeln!(out, "{}: {a} in a, {b} in b", module.module);
    for (name, ty) in &module.columns_removed {
        let _ = writeln!(out, "  column   only in a  {name}  {ty}");
    }
    for (name, ty) in &module.columns_added {
        let _ = writeln!(out, "  column   only in b  {name}  {ty}");
    }
    for (name, a, b) in &module.columns_changed {
        let _ = writeln!(out, "  column   changed    {name}  {a} -> {b}");
    }
    for (what, counted) in [
        ("only in a", &module.episodes_removed),
        ("only in b", &module.episodes_added),
        ("changed  ", &module.episodes_changed),
    ] {
        if counted.count > 0 {
            let _ = writeln!(out, "  episodes {what}  {}: {}", thousands(counted.count), listed(counted));
        }
    }
    for (what, rows) in [("only in a", module.rows_removed), ("only in b", module.rows_added)] {
        if rows > 0 {
            let _ = writeln!(out, "  rows     {what}  {} of episodes that both have", thousands(rows));
        }
    }
    if module.reordered {
        let _ = writeln!(out, "  rows     in another order");
    }
    for column in &module.values {
        let _ = writeln!(
            out,
            "  values   {}: {} in {}; largest difference {:e} absolute, {:e} relative{}",
            column.column,
            count(column.values, "value"),
            count(column.rows, "row"),
            column.largest_absolute,
            column.largest_relative,
            if column.not_finite > 0 {
                format!("; {} not finite on one side", thousands(column.not_finite))
            } else {
                String::new()
            }
        );
        if let Some(first) = &column.first {
            let [x, y] = &first.values;
            let _ = writeln!(out, "             first: {x} -> {y}, element {}", first.element);
            let _ = writeln!(out, "               a: {}\n               b: {}", first.a, first.b);
        }
    }
    out.push('\n');
}

fn listed(counted: &Counted) -> String {
    let shown: Vec<String> = counted.first.iter().map(|id| gristmill::error::visible(id)).collect();
    let more = counted.count - shown.len() as u64;
    let more = if more > 0 { format!(" and {} more", thousands(more)) } else { String::new() };
    format!("{}{more}", shown.join(", "))
}
