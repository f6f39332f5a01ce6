"""Evaluations are done one at a time, also when a caller goes away in the middle of one."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aeenc import errors
from services.kit.limits import Limits
from services.trainer.evaluation import evaluator
from services.trainer.evaluation.evaluator import EvaluationSpec, Evaluator
from services.trainer.evaluation.protocol import EvaluationQuery
from services.trainer.evaluation.protocol import ranks_of as really_ranks_of
from support.waiting import until


async def read() -> EvaluationSpec:
    """Reads one query."""
    return EvaluationSpec("c", [EvaluationQuery("q", ("p",))])


class Encoder:
    """Gives every text the same vector."""

    async def encode(self, texts: Any, **_options: Any) -> Any:
        return SimpleNamespace(vectors=np.ones((len(texts), 2), np.float32), model_version="q1")


class Slow:
    """The ranking of an evaluation, which takes until it is let go; and how many went on at once at most."""

    def __init__(self) -> None:
        self.going_on, self.most, self.begun = 0, 0, 0
        self.let_go = threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        self.going_on += 1
        self.begun += 1
        self.most = max(self.most, self.going_on)
        self.let_go.wait(60)
        self.going_on -= 1
        return really_ranks_of(*arguments)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """Makes the rankings of evaluations, over one premise, slow."""
    vectors = np.ones((1, 2), np.float32)
    premises = SimpleNamespace(ordinal_by_text={"p": 0}, ordinal_by_id={"1": 0})
    opened = SimpleNamespace(id="g1", space_id="s", premises=premises, vectors=vectors, is_folded=False)
    slow = Slow()
    monkeypatch.setattr(evaluator, "active_generation", lambda *_: opened.id)
    monkeypatch.setattr(evaluator, "open_generation", lambda *_: opened)
    monkeypatch.setattr(evaluator, "ranks_of", slow)
    return slow


async def test_the_next_evaluation_is_read_once_the_thread_of_one_whose_caller_has_gone_has_ended(slow: Slow):
    begun: list[bool] = []

    async def read_later() -> EvaluationSpec:
        begun.append(slow.let_go.is_set())
        return await read()

    one = Evaluator(None, Encoder(), None, Limits(1 << 20, 100, 100))  # type: ignore[arg-type]
    first = asyncio.create_task(one.evaluate(read))
    await until(lambda: slow.begun == 1)
    first.cancel()
    second = asyncio.create_task(one.evaluate(read_later))
    await asyncio.sleep(0.5)  # enough to begin, were it allowed to
    assert (slow.begun, begun, first.done()) == (1, [], False)
    first.cancel()  # a second time, as at the end of a server
    slow.let_go.set()
    assert (await second).report.strict.map == 1.0
    assert (first.cancelled(), slow.most, slow.begun, begun) == (True, 1, 2, [True])


async def test_a_wrong_query_has_its_place_among_all_whatever_a_call_may_have_at_once():
    async def many() -> EvaluationSpec:
        return EvaluationSpec("c", [EvaluationQuery(text, ("p",)) for text in ("one", "two", " ")])

    one = Evaluator(None, Encoder(), None, Limits(1 << 20, 2, 100))  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgument, match=r"^queries\[2\]: is empty"):
        await one.evaluate(many)


async def test_evaluations_beyond_those_that_may_wait_are_refused_until_one_has_ended(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(evaluator, "MAX_WAITING", 2)
    one = Evaluator(None, Encoder(), None, Limits(1 << 20, 100, 100))  # type: ignore[arg-type]
    first, *waiting = [asyncio.create_task(one.evaluate(read)) for _ in range(3)]
    await until(lambda: slow.begun == 1)
    with pytest.raises(errors.Overloaded, match="2 evaluations wait already") as refused:
        await asyncio.wait_for(one.evaluate(read), 5)
    assert refused.value.retry_after_s
    waiting[0].cancel()  # its caller has gone
    await asyncio.wait(waiting[:1])
    waiting.append(asyncio.create_task(one.evaluate(read)))
    slow.let_go.set()
    await asyncio.gather(first, *waiting[1:])
    assert slow.begun == 3


async def test_queries_that_do_not_come_end_their_turn(slow: Slow, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluator, "READ_S", 0.2)
    one = Evaluator(None, Encoder(), None, Limits(1 << 20, 100, 100))  # type: ignore[arg-type]
    slow.let_go.set()

    async def never() -> EvaluationSpec:
        await asyncio.Event().wait()
        raise AssertionError

    stuck, next_one = asyncio.create_task(one.evaluate(never)), asyncio.create_task(one.evaluate(read))
    with pytest.raises(errors.DeadlineExceeded, match=r"not all there 0\.2 s after"):
        await stuck
    assert (await next_one).report.strict.map == 1.0
