"""How far an oracle agrees with gold trees: the counts, the figures made of them, and the tasks."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from aeenc import errors
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, Candidate, Oracle, Task, Verdict
from aeenc.oracles.agreement import GoldAgreement, GoldTask, agreement_with_gold, gold_tasks
from aeenc.trees import Dataset

SAMPLE = Path(__file__).resolve().parents[2] / "data" / "sample"


def test_tasks_hold_all_gold_among_the_premises_that_share_most_words_and_are_the_same_for_a_seed() -> None:
    dataset = Dataset.load(SAMPLE)
    gold = {query.text: set(query.gold) for query in dataset.queries("dev")}
    tasks = gold_tasks(dataset, "dev", count=20, candidates=6, seed=3)
    assert tasks == gold_tasks(dataset, "dev", count=20, candidates=6, seed=3)
    assert tasks != gold_tasks(dataset, "dev", count=20, candidates=6, seed=4)
    shared = 0
    for one in tasks:
        shown = {candidate.id: candidate.text for candidate in one.task.candidates}
        assert len(shown) == 6
        assert {shown[premise_id] for premise_id in one.gold} == gold[one.task.query]
        about = set(" ".join([one.task.query, *gold[one.task.query]]).split())
        shared += sum(bool(about & set(text.split())) for text in shown.values())
    assert shared == 20 * 6
    with pytest.raises(errors.NotFound, match="nowhere"):
        gold_tasks(dataset, "nowhere", count=1)
    with pytest.raises(errors.InvalidArgument, match="candidates"):
        gold_tasks(dataset, "dev", count=1, candidates=1)
    nothing_fits = Dataset(SAMPLE, {}, {"dev": [tree for tree in dataset.trees("dev") if len(tree.steps) == 1][:1]})
    with pytest.raises(errors.InvalidArgument, match=r"split 'dev' has under 2 gold premises; .* another split"):
        gold_tasks(nothing_fits, "dev", count=1, candidates=2)


async def test_verdicts_are_counted_by_the_golds() -> None:
    from statsmodels.stats.inter_rater import cohens_kappa

    class ByName(Oracle):
        def judge(self, task: Task) -> dict[str, Verdict]:
            says = {"y": EXPLAINS, "n": REFUSES, "a": ABSTAINS}
            return {c.id: Verdict(says[c.id[0]]) for c in task.candidates}

    ids = ["y1", "y2", "n1", "n2", "n3", "a1", "a2"]
    task = Task("t", "", "q", (), (), tuple(Candidate(name, name, 1, 0.0) for name in ids))
    found = await agreement_with_gold(ByName(), [GoldTask(task, frozenset({"y1", "n1", "a1"}))] * 2)
    assert found == GoldAgreement(2, 2, 2, 2, 4, 2, 2)
    assert (found.precision, found.recall, found.wrong_refusals) == pytest.approx((1 / 2, 1 / 3, 1 / 3))
    assert found.decided == pytest.approx(5 / 7)
    assert found.kappa == pytest.approx(float(cohens_kappa(np.array([[2, 2], [2, 4]])).kappa))
    nothing = GoldAgreement(0, 0, 0, 0, 0, 0, 0)
    assert math.isnan(nothing.precision)
    assert math.isnan(nothing.kappa)
