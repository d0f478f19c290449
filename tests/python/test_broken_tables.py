"""Tables in memory whose Arrow data do not hold what their types promise. A writer can make them without a word, and readers
like pyarrow do not look."""

import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import Job, errors

ROWS = 20
IDS = [f"a long enough identifier {i // 5}" for i in range(ROWS)]


def steps(**columns):
    t = np.arange(ROWS) % 5
    return pa.table(
        {
            "eps_id": pa.array(IDS),
            "t": t,
            "obs": pa.array([[float(i), 1.0] for i in range(ROWS)]),
            "actions": t.astype("i4"),
            "rewards": t.astype("f4"),
            "terminateds": t == 4,
        }
        | columns
    )


def text(values, ty=pa.string()):
    """Bytes that are called text."""
    binary = pa.array(values, pa.large_binary() if ty == pa.large_string() else pa.binary())
    return pa.Array.from_buffers(ty, len(values), binary.buffers())


def patched(array, buffer, place, value):
    """The array with 4 bytes of a buffer changed."""
    buffers = array.buffers()
    data = bytearray(buffers[buffer].to_pybytes())
    struct.pack_into("<i", data, place, value)
    buffers[buffer] = pa.py_buffer(bytes(data))
    if pa.types.is_list(array.type):
        return pa.Array.from_buffers(array.type, len(array), buffers[:2], children=[array.values])
    return pa.Array.from_buffers(array.type, len(array), buffers)


GOOD = [name.encode() for name in IDS]
BAD = GOOD[:12] + [b"caf\xe9"] + GOOD[13:]
VIEWS = pa.array(IDS, pa.string_view())
LISTS = pa.array([[float(i), 1.0] for i in range(ROWS)])
KEYS = pa.array([7_700_000 if i == 12 else i // 5 for i in range(ROWS)], pa.int32())


# By name: who prints such an array reads what is not there.
BROKEN = {
    "text": ("eps_id", text(BAD), ["not UTF-8", "row 12", "hint: decode"]),
    "large text": ("eps_id", text(BAD, pa.large_string()), ["not UTF-8", "row 12"]),
    # Whole as bytes, cut through a character as text.
    "half a character": ("eps_id", text([*GOOD[:3], b"caf\xc3", b"\xa9", *GOOD[5:]]), ["not UTF-8", "row 3"]),
    "a view's offset": ("eps_id", patched(VIEWS, 1, 16 * 3 + 12, 10**9), ["damaged", "1000000000"]),
    "a view's buffer": ("eps_id", patched(VIEWS, 1, 16 * 3 + 8, 7), ["damaged", "7"]),
    "an offset": ("eps_id", patched(pa.array(IDS), 1, 4 * 7, 10**8), ["damaged", "100000000"]),
    "a key": ("eps_id", pa.DictionaryArray.from_arrays(KEYS, pa.array(list("abcd")), safe=False), ["damaged", "7700000"]),
    "a dictionary": ("eps_id", pa.DictionaryArray.from_arrays(pa.array([0] * ROWS), text([b"\xff\xfe"])), ["damaged"]),
    "a list": ("obs", patched(LISTS, 1, 4 * 7, 10**8), ["damaged", "100000000"]),
    "a field": ("infos", pa.StructArray.from_arrays([text(BAD)], ["note"]), ["not UTF-8", "row 12"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_column_is_refused_by_name(case):
    name, column, told = BROKEN[case]
    with pytest.raises(errors.DataError) as raised:
        Job().compile(steps(**{name: column}))
    for part in [*told, f"column `{name}`"]:
        assert part in str(raised.value)


def test_the_row_is_counted_over_all_batches():
    table = pa.concat_tables([steps(), steps(eps_id=text(BAD)).slice(5)])
    with pytest.raises(errors.DataError, match="row 27"):
        Job().compile(table)


def test_a_file_that_pyarrow_reads_without_a_look(tmp_path):
    pq.write_table(steps(eps_id=text(BAD)), tmp_path / "a.parquet")
    with pytest.raises(errors.DataError, match="not UTF-8"):
        Job().compile(pq.read_table(tmp_path / "a.parquet"))


@pytest.mark.parametrize("ty", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_what_lies_outside_of_a_slice_does_not_count(ty):
    accents = pa.array([f"épisode {i // 5}" for i in range(ROWS)]).cast(ty)
    batch = Job().compile(steps(eps_id=accents).slice(5, 10))["default_policy"]
    assert list(batch["eps_id"]) == ["épisode 1"] * 5 + ["épisode 2"] * 5
    whole = text(BAD)
    assert len(Job().compile(steps(eps_id=whole).slice(0, 10))["default_policy"]["rewards"]) == 10
