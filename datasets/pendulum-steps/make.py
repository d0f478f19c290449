#!/usr/bin/env python3
"""Play Pendulum-v1 in a plain Gymnasium loop, write a table of steps, and run RLlib's BC learner pipeline over it.

Run it with a Python that has the packages named in ../_rllib.py:

    python make.py

The table has Gymnasium's names and T+1 rows for an episode of T steps: the last row holds the final observation
and nothing else. RLlib has no part in the recording. Every run gives the same bytes.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import _rllib as R
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

SCHEMA = pa.schema({
    "episode": pa.int64(),
    "step": pa.int64(),
    "observation": pa.list_(pa.float32(), 3),
    "action": pa.list_(pa.float32(), 1),
    "reward": pa.float64(),
    "terminated": pa.bool_(),
    "truncated": pa.bool_(),
})


def policy(observation, noise):
    """Pump energy in until upright, then hold; with some noise."""
    cos, sin, speed = (float(x) for x in observation)
    if cos > 0.9:
        torque = -8.0 * sin - 2.0 * speed
    else:
        energy = 0.5 * speed**2 + 15.0 * (cos - 1.0)
        torque = -energy * speed
    return np.clip([torque + noise], -2.0, 2.0).astype(np.float32)


def play(env, number, rng):
    observation, _ = env.reset(seed=100 + number)
    rows, done = [], False
    while not done:
        action = policy(observation, rng.normal(0.0, 0.3))
        following, reward, terminated, truncated, _ = env.step(action)
        rows.append((number, len(rows), observation, action, float(reward), bool(terminated), bool(truncated)))
        observation, done = following, terminated or truncated
    rows.append((number, len(rows), observation, None, None, None, None))
    return rows


def as_episode(rows):
    *steps, last = rows
    return SingleAgentEpisode(
        id_=str(last[0]),
        observations=[r[2] for r in rows],
        infos=[{} for _ in rows],
        actions=[r[3] for r in steps],
        rewards=[r[4] for r in steps],
        terminated=steps[-1][5],
        truncated=steps[-1][6],
        len_lookback_buffer=0,
    )


env = gym.make("Pendulum-v1")
rng = np.random.default_rng(7)
episodes = [play(env, number, rng) for number in range(5)]

(HERE / "input").mkdir(exist_ok=True)
for file, part in enumerate([episodes[:3], episodes[3:]]):
    columns = zip(*(row for rows in part for row in rows))
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA)], schema=SCHEMA)
    pq.write_table(table, HERE / "input" / f"pendulum-{file}.parquet", row_group_size=250, compression="zstd")

config = BCConfig().environment("Pendulum-v1").learners(num_learners=0).debugging(log_level="ERROR")
spaces = env.observation_space, env.action_space
R.save(R.learner_batch(config, [as_episode(rows) for rows in episodes], spaces), HERE / "expected.safetensors")
