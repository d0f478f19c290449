"""Time and peak memory of `convert` on shapes that no recording should have, at n and at 2n.

    python benches/shapes.py [--gristmill PATH] [--scale 1.0] [NAME ...]

Prints one line a shape and size. Time at 2n over time at n should be near 2, or near 1 where starting dominates. Fails
if a conversion does not exit as it should, or takes more than 2.5 times as long at 2n, where that is more than half a
second: of processor time, which other programs on the machine change least.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GROUP = 1 << 18

# Growth that is refused: times the seconds at n, where those at 2n are more than the floor.
MOST, FLOOR = 2.5, 0.5


def steps(ids, t, done):
    n = len(ids)
    return {
        "eps_id": pa.array(ids),
        "t": pa.array(t),
        "obs": pa.array(np.arange(n, dtype="f4")),
        "actions": pa.array(np.zeros(n, "i4")),
        "rewards": pa.array(np.ones(n)),
        "terminateds": pa.array(done),
    }


def four():
    return steps(np.zeros(4, "i8"), np.arange(4), np.arange(4) == 3)


def plain(table, path):
    pq.write_table(table, path, compression="none", write_statistics=False, use_dictionary=False)


def columns(n, folder):
    more = {f"c{i}": pa.array(np.zeros(4, "f4")) for i in range(n)}
    plain(pa.table(four() | more), folder / "a.parquet")


def text_columns(n, folder):
    more = {f"c{i}": pa.array(["x"] * 4) for i in range(n)}
    plain(pa.table(four() | more), folder / "a.parquet")


def leaves(n, folder):
    children = [pa.array(np.zeros(4, "f4")) for _ in range(n)]
    obs = pa.StructArray.from_arrays(children, [f"l{i}" for i in range(n)])
    plain(pa.table(four() | {"obs": obs}), folder / "a.parquet")


def files(n, folder):
    for i in range(n):
        plain(pa.table(steps(np.full(4, i), np.arange(4), np.arange(4) == 3)), folder / f"{i:06}.parquet")


def grouped(n, folder, make):
    writer = None
    for start in range(0, n, GROUP):
        table = pa.table(make(np.arange(start, min(n, start + GROUP))))
        writer = writer or pq.ParquetWriter(folder / "a.parquet", table.schema)
        writer.write_table(table)
    writer.close()


def episodes(n, folder):
    grouped(n, folder, lambda i: steps(i, np.zeros(len(i), "i8"), np.ones(len(i), bool)))


def one_episode(n, folder):
    grouped(n, folder, lambda i: steps(np.zeros(len(i), "i8"), i, i == n - 1))


def row_mib(n, folder):
    width = n << 18
    writer = None
    for t in range(2):
        table = pa.table(steps(np.array([0]), np.array([t]), np.array([t == 1])))
        obs = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(width, "f4")), width)
        table = table.set_column(2, "obs", obs)
        writer = writer or pq.ParquetWriter(
            folder / "a.parquet", table.schema, use_dictionary=False, write_statistics=False
        )
        writer.write_table(table)
    writer.close()


SHAPES = {
    "columns": (columns, 50_000),
    "text_columns": (text_columns, 50_000),
    "leaves": (leaves, 50_000),
    "files": (files, 5_000),
    "episodes": (episodes, 5_000_000),
    "one_episode": (one_episode, 5_000_000),
    "row_mib": (row_mib, 512),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gristmill", default="target/release/gristmill")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("names", nargs="*", help=", ".join(SHAPES))
    args = parser.parse_args()
    binary = pathlib.Path(args.gristmill).resolve()
    wrong = []
    for name in args.names or SHAPES:
        make, n = SHAPES[name]
        seconds = []
        for n in (int(n * args.scale), int(n * args.scale) * 2):
            with tempfile.TemporaryDirectory() as tmp:
                folder = pathlib.Path(tmp)
                (folder / "in").mkdir()
                make(n, folder / "in")
                command = [binary, "convert", "--input", "in", "--output", "out", "--quiet"]
                started = time.monotonic()
                child = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
                told = child.stderr.read()
                _, status, usage = os.wait4(child.pid, 0)
                wall = time.monotonic() - started
                cpu, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
                code = os.waitstatus_to_exitcode(status)
                first = told.splitlines()[0][:100] if told else ""
                print(f"{name:14}{n:>12,}  {wall:7.2f} s  {cpu:7.2f} s cpu  {peak:8.0f} MiB  exit {code}  {first}")
                if code:
                    wrong.append(f"{name} {n:,}: found the exit code {code}, expected 0")
                seconds.append(cpu)
        if seconds[1] > max(MOST * seconds[0], FLOOR):
            wrong.append(
                f"{name}: found {seconds[1]:.2f} s at {n:,} after {seconds[0]:.2f} s at half of it, expected {MOST} times"
            )
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
