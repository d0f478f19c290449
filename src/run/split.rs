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

use crate::connector::Piece;
use crate::connectors::GeneralAdvantageEstimation;
use crate::error::{Error, Result};
use crate::pipeline::{ModulePlan, Pipeline};
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

/// Refuses pieces whose statistics would be taken over each part by itself.
///
/// # Errors
/// If there is such a piece.
pub(crate) fn check(pipeline: &Pipeline, modules: &[ModulePlan]) -> Result<()> {
    for (i, piece) in pipeline.pieces().enumerate() {
        // Advantages are standardised over a train batch, which is a part; other statistics are the data set's.
        if pipeline.surveys(i, modules).is_some() && piece.name() != GeneralAdvantageEstimation::NAME {
            return Err(Error::usage("statistics of the whole data set together with output.split are not built yet")
                .connector(i, piece.name())
                .job_key("output.split")
                .hint("convert the parts by themselves"));
        }
    }
    Ok(())
}

/// Makes a module of every part of every module, and sends each episode to its part's.
///
/// # Errors
/// If a piece's statistics would be taken over each part by itself.
pub(super) fn split(
    parts: &IndexMap<String, f64>,
    pipeline: &Pipeline,
    modules: &[ModulePlan],
    index: &mut Index,
) -> Result<Vec<ModulePlan>> {
    check(pipeline, modules)?;
    let count = u32::try_from(modules.len()).map_err(|_| Error::usage("found more modules than there can be"))?;
    for entry in &mut index.entries {
        let part = u32::try_from(part_of(&entry.id.to_string(), parts)).unwrap_or(0);
        entry.module += part * count;
    }
    let of_part = |part: &String| {
        let own = |m: &ModulePlan| ModulePlan { part: Some(part.clone()), ..m.clone() };
        modules.iter().map(own).collect::<Vec<_>>()
    };
    index.layouts = parts.keys().flat_map(|_| index.layouts.clone()).collect();
    Ok(parts.keys().flat_map(of_part).collect())
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
