//! One conversion by many processes, on as many machines as can see its files: the same bytes as one process writes.
//!
//! ```text
//! Coordinator::plan   index, choose, survey; cut into parts ──▶ head, part 0 .. part n
//!        │
//!        ▼            order: what ordered pieces know behind part 0 ──▶ .. behind part 1 ──▶ ..      a chain
//! tasks   Worker      rows:  part 0   part 1   part 2 ..          pipeline; a file of rows each       any order
//!        │
//!        ▼
//! Coordinator::place  which rows make which shards, now that all are counted ──▶ shards 0..4, 4..8 ..
//!        │
//!        ▼
//! tasks   Worker      shards: encode, write, digest                                                   any order
//!        │
//!        ▼
//! Coordinator::finish digests and statistics joined in order, the manifest last
//! ```
//!
//! A part is consecutive episodes; a task is a pure function of it, so whoever starts tasks (see the Python package's
//! `gristmill.ray`) may start one anew, or twice. Files get their names by rename, when they are whole. What must see the
//! whole data set is done once, by the coordinator: the index and the passes of surveys. What must see it in order goes from
//! part to part as a state: pieces up to the last ordered one run once more for it, unless there is none.

mod coordinator;
mod cuts;
mod joined;
mod place;
mod rows;
mod wire;
mod worker;

pub use coordinator::{Coordinator, Tasks};
pub use worker::Worker;
