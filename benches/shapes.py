"""Time and peak memory of `convert` on shapes that no recording should have, at n and at 2n.

    python benches/shapes.py [--gristmill PATH] [--scale 1.0] [NAME ...]

Prints one line a shape and size. Time at 2n over time at n should be near 2, or near 1 where starting dominates. Fails
if a conversion does not exit as it should, or takes more than 2.5 times as long at 2n, where that is more than half a
second: of processor time in the program, which other programs change least; how long the system takes to find memory for
it (GiBs, for the largest rows) depends on what it has at hand.

At 2n the sizes are 100,000 columns, leaves and infos, 10,000 files, 10 million episodes of one step and one of 10 million
steps, and rows of 1 GiB (more than 1920 MiB are refused), with a memory limit that is enough for them. `slices` is
one episode under the smallest limit: it fails if its peak is above that, or its content not that of a run with room.
"""

import argparse
import json
import multiprocessing
import pathlib
import struct
import subprocess
import sys
import tempfile

import measured
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


def list_leaves(n, folder):
    """Lists of any length: what their shape is, only the rows tell."""
    lists = pa.ListArray.from_arrays(pa.array(np.arange(5, dtype="i4")), pa.array(np.zeros(4, "f4")))
    obs = pa.StructArray.from_arrays([lists] * n, [f"l{i}" for i in range(n)])
    plain(pa.table(four() | {"obs": obs}), folder / "a.parquet")


def infos(n, folder):
    """Numbers, and half as many texts, which are left out."""
    children = [pa.array(np.zeros(4, "f4")) if i % 3 else pa.array(["x"] * 4) for i in range(n)]
    table = pa.table(four() | {"infos": pa.StructArray.from_arrays(children, [f"l{i}" for i in range(n)])})
    plain(table, folder / "a.parquet")
    job = "[[learner.connectors]]\ntype = 'AddInfosFromEpisodesToTrainBatch'\n"
    (folder.parent / "job.toml").write_text(job)


def several(n, folder):
    """Two agents, each with half of the columns null: every column counts for each module."""
    of = {}
    for i in range(n):
        of[f"c{i}"] = pa.array([1.0, None, 1.0, None] if i % 2 else [None, 1.0, None, 1.0], "f4")
    agents = {"agent_id": pa.array(["a", "b"] * 2), "module_id": pa.array(["a", "b"] * 2)}
    table = pa.table(four() | {"t": pa.array([0, 0, 1, 1]), "terminateds": pa.array([False] * 4)} | agents | of)
    plain(table, folder / "a.parquet")


def damaged(n, folder):
    """The last column cannot be read: which one it is has to be found."""
    more = {f"c{i}": pa.array(np.zeros(4, "f4")) for i in range(n)}
    plain(pa.table(four() | more), folder / "a.parquet")
    path = folder / "a.parquet"
    at = pq.read_metadata(path).row_group(0).column(5 + n).data_page_offset
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 16)


def packed(value):
    """MessagePack of what an episode's state is made of."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return struct.pack(">Bq", 0xD3, value)
        case float():
            return struct.pack(">Bd", 0xCB, value)
        case str():
            return struct.pack(">BI", 0xDB, len(value.encode())) + value.encode()
        case list():
            return struct.pack(">BI", 0xDD, len(value)) + b"".join(map(packed, value))
        case dict():
            return struct.pack(">BI", 0xDF, len(value)) + b"".join(packed(k) + packed(v) for k, v in value.items())


def item_keys(n, folder):
    """Episodes as RLlib packs them. Observations have n keys, in another order in every row; and n extra outputs."""
    keys = [f"l{i}" for i in range(n)]
    rows = [{k: 0.5 for k in keys}, {k: 0.5 for k in keys[::-1]}, {k: 0.5 for k in keys[1::2] + keys[::2]}]
    buffer = lambda data: {"data": data, "lookback": 0, "finalized": False}
    state = {"id_": "a", "agent_id": None, "module_id": None, "multi_agent_episode_id": None, "t_started": 0, "t": 2}
    state |= {"observations": buffer(rows), "actions": buffer([0, 1]), "rewards": buffer([0.5, 1.5])}
    state |= {"extra_model_outputs": {f"e{i}": buffer([0.5, 1.5]) for i in range(n // 4)}}
    state |= {"is_terminated": True, "is_truncated": False}
    plain(pa.table({"item": pa.array([packed(state)] * 20, pa.binary())}), folder / "a.parquet")


# What makes the input, its size, the exit code, and more arguments.
SHAPES = {
    "columns": (columns, 50_000, 0),
    "text_columns": (text_columns, 50_000, 0),
    "leaves": (leaves, 50_000, 0),
    "list_leaves": (list_leaves, 50_000, 0),
    "infos": (infos, 50_000, 0),
    "several": (several, 10_000, 0),
    "item_keys": (item_keys, 5_000, 0),
    "damaged": (damaged, 50_000, 2),
    "files": (files, 5_000, 0),
    "episodes": (episodes, 5_000_000, 0),
    "one_episode": (one_episode, 5_000_000, 0),
    "slices": (one_episode, 5_000_000, 0, "--memory-limit", "64MiB"),
    "row_mib": (row_mib, 512, 0, "--memory-limit", "32GiB"),
}


def sliced(folder, binary, n, peak):
    """What is wrong with a conversion under a memory limit of 64 MiB, which `out` has."""
    wrong = []
    if peak > 64:
        wrong.append(f"slices {n:,}: found a peak of {peak:.0f} MiB, expected at most 64")
    command = [binary, "convert", "--input", "in", "--output", "roomy", "--quiet", "--memory-limit", "16GiB"]
    subprocess.run(command, cwd=folder, check=True)
    manifests = [json.loads((folder / out / "manifest.json").read_text()) for out in ("out", "roomy")]
    digests = [manifest["content_digest"] for manifest in manifests]
    slices = json.loads((folder / "out" / "run.json").read_text())["extra"]["slices"]
    print(f"{'':14}{slices:>12,}  slices under 64 MiB, {digests[0]}; with 16 GiB {digests[1]}")
    if digests[0] != digests[1] or slices == 0:
        wrong.append(f"slices {n:,}: found {digests[0]} in {slices} slices, expected {digests[1]} in some")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gristmill", default="target/release/gristmill")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("names", nargs="*", help=", ".join(SHAPES))
    args = parser.parse_args()
    binary = pathlib.Path(args.gristmill).resolve()
    wrong = []
    for name in args.names or SHAPES:
        make, n, expected, *more = SHAPES[name]
        seconds = []
        for n in (int(n * args.scale), int(n * args.scale) * 2):
            with tempfile.TemporaryDirectory() as tmp:
                folder = pathlib.Path(tmp)
                (folder / "in").mkdir()
                maker = multiprocessing.get_context("spawn").Process(target=make, args=(n, folder / "in"))
                maker.start()
                maker.join()
                job = ["job.toml"] if (folder / "job.toml").exists() else []
                command = [binary, "convert", *job, "--input", "in", "--output", "out", "--quiet", *more]
                code, wall, cpu, system, peak, told = measured.run(command, folder)
                first = told.splitlines()[0][:100] if told else ""
                times = f"{wall:7.2f} s  {cpu:7.2f} + {system:.2f} s cpu"
                print(f"{name:14}{n:>12,}  {times}  {peak:8.0f} MiB  exit {code}  {first}")
                if code != expected:
                    wrong.append(f"{name} {n:,}: found the exit code {code}, expected {expected}")
                seconds.append(cpu)
                if name == "slices":
                    wrong += sliced(folder, binary, n, peak)
        if seconds[1] > max(MOST * seconds[0], FLOOR):
            wrong.append(
                f"{name}: found {seconds[1]:.2f} s at {n:,} after {seconds[0]:.2f} s at half of it, expected {MOST} times"
            )
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
