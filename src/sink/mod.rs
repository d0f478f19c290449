//! Where train batches go: shards on disk, and the directory that holds them.
//!
//! ```text
//! RowGroupData ──Encoder──▶ EncodedRowGroup ──ShardWriter──▶ default_policy/part-00000.parquet ──▶ ShardInfo
//!   columns      (any thread)     bytes       (in order)                                    rows, bytes, digest
//! ```
//!
//! Encoding is a pure function of the rows, the schema and the compression, and does nearly all the work; appending
//! copies bytes and hashes them. So the bytes of a shard do not depend on who encoded what when.

mod beside;
mod between;
mod digest;
mod digest_part;
mod directory;
mod durable;
mod file;
mod found;
mod ipc;
mod journal;
mod names;
mod near;
mod pages;
mod parquet;
mod schema;
mod shard;
mod texts;

pub use between::Between;
pub use digest::{ContentDigest, combine, file_digest};
pub use digest_part::{DigestPart, JoinedDigest};
pub use directory::{Existing, OutputDir};
pub use durable::Durable;
pub use file::Unsynced;
pub use journal::{Finished, Intent, IntentFile, Journal};
pub use names::{MANIFEST, ModuleDir, QUARANTINE, RUN, UNFINISHED, check_folder, folder_name, shard_name};
pub use near::{Near, near};
pub use schema::{ColumnData, ColumnType, RowGroupData, ShardSchema, row_group_rows};
pub use shard::{EncodedRowGroup, Encoder, ShardInfo, ShardWriter};
pub use texts::LongTexts;
