"""Which pipeline a case runs, and whether gristmill's presets are RLlib's."""

import dataclasses
import json
import subprocess
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import custom
import reference
from custom import Piece

OBS = "AddObservationsFromEpisodesToBatch"
NEXT_OBS = "AddNextObservationsFromEpisodesToTrainBatch"
COLUMNS = "AddColumnsFromEpisodesToTrainBatch"
ONE_TS = "AddOneTsToEpisodesAndTruncate"
TIME_DIM = "AddTimeDimToBatchAndZeroPad"
STATES = "AddStatesFromEpisodesToBatch"
MAPPING = "AgentToModuleMapping"
BATCH = "BatchIndividualItems"
TENSOR = "NumpyToTensor"

ALGORITHMS = ["PPO", "APPO", "IMPALA", "BC", "CQL", "IQL", "SAC", "DQN"]
# These pipelines begin with one more step.
ONE_MORE = ["APPO", "IMPALA", "MARWIL"]
# Pieces that add columns, each under the ids that it finds.
ADDING = {*custom.ADD_OBS, custom.RETURNS, custom.INFOS, custom.EXPRESSION, OBS, NEXT_OBS, COLUMNS}
# In front of an algorithm's own pieces.
IN_FRONT = [[OBS], [NEXT_OBS], [ONE_TS], [COLUMNS], [OBS, COLUMNS], [COLUMNS, OBS], [NEXT_OBS]]


@dataclasses.dataclass
class Pipe:
    algorithm: str
    custom: list
    """`Piece`s: in front of the default pipeline, or all there are."""
    add_default: bool
    gamma: float = 0.99
    lambda_: float = 1.0

    def has(self, *names):
        return any(piece.name in names for piece in self.custom)


def choose(rng, recording, has_sql=False):
    # MARWIL's and PPO's advantages need recorded value predictions.
    values = all("vf_preds" in m.specs for m in recording.modules.values()) and "missing column" not in recording.facts
    pipe = Pipe("PPO", [], True)
    pipe.gamma, pipe.lambda_ = (float(rng.choice([0.0, 1.0, *[round(x, 3)] * 4])) for x in rng.uniform(0.5, 1.0, 2))
    explicit = rng.random() < 0.2
    names = IN_FRONT[int(rng.integers(len(IN_FRONT)))] if rng.random() < 0.15 and not explicit else []
    if not explicit:
        pipe.algorithm = str(rng.choice(ALGORITHMS + 4 * ["MARWIL"] * values))
    if ONE_TS in names and pipe.algorithm in ONE_MORE:
        names = []  # twice one more step is refused
    one_more = bool(rng.random() < 0.3) if explicit else ONE_TS in names or pipe.algorithm in ONE_MORE
    pieces = custom.draw(rng, recording, one_more, has_sql) if rng.random() < 0.45 else []
    adds_obs = any(p.name in custom.ADD_OBS for p in pieces)
    if explicit:
        pipe.add_default = False
        pipe.custom = _explicit(rng, recording, pieces, adds_obs, one_more, values, pipe)
    else:
        if OBS in names and (adds_obs or any(p.name == custom.PREVIOUS for p in pieces)):
            names = []  # the observations would be there twice, or come from before they are changed
        # What comes before the piece that lengthens episodes would not know about it.
        at = 0 if ONE_TS in names else int(rng.integers(len(pieces) + 1))
        pipe.custom = pieces[:at] + [Piece(n) for n in names] + pieces[at:]
    names = [p.name for p in pipe.custom]
    for at, piece in enumerate(pipe.custom):
        if piece.name == custom.EXPRESSION and COLUMNS in names[:at]:
            # The batch has its rewards already.
            pipe.custom[at] = dataclasses.replace(piece, options={**piece.options, "into": "episodes"})
    _note(recording, pipe)
    return pipe


def _explicit(rng, recording, pieces, adds_obs, one_more, values, pipe):
    """A pipeline of one's own. A batch of a stateful module has a time dimension in every column or in none."""
    add = [str(n) for n in rng.permutation([OBS, COLUMNS, NEXT_OBS])][: int(rng.integers(1, 4))]
    if adds_obs and rng.random() < 0.5:
        add = [n for n in add if n != OBS] or [COLUMNS]
    advantages = values and one_more and rng.random() < 0.7
    if advantages:
        add = list(dict.fromkeys([*add, COLUMNS]))
    first = [ONE_TS] if one_more else []
    time = [TIME_DIM, *[STATES] * (rng.random() < 0.7)] if rng.random() < 0.6 or advantages else []
    mapping = [MAPPING] if recording.agents else []
    tensor = [TENSOR] * bool(advantages or rng.random() < 0.6)
    names = [*add, *time, *mapping, BATCH, *tensor]
    gae = [Piece(custom.GAE, {"gamma": pipe.gamma, "lambda_": pipe.lambda_})] * bool(advantages)
    sees_obs = adds_obs or any(p.name == custom.PREVIOUS for p in pieces)
    if not sees_obs and rng.random() < 0.3 and not one_more:
        # Between the pieces that add columns: what changes rewards comes too late for some of them.
        return [Piece(names[0]), *pieces, *[Piece(n) for n in names[1:]], *gae]
    return [*[Piece(n) for n in first], *pieces, *[Piece(n) for n in names], *gae]


def _note(recording, pipe):
    facts = recording.facts
    names = [p.name for p in pipe.custom] + [OBS] * pipe.add_default
    if ONE_TS in names or pipe.add_default and pipe.algorithm in ONE_MORE:
        facts.add("one more step")
    elif not recording.agents and len({e.id_ for e in recording.episodes}) < len(recording.episodes):
        # Chunks get numbers from the piece that adds observations, and share a key before, or where they have some.
        adding = [n for n in names if n in ADDING]
        if adding[0] != OBS:
            facts.add("colliding ids")
    if "one more step" not in facts and (pipe.has(*custom.ADD_OBS) or OBS not in names):
        facts.add("not numbered")
    if pipe.has(custom.COUNT) and not custom.rank_one(recording.specs["obs"]):
        facts.add("counted names")
    if pipe.has(custom.EUCLID):
        facts.add("distances")
    if pipe.has(*custom.CURIOSITY):
        facts.add("shaped rewards")
    episodes = recording.episodes
    if recording.agents:
        episodes = [own for episode in episodes for own in episode.agent_episodes.values()]
    if all(len(e) == 0 for e in episodes):
        facts.add("no steps")
    if all(e.t_started > 0 for e in episodes if len(e) > 0):
        facts.add("only continued")


def has_sql(gristmill):
    """Whether it can run `Expression`: it may be built without SQL, which this test does without as well."""
    with tempfile.TemporaryDirectory() as temp:
        table = pa.table({"eps_id": ["a"], "obs": [0.0], "actions": [0], "rewards": [0.0]})
        pq.write_table(table, Path(temp) / "one.parquet")
        pieces = [{"type": "Expression", "into": "episodes", "columns": {"rewards": "rewards"}}]
        job = {"version": 1, "input": {"paths": ["one.parquet"]}, "learner": {"connectors": pieces}}
        path = Path(temp) / "job.json"
        path.write_text(json.dumps(job))
        return subprocess.run([gristmill, "plan", path], capture_output=True).returncode == 0


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
