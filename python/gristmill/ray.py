"""A job over a Ray cluster: the shards and the manifest that one machine would write, byte for byte.

::

    import gristmill, ray

    ray.init()
    report = gristmill.ray.run("job.toml", output="/shared/shards")

::

    this process   look for episodes, survey ─▶ parts        ─▶ which rows make which shards ─▶ manifest
    Ray's tasks                      rows of part 0 .. n ─┘ └─▶ shards 0..4, 4..8, ..  ─┘

The plan is made once, here: which rows of the input are whose, and what pieces such as ``MeanStdFilter`` must know of the
whole data set. Each part of it, some thousand episodes in their order, is a task, and so are each few shards. Tasks are pure
functions of their part and give their files names when these are whole: Ray may run one anew, on another node, when a
worker dies. Pieces that must see everything before (``CountBasedCuriosity``) go over the parts once more, in a chain of tasks
that hands on what they have counted; the rows of a part are made as soon as the chain is there.

Every node must see the input and the output directory under the same paths. Between the stages rows lie beside the output
directory, uncompressed, until the run is over.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import RayTaskError

from gristmill import _gristmill
from gristmill._progress import Show
from gristmill.job import Job, _path, _paths, _showing, _size, _threads
from gristmill.pieces import Piece
from gristmill.report import Report

__all__ = ["run"]

T = TypeVar("T")
_TASKS_A_CPU = 4


def run(
    job: Job | str | os.PathLike[str] | Mapping[str, Any],
    *,
    input: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    output: str | os.PathLike[str] | None = None,
    format: str | None = None,
    parts: int | None = None,
    threads: int = 1,
    memory_limit: int | str = "1GiB",
    scratch: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    task_options: Mapping[str, Any] | None = None,
    progress: bool | Show | None = None,
) -> Report:
    """Converts what the job says to where it says, over the Ray cluster that this process is connected to.

    Without ``ray.init`` before, Ray starts one on this machine. Ctrl-C, and any error, stops the tasks and takes back what
    was written.

    Args:
        job: A job, or what :class:`gristmill.Job` makes one of. Its pieces in Python are sent to the tasks.
        input: Files, globs or directories instead of the job's, relative to the current directory.
        output: A directory instead of the job's.
        format: ``"parquet"`` or ``"arrow"`` instead of the job's.
        parts: Into how many parts the episodes are cut, if there are enough; four times as many as tasks can run at once
            if not given. An episode is cut only where it is large and every piece can take it in slices.
        threads: CPUs that a task asks Ray for, and threads that it has.
        memory_limit: Bytes that a task stays under, or a text such as ``"4GiB"``. What it must hold at least is its
            longest episode, where a piece needs all of it, a row group of the output, and what ``CountBasedCuriosity`` has
            counted.
        scratch: A folder on every node for what does not fit into memory; beside the output if not given.
        overwrite: Replace the data set that is in the output directory, once the new one is whole.
        task_options: More options of Ray's tasks, such as ``{"max_retries": 10, "resources": {"cpu_node": 1}}``.
        progress: As for :meth:`gristmill.Job.run`. Steps are counted by parts.

    Raises:
        UsageError, DataError, MissingFileError, FilePermissionError, SystemFailure: The first thing that went wrong, in
            the order of the data, wherever it did.
        ray.exceptions.RayError: What went wrong with the cluster, and did again in every retry.
    """
    job = job if isinstance(job, Job) else Job(job)
    pieces = job._pieces
    _threads(threads)
    if not ray.is_initialized():
        ray.init()
    limit = _size(memory_limit)
    if parts is None:
        parts = _TASKS_A_CPU * max(1, int(ray.cluster_resources().get("CPU", 1)) // threads)
    with _showing(progress) as show:
        coordinator = _gristmill.Coordinator.plan(
            job._core, _paths(input), _path(output), format, _path(scratch), overwrite, parts, threads, limit,
            [piece._parts() for piece in pieces], show,
        )
        options = {"num_cpus": threads, **(task_options or {})}
        own = (uuid.uuid4().hex, coordinator.head(), threads, limit, _path(scratch), pieces)
        # In a list, it is fetched by the processes that have not got it yet, and not with every task.
        setup = [ray.put(own)]
        try:
            return _stages(coordinator, setup, options, show)
        finally:
            coordinator.close()


def _stages(
    coordinator: _gristmill.Coordinator, setup: list[Any], options: Mapping[str, Any], show: Callable[..., Any] | None
) -> Report:
    order, rows, shards = (ray.remote(task).options(**options) for task in (_order, _rows, _shards))
    steps = coordinator.steps()
    ordered = coordinator.ordered()
    state: Any = b""
    tasks = []
    for number in range(len(steps)):
        part = ray.put(coordinator.part(number))
        tasks.append(rows.remote(setup, part, state))
        if ordered and number + 1 < len(steps):
            state = order.remote(setup, part, state)
    made, done = [], 0
    for result, n in zip(_results(tasks), steps, strict=True):
        made.append(result)
        done += n
        if show is not None:
            show("converting", {"steps": (done, sum(steps)), "episodes": (0, None), "bytes": (0, None)})
    for result in _results([shards.remote(setup, task) for task in coordinator.place(made)]):
        coordinator.keep(result)
    return Report._of(json.loads(coordinator.finish()))


def _results(tasks: Sequence[ray.ObjectRef[T]]) -> Iterator[T]:
    """What tasks bring, in order. When one fails, or this process is told to stop, so are all others."""
    try:
        for task in tasks:
            try:
                yield ray.get(task)
            except RayTaskError as error:
                # Ray's has the traceback of the other process in its text.
                raise error.cause from error
    except BaseException:
        for task in tasks:
            ray.cancel(task)
        raise


_worker: tuple[str, _gristmill.Worker] | None = None
"""What this process does tasks with, and the run that it belongs to."""


def _open(setup: Sequence[ray.ObjectRef[Any]]) -> _gristmill.Worker:
    global _worker
    own: tuple[str, bytes, int, int, str | None, list[Piece]] = ray.get(setup[0])
    name, head, threads, limit, scratch, pieces = own
    if _worker is None or _worker[0] != name:
        parts = [piece._parts() for piece in pieces]
        _worker = (name, _gristmill.Worker(head, threads, limit, scratch, parts))
    return _worker[1]


def _order(setup: Sequence[Any], part: bytes, state: bytes) -> bytes:
    return _open(setup).order(part, state)


def _rows(setup: Sequence[Any], part: bytes, state: bytes) -> bytes:
    return _open(setup).rows(part, state, uuid.uuid4().hex)


def _shards(setup: Sequence[Any], task: bytes) -> bytes:
    return _open(setup).shards(task, uuid.uuid4().hex)
