"""What the tests share: the repository, the binary, and a fresh conversion of each recording."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
DATASETS = sorted(job.parent.name for job in (ROOT / "datasets").glob("*/job.toml"))


def binary():
    """The binary that `cargo test` built."""
    path = ROOT / TARGET / "debug" / "gristmill"
    assert path.exists(), f"{path} is not there: run `cargo test` or `make test` first"
    return path


def gristmill(*args, cwd=ROOT):
    """Runs the binary; returns what it printed."""
    done = subprocess.run([binary(), *map(str, args)], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def converted(tmp_path_factory):
    """`converted(name, format, compat)`: the folder of a recording's shards, converted once."""
    done = {}

    def convert(name, format="parquet", compat="correct"):
        key = name, format, compat
        if key not in done:
            folder, recording = tmp_path_factory.mktemp("-".join(key)), ROOT / "datasets" / name
            text = (recording / "job.toml").read_text()
            assert text.count("\n[learner]\n") == 1
            (folder / "job.toml").write_text(text.replace("\n[learner]\n", f'\n[learner]\ncompat = "{compat}"\n'))
            gristmill("convert", folder / "job.toml", "--input", recording / "input", "--format", format, "--quiet")
            done[key] = folder / "shards" / "default_policy"
        return done[key]

    return convert
