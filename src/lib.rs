//! gristmill

pub mod column;
pub mod error;
pub mod job;
pub mod manifest;
pub mod sink;
pub mod source;
pub mod stats;
pub mod tensor;
