"""A loss on a job's data as the training loop sees it: units to batch, and the loss of a batch.

Also what all objectives are built of: `Units`, `Queries` and `Premises`. The formulas are in `losses`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from services.trainer.data.training_set import TrainingSet
from services.trainer.jobs.files import Precision
from services.trainer.jobs.job import Batching
from services.trainer.learning.loss.frozen_vectors import FrozenVectors
from services.trainer.learning.loss.losses import drift
from services.trainer.learning.query_encoder import ENCODE_BATCH, Encoders, QueryEncoder, TextBatches

SORTED_BATCHES = 8  # a window of this many batches is sorted by length: less padding, still shuffled

Numbers = NDArray[np.int64]


class Objective(Protocol):
    """A loss over numbered units. `skipped` counts the queries that it cannot use."""

    size: int
    skipped: int
    head: nn.Module | None  # trained beside the encoder and discarded at the end

    def batches(self, generator: np.random.Generator, batch_size: int) -> list[NDArray[np.int64]]:
        """Batches the units of one epoch in a new random order."""

    def loss(self, encoders: Encoders[Any], units: NDArray[np.int64], whole: NDArray[np.int64] | None = None) -> Tensor:
        """Computes the loss of a batch, a scalar; encodes each distinct text once.

        With `whole`, the units are a part of that batch; the losses of its parts add up to that of the batch.
        """


class Units:
    """The units of an epoch: items, or queries with their items. `owners` (m,) has each item's example, ascending."""

    def __init__(self, owners: Numbers, lengths: Numbers, batching: Batching) -> None:
        """`lengths` has one entry for each example, in tokens."""
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
        """Lists the items of some units, one unit after the other."""
        starts, counts = self._starts[units], self._starts[units + 1] - self._starts[units]
        before = np.cumsum(counts) - counts
        found: Numbers = np.arange(counts.sum()) + np.repeat(starts - before, counts)
        return found

    def count(self, units: Numbers) -> int:
        """Counts the items of some units."""
        return int((self._starts[units + 1] - self._starts[units]).sum())

    def batches(self, generator: np.random.Generator, batch_size: int, most: int) -> list[Numbers]:
        """Batches an epoch's units in a new random order; at most `most` of them, 0 for all."""
        order = generator.permutation(len(self))[: most or None]
        window = batch_size * SORTED_BATCHES
        windows = [order[start : start + window] for start in range(0, len(order), window)]
        ordered = np.concatenate([units[np.argsort(self._lengths[units], kind="stable")] for units in windows])
        batches = [ordered[start : start + batch_size] for start in range(0, len(order), batch_size)]
        generator.shuffle(batches)
        return batches


class Queries:
    """The distinct queries of a training set, tokenized once.

    `pretrained` (q, dim) are their vectors by the pre-trained encoder, for the penalty; None for no penalty.
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

    def encode(self, encoder: QueryEncoder, rows: Sequence[int], *, normalize: bool = True) -> Tensor:
        """Encodes queries to vectors (rows, dim), float32, with a gradient; unit vectors unless told otherwise."""
        call = encoder if normalize else encoder.pooled
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
            vectors: Tensor = call(*self._batches.pad([self._ids[row] for row in rows], self._device))
        return vectors.float()

    def drift_penalty(self, vectors: Tensor, rows: Sequence[int]) -> Tensor:
        """Computes the weighted drift of queries' unit vectors from their pre-trained ones, a scalar."""
        if self._pretrained is None:
            return torch.zeros((), device=self._device)
        return self._weight * drift(functional.normalize(vectors, dim=1), self._pretrained[list(rows)])


class Premises:
    """Frozen premise vectors by ordinal, as mode SINGLE uses them."""

    def __init__(self, vectors: FrozenVectors) -> None:
        self.vectors = vectors

    def encode(
        self, encoders: Encoders[QueryEncoder], ordinals: NDArray[np.int64], *, normalize: bool = True
    ) -> Tensor:
        """Looks up unit vectors (ordinals, dim), without a gradient."""
        del encoders, normalize
        return self.vectors.rows(ordinals)

    def drift_penalty(self, vectors: Tensor, ordinals: NDArray[np.int64]) -> Tensor:
        """Returns 0: frozen premises do not drift."""
        del vectors, ordinals
        return torch.zeros((), device=self.vectors.device)


class TrainedPremises(Premises):
    """Premises that the encoder in training encodes again in each batch.

    `vectors` stay those of the space that training starts in: the penalty measures drift from them, and a guide uses
    them. `texts` (n + outside) are by ordinal; those of `used` are tokenized, once.
    """

    def __init__(
        self,
        vectors: FrozenVectors,
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

    def encode(
        self, encoders: Encoders[QueryEncoder], ordinals: NDArray[np.int64], *, normalize: bool = True
    ) -> Tensor:
        """Encodes vectors (ordinals, dim), float32, with a gradient; texts of similar length together."""
        assert encoders.premise is not None
        call = encoders.premise if normalize else encoders.premise.pooled
        device = self.vectors.device
        ids = [self._ids[ordinal] for ordinal in ordinals.tolist()]
        order = np.argsort([len(one) for one in ids], kind="stable")
        parts = []
        for start in range(0, len(order), ENCODE_BATCH):
            part = [ids[n] for n in order[start : start + ENCODE_BATCH]]
            with torch.autocast(device.type, torch.bfloat16, enabled=self._half):
                parts.append(call(*self._batches.pad(part, device)).float())
        return torch.cat(parts)[torch.from_numpy(np.argsort(order))]

    def drift_penalty(self, vectors: Tensor, ordinals: NDArray[np.int64]) -> Tensor:
        """Computes the premise terms of Eq. 2; 0 without premises."""
        if not (self._weight and len(ordinals)):
            return torch.zeros((), device=self.vectors.device)
        return self._weight * drift(functional.normalize(vectors, dim=1), self.vectors.rows(ordinals))
