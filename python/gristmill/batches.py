"""Batches of rows: in the order of the files or shuffled, for one process or many, to be left and taken up again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill._numpy import Array
from gristmill._order import Window, permutation
from gristmill.errors import UsageError

if TYPE_CHECKING:
    from gristmill.dataset import Module

__all__ = ["Batches"]

WINDOW_BYTES = 256 << 20
"""Decoded size of the rows that are shuffled among each other, if the caller does not say how many they are."""

_STATE_VERSION = 1


class Batches:
    """Batches of one epoch, each ``{column: array}``.

    All ranks walk along one order of the rows. A step takes ``world_size * batch_size`` rows of it, and rank ``r`` gets
    the ``r``-th batch of them::

        order    r7 r2 r9 r0 r5 r1 | r8 r3 r6 r4            10 rows, batch_size 3, world_size 2
        rank 0   r7 r2 r9          | r8 r3                   the rest is cut evenly; drop_last leaves it out
        rank 1            r0 r5 r1 |       r6 r4

    The order depends on the data, the seed and the epoch. So the state is one number, the rows that all ranks together
    have taken: it is the same on every rank, and what was left with one world size goes on exactly with another, or
    with another batch size.

    Shuffled, row groups come in a random order, windows of neighbours in it hold at least ``window_rows`` rows, and
    the rows of a window are shuffled among each other. A module that fits into one window is shuffled as a whole. The
    row groups of the window at hand are kept, whatever the data set's ``cache_bytes``: each is decoded when a row of it
    is asked for, once, and one of which a rank takes no row is not.

    Args:
        module: The module.
        batch_size: Rows a batch and rank.
        columns: Which columns; the training columns if not given.
        shuffle_seed: Shuffles, by this seed; ``None`` keeps the order of the files.
        epoch: Number of the epoch; every epoch has an order of its own.
        rank: Which of the processes this is, from 0.
        world_size: How many they are.
        drop_last: Leaves out the last rows if they do not fill a step of all ranks. Without it, the last batch may be
            smaller, and ranks may differ by one batch where less than ``world_size`` rows are left.
        window_rows: Least number of rows to be shuffled among each other; 256 MiB of rows if not given.
        copy: With ``False``, batches that lie side by side in one row group come as read-only views: only without
            shuffling.

    Iterating goes on from where the state stands, and at the end of the epoch puts it to the start of the next one: a
    second loop over the same object is the second epoch.

    Raises:
        UsageError: If a number is out of its range.
        UnknownNameError: If there is no such column.

    Examples:
        >>> import gristmill
        >>> shards = gristmill.open("shards")
        >>> batches = shards.batches(batch_size=1000, shuffle_seed=7, columns=["obs", "actions"])
        >>> [len(batch["obs"]) for batch in batches], batches.epoch
        ([1000, 664], 1)

        A training that stops goes on exactly where it was:

        >>> first = next(iter(batches))
        >>> state = batches.state_dict()
        >>> later = shards.batches(batch_size=1000, shuffle_seed=7, columns=["obs", "actions"])
        >>> later.load_state_dict(state)
        >>> [len(batch["obs"]) for batch in later]
        [664]
    """

    def __init__(
        self,
        module: Module,
        *,
        batch_size: int,
        columns: Sequence[str] | None = None,
        shuffle_seed: int | None = None,
        epoch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        window_rows: int | None = None,
        copy: bool = True,
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"found batch_size = {batch_size}, expected at least 1")
        if not 0 <= rank < world_size:
            raise UsageError(f"found rank = {rank} of world_size = {world_size}, expected 0 <= rank < world_size")
        if window_rows is not None and window_rows < 1:
            raise UsageError(f"found window_rows = {window_rows}, expected at least 1")
        self.module = module
        self.columns = module._names(columns)
        self.batch_size, self.rank, self.world_size, self.drop_last = batch_size, rank, world_size, drop_last
        self.shuffle_seed = shuffle_seed
        self.copy = copy
        if window_rows is None:
            # Of all columns: the order must not depend on which ones are read.
            row_bytes = sum(column.row_bytes for column in module.columns.values())
            window_rows = max(1, WINDOW_BYTES // max(1, row_bytes))
        self.window_rows = window_rows
        self._epoch, self._position = epoch, 0
        self._order: _Order | None = None

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Goes to the start of an epoch."""
        self._epoch, self._position = epoch, 0

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch."""
        rows, step = len(self.module), self.batch_size * self.world_size
        start, stop = self._share(rows - rows % step, rows)
        return rows // step + (stop > start and not self.drop_last)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return self._iterate(0, 1)

    def _iterate(self, part: int, parts: int) -> Iterator[dict[str, Array]]:
        """Every ``parts``-th batch of the rank, from the ``part``-th on."""
        rows, step = len(self.module), self.batch_size * self.world_size
        while self._position < rows:
            end = min(self._position + step, rows)
            if end - self._position < step and self.drop_last:
                break
            # Counted from the start of the epoch, so that it does not depend on where somebody went on. After a change
            # of the batch size the grid may be another, which moves batches between parts and loses none: a part that
            # goes on counts the same way as its neighbours.
            number = -(-self._position // step)
            start, stop = self._share(self._position, end)
            self._position = end
            if number % parts == part and stop > start:
                yield self._batch(start, stop)
        self._epoch, self._position = self._epoch + 1, 0

    def _share(self, start: int, end: int) -> tuple[int, int]:
        """This rank's part of a step's rows: a whole batch, or an even part of the rest."""
        rows = end - start
        if rows == self.batch_size * self.world_size:
            return start + self.rank * self.batch_size, start + (self.rank + 1) * self.batch_size
        return start + rows * self.rank // self.world_size, start + rows * (self.rank + 1) // self.world_size

    def _batch(self, start: int, stop: int) -> dict[str, Array]:
        if self.shuffle_seed is None:
            return self.module._span(self.columns, start, stop, self.copy)
        if self._order is None or self._order.epoch != self._epoch:
            rows = self.module._table.rows
            self._order = _Order(rows, self.module._table.starts, self.window_rows, self.shuffle_seed, self._epoch)
        return self.module._shuffled(self.columns, self._order.pieces(start, stop))

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch starts: plain data, the same on every rank."""
        return {
            "version": _STATE_VERSION,
            "epoch": self._epoch,
            "position": self._position,
            "shuffle_seed": self.shuffle_seed,
            "window_rows": self.window_rows,
            "module": self.module.name,
            "digest": self.module.digest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the state was taken: with the same rows in the same order, whatever world size or batch size.

        Raises:
            UsageError: If the state is of another module, other data, or another order.
        """
        if state.get("version") != _STATE_VERSION:
            raise UsageError(f"found a state of version {state.get('version')}, expected {_STATE_VERSION}")
        own = self.state_dict()
        for name in ("module", "digest", "shuffle_seed", "window_rows"):
            found, expected = state.get(name), own[name]
            # Without shuffling there are no windows.
            if found != expected and not (name == "window_rows" and self.shuffle_seed is None):
                raise UsageError(f"found a state with {name} = {found!r}, expected {expected!r}: it would not go on")
        self._epoch, self._position = int(state["epoch"]), int(state["position"])


class _Order:
    """The rows of an epoch in shuffled order, window by window: only windows that are looked at are drawn."""

    def __init__(self, rows: Array, starts: Array, window_rows: int, seed: int, epoch: int) -> None:
        self.epoch = epoch
        self._seed = seed
        self._rows, self._starts = rows, starts
        # One permutation for row groups, and one for the rows of each window: the window's number tells them apart.
        groups = permutation(len(rows), seed, epoch, 0)
        total = np.cumsum(rows[groups])
        self._windows: list[Array] = []
        self._ends: list[int] = []
        first, begun = 0, 0
        for i, end in enumerate(total.tolist()):
            if end - begun >= window_rows or i + 1 == len(groups):
                self._windows.append(groups[first : i + 1])
                self._ends.append(end)
                first, begun = i + 1, end
        self._drawn: tuple[int, Window] | None = None

    def pieces(self, start: int, stop: int) -> list[tuple[Window, int, int]]:
        """Where the rows at places ``start`` to ``stop``, exclusive, are: windows, and places in the order of each."""
        out = []
        window = bisect_right(self._ends, start)
        while start < stop:
            begin = self._ends[window - 1] if window else 0
            until = min(stop, self._ends[window])
            out.append((self._window(window), start - begin, until - begin))
            start = until
            window += 1
        return out

    def _window(self, window: int) -> Window:
        if self._drawn is None or self._drawn[0] != window:
            groups = self._windows[window]
            rows = np.concatenate([np.arange(self._starts[g], self._starts[g] + self._rows[g]) for g in groups])
            order = permutation(len(rows), self._seed, self.epoch, window + 1)
            self._drawn = window, Window(groups, rows[order])
        return self._drawn[1]
