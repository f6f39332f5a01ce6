"""Query texts on their way to the encoder: together, in time, and past calls that fail."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from aeenc import errors, values
from aeenc.calls.encoding import Encoded, EncodeOptions
from services.index.ranking.encoding import TEXTS_A_CALL, TOGETHER, WINDOW, QueryEncoder
from support.waiting import until
from support.worlds.index_world import SPACE, raises


async def test_a_text_that_comes_just_as_all_calls_to_the_encoder_have_ended_is_encoded():
    ended = asyncio.Event()

    class Encoder(QueryEncoder):
        async def _encode(self, _key, batch):
            await ended.wait()
            for asked in batch:
                asked.answer.set_result(Encoded(np.zeros((1, 2), np.float32), "q", SPACE, values.Timings(), 0))

    encoder, key = Encoder(None), EncodeOptions(space_id=SPACE)  # type: ignore[arg-type]

    async def twice():
        await encoder.encode(["ice"], key)
        return await encoder.encode(["ice"], key, left_s=2.0)

    calls = [asyncio.create_task(twice())]
    for _ in range(WINDOW - 1):
        await asyncio.sleep(0.01)  # so that it goes out alone
        calls.append(asyncio.create_task(encoder.encode(["ice"], key)))
    await asyncio.sleep(0.01)
    ended.set()
    assert [one.model_version for one in await asyncio.gather(*calls)] == ["q"] * WINDOW


TIMES = [(10.0, None, 10.0), (10.0, 2.0, 1.8), (1.0, 2.0, 1.0)]  # the limit, what is left, what the encoder is told


class HeldEncoder:
    """An encoder's client: it notes how many texts each call has, and answers once it may."""

    channel = SimpleNamespace(target="held")

    def __init__(self):
        self.asked, self.timeouts_s, self.may_answer = [], [], asyncio.Event()

    async def encode(self, texts, *, timeout_s, **_options):
        self.asked.append(len(texts))
        self.timeouts_s.append(timeout_s)
        await self.may_answer.wait()
        return Encoded(np.zeros((len(texts), 2), np.float32), "q", SPACE, values.Timings(), 0)


@pytest.mark.parametrize(
    ("sizes", "calls"),
    [
        ([16, 16], [32]),
        ([16, 17], [16, 17]),
        ([2, TOGETHER], [2, TOGETHER]),
        ([TOGETHER, 2], [TOGETHER, 2]),
        ([TOGETHER + 1, 2, 30], [TOGETHER + 1, 32]),
        ([10] * 4, [30, 10]),
    ],
)
async def test_texts_that_wait_go_out_together_as_many_as_a_call_takes(sizes, calls):
    client, key = HeldEncoder(), EncodeOptions(space_id=SPACE)
    encoder = QueryEncoder(client)  # type: ignore[arg-type]
    asked = []
    for size in (*[2] * WINDOW, *sizes):
        asked.append(asyncio.create_task(encoder.encode(["ice"] * size, key)))
        await until(lambda: len(client.asked) == min(len(asked), WINDOW), 5)
    client.may_answer.set()
    found = await asyncio.gather(*asked)
    assert [len(one.vectors) for one in found] == [*[2] * WINDOW, *sizes]
    assert client.asked == [*[2] * WINDOW, *calls]


@pytest.mark.parametrize(("limit_s", "left_s", "told_s"), TIMES)
async def test_texts_have_the_time_that_is_left_to_the_last_of_their_callers(limit_s, left_s, told_s):
    client, key = HeldEncoder(), EncodeOptions(space_id=SPACE)
    encoder = QueryEncoder(client, timeout_s=limit_s)  # type: ignore[arg-type]
    client.may_answer.set()
    calls = [encoder.encode(["ice"], key, left_s=least) for least in (left_s, 0.9, left_s)]
    assert {one.model_version for one in await asyncio.gather(*calls)} == {"q"}
    assert client.timeouts_s == [pytest.approx(told_s, abs=0.3)]


@pytest.mark.parametrize(
    ("texts", "field", "asked"),
    [
        (TEXTS_A_CALL, "texts", [TEXTS_A_CALL]),
        (TEXTS_A_CALL + 1, "texts", [TEXTS_A_CALL + 1, TEXTS_A_CALL, 1]),
        (TEXTS_A_CALL + 1, "texts[3]", [TEXTS_A_CALL + 1]),
    ],
)
async def test_only_a_call_of_too_many_texts_is_sent_again_in_parts(texts, field, asked):
    class Narrow(HeldEncoder):
        async def encode(self, texts, **options):
            if not self.asked:
                self.asked.append(len(texts))
                raise errors.TooLarge.field(field, "send less")
            return await super().encode(texts, **options)

    client = Narrow()
    client.may_answer.set()
    call = QueryEncoder(client).encode(["ice"] * texts, EncodeOptions(space_id=SPACE))  # type: ignore[arg-type]
    if len(asked) == 1:
        await raises(errors.TooLarge, call, field)
    else:
        assert len((await call).vectors) == texts
    assert client.asked == asked


async def test_texts_go_out_also_after_senders_that_died():
    class Encoder(QueryEncoder):
        async def _encode(self, _key, batch):
            if batch[0].texts == ("steam",):
                raise ValueError("nobody has thought of this")
            for asked in batch:
                asked.answer.set_result(Encoded(np.zeros((1, 2), np.float32), "q", SPACE, values.Timings(), 0))

    encoder, key = Encoder(HeldEncoder()), EncodeOptions(space_id=SPACE)  # type: ignore[arg-type]
    for _ in range(WINDOW):
        await raises(errors.DeadlineExceeded, encoder.encode(["steam"], key, left_s=0.05))
    assert (await encoder.encode(["ice"], key, left_s=2.0)).model_version == "q"


async def test_closing_ends_calls_to_the_encoder_and_tells_their_callers():
    client, key = HeldEncoder(), EncodeOptions(space_id=SPACE)
    encoder = QueryEncoder(client)  # type: ignore[arg-type]
    asked = asyncio.create_task(encoder.encode(["ice"], key))
    await until(lambda: client.asked)
    await encoder.close()
    assert asyncio.all_tasks() <= {asyncio.current_task(), asked}, "its own have ended"
    await raises(errors.Unavailable, asked, "shutting down", "mode LEXICAL")


async def test_calls_for_other_versions_or_routes_are_never_encoded_together(built, encoder):
    encoder.servicer.requests.clear()
    encoder.servicer.pause_s = 0.05
    ways = [{}, {"label": "canary"}, {"version": "q1"}, {"precision": "int8"}, {"truncate": True}, {"routing_key": "a"}]
    calls = [built.client.retrieve("science", [f"ice {n}"], **ways[n % 6]) for n in range(48)]
    await asyncio.gather(*calls)
    for request in encoder.servicer.requests:
        kinds = {int(text.split()[1]) % 6 for text in request.texts}
        assert len(kinds) == 1
        (kind,) = kinds
        assert (request.routing_key, request.model.version) == ("a" if kind == 5 else "", "q1" if kind == 2 else "")


async def test_a_cross_encoder_that_is_too_slow_for_all_texts_ends_in_time_for_the_caller_to_learn_why(built, encoder):
    class Slow:
        async def wait(self):
            await asyncio.sleep(0.6)

    encoder.servicer.may_answer = Slow()
    words = {"k": 3, "rerank": 3, "mode": "lexical", "timeout_s": 2.0}
    call = built.client.retrieve("science", ["ice melts"] * 24, **words)
    await raises(errors.DeadlineExceeded, call, f"the encoder at {encoder.target} took longer", "allow more time")


async def test_a_bad_text_fails_its_own_caller_only(built, encoder):
    def refuse(request):
        for n, text in enumerate(request.texts):
            if "bad" in text:
                return errors.InvalidArgument.field(f"texts[{n}]", "has 300 tokens")
        return None

    encoder.servicer.refuse = refuse
    encoder.servicer.pause_s = 0.05
    calls = [built.client.retrieve("science", ["bad ice" if n == 7 else f"ice {n}"]) for n in range(16)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, Exception)] == [7]
    assert "texts[0]" in str(answers[7])


async def test_an_encoder_that_is_too_slow_ends_in_time_and_callers_who_left_are_not_encoded(
    built, encoder, monkeypatch: pytest.MonkeyPatch
):
    waiting, encode = set(), QueryEncoder._answer

    async def seen(self, texts, *given, **options):
        waiting.update(texts)
        try:
            return await encode(self, texts, *given, **options)
        finally:
            waiting.difference_update(texts)

    monkeypatch.setattr(QueryEncoder, "_answer", seen)
    encoder.servicer.may_answer.clear()
    slow = built.client.retrieve("science", ["ice"], timeout_s=0.3)
    await raises(errors.DeadlineExceeded, slow)
    await until(lambda: not waiting)
    calls = []
    for count in (6, 12):  # the first ones are on their way before the others come
        texts = [f"ice {n}" for n in range(len(calls), count)]
        calls += [asyncio.create_task(built.client.retrieve("science", [text])) for text in texts]
        await until(lambda count=count: len(waiting) == count)
    for call in calls[6:]:
        call.cancel()
    await until(lambda: len(waiting) == 6)
    encoder.servicer.may_answer.set()
    await asyncio.gather(*calls, return_exceptions=True)
    asked = [text for request in encoder.servicer.requests for text in request.texts]
    assert {f"ice {n}" for n in range(6)} <= set(asked)
    assert not {f"ice {n}" for n in range(6, 12)} & set(asked)


async def test_a_call_that_fails_stops_no_text_that_waits_behind_it():
    class Failing(HeldEncoder):
        async def encode(self, texts, **options):
            earlier = len(self.asked)
            found = await super().encode(texts, **options)
            if earlier < WINDOW:
                raise errors.DataLoss("no vectors")
            return found

    client = Failing()
    encoder, key = QueryEncoder(client, timeout_s=2.0), EncodeOptions(space_id=SPACE)  # type: ignore[arg-type]
    calls = [asyncio.create_task(encoder.encode(["ice"] * TOGETHER, key)) for _ in range(WINDOW + 2)]
    await until(lambda: len(client.asked) == WINDOW)
    client.may_answer.set()
    for call in calls[:WINDOW]:
        await raises(errors.DataLoss, call, "no vectors")
    assert [len((await call).vectors) for call in calls[WINDOW:]] == [TOGETHER] * 2


async def test_an_encoder_that_is_closed_calls_for_nobody_who_still_waits():
    client = HeldEncoder()
    encoder, key = QueryEncoder(client), EncodeOptions(space_id=SPACE)  # type: ignore[arg-type]
    calls = [asyncio.create_task(encoder.encode(["ice"] * TOGETHER, key, left_s=2.0)) for _ in range(WINDOW + 1)]
    await until(lambda: len(client.asked) == WINDOW)
    await encoder.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(client.asked) == WINDOW
    for call in calls[:WINDOW]:
        await raises(errors.Unavailable, call, "shutting down")
    calls[-1].cancel()


async def test_an_encoder_that_answers_again_is_no_problem_any_more():
    class Away(HeldEncoder):
        async def encode(self, texts, **options):
            if self.may_answer.is_set():
                return await super().encode(texts, **options)
            raise errors.Unavailable("connection refused")

    told, client = [], Away()
    encoder, key = QueryEncoder(client, on_change=told.append), EncodeOptions(space_id=SPACE)  # type: ignore[arg-type]
    for _ in range(2):
        await raises(errors.Unavailable, encoder.encode(["ice"], key), "held")
    client.may_answer.set()
    for _ in range(2):
        await encoder.encode(["ice"], key)
    assert [bool(problem) for problem in told] == [True, False]
