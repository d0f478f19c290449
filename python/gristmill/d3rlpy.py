"""Shards as d3rlpy's ``MDPDataset``."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from gristmill import dataset as _dataset
from gristmill._numpy import Array
from gristmill.errors import UsageError

__all__ = ["arrays", "mdp_dataset"]


def arrays(
    source: str | os.PathLike[str] | _dataset.Dataset | _dataset.Module, *, module: str | None = None
) -> dict[str, Array]:
    """``observations``, ``actions``, ``rewards``, ``terminals`` and ``timeouts`` of a stateless module.

    d3rlpy cuts episodes where one of the last two is true. A chunk that ends neither terminated nor truncated (it was
    cut from an episode) ends in a timeout, so that no transition crosses from one episode to the next.

    Raises:
        UsageError: If the module's rows are sequences, or its observations are several columns.
    """
    if not isinstance(source, (_dataset.Dataset, _dataset.Module)):
        source = _dataset.open(source)
    rows = source if isinstance(source, _dataset.Module) else source.module(module)
    if "seq_lens" in rows.columns:
        raise UsageError("found rows that are sequences, expected one step a row: d3rlpy cuts episodes itself")
    missing = [name for name in ("obs", "actions", "rewards", "terminateds", "truncateds") if name not in rows.columns]
    if missing:
        there = ", ".join(rows.columns)
        hint = "\n  hint: FlattenObservations joins observations of several columns" if "obs" in missing else ""
        raise UsageError(f"found no column {missing[0]!r} among {there}{hint}")
    agent = ["agent_id"] if "agent_id" in rows.columns else []
    data = rows.read(["obs", "actions", "rewards", "terminateds", "truncateds", "eps_id", "t", *agent])
    terminals, timeouts = data["terminateds"], data["truncateds"].copy()
    if len(rows):
        ends = np.ones(len(rows), dtype=bool)
        ends[:-1] = (data["eps_id"][1:] != data["eps_id"][:-1]) | (data["t"][1:] != data["t"][:-1] + 1)
        for name in agent:
            ends[:-1] |= data[name][1:] != data[name][:-1]
        timeouts |= ends
    # d3rlpy refuses an end of both kinds; a terminal state needs no bootstrap, so that one stays.
    timeouts &= ~terminals
    actions, rewards = data["actions"], data["rewards"]
    return {
        "observations": data["obs"],
        "actions": actions if actions.ndim > 1 else actions.reshape(-1, 1),
        "rewards": rewards.reshape(-1, 1),
        "terminals": terminals.astype(np.float32),
        "timeouts": timeouts.astype(np.float32),
    }


def mdp_dataset(
    source: str | os.PathLike[str] | _dataset.Dataset | _dataset.Module,
    *,
    module: str | None = None,
    **options: Any,
) -> Any:
    """An ``MDPDataset`` of a stateless module. ``options`` are its own (``action_space``, ``action_size``, ..)."""
    from d3rlpy.dataset import MDPDataset

    return MDPDataset(**arrays(source, module=module), **options)
