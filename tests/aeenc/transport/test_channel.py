"""The connection under all clients: errors keep their class, calls in vain are repeated within their time."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any
from urllib.parse import quote

import grpc
import numpy as np
import pytest

import aeenc
from aeenc import PATIENT, AsyncClient, Channel, EncoderClient, IndexClient, Retry, connect_async, errors, vectors
from aeenc.transport import status
from aeenc.transport.addresses import proxy_of
from aeenc.transport.channel import MAX_BACKOFF_S, pause_s
from aeenc.transport.status import _all_subclasses
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc, index_pb2, index_pb2_grpc
from support.relay import Relay
from support.waiting import reached, until
from support.worlds.sampler_world import connected, refuse, serving

Outcome = Callable[[int], errors.AeencError | None]


class Failing(encoder_pb2_grpc.EncoderServiceServicer, index_pb2_grpc.IndexAdminServiceServicer):
    """Answers each call as `outcome` says for its number, counted from 1."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.request_ids: list[str] = []

    async def _answer(self, context: Any) -> None:
        self.request_ids.append(dict(context.invocation_metadata())["x-request-id"])
        error = self.outcome(len(self.request_ids))
        if error is not None:
            await refuse(context, error)

    async def Encode(self, request: encoder_pb2.EncodeRequest, context: Any) -> encoder_pb2.EncodeResponse:
        await self._answer(context)
        return encoder_pb2.EncodeResponse(embeddings=vectors.to_proto(np.ones((1, 2), np.float32)))


@asynccontextmanager
async def served(
    outcome: Outcome, kind: type[Failing] = Failing, **options: Any
) -> AsyncIterator[tuple[Failing, Channel]]:
    def register(servicer: Failing, server: Any) -> None:
        encoder_pb2_grpc.add_EncoderServiceServicer_to_server(servicer, server)
        index_pb2_grpc.add_IndexAdminServiceServicer_to_server(servicer, server)

    servicer = kind(outcome)
    async with connected(register, servicer, **options) as channel:
        yield servicer, channel


def first(count: int, error: errors.AeencError) -> Outcome:
    return lambda number: error if number <= count else None


OURS = [cls for cls in _all_subclasses(errors.AeencError) if cls.__module__ == "aeenc.errors"]


def whole(cls: type[errors.AeencError], **fields: Any) -> errors.AeencError:
    violations = [errors.FieldViolation("texts[3]", "is empty"), errors.FieldViolation("k", "is 0")]
    return cls("q1 é … is wrong", violations=violations, metadata={"limit": "10"}, **fields)


@pytest.mark.parametrize(
    "sent",
    [
        *(pytest.param(whole(cls), id=cls.__name__) for cls in OURS),
        pytest.param(whole(errors.FailedPrecondition, reason="MOON_PHASE"), id="a reason that no class has"),
    ],
)
async def test_every_error_comes_through_as_its_class_with_all_it_carries(sent: errors.AeencError) -> None:
    async with served(lambda _: sent, retry=False) as (_, channel):
        with pytest.raises(type(sent)) as caught:
            await EncoderClient(channel).encode(["a"])
    received = caught.value
    assert type(received) is type(sent)
    assert (received.message, received.reason, received.violations) == (sent.message, sent.reason, sent.violations)
    assert (received.metadata, received.retry_after_s) == ({"limit": "10"}, None)


UNESCAPED = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")  # in a status message, by gRPC's specification
LONG = 20 * [errors.FieldViolation("texts[3]" * 30, "is too long " * 30)]
LONG_IN_CHINESE = 20 * [errors.FieldViolation("文本" * 100, "太长了" * 100)]


@pytest.mark.parametrize(
    ("error", "least_chars"),
    [
        (errors.InvalidArgument("a hypothesis " * 1000), 1000),
        (errors.InvalidArgument("一个假设" * 1000), 180),
        (errors.InvalidArgument("100 % " * 1000), 500),
        (errors.InvalidArgument("\x7f" * 1000), 500),
        (errors.InvalidArgument("a hypothesis " * 1000, violations=LONG), 1000),
        (errors.InvalidArgument("一个假设" * 1000, violations=LONG_IN_CHINESE, metadata={"corpus": "科学"}), 180),
    ],
    ids=[
        "letters",
        "Chinese",
        "signs that are escaped",
        "DEL",
        "with violations",
        "with violations in Chinese",
    ],
)
async def test_an_error_that_is_too_long_is_cut_and_keeps_its_class(error: errors.AeencError, least_chars: int) -> None:
    message, details = status.message_of(error), status.details_of(error)
    assert len(quote(message, safe=UNESCAPED)) + len(base64.b64encode(details)) <= 4096
    assert error.message.startswith(message.removesuffix("…"))
    assert status._sent_bytes(message) <= status.MESSAGE_BYTES
    assert len(message) >= least_chars
    async with served(lambda _: error) as (_, channel):
        with pytest.raises(errors.InvalidArgument) as refused:
            await EncoderClient(channel).encode(["a"])
    assert (type(refused.value), refused.value.message) == (errors.InvalidArgument, message)
    if error.violations:
        assert refused.value.violations
        assert refused.value.metadata == {**error.metadata, "violations": "20"}


async def test_an_error_names_the_request_id_that_the_service_returns() -> None:
    class Internal(Failing):
        async def _answer(self, context: Any) -> None:
            sent = dict(context.invocation_metadata())["x-request-id"]
            trailer = (("x-request-id", sent), ("x-other", "another"))
            await context.abort(grpc.StatusCode.INTERNAL, "the service's log has it", trailer)

    async with served(lambda _: None, Internal) as (_, channel):
        with pytest.raises(errors.AeencError, match=r"^the service's log has it \(request of-the-caller\)$") as caught:
            await EncoderClient(channel).encode(["a"], request_id="of-the-caller")
    assert (caught.value.request_id, caught.value.message) == ("of-the-caller", "the service's log has it")


async def test_a_method_that_the_server_does_not_know_is_unimplemented() -> None:
    async with served(lambda _: None) as (_, channel):
        told = r"has no aeenc.v1.IndexService/GetInfo: another .* release is there; is the address right\?$"
        with pytest.raises(errors.Unimplemented, match=told):
            await IndexClient(channel).info()


STARTING = errors.Unavailable("starting")
ALWAYS = 100


@pytest.mark.parametrize(
    ("error", "times", "retry", "attempts"),
    [
        pytest.param(STARTING, 3, True, 4, id="unavailable"),
        pytest.param(errors.Overloaded("full"), 3, True, 4, id="overloaded"),
        pytest.param(
            errors.Unavailable("starting", retry_after_s=0.2),
            3,
            Retry(away_s=0.05),
            4,
            id="one that answers is not away",
        ),
        pytest.param(errors.InvalidArgument("no"), ALWAYS, True, 1, id="wrong"),
        pytest.param(errors.Aborted("no"), ALWAYS, True, 1, id="aborted"),
        pytest.param(errors.DataLoss("no"), ALWAYS, True, 1, id="data loss"),
        pytest.param(errors.AeencError("no"), ALWAYS, True, 1, id="a bug"),
        pytest.param(errors.Overloaded("full", retry_after_s=30), ALWAYS, True, 1, id="a pause beyond the time left"),
        pytest.param(STARTING, ALWAYS, Retry(attempts=3), 3, id="attempts are counted"),
        pytest.param(STARTING, ALWAYS, False, 1, id="never"),
    ],
)
async def test_a_call_that_fails_in_passing_is_repeated_under_the_same_request_id_and_no_other(
    error: errors.AeencError, times: int, retry: Retry | bool, attempts: int
) -> None:
    async with served(first(times, error), retry=retry) as (servicer, channel):
        started = time.monotonic()
        with nullcontext() if attempts > times else pytest.raises(type(error), match=error.message) as caught:
            await EncoderClient(channel).encode(["a"])
        asked_s = (attempts - 1) * (error.retry_after_s or 0)
        assert 0.75 * asked_s <= time.monotonic() - started < 10, "the server's word on when to come back is followed"
    assert caught is None or caught.value.retry_after_s == error.retry_after_s
    assert (len(servicer.request_ids), len(set(servicer.request_ids))) == (attempts, 1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"attempts": 0}, "attempts: must be at least 1, got 0"), ({"hedge_s": 0.0}, "hedge_s: must be positive, got 0")],
)
def test_what_cannot_be_repeated_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=said):
        Retry(**wrong)


async def test_a_call_that_the_server_drops_without_a_word_is_repeated() -> None:
    class Dropping(Failing):
        async def _answer(self, context: Any) -> None:
            await super()._answer(context)
            if len(self.request_ids) == 1:
                await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")  # as grpc's core does with too many calls

    async with served(lambda _: None, Dropping) as (servicer, channel):
        await EncoderClient(channel).encode(["a"])
    assert len(servicer.request_ids) == 2
    async with served(lambda _: None, Dropping, retry=False) as (_, channel):
        with pytest.raises(errors.Unavailable, match="has dropped the call"):
            await EncoderClient(channel).encode(["a"])


async def test_repeating_ends_within_the_timeout_with_the_last_error() -> None:
    async with served(lambda _: errors.Unavailable("the service is not ready: no label")) as (servicer, channel):
        await channel.grpc.channel_ready()
        started = time.monotonic()
        with pytest.raises(errors.Unavailable, match="no label"):
            await EncoderClient(channel).encode(["a"], timeout_s=2)
        assert time.monotonic() - started < 10
    assert len(servicer.request_ids) >= 2


async def test_a_last_attempt_without_time_does_not_hide_the_refusal_before_it() -> None:
    class Slow(Failing):
        async def Encode(self, request: encoder_pb2.EncodeRequest, context: Any) -> encoder_pb2.EncodeResponse:
            await self._answer(context)
            await asyncio.sleep(5)
            return encoder_pb2.EncodeResponse()

    async with served(first(1, errors.Unavailable("starting")), Slow, timeout_s=1.0) as (servicer, channel):
        await channel.grpc.channel_ready()
        with pytest.raises(errors.Unavailable, match="starting"):
            await EncoderClient(channel).encode(["a"])
    assert len(servicer.request_ids) == 2


async def test_a_call_that_must_not_run_twice_is_not_repeated() -> None:
    async with served(lambda _: errors.Unavailable("starting")) as (servicer, channel):
        stub = encoder_pb2_grpc.EncoderServiceStub(channel.grpc)
        with pytest.raises(errors.Unavailable, match="starting"):
            await channel.unary(stub.Encode, encoder_pb2.EncodeRequest(texts=["a"]), retry=False)
    assert len(servicer.request_ids) == 1


LOST = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "mine")


@pytest.mark.parametrize("error", [KeyError("mine"), errors.Unavailable("mine"), LOST], ids=["a bug", "ours", "gRPC"])
async def test_what_a_stream_of_messages_raises_is_raised(error: Exception) -> None:
    class Listening(Failing):
        async def EncodeStream(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
            async for _ in request_iterator:
                yield encoder_pb2.EncodeStreamResponse(batch=await self.Encode(encoder_pb2.EncodeRequest(), context))

        async def PutExplanations(self, request_iterator: Any, context: Any) -> index_pb2.PutExplanationsResponse:
            return index_pb2.PutExplanationsResponse(total_size=len([request async for request in request_iterator]))

    def broken() -> Iterator[Any]:
        yield "a", ["b"]
        raise error

    async with served(lambda _: None, Listening) as (_, channel):
        with pytest.raises(type(error), match="mine"):
            _ = [batch async for batch in EncoderClient(channel).encode_stream([text] for text, _ in broken())]
        with pytest.raises(type(error), match="mine"):
            await IndexClient(channel).put_explanations("science", broken())


async def test_a_server_that_starts_late_is_waited_for_within_the_timeout() -> None:
    async with served(lambda _: None) as (_, channel):
        target = channel.target
    late = Channel(target, timeout_s=5)
    calling = asyncio.ensure_future(EncoderClient(late).encode(["a"]))
    await asyncio.sleep(0.3)
    assert not calling.done()
    register, port = encoder_pb2_grpc.add_EncoderServiceServicer_to_server, int(target.rpartition(":")[2])
    async with serving(register, Failing(lambda _: None), port):
        assert (await calling).vectors.shape == (1, 2)
    await late.close()


async def test_a_handshake_that_takes_a_moment_fails_no_call() -> None:
    async with served(lambda _: None) as (_, channel):

        async def call_once() -> None:
            async with Relay(channel.target) as relay:  # a new address: gRPC allows more time to one that has failed
                relay.delay_s = 0.3
                slow = Channel(relay.address, timeout_s=20, retry=False)
                try:
                    await EncoderClient(slow).encode(["a"])
                finally:
                    await slow.close()

        await reached(call_once, times=3)


async def test_a_service_that_is_away_is_named_and_given_up_long_before_the_deadline() -> None:
    async with served(lambda _: None) as (_, channel):
        target = channel.target
    absent = Channel(target, timeout_s=0.2)
    with pytest.raises(errors.Unavailable, match=f"no service answers at {target} .*is it running"):
        await EncoderClient(absent).encode(["a"])
    await absent.close()
    absent = Channel(target, timeout_s=60, retry=Retry(away_s=0.3), remedy="start it with `aeenc up`")
    started = time.monotonic()
    with pytest.raises(errors.Unavailable, match=r"connection refused.*; start it with `aeenc up`$") as caught:
        await EncoderClient(absent).encode(["a"])
    assert time.monotonic() - started < 15
    assert (caught.value.reason, caught.value.request_id) == ("AWAY", "")
    started = time.monotonic()
    with pytest.raises(errors.Unavailable):
        await EncoderClient(absent.with_options(retry=PATIENT)).encode(["a"], timeout_s=1.0)
    assert time.monotonic() - started > 0.5, "a patient caller waits for longer, up to a pause before the deadline"
    await absent.close()


async def test_a_view_of_a_connection_has_its_own_token_and_deadline_and_is_closed_with_it() -> None:
    class Listening(Failing):
        async def _answer(self, context: Any) -> None:
            self.request_ids.append(dict(context.invocation_metadata()).get("authorization", ""))
            if self.request_ids[-1] == "Bearer slow":
                await asyncio.sleep(5)

    async with served(lambda _: None, Listening, token="first\n") as (servicer, channel):  # as a file has it
        view = channel.with_options(token="slow", timeout_s=0.2, retry=False)
        await EncoderClient(channel).encode(["a"])
        told = r"did not answer within 0\.2 s; allow more time \(request of-the-caller\)"
        with pytest.raises(errors.DeadlineExceeded, match=told):
            await EncoderClient(view).encode(["a"], request_id="of-the-caller")
        assert servicer.request_ids == ["Bearer first", "Bearer slow"]
        await view.close()
        for closed in (channel, view):
            with pytest.raises(errors.FailedPrecondition, match="is closed"):
                await EncoderClient(closed).encode(["a"])


async def test_a_connection_that_is_closed_while_a_call_waits_for_its_next_attempt_says_so() -> None:
    async with served(lambda _: errors.Unavailable("starts", retry_after_s=1.0)) as (servicer, channel):
        call = asyncio.create_task(EncoderClient(channel).encode(["a"]))
        await until(lambda: len(servicer.request_ids) == 1)
        await asyncio.sleep(0.2)  # its pause lasts 0.8 s at least
        await channel.close()
        with pytest.raises(errors.FailedPrecondition, match="is closed; connect again"):
            await call


def test_a_connection_belongs_to_the_event_loop_of_its_first_use() -> None:
    client = connect_async(encoder="127.0.0.1:1", timeout_s=0.1)

    async def call(client: AsyncClient) -> None:
        await client.encoder.encode(["a"])

    with pytest.raises(errors.Unavailable, match="no service answers"):
        asyncio.run(call(client))
    told = "the connection to 127.0.0.1:1 belongs to another event loop; connect in the coroutine that calls"
    for same in (client, client.with_options(timeout_s=0.2)):
        with pytest.raises(errors.FailedPrecondition, match=told):
            asyncio.run(call(same))
    asyncio.run(client.close())


@pytest.mark.parametrize(
    ("attempt", "asked_s", "seconds"), [(0, None, 0.05), (3, None, 0.4), (9999, None, MAX_BACKOFF_S), (3, 7.0, 7.0)]
)
def test_a_pause_doubles_up_to_a_bound_or_is_what_the_service_asks_for(
    attempt: int, asked_s: float | None, seconds: float
) -> None:
    assert 0.8 * seconds <= pause_s(attempt, errors.Overloaded("full", retry_after_s=asked_s)) <= 1.2 * seconds


async def test_a_message_that_could_not_be_sent_any_more_is_unavailable_and_no_internal_error() -> None:
    # what grpcio says when a call ends while its stream is being written to: grpc/grpc#36066
    lost = grpc.aio.AioRpcError(
        grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "Internal error from Core"
    )
    channel = Channel("127.0.0.1:1")
    error = channel._translate(lost, channel.grpc.unary_unary("/x/Y"), channel.metadata())
    assert type(error) is errors.Unavailable
    assert "127.0.0.1:1 ended the call while a message was being sent" in error.message
    own = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "a bug")
    assert type(channel._translate(own, channel.grpc.unary_unary("/x/Y"), channel.metadata())) is errors.AeencError
    await channel.close()


class EndedCall:
    """A call that grpc.aio itself has cancelled, for its last message came too late."""

    async def _ended(self) -> Any:
        raise asyncio.CancelledError

    def __await__(self) -> Any:
        return self._ended().__await__()

    def __aiter__(self) -> EndedCall:
        return self

    __anext__ = _ended

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize(
    "call", [partial(Channel.send_stream, retry=False), lambda channel, of, sent: anext(channel.stream(of, sent()))]
)
async def test_a_call_that_ends_while_messages_are_sent_is_not_taken_for_one_that_was_cancelled(call: Any) -> None:
    async def messages() -> AsyncIterator[Any]:
        yield None

    channel = Channel("127.0.0.1:1", retry=False)
    with pytest.raises(errors.Unavailable, match="ended the call while a message was being sent"):
        await call(channel, lambda *_, **__: EndedCall(), messages)
    await channel.close()


async def test_a_stream_that_is_cancelled_ends_as_cancelled() -> None:
    channel = Channel("127.0.0.1:1")
    with pytest.raises(asyncio.CancelledError):
        await anext(channel.stream(lambda *_, **__: EndedCall(), None))
    with pytest.raises(asyncio.CancelledError):
        async with channel.conversation(lambda **_: EndedCall()) as call:
            await call
    await channel.close()


@pytest.mark.parametrize("name", ["http_proxy", "https_proxy", "grpc_proxy"])
async def test_a_proxy_of_the_environment_is_for_other_machines_and_named_where_it_leads(
    monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    monkeypatch.setenv(name, "http://user:secret@127.0.0.1:9")
    async with served(lambda _: None) as (_, channel):
        assert (await EncoderClient(channel).encode(["ice"])).vectors.shape == (1, 2)
        assert proxy_of(channel.target) == ""
    away = Channel("192.0.2.1:50051", timeout_s=1, retry=False)
    with pytest.raises(
        errors.Unavailable, match=r"192\.0\.2\.1:50051 by way of the proxy 127\.0\.0\.1:9, which no_proxy"
    ):
        await EncoderClient(away).encode(["ice"])
    await away.close()


def test_a_new_token_does_not_keep_the_rights_of_the_old_admin_token() -> None:
    with aeenc.connect(token="t", admin_token="a") as client:
        shown = [client, client.with_options(token="u"), client.with_options(token="u", admin_token="b")]
        shown.append(client.with_options(admin_token="b"))
        both = [(one._awaiting.index.channel, one._awaiting.registry.channel) for one in shown]
    tokens = [tuple(channel._options["token"] for channel in channels) for channels in both]
    assert tokens == [("t", "a"), ("u", "u"), ("u", "b"), ("t", "b")]


@pytest.mark.parametrize("token", ["se cret", "tök", "a\nb", " \n", "\x00", "a" * 9000])
def test_a_token_that_no_header_holds_is_refused_without_being_shown(token: str):
    with pytest.raises(errors.InvalidArgument, match="token: is blank or has characters") as caught:
        Channel("127.0.0.1:1", token=token)
    assert token not in caught.value.message


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "5", True])
async def test_a_time_limit_that_is_none_is_refused_wherever_it_is_given(seconds: Any):
    with pytest.raises(errors.InvalidArgument, match="timeout_s: must be seconds above 0"):
        Channel("127.0.0.1:1", timeout_s=seconds)
    async with served(lambda _: None) as (_, channel):
        with pytest.raises(errors.InvalidArgument, match="timeout_s: must be seconds above 0"):
            channel.with_options(timeout_s=seconds)
        with pytest.raises(errors.InvalidArgument, match="timeout_s: must be seconds above 0"):
            await EncoderClient(channel).encode(["ice"], timeout_s=seconds)


async def test_an_infinite_time_limit_is_none_at_all():
    async with served(lambda _: None, timeout_s=float("inf")) as (_, channel):
        assert (await EncoderClient(channel).encode(["ice"])).vectors.shape == (1, 2)
        assert (await EncoderClient(channel).encode(["ice"], timeout_s=float("inf"))).vectors.shape == (1, 2)
