"""Random multi-agent recordings: RLlib's own `MultiAgentEpisode`, stepped, and its agents' steps as rows.

Agents join late, leave early, skip turns, wait for an observation after they acted, or never act. Rewards that arrive while
an agent waits are RLlib's to add up; rows tell them one by one, or added up.
"""

import copy
import dataclasses

import numpy as np
import pyarrow as pa
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

import layouts
import recording as single
import values
from spaces import gym_space
from values import Leaf

NAMES = ["agent_0", "agent_1", "b", "a", "10", "9", "walker_2", "walker_1", "Z"]


@dataclasses.dataclass
class Module:
    """What differs between modules; see `recording.Recording`."""

    stateful: bool
    max_seq_len: int | None
    initial_state: object
    specs: dict
    state_spec: object


@dataclasses.dataclass
class AgentRecording:
    episodes: list
    agents: dict
    modules: dict
    specs: dict
    facts: set
    rewards: dict = dataclasses.field(default_factory=dict)
    """By episode and agent: the reward of each action, and of the environment's steps in which it waited, as `(env_t, reward)`."""
    layout: str = "steps"

    @property
    def stateful(self):
        return any(module.stateful for module in self.modules.values())


class InOrder(MultiAgentEpisode):
    """RLlib's order of agents is that of a set of strings, which is another in each process. Here: of their first rows."""

    @property
    def agent_ids(self):
        return list(self.agent_episodes)


def make(rng):
    names = [str(n) for n in rng.choice(NAMES, int(rng.integers(1, 6)), replace=False)]
    count = int(rng.integers(1, min(len(names), 3) + 1))
    agents = {name: f"p{i if i < count else int(rng.integers(count))}" for i, name in enumerate(names)}
    facts = set()
    obs, actions = single.observations(rng, False, facts), values.action(rng, tuples=False)
    specs = {"obs": obs, "actions": actions, "rewards": Leaf("float64", (), "python"), **single.extras(rng, True)}
    modules = {f"p{i}": _module(rng, specs) for i in range(count)}
    if any(module.specs["obs"] != obs for module in modules.values()):
        facts.discard("space")
        facts.add("several observations")
    recording = AgentRecording([], agents, modules, specs, facts)
    for number in rng.permutation(int(rng.integers(1, 5))):
        recording.episodes.append(_episode(rng, recording, f"{'e_' if rng.random() < 0.3 else 'e'}{number}"))
    if any(len(e) == 0 for episode in recording.episodes for e in episode.agent_episodes.values()):
        facts.add("empty episode")
    return recording


def _module(rng, specs):
    """Modules see vectors of several lengths, and only some put out everything."""
    specs = {k: v for k, v in specs.items() if k in ("obs", "actions", "rewards", "vf_preds") or rng.random() < 0.8}
    for name in ("obs", "actions"):
        spec = specs[name]
        if isinstance(spec, Leaf) and len(spec.shape) == 1 and not spec.values and rng.random() < 0.3:
            specs[name] = dataclasses.replace(spec, shape=(int(rng.integers(1, 5)),))
    stateful = bool(rng.random() < 0.5)
    state = single.recorded_state(rng) if rng.random() < 0.6 else None
    if state is not None:
        # One column of the table holds the states of all modules.
        state = {"h": Leaf("float32", (int(rng.integers(1, 4)),)), "c": Leaf("float32", (2,))}
        specs["state_out"] = state
    seq_len = int(rng.choice([1, 2, 3, 5, 20])) if stateful else None
    return Module(stateful, seq_len, single.initial_state(rng, state) if stateful else None, specs, state)


def _episode(rng, recording, id_):
    """RLlib's episode, stepped as an environment with turns would."""
    agents = recording.agents
    specs = {agent: recording.modules[module].specs for agent, module in agents.items()}
    known = {agent: gym_space(own["obs"]) for agent, own in specs.items()} if "frames" in recording.facts else None
    episode = InOrder(
        id_=id_, observation_space=known, agent_to_module_mapping_fn=lambda agent, *_, **__: agents[agent]
    )
    first = [a for a in agents if rng.random() < 0.6] or [next(iter(agents))]
    episode.add_env_reset(observations={a: values.draw(specs[a]["obs"], rng) for a in first})
    ready, waiting, absent = list(first), [], [a for a in agents if a not in first]
    turns, steps = rng.random() < 0.4, int(rng.integers(1, 14))
    for step in range(steps):
        last = step == steps - 1
        end = str(rng.choice(["terminateds", "truncateds", "open"])) if last else "open"
        acting = [a for a in ready if not turns or rng.random() < 0.5]
        seen = [a for a in acting + waiting if last or rng.random() < (0.4 if turns else 0.9)]
        joining = [a for a in absent if not last and rng.random() < 0.2]
        flags = {name: {a: True for a in seen if rng.random() < 0.08} for name in ("terminateds", "truncateds")}
        flags["truncateds"] = {a: True for a in flags["truncateds"] if a not in flags["terminateds"]}
        if end != "open":
            flags[end]["__all__"] = True
        outputs = {
            a: {k: values.draw(v, rng) for k, v in specs[a].items() if k not in ("obs", "actions", "rewards")}
            for a in acting
        }
        rewards = {a: float(rng.normal()) for a in acting + [w for w in waiting if rng.random() < 0.5]}
        for a, reward in rewards.items():
            own = recording.rewards.setdefault((id_, a), [])
            own.append((reward, [])) if a in acting else own[-1][1].append((step, reward))
        episode.add_env_step(
            observations={a: values.draw(specs[a]["obs"], rng) for a in seen + joining},
            actions={a: values.draw(specs[a]["actions"], rng) for a in acting},
            rewards=rewards,
            extra_model_outputs=outputs,
            **flags,
        )
        if episode.is_done:
            break
        done = [a for name in flags for a in flags[name]]
        waiting = [a for a in acting + waiting if a not in seen]
        ready = [a for a in [x for x in ready if x not in acting] + seen + joining if a not in done]
        absent = [a for a in absent if a not in joining]
    return episode


def write(rng, recording, folder):
    """Writes rows of steps. Returns a function that gives fresh episodes, in the order of their first rows."""
    folder.mkdir(parents=True)
    episodes = copy.deepcopy(recording.episodes)
    timed, mixed = rng.random() < 0.7, rng.random() < 0.3
    # Rewards that came while an agent waited: in rows of their own, which have no `t`, or added up already.
    apart = not timed and not mixed and rng.random() < 0.6
    rows = [row for episode in episodes for row in _rows(episode, recording.rewards if apart else None)]
    if rng.random() < 0.4:
        rows = _with_trailing_rows(rows)
    if rng.random() < 0.5:
        rows.sort(key=lambda row: row["env_t"])  # stable: the episodes' environments run side by side
    if mixed:
        timed, rows = True, [rows[i] for i in rng.permutation(len(rows))]
    order = {}
    for row in rows:
        order.setdefault(row["eps_id"], {}).setdefault(row["agent_id"], None)
    drop = [name for name in ("env_t", "t") if rng.random() < 0.5 or name == "t" and not timed]
    if timed:
        drop = [name for name in drop if name != "t"]
    recording.facts.add("module column") if rng.random() < 0.5 else drop.append("module_id")
    names = dict.fromkeys(k for row in rows for k in row if k not in drop)
    kind = str(rng.choice(["list", "large", "fixed"]))
    if any(len(set(_shapes(rows, k))) > 1 for k in names):
        kind = "list" if kind == "fixed" else kind
    table = {k: layouts.column([row.get(k) for row in rows], kind) for k in names}
    layouts.files(rng, pa.table(table), folder, groups=(3, 1000))

    def fresh():
        out = []
        for id_, agents in order.items():
            episode = copy.deepcopy(next(e for e in recording.episodes if e.id_ == id_))
            others = [a for a in episode.agent_episodes if a not in agents]
            episode.agent_episodes = {a: episode.agent_episodes[a] for a in [*agents, *others]}
            out.append(episode)
        return out

    return fresh


def rules(agents):
    """Agent to module as a job has it: the first rule that fits counts, and the last one is for all others."""
    last = list(agents.values())[-1]
    return {**{agent: module for agent, module in agents.items() if module != last}, "*": last}


def _rows(episode, apart):
    """The steps of all agents as rows, in the order of the environment's time; `apart` are rewards to be told one by one."""
    rows = []
    for agent, own in episode.agent_episodes.items():
        if len(own) == 0:
            continue
        # Where the mapping says nothing of an agent, it did not step.
        at = [i for i, t in enumerate(episode.env_t_to_agent_t[agent].data) if t != episode.SKIP_ENV_TS_TAG]
        obs, actions, rewards = own.get_observations(), own.get_actions(), own.get_rewards()
        for t in range(len(own)):
            last = t + 1 == len(own)
            rows.append({
                "eps_id": episode.id_, "agent_id": agent, "module_id": own.module_id, "t": t, "env_t": at[t],
                "obs": obs[t], "actions": actions[t], "rewards": rewards[t], "new_obs": obs[t + 1],
                "terminateds": last and own.is_terminated, "truncateds": last and own.is_truncated,
                **{k: own.get_extra_model_outputs(k)[t] for k in own.extra_model_outputs},
            })
            if apart is not None:
                rows[-1]["rewards"], waited = apart[episode.id_, agent][t]
                keys = {k: rows[-1][k] for k in ("eps_id", "agent_id", "module_id")}
                rows += [{**keys, "env_t": env_t, "rewards": reward} for env_t, reward in waited]
    return sorted(rows, key=lambda row: row["env_t"])


def _with_trailing_rows(rows):
    """The last observation of each agent in a row of its own, instead of `new_obs`."""
    last = {(row["eps_id"], row["agent_id"]): row["t"] for row in rows if "t" in row}
    out = []
    for row in rows:
        out.append({k: v for k, v in row.items() if k != "new_obs"})
        if row.get("t") == last[row["eps_id"], row["agent_id"]]:
            keys = {k: row[k] for k in ("eps_id", "agent_id", "module_id")}
            out.append({**keys, "t": row["t"] + 1, "env_t": row["env_t"] + 1, "obs": row["new_obs"]})
    return out


def _shapes(rows, name):
    def shapes(value):
        if isinstance(value, dict):
            return tuple((k, shapes(v)) for k, v in sorted(value.items()))
        return np.shape(value)

    return [shapes(row[name]) for row in rows if name in row]


def without_steps(episodes):
    """Agents that never acted are left out: RLlib raises where one more step or a state is asked of them."""
    for episode in episodes:
        episode.agent_episodes = {a: e for a, e in episode.agent_episodes.items() if len(e) > 0}
    return [e for e in episodes if e.agent_episodes]
