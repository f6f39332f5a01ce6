"""The encoders of a job in torch, texts as padded batches, and how torch computes in a process of a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from aeenc.errors import DataLoss, FailedPrecondition
from services.trainer.jobs.files import Precision
from services.trainer.models.sentence_layout import dense_file
from services.trainer.models.space import SpaceSpec
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


class TrainableModel(Protocol):
    """A module that a job trains; a checkpoint keeps the weights of its `transformer`."""

    @property
    def transformer(self) -> nn.Module:
        """The part whose weights are kept."""

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """All parameters that training moves."""


ModelT = TypeVar("ModelT", bound=TrainableModel)


@dataclass(frozen=True)
class Encoders(Generic[ModelT]):
    """The models that a job trains: query encoders or, in mode CROSS_ENCODER, one scorer of pairs as `query`.

    `premise` is None while premises are frozen, and the query encoder itself in mode SIAMESE.
    """

    query: ModelT
    premise: ModelT | None = None

    @property
    def second(self) -> ModelT | None:
        """The premise encoder if it has weights of its own."""
        return None if self.premise is self.query else self.premise


class TextBatches:
    """A checkpoint's tokenizer: turns texts into token ids, cut at the model's maximum, and ids into padded tensors."""

    def __init__(self, directory: Path, spec: SpaceSpec, pad_id: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(spec.max_tokens)
        self._pad_id = pad_id

    def ids(self, texts: Sequence[str], prefix: str) -> list[list[int]]:
        """Returns the token ids of each text with its role's prefix."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch([prefix + text for text in texts])]

    def pad(self, ids: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
        """Returns `input_ids` and `attention_mask`, (batch, longest) each."""
        length = max(len(tokens) for tokens in ids)
        input_ids = torch.full((len(ids), length), self._pad_id, dtype=torch.int64)
        mask = torch.zeros_like(input_ids)
        for row, tokens in enumerate(ids):
            input_ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        return input_ids.to(device), mask.to(device)


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


@torch.inference_mode()
def encode(encoder: QueryEncoder, batches: TextBatches, texts: Sequence[str], prefix: str) -> Any:
    """Encodes texts to unit vectors (n, dim) float32, in length-sorted batches, without dropout."""
    training = encoder.training
    encoder.eval()
    device = next(encoder.parameters()).device
    ids = batches.ids(texts, prefix)
    order = sorted(range(len(ids)), key=lambda n: len(ids[n]))
    vectors = torch.empty(len(ids), encoder.spec.dim)
    for start in range(0, len(order), ENCODE_BATCH):
        rows = order[start : start + ENCODE_BATCH]
        vectors[rows] = encoder(*batches.pad([ids[n] for n in rows], device)).cpu()
    encoder.train(training)
    return vectors.numpy()


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Has the block's products computed in a precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def device_of(wanted: str, number: int = 0) -> torch.device:
    """Chooses the device of a job's process by its number, for `auto`, `cpu` or `cuda`: its own GPU if there is one.

    Raises FailedPrecondition for `cuda` if torch finds no GPU.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", number % torch.cuda.device_count())
    if wanted == "cuda":
        raise FailedPrecondition(
            "AEENC_TRAINER_DEVICE=cuda, but torch finds no GPU here; install a torch with CUDA on a machine with a "
            "GPU, or set AEENC_TRAINER_DEVICE=auto"
        )
    return torch.device("cpu")


def precision_of(wanted: Precision | Literal["auto"], device: torch.device) -> Precision:
    """Chooses the precision of products; for `auto`, bfloat16 if the device has instructions for it."""
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        known = torch.cpu.get_capabilities()
        has_bfloat16 = any(known.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return "bfloat16" if has_bfloat16 else "float32"


def free_bytes(device: torch.device) -> int | None:
    """Returns how much more memory a process can take on a device; None if this machine does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    group = Path("/sys/fs/cgroup")
    try:  # a container's limit; its files in the page cache give way
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used = int((group / "memory.current").read_text()) - int(stat["inactive_file"])
        return min(free, int((group / "memory.max").read_text()) - used)
    except (OSError, ValueError, KeyError):  # no limit
        return free


def prepare_torch(threads: int, device: str = "cpu") -> None:
    """Sets up torch in this process: the number of threads, and deterministic kernels on a CPU."""
    torch.set_num_threads(max(1, threads))
    if device == "cpu" or not torch.cuda.is_available():  # a GPU lacks deterministic kernels
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
