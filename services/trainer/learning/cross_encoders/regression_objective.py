"""Regression of a cross-encoder: scores of positive pairs towards 1 or a grade, of others towards 0.

Or a distribution over the grades, by cross-entropy; the score is then its expected value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from services.trainer.data.training_set import TrainingSet
from services.trainer.jobs.job import JobConfig
from services.trainer.learning.cross_encoders.cross_encoder import Pair, PairBatches, PairScorer
from services.trainer.learning.loss.objective import Units
from services.trainer.learning.query_encoder import Encoders

POSITIVES = 2  # at most, drawn for a query in an epoch, where all are worth the same: a few have dozens


class TrainedScorer(PairScorer):
    """A cross-encoder in training. Its `transformer`, whose weights the loop keeps, includes the head."""

    @property
    def transformer(self) -> nn.Module:
        """The whole model."""
        return self.model


class GradeScorer(TrainedScorer):
    """A cross-encoder whose labels are grades, ascending. Its score is their expected value."""

    def __init__(self, model: nn.Module, grades: Sequence[float]) -> None:
        super().__init__(model)
        self.grades: Tensor
        self.register_buffer("grades", torch.tensor(grades, dtype=torch.float32))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Computes expected grades (batch,)."""
        return self.logits(input_ids, attention_mask, token_type_ids).softmax(dim=1) @ self.grades


class RegressionObjective:
    """The mean squared error; of a distribution over grades, the mean cross-entropy.

    A unit is a query with positives and negatives; an epoch draws some of both.
    """

    head: nn.Module | None = None

    def __init__(
        self,
        training_set: TrainingSet,
        negatives: Sequence[NDArray[np.int64]],
        text_of: Callable[[int], str],
        batches: PairBatches,
        config: JobConfig,
        logits: Callable[[TrainedScorer, Sequence[Pair]], Tensor],
    ) -> None:
        """`negatives[n]` are ordinals that example n may draw; `logits` computes (pairs, labels) with a gradient."""
        self._examples, self._negatives = training_set.examples, negatives
        owners = [n for n, one in enumerate(self._examples) if len(one.positives) and len(negatives[n])]
        self.size, self.skipped = len(owners), len(self._examples) - len(owners)
        self._owners = np.array(owners, dtype=np.int64)
        lengths = np.array([len(example.query) for example in self._examples], dtype=np.int64)
        self._units = Units(self._owners, lengths, "QUERIES")
        self._text_of, self._batches, self._config, self._logits = text_of, batches, config, logits
        self._drawn: list[list[tuple[int, float]]] = []

    def batches(self, generator: np.random.Generator, batch_size: int) -> list[NDArray[np.int64]]:
        """Batches queries of similar lengths; draws the premises of the epoch, too."""
        batches = self._units.batches(generator, batch_size, self._config.items_per_epoch)

        self._drawn = [self._draw(generator, int(n)) for n in self._owners]
        return batches

    def _draw(self, generator: np.random.Generator, n: int) -> list[tuple[int, float]]:
        """Draws premises of an example, each with the score that it should get."""
        example, most = self._examples[n], self._config.hard_negatives
        graded = self._config.targets != "BINARY"
        places = generator.permutation(len(example.positives))[: most if graded else POSITIVES]
        targets = example.grades if graded else np.ones(len(example.positives))
        drawn = [(int(example.positives[place]), float(targets[place])) for place in places]
        return drawn + [(int(ordinal), 0.0) for ordinal in generator.permutation(self._negatives[n])[:most]]

    def loss(
        self, encoders: Encoders[TrainedScorer], units: NDArray[np.int64], whole: NDArray[np.int64] | None = None
    ) -> Tensor:
        """Computes the mean over the pairs of a batch."""
        pairs: list[Pair] = []
        wanted: list[float] = []
        for unit in units:
            query = self._examples[self._owners[unit]].query
            pairs += [(query, self._text_of(ordinal)) for ordinal, _ in self._drawn[unit]]
            wanted += [target for _, target in self._drawn[unit]]
        errors = errors_of(encoders.query, self._logits(encoders.query, pairs), wanted)
        return errors.mean() if whole is None else errors.sum() / sum(len(self._drawn[unit]) for unit in whole)


def errors_of(scorer: TrainedScorer, logits: Tensor, wanted: Sequence[float]) -> Tensor:
    """Computes errors (pairs,) of logits (pairs, labels); each of `wanted` is among the grades of a distribution."""
    targets = torch.tensor(wanted, device=logits.device)
    if isinstance(scorer, GradeScorer):
        return nn.functional.cross_entropy(logits, torch.searchsorted(scorer.grades, targets), reduction="none")
    return (logits[:, 0] - targets) ** 2
