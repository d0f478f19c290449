//! Pass 1: what leaves there are, and of what types.

use std::collections::HashMap;

use super::tree::{Key, Node, NodeKind, ROOT, Tree};
use super::walk::{ItemRows, Numbers, Pass, Progress, Template, numbers, plain_scalar, ragged};
use super::{ItemHeader, LeafType, read_item};
use crate::error::{Error, Result};
use crate::source::elements;
use crate::source::msgpack::{Cursor, Shape, Shaped};
use crate::tensor::{DType, TensorType};

/// Leaves of all columns together. A list of numbers counts as many leaves.
const MAX_LEAVES: usize = 1 << 14;

#[derive(Debug, Clone)]
struct ScanLeaf {
    node: usize,
    template: Template,
    /// Whether rows like the template need no further look: same dtype and shape as this item's rows.
    plain: bool,
    /// Whether Python scalars of this item's dtype need none either.
    scalars: bool,
    item: ItemRows,
    item_dtype: DType,
    item_shape: Shape,
    /// Over all items: shape, dtypes as a bit set, items.
    shape: Option<Vec<usize>>,
    dtypes: u16,
    in_items: u64,
    /// Was read from a finalized buffer.
    whole: bool,
}

/// Types of every leaf seen so far, under canonical names: `obs/..`, `actions/..`, `rewards` and every extra model
/// output (`state_out/h`), nested ones joined by `/`.
///
/// The union does not depend on the order of items, nor on how they were spread over the `LeafTypes` that were
/// [merged](Self::merge).
#[derive(Debug, Clone)]
pub struct LeafTypes {
    tree: Tree,
    leaves: Vec<ScanLeaf>,
    progress: Progress,
    scratch: Vec<u8>,
    items: u64,
}

/// What merging makes of a leaf.
struct Merged {
    leaf: usize,
    shape: Vec<usize>,
    dtypes: u16,
    in_items: u64,
    whole: bool,
}

/// Parts of equal shape that make up one array, as `actions` of shape `[2, 3]` of two arrays of shape `[3]`.
///
/// RLlib's `batch` (`utils/spaces/space_utils.py`) looks into dicts and tuples. msgpack has turned a top-level tuple
/// into a list, which it hands to `np.array` with all other rows: equal parts become one array of the dtype that
/// holds them all, unequal ones an error. Those are named by index here, and so are the parts of a finalized buffer,
/// which RLlib cannot slice.
struct Stack {
    shape: Vec<usize>,
    dtypes: u16,
    in_items: u64,
}

impl Stack {
    fn known(self) -> Option<LeafType> {
        // Beside numbers, NumPy makes numbers of booleans.
        let numbers = self.dtypes & !bit(DType::Bool);
        let dtype = union(if numbers == 0 { self.dtypes } else { numbers })?;
        Some(LeafType { ty: TensorType::new(dtype, self.shape), in_items: self.in_items })
    }
}

impl Default for LeafTypes {
    fn default() -> Self {
        Self::new()
    }
}

impl LeafTypes {
    /// No leaves.
    #[must_use]
    pub fn new() -> Self {
        let progress = Progress::default();
        Self { tree: Tree::new(), leaves: Vec::new(), progress, scratch: Vec::new(), items: 0 }
    }

    /// Number of items with at least one step.
    #[must_use]
    pub const fn items(&self) -> u64 {
        self.items
    }

    /// The type of the leaf `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<LeafType> {
        let mut node = ROOT;
        for part in name.split('/') {
            node = *self.tree.nodes[node].kids.iter().find(|&&kid| *self.tree.nodes[kid].key == *part)?;
        }
        match self.tree.nodes[node].kind {
            NodeKind::Leaf(leaf) => self.leaves[leaf].known(),
            _ => None,
        }
    }

    /// All leaves: `obs`, `actions`, `rewards`, then extra outputs by name; in each, dicts in sorted key order and
    /// lists by index. A column whose rows are lists of equal parts is one leaf; see [`Stack`].
    pub fn iter(&self) -> impl Iterator<Item = (String, LeafType)> + '_ {
        let mut order = Vec::with_capacity(self.leaves.len());
        self.tree.leaves(ROOT, &mut order);
        let stacks: HashMap<usize, LeafType> = self.tree.nodes[ROOT]
            .kids
            .iter()
            .filter(|&&column| self.tree.nodes[column].kind == NodeKind::List)
            .filter_map(|&column| Some((column, self.stack(column)?.known()?)))
            .collect();
        let mut told = None;
        order.into_iter().filter_map(move |leaf| {
            let leaf = &self.leaves[leaf];
            let column = self.tree.column_of(leaf.node);
            match stacks.get(&column) {
                None => Some((self.tree.name(leaf.node), leaf.known()?)),
                Some(_) if told == Some(column) => None,
                Some(stack) => {
                    told = Some(column);
                    Some((self.tree.name(column), stack.clone()))
                }
            }
        })
    }

    /// The lists at `node` as one array, if that is what NumPy makes of them.
    fn stack(&self, node: usize) -> Option<Stack> {
        let Node { kind, kids, .. } = &self.tree.nodes[node];
        match kind {
            NodeKind::Dict => None,
            NodeKind::Leaf(leaf) => {
                let leaf = &self.leaves[*leaf];
                let shape = leaf.shape.clone().filter(|_| !leaf.whole)?;
                Some(Stack { shape, dtypes: leaf.dtypes, in_items: leaf.in_items })
            }
            NodeKind::List => {
                let mut parts = kids.iter().map(|&kid| self.stack(kid));
                let mut out = parts.next()??;
                for part in parts {
                    let part = part.filter(|p| p.shape == out.shape && p.in_items == out.in_items)?;
                    out.dtypes |= part.dtypes;
                }
                out.shape.insert(0, kids.len());
                Some(out)
            }
        }
    }

    /// Takes in the leaves that another one has seen, as if it had seen their items itself.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        let (nodes, leaves) = self.size();
        let merged = self.try_merge(other);
        match merged {
            Ok(new) => {
                self.items += other.items;
                for Merged { leaf, shape, dtypes, in_items, whole } in new {
                    let leaf = &mut self.leaves[leaf];
                    leaf.whole |= whole;
                    leaf.shape = Some(shape);
                    leaf.dtypes = dtypes;
                    leaf.in_items += in_items;
                }
                Ok(())
            }
            Err(e) => {
                self.tree.truncate(nodes);
                self.leaves.truncate(leaves);
                Err(e)
            }
        }
    }

    fn try_merge(&mut self, other: &Self) -> Result<Vec<Merged>> {
        // Nodes of the other tree, as nodes of this one. Parents come before their children.
        let mut mine = vec![ROOT];
        for node in &other.tree.nodes[1..] {
            let parent = mine[node.parent];
            let key = Key::Text(&node.key);
            let found = match self.tree.kid(parent, usize::MAX, key) {
                Some(found) => {
                    let (a, b) = (self.tree.nodes[found].kind, node.kind);
                    if matches!(a, NodeKind::Leaf(_)) != matches!(b, NodeKind::Leaf(_)) {
                        return Err(Error::data("an array in some items, a dict or list in others")
                            .column(self.tree.name(found)));
                    }
                    Some(found)
                }
                None => self.grow(
                    parent,
                    key,
                    match node.kind {
                        NodeKind::Leaf(_) => Shaped::Leaf,
                        NodeKind::Dict => Shaped::Dict,
                        NodeKind::List => Shaped::List,
                    },
                )?,
            };
            mine.push(found.unwrap_or(ROOT));
        }
        let mut new = Vec::with_capacity(other.leaves.len());
        for theirs in &other.leaves {
            let NodeKind::Leaf(leaf) = self.tree.nodes[mine[theirs.node]].kind else {
                return Err(Error::internal("a leaf that is none"));
            };
            if let Some(shape) = &theirs.shape {
                let dtypes = self.agreed(leaf, shape, theirs.dtypes)?;
                let (in_items, whole) = (theirs.in_items, theirs.whole);
                new.push(Merged { leaf, shape: shape.clone(), dtypes, in_items, whole });
            }
        }
        Ok(new)
    }

    /// The dtypes of a leaf with those of one more item, if they and the shapes go together.
    fn agreed(&self, leaf: usize, shape: &[usize], dtypes: u16) -> Result<u16> {
        let mine = &self.leaves[leaf];
        let name = || self.tree.name(mine.node);
        if let Some(known) = mine.shape.as_ref().filter(|known| **known != shape) {
            let what = format!("rows of shape {shape:?}, other items have {known:?}");
            let hint = "rows of one column need one shape: pad them, or convert the recordings apart";
            return Err(Error::data(what).column(name()).hint(hint));
        }
        let both = mine.dtypes | dtypes;
        if union(both).is_none() {
            let show = |set: u16| union(set).map_or_else(|| "nothing".to_owned(), |d| d.to_string());
            let what = format!("{} values, other items have {}", show(dtypes), show(mine.dtypes));
            return Err(Error::data(what).column(name()).hint("convert the recordings apart"));
        }
        Ok(both)
    }

    fn commit(&mut self, len: usize) -> Result<()> {
        for i in 0..self.leaves.len() {
            let leaf = &self.leaves[i];
            if leaf.item.rows > 0 {
                self.agreed(i, &leaf.item_shape, bit(leaf.item_dtype))?;
            }
        }
        let counts = u64::from(len > 0);
        self.items += counts;
        for leaf in self.leaves.iter_mut().filter(|leaf| leaf.item.rows > 0) {
            leaf.dtypes |= bit(leaf.item_dtype);
            leaf.in_items += counts;
            leaf.shape.get_or_insert_with(|| leaf.item_shape.to_vec());
        }
        Ok(())
    }
}

impl ScanLeaf {
    fn known(&self) -> Option<LeafType> {
        let shape = self.shape.clone()?;
        Some(LeafType { ty: TensorType::new(union(self.dtypes)?, shape), in_items: self.in_items })
    }

    /// Takes in rows of an item; `first` is their first.
    fn take(&mut self, found: &Numbers<'_>, row_shape: Shape, scratch: &mut Vec<u8>) -> Result<()> {
        if self.item.rows == 0 {
            self.item_dtype = found.dtype;
            self.item_shape = row_shape;
            self.item.ruling = found.is_array.then_some(found.dtype);
        } else if self.item_shape != row_shape {
            return Err(ragged(found, &self.item_shape));
        } else if found.dtype != self.item_dtype {
            match self.item.ruling {
                Some(ruling) => {
                    scratch.clear();
                    elements::convert(found.data, found.dtype, found.big_endian, ruling, scratch)?;
                }
                None => self.item_dtype = self.item_dtype.numpy_result_type(found.dtype),
            }
        }
        Ok(())
    }
}

pub(super) fn bit(dtype: DType) -> u16 {
    DType::ALL.iter().position(|&d| d == dtype).map_or(0, |i| 1 << i)
}

/// The dtype that holds a set of dtypes. Depends on nothing but the set.
pub(super) fn union(set: u16) -> Option<DType> {
    let members = || DType::ALL.into_iter().filter(move |&d| set & bit(d) != 0);
    let first = members().next()?;
    if members().all(|d| d == first) {
        return Some(first);
    }
    if first == DType::Bool {
        return None;
    }
    let mut candidates = [DType::Int8, DType::UInt8, DType::Int16, DType::UInt16, DType::Int32, DType::UInt32]
        .into_iter()
        .chain([DType::Int64, DType::UInt64, DType::Float16, DType::Float32, DType::Float64]);
    // float64 holds no 64-bit integers beyond 2^53; NumPy puts them there all the same.
    Some(candidates.find(|&c| members().all(|d| d.embeds_in(c))).unwrap_or(DType::Float64))
}

impl Pass for LeafTypes {
    fn tree(&mut self) -> &mut Tree {
        &mut self.tree
    }

    fn progress(&mut self) -> &mut Progress {
        &mut self.progress
    }

    fn grow(&mut self, parent: usize, key: Key<'_>, shaped: Shaped) -> Result<Option<usize>> {
        if let Key::Text(text) = key
            && text.contains('/')
        {
            let what = format!("the key {text:?} holds a `/`, which joins the keys of nested values");
            return Err(Error::data(what).column(self.tree.name(parent)));
        }
        let kind = match shaped {
            Shaped::Dict => NodeKind::Dict,
            Shaped::List => NodeKind::List,
            Shaped::Leaf => NodeKind::Leaf(self.leaves.len()),
        };
        if self.tree.nodes.len() >= 2 * MAX_LEAVES || self.leaves.len() >= MAX_LEAVES {
            let what = format!("more than {MAX_LEAVES} leaves; a list of numbers is one leaf a number");
            return Err(Error::data(what).column(self.tree.name(parent)));
        }
        let node = self.tree.add(parent, key, kind);
        if shaped == Shaped::Leaf {
            self.leaves.push(ScanLeaf {
                node,
                template: Template::new(),
                plain: false,
                scalars: false,
                item: ItemRows { rows: 0, ruling: None },
                item_dtype: DType::Bool,
                item_shape: Shape::SCALAR,
                shape: None,
                dtypes: 0,
                in_items: 0,
                whole: false,
            });
        }
        Ok(Some(node))
    }

    fn rows_of(&self, leaf: usize) -> usize {
        self.leaves[leaf].item.rows
    }

    #[inline]
    fn row(&mut self, leaf: usize, cursor: &mut Cursor<'_>) -> Result<()> {
        let leaf = &mut self.leaves[leaf];
        self.progress.meet(leaf.item.rows)?;
        let known = (leaf.plain && leaf.template.data(cursor).is_some())
            || (leaf.scalars && plain_scalar(cursor, leaf.item_dtype).is_some());
        if !known {
            let mut word = [0; 8];
            let value = leaf.template.leaf(cursor)?;
            let found = numbers(&value, &mut word)?;
            leaf.take(&found, found.shape, &mut self.scratch)?;
            let t = &leaf.template;
            leaf.plain = t.dtype == leaf.item_dtype && t.shape == leaf.item_shape;
            leaf.scalars = leaf.item_shape.is_empty();
        }
        leaf.item.rows += 1;
        Ok(())
    }

    fn whole(&mut self, leaf: usize, array: &Numbers<'_>, row_shape: &[usize], rows: usize) -> Result<()> {
        let leaf = &mut self.leaves[leaf];
        leaf.take(array, Shape::try_from(row_shape)?, &mut self.scratch)?;
        leaf.whole = true;
        leaf.item.rows = rows;
        Ok(())
    }

    fn size(&self) -> (usize, usize) {
        (self.tree.nodes.len(), self.leaves.len())
    }

    fn undo(&mut self, column: usize, (nodes, leaves): (usize, usize)) {
        for leaf in &mut self.leaves {
            if self.tree.column_of(leaf.node) == column {
                leaf.item.rows = 0;
            }
        }
        self.tree.truncate(nodes);
        self.leaves.truncate(leaves);
    }
}

/// Pass 1: what the item says of itself, and the types of its leaves joined to those of the items before.
///
/// Copies no data and skips infos. After an error `types` is as it was before.
pub fn scan(item: &[u8], types: &mut LeafTypes) -> Result<ItemHeader> {
    let (nodes, leaves) = types.size();
    for leaf in &mut types.leaves {
        leaf.item.rows = 0;
        (leaf.plain, leaf.scalars) = (false, false);
    }
    let read = read_item(types, item).and_then(|(header, _)| types.commit(header.len).map(|()| header));
    if read.is_err() {
        types.tree.truncate(nodes);
        types.leaves.truncate(leaves);
    }
    read
}
