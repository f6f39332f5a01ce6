"""The circuit breaker: who may call, who waits, and when nobody waits any longer."""

from __future__ import annotations

import asyncio

import pytest

from services.sampler.oracles.gateway import Breaker, BreakerDown
from support.waiting import until

PATIENT_S = 60.0


async def fail(breaker: Breaker, patience_s: float = PATIENT_S) -> None:
    with pytest.raises(ValueError, match="no"):
        async with breaker.call(patience_s):
            raise ValueError("no")


async def succeed(breaker: Breaker, patience_s: float = PATIENT_S) -> None:
    async with breaker.call(patience_s):
        pass


async def opened(first_pause_s: float, failures: int = 3) -> Breaker:
    breaker = Breaker(failures, first_pause_s=first_pause_s)
    for _ in range(failures):
        assert not breaker.open
        await fail(breaker)
    assert breaker.open
    return breaker


async def test_failures_that_are_not_in_a_row_do_not_open_it():
    breaker = Breaker(2, first_pause_s=60.0)
    for _ in range(5):
        await fail(breaker)
        await succeed(breaker)
    assert not breaker.open


async def test_while_open_one_call_tries_and_its_success_lets_all_others_go():
    breaker = await opened(0.01)
    inside, release = 0, asyncio.Event()

    async def call() -> None:
        nonlocal inside
        async with breaker.call(PATIENT_S):
            inside += 1
            await release.wait()

    calls = [asyncio.create_task(call()) for _ in range(5)]
    await until(lambda: inside == 1)
    await asyncio.sleep(0.05)  # several pauses long
    assert inside == 1
    release.set()
    await asyncio.wait_for(asyncio.gather(*calls), 10)
    assert inside == 5
    assert not breaker.open


async def test_nobody_calls_before_the_pause_is_over_and_a_failed_try_doubles_it():
    breaker = await opened(0.2)
    loop = asyncio.get_running_loop()
    opened_at = loop.time()
    await fail(breaker)
    tried_at = loop.time()
    assert tried_at - opened_at >= 0.8 * 0.2 - 0.02  # asyncio wakes a clock's tick early
    await succeed(breaker)
    assert loop.time() - tried_at >= 0.8 * 0.4 - 0.02


async def test_when_patience_is_over_all_who_wait_are_told_and_the_next_tries_at_once():
    breaker = await opened(60.0)  # the pause is longer than the patience
    waiting = [asyncio.create_task(succeed(breaker, 0.05)) for _ in range(3)]
    ends = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
    assert [type(end) for end in ends] == [BreakerDown] * 3
    assert "3 calls in a row failed" in str(ends[0])
    await asyncio.wait_for(succeed(breaker), 10)
    assert not breaker.open


async def test_without_patience_a_started_run_tries_once_and_is_then_told():
    breaker = await opened(60.0)
    with pytest.raises(BreakerDown):
        await succeed(breaker, 0.0)
    await asyncio.wait_for(fail(breaker, 0.0), 10)
    with pytest.raises(BreakerDown):
        await asyncio.wait_for(succeed(breaker, 0.0), 10)


async def test_what_a_given_up_run_leaves_behind_does_not_count_against_the_next():
    breaker = Breaker(1, first_pause_s=60.0)
    inside, release = asyncio.Event(), asyncio.Event()

    async def straggle() -> None:
        async with breaker.call(0.0):
            inside.set()
            await release.wait()
            raise ValueError("late")

    straggler = asyncio.create_task(straggle())
    await inside.wait()
    await fail(breaker, 0.0)
    with pytest.raises(BreakerDown):
        await succeed(breaker, 0.0)
    release.set()
    await asyncio.gather(straggler, return_exceptions=True)
    cancelled = asyncio.create_task(straggle())
    release.clear()
    inside.clear()
    await inside.wait()
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    await succeed(breaker, 0.0)
    assert not breaker.open


async def test_a_cancelled_try_is_made_by_another():
    breaker = await opened(0.01)
    inside = asyncio.Event()

    async def hang() -> None:
        async with breaker.call(PATIENT_S):
            inside.set()
            await asyncio.Event().wait()

    trying = asyncio.create_task(hang())
    await asyncio.wait_for(inside.wait(), 10)
    other = asyncio.create_task(succeed(breaker))
    await asyncio.sleep(0.05)
    assert not other.done()
    trying.cancel()
    await asyncio.wait_for(other, 10)
    assert not breaker.open


async def test_what_a_person_has_started_tries_at_once_though_all_patience_was_over_before():
    breaker = await opened(60.0)
    await asyncio.sleep(0.02)
    with pytest.raises(BreakerDown):
        await succeed(breaker, 0.01)
    breaker = await opened(60.0)  # the last failure was the one that opened it, and nobody has waited since
    await asyncio.sleep(0.02)
    breaker.try_at_once()
    await succeed(breaker, 0.01)
    assert not breaker.open


async def test_who_waits_while_a_person_starts_something_goes_on_waiting():
    breaker = await opened(60.0)
    waiting = asyncio.create_task(succeed(breaker))
    await asyncio.sleep(0.02)
    breaker.try_at_once()
    await asyncio.wait_for(waiting, 10)  # one has to try, and it does
    assert not breaker.open
