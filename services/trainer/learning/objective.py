"""What one optimiser step looks at: queries against the whole corpus, or triplets. Both encode a query once a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.trainer.job_files import TrainingPlan
from services.trainer.learning.losses import drift, full_corpus_softmax, triplet_margin
from services.trainer.learning.query_encoder import QueryEncoder, TextBatches
from services.trainer.training_set import TrainingSet

SORTED_BATCHES = 8  # queries are sorted by length within windows of so many batches: less padding, still shuffled


class Objective(Protocol):
    """A loss over numbered items."""

    size: int

    def batches(self, generator: np.random.Generator, batch_size: int) -> list[NDArray[np.int64]]:
        """The items of one epoch in a new random order, in batches."""

    def loss(self, encoder: QueryEncoder, items: NDArray[np.int64]) -> Tensor:
        """The loss of a batch, a scalar."""


class Queries:
    """The distinct queries of a training set, tokenized once; with the pre-trained vectors that hold them back.

    `pretrained` (q, dim) is None when nothing holds them back.
    """

    def __init__(
        self,
        training_set: TrainingSet,
        batches: TextBatches,
        prefix: str,
        device: torch.device,
        pretrained: Tensor | None,
    ) -> None:
        self.ids = batches.ids([example.query for example in training_set.examples], prefix)
        self._batches, self._device, self._pretrained = batches, device, pretrained

    def encode(self, encoder: QueryEncoder, rows: Sequence[int]) -> Tensor:
        """Vectors (rows, dim) with a gradient."""
        vectors: Tensor = encoder(*self._batches.pad([self.ids[row] for row in rows], self._device))
        return vectors

    def drift(self, vectors: Tensor, rows: Sequence[int]) -> Tensor:
        """How far queries have moved from where the pre-trained encoder puts them."""
        if self._pretrained is None:
            return torch.zeros((), device=self._device)
        return drift(vectors, self._pretrained[list(rows)])


class SoftmaxObjective:
    """Each item is a query; its negatives are all premises that it may learn from."""

    def __init__(self, training_set: TrainingSet, queries: Queries, premises: Tensor, plan: TrainingPlan) -> None:
        self.size = len(training_set.examples)
        self._examples, self._queries, self._plan = training_set.examples, queries, plan
        self._premises = premises.T.contiguous()  # (dim, n + outside)
        never = np.ones(premises.shape[0], dtype=bool)  # a premise outside the generation is nobody's negative
        never[: len(training_set.excluded)] = training_set.excluded
        self._never = torch.from_numpy(never).to(premises.device)

    def batches(self, generator: np.random.Generator, batch_size: int) -> list[NDArray[np.int64]]:
        """Queries of like length together."""
        order = generator.permutation(self.size)
        lengths = np.array([len(ids) for ids in self._queries.ids])
        window = batch_size * SORTED_BATCHES
        windows = [order[start : start + window] for start in range(0, self.size, window)]
        ordered = np.concatenate([rows[np.argsort(lengths[rows], kind="stable")] for rows in windows])
        batches = [ordered[start : start + batch_size] for start in range(0, self.size, batch_size)]
        generator.shuffle(batches)
        return batches

    def loss(self, encoder: QueryEncoder, items: NDArray[np.int64]) -> Tensor:
        """Full-corpus softmax, and the drift if it is held back."""
        rows = items.tolist()
        vectors = self._queries.encode(encoder, rows)
        scores = vectors @ self._premises  # (batch, n + outside)
        positives = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
        refused = torch.zeros_like(positives)
        excluded = self._never.repeat(len(rows), 1)
        for row, item in enumerate(rows):
            example = self._examples[item]
            positives[row, torch.from_numpy(example.positives)] = True
            refused[row, torch.from_numpy(example.refused)] = True
            excluded[row, torch.from_numpy(example.excluded)] = True
            excluded[row, torch.from_numpy(example.refused)] = False
        plan = self._plan
        softmax = full_corpus_softmax(
            scores,
            positives,
            excluded,
            refused,
            temperature=plan.config.temperature,
            refused_weight=plan.config.refused_weight,
        )
        return softmax + plan.config.regularization * self._queries.drift(vectors, rows)


class MarginObjective:
    """Each item is a triplet of a query, a premise that explains it and one that was refused (Eq. 2)."""

    def __init__(self, training_set: TrainingSet, queries: Queries, premises: Tensor, plan: TrainingPlan) -> None:
        self._triplets = training_set.triplets()
        self.size = len(self._triplets)
        self._queries, self._premises, self._plan = queries, premises, plan

    def batches(self, generator: np.random.Generator, batch_size: int) -> list[NDArray[np.int64]]:
        """Triplets in random order."""
        order = generator.permutation(self.size)
        return [order[start : start + batch_size] for start in range(0, self.size, batch_size)]

    def loss(self, encoder: QueryEncoder, items: NDArray[np.int64]) -> Tensor:
        """Triplet margin loss, and the drift."""
        triplets = self._triplets[items]  # (t, 3)
        rows, places = np.unique(triplets[:, 0], return_inverse=True)
        vectors = self._queries.encode(encoder, rows.tolist())
        chosen = vectors[torch.from_numpy(places)]  # (t, dim)
        positive, negative = (
            (chosen * self._premises[torch.from_numpy(triplets[:, column])]).sum(dim=1) for column in (1, 2)
        )
        margin = triplet_margin(positive, negative, margin=self._plan.config.margin)
        return margin + self._plan.config.regularization * self._queries.drift(vectors, rows.tolist())
