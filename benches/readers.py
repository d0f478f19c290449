"""How fast peers read shards back, tensors as lists and as bytes: `make readers`.

Converts two seeded recordings (sequences of 20 steps; 4 stacked 84 x 84 frames) with `output.tensors` "list" and
"binary" and prints processor seconds of pyarrow, polars and DuckDB over all tensor columns, one thread, median of five.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["POLARS_MAX_THREADS"] = "1"

import duckdb  # noqa: E402
import polars as pl  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

HERE = pathlib.Path(__file__).parent
SEQUENCES = "[rl_module]\nstateful = true\nmax_seq_len = 20\n"
STACKED = '[[learner.connectors]]\ntype = "FrameStacking"\nnum_frames = 4\n'
WORKLOADS = {
    "sequences": (["cart"], 5_000_000, SEQUENCES),
    "stacked frames": (["frames"], 20_000, STACKED),
}


def seconds(read):
    read()
    runs = []
    for _ in range(5):
        started = time.process_time()
        read()
        runs.append(time.process_time() - started)
    return statistics.median(runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gristmill", default="target/release/gristmill")
    parser.add_argument("--scratch", help="where recordings and shards are written")
    args = parser.parse_args()
    pa.set_cpu_count(1)
    duck = duckdb.connect()
    duck.execute("SET threads = 1")
    print(f"{'':15} {'tensors':8} {'pyarrow s':>10} {'polars s':>10} {'DuckDB s':>10}")
    for name, (recording, steps, job) in WORKLOADS.items():
        with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
            log = pathlib.Path(folder, "log.parquet")
            subprocess.run([sys.executable, HERE / "data.py", *recording, log, str(steps)], check=True, stdout=subprocess.DEVNULL)
            for tensors in ["list", "binary"]:
                out = pathlib.Path(folder, tensors)
                path = pathlib.Path(folder, "job.toml")
                path.write_text(f'version = 1\n[input]\npaths = ["{log}"]\n{job}[output]\npath = "{out}"\ntensors = "{tensors}"\n')
                subprocess.run([args.gristmill, "convert", path, "--quiet"], check=True)
                files = sorted(out.glob("default_policy/*.parquet"))
                columns = [f.name for f in pq.read_schema(files[0]) if is_tensor(f.type)]
                query = ", ".join(f'max("{c}")' for c in columns)
                query = f"SELECT {query} FROM read_parquet('{out}/default_policy/*.parquet')"
                figures = [
                    seconds(lambda: [pq.read_table(f, columns=columns, use_threads=False) for f in files]),
                    seconds(lambda: [pl.read_parquet(f, columns=columns) for f in files]),
                    seconds(lambda: duck.execute(query).fetchall()),
                ]
                print(f"{name:15} {tensors:8} " + " ".join(f"{s:10.3f}" for s in figures))


def is_tensor(ty):
    return isinstance(ty, pa.BaseExtensionType) or pa.types.is_fixed_size_binary(ty)


if __name__ == "__main__":
    main()
