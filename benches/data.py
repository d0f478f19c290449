"""Seeded recordings for the benchmarks: `python data.py KIND PATH STEPS` writes one Parquet file and prints its steps."""

import argparse
import base64
import pathlib
import pickle

import lz4.frame
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP = 131_072
EPISODE = 200
# Steps of datasets/cartpole-episodes, all files together.
RECORDED_STEPS = 365
DATASETS = pathlib.Path(__file__).parent.parent / "datasets"


def tensor(values):
    """Rows as a fixed-size list column."""
    flat = values.reshape(len(values), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])


def write(path, steps, table_of, row_group=ROW_GROUP):
    """Writes row groups that `table_of(rows)` makes; zstd 1, as recorders that care write."""
    writer = None
    for start in range(0, steps, row_group):
        table = table_of(np.arange(start, min(start + row_group, steps)))
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd", compression_level=1)
        writer.write_table(table, row_group_size=row_group)
    writer.close()
    return steps


def steps_table(row, episode, t, obs, random):
    """The columns that every step log here has."""
    n = len(row)
    return {
        "eps_id": pa.array(episode),
        "t": pa.array(t),
        "obs": obs,
        "actions": pa.array(random.integers(0, 2, n)),
        "rewards": pa.array(np.ones(n)),
        "terminateds": pa.array(t == EPISODE - 1),
        "truncateds": pa.array(np.zeros(n, bool)),
    }


def cart(path, steps, distinct=None, environments=1):
    """CartPole-like: obs f32[4], state_out f32[16]. `distinct` observations at most; that many environments in turn."""
    random = np.random.default_rng(0)

    def table(row):
        turn, env = row // environments, row % environments
        episode, t = turn // EPISODE * environments + env, turn % EPISODE
        if distinct is None:
            obs = random.standard_normal((len(row), 4), dtype=np.float32)
        else:
            obs = np.zeros((len(row), 4), np.float32)
            obs[:, 0] = random.integers(0, distinct, len(row))
        columns = steps_table(row, episode, t, tensor(obs), random)
        columns["state_out"] = tensor(np.tanh(random.standard_normal((len(row), 16), dtype=np.float32)))
        return pa.table(columns)

    return write(path, steps, table)


def frames(path, steps):
    """84 x 84 uint8 frames, as of an arcade game: a still background, things that move, some noise."""
    random = np.random.default_rng(1)
    background = np.repeat(np.repeat(random.integers(0, 6, (21, 21)) * 40, 4, 0), 4, 1).astype(np.uint8)

    def table(row):
        images = np.broadcast_to(background, (len(row), 84, 84)).copy()
        for thing in range(4):
            y, x = (row * (thing + 1) // 2) % 76, (row * (thing + 3) // 3) % 76
            for i, (top, left) in enumerate(zip(y, x)):
                images[i, top : top + 8, left : left + 8] = 50 * thing + 49
        noise = random.integers(0, 84 * 84, (len(row), 40))
        images.reshape(len(row), -1)[np.arange(len(row))[:, None], noise] = random.integers(0, 256, (len(row), 40))
        return pa.table(steps_table(row, row // EPISODE, row % EPISODE, tensor(images), random))

    return write(path, steps, table, row_group=2000)


def rllib_episodes(path, steps):
    """RLlib's own msgpack episodes of CartPole, again and again under new ids of the same length."""
    recorded = pa.concat_tables(
        pq.read_table(file) for file in sorted((DATASETS / "cartpole-episodes/input").glob("*.parquet"))
    )
    items = recorded["item"].to_pylist()
    copies = max(1, round(steps / RECORDED_STEPS))
    out = []
    for copy in range(copies):
        for i, item in enumerate(items):
            start = item.index(b"id_") + 5
            out.append(item[:start] + f"{copy:016x}{i:016x}".encode() + item[start + 32 :])
    pq.write_table(pa.table({"item": pa.array(out, pa.large_binary())}), path, row_group_size=200)
    return copies * RECORDED_STEPS


def rllib_compressed(path, steps):
    """RLlib's columns with `obs` and `new_obs` as RLlib packs them: base64 of an lz4 frame of a pickle."""
    random = np.random.default_rng(2)

    def pack(array):
        return base64.b64encode(lz4.frame.compress(pickle.dumps(array))).decode()

    def table(row):
        obs = random.standard_normal((len(row) + 1, 4), dtype=np.float32)
        packed = [pack(o) for o in obs]
        columns = steps_table(row, row // EPISODE, row % EPISODE, pa.array(packed[:-1]), random)
        columns["eps_id"] = pa.array([f"{i:032x}" for i in row // EPISODE])
        columns["new_obs"] = pa.array(packed[1:])
        del columns["t"]
        return pa.table(columns)

    return write(path, steps, table)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["cart", "frames", "rllib_episodes", "rllib_compressed"])
    parser.add_argument("path")
    parser.add_argument("steps", type=int)
    parser.add_argument("--distinct", type=int)
    parser.add_argument("--environments", type=int, default=1)
    args = parser.parse_args()
    options = [args.distinct, args.environments] if args.kind == "cart" else []
    print(globals()[args.kind](args.path, args.steps, *options))


if __name__ == "__main__":
    main()
