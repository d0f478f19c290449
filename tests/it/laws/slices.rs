//! What a piece says of where episodes may be cut ([`Slices`]) is true.

use std::collections::BTreeSet;

use gristmill::connector::{Context, Piece, Plan, Slices};
use gristmill::connectors::{ActionChunking, ComputeReturnsToGo, StackObservations};
use gristmill::error::Result;
use gristmill::pipeline::Slicing;

use super::*;

/// The pieces that allow cuts, with the options of these laws.
const SLICED: [&str; 16] = [
    "AddColumnsFromEpisodesToTrainBatch",
    "AddInfosFromEpisodesToTrainBatch",
    "AddNextObservationsFromEpisodesToTrainBatch",
    "AddObservationsFromEpisodesToBatch",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AgentToModuleMapping",
    "BatchIndividualItems",
    "ClipRewards",
    "CountBasedCuriosity",
    "FlattenObservations",
    "FrameStacking",
    "MeanStdFilter",
    "NumpyToTensor",
    "PrevActionsPrevRewards",
    "RewardScaling",
];

/// Pieces that stand beside the one that is looked at: what they change, it may look back on.
const BESIDE: [&str; 5] =
    ["StackObservations", "PrevActionsPrevRewards", "CountBasedCuriosity", "MeanStdFilter", "RewardScaling"];

/// Rows `start..end` of chunk `i`, with up to `look_back` rows in front.
fn slice(all: &EpisodeBatch, i: usize, rows: Range<usize>, look_back: usize) -> EpisodeBatch {
    let mut out = part(all, i..i + 1);
    let len = out.steps_len();
    let known = out.history_offsets[1] + rows.start;
    let before = known.saturating_sub(look_back);
    let past = |name: &Arc<str>, steps: &Tensor| {
        let pieces: Vec<Tensor> =
            out.history.get(name).into_iter().cloned().chain([steps.slice(0, rows.start)]).collect();
        Tensor::concat(steps.ty(), &pieces).slice(before, known - before)
    };
    let history = out.steps.iter().map(|(name, steps)| (Arc::clone(name), past(name, steps))).collect();
    if rows.end < len {
        let next = |name: &Arc<str>| out.steps.get(name).unwrap().slice(rows.end, 1);
        out.last_obs = out.last_obs.iter().map(|(name, _)| (Arc::clone(name), next(name))).collect();
        (out.chunks[0].terminated, out.chunks[0].truncated, out.chunks[0].has_last_obs) = (false, false, true);
    }
    (out.history, out.history_offsets) = (history, vec![0, known - before]);
    out.steps = out.steps.iter().map(|(name, t)| (Arc::clone(name), t.slice(rows.start, rows.len()))).collect();
    out.offsets = vec![0, rows.len()];
    out.chunks[0].t_started += i64::try_from(rows.start).unwrap();
    out
}

/// The ends of slices of a chunk of `len` steps: at every multiple of some lengths, and, in a long one, at every place alone.
fn cuts(len: usize, period: usize) -> Vec<Vec<usize>> {
    let places: Vec<usize> = (1..len).filter(|at| at % period == 0).collect();
    let alone = places.iter().filter(|_| len > 5);
    let mut out: Vec<Vec<usize>> = alone.map(|&at| vec![at, len]).collect();
    for stride in [1, 2] {
        out.push(places.iter().copied().filter(|at| at % (period * stride) == 0).chain([len]).collect());
    }
    out
}

impl Place {
    fn slicing(&self) -> Option<Slicing> {
        let steps = episodes(&[1], &self.obs).steps.iter().map(|(n, t)| (Arc::clone(n), t.ty().clone())).collect();
        let layout = EpisodeLayout { steps, last_obs: true };
        self.pipeline.slicing(self.pipeline.len(), &self.modules[0].settings, &layout).ok()
    }

    /// How often slices give what the episodes give, cut at every place where they may be; else what differs.
    fn slices_agree(&self) -> Result<usize, String> {
        let Some(slicing) = self.slicing() else { return Ok(0) };
        let lengths = [4, 5, 0, 1, 9];
        let all = episodes(&lengths, &self.obs);
        let mut repairs = Repairs::default();
        let whole = self.run_counting(std::slice::from_ref(&all), &mut repairs).remove(0).into_columns();
        let mut cases = 0;
        for (i, len) in lengths.into_iter().enumerate() {
            if slicing.from_start && all.chunks[i].t_started != 0 {
                continue;
            }
            for ends in cuts(len, slicing.period).into_iter().filter(|ends| ends.len() > 1) {
                let mut units: Vec<EpisodeBatch> = vec![part(&all, 0..i)];
                let mut start = 0;
                for &end in &ends {
                    units.push(slice(&all, i, start..end, slicing.look_back));
                    start = end;
                }
                units.push(part(&all, i + 1..lengths.len()));
                let mut own = Repairs::default();
                let sliced: Vec<_> =
                    self.run_counting(&units, &mut own).into_iter().map(ModuleBatch::into_columns).collect();
                for (column, (name, want)) in whole.iter().enumerate() {
                    let parts: Vec<Tensor> = sliced.iter().map(|unit| unit[column].1.tensor().clone()).collect();
                    if Tensor::concat(want.ty(), &parts) != *want.tensor() {
                        return Err(format!("{}: `{name}` of {len} steps, cut at {ends:?}, differs", self.what));
                    }
                }
                if own.sorted() != repairs.sorted() {
                    return Err(format!("{}: {len} steps, cut at {ends:?}, count other repairs", self.what));
                }
                cases += 1;
            }
        }
        Ok(cases)
    }
}

#[test]
fn slices_give_what_the_episode_gives() {
    let default: Vec<&str> = DEFAULT.into_iter().filter(|n| *n != "GeneralAdvantageEstimation").collect();
    let (mut names, mut cases, mut beside) = (BTreeSet::new(), 0, 0);
    for entry in all() {
        for indexed in [false, true] {
            for place in places_among(entry, &default, indexed) {
                let n = place.slices_agree().unwrap_or_else(|e| panic!("{e}"));
                cases += n;
                if n > 0 {
                    names.insert(entry.name);
                }
            }
        }
        if DEFAULT.contains(&entry.name) {
            continue;
        }
        for other in BESIDE.into_iter().filter(|other| *other != entry.name) {
            let others: Vec<&str> = [other].into_iter().chain(default.iter().copied()).collect();
            // In front of it, and behind.
            for place in places_among(entry, &others, false).into_iter().filter(|place| place.at <= 1) {
                beside += place.slices_agree().unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
    names.remove("StackObservations"); // as `FrameStacking`
    assert_eq!(names.into_iter().collect::<Vec<_>>(), SLICED, "other pieces than these allow cuts");
    assert!(cases > 3_000 && beside > 500, "{cases} {beside}");
}

/// A piece that says of itself what is not true.
#[derive(Debug)]
struct Liar {
    piece: Box<dyn Connector>,
    look_back: usize,
}

impl Connector for Liar {
    fn name(&self) -> &'static str {
        self.piece.name()
    }

    fn config(&self) -> Value {
        self.piece.config()
    }

    fn slices(&self, _: Context<'_>, _: &EpisodeLayout) -> Option<Slices> {
        Some(Slices::ANYWHERE)
    }

    fn look_back(&self, _: &ModuleSettings) -> usize {
        self.look_back
    }

    fn layout(&self, cx: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        self.piece.layout(cx, plan)
    }

    fn apply(
        &self,
        cx: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        repairs: &mut Repairs,
    ) -> Result<()> {
        self.piece.apply(cx, episodes, batch, repairs)
    }
}

/// Pieces in front of RLlib's pipeline.
fn in_front(pieces: Vec<Box<dyn Connector>>) -> Place {
    let learner: Learner = serde_json::from_value(json!({ "algorithm": "CQL" })).unwrap();
    let what = format!("{pieces:?}");
    let pipeline = Pipeline::with_own(&learner, pieces).unwrap();
    let obs: Observations = vec![("obs", TensorType::new(DType::Float32, [2]))];
    let steps = episodes(&[1], &obs).steps.iter().map(|(n, t)| (Arc::clone(n), t.ty().clone())).collect();
    let settings = ModuleSettings::default();
    let layout = pipeline.layout(&settings, &EpisodeLayout { steps, last_obs: true }).unwrap();
    let modules = vec![ModulePlan { part: None, id: "default_policy".to_owned(), settings, layout }];
    Place { pipeline, modules, obs, at: 0, what }
}

#[test]
fn a_piece_that_lies_is_caught() {
    fn caught<P: Piece>(piece: P, look_back: usize) -> bool {
        in_front(vec![Box::new(Liar { piece: Box::new(piece), look_back })]).slices_agree().is_err()
    }
    assert!(caught(ActionChunking { chunk_size: 3, ..ActionChunking::default() }, 0), "looks ahead");
    assert!(caught(ComputeReturnsToGo { gamma: 0.9 }, 0), "adds up what comes");
    assert!(caught(StackObservations { num_frames: 3 }, 1), "looks back on more than it says");
    assert!(!caught(StackObservations { num_frames: 3 }, 2), "and this is the truth");
}

/// Expressions that look at their own row alone, also where later pieces look back on what they made.
#[cfg(feature = "sql")]
#[test]
fn expressions_row_by_row() {
    let expression = |columns: Value, into: &str| {
        let piece: gristmill::connectors::Expression =
            serde_json::from_value(json!({ "columns": columns, "into": into })).unwrap();
        let previous = json!({ "n_prev_actions": 2, "n_prev_rewards": 3 });
        let previous: gristmill::connectors::PrevActionsPrevRewards = serde_json::from_value(previous).unwrap();
        in_front(vec![Box::new(piece), Box::new(previous)]).slices_agree().unwrap()
    };
    let by_row = [
        (json!({ "rewards": "rewards * 0.5 + t" }), "episodes"),
        (json!({ "obs/1": "\"obs/0\" / 3 + t", "actions/0": "\"actions/1\" + \"obs/1\"" }), "episodes"),
        (json!({ "mine": "rewards > 3 AND eps_id <> '1'" }), "episodes"),
        (json!({ "rewards": "rewards * \"obs/0\"" }), "batch"),
    ];
    for (columns, into) in by_row {
        assert!(expression(columns.clone(), into) > 10, "{columns}");
    }
    let whole = ["rewards / avg(rewards)", "rewards * episode_length", "coalesce(lag(rewards) OVER (ORDER BY t), 0)"];
    for text in whole.into_iter().chain(["rewards * terminateds", "episode_return"]) {
        assert_eq!(expression(json!({ "rewards": text }), "episodes"), 0, "{text}");
    }
}
