"""The objective over analogies a : b :: c : d of questions and answers of one class (Diallo et al. 2019).

Prototypes a : b are correct pairs, drawn once for each class. With another question of the class they make quadruples:
one that holds for each of its correct answers d, one that does not for each wrong one. Questions without a class, and
those of a class that has no other question with a correct answer, take no part.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.trainer.data.training_set import TrainingSet
from services.trainer.jobs.job import JobConfig
from services.trainer.learning.loss.losses import Analogy
from services.trainer.learning.loss.objective import Premises, Queries
from services.trainer.learning.loss.pair_objectives import Numbers, PairObjective
from services.trainer.learning.query_encoder import Encoders, QueryEncoder


class AnalogyObjective(PairObjective):
    """Items are quadruples, units questions with all of theirs, or single ones. A batch encodes each text once."""

    def __init__(self, training_set: TrainingSet, queries: Queries, premises: Premises, config: JobConfig) -> None:
        items, self._holds = quadruples(training_set, config.prototypes, config.seed)
        super().__init__(items, training_set, queries, premises, config)
        self._loss = Analogy(config.margin)

    def _terms(self, encoders: Encoders[QueryEncoder], units: Numbers) -> tuple[Tensor, Tensor]:
        items = self._units.items(units)
        examples, rows = np.unique(self._items[items][:, [0, 2]], return_inverse=True)
        ordinals, columns = np.unique(self._items[items][:, [1, 3]], return_inverse=True)
        vectors = self._queries.encode(encoders.query, examples.tolist())
        premises = self._premises.encode(encoders, ordinals)
        question, other = torch.from_numpy(rows.reshape(-1, 2)).unbind(1)
        answer, others_answer = torch.from_numpy(columns.reshape(-1, 2)).unbind(1)
        holds = torch.from_numpy(self._holds[items]).to(vectors.device)
        prototype = vectors[other], premises[others_answer]
        loss = self._loss(prototype, (vectors[question], premises[answer]), holds)
        penalty = self._queries.drift_penalty(vectors, examples.tolist())
        return loss, penalty + self._premises.drift_penalty(premises, ordinals)


def quadruples(training_set: TrainingSet, prototypes: int, seed: int) -> tuple[Numbers, NDArray[np.bool_]]:
    """Lists quadruples by question, (n, 4), and whether each holds, (n,).

    A row has the question's example, the answer's ordinal, and the example and the ordinal of a prototype.
    """
    drawn = _prototypes(training_set, prototypes, seed)
    rows: list[Numbers] = []
    holds: list[NDArray[np.bool_]] = []
    for number, example in enumerate(training_set.examples):
        known = drawn.get(example.question_class)
        if known is None:
            continue
        others = known[known[:, 0] != number]  # the same question has no shift to itself
        answers = np.concatenate([example.positives, example.refused])
        correct = np.arange(len(answers)) < len(example.positives)
        pairs = np.stack([np.full(len(answers), number), answers], axis=1)
        rows.append(np.concatenate([np.repeat(pairs, len(others), axis=0), np.tile(others, (len(answers), 1))], axis=1))
        holds.append(np.repeat(correct, len(others)))
    if not rows:
        return np.empty((0, 4), dtype=np.int64), np.empty(0, dtype=bool)
    return np.concatenate(rows).astype(np.int64), np.concatenate(holds)


def _prototypes(training_set: TrainingSet, most: int, seed: int) -> dict[str, Numbers]:
    """Draws at most so many correct pairs of each class, rows of (example, ordinal)."""
    correct: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, ordinal in training_set.pairs(lambda example: example.positives).tolist():
        if name := training_set.examples[number].question_class:
            correct[name].append((number, ordinal))
    generator = np.random.default_rng([seed, most])
    return {name: np.array(pairs)[np.sort(generator.permutation(len(pairs))[:most])] for name, pairs in correct.items()}
