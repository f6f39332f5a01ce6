"""Admission by tokens, lanes and deadlines, and streams that wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from aeenc.errors import DeadlineExceeded, Overloaded
from services.encoder.batching.admission import ENOUGH, Admission, CostModel
from services.encoder.metrics import EncoderMetrics
from services.encoder.runtime.runners import PaddedRunner, PairRunner


def admission(
    tokens: int = 4000, cost: CostModel | None = None, registry: CollectorRegistry | None = None
) -> Admission:
    return Admission(tokens, cost or CostModel(1), EncoderMetrics(registry or CollectorRegistry()))


def known_cost(seconds_a_token: float, fixed_s: float = 0.0, workers: int = 1) -> CostModel:
    cost = CostModel(workers)
    for number in range(ENOUGH * 4):
        tokens = 50 + number % 7 * 100
        cost.observe(tokens, tokens * seconds_a_token + fixed_s)
    return cost


async def test_a_full_lane_refuses_the_whole_call_with_a_delay_and_leaves_the_other_lane_open():
    gate = admission(4000, known_cost(0.01))  # 3,000 interactive, 1,000 bulk
    async with AsyncExitStack() as stack:
        for caller in "abcdef":
            await stack.enter_async_context(gate.admitted("interactive", 370, None, caller=caller))
        message = r"2,220 tokens wait .* 0 of them yours, and 370 more are over its limit of 3,000"
        with pytest.raises(Overloaded, match=message) as caught:
            await stack.enter_async_context(gate.admitted("interactive", 370, None, caller="g"))
        assert caught.value.retry_after_s == pytest.approx(3.3, rel=0.01), "2,220 and 3 · 370 are 330 over the limit"
        await stack.enter_async_context(gate.admitted("interactive", 250, None, caller="g"))
        await stack.enter_async_context(gate.admitted("bulk", 125, None))


async def test_a_caller_holds_no_more_of_a_lane_than_is_left_for_the_others():
    gate = admission(4000)
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(gate.admitted("interactive", 370, None, caller="a"))
        with pytest.raises(Overloaded, match=r"1,110 tokens wait .* 1,110 of them yours"):
            await stack.enter_async_context(gate.admitted("interactive", 370, None, caller="a"))
        await stack.enter_async_context(gate.admitted("interactive", 100, None, caller="a"))  # a small one
        await stack.enter_async_context(gate.admitted("interactive", 370, None, caller="a", kind=PairRunner))
        await stack.enter_async_context(gate.admitted("interactive", 370, None, caller="b"))


async def test_a_call_is_alone_while_its_caller_has_no_other():
    gate = admission(4000)
    async with (
        gate.admitted("interactive", 10, None, caller="a") as first,
        gate.admitted("interactive", 10, None, caller="a") as second,
        gate.admitted("interactive", 10, None, caller="b") as other,
    ):
        assert (first, second, other) == (True, False, True)
    async with gate.admitted("interactive", 10, None, caller="a") as again:
        assert again


async def test_there_is_room_for_a_newcomer_however_many_callers_take_all_that_they_get():
    gate, refused = admission(4000), set[str]()
    callers = [str(n) for n in range(20)]
    async with AsyncExitStack() as held:
        while len(refused) < len(callers):
            for caller in callers:
                try:
                    await held.enter_async_context(gate.admitted("interactive", 20, None, caller=caller))
                except Overloaded:
                    refused.add(caller)
        await held.enter_async_context(gate.admitted("interactive", 50, None, caller="newcomer"))


async def test_a_forecast_counts_of_other_callers_what_goes_first_when_they_take_turns():
    gate = admission(100_000, known_cost(0.001))
    async with AsyncExitStack() as held:
        for caller in "abc":
            await held.enter_async_context(gate.admitted("interactive", 5000, None, caller=caller))
        in_a_second = time.monotonic() + 1
        await held.enter_async_context(gate.admitted("interactive", 100, in_a_second, caller="d"))
        with pytest.raises(Overloaded, match="would be done in about"):
            await held.enter_async_context(gate.admitted("interactive", 100, in_a_second, caller="a"))


async def test_a_call_larger_than_its_lane_holds_a_part_of_it():
    gate = admission(4000)
    async with gate.admitted("interactive", 50_000, None):
        assert gate.part("interactive") == 375
        async with gate.admitted("interactive", 370, None):
            pass


async def test_a_deadline_that_the_queue_cannot_meet_is_refused_before_any_work():
    gate = admission(100_000, known_cost(0.001))
    async with gate.admitted("interactive", 5000, None):  # five seconds of work
        with pytest.raises(Overloaded, match="the deadline is in") as caught:
            await gate.admitted("interactive", 100, time.monotonic() + 2).__aenter__()
        assert caught.value.reason == "DEADLINE_UNREACHABLE"
        assert 4 < caught.value.retry_after_s < 6
        async with gate.admitted("interactive", 100, time.monotonic() + 8):
            pass


async def test_before_enough_batches_were_seen_no_deadline_is_judged():
    cost = CostModel(1)
    for _ in range(ENOUGH - 1):
        cost.observe(100, 10.0)
    async with admission(100_000, cost).admitted("interactive", 3000, time.monotonic() + 0.1):
        pass


async def test_people_do_not_wait_behind_bulk_in_the_forecast_and_bulk_waits_behind_people():
    gate = admission(100_000, known_cost(0.001))
    async with gate.admitted("bulk", 20_000, None):
        async with gate.admitted("interactive", 100, time.monotonic() + 1):
            pass
        with pytest.raises(Overloaded):
            await gate.admitted("bulk", 100, time.monotonic() + 1).__aenter__()


async def test_slow_pairs_do_not_spoil_the_forecast_of_an_encode_and_it_still_waits_behind_them_in_the_queue():
    cost = CostModel(1)
    for number in range(ENOUGH * 4):
        tokens = 50 + number % 7 * 100
        for kind, seconds_a_token in ((PaddedRunner, 0.0001), (PairRunner, 0.01)):
            cost.observe(tokens, tokens * seconds_a_token)
            cost.of(kind).observe(tokens, tokens * seconds_a_token)
    registry = CollectorRegistry()
    gate = admission(100_000, cost, registry)
    async with gate.admitted("interactive", 1000, time.monotonic() + 1, kind=PaddedRunner):
        with pytest.raises(DeadlineExceeded, match=r"take about (9\.9|10\.0). s here"):
            await gate.admitted("interactive", 1000, time.monotonic() + 1, kind=PairRunner).__aenter__()
        with pytest.raises(Overloaded, match="would be done in about"):
            await gate.admitted("interactive", 1000, time.monotonic() + 1, kind=PaddedRunner).__aenter__()
    for reason in ("deadline_too_short", "deadline_unreachable"):
        assert registry.get_sample_value("aeenc_encoder_refused_total", {"reason": reason}) == 1


def test_the_fit_finds_the_line_and_follows_a_machine_that_slows_down():
    slope, fixed = known_cost(0.002, 0.01).line
    assert slope == pytest.approx(0.002, rel=0.01)
    assert fixed == pytest.approx(0.01, rel=0.05)
    cost = known_cost(0.002)
    for number in range(400):
        cost.observe(100 + number % 5 * 50, (100 + number % 5 * 50) * 0.006)
    assert cost.line[0] == pytest.approx(0.006, rel=0.05)
    assert cost.queue_s(1000) == pytest.approx(6.0, rel=0.05)
    cost = CostModel(1)
    cost.observe(100, 2.0)
    assert cost.line == (0.0, 2.0), "batches of one size tell what a batch takes, and not a token"


@asynccontextmanager
async def held(gate: Admission, *tokens: int) -> AsyncIterator[None]:
    """Holds so many tokens of the bulk lane by a stream's batches, for the block."""
    async with AsyncExitStack() as stack:
        for each in tokens:
            await stack.enter_async_context(gate.admitted("bulk", each, None, 20))
        yield


async def test_a_stream_that_waits_in_vain_is_refused_like_any_call():
    gate = admission(4000)
    async with held(gate, *[125] * 7, 75):
        started = time.monotonic()
        with pytest.raises(Overloaded):
            await gate.admitted("bulk", 100, None, 0.1).__aenter__()
        assert 0.08 < time.monotonic() - started < 20
    async with held(gate, *[125] * 8):
        pass


async def test_a_call_without_patience_does_not_overtake_a_stream_that_waits():
    gate, entered = admission(4000), []
    async with held(gate, *[125] * 7, 75):
        waiting = asyncio.create_task(enter(gate, 100, entered))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match=r"1,050 tokens wait in the bulk lane, .* and 5 more are over its limit"):
            await gate.admitted("bulk", 5, None, caller="other").__aenter__()
        async with gate.admitted("interactive", 50, None):
            pass
    await waiting
    async with gate.admitted("bulk", 50, None):
        pass


async def test_a_small_batch_of_a_stream_does_not_overtake_a_large_one_that_waits():
    gate, entered = admission(4000), []
    async with held(gate, *[125] * 7, 30):
        async with held(gate, 20):
            large = asyncio.create_task(enter(gate, 100, entered))
            await asyncio.sleep(0)
            small = asyncio.create_task(enter(gate, 50, entered))
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.05)
        assert entered == [], "first 75, then 95 are free"
    await asyncio.gather(large, small)
    assert entered == [100, 50]


async def enter(gate: Admission, tokens: int, entered: list[int]) -> None:
    async with gate.admitted("bulk", tokens, None, 20):
        entered.append(tokens)
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("let_in", [False, True])  # then it holds its tokens, and has not run
async def test_a_waiter_that_is_cancelled_gives_its_tokens_back_and_lets_the_next_in(let_in: bool):
    gate, entered = admission(4000), []
    async with held(gate, *[125] * 7, 75):
        first, second = (asyncio.create_task(enter(gate, tokens, entered)) for tokens in (101, 102))
        await asyncio.sleep(0)
        if not let_in:
            first.cancel()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.wait_for(second, 20)
    assert entered == [102]
    async with held(gate, *[125] * 8):
        pass


async def test_room_that_was_promised_to_a_waiter_is_nobody_elses():
    gate, entered = admission(4000), []
    async with held(gate, *[125] * 4):
        async with held(gate, *[125] * 4):
            waiting = [asyncio.create_task(enter(gate, 100 + n, entered)) for n in range(2)]
            await asyncio.sleep(0)
        with pytest.raises(Overloaded):  # two releases in one turn of the loop
            await gate.admitted("bulk", 100, None, caller="other").__aenter__()
        await asyncio.gather(*waiting)
    assert sorted(entered) == [100, 101]


async def test_one_absurdly_slow_batch_does_not_close_the_door(monkeypatch):
    cost = known_cost(0.0001, 0.01)
    before_s = cost.compute_s(200)
    cost.observe(200, 60.0)
    assert before_s * 1.2 < cost.compute_s(200) < before_s * 1.5, "it counts as one of some times as long"
    gate = admission(100_000, known_cost(1.0))
    with pytest.raises(DeadlineExceeded):
        await gate.admitted("interactive", 100, time.monotonic() + 1).__aenter__()
    now = time.monotonic()
    monkeypatch.setattr("services.encoder.batching.admission.time.monotonic", lambda: now + 5)
    async with gate.admitted("interactive", 100, now + 6):
        pass  # who refuses everything learns nothing: after a while somebody is let in


async def test_a_call_that_has_no_room_at_all_is_refused_before_its_tokens_are_counted():
    gate = admission(4000)
    gate.check_room("bulk", 30, "a", PaddedRunner)
    async with held(gate, *[125] * 7, 60):  # 65 are left
        gate.check_room("bulk", 20, "a", PaddedRunner)  # and as much again for others, twice
        with pytest.raises(Overloaded, match="40 more are over its limit of 1,000"):
            gate.check_room("bulk", 40, "a", PaddedRunner)
        gate.check_room("interactive", 375, "a", PaddedRunner)
    gate.check_room("bulk", 125, "a", PaddedRunner)
