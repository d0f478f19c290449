"""Compiles recorded reinforcement-learning episodes into train batches, and reads what was compiled.

* :class:`Job` says what to read, which connector pieces run, what to write. ``Job.run`` writes shards,
  ``Job.compile`` takes episodes in memory and gives NumPy arrays back.
* :func:`open` reads shards: by row, in batches with a seeded shuffle that resumes exactly, or as Arrow.
* :func:`piece` makes a Python function a connector piece.
* :mod:`gristmill.connectors` has a dataclass for every connector piece, :mod:`gristmill.sections` one for every table of
  a job.
* :mod:`gristmill.torch`, :mod:`gristmill.rllib`, :mod:`gristmill.d3rlpy` and :mod:`gristmill.torchrl` hand the data on.
  None of them is imported before it is used.
* :mod:`gristmill.ray` runs a job over a Ray cluster.
* What goes wrong is one of :mod:`gristmill.errors`, each also the built-in exception that fits.

Examples:
    Convert a recording, and read what came out:

    >>> import gristmill
    >>> report = gristmill.Job(input="logs/", output="my-shards").run(progress=False)
    >>> shards = gristmill.open("my-shards")
    >>> for batch in shards.batches(batch_size=832, shuffle_seed=7):
    ...     print(batch["obs"].shape, batch["obs"].dtype)
    (832, 4) float32
    (832, 4) float32
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from gristmill import connectors, errors, sections
from gristmill._gristmill import __version__
from gristmill.batches import Batches
from gristmill.dataset import Dataset, Module, open
from gristmill.job import Job, TrainBatch
from gristmill.pieces import Episodes, Piece, piece
from gristmill.report import Report

if TYPE_CHECKING:
    from gristmill import d3rlpy, ray, rllib, torch, torchrl

__all__ = [
    "Batches",
    "Dataset",
    "Episodes",
    "Job",
    "Module",
    "Piece",
    "Report",
    "TrainBatch",
    "__version__",
    "connectors",
    "d3rlpy",
    "errors",
    "open",
    "piece",
    "ray",
    "rllib",
    "sections",
    "torch",
    "torchrl",
]

_BRIDGES = ("d3rlpy", "ray", "rllib", "torch", "torchrl")


def __getattr__(name: str) -> object:
    if name in _BRIDGES:
        return importlib.import_module(f"gristmill.{name}")
    raise AttributeError(f"module 'gristmill' has no attribute {name!r}")
