"""IVF and HNSW in one process: recall, the same answer in any batch, filters, and exactness on request."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from services.corpus.generation import PremiseRecord, Premises
from services.index.building import index_process
from services.index.catalogue.served import ServedGeneration
from services.index.dense import approximate
from services.index.dense.approximate import (
    INDEX_FILE,
    ApproximateIndex,
    IndexPlan,
    IvfProposer,
    open_index,
    read_proposer,
)
from services.index.dense.batcher import SearchBatcher
from services.index.dense.exact import FlatIndex
from services.index.values import ALL, EngineOptions, SearchParams, Selection
from services.store.files import sha256_of

ROWS, DIM = 4000, 32
EXACT = SearchParams(exact=True)


def clustered() -> NDArray[np.float32]:
    rng = np.random.default_rng(5)
    centres = rng.normal(size=(150, DIM))
    matrix = centres[rng.integers(0, len(centres), ROWS)] + 0.7 * rng.normal(size=(ROWS, DIM))
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


MATRIX = clustered()
QUERIES = index_process.queries_like(MATRIX)[:100]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    faiss.omp_set_num_threads(1)  # threads that wait for a busy machine spin


def indexed(path: Path, engine: Any, recall: float = 0.97, dtype: Any = np.float32) -> ApproximateIndex:
    np.save(path / "vectors.npy", MATRIX.astype(dtype))
    plan = index_process.index_vectors(path, engine, recall, 1.001)
    flat = FlatIndex(np.load(path / "vectors.npy", mmap_mode="r"), largest_norm=1.001)
    return ApproximateIndex(flat, read_proposer(path / "index.faiss", flat, plan), plan)


def indexed_in(lists: int, *, breadth: int) -> ApproximateIndex:
    plan = IndexPlan("ivf", breadth, 50, 0.0, 0.0, 0, lists=lists)
    return ApproximateIndex(
        FlatIndex(MATRIX, largest_norm=1.001), IvfProposer(index_process.train_ivf(MATRIX, lists)), plan
    )


@pytest.fixture(scope="module", params=["ivf", "hnsw", "ivf-float16", "hnsw-float16"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ApproximateIndex]:
    """Each engine over each storage, built once."""
    engine, _, storage = request.param.partition("-")
    path = tmp_path_factory.mktemp(request.param)
    return path, indexed(path, engine, dtype=np.dtype(storage or "float32"))


@pytest.fixture
def index(built: tuple[Path, ApproximateIndex]) -> ApproximateIndex:
    return built[1]


def serve(index: ApproximateIndex) -> ServedGeneration:
    premises = Premises.of(
        PremiseRecord(f"p{n}", f"text {n}", (), ("many", "few")[: 1 + (n % 50 == 0)]) for n in range(ROWS)
    )
    return ServedGeneration(SimpleNamespace(premises=premises), index)  # type: ignore[arg-type]


def test_the_least_effort_that_reaches_the_recall_is_found_and_kept(index: ApproximateIndex) -> None:
    plan = index.plan
    assert 0.97 <= plan.recall_at_10 <= 1.0
    assert plan.queries == 500
    found, truth = index.nearest(QUERIES, 10), index.flat.nearest(QUERIES, 10)
    assert index_process.recall_of(found, truth) >= 0.95
    assert not any(one.exact for one in found)
    assert all(one.exact for one in truth)
    less = SearchParams(nprobe=1) if index.plan.lists else SearchParams(ef_search=1)
    assert index_process.recall_of(index.nearest(QUERIES, 10, params=less), truth) < plan.recall_at_10


def test_a_generation_of_a_later_minor_release_is_searched_by_the_plan_in_its_manifest(
    built: tuple[Path, ApproximateIndex],
) -> None:
    path, index = built
    meta = {"engine": index.plan.engine, "largest_norm": 1.001, "index": {**asdict(index.plan), "further": 1}}
    files = {INDEX_FILE: SimpleNamespace(sha256=sha256_of(path / INDEX_FILE))}
    artifact = SimpleNamespace(path=path, meta=meta, files=files, file=lambda name: path / name)
    opened = open_index(SimpleNamespace(artifact=artifact, vectors=index.vectors))  # type: ignore[arg-type]
    assert isinstance(opened, ApproximateIndex)
    assert opened.plan == index.plan


def test_scores_and_their_order_are_those_of_an_exact_search(index: ApproximateIndex) -> None:
    exact = np.einsum("ij,qj->qi", index.vectors.astype(np.float64), QUERIES.astype(np.float64)).astype(np.float32)
    for row, found in enumerate(index.nearest(QUERIES, 10)):
        assert found.scores.tobytes() == exact[row, found.ordinals].tobytes()
        assert found.ordinals.tolist() == found.ordinals[np.lexsort((found.ordinals, -found.scores))].tolist()


async def test_concurrent_mixed_batches_give_each_query_the_answer_that_it_gets_alone(index: ApproximateIndex) -> None:
    served, searching = serve(index), SearchBatcher()
    alone = {(row, k): index.nearest(QUERIES[row : row + 1], k)[0] for row in range(100) for k in (8, 10)}
    searching.start()
    rng = np.random.default_rng(1)
    calls = []
    for _ in range(80):
        picked, k = rng.integers(0, 100, int(rng.choice([1, 1, 3, 20]))), int(rng.choice([8, 10]))
        exact = SearchParams(exact=bool(rng.random() < 0.2))
        calls.append((picked, k, exact, searching.search(served, QUERIES[picked], k, ALL, params=exact)))
    outcomes = await asyncio.gather(*(call for *_, call in calls))
    searching.close()
    assert searching.batches < len(calls), "nothing was coalesced"
    for (picked, k, params, _), outcome in zip(calls, outcomes, strict=True):
        for row, found in zip(picked.tolist(), outcome, strict=True):
            expected = index.flat.nearest(QUERIES[row : row + 1], k)[0] if params.exact else alone[row, k]
            assert (found.ordinals.tolist(), found.exact) == (expected.ordinals.tolist(), params.exact)
            assert found.scores.tobytes() == expected.scores.tobytes()


def test_the_lists_that_a_query_visits_do_not_depend_on_its_batch_or_on_what_was_searched_before() -> None:
    index = indexed_in(16, breadth=2)
    alone = [index.nearest(query[None], 10)[0] for query in QUERIES]
    faiss.cvar.distance_compute_blas_threshold = 1  # as a large flat batch leaves it
    for together, one in zip(index.nearest(QUERIES, 10), alone, strict=True):
        assert together.ordinals.tolist() == one.ordinals.tolist()
        assert together.scores.tobytes() == one.scores.tobytes()


def test_lists_chosen_by_integers_hold_what_those_chosen_by_faiss_hold() -> None:
    index = index_process.train_ivf(MATRIX, 32)
    _, wanted = index.search(QUERIES, 60, params=faiss.SearchParametersIVF(nprobe=4))  # type: ignore[call-arg]
    found = IvfProposer(index).propose(QUERIES, 60, 4, None)
    shares = [len(np.intersect1d(mine, theirs)) / 60 for mine, theirs in zip(found, wanted, strict=True)]
    assert np.mean(shares) > 0.97


@pytest.mark.parametrize("scan_rows", [0, 20_000], ids=["by-the-index", "by-a-scan"])
def test_a_selection_is_kept_to_and_never_short(
    monkeypatch: pytest.MonkeyPatch, index: ApproximateIndex, scan_rows: int
) -> None:
    monkeypatch.setattr(approximate, "SCAN_ROWS", scan_rows)
    served = serve(index)
    few = served.allowed(Selection(frozenset({"few"})))
    assert few is not None
    for k in (10, 79, 80, 500):
        for found in index.nearest(QUERIES[:5], k, few):
            assert len(found.ordinals) == min(k, 80)
            assert set((found.ordinals % 50).tolist()) == {0}
    truth = index.flat.nearest(QUERIES, 10, few)
    assert index_process.recall_of(index.nearest(QUERIES, 10, few), truth) >= 0.95
    best = [int(one.ordinals[0]) for one in index.nearest(QUERIES, 1)]
    rest = served.allowed(Selection(excluded=frozenset(best)))
    for found in index.nearest(QUERIES, 10, rest):
        assert len(found.ordinals) == 10
        assert not set(found.ordinals.tolist()) & set(best)


def test_the_vectors_are_not_kept_a_second_time(built: tuple[Path, ApproximateIndex]) -> None:
    path, index = built
    bytes_a_row = 24 if index.plan.lists else 310  # codes and ordinals; links
    assert (path / "index.faiss").stat().st_size < bytes_a_row * ROWS


@pytest.mark.parametrize(
    ("rows", "engine", "chosen"),
    [
        (250_000, "auto", "flat"),
        (250_001, "auto", "ivf"),
        (5000, "hnsw", "hnsw"),
        (5000, "ivf", "ivf"),
        (999, "ivf", "flat"),
        (2_000_000, "flat", "flat"),
    ],
)
def test_the_engine_is_chosen_by_size_unless_it_is_named(rows: int, engine: Any, chosen: str) -> None:
    assert EngineOptions(engine=engine).choose(rows) == chosen


@pytest.mark.parametrize(
    ("rows", "lists"), [(1000, 4), (5000, 32), (250_000, 1024), (1_000_000, 4096), (100_000_000, 32768)]
)
def test_the_number_of_lists_follows_the_number_of_rows(rows: int, lists: int) -> None:
    assert index_process.lists_for(rows) == lists
