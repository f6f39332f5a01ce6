"""What pairs say in the end: the last word on each, and by query who explains it, who was refused, who disagrees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from aeenc.v1 import types_pb2

POSITIVE, NEGATIVE = types_pb2.PAIR_SIGN_POSITIVE, types_pb2.PAIR_SIGN_NEGATIVE


@dataclass
class Judgements:
    """One query's premises, text -> id, in the order they were recorded. Ids may be empty."""

    positives: dict[str, str] = field(default_factory=dict)
    negatives: dict[str, str] = field(default_factory=dict)


def last_words(pairs: Iterable[types_pb2.Pair]) -> Iterator[types_pb2.Pair]:
    """Pairs in their order without those that an amended one of the same run has replaced since.

    Holds all of them, because an amendment may be the last: about a kilobyte each.
    """
    held: dict[int, types_pb2.Pair] = {}
    standing: dict[tuple[str, str, str, str], list[int]] = {}
    for number, pair in enumerate(pairs):
        origin = pair.provenance
        same = standing.setdefault((origin.run_id, pair.query, pair.premise_id, pair.premise), [])
        if origin.amended:
            for replaced in same:
                del held[replaced]
            same.clear()
        same.append(number)
        held[number] = pair
    yield from held.values()


def judgements_of(pairs: Iterable[types_pb2.Pair]) -> tuple[dict[str, Judgements], int]:
    """The judgements by query, and how many premises were both accepted and refused: those are in neither list.

    Skipped pairs say nothing, but that an amended one takes back what was said before it in its run.
    """
    by_query: dict[str, Judgements] = {}
    for pair in last_words(pairs):
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
