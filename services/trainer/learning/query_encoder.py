"""The encoders of a job in torch, and texts as padded batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from aeenc.errors import DataLoss
from services.trainer.models.sentence_layout import dense_file
from services.trainer.models.space import SpaceSpec
from services.trainer.models.tokens import Tokens
from services.transformer import DENSE, PooledTransformer, load_transformer

ENCODE_BATCH = 64


class QueryEncoder(PooledTransformer):
    """Token ids to unit vectors of a space."""

    def __init__(self, transformer: nn.Module, spec: SpaceSpec) -> None:
        super().__init__(transformer, spec.pooling)
        self.spec = spec


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


class TextBatches(Tokens):
    """A checkpoint's tokenizer: turns texts into token ids, cut at the model's maximum, and ids into padded tensors."""

    def __init__(self, directory: Path, spec: SpaceSpec, pad_id: int) -> None:
        super().__init__(directory, spec)
        self._pad_id = pad_id

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
