"""`output.windows = "indexed"`: every reader of the package gives the rows that a data set has whose windows are laid out."""

import json
import pickle
import shutil

import gristmill
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from gristmill import Job, errors
from gristmill.connectors import FrameStacking, OverlappingSequences
from test_job import assert_equal

CASES = {
    "frames": ("breakout-frames", [FrameStacking(num_frames=4)], {}),
    "sequences": ("cartpole-lstm", [], {}),
    "overlap": ("cartpole-lstm", [OverlappingSequences(burn_in=4, length=8, period=4)], {}),
    "both": (
        "breakout-frames",
        [FrameStacking(num_frames=4)],
        {"stateful": True, "max_seq_len": 5, "initial_state": {"h": {"shape": [2]}}},
    ),
}
FILES = [
    {},
    {"tensors": "binary"},
    {"format": "arrow", "compression": "none"},
    {"format": "arrow", "compression": "zstd:1"},
    {"shuffle": {"seed": 3}},
]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """`written(case, windows, **output)`: a data set, converted once."""
    made = {}

    def write(case, windows, **output):
        key = case, windows, json.dumps(output, sort_keys=True)
        if key not in made:
            name, connectors, module = CASES[case]
            out = tmp_path_factory.mktemp("windows") / "shards"
            file = ROOT / "datasets" / name / "job.toml"
            job = Job(
                file,
                rl_module=Job(file).to_dict()["rl_module"] | module,
                learner={"algorithm": "PPO", "connectors": connectors},
                output={"windows": windows, "rows_per_shard": 40, **output},
            )
            job.run(output=out)
            made[key] = out
        return made[key]

    return write


@pytest.mark.parametrize("output", FILES)
@pytest.mark.parametrize("case", CASES)
def test_every_reader_gives_the_same_rows(written, case, output):
    whole = gristmill.open(written(case, "whole", **output)).module()
    indexed = gristmill.open(written(case, "indexed", **output)).module()
    assert {"obs"} <= indexed._windows.keys() and not whole._windows
    assert indexed.columns == whole.columns and list(indexed.training_columns) == list(whole.training_columns)
    assert_equal(indexed.read(), whole.read())
    rng = np.random.default_rng(0)
    for rows in [[3], [0, -1], [], rng.integers(0, len(whole), 90), slice(30, 50), slice(9, 2, -3)]:
        assert_equal(indexed.take(rows), whole.take(rows))
    assert_equal(indexed[5], whole[5])
    # Those of 50 frames are large: their memory is filled again.
    for order in [{}, {"batch_size": 50}, {"shuffle_seed": 1}, {"shuffle_seed": 1, "rank": 1, "world_size": 2}]:
        batches = zip(*(m.batches(**{"batch_size": 16, **order}) for m in (indexed, whole)), strict=True)
        for own, other in batches:
            assert_equal(own, other)
    assert_equal(pickle.loads(pickle.dumps(indexed)).read(), whole.read())


def test_columns_keep_their_order(tmp_path):
    """Also where some are laid out and others are not."""
    windows = {"type": "DecisionTransformerWindows", "context_len": 4, "fill": {"actions": -10}}
    modules = []
    for how in ("whole", "indexed"):
        file = ROOT / "datasets" / "cartpole-columns" / "job.toml"
        job = Job(file, learner={"connectors": [windows]}, output={"windows": how})
        job.run(output=tmp_path / how)
        modules.append(gristmill.open(tmp_path / how).module())
    whole, indexed = modules
    assert {"obs", "rewards"} <= indexed._windows.keys() and "actions" not in indexed._windows
    assert list(indexed.columns) == list(whole.columns)
    assert pa.table(indexed).column_names == pa.table(whole).column_names == list(whole.columns)


@pytest.mark.parametrize("output", FILES[:3])
@pytest.mark.parametrize("case", CASES)
def test_arrow_streams_are_laid_out(written, case, output):
    whole, indexed = (gristmill.open(written(case, windows, **output)).module() for windows in ("whole", "indexed"))
    ours, theirs = pa.table(indexed), pa.table(whole)
    assert ours.schema.equals(theirs.schema, check_metadata=True)
    assert ours.combine_chunks().equals(theirs.combine_chunks())
    assert pl.from_arrow(indexed).equals(pl.from_arrow(whole))


def test_other_programs_see_the_index(written):
    out = written("frames", "indexed")
    rows = pq.read_table(out / "default_policy")
    names = [f"frames_{part}" for part in ("offset", "length", "pad")]
    assert set(names) <= set(rows.column_names) and "obs" not in rows.column_names
    offset, length, pad = (rows[name].to_numpy() for name in names)
    frames = gristmill.open(written("frames", "whole")).module().read(["obs"])["obs"][..., 3]
    assert np.array_equal(length + pad, np.full(len(rows), 4))
    # The last frame of a row's window is the row's own.
    stored = pq.read_table(out / "tables" / "default_policy" / "frames")["obs"].combine_chunks().to_numpy_ndarray()
    assert np.array_equal(stored[offset + length - 1, ..., 0], frames)


def test_compiled_in_memory_rows_are_laid_out():
    job = {"learner": {"connectors": [{"type": "StackObservations", "num_frames": 2}]}}
    steps = {
        "eps_id": ["a", "a"], "obs": [[1.0], [2.0]], "actions": [0, 1], "rewards": [0.0, 0.0], "terminateds": [False, True],
    }
    indexed, whole = (Job(job, output={"windows": w}).compile(steps) for w in ("indexed", "whole"))
    own, other = indexed["default_policy"], whole["default_policy"]
    assert own.keys() == other.keys()
    assert all(np.array_equal(own[name], other[name]) for name in own)
    assert indexed["default_policy"]["obs"].tolist() == [[0.0, 1.0], [1.0, 2.0]]


def test_memory_of_batches_that_were_dropped_is_filled_again():
    """Whatever it held; and never that of a batch that somebody holds."""
    rng = np.random.default_rng(0)
    job = Job(learner={"connectors": [{"type": "FrameStacking", "num_frames": 4}]})

    def steps(seed):
        return {
            "eps_id": np.repeat(np.arange(10), 6), "obs": np.random.default_rng(seed).integers(1, 255, (60, 84, 84, 1), np.uint8),
            "actions": rng.integers(0, 2, 60), "rewards": np.zeros(60), "terminateds": np.arange(60) % 6 == 5,
        }

    def frames(job, seed):
        return job.compile(steps(seed))["default_policy"]["obs"]

    first = frames(job, 1)
    place, kept = first.ctypes.data, first[5:].copy()
    view = first[5:]
    del first
    second = frames(job, 2)
    assert second.ctypes.data != place and np.array_equal(view, kept)
    del view
    third = frames(job, 3)
    assert third.ctypes.data == place
    # A job of its own has no memory of others. The first rows of episodes are padded.
    assert np.array_equal(third, frames(Job(job.to_dict() | {"input": {}}), 3))
    assert not third[0, ..., :3].any() and third[0, ..., 3].all()


def test_a_quarter_of_the_bytes(written):
    whole, indexed = (
        sum(f.stat().st_size for f in written("frames", w, format="arrow", compression="none").rglob("*.arrow"))
        for w in ("whole", "indexed")
    )
    assert indexed < whole * 0.27


def test_statistics_are_those_of_the_steps(written):
    stats = gristmill.open(written("frames", "indexed")).module().stats
    frames = gristmill.open(written("frames", "whole")).module().read(["obs"])["obs"][..., 3]
    assert stats["obs"]["max"] == frames.max() and stats["obs"]["mean"] == pytest.approx(frames.mean())
    assert "frames_offset" not in stats


def test_an_index_that_points_out_of_its_table(written, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(written("frames", "indexed"), copy)
    file = copy / "default_policy" / "part-00001.parquet"
    rows = pq.read_table(file)
    at = rows.column_names.index("frames_offset")
    numbers = rows["frames_offset"].to_numpy().copy()
    numbers[3] = 124
    pq.write_table(rows.set_column(at, rows.field(at), pa.array(numbers)), file)
    module = gristmill.open(copy).module()
    module.take(slice(0, 40))
    for wrong in (lambda: module.take([1, 43]), lambda: module[43], lambda: module.take(slice(41, 50))):
        with pytest.raises(errors.UsageError, match=r"found the window \(offset 124, length 4, pad 0\).* 124 rows") as told:
            wrong()
        assert f"{copy / 'default_policy'}" in str(told.value) and "row 43" in str(told.value)
    with pytest.raises(Exception, match=r"part-00001.parquet, row 3"):
        pa.table(module)
    (copy / "tables" / "default_policy" / "frames" / "part-00000.parquet").unlink()
    with pytest.raises(FileNotFoundError, match="frames/part-00000.parquet"):
        gristmill.open(copy).module().take([0])
