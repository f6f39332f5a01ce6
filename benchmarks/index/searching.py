"""Searches of a served corpus whose premises are p0, p1 …: how many of the true nearest they find, and how fast."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from aeenc import AsyncClient
from benchmarks.index.stand_in_encoder import SPACE

AT_ONCE = 64  # queries in a call


async def recall(
    client: AsyncClient,
    corpus: str,
    queries: NDArray[np.float32],
    truth: Sequence[NDArray[np.int64]],
    k: int,
    splits: Sequence[str] = (),
) -> float:
    """The share of the true k nearest (ordinals for each query) that are found under a filter by splits."""
    hits = 0
    for start in range(0, len(queries), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        answer = await client.index.search(corpus, queries[part], space_id=SPACE, k=k, splits=splits)
        for ids, true in zip(answer.ids, truth[part], strict=True):
            hits += len({f"p{n}" for n in true.tolist()} & set(ids))
    return hits / k / len(queries)


async def rate(
    client: AsyncClient,
    corpus: str,
    queries: NDArray[np.float32],
    k: int,
    callers: int,
    seconds: float,
    *,
    exclude: Sequence[str] = (),
    splits: Sequence[str] = (),
) -> float:
    """Queries a second of callers that wait for their answers, one query a call, under a filter."""
    begun, done = time.monotonic(), 0

    async def caller(number: int) -> None:
        nonlocal done
        while time.monotonic() - begun < seconds:
            number = (number + callers) % len(queries)
            query = queries[number : number + 1]
            await client.index.search(corpus, query, space_id=SPACE, k=k, exclude=exclude, splits=splits)
            done += 1

    await asyncio.gather(*(caller(number) for number in range(callers)))
    return done / (time.monotonic() - begun)
