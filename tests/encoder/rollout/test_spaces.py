"""Several spaces in one encoder: the default one, and every other in which a label stands."""

from __future__ import annotations

import numpy as np
import pytest

from aeenc import errors
from services.encoder.rollout.candidates import CandidateLoader
from services.store.artifacts import ArtifactStore
from services.store.registry import Registry
from support.models.tiny_checkpoints import TINY_SPACE, TinyCheckpoint, register, rolled_out, write_tiny_checkpoint
from support.waiting import serves, until

OTHER = "s" + "7" * 16


@pytest.fixture
async def other(artifact_store: ArtifactStore, tiny_checkpoint: TinyCheckpoint, registry: Registry):
    """The premise encoder and a query encoder of another space; the default space is served as before."""
    premise = write_tiny_checkpoint(artifact_store, seed=20, space_id=OTHER)
    query = write_tiny_checkpoint(artifact_store, seed=21, base_version=premise.version, space_id=OTHER)
    for checkpoint in (premise, query):
        await register(registry, checkpoint)
    await register(registry, tiny_checkpoint, label="stable")  # the default space is the one registered last
    return premise, query


async def opened(registry: Registry, query: TinyCheckpoint) -> None:
    rollout = await rolled_out(registry, OTHER, "stable", query.version)
    assert rollout.ok, rollout.reason


async def test_a_label_opens_its_space_beside_the_default_one(serve, other, registry, tiny_checkpoint) -> None:
    premise, query = other
    async with serve(poll_s=30) as (server, client):
        with pytest.raises(errors.SpaceMismatch, match=f"serves space {TINY_SPACE}, not {OTHER}; point a label"):
            await client.encode(["sun"], space_id=OTHER)
        before = await client.encode(["sun"])
        await opened(registry, query)
        theirs = await client.encode(["sun"], space_id=OTHER)
        assert (theirs.model_version, theirs.space_id) == (query.version, OTHER)
        with pytest.raises(errors.VersionNotLoaded, match=query.version):
            await client.encode(["sun"], version=query.version)  # in the default space
        facts = await client.encode(["sun"], space_id=OTHER, role="premise")
        assert (facts.model_version, facts.space_id) == (premise.version, OTHER)
        after = await client.encode(["sun"])
        assert (after.model_version, after.space_id) == (tiny_checkpoint.version, TINY_SPACE)
        assert np.array_equal(before.vectors, after.vectors)
        assert (await client.encode(["sun"], role="premise")).model_version == tiny_checkpoint.version
        shown = {version.version: version.premise_encoder for version in (await client.info()).versions}
        assert shown == {tiny_checkpoint.version: True, premise.version: True, query.version: False}
        assert server.readiness.state == "SERVING"


async def test_a_space_whose_premise_encoder_is_bad_is_tried_once_and_refused_and_the_default_one_serves(
    serve, other, registry, tiny_checkpoint, loaded
) -> None:
    premise, query = other
    path = premise.artifact.path / "model.onnx"
    path.write_bytes(path.read_bytes()[:-100])
    async with serve(poll_s=30) as (server, client):
        for label in ("one", "stable"):
            rollout = await rolled_out(registry, OTHER, label, query.version)
            assert not rollout.ok
            assert "the premise encoder of space" in rollout.reason
            assert "model.onnx has" in rollout.reason
        assert loaded.count(premise.version) == 1
        with pytest.raises(errors.SpaceMismatch):
            await client.encode(["sun"], space_id=OTHER)
        assert (await client.encode(["sun"])).model_version == tiny_checkpoint.version
        await until(lambda: server.readiness.state == "DEGRADED")
        assert f"space {OTHER} is not served" in server.readiness.reason


async def test_an_open_space_keeps_its_premise_encoder_when_its_new_one_is_bad_and_says_so(
    serve, artifact_store, registry, stable
) -> None:
    bad = write_tiny_checkpoint(artifact_store, seed=22, poison=True)
    failed = {"space": TINY_SPACE, "label": "(premises)", "outcome": "failed"}
    async with serve() as (server, client):
        assert server.readiness.state == "SERVING"
        await register(registry, bad)  # names it the premise encoder of the space
        await until(lambda: server.readiness.state == "DEGRADED")
        assert f"space {TINY_SPACE} keeps its premise encoder: checkpoint {bad.version} " in server.readiness.reason
        assert server.metrics.get_sample_value("aeenc_encoder_swaps_total", failed) >= 1
        swaps = [swap for swap in (await client.info()).swaps if swap.label.name == "(premises)"]
        assert (swaps[0].ok, swaps[0].label.versions) == (False, (bad.version,))
        assert (await client.encode(["sun"], role="premise")).model_version == stable.version
        await register(registry, stable)
        await until(lambda: server.readiness.state == "SERVING")


def store_away(monkeypatch: pytest.MonkeyPatch, *cached: str) -> pytest.MonkeyPatch:
    """Has the store be away, until this is undone, for all but some versions."""
    load = CandidateLoader.load

    async def away(self, space_id, version, *arguments):
        if version not in cached:
            raise errors.Unavailable("the bucket is away")
        return await load(self, space_id, version, *arguments)

    monkeypatch.setattr(CandidateLoader, "load", away)
    return monkeypatch


async def test_a_start_while_the_store_is_away_serves_what_it_has_of_the_default_space_before(
    serve, other, registry, tiny_checkpoint, monkeypatch
) -> None:
    premise, query = other
    async with serve():
        pass
    await register(registry, premise)  # names its space the default
    row = await registry.set_label(OTHER, "stable", query.version)
    away = store_away(monkeypatch, tiny_checkpoint.version)
    async with serve() as (server, client):
        assert (await client.encode(["sun"])).model_version == tiny_checkpoint.version
        assert server.readiness.state == "DEGRADED"
        (rollout,) = await registry.await_rollout(row, 5)
        assert "the bucket is away" in rollout.reason, "once something is served, the labels are followed"
        away.undo()
        await serves(client, query.version)
        await until(lambda: server.readiness.state == "SERVING")


async def test_a_start_while_registry_and_store_are_away_serves_once_they_are_back(
    serve, registry, stable, monkeypatch
) -> None:
    async with serve():
        pass
    away = store_away(monkeypatch)
    async with serve(wait=False) as (server, client):
        await until(lambda: server.readiness.reason.endswith("nor can what was served here last: the bucket is away"))
        away.undo()
        await serves(client, stable.version)
        await until(lambda: server.readiness.state == "SERVING")


async def test_a_deleted_label_is_withdrawn_while_no_stable_can_be_served(
    serve, other, registry, artifact_store, tiny_checkpoint
) -> None:
    _, query = other
    bad = write_tiny_checkpoint(artifact_store, seed=9, base_version=tiny_checkpoint.version, poison=True)
    await registry.delete_label(TINY_SPACE, "stable")
    await register(registry, bad, label="stable")
    await registry.set_label(OTHER, "trial", query.version)
    served = {"space": OTHER, "label": "trial", "version": query.version}
    async with serve(wait=False) as (server, _):

        def is_served() -> bool:
            return server.metrics.get_sample_value("aeenc_encoder_serving_revision", served) is not None

        await until(is_served)
        await until(lambda: server.readiness.reason.startswith("no version can be served"))
        await registry.delete_label(OTHER, "trial")
        await until(lambda: not is_served())


async def test_a_restart_without_redis_serves_all_spaces_again(serve, other, registry, tmp_path) -> None:
    premise, query = other
    async with serve(poll_s=30):
        await opened(registry, query)
    async with serve(redis_url=f"unix://{tmp_path}/nowhere.sock") as (server, client):
        assert (await client.encode(["sun"], space_id=OTHER)).model_version == query.version
        assert (await client.encode(["sun"], space_id=OTHER, role="premise")).model_version == premise.version
        assert (await client.encode(["sun"])).space_id == TINY_SPACE
        assert server.readiness.state == "DEGRADED"
        assert "Redis" in server.readiness.reason


async def test_an_encoder_told_its_space_serves_no_other(serve, other, registry) -> None:
    premise, query = other
    await registry.set_label(OTHER, "stable", query.version)
    async with serve(space_id=TINY_SPACE) as (_, client):
        with pytest.raises(errors.SpaceMismatch):
            await client.encode(["sun"], space_id=OTHER)
    async with serve(space_id=OTHER) as (_, client):
        assert (await client.encode(["sun"])).model_version == query.version
        assert (await client.encode(["sun"], role="premise")).model_version == premise.version
