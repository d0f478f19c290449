//! Malformed episodes that the job leaves out (`input.on_bad_episode` = skip or quarantine), and where their rows lie.
//!
//! An episode is left out as a whole: all chunks and agents of its id. Half an episode is another episode, and its other
//! chunks would look back on what is not there any more.
//!
//! ```text
//! first pass    null ids and times, gaps, conflicts, damaged row groups     rows or ids, as far as can be told
//! check pass    nulls, ragged values, undecodable cells                     episodes, one by one
//! ```

use std::collections::{BTreeMap, HashMap};

use super::index::{self, Index, Span};
use super::rows::RowGroupRef;
use crate::episode::EpisodeId;
use crate::error::{Error, Kind, Result};

/// One malformed episode, or rows that belong to none.
#[derive(Debug, Clone)]
pub struct Fault {
    /// What is wrong, and where.
    pub error: Error,
    /// The episode; none where even its id cannot be read.
    pub id: Option<EpisodeId>,
    /// The rows that are left out with it.
    pub rows: Vec<Span>,
    /// Episodes (chunks and agents one by one, as [`Index::episodes_read`] counts them) that are left out.
    pub episodes: u64,
    /// Their steps.
    pub steps: u64,
}

/// What is left out, in the order in which it was found.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    list: Vec<Fault>,
    by_id: HashMap<EpisodeId, usize>,
    /// The faults of row groups that cannot be read, by their first row.
    groups: BTreeMap<u64, usize>,
}

/// An input file that could not be opened and is left out.
#[derive(Debug, Clone)]
pub struct LostFile {
    /// What it is called.
    pub name: String,
    /// Why.
    pub error: Error,
}

/// Whether an error is one of the data, which can be left out: a damaged file is told as the user's, for lack of another
/// kind.
#[must_use]
pub fn is_of_data(error: &Error) -> bool {
    matches!(error.kind(), Kind::Data | Kind::Usage)
}

impl Faults {
    /// The faults.
    #[must_use]
    pub fn list(&self) -> &[Fault] {
        &self.list
    }

    /// Whether nothing is left out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether an episode is left out.
    #[must_use]
    pub fn has(&self, id: &EpisodeId) -> bool {
        self.by_id.contains_key(id)
    }

    /// Sums over all faults: episodes, their steps, and rows that belong to no episode.
    #[must_use]
    pub fn sums(&self) -> (u64, u64, u64) {
        let rows = |f: &Fault| f.rows.iter().map(|s| s.len()).sum::<u64>();
        self.list.iter().fold((0, 0, 0), |(episodes, steps, strays), f| {
            (
                episodes + f.episodes,
                steps + f.steps,
                strays + if f.id.is_none() && f.episodes == 0 { rows(f) } else { 0 },
            )
        })
    }

    /// An episode is malformed. Only the first of its errors is kept.
    pub fn episode(&mut self, id: &EpisodeId, error: Error) -> &mut Fault {
        let next = self.list.len();
        let at = *self.by_id.entry(id.clone()).or_insert(next);
        if at == next {
            let error = error.episode(id.to_string());
            self.list.push(Fault { error, id: Some(id.clone()), rows: Vec::new(), episodes: 0, steps: 0 });
        }
        &mut self.list[at]
    }

    /// Rows cannot be told whose they are.
    pub fn rows(&mut self, rows: Span, error: Error) -> &mut Fault {
        let at = self.list.len();
        self.list.push(Fault { error, id: None, rows: vec![rows], episodes: 0, steps: 0 });
        &mut self.list[at]
    }

    /// A row group cannot be read at all. How many rows it has is what its file says, which may be anything.
    pub(super) fn row_group(&mut self, group: RowGroupRef, error: Error) -> &mut Fault {
        let at = self.list.len();
        self.groups.insert(group.first_row, at);
        let starts = (0..group.rows).step_by(usize::try_from(Span::LONGEST).unwrap_or(usize::MAX));
        let rows = starts.map(|at| Span::new(group.first_row + at, (group.rows - at).min(Span::LONGEST))).collect();
        self.list.push(Fault { error, id: None, rows, episodes: 0, steps: 0 });
        &mut self.list[at]
    }

    /// The fault of a row group that cannot be read at all. Whoever goes through it row by row goes through nothing.
    #[must_use]
    pub fn lost(&self, group: RowGroupRef) -> Option<&Fault> {
        self.groups.get(&group.first_row).map(|&at| &self.list[at])
    }

    /// Puts what `better` makes of each error in its place.
    pub(super) fn tell_better(&mut self, better: &dyn Fn(Error) -> Error) {
        for fault in &mut self.list {
            fault.error = better(fault.error.clone());
        }
    }

    /// The id's rows and steps are left out with it.
    pub fn add(&mut self, id: &EpisodeId, rows: impl IntoIterator<Item = Span>, episodes: u64, steps: u64) {
        let Some(&at) = self.by_id.get(id) else { return };
        let fault = &mut self.list[at];
        for span in rows {
            match fault.rows.last_mut().and_then(|last| Some((last.joined_consecutive(span)?, last))) {
                Some((joined, last)) => *last = joined,
                None => fault.rows.push(span),
            }
        }
        fault.episodes += episodes;
        fault.steps += steps;
    }
}

/// Takes the entries of malformed episodes out of the index, which may leave none; see [`require_some`].
///
/// # Errors
/// If there are too many.
pub fn leave_out(index: &mut Index) -> Result<()> {
    let mut faults = std::mem::take(&mut index.faults);
    for entry in std::mem::take(&mut index.entries) {
        if faults.has(&entry.id) {
            let own = index.spans[entry.spans.clone()].iter().copied();
            let extra = entry.tail().into_iter().chain(entry.hanging().iter().map(|(_, row)| *row));
            let rows: Vec<Span> = own.chain(extra.map(Span::one)).collect();
            faults.add(&entry.id, rows, 1, entry.steps);
        } else {
            index.entries.push(entry);
        }
    }
    index.faults = faults;
    index::number(&mut index.entries)
}

/// Refuses an index of which malformed episodes, or rows of nobody, are left out, and with them everything.
///
/// # Errors
/// If so, with what is wrong with the first.
pub fn require_some(index: &Index) -> Result<()> {
    let faults = &index.faults;
    let Some(first) = faults.list.first().filter(|_| index.entries.is_empty()) else { return Ok(()) };
    let what = if index.episodes_read > 0 {
        format!("none of the episodes is well-formed ({} found)", faults.list.len())
    } else {
        // Not even whose they are could be read.
        let rows: u64 = faults.list.iter().flat_map(|f| &f.rows).map(|s| s.len()).fold(0, u64::saturating_add);
        format!("none of the rows belongs to a well-formed episode ({rows} found)")
    };
    // Of kind `Data`, also where the first is a damaged file's.
    let place = first.error.place().clone();
    let told = Error::data(format!("{what}; the first: {}", first.error.what())).at(place);
    Err(told.hint("`gristmill inspect` lists what is wrong with the input"))
}

/// What to tell where malformed rows are left out, and of one column nothing else is there: not even its type is known.
pub(super) fn no_row_is_readable(damage: &Error) -> Error {
    let told = Error::data(format!("none of the rows can be read: {}", damage.what())).at(damage.place().clone());
    match damage.hint_text() {
        Some(hint) => told.hint(hint),
        None => told,
    }
}

/// Rows from a place on that could be decoded, and rows that could not.
type Parts<T> = (Vec<(usize, T)>, Vec<(usize, Error)>);

/// The parts of `rows` that `decode` cannot take, row by row, each with why. `decode` gets a range of rows.
pub(super) fn bad_rows<T>(rows: usize, mut decode: impl FnMut(usize, usize) -> Result<T>) -> Result<Parts<T>> {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    // Ranges to come, the first one last.
    let mut todo = vec![(0, rows)];
    while let Some((start, len)) = todo.pop() {
        if len == 0 {
            continue;
        }
        match decode(start, len) {
            Ok(part) => good.push((start, part)),
            Err(e) if !is_of_data(&e) => return Err(e),
            Err(e) if len == 1 => bad.push((start, e)),
            Err(_) => {
                let half = len / 2;
                todo.push((start + half, len - half));
                todo.push((start, half));
            }
        }
    }
    Ok((good, bad))
}
