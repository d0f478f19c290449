//! Which columns can be read page by page, and how their pages are laid out.
//!
//! ```text
//! obs: struct<pos: fixed_size_list<float>[3], mode: int64>
//!
//! Node::Struct  mode  Leaf { column 0, lists [],          values: 8 bytes each,  max_def 2, max_rep 0 }
//!               pos   Leaf { column 1, lists [fixed 3],   values: 4 bytes each,  max_def 4, max_rep 1 }
//! ```

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, LargeListArray, ListArray, StructArray, make_array};
use arrow::array::{FixedSizeListArray, OffsetSizeTrait};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use arrow::error::Result as ArrowResult;
use parquet::basic::{Repetition, Type as Physical};
use parquet::schema::types::{SchemaDescriptor, Type};

/// A column as a tree: structs, and leaves that hold tensors.
#[derive(Debug)]
pub(super) enum Node {
    Struct { fields: Fields, children: Vec<Self> },
    Leaf(Leaf),
}

/// A leaf column of scalars or of lists (of lists) of them.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    /// The column's number in the file.
    pub column: usize,
    /// The lists from the outside in.
    pub lists: Vec<List>,
    /// The elements' Arrow type.
    pub element: DataType,
    /// How they lie in pages.
    pub values: Values,
    /// The definition level of an element that is there.
    pub max_def: i16,
}

/// One level of lists.
#[derive(Debug, Clone)]
pub(super) struct List {
    pub item: FieldRef,
    pub kind: ListKind,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum ListKind {
    Fixed(usize),
    Offsets32,
    Offsets64,
}

/// How elements lie in pages, and in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Values {
    /// As in memory: so many bytes each.
    Copy(usize),
    /// Four bytes each, of which the lowest (one or two) are the value.
    Narrow(usize),
    /// One bit each.
    Bits,
}

impl Values {
    /// Bytes of an element in a page.
    pub const fn stored(self) -> usize {
        match self {
            Self::Copy(size) => size,
            Self::Narrow(_) => 4,
            Self::Bits => 0,
        }
    }

    /// Bytes of an element in memory.
    pub const fn size(self) -> usize {
        match self {
            Self::Copy(size) | Self::Narrow(size) => size,
            Self::Bits => 0,
        }
    }
}

/// The tree of the top-level column `root`, if all of its leaves can be read page by page.
pub(super) fn node(schema: &SchemaDescriptor, root: usize, field: &Field) -> Option<Node> {
    let ty = schema.root_schema().get_fields().get(root)?;
    let columns = columns_of(schema, root);
    let mut column = columns.start;
    let node = build(schema, &mut column, ty, field)?;
    (column == columns.end).then_some(node)
}

/// The leaf columns of the top-level column `root`: they stand side by side, in the order of the top-level columns.
pub(in super::super) fn columns_of(schema: &SchemaDescriptor, root: usize) -> Range<usize> {
    let first_from = |root: usize| {
        let (mut low, mut high) = (0, schema.num_columns());
        while low < high {
            let middle = usize::midpoint(low, high);
            if schema.get_column_root_idx(middle) < root { low = middle + 1 } else { high = middle }
        }
        low
    };
    first_from(root)..first_from(root + 1)
}

fn build(schema: &SchemaDescriptor, column: &mut usize, ty: &Type, field: &Field) -> Option<Node> {
    if let DataType::Struct(fields) = field.data_type() {
        if !ty.is_group() || repeated(ty) || ty.get_fields().len() != fields.len() {
            return None;
        }
        let children = ty.get_fields().iter().zip(fields).map(|(ty, field)| build(schema, column, ty, field));
        return Some(Node::Struct { fields: fields.clone(), children: children.collect::<Option<_>>()? });
    }
    let (mut ty, mut field) = (ty, field);
    let mut lists = Vec::new();
    loop {
        let (item, kind) = match field.data_type() {
            DataType::FixedSizeList(item, n) => (item, ListKind::Fixed(usize::try_from(*n).ok().filter(|&n| n > 0)?)),
            DataType::List(item) => (item, ListKind::Offsets32),
            DataType::LargeList(item) => (item, ListKind::Offsets64),
            _ => break,
        };
        // The three levels that the format asks for: the list, the repeated group, the element.
        let [middle] = ty.is_group().then(|| ty.get_fields())? else { return None };
        let [inner] = (repeated(middle) && middle.is_group()).then(|| middle.get_fields())? else { return None };
        lists.push(List { item: Arc::clone(item), kind });
        (ty, field) = (inner, item.as_ref());
    }
    if ty.is_group() || repeated(ty) {
        return None;
    }
    let values = values(ty.get_physical_type(), ty, field.data_type())?;
    // Bits of several rows share bytes; lists of booleans are rare enough for the crate's reader.
    if values == Values::Bits && !lists.is_empty() {
        return None;
    }
    let descr = schema.column(*column);
    if usize::try_from(descr.max_rep_level()) != Ok(lists.len()) {
        return None;
    }
    let leaf =
        Leaf { column: *column, lists, element: field.data_type().clone(), values, max_def: descr.max_def_level() };
    *column += 1;
    Some(Node::Leaf(leaf))
}

fn repeated(ty: &Type) -> bool {
    let info = ty.get_basic_info();
    info.has_repetition() && info.repetition() == Repetition::REPEATED
}

fn values(physical: Physical, ty: &Type, element: &DataType) -> Option<Values> {
    use DataType as D;
    Some(match (physical, element) {
        (Physical::FLOAT, D::Float32) | (Physical::INT32, D::Int32 | D::UInt32) => Values::Copy(4),
        (Physical::DOUBLE, D::Float64) | (Physical::INT64, D::Int64 | D::UInt64) => Values::Copy(8),
        (Physical::INT32, D::Int8 | D::UInt8) => Values::Narrow(1),
        (Physical::INT32, D::Int16 | D::UInt16) => Values::Narrow(2),
        (Physical::BOOLEAN, D::Boolean) => Values::Bits,
        (Physical::FIXED_LEN_BYTE_ARRAY, D::Float16) => Values::Copy(fixed_len(ty).filter(|&n| n == 2)?),
        (Physical::FIXED_LEN_BYTE_ARRAY, D::FixedSizeBinary(n)) => {
            Values::Copy(fixed_len(ty).filter(|len| usize::try_from(*n) == Ok(*len) && *len > 0)?)
        }
        _ => return None,
    })
}

fn fixed_len(ty: &Type) -> Option<usize> {
    match ty {
        Type::PrimitiveType { type_length, .. } => usize::try_from(*type_length).ok(),
        Type::GroupType { .. } => None,
    }
}

impl Leaf {
    /// The Arrow array of `rows` rows over elements, with `dims` the length of each level of lists.
    pub fn array(&self, rows: usize, dims: &[usize], elements: Buffer) -> ArrowResult<ArrayRef> {
        let count = dims.iter().product::<usize>() * rows;
        let data = ArrayData::builder(self.element.clone()).len(count).add_buffer(elements).build()?;
        let mut array = make_array(data);
        for (level, list) in self.lists.iter().enumerate().rev() {
            let lists = dims[..level].iter().product::<usize>() * rows;
            let item = Arc::clone(&list.item);
            array = match list.kind {
                ListKind::Fixed(n) => {
                    let n = i32::try_from(n).map_err(|e| arrow::error::ArrowError::ExternalError(e.into()))?;
                    Arc::new(FixedSizeListArray::try_new_with_length(item, n, array, None, lists)?)
                }
                ListKind::Offsets32 => Arc::new(ListArray::try_new(item, offsets(lists, dims[level])?, array, None)?),
                ListKind::Offsets64 => {
                    Arc::new(LargeListArray::try_new(item, offsets(lists, dims[level])?, array, None)?)
                }
            };
        }
        Ok(array)
    }
}

/// The offsets of `n` lists of `len` elements each.
fn offsets<O: OffsetSizeTrait>(n: usize, len: usize) -> ArrowResult<OffsetBuffer<O>> {
    let offset =
        |i: usize| O::from_usize(i * len).ok_or_else(|| arrow::error::ArrowError::OffsetOverflowError(i * len));
    let offsets = (0..=n).map(offset).collect::<ArrowResult<Vec<O>>>()?;
    Ok(OffsetBuffer::new(ScalarBuffer::from(offsets)))
}

impl Node {
    /// The leaves, in the order of the file's columns.
    pub fn leaves(&self) -> Vec<&Leaf> {
        match self {
            Self::Leaf(leaf) => vec![leaf],
            Self::Struct { children, .. } => children.iter().flat_map(Self::leaves).collect(),
        }
    }

    /// The column's array from those of its leaves.
    pub fn array(&self, rows: usize, leaves: &mut impl Iterator<Item = ArrayRef>) -> ArrowResult<ArrayRef> {
        match self {
            Self::Leaf(_) => leaves.next().ok_or_else(|| arrow::error::ArrowError::SchemaError("no leaf".to_owned())),
            Self::Struct { fields, children } => {
                let arrays = children.iter().map(|c| c.array(rows, leaves)).collect::<ArrowResult<Vec<_>>>()?;
                debug_assert!(arrays.iter().all(|a| a.len() == rows));
                Ok(Arc::new(StructArray::try_new_with_length(fields.clone(), arrays, None, rows)?))
            }
        }
    }
}
