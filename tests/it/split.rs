//! `output.split`: parts by episode.

use std::collections::BTreeSet;

use arrow::array::AsArray;

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

#[test]
fn statistics_of_the_whole_are_not_mixed_with_parts() {
    let work = forty_episodes();
    let job = "[output]\nsplit = { train = 0.5, val = 0.5 }\n[[learner.connectors]]\ntype = 'MeanStdFilter'\n";
    contains(&work.refused(2, &work.convert_job(job, &[])), &["output.split", "MeanStdFilter", "hint: "]);
}
