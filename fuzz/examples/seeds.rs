//! Writes the inputs that fuzzing starts from, `corpus/TARGET/..`, from the recordings that come with the repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::ipc::writer::{FileWriter, StreamWriter};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gristmill::job::Job;
use gristmill::progress::Silent;
use gristmill::run::{Options, convert};
use gristmill::source::file::InputFile;
use gristmill::source::packed::looks_packed;
use gristmill_fuzz::{dataset, directory};

/// Larger seeds make every mutation slow.
const LARGEST: usize = 24 << 10;

fn seed(target: &str, name: &str, bytes: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join(name), bytes).expect("the seed is written");
}

/// The files of a folder and below, sorted.
fn below(folder: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    let entries = fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry").path());
    let mut entries: Vec<PathBuf> = entries.collect();
    entries.sort();
    for path in entries {
        if path.is_dir() { out.extend(below(&path)) } else { out.push(path) }
    }
    out
}

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = below(&root.join("datasets"));
    files.extend(below(&root.join("tests/it/data")));
    for (i, path) in files.iter().enumerate() {
        match path.extension().and_then(|e| e.to_str()) {
            Some("toml") => job(i, path),
            Some("parquet" | "arrow") => recording(i, path),
            _ => {}
        }
    }
    written();
}

fn job(i: usize, path: &Path) {
    let text = fs::read_to_string(path).expect("a job");
    seed("job", &format!("{i}.toml"), text.as_bytes());
    if let Ok(job) = Job::from_toml_str(&text) {
        seed("job", &format!("{i}.json"), serde_json::to_string(&job).expect("JSON").as_bytes());
    }
}

/// A file as it is, as Arrow IPC, and the items and packed arrays in it.
fn recording(i: usize, path: &Path) {
    let bytes = fs::read(path).expect("a recording");
    if bytes.len() <= LARGEST {
        seed("file", &format!("{i}.parquet"), &bytes);
        seed("convert", &format!("{i}.parquet"), &bytes);
    }
    let Ok(file) = InputFile::open(path).map(Arc::new) else { return };
    let columns: Vec<String> = file.schema.fields().iter().map(|f| f.name().clone()).collect();
    let Some(Ok(batch)) = file.read(0, &columns, 8).ok().and_then(|mut batches| batches.next()) else { return };
    ipc(i, &batch);
    for (column, name) in batch.columns().iter().zip(&columns) {
        if let Some(items) = column.as_binary_opt::<i32>() {
            for item in items.iter().flatten().filter(|item| item.len() <= LARGEST).take(3) {
                seed("item", &format!("{i}-{}", item.len()), item);
            }
        }
        if let Some(texts) = column.as_string_opt::<i32>() {
            let frame = |row: usize| STANDARD.decode(texts.value(row)).expect("base64");
            let packed = (0..texts.len()).filter(|&row| texts.is_valid(row) && looks_packed(texts.value(row)));
            let frames: Vec<Vec<u8>> = packed.take(2).map(frame).collect();
            let [first, second] = frames.as_slice() else { continue };
            let Ok(len) = u16::try_from(first.len()) else { continue };
            seed("packed", &format!("{i}-{name}"), &[&len.to_le_bytes(), first.as_slice(), second].concat());
        }
    }
}

fn ipc(i: usize, batch: &RecordBatch) {
    let (mut file, mut stream) = (Vec::new(), Vec::new());
    let mut writer = FileWriter::try_new(&mut file, &batch.schema()).expect("a writer");
    writer.write(batch).and_then(|()| writer.finish()).expect("a file");
    let mut writer = StreamWriter::try_new(&mut stream, &batch.schema()).expect("a writer");
    writer.write(batch).and_then(|()| writer.finish()).expect("a stream");
    for (name, bytes) in [("file", file), ("stream", stream)] {
        if bytes.len() <= LARGEST {
            seed("file", &format!("{i}-{name}"), &bytes);
            seed("convert", &format!("{i}-{name}"), &bytes);
        }
    }
}

/// A manifest, the lines of a journal, a shard, and pickles as protocol 2 to 5 write them.
fn written() {
    let directory = directory();
    let out = directory.path().join("out");
    let input = dataset("cartpole-columns/input/*.parquet");
    let job = format!("[input]\npaths = [{input:?}]\n[output]\npath = {out:?}\nrows_per_shard = 600\n");
    convert(&Job::from_toml_str(&job).expect("a job"), &Options::default(), &Silent).expect("a data set");
    let manifest = fs::read(out.join("manifest.json")).expect("a manifest");
    seed("manifest", "cartpole.json", &manifest);
    let told: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
    let shards = told["modules"]["default_policy"]["shards"].as_array().expect("shards");
    let lines: Vec<String> = shards.iter().map(|shard| format!("{shard}\n")).collect();
    seed("journal", "all", lines.concat().as_bytes());
    seed("journal", "two", lines[..2].concat().as_bytes());
    seed("journal", "outside", br#"{"file":"../secret","rows":1,"bytes":15,"digest":"blake3:00"}"#);

    let dtype = b"cnumpy\ndtype\n(X\x02\x00\x00\x00f4\x89\x88tR(K\x03X\x01\x00\x00\x00<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb";
    let head = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR(K\x01K\x02\x85";
    seed("pickle", "reconstruct", &[head.as_slice(), dtype, b"\x89C\x08\x00\x00\x80?\x00\x00\x00@tb."].concat());
    let scalar = b"\x80\x04cnumpy.core.multiarray\nscalar\n(";
    seed("pickle", "scalar", &[scalar.as_slice(), dtype, b"C\x04\x00\x00\x80?tR."].concat());
    let buffer = b"\x80\x05\x8c\x13numpy._core.numeric\x8c\x0b_frombuffer\x93(\x96\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80?\x00\x00\x00@";
    seed("pickle", "frombuffer", &[buffer.as_slice(), dtype, b"K\x02\x85\x8c\x01CtR."].concat());
    let latin = b"\x80\x02c_codecs\nencode\n(X\x04\x00\x00\x00ab\xc3\xbfX\x06\x00\x00\x00latin1tR.";
    seed("pickle", "latin1", latin);
}
