"""Inference sessions of torch over a checkpoint's safetensors: the alternative to onnxruntime, on a CPU or CUDA.

torch is imported when it is asked for, never by an encoder that runs onnxruntime.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aeenc.errors import FailedPrecondition
from services.encoder.runners import Ids
from services.store.artifacts import Artifact

if TYPE_CHECKING:
    from services.transformer import PooledTransformer

WEIGHTS = "model.safetensors"
INSTALL = "install the extra encoder-torch"


def torch_device_of(device: str) -> str:
    """`cpu` or `cuda` for `auto`, `cpu` or `cuda`. Raises FailedPrecondition without torch or the CUDA asked for."""
    try:
        import torch
    except ImportError as error:
        raise FailedPrecondition(f"AEENC_ENCODER_RUNTIME=torch, but torch is not here; {INSTALL}") from error
    torch.set_num_threads(1)  # parallelism comes from several workers, each with a batch of its own
    if device == "cuda" and not torch.cuda.is_available():
        raise FailedPrecondition("AEENC_ENCODER_DEVICE=cuda, but this torch has no CUDA; install a build with CUDA")
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"


def open_torch_session(artifact: Artifact, device: str, *, half: bool = False) -> TorchSession:
    """A session over a checkpoint's safetensors. Raises FailedPrecondition or DataLoss for files that are no model."""
    from services.transformer import PooledTransformer, load_transformer

    if WEIGHTS not in artifact.files or "config.json" not in artifact.files:
        raise FailedPrecondition(f"checkpoint {artifact.id} has no {WEIGHTS} for the torch runtime; use onnxruntime")
    pooling = str(artifact.meta.get("pooling", "mean"))
    model = PooledTransformer(load_transformer(artifact.path), pooling).to(device).eval().requires_grad_(False)
    return TorchSession(model, device, half=half)


class TorchSession:
    """Computes `sentence_embedding` (n, dim) float32. May be called from several threads at once: it holds no state.

    `half`: matrix products in half precision, pooling and normalisation in single.
    """

    def __init__(self, model: PooledTransformer, device: str, *, half: bool) -> None:
        self._model, self._device, self._half = model, device, half

    def run(self, outputs: Sequence[str] | None, feeds: dict[str, Ids]) -> Sequence[Any]:
        """The vectors of `input_ids` and `attention_mask`, (n, length) int64 each."""
        import torch

        if outputs not in (None, ["sentence_embedding"]):
            raise ValueError(f"the torch runtime has no outputs {outputs}")
        ids, mask = (torch.from_numpy(feeds[name]).to(self._device) for name in ("input_ids", "attention_mask"))
        precision = torch.autocast(self._device, torch.float16) if self._half else contextlib.nullcontext()
        with torch.inference_mode():
            with precision:
                hidden = self._model.hidden(ids, mask)
            vectors = self._model.pool(hidden.float(), mask)
        return [vectors.cpu().numpy()]
