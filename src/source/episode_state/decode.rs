//! Pass 2: the rows, appended to columns.

use std::collections::HashMap;

use arrow::buffer::MutableBuffer;

use super::tree::{Key, NodeKind, ROOT, Tree};
use super::walk::{ItemRows, Numbers, Pass, Progress, Template, numbers, plain_scalar, ragged};
use super::{ItemHeader, LeafRows, RowCounts, read_item};
use crate::error::{Error, Result};
use crate::source::elements;
use crate::source::msgpack::{Cursor, Shaped};
use crate::tensor::{DType, Tensor, TensorType};

#[derive(Debug)]
struct DecodeLeaf {
    name: String,
    column: usize,
    ty: TensorType,
    row_bytes: usize,
    template: Template,
    /// Whether the data of rows like the template are rows of the column, byte for byte.
    direct: bool,
    /// Whether Python scalars of the column's dtype are.
    scalars: bool,
    item: ItemRows,
    history: MutableBuffer,
    steps: MutableBuffer,
    last: MutableBuffer,
    /// Bytes of `steps` before this item.
    mark: usize,
    items: Vec<RowCounts>,
}

/// Pass 2: appends the rows of items to columns.
#[derive(Debug)]
pub struct ItemDecoder {
    tree: Tree,
    leaves: Vec<DecodeLeaf>,
    progress: Progress,
    scratch: [Vec<u8>; 2],
}

impl ItemDecoder {
    /// A decoder for these leaves, usually all of a [`LeafTypes`](super::LeafTypes). Leaves that are not named are skipped.
    ///
    /// Fails if one name is that of a leaf and of a nest.
    pub fn new(leaves: Vec<(String, TensorType)>) -> Result<Self> {
        let mut tree = Tree::new();
        let mut out = Vec::with_capacity(leaves.len());
        for (name, ty) in leaves {
            let mut node = ROOT;
            let mut parts = name.split('/').peekable();
            while let Some(part) = parts.next() {
                let wanted = if parts.peek().is_some() { NodeKind::Dict } else { NodeKind::Leaf(out.len()) };
                node = match tree.kid(node, usize::MAX, Key::Text(part)) {
                    None => tree.add(node, Key::Text(part), wanted),
                    Some(kid) if wanted == NodeKind::Dict && tree.nodes[kid].kind == wanted => kid,
                    Some(_) => return Err(Error::internal(format!("the leaf `{name}` meets another of its name"))),
                };
            }
            let row_bytes = elements::array_bytes(&ty.shape, ty.dtype)
                .ok_or_else(|| Error::data(format!("rows of {ty} are too large")).column(name.clone()))?;
            out.push(DecodeLeaf {
                column: tree.column_of(node),
                name,
                row_bytes,
                ty,
                template: Template::new(),
                direct: false,
                scalars: false,
                item: ItemRows { rows: 0, ruling: None },
                history: MutableBuffer::new(0),
                steps: MutableBuffer::new(0),
                last: MutableBuffer::new(0),
                mark: 0,
                items: Vec::new(),
            });
        }
        Ok(Self { tree, leaves: out, progress: Progress::default(), scratch: [Vec::new(), Vec::new()] })
    }

    /// Appends the rows of one item. After an error the decoder is as it was before.
    pub fn decode(&mut self, item: &[u8]) -> Result<ItemHeader> {
        for leaf in &mut self.leaves {
            leaf.item.rows = 0;
            leaf.mark = leaf.steps.len();
        }
        let read = read_item(self, item).and_then(|(header, buffers)| {
            let too_long = || Error::data("an episode of more than 2^32 steps").episode(header.id.clone());
            let steps = u32::try_from(header.len).map_err(|_| too_long())?;
            // Counts of all columns first: nothing may fail once rows are moved.
            let mut counts = HashMap::with_capacity(buffers.len());
            for (i, buffer) in buffers.iter().enumerate() {
                let history = u32::try_from(buffer.lookback).map_err(|_| too_long())?;
                counts.entry(buffer.column).or_insert(RowCounts { history, steps, last: u32::from(i == 0) });
            }
            Ok((header, counts))
        });
        match read {
            Ok((header, counts)) => {
                for leaf in &mut self.leaves {
                    let found = counts.get(&Some(leaf.column)).filter(|_| leaf.item.rows > 0);
                    leaf.split(found.copied().unwrap_or_default());
                }
                Ok(header)
            }
            Err(e) => {
                for leaf in &mut self.leaves {
                    leaf.steps.truncate(leaf.mark);
                }
                Err(e)
            }
        }
    }

    /// Bytes held, spare room not counted.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.leaves.iter().map(|leaf| leaf.history.len() + leaf.steps.len() + leaf.last.len()).sum()
    }

    /// The columns, in the order in which the leaves were given.
    #[must_use]
    pub fn finish(self) -> Vec<(String, LeafRows)> {
        let rows = |items: &[RowCounts], of: fn(&RowCounts) -> u32| items.iter().map(|c| of(c) as usize).sum();
        self.leaves
            .into_iter()
            .map(|leaf| {
                let tensor = |data: MutableBuffer, rows| Tensor::new(leaf.ty.clone(), rows, data.into());
                let out = LeafRows {
                    history: tensor(leaf.history, rows(&leaf.items, |c| c.history)),
                    steps: tensor(leaf.steps, rows(&leaf.items, |c| c.steps)),
                    last: tensor(leaf.last, rows(&leaf.items, |c| c.last)),
                    items: leaf.items,
                };
                (leaf.name, out)
            })
            .collect()
    }
}

impl DecodeLeaf {
    /// Parts the rows that the item appended to `steps`: look-back in front and the last observation leave it.
    fn split(&mut self, counts: RowCounts) {
        let history = counts.history as usize * self.row_bytes;
        let last = counts.last as usize * self.row_bytes;
        let end = self.steps.len();
        self.last.extend_from_slice(&self.steps[end - last..]);
        if history > 0 {
            self.history.extend_from_slice(&self.steps[self.mark..self.mark + history]);
            self.steps.as_slice_mut().copy_within(self.mark + history..end - last, self.mark);
        }
        self.steps.truncate(end - last - history);
        self.items.push(counts);
    }

    /// Appends numbers of any dtype as rows of the column.
    fn append(&mut self, found: &Numbers<'_>, scratch: &mut [Vec<u8>; 2]) -> Result<()> {
        let [first, second] = scratch;
        let (mut data, mut dtype, mut big_endian) = (found.data, found.dtype, found.big_endian);
        if let Some(ruling) = self.item.ruling.filter(|&ruling| ruling != dtype) {
            // As RLlib: into the dtype of the item's first row, whatever the column's.
            first.clear();
            elements::convert(data, dtype, big_endian, ruling, first)?;
            (data, dtype, big_endian) = (first, ruling, cfg!(target_endian = "big"));
        }
        if dtype == self.ty.dtype && dtype != DType::Bool && big_endian == cfg!(target_endian = "big") {
            self.steps.extend_from_slice(data);
        } else {
            second.clear();
            elements::convert(data, dtype, big_endian, self.ty.dtype, second)?;
            self.steps.extend_from_slice(second);
        }
        Ok(())
    }

    /// A row that is a list of equal parts; see [`Stack`](super::scan).
    fn stacked_row(&mut self, cursor: &mut Cursor<'_>, depth: usize, scratch: &mut [Vec<u8>; 2]) -> Result<()> {
        if cursor.peek()? == Shaped::List {
            let parts = cursor.array_header()?;
            if self.ty.shape.get(depth) != Some(&parts) {
                return Err(Error::data(format!("found a list of {parts}, the rows have shape {:?}", self.ty.shape)));
            }
            return (0..parts).try_for_each(|_| self.stacked_row(cursor, depth + 1, scratch));
        }
        let mut word = [0; 8];
        let value = cursor.leaf()?;
        let found = numbers(&value, &mut word)?;
        if *found.shape != self.ty.shape[depth..] {
            return Err(ragged(&found, &self.ty.shape[depth..]));
        }
        self.append(&found, scratch)
    }

    #[cold]
    #[inline(never)]
    fn slow_row(&mut self, cursor: &mut Cursor<'_>, scratch: &mut [Vec<u8>; 2]) -> Result<()> {
        if cursor.peek()? == Shaped::List {
            self.item.ruling = None;
            return self.stacked_row(cursor, 0, scratch);
        }
        let mut word = [0; 8];
        let value = self.template.leaf(cursor)?;
        let found = numbers(&value, &mut word)?;
        if *found.shape != *self.ty.shape {
            return Err(ragged(&found, &self.ty.shape));
        }
        if self.item.rows == 0 {
            self.item.ruling = found.is_array.then_some(found.dtype);
        }
        self.append(&found, scratch)?;
        let t = &self.template;
        self.direct = t.dtype == self.ty.dtype
            && (t.big_endian == cfg!(target_endian = "big") || t.dtype.size() == 1)
            && *t.shape == *self.ty.shape
            && self.item.ruling.is_none_or(|ruling| ruling == t.dtype);
        self.scalars = self.ty.shape.is_empty() && self.item.ruling.is_none_or(|ruling| ruling == self.ty.dtype);
        Ok(())
    }
}

impl Pass for ItemDecoder {
    fn tree(&mut self) -> &mut Tree {
        &mut self.tree
    }

    fn progress(&mut self) -> &mut Progress {
        &mut self.progress
    }

    fn grow(&mut self, _: usize, _: Key<'_>, _: Shaped) -> Result<Option<usize>> {
        Ok(None)
    }

    fn rows_of(&self, leaf: usize) -> usize {
        self.leaves[leaf].item.rows
    }

    #[inline]
    fn row(&mut self, leaf: usize, cursor: &mut Cursor<'_>) -> Result<()> {
        let leaf = &mut self.leaves[leaf];
        self.progress.meet(leaf.item.rows)?;
        // The first row of an item decides its dtype, so it goes the long way.
        if leaf.item.rows == 0 {
            leaf.slow_row(cursor, &mut self.scratch)?;
        } else if let Some(data) = leaf.direct.then(|| leaf.template.data(cursor)).flatten() {
            leaf.steps.extend_from_slice(data);
            if leaf.ty.dtype == DType::Bool {
                let start = leaf.steps.len() - data.len();
                elements::make_native(&mut leaf.steps.as_slice_mut()[start..], DType::Bool, false);
            }
        } else if let Some(word) = leaf.scalars.then(|| plain_scalar(cursor, leaf.ty.dtype)).flatten() {
            leaf.steps.extend_from_slice(&word);
        } else {
            leaf.slow_row(cursor, &mut self.scratch)?;
        }
        leaf.item.rows += 1;
        Ok(())
    }

    fn whole(&mut self, leaf: usize, array: &Numbers<'_>, row_shape: &[usize], rows: usize) -> Result<()> {
        let leaf = &mut self.leaves[leaf];
        if *row_shape != *leaf.ty.shape {
            return Err(ragged(array, &leaf.ty.shape));
        }
        leaf.item.ruling = None;
        leaf.append(array, &mut self.scratch)?;
        leaf.item.rows = rows;
        Ok(())
    }

    fn size(&self) -> (usize, usize) {
        (self.tree.nodes.len(), self.leaves.len())
    }

    fn undo(&mut self, column: usize, _: (usize, usize)) {
        for leaf in self.leaves.iter_mut().filter(|leaf| leaf.column == column) {
            leaf.steps.truncate(leaf.mark);
            leaf.item.rows = 0;
        }
    }
}
