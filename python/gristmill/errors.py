"""What gristmill raises. Each class is also the built-in exception that fits; the text is what the command line prints,
with arguments named as the package names them (``overwrite=True``)."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "DataError",
    "FilePermissionError",
    "GristmillError",
    "InternalError",
    "MissingFileError",
    "SystemFailure",
    "UnknownNameError",
    "UsageError",
]


class GristmillError(Exception):
    """Anything that gristmill raises.

    Attributes:
        hint: The remedy, where there is one. It is also part of the text.
    """

    hint: str | None = None


class UsageError(GristmillError, ValueError):
    """The call, the job or the input as a whole is wrong (the command line's exit code 2)."""


class DataError(GristmillError, ValueError):
    """The data failed a check, or an episode is malformed (exit code 1)."""


class UnknownNameError(GristmillError, KeyError):
    """There is no module or column of this name."""

    # `KeyError` shows its argument as `repr` does, and a message has lines.
    __str__ = Exception.__str__


class MissingFileError(GristmillError, FileNotFoundError):
    """A file or directory is not there."""


class FilePermissionError(GristmillError, PermissionError):
    """A file or directory may not be read or written."""


class SystemFailure(GristmillError, OSError):
    """The surroundings failed: disk full, vanished directory (exit code 3)."""


class InternalError(GristmillError, RuntimeError):
    """A bug in gristmill. Please report it with the job and, if you can, the input."""


def _unknown(what: str, name: object, there: Iterable[str], at: str) -> UnknownNameError:
    """The error for a name that is not there, with those that are."""
    names = list(there)
    near = get_close_matches(str(name), names, n=1)
    return _not_there(what, name, names, f"did you mean {near[0]!r}?" if near else None, at)


def _unknown_module(name: object, there: Iterable[str], at: str) -> UnknownNameError:
    """The error for a module that is not there. One of a split data set is named in all of its parts: whoever forgot the
    part must not be led to that of validation."""
    names = list(there)
    bare = {full: full.split("/", 1)[-1] for full in names}
    meant = get_close_matches(str(name), names if "/" in str(name) else [*bare.values()], n=1)
    alike = [full for full in names if meant and meant[0] in (full, bare[full])]
    alike.sort(key=lambda full: not full.startswith("train/"))
    hint = f"did you mean {alike[0]!r}?" if alike else None
    if len(alike) > 1:
        hint = f"the data set is split: name the part, too, {' or '.join(map(repr, alike))}"
    return _not_there("module", name, names, hint, at)


def _not_there(what: str, name: object, names: list[str], hint: str | None, at: str) -> UnknownNameError:
    text = f"found no {what} {name!r}, expected one of: {', '.join(names)}\n  at: {at}"
    error = UnknownNameError(text + (f"\n  hint: {hint}" if hint else ""))
    error.hint = hint
    return error
