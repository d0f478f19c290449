"""Gymnasium's space of what a spec describes, for RLlib and for a job."""

import dataclasses

import gymnasium as gym
import numpy as np


def gym_space(spec):
    if isinstance(spec, dict):
        return gym.spaces.Dict({k: gym_space(v) for k, v in spec.items()})
    if isinstance(spec, tuple):
        return gym.spaces.Tuple([gym_space(v) for v in spec])
    if spec.values and spec.binary:
        return gym.spaces.MultiBinary(len(spec.values))
    if spec.values and spec.shape == ():
        return gym.spaces.Discrete(spec.values[0], start=spec.start)
    if spec.values:
        return gym.spaces.MultiDiscrete(list(spec.values))
    dtype = np.dtype(spec.dtype)
    low, high = (-np.inf, np.inf) if dtype.kind == "f" else (0, 1)
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return gym.spaces.Box(np.full(spec.shape, low, dtype), np.full(spec.shape, high, dtype), spec.shape, dtype)


def from_zero(spec):
    """The spec with discrete values that begin with 0."""
    if isinstance(spec, dict):
        return {k: from_zero(v) for k, v in spec.items()}
    return tuple(map(from_zero, spec)) if isinstance(spec, tuple) else dataclasses.replace(spec, start=0)


def job_space(spec):
    if isinstance(spec, dict):
        return {k: job_space(v) for k, v in spec.items()}
    if isinstance(spec, tuple):
        return [job_space(v) for v in spec]
    if spec.values and spec.binary:
        return {"type": "multi_binary", "n": len(spec.values)}
    if spec.values and spec.shape == ():
        return {"type": "discrete", "n": spec.values[0], "start": spec.start}
    if spec.values:
        return {"type": "multi_discrete", "nvec": list(spec.values)}
    return {"type": "box", "shape": list(spec.shape), "dtype": spec.dtype}
