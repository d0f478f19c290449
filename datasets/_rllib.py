"""What the `make.py` scripts share: record with RLlib, read the recording back, run RLlib's learner pipeline.

Made and tested with Python 3.11, ray[rllib] 2.60.0, torch 2.15.0 (CPU), gymnasium 1.2.2, numpy 2.4.6,
pyarrow 26.0.1, msgpack 1.2.4, msgpack-numpy 0.4.8, lz4 4.4.5, safetensors 0.8.0; for the Atari frames also
ale-py 0.12.1 and opencv-python-headless 5.0.0.93.
"""

import contextlib
import logging
import os
import random
import shutil
import tempfile
from pathlib import Path

os.environ.setdefault("RAY_DEDUP_LOGS", "0")

import msgpack
import msgpack_numpy
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchCategorical
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.offline.offline_env_runner import OfflineSingleAgentEnvRunner
from ray.rllib.utils.compression import unpack_if_needed
from safetensors.numpy import save_file


class UniformModule(TorchRLModule):
    """Every discrete action with the same probability, whatever the observation looks like."""

    def setup(self):
        super().setup()
        self.action_dist_cls = TorchCategorical

    def _forward(self, batch, **kwargs):
        first = next(iter(dict(flatten(batch[Columns.OBS])).values()))
        return {Columns.ACTION_DIST_INPUTS: torch.zeros(len(first), self.action_space.n)}


def seed(number):
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


@contextlib.contextmanager
def local_ray(blocks):
    """Ray with one CPU. `blocks`: into how many files Ray Data cuts one write of the recorder.

    Ray's own default is 200, which for a small recording means one row a file. Nothing else is changed.
    """
    temp = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _temp_dir=temp.name)
    context = ray.data.DataContext.get_current()
    context.read_op_min_num_blocks = blocks
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()
        temp.cleanup()


def train(config, iterations, at):
    """Train for `iterations` and return `{iteration: (module state, weights_seq_no)}` for those in `at`."""
    seed(config.seed)
    algo = config.copy(copy_frozen=False).build_algo()
    states = {}
    for i in range(iterations + 1):
        if i:
            algo.train()
        if i in at:
            state = algo.env_runner.get_state()
            states[i] = (state["rl_module"], int(state["weights_seq_no"]))
    algo.stop()
    return states


def record(config, runs, folder, **options):
    """Record with RLlib's own recorder, unmodified, and put its files into `folder`.

    `runs`: one list of `sample(num_episodes=..)` calls for each recorder, with the module state that it plays
    with (None: as initialised). Each recorder writes its own `run-<recorder>-<call>` as in RLlib. Only the
    random part of Ray's file names is taken out, so that names sort in the order of writing.
    Returns the episodes that `sample()` returned, in that order.
    """
    episodes = []
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as raw:
        for index, (calls, state) in enumerate(runs, start=1):
            recorder_config = config.copy(copy_frozen=False).offline_data(output=raw, **options)
            recorder_config.batch_mode = "complete_episodes"
            recorder = OfflineSingleAgentEnvRunner(config=recorder_config, worker_index=index)
            if state is not None:
                recorder.set_state({"rl_module": state[0], "weights_seq_no": state[1]})
            for number in calls:
                episodes += recorder.sample(num_episodes=number)
            recorder.stop()
        for run in sorted(p for p in Path(raw).glob("*/run-*") if p.is_dir()):
            for number, file in enumerate(sorted(run.glob("*.parquet"))):
                shutil.copyfile(file, folder / f"{run.name}-{number:05}.parquet")
    return episodes


def read_episodes(folder):
    """The recording as RLlib reads it with `input_read_episodes=True`."""
    episodes = []
    for file in sorted(folder.glob("*.parquet")):
        for item in pq.read_table(file)["item"]:
            state = msgpack.unpackb(item.as_py(), object_hook=msgpack_numpy.decode)
            episodes.append(SingleAgentEpisode.from_state(state))
    return episodes


def read_columns(folder):
    """The rows of a column recording, put back into whole episodes by `eps_id`; a copied episode counts once."""
    fixed = {
        Columns.EPS_ID, Columns.AGENT_ID, Columns.MODULE_ID, Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS,
        Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS,
    }
    rows = {}
    for file in sorted(folder.glob("*.parquet")):
        table = pq.read_table(file)  # Ray's extension types are known to pyarrow once ray.data is imported
        names = [n for n in table.column_names if n not in (Columns.AGENT_ID, Columns.MODULE_ID)]
        values = {n: table[n].combine_chunks() for n in names}
        values = {n: v.to_pylist() if n == Columns.EPS_ID else list(numpy_column(v)) for n, v in values.items()}
        for i in range(table.num_rows):
            rows.setdefault(values[Columns.EPS_ID][i], []).append({n: values[n][i] for n in names})
    episodes = []
    for id_, steps in rows.items():
        # A complete episode ends at its first done row; what follows under the same id is a copy of it.
        end = next(i for i, s in enumerate(steps) if s[Columns.TERMINATEDS] or s[Columns.TRUNCATEDS]) + 1
        assert len(steps) % end == 0
        for i, step in enumerate(steps):
            assert all(same(step[n], steps[i % end][n]) for n in step)
        steps = steps[:end]
        episodes.append(SingleAgentEpisode(
            id_=str(id_),
            observations=[s[Columns.OBS] for s in steps] + [steps[-1][Columns.NEXT_OBS]],
            infos=[{} for _ in range(len(steps) + 1)],
            actions=[s[Columns.ACTIONS] for s in steps],
            rewards=[s[Columns.REWARDS] for s in steps],
            terminated=bool(steps[-1][Columns.TERMINATEDS]),
            truncated=bool(steps[-1][Columns.TRUNCATEDS]),
            extra_model_outputs={k: [s[k] for s in steps] for k in steps[0] if k not in fixed},
            len_lookback_buffer=0,
        ))
    return episodes


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return np.array_equal(a, b)


def numpy_column(column):
    """An Arrow column as an array, a list of arrays, or a list of dicts of them (Dict observations)."""
    if hasattr(column, "to_numpy_ndarray"):  # a FixedShapeTensorArray
        return column.to_numpy_ndarray()
    if pa.types.is_struct(column.type):
        fields = {f.name: numpy_column(column.field(f.name)) for f in column.type}
        return [{n: v[i] for n, v in fields.items()} for i in range(len(column))]
    if pa.types.is_list(column.type):
        return [v.values.to_numpy() for v in column]
    if pa.types.is_string(column.type):
        return [unpack_if_needed(v) for v in column.to_pylist()]
    return column.to_numpy(zero_copy_only=False)


def learner_batch(config, episodes, spaces):
    """The train batch of RLlib's own learner connector pipeline for whole episodes, in one call, as numpy arrays."""
    pipeline = config.build_learner_connector(*spaces)
    module = config.get_multi_rl_module_spec(spaces={DEFAULT_MODULE_ID: spaces}).build()
    for episode in episodes:
        if not episode.is_numpy:
            episode.to_numpy()
    batch = pipeline(rl_module=module, batch={}, episodes=episodes, shared_data={}, metrics=None)
    print("pipeline:", ", ".join(type(c).__name__ for c in pipeline.connectors))
    return {k: v.numpy() for k, v in sorted(flatten(batch))}


def flatten(tree, prefix=""):
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from flatten(value, f"{prefix}/{key}" if prefix else str(key))
    elif isinstance(tree, (list, tuple)):
        for key, value in enumerate(tree):
            yield from flatten(value, f"{prefix}/{key}")
    else:
        yield prefix, tree


def save(batch, path):
    save_file({k: np.ascontiguousarray(v) for k, v in batch.items()}, path)
    os.chmod(path, 0o644)
    for key, value in batch.items():
        print(f"  {key}: {value.dtype}{list(value.shape)}")


def must_equal(a, b):
    """Two batches are the same bit for bit."""
    assert a.keys() == b.keys(), (sorted(a), sorted(b))
    for key in a:
        assert a[key].dtype == b[key].dtype and a[key].tobytes() == b[key].tobytes(), key
