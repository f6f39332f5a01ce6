"""Thirty-two people-like clients at the queue of one run: leasing, renewing, dying, answering late, undoing.

The sampler is a process of its own with a private Redis, and both are killed under them. The index is one with fixed
scores (tests/support/worlds/sampler_world.py), so an independent reading of ACS says what a run must record.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import aeenc
from aeenc.v1 import index_pb2_grpc, sampler_pb2, types_pb2
from benchmarks.harness.rows import Rows
from services.sampler.people.task_store import TaskStore
from services.sampler.records.keys import TaskKeys
from services.store.redis import connect
from support.service_process import RedisProcess, ServiceProcess
from support.worlds.people_world import People, agreement_differs, check
from support.worlds.sampler_world import FakeIndex, serving

PEOPLE = 32
THINK_S = 0.05
ANSWERS_A_KILL = 6
REDIS_KILL = 4  # every fourth time Redis is killed, too
TEAM = {"undo_s": 0.5, "min_lease_s": 1.0, "first_lease_s": 1.0}
MOODS = ("die", "release", "come late", "renew", "undo")
NAMESPACE = "people"


async def people(rows: Rows, *, hypotheses: int = 200, kills: int = 30) -> None:
    """One judge a task with kills, then two with conflicts and three with majorities, undisturbed."""
    await _crowd(rows, overlap=1, hypotheses=hypotheses, kills=kills, flip=0.0)
    await _crowd(rows, overlap=2, hypotheses=max(hypotheses // 4, 1), kills=0, flip=0.1)
    await _crowd(rows, overlap=3, hypotheses=max(hypotheses // 4, 1), kills=0, flip=0.1)


async def _crowd(rows: Rows, *, overlap: int, hypotheses: int, kills: int, flip: float) -> None:
    roots = [(f"tree-{n}", f"hypothesis {n}") for n in range(hypotheses)]
    with tempfile.TemporaryDirectory(prefix="aeenc-") as directory:
        redis, index = RedisProcess(Path(directory)), FakeIndex()
        async with serving(index_pb2_grpc.add_IndexServiceServicer_to_server, index) as index_port:
            process = ServiceProcess.of(
                "sampler",
                Path(directory),
                redis_url=redis.url,
                namespace=NAMESPACE,
                index_target=f"127.0.0.1:{index_port}",
                lease_s=1.0,
                poll_s=0.1,
                queues={"team": {**TEAM, "overlap": overlap}},
            )
            process.start()
            sampler = aeenc.SamplerClient(aeenc.Channel(process.target, retry=aeenc.PATIENT))
            client = aeenc.PeopleClient(aeenc.Channel(process.target, timeout_s=5.0, retry=aeenc.PATIENT))
            [run async for run in sampler.list_runs()]  # it answers from now on; starting a run is not tried again
            run = await sampler.start_run(roots, corpus="science", oracle="team", k=6)
            crowd = People(client, run.id, flip=flip, think_s=THINK_S, seed=overlap)
            names = [f"person-{n}" for n in range(PEOPLE)]
            tasks = [asyncio.create_task(crowd.person(name)) for name in names]
            tasks.append(asyncio.create_task(crowd.adjudicator()))
            tasks.append(asyncio.create_task(crowd.publisher(index)))
            begun = time.monotonic()
            ended = asyncio.create_task(sampler.wait(run.id))
            killed = said = 0
            while not ended.done():
                await asyncio.wait([ended], timeout=0.1)
                if killed < kills and len(crowd.ledger.said) >= said + ANSWERS_A_KILL and not ended.done():
                    killed, said = killed + 1, len(crowd.ledger.said)
                    process.kill()
                    if killed % REDIS_KILL == 0:
                        redis.kill()
                        await redis.restart()
                    process.start()
            took_s = time.monotonic() - begun
            crowd.done.set()
            await asyncio.gather(*tasks)
            await _report(rows, crowd, sampler, redis.url, overlap, roots, killed, took_s, ended.result())
            process.kill()
            await client.channel.close()
            await sampler.channel.close()
        redis.stop()


async def _report(
    rows: Rows,
    crowd: People,
    sampler: aeenc.SamplerClient,
    redis_url: str,
    overlap: int,
    roots: list[tuple[str, str]],
    killed: int,
    took_s: float,
    run: sampler_pb2.Run,
) -> None:
    redis = connect(redis_url)
    found = await check(crowd, sampler, TaskStore(redis, TaskKeys(NAMESPACE)), overlap, roots)
    name = f"{PEOPLE} people, {overlap} a task" + (f", {killed} kills" if killed else "")
    counts = crowd.ledger.counts
    said = f"{len(crowd.ledger.said)} answers, {counts['late']} late, {len(crowd.ledger.undone)} undone, {took_s:.0f} s"
    rows.note(f"{name}: {', '.join(MOODS)}", "/".join(str(counts[mood]) for mood in MOODS), "times", said)
    refused = {
        reason: counts[reason] for reason in ("TASK_ANSWERED", "LEASE_ANSWERED", "LEASE_RELEASED", "TASK_WITHDRAWN")
    }
    ok = run.state == types_pb2.WORK_STATE_SUCCEEDED and min(counts[mood] for mood in (*MOODS, "sent back")) > 0
    rows.note(f"{name}: sent back to be retrieved again", counts["sent back"], "tasks")
    rows.add(f"{name}: run finished", ok, "", "True", ok, refused)
    rows.at_most(f"{name}: tasks in more hands than answers wanted", len(found.held_twice), "times", 0)
    rows.at_most(f"{name}: acknowledged verdicts lost or changed", len(found.lost), "answers", 0)
    rows.at_most(f"{name}: tasks without all their answers", len(found.unanswered), "tasks", 0)
    rows.at_most(f"{name}: pairs that an independent reading has not", len(found.pairs), "pairs", 0)
    if overlap > 1:
        told = await crowd.client.agreement(run.id)
        figures = f"{told.cohen_kappa:.3f} {told.fleiss_kappa:.3f} {told.krippendorff_alpha:.3f}"
        rows.at_most(
            f"{name}: agreement differs from the definitions", agreement_differs(told, crowd.ledger), "", 1e-9, figures
        )
    for problem in found.all()[:10]:
        print("     ", problem)
    await redis.aclose()
