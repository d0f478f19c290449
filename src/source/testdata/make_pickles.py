"""Makes pickles.tsv: run with each NumPy in turn and join the outputs. NumPy 1.26.4 and 2.4.6 with cloudpickle 3.1.

    python make_pickles.py >> pickles.tsv
    python make_pickles.py --refused > pickles_refused.tsv      # NumPy 2
"""

import base64
import os
import pickle
import sys

import cloudpickle
import numpy as np

version = np.__version__.split(".")[0]


def row(*cells):
    print(*cells, sep="\t")


def arrays():
    read_only = np.arange(3, dtype="u1")
    read_only.setflags(write=False)
    a = np.arange(6, dtype="<f4").reshape(2, 3)
    for name, array, protocols in [
        ("f4[2,3]", a, (2, 3, 4, 5, None)),
        ("fortran i2[2,3]", np.asfortranarray(np.arange(6, dtype="<i2").reshape(2, 3)), (2, 5)),
        ("strided u4[3]", np.arange(6, dtype="<u4")[::2], (5,)),
        ("big-endian f8[2]", np.array([1.5, -2.0], dtype=">f8"), (2, 5)),
        ("0-d i8", np.array(-7, dtype="<i8"), (2, 5)),
        ("bool[3]", np.array([True, False, True]), (2, 5)),
        ("f2[2]", np.array([0.5, 2], dtype="<f2"), (2, 5)),
        ("empty f4[0,4]", np.zeros((0, 4), "<f4"), (2, 3, 5)),
        ("read-only u1[3]", read_only, (5,)),
        ("scalar f4", np.float32(1.25), (2, 5)),
        ("scalar bool", np.bool_(True), (4,)),
        ("scalar f8", np.float64(-0.1), (5,)),
    ]:
        c = np.asarray(array)
        c = np.ascontiguousarray(c.astype(c.dtype.newbyteorder("="))).reshape(c.shape)
        for protocol in protocols:
            data = cloudpickle.dumps(array) if protocol is None else pickle.dumps(array, protocol=protocol)
            kind = "cloudpickle" if protocol is None else f"protocol {protocol}"
            shape = ",".join(map(str, c.shape))
            row(f"numpy{version} {name} {kind}", c.dtype.name, shape, c.tobytes().hex(), base64.b64encode(data).decode())


def refused():
    class Shell:
        def __reduce__(self):
            return os.system, ("echo hi",)

    for name, message, value, protocol in [
        ("os.system, protocol 2", "names `posix.system`", Shell(), 2),
        ("os.system, protocol 5", "names `posix.system`", Shell(), 5),
        ("objects", "Python objects (refused", np.array([{}], dtype=object), 5),
        ("records", "records (refused", np.zeros(1, dtype=[("a", "f4")]), 5),
        ("masked array", "names `numpy.ma.core._mareconstruct`", np.ma.array([1.0]), 5),
        ("text", "dtype `U1`", np.array(["a"]), 5),
        ("dates", "dtype `M8`", np.zeros(1, "M8[s]"), 5),
        ("complex", "dtype `c8`", np.zeros(2, "c8"), 5),
        ("a float", "something else than an array (opcode 0x47", 1.5, 5),
    ]:
        row(name, message, base64.b64encode(pickle.dumps(value, protocol=protocol)).decode())


refused() if "--refused" in sys.argv else arrays()
