"""Answer selection by analogy: prototypes, scores, and metrics beside those of trec_eval and of a plain loop."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aeenc.errors import InvalidArgument
from aeenc.evaluation import (
    Question,
    analogy_scores,
    answer_ranks,
    draw_prototypes,
    selection_metrics,
    shifts,
)

QUESTIONS = [
    Question(f"{name} {n}", name, {f"right {name} {n}": True, "wrong": False})
    for name in ("who", "when", "")
    for n in range(12)
]


def test_prototypes_are_right_pairs_of_each_class_drawn_by_the_seed():
    drawn = draw_prototypes(QUESTIONS, 5)
    assert list(drawn) == ["who", "when"]
    for name, pairs in drawn.items():
        assert len(set(pairs)) == 5
        assert all(answer == f"right {question}" and question.startswith(name) for question, answer in pairs)
    assert draw_prototypes(QUESTIONS, 5) == drawn != draw_prototypes(QUESTIONS, 5, seed=1)
    assert all(len(pairs) == 12 for pairs in draw_prototypes(QUESTIONS, 50).values())
    assert draw_prototypes([Question("who", "who", {"wrong": False})], 5) == {}
    with pytest.raises(InvalidArgument, match="most must be 1 or more, got 0"):
        draw_prototypes(QUESTIONS, 0)


def test_scores_are_those_of_a_plain_loop():
    draw = np.random.default_rng(0)
    known, answers = draw.normal(size=(2, 7, 5))
    question, candidates = draw.normal(size=5), draw.normal(size=(4, 5))
    found = analogy_scores(shifts(known, answers), question.astype(np.float32), candidates.astype(np.float32))
    for score, candidate in zip(found, candidates, strict=True):
        best = -1.0
        for a, b in zip(known, answers, strict=True):
            one, other = a - b, question - candidate
            dot = math.fsum(one * other)
            best = max(best, dot / math.sqrt(math.fsum(one * one)) / math.sqrt(math.fsum(other * other)))
        assert score == pytest.approx(best, abs=1e-6)


def test_a_candidate_that_is_the_question_has_no_direction():
    prototypes = shifts(np.eye(3)[:1], np.eye(3)[1:2])
    assert analogy_scores(prototypes, np.eye(3)[0], np.eye(3)).tolist() == pytest.approx([0, 1, 0.5])
    with pytest.raises(InvalidArgument, match="no prototype"):
        analogy_scores(prototypes[:0], np.eye(3)[0], np.eye(3))


def test_of_equal_scores_wrong_candidates_come_first():
    assert answer_ranks(np.array([0.5, 0.5, 0.9, 0.1]), [True, False, False, True]).tolist() == [3, 4]


def test_map_and_mrr_are_those_of_trec_eval():
    import ir_measures
    from ir_measures import AP, RR, Qrel, ScoredDoc

    draw = np.random.default_rng(0)
    qrels, run, ranks = [], [], []
    for q in range(200):
        scores = draw.permutation(20)[: int(draw.integers(1, 20))].astype(float)
        right = draw.random(len(scores)) < 0.3
        right[0] = True
        qrels += [Qrel(f"q{q}", f"d{d}", int(one)) for d, one in enumerate(right)]
        run += [ScoredDoc(f"q{q}", f"d{d}", score) for d, score in enumerate(scores)]
        ranks.append(answer_ranks(scores, right.tolist()))
    theirs = ir_measures.calc_aggregate([AP, RR], qrels, run)
    found = selection_metrics(ranks)
    assert (found.map, found.mrr) == pytest.approx((theirs[AP], theirs[RR]), abs=1e-9)
    assert found.questions == 200
    for wrong in ([], [*ranks, np.array([], dtype=np.int64)]):
        with pytest.raises(InvalidArgument, match="no right candidate"):
            selection_metrics(wrong)
