"""Which modules of the index one Retrieve enters: mode hybrid with the prior, features and a re-ranker.

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

from aeenc import AsyncClient, Fusion
from benchmarks.harness.rows import ROOT, Rows

PREMISES = 1_200  # from a thousand on, integers propose
MODULES = 12  # at most
PACKAGES = ("services.index", "services.corpus")
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


def main() -> None:
    """Traces, prints and writes the row."""
    sys.path.append(str(ROOT / "tests"))
    rows = Rows("hops")
    with tempfile.TemporaryDirectory() as folder:
        entered = asyncio.run(modules_entered(retrieve(Path(folder)), PACKAGES))
    print(json.dumps(entered, indent=1))
    rows.at_most("modules of the index that one Retrieve enters", len(entered), "modules", MODULES)
    rows.finish()


if __name__ == "__main__":
    main()
