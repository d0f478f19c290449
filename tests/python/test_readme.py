"""README.md tells the truth: its commands run, print what it shows, and its snippets work."""

import importlib.util
import re
import shlex
import shutil

import pytest
from conftest import ROOT, gristmill

README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
BLOCKS = [(language, text) for language, text in BLOCK.findall(README)]
SNIPPETS = [text for language, text in BLOCKS if language == "python"]
OWN_TABLE = "my-logs"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A copy of the recordings, converted as README's first command does."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "datasets", folder / "datasets", ignore=shutil.ignore_patterns("shards"))
    for name in ["cartpole-columns", "cartpole-lstm", "pendulum-steps"]:
        gristmill("convert", f"datasets/{name}/job.toml", "--quiet", cwd=folder)
    return folder


def without_time(summary):
    return [line for line in summary.strip().splitlines() if not line.startswith("took")]


def test_the_first_command_prints_what_readme_shows(tmp_path):
    shutil.copytree(ROOT / "datasets" / "cartpole-columns", tmp_path / "datasets" / "cartpole-columns",
                    ignore=shutil.ignore_patterns("shards"))
    command = "cargo run --release -- convert datasets/cartpole-columns/job.toml"
    assert command in README.splitlines()
    printed = gristmill(*shlex.split(command.split(" -- ")[1]), cwd=tmp_path)
    shown = next(text for language, text in BLOCKS if text.startswith("read "))
    assert without_time(printed) == without_time(shown)


def test_there_are_snippets():
    assert len(SNIPPETS) >= 4


def imports(snippet):
    return sorted(set(re.findall(r"^(?:import|from) (\w+)", snippet, re.M)))


@pytest.mark.parametrize("snippet", SNIPPETS, ids=["-".join(imports(snippet)) for snippet in SNIPPETS])
def test_a_snippet_runs(folder, monkeypatch, snippet):
    if "torch" in imports(snippet) and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: `make PYTHON=... test-bridges` runs this")
    monkeypatch.chdir(folder)
    exec(compile(snippet, "README.md", "exec"), {})


def test_your_own_table(folder, monkeypatch):
    """The table that a snippet of README writes converts with the job beside it, and without any job once renamed."""
    monkeypatch.chdir(folder)
    exec(next(s for s in SNIPPETS if OWN_TABLE in s), {})
    jobs = [text for language, text in BLOCKS if language == "toml" and OWN_TABLE in text]
    (folder / "my-job.toml").write_text(jobs[0])
    printed = gristmill("convert", "my-job.toml", cwd=folder)
    assert "20 rows in 1 shard" in printed, printed
    assert "odd" not in printed, printed


def test_the_long_job_is_a_job(folder):
    """Every key of README's job example is accepted."""
    job = next(text for language, text in BLOCKS if language == "toml" and "max_seq_len" in text)
    (folder / "long.toml").write_text(job)
    (folder / "input").mkdir(exist_ok=True)
    for file in (folder / "datasets" / "cartpole-lstm" / "input").iterdir():
        shutil.copy(file, folder / "input")
    assert "30 rows in 1 shard" in gristmill("convert", "long.toml", "--overwrite", cwd=folder)


def test_commands_are_those_that_there_are():
    for name in ["convert", "plan", "inspect", "verify", "diff", "connectors", "schema"]:
        assert f"gristmill {name}" in README
        gristmill(name, "--help")
