#!/usr/bin/env python3
"""Record Breakout frames with RLlib's recorder as it comes, and run RLlib's PPO learner pipeline over it.

Run it with a Python that has the packages named in ../_rllib.py:

    python make.py

Column format with the default output_compress_columns: obs and new_obs are base64 text of an LZ4 frame of a
pickled uint8 array. Actions are random; an episode ends with the first life, or after 40 steps.
The steps are the same on every run; episode ids and time stamps are random in RLlib.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import ale_py
import gymnasium as gym
import _rllib as R
from gymnasium.wrappers import AtariPreprocessing, TimeLimit
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module import RLModuleSpec
from ray.tune.registry import register_env


def make_env(_):
    gym.register_envs(ale_py)
    env = gym.make("ale_py:ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0)
    env = AtariPreprocessing(
        env, noop_max=10, frame_skip=4, screen_size=84, terminal_on_life_loss=True, grayscale_newaxis=True
    )
    return TimeLimit(env, max_episode_steps=40)


register_env("breakout-84x84", make_env)
config = (
    PPOConfig()
    .environment("breakout-84x84")
    .env_runners(num_env_runners=0)
    .rl_module(rl_module_spec=RLModuleSpec(module_class=R.UniformModule))
    .debugging(seed=3, log_level="ERROR")
)

with R.local_ray(blocks=2):
    recorded = R.record(config, runs=[([4], None)], folder=HERE / "input", output_write_episodes=False)
    env = make_env(None)
    spaces = env.observation_space, env.action_space
    batch = R.learner_batch(config, R.read_columns(HERE / "input"), spaces)
    R.must_equal(batch, R.learner_batch(config, recorded, spaces))  # what is in the files is what was played
    R.save(batch, HERE / "expected.safetensors")
