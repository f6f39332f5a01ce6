"""The rule of stored records: a newer format is refused by name, an unknown field is kept, no number is damage."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from aeenc import errors
from aeenc.oracle import Candidate, Task
from aeenc.values import Garbage, RunConfig, RunProgress
from services.corpus.active import read_active, write_active
from services.corpus.generation import folder_of
from services.encoder.rollout.history import StateFile
from services.sampler.people.task_store import _event
from services.sampler.people.tasks import TaskRecord, from_row, task_json
from services.sampler.records.keys import RunKeys
from services.sampler.records.pair_log import PairLog
from services.sampler.records.run_store import RunStore
from services.sampler.records.runs import Pair, Run
from services.store.artifacts import MANIFEST, ArtifactStore
from services.store.formats import NewerFormat, check_format, damage_is_data_loss, made_of
from services.store.redis import connect, key_prefix
from services.store.registry import CheckpointRow, Registry
from services.store.requests import Request, Requests
from services.trainer.jobs.files import EPOCH_STATE, JobFiles, TrainingPlan
from services.trainer.jobs.job import Job, JobConfig, JobStore
from services.trainer.registry.tandems import Tandem, Tandems

SPACE, CORPUS = "s0123456789abcdef", "science"
NOW = datetime(2025, 1, 1, tzinfo=UTC)
ROW = CheckpointRow("q1", SPACE, False, "", "j1", 0.5, "m" * 64, NOW, 1000, 384)
TANDEM = Tandem("q1", "p1", SPACE, CORPUS, "g1")
JOB = Job("j1", JobConfig(CORPUS, ("r",)), "g1", "PENDING", NOW, fingerprint="f")
RUN = Run("r1", RunConfig(corpus=CORPUS), "PENDING", "", "q1", "g1", RunProgress(), NOW, None)
TASK = Task("t1", "r1", "why", (), (), (Candidate("p1", "a premise", 1, 0.5),))
TASK_ROW = {"task": task_json(TASK), "record": TaskRecord("r1", TASK, 1, "majority").to_json()}
TASK_ROW |= dict.fromkeys(("format_version", "place", "revision"), "1")
TASK_EVENT = {"event": "QUEUED", "run": "r1", "task": "t1", "annotator": "", "at": NOW.isoformat()}


@dataclass
class Place:
    """The places of this test: a store, a Redis and a folder."""

    store: ArtifactStore
    redis: Any
    namespace: str
    folder: Path

    @property
    def prefix(self) -> str:
        return key_prefix(self.namespace)


@dataclass
class Record:
    """A stored record: a file, a JSON value in Redis (key), in a hash (key, field), or a hash itself (key, "")."""

    where: Path | str | tuple[str, str]
    read: Callable[[], Any]
    rewrite: Callable[[], Any]
    page: Callable[[int, int], Awaitable[tuple[list[Any], int]]] | None = None


def of_text(place: Place, text: str, read: Callable[[str], Any], write: Callable[[Any], str]) -> Record:
    """A record that a module only converts: here it is a file."""
    path = place.folder / "record.json"
    path.write_text(text)
    return Record(path, lambda: read(path.read_text()), lambda: path.write_text(write(read(path.read_text()))))


def manifest(place: Place) -> Record:
    def commit() -> Any:
        with place.store.writer("generation", folder_of(CORPUS)) as writer:
            (writer.path / "file").write_text("content")
            return writer.commit({}, id_prefix="g")

    made = commit()
    return Record(made.path / MANIFEST, lambda: place.store.open(folder_of(CORPUS), made.id).files, commit)


def move(place: Place) -> Record:
    write_active(place.store, CORPUS, "g1")
    [path] = (place.store.root / folder_of(CORPUS) / ".moves").iterdir()
    return Record(path, lambda: read_active(place.store, CORPUS), lambda: write_active(place.store, CORPUS, "g1"))


def job_inputs(place: Place) -> Record:
    files = JobFiles(place.folder)
    files.write_inputs([], [])
    (place.folder / EPOCH_STATE).touch()  # else damaged ones are written anew
    return Record(place.folder / "inputs.json", files.has_inputs, files.has_inputs)


def job_plan(place: Place) -> Record:
    files = JobFiles(place.folder)
    files.write_plan(TrainingPlan("j1", JOB.config, "g1", "artifacts"))
    return Record(place.folder / "job.json", files.plan, files.plan)


async def run(place: Place, field: str = "") -> Record:
    runs = RunStore(place.redis, RunKeys(place.namespace))
    await runs.create(RUN, [])

    async def resume() -> None:
        await runs.get(RUN.id)
        await runs.cycles.transition(RUN.id, ["PENDING", "RUNNING"], "RUNNING")

    async def read() -> RunConfig:
        return (await runs.get(RUN.id)).config

    return Record((f"{place.prefix}run:{RUN.id}:record", field), read, resume, runs.cycles.page)


async def pair(place: Place) -> Record:
    path, keys = place.folder / "pair.json", RunKeys(place.namespace)
    path.write_text(Pair("q", "p", "a premise", "POSITIVE").to_json())

    async def read() -> Pair:
        await place.redis.delete(keys.pairs(RUN.id))
        await place.redis.xadd(keys.pairs(RUN.id), {"pair": path.read_text()}, id="1-0")
        return (await PairLog(place.redis, keys).page(RUN.id, 0, 1, None))[0][0]

    return Record(path, read, read)


async def of_hash(place: Place, fields: dict[str, str], read: Callable[[dict[str, str]], Any]) -> Record:
    await place.redis.hset(key := f"{place.prefix}row", mapping={"format_version": "1", **fields})

    async def read_row() -> Any:
        return await found(read(await place.redis.hgetall(key)))

    return Record((key, ""), read_row, read_row)


def event(place: Place) -> Awaitable[Record]:
    keys = RunKeys(place.namespace)

    async def read(row: dict[str, str]) -> datetime:
        await place.redis.delete(keys.events(RUN.id))
        await place.redis.xadd(keys.events(RUN.id), row, id="1-0")
        return (await RunStore(place.redis, keys).cycles.events(RUN.id, 0))[0].at

    return of_hash(place, {"state": RUN.state, "at": NOW.isoformat()}, read)


async def job(place: Place, field: str = "") -> Record:
    jobs = JobStore(place.redis, place.namespace)
    await jobs.create(JOB, [])

    async def resume() -> None:
        await jobs.get(JOB.id)
        await jobs.transition(JOB.id, ["PENDING", "RUNNING"], "RUNNING")

    async def read() -> JobConfig:
        return (await jobs.get(JOB.id)).config

    return Record((f"{place.prefix}job:{JOB.id}:record", field), read, resume, jobs.cycles.page)


async def checkpoint(place: Place) -> Record:
    registry = Registry(place.redis, place.namespace)
    await registry.checkpoints.add(ROW)
    return Record(
        f"{place.prefix}checkpoint:q1", lambda: registry.checkpoints.get("q1"), lambda: registry.checkpoints.add(ROW)
    )


async def label(place: Place) -> Record:
    registry = Registry(place.redis, place.namespace)
    await registry.set_label(SPACE, "stable", "q1")

    async def read() -> str:
        [row] = await registry.labels()
        return row.version

    async def rewrite() -> None:
        await registry.label(SPACE, "stable")
        await registry.set_label(SPACE, "stable", "q2")

    return Record((f"{place.prefix}label:{SPACE}:stable", ""), read, rewrite)


async def tandem(place: Place) -> Record:
    tandems = Tandems(place.redis, place.namespace)
    await tandems.put(TANDEM)
    return Record((f"{place.prefix}tandems", "q1"), lambda: tandems.get("q1"), lambda: tandems.put(TANDEM))


KINDS: dict[str, Callable[[Place], Record | Awaitable[Record]]] = {
    "manifest": manifest,
    "move": move,
    "inputs of a job": job_inputs,
    "plan of a job": job_plan,
    "job": job,
    "configuration of a job": lambda place: job(place, "config"),
    "checkpoint": checkpoint,
    "label": label,
    "tandem": tandem,
    "run": run,
    "configuration of a run": lambda place: run(place, "config"),
    "pair": pair,
    "task": lambda place: of_text(
        place, TASK_ROW["task"], lambda text: from_row("r1", "t1", {**TASK_ROW, "task": text}).task, task_json
    ),
    "row of a task": lambda place: of_hash(place, TASK_ROW, partial(from_row, "r1", "t1")),
    "answers to a task": lambda place: of_text(
        place, TASK_ROW["record"], lambda text: from_row("r1", "t1", {**TASK_ROW, "record": text}), TaskRecord.to_json
    ),
    "event of a run": event,
    "event of a task": lambda place: of_hash(place, TASK_EVENT, partial(_event, "1-0")),
}
REPLACED = {"pair", "task", "event of a run", "event of a task"}  # are written once, and never rewritten


@pytest.fixture
async def place(artifact_store: ArtifactStore, redis_url: str, namespace: str, tmp_path: Path) -> Any:
    redis = connect(redis_url)
    (tmp_path / "own").mkdir()
    yield Place(artifact_store, redis, namespace, tmp_path / "own")
    await redis.aclose()


async def found(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def is_hash(record: Record) -> bool:
    return isinstance(record.where, tuple) and not record.where[1]


async def stored(place: Place, record: Record) -> dict[str, Any]:
    match record.where:
        case Path() as path:
            return dict(json.loads(path.read_text()))
        case str() as key:
            return dict(json.loads(await place.redis.get(key)))
        case (key, ""):
            return dict(await place.redis.hgetall(key))
        case (key, field):
            return dict(json.loads(await place.redis.hget(key, field)))


async def store(place: Place, record: Record, content: Any) -> None:
    match record.where:
        case Path() as path:
            path.write_text(json.dumps(content))
        case str() as key:
            await place.redis.set(key, json.dumps(content))
        case (key, ""):
            await place.redis.delete(key)
            await place.redis.hset(key, mapping=content)
        case (key, field):
            await place.redis.hset(key, field, json.dumps(content))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_record_of_a_newer_format_is_refused_by_name_and_stays(place: Place, kind: str) -> None:
    record = await found(KINDS[kind](place))
    assert str((await stored(place, record))["format_version"]) == "1"
    await store(place, record, {**await stored(place, record), "format_version": 99})
    before = await stored(place, record)
    for use in (record.read, record.rewrite):
        with pytest.raises(NewerFormat, match=r"[\w)] has format_version 99, this release reads up to 1; update"):
            await found(use())
    assert await stored(place, record) == before
    await store(place, record, {"format_version": 99})  # nothing else need be as it is today
    with pytest.raises(NewerFormat):
        await found(record.read())


@pytest.mark.parametrize("kind", KINDS)
async def test_a_field_that_is_not_known_is_read_over_and_kept(place: Place, kind: str) -> None:
    record = await found(KINDS[kind](place))
    before = await found(record.read())
    await store(place, record, {**await stored(place, record), "next": "1"})
    read = await found(record.read())
    assert (replace(read, further={}) if hasattr(read, "further") else read) == before
    if kind not in REPLACED:
        await found(record.rewrite())
        assert (await stored(place, record))["next"] == "1"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_record_of_another_shape_is_damaged_and_left_out_of_lists(place: Place, kind: str) -> None:
    record = await found(KINDS[kind](place))
    await found(record.read())
    if record.page:
        assert len((await record.page(10, 0))[0]) == 1
    shapes = [{"format_version": 1, "corpus": {}, "sha256": []}, [], 7, None, "text"]
    for content in ({"next": 1}, *([{"format_version": 1}] if is_hash(record) else shapes)):
        await store(place, record, content)
        with pytest.raises(errors.DataLoss, match=r"cannot be read|has no format_version|is missing or damaged"):
            await found(record.read())
        if record.page:
            assert await record.page(10, 0) == ([], 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_value_of_another_kind_is_damaged(place: Place, kind: str) -> None:
    record = await found(KINDS[kind](place))
    sound = await stored(place, record)
    names, damaged = sound.keys() - {"format_version"}, set()
    for name in names:
        await store(place, record, {**sound, name: "x" if is_hash(record) else [[7]]})
        try:
            await found(record.read())
        except errors.DataLoss:
            damaged.add(name)
    assert damaged == names or (is_hash(record) and damaged), "some fields of a hash may be any text"


@pytest.mark.parametrize(
    ("read", "content", "told"),
    [
        (bytes.decode, b"\xff" * 1_000_000, "UnicodeDecodeError: 'utf-8' codec"),
        (datetime.fromisoformat, "x" * 1_000_000, "ValueError: Invalid isoformat string"),
        (partial(check_format, readable=1, what="it"), {}, "Unnumbered: it has no format_version"),
        (TypeAdapter(list[float]).validate_python, ["x"] * 100, "ValidationError: 100 validation errors"),
    ],
)
def test_damage_is_told_in_a_line_with_the_remedy(read: Callable[[Any], Any], content: Any, told: str) -> None:
    message = rf"^the manifest cannot be read \({told}.*\); restore it$"
    with pytest.raises(errors.DataLoss, match=message) as caught, damage_is_data_loss("the manifest", "restore it"):
        read(content)
    assert len(caught.value.message) < 300
    assert caught.value.message.count(";") == 1, "one remedy"


@pytest.mark.parametrize("field", ["content", "garbage"])
@pytest.mark.parametrize("damage", ["[7]", "x", None])
async def test_a_damaged_record_of_a_request_is_data_loss(place: Place, field: str, damage: str | None) -> None:
    requests, request = Requests(place.redis, place.namespace), Request("r1", "CollectGarbage", {"dry_run": True})

    def answer() -> Awaitable[list[Garbage] | None]:
        return requests.answer(request, lambda record: made_of(list[Garbage], json.loads(record["garbage"])))

    await requests.record(request, {"garbage": "[]"})
    assert await answer() == []
    await place.redis.hdel(key := requests.key(request), field)
    if damage is not None:
        await place.redis.hset(key, field, damage)
    with pytest.raises(errors.DataLoss, match=r"the record of request id 'r1' cannot be read .*; choose another id"):
        await answer()


async def test_an_encoder_leaves_saved_labels_of_a_newer_format_unread(tmp_path: Path) -> None:
    (tmp_path / "labels.json").write_text('{"format_version": 99}')
    assert await asyncio.wait_for(StateFile(tmp_path).load(), 5) is None
