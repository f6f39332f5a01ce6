"""Fail-overs by Sentinel under load: the master is killed or hangs, and nothing acknowledged is lost.

imports, a run, label moves, job records ─▶ sampler, trainer ─▶ master ── WAIT ──▶ replicas
                                                  ▲              └─ SIGKILL, SIGSTOP
                                                  └── Sentinels name the next master
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

import aeenc
from aeenc import errors, values
from aeenc.registry import RegistryClient
from aeenc.v1 import types_pb2
from services.store.redis import connect
from services.store.registry import Registry
from support.models.tiny_checkpoints import register, write_tiny_checkpoint
from support.servers.replicated_redis import ReplicatedRedis
from support.waiting import until
from support.worlds.sampler_world import HYPOTHESES, SamplerWorld, brute_force, pair_set
from support.worlds.trainer_world import make_space, serve_trainer

PASSING = (errors.Unavailable, errors.DeadlineExceeded, errors.Aborted)
CALL_S = 5.0


@dataclass
class Load:
    """Callers that repeat each call with its request id until it is acknowledged, and what was."""

    sampler: aeenc.SamplerClient
    registry: RegistryClient
    versions: list[str]
    imports: dict[str, str] = field(default_factory=dict)  # run by query
    labels: dict[str, values.Label] = field(default_factory=dict)  # the last move
    refused: list[str] = field(default_factory=list)

    async def insist(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Repeats a call until it is answered."""
        while True:
            try:
                return await call()
            except PASSING as error:
                self.refused.append(f"{error.code} {error.message}")
                await asyncio.sleep(0.05)

    async def import_pairs(self, who: int) -> None:
        """Imports one pair after the other."""
        for number in itertools.count():
            query, request_id = f"q-{who}-{number}", uuid.uuid4().hex
            pair = types_pb2.Pair(query=query, premise="fact 1", premise_id="p1", sign=types_pb2.PAIR_SIGN_POSITIVE)

            async def call(pair: types_pb2.Pair = pair, request_id: str = request_id) -> Any:
                return await self.sampler.import_pairs("science", [pair], request_id=request_id)

            self.imports[query] = (await self.insist(call)).run_id

    async def move_labels(self, who: int) -> None:
        """Moves a label of its own between the versions."""
        for number in itertools.count():
            version, request_id = self.versions[number % len(self.versions)], uuid.uuid4().hex

            async def call(version: str = version, request_id: str = request_id) -> Any:
                return await self.registry.set_label(f"label-{who}", version, request_id=request_id)

            self.labels[f"label-{who}"] = await self.insist(call)

    async def lost(self) -> list[str]:
        """What was acknowledged and is not there."""
        missing = []
        for query, run_id in self.imports.items():
            found = await self.insist(lambda run_id=run_id: _queries(self.sampler, run_id))
            if found != [query]:
                missing.append(f"{query} of run {run_id}: {found}")
        rows = {row.name: row for row in await self.insist(lambda: _labels(self.registry))}
        for name, label in self.labels.items():
            now = rows.get(name)
            if now is None or now.revision < label.revision:
                missing.append(f"{name} at {label.revision}: {now}")
        return missing


async def _queries(sampler: aeenc.SamplerClient, run_id: str) -> list[str]:
    return [pair.query async for pair in sampler.list_pairs(run_id)]


async def _labels(registry: RegistryClient) -> list[values.Label]:
    return [label async for label in registry.list_labels()]


@pytest.mark.crash
@pytest.mark.parametrize(("replicas", "fault"), [(1, "kill"), (1, "pause"), (2, "kill")])
async def test_a_failover_under_load_loses_nothing_acknowledged_and_calls_go_on(
    world: SamplerWorld, tmp_path: Path, namespace: str, replicas: int, fault: Literal["kill", "pause"]
) -> None:
    group = await asyncio.to_thread(ReplicatedRedis, tmp_path / "redis", replicas=replicas)
    shared = {"redis_url": group.url, "redis_replicas": 1, "redis_replicas_s": 1.0}
    space = make_space(tmp_path / "space")
    redis = connect(group.url, replicas=1)
    try:
        made = [
            write_tiny_checkpoint(space.store, seed=seed, base_version=space.version, space_id=space.space_id)
            for seed in (1, 2)
        ]
        for checkpoint in made:
            await register(Registry(redis, namespace), checkpoint)
        world.oracle.delay_s = 0.05
        own = {name: value for name, value in shared.items() if name != "redis_url"}
        async with (
            world.sampler(**shared, lease_s=3.0, wave_nodes=4) as sampler,
            serve_trainer(space, group.url, namespace, tmp_path / "trainer", **own) as (server, _),
        ):
            calls = {"timeout_s": CALL_S, "retry": False}
            port = sampler.channel.target.rpartition(":")[2]
            load = Load(
                aeenc.SamplerClient(aeenc.Channel(f"127.0.0.1:{port}", **calls)),
                RegistryClient(aeenc.Channel(f"127.0.0.1:{server.port}", **calls)),
                [checkpoint.version for checkpoint in made],
            )
            run = await sampler.start_run(HYPOTHESES, corpus="science", oracle="fake", k=6, idempotency_key="run")
            callers = [asyncio.create_task(load.import_pairs(who)) for who in range(4)]
            callers += [asyncio.create_task(load.move_labels(who)) for who in range(2)]
            await asyncio.sleep(1.0)
            for _ in range(2):
                before = len(load.imports)
                assert before, load.refused[-1:]
                master = await asyncio.to_thread(group.master)
                if fault == "kill":
                    master.kill()
                else:
                    master.signal(signal.SIGSTOP)
                await group.follows(master)
                if replicas > 1:
                    await _grows(load, before)
                if fault == "kill":
                    await asyncio.to_thread(master.start)
                else:
                    master.signal(signal.SIGCONT)
                await group.whole()
                await _grows(load, len(load.imports))
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
            assert await load.lost() == []
            assert (await asyncio.wait_for(sampler.wait(run.id), 60)).state == values.WorkState.SUCCEEDED
            assert await pair_set(sampler, run.id) == brute_force()
            assert load.refused, "the fail-overs were not felt"
            assert not [one for one in load.refused if not one.startswith(("UNAVAILABLE", "DEADLINE", "ABORTED"))]
            await load.sampler.channel.close()
            await load.registry.channel.close()
    finally:
        await redis.aclose()
        group.stop()


async def _grows(load: Load, before: int) -> None:
    """Waits until more has been acknowledged."""
    await until(lambda: len(load.imports) > before + 2, 30)
