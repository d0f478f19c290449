"""Shards as a ``TensorDict`` in TorchRL's layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDict

from gristmill._numpy import Array
from gristmill.errors import UsageError
from gristmill.torch import tensors

__all__ = ["tensordict"]

_NEXT = {"new_obs": "observation", "rewards": "reward", "terminateds": "terminated", "truncateds": "truncated"}
_ROOT = {"obs": "observation", "actions": "action"}


def tensordict(batch: Mapping[str, Array]) -> TensorDict:
    """A batch of steps (of :class:`gristmill.Batches`, :meth:`gristmill.Dataset.read`, or one module of
    :meth:`gristmill.Job.compile`) as TorchRL's losses and replay buffers take it.

    ============== ==========================
    column         key
    ============== ==========================
    ``obs``        ``observation``
    ``actions``    ``action``
    ``new_obs``    ``next``, ``observation``
    ``rewards``    ``next``, ``reward``
    ``terminateds`` ``next``, ``terminated``
    ``truncateds`` ``next``, ``truncated``
    both           ``next``, ``done``
    ============== ==========================

    ``obs/pos`` becomes ``("observation", "pos")``; all other columns keep their names. Rewards and flags get the last
    dimension of 1 that TorchRL expects. A batch of sequences has its time dimension as the second one of the batch.

    Raises:
        UsageError: If there are no rows' columns in it.
    """
    columns = tensors(batch)
    if "rewards" not in columns:
        raise UsageError(f"found the columns {', '.join(batch) or 'none'}, expected `rewards` among them")
    # Rewards are one number a step, so their shape is the batch's.
    size = columns["rewards"].shape
    out: dict[Any, Any] = {}
    for name, tensor in columns.items():
        root, *rest = name.split("/")
        if root in _NEXT:
            flat = tensor.unsqueeze(-1) if root != "new_obs" else tensor
            out["next", _NEXT[root], *rest] = flat
        else:
            out[_key(_ROOT.get(root, root), rest)] = tensor
    flags = [out["next", name] for name in ("terminated", "truncated") if ("next", name) in out]
    if flags:
        done = flags[0]
        for flag in flags[1:]:
            done = done | flag
        out["next", "done"] = done
    # One value a sequence (states, lengths) does not have the time dimension.
    short = {key: tensor for key, tensor in out.items() if tensor.shape[: len(size)] != size}
    result = TensorDict({}, batch_size=size if not short else size[:1])
    for key, tensor in out.items():
        result.set(key, tensor)
    return result


def _key(root: str, rest: list[str]) -> str | tuple[str, ...]:
    return (root, *rest) if rest else root
