"""How soon sticky callers find an encoder that joins a DNS name, with connections that age and with such that last."""

from __future__ import annotations

import asyncio
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from aeenc import Channel, EncoderClient
from benchmarks.harness.checkpoints import STORE, base_checkpoint, row_of
from benchmarks.harness.rows import Rows
from services.launcher.processes import free_port
from services.store.artifacts import ArtifactStore
from services.store.redis import connect
from services.store.registry import Registry
from support.servers.name_server import NameServer
from support.service_process import RedisProcess, ServiceProcess

CALLERS, PAUSE_S = 4, 0.05  # calls a caller makes in a second: about twenty
LOOK_S = 2.0  # the calls of so many seconds are counted
SHARE = 0.4  # of the calls, where half is fair
LIMIT_S = 60.0
NAMESPACE = "dns"
COUNTED = 'aeenc_rpc_total{code="OK",method="/aeenc.v1.EncoderService/Encode"}'


class Group:
    """Two encoders on one port of two addresses, under one name; only the first is in it at first."""

    def __init__(self, name: str, home: Path, redis_url: str, **settings: object) -> None:
        self.name, self.port = f"{name}.test", free_port(set())
        self.metrics_ports = [free_port({self.port}) for _ in range(2)]
        self.encoders = [
            ServiceProcess.of(
                "encoder",
                home,
                name=f"{name}-{number}",
                host=f"127.0.0.{number + 1}",
                port=self.port,
                metrics_port=metrics_port,
                redis_url=redis_url,
                namespace=NAMESPACE,
                artifacts_dir=STORE,
                state_dir=home / f"state-{name}-{number}",
                workers=1,
                **settings,
            )
            for number, metrics_port in enumerate(self.metrics_ports)
        ]

    def calls(self) -> list[float]:
        """Returns how many calls each has answered."""
        return [
            _counted(f"http://127.0.0.{number + 1}:{port}/metrics") for number, port in enumerate(self.metrics_ports)
        ]

    async def share(self) -> float:
        """Returns the second one's part of the calls of the next seconds."""
        before = self.calls()
        await asyncio.sleep(LOOK_S)
        first, second = (now - then for now, then in zip(self.calls(), before, strict=True))
        return second / (first + second)


def _counted(url: str) -> float:
    with urllib.request.urlopen(url) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(COUNTED))


@asynccontextmanager
async def calling(target: str) -> AsyncIterator[list[Exception]]:
    """Calls until the block ends; yields the failures, to which it adds."""
    failures: list[Exception] = []

    async def caller() -> None:
        async with AsyncExitStack() as stack:
            channel = Channel(target, timeout_s=10)
            stack.push_async_callback(channel.close)
            client = EncoderClient(channel)
            while True:
                try:
                    await client.encode(["a magnet attracts iron"])
                except Exception as error:  # noqa: BLE001 -- counted
                    failures.append(error)
                await asyncio.sleep(PAUSE_S)

    callers = [asyncio.create_task(caller()) for _ in range(CALLERS)]
    try:
        yield failures
    finally:
        for task in callers:
            task.cancel()
        await asyncio.gather(*callers, return_exceptions=True)


async def dns(rows: Rows, rounds: int, seconds: float) -> None:
    """Seconds from the moment at which a name has a second address until half of the calls go there."""
    del rounds, seconds
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch, NameServer() as names:
        home = Path(scratch)
        redis = RedisProcess(home / "redis")
        try:
            await _add_base(redis.url)
            async with AsyncExitStack() as stack:
                ageing, lasting = (
                    Group("ageing", home, redis.url),
                    Group("lasting", home, redis.url, connection_age_s=0),
                )
                for encoder in (*ageing.encoders, *lasting.encoders):
                    await stack.enter_async_context(encoder.running())
                failures = []
                for group in (ageing, lasting):
                    names.known[group.name] = ["127.0.0.1"]
                    target = names.target(group.name, group.port)
                    failures.append(await stack.enter_async_context(calling(target)))
                await asyncio.sleep(1.0)  # all are connected, and have just looked the name up: the longest wait
                await _measure(rows, names, ageing, lasting, failures)
        finally:
            redis.stop()


async def _measure(
    rows: Rows, names: NameServer, ageing: Group, lasting: Group, failures: list[list[Exception]]
) -> None:
    for group in (ageing, lasting):
        names.known[group.name] = ["127.0.0.1", "127.0.0.2"]
    joined, share, other = time.monotonic(), 0.0, 0.0
    while share < SHARE and time.monotonic() - joined < 2 * LIMIT_S:
        share, other = await asyncio.gather(ageing.share(), lasting.share())
    took = time.monotonic() - joined
    without = f"{other:.0%} of the calls without ageing"
    rows.at_most("a new encoder behind dns:/// has its share of the calls", took, "s", LIMIT_S, without)
    rows.at_least("its share then, where half is fair", share, "of calls", SHARE)
    rows.at_most("calls that failed meanwhile", len(failures[0]), "calls", 0)


async def _add_base(redis_url: str) -> None:
    client = connect(redis_url)
    try:
        registry, row = Registry(client, NAMESPACE), row_of(base_checkpoint(ArtifactStore(STORE)))
        await registry.add_checkpoint(row)
        await registry.set_space(row.space_id, row.version, default=True)
        await registry.set_label(row.space_id, "stable", row.version)
    finally:
        await client.aclose()
