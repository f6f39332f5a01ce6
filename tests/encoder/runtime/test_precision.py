"""The precision that a call gets; a precision that fails its checks here is not served."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from aeenc import errors
from aeenc.v1 import types_pb2
from services.encoder.rollout import calibration
from services.encoder.runtime.runners import PaddedRunner, SingleRunner, Tokens
from services.store.artifacts import ArtifactStore
from services.store.registry import Registry
from support.models.tiny_checkpoints import TinyCheckpoint, register, write_tiny_checkpoint

PASSED = {"passed": True, "map_loss": 0.0, "cosine_mean": 0.995, "cosine_min": 0.98, "queries": 3, "reason": ""}


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
        with pytest.raises(errors.InvalidArgument, match="premises are always float32"):
            await client.encode(["sun"], role="premise", precision="int8")
        (tuned,) = [version for version in (await client.info()).versions if not version.premise_encoder]
        assert list(tuned.precisions) == [types_pb2.PRECISION_INT8, types_pb2.PRECISION_FLOAT32]


async def test_an_encoder_that_is_not_set_to_int8_does_not_load_it(serve, space, registry, artifact_store) -> None:
    await publish(registry, artifact_store, space, int8=PASSED)
    async with serve() as (_, client):
        assert (await client.encode(["sun"])).precision == "float32"
        with pytest.raises(errors.FailedPrecondition, match=r"is not computed in int8 here.*float32"):
            await client.encode(["sun"], precision="int8")


@pytest.mark.parametrize(("int8_s", "first"), [(0.5, "int8"), (0.9, "float32")])
async def test_the_fastest_precision_is_measured_when_a_version_is_loaded(
    serve, space, registry, artifact_store, monkeypatch, int8_s, first
) -> None:
    seconds = {SingleRunner: int8_s, PaddedRunner: 1.0}
    monkeypatch.setattr(calibration, "_seconds", lambda runner, tokens: seconds[type(runner)])
    await publish(registry, artifact_store, space, int8=PASSED)
    async with serve(precision="fastest") as (_, client):
        assert (await client.encode(["sun"])).precision == first
        other = "float32" if first == "int8" else "int8"
        assert (await client.encode(["sun"], precision=other)).precision == other
        (tuned,) = [version for version in (await client.info()).versions if not version.premise_encoder]
        assert tuned.precisions[0].name == first.upper()
        assert "texts a second: " in tuned.precision_reason
        base = next(version for version in (await client.info()).versions if version.premise_encoder)
        assert "has no model.int8.onnx" in base.precision_reason


def test_each_runner_computes_all_texts_in_its_turn() -> None:
    turns: list[tuple[str, int]] = []

    class Fake:
        pads, width = False, 1

        def __init__(self, name: str, pause_s: float) -> None:
            self.name, self.pause_s = name, pause_s

        def run(self, batch: Sequence[Tokens]) -> NDArray[np.float32]:
            turns.append((self.name, len(batch)))
            time.sleep(self.pause_s)
            return np.ones((len(batch), 1), dtype=np.float32)

    runners = {"int8": Fake("int8", 0.001), "float32": Fake("float32", 0.004)}
    found: list[tuple[dict[str, Fake], str]] = []

    def steps() -> Generator[None, None, None]:
        found.append((yield from calibration.fastest(runners, [Tokens([1] * n) for n in range(1, 11)])))

    assert len(list(steps())) == 2 * calibration.ROUNDS, "loading may stop between any two"
    [(ordered, said)] = found
    assert list(ordered) == ["int8", "float32"]
    assert turns[:4] == [("int8", 8), ("int8", 2), ("float32", 8), ("float32", 2)]
    assert "int8" in said


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


async def test_half_precision_asked_for_by_name_stops_the_start_without_a_gpu(serve) -> None:
    with pytest.raises(errors.FailedPrecondition, match="half precision is for a GPU"):
        async with serve(precision="float16", device="cpu", wait=False):
            pass


async def test_int8_is_computed_one_text_a_run_so_that_neighbours_cannot_matter(
    serve, space, registry, artifact_store, monkeypatch
) -> None:
    await publish(registry, artifact_store, space, int8=PASSED)
    shapes = []
    original = SingleRunner.__init__

    class Session:
        def __init__(self, inner) -> None:
            self.inner = inner

        def run(self, outputs, feeds):
            shapes.append((feeds["input_ids"].shape, int(feeds["attention_mask"].min())))
            return self.inner.run(outputs, feeds)

    monkeypatch.setattr(
        SingleRunner, "__init__", lambda self, session, **fields: original(self, Session(session), **fields)
    )
    async with serve(precision="int8") as (_, client):
        shapes.clear()
        await client.encode(["sun", "the moon is a small star", "rain"] * 5)
    assert len(shapes) == 15
    assert all(shape[0] == 1 and mask == 1 for shape, mask in shapes), "no other text, no padding"
