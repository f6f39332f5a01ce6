"""Which modules of the index one Retrieve enters, in mode hybrid with the prior, features and a re-ranker, and which of
the sampler one node of a run enters, from its retrieval to its commit.

    make bench NAME=hops

Prints them as JSON, and how many there are. Another call is traced alike: `modules_entered` takes whatever opens it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from aeenc import AsyncClient, Fusion
from benchmarks.harness.rows import ROOT, Rows
from services.sampler.execution.run_worker import RunWorker

PREMISES = 1_200  # from a thousand on, integers propose
Call = Callable[[], Awaitable[object]]


async def modules_entered(opened: AbstractAsyncContextManager[Call], packages: tuple[str, ...]) -> list[str]:
    """Lists the modules of some packages that a call enters, in any thread that starts while it is `opened`.

    It is made twice, and the second one counts: what the first has opened and prepared stays.
    """
    entered, is_traced = set[str](), False

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        if is_traced and event == "call":
            entered.add(str(frame.f_globals.get("__name__")))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        async with opened as call:
            await call()
            is_traced = True
            await call()
            is_traced = False
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(name for name in entered if name.startswith(packages))


@asynccontextmanager
async def retrieve(artifacts: Path) -> AsyncIterator[Call]:
    """Opens an index beside a hashed encoder, with the call that goes through all stages."""
    from services.index.__main__ import build
    from services.index.settings import IndexSettings
    from support.waiting import until
    from support.worlds.index_world import FACTS, RunningEncoder, premise

    encoder = RunningEncoder()
    await encoder.server.start()
    server = build(IndexSettings(port=0, artifacts_dir=artifacts, encoder_target=encoder.target))
    async with server:
        await until(lambda: server.readiness.answers)
        async with AsyncClient(index=f"127.0.0.1:{server.port}") as client:
            texts = [f"{FACTS[n % len(FACTS)]} {n}" for n in range(PREMISES)]
            await client.index.build("science", [premise(f"p{n}", text) for n, text in enumerate(texts)])
            await client.index.put_explanations("science", [("iron conducts heat", ["p1", "p2"])])
            fusion = Fusion(features={"first": 3.0, "iterative": 0.5})
            options: dict[str, Any] = {"mode": "hybrid", "prior": 0.1, "rerank": 20, "fusion": fusion}
            yield lambda: client.index.retrieve("science", ["ice conducts heat"], k=10, **options)
    await encoder.stop()


@asynccontextmanager
async def node(folder: Path) -> AsyncIterator[Call]:
    """Opens a sampler whose worker stands still, with the call that judges its next node by a remote oracle."""
    from support.service_process import RedisProcess
    from support.worlds.sampler_world import HYPOTHESES, small_world

    workers: asyncio.Queue[RunWorker] = asyncio.Queue()

    async def stand_still(worker: RunWorker) -> None:
        workers.put_nowait(worker)
        await asyncio.Event().wait()

    redis = RedisProcess(folder)
    with patch.object(RunWorker, "work", stand_still):
        async with small_world(redis.url, "hops") as world, world.sampler(poll_s=60.0, lease_s=60.0) as client:
            await client.start_run(HYPOTHESES, corpus="science", oracle="fake", k=6)
            worker = await workers.get()
            await worker._read_trees()  # noqa: SLF001 -- as `work` does
            nodes = iter(worker._put_to_work())  # noqa: SLF001
            yield lambda: worker.judge_node(*next(nodes))
    redis.stop()


TRACED = (  # what is counted, the call, its packages, the most modules
    ("modules of the index that one Retrieve enters", retrieve, ("services.index", "services.corpus"), 12),
    ("modules of the sampler that one node enters", node, ("services.sampler",), 8),
)


def main() -> None:
    """Traces, prints and writes the rows."""
    sys.path.append(str(ROOT / "tests"))
    rows = Rows("hops")
    for counted, opened, packages, most in TRACED:
        with tempfile.TemporaryDirectory() as folder:
            entered = asyncio.run(modules_entered(opened(Path(folder)), packages))
        print(json.dumps(entered, indent=1))
        rows.at_most(counted, len(entered), "modules", most)
    rows.finish()


if __name__ == "__main__":
    main()
