//! `MeanStdFilter`: observations with mean 0 and standard deviation 1 over the whole data set.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rewards::{from_f64, real_steps, require_unread};
use crate::batch::ModuleBatch;
use crate::column::OBS;
use crate::connector::{
    Connector, Context, Finding, Piece, Plan, Portable, Repairs, Slices, Survey, piece_boilerplate,
};
use crate::episode::{Columns, EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::exact::ExactMoments;
use crate::job::Space;
use crate::tensor::{DType, Tensor, TensorBuilder, TensorType};

/// Normalises observations: mean 0 and standard deviation 1 over all steps of the data set.
///
/// ```text
/// obs   10000 10001 10002 (float32)          mean = 10001     std = sqrt(2/3) = 0.8165
///
/// obs = clip((obs - mean) / (std + epsilon), -clip_by_value, clip_by_value)
///     = -1.2247 0 1.2247
/// ```
///
/// Each element of each leaf has its own mean and standard deviation, from exact sums over the observation before
/// every action, rounded once: they do not depend on the order of the data, on threads or on files. NaN and infinities
/// are left out of them. The result is written into the episodes (look-back and the last observation, too), so that
/// every later piece sees it and `new_obs` is normalised with the same numbers. Computed in float64; floats keep their
/// dtype, integers become float32.
///
/// Discrete and multi-discrete observations are left as they are. Which integers are discrete is not recorded:
/// integers of less than two dimensions need `input_observation_space`, or the job's `input.spaces.obs`. Booleans are left as they are.
///
/// The manifest's `statistics` hold counts, means and standard deviations of each column, for normalising what is
/// observed later. With `output.split` they are those of the part `train` (or of the first one), for all parts.
///
/// As RLlib's `connectors/env_to_module/mean_std_filter.py` and `utils/filter.py`, with these differences: RLlib's
/// statistics run along with the data, these are final before the first row is normalised; RLlib divides by n - 1
/// (`ddof = 1`), recorded data are normalised by n in D4RL's users (CORL's `compute_mean_std`); RLlib casts
/// back to integers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MeanStdFilter {
    /// The space of the observations: which integers are discrete. With `multi_agent`, a table of spaces by agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_observation_space: Option<Space>,
    /// Whether each agent has statistics of its own; else they are those of the module.
    pub multi_agent: bool,
    /// Whether to subtract the mean.
    pub de_mean_to_zero: bool,
    /// Whether to divide by the standard deviation.
    pub de_std_to_one: bool,
    /// Limit of what comes out, to both sides of 0. No limit where it is 0 or null.
    #[schemars(range(min = 0.0))]
    pub clip_by_value: Option<f64>,
    /// Always true here: the statistics are those of the data.
    pub update_stats: bool,
    /// Added to the standard deviation before dividing.
    #[schemars(range(min = 0.0))]
    pub epsilon: f64,
    /// Taken from the count where the variance is divided by it: 0 (population) or 1 (as RLlib).
    #[schemars(range(min = 0, max = 1))]
    pub ddof: u64,
}

impl Default for MeanStdFilter {
    fn default() -> Self {
        Self {
            input_observation_space: None,
            multi_agent: false,
            de_mean_to_zero: true,
            de_std_to_one: true,
            clip_by_value: Some(10.0),
            update_stats: true,
            epsilon: 1e-6,
            ddof: 0,
        }
    }
}

impl Piece for MeanStdFilter {
    const NAME: &'static str = "MeanStdFilter";

    fn check(&self) -> Result<()> {
        if !self.update_stats {
            return Err(Error::usage(
                "found update_stats = false, expected true: the statistics are those of the recorded data",
            ));
        }
        for (name, value) in [("clip_by_value", self.clip_by_value.unwrap_or(0.0)), ("epsilon", self.epsilon)] {
            if value.is_nan() || value < 0.0 {
                return Err(Error::usage(format!("found {name} = {value}, expected a number of at least 0")));
            }
        }
        if self.ddof > 1 {
            return Err(Error::usage(format!("found ddof = {}, expected 0 or 1", self.ddof)));
        }
        if self.multi_agent && !matches!(self.input_observation_space, None | Some(Space::Dict(_))) {
            return Err(Error::usage(
                "found one input_observation_space with multi_agent = true, expected a table by agent",
            ));
        }
        Ok(())
    }
}

/// The statistics by which one column was normalised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ColumnFilter {
    /// The agent, where each has statistics of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Arc<str>>,
    /// The observation leaf.
    pub column: Arc<str>,
    /// Finite values of each element.
    pub counts: Vec<u64>,
    /// Mean of each element.
    pub mean: Vec<f64>,
    /// Standard deviation of each element.
    pub std: Vec<f64>,
}

/// An agent (or all of a module) and an observation leaf.
type Key = (Option<Arc<str>>, Arc<str>);
type Sums = BTreeMap<Key, ExactMoments>;

/// The sums so far. They are exact, so it does not matter which thread adds what to which of them.
struct Pass {
    piece: MeanStdFilter,
    /// Of units that were looked at, one for each thread that did: a unit's own would be as large as its observations.
    sums: Mutex<Vec<Sums>>,
    /// Merged.
    all: Sums,
}

/// Adds the sums of `other`.
fn add(all: &mut Sums, other: Sums) -> Result<()> {
    for (key, own) in other {
        match all.entry(key) {
            std::collections::btree_map::Entry::Vacant(slot) => {
                slot.insert(own);
            }
            std::collections::btree_map::Entry::Occupied(mut slot) => slot.get_mut().merge(own)?,
        }
    }
    Ok(())
}

impl MeanStdFilter {
    /// The statistics that a survey has found, sorted by agent and column.
    #[must_use]
    pub fn statistics(survey: &(dyn Any + Send + Sync)) -> Option<&[ColumnFilter]> {
        survey.downcast_ref::<Vec<ColumnFilter>>().map(Vec::as_slice)
    }

    /// Whether a leaf is normalised.
    fn takes(&self, cx: Context<'_>, column: &str, ty: &TensorType) -> Result<bool> {
        if ty.dtype == DType::Bool {
            return Ok(false);
        }
        let spaces: Vec<&Space> = match &self.input_observation_space {
            Some(Space::Dict(agents)) if self.multi_agent => agents.values().collect(),
            Some(space) => vec![space],
            None if cx.obs_space.is_some_and(|s| leaf(s, column).is_some()) => cx.obs_space.into_iter().collect(),
            None if ty.dtype.is_float() || ty.shape.len() >= 2 => return Ok(true),
            None => {
                return Err(Error::usage(format!(
                    "found {ty}, which may be discrete or not, and no space that says it"
                ))
                .column(column)
                .hint("give the piece an `input_observation_space`, or the job `input.spaces.obs`"));
            }
        };
        let found: Vec<bool> = spaces
            .into_iter()
            .filter_map(|space| leaf(space, column))
            .map(|s| !matches!(s, Space::Discrete { .. } | Space::MultiDiscrete { .. }))
            .collect();
        match found.as_slice() {
            [] => Err(Error::usage("found a part of the observations that the space does not have").column(column)),
            [first, rest @ ..] if rest.contains(&!first) => {
                Err(Error::usage("found a part of the observations that is discrete for some agents only")
                    .column(column))
            }
            [first, ..] => Ok(*first),
        }
    }

    /// Whose statistics the chunk goes by.
    fn owner(&self, episodes: &EpisodeBatch, i: usize) -> Option<Arc<str>> {
        if self.multi_agent { episodes.chunks[i].agent_id.clone() } else { None }
    }

    /// The leaves that are normalised.
    fn leaves(&self, cx: Context<'_>, columns: &Columns) -> Result<Vec<Arc<str>>> {
        let mut out = Vec::new();
        for (name, column) in columns.under(OBS) {
            if self.takes(cx, name, column.ty())? {
                out.push(Arc::clone(name));
            }
        }
        Ok(out)
    }

    /// `column` normalised; `of` gives the statistics of a chunk, `rows` its rows.
    fn normalised<'a>(
        &self,
        column: &Tensor,
        chunks: usize,
        rows: impl Fn(usize) -> std::ops::Range<usize>,
        of: impl Fn(usize) -> Result<&'a ColumnFilter>,
    ) -> Result<Tensor> {
        let ty = column.ty().with_dtype(normalised_dtype(column.ty().dtype));
        let limit = self.clip_by_value.filter(|l| *l > 0.0).unwrap_or(f64::INFINITY);
        let width = ty.row_elements().max(1);
        let mut out = TensorBuilder::with_capacity(ty.clone(), column.rows());
        for i in 0..chunks {
            let rows = rows(i);
            if rows.is_empty() {
                continue;
            }
            let filter = of(i)?;
            let own = column.slice(rows.start, rows.len()).cast(DType::Float64)?;
            let mut values = own.values::<f64>().to_vec();
            for row in values.chunks_mut(width) {
                for ((value, mean), std) in row.iter_mut().zip(&filter.mean).zip(&filter.std) {
                    let centred = if self.de_mean_to_zero { *value - mean } else { *value };
                    let scaled = if self.de_std_to_one { centred / (std + self.epsilon) } else { centred };
                    *value = scaled.clamp(-limit, limit);
                }
            }
            out.extend(&from_f64(&ty, rows.len(), values)?, 0, rows.len());
        }
        Ok(out.finish())
    }
}

/// Floats keep their dtype, as RLlib's filter has it; integers would lose what was gained.
const fn normalised_dtype(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::Float32 }
}

/// The space of the observation leaf `column`.
fn leaf<'a>(space: &'a Space, column: &str) -> Option<&'a Space> {
    let mut own = space;
    for key in column.split('/').skip(1) {
        own = match own {
            Space::Dict(children) => children.get(key)?,
            Space::Tuple(children) => children.get(key.parse::<usize>().ok()?)?,
            _ => return None,
        };
    }
    (!matches!(own, Space::Dict(_) | Space::Tuple(_))).then_some(own)
}

impl Survey for Pass {
    fn observe(&self, cx: Context<'_>, episodes: &EpisodeBatch, batch: &ModuleBatch) -> Result<Finding> {
        let pool = || self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sums = pool().pop().unwrap_or_default();
        let real = real_steps(batch);
        for column in self.piece.leaves(cx, &episodes.steps)? {
            let Some(tensor) = episodes.steps.get(&column) else { continue };
            for i in 0..episodes.len() {
                let key = (self.piece.owner(episodes, i), Arc::clone(&column));
                let own =
                    sums.entry(key).or_insert_with(|| ExactMoments::new(tensor.ty().dtype, tensor.ty().row_elements()));
                let rows = episodes.rows(i);
                let masked = |r: usize| real.is_some_and(|real| real[r] == 0);
                // The only step that is not real is the last one.
                let len = if rows.clone().last().is_some_and(masked) { rows.len() - 1 } else { rows.len() };
                own.add(&tensor.slice(rows.start, len))?;
            }
        }
        pool().push(sums);
        Ok(Box::new(()))
    }

    fn kept(&self) -> Option<Finding> {
        let sums = std::mem::take(&mut *self.sums.lock().unwrap_or_else(PoisonError::into_inner));
        Some(Box::new(sums))
    }

    fn merge(&mut self, finding: Finding) -> Result<()> {
        // Units hand over nothing.
        let Ok(sums) = finding.downcast::<Vec<Sums>>() else { return Ok(()) };
        sums.into_iter().try_for_each(|sums| add(&mut self.all, sums))
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn Any + Send + Sync>> {
        let Self { sums, mut all, piece } = *self;
        sums.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().try_for_each(|s| add(&mut all, s))?;
        let filters: Vec<ColumnFilter> = all
            .into_iter()
            .map(|((agent, column), sums)| {
                let moments = sums.moments(piece.ddof);
                ColumnFilter {
                    agent,
                    column,
                    counts: moments.iter().map(|m| m.count).collect(),
                    mean: moments.iter().map(|m| m.mean).collect(),
                    std: moments.iter().map(|m| m.std).collect(),
                }
            })
            .collect();
        Ok(Box::new(filters))
    }
}

impl Connector for MeanStdFilter {
    piece_boilerplate!();

    fn slices(&self, _: Context<'_>, _: &EpisodeLayout) -> Option<Slices> {
        Some(Slices::ANYWHERE)
    }

    fn layout(&self, cx: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        require_unread(plan, OBS)?;
        if !plan.episodes.has(OBS) {
            return Err(Error::usage("needs observations, and the input has none").column(OBS));
        }
        for (name, ty) in &mut plan.episodes.steps {
            if crate::column::is_under(name, OBS) && self.takes(cx, name, ty)? {
                *ty = ty.with_dtype(normalised_dtype(ty.dtype));
            }
        }
        Ok(())
    }

    fn survey(&self, _: Context<'_>) -> Option<Box<dyn Survey>> {
        Some(Box::new(Pass { piece: self.clone(), sums: Mutex::default(), all: Sums::new() }))
    }

    fn portable_survey(&self) -> Option<Portable> {
        Some(Portable::of::<Vec<ColumnFilter>>())
    }

    fn statistics(&self, survey: &(dyn Any + Send + Sync)) -> Option<serde_json::Value> {
        serde_json::to_value(Self::statistics(survey)?).ok()
    }

    fn apply(&self, cx: Context<'_>, episodes: &mut EpisodeBatch, _: &mut ModuleBatch, _: &mut Repairs) -> Result<()> {
        let filters = cx.survey.and_then(Self::statistics).ok_or_else(|| Error::internal("no survey"))?;
        for name in self.leaves(cx, &episodes.steps)? {
            let of = |i: usize| {
                let owner = self.owner(episodes, i);
                // They stand in the order of their keys.
                let found = filters.binary_search_by(|f| (&f.agent, &f.column).cmp(&(&owner, &name)));
                found.map(|at| &filters[at]).map_err(|_| {
                    // Only where the statistics are those of another part of the data set.
                    let owner = owner.map_or_else(String::new, |agent| format!(" of agent {agent:?}"));
                    Error::data(format!("found no observation{owner} in the part that the statistics are taken from"))
                        .episode(episodes.chunks[i].id.to_string())
                        .column(&*name)
                        .job_key("output.split")
                })
            };
            let n = episodes.len();
            let column = |columns: &Columns| columns.get(&name).cloned();
            let steps =
                column(&episodes.steps).map(|c| self.normalised(&c, n, |i| episodes.rows(i), of)).transpose()?;
            let last = column(&episodes.last_obs).map(|c| self.normalised(&c, n, |i| i..i + 1, of)).transpose()?;
            let history = column(&episodes.history)
                .map(|c| self.normalised(&c, n, |i| episodes.history_rows(i), of))
                .transpose()?;
            for (columns, changed) in
                [(&mut episodes.steps, steps), (&mut episodes.last_obs, last), (&mut episodes.history, history)]
            {
                if let Some(changed) = changed {
                    columns.set(Arc::clone(&name), changed);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::testing::{apply_surveyed, assert_promise, episodes, part, promised, surveyed};

    fn filtered(piece: &MeanStdFilter, eps: &EpisodeBatch, ends: &[usize]) -> EpisodeBatch {
        let survey = surveyed(piece, eps, ends).unwrap();
        let mut out = eps.clone();
        let promise = promised(piece, eps).unwrap();
        let batch = apply_surveyed(piece, &*survey, &mut out).unwrap();
        assert_promise(&promise, &out, &batch);
        out
    }

    #[test]
    fn the_figure_above() {
        let mut eps = episodes(&[2, 0, 1]);
        eps.steps.set(OBS, Tensor::from_values::<f32>([1], &[10_000., 10_001., 10_002.]));
        eps.last_obs.set(OBS, Tensor::from_values::<f32>([1], &[10_003., 7., f32::NAN]));
        let piece = MeanStdFilter { epsilon: 0.0, ..MeanStdFilter::default() };
        let survey = surveyed(&piece, &eps, &[3]).unwrap();
        let [only] = MeanStdFilter::statistics(&*survey).unwrap() else { panic!("one column") };
        assert_eq!((only.counts[0], only.mean[0]), (3, 10_001.));
        assert!((only.std[0] - 0.8165).abs() < 1e-5);
        let out = filtered(&piece, &eps, &[3]);
        let one = 1.5f32.sqrt();
        assert_eq!(out.steps.get(OBS).unwrap().values::<f32>(), [-one, 0., one]);
        let last = out.last_obs.get(OBS).unwrap().values::<f32>();
        assert_eq!(&last[..2], [6f32.sqrt(), -10.]);
        assert!(last[2].is_nan());
    }

    #[test]
    fn options_are_rllibs() {
        let mut eps = episodes(&[3]);
        eps.steps.set(OBS, Tensor::from_values::<f64>([2], &[1., 5., 2., 5., 3., 5.]));
        eps.last_obs.set(OBS, Tensor::from_values::<f64>([2], &[4., 6.]));
        let of = |piece: &MeanStdFilter| filtered(piece, &eps, &[1]).steps.get(OBS).unwrap().values::<f64>().to_vec();
        let plain = MeanStdFilter { epsilon: 0.0, ..MeanStdFilter::default() };
        assert_eq!(of(&MeanStdFilter { de_std_to_one: false, ..plain.clone() }), [-1., 0., 0., 0., 1., 0.]);
        let got = of(&MeanStdFilter { ddof: 1, epsilon: 1.0, ..plain.clone() });
        assert_eq!(got, [-0.5, 0., 0., 0., 0.5, 0.]);
        let got = of(&MeanStdFilter { de_mean_to_zero: false, ddof: 1, epsilon: 1.0, ..plain.clone() });
        assert_eq!(got, [0.5, 5., 1., 5., 1.5, 5.]);
        let got = of(&MeanStdFilter { de_std_to_one: false, clip_by_value: Some(0.25), ..plain });
        assert_eq!(got, [-0.25, 0., 0., 0., 0.25, 0.]);
        assert!(MeanStdFilter { update_stats: false, ..MeanStdFilter::default() }.check().is_err());
        assert!(MeanStdFilter { ddof: 2, ..MeanStdFilter::default() }.check().is_err());
        assert!(MeanStdFilter { clip_by_value: Some(-1.), ..MeanStdFilter::default() }.check().is_err());
    }

    /// Against a two-pass reference in float64, for several cuts into units.
    #[test]
    fn cuts_do_not_matter() {
        let mut eps = episodes(&[5, 0, 1, 7, 3]);
        let values: Vec<f32> = (0..32u8).map(|i| (f32::from(i) * 0.37).sin() * 1000. + 1e5).collect();
        eps.steps.set(OBS, Tensor::from_values::<f32>([2], &values));
        eps.last_obs.set(OBS, Tensor::from_values::<f32>([2], &values[..10]));
        eps.history_offsets = vec![0, 0, 0, 2, 2, 2];
        eps.history.set(OBS, Tensor::from_values::<f32>([2], &values[4..8]));
        let piece = MeanStdFilter::default();
        let whole = filtered(&piece, &eps, &[5]);
        for ends in [vec![1, 2, 3, 4, 5], vec![2, 5], vec![0, 4, 4, 5]] {
            let other = filtered(&piece, &eps, &ends);
            assert_eq!(
                (&other.steps, &other.last_obs, &other.history),
                (&whole.steps, &whole.last_obs, &whole.history)
            );
        }
        for e in 0..2 {
            let own: Vec<f64> = values.iter().skip(e).step_by(2).map(|v| f64::from(*v)).collect();
            let mean = own.iter().sum::<f64>() / 16.;
            let std = (own.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 16.).sqrt();
            let normal = |v: f32| (f64::from(v) - mean) / (std + 1e-6);
            for (got, raw) in whole.steps.get(OBS).unwrap().values::<f32>().iter().zip(&values).skip(e).step_by(2) {
                assert!((f64::from(*got) - normal(*raw)).abs() < 1e-6);
            }
            let history = whole.history.get(OBS).unwrap().values::<f32>();
            assert!((f64::from(history[e]) - normal(values[4 + e])).abs() < 1e-6);
        }
    }

    #[test]
    fn agents_may_have_statistics_of_their_own() {
        let mut eps = episodes(&[2, 2]);
        eps.chunks[0].agent_id = Some("a".into());
        eps.chunks[1].agent_id = Some("b".into());
        let piece = MeanStdFilter { multi_agent: true, epsilon: 0.0, ..MeanStdFilter::default() };
        let out = filtered(&piece, &eps, &[1, 2]);
        assert_eq!(out.steps.get(OBS).unwrap().values::<f32>(), [-1., 1., -1., 1.]);
        assert_eq!(out.last_obs.get(OBS).unwrap().values::<f32>(), [3., 3.]);
    }

    #[test]
    fn integers_need_a_space_or_two_dimensions() {
        let mut eps = episodes(&[2]);
        eps.steps = [
            ("obs/image", Tensor::from_values::<u8>([1, 1], &[0, 200])),
            ("obs/mode", Tensor::from_values::<i64>([], &[3, 1])),
        ]
        .into_iter()
        .map(|(n, t)| (Arc::from(n), t))
        .collect();
        eps.last_obs = [
            ("obs/image", Tensor::from_values::<u8>([1, 1], &[100])),
            ("obs/mode", Tensor::from_values::<i64>([], &[0])),
        ]
        .into_iter()
        .map(|(n, t)| (Arc::from(n), t))
        .collect();
        let error = promised(&MeanStdFilter::default(), &eps).unwrap_err();
        assert_eq!(error.place().column.as_deref(), Some("obs/mode"));
        let space = r#"{"image": {"type": "box", "shape": [1, 1]}, "mode": {"type": "discrete", "n": 4}}"#;
        let piece = MeanStdFilter {
            input_observation_space: Some(serde_json::from_str(space).unwrap()),
            epsilon: 0.0,
            ..MeanStdFilter::default()
        };
        let module = crate::job::ModuleSettings::default();
        let space = piece.input_observation_space.clone();
        let cx = Context::new(&module, crate::job::Compat::Correct);
        let cx = Context { obs_space: space.as_ref(), ..cx };
        assert_eq!(*MeanStdFilter::default().leaves(cx, &eps.steps).unwrap(), [Arc::from("obs/image")]);
        let out = filtered(&piece, &eps, &[1]);
        assert_eq!(out.steps.get("obs/image").unwrap().values::<f32>(), [-1., 1.]);
        assert_eq!(out.last_obs.get("obs/image").unwrap().values::<f32>(), [0.]);
        assert_eq!(out.steps.get("obs/mode").unwrap().values::<i64>(), [3, 1]);
    }

    #[test]
    fn steps_that_were_added_do_not_count() {
        let mut eps = episodes(&[3]);
        let mut batch = ModuleBatch::default();
        batch.push(crate::column::LOSS_MASK, Tensor::from_bools([true, true, false]));
        let piece = MeanStdFilter::default();
        let module = crate::job::ModuleSettings::default();
        let cx = Context::new(&module, crate::job::Compat::Correct);
        let survey = piece.survey(cx).unwrap();
        survey.observe(cx, &part(&eps, 0..1), &batch).unwrap();
        let found = survey.finish().unwrap();
        assert_eq!(MeanStdFilter::statistics(&*found).unwrap()[0].mean, [0.5]);
        apply_surveyed(&piece, &*found, &mut eps).unwrap();
        assert_eq!(eps.steps.get(OBS).unwrap().values::<f32>().len(), 3);
        let empty = surveyed(&piece, &episodes(&[]), &[0]).unwrap();
        apply_surveyed(&piece, &*empty, &mut episodes(&[])).unwrap();
    }
}
