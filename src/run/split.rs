//! Parts of a data set, by episode.
//!
//! An episode's part follows from its id alone: the first eight bytes of the id's BLAKE3 digest, as a number between
//! 0 and 1, fall into one of the parts' shares. So an episode stays in its part when others come or go, all of its
//! chunks and agents are in one part, and the parts' sizes are near their fractions rather than equal to them.
//!
//! ```text
//! train = 0.9, val = 0.1       0 ──────────── train ─────────── 0.9 ─ val ─ 1
//!                                   id "ep-7"  0.3141 ▲            0.95 ▲  id "ep-8"
//! ```

use indexmap::IndexMap;

use crate::connector::Survey;
use crate::error::{Error, Result};
use crate::pipeline::{ModulePlan, Pipeline, Surveys};
use crate::source::index::Index;

/// The part of an episode: a position in `parts`.
fn part_of(id: &str, parts: &IndexMap<String, f64>) -> usize {
    let digest = blake3::hash(id.as_bytes());
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest.as_bytes()[..8]);
    // 53 bits, which a float64 holds exactly.
    let place = (u64::from_le_bytes(bytes) >> 11) as f64 / (1_u64 << 53) as f64;
    let mut end = 0.0;
    parts
        .values()
        .position(|fraction| {
            end += fraction;
            place < end
        })
        .unwrap_or(parts.len() - 1)
}

/// The part whose statistics all parts go by: `train`, or the first one where none is called so.
#[must_use]
pub(crate) fn basis(parts: &IndexMap<String, f64>) -> &str {
    const TRAIN: &str = "train";
    if parts.contains_key(TRAIN) { TRAIN } else { parts.keys().next().map_or(TRAIN, String::as_str) }
}

/// For each module of each part, the same module of the part whose statistics it goes by.
///
/// What is learned from the training part is applied to all parts: statistics that had seen the other parts' episodes
/// would tell a model about the very data that it is tested on, and an agent in use has the training part's alone.
#[derive(Debug)]
pub(super) struct Basis {
    of: Vec<usize>,
}

impl Basis {
    /// # Errors
    /// If a module has steps in another part and none in that one.
    pub fn new(
        parts: &IndexMap<String, f64>,
        pipeline: &Pipeline,
        index: &Index,
        modules: &[ModulePlan],
    ) -> Result<Self> {
        let basis = basis(parts);
        let mut steps = vec![0_u64; modules.len()];
        for entry in &index.entries {
            steps[entry.module as usize] += entry.steps;
        }
        let own = |m: &ModulePlan| modules.iter().position(|b| b.id == m.id && b.part.as_deref() == Some(basis));
        let of: Vec<usize> = modules.iter().enumerate().map(|(i, m)| own(m).unwrap_or(i)).collect();
        let taken = |i: usize| !pipeline.surveys_each_part(i) && pipeline.surveys(i, modules).is_some();
        if let Some(piece) = (0..pipeline.len()).find(|&i| taken(i))
            && let Some(m) = (0..modules.len()).find(|&m| steps[m] > 0 && steps[of[m]] == 0)
        {
            let what = format!(
                "the part {basis:?} has no step of module {:?}, so it gives no statistics for the part {:?}",
                modules[m].id,
                modules[m].part.as_deref().unwrap_or_default()
            );
            let error = Error::data(what).job_key("output.split");
            return Err(pipeline
                .named(piece, error)
                .hint("give it a larger fraction, or convert the parts by themselves"));
        }
        Ok(Self { of })
    }

    /// Leaves the surveys of the other parts out.
    pub fn keep_its_own(&self, pipeline: &Pipeline, piece: usize, surveys: &mut [Option<Box<dyn Survey>>]) {
        for (m, survey) in surveys.iter_mut().enumerate() {
            if !pipeline.surveys_each_part(piece) && self.of[m] != m {
                *survey = None;
            }
        }
    }

    /// Lets the other parts go by what was found.
    pub fn share(&self, pipeline: &Pipeline, piece: usize, surveys: &mut Surveys) {
        for (m, &of) in self.of.iter().enumerate() {
            if !pipeline.surveys_each_part(piece) && of != m {
                surveys.share(piece, of, m);
            }
        }
    }
}

/// A note for each part that no episode falls into.
pub(super) fn empty_parts(parts: &IndexMap<String, f64>, index: &Index, modules: &[ModulePlan]) -> Vec<String> {
    let has_steps = |part: &String| {
        index.entries.iter().any(|e| e.steps > 0 && modules[e.module as usize].part.as_ref() == Some(part))
    };
    let note = |part: &String| {
        format!(
            "the part {part:?} of output.split has no rows: none of the {} episodes falls into it",
            index.entries.len()
        )
    };
    parts.keys().filter(|part| !has_steps(part)).map(note).collect()
}

/// Makes a module of every part of every module, and sends each episode to its part's.
///
/// # Errors
/// If there are more modules than can be numbered.
pub(super) fn split(
    parts: &IndexMap<String, f64>,
    modules: &[ModulePlan],
    index: &mut Index,
) -> Result<Vec<ModulePlan>> {
    let count = u32::try_from(modules.len()).map_err(|_| Error::usage("found more modules than there can be"))?;
    for entry in &mut index.entries {
        let part = u32::try_from(part_of(&entry.id.to_string(), parts)).unwrap_or(0);
        entry.module += part * count;
    }
    index.layouts = parts.keys().flat_map(|_| index.layouts.clone()).collect();
    Ok(of_parts(parts, modules))
}

/// The modules of every part.
pub(super) fn of_parts(parts: &IndexMap<String, f64>, modules: &[ModulePlan]) -> Vec<ModulePlan> {
    let of_part = |part: &String| {
        let own = |m: &ModulePlan| ModulePlan { part: Some(part.clone()), ..m.clone() };
        modules.iter().map(own).collect::<Vec<_>>()
    };
    parts.keys().flat_map(of_part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_near_their_fractions_and_stay() {
        let parts = IndexMap::from([("train".to_owned(), 0.8), ("val".to_owned(), 0.2)]);
        let of = |i: u32| part_of(&format!("episode-{i}"), &parts);
        let val = (0..10_000).filter(|i| of(*i) == 1).count();
        assert!((1_900..2_100).contains(&val), "{val} of 10000 in a part of 0.2");
        assert_eq!((0..8).map(of).collect::<Vec<_>>(), PARTS);
        let all = IndexMap::from([("all".to_owned(), 1.0)]);
        assert!((0..100).all(|i| part_of(&i.to_string(), &all) == 0));
    }

    /// Where `episode-0` to `episode-7` fall. A change here moves users' episodes to other parts.
    const PARTS: [usize; 8] = [0, 1, 0, 0, 0, 0, 0, 0];
}
