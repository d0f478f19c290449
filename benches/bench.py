"""gristmill beside its peers, in one run: `make bench`.

Makes seeded recordings, converts each, runs what else users have on the same file in turn with it (so that a machine
whose speed drifts does not favour one), and prints a table a workload: medians of wall seconds, processor seconds
and peak memory, and each peer's time over gristmill's. Needs Linux or macOS, and cargo.

    benches/bench.py --workloads a b --threads 1 --runs 5
    benches/bench.py --growth 1000000 10000000 50000000      time a step and peak memory against length
    RLLIB_PYTHON=/path/to/python benches/bench.py            with RLlib, where that Python has it
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
RLLIB = os.environ.get("RLLIB_PYTHON")
# Steps of a train batch of frames.
FRAMES_AT_ONCE = 2000


class Workload:
    """A recording, a job over it, and who else does something like it."""

    def __init__(self, title, recording, job, steps, peers=(), floor=False, rllib=None):
        self.title, self.recording, self.job, self.steps = title, recording, job, steps
        self.peers, self.floor, self.rllib = peers, floor, rllib


COPIES = ["copy", "pyarrow", "polars"]
CURIOSITY = '[[learner.connectors]]\ntype = "CountBasedCuriosity"\n'
STATEFUL = "[rl_module]\nstateful = true\nmax_seq_len = 20\n"
STACKED = '[learner]\nalgorithm = "PPO"\n[[learner.connectors]]\ntype = "FrameStacking"\nnum_frames = 4\n'

WORKLOADS = {
    "a": Workload("stateless", ["cart"], "", 5_000_000, [*COPIES, "script"], True, "data"),
    "b": Workload("recurrent, sequences of 20", ["cart"], STATEFUL, 5_000_000, [*COPIES, "script-padded"], True),
    "c": Workload("curiosity, all distinct", ["cart"], CURIOSITY, 5_000_000, [*COPIES, "script-counts"]),
    "c2": Workload(
        "curiosity, 420k distinct", ["cart", "--distinct", "420000"], CURIOSITY, 5_000_000, [*COPIES, "script-counts"]
    ),
    "d": Workload("84 x 84 frames, 4 stacked", ["frames"], STACKED, 20_000, ["copy", "pyarrow"], rllib="frames"),
    "d2": Workload(
        "the same, each frame stored once",
        ["frames"],
        STACKED + '[output]\nwindows = "indexed"\n',
        20_000,
        ["copy", "pyarrow"],
    ),
    "e": Workload("RLlib's msgpack episodes", ["rllib_episodes"], "", 300_000, rllib="episodes"),
    "f": Workload("RLlib's compressed columns", ["rllib_compressed"], "", 300_000, rllib="columns"),
    "g": Workload("shuffled", ["cart"], "[output]\nshuffle = { seed = 7 }\n", 5_000_000, COPIES),
    "h": Workload("64 environments in turn", ["cart", "--environments", "64"], "", 5_000_000, COPIES),
}


def run(command):
    """Wall seconds, processor seconds and peak MiB of a command, and what it printed."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # Both are short: nothing here fills a pipe.
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    out, err = process.stdout.read(), process.stderr.read()
    if status:
        sys.exit(f"{' '.join(map(str, command))} failed\n{err}")
    unit = 1 if sys.platform == "darwin" else 1024
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 2**20, out


def record(path, steps, recording):
    """Makes a recording; its number of steps. In a process of its own: a child's peak memory, as the system tells it,
    is at least that of the process that started it."""
    return int(run([sys.executable, HERE / "data.py", *recording, path, str(steps)])[3])


def peers_binary():
    """Builds the peers out of the parquet crate; where the program is."""
    command = ["cargo", "bench", "--bench", "peers", "--no-run", "--no-default-features", "--message-format=json", "--quiet"]
    built = subprocess.run(command, cwd=HERE.parent, check=True, capture_output=True, text=True).stdout
    found = [json.loads(line) for line in built.splitlines()]
    return next(m["executable"] for m in found if m.get("target", {}).get("name") == "peers" and m.get("executable"))


def commands(workload, log, folder, args, threads, peers):
    """The commands of one round by name, gristmill first."""
    job, out, copy = folder / "job.toml", folder / "shards", folder / "copy.parquet"
    table = workload.job if "[output]" in workload.job else workload.job + "[output]\n"
    job.write_text(f'version = 1\n[input]\npaths = ["{log}"]\n{table}path = "{out}"\n')
    yield (
        "gristmill",
        [args.gristmill, "convert", job, "--threads", str(threads), "--overwrite", "--quiet", *args.flags.split()],
    )
    for peer in workload.peers:
        if peer == "copy":
            yield "copy, parquet crate", [peers, "copy", log, copy, str(threads)]
        else:
            label = "numpy and polars" if peer.startswith("script") else f"copy, {peer}"
            yield label, [sys.executable, HERE / "peers.py", peer, log, copy, str(threads)]


def measure(workload, log, args, threads, peers):
    """Prints one table."""
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        folder = pathlib.Path(folder)
        rounds = {}
        for i in range(args.runs + 1):
            for name, command in commands(workload, log, folder, args, threads, peers):
                figures = run(command)
                # The first round warms the file cache.
                if i:
                    rounds.setdefault(name, []).append(figures)
        own = rounds["gristmill"]
        print(f"{'':24} {'wall s':>8} {'cpu s':>8} {'MiB':>7} {'wall, over gristmill':>21} {'cpu':>6}")
        for name, runs in rounds.items():
            wall, cpu, peak = (statistics.median(r[i] for r in runs) for i in range(3))
            ratio, cpus = (statistics.median(r[i] / o[i] for r, o in zip(runs, own)) for i in range(2))
            print(f"{name:24} {wall:8.2f} {cpu:8.2f} {peak:7.0f} {ratio:21.2f} {cpus:6.2f}")
        if workload.floor and threads == 1:
            shards = sorted((folder / "shards").glob("**/*.parquet"))
            columns = ["eps_id", "t", "obs", "actions", "rewards", "terminateds", "truncateds"]
            columns += ["state_out"] if "stateful" in workload.job else []
            floors = []
            for _ in range(args.runs):
                printed = run([peers, "pages", log, *shards, "--", *columns])[3]
                floors.append(float(printed.split()[2]))
            floor = statistics.median(floors)
            ratio = floor / statistics.median(r[0] for r in own)
            print(f"{'floor: codecs alone':24} {floor:8.2f} {'':8} {'':7} {ratio:21.2f}")
        return statistics.median(r[0] for r in own)


def memory(workload, log, args, threads, peers):
    """Prints the steps a second of compiling in memory, from tables to batches of as many steps as RLlib is given."""
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        job = pathlib.Path(folder, "job.toml")
        job.write_text(f'version = 1\n[input]\npaths = ["{log}"]\n{workload.job}')
        command = [peers, "compile", log, job, str(threads), str(FRAMES_AT_ONCE)]
        printed = [run(command)[3] for _ in range(args.runs)]
    speed = statistics.median(float(p) for p in printed)
    print(f"compiled in memory, {FRAMES_AT_ONCE:,} steps at a time: {speed:,.0f} steps/s")
    return speed


def rllib(workload, log, steps, seconds):
    """RLlib's pre-learner on the beginning of the same file."""
    if not RLLIB:
        print("skipped: RLlib (set RLLIB_PYTHON to a Python that has it)")
        return
    asked = FRAMES_AT_ONCE if workload.rllib == "frames" else 20_000
    printed = run([RLLIB, HERE / "rllib_peer.py", workload.rllib, log, str(asked)])[3]
    theirs = float(printed.split()[-1])
    how = "with Ray Data, 2 processors" if workload.rllib == "data" else "one process"
    print(f"RLlib, {how}: {theirs:,.0f} steps/s; gristmill: {steps / seconds:,.0f}, {steps / seconds / theirs:,.0f} times")


def growth(args):
    """Time a step and peak memory against the length of the log."""
    print(f"{'steps':>12} {'threads':>8} {'wall s':>8} {'ns a step':>10} {'MiB':>7}")
    for steps in args.growth:
        with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
            log = pathlib.Path(folder, "log.parquet")
            record(log, steps, ["cart"])
            for threads in args.threads:
                name, command = next(commands(WORKLOADS["a"], log, pathlib.Path(folder), args, threads, None))
                runs = [run(command) for _ in range(args.runs)]
                wall, _, peak = (statistics.median(r[i] for r in runs) for i in range(3))
                print(f"{steps:12,} {threads:8} {wall:8.2f} {wall / steps * 1e9:10.1f} {peak:7.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gristmill", default="target/release/gristmill")
    parser.add_argument("--flags", default="", help="more flags for gristmill convert")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, help="steps of each recording, instead of its own number")
    parser.add_argument("--growth", nargs="*", type=int, default=[])
    parser.add_argument("--scratch", help="where recordings and copies are written")
    args = parser.parse_args()
    if args.growth:
        growth(args)
        return
    peers = peers_binary()
    for name in args.workloads:
        workload = WORKLOADS[name]
        with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
            log = pathlib.Path(folder, "log.parquet")
            steps = record(log, args.steps or workload.steps, workload.recording)
            size = log.stat().st_size / 1e6
            for threads in args.threads:
                print(f"\n({name}) {workload.title}: {steps:,} steps, {size:,.0f} MB, {threads} thread(s)")
                seconds = measure(workload, log, args, threads, peers)
                if workload.rllib == "frames":
                    # RLlib's figure is its pipeline's alone, over episodes in memory.
                    seconds = steps / memory(workload, log, args, threads, peers)
                if workload.rllib:
                    rllib(workload, log, steps, seconds)


if __name__ == "__main__":
    main()
