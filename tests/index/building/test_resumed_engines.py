"""Builds that are broken off and gone on with, with halved vectors and an engine that is built for them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from aeenc import errors
from support.waiting import until
from support.worlds.index_world import broken_build, indexing_processes, premise, raises, works

PREMISES = [premise(f"p{n}", f"fact {n} of {n % 37} in {n % 53}") for n in range(1500)]
QUICK = {"recall": 0.9, "build_threads": 1}
SYNC = {"build_sync_s": 0.01, "build_encode_timeout_s": 10.0}


async def test_a_build_that_was_gone_on_with_gives_the_generation_of_one_that_was_not(serve, encoder):
    halved = {"engine": "ivf", "storage": "float16", **SYNC, **QUICK}
    async with serve(**halved) as index:
        whole = await index.client.build("science", PREMISES)
        report = await broken_build(index, PREMISES, durable=1400, rows=1000)
    encoder.servicer.encoded_premises.clear()
    async with serve(**{**halved, "storage": "float32"}) as index:  # too late: the vectors are halves already
        resumed = await index.client.build("science", PREMISES, request_id="r")
        assert (resumed.id, resumed.engine) == (whole.id, "ivf")
        # a batch of the broken build may still be encoded behind its last row
        assert not set(encoder.servicer.encoded_premises) & {one.text for one in PREMISES[: report.encoded]}


async def test_a_build_whose_indexing_is_killed_goes_on_behind_its_vectors(serve, encoder):
    async with serve(engine="ivf", **SYNC, **QUICK) as index:
        call = asyncio.ensure_future(index.client.build("science", PREMISES, request_id="r"))
        found: list[int] = []

        def is_indexing() -> bool:
            found[:] = indexing_processes()
            return bool(found)

        await until(is_indexing)
        os.kill(found[0], signal.SIGKILL)
        generation = await call
        assert (generation.premises, generation.engine, generation.active) == (1500, "ivf", True)
        assert len(encoder.servicer.encoded_premises) < 2000, "all was encoded again"
        assert not works(index.store)


async def test_a_build_whose_indexing_always_dies_is_given_up(serve):
    async with serve(engine="ivf", **SYNC, **QUICK) as index:
        call = asyncio.ensure_future(index.client.build("science", PREMISES, request_id="r", resume_s=1.0))
        killed = set()
        while not call.done():
            with contextlib.suppress(ProcessLookupError):
                for process in indexing_processes():
                    os.kill(process, signal.SIGKILL)
                    killed.add(process)
            await asyncio.sleep(0.01)
        await raises(errors.Unavailable, call, "signal 9", "same request_id")
        assert len(killed) > 1
        assert len(works(index.store)) == 1, "what was durable is kept"
