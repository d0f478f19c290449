"""PyTorch's, TorchRL's and d3rlpy's side of the package. What is not installed is skipped, and said."""

import importlib.util

import gristmill
import numpy as np
import pytest
from conftest import ROOT
from gristmill import Job


def needs(name):
    there = importlib.util.find_spec(name) is not None
    return pytest.mark.skipif(not there, reason=f"{name} is not installed: `make PYTHON=... test-bridges` runs this")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """`shards(name)`: the folder of a recording's shards, converted once."""
    made = {}

    def make(name="cartpole-columns"):
        if name not in made:
            out = tmp_path_factory.mktemp("bridges") / "shards"
            Job(ROOT / "datasets" / name / "job.toml", output={"rows_per_shard": 500}).run(output=out)
            made[name] = out
        return made[name]

    return make


@needs("torch")
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("seed", [None, 4])
def test_iterable_shards(shards, workers, seed):
    from torch.utils.data import DataLoader

    options = {"batch_size": 100, "shuffle_seed": seed}
    want = list(gristmill.open(shards()).batches(**options))
    data = gristmill.torch.IterableShards(shards(), **options)
    assert len(data) == 17
    found = list(DataLoader(data, batch_size=None, num_workers=workers))
    assert len(found) == len(want)
    for a, b in zip(found, want, strict=True):
        assert list(a) == list(b)
        assert all(np.array_equal(a[name].numpy(), b[name]) for name in a)


@needs("torch")
def test_tensors_share_memory_and_may_be_written(shards):
    import torch

    module = gristmill.open(shards()).module()
    batch = next(iter(module.batches(batch_size=10)))
    tensors = gristmill.torch.tensors(batch)
    assert tensors["obs"].dtype == torch.float32 and tensors["terminateds"].dtype == torch.bool
    tensors["obs"][0, 0] = 123.0
    assert batch["obs"][0, 0] == 123.0
    view = module.take(slice(0, 5), copy=False)
    gristmill.torch.tensors(view)["obs"].zero_()
    assert view["obs"].any()
    assert "eps_id" not in gristmill.torch.tensors(module.take([0], ["eps_id", "obs"]))
    for no_batch in [module, gristmill.open(shards())]:
        with pytest.raises(TypeError, match=r"expected a batch: \{column: array\}\n  hint: \.read\(\)"):
            gristmill.torch.tensors(no_batch)
    with pytest.raises(TypeError, match=r"pass the batch of one module: batch\['default_policy'\]"):
        gristmill.torch.tensors({"default_policy": batch})


@needs("torch")
@pytest.mark.parametrize("workers", [0, 2])
def test_map_style_shards(shards, workers):
    import torch
    from torch.utils.data import DataLoader

    data = gristmill.torch.Shards(shards())
    whole = gristmill.open(shards()).read()
    assert len(data) == 1664 and np.array_equal(data[7]["obs"].numpy(), whole["obs"][7])
    for collate in (None, gristmill.torch.collate):
        generator = torch.Generator().manual_seed(0)
        loader = DataLoader(data, batch_size=64, shuffle=True, num_workers=workers, collate_fn=collate, generator=generator)
        rows = torch.cat([batch["action_logp"] for batch in loader]).numpy()
        assert np.array_equal(np.sort(rows), np.sort(whole["action_logp"]))


@needs("torch")
@needs("torchdata")
@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_data_loader(shards, workers):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader():
        data = gristmill.torch.IterableShards(shards(), batch_size=50, shuffle_seed=1)
        return StatefulDataLoader(data, batch_size=None, num_workers=workers)

    whole = [batch["action_logp"].numpy() for batch in loader()]
    first = loader()
    walk = iter(first)
    for _ in range(7):
        next(walk)
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    rest = [batch["action_logp"].numpy() for batch in second]
    assert len(rest) == len(whole) - 7
    assert all(np.array_equal(a, b) for a, b in zip(rest, whole[7:], strict=True))


@needs("torch")
@needs("tensordict")
def test_tensordict(shards):
    batch = gristmill.open(shards("pendulum-steps")).read()
    found = gristmill.torchrl.tensordict(batch)
    rows = len(batch["rewards"])
    assert found.batch_size == (rows,)
    assert found["observation"].shape == (rows, 3) and found["next", "reward"].shape == (rows, 1)
    assert np.array_equal(found["next", "observation"].numpy(), batch["new_obs"])
    assert np.array_equal(found["next", "done"].numpy()[:, 0], batch["terminateds"] | batch["truncateds"])
    nested = gristmill.torchrl.tensordict(gristmill.open(shards("cartpole-dict")).read())
    assert ("observation" in nested.keys()) and len(list(nested["observation"].keys())) > 1
    sequences = gristmill.torchrl.tensordict(gristmill.open(shards("cartpole-lstm")).read())
    assert sequences.batch_size == (30,) and sequences["observation"].shape[:2] == (30, 20)


def test_arrays_for_d3rlpy(shards):
    """What d3rlpy's data set is made of needs no d3rlpy."""
    arrays = gristmill.d3rlpy.arrays(shards())
    ends = (arrays["terminals"] + arrays["timeouts"]) > 0
    assert ends.sum() == 28 and (arrays["terminals"] * arrays["timeouts"]).sum() == 0
    assert arrays["observations"].shape == (1664, 4) and arrays["actions"].shape == (1664, 1)
    with pytest.raises(ValueError, match="sequences"):
        gristmill.d3rlpy.arrays(shards("cartpole-lstm"))
    with pytest.raises(ValueError, match="FlattenObservations"):
        gristmill.d3rlpy.arrays(shards("cartpole-dict"))


@needs("d3rlpy")
@needs("torch")
def test_mdp_dataset(shards):
    data = gristmill.d3rlpy.mdp_dataset(shards(), action_size=2)
    assert len(data.episodes) == 28
    # All of them terminate. d3rlpy counts the last step of an episode as a transition then, and only then.
    assert all(episode.terminated for episode in data.episodes)
    assert sum(episode.transition_count for episode in data.episodes) == 1664
