//! Columns that the job leaves out are as if the files did not have them.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array};

use crate::cli::{gristmill, stderr, stdout};
use crate::support::{Columns, Work, batch, bools, contains, content, episodes, f64s, lists, steps, with};

/// [`steps`] with columns that would stop a job, or be in its batches.
fn cluttered() -> Columns {
    let nulls: ArrayRef = Arc::new((0..6).map(|i| (i > 0).then_some(0.5)).collect::<Float64Array>());
    let ragged = lists(&[Some(&[1.0][..]), Some(&[1.0, 2.0]), Some(&[]), Some(&[1.0]), Some(&[1.0]), Some(&[1.0])]);
    let columns = with(with(steps(), "value", nulls), "feat", ragged);
    with(with(columns, "debug_loss", f64s(&[0.0; 6])), "debug/x", f64s(&[0.0; 6]))
}

const IGNORE: &str = "[input]\nignore = ['value', 'feat', 'debug*']\n";

#[test]
fn what_is_ignored_is_as_if_it_were_not_there() {
    let clean = Work::of(steps());
    let want = content(&clean.manifest());
    let work = Work::of(cluttered());
    let made = work.manifest_of(&work.convert_job(IGNORE, &[]));
    assert_eq!(content(&made), want);
    let note = "not read, as `[input] ignore` says: value, feat, debug_loss, debug/x";
    assert!(made["notes"].to_string().contains(note), "{}", made["notes"]);
    assert_eq!(made["job"]["input"]["ignore"].as_array().map(Vec::len), Some(3));
    let plan = stdout(&gristmill(&["plan", "job.toml", "--input", "in"], work.path()));
    assert!(plan.contains(note) && !plan.contains("value  "), "{plan}");

    // A column that only one of the files has, or that two have in other types.
    work.parquet("b.parquet", &[batch(with(episodes("c", "d"), "value", bools(&[true; 6])))]);
    clean.parquet("b.parquet", &[batch(episodes("c", "d"))]);
    let made = work.manifest_of(&work.convert_job(IGNORE, &["--overwrite"]));
    assert_eq!(content(&made), content(&clean.manifest_of(&clean.convert_with(&["--overwrite"]))));
    // In Arrow IPC, too, and where malformed episodes are looked for.
    let arrow = Work::new();
    arrow.arrow("a.arrow", &[batch(cluttered())]);
    let skip = format!("{IGNORE}on_bad_episode = 'skip'\n");
    assert_eq!(content(&arrow.manifest_of(&arrow.convert_job(&skip, &[]))), want);
}

#[test]
fn without_it_the_messages_name_it() {
    let told = |columns: Columns| stderr(&Work::of(columns).convert());
    let all = cluttered();
    let only = |name: &str| with(steps(), "x*", all.iter().find(|(n, _)| *n == name).unwrap().1.clone());
    let way = "leave it out by `[input] ignore = [\"x[*]\"]`, if no piece needs it";
    contains(&told(only("value")), &["found null, expected a value in every row", way]);
    contains(&told(only("feat")), &["found shape", way]);
    let work = Work::of(steps());
    work.parquet("b.parquet", &[batch(with(episodes("c", "d"), "x*", f64s(&[0.0; 6])))]);
    contains(&stderr(&work.convert()), &["the files differ", "or leave it out: `[input] ignore = [\"x[*]\"]`"]);
    let made = work.manifest_of(&work.convert_job("[input]\nignore = ['x[*]']\n", &[]));
    assert_eq!(made["counts"]["rows_out"], 12);
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for (ignore, more, told) in [
        ("'valeu'", "", "job key `input.ignore[0]`\n  hint: did you mean \"value\"?"),
        ("'value', 'qwertz'", "", "the files have eps_id, t, obs"),
        ("'obs'", "", "found \"obs\", but `obs` is needed"),
        ("'*'", "", "is needed"),
        ("'value'", "columns = { vf_preds = 'value' }\n", "but `[input] columns` maps vf_preds to \"value\""),
        ("'a['", "", "is no pattern"),
    ] {
        let work = Work::of(cluttered());
        let text = work.refused(2, &work.convert_job(&format!("[input]\nignore = [{ignore}]\n{more}"), &[]));
        assert!(text.contains(told), "{ignore}: {text}");
    }
}
