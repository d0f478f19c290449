//! Where an episode may be cut, for a piece.

/// Where an episode (or recorded chunk) that is larger than memory may be cut into slices.
///
/// ```text
/// an episode of 7 steps, period = 3, look-back 2        ( ) history    [ ] the observation after the last step
///
///   slice 0             0 1 2 [3]         t_started 0   no flags
///   slice 1       (1 2) 3 4 5 [6]         t_started 3   no flags
///   slice 2       (4 5) 6     [7]         t_started 6   the episode's flags, and what came after it
/// ```
///
/// A piece that allows it promises: slices that come one after the other, each as a chunk of its own and with
/// [`look_back`](super::Connector::look_back) rows of those before it, give, put side by side, what the episode gives;
/// byte for byte, repairs counted alike, and so do its survey and its rehearsal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slices {
    /// Every slice but the last one has a multiple of so many steps; at least 1.
    pub period: usize,
    /// Whether only chunks that start their episode may be cut.
    pub from_start: bool,
    /// Roots of the step columns that the piece changes in the steps alone, and not in the history. A later piece that
    /// looks back on one of them would see other values than in the whole episode.
    pub steps_only: &'static [&'static str],
}

impl Slices {
    /// Cuts anywhere.
    pub const ANYWHERE: Self = Self { period: 1, from_start: false, steps_only: &[] };

    /// Cuts behind every `period` steps.
    #[must_use]
    pub const fn every(period: usize) -> Self {
        Self { period, ..Self::ANYWHERE }
    }
}
