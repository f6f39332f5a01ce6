"""Objectives over triplets and pairs. A batch encodes each of its distinct texts once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aeenc.errors import FailedPrecondition
from services.trainer.data.training_set import Example, TrainingSet
from services.trainer.jobs.job import Batching, JobConfig
from services.trainer.learning.loss.losses import (
    CONTRADICTION,
    ENTAILMENT,
    NEUTRAL,
    Gist,
    MultipleNegativesRanking,
    NliClassification,
    PairwiseContrastive,
    SupervisedContrastive,
    TripletMargin,
)
from services.trainer.learning.loss.objective import Premises, Queries, TrainedPremises, Units
from services.trainer.learning.query_encoder import Encoders, QueryEncoder

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Distinct queries (q, dim) and candidate premises (c, dim) of a batch, and their dot products (q, c): cosines of
    unit vectors.

    `examples` (q,) and `candidates` (c,) are their numbers; `rows` and `columns` locate each item's own.
    """

    vectors: Tensor
    premises: Tensor
    scores: Tensor
    examples: Numbers
    candidates: Numbers
    rows: Numbers  # (items,)
    columns: Numbers  # (items, ordinals of an item)


class PairObjective(ABC):
    """A loss over items of one kind: rows of an example and one or more ordinals, ordered by example."""

    head: nn.Module | None = None
    normalize = True  # whether the loss is over unit vectors

    def __init__(
        self,
        items: Numbers,
        training_set: TrainingSet,
        queries: Queries,
        premises: Premises,
        config: JobConfig,
        batching: Batching | None = None,
    ) -> None:
        """`batching` overrides the configuration's."""
        self._items, self._training_set, self._queries = items, training_set, queries
        self._premises, self._config = premises, config
        self._units = Units(items[:, 0], queries.lengths, batching or config.batching)
        self.size = len(self._units)
        self.skipped = len(training_set.examples) - len(np.unique(items[:, 0]))

    def batches(self, generator: np.random.Generator, batch_size: int) -> list[Numbers]:
        """Batches units whose queries have similar lengths."""
        return self._units.batches(generator, batch_size, self._config.items_per_epoch)

    def loss(self, encoders: Encoders[QueryEncoder], units: Numbers, whole: Numbers | None = None) -> Tensor:
        """Computes the loss and the penalty; for a part, each is scaled by the part's share of what it averages."""
        loss, penalty = self._terms(encoders, units)
        if whole is None:
            return loss + penalty
        return loss * self._part_of(units, whole) + penalty * (len(units) / len(whole))

    @abstractmethod
    def _terms(self, encoders: Encoders[QueryEncoder], units: Numbers) -> tuple[Tensor, Tensor]:
        """Computes the loss of some units and the penalty of their texts, scalars."""

    def _part_of(self, units: Numbers, whole: Numbers) -> float:
        """Returns the share of a batch's loss that some of its units have; here the loss is a mean over items."""
        return self._units.count(units) / self._units.count(whole)

    def _batch(self, encoders: Encoders[QueryEncoder], items: Numbers) -> tuple[Batch, Tensor]:
        """Encodes and scores items (i, 1 + ordinals; negative for none), and computes the penalty of their texts."""
        examples, rows = np.unique(items[:, 0], return_inverse=True)
        candidates, columns = np.unique(items[:, 1:], return_inverse=True)
        absent = int((candidates < 0).sum())  # they sort first
        candidates, columns = candidates[absent:], columns.reshape(len(items), -1) - absent
        vectors = self._queries.encode(encoders.query, examples.tolist(), normalize=self.normalize)
        premises = self._premises.encode(encoders, candidates, normalize=self.normalize)
        batch = Batch(vectors, premises, vectors @ premises.T, examples, candidates, rows, columns)
        return batch, self._queries.drift_penalty(vectors, examples.tolist()) + self._premises_penalty(batch)

    def _premises_penalty(self, batch: Batch) -> Tensor:
        return self._premises.drift_penalty(batch.premises, batch.candidates)

    def _marked(self, batch: Batch, *kinds: str) -> Tensor:
        """Marks the candidates among an example's ordinals of these kinds, boolean (q, c)."""
        marked = np.zeros((len(batch.examples), len(batch.candidates)), dtype=bool)
        for row, number in enumerate(batch.examples):
            example = self._training_set.examples[number]
            marked[row] = np.isin(batch.candidates, np.concatenate([getattr(example, kind) for kind in kinds]))
        return torch.from_numpy(marked).to(batch.scores.device)


class TripletObjective(PairObjective):
    """Items are triplets of a query, a positive and a refused premise (Eq. 2)."""

    def __init__(self, training_set: TrainingSet, queries: Queries, premises: Premises, config: JobConfig) -> None:
        super().__init__(training_set.triplets(), training_set, queries, premises, config)
        self._loss = TripletMargin(config.margin)

    def _terms(self, encoders: Encoders[QueryEncoder], units: Numbers) -> tuple[Tensor, Tensor]:
        batch, penalty = self._batch(encoders, self._items[self._units.items(units)])
        rows = torch.from_numpy(batch.rows)
        positive, negative = (batch.scores[rows, torch.from_numpy(batch.columns[:, n])] for n in (0, 1))
        return self._loss(positive, negative), penalty

    def _premises_penalty(self, batch: Batch) -> Tensor:
        """Positive and refused premises have a term each (Eq. 2)."""
        sides = (np.unique(batch.columns[:, n]) for n in (0, 1))
        terms = [
            self._premises.drift_penalty(batch.premises[torch.from_numpy(side)], batch.candidates[side])
            for side in sides
        ]
        return terms[0] + terms[1]


class ContrastiveObjective(PairObjective):
    """Items are pairs, positive or refused."""

    def __init__(self, training_set: TrainingSet, queries: Queries, premises: Premises, config: JobConfig) -> None:
        items, self._classes = classified(training_set)
        super().__init__(items, training_set, queries, premises, config)
        self._loss = PairwiseContrastive(config.margin)

    def _terms(self, encoders: Encoders[QueryEncoder], units: Numbers) -> tuple[Tensor, Tensor]:
        items = self._units.items(units)
        batch, penalty = self._batch(encoders, self._items[items])
        cosines = batch.scores[torch.from_numpy(batch.rows), torch.from_numpy(batch.columns[:, 0])]
        explains = torch.from_numpy(self._classes[items] == ENTAILMENT).to(cosines.device)
        return self._loss(cosines, explains), penalty


class NliObjective(PairObjective):
    """Items are pairs with a class: entailment (positive), neutral (so judged, or refused), contradiction.

    Vectors are not normalised, as published: the layer learns little from unit vectors at an encoder's learning rate.
    Frozen premises are kept as unit vectors, so that in mode SINGLE queries are normalised, too.
    """

    def __init__(self, training_set: TrainingSet, queries: Queries, premises: Premises, config: JobConfig) -> None:
        items, self._classes = classified(training_set, neutral=True)
        super().__init__(items, training_set, queries, premises, config)
        self.normalize = not isinstance(premises, TrainedPremises)
        torch.manual_seed(config.seed % 2**63)
        self.head = self._loss = NliClassification(premises.vectors.dim).to(premises.vectors.device)

    def _terms(self, encoders: Encoders[QueryEncoder], units: Numbers) -> tuple[Tensor, Tensor]:
        items = self._units.items(units)
        batch, penalty = self._batch(encoders, self._items[items])
        vectors, premises = (
            batch.vectors[torch.from_numpy(batch.rows)],
            batch.premises[torch.from_numpy(batch.columns[:, 0])],
        )
        classes = torch.from_numpy(self._classes[items]).to(vectors.device)
        return self._loss(vectors, premises, classes), penalty


class SupConObjective(PairObjective):
    """Items are positive and refused pairs, units always queries. All premises of a batch are candidates."""

    def __init__(self, training_set: TrainingSet, queries: Queries, premises: Premises, config: JobConfig) -> None:
        items, _ = classified(training_set)
        answered = np.array([len(example.positives) > 0 for example in training_set.examples], dtype=bool)
        super().__init__(items[answered[items[:, 0]]], training_set, queries, premises, config, "QUERIES")
        check_contrast(
            training_set, config, has_refused=any(len(training_set.examples[n].refused) for n in items[:, 0])
        )
        self._loss = SupervisedContrastive(config.temperature)

    def _part_of(self, units: Numbers, whole: Numbers) -> float:
        return len(units) / len(whole)  # a mean over queries

    def _terms(self, encoders: Encoders[QueryEncoder], units: Numbers) -> tuple[Tensor, Tensor]:
        batch, penalty = self._batch(encoders, self._items[self._units.items(units)])
        positives, excluded = self._marked(batch, "positives"), self._marked(batch, "excluded")
        return self._loss(batch.scores, positives, excluded), penalty


class RankingObjective(PairObjective):
    """Items are positive pairs. Candidates are the premises of the batch and refused ones drawn in each epoch.

    A `guide` (examples, dim), the queries' vectors by another encoder of the space, makes the loss GIST.
    """

    def __init__(
        self,
        training_set: TrainingSet,
        queries: Queries,
        premises: Premises,
        config: JobConfig,
        guide: Tensor | None = None,
    ) -> None:
        super().__init__(training_set.pairs(lambda example: example.positives), training_set, queries, premises, config)
        self._refused = training_set.pairs(lambda example: example.refused)
        is_drawn = bool(np.isin(self._items[:, 0], self._refused[:, 0]).any()) and config.hard_negatives > 0
        check_contrast(training_set, config, has_refused=is_drawn)
        self._guide = guide
        self._drawn = np.empty((len(self._items), 0), dtype=np.int64)

    def batches(self, generator: np.random.Generator, batch_size: int) -> list[Numbers]:
        """Draws the refused premises of the epoch, too."""
        batches = super().batches(generator, batch_size)
        starts = np.searchsorted(self._refused[:, 0], self._items[:, :1])  # (items, 1)
        counts = np.searchsorted(self._refused[:, 0], self._items[:, :1], side="right") - starts
        chosen = starts + (generator.random((len(self._items), self._config.hard_negatives)) * counts).astype(np.int64)
        ordinals = np.append(self._refused[:, 1], -1)  # the last stands for none
        self._drawn = ordinals[np.where(counts > 0, chosen, len(self._refused))]
        return batches

    def _terms(self, encoders: Encoders[QueryEncoder], units: Numbers) -> tuple[Tensor, Tensor]:
        items = self._units.items(units)
        batch, penalty = self._batch(encoders, np.concatenate([self._items[items], self._drawn[items]], axis=1))
        rows, own = torch.from_numpy(batch.rows), torch.from_numpy(batch.columns[:, 0]).to(batch.scores.device)
        masked = self._marked(batch, "positives", "excluded")[rows]
        if self._guide is None:
            return MultipleNegativesRanking(self._config.temperature)(batch.scores[rows], own, masked), penalty
        known = self._premises.vectors.rows(batch.candidates)  # frozen, also while the premise encoder is trained
        guide = (self._guide[torch.from_numpy(batch.examples)] @ known.T)[rows]
        loss = Gist(self._config.temperature, self._config.guide_margin)
        return loss(batch.scores[rows], guide, own, masked), penalty


def check_contrast(training_set: TrainingSet, config: JobConfig, *, has_refused: bool) -> None:
    """Raises FailedPrecondition where no batch has a premise to rank below what explains its query.

    Such a premise is a refused one, or one that explains another query of the batch and may not explain this one.
    """
    positives = np.unique(np.concatenate([[], *(one.positives for one in training_set.examples)]))
    has_other = (
        len(np.setdiff1d(positives, np.concatenate([one.positives, one.excluded]))) > 0
        for one in training_set.examples
        if len(one.positives)
    )
    if has_refused or (config.batch_size > 1 and any(has_other)):
        return
    why = (
        "with batch_size 1 a batch is one pair; give a larger one"
        if config.batch_size == 1
        else "one pair, or pairs of one query or of one premise, tell nothing apart; add pairs of another query"
    )
    raise FailedPrecondition(
        f"{config.loss} ranks the premises of a batch, and none may be ranked below another: {why}, add refused pairs, "
        "or use FULL_CORPUS_SOFTMAX",
        reason="NO_NEGATIVES",
    )


def classified(training_set: TrainingSet, *, neutral: bool = False) -> tuple[Numbers, Numbers]:
    """Lists all positive and refused pairs by example, (p, 2), and the class of each, (p,).

    Pairs that were judged neutral only if asked for.
    """

    def unrelated(example: Example) -> Numbers:
        refused = np.setdiff1d(example.refused, example.contradicted)
        return np.union1d(refused, example.neutral) if neutral else refused

    kinds = [
        (ENTAILMENT, training_set.pairs(lambda example: example.positives)),
        (NEUTRAL, training_set.pairs(unrelated)),
        (CONTRADICTION, training_set.pairs(lambda example: example.contradicted)),
    ]
    pairs = np.concatenate([rows for _, rows in kinds])
    classes = np.concatenate([np.full(len(rows), number, dtype=np.int64) for number, rows in kinds])
    order = np.argsort(pairs[:, 0], kind="stable")
    return pairs[order], classes[order]
