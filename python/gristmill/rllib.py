"""RLlib from shards: :class:`ShardData` feeds RLlib's own learners, :func:`job_from_config` reads an ``AlgorithmConfig``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ray.rllib.offline.offline_data import OfflineData
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils import unflatten_dict

from gristmill import connectors as _connectors
from gristmill import dataset as _dataset
from gristmill.batches import Batches
from gristmill.errors import UsageError
from gristmill.job import Job
from gristmill.torch import tensors

if TYPE_CHECKING:
    import torch
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

__all__ = ["ShardData", "job_from_config"]

_OPTIONS = ("part", "shuffle_seed", "window_rows", "columns")


class ShardData(OfflineData):
    """RLlib's ``OfflineData`` over shards: BC, MARWIL, CQL and IQL train from them with their own learners.

    ::

        config.offline_data(
            input_="shards",
            offline_data_class=gristmill.rllib.ShardData,
            input_read_method_kwargs={"shuffle_seed": 7},
        )

    The shards hold what ``config.build_learner_connector()`` would make, so nothing is left to be done but reading: no
    Ray Data, no prelearner actors. ``train_batch_size_per_learner`` counts rows: steps, or sequences of a stateful module,
    as it does in RLlib's own path.

    Options, in ``input_read_method_kwargs``:

    * ``shuffle_seed``: rows are shuffled by it, anew in each epoch; ``config.seed``, or 0, if not given. ``None`` keeps
      the order of the files.
    * ``part``: which part of a split data set (``"train"``).
    * ``window_rows`` and ``columns``, as in :class:`gristmill.Batches`.

    What learners read on the way (``advantages`` of MARWIL) was computed once, from the recorded values.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        # Not the parent's: it would open `input_` with Ray Data.
        self.config = config
        self.is_multi_agent = config.is_multi_agent
        paths = config.input_ if isinstance(config.input_, (list, tuple)) else [config.input_]
        if len(paths) != 1:
            raise UsageError(f"found {len(paths)} inputs, expected one directory of shards")
        self.path = os.fspath(paths[0])
        options = dict(config.input_read_method_kwargs or {})
        unknown = [name for name in options if name not in _OPTIONS]
        if unknown:
            raise UsageError(
                f"found the option {unknown[0]!r}, expected one of: {', '.join(_OPTIONS)}\n"
                "  at: config.offline_data(input_read_method_kwargs=..)"
            )
        part = options.pop("part", None)
        options.setdefault("shuffle_seed", config.seed or 0)
        self.data = _dataset.open(self.path)
        self._source = _Source(self.path, part, options)
        self._names = self._source.names(self.data)
        self._batches: dict[str, Iterator[dict[str, torch.Tensor]]] | None = None
        # What RLlib reads and sets of its own.
        self.map_batches_kwargs: dict[str, Any] = {}
        self.iter_batches_kwargs: dict[str, Any] = {}
        self.data_is_mapped = True
        self.locality_hints = None
        self.learner_handles = None
        self.module_spec = None
        self.spaces = None

    def sample(
        self,
        num_samples: int,
        return_iterator: bool = False,
        num_shards: int = 1,
        module_state: dict[str, Any] | None = None,
    ) -> Any:
        """The next batch, or an iterator for each learner."""
        if return_iterator:
            return [_ShardIterator(self._source, rank, max(1, num_shards)) for rank in range(max(1, num_shards))]
        if self._batches is None:
            self._batches = {
                module: self._source.endless(self.data[name], num_samples, 0, 1)
                for module, name in self._names.items()
            }
        return _multi_agent_batch({module: next(batches) for module, batches in self._batches.items()})


def _multi_agent_batch(modules: Mapping[str, Mapping[str, Any]]) -> MultiAgentBatch:
    nested = {module: SampleBatch(unflatten_dict(dict(columns))) for module, columns in modules.items()}
    # As RLlib's own offline data counts them.
    return MultiAgentBatch(nested, env_steps=sum(len(next(iter(columns.values()))) for columns in modules.values()))


class _Source:
    """Which rows of which modules, as every process opens them for itself."""

    def __init__(self, path: str, part: str | None, options: dict[str, Any]) -> None:
        self.path, self.part, self.options = path, part, options

    def names(self, data: _dataset.Dataset) -> dict[str, str]:
        """Names in the data set, by module id."""
        split = data.manifest["job"]["output"].get("split")
        if (self.part is None) != (not split):
            there = ", ".join(split) if split else "none"
            raise UsageError(f"found part = {self.part!r} and a data set whose parts are: {there}\n  at: {self.path}")
        if self.part is None:
            return {name: name for name in data.modules}
        head = f"{self.part}/"
        names = {name.removeprefix(head): name for name in data.modules if name.startswith(head)}
        if not names:
            raise UsageError(f"found no part {self.part!r}, expected one of: {', '.join(split)}\n  at: {self.path}")
        return names

    def batches(self, module: _dataset.Module, batch_size: int, rank: int, world_size: int) -> Batches:
        # Learners must not block each other: all of them get the same number of batches.
        drop_last = world_size > 1 or len(module) >= batch_size
        return module.batches(
            batch_size=batch_size, rank=rank, world_size=world_size, drop_last=drop_last, **self.options
        )

    def endless(
        self, module: _dataset.Module, batch_size: int, rank: int, world_size: int
    ) -> Iterator[dict[str, torch.Tensor]]:
        batches = self.batches(module, batch_size, rank, world_size)
        if len(batches) == 0:
            raise UsageError(
                f"found {len(module)} rows of module {module.name!r}, expected a batch of {batch_size} rows for each of "
                f"{world_size} learners"
            )
        while True:
            for batch in batches:
                yield tensors(batch)


class _ShardIterator:
    """What a learner on its own process iterates over, in place of Ray's ``DataIterator``."""

    def __init__(self, source: _Source, rank: int, world_size: int) -> None:
        self._source, self._rank, self._world_size = source, rank, world_size

    def iter_torch_batches(self, *, batch_size: int, device: Any = None, **_: Any) -> _Epochs:
        return _Epochs(self._source, batch_size, self._rank, self._world_size, device)


class _Epochs:
    """One epoch each time it is iterated, all modules side by side."""

    def __init__(self, source: _Source, batch_size: int, rank: int, world_size: int, device: Any) -> None:
        data = _dataset.open(source.path)
        self._device = device
        self._modules = {
            module: source.batches(data[name], batch_size, rank, world_size)
            for module, name in source.names(data).items()
        }

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for batches in zip(*self._modules.values(), strict=False):
            out = {}
            for module, batch in zip(self._modules, batches, strict=True):
                for name, tensor in tensors(batch).items():
                    out[f"{module}/{name}"] = tensor if self._device is None else tensor.to(self._device)
            yield out


def job_from_config(
    config: AlgorithmConfig,
    *,
    output: str | os.PathLike[str] = "shards",
    input: str | os.PathLike[str] | Sequence[str] | None = None,
    compat: str = "correct",
) -> Job:
    """The job that makes of a recording what ``config.build_learner_connector()`` makes of its episodes.

    Read are the algorithm, ``gamma`` and ``lambda_``, the custom learner connectors with their options, whether the
    default ones follow, the input paths, schema and kind of episodes, and of each RLModule (which is built for it) whether
    it is stateful, its ``max_seq_len`` and its initial state.

    Args:
        config: The config, as for training. Its spaces, or an environment that can be made, must be known.
        output: The directory to write.
        input: The recording, if not ``config.input_``.
        compat: ``"correct"``, or ``"rllib-2.60"`` for RLlib to the letter.

    Raises:
        UsageError: If the config has something that no job can say: a custom piece that gristmill does not have, a policy
            mapping function, an algorithm without an offline pipeline.
    """
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    if not isinstance(config, AlgorithmConfig):
        what = f"the class {config.__name__}" if isinstance(config, type) else type(config).__name__
        raise TypeError(
            f"found {what}, expected an AlgorithmConfig, such as BCConfig().environment(..).offline_data(input_=..)\n"
            "  hint: a job of other settings is gristmill.Job({..})"
        )
    config = config.copy(copy_frozen=False)
    algorithm = config.algo_class.__name__ if config.algo_class is not None else type(config).__name__
    algorithm = algorithm.removesuffix("Config")
    observation_space, action_space = _spaces(config)
    learner: dict[str, Any] = {
        "algorithm": algorithm,
        "gamma": float(config.gamma),
        "compat": compat,
        "add_default_connectors_to_learner_pipeline": config.add_default_connectors_to_learner_pipeline,
        "connectors": _custom_connectors(config, observation_space, action_space),
    }
    lambda_ = getattr(config, "lambda_", None)
    if lambda_ is not None:
        learner["lambda_"] = float(lambda_)
    if input is None:
        input = config.input_
    paths = [input] if isinstance(input, (str, os.PathLike)) else list(input)
    if paths == ["sampler"] or not paths:
        raise UsageError("found a config without offline input, expected config.offline_data(input_=..) or `input`")
    read: dict[str, Any] = {"paths": [os.fspath(path) for path in paths]}
    if config.input_read_episodes:
        read["layout"] = "rllib-episodes"
    schema = config.input_read_schema or {}
    if schema:
        read["columns"] = dict(schema)
    return Job(
        input=read,
        rl_module=_rl_module(config, observation_space, action_space),
        learner=learner,
        output={"path": os.fspath(output)},
    )


def _spaces(config: AlgorithmConfig) -> tuple[Any, Any]:
    if config.observation_space is not None and config.action_space is not None:
        return config.observation_space, config.action_space
    if isinstance(config.env, str):
        import gymnasium

        env = gymnasium.make(config.env, **(config.env_config or {}))
        try:
            return env.observation_space, env.action_space
        finally:
            env.close()
    raise UsageError(
        "found neither spaces nor the name of an environment\n"
        "  hint: config.environment(observation_space=.., action_space=..)"
    )


def _custom_connectors(config: AlgorithmConfig, observation_space: Any, action_space: Any) -> list[dict[str, Any]]:
    if config._learner_connector is None:
        return []
    made = config._learner_connector(observation_space, action_space)
    pieces = list(made) if isinstance(made, (list, tuple)) else list(getattr(made, "connectors", [made]))
    return [_connector(i, piece) for i, piece in enumerate(pieces)]


def _connector(index: int, piece: Any) -> dict[str, Any]:
    name = type(piece).__name__
    known = getattr(_connectors, name, None)
    where = f"\n  at: custom learner connector {index} ({name})"
    if known is None:
        raise UsageError(
            f"found the piece {name}, expected one of: {', '.join(_connectors.__all__)}{where}\n"
            "  hint: gristmill.piece makes a function a piece of a job"
        )
    options = {field.name for field in fields(known)}
    out: dict[str, Any] = {"type": name}
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for parameter in list(inspect.signature(type(piece).__init__).parameters.values())[1:]:
        if parameter.kind in kinds or parameter.name in ("input_observation_space", "input_action_space"):
            continue
        option = parameter.name
        value = next((vars(piece)[a] for a in (option, f"_{option}") if a in vars(piece)), inspect.Parameter.empty)
        if value is inspect.Parameter.empty:
            raise UsageError(f"found no attribute that tells the option {option!r} of the piece{where}")
        if option in options:
            if value is not None:
                out[option] = value
        elif value != parameter.default and option not in ("as_learner_connector", "multi_agent"):
            raise UsageError(f"found {option} = {value!r}, an option that gristmill's {name} does not have{where}")
    return out


def _rl_module(config: AlgorithmConfig, observation_space: Any, action_space: Any) -> dict[str, Any]:
    if config.is_multi_agent:
        raise UsageError(
            "found a multi-agent config, whose policy mapping is a function, expected a single-agent one\n"
            "  hint: write the job with `multi_agent.agent_to_module`"
        )
    spec = config.get_rl_module_spec(spaces={"default_policy": (observation_space, action_space)})
    if spec.observation_space is None:
        spec.observation_space = observation_space
    if spec.action_space is None:
        spec.action_space = action_space
    module = spec.build()
    if not module.is_stateful():
        return {}
    max_seq_len = (module.model_config or {}).get("max_seq_len") if isinstance(module.model_config, dict) else None
    if max_seq_len is None:
        max_seq_len = getattr(module.model_config, "max_seq_len", None)
    if max_seq_len is None:
        raise UsageError("found a stateful module without max_seq_len\n  hint: config.rl_module(model_config={'max_seq_len': ..})")
    return {"stateful": True, "max_seq_len": int(max_seq_len), "initial_state": _state(module.get_initial_state())}


def _state(state: Any) -> Any:
    if isinstance(state, Mapping):
        return {key: _state(value) for key, value in state.items()}
    value = state.detach().cpu().numpy() if hasattr(state, "detach") else state
    fill = value.reshape(-1)
    uniform = fill.size > 0 and bool((fill == fill[0]).all())
    return {
        "shape": list(value.shape),
        "dtype": value.dtype.name,
        "fill": float(fill[0]) if uniform else [float(v) for v in fill],
    }
