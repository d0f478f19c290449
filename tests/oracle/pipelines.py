"""Which pipeline a case runs, and whether gristmill's presets are RLlib's."""

import dataclasses
import json
import subprocess
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import reference

OBS = "AddObservationsFromEpisodesToBatch"
NEXT_OBS = "AddNextObservationsFromEpisodesToTrainBatch"
COLUMNS = "AddColumnsFromEpisodesToTrainBatch"
ONE_TS = "AddOneTsToEpisodesAndTruncate"
TIME_DIM = "AddTimeDimToBatchAndZeroPad"
STATES = "AddStatesFromEpisodesToBatch"
BATCH = "BatchIndividualItems"
TENSOR = "NumpyToTensor"
RETURNS = "ComputeReturnsToGo"

ALGORITHMS = ["PPO", "APPO", "IMPALA", "BC", "CQL", "IQL", "SAC", "DQN"]
# These pipelines begin with one more step.
ONE_MORE = ["APPO", "IMPALA", "MARWIL"]
# In front of an algorithm's own pieces.
IN_FRONT = [[OBS], [NEXT_OBS], [ONE_TS], [COLUMNS], [OBS, COLUMNS], [COLUMNS, OBS], [RETURNS], [NEXT_OBS, RETURNS]]
# Instead of them. A batch of a stateful module has a time dimension in every column or in none.
EXPLICIT = [
    [OBS, COLUMNS, TIME_DIM, STATES, BATCH, TENSOR],
    [OBS, COLUMNS, TIME_DIM, STATES, BATCH],
    [OBS, COLUMNS, BATCH, TENSOR],
    [COLUMNS, BATCH],
    [OBS, BATCH, TENSOR],
    [NEXT_OBS, BATCH, TENSOR],
    [ONE_TS, OBS, COLUMNS, TIME_DIM, BATCH, TENSOR],
    [ONE_TS, COLUMNS, NEXT_OBS, TIME_DIM, STATES, BATCH],
    [COLUMNS, NEXT_OBS, TIME_DIM, STATES, BATCH, TENSOR],
]


@dataclasses.dataclass
class Pipe:
    algorithm: str
    custom: list
    add_default: bool
    gamma: float = 0.99
    lambda_: float = 1.0


def choose(rng, recording):
    if rng.random() < 0.2:
        pipe = Pipe("PPO", EXPLICIT[int(rng.integers(len(EXPLICIT)))], False)
    else:
        custom = IN_FRONT[int(rng.integers(len(IN_FRONT)))] if rng.random() < 0.15 else []
        # MARWIL's advantages need recorded value predictions.
        values = "vf_preds" in recording.specs and "missing column" not in recording.facts
        algorithm = str(rng.choice(ALGORITHMS + 4 * ["MARWIL"] * values))
        if ONE_TS in custom and algorithm in ONE_MORE:
            custom = []  # twice one more step is refused
        pipe = Pipe(algorithm, custom, True)
    pipe.gamma, pipe.lambda_ = (round(float(x), 3) for x in rng.uniform(0.5, 1.0, 2))
    if ONE_TS in pipe.custom or pipe.algorithm in ONE_MORE:
        recording.facts.add("one more step")
    return pipe


def check_presets(gristmill):
    """Problems with the order or the set of pieces that `gristmill plan --json` names for an algorithm."""
    problems = []
    with tempfile.TemporaryDirectory() as temp:
        table = pa.table({
            "eps_id": ["a"], "obs": [[0.0]], "actions": [0], "rewards": [0.0], "new_obs": [[0.0]],
            "terminateds": [True], "truncateds": [False], "vf_preds": [0.0],
        })
        pq.write_table(table, Path(temp) / "one.parquet")
        for algorithm in reference.CONFIGS:
            rllib = [type(c).__name__ for c in reference.pipeline(Pipe(algorithm, [], True)).connectors]
            # CQL and IQL add next observations that their parents have added already: the second does nothing.
            rllib = list(dict.fromkeys(rllib))
            job = {"version": 1, "input": {"paths": ["one.parquet"]}, "learner": {"algorithm": algorithm}}
            path = Path(temp) / "job.json"
            path.write_text(json.dumps(job))
            done = subprocess.run([gristmill, "plan", path, "--json"], capture_output=True, text=True)
            if done.returncode != 0:
                problems.append(f"plan of {algorithm}: {(done.stderr + done.stdout).strip()}")
                continue
            ours = json.loads(done.stdout)["connectors"]
            if ours != rllib:
                problems.append(f"plan of {algorithm}: {ours}, RLlib has {rllib}")
    return problems
