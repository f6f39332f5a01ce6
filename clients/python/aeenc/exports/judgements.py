"""What pairs say of each query in the end: who explains it and who was refused, without those who disagree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from aeenc.v1 import types_pb2

POSITIVE, NEGATIVE = types_pb2.PAIR_SIGN_POSITIVE, types_pb2.PAIR_SIGN_NEGATIVE


@dataclass
class Judgements:
    """One query's premises, text -> id, in the order they were recorded. Ids may be empty."""

    positives: dict[str, str] = field(default_factory=dict)
    negatives: dict[str, str] = field(default_factory=dict)


def judgements_of(pairs: Iterable[types_pb2.Pair]) -> tuple[dict[str, Judgements], int]:
    """The judgements by query, and how many premises were both accepted and refused: those are in neither list.

    Skipped pairs say nothing.
    """
    by_query: dict[str, Judgements] = {}
    for pair in pairs:
        if pair.sign in {POSITIVE, NEGATIVE}:
            judged = by_query.setdefault(pair.query, Judgements())
            side = judged.positives if pair.sign == POSITIVE else judged.negatives
            side.setdefault(pair.premise, pair.premise_id)
    conflicts = 0
    for judged in by_query.values():
        for text in judged.positives.keys() & judged.negatives.keys():
            del judged.positives[text], judged.negatives[text]
            conflicts += 1
    return by_query, conflicts
