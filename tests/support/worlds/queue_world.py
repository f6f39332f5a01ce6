"""A run whose oracle is a queue of people, and what its tests do over and over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aeenc
from aeenc.v1 import sampler_pb2, types_pb2
from support.waiting import eventually
from support.worlds.sampler_world import World

QUEUE = {"undo_s": 0.0, "min_lease_s": 30.0, "first_lease_s": 30.0}
NEVER = 3600.0


@asynccontextmanager
async def at_work(
    world: World, hypotheses: int = 2, **queue: Any
) -> AsyncIterator[tuple[aeenc.PeopleClient, aeenc.SamplerClient, str]]:
    """A run of some hypotheses, none of which grows, whose oracle is the queue `team`."""
    async with world.sampler(queues={"team": {**QUEUE, **queue}}) as sampler:
        people = aeenc.PeopleClient(sampler.channel)
        roots = [(f"tree-{n}", f"hypothesis {n}") for n in range(hypotheses)]
        run = await sampler.start_run(roots, corpus="science", oracle="team", k=4, max_depth=0)

        async def queued() -> bool:
            return len([task async for task in people.tasks(run.id)]) == hypotheses

        await eventually(queued)
        yield people, sampler, run.id


async def take(people: aeenc.PeopleClient, name: str, run_id: str = "") -> sampler_pb2.Lease:
    [lease] = await people.lease(name, run_id=run_id)
    return lease


async def pairs(sampler: aeenc.SamplerClient, run_id: str) -> list[types_pb2.Pair]:
    return [pair async for pair in sampler.pairs(run_id)]
