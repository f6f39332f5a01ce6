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


@pytest.mark.parametrize("is_told", [False, True])
async def test_a_step_that_fails_is_tried_again_and_each_kind_of_failure_is_logged_once_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, *, is_told: bool
) -> None:
    logged, reasons, done = list[tuple[str, str, str]](), list[str](), asyncio.Event()
    away, disk, fault = errors.Unavailable("the store is away"), OSError("the disk is away"), ValueError("a fault")
    failures = iter([away, away, disk, fault, fault, None, away])

    class Log:
        def warning(self, trouble: str, *, reason: str, exc_info: bool) -> None:
            assert exc_info
            logged.append(("warning", trouble, reason))

        def exception(self, trouble: str) -> None:
            logged.append(("exception", trouble, ""))

    async def step() -> None:
        try:
            failure = next(failures)
        except StopIteration:
            done.set()
            return
        if failure is not None:
            raise failure

    monkeypatch.setattr(concurrency, "log", Log())
    looking = asyncio.create_task(every(0.0, step, "looking fails", tell=reasons.append if is_told else None))
    await asyncio.wait_for(done.wait(), 5)
    await cancel_all([looking])
    unavailable = ("warning", "looking fails", "the store is away")
    others = [("warning", "looking fails", "the disk is away"), ("exception", "looking fails", "")]
    assert logged == [unavailable, *others, unavailable]
    hidden = "looking fails (ValueError); the log has it"
    told = ["the store is away"] * 2 + ["the disk is away", hidden, hidden, "the store is away"]
    assert reasons == (told if is_told else [])
