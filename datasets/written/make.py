"""Writes the data sets that later versions must still read: one folder a set, for the format as it is now.

    python datasets/written/make.py v1 [--gristmill PATH]      # needs pyarrow, numpy, safetensors

Each set is a job, `data/` as `gristmill convert` leaves it (without `run.json`, which tells times), and
`values.safetensors`: the values of every column, shard after shard, read with pyarrow and not with gristmill. Keys are
`<module>/<column>`; text is `uint8`, one line a row. Where windows are indexed, the values are those of the same job with
whole ones.

A folder that is there is never written again: what it holds is what that version wrote.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent

# A recording of `datasets/`, and the job but for its paths.
SETS = {
    "sequences": (
        "cartpole-lstm",
        """
# A stateful module: sequences with their state, in two parts, in more than one shard.
[rl_module]
stateful = true
max_seq_len = 20
[rl_module.initial_state]
h = { shape = [1, 16] }
c = { shape = [1, 16] }
[output]
rows_per_shard = 16
split = { train = 0.7, val = 0.3 }
""",
    ),
    "shuffled": (
        "cartpole-duplicates",
        """
# Steps in a shuffled order, as Arrow, with tensors as bytes.
[output]
format = "arrow"
tensors = "binary"
rows_per_shard = 60
shuffle = { seed = 7 }
""",
    ),
    "statistics": (
        "cartpole-dict",
        """
# Nested observations, next observations, and a piece whose statistics stand in the manifest.
[input.spaces.obs]
obs = { type = "box", shape = [4], dtype = "float32" }
time = { type = "box", shape = [1], dtype = "int32" }
[learner]
algorithm = "BC"
[[learner.connectors]]
type = "MeanStdFilter"
[output]
compression = "lz4"
rows_per_shard = 100
""",
    ),
    "indexed": (
        "cartpole-duplicates",
        """
# Stacked observations and sequences that overlap, each step of which stands once in tables beside the rows.
[rl_module]
stateful = true
max_seq_len = 20
[rl_module.initial_state]
h = { shape = [2], fill = 0.5 }
[[learner.connectors]]
type = "StackObservations"
num_frames = 3
[[learner.connectors]]
type = "OverlappingSequences"
burn_in = 4
length = 12
period = 8
[output]
windows = "indexed"
rows_per_shard = 100
""",
    ),
}


def values(record, directory):
    """The columns of a module."""
    read = {".parquet": pq.read_table, ".arrow": feather.read_table}
    shards = [directory / shard["file"] for shard in record["shards"]]
    table = pa.concat_tables([read[path.suffix](path) for path in shards]).combine_chunks()
    for column in record["columns"]:
        array = table.column(column["name"]).combine_chunks()
        array = array.storage if isinstance(array, pa.ExtensionArray) else array
        if column["dtype"] == "utf8":
            yield column["name"], np.frombuffer("".join(f"{v}\n" for v in array.to_pylist()).encode(), "u1")
            continue
        if pa.types.is_fixed_size_binary(array.type):
            flat = np.frombuffer(b"".join(array.to_pylist()), np.dtype(column["dtype"]))
        else:
            flat = (array.flatten() if pa.types.is_fixed_size_list(array.type) else array).to_numpy(zero_copy_only=False)
        yield column["name"], flat.astype(column["dtype"]).reshape(len(table), *column["shape"])


def make(name, folder, gristmill):
    recording, job = SETS[name]
    folder.mkdir()
    (folder / "job.toml").write_text(f"# gristmill convert job.toml --input ../../../{recording}/input\n" + job)
    # Relative paths: the manifest has the input's.
    command = [gristmill, "convert", "job.toml", "--input", f"../../../{recording}/input", "--output", "data", "--quiet"]
    subprocess.run(command, cwd=folder, check=True)
    (folder / "data/run.json").unlink()
    with tempfile.TemporaryDirectory() as tmp:
        whole = pathlib.Path(tmp)
        (whole / "job.toml").write_text(job.replace('windows = "indexed"\n', ""))
        command = [gristmill, "convert", "job.toml", "--input", HERE.parent / recording / "input", "--output", "data"]
        subprocess.run([*command, "--quiet"], cwd=whole, check=True)
        modules = json.loads((whole / "data/manifest.json").read_text())["modules"]
        tensors = {f"{m}/{c}": v for m, record in modules.items() for c, v in values(record, whole / "data")}
        save_file({name: np.ascontiguousarray(v) for name, v in tensors.items()}, folder / "values.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="the new folder: v1, v2, ..")
    parser.add_argument("--gristmill", default="target/release/gristmill")
    args = parser.parse_args()
    (HERE / args.version).mkdir(exist_ok=True)
    for name in SETS:
        folder = HERE / args.version / name
        if folder.exists():
            print(f"{folder} is there already", file=sys.stderr)
            continue
        make(name, folder, pathlib.Path(args.gristmill).resolve())


if __name__ == "__main__":
    main()
