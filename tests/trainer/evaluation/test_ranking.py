"""Ranks counted in blocks of premises are those of a full sort, ties and float16 included."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray

from services.corpus.arrays import exact_scores
from services.trainer.evaluation import ranking
from services.trainer.evaluation.ranking import gold_ranks, nearest, ranks_in, ranks_without

RNG = np.random.default_rng(3)
QUERIES, PREMISES, DIM = 9, 50, 8


def unit(*shape: int) -> NDArray[np.float32]:
    drawn = RNG.standard_normal(shape)
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def sorted_ranks(
    query: NDArray[np.float32], premises: NDArray[np.float32], gold: list[int], own: int | None
) -> list[int]:
    scores = exact_scores(premises, query.astype(np.float64))
    order = [n for n in np.lexsort((np.arange(len(scores)), -scores)).tolist() if n != own]
    return [order.index(one) + 1 for one in gold]


@pytest.mark.parametrize("block", [1, 7, 4096])
@pytest.mark.parametrize("stored", [np.float32, np.float16])
def test_ranks_in_blocks_are_those_of_a_full_sort(monkeypatch: pytest.MonkeyPatch, block: int, stored: type) -> None:
    monkeypatch.setattr(ranking, "BLOCK_PREMISES", block)
    monkeypatch.setattr(ranking, "BLOCK_QUERIES", 4)
    queries, premises = unit(QUERIES, DIM), unit(PREMISES, DIM).astype(stored)
    premises[[30, 49]] = premises[4]  # equal rows tie, also across blocks
    whole = premises.astype(np.float32)
    gold = [np.array([4, 30, 49, n]) for n in range(5, 5 + QUERIES)]
    owns = [None, 30, *range(7)]  # a gold one, and others
    kept = [ordinals[ordinals != (-1 if own is None else own)] for ordinals, own in zip(gold, owns, strict=True)]
    paper = gold_ranks(queries, premises, gold)
    for n, own in enumerate(owns):
        assert paper[n].tolist() == sorted_ranks(queries[n], whole, gold[n].tolist(), None)
        strict = ranks_without(paper[n], gold[n], own, queries[n], premises)
        assert strict.tolist() == sorted_ranks(queries[n], whole, kept[n].tolist(), own)


@pytest.mark.parametrize("block", [1, 7, 4096])
@pytest.mark.parametrize("stored", [np.float32, np.float16])
@pytest.mark.parametrize("dropped", [[n if n % 2 else None for n in range(QUERIES)], [30] * QUERIES, ()])
def test_the_nearest_premises_are_those_of_a_full_sort_without_the_one_that_is_dropped(
    monkeypatch: pytest.MonkeyPatch, block: int, stored: type, dropped: list[int | None]
) -> None:
    monkeypatch.setattr(ranking, "BLOCK_PREMISES", block)
    monkeypatch.setattr(ranking, "BLOCK_QUERIES", 4)
    queries, premises = unit(QUERIES, DIM), unit(PREMISES, DIM).astype(stored)
    premises[25:] = premises[:25]  # ties go to the premise inserted first, also at the edge and across blocks
    whole = premises.astype(np.float32)
    for k in (1, 21, PREMISES - bool(dropped), 99):
        ordinals, scores = nearest(queries, premises, k, dropped)
        for n, query in enumerate(queries):
            exact = exact_scores(whole, query.astype(np.float64))
            order = np.lexsort((np.arange(PREMISES), -exact)).tolist()
            expected = [one for one in order if not dropped or one != dropped[n]][: ordinals.shape[1]]
            assert ordinals[n].tolist() == expected
            assert scores[n].tolist() == exact[expected].tolist()
    assert nearest(queries, premises[:1], 20, [0] * QUERIES)[0].shape == (QUERIES, 0)


@pytest.mark.parametrize("ranked", ["nearest", "gold"])
def test_a_ranking_never_holds_the_scores_of_all_premises(ranked: str) -> None:
    queries, premises = unit(128, 4), unit(200_000, 4)
    tracemalloc.start()
    try:
        if ranked == "nearest":
            nearest(queries, premises, 25)
        else:
            gold_ranks(queries, premises, [np.arange(2)] * len(queries))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(queries) * len(premises), "bytes: half of their scores"


def test_ranks_in_a_list_count_from_1_and_what_it_lacks_is_beyond():
    gold = np.array([4, 7, 9])
    assert ranks_in(gold, np.array([7, 5, 4]), 100).tolist() == [3, 1, 100]
    assert ranks_in(gold, np.array([], dtype=np.int64), 100).tolist() == [100, 100, 100]
