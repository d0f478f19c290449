"""BC, MARWIL and an LSTM policy on CartPole: from gristmill's shards, and from the same recording by RLlib's own path.

    python examples/python/train_offline.py [bc marwil lstm] [--iterations 200] [--episodes 40]

Needs gristmill, Ray's RLlib and PyTorch. A linear controller that balances the pole, with some of its actions drawn at
random, is recorded in RLlib's format of episodes, with `vf_preds` of zero. Each algorithm trains twice with one config,
network, seed, batch size and number of updates, in RLlib's own learner; only where batches come from is another.

What is compared is two ways of an offline run, not the same batches twice. RLlib's path reads episodes into a replay buffer
and draws from it: single steps for BC and MARWIL, so that MARWIL's value targets reach one step far and the value network
does the rest; sequences of up to 20 steps that begin anywhere, for the LSTM. Shards hold every step once an epoch, in a
shuffled order; MARWIL's value targets are returns to the episode's end (`lambda_` is 1, so recorded values only count where
the time limit cuts an episode); sequences of 20 steps come with `state_in` and `loss_mask`.

Printed are the mean return of ten episodes with the trained policy, and where the time went.
"""

import argparse
import logging
import tempfile
import time
from pathlib import Path

import gristmill
import gymnasium
import msgpack
import msgpack_numpy
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.algorithms.marwil import MARWILConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

GAINS = np.array([0.1, 0.5, 2.0, 1.5])
NOISE = 0.2
SEED = 42
SEQUENCE = 20
SPACES = gymnasium.make("CartPole-v1")


def record(folder: Path, episodes: int) -> int:
    """Episodes of the controller, as RLlib's `output_write_episodes=True` writes them. Returns the number of steps."""
    env, rng = gymnasium.make("CartPole-v1"), np.random.default_rng(SEED)
    items, steps = [], 0
    for number in range(episodes):
        obs, infos = env.reset(seed=number)
        spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
        episode = SingleAgentEpisode(id_=f"episode-{number}", **spaces)
        episode.add_env_reset(observation=obs, infos=infos)
        while not episode.is_done:
            action = int(obs @ GAINS > 0) if rng.random() > NOISE else int(rng.integers(2))
            obs, reward, terminated, truncated, infos = env.step(action)
            episode.add_env_step(
                observation=obs, action=np.int32(action), reward=float(reward), infos=infos, terminated=terminated,
                truncated=truncated, extra_model_outputs={"vf_preds": np.float32(0)},
            )
        steps += len(episode)
        items.append(msgpack.packb(episode.to_numpy().get_state(), default=msgpack_numpy.encode))
    folder.mkdir()
    pq.write_table(pa.table({"item": pa.array(items, pa.binary())}), folder / "part-0.parquet")
    return steps


def config(name: str) -> MARWILConfig:
    """The config of an algorithm; where its batches come from is not said yet."""
    made = MARWILConfig().training(beta=1.0) if name == "marwil" else BCConfig()
    made = (
        made.environment(observation_space=SPACES.observation_space, action_space=SPACES.action_space)
        .debugging(seed=SEED)
        .env_runners(num_env_runners=0)
        .training(train_batch_size_per_learner=512, lr=1e-3)
    )
    if name == "lstm":
        model = DefaultModelConfig(use_lstm=True, lstm_cell_size=32, max_seq_len=SEQUENCE)
        made = made.rl_module(model_config=model).training(train_batch_size_per_learner=64)
    return made


def train(config: MARWILConfig, iterations: int) -> dict[str, float]:
    """Trains; returns the mean return of the greedy policy, and seconds by kind."""
    begun = time.perf_counter()
    algorithm = config.build_algo()
    built = time.perf_counter() - begun
    waiting, rows = [], []
    sample = algorithm.offline_data.sample

    def timed(**kwargs):
        begun = time.perf_counter()
        batch = sample(**kwargs)
        waiting.append(time.perf_counter() - begun)
        if hasattr(batch, "policy_batches"):
            rows.append(len(batch.policy_batches["default_policy"][Columns.ACTIONS]))
        return batch

    algorithm.offline_data.sample = timed
    begun = time.perf_counter()
    for _ in range(iterations):
        algorithm.train()
    total = time.perf_counter() - begun
    out = {
        "return": evaluate(algorithm),
        "build": built,
        "total": total,
        "first batch": waiting[0],
        "later batches": sum(waiting[1:]),
        "rows": np.mean(rows) if rows else None,
    }
    algorithm.stop()
    return out


def evaluate(algorithm) -> float:
    """The mean return of ten episodes with the likeliest actions."""
    module = algorithm.learner_group._learner.module["default_policy"]
    env, returns = gymnasium.make("CartPole-v1"), []
    for episode in range(10):
        obs, _ = env.reset(seed=1000 + episode)
        done, total, stateful = False, 0.0, module.is_stateful()
        state = {k: torch.as_tensor(v).unsqueeze(0) for k, v in module.get_initial_state().items()} if stateful else None
        while not done:
            given = torch.from_numpy(obs).unsqueeze(0)
            # A recurrent module wants a dimension of time.
            batch = {Columns.OBS: given.unsqueeze(1), Columns.STATE_IN: state} if stateful else {Columns.OBS: given}
            with torch.no_grad():
                out = module.forward_inference(batch)
            state = out.get(Columns.STATE_OUT)
            action = int(out[Columns.ACTION_DIST_INPUTS].argmax())
            obs, reward, terminated, truncated, _ = env.step(action)
            total, done = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def compare(name: str, log: Path, folder: Path, iterations: int) -> None:
    """Trains an algorithm both ways and prints them side by side."""
    shards = folder / name
    begun = time.perf_counter()
    gristmill.rllib.job_from_config(
        config(name).offline_data(input_=[str(log)], input_read_episodes=True), output=shards
    ).run(progress=False)
    compiled = time.perf_counter() - begun
    over_shards = config(name).offline_data(
        input_=str(shards), offline_data_class=gristmill.rllib.ShardData, dataset_num_iters_per_learner=1
    )
    own = config(name).offline_data(
        input_=[str(log)], input_read_episodes=True, input_read_batch_size=2, dataset_num_iters_per_learner=1
    )
    results = {"gristmill": train(over_shards, iterations) | {"compile": compiled}, "rllib": train(own, iterations)}
    print(f"\n{name}: {', '.join(gristmill.open(shards).module().training_columns)}")
    rows = [
        ("mean return of 10 episodes", "return"), ("rows a batch", "rows"), ("compile the recording, s", "compile"),
        ("build (first: imports), s", "build"), ("first batch, s", "first batch"),
        (f"other {iterations - 1} batches, s", "later batches"), ("training in all, s", "total"),
    ]
    print(f"{'':28}" + "".join(f"{name:>14}" for name in results))
    for label, key in rows:
        values = [results[name].get(key) for name in results]
        print(f"{label:28}" + "".join(f"{'-' if v is None else format(v, '.2f'):>14}" for v in values), flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("algorithms", nargs="*", metavar="bc|marwil|lstm")
    arguments.add_argument("--iterations", type=int, default=200)
    arguments.add_argument("--episodes", type=int, default=40)
    args = arguments.parse_args()
    names = args.algorithms or ["bc", "marwil", "lstm"]
    if unknown := set(names) - {"bc", "marwil", "lstm"}:
        arguments.error(f"found {', '.join(sorted(unknown))}, expected some of: bc, marwil, lstm")
    logging.getLogger("ray").setLevel(logging.ERROR)
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    with tempfile.TemporaryDirectory() as folder:
        steps = record(Path(folder) / "log", args.episodes)
        print(f"recorded {args.episodes} episodes, {steps} steps: mean return {steps / args.episodes:.1f}", flush=True)
        for name in names:
            compare(name, Path(folder) / "log", Path(folder), args.iterations)


if __name__ == "__main__":
    main()
