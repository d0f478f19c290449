use arrow::array::{
    ArrayRef, BooleanArray, FixedSizeListArray, Float32Array, Float64Array, Int32Array, Int64Array, LargeListArray,
    ListArray, NullArray, RecordBatch, StringArray, StructArray, TimestampMillisecondArray,
};
use arrow::datatypes::{Float32Type, Float64Type};
use parquet::arrow::ArrowWriter;
use tempfile::TempDir;

use super::*;
use crate::error::Kind;
use crate::tensor::DType;

type Columns<'a> = Vec<(&'a str, ArrayRef)>;

fn arc(array: impl arrow::array::Array + 'static) -> ArrayRef {
    Arc::new(array)
}

fn fixed(n: usize, len: i32) -> ArrayRef {
    let row = vec![Some(1.0); usize::try_from(len).unwrap()];
    arc(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(vec![Some(row); n], len))
}

fn list(rows: &[Option<&[f64]>]) -> ArrayRef {
    let rows = rows.iter().map(|r| r.map(|r| r.iter().map(|v| Some(*v)).collect::<Vec<_>>()));
    arc(ListArray::from_iter_primitive::<Float64Type, _, _>(rows))
}

/// Two rows of the least that is needed.
fn steps() -> Columns<'static> {
    vec![
        ("eps_id", arc(StringArray::from(vec!["a", "a"]))),
        ("obs", fixed(2, 3)),
        ("actions", arc(Int32Array::from(vec![0, 1]))),
        ("rewards", arc(Float32Array::from(vec![1.0, 1.0]))),
    ]
}

fn with(column: &'static str, array: ArrayRef) -> Columns<'static> {
    let mut columns = steps();
    match columns.iter_mut().find(|(name, _)| *name == column) {
        Some((_, old)) => *old = array,
        None => columns.push((column, array)),
    }
    columns
}

fn without(column: &str) -> Columns<'static> {
    steps().into_iter().filter(|(name, _)| *name != column).collect()
}

fn rename(pairs: &[(&str, &str)]) -> IndexMap<String, String> {
    pairs.iter().map(|(ours, theirs)| ((*ours).to_owned(), (*theirs).to_owned())).collect()
}

fn unify_renamed(files: &[Columns], map: &[(&str, &str)]) -> Result<Unified> {
    let dir = TempDir::new().unwrap();
    let mut open = Vec::new();
    for (i, columns) in files.iter().enumerate() {
        let fields: Vec<Field> = columns.iter().map(|(n, a)| Field::new(*n, a.data_type().clone(), true)).collect();
        let schema = Arc::new(arrow::datatypes::Schema::new(fields));
        let arrays = columns.iter().map(|(_, a)| Arc::clone(a)).collect();
        let batch = RecordBatch::try_new(schema, arrays).unwrap();
        let path = dir.path().join(format!("{}.parquet", char::from(b'a' + u8::try_from(i).unwrap())));
        let file = std::fs::File::create(&path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        open.push(Arc::new(InputFile::open_in(&path, dir.path()).unwrap()));
    }
    unify(&open, &rename(map), &[], false, false)
}

fn unified(files: &[Columns]) -> Result<Unified> {
    unify_renamed(files, &[])
}

fn ty(found: &Unified, column: &str) -> String {
    let leaves = &found.column(column).unwrap().leaves;
    leaves.iter().map(|(l, ty)| format!("{} {ty}", l.name)).collect::<Vec<_>>().join(", ")
}

fn refused(files: &[Columns]) -> String {
    let e = unified(files).unwrap_err();
    assert_eq!(e.kind(), Kind::Usage, "{e}");
    e.to_string()
}

#[test]
fn one_file() {
    let found = unified(&[steps()]).unwrap();
    let columns: Vec<(&str, Role)> = found.columns.iter().map(|c| (c.name.as_str(), c.role)).collect();
    assert_eq!(
        columns,
        [("eps_id", Role::Id), ("obs", Role::Tensor), ("actions", Role::Tensor), ("rewards", Role::Tensor)]
    );
    assert_eq!(ty(&found, "obs"), "obs float32[3]");
    assert!(found.notes.is_empty() && found.left_out.is_empty(), "{:?}", found.notes);
}

#[test]
fn order_of_columns_and_kinds_of_lists_do_not_matter() {
    let mut turned = with("obs", list(&[None, Some(&[1., 2., 3.])]));
    turned.reverse();
    let large = arc(LargeListArray::from_iter_primitive::<Float32Type, _, _>(vec![Some(vec![Some(0.); 3]); 2]));
    let found = unified(&[steps(), turned, with("obs", large)]).unwrap();
    assert_eq!(ty(&found, "obs"), "obs float64[3]");
    assert_eq!(
        Vec::from_iter(found.notes),
        ["column `obs` is float32 in a.parquet and float64 in b.parquet: read as float64"]
    );
    assert_eq!(found.columns[0].name, "eps_id");
}

#[test]
fn stored_differently_and_the_same_is_noted() {
    let large = arc(LargeListArray::from_iter_primitive::<Float32Type, _, _>(vec![Some(vec![Some(0.); 3]); 2]));
    let found = unified(&[steps(), with("obs", large)]).unwrap();
    assert_eq!(
        Vec::from_iter(found.notes),
        [
            "column `obs` is stored as fixed-size list<float32>[3] in a.parquet and large list<float32> in b.parquet: read as one"
        ]
    );
}

#[test]
fn widths_are_unified_where_nothing_is_lost() {
    let found = unified(&[steps(), with("actions", arc(Int64Array::from(vec![0, 1])))]).unwrap();
    assert_eq!(ty(&found, "actions"), "actions int64");
    let found = unified(&[steps(), with("rewards", arc(Float64Array::from(vec![0., 1.]))), steps()]).unwrap();
    assert_eq!(ty(&found, "rewards"), "rewards float64");
}

#[test]
fn what_would_lose_is_refused_with_both_files() {
    let int = || with("rewards", arc(Int64Array::from(vec![0, 1])));
    let e = refused(&[int(), steps(), with("rewards", arc(Float64Array::from(vec![0., 1.])))]);
    assert!(e.contains("int64 in a.parquet and float32 in b.parquet") && e.contains("column `rewards`"), "{e}");
    let e = refused(&[steps(), with("actions", arc(BooleanArray::from(vec![true, false])))]);
    assert!(e.contains("int32 in a.parquet and bool in b.parquet"), "{e}");
    let e = refused(&[steps(), with("obs", fixed(2, 4))]);
    assert!(e.contains("shape [3] in a.parquet and shape [4] in b.parquet"), "{e}");
    let e = refused(&[steps(), with("obs", list(&[Some(&[1.]), Some(&[1.])]))]);
    assert!(e.contains("shape [3] in a.parquet and shape [1] in b.parquet"), "{e}");
    let e = refused(&[steps(), with("eps_id", arc(Int64Array::from(vec![1, 1])))]);
    assert!(e.contains("text in a.parquet and integers in b.parquet"), "{e}");
    let pos = fixed(2, 3);
    let field = Arc::new(Field::new("pos", pos.data_type().clone(), true));
    let e = refused(&[steps(), with("obs", arc(StructArray::from(vec![(field, pos)])))]);
    assert!(e.contains("fixed-size list<float32>[3] in a.parquet and struct{pos} in b.parquet"), "{e}");
    let e = refused(&[with("vf_preds", arc(Float32Array::from(vec![0., 1.]))), steps()]);
    assert!(e.contains("the column is in a.parquet and not in b.parquet") && e.contains("`vf_preds`"), "{e}");
    let e = refused(&[with("t", arc(Int64Array::from(vec![0, 1]))), steps()]);
    assert!(e.contains("the column is in a.parquet and not in b.parquet") && e.contains("`t`"), "{e}");
    let e = refused(&[
        with("note", arc(Float32Array::from(vec![0., 1.]))),
        with("note", arc(StringArray::from(vec!["x", "y"]))),
    ]);
    assert!(e.contains("float32 in a.parquet and text in b.parquet"), "{e}");
}

#[test]
fn columns_that_may_be_all_null_or_missing() {
    let null = || arc(NullArray::new(2));
    let files = [
        with("agent_id", null()),
        with("agent_id", arc(StringArray::from(vec!["x", "x"]))),
        with("env_t", arc(Int32Array::from(vec![0, 1]))),
        with("obs", null()),
    ];
    let found = unified(&files).unwrap();
    assert_eq!(found.column("agent_id").unwrap().missing_in, ["c.parquet", "d.parquet"]);
    assert_eq!(found.column("env_t").unwrap().missing_in.len(), 3);
    assert_eq!(ty(&found, "obs"), "obs float32[3]");
    assert!(found.notes.iter().any(|n| n.contains("`obs` is all null in d.parquet")), "{:?}", found.notes);
    assert!(found.notes.iter().any(|n| n.contains("`env_t` is in c.parquet and not in a.parquet and others")));
    assert!(refused(&[with("obs", null())]).contains("null in every row"));
    assert!(refused(&[with("obs", list(&[None, None]))]).contains("null in every row"));
    assert!(refused(&[with("eps_id", null())]).contains("null in every row"));
}

#[test]
fn extras_that_are_no_tensors_are_left_out_by_name() {
    let mut columns = with("env_name", arc(StringArray::from(vec!["CartPole-v1"; 2])));
    columns.push(("when", arc(TimestampMillisecondArray::from(vec![0, 1]))));
    columns.push(("infos", arc(StringArray::from(vec!["{}", "{}"]))));
    columns.push(("comment", arc(StringArray::from(vec![None::<&str>; 2]))));
    columns.push(("empty", arc(NullArray::new(2))));
    columns.push(("__index_level_0__", arc(Int64Array::from(vec![0, 1]))));
    let found = unified(&[columns.clone(), columns]).unwrap();
    assert_eq!(found.columns.len(), 4);
    let names: Vec<&str> = found.left_out.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(names, ["env_name", "when", "infos", "comment", "empty"]);
    assert_eq!(found.left_out[0].1, "found text, expected numbers");
    assert!(found.left_out[1].1.contains("found Timestamp"), "{:?}", found.left_out);
    assert!(found.notes.iter().any(|n| n.contains("`__index_level_0__` is the index of a pandas table")));
    assert!(found.notes.iter().any(|n| n.contains("`env_name` is left out: found text")));
    let e = refused(&[with("actions", arc(StringArray::from(vec!["left", "right"])))]);
    assert!(e.contains("found text, expected numbers") && e.contains("`actions`") && e.contains("a.parquet"), "{e}");
    let e = refused(&[with("obs", arc(TimestampMillisecondArray::from(vec![0, 1])))]);
    assert!(e.contains("found Timestamp") && e.contains("`obs`"), "{e}");
}

#[test]
fn missing_columns_list_what_is_there_and_what_might_be_meant() {
    let mut columns = without("obs");
    columns.retain(|(n, _)| *n != "eps_id");
    columns.push(("observation", fixed(2, 3)));
    columns.push(("episode_index", arc(Int64Array::from(vec![0, 0]))));
    columns.push(("done", arc(BooleanArray::from(vec![false, true]))));
    let e = refused(&[columns.clone()]);
    assert!(e.contains("missing columns eps_id, obs: found the columns actions, rewards, observation"), "{e}");
    let map = r#"{ eps_id = "episode_index", obs = "observation", terminateds = "done" }"#;
    assert!(e.contains(map), "{e}");
    let map = [("eps_id", "episode_index"), ("obs", "observation"), ("terminateds", "done")];
    let found = unify_renamed(&[columns], &map).unwrap();
    assert_eq!(found.column("obs").unwrap().source, "observation");
    assert_eq!(ty(&found, "obs"), "obs float32[3]");
    assert_eq!(found.column("terminateds").unwrap().role, Role::Flag);
    assert!(found.notes.is_empty(), "{:?}", found.notes);
    let e = refused(&[steps(), without("rewards")]);
    assert!(e.contains("missing column rewards") && e.contains("b.parquet"), "{e}");
}

#[test]
fn optional_columns_under_other_names_are_pointed_out_and_not_guessed() {
    let found = unified(&[with("done", arc(BooleanArray::from(vec![false, true])))]).unwrap();
    assert_eq!(ty(&found, "done"), "done bool");
    assert!(found.notes.iter().any(|n| n.contains(r#"columns = { terminateds = "done" }"#)), "{:?}", found.notes);
}

#[test]
fn renaming() {
    let e = unify_renamed(&[steps()], &[("obs", "observatoin")]).unwrap_err();
    assert!(e.what().contains("maps obs to \"observatoin\", which is not there: found the columns eps_id"), "{e}");
    // The mapped column wins over one that has our name.
    let found = unify_renamed(&[with("pixels", fixed(2, 5))], &[("obs", "pixels")]).unwrap();
    assert_eq!(ty(&found, "obs"), "obs float32[5]");
    assert!(found.notes.iter().any(|n| n.contains("`obs` is not read")), "{:?}", found.notes);
    // Flat leaves follow their root.
    let mut columns = without("obs");
    columns.push(("observation/pos", fixed(2, 3)));
    columns.push(("observation/vel", fixed(2, 2)));
    let found = unify_renamed(&[columns.clone()], &[("obs", "observation")]).unwrap();
    let names: Vec<&str> = found.under("obs").map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["obs/pos", "obs/vel"]);
    columns.push(("obs", fixed(2, 3)));
    let found = unify_renamed(&[columns], &[("obs", "observation/pos")]).unwrap();
    assert_eq!(found.column("obs").unwrap().source, "observation/pos");
    let mut both = steps();
    both.push(("obs/pos", fixed(2, 3)));
    let told = refused(&[both]);
    let what = r#"found the columns "obs" and "obs/pos", but obs/pos is a part of obs, which is there as one column"#;
    assert!(told.contains(what), "{told}");
    let mut both = with("t", arc(Int64Array::from(vec![0, 1])));
    both.insert(0, ("t/x", fixed(2, 3)));
    let told = refused(&[both]);
    assert!(told.contains("but t/x is a part of t, which is there as one column"), "{told}");
}

#[test]
fn leaves_of_structs_are_unified_one_by_one() {
    let dict = |pos: ArrayRef, mode: ArrayRef, turned: bool| {
        let mut fields = vec![
            (Arc::new(Field::new("pos", pos.data_type().clone(), true)), pos),
            (Arc::new(Field::new("mode", mode.data_type().clone(), true)), mode),
        ];
        if turned {
            fields.reverse();
        }
        with("obs", arc(StructArray::from(fields)))
    };
    let files = [
        dict(fixed(2, 2), arc(Int32Array::from(vec![0, 1])), false),
        dict(list(&[Some(&[1., 2.]), Some(&[3., 4.])]), arc(Int64Array::from(vec![0, 1])), true),
    ];
    let found = unified(&files).unwrap();
    assert_eq!(ty(&found, "obs"), "obs/mode int64, obs/pos float64[2]");
    assert_eq!(found.column("obs").unwrap().leaves[1].1.dtype, DType::Float64);
}

#[test]
fn files_without_rows_do_not_take_part() {
    let empty: Columns = vec![("whatever", arc(StringArray::from(Vec::<&str>::new())))];
    let found = unified(&[empty.clone(), steps()]).unwrap();
    assert_eq!((found.columns.len(), found.notes.len()), (4, 1));
    assert_eq!(found.notes[0], "a.parquet holds no rows");
    assert!(refused(&[empty]).contains("missing columns"));
    let none: Columns = steps().into_iter().map(|(n, a)| (n, a.slice(0, 0))).collect();
    assert_eq!(ty(&unified(std::slice::from_ref(&none)).unwrap(), "obs"), "obs float32[3]");
    let mut unknown = none;
    unknown[1].1 = list(&[]);
    assert!(refused(&[unknown]).contains("the input holds no rows"));
    assert!(unify(&[], &IndexMap::new(), &[], false, false).is_err());
}

#[test]
fn a_shape_is_looked_for_until_it_is_found() {
    // Far behind the first rows that are looked at.
    let mut rows: Vec<Option<&[f64]>> = vec![None; 9000];
    rows.push(Some(&[1., 2.]));
    let n = rows.len();
    let columns: Columns = vec![
        ("eps_id", arc(Int64Array::from(vec![1; n]))),
        ("obs", list(&rows)),
        ("actions", arc(Int32Array::from(vec![0; n]))),
        ("rewards", arc(Float32Array::from(vec![0.; n]))),
    ];
    assert_eq!(ty(&unified(&[columns]).unwrap(), "obs"), "obs float64[2]");
}

#[test]
fn a_wrong_type_for_a_counter_or_a_flag_is_told() {
    let e = refused(&[with("t", arc(TimestampMillisecondArray::from(vec![0, 1])))]);
    assert!(e.contains("found Timestamp") && e.contains("expected integers"), "{e}");
    let e = refused(&[with("terminateds", arc(StringArray::from(vec!["no", "yes"])))]);
    assert!(e.contains("found text, expected booleans"), "{e}");
    let e = refused(&[with("eps_id", arc(Float64Array::from(vec![0., 0.])))]);
    assert!(e.contains("found float64, expected ids") && e.contains("cast the column"), "{e}");
}
