"""Search by another system, which holds the vectors as well: it proposes, the generation's own vectors score.

    queries ── the other system: more than k ordinals ──► scores of the files' vectors ──► others out of reach? ──► hits
                         ▲                                                                       │ no
                         └───────────────────────── four times as many ◄─────────────────────────┘

Of a system that compares a query with every premise, the hits are those of FlatIndex to the bit. An approximate one is
asked once, and its hits are never exact. Asking is waiting, so the batcher does it in `threads` of the system.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.index.dense.exact import SLACK, FlatIndex, is_out_of_reach, rounding_bound
from services.index.values import DEFAULT_EFFORT, Effort, SearchHits, Selection


class RemoteProposer(Protocol):
    """A system that holds the vectors of one generation. `exact`: it compares a query with every premise.

    It gives at most `most` ordinals for a query. Calls that wait for it run in `threads`.
    """

    exact: bool
    most: int
    threads: ThreadPoolExecutor

    def propose(
        self, queries: NDArray[np.float32], width: int, selection: Selection, breadth: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Yields for each query (n, dim) at most `width` selected ordinals and their products in float32.

        It has them all when there are fewer. `breadth` is that of an approximate search; 0 takes the default.
        """


class RemoteIndex:
    """Searches by what a system proposes over the vectors of `flat`."""

    def __init__(self, flat: FlatIndex, proposer: RemoteProposer) -> None:
        self.vectors: NDArray[Any] = flat.vectors
        self.rows, self.dim = flat.rows, flat.dim
        self.exact, self.threads = proposer.exact, proposer.threads
        self._flat, self._proposer = flat, proposer

    def steps(
        self, queries: NDArray[np.float32], k: int, selection: Selection, effort: Effort = DEFAULT_EFFORT
    ) -> Iterator[list[SearchHits] | None]:
        """Yields None after each question but the last, then the k nearest selected rows of each query (n, dim).

        Raises Unimplemented for an exact search where the system is approximate.
        """
        if effort.exact and not self.exact:
            raise errors.Unimplemented(
                "params.exact is not in the engine milvus-hnsw, which is approximate; use ef_search, or build the "
                "corpus with AEENC_INDEX_MILVUS_ENGINE=flat"
            )
        results: dict[int, SearchHits] = {}
        pending, width = np.arange(len(queries)), min(k + SLACK, self._proposer.most)
        while True:
            proposed = self._proposer.propose(queries[pending], width, selection, effort.ef_search)
            for row, (ordinals, products) in zip(pending.tolist(), proposed, strict=True):
                hits = self._scored(queries[row], ordinals, products, k, width)
                if hits.exact or not self.exact or width == self._proposer.most:
                    results[row] = hits
            pending = np.array([row for row in pending.tolist() if row not in results], dtype=np.int64)
            if not len(pending):
                break
            width = min(4 * width, self._proposer.most)
            yield None
        yield [results[row] for row in range(len(queries))]

    def _scored(
        self,
        query: NDArray[np.float32],
        ordinals: NDArray[np.int64],
        products: NDArray[np.float32],
        k: int,
        width: int,
    ) -> SearchHits:
        """The best k of what was proposed; exact if nothing else can be among them."""
        hits = self._flat.rescore(query, ordinals[(ordinals >= 0) & (ordinals < self.rows)], k)
        is_final = len(ordinals) < width
        if not is_final and len(hits.ordinals) == k:
            ceiling = float(products.min()) + rounding_bound(query[None], self._flat.largest_norm)
            is_final = bool(is_out_of_reach(ceiling, hits.scores[-1:])[0])
        return replace(hits, exact=self.exact and is_final)
