"""The pairs of large runs on their way to a job: other calls are answered meanwhile, and memory holds a text once."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

from aeenc.v1 import sampler_pb2, types_pb2
from services.kit.concurrency import cancel_all
from services.trainer.jobs.files import JobFiles
from services.trainer.jobs.pair_sources import SampledPairs
from services.trainer.jobs.training_set import JudgedPair

PAGE = 1000


class LargeRun:
    """A sampler with one run. It takes a turn of the event loop for each page, as the network does."""

    def __init__(self, pairs: int) -> None:
        self._pairs = pairs

    async def get_run(self, _run_id: str) -> sampler_pb2.Run:
        return sampler_pb2.Run(config=sampler_pb2.RunConfig(split="train"))

    async def list_pairs(self, _run_id: str) -> AsyncIterator[types_pb2.Pair]:
        for n in range(self._pairs):
            if not n % PAGE:
                await asyncio.sleep(0)
            yield types_pb2.Pair(query="the same hypothesis", premise_id=f"p{n}", premise="a fact", sign=1)


async def test_reading_the_pairs_of_a_large_run_leaves_other_calls_their_turns():
    longest_s = 0.0

    async def tick() -> None:
        nonlocal longest_s
        while True:
            before_s = time.thread_time()  # unlike the time of day it does not depend on what else the machine does
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.thread_time() - before_s)

    ticking = asyncio.create_task(tick())
    gc.disable()
    try:
        pairs = await SampledPairs(LargeRun(200_000)).read(("r",))  # type: ignore[arg-type]
        await asyncio.sleep(0)
    finally:
        gc.enable()
        await cancel_all([ticking])
    assert len(pairs) == 200_000
    assert longest_s < 0.1


async def test_a_text_that_many_pairs_share_is_kept_once():
    pairs = await SampledPairs(LargeRun(10)).read(("r1", "r2"))  # type: ignore[arg-type]
    assert len(pairs) == 20
    assert len({id(text) for pair in pairs for text in (pair.query, pair.premise)}) == 2


def test_a_jobs_inputs_are_written_as_they_come(tmp_path: Path):
    pairs = (JudgedPair("the same hypothesis", f"p{n}", "a fact" * 500, "POSITIVE") for n in range(3000))
    tracemalloc.start()
    try:
        JobFiles(tmp_path / "job").write_inputs(pairs, [])
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "job" / "inputs.jsonl").stat().st_size > 9_000_000
    assert most_bytes < 3_000_000, "hashing alone takes two blocks of 1 MiB"
