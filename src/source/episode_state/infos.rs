//! Infos: dicts that an environment may fill with anything, and differently in each step.
//!
//! ```text
//! infos.data   {"lives": 3}   {"lives": 3, "hit": 0.5}   {"lives": 2, "who": "red"}        lb + L + 1 dicts
//! leaves       infos/lives int64, in every step;  infos/hit float64, missing in some;  infos/who: left out
//! ```
//!
//! A list of another length is no error: the dicts belong to the steps from the look-back on, as far as there are any.

use std::collections::{BTreeMap, HashSet};

use super::scan::{bit, union};
use super::walk::numbers;
use super::{count, is_nothing};
use crate::column::{INFOS, masks_of, outer_names};
use crate::error::{Error, Result};
use crate::source::elements;
use crate::source::msgpack::{Cursor, Leaf, Shaped};
use crate::tensor::{DType, TensorBuilder, TensorType};

/// Dicts inside dicts that are looked into.
const MAX_DEPTH: usize = 16;
/// Keys of a whole recording. A key of its own in every episode would otherwise be a column an episode.
const MAX_KEYS: usize = 1 << 10;

/// What stands under a key.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::source) enum Value {
    /// Numbers in native byte order.
    Numbers(TensorType, Vec<u8>),
    /// Anything else, in words.
    Other(String),
}

/// The infos of one step by name, `infos/lives`.
pub(in crate::source) type InfoRow = BTreeMap<String, Value>;

/// The infos of an item.
#[derive(Debug, Default)]
pub(in crate::source) struct Infos {
    /// Rows before the first step.
    lookback: usize,
    rows: Vec<InfoRow>,
}

impl Infos {
    /// The infos of an item that [`scan`](super::scan()) has found whole.
    ///
    /// # Errors
    /// If the buffer is none.
    pub(in crate::source) fn read(item: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(item);
        for _ in 0..cursor.map_header()? {
            if cursor.str()? == INFOS {
                return Self::buffer(&mut cursor)
                    .map_err(|e| Error::data(format!("infos: {}", e.what())).column(INFOS));
            }
            cursor.skip()?;
        }
        Ok(Self::default())
    }

    fn buffer(cursor: &mut Cursor<'_>) -> Result<Self> {
        let mut out = Self::default();
        if is_nothing(cursor)? {
            return Ok(out);
        }
        for _ in 0..cursor.map_header()? {
            match cursor.str()? {
                "lookback" => out.lookback = count(cursor, "lookback")?,
                "data" if cursor.peek()? == Shaped::List => {
                    for _ in 0..cursor.array_header()? {
                        let mut row = InfoRow::new();
                        value(cursor, INFOS, 0, &mut row)?;
                        out.rows.push(row);
                    }
                }
                _ => cursor.skip()?,
            }
        }
        Ok(out)
    }

    /// The infos beside the observation of step `step` of the item; below 0 in its look-back.
    pub(in crate::source) fn at(&self, step: isize) -> Option<&InfoRow> {
        self.lookback.checked_add_signed(step).and_then(|i| self.rows.get(i))
    }
}

/// Puts what stands at the cursor into `row`, a dict key by key.
fn value(cursor: &mut Cursor<'_>, name: &str, depth: usize, row: &mut InfoRow) -> Result<()> {
    let before = cursor.clone();
    match cursor.peek()? {
        Shaped::Dict if depth < MAX_DEPTH => {
            for _ in 0..cursor.map_header()? {
                let key = match cursor.leaf()? {
                    Leaf::Str(key) => key.to_owned(),
                    Leaf::Int(key) => key.to_string(),
                    other => {
                        row.insert(name.to_owned(), Value::Other(format!("a key that is {}", other.describe())));
                        cursor.skip()?;
                        continue;
                    }
                };
                value(cursor, &format!("{name}/{key}"), depth + 1, row)?;
            }
            return Ok(());
        }
        Shaped::Dict => {
            row.insert(name.to_owned(), Value::Other(format!("more than {MAX_DEPTH} dicts inside one another")));
        }
        Shaped::List => {
            let mut parts = before.clone();
            let stacked = stack(&mut parts, 0)
                .map_or_else(|e| Value::Other(e.what().to_owned()), |(ty, data)| Value::Numbers(ty, data));
            row.insert(name.to_owned(), stacked);
        }
        Shaped::Leaf => match before.clone().leaf()? {
            Leaf::Nil => {}
            leaf => {
                let found = native(&leaf)
                    .map_or_else(|e| Value::Other(e.what().to_owned()), |(ty, data)| Value::Numbers(ty, data));
                row.insert(name.to_owned(), found);
            }
        },
    }
    *cursor = before;
    cursor.skip()
}

/// A leaf as numbers in native byte order.
fn native(leaf: &Leaf<'_>) -> Result<(TensorType, Vec<u8>)> {
    let mut word = [0; 8];
    let found = numbers(leaf, &mut word)?;
    let mut data = found.data.to_vec();
    elements::make_native(&mut data, found.dtype, found.big_endian);
    Ok((TensorType::new(found.dtype, found.shape.to_vec()), data))
}

/// A list of equal parts as one array, as `np.array` would have it.
fn stack(cursor: &mut Cursor<'_>, depth: usize) -> Result<(TensorType, Vec<u8>)> {
    if cursor.peek()? != Shaped::List {
        return native(&cursor.leaf()?);
    }
    let parts = cursor.array_header()?;
    if parts == 0 || depth >= MAX_DEPTH {
        return Err(Error::data("found an empty list, expected numbers"));
    }
    let parts: Vec<(TensorType, Vec<u8>)> = (0..parts).map(|_| stack(cursor, depth + 1)).collect::<Result<_>>()?;
    let shape = &parts[0].0.shape;
    let dtype = parts.iter().map(|(ty, _)| ty.dtype).reduce(DType::numpy_result_type).unwrap_or(DType::Bool);
    let mut data = Vec::new();
    for (ty, part) in &parts {
        if ty.shape != *shape {
            return Err(Error::data("found a list of unequal parts, expected numbers of one shape"));
        }
        elements::convert(part, ty.dtype, cfg!(target_endian = "big"), dtype, &mut data)?;
    }
    Ok((TensorType::new(dtype, shape.clone()).stacked(parts.len()), data))
}

/// What is known of a key.
#[derive(Debug, Clone)]
struct Key {
    /// Those of all values, up to where it is odd.
    dtypes: u16,
    /// That of the first value.
    shape: Vec<usize>,
    /// The first item (a global row) that has it.
    first: u64,
    /// Steps that have it.
    steps: u64,
    /// The first item (a global row) in which it cannot be a column, and why.
    odd: Option<(u64, String)>,
}

/// The keys of all infos seen so far.
#[derive(Debug, Clone, Default)]
pub(in crate::source) struct InfoTypes {
    keys: BTreeMap<String, Key>,
    steps: u64,
}

/// A key that becomes a column.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::source) struct InfoColumn {
    pub(in crate::source) name: String,
    pub(in crate::source) ty: TensorType,
    /// The name of the mask beside it, if some steps lack it.
    pub(in crate::source) mask: Option<String>,
}

/// A key that becomes none: the first row where that shows, and why.
pub(in crate::source) type LeftOut<'a> = (&'a str, Option<u64>, String);

impl InfoTypes {
    /// Whether there cannot be too many keys with those of an item, however many steps it has.
    pub(in crate::source) fn has_room_for(&self, infos: &Infos) -> bool {
        self.too_many(infos.rows.iter()).is_none()
    }

    /// The first key of some steps with which there are too many.
    fn too_many<'a>(&self, rows: impl Iterator<Item = &'a InfoRow> + Clone) -> Option<&'a str> {
        if self.keys.len() + rows.clone().map(InfoRow::len).sum::<usize>() <= MAX_KEYS {
            return None;
        }
        let mut new: HashSet<&str> = HashSet::new();
        rows.flat_map(InfoRow::keys)
            .map(String::as_str)
            .find(|name| !self.keys.contains_key(*name) && new.insert(name) && self.keys.len() + new.len() > MAX_KEYS)
    }

    /// Takes in the infos of the item in global row `row`, which has `len` steps. After an error all is as it was.
    ///
    /// # Errors
    /// If there are more keys than anything could train on.
    pub(in crate::source) fn add(&mut self, row: u64, len: usize, infos: &Infos) -> Result<()> {
        let at = |step: usize| isize::try_from(step).ok().and_then(|at| infos.at(at));
        if let Some(name) = self.too_many((0..=len).filter_map(at)) {
            return Err(too_many_keys(name));
        }
        self.steps += len as u64;
        for step in 0..=len {
            let Some(all) = at(step) else { continue };
            for (name, value) in all {
                let (dtypes, shape, odd) = match value {
                    Value::Numbers(ty, _) => (bit(ty.dtype), ty.shape.clone(), None),
                    Value::Other(what) => (0, Vec::new(), Some((row, what.clone()))),
                };
                self.take(name, Key { dtypes, shape, first: row, steps: u64::from(step < len), odd })?;
            }
        }
        Ok(())
    }

    /// Takes in what another one has seen of later items.
    ///
    /// # Errors
    /// See [`Self::add`].
    pub(in crate::source) fn merge(&mut self, other: &Self) -> Result<()> {
        self.steps += other.steps;
        other.keys.iter().try_for_each(|(name, key)| self.take(name, key.clone()))
    }

    /// Takes in what is known of a key in later items.
    fn take(&mut self, name: &str, key: Key) -> Result<()> {
        let Some(mine) = self.keys.get_mut(name) else {
            if self.keys.len() == MAX_KEYS {
                return Err(too_many_keys(name));
            }
            self.keys.insert(name.to_owned(), key);
            return Ok(());
        };
        mine.steps += key.steps;
        if mine.odd.is_some() {
            return Ok(());
        }
        // What does not go with the values before shows in the first of these; what is odd among them comes later, unless
        // that one is no number itself.
        let clash = if key.dtypes == 0 {
            None
        } else if mine.shape != key.shape {
            Some(format!("found shape {:?}, items before have {:?}", key.shape, mine.shape))
        } else if union(mine.dtypes | key.dtypes).is_none() {
            Some("found booleans in some steps and numbers in others".to_owned())
        } else {
            None
        };
        mine.odd = clash.map(|why| (key.first, why)).or(key.odd);
        if mine.odd.is_none() {
            mine.dtypes |= key.dtypes;
        }
        Ok(())
    }

    /// The keys that become columns, and the others, each with the first row and why.
    pub(in crate::source) fn columns(&self) -> (Vec<InfoColumn>, Vec<LeftOut<'_>>) {
        let (mut columns, mut left_out) = (Vec::new(), Vec::new());
        let names: Vec<&str> = self.keys.keys().map(String::as_str).collect();
        let outer = outer_names(names.iter().copied());
        for ((name, key), mask) in self.keys.iter().zip(masks_of(&names)) {
            let inner = outer.contains(name.as_str());
            match (&key.odd, union(key.dtypes)) {
                (Some((row, why)), _) => left_out.push((name.as_str(), Some(*row), why.clone())),
                (None, _) if inner || !name.contains('/') => {
                    left_out.push((name.as_str(), None, "found numbers in some steps and a dict in others".to_owned()));
                }
                (None, Some(dtype)) if key.steps > 0 => {
                    columns.push(InfoColumn {
                        name: name.clone(),
                        ty: TensorType::new(dtype, key.shape.clone()),
                        mask: (key.steps < self.steps).then_some(mask),
                    });
                }
                _ => left_out.push((name.as_str(), None, "it was told after last steps only".to_owned())),
            }
        }
        (columns, left_out)
    }
}

fn too_many_keys(name: &str) -> Error {
    Error::data(format!("found more than {MAX_KEYS} different keys in the infos"))
        .column(name)
        .hint("leave AddInfosFromEpisodesToTrainBatch out, or record infos under the same keys")
}

/// Appends an info to a column of type `ty`, or zeros where there is none.
///
/// # Errors
/// If the type does not hold it, which [`InfoTypes`] has made sure it does.
pub(in crate::source) fn append(
    row: Option<&InfoRow>,
    name: &str,
    ty: &TensorType,
    out: &mut TensorBuilder,
) -> Result<()> {
    match row.and_then(|row| row.get(name)) {
        Some(Value::Numbers(found, data)) => {
            let mut own = Vec::with_capacity(ty.row_bytes());
            elements::convert(data, found.dtype, cfg!(target_endian = "big"), ty.dtype, &mut own)?;
            out.extend_bytes(&own, 1);
        }
        _ => out.extend_zeros(1),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers_of(dtype: DType, shape: &[usize]) -> Key {
        Key { dtypes: bit(dtype), shape: shape.to_vec(), first: 7, steps: 1, odd: None }
    }

    #[test]
    fn too_many_keys_change_nothing() {
        let row = |from: usize, to: usize| -> InfoRow {
            (from..to).map(|i| (format!("infos/{i:04}"), Value::Other(String::new()))).collect()
        };
        let infos = |rows| Infos { lookback: 0, rows };
        let mut types = InfoTypes::default();
        types.add(0, 1, &infos(vec![row(0, MAX_KEYS - 1), row(0, 1)])).unwrap();
        let before = types.clone();
        let more = infos(vec![row(5, 6), row(MAX_KEYS - 1, MAX_KEYS), row(MAX_KEYS, MAX_KEYS + 1)]);
        assert!(!types.has_room_for(&more));
        let error = types.add(1, 2, &more).unwrap_err();
        assert_eq!(error.place().column.as_deref(), Some("infos/1024"));
        assert_eq!(format!("{types:?}"), format!("{before:?}"));
        // The last row is behind the step after the last.
        types.add(1, 0, &more).unwrap();
        types.add(2, 1, &more).unwrap();
        assert_eq!(types.keys.len(), MAX_KEYS);
    }

    /// Row groups are looked at apart. What is told of the first item that differs must not depend on that.
    #[test]
    fn the_item_where_a_key_changes_is_told() {
        let number = |dtype: DType, shape: &[usize]| {
            let ty = TensorType::new(dtype, shape.to_vec());
            Value::Numbers(ty.clone(), vec![0; ty.row_bytes()])
        };
        let text = || Value::Other("found text, expected numbers".to_owned());
        let scalar = |dtype| number(dtype, &[]);
        let cases: [(&[Value], u64, &str); 6] = [
            (&[scalar(DType::Int8), scalar(DType::Int8), scalar(DType::Bool)], 2, "booleans"),
            (&[scalar(DType::Bool), scalar(DType::Int8), text()], 1, "booleans"),
            (&[number(DType::Int8, &[2]), number(DType::Int8, &[2]), number(DType::Int8, &[3])], 2, "shape [3]"),
            (&[number(DType::Int8, &[2]), number(DType::Int8, &[3]), text()], 1, "shape [3]"),
            (&[number(DType::Int8, &[2]), number(DType::Int8, &[2]), text()], 2, "text"),
            (&[scalar(DType::Int8), text(), scalar(DType::Bool)], 1, "text"),
        ];
        for (values, row, told) in cases {
            for cut in 0..=values.len() {
                let mut parts = [InfoTypes::default(), InfoTypes::default()];
                for (i, value) in values.iter().enumerate() {
                    let rows = vec![InfoRow::from([("infos/key".to_owned(), value.clone())])];
                    parts[usize::from(i >= cut)].add(i as u64, 1, &Infos { lookback: 0, rows }).unwrap();
                }
                let [mut all, rest] = parts;
                all.merge(&rest).unwrap();
                let (columns, left_out) = all.columns();
                assert!(columns.is_empty());
                let (name, found, why) = &left_out[0];
                assert_eq!((*name, *found), ("infos/key", Some(row)), "cut at {cut}: {why}");
                assert!(why.contains(told), "cut at {cut}: {why}");
            }
        }
    }

    #[test]
    fn what_is_no_number_of_one_shape_is_left_out() {
        let mut types = InfoTypes { steps: 2, ..InfoTypes::default() };
        let mut take = |name: &str, key: Key| types.take(name, key).unwrap();
        take("infos/both", numbers_of(DType::Int64, &[]));
        take("infos/both", numbers_of(DType::Float64, &[]));
        take("infos/once", numbers_of(DType::Float32, &[2]));
        take("infos/_once", numbers_of(DType::Float32, &[2]));
        take("infos/ragged", numbers_of(DType::Float32, &[2]));
        take("infos/ragged", numbers_of(DType::Float32, &[3]));
        take("infos/mixed", numbers_of(DType::Bool, &[]));
        take("infos/mixed", numbers_of(DType::Int8, &[]));
        take("infos/nest", numbers_of(DType::Bool, &[]));
        take("infos/nest/inner", numbers_of(DType::Bool, &[]));
        take("infos/late", Key { steps: 0, ..numbers_of(DType::Bool, &[]) });
        let (columns, left_out) = types.columns();
        let columns: Vec<_> = columns.iter().map(|c| (c.name.as_str(), c.ty.to_string(), c.mask.as_deref())).collect();
        assert_eq!(
            columns,
            [
                ("infos/_once", "float32[2]".to_owned(), Some("infos/__once")),
                ("infos/both", "float64".to_owned(), None),
                ("infos/nest/inner", "bool".to_owned(), Some("infos/nest/_inner")),
                ("infos/once", "float32[2]".to_owned(), Some("infos/___once")),
            ]
        );
        let names: Vec<_> = left_out.iter().map(|(n, row, _)| (*n, *row)).collect();
        assert_eq!(
            names,
            [("infos/late", None), ("infos/mixed", Some(7)), ("infos/nest", None), ("infos/ragged", Some(7))]
        );
    }
}
