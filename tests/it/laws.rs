//! What holds for every connector piece, whatever it does. A new piece is held to it without a line here, unless it
//! needs options or data that the others do not.

mod slices;

use std::ops::Range;
use std::sync::Arc;

use gristmill::batch::ModuleBatch;
use gristmill::connector::{Connector, ModuleUnit, Repairs};
use gristmill::connectors::{self, Entry};
use gristmill::episode::{Chunk, Columns, EpisodeBatch, EpisodeId, EpisodeLayout};
use gristmill::job::{Compat, Job, Learner, ModuleSettings};
use gristmill::pipeline::{ModulePlan, Pipeline, Segment, Surveys, keeps_promise};
use gristmill::tensor::{DType, Tensor, TensorType};
use serde_json::{Value, json};

/// The options of a piece that cannot do without, and that make it do something on a few short episodes.
fn options(name: &str) -> Value {
    match name {
        "ComputeReturnsToGo" => json!({ "gamma": 0.9 }),
        "GeneralAdvantageEstimation" => json!({ "gamma": 0.9, "lambda_": 0.8 }),
        "OverlappingSequences" => json!({ "burn_in": 2, "length": 3, "period": 2 }),
        "DecisionTransformerWindows" => json!({ "context_len": 3, "fill": { "returns_to_go": "repeat" } }),
        "Expression" => json!({ "columns": { "rewards": "rewards * 0.5 + avg(rewards)" } }),
        "ClipRewards" => json!({ "limit": 20.0 }),
        "FrameStacking" | "StackObservations" => json!({ "num_frames": 3 }),
        "ActionChunking" => json!({ "chunk_size": 3, "past": 1 }),
        _ => json!({}),
    }
}

/// All pieces that this build has: `Expression` needs SQL.
fn all() -> impl Iterator<Item = &'static Entry> {
    connectors::all().iter().filter(|entry| cfg!(feature = "sql") || entry.name != "Expression")
}

fn build(entry: &Entry, options: Value) -> Box<dyn Connector> {
    (entry.build)(options).unwrap_or_else(|e| panic!("{}: {e}", entry.name))
}

/// Values that are not all alike: a few hundred of them repeat rarely.
fn tensor(ty: &TensorType, rows: usize, salt: u64) -> Tensor {
    let noise = |i: usize| (i as u64 + 1).wrapping_mul(salt.wrapping_mul(2_654_435_761) | 1) >> 7;
    let values: Vec<f64> = (0..rows * ty.row_elements()).map(|i| (noise(i) % 97) as f64).collect();
    Tensor::from_values::<f64>([], &values).cast(ty.dtype).unwrap().reshaped(ty.clone(), rows)
}

/// The leaves of an observation.
type Observations = Vec<(&'static str, TensorType)>;

/// Episodes of the given lengths with the observations `obs`. The chunk after the first one continues an
/// episode, with three steps of look-back.
fn episodes(lengths: &[usize], obs: &Observations) -> EpisodeBatch {
    let scalar = |dtype| TensorType::new(dtype, []);
    let extras = [
        ("actions", TensorType::new(DType::Float32, [2])),
        ("rewards", scalar(DType::Float64)),
        ("vf_preds", scalar(DType::Float32)),
        ("state_out/h", TensorType::new(DType::Float32, [2])),
        ("infos/lives", scalar(DType::Int64)),
        ("infos/_lives", scalar(DType::Bool)),
    ];
    let types: Vec<(&str, TensorType)> = obs.iter().cloned().chain(extras).collect();
    let look_back = |i: usize| if i == 1 { 3 } else { 0 };
    let sums = |of: &dyn Fn(usize) -> usize| {
        let mut out = vec![0];
        (0..lengths.len()).for_each(|i| out.push(out[i] + of(i)));
        out
    };
    let (offsets, history_offsets) = (sums(&|i| lengths[i]), sums(&look_back));
    let columns = |rows: usize, salt: u64| -> Columns {
        types.iter().zip(salt..).map(|((name, ty), salt)| (Arc::from(*name), tensor(ty, rows, salt))).collect()
    };
    let chunk = |i: usize| Chunk {
        id: EpisodeId::Int(i64::try_from(i).unwrap()),
        agent_id: None,
        ordinal: u32::try_from(i).unwrap(),
        bare_rank: u32::try_from(i).unwrap(),
        t_started: if i == 1 { 8 } else { 0 },
        terminated: i % 3 == 1,
        truncated: i % 3 == 2,
        has_last_obs: true,
    };
    EpisodeBatch {
        chunks: (0..lengths.len()).map(chunk).collect(),
        steps: columns(offsets[lengths.len()], 1),
        last_obs: obs.iter().map(|(name, ty)| (Arc::from(*name), tensor(ty, lengths.len(), 11))).collect(),
        history: columns(history_offsets[lengths.len()], 21),
        offsets,
        history_offsets,
    }
}

/// The chunks `range` of `all`.
fn part(all: &EpisodeBatch, range: Range<usize>) -> EpisodeBatch {
    let cut = |columns: &Columns, offsets: &[usize]| -> Columns {
        let (start, end) = (offsets[range.start], offsets[range.end]);
        columns.iter().map(|(name, t)| (Arc::clone(name), t.slice(start, end - start))).collect()
    };
    let rebased = |offsets: &[usize]| -> Vec<usize> {
        offsets[range.start..=range.end].iter().map(|o| o - offsets[range.start]).collect()
    };
    let each: Vec<usize> = (0..=all.len()).collect();
    EpisodeBatch {
        chunks: all.chunks[range.clone()].to_vec(),
        offsets: rebased(&all.offsets),
        steps: cut(&all.steps, &all.offsets),
        last_obs: cut(&all.last_obs, &each),
        history_offsets: rebased(&all.history_offsets),
        history: cut(&all.history, &all.history_offsets),
    }
}

/// One place of one piece in one pipeline, for one kind of module and data.
struct Place {
    pipeline: Pipeline,
    modules: Vec<ModulePlan>,
    obs: Observations,
    /// Where in the pipeline.
    at: usize,
    what: String,
}

/// Everywhere in the default pipeline where the piece can stand: its layout says so.
fn places(entry: &Entry) -> Vec<Place> {
    places_with(entry, false)
}

/// RLlib's pipeline.
const DEFAULT: [&str; 8] = [
    "AddObservationsFromEpisodesToBatch",
    "AddNextObservationsFromEpisodesToTrainBatch",
    "AddColumnsFromEpisodesToTrainBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AddStatesFromEpisodesToBatch",
    "BatchIndividualItems",
    "NumpyToTensor",
    "GeneralAdvantageEstimation",
];

/// The same with windows stored once, or laid out.
fn places_with(entry: &Entry, indexed: bool) -> Vec<Place> {
    let out = places_among(entry, &DEFAULT, indexed);
    assert!(!out.is_empty(), "{} fits nowhere: give it options, or observations of its kind, in this file", entry.name);
    out
}

/// Everywhere among other pieces where the piece can stand.
fn places_among(entry: &Entry, others: &[&'static str], indexed: bool) -> Vec<Place> {
    let mut out = Vec::new();
    let floats = |n: usize| TensorType::new(DType::Float32, [n]);
    let observations: [Observations; 3] = [
        vec![("obs", floats(2))],
        vec![("obs", TensorType::new(DType::UInt8, [3, 2, 1]))],
        vec![("obs/achieved_goal", floats(2)), ("obs/desired_goal", floats(2)), ("obs/observation", floats(3))],
    ];
    for (obs, stateful, compat, own_cut) in kinds(&observations) {
        let rest: Vec<&str> = others
            .iter()
            .copied()
            .filter(|n| *n != entry.name && !(own_cut && *n == "AddTimeDimToBatchAndZeroPad"))
            .collect();
        for at in 0..=rest.len() {
            let mut names = rest.clone();
            names.insert(at, entry.name);
            let connector = |name: &&str| {
                let mut table = options(name);
                table["type"] = json!(name);
                table
            };
            let learner: Learner = serde_json::from_value(json!({
                "compat": compat,
                "add_default_connectors_to_learner_pipeline": false,
                "connectors": names.iter().map(connector).collect::<Vec<_>>(),
            }))
            .unwrap();
            let pipeline = Pipeline::new(&learner).unwrap().with_indexed_windows(indexed);
            let settings = ModuleSettings { stateful, max_seq_len: Some(3), ..ModuleSettings::default() };
            let steps = episodes(&[1], obs).steps.iter().map(|(n, t)| (Arc::clone(n), t.ty().clone())).collect();
            if let Ok(layout) = pipeline.layout(&settings, &EpisodeLayout { steps, last_obs: true }) {
                let modules = vec![ModulePlan { part: None, id: "default_policy".to_owned(), settings, layout }];
                let what =
                    format!("{} at {at} of {names:?}, stateful = {stateful}, {compat:?}, obs = {obs:?}", entry.name);
                out.push(Place { pipeline, modules, obs: obs.clone(), at, what });
            }
        }
    }
    out
}

/// All combinations of observations, statefulness, compatibility, and whether the default cut is left out.
fn kinds(observations: &[Observations]) -> impl Iterator<Item = (&Observations, bool, Compat, bool)> {
    observations.iter().flat_map(|obs| {
        (0..8).map(move |bits| {
            let compat = if bits & 2 == 0 { Compat::Correct } else { Compat::Rllib260 };
            (obs, bits & 1 == 0, compat, bits & 4 != 0)
        })
    })
}

impl Place {
    /// The units as the pieces `..end` leave them.
    fn pass(
        &self,
        end: usize,
        surveys: &Surveys,
        units: &[EpisodeBatch],
        repairs: &mut Repairs,
    ) -> Vec<Vec<ModuleUnit>> {
        let segments = self.pipeline.segments(end);
        let start = |segment: &Segment| match segment {
            Segment::Free(_) => None,
            Segment::Ordered(i) => Some(self.pipeline.start_ordered(*i).unwrap()),
        };
        let mut states: Vec<_> = segments.iter().map(start).collect();
        let mut out = Vec::new();
        for (number, episodes) in units.iter().enumerate() {
            let batch = ModuleBatch::default();
            let mut unit = vec![ModuleUnit { module: 0, episodes: episodes.clone(), batch }];
            for (segment, state) in segments.iter().zip(&mut states) {
                let done = match (segment, state) {
                    (Segment::Ordered(i), Some(state)) => {
                        self.pipeline.apply_ordered(*i, &mut **state, &mut unit, repairs)
                    }
                    (Segment::Free(pieces), _) => {
                        self.pipeline.apply(pieces.clone(), &self.modules, surveys, number, &mut unit, repairs)
                    }
                    (Segment::Ordered(_), None) => unreachable!(),
                };
                done.unwrap_or_else(|e| panic!("{}: {e}", self.what));
            }
            out.push(unit);
        }
        out
    }

    /// The batches of the units, the passes of surveys included.
    fn run(&self, units: &[EpisodeBatch]) -> Vec<ModuleBatch> {
        self.run_counting(units, &mut Repairs::default())
    }

    /// The same; counts the repairs of the last pass.
    fn run_counting(&self, units: &[EpisodeBatch], repairs: &mut Repairs) -> Vec<ModuleBatch> {
        let mut surveys = Surveys::default();
        for piece in 0..self.pipeline.len() {
            let Some(mut own) = self.pipeline.surveys(piece, &self.modules) else { continue };
            for (number, unit) in self.pass(piece, &surveys, units, &mut Repairs::default()).iter().enumerate() {
                for (module, finding) in self.pipeline.observe(piece, &own, &self.modules, number, unit).unwrap() {
                    own[module].as_mut().unwrap().merge(finding).unwrap();
                }
            }
            surveys.set(piece, own.into_iter().map(|s| s.map(|s| s.finish().unwrap())).collect());
        }
        let done = self.pass(self.pipeline.len(), &surveys, units, repairs);
        let checked = |mut unit: Vec<ModuleUnit>| {
            let ModuleUnit { batch, episodes, .. } = unit.remove(0);
            keeps_promise(&self.modules[0].layout, &batch).unwrap_or_else(|e| panic!("{}: {e}", self.what));
            let rows = batch.windows().map_or(episodes.steps_len(), |w| w.len());
            let all = batch.iter().all(|(_, column)| column.rows() == rows);
            assert!(all, "{}: a column has another number of rows than the batch says", self.what);
            batch
        };
        done.into_iter().map(checked).collect()
    }
}

#[test]
fn layout_foretells_apply_and_units_may_be_cut_anywhere() {
    // 0, 1, T - 1, T, T + 1 and more; the second one is a chunk with look-back.
    let lengths = [4, 3, 0, 1, 2, 0, 7, 3];
    for entry in all() {
        for place in places(entry) {
            let whole = episodes(&lengths, &place.obs);
            let together = place.run(std::slice::from_ref(&whole)).remove(0).into_columns();
            for at in [1, 2, 3, 6] {
                let parts = place.run(&[part(&whole, 0..at), part(&whole, at..lengths.len())]);
                let parts: Vec<_> = parts.into_iter().map(ModuleBatch::into_columns).collect();
                for (i, (name, column)) in together.iter().enumerate() {
                    let joined =
                        Tensor::concat(column.ty(), &[parts[0][i].1.tensor().clone(), parts[1][i].1.tensor().clone()]);
                    assert!(joined == *column.tensor(), "{}: `{name}` depends on how units are cut", place.what);
                }
            }
        }
    }
}

#[test]
fn nothing_and_episodes_of_nothing_give_no_rows() {
    for entry in all() {
        for place in places(entry).into_iter().filter(|p| p.what.contains("Correct")) {
            for lengths in [&[] as &[usize], &[0], &[0, 0]] {
                let batch = place.run(&[episodes(lengths, &place.obs)]).remove(0);
                assert!(batch.iter().all(|(_, column)| column.rows() == 0), "{}: rows of nothing", place.what);
            }
        }
    }
}

/// Columns that a piece says it does not look at may be missing.
#[test]
fn what_is_not_looked_at_changes_nothing() {
    let lengths = [4, 3, 0, 1, 2, 0, 7, 3];
    for entry in all() {
        for place in places(entry) {
            let whole = episodes(&lengths, &place.obs);
            let settings = &place.modules[0].settings;
            let mut read = whole.clone();
            for columns in [&mut read.steps, &mut read.last_obs, &mut read.history] {
                let kept = columns.iter().filter(|(name, _)| place.pipeline.reads(settings, name));
                *columns = kept.map(|(name, tensor)| (Arc::clone(name), tensor.clone())).collect();
            }
            let all = place.run(&[whole]).remove(0).into_columns();
            assert!(place.run(&[read]).remove(0).into_columns() == all, "{}", place.what);
        }
    }
}

/// Windows that are stored once are, laid out, those that are laid out at once; also behind pieces that look at them.
#[test]
fn windows_stored_once_are_the_same() {
    let lengths = [4, 3, 0, 1, 2, 0, 7, 3];
    let mut stored = 0;
    for entry in all() {
        let (laid_out, indexed) = (places(entry), places_with(entry, true));
        assert_eq!(laid_out.len(), indexed.len());
        for (laid_out, indexed) in laid_out.iter().zip(&indexed) {
            let units = [episodes(&lengths, &laid_out.obs)];
            let (all, windows) = (laid_out.run(&units).remove(0), indexed.run(&units).remove(0));
            stored += windows.iter().filter(|(_, column)| column.stored().is_some()).count();
            assert!(all.into_columns() == windows.into_columns(), "{}", laid_out.what);
        }
    }
    assert!(stored > 1000, "{stored}");
}

/// However episodes are cut into sequences, each step has the same values: also those of pieces behind the cut.
#[test]
fn cuts_agree_on_every_step() {
    let lengths = [4, 3, 0, 1, 2, 0, 7, 3];
    let obs: Observations = vec![("obs", TensorType::new(DType::Float32, [2]))];
    let whole = episodes(&lengths, &obs);
    let steps = |cut: Value| {
        let names = |names: &[&str]| names.iter().map(|n| json!({ "type": n })).collect::<Vec<_>>();
        let mut connectors = names(&[
            "AddOneTsToEpisodesAndTruncate",
            "AddObservationsFromEpisodesToBatch",
            "AddColumnsFromEpisodesToTrainBatch",
        ]);
        connectors.push(cut);
        connectors.extend(names(&["AddStatesFromEpisodesToBatch", "BatchIndividualItems", "NumpyToTensor"]));
        connectors.push(json!({ "type": "GeneralAdvantageEstimation", "gamma": 0.9, "lambda_": 0.8 }));
        let learner = json!({ "add_default_connectors_to_learner_pipeline": false, "connectors": connectors });
        let pipeline = Pipeline::new(&serde_json::from_value::<Learner>(learner).unwrap()).unwrap();
        let settings = ModuleSettings { stateful: true, max_seq_len: Some(3), ..ModuleSettings::default() };
        let types = whole.steps.iter().map(|(n, t)| (Arc::clone(n), t.ty().clone())).collect();
        let layout = pipeline.layout(&settings, &EpisodeLayout { steps: types, last_obs: true }).unwrap();
        let modules = vec![ModulePlan { part: None, id: "default_policy".to_owned(), settings, layout }];
        let place = Place { pipeline, modules, obs: obs.clone(), at: 0, what: "cuts".to_owned() };
        let batch = place.run(std::slice::from_ref(&whole)).remove(0);
        // One more step in each episode that has any.
        let lengths = lengths.map(|len| if len == 0 { 0 } else { len + 1 });
        let a_step = |name: &str| !name.starts_with("state_in") && name != "seq_lens";
        let back = |(name, column): (&str, &gristmill::batch::Column)| {
            (String::from(name), batch.windows().unwrap().scatter(column.tensor(), lengths).unwrap())
        };
        batch.iter().filter(|(name, _)| a_step(name)).map(back).collect::<Vec<_>>()
    };
    let rllibs = steps(json!({ "type": "AddTimeDimToBatchAndZeroPad" }));
    assert!(rllibs.iter().any(|(name, _)| name == "value_targets"));
    for (burn_in, length, period) in [(2, 3, 2), (0, 4, 1), (9, 2, 2)] {
        let cut = json!({ "type": "OverlappingSequences", "burn_in": burn_in, "length": length, "period": period });
        assert!(steps(cut.clone()) == rllibs, "{cut}");
    }
}

/// Tables without their empty keys: TOML has no null.
fn without_nulls(config: &Value) -> Value {
    let entries = config.as_object().unwrap().iter().filter(|(_, v)| !v.is_null());
    Value::Object(entries.map(|(k, v)| (k.clone(), v.clone())).collect())
}

#[test]
fn options_survive_json_and_toml() {
    for entry in all() {
        let config = build(entry, options(entry.name)).config();
        assert_eq!(build(entry, config.clone()).config(), config, "{}: JSON", entry.name);

        let mut table = without_nulls(&config);
        table["type"] = json!(entry.name);
        let job = json!({ "version": 1, "input": { "paths": ["x"] }, "learner": { "connectors": [table] } });
        let job = Job::from_toml_str(&toml::to_string(&job).unwrap());
        let job = job.unwrap_or_else(|e| panic!("{}: {e:?}", entry.name));
        assert_eq!(build(entry, job.learner.connectors[0].options()).config(), config, "{}: TOML", entry.name);
    }
}

#[test]
fn unknown_options_are_refused() {
    for entry in all() {
        let mut table = options(entry.name);
        table["min_batch_len_T"] = json!(20); // the misspelt option that RLlib swallowed (ray 59345)
        let refused = (entry.build)(table.clone()).unwrap_err();
        assert!(refused.contains("min_batch_len_T"), "{}: {refused}", entry.name);
        table["type"] = json!(entry.name);
        let job = json!({ "input": { "paths": ["x"] }, "learner": { "connectors": [table] } });
        assert!(Job::from_json_str(&job.to_string()).is_err(), "{}: the schema lets it pass", entry.name);
    }
}
