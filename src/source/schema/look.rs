//! Reading the first rows of files for what their schemas leave open.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::ArrayRef;
use indexmap::IndexMap;

use super::field_of;
use super::merge::Merge;
use crate::error::{Error, Result};
use crate::source::faults::{is_of_data, no_row_is_readable};
use crate::source::file::InputFile;
use crate::source::ingest::{LeafSpec, Places, Seen, by_name, look};

/// A leaf that a file's schema leaves open: its column and leaf, and what the schema says.
struct Open {
    column: usize,
    leaf: usize,
    spec: LeafSpec,
}

/// Settles open leaves.
///
/// A leaf that another file has settled is checked against one batch only. One that nobody has settled is looked for
/// until it is found: columns that are null throughout cost next to nothing to read.
///
/// Where `tolerant`, damage that hides one is a fault of the data, as malformed episodes are that leave none.
pub(super) fn look_at_data(
    columns: &mut IndexMap<String, Merge>,
    files: &[Arc<InputFile>],
    tolerant: bool,
) -> Result<()> {
    let mut open: Vec<Vec<Open>> = files.iter().map(|_| Vec::new()).collect();
    for (column, merge) in columns.values_mut().enumerate() {
        for (leaf, found) in merge.leaves.iter_mut().enumerate() {
            for (file, spec) in found.open.drain(..) {
                open[file].push(Open { column, leaf, spec });
            }
        }
    }
    let mut unseen = Vec::new();
    for (at, open) in open.into_iter().enumerate() {
        if let Some((error, open)) = look_at_file(columns, files, at, open)? {
            unseen.extend(open.into_iter().map(|o| (o.column, o.leaf, error.clone())));
        }
    }
    // What a damaged file does not show, another one may have. Whoever needs its rows tells the damage.
    let unknown = unseen.into_iter().find(|(column, leaf, _)| !columns[*column].leaves[*leaf].spec.is_known());
    unknown.map_or(Ok(()), |(_, _, error)| Err(if tolerant { no_row_is_readable(&error) } else { error }))
}

fn look_at_file(
    columns: &mut IndexMap<String, Merge>,
    files: &[Arc<InputFile>],
    at: usize,
    mut open: Vec<Open>,
) -> Result<Option<(Error, Vec<Open>)>> {
    let file = &files[at];
    // A few rows first: mostly the very first one answers.
    let mut batch_rows = 16;
    // A damaged row group is told by whoever needs its rows; here the next one may answer as well.
    let mut damage = None;
    let mut places: HashMap<usize, Places<'_>> = HashMap::new();
    for (g, group) in file.row_groups.iter().enumerate() {
        if open.is_empty() {
            break;
        }
        let mut row = group.first_row;
        let sources: Vec<String> = open.iter().map(|o| columns[o.column].source.clone()).collect();
        let batches = match file.read(g, &sources, batch_rows) {
            Ok(batches) => batches,
            Err(e) if is_of_data(&e) => {
                damage.get_or_insert(e);
                continue;
            }
            Err(e) => return Err(e),
        };
        for batch in batches {
            let batch = match batch {
                Ok(batch) => batch,
                Err(e) if !is_of_data(&e) => return Err(e),
                Err(e) => {
                    damage.get_or_insert(e);
                    break;
                }
            };
            let arrays = by_name(&batch);
            let mut left = Vec::new();
            for mut one in open {
                let merge = &mut columns[one.column];
                let places = places.entry(one.column).or_default();
                let stays = look_at_batch(merge, &mut one, files, at, &arrays, row, places)
                    .map_err(|e| e.row_group(g).file(file.name.clone()))?;
                if stays {
                    left.push(one);
                }
            }
            open = left;
            if open.is_empty() {
                return Ok(None);
            }
            row += batch.num_rows() as u64;
        }
        batch_rows = 8192;
    }
    Ok(damage.filter(|_| !open.is_empty()).map(|e| (e, open)))
}

/// Whether the leaf stays open.
fn look_at_batch<'a>(
    merge: &mut Merge,
    open: &mut Open,
    files: &'a [Arc<InputFile>],
    at: usize,
    arrays: &HashMap<&str, &ArrayRef>,
    row: u64,
    places: &mut Places<'a>,
) -> Result<bool> {
    let field = field_of(&files[at], &merge.source)?;
    let array = arrays
        .get(merge.source.as_str())
        .ok_or_else(|| Error::internal(format!("column {:?} was not read", merge.source)))?;
    let seen = match look(&mut open.spec, field, array, row, places) {
        Err(e) if merge.is_infos() => {
            merge.leave_info_out(open.leaf, &e.file(files[at].name.clone()));
            return Ok(false);
        }
        seen => seen?,
    };
    if seen == Seen::Text {
        let e =
            Error::usage("found text, expected numbers").column(&open.spec.name).row(row).file(files[at].name.clone());
        merge.found_text(open.leaf, at, field, e)?;
        return Ok(false);
    }
    if open.spec.is_known() {
        match merge.merge_leaf(open.leaf, &open.spec, at, files) {
            Err(e) if merge.is_infos() => merge.leave_info_out(open.leaf, &e),
            merged => merged?,
        }
        return Ok(false);
    }
    Ok(!merge.leaves[open.leaf].spec.is_known())
}
