"""From another system's candidates to final lists: those of a brute force in float64, however rough its products."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from aeenc import errors
from services.index.dense.approximate import REMOTE_SLACK, RemoteIndex
from services.index.dense.exact import FlatIndex
from services.index.values import ALL, SearchParams
from support.worlds.index_world import brute_force, unit


class Rough:
    """A system that computes in float32, breaks ties as it likes, and gives at most `most`."""

    def __init__(self, matrix: Any, *, exact: bool = True, most: int = 16_384) -> None:
        self.exact, self.most, self.threads = exact, most, ThreadPoolExecutor(1)
        self.matrix, self.asked = matrix, []

    def propose(self, queries, width, _selection, breadth):
        self.asked.append((len(queries), width, breadth))
        for query in queries:
            raw = self.matrix @ query
            order = np.argsort(-raw, kind="quicksort")[:width]
            yield order.astype(np.int64), raw[order]


def crowded(rows, dim=33):
    """Many equal rows, and many that differ in the last bit only, in any order."""
    rng = np.random.default_rng(7)
    matrix = unit(rng.normal(size=(rows, dim)))
    matrix[: rows // 2] = matrix[0]
    near = np.arange(rows // 2, rows * 3 // 4)
    matrix[near] = matrix[0]
    flips = rng.integers(0, dim, size=len(near))
    matrix[near, flips] = np.nextafter(matrix[near, flips], np.float32(2))
    return matrix[rng.permutation(rows)], matrix[0]


def lone(count, dim=33):
    return unit(np.random.default_rng(1).normal(size=(count, dim)))


def hits_of(rough, queries, k, **params):
    *pauses, hits = RemoteIndex(FlatIndex(rough.matrix), rough).steps(queries, k, ALL, SearchParams(**params))
    assert pauses == [None] * (len(rough.asked) - 1), "a caller who has left is noticed between two questions"
    return hits


@pytest.mark.parametrize("k", [1, 5, 300, 2000, 3000])
def test_lists_are_those_of_a_brute_force_in_float64(k):
    matrix, query = crowded(2000)
    queries = np.stack([query, lone(1)[0]])
    for hits, asked in zip(hits_of(Rough(matrix), queries, k), queries, strict=True):
        order, scores = brute_force(matrix, asked, k)
        assert hits.exact
        assert hits.ordinals.tolist() == order.tolist()
        assert hits.scores.tobytes() == scores.tobytes()


def test_only_queries_that_need_it_are_asked_again_each_time_for_four_times_as_many():
    matrix, query = crowded(2000)
    rough = Rough(matrix)
    assert all(hits.exact for hits in hits_of(rough, np.stack([query, *lone(3)]), 5))
    first = 5 + REMOTE_SLACK
    assert rough.asked == [(4, first, 0), *((1, first * 4**n, 0) for n in range(1, 5))]


def test_more_ties_than_the_system_gives_are_said_to_be_inexact():
    rough = Rough(np.repeat(lone(1), 600, axis=0), most=500)
    [hits] = hits_of(rough, lone(1), 5)
    assert ([width for _, width, _ in rough.asked], hits.exact, len(hits.ordinals)) == ([13, 52, 208, 500], False, 5)
    [hits] = hits_of(Rough(lone(600), most=500), lone(1), 550)
    assert (hits.exact, len(hits.ordinals)) == (False, 500)


def test_an_approximate_system_is_asked_once_and_refuses_to_be_exact():
    matrix, query = crowded(2000)
    rough = Rough(matrix, exact=False)
    hits = hits_of(rough, query[None], 5, ef_search=64)
    assert (rough.asked, hits[0].exact) == ([(1, 5 + REMOTE_SLACK, 64)], False)
    with pytest.raises(errors.Unimplemented, match=r"params\.exact"):
        hits_of(rough, query[None], 5, exact=True)
    [few] = hits_of(Rough(matrix[:3], exact=False), query[None], 5)
    assert (few.exact, len(few.ordinals)) == (False, 3)


def test_ordinals_of_no_premise_are_left_out():
    matrix = lone(50)
    flat = FlatIndex(matrix[:40])
    *_, hits = RemoteIndex(flat, Rough(matrix)).steps(matrix[45:46], 5, ALL)
    assert hits[0].ordinals.max() < 40
