//! Modules whose observations and actions differ in one log.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, FixedSizeListArray, Int64Array, ListArray, RecordBatch, StructArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Float32Type, UInt8Type};

use crate::support::{Work, batch, bools, contains, content, f64s, i64s, read_shards, shown, take, texts, with};

type Columns = Vec<(&'static str, ArrayRef)>;

fn lists(rows: &[Option<Vec<f32>>]) -> ArrayRef {
    let rows = rows.iter().map(|r| r.as_ref().map(|r| r.iter().map(|v| Some(*v)).collect::<Vec<_>>()));
    Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))
}

/// Four environment steps of a walker (4 numbers) and a scout (2 numbers), who take turns in the rows.
fn walker_and_scout() -> Columns {
    let agents = ["walker", "scout"].repeat(4);
    let row = |i: u16, from: u16| -> Vec<f32> {
        let n = if i.is_multiple_of(2) { 4 } else { 2 };
        (0..n).map(|k| f32::from(10 * (i / 2 + from) + k)).collect()
    };
    let rows = |from: u16| (0..8).map(|i| Some(row(i, from))).collect::<Vec<_>>();
    let action = |i: u16| if i.is_multiple_of(2) { vec![f32::from(i)] } else { vec![f32::from(i); 3] };
    vec![
        ("eps_id", texts(&["e"; 8])),
        ("agent_id", texts(&agents)),
        ("module_id", texts(&agents)),
        ("t", i64s(&[0, 0, 1, 1, 2, 2, 3, 3])),
        ("obs", lists(&rows(0))),
        ("actions", lists(&(0..8).map(|i| Some(action(i))).collect::<Vec<_>>())),
        ("rewards", f64s(&[0., 1., 2., 3., 4., 5., 6., 7.])),
        ("new_obs", lists(&rows(1))),
        ("terminateds", bools(&[false, false, false, false, false, false, true, true])),
    ]
}

const BC: &str = "[learner]\nalgorithm = \"BC\"\n";

fn modules(work: &Work) -> [RecordBatch; 2] {
    ["walker", "scout"].map(|m| read_shards(&work.path().join("out").join(m)))
}

fn check(work: &Work) {
    let [walker, scout] = modules(work);
    assert!(
        shown(&walker, "obs").starts_with("[0.0, 1.0, 2.0, 3.0] [10.0, 11.0, 12.0, 13.0]"),
        "{}",
        shown(&walker, "obs")
    );
    assert_eq!(shown(&scout, "obs"), "[0.0, 1.0] [10.0, 11.0] [20.0, 21.0] [30.0, 31.0]");
    assert_eq!(shown(&scout, "new_obs"), "[10.0, 11.0] [20.0, 21.0] [30.0, 31.0] [40.0, 41.0]");
    assert_eq!(shown(&walker, "actions"), "[0.0] [2.0] [4.0] [6.0]");
    assert_eq!(shown(&scout, "actions"), "[1.0, 1.0, 1.0] [3.0, 3.0, 3.0] [5.0, 5.0, 5.0] [7.0, 7.0, 7.0]");
    let fixed = |rows: &RecordBatch, n| matches!(rows.column_by_name("obs").unwrap().data_type(), DataType::FixedSizeList(_, len) if *len == n);
    assert!(fixed(&walker, 4) && fixed(&scout, 2));
}

/// Lists of several lengths in one column; however the log is cut, and however many threads read it.
#[test]
fn each_module_has_its_own_shape() {
    let all = batch(walker_and_scout());
    let work = Work::of_batches(std::slice::from_ref(&all));
    let manifest = work.manifest_of(&work.convert_job(BC, &["--threads", "1"]));
    check(&work);
    assert_eq!(manifest["counts"]["discontinuities"], 0);
    for (files, threads) in
        [(vec![vec![0, 1, 2], vec![3, 4, 5, 6, 7]], "2"), (vec![vec![0], vec![1], vec![2, 3, 4, 5, 6, 7]], "1")]
    {
        let cut = Work::new();
        for (i, rows) in files.iter().enumerate() {
            cut.parquet(&format!("{i}.parquet"), &[take(&all, rows)]);
        }
        let again = cut.manifest_of(&cut.convert_job(BC, &["--threads", threads]));
        assert_eq!(content(&again), content(&manifest), "{files:?}");
        assert_eq!(again["modules"]["walker"]["digest"], manifest["modules"]["walker"]["digest"]);
    }
}

/// Pipelines that do not look at observations, or at nothing else, read the same log.
#[test]
fn a_piece_alone_gets_its_own_shapes() {
    for (piece, options, column, walker) in [
        ("AddColumnsFromEpisodesToTrainBatch", "", "actions", "[0.0] [2.0] [4.0] [6.0]"),
        ("ComputeReturnsToGo", "gamma = 1.0", "returns_to_go", "12.0 12.0 10.0 6.0"),
        ("AddObservationsFromEpisodesToBatch", "", "obs", "[0.0, 1.0, 2.0, 3.0] [10.0, 11.0, 12.0, 13.0]"),
        ("AddNextObservationsFromEpisodesToTrainBatch", "", "new_obs", "[10.0, 11.0, 12.0, 13.0]"),
    ] {
        let work = Work::of(walker_and_scout());
        let job = format!(
            "[learner]\nadd_default_connectors_to_learner_pipeline = false\n[[learner.connectors]]\ntype = \"{piece}\"\n\
             {options}\n[[learner.connectors]]\ntype = \"BatchIndividualItems\"\n"
        );
        work.manifest_of(&work.convert_job(&job, &[]));
        let [rows, _] = modules(&work);
        assert!(shown(&rows, column).starts_with(walker), "{piece}: {}", shown(&rows, column));
    }
}

/// A log without `t` is told from its repetitions by prints of rows, which have shapes as well.
#[test]
fn repetitions_are_found_in_rows_of_several_shapes() {
    let mut columns = walker_and_scout();
    columns.retain(|(n, _)| *n != "t");
    let all = batch(columns);
    let work = Work::new();
    work.parquet("a.parquet", std::slice::from_ref(&all));
    work.parquet("b.parquet", &[all]);
    let manifest = work.manifest_of(&work.convert_job(BC, &[]));
    check(&work);
    assert_eq!(manifest["counts"]["duplicates_dropped"], 2);
}

/// Dict observations of which each module has its own part, and null elsewhere.
#[test]
fn structs_with_nulls_are_read_as_each_module_has_them() {
    let legs: Vec<_> = (0..8_u8).map(|i| (i % 2 == 0).then(|| vec![f32::from(i); 4])).collect();
    let map = (0..8_u8).map(|i| (i % 2 == 1).then(|| vec![Some(i), Some(i)]));
    let map: ArrayRef = Arc::new(FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>(map, 2));
    let field = |name, a: &ArrayRef| Arc::new(Field::new(name, a.data_type().clone(), true));
    let legs = lists(&legs);
    let obs: ArrayRef = Arc::new(StructArray::from(vec![(field("legs", &legs), legs), (field("map", &map), map)]));
    let mut columns = with(walker_and_scout(), "obs", Arc::clone(&obs));
    columns.retain(|(n, _)| *n != "new_obs");
    let work = Work::of(columns.clone());
    work.manifest_of(&work.convert_job("", &["--threads", "2"]));
    let [walker, scout] = modules(&work);
    assert_eq!(shown(&scout, "obs/map"), "[1, 1] [3, 3] [5, 5] [7, 7]");
    assert!(scout.column_by_name("obs/legs").is_none() && walker.column_by_name("obs/map").is_none());
    assert_eq!(walker.column_by_name("obs/legs").unwrap().len(), 4);

    // A value where the module has none would be lost.
    let parts = obs.as_any().downcast_ref::<StructArray>().unwrap();
    let late = |i: usize| (i % 2 == 1 || i == 4).then(|| vec![Some(7_u8), Some(7)]);
    let map: ArrayRef = Arc::new(FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>((0..8).map(late), 2));
    let fields = vec![parts.fields()[0].clone(), field("map", &map)];
    let obs = StructArray::new(fields.into(), vec![Arc::clone(parts.column(0)), map], None::<NullBuffer>);
    let work = Work::of(with(columns, "obs", Arc::new(obs)));
    let told = work.refused(1, &work.convert_job("", &[]));
    contains(&told, &["obs/map", "module \"walker\"", "row 4", "episode \"e\"", "hint: "]);
}

/// One file a module, each with its own fixed-size lists and dtypes.
#[test]
fn files_of_one_module_each_keep_their_types() {
    let all = batch(walker_and_scout());
    let (walker, scout) = (take(&all, &[0, 2, 4, 6]), take(&all, &[1, 3, 5, 7]));
    let own = |rows: &RecordBatch, name: &'static str, obs: ArrayRef| {
        let schema = rows.schema();
        let columns = schema.fields().iter().zip(rows.columns()).filter_map(|(f, a)| {
            let known = ["eps_id", "agent_id", "module_id", "t", "rewards", "terminateds"];
            known.into_iter().find(|n| *n == f.name()).map(|n| (n, Arc::clone(a)))
        });
        let mut columns: Columns = columns.collect();
        columns.extend([(name, obs), ("actions", Arc::new(Int64Array::from(vec![0; 4])) as ArrayRef)]);
        batch(columns)
    };
    let image = (0..4_u8).map(|i| Some(vec![Some(i); 6]));
    let image: ArrayRef = Arc::new(FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>(image, 6));
    let vector = (0..4_u8).map(|i| Some(vec![Some(f32::from(i)); 2]));
    let vector: ArrayRef = Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(vector, 2));
    let work = Work::new();
    work.parquet("a.parquet", &[own(&walker, "obs", image)]);
    work.parquet("b.parquet", &[own(&scout, "obs", vector)]);
    let manifest = work.manifest_of(&work.convert_job("", &[]));
    let of = |module: &str| {
        let columns = manifest["modules"][module]["columns"].as_array().unwrap();
        let obs = columns.iter().find(|c| c["name"] == "obs").unwrap();
        (obs["dtype"].as_str().unwrap().to_owned(), obs["shape"].to_string())
    };
    assert_eq!(of("walker"), ("uint8".to_owned(), "[6]".to_owned()));
    assert_eq!(of("scout"), ("float32".to_owned(), "[2]".to_owned()));
}

/// Rows of one module must agree.
#[test]
fn a_row_of_another_shape_is_refused_by_name() {
    let mut rows: Vec<Option<Vec<f32>>> = (0..8).map(|i| Some(vec![0.0; if i % 2 == 0 { 4 } else { 2 }])).collect();
    rows[4] = Some(vec![0.0; 2]);
    let mut columns = with(walker_and_scout(), "obs", lists(&rows));
    columns.retain(|(n, _)| *n != "new_obs");
    let work = Work::of(columns.clone());
    let told = work.refused(1, &work.convert_job("", &[]));
    contains(
        &told,
        &["found float32[2], expected float32[4]", "module \"walker\"", "row 4", "episode \"e\"", "column `obs`"],
    );
    rows[4] = Some(vec![0.0; 3]);
    let work = Work::of(with(columns.clone(), "obs", lists(&rows)));
    let told = work.refused(1, &work.convert_job("", &[]));
    contains(&told, &["found shape [3]", "[4] or [2]", "row 4"]);
    // All agents in one module: then there is one shape.
    rows[4] = Some(vec![0.0; 4]);
    let work = Work::of(with(columns, "obs", lists(&rows)));
    let told = work.refused(1, &work.convert_job("[multi_agent]\nagent_to_module = { '*' = 'all' }\n", &[]));
    contains(&told, &["found shape [2]", "expected [4]", "row 1"]);
}

#[test]
fn a_module_whose_folder_would_have_too_long_a_name() {
    let long = "m".repeat(300);
    let mut columns = walker_and_scout();
    columns[2].1 = texts(&[long.as_str(), "scout"].repeat(4));
    let work = Work::of(columns);
    for command in ["plan", "convert"] {
        let output = crate::cli::gristmill(&[command, "--input", "in", "--output", "out"], work.path());
        let told = crate::cli::stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{told}");
        contains(&told, &["the module \"mmmm", "a folder whose name has 300 bytes, expected at most 255", "hint: "]);
        assert!(!told.contains(&long), "{told}");
        assert!(!work.path().join("out").exists());
    }
}
