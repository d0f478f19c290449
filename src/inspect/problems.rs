//! Problems by kind: how often, and where first.

use indexmap::IndexMap;
use serde::Serialize;

use crate::error::Error;

/// Kinds that are told; what is beyond is counted in one.
const KINDS: usize = 100;

/// One kind of problem.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// What was found, of the first one.
    pub what: String,
    /// How often.
    pub count: u64,
    /// Where the first one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Problems as they come.
#[derive(Debug, Default)]
pub(super) struct Problems(IndexMap<String, Problem>);

impl Problems {
    fn add(&mut self, kind: String, count: u64, problem: impl FnOnce() -> Problem) {
        let full = self.0.len() >= KINDS && !self.0.contains_key(&kind);
        let kind = if full { String::new() } else { kind };
        let new = || {
            if full { Problem { what: "problems of other kinds".to_owned(), ..Problem::default() } } else { problem() }
        };
        self.0.entry(kind).or_insert_with(new).count += count;
    }

    /// Something that an error tells.
    pub fn error(&mut self, error: &Error, count: u64) {
        let column = error.place().column.clone().unwrap_or_default();
        self.add(format!("{} {column}", kind_of(error.what())), count, || Problem {
            what: error.what().to_owned(),
            count: 0,
            first: Some(error.place().to_string()).filter(|p| !p.is_empty()),
            hint: error.hint_text().map(str::to_owned),
        });
    }

    /// Something that is counted; nothing if there is none.
    pub fn count(&mut self, what: &str, count: u64, first: Option<String>) {
        if count > 0 {
            self.add(what.to_owned(), count, || Problem { what: what.to_owned(), count: 0, first, hint: None });
        }
    }

    /// [`Self::count`] of something to do something about.
    pub fn counted_with_hint(&mut self, what: &str, count: u64, first: Option<String>, hint: &str) {
        if count > 0 {
            let hint = Some(hint.to_owned());
            self.add(what.to_owned(), count, || Problem { what: what.to_owned(), count: 0, first, hint });
        }
    }

    /// Something to know and to do something about.
    pub fn hinted(&mut self, what: &str, first: String, hint: &str) {
        let (first, hint) = (Some(first), Some(hint.to_owned()));
        self.add(what.to_owned(), 1, || Problem { what: what.to_owned(), count: 0, first, hint });
    }

    /// Something to know.
    pub fn note(&mut self, what: &str, first: Option<String>) {
        self.count(what, 1, first);
    }

    pub fn finish(self) -> Vec<Problem> {
        self.0.into_values().collect()
    }
}

/// A message without its numbers: those that differ in nothing else are of one kind.
fn kind_of(what: &str) -> String {
    let mut out = String::with_capacity(what.len());
    for c in what.chars() {
        let c = if c.is_ascii_digit() { '0' } else { c };
        if !(c == '0' && out.ends_with('0')) {
            out.push(c);
        }
    }
    // "1 step is missing" and "2 steps are missing" are one kind, too.
    out.replace("steps are", "step is")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_of_one_kind_are_counted_together_and_their_number_is_bounded() {
        let mut problems = Problems::default();
        problems.error(&Error::data("t jumps from 3 to 5: 1 step is missing").row(7), 1);
        problems.error(&Error::data("t jumps from 10 to 15: 4 steps are missing").row(9), 2);
        let found = problems.finish();
        assert_eq!((found.len(), found[0].count, found[0].first.as_deref()), (1, 3, Some("row 7")));
        let mut problems = Problems::default();
        for c in 0..1000_u32 {
            let name: String = c.to_string().bytes().map(|b| char::from(b + b'a' - b'0')).collect();
            problems.note(&name, None);
        }
        let found = problems.finish();
        assert_eq!((found.len(), found.iter().map(|p| p.count).sum::<u64>()), (KINDS + 1, 1000));
    }
}
