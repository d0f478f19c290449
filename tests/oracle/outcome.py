"""What gristmill may do: the batch RLlib makes, or one of the deviations that are written down here."""

import copy
import re

import numpy as np
import tree

import reference

# Refusals that are gristmill's documented choice where RLlib goes on: what the recording must be like, and the words
# of the error. Anything else that is refused although RLlib can do it is a failure.
REFUSALS = [
    # RLlib pads such chunks as one where they merge, and counts them as two. Its columns may even agree in length.
    ("colliding ids", r"share RLlib's batch key"),
    # RLlib gives an empty dict.
    ("empty episode", r"the pipeline makes no column"),
    # Chunks of one id that lie across each other in time are two episodes under one name.
    ("id twice", r"the item covers steps from \d+, but another one"),
    # RLlib gives the column fewer rows than the others.
    ("missing column", r"recorded in \d+ of \d+ items"),
    # NumPy makes numbers of booleans; a recording that has both is broken.
    ("mixed dtypes", r"values, other items have"),
]


ADVANTAGES = ("advantages", "value_targets")


def expected(recording, episodes, run):
    """`{mode: batch, exception, or None where only a refusal will do}`.

    `episodes` gives fresh ones, `run` hands what such a function gives to RLlib's pipeline.
    """
    literal = run(episodes)
    if isinstance(literal, dict) and len({len(v) for v in literal.values()}) > 1:
        # Chunks that share a key, or a column that some episodes lack: no table can hold this.
        literal = ValueError("columns of different lengths")
    if "finalized tuple" in recording.facts:
        # RLlib takes its parts for steps, and only fails if there are not as many of them.
        literal = ValueError("a finalized tuple")
    fixed = _with_tuples(
        recording, episodes, lambda fresh: run(lambda: _renamed(_repaired(recording, _in_time_order(fresh()))))
    )
    if isinstance(fixed, dict) and not np.isfinite(fixed.get("returns_to_go", 0.0)).all():
        del fixed["returns_to_go"]  # SciPy multiplies an infinite reward by 0 and carries the NaN on; see judge()
    if isinstance(fixed, dict) and "advantages" in fixed:
        fixed = _standardised_over_real_steps(fixed)
    return {"rllib-2.60": literal, "correct": fixed}


def _standardised_over_real_steps(batch):
    """RLlib standardises over the extra steps, too. What stands in those is masked and compared with nothing."""
    real = batch["loss_mask"]
    if not np.isfinite(batch["value_targets"]).all():
        # In RLlib 0 * NaN runs over into the episode before. Nothing to learn from: left out, see judge().
        return {k: v for k, v in batch.items() if k not in ADVANTAGES}
    raw = (batch["value_targets"] - batch["vf_preds"])[real]
    advantages = np.zeros_like(batch["advantages"])
    advantages[real] = (raw - raw.mean()) / max(1e-4, raw.std())
    return {**batch, "advantages": advantages, "value_targets": np.where(real, batch["value_targets"], np.float32(0))}


def where_rllib_raises(recording, episodes, run):
    """The same repairs, but rows in RLlib's order, keys included: of what raises alone, and of everything."""
    return [
        _with_tuples(recording, episodes, lambda fresh: run(lambda: _without_empty(recording, _numbered(fresh())))),
        _with_tuples(recording, episodes, lambda fresh: run(lambda: _repaired(recording, _numbered(fresh())))),
        _with_tuples(recording, episodes, lambda fresh: run(lambda: _without_empty(recording, fresh()))),
    ]


def _with_tuples(recording, episodes, of):
    """Tuples are lists after msgpack and RLlib fails on unequal ones; gristmill names them by index."""
    if "finalized tuple" not in recording.facts:
        batch = of(episodes)
        if recording.layout != "rllib-episodes" or not isinstance(batch, Exception):
            return batch
    return of(lambda: _readable(copy.deepcopy(recording.episodes)))


def _readable(episodes):
    """Tuples of equal parts as the array that RLlib makes of them, in columns where no buffer is finalized."""
    def columns(episode):
        return {"obs": episode.observations, "actions": episode.actions, **episode.extra_model_outputs}

    kept = {k for e in episodes for k, b in columns(e).items() if isinstance(b.data, tuple)}
    for episode in episodes:
        for name, buffer in columns(episode).items():
            if name not in kept and not buffer.finalized and buffer.data and isinstance(buffer.data[0], tuple):
                if not any(isinstance(p, (dict, tuple)) for p in buffer.data[0]):
                    if len({np.shape(part) for part in buffer.data[0]}) == 1:
                        buffer.data = [np.array(parts) for parts in buffer.data]
    return episodes


def _numbered(episodes):
    """Ids as `AddObservationsFromEpisodesToBatch` numbers them: before any episode is left out."""
    for number, episode in enumerate(episodes):
        if "_" not in episode.id_:
            episode.id_ += f"_{number}"
    return episodes


def _without_empty(recording, episodes):
    if recording.stateful or "one more step" in recording.facts:
        return [e for e in episodes if len(e) > 0]  # RLlib raises; without steps there is no row
    return episodes


def _repaired(recording, episodes):
    """The episodes as `compat = "correct"` promises to take them: what RLlib gets wrong is put right beforehand."""
    episodes = _without_empty(recording, episodes)
    for episode in episodes:
        if not episode.is_numpy:
            episode.to_numpy()
    if recording.stateful:
        for episode in episodes:
            _give_look_back(episode, episodes)
    return episodes


def _renamed(episodes):
    """Every chunk under an id of its own, so that RLlib keeps them apart."""
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


def judge(recording, mode, wanted, got, differences):
    """Problems, a line each. `wanted`: right batches, or exceptions. `got`: `(batch, None)` or `(None, message)`."""
    batch, message = got
    batches = [w for w in wanted if not isinstance(w, Exception)]
    if message is not None:
        if "internal" in message or "panicked" in message:
            return [f"breaks: {message}"]
        if isinstance(wanted[0], Exception) or any(
            fact in recording.facts and re.search(words, message) for fact, words in REFUSALS
        ):
            return []
        return [f"refuses: {message}"]
    if not batches:
        return [f"accepts what RLlib cannot do even when repaired: {wanted[0]!r}"]
    if {"empty episode", "colliding ids"} <= recording.facts and mode == "rllib-2.60":
        return []  # see README.md: RLlib's columns disagree about where an empty chunk's key stands
    if {} in batches and all(len(column) == 0 for column in batch.values()):
        return []  # no step at all: RLlib has an empty dict, gristmill columns without rows
    if mode == "correct" and not any("returns_to_go" in want for want in batches):
        batch = {k: v for k, v in batch.items() if k != "returns_to_go"}
    if mode == "correct" and "advantages" in batch:
        known = any("advantages" in want for want in batches)
        batch = {
            k: np.where(batch["loss_mask"], v, np.float32(0)) if k in ADVANTAGES else v
            for k, v in batch.items()
            if known or k not in ADVANTAGES
        }
    found = [_without_narrowed(recording, batch, want, differences) for want in batches]
    return [] if [] in found else found[0]


def _without_narrowed(recording, batch, want, differences):
    """With `max_seq_len`, RLlib puts all episodes into the dtype of the first one's column, even floats into integers.

    gristmill keeps a dtype that holds them all.
    """
    if recording.stateful and "mixed dtypes" in recording.facts:
        same = {k for k in want if k not in batch or batch[k].dtype == want[k].dtype}
        batch = {k: v for k, v in batch.items() if k in same or k not in want}
        want = {k: v for k, v in want.items() if k in same}
    return differences(batch, want)
