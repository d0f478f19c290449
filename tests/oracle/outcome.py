"""What gristmill may do: the batch RLlib makes, or one of the deviations that are written down here."""

import copy
import re

import numpy as np
import tree

import agents

# Refusals that are gristmill's documented choice where RLlib goes on: what the recording must be like, and the words
# of the error. Anything else that is refused although RLlib can do it is a failure.
REFUSALS = [
    # RLlib pads such chunks as one where they merge, and counts them as two. Its columns may even agree in length.
    ("colliding ids", r"share RLlib's batch key"),
    # RLlib gives an empty dict.
    ("empty episode", r"the pipeline makes no column"),
    # Chunks of one id that lie across each other in time are two episodes under one name.
    ("id twice", r"the item covers steps from \d+, but another one|the episode goes on after its end"),
    # Not one step, and so no state that could say its shape.
    ("no steps", r"neither the job nor the data say what its state is"),
    ("no steps", r"needs rewards as one column|needs actions, and the input has none|found no (rows in|column `rewards`)"),
    # RLlib gives the column fewer rows than the others.
    ("missing column", r"recorded in \d+ of \d+ items"),
    # NumPy makes numbers of booleans; a recording that has both is broken.
    ("mixed dtypes", r"values, other items have"),
    # RLlib counts the names of the leaves, or raises.
    ("counted names", r"RLlib 2.60 (counts the names|raises a TypeError)"),
    # The last bit of C's `pow` differs between machines.
    ("distances", r"squares numbers without a dimension by the C library"),
    # In a single episode RLlib compares nothing, and so it does not fail.
    ("several observations", r"RLlib 2.60 keeps them in one buffer"),
    ("distances", r"there is no distance between them|boolean subtract"),
]


ADVANTAGES = ("advantages", "value_targets")


def expected(recording, episodes, run):
    """`{mode: batch, exception, or None where only a refusal will do}`.

    `episodes` gives fresh ones, `run` hands what such a function gives to RLlib's pipeline.
    """
    literal = run(episodes, correct=False)
    if isinstance(literal, dict) and any(len({len(v) for v in own.values()}) > 1 for own in _modules(recording, literal)):
        # Chunks that share a key, or a column that some episodes lack: no table can hold this.
        literal = ValueError("columns of different lengths")
    if "finalized tuple" in recording.facts:
        # RLlib takes its parts for steps, and only fails if there are not as many of them.
        literal = ValueError("a finalized tuple")
    if recording.agents:
        fixed = run(lambda: _without_empty(recording, episodes()))
    else:
        fixed = _with_tuples(recording, episodes, lambda fresh: run(lambda: _right(recording, fresh())))
    if isinstance(fixed, dict):
        fixed = {k: v for own in _modules(recording, fixed) for k, v in _known(own).items()}
    return {"rllib-2.60": literal, "correct": fixed}


def _right(recording, episodes):
    return _renamed(_repaired(recording, _in_time_order(episodes), history=True))


def _modules(recording, batch):
    """The batches of the modules; names keep their module in front in multi-agent recordings."""
    if not recording.agents:
        return [batch]
    return [{k: v for k, v in batch.items() if k.startswith(f"{name}/")} for name in recording.modules]


def _known(batch):
    """A module's batch without the columns of which nobody knows what is right."""
    names = {k.split("/")[-1]: k for k in batch}
    returns = names.get("returns_to_go")
    if returns and not np.isfinite(batch[returns]).all():
        # SciPy multiplies an infinite reward by 0 and carries the NaN on; see judge()
        batch = {k: v for k, v in batch.items() if k != returns}
    return _standardised_over_real_steps(batch, names) if "advantages" in names else batch


def _standardised_over_real_steps(batch, names):
    """RLlib standardises over the extra steps, too. What stands in those is masked and compared with nothing."""
    advantages, targets = (names[k] for k in ADVANTAGES)
    real = batch[names["loss_mask"]]
    if not np.isfinite(batch[targets]).all():
        # In RLlib 0 * NaN runs over into the episode before. Nothing to learn from: left out, see judge().
        return {k: v for k, v in batch.items() if k not in (advantages, targets)}
    raw = (batch[targets] - batch[names["vf_preds"]])[real]
    out = np.zeros_like(batch[advantages])
    out[real] = (raw - raw.mean()) / max(1e-4, raw.std())
    return {**batch, advantages: out, targets: np.where(real, batch[targets], np.float32(0))}


def where_rllib_raises(recording, episodes, run):
    """The same repairs, but rows in RLlib's order, keys included: of what raises alone, and of everything."""
    if recording.agents:
        return [run(lambda: _without_empty(recording, episodes()), correct=False)]

    def with_repairs(repair, number):
        def given(fresh):
            return run(lambda: repair(recording, number(_writable(fresh()))), correct=False)

        return _with_tuples(recording, episodes, given)

    return [with_repairs(repair, number) for number in (_numbered, list) for repair in (_without_empty, _repaired)]


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


def _writable(episodes):
    """Arrays of a finalized episode that comes from msgpack are read-only, and RLlib cannot shape its rewards."""
    for episode in episodes:
        if isinstance(episode.rewards.data, np.ndarray):
            episode.rewards.data = episode.rewards.data.copy()
    return episodes


def _numbered(episodes):
    """Ids as `AddObservationsFromEpisodesToBatch` numbers them: before any episode is left out."""
    for number, episode in enumerate(episodes):
        if "_" not in episode.id_:
            episode.id_ += f"_{number}"
    return episodes


def _without_empty(recording, episodes):
    if recording.agents:
        # An agent without a step has no row either.
        return agents.without_steps(episodes)
    if recording.stateful or "one more step" in recording.facts:
        return [e for e in episodes if len(e) > 0]  # RLlib raises; without steps there is no row
    return episodes


def _repaired(recording, episodes, history=False):
    """The episodes as `compat = "correct"` promises to take them: what RLlib gets wrong is put right beforehand."""
    episodes = _without_empty(recording, episodes)
    for episode in episodes:
        if not episode.is_numpy:
            episode.to_numpy()
    if history:
        for episode in episodes:
            _give_history(episode, episodes)
    if recording.stateful:
        without = [e for e in episodes if _needs_state(e) and not _give_state(e, episodes)]
        for episode in without:
            episode.t_started, episode.t = 0, len(episode)  # so that RLlib takes the initial state
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


def _needs_state(episode):
    buffer = episode.extra_model_outputs.get("state_out")
    return episode.t_started > 0 and buffer is not None and buffer.lookback == 0


def _give_state(episode, episodes):
    """The state before a chunk is that of the chunk before it, if that is in the data."""
    start = episode.t_started
    before = [e for e in episodes if e.id_ == episode.id_ and len(e) > 0 and e.t_started + len(e) == start]
    if before:
        buffer, last = (e.extra_model_outputs["state_out"] for e in (episode, before[0]))
        buffer.data = tree.map_structure(
            lambda a, b: np.concatenate([b[-1:], a]).astype(a.dtype), buffer.data, last.data
        )
        buffer.lookback = 1
    return bool(before)


def _give_history(episode, episodes):
    """The steps before a chunk are those of the chunks before it, as far as they go without a gap."""
    if len(episode) == 0:
        return
    buffers = [episode.observations, episode.actions, episode.rewards]
    known, start = episode.t_started - episode.observations.lookback, episode.t_started
    while start > 0:
        before = next(
            (e for e in episodes if e.id_ == episode.id_ and len(e) > 0 and e.t_started + len(e) == start), None
        )
        if before is None:
            return
        start, rows = before.t_started, known - before.t_started
        if rows <= 0:
            continue
        for own, its in zip(buffers, [before.observations, before.actions, before.rewards]):
            own.data = tree.map_structure(
                lambda a, b: np.concatenate([b[its.lookback : its.lookback + rows], a]), own.data, its.data
            )
            own.lookback += rows
        known = start


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
    if "no steps" in recording.facts and all(len(column) == 0 for column in batch.values()):
        return []  # RLlib may raise, or have an empty dict, where gristmill has columns without rows
    if not batches:
        return [f"accepts what RLlib cannot do even when repaired: {wanted[0]!r}"]
    if {"empty episode", "colliding ids"} <= recording.facts and mode == "rllib-2.60":
        return []  # see README.md: RLlib's columns disagree about where an empty chunk's key stands
    if recording.agents:
        # A module whose agents never acted has no row in any file, and RLlib columns without rows.
        batches = [{k: v for k, v in b.items() if k in batch or len(v) > 0} for b in batches]
        return [
            problem
            for own, *want in zip(*(_by_module(recording, b) for b in (batch, *batches)), strict=True)
            for problem in _against_any(recording, mode, wanted, own, want, differences)
        ]
    return _against_any(recording, mode, wanted, batch, batches, differences)


def _by_module(recording, batch):
    """The batches of the modules, columns without the module's name."""
    return [{k.split("/", 1)[1]: v for k, v in own.items()} for own in _modules(recording, batch)]


def _against_any(recording, mode, wanted, batch, batches, differences):
    """What differs between the batch of a module and the nearest one that is right."""
    repaired = mode == "correct" or isinstance(wanted[0], Exception)
    for want in batches:
        if repaired and "returns_to_go" in want and "returns_to_go" in batch:
            # The sign that SciPy gives a zero is not promised.
            batch, want["returns_to_go"] = {**batch, "returns_to_go": batch["returns_to_go"] + 0}, want["returns_to_go"] + 0
    if mode == "correct" and "advantages" in batch:
        batch = {k: np.where(batch["loss_mask"], v, np.float32(0)) if k in ADVANTAGES else v for k, v in batch.items()}
    unknown = set()
    if "mixed dtypes" in recording.facts and "shaped rewards" in recording.facts:
        unknown = {"rewards", "returns_to_go", *ADVANTAGES}

    def against(want):
        skip = unknown | {k for k in ("returns_to_go", *ADVANTAGES) if repaired and k not in want}
        return _without_narrowed(
            recording, *({k: v for k, v in b.items() if k not in skip} for b in (batch, want)), differences
        )

    found = [against(want) for want in batches]
    return [] if [] in found else found[0]


def _without_narrowed(recording, batch, want, differences):
    """With `max_seq_len`, RLlib puts all episodes into the dtype of the first one's column, even floats into integers.

    gristmill keeps a dtype that holds them all.
    """
    if "only continued" in recording.facts:
        # No initial state is there to be joined, and so RLlib's state_in keeps what was recorded.
        states = {k for k in want if k in batch and k.split("/")[0] == "state_in"}
        want = {k: v.astype(batch[k].dtype) if k in states else v for k, v in want.items()}
    if recording.stateful and "mixed dtypes" in recording.facts:
        same = {k for k in want if k not in batch or batch[k].dtype == want[k].dtype}
        batch = {k: v for k, v in batch.items() if k in same or k not in want}
        want = {k: v for k, v in want.items() if k in same}
    return differences(batch, want)
