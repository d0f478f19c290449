//! Whether episodes that are larger than memory may be cut in this job, and what is said if not.

use super::passes::Work;
use crate::pipeline::{ModulePlan, NeedsWhole, Slicing};
use crate::source::index::Entry;

impl Work<'_> {
    /// Where each module's episodes may be cut.
    pub fn slicing(&self) -> Vec<Result<Slicing, NeedsWhole>> {
        let of = |(i, module): (usize, &ModulePlan)| {
            let layout = self.index.layouts.get(i).unwrap_or(&self.index.layout);
            self.pipeline.slicing(self.pieces, &module.settings, layout)
        };
        // An item of msgpack is decoded as a whole.
        let modules = if self.source.rows_are_steps() { self.modules } else { &[] };
        modules.iter().enumerate().map(of).collect()
    }

    /// Why an entry that is too large stays whole, as the end of a sentence.
    pub fn why_whole(&self, slicing: &[Result<Slicing, NeedsWhole>], entry: &Entry) -> String {
        let name = |piece: usize| self.pipeline.pieces().nth(piece).map_or("a piece", |p| p.name());
        match slicing.get(entry.module as usize) {
            None => "an episode recorded as an item must be in memory as a whole".to_owned(),
            Some(Err(NeedsWhole { piece, behind: None })) => {
                format!("{} needs an episode in memory as a whole", name(*piece))
            }
            Some(Err(NeedsWhole { piece, behind: Some(before) })) => {
                let (piece, before) = (name(*piece), name(*before));
                format!("{piece} behind {before} needs an episode in memory as a whole")
            }
            Some(Ok(Slicing { from_start: true, .. })) if entry.t_started != 0 => {
                "with compat = \"rllib-2.60\" a chunk that continues an episode must be in memory as a whole".to_owned()
            }
            Some(Ok(_)) => "these must be in memory at once".to_owned(),
        }
    }
}
