//! `output.windows = "indexed"`: every frame and step once, and the same rows when they are laid out.

use std::collections::BTreeMap;
use std::path::Path;

use gristmill::dataset::{Dataset, LaidOut};
use gristmill::sink::ColumnData;
use serde_json::Value;

use crate::support::{Columns, Work, bools, content, f64s, i64s, lists, texts};

/// Rows of all modules as a trainer sees them, by module and column: dtype, shape, bytes (text as it is shown).
type Laid = BTreeMap<String, Vec<(String, String, Vec<u8>)>>;

fn laid_out(dir: &Path, batch: usize) -> Laid {
    let dataset = Dataset::open(dir).unwrap();
    let mut out = Laid::new();
    for module in dataset.modules() {
        let reader = LaidOut::of(module).unwrap();
        let all: Vec<usize> = (0..reader.columns().len()).collect();
        let mut columns: Vec<(String, String, Vec<u8>)> =
            reader.columns().iter().map(|(name, ty)| (name.clone(), ty.to_string(), Vec::new())).collect();
        for i in 0..module.record().shards.len() {
            let shard = module.shard(i).unwrap();
            for group in 0..shard.row_groups().len() {
                let there = reader.needs(&all);
                let data = shard.row_group(group, &there).unwrap();
                for start in (0..data.rows).step_by(batch) {
                    let rows = start..data.rows.min(start + batch);
                    let laid = reader.rows((&there, &data), rows, &all, 0).unwrap();
                    for ((_, _, bytes), column) in columns.iter_mut().zip(&laid.columns) {
                        match column {
                            ColumnData::Tensor(t) => bytes.extend_from_slice(t.bytes()),
                            ColumnData::Ids(ids) => bytes.extend(format!("{ids:?}").bytes()),
                        }
                    }
                }
            }
        }
        columns.retain(|(name, ..)| !["eps_id", "agent_id"].contains(&name.as_str()));
        out.insert(module.name().to_owned(), columns);
    }
    out
}

/// Three episodes of vectors, one of them in two pieces that stand apart, and states.
fn recording() -> Columns {
    let lens = [("a", 0, 7), ("b", 0, 3), ("c", 0, 5), ("b", 3, 4)];
    let (mut id, mut t, mut values, mut last) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (name, first, len) in lens {
        for step in first..first + len {
            id.push(name);
            t.push(step);
            values.push(u8::try_from(values.len()).unwrap());
            last.push(step + 1 == first + len && !(name == "b" && first == 0));
        }
    }
    let vector = |v: u8| [1., 2., 3., 4.].map(|p: f32| p + 10.0 * f32::from(v));
    let vectors: Vec<[f32; 4]> = values.iter().map(|v| vector(*v)).collect();
    // The second piece of `b` goes on where the first one stops.
    let next: Vec<[f32; 4]> = values.iter().map(|v| vector(if *v == 9 { 15 } else { v + 1 })).collect();
    let states: Vec<[f32; 3]> = values.iter().map(|v| [f32::from(*v); 3]).collect();
    vec![
        ("eps_id", texts(&id)),
        ("t", i64s(&t)),
        ("obs", lists(&vectors.iter().map(|r| Some(r.as_slice())).collect::<Vec<_>>())),
        ("new_obs", lists(&next.iter().map(|r| Some(r.as_slice())).collect::<Vec<_>>())),
        ("actions", f64s(&values.iter().map(|v| f64::from(*v) * 0.5).collect::<Vec<_>>())),
        ("rewards", f64s(&values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>())),
        ("terminateds", bools(&last)),
        ("truncateds", bools(&vec![false; last.len()])),
        ("state_out", lists(&states.iter().map(|r| Some(r.as_slice())).collect::<Vec<_>>())),
    ]
}

const STACK: &str = "[[learner.connectors]]\ntype = 'FrameStacking'\nnum_frames = 3\n";
const STATEFUL: &str = "[rl_module]\nstateful = true\nmax_seq_len = 3\n";

/// Converts both ways, holds the one against the other, and returns both manifests.
fn both(job: &str, output: &str) -> (Value, Value) {
    let run = |windows: &str, more: &[&str]| {
        let work = Work::of(recording());
        let text = format!("{job}\n[output]\nwindows = '{windows}'\n{output}\n");
        let manifest = work.manifest_of(&work.convert_job(&text, more));
        let verified = crate::cli::gristmill(&["verify", "out"], work.path());
        assert_eq!(verified.status.code(), Some(0), "{}", crate::cli::stdout(&verified));
        (work, manifest)
    };
    let (whole, manifest) = run("whole", &["--threads", "1"]);
    let expected = laid_out(&whole.path().join("out"), 64);
    let (indexed, first) = run("indexed", &["--threads", "1"]);
    assert!(laid_out(&indexed.path().join("out"), 64) == expected, "{job}{output}");
    assert!(laid_out(&indexed.path().join("out"), 1) == expected, "row by row: {job}{output}");
    let told = |a: &Work, b: &Work| {
        let (a, b) = (a.path().join("out"), b.path().join("out"));
        let diff = crate::cli::gristmill(&["diff", &a.display().to_string(), &b.display().to_string()], whole.path());
        (diff.status.code(), crate::cli::stdout(&diff))
    };
    assert_eq!(told(&whole, &indexed).0, Some(0), "{}", told(&whole, &indexed).1);
    let (_, again) = run("indexed", &["--threads", "3", "--memory-limit", "64MiB"]);
    assert_eq!(first, again);
    (manifest, first)
}

fn tables(manifest: &Value) -> Vec<(String, u64)> {
    let tables = manifest["modules"]["default_policy"]["tables"].as_object().cloned().unwrap_or_default();
    tables.iter().map(|(name, t)| (name.clone(), t["steps"]["rows"].as_u64().unwrap())).collect()
}

#[test]
fn stacked_frames_stand_once() {
    for output in ["", "format = 'arrow'", "tensors = 'binary'", "rows_per_shard = 4", "shuffle = { seed = 7 }"] {
        let (_, indexed) = both(STACK, output);
        assert_eq!(tables(&indexed), [("frames".to_owned(), 19)], "{output}");
        let names: Vec<&str> = indexed["modules"]["default_policy"]["batch"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["obs", "actions", "rewards", "terminateds", "truncateds"]);
    }
}

#[test]
fn sequences_stand_once() {
    let pieces = [
        ("", vec![("steps", 19)]),
        (STACK, vec![("frames", 19), ("steps", 19)]),
        (
            "[[learner.connectors]]\ntype = 'OverlappingSequences'\nburn_in = 2\nlength = 3\nperiod = 1\n",
            vec![("steps", 19)],
        ),
        ("[[learner.connectors]]\ntype = 'AddNextObservationsFromEpisodesToTrainBatch'\n", vec![("steps", 19)]),
        ("[[learner.connectors]]\ntype = 'AddOneTsToEpisodesAndTruncate'\n", vec![("steps", 22)]),
    ];
    for (pieces, expected) in pieces {
        for compat in ["correct", "rllib-2.60"] {
            if compat == "rllib-2.60" && pieces.contains("Overlapping") {
                continue;
            }
            // RLlib's FrameStacking takes images only.
            let other = if compat == "correct" { "FrameStacking" } else { "StackObservations" };
            let pieces = pieces.replace("FrameStacking", other);
            let (_, indexed) =
                both(&format!("{STATEFUL}[learner]\ncompat = '{compat}'\n{pieces}"), "rows_per_shard = 3");
            let found = tables(&indexed);
            if compat == "correct" {
                let expected: Vec<(String, u64)> = expected.iter().map(|(n, rows)| ((*n).to_owned(), *rows)).collect();
                assert_eq!(found, expected, "{pieces}");
            } else if pieces.contains("AddNextObservations") {
                // RLlib moves the rows of columns that come before its numbering of episodes.
                assert_eq!(found, [("bare_steps".to_owned(), 19), ("steps".to_owned(), 19)]);
            }
        }
    }
}

#[test]
fn windows_of_transformers() {
    let windows = |options: &str| {
        format!("{STACK}[[learner.connectors]]\ntype = 'DecisionTransformerWindows'\ncontext_len = 4\n{options}")
    };
    let (_, indexed) = both(&windows(""), "");
    assert_eq!(tables(&indexed).iter().map(|t| t.0.as_str()).collect::<Vec<_>>(), ["frames", "steps"]);
    // What is padded with other than zeros is laid out.
    let (_, indexed) = both(&windows("fill = { actions = -1.0, obs = 'repeat' }\n"), "");
    assert_eq!(indexed["modules"]["default_policy"]["batch"][0]["table"], "frames");
    assert_eq!(indexed["modules"]["default_policy"]["batch"][1]["table"], Value::Null);
    both(&windows("fill = { obs = 2.0 }\nside = 'right'\nperiod = 2\n"), "shuffle = { seed = 1 }");
}

#[test]
fn parts_have_tables_of_their_own() {
    let (_, indexed) = both(STACK, "split = { train = 0.5, val = 0.5 }");
    let of =
        |part: &str| indexed["modules"][format!("{part}/default_policy")]["tables"]["frames"]["steps"]["rows"].as_u64();
    assert_eq!(of("train").unwrap() + of("val").unwrap(), 19);
}

/// RLlib's own recording of 84x84 frames, four of them stacked: a quarter of the bytes, before compression.
#[test]
fn frames_of_a_game() {
    let job = "[[learner.connectors]]\ntype = 'FrameStacking'\nnum_frames = 4\n";
    let run = |windows: &str| {
        let work = Work::new();
        let input = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/breakout-frames/input");
        for file in std::fs::read_dir(input).unwrap().map(Result::unwrap) {
            std::fs::copy(file.path(), work.input(&file.file_name().to_string_lossy())).unwrap();
        }
        let job = format!("{job}[output]\nformat = 'arrow'\nwindows = '{windows}'\n");
        let manifest = work.manifest_of(&work.convert_job(&job, &[]));
        (work, manifest)
    };
    let ((whole, _), (indexed, manifest)) = (run("whole"), run("indexed"));
    let (whole, indexed) = (whole.path().join("out"), indexed.path().join("out"));
    assert!(laid_out(&whole, 50) == laid_out(&indexed, 50));
    assert_eq!(tables(&manifest), [("frames".to_owned(), 124)]);
    let size = |files: &[&str]| files.iter().map(|f| std::fs::metadata(f).unwrap().len()).sum::<u64>();
    let file = |dir: &Path, name: &str| dir.join(name).display().to_string();
    let stored = size(&[
        &file(&indexed, "default_policy/part-00000.arrow"),
        &file(&indexed, "tables/default_policy/frames/part-00000.arrow"),
    ]);
    let laid = size(&[&file(&whole, "default_policy/part-00000.arrow")]);
    assert!(stored * 7 < laid * 2, "{stored} of {laid}");
}

/// `plan`, `convert` and `inspect` say what a trainer will see, and where it is.
#[test]
fn what_is_stored_otherwise_is_told() {
    let work = Work::of(recording());
    let job = format!("[output]\nwindows = 'indexed'\n{STACK}");
    let converted = work.convert_job(&job, &[]);
    let told = "float32[12], windows over frames";
    crate::support::contains(&crate::cli::stdout(&converted), &[told, "2 shards"]);
    let plan = crate::cli::gristmill(&["plan", "job.toml", "--input", "in"], work.path());
    crate::support::contains(&crate::cli::stdout(&plan), &[told]);
    let inspect = crate::cli::gristmill(&["inspect", "out"], work.path());
    crate::support::contains(&crate::cli::stdout(&inspect), &[told, "2 shards"]);
}

/// Nothing to index: the data set is the same but for the job.
#[test]
fn without_windows_nothing_changes() {
    let (whole, indexed) = both("", "");
    assert_eq!(whole["modules"], indexed["modules"]);
    let notes = |manifest: &Value| manifest["notes"].to_string();
    assert!(notes(&indexed).contains("has no effect: no column is a stack of frames"), "{}", notes(&indexed));
    assert!(!notes(&whole).contains("has no effect"));
    assert_eq!(content(&whole), content(&indexed));
}
