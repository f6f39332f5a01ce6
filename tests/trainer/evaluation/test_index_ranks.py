"""Rankings of the index in parts: off the event loop, in bounded memory, and by the same models from first to last."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from aeenc import errors
from aeenc.calls.retrieval import Hit, Rankings, Retrieval
from aeenc.evaluation import UNRANKED
from services.corpus.generation import PremiseRecord, Premises
from services.trainer.evaluation import evaluator
from services.trainer.evaluation.evaluator import Evaluator, IndexRanks

RECORDS = [PremiseRecord(f"p{n}", f"premise {n}", aliases=(f"also {n}",)) for n in range(10)]
TEXTS = [f"t{n}" for n in range(5)]


class Records(Sequence[PremiseRecord]):
    """Premises, and in which threads they were looked up."""

    ordinal_by_id = Premises.of(RECORDS).ordinal_by_id

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def __getitem__(self, ordinal: Any) -> Any:
        self.threads.add(threading.get_ident())
        return RECORDS[ordinal]

    def __len__(self) -> int:
        return len(RECORDS)


class Index:
    """Answers text tN with the premises N, N + 1 and so on; other models answer from a given call on."""

    def __init__(self, changes_at: int = 99, changed: tuple[str, str] = ("q1", "x2")) -> None:
        self.calls: list[dict[str, Any]] = []
        self._changes_at, self._changed = changes_at, changed

    async def rankings(self, corpus: str, texts: Sequence[str], **options: Any) -> Rankings:
        self.calls.append({"corpus": corpus, "texts": list(texts), **options})
        found = [[_hit((int(text[1:]) + n) % 10, n) for n in range(options["k"])] for text in texts]
        encoder, reranker = ("q1", "x1") if len(self.calls) < self._changes_at else self._changed
        return Rankings(found, encoder, (reranker,) if reranker else ())


def _hit(ordinal: int, rank: int) -> Hit:
    return Hit(RECORDS[ordinal].id, RECORDS[ordinal].text, 1.0 - rank / 10)


@pytest.mark.parametrize(("most", "depth"), [(0, 1000), (200, 200), (5000, 1000)])
async def test_rankings_are_no_deeper_than_the_index_allows(most: int, depth: int):
    async def info() -> Any:
        return SimpleNamespace(service=SimpleNamespace(limits=SimpleNamespace(k=most)))

    index: Any = SimpleNamespace(info=info)
    assert await Evaluator(Mock(), Mock(), index, Mock())._depth() == depth


def ranking(index: Index, mode: Any = "dense") -> tuple[IndexRanks, Records]:
    records = Records()
    opened: Any = SimpleNamespace(corpus="c", id="g1", premises=records)
    return IndexRanks(index, opened, Retrieval(mode), "stable", None), records  # type: ignore[arg-type]


async def test_hits_that_the_generation_does_not_know_are_passed_over():
    ranked, _ = ranking(index := Index())
    rankings = index.rankings

    async def of_another_generation(*arguments: Any, **options: Any) -> Rankings:
        found = await rankings(*arguments, **options)
        return Rankings([[Hit("new", "a new premise", 2.0), *hits] for hits in found.results], "q1", ("x1",))

    index.rankings = of_another_generation  # type: ignore[method-assign]
    assert [one.tolist() for one in await ranked.of_gold(["t3"], [np.array([3, 4, 2])], 4)] == [[2, 3, UNRANKED]]


async def test_a_part_is_ranked_at_a_time_and_off_the_event_loop(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluator, "PART", 2)
    index = Index()
    ranked, records = ranking(index)
    gold = [np.array([(n + 1) % 10, n, (n + 7) % 10]) for n in range(5)]
    accepted = [[f"p{n}"] for n in range(5)]
    ranks = await ranked.of_gold(TEXTS, gold, 4, drop_self=False, accepted=accepted)
    assert [one.tolist() for one in ranks] == [[2, 1, UNRANKED]] * 5
    assert [call["texts"] for call in index.calls] == [TEXTS[:2], TEXTS[2:4], TEXTS[4:]]
    assert [call["accepted"] for call in index.calls] == [accepted[:2], accepted[2:4], accepted[4:]]
    assert {(call["generation"], call["drop_self"]) for call in index.calls} == {("g1", False)}
    assert threading.get_ident() not in records.threads


async def test_all_parts_are_by_the_version_that_answered_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluator, "PART", 2)
    index = Index()
    ranked, _ = ranking(index)
    await ranked.of_gold(TEXTS, [np.array([0])] * 5, 4)
    await ranked.scored(TEXTS, 3)
    assert await ranked.ids(TEXTS, 2) == {f"t{n}": [f"p{n}", f"p{n + 1}"] for n in range(5)}
    assert [(call["label"], call["version"]) for call in index.calls] == [("stable", None)] + [(None, "q1")] * 8
    assert (ranked.model_version, ranked.rerank_versions) == ("q1", ("x1",))


@pytest.mark.parametrize(
    ("changed", "said"), [(("q1", "x2"), "q1 and x2"), (("q2", "x1"), "q2 and x1"), (("", ""), "none")]
)
@pytest.mark.parametrize("changes_at", [2, 4])  # within the first pass, and in the second
async def test_models_that_change_between_two_parts_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, changes_at: int, changed: tuple[str, str], said: str
):
    monkeypatch.setattr(evaluator, "PART", 2)
    ranked, _ = ranking(Index(changes_at, changed))
    gold = [np.array([0])] * 5
    if changes_at > 3:
        await ranked.of_gold(TEXTS, gold, 4)
    with pytest.raises(errors.FailedPrecondition, match=f"from q1 and x1 to {said} meanwhile; evaluate again"):
        await ranked.of_gold(TEXTS, gold, 4)


@pytest.mark.parametrize(("mode", "scores"), [("dense", [1.0, 0.9]), ("iterative_lexical", [0.0, -1.0])])
async def test_scores_that_cannot_be_compared_between_texts_give_way_to_ranks(mode: str, scores: list[float]):
    ranked, _ = ranking(Index(), mode)
    found = await ranked.scored(TEXTS, 2)
    plain = {text: (one.ordinals.tolist(), one.scores.tolist()) for text, one in found.items()}
    assert plain == {f"t{n}": ([n, n + 1], scores) for n in range(5)}
