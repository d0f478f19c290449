"""The batch that RLlib's own learner pipeline makes of whole episodes in one call."""

import copy

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.algorithms import appo, bc, cql, dqn, impala, iql, marwil, ppo, sac
from ray.rllib.connectors import learner as pieces
from ray.rllib.connectors.learner.compute_returns_to_go import ComputeReturnsToGo
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule

from values import Leaf

CONFIGS = {
    "PPO": ppo.PPOConfig, "APPO": appo.APPOConfig, "IMPALA": impala.IMPALAConfig, "BC": bc.BCConfig,
    "MARWIL": marwil.MARWILConfig, "CQL": cql.CQLConfig, "IQL": iql.IQLConfig, "SAC": sac.SACConfig,
    "DQN": dqn.DQNConfig,
}
SPACES = gym.spaces.Box(-1.0, 1.0, (2,), np.float32), gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
# Pieces that take the argument and mean the learner side by it.
AS_LEARNER = {
    "AddObservationsFromEpisodesToBatch", "AddTimeDimToBatchAndZeroPad", "AddStatesFromEpisodesToBatch",
    "NumpyToTensor",
}


def module(recording):
    """A module that is nothing but its initial state and recorded value predictions."""
    state = _initial_state(recording) if recording.stateful else None

    class Module(TorchRLModule, ValueFunctionAPI):
        def compute_values(self, batch, embeddings=None):
            return batch["vf_preds"]

        def is_stateful(self):
            return state is not None

        def get_initial_state(self):
            return copy.deepcopy(state)

    class Modules(MultiRLModule):
        def is_stateful(self):
            # RLlib's asks for the truth value of a state, which an array of several numbers has not.
            return state is not None

    model_config = {"max_seq_len": recording.max_seq_len}
    spec = RLModuleSpec(
        module_class=Module, observation_space=SPACES[0], action_space=SPACES[1], model_config=model_config
    )
    return MultiRLModuleSpec(multi_rl_module_class=Modules, rl_module_specs={DEFAULT_MODULE_ID: spec}).build()


def _initial_state(recording):
    def zeros(spec):
        if isinstance(spec, dict):
            return {k: zeros(v) for k, v in spec.items()}
        assert isinstance(spec, Leaf)
        return torch.from_numpy(np.zeros(spec.shape, spec.dtype))

    def told(spec):
        if "shape" not in spec:
            return {k: told(v) for k, v in spec.items()}
        array = np.empty(spec["shape"], spec["dtype"])
        array[...] = np.reshape(spec["fill"], spec["shape"]) if isinstance(spec["fill"], list) else spec["fill"]
        return torch.from_numpy(array)

    return zeros(recording.state_spec) if recording.initial_state is None else told(recording.initial_state)


def pipeline(pipe):
    """What `config.build_learner_connector()` builds; for DQN with what `DQNLearner.build()` adds to it."""
    config = CONFIGS[pipe.algorithm]().learners(num_learners=0, num_aggregator_actors_per_learner=0)
    config.add_default_connectors_to_learner_pipeline = pipe.add_default
    config.gamma, config.lambda_ = pipe.gamma, pipe.lambda_
    config._learner_connector = (lambda *spaces: [_piece(name, pipe) for name in pipe.custom]) if pipe.custom else None
    built = config.build_learner_connector(*SPACES)
    if pipe.algorithm == "DQN" and pipe.add_default:
        built.insert_after(
            pieces.AddObservationsFromEpisodesToBatch, pieces.AddNextObservationsFromEpisodesToTrainBatch()
        )
    return built


def _piece(name, pipe):
    if name == "ComputeReturnsToGo":
        return ComputeReturnsToGo(gamma=pipe.gamma)
    return getattr(pieces, name)(**({"as_learner_connector": True} if name in AS_LEARNER else {}))


def batch(recording, episodes, pipe):
    """`{column: array}` with nested columns joined by `/`, or the exception that RLlib raises.

    `episodes`: a function that gives them, for they may raise as well.
    """
    try:
        episodes = episodes()
        for episode in episodes:
            if not episode.is_numpy:
                episode.to_numpy()
        out = pipeline(pipe)(
            rl_module=module(recording), batch={}, episodes=episodes, shared_data={}, metrics=None
        )
        return {k.split("/", 1)[1]: _array(v) for k, v in flatten(out)}
    except Exception as error:  # Whatever RLlib raises is an outcome.
        return error


def _array(leaf):
    return leaf.numpy() if isinstance(leaf, torch.Tensor) else np.asarray(leaf)


def flatten(tree, prefix=""):
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from flatten(value, f"{prefix}/{key}" if prefix else str(key))
    elif isinstance(tree, (list, tuple)):
        for key, value in enumerate(tree):
            yield from flatten(value, f"{prefix}/{key}")
    else:
        yield prefix, tree
