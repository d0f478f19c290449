//! One recorded episode chunk: msgpack of RLlib's `SingleAgentEpisode.get_state()`.
//!
//! Written by `ray/rllib/offline/offline_env_runner.py`, read back by `SingleAgentEpisode.from_state`
//! (`ray/rllib/env/single_agent_episode.py`); arrays are those of [`super::msgpack`].
//!
//! ```text
//! { id_, agent_id, module_id, multi_agent_episode_id, t_started, t, is_terminated, is_truncated, ...
//!   observations: {data, lookback, finalized, space}        lb + L + 1 rows
//!   actions, rewards: the same                              lb + L rows
//!   extra_model_outputs: None | {name: buffer | None}       lb + L rows each
//!   infos: the same                                         lb + L + 1 dicts, read where they are wanted ([`infos`])
//!   spaces, custom_data, _start_time, ... }                 skipped, as every key that a later version may add
//!
//!   rows of `data`    [ look-back lb | steps L             | 1 ]      L = t - t_started
//!                     └── history ──┘└─────── steps ───────┘└ last ┘  (observations only)
//! ```
//!
//! `data` is a list of one value per row; or, in an episode that was `to_numpy()`ed before it was packed, one array
//! per leaf with a leading time dimension (`finalized`). Look-back is each buffer's own: an extra output that began
//! after the chunk was cut has none.
//!
//! A value may nest: its leaves are named by their path (`obs/pair/0`), dicts in sorted key order as `dm_tree`
//! sorts them, lists (and tuples, which msgpack turns into lists) by index. Only where each row as a whole is a list
//! of equal parts, the parts are stacked: `actions` of shape `[2]`, not `actions/0` and `actions/1`.
//!
//! Two passes: [`scan`] finds what leaves there are over all items; [`ItemDecoder`] then appends rows to columns
//! whose types hold every item. Neither allocates per row, and both remember the bytes before the data of the last
//! array at a leaf, so that the next row costs one comparison and one copy.
//!
//! # Dtypes
//! What RLlib's `batch` (`ray/rllib/utils/spaces/space_utils.py`) and `np.concatenate` do was run and is followed
//! where it loses nothing:
//!
//! * the first row is an array: all rows of this leaf in this item take its dtype (see [`super::elements::convert`]);
//! * the first row is a scalar: NumPy's promotion over all rows of the item (int and float make float64, bool and
//!   int make int64, float32 and a Python float make float64);
//! * over items: the smallest dtype that holds them all, float64 where an integer has none with a float. Booleans
//!   do not mix with numbers.
//!
//! RLlib broadcasts a later row of a smaller shape over the first; here rows of another shape are an error.

mod decode;
mod hash;
pub(super) mod infos;
mod scan;
mod tree;
mod walk;

#[cfg(test)]
mod tests;

use std::collections::HashSet;

pub use decode::ItemDecoder;
pub use hash::content_hash;
pub use scan::{LeafTypes, scan};

use super::elements;
use super::msgpack::{Cursor, Leaf, Shaped};
use crate::column;
use crate::error::{Error, Result};
use crate::tensor::{DType, Tensor, TensorType};
use walk::{Buffer, Pass, numbers, read_buffer};

/// What an item says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemHeader {
    /// Episode id.
    pub id: String,
    /// Agent, in multi-agent recordings.
    pub agent_id: Option<String>,
    /// Module that acted, in multi-agent recordings.
    pub module_id: Option<String>,
    /// Id of the multi-agent episode that this one is a part of.
    pub multi_agent_episode_id: Option<String>,
    /// Time step of the first step, counted from the episode's true start.
    pub t_started: i64,
    /// Steps, look-back not counted.
    pub len: usize,
    /// Look-back rows of the observations. Other buffers may have fewer ([`RowCounts::history`]).
    pub lookback: usize,
    /// Ended by the rules of the environment.
    pub terminated: bool,
    /// Cut short by the environment.
    pub truncated: bool,
}

/// The type of one leaf over all items seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafType {
    /// Holds the rows of every item.
    pub ty: TensorType,
    /// How many items with at least one step have this leaf. Less than [`LeafTypes::items`]: it is missing in some.
    pub in_items: u64,
}

/// Rows that one item added to a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowCounts {
    /// Look-back rows.
    pub history: u32,
    /// Steps: the item's length, or 0 if it lacks the leaf.
    pub steps: u32,
    /// 1 for observations, 0 for anything else.
    pub last: u32,
}

/// The rows of one leaf over all items, in the order of the items.
#[derive(Debug)]
pub struct LeafRows {
    /// Look-back rows.
    pub history: Tensor,
    /// The steps.
    pub steps: Tensor,
    /// Observations after the last step.
    pub last: Tensor,
    /// One entry per item.
    pub items: Vec<RowCounts>,
}

fn integer(cursor: &mut Cursor<'_>, what: &str) -> Result<i64> {
    let leaf = cursor.leaf()?;
    let mut word = [0; 8];
    let found = match numbers(&leaf, &mut word) {
        Ok(v) if v.shape.is_empty() && !v.dtype.is_float() && v.dtype != DType::Bool => {
            let mut out = Vec::with_capacity(8);
            elements::convert(v.data, v.dtype, v.big_endian, DType::Int64, &mut out)
                .ok()
                .and_then(|()| out.try_into().ok())
                .map(i64::from_ne_bytes)
        }
        _ => None,
    };
    found.ok_or_else(|| match leaf {
        Leaf::UInt(n) => Error::data(format!("`{what}` is {n}, expected an int of 64 bits")),
        _ => Error::data(format!("`{what}` is {}, expected an int", leaf.describe())),
    })
}

fn count(cursor: &mut Cursor<'_>, what: &str) -> Result<usize> {
    let n = integer(cursor, what)?;
    usize::try_from(n).map_err(|_| Error::data(format!("`{what}` is {n}, expected none below 0")))
}

fn flag(cursor: &mut Cursor<'_>, what: &str) -> Result<bool> {
    match cursor.leaf()? {
        Leaf::Bool(v) => Ok(v),
        Leaf::Scalar { dtype: DType::Bool, data, .. } => Ok(data != [0]),
        Leaf::Array { dtype: DType::Bool, data, shape, .. } if shape.is_empty() => Ok(data != [0]),
        Leaf::Int(v @ (0 | 1)) => Ok(v == 1),
        other => Err(Error::data(format!("`{what}` is {}, expected a bool", other.describe()))),
    }
}

/// An id: text, or a number written out as RLlib's keys do.
fn id(cursor: &mut Cursor<'_>, what: &str) -> Result<Option<String>> {
    match cursor.clone().leaf()? {
        Leaf::Nil => {
            cursor.skip()?;
            Ok(None)
        }
        Leaf::Str(text) => {
            cursor.skip()?;
            Ok(Some(text.to_owned()))
        }
        _ => integer(cursor, what).map(|n| Some(n.to_string())),
    }
}

fn is_nothing(cursor: &Cursor<'_>) -> Result<bool> {
    let mut ahead = cursor.clone();
    Ok(match ahead.peek()? {
        Shaped::Leaf => ahead.leaf()? == Leaf::Nil,
        Shaped::Dict => ahead.map_header()? == 0,
        Shaped::List => false,
    })
}

/// All of an item: the header, and its buffers through `pass`.
fn read_item<P: Pass>(pass: &mut P, item: &[u8]) -> Result<(ItemHeader, Vec<Buffer>)> {
    let mut cursor = Cursor::new(item);
    let entries = cursor.map_header().map_err(|e| Error::data(format!("an episode: {}", e.what())))?;
    let (mut id_, mut agent_id, mut module_id, mut multi_id) = (None, None, None, None);
    let (mut t_started, mut t, mut terminated, mut truncated) = (None, None, None, None);
    // The required three, then the extra outputs. Names of the latter are for messages.
    let mut required: [Option<Buffer>; 3] = [None, None, None];
    let mut extras: Vec<(&str, Buffer)> = Vec::new();
    let mut extra_names: HashSet<&str> = HashSet::new();
    for _ in 0..entries {
        let key = cursor.str()?;
        let slot = match key {
            "observations" => 0,
            "actions" => 1,
            "rewards" => 2,
            _ => 3,
        };
        match key {
            "observations" | "actions" | "rewards" => {
                if required[slot].is_some() {
                    return Err(Error::data(format!("`{key}` stands twice in the episode")));
                }
                let name = [column::OBS, column::ACTIONS, column::REWARDS][slot];
                required[slot] = Some(read_buffer(pass, &mut cursor, name).map_err(|e| e.column(name))?);
            }
            "extra_model_outputs" => {
                if is_nothing(&cursor)? {
                    cursor.skip()?;
                    continue;
                }
                for _ in 0..cursor.map_header()? {
                    let name = cursor.str()?;
                    if [column::OBS, column::ACTIONS, column::REWARDS].contains(&name) {
                        return Err(Error::data(format!("an extra model output has the name of the column `{name}`")));
                    }
                    if extra_names.contains(name) {
                        return Err(Error::data(format!("the extra model output `{name}` stands twice")));
                    }
                    if is_nothing(&cursor)? {
                        cursor.skip()?;
                    } else {
                        extra_names.insert(name);
                        extras.push((name, read_buffer(pass, &mut cursor, name).map_err(|e| e.column(name))?));
                    }
                }
            }
            "id_" => id_ = id(&mut cursor, key)?,
            "agent_id" => agent_id = id(&mut cursor, key)?,
            "module_id" => module_id = id(&mut cursor, key)?,
            "multi_agent_episode_id" => multi_id = id(&mut cursor, key)?,
            "t_started" => t_started = Some(integer(&mut cursor, key)?),
            "t" => t = Some(integer(&mut cursor, key)?),
            "is_terminated" => terminated = Some(flag(&mut cursor, key)?),
            "is_truncated" => truncated = Some(flag(&mut cursor, key)?),
            _ => cursor.skip()?,
        }
    }
    if !cursor.rest().is_empty() {
        return Err(Error::data(format!("{} bytes follow the end of the episode", cursor.rest().len())));
    }
    let missing = |what: &str| Error::data(format!("an episode without `{what}`"));
    let id = id_.ok_or_else(|| missing("id_"))?;
    let named = |e: Error| e.episode(id.clone());
    let t_started = t_started.ok_or_else(|| named(missing("t_started")))?;
    let t = t.ok_or_else(|| named(missing("t")))?;
    let len = t.checked_sub(t_started).and_then(|n| usize::try_from(n).ok());
    let len = len.ok_or_else(|| named(Error::data(format!("an episode from t_started = {t_started} to t = {t}"))))?;
    let [observations, actions, rewards] = required;
    let lookback = observations.as_ref().map_or(0, |b| b.lookback);
    let mut buffers = Vec::with_capacity(3 + extras.len());
    for (what, name, buffer, and_last) in [
        ("observations", column::OBS, observations, 1),
        ("actions", column::ACTIONS, actions, 0),
        ("rewards", column::REWARDS, rewards, 0),
    ]
    .into_iter()
    .map(|(what, name, buffer, and_last)| Ok((what, name, buffer.ok_or_else(|| named(missing(what)))?, and_last)))
    .chain(extras.into_iter().map(|(name, buffer)| Ok((name, name, buffer, 0))))
    .collect::<Result<Vec<_>>>()?
    {
        let buffer = checked(buffer, what, len, and_last, t_started).map_err(|e| named(e.column(name)))?;
        buffers.push(buffer);
    }
    let header = ItemHeader {
        agent_id,
        module_id,
        multi_agent_episode_id: multi_id,
        t_started,
        len,
        lookback,
        terminated: terminated.ok_or_else(|| named(missing("is_terminated")))?,
        truncated: truncated.ok_or_else(|| named(missing("is_truncated")))?,
        id,
    };
    Ok((header, buffers))
}

/// The buffer, if it was read and has as many rows as it should.
fn checked(mut buffer: Buffer, what: &str, len: usize, and_last: usize, t_started: i64) -> Result<Buffer> {
    let lookback = buffer.lookback;
    if let Some((e, row)) = buffer.failed.take() {
        let Some(row) = row else { return Err(e) };
        let signed = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let step = signed(row).saturating_sub(signed(lookback));
        let mut told = Error::data(format!("step {step} of the item: {}", e.what()));
        if let Some(column) = &e.place().column {
            told = told.column(column.clone());
        }
        return Err(told.t(t_started.saturating_add(step)));
    }
    let expected = lookback.checked_add(len).and_then(|n| n.checked_add(and_last));
    let Some(expected) = expected else {
        return Err(Error::data(format!("{what} claims a look-back of {lookback} items")));
    };
    match buffer.rows {
        Some(rows) if rows != expected => {
            let mut sum = format!("{lookback} look-back + {len} steps");
            if and_last > 0 {
                sum.push_str(" + 1");
            }
            Err(Error::data(format!("{what} has {rows} items, expected {expected} = {sum}")))
        }
        _ => Ok(buffer),
    }
}
