"""Builds the objective that a job's configuration names, and checks that the data suit it.

A new loss: its formula in `losses`, its objective here or in `pair_objectives`, a row in `_BUILD`, a name and defaults
in `jobs.job`, the enum in trainer.proto and `convert`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aeenc.errors import FailedPrecondition, InvalidArgument
from services.trainer.data.training_set import DropReason, TrainingSet
from services.trainer.jobs.job import JobConfig, Loss, why_not
from services.trainer.learning.loss.analogy_objective import AnalogyObjective
from services.trainer.learning.loss.corpus_negatives import CorpusNegatives, Roles, cells_of
from services.trainer.learning.loss.losses import FullCorpusSoftmax
from services.trainer.learning.loss.objective import Objective, Premises, Queries, Units
from services.trainer.learning.loss.pair_objectives import (
    ContrastiveObjective,
    NliObjective,
    RankingObjective,
    SupConObjective,
    TripletObjective,
)
from services.trainer.learning.query_encoder import Encoders, QueryEncoder


class CorpusObjective:
    """Full-corpus softmax: every premise that a query may learn from is a negative in every step.

    A unit is a query that has a positive. Premises must be frozen; those outside the generation are negatives only
    where they were refused.
    """

    head: nn.Module | None = None

    def __init__(self, training_set: TrainingSet, queries: Queries, premises: Premises, config: JobConfig) -> None:
        self._examples = [n for n, example in enumerate(training_set.examples) if len(example.positives)]
        self.size, self.skipped = len(self._examples), len(training_set.examples) - len(self._examples)
        self._training_set, self._queries, self._config = training_set, queries, config
        self._units = Units(np.array(self._examples, dtype=np.int64), queries.lengths, "QUERIES")
        never = np.ones(len(premises.vectors), dtype=bool)
        never[: len(training_set.excluded)] = training_set.excluded
        self._negatives = CorpusNegatives(premises.vectors, never, config.temperature, config.refused_weight)
        self._loss = FullCorpusSoftmax(config.temperature)

    def batches(self, generator: np.random.Generator, batch_size: int) -> list[NDArray[np.int64]]:
        """Batches queries of similar lengths."""
        return self._units.batches(generator, batch_size, self._config.items_per_epoch)

    def loss(
        self, encoders: Encoders[QueryEncoder], units: NDArray[np.int64], whole: NDArray[np.int64] | None = None
    ) -> Tensor:
        """Computes the softmax loss and the penalty."""
        numbers = [self._examples[unit] for unit in units]
        vectors = self._queries.encode(encoders.query, numbers)
        examples = [self._training_set.examples[number] for number in numbers]
        positives, excluded, refused = (
            cells_of([getattr(example, kind) for example in examples]) for kind in ("positives", "excluded", "refused")
        )
        against = self._negatives.log_sum(vectors, Roles(np.concatenate([positives, excluded]), refused))
        rows = torch.from_numpy(positives[:, 0].copy()).to(vectors.device)
        cosines = (vectors[rows] * self._negatives.premises.rows(positives[:, 1])).sum(dim=1)
        loss = self._loss(cosines, rows, against) + self._queries.drift_penalty(vectors, numbers)
        return loss if whole is None else loss * (len(units) / len(whole))


Build = Callable[[TrainingSet, Queries, Premises, JobConfig], Objective]

_BUILD: dict[Loss, Build] = {
    "FULL_CORPUS_SOFTMAX": CorpusObjective,
    "TRIPLET_MARGIN": TripletObjective,
    "PAIRWISE_CONTRASTIVE": ContrastiveObjective,
    "SUPERVISED_CONTRASTIVE": SupConObjective,
    "MULTIPLE_NEGATIVES_RANKING": RankingObjective,
    "NLI_CLASSIFICATION": NliObjective,
    "ANALOGY": AnalogyObjective,
}
_NEEDS_REFUSED: tuple[Loss, ...] = ("TRIPLET_MARGIN", "PAIRWISE_CONTRASTIVE", "NLI_CLASSIFICATION", "ANALOGY")


def check_training_set(training_set: TrainingSet, config: JobConfig) -> None:
    """Raises FailedPrecondition, NO_POSITIVES or NO_NEGATIVES, for data that the loss cannot learn from."""
    sources = ", ".join([*(f"run {run_id}" for run_id in config.run_ids), *(f"data set {s}" for s in config.data_sets)])
    if not training_set.positives:
        raise FailedPrecondition(
            f"no positive pair of {sources} may be learned from ({_dropped(training_set, config)}",
            reason="NO_POSITIVES",
        )
    if config.loss in _NEEDS_REFUSED and not training_set.negatives:
        raise FailedPrecondition(
            f"{sources}: no refused pair, which {config.loss} needs; sample with collect BOTH, add a data set with "
            "refused premises, or use FULL_CORPUS_SOFTMAX",
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


def build_objective(
    training_set: TrainingSet, queries: Queries, premises: Premises, config: JobConfig, guide: Tensor | None
) -> Objective:
    """Builds the objective of `config.loss`; `guide` (examples, dim) is for GIST.

    Raises InvalidArgument if the mode excludes the loss, FailedPrecondition if the loss can use no query.
    """
    if why := why_not(config.mode, config.loss):
        raise InvalidArgument.field("config.loss", why)
    if config.loss == "GIST":
        return RankingObjective(training_set, queries, premises, config, guide)
    objective = _BUILD[config.loss](training_set, queries, premises, config)
    if not objective.size and config.loss == "ANALOGY":
        raise FailedPrecondition(
            "no class of questions has two with a correct answer, which ANALOGY needs; add a data set of kind analogy",
            reason="NO_POSITIVES",
        )
    if not objective.size:
        raise FailedPrecondition(
            f"no query has both a positive and a refused premise, which {config.loss} needs; sample with "
            "collect BOTH, or use FULL_CORPUS_SOFTMAX",
            reason="NO_NEGATIVES",
        )
    return objective


def ordinals_of(training_set: TrainingSet) -> NDArray[np.int64]:
    """Lists the premises that a loss may encode: positive, refused and neutral ones, each once, ascending."""
    named = [(one.positives, one.refused, one.neutral) for one in training_set.examples]
    return np.unique(np.concatenate([ordinals for kinds in named for ordinals in kinds])).astype(np.int64)
