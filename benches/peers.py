"""What users have instead of gristmill, one command a process: `python peers.py NAME IN OUT THREADS`.

pyarrow, polars     read everything and write it again, with settings tuned for such data
script              the batch that gristmill makes, as a strong user would write it with polars and numpy
script-padded       the same for a recurrent module: sequences of 20, zero-padded, masked
script-counts       the same with count-based curiosity
"""

import os
import pathlib
import sys

name, source, target, threads = sys.argv[1:]
os.environ["POLARS_MAX_THREADS"] = os.environ["OMP_NUM_THREADS"] = threads

import numpy as np  # noqa: E402
import polars as pl  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

pa.set_cpu_count(int(threads))
T = 20


def dictionaries(schema):
    """Columns that are worth a dictionary: all that hold no floats."""
    return [f.name for f in schema if not pa.types.is_nested(f.type) and not pa.types.is_floating(f.type)]


def writer(path, schema):
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=dictionaries(schema),
        write_statistics=False,
    )


def copy_pyarrow():
    file = pq.ParquetFile(source)
    with writer(target, file.schema_arrow) as out:
        for i in range(file.num_row_groups):
            out.write_table(file.read_row_group(i, use_threads=threads != "1"))


def copy_polars():
    pl.scan_parquet(source).sink_parquet(target, compression="zstd", compression_level=1, statistics=False)


def tensor(array):
    flat = np.ascontiguousarray(array).reshape(len(array), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])


def columns_of(table):
    """The log's rows in order of episodes, as numpy."""
    frame = pl.from_arrow(table).sort("eps_id", "t", maintain_order=True)
    out = {n: frame[n].to_numpy() for n in frame.columns}
    out["rewards"] = out["rewards"].astype(np.float32)
    return out


def script(then):
    file = pq.ParquetFile(source)
    out = None
    for i in range(file.num_row_groups):
        table = then(columns_of(file.read_row_group(i, use_threads=threads != "1")))
        out = out or writer(target, table.schema)
        out.write_table(table)
    out.close()


def stateless(columns):
    names = ["eps_id", "t", "obs", "actions", "rewards", "terminateds", "truncateds"]
    return pa.table({n: tensor(columns[n]) if columns[n].ndim > 1 else columns[n] for n in names})


def padded(columns):
    """Episodes cut into sequences of T, the last one zero-padded (episodes cut by a row group count as two)."""
    start = np.flatnonzero(np.r_[True, np.diff(columns["eps_id"]) != 0])
    length = np.diff(np.r_[start, len(columns["t"])])
    sequences = -(-length // T)
    first = np.repeat(start, sequences) + (np.arange(sequences.sum()) - np.repeat(np.cumsum(sequences) - sequences, sequences)) * T
    end = np.repeat(start + length, sequences)
    row = first[:, None] + np.arange(T)
    mask = row < end[:, None]
    row = np.where(mask, row, 0)
    out = {"eps_id": columns["eps_id"][first], "t": columns["t"][first]}
    for n in ["obs", "actions", "rewards", "terminateds", "truncateds"]:
        values = columns[n][row]
        values[~mask] = 0
        out[n] = tensor(values)
    before = np.maximum(first - 1, 0)
    state = columns["state_out"][before]
    state[np.isin(first, start)] = 0
    out["state_in"] = tensor(state)
    out["loss_mask"] = tensor(mask)
    return pa.table(out)


seen = {}


def counts(columns):
    """Each observation's reward falls with the number of times it was seen."""
    keys = columns["obs"].view(f"V{columns['obs'].itemsize * columns['obs'].shape[1]}").ravel()
    bonus = np.empty(len(keys), np.float32)
    for i, key in enumerate(keys.tolist()):
        seen[key] = n = seen.get(key, 0) + 1
        bonus[i] = 1.0 / n
    columns["rewards"] = columns["rewards"] + bonus
    return stateless(columns)


pathlib.Path(target).unlink(missing_ok=True)
{
    "pyarrow": copy_pyarrow,
    "polars": copy_polars,
    "script": lambda: script(stateless),
    "script-padded": lambda: script(padded),
    "script-counts": lambda: script(counts),
}[name]()
