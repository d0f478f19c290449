"""Shards for PyTorch: an ``IterableDataset`` of whole batches, a map-style ``Dataset`` of rows.

Tensors share memory with the arrays that a batch is read into; nothing is copied twice. Text columns (``eps_id``) have
no tensor and are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset as _MapDataset
from torch.utils.data import IterableDataset as _IterableDataset
from torch.utils.data import get_worker_info

from gristmill import dataset as _dataset
from gristmill._numpy import Array
from gristmill.batches import Batches
from gristmill.errors import UsageError

__all__ = ["IterableShards", "Shards", "collate", "tensors"]


def tensors(batch: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """The columns of a batch as tensors over the same memory.

    Read-only arrays (views of a mapped file, what :meth:`gristmill.Job.compile` returns) are copied: a tensor can always
    be written to, and such memory cannot.
    """
    if isinstance(batch, (_dataset.Dataset, _dataset.Module)):
        what = type(batch).__name__
        raise TypeError(
            f"found a {what}, expected a batch: {{column: array}}\n  hint: .read() or .batches(batch_size=..) of it has them; "
            "IterableShards and Shards are data sets of tensors"
        )
    if not isinstance(batch, Mapping):
        raise TypeError(f"found {type(batch).__name__}, expected a batch: {{column: array}}")
    out = {}
    for name, column in batch.items():
        if isinstance(column, Mapping):
            raise TypeError(
                f"found a mapping as the column {name!r}, expected an array\n  hint: pass the batch of one module: batch[{name!r}]"
            )
        if column.dtype == object:
            continue
        column = np.asarray(column)
        out[name] = torch.from_numpy(column if column.flags.writeable else column.copy())
    return out


def _module(source: Any, module: str | None) -> _dataset.Module:
    if isinstance(source, _dataset.Module):
        return source
    if not isinstance(source, _dataset.Dataset):
        source = _dataset.open(source)
    return source.module(module)


class IterableShards(_IterableDataset):  # type: ignore[type-arg]
    """Batches of a module as tensors, for a ``DataLoader`` with ``batch_size=None``.

    The workers of a loader share the batches out, and the loader gives them back in the order that one process would
    have. Pinned memory works as ever (``DataLoader(..., pin_memory=True)``). torchdata's ``StatefulDataLoader`` keeps the
    place of every worker; without workers, ``state_dict()`` and ``load_state_dict()`` of this object do.

    Args:
        source: A directory, a :class:`gristmill.Dataset` or a :class:`gristmill.Module`.
        module: Which module, if there are several.
        batch_size: Rows a batch and rank.
        rank: Which of the training processes this is; that of ``torch.distributed`` if it is initialised, else 0.
        world_size: How many they are, likewise.
        options: ``columns``, ``shuffle_seed``, ``epoch``, ``drop_last``, ``window_rows`` of :class:`gristmill.Batches`.

    Each pass over it is the next epoch, unless :meth:`set_epoch` says otherwise. In a loader with workers that are
    started anew for each pass (``persistent_workers=False``), it is the loader's process that counts: call
    :meth:`set_epoch` before each pass, as for a ``DistributedSampler``.

    Examples:
        >>> from torch.utils.data import DataLoader
        >>> shards = IterableShards("shards", batch_size=1000, shuffle_seed=7)
        >>> [tuple(batch["obs"].shape) for batch in DataLoader(shards, batch_size=None, num_workers=2)]
        [(1000, 4), (664, 4)]
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | _dataset.Dataset | _dataset.Module,
        *,
        batch_size: int,
        module: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if rank is None:
            rank = torch.distributed.get_rank() if distributed else 0
        if world_size is None:
            world_size = torch.distributed.get_world_size() if distributed else 1
        self.module = _module(source, module)
        self.batches = Batches(self.module, batch_size=batch_size, rank=rank, world_size=world_size, **options)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = get_worker_info()
        part, parts = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        for batch in self.batches._iterate(part, parts):
            yield tensors(batch)

    def set_epoch(self, epoch: int) -> None:
        """Goes to the start of an epoch."""
        self.batches.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`gristmill.Batches.state_dict`."""
        return self.batches.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :meth:`gristmill.Batches.load_state_dict`."""
        self.batches.load_state_dict(state)


class _Rows(list[dict[str, torch.Tensor]]):
    """Rows of one batch, and the batch that they are views of."""

    batch: dict[str, torch.Tensor]


class Shards(_MapDataset[dict[str, torch.Tensor]]):
    """Rows of a module as tensors, for samplers of one's own.

    A loader that asks for several rows at once (PyTorch's does) gets them in one read. With ``collate_fn=``
    :func:`collate` the batch is handed on as it was read; PyTorch's default stacks the rows anew.

    Args:
        source: A directory, a :class:`gristmill.Dataset` or a :class:`gristmill.Module`.
        module: Which module, if there are several.
        columns: Which columns; the training columns if not given.

    Examples:
        >>> from torch.utils.data import DataLoader
        >>> loader = DataLoader(Shards("shards"), batch_size=832, shuffle=True, collate_fn=collate)
        >>> [tuple(batch["obs"].shape) for batch in loader]
        [(832, 4), (832, 4)]
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | _dataset.Dataset | _dataset.Module,
        *,
        module: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        self.module = _module(source, module)
        self.columns = self.module._names(columns)

    def __len__(self) -> int:
        return len(self.module)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> _Rows:
        batch = tensors(self.module.take(rows, self.columns))
        names = list(batch)
        out = _Rows(dict(zip(names, row, strict=True)) for row in zip(*batch.values(), strict=True))
        out.batch = batch
        return out


def collate(rows: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The batch that some rows of :class:`Shards` are views of."""
    if isinstance(rows, _Rows):
        return rows.batch
    if not rows:
        raise UsageError("found no rows, expected at least one")
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

