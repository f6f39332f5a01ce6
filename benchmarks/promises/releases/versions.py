"""Neighbours in time: today's services over the state of an earlier release, of the next minor and the next major one.

the earlier commit's own code ─▶ state ─▶ SIGKILL ─▶ today's code: the same answers, half-done work goes on
today's code ─▶ state ─▶ every record gets a field that is not known ─▶ the same
today's code ─▶ state ─▶ one kind of record after another becomes a newer major ─▶ refused by name, all else serves
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aeenc import AsyncClient, errors
from aeenc.v1 import oracle_pb2_grpc, trainer_pb2, types_pb2
from benchmarks.harness.rows import ROOT, Rows
from benchmarks.promises.fleet import CORPUS, NAMESPACE, PREMISES, SERVICES, Fleet, describe_fleet
from benchmarks.promises.releases.record_kinds import KINDS, REWRITTEN, UNREAD
from benchmarks.promises.releases.records import MAJOR, Edit, Place, edit, kinds, next_major, next_minor, places
from benchmarks.promises.releases.state import OTHER_CORPUS, State, go_on, import_again, take_snapshot, write_state
from services.store.artifacts import ArtifactStore
from services.store.redis import connect
from support.models.tiny_base_models import write_tiny_base
from support.service_process import RedisProcess
from support.worlds.index_world import PREMISES as HALF_PREMISES
from support.worlds.sampler_world import FakeOracle, serving
from support.worlds.trainer_world import QUERIES, Space

EARLIER = "03bd31b"
SETTINGS = {service: {"log_level": "info"} for service in SERVICES} | {"index": {"log_level": "info", "build_batch": 8}}
PAIR = types_pb2.Pair(query="q", premise_id="p", premise="a premise", sign=types_pb2.PAIR_SIGN_POSITIVE)
NAMED = f"format_version {MAJOR}"
LOOK_S = 3.0  # from the start to a look at what a newer record has done
LIVE = (trainer_pb2.JOB_STATE_PENDING, trainer_pb2.JOB_STATE_RUNNING)
ANSWER_S = 150.0  # for one call: an index waits two minutes for an encoder that serves
JOB_S = 60.0  # after which a job has read what an earlier trainer left
POLL_S = 0.2
START_S = 15.0


@asynccontextmanager
async def described(home: Path, redis: RedisProcess, root: Path = ROOT) -> AsyncIterator[Fleet]:
    """A fleet over `home`, not yet started, with the code in `root`."""
    store = ArtifactStore(home / "artifacts")
    oracle = FakeOracle()
    async with serving(oracle_pb2_grpc.add_OracleServiceServicer_to_server, oracle) as port:
        yield describe_fleet(
            home,
            redis,
            Space(store, home / "base", {}, "", ""),
            oracle,
            f"127.0.0.1:{port}",
            counts=dict.fromkeys(SERVICES, 1),
            settings=SETTINGS,
            environment={},
            root=root,
        )


@asynccontextmanager
async def written(scratch: Path, root: Path) -> AsyncIterator[tuple[Path, State]]:
    """A home in which the code of `root` has written everything and was killed, Redis included."""
    home = scratch / "home"
    home.mkdir()
    write_tiny_base(home / "base")
    redis = RedisProcess(home / "redis")
    try:
        async with described(home, redis, root) as fleet:
            await fleet.start()
            state = await write_state(fleet)
    finally:
        redis.kill()
    yield home, state


async def versions(rows: Rows, kind: str = "") -> None:
    """All three neighbours; or the next major release alone, for kinds of records with `kind` in their name."""
    if not kind:
        with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
            await _earlier(rows, Path(scratch))
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        await _newer(rows, Path(scratch), kind)


async def _earlier(rows: Rows, scratch: Path) -> None:
    """The state that an earlier commit's own code has written."""
    code = scratch / "code"
    if not await asyncio.to_thread(check_out, code):
        rows.add(f"state of {EARLIER}", False, "", "True", False, "the history lacks it; git fetch --unshallow")
        return
    async with written(scratch, code) as (home, state):
        await _open(rows, f"state of {EARLIER}", home, state)


async def _newer(rows: Rows, scratch: Path, asked: str) -> None:
    """The states that the next minor and the next major release would write; see `versions` for `asked`."""
    async with written(scratch, ROOT) as (home, state):
        kept = scratch / "kept"
        await _copy(home, kept)
        found = await _rewrite(home, next_minor, lambda _: True)
        mine = [place for place in found if f"/{OTHER_CORPUS}/" not in place.kind]  # that corpus stays as it is
        if not asked:
            _compare_kinds(rows, mine)
            await _open(rows, "state of the next minor release", home, state)
        for kind in filter(lambda name: asked in name, kinds(mine)):
            await asyncio.to_thread(shutil.rmtree, home)
            await _copy(kept, home)
            await _rewrite(home, next_major, lambda place, kind=kind: place.kind == kind)
            await _refuse(rows, kind, home, state)


async def _copy(source: Path, target: Path) -> None:
    await asyncio.to_thread(shutil.copytree, source, target, ignore=shutil.ignore_patterns("*.sock"))


def check_out(folder: Path) -> bool:
    """Writes the earlier commit's files into a new folder. False: the history lacks it."""
    archive = subprocess.run(["git", "archive", EARLIER], cwd=ROOT, check=False, capture_output=True)
    if archive.returncode == 0:
        folder.mkdir()
        subprocess.run(["tar", "x"], cwd=folder, input=archive.stdout, check=True)
    return archive.returncode == 0


def _compare_kinds(rows: Rows, found: list[Place]) -> None:
    differing = sorted({*kinds(found)} ^ {*KINDS})
    rows.add("kinds of records beside those in the table", len(differing), "kinds", "= 0", not differing, differing)


async def _rewrite(home: Path, change: Edit, chosen: Callable[[Place], bool]) -> list[Place]:
    """Rewrites records of a stopped fleet. A manifest's new digest goes wherever the old one stood."""
    redis_process = RedisProcess(home / "redis")
    redis = connect(redis_process.url)
    try:
        found = await places(redis, NAMESPACE, home)
        digests = {}
        for place in filter(chosen, found):
            before = _digest(place.path) if place.path.name == "manifest.json" else ""
            await edit(redis, place, change)
            if before:
                digests[before] = _digest(place.path)
        await _follow(redis, home, digests)
    finally:
        await redis.aclose()
        await asyncio.to_thread(redis_process.stop)
    return found


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def _follow(redis: Any, home: Path, digests: dict[str, str]) -> None:
    def followed(text: str) -> str:
        for old, new in digests.items():
            text = text.replace(old, new)
        return text

    async for key in redis.scan_iter("*"):
        kind = await redis.type(key)
        if kind == "string" and (value := await redis.get(key)) != followed(value):
            await redis.set(key, followed(value), keepttl=True)
        for name, value in (await redis.hgetall(key)).items() if kind == "hash" else ():
            if value != followed(value):
                await redis.hset(key, name, followed(value))
    for path in _saved_labels(home):
        path.write_text(followed(path.read_text()))


def _saved_labels(home: Path) -> list[Path]:
    return list(home.glob("encoder-*/*.json"))


async def _open(rows: Rows, name: str, home: Path, state: State) -> None:
    """Today's services over a state: the same answers, and everything goes on."""
    redis = RedisProcess(home / "redis")
    try:
        async with described(home, redis) as fleet, fleet.client() as client:
            try:
                await fleet.start()
            except RuntimeError as error:
                rows.add(f"{name}: opens", False, "", "True", False, str(error)[-600:])
                return
            try:
                now = await take_snapshot(client)
                for topic, before in state.snapshot.items():
                    same = now[topic] == before
                    told = len(before) if same else f"{now[topic]}, not {before}"[:600]
                    rows.add(f"{name}: {topic} as they were", same, "", "True", same, told)
                for what, fault in (await go_on(client, state)).items():
                    rows.add(f"{name}: {what}", not fault, "", "True", not fault, fault or None)
            finally:
                await fleet.stop()
    finally:
        redis.stop()


async def _refuse(rows: Rows, kind: str, home: Path, state: State) -> None:
    """Today's services over a state with one kind of record of a newer major release."""
    _remove_logs(home)
    redis = RedisProcess(home / "redis")
    try:
        async with described(home, redis) as fleet, fleet.client(timeout_s=8.0, retry=False) as client:
            for process in fleet.all():
                process.start()
            try:
                await asyncio.gather(*(asyncio.to_thread(process.wait_listening) for process in fleet.all()))
            except RuntimeError as error:
                rows.add(f"next major, {kind}", False, "", "True", False, str(error)[-400:])
                return
            begun = time.monotonic()
            while time.monotonic() - begun < START_S and await _starting(client):  # noqa: ASYNC110 -- calls, no event
                await asyncio.sleep(0.5)
            await asyncio.sleep(LOOK_S)
            outcomes = {what: await _outcome(call) for what, call in _probes(client, state).items()}
            dead = [process.name for process in fleet.all() if not process.alive]
            logs = "".join(process.log.read_text(errors="replace") for process in fleet.all())
            await asyncio.to_thread(fleet.kill)
    finally:
        redis.stop()
    refused = [what for what, outcome in outcomes.items() if outcome == "named"]
    failed = {what: outcome for what, outcome in outcomes.items() if outcome not in {"ok", "named"}}
    is_named = bool(refused) or NAMED in logs or kind in (*REWRITTEN, *UNREAD)
    where = refused or ("in the log" if NAMED in logs else "nowhere; nobody reads it as it is")
    told = f"refused by name: {where}; served: {len(outcomes) - len(refused) - len(failed)}"
    faults = (
        ([f"ended: {dead}"] if dead else [])
        + ([] if is_named else ["not named"])
        + [f"{k}: {v}" for k, v in failed.items()]
    )
    rows.add(f"next major, {kind}", len(faults), "faults", "= 0", not faults, "; ".join(faults)[:500] or told)


def _remove_logs(home: Path) -> None:
    for path in home.glob("*.log"):
        path.unlink()


def _services(client: AsyncClient) -> list[Any]:
    return [client.encoder, client.index, client.sampler, client.trainer]


async def _starting(client: AsyncClient) -> bool:
    """Whether a service has yet to become ready, and says nothing of a newer record."""
    for service in _services(client):
        try:
            info = (await service.info()).service
        except errors.AeencError:
            return True
        if info.state == types_pb2.SERVICE_STATE_STARTING and NAMED not in info.state_reason:
            return True
    return False


async def _gone_on(client: AsyncClient, job_id: str) -> Any:
    """A job once it, or another of its epochs, has ended; or as it is after a while."""
    job = await client.trainer.job(job_id)
    epochs = job.progress.epochs_done
    for _ in range(int(JOB_S / POLL_S)):
        if job.state not in LIVE or job.progress.epochs_done > epochs:
            break
        await asyncio.sleep(POLL_S)
        job = await client.trainer.job(job_id)
    return job


async def _outcome(call: Callable[[], Awaitable[Any]]) -> str:
    try:
        found = await asyncio.wait_for(call(), ANSWER_S)
    except errors.AeencError as error:
        return "named" if NAMED in error.message else f"{error.code} {error.message[:160]}"
    except TimeoutError:
        return "no answer"
    return "named" if NAMED in str(found) else "ok"


def _probes(client: AsyncClient, state: State) -> dict[str, Callable[[], Awaitable[Any]]]:
    async def every(items: Any) -> list[Any]:
        return [one async for one in items]

    async def publish_again() -> Any:
        version = (await client.trainer.job(state.job)).version
        return await client.registry.publish(version, force=True, request_id="published")

    return {
        "encode": lambda: client.encoder.encode([QUERIES[0]]),
        "retrieve": lambda: client.index.retrieve(CORPUS, QUERIES[:2], k=3),
        "retrieve with a prior": lambda: client.index.retrieve(CORPUS, QUERIES[:2], k=3, prior=0.1),
        "retrieve from another corpus": lambda: client.index.retrieve(OTHER_CORPUS, QUERIES[:2], k=3),
        "generations": lambda: client.index.generations(CORPUS),
        "build again": lambda: client.index.build(CORPUS, HALF_PREMISES, request_id="half-build", resume_s=0.1),
        "build a finished one again": lambda: client.index.build(
            CORPUS, PREMISES, request_id=f"built-{CORPUS}", activate=True
        ),
        "build another corpus": lambda: client.index.build("third", PREMISES),
        "labels": client.registry.labels,
        "rollouts": client.registry.rollouts,
        "publish again": publish_again,
        "checkpoints": client.trainer.checkpoints,
        "runs": client.sampler.runs,
        "runs by id": lambda: asyncio.gather(client.sampler.run(state.gold_run), client.sampler.run(state.people_run)),
        "pairs": lambda: every(client.sampler.pairs(state.gold_run)),
        "trees": lambda: every(client.sampler.export_trees(state.gold_run)),
        "tasks": lambda: every(client.people.tasks(state.people_run)),
        "lease": lambda: client.people.lease("dan", run_id=state.people_run),
        "events of tasks": lambda: anext(client.people.watch(state.people_run, from_seq=1)),
        "events of all tasks": lambda: anext(client.people.watch(from_seq=1)),
        "import": lambda: client.sampler.import_pairs("fourth", [PAIR]),
        "import again": lambda: import_again(client),
        "events of a run": lambda: every(client.sampler.watch(state.gold_run)),
        "jobs": client.trainer.jobs,
        "events of a job": lambda: every(client.trainer.watch(state.job)),
        "half-done job": lambda: _gone_on(client, state.half_job),
        "infos": lambda: asyncio.gather(
            client.encoder.info(), client.index.info(), client.sampler.info(), client.trainer.info()
        ),
    }
