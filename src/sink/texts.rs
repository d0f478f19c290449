//! How long the texts of rows are: of ids there is one a row, and nothing says that they are short.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The rows of a data set whose texts are longer than ids are as a rule, longest first.
///
/// ```text
/// bytes above the usual   960   60   0 ..        of all texts of a row together
/// rows                      8    2   all others
///
/// most(9) = 8 * 960 + 1 * 60: more than that no nine rows have, in whatever order they come
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LongTexts {
    /// Bytes above the usual, and the rows that have as many.
    rows: Vec<(usize, u64)>,
    /// Bytes above the usual of all texts that are not the same.
    different: usize,
}

impl LongTexts {
    /// Bytes that are counted for each text in any case.
    pub const USUAL: usize = 40;

    /// Those of rows that have a text in each of `columns`: bytes of a row's texts together, and how many rows have as many.
    /// `different` are the bytes of each text there is.
    #[must_use]
    pub fn of(
        rows: impl IntoIterator<Item = (usize, u64)>,
        columns: usize,
        different: impl IntoIterator<Item = usize>,
    ) -> Self {
        let mut by_length: BTreeMap<usize, u64> = BTreeMap::new();
        for (bytes, rows) in rows {
            let above = bytes.saturating_sub(columns * Self::USUAL);
            if above > 0 {
                let all = by_length.entry(above).or_default();
                *all = all.saturating_add(rows);
            }
        }
        let above = different.into_iter().map(|bytes| bytes.saturating_sub(Self::USUAL));
        Self { rows: by_length.into_iter().rev().collect(), different: above.fold(0, usize::saturating_add) }
    }

    /// The most bytes above the usual that `rows` rows have with each text once, as in a dictionary.
    #[must_use]
    pub fn most_different(&self, rows: usize) -> usize {
        self.most(rows).min(self.different)
    }

    /// The most bytes above the usual that `rows` rows have.
    #[must_use]
    pub fn most(&self, rows: usize) -> usize {
        let (mut left, mut bytes) = (rows as u64, 0_u64);
        for &(above, rows) in &self.rows {
            let own = rows.min(left);
            bytes = bytes.saturating_add(own.saturating_mul(above as u64));
            left -= own;
        }
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// How many rows of `row` bytes each, whichever they are, take `bytes` bytes at most.
    #[must_use]
    pub fn rows_within(&self, bytes: usize, row: usize) -> usize {
        let (mut left, mut rows) = (bytes, 0_usize);
        for &(above, own) in &self.rows {
            let each = row.max(1).saturating_add(above);
            let fit = (left / each).min(usize::try_from(own).unwrap_or(usize::MAX));
            rows += fit;
            left -= fit * each;
            if (fit as u64) < own {
                return rows;
            }
        }
        rows.saturating_add(left / row.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_come_first() {
        let rows = [(36, 1000), (100, 2), (1000, 3), (72, 1 << 40), (1000, 5)];
        let one = LongTexts::of(rows, 1, rows.map(|(bytes, _)| bytes));
        assert_eq!(one.rows, [(960, 8), (60, 2), (32, 1 << 40)]);
        assert_eq!([0, 1, 8, 9, 11].map(|n| one.most(n)), [0, 960, 7680, 7740, 7832]);
        let all = 960 + 960 + 60 + 32;
        assert_eq!([1, 2, 3, 1000].map(|n| one.most_different(n)), [960, 1920, all, all]);
        // An agent's id and an episode's may be twice as long together.
        assert_eq!(LongTexts::of(rows, 2, []).rows, [(920, 8), (20, 2)]);
        assert_eq!(LongTexts::of([(36, 5), (40, 1)], 1, [36, 40]), LongTexts::default());
    }

    #[test]
    fn as_many_rows_as_fit_and_not_one_more() {
        let texts = LongTexts::of([(1000, 8), (100, 2)], 1, []);
        for bytes in (0..20_000).step_by(7) {
            let rows = texts.rows_within(bytes, 10);
            assert!(rows * 10 + texts.most(rows) <= bytes, "{bytes}");
            assert!((rows + 1) * 10 + texts.most(rows + 1) > bytes, "{bytes}");
        }
        assert_eq!(LongTexts::default().rows_within(100, 0), 100);
        assert_eq!(LongTexts::of([(usize::MAX, u64::MAX)], 1, []).rows_within(1 << 40, 10), 0);
        assert_eq!(LongTexts::of([(1 << 20, u64::MAX)], 1, []).most(usize::MAX), usize::MAX);
    }
}
