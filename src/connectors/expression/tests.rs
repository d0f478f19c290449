use super::*;
use crate::batch::BatchLayout;
use crate::column::{ACTIONS, REWARDS};
use crate::connectors::testing::{apply, apply_to, episodes};
use crate::episode::{Columns, EpisodeLayout};
use crate::error::Kind as ErrorKind;
use crate::job::{Compat, ModuleSettings};
use crate::tensor::{Tensor, TensorType};

fn piece(into: Target, columns: &[(&str, &str)]) -> Expression {
    Expression { columns: columns.iter().map(|(n, e)| ((*n).to_owned(), (*e).to_owned())).collect(), into }
}

fn layout_of(episodes: &EpisodeBatch) -> EpisodeLayout {
    let steps = episodes.steps.iter().map(|(n, t)| (Arc::clone(n), t.ty().clone())).collect();
    EpisodeLayout { steps, last_obs: true }
}

fn planned(piece: &Expression, episodes: &EpisodeBatch) -> Result<(EpisodeLayout, BatchLayout)> {
    let (mut layout, mut batch) = (layout_of(episodes), BatchLayout::default());
    let module = ModuleSettings::default();
    let mut plan = Plan { episodes: &mut layout, batch: &mut batch };
    piece.layout(Context::new(&module, Compat::Correct), &mut plan)?;
    Ok((layout, batch))
}

/// Plans and applies, and holds one against the other.
fn run(columns: &[(&str, &str)], episodes: &mut EpisodeBatch) -> Result<()> {
    let piece = piece(Target::Episodes, columns);
    let promised = planned(&piece, episodes)?.0;
    apply(&piece, episodes)?;
    assert_eq!(promised.steps, layout_of(episodes).steps);
    Ok(())
}

fn doubles(episodes: &EpisodeBatch, name: &str) -> Vec<f64> {
    episodes.steps.get(name).unwrap().values::<f64>().to_vec()
}

#[test]
fn the_example_in_the_docs() {
    let mut eps = episodes(&[3]);
    eps.steps.set(REWARDS, Tensor::from_values::<f64>([], &[10., 20., 30.]));
    eps.steps.set(OBS, Tensor::from_values::<f32>([2], &[0.1, 1., 0.9, 2., -0.4, 3.]));
    let columns = [("rewards", "rewards / 10.0 + 0.01 * (abs(\"obs/0\") < 0.5)"), ("is_fast", "\"obs/1\" > 1.5")];
    run(&columns, &mut eps).unwrap();
    assert_eq!(doubles(&eps, REWARDS), [1.01, 2.0, 3.01]);
    assert_eq!(eps.steps.get("is_fast").unwrap().bytes(), [0, 1, 1]);
}

#[test]
fn all_expressions_read_what_was_there_before() {
    let mut eps = episodes(&[3]);
    run(&[("rewards", "rewards * 2"), ("before", "rewards"), ("actions", "actions + 1")], &mut eps).unwrap();
    assert_eq!(doubles(&eps, REWARDS), [0., 2., 4.]);
    assert_eq!(doubles(&eps, "before"), [0., 1., 2.]);
    assert_eq!(eps.steps.get(ACTIONS).unwrap().values::<i32>(), [1, 2, 3]);
}

#[test]
fn what_is_true_of_the_episode() {
    let mut eps = episodes(&[3, 0, 2]);
    eps.chunks[2].terminated = true;
    eps.chunks[2].t_started = 5;
    let columns = [
        ("a", "t"),
        ("b", "episode_length"),
        ("c", "episode_return"),
        ("d", "terminateds"),
        ("e", "rewards - avg(rewards)"),
        ("f", "eps_id = 'e2'"),
    ];
    run(&columns, &mut eps).unwrap();
    assert_eq!(eps.steps.get("a").unwrap().values::<i64>(), [0, 1, 2, 5, 6]);
    assert_eq!(eps.steps.get("b").unwrap().values::<i64>(), [3, 3, 3, 2, 2]);
    assert_eq!(doubles(&eps, "c"), [3., 3., 3., 41., 41.]);
    assert_eq!(eps.steps.get("d").unwrap().bytes(), [0, 0, 0, 0, 1]);
    assert_eq!(doubles(&eps, "e"), [-1., 0., 1., -0.5, 0.5]);
    assert_eq!(eps.steps.get("f").unwrap().bytes(), [0, 0, 0, 1, 1]);
}

#[test]
fn flags_follow_the_piece_that_set_them() {
    let mut eps = episodes(&[2]);
    let mut batch = ModuleBatch::default();
    eps.chunks[0].terminated = true;
    apply_to(&crate::connectors::AddOneTsToEpisodesAndTruncate {}, &mut eps, &mut batch).unwrap();
    apply_to(&piece(Target::Episodes, &[("end", "terminateds")]), &mut eps, &mut batch).unwrap();
    assert_eq!(eps.steps.get("end").unwrap().bytes(), [0, 1, 0]);
}

#[test]
fn units_may_be_cut_anywhere() {
    let columns = [("rewards", "rewards / sum(rewards) + sum(rewards) over (order by t)"), ("x", "max(\"obs/0\")")];
    let mut whole = episodes(&[4, 1, 0, 3]);
    let parts: Vec<EpisodeBatch> = (0..4)
        .map(|i| {
            let rows = whole.rows(i);
            let cut = |c: &Columns, start, len| c.iter().map(|(n, t)| (Arc::clone(n), t.slice(start, len))).collect();
            EpisodeBatch {
                chunks: vec![whole.chunks[i].clone()],
                offsets: vec![0, rows.len()],
                steps: cut(&whole.steps, rows.start, rows.len()),
                last_obs: cut(&whole.last_obs, i, 1),
                history_offsets: vec![0, 0],
                history: Columns::default(),
            }
        })
        .collect();
    run(&columns, &mut whole).unwrap();
    let mut joined = (Vec::new(), Vec::new());
    for mut part in parts {
        run(&columns, &mut part).unwrap();
        joined.0.extend(doubles(&part, REWARDS).iter().map(|v| v.to_bits()));
        joined.1.extend(part.steps.get("x").unwrap().values::<f32>().to_vec());
    }
    assert_eq!(doubles(&whole, REWARDS).iter().map(|v| v.to_bits()).collect::<Vec<_>>(), joined.0);
    assert_eq!(whole.steps.get("x").unwrap().values::<f32>(), joined.1);
}

#[test]
fn observations_change_everywhere() {
    let mut eps = episodes(&[2, 1]);
    let past =
        [("obs", Tensor::from_values::<f32>([1], &[8., 9.])), (REWARDS, Tensor::from_values::<f64>([], &[6., 7.]))];
    eps.history = past.into_iter().map(|(n, t)| (Arc::from(n), t)).collect();
    eps.history_offsets = vec![0, 0, 2];
    eps.chunks[1].t_started = 2;
    run(&[("obs/0", "\"obs/0\" / 2.0 + t"), ("rewards", "rewards + t"), ("mean", "avg(rewards)")], &mut eps).unwrap();
    assert_eq!(eps.steps.get(OBS).unwrap().values::<f32>(), [0., 1.5, 7.]);
    assert_eq!(eps.last_obs.get(OBS).unwrap().values::<f32>(), [3., 8.5]);
    assert_eq!(eps.history.get(OBS).unwrap().values::<f32>(), [4., 5.5]);
    assert_eq!(eps.history.get(REWARDS).unwrap().values::<f64>(), [6., 8.]);
    assert!(eps.history.get("mean").is_none());
    assert_eq!(*eps.steps.get(OBS).unwrap().ty(), TensorType::new(DType::Float32, [1]));
}

#[test]
fn the_batch_gets_columns_of_its_own() {
    let piece = piece(Target::Batch, &[("rewards", "rewards * 0.1")]);
    let mut eps = episodes(&[3]);
    let (layout, batch) = planned(&piece, &eps).unwrap();
    assert_eq!(layout, layout_of(&eps));
    assert_eq!(batch.columns[0].ty, DType::Float64.scalar());
    let out = apply(&piece, &mut eps).unwrap();
    assert_eq!(out.get(REWARDS).unwrap().values::<f64>(), [0., 0.1, 0.2]);
    assert_eq!(doubles(&eps, REWARDS), [0., 1., 2.]);
}

#[test]
fn null_is_an_error_with_its_place() {
    let mut eps = episodes(&[1, 2]);
    eps.chunks[1].t_started = 7;
    let error = apply(&piece(Target::Episodes, &[("x", "nullif(rewards, 11.0)")]), &mut eps).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data);
    assert_eq!((error.place().episode.as_deref(), error.place().t), (Some("e1"), Some(8)));
    apply(&piece(Target::Episodes, &[("x", "(rewards - rewards) / 0.0")]), &mut eps).unwrap();
    assert!(eps.steps.get("x").unwrap().values::<f64>().iter().all(|v| v.is_nan()));
}

#[test]
fn what_cannot_be_is_said_before_there_are_data() {
    let eps = episodes(&[1]);
    for (into, columns, what) in [
        (
            Target::Episodes,
            [("rewards", "reward")],
            "found no column `reward`; there are \"obs/0\", actions, rewards, t",
        ),
        (Target::Episodes, [("obs/0", "actions * 1.0")], "an observation also stands after the last step"),
        (Target::Episodes, [("obs/0", "avg(\"obs/0\")")], "an observation also stands after the last step"),
        (Target::Episodes, [("obs/1", "t * 1.0")], "`obs` has 1 elements"),
        (Target::Episodes, [("obs/0", "eps_id = 'a'")], "the expression gives bool, expected float32"),
        (Target::Episodes, [("obs/pos", "t")], "`obs/pos` cannot stand beside `obs`"),
        (Target::Episodes, [("terminateds", "true")], "`terminateds` is no column of the episodes"),
        (Target::Episodes, [("t", "t + 1")], "`t` tells where a row comes from"),
        (Target::Batch, [("eps_id", "t")], "`eps_id` tells where a row comes from"),
        (Target::Batch, [("terminateds", "t")], "the expression gives int64, expected bool"),
        (Target::Episodes, [("x", "obs")], "`obs` is a tensor of 1 elements"),
    ] {
        let error = planned(&piece(into, &columns), &eps).unwrap_err();
        assert!(error.what().starts_with(what), "{columns:?}: {error}");
        assert_eq!(error.kind(), ErrorKind::Usage);
    }
    let both = piece(Target::Episodes, &[("obs", "t"), ("obs/0", "1.0")]);
    assert!(planned(&both, &eps).unwrap_err().what().contains("as a whole and in parts"));
    assert!(Expression::default().check().is_err());
}

#[test]
fn no_steps_no_rows() {
    let mut eps = episodes(&[0, 0]);
    run(&[("rewards", "rewards - avg(rewards)"), ("obs/0", "\"obs/0\" * 2.0")], &mut eps).unwrap();
    assert_eq!(eps.steps.get(REWARDS).unwrap().rows(), 0);
    let mut none = episodes(&[]);
    run(&[("rewards", "rewards * 2")], &mut none).unwrap();
}
