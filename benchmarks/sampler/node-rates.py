"""How many nodes a second a sampler judges, and what it spends on one: `make bench NAME=node-rates`. Half a minute.

An oracle that answers at once shows what the sampler itself costs; one that is asked 64 times at once and thinks for
0.2 s, that nothing waits meanwhile; `aeenc oracle gold` over EntailmentBank's train trees, what a node of a real tree
costs. On a busy machine the processor time of the sampler tells more than the clock.
It takes nothing that older revisions lack: `make bench NAME=against ARGS='REV node-rates'`.
"""

from __future__ import annotations

import asyncio
import tempfile
import zlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

import aeenc
from aeenc.trees import Dataset
from aeenc.v1 import index_pb2_grpc, oracle_pb2_grpc
from benchmarks.harness.entailmentbank import DATA, entailmentbank
from benchmarks.harness.rows import Rows
from services.launcher.processes import free_port
from support.service_process import RedisProcess, ServiceProcess
from support.worlds import sampler_world
from support.worlds.sampler_world import FakeIndex, FakeOracle, serving

LIVE = (1, 2)  # pending, running
TREES = {"null oracle": 1500, "64 calls of 0.2 s": 400}
SPLIT, K = "train", 20


async def main() -> None:
    """A run of each oracle over one sampler, after a short one."""
    rows, oracles, dataset = Rows("node-rates"), (FakeOracle(), FakeOracle(delay_s=0.2)), entailmentbank()
    gold_port = free_port(set())
    command = ["-m", "aeenc.cli.main", "oracle", "gold", "--trees", str(DATA), "--split", SPLIT]
    command += ["--address", f"127.0.0.1:{gold_port}"]
    register = oracle_pb2_grpc.add_OracleServiceServicer_to_server
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as directory:
        redis = RedisProcess(Path(directory))
        async with (
            serving(index_pb2_grpc.add_IndexServiceServicer_to_server, FakeIndex()) as index,
            serving(register, oracles[0]) as null,
            serving(register, oracles[1]) as slow,
            ServiceProcess("oracle", command, Path(directory), port=gold_port, has_health=False).running() as gold,
        ):
            many = {"target": f"127.0.0.1:{slow}", "max_concurrency": 64, "batch_tasks": 1}
            named = {
                **dict(zip(TREES, ({"target": f"127.0.0.1:{null}"}, many), strict=True)),
                "gold": {"target": gold.target},
            }
            settings = {"redis_url": redis.url, "index_target": f"127.0.0.1:{index}", "oracles": named}
            process = ServiceProcess.of("sampler", Path(directory), namespace="bench", **settings)
            process.start()
            try:
                client = aeenc.SamplerClient(aeenc.Channel(process.target, retry=aeenc.PATIENT))
                await judged(client, "null oracle", hypotheses("warm", 40))
                for oracle, trees in TREES.items():
                    await rate(rows, process.pid, judged(client, oracle, hypotheses(oracle, trees)), oracle)
                sampler_world.nearest, sampler_world.FACTS = nearest_of(dataset), len(dataset.candidates())
                roots = [(f"{place}-{tree.id}", tree.hypothesis) for place, tree in enumerate(dataset.trees(SPLIT))]
                await rate(rows, process.pid, judged(client, "gold", roots, k=K, max_depth=8), "gold")
            finally:
                process.kill()
                redis.stop()
    rows.finish()


def hypotheses(name: str, count: int) -> list[tuple[str, str]]:
    """The roots of a run, none of which another has."""
    return [(str(tree), f"hypothesis {name} {count} {tree}") for tree in range(count)]


def nearest_of(dataset: Dataset) -> Callable[..., list[tuple[str, str, float]]]:
    """Finds what explains a query in its tree, and the candidates that follow it."""
    ids = {candidate.text: f"p{place}" for place, candidate in enumerate(dataset.candidates())}
    texts, gold = [*ids], {query.text: query.gold for query in dataset.queries(SPLIT)}

    def nearest(query: str, *_: Any, **__: Any) -> list[tuple[str, str, float]]:
        start = zlib.crc32(query.encode()) % (len(texts) - K)
        found = dict.fromkeys([*gold.get(query, ()), *texts[start : start + K]])
        return [(ids[text], text, 1 - rank / 100) for rank, text in enumerate(found) if text in ids and text != query]

    return nearest


async def rate(rows: Rows, pid: int, run: Awaitable[tuple[int, float]], oracle: str) -> None:
    """Notes the rates of a run."""
    before = sum(psutil.Process(pid).cpu_times()[:2])
    nodes, seconds = await run
    spent = sum(psutil.Process(pid).cpu_times()[:2]) - before
    rows.note(f"{oracle}: judged nodes", nodes / seconds, "1/s", nodes)
    rows.note(f"{oracle}: judged nodes by processor time", nodes / spent, "1/s", nodes)


async def judged(
    client: aeenc.SamplerClient, oracle: str, roots: Sequence[tuple[str, str]], k: int = 6, max_depth: int = 2
) -> tuple[int, float]:
    """The nodes of a run, and its seconds as the sampler records them."""
    run = await client.start_run(roots, corpus="science", oracle=oracle, k=k, max_depth=max_depth)
    while (found := await client.get_run(run.id)).state in LIVE:  # noqa: ASYNC110 -- the run is in another process
        await asyncio.sleep(0.1)
    assert found.ended_at is not None
    return found.progress.nodes_judged, (found.ended_at - found.created_at).total_seconds()


if __name__ == "__main__":
    asyncio.run(main())
