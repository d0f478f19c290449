"""Shards open without gristmill, and every reader sees the train batch that RLlib made of the same recording."""

import json

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from conftest import DATASETS, ROOT
from safetensors.numpy import load_file

PROVENANCE = ["eps_id", "t"]


def expected(name):
    batch = load_file(ROOT / "datasets" / name / "expected.safetensors")
    return {key.removeprefix("default_policy/"): value for key, value in batch.items()}


def shapes(folder):
    """Row shapes by column, from the manifest."""
    manifest = json.loads((folder.parent / "manifest.json").read_text())
    return {c["name"]: tuple(c["shape"]) for c in manifest["modules"]["default_policy"]["columns"]}


def assert_equal(found, want):
    assert sorted(found) == sorted(want)
    for name, value in want.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        # As bytes: NaN equals NaN, and -0.0 does not equal 0.0.
        assert np.ascontiguousarray(found[name]).tobytes() == value.tobytes(), name


def arrow_batch(table):
    batch = {}
    for name in table.column_names:
        if name in PROVENANCE:
            continue
        column = table[name].combine_chunks()
        if isinstance(column.type, pa.FixedShapeTensorType):
            if pa.types.is_boolean(column.type.value_type):
                # pyarrow has no view of bits as an array; the values come out one by one.
                flat = column.storage.flatten().to_numpy(zero_copy_only=False)
                batch[name] = flat.reshape(len(column), *column.type.shape)
            else:
                batch[name] = column.to_numpy_ndarray()
        else:
            batch[name] = column.to_numpy(zero_copy_only=False)
    return batch


@pytest.mark.parametrize("compat", ["correct", "rllib-2.60"])
@pytest.mark.parametrize("name", DATASETS)
def test_pyarrow(converted, name, compat):
    assert_equal(arrow_batch(pq.read_table(converted(name, compat=compat))), expected(name))


@pytest.mark.parametrize("name", DATASETS)
def test_arrow_ipc(converted, name):
    table = ds.dataset(converted(name, "arrow"), format="ipc").to_table()
    assert_equal(arrow_batch(table), expected(name))


@pytest.mark.parametrize("name", DATASETS)
def test_polars(converted, name):
    folder = converted(name)
    frame, shape = pl.read_parquet(folder / "*.parquet"), shapes(folder)
    batch = {c: frame[c].to_numpy().reshape(-1, *shape[c]) for c in frame.columns if c not in PROVENANCE}
    assert_equal(batch, expected(name))


@pytest.mark.parametrize("name", DATASETS)
def test_duckdb(converted, name):
    folder = converted(name)
    shape = shapes(folder)
    rows = duckdb.connect().sql(f"SELECT * EXCLUDE (eps_id, t) FROM '{folder}/*.parquet'").fetchnumpy()
    batch = {}
    for column, values in rows.items():
        values = np.stack([np.asarray(v) for v in np.ma.getdata(values)]) if shape[column] else np.ma.getdata(values)
        batch[column] = values.reshape(-1, *shape[column])
    assert_equal(batch, expected(name))


@pytest.mark.parametrize("name", DATASETS)
def test_nothing_is_null(converted, name):
    table = pq.read_table(converted(name))
    assert all(table[c].null_count == 0 for c in table.column_names)
    for column in PROVENANCE:
        assert column in table.column_names
