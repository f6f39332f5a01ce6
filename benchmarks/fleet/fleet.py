"""`make bench NAME=fleet`: several index processes over one store, and whether what one acknowledged holds in all.

    activations   3 replicas, 200 activations under load: does an answer come from another generation?
    races         2 replicas, 1,000 pairs of activations with the same `expected`: who wins?
    builds        2 replicas, one is killed while it builds: what is encoded again?

`--only PART` runs one part. Loopback only.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from aeenc import Channel, IndexClient, errors
from aeenc.v1 import types_pb2
from benchmarks.harness.rows import Rows, run_parts
from benchmarks.index.stand_in_encoder import SPACE, StandInEncoder, vector_of
from support.service_process import ServiceProcess
from support.waiting import until

CORPUS = "science"
CALLERS, ACTIVATIONS, NEW_CORPORA, PAUSE_S = 32, 200, 10, 0.02
RACES = 1000
PREMISES, KILLED_AT, BATCH, BATCH_S, BUILD_S = 8000, 0.5, 32, 0.01, 120.0


@dataclass
class Fleet:
    """Index processes over one store, and an encoder without a model."""

    processes: list[ServiceProcess]
    encoder: StandInEncoder
    clients: list[IndexClient] = field(default_factory=list)

    def client(self, targets: str) -> IndexClient:
        """A client on connections of its own, which repeats nothing."""
        return IndexClient(Channel(targets, retry=False, timeout_s=30.0))

    @property
    def targets(self) -> str:
        """All addresses, as callers write them."""
        return ",".join(process.target for process in self.processes)


@asynccontextmanager
async def running(count: int, *, pause_s: float = 0.0, **settings: object) -> AsyncIterator[Fleet]:
    """Starts `count` index processes ; everything ends with the block."""
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aeenc-bench-")))
        encoder = await stack.enter_async_context(StandInEncoder(pause_s=pause_s))
        own = {"artifacts_dir": home / "artifacts", "encoder_target": encoder.target, **settings}
        names = [f"index-{number}" for number in range(count)]
        processes = [ServiceProcess.of("index", home, name=one, instance=one, **own) for one in names]
        fleet = Fleet(processes, encoder)
        for process in processes:
            await stack.enter_async_context(process.running())
            fleet.clients.append(fleet.client(process.target))
            stack.push_async_callback(fleet.clients[-1].channel.close)
        yield fleet


def premises(count: int, first: int = 0) -> list[types_pb2.Premise]:
    """Premises with distinct texts."""
    return [types_pb2.Premise(id=f"p{n}", text=f"fact {n}") for n in range(first, first + count)]


@dataclass
class Acknowledged:
    """An activation: from when to when its generation was the acknowledged one, and who was counted as serving it."""

    generation: str
    since: float
    until: float
    serving: frozenset[int]
    behind: int


class Load:
    """Callers that search without naming a generation, each at one replica after the other, and remember it all."""

    def __init__(self, fleet: Fleet) -> None:
        self.answers: list[tuple[float, float, int, str]] = []  # sent, answered, replica, generation
        self.failures: Counter[str] = Counter()
        self._fleet = fleet
        self._vector = vector_of("fact 1")[None, :]

    async def search(self, replica: int, corpus: str = CORPUS) -> None:
        """Searches at one replica."""
        sent = time.monotonic()
        try:
            client = self._fleet.clients[replica]
            generation = (await client.search(corpus, self._vector, space_id=SPACE, k=5)).generation
            if corpus == CORPUS:
                self.answers.append((sent, time.monotonic(), replica, generation))
        except errors.AeencError as error:
            self.failures[type(error).__name__] += 1

    async def call(self, number: int) -> None:
        """Searches until it is cancelled."""
        while True:
            await self.search(number % len(self._fleet.clients))
            number += 1
            await asyncio.sleep(PAUSE_S)


async def activations(rows: Rows, _: object) -> None:
    """An answer between an acknowledgement and the beginning of the next activation must be of its generation."""
    async with running(3) as fleet:
        clients, load, acknowledged, took = fleet.clients, Load(fleet), [], []
        ids = [(await clients[0].build(CORPUS, premises(200 + 50 * n), activate=n == 0)).id for n in range(3)]
        callers = [asyncio.create_task(load.call(number)) for number in range(CALLERS)]
        for number in range(ACTIVATIONS):
            generation = ids[(number + 1) % 3]
            begun = time.monotonic()
            if acknowledged:
                acknowledged[-1].until = begun
            done = await clients[number % 3].activate(CORPUS, generation)
            now = time.monotonic()
            took.append(now - begun)
            behind = {int(one.instance[-1]) for one in done.replicas if one.behind}
            serving = frozenset(range(3)) - behind
            acknowledged.append(Acknowledged(generation, now, float("inf"), serving, len(behind)))
            await asyncio.sleep(0.1)
            if number % (ACTIVATIONS // NEW_CORPORA) == 0:
                await clients[number % 3].build(f"new-{number}", premises(50))
                await asyncio.gather(*(load.search(replica, f"new-{number}") for replica in range(3)))
        acknowledged[-1].until = time.monotonic()
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
    wrong = counted = 0
    for one in acknowledged:
        for sent, answered, replica, generation in load.answers:
            if one.since <= sent and answered <= one.until and replica in one.serving:
                counted += 1
                wrong += generation != one.generation
    not_found = load.failures.pop("NotFound", 0)
    failed = sum(load.failures.values())
    calls = len(load.answers)
    rows.add("answers from another generation than acknowledged", wrong, "answers", "= 0", wrong == 0, counted)
    rows.add("NOT_FOUND, new corpora asked everywhere at once", not_found, "calls", "= 0", not_found == 0, calls)
    rows.add("failed calls", failed, "calls", "= 0", failed == 0, dict(load.failures) or calls)
    rows.note("replicas named as behind", sum(one.behind for one in acknowledged), "replicas", 3 * ACTIVATIONS)
    rows.note("an activation, median", statistics.median(took), "s", max(took))


async def races(rows: Rows, _: object) -> None:
    """Two replicas, two callers that expect the same generation and want different ones."""
    async with running(2, look_s=0.05) as fleet:
        ids = [(await fleet.clients[0].build(CORPUS, premises(40 + n), activate=n == 0)).id for n in range(3)]
        winners: Counter[int] = Counter()
        failures: Counter[str] = Counter()
        active = ids[0]
        for _ in range(RACES):
            wanted = [one for one in ids if one != active]
            outcomes = await asyncio.gather(
                *(
                    client.activate(CORPUS, one, expected=active)
                    for client, one in zip(fleet.clients, wanted, strict=True)
                ),
                return_exceptions=True,
            )
            won = [one for one, outcome in zip(wanted, outcomes, strict=True) if not isinstance(outcome, Exception)]
            lost = [one for one in outcomes if isinstance(one, errors.Aborted)]
            winners[len(won)] += 1
            failures.update(repr(one) for one in outcomes if isinstance(one, Exception) and one not in lost)
            active = won[-1] if won else active
            if len(won) != 1:  # agree again
                for client in fleet.clients:
                    await client.activate(CORPUS, active)
    odd = {count: races for count, races in winners.items() if count != 1}
    rows.add("races with exactly one winner", winners[1], "races", f"= {RACES}", winners[1] == RACES, odd or RACES)
    rows.add("failures but ABORTED", failures.total(), "calls", "= 0", not failures, dict(failures) or 2 * RACES)


@dataclass(frozen=True)
class TakenOver:
    """A build that went on at another replica: what was encoded when the first one died, and what of it again."""

    is_whole: bool
    encoded: int
    again: int
    took_s: float


async def take_over(count: int) -> TakenOver:
    """Kills the replica that builds half-way; the caller, who knows both addresses, goes on."""
    paced = {"build_batch": BATCH, "build_sync_s": 0.1}
    async with running(2, pause_s=BATCH_S, **paced) as fleet:
        client = fleet.client(fleet.targets)
        building = asyncio.create_task(client.build(CORPUS, premises(count), request_id="one", timeout_s=300.0))
        await until(lambda: len(fleet.encoder.encoded) >= count * KILLED_AT, BUILD_S)
        builder = next(process for process in fleet.processes if _builds(process))
        builder.kill()
        killed = time.monotonic()
        encoded = len(fleet.encoder.encoded)
        generation = await building
        took_s = time.monotonic() - killed
        again = sum(fleet.encoder.encoded.values()) - count
        survivor = next(one for one, process in zip(fleet.clients, fleet.processes, strict=True) if process != builder)
        found = await survivor.search(CORPUS, vector_of("fact 1")[None, :], space_id=SPACE, k=1)
        await client.channel.close()
    is_whole = generation.premises == count and (found.generation, found.ids[0]) == (generation.id, ["p1"])
    return TakenOver(is_whole, encoded, again, took_s)


async def builds(rows: Rows, _: object) -> None:
    """A replica that dies while it builds."""
    done = await take_over(PREMISES)
    kept = 1 - done.again / done.encoded
    rows.add("the build went on at the other replica", done.is_whole, "", "True", done.is_whole)
    rows.add("encoded before the kill and not again", round(kept, 4), "share", "≥ 0.9", kept >= 0.9, done.encoded)
    rows.note("from the kill to the finished generation", round(done.took_s, 2), "s")


def _builds(process: ServiceProcess) -> bool:
    """Whether a process has the journal of a build open."""
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            if "/.builds/" in str(descriptor.readlink()):
                return True
    return False


if __name__ == "__main__":
    run_parts("fleet", __doc__, {"activations": activations, "races": races, "builds": builds})
