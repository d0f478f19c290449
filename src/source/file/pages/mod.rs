//! Parquet columns of tensors, read page by page.
//!
//! The parquet crate computes a repetition and a definition level for every *element* of a list, four bytes for what
//! recorders write as a four-byte float. But the levels of a page only say what is true of nearly every page: all lists
//! are full, nothing is null. So they are looked at as a whole, once for all pages that have the same level bytes, and
//! the values are copied as they lie:
//!
//! ```text
//! page   | levels | v v v v v v v v | ──check──▶ copy (PLAIN) or gather (dictionary) ──▶ Arrow array
//!             └ not so regular? the crate's reader takes over, from the first row of this batch on
//! ```
//!
//! The crate opens and decompresses the pages. Whatever is not understood here (nulls, ragged lists, other encodings,
//! damage) goes to its reader, so values and errors are the same.

pub(super) mod form;
mod hybrid;
mod levels;
mod values;
mod window;

use arrow::array::ArrayRef;
use arrow::datatypes::Field;
use parquet::column::page::{Page, PageReader};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::schema::types::SchemaDescriptor;

use form::{Leaf, ListKind, Node};
use values::{Dictionary, Out, Stored};
pub(super) use window::Shared;
use window::Window;

/// A top-level column of one row group, read page by page.
pub(super) struct Paged {
    node: Node,
    leaves: Vec<PagedLeaf>,
}

/// A leaf's pages.
struct PagedLeaf {
    leaf: Leaf,
    pages: SerializedPageReader<Window>,
    dictionary: Option<Dictionary>,
    /// The lengths of the lists; known with the first page.
    dims: Option<Vec<usize>>,
    /// The level bytes of the page before and how many elements they are for, found to be regular.
    regular: Option<(bytes::Bytes, usize)>,
    page: Option<Stored>,
}

impl Paged {
    /// Column `root` of a row group, if it is one that can be read so. Each of its leaves reads `window` bytes of the
    /// file at once.
    pub fn open(
        schema: &SchemaDescriptor,
        group: &RowGroupMetaData,
        root: usize,
        field: &Field,
        file: &Shared,
        window: usize,
    ) -> Option<Self> {
        let node = form::node(schema, root, field)?;
        let rows = usize::try_from(group.num_rows()).ok()?;
        let mut leaves = Vec::new();
        for leaf in node.leaves() {
            let chunk = group.column(leaf.column);
            let (start, len) = chunk.byte_range();
            let window = Window::new(file.clone(), start.checked_add(len)?, window as u64);
            let pages = SerializedPageReader::new(window.into(), chunk, rows, None).ok()?;
            let dims = leaf.lists.iter().map(|l| if let ListKind::Fixed(n) = l.kind { Some(n) } else { None });
            let dims = dims.collect();
            leaves.push(PagedLeaf { leaf: leaf.clone(), pages, dictionary: None, dims, regular: None, page: None });
        }
        Some(Self { node, leaves })
    }

    /// The next `rows` rows; `None` if these pages are the crate's business. There are no further rows then.
    pub fn next(&mut self, rows: usize) -> Option<ArrayRef> {
        let mut arrays = Vec::with_capacity(self.leaves.len());
        for leaf in &mut self.leaves {
            arrays.push(leaf.next(rows)?);
        }
        self.node.array(rows, &mut arrays.into_iter()).ok()
    }
}

impl PagedLeaf {
    fn next(&mut self, rows: usize) -> Option<ArrayRef> {
        if self.page.is_none() {
            self.turn()?;
        }
        let dims = self.dims.clone()?;
        let row: usize = dims.iter().product();
        let mut left = rows.checked_mul(row)?;
        let mut out = Out::new(self.leaf.values, left);
        while left > 0 {
            if self.page.as_ref().is_none_or(Stored::is_empty) {
                self.turn()?;
            }
            left -= self.page.as_mut()?.take(left, self.dictionary.as_ref(), &mut out)?;
        }
        self.leaf.array(rows, &dims, out.finish()).ok()
    }

    /// Goes on to the next page that has values.
    fn turn(&mut self) -> Option<()> {
        loop {
            let page = self.pages.get_next_page().ok()??;
            if let Page::DictionaryPage { buf, num_values, encoding, .. } = page {
                let n = usize::try_from(num_values).ok()?;
                self.dictionary = Some(Dictionary::new(&buf, n, encoding, self.leaf.values)?);
                continue;
            }
            let n = usize::try_from(page.num_values()).ok()?;
            if n == 0 {
                continue;
            }
            let encoding = page.encoding();
            let (levels, values) = self.split(&page)?;
            self.check(&levels, n)?;
            self.page = Some(Stored::new(values, n, encoding, self.leaf.values)?);
            return Some(());
        }
    }

    /// The level bytes of a page and its values. Version 1 has the length of each kind of levels in front of it.
    fn split(&self, page: &Page) -> Option<(Levels, bytes::Bytes)> {
        use parquet::basic::Encoding::RLE;
        let (has_rep, has_def) = (!self.leaf.lists.is_empty(), self.leaf.max_def > 0);
        match page {
            Page::DataPage { buf, def_level_encoding, rep_level_encoding, .. } => {
                if (has_rep && *rep_level_encoding != RLE) || (has_def && *def_level_encoding != RLE) {
                    return None;
                }
                let mut at = 0;
                let mut prefixed = |there: bool| {
                    if !there {
                        return Some(at..at);
                    }
                    let len = buf.get(at..)?.first_chunk::<4>()?;
                    let start = at + 4;
                    at = start.checked_add(usize::try_from(u32::from_le_bytes(*len)).ok()?)?;
                    (at <= buf.len()).then_some(start..at)
                };
                let (rep, def) = (prefixed(has_rep)?, prefixed(has_def)?);
                Some((Levels { all: buf.slice(..at), rep, def }, buf.slice(at..)))
            }
            Page::DataPageV2 { buf, rep_levels_byte_len, def_levels_byte_len, .. } => {
                let rep = usize::try_from(*rep_levels_byte_len).ok()?;
                let end = rep.checked_add(usize::try_from(*def_levels_byte_len).ok()?)?;
                let all = buf.get(..end).map(|_| buf.slice(..end))?;
                Some((Levels { all, rep: 0..rep, def: rep..end }, buf.slice(end..)))
            }
            Page::DictionaryPage { .. } => None,
        }
    }

    /// Whether the levels are those of `n` elements in whole, full rows of the one shape.
    fn check(&mut self, levels: &Levels, n: usize) -> Option<()> {
        if self.regular.as_ref().is_some_and(|(before, count)| *count == n && before == &levels.all) {
            return Some(());
        }
        let width = |max: usize| (usize::BITS - max.leading_zeros()).min(32);
        if self.leaf.max_def > 0 {
            let max = u32::try_from(self.leaf.max_def).ok()?;
            let def = &levels.all[levels.def.clone()];
            levels::all_are(def, width(max as usize), n, max).then_some(())?;
        }
        let depth = self.leaf.lists.len();
        if depth > 0 {
            let rep = &levels.all[levels.rep.clone()];
            if let Some(dims) = &self.dims {
                levels::is_regular(rep, width(depth), n, dims).then_some(())?;
            } else {
                let dims = levels::shape(rep, width(depth), n, depth)?;
                self.dims = self.fits(&dims).then_some(dims);
            }
        }
        self.regular = Some((levels.all.clone(), n));
        Some(())
    }

    /// Whether the type allows this shape.
    fn fits(&self, dims: &[usize]) -> bool {
        self.leaf.lists.iter().zip(dims).all(|(list, &dim)| match list.kind {
            ListKind::Fixed(n) => n == dim,
            ListKind::Offsets32 | ListKind::Offsets64 => true,
        })
    }
}

/// Where a page's levels are.
struct Levels {
    /// All of them.
    all: bytes::Bytes,
    rep: std::ops::Range<usize>,
    def: std::ops::Range<usize>,
}

#[cfg(test)]
mod tests;
