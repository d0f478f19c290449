"""Reading shards: by row, in batches, as Arrow; the order of shuffled rows, and going on where one left."""

import json
import pickle
import shutil

import duckdb
import gristmill
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from gristmill import Job, errors
from gristmill._order import permutation
from test_job import assert_equal, expected


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """`shards(format, rows_per_shard, name)`: a data set, converted once."""
    made = {}

    def make(format="parquet", rows=300, name="cartpole-columns", tensors="list", compression="zstd:1"):
        key = format, rows, name, tensors, compression
        if key not in made:
            out = tmp_path_factory.mktemp("shards") / "shards"
            output = {"rows_per_shard": rows, "tensors": tensors, "compression": compression}
            Job(ROOT / "datasets" / name / "job.toml", output=output).run(output=out, format=format)
            made[key] = out
        return made[key]

    return make


@pytest.mark.parametrize(("format", "compression"), [("parquet", "zstd:1"), ("arrow", "zstd:1"), ("arrow", "none")])
@pytest.mark.parametrize("tensors", ["list", "binary"])
@pytest.mark.parametrize("name", ["cartpole-columns", "cartpole-lstm", "cartpole-dict", "breakout-frames"])
def test_everything_is_read(shards, format, compression, name, tensors):
    rows = 7 if name == "breakout-frames" else 300
    module = gristmill.open(shards(format, rows, name, tensors, compression)).module()
    assert_equal(module.read(), expected(name))
    assert len(module) == len(next(iter(expected(name).values())))


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_rows_by_number(shards, format):
    data = gristmill.open(shards(format))
    module = data["default_policy"]
    whole = module.read([*module.training_columns, "eps_id", "t"])
    rng = np.random.default_rng(0)
    for rows in [[5], [0, 1663, 300, 299], [-1, -1664], [], rng.integers(0, 1664, 500), slice(290, 310), slice(9, 2, -3)]:
        taken = module.take(rows, ["obs", "eps_id", "terminateds"])
        for name, column in taken.items():
            assert np.array_equal(column, whole[name][rows if isinstance(rows, slice) else np.asarray(rows, int)]), name
            assert column.flags.writeable
    one = module[-2]
    assert one["obs"].shape == (4,) and np.array_equal(one["obs"], whole["obs"][-2])
    assert sum(1 for _ in module) == 1664
    for wrong in [1664, -1665, [0, 1664]]:
        with pytest.raises(IndexError, match="1664 rows"):
            module.take(wrong) if isinstance(wrong, list) else module[wrong]
    with pytest.raises(errors.UnknownNameError, match="expected one of: eps_id, t, obs") as raised:
        module.take([0], ["nope"])
    assert isinstance(raised.value, KeyError) and "\n" in str(raised.value)
    with pytest.raises(KeyError, match="default_policy"):
        data["other"]
    with pytest.raises(TypeError):
        module.take([0.5])


@pytest.mark.parametrize(
    ("format", "compression", "mapped"), [("arrow", "none", True), ("arrow", "zstd:1", False), ("parquet", "none", False)]
)
def test_uncompressed_arrow_shards_are_not_copied(shards, format, compression, mapped):
    """Their columns lie in the file's map, so that the cache has nothing to count; others are decoded into it."""
    module = gristmill.open(shards(format, compression=compression)).module()
    view = module.take(slice(10, 20), ["obs"], copy=False)["obs"]
    assert not view.flags.owndata and not view.flags.writeable
    assert module._cached == (0 if mapped else 300 * 4 * 4)
    mine = module.take(slice(10, 20), ["obs"])["obs"]
    mine[:] = 0
    assert np.array_equal(view, module.take(slice(10, 20), ["obs"])["obs"]) and view.any()


def test_the_manifest_is_there(shards):
    data = gristmill.open(shards())
    assert data.modules == ["default_policy"] and data.rows == 1664 and len(data) == 1
    assert data.manifest["counts"]["episodes_in"] == 28
    assert data.stats["default_policy"]["rewards"]["mean"] == 1.0
    assert data.module().columns["obs"].shape == (4,)


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_arrow_stream(shards, format):
    module = gristmill.open(shards(format)).module()
    table = pa.table(module)
    assert table.num_rows == 1664 and table.column_names == list(module.columns)
    assert isinstance(table.schema.field("obs").type, pa.FixedShapeTensorType)
    assert np.array_equal(table["obs"].combine_chunks().to_numpy_ndarray(), module.read(["obs"])["obs"])
    assert pl.DataFrame(pa.table(gristmill.open(shards(format)))).height == 1664
    assert duckdb.from_arrow(table).sum("rewards").fetchall()[0][0] == 1664


def rows_of(batches):
    return [list(zip(b["eps_id"].tolist(), b["t"].tolist(), strict=True)) for b in batches]


def walk(module, **options):
    return module.batches(columns=["eps_id", "t", "obs"], **options)


def test_batches_in_order(shards):
    module = gristmill.open(shards()).module()
    whole = module.read(["eps_id", "t"])
    found = [row for batch in rows_of(walk(module, batch_size=100)) for row in batch]
    assert found == list(zip(whole["eps_id"].tolist(), whole["t"].tolist(), strict=True))
    assert [len(b) for b in rows_of(walk(module, batch_size=100))] == [100] * 16 + [64]
    assert len(walk(module, batch_size=100)) == 17 and len(walk(module, batch_size=100, drop_last=True)) == 16


def test_the_order_depends_on_seed_and_epoch_alone(shards):
    module = gristmill.open(shards()).module()
    orders = {}
    for seed in (0, 1):
        for epoch in (0, 1):
            for window in (None, 100, 700):
                rows = sum(rows_of(walk(module, batch_size=64, shuffle_seed=seed, epoch=epoch, window_rows=window)), [])
                assert len(set(rows)) == 1664
                orders[seed, epoch, window] = tuple(rows)
    assert len(set(orders.values())) == len(orders)
    again = rows_of(walk(gristmill.open(shards("arrow")).module(), batch_size=1000, shuffle_seed=1, epoch=1))
    assert tuple(sum(again, [])) == orders[1, 1, None]
    # The same on every machine and with every NumPy: from a run of this code, to be noticed if it changes.
    assert permutation(8, 7, 0).tolist() == PINNED


PINNED = [3, 7, 1, 6, 4, 0, 5, 2]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_share_the_rows(shards, world, drop_last):
    module = gristmill.open(shards()).module()
    options = {"batch_size": 50, "shuffle_seed": 3, "drop_last": drop_last}
    ranks = [walk(module, rank=r, world_size=world, **options) for r in range(world)]
    parts = [rows_of(rank) for rank in ranks]
    assert [len(part) for part in parts] == [len(walk(module, rank=r, world_size=world, **options)) for r in range(world)]
    rows = [row for part in parts for batch in part for row in batch]
    assert len(rows) == len(set(rows)) == (1664 - 1664 % (50 * world) if drop_last else 1664)
    if drop_last:
        assert len({len(part) for part in parts}) == 1


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (4, 1)])
def test_going_on_with_another_world_size(shards, seed, before, after):
    module = gristmill.open(shards()).module()
    whole = sum(rows_of(walk(module, batch_size=32, shuffle_seed=seed)), [])
    ranks = [walk(module, batch_size=32, shuffle_seed=seed, rank=r, world_size=before) for r in range(before)]
    walks = [iter(rank) for rank in ranks]
    taken = [row for _ in range(5) for rank in walks for row in rows_of([next(rank)])[0]]
    states = [rank.state_dict() for rank in ranks]
    assert all(state == states[0] for state in states)
    assert taken == whole[: len(taken)]
    state = pickle.loads(pickle.dumps(states[0]))
    rest = []
    for r in range(after):
        rank = walk(module, batch_size=20, shuffle_seed=seed, rank=r, world_size=after)
        rank.load_state_dict(state)
        rest.append(rows_of(rank))
    assert sorted(row for part in rest for batch in part for row in batch) == sorted(whole[len(taken) :])
    first = [row for part in rest for row in part[0]]
    assert first == whole[len(taken) : len(taken) + len(first)]


def test_epochs_follow_each_other(shards):
    batches = walk(gristmill.open(shards()).module(), batch_size=500, shuffle_seed=1)
    first, second = rows_of(batches), rows_of(batches)
    assert first != second and batches.epoch == 2
    batches.set_epoch(1)
    assert rows_of(batches) == second


def test_a_state_of_something_else_is_refused(shards):
    module = gristmill.open(shards()).module()
    state = module.batches(batch_size=5, shuffle_seed=1).state_dict()
    for other in [
        module.batches(batch_size=5, shuffle_seed=2),
        module.batches(batch_size=5, shuffle_seed=1, window_rows=3),
        gristmill.open(shards(name="cartpole-lstm")).module().batches(batch_size=5, shuffle_seed=1),
    ]:
        with pytest.raises(errors.UsageError, match="would not go on"):
            other.load_state_dict(state)
    for wrong in [{"batch_size": 0}, {"batch_size": 1, "rank": 1}, {"batch_size": 1, "window_rows": 0}]:
        with pytest.raises(ValueError, match="expected"):
            module.batches(**wrong)


def test_a_module_goes_to_other_processes(shards):
    module = pickle.loads(pickle.dumps(gristmill.open(shards()).module()))
    assert module[3]["obs"].shape == (4,)


def test_row_groups_are_decoded_once_and_where_a_rank_has_rows(shards, monkeypatch):
    """Shuffled in one window, with no cache to speak of."""
    decoded = []
    data = gristmill.open(shards(rows=20), cache_bytes=1)
    module = data.module()
    read = gristmill.dataset.Module._raw_group
    monkeypatch.setattr(module, "_raw_group", lambda *args: decoded.append(args[0]) or read(module, *args))
    options = {"batch_size": 16, "shuffle_seed": 7, "columns": ["obs"]}
    whole = np.concatenate([batch["obs"] for batch in module.batches(**options)])
    assert sorted(decoded) == list(range(84)), "1664 rows in groups of 20"
    decoded.clear()
    # Of 26 ranks one takes 64 rows, which cannot be in all 84 groups.
    some = np.concatenate([batch["obs"] for batch in module.batches(**options, rank=3, world_size=26)])
    order = permutation(84, 7, 0, 0)
    numbers = np.concatenate([np.arange(group * 20, min(1664, group * 20 + 20)) for group in order])
    numbers = numbers[permutation(1664, 7, 0, 1)]
    assert np.array_equal(whole, module.read(["obs"])["obs"][numbers])
    own = np.concatenate([numbers[start : start + 16] for start in range(3 * 16, 1664, 26 * 16)])
    assert np.array_equal(some, module.read(["obs"])["obs"][own])
    needed = set(own // 20)
    assert len(needed) < 84 and set(decoded[: len(needed)]) == needed


def test_batches_under_way_go_to_other_processes(shards):
    batches = gristmill.open(shards()).batches(batch_size=100, shuffle_seed=1)
    next(iter(batches))
    other = pickle.loads(pickle.dumps(batches))
    for a, b in zip(batches, other, strict=True):
        assert np.array_equal(a["obs"], b["obs"])


def test_a_small_cache_reads_the_same(shards):
    few = gristmill.open(shards(), cache_bytes=1).module()
    many = gristmill.open(shards()).module()
    for a, b in zip(few.batches(batch_size=100, shuffle_seed=2), many.batches(batch_size=100, shuffle_seed=2), strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_damage_is_told(shards, tmp_path):
    for format in ("parquet", "arrow"):
        copy = tmp_path / format
        shutil.copytree(shards(format), copy)
        file = next(copy.rglob("part-00002.*"))
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(errors.UsageError, match="part-00002"):
            gristmill.open(copy).read()
        file.unlink()
        with pytest.raises(FileNotFoundError, match="part-00002"):
            gristmill.open(copy).read()


def out_of_the_folder(module, folder):
    file = module["shards"][0]["file"]
    shutil.copy(folder / file, folder.parent / "part-00000.parquet")
    module["shards"][0]["file"] = "../part-00000.parquet"


def of_shape(module, shape):
    next(column for column in module["columns"] if column["name"] == "obs")["shape"] = shape


def with_a_link(module, folder):
    file = folder / module["shards"][0]["file"]
    file.rename(folder.parent / "elsewhere.parquet")
    file.symlink_to(folder.parent / "elsewhere.parquet")


def with_rows(module, rows):
    module["rows"] += rows - module["shards"][0]["rows"]
    module["shards"][0]["rows"] = rows


def written_anew(module, folder, change):
    """The first shard with its table changed."""
    file = folder / module["shards"][0]["file"]
    pq.write_table(change(pq.read_table(file)), file)


def with_column(table, name, column):
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at).with_type(column.type).with_nullable(True), column)


def no_boolean(table):
    """A row of a mask stored as bytes, with a byte that is neither 0 nor 1."""
    rows = table["loss_mask"].to_pylist()
    rows[3] = rows[3][:2] + b"\7" + rows[3][3:]
    return with_column(table, "loss_mask", pa.array(rows, table.schema.field("loss_mask").type))


def a_null(table):
    return with_column(table, "rewards", pa.array([None] + table["rewards"].to_pylist()[1:], pa.float32()))


@pytest.mark.parametrize(
    ("data", "change", "text"),
    [
        ({}, out_of_the_folder, "expected one inside the data set"),
        ({}, lambda m, d: of_shape(m, [2**40, 2**40]), "expected at most 1920 MiB.*column `obs`"),
        ({}, lambda m, d: of_shape(m, [2, 2]), "found .*, expected .*part-00000.*column `obs`"),
        ({}, with_a_link, "found a link, expected a shard.*part-00000"),
        ({}, lambda m, d: with_rows(m, 299), "found 300 rows, the manifest says 299.*part-00000"),
        ({}, lambda m, d: m.update(rows=1700), "found 1664 rows in all shards, the manifest says 1700"),
        ({}, lambda m, d: m["columns"].pop(), "found the columns .*, expected .*part-00000"),
        ({}, lambda m, d: written_anew(m, d, a_null), "found null, expected a value.*part-00000.*row 0, column `rewards`"),
        ({"name": "cartpole-lstm", "tensors": "binary"}, lambda m, d: written_anew(m, d, no_boolean),
         "found the byte 7, expected a boolean.*part-00000.*row 3, column `loss_mask`"),
    ],
)
@pytest.mark.parametrize("read", [lambda module: module.read(), pa.table], ids=["read", "stream"])
def test_what_no_gristmill_writes_is_refused(shards, tmp_path, data, change, text, read):
    """A data set is input like any other: it is held to its manifest, and that to what gristmill writes."""
    folder = tmp_path / "shards"
    shutil.copytree(shards(**data), folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest["modules"]["default_policy"], folder)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    # The Arrow stream's errors go through pyarrow, which has classes of its own.
    kinds = errors.UsageError if read is not pa.table else (errors.UsageError, OSError, pa.ArrowInvalid)
    with pytest.raises(kinds, match=f"(?s){text}") as raised:
        read(gristmill.open(folder).module())
    assert str(folder) in str(raised.value)


def test_a_module_without_rows(shards, tmp_path):
    folder = tmp_path / "shards"
    shutil.copytree(shards(), folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["modules"]["default_policy"].update(rows=0, shards=[])
    (folder / "manifest.json").write_text(json.dumps(manifest))
    module = gristmill.open(folder).module()
    assert module.read()["obs"].shape == (0, 4) and list(module.batches(batch_size=3)) == []
    table = pa.table(module)
    assert table.num_rows == 0 and table.schema.equals(pa.table(gristmill.open(shards()).module()).schema)


def test_a_module_of_a_split_data_set_is_named_with_its_part(tmp_path):
    job = Job(ROOT / "datasets" / "cartpole-columns" / "job.toml", output={"split": {"val": 0.2, "train": 0.8}})
    job.run(output=tmp_path / "cp", progress=False)
    data = gristmill.open(tmp_path / "cp")
    both = "'train/default_policy' or 'val/default_policy'"
    for name in ["default_policy", "default_polic"]:
        with pytest.raises(errors.UnknownNameError) as told:
            data.module(name)
        assert told.value.hint == f"the data set is split: name the part, too, {both}"
    with pytest.raises(errors.UnknownNameError, match="did you mean 'val/default_policy'?"):
        data.module("vall/default_policy")
    with pytest.raises(errors.MissingFileError, match="this is a folder of the data set .*cp: open that, module \"train/def"):
        gristmill.open(tmp_path / "cp" / "train")
    with pytest.raises(errors.MissingFileError, match="the data set is in .*cp"):
        gristmill.open(tmp_path)


def test_columns_are_read_and_not_indexed(shards):
    module = gristmill.open(shards()).module()
    with pytest.raises(TypeError, match=r"hint: a column as a whole is \.read\(\)\['obs'\]"):
        module["obs"]
    with pytest.raises(errors.UnknownNameError, match="did you mean 'obs'"):
        module["obbs"]
