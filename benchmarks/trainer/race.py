"""Races our trainer against sentence-transformers': runs our job's process, and theirs in its own environment."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from aeenc.trees import Dataset
from benchmarks.harness.rows import ROOT
from services.store.artifacts import Artifact, ArtifactStore
from services.trainer.data.training_set import JudgedPair
from services.trainer.evaluation.protocol import EvaluationQuery
from services.trainer.jobs.files import ComputeOptions, JobFiles, TrainingPlan
from services.trainer.jobs.job import JobConfig

HOME = ROOT / ".aeenc" / "bench" / "trainer" / "speed"
PACKAGES = {  # import name: what to install where it is missing; their extra `train` without torch
    "sentence_transformers": "sentence-transformers==6.2.0",
    "accelerate": "accelerate==1.15.0",
    "datasets": "datasets==5.2.0",
    "dill": "dill==0.4.1",
    "multiprocess": "multiprocess==0.70.19",
    "pandas": "pandas==3.1.1",
    "pyarrow": "pyarrow==26.0.1",
    "requests": "requests==2.34.2",
    "xxhash": "xxhash==4.1.0",
}
POLL_S = 0.05

Triplet = tuple[str, str, str]


@dataclass(frozen=True)
class Speed:
    """Seconds to a dev MAP, and the MAP."""

    seconds: float
    map: float


def gold_triplets(dataset: Dataset, count: int, seed: int) -> list[Triplet]:
    """A random part of the distinct gold triplets of train."""
    triplets = sorted(set(dataset.distractor_triplets("train")))
    return random.Random(seed).sample(triplets, min(count, len(triplets)))


def pairs_of(triplets: Iterable[Triplet]) -> Iterator[JudgedPair]:
    """The pairs of triplets, judged."""
    for query, positive, negative in triplets:
        yield JudgedPair(query, "", positive, "POSITIVE", "train")
        yield JudgedPair(query, "", negative, "NEGATIVE", "train")


def ours(
    store: ArtifactStore,
    base: Artifact,
    generation: str,
    dataset: Dataset,
    pairs: Iterable[JudgedPair],
    goal: float,
    *,
    threads: int,
    config: JobConfig,
) -> Speed:
    """A job's process, up to the first epoch whose dev MAP is the goal; or to its last one, where none is."""
    files = JobFiles(HOME / "ours")
    shutil.rmtree(files.directory, ignore_errors=True)
    files.directory.mkdir(parents=True)
    config = replace(config, data_sets=("triplets",), base_version=base.id, split="train")
    means = ComputeOptions(threads=threads, int8=False, precision="auto")
    files.write_plan(TrainingPlan("speed", config, generation, str(store.root), means))
    files.write_inputs(dict.fromkeys(pairs), dev_queries(dataset))
    started = time.perf_counter()
    command = [sys.executable, "-m", "services.trainer.learning", "job", str(files.directory)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)
    reached, progress = Speed(float("inf"), 0.0), dict[str, Any]()
    while process.poll() is None and reached.map < goal and progress.get("phase") != "exporting":
        time.sleep(POLL_S)
        progress = files.progress() or {}
        found = float(progress.get("best_validation_map", 0.0))
        if found > reached.map:
            reached = Speed(time.perf_counter() - started, found)
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    return reached


def dev_queries(dataset: Dataset) -> list[EvaluationQuery]:
    """The queries of dev with their gold premises."""
    return [EvaluationQuery(query.text, tuple(query.gold)) for query in dataset.queries("dev")]


def has_bfloat16() -> bool:
    """Whether our jobs choose bfloat16 on this CPU: then their trainer gets it, too."""
    import torch

    from services.trainer.learning.devices import precision_of

    return precision_of("auto", torch.device("cpu")) == "bfloat16"


def with_packages() -> dict[str, str]:
    """The environment in which their trainer runs; what it needs beyond ours lies in a folder of its own."""
    folder = HOME.parent / "packages"
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    missing = [
        wanted for name, wanted in PACKAGES.items() if name not in there and importlib.util.find_spec(name) is None
    ]
    if missing:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *missing]
        subprocess.run(command, check=True)
    return {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
