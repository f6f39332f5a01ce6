"""Counts and refusals of evaluations, and the paired test. Figures: tests/aeenc/evaluation, test_parts_and_trees."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aeenc.errors import DataLoss, InvalidArgument
from aeenc.evaluation import (
    average_precision,
    graded_metrics_of,
    hit,
    metrics_of,
    ndcg,
    paired_randomisation_test,
)
from services.trainer.evaluation.protocol import EvaluationQuery, evaluate, merge_queries

RNG = np.random.default_rng(3)


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_a_query_that_is_only_its_own_gold_counts_in_paper_alone():
    premises = unit(RNG.normal(size=(4, 8)))
    ordinals = {f"t{n}": n for n in range(4)}
    queries = [EvaluationQuery("t0", ("t0",)), EvaluationQuery("q", ("t1",))]
    report = evaluate(queries, premises[[0, 1]], premises, ordinals)
    assert (report.strict.map, report.paper.map) == (1.0, 1.0)
    assert len(report.average_precisions) == 1


def test_queries_of_the_same_text_are_merged():
    merged = merge_queries(
        [EvaluationQuery("q", ("a", "b")), EvaluationQuery("r", ("c",)), EvaluationQuery("q", ("b", "d"))]
    )
    assert merged == [EvaluationQuery("q", ("a", "b", "d")), EvaluationQuery("r", ("c",))]
    twice = EvaluationQuery("q", ("a", "b", "a"), (3.0, 2.0, 1.0))
    assert merge_queries([twice]) == [EvaluationQuery("q", ("a", "b"), (3.0, 2.0))], "the higher grade counts"


@pytest.mark.parametrize(
    ("query", "scale", "kind", "told"),
    [
        (EvaluationQuery("q", ("elsewhere",)), 1, InvalidArgument, "build the corpus"),
        (EvaluationQuery("q", ()), 1, InvalidArgument, "leave it out"),
        (EvaluationQuery("t0", ("t0",)), 1, InvalidArgument, "its own text"),
        (EvaluationQuery("q", ("t0",)), np.nan, DataLoss, "not finite"),  # instead of scoring best
    ],
)
def test_what_cannot_be_ranked_is_named(query: EvaluationQuery, scale: float, kind: type[Exception], told: str):
    vectors = unit(RNG.normal(size=(2, 8)))
    with pytest.raises(kind, match=told):
        evaluate([query], vectors[:1] * scale, vectors, {"t0": 0, "t1": 1})


def test_the_paired_test_of_many_queries_needs_no_memory_for_all_signs_at_once():
    tracemalloc.start()
    paired_randomisation_test(np.zeros(100_000), np.ones(100_000), rounds=40)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6  # 40 rounds at once: 100 MB


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ([], [], "0 and 0 queries"),
        ([0.5] * 5, [0.4], "5 and 1 queries"),
        ([0.5, np.nan], [0.4, 0.4], "not finite"),
    ],
)
def test_a_paired_test_of_nothing_or_of_different_queries_is_refused(
    first: list[float], second: list[float], told: str
):
    with pytest.raises(InvalidArgument, match=told):
        paired_randomisation_test(np.array(first), np.array(second))


@pytest.mark.parametrize(
    ("metric", "ranks", "told"),
    [
        (average_precision, np.array([], dtype=np.int64), "no gold premise; leave it out"),
        (ndcg, np.array([], dtype=np.int64), "no gold premise; leave it out"),
        (metrics_of, [np.array([1]), np.array([], dtype=np.int64)], "no gold premise; leave it out"),
        (metrics_of, [], "no queries"),
        (lambda ranks: hit(ranks, 10), [], "no queries"),
        (lambda ranks: graded_metrics_of(ranks, []), [], "no queries"),
    ],
)
def test_nothing_has_no_metric_and_is_named(metric: Callable[[Any], Any], ranks: Any, told: str):
    with pytest.raises(InvalidArgument, match=told):
        metric(ranks)
