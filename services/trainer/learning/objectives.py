"""The objective that a job's configuration names, on its data; and whether the data are of use to it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from aeenc.errors import FailedPrecondition, InvalidArgument
from services.trainer.jobs import JobConfig, Loss
from services.trainer.learning.corpus_objective import CorpusObjective
from services.trainer.learning.objective import Objective, Premises, Queries
from services.trainer.learning.pair_objectives import (
    ContrastiveObjective,
    NliObjective,
    RankingObjective,
    SupConObjective,
    TripletObjective,
)
from services.trainer.modes import why_not
from services.trainer.training_set import TrainingSet

Build = Callable[[TrainingSet, Queries, Premises, JobConfig], Objective]

_BUILD: dict[Loss, Build] = {
    "FULL_CORPUS_SOFTMAX": CorpusObjective,
    "TRIPLET_MARGIN": TripletObjective,
    "PAIRWISE_CONTRASTIVE": ContrastiveObjective,
    "SUPERVISED_CONTRASTIVE": SupConObjective,
    "MULTIPLE_NEGATIVES_RANKING": RankingObjective,
    "NLI_CLASSIFICATION": NliObjective,
}
_NEEDS_REFUSED: tuple[Loss, ...] = ("TRIPLET_MARGIN", "PAIRWISE_CONTRASTIVE", "NLI_CLASSIFICATION")


def check_training_set(training_set: TrainingSet, config: JobConfig) -> None:
    """Raises FailedPrecondition, NO_POSITIVES or NO_NEGATIVES, for data that the loss can learn nothing from."""
    sources = ", ".join([*(f"run {run_id}" for run_id in config.run_ids), *(f"data set {s}" for s in config.data_sets)])
    if not training_set.positives:
        raise FailedPrecondition(
            f"no positive pair of {sources} may be learned from with split {config.split!r} "
            f"({training_set.dropped} were dropped); sample hypotheses of that split",
            reason="NO_POSITIVES",
        )
    if config.loss in _NEEDS_REFUSED and not training_set.negatives:
        raise FailedPrecondition(
            f"{sources}: no refused pair, which {config.loss} needs; sample with collect BOTH, add a data set with "
            "refused premises, or use FULL_CORPUS_SOFTMAX",
            reason="NO_NEGATIVES",
        )


def build_objective(
    training_set: TrainingSet, queries: Queries, premises: Premises, config: JobConfig, guide: Tensor | None
) -> Objective:
    """The objective of `config.loss`; `guide` (examples, dim) for GIST. Raises InvalidArgument where it cannot be."""
    if why := why_not(config.mode, config.loss):
        raise InvalidArgument.field("config.loss", why)
    if config.loss == "GIST":
        return RankingObjective(training_set, queries, premises, config, guide)
    objective = _BUILD[config.loss](training_set, queries, premises, config)
    if not objective.size:
        raise FailedPrecondition(
            f"no query has both a premise that explains it and a refused one, which {config.loss} needs; sample with "
            "collect BOTH, or use FULL_CORPUS_SOFTMAX",
            reason="NO_NEGATIVES",
        )
    return objective


def ordinals_of(training_set: TrainingSet) -> NDArray[np.int64]:
    """The premises that a loss may encode: positives and refused ones, each once, in rising order."""
    return np.unique(
        np.concatenate([np.append(example.positives, example.refused) for example in training_set.examples])
    ).astype(np.int64)
