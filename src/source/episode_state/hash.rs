//! Telling a chunk that was recorded twice.

use super::{flag, is_nothing};
use crate::error::Result;
use crate::source::msgpack::Cursor;

/// A hash of all that training could tell apart: ids, time, flags, observations, actions, rewards, extra outputs,
/// look-back. Not of clocks, infos, spaces and custom data: a chunk recorded twice has one hash.
///
/// BLAKE3, its first 16 bytes. Data are hashed as they are packed, so an episode packed as lists and again as
/// arrays has two.
pub fn content_hash(item: &[u8]) -> Result<u128> {
    let mut fields: Vec<(String, Vec<&[u8]>)> = Vec::new();
    let mut flags = Vec::new();
    let mut cursor = Cursor::new(item);
    for _ in 0..cursor.map_header()? {
        let key = cursor.str()?;
        match key {
            "id_" | "agent_id" | "module_id" | "multi_agent_episode_id" | "t_started" | "t" => {
                fields.push((format!("field {key}"), vec![cursor.skipped()?]));
            }
            "is_terminated" | "is_truncated" => flags.push((key, flag(&mut cursor, key)?)),
            "observations" | "actions" | "rewards" => {
                fields.push((format!("buffer {key}"), hashed_parts(&mut cursor)?));
            }
            "extra_model_outputs" if !is_nothing(&cursor)? => {
                for _ in 0..cursor.map_header()? {
                    let name = cursor.str()?;
                    if is_nothing(&cursor)? {
                        cursor.skip()?;
                    } else {
                        fields.push((format!("extra {name}"), hashed_parts(&mut cursor)?));
                    }
                }
            }
            _ => cursor.skip()?,
        }
    }
    fields.sort();
    flags.sort_unstable();
    let mut hasher = blake3::Hasher::new();
    let mut add = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    for (key, value) in flags {
        add(key.as_bytes());
        add(&[u8::from(value)]);
    }
    for (key, parts) in &fields {
        add(key.as_bytes());
        for part in parts {
            add(part);
        }
    }
    let mut out = [0; 16];
    out.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    Ok(u128::from_le_bytes(out))
}

/// `data` and `lookback` of a buffer.
fn hashed_parts<'a>(cursor: &mut Cursor<'a>) -> Result<Vec<&'a [u8]>> {
    let (mut data, mut lookback): (&[u8], &[u8]) = (&[], &[]);
    for _ in 0..cursor.map_header()? {
        match cursor.str()? {
            "data" => data = cursor.skipped()?,
            "lookback" => lookback = cursor.skipped()?,
            _ => cursor.skip()?,
        }
    }
    Ok(vec![data, lookback])
}
