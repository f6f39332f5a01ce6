"""CUDA asked for by name is given or refused; under `auto` the encoder says when it is a CPU after all."""

from __future__ import annotations

import onnxruntime
import pytest

from aeenc import errors
from aeenc.v1 import types_pb2
from services.encoder.runtime import onnx_session
from services.encoder.runtime.onnx_session import CPU, CUDA
from support.models.tiny_checkpoints import register

pytestmark = pytest.mark.filterwarnings("ignore:Specified provider")


@pytest.fixture
def broken_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of onnxruntime that has CUDA and makes sessions on the CPU, as one does without a working driver."""
    if CUDA in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    monkeypatch.setattr(onnx_session.ort, "get_available_providers", lambda: [CUDA, CPU])


async def test_auto_falls_back_from_a_cuda_that_does_not_work_and_says_so_everywhere(
    serve, registry, tiny_checkpoint, broken_driver, capsys
) -> None:
    await register(registry, tiny_checkpoint, label="stable")
    async with serve(device="auto") as (server, client):
        assert (await client.encode(["sun"])).model_version == tiny_checkpoint.version
        info = await client.info()
        assert info.runtime == f"onnxruntime/{CPU}/float32"
        assert "CUDA" in info.runtime_reason
        assert info.service.state == types_pb2.SERVICE_STATE_DEGRADED
        assert info.service.state_reason == info.runtime_reason
        assert server.readiness.healthy


async def test_cuda_asked_for_by_name_is_refused_where_sessions_are_on_the_cpu(serve, broken_driver) -> None:
    with pytest.raises(errors.FailedPrecondition, match="AEENC_ENCODER_DEVICE=cuda, but"):
        async with serve(device="cuda", wait=False):
            pass


async def test_a_candidate_whose_session_is_not_where_it_was_asked_for_is_refused(
    artifact_store, tiny_checkpoint, broken_driver
) -> None:
    with pytest.raises(errors.FailedPrecondition, match="CUDAExecutionProvider"):
        onnx_session.open_session(tiny_checkpoint.artifact.file("model.onnx"), [CUDA, CPU], "sentence_embedding")


async def test_an_encoder_without_any_cuda_has_nothing_to_say(serve, registry, tiny_checkpoint) -> None:
    if CUDA in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    await register(registry, tiny_checkpoint, label="stable")
    async with serve(device="auto") as (server, client):
        assert (await client.info()).runtime_reason == ""
        assert server.readiness.state == "SERVING"
