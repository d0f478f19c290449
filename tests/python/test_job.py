"""The package's jobs: read, planned, run, compiled; and what is said when they cannot be."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import gristmill
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import DATASETS, ROOT, binary, gristmill as command
from gristmill import Job, _episodes, errors, sections
from gristmill.connectors import ComputeReturnsToGo, FrameStacking
from safetensors.numpy import load_file

STEPS = {
    "eps_id": ["a", "a", "a", "b", "b"],
    "t": [0, 1, 2, 0, 1],
    "obs": [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0], [8.0, 9.0]],
    "actions": [0, 1, 0, 1, 0],
    "rewards": [1.0, 2.0, 3.0, 4.0, 5.0],
    "terminateds": [False, False, True, False, True],
}


def expected(name):
    batch = load_file(ROOT / "datasets" / name / "expected.safetensors")
    return {key.removeprefix("default_policy/"): value for key, value in batch.items()}


def assert_equal(found, want):
    found = {name: column for name, column in found.items() if name not in ("eps_id", "t")}
    assert sorted(found) == sorted(want)
    for name, value in want.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        assert np.ascontiguousarray(found[name]).tobytes() == value.tobytes(), name


def recording(name):
    """A recording as one table, as pyarrow has it without Ray's types."""
    files = sorted((ROOT / "datasets" / name / "input").glob("*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files])


@pytest.mark.parametrize("name", DATASETS)
def test_run_gives_what_rllib_gives(name, tmp_path):
    report = Job(ROOT / "datasets" / name / "job.toml").run(output=tmp_path / "shards", progress=False)
    assert report.output == str(tmp_path / "shards")
    data = gristmill.open(report.output)
    assert_equal(data.read(), expected(name))
    assert report.modules["default_policy"]["rows"] == data.rows


@pytest.mark.parametrize("name", DATASETS)
def test_compile_gives_what_rllib_gives(name):
    job = Job(ROOT / "datasets" / name / "job.toml")
    batch = job.compile(recording(name))
    assert_equal(batch["default_policy"], expected(name))
    assert batch.report.episodes_in > 0


def test_the_same_bytes_as_the_command(tmp_path):
    job = ROOT / "datasets" / "cartpole-lstm" / "job.toml"
    command("convert", job, "--output", tmp_path / "a", "--quiet")
    Job(job).run(output=tmp_path / "b", threads=1)
    Job(json.loads(json.dumps(Job(job).to_dict())) | {"input": {"paths": [str(job.parent / "input")]}}).run(
        output=tmp_path / "c"
    )
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*.parquet"))
    assert files
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "c" / file).read_bytes()
    assert (tmp_path / "a/manifest.json").read_bytes() == (tmp_path / "b/manifest.json").read_bytes()


def test_tables_of_all_kinds_compile_alike():
    table = pa.table(STEPS)
    want = Job().compile(STEPS)["default_policy"]
    assert want["obs"].dtype == np.float32 and want["obs"].shape == (5, 2)
    columns = {name: np.asarray(column) for name, column in STEPS.items()}
    kinds = {
        "pyarrow": table,
        "chunks": pa.concat_tables([table.slice(0, 2), table.slice(2)]),
        "batch": table.to_batches()[0],
        "reader": pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=2)),
        "polars": pl.DataFrame(STEPS),
        "polars array": pl.DataFrame(STEPS, schema_overrides={"obs": pl.Array(pl.Float64, 2)}),
        "arrays": columns,
        "strided": columns | {"obs": np.asfortranarray(columns["obs"])},
        "masked": columns | {"actions": np.ma.MaskedArray(columns["actions"], mask=False)},
    }
    for kind, data in kinds.items():
        found = Job().compile(data)["default_policy"]
        assert list(found) == list(want), kind
        for name in want:
            assert np.array_equal(found[name], want[name]), (kind, name)


def test_dict_observations_and_the_last_observation():
    steps = {
        "eps_id": [7, 7, 7],
        "obs": {"pos": np.arange(6, dtype=np.float32).reshape(3, 2), "mode": np.array([1, 0, 1])},
        "actions": [1, 0, None],
        "rewards": [0.5, 0.25, None],
        "truncateds": [False, True, None],
    }
    batch = Job(learner={"algorithm": "BC"}).compile(steps)["default_policy"]
    assert batch["obs/pos"].tolist() == [[0, 1], [2, 3]]
    assert batch["new_obs/pos"].tolist() == [[2, 3], [4, 5]]
    assert batch["eps_id"].tolist() == [7, 7] and batch["eps_id"].dtype == np.int64
    assert batch["truncateds"].tolist() == [False, True]


def test_nothing_is_copied_on_the_way_out():
    batch = Job().compile(STEPS)["default_policy"]
    for column in batch.values():
        if column.dtype != object:
            assert not column.flags.owndata and not column.flags.writeable and column.flags.c_contiguous
    kept = batch["obs"]
    want = kept.copy()
    del batch
    assert np.array_equal(kept, want)


def test_a_job_of_dataclasses(tmp_path):
    job = Job(
        input=sections.Input(paths=["x/*.parquet"], unfinished="truncate"),
        rl_module=sections.RlModule(stateful=True, max_seq_len=4),
        learner=sections.Learner(algorithm="PPO", connectors=[ComputeReturnsToGo(gamma=0.5)]),
        output=sections.Output(path=str(tmp_path), rows_per_shard=10, split={"train": 0.5, "val": 0.5}),
    )
    tree = job.to_dict()
    assert tree["input"]["unfinished"] == "truncate" and tree["output"]["rows_per_shard"] == 10
    assert tree["learner"]["connectors"] == [{"type": "ComputeReturnsToGo", "gamma": 0.5}]
    assert tree["rl_module"]["max_seq_len"] == 4
    batch = Job(learner=sections.Learner(connectors=[ComputeReturnsToGo(gamma=0.5)])).compile(STEPS)
    assert batch["default_policy"]["returns_to_go"].tolist() == [2.75, 3.5, 3.0, 6.5, 5.0]


def test_every_connector_has_a_dataclass():
    listed = {line for line in command("connectors").splitlines() if line.isidentifier()}
    assert len(listed) > 20 and listed == set(gristmill.connectors.__all__)


def test_sections_stand_over_a_file(tmp_path):
    path = ROOT / "datasets" / "cartpole-columns" / "job.toml"
    job = Job(path, learner={"connectors": [ComputeReturnsToGo(gamma=0.9)]}, output=tmp_path / "shards")
    assert "returns_to_go" in gristmill.open(job.run().output).module().columns


def test_plan_foretells(tmp_path):
    job = Job(ROOT / "datasets" / "cartpole-columns" / "job.toml")
    plan = job.plan(output=tmp_path / "shards")
    report = job.run(output=tmp_path / "shards")
    told = [tuple(c) for c in plan["modules"]["default_policy"]]
    written = [tuple(c) for c in report.modules["default_policy"]["columns"]]
    assert told == [c for c in written if c[0] not in ("eps_id", "t")] and plan["files"] == 4


@pytest.mark.parametrize(
    ("call", "kinds", "text"),
    [
        (lambda d: Job(d / "no.toml"), (errors.MissingFileError, FileNotFoundError), "cannot read the job"),
        (lambda d: Job(input="nowhere/").run(), (errors.MissingFileError, FileNotFoundError), "there is no file"),
        (lambda d: Job({"learner": {"compt": 1}}), (errors.UsageError, ValueError), "did you mean `compat`?"),
        (lambda d: Job(learner={"connectors": [{"type": "X"}]}), (errors.UsageError, ValueError), "X"),
        (lambda d: Job().run(), (errors.UsageError, ValueError), "input"),
        (lambda d: Job().plan(), (errors.UsageError, ValueError), "input"),
        (lambda d: Job().compile(pa.table(STEPS).slice(0, 0)), (errors.UsageError, ValueError), "found no rows"),
        (lambda d: Job().compile({"eps_id": [1]}), (errors.UsageError, ValueError), "obs"),
        (lambda d: Job().compile({"a": [1, 2], "b": [1]}), (errors.UsageError, ValueError), "found 1 rows, expected 2"),
        (lambda d: Job().compile({"a": [1j]}), (errors.UsageError, ValueError), "column `a`"),
        (lambda d: Job().compile([]), (errors.UsageError, ValueError), "no episodes"),
        (lambda d: Job().compile(3), (TypeError,), "expected a table"),
        (lambda d: Job().compile([1]), (TypeError,), "found a list of int"),
        (lambda d: Job().compile(STEPS | {"t": [0, 2, 3, 0, 1]}), (errors.DataError, ValueError), 'episode "a"'),
        (lambda d: Job(learner={"algorithm": "BC"}).compile(STEPS), (errors.UsageError, ValueError), "new_obs"),
        (lambda d: Job().run(memory_limit="4 gallons"), (errors.UsageError, ValueError), "4GiB"),
        (lambda d: Job(input=d).run(memory_limit="10MB"), (errors.UsageError, ValueError), "a memory limit of 10 MB"),
        (lambda d: Job(input=d).run(memory_limit="63m"), (errors.UsageError, ValueError), "a memory limit of 63 MiB"),
        (lambda d: gristmill.open(d), (errors.MissingFileError, FileNotFoundError), "no data set"),
    ],
)
def test_exceptions_fit_and_say_what_the_command_says(tmp_path, call, kinds, text):
    with pytest.raises(kinds[0]) as raised:
        call(tmp_path)
    assert all(isinstance(raised.value, kind) for kind in kinds)
    assert text in str(raised.value)
    if kinds[0] is not TypeError:
        assert isinstance(raised.value, errors.GristmillError)


def test_the_message_is_the_command_s(tmp_path):
    (tmp_path / "job.toml").write_text("[input]\npaths = ['x']\nlayot = 1\n")
    done = subprocess.run([binary(), "plan", "job.toml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        with pytest.raises(errors.UsageError) as raised:
            Job("job.toml")
    finally:
        os.chdir(before)
    assert str(raised.value) in done.stderr


def test_what_is_there_is_not_overwritten(tmp_path):
    job = Job(ROOT / "datasets" / "cartpole-columns" / "job.toml")
    job.run(output=tmp_path / "shards")
    with pytest.raises(errors.UsageError) as raised:
        job.run(output=tmp_path / "shards")
    assert raised.value.hint == "overwrite=True replaces it; or choose another output"
    assert str(raised.value).endswith(f"\n  hint: {raised.value.hint}")
    job.run(output=tmp_path / "shards", overwrite=True)
    job.run(output=tmp_path / "shards", resume=True)
    with pytest.raises(ValueError, match="expected one of them"):
        job.run(output=tmp_path / "shards", overwrite=True, resume=True)


def test_progress_is_told(tmp_path):
    seen = []
    job = Job(ROOT / "datasets" / "cartpole-columns" / "job.toml")
    job.run(output=tmp_path / "shards", progress=lambda phase, counts: seen.append((phase, counts)))
    phase, counts = seen[-1]
    assert phase == "converting" and counts["steps"] == (1664, 1664) and counts["episodes"][0] == 28
    with pytest.raises(ZeroDivisionError):
        job.run(output=tmp_path / "other", progress=lambda *_: 1 / 0)


def test_ctrl_c_stops_a_run_and_leaves_nothing_finished(tmp_path):
    """A log that takes a while, and a signal soon after the start."""
    rows = 3_000_000
    steps = np.arange(rows)
    pq.write_table(
        pa.table({
            "eps_id": steps // 1000, "t": steps % 1000, "actions": steps % 2, "rewards": np.ones(rows),
            "obs": pa.FixedSizeListArray.from_arrays(np.zeros(rows * 8, np.float32), 8),
            "terminateds": steps % 1000 == 999,
        }),
        tmp_path / "log.parquet", row_group_size=20_000,
    )
    script = textwrap.dedent(f"""
        import gristmill
        def show(phase, counts):
            print(phase, flush=True)
        gristmill.Job(input={str(tmp_path / "log.parquet")!r}).run(
            output={str(tmp_path / "shards")!r}, progress=show, threads=1)
    """)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.stdout.readline().strip() not in ("converting", ""):
        pass
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert "KeyboardInterrupt" in told, told
    assert time.monotonic() - asked < 20
    assert not (tmp_path / "shards" / "manifest.json").exists()
    with pytest.raises(errors.MissingFileError):
        gristmill.open(tmp_path / "shards")


def test_other_threads_run_meanwhile():
    """The interpreter's lock is free while Rust works: another thread goes on counting. No thread is asked to give the
    lock away here, so the other one counts only if it is given."""
    rows = 200_000
    steps = np.arange(rows)
    table = _episodes.table({
        "eps_id": steps // 1000, "t": steps % 1000, "obs": np.ones((rows, 8)), "actions": steps % 2,
        "rewards": np.ones(rows), "terminateds": steps % 1000 == 999,
    })
    job = Job()
    counted, stop, interval = [0], threading.Event(), sys.getswitchinterval()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    sys.setswitchinterval(60)
    try:
        thread.start()
        before = counted[0]
        job.compile(table)
        after = counted[0]
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert after - before > 10


def test_importing_needs_numpy_only():
    code = (
        "import sys, gristmill, gristmill.connectors; "
        "bad = [m for m in ('torch', 'pandas', 'pyarrow', 'polars', 'ray', 'tensordict', 'd3rlpy', 'tqdm') "
        "if m in sys.modules]; assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_piece_s_mistake_has_its_place():
    """RLlib's FrameStacking is for images; this one stacks whatever it gets, so the mistake is in its option."""
    with pytest.raises(errors.UsageError, match=r"learner.connectors\[0\]"):
        Job(learner=sections.Learner(connectors=[FrameStacking(num_frames=0)])).compile(STEPS)


def test_no_threads_are_refused(tmp_path):
    for threads in [0, -1]:
        with pytest.raises(errors.UsageError, match="expected a whole number of at least 1"):
            Job().compile(STEPS, threads=threads)
        with pytest.raises(errors.UsageError, match="expected a whole number of at least 1"):
            Job(input=str(tmp_path)).run(threads=threads)


def test_a_job_in_python_is_not_called_a_file():
    with pytest.raises(errors.UsageError) as told:
        Job().compile({"episode": STEPS["eps_id"], **{k: v for k, v in STEPS.items() if k != "eps_id"}})
    assert 'under [input], which column is which: `columns = { eps_id = "episode" }`' in told.value.hint
    assert "file" not in told.value.hint
    with pytest.raises(errors.MissingFileError, match="without a job file"):
        Job(input="no-such-folder/x.parquet").plan()
