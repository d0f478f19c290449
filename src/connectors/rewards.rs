//! What pieces share that change rewards or observations inside the episodes.

use std::sync::Arc;

use arrow::buffer::Buffer;
use half::f16;

use crate::batch::{ModuleBatch, Rows, Stage};
use crate::column::{LOSS_MASK, NEXT_OBS, REWARDS};
use crate::connector::{Context, Plan};
use crate::episode::NAME_LAST_OBS;
use crate::episode::{Columns, EpisodeBatch};
use crate::error::{Error, Result};
use crate::tensor::{DType, Tensor, TensorType};

/// Refuses to change `root` in episodes from which the batch has taken it already, or to add items to a padded batch.
pub fn require_unread(plan: &Plan<'_>, root: &str) -> Result<()> {
    if plan.batch.has(root) {
        return Err(Error::usage(format!("`{root}` is in the batch already"))
            .column(root)
            .hint(format!("put this piece before the one that adds `{root}`")));
    }
    require_items(plan)
}

/// What a piece needs that makes transitions, with their next observations, in place of the pieces that add those.
pub struct Transitions<'a> {
    /// The piece.
    pub piece: &'a str,
    /// Why it is for stateless modules.
    pub stateless: &'a str,
    /// The columns that it makes, and that nobody may have made before.
    pub makes: &'a [&'a str],
    /// The one among them that no recording may have.
    pub own: &'a str,
    /// In front of what it must stand.
    pub before: &'a str,
}

impl Transitions<'_> {
    /// Refuses modules, batches and recordings that such a piece cannot work on.
    pub fn require(&self, cx: Context<'_>, plan: &Plan<'_>) -> Result<()> {
        if cx.module.stateful {
            return Err(Error::usage(format!("is for stateless modules, and this one is stateful{}", self.stateless))
                .hint(format!("set rl_module.stateful = false, or leave {} out", self.piece)));
        }
        require_items(plan)?;
        if let Some(name) = self.makes.iter().find(|name| plan.batch.has(name)) {
            return Err(Error::usage(format!("`{name}` is in the batch already"))
                .column(*name)
                .hint(format!("put {} before the pieces that add {}", self.piece, self.before)));
        }
        if plan.episodes.has(self.own) {
            return Err(Error::usage("the recording has a column of this name").column(self.own));
        }
        require_last_obs(plan)
    }
}

/// Refuses recordings without the observation after an episode's last step.
pub fn require_last_obs(plan: &Plan<'_>) -> Result<()> {
    if plan.episodes.last_obs {
        return Ok(());
    }
    Err(Error::usage("needs the observation after each episode's last step, and the input has none")
        .column(NEXT_OBS)
        .hint(NAME_LAST_OBS))
}

/// Refuses a batch that is padded or joined.
pub fn require_items(plan: &Plan<'_>) -> Result<()> {
    if plan.batch.stage > Stage::Items || plan.batch.columns.iter().any(|c| c.rows == Rows::Sequences) {
        return Err(Error::usage("the batch is padded or joined already")
            .hint("put this piece before AddTimeDimToBatchAndZeroPad and BatchIndividualItems"));
    }
    Ok(())
}

/// Which steps are real, where `AddOneTsToEpisodesAndTruncate` has added some that are not.
pub fn real_steps(batch: &ModuleBatch) -> Option<&[u8]> {
    batch.get(LOSS_MASK).map(Tensor::bytes)
}

/// The dtype of values that were scaled: floats keep theirs, integers and booleans become float64.
pub const fn scaled_dtype(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::Float64 }
}

/// Numbers as a column, rounded to its dtype once.
pub fn from_f64(ty: &TensorType, rows: usize, values: Vec<f64>) -> Result<Tensor> {
    if ty.dtype == DType::Float16 {
        // Not Arrow's cast: where the processor converts, it rounds twice.
        let halves: Vec<f16> = values.into_iter().map(f16::from_f64_const).collect();
        return Ok(Tensor::new(ty.clone(), rows, Buffer::from_slice_ref(&halves)));
    }
    Tensor::new(ty.with_dtype(DType::Float64), rows, Buffer::from_vec(values)).cast(ty.dtype)
}

/// All leaves of `rewards`, and that there is one.
pub fn lay_out_rewards(plan: &mut Plan<'_>) -> Result<()> {
    require_unread(plan, REWARDS)?;
    if !plan.episodes.has(REWARDS) {
        return Err(Error::usage("needs rewards, and the input has none").column(REWARDS));
    }
    for (name, ty) in &mut plan.episodes.steps {
        if crate::column::is_under(name, REWARDS) {
            *ty = ty.with_dtype(scaled_dtype(ty.dtype));
        }
    }
    Ok(())
}

/// Replaces every reward of real steps, look-back included. Computed in float64, rounded once to the rewards' dtype.
pub fn map_rewards(episodes: &mut EpisodeBatch, batch: &ModuleBatch, map: impl Fn(f64) -> f64) -> Result<()> {
    let changed = |columns: &Columns, real: Option<&[u8]>| {
        let of = |(name, column): (&Arc<str>, &Tensor)| {
            let mut values = column.cast(DType::Float64)?.values::<f64>().to_vec();
            let width = column.ty().row_elements().max(1);
            for (row, own) in values.chunks_mut(width).enumerate() {
                if real.is_none_or(|r| r[row] != 0) {
                    for value in own {
                        *value = map(*value);
                    }
                }
            }
            let ty = column.ty().with_dtype(scaled_dtype(column.ty().dtype));
            Ok((Arc::clone(name), from_f64(&ty, column.rows(), values)?))
        };
        columns.under(REWARDS).map(of).collect::<Result<Vec<_>>>()
    };
    for (name, column) in changed(&episodes.steps, real_steps(batch))? {
        episodes.steps.set(name, column);
    }
    for (name, column) in changed(&episodes.history, None)? {
        episodes.history.set(name, column);
    }
    Ok(())
}
