//! What the learner's `RLModule` would say about itself: is it stateful, how long are its sequences, where does it start.

use indexmap::IndexMap;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::tensor::{DType, Tensor, TensorType};

/// What the learner's RLModule would say about itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RlModule {
    /// Whether the module is recurrent. A stateful module is trained on sequences, a stateless one on single steps.
    pub stateful: bool,
    /// Steps per sequence. Required when the module is stateful.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_seq_len: Option<usize>,
    /// State before the first step of an episode. Zeros of the recorded state's shape when omitted.
    #[serde(skip_serializing_if = "StateTree::is_empty")]
    pub initial_state: StateTree,
    /// Settings of single modules, by module id. What is not set here is taken from above.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub modules: IndexMap<String, ModuleOverride>,
}

impl RlModule {
    /// The settings of one module: its own where it has them, the common ones elsewhere.
    #[must_use]
    pub fn module(&self, id: &str) -> ModuleSettings {
        let own = self.modules.get(id);
        ModuleSettings {
            stateful: own.and_then(|m| m.stateful).unwrap_or(self.stateful),
            max_seq_len: own.and_then(|m| m.max_seq_len).or(self.max_seq_len),
            initial_state: own.and_then(|m| m.initial_state.as_ref()).unwrap_or(&self.initial_state).clone(),
        }
    }
}

/// Settings of one module. What is not set is taken from `rl_module` itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModuleOverride {
    /// Whether this module is recurrent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stateful: Option<bool>,
    /// Steps per sequence of this module.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_seq_len: Option<usize>,
    /// State of this module before the first step of an episode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_state: Option<StateTree>,
}

/// The settings of one module, overrides resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct ModuleSettings {
    /// Whether the module is recurrent.
    pub stateful: bool,
    /// Steps per sequence; a checked job has it where `stateful` is true.
    pub max_seq_len: Option<usize>,
    /// State before the first step of an episode; empty when the job leaves it to the recording.
    pub initial_state: StateTree,
}

impl Default for ModuleSettings {
    fn default() -> Self {
        RlModule::default().module("")
    }
}

impl ModuleSettings {
    /// Steps per sequence of a stateful module.
    ///
    /// # Errors
    /// If the job does not say; a checked job does.
    pub fn seq_len(&self) -> Result<usize> {
        self.max_seq_len.filter(|n| *n > 0).ok_or_else(|| {
            Error::usage("the module is stateful, but nothing says how long its sequences are")
                .job_key("rl_module.max_seq_len")
                .hint("set rl_module.max_seq_len, RLlib's model_config[\"max_seq_len\"]")
        })
    }
}

/// A recurrent state: one tensor, or tables of states by name. A table with a `shape` is a tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StateTree {
    /// One tensor.
    Leaf(StateLeaf),
    /// States by name.
    Tree(IndexMap<String, StateTree>),
}

impl Default for StateTree {
    fn default() -> Self {
        Self::Tree(IndexMap::new())
    }
}

impl StateTree {
    /// Whether the job says nothing about the state.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Tree(children) if children.is_empty())
    }

    /// All tensors with their paths (`actor/h`), keys of each table in sorted order. A bare tensor has the name "".
    #[must_use]
    pub fn leaves(&self) -> Vec<(String, &StateLeaf)> {
        fn walk<'a>(tree: &'a StateTree, path: &str, out: &mut Vec<(String, &'a StateLeaf)>) {
            match tree {
                StateTree::Leaf(leaf) => out.push((path.to_owned(), leaf)),
                StateTree::Tree(children) => {
                    let mut children: Vec<_> = children.iter().collect();
                    children.sort_by_key(|(key, _)| *key);
                    for (key, child) in children {
                        let path = if path.is_empty() { key.clone() } else { format!("{path}/{key}") };
                        walk(child, &path, out);
                    }
                }
            }
        }
        let mut out = Vec::new();
        walk(self, "", &mut out);
        out
    }
}

impl JsonSchema for StateTree {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "StateTree".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A recurrent state: a tensor (a table with `shape`), or a table of states by name.",
            "type": "object",
            "if": { "required": ["shape"], "properties": { "shape": { "not": { "type": "object" } } } },
            "then": generator.subschema_for::<StateLeaf>(),
            "else": { "additionalProperties": generator.subschema_for::<Self>() },
        })
    }
}

/// One tensor of a recurrent state, for one sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StateLeaf {
    /// Shape without the batch dimension; `[]` for a scalar.
    pub shape: Vec<usize>,
    /// Element type.
    #[serde(default = "float32")]
    pub dtype: DType,
    /// Value of every element, or all values in C order.
    #[serde(default)]
    pub fill: Fill,
}

impl StateLeaf {
    /// One row of the state, as RLlib's `convert_to_numpy(module.get_initial_state())` gives it: floats as float32,
    /// 64-bit integers as int32.
    ///
    /// # Errors
    /// If it is beyond any use, or `fill` lists too few values, or one that the dtype does not hold.
    pub fn tensor(&self) -> Result<Tensor> {
        // A state beyond any module's is a slip of the pen, and would fill the memory before anything else is said.
        const MOST: usize = 1 << 24;
        let ty = TensorType::new(self.dtype, self.shape.as_slice());
        if ty.row_elements() > MOST {
            return Err(Error::usage(format!("found a state of {ty}, expected at most {MOST} values")));
        }
        let values: Vec<f64> = (0..ty.row_elements())
            .map(|i| {
                self.fill
                    .value(i)
                    .ok_or_else(|| Error::usage(format!("`fill` has {i} values, expected {}", ty.row_elements())))
            })
            .collect::<Result<_>>()?;
        let wide = Tensor::from_values::<f64>([], &values);
        let exact = wide.cast(self.dtype).and_then(|t| Ok((t.cast(DType::Float64)?, t)));
        let (back, typed) = exact.map_err(|_| Error::usage(format!("a value of `fill` is no {}", self.dtype)))?;
        if !self.dtype.is_float() && back.bytes() != wide.bytes() {
            return Err(Error::usage(format!("a value of `fill` is no {}", self.dtype)));
        }
        let dtype = match self.dtype {
            DType::Float16 | DType::Float64 => DType::Float32,
            DType::Int64 => DType::Int32,
            other => other,
        };
        Ok(typed.cast(dtype)?.reshaped(ty.with_dtype(dtype), 1))
    }
}

pub(super) const fn float32() -> DType {
    DType::Float32
}

/// Values of a tensor: one for every element, or all of them in C order.
///
/// JSON has no word for what is not finite; `"inf"`, `"-inf"` and `"nan"` stand for it (TOML has `inf` and `nan`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "FillText", into = "FillText")]
pub enum Fill {
    /// The same value everywhere.
    All(f64),
    /// One value per element, in C order.
    Each(Vec<f64>),
}

impl Default for Fill {
    fn default() -> Self {
        Self::All(0.0)
    }
}

impl Fill {
    /// The value of element `i` in C order, or nothing when a list is too short.
    #[must_use]
    pub fn value(&self, i: usize) -> Option<f64> {
        match self {
            Self::All(value) => Some(*value),
            Self::Each(values) => values.get(i).copied(),
        }
    }
}

/// One value for every element, or a list of all values in C order.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum FillText {
    All(Number),
    Each(Vec<Number>),
}

/// A number, or one of the words for what is not finite.
#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Number {
    Finite(f64),
    Word(NotFinite),
}

#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
enum NotFinite {
    #[serde(rename = "inf")]
    Inf,
    #[serde(rename = "-inf")]
    MinusInf,
    #[serde(rename = "nan")]
    Nan,
}

impl From<Number> for f64 {
    fn from(number: Number) -> Self {
        match number {
            Number::Finite(value) => value,
            Number::Word(NotFinite::Inf) => Self::INFINITY,
            Number::Word(NotFinite::MinusInf) => Self::NEG_INFINITY,
            Number::Word(NotFinite::Nan) => Self::NAN,
        }
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        if value.is_nan() {
            Self::Word(NotFinite::Nan)
        } else if value == f64::INFINITY {
            Self::Word(NotFinite::Inf)
        } else if value == f64::NEG_INFINITY {
            Self::Word(NotFinite::MinusInf)
        } else {
            Self::Finite(value)
        }
    }
}

impl From<FillText> for Fill {
    fn from(text: FillText) -> Self {
        match text {
            FillText::All(value) => Self::All(value.into()),
            FillText::Each(values) => Self::Each(values.into_iter().map(Into::into).collect()),
        }
    }
}

impl From<Fill> for FillText {
    fn from(fill: Fill) -> Self {
        match fill {
            Fill::All(value) => Self::All(value.into()),
            Fill::Each(values) => Self::Each(values.into_iter().map(Into::into).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(json: &str) -> StateTree {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn leaves_come_in_sorted_order() {
        let state = tree(r#"{"critic": {"h": {"shape": [2]}}, "actor": {"h": {"shape": [3]}, "c": {"shape": []}}}"#);
        let names: Vec<_> = state.leaves().into_iter().map(|(name, leaf)| (name, leaf.shape.clone())).collect();
        assert_eq!(
            names,
            [("actor/c".to_owned(), vec![]), ("actor/h".to_owned(), vec![3]), ("critic/h".to_owned(), vec![2])]
        );
        let bare = tree(r#"{"shape": [64]}"#);
        assert_eq!(bare.leaves()[0].0, "");
        assert_eq!(bare.leaves()[0].1.dtype, DType::Float32);
        assert!(StateTree::default().leaves().is_empty());
    }

    #[test]
    fn a_state_may_be_named_shape() {
        assert_eq!(tree(r#"{"shape": {"shape": [2]}}"#).leaves()[0].0, "shape");
    }

    #[test]
    fn overrides_fall_back_to_the_common_settings() {
        let module: RlModule = serde_json::from_str(
            r#"{"stateful": true, "max_seq_len": 20, "initial_state": {"h": {"shape": [4]}},
                "modules": {"p1": {"stateful": false}, "p2": {"max_seq_len": 5}}}"#,
        )
        .unwrap();
        assert_eq!(module.module("default_policy").max_seq_len, Some(20));
        assert!(!module.module("p1").stateful);
        let p2 = module.module("p2");
        assert_eq!((p2.stateful, p2.max_seq_len, p2.initial_state.leaves().len()), (true, Some(5), 1));
    }

    #[test]
    fn values_that_are_not_finite_survive_json() {
        let fill: Fill = serde_json::from_str(r#"["inf", "-inf", 1, 2.5]"#).unwrap();
        assert_eq!(fill, Fill::Each(vec![f64::INFINITY, f64::NEG_INFINITY, 1.0, 2.5]));
        assert_eq!(serde_json::to_string(&fill).unwrap(), r#"["inf","-inf",1.0,2.5]"#);
        assert_eq!(fill.value(2), Some(1.0));
        assert_eq!(fill.value(4), None);
        assert_eq!(Fill::default().value(99), Some(0.0));
    }
}
