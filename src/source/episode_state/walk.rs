//! Reading a buffer: its rows one after the other, and each row down to its leaves.
//!
//! Both passes read alike and differ in what they do at a leaf: the trait [`Pass`].

use super::tree::{Key, NodeKind, ROOT, Tree};
use super::{count, flag};
use crate::error::{Error, Result};
use crate::source::msgpack::{Cursor, Leaf, Shape, Shaped};
use crate::tensor::{DType, TensorType};

/// Nests inside nests.
const MAX_DEPTH: usize = 32;

/// Finds the data of a row by comparing the bytes before it with those of the row before.
///
/// Everything that [`Cursor::leaf`] would look at stands in `head` (which ends with the length of the data), so a
/// value that begins with it is an array of the same type.
#[derive(Debug, Clone)]
pub(super) struct Template {
    pub(super) head: Vec<u8>,
    pub(super) bytes: usize,
    pub(super) dtype: DType,
    pub(super) big_endian: bool,
    pub(super) shape: Shape,
}

impl Template {
    pub(super) const fn new() -> Self {
        Self { head: Vec::new(), bytes: 0, dtype: DType::Bool, big_endian: false, shape: Shape::SCALAR }
    }

    /// The data of the array or scalar at the cursor, if it is like the one before.
    #[inline]
    pub(super) fn data<'a>(&self, cursor: &mut Cursor<'a>) -> Option<&'a [u8]> {
        if self.head.is_empty() {
            return None;
        }
        let rest = cursor.rest().strip_prefix(&self.head[..])?;
        let (data, rest) = rest.split_at_checked(self.bytes)?;
        *cursor = Cursor::new(rest);
        Some(data)
    }

    /// The leaf at the cursor, remembered if it is an array or NumPy scalar whose data stands last.
    pub(super) fn leaf<'a>(&mut self, cursor: &mut Cursor<'a>) -> Result<Leaf<'a>> {
        let before = cursor.rest();
        let leaf = cursor.leaf()?;
        let (dtype, shape, data, big_endian) = match leaf {
            Leaf::Array { dtype, shape, data, big_endian } => (dtype, shape, data, big_endian),
            Leaf::Scalar { dtype, data, big_endian } => (dtype, Shape::SCALAR, data, big_endian),
            _ => return Ok(leaf),
        };
        let used = before.len() - cursor.rest().len();
        let (head, tail) = before[..used].split_at(used - data.len());
        self.head.clear();
        if std::ptr::eq(tail.as_ptr(), data.as_ptr()) {
            self.head.extend_from_slice(head);
        }
        self.bytes = data.len();
        (self.dtype, self.shape, self.big_endian) = (dtype, shape, big_endian);
        Ok(leaf)
    }
}

/// The Python float or small int at the cursor, if it is of this dtype, in native byte order.
///
/// Rewards are Python floats and `weights_seq_no` is a small int, in every recording and every row.
#[inline]
pub(super) fn plain_scalar(cursor: &mut Cursor<'_>, dtype: DType) -> Option<[u8; 8]> {
    let rest = cursor.rest();
    let (word, used) = match (rest.first()?, dtype) {
        (0xcb, DType::Float64) => (f64::from_be_bytes(*rest[1..].first_chunk()?).to_ne_bytes(), 9),
        (&small @ 0..=0x7f, DType::Int64) => (i64::from(small).to_ne_bytes(), 1),
        _ => return None,
    };
    *cursor = Cursor::new(&rest[used..]);
    Some(word)
}

/// A leaf as numbers: little-endian unless `big_endian`.
pub(super) struct Numbers<'a> {
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) data: &'a [u8],
    pub(super) big_endian: bool,
    pub(super) is_array: bool,
}

/// The numbers of a leaf; `word` is where those of a Python scalar are put.
pub(super) fn numbers<'a>(leaf: &Leaf<'a>, word: &'a mut [u8; 8]) -> Result<Numbers<'a>> {
    let (dtype, bits) = match *leaf {
        Leaf::Array { dtype, shape, data, big_endian } => {
            return Ok(Numbers { dtype, shape, data, big_endian, is_array: true });
        }
        Leaf::Scalar { dtype, data, big_endian } => {
            return Ok(Numbers { dtype, shape: Shape::SCALAR, data, big_endian, is_array: false });
        }
        Leaf::Float(v) => (DType::Float64, v.to_le_bytes()),
        Leaf::Int(v) => (DType::Int64, v.to_le_bytes()),
        Leaf::UInt(v) => (DType::UInt64, v.to_le_bytes()),
        Leaf::Bool(v) => (DType::Bool, u64::from(v).to_le_bytes()),
        Leaf::Str(_) | Leaf::Bin(_) | Leaf::Nil => {
            return Err(Error::data(format!("found {}, expected numbers or booleans", leaf.describe())));
        }
    };
    *word = bits;
    Ok(Numbers { dtype, shape: Shape::SCALAR, data: &word[..dtype.size()], big_endian: false, is_array: false })
}

pub(super) fn ragged(found: &Numbers<'_>, expected: &[usize]) -> Error {
    let found = TensorType::new(found.dtype, found.shape.to_vec());
    Error::data(format!("found a row of {found}, the rows before have shape {expected:?}"))
}

/// Rows of one item at one leaf, so far.
#[derive(Debug, Clone)]
pub(super) struct ItemRows {
    pub(super) rows: usize,
    /// The dtype of the first row if that was an array: it rules.
    pub(super) ruling: Option<DType>,
}

/// Where the buffer that is being read stands.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Progress {
    pub(super) row: usize,
    /// Leaves met in this row, and in the first.
    pub(super) met: usize,
    pub(super) expected: usize,
    /// Rows of the arrays of a finalized buffer.
    pub(super) whole: Option<usize>,
}

impl Progress {
    /// Counts a row of a leaf that has `rows` rows: every leaf once in every row.
    #[inline]
    pub(super) fn meet(&mut self, rows: usize) -> Result<()> {
        self.met += 1;
        if rows == self.row {
            return Ok(());
        }
        Err(Error::data(if rows > self.row {
            "stands twice in a row"
        } else {
            "was not there in the first row of the item"
        }))
    }
}

/// One of the two passes.
pub(super) trait Pass {
    fn tree(&mut self) -> &mut Tree;
    fn progress(&mut self) -> &mut Progress;
    /// A new leaf or nest. `None`: nobody asked for it.
    fn grow(&mut self, parent: usize, key: Key<'_>, shaped: Shaped) -> Result<Option<usize>>;
    /// Rows that the leaf has in this item.
    fn rows_of(&self, leaf: usize) -> usize;
    /// One row.
    fn row(&mut self, leaf: usize, cursor: &mut Cursor<'_>) -> Result<()>;
    /// All rows of a finalized buffer.
    fn whole(&mut self, leaf: usize, array: &Numbers<'_>, row_shape: &[usize], rows: usize) -> Result<()>;
    /// Nodes and leaves there are.
    fn size(&self) -> (usize, usize);
    /// Forgets this item's rows of a column, and what grew since there were `size` nodes and leaves.
    fn undo(&mut self, column: usize, size: (usize, usize));
}

/// One value: a row, or the arrays of all rows if `whole`.
pub(super) fn walk<P: Pass>(
    pass: &mut P,
    cursor: &mut Cursor<'_>,
    node: usize,
    depth: usize,
    whole: bool,
) -> Result<()> {
    if let NodeKind::Leaf(leaf) = pass.tree().nodes[node].kind {
        let read = if whole { walk_whole(pass, cursor, leaf) } else { pass.row(leaf, cursor) };
        return read.map_err(|e| e.column(pass.tree().name(node)));
    }
    if depth > MAX_DEPTH {
        return Err(Error::data(format!("nested deeper than {MAX_DEPTH}")).column(pass.tree().name(node)));
    }
    match cursor.peek()? {
        Shaped::List => {
            for i in 0..cursor.array_header()? {
                step(pass, cursor, node, i, Key::Index(i), depth, whole)?;
            }
        }
        Shaped::Dict => {
            for i in 0..cursor.map_header()? {
                let key = cursor.str().map_err(|e| {
                    Error::data(format!("a key of a dict: {}", e.what())).column(pass.tree().name(node))
                })?;
                step(pass, cursor, node, i, Key::Text(key), depth, whole)?;
            }
        }
        Shaped::Leaf => {
            let found = cursor.leaf()?.describe();
            let what = format!("found {found} where earlier rows have a dict or a list");
            return Err(Error::data(what).column(pass.tree().name(node)));
        }
    }
    Ok(())
}

#[inline]
pub(super) fn step<P: Pass>(
    pass: &mut P,
    cursor: &mut Cursor<'_>,
    parent: usize,
    hint: usize,
    key: Key<'_>,
    depth: usize,
    whole: bool,
) -> Result<()> {
    let node = match pass.tree().kid(parent, hint, key) {
        Some(node) => node,
        None => match pass.grow(parent, key, cursor.peek()?)? {
            Some(node) => node,
            None => return cursor.skip(),
        },
    };
    walk(pass, cursor, node, depth + 1, whole)
}

pub(super) fn walk_whole<P: Pass>(pass: &mut P, cursor: &mut Cursor<'_>, leaf: usize) -> Result<()> {
    let mut word = [0; 8];
    let value = cursor.leaf()?;
    let array = numbers(&value, &mut word)?;
    let shape = array.shape;
    let [rows, row_shape @ ..] = &*shape else {
        return Err(Error::data(format!("a finalized buffer holds {}, expected an array of rows", value.describe())));
    };
    let rows_before = pass.rows_of(leaf);
    let progress = pass.progress();
    progress.meet(rows_before)?;
    if let Some(others) = progress.whole.replace(*rows).filter(|others| others != rows) {
        return Err(Error::data(format!("has {rows} rows, another leaf of the buffer {others}")));
    }
    pass.whole(leaf, &array, row_shape, *rows)
}

/// A buffer that has been read.
pub(super) struct Buffer {
    /// The column as a node of the tree, if it has rows that somebody asked for.
    pub(super) column: Option<usize>,
    /// Rows, if they were counted.
    pub(super) rows: Option<usize>,
    pub(super) lookback: usize,
    /// What went wrong in which row. Told when time steps are known.
    pub(super) failed: Option<(Error, Option<usize>)>,
}

/// All rows of a list, one after the other.
pub(super) fn read_rows<P: Pass>(
    pass: &mut P,
    cursor: &mut Cursor<'_>,
    name: &str,
) -> Result<(Option<usize>, usize), (Error, Option<usize>)> {
    let n = cursor.array_header().map_err(|e| (e, None))?;
    if n == 0 {
        return Ok((None, 0));
    }
    let Some(column) = column(pass, cursor, name).map_err(|e| (e, Some(0)))? else {
        for _ in 0..n {
            cursor.skip().map_err(|e| (e, None))?;
        }
        return Ok((None, n));
    };
    for row in 0..n {
        let progress = pass.progress();
        progress.row = row;
        progress.met = 0;
        walk(pass, cursor, column, 0, false).map_err(|e| (e, Some(row)))?;
        let progress = pass.progress();
        if row == 0 {
            progress.expected = progress.met;
        } else if progress.met != progress.expected {
            return Err((missing_in_row(pass, column, row), Some(row)));
        }
    }
    Ok((Some(column), n))
}

pub(super) fn missing_in_row<P: Pass>(pass: &mut P, column: usize, row: usize) -> Error {
    let mut leaves = Vec::new();
    pass.tree().leaves(column, &mut leaves);
    let absent = leaves.into_iter().find(|&leaf| pass.rows_of(leaf) == row);
    let node = absent.and_then(|leaf| pass.tree().nodes.iter().position(|n| n.kind == NodeKind::Leaf(leaf)));
    Error::data("is missing in this row, rows before have it").column(pass.tree().name(node.unwrap_or(column)))
}

/// The arrays of a finalized buffer.
pub(super) fn read_whole<P: Pass>(
    pass: &mut P,
    cursor: &mut Cursor<'_>,
    name: &str,
) -> Result<(Option<usize>, Option<usize>)> {
    let Some(column) = column(pass, cursor, name)? else {
        cursor.skip()?;
        return Ok((None, None));
    };
    *pass.progress() = Progress::default();
    walk(pass, cursor, column, 0, true)?;
    Ok((Some(column), pass.progress().whole))
}

pub(super) fn column<P: Pass>(pass: &mut P, cursor: &Cursor<'_>, name: &str) -> Result<Option<usize>> {
    match pass.tree().kid(ROOT, usize::MAX, Key::Text(name)) {
        Some(node) => Ok(Some(node)),
        None => pass.grow(ROOT, Key::Text(name), cursor.peek()?),
    }
}

pub(super) fn read_buffer<P: Pass>(pass: &mut P, cursor: &mut Cursor<'_>, name: &str) -> Result<Buffer> {
    let mut buffer = Buffer { column: None, rows: Some(0), lookback: 0, failed: None };
    let mut data: Option<Cursor<'_>> = None;
    let (mut finalized, mut as_rows) = (false, false);
    let size = pass.size();
    let whole = |pass: &mut P, buffer: &mut Buffer, cursor: &mut Cursor<'_>| match read_whole(pass, cursor, name) {
        Ok((column, rows)) => (buffer.column, buffer.rows) = (column, rows),
        Err(e) => buffer.failed = Some((e, None)),
    };
    for _ in 0..cursor.map_header()? {
        match cursor.str()? {
            "data" if data.is_none() => {
                let start = cursor.clone();
                // A list may be rows, or the tuple of arrays of a finalized buffer; the flag usually comes after it.
                as_rows = cursor.peek()? == Shaped::List && !finalized;
                if as_rows {
                    match read_rows(pass, cursor, name) {
                        Ok((column, rows)) => (buffer.column, buffer.rows) = (column, Some(rows)),
                        Err(failed) => buffer.failed = Some(failed),
                    }
                } else {
                    whole(pass, &mut buffer, cursor);
                }
                if buffer.failed.is_some() {
                    *cursor = start.clone();
                    cursor.skip()?;
                }
                data = Some(start);
            }
            "lookback" => buffer.lookback = count(cursor, "lookback")?,
            "finalized" => finalized = flag(cursor, "finalized")?,
            _ => cursor.skip()?,
        }
    }
    let mut data = data.ok_or_else(|| Error::data("a buffer without `data`"))?;
    if finalized && as_rows && (buffer.failed.is_some() || buffer.rows != Some(0)) {
        if let Some(column) = pass.tree().kid(ROOT, usize::MAX, Key::Text(name)) {
            pass.undo(column, size);
        }
        buffer.failed = None;
        whole(pass, &mut buffer, &mut data);
    }
    Ok(buffer)
}
