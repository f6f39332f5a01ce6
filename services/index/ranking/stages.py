"""Ranks premises for texts in every mode: a call goes through stages, each of which takes hits and returns better ones.

    encode ─► nearest ─► fuse with words ─► prior ─┬─► features ─► cross-encoder ─► k hits
                 ▲                                 │      (each only where the query asks for it)
                 └───── feedback of the first ─────┘

Their order is in `Stages.of`. A stage knows nothing of the others: one more is a method, and its place there. The
caller's label names the query encoder in the space of the generation, so that a corpus of another space needs no other
call. Later stages score the best POOL premises of each first ranking, whatever k is up to there, so that a longer list
starts with the shorter one. Every stage breaks ties by ordinal (SearchHits.best).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.inner_products import exact_scores
from services.index.catalogue.served import ServedGeneration
from services.index.dense.batcher import SearchBatcher
from services.index.lexical.bm25 import LexicalIndex, Terms, best
from services.index.lexical.executor import LexicalExecutor
from services.index.ranking.encoding import EncodeKey, QueryEncoder, Reranker
from services.index.ranking.features import DEPTH, FirstWords, features_of, order_by
from services.index.ranking.fusion import EXPLAINED, FEEDBACK, POOL, fuse_hits, rocchio_feedback
from services.index.ranking.prior import Near, Prior, with_bonus
from services.index.ranking.validation import check_accepted, check_vectors
from services.index.values import ALL, WITHOUT_ENCODER, SearchHits, Selection, TextQuery, Timings

KEPT_SCORES = 4_000_000  # by words, of all texts of a call together; beyond that, they are computed twice


@dataclass(eq=False)
class Call:
    """One Retrieve under way: what is asked, of which generation, until when, and what its stages have found out.

    For each text, `accepted` has the ordinals accepted for it, `left_out` also that of the text itself. `encoded` are
    the vectors (n, dim) of the texts, `vectors` the same after feedback. `words` and `near` are kept for a second
    ranking, by the text's place, since no vector changes them: the scores of all premises by words (rows,) with the
    best of them, and the nearest hypotheses.
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
        accepted = [_ordinals(served, n, ids) for n, ids in enumerate(query.accepted)] or [[]] * len(query.texts)
        same = [served.generation.ordinal_by_text.get(text) if query.drop_self else None for text in query.texts]
        left_out = [
            ordinals if itself is None else [itself, *ordinals] for itself, ordinals in zip(same, accepted, strict=True)
        ]
        return cls(query, served, selection, accepted, left_out, prior, deadline)

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

    async def allowed(self) -> Callable[[int], NDArray[np.bool_] | None]:
        """The premises (rows,) that may be returned for a text, by its place; None: all.

        A mask of a large corpus takes milliseconds.
        """
        selected = None if self.selection == ALL else await asyncio.to_thread(self.served.allowed, self.selection)

        def of_row(row: int) -> NDArray[np.bool_] | None:
            if not self.left_out[row]:
                return selected
            mask = np.ones(self.served.rows, dtype=bool) if selected is None else selected.copy()
            mask[self.left_out[row]] = False
            return mask

        return of_row

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
    """The stages of ranking. They raise what the encoder, the batcher and the executor raise."""

    def __init__(
        self, batcher: SearchBatcher, executor: LexicalExecutor, encoder: QueryEncoder, reranker: Reranker
    ) -> None:
        self._batcher, self._executor, self._encoder, self._reranker = batcher, executor, encoder, reranker

    async def rank(self, call: Call) -> list[SearchHits]:
        """Ranks the best premises for each text."""
        hits: list[SearchHits] = []
        for stage in self.of(call.query):
            hits = await stage(call, hits)
        return hits

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

    async def _encode(self, call: Call, hits: list[SearchHits]) -> list[SearchHits]:
        """Encodes each text with its accepted premises and subtracts what those explain."""
        started, query = time.perf_counter(), call.query
        texts = list(query.texts)
        if query.accepted:
            texts = await asyncio.to_thread(call.texts_with_accepted)
        key = EncodeKey.of(query, call.served.generation.space_id)
        encoded = await self._encoder.encode(texts, key, request_id=query.request_id, left_s=call.left_s)
        check_vectors(call.served, encoded.vectors, encoded.space_id)
        call.encoded, call.version, call.precision = encoded.vectors, encoded.version, encoded.precision
        if query.accepted:
            call.encoded = await asyncio.to_thread(call.turned, encoded.vectors, call.accepted, EXPLAINED)
        call.vectors = call.encoded
        call.timings.encode_s += time.perf_counter() - started
        return hits

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
            hits = await self._batcher.search(
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
        lexical, allowed = call.lexical, await call.allowed()

        def work(row: int) -> SearchHits:
            if call.query.mode == "ITERATIVE_LEXICAL":
                return lexical.iterate(call.terms(row), k, allowed(row))
            return best(lexical.scores(call.terms(row)), k, allowed(row))

        return await self._in_executor(call, work)

    async def _fuse_with_words(self, call: Call, hits: list[SearchHits], *, pool: int, k: int) -> list[SearchHits]:
        """Combines the best by vectors with the pool of the best by words."""
        lexical, allowed, query = call.lexical, await call.allowed(), call.query
        comes_again = query.negative_feedback and len(query.texts) * call.served.rows <= KEPT_SCORES

        def words_of(row: int) -> tuple[NDArray[np.float32], SearchHits]:
            if row in call.words:
                return call.words.pop(row)
            scores = lexical.scores(call.terms(row))
            found = scores, best(scores, pool, allowed(row))
            if comes_again:
                call.words[row] = found
            return found

        def work(row: int) -> SearchHits:
            scores, by_words = words_of(row)

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
                near = call.near[row] = prior.hypotheses.nearest(query.texts[row])
            return with_bonus(hits[row], prior.bonus_by(near, hits[row].ordinals), query.prior, k)

        return await self._in_executor(call, work)

    async def _turn_from(self, call: Call, hits: list[SearchHits]) -> list[SearchHits]:
        """Turns the vectors away from what the best have in common; ranking begins anew."""
        ordinals = [found.ordinals.tolist() for found in hits]
        call.vectors = await asyncio.to_thread(call.turned, call.vectors, ordinals, call.query.negative_feedback)
        return []

    async def _order_by_features(self, call: Call, hits: list[SearchHits], *, k: int) -> list[SearchHits]:
        """Orders the best premises anew by the weighted sum of their features."""
        allowed, query = await call.allowed(), call.query
        lexical = call.lexical if query.mode == "HYBRID" else None

        def work(row: int) -> SearchHits:
            first = hits[row].first(DEPTH)
            words = None if lexical is None else FirstWords.of(call.terms(row), first, lexical, allowed(row))
            found = features_of(first, words, call.encoded[row], call.served.index.vectors[first.ordinals])
            return order_by(hits[row], found, query.features, k)

        return await self._in_executor(call, work)

    async def _rerank(self, call: Call, hits: list[SearchHits]) -> list[SearchHits]:
        """Re-ranks by the cross-encoder."""
        premises = call.served.generation.premises

        def read() -> list[list[str]]:
            return [[premises[n].text for n in found.ordinals.tolist()] for found in hits]

        texts = await asyncio.to_thread(read)
        started = time.perf_counter()
        ranked, call.reranked_by = await self._reranker.rerank(call.query, hits, texts, left_s=call.left_s)
        call.timings.encode_s += time.perf_counter() - started
        return ranked

    async def _in_executor(self, call: Call, work: Callable[[int], SearchHits]) -> list[SearchHits]:
        """Runs `work` for each text in the executor."""
        hits, queue_s, compute_s = await self._executor.each(range(len(call.query.texts)), work, deadline=call.deadline)
        call.timings.add(queue_s, compute_s)
        return hits


def _ordinals(served: ServedGeneration, text: int, ids: tuple[str, ...]) -> list[int]:
    """The premises accepted for one text, in the caller's order, each once."""
    known = served.generation.ordinal_by_id
    check_accepted(served, text, [premise_id for premise_id in ids if premise_id not in known])
    return list(dict.fromkeys(known[premise_id] for premise_id in ids))
