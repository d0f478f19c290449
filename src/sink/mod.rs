//! Where train batches go.

pub mod ipc;
pub mod parquet;
