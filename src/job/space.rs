//! Gymnasium's spaces, as a job writes them.

use indexmap::IndexMap;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::rl_module::{Fill, float32};
use crate::tensor::DType;

/// A Gymnasium space. A table without a `type` is a Dict space, a list is a Tuple space.
///
/// ```toml
/// obs = { pos = { type = "box", shape = [3] }, mode = { type = "discrete", n = 4 } }     # Dict(pos=Box, mode=Discrete)
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Space {
    /// Real vectors, matrices, images.
    Box {
        /// Shape of one value.
        shape: Vec<usize>,
        /// Element type.
        #[serde(default = "float32")]
        dtype: DType,
        /// Lower bound, inclusive.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        low: Option<Fill>,
        /// Upper bound, inclusive.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        high: Option<Fill>,
    },
    /// The integers `start .. start + n`.
    Discrete {
        /// How many values there are.
        n: u64,
        /// The smallest value.
        #[serde(default)]
        start: i64,
    },
    /// Several discrete values, each counted from 0.
    MultiDiscrete {
        /// How many values there are in each place.
        nvec: Vec<u64>,
    },
    /// A vector of zeros and ones.
    MultiBinary {
        /// How many places there are.
        n: usize,
    },
    /// Spaces one after the other.
    #[serde(untagged)]
    Tuple(Vec<Space>),
    /// Spaces by name.
    #[serde(untagged)]
    Dict(IndexMap<String, Space>),
}

impl JsonSchema for Space {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Space".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let this = generator.subschema_for::<Self>();
        let dtype = generator.subschema_for::<DType>();
        let bound = generator.subschema_for::<Fill>();
        json_schema!({
            "description": "A Gymnasium space. A table without a `type` is a Dict space, a list is a Tuple space.",
            "if": { "type": "array" },
            "then": { "type": "array", "items": this },
            "else": {
                "type": "object",
                "if": { "required": ["type"], "properties": { "type": { "not": { "type": "object" } } } },
                "then": { "oneOf": [
                    {
                        "description": "Real vectors, matrices, images.",
                        "type": "object",
                        "properties": {
                            "type": { "type": "string", "const": "box" },
                            "shape": {
                                "description": "Shape of one value.",
                                "type": "array",
                                "items": { "type": "integer", "minimum": 0 },
                            },
                            "dtype": { "description": "Element type.", "default": "float32", "anyOf": [dtype] },
                            "low": { "description": "Lower bound, inclusive.", "anyOf": [bound] },
                            "high": { "description": "Upper bound, inclusive.", "anyOf": [bound] },
                        },
                        "required": ["type", "shape"],
                        "additionalProperties": false,
                    },
                    {
                        "description": "The integers from `start` to `start + n - 1`.",
                        "type": "object",
                        "properties": {
                            "type": { "type": "string", "const": "discrete" },
                            "n": { "description": "How many values there are.", "type": "integer", "minimum": 1 },
                            "start": { "description": "The smallest value.", "type": "integer", "default": 0 },
                        },
                        "required": ["type", "n"],
                        "additionalProperties": false,
                    },
                    {
                        "description": "Several discrete values, each counted from 0.",
                        "type": "object",
                        "properties": {
                            "type": { "type": "string", "const": "multi_discrete" },
                            "nvec": {
                                "description": "How many values there are in each place.",
                                "type": "array",
                                "items": { "type": "integer", "minimum": 1 },
                            },
                        },
                        "required": ["type", "nvec"],
                        "additionalProperties": false,
                    },
                    {
                        "description": "A vector of zeros and ones.",
                        "type": "object",
                        "properties": {
                            "type": { "type": "string", "const": "multi_binary" },
                            "n": { "description": "How many places there are.", "type": "integer", "minimum": 1 },
                        },
                        "required": ["type", "n"],
                        "additionalProperties": false,
                    },
                ] },
                "else": { "additionalProperties": this },
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(json: &str) -> Space {
        let space: Space = serde_json::from_str(json).unwrap();
        let back: Space = serde_json::from_value(serde_json::to_value(&space).unwrap()).unwrap();
        assert_eq!(back, space);
        space
    }

    #[test]
    fn spaces_survive_json() {
        let low = Some(Fill::All(f64::NEG_INFINITY));
        assert_eq!(
            round_trip(r#"{"type": "box", "shape": [3], "low": "-inf"}"#),
            Space::Box { shape: vec![3], dtype: DType::Float32, low, high: None }
        );
        assert_eq!(round_trip(r#"{"type": "discrete", "n": 4}"#), Space::Discrete { n: 4, start: 0 });
        assert_eq!(
            round_trip(r#"{"type": "multi_discrete", "nvec": [2, 5]}"#),
            Space::MultiDiscrete { nvec: vec![2, 5] }
        );
        assert_eq!(round_trip(r#"{"type": "multi_binary", "n": 3}"#), Space::MultiBinary { n: 3 });
    }

    #[test]
    fn tables_and_lists_nest() {
        let space =
            round_trip(r#"{"b": {"type": {"type": "discrete", "n": 2}}, "a": [{"type": "multi_binary", "n": 1}]}"#);
        let Space::Dict(children) = &space else { panic!("{space:?}") };
        assert_eq!(children.keys().collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(children["a"], Space::Tuple(vec![Space::MultiBinary { n: 1 }]));
        assert!(matches!(&children["b"], Space::Dict(inner) if inner["type"] == Space::Discrete { n: 2, start: 0 }));
    }
}
