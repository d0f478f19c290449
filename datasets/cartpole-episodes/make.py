#!/usr/bin/env python3
"""Record CartPole-v1 with RLlib as msgpack episodes, and run RLlib's BC learner pipeline over it.

Run it with a Python that has the packages named in ../_rllib.py:

    python make.py

The steps are the same on every run; episode ids and time stamps are random in RLlib.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import gymnasium as gym
import _rllib as R
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

config = (
    PPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_env_runners=0)
    .learners(num_learners=0)
    .training(train_batch_size_per_learner=1000, minibatch_size=100, num_epochs=6, lr=0.001)
    .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[32, 32]))
    .debugging(seed=23, log_level="ERROR")
)
bc = BCConfig().environment("CartPole-v1").learners(num_learners=0).debugging(log_level="ERROR")

with R.local_ray(blocks=3):
    states = R.train(config, iterations=3, at=(3,))
    recorded = R.record(
        config,
        runs=[([6], states[3]), ([6], states[3])],
        folder=HERE / "input",
        output_write_episodes=True,
    )
    env = gym.make("CartPole-v1")
    spaces = env.observation_space, env.action_space
    batch = R.learner_batch(bc, R.read_episodes(HERE / "input"), spaces)
    R.must_equal(batch, R.learner_batch(bc, recorded, spaces))  # what is in the files is what was played
    R.save(batch, HERE / "expected.safetensors")
