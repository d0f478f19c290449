//! What a job must make sense of beyond types and ranges: keys that need one another, lengths, sums.

use std::collections::BTreeSet;

use super::{Compression, Fill, Format, Job, Space, StateTree};
use crate::error::Error;

/// Every mistake of a well-formed job.
pub(super) fn check(job: &Job) -> Vec<Error> {
    let mut out = Vec::new();
    input(job, &mut out);
    rl_module(job, &mut out);
    output(job, &mut out);
    out
}

fn input(job: &Job, out: &mut Vec<Error>) {
    if job.input.paths.is_empty() {
        out.push(
            Error::usage("found no input, expected at least one file, glob or directory")
                .job_key("input.paths")
                .hint("say what to read: paths = [\"logs/*.parquet\"], or --input on the command line"),
        );
    }
    for (i, path) in job.input.paths.iter().enumerate() {
        if path.trim().is_empty() {
            out.push(Error::usage("found an empty path").job_key(format!("input.paths[{i}]")));
        }
    }
    for (ours, theirs) in &job.input.columns {
        if ours.is_empty() || theirs.is_empty() {
            out.push(
                Error::usage(format!("found {ours:?} = {theirs:?}, expected two column names"))
                    .job_key("input.columns")
                    .hint("our name stands first: columns = { obs = \"observation\" }"),
            );
        }
    }
    // Of a file's column one is made. All but the last name would go without a word.
    for (i, (ours, theirs)) in job.input.columns.iter().enumerate() {
        if let Some((other, _)) = job.input.columns.iter().take(i).find(|(_, t)| *t == theirs) {
            out.push(
                Error::usage(format!(
                    "found the column {theirs:?} as {other:?} and as {ours:?}, expected one name of ours"
                ))
                .job_key(format!("input.columns.{ours}"))
                .hint("keep the name that it is, or write the column twice into the file"),
            );
        }
    }
    if job.input.where_.as_ref().is_some_and(|sql| sql.trim().is_empty()) {
        out.push(Error::usage("found an empty predicate").job_key("input.where").hint("leave the key out to keep all"));
    }
    for (key, space) in [("obs", &job.input.spaces.obs), ("actions", &job.input.spaces.actions)] {
        if let Some(space) = space {
            bounds(space, &format!("input.spaces.{key}"), out);
        }
    }
}

fn bounds(space: &Space, path: &str, out: &mut Vec<Error>) {
    match space {
        Space::Box { shape, low, high, .. } => {
            for (key, bound) in [("low", low), ("high", high)] {
                if let Some(bound) = bound {
                    values(bound, shape, &format!("{path}.{key}"), out);
                }
            }
        }
        Space::Tuple(parts) => {
            for (i, part) in parts.iter().enumerate() {
                bounds(part, &format!("{path}[{i}]"), out);
            }
        }
        Space::Dict(parts) => {
            for (key, part) in parts {
                bounds(part, &format!("{path}.{key}"), out);
            }
        }
        Space::Discrete { .. } | Space::MultiDiscrete { .. } | Space::MultiBinary { .. } => {}
    }
}

/// A list of values must have one for each element of the shape.
fn values(fill: &Fill, shape: &[usize], path: &str, out: &mut Vec<Error>) {
    let expected = shape.iter().try_fold(1_usize, |n, dim| n.checked_mul(*dim));
    if let Fill::Each(values) = fill
        && Some(values.len()) != expected
    {
        let expected = expected.map_or_else(|| "more than memory holds".to_owned(), |n| n.to_string());
        let what = format!("found {} values, expected {expected} for shape {shape:?}", values.len());
        out.push(Error::usage(what).job_key(path).hint("list them in C order, or give one number for all"));
    }
}

fn rl_module(job: &Job, out: &mut Vec<Error>) {
    let module = &job.rl_module;
    if module.stateful && module.max_seq_len.is_none() {
        out.push(no_max_seq_len("rl_module"));
    }
    state(&module.initial_state, "rl_module.initial_state", out);
    for (id, own) in &module.modules {
        let path = format!("rl_module.modules.{id}");
        let settings = module.module(id);
        // Where the common settings already lack it, saying it once is enough.
        if settings.stateful && settings.max_seq_len.is_none() && !module.stateful {
            out.push(no_max_seq_len(&path));
        }
        if let Some(own) = &own.initial_state {
            state(own, &format!("{path}.initial_state"), out);
        }
    }
}

/// RLlib asks for a key in the module's `model_config` here. The same advice in our terms.
fn no_max_seq_len(table: &str) -> Error {
    Error::usage(
        "the module is stateful and has no `max_seq_len`: without it there is no telling how long the sequences are that \
         it is trained on",
    )
    .job_key(format!("{table}.max_seq_len"))
    .hint(format!(
        "set `max_seq_len` under [{table}] to the value of RLlib's `config.rl_module(model_config={{'max_seq_len': ..}})`; \
         RLlib's default model config has 20"
    ))
}

fn state(tree: &StateTree, path: &str, out: &mut Vec<Error>) {
    match tree {
        StateTree::Leaf(leaf) => values(&leaf.fill, &leaf.shape, &format!("{path}.fill"), out),
        StateTree::Tree(children) => {
            for (key, child) in children {
                let path = format!("{path}.{key}");
                if key.is_empty() || key.contains('/') {
                    out.push(
                        Error::usage(format!("found the state name {key:?}, expected a name without `/`"))
                            .job_key(&path)
                            .hint("nested states are nested tables: { actor = { h = { shape = [64] } } }"),
                    );
                }
                if child.is_empty() {
                    out.push(
                        Error::usage("found an empty table, expected a state with `shape`")
                            .job_key(&path)
                            .hint(format!("such as {key} = {{ shape = [64] }}")),
                    );
                }
                state(child, &path, out);
            }
        }
    }
}

fn output(job: &Job, out: &mut Vec<Error>) {
    let output = &job.output;
    if output.path.trim().is_empty() {
        out.push(Error::usage("found an empty path, expected a directory").job_key("output.path"));
    }
    let arrow_has = matches!(output.compression(), Compression::None | Compression::Lz4 | Compression::Zstd(_));
    if output.format == Format::Arrow && !arrow_has {
        out.push(
            Error::usage(format!("Arrow files cannot be compressed with {}", output.compression()))
                .job_key("output.compression")
                .hint("Arrow has `none`, `lz4` and `zstd:1` to `zstd:22`; Parquet has them all"),
        );
    }
    let Some(split) = &output.split else { return };
    let mut folders = BTreeSet::new();
    for (name, fraction) in split {
        let path = format!("output.split.{name}");
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) || !folders.insert(name.to_lowercase())
        {
            out.push(
                Error::usage(format!("found the part {name:?}, expected the name of a folder")).job_key(&path).hint(
                    "letters, digits, `_`, `-` and `.`; names that differ in case only are one folder on some disks",
                ),
            );
        }
        if !(*fraction > 0.0 && *fraction <= 1.0) {
            out.push(Error::usage(format!("found {fraction}, expected a fraction above 0 and up to 1")).job_key(&path));
        }
    }
    let sum: f64 = split.values().sum();
    if (sum - 1.0).abs() > 1e-9 {
        // Rounded for the eye: 0.7 + 0.2 is 0.8999999999999999.
        let sum = (sum * 1e9).round() / 1e9;
        let what = format!("found fractions that sum to {sum}, expected 1");
        out.push(Error::usage(what).job_key("output.split").hint("such as split = { train = 0.9, val = 0.1 }"));
    }
}
