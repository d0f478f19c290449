"""RLlib's curiosity pieces with the repairs of `compat = "correct"`.

Counting and distances stay RLlib's own code: it gets stand-ins for the episodes, in which observations are such as it can
take (numbered by value, or as floats), rewards are floats, and nothing refuses a NaN.
"""

import numpy as np
import tree
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.examples.connectors.classes.count_based_curiosity import CountBasedCuriosity
from ray.rllib.examples.connectors.classes.euclidian_distance_based_curiosity import EuclidianDistanceBasedCuriosity


class NotDefined(Exception):
    """There is no right answer, not even with repairs."""


class CountByValue(ConnectorV2):
    """Observations of any rank and dtype, counted by value: a NaN equals a NaN."""

    def __init__(self, **options):
        super().__init__()
        self.counting = CountBasedCuriosity(**options)
        self.numbers = {}

    def __call__(self, *, episodes, batch, **_):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            leaves = tree.flatten(episode.get_observations(slice(0, len(episode))))
            # Modules whose observations are of one kind count together.
            kind = tuple((leaf.shape[1:], leaf.dtype.kind) for leaf in leaves)
            keys = [(kind, *(_values(leaf[t]) for leaf in leaves)) for t in range(len(episode))]
            ids = [self.numbers.setdefault(key, len(self.numbers)) for key in keys]
            _shape(self.counting, episode, np.array(ids, np.int64).reshape(-1, 1))
        return batch


class FloatDistances(ConnectorV2):
    """Integers are subtracted as float64; a buffer for each kind of observation.

    A module's observations have one dtype, that which holds those of all its episodes.
    """

    def __init__(self, **options):
        super().__init__()
        self.options, self.pieces = options, {}

    def __call__(self, *, episodes, batch, **_):
        all_episodes = list(self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False))
        dtypes = {}
        for episode in all_episodes:
            obs = episode.observations.data
            if not isinstance(obs, np.ndarray):
                raise NotDefined("no distance between nested observations")
            dtypes.setdefault(episode.module_id, []).append(obs.dtype)
        for episode in all_episodes:
            dtype = np.result_type(*dtypes[episode.module_id])
            obs = episode.get_observations(slice(0, len(episode))).astype(dtype if dtype.kind == "f" else np.float64)
            kind = obs.shape[1:], obs.dtype
            piece = self.pieces.setdefault(kind, EuclidianDistanceBasedCuriosity(**self.options))
            piece._test = 0  # It stops after some calls.
            # Numbers as vectors: NumPy squares those by multiplying, and scalars by the C library's `pow`.
            _shape(piece, episode, obs.reshape(-1, 1) if obs.ndim == 1 else obs)
        return batch


def _values(row):
    return tuple("nan" if x != x else x for x in row.ravel().tolist())


def _shape(piece, episode, observations):
    """Has `piece` shape the rewards of `episode` as if it had these observations."""
    if len(episode) == 0:
        return
    rewards = episode.rewards
    rewards.data = rewards.data.astype(rewards.data.dtype if rewards.data.dtype.kind == "f" else np.float64)
    stand_in = SingleAgentEpisode(
        observations=[*observations, observations[-1]],
        actions=[0] * len(episode),
        rewards=list(episode.get_rewards()),
        len_lookback_buffer=0,
    ).to_numpy()
    stand_in.rewards.space = None
    with np.errstate(all="ignore"):
        piece(rl_module=None, batch={}, episodes=[stand_in])
    rewards.data[rewards.lookback :] = stand_in.rewards.data
