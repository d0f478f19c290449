//! The JSON Schema of a job, generated from the structs and from the list of connectors.

use std::borrow::Cow;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::{Compression, ConnectorConfig, Job};
use crate::connectors::{self, Entry};

/// The JSON Schema of a job. `schemas/job.schema.json` is this, and a job is checked against nothing else.
#[must_use]
pub fn schema() -> Value {
    with_connectors(&connectors::all().iter().collect::<Vec<_>>())
}

fn with_connectors(entries: &[&Entry]) -> Value {
    let settings = SchemaSettings::draft2020_12().for_deserialize();
    let mut schema = settings.into_generator().into_root_schema_for::<Job>().to_value();
    drop_table_defaults(&mut schema);
    schema["title"] = "gristmill job".into();
    if !entries.is_empty() {
        let mut defs = schema["$defs"].as_object().cloned().unwrap_or_default();
        defs["ConnectorConfig"] = any_connector(entries, &mut defs);
        schema["$defs"] = Value::Object(defs);
    }
    schema
}

/// One table per connector, told apart by `type`. Definitions that their schemas share are moved to `defs`.
fn any_connector(entries: &[&Entry], defs: &mut Map<String, Value>) -> Value {
    let mut pieces = Vec::new();
    for entry in entries {
        let mut own = (entry.config_schema)();
        drop_table_defaults(&mut own);
        let Some(table) = own.as_object_mut() else { continue };
        for (name, def) in table.shift_remove("$defs").and_then(|d| d.as_object().cloned()).unwrap_or_default() {
            defs.entry(name).or_insert(def);
        }
        let mut properties = Map::new();
        properties.insert("type".to_owned(), json!({ "type": "string", "const": entry.name }));
        properties.extend(table.get("properties").and_then(Value::as_object).cloned().unwrap_or_default());
        let mut required = vec![json!("type")];
        required.extend(table.get("required").and_then(Value::as_array).cloned().unwrap_or_default());
        pieces.push(json!({
            "title": entry.name,
            "description": entry.summary(),
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        }));
    }
    json!({ "description": CONNECTOR, "type": "object", "oneOf": pieces })
}

/// A table's default is the defaults of its keys. Repeating them above helps nobody.
fn drop_table_defaults(schema: &mut Value) {
    match schema {
        Value::Object(table) => {
            if table.get("default").is_some_and(|d| d.is_object() || d.is_null()) {
                table.shift_remove("default");
            }
            table.values_mut().for_each(drop_table_defaults);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_table_defaults),
        _ => {}
    }
}

const CONNECTOR: &str =
    "A connector piece: its `type` (RLlib's class name wherever RLlib has the piece) and its options.";

impl JsonSchema for ConnectorConfig {
    fn schema_name() -> Cow<'static, str> {
        "ConnectorConfig".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": CONNECTOR,
            "type": "object",
            "properties": { "type": { "description": "Name of the piece.", "type": "string" } },
            "required": ["type"],
        })
    }
}

impl JsonSchema for Compression {
    fn schema_name() -> Cow<'static, str> {
        "Compression".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let all: Vec<String> = Self::all().map(|c| c.to_string()).collect();
        json_schema!({
            "description": format!("Compression of the shards: {}.", Self::VALID),
            "type": "string",
            "enum": all,
            "x-expected": Self::VALID,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::check_shape;
    use super::*;

    fn entry(name: &'static str, config_schema: fn() -> Value) -> Entry {
        Entry { name, config_schema, example: || json!({}), build: |_| Err(String::new()) }
    }

    #[test]
    fn connectors_options_are_part_of_the_schema() {
        let stacking = entry("FrameStacking", || {
            json!({
                "properties": { "num_frames": { "type": "integer", "minimum": 1 }, "space": { "$ref": "#/$defs/Extra" } },
                "required": ["num_frames"],
                "$defs": { "Extra": { "type": "boolean" } },
            })
        });
        let plain = entry("NumpyToTensor", || json!({ "type": "object" }));
        let schema = with_connectors(&[&stacking, &plain]);
        let told = |connector: Value| -> Vec<String> {
            check_shape(&schema, &json!({ "learner": { "connectors": [connector] } }), "")
                .iter()
                .map(ToString::to_string)
                .collect()
        };
        assert!(told(json!({ "type": "FrameStacking", "num_frames": 4, "space": true })).is_empty());
        assert!(told(json!({ "type": "NumpyToTensor" })).is_empty());
        assert_eq!(
            told(json!("framestacking")),
            ["found the string \"framestacking\", expected a table\n  at: job key `learner.connectors[0]`\n  \
              hint: write it as a table: { type = \"FrameStacking\" }"]
        );
        assert_eq!(
            told(json!({ "type": "FrameStaking", "num_frames": 4 })),
            ["found the string \"FrameStaking\", expected one of \"FrameStacking\", \"NumpyToTensor\"\n  \
              at: job key `learner.connectors[0].type`\n  hint: did you mean \"FrameStacking\"?"]
        );
        assert_eq!(
            told(json!({ "type": "FrameStacking", "num_frame": 0, "space": 1 })),
            [
                "missing key `num_frames`, expected an integer of at least 1\n  at: job key `learner.connectors[0]`",
                "found unknown key `num_frame`, expected one of `type`, `num_frames`, `space`\n  \
                 at: job key `learner.connectors[0].num_frame`\n  hint: did you mean `num_frames`?",
                "found 1, expected true or false\n  at: job key `learner.connectors[0].space`",
            ]
        );
    }
}
