"""The custom pieces of a case: their options at random, the same in a job and in RLlib."""

import dataclasses

from ray.rllib.connectors import learner as rllib_pieces
from ray.rllib.connectors.common.frame_stacking import FrameStacking
from ray.rllib.connectors.learner.compute_returns_to_go import ComputeReturnsToGo
from ray.rllib.examples.connectors.classes.count_based_curiosity import CountBasedCuriosity
from ray.rllib.examples.connectors.classes.euclidian_distance_based_curiosity import EuclidianDistanceBasedCuriosity

import curiosity
import spaces
import stepwise
import values

FRAMES = "FrameStacking"
STACK = "StackObservations"
FLATTEN = "FlattenObservations"
PREVIOUS = "PrevActionsPrevRewards"
COUNT = "CountBasedCuriosity"
EUCLID = "EuclidianDistanceBasedCuriosity"
RETURNS = "ComputeReturnsToGo"
INFOS = "AddInfosFromEpisodesToTrainBatch"
EXPRESSION = "Expression"
GAE = "GeneralAdvantageEstimation"

# They add `obs`, so one of them is enough.
ADD_OBS = {FRAMES, STACK, FLATTEN}
CURIOSITY = {COUNT, EUCLID}
# Pieces that take the argument and mean the learner side by it.
AS_LEARNER = {
    "AddObservationsFromEpisodesToBatch", "AddTimeDimToBatchAndZeroPad", "AddStatesFromEpisodesToBatch",
    "NumpyToTensor",
}


class Frames(FrameStacking):
    """RLlib's, but for its check of the space: its code stacks nested images as well."""

    def _convert_individual_space(self, space):
        return space


@dataclasses.dataclass(frozen=True)
class Piece:
    name: str
    options: dict = dataclasses.field(default_factory=dict)

    def __repr__(self):
        said = ", ".join(f"{k}={v}" for k, v in self.options.items() if not k.endswith("_space"))
        return f"{self.name}({said})"


def draw(rng, recording, one_more, has_sql):
    """Up to three pieces in any order, such as the recording can take. `one_more`: whether episodes are lengthened.

    `has_sql`: whether gristmill is built with what `Expression` needs.
    """
    obs, actions = recording.specs["obs"], recording.specs["actions"]
    # Curiosity takes any observation where `correct` says so, and RLlib's only some.
    array = isinstance(obs, values.Leaf) and obs.shape != () and obs.dtype != "bool"
    odd = rng.random() < 0.15
    pool = [RETURNS, STACK, *[COUNT] * 2 * (odd or rank_one(obs)), *[EUCLID] * 2 * (odd or array)]
    if "infos" in recording.facts:
        pool += [INFOS] * 8
    if recording.specs["rewards"] == values.Leaf("float64", (), "python") and has_sql:
        pool += [EXPRESSION]
    if "frames" in recording.facts:
        pool += [FRAMES] * 4
    elif rng.random() < 0.1:
        pool += [FRAMES]
    if "space" in recording.facts:
        pool += [FLATTEN] * 4
    if "action space" in recording.facts and not one_more:  # refused there, as it would see the added step
        pool += [PREVIOUS] * 2
    names, out = [str(n) for n in rng.choice(pool, int(rng.choice([1, 1, 2, 3])))], []
    seen = dict.fromkeys(names)  # each once
    for name in seen:
        if name in ADD_OBS and any(p.name in ADD_OBS for p in out):
            continue
        if name == PREVIOUS and any(p.name in ADD_OBS | CURIOSITY for p in out):
            continue  # it makes observations that these do not take, or comes too late
        if name in CURIOSITY | {FRAMES} and any(p.name == PREVIOUS for p in out):
            continue
        out.append(Piece(name, _options(name, rng, recording, obs, actions, out)))
        if name == PREVIOUS:
            obs = stepwise.with_previous(obs, actions, out[-1].options)
    return out


def _options(name, rng, recording, obs, actions, before):
    if name in (FRAMES, STACK):
        return {"num_frames": int(rng.integers(1, 7))}
    if name == FLATTEN:
        remove = {}
        if isinstance(obs, dict) and len(obs) > 1 and rng.random() < 0.3:
            remove = {"keys_to_remove": [str(rng.choice(list(obs)))]}
        if rng.random() < 0.3 and not before and not recording.agents:
            recording.facts.add("space in the job")  # `input.spaces` says it, not the piece
        return {"input_observation_space": obs, **remove}
    if name == PREVIOUS:
        n, m = (int(x) for x in rng.integers(0, 4, 2))
        return {"input_action_space": actions, "n_prev_actions": n, "n_prev_rewards": max(m, int(n == 0))}
    if name in CURIOSITY:
        coeff = float(rng.choice([1.0, 0.5, 0.1, 0.0, -1.3, 1e-3, 7.0]))
        return {
            "intrinsic_reward_coeff": coeff,
            **({"max_buffer_size": int(rng.choice([1, 2, 3, 100]))} if name == EUCLID else {}),
        }
    if name == INFOS:
        return {}
    if name == EXPRESSION:
        number = round(float(rng.normal()), 2)
        return {"into": str(rng.choice(["episodes", "batch"])), "columns": {"rewards": f"rewards * {number}"}}
    return {"gamma": float(rng.choice([0.0, 1.0, 0.9, round(float(rng.uniform()), 3)]))}


def for_job(piece, recording):
    """The piece as a job has it."""
    options = {k: spaces.job_space(v) if k.endswith("_space") else v for k, v in piece.options.items()}
    if piece.name == FLATTEN and "space in the job" in recording.facts:
        del options["input_observation_space"]
    elif piece.name == FLATTEN and recording.agents and len(recording.agents) > 1:
        # As RLlib's constructor takes them: by agent.
        own = options["input_observation_space"]
        options.update(input_observation_space={agent: own for agent in recording.agents}, multi_agent=True)
    return {"type": piece.name, **options}


def for_rllib(piece, correct):
    """RLlib's piece. With `correct`, the same with the repairs that gristmill documents."""
    options = piece.options
    if piece.name == FRAMES:
        # Documented: images of several channels, vectors and numbers are stacked as StackObservations does.
        return stepwise.StackObservations(**options) if correct else Frames(as_learner_connector=True, **options)
    if piece.name == STACK:
        return stepwise.StackObservations(**options)
    if piece.name == FLATTEN:
        return stepwise.FlattenSteps(correct=correct, **options)
    if piece.name == PREVIOUS:
        return stepwise.PreviousSteps(**options)
    if piece.name == COUNT:
        return (curiosity.CountByValue if correct else CountBasedCuriosity)(**options)
    if piece.name == EUCLID:
        return (curiosity.FloatDistances if correct else EuclidianDistanceBasedCuriosity)(**options)
    if piece.name == EXPRESSION:
        return stepwise.ScaledRewards(options["into"], float(options["columns"]["rewards"].split()[-1]))
    if piece.name == RETURNS:
        return ComputeReturnsToGo(**options)
    return getattr(rllib_pieces, piece.name)(
        **options, **({"as_learner_connector": True} if piece.name in AS_LEARNER else {})
    )


def rank_one(spec):
    return isinstance(spec, values.Leaf) and len(spec.shape) == 1
