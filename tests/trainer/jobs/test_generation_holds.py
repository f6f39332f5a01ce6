"""A live job holds its generation at the index, so that nobody deletes what it learns against."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import aeenc
from aeenc import errors
from aeenc.v1 import types_pb2
from services.corpus.active import read_active
from services.corpus.holds import GenerationHolds
from services.index.__main__ import build as build_index
from services.index.settings import IndexSettings
from services.launcher.private_redis import start_private_redis
from services.store.life_cycles import WorkKeys
from services.store.redis import connect
from services.trainer.jobs import garbage as collection
from services.trainer.jobs.runner import JobRunner
from support.waiting import eventually
from support.worlds.trainer_world import FACTS, QUERIES, Space, serve_trainer


class HeldWorld:
    """An index, a corpus with one generation, and trainers whose jobs last until `ends` is set."""

    def __init__(self, index: aeenc.IndexClient, corpus: str, generation: str, serve: Any) -> None:
        self.index, self.corpus, self.generation, self.serve = index, corpus, generation, serve
        self.ends = asyncio.Event()

    async def start(self, trainer: aeenc.TrainerClient) -> aeenc.values.Job:
        return await trainer.start_job(corpus=self.corpus, data_sets=["given"], split="train")

    async def until_held_by(self, *holders: str) -> None:
        await eventually(
            lambda: anext(self.index.list_generations(self.corpus)), is_so=lambda one: one.held_by == holders
        )


@pytest.fixture
async def held(
    space: Space, corpus: str, redis_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HeldWorld]:
    given = tmp_path / "given.jsonl"
    given.write_text(json.dumps({"query": QUERIES[9], "positive": FACTS[9], "negative": FACTS[10]}) + "\n")
    settings = IndexSettings(port=0, artifacts_dir=space.store.root, encoder_target="127.0.0.1:1")
    async with build_index(settings) as server, aeenc.AsyncClient(index=f"127.0.0.1:{server.port}") as client:
        options = {"index_target": f"127.0.0.1:{server.port}", "data_sets": {"given": given}}
        serve = partial(serve_trainer, space, redis_url, namespace, tmp_path / "trainer", **options)
        assert [one async for one in client.index.list_generations(corpus)]  # repeated until the index is ready
        made = HeldWorld(client.index, corpus, read_active(space.store, corpus) or "", serve)

        async def compute(*_: Any) -> str:
            await made.ends.wait()
            return space.version

        monkeypatch.setattr(JobRunner, "_compute", compute)
        yield made


@pytest.mark.parametrize("end", ["success", "cancel"])
async def test_a_live_job_holds_its_generation_to_its_end_and_again_when_it_is_resumed(held: HeldWorld, end: str):
    async with held.serve() as (_, trainer):
        job = await held.start(trainer)
        await held.until_held_by(f"job-{job.id}")
        if end == "cancel":
            await trainer.cancel(job.id)
            await held.until_held_by()
            await trainer.resume(job.id)
            await held.until_held_by(f"job-{job.id}")
        held.ends.set()
        assert (await trainer.wait(job.id)).state == types_pb2.WORK_STATE_SUCCEEDED
        await held.until_held_by()


@pytest.mark.parametrize("call", ["start", "resume"])
async def test_a_call_that_ends_before_its_job_holds_anything_is_followed_by_a_later_look(
    held: HeldWorld, monkeypatch: pytest.MonkeyPatch, call: str
):
    async def dies(*_: str) -> None:
        return None

    with monkeypatch.context() as patched:
        patched.setattr(GenerationHolds, "hold", dies)
        async with held.serve() as (_, trainer):
            job = await held.start(trainer)
            if call == "resume":
                await trainer.cancel(job.id)
                await trainer.resume(job.id)
            await held.until_held_by()
    monkeypatch.setattr(collection, "ROUND_S", 0.05)
    async with held.serve():
        await held.until_held_by(f"job-{job.id}")


async def test_what_a_dead_trainer_has_left_and_what_was_lost_is_set_right_at_a_later_look(
    held: HeldWorld, monkeypatch: pytest.MonkeyPatch
):
    async def dies(*_: str) -> bool:
        return False

    with monkeypatch.context() as patched:
        patched.setattr(GenerationHolds, "release", dies)
        async with held.serve() as (_, trainer):
            over = await held.start(trainer)
            await trainer.cancel(over.id)
            await held.until_held_by(f"job-{over.id}")
    monkeypatch.setattr(collection, "ROUND_S", 0.05)
    async with held.serve() as (_, trainer):
        await held.until_held_by()
        live = await held.start(trainer)
        await held.index.release(held.corpus, held.generation, f"job-{live.id}")
        await held.until_held_by(f"job-{live.id}")


async def test_work_goes_on_without_a_hold_when_redis_goes_after_the_index_has_refused_it(tmp_path: Path):
    server = start_private_redis(tmp_path)
    redis = connect(server.url)

    async def refuse(*_: str) -> None:
        server.stop()
        raise errors.NotFound("corpus 'science' has no generation 'g1'")

    index: Any = SimpleNamespace(hold=refuse)
    async with aclosing(redis):
        await GenerationHolds(redis, WorkKeys("n", "job"), index).hold("1", "science", "g1")
    assert server.process.poll() is not None
