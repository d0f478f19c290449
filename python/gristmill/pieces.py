"""Connector pieces in Python: a function over whole columns of episodes, in front of the job's own pieces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gristmill._gristmill import Values
from gristmill._numpy import Array, array, values

__all__ = ["Episodes", "Piece", "piece"]

Shape = tuple[int, ...]
Function = Callable[["Episodes"], "Mapping[str, Any] | None"]


class Episodes(Mapping[str, Array]):
    """Episodes (or chunks of them) as columns, one row a step, episodes back to back. The arrays are read-only views.

    ::

        offsets    0            3       5          episode i is rows offsets[i] to offsets[i + 1], exclusive
        obs        o0  o1  o2   p0  p1             the observation before each action
        last_obs   o3           p2                 the observation after the last step, one row an episode
        history    (none)       p-2 p-1            rows before a chunk's first step, where pieces look back

    A mapping from column name (``obs``, ``obs/pos``, ``actions``, ``rewards``, extra model outputs) to array.

    Examples:
        >>> import gristmill
        >>> @gristmill.piece
        ... def show(episodes):
        ...     for i in range(episodes.count):
        ...         print(episodes.ids[i], episodes["rewards"][episodes.rows(i)].tolist(), bool(episodes.terminated[i]))
        >>> batch = gristmill.Job(pieces=[show]).compile({
        ...     "eps_id": ["a", "a", "b"], "obs": [0.0, 1.0, 2.0], "actions": [0, 1, 1], "rewards": [1.0, 2.0, 3.0],
        ...     "terminateds": [False, True, False],
        ... })
        a [1.0, 2.0] True
        b [3.0] False
    """

    def __init__(self, view: Mapping[str, Any]) -> None:
        self._view = view
        self._steps: dict[str, Array] = view["steps"]
        self.last_obs: dict[str, Array] = view["last_obs"]
        """Observations after the last steps, by column: one row an episode. Zeros where ``has_last_obs`` is false."""
        self.history: dict[str, Array] = view["history"]
        """Rows before the first steps of chunks, by column; ``history_offsets`` cuts them."""
        self.offsets: Array = view["offsets"]
        """Where each episode's rows start; one more than there are episodes."""
        self.history_offsets: Array = view["history_offsets"]
        """Where each episode's rows of ``history`` start; one more than there are episodes."""
        self.ids: list[str | int] = view["ids"]
        """The ids of the episodes, as recorded."""
        self.agent_ids: list[str | None] = view["agent_ids"]
        """The agents, in multi-agent data."""
        self.t_started: Array = view["t_started"]
        """Steps of the episode before its chunk."""
        self.terminated: Array = view["terminated"]
        """Whether the last step ended the episode."""
        self.truncated: Array = view["truncated"]
        """Whether the episode was cut short after the last step."""
        self.has_last_obs: Array = view["has_last_obs"]
        """Whether the observation after the last step was recorded."""

    def __getitem__(self, column: str) -> Array:
        return self._steps[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._steps)

    def __len__(self) -> int:
        """The number of columns, as of any mapping; :attr:`count` is the number of episodes."""
        return len(self._steps)

    @property
    def count(self) -> int:
        """The number of episodes."""
        return len(self.ids)

    @property
    def lengths(self) -> Array:
        """Steps of each episode."""
        return np.diff(self.offsets)

    def rows(self, episode: int) -> slice:
        """The rows of one episode in every column."""
        return slice(int(self.offsets[episode]), int(self.offsets[episode + 1]))

    def one(self, episode: int) -> Episodes:
        """One episode alone."""
        rows = self.rows(episode)
        before = slice(int(self.history_offsets[episode]), int(self.history_offsets[episode + 1]))
        alone = slice(episode, episode + 1)
        return Episodes(
            {
                "steps": {name: column[rows] for name, column in self._steps.items()},
                "last_obs": {name: column[alone] for name, column in self.last_obs.items()},
                "history": {name: column[before] for name, column in self.history.items()},
                "offsets": np.array([0, rows.stop - rows.start]),
                "history_offsets": np.array([0, before.stop - before.start]),
                **{
                    name: self._view[name][alone]
                    for name in ("ids", "agent_ids", "t_started", "terminated", "truncated", "has_last_obs")
                },
            }
        )


@dataclass(frozen=True)
class Piece:
    """A function as a connector piece. See :func:`piece`."""

    function: Function
    name: str
    columns: Mapping[str, tuple[str, Shape]] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    def _parts(self) -> tuple[str, str, list[tuple[str, str, list[int]]], Callable[..., Any]]:
        columns = []
        for name, (dtype, shape) in self.columns.items():
            columns.append((name, np.dtype(dtype).name, [int(n) for n in shape]))
        return self.name, json.dumps(dict(self.config)), columns, _Call(self.function)


def piece(
    function: Function | None = None,
    *,
    name: str | None = None,
    columns: Mapping[str, tuple[str, Sequence[int]]] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Any:
    """Makes a connector piece of a function over :class:`Episodes`.

    The function returns the columns that it changes or adds, by name, as arrays of one row a step; ``None`` or an empty
    mapping changes nothing. The key ``last_obs`` may hold such a mapping with one row an episode, ``history`` one with
    the rows of ``episodes.history``. A function that changes observations must return ``last_obs``, too; a changed
    column whose ``history`` is not returned is not looked back at.

    It must be a pure function of each episode: how many episodes it sees at once, and on which thread, is not fixed.

    Args:
        function: The function; without it, a decorator is returned.
        name: What messages and the manifest call the piece; the function's name if not given.
        columns: Dtype and shape of a row of each column that is added, or that comes back with another type than it
            had. What is declared must be returned. Other columns keep their types: arrays are cast to them where NumPy's
            ``same_kind`` rule allows it.
        config: Options of the piece, for the manifest: plain data.

    Raises:
        TypeError: If it is no function.

    Examples:
        >>> import numpy as np
        >>> @piece
        ... def upright_bonus(episodes):
        ...     upright = np.abs(episodes["obs"][:, 2]) < 0.05
        ...     return {"rewards": episodes["rewards"] + 0.5 * upright}
        >>> upright_bonus.name
        'upright_bonus'
    """
    if function is None:
        return lambda function: piece(function, name=name, columns=columns, config=config)
    if not callable(function):
        raise TypeError(f"found {type(function).__name__}, expected a function over episodes")
    types = {column: (dtype, tuple(shape)) for column, (dtype, shape) in (columns or {}).items()}
    name = name or getattr(function, "__name__", type(function).__name__)
    return Piece(function, name, types, dict(config or {}))


class _Failed(Exception):
    """The function raised: the cause is its exception, ``chunk`` the first episode that raises it alone."""

    def __init__(self, chunk: int | None) -> None:
        super().__init__("a piece failed")
        self.chunk = chunk


class _Call:
    """What Rust calls: makes views, calls the function, checks what it returns."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def __call__(
        self, view: Mapping[str, Any], declared: Mapping[str, tuple[str, Sequence[int]]]
    ) -> list[tuple[str, str, Values]]:
        parts = {
            part: {name: array(column) for name, column in view[part].items()}
            for part in ("steps", "last_obs", "history")
        }
        numbers = {
            name: np.asarray(view[name], dtype=dtype)
            for name, dtype in {
                "offsets": np.int64,
                "history_offsets": np.int64,
                "t_started": np.int64,
                "terminated": np.bool_,
                "truncated": np.bool_,
                "has_last_obs": np.bool_,
            }.items()
        }
        episodes = Episodes({**parts, **numbers, "ids": view["ids"], "agent_ids": view["agent_ids"]})
        types = {name: (np.dtype(dtype), tuple(shape)) for name, (dtype, shape) in declared.items()}
        try:
            return self._apply(episodes, types)
        except Exception as error:
            chunk, cause = self._culprit(episodes, types)
            raise _Failed(chunk) from (cause or error)

    def _culprit(self, episodes: Episodes, types: Any) -> tuple[int | None, Exception | None]:
        """The first episode with which alone the function fails, and how."""
        for episode in range(episodes.count):
            try:
                self._apply(episodes.one(episode), types)
            except Exception as error:
                return episode, error
        return None, None

    def _apply(self, episodes: Episodes, types: Mapping[str, tuple[Any, Shape]]) -> list[tuple[str, str, Values]]:
        changed = self._function(episodes)
        if changed is None:
            return []
        if not isinstance(changed, Mapping):
            raise TypeError(f"returned {type(changed).__name__}, expected a mapping from column name to array")
        steps = {name: value for name, value in changed.items() if name not in ("last_obs", "history")}
        out = []
        groups = [
            ("steps", steps, dict(episodes), int(episodes.offsets[-1])),
            ("last_obs", changed.get("last_obs") or {}, episodes.last_obs, episodes.count),
            ("history", changed.get("history") or {}, episodes.history, int(episodes.history_offsets[-1])),
        ]
        for part, columns, there, rows in groups:
            for name, value in columns.items():
                if name in types:
                    dtype, shape = types[name]
                elif name in there:
                    dtype, shape = there[name].dtype, there[name].shape[1:]
                else:
                    known = ", ".join(there) or "none"
                    raise ValueError(
                        f"returned {part} column {name!r}, which is not declared; the episodes have {known}. "
                        "Declare it: piece(columns={name: (dtype, shape)})"
                    )
                value = np.asarray(value)
                if value.shape != (rows, *shape):
                    raise ValueError(
                        f"returned {part} column {name!r} of shape {value.shape}, expected {(rows, *shape)}"
                    )
                if not np.can_cast(value.dtype, dtype, casting="same_kind"):
                    raise ValueError(f"returned {part} column {name!r} as {value.dtype}, expected {dtype}")
                out.append((part, name, values(value.astype(dtype, copy=False))))
        return out
