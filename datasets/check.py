#!/usr/bin/env python3
"""Check every data set in this folder without RLlib and without gristmill.

    python check.py              # needs pyarrow, numpy, msgpack, lz4, safetensors
    python check.py --digests    # write the digests into README.md anew

Reads `input/` with plain pyarrow, rebuilds the columns of the train batch with a few lines of numpy, and compares
them with `expected.safetensors` bit for bit. Also compares the digests in README.md.
"""

import base64
import hashlib
import io
import pickle
import re
import sys
from pathlib import Path

import lz4.frame
import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file

HERE = Path(__file__).resolve().parent
DIGEST = re.compile(r"^[0-9a-f]{64}  .*\n", re.M)
# name: (layout, with new_obs, max_seq_len)
DATA = {
    "cartpole-columns": ("columns", False, None),
    "cartpole-episodes": ("episodes", True, None),
    "cartpole-lstm": ("episodes", False, 20),
    "cartpole-duplicates": ("columns", False, None),
    "cartpole-dict": ("columns", False, None),
    "breakout-frames": ("columns", False, None),
    "pendulum-steps": ("steps", True, None),
}


class Arrays(pickle.Unpickler):
    """Unpickles numpy arrays and nothing else."""

    def find_class(self, module, name):
        if (module, name) == ("numpy._core.numeric", "_frombuffer"):
            return lambda buffer, dtype, shape, order: np.frombuffer(buffer, dtype).reshape(shape, order=order)
        if (module, name) == ("numpy", "dtype"):
            return np.dtype
        raise pickle.UnpicklingError(f"{module}.{name}")


def tables(folder):
    return [pq.read_table(f) for f in sorted((folder / "input").glob("*.parquet"))]


def leaf(array):
    """An Arrow array -> numpy, rows first."""
    t = array.type
    if pa.types.is_struct(t):
        return {t.field(i).name: leaf(array.field(i)) for i in range(t.num_fields)}
    if pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t):
        return leaf(array.flatten()).reshape(len(array), -1)
    if pa.types.is_string(t):
        cells = [lz4.frame.decompress(base64.b64decode(c)) for c in array.to_pylist()]
        return np.stack([Arrays(io.BytesIO(c)).load() for c in cells])
    return array.to_numpy(zero_copy_only=False)


def each(tree, f):
    return {k: each(v, f) for k, v in tree.items()} if isinstance(tree, dict) else f(tree)


def columns(folder):
    """Episodes as {column: array}, with obs one longer than the rest."""
    seen = {}
    for table in tables(folder):
        ids = table["eps_id"].to_pylist()
        names = [n for n in table.column_names if n not in ("eps_id", "agent_id", "module_id")]
        values = {n: leaf(table[n].combine_chunks()) for n in names}
        for i, id_ in enumerate(ids):
            row = {n: each(v, lambda a: a[i]) for n, v in values.items()}
            steps = seen.setdefault(id_, [])
            if not (steps and (steps[-1]["terminateds"] or steps[-1]["truncateds"])):
                steps.append(row)
    for steps in seen.values():
        episode = {}
        for name in steps[0]:
            parts = [s[name] for s in steps] + ([steps[-1]["new_obs"]] if name == "obs" else [])
            keys = parts[0].keys() if isinstance(parts[0], dict) else [None]
            for key in keys:
                path = name if key is None else f"{name}/{key}"
                episode[path] = np.stack([p if key is None else p[key] for p in parts])
        yield {k: v for k, v in episode.items() if not k.startswith("new_obs")}


def decode(d):
    if d.get(b"nd") is True:
        return np.frombuffer(d[b"data"], d[b"type"]).reshape(d[b"shape"])
    if d.get(b"nd") is False:
        return np.frombuffer(d[b"data"], d[b"type"])[0]
    return d


def episodes(folder):
    for table in tables(folder):
        for item in table["item"]:
            s = msgpack.unpackb(item.as_py(), object_hook=decode)
            n = s["t"] - s["t_started"]
            names = {"observations": "obs", "actions": "actions", "rewards": "rewards"}
            e = {to: np.array(s[name]["data"]) for name, to in names.items()}
            for k, v in s["extra_model_outputs"].items():
                if k == "state_out":
                    for part in ("h", "c"):
                        e[f"state_out/{part}"] = np.array([x[part] for x in v["data"]])
                else:
                    e[k] = np.array(v["data"])
            yield flags(e, n, bool(s["is_terminated"]), bool(s["is_truncated"]))


def steps(folder):
    table = pa.concat_tables(tables(folder)).sort_by([("episode", "ascending"), ("step", "ascending")])
    for id_ in table["episode"].unique():
        part = table.filter(pa.compute.equal(table["episode"], id_)).combine_chunks()
        real = part.filter(part["action"].is_valid())
        one = {n: leaf(real[n].combine_chunks()) for n in ("action", "reward")}
        e = {"obs": leaf(part["observation"].combine_chunks()), "actions": one["action"], "rewards": one["reward"]}
        last = real.slice(real.num_rows - 1).to_pylist()[0]
        yield flags(e, real.num_rows, last["terminated"], last["truncated"])


def flags(episode, n, terminated, truncated):
    for name, value in (("terminateds", terminated), ("truncateds", truncated)):
        episode[name] = np.zeros(n, bool)
        episode[name][-1] = value
    return episode


def sequences(a, length):
    """[steps, ..] -> [sequences, length, ..], the last one padded with zeros."""
    pad = -len(a) % length
    return np.concatenate([a, np.zeros((pad, *a.shape[1:]), a.dtype)]).reshape(-1, length, *a.shape[1:])


def batch(parts, with_new_obs, max_seq_len):
    out = {}
    for e in parts:
        n = len(e["rewards"])
        row = {k: v for k, v in e.items() if not k.startswith(("obs", "state_out"))}
        for k in [k for k in e if k.startswith("obs")]:
            row[k] = e[k][:n]
            if with_new_obs:
                row["new_" + k] = e[k][1 : n + 1]
        if max_seq_len:
            row = {k: sequences(v, max_seq_len) for k, v in row.items()}
            row["loss_mask"] = sequences(np.ones(n, bool), max_seq_len)
            row["seq_lens"] = row["loss_mask"].sum(1)
            for k in ("h", "c"):
                s = e[f"state_out/{k}"]
                row[f"state_in/{k}"] = np.concatenate([np.zeros_like(s[:1]), s[:-1]])[::max_seq_len]
        for k, v in row.items():
            out.setdefault(k, []).append(v)
    out = {f"default_policy/{k}": np.concatenate(v) for k, v in out.items()}
    return {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in out.items()}


def data_files():
    found = [f for n in DATA for pattern in ("input/*.parquet", "*.safetensors") for f in (HERE / n).glob(pattern)]
    return sorted(found)


def digests():
    lines = [(hashlib.sha256(f.read_bytes()).hexdigest(), f.relative_to(HERE).as_posix()) for f in data_files()]
    return "".join(f"{digest}  {path}\n" for digest, path in lines)


def main():
    readme = HERE / "README.md"
    if "--digests" in sys.argv[1:]:
        head, block, tail = re.split(r"(?s)(<!-- digests -->\n```\n.*?```\n)", readme.read_text())
        readme.write_text(f"{head}<!-- digests -->\n```\n{digests()}```\n{tail}")
    failed = False
    for name, (layout, with_new_obs, max_seq_len) in DATA.items():
        parts = list({"columns": columns, "episodes": episodes, "steps": steps}[layout](HERE / name))
        got, want = batch(parts, with_new_obs, max_seq_len), load_file(HERE / name / "expected.safetensors")
        wrong = [
            k for k in sorted(got.keys() | want.keys())
            if k not in got or k not in want or got[k].dtype != want[k].dtype or got[k].shape != want[k].shape
            or got[k].tobytes() != want[k].tobytes()
        ]
        failed |= bool(wrong)
        print(f"{name}: {len(parts)} episodes, {sum(len(e['rewards']) for e in parts)} steps, {len(want)} columns:",
              "differs in " + ", ".join(wrong) if wrong else "ok")
    if "".join(DIGEST.findall(readme.read_text())) != digests():
        print("README.md: digests differ")
        failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
