"""A large corpus in the index: recall, build, throughput, memory, opening, filters. `make bench NAME=index-large`.

An index in a process of its own gets vectors (benchmarks/index/cloud.py) through BuildGeneration from an encoder that
makes them up, so that the index alone is measured. Filters are one id, 1,000 ids, a tag of each tenth premise, and what
stands before the middle; right is what a scan of the allowed rows in float64 finds. A million premises take about ten
minutes; `benchmarks/index/index-large.py --rows 50000` is a smaller one.
Needs EntailmentBank in `data/entailmentbank` or in AEENC_BENCH_DATA.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from aeenc import AsyncClient
from aeenc.v1 import types_pb2
from benchmarks.harness.checkpoints import STORE
from benchmarks.harness.rows import Rows, run
from benchmarks.harness.services import IndexFleet, running_index
from benchmarks.index.cloud import Cloud, Matrix, measured_rate, measured_recall
from benchmarks.index.stand_in_encoder import SPACE, StandInEncoder
from services.corpus.generation import VECTORS, folder_of
from services.index.dense.exact import SCAN_ROWS, FlatIndex
from services.store.artifacts import ArtifactStore

CORPUS = "large"
MILLION = 1_000_000  # premises from which on all bars hold
K = 10
CALLERS = 64
LOAD_S = 10.0
SCANS = 20
IDS, STEP = 1000, 10  # of filters: ids, and how many premises there are for each that has the tag
FILTERED, ROUNDS = 20, 5  # queries, and how often each is asked
BUILD_TIMEOUT_S = 3600.0
Ordinals = NDArray[np.int64]


def premises(count: int) -> Iterator[types_pb2.Premise]:
    """The corpus; the encoder finds a text's ordinal in it."""
    for n in range(count):
        text = f"premise of about the length that facts have, number {n}"
        yield types_pb2.Premise(id=f"p{n}", text=text, tags=["tenth"] * (n % STEP == 0))


def running_ivf(root: Path, encoder: str) -> AbstractAsyncContextManager[IndexFleet]:
    """A running index over the artifacts in `root`; FAISS has one thread."""
    return running_index(root, encoder_target=encoder, engine="ivf", environment={"OMP_NUM_THREADS": "1"})


async def large(rows: Rows, count: int) -> None:
    """Prints the rows of a corpus of `count` premises."""
    cloud = await asyncio.to_thread(Cloud)
    queries = cloud.queries
    name = f"{count:,} x {queries.shape[1]}"
    with tempfile.TemporaryDirectory(prefix="aeenc-large-", dir=STORE.parent) as scratch:
        root = Path(scratch)
        async with StandInEncoder(cloud.embed) as encoder:
            async with running_ivf(root, encoder.target) as index, AsyncClient(index=index.process.target) as client:
                started = time.monotonic()
                built = await client.index.build(CORPUS, premises(count), timeout_s=BUILD_TIMEOUT_S)
                rows.at_most(f"{name}: built", (time.monotonic() - started) / 60, "min", 20)
            plan = ArtifactStore(root).open(folder_of(CORPUS), built.id, verify="size").meta["index"]
            rows.note(
                f"{name}: {built.engine}, {plan['lists']} lists, {plan['breadth']} visited", plan["recall_at_10"], ""
            )
            flat = FlatIndex(np.load(root / folder_of(CORPUS) / built.id / VECTORS, mmap_mode="r"), largest_norm=1.001)
            truth = await asyncio.to_thread(lambda: [one.ordinals for one in flat.nearest(queries, K)])
            scans = await asyncio.to_thread(_scan_rate, flat.vectors, queries)
            async with running_ivf(root, encoder.target) as index, AsyncClient(index=index.process.target) as client:
                rows.at_most(f"{name}: start to SERVING", index.process.starting_s, "s", 3)
                rows.at_least(
                    f"{name}: recall@10, real queries",
                    await measured_recall(client, CORPUS, queries, truth, K),
                    "",
                    0.98,
                )
                rate = await measured_rate(client, CORPUS, queries, K, CALLERS, LOAD_S)
                bar = 20 if count >= MILLION else 0  # a short scan is hard to beat
                rows.at_least(f"{name}: {CALLERS} callers over a single exact scan", rate / scans, "x", bar, scans)
                rows.note(f"{name}: queries a second, {CALLERS} callers", rate, "1/s")
                for exact in (True, False):  # the first touches every vector
                    await filtered(rows, client, flat, queries[:FILTERED], exact=exact)
                async for _ in client.index.list_premises(CORPUS):  # and every premise
                    pass
                ratio = 1e6 * index.process.resident_mb() / flat.vectors.nbytes
                bar = 1.3 if count >= MILLION else 10  # the process itself takes 150 MB
                rows.at_most(f"{name}: resident over raw, all touched", ratio, "x", bar, flat.vectors.nbytes)


def filters(count: int) -> Iterator[tuple[str, dict[str, Any], Ordinals]]:
    """Each filter with its name, as options of a search, and with the ordinals that it allows."""
    some = np.sort(np.random.default_rng(0).permutation(count)[:IDS])
    yield "one id", {"only_ids": [f"p{some[0]}"]}, some[:1]
    yield f"{IDS:,} ids", {"only_ids": [f"p{n}" for n in some]}, some
    yield "a tag", {"tags": ["tenth"]}, np.arange(0, count, STEP)
    yield "before the middle", {"before_id": f"p{count // 2}"}, np.arange(count // 2)


async def filtered(rows: Rows, client: AsyncClient, flat: FlatIndex, queries: Matrix, *, exact: bool) -> None:
    """Rows of each filter: wrong or missing premises, and the time over that of a search without one."""
    engine = "exact" if exact else "approximate"

    async def searches(**options: Any) -> tuple[float, float, list[list[str]]]:
        """The median time of a search apart from resolving its filter, that of resolving it, in ms; what is found."""
        took, resolving, found = [], [], list[list[str]]()
        for number in range(ROUNDS * len(queries)):
            asked = queries[number % len(queries)][None, :]
            answer = await client.index.search(CORPUS, asked, space_id=SPACE, k=K, exact=exact, timings=True, **options)
            assert answer.timings is not None
            took.append((answer.timings.queue + answer.timings.compute).total_seconds() * 1e3)
            resolving.append(answer.timings.total.total_seconds() * 1e3 - took[-1])
            found += answer.ids if number < len(queries) else []
        return statistics.median(took), statistics.median(resolving), found

    await searches()
    plain_ms, _, _ = await searches()
    for name, options, allowed in filters(flat.rows):
        took_ms, resolving_ms, found = await searches(**options)
        truth = [[f"p{n}" for n in flat.rescore(query, allowed, K).ordinals] for query in queries]
        lacks = sum(len(set(best) ^ set(ids)) for best, ids in zip(truth, found, strict=True))
        few, what = len(allowed) <= SCAN_ROWS, f"{engine}, {name}"
        most = 0 if exact or few else np.inf  # an index that may miss some without a filter may do so with one
        rows.at_most(f"{what}: wrong or missing of {K * len(queries)}", lacks, "", most, {"allowed": len(allowed)})
        told = {"ms": round(took_ms, 2), "without_ms": round(plain_ms, 2), "resolving_ms": round(resolving_ms, 2)}
        rows.at_most(f"{what}: time over none", took_ms / plain_ms, "x", 2 if few else 4, told)


def _scan_rate(matrix: Matrix, queries: Matrix) -> float:
    """Queries a second of bare FAISS, one at a time in one thread; the matrix has been read before."""
    faiss.omp_set_num_threads(1)
    started = time.perf_counter()
    for n in range(SCANS):
        faiss.knn(queries[n : n + 1], matrix, K, metric=faiss.METRIC_INNER_PRODUCT)
    return SCANS / (time.perf_counter() - started)


async def main(count: int) -> None:
    """Runs it."""
    rows = Rows("index-large")
    await large(rows, count)
    rows.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="premises of the corpus")
    run(main(parser.parse_args().rows))
