"""What gristmill may do: the batch RLlib makes, or one of the deviations that are written down here."""

import copy
import re

import numpy as np
import tree

import reference

# Refusals that are gristmill's documented choice where RLlib goes on: what the recording must be like, and the words
# of the error. Anything else that is refused although RLlib can do it is a failure.
REFUSALS = [
    # RLlib gives the column fewer rows than the others.
    ("missing column", r"recorded in \d+ of \d+ items"),
    # NumPy makes numbers of booleans; a recording that has both is broken.
    ("mixed dtypes", r"values, other items have"),
]


def expected(recording, episodes, run):
    """`{mode: batch, exception, or None where only a refusal will do}`.

    `episodes` gives fresh ones, `run` hands what such a function gives to RLlib's pipeline.
    """
    literal = run(episodes)
    if isinstance(literal, dict) and len({len(v) for v in literal.values()}) > 1:
        # Chunks that share a key, or a column that some episodes lack: no table can hold this.
        literal = ValueError("columns of different lengths")
    fixed = run(lambda: _repaired(recording, episodes()))
    if isinstance(fixed, Exception) and recording.layout == "rllib-episodes":
        # Tuples are lists after msgpack and RLlib fails on unequal ones; gristmill names them by index.
        fixed = run(lambda: _repaired(recording, copy.deepcopy(recording.episodes)))
    return {"rllib-2.60": literal, "correct": fixed}


def _repaired(recording, episodes):
    """The episodes as `compat = "correct"` promises to take them: what RLlib gets wrong is put right beforehand."""
    episodes = _in_time_order(episodes)
    if recording.stateful or "one more step" in recording.facts:
        episodes = [e for e in episodes if len(e) > 0]  # RLlib raises; without steps there is no row
    for episode in episodes:
        if not episode.is_numpy:
            episode.to_numpy()
    if recording.stateful:
        for episode in episodes:
            _give_look_back(episode, episodes)
    for number, episode in enumerate(episodes):
        episode.id_ = f"unique{number}"
    return episodes


def _in_time_order(episodes):
    """Chunks of one episode change places among themselves."""
    places = {}
    for i, episode in enumerate(episodes):
        places.setdefault(episode.id_, []).append(i)
    out = list(episodes)
    for own in places.values():
        by_time = sorted(own, key=lambda i: (episodes[i].t_started, len(episodes[i]), i))
        for place, i in zip(own, by_time):
            out[place] = episodes[i]
    return out


def _give_look_back(episode, episodes):
    """The state before a chunk is that of the chunk before it, else the initial one."""
    if episode.t_started == 0 or episode.observations.lookback > 0:
        return
    before = [
        e for e in episodes
        if e.id_ == episode.id_ and len(e) > 0 and e.t_started + len(e) == episode.t_started
    ]
    buffer = episode.extra_model_outputs.get("state_out")
    if not before or buffer is None:
        episode.t_started, episode.t = 0, len(episode)
        return
    last = before[0].extra_model_outputs["state_out"].data
    buffer.data = tree.map_structure(lambda a, b: np.concatenate([b[-1:], a]).astype(a.dtype), buffer.data, last)
    buffer.lookback = 1


def judge(recording, mode, want, got, differences):
    """Problems, a line each. `got` is `(batch, None)` or `(None, message)`."""
    batch, message = got
    if message is not None and ("internal" in message or "panicked" in message):
        return [f"breaks: {message}"]
    if message is not None:
        if isinstance(want, Exception) or any(
            fact in recording.facts and re.search(words, message) for fact, words in REFUSALS
        ):
            return []
        return [f"refuses: {message}"]
    if isinstance(want, Exception):
        if mode == "rllib-2.60":
            return []  # judged by what `correct` should give; see run.py
        return [f"accepts what RLlib cannot do even when repaired: {want!r}"]
    return differences(batch, want)
