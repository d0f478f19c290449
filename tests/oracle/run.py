#!/usr/bin/env python3
"""Random recordings through the real RLlib and through gristmill. See README.md."""

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

try:
    import ray  # noqa: F401
    import torch  # noqa: F401
    from ray.rllib.core import DEFAULT_MODULE_ID
except ImportError as error:
    print(f"SKIPPED: the differential test against RLlib did not run, {error}.", file=sys.stderr)
    print("SKIPPED: it needs the packages named in datasets/_rllib.py.", file=sys.stderr)
    sys.exit(0)

import numpy as np

import agents
import custom
import layouts
import outcome
import pipelines
import recording
import reference
import shards
import spaces

AGENTS = "steps of several agents"
LAYOUTS = ["rllib-episodes", "rllib-episodes", "rllib-columns", "steps", AGENTS]


def job_of(rec, pipe, rng):
    job = {
        "version": 1,
        "input": {"paths": ["input/"], "layout": rec.layout, "duplicates": "keep"},
        "learner": {"compat": "rllib-2.60"},
        "output": {"format": str(rng.choice(["parquet", "arrow"])), "rows_per_shard": int(rng.choice([2, 7, 65536]))},
    }
    if rec.agents:
        job["rl_module"] = {"modules": {name: _module(one) for name, one in rec.modules.items()}}
        if "module column" not in rec.facts or rng.random() < 0.3:
            job["multi_agent"] = {"agent_to_module": agents.rules(rec.agents)}
    elif rec.stateful:
        job["rl_module"] = _module(rec)
    if "space in the job" in rec.facts:
        job["input"]["spaces"] = {"obs": spaces.job_space(rec.specs["obs"])}
    if pipe.add_default:
        job["learner"]["algorithm"] = pipe.algorithm
    else:
        job["learner"]["add_default_connectors_to_learner_pipeline"] = False
    if pipe.custom:
        job["learner"]["connectors"] = [custom.for_job(piece, rec) for piece in pipe.custom]
    if pipe.algorithm == "MARWIL":
        job["learner"].update(gamma=pipe.gamma, lambda_=pipe.lambda_)
    return job


def _module(one):
    if not one.stateful:
        return {"stateful": False}
    initial = {} if one.initial_state is None else {"initial_state": one.initial_state}
    return {"stateful": True, "max_seq_len": one.max_seq_len, **initial}


def convert(gristmill, folder, mode, job, several=False):
    """`(batch, None)`, or `(None, what gristmill said)`."""
    path = folder / f"job-{mode}.json"
    job["learner"]["compat"] = mode
    path.write_text(json.dumps(job, indent=1))
    out = folder / f"shards-{mode}"
    done = subprocess.run(
        [gristmill, "convert", path, "--output", out, "--quiet", "--threads", "2"], capture_output=True, text=True
    )
    if done.returncode != 0:
        prefix = "" if done.returncode in (1, 2) else f"internal (exit code {done.returncode}): "
        return None, prefix + done.stderr.strip()
    if several:
        modules = sorted(p for p in out.iterdir() if p.is_dir())
        return {f"{m.name}/{k}": v for m in modules for k, v in shards.read(m).items()}, None
    module = out / DEFAULT_MODULE_ID
    return (shards.read(module) if module.is_dir() else {}), None


def one(seed, gristmill, folder, has_sql):
    """Runs one case. Returns its problems and a few words on what it was."""
    rng = np.random.default_rng(seed)
    layout = str(rng.choice(LAYOUTS))
    several = layout == AGENTS
    rec = agents.make(rng) if several else recording.make(rng, layout)
    pipe = pipelines.choose(rng, rec, has_sql)
    episodes = (agents if several else layouts).write(rng, rec, folder / "input")
    job = job_of(rec, pipe, rng)

    def rllib(eps, correct=True):
        return reference.batch(rec, eps, pipe, correct)

    want = outcome.expected(rec, episodes, rllib)
    problems = []
    for mode, batch in want.items():
        got = convert(gristmill, folder, mode, job, several)
        wanted = [batch]
        if mode == "rllib-2.60" and isinstance(batch, Exception):
            # RLlib raises: going on is right only if it goes on as documented for `correct`.
            wanted += [*outcome.where_rllib_raises(rec, episodes, rllib), want["correct"]]
        problems += [f"{mode}: {p}" for p in outcome.judge(rec, mode, wanted, got, shards.differences)]
    raised = {m: repr(b)[:150] for m, b in want.items() if isinstance(b, Exception)}
    return problems, f"{layout}, {pipe}, stateful={rec.stateful}, facts={sorted(rec.facts)}, RLlib raised {raised}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gristmill", type=Path, default=Path("target/debug/gristmill"))
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the others follow")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "gristmill-oracle",
                        help="where the folders of failing cases go")
    parser.add_argument("--stop", action="store_true", help="stop at the first failure")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    gristmill = args.gristmill.resolve()
    failures, raised, start = pipelines.check_presets(gristmill), 0, time.monotonic()
    for problem in failures:
        print(f"FAIL {problem}")
    has_sql = pipelines.has_sql(gristmill)
    if not has_sql:
        print("This gristmill is built without SQL: Expression is left out")
    for seed in range(args.seed, args.seed + args.count):
        with tempfile.TemporaryDirectory() as temp:
            folder = Path(temp) / "case"
            problems, what = one(seed, gristmill, folder, has_sql)
            raised += not what.endswith("{}")
            if problems:
                kept = args.keep / str(seed)
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(folder, kept)
                failures.append(seed)
                print(f"FAIL --seed {seed} --count 1: {what}\n     kept in {kept}")
                for problem in problems:
                    print("     " + problem.replace("\n", "\n       "))
                if args.stop:
                    break
    seconds = time.monotonic() - start
    print(f"{args.count} cases in {seconds:.0f} s: {len(failures)} failed; RLlib raised in {raised}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
