"""BC on CartPole, twice: from gristmill's shards, and from the same recording by RLlib's own offline path.

    python examples/python/train_bc.py [--iterations 400] [--episodes 60] [--lstm]

Needs gristmill, Ray's RLlib and PyTorch. A linear controller that balances the pole, with some of its actions drawn at
random, is recorded in RLlib's column format. Both runs have the same config, network, seed, batch size and number of
updates; they differ in where batches come from. With ``--lstm`` the policy is an LSTM, trained on sequences of 20 steps with
recurrent states at their starts: from shards only, because RLlib's own path makes every row of the column format an episode
of one step. Printed are the mean return of ten episodes with the trained policy, and
where the time went: waiting for a batch, and updating.
"""

import argparse
import logging
import tempfile
import time
from pathlib import Path

import gristmill
import gymnasium
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

GAINS = np.array([0.1, 0.5, 2.0, 1.5])
NOISE = 0.2
SEED = 42
SPACES = gymnasium.make("CartPole-v1")


def record(folder: Path, episodes: int) -> int:
    """Episodes of the controller, one row a step. Returns the number of steps."""
    env, rng = gymnasium.make("CartPole-v1"), np.random.default_rng(SEED)
    rows = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        done = False
        while not done:
            action = int(obs @ GAINS > 0) if rng.random() > NOISE else int(rng.integers(2))
            new_obs, reward, terminated, truncated, _ = env.step(action)
            rows.append((f"episode-{episode}", obs, action, float(reward), new_obs, terminated, truncated))
            obs, done = new_obs, terminated or truncated
    eps_id, obs, actions, rewards, new_obs, terminateds, truncateds = map(list, zip(*rows, strict=True))
    nothing = pa.nulls(len(rows))
    folder.mkdir()
    pq.write_table(
        pa.table(
            {
                "eps_id": eps_id, "agent_id": nothing, "module_id": nothing,
                "obs": [o.tolist() for o in obs], "actions": pa.array(actions, pa.int32()), "rewards": rewards,
                "new_obs": [o.tolist() for o in new_obs], "terminateds": terminateds, "truncateds": truncateds,
            },
            schema=pa.schema(
                [
                    ("eps_id", pa.string()), ("agent_id", pa.null()), ("module_id", pa.null()),
                    ("obs", pa.list_(pa.float32())), ("actions", pa.int32()), ("rewards", pa.float64()),
                    ("new_obs", pa.list_(pa.float32())), ("terminateds", pa.bool_()), ("truncateds", pa.bool_()),
                ]
            ),
        ),
        folder / "part-0.parquet",
    )
    return len(rows)


def config(lstm: bool = False) -> BCConfig:
    out = (
        BCConfig()
        .environment(observation_space=SPACES.observation_space, action_space=SPACES.action_space)
        .debugging(seed=SEED)
        .env_runners(num_env_runners=0)
        .training(train_batch_size_per_learner=256, lr=1e-3)
    )
    if lstm:
        model = DefaultModelConfig(use_lstm=True, lstm_cell_size=32, max_seq_len=20)
        out = out.rl_module(model_config=model).training(train_batch_size_per_learner=64)
    return out


def train(config: BCConfig, iterations: int) -> dict[str, float]:
    """Trains; returns the mean return of the greedy policy, and seconds by kind."""
    built = time.perf_counter()
    algorithm = config.build_algo()
    built = time.perf_counter() - built
    waiting, started = [], time.perf_counter()
    sample = algorithm.offline_data.sample

    def timed(**kwargs):
        begun = time.perf_counter()
        batch = sample(**kwargs)
        waiting.append(time.perf_counter() - begun)
        return batch

    algorithm.offline_data.sample = timed
    for _ in range(iterations):
        algorithm.train()
    total = time.perf_counter() - started
    out = {
        "return": evaluate(algorithm),
        "build": built,
        "total": total,
        "first batch": waiting[0],
        "later batches": sum(waiting[1:]),
    }
    algorithm.stop()
    return out


def evaluate(algorithm) -> float:
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


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--iterations", type=int, default=400)
    arguments.add_argument("--episodes", type=int, default=60)
    arguments.add_argument("--only", choices=["gristmill", "rllib"])
    arguments.add_argument("--lstm", action="store_true")
    args = arguments.parse_args()
    logging.getLogger("ray").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        log, shards = Path(folder) / "log", Path(folder) / "shards"
        steps = record(log, args.episodes)
        print(f"recorded {args.episodes} episodes, {steps} steps: mean return {steps / args.episodes:.1f}")
        results = {}
        if args.only != "rllib":
            begun = time.perf_counter()
            gristmill.rllib.job_from_config(config(args.lstm), input=log, output=shards).run(progress=False)
            compiled = time.perf_counter() - begun
            over_shards = config(args.lstm).offline_data(
                input_=str(shards),
                offline_data_class=gristmill.rllib.ShardData,
                dataset_num_iters_per_learner=1,
            )
            results["gristmill"] = train(over_shards, args.iterations) | {"compile": compiled}
        if args.only != "gristmill" and not args.lstm:
            ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            ray.data.DataContext.get_current().enable_progress_bars = False
            own = config().offline_data(input_=[str(log)], dataset_num_iters_per_learner=1)
            results["rllib"] = train(own, args.iterations)
    rows = [
        ("mean return of 10 episodes", "return"), ("compile the recording, s", "compile"),
        ("build (first: imports), s", "build"), ("first batch, s", "first batch"),
        (f"other {args.iterations - 1} batches, s", "later batches"), ("training in all, s", "total"),
    ]
    print(f"{'':28}" + "".join(f"{name:>14}" for name in results))
    for label, key in rows:
        values = [results[name].get(key) for name in results]
        print(f"{label:28}" + "".join(f"{'-' if v is None else format(v, '.3f'):>14}" for v in values))


if __name__ == "__main__":
    main()
