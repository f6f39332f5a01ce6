"""From Milvus's candidates to answers that are the same to the bit wherever they are computed.

Milvus proposes by float32 products; the candidates' vectors come along and are scored again as those of a flat index
are. A list is final once no premise outside the candidates can reach it; until then more candidates are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from services.corpus.generation import PremiseRecord
from services.corpus.inner_products import exact_scores
from services.index.milvus.collection import Candidates
from services.index.milvus.generation import NORM_TOLERANCE
from services.index.milvus.schema import K_MOST
from services.index.search import Found

SLACK = 8  # candidates beyond k at the first try; each costs its vector on the way here
_UNIT_ROUNDOFF = 2.0**-24  # of float32
Propose = Callable[[NDArray[np.float32], int], Sequence[Candidates]]


@dataclass(frozen=True)
class Settled:
    """What was found for each query, the premises of it by ordinal, and whether it is surely the exact answer."""

    found: list[Found]
    premises: dict[int, PremiseRecord]
    exact: bool


def settle(queries: NDArray[np.float32], k: int, propose: Propose, *, widen: bool) -> Settled:
    """The best k premises of each query (n, dim). `propose` asks Milvus for that many candidates of some queries.

    With `widen` for an index that compares with everything; an approximate one is asked once and is never exact.
    """
    results: dict[int, Found] = {}
    premises: dict[int, PremiseRecord] = {}
    pending, width, exact = list(range(len(queries))), min(k + SLACK, K_MOST), widen
    while pending:
        proposed = propose(queries[pending], width)
        for row, candidates in zip(pending, proposed, strict=True):
            found, is_final = _rescore(queries[row], candidates, k, width)
            if is_final or not widen or width == K_MOST:
                exact = exact and is_final
                results[row] = replace(found, exact=widen and is_final)
                wanted = set(found.ordinals.tolist())
                pairs = zip(candidates.ordinals.tolist(), candidates.records, strict=True)
                premises |= {ordinal: record for ordinal, record in pairs if ordinal in wanted}
        pending = [row for row in pending if row not in results]
        width = min(width * 4, K_MOST)
    return Settled([results[row] for row in range(len(queries))], premises, exact)


def _rescore(query: NDArray[np.float32], candidates: Candidates, k: int, width: int) -> tuple[Found, bool]:
    """The best k of the candidates, and whether nothing outside them can be among the best k."""
    scores = exact_scores(candidates.vectors, query.astype(np.float64))
    order = np.lexsort((candidates.ordinals, -scores))[:k]
    found = Found(candidates.ordinals[order], scores[order])
    if len(scores) < width:  # that is all there is
        return found, True
    least = float(np.nextafter(found.scores[-1], np.float32(-np.inf)))
    return found, bool(float(candidates.raw.min()) + _error(query) < least)


def _error(query: NDArray[np.float32]) -> float:
    """The error bound of a float32 inner product with a unit vector in any order of summation (Higham 2002, 3.1)."""
    norm = float(np.sqrt(np.sum(query.astype(np.float64) ** 2)))
    return 1.01 * (len(query) + 4) * _UNIT_ROUNDOFF * norm * (1.0 + NORM_TOLERANCE)
