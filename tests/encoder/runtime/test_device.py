"""CUDA asked for by name is given or refused; under `auto` the encoder says when it is a CPU after all."""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import onnxruntime
import pytest
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from aeenc import errors
from aeenc.v1 import types_pb2
from services import onnx_devices
from services.encoder import __main__ as encoder_main
from services.encoder.batching.admission import GPU_QUEUED_TOKENS
from services.encoder.batching.encoder import EncodeCall, Encoder
from services.encoder.batching.queues import GPU_WORKERS
from services.encoder.metrics import EncoderMetrics
from services.encoder.rollout import loading
from services.encoder.runtime import onnx_session, torch_session
from services.encoder.settings import EncoderSettings
from services.kit.limits import Limits
from services.onnx_devices import CPU, CUDA
from support.models.tiny_checkpoints import write_tiny_cross_encoder_checkpoint
from support.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore:Specified provider")


@pytest.fixture
def broken_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of onnxruntime that has CUDA and makes sessions on the CPU, as one does without a working driver."""
    if CUDA in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    monkeypatch.setattr(onnx_devices.ort, "get_available_providers", lambda: [CUDA, CPU])


async def test_auto_falls_back_from_a_cuda_that_does_not_work_and_says_so_everywhere(
    serve, stable, broken_driver
) -> None:
    async with serve(device="auto") as (server, client):
        assert (await client.encode(["sun"])).model_version == stable.version
        info = await client.info()
        assert info.runtime == f"onnxruntime/{CPU}"
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
        onnx_session.open_session(
            tiny_checkpoint.artifact.file("model.onnx"), onnx_devices.Placement([CUDA, CPU]), "sentence_embedding"
        )


async def test_an_encoder_whose_build_cannot_use_the_gpu_that_is_there_says_so_and_others_nothing(
    serve, stable, monkeypatch, tmp_path
) -> None:
    if CUDA in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    monkeypatch.setattr(onnx_devices, "DEVICES", tmp_path)
    for device, state in (("auto", "SERVING"), ("auto", "DEGRADED"), ("cpu", "SERVING")):
        async with serve(device=device) as (server, client):
            told = (await client.info()).runtime_reason
            assert (server.readiness.state, "install the extra encoder-gpu" in told) == (state, bool(told))
            assert bool(told) == (state == "DEGRADED")
        (tmp_path / "nvidia0").touch()


class Card:
    """Sessions as onnxruntime makes them on a machine with two cards. `opened` has the options of each."""

    def __init__(self) -> None:
        self.opened: list[dict[str, str]] = []

    def __call__(self, _model: object, _options: object, **given: Any) -> Any:
        asked = dict(zip(given["providers"], given["provider_options"], strict=True))
        if int(asked[CUDA]["device_id"]) > 1:
            raise RuntimeError("invalid device ordinal")
        self.opened.append(asked[CUDA])
        return SimpleNamespace(get_providers=lambda: list(asked))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    """A build of onnxruntime with CUDA, and two cards."""
    made = Card()
    monkeypatch.setattr(onnx_devices.ort, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnx_devices.ort, "preload_dlls", lambda: None)
    monkeypatch.setattr(onnx_devices.ort, "InferenceSession", made)
    return made


@pytest.mark.parametrize(
    ("device", "gpu_bytes", "options"),
    [
        ("cuda", 0, {"device_id": "0", "use_tf32": "0"}),
        ("auto", 0, {"device_id": "0", "use_tf32": "0"}),
        ("cuda:1", 2**30, {"device_id": "1", "use_tf32": "0", "gpu_mem_limit": str(2**30)}),
    ],
)
def test_a_process_takes_the_card_that_is_named_and_no_more_of_it_than_it_may(card, device, gpu_bytes, options) -> None:
    placement = onnx_devices.providers_of("encoder", device, gpu_bytes)
    assert (placement.providers, placement.options) == ([CUDA, CPU], [options, {}])
    assert card.opened == [options]


def test_a_card_that_is_not_there_is_refused_by_name(card) -> None:
    with pytest.raises(errors.FailedPrecondition, match=r"AEENC_ENCODER_DEVICE=cuda:2, but .* another card than 2"):
        onnx_devices.providers_of("encoder", "cuda:2")


@pytest.mark.parametrize("device", ["auto", "cuda", "cpu"])
def test_two_builds_of_onnxruntime_are_refused_by_name_where_a_card_may_compute(monkeypatch, tmp_path, device) -> None:
    installed = tmp_path / "onnxruntime_gpu-1.31.1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 1.31.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    refused = pytest.raises(
        errors.FailedPrecondition, match=f"DEVICE={device}, but onnxruntime and onnxruntime-gpu are"
    )
    with nullcontext() if device == "cpu" else refused:
        encoder_main._options(EncoderSettings(device=device))


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:1;2"])
def test_a_device_that_nobody_knows_is_refused_before_anything_starts(device) -> None:
    with pytest.raises(ValidationError, match="device"):
        EncoderSettings(device=device)


@pytest.mark.parametrize(("device", "taken"), [("auto", "cuda"), ("cuda", "cuda"), ("cuda:1", "cuda:1")])
def test_torch_takes_the_card_that_is_named(monkeypatch, device, taken) -> None:
    torch = pytest.importorskip("torch")
    shares: list[tuple[float, int]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=4 * 2**30))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: shares.append(given))
    assert torch_session.torch_device_of(device, 2**30) == (taken, "")
    assert shares == [(0.25, 1 if device == "cuda:1" else 0)]
    with pytest.raises(errors.FailedPrecondition, match="there are 2 cards"):
        torch_session.torch_device_of("cuda:2")
    with pytest.raises(errors.FailedPrecondition, match=r"AEENC_ENCODER_GPU_BYTES=4294967297, .* 4,294,967,296"):
        torch_session.torch_device_of(device, 4 * 2**30 + 1)


@pytest.fixture
def torch_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that finds the card that is named."""
    monkeypatch.setattr(encoder_main, "torch_device_of", lambda device, _: (device.replace("auto", "cuda"), ""))


@pytest.mark.parametrize(("device", "number"), [("auto", "0"), ("cuda", "0"), ("cuda:1", "1")])
def test_cross_encoders_compute_on_the_card_that_torch_takes(torch_on_a_card, card, device, number) -> None:
    options, _, handicap = encoder_main._options(EncoderSettings(runtime="torch", device=device))
    assert options.placement.options[0]["device_id"] == number
    assert (options.pairs_on_gpu, handicap) == (True, "")


@pytest.mark.parametrize("device", ["auto", "cuda:1"])
def test_an_encoder_in_torch_on_a_card_is_not_degraded_by_cross_encoders_on_the_cpu(
    torch_on_a_card, monkeypatch, tmp_path, device
) -> None:
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(onnx_devices, "DEVICES", tmp_path)
    monkeypatch.setattr(onnx_devices.ort, "get_available_providers", lambda: [CPU])
    settings = EncoderSettings(runtime="torch", device=device)
    options, _, handicap = encoder_main._options(settings)
    assert (options.on_gpu, options.pairs_on_gpu, handicap) == (True, False, "")
    assert encoder_main._name_of(options).endswith(f", cross-encoders onnxruntime/{CPU}")
    assert options.batch_tokens == encoder_main._batch(settings, on_gpu=True)[1]
    assert encoder_main._batch(settings, on_gpu=options.pairs_on_gpu) == (32, 256)


async def test_a_gpu_is_fed_by_two_workers_all_cores_and_a_queue_of_its_size(
    serve, torch_on_a_card, card, monkeypatch
) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    async with serve(runtime="torch", wait=False) as (_, client):
        assert (await client.info()).service.limits.queued_tokens == GPU_QUEUED_TOKENS
        assert encoder_main._options(EncoderSettings(runtime="torch"))[1] == GPU_WORKERS
        assert encoder_main._options(EncoderSettings(runtime="torch", workers=3))[1] == 3
        assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    async with serve(device="cpu", queued_tokens=2048, wait=False) as (_, client):
        assert (await client.info()).service.limits.queued_tokens == 2048
        assert os.environ["TOKENIZERS_PARALLELISM"] == "false"


@pytest.mark.parametrize(("pooled", "count", "thread"), [(True, 1, "Main"), (True, 2, "tokenize"), (False, 2, "Main")])
async def test_short_texts_wait_for_no_pool_on_the_event_loop(pooled: bool, count: int, thread: str) -> None:
    parts: Any = [None] * 4
    encoder = Encoder(*parts, Limits(queued_tokens=1024), EncoderMetrics(CollectorRegistry()), pooled=pooled)
    tokenize: Any = lambda: threading.current_thread().name  # noqa: E731
    found = await encoder._tokenized(EncodeCall(texts=(), role="query"), tokenize, [4] * count, None)
    assert str(found).startswith(thread)


def test_a_queue_that_holds_no_text_is_refused() -> None:
    assert EncoderSettings(queued_tokens=0).queued_tokens == 0
    with pytest.raises(ValidationError, match="must be 0 or at least 1024"):
        EncoderSettings(queued_tokens=1023)


def test_workers_are_as_many_as_cores_where_a_cpu_scores_pairs(torch_on_a_card, monkeypatch) -> None:
    monkeypatch.setattr(onnx_devices.ort, "get_available_providers", lambda: [CPU])
    monkeypatch.setattr(encoder_main, "usable_cores", lambda: 16)
    options, workers, _ = encoder_main._options(EncoderSettings(runtime="torch"))
    assert (options.on_gpu, workers) == (True, 16)


class WatchedSession:
    """A session on the CPU that keeps the shapes it was given."""

    def __init__(self, session: Any, shapes: list[tuple[int, ...]]) -> None:
        self._session, self._shapes = session, shapes

    def run(self, outputs: Any, feeds: dict[str, Any]) -> Any:
        self._shapes.append(feeds["input_ids"].shape)
        return self._session.run(outputs, feeds)


@pytest.mark.parametrize(("providers", "texts"), [([CUDA, CPU], 4), ([CPU], 1)])
def test_on_a_gpu_a_version_is_tried_with_the_largest_batch(tiny_checkpoint, monkeypatch, providers, texts) -> None:
    shapes: list[tuple[int, ...]] = []

    def opened(path, _placement, *names):
        return WatchedSession(onnx_session.open_session(path, onnx_devices.Placement([CPU]), *names), shapes)

    monkeypatch.setattr(loading, "open_session", opened)
    longest = int(tiny_checkpoint.artifact.meta["max_tokens"])
    placement = onnx_devices.Placement(providers)
    options = loading.LoadOptions(2**30, placement, batch_tokens=5 * longest - 1)
    loading.load_model(tiny_checkpoint.artifact, options, space_id=tiny_checkpoint.space_id)
    assert max(rows for rows, length in shapes if length == longest) == texts


FULL = RuntimeError(
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running MatMul node. "
    "Name:'/encoder/layer.11/attention/self/query/MatMul' Status Message: "
    "/onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:360 void* "
    "onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*) "
    "Failed to allocate memory for requested buffer of size 25165824\n"
)


class FullSession(WatchedSession):
    """A session on a card whose memory holds `room` texts."""

    room = 0

    def run(self, outputs: Any, feeds: dict[str, Any]) -> Any:
        if len(feeds["input_ids"]) > self.room:
            raise FULL
        return super().run(outputs, feeds)


@pytest.mark.parametrize("room", [2, 0, None])
async def test_a_version_is_refused_where_one_text_is_over_the_memory_and_served_where_a_batch_is(
    serve, stable, monkeypatch, room
) -> None:
    placement = encoder_main.providers_of("encoder", "cpu")._replace(providers=[CUDA, CPU])
    monkeypatch.setattr(encoder_main, "providers_of", lambda *_, **__: placement)
    if room is None:
        monkeypatch.setattr(onnx_session.ort, "InferenceSession", Mock(side_effect=FULL))
    else:
        monkeypatch.setattr(FullSession, "room", room)
        session = onnxruntime.InferenceSession(stable.artifact.file("model.onnx"), providers=[CPU])
        monkeypatch.setattr(loading, "open_session", lambda *_: FullSession(session, []))
    async with serve(wait=bool(room)) as (server, client):
        if room:
            assert len((await client.encode(["sun"] * 9)).vectors) == 9
        else:
            await until(lambda: "is over the device's memory" in server.readiness.reason)
            assert "Failed to allocate memory" in server.readiness.reason


def test_a_cross_encoder_on_the_cpu_beside_torch_on_a_card_is_not_tried_with_the_batches_of_a_card(
    artifact_store, monkeypatch
) -> None:
    shapes: list[tuple[int, ...]] = []

    def opened(*arguments):
        return WatchedSession(onnx_session.open_session(*arguments), shapes)

    monkeypatch.setattr(loading, "open_session", opened)
    monkeypatch.setattr(loading, "inputs_of", lambda session: onnx_session.inputs_of(session._session))
    pairs = write_tiny_cross_encoder_checkpoint(artifact_store)
    options = loading.LoadOptions(2**30, onnx_devices.Placement([CPU]), "cuda", batch_tokens=16_384)
    loading.load_model(pairs.artifact, options, space_id=pairs.space_id)
    assert {rows for rows, _ in shapes} == {1, 2}, "single ones to warm up, and probes in twos"
