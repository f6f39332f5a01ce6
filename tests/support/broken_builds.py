"""Builds of corpus `science` that end before their time, and what they leave."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aeenc.v1 import index_pb2, types_pb2
from services.index.building.journal import PREFIX
from services.store.artifacts import ArtifactStore
from support.models.hashed_encoder import premise

PREMISES = [premise(f"p{n}", f"fact {n}") for n in range(60)]


async def broken_build(
    index: Any,
    premises: Sequence[types_pb2.Premise] = PREMISES,
    *,
    durable: int = 40,
    rows: int = 16,
    request_id: str = "r",
    **fields: Any,
) -> index_pb2.BuildGenerationResponse:
    """Streams premises until so many are durable, and the vectors of so many; then the caller goes away."""
    wait = asyncio.Event()
    header = index_pb2.BuildHeader(corpus="science", request_id=request_id, **fields)

    async def requests():
        yield index_pb2.BuildGenerationRequest(header=header)
        for start in range(0, len(premises), 20):
            chunk = index_pb2.PremiseChunk(premises=premises[start : start + 20])
            yield index_pb2.BuildGenerationRequest(chunk=chunk)
        await wait.wait()

    stream = index.client._admin_channel.stream(index.client._admin.BuildGeneration, requests(), timeout_s=20)
    async for report in stream:
        is_durable = report.ack_level == index_pb2.ACK_LEVEL_DURABLE
        if report.durable >= durable and is_durable and report.encoded >= rows:
            await stream.aclose()
            return report
    raise AssertionError("the build ended")


def works(store: ArtifactStore) -> list[Path]:
    """The directories of unfinished builds of `science`."""
    return list((store.root / "generations/science").glob(f"{PREFIX}*"))


def indexing_processes() -> list[int]:
    """The ids of our children that index."""
    children = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    return [
        int(pid)
        for pid in children
        if b"services.index.building.index_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
