"""Reads gristmill's shards and compares them with a batch, bit for bit."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# Computed columns: which of its NaNs a processor makes is no part of the promise.
COMPUTED = {"advantages", "value_targets", "returns_to_go"}
# Tell a person where a row came from; no part of the batch.
PROVENANCE = {"eps_id", "agent_id", "t", "env_t"}


def read(folder):
    """`{column: array}` of one module's shards, in the order of their names."""
    files = sorted(p for p in folder.iterdir() if p.suffix in (".parquet", ".arrow"))
    tables = [pq.read_table(f) if f.suffix == ".parquet" else pa.ipc.open_file(f).read_all() for f in files]
    columns = {}
    for table in tables:
        for name in table.column_names:
            if name not in PROVENANCE:
                chunks = table[name].chunks or [pa.array([], table[name].type)]
                columns.setdefault(name, []).extend(_array(c) for c in chunks)
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def _array(column):
    if column.null_count:
        raise ValueError("nulls in a shard")
    type_ = column.type
    if isinstance(type_, pa.FixedShapeTensorType):
        assert type_.permutation in (None, list(range(len(type_.shape))))
        return _array(column.storage).reshape(len(column), *type_.shape)
    if pa.types.is_fixed_size_list(type_):
        inner = _array(column.flatten())
        return inner.reshape(len(column), type_.list_size, *inner.shape[1:])
    return column.to_numpy(zero_copy_only=False)


def differences(got, want):
    """What differs, a line each."""
    lines = [f"missing column {k}" for k in sorted(want.keys() - got.keys())]
    lines += [f"extra column {k}" for k in sorted(got.keys() - want.keys())]
    for name in sorted(got.keys() & want.keys()):
        a, b = got[name], want[name]
        if name in COMPUTED and a.dtype.kind == b.dtype.kind == "f":
            a, b = (np.where(np.isnan(x), np.array(np.nan, x.dtype), x) for x in (a, b))
        if a.dtype != b.dtype or a.shape != b.shape:
            lines.append(f"{name}: {a.dtype}{list(a.shape)}, RLlib has {b.dtype}{list(b.shape)}")
        elif a.tobytes() != np.ascontiguousarray(b).tobytes():
            rows = [i for i in range(len(a)) if a[i].tobytes() != np.ascontiguousarray(b[i]).tobytes()]
            ours, theirs = (np.array2string(x[rows[0]], threshold=40).replace("\n", "") for x in (a, b))
            lines.append(f"{name}: {len(rows)} of {len(a)} rows differ; row {rows[0]}: {ours}, RLlib {theirs}")
    return lines
