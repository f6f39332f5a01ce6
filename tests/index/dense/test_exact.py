"""Exact search: ids, order and scores equal a float64 brute force, to the bit."""

import asyncio
from types import SimpleNamespace

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.arrays import exact_scores, norms_of
from services.corpus.generation import PremiseRecord, Premises
from services.index.catalogue.served import ServedGeneration
from services.index.dense import card, exact
from services.index.dense.batcher import EXCLUDED_AFTERWARDS, SearchBatcher
from services.index.dense.exact import FlatIndex, Int8Proposer, Proposal
from services.index.values import ALL, Selection
from services.onnx_devices import CPU, Placement
from support.worlds.index_world import brute_force, unit


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


def on_card(matrix: NDArray[np.floating]) -> card.CardProposer:
    """Proposes as a card does, by the same model on this processor."""
    proposer = card.Card(Placement([CPU])).load(matrix, float(norms_of(matrix).max()))
    assert proposer is not None
    return proposer


def served_of(matrix: NDArray[np.float32]) -> ServedGeneration:
    premises = Premises.of(PremiseRecord(f"p{n}", f"text {n}") for n in range(len(matrix)))
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
    together = exact_scores(rows, query)
    alone = np.concatenate([exact_scores(rows[n : n + 1], query) for n in range(len(rows))])
    assert together.tobytes() == alone.tobytes()
    pairs = np.concatenate([exact_scores(rows[n : n + 2], query) for n in range(0, 256, 2)])
    assert together[:256].tobytes() == pairs.tobytes() == exact_scores(rows[:256], query).tobytes()


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


@pytest.mark.parametrize("excluded", [3, EXCLUDED_AFTERWARDS + 1])
async def test_excluded_premises_leave_the_rest_exact_and_a_few_share_a_scan(batcher: SearchBatcher, excluded: int):
    matrix = crowded(1000)
    served = served_of(matrix)
    nearest = [brute_force(matrix, query, 1000)[0].tolist() for query in matrix[:12]]
    near_and_far = [(*own[: 2 * excluded - 2 : 2], own[-1]) for own in nearest]
    selections = [Selection(excluded=frozenset(own)) for own in near_and_far]
    outcomes = await asyncio.gather(
        *(batcher.search(served, matrix[n : n + 1], 20, selection) for n, selection in enumerate(selections))
    )
    for query, selection, outcome in zip(matrix, selections, outcomes, strict=False):
        assert_same(outcome[0], brute_force(matrix, query, 20, served.allowed(selection)))
    assert (batcher.batches == 1) == (excluded <= EXCLUDED_AFTERWARDS)


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


def test_no_candidate_is_left_out_that_can_be_among_the_best_and_the_others_are_not_scored() -> None:
    scores = np.array([[0.9, 0.8, 0.7, 0.5, 0.49], [0.9, 0.9, 0.9, 0.9, 0.2]], dtype=np.float32)
    proposed = Proposal(np.arange(10).reshape(2, 5), scores, error=np.array([0.1, 0.0]))
    assert proposed.possible(2).tolist() == [[True, True, True, False, False], [True, True, True, True, False]]


def test_candidates_within_the_error_are_scored_and_ties_still_go_to_the_lower_ordinal() -> None:
    matrix, scored = crowded(), []

    class Wrong:
        """Proposes by products that are wrong by up to `error`, in the order of the wrong ones."""

        up_to, on_card = 100, False

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


SMALL = {"SCAN_ROWS": 9, "SLACK": 2, "WIDEST": 40, "BLOCK_ROWS": 16, "CACHED_ROWS": 8}
SMALLER = {"SCAN_UP_TO": 2, "CODED_ROWS": 7, "CONSTANT_BYTES": 120, "SCORES_AT_ONCE": 100}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("coarse", ["", "codes", "card"])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_asked_equals_a_brute_force_to_the_bit(
    monkeypatch: pytest.MonkeyPatch, seed: int, coarse: str, dtype: type
) -> None:
    monkeypatch.setattr(Int8Proposer, "up_to", 6)
    for name, value in {**SMALL, **SMALLER}.items():
        monkeypatch.setattr(exact, name, value)
    for name, value in {"PART_ROWS": 37, "QUERIES_AT_ONCE": 4}.items():
        monkeypatch.setattr(card, name, value)
    rng = np.random.default_rng(seed)
    matrix = rng.choice([-2.0, -1.0, 0.0, 1.0, 1.001], size=(90, 5)).astype(dtype)
    matrix[rng.integers(0, 90, 20)] = matrix[rng.integers(0, 90, 20)]  # ties
    matrix[:3] = 0
    matrix *= np.array([1, 1, 3], dtype)[np.arange(90) % 3][:, None]
    index = FlatIndex(matrix)
    if coarse:
        index.coarse = Int8Proposer(matrix) if coarse == "codes" else on_card(matrix)
    assert index.vectors is matrix, "float16, too, is searched where it lies"
    assert index.largest_norm == pytest.approx(np.linalg.norm(matrix.astype(float), axis=1).max())
    queries = np.concatenate([rng.choice([-1.0, 0.0, 1.0], size=(3, 5)), rng.normal(size=(3, 5))]).astype(np.float32)
    masks = [None, *(rng.random(90) < share for share in (0.0, 0.05, 0.5, 0.95))]
    for k in (0, 1, 5, 7, 38, 60, 90, 200):
        for allowed in masks:
            for rows in (1, 6):
                found = index.nearest(queries[:rows], k, allowed)
                (*pauses, scanned) = index.scan(queries[:rows], k, allowed, 25)
                assert pauses == [None] * 3
                assert len(found) == len(scanned or ()) == rows
                for one in (found, scanned or ()):
                    for query, hits in zip(queries, one, strict=False):
                        assert_same(hits, brute_force(matrix, query, k, allowed))
                        assert hits.exact


@pytest.mark.parametrize(
    ("rows", "scan_rows", "allowed", "k", "asked"),
    [
        (90, 9, None, 5, ["coarse"]),
        (90, 9, 50, 5, ["coarse"]),
        (90, 9, 9, 5, ["alone"]),
        (90, 9, 10, 5, ["fine"]),  # the coarse one would give all
        (90, 90, 50, 5, ["coarse"]),  # as many as there are: nothing to save
        (90, 9, None, 6, ["coarse"]),
        (90, 9, None, 7, ["fine"]),
        (8, 9, None, 8, []),
    ],
)
def test_whoever_costs_least_is_asked(
    monkeypatch: pytest.MonkeyPatch, rows: int, scan_rows: int, allowed: int | None, k: int, asked: list[str]
) -> None:
    monkeypatch.setattr(Int8Proposer, "up_to", 6)
    for name, value in {**SMALL, "SCAN_ROWS": scan_rows}.items():
        monkeypatch.setattr(exact, name, value)
    matrix, seen = crowded(3000)[:rows], list[str]()
    index = FlatIndex(matrix, coarse=Int8Proposer(matrix))

    def noted(of: object, method: str, name: str) -> None:
        call = getattr(of, method)
        setattr(of, method, lambda *given: seen.append(name) or call(*given))

    noted(index.coarse, "propose", "coarse")
    noted(index._fine, "propose", "fine")
    noted(index, "nearest_among", "alone")
    index.nearest(matrix[:1], k, None if allowed is None else np.arange(rows) < allowed)
    assert seen[:1] == asked


@pytest.mark.parametrize(("queries", "threshold"), [(1, 2**31 - 1), (12, 2**31 - 1), (13, 1), (40, 1)])
def test_faiss_scans_for_few_queries_and_multiplies_matrices_for_many(queries: int, threshold: int) -> None:
    matrix = crowded(600)
    exact.FaissProposer(matrix, 1.0).propose(matrix[:queries], 5, None)
    assert faiss.cvar.distance_compute_blas_threshold == threshold


@pytest.mark.parametrize(
    ("at_once", "sizes"), [(100, [1] * 7), (1200, [2, 2, 2, 1]), (1799, [2, 2, 2, 1]), (10**6, [7])]
)
def test_no_more_queries_are_multiplied_at_once_than_the_memory_is_meant_to_hold(
    monkeypatch: pytest.MonkeyPatch, at_once: int, sizes: list[int]
) -> None:
    matrix, asked = crowded(3000)[:600], list[int]()
    monkeypatch.setattr(exact, "SCORES_AT_ONCE", at_once)
    proposer = Int8Proposer(matrix)
    (session,) = proposer._sessions
    noted = lambda names, feeds: asked.append(len(feeds["queries"])) or session.run(names, feeds)  # noqa: E731
    monkeypatch.setattr(proposer, "_sessions", [SimpleNamespace(run=noted)])
    assert proposer.propose(matrix[:7], 5, None).ordinals.shape == (7, 5)
    assert asked == sizes


def test_integers_are_multiplied_in_the_thread_that_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    options, session = [], exact.ort.InferenceSession
    monkeypatch.setattr(
        exact.ort,
        "InferenceSession",
        lambda model, given, **more: options.append(given) or session(model, given, **more),
    )
    Int8Proposer(crowded(600))
    assert [(one.intra_op_num_threads, one.inter_op_num_threads) for one in options] == [(1, 1)]


def test_the_error_of_a_proposer_bounds_its_error_and_its_ceiling_all_others() -> None:
    rng = np.random.default_rng(3)
    for scale in (1.0, 1e-3, 50.0):
        matrix = (rng.normal(size=(200, 24)) * scale * rng.random((200, 1))).astype(np.float32)
        queries = np.concatenate([rng.normal(size=(8, 24)), matrix[:4] / scale]).astype(np.float32)
        products = queries.astype(np.float64) @ matrix.T.astype(np.float64)
        proposers = [Int8Proposer(matrix), on_card(matrix), exact.FaissProposer(matrix, float(norms_of(matrix).max()))]
        proposers.append(exact.FaissProposer(matrix.astype(np.float16), float(norms_of(matrix).max() * 1.001)))
        for proposer, largest in zip(proposers, (0.03, 2e-3, 1e-5, None), strict=True):
            for allowed in (None, rng.random(200) < 0.5):
                found = proposer.propose(queries, 20, allowed)
                if largest is not None:
                    assert (
                        np.abs(np.take_along_axis(products, found.ordinals, 1) - found.scores) <= found.error[:, None]
                    ).all()
                    assert (found.error <= largest * np.linalg.norm(queries, axis=1) * norms_of(matrix).max()).all()
                assert (np.diff(found.scores, axis=1) <= 0).all()
                for row, ordinals in enumerate(found.ordinals):
                    outside = np.setdiff1d(np.arange(200) if allowed is None else np.flatnonzero(allowed), ordinals)
                    assert len(set(ordinals.tolist())) == 20
                    if largest is not None:
                        assert products[row, outside].max() <= found.ceiling[row]
                    assert allowed is None or allowed[ordinals].all()


def test_a_row_is_out_of_reach_only_where_it_cannot_tie() -> None:
    last = np.float32([0.5, -0.5, 1e-30, 0])
    under = np.nextafter(last, np.float32(-np.inf))
    below = np.nextafter(under.astype(np.float64), -np.inf)
    assert not exact.is_out_of_reach(last.astype(np.float64), last).any()
    assert not exact.is_out_of_reach(under.astype(np.float64), last).any()
    assert exact.is_out_of_reach(below, last).all()


def test_blocks_of_codes_are_whole_and_none_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "CONSTANT_BYTES", 100)
    for rows, dim, blocks in ((10, 10, 1), (11, 10, 2), (1, 3, 1), (99, 7, 7), (100, 7, 7), (101, 7, 8)):
        parts = exact.parts_of(rows, dim)
        assert len(parts) == blocks
        assert [row for part in parts for row in range(part.start, part.stop)] == list(range(rows))
        assert all(0 < part.stop - part.start <= 100 // dim + 1 for part in parts)
