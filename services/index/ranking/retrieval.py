"""Answers Search and Retrieve: finds the generation and its prior, and checks what is asked; `stages.py` ranks.

The caller's label names the query encoder in the space of the generation, so that a corpus of another space needs no
other call.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

from aeenc import errors
from services.corpus.generation import Generation
from services.index.catalogue.catalogue import Catalogue
from services.index.catalogue.served import ServedGeneration
from services.index.dense.batcher import SearchBatcher
from services.index.lexical.bm25 import LexicalExecutor
from services.index.ranking.encoding import QueryEncoder, Reranker
from services.index.ranking.fusion import Prior
from services.index.ranking.stages import Call, RetrievalResult, Stages
from services.index.values import ALL, Explanation, Scope, Selection, TextQuery, Timings, VectorQuery
from services.kit.limits import Limits

T = TypeVar("T")
ON_LOOP = 64  # ids or texts: looking them up takes about a millisecond
SEARCH_HIT_BYTES = 7  # at least: an id of one letter with its two bytes of protobuf, and a float32
RETRIEVE_HIT_BYTES = 13  # at least: a message of an id, a text and a score
OPEN_PRIORS = 8


class Retrieval:
    """Answers Search and Retrieve. Search calls no other service; only ranking texts by vectors needs the encoder."""

    def __init__(
        self,
        catalogue: Catalogue,
        batcher: SearchBatcher,
        executor: LexicalExecutor,
        encoder: QueryEncoder,
        reranker: Reranker,
        limits: Limits,
    ) -> None:
        self._catalogue, self._batcher, self._limits = catalogue, batcher, limits
        self._stages = Stages(batcher, executor, encoder, reranker, asyncio.to_thread)
        self._priors: OrderedDict[tuple[str, str], tuple[Sequence[Explanation], asyncio.Future[Prior]]] = OrderedDict()

    async def search(self, query: VectorQuery, *, deadline_s: float | None = None) -> RetrievalResult:
        """Finds the nearest premises of each vector.

        Raises InvalidArgument for a bad scope or vector, SpaceMismatch for another space, NotFound, Overloaded.
        """
        started = time.perf_counter()
        query.check(self._limits)
        served = await self._served(query.scope)
        served.check_vectors(query.vectors, query.space_id)
        query.check_unit()
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
        query.check(self._limits)
        served = await self._served(query.scope)
        check_answer(len(query.texts), query.depth, served.rows, RETRIEVE_HIT_BYTES, self._limits)
        prior = await self._prior(served.generation) if query.prior else None
        selection = await select(served, query.scope)
        looked_up = len(query.texts) + sum(map(len, query.accepted))
        call = await _off_loop(looked_up, lambda: Call.of(query, served, selection, deadline, prior))
        return await self._stages.answer(call, started)

    async def _served(self, scope: Scope) -> ServedGeneration:
        open_ = self._catalogue.open.find(scope.corpus, scope.generation)
        return open_ or await self._catalogue.resolve(scope.corpus, scope.generation)

    async def _prior(self, generation: Generation) -> Prior:
        """Returns the prior over a generation, made once for all who wait for it, until the explanations change."""
        explanations, key = await self._catalogue.explanations.of(generation.corpus), (generation.corpus, generation.id)
        known = self._priors.get(key)
        if known is None or known[0] is not explanations or (known[1].done() and known[1].exception()):
            making = asyncio.to_thread(Prior.over, explanations, generation.ordinal_by_id)
            known = self._priors[key] = explanations, asyncio.ensure_future(making)
        self._priors.move_to_end(key)
        while len(self._priors) > OPEN_PRIORS:
            self._priors.popitem(last=False)
        return await asyncio.shield(known[1])


def check_answer(texts: int, k: int, rows: int, hit_bytes: int, limits: Limits) -> None:
    """Refuses a call whose answer cannot fit a message: each of its hits takes at least `hit_bytes`.

    Of a call that re-ranks, `k` is how many it re-ranks: memory holds these for every text.
    """
    hits, most = texts * min(k, rows), limits.message_bytes // hit_bytes
    if hits > most:
        raise errors.TooLarge(
            f"{texts:,} queries of {k:,} premises each are {hits:,} hits, and an answer of {limits.message_bytes:,} "
            f"bytes holds at most {most:,}; ask for fewer at once, for a smaller k, or re-rank fewer"
        )


async def select(served: ServedGeneration, scope: Scope) -> Selection:
    """Turns a scope into a selection; looks long lists of ids up off the event loop."""
    if not (scope.splits or scope.exclude_ids or scope.only_ids or scope.before_id or scope.clauses):
        return ALL
    return await _off_loop(len(scope.exclude_ids) + len(scope.only_ids), lambda: served.select(scope))


async def _off_loop(size: int, work: Callable[[], T]) -> T:
    return work() if size <= ON_LOOP else await asyncio.to_thread(work)
