"""Pieces that RLlib runs step by step while it records, on whole episodes.

`FlattenObservations` and `PrevActionsPrevRewards` are RLlib's own: each step goes through them as it would have gone in the
EnvRunner (the learner's form of `FlattenObservations` works for episodes of one step only). `StackObservations` is the
learner side of a piece that RLlib's documentation describes and does not ship.
"""

import numpy as np
import tree
from ray.rllib.connectors.common.flatten_observations import FlattenObservations
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.env_to_module.prev_actions_prev_rewards import PrevActionsPrevRewards
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

import spaces
import values


class StackObservations(ConnectorV2):
    """The last observations joined along the last axis, oldest first, zeros before the first one."""

    def __init__(self, num_frames):
        super().__init__()
        self.num_frames = num_frames

    def __call__(self, *, episodes, batch, **_):
        n = self.num_frames
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            buffer, length = episode.observations, len(episode)

            def stacked(leaf):
                known = min(buffer.lookback, n - 1)
                zeros = np.zeros((n - 1 - known, *leaf.shape[1:]), leaf.dtype)
                frames = np.concatenate([zeros, leaf[buffer.lookback - known : buffer.lookback + length]])
                if frames.ndim == 1:
                    frames = frames[:, None]
                return np.concatenate([frames[k : k + length] for k in range(n)], axis=-1)

            self.add_n_batch_items(
                batch, Columns.OBS, tree.map_structure(stacked, buffer.data), length, single_agent_episode=episode
            )
        return batch


class ScaledRewards(ConnectorV2):
    """A custom piece as users write it: other rewards, in the episodes or in the batch before RLlib's piece adds them."""

    def __init__(self, into, factor):
        super().__init__()
        self.into, self.factor = into, factor

    def __call__(self, *, episodes, batch, **_):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            buffer = episode.rewards
            if self.into == "batch":
                rewards = np.asarray(buffer.data[buffer.lookback :], np.float64) * self.factor
                self.add_n_batch_items(batch, Columns.REWARDS, rewards, len(episode), single_agent_episode=episode)
            else:
                buffer.data = np.asarray(buffer.data, np.float64) * self.factor
        return batch


class FlattenSteps(ConnectorV2):
    """`FlattenObservations` over one step at a time. With `correct`, the `start` of discrete spaces is subtracted.

    RLlib never looks at it, but to find the width it flattens a random value of the space: that begins with 0 here.
    """

    def __init__(self, input_observation_space, keys_to_remove=None, correct=False):
        super().__init__()
        self.spec, self.correct = input_observation_space, correct
        self.piece = FlattenObservations(
            spaces.gym_space(spaces.from_zero(self.spec)), None, as_learner_connector=True, keys_to_remove=keys_to_remove
        )

    def __call__(self, *, episodes, batch, **_):
        starts = [leaf.start if self.correct else 0 for leaf in _leaves(self.spec)]
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            rows, obs = [], episode.get_observations(slice(0, len(episode)))
            for t in range(len(episode)):
                now = tree.map_structure(lambda leaf: leaf[t], obs)
                now = tree.unflatten_as(
                    now, [x - start if start else x for x, start in zip(tree.flatten(now), starts, strict=True)]
                )
                one = SingleAgentEpisode(
                    observations=[now, now], actions=[0], rewards=[0.0], len_lookback_buffer=0
                )
                out = self.piece(rl_module=None, batch={}, episodes=[one])
                rows.append(np.asarray(out["obs"][(one.id_,)][0]))
            if rows:
                self.add_n_batch_items(
                    batch, Columns.OBS, np.concatenate(rows), len(rows), single_agent_episode=episode
                )
        return batch


class PreviousSteps(ConnectorV2):
    """`PrevActionsPrevRewards` at every observation, written into the episode as float32 vectors."""

    def __init__(self, input_action_space, **options):
        super().__init__()
        self.space = spaces.gym_space(input_action_space)

        class Piece(PrevActionsPrevRewards):
            def recompute_output_observation_space(self, observations, actions):
                return observations  # RLlib's own takes discrete actions only here, though not in its call

        self.piece = Piece(None, self.space, **options)

    def __call__(self, *, episodes, batch, **_):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            buffer = episode.observations
            at = [episode.actions.lookback - buffer.lookback, episode.rewards.lookback - buffer.lookback]
            rows = []
            for i in range(buffer.len_incl_lookback()):
                actions, rewards = (
                    [tree.map_structure(lambda leaf: leaf[k], b.data) for k in range(i + more)]
                    for b, more in zip((episode.actions, episode.rewards), at)
                )
                one = SingleAgentEpisode(
                    observations=[0] * (len(actions) + 1), actions=actions, rewards=rewards,
                    action_space=self.space, len_lookback_buffer=0,
                )
                self.piece(rl_module=None, batch={}, episodes=[one])
                now = one.get_observations(-1)
                rows.append({k: np.ravel(v).astype(np.float32) for k, v in now.items() if k.startswith("prev_")})
            buffer.data = {"_orig_obs": buffer.data, **{k: np.stack([r[k] for r in rows]) for k in rows[0]}}
            episode.observation_space = None
        return batch


def with_previous(obs, actions, options):
    """The spec of what `PrevActionsPrevRewards` makes of observations."""
    width = 0
    for leaf in _leaves(actions):
        width += sum(leaf.values) if leaf.values and not leaf.binary else int(np.prod(leaf.shape))
    n, m = options["n_prev_actions"], options["n_prev_rewards"]
    return {
        "_orig_obs": obs,
        **({"prev_n_actions": values.Leaf("float32", (n * width,))} if n else {}),
        **({"prev_n_rewards": values.Leaf("float32", (m,))} if m else {}),
    }


def _leaves(spec):
    """In the order of `tree.flatten`: keys sorted."""
    if isinstance(spec, dict):
        return [x for k in sorted(spec) for x in _leaves(spec[k])]
    if isinstance(spec, tuple):
        return [x for v in spec for x in _leaves(v)]
    return [spec]
