"""The batch that RLlib's own learner pipeline makes of whole episodes in one call."""

import copy
import traceback
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.algorithms import appo, bc, cql, dqn, impala, iql, marwil, ppo, sac
from ray.rllib.connectors import learner as pieces
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule

import custom
import infos
from curiosity import NotDefined
from spaces import gym_space
from values import Leaf

CONFIGS = {
    "PPO": ppo.PPOConfig, "APPO": appo.APPOConfig, "IMPALA": impala.IMPALAConfig, "BC": bc.BCConfig,
    "MARWIL": marwil.MARWILConfig, "CQL": cql.CQLConfig, "IQL": iql.IQLConfig, "SAC": sac.SACConfig,
    "DQN": dqn.DQNConfig,
}
VECTOR = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


def modules(recording):
    """Modules that are nothing but their initial states and recorded value predictions."""

    class Modules(MultiRLModule):
        def is_stateful(self):
            # RLlib's asks for the truth value of a state, which an array of several numbers has not.
            return any(one.is_stateful() for one in self.values())

    specs = {name: _module(one) for name, one in recording.modules.items()}
    return MultiRLModuleSpec(multi_rl_module_class=Modules, rl_module_specs=specs).build()


def _module(one):
    state = _initial_state(one) if one.stateful else None

    class Module(TorchRLModule, ValueFunctionAPI):
        def compute_values(self, batch, embeddings=None):
            return batch["vf_preds"]

        def is_stateful(self):
            return state is not None

        def get_initial_state(self):
            return copy.deepcopy(state)

    return RLModuleSpec(
        module_class=Module, observation_space=VECTOR, action_space=VECTOR,
        model_config={"max_seq_len": one.max_seq_len},
    )


def _initial_state(one):
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

    return zeros(one.state_spec) if one.initial_state is None else told(one.initial_state)


def pipeline(pipe, recording=None, correct=False):
    """What `config.build_learner_connector()` builds; for DQN with what `DQNLearner.build()` adds to it."""
    config = CONFIGS[pipe.algorithm]().learners(num_learners=0, num_aggregator_actors_per_learner=0)
    spaces, agents = [VECTOR, VECTOR], None
    if recording is not None:
        spaces, agents = [gym_space(recording.specs[name]) for name in ("obs", "actions")], recording.agents
    if agents is not None:
        config.multi_agent(policies=set(agents.values()), policy_mapping_fn=lambda agent, *_, **__: agents[agent])
        spaces = [gym.spaces.Dict({agent: space for agent in agents}) for space in spaces]
    config.add_default_connectors_to_learner_pipeline = pipe.add_default
    config.gamma, config.lambda_ = pipe.gamma, pipe.lambda_
    config._learner_connector = (lambda *_: [_piece(p, config, correct) for p in pipe.custom]) if pipe.custom else None
    built = config.build_learner_connector(*spaces)
    if pipe.algorithm == "DQN" and pipe.add_default:
        built.insert_after(
            pieces.AddObservationsFromEpisodesToBatch, pieces.AddNextObservationsFromEpisodesToTrainBatch()
        )
    return built


def _piece(piece, config, correct):
    if piece.name == "AgentToModuleMapping":
        return pieces.AgentToModuleMapping(
            rl_module_specs=set(config.policies), agent_to_module_mapping_fn=config.policy_mapping_fn,
            as_learner_connector=True,
        )
    if piece.name == "BatchIndividualItems":
        return pieces.BatchIndividualItems(multi_agent=config.is_multi_agent)
    return custom.for_rllib(piece, correct)


def batch(recording, episodes, pipe, correct=False):
    """`{column: array}` with nested columns joined by `/`, or the exception that RLlib raises.

    In multi-agent recordings columns begin with their module. `episodes`: a function that gives them, for they may
    raise as well.
    """
    try:
        episodes = episodes()
        for episode in episodes:
            if not episode.is_numpy:
                episode.to_numpy()
        info_keys = infos.keys(episodes)
        out = pipeline(pipe, recording, correct)(
            rl_module=modules(recording), batch={}, episodes=episodes, shared_data={}, metrics=None
        )
        found = {name: own.pop("infos") for name, own in out.items() if "infos" in own}
        columns = {k: _array(v) for k, v in flatten(out)}
        for name, told in found.items():
            own = {k.split("/", 1)[1]: v for k, v in columns.items() if k.startswith(f"{name}/")}
            columns.update({f"{name}/{k}": v for k, v in infos.columns(told, info_keys, own).items()})
        return columns if recording.agents else {k.split("/", 1)[1]: v for k, v in columns.items()}
    except Exception as error:  # Whatever RLlib raises is an outcome.
        innermost = traceback.extract_tb(error.__traceback__)[-1].filename
        if Path(innermost).parent == Path(__file__).parent and not isinstance(error, NotDefined):
            raise  # a mistake of this test
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
