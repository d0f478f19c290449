//! Every connector piece, one file each, and the one list of them.

mod action_chunking;
mod add_columns;
mod add_infos;
mod add_next_observations;
mod add_observations;
mod add_one_ts;
mod add_states;
mod add_time_dim;
mod agent_to_module_mapping;
mod batch_individual_items;
mod clip_rewards;
mod compute_returns_to_go;
mod count_based_curiosity;
mod counting;
mod cutting;
mod decision_transformer_windows;
mod euclidian_distance_based_curiosity;
mod expression;
mod flatten_observations;
mod frame_stacking;
mod general_advantage_estimation;
mod hindsight_goal_relabelling;
mod intrinsic;
mod mean_std_filter;
mod n_step_returns;
mod normalize_rewards_by_return_range;
mod numpy_to_tensor;
mod overlapping_sequences;
mod prev_actions_prev_rewards;
mod recorded;
mod reward_scaling;
mod rewards;
mod stack_observations;

pub use action_chunking::ActionChunking;
pub use add_columns::AddColumnsFromEpisodesToTrainBatch;
pub use add_infos::AddInfosFromEpisodesToTrainBatch;
pub use add_next_observations::AddNextObservationsFromEpisodesToTrainBatch;
pub use add_observations::AddObservationsFromEpisodesToBatch;
pub use add_one_ts::AddOneTsToEpisodesAndTruncate;
pub use add_states::AddStatesFromEpisodesToBatch;
pub use add_time_dim::AddTimeDimToBatchAndZeroPad;
pub use agent_to_module_mapping::AgentToModuleMapping;
pub use batch_individual_items::BatchIndividualItems;
pub use clip_rewards::ClipRewards;
pub use compute_returns_to_go::ComputeReturnsToGo;
pub use count_based_curiosity::CountBasedCuriosity;
pub use decision_transformer_windows::DecisionTransformerWindows;
pub use euclidian_distance_based_curiosity::EuclidianDistanceBasedCuriosity;
pub use expression::Expression;
pub use flatten_observations::FlattenObservations;
pub use frame_stacking::FrameStacking;
pub use general_advantage_estimation::GeneralAdvantageEstimation;
pub use hindsight_goal_relabelling::{GoalSelectionStrategy, HindsightGoalRelabelling};
pub use mean_std_filter::{ColumnFilter, MeanStdFilter};
pub use n_step_returns::NStepReturns;
pub use normalize_rewards_by_return_range::{NormalizeRewardsByReturnRange, ReturnRange};
pub use numpy_to_tensor::NumpyToTensor;
pub use overlapping_sequences::OverlappingSequences;
pub use prev_actions_prev_rewards::PrevActionsPrevRewards;
pub use reward_scaling::RewardScaling;
pub use stack_observations::StackObservations;

#[cfg(test)]
mod testing;

use serde_json::Value;

use crate::column::REWARDS;
use crate::connector::{Connector, Piece};
use crate::episode::EpisodeBatch;
use crate::error::{Error, Result, closest};
use crate::job::ConnectorConfig;
use crate::tensor::Tensor;

/// All pieces, in the order in which `gristmill connectors` lists them.
static ALL: &[Entry] = &[
    Entry::of::<AddOneTsToEpisodesAndTruncate>(),
    Entry::of::<AddObservationsFromEpisodesToBatch>(),
    Entry::of::<AddNextObservationsFromEpisodesToTrainBatch>(),
    Entry::of::<AddColumnsFromEpisodesToTrainBatch>(),
    Entry::of::<AddInfosFromEpisodesToTrainBatch>(),
    Entry::of::<AddTimeDimToBatchAndZeroPad>(),
    Entry::of::<AddStatesFromEpisodesToBatch>(),
    Entry::of::<AgentToModuleMapping>(),
    Entry::of::<BatchIndividualItems>(),
    Entry::of::<NumpyToTensor>(),
    Entry::of::<GeneralAdvantageEstimation>(),
    Entry::of::<ComputeReturnsToGo>(),
    Entry::of::<OverlappingSequences>(),
    Entry::of::<DecisionTransformerWindows>(),
    Entry::of::<ActionChunking>(),
    Entry::of::<CountBasedCuriosity>(),
    Entry::of::<EuclidianDistanceBasedCuriosity>(),
    Entry::of::<FrameStacking>(),
    Entry::of::<StackObservations>(),
    Entry::of::<FlattenObservations>(),
    Entry::of::<MeanStdFilter>(),
    Entry::of::<RewardScaling>(),
    Entry::of::<ClipRewards>(),
    Entry::of::<NormalizeRewardsByReturnRange>(),
    Entry::of::<NStepReturns>(),
    Entry::of::<PrevActionsPrevRewards>(),
    Entry::of::<HindsightGoalRelabelling>(),
    Entry::of::<Expression>(),
];

/// What is known of a piece without an instance of it.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Name in a job file: RLlib's class name wherever RLlib has the piece.
    pub name: &'static str,
    /// The JSON Schema of the options (`type` is not among them); its `description` documents the piece.
    pub config_schema: fn() -> Value,
    /// Options that work, for the example in the documentation.
    pub example: fn() -> Value,
    /// Builds the piece from its options.
    pub build: fn(Value) -> Result<Box<dyn Connector>, String>,
}

impl Entry {
    const fn of<P: Piece>() -> Self {
        Self {
            name: P::NAME,
            config_schema: || schemars::schema_for!(P).to_value(),
            example: || P::example().config(),
            build: |options| {
                let piece: P = serde_json::from_value(options).map_err(|e| e.to_string())?;
                piece.check().map_err(|e| e.what().to_owned())?;
                Ok(Box::new(piece))
            },
        }
    }

    /// The documentation.
    #[must_use]
    pub fn description(&self) -> String {
        (self.config_schema)()["description"].as_str().unwrap_or_default().to_owned()
    }

    /// The first paragraph of the documentation, on one line.
    #[must_use]
    pub fn summary(&self) -> String {
        self.description().split("\n\n").next().unwrap_or_default().replace('\n', " ")
    }

    /// The names of the options.
    fn options(&self) -> Vec<String> {
        let schema = (self.config_schema)();
        schema["properties"].as_object().map(|o| o.keys().cloned().collect()).unwrap_or_default()
    }
}

/// Every piece there is.
#[must_use]
pub fn all() -> &'static [Entry] {
    ALL
}

/// The piece called `name`.
///
/// # Errors
/// If there is none: the message names the closest.
pub fn find(name: &str) -> Result<&'static Entry> {
    if let Some(entry) = ALL.iter().find(|e| e.name == name) {
        return Ok(entry);
    }
    let names: Vec<&str> = ALL.iter().map(|e| e.name).collect();
    let error = Error::usage(format!("found no connector `{name}`, expected one of {}", names.join(", ")));
    Err(match closest(name, names.iter().copied()) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error.hint("`gristmill connectors` lists them with their options"),
    })
}

/// Builds the piece that element `index` of `learner.connectors` describes.
///
/// # Errors
/// With the key path of what is wrong.
pub fn build(index: usize, config: &ConnectorConfig) -> Result<Box<dyn Connector>> {
    let key = format!("learner.connectors[{index}]");
    let name = config.type_name();
    let entry = find(name).map_err(|e| e.job_key(format!("{key}.type")))?;
    (entry.build)(config.options()).map_err(|what| {
        let options = entry.options();
        let error = Error::usage(format!("{name}: {what}")).job_key(key);
        if options.is_empty() {
            error.hint(format!("{name} has no options"))
        } else {
            error.hint(format!("its options are {}; `gristmill connectors {name}` explains them", options.join(", ")))
        }
    })
}

/// `as_learner_connector = false` asks for RLlib's env-to-module behaviour, which has no meaning for recorded data.
fn require_learner_connector(as_learner_connector: bool) -> Result<()> {
    if as_learner_connector {
        return Ok(());
    }
    Err(Error::usage(
        "found as_learner_connector = false, expected true: recorded data go through the learner pipeline",
    ))
}

/// A discount factor or a weight lies between 0 and 1.
fn require_discount(name: &str, value: f64) -> Result<()> {
    if (0.0..=1.0).contains(&value) {
        return Ok(());
    }
    Err(Error::usage(format!("found {name} = {value}, expected a number from 0 to 1")))
}

/// The rewards of a batch of episodes. Layouts have made sure that they are one column.
fn rewards(episodes: &EpisodeBatch) -> Result<&Tensor> {
    episodes.steps.get(REWARDS).ok_or_else(|| Error::internal("episodes without rewards"))
}

/// Serde's default for `as_learner_connector`.
const fn yes() -> bool {
    true
}
