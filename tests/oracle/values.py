"""Random values: what one step's observation, action or model output may be.

A *spec* is a leaf, a dict of specs or a tuple of specs; `draw` makes one step's value of it.
"""

import dataclasses

import numpy as np

INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"]
FLOATS = ["float16", "float32", "float64"]


@dataclasses.dataclass(frozen=True)
class Leaf:
    dtype: str
    shape: tuple = ()
    kind: str = "array"  # array | scalar (a NumPy scalar) | python (float, int or bool)


def draw(spec, rng):
    if isinstance(spec, dict):
        return {k: draw(v, rng) for k, v in spec.items()}
    if isinstance(spec, tuple):
        return tuple(draw(v, rng) for v in spec)
    return _leaf(spec, rng)


def _leaf(leaf, rng):
    dtype = np.dtype(leaf.dtype)
    if dtype.kind == "f":
        value = rng.normal(scale=10.0 ** rng.integers(-3, 4), size=leaf.shape)
        if rng.random() < 0.1:
            value = np.full(leaf.shape, rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42]))
        with np.errstate(over="ignore"):
            array = np.asarray(value, dtype)
    elif dtype.kind == "b":
        array = np.asarray(rng.integers(0, 2, leaf.shape), bool)
    else:
        info = np.iinfo(dtype)
        array = np.asarray(rng.integers(info.min, info.max, leaf.shape, dtype=dtype, endpoint=True))
    if leaf.kind == "scalar":
        return array[()]
    return array.item() if leaf.kind == "python" else array


def leaf(rng, *, ranks=(0, 1, 1, 2), kinds=("array", "array", "scalar", "python")):
    dtype = str(rng.choice([*INTS, *FLOATS, "float32", "float32", "bool"]))
    kind = str(rng.choice(kinds))
    if kind == "python":
        return Leaf(str(rng.choice(["float64", "int64", "bool"])), (), "python")
    if kind == "scalar":
        return Leaf(dtype, (), "scalar")
    rank = int(rng.choice(ranks))
    return Leaf(dtype, tuple(int(n) for n in rng.integers(1, 4, rank)))


def observation(rng, *, tuples=True):
    choice = rng.choice(["vector", "image", "any", "dict", "deep", "tuple"], p=[0.3, 0.1, 0.25, 0.15, 0.15, 0.05])
    if choice == "vector":
        return Leaf("float32", (int(rng.integers(1, 6)),))
    if choice == "image":
        return Leaf("uint8", (6, 5, int(rng.choice([1, 3]))))
    if choice == "dict":
        return {k: leaf(rng) for k in _names(rng, 2)}
    if choice == "deep" and tuples:
        return {"pair": (leaf(rng), {"in": leaf(rng)}), **{k: leaf(rng) for k in _names(rng, 1)}}
    if choice == "deep":
        return {"nest": {"z": leaf(rng), "a": leaf(rng)}, "flat": leaf(rng)}
    if choice == "tuple" and tuples:
        return equal_parts(rng) if rng.random() < 0.5 else (leaf(rng), leaf(rng))
    return leaf(rng)


def action(rng, *, tuples=True):
    choice = rng.choice(["discrete", "box", "any", "dict", "equal", "tuple"], p=[0.3, 0.2, 0.15, 0.15, 0.15, 0.05])
    if choice == "discrete":
        return Leaf("int32", (), str(rng.choice(["array", "scalar"])))
    if choice == "box":
        return Leaf("float32", (int(rng.integers(1, 4)),))
    if choice == "dict":
        return {k: leaf(rng) for k in _names(rng, 2)}
    if choice == "equal" and tuples:
        return equal_parts(rng)
    if choice == "tuple" and tuples:
        return leaf(rng), leaf(rng)
    return leaf(rng)


def equal_parts(rng):
    """A tuple whose parts are alike: msgpack makes it a list, which RLlib then stacks into one array."""
    part = leaf(rng)
    return (part,) * int(rng.integers(1, 4))


def _names(rng, count):
    return [str(n) for n in rng.choice(["b", "a", "Z", "a10", "a2", "pos"], count, replace=False)]


def with_other_dtype(spec, rng):
    """The same spec, one leaf of another dtype: as after a change of the recording environment."""
    if isinstance(spec, dict):
        key = str(rng.choice(list(spec)))
        return {**spec, key: with_other_dtype(spec[key], rng)}
    if isinstance(spec, tuple):
        return (with_other_dtype(spec[0], rng), *spec[1:])
    if spec.kind == "python":
        return dataclasses.replace(spec, dtype=str(rng.choice(["float64", "int64"])))
    return dataclasses.replace(spec, dtype=str(rng.choice([*INTS, *FLOATS])))


def leaves(spec):
    if isinstance(spec, dict):
        return [x for v in spec.values() for x in leaves(v)]
    if isinstance(spec, tuple):
        return [x for v in spec for x in leaves(v)]
    return [spec]
