//! What each module's rows look like, where a log holds several modules.
//!
//! Agents of different modules have different spaces, and one Arrow column holds them as lists of several lengths, as
//! structs with nulls, or as columns of another type in another file. The first step of each module says what its
//! columns are; all its other rows must agree, and the second pass sees to that.
//!
//! ```text
//! module_id   walker   scout    walker            walker   obs/legs float32[4]
//! obs.legs    [4]      null     [4]               scout    obs/map  uint8[8, 8]
//! obs.map     null     [8, 8]   null
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};

use super::file::InputFile;
use super::ingest::{self, LeafSpec, Places};
use super::rows::RowMap;
use super::schema::{Unified, UnifiedColumn};
use crate::column::{INFOS, root};
use crate::error::{Error, Result};
use crate::tensor::{DType, TensorType};

/// Rows of a module that say what its columns are.
#[derive(Debug, Clone, Default)]
pub(super) struct Sight {
    /// The first step of each of its episodes, in row order: a global row, and the episode.
    pub firsts: Vec<(u64, u32)>,
    /// The files that have rows of it.
    pub files: BTreeSet<usize>,
}

/// The leaves that a module has, by name. Infos are no matter of spaces and not among them.
pub(super) type Own = BTreeMap<String, TensorType>;

/// The leaves that a row has, each with its column, its type over all files, and its shape in the row.
pub(super) type Seen<'a> = Vec<(&'a UnifiedColumn, &'a LeafSpec, &'a TensorType, Vec<usize>)>;

/// What the row of a step has. Infos are not looked at.
///
/// # Errors
/// If it cannot be read.
pub(super) fn look<'a>(row: u64, rows: &RowMap, unified: &'a Unified) -> Result<Seen<'a>> {
    let step = FirstStep::read(row, rows, unified)?;
    let arrays = ingest::by_name(&step.batch);
    let mut out = Seen::new();
    for column in unified.columns.iter().filter(|c| root(&c.name) != INFOS) {
        let Some(array) = arrays.get(column.source.as_str()) else { continue };
        let mut places = Places::default();
        for (spec, ty) in &column.leaves {
            if let Some(shape) = step.shape(array, &column.source, spec, &mut places)? {
                out.push((column, spec, ty, shape));
            }
        }
    }
    Ok(out)
}

/// What the rows of a module look like whose first step has `seen`.
///
/// # Errors
/// If its files have dtypes that no dtype holds.
pub(super) fn types_of(module: &str, seen: &Seen<'_>, files: &BTreeSet<usize>, rows: &RowMap) -> Result<Own> {
    let mut out = Own::new();
    for leaves in seen.chunk_by(|(a, ..), (b, ..)| a.source == b.source) {
        let mut files: Vec<_> = files.iter().map(|&f| (&rows.files()[f], Places::default())).collect();
        for (column, spec, ty, shape) in leaves {
            let dtype = dtype_of(&mut files, &column.source, spec, ty.dtype).map_err(|e| {
                e.column(&spec.name)
                    .hint(format!("the rows of module {module:?}: cast the column in one of the files before"))
            })?;
            out.insert(spec.name.clone(), TensorType::new(dtype, shape.clone()));
        }
    }
    Ok(out)
}

/// The dtype that holds a leaf in all files that have rows of the module. Each file has the places of the leaf's column.
fn dtype_of<'a>(
    files: &mut [(&'a Arc<InputFile>, Places<'a>)],
    source: &str,
    spec: &LeafSpec,
    unified: DType,
) -> Result<DType> {
    let mut out: Option<(DType, &Arc<InputFile>)> = None;
    for (file, places) in files {
        let Some((_, field)) = file.field(source) else { continue };
        // What a schema does not tell (packed arrays), the look at the first rows did.
        let Some(found) = ingest::leaf_dtype(field, &spec.path, places) else { continue };
        out = Some(match out {
            None => (found, file),
            Some((before, first)) => {
                let union = before.lossless_union(found).ok_or_else(|| {
                    Error::usage(format!(
                        "the files differ: found {before} in {} and {found} in {}",
                        first.name, file.name
                    ))
                })?;
                (union, first)
            }
        });
    }
    Ok(out.map_or(unified, |(dtype, _)| dtype))
}

/// One row, decoded as far as shapes need it.
struct FirstStep<'a> {
    file: &'a InputFile,
    batch: RecordBatch,
    row_in_file: u64,
    row_group: usize,
}

impl<'a> FirstStep<'a> {
    fn read(row: u64, rows: &'a RowMap, unified: &Unified) -> Result<Self> {
        let groups = rows.groups();
        let at = groups.partition_point(|g| g.first_row + g.rows <= row);
        let group = groups.get(at).ok_or_else(|| Error::internal(format!("row {row} is in no file")))?;
        let file = &rows.files()[group.file];
        let wanted: Vec<String> = unified
            .columns
            .iter()
            .filter(|c| !c.leaves.is_empty() && root(&c.name) != INFOS && file.has(&c.source))
            .map(|c| c.source.clone())
            .collect();
        let place = |e: Error| e.file(file.name.clone()).row_group(group.row_group);
        let mut before = usize::try_from(row - group.first_row).map_err(|_| Error::internal("a row beyond memory"))?;
        // In small batches, so that one row of a large group costs little more than the way to it.
        for batch in file.read(group.row_group, &wanted, 256).map_err(place)? {
            let batch = batch.map_err(place)?;
            if before < batch.num_rows() {
                let row_in_file = file.row_groups[group.row_group].first_row + (row - group.first_row);
                return Ok(Self { file, batch: batch.slice(before, 1), row_in_file, row_group: group.row_group });
            }
            before -= batch.num_rows();
        }
        Err(rows.locate(row, Error::internal("the row group ends before the row")))
    }

    /// The shape of a leaf, or `None` where it is null.
    fn shape(
        &self,
        array: &ArrayRef,
        source: &str,
        spec: &LeafSpec,
        places: &mut Places<'a>,
    ) -> Result<Option<Vec<usize>>> {
        let Some((_, field)) = self.file.field(source) else { return Ok(None) };
        ingest::first_shape(field, array, spec, self.row_in_file, places)
            .map_err(|e| e.file(self.file.name.clone()).row_group(self.row_group))
    }
}
