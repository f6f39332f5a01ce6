"""Search and Retrieve on a Milvus: the same checks and answers as on files, from one call of Milvus.

    query vectors ──► Milvus: k + slack candidates with vectors ──► float64 re-scoring ──► out of reach? ──► SearchHits
                          ▲                                                                    │ no
                          └────────────────────── four times as many ◄─────────────────────────┘

Milvus proposes by float32 products. The candidates' vectors come along and are scored again as those of a flat index
are (dense/exact.py), so that answers are the same to the bit wherever they are computed. An approximate index is asked
once, and its answer is never exact.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.generation import PremiseRecord
from services.corpus.inner_products import exact_scores
from services.index.dense.exact import is_out_of_reach, rounding_bound
from services.index.milvus import schema
from services.index.milvus.catalogue import MilvusCatalogue
from services.index.milvus.generation import NORM_TOLERANCE, Candidates, MilvusGeneration
from services.index.milvus.link import MilvusLink, MilvusNotFound
from services.index.milvus.schema import K_MOST
from services.index.ranking.encoding import EncodeKey, QueryEncoder, Reranker
from services.index.ranking.fusion import rocchio_feedback
from services.index.ranking.ranker import EXPLAINED
from services.index.ranking.validation import (
    check_accepted,
    check_limits,
    check_text_query,
    check_vector_query,
    check_vectors,
)
from services.index.values import PremiseLookup, QueueLimit, RetrievalResult, Scope, SearchHits, TextQuery, VectorQuery
from services.kit.limits import Limits

IDS_AT_ONCE = 1000  # of accepted premises, whose vectors come along
SLACK = 8  # candidates beyond k in the first attempt; each brings its vector along
Propose = Callable[[NDArray[np.float32], int], Sequence[Candidates]]


@dataclass(frozen=True)
class _AcceptedPremises:
    """The premises accepted for one text, each once: `vectors` (premises, dim)."""

    ids: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()
    vectors: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), dtype=np.float32))

    @classmethod
    def of(cls, premises: Iterable[tuple[PremiseRecord, NDArray[np.float32]]]) -> _AcceptedPremises:
        records, vectors = [record for record, _ in premises], [vector for _, vector in premises]
        if not records:
            return cls()
        return cls(frozenset(one.id for one in records), tuple(one.text for one in records), np.stack(vectors))


class _Deadline:
    """The end of a call's time; None: it has no end."""

    def __init__(self, deadline_s: float | None) -> None:
        self._end = None if deadline_s is None else time.monotonic() + deadline_s

    @property
    def left_s(self) -> float | None:
        """The seconds left."""
        return None if self._end is None else self._end - time.monotonic()


class MilvusRetrieval:
    """Answers Search and Retrieve from Milvus. It refuses calls beyond `max_queued` queries under way."""

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
        self._queue = QueueLimit(max_queued, "queries are at Milvus")

    async def search(self, query: VectorQuery, *, deadline_s: float | None = None) -> RetrievalResult:
        """Finds the nearest premises of each vector.

        Raises InvalidArgument for a bad scope or vector, SpaceMismatch for another space, NotFound, Overloaded,
        Unavailable when Milvus is away, Unimplemented for an exact search where the index is approximate.
        """
        started, clock = time.perf_counter(), _Deadline(deadline_s)
        check_limits(query, self._limits)
        scope, effort = query.scope, query.effort

        async def answer(served: MilvusGeneration) -> RetrievalResult:
            check_vector_query(query, served)
            if effort.exact and not served.is_exact:
                raise errors.Unimplemented(
                    f"params.exact is not in the back end milvus for generation {served.id}, whose index is "
                    "approximate; use ef_search, or build it with AEENC_INDEX_MILVUS_ENGINE=flat"
                )
            return await self._search(
                served, scope, query.vectors, scope.k, left_s=clock.left_s, breadth=effort.ef_search
            )

        result = await self._in_generation(scope, answer)
        return replace(result, total_s=time.perf_counter() - started)

    async def retrieve(self, query: TextQuery, *, deadline_s: float | None = None) -> RetrievalResult:
        """Finds the premises that best explain each text. Raises what `search` and the encoder raise."""
        started, clock = time.perf_counter(), _Deadline(deadline_s)
        check_implemented(query)
        check_text_query(query, self._limits)
        result = await self._in_generation(query.scope, lambda served: self._retrieve(served, query, clock))
        return replace(result, total_s=time.perf_counter() - started)

    async def _in_generation(
        self, scope: Scope, answer: Callable[[MilvusGeneration], Awaitable[RetrievalResult]]
    ) -> RetrievalResult:
        """Answers from the generation that the scope names.

        One that another process deleted since the catalogue was read gives way to the one that is active now, which may
        be of another space: every check is made again. What was checked before a search holds for its answer, whatever
        the alias does meanwhile: a search names the collection, which belongs to one generation for ever.
        """
        served = await self._catalogue.resolve(scope.corpus, scope.generation)
        try:
            return await answer(served)
        except MilvusNotFound:
            await self._catalogue.refresh()
            return await answer(await self._catalogue.resolve(scope.corpus, scope.generation))

    async def _retrieve(self, served: MilvusGeneration, query: TextQuery, clock: _Deadline) -> RetrievalResult:
        accepted = await self._accepted(served, query)
        texts = [" ".join([text, *own.texts]) for text, own in zip(query.texts, accepted, strict=True)]
        asked_at, key = time.perf_counter(), EncodeKey.of(query, served.generation.space_id)
        encoded = await self._encoder.encode(texts, key, request_id=query.request_id, left_s=clock.left_s)
        encode_s = time.perf_counter() - asked_at
        check_vectors(served, encoded.vectors, encoded.space_id)
        vectors = encoded.vectors
        if query.accepted:
            vectors = rocchio_feedback(vectors, [own.vectors for own in accepted], EXPLAINED)
        depth = query.rerank or query.scope.k
        own_texts = int(query.drop_self)  # texts are distinct: one premise at most is the query's own
        widths = [depth + own_texts + len(own.ids) for own in accepted]
        result = await self._search_each(served, query.scope, vectors, widths, clock)
        premises, reranked_by = result.served.generation.premises, ""
        hits = [
            _without(one, text if query.drop_self else None, own.ids, premises, depth)
            for one, text, own in zip(result.hits, query.texts, accepted, strict=True)
        ]
        if query.rerank:
            found_texts = [[premises[n].text for n in one.ordinals.tolist()] for one in hits]
            asked_at = time.perf_counter()
            hits, reranked_by = await self._reranker.rerank(query, hits, found_texts, left_s=clock.left_s)
            encode_s += time.perf_counter() - asked_at
        return replace(
            result,
            hits=hits,
            encode_s=encode_s,
            version=encoded.version,
            reranked_by=reranked_by,
        )

    async def _accepted(self, served: MilvusGeneration, query: TextQuery) -> list[_AcceptedPremises]:
        """Reads the premises accepted for each text. Raises InvalidArgument for an id that the generation lacks."""
        if not query.accepted:
            return [_AcceptedPremises()] * len(query.texts)
        ids = list(dict.fromkeys(one for own in query.accepted for one in own))
        known: dict[str, tuple[PremiseRecord, NDArray[np.float32]]] = {}
        for start in range(0, len(ids), IDS_AT_ONCE):
            known |= await self._link.read(served.collection.with_vectors, ids[start : start + IDS_AT_ONCE])
        accepted = []
        for text, own in enumerate(query.accepted):
            check_accepted(served, text, [one for one in own if one not in known])
            premises = {known[one][0].id: known[one] for one in own}  # an alias may name a premise again
            accepted.append(_AcceptedPremises.of(premises.values()))
        return accepted

    async def _search_each(
        self,
        served: MilvusGeneration,
        scope: Scope,
        vectors: NDArray[np.float32],
        widths: Sequence[int],
        clock: _Deadline,
    ) -> RetrievalResult:
        """Finds for each vector (n, dim) its own number of premises.

        What an approximate index overlooks depends on that number, and must not depend on the other texts of a call.
        """
        if served.is_exact:
            return await self._search(served, scope, vectors, max(widths), left_s=clock.left_s)
        hits: dict[int, SearchHits] = {}
        premises: dict[int, PremiseRecord] = {}
        compute_s = 0.0
        for width in sorted(set(widths)):
            rows = [row for row, own in enumerate(widths) if own == width]
            part = await self._search(served, scope, vectors[rows], width, left_s=clock.left_s)
            hits |= dict(zip(rows, part.hits, strict=True))
            found = part.served.generation.premises
            premises |= {n: found[n] for one in part.hits for n in one.ordinals.tolist()}
            compute_s += part.compute_s
        ordered = [hits[row] for row in range(len(widths))]
        return RetrievalResult(ordered, served.with_premises(premises), compute_s, 0.0, compute_s)

    async def _search(
        self,
        served: MilvusGeneration,
        scope: Scope,
        vectors: NDArray[np.float32],
        k: int,
        *,
        left_s: float | None,
        breadth: int = 0,
    ) -> RetrievalResult:
        """Searches by vectors (n, dim). The result has the time of Milvus alone."""
        left = threading.Event()
        with self._queue.admitted(len(vectors)):
            started = time.perf_counter()
            try:
                async with asyncio.timeout(left_s):
                    rescored = await self._link.read(
                        search_collection, served, scope, vectors, k, left_s, breadth, left.is_set
                    )
            except TimeoutError:
                raise errors.DeadlineExceeded(
                    "the call's time was over before Milvus answered; allow more time"
                ) from None
            finally:
                left.set()  # the thread asks Milvus no more when nobody waits for it
        compute_s = time.perf_counter() - started
        return RetrievalResult(rescored.hits, served.with_premises(rescored.premises), compute_s, 0.0, compute_s)


def check_implemented(query: TextQuery) -> None:
    """Refuses the options that this back end does not have; the error names what to use instead."""
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


def search_collection(
    served: MilvusGeneration,
    scope: Scope,
    vectors: NDArray[np.float32],
    k: int,
    deadline_s: float | None,
    breadth: int = 0,
    has_left: Callable[[], bool] = lambda: False,
) -> RescoredHits:
    """Searches one collection. It blocks on Milvus and computes: run it in a thread.

    It stops between two questions to Milvus once `has_left` says that the caller has gone.
    """
    expression = schema.allowed(scope.splits, scope.exclude_ids)
    timeout_s = None if deadline_s is None else max(min(deadline_s, served.link.timeout_s), 0.001)

    def propose(queries: NDArray[np.float32], width: int) -> Sequence[Candidates]:
        if has_left():
            raise errors.Cancelled("the caller has gone; ask again")
        return served.collection.candidates(queries, width, expression, breadth=breadth, timeout_s=timeout_s)

    return rescore(vectors, k, propose, is_exact=served.is_exact)


def _without(hits: SearchHits, text: str | None, ids: frozenset[str], premises: PremiseLookup, k: int) -> SearchHits:
    """Keeps the best k, less the premise that is the query's own text and those accepted for it."""
    records = [premises[ordinal] for ordinal in hits.ordinals.tolist()]
    return hits.where(np.array([one.text != text and one.id not in ids for one in records], dtype=bool), k)


@dataclass(frozen=True)
class RescoredHits:
    """The hits of each query, their premises by ordinal, and whether they are proven exact."""

    hits: list[SearchHits]
    premises: dict[int, PremiseRecord]
    exact: bool


def rescore(queries: NDArray[np.float32], k: int, propose: Propose, *, is_exact: bool) -> RescoredHits:
    """Finds the best k premises of each query (n, dim). `propose` asks Milvus for that many candidates of some queries.

    `is_exact` says that Milvus compares a query with every premise: only then do more candidates help.
    """
    results: dict[int, SearchHits] = {}
    premises: dict[int, PremiseRecord] = {}
    pending, width, exact = list(range(len(queries))), min(k + SLACK, K_MOST), is_exact
    while pending:
        proposed = propose(queries[pending], width)
        for row, candidates in zip(pending, proposed, strict=True):
            hits, is_final = _rescored(queries[row], candidates, k, width)
            is_last_attempt = not is_exact or width == K_MOST
            if is_final or is_last_attempt:
                exact = exact and is_final
                results[row] = replace(hits, exact=is_exact and is_final)
                wanted = set(hits.ordinals.tolist())
                pairs = zip(candidates.ordinals.tolist(), candidates.records, strict=True)
                premises |= {ordinal: record for ordinal, record in pairs if ordinal in wanted}
        pending = [row for row in pending if row not in results]
        width = min(width * 4, K_MOST)
    return RescoredHits([results[row] for row in range(len(queries))], premises, exact)


def _rescored(query: NDArray[np.float32], candidates: Candidates, k: int, width: int) -> tuple[SearchHits, bool]:
    """Ranks the candidates, and says whether nothing outside them can be among the best k."""
    scores = exact_scores(candidates.vectors, query.astype(np.float64))
    hits = SearchHits.best(candidates.ordinals, scores, k)
    if len(scores) < width:  # there are no more premises
        return hits, True
    ceiling = float(candidates.raw.min()) + rounding_bound(query[None], 1.0 + NORM_TOLERANCE)
    return hits, bool(is_out_of_reach(ceiling, hits.scores[-1:])[0])
