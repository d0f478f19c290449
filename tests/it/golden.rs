//! The recordings in `datasets/`, converted, against the train batches that RLlib itself made of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use gristmill::job::Compat;
use serde_json::Value;

use crate::cli::{gristmill, stderr};

const NAMES: [&str; 7] = [
    "breakout-frames",
    "cartpole-columns",
    "cartpole-dict",
    "cartpole-duplicates",
    "cartpole-episodes",
    "cartpole-lstm",
    "pendulum-steps",
];

/// A tensor: dtype, shape with the rows first, little-endian bytes.
pub type Tensor = (String, Vec<usize>, Vec<u8>);

fn datasets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets")
}

fn sizes(list: &Value) -> Vec<usize> {
    list.as_array().unwrap().iter().map(|n| usize::try_from(n.as_u64().unwrap()).unwrap()).collect()
}

/// The tensors of a safetensors file: the length of a JSON header, the header, the data.
pub fn expected(path: &Path) -> BTreeMap<String, Tensor> {
    let bytes = fs::read(path).unwrap();
    let (len, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(usize::try_from(u64::from_le_bytes(*len)).unwrap());
    let header: serde_json::Map<String, Value> = serde_json::from_slice(header).unwrap();
    let tensors = header.iter().filter(|(name, _)| *name != "__metadata__");
    tensors
        .map(|(name, at)| {
            let dtype = match at["dtype"].as_str().unwrap() {
                "F16" => "float16",
                "F32" => "float32",
                "I32" => "int32",
                "I64" => "int64",
                "U8" => "uint8",
                "BOOL" => "bool",
                other => panic!("add the dtype {other}"),
            };
            let range = sizes(&at["data_offsets"]);
            (name.clone(), (dtype.to_owned(), sizes(&at["shape"]), data[range[0]..range[1]].to_vec()))
        })
        .collect()
}

/// The tensors of the data set in `dir`, without the columns that RLlib's batch has not.
pub fn found(dir: &Path) -> BTreeMap<String, Tensor> {
    let manifest: Value = serde_json::from_slice(&fs::read(dir.join("manifest.json")).unwrap()).unwrap();
    let mut out = BTreeMap::new();
    for (module, record) in manifest["modules"].as_object().unwrap() {
        let rows = crate::support::read_shards(&dir.join(record["folder"].as_str().unwrap()));
        for column in record["columns"].as_array().unwrap() {
            let (name, dtype) = (column["name"].as_str().unwrap(), column["dtype"].as_str().unwrap());
            if !["eps_id", "t"].contains(&name) {
                let mut shape = vec![rows.num_rows()];
                shape.extend(sizes(&column["shape"]));
                let bytes = values(rows.column_by_name(name).unwrap(), dtype);
                out.insert(format!("{module}/{name}"), (dtype.to_owned(), shape, bytes));
            }
        }
    }
    out
}

/// The elements of an array, whatever lists they lie in.
fn values(array: &arrow::array::ArrayRef, dtype: &str) -> Vec<u8> {
    use arrow::array::{Array as _, AsArray as _};
    assert_eq!(array.null_count(), 0);
    if let Some(lists) = array.as_fixed_size_list_opt() {
        return values(lists.values(), dtype);
    }
    if let Some(flags) = array.as_boolean_opt() {
        return flags.values().iter().map(u8::from).collect();
    }
    let data = array.to_data();
    let size = data.data_type().primitive_width().expect("numbers");
    assert_eq!(format!("{}", data.data_type()).to_lowercase(), dtype);
    data.buffers()[0].as_slice()[data.offset() * size..][..data.len() * size].to_vec()
}

fn check(name: &str, compat: Compat) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let folder = datasets().join(name);
    let job = fs::read_to_string(folder.join("job.toml")).unwrap();
    let job = job.replacen("[learner]\n", &format!("[learner]\ncompat = \"{compat}\"\n"), 1);
    assert!(job.contains("compat = "), "{name}");
    let path = dir.path().join("job.toml");
    fs::write(&path, job).unwrap();
    let input = folder.join("input");
    let args =
        ["convert", path.to_str().unwrap(), "--input", input.to_str().unwrap(), "--output", out.to_str().unwrap()];
    let output = gristmill(&args, dir.path());
    assert_eq!(output.status.code(), Some(0), "{name}: {}", stderr(&output));
    let (expected, found) = (expected(&folder.join("expected.safetensors")), found(&out));
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{name}");
    for (column, (dtype, shape, bytes)) in &expected {
        let (found_dtype, found_shape, found_bytes) = &found[column];
        assert_eq!((found_dtype, found_shape), (dtype, shape), "{name}: {column}");
        assert!(found_bytes == bytes, "{name}: the values of {column} differ under {compat}");
    }
}

#[test]
fn every_recording_gives_rllibs_own_batch() {
    for name in NAMES {
        check(name, Compat::Rllib260);
    }
}

#[test]
fn and_so_it_does_by_default() {
    for name in NAMES {
        check(name, Compat::Correct);
    }
}

#[test]
fn no_recording_is_left_out() {
    let mut there: Vec<String> = fs::read_dir(datasets())
        .unwrap()
        .map(|e| e.unwrap())
        .filter(|e| e.path().join("expected.safetensors").exists())
        .map(|e| e.file_name().into_string().unwrap())
        .collect();
    there.sort();
    assert_eq!(there, NAMES);
}
