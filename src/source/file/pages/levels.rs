//! What the level bytes of a page say: that every list is full, nothing is null, and all rows have one shape, or not.
//!
//! ```text
//! [[1 2] [3 4]] [[5 6] [7 8]]     two rows of shape [2, 2]
//! repetition     0 2 1 2 0 2 1 2  0: a row starts, 1: a list of the first level goes on, 2: one of the second
//! definition     5 5 5 5 5 5 5 5  all at the deepest level: there is an element
//! ```

use super::hybrid::{Hybrid, Indices, Run};

/// Whether `n` levels are all `level`.
pub(super) fn all_are(bytes: &[u8], width: u32, n: usize, level: u32) -> bool {
    let Some(mut hybrid) = Hybrid::new(bytes, width) else { return false };
    let mut left = n;
    while left > 0 {
        match hybrid.run() {
            Some(Run::Same(value, count)) if value == level || count == 0 => left = left.saturating_sub(count),
            Some(Run::Packed(packed, count)) => {
                let mut values = vec![0; count.min(left)];
                super::hybrid::unpack(packed, width, 0, &mut values);
                if values.iter().any(|&v| v != level) {
                    return false;
                }
                left -= values.len();
                // Groups of nothing: the bytes are over.
                if count == 0 {
                    return false;
                }
            }
            _ => return false,
        }
    }
    true
}

/// Levels that are looked at to find a row's shape. A row of more elements is left to others: what a page's header
/// claims must not decide how much memory is taken.
const LOOK: usize = 1 << 22;

/// The lengths of the lists, from the outside in, if the `n` levels of `bytes` are those of whole rows of one shape.
pub(super) fn shape(bytes: &[u8], width: u32, n: usize, depth: usize) -> Option<Vec<usize>> {
    let mut head = vec![0; n.min(LOOK)];
    Indices::new(Hybrid::new(bytes, width)?).fill(&mut head)?;
    let dims = dims(&head, depth)?;
    is_regular(bytes, width, n, &dims).then_some(dims)
}

/// The lengths of the lists by the first row.
fn dims(levels: &[u32], depth: usize) -> Option<Vec<usize>> {
    // Elements from one start of a list of each level to the next: those of a row, of an item of a row, ...
    let mut period = vec![levels.len(); depth];
    for (level, period) in (0_u32..).zip(&mut period) {
        if let Some(next) = levels.iter().skip(1).position(|&l| l <= level) {
            *period = next + 1;
        }
    }
    let inner = period.iter().skip(1).copied().chain([1]);
    period.iter().zip(inner).map(|(&outer, inner)| (inner > 0 && outer % inner == 0).then(|| outer / inner)).collect()
}

/// Whether the `n` levels of `bytes` are those of whole rows of shape `dims`.
pub(super) fn is_regular(bytes: &[u8], width: u32, n: usize, dims: &[usize]) -> bool {
    let row = dims.iter().try_fold(1_usize, |size, &dim| size.checked_mul(dim)).unwrap_or(0);
    if row == 0 || row > LOOK || n == 0 || !n.is_multiple_of(row) {
        return false;
    }
    let expected: Vec<u32> = (0..row).map(|i| level(i, row, dims)).collect();
    let Some(hybrid) = Hybrid::new(bytes, width) else { return false };
    let mut levels = Indices::new(hybrid);
    let mut found = [0; 1024];
    let (mut left, mut at) = (n, 0);
    while left > 0 {
        let now = left.min(found.len()).min(row - at);
        if levels.fill(&mut found[..now]).is_none() || found[..now] != expected[at..at + now] {
            return false;
        }
        left -= now;
        at = (at + now) % row;
    }
    true
}

/// The level of element `i` of a row.
fn level(i: usize, row: usize, dims: &[usize]) -> u32 {
    let mut size = row;
    let mut level = 0;
    for &dim in dims {
        if i.is_multiple_of(size) {
            break;
        }
        size /= dim;
        level += 1;
    }
    level
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The levels as packed groups of width 2.
    fn shape_of(levels: &[u32], depth: usize) -> Option<Vec<usize>> {
        let groups = levels.len().div_ceil(8);
        let mut bytes = vec![u8::try_from(groups << 1 | 1).unwrap()];
        bytes.resize(1 + groups * 2, 0);
        for (i, &level) in levels.iter().enumerate() {
            bytes[1 + i / 4] |= u8::try_from(level).unwrap() << (i % 4 * 2);
        }
        shape(&bytes, 2, levels.len(), depth)
    }

    #[test]
    fn shapes_are_told_from_repetition_levels() {
        assert_eq!(shape_of(&[0, 1, 1, 0, 1, 1], 1), Some(vec![3]));
        assert_eq!(shape_of(&[0, 0, 0], 1), Some(vec![1]));
        assert_eq!(shape_of(&[0, 1, 1], 1), Some(vec![3]), "a page of one row");
        assert_eq!(shape_of(&[0, 2, 1, 2, 0, 2, 1, 2], 2), Some(vec![2, 2]));
        assert_eq!(shape_of(&[0, 2, 2, 1, 2, 2], 2), Some(vec![2, 3]));
        assert_eq!(shape_of(&[0, 1, 0, 1], 2), Some(vec![2, 1]));
        assert_eq!(shape_of(&[0, 3, 2, 3, 1, 3, 2, 3], 3), Some(vec![2, 2, 2]));
    }

    #[test]
    fn ragged_rows_and_halves_of_rows_have_none() {
        assert_eq!(shape_of(&[], 1), None);
        assert_eq!(shape_of(&[0, 1, 0], 1), None);
        assert_eq!(shape_of(&[1, 1, 0, 1, 1], 1), None, "starts inside a row");
        assert_eq!(shape_of(&[0, 2, 1, 0, 2, 1], 2), None);
        assert_eq!(shape_of(&[0, 1, 1, 0, 1], 1), None);
    }

    #[test]
    fn what_a_header_claims_takes_no_memory() {
        // One run that says it is 2^31 elements of one row.
        let bytes = [0x80, 0x80, 0x80, 0x80, 0x10, 1];
        assert_eq!(shape(&bytes, 1, 1 << 31, 1), None);
        assert!(!is_regular(&bytes, 1, 1 << 31, &[1 << 31]));
        assert!(!is_regular(&bytes, 1, 1 << 31, &[usize::MAX, 2]));
    }

    #[test]
    fn constant_levels_are_recognised_in_every_cut() {
        assert!(all_are(&[10 << 1, 3], 2, 10, 3));
        assert!(all_are(&[4 << 1, 3, 6 << 1, 3], 2, 10, 3));
        assert!(all_are(&[1 << 1 | 1, 0xff, 0xff, 2 << 1, 3], 2, 10, 3));
        assert!(!all_are(&[4 << 1, 3, 6 << 1, 2], 2, 10, 3), "an element that is null");
        assert!(!all_are(&[9 << 1, 3], 2, 10, 3), "too few");
        assert!(!all_are(&[1 << 1 | 1, 0xff, 0xfe, 2 << 1, 3], 2, 10, 3));
        assert!(!all_are(&[1], 2, 10, 3), "groups of nothing");
    }
}
