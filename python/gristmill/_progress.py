"""Showing a run: tqdm where it is installed, in a terminal and in a notebook, else one line that is written over."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Counts = dict[str, tuple[int, "int | None"]]
Show = Callable[[str, Counts], object]


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    if shell is None:
        return False
    running = shell.get_ipython()
    return running is not None and type(running).__name__ == "ZMQInteractiveShell"


def shown(progress: bool | Show | None) -> _Bar | Show | None:
    """What shows a run: ``None`` decides by whether somebody is looking."""
    if callable(progress):
        return progress
    looking = _in_notebook() or sys.stderr.isatty()
    return _Bar() if progress or (progress is None and looking) else None


class _Bar:
    """One bar a phase, over the first count whose total is known."""

    def __init__(self) -> None:
        self._phase: str | None = None
        self._bar: Any = None
        self._unit = "steps"

    def __call__(self, phase: str, counts: Counts) -> None:
        if not phase:
            return
        if phase != self._phase:
            self.close()
            self._phase = phase
            self._unit = next((unit for unit in ("bytes", "steps", "episodes") if counts[unit][1]), "steps")
            self._bar = _bar(phase, self._unit, counts[self._unit][1])
        self._bar.update(counts[self._unit][0] - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _bar(phase: str, unit: str, total: int | None) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _Line(phase, unit, total)
    short = {"bytes": "B", "steps": " steps", "episodes": " episodes"}[unit]
    return tqdm(desc=phase, total=total, unit=short, unit_scale=True, leave=False)


class _Line:
    """What is left of tqdm when it is not installed."""

    def __init__(self, phase: str, unit: str, total: int | None) -> None:
        self._phase, self._unit, self._total, self.n = phase, unit, total, 0

    def update(self, more: int) -> None:
        self.n += more
        share = f" {100 * self.n // self._total:3d}%" if self._total else ""
        sys.stderr.write(f"\r{self._phase}:{share} {self.n:,} {self._unit}\x1b[K")
        sys.stderr.flush()

    def close(self) -> None:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
