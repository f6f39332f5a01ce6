"""Strict MAP of Retrieve in all its modes on EntailmentBank's queries (docs/evaluation.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aeenc import IndexClient
from aeenc.evaluation import Metrics, metrics_of
from aeenc.trees import Dataset
from services.trainer.evaluation.protocol import EvaluationQuery, merge_queries

DEPTH = 1000
BEYOND = 10**9  # the rank of what is not among the first DEPTH: it adds nothing
TOGETHER = 32


class Queries:
    """The distinct queries of a split with a gold premise that is not the query's own text."""

    def __init__(self, dataset: Dataset, split: str) -> None:
        merged = merge_queries([EvaluationQuery(one.text, one.gold) for one in dataset.queries(split)])
        kept = [EvaluationQuery(one.text, tuple(text for text in one.gold if text != one.text)) for one in merged]
        self.queries = [one for one in kept if one.gold]

    async def ask(self, index: IndexClient, corpus: str, **options: Any) -> Metrics:
        """The quality of what the index answers."""
        lists = await _asked(index, corpus, self.queries, **options)
        return metrics_of([_ranks(one.gold, found) for one, found in zip(self.queries, lists, strict=True)])


async def ask_for_the_others(
    index: IndexClient, corpus: str, queries: Sequence[EvaluationQuery], ids: Mapping[str, str], **options: Any
) -> tuple[float, float]:
    """MAP of the gold premises but the nearest one, without telling the index of that one and with it as accepted.

    Of queries with two gold premises or more; `ids` has the premises' ids by text.
    """
    queries = [one for one in queries if len(one.gold) > 1]
    order = await _asked(index, corpus, queries)
    nearest = [min(one.gold, key=_position(found)) for one, found in zip(queries, order, strict=True)]
    accepted = [[ids[text]] for text in nearest]
    values = []
    for told in ([], accepted):
        lists = await _asked(index, corpus, queries, told, **options)
        ranks = [
            _ranks([text for text in one.gold if text != known], [text for text in found if text != known])
            for one, known, found in zip(queries, nearest, lists, strict=True)
        ]
        values.append(metrics_of(ranks).map)
    return values[0], values[1]


async def _asked(
    index: IndexClient,
    corpus: str,
    queries: Sequence[EvaluationQuery],
    accepted: Sequence[Sequence[str]] = (),
    **options: Any,
) -> list[list[str]]:
    """The texts found for each query, best first."""
    found: list[list[str]] = []
    for start in range(0, len(queries), TOGETHER):
        part = slice(start, start + TOGETHER)
        texts = [one.text for one in queries[part]]
        answer = await index.retrieve(corpus, texts, k=DEPTH, accepted=accepted[part], timeout_s=120.0, **options)
        found += [[hit.text for hit in hits] for hits in answer]
    return found


def _position(found: Sequence[str]) -> Callable[[str], int]:
    ranks = {text: rank for rank, text in enumerate(found, start=1)}
    return lambda text: ranks.get(text, BEYOND)


def _ranks(gold: Sequence[str], found: Sequence[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(sorted(map(_position(found), gold)), dtype=np.int64)
