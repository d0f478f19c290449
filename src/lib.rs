//! gristmill

pub mod batch;
pub mod column;
pub mod connector;
pub mod connectors;
pub mod episode;
pub mod error;
pub mod job;
pub mod manifest;
pub mod numpy;
pub mod pipeline;
pub mod plan;
pub mod progress;
pub mod run;
pub mod sink;
pub mod source;
pub mod sql;
pub mod stats;
pub mod tensor;
