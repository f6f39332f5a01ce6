"""Integer codes as proposers: no row left out may score above the ceiling, and the search stays exact to the bit."""

import numpy as np
import pytest
from numpy.typing import NDArray

from services.index.dense import exact as codes
from services.index.dense.exact import Int8Proposer, Proposal
from support.worlds.index_world import unit

DIM = 384


def spread(rows: int, seed: int) -> NDArray[np.float32]:
    return unit(np.random.default_rng(seed).normal(size=(rows, DIM)))


def awkward() -> NDArray[np.float32]:
    """Rows that are hard to round: one large number among small ones, all alike, zero, short, long."""
    matrix = spread(1200, 1).astype(np.float64)
    matrix[:100] *= 0.01
    matrix[np.arange(100), np.arange(100)] = 1.0
    matrix[100:150] = np.where(np.arange(DIM) % 2, 1, -1) / np.sqrt(DIM)
    matrix[150] = 1 / np.sqrt(DIM)
    matrix[151] = 0.0
    matrix[152:160] *= 1e-6
    matrix[160:168] *= 1.009
    return matrix.astype(np.float32)


def left_out(matrix: NDArray[np.float32], queries: NDArray[np.float32], proposed: Proposal) -> NDArray[np.float64]:
    """The best exact score (n,) among the rows not proposed."""
    scores = queries.astype(np.float64) @ matrix.astype(np.float64).T
    np.put_along_axis(scores, proposed.ordinals, -np.inf, axis=1)
    best: NDArray[np.float64] = scores.max(axis=1)
    return best


@pytest.mark.parametrize("storage", [np.float32, np.float16])
def test_no_row_left_out_scores_above_the_ceiling(storage: type):
    matrix = awkward().astype(storage)
    queries = np.concatenate([spread(40, 2), awkward()[::20], -awkward()[150:151]])
    proposed = Int8Proposer(matrix).propose(queries, 50, None)
    best = left_out(matrix, queries, proposed)
    assert (best <= proposed.ceiling).all()
    assert np.median(proposed.ceiling - best) < 0.1  # a ceiling that says nothing would hold, too


def among_rows_scored_like(
    query: NDArray[np.float32], row: NDArray[np.float64], score: float
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """A matrix with `row` last, 100 rows that score a little over `score`, and others far below; what is left out."""
    noise = np.random.default_rng(7).normal(size=(1000, DIM))
    noise -= np.outer(noise @ query, query)
    share = np.where(np.arange(1000) < 100, score + 0.015, -0.5)[:, None]
    matrix = unit(share * query + np.sqrt(1 - share**2) * unit(noise))
    matrix = np.concatenate([matrix, row[None].astype(np.float32)])
    proposed = Int8Proposer(matrix).propose(query[None], 100, None)
    assert 1000 not in proposed.ordinals
    return proposed.ceiling, left_out(matrix, query[None], proposed)


def test_the_ceiling_holds_for_a_row_in_the_direction_of_the_querys_rounding_error():
    query = spread(1, 8)[0]
    query[0] = 0.9
    query = unit(query[None])[0]
    step = np.abs(query).max() / codes.LARGEST_QUERY
    rounded = np.rint(query / step) * step
    row = (query - rounded) / np.linalg.norm(query - rounded)
    ceiling, best = among_rows_scored_like(query, row, float(rounded @ row))
    assert best == pytest.approx(rounded @ row + np.linalg.norm(query - rounded), abs=1e-6)
    assert best <= ceiling


def test_the_ceiling_holds_for_a_row_whose_rounding_error_points_to_the_query():
    query = spread(1, 9)[0]
    row = np.sign(query) * 0.49 / 127
    row[0] = 1.0
    ceiling, best = among_rows_scored_like(query, row / np.linalg.norm(row), float(query[0]))
    assert best > query[0] + 0.03
    assert best <= ceiling


def test_the_largest_products_there_are_do_not_overflow():
    matrix = np.full((1000, DIM), 1 / np.sqrt(DIM), dtype=np.float32)
    matrix[500:] *= -1
    proposed = Int8Proposer(matrix).propose(matrix[[0, 999]], 400, None)
    assert (proposed.ordinals[0] < 500).all()
    assert (proposed.ordinals[1] >= 500).all()
    assert proposed.ceiling == pytest.approx([1.0, 1.0], abs=0.05)
