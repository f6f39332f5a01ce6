"""Rows that another release has written: an encoder starts with them, and keeps serving."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from services.store.files import sha256_of
from services.store.redis import connect, key_prefix
from services.store.registry import Registry
from support.models.tiny_checkpoints import TINY_SPACE, TinyCheckpoint, register
from support.waiting import eventually, until


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Any]:
    connected: Any = connect(redis_url)
    yield connected
    await connected.aclose()


async def test_an_encoder_starts_with_rows_to_which_the_next_minor_release_has_added_fields(
    serve: Any, registry: Registry, redis: Any, namespace: str, tiny_checkpoint: TinyCheckpoint
) -> None:
    await register(registry, tiny_checkpoint)
    prefix, version = key_prefix(namespace), tiny_checkpoint.version
    await registry.set_label(TINY_SPACE, "stable", version)
    row = json.loads(await redis.get(f"{prefix}checkpoint:{version}"))
    await redis.set(f"{prefix}checkpoint:{version}", json.dumps({**row, "signed_by": "somebody"}))
    await redis.hset(f"{prefix}label:{TINY_SPACE}:stable", "pinned", "1")
    async with serve() as (_, client):
        assert (await client.encode(["sun"])).model_version == version


async def test_an_encoder_that_meets_a_label_of_the_next_major_release_serves_on_and_names_it(
    serve: Any, registry: Registry, redis: Any, namespace: str, tiny_checkpoint: TinyCheckpoint
) -> None:
    await register(registry, tiny_checkpoint)
    await registry.set_label(TINY_SPACE, "stable", tiny_checkpoint.version)

    async def says(client: Any, text: str) -> bool:
        return text in (await client.info()).service.state_reason

    async def check(client: Any) -> None:
        await eventually(lambda: says(client, "label 'canary'"))
        assert await says(client, "format_version 3")
        assert (await client.encode(["sun"])).model_version == tiny_checkpoint.version

    async with serve() as (_, client):
        await client.encode(["sun"])
        await registry.set_label(TINY_SPACE, "canary", tiny_checkpoint.version)
        key = f"{key_prefix(namespace)}label:{TINY_SPACE}:canary"
        await redis.hset(key, "format_version", 3)
        await check(client)
    async with serve() as (_, client):
        await check(client)
        await redis.delete(key)
        await redis.srem(f"{key_prefix(namespace)}labels", f"{TINY_SPACE} canary")
        await eventually(lambda: says(client, ""))


async def test_an_encoder_whose_base_model_the_next_major_release_has_written_waits_and_names_it(
    serve: Any, registry: Registry, tiny_checkpoint: TinyCheckpoint
) -> None:
    await register(registry, tiny_checkpoint, label="stable")
    async with serve():
        pass
    manifest = tiny_checkpoint.artifact.path / "manifest.json"
    ours, (row,) = manifest.read_text(), await registry.checkpoints()
    manifest.write_text(ours.replace('"format_version": 1', '"format_version": 2'))
    try:
        await registry.add_checkpoint(replace(row, manifest_sha256=sha256_of(manifest)))
        async with serve(wait=False) as (server, client):
            await until(lambda: "format_version 2" in server.readiness.reason)
            manifest.write_text(ours)
            await registry.add_checkpoint(row)
            assert (await client.encode(["sun"], timeout_s=5)).model_version == tiny_checkpoint.version
    finally:
        manifest.write_text(ours)
