"""Objectives: formulas on a job's data, each over items of one kind. A batch encodes each of its distinct texts once.

`OBJECTIVES` has the kinds. A formula computes a scalar of tensors and the configuration; what each kind gives to its
formula stands in the `_terms` of its objective.
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aeenc.errors import FailedPrecondition
from services.trainer.jobs.job import JobConfig
from services.trainer.jobs.losses import LossSpec, Over
from services.trainer.jobs.training_set import DropReason, Example, TrainingSet
from services.trainer.train.data import CorpusNegatives, FrozenVectors, Numbers, Objective, Texts, Units, cells_of
from services.trainer.train.encoder import Encoders, QueryEncoder
from services.trainer.train.losses import CONTRADICTION, ENTAILMENT, NEUTRAL, Formula


@dataclass(frozen=True)
class LossData:
    """The data of a job that an objective is built on, and the formula to compute.

    `vectors` are those of premises in the space that training starts in: while premises are frozen, these themselves.
    `guide` (examples, dim) are the queries' vectors by another encoder of the space, for a formula that wants them.
    """

    formula: Formula
    training_set: TrainingSet
    queries: Texts
    vectors: FrozenVectors
    premises: FrozenVectors | Texts
    config: JobConfig
    guide: Tensor | None = None


class ItemObjective(ABC):
    """A loss over items of one kind: rows of an example and one or more ordinals, ordered by example."""

    head: nn.Module | None = None
    normalize = True  # whether the loss is over unit vectors
    by_query = False  # whether units are queries, whatever the configuration says

    def __init__(self, data: LossData, items: Numbers) -> None:
        self._items, self._formula, self._config = items, data.formula, data.config
        self._training_set, self._vectors = data.training_set, data.vectors
        self._queries, self._premises = data.queries, data.premises
        self._units = Units(items[:, 0], data.queries.lengths, "QUERIES" if self.by_query else data.config.batching)
        self.size = len(self._units)
        self.skipped = len(data.training_set.examples) - len(np.unique(items[:, 0]))

    def batches(self, generator: np.random.Generator, batch_size: int) -> list[Numbers]:
        """Batches units whose queries have similar lengths."""
        return self._units.batches(generator, batch_size, self._config.items_per_epoch)

    def loss(self, encoders: Encoders[QueryEncoder], units: Numbers, whole: Numbers | None = None) -> Tensor:
        """Computes the loss and the penalty; for a part, each is scaled by the part's share of what it averages."""
        loss, penalty = self._terms(encoders, self._units.items(units))
        if whole is None:
            return loss + penalty
        of_units = len(units) / len(whole)
        of_items = len(self._units.items(units)) / len(self._units.items(whole))
        return loss * (of_units if self.by_query else of_items) + penalty * of_units

    @abstractmethod
    def _terms(self, encoders: Encoders[QueryEncoder], numbers: Numbers) -> tuple[Tensor, Tensor]:
        """Computes the loss of some items and the penalty of their texts, scalars."""


class CorpusObjective(ItemObjective):
    """Positive pairs against every premise that a query may learn from, in every step. Premises must be frozen.

    Those outside the generation are negatives only where they were refused.
    """

    by_query = True

    def __init__(self, data: LossData) -> None:
        super().__init__(data, data.training_set.pairs(lambda example: example.positives))
        never = np.ones(len(data.vectors), dtype=bool)
        never[: len(data.training_set.excluded)] = data.training_set.excluded
        self._negatives = CorpusNegatives(data.vectors, never, data.config.temperature, data.config.refused_weight)

    def _terms(self, encoders: Encoders[QueryEncoder], numbers: Numbers) -> tuple[Tensor, Tensor]:
        asked = np.array(list(dict.fromkeys(self._items[numbers, 0].tolist())))
        vectors = self._queries.encode(encoders.query, asked)
        examples = [self._training_set.examples[number] for number in asked]
        positives, excluded, refused = (
            cells_of([getattr(example, kind) for example in examples]) for kind in ("positives", "excluded", "refused")
        )
        against = self._negatives.log_sum(vectors, np.concatenate([positives, excluded]), refused)
        rows = torch.from_numpy(positives[:, 0].copy()).to(vectors.device)
        cosines = (vectors[rows] * self._vectors.rows(positives[:, 1])).sum(dim=1)
        loss = self._formula(cosines, rows, against, self._config) + self._queries.drift_penalty(vectors, asked)
        return loss, loss.new_zeros(())


@dataclass(frozen=True)
class Batch:
    """Distinct queries (q, dim) and premises (c, dim) of a batch, and their dot products (q, c): cosines of unit ones.

    `examples` (q,) and `candidates` (c,) are their numbers; `rows` (items,) and `columns` (items, ordinals of an item)
    locate each item's own. `penalty` is that of all texts.
    """

    vectors: Tensor
    premises: Tensor
    scores: Tensor
    examples: Numbers
    candidates: Numbers
    rows: Tensor
    columns: Tensor
    penalty: Tensor

    def of_items(self, column: int = 0) -> Tensor:
        """The scores (items,) of the premises in a column of the items."""
        return self.scores[self.rows, self.columns[:, column]]


class PairObjective(ItemObjective):
    """Items whose premises are encoded, or looked up, each once."""

    def _batch(self, encoders: Encoders[QueryEncoder], items: Numbers) -> Batch:
        """Encodes and scores items (i, 1 + ordinals; negative for none)."""
        examples, rows = np.unique(items[:, 0], return_inverse=True)
        candidates, columns = np.unique(items[:, 1:], return_inverse=True)
        absent = int((candidates < 0).sum())  # they sort first
        candidates, columns = candidates[absent:], columns.reshape(len(items), -1) - absent
        vectors = self._queries.encode(encoders.query, examples, normalize=self.normalize)
        premises = self._premises.encode(encoders.premise, candidates, normalize=self.normalize)
        scores = vectors @ premises.T
        penalty = self._queries.drift_penalty(vectors, examples) + self._drift(premises, candidates, columns)
        places = torch.from_numpy(rows), torch.from_numpy(columns)
        return Batch(vectors, premises, scores, examples, candidates, *places, penalty)

    def _drift(self, premises: Tensor, candidates: Numbers, columns: Numbers) -> Tensor:
        del columns
        return self._premises.drift_penalty(premises, candidates)

    def _marked(self, batch: Batch, *kinds: str) -> Tensor:
        """Marks the candidates among an example's ordinals of these kinds, boolean (q, c)."""
        marked = np.zeros((len(batch.examples), len(batch.candidates)), dtype=bool)
        for row, number in enumerate(batch.examples):
            example = self._training_set.examples[number]
            marked[row] = np.isin(batch.candidates, np.concatenate([getattr(example, kind) for kind in kinds]))
        return torch.from_numpy(marked).to(batch.scores.device)


class TripletObjective(PairObjective):
    """Triplets of a query, a positive and a refused premise (Eq. 2)."""

    def __init__(self, data: LossData) -> None:
        super().__init__(data, data.training_set.triplets())

    def _terms(self, encoders: Encoders[QueryEncoder], numbers: Numbers) -> tuple[Tensor, Tensor]:
        batch = self._batch(encoders, self._items[numbers])
        return self._formula(batch.of_items(0), batch.of_items(1), self._config), batch.penalty

    def _drift(self, premises: Tensor, candidates: Numbers, columns: Numbers) -> Tensor:
        """Positive and refused premises have a term each (Eq. 2)."""
        terms = [
            self._premises.drift_penalty(premises[torch.from_numpy(side)], candidates[side])
            for side in (np.unique(columns[:, n]) for n in (0, 1))
        ]
        return terms[0] + terms[1]


class ClassifiedObjective(PairObjective):
    """Pairs, positive or refused."""

    def __init__(self, data: LossData, *, neutral: bool = False) -> None:
        items, self._classes = classified(data.training_set, neutral=neutral)
        super().__init__(data, items)

    def _terms(self, encoders: Encoders[QueryEncoder], numbers: Numbers) -> tuple[Tensor, Tensor]:
        batch = self._batch(encoders, self._items[numbers])
        explains = torch.from_numpy(self._classes[numbers] == ENTAILMENT).to(batch.scores.device)
        return self._formula(batch.of_items(), explains, self._config), batch.penalty


class NliObjective(ClassifiedObjective):
    """Pairs with a class: entailment (positive), neutral (so judged, or refused), contradiction; the formula is a head.

    Vectors are not normalised, as published: the layer learns little from unit vectors at an encoder's learning rate.
    Frozen premises are kept as unit vectors, so that in mode SINGLE queries are normalised, too.
    """

    def __init__(self, data: LossData) -> None:
        super().__init__(data, neutral=True)
        self.normalize = isinstance(data.premises, FrozenVectors)
        torch.manual_seed(data.config.seed % 2**63)
        head: nn.Module = data.formula(data.vectors.dim)
        self.head = self._formula = head.to(data.vectors.device)

    def _terms(self, encoders: Encoders[QueryEncoder], numbers: Numbers) -> tuple[Tensor, Tensor]:
        batch = self._batch(encoders, self._items[numbers])
        classes = torch.from_numpy(self._classes[numbers]).to(batch.vectors.device)
        sides = batch.vectors[batch.rows], batch.premises[batch.columns[:, 0]]
        return self._formula(*sides, classes), batch.penalty


class CandidatesObjective(PairObjective):
    """Positive and refused pairs of queries with a positive one. All premises of a batch are candidates."""

    by_query = True

    def __init__(self, data: LossData) -> None:
        items, _ = classified(data.training_set)
        answered = np.array([len(example.positives) > 0 for example in data.training_set.examples], dtype=bool)
        super().__init__(data, items[answered[items[:, 0]]])
        check_contrast(data, has_refused=any(len(data.training_set.examples[n].refused) for n in self._items[:, 0]))

    def _terms(self, encoders: Encoders[QueryEncoder], numbers: Numbers) -> tuple[Tensor, Tensor]:
        batch = self._batch(encoders, self._items[numbers])
        positives, excluded = self._marked(batch, "positives"), self._marked(batch, "excluded")
        return self._formula(batch.scores, positives, excluded, self._config), batch.penalty


class PositivesObjective(PairObjective):
    """Positive pairs. Candidates are the premises of the batch and refused ones drawn in each epoch."""

    def __init__(self, data: LossData) -> None:
        super().__init__(data, data.training_set.pairs(lambda example: example.positives))
        self._refused = data.training_set.pairs(lambda example: example.refused)
        is_drawn = bool(np.isin(self._items[:, 0], self._refused[:, 0]).any()) and data.config.hard_negatives > 0
        check_contrast(data, has_refused=is_drawn)
        self._guide = data.guide
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

    def _terms(self, encoders: Encoders[QueryEncoder], numbers: Numbers) -> tuple[Tensor, Tensor]:
        batch = self._batch(encoders, np.concatenate([self._items[numbers], self._drawn[numbers]], axis=1))
        guide = None
        if self._guide is not None:
            known = self._vectors.rows(batch.candidates)  # frozen, also while the premise encoder is trained
            guide = (self._guide[torch.from_numpy(batch.examples)] @ known.T)[batch.rows]
        masked = self._marked(batch, "positives", "excluded")[batch.rows]
        positive = batch.columns[:, 0].to(batch.scores.device)
        return self._formula(batch.scores[batch.rows], positive, masked, guide, self._config), batch.penalty


class AnalogyObjective(PairObjective):
    """Analogies a : b :: c : d of questions and answers of one class (Diallo et al. 2019), as quadruples.

    Prototypes a : b are correct pairs, drawn once for each class. With another question of the class they make
    quadruples: one that holds for each of its correct answers d, one that does not for each wrong one. Questions
    without a class, and those of a class that has no other question with a correct answer, take no part.
    """

    def __init__(self, data: LossData) -> None:
        items, self._holds = quadruples(data.training_set, data.config.prototypes, data.config.seed)
        super().__init__(data, items)

    def _terms(self, encoders: Encoders[QueryEncoder], numbers: Numbers) -> tuple[Tensor, Tensor]:
        batch = self._batch(encoders, self._items[numbers].reshape(-1, 2))  # two pairs of each quadruple
        questions, answers = batch.vectors[batch.rows], batch.premises[batch.columns[:, 0]]
        holds = torch.from_numpy(self._holds[numbers]).to(questions.device)
        prototypes, pairs = ((questions[place::2], answers[place::2]) for place in (1, 0))
        return self._formula(prototypes, pairs, holds, self._config), batch.penalty


OBJECTIVES: Mapping[Over, Callable[[LossData], Objective]] = {
    "corpus": CorpusObjective,
    "triplets": TripletObjective,
    "pairs": ClassifiedObjective,
    "classes": NliObjective,
    "candidates": CandidatesObjective,
    "positives": PositivesObjective,
    "quadruples": AnalogyObjective,
}


def formula_of(spec: LossSpec) -> Formula:
    """Imports the formula of a loss. Raises FailedPrecondition where there is none."""
    module, _, name = spec.formula.rpartition(".")
    try:
        found: Formula = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise FailedPrecondition(
            f"the loss {spec.formula} cannot be imported by {sys.executable} ({error}); install its module "
            "there, or correct AEENC_TRAINER_LOSSES"
        ) from error
    return found


def build_objective(data: LossData, spec: LossSpec, name: str) -> Objective:
    """Builds the objective of a loss. Raises FailedPrecondition, NO_POSITIVES or NO_NEGATIVES, if it uses no query."""
    objective = OBJECTIVES[spec.over](data)
    if not objective.size and spec.over == "quadruples":
        raise FailedPrecondition(
            f"no class of questions has two with a correct answer, which {name} needs; add a data set of kind analogy",
            reason="NO_POSITIVES",
        )
    if not objective.size:
        raise FailedPrecondition(
            f"no query has both a positive and a refused premise, which {name} needs; sample with collect BOTH, or use "
            "FULL_CORPUS_SOFTMAX",
            reason="NO_NEGATIVES",
        )
    return objective


def check_training_set(training_set: TrainingSet, config: JobConfig, spec: LossSpec) -> None:
    """Raises FailedPrecondition, NO_POSITIVES or NO_NEGATIVES, for data that the loss cannot learn from."""
    sources = ", ".join([*(f"run {run_id}" for run_id in config.run_ids), *(f"data set {s}" for s in config.data_sets)])
    if not training_set.positives:
        raise FailedPrecondition(
            f"no positive pair of {sources} may be learned from ({_dropped(training_set, config)}",
            reason="NO_POSITIVES",
        )
    if spec.needs_refused and not training_set.negatives:
        raise FailedPrecondition(
            f"{sources}: no refused pair, which {config.loss_name} needs; sample with collect BOTH, add a data set "
            "with refused premises, or use FULL_CORPUS_SOFTMAX",
            reason="NO_NEGATIVES",
        )


def _dropped(training_set: TrainingSet, config: JobConfig) -> str:
    """Says why pairs were dropped, and what helps."""
    of = f"of other splits than {config.split!r}" if config.split else "of validation queries"
    kinds: dict[DropReason, tuple[str, str]] = {
        "OTHER_SPLIT": (f"{of}, or held out", "sample other hypotheses" + (" of that split" if config.split else "")),
        "BOTH_WAYS": ("judged both ways", "keep one judgement of each"),
        "OWN_TEXT": ("of a query's own text", "judge other premises"),
    }
    found = [(count, *kinds[why]) for why, count in training_set.dropped_for.items() if count]
    if not found:
        return "none was dropped); add judgements that accept premises"
    reasons = ", ".join(f"{count:,} {what}" for count, what, _ in found)
    total = training_set.dropped
    return (
        f"{total:,} {'was' if total == 1 else 'were'} dropped: {reasons}); {', '.join(remedy for *_, remedy in found)}"
    )


def check_contrast(data: LossData, *, has_refused: bool) -> None:
    """Raises FailedPrecondition where no batch has a premise to rank below what explains its query.

    Such a premise is a refused one, or one that explains another query of the batch and may not explain this one.
    """
    examples, config = data.training_set.examples, data.config
    positives = np.unique(np.concatenate([[], *(one.positives for one in examples)]))
    has_other = (
        len(np.setdiff1d(positives, np.concatenate([one.positives, one.excluded]))) > 0
        for one in examples
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
        f"{config.loss_name} ranks the premises of a batch, and none may be ranked below another: {why}, add refused "
        "pairs, or use FULL_CORPUS_SOFTMAX",
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


def quadruples(training_set: TrainingSet, prototypes: int, seed: int) -> tuple[Numbers, NDArray[np.bool_]]:
    """Lists quadruples by question, (n, 4), and whether each holds, (n,).

    A row has the question's example, the answer's ordinal, and the example and the ordinal of a prototype: one of at
    most so many correct pairs of the class, drawn at random.
    """
    correct: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, ordinal in training_set.pairs(lambda example: example.positives).tolist():
        if name := training_set.examples[number].question_class:
            correct[name].append((number, ordinal))
    generator = np.random.default_rng([seed, prototypes])
    drawn = {
        name: np.array(pairs)[np.sort(generator.permutation(len(pairs))[:prototypes])]
        for name, pairs in correct.items()
    }
    rows, holds = [np.empty((0, 4), dtype=np.int64)], [np.empty(0, dtype=bool)]
    for number, example in enumerate(training_set.examples):
        known = drawn.get(example.question_class, np.empty((0, 2), dtype=np.int64))
        others = known[known[:, 0] != number]  # the same question has no shift to itself
        answers = np.concatenate([example.positives, example.refused])
        pairs = np.stack([np.full(len(answers), number), answers], axis=1)
        rows.append(np.concatenate([np.repeat(pairs, len(others), axis=0), np.tile(others, (len(answers), 1))], axis=1))
        holds.append(np.repeat(np.arange(len(answers)) < len(example.positives), len(others)))
    return np.concatenate(rows).astype(np.int64), np.concatenate(holds)


def ordinals_of(training_set: TrainingSet) -> Numbers:
    """Lists the premises that a loss may encode: positive, refused and neutral ones, each once, ascending."""
    named = [(one.positives, one.refused, one.neutral) for one in training_set.examples]
    return np.unique(np.concatenate([ordinals for kinds in named for ordinals in kinds])).astype(np.int64)
