//! The pipelines that RLlib's algorithms build.

use super::Pieces;
use crate::connector::Connector;
use crate::connectors::{
    AddColumnsFromEpisodesToTrainBatch, AddNextObservationsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch, AddOneTsToEpisodesAndTruncate, AddStatesFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad, BatchIndividualItems, GeneralAdvantageEstimation, NumpyToTensor,
};
use crate::job::{Algorithm, Learner};

/// The pieces that the algorithm's `config.build_learner_connector()` appends in RLlib 2.60, split into those that
/// go in front of the custom pieces and those that follow them.
///
/// | algorithm | in front | after the custom pieces |
/// |---|---|---|
/// | none, PPO | | the default pipeline (`algorithm_config.py`) |
/// | BC, CQL, IQL, SAC, DQN | | the same with next observations (`bc.py`, `cql.py`, `iql.py`, `sac.py`, `dqn_learner.py`) |
/// | IMPALA, APPO | one more step an episode | the default pipeline (`impala.py`) |
/// | MARWIL | one more step an episode | with next observations, then advantages (`marwil.py`) |
///
/// `cutter` is a custom piece that stands for `AddTimeDimToBatchAndZeroPad`; see [`Connector::cuts_sequences`].
pub(super) fn default_pieces(learner: &Learner, cutter: Option<Box<dyn Connector>>) -> (Pieces, Pieces) {
    use Algorithm as A;
    let algorithm = learner.algorithm;
    let next_obs = matches!(algorithm, Some(A::Bc | A::Marwil | A::Cql | A::Iql | A::Sac | A::Dqn));
    let one_more = matches!(algorithm, Some(A::Impala | A::Appo | A::Marwil));
    let mut front = Pieces::new();
    if one_more {
        front.push(Box::new(AddOneTsToEpisodesAndTruncate {}));
    }
    let mut rest: Pieces = vec![Box::new(AddObservationsFromEpisodesToBatch::default())];
    if next_obs {
        rest.push(Box::new(AddNextObservationsFromEpisodesToTrainBatch {}));
    }
    rest.push(Box::new(AddColumnsFromEpisodesToTrainBatch {}));
    rest.push(cutter.unwrap_or_else(|| Box::new(AddTimeDimToBatchAndZeroPad::default())));
    rest.push(Box::new(AddStatesFromEpisodesToBatch::default()));
    rest.push(Box::new(BatchIndividualItems::default()));
    rest.push(Box::new(NumpyToTensor::default()));
    if algorithm == Some(A::Marwil) {
        rest.push(Box::new(GeneralAdvantageEstimation::with(learner.gamma, learner.lambda_)));
    }
    (front, rest)
}

/// The learner's settings with what its algorithm assumes where the job says nothing.
#[must_use]
pub fn resolved(learner: &Learner) -> Learner {
    let mut out = learner.clone();
    if takes_discounts(learner) {
        let own = GeneralAdvantageEstimation::with(learner.gamma, learner.lambda_);
        (out.gamma, out.lambda_) = (Some(own.gamma), Some(own.lambda_));
    }
    out
}

/// What the job says of the learner and what has no effect, a sentence each.
#[must_use]
pub fn without_effect(learner: &Learner) -> Vec<String> {
    let set = [("gamma", learner.gamma.is_some()), ("lambda_", learner.lambda_.is_some())];
    let algorithm = learner.algorithm.map_or_else(|| "no algorithm".to_owned(), |a| a.to_string());
    let note = |name: &str| {
        format!("learner.{name} has no effect: the pipeline of {algorithm} has no piece that takes it, MARWIL's has")
    };
    set.iter().filter(|(_, set)| *set && !takes_discounts(learner)).map(|(name, _)| note(name)).collect()
}

/// Whether the algorithm hands `gamma` and `lambda_` to a piece.
fn takes_discounts(learner: &Learner) -> bool {
    learner.algorithm == Some(Algorithm::Marwil) && learner.add_default_connectors_to_learner_pipeline
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Pipeline;
    use super::*;
    use crate::error::Result;

    #[test]
    fn discounts_are_told_and_filled_in() {
        let learner = |value| serde_json::from_value::<Learner>(value).unwrap();
        let marwil = learner(json!({ "algorithm": "MARWIL", "gamma": 0.9 }));
        let full = resolved(&marwil);
        assert_eq!((full.gamma, full.lambda_), (Some(0.9), Some(GeneralAdvantageEstimation::default().lambda_)));
        assert!(without_effect(&marwil).is_empty());
        let bc = learner(json!({ "algorithm": "BC", "gamma": 0.9, "lambda_": 1.0 }));
        assert_eq!(resolved(&bc), bc);
        assert_eq!(without_effect(&bc).len(), 2);
        assert!(
            without_effect(&learner(json!({ "lambda_": 1.0 })))[0]
                .starts_with("learner.lambda_ has no effect: the pipeline of no algorithm")
        );
    }

    fn names(learner: serde_json::Value) -> Result<Vec<&'static str>> {
        let pipeline = Pipeline::new(&serde_json::from_value(learner).expect("a learner"))?;
        Ok(pipeline.pieces().map(Connector::name).collect())
    }

    #[test]
    fn a_piece_that_cuts_takes_the_place_of_the_default_cut() {
        let (cut, other) = (json!({ "type": "OverlappingSequences" }), json!({ "type": "ActionChunking" }));
        let got = names(json!({ "algorithm": "BC", "connectors": [cut, other] })).unwrap();
        let want = [
            "ActionChunking",
            "AddObservationsFromEpisodesToBatch",
            "AddNextObservationsFromEpisodesToTrainBatch",
            "AddColumnsFromEpisodesToTrainBatch",
            "OverlappingSequences",
            "AddStatesFromEpisodesToBatch",
            "BatchIndividualItems",
            "NumpyToTensor",
        ];
        assert_eq!(got, want);
        let two = json!({ "connectors": [cut, { "type": "DecisionTransformerWindows" }] });
        assert!(names(two).unwrap_err().what().ends_with("expected one piece that does"));
    }
}
