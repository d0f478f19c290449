"""RLlib's own pre-learner over a file, in one process: `python rllib_peer.py episodes|columns|frames FILE STEPS`.

Prints the steps a second over the first STEPS steps. `frames` makes one batch of that many 84 x 84 frames in memory and
runs the learner pipeline with four stacked frames over it, again and again; the first time is not timed. Needs RLlib (`pip install "ray[rllib]" torch`).
"""

import sys
import time

import gymnasium as gym
import numpy as np
import pyarrow.parquet as pq
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.common.frame_stacking import FrameStacking
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.offline.offline_prelearner import OfflinePreLearner

kind, path, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])


def report(seconds, done):
    print(f"{done / seconds:.1f}")


def prelearner(config, spaces):
    spec = config.get_multi_rl_module_spec(spaces={"default_policy": spaces})
    return OfflinePreLearner(config=config.rl_module(rl_module_spec=spec), spaces=spaces)


env = gym.make("CartPole-v1")
spaces = (env.observation_space, env.action_space)
if kind == "episodes":
    config = BCConfig().environment("CartPole-v1").offline_data(input_=[path], input_read_episodes=True)
    config = config.training(train_batch_size_per_learner=2000)
    work = prelearner(config, spaces)
    items = pq.read_table(path)["item"].to_pylist()[: max(1, steps * 12 // 365)]
    started, done = time.perf_counter(), 0
    for i in range(0, len(items), 60):
        batch = work({"item": items[i : i + 60]})
        done += 60 * 365 // 12
    report(time.perf_counter() - started, done)
elif kind == "columns":
    config = BCConfig().environment("CartPole-v1")
    config = config.offline_data(input_=[path], input_compress_columns=["obs", "new_obs"])
    work = prelearner(config, spaces)
    table = pq.read_table(path).slice(0, steps)
    started = time.perf_counter()
    for i in range(0, table.num_rows, 4096):
        rows = table.slice(i, 4096)
        work({n: rows[n].to_numpy(zero_copy_only=False) for n in rows.column_names})
    report(time.perf_counter() - started, table.num_rows)
else:
    space = gym.spaces.Box(0, 255, (84, 84, 1), np.uint8)
    spaces = (space, gym.spaces.Discrete(2))
    frames = pq.read_table(path).slice(0, steps)
    obs = np.stack(frames["obs"].to_numpy(zero_copy_only=False)).reshape(-1, 84, 84, 1)
    episodes = []
    for start in range(0, len(obs) - 1, 200):
        part = obs[start : start + 201]
        n = len(part) - 1
        episodes.append(
            SingleAgentEpisode(
                observation_space=space,
                action_space=spaces[1],
                observations=list(part),
                actions=[0] * n,
                rewards=[1.0] * n,
                terminated=True,
                len_lookback_buffer=0,
            )
        )
    for episode in episodes:
        episode.to_numpy()
    config = PPOConfig().learners(num_learners=0).training(
        learner_connector=lambda *_: FrameStacking(num_frames=4, as_learner_connector=True)
    )
    pipeline = config.build_learner_connector(input_observation_space=space, input_action_space=spaces[1])
    module = config.get_multi_rl_module_spec(
        spaces={"default_policy": (gym.spaces.Box(0, 255, (84, 84, 4), np.uint8), spaces[1])}
    ).build()
    times = 5
    for i in range(times + 1):
        if i == 1:
            started = time.perf_counter()
        batch = pipeline(rl_module=module, batch={}, episodes=episodes, shared_data={}, metrics=None)
    report(time.perf_counter() - started, times * sum(len(e) for e in episodes))
