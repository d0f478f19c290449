"""Jobs: what to read, which connector pieces run, what to write."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gristmill import _episodes, sections
from gristmill._gristmill import CoreJob, Table
from gristmill._numpy import Array, array
from gristmill._progress import Show, shown
from gristmill.errors import UsageError
from gristmill.pieces import Piece
from gristmill.report import Report

__all__ = ["Job", "TrainBatch"]

StrPath = "str | os.PathLike[str]"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)", re.IGNORECASE)


class TrainBatch(dict[str, dict[str, Array]]):
    """``{module: {column: array}}`` as :meth:`Job.compile` makes it. Arrays of numbers are read-only views.

    Attributes:
        report: What the run did.
    """

    report: Report


class Job:
    """What to read, which connector pieces run, what to write.

    Args:
        job: A job file (TOML, or JSON if its name ends in ``.json``), or the job as a mapping of the same structure.
            Paths in a file are relative to the file, in a mapping to the current directory.
        input: What to read: :class:`gristmill.sections.Input`, a mapping, or paths.
        rl_module: What the learner's RLModule would say about itself.
        multi_agent: Which module each agent's data goes to.
        learner: The learner connector pipeline.
        output: What to write: :class:`gristmill.sections.Output`, a mapping, or a path.
        pieces: Pieces in Python (:func:`gristmill.piece`), in front of the job's own connectors.

    The sections stand over those of ``job``. ``learner.connectors`` may begin with pieces in Python, too.

    Raises:
        TypeError: If a piece is none (a bare function, a class), or a value is none that a job can hold.
        UsageError: With every mistake of the job, each with its place and what would have been valid. A ``ValueError``.
        MissingFileError: If there is no such job file. A ``FileNotFoundError``.

    Examples:
        >>> from gristmill import Job
        >>> from gristmill.connectors import ComputeReturnsToGo
        >>> from gristmill.sections import Learner
        >>> job = Job(learner=Learner(algorithm="PPO", connectors=[ComputeReturnsToGo(gamma=0.9)]))
        >>> batch = job.compile({
        ...     "eps_id": ["a", "a"], "obs": [[0.0], [1.0]], "actions": [0, 1], "rewards": [1.0, 2.0],
        ...     "terminateds": [False, True],
        ... })
        >>> batch["default_policy"]["returns_to_go"].tolist()
        [2.799999952316284, 2.0]
    """

    def __init__(
        self,
        job: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        *,
        input: sections.Input | Mapping[str, Any] | str | os.PathLike[str] | Sequence[str] | None = None,
        rl_module: sections.RlModule | Mapping[str, Any] | None = None,
        multi_agent: sections.MultiAgent | Mapping[str, Any] | None = None,
        learner: sections.Learner | Mapping[str, Any] | None = None,
        output: sections.Output | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        pieces: Iterable[Piece] = (),
    ) -> None:
        if isinstance(input, (str, os.PathLike)):
            input = {"paths": [os.fspath(input)]}
        elif isinstance(input, Sequence):
            input = {"paths": [os.fspath(path) for path in input]}
        if isinstance(output, (str, os.PathLike)):
            output = {"path": os.fspath(output)}
        given = {
            "input": input,
            "rl_module": rl_module,
            "multi_agent": multi_agent,
            "learner": learner,
            "output": output,
        }
        own = {name: _plain(section, name) for name, section in given.items() if section is not None}
        if isinstance(job, (str, os.PathLike)):
            core = CoreJob.load(os.fspath(job))
            self._pieces = [*_pieces(pieces), *_take_pieces(own)]
            if own:
                core = _beside(Path(job), json.loads(core.to_json()), own)
        else:
            tree = {"version": 1, **_plain(job or {}, ""), **own}
            self._pieces = [*_pieces(pieces), *_take_pieces(tree)]
            core = CoreJob.from_json(json.dumps(tree))
        self._core = core

    def to_dict(self) -> dict[str, Any]:
        """The job as resolved, all defaults filled in. Pieces in Python are not in it."""
        out: dict[str, Any] = json.loads(self._core.to_json())
        return out

    def __repr__(self) -> str:
        pieces = f", {len(self._pieces)} pieces in Python" if self._pieces else ""
        return f"<gristmill.Job to {os.fspath(self._core.output_path())!r}{pieces}>"

    def plan(
        self,
        *,
        input: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
        output: str | os.PathLike[str] | None = None,
    ) -> dict[str, Any]:
        """What the job will do, as ``gristmill plan --json`` has it: from schemas, footers and first rows alone.

        Pieces in Python are not part of it: they are checked when the job runs.

        Args:
            input: Files, globs or directories instead of the job's, relative to the current directory.
            output: A directory instead of the job's.

        Returns:
            ``input_layout``, ``files``, ``input_columns``, ``connectors``, ``modules`` (the columns of each, with dtype and
            shape of a row), ``agents`` (in multi-agent data), ``problems``, ``output`` and others.

        Raises:
            UsageError: The first thing that is wrong.

        Examples:
            >>> plan = Job(input="logs/").plan()
            >>> plan["modules"]["default_policy"][0]
            ['obs', 'float32[4]']
        """
        planned: dict[str, Any] = json.loads(self._core.plan(_paths(input), _path(output)))
        return planned

    def run(
        self,
        *,
        input: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
        output: str | os.PathLike[str] | None = None,
        format: str | None = None,
        threads: int | None = None,
        memory_limit: int | str | None = None,
        scratch: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        resume: bool = False,
        progress: bool | Show | None = None,
    ) -> Report:
        """Converts what the job says to where it says. ``gristmill.open(report.output)`` reads it.

        Ctrl-C stops the run; what is left in the output directory has no manifest and is no data set.

        Args:
            input: Files, globs or directories instead of the job's, relative to the current directory.
            output: A directory instead of the job's.
            format: ``"parquet"`` or ``"arrow"`` instead of the job's.
            threads: Worker threads at most; all cores if not given.
            memory_limit: Bytes to stay under, or a text such as ``"4GiB"``; a quarter of the machine's memory if not given.
            scratch: A folder for what does not fit into memory; near the output if not given.
            overwrite: Replace the data set that is in the output directory, once the new one is whole.
            resume: Go on where a run that was stopped left off; the result is the same, byte for byte.
            progress: A bar: ``True``, ``False``, ``None`` where somebody is looking; or a function that is called about
                ten times a second with the phase and ``{"steps": (done, total or None), "episodes": .., "bytes": ..}``.

        Raises:
            UsageError, DataError, MissingFileError, FilePermissionError, SystemFailure: The first thing that went wrong,
                in the order of the data.

        Examples:
            >>> report = Job(input="logs/", output="converted").run(progress=False)
            >>> report.steps_in, report.modules["default_policy"]["rows"]
            (1664, 1664)
        """
        if overwrite and resume:
            raise UsageError("found overwrite and resume, expected one of them")
        existing = "replace" if overwrite else "resume" if resume else "refuse"
        parts = [piece._parts() for piece in self._pieces]
        with _showing(progress) as show:
            report = self._core.run(
                _paths(input),
                _path(output),
                format,
                _threads(threads),
                _size(memory_limit),
                _path(scratch),
                existing,
                parts,
                show,
            )
        return Report._of(json.loads(report))

    def compile(
        self, data: Any, *, threads: int | None = None, progress: bool | Show | None = False
    ) -> TrainBatch:
        """Compiles episodes in memory. The job's ``input.paths`` and ``output`` do not matter, but for ``output.split``.

        Args:
            data: A table of steps (anything with ``__arrow_c_stream__``: a pyarrow table, a polars frame, a
                ``RecordBatchReader``), a mapping from column name to array or list, or a sequence of RLlib's
                ``SingleAgentEpisode`` or ``MultiAgentEpisode``.
            threads: Worker threads; all cores if not given.
            progress: As for :meth:`run`.

        Returns:
            ``{module: {column: array}}`` with what the shards would have. Tables are read, and arrays handed back,
            without a copy; mappings and episodes are copied once. Large windows (stacked frames) of a batch that nobody
            holds any more lend their memory to the next one that this job compiles.

        Raises:
            TypeError: If the data are none of these.
            UsageError, DataError, SystemFailure: The first thing that is wrong with job or data.

        Examples:
            >>> steps = {"eps_id": [1, 1], "obs": [0.0, 1.0], "actions": [0, 1], "rewards": [1.0, 0.5]}
            >>> batch = Job().compile(steps)
            >>> batch["default_policy"]["rewards"].tolist(), batch.report.steps_in
            ([1.0, 0.5], 2)
        """
        table = data if isinstance(data, Table) else _episodes.table(data)
        parts = [piece._parts() for piece in self._pieces]
        with _showing(progress) as show:
            modules, report = self._core.compile(table, _threads(threads), parts, show)
        out = TrainBatch(
            (module, {name: array(column) for name, column in columns.items()}) for module, columns in modules.items()
        )
        out.report = Report._of(json.loads(report))
        return out


def _plain(value: Any, key: str) -> Any:
    """Dataclasses, paths, tuples and NumPy's numbers as JSON has them; what is ``None`` is left to its default.

    ``key`` is where in the job the value is, for messages.
    """
    if value is None or isinstance(value, (Piece, str, bool, int, float)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        named = {f.metadata.get("name", f.name): getattr(value, f.name) for f in fields(value)}
        kind = getattr(value, "_type", None)
        head = {"type": kind} if kind else {}
        return head | {name: _plain(v, _under(key, name)) for name, v in named.items() if v is not None}
    if isinstance(value, Mapping):
        return {str(name): _plain(v, _under(key, name)) for name, v in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [_plain(v, f"{key}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, (np.generic, np.ndarray)):
        return _plain(value.tolist(), key)
    raise TypeError(f"{_not_plain(value)}\n  at: job key `{key}`")


def _under(key: str, name: object) -> str:
    return f"{key}.{name}" if key else str(name)


def _not_plain(value: Any) -> str:
    """What is wrong with a value that no job holds, and what would be right."""
    if isinstance(value, type):
        name = value.__name__
        if is_dataclass(value):
            return f"found the class {name}, expected an instance: {name}(..)"
        return f"found the class {name}, expected a value"
    if callable(value):
        name = getattr(value, "__name__", type(value).__name__)
        call = name if name.isidentifier() else ".."
        return f"found the function {name}, expected a piece: decorate it with @gristmill.piece, or pass gristmill.piece({call})"
    return f"found {type(value).__name__}, expected what TOML can hold: numbers, texts, booleans, lists and tables"


def _pieces(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces in Python, each of which must be one."""
    if isinstance(pieces, Piece) or not isinstance(pieces, Iterable) or isinstance(pieces, (str, Mapping)):
        what = f"the piece {pieces.name}" if isinstance(pieces, Piece) else _what(pieces)
        raise TypeError(f"found {what} as pieces, expected a list of pieces: pieces=[..]")
    pieces = list(pieces)
    for i, one in enumerate(pieces):
        if isinstance(one, Piece):
            continue
        if hasattr(one, "_type"):
            name = one.__name__ if isinstance(one, type) else type(one).__name__
            raise TypeError(
                f"found the connector {name}, expected a function that gristmill.piece decorates\n  at: pieces[{i}]\n"
                f"  hint: pieces of gristmill's go to the job: learner={{'connectors': [{name}(..)]}}"
            )
        if callable(one) and not isinstance(one, type):
            raise TypeError(f"{_not_plain(one)}\n  at: pieces[{i}]")
        raise TypeError(f"found {_what(one)}, expected a function that gristmill.piece decorates\n  at: pieces[{i}]")
    return pieces


def _what(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value):
        return f"the function {getattr(value, '__name__', type(value).__name__)}"
    return type(value).__name__


def _take_pieces(tree: dict[str, Any]) -> list[Piece]:
    """Takes the pieces in Python out of ``learner.connectors``; they must stand first."""
    learner = tree.get("learner")
    connectors = learner.get("connectors") if isinstance(learner, dict) else None
    if not isinstance(connectors, list):
        return []
    own = [c for c in connectors if isinstance(c, Piece)]
    if any(not isinstance(c, Piece) for c in connectors[: len(own)]):
        raise UsageError(
            "found a piece in Python behind a connector of the job, expected all of them in front\n"
            "  at: job key `learner.connectors`"
        )
    tree["learner"] = {**learner, "connectors": connectors[len(own) :]}
    return own


def _beside(path: Path, tree: dict[str, Any], own: Mapping[str, Any]) -> CoreJob:
    """A job from a file with sections over its own: the file's paths become absolute."""
    base = path.resolve().parent
    tree["input"]["paths"] = [p if "://" in p else os.path.join(base, p) for p in tree["input"]["paths"]]
    tree["output"]["path"] = os.path.join(base, tree["output"]["path"])
    for name, section in own.items():
        tree[name] = {**(tree.get(name) or {}), **section}
    return CoreJob.from_json(json.dumps(_without_none(tree)))


def _without_none(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_none(value) for key, value in tree.items() if value is not None}
    return [_without_none(value) for value in tree] if isinstance(tree, list) else tree


def _path(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


def _paths(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    return [os.fspath(p) for p in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]


def _threads(threads: int | None) -> int | None:
    """The number of threads, as the command line takes it."""
    if threads is not None and threads < 1:
        raise UsageError(f"found threads={threads}, expected a whole number of at least 1")
    return threads


def _size(size: int | str | None) -> int | None:
    if not isinstance(size, str):
        return size
    parts = _SIZE.fullmatch(size.strip())
    if parts is None:
        raise UsageError(f"found the size {size!r}, expected bytes, or a number with a unit such as 4GiB")
    number, unit, binary, byte = parts.groups()
    # As on the command line: a bare K, M, G or T counts in 1024s.
    step = 1000 if byte and not binary else 1024
    return int(float(number) * step ** " kmgt".index(unit.lower() or " "))


class _showing:
    """What shows a run, closed behind it."""

    def __init__(self, progress: bool | Show | None) -> None:
        self._show = shown(progress)

    def __enter__(self) -> Callable[..., object] | None:
        return self._show

    def __exit__(self, *_: object) -> None:
        close = getattr(self._show, "close", None)
        if close is not None:
            close()
