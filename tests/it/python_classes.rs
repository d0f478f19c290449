//! `python/gristmill/connectors.py` and `sections.py`: a dataclass for every connector piece and every table of a job,
//! made from the schemas that the job itself is checked against. A new connector costs nothing there.

use std::fmt::Write as _;
use std::path::Path;

use gristmill::connectors;
use gristmill::job;
use serde_json::{Map, Value};

const GENERATED: &str = "Generated from the library's schemas: `make schemas` makes it anew.";

/// Tables of a job that get a class, in this order: what a class uses stands before it.
const SECTIONS: [&str; 7] = ["Spaces", "ModuleOverride", "Input", "RlModule", "MultiAgent", "Learner", "Output"];

#[test]
fn the_classes_of_the_python_package_are_current() {
    let schema = job::schema();
    let definitions = schema["$defs"].as_object().expect("definitions");
    let names: Vec<&str> = connectors::all().iter().map(|entry| entry.name).collect();
    check(
        "connectors.py",
        &page("A dataclass for every connector piece.", false, &names, |name| {
            let entry = connectors::find(name).expect("a listed piece");
            // The schema in the job's is what is checked; the piece's own has the whole documentation.
            let own = (entry.config_schema)();
            class(name, &entry.description(), &own, definitions, Some(name))
        }),
    );
    check(
        "sections.py",
        &page("A dataclass for every table of a job.", true, &SECTIONS, |name| {
            let own = &definitions[name];
            class(name, own["description"].as_str().unwrap_or_default(), own, definitions, None)
        }),
    );
}

fn check(file: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/gristmill").join(file);
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == page, "python/gristmill/{file} is out of date: run `make schemas`");
}

fn page(title: &str, maps: bool, names: &[&str], class_of: impl Fn(&str) -> String) -> String {
    let mut out = format!("\"\"\"{title}\n\n{GENERATED}\n\"\"\"\n\nfrom __future__ import annotations\n\n");
    if maps {
        out.push_str("from collections.abc import Mapping\n");
    }
    out.push_str(
        "from dataclasses import dataclass, field\nfrom typing import Any, ClassVar, Literal\n\n__all__ = [\n",
    );
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    for name in sorted {
        let _ = writeln!(out, "    \"{name}\",");
    }
    out.push_str("]\n");
    for name in names {
        out.push_str("\n\n");
        out.push_str(&class_of(name));
    }
    // Only what is used: linters of those who read the package look at it, too.
    for (name, import) in [("ClassVar", "ClassVar, "), ("Any", "Any, "), ("Literal", ", Literal")] {
        if !out.replacen(name, "", 1).contains(name) {
            out = out.replacen(import, "", 1);
        }
    }
    if out.matches("Mapping").count() == 1 {
        out = out.replace("from collections.abc import Mapping\n", "");
    }
    if !out.contains("field(") {
        out = out.replace("import dataclass, field", "import dataclass");
    }
    out
}

fn class(name: &str, text: &str, schema: &Value, definitions: &Map<String, Value>, kind: Option<&str>) -> String {
    let mut out = format!("@dataclass(kw_only=True)\nclass {name}:\n    {}\n", docstring(text, 4));
    if let Some(kind) = kind {
        let _ = write!(out, "\n    _type: ClassVar[str] = \"{kind}\"\n");
    }
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let own = schema["$defs"].as_object().cloned().unwrap_or_default();
    let lookup = |name: &str| own.get(name).or_else(|| definitions.get(name));
    for (option, described) in schema["properties"].as_object().into_iter().flatten() {
        if option == "type" {
            continue;
        }
        let ty = python_type(described, &lookup);
        let default = described.get("default").filter(|d| !d.is_object() && !d.is_null());
        let (ty, default) = match default {
            Some(Value::Array(items)) => (ty, format!(" = field(default_factory=lambda: {})", python_list(items))),
            Some(value) => (ty, format!(" = {}", python_value(value))),
            None if required.contains(&option.as_str()) => (ty, String::new()),
            None if ty.ends_with("| None") => (ty, " = None".to_owned()),
            None => (format!("{ty} | None"), " = None".to_owned()),
        };
        let text = described["description"].as_str().unwrap_or_default();
        let _ = write!(out, "\n    {option}: {ty}{default}\n    {}\n", docstring(text, 4));
    }
    out
}

/// The type of an option as Python writes it; `Any` where it would be longer than what it tells.
fn python_type<'a>(schema: &'a Value, lookup: &impl Fn(&str) -> Option<&'a Value>) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|r| r.strip_prefix("#/$defs/")) {
        if SECTIONS.contains(&name) {
            return format!("{name} | Mapping[str, Any]");
        }
        return lookup(name).map_or_else(|| "Any".to_owned(), |def| python_type(def, lookup));
    }
    let alternatives = ["anyOf", "oneOf"].into_iter().find_map(|key| schema[key].as_array());
    if let Some(alternatives) = alternatives {
        let words: Vec<String> = alternatives.iter().filter_map(|a| a["const"].as_str()).map(quoted).collect();
        if words.len() == alternatives.len() {
            return format!("Literal[{}]", words.join(", "));
        }
        return union(alternatives.iter().map(|a| python_type(a, lookup)));
    }
    if let Some(words) = schema["enum"].as_array() {
        return format!(
            "Literal[{}]",
            words.iter().filter_map(Value::as_str).map(quoted).collect::<Vec<_>>().join(", ")
        );
    }
    if let Some(word) = schema["const"].as_str() {
        return format!("Literal[{}]", quoted(word));
    }
    let one = |ty: &str| match ty {
        "integer" => "int".to_owned(),
        "number" => "float".to_owned(),
        "boolean" => "bool".to_owned(),
        "string" => "str".to_owned(),
        "null" => "None".to_owned(),
        "array" if schema["items"].is_object() => format!("list[{}]", python_type(&schema["items"], lookup)),
        "array" => "list[Any]".to_owned(),
        "object" => match &schema["additionalProperties"] {
            values @ Value::Object(_) => format!("dict[str, {}]", python_type(values, lookup)),
            _ => "dict[str, Any]".to_owned(),
        },
        _ => "Any".to_owned(),
    };
    match &schema["type"] {
        Value::String(ty) => one(ty),
        Value::Array(types) => union(types.iter().filter_map(Value::as_str).map(one)),
        _ => "Any".to_owned(),
    }
}

fn union(types: impl Iterator<Item = String>) -> String {
    let mut out: Vec<String> = Vec::new();
    for ty in types.flat_map(|t| t.split(" | ").map(str::to_owned).collect::<Vec<_>>()) {
        if !out.contains(&ty) {
            out.push(ty);
        }
    }
    if out.iter().any(|ty| ty == "Any") {
        return "Any".to_owned();
    }
    // Python's readers expect it last.
    out.sort_by_key(|ty| ty == "None");
    out.join(" | ")
}

fn quoted(word: &str) -> String {
    format!("{word:?}")
}

fn python_value(value: &Value) -> String {
    match value {
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Array(items) => python_list(items),
        other => other.to_string(),
    }
}

fn python_list(items: &[Value]) -> String {
    format!("[{}]", items.iter().map(python_value).collect::<Vec<_>>().join(", "))
}

/// Text as a docstring, indented. Backslashes stay what they are.
fn docstring(text: &str, indent: usize) -> String {
    let text = text.trim().replace("\"\"\"", "'''");
    let raw = if text.contains('\\') { "r" } else { "" };
    let mut lines = text.lines();
    let mut out = format!("{raw}\"\"\"{}", lines.next().unwrap_or_default());
    let mut several = false;
    for line in lines {
        several = true;
        out.push('\n');
        if !line.is_empty() {
            out.extend(std::iter::repeat_n(' ', indent));
            out.push_str(line);
        }
    }
    if several {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent));
    }
    out + "\"\"\""
}
