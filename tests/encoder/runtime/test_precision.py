"""The precision that a call gets; a precision that fails its checks here is not served."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import generate_latest

from aeenc import EncoderClient, errors
from aeenc.v1 import types_pb2
from services.encoder.rollout import calibration, loading
from services.encoder.runtime.runners import Tokens
from services.store.artifacts import ArtifactStore
from services.store.registry import Registry
from support.models.tiny_checkpoints import PROBES, TinyCheckpoint, register, write_tiny_checkpoint
from support.waiting import eventually, until

PASSED = {
    "passed": True,
    "map_loss": 0.0,
    "cosine_mean": 0.995,
    "cosine_min": 0.98,
    "queries": 3,
    "reason": "",
    "recipe": "rowwise",
}


@pytest.fixture
async def space(artifact_store: ArtifactStore, tiny_checkpoint: TinyCheckpoint, registry: Registry) -> TinyCheckpoint:
    await register(registry, tiny_checkpoint)
    return tiny_checkpoint


async def publish(registry, store, base, **fields) -> TinyCheckpoint:
    checkpoint = write_tiny_checkpoint(store, seed=3, base_version=base.version, **fields)
    await register(registry, checkpoint, label="stable")
    return checkpoint


async def test_queries_get_int8_where_the_encoder_is_set_to_it_and_the_gate_was_passed(
    serve, space, registry, artifact_store
) -> None:
    await publish(registry, artifact_store, space, int8=PASSED)
    async with serve(precision="int8") as (_, client):
        default, exact = await client.encode(["sun"]), await client.encode(["sun"], precision="float32")
        assert (default.precision, exact.precision) == ("int8", "float32")
        assert not np.allclose(default.vectors, exact.vectors)
        premise = await client.encode(["sun"], role="premise")
        assert premise.precision == "float32"
        with pytest.raises(errors.InvalidArgument, match="premises of this space are always float32"):
            await client.encode(["sun"], role="premise", precision="int8")
        (tuned,) = [version for version in (await client.info()).versions if not version.premise_encoder]
        assert list(tuned.precisions) == [types_pb2.PRECISION_INT8, types_pb2.PRECISION_FLOAT32]


async def test_an_encoder_that_is_set_to_float32_does_not_load_int8(serve, space, registry, artifact_store) -> None:
    await publish(registry, artifact_store, space, int8=PASSED)
    async with serve(precision="float32") as (_, client):
        assert (await client.encode(["sun"])).precision == "float32"
        with pytest.raises(errors.FailedPrecondition, match=r"is not computed in int8 here.*float32"):
            await client.encode(["sun"], precision="int8")


def of_int8_premises(path, meta) -> None:
    meta["premise_precision"] = "int8"


@pytest.mark.parametrize(("precision", "of_queries"), [("float32", "float32"), ("int8", "int8")])
async def test_premises_are_int8_in_a_space_of_them_whatever_queries_are(
    serve, copied, artifact_store, registry, precision, of_queries
) -> None:
    base = copied(write_tiny_checkpoint(artifact_store, seed=3, int8=PASSED).artifact, of_int8_premises)
    await register(registry, base, label="stable")
    async with serve(precision=precision) as (_, client):
        found = await client.encode(PROBES, role="premise")
        assert found.precision == "int8"
        np.testing.assert_allclose(found.vectors, np.load(base.artifact.file("probes.int8.npy")), atol=1e-5)
        assert (await client.encode(["sun"])).precision == of_queries
        with pytest.raises(errors.InvalidArgument, match="is float32, but premises of this space are always int8"):
            await client.encode(["sun"], role="premise", precision="float32")


async def test_a_query_encoder_of_such_a_space_needs_no_int8_of_its_own(
    serve, copied, artifact_store, registry
) -> None:
    base = copied(write_tiny_checkpoint(artifact_store, seed=3, int8=PASSED).artifact, of_int8_premises)
    tuned = write_tiny_checkpoint(artifact_store, seed=4, base_version=base.version)
    await register(registry, base)
    await register(registry, copied(tuned.artifact, of_int8_premises), label="stable")
    async with serve(precision="float32") as (_, client):
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
        (without_its_int8, "premises of space .* are int8, which this encoder cannot compute: .* has no model.int8"),
        (of_unknown_premises, "premises in int4, which this release does not know; update the encoder"),
    ],
)
async def test_a_space_whose_premises_cannot_be_computed_here_is_not_served(
    serve, copied, artifact_store, registry, change, reason
) -> None:
    base = copied(write_tiny_checkpoint(artifact_store, seed=3, int8=PASSED).artifact, change)
    await register(registry, base, label="stable")
    async with serve(wait=False) as (_, client):

        async def refused() -> bool:
            swaps = (await client.info()).swaps
            return any(re.search(reason, swap.reason) for swap in swaps)

        await eventually(refused)


def pretend(monkeypatch, **seconds: float) -> None:
    """Sets what calibration measures for a precision, by the order of its runners."""
    took = iter(list(seconds.values()) * calibration.ROUNDS)
    monkeypatch.setattr(calibration, "_seconds", lambda runner, batch: next(took))


@pytest.mark.parametrize(("int8_s", "first"), [(0.5, "int8"), (0.99, "float32"), (2.0, "float32")])
async def test_by_default_the_fastest_precision_is_measured_when_a_version_is_loaded(
    serve, space, registry, artifact_store, monkeypatch, int8_s, first
) -> None:
    monkeypatch.setattr(loading, "bfloat16_refusal", lambda: "there is none")
    pretend(monkeypatch, float32=1.0, int8=int8_s)
    tuned = await publish(registry, artifact_store, space, int8=PASSED)
    async with serve() as (server, client):
        assert (await client.encode(["sun"])).precision == first
        assert (await client.encode(["sun"], precision="float32")).precision == "float32"
        versions = {version.version: version for version in (await client.info()).versions}
        shown = versions[tuned.version]
        assert shown.precisions[0].name == first.upper()
        assert shown.precision_reason.startswith("measured here on one core, texts a second: float32 11, int8 ")
        assert shown.precision_reason.endswith("there is none")
        assert "has no model.int8.onnx" in versions[space.version].precision_reason
        told = generate_latest(server.metrics).decode()
        assert f'label="stable",precision="{first}",space="{space.space_id}"}} 1.0' in told


async def test_an_int8_that_fails_the_golden_check_here_is_not_measured(
    serve, copied, space, registry, artifact_store
) -> None:
    tuned = write_tiny_checkpoint(artifact_store, seed=3, base_version=space.version, int8=PASSED)
    tuned = copied(tuned.artifact, wrong_probes)
    await register(registry, tuned, label="stable")
    async with serve() as (_, client):
        assert (await client.encode(["sun"])).precision == "float32"
        (shown,) = [one for one in (await client.info()).versions if one.version == tuned.version]
        assert [one.name for one in shown.precisions] == ["FLOAT32"]
        assert "other vectors here than at export" in shown.precision_reason


def rates_of(calibrated: calibration.Calibration, runners, sizes: object = 1) -> tuple[dict[str, float], int]:
    """What is measured, and the number of steps in which loading may stop."""
    steps = calibrated.rates(sizes, runners, [Tokens([1] * length) for length in range(20, 30)])
    taken = 0
    while True:
        try:
            next(steps)
            taken += 1
        except StopIteration as end:
            return end.value, taken


def test_runners_take_turns_in_short_steps_once_for_models_of_one_size() -> None:
    turns: list[tuple[str, int]] = []

    class Fake:
        pads, width = True, 1

        def __init__(self, name: str, busy_s: float) -> None:
            self.name, self.busy_s = name, busy_s

        def run(self, batch: Sequence[Tokens]) -> NDArray[np.float32]:
            turns.append((self.name, len(batch)))
            until = time.thread_time() + self.busy_s
            while time.thread_time() < until:
                pass
            return np.ones((len(batch), 1), dtype=np.float32)

    runners = {"float32": Fake("float32", 0.004), "int8": Fake("int8", 0.001)}
    calibrated = calibration.Calibration()
    rates, taken = rates_of(calibrated, runners)
    assert taken == 2 * calibration.ROUNDS
    assert turns[:3] == [("float32", 9), ("int8", 9), ("float32", 9)], "the shortest that fill a batch of 256 tokens"
    assert calibration.fastest(rates) == "int8"
    assert rates_of(calibrated, runners) == (rates, 0)
    assert rates_of(calibrated, runners, sizes=2)[1] == taken


def nothing(path, meta) -> None:
    pass


def wrong_probes(path, meta) -> None:
    vectors = np.load(path / "probes.int8.npy")
    np.save(path / "probes.int8.npy", np.roll(vectors, 1, axis=0))


def no_model(path, meta) -> None:
    (path / "model.int8.onnx").write_bytes(b"this is no model at all")


@pytest.mark.parametrize(
    ("figures", "change", "reason"),
    [
        ({**PASSED, "passed": False, "reason": "MAP falls by 0.01"}, nothing, "did not pass the trainer's gate"),
        (PASSED, wrong_probes, "other vectors here than at export"),
        (PASSED, no_model, "is not an ONNX model"),
    ],
    ids=["gate", "other-cpu", "damaged"],
)
async def test_a_preferred_int8_that_is_not_right_here_falls_back_to_float32_and_says_why(
    serve, copied, space, registry, artifact_store, figures, change, reason
) -> None:
    tuned = write_tiny_checkpoint(artifact_store, seed=3, base_version=space.version, int8=figures)
    tuned = copied(tuned.artifact, change)
    await register(registry, tuned, label="stable")
    async with serve(precision="prefer-int8") as (server, client):
        answer = await client.encode(["sun"])
        assert (answer.model_version, answer.precision) == (tuned.version, "float32")
        (shown,) = [version for version in (await client.info()).versions if version.version == tuned.version]
        assert reason in shown.precision_reason
        assert server.readiness.state == "SERVING"


async def test_a_candidate_without_the_precision_asked_for_by_name_is_refused_and_says_why(
    serve, space, registry, artifact_store
) -> None:
    good = await publish(registry, artifact_store, space, int8=PASSED)
    async with serve(precision="int8", poll_s=30) as (_, client):
        row = await registry.set_label(space.space_id, "stable", space.version)
        (rollout,) = await registry.await_rollout(row, 10)
        assert not rollout.ok
        assert "cannot be computed in int8 here" in rollout.reason
        assert "has no model.int8.onnx" in rollout.reason
        answer = await client.encode(["sun"])
        assert (answer.model_version, answer.precision) == (good.version, "int8")


async def test_a_start_refuses_a_version_without_the_precision_asked_for_by_name(serve, space, registry):
    await registry.set_label(space.space_id, "stable", space.version)
    async with serve(precision="int8", wait=False) as (server, client):
        await until(lambda: "cannot be computed in int8 here" in server.readiness.reason)
        with pytest.raises(errors.Unavailable):
            await EncoderClient(client.channel.with_options(retry=False)).encode(["sun"])


async def test_half_precision_asked_for_by_name_stops_the_start_without_a_gpu(serve) -> None:
    with pytest.raises(errors.FailedPrecondition, match="half precision is for a GPU"):
        async with serve(precision="float16", device="cpu", wait=False):
            pass
