"""Reading shards: by row, in batches, as Arrow."""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from gristmill import _gristmill
from gristmill._gristmill import Column, Shard, Steps
from gristmill._numpy import Array, array
from gristmill._order import Window as _Window
from gristmill.batches import Batches
from gristmill.errors import UsageError, _unknown, _unknown_module

__all__ = ["ColumnInfo", "Dataset", "Module", "open"]

PROVENANCE = ("eps_id", "agent_id", "t")
"""The columns that tell where a row came from. Training ignores them."""


@dataclass(frozen=True)
class ColumnInfo:
    """A column as the manifest describes it."""

    name: str
    dtype: str
    """NumPy's name, or ``utf8`` (which comes as an array of ``str`` objects)."""
    shape: tuple[int, ...]
    """Shape of one row."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in memory; for text an estimate."""
        return 40 if self.dtype == "utf8" else np.dtype(self.dtype).itemsize * int(np.prod(self.shape, dtype=np.int64))


def open(directory: str | os.PathLike[str], *, cache_bytes: int = 1 << 30) -> Dataset:
    """Opens a data set that gristmill wrote.

    Only the manifest is read. Parquet row groups are decoded when a row of them is asked for, and kept in memory up to
    ``cache_bytes``; uncompressed Arrow shards are mapped into memory and not copied. A shard must not be changed while
    it is open; removing it, as ``--overwrite`` does, is fine.

    Args:
        directory: The directory with ``manifest.json``.
        cache_bytes: Memory for decoded row groups, by module, and as much again by table of windows that are stored once.

    Raises:
        MissingFileError: If there is no manifest: the directory is no data set, or an unfinished one.
        UsageError: If the manifest is another version's, or says what no gristmill writes, such as a shard outside the
            directory. A shard that is damaged, a link, or has other columns or rows than the manifest says is told when it
            is read.

    Examples:
        >>> import gristmill
        >>> shards = gristmill.open("shards")
        >>> shards.modules, shards.rows
        (['default_policy'], 1664)
    """
    return Dataset(directory, cache_bytes=cache_bytes)


class Dataset(Mapping[str, "Module"]):
    """A data set: a mapping from module to :class:`Module`. Names are module ids, behind ``part/`` in a split one.

    ``len(dataset)`` is the number of modules; ``dataset.rows`` that of rows. What is about one module (``batches``,
    ``read``, ``take``, Arrow) may be asked of the data set if it has only one.

    Attributes:
        manifest: ``manifest.json`` as it is.
        path: The directory.

    Examples:
        >>> import gristmill
        >>> shards = gristmill.open("shards")
        >>> shards["default_policy"].columns["obs"].shape
        (4,)
        >>> shards.stats["default_policy"]["rewards"]["mean"]
        1.0
        >>> shards.read(["obs", "actions"])["obs"].shape
        (1664, 4)
    """

    def __init__(self, directory: str | os.PathLike[str], *, cache_bytes: int = 1 << 30) -> None:
        self.path = Path(directory)
        core = _gristmill.Dataset(self.path)
        self.manifest: dict[str, Any] = json.loads(core.manifest())
        self._modules = {
            name: Module(core, self.path, name, record, self.manifest["content_digest"], cache_bytes)
            for name, record in self.manifest["modules"].items()
        }

    def __getitem__(self, name: str) -> Module:
        try:
            return self._modules[name]
        except KeyError:
            raise _unknown_module(name, self._modules, str(self.path)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __repr__(self) -> str:
        return f"<gristmill.Dataset {str(self.path)!r}: {', '.join(map(repr, self._modules.values()))}>"

    @property
    def modules(self) -> list[str]:
        """The names of the modules."""
        return list(self._modules)

    @property
    def rows(self) -> int:
        """Rows of all modules."""
        return sum(len(module) for module in self._modules.values())

    @property
    def stats(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Statistics over real steps, ``{module: {column: {"mean": .., ..}}}``, from the manifest."""
        return {name: module.stats for name, module in self._modules.items()}

    def module(self, name: str | None = None) -> Module:
        """A module by name; without a name, the only one."""
        if name is not None:
            return self[name]
        if len(self._modules) != 1:
            there = ", ".join(self._modules)
            raise UsageError(f"found {len(self._modules)} modules, expected the name of one: {there}")
        return next(iter(self._modules.values()))

    def batches(self, module: str | None = None, *, batch_size: int, **options: Any) -> Batches:
        """Batches of a module: see :meth:`Module.batches`."""
        return self.module(module).batches(batch_size=batch_size, **options)

    def read(self, columns: Sequence[str] | None = None) -> dict[str, Array]:
        """All rows of the only module: see :meth:`Module.read`."""
        return self.module().read(columns)

    def take(self, rows: Any, columns: Sequence[str] | None = None) -> dict[str, Array]:
        """Rows of the only module: see :meth:`Module.take`."""
        return self.module().take(rows, columns)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.module().__arrow_c_stream__(requested_schema)


class Module(Sequence["dict[str, Array]"]):
    """The train batch of one module: a sequence of rows, each ``{column: array}``.

    Safe to use from several threads. Pickled, it is its directory and name, so it goes to other processes for nothing.

    Attributes:
        name: Its name in the data set.
        columns: Its columns by name, in the order of the files.
        digest: Digest of all its rows, which no cut into files and no compression changes.
        stats: Statistics of its columns over real steps, ``{column: {"mean": .., ..}}``, from the manifest.

    Examples:
        >>> import gristmill
        >>> module = gristmill.open("shards").module()
        >>> len(module), module[0]["obs"].shape, module[:3]["obs"].shape
        (1664, (4,), (3, 4))
        >>> module.take([0, -1], ["rewards", "terminateds"])["rewards"].tolist()
        [1.0, 1.0]
    """

    def __init__(
        self,
        core: _gristmill.Dataset,
        directory: Path,
        name: str,
        record: Mapping[str, Any],
        content_digest: str,
        cache_bytes: int,
    ) -> None:
        self.name = name
        self._stored = {c["name"]: ColumnInfo(c["name"], c["dtype"], tuple(c["shape"])) for c in record["columns"]}
        # Of windows that are stored once: which table each column is laid out from, and the index of each table.
        batch = {c["name"]: c for c in record.get("batch", [])}
        self._windows: dict[str, str] = {n: c["table"] for n, c in batch.items() if c.get("table") is not None}
        self._index = {t: [f"{t}_{part}" for part in ("offset", "length", "pad")] for t in record.get("tables", {})}
        index = {name for names in self._index.values() for name in names}
        own = {n: c for n, c in self._stored.items() if n not in batch and n not in index}
        self.columns = own | {n: ColumnInfo(n, c["dtype"], tuple(c["shape"])) for n, c in batch.items()}
        self.digest: str = record["digest"]
        self.stats: dict[str, dict[str, Any]] = {
            c["name"]: c["statistics"]
            for columns in (record["columns"], *(t["steps"]["columns"] for t in record.get("tables", {}).values()))
            for c in columns
            if c.get("statistics") is not None and c["name"] in self.columns
        }
        self._core = core
        self._directory = directory
        self._shard_count = len(record["shards"])
        self._rows = int(record["rows"])
        self._content_digest = content_digest
        self._cache_bytes = cache_bytes
        self._lock = Lock()
        self._shards: dict[int, Shard] = {}
        self._steps: dict[str, Steps] = {}
        self._groups: _Groups | None = None
        self._cache: OrderedDict[tuple[int, str], tuple[Column | list[str], int]] = OrderedDict()
        self._cached = 0
        # What the last rows side by side lay in: their row group, its columns, and these as arrays.
        self._last: tuple[int, Sequence[str], list[Array]] = -1, (), []

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._directory, self.name, self._content_digest, self._cache_bytes)

    def __repr__(self) -> str:
        return f"<gristmill.Module {self.name!r}: {self._rows:,} rows of {', '.join(self.columns)}>"

    def __len__(self) -> int:
        return self._rows

    @property
    def training_columns(self) -> list[str]:
        """All columns but those that tell where a row came from (``eps_id``, ``agent_id``, ``t``)."""
        return [name for name in self.columns if name not in PROVENANCE]

    def batches(
        self,
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
    ) -> Batches:
        """Batches in the order of the files, or shuffled. See :class:`gristmill.Batches`, whose arguments these are."""
        return Batches(
            self,
            batch_size=batch_size,
            columns=columns,
            shuffle_seed=shuffle_seed,
            epoch=epoch,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
            window_rows=window_rows,
            copy=copy,
        )

    def read(self, columns: Sequence[str] | None = None) -> dict[str, Array]:
        """All rows of the training columns, or of those that are named."""
        return self.take(slice(None), columns)

    def take(self, rows: Any, columns: Sequence[str] | None = None, *, copy: bool = True) -> dict[str, Array]:
        """Rows by number, as arrays that belong to the caller.

        Args:
            rows: A slice, or an array of row numbers from 0; negative ones count from the end.
            columns: Which columns; the training columns if not given.
            copy: With ``False``, rows that lie side by side in one row group come as read-only views.

        Raises:
            IndexError: If there is no such row.
            UnknownNameError: If there is no such column.

        Examples:
            >>> import gristmill
            >>> gristmill.open("shards").module().take(slice(0, 1664, 500), ["t"])["t"].shape
            (4,)
        """
        names = self._names(columns)
        if isinstance(rows, slice):
            start, stop, step = rows.indices(self._rows)
            if step == 1:
                return self._span(names, start, max(start, stop), copy)
            rows = np.arange(start, stop, step, dtype=np.int64)
        rows = np.asarray(rows)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise TypeError(f"found rows of dtype {rows.dtype} in {rows.ndim} dimensions, expected a list of integers")
        rows = rows.astype(np.int64)
        rows = np.where(rows < 0, rows + self._rows, rows)
        if rows.size and not (0 <= rows.min() and rows.max() < self._rows):
            wrong = int(rows.max() if rows.max() >= self._rows else rows.min())
            raise IndexError(f"found row {wrong}, expected one of the {self._rows} rows of module {self.name!r}")
        return self._gather(names, rows)

    def __getitem__(self, row: Any) -> dict[str, Array]:  # type: ignore[override]
        """One row (``{column: array}`` without the dimension of rows), or rows as :meth:`take` gives them."""
        if isinstance(row, (int, np.integer)):
            at = int(row) + (self._rows if row < 0 else 0)
            if not 0 <= at < self._rows:
                raise IndexError(f"found row {row}, expected one of the {self._rows} rows of module {self.name!r}")
            return {name: column[0] for name, column in self._span(self._names(None), at, at + 1, True).items()}
        if isinstance(row, str):
            self._names([row])
            raise TypeError(f"found {row!r}, expected a row or rows\n  hint: a column as a whole is .read()[{row!r}]")
        return self.take(row)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """All columns as an Arrow stream, row group by row group: ``pyarrow.table(module)``, ``polars.from_arrow``.

        Tensors have Arrow's ``fixed_shape_tensor`` type. Another schema than theirs is not made of them.
        """
        return self._core.stream(self.name, [self._shard(i) for i in range(self._shard_count)])

    # What is below is the package's own.

    def _names(self, columns: Sequence[str] | None) -> list[str]:
        if columns is None:
            return self.training_columns
        names = [columns] if isinstance(columns, str) else list(columns)
        for name in names:
            if name not in self.columns:
                raise _unknown("column", name, self.columns, f"module {self.name!r} of {self._directory}")
        return names

    def _shard(self, shard: int) -> Shard:
        with self._lock:
            if shard not in self._shards:
                self._shards[shard] = self._core.shard(self.name, shard)
            return self._shards[shard]

    @property
    def _table(self) -> _Groups:
        """Where the row groups are. Opens every shard's footer once."""
        if self._groups is None:
            counts = [self._shard(i).row_groups() for i in range(self._shard_count)]
            self._groups = _Groups(counts)
        return self._groups

    def _raw_group(self, group: int, names: Sequence[str]) -> list[Column | list[str]]:
        """Columns of one row group, out of the cache or the shard."""
        with self._lock:
            there = {name: self._cache[group, name][0] for name in names if (group, name) in self._cache}
            for name in there:
                self._cache.move_to_end((group, name))
        missing = [name for name in names if name not in there]
        if missing:
            shard = self._shard(int(self._table.shard[group]))
            for name, column in zip(missing, shard.read(int(self._table.number[group]), missing), strict=True):
                there[name] = column
                rows, info = int(self._table.rows[group]), self._stored[name]
                mapped = not isinstance(column, list) and shard.holds(column)
                self._keep((group, name), column, 0 if mapped else rows * info.row_bytes)
        return [there[name] for name in names]

    def _column_group(self, group: int, names: Sequence[str]) -> list[Array]:
        """The same as arrays."""
        last = self._last
        if last[0] != group or last[1] != names:
            last = self._last = group, list(names), [array(column) for column in self._raw_group(group, names)]
        return last[2]

    def _keep(self, key: tuple[int, str], column: Column | list[str], size: int) -> None:
        """Keeps a column of a row group that takes so many bytes, and lets go of those that were not asked for longest."""
        with self._lock:
            _, before = self._cache.pop(key, (None, 0))
            self._cache[key] = column, size
            self._cached += size - before
            while self._cached > self._cache_bytes and len(self._cache) > 1:
                _, (_, gone) = self._cache.popitem(last=False)
                self._cached -= gone

    def _span(self, names: Sequence[str], start: int, stop: int, copy: bool) -> dict[str, Array]:
        """Rows side by side."""
        return self._laid_out(names, lambda stored: self._stored_span(stored, start, stop, copy), range(start, stop))

    def _gather(self, names: Sequence[str], rows: Array) -> dict[str, Array]:
        """Rows anywhere."""
        return self._laid_out(names, lambda stored: self._stored_gather(stored, rows), rows)

    def _shuffled(self, names: Sequence[str], pieces: Sequence[tuple[_Window, int, int]]) -> dict[str, Array]:
        """Rows of shuffle windows: of each so many places of its order."""
        return self._laid_out(names, lambda stored: self._stored_shuffled(stored, pieces), ())

    def _laid_out(
        self, names: Sequence[str], read: Callable[[Sequence[str]], dict[str, Array]], rows: Sequence[int] | Array
    ) -> dict[str, Array]:
        """Columns of some rows, windows laid out; ``read`` gives the columns that are stored. Errors name one of ``rows``."""
        if not self._windows:
            return read(names)
        by_table: dict[str, list[str]] = {}
        numbers = np.asarray(rows, dtype=np.int64).tobytes()
        for name in names:
            if name in self._windows:
                by_table.setdefault(self._windows[name], []).append(name)
        wanted = [name for name in names if name not in self._windows]
        stored = read(list(dict.fromkeys(wanted + [name for table in by_table for name in self._index[table]])))
        for table, own in by_table.items():
            with self._lock:
                if table not in self._steps:
                    self._steps[table] = self._core.steps(self.name, table, self._cache_bytes)
                steps = self._steps[table]
            index = [np.ascontiguousarray(stored[name]).tobytes() for name in self._index[table]]
            stored.update(zip(own, map(array, steps.lay_out(own, index, numbers)), strict=True))
        return {name: stored[name] for name in names}

    def _stored_span(self, names: Sequence[str], start: int, stop: int, copy: bool) -> dict[str, Array]:
        spans = list(self._table.spans(start, stop))
        if len(spans) == 1:
            group, first, last = spans[0]
            columns = zip(names, self._column_group(group, names), strict=True)
            return {name: column[first:last].copy() if copy else column[first:last] for name, column in columns}
        pieces: list[list[Array]] = [[] for _ in names]
        for group, first, last in spans:
            for out, column in zip(pieces, self._column_group(group, names), strict=True):
                out.append(column[first:last])
        joined = {}
        for name, parts in zip(names, pieces, strict=True):
            joined[name] = np.concatenate(parts) if parts else self._empty(name, 0)
        return joined

    def _stored_shuffled(self, names: Sequence[str], pieces: Sequence[tuple[_Window, int, int]]) -> dict[str, Array]:
        if any(self._stored[name].dtype == "utf8" for name in names):
            rows = [window.rows[start:stop] for window, start, stop in pieces]
            return self._stored_gather(names, np.concatenate(rows))
        parts: list[list[Array]] = []
        for window, start, stop in pieces:
            places = window.places(self._table, names)
            for part in places.missing(start, stop):
                places.put(part, self._raw_group(int(window.groups[part]), names))  # type: ignore[arg-type]
            parts.append([array(column) for column in places.rows(start, stop)])
        columns = parts[0] if len(parts) == 1 else [np.concatenate(column) for column in zip(*parts, strict=True)]
        return dict(zip(names, columns, strict=True))

    def _stored_gather(self, names: Sequence[str], rows: Array) -> dict[str, Array]:
        if len(rows) == 0:
            return {name: self._empty(name, 0) for name in names}
        table = self._table
        # Groups without rows share their start with the next one, which is the one that `right` finds.
        groups = np.searchsorted(table.starts, rows, side="right") - 1
        local = rows - table.starts[groups]
        needed, parts = np.unique(groups, return_inverse=True)
        raw = [self._raw_group(int(group), names) for group in needed]
        by_column = dict(zip(names, zip(*raw, strict=True), strict=True))
        numbers = [name for name in names if self._stored[name].dtype != "utf8"]
        place = parts.astype(np.int64).tobytes(), local.astype(np.int64).tobytes()
        gathered = dict(zip(numbers, _gristmill.gather([by_column[name] for name in numbers], *place), strict=True))
        out = {}
        for name in names:
            if name in gathered:
                out[name] = array(gathered[name])
            else:
                out[name] = self._empty(name, len(rows))
                out[name][:] = [by_column[name][part][row] for part, row in zip(parts, local, strict=True)]
        return out

    def _empty(self, name: str, rows: int) -> Array:
        column = self._stored[name]
        dtype = object if column.dtype == "utf8" else column.dtype
        return np.empty((rows, *column.shape), dtype=dtype)


def _reopen(directory: Path, name: str, content_digest: str, cache_bytes: int) -> Module:
    dataset = Dataset(directory, cache_bytes=cache_bytes)
    if dataset.manifest["content_digest"] != content_digest:
        raise UsageError(f"the data set was written anew since it was opened\n  at: {directory}")
    return dataset[name]


class _Groups:
    """All row groups of a module, numbered in the order of their rows."""

    def __init__(self, counts: Sequence[Sequence[int]]) -> None:
        self.shard = np.repeat(np.arange(len(counts)), [len(c) for c in counts])
        self.number = np.concatenate([np.arange(len(c)) for c in counts]) if counts else np.zeros(0, np.int64)
        self.rows = np.array([n for c in counts for n in c], dtype=np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.rows)[:-1]]).astype(np.int64)
        # For one row group at a time lists are several times faster than arrays.
        self._rows: list[int] = self.rows.tolist()
        self._starts: list[int] = self.starts.tolist()

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Row groups that hold rows ``start`` to ``stop``, exclusive, with the rows inside each."""
        group = bisect_right(self._starts, start) - 1
        while start < stop:
            first = start - self._starts[group]
            last = min(self._rows[group], stop - self._starts[group])
            if last > first:
                yield group, first, last
                start += last - first
            group += 1
