//! `output.split`: parts by episode.

use std::collections::BTreeSet;

use arrow::array::AsArray;
use arrow::datatypes::{Float32Type, Int64Type};

use crate::support::{Work, bools, contains, f64s, i64s, read_shards, texts};

/// Forty episodes of one to three steps.
fn forty_episodes() -> Work {
    let steps: Vec<(u32, u32)> = (0..40).flat_map(|e| (0..=e % 3).map(move |t| (e, t))).collect();
    let n = steps.len();
    let ids: Vec<String> = steps.iter().map(|(e, _)| format!("ep{e}")).collect();
    let t: Vec<i64> = steps.iter().map(|(_, t)| i64::from(*t)).collect();
    let done: Vec<bool> = steps.iter().map(|(e, t)| *t == e % 3).collect();
    Work::of(vec![
        ("eps_id", texts(&ids.iter().map(String::as_str).collect::<Vec<_>>())),
        ("t", i64s(&t)),
        ("obs", f64s(&vec![1.0; n])),
        ("actions", i64s(&vec![0; n])),
        ("rewards", f64s(&vec![1.0; n])),
        ("terminateds", bools(&done)),
    ])
}

#[test]
fn an_episode_is_in_one_part_whole() {
    let work = forty_episodes();
    let output = work.convert_job("[output]\nsplit = { train = 0.5, val = 0.3, test = 0.2 }\n", &[]);
    let manifest = work.manifest_of(&output);
    let mut all = BTreeSet::new();
    let mut rows = 0;
    for part in ["train", "val", "test"] {
        let shard = read_shards(&work.path().join(format!("out/{part}/default_policy")));
        let ids = shard.column_by_name("eps_id").unwrap().as_string::<i32>();
        let own: BTreeSet<String> = ids.iter().flatten().map(str::to_owned).collect();
        assert!(!own.is_empty() && own.is_disjoint(&all), "{part}");
        all.extend(own);
        rows += shard.num_rows();
        assert_eq!(manifest["modules"][format!("{part}/default_policy")]["rows"], shard.num_rows());
    }
    assert_eq!((all.len(), rows), (40, 79));
}

/// What is learned from `train` is applied to all parts, and told in the manifest.
#[test]
fn statistics_are_those_of_the_part_for_training() {
    let n = 40_u32;
    let (ids, t): (Vec<String>, Vec<i64>) = (0..n).flat_map(|e| (0..2).map(move |t| (format!("ep{e}"), t))).unzip();
    let obs: Vec<f64> = (0..2 * n).map(|i| f64::from(i * i % 97)).collect();
    let work = Work::of(vec![
        ("eps_id", texts(&ids.iter().map(String::as_str).collect::<Vec<_>>())),
        ("t", i64s(&t)),
        ("obs", f64s(&obs)),
        ("actions", i64s(&vec![0; 2 * n as usize])),
        ("rewards", f64s(&obs)),
        ("terminateds", bools(&t.iter().map(|t| *t == 1).collect::<Vec<_>>())),
    ]);
    let job = |split: &str| {
        format!(
            "[output]\nsplit = {split}\n[[learner.connectors]]\ntype = 'MeanStdFilter'\nepsilon = 0.0\n\
             [[learner.connectors]]\ntype = 'NormalizeRewardsByReturnRange'\n"
        )
    };
    let manifest = work.manifest_of(&work.convert_job(&job("{ val = 0.5, train = 0.5 }"), &[]));
    let part = |part: &str| read_shards(&work.path().join(format!("out/{part}/default_policy")));
    // By hand, from the rows that went to `train`.
    let train = part("train");
    let in_train: BTreeSet<&str> =
        train.column_by_name("eps_id").unwrap().as_string::<i32>().iter().flatten().collect();
    let own: Vec<f64> =
        ids.iter().zip(&obs).filter(|(id, _)| in_train.contains(id.as_str())).map(|(_, o)| *o).collect();
    let count = own.len() as f64;
    let mean = own.iter().sum::<f64>() / count;
    let std = (own.iter().map(|o| (o - mean).powi(2)).sum::<f64>() / count).sqrt();
    let returns: Vec<f64> = own.chunks(2).map(|r| r[0] + r[1]).collect();
    let [low, high] = [f64::min, f64::max].map(|f| returns.iter().copied().reduce(f).unwrap());
    for part in ["train", "val"].map(part) {
        let rows = part.num_rows();
        assert!(rows > 10);
        let found = |name: &str| part.column_by_name(name).unwrap().as_primitive::<Float32Type>().clone();
        let part_ids = part.column_by_name("eps_id").unwrap().as_string::<i32>();
        let part_t = part.column_by_name("t").unwrap().as_primitive::<Int64Type>();
        for row in 0..rows {
            let at = (0..ids.len()).find(|&i| ids[i] == part_ids.value(row) && t[i] == part_t.value(row)).unwrap();
            assert!((f64::from(found("obs").value(row)) - (obs[at] - mean) / std).abs() < 1e-5);
            assert!((f64::from(found("rewards").value(row)) - obs[at] / (high - low) * 1000.0).abs() < 1e-3);
        }
    }
    let statistics = &manifest["connector_statistics"];
    assert_eq!((&statistics[0]["connector"], &statistics[0]["index"]), (&"MeanStdFilter".into(), &0.into()));
    for part in ["train/default_policy", "val/default_policy"] {
        let own = &statistics[0]["modules"][part][0];
        assert_eq!((&own["column"], &own["counts"]), (&"obs".into(), &serde_json::json!([train.num_rows()])));
        assert!((own["mean"][0].as_f64().unwrap() - mean).abs() < 1e-9);
        assert!((own["std"][0].as_f64().unwrap() - std).abs() < 1e-9);
        assert_eq!(statistics[1]["modules"][part]["min"], low);
        assert_eq!(statistics[1]["modules"][part]["max"], high);
    }
    // Without a part of that name it is the first one.
    let other = work.manifest_of(&work.convert_job(&job("{ b = 0.5, a = 0.5 }"), &["--overwrite"]));
    let rows = &other["modules"]["b/default_policy"]["rows"];
    assert_eq!(&other["connector_statistics"][0]["modules"]["a/default_policy"][0]["counts"][0], rows);
}

#[test]
fn a_part_that_can_give_no_statistics_is_refused_and_an_empty_one_told() {
    let work = forty_episodes();
    let split = "split = { train = 0.000000001, val = 0.999999999 }\n";
    let manifest = work.manifest_of(&work.convert_job(&format!("[output]\n{split}"), &[]));
    let notes = manifest["notes"].to_string();
    assert!(notes.contains("the part \\\"train\\\" of output.split has no rows"), "{notes}");
    std::fs::remove_dir_all(work.path().join("out")).unwrap();
    let job = format!("[output]\n{split}[[learner.connectors]]\ntype = 'MeanStdFilter'\n");
    contains(&work.refused(1, &work.convert_job(&job, &[])), &["output.split", "MeanStdFilter", "\"train\"", "hint: "]);
}
