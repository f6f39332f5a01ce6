"""Each query against the whole corpus: every premise that it may learn from is a negative, in every step."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from services.trainer.jobs import JobConfig
from services.trainer.learning.batching import Units
from services.trainer.learning.losses import FullCorpusSoftmax
from services.trainer.learning.objective import Premises, Queries
from services.trainer.learning.query_encoder import Encoders
from services.trainer.training_set import TrainingSet


class CorpusObjective:
    """A unit is a query that has a positive."""

    head: nn.Module | None = None

    def __init__(self, training_set: TrainingSet, queries: Queries, premises: Premises, config: JobConfig) -> None:
        """The premises are frozen."""
        vectors = premises.vectors
        self._examples = [n for n, example in enumerate(training_set.examples) if len(example.positives)]
        self.size, self.skipped = len(self._examples), len(training_set.examples) - len(self._examples)
        self._training_set, self._queries, self._config = training_set, queries, config
        self._units = Units(np.array(self._examples, dtype=np.int64), queries.lengths, "QUERIES")
        self._premises = vectors.T.contiguous()  # (dim, n + outside)
        never = np.ones(vectors.shape[0], dtype=bool)  # a premise outside the generation is nobody's negative
        never[: len(training_set.excluded)] = training_set.excluded
        self._never = torch.from_numpy(never).to(vectors.device)
        self._loss = FullCorpusSoftmax(config.temperature, config.refused_weight)

    def batches(self, generator: np.random.Generator, batch_size: int) -> list[NDArray[np.int64]]:
        """Queries of like length together."""
        return self._units.batches(generator, batch_size, self._config.items_per_epoch)

    def loss(self, encoders: Encoders, units: NDArray[np.int64], whole: NDArray[np.int64] | None = None) -> Tensor:
        """Full-corpus softmax, and the drift if it is held back."""
        rows = [self._examples[unit] for unit in units]
        vectors = self._queries.encode(encoders.query, rows)
        scores = vectors @ self._premises  # (batch, n + outside)
        positives = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
        refused = torch.zeros_like(positives)
        excluded = self._never.repeat(len(rows), 1)
        for row, number in enumerate(rows):
            example = self._training_set.examples[number]
            positives[row, torch.from_numpy(example.positives)] = True
            refused[row, torch.from_numpy(example.refused)] = True
            excluded[row, torch.from_numpy(example.excluded)] = True
            excluded[row, torch.from_numpy(example.refused)] = False
        loss = self._loss(scores, positives, excluded, refused) + self._queries.held_back(vectors, rows)
        return loss if whole is None else loss * (len(units) / len(whole))
