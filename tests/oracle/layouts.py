"""Writing a recording in one of the layouts, and reading it back as RLlib sees it."""

import types

import msgpack
import msgpack_numpy
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from ray.data import DataContext
from ray.data._internal.delegating_block_builder import DelegatingBlockBuilder
from ray.data._internal.tensor_extensions.arrow import FixedShapeTensorFormat
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.offline.offline_env_runner import OfflineSingleAgentEnvRunner

TENSORS = list(FixedShapeTensorFormat)
FIXED = {
    "eps_id", "agent_id", "module_id", "obs", "new_obs", "actions", "rewards", "terminateds", "truncateds", "t",
    "t_started", "infos", "last infos",
}


# What the table does not say, but the reference needs.
HIDDEN = {"t_started", "last infos"}


def write(rng, recording, folder):
    """Writes the files. Returns a function that gives fresh episodes, as RLlib would read them back."""
    folder.mkdir(parents=True)
    if recording.layout == "rllib-episodes":
        return _write_items(rng, recording, folder)
    if recording.layout == "rllib-columns":
        return _write_columns(rng, recording, folder)
    return _write_steps(rng, recording, folder)


def files(rng, table, folder, groups=(1, 2, 1000)):
    """One to three files, in order, with small row groups."""
    count = min(int(rng.choice([1, 2, 3, 3, 50])), max(table.num_rows, 1))
    edges = np.linspace(0, table.num_rows, count + 1).astype(int)
    for i, (start, stop) in enumerate(zip(edges, edges[1:])):
        part = table.slice(int(start), int(stop - start))
        pq.write_table(part, folder / f"part-{i:03}.parquet", row_group_size=int(rng.choice(groups)))


def _write_items(rng, recording, folder):
    items = []
    for episode in recording.episodes:
        if rng.random() < 0.25 and "empty episode" not in recording.facts:
            if any(isinstance(buffer.data[0], tuple) for buffer in _buffers(episode)):
                recording.facts.add("finalized tuple")
            episode.to_numpy()
            recording.facts.add("finalized")
        items.append(msgpack.packb(episode.get_state(), default=msgpack_numpy.encode))
    files(rng, pa.table({"item": pa.array(items, pa.binary())}), folder)

    def read():
        decoded = (msgpack.unpackb(item, object_hook=msgpack_numpy.decode) for item in items)
        return [SingleAgentEpisode.from_state(state) for state in decoded]

    return read


def _buffers(episode):
    return [episode.observations, episode.actions, *episode.extra_model_outputs.values()]


def _write_columns(rng, recording, folder):
    # What is no array (a number, a dict) is not packed even where it is named.
    names = ["obs", "actions", *(k for k in recording.specs if k not in ("obs", "actions", "rewards"))]
    compress = [k for k in names if rng.random() < 0.5] if rng.random() < 0.4 else []
    recorder = types.SimpleNamespace(_samples=[], output_compress_columns=compress)
    OfflineSingleAgentEnvRunner._map_episodes_to_data(recorder, recording.episodes)
    rows, context = recorder._samples, DataContext.get_current()
    count = min(int(rng.choice([1, 2, 3, 3, 200])), len(rows))  # Ray Data writes up to 200 files: a row in each
    edges = np.linspace(0, len(rows), count + 1).astype(int)
    tensors = [TENSORS[int(rng.integers(3))]] * count
    for i, (start, stop) in enumerate(zip(edges, edges[1:])):
        if rng.random() < 0.1:
            tensors[i] = TENSORS[int(rng.integers(3))]  # written by another version
        context.arrow_fixed_shape_tensor_format = tensors[i]
        builder = DelegatingBlockBuilder()
        for row in rows[start:stop]:
            builder.add(row)
        pq.write_table(builder.build(), folder / f"part-{i:03}.parquet", row_group_size=int(rng.choice((3, 1000))))
    plain = types.SimpleNamespace(_samples=[], output_compress_columns=[])
    OfflineSingleAgentEnvRunner._map_episodes_to_data(plain, recording.episodes)
    return lambda: _whole_episodes(plain._samples, recording)


def _whole_episodes(rows, recording):
    """The rows put back into whole episodes by `eps_id`, in order of first appearance."""
    steps = {}
    for row in rows:
        steps.setdefault(row["eps_id"], []).append(row)
    return [
        SingleAgentEpisode(
            id_=str(id_),
            observations=[s["obs"] for s in own] + [own[-1]["new_obs"]],
            infos=[s.get("infos", {}) for s in own] + [own[-1].get("last infos", {})],
            actions=[s["actions"] for s in own],
            rewards=[s["rewards"] for s in own],
            terminated=bool(own[-1]["terminateds"]),
            truncated=bool(own[-1]["truncateds"]),
            extra_model_outputs={k: [s[k] for s in own] for k in own[0] if k not in FIXED},
            t_started=own[0].get("t_started", 0),
            len_lookback_buffer=0,
            **recording.spaces,
        )
        for id_, own in steps.items()
    ]


def _write_steps(rng, recording, folder):
    """A plain table: lists of one kind, structs, with `t` or without, `new_obs` or one more row an episode."""
    plain = types.SimpleNamespace(_samples=[], output_compress_columns=[])
    OfflineSingleAgentEnvRunner._map_episodes_to_data(plain, recording.episodes)
    rows = [{k: v for k, v in row.items() if k not in ("agent_id", "module_id")} for row in plain._samples]
    if recording.infos:
        for row, (infos, last) in zip(rows, _infos(recording.episodes), strict=True):
            row["infos"], row["last infos"] = infos, last
    done, starts = {}, {}
    for row in rows:
        # The recording may begin in the middle of an episode.
        start = starts.setdefault(row["eps_id"], int(rng.integers(1, 9)) if rng.random() < 0.1 else 0)
        row["t"] = done.get(row["eps_id"], start)
        done[row["eps_id"]] = row["t"] + 1
    truth = list(rows)
    trailing = rng.random() < 0.5
    if trailing:
        rows = _with_trailing_rows(rows, done)
    else:
        for row in truth:
            row["last infos"] = row.get("infos", {})  # those behind the last step stand in no row
    if rng.random() < 0.5:
        # `t` is there, so rows may stand in any order. Episodes count by their first row.
        order = rng.permutation(len(rows))
        rows = [rows[i] for i in order]
        firsts = {}
        for row in rows:
            firsts.setdefault(row["eps_id"], len(firsts))
        truth.sort(key=lambda row: (firsts[row["eps_id"]], row["t"]))
    elif rng.random() < 0.5:
        rows = [{k: v for k, v in row.items() if k != "t"} for row in rows]
        starts = {}
    for row in truth:
        row["t_started"] = starts.get(row["eps_id"], 0)
    if any(starts.values()):
        recording.facts.add("no look-back")
    kind = str(rng.choice(["list", "large", "fixed", "tensor"]))
    table = pa.table({k: column([row[k] for row in rows], kind) for k in truth[0] if k in rows[0] and k not in HIDDEN})
    files(rng, table, folder, groups=(3, 1000))
    return lambda: _whole_episodes(truth, recording)


def _infos(episodes):
    """Of each step the infos beside its observation and those beside the next one."""
    for episode in episodes:
        infos = episode.infos.data[episode.infos.lookback :]
        yield from zip(infos, infos[1:])


def _with_trailing_rows(rows, lengths):
    out = []
    for row in rows:
        last = row["t"] + 1 == lengths[row["eps_id"]]
        out.append({k: v for k, v in row.items() if k != "new_obs"})
        if last:
            keys = dict.fromkeys(out[-1])
            extra = {"infos": row["last infos"]} if "infos" in row else {}
            out.append({**keys, "eps_id": row["eps_id"], "t": row["t"] + 1, "obs": row["new_obs"], **extra})
    return out


def column(cells, kind):
    """Cells as an Arrow array, None as null. `kind`: of lists."""
    example = next((c for c in cells if c is not None), None)
    if example is None:
        return pa.nulls(len(cells))
    if isinstance(example, dict):
        example = dict.fromkeys(k for c in cells if c is not None for k in c)
        if not example:
            return pa.nulls(len(cells))  # Parquet has no structs without fields
        # An explicit mask keeps the struct itself null in a trailing row.
        fields = {k: column([None if c is None else c.get(k) for c in cells], kind) for k in example}
        mask = pa.array([c is None for c in cells])
        return pa.StructArray.from_arrays(list(fields.values()), names=list(fields), mask=mask)
    if isinstance(example, str):
        return pa.array(cells, pa.string())
    if isinstance(example, (bool, np.bool_)):
        return pa.array([None if c is None else bool(c) for c in cells], pa.bool_())
    array = np.asarray(example)
    if array.ndim == 0:
        return pa.array([None if c is None else np.asarray(c)[()] for c in cells], pa.from_numpy_dtype(array.dtype))
    if kind == "tensor" and None not in [None if c is None else 0 for c in cells] and array.dtype != bool:
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.stack(cells))
    type_ = pa.from_numpy_dtype(array.dtype)
    for size in reversed(array.shape):
        type_ = {"large": pa.large_list(type_), "list": pa.list_(type_)}.get(kind, pa.list_(type_, size))
    return pa.array([None if c is None else _lists(c) for c in cells], type_)


def _lists(array):
    """Nested lists of NumPy scalars: pyarrow takes float16 in no other way."""
    return list(array) if array.ndim == 1 else [_lists(part) for part in array]
