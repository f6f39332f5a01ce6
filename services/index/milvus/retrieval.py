"""Search and Retrieve on a Milvus: the same checks and the same answers as on files, from one call of Milvus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.generation import PremiseRecord
from services.index.checks import (
    check_dimension,
    check_scope,
    check_space,
    check_text_query,
    check_unit,
)
from services.index.encoding import EncodeKey, QueryEncoder
from services.index.milvus import schema
from services.index.milvus.catalogue import MilvusCatalogue
from services.index.milvus.collection import Candidates
from services.index.milvus.generation import MilvusGeneration
from services.index.milvus.link import Absent, MilvusLink
from services.index.milvus.rescoring import Settled, settle
from services.index.queries import Scope, TextQuery
from services.index.ranking import EXPLAINED, without_mean
from services.index.reranking import Reranker
from services.index.retrieval import Answer
from services.index.search import USUAL, Effort, Found
from services.kit.limits import Limits, check_count, check_texts

RETRY_AFTER_S = 0.05
IDS_AT_ONCE = 1000  # of premises accepted, whose vectors come along


@dataclass(frozen=True)
class _Sought:
    """What was found, where, and how long it took in seconds."""

    served: MilvusGeneration
    settled: Settled
    compute_s: float


@dataclass(frozen=True)
class _Accepted:
    """The premises accepted for one text, each once: `vectors` (premises, dim)."""

    ids: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()
    vectors: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), dtype=np.float32))

    @classmethod
    def of(cls, premises: Iterable[tuple[PremiseRecord, NDArray[np.float32]]]) -> _Accepted:
        records, vectors = [record for record, _ in premises], [vector for _, vector in premises]
        if not records:
            return cls()
        return cls(frozenset(one.id for one in records), tuple(one.text for one in records), np.stack(vectors))


class MilvusRetrieval:
    """Answers Search and Retrieve. At most `max_queued` queries are under way; beyond, calls are refused."""

    def __init__(
        self,
        catalogue: MilvusCatalogue,
        link: MilvusLink,
        encoder: QueryEncoder,
        reranker: Reranker,
        limits: Limits,
        *,
        max_queued: int = 4096,
    ) -> None:
        self._catalogue = catalogue
        self._link = link
        self._encoder, self._reranker = encoder, reranker
        self._limits = limits
        self._max_queued = max_queued
        self._under_way = 0

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

        Raises InvalidArgument for a bad scope or vector, SpaceMismatch for another space, NotFound, Overloaded,
        Unavailable when Milvus is away, Unimplemented for an exact search where the index is approximate.
        """
        started = time.perf_counter()
        check_count(len(vectors), self._limits, "vectors")
        check_scope(scope, self._limits)
        served = await self._catalogue.resolve(scope.corpus, scope.generation)
        check_space(served, space_id)
        check_dimension(served, vectors.shape[1])
        check_unit(vectors)
        if effort.exact and not served.is_exact:
            raise errors.Unimplemented(
                f"params.exact is not in the back end milvus for generation {served.id}, whose index is approximate; "
                "use ef_search, or build it with AEENC_INDEX_MILVUS_ENGINE=flat"
            )
        sought = await self._seek(served, scope, vectors, scope.k, deadline_s, effort.ef_search)
        return _answer(sought, sought.settled.found, started)

    async def retrieve(self, query: TextQuery, *, deadline_s: float | None = None) -> Answer:
        """The premises that best explain each text. Raises what `search` and the encoder raise, and Unimplemented."""
        started = time.perf_counter()

        def left_s() -> float | None:
            return None if deadline_s is None else deadline_s - (time.perf_counter() - started)

        check_implemented(query)
        check_texts(query.texts, self._limits)
        check_scope(query.scope, self._limits)
        check_text_query(query, self._limits)
        served = await self._catalogue.resolve(query.scope.corpus, query.scope.generation)
        accepted = await self._accepted(served, query)
        texts = [" ".join([text, *own.texts]) for text, own in zip(query.texts, accepted, strict=True)]
        asked_at, key = time.perf_counter(), EncodeKey.of(query, served.generation.space_id)
        encoded = await self._encoder.encode(texts, key, request_id=query.request_id, left_s=left_s())
        encode_s = time.perf_counter() - asked_at
        check_space(served, encoded.space_id)
        check_dimension(served, encoded.vectors.shape[1])
        vectors = encoded.vectors
        if query.accepted:
            vectors = without_mean(vectors, [own.vectors for own in accepted], EXPLAINED)
        depth = query.rerank or query.scope.k
        k = depth + int(query.drop_self) + max(len(own.ids) for own in accepted)  # texts are distinct: one is its own
        sought = await self._seek(served, query.scope, vectors, k, left_s())
        found = [
            _without(one, text if query.drop_self else None, own.ids, sought.settled, depth)
            for one, text, own in zip(sought.settled.found, query.texts, accepted, strict=True)
        ]
        if not query.rerank:
            return _answer(sought, found, started, encode_s, encoded.version)
        premises = [[sought.settled.premises[n].text for n in one.ordinals.tolist()] for one in found]
        asked_at = time.perf_counter()
        found, reranked_by = await self._reranker.rerank(
            query.texts, found, premises, weight=query.rerank_weight, left_s=left_s()
        )
        found = [Found(one.ordinals[: query.scope.k], one.scores[: query.scope.k], one.exact) for one in found]
        encode_s += time.perf_counter() - asked_at
        return _answer(sought, found, started, encode_s, encoded.version, reranked_by)

    async def _accepted(self, served: MilvusGeneration, query: TextQuery) -> list[_Accepted]:
        """What was accepted for each text. Raises InvalidArgument for an id that the generation lacks."""
        if not query.accepted:
            return [_Accepted()] * len(query.texts)
        ids = list(dict.fromkeys(one for own in query.accepted for one in own))
        known: dict[str, tuple[PremiseRecord, NDArray[np.float32]]] = {}
        for start in range(0, len(ids), IDS_AT_ONCE):
            known |= await self._link.read(served.collection.with_vectors, ids[start : start + IDS_AT_ONCE])
        accepted = []
        for text, own in enumerate(query.accepted):
            if unknown := [one for one in own if one not in known]:
                raise errors.InvalidArgument.field(
                    f"accepted[{text}].premise_ids",
                    f"{unknown[0]!r} is no premise of generation {served.id}; send ids that Retrieve answered",
                )
            premises = {known[one][0].id: known[one] for one in own}  # an alias names the premise again
            accepted.append(_Accepted.of(premises.values()))
        return accepted

    async def _seek(
        self,
        served: MilvusGeneration,
        scope: Scope,
        vectors: NDArray[np.float32],
        k: int,
        deadline_s: float | None,
        breadth: int = 0,
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
                    settled = await self._link.read(settled_by, served, scope, vectors, k, deadline_s, breadth)
                except Absent:  # deleted by another process since the catalogue was read
                    await self._catalogue.refresh()
                    served = await self._catalogue.resolve(scope.corpus, scope.generation)
                    settled = await self._link.read(settled_by, served, scope, vectors, k, deadline_s, breadth)
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
    if query.negative_feedback:
        raise errors.Unimplemented(
            f"negative_feedback {query.negative_feedback:g} is not in the back end milvus; set it to 0"
        )
    if query.prior:
        raise errors.Unimplemented(f"prior {query.prior:g} is not in the back end milvus; set it to 0")


def settled_by(
    served: MilvusGeneration,
    scope: Scope,
    vectors: NDArray[np.float32],
    k: int,
    deadline_s: float | None,
    breadth: int = 0,
) -> Settled:
    """Blocks on Milvus and computes: run it in a thread."""
    expression = schema.allowed(scope.splits, scope.exclude_ids)
    timeout_s = None if deadline_s is None else max(min(deadline_s, served.link.timeout_s), 0.001)

    def propose(queries: NDArray[np.float32], width: int) -> Sequence[Candidates]:
        return served.collection.candidates(queries, width, expression, breadth=breadth, timeout_s=timeout_s)

    return settle(vectors, k, propose, widen=served.is_exact)


def _without(found: Found, text: str | None, ids: frozenset[str], settled: Settled, k: int) -> Found:
    """The best k but the premise of the query's own text and those accepted before."""
    premises = [settled.premises[ordinal] for ordinal in found.ordinals.tolist()]
    keep = np.array([one.text != text and one.id not in ids for one in premises], dtype=bool)
    return Found(found.ordinals[keep][:k], found.scores[keep][:k], found.exact)


def _answer(
    sought: _Sought,
    found: list[Found],
    started: float,
    encode_s: float = 0.0,
    version: str = "",
    reranked_by: str = "",
) -> Answer:
    return Answer(
        found,
        sought.served.with_premises(sought.settled.premises),
        time.perf_counter() - started,
        0.0,
        sought.compute_s,
        encode_s,
        version,
        reranked_by,
    )
