//! `gristmill connectors`

use std::fmt::Write as _;
use std::io::IsTerminal as _;

use gristmill::connectors::{Entry, all};
use gristmill::error::{Error, closest};
use gristmill::job::describe_shape;
use serde_json::Value;

use super::Failure;
use crate::args::ConnectorsArgs;
use crate::report;

pub fn run(args: &ConnectorsArgs) -> Result<(), Failure> {
    let text = match &args.name {
        None => listed(all()),
        Some(name) => match all().iter().find(|entry| entry.name == name) {
            // The documentation is Markdown: as it is for a file or a pipe, and plain for who reads it here.
            Some(entry) if std::io::stdout().is_terminal() => plain(&described(entry)),
            Some(entry) => described(entry),
            None => return Err(unknown(name, all()).into()),
        },
    };
    report::print(&text)
}

/// Markdown as plain text: figures are indented instead of fenced, tables have even columns, code has no marks.
fn plain(markdown: &str) -> String {
    let (mut out, mut in_figure) = (String::new(), false);
    let mut rows: Vec<Vec<String>> = Vec::new();
    for line in markdown.lines().chain([""]) {
        if let Some(row) = line.strip_prefix('|').and_then(|l| l.trim_end().strip_suffix('|')).filter(|_| !in_figure) {
            let cells: Vec<String> = row.split('|').map(|cell| cell.trim().replace('`', "")).collect();
            if !cells.iter().all(|cell| !cell.is_empty() && cell.chars().all(|c| matches!(c, '-' | ':'))) {
                rows.push(cells);
            }
            continue;
        }
        for cells in &rows {
            let width = |column: usize| rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max();
            let padded = cells.iter().enumerate().map(|(i, cell)| format!("{cell:<w$}", w = width(i).unwrap_or(0)));
            let _ = writeln!(out, "    {}", padded.collect::<Vec<_>>().join("  ").trim_end());
        }
        rows.clear();
        if line.trim_start().starts_with("```") {
            in_figure = !in_figure;
        } else if in_figure {
            let _ = writeln!(out, "{}", format!("    {line}").trim_end());
        } else {
            let _ = writeln!(out, "{}", line.replace('`', ""));
        }
    }
    format!("{}\n", out.trim_end())
}

fn unknown(name: &str, entries: &[Entry]) -> Error {
    let names = entries.iter().map(|entry| entry.name);
    let error = Error::usage(format!("found no connector `{name}`"));
    match closest(name, names) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error.hint("gristmill connectors lists them all"),
    }
}

fn listed(entries: &[Entry]) -> String {
    let mut out = String::new();
    for entry in entries {
        let _ = writeln!(out, "{}\n{}", entry.name, report::wrapped(&entry.summary(), 96, "    "));
    }
    out.push_str("The options of one: gristmill connectors NAME\n");
    out
}

fn described(entry: &Entry) -> String {
    let schema = (entry.config_schema)();
    let mut out = format!("{}\n\n{}\n", entry.name, entry.description());
    let options: Vec<(&String, &Value)> = schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(name, _)| *name != "type")
        .collect();
    if options.is_empty() {
        out.push_str("\nIt has no options.\n");
    } else {
        let required: Vec<&str> =
            schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let cells: Vec<[String; 4]> = options
            .iter()
            .map(|(name, option)| {
                let default = match option.get("default") {
                    Some(value) if !value.is_null() => format!("default {value}"),
                    _ if required.contains(&name.as_str()) => "required".to_owned(),
                    _ => "optional".to_owned(),
                };
                let text = option.get("description").and_then(Value::as_str).unwrap_or_default().replace('\n', " ");
                [(*name).clone(), describe_shape(&schema, option), default, text]
            })
            .collect();
        out.push_str("\nOptions:\n");
        out.push_str(&report::table(&cells, "  "));
    }
    let _ = write!(out, "\nIn a job:\n  [[learner.connectors]]\n  type = \"{}\"\n", entry.name);
    let example = (entry.example)();
    for (name, option) in options {
        let value = option.get("default").filter(|value| !value.is_null()).or_else(|| example.get(name));
        match value {
            Some(Value::Null) | None => {}
            Some(Value::Object(table)) if table.is_empty() => {}
            Some(Value::Object(table)) => {
                let keys: Vec<String> = table.iter().map(|(key, value)| format!("{key:?} = {value}")).collect();
                let _ = writeln!(out, "  {name} = {{ {} }}", keys.join(", "));
            }
            Some(value) => {
                let _ = writeln!(out, "  {name} = {value}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const STACKING: Entry = Entry {
        name: "FrameStacking",
        config_schema: || {
            json!({
                "description": "Stacks the last observations.",
                "properties": {
                    "num_frames": { "type": "integer", "minimum": 1, "default": 1, "description": "How many." },
                    "space": { "anyOf": [{ "$ref": "#/$defs/Space" }, { "type": "null" }] },
                },
                "$defs": { "Space": { "type": "object" } },
            })
        },
        example: || json!({}),
        build: |_| Err(String::new()),
    };

    #[test]
    fn markdown_is_plain_on_a_terminal() {
        let text = "Adds `obs`.\n\n```text\na `b`\n\n| c |\n```\n\n| from | to |\n|---|---|\n| `x` | yy |\n\nEnd.\n";
        assert_eq!(plain(text), "Adds obs.\n\n    a `b`\n\n    | c |\n\n    from  to\n    x     yy\n\nEnd.\n");
    }

    #[test]
    fn a_connector_is_described_by_its_schema() {
        assert_eq!(
            described(&STACKING),
            "FrameStacking\n\nStacks the last observations.\n\nOptions:\n  \
             num_frames  an integer of at least 1  default 1  How many.\n  \
             space       a table                   optional\n\n\
             In a job:\n  [[learner.connectors]]\n  type = \"FrameStacking\"\n  num_frames = 1\n"
        );
        assert!(listed(&[STACKING]).starts_with("FrameStacking\n    Stacks the last observations.\n\nThe options"));
        assert_eq!(unknown("framestaking", &[STACKING]).hint_text(), Some("did you mean `FrameStacking`?"));
    }
}
