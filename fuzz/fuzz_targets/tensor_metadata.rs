#![no_main]
//! Tensor extension types and the metadata of fields, over storage that does or does not fit them.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, FixedSizeBinaryArray, FixedSizeListArray, Float32Array, Int64Array, LargeListArray, ListArray,
    StructArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use gristmill::source::ingest::{describe, refine, tensors, type_name};
use libfuzzer_sys::fuzz_target;

const EXTENSIONS: [&str; 7] = [
    "ray.data.arrow_tensor",
    "ray.data.arrow_tensor_v2",
    "arrow.fixed_shape_tensor",
    "ray.data.arrow_variable_shaped_tensor",
    "arrow.variable_shape_tensor",
    "ray.data.arrow_pickled_object",
    "",
];

/// Lists of the lengths in `lens`.
fn list(item: ArrayRef, lens: &[u8]) -> Option<ArrayRef> {
    let offsets = OffsetBuffer::from_lengths(lens.iter().map(|n| usize::from(*n)));
    let field = Arc::new(Field::new("item", item.data_type().clone(), true));
    ListArray::try_new(field, offsets, item, None).ok().map(|a| Arc::new(a) as ArrayRef)
}

fn storage(kind: u8, lens: &[u8], size: u8) -> Option<ArrayRef> {
    let total: usize = lens.iter().map(|n| usize::from(*n)).sum();
    let floats: ArrayRef = Arc::new(Float32Array::from((0..total).map(|i| i as f32).collect::<Vec<_>>()));
    let size = i32::from(size);
    Some(match kind % 6 {
        0 => list(floats, lens)?,
        1 => {
            let offsets = OffsetBuffer::<i64>::from_lengths(lens.iter().map(|n| usize::from(*n)));
            let item = Arc::new(Field::new("item", DataType::Boolean, true));
            let values = Arc::new(BooleanArray::from(vec![true; total]));
            Arc::new(LargeListArray::try_new(item, offsets, values, None).ok()?)
        }
        2 => {
            let rows = if size == 0 { 0 } else { total / size as usize };
            let item = Arc::new(Field::new("item", DataType::Float32, true));
            let values = floats.slice(0, rows * size as usize);
            Arc::new(FixedSizeListArray::try_new(item, size, values, None).ok()?)
        }
        3 => {
            let rows = lens.len();
            let bytes = vec![7_u8; rows * size as usize];
            Arc::new(FixedSizeBinaryArray::try_new(size, bytes.into(), None).ok()?)
        }
        4 => {
            // Each row's shape is its length, and sometimes a lie.
            let shapes: Vec<i64> = lens.iter().map(|n| i64::from(*n) - i64::from(size == 1)).collect();
            let shapes = list(Arc::new(Int64Array::from(shapes)), &vec![1; lens.len()])?;
            let data = list(floats, lens)?;
            let fields = vec![
                Field::new("data", data.data_type().clone(), true),
                Field::new("shape", shapes.data_type().clone(), true),
            ];
            Arc::new(StructArray::try_new(fields.into(), vec![data, shapes], None).ok()?)
        }
        _ => floats,
    })
}

fuzz_target!(|input: (u8, u8, u8, [u8; 4], &str, Option<&str>)| {
    let (kind, extension, size, lens, metadata, dtype) = input;
    let Some(array) = storage(kind, &lens.map(|n| n % 13), size) else { return };
    let mut told = HashMap::new();
    told.insert("ARROW:extension:name".to_owned(), EXTENSIONS[usize::from(extension) % EXTENSIONS.len()].to_owned());
    told.insert("ARROW:extension:metadata".to_owned(), metadata.to_owned());
    if let Some(dtype) = dtype {
        told.insert("shape".to_owned(), metadata.to_owned());
        told.insert("dtype".to_owned(), dtype.to_owned());
    }
    let field = Field::new("obs", array.data_type().clone(), true).with_metadata(told);
    let _ = type_name(&field);
    let Ok(mut leaves) = describe(&field, "obs") else { return };
    if refine(&mut leaves, &field, &array, 0).is_err() {
        return;
    }
    let leaves: Vec<_> = leaves.into_iter().filter_map(|leaf| leaf.ty().map(|ty| (leaf, ty))).collect();
    for leaf in tensors(&field, &array, &leaves, 0).into_iter().flatten() {
        assert_eq!(leaf.tensor.rows(), array.len());
    }
});
