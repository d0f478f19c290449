//! Masks and padding of one row group: each row by itself.
//!
//! ```text
//! seq_lens 3, 5 places     loss_mask  T T T F F       true before seq_lens only (and there, but for burn-in and
//!                          obs        o o o 0 0       steps that a piece added); behind it every byte is zero
//! ```

use super::CheckName::{Mask, Padding};
use super::Place;
use super::rules::Rules;
use super::tally::Tally;
use crate::column::{LOSS_MASK, SEQ_LENS};
use crate::error::Error;
use crate::sink::RowGroupData;
use crate::tensor::Tensor;

pub(super) fn check(data: &RowGroupData, rules: &Rules, place: &Place<'_>, tally: &mut Tally) {
    let places = rules.places;
    let name = |at: usize| place.shard.column_name(at);
    if let Some(lens) = rules.seq_lens.and_then(|at| data.columns[at].tensor()) {
        let mask = rules.loss_mask.and_then(|at| data.columns[at].tensor());
        for (row, &len) in lens.values::<i64>().iter().enumerate() {
            let real = usize::try_from(len).ok().filter(|n| (1..=places).contains(n));
            let Some(real) = real else {
                let what = format!("found {len} real steps, expected 1 to {places}");
                tally.fail(Mask, place.at(row, Error::data(what)).column(SEQ_LENS));
                continue;
            };
            if let Some(mask) = mask.map(|m| m.row(row)) {
                let trues = mask.iter().filter(|m| **m != 0).count();
                let behind = mask[real.min(mask.len())..].iter().any(|m| *m != 0);
                if behind || (rules.exact_mask && trues != real) {
                    let shown: String = mask.iter().take(64).map(|m| if *m == 0 { 'F' } else { 'T' }).collect();
                    let what = format!("the mask is {shown}, but seq_lens is {len}");
                    tally.fail(Mask, place.at(row, Error::data(what)).column(LOSS_MASK));
                }
            }
            if real == places {
                continue;
            }
            for &at in &rules.padded {
                let Some(column) = data.columns[at].tensor() else { continue };
                let bytes = column.row(row);
                let step = bytes.len() / places;
                if let Some(byte) = bytes[real * step..].iter().position(|b| *b != 0) {
                    tally.fail(Padding, wrong(place, row, real + byte / step.max(1), name(at)));
                }
            }
        }
    }
    if let Some((mask, padding, columns)) = &rules.padded_by_mask
        && let Some(mask) = data.columns[*mask].tensor()
    {
        for &at in columns {
            let Some(column) = data.columns[at].tensor() else { continue };
            by_mask(mask, *padding, column, places, |row, at_place| {
                tally.fail(Padding, wrong(place, row, at_place, name(at)));
            });
        }
    }
}

fn wrong(place: &Place<'_>, row: usize, at: usize, column: &str) -> Error {
    let what = format!("place {at} of the sequence is padding, and not zero");
    place.at(row, Error::data(what)).column(column)
}

/// The first place of each row that is padding by the mask and not zero.
fn by_mask(mask: &Tensor, padding: u8, column: &Tensor, places: usize, mut wrong: impl FnMut(usize, usize)) {
    for row in 0..mask.rows() {
        let (mask, bytes) = (mask.row(row), column.row(row));
        let step = bytes.len() / places.max(1);
        let bad = |p: &usize| mask[*p] == padding && bytes[p * step..(p + 1) * step].iter().any(|b| *b != 0);
        if let Some(at) = (0..places).find(bad) {
            wrong(row, at);
        }
    }
}
