//! All tests that look at gristmill from outside, in one binary.

mod agents;
mod architecture;
mod bad_episodes;
mod bad_files;
mod bad_items;
mod bad_job;
mod bad_rows;
mod cli;
mod compile;
mod connector_docs;
mod custom;
mod determinism;
mod diff;
mod faults;
mod golden;
mod indexed;
mod infos;
mod inspect;
mod job;
mod laws;
mod layouts;
mod look_back;
mod memory;
mod modules;
mod output;
mod parts;
mod pipeline;
mod python_classes;
mod references;
mod resume;
mod split;
#[cfg(feature = "sql")]
mod sql;
mod support;
mod verify;
mod written;
