//! Values as bytes, and what Arrow makes of them: as a recording has them, and as a shard has them.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, LargeListArray, ListArray, RecordBatch, StructArray,
    make_array,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field};

/// The type of one value: its elements, and how many there are in each dimension.
#[derive(Debug, Clone, PartialEq)]
pub struct Ty {
    pub dtype: DataType,
    pub shape: Vec<usize>,
}

impl Ty {
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * size(&self.dtype)
    }
}

/// Bytes of an element. A boolean is a byte, 0 or 1.
pub fn size(dtype: &DataType) -> usize {
    dtype.primitive_width().unwrap_or(1)
}

/// One value a row: a tensor, or tensors by name.
#[derive(Debug, Clone)]
pub enum Tree {
    Leaf(Ty),
    Dict(Vec<(&'static str, Tree)>),
}

impl Tree {
    /// The tensors, each with its name behind that of the tree.
    pub fn leaves(&self, name: &str) -> Vec<(String, Ty)> {
        match self {
            Self::Leaf(ty) => vec![(name.to_owned(), ty.clone())],
            Self::Dict(children) => {
                children.iter().flat_map(|(key, child)| child.leaves(&format!("{name}/{key}"))).collect()
            }
        }
    }
}

/// How dimensions are stored.
#[derive(Debug, Clone, Copy)]
pub enum Lists {
    Fixed,
    Variable,
    Large,
}

/// The column `name` of some rows; `value` gives a row's bytes of a leaf, or none where it is null.
pub fn array<'a>(
    tree: &Tree,
    name: &str,
    rows: usize,
    lists: Lists,
    value: &dyn Fn(usize, &str) -> Option<&'a [u8]>,
) -> ArrayRef {
    let children = match tree {
        Tree::Leaf(ty) => return tensor(ty, lists, (0..rows).map(|row| value(row, name))),
        Tree::Dict(children) => children,
    };
    let leaf = &tree.leaves(name)[0].0;
    let valid: NullBuffer = (0..rows).map(|row| value(row, leaf).is_some()).collect();
    let arrays: Vec<ArrayRef> =
        children.iter().map(|(key, child)| array(child, &format!("{name}/{key}"), rows, lists, value)).collect();
    let fields: Vec<Field> =
        children.iter().zip(&arrays).map(|((key, _), a)| Field::new(*key, a.data_type().clone(), true)).collect();
    Arc::new(StructArray::new(fields.into(), arrays, Some(valid)))
}

fn tensor<'a>(ty: &Ty, lists: Lists, rows: impl Iterator<Item = Option<&'a [u8]>>) -> ArrayRef {
    let (mut bytes, mut valid) = (Vec::new(), Vec::new());
    for row in rows {
        valid.push(row.is_some());
        bytes.extend_from_slice(row.unwrap_or(&vec![0; ty.bytes()]));
    }
    let rows = valid.len();
    let nulls = valid.contains(&false).then(|| NullBuffer::from(valid));
    let scalar = ty.shape.is_empty();
    let mut out = elements(&ty.dtype, &bytes, nulls.clone().filter(|_| scalar));
    for (dimension, &len) in ty.shape.iter().enumerate().rev() {
        let nulls = nulls.clone().filter(|_| dimension == 0);
        let n = rows * ty.shape[..dimension].iter().product::<usize>();
        let item = Arc::new(Field::new("item", out.data_type().clone(), true));
        let lengths = std::iter::repeat_n(len, n);
        out = match lists {
            Lists::Fixed => Arc::new(FixedSizeListArray::new(item, i32::try_from(len).unwrap(), out, nulls)),
            Lists::Variable => Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lengths), out, nulls)),
            Lists::Large => Arc::new(LargeListArray::new(item, OffsetBuffer::from_lengths(lengths), out, nulls)),
        };
    }
    out
}

fn elements(dtype: &DataType, bytes: &[u8], nulls: Option<NullBuffer>) -> ArrayRef {
    if *dtype == DataType::Boolean {
        return Arc::new(BooleanArray::new(bytes.iter().map(|b| *b != 0).collect(), nulls));
    }
    let data = arrow::array::ArrayData::builder(dtype.clone())
        .len(bytes.len() / size(dtype))
        .add_buffer(Buffer::from(bytes))
        .nulls(nulls);
    make_array(data.build().expect("numbers"))
}

/// A column of a shard: its type, and the bytes of all rows.
pub fn read(rows: &RecordBatch, name: &str) -> (Ty, Vec<u8>) {
    let schema = rows.schema();
    let (at, field) = schema.column_with_name(name).unwrap_or_else(|| panic!("no column {name}"));
    let column = rows.column(at);
    let Some(list) = column.as_fixed_size_list_opt() else {
        return (Ty { dtype: field.data_type().clone(), shape: vec![] }, bytes_of(column));
    };
    let told: serde_json::Value =
        serde_json::from_str(&field.metadata()["ARROW:extension:metadata"]).expect("a tensor's metadata");
    let shape = serde_json::from_value(told["shape"].clone()).expect("a shape");
    (Ty { dtype: list.value_type(), shape }, bytes_of(list.values()))
}

fn bytes_of(array: &ArrayRef) -> Vec<u8> {
    assert_eq!(array.null_count(), 0);
    if let Some(bools) = array.as_boolean_opt() {
        return bools.values().iter().map(u8::from).collect();
    }
    let data = array.to_data();
    let width = size(array.data_type());
    data.buffers()[0][data.offset() * width..(data.offset() + data.len()) * width].to_vec()
}

/// Ids as text, whatever they are.
pub fn texts(rows: &RecordBatch, name: &str) -> Vec<String> {
    crate::support::shown(rows, name).split(' ').filter(|t| !t.is_empty()).map(str::to_owned).collect()
}
