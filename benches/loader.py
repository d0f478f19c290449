"""How fast batches come out of shards, beside a plain copy of memory, PyTorch's memory-mapped tensors and Ray Data.

    python benches/loader.py [--rows 2000000] [--batch-size 1024]

Needs the package, and PyTorch and Ray for their lines. The data are made once: seeded steps of 17 float32 observations, next
observations and 6 float32 actions, as of a MuJoCo task. Every line reads all rows of one epoch as batches that belong to
the reader; GB/s counts the bytes of the columns. Files are in the page cache: what is measured is the reader, not the disk.
"""

import argparse
import importlib.util
import tempfile
import time
from pathlib import Path

import gristmill
import numpy as np

WIDTHS = {"obs": 17, "new_obs": 17, "actions": 6}
EPISODE = 1000


def log(rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    steps = np.arange(rows)
    return {
        "eps_id": steps // EPISODE,
        "t": steps % EPISODE,
        **{name: rng.normal(size=(rows, width)).astype(np.float32) for name, width in WIDTHS.items()},
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminateds": steps % EPISODE == EPISODE - 1,
    }


def timed(label: str, size: int, batches) -> None:
    best = float("inf")
    for _ in range(3):
        begun = time.perf_counter()
        rows = sum(len(batch) for batch in batches())
        best = min(best, time.perf_counter() - begun)
    print(f"{label:52} {size / best / 1e9:7.2f} GB/s {rows / best:14,.0f} rows/s")


def over_ray(shards: Path, columns: list[str], batch_size: int, size: int) -> None:
    """The iterator of Ray Data over the same shards: tasks read them, batches come to this process."""
    if importlib.util.find_spec("ray") is None:
        print("Ray is not installed: its lines are left out")
        return
    import logging

    import ray

    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    def read(shuffle):
        data = ray.data.read_parquet(str(shards / "default_policy"), columns=columns)
        # Of as many rows as a window of gristmill's may hold.
        buffer = {"local_shuffle_buffer_size": min(1_000_000, size // 100), "local_shuffle_seed": 7} if shuffle else {}
        for batch in data.iter_batches(batch_size=batch_size, batch_format="numpy", **buffer):
            yield batch["rewards"]

    timed("Ray Data: parquet, zstd:1, in order", size, lambda: read(False))
    timed("Ray Data: parquet, zstd:1, shuffled in a buffer", size, lambda: read(True))
    ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batch-size", type=int, default=1024)
    args = parser.parse_args()
    data = log(args.rows)
    columns = {name: column for name, column in data.items() if name not in ("eps_id", "t")}
    size = sum(column.nbytes for column in columns.values())
    order = np.random.default_rng(1).permutation(args.rows)
    print(f"{args.rows:,} rows, {size / 1e6:,.0f} MB, batches of {args.batch_size}; best of three")

    def batches(columns, take):
        """One epoch: `take` makes a batch's column of a whole one, given where the batch begins and ends."""
        for at in range(0, args.rows, args.batch_size):
            batch = {name: take(column, at, at + args.batch_size) for name, column in columns.items()}
            yield batch["rewards"]

    def copied(column, start, stop):
        return column[start:stop].copy()

    def gathered(column, start, stop):
        return np.take(column, order[start:stop], axis=0)

    timed("NumPy in memory: copy in order", size, lambda: batches(columns, copied))
    timed("NumPy in memory: gather shuffled", size, lambda: batches(columns, gathered))
    with tempfile.TemporaryDirectory() as folder:
        import pyarrow as pa
        import pyarrow.parquet as pq

        steps = {
            name: pa.FixedSizeListArray.from_arrays(column.reshape(-1), column.shape[1]) if column.ndim > 1 else column
            for name, column in data.items()
        }
        pq.write_table(pa.table(steps), Path(folder) / "log.parquet", row_group_size=100_000)
        del steps
        forms = {
            "arrow, mapped": {"format": "arrow"},
            "parquet, zstd:1": {"format": "parquet"},
            "parquet, uncompressed": {"format": "parquet", "compression": "none"},
        }
        for label, output in forms.items():
            # Without a colon, in which Ray would see a URL.
            out = Path(folder) / label.replace(", ", "-").replace(":", "")
            job = gristmill.Job(input=Path(folder) / "log.parquet", learner={"algorithm": "SAC"}, output=output)
            job.run(output=out, progress=False)
            for seed in (None, 7):
                how = "in order" if seed is None else "shuffled"

                def read(out=out, seed=seed):
                    module = gristmill.open(out).module()
                    for batch in module.batches(columns=list(columns), batch_size=args.batch_size, shuffle_seed=seed):
                        yield batch["rewards"]

                timed(f"gristmill: {label}, {how}", size, read)
        over_ray(Path(folder) / "parquet-zstd1", list(columns), args.batch_size, size)
        if importlib.util.find_spec("torch") is None:
            print("PyTorch is not installed: its lines are left out")
            return
        import torch

        mapped = {}
        for name, column in columns.items():
            path = str(Path(folder) / f"{name}.bin")
            column.tofile(path)
            flat = torch.from_file(path, size=column.size, dtype=torch.from_numpy(column[:1]).dtype)
            mapped[name] = flat.reshape(column.shape)
        shuffled = torch.from_numpy(order)

        def cloned(column, start, stop):
            return column[start:stop].clone()

        def indexed(column, start, stop):
            return column[shuffled[start:stop]]

        timed("torch: memory-mapped tensors, in order", size, lambda: batches(mapped, cloned))
        timed("torch: memory-mapped tensors, shuffled", size, lambda: batches(mapped, indexed))


if __name__ == "__main__":
    main()
