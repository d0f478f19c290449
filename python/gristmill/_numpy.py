"""Arrays across the border to Rust: out without a copy, in with one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill._gristmill import Column, Values

Array = NDArray[Any]


def array(column: Column | list[str]) -> Array:
    """A column as an array: a read-only view of numbers, objects for text."""
    if isinstance(column, list):
        out = np.empty(len(column), dtype=object)
        out[:] = column
        return out
    return np.asarray(column)


def values(array: Array, valid: Array | None = None) -> Values:
    """An array of numbers as Rust takes it; ``valid`` says which rows have a value."""
    array = np.asarray(array)
    if array.dtype.kind not in "biuf" or array.dtype.name == "longdouble":
        raise TypeError(f"found dtype {array.dtype}, expected booleans, integers or floats of up to 64 bits")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    rows = None if valid is None else [bool(v) for v in valid]
    return Values(native.tobytes(order="C"), native.dtype.name, list(native.shape), rows)
