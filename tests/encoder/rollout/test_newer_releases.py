"""Rows that a newer release has written: an encoder starts with them, and keeps serving."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.encoder.rollout import history
from services.store.artifacts import ArtifactStore
from services.store.files import sha256_of
from services.store.redis import key_prefix
from services.store.registry import Registry
from support.models.tiny_checkpoints import TINY_SPACE, TinyCheckpoint, register, write_tiny_checkpoint
from support.waiting import eventually, until


@pytest.mark.parametrize(("refused", "number"), [("trial", 2), ("stable", 2), ("canary", 2), ("canary", "damaged")])
async def test_a_label_of_the_next_major_release_or_a_damaged_one_stays_as_it_is_and_the_others_are_followed(
    refused: str,
    number: int | str,
    serve: Any,
    artifact_store: ArtifactStore,
    registry: Registry,
    namespace: str,
    tiny_checkpoint: TinyCheckpoint,
) -> None:
    made = [write_tiny_checkpoint(artifact_store, seed=n, base_version=tiny_checkpoint.version) for n in (1, 2)]
    for checkpoint in (tiny_checkpoint, *made):
        await register(registry, checkpoint)
    before, after = (one.version for one in made)
    labels = {"stable", "canary", "trial"}
    for name in labels:
        await registry.set_label(TINY_SPACE, name, before, share=1.0 if name == "canary" else None)
    await registry.set_label(TINY_SPACE, "gone", before)
    async with serve(poll_s=30) as (server, client):
        key = f"{key_prefix(namespace)}label:{TINY_SPACE}:{refused}"
        await registry._redis.hset(key, mapping={"format_version": number, "version": after})
        for name in labels - {refused}:
            row = await registry.set_label(TINY_SPACE, name, after, share=0.0 if name == "canary" else None)
            (rollout,) = await registry.await_rollout(row, 10)
            assert (rollout.revision, rollout.ok) == (row.revision, True)
        await registry.delete_label(TINY_SPACE, "gone")
        wanted = dict.fromkeys(labels, (after, 0.0)) | {refused: (before, 1.0 if refused == "canary" else 0.0)}

        def follows(info: Any) -> bool:
            return {one.name: (*one.versions, one.share) for one in info.labels if one.name != "previous"} == wanted

        await eventually(client.info, is_so=follows)
        await until(lambda: f"label '{refused}'" in server.readiness.reason)
        assert ("has no format_version" if number == "damaged" else "format_version 2") in server.readiness.reason
        assert server.readiness.state == "DEGRADED"
        await registry._redis.hset(key, "format_version", 1)
        await registry.set_label(TINY_SPACE, "trial", before)
        await until(lambda: server.readiness.state == "SERVING")


async def test_a_restart_onto_a_stable_of_the_next_major_release_saves_no_label_that_was_deleted(
    serve: Any, registry: Registry, namespace: str, stable: TinyCheckpoint, tmp_path: Path
) -> None:
    await registry.set_label(TINY_SPACE, "trial", stable.version)

    def saved() -> set[str]:
        state = history.read_state(tmp_path / "state" / history.FILE)
        return {row.name for row in state.labels} if state else set()

    async with serve():
        await until(lambda: saved() == {"stable", "trial"})
    await registry._redis.hset(f"{key_prefix(namespace)}label:{TINY_SPACE}:stable", "format_version", 2)
    async with serve() as (server, client):
        assert server.readiness.state == "DEGRADED"
        await registry.delete_label(TINY_SPACE, "trial")
        await until(lambda: saved() == {"stable"})
        assert (await client.encode(["sun"])).model_version == stable.version


async def test_a_new_default_space_whose_stable_is_of_the_next_major_release_stops_no_other_label(
    serve: Any,
    artifact_store: ArtifactStore,
    registry: Registry,
    namespace: str,
    tiny_checkpoint: TinyCheckpoint,
) -> None:
    tuned = write_tiny_checkpoint(artifact_store, seed=1, base_version=tiny_checkpoint.version)
    other = write_tiny_checkpoint(artifact_store, seed=7, space_id="s" + "7" * 16)
    await register(registry, tuned)
    await register(registry, tiny_checkpoint, label="stable")
    async with serve(poll_s=30) as (server, client):
        await registry.set_label(other.space_id, "stable", other.version)
        await registry._redis.hset(f"{key_prefix(namespace)}label:{other.space_id}:stable", "format_version", 2)
        await register(registry, other)
        row = await registry.set_label(TINY_SPACE, "stable", tuned.version)
        (rollout,) = await registry.await_rollout(row, 10)
        assert (rollout.revision, rollout.ok) == (row.revision, True)
        assert (await client.info()).default_space_id == TINY_SPACE
        await until(lambda: f"label 'stable' of space {other.space_id}" in server.readiness.reason)


async def test_an_encoder_whose_base_model_the_next_major_release_has_written_waits_and_names_it(
    serve: Any, registry: Registry, stable: TinyCheckpoint
) -> None:
    async with serve():
        pass
    manifest = stable.artifact.path / "manifest.json"
    ours, (row,) = manifest.read_text(), await registry.checkpoints.all()
    manifest.write_text(ours.replace('"format_version": 1', '"format_version": 2'))
    try:
        await registry.checkpoints.add(replace(row, manifest_sha256=sha256_of(manifest)))
        async with serve(wait=False) as (server, client):
            await until(lambda: "format_version 2" in server.readiness.reason)
            manifest.write_text(ours)
            await registry.checkpoints.add(row)
            assert (await client.encode(["sun"], timeout_s=5)).model_version == stable.version
    finally:
        manifest.write_text(ours)
