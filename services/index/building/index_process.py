"""Indexes a generation in a process of its own: trains and measures the FAISS index, and indexes its words.

    index_generation (service) ──── one line of JSON: the request ───► python -m … (child, niced, all cores)
            ▲                                                          │ index.faiss, lexical.*
            └──────────── indexed.json: the plan ──────────────────────┘

It is a process of its own because it computes for minutes on all cores, and because FAISS's settings are process-wide.
The child ends when its standard input closes. Sample, order and seed are fixed: equal vectors give equal IVF indexes on
one machine. The first half of this module runs in the service, the second in the child.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.arrays import map_array
from services.corpus.generation import PREMISES, PremiseRecord
from services.corpus.sameness import repeats
from services.index.dense.approximate import INDEX_FILE, ApproximateIndex, IndexPlan, read_proposer
from services.index.dense.exact import FAISS, FlatIndex
from services.index.lexical.bm25 import write_lexical
from services.index.values import REMOTE_ENGINES, Engine, EngineOptions, LexicalSettings, SearchHits
from services.kit import logs
from services.kit.concurrency import EXIT_DISK_FULL, ChildProcess, end_with_parent, run_in_thread
from services.store.files import DISK_FULL

log = logs.get(__name__)
MODULE = "services.index.building.index_process"
SEED = 20_221  # any; fixed, so that equal vectors give equal files
K = 10
QUERIES = 500
NOISE = 2.0  # length of the noise of a query, beside two premises of length 1
ROWS_A_LIST = 128  # at least; beyond, lists follow FAISS's guidance: a few times the root of the number of rows
SAMPLE_A_LIST = 40  # vectors; FAISS's guidance is 39 at least
ROUNDS = 10  # of k-means
CANDIDATES = (400, 1600)
BLOCK_ROWS = 65_536
LINKS, EF_CONSTRUCTION = 32, 100
NICENESS = 10
ANSWER = "indexed.json"


async def index_generation(path: Path, options: EngineOptions, rows: int, largest_norm: float) -> dict[str, Any]:
    """Indexes the finished vectors and premises in the directory `path`; returns the engine for the manifest.

    With the engine flat, or one of a Milvus, nothing takes minutes, and only the words are indexed, in a thread.
    Cancelled, it ends the child. Raises Unavailable when the child dies, OSError when the disk is full.
    """
    engine = options.choose(rows)
    if engine == "flat" or engine in REMOTE_ENGINES:
        return {"engine": engine, **await run_in_thread(index_words, path, options.lexical)}
    request = {
        "path": str(path),
        "engine": engine,
        "recall": options.recall,
        "largest_norm": largest_norm,
        "threads": options.threads,
        "lexical": asdict(options.lexical),
    }
    started, answer = time.monotonic(), path / ANSWER
    own = {"OMP_NUM_THREADS": str(options.threads), "OMP_WAIT_POLICY": "PASSIVE"}  # waiting threads leave the core
    child = ChildProcess(sys.executable, "-m", MODULE, line=json.dumps(request), environment={**os.environ, **own})
    try:
        status = await child.wait()
    finally:
        await child.end()
    if status == EXIT_DISK_FULL:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if status:
        died = f"ended with status {status}, the log says why"
        if status < 0:
            died = f"was killed by signal {-status} (out of memory?)"
        raise errors.Unavailable(
            f"the process that indexes {died}; build again, or with the engine flat: with the same request_id it "
            "continues behind what was durable, without one it starts over"
        )
    told = json.loads(await run_in_thread(answer.read_bytes))
    await run_in_thread(answer.unlink)  # not part of the generation
    plan = IndexPlan(**told["plan"])
    elapsed_s = round(time.monotonic() - started, 1)
    log.info("indexed", premises=rows, elapsed_s=elapsed_s, **asdict(plan))
    if plan.recall_at_10 < plan.recall_wanted:
        log.warning("recall is below what is wanted", found=plan.recall_at_10, wanted=plan.recall_wanted)
    return {"engine": engine, "index": asdict(plan), **told["words"]}


def index_vectors(path: Path, engine: Engine, recall: float, largest_norm: float) -> IndexPlan:
    """Indexes `path`/vectors.npy into `path`/index.faiss and finds the least effort that reaches `recall`."""
    vectors = map_array(path / "vectors.npy")
    flat = FlatIndex(vectors, largest_norm=largest_norm)
    plan = IndexPlan(engine, 0, 0, 0.0, recall, 0)
    if engine == "ivf":
        plan = replace(plan, lists=lists_for(flat.rows))
        FAISS.write_index(train_ivf(flat.vectors, plan.lists), str(path / INDEX_FILE))
    else:
        plan = replace(plan, links=LINKS)
        FAISS.write_index(link_hnsw(flat.vectors), str(path / INDEX_FILE), FAISS.IO_FLAG_SKIP_STORAGE)
    queries = queries_like(flat.vectors)
    truth = flat.nearest(queries, K)
    FAISS.omp_set_num_threads(1)  # as the service does
    return tune(flat, read_proposer(path / INDEX_FILE, flat, plan), plan, queries, truth)


def lists_for(rows: int) -> int:
    """The number of IVF lists: the power of two next to four times the root of the rows, at 128 rows a list or more."""
    most = max(rows // ROWS_A_LIST, 1)
    return int(min(2 ** round(np.log2(4 * np.sqrt(rows))), 2 ** int(np.log2(most))))


def train_ivf(vectors: NDArray[Any], lists: int) -> Any:
    """Trains IVF over `vectors` (n, dim), with 4-bit codes for four dimensions each: 48 bytes a premise at 384."""
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
    """Builds HNSW over `vectors` (n, dim). Its links depend on which thread comes first."""
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
    """Makes queries from two premises and as much noise, a little harder than real (docs/experiments/retrieval.md)."""
    rng = np.random.default_rng(SEED + 1)
    first, second = (np.asarray(vectors[rng.integers(0, len(vectors), QUERIES)], np.float64) for _ in range(2))
    noise = rng.normal(size=first.shape)
    noise *= NOISE / np.linalg.norm(noise, axis=1, keepdims=True)
    mixed = first + second + noise
    queries: NDArray[np.float32] = (mixed / np.linalg.norm(mixed, axis=1, keepdims=True)).astype(np.float32)
    return queries


def tune(
    flat: FlatIndex, proposer: Any, plan: IndexPlan, queries: NDArray[np.float32], truth: Sequence[SearchHits]
) -> IndexPlan:
    """Finds the plan with the least breadth that reaches the wanted recall; the best one where none does."""
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
    """The breadths to try, in steps of a half to a third: one to all lists, or 16 to 1,024 for HNSW."""
    lowest, highest = (1, lists) if lists else (16, 1024)
    steps = {lowest << n for n in range(20)} | {3 * lowest << n for n in range(20)}
    return sorted(step for step in steps if step <= highest)


def recall_of(found: Sequence[SearchHits], truth: Sequence[SearchHits]) -> float:
    """The share of the true nearest that was found, to four digits."""
    hits = sum(len(np.intersect1d(a.ordinals, b.ordinals)) for a, b in zip(found, truth, strict=True))
    return round(hits / sum(len(one.ordinals) for one in truth), 4)


def blocks(vectors: NDArray[Any]) -> Iterator[NDArray[np.float32]]:
    """Yields the rows in order, in float32."""
    for start in range(0, len(vectors), BLOCK_ROWS):
        yield np.ascontiguousarray(vectors[start : start + BLOCK_ROWS], dtype=np.float32)


def main() -> None:
    """Runs in the child: does what the request says. A failure ends the process with its message."""
    request = json.loads(sys.stdin.readline())
    end_with_parent(lambda: os._exit(1))
    os.nice(NICENESS)
    FAISS.omp_set_num_threads(request["threads"])
    try:
        path = Path(request["path"])
        plan = index_vectors(path, request["engine"], request["recall"], request["largest_norm"])
        words = index_words(path, LexicalSettings(**request["lexical"]))
        (path / ANSWER).write_text(json.dumps({"plan": asdict(plan), "words": words}))
    except (OSError, RuntimeError) as error:  # FAISS raises the second
        is_full = any(os.strerror(number) in str(error) for number in DISK_FULL)
        sys.exit(EXIT_DISK_FULL if is_full else str(error))


def index_words(path: Path, settings: LexicalSettings) -> dict[str, int]:
    """Indexes the words of the premises in a directory. Returns counts of premises for the manifest."""
    return {**write_lexical(path, texts_of(path), settings), "repeats": repeats(texts_of(path))}


def texts_of(path: Path) -> Iterator[str]:
    """Reads the premises' texts in order of insertion."""
    with (path / PREMISES).open("rb") as lines:
        for line in lines:
            yield PremiseRecord.of_line(line).text


if __name__ == "__main__":
    main()
