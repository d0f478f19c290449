//! The order of rows, whatever the memory.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{AsArray, Int64Array, StringViewArray};
use arrow::datatypes::Int64Type;

use super::*;
use crate::connector::Room;
use crate::scratch::Scratch;
use crate::tensor::{DType, Tensor, TensorType};

fn schema() -> Vec<(String, ColumnType)> {
    vec![
        ("eps_id".to_owned(), ColumnType::Utf8),
        ("t".to_owned(), ColumnType::Int64),
        ("obs".to_owned(), ColumnType::Tensor(TensorType::new(DType::Float32, [2]))),
        ("none".to_owned(), ColumnType::Tensor(TensorType::new(DType::Int8, [0]))),
    ]
}

/// Rows `first..first + n` of chunk `ordinal`, and their keys.
fn unit(shuffle: Shuffle, ordinal: u32, n: u64) -> (Rows, Vec<u64>) {
    let t: Vec<i64> = (0..i64::try_from(n).unwrap()).map(|t| i64::from(ordinal) * 1000 + t).collect();
    let obs: Vec<f32> = t.iter().flat_map(|&t| [t as f32, -(t as f32)]).collect();
    let ids: Vec<String> = t.iter().map(|t| format!("episode {}", t / 1000)).collect();
    let columns = vec![
        ColumnData::Ids(Arc::new(StringViewArray::from(ids))),
        ColumnData::Ids(Arc::new(Int64Array::from(t.clone()))),
        ColumnData::Tensor(Tensor::from_values::<f32>([2], &obs)),
        ColumnData::Tensor(Tensor::zeros(TensorType::new(DType::Int8, [0]), t.len())),
    ];
    (Rows { rows: t.len(), columns }, (0..n).map(|row| shuffle.key(ordinal, row)).collect())
}

/// The values of `t` in their order, with `room` bytes of memory and that many buckets at least.
fn shuffled(seed: u64, room: usize, bytes: u64) -> Vec<i64> {
    rows_of(seed, room, bytes, &[(0, 40), (1, 0), (2, 7), (3, 100)], |key| key)
}

/// The same of units of so many rows each, whose keys are made others.
fn rows_of(seed: u64, room: usize, bytes: u64, units: &[(u32, u64)], other: impl Fn(u64) -> u64) -> Vec<i64> {
    let shuffle = Shuffle::in_steps(seed, bytes, room);
    let room = Room { bytes: room, scratch: Scratch::new(Path::new(".")) };
    let mut shuffler = Shuffler::new(shuffle, &schema(), room);
    for &(ordinal, n) in units {
        let (rows, keys) = unit(shuffle, ordinal, n);
        let keys = keys.into_iter().map(&other).collect();
        shuffler.push(shuffle.scatter(rows, keys)).unwrap();
    }
    let mut out = Vec::new();
    while let Some(rows) = shuffler.next().unwrap() {
        let [ColumnData::Ids(ids), ColumnData::Ids(t), ColumnData::Tensor(obs), ColumnData::Tensor(_)] =
            rows.columns.as_slice()
        else {
            panic!("the schema's columns")
        };
        let t = t.as_primitive::<Int64Type>().values().to_vec();
        for (i, &t) in t.iter().enumerate() {
            assert_eq!(ids.as_string_view().value(i), format!("episode {}", t / 1000), "a row stays whole");
            assert_eq!(obs.slice(i, 1).values::<f32>(), [t as f32, -(t as f32)]);
        }
        out.extend(t);
    }
    out
}

#[test]
fn memory_has_no_influence_on_the_order() {
    let all = shuffled(7, 1 << 20, 1000);
    for (room, bytes) in [(1 << 20, 1 << 30), (4000, 20_000), (100, 20_000), (1, 1)] {
        assert_eq!(shuffled(7, room, bytes), all, "{room} bytes for {bytes}");
    }
    let mut sorted = all.clone();
    sorted.sort_unstable();
    assert_ne!(sorted, all);
    let expected: Vec<i64> = (0..40).chain(2000..2007).chain(3000..3100).collect();
    assert_eq!(sorted, expected, "every row once");
    assert_ne!(shuffled(8, 1 << 20, 1000), all);
}

/// Rows that no number of bits tells apart, those that only the last one does, and room for some of the steps only.
#[test]
fn rows_of_one_key_keep_the_order_of_the_data() {
    let units: Vec<(u32, u64)> = (0..60).map(|ordinal| (ordinal, u64::from(ordinal % 7) * 5)).collect();
    for other in [|_| 0, |_| u64::MAX, |key| key % 2, |key| (key % 3) << 62, |key: u64| key | (u64::MAX >> 3)] {
        let all = rows_of(7, 1 << 20, 1000, &units, other);
        for (room, bytes) in [(1 << 20, 1 << 30), (60_000, 60_000), (20_000, 1 << 20), (1000, 20_000), (1, 1)] {
            assert!(rows_of(7, room, bytes, &units, other) == all, "{room} bytes for {bytes}");
        }
    }
}

#[test]
fn what_is_kept_does_not_grow_with_the_rows() {
    let room = 100_000;
    let shuffle = Shuffle::in_steps(7, 1 << 30, room);
    let mut shuffler = Shuffler::new(shuffle, &schema(), Room { bytes: room, scratch: Scratch::new(Path::new(".")) });
    for ordinal in 0..400 {
        let (rows, keys) = unit(shuffle, ordinal, 100);
        shuffler.push(shuffle.scatter(rows, keys)).unwrap();
        let (held, buckets) = shuffler.kept();
        assert!(held <= room / 2 && buckets <= room / 2 / SEGMENT, "{held} bytes, {buckets} buckets");
    }
    let mut rows = 0;
    while let Some(own) = shuffler.next().unwrap() {
        rows += own.rows;
    }
    assert_eq!(rows, 40_000);
}

#[test]
fn steps_are_few_and_as_large_as_one_another() {
    let bits = |bytes, room| Shuffle::in_steps(0, bytes, room).bits;
    // Buckets of 4 MiB, and more of these than one step takes.
    assert_eq!((bits(1 << 20, 1 << 30), bits(1 << 30, 1 << 30), bits(8 << 30, 1 << 30)), (0, 8, 11));
    assert_eq!((bits(64 << 30, 8 << 30), bits(1 << 40, 8 << 30)), (12, 12));
    // 4096 buckets of 256 KiB, and segments of 8 KiB for 64.
    assert_eq!(bits(1 << 30, 1 << 20), 6);
    let finer = Shuffle::in_steps(0, 1 << 30, 1 << 20).finer(1 << 24, 1 << 20).unwrap();
    assert_eq!((finer.shared, finer.bits), (6, 6));
    assert_eq!((finer.bucket(u64::MAX >> 6), finer.bucket(u64::MAX << 58), finer.bucket(1 << 52)), (63, 0, 1));
    assert_eq!(Shuffle { seed: 0, shared: 60, bits: 4 }.finer(1 << 30, 1), None);
}

#[test]
fn keys_are_spread_over_buckets() {
    let shuffle = Shuffle::new(1, 1 << 20, 1 << 18, usize::MAX);
    assert_eq!(shuffle.buckets(), 16);
    assert_eq!([0, 1, 7, 8].map(|most| Shuffle::new(1, 1 << 20, 1 << 18, most).buckets()), [1, 1, 4, 8]);
    let mut counts = [0; 16];
    for row in 0..16_000 {
        counts[shuffle.bucket(shuffle.key(3, row))] += 1;
    }
    assert!(counts.iter().all(|n| (800..1200).contains(n)), "{counts:?}");
    assert_eq!(Shuffle::new(1, 0, 0, 1).bucket(u64::MAX), 0);
}
