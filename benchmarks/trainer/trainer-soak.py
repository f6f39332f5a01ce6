"""Jobs that are killed: each once, at a random moment, its process or its trainer. `make bench NAME=trainer-soak`.

On `data/sample`, MiniLM. A killed job must end with the weights of an undisturbed one, to the bit. `--jobs 6` makes it
shorter (default 30); about half a minute a job on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from typing import Any

from aeenc import TrainerClient, values
from aeenc.trees import Dataset
from aeenc.v1 import trainer_pb2
from benchmarks.harness.baselines import run
from benchmarks.harness.checkpoints import FOLDER, base_checkpoint
from benchmarks.harness.rows import ROOT, Rows
from benchmarks.trainer.fleet import (
    STORE,
    TrainerFleet,
    build_corpus,
    running_trainer,
    weights_digest,
)
from services.store.artifacts import ArtifactStore

SAMPLE = ROOT / "data" / "sample"
SEED = 2022
LIVE = (values.WorkState.PENDING, values.WorkState.RUNNING)
RECIPES: list[dict[str, Any]] = [
    {"loss": trainer_pb2.LOSS_FULL_CORPUS_SOFTMAX, "epochs": 3},
    {"loss": trainer_pb2.LOSS_TRIPLET_MARGIN, "epochs": 3, "accumulation": 2},
    {
        "loss": trainer_pb2.LOSS_TRIPLET_MARGIN,
        "epochs": 3,
        "batching": trainer_pb2.BATCHING_ITEMS,
        "items_per_epoch": 320,
    },
    {"loss": trainer_pb2.LOSS_GIST, "epochs": 3, "hard_negatives": 2},
    {"loss": trainer_pb2.LOSS_NLI_CLASSIFICATION, "epochs": 3},
]


async def job(
    trainer: TrainerClient, corpus: str, validation: list[Any], recipe: dict[str, Any], seed: int
) -> values.Job:
    """Starts a job on the sample's gold trees."""
    return await trainer.start_job(
        corpus=corpus, data_sets=["sample"], split="train", validation=validation, seed=seed, **recipe
    )


async def disturbed(
    fleet: TrainerFleet, trainer: TrainerClient, started: values.Job, after_s: float, whole: bool
) -> tuple[values.Job, str]:
    """Kills a job's process, or its trainer, after a while, and waits for the job's end. Says what was hit."""
    await asyncio.sleep(after_s)
    phase = (await trainer.get_job(started.id)).progress.phase
    if whole:
        await asyncio.to_thread(fleet.process.kill)
        await fleet.process.restart()
        return await trainer.wait(started.id), phase or "waiting"
    hit = fleet.kill_job()
    while not hit and (await trainer.get_job(started.id)).state in LIVE:
        await asyncio.sleep(0.05)  # between two processes
        hit = fleet.kill_job()
    ended = await trainer.wait(started.id)
    if ended.state == values.WorkState.FAILED:
        await trainer.resume(started.id)
        ended = await trainer.wait(started.id)
    return ended, phase if hit else "nothing"


def taken(store: ArtifactStore, version: str) -> str:
    """The digest of a checkpoint's weights; the checkpoint, 200 MB, is deleted."""
    digest = weights_digest(store, version)
    store.delete(FOLDER, version)
    return digest


async def soak(rows: Rows, jobs: int) -> None:
    """As many killed jobs, and one undisturbed job of each recipe."""
    store, dataset = ArtifactStore(STORE), Dataset.load(SAMPLE)
    base = base_checkpoint(store)
    corpus, _ = build_corpus(store, base, dataset)
    validation = [(query.text, query.gold) for query in dataset.queries("dev")]
    draw = random.Random(SEED)
    same, ended_well, hits, overhead_s = 0, 0, dict[str, int](), 0.0
    async with running_trainer(store, base, data_sets={"sample": str(SAMPLE)}, int8=False) as fleet:
        trainer = fleet.client()
        wanted: list[tuple[str, float]] = []
        for number in range(jobs):
            recipe, seed = RECIPES[number % len(RECIPES)], number % len(RECIPES)
            if len(wanted) <= number % len(RECIPES):
                begun = time.monotonic()
                started = await job(trainer, corpus, validation, recipe, seed)
                reference = await trainer.wait(started.id)
                assert reference.version, reference.error
                wanted.append((taken(store, reference.version), time.monotonic() - begun))
            digest, lasted_s = wanted[number % len(RECIPES)]
            begun = time.monotonic()
            started = await job(trainer, corpus, validation, recipe, seed)
            ended, phase = await disturbed(fleet, trainer, started, draw.uniform(0, 0.95 * lasted_s), number % 2 == 1)
            overhead_s += time.monotonic() - begun - lasted_s
            hits[phase] = hits.get(phase, 0) + 1
            ended_well += ended.state == values.WorkState.SUCCEEDED
            same += bool(ended.version) and taken(store, ended.version) == digest
            loss = trainer_pb2.Loss.Name(recipe["loss"]).removeprefix("LOSS_")
            print(f"  {number + 1}/{jobs} {loss} hit while {phase}: {ended.error or 'ok'}", flush=True)
        await trainer.channel.close()
    rows.add(f"{jobs} jobs, each killed once: succeeded", ended_well, "jobs", f"= {jobs}", ended_well == jobs)
    rows.add("weights bitwise those of an undisturbed job", same, "jobs", f"= {jobs}", same == jobs, str(hits))
    rows.note(
        "what a kill costs, mean", overhead_s / jobs, "s", f"{sum(s for _, s in wanted) / len(wanted):.1f} s a job"
    )


def main() -> None:
    """Runs the soak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=30)
    rows = Rows("trainer-soak")
    run(soak(rows, parser.parse_args().jobs))
    rows.finish()


if __name__ == "__main__":
    main()
