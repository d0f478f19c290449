//! What tasks have made of a stream, as one.

use super::super::output::record;
use super::wire::Shards;
use crate::error::{Error, Result};
use crate::manifest::{ModuleRecord, ShardRecord};
use crate::sink::{JoinedDigest, ShardSchema};
use crate::stats::ColumnStats;

/// A module's record, from what tasks have made.
pub(super) fn joined(
    folder: String,
    schema: &ShardSchema,
    mut stats: Vec<Option<ColumnStats>>,
    made: Vec<Shards>,
) -> Result<ModuleRecord> {
    let mut digests: Vec<JoinedDigest> = schema.columns.iter().map(|(name, ty)| JoinedDigest::new(name, ty)).collect();
    let (mut shards, mut rows): (Vec<ShardRecord>, u64) = (Vec::new(), 0);
    for made in made {
        if made.first != shards.len() {
            let what = format!("found shard {} of {folder}, expected {}", made.first, shards.len());
            return Err(Error::usage(what).hint("the result of every task of `place` must be kept once"));
        }
        for own in &made.stats {
            for (all, own) in stats.iter_mut().zip(own) {
                if let (Some(all), Some(own)) = (all, own) {
                    all.merge(own);
                }
            }
        }
        digests.iter_mut().zip(&made.digests).try_for_each(|(all, own)| all.push(own))?;
        for shard in made.files {
            rows += shard.rows;
            shards.push(ShardRecord { file: shard.file, rows: shard.rows, bytes: shard.bytes, digest: shard.digest });
        }
    }
    let digests = digests.into_iter().map(|digest| digest.finish(rows)).collect();
    Ok(record(folder, schema, shards, digests, stats))
}
