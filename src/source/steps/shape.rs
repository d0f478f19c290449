//! The columns of step rows: as files have them, and as blocks hold them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::NullBuffer;

use crate::column::{ACTIONS, NEXT_OBS, OBS, REWARDS, rebase, root};
use crate::episode::{Columns, EpisodeLayout};
use crate::error::{Error, Result};
use crate::source::blocks::LeafNulls;
use crate::source::file::InputFile;
use crate::source::ingest::{self, Places};
use crate::source::modules::Own;
use crate::source::schema::Unified;
use crate::tensor::{Tensor, TensorType};

/// What the rows look like; shared with the tasks that decode them.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) unified: Unified,
    /// The step columns: observations, actions, rewards, extra outputs, infos.
    pub(super) steps: Vec<Leaf>,
    /// The recorded next observations.
    pub(super) next: Vec<Leaf>,
}

/// A leaf's name and type.
pub(super) type Leaf = (Arc<str>, TensorType);

/// The leaves of the step columns (observations, actions, rewards, extra outputs, in this order) and those of the
/// recorded next observations.
pub(super) fn split_leaves(unified: &Unified) -> Result<(Vec<Leaf>, Vec<Leaf>)> {
    let leaves = |want: &dyn Fn(&str) -> bool| -> Vec<Leaf> {
        let columns = unified.columns.iter().filter(|c| want(root(&c.name)));
        columns.flat_map(|c| &c.leaves).map(|(leaf, ty)| (Arc::from(leaf.name.as_str()), ty.clone())).collect()
    };
    let mut steps = leaves(&|r| r == OBS);
    let obs = steps.clone();
    steps.extend(leaves(&|r| r == ACTIONS));
    steps.extend(leaves(&|r| r == REWARDS));
    steps.extend(leaves(&|r| !matches!(r, OBS | ACTIONS | REWARDS | NEXT_OBS)));
    let next = leaves(&|r| r == NEXT_OBS);
    let of: HashMap<&str, &TensorType> = next.iter().rev().map(|(n, ty)| (&**n, ty)).collect();
    let found = |name: &str| of.get(name).copied();
    for (name, ty) in &obs {
        // Where several modules have rows, each module's types are compared once they are known.
        check_pair(name, ty, found(&rebase(name, NEXT_OBS)), next.is_empty(), unified.several)?;
    }
    if next.len() > obs.len() {
        return Err(Error::usage("`new_obs` has leaves that `obs` has not").column(NEXT_OBS));
    }
    Ok((steps, next))
}

/// Refuses a recorded next observation that does not fit its observation.
fn check_pair(obs: &str, ty: &TensorType, next: Option<&TensorType>, none: bool, any_type: bool) -> Result<()> {
    let expected = rebase(obs, NEXT_OBS);
    match next {
        _ if none => Ok(()),
        Some(found) if found == ty || any_type => Ok(()),
        Some(found) => {
            let error = Error::usage(format!("`{expected}` is {found}, but `{obs}` is {ty}")).column(expected);
            Err(error.hint("cast one of them before, so that both have one type and shape"))
        }
        None => Err(Error::usage(format!("`{obs}` is recorded, but `{expected}` is not")).column(expected)),
    }
}

/// Refuses a module whose recorded next observations do not fit its observations.
pub(super) fn check_next(own: &Own) -> Result<()> {
    let next = |name: &str| own.get(&rebase(name, NEXT_OBS));
    let none = !own.keys().any(|n| root(n) == NEXT_OBS);
    let mut obs = own.iter().filter(|(name, _)| root(name) == OBS);
    obs.try_for_each(|(name, ty)| check_pair(name, ty, next(name), none, false))
}

impl Shape {
    /// The columns of a block: those step columns that `layout` has, the recorded next observations of observations that
    /// it has, and then what it has in further types.
    pub(super) fn leaves(&self, layout: &EpisodeLayout) -> Vec<Leaf> {
        let there: HashSet<&str> = layout.steps.iter().map(|(name, _)| &**name).collect();
        let read = |(name, _): &&Leaf| there.contains(&**name);
        let next = self.next.iter().filter(|(name, _)| there.contains(rebase(name, OBS).as_str()));
        let recorded: HashMap<&str, &TensorType> = self.next.iter().map(|(name, ty)| (&**name, ty)).collect();
        let mut before: HashSet<&str> = HashSet::with_capacity(layout.steps.len());
        let further = layout.steps.iter().filter(|(name, ty)| {
            let again = !before.insert(name);
            again || recorded.get(&**name).is_some_and(|t| *t != ty)
        });
        let further: Vec<&Leaf> = further.collect();
        self.steps.iter().filter(read).chain(next).chain(further).cloned().collect()
    }

    /// Adds the types that modules have and the unified schema has not.
    pub(super) fn add_variants<'a>(&self, modules: impl Iterator<Item = &'a Own>, layout: &mut EpisodeLayout) {
        let known = self.steps.iter().chain(&self.next).chain(&layout.steps);
        let mut known: HashSet<(&str, &TensorType)> = known.map(|(name, ty)| (&**name, ty)).collect();
        let further: Vec<_> = modules.flatten().filter(|(name, ty)| known.insert((name.as_str(), ty))).collect();
        layout.steps.extend(further.into_iter().map(|(name, ty)| (Arc::from(name.as_str()), ty.clone())));
    }

    /// The columns of a batch, as [`Self::leaves`] has them, and the rows that are null, in the order of the columns.
    pub(super) fn decode(
        &self,
        leaves: &[Leaf],
        file: &InputFile,
        batch: &RecordBatch,
        row_in_file: u64,
    ) -> Result<(Columns, Vec<LeafNulls>)> {
        let rows = batch.num_rows();
        let mut found: Vec<Option<Tensor>> = vec![None; leaves.len()];
        let mut nulls = Vec::new();
        let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
        for (i, (name, _)) in leaves.iter().enumerate() {
            places.entry(name).or_default().push(i);
        }
        let at = |name: &str| places.get(name).cloned().unwrap_or_default();
        let arrays = ingest::by_name(batch);
        for column in
            self.unified.columns.iter().filter(|c| c.leaves.iter().any(|(l, _)| places.contains_key(&*l.name)))
        {
            let Some(array) = arrays.get(column.source.as_str()) else {
                for i in column.leaves.iter().flat_map(|(leaf, _)| at(&leaf.name)) {
                    found[i] = Some(Tensor::zeros(leaves[i].1.clone(), rows));
                    nulls.push((i, NullBuffer::new_null(rows)));
                }
                continue;
            };
            let field = file.field(&column.source).map(|(_, field)| field);
            let field = field.ok_or_else(|| Error::internal(format!("column {:?} vanished", column.source)))?;
            let mut inside = Places::default();
            for (spec, _) in &column.leaves {
                let places = at(&spec.name);
                let types: Vec<TensorType> = places.iter().map(|&i| leaves[i].1.clone()).collect();
                let read = match types.as_slice() {
                    [] => continue,
                    [one] => vec![ingest::tensor(field, array, spec, one, row_in_file, &mut inside)?],
                    _ => ingest::variants(field, array, spec, &types, row_in_file, &mut inside)?,
                };
                for (i, ingested) in places.into_iter().zip(read) {
                    nulls.extend(ingested.nulls.map(|n| (i, n)));
                    found[i] = Some(ingested.tensor);
                }
            }
        }
        nulls.sort_unstable_by_key(|(at, _)| *at);
        let columns = leaves.iter().zip(found).map(|((name, _), tensor)| {
            let tensor = tensor.ok_or_else(|| Error::internal(format!("column `{name}` was not read")))?;
            Ok((Arc::clone(name), tensor))
        });
        Ok((columns.collect::<Result<Columns>>()?, nulls))
    }

    pub(super) fn has_next_obs(&self) -> bool {
        !self.next.is_empty()
    }
}
