//! Which extra outputs and infos an episode's rows have. There is one of these an episode, so it is kept small.

/// Numbers of columns.
#[derive(Debug, Default, Clone)]
pub(super) struct ColumnSet(Vec<u64>);

impl ColumnSet {
    /// Whether a column is in it.
    pub(super) fn contains(&self, column: usize) -> bool {
        self.0.get(column / 64).is_some_and(|word| word >> (column % 64) & 1 == 1)
    }

    /// Adds a column; gives the bytes that this took.
    pub(super) fn insert(&mut self, column: usize) -> usize {
        let grown = self.reach(column / 64 + 1);
        self.0[column / 64] |= 1 << (column % 64);
        grown
    }

    /// Adds the columns of another one; gives the bytes that this took.
    pub(super) fn extend(&mut self, other: &Self) -> usize {
        let grown = self.reach(other.0.len());
        self.0.iter_mut().zip(&other.0).for_each(|(mine, others)| *mine |= others);
        grown
    }

    fn reach(&mut self, words: usize) -> usize {
        let more = words.saturating_sub(self.0.len());
        self.0.reserve_exact(more);
        self.0.resize(self.0.len() + more, 0);
        more * size_of::<u64>()
    }
}

/// Which extra outputs and infos an episode's rows have.
#[derive(Debug, Default, Clone)]
pub(super) struct Presence {
    /// Null somewhere.
    pub null: ColumnSet,
    /// Not null somewhere. What was not read because it has no null at all counts too, but is not listed.
    pub valid: ColumnSet,
}

impl Presence {
    /// Adds what other rows have; gives the bytes that this took.
    pub(super) fn extend(&mut self, other: &Self) -> usize {
        self.null.extend(&other.null) + self.valid.extend(&other.valid)
    }

    /// Whether a column is null in all rows.
    pub(super) fn lacks(&self, column: usize) -> bool {
        self.null.contains(column) && !self.valid.contains(column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_columns() {
        let (mut a, mut b) = (ColumnSet::default(), ColumnSet::default());
        assert_eq!((a.insert(3), a.insert(63), a.insert(3)), (8, 0, 0));
        assert_eq!((b.insert(130), a.extend(&b), b.extend(&a)), (24, 16, 0));
        for set in [&a, &b] {
            let found: Vec<usize> = (0..300).filter(|&column| set.contains(column)).collect();
            assert_eq!(found, [3, 63, 130]);
        }
    }

    #[test]
    fn a_column_is_lacking_where_it_is_never_there() {
        let (mut all, mut rows) = (Presence::default(), Presence::default());
        all.null.insert(1);
        all.null.insert(2);
        rows.valid.insert(2);
        all.extend(&rows);
        assert_eq!([0, 1, 2].map(|column| all.lacks(column)), [false, true, false]);
    }
}
