"""What a run tells."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """What a run did, as ``gristmill convert --json`` has it.

    Examples:
        >>> import gristmill
        >>> steps = {"eps_id": [1, 1], "obs": [0.0, 1.0], "actions": [0, 1], "rewards": [1.0, 0.5]}
        >>> report = gristmill.Job().compile(steps).report
        >>> report.episodes_in, report.steps_in
        (1, 2)
        >>> report.problems
        ['1 episode ends neither terminated nor truncated']
    """

    input_layout: str = ""
    """The layout that was recognised and why, a sentence."""
    files: int = 0
    """Input files; a table in memory counts as one."""
    input_bytes: int = 0
    """Bytes of the input."""
    episodes_in: int = 0
    """Episodes read; chunks of one, and agents of one, are counted one by one."""
    episode_ids: int = 0
    """Ids of episodes read."""
    steps_in: int = 0
    """Steps read."""
    duplicates_dropped: int = 0
    """Episodes or chunks left out because they were recorded twice."""
    filtered_out: int = 0
    """Episodes or chunks that ``input.where`` left out."""
    discontinuities: int = 0
    """Steps whose ``new_obs`` is not the next step's ``obs``."""
    problems: list[str] = field(default_factory=list)
    """What else was odd, a sentence each."""
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What came out, by folder (by module, in memory): ``columns``, ``rows``, ``shards``, ``bytes``."""
    repairs: dict[str, int] = field(default_factory=dict)
    """Rows that each repair of ``compat = "correct"`` touched."""
    seconds: float = 0.0
    """Wall time."""
    output: str = ""
    """The output directory."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What a newer library tells besides."""

    @classmethod
    def _of(cls, told: dict[str, Any]) -> Report:
        known = {f.name for f in fields(cls)} - {"extra"}
        extra = {key: value for key, value in told.items() if key not in known}
        return cls(**{key: value for key, value in told.items() if key in known}, extra=extra)
