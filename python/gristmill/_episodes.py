"""What :meth:`gristmill.Job.compile` takes: tables, columns, RLlib's episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gristmill._gristmill import Table, Values
from gristmill._numpy import Array, values
from gristmill.errors import UsageError

_EXPECTED = (
    "expected a table (pyarrow, polars, anything with `__arrow_c_stream__`), a mapping from column name to array, "
    "or a list of RLlib's SingleAgentEpisode or MultiAgentEpisode"
)


def table(data: Any) -> Table:
    """The data as a table for Rust.

    Raises:
        TypeError: If it is nothing that can be compiled.
    """
    if hasattr(data, "__arrow_c_stream__"):
        return Table.from_stream(data)
    if isinstance(data, Mapping):
        return columns(data)
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes)):
        episodes = list(data)
        if not episodes:
            raise UsageError("found no episodes, expected at least one")
        if all(_is_single(e) for e in episodes):
            return Table.from_items([_item(e) for e in episodes])
        if all(_is_multi(e) for e in episodes):
            return columns(_multi_agent(episodes))
        kinds = sorted({type(e).__name__ for e in episodes})
        raise TypeError(f"found a list of {', '.join(kinds)}; {_EXPECTED}")
    raise TypeError(f"found {type(data).__name__}; {_EXPECTED}")


def columns(data: Mapping[str, Any]) -> Table:
    """A table of columns: arrays or lists of one row a step. A nested mapping is a Dict observation, or the like.

    In a list, ``None`` stands for a missing value; in a masked array, what is masked does.
    """
    out: list[tuple[str, Values | list[str | None]]] = []
    for name, column in _leaves(data):
        try:
            out.append((name, _column(column)))
        except (TypeError, ValueError) as error:
            raise UsageError(f"{error}\n  at: column `{name}`") from error
    return Table.from_columns(out)


def _leaves(data: Mapping[str, Any], root: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{root}{name}/")
        else:
            yield f"{root}{name}", value


def _column(column: Any) -> Values | list[str | None]:
    if isinstance(column, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(column)
        missing = mask.reshape(len(mask), -1).any(axis=1) if len(mask) else np.zeros(0, bool)
        return values(column.filled(0), ~missing)
    array = column if isinstance(column, np.ndarray) else None
    if array is None:
        rows = list(column)
        there = [row for row in rows if row is not None]
        if not there or all(isinstance(row, str) for row in there):
            return [None if row is None else str(row) for row in rows]
        if len(there) < len(rows):
            filler = np.zeros_like(np.asarray(there[0]))
            array = np.asarray([filler if row is None else row for row in rows])
            return values(array, np.asarray([row is not None for row in rows]))
        array = np.asarray(rows)
    if array.ndim == 0:
        raise TypeError("found a single value, expected one row a step")
    if array.dtype.kind in "UOST":
        text = array.tolist()
        if array.ndim == 1 and all(row is None or isinstance(row, str) for row in text):
            return text
    return values(array)


def _is_single(episode: Any) -> bool:
    return hasattr(episode, "get_state") and hasattr(episode, "extra_model_outputs") and hasattr(episode, "t_started")


def _is_multi(episode: Any) -> bool:
    return hasattr(episode, "agent_episodes")


def _item(episode: Any) -> bytes:
    """An episode as RLlib's recorder packs it: its state in msgpack, look-back included."""
    import msgpack
    import msgpack_numpy

    def encode(value: Any) -> Any:
        encoded = msgpack_numpy.encode(value)
        # What msgpack cannot hold (an object in `infos` or `custom_data`) no connector reads.
        return None if encoded is value else encoded

    packed: bytes = msgpack.packb(episode.get_state(), default=encode)
    return packed


def _multi_agent(episodes: Sequence[Any]) -> dict[str, Any]:
    """Rows of steps, agent by agent in the order in which they first act. Look-back is left behind.

    The observation after an agent's last step is one more row, without an action.
    """
    parts: list[dict[str, Any]] = []
    for episode in episodes:
        agents = [agent for agent in episode.agent_episodes.values() if len(agent) > 0]
        agents.sort(key=lambda agent: _first_step(episode, agent.agent_id))
        parts.extend(_agent_rows(episode, agent) for agent in agents)
    if not parts:
        raise UsageError("found no step in any episode, expected at least one")
    names: dict[str, Array] = {}
    for part in parts:
        for name, column in part["columns"].items():
            names.setdefault(name, column)
    out: dict[str, Any] = {}
    for key in ("eps_id", "agent_id", "module_id"):
        column = [value for part in parts for value in [part[key]] * part["rows"]]
        if any(value is not None for value in column):
            out[key] = column
    out["t"] = np.concatenate([part["t"] for part in parts])
    for name, like in names.items():
        pieces, valid = [], []
        for part in parts:
            column = part["columns"].get(name)
            if column is None:
                column = np.zeros((0, *like.shape[1:]), like.dtype)
            if column.shape[1:] != like.shape[1:]:
                raise UsageError(
                    f"found rows of shape {column.shape[1:]} and {like.shape[1:]}, expected agents whose shapes agree\n"
                    f"  at: episode {str(part['eps_id'])!r}, column `{name}`"
                )
            short = part["rows"] - len(column)
            pieces.append(np.concatenate([column, np.zeros((short, *like.shape[1:]), column.dtype)]))
            valid.append(np.arange(part["rows"]) < len(column))
        mask = np.concatenate(valid)
        joined = np.concatenate(pieces)
        shaped = np.broadcast_to(~mask.reshape(-1, *[1] * (joined.ndim - 1)), joined.shape)
        out[name] = joined if mask.all() else np.ma.MaskedArray(joined, shaped)
    for name in ("terminateds", "truncateds"):
        out[name] = np.concatenate([part[name] for part in parts])
    return out


def _first_step(episode: Any, agent_id: Any) -> int:
    """The environment's step at which an agent first has an observation."""
    times = episode.env_t_to_agent_t[agent_id]
    data = getattr(times, "data", times)
    return next((t for t, own in enumerate(data) if isinstance(own, (int, np.integer))), len(data))


def _agent_rows(episode: Any, agent: Any) -> dict[str, Any]:
    steps = len(agent)
    flat: dict[str, Array] = {}
    _batched(flat, "obs", agent.get_observations(slice(0, steps + 1)), steps + 1)
    _batched(flat, "actions", agent.get_actions(slice(0, steps)), steps)
    _batched(flat, "rewards", agent.get_rewards(slice(0, steps)), steps)
    for key in agent.extra_model_outputs:
        _batched(flat, key, agent.get_extra_model_outputs(key, slice(0, steps)), steps)
    ends = np.zeros(steps + 1, dtype=bool)
    # The row behind the last step repeats the episode's end: it carries nothing but the observation.
    at = [steps - 1, steps]
    terminateds, truncateds = ends.copy(), ends.copy()
    terminateds[at], truncateds[at] = bool(agent.is_terminated), bool(agent.is_truncated)
    return {
        "rows": steps + 1,
        "eps_id": str(episode.id_),
        "agent_id": None if agent.agent_id is None else str(agent.agent_id),
        "module_id": None if agent.module_id is None else str(agent.module_id),
        "t": np.arange(agent.t_started, agent.t_started + steps + 1, dtype=np.int64),
        "columns": flat,
        "terminateds": terminateds,
        "truncateds": truncateds,
    }


def _batched(out: dict[str, Array], name: str, data: Any, rows: int) -> None:
    """Adds the leaves of some steps' values: a list of values, or a nest of arrays (an episode after `to_numpy`)."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            _batched(out, f"{name}/{key}", value, rows)
    elif isinstance(data, tuple):
        for i, value in enumerate(data):
            _batched(out, f"{name}/{i}", value, rows)
    elif isinstance(data, list) and data and isinstance(data[0], Mapping):
        for key in data[0]:
            _batched(out, f"{name}/{key}", [value[key] for value in data], rows)
    elif isinstance(data, list) and data and isinstance(data[0], tuple):
        for i in range(len(data[0])):
            _batched(out, f"{name}/{i}", [value[i] for value in data], rows)
    else:
        column = np.asarray(data)
        if column.shape[:1] != (rows,):
            raise UsageError(f"found {column.shape[:1]} values, expected {rows}\n  at: column `{name}`")
        out[name] = column
