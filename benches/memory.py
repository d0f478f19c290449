"""Peak memory and speed of `convert` on step logs of growing size: `make memory`.

Makes seeded CartPole-like logs (eps_id, t, obs f32[4], actions, rewards, flags, state_out f32[16]; row groups of 131072
rows; episodes of 200 steps), converts each with the release build, and prints what the operating system says of the
finished process. Linux and macOS only. `--keepers`: observations of 256 floats, and every choice of pieces that keep
something and of a shuffled order. `--id-bytes`: ids of so many bytes, in every kind of file and to every kind of output.
"""

import argparse
import itertools
import json
import pathlib
import shutil
import sys
import tempfile

import measured
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP = 131_072
EPISODE = 200


def tensor(values):
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


KEEPERS = {
    "filter": "[[learner.connectors]]\ntype = 'MeanStdFilter'\n",
    "counts": "[[learner.connectors]]\ntype = 'CountBasedCuriosity'\n",
    "shuffle": "[output]\nshuffle = { seed = 7 }\n",
}


def long_ids(episode, size):
    """An id of `size` bytes for each row, which rows of one episode share, as a dictionary."""
    names, of_row = np.unique(episode, return_inverse=True)
    names = pa.array([f"{name:0>{size}}" for name in names])
    return pa.DictionaryArray.from_arrays(pa.array(of_row.astype(np.int32)), names)


def make_log(path, steps, interleaved, width=4):
    """A log of `steps` rows; `interleaved`: 64 environments take turns, as a vectorised recorder writes."""
    random = np.random.default_rng(0)
    writer = None
    for start in range(0, steps, ROW_GROUP):
        row = np.arange(start, min(start + ROW_GROUP, steps))
        if interleaved:
            turn, env = row // 64, row % 64
            episode, t = turn // EPISODE * 64 + env, turn % EPISODE
        else:
            episode, t = row // EPISODE, row % EPISODE
        n = len(row)
        table = pa.table(
            {
                "eps_id": pa.array(episode),
                "t": pa.array(t),
                "obs": tensor(random.standard_normal((n, width), dtype=np.float32)),
                "actions": pa.array(random.integers(0, 2, n)),
                "rewards": pa.array(np.ones(n)),
                "terminateds": pa.array(t == EPISODE - 1),
                "truncateds": pa.array(np.zeros(n, bool)),
                "state_out": tensor(np.tanh(random.standard_normal((n, 16), dtype=np.float32))),
            }
        )
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd", compression_level=1)
        writer.write_table(table, row_group_size=ROW_GROUP)
    writer.close()


def run(command):
    """Seconds, and the process's largest resident set in MiB."""
    found = measured.run(command)
    if found.code:
        sys.exit(f"{' '.join(command)} failed\n{found.told}")
    return found.wall, found.peak


def keepers(gristmill, steps, limit):
    """Every choice of what keeps something, with one thread and with two."""
    choices = [c for n in range(4) for c in itertools.combinations(KEEPERS, n)]
    print(f"{'steps':>12} {'threads':>8} {'seconds':>8} {'peak MiB':>9}  what keeps something")
    with tempfile.TemporaryDirectory() as folder:
        log, job, out = (str(pathlib.Path(folder, name)) for name in ("log.parquet", "job.toml", "shards"))
        make_log(log, steps, False, 256)
        for names, threads in itertools.product(choices, ("1", "2")):
            output = "" if "shuffle" in names else "[output]\n"
            text = "".join(KEEPERS[name] for name in names) + output + "rows_per_shard = 2000\n"
            pathlib.Path(job).write_text(text)
            command = [gristmill, "convert", job, "--input", log, "--output", out, "--overwrite", "--quiet"]
            seconds, peak = run([*command, "--threads", threads, "--memory-limit", limit])
            print(f"{steps:>12,} {threads:>8} {seconds:>8.2f} {peak:>9.1f}  {' '.join(names)}")
            if peak > json.loads(pathlib.Path(out, "run.json").read_text())["extra"]["memory_limit"] / 2**20:
                sys.exit(f"the peak is above the limit of {limit}")


def ids(gristmill, steps, limit, size):
    """Ids of `size` bytes: dictionaries, plain pages and Arrow IPC; written as Parquet, shuffled, and as Arrow IPC."""
    print(f"{'steps':>12} {'threads':>8} {'seconds':>8} {'peak MiB':>9}  ids of {size:,} bytes")
    with tempfile.TemporaryDirectory() as folder:
        log, job, out = (str(pathlib.Path(folder, name)) for name in ("log", "job.toml", "shards"))
        make_log(log, steps, False)
        table = pq.read_table(log)
        table = table.set_column(0, "eps_id", long_ids(table["eps_id"].to_numpy(), size))

        def arrow_file():
            with pa.ipc.new_file(log, table.schema) as writer:
                writer.write_table(table, max_chunksize=ROW_GROUP // 4)

        inputs = {
            "dictionary": lambda: pq.write_table(table, log, row_group_size=ROW_GROUP),
            "plain": lambda: pq.write_table(table, log, row_group_size=ROW_GROUP, use_dictionary=False),
            "arrow": arrow_file,
        }
        outputs = {"parquet": "", "shuffled": "shuffle = { seed = 7 }\n", "arrow": "format = 'arrow'\n"}
        for name, write in inputs.items():
            write()
            for (output, text), threads in itertools.product(outputs.items(), ("1", "2")):
                pathlib.Path(job).write_text(f"[output]\nrows_per_shard = 16384\n{text}")
                command = [gristmill, "convert", job, "--input", log, "--output", out, "--overwrite", "--quiet"]
                seconds, peak = run([*command, "--threads", threads, "--memory-limit", limit])
                print(f"{steps:>12,} {threads:>8} {seconds:>8.2f} {peak:>9.1f}  {name} to {output}")
                if peak > json.loads(pathlib.Path(out, "run.json").read_text())["extra"]["memory_limit"] / 2**20:
                    sys.exit(f"the peak is above the limit of {limit}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gristmill", default="target/release/gristmill")
    parser.add_argument("--steps", type=int, nargs="+", default=[1_000_000, 5_000_000, 20_000_000])
    parser.add_argument("--interleaved", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory-limit", help="such as 256MiB; the peak must stay below it")
    parser.add_argument("--curiosity", action="store_true", help="count observations, all of them different")
    parser.add_argument("--keepers", action="store_true", help="every choice of what keeps something")
    parser.add_argument("--id-bytes", type=int, help="ids of so many bytes, in every kind of file")
    args = parser.parse_args()
    if args.id_bytes:
        for steps in args.steps:
            ids(args.gristmill, steps, args.memory_limit or "96MiB", args.id_bytes)
        return
    if args.keepers:
        for steps in args.steps:
            keepers(args.gristmill, steps, args.memory_limit or "64MiB")
        return
    print(f"{'steps':>12} {'log MB':>8} {'seconds':>8} {'M steps/s':>10} {'peak MiB':>9}")
    with tempfile.TemporaryDirectory() as folder:
        log, out = pathlib.Path(folder, "log.parquet"), pathlib.Path(folder, "shards")
        for steps in args.steps:
            make_log(log, steps, args.interleaved)
            command = [args.gristmill, "convert", "--quiet", "--threads", str(args.threads)]
            if args.memory_limit:
                command += ["--memory-limit", args.memory_limit]
            if args.curiosity:
                job = pathlib.Path(folder, "job.toml")
                job.write_text('[[learner.connectors]]\ntype = "CountBasedCuriosity"\n')
                command.append(str(job))
            seconds, peak = run([*command, "--input", str(log), "--output", str(out)])
            size = log.stat().st_size / 1e6
            print(f"{steps:>12,} {size:>8.1f} {seconds:>8.2f} {steps / seconds / 1e6:>10.2f} {peak:>9.1f}")
            limit = json.loads((out / "run.json").read_text())["extra"]["memory_limit"] / 2**20
            if peak > limit:
                sys.exit(f"the peak is above the limit of {limit:.0f} MiB")
            shutil.rmtree(out)


if __name__ == "__main__":
    main()
