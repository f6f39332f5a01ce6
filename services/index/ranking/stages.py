"""The stages of a Retrieve, each of which takes hits and returns better ones.

    encode ─► nearest ─► fuse with words ─► prior ─┬─► features ─► cross-encoder ─► k hits
                 ▲                                 │      (each only where the query asks for it)
                 └───── feedback of the first ─────┘

Their order is in `Stages.of`, that of a first ranking in `Stages._first`: one more is a method, and its place there.
The last stage of a first ranking cuts it to its length; those before it keep POOL. Later stages score the best POOL
premises of each first ranking, whatever k is up to there, so that a longer list starts with the shorter one. Every
stage breaks ties by ordinal (SearchHits.best). What computes for the stages (vectors, words, encoder, cross-encoder,
threads) is given to them: in the index for many callers at once, in `services.local` and tuning for one.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from aeenc.calls.encoding import Encoded, EncodeOptions
from services.corpus.arrays import exact_scores
from services.index.catalogue.served import ServedGeneration
from services.index.lexical.bm25 import LexicalIndex, Terms, best
from services.index.ranking.fusion import (
    DEPTH,
    EXPLAINED,
    FEEDBACK,
    POOL,
    FirstWords,
    Near,
    Prior,
    features_of,
    fuse_hits,
    order_by,
    rocchio_feedback,
    with_bonus,
)
from services.index.values import DEFAULT_EFFORT, WITHOUT_ENCODER, Effort, SearchHits, Selection, TextQuery, Timings

T = TypeVar("T")
KEPT_SCORES = 4_000_000  # by words, of all texts of a call together; beyond that, they are computed twice


class VectorSearch(Protocol):
    """Searches a generation by vectors: `SearchBatcher`, or one caller's own thread."""

    async def search(
        self,
        served: ServedGeneration,
        queries: NDArray[np.float32],
        k: int,
        selection: Selection,
        *,
        effort: Effort = DEFAULT_EFFORT,
        deadline_s: float | None = None,
        timings: Timings | None = None,
    ) -> list[SearchHits]:
        """Finds the k nearest premises of each query (n, dim)."""


class WordWork(Protocol):
    """Runs the work by words of each text; gives the results, and the seconds that they waited and took."""

    async def each(
        self, rows: Sequence[int], work: Callable[[int], T], *, deadline: float | None = None
    ) -> tuple[list[T], float, float]:
        """Runs `work` for each row."""


class TextEncoding(Protocol):
    """Encodes the texts of queries."""

    async def encode(
        self, texts: Sequence[str], key: EncodeOptions, *, request_id: str = "", left_s: float | None = None
    ) -> Encoded:
        """Encodes texts; the caller has `left_s` seconds left."""


class PairReranking(Protocol):
    """Re-ranks by cross-encoders."""

    async def rerank(
        self,
        query: TextQuery,
        hits: Sequence[SearchHits],
        premises: Sequence[Sequence[str]],
        *,
        left_s: float | None,
    ) -> tuple[list[SearchHits], tuple[str, ...]]:
        """Re-ranks each text's hits and keeps the best k; returns the cross-encoders' versions as well."""


InThread = Callable[[Callable[[], T]], Awaitable[T]]


@dataclass(frozen=True)
class RetrievalResult:
    """The hits of each query in the generation searched, by an encoder's `version` in `precision`.

    `unknown_splits` and `unknown_tags` are those of the scope that no premise has.
    """

    hits: list[SearchHits]
    served: ServedGeneration
    timings: Timings
    unknown_splits: tuple[str, ...] = ()
    unknown_tags: tuple[str, ...] = ()
    version: str = ""
    precision: str = ""
    reranked_by: tuple[str, ...] = ()


@dataclass(eq=False)
class Call:
    """One Retrieve under way: what is asked, of which generation, until when, and what its stages have found out.

    For each text, `accepted` has the ordinals accepted for it, `left_out` also that of the text itself. `encoded` are
    the vectors (n, dim) of the texts, `vectors` the same after feedback. `words` and `near` are kept for a second
    ranking, by the text's place, since no vector changes them: the scores of all premises by words (rows,) with the
    best of them (where the call `keeps_words`), and the nearest hypotheses.
    """

    query: TextQuery
    served: ServedGeneration
    selection: Selection
    accepted: list[list[int]]
    left_out: list[list[int]]
    prior: Prior | None
    deadline: float | None  # on the clock of time.monotonic()
    timings: Timings = field(default_factory=Timings)
    encoded: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))
    vectors: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))
    version: str = ""
    precision: str = ""
    reranked_by: tuple[str, ...] = ()
    keeps_words: bool = False
    words: dict[int, tuple[NDArray[np.float32], SearchHits]] = field(default_factory=dict)
    near: dict[int, Near] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        query: TextQuery,
        served: ServedGeneration,
        selection: Selection,
        deadline: float | None,
        prior: Prior | None = None,
    ) -> Call:
        """Looks up the premises that are a query's own text and those accepted for it.

        A call never returns accepted premises again. Raises InvalidArgument for one that the generation lacks.
        """
        accepted = [served.accepted(n, ids) for n, ids in enumerate(query.accepted)] or [[]] * len(query.texts)
        same = [served.generation.ordinal_by_text.get(text) if query.drop_self else None for text in query.texts]
        left_out = [
            ordinals if itself is None else [itself, *ordinals] for itself, ordinals in zip(same, accepted, strict=True)
        ]
        keeps_words = bool(query.negative_feedback) and len(query.texts) * served.rows <= KEPT_SCORES
        return cls(query, served, selection, accepted, left_out, prior, deadline, keeps_words=keeps_words)

    def accepted_texts(self, row: int) -> list[str]:
        """The texts of the premises accepted for one text."""
        return [self.served.generation.premises[n].text for n in self.accepted[row]]

    def texts_with_accepted(self) -> list[str]:
        """Each text followed by those of its accepted premises. It reads from disk."""
        return [" ".join([text, *self.accepted_texts(row)]) for row, text in enumerate(self.query.texts)]

    def terms(self, row: int) -> Terms:
        """The words of one text and of the premises accepted for it."""
        return self.lexical.terms(self.query.texts[row], self.accepted_texts(row))

    @property
    def lexical(self) -> LexicalIndex:
        """The generation's lexical index. Raises FailedPrecondition when it was built without one."""
        if self.served.lexical is None:
            raise errors.FailedPrecondition(
                f"generation {self.served.id} of corpus {self.served.generation.corpus!r} has no lexical index; build "
                "it again with this version, or use mode DENSE"
            )
        return self.served.lexical

    @cached_property
    def selected(self) -> NDArray[np.bool_] | None:
        """The premises (rows,) that any text may get; None: all. A mask of a large corpus takes milliseconds."""
        return self.served.allowed(self.selection)

    def allowed(self, row: int) -> NDArray[np.bool_] | None:
        """The premises (rows,) that may be returned for one text; None: all."""
        if not self.left_out[row]:
            return self.selected
        mask = np.ones(self.served.rows, dtype=bool) if self.selected is None else self.selected.copy()
        mask[self.left_out[row]] = False
        return mask

    def features(self, row: int, hits: SearchHits) -> NDArray[np.float64]:
        """The features (DEPTH, len(FEATURES)) of the first hits of one text. It reads from disk."""
        first, words = hits.first(DEPTH), None
        if self.query.mode == "HYBRID":
            words = FirstWords(self.terms(row), first, self.lexical, self.allowed(row))
        return features_of(first, words, self.encoded[row], self.served.index.vectors[first.ordinals])

    def turned(
        self, vectors: NDArray[np.float32], ordinals: Sequence[Sequence[int]], share: float
    ) -> NDArray[np.float32]:
        """Subtracts from each vector (n, dim) a share of the mean of some premises' vectors. It reads from disk."""
        return rocchio_feedback(vectors, [self.served.index.vectors[list(few)] for few in ordinals], share)

    @property
    def left_s(self) -> float | None:
        """The seconds left until the deadline; None: there is no deadline."""
        return None if self.deadline is None else self.deadline - time.monotonic()


Stage = Callable[[Call, list[SearchHits]], Awaitable[list[SearchHits]]]


class Stages:
    """Makes the hits of a call by stages. `in_thread` runs work that reads from disk."""

    def __init__(
        self,
        search: VectorSearch,
        words: WordWork,
        encoder: TextEncoding,
        reranker: PairReranking,
        in_thread: InThread[Any],
    ) -> None:
        self._search, self._words, self._encoder, self._reranker = search, words, encoder, reranker
        self._in_thread = in_thread

    async def answer(self, call: Call, started: float) -> RetrievalResult:
        """Goes through the stages of a call that began at `started` on the clock of time.perf_counter()."""
        hits: list[SearchHits] = []
        for stage in self.of(call.query):
            hits = await stage(call, hits)
        call.timings.total_s = time.perf_counter() - started
        unknown = call.served.unknown(call.query.scope)
        return RetrievalResult(
            hits, call.served, call.timings, *unknown, call.version, call.precision, call.reranked_by
        )

    def of(self, query: TextQuery) -> list[Stage]:
        """The stages of a query, in their order."""
        k = query.depth
        stages: list[Stage] = [] if query.mode in WITHOUT_ENCODER else [self._encode]
        if query.negative_feedback:
            stages += [*self._first(query, FEEDBACK), self._turn_from]
        stages += self._first(query, max(k, DEPTH) if query.features else k)
        if query.features:
            stages.append(partial(self._order_by_features, k=k))
        if query.rerank:
            stages.append(self._rerank)
        return stages

    def _first(self, query: TextQuery, k: int) -> list[Stage]:
        """The stages of a first ranking of k: by vectors, by words, or by both; then by the prior."""
        pool = max(POOL, k)
        depth = pool if query.prior else k
        if query.mode == "HYBRID":
            stages: list[Stage] = [
                partial(self._nearest, k=pool),
                partial(self._fuse_with_words, pool=pool, k=depth),
            ]
        else:
            stages = [partial(self._by_words if query.mode in WITHOUT_ENCODER else self._nearest, k=depth)]
        if query.prior:
            stages.append(partial(self._with_prior, k=k))
        return stages

    async def _encode(self, call: Call, _hits: list[SearchHits]) -> list[SearchHits]:
        """Encodes each text with its accepted premises and subtracts what those explain."""
        started, query = time.perf_counter(), call.query
        texts = list(query.texts)
        if query.accepted:
            texts = await self._in_thread(call.texts_with_accepted)
        space_id = call.served.generation.space_id
        options = EncodeOptions(
            "query", query.label, query.version, space_id, query.truncate, query.precision, None, query.routing_key
        )
        encoded = await self._encoder.encode(texts, options, request_id=query.request_id, left_s=call.left_s)
        call.served.check_vectors(encoded.vectors, encoded.space_id)
        call.encoded, call.version, call.precision = encoded.vectors, encoded.model_version, encoded.precision
        if query.accepted:
            call.encoded = await self._in_thread(partial(call.turned, encoded.vectors, call.accepted, EXPLAINED))
        call.vectors = call.encoded
        call.timings.encode_s += time.perf_counter() - started
        return []

    async def _nearest(self, call: Call, _hits: list[SearchHits], *, k: int) -> list[SearchHits]:
        """Finds the k nearest of each vector that are not left out.

        What an approximate engine overlooks depends on how many it is asked for, and must not depend on the other texts
        of the call: there each text is asked for its own number.
        """
        widths = [k + len(out) for out in call.left_out]
        if call.served.index.exact:
            widths = [max(widths)] * len(widths)
        found: dict[int, SearchHits] = {}
        for width in sorted(set(widths)):
            rows = [row for row, wanted in enumerate(widths) if wanted == width]
            hits = await self._search.search(
                call.served,
                call.vectors[rows],
                width,
                call.selection,
                effort=call.query.effort,
                deadline_s=call.left_s,
                timings=call.timings,
            )
            found |= dict(zip(rows, hits, strict=True))
        return [found[row].without(out, k) for row, out in enumerate(call.left_out)]

    async def _by_words(self, call: Call, _hits: list[SearchHits], *, k: int) -> list[SearchHits]:
        """Finds the k best by BM25, or by its rounds."""
        lexical = call.lexical

        def work(row: int) -> SearchHits:
            if call.query.mode == "ITERATIVE_LEXICAL":
                return lexical.iterate(call.terms(row), k, call.allowed(row))
            return best(lexical.scores(call.terms(row)), k, call.allowed(row))

        return await self._in_executor(call, work)

    async def _fuse_with_words(self, call: Call, hits: list[SearchHits], *, pool: int, k: int) -> list[SearchHits]:
        """Combines the best by vectors with the pool of the best by words."""
        lexical, query = call.lexical, call.query

        def work(row: int) -> SearchHits:
            found = call.words.get(row)
            if found is None:
                scores = lexical.scores(call.terms(row))
                found = scores, best(scores, pool, call.allowed(row))
                if call.keeps_words:
                    call.words[row] = found
            scores, by_words = found

            def cosines_of(added: NDArray[np.int64]) -> NDArray[np.float32]:
                return exact_scores(call.served.index.vectors[added], call.vectors[row].astype(np.float64))

            return fuse_hits(hits[row], by_words, scores, cosines_of, query.lexical_weight, query.fusion, k)

        return await self._in_executor(call, work)

    async def _with_prior(self, call: Call, hits: list[SearchHits], *, k: int) -> list[SearchHits]:
        """Re-ranks the pool with the prior's bonus for the text."""
        prior, query = call.prior, call.query
        assert prior is not None

        def work(row: int) -> SearchHits:
            near = call.near.get(row)
            if near is None:
                near = call.near[row] = prior.nearest(query.texts[row])
            return with_bonus(hits[row], prior.bonus(near, hits[row].ordinals), query.prior, k)

        return await self._in_executor(call, work)

    async def _turn_from(self, call: Call, hits: list[SearchHits]) -> list[SearchHits]:
        """Turns the vectors away from what the best have in common; ranking begins anew."""
        ordinals = [found.ordinals.tolist() for found in hits]
        share = call.query.negative_feedback
        call.vectors = await self._in_thread(partial(call.turned, call.vectors, ordinals, share))
        return []

    async def _order_by_features(self, call: Call, hits: list[SearchHits], *, k: int) -> list[SearchHits]:
        """Orders the best premises anew by the weighted sum of their features."""

        def work(row: int) -> SearchHits:
            return order_by(hits[row], call.features(row, hits[row]), call.query.features, k)

        return await self._in_executor(call, work)

    async def _rerank(self, call: Call, hits: list[SearchHits]) -> list[SearchHits]:
        """Re-ranks by the cross-encoder."""
        premises = call.served.generation.premises

        def read() -> list[list[str]]:
            return [[premises[n].text for n in found.ordinals.tolist()] for found in hits]

        texts = await self._in_thread(read)
        started = time.perf_counter()
        ranked, call.reranked_by = await self._reranker.rerank(call.query, hits, texts, left_s=call.left_s)
        call.timings.encode_s += time.perf_counter() - started
        return ranked

    async def _in_executor(self, call: Call, work: Callable[[int], SearchHits]) -> list[SearchHits]:
        """Runs `work` for each text in the executor."""
        hits, queue_s, compute_s = await self._words.each(range(len(call.query.texts)), work, deadline=call.deadline)
        call.timings.add(queue_s, compute_s)
        return hits
