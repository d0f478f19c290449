"""Random recordings: episodes, cut into chunks, as RLlib's own `SingleAgentEpisode`s.

The facts that decide which outcome is allowed (see outcome.py) are collected in `Recording`.
"""

import copy
import dataclasses

import numpy as np
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

import spaces
import values
from values import Leaf

SUBJECTS = ["any", "frames", "space", "repeating", "wide", "start"]


@dataclasses.dataclass
class Recording:
    layout: str
    episodes: list
    """Chunks in file order, as recorded (not NumPy'd)."""
    stateful: bool
    max_seq_len: int | None
    initial_state: object
    """None, a state leaf `{shape, dtype, fill}`, or a dict of them."""
    specs: dict
    """What each column is recorded as."""
    state_spec: object
    """What `state_out` is recorded as, or None."""
    facts: set = dataclasses.field(default_factory=set)
    infos: dict = dataclasses.field(default_factory=dict)
    """Of each key of the infos what it holds, and how often it is missing."""
    agents: dict | None = None
    """Agent to module, in multi-agent recordings (see agents.py)."""

    @property
    def spaces(self):
        """Of observations and actions, where RLlib may look at them: to know what a missing frame is made of."""
        return {"observation_space": spaces.gym_space(self.specs["obs"])} if "frames" in self.facts else {}

    @property
    def modules(self):
        return {DEFAULT_MODULE_ID: self}


def make(rng, layout):
    nested_tuples = layout == "rllib-episodes"
    stateful = bool(rng.random() < 0.5)
    max_seq_len = int(rng.choice([1, int(rng.integers(1, 8)), int(rng.integers(1, 8)), 20])) if stateful else None
    facts = set()
    obs = observations(rng, nested_tuples, facts)
    if rng.random() < 0.3:
        actions = values.with_space(rng, tuples=nested_tuples)
        facts.add("action space")
    else:
        actions = values.action(rng, tuples=nested_tuples)
    rewards = _rewards(rng)
    outputs = extras(rng, nested_tuples)
    state = recorded_state(rng) if rng.random() < 0.6 else None
    if layout == "rllib-columns":
        # Ray Data pickles dicts of anything but vectors, and such a column cannot be read without unpickling.
        obs, actions = _flat_dict(obs), _flat_dict(actions)
        outputs = {k: v for k, v in outputs.items() if not isinstance(v, dict)}
        state = state if isinstance(state, Leaf) and state.shape else None
    recording = Recording(layout, [], stateful, max_seq_len, None, {}, state, facts)
    if stateful:
        recording.initial_state = initial_state(rng, state)
    if state is not None:
        outputs["state_out"] = state
    recording.specs = {"obs": obs, "actions": actions, "rewards": rewards, **outputs}
    if layout != "rllib-columns" and rng.random() < 0.15:
        recording.infos = _infos(rng)
        facts.add("infos")
    _episodes(rng, recording)
    return recording


def _infos(rng):
    out = {}
    for name in ("lives", "a2", "a10"):
        leaf = values.leaf(rng, ranks=(1,), kinds=("python", "python", "scalar", "array"))
        out[name] = leaf, float(rng.choice([0.0, 0.3, 0.8]))
    return out


def _info(rng, recording):
    return {k: values.draw(leaf, rng) for k, (leaf, missing) in recording.infos.items() if rng.random() >= missing}


def observations(rng, tuples, facts):
    subject = str(rng.choice(SUBJECTS, p=[0.46, 0.15, 0.12, 0.15, 0.07, 0.05]))
    if subject == "any":
        obs = values.observation(rng, tuples=tuples)
        if isinstance(obs, Leaf) and len(obs.shape) == 3 and obs.shape[2] == 1:
            facts.add("frames")
        return obs
    if subject in ("space", "start"):
        facts.add("space")
        return values.with_space(rng, tuples=tuples, start=subject == "start")
    if subject == "frames":
        facts.add("frames")
        return values.frames(rng)
    return values.repeating(rng) if subject == "repeating" else values.wide(rng)


def _rewards(rng):
    kind = rng.random()
    if kind < 0.6:
        return Leaf("float64", (), "python")
    if kind < 0.7:
        return Leaf("int64", (), "python")
    return Leaf(str(rng.choice(["float16", "float32", "float64", "int64", "int32", "uint8"])), (), "scalar")


def extras(rng, nested):
    out = {}
    if rng.random() < 0.5:
        out["action_logp"] = Leaf("float32", (), str(rng.choice(["array", "scalar"])))
    if rng.random() < 0.3:
        out["weights_seq_no"] = Leaf("int64", (), "python")
    if rng.random() < 0.4:
        out["vf_preds"] = Leaf("float32", (), "scalar")
    if rng.random() < 0.4:
        out["action_dist_inputs"] = values.leaf(rng)
    if nested and rng.random() < 0.25:
        out["nested"] = {"z": values.leaf(rng), "a": {"deep": values.leaf(rng)}}
    return out


def recorded_state(rng):
    dtype = str(rng.choice(["float32", "float32", "float32", "float64", "float16", "int64"]))
    shape = [(3,), (1, 2), ()][int(rng.choice(3, p=[0.6, 0.3, 0.1]))]
    one = Leaf(dtype, shape)
    form = rng.choice(["flat", "once", "twice"], p=[0.3, 0.5, 0.2])
    if form == "flat":
        return one
    if form == "once":
        return {"h": one, "c": Leaf("float32", (2,))}
    return {"actor": {"h": one, "c": one}, "critic": {"h": Leaf("float32", (2,))}}


def initial_state(rng, recorded):
    """What the module starts from: left to the recording, or zeros or other values of some dtype."""
    if recorded is None:
        recorded = rng.choice([{"h": Leaf("float32", (2,))}, {"a": {"h": Leaf("float32", (1,))}}])
    elif rng.random() < 0.3:
        return None

    def one(spec):
        if isinstance(spec, dict):
            return {k: one(v) for k, v in spec.items()}
        dtype = str(rng.choice([spec.dtype, "float32", "float64", "int64"]))
        size = int(np.prod(spec.shape))
        fill = [round(float(x), 3) for x in rng.normal(size=size)] if rng.random() < 0.5 else float(rng.integers(0, 9))
        if dtype == "int64":
            fill = [int(x * 3) for x in fill] if isinstance(fill, list) else int(fill)
        return {"shape": list(spec.shape), "dtype": dtype, "fill": fill}

    return one(recorded)


def _flat_dict(spec):
    if not isinstance(spec, dict):
        return spec
    if all(isinstance(x, Leaf) and (len(x.shape) == 1 or x.kind == "scalar") for x in spec.values()):
        return spec
    flat = [x for x in values.leaves(spec) if x.kind == "array" and len(x.shape) == 1]
    return {name: one for name, one in zip("ba", [*flat, Leaf("float32", (2,)), Leaf("uint8", (3,))])}


def _episodes(rng, recording):
    count = int(rng.integers(1, 7))
    seq_len = recording.max_seq_len or 4
    columns = recording.layout != "rllib-episodes"
    mixed = rng.random() < 0.15 and not columns
    ids = _ids(rng, count, columns)
    if len(set(ids)) < len(ids):
        recording.facts.add("id twice")
    if any("_" in id_ for id_ in ids):
        recording.facts.add("colliding ids")
    per_episode = []
    for id_ in ids:
        length = int(rng.choice([0, 1, seq_len - 1, seq_len, seq_len + 1, int(rng.integers(1, 3 * seq_len + 2))]))
        if rng.random() < 0.01:
            length = int(rng.integers(100, 400))
        if columns or rng.random() < 0.75:
            length = max(length, 1)
        own = dict(recording.specs)
        if mixed and rng.random() < 0.5:
            name = str(rng.choice(list(own)))
            own[name] = values.with_other_dtype(own[name], rng)
            recording.facts.add("mixed dtypes")
        if "vf_preds" in own and not columns and rng.random() < 0.03:
            del own["vf_preds"]
            recording.facts.add("missing column")
        per_episode.append(_chunks(rng, recording, str(id_), length, own))
    interleave = rng.random() < 0.5
    while any(per_episode):
        waiting = [c for c in per_episode if c]
        chunks = waiting[int(rng.integers(len(waiting)))] if interleave else waiting[0]
        recording.episodes.append(chunks.pop(0))
    for episode in recording.episodes:
        if len(episode) == 0:
            recording.facts.add("empty episode")
        if episode.t_started > 0 and episode.observations.lookback == 0:
            recording.facts.add("no look-back")


def _ids(rng, count, columns):
    """Ids that collide with a numbered id (`x` becomes `x_0`), and ids that are there twice."""
    pool = [f"{n:032x}" for n in range(count)]
    style = rng.choice(["plain", "underscore", "colliding", "twice"], p=[0.5, 0.2, 0.2, 0.1])
    if style == "underscore":
        pool = [f"e_{n}" if rng.random() < 0.7 else f"e{n}" for n in range(count)]
    elif style == "colliding":
        pool = ["x", "x_1", "x_0", "x_2", "y", "y_4", "x_0_0"]
    elif style == "twice" and not columns:
        pool = ["x", "x", "a_b", "a_b", "y", "z"]
    return [pool[i] for i in rng.permutation(count)]


def _chunks(rng, recording, id_, length, specs):
    """An episode as its chunks, each with its own look-back."""
    data = {name: [values.draw(spec, rng) for _ in range(length)] for name, spec in specs.items()}
    data["obs"].append(values.draw(specs["obs"], rng))
    infos = [_info(rng, recording) for _ in range(length + 1)]
    end = str(rng.choice(["terminated", "truncated", "open"], p=[0.5, 0.2, 0.3]))
    cuts = sorted(set(rng.integers(1, length, int(rng.integers(0, 3))).tolist())) if length > 2 else []
    if rng.random() < 0.5:
        cuts = []
    chunks = []
    bounds = [0, *cuts, length]
    for start, stop in zip(bounds, bounds[1:]):
        lookback = int(min(start, rng.integers(0, 4)))
        if recording.layout != "rllib-episodes":
            lookback = 0
        at = start - lookback
        last = stop == length
        extras = {k: v[at:stop] for k, v in data.items() if k not in ("obs", "actions", "rewards")}
        if start == stop:
            extras = {}  # RLlib cannot pack the model outputs of an episode without steps
        chunks.append(SingleAgentEpisode(
            id_=id_,
            observations=copy.deepcopy(data["obs"][at : stop + 1]),
            infos=copy.deepcopy(infos[at : stop + 1]),
            actions=copy.deepcopy(data["actions"][at:stop]),
            rewards=copy.deepcopy(data["rewards"][at:stop]),
            terminated=last and end == "terminated",
            truncated=last and end == "truncated",
            extra_model_outputs=copy.deepcopy(extras),
            t_started=start,
            len_lookback_buffer=lookback,
            **recording.spaces,
        ))
    # The recording may begin or end in the middle of an episode.
    if len(chunks) > 1 and recording.layout == "rllib-episodes" and rng.random() < 0.2:
        del chunks[0]
    return chunks
