//! Small episodes for the unit tests of connectors.

use std::any::Any;
use std::sync::Arc;

use crate::batch::{BatchLayout, ModuleBatch};
use crate::connector::{Connector, Context, Plan, Repairs};
use crate::episode::{Chunk, Columns, EpisodeBatch, EpisodeId, EpisodeLayout};
use crate::error::Result;
use crate::job::{Compat, ModuleSettings};
use crate::tensor::Tensor;

/// Episodes `e0`, `e1`, ... of the given lengths. Step `t` of episode `e` has observation `[10 e + t]` (float32),
/// action `10 e + t` (int32) and reward `10 e + t` (float64); the last observation is `[10 e + L]`.
pub fn episodes(lengths: &[usize]) -> EpisodeBatch {
    let numbers: Vec<i32> = lengths
        .iter()
        .zip(0..)
        .flat_map(|(&len, e)| (0..i32::try_from(len).unwrap()).map(move |t| 10 * e + t))
        .collect();
    let floats: Vec<f32> = numbers.iter().map(|&n| f32::from(i16::try_from(n).unwrap())).collect();
    let doubles: Vec<f64> = numbers.iter().map(|&n| f64::from(n)).collect();
    let last: Vec<f32> =
        lengths.iter().enumerate().map(|(e, &len)| f32::from(u16::try_from(10 * e + len).unwrap())).collect();
    let mut offsets = vec![0];
    offsets.extend(lengths.iter().scan(0, |sum, len| {
        *sum += len;
        Some(*sum)
    }));
    let chunk = |e| Chunk {
        id: EpisodeId::Str(format!("e{e}").into()),
        agent_id: None,
        ordinal: u32::try_from(e).unwrap(),
        bare_rank: u32::try_from(e).unwrap(),
        t_started: 0,
        terminated: false,
        truncated: false,
        has_last_obs: true,
    };
    let columns = |all: Vec<(&str, Tensor)>| all.into_iter().map(|(n, t)| (Arc::from(n), t)).collect::<Columns>();
    EpisodeBatch {
        chunks: (0..lengths.len()).map(chunk).collect(),
        offsets,
        steps: columns(vec![
            ("obs", Tensor::from_values([1], &floats)),
            ("actions", Tensor::from_values([], &numbers)),
            ("rewards", Tensor::from_values([], &doubles)),
        ]),
        last_obs: columns(vec![("obs", Tensor::from_values([1], &last))]),
        history_offsets: vec![0; lengths.len() + 1],
        history: Columns::default(),
    }
}

/// The settings of a stateful module without a declared state.
pub fn stateful(max_seq_len: usize) -> ModuleSettings {
    ModuleSettings { stateful: true, max_seq_len: Some(max_seq_len), ..ModuleSettings::default() }
}

/// Applies a piece to a given batch in a given context.
pub fn apply_with(
    piece: &dyn Connector,
    cx: Context<'_>,
    episodes: &mut EpisodeBatch,
    mut batch: ModuleBatch,
    repairs: &mut Repairs,
) -> Result<ModuleBatch> {
    piece.apply(cx, episodes, &mut batch, repairs)?;
    Ok(batch)
}

/// Applies a piece for a stateless module to an empty batch.
pub fn apply(piece: &dyn Connector, episodes: &mut EpisodeBatch) -> Result<ModuleBatch> {
    let mut batch = ModuleBatch::default();
    apply_to(piece, episodes, &mut batch)?;
    Ok(batch)
}

/// Applies a piece for a stateless module.
pub fn apply_to(piece: &dyn Connector, episodes: &mut EpisodeBatch, batch: &mut ModuleBatch) -> Result<()> {
    let module = ModuleSettings::default();
    piece.apply(Context::new(&module, Compat::Correct), episodes, batch, &mut Repairs::default())
}

/// Applies a piece for a stateful module.
pub fn apply_stateful(
    piece: &dyn Connector,
    max_seq_len: usize,
    episodes: &mut EpisodeBatch,
    batch: &mut ModuleBatch,
) -> Result<()> {
    let module = stateful(max_seq_len);
    piece.apply(Context::new(&module, Compat::Correct), episodes, batch, &mut Repairs::default())
}

/// Chunks `range` of `episodes` as a unit of their own.
pub fn part(episodes: &EpisodeBatch, range: std::ops::Range<usize>) -> EpisodeBatch {
    let rebased =
        |offsets: &[usize]| offsets[range.start..=range.end].iter().map(|o| o - offsets[range.start]).collect();
    let cut = |columns: &Columns, start: usize, end: usize| {
        columns.iter().map(|(n, t)| (Arc::clone(n), t.slice(start, end - start))).collect::<Columns>()
    };
    let own = |offsets: &[usize]| (offsets[range.start], offsets[range.end]);
    let (steps, history) = (own(&episodes.offsets), own(&episodes.history_offsets));
    EpisodeBatch {
        chunks: episodes.chunks[range.clone()].to_vec(),
        offsets: rebased(&episodes.offsets),
        steps: cut(&episodes.steps, steps.0, steps.1),
        last_obs: cut(&episodes.last_obs, range.start, range.end),
        history_offsets: rebased(&episodes.history_offsets),
        history: cut(&episodes.history, history.0, history.1),
    }
}

/// What a survey finds out in units that end after these chunks.
pub fn surveyed(piece: &dyn Connector, episodes: &EpisodeBatch, ends: &[usize]) -> Result<Box<dyn Any + Send + Sync>> {
    let module = ModuleSettings::default();
    let cx = Context::new(&module, Compat::Correct);
    let mut survey = piece.survey(cx).expect("a piece with a survey");
    let mut start = 0;
    let mut findings = Vec::new();
    for (unit, &end) in ends.iter().enumerate() {
        let own = part(episodes, start..end);
        findings.push(survey.observe(Context { unit, ..cx }, &own, &ModuleBatch::default())?);
        start = end;
    }
    findings.into_iter().try_for_each(|f| survey.merge(f))?;
    survey.finish()
}

/// Applies a piece with the result of its survey.
pub fn apply_surveyed(
    piece: &dyn Connector,
    survey: &(dyn Any + Send + Sync),
    episodes: &mut EpisodeBatch,
) -> Result<ModuleBatch> {
    let module = ModuleSettings::default();
    let cx = Context { survey: Some(survey), ..Context::new(&module, Compat::Correct) };
    apply_with(piece, cx, episodes, ModuleBatch::default(), &mut Repairs::default())
}

/// Names and types of episodes.
pub fn layout_of(episodes: &EpisodeBatch) -> EpisodeLayout {
    let steps = episodes.steps.iter().map(|(n, t)| (Arc::clone(n), t.ty().clone())).collect();
    EpisodeLayout { steps, last_obs: episodes.last_obs.iter().next().is_some() }
}

/// What a piece promises for a stateless module.
pub fn promised(piece: &dyn Connector, episodes: &EpisodeBatch) -> Result<(EpisodeLayout, BatchLayout)> {
    let module = ModuleSettings::default();
    let (mut layout, mut batch) = (layout_of(episodes), BatchLayout::default());
    piece.layout(Context::new(&module, Compat::Correct), &mut Plan { episodes: &mut layout, batch: &mut batch })?;
    Ok((layout, batch))
}

/// Holds what came out against what was promised.
pub fn assert_promise(promise: &(EpisodeLayout, BatchLayout), episodes: &EpisodeBatch, batch: &ModuleBatch) {
    assert_eq!(promise.0.steps, layout_of(episodes).steps);
    for columns in [&episodes.last_obs, &episodes.history] {
        for (name, column) in columns.iter() {
            assert_eq!(promise.0.get(name), Some(column.ty()), "{name}");
        }
    }
    assert!(episodes.steps.iter().all(|(_, t)| t.rows() == episodes.steps_len()));
    let got: Vec<_> = batch.iter().map(|(n, t)| (n.to_owned(), t.ty().clone())).collect();
    let want: Vec<_> = promise.1.columns.iter().map(|c| (c.name.clone(), c.ty.clone())).collect();
    assert_eq!(want, got);
    assert!(batch.iter().all(|(_, t)| t.rows() == episodes.steps_len()));
}
