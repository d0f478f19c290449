#!/usr/bin/env python3
"""Record CartPole-v1 with an LSTM module in RLlib, and run RLlib's stateful PPO learner pipeline over it.

Run it with a Python that has the packages named in ../_rllib.py:

    python make.py

The recorded state_out is kept, so the learner starts each sequence from the state that acting had.
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
    .learners(num_learners=0)
    .training(train_batch_size_per_learner=1000, minibatch_size=200, num_epochs=8, lr=0.005)
    .rl_module(
        model_config=DefaultModelConfig(
            fcnet_hiddens=[16], use_lstm=True, lstm_cell_size=16, max_seq_len=20, vf_share_layers=True
        )
    )
    .debugging(seed=5, log_level="ERROR")
)

with R.local_ray(blocks=2):
    states = R.train(config, iterations=6, at=(6,))
    recorded = R.record(config, runs=[([10], states[6])], folder=HERE / "input", output_write_episodes=True)
    env = gym.make("CartPole-v1")
    spaces = env.observation_space, env.action_space
    batch = R.learner_batch(config, R.read_episodes(HERE / "input"), spaces)
    R.must_equal(batch, R.learner_batch(config, recorded, spaces))  # what is in the files is what was played
    R.save(batch, HERE / "expected.safetensors")
