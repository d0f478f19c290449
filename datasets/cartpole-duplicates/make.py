#!/usr/bin/env python3
"""Record CartPole-v1 with three sample() calls of one RLlib recorder, which writes earlier rows again.

Run it with a Python that has the packages named in ../_rllib.py:

    python make.py

With the default output_max_rows_per_file=None, RLlib 2.60 never empties the recorder's buffer: call 2 writes the
rows of calls 1 and 2, call 3 those of calls 1, 2 and 3. The expected batch has each episode once.
The steps are the same on every run; episode ids and time stamps are random in RLlib.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import gymnasium as gym
import _rllib as R
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

config = (
    PPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_env_runners=0)
    .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[16]))
    .debugging(seed=31, log_level="ERROR")
)

with R.local_ray(blocks=2):
    recorded = R.record(
        config,
        runs=[([3, 2, 3], None)],
        folder=HERE / "input",
        output_write_episodes=False,
        output_compress_columns=[],
    )
    env = gym.make("CartPole-v1")
    spaces = env.observation_space, env.action_space
    batch = R.learner_batch(config, R.read_columns(HERE / "input"), spaces)
    R.must_equal(batch, R.learner_batch(config, recorded, spaces))  # each played episode once
    R.save(batch, HERE / "expected.safetensors")
