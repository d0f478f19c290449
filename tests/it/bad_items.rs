//! Items of msgpack and packed text that lie, break off, or would run code.

use std::io::Write as _;
use std::path::Path;

use arrow::datatypes::DataType;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::support::{Work, batch, binaries, contains, steps, texts, with};

/// The msgpack items that RLlib itself made, three steps each.
fn item(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/source/testdata").join(name);
    std::fs::read(path).expect("an item")
}

fn plain() -> Vec<u8> {
    item("plain.msgpack")
}

/// [`plain`] with one piece of its bytes replaced.
fn changed(from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = plain();
    let at = bytes.windows(from.len()).position(|w| w == from).expect("the piece is there");
    bytes.splice(at..at + from.len(), to.iter().copied());
    bytes
}

/// A recording of a good item and then a bad one.
fn after_a_good_one(bad: &[u8]) -> Work {
    let other = changed(b"\xa5plain", b"\xa5other");
    Work::of(vec![("item", binaries(&[&other, bad]))])
}

const PLACE: &str = "at: file in/a.parquet, row group 0, row 1";
const HINT: &str = "hint: an item is one episode as RLlib packs it";

#[test]
fn a_good_item() {
    let work = after_a_good_one(&plain());
    let manifest = work.manifest();
    assert_eq!((&manifest["counts"]["episodes_out"], &manifest["counts"]["rows_out"]), (&2.into(), &6.into()));
}

#[test]
fn what_is_no_item() {
    for junk in [&b"hello"[..], b"", b"\xc0", b"\xc1", &[0xff; 100]] {
        after_a_good_one(junk).refuses(1, &["an episode: ", PLACE, "column `item`", HINT]);
    }
    let long = [plain(), b"x".to_vec()].concat();
    after_a_good_one(&long).refuses(1, &["1 bytes follow the end of the episode", PLACE, HINT]);
    // Deeper than any stack, if it were followed.
    after_a_good_one(&vec![0x91; 1 << 20]).refuses(1, &["found a list, expected a dict", PLACE, HINT]);
}

#[test]
fn an_item_that_breaks_off() {
    let whole = plain();
    for len in [whole.len() - 1, whole.len() / 2, 40] {
        after_a_good_one(&whole[..len]).refuses(1, &[PLACE, HINT]);
    }
}

#[test]
fn claims_beyond_the_bytes_that_are_there() {
    // A text, a list and a dict of 2^32 - 1, and an array of 2^60 elements.
    after_a_good_one(b"\x81\xdb\xff\xff\xff\xffab").refuses(1, &["a value claims 4294967295 bytes", PLACE, HINT]);
    after_a_good_one(b"\xdf\xff\xff\xff\xff").refuses(1, &["claims 4294967295 elements", PLACE, HINT]);
    let shape = [b"\xc4\x05shape\x91\xcf".as_slice(), &(1_u64 << 60).to_be_bytes()].concat();
    let lying = changed(b"\xc4\x05shape\x91\x02", &shape);
    after_a_good_one(&lying).refuses(
        1,
        &["an array claims to be float32[1152921504606846976]", PLACE, "episode \"plain\", t 0, column `obs`"],
    );
}

#[test]
fn items_of_agents_are_refused() {
    let work = after_a_good_one(&changed(b"\xa8agent_id\xc0", b"\xa8agent_id\xa3red"));
    work.refuses(2, &["found agent_id \"red\", expected none", PLACE, "episode \"plain\""]);
}

#[test]
fn items_recorded_twice() {
    let work = Work::of(vec![("item", binaries(&[&plain(), &plain()]))]);
    let manifest = work.manifest();
    assert_eq!((&manifest["counts"]["rows_out"], &manifest["counts"]["duplicates_dropped"]), (&3.into(), &1.into()));
    for (rule, rows) in [("keep", 6), ("drop", 3)] {
        let work = Work::of(vec![("item", binaries(&[&plain(), &plain()]))]);
        let manifest = work.manifest_of(&work.convert_job(&format!("[input]\nduplicates = '{rule}'\n"), &[]));
        assert_eq!(manifest["counts"]["rows_out"], rows, "{rule}");
    }
    let work = Work::of(vec![("item", binaries(&[&plain(), &plain()]))]);
    let told = work.refused(1, &work.convert_job("[input]\nduplicates = 'fail'\n", &[]));
    contains(&told, &["the item repeats an earlier one", PLACE, "episode \"plain\", t 0", "hint: `input.duplicates"]);
    // The same episode and start, and another reward.
    let other = changed(&2.0_f64.to_be_bytes(), &9.0_f64.to_be_bytes());
    let work = Work::of(vec![("item", binaries(&[&plain(), &other]))]);
    work.refuses(
        1,
        &["two items of the episode start at the same step and differ", PLACE, "episode \"plain\", t 0", "hint: "],
    );
}

#[test]
fn a_null_item_and_a_column_that_holds_none() {
    let column: arrow::array::BinaryArray = vec![Some(plain().as_slice()), None].into_iter().collect();
    Work::of(vec![("item", std::sync::Arc::new(column))]).refuses(1, &["found null", PLACE, "column `item`"]);
    Work::of(vec![("item", texts(&["a"]))]).refuses(2, &["found text, expected binary msgpack items", "column `item`"]);
    let plain = binaries(&[b"a"]);
    let ty = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Binary));
    let work = Work::of(vec![("item", arrow::compute::cast(&plain, &ty).unwrap())]);
    for job in ["", "[input]\nlayout = 'rllib-episodes'\n"] {
        let told = work.refused(2, &work.convert_job(job, &[]));
        contains(&told, &["expected binary msgpack items", "column `item`", "hint: ", "cast(pyarrow.binary())"]);
    }
    Work::of(vec![("blob", binaries(&[b"a"]))]).refuses(
        2,
        &[
            "a binary column `blob`",
            "hint: if it holds episodes that RLlib packed: `[input] columns = { item = \"blob\" }`",
        ],
    );
}

/// What `lz4.frame.compress` and base64 make of a pickle.
fn packed(pickle: &[u8]) -> String {
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    encoder.write_all(pickle).unwrap();
    STANDARD.encode(encoder.finish().unwrap())
}

/// Packed observations of which the fifth is `bad`.
fn with_packed(bad: &str) -> Work {
    // `pack(np.array([..4 floats], "float32"))` out of a recording.
    let good = "BCJNGGhAjwAAAAAAAAAdigAAAFKABZWEAAEA8hqME251bXB5Ll9jb3JlLm51bWVyaWOUjAtfZnJvbWJ1ZmZlcpSTlCiWEC8A8QUAzWs\
                VPSuIET1Wyv48U2zDvJSMBUEA8RaUjAVkdHlwZZSTlIwCZjSUiYiHlFKUKEsDjAE8lE5OTkr/////BQDwA0sAdJRiSwSFlIwBQ5R0lFKULgAAAAA=";
    Work::of(with(steps(), "obs", texts(&[good, good, good, good, bad, good])))
}

const CELL: &str = "at: file in/a.parquet, row group 0, row 4, episode \"b\", t 1, column `obs`";

#[test]
fn a_pickle_that_names_a_command_is_refused_and_never_run() {
    let work = Work::new();
    let witness = work.path().join("witness");
    // os.system("touch witness"), as pickle's protocol 0 spells it.
    let evil = format!("cos\nsystem\n(S'touch {}'\ntR.", witness.display());
    let work = with_packed(&packed(evil.as_bytes()));
    work.refuses(1, &["the pickle names `os.system`", "(refused, never run)", CELL, "hint: only NumPy arrays"]);
    assert!(!witness.exists(), "the pickle was run");
}

#[test]
fn packed_text_that_lies() {
    // A frame whose header says 8 TiB.
    let mut frame = b"\x04\x22\x4d\x18\x68\x40".to_vec();
    frame.extend((8_u64 << 40).to_le_bytes());
    frame.extend([0; 20]);
    let claim = STANDARD.encode(frame);
    with_packed(&claim).refuses(1, &["a packed array claims 8796093022208 bytes, the limit is 1073741824 bytes", CELL]);
    with_packed("BCJNGGhA!!!").refuses(1, &["no base64", CELL]);
    with_packed(&packed(b"\x80\x05junk")[..24]).refuses(1, &[CELL]);
    with_packed("plain words").refuses(1, &["found text", CELL]);
    with_packed(&packed(b"")).refuses(1, &["pickle", CELL]);
}

#[test]
fn chunks_that_contradict_each_other() {
    // A second item of the episode that starts where the first one, which terminated, ended.
    let header = |t: u8| [b"\xa9t_started".as_slice(), &[t]].concat();
    let late = {
        let bytes = changed(&header(0), &header(3));
        let at = bytes.windows(3).position(|w| w == b"\xa1t\x03").expect("t");
        [&bytes[..at], b"\xa1t\x06", &bytes[at + 3..]].concat()
    };
    let work = Work::new();
    work.parquet("a.parquet", &[batch(vec![("item", binaries(&[&plain(), &late]))])]);
    work.refuses(1, &["the episode goes on after its end", PLACE, "episode \"plain\", t 3", "hint: "]);
}
