//! Small episodes for the unit tests of connectors.

use std::sync::Arc;

use crate::batch::ModuleBatch;
use crate::connector::{Connector, Context, Repairs};
use crate::episode::{Chunk, Columns, EpisodeBatch, EpisodeId};
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
