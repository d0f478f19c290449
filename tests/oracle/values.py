"""Random values: what one step's observation, action or model output may be.

A *spec* is a leaf, a dict of specs or a tuple of specs; `draw` makes one step's value of it.
"""

import dataclasses

import numpy as np

INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]


@dataclasses.dataclass(frozen=True)
class Leaf:
    dtype: str
    shape: tuple = ()
    kind: str = "array"  # array | scalar (a NumPy scalar) | python (float, int or bool)
    values: tuple = ()
    """Of a discrete (shape `()`), multi-discrete or multi-binary leaf: how many values each place has."""
    start: int = 0
    """The smallest value of a discrete leaf."""
    binary: bool = False
    few: bool = False
    """A handful of values only, so that observations come again."""


def draw(spec, rng):
    if isinstance(spec, dict):
        return {k: draw(v, rng) for k, v in spec.items()}
    if isinstance(spec, tuple):
        return tuple(draw(v, rng) for v in spec)
    return _leaf(spec, rng)


def _leaf(leaf, rng):
    dtype = np.dtype(leaf.dtype)
    if leaf.values:
        array = np.asarray(rng.integers(0, np.reshape(leaf.values, leaf.shape)) + leaf.start, dtype)
    elif leaf.few:
        few = [0.0, -0.0, 1.0, 0.5, np.nan] if dtype.kind == "f" and rng.random() < 0.03 else [0.0, -0.0, 1.0, 2.0]
        array = np.asarray(rng.choice(few, leaf.shape), dtype)
    elif dtype.kind == "f":
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


def discrete(rng, *, start=False):
    """A discrete, multi-discrete or multi-binary leaf."""
    choice = rng.choice(["discrete", "multi", "binary"], p=[0.6, 0.25, 0.15])
    if choice == "binary":
        size = int(rng.integers(1, 5))
        return Leaf("int8", (size,), values=(2,) * size, binary=True)
    if choice == "multi":
        values = tuple(int(n) for n in rng.choice([1, 2, 3, 7], int(rng.integers(1, 4))))
        return Leaf(str(rng.choice(["int64", "int32"])), (len(values),), values=values)
    dtype, kind = str(rng.choice(["int64", "int32"])), str(rng.choice(["array", "scalar", "scalar", "python"]))
    first = int(rng.choice([0, 0, 1, -1, -3])) if start else 0
    return Leaf("int64" if kind == "python" else dtype, (), kind, (int(rng.choice([1, 2, 5, 300])),), first)


def with_space(rng, *, tuples=True, start=False):
    """Leaves whose space is known, discrete ones among them."""
    def one():
        if rng.random() < 0.5:
            return discrete(rng, start=start)
        shape = tuple(int(n) for n in rng.integers(1, 4, int(rng.choice([0, 1, 1, 2]))))
        return Leaf(str(rng.choice(["float32", "float32", "float64", "uint8", "int32", "float16"])), shape)

    choice = rng.choice(["one", "dict", "deep"], p=[0.3, 0.4, 0.3])
    if choice == "one":
        return one()
    if choice == "dict":
        return {k: one() for k in _names(rng, int(rng.integers(1, 4)))}
    return {"in": {"z": one(), "a": one()}, "pair": (one(), one()) if tuples and rng.random() < 0.5 else one()}


def frames(rng):
    """Images of one channel, as frames are stacked from; seldom several under names."""
    one = Leaf(str(rng.choice(["uint8", "uint8", "float32", "float64", "int16", "bool", "float16"])),
               (int(rng.choice([1, 2, 3, 4, 42])), int(rng.integers(1, 5)), 1))
    if rng.random() < 0.15:
        return {k: one for k in _names(rng, 2)}
    return one


def repeating(rng):
    """Vectors that come again and again."""
    return Leaf(str(rng.choice(["float32", "float32", "float64", "int64", "uint8", "int8", "float16"])),
                (int(rng.choice([1, 2, 3])),), few=True)


def wide(rng):
    """Vectors that are long enough for NumPy's pairwise sums."""
    return Leaf(str(rng.choice(["float32", "float32", "float64", "uint8", "float16"])),
                (int(rng.choice([7, 8, 9, 37, 128, 129, 300])),))


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
    if spec.values:
        return dataclasses.replace(spec, dtype="int64")
    if spec.kind == "python":
        return dataclasses.replace(spec, dtype=str(rng.choice(["float64", "int64"])))
    return dataclasses.replace(spec, dtype=str(rng.choice([*INTS, *FLOATS])))


def leaves(spec):
    if isinstance(spec, dict):
        return [x for v in spec.values() for x in leaves(v)]
    if isinstance(spec, tuple):
        return [x for v in spec for x in leaves(v)]
    return [spec]
