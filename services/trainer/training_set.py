"""Pairs of sampling runs as a training set over one generation. Pure numpy; knows neither torch nor Redis.

What may not be learned from is dropped here and counted: pairs of other splits, contradictions, a premise as its own
explanation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from services.kit.generation import PremiseRecord

Sign = Literal["POSITIVE", "NEGATIVE", "SKIPPED"]
Ordinals = NDArray[np.int64]


@dataclass(frozen=True)
class JudgedPair:
    """What training needs of a pair."""

    query: str
    premise_id: str
    premise: str
    sign: Sign


@dataclass(frozen=True)
class Example:
    """One query: the ordinals of what explains it, of what was refused, and of what is no negative for it."""

    query: str
    positives: Ordinals
    refused: Ordinals
    excluded: Ordinals


@dataclass(frozen=True)
class TrainingSet:
    """Examples that have a positive, in order of first appearance.

    `outside` holds the texts of premises that the generation does not have, whose ordinals follow its own; they take
    part as positives and refused premises. `excluded` (n,) marks premises that no query may learn from, because they
    stand in other splits alone.
    """

    examples: list[Example]
    outside: list[str]
    excluded: NDArray[np.bool_]
    dropped: int

    @property
    def positives(self) -> int:
        """The number of positive pairs."""
        return sum(len(example.positives) for example in self.examples)

    @property
    def negatives(self) -> int:
        """The number of refused pairs."""
        return sum(len(example.refused) for example in self.examples)

    def triplets(self) -> NDArray[np.int64]:
        """P(q) x N(q) of every query: rows of (example, positive ordinal, refused ordinal), (t, 3)."""
        rows = [
            np.stack(np.meshgrid([n], example.positives, example.refused, indexing="ij"), axis=-1).reshape(-1, 3)
            for n, example in enumerate(self.examples)
        ]
        return np.concatenate(rows) if rows else np.empty((0, 3), dtype=np.int64)


def build_training_set(pairs: Iterable[JudgedPair], premises: Sequence[PremiseRecord], split: str) -> TrainingSet:
    """The training set of pairs over a generation's premises.

    With a `split`, a text that stands only in trees of other splits is never learned from, as query or as premise.
    A pair that is both positive and refused (in other runs or by other annotators) is neither; it is excluded.
    """
    by_id = {key: n for n, premise in enumerate(premises) for key in (*premise.aliases, premise.id)}
    by_text = {premise.text: n for n, premise in enumerate(premises)}
    allowed = {"facts", split}
    excluded = np.array([bool(split and p.splits) and not allowed & set(p.splits) for p in premises], dtype=bool)
    outside: dict[str, int] = {}
    judged: dict[str, dict[int, set[Sign]]] = defaultdict(lambda: defaultdict(set))
    dropped = 0
    for pair in pairs:
        own = by_text.get(pair.query)
        ordinal = by_text.get(pair.premise)
        if ordinal is None and not pair.premise:
            ordinal = by_id.get(pair.premise_id)
        if ordinal is None:
            ordinal = outside.setdefault(pair.premise, len(premises) + len(outside))
        foreign = ordinal < len(premises) and excluded[ordinal]
        if foreign or pair.premise == pair.query or (own is not None and excluded[own]):
            dropped += 1
            continue
        judged[pair.query][ordinal].add(pair.sign)
    examples = []
    for query, signs in judged.items():
        example = _example(query, signs, by_text.get(query))
        dropped += sum({"POSITIVE", "NEGATIVE"} <= found for found in signs.values())
        if len(example.positives):
            examples.append(example)
    return TrainingSet(examples, list(outside), excluded, dropped)


def _example(query: str, signs: dict[int, set[Sign]], own: int | None) -> Example:
    def only(sign: Sign, other: Sign) -> Ordinals:
        return np.array([n for n, found in signs.items() if sign in found and other not in found], dtype=np.int64)

    positives, refused = only("POSITIVE", "NEGATIVE"), only("NEGATIVE", "POSITIVE")
    undecided = set(signs) - set(positives.tolist()) - set(refused.tolist())
    if own is not None:
        undecided.add(own)
    return Example(query, positives, refused, np.array(sorted(undecided), dtype=np.int64))
