"""Makes the episode items in this directory, with Ray RLlib itself. Python 3.11, ray 2.60, numpy 2.4, msgpack 1.2.

    python make.py

Each file is one value of the `item` column: msgpack.packb(episode.get_state(), default=msgpack_numpy.encode). The
clocks are set, so that a second run makes the same bytes.
"""

import pathlib

import msgpack
import msgpack_numpy as mnp
import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

HERE = pathlib.Path(__file__).parent


def write(name, episode):
    state = episode.get_state()
    state["_start_time"], state["_last_step_time"] = 1.5, 2.5
    (HERE / f"{name}.msgpack").write_bytes(msgpack.packb(state, default=mnp.encode))


def plain(id_="plain"):
    """Vector observations, 3 steps, terminated."""
    e = SingleAgentEpisode(id_=id_)
    e.add_env_reset(np.array([0, 0.5], "float32"))
    for i in range(3):
        e.add_env_step(
            np.array([i + 1, i + 1.5], "float32"), np.int32(i % 2), 1.0 + i, terminated=np.bool_(i == 2),
            extra_model_outputs={"action_logp": np.array(-0.5 * i, "float32"), "weights_seq_no": 7},
        )
    return e


def nested_obs(i):
    return {"z": (np.int64(i), np.full((2, 2), i, "float32")), "a": {"img": np.full((2, 1), i, "uint8")}, "f": True}


def nested():
    """A chunk that continues an episode: look-back 2, 3 steps, nested observations and states, cut."""
    e = SingleAgentEpisode(id_="nested")
    e.add_env_reset(nested_obs(0))

    def go(e, start, stop):
        for i in range(start, stop):
            state = {"h": np.full((1, 2), i, "float32"), "c": np.full((1, 2), -i, "float32")}
            outputs = {"state_out": {"actor": state, "critic": state}}
            if i >= 6:
                outputs["late"] = np.float32(i)
            e.add_env_step(nested_obs(i + 1), np.array([i, 2 * i], "int16"), i, extra_model_outputs=outputs)

    go(e, 0, 6)
    chunk = e.cut(len_lookback_buffer=2)
    go(chunk, 6, 9)
    return chunk


def tuples():
    """A top-level Tuple observation and tuple actions."""
    e = SingleAgentEpisode(id_="tuples")
    e.add_env_reset((np.int64(0), np.array([0.0, 0.0], "float32")))
    for i in range(1, 3):
        e.add_env_step((np.int64(i), np.array([i, -i], "float32")), (np.int32(i), np.array([i], "float32")), -1.0)
    e.is_truncated = True
    return e


def infos():
    """An episode as two chunks, with infos that are numbers, numbers now and then, arrays, lists and text."""
    def told(i):
        hit = {"hit": 0.5 * i} if i % 2 else {}
        return {"lives": 3 - i // 2, **hit, "pos": np.array([i, -i], "float32"), "in": {"list": [i, i + 1]}, "who": "me"}

    def go(e, start, stop):
        for i in range(start, stop):
            e.add_env_step(np.array([i + 1], "float32"), 0, 1.0, infos=told(i + 1), terminated=i == 4)

    e = SingleAgentEpisode(id_="infos")
    e.add_env_reset(np.array([0], "float32"), infos=told(0))
    go(e, 0, 3)
    chunk = e.cut(len_lookback_buffer=1)
    go(chunk, 3, 5)
    return e, chunk


def mixed():
    """Rows of different dtypes at one leaf."""
    e = SingleAgentEpisode(id_="mixed")
    e.add_env_reset(np.array([0.1, 0.2], "float32"))
    for i, (reward, extra) in enumerate([(1, True), (0.5, 3)]):
        e.add_env_step(
            np.array([0.1, 0.2], "float64") * (i + 2), np.array(i, ">i4"), reward,
            extra_model_outputs={"n": extra, "f": np.float32(0.1) if i == 0 else 0.1},
        )
    return e


def empty():
    """Reset, and not one step."""
    e = SingleAgentEpisode(id_="empty")
    e.add_env_reset(np.array([0, 0.5], "float32"))
    return e


write("plain", plain())
write("plain_finalized", plain().to_numpy())
write("nested", nested())
write("nested_finalized", nested().to_numpy())
write("tuples", tuples())
write("tuples_finalized", tuples().to_numpy())
write("mixed", mixed())
write("mixed_finalized", mixed().to_numpy())
write("empty", empty())
write("empty_finalized", empty().to_numpy())
for number, chunk in enumerate(infos()):
    write(f"infos_{number}", chunk)
