use super::*;

// Made by RLlib itself: testdata/make.py.
const PLAIN: &[u8] = include_bytes!("../testdata/plain.msgpack");
const NESTED: &[u8] = include_bytes!("../testdata/nested.msgpack");
const TUPLES: &[u8] = include_bytes!("../testdata/tuples.msgpack");
const MIXED: &[u8] = include_bytes!("../testdata/mixed.msgpack");
const EMPTY: &[u8] = include_bytes!("../testdata/empty.msgpack");
const PLAIN_FINALIZED: &[u8] = include_bytes!("../testdata/plain_finalized.msgpack");
const NESTED_FINALIZED: &[u8] = include_bytes!("../testdata/nested_finalized.msgpack");
const TUPLES_FINALIZED: &[u8] = include_bytes!("../testdata/tuples_finalized.msgpack");
const MIXED_FINALIZED: &[u8] = include_bytes!("../testdata/mixed_finalized.msgpack");
const EMPTY_FINALIZED: &[u8] = include_bytes!("../testdata/empty_finalized.msgpack");
const ALL: [&[u8]; 10] = [
    PLAIN,
    NESTED,
    TUPLES,
    MIXED,
    EMPTY,
    PLAIN_FINALIZED,
    NESTED_FINALIZED,
    TUPLES_FINALIZED,
    MIXED_FINALIZED,
    EMPTY_FINALIZED,
];

type Columns = Vec<(String, LeafRows)>;

/// Both passes over some items.
fn both(items: &[&[u8]]) -> Result<(Vec<ItemHeader>, LeafTypes, Columns)> {
    let mut types = LeafTypes::new();
    let headers = items.iter().map(|item| scan(item, &mut types)).collect::<Result<Vec<_>>>()?;
    let mut decoder = ItemDecoder::new(types.iter().map(|(name, leaf)| (name, leaf.ty)).collect())?;
    for (item, header) in items.iter().zip(&headers) {
        assert_eq!(decoder.decode(item)?, *header);
    }
    Ok((headers, types, decoder.finish()))
}

fn names(types: &LeafTypes) -> Vec<String> {
    types.iter().map(|(name, leaf)| format!("{name}: {}", leaf.ty)).collect()
}

fn leaf<'a>(columns: &'a Columns, name: &str) -> &'a LeafRows {
    &columns.iter().find(|(n, _)| n == name).unwrap().1
}

fn steps<T: crate::tensor::Element>(columns: &Columns, name: &str) -> Vec<T> {
    leaf(columns, name).steps.values().to_vec()
}

fn error(items: &[&[u8]]) -> Error {
    both(items).unwrap_err()
}

// ------------------------------------------------------------------------------------ a packer for odd items

fn text(s: &str) -> Vec<u8> {
    [&[0xd9, u8::try_from(s.len()).unwrap()], s.as_bytes()].concat()
}

fn bin(b: &[u8]) -> Vec<u8> {
    [&[0xc4, u8::try_from(b.len()).unwrap()], b].concat()
}

fn list(items: &[Vec<u8>]) -> Vec<u8> {
    let n = u16::try_from(items.len()).unwrap().to_be_bytes();
    [&[0xdc], &n[..], &items.concat()].concat()
}

fn dict(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let n = u16::try_from(entries.len()).unwrap().to_be_bytes();
    let entries: Vec<u8> = entries.iter().flat_map(|(k, v)| [text(k), v.clone()].concat()).collect();
    [&[0xde], &n[..], &entries].concat()
}

fn float(v: f64) -> Vec<u8> {
    [&[0xcb], &v.to_be_bytes()[..]].concat()
}

fn int(v: u8) -> Vec<u8> {
    vec![0xcc, v]
}

fn array(descr: &str, shape: &[u8], data: &[u8]) -> Vec<u8> {
    let shape: Vec<Vec<u8>> = shape.iter().map(|&d| int(d)).collect();
    let entries = [
        (bin(b"nd"), vec![0xc3]),
        (bin(b"type"), text(descr)),
        (bin(b"kind"), bin(b"")),
        (bin(b"shape"), list(&shape)),
        (bin(b"data"), bin(data)),
    ];
    [&[0x85][..], &entries.iter().flat_map(|(k, v)| [&k[..], v].concat()).collect::<Vec<u8>>()].concat()
}

fn f32s(values: &[f32]) -> Vec<u8> {
    let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    array("<f4", &[u8::try_from(values.len()).unwrap()], &data)
}

fn buffer(lookback: u8, rows: &[Vec<u8>]) -> Vec<u8> {
    dict(&[("data", list(rows)), ("lookback", int(lookback)), ("finalized", vec![0xc2]), ("space", vec![0xc0])])
}

/// An item of `rewards.len()` steps.
fn item(obs: &[Vec<u8>], rewards: &[Vec<u8>], extras: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let actions: Vec<Vec<u8>> = rewards.iter().map(|_| int(1)).collect();
    dict(&[
        ("id_", text("odd")),
        ("a_key_of_the_future", list(&[dict(&[("x", list(&[]))])])),
        ("observations", buffer(0, obs)),
        ("actions", buffer(0, &actions)),
        ("rewards", buffer(0, rewards)),
        ("extra_model_outputs", dict(extras)),
        ("is_terminated", vec![0xc3]),
        ("is_truncated", vec![0xc2]),
        ("t_started", int(10)),
        ("t", int(10 + u8::try_from(rewards.len()).unwrap())),
    ])
}

// -------------------------------------------------------------------------------------------- what RLlib wrote

#[test]
fn a_plain_episode() {
    for item in [PLAIN, PLAIN_FINALIZED] {
        let (headers, types, columns) = both(&[item]).unwrap();
        let header = ItemHeader {
            id: "plain".into(),
            agent_id: None,
            module_id: None,
            multi_agent_episode_id: None,
            t_started: 0,
            len: 3,
            lookback: 0,
            terminated: true,
            truncated: false,
        };
        assert_eq!(headers, [header]);
        assert_eq!(
            names(&types),
            ["obs: float32[2]", "actions: int32", "rewards: float64", "action_logp: float32", "weights_seq_no: int64"]
        );
        assert_eq!(steps::<f32>(&columns, "obs"), [0., 0.5, 1., 1.5, 2., 2.5]);
        assert_eq!(leaf(&columns, "obs").last.values::<f32>(), [3., 3.5]);
        assert_eq!(leaf(&columns, "obs").history.rows(), 0);
        assert_eq!(steps::<i32>(&columns, "actions"), [0, 1, 0]);
        assert_eq!(steps::<f64>(&columns, "rewards"), [1., 2., 3.]);
        assert_eq!(steps::<f32>(&columns, "action_logp"), [0., -0.5, -1.]);
        assert_eq!(steps::<i64>(&columns, "weights_seq_no"), [7, 7, 7]);
    }
}

#[test]
fn a_chunk_with_lookback_and_nested_values() {
    for item in [NESTED, NESTED_FINALIZED] {
        let (headers, types, columns) = both(&[item]).unwrap();
        let h = &headers[0];
        assert_eq!((h.t_started, h.len, h.lookback, h.terminated, h.truncated), (6, 3, 2, false, false));
        assert_eq!(
            names(&types),
            [
                "obs/a/img: uint8[2, 1]",
                "obs/f: bool",
                "obs/z/0: int64",
                "obs/z/1: float32[2, 2]",
                "actions: int16[2]",
                "rewards: int64",
                "late: float32",
                "state_out/actor/c: float32[1, 2]",
                "state_out/actor/h: float32[1, 2]",
                "state_out/critic/c: float32[1, 2]",
                "state_out/critic/h: float32[1, 2]",
            ]
        );
        let z = leaf(&columns, "obs/z/0");
        assert_eq!(z.history.values::<i64>(), [4, 5]);
        assert_eq!(z.steps.values::<i64>(), [6, 7, 8]);
        assert_eq!(z.last.values::<i64>(), [9]);
        assert_eq!(z.items, [RowCounts { history: 2, steps: 3, last: 1 }]);
        assert_eq!(leaf(&columns, "obs/f").steps, Tensor::from_bools([true; 3]));
        let h = leaf(&columns, "state_out/critic/h");
        assert_eq!(h.history.values::<f32>(), [4., 4., 5., 5.]);
        assert_eq!(h.steps.values::<f32>(), [6., 6., 7., 7., 8., 8.]);
        assert_eq!(leaf(&columns, "state_out/actor/c").steps.values::<f32>()[..2], [-6., -6.]);
        // An output that began after the cut has no look-back, whatever the rest has.
        let late = leaf(&columns, "late");
        assert_eq!(late.items, [RowCounts { history: 0, steps: 3, last: 0 }]);
        assert_eq!(late.steps.values::<f32>(), [6., 7., 8.]);
        assert_eq!(steps::<i16>(&columns, "actions"), [6, 12, 7, 14, 8, 16]);
        assert_eq!(steps::<i64>(&columns, "rewards"), [6, 7, 8]);
    }
}

#[test]
fn rows_of_equal_parts_are_stacked() {
    let parts = |a: f32, b: f32| list(&[f32s(&[a, b]), array("<f8", &[2], &[0; 16])]);
    let obs = [list(&[list(&[int(1)]), list(&[int(2)])]), list(&[list(&[int(3)]), list(&[int(4)])])];
    let flag = list(&[int(7), vec![0xc3]]);
    let extras = [("pair", buffer(0, &[parts(1., 2.)])), ("flag", buffer(0, &[flag]))];
    let item = item(&obs, &[float(0.5)], &extras);
    let (_, types, columns) = both(&[&item, &item]).unwrap();
    assert_eq!(types.get("pair"), None);
    let others = ["obs: int64[2, 1]", "actions: int64", "rewards: float64"];
    assert_eq!(names(&types), [&others[..], &["flag: int64[2]", "pair: float64[2, 2]"]].concat());
    assert_eq!(steps::<i64>(&columns, "flag"), [7, 1, 7, 1]);
    assert_eq!(steps::<f64>(&columns, "pair"), [1., 2., 0., 0., 1., 2., 0., 0.]);
    assert_eq!(steps::<i64>(&columns, "obs"), [1, 2, 1, 2]);
    assert_eq!(leaf(&columns, "obs").last.values::<i64>(), [3, 4, 3, 4]);
}

#[test]
fn tuples_are_named_by_index() {
    for item in [TUPLES, TUPLES_FINALIZED] {
        let (headers, types, columns) = both(&[item]).unwrap();
        assert!(headers[0].truncated && !headers[0].terminated);
        assert_eq!(
            names(&types),
            ["obs/0: int64", "obs/1: float32[2]", "actions/0: int32", "actions/1: float32[1]", "rewards: float64"]
        );
        assert_eq!(steps::<i64>(&columns, "obs/0"), [0, 1]);
        assert_eq!(leaf(&columns, "obs/1").last.values::<f32>(), [2., -2.]);
        assert_eq!(steps::<f32>(&columns, "actions/1"), [1., 2.]);
    }
    // Two arrays of equal length look like two rows until the flag after them says otherwise.
    let two = list(&[f32s(&[1., 2.]), f32s(&[3., 4.])]);
    let obs = dict(&[("data", two), ("lookback", int(0)), ("finalized", vec![0xc3])]);
    let mut like_rows = item(&[], &[float(0.)], &[]);
    let at = like_rows.windows(9).position(|w| w == b"\x04data\xdc\x00\x00\xd9").unwrap() - 4;
    like_rows.splice(at..at + buffer(0, &[]).len(), obs);
    let (_, types, columns) = both(&[&like_rows]).unwrap();
    assert_eq!(names(&types)[..2], ["obs/0: float32", "obs/1: float32"]);
    assert_eq!((steps(&columns, "obs/0"), steps(&columns, "obs/1")), (vec![1f32], vec![3f32]));
}

/// Against `SingleAgentEpisode.from_state(..).to_numpy()`, which is what the finalized item holds.
#[test]
fn mixed_dtypes_are_rllibs() {
    let (_, types, lists) = both(&[MIXED]).unwrap();
    assert_eq!(names(&types), ["obs: float32[2]", "actions: int32", "rewards: float64", "f: float64", "n: int64"]);
    let (_, _, arrays) = both(&[MIXED_FINALIZED]).unwrap();
    for ((name, a), (_, b)) in lists.iter().zip(&arrays) {
        assert_eq!((&a.steps, &a.last), (&b.steps, &b.last), "{name}");
    }
    assert_eq!(steps::<i32>(&lists, "actions"), [0, 1]);
    assert_eq!(steps::<f64>(&lists, "f"), [f64::from(0.1f32), 0.1]);
    // The first row's float32 rules in this item, also where the column is float64 for another item's sake.
    let wide = item(&[array("<f8", &[2], &[0; 16])], &[], &[]);
    let (_, types, columns) = both(&[MIXED, &wide]).unwrap();
    assert_eq!(types.get("obs").unwrap().ty.to_string(), "float64[2]");
    assert_eq!(leaf(&columns, "obs").last.values::<f64>()[..1], [f64::from(0.3f32)]);
}

#[test]
fn an_episode_without_steps() {
    for item in [EMPTY, EMPTY_FINALIZED] {
        let (headers, types, columns) = both(&[item, PLAIN, item]).unwrap();
        assert_eq!(headers.iter().map(|h| h.len).collect::<Vec<_>>(), [0, 3, 0]);
        assert_eq!((types.items(), types.get("obs").unwrap().in_items), (1, 1));
        let obs = leaf(&columns, "obs");
        assert_eq!(obs.last.values::<f32>(), [0., 0.5, 3., 3.5, 0., 0.5]);
        assert_eq!(obs.items.iter().map(|c| c.steps).collect::<Vec<_>>(), [0, 3, 0]);
        assert_eq!(leaf(&columns, "rewards").items[0], RowCounts::default());
        let (_, types, _) = both(&[item]).unwrap();
        assert_eq!((names(&types), types.items()), (vec!["obs: float32[2]".to_owned()], 0));
    }
}

#[test]
fn leaves_missing_in_some_items_are_counted() {
    let without = item(&[f32s(&[1., 2.]), f32s(&[3., 4.])], &[float(0.5)], &[("gone", vec![0xc0])]);
    let (_, types, columns) = both(&[PLAIN, &without, PLAIN]).unwrap();
    assert_eq!(types.items(), 3);
    assert_eq!(types.get("obs").unwrap().in_items, 3);
    assert_eq!(types.get("action_logp").unwrap().in_items, 2);
    assert_eq!(types.get("gone"), None);
    let counts: Vec<u32> = leaf(&columns, "action_logp").items.iter().map(|c| c.steps).collect();
    assert_eq!(counts, [3, 0, 3]);
    assert_eq!(leaf(&columns, "action_logp").steps.rows(), 6);
}

#[test]
fn only_what_is_asked_for_is_decoded() {
    for item in [NESTED, NESTED_FINALIZED] {
        let wanted = vec![("obs/z/1".to_owned(), TensorType::new(DType::Float32, [2, 2]))];
        let mut decoder = ItemDecoder::new(wanted).unwrap();
        decoder.decode(item).unwrap();
        assert_eq!(decoder.bytes(), 6 * 16);
        let columns = decoder.finish();
        assert_eq!((columns.len(), columns[0].1.steps.rows(), columns[0].1.history.rows()), (1, 3, 2));
    }
    let twice = vec![("obs".to_owned(), TensorType::new(DType::Bool, [])); 2];
    assert!(ItemDecoder::new(twice).is_err());
}

// ------------------------------------------------------------------------------------------- dtypes over items

#[test]
fn dtypes_join_over_items_in_any_order() {
    let of = |reward: Vec<u8>| item(&[int(0), int(1)], &[reward], &[]);
    let (int8, f32_, f64_, int64) =
        (of(array("|i1", &[], &[3])), of(array("<f4", &[], &1.5f32.to_le_bytes())), of(float(0.1)), of(int(7)));
    for (items, expected) in [
        (vec![&int8, &f32_], DType::Float32),
        (vec![&f32_, &f64_], DType::Float64),
        (vec![&int64, &f64_], DType::Float64),
        (vec![&int64, &f32_], DType::Float64),
        (vec![&int8, &int64], DType::Int64),
    ] {
        let forth: Vec<&[u8]> = items.iter().map(|i| &i[..]).collect();
        let back: Vec<&[u8]> = forth.iter().rev().copied().collect();
        for order in [forth, back] {
            let (_, types, columns) = both(&order).unwrap();
            assert_eq!(types.get("rewards").unwrap().ty.dtype, expected);
            assert_eq!(leaf(&columns, "rewards").steps.rows(), 2);
        }
    }
    let (.., columns) = both(&[&int64, &f64_, &int8]).unwrap();
    assert_eq!(steps::<f64>(&columns, "rewards"), [7., 0.1, 3.]);
    let e = error(&[&f64_, &of(vec![0xc3])]);
    assert_eq!(e.what(), "bool values, other items have float64");
    assert_eq!(e.place().column.as_deref(), Some("rewards"));
}

#[test]
fn merged_types_are_those_of_one_scan() {
    let parts: Vec<LeafTypes> = [&[PLAIN, EMPTY][..], &[MIXED], &[PLAIN_FINALIZED]]
        .iter()
        .map(|items| {
            let mut types = LeafTypes::new();
            items.iter().for_each(|item| drop(scan(item, &mut types).unwrap()));
            types
        })
        .collect();
    let (_, one, _) = both(&[PLAIN, EMPTY, MIXED, PLAIN_FINALIZED]).unwrap();
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let mut merged = LeafTypes::new();
        for i in order {
            merged.merge(&parts[i]).unwrap();
        }
        assert_eq!(merged.iter().collect::<Vec<_>>(), one.iter().collect::<Vec<_>>());
        assert_eq!(merged.items(), one.items());
    }
    let mut types = parts[0].clone();
    let (_, nested, _) = both(&[NESTED]).unwrap();
    assert!(types.merge(&nested).unwrap_err().what().contains("dict or list in others"));
    assert_eq!(types.iter().collect::<Vec<_>>(), parts[0].iter().collect::<Vec<_>>());
}

// -------------------------------------------------------------------------------------------------- bad items

fn told(items: &[&[u8]]) -> (String, Option<String>, Option<i64>) {
    let e = error(items);
    (e.what().to_owned(), e.place().column.clone(), e.place().t)
}

#[test]
fn ragged_rows_name_step_and_shapes() {
    let bad = item(&[f32s(&[1., 2.]), f32s(&[1., 2.]), f32s(&[1., 2., 3.])], &[float(0.), float(0.)], &[]);
    assert_eq!(
        told(&[&bad]),
        (
            "step 2 of the item: found a row of float32[3], the rows before have shape [2]".into(),
            Some("obs".into()),
            Some(12)
        )
    );
    let other = item(&[f32s(&[1., 2., 3.])], &[], &[]);
    assert_eq!(told(&[PLAIN, &other]), ("rows of shape [3], other items have [2]".into(), Some("obs".into()), None));
    // A step back in time: the look-back of the chunk.
    let mut types = LeafTypes::new();
    scan(NESTED, &mut types).unwrap();
    let wrong = types.iter().map(|(n, l)| (n, TensorType::new(l.ty.dtype, [9]))).collect();
    let e = ItemDecoder::new(wrong).unwrap().decode(NESTED).unwrap_err();
    assert!(e.what().starts_with("step -2 of the item"), "{e}");
    assert_eq!((e.place().t, e.place().episode.as_deref()), (Some(4), Some("nested")));
}

#[test]
fn rows_that_lack_or_repeat_a_leaf() {
    let row = |keys: &[&str]| dict(&keys.iter().map(|k| (*k, int(1))).collect::<Vec<_>>());
    let of = |second: &[&str]| item(&[row(&["a", "b"]), row(second)], &[float(0.)], &[]);
    assert!(both(&[&of(&["b", "a"])]).is_ok());
    for (keys, what, column) in [
        (&["a"][..], "is missing in this row, rows before have it", "obs/b"),
        (&["a", "a"], "stands twice in a row", "obs/a"),
        (&["a", "b", "c"], "was not there in the first row of the item", "obs/c"),
        (&["a", "b/c"], "the key \"b/c\" holds a `/`, which joins the keys of nested values", "obs"),
    ] {
        assert_eq!(
            told(&[&of(keys)]),
            (format!("step 1 of the item: {what}"), Some(column.into()), Some(11)),
            "{keys:?}"
        );
    }
    let slash = item(&[row(&["a"])], &[], &[("x/y", buffer(0, &[]))]);
    assert!(both(&[&slash]).is_ok());
    let slash = item(&[int(1), int(1)], &[float(0.)], &[("x/y", buffer(0, &[int(1)]))]);
    assert!(error(&[&slash]).what().contains("holds a `/`"));
    let reserved = item(&[int(1)], &[], &[("obs", buffer(0, &[]))]);
    assert!(error(&[&reserved]).what().contains("name of the column"));
}

#[test]
fn leaves_that_are_no_numbers_are_named() {
    let obs = |leaf: Vec<u8>| item(&[dict(&[("x", leaf)])], &[], &[]);
    for (leaf, what) in [
        (text("hi"), "found text"),
        (vec![0xc0], "found None"),
        (bin(b"x"), "found raw bytes"),
        (array("|O", &[1], b"."), "dtype `|O`"),
        (array("<U1", &[1], b"aaaa"), "dtype `<U1`"),
        (vec![0xc7, 1, 5, 0], "msgpack extension"),
    ] {
        let (found, column, t) = told(&[&obs(leaf)]);
        assert!(found.contains(what), "{found}");
        assert_eq!((column.as_deref(), t), (Some("obs/x"), Some(10)));
    }
    let extra = item(&[int(1), int(1)], &[float(0.)], &[("note", buffer(0, &[text("hi")]))]);
    let (found, column, _) = told(&[&extra]);
    assert!(found.contains("found text, expected numbers"), "{found}");
    assert_eq!(column.as_deref(), Some("note"));
}

#[test]
fn lengths_must_fit() {
    let short = item(&[int(1), int(1)], &[float(0.), float(0.)], &[]);
    assert_eq!(told(&[&short]).0, "observations has 2 items, expected 3 = 0 look-back + 2 steps + 1");
    let long = item(&[int(1), int(1)], &[float(0.)], &[("v", buffer(3, &[int(1), int(1)]))]);
    assert_eq!(told(&[&long]), ("v has 2 items, expected 4 = 3 look-back + 1 steps".into(), Some("v".into()), None));
    let lossy =
        item(&[array("<i4", &[1], &[1, 0, 0, 0]), array("<f4", &[1], &2.5f32.to_le_bytes())], &[float(0.)], &[]);
    assert_eq!(
        told(&[&lossy]).0,
        "step 1 of the item: the float32 value 2.5 is none of int32, the dtype of the rows before"
    );
    let backwards = dict(&[("id_", text("x")), ("t_started", int(3)), ("t", int(2))]);
    assert_eq!(told(&[&backwards]).0, "an episode from t_started = 3 to t = 2");
    assert_eq!(told(&[&dict(&[])]).0, "an episode without `id_`");
    assert_eq!(told(&[b"\x01"]).0, "an episode: found an int, expected a dict");
}

#[test]
fn after_an_error_all_is_as_before() {
    let (_, types, good) = both(&[PLAIN, PLAIN]).unwrap();
    let bad: Vec<Vec<u8>> = vec![
        NESTED.to_vec(),
        item(&[f32s(&[1., 2.]), f32s(&[1.])], &[float(0.)], &[]),
        item(&[f32s(&[1., 2.]), f32s(&[1., 1.])], &[float(0.)], &[("new", buffer(0, &[text("x")]))]),
        PLAIN[..PLAIN.len() - 1].to_vec(),
    ];
    let mut scanned = LeafTypes::new();
    let mut decoder = ItemDecoder::new(types.iter().map(|(n, l)| (n, l.ty)).collect()).unwrap();
    for round in 0..2 {
        for bad in &bad[usize::from(round == 0)..] {
            assert!(scan(bad, &mut scanned).is_err());
            let projected = decoder.decode(bad);
            // A decoder does not read what it was not asked for.
            assert_eq!(projected.is_err(), !bad.windows(3).any(|w| w == b"new"));
            if projected.is_ok() {
                decoder = ItemDecoder::new(types.iter().map(|(n, l)| (n, l.ty)).collect()).unwrap();
                (0..round).for_each(|_| drop(decoder.decode(PLAIN).unwrap()));
            }
        }
        scan(PLAIN, &mut scanned).unwrap();
        decoder.decode(PLAIN).unwrap();
    }
    assert_eq!(scanned.iter().collect::<Vec<_>>(), types.iter().collect::<Vec<_>>());
    for ((name, a), (_, b)) in good.iter().zip(&decoder.finish()) {
        assert_eq!((&a.steps, &a.last, &a.items), (&b.steps, &b.last, &b.items), "{name}");
    }
}

#[test]
fn hashes_see_data_and_no_clocks() {
    let hash = |item: &[u8]| content_hash(item).unwrap();
    let clock = |at: f64| {
        let entry = [&text("_start_time")[..], &float(at)].concat();
        let mut item = item(&[int(1)], &[], &[]);
        item[2] += 1;
        item.extend(entry);
        item
    };
    assert_eq!(hash(&clock(1.0)), hash(&clock(2.0)));
    assert_eq!(hash(&clock(1.0)), hash(&item(&[int(1)], &[], &[])));
    let all: std::collections::BTreeSet<u128> = ALL.iter().map(|item| hash(item)).collect();
    // Without steps nothing but the observation is finalized, and that shows.
    assert_eq!(all.len(), ALL.len());
    let base = item(&[int(1), int(2)], &[float(0.)], &[("v", buffer(0, &[int(1)]))]);
    for other in [
        item(&[int(1), int(3)], &[float(0.)], &[("v", buffer(0, &[int(1)]))]),
        item(&[int(1), int(2)], &[float(1.)], &[("v", buffer(0, &[int(1)]))]),
        item(&[int(1), int(2)], &[float(0.)], &[("w", buffer(0, &[int(1)]))]),
        item(&[int(1), int(2)], &[float(0.)], &[("v", buffer(1, &[int(1)]))]),
        item(&[int(1), int(2)], &[float(0.)], &[]),
    ] {
        assert_ne!(hash(&base), hash(&other));
    }
}

// ---------------------------------------------------------------------------------------------- hostile items

#[test]
fn cut_anywhere_is_an_error() {
    for item in ALL {
        let (_, types, _) = both(&[item]).unwrap();
        let leaves: Vec<_> = types.iter().map(|(n, l)| (n, l.ty)).collect();
        let mut decoder = ItemDecoder::new(leaves).unwrap();
        let mut fresh = LeafTypes::new();
        for n in 0..item.len() {
            assert!(scan(&item[..n], &mut fresh).is_err() && decoder.decode(&item[..n]).is_err(), "cut at {n}");
            assert!(content_hash(&item[..n]).is_err());
        }
        assert_eq!(decoder.bytes(), 0);
        assert_eq!(Pass::size(&fresh), (1, 0));
    }
}

#[test]
fn flipped_bits_never_panic() {
    for item in ALL {
        let (_, types, _) = both(&[item]).unwrap();
        let leaves: Vec<_> = types.iter().map(|(n, l)| (n, l.ty)).collect();
        let mut flipped = item.to_vec();
        for i in 0..item.len() {
            for bit in [i % 7, 7] {
                flipped[i] ^= 1 << bit;
                let mut decoder = ItemDecoder::new(leaves.clone()).unwrap();
                let _ = decoder.decode(&flipped);
                assert!(decoder.bytes() <= 16 * item.len());
                let _ = (both(&[&flipped]), content_hash(&flipped));
                flipped[i] ^= 1 << bit;
            }
        }
    }
}

#[test]
fn bombs() {
    // Lists of 2^32 - 1 elements, claimed where data, an item and an unknown value stand.
    let huge = vec![0xdd, 0xff, 0xff, 0xff, 0xff];
    assert!(error(&[&huge]).what().contains("found a list"));
    let data = dict(&[("observations", dict(&[("data", huge.clone())]))]);
    assert!(error(&[&data]).what().contains("claims 4294967295 elements"), "{}", error(&[&data]));
    assert!(error(&[&dict(&[("infos", huge)])]).what().contains("claims 4294967295 elements"));
    // A hundred thousand lists inside one another, skipped or read.
    let deep = [vec![0x91; 100_000], vec![0xc0]].concat();
    assert!(error(&[&dict(&[("infos", deep.clone())])]).what().contains("without"));
    assert!(error(&[&item(&[deep], &[], &[])]).what().contains("nested deeper than 32"));
    // As many leaves as bytes.
    let wide = list(&vec![int(0); 60_000]);
    assert!(error(&[&item(&[wide], &[], &[])]).what().contains("more than 16384 leaves"));
    // An array whose size overflows, and one of zero size with an impossible shape.
    let far = [vec![0xcf], u64::MAX.to_be_bytes().to_vec()].concat();
    for shape in [[far.clone(), far.clone(), int(0)], [int(1), far.clone(), far]] {
        let entries = [
            (bin(b"nd"), vec![0xc3]),
            (bin(b"type"), text("<f4")),
            (bin(b"shape"), list(&shape)),
            (bin(b"data"), bin(b"")),
        ];
        let bad = [&[0x84][..], &entries.iter().flat_map(|(k, v)| [&k[..], v].concat()).collect::<Vec<u8>>()].concat();
        assert!(error(&[&item(&[bad], &[], &[])]).what().contains("shape of an array"));
    }
}

/// `cargo test --release --lib decode_speed -- --nocapture`
#[test]
fn decode_speed() {
    let n = 2000u16;
    let obs: Vec<Vec<u8>> = (0..=n).map(|_| f32s(&[0.1, 0.2, 0.3, 0.4])).collect();
    let rewards: Vec<Vec<u8>> = (0..n).map(|_| float(1.0)).collect();
    let logp: Vec<Vec<u8>> = (0..n).map(|_| array("<f4", &[], &[0; 4])).collect();
    let seq: Vec<Vec<u8>> = (0..n).map(|_| vec![7]).collect();
    let mut entries = vec![
        ("id_", text("fast")),
        ("observations", buffer(0, &obs)),
        ("actions", buffer(0, &logp)),
        ("rewards", buffer(0, &rewards)),
        ("extra_model_outputs", dict(&[("action_logp", buffer(0, &logp)), ("n", buffer(0, &seq))])),
        ("is_terminated", vec![0xc3]),
        ("is_truncated", vec![0xc2]),
        ("t_started", int(0)),
    ];
    entries.push(("t", [&[0xcd], &n.to_be_bytes()[..]].concat()));
    let item = dict(&entries);
    let rounds: u32 = if cfg!(debug_assertions) { 3 } else { 300 };
    let mut types = LeafTypes::new();
    let start = std::time::Instant::now();
    (0..rounds).for_each(|_| drop(scan(&item, &mut types).unwrap()));
    let scan_time = start.elapsed();
    let mut decoder = ItemDecoder::new(types.iter().map(|(n, l)| (n, l.ty)).collect()).unwrap();
    let start = std::time::Instant::now();
    (0..rounds).for_each(|_| drop(decoder.decode(&item).unwrap()));
    let decode_time = start.elapsed();
    let steps = f64::from(rounds) * f64::from(n);
    let per_step = |d: std::time::Duration| d.as_nanos() as f64 / steps;
    #[expect(clippy::print_stdout, reason = "a measure")]
    {
        println!("scan {:.1} ns, decode {:.1} ns a step of 5 leaves", per_step(scan_time), per_step(decode_time));
    }
    assert_eq!(decoder.finish()[0].1.steps.rows(), usize::from(n) * rounds as usize);
}
