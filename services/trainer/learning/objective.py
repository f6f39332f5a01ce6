"""What the training loop knows of a loss on data: units to take in batches, and the loss of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from services.trainer.job_files import Precision
from services.trainer.learning.losses import drift
from services.trainer.learning.query_encoder import QueryEncoder, TextBatches
from services.trainer.training_set import TrainingSet


class Objective(Protocol):
    """A loss over numbered units. `skipped` counts the queries it has no use for."""

    size: int
    skipped: int
    head: nn.Module | None  # what is trained beside the encoder and thrown away at the end

    def batches(self, generator: np.random.Generator, batch_size: int) -> list[NDArray[np.int64]]:
        """The units of one epoch in a new random order, in batches."""

    def loss(self, encoder: QueryEncoder, units: NDArray[np.int64]) -> Tensor:
        """The loss of a batch, a scalar; each distinct query is encoded once."""


class Queries:
    """The distinct queries of a training set, tokenized once; with the pre-trained vectors that hold them back.

    `pretrained` (q, dim) is None when nothing holds them back; then `weight` is without effect.
    """

    def __init__(
        self,
        training_set: TrainingSet,
        batches: TextBatches,
        prefix: str,
        device: torch.device,
        pretrained: Tensor | None,
        weight: float,
        precision: Precision = "float32",
    ) -> None:
        self._ids = batches.ids([example.query for example in training_set.examples], prefix)
        self._batches, self._device, self._pretrained = batches, device, pretrained
        self._weight, self._half = weight, precision == "bfloat16"

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of each query, in tokens."""
        return np.array([len(ids) for ids in self._ids], dtype=np.int64)

    def encode(self, encoder: QueryEncoder, rows: Sequence[int]) -> Tensor:
        """Vectors (rows, dim), float32, with a gradient."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
            vectors: Tensor = encoder(*self._batches.pad([self._ids[row] for row in rows], self._device))
        return vectors.float()

    def held_back(self, vectors: Tensor, rows: Sequence[int]) -> Tensor:
        """The weighed distance of queries from where the pre-trained encoder puts them, a scalar."""
        if self._pretrained is None:
            return torch.zeros((), device=self._device)
        return self._weight * drift(vectors, self._pretrained[list(rows)])
