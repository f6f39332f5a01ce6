"""The ends of connections and of services: ageing, and the delay before a drain."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kit.test_server import Settings

from aeenc import Channel, EncoderClient, TrainerClient, errors
from aeenc.v1 import encoder_pb2_grpc, trainer_pb2, trainer_pb2_grpc
from services.kit.server import GrpcServer
from support.waiting import eventually, until
from support.worlds.index_world import HashedEncoder

OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


def build(**fields: Any) -> tuple[GrpcServer, HashedEncoder]:
    server, servicer = GrpcServer(Settings(log_level="warning", **fields)), HashedEncoder()
    server.add(encoder_pb2_grpc.add_EncoderServiceServicer_to_server, servicer, "aeenc.v1.EncoderService")

    async def ready() -> None:
        server.readiness.serving()

    server.on_start(ready)
    return server, servicer


@pytest.fixture
async def slow_call() -> AsyncIterator[Any]:
    """Starts a server with the settings given, and a call of `pause_s` that begins at once."""
    async with AsyncExitStack() as ends:

        async def started(pause_s: float = 1.0, **fields: Any) -> asyncio.Future[Any]:
            server, servicer = build(**fields)
            servicer.pause_s = pause_s
            ends.push_async_callback(server.stop, 0)
            await server.start()
            channel = Channel(f"127.0.0.1:{server.port}", timeout_s=20, retry=False)
            ends.push_async_callback(channel.close)
            return asyncio.ensure_future(EncoderClient(channel).encode(["ice"]))

        yield started


async def test_connections_end_at_their_age_and_not_all_at_once() -> None:
    server, _ = build(connection_age_s=1.0)
    async with server:

        async def age(channel: grpc.aio.Channel) -> tuple[float, float]:
            """The seconds since it was asked for, and since it was seen: after a stall, late."""
            asked = time.monotonic()
            await channel.channel_ready()
            seen = time.monotonic()
            await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
            return time.monotonic() - asked, time.monotonic() - seen

        for _ in range(3):  # an event loop that stalls sees all of them end at once
            channels = [grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", OWN_CONNECTION) for _ in range(12)]
            since_asked, ages = zip(*await asyncio.wait_for(asyncio.gather(*map(age, channels)), 20), strict=True)
            await asyncio.gather(*(channel.close() for channel in channels))
            assert min(since_asked) > 0.3
            if (spread := max(ages) - min(ages)) > 0.03:
                break
    assert spread > 0.03, "they must not all connect again at the same moment"


async def test_without_an_age_connections_stay() -> None:
    server, _ = build(connection_age_s=0)
    async with server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", OWN_CONNECTION) as channel:
        await channel.channel_ready()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(channel.wait_for_state_change(grpc.ChannelConnectivity.READY), 1.5)


async def test_a_call_in_flight_outlasts_its_connection(slow_call) -> None:
    answer = await (await slow_call(connection_age_s=0.2))
    assert answer.vectors.shape == (1, 32)


async def test_a_grace_ends_calls_on_an_old_connection(slow_call) -> None:
    with pytest.raises(errors.Unavailable):
        await (await slow_call(pause_s=10.0, connection_age_s=0.2, connection_grace_s=0.1))


async def test_callers_notice_nothing_of_connections_that_end() -> None:
    server, servicer = build(connection_age_s=0.1)
    async with server:
        channel = Channel(f"127.0.0.1:{server.port}", timeout_s=5, retry=False)
        client, end = EncoderClient(channel), time.monotonic() + 0.8
        while time.monotonic() < end or len(servicer.requests) <= 100:
            await asyncio.gather(*(client.encode(["ice"]) for _ in range(8)))
        await channel.close()


async def test_a_delayed_drain_is_unhealthy_at_once_and_still_takes_calls_of_new_callers() -> None:
    server, _ = build(drain_delay_s=10.0, drain_s=1.0)
    serving = asyncio.ensure_future(server.serve_until_signal())
    await until(lambda: server.readiness.healthy)
    target = f"127.0.0.1:{server.port}"
    begun = time.monotonic()
    os.kill(os.getpid(), signal.SIGTERM)
    await until(lambda: not server.readiness.healthy)
    async with grpc.aio.insecure_channel(target, OWN_CONNECTION) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check

        async def is_unhealthy() -> bool:
            answer = await check(health_pb2.HealthCheckRequest(), timeout=5)
            return bool(answer.status == health_pb2.HealthCheckResponse.NOT_SERVING)

        await eventually(is_unhealthy)
    assert time.monotonic() - begun < 10.0, "health must not wait for the delay"
    channel = Channel(target, retry=False)
    assert (await EncoderClient(channel).encode(["ice"])).vectors.shape == (1, 32)
    await channel.close()
    await asyncio.wait_for(serving, 40)
    assert time.monotonic() - begun > 9.9
    gone = Channel(target, retry=False)
    with pytest.raises(errors.Unavailable, match="no service answers"):
        await EncoderClient(gone).encode(["ice"])
    await gone.close()


async def test_a_watch_of_health_does_not_hold_up_a_drain() -> None:
    server, _ = build(drain_s=60.0)
    await server.start()
    await until(lambda: server.readiness.healthy)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", OWN_CONNECTION) as channel:
        watch = aiter(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()))
        told = [await anext(watch)]
        await asyncio.wait_for(server.stop(), 20)
        told += [answer async for answer in watch]
    kinds = health_pb2.HealthCheckResponse
    assert [answer.status for answer in told] == [kinds.SERVING, kinds.NOT_SERVING]


class UnreadJob(trainer_pb2_grpc.TrainerServiceServicer):
    """A job without end, of many events."""

    async def WatchJob(self, request: Any, context: Any) -> AsyncIterator[trainer_pb2.WatchJobResponse]:
        job = trainer_pb2.Job(id=request.job_id, error="x" * 10_000)
        for seq in range(1, 2 if request.job_id == "silent" else 10_000):
            yield trainer_pb2.WatchJobResponse(seq=seq, job=job)
        await asyncio.Event().wait()


@pytest.mark.parametrize("job_id", ["silent", "eager"])
async def test_a_watch_of_work_ends_with_the_service_while_a_call_in_flight_finishes(job_id: str) -> None:
    server, servicer = build(drain_s=60.0)
    server.add(trainer_pb2_grpc.add_TrainerServiceServicer_to_server, UnreadJob(), "aeenc.v1.TrainerService")
    servicer.pause_s = 2.0
    await server.start()
    await until(lambda: server.readiness.healthy)
    channel = Channel(f"127.0.0.1:{server.port}", retry=False)
    watch = TrainerClient(channel).watch(job_id)
    await anext(watch)
    in_flight = asyncio.ensure_future(EncoderClient(channel).encode(["ice"]))
    await until(lambda: bool(servicer.requests))
    stopping = asyncio.ensure_future(server.stop())
    async with asyncio.timeout(20):
        with pytest.raises(errors.Unavailable, match=r"shutting down; watch again \(with from_seq"):
            _ = [event async for event in watch]
    assert (await in_flight).vectors.shape == (1, 32)
    await asyncio.wait_for(stopping, 20)
    await channel.close()


async def test_a_failed_start_waits_for_no_delay() -> None:
    server, _ = build(drain_delay_s=60.0)

    async def fail() -> None:
        raise errors.FailedPrecondition("the model is not there")

    server.on_start(fail)
    with pytest.raises(errors.FailedPrecondition, match="not there"):
        await asyncio.wait_for(server.serve_until_signal(), 5)
