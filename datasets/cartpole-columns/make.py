#!/usr/bin/env python3
"""Record CartPole-v1 with RLlib as columns, and run RLlib's PPO learner pipeline over it.

Run it with a Python that has the packages named in ../_rllib.py:

    python make.py

Two policies are recorded: PPO as initialised (20 short episodes, weights_seq_no 0), and after some training
(8 longer ones). The steps are the same on every run; episode ids are random in RLlib.
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
    .learners(num_learners=0)
    .training(train_batch_size_per_learner=1000, minibatch_size=100, num_epochs=6, lr=0.001)
    .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[32, 32]))
    .debugging(seed=11, log_level="ERROR")
)

with R.local_ray(blocks=2):
    states = R.train(config, iterations=8, at=(0, 8))
    recorded = R.record(
        config,
        runs=[([20], states[0]), ([8], states[8])],
        folder=HERE / "input",
        output_write_episodes=False,
        output_compress_columns=[],
    )
    env = gym.make("CartPole-v1")
    spaces = env.observation_space, env.action_space
    batch = R.learner_batch(config, R.read_columns(HERE / "input"), spaces)
    R.must_equal(batch, R.learner_batch(config, recorded, spaces))  # what is in the files is what was played
    R.save(batch, HERE / "expected.safetensors")
