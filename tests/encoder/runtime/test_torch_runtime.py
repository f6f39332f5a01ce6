"""Encoders in torch instead of onnxruntime: the same vectors, and torch is loaded only on request."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from aeenc import errors
from services.store.artifacts import Artifact, ArtifactStore
from services.store.registry import Registry
from support.models.base_model_vectors import served
from support.models.tiny_checkpoints import PROBES, TinyCheckpoint, register, rolled_out, write_tiny_checkpoint
from support.worlds.trainer_world import Space, space

__all__ = ["space"]


@pytest.fixture
def exported(space: Space) -> Artifact:
    """A tiny BERT as the trainer exports it."""
    return space.store.open("checkpoints", space.version)


@pytest.fixture
def checkpoint(copied, exported: Artifact) -> TinyCheckpoint:
    """The exported checkpoint in this test's store."""
    return copied(exported, replace({}))


def replace(files: dict[str, bytes]) -> Any:
    """A change that replaces files."""
    return lambda path, meta: [(path / name).write_bytes(content) for name, content in files.items()]


async def test_torch_gives_the_vectors_of_onnxruntime(serve, registry: Registry, checkpoint: TinyCheckpoint) -> None:
    await register(registry, checkpoint, label="stable")
    async with serve() as (_, client):
        expected = (await client.encode(PROBES)).vectors
        assert (await client.info()).runtime == "onnxruntime/CPUExecutionProvider"
    async with serve(runtime="torch", workers=3) as (_, client):
        assert (await client.info()).runtime == "torch/cpu"
        together = await client.encode(PROBES)
        assert together.model_version == checkpoint.version
        assert np.einsum("nd,nd->n", together.vectors, expected).min() >= 0.99999
        alone = await asyncio.gather(*(client.encode([text]) for text in PROBES))
        rows = np.concatenate([one.vectors for one in alone])
        assert np.einsum("nd,nd->n", rows, together.vectors).min() >= 0.999999


async def test_torch_has_no_int8_and_says_so(serve, registry: Registry, checkpoint: TinyCheckpoint) -> None:
    await register(registry, checkpoint, label="stable")
    async with serve(runtime="torch") as (_, client):
        rollout = await rolled_out(registry, checkpoint.space_id, "stable", checkpoint.version, precision="int8")
        assert not rollout.ok
        assert "int8 for onnxruntime on a CPU" in rollout.reason
        assert (await client.encode(["sun"])).precision == "float32"


def test_other_weights_than_those_of_the_probes_are_refused(copied, exported: Artifact) -> None:
    from safetensors.numpy import load_file, save

    known = load_file(exported.file("model.safetensors"))
    weights = {name: np.roll(tensor, 1, axis=0) for name, tensor in known.items()}
    checkpoint = copied(exported, replace({"model.safetensors": save(weights, {"format": "pt"})}))
    with pytest.raises(errors.FailedPrecondition, match="gives other values for its probes"):
        served(checkpoint.artifact, torch_device="cpu")


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("config.json", b'{"model_type": "nonesuch"}', errors.FailedPrecondition, "not a model of transformers"),
        (
            "config.json",
            b'{"model_type": "x", "auto_map": {"AutoConfig": "code.C", "AutoModel": "code.M"}}',
            errors.FailedPrecondition,
            "not a model of transformers",
        ),
        (
            "config.json",
            b'{"model_type": "bert", "hidden_size": 48}',
            errors.DataLoss,
            r"its config.json: embeddings.LayerNorm",
        ),
        ("model.safetensors", b"\x80\x04.", errors.DataLoss, "cannot be read"),
    ],
)
def test_files_that_are_no_model_are_refused(
    copied, exported: Artifact, name: str, content: bytes, error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        served(copied(exported, replace({name: content})).artifact, torch_device="cpu")


def test_a_checkpoint_without_safetensors_needs_onnxruntime(artifact_store: ArtifactStore) -> None:
    with pytest.raises(errors.FailedPrecondition, match=r"it has no model.safetensors"):
        served(write_tiny_checkpoint(artifact_store, seed=0).artifact, torch_device="cpu")


def test_an_encoder_on_onnxruntime_never_loads_torch(artifact_store: ArtifactStore, tiny_checkpoint) -> None:
    """In a process of its own: building the service and loading a checkpoint, as it is started by default."""
    script = f"""
import sys
from pathlib import Path
from services.encoder.__main__ import build
from services.encoder.rollout.loading import LoadOptions, load_model
from services.onnx_devices import Placement
from services.encoder.settings import EncoderSettings
from services.store.artifacts import ArtifactStore
build(EncoderSettings(port=0, metrics_port=0))
artifact = ArtifactStore(Path({str(artifact_store.root)!r})).open("checkpoints", {tiny_checkpoint.version!r})
options = LoadOptions(2**30, Placement(["CPUExecutionProvider"]))
load_model(artifact, options, space_id={tiny_checkpoint.space_id!r})
heavy = sorted({{"torch", "transformers", "safetensors"}} & set(sys.modules))
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr


def test_torch_that_is_not_installed_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from services.encoder.runtime.torch_session import torch_device_of

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(errors.FailedPrecondition, match="install the extra encoder-torch"):
        torch_device_of("cpu")
