"""SIGKILL in the middle of builds, activations and deletions; `make bench NAME=promises` kills indexes of a fleet."""

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable
from typing import Any

import pytest

from aeenc import IndexClient, errors
from aeenc.v1 import types_pb2
from benchmarks.fleet.fleet import PREMISES, take_over
from benchmarks.harness.services import running_index
from benchmarks.index.stand_in_encoder import StandInEncoder
from services.corpus.generation import folder_of
from services.store.artifacts import ArtifactStore
from support.waiting import reached

PACE = {"build_sync_s": 0.02, "build_batch": 8}


@pytest.mark.slow
@pytest.mark.parametrize("kills", [6, pytest.param(20, marks=pytest.mark.crash)])
async def test_nothing_acknowledged_is_lost_by_kills_and_nothing_half_built_is_served(kills: int):
    rng, active, sent = random.Random(3), "", list[tuple[str, str]]()
    model: dict[str, list[tuple[str, str]]] = {}  # premises by generation
    kind = chosen = ""  # of the call that a kill broke into: it has happened, or it has not
    async with StandInEncoder(pause_s=0.003) as encoder, running_index(encoder_target=encoder.target, **PACE) as index:
        store = ArtifactStore(index.artifacts_dir)
        for number in range(kills + 1):
            client = index.client(retry=False, timeout_s=10)
            await reached(client.info, times=100)  # gRPC may remember for two seconds that nobody listened
            found = await generations(client)
            new = set(found) - set(model)
            assert set(model) - set(found) <= {chosen if kind == "delete" else ""}
            assert len(new) <= (kind == "build")
            now = "".join(one for one, is_active in found.items() if is_active)
            assert now in {active, *new, chosen if kind == "activate" else active}
            active = now
            model = {one: model.get(one, sent) for one in found}
            for one, premises in model.items():
                store.open(folder_of("science"), one, verify="full")
                assert [(p.id, p.text) async for p in client.list_premises("science", generation=one)] == premises
            if number == kills:
                break
            idle = sorted(set(model) - {active})
            kind = ("build", "activate", "build", "delete")[number % 4] if idle else "build"
            chosen = rng.choice(idle) if idle else ""
            if kind == "build":
                sent = [(f"p{number}-{n}", f"fact {n} of {number}") for n in range(rng.randint(40, 160))]
            call = asyncio.ensure_future(operation(client, kind, chosen, sent))
            await asyncio.wait([call], timeout=rng.choice((0.02, 0.2, 5.0)) * rng.random())
            await asyncio.to_thread(index.process.kill)
            [answer] = await asyncio.gather(call, return_exceptions=True)
            if not isinstance(answer, BaseException):  # acknowledged
                active = {"build": getattr(answer, "id", ""), "activate": chosen, "delete": active}[kind]
                model |= {active: sent} if kind == "build" else {}
                model.pop(chosen if kind == "delete" else "", None)
                kind = chosen = ""
            await client.channel.close()
            await index.process.restart()
    assert model


def operation(client: IndexClient, kind: str, chosen: str, sent: list[tuple[str, str]]) -> Awaitable[Any]:
    """One call."""
    if kind == "build":
        premises = [types_pb2.Premise(id=one, text=text) for one, text in sent]
        return client.build("science", premises, request_id=sent[0][0], resume_s=0)
    return client.activate("science", chosen) if kind == "activate" else client.delete("science", chosen)


async def generations(client: IndexClient) -> dict[str, bool]:
    """Whether each generation of the corpus is active."""
    try:
        return {one.id: one.active async for one in client.list_generations("science")}
    except errors.NotFound:
        return {}


@pytest.mark.slow
async def test_a_caller_whose_machine_is_gone_does_not_keep_his_build_from_him():
    caller = """
import sys, time
import aeenc
from aeenc.v1 import types_pb2

def premises():
    yield from (types_pb2.Premise(id=f"p{n}", text=f"fact {n}") for n in range(600))
    print("sent", flush=True)
    time.sleep(60)

aeenc.connect(index=sys.argv[1]).index.build("science", premises(), request_id="r")
"""
    async with StandInEncoder() as encoder, running_index(encoder_target=encoder.target, ping_s=0.5, **PACE) as index:
        command = [sys.executable, "-c", caller, index.process.target]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        await process.stdout.readline()
        process.send_signal(signal.SIGSTOP)  # its connection stays, and nobody is there
        try:
            premises = [types_pb2.Premise(id=f"p{n}", text=f"fact {n}") for n in range(600)]
            client = index.client()
            generation = await client.build("science", premises, request_id="r", timeout_s=15)
        finally:
            process.kill()
            await process.wait()
        assert generation.premises == 600
        await client.channel.close()


@pytest.mark.slow
async def test_a_build_whose_replica_is_killed_goes_on_at_another():
    done = await take_over(PREMISES)
    assert done.is_whole
    assert done.again <= done.encoded / 4  # `make bench NAME=fleet` wants a tenth; beside other tests a sync is late
