"""The costs of queues of people: `make bench NAME=queue-costs`. A minute.

Runs that follow their label while thousands of tasks wait must not hold up the sampler's loop, idle runs must leave
Redis alone, and people who qualify together must not wait for each other. The sampler is a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path

import aeenc
from aeenc import errors
from aeenc.v1 import index_pb2_grpc
from benchmarks.harness.rows import Rows
from services.store.redis import connect
from support.service_process import RedisProcess, ServiceProcess
from support.waiting import eventually
from support.worlds.sampler_world import FakeIndex, serving

LIVE_RUNS, TREES = 5, 800
IDLE_RUNS, IDLE_S = 30, 20.0
PEOPLE = 100
LOOKS, LOOK_EVERY_S = 300, 0.04


async def main() -> None:
    """Each part with a Redis and a sampler of its own."""
    rows = Rows("queue-costs")
    for part in (open_tasks, idle_runs, qualifying):
        with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as directory:
            redis = RedisProcess(Path(directory))
            controls = Path(directory) / "controls.jsonl"
            item = {"query": "what is iron", "explains": ["iron is a metal"], "refuses": ["ice is cold"]}
            controls.write_text(json.dumps(item))
            queues = {"team": {}, "new": {"controls": str(controls), "qualify": 1}}
            async with serving(index_pb2_grpc.add_IndexServiceServicer_to_server, FakeIndex()) as port:
                target = f"127.0.0.1:{port}"
                settings = {"redis_url": redis.url, "namespace": "bench", "index_target": target, "queues": queues}
                process = ServiceProcess.of("sampler", Path(directory), **settings)
                process.start()
                try:
                    client = aeenc.SamplerClient(aeenc.Channel(process.target, retry=aeenc.PATIENT))
                    await part(rows, client, aeenc.PeopleClient(client.channel), redis)
                finally:
                    process.kill()
                    redis.stop()
    rows.finish()


async def started(
    client: aeenc.SamplerClient, people: aeenc.PeopleClient, runs: int, trees: int, queue: str, *, live: bool = False
) -> None:
    """So many runs of so many trees each, all of whose tasks wait."""
    [run async for run in client.list_runs()]
    for number in range(runs):
        roots = [(f"{number}-{tree}", f"hypothesis {number}.{tree}") for tree in range(trees)]
        await client.start_run(roots, corpus="science", oracle=queue, k=6, live=live)

    async def all_wait() -> bool:
        return sum(one.total.waiting for one in await people.list_queues()) >= runs * trees

    await eventually(all_wait, timeout_s=60)


async def slowest_s(client: aeenc.SamplerClient) -> float:
    """Of many GetInfo over some seconds."""
    slowest = 0.0
    for _ in range(LOOKS):
        begun = time.monotonic()
        await client.info()
        slowest = max(slowest, time.monotonic() - begun)
        await asyncio.sleep(LOOK_EVERY_S)
    return slowest


async def open_tasks(rows: Rows, client: aeenc.SamplerClient, people: aeenc.PeopleClient, redis: RedisProcess) -> None:
    """Live runs with thousands of open tasks."""
    [run async for run in client.list_runs()]
    quiet_s = await slowest_s(client)
    await started(client, people, LIVE_RUNS, TREES, "team", live=True)
    over_ms = (await slowest_s(client) - quiet_s) * 1000
    rows.at_most(f"GetInfo's slowest over quiet, {LIVE_RUNS * TREES:,} open tasks", over_ms, "ms", 20.0, quiet_s * 1000)
    await commands(rows, redis, f"{LIVE_RUNS} live runs, {LIVE_RUNS * TREES:,} open tasks")


async def idle_runs(rows: Rows, client: aeenc.SamplerClient, people: aeenc.PeopleClient, redis: RedisProcess) -> None:
    """Runs that wait for people who are not there."""
    await started(client, people, IDLE_RUNS, 1, "team")
    await commands(rows, redis, f"{IDLE_RUNS} idle runs", 60.0)


async def commands(rows: Rows, redis: RedisProcess, what: str, most: float = 1000.0) -> None:
    """Redis commands a second."""
    async with connect(redis.url) as store:
        before = (await store.info("stats"))["total_commands_processed"]
        await asyncio.sleep(IDLE_S)
        after = (await store.info("stats"))["total_commands_processed"]
        rows.at_most(f"Redis commands a second, {what}", (after - before) / IDLE_S, "1/s", most)


async def qualifying(rows: Rows, client: aeenc.SamplerClient, people: aeenc.PeopleClient, _: RedisProcess) -> None:
    """People who answer the same control item at once."""
    await started(client, people, 1, PEOPLE, "new")
    leases = [lease for number in range(PEOPLE) for lease in await people.lease(f"person {number}")]
    aborted = 0

    async def submit(lease: aeenc.values.Lease) -> float:
        nonlocal aborted
        begun = time.monotonic()
        try:
            await people.submit(lease, [])
        except errors.Aborted:
            aborted += 1
        return time.monotonic() - begun

    slowest = max(await asyncio.gather(*(submit(lease) for lease in leases)))
    rows.at_most(f"{PEOPLE} people qualify at once: slowest submit", slowest, "s", 0.5)
    rows.at_most("aborted", aborted, "", 0)


if __name__ == "__main__":
    asyncio.run(main())
