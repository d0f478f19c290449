//! Infos as columns.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Float64Array, Int64Array, ListArray, NullArray, RecordBatch, StructArray,
};
use arrow::datatypes::{Field, Float32Type, Int64Type};

use crate::support::{Work, batch, bools, content, read_shards, shown, steps, take, texts, with};

const JOB: &str = "[[learner.connectors]]\ntype = \"AddInfosFromEpisodesToTrainBatch\"\n";

fn dict(fields: Vec<(&str, ArrayRef)>) -> ArrayRef {
    let fields = fields.into_iter().map(|(n, a)| (Arc::new(Field::new(n, a.data_type().clone(), true)), a));
    Arc::new(StructArray::from(fields.collect::<Vec<_>>()))
}

fn lists(rows: &[&[f32]]) -> ArrayRef {
    let rows = rows.iter().map(|r| Some(r.iter().map(|v| Some(*v)).collect::<Vec<_>>()));
    Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))
}

/// Infos of six steps: numbers everywhere, numbers somewhere, a nested matrix, text, lists of several lengths, nothing.
fn infos() -> ArrayRef {
    dict(vec![
        ("lives", Arc::new(Int64Array::from(vec![3, 3, 2, 3, 2, 1]))),
        ("hit", Arc::new(Float64Array::from(vec![None, Some(0.5), None, None, None, Some(0.1)]))),
        ("nested", dict(vec![("pos", lists(&[&[0., 1.], &[2., 3.], &[4., 5.], &[6., 7.], &[8., 9.], &[10., 11.]]))])),
        ("who", texts(&["a", "b", "c", "d", "e", "f"])),
        ("ragged", lists(&[&[1.], &[1., 2.], &[], &[1.], &[1.], &[1.]])),
        ("nothing", Arc::new(NullArray::new(6))),
        ("never", Arc::new(Int64Array::from(vec![None::<i64>; 6]))),
    ])
}

fn recording() -> RecordBatch {
    batch(with(steps(), "infos", infos()))
}

#[test]
fn numbers_are_columns_and_everything_else_is_told() {
    let work = Work::of_batches(&[recording()]);
    let manifest = work.manifest_of(&work.convert_job(JOB, &[]));
    let rows = work.rows();
    let names: Vec<String> = rows.schema().fields().iter().map(|f| f.name().clone()).collect();
    let infos: Vec<&str> = names.iter().map(String::as_str).filter(|n| n.starts_with("infos")).collect();
    assert_eq!(infos, ["infos/hit", "infos/_hit", "infos/lives", "infos/nested/pos"]);
    assert_eq!(shown(&rows, "infos/lives"), "3 3 2 3 2 1");
    assert_eq!(shown(&rows, "infos/hit"), "0.0 0.5 0.0 0.0 0.0 0.1", "float64, as recorded");
    assert_eq!(shown(&rows, "infos/_hit"), "false true false false false true");
    assert!(shown(&rows, "infos/nested/pos").ends_with("[10.0, 11.0]"));
    let notes = manifest["notes"].to_string();
    for told in [
        "`infos/who` is left out",
        "`infos/ragged` is left out",
        "row 1",
        "`infos/nothing` is left out",
        "`infos/never` is left out of the infos: no step has it",
    ] {
        assert!(notes.contains(told), "{told}: {notes}");
    }
}

#[test]
fn without_the_piece_infos_are_left_alone() {
    let work = Work::of_batches(&[recording()]);
    work.manifest();
    assert!(work.rows().schema().fields().iter().all(|f| !f.name().starts_with("infos")));
}

/// A struct without fields, as all-empty dicts become in Arrow (ray 50390), and a recording without infos.
#[test]
fn nothing_to_add_is_told() {
    let empty: ArrayRef = Arc::new(StructArray::new_empty_fields(6, None));
    let work = Work::new();
    work.arrow("a.arrow", &[batch(with(steps(), "infos", empty))]);
    let notes = work.manifest_of(&work.convert_job(JOB, &[]))["notes"].to_string();
    assert!(notes.contains("no infos are added from `infos`"), "{notes}");
    let work = Work::of(steps());
    let notes = work.manifest_of(&work.convert_job(JOB, &[]))["notes"].to_string();
    assert!(notes.contains("no column `infos`"), "{notes}");
}

/// Rows mixed, cut into files otherwise, in another format, by other threads: the same infos. Files may lack keys.
#[test]
fn infos_do_not_depend_on_how_a_log_is_cut() {
    let work = Work::of_batches(&[recording()]);
    let whole = content(&work.manifest_of(&work.convert_job(JOB, &["--threads", "1"])));
    let mixed = Work::new();
    mixed.parquet("a.parquet", &[take(&recording(), &[0, 3, 1]), take(&recording(), &[4])]);
    mixed.arrow("b.arrow", &[take(&recording(), &[2, 5])]);
    assert_eq!(content(&mixed.manifest_of(&mixed.convert_job(JOB, &["--threads", "2"]))), whole);

    let lives = |rows: &[i64]| dict(vec![("lives", Arc::new(Int64Array::from(rows.to_vec())) as ArrayRef)]);
    let hit = dict(vec![("hit", Arc::new(Float64Array::from(vec![0.5; 3])) as ArrayRef)]);
    let half = |at: usize, infos: ArrayRef| {
        let rows = batch(steps()).slice(at, 3);
        let mut columns: Vec<(&str, ArrayRef)> =
            ["eps_id", "t", "obs", "actions", "rewards", "terminateds", "truncateds"]
                .into_iter()
                .map(|n| (n, Arc::clone(rows.column_by_name(n).unwrap())))
                .collect();
        columns.push(("infos", infos));
        batch(columns)
    };
    let apart = Work::new();
    apart.parquet("a.parquet", &[half(0, lives(&[3, 2, 1]))]);
    apart.parquet("b.parquet", &[half(3, hit)]);
    apart.manifest_of(&apart.convert_job(JOB, &[]));
    let rows = apart.rows();
    assert_eq!(shown(&rows, "infos/lives"), "3 2 1 0 0 0");
    assert_eq!(shown(&rows, "infos/_lives"), "true true true false false false");
    assert_eq!(shown(&rows, "infos/_hit"), "false false false true true true");
}

/// What RLlib hands on as a flat list stands in sequences, behind the mask.
#[test]
fn sequences_have_their_infos_behind_the_mask() {
    let work = Work::of_batches(&[recording()]);
    let job =
        format!("{JOB}[rl_module]\nstateful = true\nmax_seq_len = 2\ninitial_state = {{ h = {{ shape = [1] }} }}\n");
    work.manifest_of(&work.convert_job(&job, &[]));
    let rows = work.rows();
    let values = |name: &str| rows.column_by_name(name).unwrap().as_fixed_size_list().values().clone();
    let (lives, mask) = (values("infos/lives"), values("loss_mask"));
    let lives = lives.as_primitive::<Int64Type>();
    let real: Vec<i64> = (0..lives.len()).filter(|&i| mask.as_boolean().value(i)).map(|i| lives.value(i)).collect();
    assert_eq!(real, [3, 3, 2, 3, 2, 1]);
    assert_eq!(rows.num_rows(), 4);
}

/// An episode of two steps, and the row behind its last one.
fn with_a_row_behind(infos: ArrayRef) -> Work {
    Work::of(vec![
        ("eps_id", texts(&["a"; 3])),
        ("obs", crate::support::obs(0, 3)),
        ("actions", crate::support::i32s(&[Some(0), Some(1), None])),
        ("rewards", crate::support::f64s(&[1.0, 2.0, 0.0])),
        ("terminateds", bools(&[false, true, false])),
        ("infos", infos),
    ])
}

/// With one more step an episode, the infos behind its last step are there, too.
#[test]
fn one_more_step_takes_the_infos_of_the_row_behind_the_last() {
    let job = format!("[[learner.connectors]]\ntype = \"AddOneTsToEpisodesAndTruncate\"\n{JOB}");
    let lives = dict(vec![("lives", Arc::new(Int64Array::from(vec![Some(3), Some(2), Some(1)])) as ArrayRef)]);
    let work = with_a_row_behind(lives);
    work.manifest_of(&work.convert_job(&job, &[]));
    assert_eq!(shown(&read_shards(&work.path().join("out/default_policy")), "infos/lives"), "3 2 1");
}

/// An info of the row behind the last step alone is no column, and that is told.
#[test]
fn what_no_step_has_is_told() {
    let infos = dict(vec![
        ("lives", Arc::new(Int64Array::from(vec![Some(3), None, Some(1)])) as ArrayRef),
        ("score", Arc::new(Int64Array::from(vec![None, None, Some(9)]))),
    ]);
    let work = with_a_row_behind(infos);
    let manifest = work.manifest_of(&work.convert_job(JOB, &[]));
    assert!(work.rows().column_by_name("infos/score").is_none());
    let notes = manifest["notes"].to_string();
    assert!(notes.contains("`infos/score` is left out of the infos: no step has it"), "{notes}");
    assert!(!notes.contains("infos/lives"), "{notes}");
}

/// RLlib's own items, an episode in two chunks. RLlib's piece hands on `infos[0..L]` of each.
fn items() -> Work {
    let item = |name: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/source/testdata").join(name);
        std::fs::read(path).expect("an item")
    };
    let items = [item("infos_0.msgpack"), item("infos_1.msgpack")];
    Work::of(vec![("item", crate::support::binaries(&[&items[0], &items[1]]))])
}

#[test]
fn items_have_infos() {
    let work = items();
    let manifest = work.manifest_of(&work.convert_job(JOB, &[]));
    let rows = work.rows();
    let schema = rows.schema();
    let names: Vec<&str> =
        schema.fields().iter().map(|f| f.name().as_str()).filter(|n| n.starts_with("infos")).collect();
    assert_eq!(names, ["infos/hit", "infos/_hit", "infos/in/list", "infos/lives", "infos/pos"]);
    assert_eq!(shown(&rows, "infos/lives"), "3 3 2 2 1");
    assert_eq!(shown(&rows, "infos/hit"), "0.0 0.5 0.0 1.5 0.0");
    assert_eq!(shown(&rows, "infos/_hit"), "false true false true false");
    assert_eq!(shown(&rows, "infos/pos"), "[0.0, 0.0] [1.0, -1.0] [2.0, -2.0] [3.0, -3.0] [4.0, -4.0]");
    assert_eq!(shown(&rows, "infos/in/list"), "[0, 1] [1, 2] [2, 3] [3, 4] [4, 5]");
    let notes = manifest["notes"].to_string();
    assert!(notes.contains("`infos/who` is left out of the infos: found text"), "{notes}");
}

/// One more step of each chunk has the infos behind its last one; burn-in reaches back into those of the chunk before.
#[test]
fn items_have_infos_behind_and_before_their_steps() {
    let work = items();
    let one_more = format!("[[learner.connectors]]\ntype = \"AddOneTsToEpisodesAndTruncate\"\n{JOB}");
    work.manifest_of(&work.convert_job(&one_more, &[]));
    assert_eq!(shown(&work.rows(), "infos/lives"), "3 3 2 2 2 1 1");

    let burn_in = format!("{JOB}[[learner.connectors]]\ntype = \"OverlappingSequences\"\nburn_in = 2\nlength = 3\n");
    work.manifest_of(&work.convert_job(&burn_in, &["--overwrite"]));
    let rows = work.rows();
    assert_eq!(shown(&rows, "infos/lives"), "[3, 3, 2, 0, 0] [3, 2, 2, 1, 0]");
    assert_eq!(shown(&rows, "infos/_hit").matches("true").count(), 3);
}
