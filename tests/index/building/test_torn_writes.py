"""A power cut at any moment of a build, an activation or a deletion: the old state or the new one, all promises kept.

`torn_disk` lays out every state that a disk may be in when only what was fsynced is safe. That the states are hard
enough is shown by taking away one fsync of the program after the other: each must be missed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from pathlib import Path

import pytest

from aeenc import errors
from aeenc.v1 import index_pb2
from services.corpus.active import read_active
from services.corpus.generation import folder_of, open_generation
from services.index.building.journal import Journal, finished_build
from services.index.values import BuildSpec
from services.store.artifacts import ArtifactStore
from support.torn_disk import State, TornDisk
from support.worlds.index_world import FACTS, premise

CORPUS = "science"
FOLDER = folder_of(CORPUS)
BUILDS = {"first": FACTS[:4], "second": FACTS[4:9]}


async def build(index, disk: TornDisk, request_id: str) -> str:
    """Streams one premise at a time, each after the one before has been acknowledged as durable."""
    texts = BUILDS[request_id]
    sent: asyncio.Queue[index_pb2.BuildGenerationRequest | None] = asyncio.Queue()
    header = index_pb2.BuildHeader(corpus=CORPUS, request_id=request_id)
    sent.put_nowait(index_pb2.BuildGenerationRequest(header=header))

    async def requests():
        while (part := await sent.get()) is not None:
            yield part

    def send(number: int) -> None:
        premises = [premise(f"{request_id}{number}", texts[number])]
        sent.put_nowait(index_pb2.BuildGenerationRequest(premises=premises))

    send(0)
    durable, report = 0, index_pb2.BuildGenerationResponse()
    stub, channel = index.client._admin, index.client._admin_channel
    async for report in channel.stream(stub.BuildGeneration, requests(), timeout_s=20):
        if report.HasField("generation"):
            disk.promise(("built", request_id, report.generation.id))
        else:
            rows = report.encoded if report.ack_level == index_pb2.ACK_LEVEL_DURABLE else 0
            disk.promise(("durable", request_id, report.durable, rows))
        if report.durable > durable and report.durable <= len(texts) and not report.HasField("generation"):
            durable = report.durable
            if durable < len(texts):
                send(durable)
            else:
                sent.put_nowait(None)
    return str(report.generation.id)


async def scenario(serve, disk: TornDisk) -> None:
    """Two builds, two activations, one deletion."""
    with disk:
        async with serve(build_sync_s=0.01, build_batch=2, build_encode_timeout_s=10.0) as index:
            first = await build(index, disk, "first")
            disk.promise(("activating", first))
            await index.client.activate(CORPUS, first, expected="")
            disk.promise(("active", first))
            second = await build(index, disk, "second")
            disk.promise(("activating", second))
            await index.client.activate(CORPUS, second, expected=first)
            disk.promise(("active", second))
            disk.promise(("deleting", first))
            await index.client.delete(CORPUS, first)
            disk.promise(("deleted", first))


def check(state: State, root: Path) -> None:
    """Opens what is left as the index would. Fails when anything visible is damaged or a promise is broken."""
    state.lay_out(root)
    store = ArtifactStore(root)
    visible = set(store.list(FOLDER))
    for generation_id in visible:
        generation = open_generation(store, CORPUS, generation_id, verify="full")
        texts = [one.text for one in generation.premises]
        assert texts in BUILDS.values(), "half a generation is visible"
    promised = {kind: [one for one in state.promises if one[0] == kind] for kind, *_ in state.promises}
    check_pointers(store, state.promises, visible)
    for request_id, texts in BUILDS.items():
        check_build(store, request_id, texts, promised)


def check_pointers(store: ArtifactStore, promises: tuple, visible: set[str]) -> None:
    allowed, built, deleting, deleted = {None}, set(), set(), set()
    for kind, *what in promises:
        if kind == "built":
            built.add(what[1])
        elif kind == "activating":
            allowed.add(what[0])
        elif kind == "active":
            allowed = {what[0]}
        elif kind in {"deleting", "deleted"}:
            (deleting if kind == "deleting" else deleted).add(what[0])
    active = read_active(store, CORPUS)
    assert active in allowed, "an acknowledged activation is lost"
    assert active is None or active in visible, "what is not there is active"
    assert not visible & deleted, "an acknowledged deletion is undone"
    assert built - deleting <= visible, "an acknowledged generation is lost"


def check_build(store: ArtifactStore, request_id: str, texts: list[str], promised: dict) -> None:
    finished = finished_build(store, CORPUS, request_id)
    built = {one[1]: one[2] for one in promised.get("built", [])}
    gone = {one[1] for one in promised.get("deleting", [])}
    if request_id in built:
        known = finished is not None and finished.generation == built[request_id]
        assert known or built[request_id] in gone, "a retry would build again"
    elif finished is None:
        acknowledged = [one for one in promised.get("durable", []) if one[1] == request_id]
        premises, rows = (
            max((one[2] for one in acknowledged), default=0),
            max((one[3] for one in acknowledged), default=0),
        )
        journal = Journal(store, CORPUS, request_id, BuildSpec(CORPUS, request_id).fingerprint())
        journal.open(premises)
        file = journal.vectors()
        assert [one.text for one in journal.premises] == texts[: len(journal.premises)]
        assert (file.written.rows if file else 0) >= rows, "acknowledged vectors are lost"
        if file:
            file.abandon()
        journal.close(keep=True)


def first_broken(disk: TornDisk, every: int = 1) -> str:
    """What is wrong in the first state that is wrong; empty when all that are looked at are as they should be."""
    memory = Path("/dev/shm")  # thousands of small directories: minutes on a slow disk
    for number, state in enumerate(itertools.islice(disk.states(), 0, None, every)):
        with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as scratch:
            try:
                check(state, Path(scratch) / "disk")
            except (AssertionError, errors.AeencError, OSError) as error:
                return f"state {number}: {type(error).__name__}: {error}"
    return ""


@pytest.mark.slow
@pytest.mark.timeout(300)  # thousands of small directories are laid out
@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.crash)])
async def test_a_power_cut_at_any_moment_breaks_no_promise(serve, artifact_store, every: int):
    disk = TornDisk(artifact_store.root)
    await scenario(serve, disk)
    assert len(disk.points) > 50
    assert not first_broken(disk, every)


@pytest.mark.crash
async def test_each_fsync_is_needed_for_that(serve, artifact_store, tmp_path):
    disk, missed = TornDisk(artifact_store.root), []
    await scenario(serve, disk)
    for number, line in enumerate(sorted(disk.synced)):
        damaged = TornDisk(tmp_path / f"lost{number}" / "artifacts", lost=line)
        await scenario(lambda at=damaged.root, **more: serve(artifacts_dir=at, **more), damaged)
        if not first_broken(damaged):
            missed.append(line)
    assert not missed, "nobody would notice if the program did not call fsync there"
