"""Bulk encoding over several encoders: each batch is answered once and in order, whatever breaks meanwhile."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest
from grpc.aio._call import StreamStreamCall

from aeenc import Channel, EncoderClient, Retry, errors
from aeenc.calls import bulk
from aeenc.calls.bulk import WINDOW, BatchQueue, BulkEncoder
from aeenc.calls.encoding import Encoded, EncodeOptions
from aeenc.v1 import encoder_pb2, types_pb2
from support.waiting import until
from support.worlds.index_world import RunningEncoder, raises, vector_of

TEXTS = [f"fact {n} about {n % 7}" for n in range(400)]
EXPECTED = np.stack([vector_of(text) for text in TEXTS])


@pytest.fixture
async def encoders() -> AsyncIterator[list[RunningEncoder]]:
    async with RunningEncoder() as first, RunningEncoder() as second:
        first.servicer.pause_s = second.servicer.pause_s = 0.01
        yield [first, second]


@pytest.fixture
async def connect(encoders: list[RunningEncoder]) -> AsyncIterator[Callable[..., EncoderClient]]:
    """A client of the given encoders, of both unless told otherwise."""
    async with AsyncExitStack() as stack:

        def client(*targets: str, away_s: float = 0.1) -> EncoderClient:
            named = ",".join(targets or [encoder.target for encoder in encoders])
            channel = Channel(named, timeout_s=5, retry=Retry(away_s=away_s))
            stack.push_async_callback(channel.close)
            return EncoderClient(channel)

        yield client


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the batches whose answers the client received, in the order of arrival."""
    numbers: list[int] = []
    original = BatchQueue.answered

    def noted(self: BatchQueue, batch: Any, outcome: Any) -> None:
        if isinstance(outcome, Encoded):
            numbers.append(int(batch.seq))
        original(self, batch, outcome)

    monkeypatch.setattr(BatchQueue, "answered", noted)
    return numbers


async def encode(client: EncoderClient, **options: Any) -> np.ndarray:
    stream = client.encode_all(TEXTS, **{"role": "premise", "batch": 8, "patience_s": 30.0, **options})
    return np.concatenate([batch.vectors async for batch in stream])


async def held(encoders: list[RunningEncoder], work: Coroutine[Any, Any, np.ndarray]) -> asyncio.Task[np.ndarray]:
    """Starts an encode, and returns once each of the encoders has a full window that it does not answer."""
    for encoder in encoders:
        encoder.servicer.may_answer.clear()
    task = asyncio.create_task(work)
    await until(lambda: all(encoder.servicer.in_flight == WINDOW for encoder in encoders))
    return task


async def test_encoders_of_a_list_share_the_batches_and_answers_are_in_order(encoders, connect, answered, monkeypatch):
    monkeypatch.setattr(bulk, "CLOSE_S", 20.0)
    work = await held(encoders, encode(connect()))
    first, second = (encoder.servicer for encoder in encoders)
    first.may_answer.set()
    second.may_answer.set()
    assert np.array_equal(await work, EXPECTED)
    assert sorted(first.batches + second.batches) == list(range(1, 51)), "no batch is encoded twice"
    assert min(len(first.batches), len(second.batches)) > WINDOW
    assert sorted(answered) == list(range(1, 51))
    assert max(first.most_in_flight, second.most_in_flight) <= 4
    await until(lambda: first.ended_streams == second.ended_streams == 1)  # the encoders see an orderly end
    assert {request.lane for request in first.requests} == {encoder_pb2.LANE_BULK}


@pytest.mark.parametrize("field", ["batch", "window"])
@pytest.mark.parametrize("count", [0, -1, True, 1.5])
async def test_numbers_that_send_nothing_are_refused_by_name_before_anything_is_sent(encoders, connect, field, count):
    with pytest.raises(errors.InvalidArgument, match=f"^{field}: is {count}; give a whole number from 1 on"):
        await encode(connect(), **{field: count})
    assert not any(encoder.servicer.requests for encoder in encoders)


async def test_an_encoder_that_ends_as_soon_as_asked_gets_no_second_stream(encoders, connect, monkeypatch):
    done_writing = StreamStreamCall.done_writing

    async def late(call: StreamStreamCall) -> None:  # the encoder's end is read before this returns
        await done_writing(call)
        await asyncio.sleep(0.2)

    monkeypatch.setattr(StreamStreamCall, "done_writing", late)
    await encode(connect(encoders[0].target))
    await until(lambda: encoders[0].servicer.ended_streams == 1)
    assert len(encoders[0].servicer.opened_at) == 1


@pytest.mark.parametrize("grace_s", [0, None])
async def test_an_encoder_killed_in_the_middle_costs_no_answer_and_none_is_computed_again(
    encoders, connect, answered, grace_s
):
    work = asyncio.ensure_future(encode(connect()))
    await until(lambda: len(answered) > 10)
    received = set(answered)
    await encoders[0].server.stop(grace_s)
    assert np.array_equal(await work, EXPECTED)
    assert sorted(answered) == list(range(1, 51)), "each batch is answered once"
    sent_again = set(encoders[0].servicer.batches) & set(encoders[1].servicer.batches)
    assert len(sent_again) <= 4
    assert not sent_again & received


async def test_the_only_encoder_may_be_restarted(encoders, connect, answered):
    work = asyncio.ensure_future(encode(connect(encoders[0].target)))
    await until(lambda: len(answered) > 10)
    await encoders[0].stop()
    await asyncio.sleep(1.3)  # for longer than an encoder that never was there
    async with RunningEncoder(encoders[0].target) as again:
        assert np.array_equal(await work, EXPECTED)
    assert sorted(answered) == list(range(1, 51))
    assert len(again.servicer.batches) <= 50 - 10


async def test_an_encoder_that_comes_late_may_take_its_time(encoders, connect):
    await encoders[0].stop()
    began, work = time.monotonic(), asyncio.ensure_future(encode(connect(encoders[0].target, away_s=2.5)))
    await asyncio.sleep(0.2)
    late = RunningEncoder(encoders[0].target)
    late.servicer.may_answer.clear()
    async with late:
        await until(lambda: late.servicer.in_flight > 0)
        await asyncio.sleep(began + 3.8 - time.monotonic())
        late.servicer.may_answer.set()
        assert np.array_equal(await work, EXPECTED)


@pytest.mark.parametrize(("count", "patience_s"), [(1, 1.2), (2, 4.8)], ids=["the work", "a stream"])
async def test_a_stall_of_this_process_is_no_silence_of_the_encoders(encoders, connect, count, patience_s):
    asked = encoders[:count]
    work = await held(asked, encode(connect(*[encoder.target for encoder in asked]), patience_s=patience_s))
    time.sleep(1.5)  # noqa: ASYNC251 -- stands for a loop that cannot run, be it a long collection or a full machine
    for encoder in asked:
        encoder.servicer.may_answer.set()
    assert np.array_equal(await work, EXPECTED)
    assert [len(encoder.servicer.opened_at) for encoder in asked] == [1] * count


async def test_an_encoder_that_hangs_loses_its_batches_to_one_that_answers(encoders, connect, answered):
    encoders[0].servicer.pause_s = 30.0
    started = time.monotonic()
    assert np.array_equal(await encode(connect(), patience_s=4.0), EXPECTED)
    assert sorted(answered) == list(range(1, 51))
    assert time.monotonic() - started < 15.0  # half of what it hangs


@pytest.mark.parametrize("first", [0, 1])  # whichever of them gets the first batch
async def test_an_encoder_that_hangs_from_the_start_leaves_all_but_its_window_to_the_other(encoders, connect, first):
    hanging, other = encoders[first].servicer, encoders[1 - first].servicer
    hanging.may_answer.clear()
    work = asyncio.create_task(encode(connect(), patience_s=600.0))
    await until(lambda: len(other.batches) >= 50 - WINDOW)
    hanging.may_answer.set()
    assert np.array_equal(await work, EXPECTED)


@pytest.mark.parametrize("is_there", [True, False])
async def test_an_address_that_says_nothing_holds_up_nobody(encoders, connect, is_there):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = connect(f"127.0.0.1:{silent.getsockname()[1]}", encoders[0].target)
        if not is_there:
            silent.close()
        started = time.monotonic()
        assert np.array_equal(await encode(client, patience_s=40.0), EXPECTED)
        assert time.monotonic() - started < 20.0


async def test_a_full_encoder_is_given_the_time_that_it_asks_for(encoders, connect, answered):
    refused_at: list[float] = []

    def refuse(_: Any) -> errors.AeencError | None:
        if len(refused_at) == 2 or len(answered) <= 10 * (len(refused_at) + 1):
            return None
        refused_at.append(time.monotonic())
        return errors.Overloaded("the queue is full", retry_after_s=0.4)

    encoders[0].servicer.refuse = refuse
    assert np.array_equal(await encode(connect(encoders[0].target)), EXPECTED)
    assert sorted(answered) == list(range(1, 51))
    _, *opened_again = encoders[0].servicer.opened_at
    assert len(opened_again) == len(refused_at) == 2
    assert all(again - at > 0.3 for at, again in zip(refused_at, opened_again, strict=True))


async def test_a_queue_that_stays_full_is_reported_as_such(encoders, connect):
    encoders[0].servicer.refuse = lambda _: errors.Overloaded("the queue is full", retry_after_s=0.05)
    work = encode(connect(encoders[0].target), patience_s=0.5)
    await raises(errors.Overloaded, work, "the queue is full")


async def test_encoders_that_stay_away_are_named(encoders, connect):
    for encoder in encoders:
        await encoder.stop()
    await raises(errors.Unavailable, encode(connect(), patience_s=0.5), encoders[0].target, "try again later")


async def test_a_batch_that_is_refused_is_the_one_that_fails(encoders, connect):
    def refuse(request: Any) -> errors.AeencError | None:
        return errors.InvalidArgument("texts[3]: is too long") if TEXTS[203] in request.texts else None

    for encoder in encoders:
        encoder.servicer.refuse = refuse
    stream = connect().encode_all(TEXTS, role="premise", batch=8, patience_s=30.0)
    for _ in range(203 // 8):
        await anext(stream)
    await raises(errors.InvalidArgument, anext(stream), "texts[3]: is too long")


async def test_a_batch_that_always_breaks_the_encoder_is_not_tried_for_ever(encoders, connect):
    def refuse(request: Any) -> errors.AeencError | None:
        return errors.AeencError("the model fails") if TEXTS[3] in request.texts else None

    encoders[0].servicer.refuse = refuse
    await raises(errors.AeencError, encode(connect(encoders[0].target)), "the model fails")
    assert 3 <= encoders[0].servicer.batches.count(1) <= 5  # a busy machine may break a stream once more


async def test_a_version_that_changes_midway_is_refused(encoders, connect):
    stream = connect().encode_all(TEXTS, role="premise", batch=8, window=2)
    await anext(stream)  # most of the 50 batches are still to be sent
    encoders[1].servicer.version = "q-new"

    async def rest() -> None:
        async for _ in stream:
            pass

    await raises(errors.FailedPrecondition, rest(), "q-new", "meanwhile")


async def test_reading_is_bounded_by_the_answers_taken(encoders, connect):
    taken = 0

    def texts() -> Iterator[str]:
        nonlocal taken
        for text in TEXTS:
            taken += 1
            yield text

    stream = connect(encoders[0].target).encode_all(texts(), role="premise", batch=8, window=2)
    assert len((await anext(stream)).vectors) == 8
    await asyncio.sleep(0.3)
    assert taken <= 8 * 5
    await stream.aclose()
    await until(lambda: encoders[0].servicer.open_streams == 0)


async def test_options_reach_the_encoder_and_a_lane_can_be_chosen(encoders, connect):
    chosen = {"version": "q1", "precision": "float32", "truncate": True, "lane": "interactive", "routing_key": "user 7"}
    options = EncodeOptions("query", **chosen)
    async with BulkEncoder(connect(encoders[0].target).channel, options) as work:
        answer = await work.submit(["ice"])
    assert np.array_equal(answer.vectors[0], vector_of("ice", encoder_pb2.ROLE_QUERY))
    (request,) = encoders[0].servicer.requests
    assert (request.model.version, request.precision) == ("q1", types_pb2.PRECISION_FLOAT32)
    assert (request.routing_key, answer.precision) == ("user 7", ""), "who does not say is not taken to be exact"
    assert (request.truncate, request.lane) == (types_pb2.TRUNCATE_END, encoder_pb2.LANE_INTERACTIVE)


async def test_no_texts_need_no_encoder():
    async with BulkEncoder(Channel("127.0.0.1:1"), EncodeOptions()) as work:
        assert [answer async for answer in work.encode([])] == []
