"""Inference sessions of torch over a checkpoint's safetensors, the alternative to onnxruntime; on a CPU or with CUDA.

It imports torch on first use, so an encoder that runs onnxruntime never does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aeenc.errors import FailedPrecondition
from services.devices import bound_memory
from services.encoder.runtime.runners import Ids, Session
from services.store.artifacts import Artifact

if TYPE_CHECKING:
    from services.transformer import PooledTransformer

WEIGHTS = "model.safetensors"


def torch_device_of(device: str, gpu_bytes: int = 0) -> tuple[str, str]:
    """Resolves `auto`, `cpu`, `cuda` or `cuda:N`, and says why `auto` is not the CUDA that this torch was built with.

    Raises FailedPrecondition without torch, for `cuda` without CUDA or that card, and for more memory than it has:
    `gpu_bytes` bounds what this process takes of it (0: no bound).
    """
    try:
        import torch
    except ImportError as error:
        raise FailedPrecondition(
            "AEENC_ENCODER_RUNTIME=torch, but torch is not installed; install the extra encoder-torch"
        ) from error
    torch.set_num_threads(1)  # several workers run in parallel, each with its own batch
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise FailedPrecondition(
            f"AEENC_ENCODER_DEVICE={device}, but this torch has no CUDA; install a build with CUDA"
        )
    if device == "cpu":
        return "cpu", ""
    if torch.cuda.is_available():
        number, cards = int(device.partition(":")[2] or 0), torch.cuda.device_count()
        if number >= cards:
            raise FailedPrecondition(f"AEENC_ENCODER_DEVICE={device}, but there are {cards} cards, from cuda:0 on")
        bound_memory(torch.cuda, number, gpu_bytes, "AEENC_ENCODER_GPU_BYTES")
        return ("cuda" if device == "auto" else device), ""
    if torch.version.cuda is None:
        return "cpu", ""
    return "cpu", "this torch has CUDA and finds no device; repair the driver, or set AEENC_ENCODER_DEVICE=cpu"


def open_torch_session(artifact: Artifact, device: str, *, half: bool = False) -> Session:
    """Opens a checkpoint's safetensors. Raises FailedPrecondition or DataLoss for files that are not a model."""
    from services.transformer import PooledTransformer, load_transformer

    pooling = str(artifact.meta.get("pooling", "mean"))
    model = PooledTransformer(load_transformer(artifact.path), pooling)
    return session_of(model.to(device).eval().requires_grad_(False), device, half=half)


def session_of(model: PooledTransformer, device: str, *, half: bool) -> Session:
    """Returns the fastest session for a model; it may change the model's weights."""
    if half:
        from services.encoder.runtime.packed_session import PackedSession, can_pack

        if can_pack(model.transformer.config, device):
            return PackedSession(model, device)
    return TorchSession(model, device, half=half)


class TorchSession:
    """Computes `sentence_embedding` (n, dim) float32. Thread-safe: it keeps no state.

    `half`: matrix products in half precision, pooling and normalization in single.
    """

    def __init__(self, model: PooledTransformer, device: str, *, half: bool) -> None:
        self._model, self._device, self._half = model, device, half

    def run(self, _outputs: Sequence[str] | None, feeds: dict[str, Ids]) -> Sequence[Any]:
        """Computes the vectors from `input_ids` and `attention_mask`, (n, length) int64 each."""
        import torch

        ids, mask = (torch.from_numpy(feeds[name]).to(self._device) for name in ("input_ids", "attention_mask"))
        with torch.inference_mode():
            with torch.autocast(self._device.partition(":")[0], torch.float16, enabled=self._half):
                hidden = self._model.hidden(ids, mask)
            vectors = self._model.pool(hidden.float(), mask)
        return [vectors.cpu().numpy()]
