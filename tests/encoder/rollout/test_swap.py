"""Swapping versions: no call fails, no batch mixes versions, and no bad version ever replaces the serving one."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aeenc import EncoderClient, errors
from services.store.artifacts import MANIFEST
from services.store.checkpoint_registry import CheckpointRegistry
from services.store.files import sha256_of
from services.store.registry import Registry
from support.models.tiny_checkpoints import (
    DIM,
    TINY_SPACE,
    TinyCheckpoint,
    register,
    rolled_out,
    tiny_tokenizer,
    write_tiny_checkpoint,
)
from support.waiting import eventually, until

Change = Callable[[Path, dict[str, object]], None]  # of a checkpoint's files and its manifest's facts


async def test_swaps_under_load_fail_no_call_and_mix_no_versions(serve, artifact_store, stable, registry) -> None:
    texts = ["sun", "moon and star", "rain"]
    expected: dict[str, np.ndarray] = {}
    seen: list[str] = []
    stop = asyncio.Event()
    async with serve() as (_, client):

        async def call() -> None:
            while not stop.is_set():
                answer = await client.encode(texts, timeout_s=5)
                first = expected.setdefault(answer.model_version, answer.vectors)
                np.testing.assert_allclose(answer.vectors, first, atol=1e-5)
                seen.append(answer.model_version)

        callers = [asyncio.create_task(call()) for _ in range(4)]
        await until(lambda: bool(seen))
        for seed in range(1, 9):
            checkpoint = write_tiny_checkpoint(artifact_store, seed=seed, base_version=stable.version)
            await register(registry, checkpoint)
            rollout = await rolled_out(registry, TINY_SPACE, "stable", checkpoint.version)
            assert rollout.ok, rollout.reason
            await until(lambda version=checkpoint.version: version in seen)
        stop.set()
        await asyncio.gather(*callers)
        info = await client.info()
        assert info.service.limits.tokens == 64, "the model's own"
    assert len(expected) == 9
    assert len(seen) > 50
    labels = {label.name: label.versions[0] for label in info.labels}
    assert labels["stable"] == checkpoint.version
    assert {version.version for version in info.versions} == {*labels.values(), stable.version}


def flipped(checkpoint: TinyCheckpoint) -> None:
    path = checkpoint.artifact.path / "model.onnx"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def forged(checkpoint: TinyCheckpoint) -> None:
    """A manifest that fits the changed file, but is not the one the registry knows."""
    flipped(checkpoint)
    path = checkpoint.artifact.path / MANIFEST
    manifest = json.loads(path.read_bytes())
    manifest["files"]["model.onnx"]["sha256"] = sha256_of(checkpoint.artifact.path / "model.onnx")
    path.write_text(json.dumps(manifest))


@pytest.fixture
async def refused(serve, stable, registry: Registry):
    """Checks that a candidate for `stable` is refused for a reason while the checkpoint before it serves on."""

    async def check(candidate: TinyCheckpoint, reason: str) -> None:
        await register(registry, candidate)
        async with serve(poll_s=30) as (server, client):
            rollout = await rolled_out(registry, TINY_SPACE, "stable", candidate.version)
            assert not rollout.ok
            assert (await client.encode(["sun"])).model_version == stable.version
            assert server.readiness.state == "SERVING"
            (swap,) = [
                s
                for s in (await client.info()).swaps
                if s.label.versions == (candidate.version,) and s.label.name == "stable"
            ]
            assert not swap.ok
            assert re.search(reason, swap.reason), swap.reason
            failed = server.metrics.get_sample_value(
                "aeenc_encoder_swaps_total", {"space": TINY_SPACE, "label": "stable", "outcome": "failed"}
            )
            assert failed == 1

    return check


@pytest.mark.parametrize(("damage", "reason"), [(flipped, "sha256"), (forged, "manifest.json has sha256")])
async def test_a_damaged_checkpoint_never_replaces_the_serving_one(
    refused, artifact_store, stable, damage, reason
) -> None:
    candidate = write_tiny_checkpoint(artifact_store, seed=1, base_version=stable.version)
    damage(candidate)
    await refused(candidate, reason)


def with_meta(**fields: object) -> Change:
    return lambda _, meta: meta.update(fields)


def with_file(name: str, content: bytes) -> Change:
    return lambda path, _: (path / name).write_bytes(content) and None


def with_probes(changed: Callable[[np.ndarray], np.ndarray]) -> Change:
    return lambda path, _: np.save(path / "probes.npy", changed(np.load(path / "probes.npy")))


def foreign_operator(path, meta) -> None:
    import onnx

    model = onnx.load_model_from_string((path / "model.onnx").read_bytes())
    model.graph.node[0].domain = "evil.ops"
    (path / "model.onnx").write_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_probes(lambda vectors: np.roll(vectors, 1, axis=0)), "gives other values for its probes"),
        (with_probes(lambda vectors: 3 * vectors), r"probes\.npy holds vectors without unit norm"),
        (with_meta(space_id="s" + "9" * 16), "is of space s9999"),
        (with_meta(dim=DIM * 2), f"has dim {DIM * 2}, its space has {DIM}"),
        (with_meta(max_tokens=32), r"has max_tokens 32, its space has 64; publish it as it was trained"),
        (with_meta(query_prefix="query: "), "has query_prefix 'query: ', its space has ''"),
        (with_file("tokenizer.json", b'{"not": "a tokenizer"}'), "is not a tokenizer"),
        (with_file("model.onnx", b"\x80\x04\x95 this is a pickle, not a model"), "is not an ONNX model"),
        (foreign_operator, "domain 'evil.ops'"),
    ],
    ids=["probes", "long probes", "space", "dim", "limit", "prefix", "tokenizer", "pickle", "operator"],
)
async def test_a_well_hashed_but_wrong_checkpoint_never_replaces_the_serving_one(
    refused, copied, artifact_store, stable, change, reason
) -> None:
    tuned = write_tiny_checkpoint(artifact_store, seed=1, base_version=stable.version)
    await refused(copied(tuned.artifact, change), reason)


async def test_a_checkpoint_whose_padding_is_its_last_token_is_served(
    serve, copied, artifact_store, stable, registry
) -> None:
    def padded_by_the_last(path, meta) -> None:
        meta["pad_id"] = tiny_tokenizer().get_vocab_size() - 1

    tuned = write_tiny_checkpoint(artifact_store, seed=1, base_version=stable.version)
    candidate = copied(tuned.artifact, padded_by_the_last)
    await register(registry, candidate, label="stable")
    async with serve() as (_, client):
        assert (await client.encode(["sun"])).model_version == candidate.version


async def test_a_registry_that_fails_during_the_first_round_takes_nothing_back_that_this_round_has_served(
    serve, artifact_store, tiny_checkpoint, registry, monkeypatch, loaded
) -> None:
    base = tiny_checkpoint.version
    before, newest, of_run = (write_tiny_checkpoint(artifact_store, seed=n, base_version=base) for n in (1, 2, 3))
    await register(registry, tiny_checkpoint)
    await register(registry, before, label="stable")
    await register(registry, of_run, label="run-1")
    async with serve():
        pass
    await register(registry, newest, label="stable")
    loaded.clear()
    get, labels = CheckpointRegistry.get, Registry.labels
    reads = 0

    async def away_for_a_run(self, version):
        if version == of_run.version:
            raise errors.Unavailable("Redis is away")
        return await get(self, version)

    async def away_from_then_on(self, *arguments, **options):
        nonlocal reads
        reads += 1
        if reads > 2:  # the first two serve `stable`
            raise errors.Unavailable("Redis is away")
        return await labels(self, *arguments, **options)

    monkeypatch.setattr(CheckpointRegistry, "get", away_for_a_run)  # once the round serves `stable`
    monkeypatch.setattr(Registry, "labels", away_from_then_on)
    async with serve() as (server, client):
        assert (await client.encode(["sun"])).model_version == newest.version
        await until(lambda: of_run.version in loaded)
        # It is ready before the labels of others are back.
        await eventually(client.info, is_so=lambda info: "run-1" in {label.name for label in info.labels})
        assert (await client.encode(["sun"], label="run-1")).model_version == of_run.version
        assert (server.readiness.state, "Redis is away" in server.readiness.reason) == ("DEGRADED", True)
    assert sorted(loaded) == sorted([base, newest.version, before.version, of_run.version]), "each of them once"


async def test_an_encoder_that_never_served_waits_for_the_registry(serve, tiny_checkpoint, registry) -> None:
    async with serve(wait=False) as (server, client):
        with pytest.raises(errors.Unavailable, match="not ready"):
            await EncoderClient(client.channel.with_options(retry=False)).encode(["sun"])
        await register(registry, tiny_checkpoint, label="stable")
        assert (await client.encode(["sun"])).model_version == tiny_checkpoint.version
        assert server.readiness.state == "SERVING"
