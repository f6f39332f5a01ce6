"""Search and Retrieve on a Milvus: the same checks and the same answers as on files, from one call of Milvus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.index.milvus import schema
from services.index.milvus.catalogue import MilvusCatalogue
from services.index.milvus.collection import Candidates
from services.index.milvus.generation import MilvusGeneration
from services.index.milvus.link import Absent, MilvusLink
from services.index.milvus.rescoring import Settled, settle
from services.index.query_encoder import QueryEncoder
from services.index.retrieval import (
    Answer,
    Scope,
    TextQuery,
    check_dimension,
    check_finite,
    check_scope,
    check_space,
    check_unit,
)
from services.index.search import Found
from services.kit.checks import Limits, check_count, check_texts

RETRY_AFTER_S = 0.05


@dataclass(frozen=True)
class _Sought:
    """What was found, where, and how long it took in seconds."""

    served: MilvusGeneration
    settled: Settled
    compute_s: float


class MilvusRetrieval:
    """Answers Search and Retrieve. At most `max_queued` queries are under way; beyond, calls are refused."""

    def __init__(
        self,
        catalogue: MilvusCatalogue,
        link: MilvusLink,
        encoder: QueryEncoder,
        limits: Limits,
        *,
        max_queued: int = 4096,
    ) -> None:
        self._catalogue = catalogue
        self._link = link
        self._encoder = encoder
        self._limits = limits
        self._max_queued = max_queued
        self._under_way = 0

    async def search(
        self, scope: Scope, vectors: NDArray[np.float32], space_id: str, *, deadline_s: float | None = None
    ) -> Answer:
        """The nearest premises of each vector (n, dim), which belong to `space_id`.

        Raises InvalidArgument for a bad scope or vector, SpaceMismatch for another space, NotFound, Overloaded,
        Unavailable when Milvus is away.
        """
        started = time.perf_counter()
        check_count(len(vectors), self._limits, "vectors")
        check_scope(scope, self._limits)
        check_finite(vectors)
        served = await self._catalogue.resolve(scope.corpus, scope.generation)
        check_space(served, space_id)
        check_dimension(served, vectors.shape[1])
        check_unit(vectors)
        sought = await self._seek(served, scope, vectors, scope.k, deadline_s)
        return _answer(sought, sought.settled.found, started)

    async def retrieve(self, query: TextQuery, *, deadline_s: float | None = None) -> Answer:
        """The premises that best explain each text. Raises what `search` and the encoder raise, and Unimplemented."""
        started = time.perf_counter()
        check_implemented(query)
        check_texts(query.texts, self._limits)
        check_scope(query.scope, self._limits)
        served = await self._catalogue.resolve(query.scope.corpus, query.scope.generation)
        encoded = await self._encoder.encode(query, served.generation.space_id, deadline_s=deadline_s)
        encode_s = time.perf_counter() - started
        check_space(served, encoded.space_id)
        check_dimension(served, encoded.vectors.shape[1])
        k = query.scope.k + int(query.drop_self)  # texts are distinct, so at most one premise is the query's own
        left_s = None if deadline_s is None else deadline_s - encode_s
        sought = await self._seek(served, query.scope, encoded.vectors, k, left_s)
        found = sought.settled.found
        if query.drop_self:
            found = [
                _without(one, text, sought.settled, query.scope.k) for one, text in zip(found, query.texts, strict=True)
            ]
        return _answer(sought, found, started, encode_s, encoded.model_version)

    async def _seek(
        self,
        served: MilvusGeneration,
        scope: Scope,
        vectors: NDArray[np.float32],
        k: int,
        deadline_s: float | None,
    ) -> _Sought:
        if self._under_way and self._under_way + len(vectors) > self._max_queued:
            raise errors.Overloaded(
                f"{self._under_way:,} queries are at Milvus, the limit is {self._max_queued:,}; come back later",
                retry_after_s=RETRY_AFTER_S,
            )
        started = time.perf_counter()
        self._under_way += len(vectors)
        try:
            async with asyncio.timeout(deadline_s):
                try:
                    settled = await self._link.read(settled_by, served, scope, vectors, k, deadline_s)
                except Absent:  # deleted by another process since the catalogue was read
                    await self._catalogue.refresh()
                    served = await self._catalogue.resolve(scope.corpus, scope.generation)
                    settled = await self._link.read(settled_by, served, scope, vectors, k, deadline_s)
        except TimeoutError:
            raise errors.DeadlineExceeded("the call's time was over before Milvus answered; allow more time") from None
        finally:
            self._under_way -= len(vectors)
        return _Sought(served, settled, time.perf_counter() - started)


def check_implemented(query: TextQuery) -> None:
    """Refuses what this back end does not have, and names what to use."""
    if query.mode != "DENSE":
        raise errors.Unimplemented(
            f"mode {query.mode} is not in the back end milvus; use RETRIEVE_MODE_DENSE, or AEENC_INDEX_BACKEND=faiss"
        )
    if query.rerank:
        raise errors.Unimplemented(f"rerank {query.rerank} is not in the back end milvus; set it to 0")
    if query.prior:
        raise errors.Unimplemented(f"prior {query.prior:g} is not in the back end milvus; set it to 0")
    if query.accepted:
        raise errors.Unimplemented(
            "accepted premises are not in the back end milvus; use exclude_ids to leave them out"
        )


def settled_by(
    served: MilvusGeneration, scope: Scope, vectors: NDArray[np.float32], k: int, deadline_s: float | None
) -> Settled:
    """Blocks on Milvus and computes: run it in a thread."""
    expression = schema.allowed(scope.splits, scope.exclude_ids)
    timeout_s = None if deadline_s is None else max(min(deadline_s, served.link.timeout_s), 0.001)

    def propose(queries: NDArray[np.float32], width: int) -> Sequence[Candidates]:
        return served.collection.candidates(queries, width, expression, timeout_s=timeout_s)

    return settle(vectors, k, propose, widen=served.is_exact)


def _without(found: Found, text: str, settled: Settled, k: int) -> Found:
    """The best k but the premise that has the query's own text."""
    keep = np.array([settled.premises[ordinal].text != text for ordinal in found.ordinals.tolist()], dtype=bool)
    return Found(found.ordinals[keep][:k], found.scores[keep][:k])


def _answer(sought: _Sought, found: list[Found], started: float, encode_s: float = 0.0, version: str = "") -> Answer:
    return Answer(
        found,
        sought.served.with_premises(sought.settled.premises),
        time.perf_counter() - started,
        0.0,
        sought.compute_s,
        encode_s,
        version,
        exact=sought.settled.exact,
    )
