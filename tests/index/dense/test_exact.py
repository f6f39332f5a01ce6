"""Exact search: ids, order and scores equal a float64 brute force, to the bit."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.arrays import exact_products
from services.corpus.generation import PremiseRecord, Premises
from services.index.catalogue.served import ServedGeneration
from services.index.dense.batcher import EXCLUDED_AFTERWARDS, SearchBatcher
from services.index.dense.exact import FlatIndex, Proposal
from services.index.values import ALL, Selection


def unit(matrix: NDArray[np.float64]) -> NDArray[np.float32]:
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


def crowded(rows: int = 3000, dim: int = 33) -> NDArray[np.float32]:
    """Vectors with many exact duplicates and many that differ in the last bit only."""
    rng = np.random.default_rng(7)
    matrix = unit(rng.normal(size=(rows, dim)))
    matrix[100:200] = matrix[100]
    near = np.repeat(matrix[300:301], 200, axis=0)
    flips = rng.integers(0, dim, size=200)
    near[np.arange(200), flips] = np.nextafter(near[np.arange(200), flips], np.float32(2))
    matrix[300:500] = near
    return matrix[rng.permutation(rows)]


def brute_force(
    matrix: NDArray[np.float32], query: NDArray[np.float32], k: int, allowed: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    scores = np.einsum("ij,j->i", matrix.astype(np.float64), query.astype(np.float64)).astype(np.float32)
    ordinals = np.arange(len(matrix)) if allowed is None else np.flatnonzero(allowed)
    order = ordinals[np.lexsort((ordinals, -scores[ordinals]))][:k]
    return order, scores[order]


def served_of(matrix: NDArray[np.float32], splits: list[tuple[str, ...]] | None = None) -> ServedGeneration:
    names = splits or [()] * len(matrix)
    premises = Premises.of(PremiseRecord(f"p{n}", f"text {n}", (), names[n]) for n in range(len(matrix)))
    return ServedGeneration(SimpleNamespace(premises=premises), FlatIndex(matrix))  # type: ignore[arg-type]


def assert_same(found: object, expected: tuple[NDArray[np.int64], NDArray[np.float32]]) -> None:
    assert found.ordinals.tolist() == expected[0].tolist()  # type: ignore[attr-defined]
    assert found.scores.tobytes() == expected[1].tobytes()  # type: ignore[attr-defined]


@pytest.fixture
def batcher():
    running = SearchBatcher()
    running.start()
    yield running
    running.close()


@pytest.mark.parametrize("dim", [3, 33, 384])
def test_the_product_of_a_row_does_not_depend_on_its_neighbours(dim: int):
    rng = np.random.default_rng(0)
    rows, query = unit(rng.normal(size=(257, dim))), rng.normal(size=dim)
    together = exact_products(rows, query)
    alone = np.concatenate([exact_products(rows[n : n + 1], query) for n in range(len(rows))])
    assert together.tobytes() == alone.tobytes()
    pairs = np.concatenate([exact_products(rows[n : n + 2], query) for n in range(0, 256, 2)])
    assert together[:256].tobytes() == pairs.tobytes() == exact_products(rows[:256], query).tobytes()


async def test_concurrent_mixed_batches_equal_a_float64_brute_force_to_the_bit(batcher: SearchBatcher):
    matrix = crowded()
    served = served_of(matrix)
    rng = np.random.default_rng(1)
    queries = np.concatenate([matrix[rng.integers(0, len(matrix), 60)], unit(rng.normal(size=(60, 33)))])
    calls = []
    for _ in range(120):
        picked = rng.integers(0, len(queries), int(rng.choice([1, 1, 1, 3, 20, 90])))
        k = int(rng.choice([1, 10, 10, 12, 150]))
        calls.append((picked, k, batcher.search(served, queries[picked], k, ALL)))
    outcomes = await asyncio.gather(*(call for _, _, call in calls))
    assert batcher.batches < sum(-(-len(picked) // 64) for picked, _, _ in calls), "nothing was coalesced"
    for (picked, k, _), outcome in zip(calls, outcomes, strict=True):
        for row, found in zip(picked, outcome, strict=True):
            assert_same(found, brute_force(matrix, queries[row], k))


@pytest.mark.parametrize("rows", [1, 40])
def test_float16_vectors_are_searched_where_they_lie_and_exactly(rows: int):
    matrix = crowded().astype(np.float16)
    index = FlatIndex(matrix)
    assert index.vectors is matrix
    allowed = np.arange(len(matrix)) % 3 > 0
    queries = crowded()[:rows]
    for k in (1, 10, 150):
        for mask in (None, allowed):
            for query, found in zip(queries, index.nearest(queries, k, mask), strict=True):
                assert_same(found, brute_force(matrix, query, k, mask))


def test_a_tie_across_the_edge_of_the_candidates_is_found_by_widening():
    matrix = np.repeat(unit(np.ones((1, 16))), 5000, axis=0)
    found = FlatIndex(matrix).nearest(matrix[:1], 10)[0]
    assert found.ordinals.tolist() == list(range(10))


async def test_a_selection_leaves_out_and_the_rest_stays_exact(batcher: SearchBatcher):
    matrix = crowded(1000)
    kinds: list[tuple[str, ...]] = [("train",), ("dev",), ("facts", "dev"), ()]
    splits = [kinds[n % 4] for n in range(len(matrix))]
    served = served_of(matrix, splits)
    selection = Selection(frozenset({"train", "facts"}), frozenset({0, 2, 3}))
    allowed = np.array([n % 4 != 1 and n not in {0, 2, 3} for n in range(len(matrix))])
    for rows in (1, 40):
        outcome = await batcher.search(served, matrix[:rows], 20, selection)
        for query, found in zip(matrix[:rows], outcome, strict=True):
            assert_same(found, brute_force(matrix, query, 20, allowed))


@pytest.mark.parametrize("excluded", [3, EXCLUDED_AFTERWARDS + 1])
async def test_excluded_premises_leave_the_rest_exact_and_a_few_share_a_scan(batcher: SearchBatcher, excluded: int):
    matrix = crowded(1000)
    served = served_of(matrix)
    nearest = [brute_force(matrix, query, 2 * excluded)[0] for query in matrix[:12]]
    selections = [Selection(excluded=frozenset(own[::2].tolist())) for own in nearest]
    outcomes = await asyncio.gather(
        *(batcher.search(served, matrix[n : n + 1], 20, selection) for n, selection in enumerate(selections))
    )
    for query, selection, outcome in zip(matrix, selections, outcomes, strict=False):
        assert_same(outcome[0], brute_force(matrix, query, 20, served.allowed(selection)))
    assert (batcher.batches == 1) == (excluded <= EXCLUDED_AFTERWARDS)


async def test_fewer_allowed_premises_than_k_give_a_shorter_list(batcher: SearchBatcher):
    served = served_of(crowded(500), [("dev",)] * 497 + [("train",)] * 3)
    outcome = await batcher.search(served, served.index.vectors[:2], 10, Selection(frozenset({"train"})))
    assert [sorted(found.ordinals.tolist()) for found in outcome] == [[497, 498, 499]] * 2
    nothing = Selection(frozenset({"train"}), frozenset({497, 498, 499}))
    outcome = await batcher.search(served, served.index.vectors[:2], 10, nothing)
    assert [len(found.ordinals) for found in outcome] == [0, 0]


async def test_a_full_queue_refuses_with_the_time_to_come_back():
    batcher = SearchBatcher(max_queued=10)  # not started: what is queued stays
    served = served_of(crowded(100 + 500))
    waiting = asyncio.ensure_future(batcher.search(served, served.index.vectors[:10], 5, ALL))
    await asyncio.sleep(0)
    with pytest.raises(errors.Overloaded) as caught:
        await batcher.search(served, served.index.vectors[:1], 5, ALL)
    assert caught.value.retry_after_s
    batcher.start()
    assert len(await waiting) == 10
    assert len(await batcher.search(served, served.index.vectors[:1], 5, ALL)) == 1
    batcher.close()


async def test_queries_that_keep_arriving_join_one_batch_without_a_timer(batcher: SearchBatcher):
    served = served_of(crowded(600))

    async def arrive(rounds: int) -> None:
        for _ in range(rounds):
            await asyncio.sleep(0)
        await batcher.search(served, served.index.vectors[:1], 5, ALL)

    await asyncio.gather(*(arrive(4 * n) for n in range(15)))
    assert batcher.batches == 1


async def test_expired_and_cancelled_work_is_dropped_and_the_others_are_answered():
    batcher = SearchBatcher()
    served = served_of(crowded(600))
    expired = asyncio.ensure_future(batcher.search(served, served.index.vectors[:1], 5, ALL, deadline_s=0.0))
    cancelled = asyncio.ensure_future(batcher.search(served, served.index.vectors[:1], 500, ALL))  # a scan of its own
    good = asyncio.ensure_future(batcher.search(served, served.index.vectors[:1], 5, ALL))
    await asyncio.sleep(0.01)
    cancelled.cancel()
    await asyncio.sleep(0)
    batcher.start()
    assert len(await good) == 1
    with pytest.raises(errors.DeadlineExceeded):
        await expired
    assert batcher.batches == 1
    assert batcher._queue.size == 0
    batcher.close()


def test_a_scan_in_slices_finds_what_one_scan_finds_to_the_bit():
    matrix = unit(np.random.default_rng(21).normal(size=(900, 16)))
    matrix[[5, 250, 700]] = matrix[400]  # ties across slices
    queries = np.concatenate([matrix[400:401], unit(np.random.default_rng(22).normal(size=(7, 16)))])
    index = FlatIndex(matrix)
    few = np.zeros(900, dtype=bool)
    few[[1, 2, 450, 899]] = True
    for allowed in (None, np.arange(900) % 3 > 0, few):
        for k in (1, 10, 300):
            *pauses, found = index.scan(queries, k, allowed, 256)
            assert pauses == [None, None, None]
            for mine, whole in zip(found, index.nearest(queries, k, allowed), strict=True):
                assert mine.ordinals.tolist() == whole.ordinals.tolist()
                assert mine.scores.tobytes() == whole.scores.tobytes()


def test_no_candidate_is_left_out_that_can_be_among_the_best_and_the_others_are_not_scored() -> None:
    proposed = Proposal(
        ordinals=np.array([[9, 8, 7, 6, 5], [4, 3, 2, 1, 0]]),
        scores=np.array([[0.9, 0.8, 0.7, 0.5, 0.49], [0.9, 0.9, 0.9, 0.9, 0.2]], dtype=np.float32),
        error=np.array([0.1, 0.0]),
    )
    assert proposed.possible(2).tolist() == [[True, True, True, False, False], [True, True, True, True, False]]
    assert proposed.ceiling == pytest.approx([0.59, 0.2])


def test_candidates_within_the_error_are_scored_and_ties_still_go_to_the_lower_ordinal() -> None:
    matrix, scored = crowded(), []

    class Wrong:
        """Proposes by products that are wrong by up to `error`, in the order of the wrong ones."""

        def propose(self, queries: NDArray[np.float32], width: int, _allowed: object) -> Proposal:
            noise = np.random.default_rng(5).uniform(-0.02, 0.02, size=(len(queries), len(matrix)))
            products = np.einsum("qj,ij->qi", queries.astype(np.float64), matrix.astype(np.float64)) + noise
            ordinals = np.argsort(-products, axis=1)[:, :width]
            scores = np.take_along_axis(products, ordinals, axis=1)
            return Proposal(ordinals, scores, np.full(len(queries), 0.0201))

    index = FlatIndex(matrix, coarse=Wrong())
    usual = index._scores
    index._scores = lambda rows, *others: scored.append(len(rows)) or usual(rows, *others)  # type: ignore[method-assign]
    queries = np.concatenate([matrix[::150], unit(np.random.default_rng(6).normal(size=(20, matrix.shape[1])))])
    for query, found in zip(queries, index.nearest(queries, 5), strict=True):
        assert_same(found, brute_force(matrix, query, 5))
    assert scored[0] < len(queries) * 37, "those out of reach were scored, too"


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_nearest_among_some_rows_are_exact_and_ties_go_to_the_lower_ordinal(dtype: type) -> None:
    rng = np.random.default_rng(8)
    matrix = rng.normal(size=(900, 48)).astype(dtype)
    matrix[600:] = matrix[:300]  # each row of the first third has a twin
    index, query = FlatIndex(matrix), rng.normal(size=48).astype(np.float32)
    among = rng.permutation(900)[:700]
    (found,) = index.nearest_among(query[None], among, 12)
    wanted = index.rescore(query, np.sort(among), 12)
    assert found.ordinals.tolist() == wanted.ordinals.tolist()
    assert found.scores.tobytes() == wanted.scores.tobytes()
    assert any(a + 600 == b for a, b in zip(found.ordinals, found.ordinals[1:], strict=False)), "no twins were found"
