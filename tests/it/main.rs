//! All tests that look at gristmill from outside, in one binary.

mod cli;
mod job;
#[cfg(feature = "sql")]
mod sql;
