"""A dataclass for every table of a job.

Generated from the library's schemas: `make schemas` makes it anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "Input",
    "Learner",
    "ModuleOverride",
    "MultiAgent",
    "Output",
    "RlModule",
    "Spaces",
]


@dataclass(kw_only=True)
class Spaces:
    """Gymnasium's spaces."""

    obs: Any | None = None
    """The observation space."""

    actions: Any | None = None
    """The action space."""


@dataclass(kw_only=True)
class ModuleOverride:
    """Settings of one module. What is not set is taken from `rl_module` itself."""

    stateful: bool | None = None
    """Whether this module is recurrent."""

    max_seq_len: int | None = None
    """Steps per sequence of this module."""

    initial_state: dict[str, Any] | None = None
    """State of this module before the first step of an episode."""


@dataclass(kw_only=True)
class Input:
    """What to read."""

    paths: list[str] = field(default_factory=lambda: [])
    """Files, globs or directories, relative to the job file. Files are read in sorted order."""

    layout: Literal["auto", "rllib-columns", "rllib-episodes", "steps"] = "auto"
    """How the recording is laid out. `auto` looks at the files and says what it saw."""

    columns: dict[str, str] | None = None
    """Our column name to the recording's (as RLlib's `input_read_schema`): `{ obs = "observation" }`."""

    ignore: list[str] | None = None
    """Columns of the recording, under its own names, that are left out as if they were not there; `*` stands for any
    characters: `["value", "debug_*"]`.
    """

    unfinished: Literal["keep", "truncate", "drop", "fail"] = "keep"
    """What to do with an episode whose last row is neither terminated nor truncated."""

    duplicates: Literal["drop", "keep", "fail"] = "drop"
    """What to do with an episode or chunk that was recorded twice (same id, same content)."""

    on_bad_episode: Literal["fail", "skip", "quarantine"] = "fail"
    """What to do with a malformed episode: a gap in `t`, ragged values, a conflicting duplicate, unreadable bytes."""

    spaces: Spaces | Mapping[str, Any] | None = None
    """Gymnasium's spaces, where a recording does not carry them (one-hot, flattening, bounds)."""

    where: str | None = None
    """A SQL predicate over the episode table, such as `episode_return > 100 and episode_length >= 20`: episodes for
    which it is true are kept.

    A row is a recorded episode (of one agent), its chunks added up. Columns: `eps_id` (int64 or text, as recorded),
    `agent_id` (multi-agent data only), `episode_return` (float64), `episode_length` (int64), `terminated`,
    `truncated`, `t_started` (int64). An aggregate is over the whole table:
    `episode_return >= quantile_cont(episode_return, 0.9)` keeps the best tenth. `episode_return` costs a pass over
    the data of its own.
    """


@dataclass(kw_only=True)
class RlModule:
    """What the learner's RLModule would say about itself."""

    stateful: bool = False
    """Whether the module is recurrent. A stateful module is trained on sequences, a stateless one on single steps."""

    max_seq_len: int | None = None
    """Steps per sequence. Required when the module is stateful."""

    initial_state: dict[str, Any] | None = None
    """State before the first step of an episode. Zeros of the recorded state's shape when omitted."""

    modules: dict[str, ModuleOverride | Mapping[str, Any]] | None = None
    """Settings of single modules, by module id. What is not set here is taken from above."""


@dataclass(kw_only=True)
class MultiAgent:
    """Which module each agent's data goes to."""

    agent_to_module: dict[str, str] | None = None
    """Agent id, or a pattern with `*`, to module id. The first match wins; a recorded module id needs no rule."""


@dataclass(kw_only=True)
class Learner:
    """The learner connector pipeline."""

    algorithm: Literal["PPO", "APPO", "IMPALA", "BC", "MARWIL", "CQL", "IQL", "SAC", "DQN"] | None = None
    """Build the pipeline that this algorithm's `config.build_learner_connector()` builds in RLlib 2.60."""

    gamma: float | None = None
    """Discount factor that the algorithm hands to its pieces."""

    lambda_: float | None = None
    """GAE's lambda that the algorithm hands to its pieces."""

    compat: Literal["correct", "rllib-2.60"] = "correct"
    """Whether RLlib's known defects are repaired or reproduced."""

    add_default_connectors_to_learner_pipeline: bool = True
    """Whether the default pieces follow the custom ones."""

    connectors: list[dict[str, Any]] = field(default_factory=lambda: [])
    """Custom pieces, prepended to the default pipeline in this order."""


@dataclass(kw_only=True)
class Output:
    """What to write."""

    path: str = "shards"
    """Directory to write, relative to the job file."""

    format: Literal["parquet", "arrow"] = "parquet"
    """File format of the shards."""

    compression: Literal["none", "snappy", "lz4", "zstd:1", "zstd:2", "zstd:3", "zstd:4", "zstd:5", "zstd:6", "zstd:7", "zstd:8", "zstd:9", "zstd:10", "zstd:11", "zstd:12", "zstd:13", "zstd:14", "zstd:15", "zstd:16", "zstd:17", "zstd:18", "zstd:19", "zstd:20", "zstd:21", "zstd:22"] | None = None
    """Compression of the shards; `zstd:1` for Parquet and `none` for Arrow when left out."""

    tensors: Literal["list", "binary"] = "list"
    """How tensors with a shape lie in the shards."""

    windows: Literal["whole", "indexed"] = "whole"
    """Whether stacked frames and sequences lie in the shards as trainers see them, or as index columns over tables
    that hold every frame and every step once.
    """

    rows_per_shard: int = 65536
    """Rows per shard: steps, or sequences when the module is stateful."""

    shuffle: dict[str, Any] | None = None
    """A seeded global permutation of rows (of sequences when the module is stateful)."""

    split: dict[str, float] | None = None
    """Parts and their fractions, which sum to 1: `{ train = 0.9, val = 0.1 }`. By episode, never through one.

    Pieces that go by statistics of the data set (`MeanStdFilter`) take those of the part `train`, or of the first one
    where none is called so, for all parts.
    """
