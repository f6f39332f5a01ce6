"""Measures how often a job over a run says that it is better: on random verdicts, and on true ones.

A tiny encoder, 60 hypotheses with two explaining and six refused facts each. Random verdicts accept any two of the
eight; true ones the two that share the hypothesis's words. Each job holds back trees, trains, and measures before and
after as the trainer's child process does; only the export of a checkpoint is left out.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.harness.rows import Rows
from services.corpus.generation import PremiseRecord, open_generation
from services.trainer.jobs.files import JobFiles, TrainingPlan
from services.trainer.jobs.job import JobConfig
from services.trainer.jobs.training_set import JudgedPair, hold_back
from services.trainer.registry.quality_gate import compared
from services.trainer.train.job import load, train
from services.trainer.train.ranks import Rank
from support.models.tiny_checkpoints import WORDS
from support.worlds.trainer_world import Space, make_space

CORPUS = "gain"
HYPOTHESES = 60
EXPLAINING, JUDGED = 2, 8
MOST_WRONG, LEAST_RIGHT = 0.05, 0.9  # of the jobs on random and on true verdicts


def facts_of(generator: np.random.Generator) -> tuple[list[str], list[str]]:
    """Draws hypotheses, and EXPLAINING facts of each in their order, which share its subject."""
    pairs = [(one, other) for one in WORDS[20:60] for other in WORDS[60:100]]
    drawn = [pairs[at] for at in generator.choice(len(pairs), size=HYPOTHESES, replace=False)]
    hypotheses = [f"{one} and {other} are the same" for one, other in drawn]
    facts = [fact for one, other in drawn for fact in (f"the {one} is a kind of {other}", f"a {one} can {other} the")]
    return hypotheses, facts


def verdicts(generator: np.random.Generator, hypotheses: list[str], facts: list[str], true: bool) -> list[JudgedPair]:
    """Judges JUDGED facts of each hypothesis, its own among them; accepts its own, or any EXPLAINING of them."""
    made = []
    for n, hypothesis in enumerate(hypotheses):
        own = [EXPLAINING * n + at for at in range(EXPLAINING)]
        others = generator.choice([at for at in range(len(facts)) if at not in own], JUDGED - EXPLAINING, replace=False)
        judged = [*own, *others.tolist()]
        accepted = own if true else generator.choice(judged, EXPLAINING, replace=False).tolist()
        made += [
            JudgedPair(hypothesis, f"f{at}", facts[at], "POSITIVE" if at in accepted else "NEGATIVE") for at in judged
        ]
    return made


def outcome_of(space: Space, directory: Path, seed: int, true: bool) -> tuple[str, float]:
    """Trains as a job without validation queries does; returns its outcome and the change of MAP."""
    generator = np.random.default_rng([seed, true])
    hypotheses, facts = facts_of(generator)
    generation = space.build(CORPUS, [PremiseRecord(f"f{n}", text) for n, text in enumerate(facts)])
    premises = open_generation(space.store, CORPUS, generation).premises
    held = hold_back(verdicts(generator, hypotheses, facts, true), [], premises, seed)
    recipe = {"learning_rate": 1e-3, "split": "train", "seed": seed}
    config = JobConfig(CORPUS, ("run",), base_version=space.version, **recipe)
    plan = TrainingPlan("job", config, generation, str(space.store.root))
    files = JobFiles(directory)
    files.write_plan(replace(plan, holds_back=True))
    files.write_inputs(held.pairs, held.queries)
    task, objective = load(files, Rank())
    train(files, task, task.encoders(), objective, Rank())
    after, before = task.judged(task.encoders(directory))[0], task.before()
    if after is None or before is None:
        raise RuntimeError(f"job {seed} held nothing back")
    gain = compared(after.average_precisions.tolist(), space.version, before.average_precisions.tolist())
    return gain.outcome, gain.candidate_map - gain.version_map


def main() -> None:
    """Runs the jobs of both kinds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20, help="of each kind")
    jobs = parser.parse_args().jobs
    rows = Rows("gain")
    with tempfile.TemporaryDirectory() as name:
        space = make_space(Path(name) / "space")
        for true in (False, True):
            found = [outcome_of(space, Path(name) / f"{true}-{seed}", seed, true) for seed in range(jobs)]
            kind, count = "true" if true else "random", Counter(outcome for outcome, _ in found)
            rows.note(f"{kind} verdicts: change of MAP", float(np.mean([change for _, change in found])), "")
            rows.note(f"{kind} verdicts: called worse", count["WORSE"], f"of {jobs}")
            claim = f"{jobs} jobs on {kind} verdicts: called better"
            if true:
                rows.at_least(claim, count["BETTER"], "jobs", int(LEAST_RIGHT * jobs))
            else:
                rows.at_most(claim, count["BETTER"], "jobs", int(MOST_WRONG * jobs))
    rows.finish()


if __name__ == "__main__":
    main()
