//! `FlattenObservations`: nested observations as one vector.

use std::collections::{BTreeMap, HashSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::ModuleBatch;
use crate::column::{OBS, root};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, Slices, piece_boilerplate};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::job::{Compat, ModuleSettings, Space};
use crate::tensor::{DType, Tensor, TensorType};

/// Discrete values that do not count from zero.
const START: &str = "discrete_observations_counted_from_their_start";

/// Adds `obs`: every observation as one float32 vector.
///
/// ```text
/// space        { md: MultiDiscrete([2, 3]), mode: Discrete(4), pos: Box(shape = [2]) }
/// observation  { md: [1, 0],                mode: 2,           pos: [0.5, -1.0] }
///
/// obs          0 1  1 0 0                   0 0 1 0            0.5 -1.0
/// ```
///
/// The parts come in the order of their keys, sorted; those of tuples in order. Discrete and multi-discrete values
/// become one-hot vectors, everything else is flattened in C order. Which integers are discrete is not recorded: the
/// space comes from `input_observation_space`, else from the job's `input.spaces.obs`; where neither is given, all
/// leaves must be floating-point numbers or have two dimensions or more. The next observations stay nested.
///
/// As RLlib's `connectors/common/flatten_observations.py`, which in a learner pipeline works for episodes of one step
/// only. RLlib ignores the `start` of a discrete space, so that the value `start + n - 1` fails or a negative one
/// counts from the end: `compat = "rllib-2.60"` does, too, and `correct` subtracts it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FlattenObservations {
    /// The space of the recorded observations. With `multi_agent`, a table of spaces by agent, which must be equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_observation_space: Option<Space>,
    /// Keys of the outermost Dict space that are left out.
    pub keys_to_remove: Vec<String>,
    /// Whether `input_observation_space` gives the spaces by agent.
    pub multi_agent: bool,
    /// RLlib's choice of agents whose observations are flattened; not available yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_ids: Option<Vec<String>>,
    /// Always true here: recorded data go through the learner pipeline.
    pub as_learner_connector: bool,
}

impl Default for FlattenObservations {
    fn default() -> Self {
        Self {
            input_observation_space: None,
            keys_to_remove: Vec::new(),
            multi_agent: false,
            agent_ids: None,
            as_learner_connector: super::yes(),
        }
    }
}

impl Piece for FlattenObservations {
    const NAME: &'static str = "FlattenObservations";

    fn check(&self) -> Result<()> {
        super::require_learner_connector(self.as_learner_connector)?;
        if self.agent_ids.is_some() {
            return Err(Error::usage("found agent_ids, but choosing agents is not built yet")
                .hint("without agent_ids the observations of all agents are flattened"));
        }
        self.own_space().map(|_| ())
    }
}

/// How a leaf becomes numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    /// As they are.
    Numbers,
    /// One-hot vectors: depths, and the smallest value.
    OneHot { depths: Vec<usize>, start: i64 },
}

/// One leaf and its place in the vector.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    column: String,
    form: Form,
    width: usize,
}

impl FlattenObservations {
    /// The space that the piece's options give.
    fn own_space(&self) -> Result<Option<&Space>> {
        match &self.input_observation_space {
            Some(Space::Dict(agents)) if self.multi_agent => {
                let mut spaces = agents.values();
                let first = spaces.next();
                if spaces.any(|s| Some(s) != first) {
                    return Err(Error::usage(
                        "found different observation spaces for the agents, expected the same for all",
                    )
                    .hint("other spaces than the same for all agents are not built yet"));
                }
                Ok(first)
            }
            Some(_) if self.multi_agent => Err(Error::usage(
                "found one input_observation_space with multi_agent = true, expected a table by agent",
            )
            .hint("leave multi_agent out if all agents have this space")),
            space => Ok(space.as_ref()),
        }
    }

    /// What becomes of observations with these leaves.
    fn parts(&self, cx: Context<'_>, leaves: &BTreeMap<&str, &TensorType>) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        if let Some(space) = self.own_space()?.or(cx.obs_space) {
            let kept = self.without_removed(space)?;
            walk(kept.as_ref().unwrap_or(space), OBS.to_owned(), cx.compat, leaves, &mut parts)?;
        } else {
            for column in in_tree_order(leaves.keys().copied()) {
                let ty = leaves[column];
                if self.keys_to_remove.iter().any(|k| is_child(column, k)) {
                    continue;
                }
                if !ty.dtype.is_float() && ty.shape.len() < 2 {
                    return Err(Error::usage(format!(
                        "found {ty}, which may be discrete or not, and no space that says it"
                    ))
                    .column(column)
                    .hint("give the piece an `input_observation_space`, or the job `input.spaces.obs`"));
                }
                parts.push(Part { column: column.to_owned(), form: Form::Numbers, width: ty.row_elements() });
            }
        }
        for key in &self.keys_to_remove {
            if !leaves.keys().any(|column| is_child(column, key)) {
                return Err(Error::usage(format!("found no {key:?} to remove, expected one of {}", listed(leaves))));
            }
        }
        let known: HashSet<&str> = parts.iter().map(|p| p.column.as_str()).collect();
        let unknown = leaves
            .keys()
            .find(|&&column| !known.contains(column) && !self.keys_to_remove.iter().any(|k| is_child(column, k)));
        if let Some(column) = unknown {
            return Err(Error::usage("found a part of the recorded observations that the space does not have")
                .column(*column)
                .hint("add it to the space, or name it in `keys_to_remove`"));
        }
        if parts.is_empty() {
            return Err(Error::usage("no part of the observations is left").column(OBS));
        }
        Ok(parts)
    }

    /// A Dict space without the keys that are removed; `None` where there are none.
    fn without_removed(&self, space: &Space) -> Result<Option<Space>> {
        if self.keys_to_remove.is_empty() {
            return Ok(None);
        }
        let Space::Dict(children) = space else {
            return Err(Error::usage("found keys_to_remove, expected a Dict space to remove them from").column(OBS));
        };
        let mut kept = children.clone();
        kept.retain(|key, _| !self.keys_to_remove.contains(key));
        Ok(Some(Space::Dict(kept)))
    }
}

/// Whether `column` lies under the key `key` of the observation.
fn is_child(column: &str, key: &str) -> bool {
    let rest = column.strip_prefix(OBS).and_then(|c| c.strip_prefix('/')).and_then(|c| c.strip_prefix(key));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn listed(leaves: &BTreeMap<&str, &TensorType>) -> String {
    leaves.keys().copied().collect::<Vec<_>>().join(", ")
}

/// The parts of `space`, in the order of `dm_tree`.
fn walk(
    space: &Space,
    column: String,
    compat: Compat,
    leaves: &BTreeMap<&str, &TensorType>,
    parts: &mut Vec<Part>,
) -> Result<()> {
    match space {
        Space::Dict(children) => {
            let mut sorted: Vec<_> = children.iter().collect();
            sorted.sort_unstable_by_key(|(key, _)| *key);
            return sorted.into_iter().try_for_each(|(k, s)| walk(s, format!("{column}/{k}"), compat, leaves, parts));
        }
        Space::Tuple(children) => {
            let mut numbered = children.iter().enumerate();
            return numbered.try_for_each(|(i, s)| walk(s, format!("{column}/{i}"), compat, leaves, parts));
        }
        _ => {}
    }
    let Some(ty) = leaves.get(column.as_str()) else {
        return Err(Error::usage(format!(
            "the space has `{column}`, and the recorded observations have {}",
            listed(leaves)
        ))
        .column(column));
    };
    let (shape, form) = match space {
        Space::Box { shape, .. } => (shape.clone(), Form::Numbers),
        Space::MultiBinary { n } => (vec![*n], Form::Numbers),
        Space::Discrete { n, start } => (Vec::new(), Form::OneHot { depths: depths(&[*n])?, start: *start }),
        Space::MultiDiscrete { nvec } => (vec![nvec.len()], Form::OneHot { depths: depths(nvec)?, start: 0 }),
        Space::Tuple(_) | Space::Dict(_) => unreachable!("these have returned"),
    };
    if ty.shape != shape {
        return Err(Error::usage(format!("found {ty}, but the space has the shape {shape:?}")).column(column));
    }
    let width = match &form {
        Form::Numbers => ty.row_elements(),
        Form::OneHot { depths, .. } => {
            if ty.dtype.is_float() {
                return Err(Error::usage(format!("found {ty}, expected integers for a discrete space")).column(column));
            }
            if compat == Compat::Rllib260 && ty.dtype == DType::Bool && depths.iter().any(|&d| d != 2) {
                return Err(Error::usage(format!(
                    "found {ty} for a discrete space of other than two values: RLlib 2.60 makes two of them"
                ))
                .column(column));
            }
            depths.iter().sum()
        }
    };
    parts.push(Part { column, form, width });
    Ok(())
}

/// The depths of one-hot vectors.
pub(super) fn depths(nvec: &[u64]) -> Result<Vec<usize>> {
    let depth = |&n: &u64| u32::try_from(n).ok().filter(|&n| n > 0).map(|n| n as usize);
    nvec.iter()
        .map(|n| {
            depth(n)
                .ok_or_else(|| Error::usage(format!("found a discrete space of {n} values, expected 1 to 2^32 - 1")))
        })
        .collect()
}

/// Column names in the order of `dm_tree`: keys sorted, tuples (keys 0, 1, 2, ...) in order.
pub(super) fn in_tree_order<'a>(columns: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    fn level<'a>(columns: Vec<(&'a str, &'a str)>, out: &mut Vec<&'a str>) {
        let mut children: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
        for (column, path) in columns {
            match path.split_once('/') {
                _ if path.is_empty() => out.push(column),
                Some((key, rest)) => children.entry(key).or_default().push((column, rest)),
                None => children.entry(path).or_default().push((column, "")),
            }
        }
        let is_tuple = (0..children.len()).all(|i| children.contains_key(i.to_string().as_str()));
        let mut children: Vec<_> = children.into_iter().collect();
        if is_tuple {
            children.sort_by_key(|(key, _)| key.parse::<usize>().unwrap_or(0));
        }
        for (_, columns) in children {
            level(columns, out);
        }
    }
    let mut out = Vec::new();
    level(columns.map(|c| (c, c.split_once('/').map_or("", |(_, rest)| rest))).collect(), &mut out);
    out
}

/// The elements as int64; larger ones as its largest.
fn as_i64(tensor: &Tensor) -> Vec<i64> {
    macro_rules! widened {
        ($t:ty) => {
            tensor.values::<$t>().iter().map(|&v| i64::from(v)).collect()
        };
    }
    match tensor.ty().dtype {
        DType::Int8 => widened!(i8),
        DType::Int16 => widened!(i16),
        DType::Int32 => widened!(i32),
        DType::Int64 => tensor.values::<i64>().to_vec(),
        DType::UInt16 => widened!(u16),
        DType::UInt32 => widened!(u32),
        DType::UInt64 => tensor.values::<u64>().iter().map(|&v| i64::try_from(v).unwrap_or(i64::MAX)).collect(),
        _ => tensor.bytes().iter().map(|&b| i64::from(b)).collect(),
    }
}

/// Where in a one-hot vector the value stands.
fn place(compat: Compat, value: i64, depth: usize, start: i64) -> Option<usize> {
    let depth = i64::try_from(depth).ok()?;
    let place = match compat {
        Compat::Correct => value.checked_sub(start)?,
        // NumPy's negative indices count from the end.
        Compat::Rllib260 if value < 0 => value.checked_add(depth)?,
        Compat::Rllib260 => value,
    };
    usize::try_from(place).ok().filter(|_| place < depth)
}

impl Connector for FlattenObservations {
    piece_boilerplate!();

    fn reads(&self, _: &ModuleSettings, column: &str) -> bool {
        root(column) == OBS
    }

    fn slices(&self, _: Context<'_>, _: &EpisodeLayout) -> Option<Slices> {
        Some(Slices::ANYWHERE)
    }

    fn layout(&self, cx: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        if plan.batch.has(OBS) {
            return Err(Error::usage("`obs` is in the batch already").column(OBS).hint(
                "name FlattenObservations once, before every piece that adds observations; it sees the recorded ones only",
            ));
        }
        let leaves = super::intrinsic::obs_leaves(plan)?;
        let parts = self.parts(cx, &leaves.iter().map(|(n, ty)| (n.as_str(), ty)).collect())?;
        let width = parts.iter().map(|p| p.width).sum::<usize>();
        plan.add_steps(OBS, TensorType::new(DType::Float32, [width]))
    }

    fn apply(
        &self,
        cx: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        repairs: &mut Repairs,
    ) -> Result<()> {
        let leaves = episodes.steps.under(OBS).map(|(n, t)| (&**n, t.ty())).collect();
        let parts = self.parts(cx, &leaves)?;
        let (rows, width) = (episodes.steps_len(), parts.iter().map(|p| p.width).sum::<usize>());
        let mut out = vec![0f32; rows * width];
        let mut begin = 0;
        for part in &parts {
            let leaf = episodes.steps.get(&part.column).ok_or_else(|| Error::internal("a part that is not there"))?;
            let own = out.chunks_exact_mut(width.max(1)).map(|row| &mut row[begin..begin + part.width]);
            match &part.form {
                Form::Numbers if part.width == 0 => {}
                Form::Numbers => {
                    let numbers = leaf.cast(DType::Float32)?;
                    own.zip(numbers.values::<f32>().chunks_exact(part.width)).for_each(|(o, n)| o.copy_from_slice(n));
                }
                Form::OneHot { depths, start } => {
                    let values = as_i64(leaf);
                    for (row, (own, values)) in own.zip(values.chunks_exact(depths.len().max(1))).enumerate() {
                        let mut rest = own;
                        for (&value, &depth) in values.iter().zip(depths) {
                            let (hot, behind) = rest.split_at_mut(depth);
                            match place(cx.compat, value, depth, *start) {
                                Some(place) => hot[place] = 1.0,
                                None => return Err(out_of_range(cx.compat, episodes, row, part, value, depth, *start)),
                            }
                            rest = behind;
                        }
                    }
                    if cx.compat == Compat::Correct && *start != 0 {
                        repairs.count(START, rows as u64);
                    }
                }
            }
            begin += part.width;
        }
        let ty = TensorType::new(DType::Float32, [width]);
        batch.push(OBS, Tensor::new(ty, rows, arrow::buffer::Buffer::from_vec(out)));
        Ok(())
    }
}

fn out_of_range(
    compat: Compat,
    episodes: &EpisodeBatch,
    row: usize,
    part: &Part,
    value: i64,
    depth: usize,
    start: i64,
) -> Error {
    let chunk = episodes.offsets.partition_point(|&first| first <= row) - 1;
    let t = i64::try_from(row - episodes.offsets[chunk]).unwrap_or(i64::MAX);
    let first = if compat == Compat::Correct { start } else { 0 };
    let last = first.saturating_add(i64::try_from(depth).unwrap_or(i64::MAX) - 1);
    let error = Error::data(format!("found {value}, expected a discrete value from {first} to {last}"))
        .episode(episodes.chunks[chunk].id.to_string())
        .t(episodes.chunks[chunk].t_started.saturating_add(t))
        .column(part.column.as_str());
    if first == start {
        return error;
    }
    error.hint("RLlib 2.60 ignores the space's `start`; compat = \"correct\" subtracts it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::BatchLayout;
    use crate::connectors::testing::{apply_with, episodes};
    use crate::episode::EpisodeLayout;
    use crate::job::ModuleSettings;

    fn piece(json: serde_json::Value) -> FlattenObservations {
        serde_json::from_value(json).unwrap()
    }

    /// Episodes of the given lengths with these observations.
    fn observed(lengths: &[usize], obs: &[(&str, Tensor)]) -> EpisodeBatch {
        let mut eps = episodes(lengths);
        eps.steps = obs.iter().map(|(n, t)| (std::sync::Arc::from(*n), t.clone())).collect();
        eps
    }

    /// Layout and data, which must agree.
    fn flat(
        piece: &FlattenObservations,
        compat: Compat,
        space: Option<&Space>,
        eps: &mut EpisodeBatch,
        repairs: &mut Repairs,
    ) -> Result<Tensor> {
        let module = ModuleSettings::default();
        let cx = Context { obs_space: space, ..Context::new(&module, compat) };
        let steps = eps.steps.iter().map(|(n, t)| (std::sync::Arc::clone(n), t.ty().clone())).collect();
        let (mut layout, mut batch) = (EpisodeLayout { steps, last_obs: true }, BatchLayout::default());
        piece.layout(cx, &mut Plan { episodes: &mut layout, batch: &mut batch })?;
        let out = apply_with(piece, cx, eps, ModuleBatch::default(), repairs)?;
        let columns: Vec<_> = out.into_columns();
        assert_eq!((columns.len(), &batch.columns[0].ty, columns[0].1.rows()), (1, columns[0].1.ty(), eps.steps_len()));
        Ok(columns[0].1.tensor().clone())
    }

    fn figure() -> (FlattenObservations, Vec<(&'static str, Tensor)>) {
        let piece = piece(serde_json::json!({ "input_observation_space": {
            "pos": { "type": "box", "shape": [2] },
            "mode": { "type": "discrete", "n": 4 },
            "md": { "type": "multi_discrete", "nvec": [2, 3] },
        }}));
        let obs = vec![
            ("obs/pos", Tensor::from_values::<f64>([2], &[0.5, -1.0, 0.1, 2.0])),
            ("obs/mode", Tensor::from_values::<i64>([], &[2, 0])),
            ("obs/md", Tensor::from_values::<i32>([2], &[1, 0, 0, 2])),
        ];
        (piece, obs)
    }

    #[test]
    fn the_figure_above() {
        let (piece, obs) = figure();
        for compat in [Compat::Correct, Compat::Rllib260] {
            let mut repairs = Repairs::default();
            let got = flat(&piece, compat, None, &mut observed(&[1, 0, 1], &obs), &mut repairs).unwrap();
            let want: [f32; 22] =
                [0., 1., 1., 0., 0., 0., 0., 1., 0., 0.5, -1., 1., 0., 0., 0., 1., 1., 0., 0., 0., 0.1, 2.];
            assert_eq!(got.values::<f32>(), want);
            let none: Vec<_> = obs.iter().map(|(n, t)| (*n, t.slice(0, 0))).collect();
            assert_eq!(flat(&piece, compat, None, &mut observed(&[], &none), &mut repairs).unwrap().rows(), 0);
            assert_eq!(repairs, Repairs::default());
        }
        // The same space from the job, and a key left out.
        let job = piece.input_observation_space.clone();
        let fewer = FlattenObservations { keys_to_remove: vec!["md".into()], ..FlattenObservations::default() };
        let none = &mut Repairs::default();
        let got = flat(&fewer, Compat::Correct, job.as_ref(), &mut observed(&[2], &obs), none).unwrap();
        assert_eq!(got.values::<f32>(), [0., 0., 1., 0., 0.5, -1., 1., 0., 0., 0., 0.1, 2.]);
    }

    #[test]
    fn shapes_do_where_nothing_can_be_discrete() {
        let none = &mut Repairs::default();
        let plain = FlattenObservations::default();
        let obs = [
            ("obs/b/10", Tensor::from_values::<f32>([], &[10.])),
            ("obs/b/9", Tensor::from_values::<f32>([], &[9.])),
            ("obs/a/1", Tensor::from_values::<f32>([1], &[1.])),
            ("obs/a/0", Tensor::from_values::<u8>([2, 2], &[1, 2, 3, 255])),
        ];
        let got = flat(&plain, Compat::Correct, None, &mut observed(&[1], &obs), none).unwrap();
        assert_eq!(got.values::<f32>(), [1., 2., 3., 255., 1., 10., 9.]);
        let obs = [("obs", Tensor::from_values::<half::f16>([1, 2], &[half::f16::ONE; 2]))];
        let got = flat(&plain, Compat::Correct, None, &mut observed(&[1], &obs), none).unwrap();
        assert_eq!(got.values::<f32>(), [1., 1.]);
        for column in [Tensor::from_values::<i32>([], &[1]), Tensor::from_values::<u8>([3], &[1; 3])] {
            assert!(flat(&plain, Compat::Correct, None, &mut observed(&[1], &[("obs", column)]), none).is_err());
        }
    }

    #[test]
    fn tuples_are_in_order() {
        let names: Vec<String> = (0..12).map(|i| format!("obs/t/{i}")).chain(["obs/s".to_owned()]).collect();
        let mut sorted: Vec<&str> = names.iter().map(String::as_str).collect();
        sorted.sort_unstable();
        let got = in_tree_order(sorted.into_iter());
        assert_eq!(
            got.iter().map(|n| &n[4..]).collect::<Vec<_>>().join(" "),
            "s t/0 t/1 t/2 t/3 t/4 t/5 t/6 t/7 t/8 t/9 t/10 t/11"
        );
    }

    #[test]
    fn start_is_ignored_by_rllib_and_subtracted_here() {
        let piece =
            piece(serde_json::json!({ "input_observation_space": { "type": "discrete", "n": 3, "start": -1 } }));
        let mut repairs = Repairs::default();
        let mut eps = observed(&[1, 2], &[("obs", Tensor::from_values::<i64>([], &[-1, 0, 1]))]);
        let mut of = |compat| flat(&piece, compat, None, &mut eps, &mut repairs).unwrap().values::<f32>().to_vec();
        assert_eq!(of(Compat::Correct), [1., 0., 0., 0., 1., 0., 0., 0., 1.]);
        assert_eq!(of(Compat::Rllib260), [0., 0., 1., 1., 0., 0., 0., 1., 0.]);
        assert_eq!(repairs.sorted(), [(START, 3)]);

        let mut eps = observed(&[1, 2], &[("obs", Tensor::from_values::<i64>([], &[0, 0, 2]))]);
        eps.chunks[1].t_started = 7;
        let error = flat(&piece, Compat::Correct, None, &mut eps, &mut repairs).unwrap_err();
        assert_eq!(error.what(), "found 2, expected a discrete value from -1 to 1");
        assert_eq!((error.place().episode.as_deref(), error.place().t), (Some("e1"), Some(8)));
    }

    #[test]
    fn space_and_data_must_agree() {
        let (piece, obs) = figure();
        let wrong = |piece: &FlattenObservations, obs: &[(&str, Tensor)]| {
            let error = flat(piece, Compat::Correct, None, &mut observed(&[2], obs), &mut Repairs::default());
            error.unwrap_err().what().to_owned()
        };
        let with = |n: usize, tensor: Tensor| {
            let mut all = obs.clone();
            all[n].1 = tensor;
            all
        };
        let zeros = |dtype, shape: &[usize]| Tensor::zeros(TensorType::new(dtype, shape), 2);
        assert!(wrong(&piece, &obs[..2]).starts_with("the space has `obs/md`"));
        assert!(wrong(&piece, &with(0, zeros(DType::Float32, &[3]))).starts_with("found float32[3]"));
        assert!(wrong(&piece, &with(1, zeros(DType::Float32, &[]))).starts_with("found float32, expected integers"));
        let more = [obs.clone(), vec![("obs/zz", zeros(DType::Float32, &[]))]].concat();
        assert!(wrong(&piece, &more).starts_with("found a part"));
        let removed = FlattenObservations { keys_to_remove: vec!["nope".into()], ..piece };
        assert!(wrong(&removed, &obs).starts_with("found no \"nope\" to remove"));
    }

    #[test]
    fn options_are_checked() {
        let space = |n| serde_json::json!({ "type": "discrete", "n": n });
        let checked = |json| piece(json).check();
        checked(serde_json::json!({})).unwrap();
        checked(
            serde_json::json!({ "multi_agent": true, "input_observation_space": { "a": space(2), "b": space(2) } }),
        )
        .unwrap();
        for wrong in [
            serde_json::json!({ "multi_agent": true, "input_observation_space": { "a": space(2), "b": space(3) } }),
            serde_json::json!({ "multi_agent": true, "input_observation_space": space(2) }),
            serde_json::json!({ "agent_ids": ["a"] }),
            serde_json::json!({ "as_learner_connector": false }),
        ] {
            assert!(checked(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
