"""Answers Search and Retrieve: checks the request, has it ranked (stages.py), and names the generation.

Search calls no other service. Only ranking texts by vectors needs the encoder.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from services.index.catalogue.catalogue import Catalogue
from services.index.catalogue.served import ServedGeneration
from services.index.dense.batcher import SearchBatcher
from services.index.ranking.prior import Explanations
from services.index.ranking.stages import Call, Stages
from services.index.ranking.validation import (
    RETRIEVE_HIT_BYTES,
    SEARCH_HIT_BYTES,
    check_answer,
    check_limits,
    check_text_query,
    check_vector_query,
)
from services.index.values import ALL, RetrievalResult, Scope, Selection, TextQuery, Timings, VectorQuery
from services.kit.limits import Limits

T = TypeVar("T")
ON_LOOP = 64  # ids or texts: looking them up takes about a millisecond


class Retrieval:
    """Answers Search and Retrieve."""

    def __init__(
        self, catalogue: Catalogue, batcher: SearchBatcher, stages: Stages, explanations: Explanations, limits: Limits
    ) -> None:
        self._catalogue, self._batcher = catalogue, batcher
        self._stages, self._explanations, self._limits = stages, explanations, limits

    async def search(self, query: VectorQuery, *, deadline_s: float | None = None) -> RetrievalResult:
        """Finds the nearest premises of each vector.

        Raises InvalidArgument for a bad scope or vector, SpaceMismatch for another space, NotFound, Overloaded.
        """
        started = time.perf_counter()
        check_limits(query, self._limits)
        served = await self._catalogue.resolve(query.scope.corpus, query.scope.generation)
        check_vector_query(query, served)
        check_answer(len(query.vectors), query.scope.k, served.rows, SEARCH_HIT_BYTES, self._limits)
        selection = await select(served, query.scope)
        timings = Timings()
        hits = await self._batcher.search(
            served,
            query.vectors,
            query.scope.k,
            selection,
            effort=query.effort,
            deadline_s=deadline_s,
            timings=timings,
        )
        timings.total_s = time.perf_counter() - started
        return RetrievalResult(hits, served, timings, *served.unknown(query.scope))

    async def retrieve(self, query: TextQuery, *, deadline_s: float | None = None) -> RetrievalResult:
        """Finds the premises that best explain each text.

        Raises what `search` and the encoder raise, FailedPrecondition when the corpus has no explanations or lexical
        index, Unimplemented when there is no cross-encoder, Unavailable naming an encoder that does not answer.
        """
        started = time.perf_counter()
        deadline = None if deadline_s is None else time.monotonic() + deadline_s
        check_text_query(query, self._limits)
        served = await self._catalogue.resolve(query.scope.corpus, query.scope.generation)
        check_answer(len(query.texts), query.depth, served.rows, RETRIEVE_HIT_BYTES, self._limits)
        prior = await self._explanations.prior(served.generation) if query.prior else None
        selection = await select(served, query.scope)
        looked_up = len(query.texts) + sum(map(len, query.accepted))
        call = await _off_loop(looked_up, lambda: Call.of(query, served, selection, deadline, prior))
        hits = await self._stages.rank(call)
        call.timings.total_s = time.perf_counter() - started
        unknown = served.unknown(query.scope)
        return RetrievalResult(hits, served, call.timings, *unknown, call.version, call.precision, call.reranked_by)


async def select(served: ServedGeneration, scope: Scope) -> Selection:
    """Turns a scope into a selection; looks long lists of ids up off the event loop."""
    if not (scope.splits or scope.exclude_ids or scope.only_ids or scope.before_id or scope.clauses):
        return ALL
    return await _off_loop(len(scope.exclude_ids) + len(scope.only_ids), lambda: served.select(scope))


async def _off_loop(size: int, work: Callable[[], T]) -> T:
    return work() if size <= ON_LOOP else await asyncio.to_thread(work)
