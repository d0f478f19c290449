"""Jobs over a Ray cluster of several nodes on this machine: the same bytes as without, whatever dies meanwhile."""

import importlib.util
import os
import signal
import threading
import time
from pathlib import Path

import gristmill
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from gristmill import Job
from gristmill.connectors import CountBasedCuriosity, MeanStdFilter, NormalizeRewardsByReturnRange
from gristmill.sections import Learner, Output

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed: `make PYTHON=... test-bridges` runs this", allow_module_level=True)

import ray
from ray.cluster_utils import Cluster


@pytest.fixture(scope="module")
def cluster():
    """Three nodes with a CPU each."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    cluster.wait_for_nodes()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """40 episodes of up to 300 steps, in row groups that cut them, with observations that come again."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 300, size=40)
    obs = rng.integers(0, 4, size=(lengths.sum(), 3)).astype(np.float32)
    steps = np.concatenate([np.arange(n) for n in lengths])
    folder = tmp_path_factory.mktemp("log")
    table = pa.table({
        "eps_id": np.repeat([f"episode-{'x' * (i % 7)}{i}" for i in range(40)], lengths),
        "t": steps,
        "obs": list(obs),
        "new_obs": list(np.roll(obs, -1, axis=0)),
        "actions": rng.integers(0, 2, size=len(steps)),
        "rewards": rng.normal(size=len(steps)),
        "vf_preds": rng.normal(size=len(steps)).astype(np.float32),
        "terminateds": steps == np.repeat(lengths, lengths) - 1,
    })
    pq.write_table(table, folder / "steps.parquet", row_group_size=700)
    return folder / "steps.parquet"


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "run.json"
    }


def assert_same(found, want):
    assert list(files(found)) == list(files(want))
    for name, data in files(want).items():
        assert files(found)[name] == data, name
    assert sorted(path.name for path in found.parent.iterdir()) == sorted({found.name, want.name})


def jobs():
    small = {"rows_per_shard": 500}
    counted = [CountBasedCuriosity(intrinsic_reward_coeff=0.5)]
    whole = [MeanStdFilter(), NormalizeRewardsByReturnRange()]
    return {
        "plain": {"output": small},
        "counted": {"learner": Learner(connectors=counted), "output": small},
        "counted, and statistics of the whole set": {"learner": Learner(connectors=counted + whole), "output": small},
        "advantages": {"learner": Learner(algorithm="MARWIL", compat="rllib-2.60"), "output": small},
        "shuffled, split": {"output": Output(rows_per_shard=500, shuffle={"seed": 3}, split={"a": 0.5, "b": 0.5})},
    }


@pytest.mark.parametrize("name", jobs())
def test_the_bytes_of_one_machine(cluster, log, tmp_path, name):
    job = Job(input=log, **jobs()[name])
    one = job.run(output=tmp_path / "one", progress=False)
    seen = []
    many = gristmill.ray.run(job, output=tmp_path / "many", progress=lambda *args: seen.append(args))
    assert_same(tmp_path / "many", tmp_path / "one")
    assert many.steps_in == one.steps_in and many.modules == one.modules
    assert ("converting", {"steps": (many.steps_in,) * 2, "episodes": (0, None), "bytes": (0, None)}) in seen


def test_a_recording_of_rllib(cluster, tmp_path):
    path = ROOT / "datasets" / "cartpole-lstm" / "job.toml"
    Job(path).run(output=tmp_path / "one", progress=False)
    gristmill.ray.run(path, output=tmp_path / "many", parts=3)
    assert_same(tmp_path / "many", tmp_path / "one")


def dies_once(mark):
    """A piece in Python that kills its process, in the middle of the data, the first time that it gets there."""

    first = os.getpid()

    def doubled(episodes):
        here = any(id.endswith("x20") for id in episodes.ids)
        if here and os.getpid() != first and not Path(mark).exists():
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"rewards": episodes["rewards"] * 2}

    return gristmill.piece(doubled, name="doubled")


def test_a_worker_that_is_killed_between_rows(cluster, log, tmp_path):
    mark = tmp_path / "mark" / "died"
    mark.parent.mkdir()
    (tmp_path / "out").mkdir()
    job = Job(input=log, learner=Learner(connectors=[CountBasedCuriosity()]), output={"rows_per_shard": 500},
              pieces=[dies_once(mark)])
    gristmill.ray.run(job, output=tmp_path / "out" / "many", parts=8)
    assert mark.exists(), "nobody died"
    job.run(output=tmp_path / "out" / "one", progress=False)
    assert_same(tmp_path / "out" / "many", tmp_path / "out" / "one")


def writers(folder):
    """Processes that have a file in `folder` open."""
    out = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()).startswith(str(folder)):
                out.add(int(link.parts[2]))
        except OSError:
            pass
    return out - {os.getpid()}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc for who writes what")
@pytest.mark.parametrize("stage", ["rows-", "0-part-"])
def test_workers_that_are_killed_while_they_write(cluster, tmp_path, stage):
    """Whoever is seen writing is killed, three times."""
    rng = np.random.default_rng(1)
    n = 120_000
    table = pa.table({
        "eps_id": np.arange(n) // 500, "t": np.arange(n) % 500, "actions": np.zeros(n, np.int32),
        "obs": pa.FixedSizeListArray.from_arrays(rng.normal(size=n * 40).astype(np.float32), 40),
        "rewards": rng.normal(size=n), "terminateds": np.arange(n) % 500 == 499,
    })
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(table, folder / "steps.parquet", row_group_size=10_000)
    out = tmp_path / "out"
    out.mkdir()
    job = Job(input=folder, output={"rows_per_shard": 10_000, "compression": "zstd:9"})
    job.run(output=out / "one", progress=False)
    killed, over = [], threading.Event()

    def kill():
        while not over.is_set() and len(killed) < 3:
            for process in writers(out / f".many.gristmill-between/{stage}"):
                if process not in killed:
                    killed.append(process)
                    os.kill(process, signal.SIGKILL)
                    time.sleep(0.2)
            time.sleep(0.005)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        gristmill.ray.run(job, output=out / "many", task_options={"max_retries": 20})
    finally:
        over.set()
        killer.join()
    assert killed, "nobody was seen writing"
    assert_same(out / "many", out / "one")


def test_a_node_that_is_lost(log, cluster, tmp_path):
    node = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    seen = []

    def slow(episodes):
        time.sleep(0.3)

    def show(phase, counts):
        if phase == "converting" and counts["steps"][0] and not seen and len(cluster.list_all_nodes()) == 4:
            seen.append(counts)
            cluster.remove_node(node, allow_graceful=False)

    job = Job(input=log, output={"rows_per_shard": 500}, pieces=[gristmill.piece(slow, name="slow")])
    gristmill.ray.run(job, output=tmp_path / "many", parts=16, progress=show)
    assert seen
    job.run(output=tmp_path / "one", progress=False)
    assert_same(tmp_path / "many", tmp_path / "one")


def test_what_is_wrong_is_told_as_ever(cluster, log, tmp_path):
    table = pq.read_table(log)
    rows = table.num_rows
    broken = table.set_column(2, "obs", pa.array([None if i in (rows - 9, rows // 2) else row for i, row in
                                                 enumerate(table["obs"].to_pylist())], table["obs"].type))
    pq.write_table(broken, tmp_path / "broken.parquet", row_group_size=700)
    job = Job(input=tmp_path / "broken.parquet")
    with pytest.raises(gristmill.errors.DataError) as one:
        job.run(output=tmp_path / "out", progress=False)
    with pytest.raises(gristmill.errors.DataError) as many:
        gristmill.ray.run(job, output=tmp_path / "out", parts=8)
    assert str(many.value) == str(one.value) and many.value.hint == one.value.hint
    time.sleep(1)
    assert [path.name for path in tmp_path.iterdir()] == ["broken.parquet"], "nothing is left"

    def fails(episodes):
        raise ZeroDivisionError("of the piece")

    job = Job(input=log, pieces=[gristmill.piece(fails)])
    with pytest.raises(gristmill.errors.GristmillError, match="fails") as failed:
        gristmill.ray.run(job, output=tmp_path / "out", parts=2)
    assert "of the piece" in str(failed.value) + str(failed.value.__cause__)


def test_what_is_there_is_kept_or_replaced(cluster, log, tmp_path):
    job = Job(input=log, output={"path": str(tmp_path / "out"), "rows_per_shard": 1000})
    gristmill.ray.run(job)
    before = files(tmp_path / "out")
    with pytest.raises(gristmill.errors.UsageError, match="expected an empty output directory"):
        gristmill.ray.run(job)
    gristmill.ray.run(job, overwrite=True, format="arrow")
    assert list(files(tmp_path / "out")) != list(before)
    gristmill.ray.run(job, overwrite=True)
    assert files(tmp_path / "out") == before
