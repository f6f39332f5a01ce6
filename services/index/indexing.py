"""Builds and measures the FAISS index of a generation, and indexes its words: a process of its own.

`python -m services.index.indexing` reads a request as one line of JSON from standard input and writes the plan as one
line to standard output. Beside the service, because it computes for minutes on all cores, and FAISS's settings are of
the whole process. It ends by itself when standard input does. Sample, order and seed are fixed: equal vectors give
equal IVF indexes on one machine.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.corpus.premises import PREMISES, PremiseRecord
from services.index.approximate import ApproximateIndex, read_proposer
from services.index.lexical import write_lexical
from services.index.plan import INDEX_FILE, Engine, Plan
from services.index.proposals import FAISS
from services.index.search import FlatIndex, Found

SEED = 20_221  # any; fixed, so that equal vectors give equal files
K = 10
QUERIES = 500
NOISE = 2.0  # length of the noise of a query, beside two premises of length 1
ROWS_A_LIST = 128  # at the least; beyond, lists follow FAISS's guidance: some times the root of the number of rows
SAMPLE_A_LIST = 40  # vectors; FAISS's guidance is 39 at the least
ROUNDS = 10  # of k-means
CANDIDATES = (400, 1600)
BLOCK_ROWS = 65_536
LINKS, EF_CONSTRUCTION = 32, 100
NICENESS = 10


def index_vectors(path: Path, engine: Engine, recall: float, largest_norm: float) -> Plan:
    """Indexes `path`/vectors.npy into `path`/index.faiss and finds the least effort that reaches `recall`."""
    vectors = np.load(path / "vectors.npy", mmap_mode="r", allow_pickle=False)
    flat = FlatIndex(vectors, largest_norm=largest_norm)
    plan = Plan(engine, 0, 0, 0.0, recall, 0)
    if engine == "ivf":
        plan = replace(plan, lists=lists_for(flat.rows))
        FAISS.write_index(train_ivf(flat.vectors, plan.lists), str(path / INDEX_FILE))
    else:
        plan = replace(plan, links=LINKS)
        FAISS.write_index(link_hnsw(flat.vectors), str(path / INDEX_FILE), FAISS.IO_FLAG_SKIP_STORAGE)
    queries = queries_like(flat.vectors)
    truth = flat.nearest(queries, K)
    FAISS.omp_set_num_threads(1)  # as it is served
    return tuned(flat, read_proposer(path / INDEX_FILE, flat, plan), plan, queries, truth)


def lists_for(rows: int) -> int:
    """The number of IVF lists: the power of two next to four times the root of the rows, each of 128 rows or more."""
    most = max(rows // ROWS_A_LIST, 1)
    return int(min(2 ** round(np.log2(4 * np.sqrt(rows))), 2 ** int(np.log2(most))))


def train_ivf(vectors: NDArray[Any], lists: int) -> Any:
    """IVF over `vectors` (n, dim) with codes of 4 bits for four dimensions each: 48 bytes a premise at 384."""
    rows, dim = vectors.shape
    width = next(width for width in (4, 3, 2, 5, 1) if dim % width == 0)
    index = FAISS.IndexIVFPQFastScan(FAISS.IndexFlatIP(dim), dim, lists, dim // width, 4, FAISS.METRIC_INNER_PRODUCT)
    index.by_residual = True
    index.cp.seed = index.pq.cp.seed = SEED
    index.cp.niter, index.cp.spherical, index.cp.max_points_per_centroid = ROUNDS, True, SAMPLE_A_LIST
    index.cp.min_points_per_centroid = 1
    sample = np.random.default_rng(SEED).choice(rows, size=min(rows, lists * SAMPLE_A_LIST), replace=False)
    index.train(np.asarray(vectors[np.sort(sample)], dtype=np.float32))
    for block in blocks(vectors):
        index.add(block)
    return index


def link_hnsw(vectors: NDArray[Any]) -> Any:
    """HNSW over `vectors` (n, dim). Its links depend on which thread comes first."""
    dim = vectors.shape[1]
    if vectors.dtype == np.float16:
        index = FAISS.IndexHNSWSQ(dim, FAISS.ScalarQuantizer.QT_fp16, LINKS, FAISS.METRIC_INNER_PRODUCT)
    else:
        index = FAISS.IndexHNSWFlat(dim, LINKS, FAISS.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = EF_CONSTRUCTION
    for block in blocks(vectors):
        index.add(block)
    return index


def queries_like(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Queries between premises: two and as much noise, which are somewhat harder than real ones (experiments.md)."""
    rng = np.random.default_rng(SEED + 1)
    first, second = (np.asarray(vectors[rng.integers(0, len(vectors), QUERIES)], np.float64) for _ in range(2))
    noise = rng.normal(size=first.shape)
    noise *= NOISE / np.linalg.norm(noise, axis=1, keepdims=True)
    mixed = first + second + noise
    queries: NDArray[np.float32] = (mixed / np.linalg.norm(mixed, axis=1, keepdims=True)).astype(np.float32)
    return queries


def tuned(flat: FlatIndex, proposer: Any, plan: Plan, queries: NDArray[np.float32], truth: Sequence[Found]) -> Plan:
    """The plan with the least breadth that reaches the recall wanted; the best one found where none does."""
    best = plan
    for candidates in CANDIDATES if plan.lists else (32,):
        for breadth in breadths(plan.lists):
            tried = replace(plan, breadth=breadth, candidates=candidates, queries=len(queries))
            found = ApproximateIndex(flat, proposer, tried).nearest(queries, K)
            tried = replace(tried, recall_at_10=recall_of(found, truth))
            if tried.recall_at_10 >= plan.recall_wanted:
                return tried
            if tried.recall_at_10 > best.recall_at_10:
                best = tried
    return best


def breadths(lists: int) -> list[int]:
    """What is tried, in steps of a half to a third: from one to all lists, or HNSW's breadth from 16 to 1,024."""
    lowest, highest = (1, lists) if lists else (16, 1024)
    steps = {lowest << n for n in range(20)} | {3 * lowest << n for n in range(20)}
    return sorted(step for step in steps if step <= highest)


def recall_of(found: Sequence[Found], truth: Sequence[Found]) -> float:
    """The share of the true nearest that was found, to four digits."""
    hits = sum(len(np.intersect1d(a.ordinals, b.ordinals)) for a, b in zip(found, truth, strict=True))
    return round(hits / sum(len(one.ordinals) for one in truth), 4)


def blocks(vectors: NDArray[Any]) -> Iterator[NDArray[np.float32]]:
    """The rows in order, in float32."""
    for start in range(0, len(vectors), BLOCK_ROWS):
        yield np.ascontiguousarray(vectors[start : start + BLOCK_ROWS], dtype=np.float32)


def main() -> None:
    """Does what the request says; what goes wrong with the disk is told in the answer."""
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    os.nice(NICENESS)
    FAISS.omp_set_num_threads(request["threads"])
    try:
        path = Path(request["path"])
        plan = index_vectors(path, request["engine"], request["recall"], request["largest_norm"])
        write_lexical(path, texts_of(path))
    except (OSError, RuntimeError) as error:  # FAISS raises the second
        sys.exit(str(error))
    sys.stdout.write(json.dumps(plan.to_meta()) + "\n")


def texts_of(path: Path) -> list[str]:
    """The premises' texts in the order of insertion."""
    with (path / PREMISES).open("rb") as lines:
        return [PremiseRecord.of_line(line).text for line in lines]


def _end_with_input() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock would be held when the process ends
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
