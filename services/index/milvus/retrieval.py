"""Search and Retrieve on a Milvus: the same checks, stages and answers as on files.

    texts ─┬─ encode ──► vectors less feedback ──► Milvus ─┬─► fuse ──► prior ──► features ──► cross-encoder ──► k hits
           └─ words ─────────────────────────────► Milvus ─┘      (each stage only where the query asks for it)

What Milvus proposes is scored again (searching.py), so that answers are the same to the bit wherever they are computed.
An approximate index is asked once, and its answer is never exact.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.generation import PremiseRecord
from services.corpus.inner_products import exact_scores
from services.index.lexical.bm25 import weighted_words
from services.index.milvus.catalogue import MilvusCatalogue
from services.index.milvus.generation import MilvusGeneration
from services.index.milvus.link import MilvusLink, MilvusNotFound
from services.index.milvus.prior import MilvusExplanations, MilvusPrior
from services.index.milvus.searching import (
    AskedText,
    RescoredHits,
    search_collection,
    search_in_rounds,
    search_words,
    words_of_first,
)
from services.index.milvus.words import lexical_scores
from services.index.ranking.encoding import EncodeKey, QueryEncoder, QueryVectors, Reranker
from services.index.ranking.features import DEPTH, features_of, order_by
from services.index.ranking.fusion import fuse, rocchio_feedback
from services.index.ranking.prior import with_bonus
from services.index.ranking.ranker import EXPLAINED, FEEDBACK
from services.index.ranking.validation import (
    RETRIEVE_HIT_BYTES,
    SEARCH_HIT_BYTES,
    check_accepted,
    check_answer,
    check_limits,
    check_text_query,
    check_vector_query,
    check_vectors,
)
from services.index.values import (
    WITHOUT_ENCODER,
    Effort,
    PremiseLookup,
    QueueLimit,
    RetrievalResult,
    Scope,
    SearchHits,
    TextQuery,
    VectorQuery,
)
from services.kit.limits import Limits

IDS_AT_ONCE = 1000  # of accepted premises, whose vectors come along
T = TypeVar("T")


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


@dataclass(frozen=True)
class _RankCall:
    """One call of Retrieve: the generation, the query, what is accepted for each text, and the end of its time."""

    served: MilvusGeneration
    query: TextQuery
    accepted: Sequence[_AcceptedPremises]
    prior: MilvusPrior | None
    clock: _Deadline

    def widths(self, k: int) -> list[int]:
        """How many premises to ask for, so that k are left without those that an answer leaves out."""
        own_texts = int(self.query.drop_self)  # texts are distinct: one premise at most is the query's own
        return [k + own_texts + len(own.ids) for own in self.accepted]

    def asked_texts(self) -> list[AskedText]:
        """The texts as iterative BM25 ranks for them."""
        drop = self.query.drop_self
        return [
            AskedText(weighted_words(text, own.texts), text if drop else None, own.ids)
            for text, own in zip(self.query.texts, self.accepted, strict=True)
        ]

    def left(self, result: RetrievalResult, k: int) -> RetrievalResult:
        """Keeps the best k of each list, less the premise that is the text itself and those accepted for it."""
        premises = result.served.generation.premises
        hits = [
            _without(one, text if self.query.drop_self else None, own.ids, premises, k)
            for one, text, own in zip(result.hits, self.query.texts, self.accepted, strict=True)
        ]
        return replace(result, hits=hits)


class MilvusRetrieval:
    """Answers Search and Retrieve from Milvus. It refuses calls beyond `max_queued` queries under way."""

    def __init__(
        self,
        catalogue: MilvusCatalogue,
        link: MilvusLink,
        encoder: QueryEncoder,
        reranker: Reranker,
        explanations: MilvusExplanations,
        limits: Limits,
        *,
        max_queued: int = 4096,
        pool: int = 1000,
    ) -> None:
        self._catalogue = catalogue
        self._link = link
        self._encoder, self._reranker, self._explanations = encoder, reranker, explanations
        self._limits, self._pool = limits, pool
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
            check_answer(len(query.vectors), scope.k, served.rows, SEARCH_HIT_BYTES, self._limits)
            _check_effort(served, effort)
            return await self._search(
                served, scope, query.vectors, scope.k, left_s=clock.left_s, breadth=effort.ef_search
            )

        result = await self._in_generation(scope, answer)
        return replace(result, total_s=time.perf_counter() - started)

    async def retrieve(self, query: TextQuery, *, deadline_s: float | None = None) -> RetrievalResult:
        """Finds the premises that best explain each text.

        Raises what `search` and the encoder raise.
        """
        started, clock = time.perf_counter(), _Deadline(deadline_s)
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
        check_answer(len(query.texts), query.depth, served.rows, RETRIEVE_HIT_BYTES, self._limits)
        _check_effort(served, query.effort)
        prior = await self._explanations.prior(served) if query.prior else None
        call = _RankCall(served, query, await self._accepted(served, query), prior, clock)
        depth = query.depth
        if query.mode == "ITERATIVE_LEXICAL":
            result = await self._in_rounds(call, depth)
        elif query.mode in WITHOUT_ENCODER:
            result = await self._with_prior(call, await self._by_words(call, self._depth(call, depth)), depth)
        else:
            asked_at = time.perf_counter()
            encoded = await self._encode(call)
            encode_s, vectors = time.perf_counter() - asked_at, encoded.vectors
            if query.negative_feedback:
                first = await self._by_vectors(call, vectors, FEEDBACK)
                best = [
                    await self._link.read(served.collection.__getitem__, one.ordinals.tolist()) for one in first.hits
                ]
                vectors = rocchio_feedback(vectors, best, query.negative_feedback)
            result = await self._by_vectors(call, vectors, max(depth, DEPTH) if query.features else depth)
            if query.features:
                result = await self._by_features(call, encoded.vectors, result, depth)
            result = replace(result, encode_s=encode_s, version=encoded.version, precision=encoded.precision)
        return await self._reranked(call, result) if query.rerank else result

    async def _encode(self, call: _RankCall) -> QueryVectors:
        """Encodes each text with its accepted premises, and subtracts what those explain."""
        query, served = call.query, call.served
        texts = [" ".join([text, *own.texts]) for text, own in zip(query.texts, call.accepted, strict=True)]
        key = EncodeKey.of(query, served.generation.space_id)
        encoded = await self._encoder.encode(texts, key, request_id=query.request_id, left_s=call.clock.left_s)
        check_vectors(served, encoded.vectors, encoded.space_id)
        if not query.accepted:
            return encoded
        vectors = rocchio_feedback(encoded.vectors, [own.vectors for own in call.accepted], EXPLAINED)
        return replace(encoded, vectors=vectors)

    async def _by_vectors(self, call: _RankCall, vectors: NDArray[np.float32], k: int) -> RetrievalResult:
        """Ranks the k best by vectors (n, dim), or by vectors and words; then by the prior."""
        by = self._hybrid if call.query.mode == "HYBRID" else self._dense
        return await self._with_prior(call, await by(call, vectors, self._depth(call, k)), k)

    def _depth(self, call: _RankCall, k: int) -> int:
        return self._pool if call.prior else k

    async def _with_prior(self, call: _RankCall, result: RetrievalResult, k: int) -> RetrievalResult:
        """Ranks the pool again by its scores and the prior."""
        if (prior := call.prior) is None:
            return result
        query = call.query

        def work(_left_s: float | None, _has_left: Callable[[], bool]) -> list[SearchHits]:
            bonuses = prior.bonuses(query.texts, [one.ordinals for one in result.hits])
            pairs = zip(result.hits, bonuses, strict=True)
            return [with_bonus(pool, bonus, query.prior, k) for pool, bonus in pairs]

        hits, compute_s = await self._ask(len(result.hits), call.clock.left_s, work)
        return replace(result, hits=hits, compute_s=result.compute_s + compute_s)

    async def _dense(self, call: _RankCall, vectors: NDArray[np.float32], k: int) -> RetrievalResult:
        result = await self._search_each(call, vectors, call.widths(k))
        return call.left(result, k)

    async def _by_words(self, call: _RankCall, k: int) -> RetrievalResult:
        served, query = call.served, call.query
        words = [weighted_words(text, own.texts) for text, own in zip(query.texts, call.accepted, strict=True)]
        width = max(call.widths(k))

        def work(left_s: float | None, has_left: Callable[[], bool]) -> RescoredHits:
            return search_words(served, query.scope, words, width, left_s, has_left)

        rescored, compute_s = await self._ask(len(words), call.clock.left_s, work)
        found = served.with_premises(rescored.premises)
        return call.left(RetrievalResult(rescored.hits, found, compute_s, 0.0, compute_s), k)

    async def _in_rounds(self, call: _RankCall, k: int) -> RetrievalResult:
        query, texts = call.query, call.asked_texts()

        def work(left_s: float | None, has_left: Callable[[], bool]) -> RescoredHits:
            return search_in_rounds(call.served, query.scope, texts, k, left_s, has_left)

        rescored, compute_s = await self._ask(len(texts), call.clock.left_s, work)
        found = call.served.with_premises(rescored.premises)
        return RetrievalResult(rescored.hits, found, compute_s, 0.0, compute_s)

    async def _hybrid(self, call: _RankCall, vectors: NDArray[np.float32], k: int) -> RetrievalResult:
        """Ranks the best by vectors and the best by words by the fusion of both scores."""
        near, worded = await self._dense(call, vectors, self._pool), await self._by_words(call, self._pool)
        lists = list(zip(call.query.texts, call.accepted, vectors, near.hits, worded.hits, strict=True))

        def work(_left_s: float | None, _has_left: Callable[[], bool]) -> list[SearchHits]:
            return [
                _fused(call, weighted_words(text, own.texts), vector, by_vector, by_word, self._pool).first(k)
                for text, own, vector, by_vector, by_word in lists
            ]

        hits, compute_s = await self._ask(len(lists), call.clock.left_s, work)
        compute_s += near.compute_s + worded.compute_s
        premises = {
            ordinal: result.served.generation.premises[ordinal]
            for result in (near, worded)
            for one in result.hits
            for ordinal in one.ordinals.tolist()
        }
        return RetrievalResult(hits, call.served.with_premises(premises), compute_s, 0.0, compute_s)

    async def _by_features(
        self, call: _RankCall, vectors: NDArray[np.float32], result: RetrievalResult, k: int
    ) -> RetrievalResult:
        """Orders the best premises anew by the weighted sum of their features."""
        query, served, texts = call.query, call.served, call.asked_texts()

        def work(left_s: float | None, has_left: Callable[[], bool]) -> list[SearchHits]:
            rounds: Sequence[SearchHits | None] = [None] * len(texts)
            if query.mode == "HYBRID":
                rounds = search_in_rounds(served, query.scope, texts, DEPTH, left_s, has_left).hits
            ordered = []
            for text, vector, one, iterative in zip(texts, vectors, result.hits, rounds, strict=True):
                first = one.first(DEPTH)
                if not len(first.ordinals):
                    ordered.append(one)
                    continue
                words = None if iterative is None else words_of_first(served, text.words, first, iterative)
                found = features_of(first, words, vector, served.collection[first.ordinals.tolist()])
                ordered.append(order_by(one, found, query.features, k))
            return ordered

        hits, compute_s = await self._ask(len(texts), call.clock.left_s, work)
        return replace(result, hits=hits, compute_s=result.compute_s + compute_s)

    async def _reranked(self, call: _RankCall, result: RetrievalResult) -> RetrievalResult:
        premises = result.served.generation.premises
        texts = [[premises[n].text for n in one.ordinals.tolist()] for one in result.hits]
        asked_at = time.perf_counter()
        hits, versions = await self._reranker.rerank(call.query, result.hits, texts, left_s=call.clock.left_s)
        encode_s = result.encode_s + time.perf_counter() - asked_at
        return replace(result, hits=hits, encode_s=encode_s, reranked_by=versions)

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
        self, call: _RankCall, vectors: NDArray[np.float32], widths: Sequence[int]
    ) -> RetrievalResult:
        """Finds for each vector (n, dim) its own number of premises.

        What an approximate index overlooks depends on that number, and must not depend on the other texts of a call.
        """
        served, scope, breadth = call.served, call.query.scope, call.query.effort.ef_search
        if served.is_exact:
            return await self._search(served, scope, vectors, max(widths), left_s=call.clock.left_s)
        hits: dict[int, SearchHits] = {}
        premises: dict[int, PremiseRecord] = {}
        compute_s = 0.0
        for width in sorted(set(widths)):
            rows = [row for row, own in enumerate(widths) if own == width]
            part = await self._search(served, scope, vectors[rows], width, left_s=call.clock.left_s, breadth=breadth)
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

        def work(left_s: float | None, has_left: Callable[[], bool]) -> RescoredHits:
            return search_collection(served, scope, vectors, k, left_s, breadth, has_left)

        rescored, compute_s = await self._ask(len(vectors), left_s, work)
        return RetrievalResult(rescored.hits, served.with_premises(rescored.premises), compute_s, 0.0, compute_s)

    async def _ask(
        self, queries: int, left_s: float | None, work: Callable[[float | None, Callable[[], bool]], T]
    ) -> tuple[T, float]:
        """Runs `work` for some queries in a thread, and measures its time. It learns whether the caller has left."""
        left = threading.Event()
        with self._queue.admitted(queries):
            started = time.perf_counter()
            try:
                async with asyncio.timeout(left_s):
                    answer = await self._link.read(work, left_s, left.is_set)
            except TimeoutError:
                raise errors.DeadlineExceeded(
                    "the call's time was over before Milvus answered; allow more time"
                ) from None
            finally:
                left.set()  # the thread asks Milvus no more when nobody waits for it
        return answer, time.perf_counter() - started


def _check_effort(served: MilvusGeneration, effort: Effort) -> None:
    """Raises Unimplemented for an exact search where the index is approximate."""
    if effort.exact and not served.is_exact:
        raise errors.Unimplemented(
            f"params.exact is not in the back end milvus for generation {served.id}, whose index is approximate; use "
            "ef_search, or build it with AEENC_INDEX_MILVUS_ENGINE=flat"
        )


def _fused(
    call: _RankCall,
    words: Mapping[str, float],
    vector: NDArray[np.float32],
    near: SearchHits,
    worded: SearchHits,
    pool: int,
) -> SearchHits:
    """Ranks the premises of both lists. It blocks on Milvus, which has the scores that only one list holds."""
    collection = call.served.collection
    added = np.setdiff1d(worded.ordinals, near.ordinals)
    cosines = exact_scores(collection[added.tolist()], vector.astype(np.float64))
    ordinals = np.concatenate([near.ordinals, added])
    by_ordinal = dict(zip(worded.ordinals.tolist(), worded.scores.tolist(), strict=True))
    if len(worded.ordinals) == pool:  # otherwise the others have no word of the query
        others = collection.words.sparse([n for n in near.ordinals.tolist() if n not in by_ordinal])
        texts, vectors = [record.text for record, _ in others.values()], [sparse for _, sparse in others.values()]
        by_ordinal |= dict(zip(others, lexical_scores(words, texts, vectors).tolist(), strict=True))
    lexical = np.array([by_ordinal.get(n, 0.0) for n in ordinals.tolist()], np.float32)
    fused = fuse(np.concatenate([near.scores, cosines]), lexical, call.query.lexical_weight, call.query.fusion)
    return SearchHits.best(ordinals, fused, len(ordinals), exact=near.exact and worded.exact)


def _without(hits: SearchHits, text: str | None, ids: frozenset[str], premises: PremiseLookup, k: int) -> SearchHits:
    """Keeps the best k, less the premise that is the query's own text and those accepted for it."""
    records = [premises[ordinal] for ordinal in hits.ordinals.tolist()]
    return hits.where(np.array([one.text != text and one.id not in ids for one in records], dtype=bool), k)
