"""A trainer and an encoder that share nothing but a bucket and Redis."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from aeenc.errors import FailedPrecondition
from services.corpus.generation import folder_of
from services.store import objects
from services.store.objects import open_store
from services.trainer.models.sentence_export import premise_encoder_of
from services.trainer.registry.checkpoints import active_generation, is_cross_encoder
from services.trainer.registry.tandems import Tandem, TandemPublisher
from services.trainer.train.inputs import JobInputs
from services.trainer.train.ranks import Rank
from support.waiting import until
from support.worlds.trainer_world import MakeJob, Space, serve_encoder, serve_trainer


async def test_an_encoder_with_an_empty_directory_serves_what_a_trainer_has_registered(
    space: Space, redis_url: str, namespace: str, tmp_path: Path
):
    bucket = {"artifacts_url": f"file://{tmp_path / 'bucket'}"}
    async with serve_trainer(space, redis_url, namespace, tmp_path / "trainer", **bucket):
        own = {"artifacts_dir": tmp_path / "empty", **bucket}
        async with serve_encoder(space, redis_url, namespace, tmp_path / "encoder", **own) as (server, encoder):
            await until(lambda: server.readiness.answers)
            assert (await encoder.encode(["ice floats"])).model_version == space.version


def test_what_is_only_described_is_not_fetched(space: Space, corpus: str, tmp_path: Path):
    generation = active_generation(space.store, corpus)
    store = open_store(space.store.root, f"file://{tmp_path / 'bucket'}")
    store.push("checkpoints", space.version)
    store.push(folder_of(corpus), generation)
    empty = open_store(tmp_path / "empty", store.url)
    tandem = Tandem(space.version, space.version, space.space_id, corpus, generation)
    TandemPublisher(Mock(), Mock(), Mock(), empty, Mock())._check_same_premises(tandem, generation)
    assert not is_cross_encoder(empty, space.version)
    elsewhere: Any = SimpleNamespace(id=space.version, meta={"space_id": "another"})
    with pytest.raises(FailedPrecondition, match="the premise encoder of space another"):
        premise_encoder_of(empty, elsewhere)
    assert list(tmp_path.glob("empty/**/manifest.json")) == []


def test_a_jobs_process_finds_its_inputs_in_the_bucket(space: Space, corpus: str, make_job: MakeJob, tmp_path: Path):
    files = make_job()
    plan = files.plan()
    store = open_store(space.store.root, f"file://{tmp_path / 'bucket'}")
    store.push("checkpoints", space.version)
    store.push(f"generations/{corpus}", plan.generation)
    files.write_plan(replace(plan, artifacts_dir=str(tmp_path / "empty"), artifacts_url=store.url))
    try:
        inputs = JobInputs.load(files, Rank())
        assert not objects._unheld(inputs.base.path), "the cache may evict it before the job ends"
    finally:
        shutil.rmtree(tmp_path / "empty")
    assert (inputs.base.id, inputs.generation.id) == (space.version, plan.generation)
