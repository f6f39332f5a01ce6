"""What the training loop knows of a loss on data: units to take in batches, and the loss of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from services.trainer.data.training_set import TrainingSet
from services.trainer.jobs.files import Precision
from services.trainer.jobs.job import Batching
from services.trainer.learning.loss.losses import drift
from services.trainer.learning.query_encoder import ENCODE_BATCH, Encoders, QueryEncoder, TextBatches

SORTED_BATCHES = 8  # units are sorted by length within windows of so many batches: less padding, still shuffled

Numbers = NDArray[np.int64]


class Objective(Protocol):
    """A loss over numbered units. `skipped` counts the queries it has no use for."""

    size: int
    skipped: int
    head: nn.Module | None  # what is trained beside the encoder and thrown away at the end

    def batches(self, generator: np.random.Generator, batch_size: int) -> list[NDArray[np.int64]]:
        """The units of one epoch in a new random order, in batches."""

    def loss(self, encoders: Encoders, units: NDArray[np.int64], whole: NDArray[np.int64] | None = None) -> Tensor:
        """The loss of a batch, a scalar; each distinct text is encoded once.

        With `whole`, the units are a part of that batch, and the losses of all its parts add up to that of the batch.
        """


class Units:
    """The units of an epoch: items, or queries. `owners` (m,) is the example of each item, in rising order."""

    def __init__(self, owners: Numbers, lengths: Numbers, batching: Batching) -> None:
        """Lengths are those of all examples, in tokens."""
        if batching == "ITEMS":
            self._starts = np.arange(len(owners) + 1)
            self._lengths = lengths[owners]
        else:
            queries, starts = np.unique(owners, return_index=True)
            self._starts = np.append(starts, len(owners))
            self._lengths = lengths[queries]

    def __len__(self) -> int:
        return len(self._lengths)

    def items(self, units: Numbers) -> Numbers:
        """The items of some units, one unit after the other."""
        starts, counts = self._starts[units], self._starts[units + 1] - self._starts[units]
        before = np.cumsum(counts) - counts
        found: Numbers = np.arange(counts.sum()) + np.repeat(starts - before, counts)
        return found

    def count(self, units: Numbers) -> int:
        """How many items some units have."""
        return int((self._starts[units + 1] - self._starts[units]).sum())

    def batches(self, generator: np.random.Generator, batch_size: int, most: int) -> list[Numbers]:
        """An epoch's units in a new random order, in batches. `most`: how many; 0: all."""
        order = generator.permutation(len(self))[: most or None]
        window = batch_size * SORTED_BATCHES
        windows = [order[start : start + window] for start in range(0, len(order), window)]
        ordered = np.concatenate([units[np.argsort(self._lengths[units], kind="stable")] for units in windows])
        batches = [ordered[start : start + batch_size] for start in range(0, len(order), batch_size)]
        generator.shuffle(batches)
        return batches


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


class Premises:
    """Premise vectors (n + outside, dim) by ordinal, frozen: in mode SINGLE all that is known of premises."""

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors

    def encode(self, encoders: Encoders, ordinals: NDArray[np.int64]) -> Tensor:
        """Vectors (ordinals, dim), here without a gradient."""
        del encoders
        return self.vectors[torch.from_numpy(ordinals)]

    def held_back(self, vectors: Tensor, ordinals: NDArray[np.int64]) -> Tensor:
        """The weighed distance of premises from where the pre-trained encoder puts them: frozen ones have not moved."""
        del vectors, ordinals
        return torch.zeros((), device=self.vectors.device)


class TrainedPremises(Premises):
    """Premises that the encoder in training encodes anew in each batch.

    `vectors` stay those of the space that training starts in: what the regularisation measures from, and what a guide
    compares. `texts` (n + outside) are by ordinal; those of `used` are tokenized, once.
    """

    def __init__(
        self,
        vectors: Tensor,
        texts: Sequence[str],
        used: NDArray[np.int64],
        batches: TextBatches,
        prefix: str,
        weight: float,
        precision: Precision,
    ) -> None:
        super().__init__(vectors)
        self._ids = dict(zip(used.tolist(), batches.ids([texts[n] for n in used.tolist()], prefix), strict=True))
        self._batches, self._weight, self._half = batches, weight, precision == "bfloat16"

    def encode(self, encoders: Encoders, ordinals: NDArray[np.int64]) -> Tensor:
        """Vectors (ordinals, dim), float32, with a gradient; texts of like length are encoded together."""
        assert encoders.premise is not None
        device = self.vectors.device
        ids = [self._ids[ordinal] for ordinal in ordinals.tolist()]
        order = np.argsort([len(one) for one in ids], kind="stable")
        parts = []
        for start in range(0, len(order), ENCODE_BATCH):
            part = [ids[n] for n in order[start : start + ENCODE_BATCH]]
            with torch.autocast(device.type, torch.bfloat16, enabled=self._half):
                parts.append(encoders.premise(*self._batches.pad(part, device)).float())
        return torch.cat(parts)[torch.from_numpy(np.argsort(order))]

    def held_back(self, vectors: Tensor, ordinals: NDArray[np.int64]) -> Tensor:
        """The premise terms of Eq. 2; without premises none."""
        if not (self._weight and len(ordinals)):
            return torch.zeros((), device=self.vectors.device)
        return self._weight * drift(vectors, self.vectors[torch.from_numpy(ordinals)])
