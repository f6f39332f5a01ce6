"""The trainer's start with a cross-encoder in its settings; its labels; and what does not take it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from aeenc import Channel, RegistryClient, TrainerClient, errors
from services.store.artifacts import ArtifactStore
from services.store.files import sha256_of
from services.store.formats import NewerFormat
from services.store.life_cycles import WorkKeys
from services.store.redis import key_prefix, once_redis_answers
from services.store.registry import Registry
from services.trainer.__main__ import build
from services.trainer.registry.checkpoints import Checkpoints
from services.trainer.registry.child import Child
from services.trainer.registry.operator_models import EXPORTER, OperatorModels
from services.trainer.settings import TrainerSettings
from support.models.tiny_cross_encoders import PAIRS, Exported, reference, take_head, write_tiny_cross_encoder
from support.waiting import until
from support.worlds.trainer_world import Space, trainer_settings


def without_safetensors(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def with_half_a_config(directory: Path) -> None:
    (directory / "config.json").write_text('{"id2label": ')


@pytest.fixture
def settings(space: Space, redis_url: str, namespace: str, tmp_path: Path) -> dict[str, Any]:
    """Settings of a trainer over a copy of the tiny space."""
    shutil.copytree(space.store.root, tmp_path / "artifacts")
    options = trainer_settings(space, redis_url, namespace, tmp_path / "state")
    return {**options, "artifacts_dir": tmp_path / "artifacts"}


@pytest.fixture
def started(settings: dict[str, Any]) -> Callable[[Path], Any]:
    """Starts a trainer with a cross-encoder's directory; each time over the same state."""

    @asynccontextmanager
    async def start(directory: Path) -> AsyncIterator[TrainerClient]:
        async with build(TrainerSettings(**settings, cross_encoder=str(directory))) as server:
            client = TrainerClient(Channel(f"127.0.0.1:{server.port}", timeout_s=150))
            [job async for job in client.list_jobs()]  # answered once it serves
            yield client
            await client.channel.close()

    return start


@pytest.fixture
def refused(settings: dict[str, Any]) -> Callable[[Path], Any]:
    """Starts a trainer that ends by itself, as its process does, and gives what it ended with."""

    async def start(directory: Path) -> errors.AeencError:
        server = build(TrainerSettings(**settings, cross_encoder=str(directory)))
        with pytest.raises(errors.FailedPrecondition) as caught:
            await server.serve_until_signal()
        return caught.value

    return start


def remember(exported: Exported, state: Path, artifacts: Path) -> None:
    """As if an earlier start had exported it."""
    names = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    source = {"exporter": EXPORTER, "sha256": {name: sha256_of(exported.directory / name) for name in names}}
    (state / "cross-encoder.json").write_text(json.dumps(source))
    (state / "cross-encoder.result").write_text(json.dumps({"version": exported.artifact.id}))
    shutil.copytree(exported.artifact.path, artifacts / "checkpoints" / exported.artifact.id)


@pytest.mark.usefixtures("forks")
@pytest.mark.slow
@pytest.mark.timeout(360)  # two exports in processes of their own
async def test_a_start_exports_and_serves_the_cross_encoder_once(
    started, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    children: list[str] = []
    start_child = Child.start

    async def counted(*arguments: str) -> Child:
        children.append(arguments[0])
        return await start_child(*arguments)

    monkeypatch.setattr(Child, "start", counted)
    directory = write_tiny_cross_encoder(tmp_path / "model")
    async with started(directory) as trainer:
        (made,) = [row async for row in trainer.list_checkpoints() if row.space_id == "cross-encoder"]
        assert (made.version[0], made.dim, made.pretrained, list(made.labels)) == ("x", 1, False, ["stable"])
        assert (await trainer.info()).default_space_id != "cross-encoder"
    artifact = ArtifactStore(tmp_path / "artifacts").open("checkpoints", made.version)
    scores = Exported(directory, artifact).scores(PAIRS)
    np.testing.assert_allclose(scores, reference(directory, PAIRS), atol=1e-4)
    moved = directory.rename(tmp_path / "moved")
    async with started(moved):
        assert children == ["cross-encoder"], "the same content is not exported again"
    write_tiny_cross_encoder(moved, seed=1)
    async with started(moved) as trainer:
        other = next(
            row for row in [one async for one in trainer.list_checkpoints()] if row.space_id == "cross-encoder"
        )
    assert children == ["cross-encoder"] * 2
    serving = await registry.label("cross-encoder", "stable")
    assert serving is not None
    assert (serving.version, serving.revision) == (made.version, 1), "what is served is the operator's to change"
    assert other.version != made.version


@pytest.mark.parametrize(
    ("labels", "change", "reason"),
    [
        (2, None, "has 2 labels, a score is one number"),
        (1, without_safetensors, "has no model.safetensors; export it in safetensors format"),
        (1, with_half_a_config, "model/config.json is not JSON (Expecting"),
        (1, shutil.rmtree, "is a path, and no directory is there"),
        pytest.param(1, take_head, "lacks classifier", marks=pytest.mark.slow),  # what the child refuses
    ],
    ids=["two-labels", "pickled-weights", "damaged", "absent", "no head"],
)
@pytest.mark.usefixtures("forks")
async def test_a_wrong_setting_ends_the_start_and_names_itself(
    refused, registry: Registry, tmp_path: Path, labels: int, change: Any, reason: str
):
    directory = write_tiny_cross_encoder(tmp_path / "model", labels=labels)
    if change:
        change(directory)
    assert reason in (await refused(directory)).message
    assert await registry.labels("cross-encoder") == []


async def test_its_labels_move_and_come_back_like_any_and_neither_a_job_nor_an_evaluation_takes_it(
    corpus: str, started, exported: Exported, tmp_path: Path
):
    remember(exported, tmp_path / "state", tmp_path / "artifacts")
    store = ArtifactStore(tmp_path / "artifacts")
    with store.writer("checkpoint", "checkpoints") as writer:
        for name in exported.artifact.files:
            os.link(exported.artifact.file(name), writer.path / name)
        newer = writer.commit({**exported.artifact.meta, "lineage": {"base_model": "newer"}}, id_prefix="x").id
    async with started(exported.directory) as trainer:
        labels = RegistryClient(trainer.channel)
        published = (await labels.publish(newer)).label  # it is registered, as one that was pulled
        assert (published.space_id, published.name, published.revision) == ("cross-encoder", "stable", 2)
        named = {label.name: label.versions[0] async for label in labels.list_labels(space_id="cross-encoder")}
        assert named == {"stable": newer, "previous": exported.artifact.id}
        back = (await labels.rollback(space_id="cross-encoder")).label
        assert (back.versions, back.revision) == ((exported.artifact.id,), 3)
        assert (await labels.get_rollouts(space_id="cross-encoder")).label.versions[0] == exported.artifact.id
        assert (await labels.get_rollouts()).label.revision == 1, "the sentence encoder's label has not moved"
        with pytest.raises(errors.FailedPrecondition, match="is a cross-encoder, from which no job can start"):
            await trainer.start_job(corpus=corpus, run_ids=["r"], base_version=exported.artifact.id)
        with pytest.raises(errors.FailedPrecondition, match="is a cross-encoder, which gives no vectors"):
            await trainer.evaluate(corpus, [("sun", ["moon"])], version=exported.artifact.id)


async def test_redis_is_waited_for_and_a_row_of_a_newer_release_is_not():
    answers = iter([errors.Unavailable("redis is away"), "done", NewerFormat("label 'stable' has format_version 2")])

    async def call() -> str:
        answer = next(answers)
        if isinstance(answer, errors.AeencError):
            raise answer
        return answer

    assert await once_redis_answers(call, 0.0) == "done"
    with pytest.raises(NewerFormat):
        await once_redis_answers(call, 0.0)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        *((kind, "2") for kind in ("manifest", "checkpoint", "stable", "canary", "tandem", "deleted job")),
        *((kind, '"damaged"') for kind in ("canary", "tandem")),
    ],
)
async def test_a_record_of_a_newer_release_or_a_damaged_one_costs_the_trainer_only_what_it_concerns(
    space: Space, settings: dict[str, Any], namespace: str, registry: Registry, kind: str, number: str
):
    await Checkpoints(ArtifactStore(settings["artifacts_dir"]), registry).register(space.version)
    (row,) = await registry.checkpoints.all()
    await registry.checkpoints.set_space(row.space_id, space.version, default=True)
    for label in ("stable", "canary"):
        await registry.set_label(row.space_id, label, space.version)
    redis: Any = registry._redis
    key = f"{key_prefix(namespace)}checkpoint:{space.version}"
    manifest = settings["artifacts_dir"] / "checkpoints" / space.version / "manifest.json"
    if kind == "manifest":
        manifest.write_text(manifest.read_text().replace('"format_version": 1', f'"format_version": {number}'))
    elif kind == "checkpoint":
        await redis.set(key, (await redis.get(key)).replace('"format_version": 1', f'"format_version": {number}'))
    elif kind == "tandem":
        await redis.hset(f"{key_prefix(namespace)}tandems", space.version, f'{{"format_version": {number}}}')
    elif kind == "deleted job":
        keys = WorkKeys(namespace, "job")
        await redis.hset(keys.tombstone("j"), "format_version", number)
        await redis.sadd(keys.deleted, "j")
    else:
        await redis.hset(f"{key_prefix(namespace)}label:{row.space_id}:{kind}", "format_version", number)
    async with build(TrainerSettings(**settings)) as server:
        await until(lambda: server.readiness.answers)
        client = TrainerClient(Channel(f"127.0.0.1:{server.port}", timeout_s=5))
        info = await client.info()
        assert info.default_space_id == row.space_id
        assert ("format_version" in info.service.state_reason) == (kind in {"manifest", "checkpoint"})
        assert [job async for job in client.list_jobs()] == []
        assert await client.collect_garbage() == []
        assert [one.version async for one in client.list_checkpoints()] == [space.version] * (kind != "checkpoint")
        labels = {label.name async for label in RegistryClient(client.channel).list_labels()}
        assert labels == {"stable", "canary"} - {kind}
        await client.channel.close()


@pytest.mark.parametrize("changed", [{}, {"premise_precision": "int8", "pooling": "cls"}, None])
async def test_a_setting_that_is_taken_back_or_changed_or_a_damaged_note_exports_the_model_again(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str] | None
):
    source = {"base_model": "b", "premise_precision": "int8"}
    request = {"artifacts_dir": "elsewhere", "directory": "moved", **source}
    (tmp_path / "pretrained.json").write_text(json.dumps(request))
    (tmp_path / "pretrained.result").write_text(json.dumps({"version": space.version}))
    exports = OperatorModels(Checkpoints(space.store, Mock()), Mock(), tmp_path)
    assert await exports.version("pretrained", "base model", source, directory="here") == space.version
    started = RuntimeError("a child exports")

    async def start(*_: str) -> None:
        raise started

    monkeypatch.setattr("services.trainer.registry.operator_models.Child.start", start)
    now = source if changed is None else {"base_model": "b", **changed}
    for damaged in ("", "7", "[]", "{}") if changed is None else (json.dumps({"version": space.version}),):
        (tmp_path / "pretrained.result").write_text(damaged)
        (tmp_path / "pretrained.json").write_text(json.dumps(request))
        with pytest.raises(RuntimeError, match="a child exports"):
            await exports.version("pretrained", "base model", now, directory="here")


@pytest.mark.parametrize("kind", ["pretrained", "cross-encoder"])
def test_a_model_that_no_onnx_file_can_hold_is_refused_with_its_size(
    space: Space, exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    from services.trainer.train import __main__ as child
    from services.trainer.train.export import checkpoint as export

    monkeypatch.setattr(export, "MAX_WEIGHTS_BYTES", 1_000, raising=False)
    request = space.request | ({"directory": str(exported.directory)} if kind == "cross-encoder" else {})
    path = tmp_path / "model.json"
    path.write_text(json.dumps({**request, "artifacts_dir": str(tmp_path / "artifacts")}))
    child._answer(kind, path)
    error = json.loads(path.with_suffix(".result").read_bytes()).get("error", "")
    assert re.fullmatch(
        r"the model has [0-9,]+ bytes of weights, an ONNX file holds 1,000; choose a smaller one", error
    )
