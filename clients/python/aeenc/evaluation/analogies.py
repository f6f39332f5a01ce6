"""Answer selection by analogy (Diallo et al. 2019): an answer differs from its question as in known pairs of the class.

A prototype is the shift of a known pair: the vector of its question minus that of its right answer. A candidate scores
the highest cosine of its own shift with a prototype of the question's class. Pure numpy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import InvalidArgument
from aeenc.evaluation.answers import Question
from aeenc.evaluation.metrics import Ranks, average_precision

Pair = tuple[str, str]


@dataclass(frozen=True)
class SelectionMetrics:
    """Quality of answer selection over so many questions; MAP and MRR lie in [0, 1]."""

    map: float
    mrr: float
    questions: int


def draw_prototypes(questions: Sequence[Question], most: int, *, seed: int = 0) -> dict[str, list[Pair]]:
    """Draws at most so many right pairs (question, answer) of each class; questions without a class give none."""
    if most < 1:
        raise InvalidArgument(f"most must be 1 or more, got {most}")
    known: dict[str, list[Pair]] = defaultdict(list)
    for question in questions:
        if name := question.question_class:
            known[name] += [(question.text, text) for text, right in question.answers.items() if right]
    generator = np.random.default_rng(seed)
    return {
        name: [pairs[n] for n in np.sort(generator.permutation(len(pairs))[:most])]
        for name, pairs in known.items()
        if pairs
    }


def shifts(questions: NDArray[np.floating], answers: NDArray[np.floating]) -> NDArray[np.float64]:
    """Computes the directions from answers to questions, (n, dim) each; a shift of length 0 stays 0."""
    differences: NDArray[np.float64] = questions.astype(np.float64) - answers.astype(np.float64)
    lengths = np.linalg.norm(differences, axis=-1, keepdims=True)
    np.divide(differences, lengths, out=differences, where=lengths > 0)
    return differences


def analogy_scores(
    prototypes: NDArray[np.float64], question: NDArray[np.floating], candidates: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Scores candidates (n, dim) of a question (dim,) by the nearest of the prototypes (p, dim), which are `shifts`.

    Raises InvalidArgument without a prototype.
    """
    if not len(prototypes):
        raise InvalidArgument("no prototype; give right pairs of the question's class")
    found: NDArray[np.float64] = (shifts(question[None], candidates) @ prototypes.T).max(axis=1)
    return found


def answer_ranks(scores: NDArray[np.floating], right: Sequence[bool]) -> Ranks:
    """Ranks the right candidates, from 1. Of equal scores, wrong candidates come first: a tie earns nothing."""
    is_right = np.asarray(right, dtype=bool)
    order = np.lexsort((is_right, -scores))
    return np.flatnonzero(is_right[order]) + 1


def selection_metrics(ranks: Sequence[Ranks]) -> SelectionMetrics:
    """Averages over questions, each with the ranks of its right candidates. Raises InvalidArgument if one has none."""
    if not ranks or not all(len(one) for one in ranks):
        raise InvalidArgument("a question has no right candidate; leave out those that have none")
    return SelectionMetrics(
        map=float(np.mean([average_precision(one) for one in ranks])),
        mrr=float(np.mean([1 / one.min() for one in ranks])),
        questions=len(ranks),
    )
