"""Judgements from pairs: the last word on each, by query what explains it and what was refused, and triplets of both.

A file of triplets holds lines of JSON, all of P(q) x N(q); a query with one side only gives none and is counted:

    {"format_version": 1, "query": …, "positive": …, "negative": …, "positive_id": …, "negative_id": …}
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from aeenc import values
from aeenc.evaluation.graded import check_grade
from aeenc.files.whole import write_json_lines

FORMAT_VERSION = 1


@dataclass
class Judgements:
    """One query's premises, text -> id, in the order they were recorded. Ids may be empty; a grade not told is 1."""

    positives: dict[str, str] = field(default_factory=dict)
    negatives: dict[str, str] = field(default_factory=dict)
    grades: dict[str, float] = field(default_factory=dict)


def last_words(pairs: Iterable[values.Pair]) -> Iterator[values.Pair]:
    """Yields pairs in order without those that a later amended pair of the same run replaces.

    Holds all pairs in memory, about a kilobyte each, because the last one may be an amendment.
    """
    held: dict[int, values.Pair] = {}
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


def judgements_of(pairs: Iterable[values.Pair], *, grades: bool = False) -> tuple[dict[str, Judgements], int]:
    """Returns judgements by query, and the number of premises both accepted and refused, which are in neither list.

    Skipped pairs add nothing, but an amended one takes back the earlier verdicts of its run. With `grades`, accepted
    premises keep the grades of their oracle, the highest one each; raises InvalidArgument for one outside 0 to 100.
    """
    by_query: dict[str, Judgements] = {}
    for pair in last_words(pairs):
        if pair.sign in {values.PairSign.POSITIVE, values.PairSign.NEGATIVE}:
            judged = by_query.setdefault(pair.query, Judgements())
            side = judged.positives if pair.sign == values.PairSign.POSITIVE else judged.negatives
            side.setdefault(pair.premise, pair.premise_id)
            if grades and pair.sign == values.PairSign.POSITIVE and (grade := pair.provenance.grade):
                judged.grades[pair.premise] = max(check_grade(grade), judged.grades.get(pair.premise, 0.0))
    conflicts = 0
    for judged in by_query.values():
        for text in judged.positives.keys() & judged.negatives.keys():
            del judged.positives[text], judged.negatives[text]
            judged.grades.pop(text, None)
            conflicts += 1
    return by_query, conflicts


@dataclass(frozen=True)
class Triplet:
    """Three texts and the premises' ids."""

    query: str
    positive: str
    negative: str
    positive_id: str
    negative_id: str


@dataclass(frozen=True)
class Triplets:
    """Counts of a file of triplets. `one_sided` queries gave none; `conflicts` were left out."""

    triplets: int
    queries: int
    one_sided: int
    conflicts: int


def triplets_of(by_query: Mapping[str, Judgements], *, per_query: int = 0, seed: int = 0) -> Iterator[Triplet]:
    """Yields all triplets, or at most `per_query` of each query (0: all), drawn from `seed`."""
    for query, judged in by_query.items():
        positives, negatives = list(judged.positives.items()), list(judged.negatives.items())
        places: Iterable[int] = range(len(positives) * len(negatives))
        if 0 < per_query < len(positives) * len(negatives):
            drawing = random.Random(f"{seed}\0{query}")  # noqa: S311 -- draws a sample, protects nothing
            places = sorted(drawing.sample(range(len(positives) * len(negatives)), per_query))
        for place in places:
            (positive, positive_id), (negative, negative_id) = (
                positives[place // len(negatives)],
                negatives[place % len(negatives)],
            )
            yield Triplet(query, positive, negative, positive_id, negative_id)


def write_triplets(path: Path | str, pairs: Iterable[values.Pair], *, per_query: int = 0, seed: int = 0) -> Triplets:
    """Writes a file of triplets. A reader sees the whole file or none of it."""
    by_query, conflicts = judgements_of(pairs)
    triplets = triplets_of(by_query, per_query=per_query, seed=seed)
    count = write_json_lines(path, ({"format_version": FORMAT_VERSION, **asdict(one)} for one in triplets))
    both = sum(bool(judged.positives and judged.negatives) for judged in by_query.values())
    return Triplets(count, both, len(by_query) - both, conflicts)
