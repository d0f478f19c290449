"""RLlib's side of the package: episodes in, jobs out of configs, training from shards. Skipped where Ray is missing."""

import importlib.util

import gristmill
import numpy as np
import pytest
from conftest import ROOT
from gristmill import Job

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed: `make PYTHON=... test-bridges` runs this", allow_module_level=True)

import gymnasium as gym
import pyarrow as pa
import pyarrow.parquet as pq
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.algorithms.marwil import MARWILConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

OBS = gym.spaces.Box(-10, 10, (4,), np.float32)
ACTIONS = gym.spaces.Discrete(2)


def episodes(count=5, to_numpy=False):
    """Single-agent episodes of 1 to 9 steps, some of them cut, as RLlib has them."""
    rng = np.random.default_rng(0)
    out = []
    for i in range(count):
        episode = SingleAgentEpisode(id_=f"e{i}", observation_space=OBS, action_space=ACTIONS)
        episode.add_env_reset(observation=rng.normal(size=4).astype(np.float32), infos={})
        steps = 1 + (i * 4) % 9
        for t in range(steps):
            episode.add_env_step(
                observation=rng.normal(size=4).astype(np.float32), action=np.int64(rng.integers(2)), reward=float(t),
                infos={"object": object()}, terminated=t == steps - 1 and i % 2 == 0,
                truncated=t == steps - 1 and i % 2 == 1, extra_model_outputs={"action_logp": np.float32(-0.5 * t)},
            )
        out.append(episode.to_numpy() if to_numpy else episode)
    return out


def reference(config, given):
    """The train batch of RLlib's own pipeline."""
    pipeline = config.build_learner_connector(OBS, ACTIONS)
    module = config.get_rl_module_spec(spaces={"default_policy": (OBS, ACTIONS)})
    module.observation_space, module.action_space = OBS, ACTIONS
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule

    multi = MultiRLModule(rl_module_specs={"default_policy": module})
    batch = pipeline(rl_module=multi, batch={}, episodes=given, shared_data={}, metrics=None)
    return {name: tensor.numpy() for name, tensor in batch["default_policy"].items() if hasattr(tensor, "numpy")}


@pytest.mark.parametrize("to_numpy", [False, True])
@pytest.mark.parametrize("config", [PPOConfig(), BCConfig()], ids=["PPO", "BC"])
def test_episodes_in_memory_compile_as_in_rllib(config, to_numpy):
    config = config.environment(observation_space=OBS, action_space=ACTIONS)
    job = gristmill.rllib.job_from_config(config, input="unused/", compat="rllib-2.60")
    found = job.compile(episodes(to_numpy=to_numpy))["default_policy"]
    want = reference(config, episodes(to_numpy=True))
    assert sorted(want) == sorted(name for name in found if name not in ("eps_id", "t"))
    for name, value in want.items():
        assert found[name].dtype == value.dtype and np.array_equal(found[name], value), name


def test_chunks_bring_their_look_back():
    before = episodes(2)[1]
    before.is_truncated = False
    after = before.cut(len_lookback_buffer=2)
    assert len(after) == 0 and len(before) == 5
    after.add_env_step(observation=np.ones(4, np.float32), action=np.int64(1), reward=9.0, infos={},
                       terminated=False, truncated=True, extra_model_outputs={"action_logp": np.float32(-9)})
    batch = Job(learner={"algorithm": "BC"}, input={"unfinished": "keep"}).compile([before, after])["default_policy"]
    assert batch["t"].tolist() == [0, 1, 2, 3, 4, 5]
    assert batch["rewards"][-1] == 9.0 and np.array_equal(batch["new_obs"][-1], np.ones(4))


def test_multi_agent_episodes():
    rng = np.random.default_rng(1)
    episode = MultiAgentEpisode(id_="m", agent_module_ids={"z": "p1", "a": "p0"})
    obs = {"z": rng.normal(size=3).astype(np.float32)}
    episode.add_env_reset(observations=obs, infos={})
    sent = {"z": [obs["z"]], "a": []}
    acting = ["z"]
    for t in range(4):
        now = ["z", "a"] if t >= 1 else ["z"]
        observations = {agent: rng.normal(size=3).astype(np.float32) for agent in {"z", "a"} if agent in now or t == 0}
        last = t == 3
        for agent, value in observations.items():
            sent[agent].append(value)
        episode.add_env_step(
            observations=observations,
            actions={agent: np.int64(t % 2) for agent in acting},
            rewards={agent: float(t) for agent in acting},
            infos={},
            terminateds={"__all__": last},
            truncateds={"__all__": False},
        )
        acting = list(observations)
    batch = Job(learner={"algorithm": "BC"}).compile([episode])
    assert list(batch) == ["p1", "p0"]
    assert batch["p1"]["agent_id"].tolist() == ["z"] * 4 and batch["p0"]["agent_id"].tolist() == ["a"] * 3
    assert np.array_equal(batch["p1"]["obs"], np.stack(sent["z"][:-1]))
    assert np.array_equal(batch["p1"]["new_obs"], np.stack(sent["z"][1:]))
    assert np.array_equal(batch["p0"]["obs"], np.stack(sent["a"][:-1]))
    assert batch["p1"]["terminateds"].tolist() == [False, False, False, True]


def test_a_job_from_a_config(tmp_path):
    lstm = (
        PPOConfig()
        .environment("CartPole-v1")
        .training(gamma=0.9, lambda_=0.8)
        .rl_module(model_config=DefaultModelConfig(use_lstm=True, lstm_cell_size=16, max_seq_len=20))
        .offline_data(input_=["logs"], input_read_schema={"obs": "observation"})
    )
    tree = gristmill.rllib.job_from_config(lstm).to_dict()
    assert tree["rl_module"]["stateful"] and tree["rl_module"]["max_seq_len"] == 20
    assert tree["learner"]["algorithm"] == "PPO" and tree["learner"]["gamma"] == 0.9
    assert tree["input"]["paths"] == ["logs"] and tree["input"]["columns"] == {"obs": "observation"}
    marwil = MARWILConfig().environment("CartPole-v1").offline_data(input_="logs", input_read_episodes=True)
    tree = gristmill.rllib.job_from_config(marwil).to_dict()
    assert tree["learner"]["algorithm"] == "MARWIL" and tree["input"]["layout"] == "rllib-episodes"


def test_what_no_job_can_say_is_refused():
    from ray.rllib.connectors.connector_v2 import ConnectorV2

    class Mine(ConnectorV2):
        def __call__(self, **_):
            raise NotImplementedError

    config = BCConfig().environment("CartPole-v1").learners(learner_connector=lambda *_: Mine())
    with pytest.raises(ValueError, match="found the piece Mine"):
        gristmill.rllib.job_from_config(config, input="logs")
    with pytest.raises(ValueError, match="offline input"):
        gristmill.rllib.job_from_config(BCConfig().environment("CartPole-v1"))


def test_rllib_s_pieces_keep_their_options():
    from ray.rllib.connectors.common.frame_stacking import FrameStacking

    config = PPOConfig().environment("CartPole-v1").learners(
        learner_connector=lambda *_: FrameStacking(num_frames=3, as_learner_connector=True)
    )
    tree = gristmill.rllib.job_from_config(config, input="logs").to_dict()
    (piece,) = tree["learner"]["connectors"]
    assert piece["type"] == "FrameStacking" and piece["num_frames"] == 3


def write_log(path, steps):
    columns = {
        name: pa.FixedSizeListArray.from_arrays(column.reshape(-1), column.shape[1])
        if isinstance(column, np.ndarray) and column.ndim == 2
        else pa.array(column)
        for name, column in steps.items()
    }
    pq.write_table(pa.table(columns), path)


def config_over(shards, learners=0, iterations=1):
    return (
        BCConfig()
        .environment(observation_space=OBS, action_space=ACTIONS)
        .offline_data(
            input_=str(shards), offline_data_class=gristmill.rllib.ShardData, dataset_num_iters_per_learner=iterations,
            input_read_method_kwargs={"shuffle_seed": 7},
        )
        .training(train_batch_size_per_learner=128, lr=1e-3)
        .learners(num_learners=learners)
        .env_runners(num_env_runners=0)
        .evaluation(evaluation_interval=None)
    )


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    out = tmp_path_factory.mktemp("rllib") / "shards"
    Job(ROOT / "datasets" / "cartpole-columns" / "job.toml", learner={"algorithm": "BC"}).run(output=out)
    return out


@pytest.mark.parametrize("iterations", [1, 4])
def test_bc_trains_from_shards(shards, iterations):
    algorithm = config_over(shards, iterations=iterations).build_algo()
    losses = [algorithm.train()["learners"]["default_policy"]["total_loss"] for _ in range(30)]
    algorithm.stop()
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_options_that_there_are_not_are_refused(shards):
    config = config_over(shards).offline_data(input_read_method_kwargs={"shufle_seed": 7})
    with pytest.raises(ValueError, match="expected one of: part, shuffle_seed"):
        config.build_algo()


def test_an_lstm_trains_on_sequences(tmp_path):
    """`state_in`, `seq_lens` and `loss_mask` from shards through RLlib's own recurrent learner."""
    config = (
        config_over(tmp_path / "shards", iterations=1)
        .rl_module(model_config=DefaultModelConfig(use_lstm=True, lstm_cell_size=16, max_seq_len=10))
        .training(train_batch_size_per_learner=64, lr=1e-2)
    )
    # The action is the sign of the first observation, which is easily learned.
    obs = np.random.default_rng(5).normal(size=(4000, 4)).astype(np.float32)
    t = np.arange(len(obs)) % 25
    steps = {"eps_id": np.arange(len(obs)) // 25, "t": t, "obs": obs, "new_obs": np.roll(obs, -1, axis=0),
             "actions": (obs[:, 0] > 0).astype(np.int32), "rewards": np.ones(len(obs)), "terminateds": t == 24}
    (tmp_path / "log").mkdir()
    write_log(tmp_path / "log" / "log.parquet", steps)
    gristmill.rllib.job_from_config(config, input=tmp_path / "log", output=tmp_path / "shards").run()
    module = gristmill.open(tmp_path / "shards").module()
    assert {"state_in/h", "state_in/c", "loss_mask", "seq_lens"} <= set(module.columns)
    algorithm = config.build_algo()
    losses = [algorithm.train()["learners"]["default_policy"]["total_loss"] for _ in range(30)]
    algorithm.stop()
    assert np.isfinite(losses).all() and np.mean(losses[-5:]) < np.mean(losses[:5])


def test_marwil_trains_from_shards_with_recorded_values(tmp_path):
    """MARWIL's advantages come from recorded `vf_preds`: here some that are made up."""
    given = episodes(40)
    steps = {"eps_id": [], "t": [], "obs": [], "actions": [], "rewards": [], "terminateds": [], "truncateds": []}
    for episode in given:
        length = len(episode)
        steps["eps_id"] += [episode.id_] * (length + 1)
        steps["t"] += range(length + 1)
        steps["obs"] += [obs.tolist() for obs in episode.get_observations()]
        steps["actions"] += [int(a) for a in episode.get_actions()] + [None]
        steps["rewards"] += [float(r) for r in episode.get_rewards()] + [None]
        steps["terminateds"] += [False] * (length - 1) + [episode.is_terminated] * 2
        steps["truncateds"] += [False] * (length - 1) + [episode.is_truncated] * 2
    steps["vf_preds"] = np.random.default_rng(3).normal(size=len(steps["t"])).astype(np.float32)
    config = (
        MARWILConfig()
        .environment(observation_space=OBS, action_space=ACTIONS)
        .offline_data(input_=str(tmp_path / "shards"), offline_data_class=gristmill.rllib.ShardData,
                      dataset_num_iters_per_learner=1)
        .training(train_batch_size_per_learner=64, beta=1.0)
        .env_runners(num_env_runners=0)
    )
    (tmp_path / "log").mkdir()
    write_log(tmp_path / "log" / "log.parquet", steps)
    gristmill.rllib.job_from_config(config, input=tmp_path / "log", output=tmp_path / "shards").run()
    columns = gristmill.open(tmp_path / "shards").module().columns
    assert {"advantages", "value_targets", "loss_mask", "new_obs"} <= set(columns)
    algorithm = config.build_algo()
    losses = [algorithm.train()["learners"]["default_policy"]["total_loss"] for _ in range(5)]
    algorithm.stop()
    assert np.isfinite(losses).all()


def test_learners_of_their_own_processes(shards):
    algorithm = config_over(shards, learners=2, iterations=3).training(train_batch_size_per_learner=64).build_algo()
    losses = [algorithm.train()["learners"]["default_policy"]["total_loss"] for _ in range(3)]
    algorithm.stop()
    assert np.isfinite(losses).all()


def test_a_job_needs_a_config():
    for wrong, what in [({"algorithm": "BC"}, "found dict"), (BCConfig, "found the class BCConfig")]:
        with pytest.raises(TypeError, match=f"{what}, expected an AlgorithmConfig"):
            gristmill.rllib.job_from_config(wrong)
