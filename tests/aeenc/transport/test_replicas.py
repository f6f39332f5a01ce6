"""Replicas that come and go behind a DNS name or an address list, under a caller that never stops calling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from aeenc import Channel, EncoderClient
from aeenc.v1 import encoder_pb2_grpc
from services.kit.server import GrpcServer
from services.kit.settings import ServiceSettings
from support.servers.name_server import NameServer
from support.waiting import until
from support.worlds.index_world import HashedEncoder

pytestmark = pytest.mark.timeout(300)  # each of several waits may take most of a minute
HOSTS = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


class Settings(ServiceSettings):
    service = "test"


class Replicas:
    """Encoders on one port of several addresses; `calls` counts the calls of each."""

    def __init__(self) -> None:
        self.port = 0
        self._running: dict[str, tuple[GrpcServer, HashedEncoder]] = {}

    async def start(self, host: str, **settings: Any) -> None:
        """Starts one; the first chooses the port of all."""
        server, servicer = GrpcServer(Settings(host=host, port=self.port, **settings)), HashedEncoder()
        server.add(encoder_pb2_grpc.add_EncoderServiceServicer_to_server, servicer, "aeenc.v1.EncoderService")
        self.port = await server.start()
        server.readiness.serving()
        self._running[host] = server, servicer

    async def stop(self, host: str) -> None:
        """Ends one as SIGTERM does."""
        await self._running.pop(host)[0].stop(2.0, delay_s=0.2)

    async def stop_all(self) -> None:
        """Ends all."""
        for host in list(self._running):
            await self._running.pop(host)[0].stop(0)

    def calls(self) -> dict[str, int]:
        """Returns the calls of each so far."""
        return {host: len(servicer.requests) for host, (_, servicer) in self._running.items()}

    def since(self, before: dict[str, int]) -> dict[str, int]:
        """Returns the calls of each since then."""
        return {host: calls - before.get(host, 0) for host, calls in self.calls().items()}


@pytest.fixture
async def replicas() -> AsyncIterator[Replicas]:
    made = Replicas()
    yield made
    await made.stop_all()


@pytest.fixture
def frequent_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC looks a name up twice in a minute at most; here, ten times a second."""
    plain = grpc.aio.insecure_channel

    def channel(target: str, options: Any = None) -> Any:
        return plain(target, [*(options or []), ("grpc.dns_min_time_between_resolutions_ms", 100)])

    monkeypatch.setattr(grpc.aio, "insecure_channel", channel)


@asynccontextmanager
async def sticky_caller(target: str) -> AsyncIterator[None]:
    """Calls again and again by one channel; fails the test when any call fails."""
    client = EncoderClient(Channel(target, timeout_s=5))

    async def call() -> None:
        while True:
            await client.encode(["ice"])
            await asyncio.sleep(0.002)

    calling = asyncio.ensure_future(call())
    try:
        yield
        assert not calling.done(), calling
    finally:
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        await client.channel.close()


async def shared(replicas: Replicas, hosts: list[str]) -> None:
    """Waits until each of these gets its share of a hundred calls."""

    async def fair() -> bool:
        before = replicas.calls()
        await until(lambda: sum(replicas.since(before).values()) >= 100)
        counts = replicas.since(before)
        return all(counts[host] >= 0.8 * sum(counts.values()) / len(hosts) for host in hosts)

    async with asyncio.timeout(50):
        while not await fair():
            pass


@pytest.mark.usefixtures("frequent_lookups")
@pytest.mark.parametrize("kind", ["name", pytest.param("list", marks=pytest.mark.slow)])
async def test_a_replica_leaves_without_a_failed_call_and_comes_back_to_its_share(
    replicas: Replicas, kind: str
) -> None:
    for host in HOSTS:
        await replicas.start(host, connection_age_s=0.3)
    with NameServer() as names:
        names.known["encoders.test"] = HOSTS
        listed = ",".join(f"{host}:{replicas.port}" for host in HOSTS)
        target = names.target("encoders.test", replicas.port) if kind == "name" else listed
        async with sticky_caller(target):
            await shared(replicas, HOSTS)
            names.known["encoders.test"] = HOSTS[1:]
            await replicas.stop(HOSTS[0])
            await shared(replicas, HOSTS[1:])
            await replicas.start(HOSTS[0], connection_age_s=0.3)
            names.known["encoders.test"] = HOSTS
            await shared(replicas, HOSTS)
