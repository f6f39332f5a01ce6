"""Graded metrics: linear gain against trec_eval, everything else against brute force; graded qrels; `aeenc compare`."""

from __future__ import annotations

import json
import math
from itertools import permutations
from pathlib import Path

import ir_measures
import numpy as np
import pytest
from ir_measures import Qrel, ScoredDoc, nDCG
from typer.testing import CliRunner

from aeenc.cli.main import app
from aeenc.errors import InvalidArgument
from aeenc.evaluation import (
    UNRANKED,
    Gain,
    graded_ndcg,
    is_graded,
    oracle_ndcg,
    query_id,
    ranks_of,
    read_grades,
    recall_by_grade,
    write_qrels,
    write_run,
)

RANKINGS = 300
LOGARITHMS = np.log2(np.arange(100 + 10**6) + 2)


def rated(seed: int, count: int, most: int = 40):
    """Draws ranks and grades, 0 to 6, of rated premises; some have no rank. One grade at least is above 0."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        n = int(generator.integers(1, most + 1))
        grades = [float(grade) for grade in generator.integers(0, 7, size=n)]
        grades[0] = max(grades[0], 1.0)
        ranks = [int(rank) for rank in generator.permutation(100)[:n] + 1]
        yield [UNRANKED if generator.random() < 0.2 else rank for rank in ranks], grades


def test_linear_gain_is_that_of_trec_eval():
    drawn = list(rated(1, RANKINGS))
    qrels = [Qrel(f"q{n}", f"d{d}", int(g)) for n, (_, grades) in enumerate(drawn) for d, g in enumerate(grades)]
    run = []
    for n, (ranks, _) in enumerate(drawn):
        name = {rank: f"d{d}" for d, rank in enumerate(ranks) if rank < UNRANKED}
        run += [ScoredDoc(f"q{n}", name.get(rank, f"other{rank}"), 1000.0 - rank) for rank in range(1, 101)]
    measures = {nDCG: None, nDCG @ 10: 10, nDCG @ 50: 50}
    theirs = {(m.measure, m.query_id): m.value for m in ir_measures.iter_calc(list(measures), qrels, run)}
    assert len(theirs) == 3 * RANKINGS
    for measure, k in measures.items():
        for n, (ranks, grades) in enumerate(drawn):
            assert graded_ndcg(ranks, grades, k=k) == pytest.approx(theirs[measure, f"q{n}"], abs=1e-9)


def brute(gains, gain_by_rank):
    """The gain of a list over the greatest gain of any order, all orders tried."""

    def discounted(places):
        return math.fsum(own / math.log2(rank + 1) for rank, own in places)

    return discounted(gain_by_rank) / max(discounted(enumerate(order, 1)) for order in permutations(gains))


@pytest.mark.parametrize("gain", list(Gain))
def test_gains_and_the_oracle_are_exactly_those_of_all_orders_tried(gain: Gain):
    for ranks, grades in rated(2, RANKINGS, most=5):
        gains = [g if gain is Gain.LINEAR else 2**g - 1 for g in grades]
        lacked = 10**6 if gain is Gain.TEXTGRAPHS else UNRANKED

        def counted(pairs, lacked=lacked):
            places = [(min(rank, lacked), own) for rank, own in pairs]
            return [one for one in places if one[0] < UNRANKED]

        found = [*zip(ranks, gains, strict=True)]
        assert graded_ndcg(ranks, grades, gain) == brute(gains, counted(found))
        held = [own for rank, own in found if rank <= 50]
        beyond = [(UNRANKED, own) for rank, own in found if rank > 50]
        ceiling = max(brute(gains, counted([*enumerate(order, 1), *beyond])) for order in permutations(held))
        assert oracle_ndcg(ranks, grades, gain, length=50) == ceiling


def test_the_measure_of_textgraphs_is_the_tasks_formula_and_its_scorer_to_six_digits():
    for ranks, grades in rated(4, 40):
        gains = 2.0 ** np.array(grades) - 1
        places = np.where(np.array(ranks) == UNRANKED, 10**6, ranks)
        ideal = (np.sort(gains)[::-1] / np.log2(np.arange(len(gains)) + 2)).sum()
        found = graded_ndcg(ranks, grades, Gain.TEXTGRAPHS)
        assert found == pytest.approx((gains / np.log2(places + 1)).sum() / ideal, abs=1e-9)
        scorer = np.zeros(100 + 10**6)  # the list, then a million places, the last of which hold what it lacks
        for lacked, (rank, gain) in enumerate(sorted(zip(ranks, gains, strict=True), reverse=True), 1):
            scorer[-lacked if rank == UNRANKED else rank - 1] = gain
        assert found == pytest.approx((scorer / LOGARITHMS).sum() / ideal, abs=2e-6)


def test_recall_counts_the_pairs_of_a_grade_within_a_length():
    shares = recall_by_grade([[1, 3, UNRANKED], [2, 30, 5]], [[6, 1, 6], [6, 1, 0]], (1, 2, 10))
    assert shares == {6.0: [1 / 3, 2 / 3, 2 / 3], 1.0: [0.0, 0.0, 0.5]}


@pytest.mark.parametrize("grade", [-1.0, math.nan, math.inf, 100.5])
def test_a_grade_outside_the_range_is_refused(grade: float, tmp_path: Path):
    for attempt in (
        lambda: graded_ndcg([1], [grade]),
        lambda: oracle_ndcg([1], [grade]),
        lambda: recall_by_grade([[1]], [[grade]], [1]),
        lambda: write_qrels(tmp_path / "qrels", [("q", {"d": grade})]),
    ):
        with pytest.raises(InvalidArgument, match="between 0 and 100"):
            attempt()


def test_a_query_without_a_relevant_premise_has_no_graded_ndcg():
    with pytest.raises(InvalidArgument, match="leave the query out"):
        graded_ndcg([1, 2], [0.0, 0.0])


def test_grades_are_read_as_they_were_written(tmp_path: Path):
    write_qrels(tmp_path / "qrels", [("one", {"a b": 6, "c": 0.1, "d": 0}), ("none", {"a b": 0}), ("two", ["c"])])
    grades = read_grades(tmp_path / "qrels")
    assert grades == {query_id("one"): {"a%20b": 6.0, "c": 0.1, "d": 0.0}, query_id("two"): {"c": 1.0}}
    assert [is_graded(grades), is_graded({"q": {"a": 1.0, "b": 0.0}})] == [True, False]


def test_junk_of_trec_is_irrelevant_and_an_equal_line_counts_once(tmp_path: Path):
    (tmp_path / "qrels").write_text("q 0 a 2\nq 0 a 2\nq 0 b -2\n")
    assert read_grades(tmp_path / "qrels") == {"q": {"a": 2.0, "b": 0.0}}


def test_compare_shows_graded_metrics_for_graded_qrels_alone(tmp_path: Path):
    first, second, qrels = (tmp_path / name for name in ("first", "second", "qrels"))
    write_run(first, [("q", [("b", 3.0), ("x", 2.0), ("a", 1.0)])], "first")
    write_run(second, [("q", [("a", 3.0), ("b", 2.0)])], "second")
    words = ["--json", "compare", str(first), str(second), "--qrels", str(qrels)]
    write_qrels(qrels, [("q", {"a": 6, "b": 1, "x": 0, "c": 2})])
    found = json.loads(CliRunner().invoke(app, words).stdout)
    places, grades = ranks_of({"q": {"a": 1, "b": 2}}, {"q": ["a", "b", "x", "c"]})[0].tolist(), [6, 1, 0, 2]
    assert found["second"]["NDCG linear"] == graded_ndcg(places, grades)
    assert found["second"]["NDCG exponential"] == graded_ndcg(places, grades, Gain.EXPONENTIAL)
    assert found["second"]["NDCG TextGraphs"] == graded_ndcg(places, grades, Gain.TEXTGRAPHS)
    assert found["first"]["oracle NDCG@200 linear"] == found["second"]["oracle NDCG@200 linear"] < 1
    assert found["p"].keys() == found["first"].keys() == found["second"].keys()
    assert found["recall_by_grade"]["first"]["6"] == {"10": 1.0, "25": 1.0, "50": 1.0, "100": 1.0, "200": 1.0}
    assert found["recall_by_grade"]["first"]["2"]["200"] == 0.0
    assert "recall of grade" in CliRunner().invoke(app, words[1:], env={"COLUMNS": "200"}).stdout
    write_qrels(qrels, [("q", ["a", "b", "c"])])
    plain = json.loads(CliRunner().invoke(app, words).stdout)
    assert "NDCG linear" not in plain["first"]
    assert "recall_by_grade" not in plain
