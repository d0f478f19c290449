//! One batch of the first pass: whose its rows are, and which of them go on where the row before stopped.
//!
//! ```text
//! eps_id      a a a a a a b b b        most rows are one more step of the episode of the row before: they are taken
//! t           0 1 2 3 4 5 0 1 2        together, up to the next one with a flag, or without an action
//! terminated  . . . . . x . . .
//! taken       |-------| | |---|
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, BooleanArray, Int64Array, RecordBatch};
use arrow::buffer::{BooleanBuffer, NullBuffer};

use super::{ScanColumns, Scanned};
use crate::column;
use crate::episode::EpisodeId;
use crate::error::{Error, Result};
use crate::source::file::InputFile;
use crate::source::index::Span;
use crate::source::ingest::{self, Ids, Places};
use crate::source::rows::RowMap;
use crate::source::runs::{Done, ScanRow, Who};

/// A batch's column as `read` makes it of it; `None` where the file does not have it.
fn optional<T>(
    batch: &RecordBatch,
    name: Option<&String>,
    canonical: &str,
    read: impl Fn(&Arc<dyn Array>) -> Result<T>,
) -> Result<Option<T>> {
    name.and_then(|n| batch.column_by_name(n)).map(|a| read(a).map_err(|e| e.column(canonical))).transpose()
}

/// The columns of a batch, ready to be looked at row by row.
pub(super) struct Batch {
    pub len: usize,
    ids: Ids,
    agents: Option<Ids>,
    modules: Option<Ids>,
    t: Option<Int64Array>,
    terminateds: Option<BooleanArray>,
    truncateds: Option<BooleanArray>,
    obs_nulls: Option<NullBuffer>,
    action_nulls: Option<NullBuffer>,
    /// Extra outputs (and leaves of infos behind them) that were read, by position, and their nulls.
    extras: Vec<(usize, Option<NullBuffer>)>,
    /// Whether there are any infos among them, which single agents have as well.
    has_infos: bool,
    /// Rows that may be more than another step of their episode, rising: with a flag, without time or action.
    special: Vec<usize>,
}

impl Batch {
    pub fn new(batch: &RecordBatch, row_in_file: u64, columns: &ScanColumns) -> Result<Self> {
        let ids = optional(batch, Some(&columns.eps_id), column::EPS_ID, |a| ingest::ids(a, row_in_file))?;
        let names = |name: &Option<String>, canonical| {
            optional(batch, name.as_ref(), canonical, |a| ingest::optional_ids(a, row_in_file)).map(Option::flatten)
        };
        let flags = |name: &Option<String>, canonical| {
            optional(batch, name.as_ref(), canonical, |a| ingest::flags(a, row_in_file))
        };
        let arrays = ingest::by_name(batch);
        // Null where all of the value's columns are; those that the file does not have are.
        let nulls = |names: &[String]| -> Option<NullBuffer> {
            let read = names.iter().filter_map(|n| arrays.get(n.as_str())).map(|array| ingest::absent(array));
            read.reduce(|a, b| Some(NullBuffer::new(a?.inner() | b?.inner()))).flatten()
        };
        let t = optional(batch, columns.t.as_ref(), column::T, |a| ingest::ints(a, row_in_file))?;
        let terminateds = flags(&columns.terminateds, column::TERMINATEDS)?;
        let truncateds = flags(&columns.truncateds, column::TRUNCATEDS)?;
        let action_nulls = nulls(&columns.actions);
        let missing = [t.as_ref().and_then(Array::nulls), action_nulls.as_ref()];
        let missing = missing.into_iter().flatten().map(|nulls| !nulls.inner());
        let special = missing.chain([&terminateds, &truncateds].into_iter().flatten().map(set_or_null));
        let special = special.reduce(|a, b| &a | &b).map_or_else(Vec::new, |rows| rows.set_indices().collect());
        let extras = columns.extras.iter().enumerate();
        Ok(Self {
            len: batch.num_rows(),
            ids: ids.ok_or_else(|| Error::usage("the column is missing").column(column::EPS_ID))?,
            agents: names(&columns.agent, column::AGENT_ID)?,
            modules: names(&columns.module, column::MODULE_ID)?,
            t,
            terminateds,
            truncateds,
            obs_nulls: nulls(&columns.obs),
            action_nulls,
            extras: extras.filter_map(|(i, n)| arrays.get(n.as_str()).map(|a| (i, ingest::absent(a)))).collect(),
            has_infos: !columns.infos.is_empty(),
            special,
        })
    }

    /// Which rows have which infos. What cannot be read is told to `odd`, and never an error.
    pub fn look_at_infos(
        &mut self,
        file: &InputFile,
        batch: &RecordBatch,
        row_in_file: u64,
        columns: &ScanColumns,
        odd: &mut impl FnMut(usize, Error),
    ) {
        let arrays = ingest::by_name(batch);
        let mut places: HashMap<&str, Places<'_>> = HashMap::new();
        for (i, (source, spec, ty)) in columns.infos.iter().enumerate() {
            let at = columns.extras.len() + i;
            let (Some(array), Some((_, field))) = (arrays.get(source.as_str()), file.field(source)) else {
                self.extras.push((at, Some(NullBuffer::new_null(self.len))));
                continue;
            };
            let places = places.entry(source).or_default();
            let read = ingest::tensor(field, array, spec, ty, row_in_file, places)
                .and_then(|_| ingest::leaf_nulls(field, array, &spec.path, places));
            match read {
                Ok(nulls) => self.extras.push((at, nulls)),
                Err(e) => odd(at, e),
            }
        }
    }

    /// Adds the rows. With a map to tell where it is, one that lacks its time or a flag is put aside.
    pub fn rows(&self, first_row: u64, tolerant: Option<&RowMap>, out: &mut Scanned) -> Result<(), (usize, Error)> {
        // Whose row it is changes rarely; asking for it by id only then keeps strings out of the loop.
        let mut current: Option<(usize, u32)> = None; // (row whose id it is, number)
        let null = |nulls: &Option<NullBuffer>, i: usize| nulls.as_ref().is_some_and(|n| n.is_null(i));
        let looks_at_extras = (self.agents.is_some() || self.has_infos) && !self.extras.is_empty();
        let mut special = self.special.iter().copied().peekable();
        let mut next = 0;
        while next < self.len {
            let i = next;
            let episode = match current {
                Some((at, number)) if self.same(at, i) => number,
                _ => out.runs.number(&self.who(i)).map_err(|e| (i, e))?,
            };
            current = Some((i, episode));
            while special.next_if(|row| *row < i).is_some() {}
            let plain = special.peek().copied().unwrap_or(self.len);
            if plain > i && !looks_at_extras {
                next = self.one_after_the_other(i, plain);
                let t = self.t.as_ref().map(|t| t.value(i));
                out.runs.push_rows(episode, Span::new(first_row + i as u64, (next - i) as u64), t);
                continue;
            }
            next += 1;
            let tail = null(&self.action_nulls, i);
            // Only among several agents there is one that does not act for a while.
            let hanging = tail && self.agents.is_some() && null(&self.obs_nulls, i);
            let row = match self.row(first_row, i, tail, hanging) {
                Ok(row) => row,
                Err((at, error)) => {
                    let Some(map) = tolerant else { return Err((at, error)) };
                    let row = first_row + i as u64;
                    out.put_aside(Some(self.who(i)), Span::one(row), map.locate(row, error));
                    continue;
                }
            };
            if looks_at_extras && !tail {
                let (presence, mut grown) = (out.presence(episode), 0);
                for (extra, nulls) in &self.extras {
                    let seen = if null(nulls, i) { &mut presence.null } else { &mut presence.valid };
                    grown += seen.insert(*extra);
                }
                out.presence_bytes += grown;
            }
            out.runs.push_row(episode, row);
        }
        Ok(())
    }

    /// How far rows from `start` on are one episode's steps, one after the other; up to `end`.
    fn one_after_the_other(&self, start: usize, end: usize) -> usize {
        let ids = [Some(&self.ids), self.agents.as_ref(), self.modules.as_ref()];
        let end = ids.into_iter().flatten().fold(end, |end, ids| start + same_ids(ids, start, end));
        let Some(t) = &self.t else { return end };
        let t = &t.values()[start..end];
        let goes_on = |(i, found): &(u64, &i64)| t[0].checked_add_unsigned(*i) == Some(**found);
        start + (0..).zip(t).take_while(goes_on).count()
    }

    fn row(&self, first_row: u64, i: usize, tail: bool, hanging: bool) -> Result<ScanRow, (usize, Error)> {
        // In this order, which is that of the errors.
        let t = self.t(i)?;
        let terminated = self.flag(self.terminateds.as_ref(), column::TERMINATEDS, i, tail)?;
        let truncated = self.flag(self.truncateds.as_ref(), column::TRUNCATEDS, i, tail)?;
        Ok(ScanRow { row: first_row + i as u64, t, done: Done { terminated, truncated }, tail, hanging })
    }

    pub fn who(&self, i: usize) -> Who {
        let name = |ids: &Option<Ids>| ids.as_ref().map(|ids| text_at(ids, i));
        let id = match &self.ids {
            Ids::Int(a) => EpisodeId::Int(a.value(i)),
            Ids::Str(a) => EpisodeId::Str(a.value(i).into()),
        };
        Who { id, agent: name(&self.agents), module: name(&self.modules) }
    }

    fn same(&self, a: usize, b: usize) -> bool {
        let same = |ids: &Option<Ids>| ids.as_ref().is_none_or(|ids| same_id(ids, a, b));
        same_id(&self.ids, a, b) && same(&self.agents) && same(&self.modules)
    }

    /// An error about a row.
    fn null(&self, what: &str, name: &str, i: usize) -> (usize, Error) {
        let error = Error::data(format!("found null, expected {what}")).column(name);
        (i, error.episode(self.who(i).id.to_string()))
    }

    fn t(&self, i: usize) -> Result<Option<i64>, (usize, Error)> {
        match &self.t {
            Some(t) if t.is_null(i) => Err(self.null("a time step", column::T, i)),
            Some(t) => Ok(Some(t.value(i))),
            None => Ok(None),
        }
    }

    fn flag(&self, flags: Option<&BooleanArray>, name: &str, i: usize, tail: bool) -> Result<bool, (usize, Error)> {
        match flags {
            Some(f) if f.is_null(i) && !tail => {
                let (row, error) = self.null("true or false", name, i);
                Err((row, error.hint("fill it with false where the episode goes on")))
            }
            Some(f) => Ok(!f.is_null(i) && f.value(i)),
            None => Ok(false),
        }
    }
}

fn text_at(ids: &Ids, i: usize) -> Arc<str> {
    match ids {
        Ids::Int(a) => a.value(i).to_string().into(),
        Ids::Str(a) => a.value(i).into(),
    }
}

fn same_id(ids: &Ids, a: usize, b: usize) -> bool {
    match ids {
        Ids::Int(ids) => ids.value(a) == ids.value(b),
        Ids::Str(ids) => ids.value(a) == ids.value(b),
    }
}

/// How many rows from `start` on, up to `end`, have the id of the first one.
fn same_ids(ids: &Ids, start: usize, end: usize) -> usize {
    match ids {
        Ids::Int(ids) => {
            let ids = &ids.values()[start..end];
            ids.iter().take_while(|id| **id == ids[0]).count()
        }
        Ids::Str(ids) => {
            let (views, first) = (ids.views(), ids.value(start));
            // Rows that share a text have the same view.
            (start..end).take_while(|&i| views[i] == views[start] || ids.value(i) == first).count()
        }
    }
}

/// Rows whose flag is set, or null.
fn set_or_null(flags: &BooleanArray) -> BooleanBuffer {
    match flags.nulls() {
        Some(nulls) => flags.values() | &!nulls.inner(),
        None => flags.values().clone(),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, StringArray};

    use super::*;
    use crate::source::runs::Run;

    /// Runs of a batch's rows, found in one go and row by row.
    fn runs(columns: Vec<(&str, ArrayRef)>) -> [Vec<Run>; 2] {
        let batch = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true))).unwrap();
        let has = |name: &str| batch.column_by_name(name).map(|_| name.to_owned());
        let columns = ScanColumns {
            eps_id: "eps_id".to_owned(),
            agent: has("agent_id"),
            t: has("t"),
            terminateds: has("terminateds"),
            truncateds: has("truncateds"),
            actions: vec!["actions".to_owned()],
            obs: vec!["obs".to_owned()],
            ..ScanColumns::default()
        };
        let mut whole = Scanned::default();
        Batch::new(&batch, 0, &columns).unwrap().rows(7, None, &mut whole).map_err(|(_, e)| e).unwrap();
        let mut singly = Scanned::default();
        for i in 0..batch.num_rows() {
            let one = Batch::new(&batch.slice(i, 1), 0, &columns).unwrap();
            one.rows(7 + i as u64, None, &mut singly).map_err(|(_, e)| e).unwrap();
        }
        assert_eq!(whole.runs.ids, singly.runs.ids);
        [whole.runs.runs, singly.runs.runs]
    }

    #[test]
    fn runs_are_those_of_single_rows() {
        let n = 500;
        let int = |i: usize| i64::try_from(i).unwrap();
        let episode = |i: usize| i / 37 % 5;
        for (seed, timed) in (0..20).flat_map(|seed| [(seed, true), (seed, false)]) {
            let odd = move |i: usize, every: usize| (i * 31 + seed * 17 + every).is_multiple_of(every);
            let t: Vec<i64> = (0..n).map(|i| int(i % 37 + usize::from(odd(i, 41)))).collect();
            let ids: ArrayRef = if seed % 2 == 0 {
                Arc::new((0..n).map(|i| int(episode(i))).collect::<Int64Array>())
            } else {
                let long = "a long name of an episode";
                Arc::new((0..n).map(|i| Some(format!("{}{}", &long[..seed], episode(i)))).collect::<StringArray>())
            };
            let mut columns: Vec<(&str, ArrayRef)> = vec![
                ("eps_id", ids),
                ("terminateds", Arc::new((0..n).map(|i| Some(odd(i, 53))).collect::<BooleanArray>())),
                ("truncateds", Arc::new((0..n).map(|i| Some(odd(i, 71))).collect::<BooleanArray>())),
                ("actions", Arc::new((0..n).map(|i| (!odd(i, 61)).then_some(int(i))).collect::<Int64Array>())),
            ];
            if timed {
                columns.push(("t", Arc::new(Int64Array::from(t))));
            }
            if seed % 3 == 0 {
                let agents = (0..n).map(|i| Some(if i / 11 % 2 == 0 { "left" } else { "right" }));
                columns.push(("agent_id", Arc::new(agents.collect::<StringArray>())));
            }
            let [whole, singly] = runs(columns);
            assert_eq!(whole, singly, "{seed}, timed: {timed}");
        }
    }

    #[test]
    fn the_end_of_time_is_an_end() {
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![1; 3]));
        let t: ArrayRef = Arc::new(Int64Array::from(vec![i64::MAX - 1, i64::MAX, i64::MIN]));
        let [whole, singly] = runs(vec![("eps_id", ids), ("t", t)]);
        assert_eq!(whole.len(), 2);
        assert_eq!(whole, singly);
    }
}
