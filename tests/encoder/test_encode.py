"""Encoding through the SDK: roles, versions, limits, batches, overload, cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from kit.test_credentials import credential, write

from aeenc import Channel, EncoderClient, errors
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc, types_pb2
from services.encoder import servicer
from services.encoder.runtime.runners import PaddedRunner, Tokens
from services.kit.credentials.gate import origin
from services.kit.server import GrpcServer
from services.store.artifacts import ArtifactStore
from services.store.registry import Registry
from support.models.tiny_checkpoints import DIM, PROBES, TINY_SPACE, TinyCheckpoint, register, write_tiny_checkpoint
from support.waiting import until


@pytest.fixture
async def tuned(artifact_store: ArtifactStore, tiny_checkpoint: TinyCheckpoint, registry: Registry) -> TinyCheckpoint:
    """The pretrained checkpoint under `canary`, and another one under `stable`."""
    await register(registry, tiny_checkpoint, label="canary")
    other = write_tiny_checkpoint(artifact_store, seed=1, base_version=tiny_checkpoint.version)
    await register(registry, other, label="stable")
    return other


async def test_queries_go_through_the_label_and_premises_through_the_frozen_encoder(
    serve, tuned, tiny_checkpoint
) -> None:
    async with serve() as (_, client):
        query, premise = await client.encode(["sun"]), await client.encode(["sun"], role="premise")
        assert (query.model_version, premise.model_version) == (tuned.version, tiny_checkpoint.version)
        assert query.space_id == premise.space_id == TINY_SPACE
        assert not np.allclose(query.vectors, premise.vectors)
        by_label = await client.encode(["sun"], label="canary")
        by_version = await client.encode(["sun"], version=tiny_checkpoint.version)
        assert by_label.model_version == by_version.model_version == tiny_checkpoint.version
        np.testing.assert_array_equal(by_label.vectors, by_version.vectors)


async def test_a_text_has_the_same_vector_alone_and_in_any_batch(serve, tuned) -> None:
    rng = random.Random(7)
    texts = [" ".join(rng.choices(" ".join(PROBES).split(), k=rng.randint(1, 40))) for _ in range(200)]
    async with serve() as (_, client):
        together = (await client.encode(texts)).vectors
        assert together.shape == (200, DIM)
        np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
        alone = await asyncio.gather(*(client.encode([text]) for text in texts))
        cosines = np.einsum("nd,nd->n", together, np.concatenate([one.vectors for one in alone]))
        assert cosines.min() >= 0.999999


@pytest.mark.parametrize(
    ("field", "value"), [("role", 0), *((one, 99) for one in ("role", "lane", "precision", "truncate"))]
)
async def test_a_value_of_a_newer_proto_or_no_role_is_refused_by_name(serve, tuned, field, value) -> None:
    told = f"{field}: 99 is unknown to this service" if value else "ROLE_QUERY or ROLE_PREMISE"
    async with serve() as (_, client):
        request = encoder_pb2.EncodeRequest(texts=["sun"], role=encoder_pb2.ROLE_QUERY)
        setattr(request, field, value)
        stub = encoder_pb2_grpc.EncoderServiceStub(client.channel.grpc)
        with pytest.raises(errors.InvalidArgument, match=told):
            await client.channel.unary(stub.Encode, request)


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("role", encoder_pb2.ROLE_PREMISE),
        ("model", types_pb2.ModelSelector(label="canary")),
        ("truncate", types_pb2.TRUNCATE_END),
        ("space_id", TINY_SPACE),
        ("texts", [""]),
    ],
)
async def test_a_batch_that_is_wrong_or_asks_for_something_else_ends_the_stream_after_the_answers_before_it(
    serve, tuned, field, other
) -> None:
    usual = {"texts": ["sun"], "role": encoder_pb2.ROLE_QUERY}
    answered: list[int] = []

    async def requests() -> AsyncIterator[encoder_pb2.EncodeStreamRequest]:
        same = {"truncate": types_pb2.TRUNCATE_ERROR}  # the default
        for seq, change in enumerate(({}, same, {field: other}, {}), 1):
            yield encoder_pb2.EncodeStreamRequest(batch=encoder_pb2.EncodeRequest(**{**usual, **change}), batch_seq=seq)

    async def encode(client: EncoderClient) -> None:
        stub = encoder_pb2_grpc.EncoderServiceStub(client.channel.grpc)
        async for response in client.channel.stream(stub.EncodeStream, requests()):
            answered.append(response.batch_seq)  # noqa: PERF401 -- what came before the error counts

    async with serve() as (_, client):
        told = r"is empty" if field == "texts" else rf"batch\.{field}: .*in batch 3.*another stream"
        with pytest.raises(errors.InvalidArgument, match=told):
            await encode(client)
    assert answered == [1, 2]


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["sun", "  "], {}, r"texts\[1\]: is empty"),
        (["sun " * 100], {}, r"102 tokens are over the model's 64.*truncate END"),
        (["sun"], {"role": "premise", "label": "stable"}, "leave `model` unset"),
    ],
)
async def test_a_wrong_request_is_refused_with_the_remedy(serve, tuned, texts, options, message) -> None:
    async with serve() as (_, client):
        with pytest.raises((errors.InvalidArgument, errors.FailedPrecondition), match=message):
            await client.encode(texts, **options)
        assert len((await client.encode(["sun"])).vectors) == 1


async def test_truncation_is_done_when_asked_for_and_counted(serve, tuned) -> None:
    async with serve() as (_, client):
        cut = await client.encode(["sun " * 100, "moon"], truncate=True)
        assert cut.truncated == 1
        again = await client.encode(["sun " * 62], truncate=False)  # 62 and two special tokens
        np.testing.assert_allclose(cut.vectors[0], again.vectors[0], atol=1e-6)
        assert (cut.tokens, again.tokens) == (64 + 3, 64)  # as computed: after the cut, with the special tokens


async def test_what_is_not_loaded_is_refused_and_what_is_loaded_is_named(serve, tuned) -> None:
    async with serve() as (_, client):
        with pytest.raises(
            errors.VersionNotLoaded, match=f"'q123'.*{tuned.version}.*`aeenc publish q123 --label trial`"
        ):
            await client.encode(["sun"], version="q123")
        with pytest.raises(errors.VersionNotLoaded, match=r"'beta'.*canary, stable"):
            await client.encode(["sun"], label="beta")
        with pytest.raises(errors.SpaceMismatch, match=TINY_SPACE):
            await client.encode(["sun"], space_id="elsewhere")


async def test_a_stream_answers_every_batch_in_order(serve, tuned) -> None:
    batches = [[f"sun {n}" for n in range(1 + size % 7)] for size in range(40)]
    async with serve() as (_, client):
        answers = [answer async for answer in client.encode_stream(iter(batches), role="premise")]
        expected = [await client.encode(batch, role="premise") for batch in batches]
    assert [len(answer.vectors) for answer in answers] == [len(batch) for batch in batches]
    for answer, wanted in zip(answers, expected, strict=True):
        np.testing.assert_allclose(answer.vectors, wanted.vectors, atol=1e-6)


@pytest.mark.parametrize("answered", [0, 2])
async def test_an_idle_stream_ends_with_the_service_and_one_in_work_once_it_is_answered(
    serve, tuned, monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    computing, may_compute = threading.Event(), threading.Event()
    original = PaddedRunner.run

    def run(*arguments: Any) -> Any:
        computing.set()
        assert may_compute.wait(20)
        return original(*arguments)

    async def batches(count: int) -> AsyncIterator[list[str]]:
        for _ in range(count):
            yield ["sun"]
        await asyncio.Event().wait()

    async with serve() as (server, client):
        idle = client.encode_stream(batches(answered))
        for _ in range(answered):
            await anext(idle)
        waiting = asyncio.create_task(anext(idle))
        monkeypatch.setattr(PaddedRunner, "run", run)
        busy = client.encode_stream(batches(1))
        answer = asyncio.create_task(anext(busy))
        await asyncio.to_thread(computing.wait, 20)
        stopping = asyncio.create_task(server.stop(60.0))
        with pytest.raises(errors.Unavailable, match="shutting down; send what was not answered again"):
            await asyncio.wait_for(waiting, 20)
        may_compute.set()
        assert (await answer).vectors.shape[0] == 1
        with pytest.raises(errors.Unavailable, match="shutting down; send what was not answered again"):
            await asyncio.wait_for(anext(busy), 20)
        await asyncio.wait_for(stopping, 20)


async def test_vectors_that_no_answer_can_hold_are_refused_before_any_work_and_a_stream_has_them(
    serve, tuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    original = PaddedRunner.run

    def run(self: PaddedRunner, batch: list[Tokens]):
        asked.append(len(batch))
        return original(self, batch)

    async with serve(message_bytes=16 * 1024) as (_, client):
        monkeypatch.setattr(PaddedRunner, "run", run)
        fitting = (16 * 1024 - 256) // (4 * DIM)
        with pytest.raises(errors.TooLarge, match=f"at most {fitting} texts.*EncodeStream"):
            await client.encode(["sun"] * (fitting + 1))
        assert asked == []
        assert len((await client.encode(["sun"] * fitting)).vectors) == fitting
        [answer] = [one async for one in client.encode_stream([["sun"] * (fitting + 1)])]
        assert len(answer.vectors) == fitting + 1


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that takes 30 ms a batch."""
    import time

    original = PaddedRunner.run

    def run(self: PaddedRunner, batch: list[Tokens]):
        time.sleep(0.03)
        return original(self, batch)

    monkeypatch.setattr(PaddedRunner, "run", run)


def queued_tokens(server: GrpcServer) -> float:
    """The tokens that wait in the lane for people."""
    return server.metrics.get_sample_value("aeenc_encoder_queued_tokens", {"lane": "interactive"}) or 0.0


async def test_a_full_queue_refuses_with_a_delay_and_serves_what_it_admitted(serve, tuned, slow) -> None:
    async with serve(queued_tokens=4096, batch_items=8) as (server, client):
        impatient = EncoderClient(client.channel.with_options(retry=False))
        calls = [asyncio.create_task(client.encode([f"sun {n}"] * 256, timeout_s=8)) for n in range(4)]
        await until(lambda: queued_tokens(server) == 1152)
        with pytest.raises(errors.Overloaded, match=r"1,152 of them yours, and 384 more are over .* 3,072") as caught:
            await impatient.encode(["moon"] * 256)
        assert len((await impatient.encode(["moon"])).vectors) == 1, "there is room for a small call"
        assert caught.value.retry_after_s is not None
        assert all(len(answer.vectors) == 256 for answer in await asyncio.gather(*calls))


@pytest.mark.parametrize(
    ("kind", "named"),
    [("stream", True), ("large calls", True), ("large calls", False), ("many calls", False)],
    ids=["stream", "large calls", "large calls of connections", "many calls of connections"],
)
async def test_nobody_who_asks_for_much_keeps_others_waiting_whatever_the_lane(
    serve, tuned, slow, tmp_path, kind, named
) -> None:
    names = [f"greedy{n}" for n in range(3)]
    path = write(tmp_path / "tokens.toml", *map(credential, ["person", *names]))
    options = {"tokens_file": path} if named else {}
    async with (
        serve(batch_items=8, queued_tokens=4096, wait=False, **options) as (server, _),
        contextlib.AsyncExitStack() as ends,
    ):
        await until(lambda: server.readiness.healthy)

        def client(name: str, host: str = "127.0.0.1") -> EncoderClient:
            channel = Channel(f"{host}:{server.port}", token=name if named else None, retry=False, timeout_s=20)
            ends.push_async_callback(channel.close)
            return EncoderClient(channel)

        async def greedy(each: EncoderClient) -> None:
            texts = ["the sun is a star"] * 1024
            while True:
                with contextlib.suppress(errors.Overloaded):
                    if kind == "stream":
                        async for _ in each.encode_stream(itertools.repeat(texts[:128]), lane="interactive"):
                            pass
                    else:
                        await each.encode(texts if kind == "large calls" else texts[:1])
                await asyncio.sleep(0.01)

        at_once = 60 if kind == "many calls" else 8
        for task in [asyncio.create_task(greedy(one)) for one in map(client, names) for _ in range(at_once)]:
            ends.callback(task.cancel)
        person, slowest_s = client("person", "localhost"), 0.0  # by another name it is another connection
        await until(lambda: queued_tokens(server) > 0)
        await asyncio.sleep(0.3)
        for _ in range(10):
            started = asyncio.get_running_loop().time()
            assert len((await person.encode(["moon"])).vectors) == 1
            slowest_s = max(slowest_s, asyncio.get_running_loop().time() - started)
        assert slowest_s < 5.0, "it waits for a batch or two, whose callers share this loop"


async def test_a_cancelled_caller_never_fails_the_others(serve, tuned, slow) -> None:
    async with serve(workers=1) as (server, client):
        calls = [asyncio.create_task(client.encode([f"sun {n}", "moon"], timeout_s=10)) for n in range(30)]
        await until(lambda: queued_tokens(server) > 0)
        for call in calls[::2]:
            call.cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert all(len(answer.vectors) == 2 for answer in answers[1::2])
        await until(lambda: queued_tokens(server) == 0)


async def test_expired_work_is_dropped_before_it_is_computed(serve, tuned, slow) -> None:
    async with serve(workers=1, batch_items=4) as (server, client):
        first = asyncio.create_task(client.encode(["sun"] * 100, timeout_s=10))
        await asyncio.sleep(0.05)
        with pytest.raises(errors.DeadlineExceeded):
            await client.encode(["moon"] * 100, timeout_s=0.1)
        await first
        await asyncio.sleep(0.2)
        computed = server.metrics.get_sample_value("aeenc_encoder_batch_items_sum")
        assert computed < 200, "texts of the expired call were computed"


async def test_the_timings_of_a_call_add_up(serve, tuned, slow) -> None:
    async with serve(workers=1, batch_items=1) as (_, client):
        rests_s = []
        for _ in range(10):  # between two parts the machine may stall
            calls = await asyncio.gather(*(client.encode(["sun"]) for _ in range(3)))
            timings = max((one.timings for one in calls), key=lambda one: one.queue)  # behind a whole one at least
            parts = [timings.tokenize, timings.queue, timings.compute]
            parts_s = sum(part.total_seconds() for part in parts)
            assert min(timings.queue.total_seconds(), timings.compute.total_seconds()) >= 0.03
            rests_s.append(timings.total.total_seconds() - parts_s)
        assert 0 <= min(rests_s) < 0.05


async def test_a_stream_larger_than_its_lane_waits_for_room_instead_of_being_refused(serve, tuned, slow) -> None:
    batches = [["the sun is a star"] * 64 for _ in range(12)]  # 384 tokens each, and the bulk lane holds 512
    async with serve(queued_tokens=2048) as (server, client):
        answers = [answer async for answer in client.encode_stream(iter(batches), role="premise")]
        assert len(answers) == 12
        refused = server.metrics.get_sample_value("aeenc_encoder_refused_total", {"reason": "queue_full"})
        assert not refused


async def test_people_are_answered_while_a_build_fills_the_bulk_lane(serve, tuned, slow) -> None:
    async with serve(workers=1, batch_items=4) as (server, client):
        texts = [["the sun is a star"] * 128 for _ in range(20)]

        async def build() -> int:
            return len([answer async for answer in client.encode_stream(iter(texts), role="premise")])

        building = asyncio.create_task(build())
        lane = {"lane": "bulk"}
        await until(lambda: (server.metrics.get_sample_value("aeenc_encoder_queued_tokens", lane) or 0) > 500)
        started = asyncio.get_running_loop().time()
        for _ in range(5):
            await client.encode(["moon"])
        assert asyncio.get_running_loop().time() - started < 8, "each waits for a batch or two, not for the build"
        assert not building.done()
        building.cancel()


async def test_health_is_answered_at_once_however_much_work_waits(serve, tuned, slow) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    async with serve(workers=1, batch_items=1) as (server, client):
        calls = [asyncio.create_task(client.encode([f"sun {n}"] * 30, timeout_s=20)) for n in range(8)]
        await until(lambda: queued_tokens(server) > 300)
        stub = health_pb2_grpc.HealthStub(client.channel.grpc)
        started = asyncio.get_running_loop().time()
        answer = await stub.Check(health_pb2.HealthCheckRequest(service="aeenc.v1.EncoderService"))
        await client.info()
        assert asyncio.get_running_loop().time() - started < 5
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert not any(call.done() for call in calls)
        for call in calls:
            call.cancel()


async def test_a_stream_asks_its_context_who_calls_before_any_work(serve, tuned, monkeypatch: pytest.MonkeyPatch):
    """Of a call that has ended `peer` crashes the process, and a batch's work may begin after the caller has gone."""
    asked: list[str] = []

    def counting(context) -> str:
        asked.append(origin(context))
        return asked[-1]

    monkeypatch.setattr(servicer, "origin", counting)
    async with serve() as (_, client):
        assert len([answer async for answer in client.encode_stream([["sun"], ["moon"], ["star"]])]) == 3
    assert len(asked) == 1
