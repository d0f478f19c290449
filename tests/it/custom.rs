//! `examples/custom_connector.rs`, run as its header says.

use std::path::Path;
use std::process::Command;

use arrow::array::AsArray;
use arrow::datatypes::Float32Type;

use crate::support::read_shards;

#[test]
fn the_example_shapes_rewards() {
    // Cargo builds examples beside the tests' own folder.
    let here = std::env::current_exe().unwrap();
    let example = here.parent().unwrap().parent().unwrap().join("examples/custom_connector");
    let out = tempfile::tempdir().unwrap();
    let job = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/cartpole-columns/job.toml");
    let shards = out.path().join("shards");
    let ran = Command::new(example).arg(job).arg(&shards).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let rows = read_shards(&shards.join("default_policy"));
    let obs = rows.column_by_name("obs").unwrap().as_fixed_size_list().values().as_primitive::<Float32Type>().clone();
    let rewards = rows.column_by_name("rewards").unwrap().as_primitive::<Float32Type>();
    let near = |i: usize| obs.value(4 * i + 2).abs() < 0.05;
    let shaped = |i: usize| if near(i) { 1.5_f32 } else { 1.0 };
    assert!((0..rows.num_rows()).all(|i| rewards.value(i).to_bits() == shaped(i).to_bits()));
    assert!((0..rows.num_rows()).any(near) && !(0..rows.num_rows()).all(near));
}
