"""RLlib's own way from a file to train batches: `python rllib_peer.py episodes|columns|frames|data FILE STEPS`.

Prints the steps a second over the first STEPS steps. `episodes` and `columns` call its pre-learner in this process. `data`
is end to end: Ray Data reads them and calls two pre-learners on two processors, batches of 2,000 come to this process;
the clock starts when Ray runs, with the first batch asked for. `frames` makes one batch of that many 84 x 84 frames in
memory and runs the learner pipeline with four stacked frames over it, again and again; the first time is not timed. Needs
RLlib (`pip install "ray[rllib]" torch`).
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
elif kind == "data":
    import logging
    import tempfile

    import ray
    from ray.rllib.env import INPUT_ENV_SPACES
    from ray.rllib.offline.offline_data import OfflineData

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    with tempfile.TemporaryDirectory() as folder:
        # Without recorded next observations and states: RLlib makes a last observation up, which costs it the least. In
        # several files, so that there is work for both.
        columns = ["eps_id", "obs", "actions", "rewards", "terminateds", "truncateds"]
        log = pq.read_table(path, columns=columns).slice(0, steps)
        for i, start in enumerate(range(0, steps, 2000)):
            pq.write_table(log.slice(start, 2000), f"{folder}/{i:04}.parquet")
        config = BCConfig().environment("CartPole-v1").learners(num_learners=0)
        # With a whole processor each, the two would leave none to the tasks that read, and wait for ever.
        config = config.offline_data(
            input_=[folder], ignore_final_observation=True, map_batches_kwargs={"num_cpus": 0.5}
        )
        spec = config.get_multi_rl_module_spec(spaces={"default_policy": spaces})
        data = OfflineData(config.rl_module(rl_module_spec=spec))
        data.spaces, data.module_spec = {INPUT_ENV_SPACES: spaces}, spec
        state = spec.build().get_state()
        started, done = time.perf_counter(), 0
        while done < steps:
            batch = data.sample(num_samples=2000, num_shards=0, module_state=state)
            done += batch.env_steps()
        report(time.perf_counter() - started, done)
    ray.shutdown()
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
