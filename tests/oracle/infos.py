"""RLlib's column of infos, a list of dicts, as the columns that gristmill documents for it."""

import numpy as np


def keys(episodes):
    """Those that some step has, and whether some step lacks them.

    What stands behind last steps alone is no column and no reason for a mask, not even with one more step.
    """
    steps = [
        info
        for one in episodes
        for own in (one.agent_episodes.values() if hasattr(one, "agent_episodes") else [one])
        for info in own.infos.data[own.infos.lookback : own.infos.lookback + len(own)]
    ]
    return {key: not all(key in info for info in steps) for info in steps for key in info}


def columns(infos, expected, batch):
    """`infos`: one dict a step. `expected`: see `keys`. `batch`: the module's other columns, which tell how steps are cut into sequences."""
    out = {}
    for key in dict.fromkeys(k for info in infos for k in info if k in expected):
        known = np.array([key in info for info in infos])
        some = np.asarray([info[key] for info in infos if key in info])
        rows = np.zeros((len(infos), *some.shape[1:]), some.dtype)
        rows[known] = some
        out[f"infos/{key}"] = rows
        if expected[key]:
            out[f"infos/_{key}"] = known
    if "seq_lens" in batch:
        lens = batch["seq_lens"]
        length = batch["loss_mask"].shape[1]
        out = {k: _sequences(v, lens, length) for k, v in out.items()}
    return out


def _sequences(rows, lens, length):
    padded = np.zeros((len(lens), length, *rows.shape[1:]), rows.dtype)
    for row, start, size in zip(padded, np.cumsum(lens) - lens, lens):
        row[:size] = rows[start : start + size]
    return padded
