"""`make bench NAME=backup`: backups of a fleet under load, restored elsewhere, and what is missing there.

    load: runs, people's answers, jobs, publications, builds, explanations, deletions ── each answer is noted
    aeenc backup, killed in the middle ─▶ nothing there; aeenc backup ─▶ aeenc restore ─▶ another Redis, store, ports
    ─▶ all that was acknowledged before the backup began is asked for again, and what was running goes on

`--rounds` backups. Also: for how long Redis is busy with a backup of 100 MB. Loopback only, small models, some minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aeenc import AsyncClient, errors
from aeenc.v1 import types_pb2
from aeenc.values import WorkState
from benchmarks.harness.baselines import run
from benchmarks.harness.rows import ROOT, Rows
from benchmarks.promises.fleet import CORPUS, NAMESPACE, PREMISES, Fleet, describe_fleet, job_fields, running_fleet
from services.corpus.active import latest_move, read_active
from services.launcher.backups.keys import capture
from services.store.artifacts import ArtifactStore
from services.store.redis import connect
from services.store.registry import Registry
from support.models.tiny_checkpoints import TinyCheckpoint, register, write_tiny_checkpoint
from support.service_process import RedisProcess
from support.worlds.index_world import PREMISES as HALF_PREMISES
from support.worlds.index_world import broken_build
from support.worlds.trainer_world import QUERIES, Space

SETTINGS = {"index": {"build_batch": 8}, "trainer": {"grace_s": 0.0}}
HALF_BUILD = "half-build"
BALLAST_BYTES, BALLASTS = 32 * 1024 * 1024, 4  # so that a backup lasts long enough to be killed
KEPT_GENERATIONS = 3
KILLS = 10
GO_ON_S = 60.0
BUSY_BYTES, VALUE_BYTES = 100 * 1024 * 1024, 1000
LIVE = (WorkState.PENDING, WorkState.RUNNING)


@dataclass(frozen=True)
class Acknowledged:
    """An answer: when it came, what it was about, and what it said."""

    at: float
    kind: str
    about: str
    said: Any = None


@dataclass
class Load:
    """Callers of everything that is stored, and what they were told."""

    fleet: Fleet
    imported: str = ""
    told: list[Acknowledged] = field(default_factory=list)
    removing: dict[str, float] = field(default_factory=dict)  # what somebody has asked to delete, and when
    failures: list[tuple[float, str]] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def note(self, kind: str, about: str, said: Any = None) -> None:
        """Notes an answer."""
        self.told.append(Acknowledged(time.monotonic(), kind, about, said))

    def callers(self) -> list[Callable[[AsyncClient], Awaitable[None]]]:
        """One round of each caller."""
        return [self.sample, self.ask_people, self.train, self.publish, self.build, self.explain, self.forget]

    async def call(self, step: Callable[[AsyncClient], Awaitable[None]], client: AsyncClient) -> None:
        """Calls until it is cancelled."""
        while True:
            try:
                await step(client)
            except errors.AeencError as error:
                self.failures.append((time.monotonic(), f"{step.__name__}: {error}"))
            await asyncio.sleep(0.01)

    async def sample(self, client: AsyncClient) -> None:
        """A run with the oracle."""
        roots = [(f"tree-{n}", QUERIES[n]) for n in range(4)]
        run = await client.sampler.start_run(roots, corpus=CORPUS, oracle="gold", k=4, max_depth=1)
        self.note("run", run.id)
        done = await client.sampler.wait(run.id)
        self.note("ended run", run.id, (done.state, done.progress.judgements))

    async def ask_people(self, client: AsyncClient) -> None:
        """A run whose tasks a person answers."""
        roots = [(f"tree-{n}", QUERIES[n]) for n in range(4)]
        run = await client.sampler.start_run(roots, corpus=CORPUS, oracle="team", k=3, max_depth=0)
        self.note("people run", run.id)
        for _ in roots:
            while not (leases := await client.people.lease("ann", run_id=run.id)):  # noqa: ASYNC110 -- calls, no event
                await asyncio.sleep(0.05)
            answered = await client.people.submit(leases[0], [leases[0].task.candidates[0].premise.id])
            self.note("answer", run.id, answered.answer_id)

    async def train(self, client: AsyncClient) -> None:
        """A job."""
        job = await client.trainer.start_job(**job_fields(self.imported, epochs=1, seed=next(self.numbers)))
        self.note("job", job.id)
        done = await client.trainer.wait(job.id)
        self.note("ended job", job.id, (done.state, done.version))
        self.note("checkpoint", done.version)

    async def publish(self, client: AsyncClient) -> None:
        """A publication, under a label that no run needs: this sampler has no trainer to keep its versions loaded."""
        made = await self._registered()
        done = await client.registry.publish(made.version, label="canary", force=True, wait_s=20)
        self.note("label", "canary", done.label.revision)

    async def build(self, client: AsyncClient) -> None:
        """A generation that is activated, and the deletion of one that is no longer active."""
        corpus = f"corpus-{next(self.numbers) % 2}"
        more = types_pb2.Premise(id="more", text=f"fact {next(self.numbers)}")
        built = await client.index.build(corpus, [*PREMISES, more])
        self.note("generation", corpus, built.id)
        self.note("active", corpus, built.id)
        listed = [one async for one in client.index.list_generations(corpus)]
        for old in [one.id for one in listed if not one.active][KEPT_GENERATIONS:]:
            self.removing[old] = time.monotonic()
            await client.index.delete(corpus, old)

    async def explain(self, client: AsyncClient) -> None:
        """An explanation."""
        text = f"query {next(self.numbers)}"
        await client.index.put_explanations(CORPUS, [(text, ["f0"])])
        self.note("explanation", CORPUS, text)

    async def forget(self, client: AsyncClient) -> None:
        """A checkpoint that is deleted at once, with its files."""
        made = await self._registered()
        self.note("checkpoint", made.version)
        await asyncio.sleep(0.2)
        self.removing[made.version] = time.monotonic()
        await client.trainer.delete_checkpoint(made.version)
        await client.trainer.collect_garbage()

    async def _registered(self) -> TinyCheckpoint:
        space = self.fleet.space
        own = {"seed": 1000 + next(self.numbers), "base_version": space.version, "space_id": space.space_id}
        made = await asyncio.to_thread(write_tiny_checkpoint, space.store, **own)
        async with self.fleet.store() as redis:
            await register(Registry(redis, NAMESPACE), made)
        return made


@dataclass
class Told:
    """A round: how many acknowledgements there were, and all faults by topic."""

    acknowledged: int = 0
    missing: list[str] = field(default_factory=list)
    dangling: list[str] = field(default_factory=list)
    visible: list[str] = field(default_factory=list)
    kills: int = 0
    failed: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    going_on: int = 0
    took_s: float = 0.0
    busy_s: float = 0.0
    size_mb: float = 0.0


def aeenc(*words: Any) -> list[str]:
    """A command of `aeenc` in a process of its own."""
    return [sys.executable, "-m", "aeenc.cli.main", "--json", *map(str, words)]


async def carried_out(*words: Any) -> dict[str, Any]:
    """Runs a command to its end and returns what it says."""
    done = await asyncio.to_thread(subprocess.run, aeenc(*words), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"aeenc {words[0]} ended with {done.returncode}: {done.stderr[-600:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def kill_in_the_middle(target: Path, where: list[Any]) -> bool:
    """Starts a backup and kills it while it copies artifacts. False: it was faster."""
    left = target.with_name(f".{target.name}.unfinished")
    command = aeenc("backup", target, *where)
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (left / "artifacts" / "checkpoints").is_dir():
        time.sleep(0.001)
    process.kill()
    return process.wait() != 0


async def one_round(load: Load, scratch: Path) -> Told:
    """A killed backup, a whole one, its restore, and a look at what came back."""
    told, fleet = Told(), load.fleet
    where = ["--redis", fleet.redis.url, "--artifacts", fleet.space.store.root]
    for number in range(KILLS):
        target = scratch / f"killed-{number}"
        if await asyncio.to_thread(kill_in_the_middle, target, where):
            told.kills += 1
            told.visible += [str(target)] if target.exists() else []
            break
    begun = time.monotonic()
    made = await carried_out("backup", target if told.kills else scratch / "whole", *where)
    ended = time.monotonic()
    told.took_s, told.busy_s, told.size_mb = ended - begun, made["keys_read_s"], made["size_bytes"] / 1e6
    told.dangling += made["damaged"]
    told.failed = [what for at, what in load.failures if begun <= at <= ended]
    home = scratch / "restored"
    home.mkdir()
    redis = RedisProcess(home / "redis")
    try:
        await carried_out("restore", made["backup"], "--redis", redis.url, "--artifacts", home / "artifacts")
        await _look(load, fleet, home, redis, begun, ended, told)
    finally:
        redis.stop()
    return told


async def _look(
    load: Load, fleet: Fleet, home: Path, redis: RedisProcess, begun: float, ended: float, told: Told
) -> None:
    store = ArtifactStore(home / "artifacts")
    before = [one for one in load.told if one.at < begun]
    told.acknowledged = len(before)
    removed = {about for about, at in load.removing.items() if at <= ended}
    connection = connect(redis.url)
    try:
        for row in await Registry(connection, NAMESPACE).checkpoints():
            try:
                store.open("checkpoints", row.version, expected_manifest_sha256=row.manifest_sha256)
            except errors.AeencError as error:
                told.dangling.append(str(error))
    finally:
        await connection.aclose()
    oracle = fleet.oracle
    restored = describe_fleet(
        home,
        redis,
        Space(store, fleet.space.base, fleet.space.request, fleet.space.version, fleet.space.space_id),
        oracle,
        fleet.settings["sampler"]["oracles"]["gold"]["target"],
        counts=dict.fromkeys(fleet.processes, 1),
        settings=SETTINGS,
        environment={},
        root=ROOT,
    )
    try:
        await restored.start()
        async with restored.client() as client:
            asked = Asked(client, store, load, removed)
            ended_before = {one.about for one in before if one.kind == "ended run"}
            on_their_way = [one.about for one in before if one.kind == "run" and one.about not in ended_before]
            for one in before:
                fault = await asked.about(one)
                told.missing += [f"{one.kind} {one.about}: {fault}"] if fault else []
            told.going_on, told.stopped = len(on_their_way), await asked.go_on(on_their_way)
    finally:
        await restored.stop()


@dataclass
class Asked:
    """Asks a restored fleet for what was acknowledged."""

    client: AsyncClient
    store: ArtifactStore
    load: Load
    removed: set[str]

    async def about(self, one: Acknowledged) -> str:
        """What is wrong with one acknowledgement; "" for nothing."""
        try:
            return str(await getattr(self, f"_{one.kind.replace(' ', '_')}")(one) or "")
        except errors.AeencError as error:
            return f"{error.code}: {error.message}"

    async def go_on(self, runs: list[str]) -> list[str]:
        """Waits for runs that were on their way, and goes on with the unfinished build. Names what does not end."""
        end, bad = time.monotonic() + GO_ON_S, []
        for run_id in runs:
            found = await self.client.sampler.get_run(run_id)
            while found.state in LIVE and time.monotonic() < end:
                await asyncio.sleep(0.2)
                found = await self.client.sampler.get_run(run_id)
            if found.state != WorkState.SUCCEEDED:
                bad.append(f"run {run_id} is in state {found.state}: {found.error}")
        made = await self.client.index.build(CORPUS, HALF_PREMISES, request_id=HALF_BUILD, activate=False)
        return bad + ([] if made.premises == len(HALF_PREMISES) else ["the unfinished build"])

    async def _run(self, one: Acknowledged) -> None:
        await self.client.sampler.get_run(one.about)

    async def _ended_run(self, one: Acknowledged) -> str:
        found = await self.client.sampler.get_run(one.about)
        now = (found.state, found.progress.judgements)
        return "" if now == one.said else f"{now}, not {one.said}"

    _people_run = _run

    async def _answer(self, one: Acknowledged) -> str:
        tasks = [task async for task in self.client.people.list_tasks(one.about)]
        answers = {answer.answer_id for task in tasks for answer in task.answers}
        return "" if one.said in answers else f"answer {one.said} is not there"

    async def _job(self, one: Acknowledged) -> None:
        await self.client.trainer.get_job(one.about)

    async def _ended_job(self, one: Acknowledged) -> str:
        found = await self.client.trainer.get_job(one.about)
        return "" if (found.state, found.version) == one.said else f"{found.state} {found.version}, not {one.said}"

    async def _checkpoint(self, one: Acknowledged) -> None:
        if one.about not in self.removed:
            await self.client.trainer.get_checkpoint(one.about)

    async def _label(self, one: Acknowledged) -> str:
        found = {label.name: label.revision async for label in self.client.registry.list_labels()}
        return "" if found.get(one.about, 0) >= one.said else f"revision {found.get(one.about)}, not {one.said}"

    async def _generation(self, one: Acknowledged) -> str:
        if one.said in self.removed:
            return ""
        found = [generation.id async for generation in self.client.index.list_generations(one.about)]
        return "" if one.said in found else f"{one.said} is not there"

    async def _active(self, one: Acknowledged) -> str:
        later = [told.said for told in self.load.told if told.kind == "active" and told.about == one.about]
        now = read_active(self.store, one.about)
        is_later = now in later[later.index(one.said) :] or now not in later  # or its answer had not come
        return "" if is_later else f"{now} is active, after {one.said}"

    async def _explanation(self, one: Acknowledged) -> str:
        name = latest_move(self.store, one.about).explanations
        path = self.store.root / "generations" / one.about / ".explanations" / name
        return "" if one.said in path.read_text() else "it is not there"

    async def _durable(self, one: Acknowledged) -> str:
        builds = (self.store.root / "generations" / one.about).glob(".builds/*/progress.json")
        [path] = [path for path in builds if (path.parent / "premises.jsonl").exists()]  # finished ones have none
        kept = json.loads(path.read_bytes())["kept"]["premises"]
        return "" if kept >= one.said else f"{kept} premises, not {one.said}"


async def measured(rounds: int) -> list[Told]:
    """Runs the load, and so many backups of it."""
    found = []
    async with running_fleet(settings=SETTINGS) as fleet:
        fleet.oracle.delay_s = 0.05
        for number in range(BALLASTS):
            with fleet.space.store.writer("checkpoint", "checkpoints") as writer:
                (writer.path / "ballast").write_bytes(bytes([number]) * BALLAST_BYTES)
                writer.commit({"number": number})
        await fleet.build()
        load = Load(fleet, await fleet.import_pairs())
        async with fleet.client() as client:
            half = await broken_build(SimpleNamespace(client=client.index), request_id=HALF_BUILD)
            load.note("durable", CORPUS, half.durable)
            callers = [asyncio.create_task(load.call(step, client)) for step in load.callers()]
            try:
                for _ in range(rounds):
                    await asyncio.sleep(6)
                    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
                        found.append(await one_round(load, Path(scratch)))
            finally:
                for caller in callers:
                    caller.cancel()
                await asyncio.gather(*callers, return_exceptions=True)
    return found


async def busy(size_bytes: int) -> tuple[float, float]:
    """For how long the script keeps a Redis with so much data busy, by its slow log, and how long reading takes."""
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        server = RedisProcess(Path(scratch))
        redis = connect(server.url)
        try:
            await redis.config_set("appendonly", "no")
            for start in range(0, size_bytes // VALUE_BYTES, 1000):
                pipe = redis.pipeline(transaction=False)
                for n in range(start, start + 1000):  # a node of a tree each
                    text = " ".join(f"{n * 7919 * word % 99991}" for word in range(VALUE_BYTES // 6))
                    pipe.hset(f"aeenc:busy:1:run:r:node:{n}", mapping={"node": text})
                await pipe.execute()
            begun = time.monotonic()
            await capture(redis, "aeenc:*")
            took_s = time.monotonic() - begun
            slow = await redis.slowlog_get(128)
            return max(one["duration"] for one in slow) / 1e6, took_s
        finally:
            await redis.aclose()
            server.stop()


async def backup(rows: Rows, rounds: int) -> None:
    """Adds the rows."""
    found = await measured(rounds)

    def none(row: str, name: str, baseline: Any = None) -> None:
        faults = [fault for told in found for fault in getattr(told, name)]
        rows.add(row, len(faults), "", "= 0", not faults, faults[:5] or baseline)

    acknowledged = sum(told.acknowledged for told in found)
    none("acknowledged before it began and missing", "missing", f"{acknowledged:,} acknowledged, {rounds} backups")
    none("named by the registry or a corpus, and not there or of another hash", "dangling")
    kills = sum(told.kills for told in found)
    none("killed backups that left something under their name", "visible", f"{kills} killed")
    rows.at_least("backups killed in the middle", kills, "", 1)
    none("calls that failed during a backup", "failed")
    going_on = sum(told.going_on for told in found)
    none("running before, and not done after the restore", "stopped", f"{going_on} runs went on")
    rows.note("a backup takes", max([told.took_s for told in found]), "s", [told.size_mb for told in found])
    rows.note("reading the keys takes", max([1000 * told.busy_s for told in found]), "ms")
    busy_s, read_s = await busy(BUSY_BYTES)
    rows.note("Redis is busy with 100 MB", 1000 * busy_s, "ms", f"all read after {read_s:.1f} s")


def main() -> None:
    """Runs all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows = Rows("backup")
    run(backup(rows, options.rounds))
    rows.finish()


if __name__ == "__main__":
    main()
