#!/usr/bin/env python3
"""Record a Dict observation with RLlib as columns, and run RLlib's PPO learner pipeline over it.

Run it with a Python that has the packages named in ../_rllib.py:

    python make.py

The environment is CartPole-v1 in Gymnasium's own TimeAwareObservation wrapper: {"obs": 4 floats, "time": step}.
Actions are random (a module that gives each the same probability).
The steps are the same on every run; episode ids and time stamps are random in RLlib.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import gymnasium as gym
import _rllib as R
from gymnasium.wrappers import TimeAwareObservation
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module import RLModuleSpec
from ray.tune.registry import register_env


def make_env(_):
    return TimeAwareObservation(gym.make("CartPole-v1"), flatten=False, normalize_time=False)


register_env("time-aware-cartpole", make_env)
config = (
    PPOConfig()
    .environment("time-aware-cartpole")
    .env_runners(num_env_runners=0)
    .rl_module(rl_module_spec=RLModuleSpec(module_class=R.UniformModule))
    .debugging(seed=41, log_level="ERROR")
)

with R.local_ray(blocks=2):
    recorded = R.record(
        config,
        runs=[([10], None)],
        folder=HERE / "input",
        output_write_episodes=False,
        output_compress_columns=[],
    )
    env = make_env(None)
    spaces = env.observation_space, env.action_space
    batch = R.learner_batch(config, R.read_columns(HERE / "input"), spaces)
    R.must_equal(batch, R.learner_batch(config, recorded, spaces))  # what is in the files is what was played
    R.save(batch, HERE / "expected.safetensors")
