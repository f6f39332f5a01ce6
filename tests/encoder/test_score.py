"""Scoring with a cross-encoder: the same machinery, another kind of model."""

from __future__ import annotations

import asyncio
from functools import partial

import numpy as np
import pytest

from aeenc import errors
from aeenc.v1.types_pb2 import Precision
from services.store.artifacts import ArtifactStore
from services.store.registry import Registry
from support.models.tiny_checkpoints import (
    PAIRS,
    TINY_SPACE,
    TinyCheckpoint,
    register,
    rolled_out,
    write_tiny_checkpoint,
    write_tiny_cross_encoder_checkpoint,
)
from support.waiting import eventually

CROSS = "cross-encoder"
INT8 = {"passed": True, "recipe": "rowwise"}


@pytest.fixture
async def cross(stable, artifact_store: ArtifactStore, registry: Registry) -> TinyCheckpoint:
    checkpoint = write_tiny_cross_encoder_checkpoint(artifact_store)
    await register(registry, checkpoint, label="stable")
    return checkpoint


async def test_scores_are_those_of_the_model_alone_or_in_any_batch(serve, cross) -> None:
    expected = np.load(cross.artifact.file("probes.npy"))
    async with serve() as (_, client):
        alone = [await client.score(query, [premise]) for query, premise in PAIRS]
        np.testing.assert_allclose([one.scores[0] for one in alone], expected, atol=1e-5)
        assert {one.model_version for one in alone} == {cross.version}
        query = PAIRS[0][0]
        premises = [premise for _, premise in PAIRS]
        together = await client.score(query, premises)
        each = [(await client.score(query, [premise])).scores[0] for premise in premises]
        np.testing.assert_allclose(together.scores, each, atol=1e-5)
        assert together.timings.total.total_seconds() > 0


async def test_a_cross_encoder_that_only_a_trial_label_names_is_asked_by_label_or_version(
    serve, stable, artifact_store, registry
) -> None:
    trial = write_tiny_cross_encoder_checkpoint(artifact_store)
    await register(registry, trial)
    await registry.set_label(CROSS, "trial", trial.version)
    async with serve() as (_, client):
        for chosen in ({"label": "trial"}, {"version": trial.version}):
            assert (await client.score("sun", ["moon"], **chosen)).model_version == trial.version
        with pytest.raises(errors.Unimplemented, match="AEENC_TRAINER_CROSS_ENCODER"):
            await client.score("sun", ["moon"])


async def test_texts_and_pairs_never_reach_the_wrong_kind_of_model(serve, cross, stable) -> None:
    async with serve() as (_, client):
        with pytest.raises(errors.VersionNotLoaded):
            await client.encode(["sun"], version=cross.version)
        with pytest.raises(errors.VersionNotLoaded):
            await client.score("sun", ["moon"], version=stable.version)
        spaces = {version.version: version.space_id for version in (await client.info()).versions}
        assert spaces == {cross.version: CROSS, stable.version: stable.space_id}


async def test_a_pair_too_long_is_refused_by_name_or_cut_at_the_premise(serve, cross) -> None:
    async with serve() as (_, client):
        with pytest.raises(errors.InvalidArgument, match=r"premises\[1\]: \d+ tokens are over the model's 64"):
            await client.score("sun", ["moon", "star " * 80])
        cut = await client.score("sun", ["moon", "star " * 80], truncate=True)
        assert cut.truncated == 1
        fitting = await client.score("sun", ["star " * 60])  # 60, the query's one and three special tokens
        np.testing.assert_allclose(cut.scores[1], fitting.scores[0], atol=1e-5)
        with pytest.raises(errors.InvalidArgument, match=r"query: .* leave no room"):
            await client.score("sun " * 80, ["moon"], truncate=True)
        with pytest.raises(errors.InvalidArgument, match="premises: is empty"):
            await client.score("sun", [])
        for query, message in ((" ", "query: is empty"), ("sun " * 5000, "query: 20,000 bytes are over the limit")):
            with pytest.raises(errors.InvalidArgument, match=message) as caught:
                await client.score(query, ["moon"])
            assert [one.field for one in caught.value.violations] == ["query"], "it has no position"


async def test_a_query_is_tokenized_once_however_many_premises_it_has(serve, cross) -> None:
    async with serve() as (_, client):
        premises = ["a"] * 1024
        few, much = [await client.score(query, premises, timeout_s=60) for query in ("z", "中" * 5000)]
        took_s = [one.timings.tokenize.total_seconds() for one in (few, much)]
        assert took_s[1] < 10 * took_s[0] + 0.1


def other_scores(path, _, file="probes.npy") -> None:
    np.save(path / file, np.load(path / file) + 1)


async def test_a_label_of_an_ensemble_loads_all_and_scores_by_one_only_for_who_asks(
    serve, copied, cross, artifact_store, registry
) -> None:
    other = write_tiny_cross_encoder_checkpoint(artifact_store, seed=6)
    bad = copied(other.artifact, other_scores)
    both = [cross.version, other.version]
    await register(registry, other)
    await register(registry, bad)
    async with serve(poll_s=30) as (_, client):
        assert (await rolled_out(registry, CROSS, "pair", "+".join(both))).ok
        with pytest.raises(errors.FailedPrecondition, match=f"ensemble of {both[0]}, {both[1]}; score by one"):
            await client.score("sun", ["moon"], label="pair")
        first = await client.score("sun", ["moon"], label="pair", first_of_ensemble=True)
        assert (first.model_version, list(first.ensemble)) == (cross.version, both)
        second = await client.score("sun", ["moon"], version=other.version, first_of_ensemble=True)
        assert (second.model_version, second.ensemble) == (other.version, ())
        assert second.scores[0] != first.scores[0]
        info = await client.info()
        labels = {label.name: label.versions for label in info.labels if label.space_id == CROSS}
        assert labels == {"pair": tuple(both), "stable": (cross.version,)}
        rollout = await rolled_out(registry, CROSS, "pair", f"{cross.version}+{bad.version}")
        assert (rollout.ok, "other values for its probes than at export" in rollout.reason) == (False, True)
        assert list((await client.score("sun", ["moon"], label="pair", first_of_ensemble=True)).ensemble) == both
        assert (await rolled_out(registry, CROSS, "pair", cross.version)).ok
        assert (await client.score("sun", ["moon"], label="pair", first_of_ensemble=True)).ensemble == ()
        await eventually(client.info, is_so=lambda info: other.version not in {one.version for one in info.versions})


async def test_a_restart_without_the_registry_serves_the_ensemble_of_the_last_run(
    serve, cross, artifact_store, registry, tmp_path
) -> None:
    other = write_tiny_cross_encoder_checkpoint(artifact_store, seed=6)
    await register(registry, other)
    await registry.set_label(CROSS, "stable", f"{cross.version}+{other.version}")
    async with serve() as (_, client):
        before = await client.score("sun", ["moon"], first_of_ensemble=True)
        assert before.ensemble == (cross.version, other.version)
    async with serve(redis_url=f"unix://{tmp_path}/nowhere.sock") as (server, client):
        after = await client.score("sun", ["moon"], first_of_ensemble=True)
        assert (after.ensemble, after.scores) == (before.ensemble, before.scores)
        assert server.readiness.state == "DEGRADED"


async def test_a_bad_cross_encoder_alone_does_not_keep_texts_from_being_encoded(
    serve, stable, artifact_store, registry
) -> None:
    sentence = write_tiny_checkpoint(artifact_store, seed=4, base_version=stable.version)
    await register(registry, sentence)
    await registry.set_label(CROSS, "stable", sentence.version)  # of another kind, in another space
    async with serve() as (server, client):
        assert len((await client.encode(["sun"])).vectors) == 1
        assert server.readiness.state == "SERVING"
        with pytest.raises(errors.Unimplemented):
            await asyncio.wait_for(client.score("sun", ["moon"]), 5)


async def test_a_loaded_version_of_the_wrong_kind_is_not_served_by_another_spaces_label(
    serve, cross, stable, registry
) -> None:
    async with serve(poll_s=30) as (_, client):
        for space_id, label, version in ((CROSS, "stable", stable.version), (TINY_SPACE, "stable", cross.version)):
            rollout = await rolled_out(registry, space_id, label, version)
            assert not rollout.ok
            assert "has none" in rollout.reason
        assert (await client.encode(["sun"])).model_version == stable.version
        assert (await client.score("sun", ["moon"])).model_version == cross.version


async def test_pairs_are_scored_in_the_precision_of_the_label_and_in_float32_on_request(
    serve, stable, artifact_store, registry
) -> None:
    quantized = write_tiny_cross_encoder_checkpoint(artifact_store, int8=INT8)
    await register(registry, quantized)
    await registry.set_label(CROSS, "stable", quantized.version, precision="int8")
    query, premise = PAIRS[1]
    int8, float32 = (float(np.load(quantized.artifact.file(name))[1]) for name in ("probes.int8.npy", "probes.npy"))
    assert int8 != float32
    async with serve() as (_, client):
        found = await client.score(query, [premise])
        assert (found.precision, found.scores[0]) == ("int8", pytest.approx(int8, abs=1e-5))
        exact = await client.score(query, [premise], precision="float32")
        assert (exact.precision, exact.scores[0]) == ("float32", pytest.approx(float32, abs=1e-5))
        with pytest.raises(errors.FailedPrecondition, match="not computed in float16 here"):
            await client.score(query, [premise], precision="float16")
        (own,) = [one for one in (await client.info()).versions if one.version == quantized.version]
        assert [Precision.Name(one) for one in own.precisions] == ["PRECISION_INT8", "PRECISION_FLOAT32"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (partial(other_scores, file="probes.int8.npy"), "off by 1.0000, 0.01 is allowed"),
        (lambda _, meta: meta.update(int8={**INT8, "passed": False}), "did not pass the trainer's gate"),
    ],
)
async def test_an_int8_model_of_pairs_that_does_not_hold_is_refused(
    serve, cross, copied, stable, artifact_store, registry, change, reason
) -> None:
    quantized = write_tiny_cross_encoder_checkpoint(artifact_store, int8=INT8)
    changed = copied(quantized.artifact, change)
    await register(registry, changed)
    async with serve(poll_s=30) as (_, client):
        rollout = await rolled_out(registry, CROSS, "stable", changed.version, precision="int8")
        assert not rollout.ok
        assert reason in rollout.reason
        assert (await client.score("sun", ["moon"])).model_version == cross.version
