"""How many nodes a second a sampler judges, and what it spends on one: `make bench NAME=node-rates`. Half a minute.

An oracle that answers at once shows what the sampler itself costs; one that is asked 64 times at once and thinks for
0.2 s, that nothing waits meanwhile. On a busy machine the processor time of the sampler tells more than the clock.
It takes nothing that older revisions lack: `make bench NAME=against ARGS='REV node-rates'`.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import psutil

import aeenc
from aeenc.v1 import index_pb2_grpc, oracle_pb2_grpc
from benchmarks.harness.rows import Rows
from support.service_process import RedisProcess, ServiceProcess
from support.worlds.sampler_world import FakeIndex, FakeOracle, serving

LIVE = (1, 2)  # pending, running
TREES = {"null oracle": 1500, "64 calls of 0.2 s": 400}


async def main() -> None:
    """A run of each oracle over one sampler, after a short one."""
    rows, oracles = Rows("node-rates"), (FakeOracle(), FakeOracle(delay_s=0.2))
    register = oracle_pb2_grpc.add_OracleServiceServicer_to_server
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as directory:
        redis = RedisProcess(Path(directory))
        async with (
            serving(index_pb2_grpc.add_IndexServiceServicer_to_server, FakeIndex()) as index,
            serving(register, oracles[0]) as null,
            serving(register, oracles[1]) as slow,
        ):
            many = {"target": f"127.0.0.1:{slow}", "max_concurrency": 64, "batch_tasks": 1}
            named = dict(zip(TREES, ({"target": f"127.0.0.1:{null}"}, many), strict=True))
            settings = {"redis_url": redis.url, "index_target": f"127.0.0.1:{index}", "oracles": named}
            process = ServiceProcess.of("sampler", Path(directory), namespace="bench", **settings)
            process.start()
            try:
                client = aeenc.SamplerClient(aeenc.Channel(process.target, retry=aeenc.PATIENT))
                await judged(client, "null oracle", 40)
                for oracle, trees in TREES.items():
                    before = sum(psutil.Process(process.pid).cpu_times()[:2])
                    nodes, seconds = await judged(client, oracle, trees)
                    spent = sum(psutil.Process(process.pid).cpu_times()[:2]) - before
                    rows.note(f"{oracle}: judged nodes", nodes / seconds, "1/s", nodes)
                    rows.note(f"{oracle}: judged nodes by processor time", nodes / spent, "1/s", nodes)
            finally:
                process.kill()
                redis.stop()
    rows.finish()


async def judged(client: aeenc.SamplerClient, oracle: str, trees: int) -> tuple[int, float]:
    """The nodes of a run, and its seconds as the sampler records them."""
    roots = [(str(tree), f"hypothesis {oracle} {trees} {tree}") for tree in range(trees)]
    run = await client.start_run(roots, corpus="science", oracle=oracle, k=6, max_depth=2)
    while (found := await client.get_run(run.id)).state in LIVE:  # noqa: ASYNC110 -- the run is in another process
        await asyncio.sleep(0.1)
    assert found.ended_at is not None
    return found.progress.nodes_judged, (found.ended_at - found.created_at).total_seconds()


if __name__ == "__main__":
    asyncio.run(main())
