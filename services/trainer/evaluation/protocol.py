"""The two protocols: `strict` drops a candidate whose text is the query's, `paper` keeps it (docs/evaluation.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import DataLoss, InvalidArgument
from services.trainer.evaluation.metrics import Metrics, metrics_of
from services.trainer.evaluation.ranking import gold_ranks


@dataclass(frozen=True)
class EvaluationQuery:
    """A query text and the texts of its gold premises."""

    text: str
    gold: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """Quality of one encoder on one set of queries. `average_precisions` (q,) is strict, for paired tests."""

    strict: Metrics
    paper: Metrics
    candidates: int
    queries: int
    pairs: int
    average_precisions: NDArray[np.float64]

    def to_dict(self) -> dict[str, Any]:
        """Metrics by protocol, and the counts."""
        return {
            "strict": self.strict.to_dict(),
            "paper": self.paper.to_dict(),
            "candidates": self.candidates,
            "queries": self.queries,
            "pairs": self.pairs,
        }


def merge_queries(queries: Sequence[EvaluationQuery]) -> list[EvaluationQuery]:
    """Distinct queries in order of first appearance, each with the union of its gold premises."""
    gold: dict[str, dict[str, None]] = {}
    for query in queries:
        gold.setdefault(query.text, {}).update(dict.fromkeys(query.gold))
    return [EvaluationQuery(text, tuple(premises)) for text, premises in gold.items()]


def gold_ordinals(queries: Sequence[EvaluationQuery], ordinal_by_text: Mapping[str, int]) -> list[NDArray[np.int64]]:
    """The ordinals of each query's gold premises. Raises InvalidArgument naming one that is not in the corpus."""
    ordinals = []
    for query in queries:
        for premise in query.gold:
            if premise not in ordinal_by_text:
                raise InvalidArgument(
                    f"gold premise {premise[:80]!r} of query {query.text[:80]!r} is not in the corpus; "
                    "build the corpus from the data set that the queries come from"
                )
        if not query.gold:
            raise InvalidArgument(f"query {query.text[:80]!r} has no gold premise; leave it out")
        ordinals.append(np.array([ordinal_by_text[premise] for premise in query.gold], dtype=np.int64))
    return ordinals


def evaluate(
    queries: Sequence[EvaluationQuery],
    query_vectors: NDArray[np.float32],
    premise_vectors: NDArray[np.float32],
    ordinal_by_text: Mapping[str, int],
) -> Report:
    """Ranks all premises for each distinct query and reports both protocols.

    `query_vectors` (q, dim) belong to `queries`, which are distinct (`merge_queries`); `premise_vectors` (n, dim).
    A query whose only gold premise is its own text has no strict rank and is left out of `strict`.
    """
    if not queries:
        raise InvalidArgument("there are no queries to evaluate; give at least one with a gold premise")
    if not np.isfinite(query_vectors).all():
        raise DataLoss("a query vector is not finite; evaluate another checkpoint")
    gold = gold_ordinals(queries, ordinal_by_text)
    own = [ordinal_by_text.get(query.text) for query in queries]
    kept = [ordinals[ordinals != (-1 if drop is None else drop)] for ordinals, drop in zip(gold, own, strict=True)]
    ranked = [n for n, ordinals in enumerate(kept) if len(ordinals)]
    if not ranked:
        raise InvalidArgument("every query's only gold premise is its own text; give queries with other premises")
    paper = gold_ranks(query_vectors, premise_vectors, gold, [None] * len(queries))
    strict = gold_ranks(query_vectors[ranked], premise_vectors, [kept[n] for n in ranked], [own[n] for n in ranked])
    return Report(
        strict=metrics_of(strict),
        paper=metrics_of(paper),
        candidates=len(premise_vectors),
        queries=len(queries),
        pairs=sum(len(ordinals) for ordinals in gold),
        average_precisions=np.array([np.mean(np.arange(1, len(r) + 1) / r) for r in strict]),
    )
