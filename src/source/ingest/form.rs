//! In which Arrow form a column holds tensors, told from its field alone.

use arrow::datatypes::{DataType, Field, Fields};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::source::elements::parse_descr;
use crate::tensor::DType;

/// The forms that are read.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Form {
    /// The null type: every row is null.
    Null,
    /// Lists in lists down to elements, `lens` from the outside in; a scalar has none.
    Lists { lens: Vec<Option<usize>>, dtype: DType },
    /// One list per row that holds a tensor's elements, whose shape is in the field's metadata (Ray, and Arrow's own).
    /// With a permutation the list is in the order of the stored dimensions; `shape` is the logical one.
    Flat { shape: Vec<usize>, permutation: Option<Vec<usize>>, dtype: DType },
    /// One list and one shape per row.
    Variable { dtype: DType },
    /// The bytes of a tensor, whose shape and dtype are in the field's metadata.
    Bytes { shape: Vec<usize>, dtype: DType },
    /// Text: packed arrays, if anything.
    Text,
    /// A Dict or Tuple.
    Struct(Fields),
}

const PICKLED: &str = "ray.data.arrow_pickled_object";
const VARIABLE: [&str; 2] = ["ray.data.arrow_variable_shaped_tensor", "arrow.variable_shape_tensor"];
const FLAT: [&str; 3] = ["ray.data.arrow_tensor", "ray.data.arrow_tensor_v2", "arrow.fixed_shape_tensor"];

/// What a field holds.
pub(super) fn form(field: &Field) -> Result<Form> {
    let extension = field.extension_type_name().unwrap_or("");
    if extension == PICKLED {
        return Err(Error::usage(
            "found pickled Python objects (`ray.data.arrow_pickled_object`), which RLlib itself cannot read back",
        )
        .hint("record with `output_write_episodes=True`: whole episodes keep nested and recurrent values"));
    }
    if VARIABLE.contains(&extension) {
        return variable(field);
    }
    if FLAT.contains(&extension)
        && let Some((item, len)) = list_item(field.data_type())
    {
        return flat(field, item, len);
    }
    by_type(field)
}

fn by_type(field: &Field) -> Result<Form> {
    let mut lens = Vec::new();
    let mut ty = field.data_type();
    while let Some((item, len)) = list_item(ty) {
        if item.extension_type_name().is_some_and(|x| FLAT.contains(&x) || VARIABLE.contains(&x)) {
            return Err(unusable(field));
        }
        lens.push(len);
        ty = item.data_type();
    }
    if let Some(dtype) = element(ty) {
        return Ok(Form::Lists { lens, dtype });
    }
    if !lens.is_empty() {
        // A column that was never filled: lists of nothing.
        return if *ty == DataType::Null { Ok(Form::Null) } else { Err(unusable(field)) };
    }
    match ty {
        DataType::Null => Ok(Form::Null),
        DataType::Struct(children) => Ok(Form::Struct(children.clone())),
        DataType::FixedSizeBinary(size) => bytes(field, *size),
        DataType::Dictionary(_, value) if is_text(value) => Ok(Form::Text),
        ty if is_text(ty) => Ok(Form::Text),
        _ => Err(unusable(field)),
    }
}

fn is_text(ty: &DataType) -> bool {
    matches!(ty, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// The element type, seen through a dictionary.
pub(super) fn element(ty: &DataType) -> Option<DType> {
    match ty {
        DataType::Dictionary(_, value) => DType::from_arrow(value),
        ty => DType::from_arrow(ty),
    }
}

/// The item of a list, and its length where the type has it.
pub(super) fn list_item(ty: &DataType) -> Option<(&Field, Option<usize>)> {
    match ty {
        DataType::List(item) | DataType::LargeList(item) => Some((item, None)),
        DataType::FixedSizeList(item, len) => Some((item, usize::try_from(*len).ok())),
        _ => None,
    }
}

/// What of a column's values can be no tensor, for people.
fn unusable(field: &Field) -> Error {
    Error::usage(format!(
        "found {}, expected numbers or booleans, or lists, fixed-size lists, tensor extension types or structs of them",
        type_name(field)
    ))
}

fn flat(field: &Field, item: &Field, len: Option<usize>) -> Result<Form> {
    let dtype = element(item.data_type()).ok_or_else(|| unusable(field))?;
    let metadata = field.extension_type_metadata().unwrap_or("");
    let unreadable = |why: &str| {
        let name = type_name(field);
        Error::usage(format!("found {name} whose metadata {} {why}, expected its shape", shorten(metadata)))
    };
    let json: Value = serde_json::from_str(metadata).map_err(|_| unreadable("is no JSON"))?;
    let stored = match &json {
        Value::Object(object) => object.get("shape").and_then(sizes),
        other => sizes(other),
    };
    let stored = stored.ok_or_else(|| unreadable("has no shape"))?;
    let elements = elements(&stored).ok_or_else(|| unreadable("is too large"))?;
    if len.is_some_and(|len| len != elements) {
        return Err(unreadable("does not fit its lists"));
    }
    let permutation = match json.get("permutation") {
        None | Some(Value::Null) => None,
        Some(p) => Some(sizes(p).filter(|p| is_permutation(p, stored.len())).ok_or_else(|| unreadable("is wrong"))?),
    };
    let permutation = permutation.filter(|p| p.iter().enumerate().any(|(i, p)| i != *p));
    let shape = permutation.as_ref().map_or_else(|| stored.clone(), |p| p.iter().map(|&d| stored[d]).collect());
    Ok(Form::Flat { shape, permutation, dtype })
}

fn is_permutation(p: &[usize], n: usize) -> bool {
    let mut seen = vec![false; n];
    p.len() == n && p.iter().all(|&d| d < n && !std::mem::replace(&mut seen[d], true))
}

fn variable(field: &Field) -> Result<Form> {
    let DataType::Struct(children) = field.data_type() else { return by_type(field) };
    let (Some((_, data)), Some((_, shape))) = (children.find("data"), children.find("shape")) else {
        return Err(unusable(field));
    };
    let permuted = field
        .extension_type_metadata()
        .and_then(|m| serde_json::from_str::<Value>(m).ok())
        .and_then(|m| m.get("permutation").and_then(sizes))
        .is_some_and(|p| p.iter().enumerate().any(|(i, p)| i != *p));
    let dtype = list_item(data.data_type()).and_then(|(item, _)| element(item.data_type()));
    match (dtype, list_item(shape.data_type())) {
        (Some(dtype), Some((item, _))) if item.data_type().is_integer() && !permuted => Ok(Form::Variable { dtype }),
        _ => Err(unusable(field)),
    }
}

fn bytes(field: &Field, size: i32) -> Result<Form> {
    let (shape, dtype) = shape_and_dtype(field).ok_or_else(|| {
        Error::usage(format!(
            "found {} without `shape` and `dtype` in its metadata, expected a tensor",
            type_name(field)
        ))
    })?;
    let dtype = DType::from_name(&dtype).or_else(|| numpy_code(&dtype)).ok_or_else(|| {
        Error::usage(format!("found {} of dtype {dtype:?}, expected a NumPy number type", type_name(field)))
            .hint("bytes are read in little-endian order: `float32` or `<f4`")
    })?;
    let expected = elements(&shape).and_then(|n| n.checked_mul(dtype.size()));
    if expected != usize::try_from(size).ok() {
        return Err(Error::usage(format!("found {size} bytes a row, expected those of {dtype}{shape:?}")));
    }
    Ok(Form::Bytes { shape, dtype })
}

/// `shape` and `dtype` beside one another in the metadata, or inside the extension's.
fn shape_and_dtype(field: &Field) -> Option<(Vec<usize>, String)> {
    let beside = || {
        let metadata = field.metadata();
        let shape = sizes(&serde_json::from_str(metadata.get("shape")?).ok()?)?;
        Some((shape, metadata.get("dtype")?.trim_matches('"').to_owned()))
    };
    beside().or_else(|| {
        let json: Value = serde_json::from_str(field.extension_type_metadata()?).ok()?;
        Some((sizes(json.get("shape")?)?, json.get("dtype")?.as_str()?.to_owned()))
    })
}

/// `NumPy`'s short type codes. Bytes beside a dtype are little-endian by the format's definition.
fn numpy_code(code: &str) -> Option<DType> {
    parse_descr(code).filter(|(_, big_endian)| !big_endian).map(|(dtype, _)| dtype)
}

fn sizes(json: &Value) -> Option<Vec<usize>> {
    json.as_array()?.iter().map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok())).collect()
}

fn elements(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))
}

fn shorten(text: &str) -> String {
    let head: String = text.chars().take(60).collect();
    format!("{head:?}")
}

/// A column's type for people: `list<float32>`, `struct{pos, vel}`, `ray.data.arrow_tensor_v2`.
#[must_use]
pub fn type_name(field: &Field) -> String {
    if let Some(extension) = field.extension_type_name() {
        return match field.extension_type_metadata() {
            Some(m) if !m.is_empty() && m.len() <= 40 => format!("{extension} {m}"),
            _ => extension.to_owned(),
        };
    }
    match field.data_type() {
        DataType::List(item) => format!("list<{}>", type_name(item)),
        DataType::LargeList(item) => format!("large list<{}>", type_name(item)),
        DataType::FixedSizeList(item, n) => format!("fixed-size list<{}>[{n}]", type_name(item)),
        DataType::Struct(children) => {
            let names: Vec<&str> = children.iter().map(|c| c.name().as_str()).collect();
            format!("struct{{{}}}", names.join(", "))
        }
        DataType::Dictionary(_, value) => {
            format!("dictionary of {}", type_name(&Field::new("", value.as_ref().clone(), true)))
        }
        DataType::FixedSizeBinary(n) => format!("fixed-size binary[{n}]"),
        DataType::Map(..) => "map".to_owned(),
        DataType::ListView(item) | DataType::LargeListView(item) => format!("list view<{}>", type_name(item)),
        ty if is_text(ty) => "text".to_owned(),
        ty => DType::from_arrow(ty).map_or_else(|| ty.to_string(), |d| d.to_string()),
    }
}
