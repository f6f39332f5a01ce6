"""Answers Search and Retrieve. A Retrieve goes through stages, each of which takes hits and returns better ones.

    encode ─► nearest ─► fuse with words ─► prior ─┬─► features ─► cross-encoder ─► k hits
                 ▲                                 │      (each only where the query asks for it)
                 └───── feedback of the first ─────┘

Their order is in `Stages.of`, that of a first ranking in `Stages._first`: one more is a method, and a line there.
The last stage of a first ranking is given its k; those before it keep POOL, whatever k is up to there, so that a longer
list starts with the shorter one. Every stage breaks ties by ordinal (SearchHits.best). What computes for the stages
(vectors, words, encoder, cross-encoder, threads) is given to them: in the index for many callers at once, in
`services.local` and tuning for one. `Retrieval` finds their generation and its prior, and checks what is asked; a label
names the query encoder in the space of the generation, so that a corpus of another space needs no other call.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from aeenc.calls.encoding import Encoded, EncodeOptions
from services.corpus.arrays import exact_scores
from services.corpus.generation import Generation
from services.index.catalogue.catalogue import Catalogue
from services.index.catalogue.served import ServedGeneration
from services.index.lexical.bm25 import LexicalIndex, Terms, best
from services.index.ranking.fusion import (
    EXPLAINED,
    FEEDBACK,
    POOL,
    FirstWords,
    NearHypotheses,
    Prior,
    depth_of,
    features_of,
    fuse_hits,
    order_by,
    rocchio_feedback,
    with_bonus,
)
from services.index.values import (
    WITHOUT_ENCODER,
    Explanation,
    Scope,
    SearchHits,
    SearchParams,
    Selection,
    TextQuery,
    Timings,
    VectorQuery,
)
from services.kit.limits import Limits

T = TypeVar("T")
ON_LOOP = 64  # ids or texts: looking them up takes about a millisecond
SEARCH_HIT_BYTES = 7  # at least: an id of one letter with its two bytes of protobuf, and a float32
RETRIEVE_HIT_BYTES = 13  # at least: a message of an id, a text and a score
OPEN_PRIORS = 8
KEPT_SCORES = 4_000_000  # by words, of all texts of a call together; beyond that, they are computed twice


# What computes for the stages, by their arguments.
Search = Callable[  # the k nearest premises of queries (n, dim), found in so many seconds, which the timings add up
    [ServedGeneration, NDArray[np.float32], int, Selection, SearchParams, float | None, Timings],
    Awaitable[list[SearchHits]],
]
Each = Callable[  # the work by words of each text until a time of time.monotonic(), as the timings add up
    [Sequence[int], Callable[[int], SearchHits], float | None, Timings], Awaitable[list[SearchHits]]
]
Encode = Callable[[Sequence[str], EncodeOptions, str, float | None], Awaitable[Encoded]]  # a request id, seconds left
Rerank = Callable[  # hits and their texts, seconds left; the best k, and the cross-encoders' versions
    [TextQuery, Sequence[SearchHits], Sequence[Sequence[str]], float | None],
    Awaitable[tuple[list[SearchHits], tuple[str, ...]]],
]
InThread = Callable[[Callable[[], T]], Awaitable[T]]


@dataclass
class RetrievalResult:
    """The hits of each query in the generation searched, by an encoder's `version` in `precision`.

    `unknown_splits` and `unknown_tags` are those of the scope that no premise has.
    """

    served: ServedGeneration
    unknown_splits: tuple[str, ...]
    unknown_tags: tuple[str, ...]
    hits: list[SearchHits] = field(default_factory=list)
    timings: Timings = field(default_factory=Timings)
    version: str = ""
    precision: str = ""
    reranked_by: tuple[str, ...] = ()


@dataclass(eq=False)
class Call:
    """One Retrieve under way: what is asked, of which generation, until when, and what its stages tell the `result`.

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
    result: RetrievalResult
    encoded: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))
    vectors: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))
    keeps_words: bool = False
    words: dict[int, tuple[NDArray[np.float32], SearchHits]] = field(default_factory=dict)
    near: dict[int, NearHypotheses] = field(default_factory=dict)

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
        same = [
            served.generation.premises.ordinal_by_text.get(text) if query.drop_self else None for text in query.texts
        ]
        left_out = [
            ordinals if itself is None else [itself, *ordinals] for itself, ordinals in zip(same, accepted, strict=True)
        ]
        keeps_words = bool(query.negative_feedback) and len(query.texts) * served.index.rows <= KEPT_SCORES
        result = RetrievalResult(served, *served.unknown(query.scope))
        return cls(query, served, selection, accepted, left_out, prior, deadline, result, keeps_words=keeps_words)

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
        mask = np.ones(self.served.index.rows, dtype=bool) if self.selected is None else self.selected.copy()
        mask[self.left_out[row]] = False
        return mask

    def features(self, row: int, hits: SearchHits, names: Collection[str]) -> NDArray[np.float64]:
        """The features (n, len(FEATURES)) of the first hits of one text that such `names` order. It reads from disk."""
        depth = depth_of(names)
        first, words = hits.first(depth), None
        if self.query.mode == "HYBRID":
            words = FirstWords(self.terms(row), first, self.lexical, self.allowed(row), depth)
        return features_of(first, words, self.encoded[row], self.served.index.vectors[first.ordinals], depth)

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

    def __init__(self, search: Search, each: Each, encode: Encode, rerank: Rerank, in_thread: InThread[Any]) -> None:
        self.search, self._each, self._encode_texts, self._rerank_pairs = search, each, encode, rerank
        self._in_thread = in_thread

    async def answer(self, call: Call, started: float) -> RetrievalResult:
        """Goes through the stages of a call that began at `started` on the clock of time.perf_counter()."""
        for stage in self.of(call.query):
            call.result.hits = await stage(call, call.result.hits)
        call.result.timings.total_s = time.perf_counter() - started
        return call.result

    def of(self, query: TextQuery) -> list[Stage]:
        """The stages of a query, in their order."""
        k = query.depth
        stages: list[Stage] = [] if query.mode in WITHOUT_ENCODER else [self._encode]
        if query.negative_feedback:
            stages += [*self._first(query, FEEDBACK), self._turn_from]
        stages += self._first(query, max(k, depth_of(query.features)) if query.features else k)
        if query.features:
            stages.append(partial(self._order_by_features, k=k))
        if query.rerank:
            stages.append(self._rerank)
        return stages

    def _first(self, query: TextQuery, k: int) -> list[Stage]:
        """The stages of a first ranking of k, the last of which cuts it: by vectors, words or both; by the prior."""
        ranking: list[Callable[..., Awaitable[list[SearchHits]]]] = [
            self._by_words if query.mode in WITHOUT_ENCODER else self._nearest
        ]
        if query.mode == "HYBRID":
            ranking.append(self._fuse_with_words)
        if query.prior:
            ranking.append(self._with_prior)
        return [*(partial(stage, k=max(POOL, k)) for stage in ranking[:-1]), partial(ranking[-1], k=k)]

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
        encoded = await self._encode_texts(texts, options, query.request_id, call.left_s)
        call.served.check_vectors(encoded.vectors, encoded.space_id)
        call.encoded = encoded.vectors
        call.result.version, call.result.precision = encoded.model_version, encoded.precision
        if query.accepted:
            call.encoded = await self._in_thread(partial(call.turned, encoded.vectors, call.accepted, EXPLAINED))
        call.vectors = call.encoded
        call.result.timings.encode_s += time.perf_counter() - started
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
            asked = width, call.selection, call.query.params
            hits = await self.search(call.served, call.vectors[rows], *asked, call.left_s, call.result.timings)
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

    async def _fuse_with_words(self, call: Call, hits: list[SearchHits], *, k: int) -> list[SearchHits]:
        """Combines the best by vectors with the pool of the best by words."""
        lexical, query = call.lexical, call.query

        def work(row: int) -> SearchHits:
            found = call.words.get(row)
            if found is None:
                scores = lexical.scores(call.terms(row))
                found = scores, best(scores, max(POOL, k), call.allowed(row))
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
        best = [found.ordinals.tolist() for found in hits]
        call.vectors = await self._in_thread(partial(call.turned, call.vectors, best, call.query.negative_feedback))
        return []

    async def _order_by_features(self, call: Call, hits: list[SearchHits], *, k: int) -> list[SearchHits]:
        """Orders the best premises anew by the weighted sum of their features."""

        def work(row: int) -> SearchHits:
            return order_by(hits[row], call.features(row, hits[row], call.query.features), call.query.features, k)

        return await self._in_executor(call, work)

    async def _rerank(self, call: Call, hits: list[SearchHits]) -> list[SearchHits]:
        """Re-ranks by the cross-encoder."""
        premises = call.served.generation.premises

        def read() -> list[list[str]]:
            return [[premises[n].text for n in found.ordinals.tolist()] for found in hits]

        texts = await self._in_thread(read)
        started = time.perf_counter()
        ranked, call.result.reranked_by = await self._rerank_pairs(call.query, hits, texts, call.left_s)
        call.result.timings.encode_s += time.perf_counter() - started
        return ranked

    async def _in_executor(self, call: Call, work: Callable[[int], SearchHits]) -> list[SearchHits]:
        """Runs `work` for each text in the executor."""
        return await self._each(range(len(call.query.texts)), work, call.deadline, call.result.timings)


class Retrieval:
    """Answers Search and Retrieve. Search calls no other service; only ranking texts by vectors needs the encoder."""

    def __init__(self, catalogue: Catalogue, stages: Stages, limits: Limits) -> None:
        self._catalogue, self._stages, self._limits = catalogue, stages, limits
        self._priors: OrderedDict[tuple[str, str], tuple[Sequence[Explanation], asyncio.Future[Prior]]] = OrderedDict()

    async def search(self, query: VectorQuery, *, deadline_s: float | None = None) -> RetrievalResult:
        """Finds the nearest premises of each vector.

        Raises InvalidArgument for a bad scope or vector, SpaceMismatch for another space, NotFound, Overloaded.
        """
        started = time.perf_counter()
        query.check(self._limits)
        served = await self._catalogue.resolve(query.scope.corpus, query.scope.generation)
        served.check_vectors(query.vectors, query.space_id)
        query.check_unit()
        check_answer(len(query.vectors), query.scope.k, served.index.rows, SEARCH_HIT_BYTES, self._limits)
        selection, answer = await select(served, query.scope), RetrievalResult(served, *served.unknown(query.scope))
        answer.hits = await self._stages.search(
            served, query.vectors, query.scope.k, selection, query.params, deadline_s, answer.timings
        )
        answer.timings.total_s = time.perf_counter() - started
        return answer

    async def retrieve(self, query: TextQuery, *, deadline_s: float | None = None) -> RetrievalResult:
        """Finds the premises that best explain each text.

        Raises what `search` and the encoder raise, FailedPrecondition when the corpus has no explanations or lexical
        index, Unimplemented when there is no cross-encoder, Unavailable naming an encoder that does not answer.
        """
        started = time.perf_counter()
        deadline = None if deadline_s is None else time.monotonic() + deadline_s
        query.check(self._limits)
        served = await self._catalogue.resolve(query.scope.corpus, query.scope.generation)
        check_answer(len(query.texts), query.depth, served.index.rows, RETRIEVE_HIT_BYTES, self._limits)
        prior = await self._prior(served.generation) if query.prior else None
        selection = await select(served, query.scope)
        looked_up = len(query.texts) + sum(map(len, query.accepted))
        call = await _off_loop(looked_up, lambda: Call.of(query, served, selection, deadline, prior))
        return await self._stages.answer(call, started)

    async def _prior(self, generation: Generation) -> Prior:
        """Returns the prior over a generation, made once for all who wait for it, until the explanations change."""
        explanations, key = await self._catalogue.explanations.of(generation.corpus), (generation.corpus, generation.id)
        known = self._priors.get(key)
        if known is None or known[0] is not explanations or (known[1].done() and known[1].exception()):
            making = asyncio.to_thread(Prior.over, explanations, generation.premises.ordinal_by_id)
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
    return await _off_loop(len(scope.exclude_ids) + len(scope.only_ids), lambda: served.select(scope))


async def _off_loop(size: int, work: Callable[[], T]) -> T:
    return work() if size <= ON_LOOP else await asyncio.to_thread(work)
