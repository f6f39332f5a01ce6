"""`make bench NAME=answers`: the memory that the largest calls take, of the encoder and of the index.

Of each read call the largest request that is not refused, found by halving; once to warm up, then eight at once. The
row is the most anonymous memory (RssAnon) meanwhile over what was held before, less the answers' own bytes. Loopback
only; three minutes.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from aeenc import AsyncClient, vectors
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc, index_pb2, index_pb2_grpc, types_pb2
from benchmarks.encoder.hostile import CORPUS, LONG, SHORT, running
from benchmarks.harness.baselines import run
from benchmarks.harness.checkpoints import STORE, base_checkpoint
from benchmarks.harness.rows import ROOT, Rows
from benchmarks.scale.distributed import anonymous_bytes
from services.kit.credentials.credential_file import new_token
from services.store.artifacts import ArtifactStore

PREMISES, DIM = 8000, 384
AT_ONCE, MOST_MB = 8, 64.0
ITEMS, K = 1024, 1000
AGAIN = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED}  # of eight at once
LOOK_S = 0.002
CALL_S = 120.0
MODES = ("DENSE", "LEXICAL", "HYBRID", "ITERATIVE_LEXICAL")
TOO_LARGE = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
Call = Callable[[int], Awaitable[Any]]


def calls(encoder: Any, index: Any, space_id: str, metadata: Sequence[tuple[str, str]]) -> Iterator[tuple[str, Call]]:
    """Each read call with a name and how many items it is to have."""
    sent = {"metadata": metadata, "timeout": CALL_S}
    rows = np.random.default_rng(0).normal(size=(ITEMS, DIM)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)

    def search(k: int) -> Call:
        return lambda n: index.Search(
            index_pb2.SearchRequest(corpus=CORPUS, vectors=vectors.to_proto(rows[:n]), space_id=space_id, k=k), **sent
        )

    def retrieve(mode: str, k: int) -> Call:
        wanted = index_pb2.RetrieveMode.Value(f"RETRIEVE_MODE_{mode}")
        return lambda n: index.Retrieve(
            index_pb2.RetrieveRequest(corpus=CORPUS, texts=[SHORT] * n, k=k, options={"mode": wanted}), **sent
        )

    texts = [f"{n}: {LONG}" for n in range(ITEMS)]
    yield (
        "Encode",
        lambda n: encoder.Encode(
            encoder_pb2.EncodeRequest(texts=texts[:n], role=encoder_pb2.ROLE_QUERY, lane=encoder_pb2.LANE_BULK), **sent
        ),
    )
    for k in (K, 10):
        yield f"Search, k {k}", search(k)
        for mode in MODES:
            yield f"Retrieve {mode}, k {k}", retrieve(mode, k)
    ids = [f"p{n}" for n in range(PREMISES)]
    yield "GetPremises", lambda n: index.GetPremises(index_pb2.GetPremisesRequest(corpus=CORPUS, ids=ids[:n]), **sent)
    yield (
        "ListPremises",
        lambda n: index.ListPremises(index_pb2.ListPremisesRequest(corpus=CORPUS, page_size=n), **sent),
    )


async def largest(call: Call) -> tuple[int, int]:
    """Returns the most items, a power of two, that the call is not refused for, and the bytes of its answer."""
    items = ITEMS
    while True:
        try:
            return items, (await call(items)).ByteSize()
        except grpc.aio.AioRpcError as error:
            if error.code() not in TOO_LARGE or items == 1:
                raise
            items //= 2


async def answered(call: Call, items: int) -> int:
    """Calls until the answer is there, since one of eight may be told to wait; returns its bytes."""
    while True:
        try:
            return int((await call(items)).ByteSize())
        except grpc.aio.AioRpcError as error:
            if error.code() not in AGAIN:
                raise
            await asyncio.sleep(0.1)


async def peak_over(pids: Sequence[int], work: Awaitable[Any]) -> tuple[float, Any]:
    """Returns by how many bytes the processes grew at most while the work was done, and its result."""
    before = peak = sum(map(anonymous_bytes, pids))
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait([task], timeout=LOOK_S)
        peak = max(peak, sum(map(anonymous_bytes, pids)))
    return peak - before, task.result()


async def measure(rows: Rows, root: Path) -> None:
    """Measures each call."""
    store = ArtifactStore(STORE)
    base, token = base_checkpoint(store), new_token()
    async with running(store, base, [token], root) as (fleet, index):
        targets = {"encoder": fleet.process.target, "index": index.target}
        async with AsyncClient(**targets, token=token, timeout_s=CALL_S) as admin:
            facts = [
                types_pb2.Premise(id=f"p{n}", text=f"{n}: what heats the ice of place {n}?") for n in range(PREMISES)
            ]
            await admin.index.build(CORPUS, facts)
        options = [("grpc.max_receive_message_length", -1)]
        metadata = [("authorization", f"Bearer {token}")]
        pids = [fleet.process.pid, index.pid]
        async with (
            grpc.aio.insecure_channel(targets["encoder"], options=options) as to_encoder,
            grpc.aio.insecure_channel(targets["index"], options=options) as to_index,
        ):
            stubs = encoder_pb2_grpc.EncoderServiceStub(to_encoder), index_pb2_grpc.IndexServiceStub(to_index)
            for name, call in calls(*stubs, base.meta["space_id"], metadata):
                items, answer_bytes = await largest(call)
                grown, sizes = await peak_over(pids, asyncio.gather(*(answered(call, items) for _ in range(AT_ONCE))))
                told = {
                    "items": items,
                    "answer_mb": round(answer_bytes / 2**20, 2),
                    "grown_mb": round(grown / 2**20, 1),
                }
                rows.at_most(f"{name}: over the answers of eight", (grown - sum(sizes)) / 2**20, "MiB", MOST_MB, told)


async def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout whose services run")
    rows = Rows("answers")
    await measure(rows, parser.parse_args().root.resolve())
    rows.finish()


if __name__ == "__main__":
    run(main())
