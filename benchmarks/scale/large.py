"""Ten million premises on one machine: built by Ray with float16 and IVF, searched over gRPC, beside bare FAISS.

The encoder makes the vectors up (benchmarks/index/cloud.py), so the time of the stage that encodes is told apart from
the rest.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from aeenc import AsyncClient
from aeenc.calls.retrieval import Mode
from benchmarks.harness.load import times_ms
from benchmarks.harness.rows import Rows
from benchmarks.harness.services import IndexFleet, running_index
from benchmarks.index.cloud import Cloud, Matrix, measured_rate, measured_recall
from benchmarks.index.stand_in_encoder import StandInEncoder
from benchmarks.scale.distributed import GIB, anonymous_bytes, opened, run_build
from services.corpus.generation import Generation
from services.index.dense.approximate import INDEX_FILE
from services.index.dense.exact import FlatIndex

CORPUS, K = "large", 10
CALLERS, LOAD_S = 64, 20.0
EXCLUDED = 20  # ids that a search leaves out
PARTS = (5, 100)  # the split `of5` has every fifth premise, `of100` every hundredth
FILTERED = 128  # queries whose recall under a filter is measured, as each true answer is a scan of all rows
TIMED = 200  # calls of Retrieve
BARE, BARE_S = 400, 30.0  # searches of bare FAISS that are timed, at most
SETTINGS = {"engine": "ivf", "storage": "float16"}


@dataclass(frozen=True)
class Task:
    """Search `vectors` (rows, dim) for `queries` (n, dim); `truth` has their K nearest."""

    vectors: NDArray[np.float16]
    queries: Matrix
    truth: Sequence[NDArray[np.int64]]


def write_premises(path: Path, count: int, facts: Sequence[str]) -> None:
    """Writes a corpus of `count` lines: facts, over and over, each with its ordinal and its splits."""
    with path.open("w") as file:
        for n in range(count):
            splits = ["all", *(f"of{part}" for part in PARTS if n % part == 0)]
            file.write(json.dumps({"id": f"p{n}", "text": f"{facts[n % len(facts)]} {n}", "splits": splits}) + "\n")


async def large(rows: Rows, home: Path, count: int) -> None:
    """Builds and measures."""
    cloud = await asyncio.to_thread(Cloud)
    facts = home / "large.jsonl"
    write_premises(facts, count, cloud.facts)
    name = f"{count:,} x {cloud.queries.shape[1]} float16"
    async with StandInEncoder(cloud.embed) as encoder:
        encoder.encoded = None  # counts of so many texts would fill the memory
        async with running_index(home / "large", encoder_target=encoder.target, **SETTINGS) as index:
            environment = {"AEENC_INDEX_ARTIFACTS_DIR": str(index.artifacts_dir)}
            environment |= {f"AEENC_INDEX_{key.upper()}": value for key, value in SETTINGS.items()}
            targets = {"encoder": encoder.target, "index": index.process.target}
            found, watch = await asyncio.to_thread(run_build, targets, environment, facts, CORPUS, lambda _: False)
        minutes = (found["seconds"] - cloud.seconds) / 60
        rows.at_most(f"{name}: built, but for the making of vectors", round(minutes, 1), "min", 60, found["seconds"])
        rows.note(f"{name}: anonymous memory of building, largest", max(watch.gib.values()), "GiB", watch.gib)
        generation = opened(index.artifacts_dir, CORPUS, found["generation"])
        task, bare, kept = await asyncio.to_thread(_bare, generation, cloud.queries)
        async with (
            running_index(home / "large", encoder_target=encoder.target, environment={"OMP_NUM_THREADS": "1"}) as index,
            AsyncClient(index=index.process.target) as client,
        ):
            await _served(rows, name, index, client, task, cloud.texts, bare, kept)
        rows.note(f"{name}: bare FAISS, searches a second; recall@10", bare, "1/s", round(kept, 4))


async def _served(
    rows: Rows,
    name: str,
    index: IndexFleet,
    client: AsyncClient,
    task: Task,
    texts: Sequence[str],
    bare: float,
    kept: float,
) -> None:
    rows.at_most(f"{name}: open, from the start to SERVING", round(index.process.starting_s, 1), "s", 10)
    recall = await measured_recall(client, CORPUS, task.queries, task.truth, K)
    rows.at_least(f"{name}: recall@10, real queries", round(recall, 4), "", 0.98)
    rows.at_least(f"{name}: recall@10 over bare FAISS", round(recall / kept, 3), "x", 0.9, round(kept, 4))
    for callers in (1, CALLERS):
        rate = await measured_rate(client, CORPUS, task.queries, K, callers, LOAD_S)
        rows.at_least(f"{name}: searches a second, {callers} callers, over bare FAISS", rate / bare, "x", 0.9, rate)
    out = [f"p{n}" for n in range(EXCLUDED)]
    rate = await measured_rate(client, CORPUS, task.queries, K, 1, LOAD_S, exclude=out)
    rows.note(f"{name}: searches a second, 1 caller, {EXCLUDED} ids excluded", rate, "1/s")
    for part in PARTS:
        await _filtered(rows, f"{name}: one premise in {part} allowed", client, task, part)
    modes: tuple[Mode, ...] = ("lexical", "hybrid")
    for mode in modes:
        median, p95 = await _retrieve_ms(client, texts, mode)
        rows.note(f"{name}: mode {mode}, one caller, milliseconds a call: median; p95", median, "ms", p95)
    anonymous = await asyncio.to_thread(anonymous_bytes, index.process.pid)
    rows.at_most(f"{name}: anonymous memory of the index", round(anonymous / GIB, 2), "GiB", 2)


async def _filtered(rows: Rows, name: str, client: AsyncClient, task: Task, part: int) -> None:
    """Measures searches of a split that has one premise in `part`."""
    queries, splits = task.queries[:FILTERED], [f"of{part}"]
    rates = [await measured_rate(client, CORPUS, queries, K, n, LOAD_S, splits=splits) for n in (1, CALLERS)]
    flat = FlatIndex(task.vectors[::part])
    truth = [part * one.ordinals for one in await asyncio.to_thread(flat.nearest, queries, K)]
    recall = await measured_recall(client, CORPUS, queries, truth, K, splits)
    rows.note(f"{name}: searches a second, 1 caller; {CALLERS}; recall@10", rates[0], "1/s", [rates[1], recall])


def _bare(generation: Generation, queries: Matrix) -> tuple[Task, float, float]:
    """The task; FAISS alone at it, at the generation's settings, one thread: searches a second, and recall@10."""
    faiss.omp_set_num_threads(1)
    plan = generation.artifact.meta["index"]
    index = faiss.read_index(str(generation.artifact.file(INDEX_FILE)))
    parameters = faiss.SearchParametersIVF(nprobe=plan["breadth"])  # type: ignore[call-arg]

    def search(query: Matrix) -> NDArray[np.int64]:
        _, (proposed,) = index.search(query[None], 2 * K + plan["candidates"], params=parameters)
        near = np.sort(proposed[proposed >= 0])
        scores = generation.vectors[near].astype(np.float32) @ query
        return near[np.argsort(-scores, kind="stable")[:K]]

    flat = FlatIndex(generation.vectors, largest_norm=generation.artifact.meta["largest_norm"])
    task = Task(generation.vectors, queries, [one.ordinals for one in flat.nearest(queries, K)])
    found = zip(queries, task.truth, strict=True)  # meets all pages, as the served index does before it is timed
    kept = sum(len(np.intersect1d(search(query), true)) for query, true in found) / K / len(queries)
    started, done = time.perf_counter(), 0
    while done < BARE and time.perf_counter() - started < BARE_S:
        search(queries[done % len(queries)])
        done += 1
    return task, done / (time.perf_counter() - started), kept


async def _retrieve_ms(client: AsyncClient, texts: Sequence[str], mode: Mode) -> list[float]:
    """The median and 95th percentile of calls by texts, one at a time."""
    retrieve = partial(client.index.retrieve, CORPUS, k=K, mode=mode, timeout_s=60)
    taken = await times_ms({mode: lambda text: retrieve([text])}, texts[:TIMED])
    return [round(float(one), 1) for one in np.percentile(taken[mode], [50, 95])]
