"""Triplets as lines of JSON: a query, a premise that explains it, and one that was seen and refused.

    {"format_version": 1, "query": …, "positive": …, "negative": …, "positive_id": …, "negative_id": …}

They are all of P(q) x N(q). A query with one side only gives none and is counted.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from aeenc.exports.judgements import Judgements, judgements_of
from aeenc.exports.whole import whole_file
from aeenc.v1 import types_pb2

FORMAT_VERSION = 1


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
    """What was written: triplets, and of how many queries; `one_sided` queries gave none, `conflicts` were left out."""

    triplets: int
    queries: int
    one_sided: int
    conflicts: int


def triplets_of(by_query: Mapping[str, Judgements], *, per_query: int = 0, seed: int = 0) -> Iterator[Triplet]:
    """All triplets, or at most `per_query` of each query (0: all), drawn from `seed`."""
    for query, judged in by_query.items():
        positives, negatives = list(judged.positives.items()), list(judged.negatives.items())
        places: Iterable[int] = range(len(positives) * len(negatives))
        if 0 < per_query < len(positives) * len(negatives):
            drawing = random.Random(f"{seed}\0{query}")  # noqa: S311 -- a sample, no secret
            places = sorted(drawing.sample(range(len(positives) * len(negatives)), per_query))
        for place in places:
            (positive, positive_id), (negative, negative_id) = (
                positives[place // len(negatives)],
                negatives[place % len(negatives)],
            )
            yield Triplet(query, positive, negative, positive_id, negative_id)


def write_triplets(path: Path | str, pairs: Iterable[types_pb2.Pair], *, per_query: int = 0, seed: int = 0) -> Triplets:
    """Writes a file of triplets. A reader sees the whole file or none of it."""
    by_query, conflicts = judgements_of(pairs)
    count = 0
    with whole_file(path) as file:
        for triplet in triplets_of(by_query, per_query=per_query, seed=seed):
            file.write(json.dumps({"format_version": FORMAT_VERSION, **asdict(triplet)}, ensure_ascii=False) + "\n")
            count += 1
    both = sum(bool(judged.positives and judged.negatives) for judged in by_query.values())
    return Triplets(count, both, len(by_query) - both, conflicts)
