//! Data sets that earlier versions wrote (`datasets/written/`) open, pass `verify` and hold the values beside them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use arrow::array::AsArray as _;
use gristmill::dataset::{Dataset, LaidOut, Module};
use gristmill::sink::ColumnData;
use serde_json::Value;

use crate::cli::{gristmill, stderr, stdout};
use crate::golden::{Tensor, expected, found};

/// All data sets, with the version of the format that they are of.
fn sets() -> Vec<(String, PathBuf)> {
    let folders = |path: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(path).unwrap().map(|e| e.unwrap().path());
        let mut out: Vec<PathBuf> = entries.filter(|p| p.is_dir()).collect();
        out.sort();
        out
    };
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let all = folders(&Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/written"));
    all.iter().flat_map(|version| folders(version).into_iter().map(|set| (name(version), set))).collect()
}

/// A module's columns as the library reads them, windows laid out, all shards and row groups behind one another.
fn read(module: &Module, out: &mut BTreeMap<String, Tensor>) {
    let reader = LaidOut::of(module).unwrap();
    let columns: Vec<usize> = (0..reader.columns().len()).collect();
    let there = reader.needs(&columns);
    for at in 0..module.record().shards.len() {
        let shard = module.shard(at).unwrap();
        for group in 0..shard.row_groups().len() {
            let data = shard.row_group(group, &there).unwrap();
            let laid = reader.rows((&there, &data), 0..data.rows, &columns, 0).unwrap();
            for (column, (name, _)) in laid.columns.iter().zip(reader.columns()) {
                let (dtype, shape, rows, bytes) = match column {
                    ColumnData::Tensor(t) => (t.ty().dtype.name(), t.ty().shape.clone(), data.rows, t.bytes().to_vec()),
                    ColumnData::Ids(ids) => {
                        let lines = ids.as_string_view().iter().flatten().flat_map(|id| [id, "\n"]);
                        let lines: String = lines.collect();
                        ("uint8", Vec::new(), lines.len(), lines.into_bytes())
                    }
                };
                let all = out
                    .entry(format!("{}/{name}", module.name()))
                    .or_insert_with(|| (dtype.to_owned(), std::iter::once(0).chain(shape).collect(), Vec::new()));
                all.1[0] += rows;
                all.2.extend(bytes);
            }
        }
    }
}

#[test]
fn data_sets_of_earlier_versions_are_read() {
    let sets = sets();
    let formats: Vec<&str> = sets.iter().map(|(version, _)| version.as_str()).collect();
    assert!(formats.contains(&"v1") && sets.len() >= 4, "{formats:?}");
    for (version, folder) in sets {
        let name = folder.display();
        let verified = gristmill(&["verify", "data"], &folder);
        assert_eq!(verified.status.code(), Some(0), "{name}: {}{}", stdout(&verified), stderr(&verified));
        let inspected = gristmill(&["inspect", "data", "--json"], &folder);
        let told: Value = serde_json::from_slice(&inspected.stdout).unwrap();
        assert_eq!(told["kind"], "data_set", "{name}: {}", stderr(&inspected));

        let data = Dataset::open(&folder.join("data")).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(format!("v{}", data.manifest().format_version), version, "{name}");
        let expected = expected(&folder.join("values.safetensors"));
        let mut read_by_library = BTreeMap::new();
        data.modules().iter().for_each(|module| read(module, &mut read_by_library));
        assert_eq!(read_by_library.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{name}");
        for (column, tensor) in &expected {
            assert!(read_by_library[column] == *tensor, "{name}: the values of {column} differ");
        }
        // And so they are by a reader that knows Parquet and Arrow alone, where tensors are lists and windows are whole.
        let says = |key: &str, value: &str| data.manifest().job.pointer(key).is_some_and(|found| found == value);
        if !says("/output/tensors", "binary") && !says("/output/windows", "indexed") {
            for (column, tensor) in &found(&folder.join("data")) {
                assert!(expected[column] == *tensor, "{name}: the values of {column} differ");
            }
        }
    }
}

/// What this version makes of the same recording is the same training data. Where a later version means to write others,
/// it says so in CHANGELOG.md, and this test is about the newest folder alone.
#[test]
fn this_version_writes_the_same() {
    for (_, folder) in sets() {
        let job = fs::read_to_string(folder.join("job.toml")).unwrap();
        let (_, input) = job.lines().next().unwrap().split_once("--input ").unwrap();
        let out = tempfile::tempdir().unwrap();
        let output = out.path().join("out").display().to_string();
        let written = gristmill(&["convert", "job.toml", "--input", input, "--output", &output], &folder);
        assert_eq!(written.status.code(), Some(0), "{}", stderr(&written));
        let compared = gristmill(&["diff", "data", &output], &folder);
        assert_eq!(compared.status.code(), Some(0), "{}: {}", folder.display(), stdout(&compared));
    }
}
