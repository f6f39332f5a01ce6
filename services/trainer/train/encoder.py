"""The encoders of a job in torch, and how torch computes in a process of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from aeenc.errors import DataLoss, FailedPrecondition
from services.devices import bound_memory
from services.trainer.jobs.files import Precision
from services.trainer.models.batches import Batches, Inputs, Item, Outputs, computed
from services.trainer.models.space import SpaceSpec, dense_file
from services.transformer import DENSE, PooledTransformer, load_transformer

ENCODE_BATCH = 64


class QueryEncoder(PooledTransformer):
    """Token ids to unit vectors of a space."""

    def __init__(self, transformer: nn.Module, spec: SpaceSpec) -> None:
        super().__init__(transformer, spec.pooling)
        self.spec = spec

    def in_precision(
        self, input_ids: Tensor, attention_mask: Tensor, precision: Precision, *, normalize: bool = True
    ) -> Tensor:
        """Encodes with the transformer's products in a precision; pooling and vectors (batch, dim) are float32."""
        with autocast(input_ids.device, precision):
            hidden = self.hidden(input_ids, attention_mask)
        return self.pool(hidden.float(), attention_mask, normalize=normalize)


ModelT = TypeVar("ModelT", bound=nn.Module)


@dataclass(frozen=True)
class Encoders(Generic[ModelT]):
    """The models that a job trains: query encoders or, in mode CROSS_ENCODER, one scorer of pairs as `query`.

    A checkpoint keeps the weights of their `transformer`. `premise` is None while premises are frozen, and the query
    encoder itself in mode SIAMESE.
    """

    query: ModelT
    premise: ModelT | None = None

    @property
    def second(self) -> ModelT | None:
        """The premise encoder if it has weights of its own."""
        return None if self.premise is self.query else self.premise


def tensors_of(inputs: Inputs, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Returns a model's inputs on a device."""
    return {name: torch.from_numpy(values).to(device) for name, values in inputs.items()}


def load_encoder(directory: Path, spec: SpaceSpec, weights: Mapping[str, Tensor] | None = None) -> QueryEncoder:
    """Loads the encoder of a checkpoint's or base model's directory; `weights` replace those of the directory.

    Raises FailedPrecondition or DataLoss for files that do not fit the spec.
    """
    # Eager attention is plain matrix products, which the exporter keeps; on a CPU it is as fast at these lengths.
    dense = dense_file(directory)
    transformer: Any = load_transformer(directory, weights, attention="eager", dense=dense)
    layer = getattr(transformer, DENSE, None)
    if dense and (layer is None or layer.weight.shape != (spec.dim, transformer.config.hidden_size)):
        raise DataLoss(f"{dense} does not fit the config.json beside it and that of its transformer; restore it")
    return QueryEncoder(transformer, spec)


def encode(encoder: QueryEncoder, batches: Batches, texts: Sequence[str], prefix: str) -> Outputs:
    """Encodes texts to unit vectors (n, dim) float32."""
    return outputs_by(encoder, batches, [prefix + text for text in texts], ENCODE_BATCH)


@torch.inference_mode()
def outputs_by(model: nn.Module, batches: Batches, items: Sequence[Item], together: int) -> Outputs:
    """Computes the vectors (n, dim) of texts or the scores (n,) of pairs as served, in float32 and without dropout."""
    training, device = model.training, next(model.parameters()).device
    model.eval()
    found = computed(batches, items, together, lambda inputs: model(**tensors_of(inputs, device)).cpu())
    model.train(training)
    return found


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Has the block's products computed in a precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def device_of(wanted: str, number: int = 0, gpu_bytes: int = 0) -> torch.device:
    """Chooses the device of a job's process by its number, for `auto`, `cpu` or `cuda`: its own GPU if there is one.

    Raises FailedPrecondition for `cuda` if torch finds no GPU, and for more memory than it has: `gpu_bytes` bounds what
    this process takes of it (0: no bound).
    """
    if wanted == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        card = number % torch.cuda.device_count()
        bound_memory(torch.cuda, card, gpu_bytes, "AEENC_TRAINER_GPU_BYTES")
        return torch.device("cuda", card)
    if wanted == "cuda":
        raise FailedPrecondition(
            "AEENC_TRAINER_DEVICE=cuda, but torch finds no GPU here; install a torch with CUDA on a machine with a "
            "GPU, or set AEENC_TRAINER_DEVICE=auto"
        )
    return torch.device("cpu")


def precision_of(wanted: Precision | Literal["auto"], device: torch.device) -> Precision:
    """Chooses the precision of products; for `auto`, bfloat16 on a CPU with instructions for it.

    On a GPU it is float32: a step of MiniLM was no faster in bfloat16 (docs/performance.md), and nothing else measured.
    """
    if wanted != "auto":
        return wanted
    known = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return "bfloat16" if any(known.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16")) else "float32"


def prepare_torch(threads: int, device: str = "cpu") -> None:
    """Sets up torch in this process: the number of threads, and deterministic kernels on a CPU."""
    torch.set_num_threads(max(1, threads))
    if device == "cpu" or not torch.cuda.is_available():  # a GPU lacks deterministic kernels
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
