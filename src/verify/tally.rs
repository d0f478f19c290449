//! Checks and what they found, in bounded space.

use serde::{Serialize, Serializer};

use crate::error::Error;

/// Failures kept of each check; all of them are counted.
const KEPT: usize = 5;

/// What is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckName {
    /// The manifest agrees with itself: paths, names, sums, digests of digests.
    Manifest,
    /// Every shard is there as a regular file, and nothing else is.
    Files,
    /// Sizes and digests of the files.
    Bytes,
    /// Columns, dtypes and shapes of the files.
    Schema,
    /// Rows of the files.
    Rows,
    /// Every value can be read, none is null.
    Values,
    /// Digests of the columns, computed from the rows.
    Content,
    /// Statistics of the columns, computed from the rows.
    Statistics,
    /// `loss_mask` and `seq_lens` say the same.
    Mask,
    /// Padded places are zero.
    Padding,
    /// `terminateds` and `truncateds` are true at the last step of an episode only.
    Flags,
    /// `t` goes up in an episode.
    Time,
    /// `state_in` has the module's shape, and no time dimension.
    State,
    /// Windows lie inside the tables that they are over.
    Windows,
    /// What was read was written, dropped, filtered or left out.
    Counts,
}

const ALL: [CheckName; 15] = [
    CheckName::Manifest,
    CheckName::Files,
    CheckName::Bytes,
    CheckName::Schema,
    CheckName::Rows,
    CheckName::Values,
    CheckName::Content,
    CheckName::Statistics,
    CheckName::Mask,
    CheckName::Padding,
    CheckName::Flags,
    CheckName::Time,
    CheckName::State,
    CheckName::Windows,
    CheckName::Counts,
];

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It found nothing wrong.
    Passed,
    /// It found something wrong.
    Failed,
    /// It could not be made, at least not everywhere; what was looked at is right.
    Skipped,
}

/// One check.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// Which.
    pub name: CheckName,
    /// How it ended.
    pub status: Status,
    /// How often it failed.
    pub failures: u64,
    /// The first failures.
    #[serde(serialize_with = "errors")]
    pub first: Vec<std::sync::Arc<Error>>,
    /// Why it was skipped, where it was.
    pub skipped: Vec<String>,
}

fn errors<S: Serializer>(errors: &[std::sync::Arc<Error>], out: S) -> Result<S::Ok, S::Error> {
    out.collect_seq(errors.iter().map(|e| e.to_json()))
}

/// Failures as they come.
#[derive(Debug, Default)]
pub(super) struct Tally {
    failed: [(u64, Vec<Error>); ALL.len()],
    skipped: [Vec<String>; ALL.len()],
}

impl Tally {
    /// A check failed.
    pub fn fail(&mut self, check: CheckName, error: Error) {
        let (count, kept) = &mut self.failed[check as usize];
        *count += 1;
        if kept.len() < KEPT {
            kept.push(error);
        }
    }

    /// A check cannot be made, at least not everywhere.
    pub fn skip(&mut self, check: CheckName, why: &str) {
        let reasons = &mut self.skipped[check as usize];
        if reasons.len() < KEPT && reasons.iter().all(|r| r != why) {
            reasons.push(why.to_owned());
        }
    }

    /// No check that has not failed can be made.
    pub fn skip_rest(&mut self, why: &str) {
        for check in ALL {
            if self.failed[check as usize].0 == 0 {
                self.skip(check, why);
            }
        }
    }

    /// Adds what was found further on.
    pub fn merge(&mut self, next: Self) {
        for ((count, kept), (more, errors)) in self.failed.iter_mut().zip(next.failed) {
            *count += more;
            let room = KEPT - kept.len();
            kept.extend(errors.into_iter().take(room));
        }
        for (check, reasons) in ALL.iter().zip(&next.skipped) {
            for reason in reasons {
                self.skip(*check, reason);
            }
        }
    }

    /// The checks.
    pub fn finish(self) -> Vec<Check> {
        let mut out = Vec::with_capacity(ALL.len());
        for ((name, (failures, first)), skipped) in ALL.into_iter().zip(self.failed).zip(self.skipped) {
            let status = match (failures, skipped.is_empty()) {
                (0, true) => Status::Passed,
                (0, false) => Status::Skipped,
                _ => Status::Failed,
            };
            let first = first.into_iter().map(std::sync::Arc::new).collect();
            out.push(Check { name, status, failures, first, skipped });
        }
        out
    }
}
