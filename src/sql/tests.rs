//! Expressions on columns, without a pipeline around them.

use super::*;
use crate::error::{Kind as ErrorKind, Result};
use crate::tensor::DType;

fn columns() -> Vec<(&'static str, Values)> {
    let floats: Vec<f64> = (0..1000).map(|i| f64::from(i) * 0.377 - 90.0).collect();
    let singles: Vec<f32> = (0..1000_i16).map(|i| f32::from(i) * 0.77 - 300.0).collect();
    let ints: Vec<i64> = (-500..500).collect();
    let bytes: Vec<u8> = (0..1000_u32).map(|i| i.to_le_bytes()[0]).collect();
    let text = (0..1000).map(|i| Arc::from(format!("e{i}"))).collect();
    vec![
        ("x", Values::Numbers(Tensor::from_values::<f64>([], &floats))),
        ("y", Values::Numbers(Tensor::from_values::<f32>([], &singles))),
        ("i", Values::Numbers(Tensor::from_values::<i64>([], &ints))),
        ("u", Values::Numbers(Tensor::from_values::<u8>([], &bytes))),
        ("b", Values::Numbers(Tensor::from_bools((0..1000).map(|i| i % 3 == 0)))),
        ("obs/0", Values::Numbers(Tensor::from_values::<f32>([], &singles))),
        ("s", Values::Text(text)),
    ]
}

fn offer() -> Offer {
    let mut offer = Offer::default();
    for (name, values) in columns() {
        match values {
            Values::Numbers(tensor) => offer.push_tensor(name, tensor.ty()),
            Values::Text(_) => offer.push(name, Kind::Text),
        }
    }
    offer
}

fn evaluate(sql: &str, offsets: &[usize]) -> Result<Outcome> {
    let expression = Expression::compile(sql, &offer())?;
    let all = columns();
    let mut find = |name: &str| Ok(all.iter().find(|(n, _)| *n == name).unwrap().1.clone());
    expression.evaluate(&mut find, offsets).map_err(|f| f.error)
}

fn over_all(sql: &str) -> Tensor {
    let outcome = evaluate(sql, &[0, 1000]).unwrap();
    assert!(outcome.nulls.is_empty(), "{sql}");
    outcome.values
}

fn doubles(sql: &str) -> Vec<f64> {
    over_all(sql).values::<f64>().to_vec()
}

fn x() -> Vec<f64> {
    doubles("x")
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn arithmetic_on_floats_is_rounded_once() {
    let each = |f: fn(f64) -> f64| bits(&x().iter().map(|v| f(*v)).collect::<Vec<_>>());
    for (sql, f) in [
        ("x / 10.0", (|x| x / 10.0) as fn(f64) -> f64),
        ("x / 3", |x| x / 3.0),
        ("x * 0.1 + 0.2 - x", |x| (x * 0.1 + 0.2) - x),
        ("x * 3.0 * 0.1", |x| (x * 3.0) * 0.1),
        ("x + 0.0", |x| x + 0.0),
        ("(x - x) * -1.0 + 0.0", |_| 0.0),
        ("0.0 - x", |x| 0.0 - x),
        ("x * (1.0 / 3.0)", |x| x * (1.0 / 3.0)),
        ("1 / x", |x| 1.0 / x),
        ("(x - x) / (x - x)", |_| f64::NAN),
    ] {
        let got = doubles(sql);
        if sql.starts_with("(x - x) /") {
            assert!(got.iter().all(|v| v.is_nan()), "{sql}");
        } else {
            assert_eq!(bits(&got), each(f), "{sql}");
        }
    }
    let single = over_all("y / 10.0");
    let y = over_all("y");
    let want: Vec<u32> = y.values::<f32>().iter().map(|y| (y / 10.0).to_bits()).collect();
    assert_eq!(single.values::<f32>().iter().map(|v| v.to_bits()).collect::<Vec<_>>(), want);
    let scaled = over_all("y * 0.1");
    assert!(scaled.values::<f32>().iter().zip(y.values::<f32>()).all(|(a, y)| a.to_bits() == (y * 0.1_f32).to_bits()));
}

/// Polars itself multiplies by the reciprocal. If it ever stops, the detour can go.
#[test]
fn a_reciprocal_would_give_other_numbers() {
    assert_ne!(bits(&doubles("x / 10.0")), bits(&x().iter().map(|x| x * (1.0 / 10.0)).collect::<Vec<_>>()));
}

#[test]
fn remainders_are_those_of_numpy() {
    // numpy.remainder(numpy.array([7, -7, 7, -7.]), [3, 3, -3, -3]) == [1, 2, -2, -1]
    for (sql, want) in [("7.0 % 3.0", 1.0), ("-7.0 % 3.0", 2.0), ("7.0 % -3.0", -2.0), ("-7.0 % -3.0", -1.0)] {
        let got = doubles(&format!("x - x + {sql}"))[0];
        assert_eq!(got.to_bits(), f64::to_bits(want), "{sql}");
    }
}

#[test]
fn types_are_those_of_sql() {
    for (sql, dtype) in [
        ("x * 0.1", DType::Float64),
        ("y * 0.1", DType::Float32),
        ("y * 2", DType::Float32),
        ("x + y", DType::Float64),
        ("y > 1", DType::Bool),
        ("i + 1", DType::Int64),
        ("i / 2", DType::Float64),
        ("i // 2", DType::Int64),
        ("u * 2", DType::UInt8),
        ("CAST(x AS REAL)", DType::Float32),
        ("CAST(i AS INT)", DType::Int32),
        ("1.5", DType::Float64),
        ("b", DType::Bool),
        ("CASE WHEN y > 0 THEN 1.0 ELSE 0.0 END", DType::Float64),
        ("0.01 * (abs(\"obs/0\") < 0.5)", DType::Float64),
        ("x / 10.0 + 0.01 * (abs(\"obs/0\") < 0.5)", DType::Float64),
        ("y * b", DType::Float32),
        ("b * y", DType::Float32),
        ("i * b", DType::Int64),
        ("b + b", DType::Int64),
        ("(x > 0) * (y > 0)", DType::Int64),
        ("b * 2", DType::Int64),
        ("1 - b", DType::Int64),
        ("0.5 * (b * 1.0) + b", DType::Float64),
    ] {
        assert_eq!(
            Expression::compile(sql, &offer()).map(|e| e.dtype()).map_err(|e| e.to_string()),
            Ok(dtype),
            "{sql}"
        );
        assert_eq!(over_all(sql).ty().dtype, dtype, "{sql}");
    }
    assert_eq!(bits(&doubles("i / 2")[499..502]), bits(&[-0.5, 0.0, 0.5]));
    assert_eq!(over_all("i // 2").values::<i64>()[499], -1);
}

#[test]
fn truth_values_count_in_sums() {
    let got = doubles("x / 10.0 + 0.01 * (abs(\"obs/0\") < 0.5)");
    let y = over_all("y");
    let want: Vec<f64> =
        x().iter().zip(y.values::<f32>()).map(|(x, y)| x / 10.0 + 0.01 * f64::from(u8::from(y.abs() < 0.5))).collect();
    assert_eq!(bits(&got), bits(&want));
}

#[test]
fn what_looks_at_other_rows_sees_its_chunk() {
    let sum = |offsets: &[usize]| evaluate("SUM(i)", offsets).unwrap().values.values::<i64>().to_vec();
    let got = sum(&[0, 3, 3, 1000]);
    assert_eq!(got[..3], [-500 - 499 - 498; 3]);
    assert_eq!(got[3..], vec![(-497..500).sum::<i64>(); 997]);
    assert_eq!(got.len(), 1000);
    for (sql, want) in [
        ("SUM(i) OVER (ORDER BY i)", [-500, -999, -1497, -497, -993]),
        ("ROW_NUMBER() OVER (ORDER BY i)", [1, 2, 3, 1, 2]),
        ("COALESCE(LAG(i) OVER (ORDER BY i), 0)", [0, -500, -499, 0, -497]),
        ("i - FIRST(i)", [0, 1, 2, 0, 1]),
        ("COUNT(*)", [3, 3, 3, 997, 997]),
    ] {
        let outcome = evaluate(&format!("CAST({sql} AS BIGINT)"), &[0, 3, 1000]);
        let outcome = outcome.unwrap_or_else(|e| panic!("{sql}: {e}"));
        assert_eq!(outcome.values.values::<i64>()[..5], want, "{sql}");
    }
    assert!(Expression::compile("x / 10.0", &offer()).unwrap().by_row());
    assert!(!Expression::compile("x / AVG(x)", &offer()).unwrap().by_row());
}

#[test]
fn nulls_are_told_by_row() {
    assert_eq!(evaluate("CASE WHEN i > 497 THEN NULL ELSE i END", &[0, 10, 1000]).unwrap().nulls, [998, 999]);
    assert_eq!(evaluate("x / NULLIF(i, 0)", &[0, 1000]).unwrap().nulls, [500]);
}

#[test]
fn what_cannot_be_computed_names_the_chunk() {
    let expression = Expression::compile("CAST(i AS TINYINT)", &offer()).unwrap();
    let all = columns();
    let mut find = |name: &str| Ok(all.iter().find(|(n, _)| *n == name).unwrap().1.clone());
    let failed = expression.evaluate(&mut find, &[0, 0, 1000]).unwrap_err();
    assert_eq!((failed.chunk, failed.error.kind()), (Some(1), ErrorKind::Data));
}

#[test]
fn wrong_expressions_are_refused_before_there_are_data() {
    for (sql, what) in [
        ("rewards / 10", "found no column `rewards`; there are x, y, i, u, b, \"obs/0\", s"),
        ("obs/0", "found no column `obs`"),
        ("x +", "this is no SQL expression"),
        ("x; y", "this is no SQL expression"),
        ("SELECT x", "this is no SQL expression"),
        ("x + s", "the expression does not fit its columns"),
        ("s", "the expression gives text"),
        ("'x'", "the expression gives text"),
        ("NULL", "the expression gives NULL"),
        ("*", "this is no SQL expression"),
        ("COLUMNS('x')", "found a list of columns"),
        ("x IN (SELECT y FROM z)", "this is no SQL expression"),
        ("nosuch(x)", "this is no SQL expression"),
        ("1e-3 * x", "this is no SQL expression"),
        ("\"^.*$\"", "found a list of columns"),
        ("ARRAY_AGG(x)", "the expression gives list"),
        ("UNNEST(x)", "found UNNEST"),
        ("DATE '2020-01-01'", "the expression"),
        ("", "this is no SQL expression"),
    ] {
        let error = Expression::compile(sql, &offer()).map(|e| e.dtype()).unwrap_err();
        assert!(error.what().starts_with(what), "{sql}: {error}");
        assert_eq!(error.kind(), ErrorKind::Usage, "{sql}");
        assert!(!error.what().contains('\n'), "{sql}: {error}");
    }
    assert!(Expression::compile(&"x + ".repeat(5000), &offer()).unwrap_err().what().contains("10000 at most"));
    let deep = format!("{}x{}", "(".repeat(2000), ")".repeat(2000));
    assert!(Expression::compile(&deep, &offer()).is_err());
    let sum = |terms: usize| format!("x{}", "+x".repeat(terms));
    assert_eq!(bits(&doubles(&sum(59))[..1]), bits(&[x()[0] * 60.0]));
    for terms in [60, 4999] {
        assert!(Expression::compile(&sum(terms), &offer()).unwrap_err().what().contains("120 at most"));
    }
}

#[test]
fn no_rows_and_empty_chunks() {
    let none = evaluate("x - AVG(x)", &[0, 0, 0]);
    // Columns of a thousand rows do not fit: what is asked for is checked.
    assert!(none.is_err());
    let expression = Expression::compile("AVG(x)", &offer()).unwrap();
    let empty = Values::Numbers(Tensor::from_values::<f64>([], &[]));
    let outcome = expression.evaluate(&mut |_| Ok(empty.clone()), &[0, 0, 0]).unwrap();
    assert_eq!((outcome.values.rows(), outcome.values.ty().dtype), (0, DType::Float64));
}

#[test]
fn predicates_choose_rows() {
    let table = |returns: &[f64]| EpisodeTable {
        columns: vec![
            ("eps_id", Values::Text(returns.iter().map(|r| Arc::from(format!("e{r}"))).collect())),
            ("episode_return", Values::Numbers(Tensor::from_values::<f64>([], returns))),
        ],
        rows: returns.len(),
    };
    let rows = table(&[1.0, 5.0, f64::NAN, 9.0]);
    let keep = |sql| choose(&rows, sql).unwrap();
    assert_eq!(keep("episode_return > 4 and episode_return < 9"), [false, true, false, false]);
    assert_eq!(keep("eps_id = 'e5' OR eps_id LIKE 'e9%'"), [false, true, false, true]);
    assert_eq!(keep("NULLIF(episode_return, 5.0) > 0.0 AND episode_return < 100"), [true, false, false, true]);
    assert_eq!(keep("true"), [true; 4]);
    let best = table(&[1.0, 5.0, 2.0, 9.0]);
    assert_eq!(choose(&best, "episode_return >= MEDIAN(episode_return)").unwrap(), [false, true, false, true]);
    let error = choose(&rows, "episode_return").unwrap_err();
    assert!(error.what().contains("gives float64, expected true or false"), "{error}");
    assert!(choose(&table(&[]), "episode_return > 1").unwrap().is_empty());
}
