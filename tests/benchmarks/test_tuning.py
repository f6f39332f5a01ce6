"""Choosing how to retrieve: what is tried, and that the best of it is kept."""

from __future__ import annotations

from aeenc import Retrieval, errors
from benchmarks.trainer.tuning import RERANK_WEIGHTS, RERANKS, described, tune


class Running:
    """Evaluates by what a test says of a way to retrieve."""

    def __init__(self, score) -> None:
        self._score = score

    def evaluate(self, split, *, version, retrieval, strict_only):
        return {"strict": {"MAP": self._score(retrieval)}}


def tuned_by(score):
    told = []
    best = tune(Running(score), "dev", "q1", lambda way, _: told.append(way))
    return best.retrieval, told


def test_re_ranking_is_tried_alone_and_with_each_weight_and_the_best_is_kept():
    best, told = tuned_by(lambda one: 0.6 if (one.rerank, one.rerank_weight) == (50, 0.2) else 0.5)
    assert best == Retrieval("dense", rerank=50, rerank_weight=0.2)
    assert described(best) == "dense, re-rank 50 weight 0.2"
    ways = [f"dense, re-rank {n}" for n in RERANKS]
    ways += [f"dense, re-rank {n} weight {weight:g}" for n in (20, 50) for weight in RERANK_WEIGHTS]
    assert [one for one in told if "re-rank" in one] == ways


def test_re_ranking_by_the_cross_encoder_alone_is_kept_where_no_weight_is_better():
    best, _ = tuned_by(lambda one: 0.6 if one.rerank == 20 else 0.5)
    assert best == Retrieval("dense", rerank=20)


def test_without_a_cross_encoder_the_best_of_before_is_kept():
    def score(one):
        if one.rerank:
            raise errors.Unimplemented("no cross-encoder")
        return 0.5

    best, told = tuned_by(score)
    assert (best, told[-1]) == (Retrieval("dense"), "re-ranking: no cross-encoder is served")
