//! Where episodes come from: files, their layouts, and the way back from rows to episodes.

pub mod episode_state;
pub mod file;
pub mod ingest;
pub mod msgpack;
pub mod ndarray;
pub mod packed;
pub mod pickle;
pub mod schema;
