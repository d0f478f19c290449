//! Holds a tree of values against a JSON Schema and tells *every* place where it does not fit.
//!
//! Serde stops at its first error and knows no neighbours; a schema validator knows all errors and speaks of keywords.
//! This is neither: it reads the part of JSON Schema that our own schemas use, and says what was found, what would
//! have been valid and what was probably meant. Keywords that it does not know constrain nothing.

use std::fmt;

use serde_json::{Map, Value};

use crate::error::{Error, closest};

/// Every mistake of `value` against `schema`, with its job key under `prefix`.
///
/// `schema` is a whole schema (its `$ref`s are looked up in its own `$defs`).
#[must_use]
pub fn check_shape(schema: &Value, value: &Value, prefix: &str) -> Vec<Error> {
    let mistakes = mistakes(schema, value);
    let placed = |m: Mistake| match join(prefix, &m.path.to_string()) {
        key if key.is_empty() => m.error,
        key => m.error.job_key(key),
    };
    mistakes.into_iter().map(placed).collect()
}

/// What a part of `schema` admits, in words: "an integer of at least 1".
#[must_use]
pub fn describe_shape(schema: &Value, part: &Value) -> String {
    part.as_object().map_or_else(|| "anything".to_owned(), |part| Checker { root: schema }.expected(part))
}

fn join(prefix: &str, path: &str) -> String {
    match (prefix, path) {
        ("", _) => path.to_owned(),
        (_, "") => prefix.to_owned(),
        _ if path.starts_with('[') => format!("{prefix}{path}"),
        _ => format!("{prefix}.{path}"),
    }
}

/// A place where a value does not fit.
pub(super) struct Mistake {
    /// Where.
    pub(super) path: KeyPath,
    /// What was found and expected, without place.
    pub(super) error: Error,
    /// The key that is missing, or that was probably meant.
    pub(super) meant: Option<KeyPath>,
}

/// Where a value stands in the tree. Written `learner.connectors[1].num_frames`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct KeyPath(pub(super) Vec<Step>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Key(String),
    Index(usize),
}

impl KeyPath {
    pub(super) fn key(&self, key: &str) -> Self {
        let mut steps = self.0.clone();
        steps.push(Step::Key(key.to_owned()));
        Self(steps)
    }

    pub(super) fn index(&self, index: usize) -> Self {
        let mut steps = self.0.clone();
        steps.push(Step::Index(index));
        Self(steps)
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) => {
                    if i > 0 {
                        f.write_str(".")?;
                    }
                    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                    if !key.is_empty() && key.chars().all(bare) { f.write_str(key)? } else { write!(f, "{key:?}")? }
                }
            }
        }
        Ok(())
    }
}

/// Every mistake of `value` against the whole schema `root`.
pub(super) fn mistakes(root: &Value, value: &Value) -> Vec<Mistake> {
    let mut out = Vec::new();
    Checker { root }.check(root, value, &KeyPath::default(), &mut out);
    out
}

#[derive(Clone, Copy)]
struct Checker<'a> {
    root: &'a Value,
}

impl<'a> Checker<'a> {
    fn check(self, schema: &'a Value, value: &Value, path: &KeyPath, out: &mut Vec<Mistake>) {
        if schema == &Value::Bool(false) {
            out.push(wrong(path, "found a value where none is allowed".to_owned(), None));
            return;
        }
        let Some(schema) = schema.as_object() else { return };
        let before = out.len();

        self.check_type(schema, value, path, out);
        if out.len() > before {
            return;
        }
        if let Some(target) = self.target(schema) {
            self.check(target, value, path, out);
        }
        for part in list(schema, "allOf") {
            self.check(part, value, path, out);
        }
        for word in ["anyOf", "oneOf"] {
            if schema.contains_key(word) {
                self.check_any(schema, list(schema, word), value, path, out);
            }
        }
        self.check_value(schema, value, path, out);
        if let Some(not) = schema.get("not")
            && self.fits(not, value)
        {
            out.push(wrong(path, format!("found {}, which is not allowed here", found(value)), None));
        }
        if let Some(condition) = schema.get("if") {
            self.check_branch(schema, condition, value, path, out);
        }
        match value {
            Value::Object(table) => self.check_table(schema, table, path, out),
            Value::Array(items) => {
                if let Some(of) = schema.get("items") {
                    for (i, item) in items.iter().enumerate() {
                        self.check(of, item, &path.index(i), out);
                    }
                }
            }
            _ => {}
        }
    }

    fn fits(self, schema: &'a Value, value: &Value) -> bool {
        let mut out = Vec::new();
        self.check(schema, value, &KeyPath::default(), &mut out);
        out.is_empty()
    }

    /// The schema that `$ref` names.
    fn target(self, schema: &Map<String, Value>) -> Option<&'a Value> {
        let name = schema.get("$ref")?.as_str()?.strip_prefix('#')?;
        self.root.pointer(name)
    }

    fn check_type(self, schema: &'a Map<String, Value>, value: &Value, path: &KeyPath, out: &mut Vec<Mistake>) {
        let types: Vec<&str> = match schema.get("type") {
            Some(Value::String(ty)) => vec![ty],
            Some(Value::Array(types)) => types.iter().filter_map(Value::as_str).collect(),
            _ => return,
        };
        if types.iter().any(|ty| is_type(ty, value)) {
            return;
        }
        let what = format!("found {}, expected {}", found(value), self.expected(schema));
        let example = list(schema, "examples").first().filter(|_| *value != Value::Bool(false));
        let example = example.map(|example| format!("write, for example, {}", inline(example)));
        out.push(wrong(path, what, type_hint(&types, value).or_else(|| tag_hint(schema, value)).or(example)));
    }

    /// `anyOf` and `oneOf`: an optional value, a set of words, tables told apart by their `type`, or alternatives.
    fn check_any(
        self,
        schema: &'a Map<String, Value>,
        branches: &'a [Value],
        value: &Value,
        path: &KeyPath,
        out: &mut Vec<Mistake>,
    ) {
        let is_null = |b: &&Value| b.get("type").and_then(Value::as_str) == Some("null");
        if value.is_null() && branches.iter().any(|b| is_null(&b)) {
            return;
        }
        let branches: Vec<&'a Value> = branches.iter().filter(|b| !is_null(b)).collect();
        if let [only] = branches.as_slice() {
            return self.check(only, value, path, out);
        }
        if branches.iter().any(|b| self.fits(b, value)) {
            return;
        }
        let words: Option<Vec<&Value>> = branches.iter().map(|b| b.get("const")).collect();
        if let Some(words) = words {
            out.push(self.wrong_word(schema, &words, value, path));
            return;
        }
        let tags: Option<Vec<&Value>> = branches.iter().map(|b| b.pointer("/properties/type/const")).collect();
        if let (Some(tags), Value::Object(table)) = (tags, value) {
            match table.get("type") {
                None => {
                    // `{ tpe = "X" }`: the key that was meant says more than the one that is missing.
                    let near = table.keys().find(|key| closest(key, ["type"]).is_some());
                    out.push(match near {
                        Some(key) => unknown(path, key, &["type"], Some("type")),
                        None => missing(path, "type", &format!("one of {}", words_of(&tags))),
                    });
                }
                Some(tag) => match tags.iter().position(|t| *t == tag) {
                    Some(i) => self.check(branches[i], value, path, out),
                    None => out.push(self.wrong_word(&Map::new(), &tags, tag, &path.key("type"))),
                },
            }
            return;
        }
        // The branch of the right type, if there is one, knows better what is wrong inside.
        let typed: Vec<&&Value> = branches.iter().filter(|b| self.admits(b, value)).collect();
        if let [only] = typed.as_slice()
            && (value.is_object() || value.is_array())
        {
            return self.check(only, value, path, out);
        }
        out.push(wrong(path, format!("found {}, expected {}", found(value), self.expected(schema)), None));
    }

    /// Whether the outermost type of a schema is that of the value.
    fn admits(self, schema: &Value, value: &Value) -> bool {
        if let Some(target) = schema.as_object().and_then(|s| self.target(s)) {
            return self.admits(target, value);
        }
        schema.get("type").and_then(Value::as_str).is_none_or(|ty| is_type(ty, value))
    }

    /// `const`, `enum` and ranges.
    fn check_value(self, schema: &'a Map<String, Value>, value: &Value, path: &KeyPath, out: &mut Vec<Mistake>) {
        if let Some(word) = schema.get("const")
            && word != value
        {
            out.push(self.wrong_word(schema, &[word], value, path));
        }
        let words: Vec<&Value> = list(schema, "enum").iter().collect();
        if !words.is_empty() && !words.contains(&value) {
            out.push(self.wrong_word(schema, &words, value, path));
        }
        let number = |key: &str| schema.get(key).and_then(Value::as_f64);
        if let Some(value_f64) = value.as_f64()
            && (number("minimum").is_some_and(|min| value_f64 < min)
                || number("maximum").is_some_and(|max| value_f64 > max)
                || number("exclusiveMinimum").is_some_and(|min| value_f64 <= min)
                || number("exclusiveMaximum").is_some_and(|max| value_f64 >= max))
        {
            out.push(wrong(path, format!("found {value}, expected {}", self.expected(schema)), None));
        }
        if let (Value::String(text), Some(min)) = (value, schema.get("minLength").and_then(Value::as_u64))
            && (text.chars().count() as u64) < min
        {
            out.push(wrong(path, "found an empty string".to_owned(), None));
        }
        if let Value::Array(items) = value {
            let count = items.len() as u64;
            let bound = |key: &str| schema.get(key).and_then(Value::as_u64);
            if bound("minItems").is_some_and(|min| count < min) || bound("maxItems").is_some_and(|max| count > max) {
                let range = match (bound("minItems"), bound("maxItems")) {
                    (Some(min), Some(max)) if min == max => format!("{min}"),
                    (Some(min), Some(max)) => format!("{min} to {max}"),
                    (Some(min), None) => format!("at least {min}"),
                    (_, max) => format!("at most {}", max.unwrap_or_default()),
                };
                out.push(wrong(path, format!("found a list of {count}, expected {range}"), None));
            }
        }
    }

    /// `if` / `then` / `else`: a leaf told by one key, or a table of more of the same.
    fn check_branch(
        self,
        schema: &'a Map<String, Value>,
        condition: &'a Value,
        value: &Value,
        path: &KeyPath,
        out: &mut Vec<Mistake>,
    ) {
        let (then, other) = (schema.get("then"), schema.get("else"));
        if self.fits(condition, value) {
            if let Some(then) = then {
                self.check(then, value, path, out);
            }
            return;
        }
        let Some(other) = other else { return };
        let (Value::Object(table), Some(then)) = (value, then) else {
            return self.check(other, value, path, out);
        };
        // `{ shap = [64] }` is a table of states to the letter. Where a child does not fit and has the name of a key of
        // the leaf, or one close to it, a leaf was meant.
        let mut leaf_keys = Vec::new();
        self.own_keys(then, &mut leaf_keys);
        let (mut rest, mut misspelt, mut well_spelt) = (Map::new(), Vec::new(), false);
        for (key, child) in table {
            let alone = Value::Object(Map::from_iter([(key.clone(), child.clone())]));
            match closest(key, leaf_keys.iter().copied()) {
                Some(near) if !self.fits(other, &alone) && near == key => well_spelt = true,
                Some(near) if !self.fits(other, &alone) => misspelt.push(unknown(path, key, &leaf_keys, Some(near))),
                _ => {
                    rest.insert(key.clone(), child.clone());
                }
            }
        }
        let needed = condition.pointer("/required/0").and_then(Value::as_str);
        if misspelt.is_empty()
            && well_spelt
            && let Some(needed) = needed
        {
            let of = self.expected_of_key(then, needed);
            out.push(missing(path, needed, &of));
        }
        out.extend(misspelt);
        self.check(other, &Value::Object(rest), path, out);
    }

    fn check_table(
        self,
        schema: &'a Map<String, Value>,
        table: &Map<String, Value>,
        path: &KeyPath,
        out: &mut Vec<Mistake>,
    ) {
        let properties = schema.get("properties").and_then(Value::as_object);
        for key in list(schema, "required").iter().filter_map(Value::as_str) {
            if !table.contains_key(key) {
                let of = properties.and_then(|p| p.get(key)).and_then(Value::as_object);
                out.push(missing(path, key, &of.map_or_else(|| "a value".to_owned(), |of| self.expected(of))));
            }
        }
        for (key, child) in table {
            if let Some(of) = properties.and_then(|p| p.get(key)) {
                self.check(of, child, &path.key(key), out);
                continue;
            }
            match schema.get("additionalProperties") {
                Some(Value::Bool(false)) => {
                    let known: Vec<&str> = properties.into_iter().flat_map(Map::keys).map(String::as_str).collect();
                    let mut mistake = unknown(path, key, &known, closest(key, known.iter().copied()));
                    if mistake.meant.is_none()
                        && let Some(elsewhere) = self.elsewhere(key)
                    {
                        mistake.error = mistake.error.hint(format!("did you mean `{elsewhere}`?"));
                        mistake.meant = Some(elsewhere);
                    }
                    out.push(mistake);
                }
                Some(of) => self.check(of, child, &path.key(key), out),
                None => {}
            }
        }
    }

    /// The keys that a schema names for its own table.
    fn own_keys(self, schema: &'a Value, out: &mut Vec<&'a str>) {
        let Some(schema) = schema.as_object() else { return };
        if let Some(target) = self.target(schema) {
            self.own_keys(target, out);
        }
        for branch in list(schema, "oneOf").iter().chain(list(schema, "anyOf")) {
            self.own_keys(branch, out);
        }
        for key in schema.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys) {
            if !out.contains(&key.as_str()) {
                out.push(key);
            }
        }
    }

    /// What one key of a leaf admits, in words.
    fn expected_of_key(self, schema: &'a Value, key: &str) -> String {
        let Some(schema) = schema.as_object() else { return String::new() };
        if let Some(target) = self.target(schema) {
            return self.expected_of_key(target, key);
        }
        let tags: Option<Vec<&Value>> =
            list(schema, "oneOf").iter().map(|b| b.pointer(&format!("/properties/{key}/const"))).collect();
        match tags {
            Some(tags) if !tags.is_empty() => format!("one of {}", words_of(&tags)),
            _ => {
                let of = schema.get("properties").and_then(|p| p.get(key)).and_then(Value::as_object);
                of.map_or_else(|| "a value".to_owned(), |of| self.expected(of))
            }
        }
    }

    /// Where in the whole schema a key of this name (or close to it) stands.
    fn elsewhere(self, key: &str) -> Option<KeyPath> {
        let mut known = Vec::new();
        self.walk(self.root, &KeyPath::default(), 0, &mut known);
        let names = known.iter().map(|(name, _)| *name);
        let name = names.clone().find(|name| *name == key).or_else(|| closest(key, names))?;
        known.iter().find(|(other, _)| *other == name).map(|(_, path)| path.clone())
    }

    fn walk(self, schema: &'a Value, path: &KeyPath, depth: usize, out: &mut Vec<(&'a str, KeyPath)>) {
        let Some(schema) = schema.as_object() else { return };
        if depth > 4 {
            return;
        }
        if let Some(target) = self.target(schema) {
            self.walk(target, path, depth + 1, out);
        }
        for (key, child) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let path = path.key(key);
            out.push((key, path.clone()));
            self.walk(child, &path, depth + 1, out);
        }
    }

    fn wrong_word(self, schema: &'a Map<String, Value>, words: &[&Value], value: &Value, path: &KeyPath) -> Mistake {
        let expected = match schema.get("x-expected") {
            Some(_) => self.expected(schema),
            None if words.len() == 1 => words_of(words),
            None => format!("one of {}", words_of(words)),
        };
        // Where the words stand for a range (`zstd:1` to `zstd:22`), the nearest of them is a guess like any other.
        let listed = !schema.contains_key("x-expected");
        let near =
            value.as_str().filter(|_| listed).and_then(|word| closest(word, words.iter().filter_map(|w| w.as_str())));
        // `zstd` alone has no level.
        let level = value.as_str().filter(|_| !listed).and_then(|word| {
            words
                .iter()
                .filter_map(|w| w.as_str())
                .find(|known| known.strip_prefix(word).is_some_and(|l| l.starts_with(':')))
        });
        let hint = near.or(level).map(|near| format!("did you mean \"{near}\"?"));
        wrong(path, format!("found {}, expected {expected}", found(value)), hint)
    }

    /// What a schema admits, in words.
    fn expected(self, schema: &'a Map<String, Value>) -> String {
        if let Some(words) = schema.get("x-expected").and_then(Value::as_str) {
            return words.to_owned();
        }
        if let Some(target) = self.target(schema).and_then(Value::as_object) {
            return self.expected(target);
        }
        if let Some(word) = schema.get("const") {
            return word.to_string();
        }
        let words: Vec<&Value> = list(schema, "enum").iter().collect();
        if !words.is_empty() {
            return format!("one of {}", words_of(&words));
        }
        let branches: Vec<&'a Map<String, Value>> =
            list(schema, "anyOf").iter().chain(list(schema, "oneOf")).filter_map(Value::as_object).collect();
        let words: Option<Vec<&Value>> = branches.iter().map(|b| b.get("const")).collect();
        if !branches.is_empty() {
            if let Some(words) = words {
                return format!("one of {}", words_of(&words));
            }
            let mut parts: Vec<String> = Vec::new();
            for branch in branches {
                let part = self.expected(branch);
                if part != "null" && !parts.contains(&part) {
                    parts.push(part);
                }
            }
            return parts.join(" or ");
        }
        let types = match schema.get("type") {
            Some(Value::String(ty)) => vec![ty.as_str()],
            Some(Value::Array(types)) => types.iter().filter_map(Value::as_str).filter(|ty| *ty != "null").collect(),
            _ => return "another value".to_owned(),
        };
        let parts: Vec<String> = types.iter().map(|ty| self.expected_type(ty, schema)).collect();
        parts.join(" or ")
    }

    fn expected_type(self, ty: &str, schema: &'a Map<String, Value>) -> String {
        let name = match ty {
            "integer" => "an integer",
            "number" => "a number",
            "string" => return "a string".to_owned(),
            "boolean" => return "true or false".to_owned(),
            "array" => {
                let of = schema.get("items").and_then(Value::as_object).map(|items| self.expected(items));
                return match of {
                    Some(of) => format!("a list ({of} each)"),
                    None => "a list".to_owned(),
                };
            }
            "object" => return "a table".to_owned(),
            other => return other.to_owned(),
        };
        let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
        let (min, max) = (bound("minimum"), bound("maximum"));
        match (min, max) {
            (Some(min), Some(max)) if min.total_cmp(&max).is_eq() => format!("{min}"),
            (Some(min), Some(max)) => format!("{name} from {min} to {max}"),
            (Some(min), None) => format!("{name} of at least {min}"),
            (None, Some(max)) => format!("{name} of at most {max}"),
            (None, None) => match bound("exclusiveMinimum") {
                Some(min) => format!("{name} above {min}"),
                None => name.to_owned(),
            },
        }
    }
}

fn list<'a>(schema: &'a Map<String, Value>, key: &str) -> &'a [Value] {
    schema.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// How to write a table of which only the `type` was written.
fn tag_hint(schema: &Map<String, Value>, value: &Value) -> Option<String> {
    let tags = list(schema, "oneOf").iter().filter_map(|b| b.pointer("/properties/type/const")?.as_str());
    let tag = closest(value.as_str()?, tags)?;
    Some(format!("write it as a table: {{ type = \"{tag}\" }}"))
}

fn is_type(ty: &str, value: &Value) -> bool {
    match ty {
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        _ => false,
    }
}

fn wrong(path: &KeyPath, what: String, hint: Option<String>) -> Mistake {
    let error = Error::usage(what);
    let error = match hint {
        Some(hint) => error.hint(hint),
        None => error,
    };
    Mistake { path: path.clone(), error, meant: None }
}

fn missing(path: &KeyPath, key: &str, expected: &str) -> Mistake {
    let error = Error::usage(format!("missing key `{key}`, expected {expected}"));
    Mistake { path: path.clone(), error, meant: Some(path.key(key)) }
}

fn unknown(path: &KeyPath, key: &str, known: &[&str], near: Option<&str>) -> Mistake {
    let expected = match known {
        [] => "no keys here".to_owned(),
        [only] => format!("`{only}`"),
        _ => {
            let known: Vec<String> = known.iter().map(|k| format!("`{k}`")).collect();
            format!("one of {}", known.join(", "))
        }
    };
    let error = Error::usage(format!("found unknown key `{key}`, expected {expected}"));
    let error = match near {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error,
    };
    Mistake { path: path.key(key), error, meant: near.map(|near| path.key(near)) }
}

fn words_of(words: &[&Value]) -> String {
    words.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A value as an error names it.
fn found(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) if text.chars().count() > 60 => {
            format!("the string {:?}...", text.chars().take(60).collect::<String>())
        }
        Value::String(text) => format!("the string {text:?}"),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a table".to_owned(),
    }
}

/// How the value that was found would have been written.
fn type_hint(types: &[&str], value: &Value) -> Option<String> {
    let wants = |ty: &str| types.contains(&ty);
    if let Value::String(text) = value
        && let Ok(inner) = serde_json::from_str::<Value>(text)
        && types.iter().any(|ty| is_type(ty, &inner))
    {
        return Some(format!("write {text} without the quotes"));
    }
    match value {
        Value::Object(_) => None,
        _ if wants("array") => Some(format!("write it as a list: [{value}]")),
        Value::Number(_) | Value::Bool(_) if wants("string") => Some(format!("write it in quotes: \"{value}\"")),
        Value::Number(number) if wants("integer") => {
            let whole = number.as_f64().filter(|x| x.fract() == 0.0 && x.abs() < 1e15)?;
            Some(format!("write {whole}"))
        }
        _ => None,
    }
}

/// A value as TOML has it on one line.
fn inline(value: &Value) -> String {
    match value {
        Value::Object(table) => {
            let pairs: Vec<String> = table.iter().map(|(key, value)| format!("{key} = {}", inline(value))).collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(schema: &Value, value: &Value) -> Vec<String> {
        check_shape(schema, value, "").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_mistake_is_told_with_its_place() {
        let schema = json!({
            "type": "object",
            "properties": {
                "n": { "type": "integer", "minimum": 1 },
                "mode": { "oneOf": [{ "const": "fast" }, { "const": "exact" }] },
                "names": { "type": "array", "items": { "type": "string" } },
            },
            "additionalProperties": false,
        });
        let value = json!({ "n": 0, "mode": "fats", "names": ["a", 2], "nam": [] });
        assert_eq!(
            told(&schema, &value),
            [
                "found 0, expected an integer of at least 1\n  at: job key `n`",
                "found the string \"fats\", expected one of \"fast\", \"exact\"\n  at: job key `mode`\n  hint: did you mean \"fast\"?",
                "found 2, expected a string\n  at: job key `names[1]`\n  hint: write it in quotes: \"2\"",
                "found unknown key `nam`, expected one of `n`, `mode`, `names`\n  at: job key `nam`\n  hint: did you mean `names`?",
            ]
        );
    }

    #[test]
    fn hints_say_how_to_write_it() {
        let of = |ty: &str| json!({ "type": ty });
        let table = json!({ "type": "object", "examples": [{ "seed": 7 }] });
        assert!(told(&table, &json!(true))[0].ends_with("hint: write, for example, { seed = 7 }"));
        assert!(!told(&table, &json!(false))[0].contains("hint"));
        assert!(told(&of("integer"), &json!("20"))[0].ends_with("hint: write 20 without the quotes"));
        assert!(told(&of("boolean"), &json!("true"))[0].ends_with("hint: write true without the quotes"));
        assert!(told(&of("integer"), &json!(20.0))[0].ends_with("hint: write 20"));
        assert!(told(&of("array"), &json!("a.parquet"))[0].ends_with("hint: write it as a list: [\"a.parquet\"]"));
        assert!(!told(&of("integer"), &json!(2.5))[0].contains("hint"));
    }

    #[test]
    fn tagged_tables_and_optional_values() {
        let schema = json!({ "oneOf": [
            { "properties": { "type": { "const": "A" }, "n": { "type": "integer" } }, "required": ["type", "n"], "additionalProperties": false },
            { "properties": { "type": { "const": "B" } }, "required": ["type"], "additionalProperties": false },
        ] });
        assert!(told(&schema, &json!({ "type": "A", "n": 1 })).is_empty());
        assert_eq!(told(&schema, &json!({ "type": "A" })), ["missing key `n`, expected an integer"]);
        assert_eq!(told(&schema, &json!({})), ["missing key `type`, expected one of \"A\", \"B\""]);
        assert_eq!(told(&schema, &json!({ "type": "C" }))[0].lines().nth(1).unwrap(), "  at: job key `type`");
        let optional = json!({ "anyOf": [{ "type": "integer" }, { "type": "null" }] });
        assert!(told(&optional, &Value::Null).is_empty());
        assert_eq!(told(&optional, &json!("x")), ["found the string \"x\", expected an integer"]);
    }

    #[test]
    fn keys_with_odd_characters_are_quoted() {
        let path = KeyPath::default().key("a").key("walker_*").index(2).key("b-c");
        assert_eq!(path.to_string(), "a.\"walker_*\"[2].b-c");
    }
}
