"""Connector pieces in Python."""

import json
import threading

import gristmill
import numpy as np
import pytest
from conftest import ROOT
from gristmill import Job, errors, piece, sections
from gristmill.connectors import ComputeReturnsToGo
from test_job import STEPS, assert_equal, recording


@piece
def doubled(episodes):
    return {"rewards": episodes["rewards"] * 2}


def test_a_piece_changes_what_later_pieces_see():
    job = Job(learner={"connectors": [doubled, ComputeReturnsToGo(gamma=1.0)]})
    batch = job.compile(STEPS)["default_policy"]
    assert batch["rewards"].tolist() == [2, 4, 6, 8, 10]
    assert batch["returns_to_go"].tolist() == [12, 10, 6, 18, 10]
    assert Job(pieces=[doubled, doubled]).compile(STEPS)["default_policy"]["rewards"].tolist() == [4, 8, 12, 16, 20]


def test_a_piece_sees_whole_columns():
    seen = {}

    @piece
    def look(episodes):
        seen.update(
            columns=list(episodes), offsets=episodes.offsets.tolist(), ids=episodes.ids, count=episodes.count,
            lengths=episodes.lengths.tolist(), terminated=episodes.terminated.tolist(),
            obs=episodes["obs"].copy(), writeable=episodes["obs"].flags.writeable, second=episodes["obs"][episodes.rows(1)],
        )

    Job(pieces=[look]).compile(STEPS)
    assert seen["columns"] == ["obs", "actions", "rewards"]
    assert seen["offsets"] == [0, 3, 5] and seen["ids"] == ["a", "b"] and seen["lengths"] == [3, 2]
    assert seen["count"] == 2 and seen["terminated"] == [True, True] and not seen["writeable"]
    assert seen["second"].tolist() == [[6, 7], [8, 9]]


def test_a_piece_adds_columns_and_changes_types(tmp_path):
    @piece(columns={"upright": ("bool", []), "obs": ("float32", [3])}, config={"scale": 2.0}, name="Features")
    def features(episodes):
        def wider(obs):
            return np.concatenate([obs, obs[:, :1] * 2], axis=1)

        last = {"obs": wider(episodes.last_obs["obs"])}
        return {"upright": episodes["obs"][:, 2] > 0, "obs": wider(episodes["obs"])[:, :3], "last_obs": {
            "obs": last["obs"][:, :3]}}

    path = ROOT / "datasets" / "cartpole-columns" / "job.toml"
    report = Job(path, pieces=[features]).run(output=tmp_path / "shards")
    data = gristmill.open(report.output).module()
    assert data.columns["upright"].dtype == "bool" and data.columns["obs"].shape == (3,)
    plain = Job(path)
    plain.run(output=tmp_path / "plain")
    obs = gristmill.open(tmp_path / "plain").read(["obs"])["obs"]
    assert np.array_equal(data.read(["obs"])["obs"], obs[:, :3])
    assert np.array_equal(data.read(["upright"])["upright"], obs[:, 2] > 0)
    manifest = json.loads((tmp_path / "shards" / "manifest.json").read_text())
    assert manifest["pipeline"][0] == {"type": "Features", "scale": 2.0}


def test_run_and_compile_and_threads_agree(tmp_path):
    @piece
    def scaled(episodes):
        out = np.empty_like(episodes["rewards"])
        for i in range(episodes.count):
            rows = episodes.rows(i)
            out[rows] = episodes["rewards"][rows] / episodes.lengths[i]
        return {"rewards": out}

    job = Job(ROOT / "datasets" / "cartpole-columns" / "job.toml", pieces=[scaled])
    digests = set()
    for threads in (1, 2, 4):
        job.run(output=tmp_path / str(threads), threads=threads)
        data = gristmill.open(tmp_path / str(threads))
        digests.add(data.manifest["content_digest"])
        assert_equal(job.compile(recording("cartpole-columns"), threads=threads)["default_policy"], data.read())
    assert len(digests) == 1
    rewards = data.read(["rewards"])["rewards"]
    assert np.isclose(rewards.sum(), 28) and (rewards < 1).all()


def failing(episodes):
    if "b" in episodes.ids:
        raise RuntimeError("no b, please")


@pytest.mark.parametrize(
    ("function", "options", "text"),
    [
        (failing, {}, "RuntimeError: no b, please"),
        (lambda e: 3, {}, "returned int, expected a mapping"),
        (lambda e: {"rewards": e["rewards"][:-1]}, {}, "of shape"),
        (lambda e: {"rewards": e["rewards"] * 1j}, {}, "as complex128, expected float64"),
        (lambda e: {"bonus": e["rewards"]}, {}, "not declared"),
        (lambda e: None, {"columns": {"bonus": ("float32", [])}}, "did not return it"),
        (lambda e: None, {"columns": {"obs/new": ("float32", [])}}, "the episodes have"),
        (lambda e: None, {"columns": {"eps_id": ("int64", [])}}, "cannot make this column"),
        (lambda e: {"obs": e["obs"] + 1}, {}, "not those after the last steps"),
    ],
)
def test_errors_name_the_piece_and_the_episode(function, options, text):
    own = piece(function, name="Mine", **options)
    steps = {**STEPS, "new_obs": [[2.0, 3.0], [4.0, 5.0], [0.0, 0.0], [8.0, 9.0], [0.0, 0.0]]}
    with pytest.raises(errors.GristmillError) as raised:
        Job(pieces=[own]).compile(steps)
    told = str(raised.value)
    assert text in told and "connector 0 (Mine)" in told, told
    if function is failing:
        assert 'episode "b"' in told and isinstance(raised.value.__cause__, RuntimeError)


def test_a_piece_in_python_stands_in_front():
    with pytest.raises(errors.UsageError, match="in front"):
        Job(learner={"connectors": [ComputeReturnsToGo(gamma=1.0), doubled]})
    with pytest.raises(TypeError):
        piece(3)


def test_pieces_run_from_another_thread():
    out = []
    thread = threading.Thread(target=lambda: out.append(Job(pieces=[doubled]).compile(STEPS)))
    thread.start()
    thread.join(timeout=60)
    assert out and out[0]["default_policy"]["rewards"].tolist() == [2, 4, 6, 8, 10]


def bare(episodes):
    return None


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: Job(pieces=[doubled, bare]), r"found the function bare, expected a piece: .*piece\(bare\)\n  at: pieces\[1\]"),
        (lambda: Job(pieces=[lambda episodes: None]), r"found the function <lambda>, expected a piece: .*piece\(..\)"),
        (lambda: Job(pieces=doubled), "found the piece doubled as pieces, expected a list of pieces"),
        (lambda: Job(pieces=bare), "found the function bare as pieces, expected a list"),
        (lambda: Job(pieces=[ComputeReturnsToGo(gamma=0.9)]), r"found the connector ComputeReturnsToGo(.|\n)*hint: .*connectors"),
        (lambda: Job(pieces=[ComputeReturnsToGo]), "found the connector ComputeReturnsToGo"),
        (lambda: Job(pieces=["doubled"]), r"found str, expected a function(.|\n)*pieces\[0\]"),
        (
            lambda: Job(learner={"connectors": [ComputeReturnsToGo]}),
            r"found the class ComputeReturnsToGo, expected an instance: ComputeReturnsToGo\(..\)\n"
            r"  at: job key `learner.connectors\[0\]`",
        ),
        (lambda: Job(learner=sections.Learner), r"found the class Learner, expected an instance: Learner\(..\)"),
        (lambda: Job(learner=sections.Learner(connectors=[bare])), r"piece\(bare\)\n  at: job key `learner.connectors\[0\]`"),
        (lambda: Job({"learner": {"gamma": {1}}}), "found set, expected what TOML can hold(.|\n)*`learner.gamma`"),
    ],
)
def test_what_is_no_piece_is_told_with_what_would_be_one(call, told):
    with pytest.raises(TypeError, match=told):
        call()


def test_numbers_of_numpy_are_numbers():
    job = Job(learner={"connectors": [ComputeReturnsToGo(gamma=np.float32(0.5))]}, input=["x"])
    assert job.to_dict()["learner"]["connectors"][0]["gamma"] == 0.5
    job = Job({"rl_module": {"stateful": np.True_, "max_seq_len": np.int64(20)}, "input": {"paths": ["x"]}})
    assert job.to_dict()["rl_module"]["max_seq_len"] == 20


def test_pieces_stand_in_connectors_beside_a_file_too():
    path = ROOT / "datasets" / "cartpole-columns" / "job.toml"
    one = Job(path, learner={"connectors": [doubled]}).compile(STEPS)["default_policy"]
    assert one["rewards"].tolist() == [2, 4, 6, 8, 10]
