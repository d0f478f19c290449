"""The order of shuffled rows: a function of the seed, the epoch and the row's number, and of nothing else.

NumPy's generators may change what they draw from one version to the next, so keys are hashed here: SplitMix64's
finaliser over a Weyl sequence, which is one multiplication and a few shifts a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gristmill import _gristmill
from gristmill._numpy import Array

if TYPE_CHECKING:
    from gristmill.dataset import _Groups

_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mix(x: int) -> int:
    """SplitMix64's finaliser of one number."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def key(*parts: int) -> int:
    """One number of 64 bits for some numbers in this order."""
    out = 0
    for part in parts:
        out = mix((out + _GAMMA + (part & _MASK)) & _MASK)
    return out


def permutation(n: int, *parts: int) -> Array:
    """The numbers from 0 to ``n``, exclusive, in an order that ``parts`` decide."""
    x = np.arange(1, n + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        x = x * np.uint64(_GAMMA) + np.uint64(key(*parts))
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    # The map from row to key is one to one, so there are no ties.
    return np.argsort(x)


class Window:
    """Row groups whose rows are shuffled among each other.

    Attributes:
        groups: Numbers of the row groups.
        rows: Numbers of all their rows, in the order of the window.
    """

    def __init__(self, groups: Array, rows: Array) -> None:
        self.groups, self.rows = groups, rows
        self._places: dict[tuple[str, ...], _gristmill.Window] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return Window, (self.groups, self.rows)

    def places(self, table: _Groups, names: Sequence[str]) -> _gristmill.Window:
        """The rows as places in the row groups, and the row groups' columns ``names`` as they are read."""
        key = tuple(names)
        if key not in self._places:
            # Row groups without rows share their start with the next one, which is the one that `right` finds.
            of = np.searchsorted(table.starts, self.rows, side="right") - 1
            number = np.zeros(len(table.rows), np.int64)
            number[self.groups] = np.arange(len(self.groups))
            parts, rows = number[of], self.rows - table.starts[of]
            self._places[key] = _gristmill.Window(len(self.groups), parts.tobytes(), rows.astype(np.int64).tobytes())
        return self._places[key]
