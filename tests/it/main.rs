//! All tests that look at gristmill from outside, in one binary.

mod architecture;
mod cli;
mod job;
