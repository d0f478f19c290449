use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, BooleanArray, DictionaryArray, FixedSizeBinaryArray, FixedSizeListArray,
    Float32Array, Float64Array, Int32Array, Int64Array, LargeListArray, LargeStringArray, ListArray, NullArray,
    StringArray, StringViewArray, StructArray, TimestampMillisecondArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Fields, Float32Type, Int32Type};

use super::*;

type Cell<'a> = Option<&'a [f32]>;

fn extension(field: Field, name: &str, metadata: &str) -> Field {
    field.with_metadata(
        [("ARROW:extension:name", name), ("ARROW:extension:metadata", metadata)]
            .map(|(k, v)| (k.to_owned(), v.to_owned())),
    )
}

fn plain(array: &ArrayRef) -> Field {
    Field::new("x", array.data_type().clone(), true)
}

fn list(cells: &[Cell]) -> ArrayRef {
    Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(
        cells.iter().map(|c| c.map(|c| c.iter().map(|v| Some(*v)))),
    ))
}

fn large_list(cells: &[Cell]) -> ArrayRef {
    Arc::new(LargeListArray::from_iter_primitive::<Float32Type, _, _>(
        cells.iter().map(|c| c.map(|c| c.iter().map(|v| Some(*v)))),
    ))
}

fn fixed(cells: &[Cell], len: i32) -> ArrayRef {
    Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
        cells.iter().map(|c| c.map(|c| c.iter().map(|v| Some(*v)))),
        len,
    ))
}

fn numbers<P: ArrowPrimitiveType>(values: impl IntoIterator<Item = Option<P::Native>>) -> ArrayRef {
    Arc::new(values.into_iter().collect::<arrow::array::PrimitiveArray<P>>())
}

/// The one leaf, its type found as the whole program finds it: by schema, then by data.
fn read(field: &Field, array: &ArrayRef) -> Result<Ingested> {
    let mut specs = describe(field, "x")?;
    refine(&mut specs, field, array, 0)?;
    let leaves: Vec<(LeafSpec, TensorType)> =
        specs.into_iter().map(|s| (s.ty().map(|ty| (s, ty))).expect("a known leaf")).collect();
    let mut out = tensors(field, array, &leaves, 100)?;
    assert_eq!(out.len(), 1);
    Ok(out.remove(0))
}

fn leaf(name: &str, path: &[&str], dtype: DType, shape: &[usize]) -> (LeafSpec, TensorType) {
    let path = path.iter().map(|&p| p.to_owned()).collect();
    let spec = LeafSpec { name: name.to_owned(), path, dtype: Some(dtype), shape: Some(shape.to_vec()), packed: false };
    (spec, TensorType::new(dtype, shape))
}

fn f32s(found: &Ingested) -> (&[usize], &[f32]) {
    (&found.tensor.ty().shape, found.tensor.values::<f32>())
}

const FULL: [Cell; 3] = [Some(&[1., 2.]), Some(&[3., 4.]), Some(&[5., 6.])];
const GAPS: [Cell; 4] = [None, Some(&[1., 2.]), None, Some(&[3., 4.])];

#[test]
fn full_lists_of_all_kinds_are_the_same_and_not_copied() {
    for array in [list(&FULL), large_list(&FULL), fixed(&FULL, 2)] {
        let found = read(&plain(&array), &array).unwrap();
        assert_eq!(f32s(&found), (&[2][..], &[1., 2., 3., 4., 5., 6.][..]), "{}", array.data_type());
        assert_eq!(found.nulls, None);
        // The innermost values of these arrays are child 0; the tensor is the same memory.
        let child = array.to_data().child_data()[0].buffers()[0].as_ptr();
        assert_eq!(found.tensor.bytes().as_ptr(), child);
    }
}

#[test]
fn slices_are_honoured() {
    for array in [list(&FULL), large_list(&FULL), fixed(&FULL, 2)] {
        let found = read(&plain(&array), &array.slice(1, 1)).unwrap();
        assert_eq!(f32s(&found), (&[2][..], &[3., 4.][..]), "{}", array.data_type());
    }
    for array in [list(&GAPS), large_list(&GAPS), fixed(&GAPS, 2)] {
        let found = read(&plain(&array), &array.slice(2, 2)).unwrap();
        assert_eq!(f32s(&found), (&[2][..], &[0., 0., 3., 4.][..]), "{}", array.data_type());
        assert_eq!(found.nulls, Some(NullBuffer::from(vec![false, true])));
    }
}

#[test]
fn null_rows_are_zeros_and_reported() {
    for array in [list(&GAPS), large_list(&GAPS), fixed(&GAPS, 2)] {
        let found = read(&plain(&array), &array).unwrap();
        assert_eq!(f32s(&found), (&[2][..], &[0., 0., 1., 2., 0., 0., 3., 4.][..]), "{}", array.data_type());
        assert_eq!(found.nulls, Some(NullBuffer::from(vec![false, true, false, true])));
    }
    let scalars: ArrayRef = Arc::new(Int32Array::from(vec![Some(7), None, Some(8)]));
    let found = read(&plain(&scalars), &scalars).unwrap();
    assert_eq!(found.tensor.values::<i32>(), &[7, 0, 8]);
    assert_eq!(found.nulls, Some(NullBuffer::from(vec![true, false, true])));
}

#[test]
fn a_column_of_nothing_is_all_null_whatever_is_asked_for() {
    let array: ArrayRef = Arc::new(NullArray::new(3));
    let specs = describe(&plain(&array), "obs").unwrap();
    assert_eq!((specs.len(), specs[0].is_known()), (1, false));
    let leaves = [leaf("obs/pos", &["pos"], DType::Float32, &[2])];
    let found = &tensors(&plain(&array), &array, &leaves, 0).unwrap()[0];
    assert_eq!((found.tensor.rows(), found.nulls.as_ref().map(NullBuffer::null_count)), (3, Some(3)));
    assert_eq!(found.tensor.values::<f32>(), &[0.; 6]);
}

#[test]
fn every_dtype_is_kept() {
    use arrow::datatypes as adt;
    fn check<P: ArrowPrimitiveType>(dtype: DType, one: P::Native)
    where
        P::Native: crate::tensor::Element,
    {
        let array = numbers::<P>([Some(one), Some(P::Native::default()), Some(one)]);
        let found = read(&plain(&array), &array.slice(1, 2)).unwrap();
        assert_eq!(found.tensor.ty(), &TensorType::new(dtype, []));
        assert_eq!(found.tensor.values::<P::Native>(), &[P::Native::default(), one]);
    }
    check::<adt::Int8Type>(DType::Int8, -1);
    check::<adt::Int16Type>(DType::Int16, -1);
    check::<adt::Int32Type>(DType::Int32, -1);
    check::<adt::Int64Type>(DType::Int64, -1);
    check::<adt::UInt8Type>(DType::UInt8, 255);
    check::<adt::UInt16Type>(DType::UInt16, 1);
    check::<adt::UInt32Type>(DType::UInt32, 1);
    check::<adt::UInt64Type>(DType::UInt64, u64::MAX);
    check::<adt::Float16Type>(DType::Float16, half::f16::from_f32(0.5));
    check::<adt::Float32Type>(DType::Float32, -0.0);
    check::<adt::Float64Type>(DType::Float64, f64::MAX);
    let flags: ArrayRef = Arc::new(BooleanArray::from(vec![true, false, true]));
    let found = read(&plain(&flags), &flags.slice(1, 2)).unwrap();
    assert_eq!(found.tensor.bytes(), &[0, 1]);
}

#[test]
fn lists_nest_to_any_depth() {
    let inner = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
        (0..6u8).map(|i| Some([Some(f32::from(i)), Some(0.5)])),
        2,
    );
    let item = Arc::new(Field::new("item", inner.data_type().clone(), true));
    let offsets = OffsetBuffer::new(vec![0, 3, 3, 6].into());
    let nulls = NullBuffer::from(vec![true, false, true]);
    let array: ArrayRef = Arc::new(ListArray::new(item, offsets, Arc::new(inner), Some(nulls)));
    let found = read(&plain(&array), &array).unwrap();
    assert_eq!(found.tensor.ty(), &TensorType::new(DType::Float32, [3, 2]));
    assert_eq!(found.tensor.slice(2, 1).values::<f32>(), &[3., 0.5, 4., 0.5, 5., 0.5]);
    let last = read(&plain(&array), &array.slice(2, 1)).unwrap();
    assert_eq!(last.tensor, found.tensor.slice(2, 1));
}

#[test]
fn empty_arrays_and_empty_lists() {
    for array in [list(&[]), large_list(&[]), fixed(&[], 2)] {
        let leaves = [leaf("x", &[], DType::Float32, &[2])];
        let found = tensors(&plain(&array), &array, &leaves, 0).unwrap();
        assert_eq!(found[0].tensor.rows(), 0);
    }
    let array = list(&[Some(&[]), Some(&[])]);
    let found = read(&plain(&array), &array).unwrap();
    assert_eq!((found.tensor.rows(), f32s(&found)), (2, (&[0][..], &[][..])));
}

#[test]
fn ragged_rows_name_the_row_and_both_shapes() {
    let cells: [Cell; 4] = [None, Some(&[1., 2.]), Some(&[3., 4.]), Some(&[5., 6., 7.])];
    for array in [list(&cells), large_list(&cells)] {
        let e = read(&plain(&array), &array).unwrap_err();
        assert_eq!(e.what(), "found shape [3], expected [2] as in the rows before it");
        assert_eq!((e.place().row, e.place().column.as_deref()), (Some(103), Some("x")));
    }
    // The outer lists are even, an inner one is not.
    let inner = list(&[Some(&[1.]), Some(&[2.]), Some(&[3.]), Some(&[4., 5.])]);
    let item = Arc::new(Field::new("item", inner.data_type().clone(), true));
    let array: ArrayRef = Arc::new(FixedSizeListArray::new(item, 2, inner, None));
    let e = read(&plain(&array), &array).unwrap_err();
    assert!(e.what().contains("lists of 1 and of 2 items in one row"), "{e}");
    assert_eq!(e.place().row, Some(101));
}

#[test]
fn a_null_inside_a_tensor_is_an_error_with_its_row() {
    let array: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>([
        Some(vec![Some(1.), Some(2.)]),
        Some(vec![Some(3.), None]),
    ]));
    let e = read(&plain(&array), &array).unwrap_err();
    assert!(e.what().contains("null inside a tensor"), "{e}");
    assert_eq!(e.place().row, Some(101));
    // The slice without it is fine.
    assert_eq!(read(&plain(&array), &array.slice(0, 1)).unwrap().tensor.values::<f32>(), &[1., 2.]);
    // A null list inside.
    let inner = list(&[Some(&[1.]), None]);
    let item = Arc::new(Field::new("item", inner.data_type().clone(), true));
    let array: ArrayRef = Arc::new(FixedSizeListArray::new(item, 2, inner, None));
    let leaves = [leaf("x", &[], DType::Float32, &[2, 1])];
    assert!(tensors(&plain(&array), &array, &leaves, 0).unwrap_err().what().contains("null inside"));
}

#[test]
fn ray_and_arrow_tensor_extensions() {
    let cells: [Cell; 3] = [Some(&[1., 2., 3., 4., 5., 6.]), None, Some(&[7., 8., 9., 10., 11., 12.])];
    for (name, array, metadata) in [
        ("ray.data.arrow_tensor", list(&cells), "[2, 3]"),
        ("ray.data.arrow_tensor_v2", large_list(&cells), "[2,3]"),
        ("arrow.fixed_shape_tensor", fixed(&cells, 6), r#"{"shape":[2,3],"dim_names":null}"#),
        ("arrow.fixed_shape_tensor", fixed(&cells, 6), r#"{"shape":[2,3],"permutation":[0,1]}"#),
    ] {
        let field = extension(plain(&array), name, metadata);
        assert_eq!(describe(&field, "x").unwrap()[0].shape, Some(vec![2, 3]), "{name}");
        let found = read(&field, &array).unwrap();
        assert_eq!(found.tensor.row(2), read(&field, &array.slice(2, 1)).unwrap().tensor.bytes());
        assert_eq!((f32s(&found).0, f32s(&found).1[12]), (&[2, 3][..], 7.));
        assert_eq!(found.nulls.as_ref().map(NullBuffer::null_count), Some(1));
    }
}

#[test]
fn a_permuted_tensor_comes_out_in_logical_order() {
    // Stored [2, 3]: 1 2 3 / 4 5 6. Logical [3, 2] is its transpose.
    let cells: [Cell; 1] = [Some(&[1., 2., 3., 4., 5., 6.])];
    let array = fixed(&cells, 6);
    let field = extension(plain(&array), "arrow.fixed_shape_tensor", r#"{"shape":[2,3],"permutation":[1,0]}"#);
    assert_eq!(f32s(&read(&field, &array).unwrap()), (&[3, 2][..], &[1., 4., 2., 5., 3., 6.][..]));
    // numpy.arange(24).reshape(2, 3, 4).transpose(2, 0, 1).ravel()[:8] == [0 4 8 12 16 20 1 5]
    let values: Vec<f32> = (0..24u8).map(f32::from).collect();
    let array = fixed(&[Some(&values)], 24);
    let field = extension(plain(&array), "arrow.fixed_shape_tensor", r#"{"shape":[2,3,4],"permutation":[2,0,1]}"#);
    let found = read(&field, &array).unwrap();
    assert_eq!(f32s(&found).0, &[4, 2, 3]);
    assert_eq!(f32s(&found).1[..8], [0., 4., 8., 12., 16., 20., 1., 5.]);
}

#[test]
fn broken_extension_metadata_is_told() {
    let array = fixed(&FULL, 2);
    for metadata in
        ["", "pickle", "[3]", r#"{"shape":[2],"permutation":[1]}"#, r#"{"no":1}"#, "[99999999999, 99999999999]"]
    {
        let field = extension(plain(&array), "arrow.fixed_shape_tensor", metadata);
        let e = describe(&field, "x").unwrap_err();
        assert!(e.what().contains("metadata"), "{metadata}: {e}");
    }
    // Lists that are not as long as the shape says.
    let array = list(&[Some(&[1., 2.]), Some(&[1.])]);
    let field = extension(plain(&array), "ray.data.arrow_tensor", "[2]");
    let e = read(&field, &array).unwrap_err();
    assert_eq!((e.what(), e.place().row), ("found 1 elements, expected the 2 of shape [2]", Some(101)));
}

fn variable(cells: &[Cell], shapes: &[&[i64]]) -> ArrayRef {
    let data = list(cells);
    let shape: ArrayRef = Arc::new(ListArray::from_iter_primitive::<arrow::datatypes::Int64Type, _, _>(
        shapes.iter().map(|s| Some(s.iter().map(|d| Some(*d)).collect::<Vec<_>>())),
    ));
    let fields = Fields::from(vec![
        Field::new("data", data.data_type().clone(), true),
        Field::new("shape", shape.data_type().clone(), true),
    ]);
    Arc::new(StructArray::new(fields, vec![data, shape], None))
}

#[test]
fn variable_shaped_tensors_are_accepted_when_they_do_not_vary() {
    let cells: [Cell; 2] = [Some(&[1., 2.]), Some(&[3., 4.])];
    let array = variable(&cells, &[&[2, 1], &[2, 1]]);
    let field = extension(plain(&array), "ray.data.arrow_variable_shaped_tensor", "2");
    assert_eq!(f32s(&read(&field, &array).unwrap()), (&[2, 1][..], &[1., 2., 3., 4.][..]));
    assert_eq!(f32s(&read(&field, &array.slice(1, 1)).unwrap()), (&[2, 1][..], &[3., 4.][..]));
    for (shapes, found) in [([&[2, 1][..], &[1, 2]], "[1, 2]"), ([&[2, 1], &[2]], "[2]")] {
        let array = variable(&cells, &shapes);
        let e = read(&field, &array).unwrap_err();
        assert_eq!(e.what(), format!("found shape {found}, expected [2, 1] as in the rows before it"));
        assert_eq!(e.place().row, Some(101));
    }
    // A shape that the data do not bear out, or that no number holds.
    for shape in [&[3, 1][..], &[1 << 40, 1 << 40]] {
        let e = read(&field, &variable(&cells, &[shape, shape])).unwrap_err();
        assert!(e.what().starts_with("found 2 elements, expected those of shape ["), "{e}");
    }
}

#[test]
fn tensors_as_bytes() {
    let cells: Vec<Vec<u8>> =
        [[1f32, 2.], [3., 4.]].iter().map(|c| c.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
    let array: ArrayRef = Arc::new(FixedSizeBinaryArray::try_from_iter(cells.into_iter()).unwrap());
    for dtype in ["float32", "<f4"] {
        let metadata = [("shape", "[2]"), ("dtype", dtype)].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let field = plain(&array).with_metadata(metadata);
        assert_eq!(f32s(&read(&field, &array.slice(1, 1)).unwrap()), (&[2][..], &[3., 4.][..]));
    }
    let e = describe(&plain(&array), "x").unwrap_err();
    assert!(e.what().contains("without `shape` and `dtype`"), "{e}");
    let field = extension(plain(&array), "my.tensor", r#"{"shape":[3],"dtype":"float32"}"#);
    assert!(describe(&field, "x").unwrap_err().what().contains("found 8 bytes a row"));
}

#[test]
fn dictionaries_are_resolved() {
    let keys = Int32Array::from(vec![Some(1), Some(0), None, Some(1)]);
    let values = Arc::new(Float32Array::from(vec![0.5, 1.5]));
    let array: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::new(keys, values));
    let found = read(&plain(&array), &array).unwrap();
    assert_eq!(f32s(&found), (&[][..], &[1.5, 0.5, 0., 1.5][..]));
    assert_eq!(found.nulls.as_ref().map(NullBuffer::null_count), Some(1));
    // A null among the dictionary's values is a null row, too.
    let keys = Int32Array::from(vec![0, 1]);
    let values = Arc::new(Float32Array::from(vec![Some(2.), None]));
    let array: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::new(keys, values));
    let found = read(&plain(&array), &array).unwrap();
    assert_eq!((f32s(&found).1, found.nulls.is_some()), (&[2., 0.][..], true));
}

#[test]
fn structs_are_leaves_in_the_order_of_sorted_keys() {
    let pos = fixed(&FULL, 2);
    let mode: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let pair_fields =
        Fields::from(vec![Field::new("1", DataType::Int64, true), Field::new("0", pos.data_type().clone(), true)]);
    let pair: ArrayRef = Arc::new(StructArray::new(pair_fields, vec![Arc::clone(&mode), Arc::clone(&pos)], None));
    let fields = Fields::from(vec![
        Field::new("pos", pos.data_type().clone(), true),
        Field::new("pair", pair.data_type().clone(), true),
        Field::new("mode", DataType::Int64, true),
    ]);
    let nulls = NullBuffer::from(vec![true, true, false]);
    let array: ArrayRef = Arc::new(StructArray::new(fields, vec![pos, pair, mode], Some(nulls)));
    let field = plain(&array);
    let specs = describe(&field, "obs").unwrap();
    let names: Vec<&str> = specs.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["obs/mode", "obs/pair/0", "obs/pair/1", "obs/pos"]);
    let leaves: Vec<_> = specs.into_iter().map(|s| (s.ty().map(|ty| (s, ty))).unwrap()).collect();
    let found = tensors(&field, &array.slice(1, 2), &leaves, 0).unwrap();
    assert_eq!(found[0].tensor.values::<i64>(), &[2, 0], "the whole row is null, so is the leaf");
    assert_eq!(f32s(&found[1]).1, &[3., 4., 0., 0.]);
    assert!(found.iter().all(|f| f.nulls == Some(NullBuffer::from(vec![true, false]))));
}

#[test]
fn tuples_of_more_than_ten_are_sorted_by_number() {
    let fields: Vec<Field> = (0..12).map(|i| Field::new(i.to_string(), DataType::Float32, true)).collect();
    let tuple = Field::new("obs", DataType::Struct(fields.into()), true);
    let last = |specs: Vec<LeafSpec>| specs.last().map(|s| s.name.clone());
    assert_eq!(last(describe(&tuple, "obs").unwrap()), Some("obs/11".to_owned()));
    let fields: Vec<Field> = ["10", "9", "x"].iter().map(|n| Field::new(*n, DataType::Float32, true)).collect();
    let dict = Field::new("obs", DataType::Struct(fields.into()), true);
    assert_eq!(describe(&dict, "obs").unwrap()[0].name, "obs/10");
}

#[test]
fn values_become_wider_but_never_lose() {
    let array: ArrayRef = Arc::new(Float32Array::from(vec![0.1]));
    let wide = tensors(&plain(&array), &array, &[leaf("x", &[], DType::Float64, &[])], 0).unwrap();
    assert_eq!(wide[0].tensor.values::<f64>(), &[f64::from(0.1f32)]);
    let array: ArrayRef = Arc::new(Float64Array::from(vec![0.1]));
    let e = tensors(&plain(&array), &array, &[leaf("x", &[], DType::Float32, &[])], 0).unwrap_err();
    assert!(e.what().contains("found float64, expected float32"), "{e}");
}

#[test]
fn lists_without_items_are_no_tensors_of_another_shape() {
    let item = Arc::new(Field::new("item", DataType::Null, true));
    let empty = OffsetBuffer::new(vec![0, 0].into());
    let array: ArrayRef = Arc::new(ListArray::new(item, empty, Arc::new(NullArray::new(0)), None));
    let e = tensors(&plain(&array), &array, &[leaf("x", &[], DType::Float32, &[2])], 0).unwrap_err();
    assert!(e.what().contains("expected float32[2]"), "{e}");
}

/// base64(lz4 frame(pickle)) of `numpy.array([1, 2, ..], dtype)`, protocol 2, as RLlib's `pack` makes it.
fn pack(values: &[f32]) -> String {
    use base64::Engine;
    use std::io::Write;
    let n = u8::try_from(values.len()).unwrap();
    let mut pickle =
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R(K\x01K".to_vec();
    pickle.push(n);
    pickle.extend(b"\x85cnumpy\ndtype\nX\x02\x00\x00\x00f4\x89\x88\x87R(K\x03X\x01\x00\x00\x00<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89C");
    pickle.push(n * 4);
    pickle.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    pickle.extend(b"tb.");
    let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
    lz4.write_all(&pickle).unwrap();
    base64::engine::general_purpose::STANDARD.encode(lz4.finish().unwrap())
}

#[test]
fn packed_text_of_all_string_types() {
    let (a, b) = (pack(&[1., 2.]), pack(&[3., 4.]));
    let cells = vec![Some(a.as_str()), None, Some(b.as_str())];
    let dictionary: DictionaryArray<Int32Type> = cells.iter().copied().collect();
    let arrays: [ArrayRef; 4] = [
        Arc::new(StringArray::from(cells.clone())),
        Arc::new(LargeStringArray::from(cells.clone())),
        Arc::new(StringViewArray::from(cells)),
        Arc::new(dictionary),
    ];
    for array in arrays {
        let specs = describe(&plain(&array), "x").unwrap();
        assert!(specs[0].packed && !specs[0].is_known());
        let found = read(&plain(&array), &array).unwrap();
        assert_eq!(f32s(&found), (&[2][..], &[1., 2., 0., 0., 3., 4.][..]), "{}", array.data_type());
        assert_eq!(found.nulls.as_ref().map(NullBuffer::null_count), Some(1));
    }
    let array: ArrayRef = Arc::new(StringArray::from(vec![a, pack(&[1.])]));
    let e = read(&plain(&array), &array).unwrap_err();
    assert_eq!((e.place().row, e.what().contains("found shape [1], expected [2]")), (Some(101), true), "{e}");
}

#[test]
fn plain_text_is_refused_by_name() {
    let array: ArrayRef = Arc::new(StringArray::from(vec![None, Some("CartPole-v1")]));
    let e = read(&plain(&array), &array).unwrap_err();
    assert!(e.what().contains("found text") && e.what().contains("expected numbers"), "{e}");
    assert_eq!(e.place().column.as_deref(), Some("x"));
}

#[test]
fn what_cannot_be_a_tensor_is_named() {
    let time: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![1]));
    let e = describe(&plain(&time), "when").unwrap_err();
    assert!(e.what().contains("found Timestamp") && e.what().contains("expected numbers"), "{e}");
    assert_eq!(e.place().column.as_deref(), Some("when"));
    let e = describe(&Field::new("x", DataType::Decimal128(9, 2), true), "price").unwrap_err();
    assert!(e.what().contains("Decimal"), "{e}");
    let pickled = extension(Field::new("x", DataType::LargeBinary, true), "ray.data.arrow_pickled_object", "");
    let e = describe(&pickled, "state_out").unwrap_err();
    assert!(e.hint_text().unwrap().contains("output_write_episodes=True"), "{e}");
}
