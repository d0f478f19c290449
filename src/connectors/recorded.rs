//! Recorded step columns that go into the batch as they are.

use crate::batch::ModuleBatch;
use crate::connector::Plan;
use crate::episode::EpisodeBatch;
use crate::error::Result;

/// Promises a column for each recorded leaf of `root`, unless the batch has that already.
///
/// # Errors
/// If items can no longer be added.
pub(super) fn promise(plan: &mut Plan<'_>, root: &str) -> Result<()> {
    if plan.batch.has(root) {
        return Ok(());
    }
    let leaves: Vec<_> = plan.episodes.under(root).map(|(n, t)| (n.clone(), t.clone())).collect();
    leaves.into_iter().try_for_each(|(name, ty)| plan.add_steps(&name, ty))
}

/// Adds what [`promise`] has promised.
pub(super) fn add(episodes: &EpisodeBatch, batch: &mut ModuleBatch, root: &str) {
    if !batch.has(root) {
        for (name, values) in episodes.steps.under(root) {
            batch.push(&**name, values.clone());
        }
    }
}
