//! The same episodes, recorded in many ways: the content must come out the same.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, Float64Array, Int32Array, LargeListArray, NullArray, RecordBatch, StructArray,
    UInt8Array,
};
use arrow::datatypes::{DataType, Field, Float32Type};
use serde_json::Value;

use crate::cli::stdout;
use crate::support::{
    Columns, Work, batch, bools, contains, content, episodes, f32s, f64s, fixed, i32s, i64s, obs, shown, steps, take,
    texts, with, without,
};

const BC: &str = "[learner]\nalgorithm = 'BC'\n";

/// The content of one file with the rows as they are.
fn contiguous() -> String {
    content(&Work::of(steps()).manifest())
}

fn rows_of(columns: Columns, orders: &[&[usize]]) -> RecordBatch {
    take(&batch(columns), &orders.concat())
}

#[test]
fn rows_interleaved_out_of_order_and_spread() {
    let all = batch(steps());
    // Interleaved, with and without t.
    let turns: &[usize] = &[0, 3, 1, 4, 2, 5];
    assert_eq!(content(&Work::of_batches(&[take(&all, turns)]).manifest()), contiguous());
    let untimed = rows_of(without(steps(), &["t"]), &[turns]);
    assert_eq!(content(&Work::of_batches(&[untimed]).manifest()), contiguous());
    // Backwards; the first episode is the one whose row comes first.
    assert_eq!(content(&Work::of_batches(&[take(&all, &[2, 1, 0, 5, 4, 3])]).manifest()), contiguous());
    // Over row groups and files, a row each.
    let work = Work::new();
    for (name, rows) in [("a.parquet", [0, 4]), ("b.parquet", [2, 3]), ("c.parquet", [5, 1])] {
        work.parquet(name, &rows.map(|i| all.slice(i, 1)));
    }
    assert_eq!(content(&work.manifest()), contiguous());
    let work = Work::new();
    for i in 0..6 {
        work.parquet(&format!("{i}.parquet"), &[all.slice(i, 1)]);
    }
    assert_eq!(content(&work.manifest()), contiguous());
    // A continuation without t, in a file of its own.
    let untimed = batch(without(steps(), &["t"]));
    let work = Work::new();
    work.parquet("a.parquet", &[untimed.slice(0, 2)]);
    work.parquet("b.parquet", &[untimed.slice(2, 4)]);
    assert_eq!(content(&work.manifest()), contiguous());
}

#[test]
fn arrow_ipc_reads_like_parquet() {
    let work = Work::new();
    work.arrow("a.arrow", &[batch(steps()).slice(0, 4), batch(steps()).slice(4, 2)]);
    assert_eq!(content(&work.manifest()), contiguous());
}

/// `steps()` in one file and two more episodes in a second one that `change` wrote in another way.
fn two_files(change: impl FnOnce(Columns) -> Columns) -> Value {
    let work = Work::of(steps());
    work.parquet("b.parquet", &[batch(change(episodes("c", "d")))]);
    work.manifest()
}

#[test]
fn files_that_say_the_same_in_different_ways() {
    let same = content(&two_files(|c| c));
    let wide = || {
        let rows = (0..6).map(|i| Some([Some(i as f32), Some(i as f32 + 0.5)]));
        Arc::new(LargeListArray::from_iter_primitive::<Float32Type, _, _>(rows)) as ArrayRef
    };
    let rows: Vec<[f32; 2]> = (0..6_u8).map(|i| [f32::from(i), f32::from(i) + 0.5]).collect();
    let cast = |array: &dyn Array, ty: &DataType| arrow::compute::cast(array, ty).unwrap();
    let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
    assert_eq!(content(&two_files(|c| c.into_iter().rev().collect())), same, "the order of columns");
    assert_eq!(content(&two_files(|c| with(c, "obs", wide()))), same, "large lists");
    assert_eq!(content(&two_files(|c| with(c, "obs", fixed(&rows)))), same, "fixed-size lists");
    assert_eq!(
        content(&two_files(|c| with(c, "eps_id", cast(&texts(&["c", "c", "c", "d", "d", "d"]), &dictionary)))),
        same
    );
    assert_eq!(content(&two_files(|c| with(c, "rewards", f32s(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])))), same, "float32");
    assert_eq!(content(&two_files(|c| with(c, "__index_level_0__", i64s(&[0; 6])))), same, "pandas' index");
    let agents = two_files(|c| with(c, "agent_id", Arc::new(NullArray::new(6))));
    assert_eq!(content(&agents), same, "a column that is null throughout");
    assert_eq!(agents["counts"]["rows_out"], 12);
}

#[test]
fn a_file_of_only_the_trailing_row() {
    let typed: Columns = vec![
        ("eps_id", texts(&["a"])),
        ("t", i64s(&[3])),
        ("obs", obs(9, 10)),
        ("actions", Arc::new(Int32Array::new_null(1))),
        ("rewards", Arc::new(Float64Array::new_null(1))),
        ("terminateds", Arc::new(BooleanArray::new_null(1))),
        ("truncateds", Arc::new(BooleanArray::new_null(1))),
    ];
    let null = || Arc::new(NullArray::new(1)) as ArrayRef;
    let untyped =
        ["actions", "rewards", "terminateds", "truncateds"].into_iter().fold(typed.clone(), |c, n| with(c, n, null()));
    for tail in [typed, untyped] {
        let work = Work::new();
        work.parquet("a.parquet", &[batch(steps()).slice(0, 3)]);
        work.parquet("b.parquet", &[batch(tail)]);
        work.manifest_of(&work.convert_job(BC, &[]));
        assert_eq!(shown(&work.rows(), "new_obs"), "[1.0, 1.5] [2.0, 2.5] [9.0, 9.5]");
    }
}

#[test]
fn integer_ids_and_images() {
    let pixels = UInt8Array::from_iter_values(0..6 * 4);
    let row = |items: ArrayRef| {
        let field = Arc::new(Field::new_list_field(items.data_type().clone(), false));
        Arc::new(arrow::array::FixedSizeListArray::new(field, 2, items, None)) as ArrayRef
    };
    let columns = with(with(steps(), "obs", row(row(Arc::new(pixels)))), "eps_id", i64s(&[-7, -7, -7, 3, 3, 3]));
    let work = Work::of(columns);
    let manifest = work.manifest();
    let columns = &manifest["modules"]["default_policy"]["columns"];
    assert_eq!((&columns[0]["name"], &columns[0]["dtype"]), (&"eps_id".into(), &"int64".into()));
    assert_eq!((&columns[2]["dtype"], &columns[2]["shape"]), (&"uint8".into(), &serde_json::json!([2, 2])));
    assert_eq!(shown(&work.rows(), "eps_id"), "-7 -7 -7 3 3 3");
}

#[test]
fn nested_observations_as_struct_or_as_flat_columns() {
    let (pos, mode) = (f64s(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), i64s(&[5, 4, 3, 2, 1, 0]));
    let field = |name: &str, array: &ArrayRef| Arc::new(Field::new(name, array.data_type().clone(), true));
    let dict =
        StructArray::from(vec![(field("pos", &pos), Arc::clone(&pos)), (field("mode", &mode), Arc::clone(&mode))]);
    let one = Work::of(with(steps(), "obs", Arc::new(dict))).manifest();
    let flat = with(with(without(steps(), &["obs"]), "obs/pos", pos), "obs/mode", mode);
    let work = Work::of(flat);
    assert_eq!(content(&work.manifest()), content(&one));
    assert_eq!(shown(&work.rows(), "obs/mode"), "5 4 3 2 1 0");
    let names: Vec<&str> = one["modules"]["default_policy"]["columns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    assert_eq!(names[..4], ["eps_id", "t", "obs/mode", "obs/pos"]);
}

/// `lengths.len()` episodes without flags of their own on other rows than the last; obs is the number of the row.
fn long(lengths: &[usize], width: usize) -> Columns {
    let (mut ids, mut ends) = (Vec::new(), Vec::new());
    for (id, &len) in lengths.iter().enumerate() {
        ids.extend(std::iter::repeat_n(i64::try_from(id).unwrap(), len));
        ends.extend((0..len).map(|i| i + 1 == len));
    }
    let n = ids.len();
    let values = Arc::new(arrow::array::Float32Array::from_iter_values((0..n * width).map(|i| (i / width) as f32)));
    let item = Arc::new(Field::new_list_field(DataType::Float32, false));
    let obs = arrow::array::FixedSizeListArray::new(item, i32::try_from(width).unwrap(), values, None);
    vec![
        ("eps_id", i64s(&ids)),
        ("obs", Arc::new(obs)),
        ("actions", i32s(&vec![Some(0); n])),
        ("rewards", f64s(&vec![1.0; n])),
        ("terminateds", bools(&ends)),
    ]
}

#[test]
fn an_episode_longer_than_a_row_group_and_than_a_block() {
    // 40,000 rows of 512 bytes: 20 MB of which a block holds 4.
    let all = batch(long(&[3, 40_000, 5], 128));
    let groups: Vec<RecordBatch> = (0..9).map(|i| all.slice(i * 4446, 4446.min(all.num_rows() - i * 4446))).collect();
    let work = Work::of_batches(&groups);
    let manifest = work.manifest();
    assert_eq!((&manifest["counts"]["rows_out"], &manifest["counts"]["episodes_out"]), (&40_008.into(), &3.into()));
    assert_eq!(content(&manifest), content(&Work::of_batches(&[all]).manifest()));
    let t = shown(&work.rows().slice(40_000, 8), "t");
    assert_eq!(t, "39997 39998 39999 0 1 2 3 4");
}

#[test]
fn a_hundred_thousand_tiny_episodes() {
    let work = Work::of(long(&vec![1; 100_000], 1));
    let output = work.convert();
    let manifest = work.manifest_of(&output);
    assert_eq!(
        (&manifest["counts"]["episodes_in"], &manifest["counts"]["rows_out"]),
        (&100_000.into(), &100_000.into())
    );
    contains(&stdout(&output), &["100,000 episodes and 100,000 steps", "100,000 rows in 2 shards"]);
}

#[test]
fn environments_that_take_turns_for_long() {
    // A run a row, 30,000 rows an episode: what grows faster than the rows shows here.
    let all = batch(long(&[30_000, 30_000], 1));
    let turns: Vec<usize> = (0..30_000).flat_map(|i| [i, 30_000 + i]).collect();
    let indices = arrow::array::UInt64Array::from_iter_values(turns.iter().map(|&i| i as u64));
    let mixed = arrow::compute::take_record_batch(&all, &indices).unwrap();
    let started = std::time::Instant::now();
    assert_eq!(content(&Work::of_batches(&[mixed]).manifest()), content(&Work::of_batches(&[all]).manifest()));
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}

#[test]
fn episodes_without_a_step() {
    let columns: Columns = vec![
        ("eps_id", texts(&["none", "a", "a"])),
        ("obs", obs(0, 3)),
        ("actions", i32s(&[None, Some(1), None])),
        ("rewards", f64s(&[0.0, 1.0, 0.0])),
    ];
    let work = Work::of(columns);
    let output = work.convert_job(BC, &[]);
    let manifest = work.manifest_of(&output);
    assert_eq!((&manifest["counts"]["episodes_in"], &manifest["counts"]["rows_out"]), (&2.into(), &1.into()));
    contains(&stdout(&output), &["1 episode without a step yields no row"]);
    assert_eq!(shown(&work.rows(), "new_obs"), "[2.0, 2.5]");
}

#[test]
fn the_summary_without_a_job() {
    let work = Work::of(steps());
    let output = work.convert();
    work.manifest_of(&output);
    contains(
        &stdout(&output),
        &[
            "read    2 episodes and 6 steps from 1 file",
            "layout  steps",
            "wrote   out",
            "default_policy: 6 rows in 1 shard",
        ],
    );
    assert!(output.stderr.is_empty(), "no progress where nobody watches");
}

#[test]
fn odd_values_come_through() {
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e308, 5e-324];
    let work = Work::of(with(steps(), "rewards", f64s(&odd)));
    work.manifest();
    assert_eq!(shown(&work.rows(), "rewards"), "NaN inf -inf -0.0 inf 0.0");
    let work = Work::of(with(steps(), "eps_id", texts(&["", "", "", "é☃ /..", "é☃ /..", "é☃ /.."])));
    work.manifest();
    assert_eq!(shown(&work.rows(), "eps_id").trim(), "é☃ /.. é☃ /.. é☃ /..");
}
