"""From vectors or texts to premises: checks the request, has it ranked, and says in which generation.

Search asks nobody else; only ranking texts by vectors needs the encoder (ranking.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from services.index.backend import Searched
from services.index.catalogue import Catalogue
from services.index.checks import check_dimension, check_scope, check_space, check_text_query, check_unit
from services.index.corpus import ALL, Selection, ServedGeneration
from services.index.engine import SearchEngine
from services.index.explanations import Explanations
from services.index.queries import Scope, TextQuery
from services.index.ranking import RankCall, Ranker
from services.index.search import USUAL, Effort, Found
from services.kit.limits import Limits, check_count, check_texts

T = TypeVar("T")
ON_LOOP = 64  # ids or texts: about a millisecond's worth of looking up


@dataclass(frozen=True)
class Answer:
    """What was found for each query, in the generation searched. Times in seconds; `version` encoded the texts."""

    found: list[Found]
    served: Searched
    total_s: float
    queue_s: float
    compute_s: float
    encode_s: float = 0.0
    version: str = ""
    reranked_by: str = ""

    @property
    def exact(self) -> bool:
        """Whether no premise was overlooked for any query."""
        return all(one.exact for one in self.found)


class Retrieval:
    """Answers Search and Retrieve."""

    def __init__(
        self, catalogue: Catalogue, engine: SearchEngine, ranker: Ranker, explanations: Explanations, limits: Limits
    ) -> None:
        self._catalogue, self._engine = catalogue, engine
        self._ranker, self._explanations, self._limits = ranker, explanations, limits

    async def search(
        self,
        scope: Scope,
        vectors: NDArray[np.float32],
        space_id: str,
        *,
        effort: Effort = USUAL,
        deadline_s: float | None = None,
    ) -> Answer:
        """The nearest premises of each vector (n, dim), which belong to `space_id`.

        Raises InvalidArgument for a bad scope or vector, SpaceMismatch for another space, NotFound, Overloaded.
        """
        started = time.perf_counter()
        check_count(len(vectors), self._limits, "vectors")
        check_scope(scope, self._limits)
        served = await self._catalogue.resolve(scope.corpus, scope.generation)
        check_space(served, space_id)
        check_dimension(served, vectors.shape[1])
        check_unit(vectors)
        selection = await select(served, scope)
        outcome = await self._engine.search(served, vectors, scope.k, selection, effort=effort, deadline_s=deadline_s)
        total_s = time.perf_counter() - started
        return Answer(outcome.found, served, total_s, outcome.queue_s, outcome.compute_s)

    async def retrieve(self, query: TextQuery, *, deadline_s: float | None = None) -> Answer:
        """The premises that best explain each text.

        Raises what `search` and the encoder raise, FailedPrecondition for a prior or words that the corpus does not
        have, Unimplemented without a cross-encoder to re-rank with, Unavailable naming an encoder that does not answer.
        """
        started = time.perf_counter()
        deadline = None if deadline_s is None else time.monotonic() + deadline_s
        check_texts(query.texts, self._limits)
        check_scope(query.scope, self._limits)
        check_text_query(query, self._limits)
        served = await self._catalogue.resolve(query.scope.corpus, query.scope.generation)
        prior = await self._explanations.prior(served.generation) if query.prior else None
        selection = await select(served, query.scope)
        call = await _off_loop(len(query.texts), lambda: RankCall.of(query, served, selection, deadline, prior))
        ranked = await self._ranker.rank(call)
        return Answer(
            ranked.found,
            served,
            time.perf_counter() - started,
            ranked.queue_s,
            ranked.compute_s,
            ranked.encode_s,
            ranked.version,
            ranked.reranked_by,
        )


async def select(served: ServedGeneration, scope: Scope) -> Selection:
    """The selection of a scope; long lists of ids are looked up off the event loop."""
    if not scope.splits and not scope.exclude_ids:
        return ALL
    return await _off_loop(len(scope.exclude_ids), lambda: served.select(scope.splits, scope.exclude_ids))


async def _off_loop(size: int, work: Callable[[], T]) -> T:
    return work() if size <= ON_LOOP else await asyncio.to_thread(work)
