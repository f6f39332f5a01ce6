"""Part `training`: steps of a job over 1 M premises, beside those over a corpus of 16,041: memory, and time a premise.

Vectors are made up by a seed and stored as a generation; queries are EntailmentBank's. Each corpus is trained on in a
process of its own, which loads a job's directory as the trainer's child does, takes a few steps and validates once.
Times are processor seconds of one thread, so that a busy machine changes them little.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn, optim

from benchmarks.harness.checkpoints import base_checkpoint
from benchmarks.harness.rows import ROOT, Rows
from services.corpus.generation import (
    KIND,
    VECTORS,
    PremiseRecord,
    Storage,
    folder_of,
    generation_meta,
    write_premises,
)
from services.store.artifacts import ArtifactStore
from services.trainer.data.training_set import JudgedPair
from services.trainer.evaluation.protocol import EvaluationQuery
from services.trainer.jobs.files import ComputeOptions, JobFiles, TrainingPlan
from services.trainer.jobs.job import JobConfig
from services.trainer.learning.devices import prepare_torch
from services.trainer.learning.job import load_inputs
from services.trainer.learning.loop.ranks import Rank
from services.trainer.learning.loop.training import MAX_GRADIENT_NORM, WEIGHT_DECAY, Learner
from services.trainer.learning.loss.corpus_negatives import CorpusNegatives, Roles, cells_of
from services.trainer.learning.loss.frozen_vectors import FrozenVectors

SMALL = 16_041  # candidates of EntailmentBank
BATCH, POSITIVES, REFUSED, VALIDATED = 32, 3, 20, 64
TEMPERATURE = 0.03
MOST_RESIDENT, MOST_TIME = 1.5, 1.2
GIB, MIB = 2**30, 2**20
BLOCK = 50_000


def training(rows: Rows, home: Path, queries: list[str], count: int, steps: int) -> None:
    """Trains over `count` and over SMALL premises, stored in float16 and float32."""
    small = _measured(home, queries, SMALL, "float32", steps)
    for storage in ("float32", "float16"):
        large = _measured(home, queries, count, storage, steps)
        size = large["vectors_bytes"]
        name = f"{count:,} premises in {storage}"
        rows.add(
            f"training over {name}: resident at most",
            round(large["peak_bytes"] / MIB),
            "MiB",
            f"≤ {(MOST_RESIDENT * size + GIB) / MIB:,.0f}",
            large["peak_bytes"] <= MOST_RESIDENT * size + GIB,
            f"vectors {size / MIB:,.0f}, anonymous {large['anonymous_bytes'] / MIB:,.0f}",
        )
        for what, key in (("seconds a step", "step_s"), ("of these the loss alone", "loss_s")):
            ratio = large[key] / count / (small[key] / SMALL)
            told = f"{large[key]:.3f} s, {small[key]:.4f} s over {SMALL:,}"
            rows.at_most(f"{name}: {what}, a premise, over {SMALL:,}", round(ratio, 3), "x", MOST_TIME, told)
    ratio = small["loss_s"] / small["dense_s"]
    rows.at_most(
        f"{SMALL:,} premises: loss in blocks over one dense matrix", ratio, "x", 1.0, f"{small['dense_s']:.4f} s"
    )


def _measured(home: Path, queries: list[str], count: int, storage: Storage, steps: int) -> dict[str, Any]:
    store = ArtifactStore(home / "artifacts")
    directory = home / f"{count}-{storage}"
    directory.mkdir()
    base = base_checkpoint(store)
    corpus = f"made-up-{count}-{storage}"
    with store.writer(KIND, folder_of(corpus)) as writer:
        write_premises(writer.path, (PremiseRecord(f"p{n}", f"made-up fact {n}") for n in range(count)))
        dim = _write_vectors(writer.path / VECTORS, count, base.meta["dim"], storage)
        meta = generation_meta(
            corpus=corpus, space_id=base.meta["space_id"], premise_version=base.id, dim=dim, premises=count,
            storage=storage,
        )  # fmt: skip
        generation = writer.commit(meta, id_prefix="g").id
    config = replace(JobConfig(corpus, ()), base_version=base.id, batch_size=BATCH, temperature=TEMPERATURE)
    files = JobFiles(directory)
    means = ComputeOptions(threads=1, int8=False, precision="float32")
    files.write_plan(TrainingPlan("scale", config, generation, str(store.root), means))
    validation = [EvaluationQuery(text, (f"made-up fact {n}",)) for n, text in enumerate(queries[:VALIDATED])]
    files.write_inputs(dict.fromkeys(_pairs(queries[VALIDATED:][: BATCH * (steps + 1)], count)), validation)
    command = [sys.executable, "-m", "benchmarks.scale.training", str(directory), str(steps)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _write_vectors(path: Path, count: int, dim: int, storage: Storage) -> int:
    rng = np.random.default_rng(0)
    mapped = np.lib.format.open_memmap(path, mode="w+", dtype=storage, shape=(count, dim))
    for start in range(0, count, BLOCK):
        drawn = rng.standard_normal((min(BLOCK, count - start), dim), np.float32)
        mapped[start : start + BLOCK] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    mapped.flush()
    return dim


def _pairs(queries: list[str], count: int) -> Iterator[JudgedPair]:
    rng = np.random.default_rng(1)
    for query in queries:
        for place, ordinal in enumerate(rng.choice(count, POSITIVES + REFUSED, replace=False).tolist()):
            sign = "POSITIVE" if place < POSITIVES else "NEGATIVE"
            yield JudgedPair(query, f"p{ordinal}", f"made-up fact {ordinal}", sign)  # type: ignore[arg-type]


def train(directory: Path, steps: int) -> dict[str, Any]:
    """Loads a job, takes steps, validates; the process's own figures."""
    files = JobFiles(directory)
    prepare_torch(1)
    inputs = load_inputs(files, Rank(0, 1))
    objective, encoders = inputs.objective(), inputs.encoders()
    learner = Learner(encoders, objective).train()
    optimizer = optim.AdamW(learner.parameters(), lr=1e-5, weight_decay=WEIGHT_DECAY)
    step_s = []
    for units in objective.batches(np.random.default_rng(0), BATCH)[: steps + 1]:
        begun = time.process_time()
        optimizer.zero_grad(set_to_none=True)
        learner(units, units).backward()
        nn.utils.clip_grad_norm_(learner.parameters(), MAX_GRADIENT_NORM)
        optimizer.step()
        step_s.append(time.process_time() - begun)
    assert inputs.evaluate(encoders) is not None
    told = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    vectors = inputs.generation.vectors
    figures = {
        "step_s": statistics.median(step_s[1:]),
        "peak_bytes": int(told["VmHWM"].split()[0]) * 1024,
        "anonymous_bytes": int(told["RssAnon"].split()[0]) * 1024,
        "vectors_bytes": vectors.nbytes,
    }
    return {**figures, **_loss_alone(vectors, steps)}


def _loss_alone(vectors: NDArray[Any], steps: int) -> dict[str, float]:
    """The loss's forward and backward pass on made-up queries; over a small corpus also as one dense matrix."""
    rng, count = np.random.default_rng(2), len(vectors)
    premises = FrozenVectors(vectors)
    queries = nn.functional.normalize(torch.from_numpy(rng.standard_normal((BATCH, premises.dim), np.float32)), dim=1)
    absent, refused = (
        cells_of([rng.choice(count, size, replace=False) for _ in range(BATCH)]) for size in (POSITIVES, REFUSED)
    )
    negatives = CorpusNegatives(premises, np.zeros(count, dtype=bool), TEMPERATURE, 2.0)
    ways = {"loss_s": lambda given: negatives.log_sum(given, Roles(absent, refused))}
    if count == SMALL:
        matrix = torch.from_numpy(np.ascontiguousarray(vectors.T))
        ways["dense_s"] = lambda given: _dense(given @ matrix, absent, refused)
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(steps + 1):
        for name, way in ways.items():
            given, begun = queries.clone().requires_grad_(), time.process_time()
            way(given).sum().backward()
            spent[name].append(time.process_time() - begun)
    return {name: statistics.median(seconds[1:]) for name, seconds in spent.items()}


def _dense(scores: Tensor, absent: NDArray[np.int64], refused: NDArray[np.int64]) -> Tensor:
    """The log-sum-exp over a whole matrix of scores and boolean masks, as it was before the blocks."""
    masks = []
    for cells in (absent, refused):
        mask = torch.zeros(scores.shape, dtype=torch.bool)
        mask[cells[:, 0], cells[:, 1]] = True
        masks.append(mask)
    logits = scores / TEMPERATURE + masks[1].to(scores.dtype) * math.log(2.0)
    return torch.logsumexp(logits.masked_fill(masks[0] & ~masks[1], float("-inf")), dim=1)


if __name__ == "__main__":
    print(json.dumps(train(Path(sys.argv[1]), int(sys.argv[2]))))
