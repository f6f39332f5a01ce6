"""The stages of Retrieve for one caller in their own thread, without an event loop: for `services.local` and tuning."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from services.index.catalogue.served import ServedGeneration
from services.index.dense.approximate import RemoteIndex
from services.index.dense.batcher import BATCH_QUERIES, apart
from services.index.values import SearchHits, SearchParams, Selection, Timings

T = TypeVar("T")


async def search(
    served: ServedGeneration,
    queries: NDArray[np.float32],
    k: int,
    selection: Selection,
    params: SearchParams,
    _deadline_s: float | None,  # nobody waits behind this call
    timings: Timings,
) -> list[SearchHits]:
    """Finds the k nearest premises of each query (n, dim), as the batcher does."""
    assert not isinstance(served.index, RemoteIndex)  # opened without Milvus
    started, found = time.perf_counter(), list[SearchHits]()
    selection, excluded = apart(selection, k)
    allowed = served.allowed(selection)
    for start in range(0, len(queries), BATCH_QUERIES):
        part = queries[start : start + BATCH_QUERIES]
        for hits in served.index.steps(part, k + len(excluded), allowed, params):
            found += [one.without(excluded, k) for one in hits or ()]
    timings.add(0.0, time.perf_counter() - started)
    return found


async def each(rows: Sequence[int], work: Callable[[int], T], _deadline: float | None, timings: Timings) -> list[T]:
    """Runs `work` for each row, as the executor does."""
    started = time.perf_counter()
    done = [work(row) for row in rows]
    timings.add(0.0, time.perf_counter() - started)
    return done


async def at_once(work: Callable[[], T]) -> T:
    """Does work where others leave it to a thread."""
    return work()


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that waits for nothing, such as stages that were given what is here."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    coroutine.close()
    raise RuntimeError("a stage waits for an event loop, and there is none")
