"""The package's docstrings: `help()` has an example of everything that users meet first, and the examples work."""

import doctest
import importlib
import importlib.util
import inspect
import shutil

import gristmill
import pytest
from conftest import ROOT
from conftest import gristmill as command

MODULES = ["batches", "connectors", "d3rlpy", "dataset", "errors", "job", "pieces", "ray", "report", "rllib", "sections",
           "torch", "torchrl"]
NEEDS = {"d3rlpy": "d3rlpy", "ray": "ray", "rllib": "ray", "torch": "torch", "torchrl": "tensordict"}
NAMES = ["", *MODULES]


def imported(name):
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    return importlib.import_module(f"gristmill.{name}".rstrip("."))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the examples are: a recording in `logs/`, and in `shards/` what becomes of it."""
    shutil.copytree(ROOT / "datasets" / "cartpole-columns" / "input", tmp_path / "logs")
    command("convert", "--input", "logs", "--output", "shards", "--quiet", cwd=tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name or "gristmill")
def test_examples_work(name, folder):
    module = imported(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE, verbose=False)
    assert failed == 0


@pytest.mark.parametrize("name", ["Batches", "Dataset", "Episodes", "Job", "Module", "Report", "open", "piece"])
def test_what_is_met_first_has_an_example(name):
    assert doctest.DocTestFinder(recurse=False).find(getattr(gristmill, name), name)[0].examples


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_is_documented(name):
    module = imported(name)
    assert module.__doc__
    for public in module.__all__:
        thing = getattr(module, public)
        if not (inspect.isclass(thing) or inspect.isfunction(thing)):
            continue
        assert thing.__doc__, public
        assert not thing.__doc__.startswith(f"{public}("), f"{public} has the text that a dataclass makes of itself"
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            value = value.fget if isinstance(value, property) else value
            if inspect.isfunction(value) and not member.startswith("_"):
                # A method of a parent's has the parent's text.
                assert inspect.getdoc(getattr(thing, member)), f"{public}.{member}"


def documented(function, text):
    """The parameters of a function that the section `Args:` of a docstring does not name."""
    lines = text.split("Args:", 1)[1].splitlines() if "Args:" in text else []
    named = {line.strip().split(":")[0] for line in lines if ":" in line}
    parameters = inspect.signature(function).parameters
    return [name for name in parameters if name not in ("self", "args") and name not in named]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (gristmill.Job.__init__, gristmill.Job.__doc__),
        (gristmill.Job.plan, gristmill.Job.plan.__doc__),
        (gristmill.Job.run, gristmill.Job.run.__doc__),
        (gristmill.Job.compile, gristmill.Job.compile.__doc__),
        (gristmill.Batches.__init__, gristmill.Batches.__doc__),
        (gristmill.open, gristmill.open.__doc__),
        (gristmill.piece, gristmill.piece.__doc__),
        (gristmill.Module.take, gristmill.Module.take.__doc__),
    ],
    ids=lambda value: getattr(value, "__qualname__", None) or "",
)
def test_every_argument_is_explained(function, text):
    assert documented(function, text) == []
