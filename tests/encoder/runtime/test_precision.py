"""The precision of a label: every encoder computes in it, or does not serve the version and says why."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack

import numpy as np
import pytest
from prometheus_client import generate_latest

from aeenc import errors
from aeenc.v1 import types_pb2
from services.encoder.runtime import onnx_session
from services.store.artifacts import ArtifactStore
from services.store.registry import Registry
from support.models.tiny_checkpoints import PROBES, TinyCheckpoint, register, rolled_out, write_tiny_checkpoint
from support.waiting import eventually

PASSED = {"passed": True, "recipe": "rowwise"}
INT8 = {"model.onnx", "model.int8.onnx"}


@pytest.fixture
async def tuned(artifact_store: ArtifactStore, stable: TinyCheckpoint, registry: Registry) -> TinyCheckpoint:
    """A version that has int8, known to the registry."""
    checkpoint = write_tiny_checkpoint(artifact_store, seed=3, base_version=stable.version, int8=PASSED)
    await register(registry, checkpoint)
    return checkpoint


async def test_queries_get_the_precision_of_their_label_or_the_one_asked_for(serve, stable, tuned, registry) -> None:
    await registry.set_label(stable.space_id, "stable", tuned.version, precision="int8")
    async with serve() as (server, client):
        default, exact = await client.encode(["sun"]), await client.encode(["sun"], precision="float32")
        assert (default.precision, exact.precision) == ("int8", "float32")
        assert not np.allclose(default.vectors, exact.vectors)
        assert (await client.encode(["sun"], version=tuned.version)).precision == "int8"
        premise = await client.encode(["sun"], role="premise")
        assert premise.precision == "float32"
        with pytest.raises(errors.InvalidArgument, match="premises of this space are always float32"):
            await client.encode(["sun"], role="premise", precision="int8")
        info = await client.info()
        (shown,) = [version for version in info.versions if not version.premise_encoder]
        assert list(shown.precisions) == [types_pb2.PRECISION_INT8, types_pb2.PRECISION_FLOAT32]
        (label,) = [one for one in info.labels if one.name == "stable"]
        assert label.precision == types_pb2.PRECISION_INT8
        metrics = generate_latest(server.metrics).decode()
        assert f'label="stable",precision="int8",space="{stable.space_id}"}} 1.0' in metrics


async def test_a_label_that_moves_to_another_precision_is_followed_and_int8_is_not_loaded_before(
    serve, stable, tuned, registry
) -> None:
    await registry.set_label(stable.space_id, "stable", tuned.version)
    async with serve(poll_s=30) as (_, client):
        assert (await client.encode(["sun"])).precision == "float32"
        with pytest.raises(errors.FailedPrecondition, match=r"is not computed in int8 here.*float32"):
            await client.encode(["sun"], precision="int8")
        for precision in ("int8", "float32", "int8"):
            row = await registry.set_label(stable.space_id, "stable", tuned.version, precision=precision)
            assert row.previous == stable.version, "the way back stays"
            (rollout,) = await registry.await_rollout(row, 20)
            assert (rollout.ok, rollout.revision) == (True, row.revision)
            assert (await client.encode(["sun"])).precision == precision


async def test_two_labels_of_a_version_have_their_own_precisions(serve, stable, tuned, registry) -> None:
    await registry.set_label(stable.space_id, "stable", tuned.version)
    await registry.set_label(stable.space_id, "canary", tuned.version, precision="int8")
    async with serve() as (_, client):
        found = [(await client.encode(["sun"], label=label)).precision for label in ("stable", "canary")]
        assert found == ["float32", "int8"]
        assert (await client.encode(["sun"], version=tuned.version)).precision == "float32", "where labels differ"


def of_int8_premises(path, meta) -> None:
    meta["premise_precision"] = "int8"


@pytest.mark.parametrize("precision", ["float32", "int8"])
async def test_premises_are_int8_in_a_space_of_them_whatever_queries_are(
    serve, copied, artifact_store, registry, precision
) -> None:
    base = copied(write_tiny_checkpoint(artifact_store, seed=3, int8=PASSED).artifact, of_int8_premises)
    await register(registry, base, label="stable")
    await registry.set_label(base.space_id, "stable", base.version, precision=precision)
    async with serve() as (_, client):
        found = await client.encode(PROBES, role="premise")
        assert found.precision == "int8"
        np.testing.assert_allclose(found.vectors, np.load(base.artifact.file("probes.int8.npy")), atol=1e-5)
        assert (await client.encode(["sun"])).precision == precision
        with pytest.raises(errors.InvalidArgument, match="is float32, but premises of this space are always int8"):
            await client.encode(["sun"], role="premise", precision="float32")


async def test_a_query_encoder_of_such_a_space_needs_no_int8_of_its_own(
    serve, copied, artifact_store, registry
) -> None:
    base = copied(write_tiny_checkpoint(artifact_store, seed=3, int8=PASSED).artifact, of_int8_premises)
    tuned = write_tiny_checkpoint(artifact_store, seed=4, base_version=base.version)
    await register(registry, base)
    await register(registry, copied(tuned.artifact, of_int8_premises), label="stable")
    async with serve() as (_, client):
        assert (await client.encode(["sun"])).precision == "float32"
        assert (await client.encode(["sun"], role="premise")).precision == "int8"


def of_unknown_premises(path, meta) -> None:
    meta["premise_precision"] = "int4"


def without_its_int8(path, meta) -> None:
    of_int8_premises(path, meta)
    (path / "model.int8.onnx").unlink()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without_its_int8, "cannot be computed in int8 here: it has no model.int8"),
        (of_unknown_premises, "premises in int4, which this release does not know; update the encoder"),
    ],
)
async def test_a_space_whose_premises_cannot_be_computed_here_is_not_served(
    serve, copied, artifact_store, registry, change, reason
) -> None:
    base = copied(write_tiny_checkpoint(artifact_store, seed=3, int8=PASSED).artifact, change)
    await register(registry, base, label="stable")
    async with serve(wait=False) as (_, client):
        await eventually(client.info, is_so=lambda info: any(re.search(reason, swap.reason) for swap in info.swaps))


def with_probes(changed):
    return lambda path, _: np.save(path / "probes.int8.npy", changed(np.load(path / "probes.int8.npy")))


@pytest.mark.parametrize(
    ("change", "precision", "reason"),
    [
        (lambda _, meta: meta.update(int8={**PASSED, "passed": False}), "int8", "did not pass the trainer's gate"),
        (with_probes(lambda vectors: np.roll(vectors, 1, axis=0)), "int8", "other values for its probes"),
        (with_probes(lambda vectors: vectors * 3), "int8", "without unit norm"),
        (lambda path, _: (path / "model.int8.onnx").write_bytes(b"no model at all"), "int8", "is not an ONNX model"),
        (lambda path, _: (path / "model.int8.onnx").unlink(), "int8", "has no model.int8.onnx"),
        (lambda *_: None, "float16", "half precision is for a GPU"),
        (lambda *_: None, "int4", "cannot be computed in int4 here"),
    ],
    ids=["gate", "other-cpu", "no-unit-vectors", "damaged", "missing", "no-gpu", "unknown"],
)
async def test_a_precision_that_cannot_be_served_is_refused_with_the_reason_and_the_old_version_stays(
    serve, copied, stable, registry, artifact_store, change, precision, reason
) -> None:
    candidate = write_tiny_checkpoint(artifact_store, seed=3, base_version=stable.version, int8=PASSED)
    candidate = copied(candidate.artifact, change)
    await register(registry, candidate)
    async with serve(poll_s=30) as (server, client):
        rollout = await rolled_out(registry, stable.space_id, "stable", candidate.version, precision=precision)
        assert not rollout.ok
        assert reason in rollout.reason
        assert (await client.encode(["sun"])).model_version == stable.version
        assert server.readiness.state == "SERVING"


async def test_a_start_refuses_a_version_in_a_precision_that_cannot_be_and_serves_the_one_before(
    serve, stable, registry, artifact_store, tuned, monkeypatch
) -> None:
    await registry.set_label(stable.space_id, "stable", tuned.version, precision="float16")
    async with serve() as (server, client):
        assert (await client.encode(["sun"])).model_version == stable.version
        assert server.readiness.state == "DEGRADED"
        assert "half precision is for a GPU" in server.readiness.reason


async def test_replicas_on_unlike_cpus_never_answer_in_two_precisions_and_one_that_cannot_is_named(
    serve, stable, tuned, registry, monkeypatch, tmp_path
) -> None:
    """Three kinds of replicas: with instructions for int8, without them, and with wrong products in int8."""
    from services.encoder.rollout import loading

    def cpu(flags: str) -> None:
        (tmp_path / "cpuinfo").write_text(f"model name : simulated\nflags : fpu {flags}\n")
        monkeypatch.setattr(onnx_session, "CPUINFO", tmp_path / "cpuinfo")

    async def replica(name: str, flags: str):
        cpu(flags)
        return await stack.enter_async_context(serve(instance=name, state_dir=tmp_path / name, poll_s=30))

    async with AsyncExitStack() as stack:
        _, fast = await replica("fast", "avx2 avx512_vnni")
        assert await registry.best_precision(INT8) == "int8"
        assert await registry.best_precision({"model.onnx"}) == "float32", "the gate has left no file"
        _, slow = await replica("slow", "avx2")
        assert await registry.best_precision(INT8) == "float32", "not all of them gain by it"
        row = await registry.set_label(stable.space_id, "stable", tuned.version, precision="int8")
        assert all(one.ok for one in await registry.await_rollout(row, 20))
        for precision in ("int8", "float32"):
            row = await registry.set_label(stable.space_id, "stable", tuned.version, precision=precision)
            await registry.await_rollout(row, 20)
            answers = [await client.encode(["sun"]) for client in (fast, slow) * 5]
            assert {answer.precision for answer in answers} == {precision}, "both compute it, or neither"

        original = loading._check_probes

        def wrong_in_int8(artifact, description, tokens, runner, probes) -> None:
            if probes == "probes.int8.npy":
                raise errors.FailedPrecondition("gives other values for its probes")
            original(artifact, description, tokens, runner, probes)

        await registry.set_label(stable.space_id, "stable", stable.version)
        row = await registry.set_label(stable.space_id, "stable", tuned.version, precision="int8")
        await registry.await_rollout(row, 20)
        monkeypatch.setattr(loading, "_check_probes", wrong_in_int8)
        _, odd = await replica("odd", "avx2")
        await eventually(
            lambda: registry.rollouts(row.space_id, row.name),
            is_so=lambda found: ("odd", row.revision) in {(one.instance, one.revision) for one in found},
        )
        rollouts = {one.instance: one for one in await registry.rollouts(row.space_id, "stable")}
        assert [rollouts[name].ok for name in ("fast", "slow", "odd")] == [True, True, False]
        assert "other values for its probes" in rollouts["odd"].reason
        served = {
            (one.model_version, one.precision) for one in [await fast.encode(["sun"]), await slow.encode(["sun"])]
        }
        assert served == {(tuned.version, "int8")}
        assert (await odd.encode(["sun"])).model_version == stable.version, "another version, and it says so"
