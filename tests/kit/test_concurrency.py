"""Tasks that surely end before what they use is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from aeenc import errors
from services.kit import concurrency
from services.kit.concurrency import REPEAT_S, cancel_all, every, finish


async def _inner_cancelled(inner: asyncio.Task[None]) -> None:
    await cancel_all([inner])


async def _both_cancelled(inner: asyncio.Task[None]) -> None:
    async def outer() -> None:
        try:
            await asyncio.wait([inner])
        finally:
            await cancel_all([inner])

    waiting = asyncio.create_task(outer())
    await asyncio.sleep(0)
    await cancel_all([waiting])
    assert waiting.cancelled()


@pytest.mark.parametrize("cancel", [_inner_cancelled, _both_cancelled])
async def test_a_task_that_is_slow_to_end_has_ended_when_its_cancellation_returns(
    cancel: Callable[[asyncio.Task[None]], Awaitable[None]],
):
    async def tidy_up() -> None:
        await asyncio.sleep(2.5 * REPEAT_S)
        ended.append(True)

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await finish(asyncio.create_task(tidy_up()))

    ended: list[bool] = []
    inner = asyncio.create_task(work())
    await asyncio.sleep(0)
    await cancel(inner)
    assert inner.cancelled()
    assert ended == [True]


async def test_a_step_that_fails_is_told_and_tried_again_with_a_traceback_where_nobody_foresaw_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, done = list[tuple[str, str, str]](), asyncio.Event()
    failures = iter([errors.Unavailable("the store is away"), OSError("the disk is away"), ValueError("a fault")])

    class Log:
        def warning(self, trouble: str, *, reason: str) -> None:
            told.append(("warning", trouble, reason))

        def exception(self, trouble: str) -> None:
            told.append(("exception", trouble, ""))

    async def step() -> None:
        if (failure := next(failures, None)) is not None:
            raise failure
        done.set()

    monkeypatch.setattr(concurrency, "log", Log())
    looking = asyncio.create_task(every(0.0, step, "looking fails"))
    await asyncio.wait_for(done.wait(), 5)
    await cancel_all([looking])
    assert told == [
        ("warning", "looking fails", "the store is away"),
        ("warning", "looking fails", "the disk is away"),
        ("exception", "looking fails", ""),
    ]
