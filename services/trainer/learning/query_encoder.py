"""The encoder of a space, as torch sees it; and texts as padded batches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from aeenc.errors import DataLoss
from services.trainer.models.sentence_layout import dense_file
from services.trainer.models.space import SpaceSpec
from services.transformer import DENSE, PooledTransformer, load_transformer

ENCODE_BATCH = 64


class QueryEncoder(PooledTransformer):
    """Token ids to unit vectors of a space."""

    def __init__(self, transformer: nn.Module, spec: SpaceSpec) -> None:
        super().__init__(transformer, spec.pooling)
        self.spec = spec


@dataclass(frozen=True)
class Encoders:
    """What a job trains. `premise` is None where premises are frozen, and the query encoder itself in mode SIAMESE."""

    query: QueryEncoder
    premise: QueryEncoder | None = None

    @property
    def second(self) -> QueryEncoder | None:
        """The premise encoder where it has weights of its own."""
        return None if self.premise is self.query else self.premise


class TextBatches:
    """A checkpoint's tokenizer: texts to token ids, cut at the model's maximum, and ids to padded tensors."""

    def __init__(self, directory: Path, spec: SpaceSpec, pad_id: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(spec.max_tokens)
        self._pad_id = pad_id

    def ids(self, texts: Sequence[str], prefix: str) -> list[list[int]]:
        """Token ids of each text with its role's prefix."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch([prefix + text for text in texts])]

    def pad(self, ids: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
        """`input_ids` and `attention_mask`, (batch, longest) each."""
        length = max(len(tokens) for tokens in ids)
        input_ids = torch.full((len(ids), length), self._pad_id, dtype=torch.int64)
        mask = torch.zeros_like(input_ids)
        for row, tokens in enumerate(ids):
            input_ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        return input_ids.to(device), mask.to(device)


def load_encoder(directory: Path, spec: SpaceSpec, weights: Mapping[str, Tensor] | None = None) -> QueryEncoder:
    """The encoder of a checkpoint's or base model's directory; `weights` replace those of the directory.

    Raises FailedPrecondition or DataLoss for files that are no encoder of the spec.
    """
    # Eager attention is plain matrix products: the exporter keeps them, and on a CPU it is no slower at these lengths.
    dense = dense_file(directory)
    transformer: Any = load_transformer(directory, weights, attention="eager", dense=dense)
    layer = getattr(transformer, DENSE, None)
    if dense and (layer is None or layer.weight.shape != (spec.dim, transformer.config.hidden_size)):
        raise DataLoss(f"{dense} does not fit the config.json beside it and that of its transformer; restore it")
    return QueryEncoder(transformer, spec)


def pad_id_of(directory: Path) -> int:
    """The token id that pads, from config.json."""
    return int(json.loads((directory / "config.json").read_bytes()).get("pad_token_id") or 0)


@torch.inference_mode()
def encode(encoder: QueryEncoder, batches: TextBatches, texts: Sequence[str], prefix: str) -> Any:
    """Unit vectors (n, dim) float32 of texts, in length-sorted batches, without dropout."""
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
