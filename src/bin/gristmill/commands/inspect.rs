//! `gristmill inspect`

use std::fmt::Write as _;
use std::num::NonZeroUsize;

use gristmill::error::visible;
use gristmill::inspect::{DataSet, EpisodeSummary, Problem, Recording, Report, Spread, inspect};
use gristmill::job::{Job, Overrides};
use gristmill::progress::{Progress, Silent};

use super::{Failure, current_dir};
use crate::args::InspectArgs;
use crate::progress;
use crate::report::{self, bytes, count, thousands};

/// Files listed one by one.
const FILES: usize = 20;

pub fn run(args: &InspectArgs) -> Result<(), Failure> {
    let overrides = Overrides { inputs: args.paths.clone(), output: None, format: None, current_dir: current_dir()? };
    let job = if let Some(path) = &args.job {
        Job::load_with(path, &overrides)?
    } else {
        let mut job = Job::for_inputs(Vec::new());
        job.apply(&overrides);
        job
    };
    let bar = progress::Bar::on_terminal();
    let progress: &dyn Progress = match &bar {
        Some(bar) if !args.look.json => bar,
        _ => &Silent,
    };
    let found = inspect(&job, args.look.threads.map(NonZeroUsize::get), progress);
    if let Some(bar) = &bar {
        bar.clear();
    }
    let found = found?;
    if args.look.json {
        return report::print_json(&found);
    }
    report::print(&match &found {
        Report::Recording(recording) => recording_text(recording),
        Report::DataSet(data_set) => data_set_text(data_set),
    })
}

fn recording_text(found: &Recording) -> String {
    let mut out = String::new();
    let size = found.files.iter().map(|f| f.bytes).sum();
    let rows = found.files.iter().map(|f| f.rows).sum();
    let files = found.files.len() as u64;
    let _ = writeln!(out, "files     {} ({}), {}", count(files, "file"), bytes(size), count(rows, "row"));
    for file in found.files.iter().take(FILES) {
        let what = match file.format {
            Some(format) => {
                format!("{format}, {}, {}", count(file.row_groups as u64, "row group"), count(file.rows, "row"))
            }
            None => "cannot be opened".to_owned(),
        };
        let _ = writeln!(out, "            {}  {what}", visible(&file.name));
    }
    if found.files.len() > FILES {
        let _ = writeln!(out, "            and {} more", thousands((found.files.len() - FILES) as u64));
    }
    let _ = writeln!(out, "layout    {}", found.layout.as_deref().unwrap_or("not recognised"));
    let width = found.columns.iter().map(|c| c.name.chars().count()).max().unwrap_or(0).min(40);
    let _ = writeln!(out, "columns   as recorded");
    for column in &found.columns {
        let _ = writeln!(out, "            {:width$}  {}", visible(&column.name), visible(&column.r#type));
    }
    if !found.step.is_empty() {
        let width = found.step.iter().map(|c| c.0.chars().count()).max().unwrap_or(0).min(40);
        let _ = writeln!(out, "a step    as read");
        for (name, ty) in &found.step {
            let _ = writeln!(out, "            {:width$}  {ty}", visible(name));
        }
    }
    match &found.episodes {
        Some(episodes) => episodes_text(episodes, &mut out),
        None => {
            let _ = writeln!(out, "episodes  cannot be told; see the problems");
        }
    }
    problems_text(&found.problems, &mut out);
    out
}

fn episodes_text(found: &EpisodeSummary, out: &mut String) {
    let chunks =
        if found.chunks > found.count { format!(" in {}", count(found.chunks, "chunk")) } else { String::new() };
    let malformed =
        if found.malformed > 0 { format!(", and {} malformed", thousands(found.malformed)) } else { String::new() };
    let _ =
        writeln!(out, "episodes  {}{chunks}, {}{malformed}", count(found.count, "episode"), count(found.steps, "step"));
    let spread = |s: &Spread| format!("{} to {}, median {}", s.min, s.max, s.median);
    let _ = writeln!(out, "            lengths  {}", spread(&found.length));
    if let Some(returns) = &found.returns {
        let _ = writeln!(out, "            returns  {}", spread(returns));
    }
    let [terminated, truncated, open] = [found.terminated, found.truncated, found.open].map(thousands);
    let _ = writeln!(out, "            ends     {terminated} terminated, {truncated} truncated, {open} open");
    let list = |counts: &indexmap::IndexMap<String, u64>| {
        counts.iter().map(|(name, n)| format!("{} {}", visible(name), thousands(*n))).collect::<Vec<_>>().join(", ")
    };
    if found.modules.len() > 1 || !found.agents.is_empty() {
        let _ = writeln!(out, "            modules  {}", list(&found.modules));
    }
    if !found.agents.is_empty() {
        let _ = writeln!(out, "            agents   {}", list(&found.agents));
    }
}

fn problems_text(problems: &[Problem], out: &mut String) {
    if problems.is_empty() {
        let _ = writeln!(out, "problems  none");
        return;
    }
    let _ = writeln!(out, "problems");
    for problem in problems {
        let _ = writeln!(out, "{:>10}  {}", thousands(problem.count), visible(&problem.what));
        if let Some(first) = &problem.first {
            let _ = writeln!(out, "            at: {}", visible(first));
        }
        if let Some(hint) = &problem.hint {
            let _ = writeln!(out, "            hint: {hint}");
        }
    }
}

fn data_set_text(found: &DataSet) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "data set  {} (gristmill {})", found.directory, visible(&found.gristmill));
    let _ = writeln!(out, "content   {}", visible(&found.content_digest));
    let [read, written] = found.episodes.map(thousands);
    let [steps_in, steps_out] = found.steps.map(thousands);
    let _ =
        writeln!(out, "read      {read} episodes, {steps_in} steps from {}", count(found.input_files as u64, "file"));
    let _ = writeln!(out, "written   {written} episodes, {steps_out} steps");
    let _ = writeln!(out, "pieces    {}", visible(&found.pieces.join(", ")));
    for module in &found.modules {
        let shards = count(module.shards as u64, "shard");
        let _ = writeln!(
            out,
            "\n  {}: {} in {shards}, {}",
            visible(&module.name),
            count(module.rows, "row"),
            bytes(module.bytes)
        );
        let width = module.columns.iter().map(|c| c.0.chars().count()).max().unwrap_or(0).min(40);
        for (name, ty) in &module.columns {
            let _ = writeln!(out, "    {:width$}  {ty}", visible(name));
        }
    }
    out.push('\n');
    problems_text(&found.problems, &mut out);
    out
}
